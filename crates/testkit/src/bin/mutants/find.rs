//! Finds the places of a source file that can be changed a little, and how.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::Context;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Arm, Attribute, BinOp, Block, Expr, ExprLit, GenericArgument, ImplItemConst, ImplItemFn, ItemConst, ItemFn,
    ItemImpl, ItemMod, ItemStatic, ItemTrait, Lit, Macro, Pat, ReturnType, Signature, Stmt, Type, UnOp,
};

/// Most characters of code in a mutant's name.
const QUOTED: usize = 90;

/// How a mutant differs from the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Another expression stands in its place.
    Instead(String),
    /// A statement is left out.
    Without,
    /// The function returns this at once.
    Return(String),
    /// The arm of a match is never taken.
    Never,
}

/// One small change.
#[derive(Clone, Debug)]
pub(crate) struct Mutant {
    /// What it is called: the same as long as its function has the same code at this place.
    pub(crate) name: String,
    /// The line of the source.
    pub(crate) line: usize,
    /// Its bytes in the source; empty where something is put in.
    pub(crate) range: Range<usize>,
    pub(crate) form: Form,
}

/// All mutants of the file `path` whose source is `text`, in the order of their places.
pub(crate) fn mutants(path: &str, text: &str) -> anyhow::Result<Vec<Mutant>> {
    let file = syn::parse_file(text).with_context(|| format!("{path} cannot be parsed"))?;
    let mut finder = Finder { text, within: Vec::new(), settled: BTreeSet::new(), found: Vec::new() };
    finder.visit_file(&file);
    let mut found = finder.found;
    found.sort_by_key(|mutant| (mutant.range.start, std::cmp::Reverse(mutant.range.end)));
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for mutant in &mut found {
        let count = counts.entry(mutant.name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            mutant.name = format!("{} ({count})", mutant.name);
        }
    }
    Ok(found)
}

struct Finder<'a> {
    text: &'a str,
    /// Modules, types and functions around.
    within: Vec<String>,
    /// Conditions that are already replaced by `true` or `false`: their opposite would show nothing more.
    settled: BTreeSet<(usize, usize)>,
    found: Vec<Mutant>,
}

