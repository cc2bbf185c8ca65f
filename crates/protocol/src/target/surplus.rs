//! Copies beyond those that are wanted, as their holders see them: see [`steward`](crate::steward).

use super::{Ack, ChunkId, Effect, Event, IgnoredReason, Message, NodeId, Pending, Target, TxnId, WriteFailure};
use crate::id::Epoch;
use crate::redundancy::Wanted;

impl Target {
    /// A steward says that the copy here is one too many: from now on it is noted when it is promised. With such a
    /// `note` it goes, unless it was promised since.
    pub(super) fn surplus(
        &mut self,
        from: NodeId,
        epoch: Epoch,
        (txn, id, wanted): (TxnId, ChunkId, Wanted),
        note: Option<u64>,
    ) {
        if epoch != self.setup.map.epoch {
            // Others may be in the group.
            return self.event(Event::Ignored(IgnoredReason::OtherMap));
        }
        let life = self.life;
        let Some(note) = note else {
            if let Some(mark) = self.marks.next() {
                let note = u64::from(life) << 32 | u64::from(mark);
                self.deliver(from, &Message::Noted { txn, note });
            }
            return;
        };
        // Of what was promised in an earlier life nothing is known. What is being put from here stays until that is over, and so does
        // what is being put here once more: that may be on its way to the disk.
        let is_coming = self.reservations.values().any(|copy| copy.is_of(&id));
        if (note >> 32) as u32 != life || is_coming || self.is_restoring(&id) {
            return self.deliver(from, &Message::Ack { txn, ack: Ack::Durable });
        }
        let mark = note as u32;
        let effect = Effect::Discard { ids: vec![id], mark, since: mark, kept_for: Some(wanted) };
        self.begin_effect(effect, Pending::Surplus { from, txn, id });
    }

    /// The chunks whose copies go just now, as there are enough others.
    pub fn letting_go(&self) -> impl Iterator<Item = ChunkId> {
        self.pending.values().filter_map(|pending| match pending {
            Pending::Surplus { id, .. } => Some(*id),
            _ => None,
        })
    }

    pub(super) fn let_go(
        &mut self,
        (from, txn, id): (NodeId, TxnId, ChunkId),
        dropped: bool,
        bytes: u64,
        result: Result<(), WriteFailure>,
    ) {
        self.note_failure(result);
        if dropped {
            self.setup.chunks = self.setup.chunks.saturating_sub(1);
            self.leaving.stay(&id);
            self.event(Event::LetGo { id, bytes });
        }
        let ack = if dropped { Ack::Unknown } else { Ack::Durable };
        self.deliver(from, &Message::Ack { txn, ack });
    }
}
