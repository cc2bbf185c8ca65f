//! Texts of policies: with signs that stand for others, and with variables that stand for what a request has.

use s3s::{S3Result, s3_error};

use super::keys;
use crate::rules::context::{Context, normal_key};

/// One place of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// This character.
    Is(char),
    /// Any one.
    One,
    /// Any, of any number.
    Any,
}

/// A part of a text that has variables.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    Sign(Sign),
    /// The value of a key of the request, or else the default.
    Variable(String, Option<String>),
}

/// A text of a policy.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    /// Without variables; whether `*` and `?` stand for others.
    Plain(String, bool),
    Variable(Vec<Piece>),
}

fn sign(character: char, wild: bool) -> Sign {
    match character {
        '*' if wild => Sign::Any,
        '?' if wild => Sign::One,
        other => Sign::Is(other),
    }
}

impl Pattern {
    /// A text in which `*` and `?` stand for others if it is `wild`, and `${..}` is a variable if there are such.
    pub(super) fn new(text: &str, wild: bool, variables: bool) -> S3Result<Self> {
        if !variables || !text.contains("${") {
            return Ok(Self::Plain(text.to_owned(), wild));
        }
        let mut pieces = vec![];
        let mut rest = text;
        while let Some((before, variable)) = rest.split_once("${") {
            pieces.extend(before.chars().map(|c| Piece::Sign(sign(c, wild))));
            let end = variable.split_once('}');
            let (name, after) = end.ok_or_else(|| s3_error!(MalformedPolicy, "Policy has invalid variable: {text}"))?;
            pieces.push(variable_of(name)?);
            rest = after;
        }
        pieces.extend(rest.chars().map(|c| Piece::Sign(sign(c, wild))));
        Ok(Self::Variable(pieces))
    }

    /// Whether it is the same for every request and stands for one text only.
    pub(super) fn is_fixed(&self) -> bool {
        matches!(self, Self::Plain(text, wild) if !wild || !text.contains(['*', '?']))
    }

    /// Its text, as far as it has no variables.
    pub(super) fn plain(&self) -> Option<&str> {
        match self {
            Self::Plain(text, _) => Some(text),
            Self::Variable(_) => None,
        }
    }

    /// The keys of its variables.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        let pieces = match self {
            Self::Plain(..) => &[][..],
            Self::Variable(pieces) => pieces,
        };
        pieces.iter().filter_map(|piece| match piece {
            Piece::Variable(key, _) => Some(key.as_str()),
            Piece::Sign(_) => None,
        })
    }

    /// Its signs for a request; `None` when that has not what a variable stands for.
    pub(super) fn signs(&self, context: &Context) -> Option<Vec<Sign>> {
        let pieces = match self {
            Self::Plain(text, wild) => return Some(text.chars().map(|c| sign(c, *wild)).collect()),
            Self::Variable(pieces) => pieces,
        };
        let mut signs = vec![];
        for piece in pieces {
            match piece {
                Piece::Sign(sign) => signs.push(*sign),
                Piece::Variable(key, default) => {
                    let values = context.values(key);
                    // A key of several values stands for none of them.
                    let value = match &values[..] {
                        [one] => &**one,
                        _ => default.as_deref()?,
                    };
                    signs.extend(value.chars().map(Sign::Is));
                }
            }
        }
        Some(signs)
    }

    /// Whether it stands for this text.
    pub(super) fn matches(&self, text: &str, context: &Context) -> bool {
        match self {
            Self::Plain(own, false) => own == text,
            Self::Plain(own, true) => fits(own, text),
            Self::Variable(_) => self.signs(context).is_some_and(|signs| fit(signs.iter().copied(), text.chars())),
        }
    }

    /// As [`Pattern::matches`], without regard to case.
    pub(super) fn matches_any_case(&self, text: &str, context: &Context) -> bool {
        let lower = |c: char| c.to_lowercase();
        self.signs(context).is_some_and(|signs| {
            let own = signs.into_iter().filter_map(|sign| if let Sign::Is(c) = sign { Some(c) } else { None });
            own.flat_map(lower).eq(text.chars().flat_map(lower))
        })
    }

    /// As [`Pattern::matches`] for names of resources: each of their six parts matches by itself.
    pub(super) fn matches_arn(&self, text: &str, context: &Context) -> bool {
        let Some(signs) = self.signs(context) else { return false };
        let own: Vec<&[Sign]> = signs.splitn(6, |sign| *sign == Sign::Is(':')).collect();
        let parts: Vec<&str> = text.splitn(6, ':').collect();
        own.len() == parts.len() && own.iter().zip(parts).all(|(own, part)| fit(own.iter().copied(), part.chars()))
    }
}

/// What stands between `${` and `}`: a sign that would stand for others, or a key, maybe with a default.
fn variable_of(name: &str) -> S3Result<Piece> {
    if let "*" | "?" | "$" = name {
        return Ok(Piece::Sign(Sign::Is(name.chars().next().unwrap_or('$'))));
    }
    let (key, default) = name.split_once(',').map_or((name, None), |(key, default)| (key, Some(default.trim())));
    let key = normal_key(key.trim());
    let default = match default {
        None => None,
        Some(text) => {
            let quoted = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\''));
            let quoted = quoted.ok_or_else(|| s3_error!(MalformedPolicy, "Policy has invalid variable: {name}"))?;
            Some(quoted.to_owned())
        }
    };
    if !keys::is_known(&key) {
        return Err(s3_error!(MalformedPolicy, "Policy has invalid variable: {name}"));
    }
    Ok(Piece::Variable(key, default))
}

/// Whether `text` matches `pattern`: `*` stands for any characters, `?` for one.
pub(super) fn fits(pattern: &str, text: &str) -> bool {
    fit(pattern.chars().map(|c| sign(c, true)), text.chars())
}

fn fit(mut pattern: impl Iterator<Item = Sign> + Clone, mut text: impl Iterator<Item = char> + Clone) -> bool {
    // A text that is too short is not compared: a pattern may be long.
    if pattern.clone().filter(|sign| *sign != Sign::Any).count() > text.clone().count() {
        return false;
    }
    // Where to go on when what follows the last star does not match: the star takes one more character.
    let mut retry = None;
    loop {
        let mut rest = pattern.clone();
        match (rest.next(), text.clone().next()) {
            (Some(Sign::Any), _) => {
                retry = Some((rest.clone(), text.clone()));
                pattern = rest;
                continue;
            }
            (Some(want), Some(found)) if want == Sign::One || want == Sign::Is(found) => {
                pattern = rest;
                text.next();
                continue;
            }
            (None, None) => return true,
            _ => {}
        }
        let Some((after, remaining)) = &mut retry else { return false };
        if remaining.next().is_none() {
            return false;
        }
        (pattern, text) = (after.clone(), remaining.clone());
    }
}