fn words(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.chars().count() <= QUOTED { text } else { text.chars().take(QUOTED).collect::<String>() + "…" }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

fn bare(mut expr: &Expr) -> &Expr {
    while let Expr::Paren(inner) = expr {
        expr = &inner.expr;
    }
    expr
}

/// What one operator is mistaken for; of comparisons the bound first.
fn mistaken(op: &BinOp) -> &'static [&'static str] {
    match op {
        BinOp::Lt(_) => &["<=", ">="],
        BinOp::Le(_) => &["<", ">"],
        BinOp::Gt(_) => &[">=", "<="],
        BinOp::Ge(_) => &[">", "<"],
        BinOp::Eq(_) => &["", "!="],
        BinOp::Ne(_) => &["", "=="],
        BinOp::Add(_) => &["-"],
        BinOp::Sub(_) => &["+"],
        BinOp::Mul(_) => &["/"],
        BinOp::Div(_) | BinOp::Rem(_) => &["*"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::BitAnd(_) | BinOp::BitXor(_) => &["|"],
        BinOp::BitOr(_) => &["&"],
        BinOp::AddAssign(_) => &["-="],
        BinOp::SubAssign(_) => &["+="],
        BinOp::MulAssign(_) => &["/="],
        BinOp::DivAssign(_) => &["*="],
        BinOp::BitOrAssign(_) => &["&="],
        BinOp::BitAndAssign(_) => &["|="],
        BinOp::ShlAssign(_) => &[">>="],
        BinOp::ShrAssign(_) => &["<<="],
        _ => &[],
    }
}

const METHODS: [(&str, &str); 20] = [
    ("min", "max"),
    ("max", "min"),
    ("any", "all"),
    ("all", "any"),
    ("is_some", "is_none"),
    ("is_none", "is_some"),
    ("is_ok", "is_err"),
    ("is_err", "is_ok"),
    ("is_some_and", "is_none_or"),
    ("is_none_or", "is_some_and"),
    ("min_by_key", "max_by_key"),
    ("max_by_key", "min_by_key"),
    ("first", "last"),
    ("last", "first"),
    ("pop_first", "pop_last"),
    ("first_key_value", "last_key_value"),
    ("last_key_value", "first_key_value"),
    ("saturating_sub", "saturating_add"),
    ("saturating_add", "saturating_sub"),
    ("push_back", "push_front"),
];

/// Values that a function of this type may return instead of its own.
fn returns(output: &ReturnType) -> Vec<String> {
    let ReturnType::Type(_, kind) = output else { return vec![String::new()] };
    let Type::Path(path) = &**kind else { return Vec::new() };
    let Some(last) = path.path.segments.last() else { return Vec::new() };
    let words: &[&str] = match last.ident.to_string().as_str() {
        "bool" => &["true", "false"],
        "u8" | "u16" | "u32" | "u64" | "usize" => &["0", "1"],
        "Span" => &["Default::default()"],
        "Option" => &["None"],
        "Result" => &["Ok(Default::default())"],
        "Vec" | "BTreeMap" | "BTreeSet" => &["Default::default()"],
        _ => &[],
    };
    words.iter().map(ToString::to_string).collect()
}

impl Finder<'_> {
    fn quote(&self, range: Range<usize>) -> &str {
        &self.text[range]
    }

    fn add(&mut self, line: usize, range: Range<usize>, form: Form) {
        let code = self.quote(range.clone());
        // PlantedBug defects prove that checkers bite; here they would only be planted twice.
        if matches!(form, Form::Instead(_)) && code.contains("Bug::") {
            return;
        }
        let place = self.within.join("::");
        let change = match &form {
            Form::Instead(other) => format!("`{}` becomes `{}`", words(code), words(other)),
            Form::Without => format!("without `{}`", words(code)),
            Form::Return(value) => format!("returns {value} at once").replace("  ", " "),
            Form::Never => {
                let line = self.text[..range.start].rfind('\n').map_or(0, |end| end + 1);
                format!("never matches `{}`", words(self.quote(line..range.start)))
            }
        };
        self.found.push(Mutant { name: format!("{place}: {change}"), line, range, form });
    }

    fn instead(&mut self, expr: &Expr, other: &str) {
        let span = expr.span();
        self.add(span.start().line, span.byte_range(), Form::Instead(other.to_owned()));
    }

    /// A condition on which something depends.
    fn decide(&mut self, condition: &Expr, other: &[&str]) {
        let condition = bare(condition);
        let chained = match condition {
            Expr::Let(_) => return,
            Expr::Binary(binary) => match binary.op {
                BinOp::And(_) => Some("false"),
                BinOp::Or(_) => Some("true"),
                _ => None,
            },
            _ => None,
        };
        let range = condition.span().byte_range();
        match chained {
            // `true` of one operand and then of the other says as much.
            Some(only) if !has_let(condition) => self.instead(condition, only),
            Some(_) => {}
            None => {
                self.settled.insert((range.start, range.end));
                other.iter().for_each(|other| self.instead(condition, other));
            }
        }
    }

    /// An operand of `&&` or `||` counts no more.
    fn ignore(&mut self, operand: &Expr, neutral: &str) {
        let operand = bare(operand);
        if matches!(operand, Expr::Let(_)) {
            return;
        }
        let same = match operand {
            Expr::Binary(inner) => matches!((&inner.op, neutral), (BinOp::And(_), "true") | (BinOp::Or(_), "false")),
            _ => false,
        };
        if !same {
            let range = operand.span().byte_range();
            self.settled.insert((range.start, range.end));
            self.instead(operand, neutral);
        }
    }

    fn binary(&mut self, expr: &Expr, binary: &syn::ExprBinary) {
        match binary.op {
            BinOp::And(_) => [&binary.left, &binary.right].iter().for_each(|side| self.ignore(side, "true")),
            BinOp::Or(_) => [&binary.left, &binary.right].iter().for_each(|side| self.ignore(side, "false")),
            _ => {}
        }
        let (whole, op) = (expr.span().byte_range(), binary.op.span().byte_range());
        let settled = self.settled.contains(&(whole.start, whole.end));
        for (nth, other) in mistaken(&binary.op).iter().enumerate() {
            if !other.is_empty() && (nth == 0 || !settled) {
                let (before, after) = (self.quote(whole.start..op.start), self.quote(op.end..whole.end));
                let changed = format!("{before}{other}{after}");
                self.instead(expr, &changed);
            }
        }
    }

    fn function(&mut self, signature: &Signature, block: &Block) {
        let brace = block.brace_token.span.open();
        if block.stmts.is_empty() {
            return;
        }
        for value in returns(&signature.output) {
            let at = brace.byte_range().end;
            self.add(brace.start().line, at..at, Form::Return(value));
        }
    }

    fn inside(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        self.within.push(name);
        visit(self);
        self.within.pop();
    }
}

