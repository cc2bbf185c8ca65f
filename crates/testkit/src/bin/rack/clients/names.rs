//! What clients know of the objects: which there must be, and which there must not be any more.

use std::collections::{BTreeMap, BTreeSet};

/// Parts into which names are divided, so that a list is of some of them.
const PARTS: u64 = 16;

/// What is known of an object of which anything was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its put was acknowledged.
    Present,
    /// It is being removed, or may be: that failed.
    Going,
    /// Its removal was acknowledged.
    Removed,
}

/// The objects, which are numbered. One whose put failed is not among them: it may be there or not.
#[derive(Debug, Default)]
pub(super) struct Names {
    next: u64,
    /// Those being put, or whose put failed.
    unknown: BTreeSet<u64>,
    states: BTreeMap<u64, State>,
    present: Vec<u64>,
    removed: Vec<u64>,
}

impl Names {
    /// A number that none had.
    pub(super) fn draw(&mut self) -> u64 {
        self.next += 1;
        self.unknown.insert(self.next);
        self.next
    }

    pub(super) fn was_put(&mut self, number: u64) {
        self.unknown.remove(&number);
        self.states.insert(number, State::Present);
        self.present.push(number);
    }

    pub(super) fn present(&self) -> &[u64] {
        &self.present
    }

    pub(super) fn removed(&self) -> &[u64] {
        &self.removed
    }

    pub(super) fn is_present(&self, number: u64) -> bool {
        self.states.get(&number) == Some(&State::Present)
    }

    /// One of those that are present, to remove it.
    pub(super) fn give_up(&mut self, chance: u64) -> Option<u64> {
        let at = chance.checked_rem(self.present.len() as u64)?;
        let number = self.present.swap_remove(at as usize);
        self.states.insert(number, State::Going);
        Some(number)
    }

    pub(super) fn was_removed(&mut self, number: u64) {
        self.states.insert(number, State::Removed);
        self.removed.push(number);
    }

    /// What a list of a part must show that begins now, and what not.
    pub(super) fn expect(&self, part: u64) -> Expected {
        let those = |state| {
            let these = self.states.iter().filter(move |(number, is)| *number % PARTS == part && **is == state);
            these.map(|(number, _)| *number).collect()
        };
        Expected { part, there: those(State::Present), gone: those(State::Removed) }
    }

    /// What is wrong with a list that ended now.
    pub(super) fn judge(&self, expected: &Expected, listed: &[String]) -> Option<String> {
        let mut numbers = BTreeSet::new();
        for name in listed {
            let number = number_of(name).filter(|number| number % PARTS == expected.part);
            let known = number.filter(|n| self.states.contains_key(n) || self.unknown.contains(n));
            let Some(number) = known else { return Some(format!("{name} is listed, which nobody put")) };
            if !numbers.insert(number) {
                return Some(format!("{name} is listed twice"));
            }
        }
        let back =
            expected.gone.intersection(&numbers).next().map(|n| format!("{} is listed, and removed", name_of(*n)));
        let missing = expected.there.difference(&numbers).find(|number| self.is_present(**number));
        back.or_else(|| missing.map(|n| format!("{} is not listed, and acknowledged", name_of(*n))))
    }
}

/// See [`Names::expect`].
#[derive(Debug)]
pub(super) struct Expected {
    part: u64,
    there: BTreeSet<u64>,
    gone: BTreeSet<u64>,
}

/// A part, of which a list may be asked.
pub(super) const fn part(chance: u64) -> u64 {
    chance % PARTS
}

/// What the names of a part begin with.
pub(super) fn prefix_of(part: u64) -> String {
    format!("part-{part:02}/")
}

/// The name of an object.
pub(super) fn name_of(number: u64) -> String {
    format!("{}{number:08}", prefix_of(part(number)))
}

fn number_of(name: &str) -> Option<u64> {
    let number = name.rsplit_once('/')?.1.parse().ok()?;
    (name_of(number) == name).then_some(number)
}
