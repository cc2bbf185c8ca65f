//! Modules use each other in one direction: what is beside each other in a folder forms no circle. A module and those
//! inside it may know each other.
//!
//! What is looked at are paths that begin with `crate`, `super`, `self` or a module inside, in `use` and in code outside
//! of tests and of macros. One that leads to what another module only imports leads to where that is. A call of a method
//! of a type that was imported elsewhere is no path, so that it is not found.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// The crates that hold to it.
const CRATES: [&str; 11] =
    ["catalog", "cli", "erasure", "node", "object", "paper", "protocol", "s3", "sim", "store", "testkit"];
/// The layers of `s3`: each may use those after it.
const S3: [&str; 4] = ["http", "ops", "state", "rules"];

/// A module by the names that lead to it; the root has none.
type Module = Vec<String>;

/// Which module uses which.
type Uses = BTreeSet<(Module, Module)>;

/// The paths in one file.
struct Paths<'a> {
    all: &'a BTreeMap<Module, String>,
    module: &'a Module,
    found: Vec<Module>,
    /// What it imports, by the name that it has here.
    imports: BTreeMap<String, Module>,
}

impl Paths<'_> {
    /// Notes a path, from the root on, and says where it leads; those that begin elsewhere are of other crates, or were imported.
    fn note(&mut self, path: &[String]) -> Option<Module> {
        let first = path.first()?;
        let inside = [&self.module[..], std::slice::from_ref(first)].concat();
        let mut at = match first.as_str() {
            "crate" => vec![],
            "self" => self.module.clone(),
            "super" => self.module[..self.module.len().saturating_sub(1)].to_vec(),
            _ if self.all.contains_key(&inside) => inside,
            _ => return None,
        };
        for name in &path[1..] {
            if name == "super" {
                at.pop();
            } else {
                at.push(name.clone());
            }
        }
        self.found.push(at.clone());
        Some(at)
    }

    fn import(&mut self, path: &[String], name: &syn::Ident) {
        if let Some(at) = self.note(path) {
            self.imports.insert(name.to_string(), at);
        }
    }

    fn note_tree(&mut self, tree: &syn::UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.note_tree(&path.tree, &with(&path.ident)),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.note_tree(tree, before)),
            syn::UseTree::Name(name) => self.import(&with(&name.ident), &name.ident),
            syn::UseTree::Rename(name) => self.import(&with(&name.ident), &name.rename),
            syn::UseTree::Glob(_) => drop(self.note(before)),
        }
    }
}

impl<'a> Visit<'a> for Paths<'_> {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        let is_test = |attribute: &syn::Attribute| {
            attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Path>().is_ok_and(|what| what.is_ident("test"))
        };
        if !item.attrs.iter().any(is_test) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.note_tree(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.note(&names);
        visit::visit_path(self, path);
    }
}

/// The modules below a folder, each with the text of its file.
fn modules(folder: &Path, module: &Module, all: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let inside = [&module[..], std::slice::from_ref(&name)].concat();
        if path.is_dir() {
            // Programs have roots of their own.
            if name != "bin" {
                modules(&path, &inside, all);
            }
        } else if path.extension().is_some_and(|kind| kind == "rs") && name != "tests" {
            let here = if ["mod", "lib", "main"].contains(&name.as_str()) { module.clone() } else { inside };
            all.insert(here, fs::read_to_string(&path).unwrap());
        }
    }
}

fn uses(all: &BTreeMap<Module, String>) -> Uses {
    let read = |(module, text): (_, &String)| {
        let mut paths = Paths { all, module, found: vec![], imports: BTreeMap::new() };
        paths.visit_file(&syn::parse_file(text).unwrap());
        (module, paths)
    };
    let files: BTreeMap<&Module, Paths<'_>> = all.iter().map(read).collect();
    // The module that a path is in: that of what it names, also when a module on the way only imports it.
    let leads = |mut path: Module| loop {
        let known =
            (0..=path.len()).rev().map(|length| &path[..length]).find(|part| files.contains_key(&part.to_vec()))?;
        let imported = path.get(known.len()).and_then(|name| files[&known.to_vec()].imports.get(name));
        match imported {
            Some(at) if !at.starts_with(&path[..=known.len()]) => {
                path = [&at[..], &path[known.len() + 1..]].concat();
            }
            _ => return Some(known.to_vec()),
        }
    };
    let mut uses = Uses::new();
    for (module, paths) in &files {
        for path in &paths.found {
            uses.extend(leads(path.clone()).map(|other| ((*module).clone(), other)));
        }
    }
    uses
}

