//! Copies that move from full targets to empty ones, as their holders see them: see [`steward`](crate::steward).

use std::collections::BTreeMap;

use super::{ChunkId, Effect, Event, IgnoredReason, Message, NodeId, Pending, Target, TxnId};
use crate::id::Epoch;
use crate::redundancy::Wanted;
use crate::time::Instant;
use crate::wire::{Fill, Usage};

/// Copies of which a target remembers that they are about to go, as it has put others elsewhere.
const LEAVING: usize = 16_384;

/// The copies that are about to go, as others were put elsewhere instead: stewards count them no more, or they would have more moved
/// than is needed until these are gone.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    copies: BTreeMap<ChunkId, (u64, Instant)>,
    bytes: u64,
}

impl Leaving {
    pub(super) fn leave(&mut self, id: ChunkId, bytes: u64, now: Instant) {
        self.stay(&id);
        if self.copies.len() < LEAVING {
            self.copies.insert(id, (bytes, now));
            self.bytes += bytes;
        }
    }

    /// It stays after all, or is gone.
    pub(super) fn stay(&mut self, id: &ChunkId) {
        if let Some((bytes, _)) = self.copies.remove(id) {
            self.bytes -= bytes;
        }
    }

    /// Forgets those that were to go before this, and still are here.
    fn forget_before(&mut self, then: Instant) {
        let late: Vec<ChunkId> = self.copies.iter().filter(|(_, (_, at))| *at < then).map(|(id, _)| *id).collect();
        late.iter().for_each(|id| self.stay(id));
    }
}

impl Target {
    /// A steward asks how full this target is.
    pub(super) fn fill_asked(&mut self, from: NodeId, txn: TxnId) {
        self.begin_effect(Effect::Usage, Pending::Fill { from, txn });
    }

    pub(super) fn fill_known(&mut self, from: NodeId, txn: TxnId, usage: &Usage) {
        let longest = self.config.moved_for().as_nanos();
        self.leaving.forget_before(Instant::from_nanos(self.now.as_nanos().saturating_sub(longest)));
        let live = (usage.live + self.held()).saturating_sub(self.leaving.bytes);
        // A target that takes nothing more, and serves what it has, is neither full nor empty.
        let room = if self.disk_failed { 0 } else { usage.live + usage.dead + self.setup.free };
        self.deliver(from, &Message::Filled { txn, fill: Fill { live, room, chunks: self.setup.chunks } });
    }

    /// A steward says that a chunk that is here is to have a copy on a certain member of its group.
    pub(super) fn move_copy(
        &mut self,
        from: NodeId,
        epoch: Epoch,
        txn: TxnId,
        (id, wanted): (ChunkId, Wanted),
        to: NodeId,
    ) {
        if epoch != self.setup.map.epoch {
            // Others may be in the group.
            return self.event(Event::Ignored(IgnoredReason::OtherMap));
        }
        self.restore(from, txn, (id, wanted), Vec::new(), Some(to));
    }

    /// A planted defect: what is being moved goes before it is durable elsewhere.
    pub(super) fn drop_at_once(&mut self, (from, txn, id): (NodeId, TxnId, ChunkId)) {
        let mark = u32::MAX;
        let effect = Effect::Discard { ids: vec![id], mark, since: mark, kept_for: None };
        self.begin_effect(effect, Pending::Surplus { from, txn, id });
    }
}
