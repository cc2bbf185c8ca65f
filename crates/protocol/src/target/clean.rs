//! Copies that nothing refers to. `docs/cleaning.md` has the argument why none goes that something counts on.

use std::collections::VecDeque;

use super::{Answer, Bug, ChunkId, Effect, Event, Message, NodeId, Pending, Target, TxnId, WriteFailure, limits};
use crate::id::Epoch;
use crate::promise::Promise;
use crate::redundancy::Wanted;
use crate::wire::Discard;

/// The marks of cleaners, numbered from 1 in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Marks {
    newest: u32,
    /// Oldest first.
    known: VecDeque<(TxnId, u32)>,
    /// The newest cluster map that a message had.
    epoch: Epoch,
}

impl Marks {
    pub(super) fn prefetch(&self) -> u64 {
        u64::from(self.newest)
    }

    /// The number of the last mark; promises are made after it.
    pub(super) fn newest(&self) -> u32 {
        self.newest
    }

    pub(super) fn note_epoch(&mut self, epoch: Epoch) {
        self.epoch = self.epoch.max(epoch);
    }

    fn find(&self, mark: TxnId) -> Option<u32> {
        self.known.iter().find(|(known, _)| *known == mark).map(|(_, number)| *number)
    }

    fn set(&mut self, mark: TxnId) {
        if self.find(mark).is_some() {
            return;
        }
        if self.known.len() >= limits::MARKS {
            self.known.pop_front();
        }
        // A mark that has no number of its own is not kept: what refers to it is refused.
        if let Some(next) = self.next() {
            self.known.push_back((mark, next));
        }
    }

    /// Another number: promises are made after it from now on.
    pub(super) fn next(&mut self) -> Option<u32> {
        self.newest = self.newest.checked_add(1)?;
        Some(self.newest)
    }
}

impl Target {
    /// An initiator that asks whether a copy is here counts on it from now on.
    pub(super) fn promise(&self, wanted: Wanted, restores: bool) -> Option<Promise> {
        let mark = self.marks.newest();
        (self.setup.bug != Some(Bug::ForgetPromise)).then_some(Promise { mark, wanted, restores })
    }

    /// Whether a cleaner does not know a map with which others already put: then it does not know all that refers to
    /// chunks either.
    fn is_behind(&self, epoch: Epoch) -> bool {
        epoch < self.marks.epoch.max(self.setup.map.epoch)
    }

    pub(super) fn mark(&mut self, from: NodeId, epoch: Epoch, txn: TxnId) {
        if self.is_behind(epoch) {
            return self.bid(from, txn, 0, Answer::Stale);
        }
        self.marks.set(txn);
        self.send(from, &Message::Marked { txn });
    }

    pub(super) fn discard(&mut self, from: NodeId, epoch: Epoch, discard: Discard) {
        let Discard { txn, page, mark, since, ids } = discard;
        if self.is_behind(epoch) {
            return self.bid(from, txn, 0, Answer::Stale);
        }
        let (mark, since) = match self.marks.find(mark) {
            Some(mark) => (mark, self.marks.find(since).filter(|since| *since < mark).unwrap_or(0)),
            None if self.setup.bug == Some(Bug::ObeyUnknown) => (u32::MAX, u32::MAX),
            None => return self.send(from, &Message::Discarded { txn, page, dropped: None, bytes: 0 }),
        };
        // What is put again from here stays until that is over: a chunk that no target lists any more must not appear
        // again.
        let judged: Vec<(u8, ChunkId)> = (0..).zip(ids).filter(|(_, id)| !self.is_restoring(id)).collect();
        let ids = judged.iter().map(|(_, id)| *id).collect();
        let pending = Pending::Discard { from, txn, page, judged };
        self.begin_effect(Effect::Discard { ids, mark, since, kept_for: None }, pending);
    }

    /// Whether it is being decided if a chunk may go.
    pub(super) fn is_judging(&self, id: &ChunkId) -> bool {
        let judges = |pending: &Pending| matches!(pending, Pending::Discard { judged, .. } if judged.iter().any(|(_, of)| of.whole() == id.whole()));
        self.pending.values().any(judges)
    }

    pub(super) fn discarded(
        &mut self,
        from: NodeId,
        txn: TxnId,
        page: u16,
        dropped: u32,
        bytes: u64,
        result: Result<(), WriteFailure>,
    ) {
        self.note_failure(result);
        let chunks = dropped.count_ones();
        if chunks > 0 {
            self.setup.chunks = self.setup.chunks.saturating_sub(u64::from(chunks));
            self.event(Event::Discarded { chunks, bytes });
        }
        self.send(from, &Message::Discarded { txn, page, dropped: Some(dropped), bytes });
    }
}
