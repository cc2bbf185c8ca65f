//! What a copy on its way in may count on, and how far it is.

use crate::id::{GroupId, NodeId};
use crate::time::Instant;

/// What a copy may count on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Claim {
    /// Nothing is kept for it but room in memory.
    Unreserved,
    /// The window that was offered.
    Offer,
    /// The window that a leader granted.
    Grant {
        leader: NodeId,
        group: GroupId,
        /// When the leader expects the copy to be durable.
        expected: Instant,
    },
}

impl Claim {
    /// Whether the port is kept for it.
    pub(super) const fn is_reserved(self) -> bool {
        !matches!(self, Self::Unreserved)
    }

    /// The leader that granted it.
    pub(super) const fn leader(self) -> Option<NodeId> {
        match self {
            Self::Grant { leader, .. } => Some(leader),
            Self::Unreserved | Self::Offer => None,
        }
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) enum Stage {
    /// Offered.
    Tentative,
    /// The window is the initiator's; nothing is here yet.
    Accepted,
    /// Some of it is here.
    Arriving,
    /// A part of it is here, and no window is kept for the next.
    Resting,
    /// All of it is here, and waits until the disk has nothing to do for clients.
    Waiting,
    /// With the disk.
    Writing,
}

impl Stage {
    /// Whether payload may come.
    pub(in crate::target) const fn is_open(self) -> bool {
        matches!(self, Self::Accepted | Self::Arriving)
    }

    /// Whether all of it is here.
    pub(in crate::target) const fn is_here(self) -> bool {
        matches!(self, Self::Waiting | Self::Writing)
    }
}
