//! The checkers: they know what was promised, and nothing of how it is kept.

use std::collections::BTreeMap;

use protocol::id::{ChunkId, NodeId};
use protocol::time::{Instant, Span};

/// Accepted windows of one target's port must not overlap while both are in force.
#[derive(Clone, Debug, Default)]
pub struct Windows {
    in_force: BTreeMap<NodeId, Vec<(ChunkId, Instant, Instant)>>,
}

impl Windows {
    /// A target accepted a window (its own clock). What overlaps is described; an empty window, which is what a transfer
    /// gets that came too late for its bid, overlaps nothing.
    pub fn accepted(
        &mut self,
        target: NodeId,
        now: Instant,
        id: ChunkId,
        start: Instant,
        length: Span,
    ) -> Option<String> {
        if length == Span::ZERO {
            return None;
        }
        let windows = self.in_force.entry(target).or_default();
        windows.retain(|(_, _, end)| *end > now);
        let end = start + length;
        let other = windows.iter().find(|(_, from, to)| *from < end && start < *to).copied();
        windows.push((id, start, end));
        other.map(|(id, from, to)| {
            format!("{target} accepted {start} to {end}, which overlaps {from} to {to} of {id:?}")
        })
    }

    /// The transfer of a chunk is over: its window is free.
    pub fn over(&mut self, target: NodeId, id: ChunkId) {
        if let Some(windows) = self.in_force.get_mut(&target) {
            windows.retain(|(other, ..)| *other != id);
        }
    }

    /// The target crashed: nothing is in force.
    pub fn crashed(&mut self, target: NodeId) {
        self.in_force.remove(&target);
    }
}
