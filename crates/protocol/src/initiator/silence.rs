//! Who has said nothing for how long, as far as this initiator noticed.

use super::{Instant, NodeId, Shared, Span};

/// Rounds that a member may miss before others no longer wait for its bid.
const SUSPECT: u8 = 2;
/// Rounds that a member may miss before puts no longer wait for it to come back: they last some 4 s.
const DOWN: u8 = 60;
/// How long it is remembered that a target left a whole series of questions unanswered.
const SILENCE: Span = Span::from_secs(10);

impl Shared {
    pub(super) fn is_suspect(&self, node: NodeId) -> bool {
        self.missed.get(&node).is_some_and(|(rounds, _)| *rounds >= SUSPECT)
    }

    /// Whether a member has missed so many rounds in a row that it is down, and not only restarting.
    pub(super) fn is_down(&self, node: NodeId) -> bool {
        self.missed.get(&node).is_some_and(|(rounds, _)| *rounds >= DOWN)
    }

    pub(super) fn heard(&mut self, node: NodeId) {
        self.missed.remove(&node);
        self.silent.remove(&node);
    }

    /// A target left a whole series of questions unanswered.
    pub(super) fn fell_silent(&mut self, node: NodeId) {
        self.silent.insert(node, self.now);
    }

    /// Whether a target did lately, and has said nothing since.
    pub(super) fn is_silent(&self, node: NodeId) -> bool {
        self.silent.get(&node).is_some_and(|since| self.now.since(*since) < SILENCE)
    }

    /// Nothing was heard of a member in a round that began at `since`. Rounds at one time count as one: a moment's silence
    /// is not many.
    pub(super) fn miss(&mut self, node: NodeId, since: Instant) {
        let (rounds, over) = self.missed.entry(node).or_insert((0, Instant::ZERO));
        if since >= *over {
            (*rounds, *over) = (rounds.saturating_add(1), self.now);
        }
    }
}
