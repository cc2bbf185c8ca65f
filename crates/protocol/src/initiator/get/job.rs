//! What a get is asked for.

use crate::id::{ChunkId, NodeId, TxnId};
use crate::initiator::context::Context;
use crate::initiator::part::Part;
use crate::redundancy::Piece;
use crate::time::Instant;

/// What was asked for.
#[derive(Clone, Debug)]
pub(in crate::initiator) struct Job {
    pub(in crate::initiator) handle: u64,
    pub(in crate::initiator) id: ChunkId,
    /// The targets that were listed as holders. They need not be in the group: the map may have changed since they took
    /// the chunk.
    pub(in crate::initiator) holders: Vec<NodeId>,
    pub(in crate::initiator) asked: Instant,
    pub(in crate::initiator) give_up_at: Instant,
    /// The get that gathers pieces, of which this is one.
    pub(in crate::initiator) gather: Option<TxnId>,
}

impl Job {
    /// Its payload should have begun. Another piece is as good.
    pub(super) fn note_late(&self, context: &mut Context) {
        if let Some((gather, piece)) = self.part() {
            context.gathered.push_back((gather, piece, Part::Late));
        }
    }

    /// Of what it is a part, and which.
    pub(super) fn part(&self) -> Option<(TxnId, Piece)> {
        self.gather.map(|gather| (gather, self.id.piece().unwrap_or_default()))
    }
}
