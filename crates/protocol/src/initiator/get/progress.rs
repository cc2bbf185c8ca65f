//! What came of a get so far: which targets need not be asked again, and when none is left.

use crate::id::NodeId;
use crate::initiator::GetError;

/// What is known after all rounds so far.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Targets that have no copy.
    pub(super) absent: Vec<NodeId>,
    /// Holders that failed this get; asked again when there is no other.
    pub(super) tried: Vec<NodeId>,
    /// Holders whose copy is damaged or cannot be read, by their own answer: not asked again.
    pub(super) corrupt: Vec<NodeId>,
    /// Holders whose copy arrived damaged. That may have happened on the way.
    pub(super) suspect: Vec<NodeId>,
    pub(super) rounds: u32,
    /// Rounds in which no target offered anything or was busy, and some were silent.
    pub(super) fruitless: u8,
    /// Whether the group by the previous layout is asked as well, because no member of the present one served the
    /// chunk.
    pub(super) asks_previous: bool,
}

impl Progress {
    /// Whether a target is not asked now.
    pub(super) fn rules_out(&self, target: NodeId) -> bool {
        [&self.absent, &self.tried, &self.corrupt].iter().any(|list| list.contains(&target))
    }

    /// The targets that have, or seem to have, a damaged copy.
    pub(super) fn damaged(&self) -> Vec<NodeId> {
        let mut damaged = [&self.corrupt[..], &self.suspect[..]].concat();
        damaged.sort_unstable();
        damaged.dedup();
        damaged
    }

    /// Why there is no target left to ask: all of them answered that they have no copy, or a damaged one.
    pub(super) fn nowhere(&self, all: &[NodeId]) -> Option<GetError> {
        if !all.iter().all(|n| self.absent.contains(n) || self.corrupt.contains(n)) {
            return None;
        }
        let corrupt = self.damaged();
        Some(if corrupt.is_empty() {
            GetError::NotFound
        } else {
            GetError::Unavailable { silent: Vec::new(), corrupt }
        })
    }
}
