//! What a key may hold, as the only client knows that changes it.

use std::collections::VecDeque;

use crate::common::content;

/// Requests of a key that are told when something is wrong with it.
const TOLD: usize = 24;

/// An object, by what its bytes are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Object {
    pub(crate) seed: u64,
    pub(crate) length: usize,
}

impl Object {
    pub(crate) fn bytes(self) -> Vec<u8> {
        content(self.length, self.seed)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: String,
    /// One, unless a request has failed since: then what it would have made of the key as well.
    may: Vec<Option<Object>>,
    past: VecDeque<String>,
}

impl Key {
    pub(crate) fn new(name: String) -> Self {
        Self { name, may: vec![None], past: VecDeque::new() }
    }

    /// A request was answered: it holds this.
    pub(crate) fn is(&mut self, object: Option<Object>) {
        self.may = vec![object];
    }

    /// A request failed that would have made this of it.
    pub(crate) fn may_be(&mut self, object: Option<Object>) {
        if !self.may.contains(&object) {
            self.may.push(object);
        }
    }

    /// What it holds, if that is certain.
    pub(crate) fn certain(&self) -> Option<Option<Object>> {
        match self.may[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    pub(crate) fn may_be_absent(&self) -> bool {
        self.may.contains(&None)
    }

    pub(crate) fn may_be_present(&self) -> bool {
        self.may.iter().any(Option::is_some)
    }

    /// Whether it may be an object of so many bytes.
    pub(crate) fn may_have(&self, length: usize) -> bool {
        self.may.iter().flatten().any(|object| object.length == length)
    }

    /// It was read whole; `None`: it was not there. What it may be of that, which is certain then.
    pub(crate) fn saw(&mut self, bytes: Option<&[u8]>) -> bool {
        let is_that = |object: &Option<Object>| match (object, bytes) {
            (None, None) => true,
            (Some(object), Some(bytes)) => object.length == bytes.len() && object.bytes() == bytes,
            _ => false,
        };
        let found = self.may.iter().find(|object| is_that(object)).copied();
        if let Some(found) = found {
            self.may = vec![found];
        }
        found.is_some()
    }

    /// Something was asked of it.
    pub(crate) fn remember(&mut self, what: String) {
        if self.past.len() == TOLD {
            self.past.pop_front();
        }
        self.past.push_back(what);
    }

    /// What it may be, and how that came.
    pub(crate) fn tell(&self) -> String {
        let past: Vec<&str> = self.past.iter().map(String::as_str).collect();
        format!("{} may be {:?}; its past:\n  {}", self.name, self.may, past.join("\n  "))
    }
}
