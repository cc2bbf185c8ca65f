//! What clients asked and what they were answered, and whether one store could have answered so.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use protocol::id::{ChunkId, NodeId};
use protocol::redundancy::Redundancy;
use protocol::time::Instant;

use crate::linear::{Did, Operation, linearizable};

/// A bucket and a key.
pub(crate) type Name = (&'static str, &'static str);

/// Something that a client observed of one version.
#[derive(Clone, Copy, Debug)]
enum Observation {
    /// It was put.
    Put(u128),
    /// It was removed for good, or its removal has begun.
    Erased(u128),
    /// It is the newest; `None`: there is none.
    Newest(Option<u128>),
    /// Whether it is there.
    There(u128, bool),
}

#[derive(Clone, Copy, Debug)]
struct Event {
    observation: Observation,
    called: u64,
    answered: Option<u64>,
}

impl Event {
    fn is_before(&self, moment: u64) -> bool {
        self.answered.is_some_and(|answered| answered < moment)
    }
}

#[derive(Clone, Debug, Default)]
struct Key {
    /// As a register of what was put last. What did not happen is not in it.
    register: Vec<Option<Operation>>,
    /// Whether a version was removed by its id: then an older one may be the newest again.
    goes_back: bool,
    events: Vec<Event>,
}

/// Names an operation that is under way.
#[derive(Clone, Copy)]
pub(crate) struct Call(Name, usize);

/// Everything that clients observed.
#[derive(Clone, Default)]
pub(crate) struct History {
    keys: BTreeMap<Name, Key>,
    /// What was put, by a number that is its entity tag.
    contents: BTreeMap<u64, Bytes>,
    next: u64,
    /// Chunks that the catalog referred to at the end, and the redundancy that was asked for.
    pub(crate) referenced: BTreeSet<(ChunkId, Option<Redundancy>)>,
    /// Chunks that could not be had when they were asked for last, as they are where nobody looks for them.
    pub(crate) elsewhere: BTreeSet<ChunkId>,
    /// Chunks that a gateway could not put when it tried last, as there was no room.
    pub(crate) without_room: BTreeMap<(NodeId, ChunkId), Instant>,
    /// The first observation that is impossible.
    pub(crate) wrong: Option<String>,
    /// Operations that ended as they should.
    pub(crate) done: u32,
}

impl History {
    /// A number for something that will be put.
    pub(crate) fn number(&mut self, contents: Bytes) -> u64 {
        self.next += 1;
        self.contents.insert(self.next, contents);
        self.next
    }

    /// Something that was put before.
    pub(crate) fn earlier(&self, nth: u64) -> Option<Bytes> {
        self.contents.values().nth(nth as usize % self.contents.len().max(1)).cloned()
    }

    pub(crate) fn contents(&self, number: u64) -> Option<&Bytes> {
        self.contents.get(&number)
    }

    pub(crate) fn fail(&mut self, why: String) {
        self.wrong.get_or_insert(why);
    }

    fn key(&mut self, name: Name) -> &mut Key {
        self.keys.entry(name).or_default()
    }

    /// A change of the register is asked for.
    pub(crate) fn call(&mut self, name: Name, did: Did, called: u64) -> Call {
        let register = &mut self.key(name).register;
        register.push(Some(Operation { did, called, answered: None }));
        Call(name, register.len() - 1)
    }

    /// It was made; or it did this.
    pub(crate) fn answer(&mut self, call: Call, did: Option<Did>, now: u64) {
        if let Some(Some(operation)) = self.key(call.0).register.get_mut(call.1) {
            operation.did = did.unwrap_or(operation.did);
            operation.answered = Some(now);
        }
    }

    /// It was not made, and never will be.
    pub(crate) fn not_made(&mut self, call: Call) {
        if let Some(operation) = self.key(call.0).register.get_mut(call.1) {
            *operation = None;
        }
    }

    /// What was put last was read.
    pub(crate) fn read(&mut self, name: Name, found: Option<u64>, called: u64, now: u64) {
        let did = Did::Read(found);
        self.key(name).register.push(Some(Operation { did, called, answered: Some(now) }));
    }

    fn observe(&mut self, name: Name, observation: Observation, called: u64, answered: Option<u64>) {
        self.key(name).events.push(Event { observation, called, answered });
    }

    pub(crate) fn put(&mut self, name: Name, version: u128, called: u64, now: u64) {
        self.observe(name, Observation::Put(version), called, Some(now));
    }

    pub(crate) fn newest(&mut self, name: Name, version: Option<u128>, called: u64, now: u64) {
        self.observe(name, Observation::Newest(version), called, Some(now));
    }

    pub(crate) fn there(&mut self, name: Name, version: u128, is: bool, called: u64, now: u64) {
        self.observe(name, Observation::There(version, is), called, Some(now));
    }

    /// The removal of a version is asked for.
    pub(crate) fn erase(&mut self, name: Name, version: u128, called: u64) -> Call {
        let key = self.key(name);
        key.goes_back = true;
        key.events.push(Event { observation: Observation::Erased(version), called, answered: None });
        Call(name, key.events.len() - 1)
    }

