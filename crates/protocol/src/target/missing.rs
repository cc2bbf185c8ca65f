//! Chunks whose copy here was damaged: which other targets have one.
//!
//! A steward counts the copies that targets have. When all copies but that of a silent target were damaged, no steward
//! counts the chunk, and it would be lost with that target. So a target that misses a copy looks for another, and says
//! whose answers it lacks: none of those targets is to be [taken out](crate::take_out) of the cluster map for being
//! silent.

use std::collections::{BTreeSet, VecDeque};

use super::{Bug, ChunkId, Effect, Message, NodeId, Pending, Target, TxnId};
use crate::config::Config;
use crate::limits;
use crate::time::{Instant, Span};
use crate::wire::{Bid, Nowhere};

/// Times that a target is asked before it counts as silent until the next look, with twice as long to answer each time.
const ASKED: u8 = 3;

/// What is known of them.
#[derive(Debug, Default)]
pub(super) struct Missing {
    look: Option<Look>,
    /// When the next look begins, if none is under way; and when it may at the earliest, whatever is missing since the last one.
    next: Instant,
    rest_until: Instant,
    /// Whether one more follows the look that is under way.
    again: bool,
    /// Whether a copy is missing for which no look that is over has looked.
    is_unlooked: bool,
    /// What the last look found; `None` before the first one is over.
    nowhere: Option<Nowhere>,
}

/// All that are missing are looked for, one after the other.
#[derive(Debug, Default)]
struct Look {
    ids: VecDeque<ChunkId>,
    /// Where the disk goes on to name them; `None` when it has named all.
    after: Option<ChunkId>,
    /// When it is asked for them once more, as it had too much to do.
    name_again: Option<Instant>,
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
    /// The targets that are asked then.
    others: VecDeque<NodeId>,
    /// Those that may have it, and do not answer.
    silent: Vec<NodeId>,
}

impl Missing {
    pub(super) fn next_deadline(&self, config: &Config) -> Option<Instant> {
        match &self.look {
            _ if config.census_interval == Span::ZERO => None,
            Some(look) => look.name_again.or_else(|| look.question.as_ref().map(|question| question.again)),
            None => Some(self.next),
        }
    }

    /// One more copy is missing.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.next = self.rest_until.max(now);
        self.again = self.look.is_some();
        self.is_unlooked = true;
    }

    /// What the last look found, and what a look that is under way has found so far: so a target that fell silent
    /// meanwhile is known at once.
    pub(super) fn nowhere(&self) -> Option<Nowhere> {
        let mut all = self.nowhere.clone()?;
        if let Some(look) = &self.look {
            (all.lost, all.sought) = (all.lost.max(look.found.lost), all.sought.max(look.found.sought));
            look.found.silent.iter().for_each(|silent| all.note_silent(*silent));
        }
        Some(all)
    }

    fn question(&mut self) -> Option<&mut Question> {
        self.look.as_mut()?.question.as_mut()
    }

    /// The question that a target answers.
    fn answered(&mut self, from: NodeId, txn: TxnId) -> Option<&mut Question> {
        self.question().filter(|question| question.to == from && question.txn == txn)
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
            None if self.setup.bug == Some(Bug::NeverSeek) => {
                self.missing.nowhere = Some(Nowhere::default());
                self.missing.is_unlooked = false;
                self.missing.next = now + self.config.census_interval;
            }
            None => {
                self.missing.look = Some(Look::default());
                self.missing.again = false;
                self.name_missing();
            }
            Some(look) if look.name_again.is_some_and(|at| now >= at) => {
                look.name_again = None;
                self.name_missing();
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

    /// Has the disk name the next of them.
    fn name_missing(&mut self) {
        let after = self.missing.look.as_ref().and_then(|look| look.after);
        self.begin_effect(Effect::Missing { after, limit: limits::LISTED }, Pending::Missing);
    }

    /// The disk has named some; none when it has too much to do.
    pub(super) fn missing_listed(&mut self, listed: Option<(Vec<ChunkId>, bool)>) {
        let again = self.now + self.config.late;
        let Some(look) = &mut self.missing.look else { return };
        let Some((ids, more)) = listed else {
            look.name_again = Some(again);
            return;
        };
        look.after = ids.last().copied().filter(|_| more);
        look.ids = ids.into();
        self.look_for_next();
    }

    /// Goes on with the next chunk that is missing.
    fn look_for_next(&mut self) {
        let Some(look) = &mut self.missing.look else { return };
        look.question = None;
        match (look.ids.pop_front(), look.after) {
            (Some(id), _) => {
                // All that the steward of its group asks: where maps followed each other quickly, a copy is where none of the last two has it.
                let map = &self.setup.map;
                let others = map.keepers(map.group_of(&id)).into_iter().filter(|other| *other != self.setup.id);
                let all: BTreeSet<NodeId> = others.collect();
                let (silent, others): (Vec<NodeId>, Vec<NodeId>) =
                    all.into_iter().partition(|other| look.silent.contains(other));
                let (to, txn, again) = (self.setup.id, TxnId(0), Instant::FAR);
                look.question = Some(Question { id, to, txn, asked: 0, again, others: others.into(), silent });
                self.next_of_missing(id);
            }
            (None, Some(_)) => self.name_missing(),
            (None, None) => {
                let (now, interval) = (self.now, self.config.census_interval);
                self.missing.rest_until = now + self.config.short_pause().max(Span::from_nanos(1));
                self.missing.next = if self.missing.again { self.missing.rest_until } else { now + interval };
                self.missing.nowhere = self.missing.look.take().map(|look| look.found);
                self.missing.is_unlooked = self.missing.again;
            }
        }
    }

    /// The target that was asked has no copy: asks the next one. Where none is left, the chunk is nowhere as far as is
    /// known.
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
        let Some(question) = self.missing.question() else { return };
        question.again = now + wait.times(1 << question.asked);
        question.asked += 1;
        question.txn = txn;
        let (to, prefix) = (question.to, question.id.encode().to_vec());
        self.send(to, &Message::List { txn, prefix, after: None });
    }

    /// The chunks whose copy here was damaged, and that were found nowhere else, as far as it was looked; `None` before it was.
    #[must_use]
    pub fn nowhere(&self) -> Option<Nowhere> {
        // Where no target looks, none is known to miss anything.
        if self.config.census_interval == Span::ZERO {
            return Some(Nowhere::default());
        }
        let mut nowhere = self.missing.nowhere()?;
        if self.missing.is_unlooked {
            // A look may take long, as one that is asked puts it off: until it is over anybody may have the last copy.
            let others = self.setup.map.targets().map(|target| target.id).filter(|id| *id != self.setup.id);
            others.for_each(|id| nowhere.note_silent(id));
        }
        Some(nowhere)
    }

    /// A target says whether it has a chunk. Whether it was asked that for a copy that is missing here.
    pub(super) fn listed(&mut self, from: NodeId, txn: TxnId, ids: &[ChunkId]) -> bool {
        let Some(id) = self.missing.answered(from, txn).map(|question| question.id) else { return false };
        if ids.contains(&id) {
            // Its steward sees to the rest.
            self.look_for_next();
        } else {
            self.next_of_missing(id);
        }
        true
    }

    /// A target is there, and does not say now whether it has a chunk: it has too much to do, or a newer map. Whether it was asked.
    pub(super) fn missing_put_off(&mut self, from: NodeId, bid: &Bid) -> bool {
        let again = self.now + self.config.late;
        let Some(question) = self.missing.answered(from, bid.txn) else { return false };
        (question.asked, question.again) = (0, again);
        true
    }
}