/// What is beside each other in one folder, and which of it uses which.
fn folders(uses: &Uses) -> BTreeMap<Module, BTreeMap<String, BTreeSet<String>>> {
    let mut folders: BTreeMap<Module, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (from, to) in uses {
        let same = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        if let (Some(one), Some(other)) = (from.get(same), to.get(same)) {
            let folder = folders.entry(from[..same].to_vec()).or_default();
            folder.entry(one.clone()).or_default().insert(other.clone());
        }
    }
    folders
}

/// What is in a circle, or between two: all that uses something and is used, when what is not so was taken away again and again.
fn circle(mut uses: BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    loop {
        let using: BTreeSet<String> = uses.keys().cloned().collect();
        let used: BTreeSet<String> = uses.values().flatten().cloned().collect();
        let before = uses.len();
        uses.retain(|name, others| {
            others.retain(|other| using.contains(other));
            used.contains(name) && !others.is_empty()
        });
        if uses.len() == before {
            return uses;
        }
    }
}

fn read(root: &Path) -> BTreeMap<Module, String> {
    let mut all = BTreeMap::new();
    modules(root, &vec![], &mut all);
    all
}

/// The folders whose modules `crate` begins with, of a crate: that of its library or program, and those of its further programs.
fn roots(name: &str) -> Vec<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(name).join("src");
    let programs = fs::read_dir(source.join("bin")).into_iter().flatten().map(|entry| entry.unwrap().path());
    let folders = programs.filter(|path| path.is_dir()).collect::<Vec<_>>();
    std::iter::once(source).chain(folders).collect()
}

#[test]
fn modules_beside_each_other_form_no_circle() {
    let mut found = String::new();
    let mut programs = 0;
    for root in CRATES.into_iter().flat_map(roots) {
        programs += usize::from(root.ends_with("bin/rack") || root.ends_with("bin/mutants"));
        for (folder, uses) in folders(&uses(&read(&root))) {
            let circle = circle(uses);
            if !circle.is_empty() {
                found += &format!("{}, in {:?}: {circle:?}\n", root.display(), folder.join("::"));
            }
        }
    }
    assert!(found.is_empty(), "{found}");
    assert_eq!(programs, 2, "that they are looked at");
}

#[test]
fn the_layers_of_s3_use_those_below() {
    let all = read(&roots("s3")[0]);
    let layers: BTreeSet<&str> = all.keys().filter_map(|module| module.first().map(String::as_str)).collect();
    assert_eq!(layers, S3.into());
    let uses = &folders(&uses(&all))[&vec![]];
    for (layer, others) in uses {
        let at = |name: &str| S3.iter().position(|layer| *layer == name).unwrap();
        assert!(others.iter().all(|other| at(other) > at(layer)), "{layer} uses {others:?}");
    }
    assert_eq!(uses["http"], ["ops", "rules", "state"].map(String::from).into(), "that they are found at all");
}

#[test]
fn a_circle_is_found() {
    let all = [
        ("a", "use crate::b::{c::D, E};"),
        ("b", "pub mod c; use super::b::c::F;"),
        ("b::c", "fn f() -> u8 { crate::g::one() }"),
        ("g", "mod h { use crate::a; }"),
        ("i", "use crate::a::J; #[cfg(test)] mod tests { use crate::k; }"),
        ("k", "use self::g; use super::i;"),
        ("p", "mod q; mod r; mod s; pub use q::{A as B};"),
        ("p::q", "use super::r::C;"),
        ("p::r", "use super::B;"),
        ("p::s", "use super::C; use super::B;"),
    ];
    let module = |name: &str| name.split("::").map(str::to_owned).collect::<Module>();
    let all = all.map(|(name, text)| (module(name), text.to_owned()));
    let folders = folders(&uses(&all.into()));
    let circle: Vec<String> = self::circle(folders[&vec![]].clone()).into_keys().collect();
    assert_eq!(circle, ["a", "b", "g"]);
    let by_parent: Vec<String> = self::circle(folders[&module("p")].clone()).into_keys().collect();
    assert_eq!(by_parent, ["q", "r"]);
}