    /// It was made.
    pub(crate) fn erased(&mut self, call: Call, now: u64) {
        if let Some(event) = self.key(call.0).events.get_mut(call.1) {
            event.answered = Some(now);
        }
    }

    /// A version that is known of this name, by its number in the order in which they were observed.
    pub(crate) fn known_version(&self, name: Name, nth: u64) -> Option<u128> {
        let events = self.keys.get(&name)?.events.iter();
        let puts: Vec<u128> =
            events.filter_map(|e| if let Observation::Put(v) = e.observation { Some(v) } else { None }).collect();
        puts.get(nth as usize % puts.len().max(1)).copied()
    }

    /// What is wrong with it all, if anything.
    pub(crate) fn judge(&self) -> Option<String> {
        if self.wrong.is_some() {
            return self.wrong.clone();
        }
        self.keys.iter().find_map(|(name, all)| {
            let why = all.judge()?;
            Some(format!("{}/{}: {why}", name.0, name.1))
        })
    }
}

impl Key {
    fn judge(&self) -> Option<String> {
        let register: Vec<Operation> = self.register.iter().flatten().copied().collect();
        if !self.goes_back && !linearizable(None, &register) {
            return Some(format!("no order of these explains what was answered: {register:?}"));
        }
        self.events.iter().find_map(|event| self.judge_event(event))
    }

    fn judge_event(&self, event: &Event) -> Option<String> {
        let before = || self.events.iter().filter(|other| other.is_before(event.called));
        // What was read as the newest stays, also when its put failed.
        let stays = |other: &Event| match other.observation {
            Observation::Put(version) => Some(version),
            Observation::Newest(version) => version,
            Observation::Erased(_) | Observation::There(..) => None,
        };
        let known_before = || before().filter_map(stays);
        let put_before =
            || before().filter_map(|other| if let Observation::Put(v) = other.observation { Some(v) } else { None });
        let gone_before =
            |version| before().any(|other| matches!(other.observation, Observation::Erased(gone) if gone == version));
        let until = event.answered.unwrap_or(u64::MAX);
        let going = |version| {
            let asked = |other: &Event| matches!(other.observation, Observation::Erased(gone) if gone == version);
            self.events.iter().any(|other| asked(other) && other.called < until)
        };
        match event.observation {
            Observation::Put(version) => {
                // One that was removed is not there to be seen.
                let later = known_before().find(|other| *other >= version && !going(*other))?;
                Some(format!("{version:032x} was put after {later:032x}, and is not later"))
            }
            Observation::Newest(newest) => {
                if let Some(gone) = newest.filter(|version| gone_before(*version)) {
                    return Some(format!("{gone:032x} was removed, and was the newest again"));
                }
                let is_later = |other: &u128| newest.is_none_or(|newest| *other > newest);
                let later = known_before().find(|other| is_later(other) && !going(*other))?;
                let shown = newest.map_or("nothing".to_owned(), |version| format!("{version:032x}"));
                Some(format!("{later:032x} was acknowledged or read, and then {shown} was the newest"))
            }
            Observation::There(version, true) if gone_before(version) => {
                Some(format!("{version:032x} was removed, and was there again"))
            }
            Observation::There(version, false) if put_before().any(|other| other == version) && !going(version) => {
                Some(format!("{version:032x} was acknowledged, and was not there"))
            }
            Observation::There(..) | Observation::Erased(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: Name = ("b", "k");

    #[test]
    fn an_older_version_and_a_removed_one_are_found() {
        let mut history = History::default();
        history.put(NAME, 5, 0, 1);
        history.put(NAME, 7, 2, 3);
        history.newest(NAME, Some(7), 4, 5);
        assert_eq!(history.judge(), None);
        let mut older = history.clone();
        older.newest(NAME, Some(5), 6, 7);
        assert!(older.judge().is_some());
        let mut absent = history.clone();
        absent.newest(NAME, None, 6, 7);
        assert!(absent.judge().is_some());
        let call = history.erase(NAME, 7, 6);
        history.newest(NAME, Some(5), 7, 8);
        history.newest(NAME, Some(7), 7, 8);
        history.erased(call, 9);
        assert_eq!(history.judge(), None);
        history.there(NAME, 7, true, 10, 11);
        assert!(history.judge().is_some());
    }

    #[test]
    fn what_was_read_as_the_newest_stays() {
        let mut history = History::default();
        history.put(NAME, 5, 0, 1);
        history.newest(NAME, Some(7), 2, 4);
        history.newest(NAME, Some(5), 5, 9);
        assert!(history.judge().is_some());
    }

    #[test]
    fn an_earlier_version_that_is_put_later_is_found() {
        let mut history = History::default();
        history.put(NAME, 5, 0, 1);
        history.put(NAME, 4, 0, 3);
        assert_eq!(history.judge(), None);
        history.put(NAME, 3, 2, 3);
        assert!(history.judge().is_some());
    }
}