fn has_let(expr: &Expr) -> bool {
    match bare(expr) {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// Whether a pattern matches whatever comes: `_` or a name, which constants and variants do not look like.
fn takes_all(pat: &Pat) -> bool {
    match pat {
        Pat::Wild(_) => true,
        Pat::Ident(name) => {
            name.subpat.is_none() && name.ident.to_string().starts_with(|first: char| first.is_lowercase())
        }
        _ => false,
    }
}

/// Whether `expr` does something, so that a statement of it can be missed.
fn is_deed(expr: &Expr) -> bool {
    match expr {
        Expr::Call(_) | Expr::MethodCall(_) | Expr::Assign(_) | Expr::ForLoop(_) => true,
        Expr::Try(inner) => is_deed(&inner.expr),
        Expr::Binary(binary) => matches!(
            binary.op,
            BinOp::AddAssign(_)
                | BinOp::SubAssign(_)
                | BinOp::MulAssign(_)
                | BinOp::DivAssign(_)
                | BinOp::RemAssign(_)
                | BinOp::BitXorAssign(_)
                | BinOp::BitAndAssign(_)
                | BinOp::BitOrAssign(_)
                | BinOp::ShlAssign(_)
                | BinOp::ShrAssign(_)
        ),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if item.sig.constness.is_none() && !is_for_tests(&item.attrs) {
            self.inside(item.sig.ident.to_string(), |finder| {
                finder.function(&item.sig, &item.block);
                finder.visit_block(&item.block);
            });
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        if item.sig.constness.is_none() {
            self.inside(item.sig.ident.to_string(), |finder| {
                finder.function(&item.sig, &item.block);
                finder.visit_block(&item.block);
            });
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let of = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last()).map(|last| last.ident.to_string());
        if is_for_tests(&item.attrs) || of.is_some_and(|name| name == "Debug" || name == "Display") {
            return;
        }
        let Type::Path(path) = &*item.self_ty else { return };
        let name = path.path.segments.last().map_or_else(String::new, |last| last.ident.to_string());
        self.inside(name, |finder| visit::visit_item_impl(finder, item));
    }

    fn visit_item_trait(&mut self, _: &'ast ItemTrait) {}

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_for_tests(&item.attrs) {
            self.inside(item.ident.to_string(), |finder| visit::visit_item_mod(finder, item));
        }
    }

    // What is fixed when it is compiled cannot be switched when it runs.
    fn visit_item_const(&mut self, _: &'ast ItemConst) {}
    fn visit_impl_item_const(&mut self, _: &'ast ImplItemConst) {}
    fn visit_item_static(&mut self, _: &'ast ItemStatic) {}
    fn visit_macro(&mut self, _: &'ast Macro) {}
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_generic_argument(&mut self, _: &'ast GenericArgument) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        if let Stmt::Expr(expr, end) = stmt
            && is_deed(expr)
        {
            match (expr, end) {
                (Expr::ForLoop(_), _) | (_, Some(_)) => {
                    self.add(stmt.span().start().line, stmt.span().byte_range(), Form::Without);
                }
                _ => self.instead(expr, "()"),
            }
        }
        visit::visit_stmt(self, stmt);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        if let Some((_, guard)) = &arm.guard {
            self.decide(guard, &["true", "false"]);
        }
        if is_deed(&arm.body) {
            self.instead(&arm.body, "()");
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr(&mut self, expr: &'ast Expr) {
        match expr {
            Expr::If(choice) => self.decide(&choice.cond, &["true", "false"]),
            // For ever would only be a time-out.
            Expr::While(repeated) => self.decide(&repeated.cond, &["false"]),
            Expr::Binary(binary) => self.binary(expr, binary),
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_)) => {
                let range = expr.span().byte_range();
                if !self.settled.contains(&(range.start, range.end)) {
                    let inner = self.quote(unary.expr.span().byte_range()).to_owned();
                    self.instead(expr, &inner);
                }
            }
            Expr::Match(choice) => {
                let rest = choice.arms.last().is_some_and(|arm| arm.guard.is_none() && takes_all(&arm.pat));
                let all = choice.arms.len() - usize::from(rest);
                for arm in choice.arms[..all].iter().filter(|arm| rest && arm.guard.is_none()) {
                    let at = arm.pat.span().byte_range().end;
                    self.add(arm.pat.span().start().line, at..at, Form::Never);
                }
            }
            Expr::MethodCall(call) => {
                let name = call.method.to_string();
                for (_, other) in METHODS.iter().filter(|(from, _)| *from == name) {
                    let (whole, method) = (expr.span().byte_range(), call.method.span().byte_range());
                    let (before, after) = (self.quote(whole.start..method.start), self.quote(method.end..whole.end));
                    let changed = format!("{before}{other}{after}");
                    self.instead(expr, &changed);
                }
            }
            Expr::Lit(ExprLit { lit: Lit::Bool(value), .. }) => {
                self.instead(expr, if value.value { "false" } else { "true" });
            }
            Expr::Lit(ExprLit { lit: Lit::Int(value), .. }) => {
                if let Ok(number) = value.base10_parse::<u64>() {
                    let changed = format!("{}{}", number.wrapping_add(1), value.suffix());
                    self.instead(expr, &changed);
                }
            }
            _ => {}
        }
        visit::visit_expr(self, expr);
    }
}
