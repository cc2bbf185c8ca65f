//! What puts and gets know of their present round: a question to some of a group, and which of them have answered.

use super::Context;
use crate::id::{GroupId, NodeId};
use crate::time::{Instant, Span};

/// One round of questions and bids.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) number: u8,
    pub(super) group: GroupId,
    pub(super) asked_of: Vec<NodeId>,
    pub(super) answered: Vec<NodeId>,
    /// When the first of the targets that were busy may have a window.
    pub(super) busy: Option<Span>,
}

impl Round {
    /// Before the first.
    pub(super) const fn new() -> Self {
        Self { number: 0, group: GroupId(0), asked_of: Vec::new(), answered: Vec::new(), busy: None }
    }

    /// The next one, which no target has answered yet.
    pub(super) fn begin(&mut self, group: GroupId) {
        self.number = self.number.wrapping_add(1);
        self.group = group;
        self.answered.clear();
    }

    /// Whether this target still owes an answer.
    pub(super) fn awaits(&self, target: NodeId) -> bool {
        self.asked_of.contains(&target) && !self.answered.contains(&target)
    }

    /// The targets that still owe an answer.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = NodeId> {
        self.asked_of.iter().copied().filter(|target| !self.answered.contains(target))
    }

    /// Whether no target owes an answer.
    pub(super) fn is_complete(&self) -> bool {
        self.outstanding().next().is_none()
    }

    /// A target has no window yet, for so long.
    pub(super) fn note_busy(&mut self, wait: Span) {
        self.busy = Some(self.busy.map_or(wait, |busy| busy.min(wait)));
    }
}

/// What a transaction has to do with the leader of its group.
#[derive(Debug)]
pub(super) struct LeaderAttempts {
    /// The targets that this round asks instead of the group.
    pub(super) asked: Option<NodeId>,
    /// The leader that was asked last, and when: a grant that comes after patience is over says how long grants take,
    /// too.
    pub(super) last: Option<(NodeId, Instant)>,
    /// Rounds that may ask it yet: none when it did not answer, or could not grant anything.
    pub(super) left: u8,
}

impl LeaderAttempts {
    /// A grant came.
    pub(super) fn note_grant(&self, context: &mut Context, from: NodeId) {
        if let Some((_, since)) = self.last.filter(|(leader, _)| *leader == from) {
            context.grant_arrived(since);
        }
    }
}
