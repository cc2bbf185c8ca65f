//! Chunks whose copy here was damaged: who else has one.
//!
//! A steward counts what somebody has. What was damaged on everybody but on a target that is silent is counted by nobody, and would
//! be lost with that one. So who misses a copy looks for another, and says whose answer it lacks: nobody of these is to be
//! [taken out](crate::take_out) of the cluster map for being silent.

use std::collections::{BTreeSet, VecDeque};

use super::{Bug, ChunkId, Effect, Message, NodeId, Pending, Target, TxnId};
use crate::config::Config;
use crate::limits;
use crate::time::{Instant, Span};
use crate::wire::Nowhere;

/// Times that a target is asked before it counts as silent until the next look, with twice as long to answer each time.
const ASKED: u8 = 3;

/// What is known of them.
#[derive(Debug, Default)]
pub(super) struct Missing {
    look: Option<Look>,
    /// When the next look begins, if none is under way.
    next: Instant,
    /// Whether one more follows the look that is under way at once.
    again: bool,
    /// What the last look found.
    nowhere: Nowhere,
}

/// All that are missing are looked for, one after the other.
#[derive(Debug, Default)]
struct Look {
    ids: VecDeque<ChunkId>,
    /// Where the disk goes on to name them; `None` when it has named all.
    after: Option<ChunkId>,
    question: Option<Question>,
    silent: BTreeSet<NodeId>,
    found: Nowhere,
}

/// Whether a target has a copy.
#[derive(Debug)]
struct Question {
    id: ChunkId,
    to: NodeId,
    txn: TxnId,
    asked: u8,
    again: Instant,
    /// Who is asked then.
    others: VecDeque<NodeId>,
    /// Those that may have it, and do not answer.
    silent: Vec<NodeId>,
}

impl Missing {
    pub(super) fn next_deadline(&self, config: &Config) -> Option<Instant> {
        match &self.look {
            _ if config.census_interval == Span::ZERO => None,
            Some(look) => look.question.as_ref().map(|question| question.again),
            None => Some(self.next),
        }
    }

    /// One more copy is missing.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.next = now;
        self.again = self.look.is_some();
    }

    /// What was found by the last look, and as far as one is under way by that: whoever falls silent meanwhile is known at once.
    pub(super) fn nowhere(&self) -> Nowhere {
        let mut all = self.nowhere.clone();
        if let Some(look) = &self.look {
            (all.lost, all.sought) = (all.lost.max(look.found.lost), all.sought.max(look.found.sought));
            look.found.silent.iter().for_each(|silent| all.note_silent(*silent));
        }
        all
    }
}

impl Target {
    pub(super) fn wake_missing(&mut self) {
        if self.config.census_interval == Span::ZERO {
            return;
        }
        let now = self.now;
        match &mut self.missing.look {
            None if now < self.missing.next => {}
            None if self.setup.bug == Some(Bug::NeverSeek) => self.missing.next = now + self.config.census_interval,
            None => {
                self.missing.look = Some(Look::default());
                self.missing.again = false;
                self.name_missing(None);
            }
            Some(Look { question: Some(question), silent, .. }) if now >= question.again => {
                if question.asked < ASKED {
                    self.ask_for_missing();
                } else {
                    let (id, late) = (question.id, question.to);
                    question.silent.push(late);
                    silent.insert(late);
                    self.next_of_missing(id);
                }
            }
            Some(_) => {}
        }
    }

    /// Has the disk name those behind this one.
    fn name_missing(&mut self, after: Option<ChunkId>) {
        self.begin_effect(Effect::Missing { after, limit: limits::LISTED }, Pending::Missing);
    }

    /// The disk has named some; none when it has too much to do.
    pub(super) fn missing_named(&mut self, named: Option<(Vec<ChunkId>, bool)>) {
        let Some((ids, more)) = named else {
            self.missing.next = self.now + self.config.late;
            self.missing.look = None;
            return;
        };
        let Some(look) = &mut self.missing.look else { return };
        look.after = ids.last().copied().filter(|_| more);
        look.ids = ids.into();
        self.look_for_next();
    }

    /// Goes on with the next chunk that is missing.
    fn look_for_next(&mut self) {
        let Some(look) = &mut self.missing.look else { return };
        look.question = None;
        match (look.ids.pop_front(), look.after.take()) {
            (Some(id), after) => {
                look.after = after;
                let (map, own) = (&self.setup.map, self.setup.id);
                let keepers = map.keepers(map.group_of(&id)).into_iter().filter(|keeper| *keeper != own);
                let (silent, others): (Vec<NodeId>, Vec<NodeId>) = keepers.partition(|id| look.silent.contains(id));
                let (to, txn, again) = (own, TxnId(0), Instant::FAR);
                look.question = Some(Question { id, to, txn, asked: 0, again, others: others.into(), silent });
                self.next_of_missing(id);
            }
            (None, Some(after)) => self.name_missing(Some(after)),
            (None, None) => {
                let pause = if self.missing.again { Span::ZERO } else { self.config.census_interval };
                self.missing.next = self.now + pause.max(Span::from_nanos(1));
                self.missing.nowhere = self.missing.look.take().map_or_else(Nowhere::default, |look| look.found);
            }
        }
    }

    /// Who was asked has no copy: asks the next one. Where nobody is left, it is nowhere as far as is known.
    fn next_of_missing(&mut self, id: ChunkId) {
        let Some(look) = &mut self.missing.look else { return };
        let Some(question) = look.question.as_mut().filter(|question| question.id == id) else { return };
        if let Some(to) = question.others.pop_front() {
            (question.to, question.asked) = (to, 0);
            return self.ask_for_missing();
        }
        let count = if question.silent.is_empty() { &mut look.found.lost } else { &mut look.found.sought };
        *count = count.saturating_add(1);
        question.silent.iter().for_each(|silent| look.found.note_silent(*silent));
        self.look_for_next();
    }

    fn ask_for_missing(&mut self) {
        let (now, txn, wait) = (self.now, TxnId(self.secrets.next_u64()), self.config.bid_timeout);
        let Some(question) = self.missing.look.as_mut().and_then(|look| look.question.as_mut()) else { return };
        question.again = now + wait.times(1 << question.asked);
        question.asked += 1;
        question.txn = txn;
        let (to, prefix) = (question.to, question.id.encode().to_vec());
        self.send(to, &Message::List { txn, prefix, after: None });
    }

    /// The chunks whose copy here was damaged, and that were found nowhere else.
    #[must_use]
    pub fn nowhere(&self) -> Nowhere {
        self.missing.nowhere()
    }

    /// A target says whether it has a chunk. Whether it was asked that for a copy that is missing here.
    pub(super) fn listed(&mut self, from: NodeId, txn: TxnId, ids: &[ChunkId]) -> bool {
        let question = self.missing.look.as_ref().and_then(|look| look.question.as_ref());
        let Some(question) = question.filter(|question| question.to == from && question.txn == txn) else {
            return false;
        };
        let id = question.id;
        if ids.contains(&id) {
            // Its steward sees to the rest.
            self.look_for_next();
        } else {
            self.next_of_missing(id);
        }
        true
    }
}
