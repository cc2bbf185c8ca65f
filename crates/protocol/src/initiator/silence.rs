//! Which targets have been silent for how long, as far as this initiator noticed.

use super::{Context, Instant, NodeId};

/// Rounds that a member may miss before others no longer wait for its bid.
const SUSPECT: u8 = 2;
/// Rounds that a member may miss before puts no longer wait for it to come back: they last some 4 s.
const DOWN: u8 = 60;

impl Context {
    pub(super) fn is_suspect(&self, node: NodeId) -> bool {
        self.missed.get(&node).is_some_and(|(rounds, _)| *rounds >= SUSPECT)
    }

    /// Whether a member has missed so many rounds in a row that it is down, and not only restarting.
    pub(super) fn is_down(&self, node: NodeId) -> bool {
        self.missed.get(&node).is_some_and(|(rounds, _)| *rounds >= DOWN)
    }

    pub(super) fn mark_reachable(&mut self, node: NodeId) {
        self.missed.remove(&node);
    }

    /// Nothing came from a member in a round that began at `since`. Rounds at one time count as one: a moment's silence
    /// is not many.
    pub(super) fn miss(&mut self, node: NodeId, since: Instant) {
        let (rounds, over) = self.missed.entry(node).or_insert((0, Instant::ZERO));
        if since >= *over {
            (*rounds, *over) = (rounds.saturating_add(1), self.now);
        }
    }
}
