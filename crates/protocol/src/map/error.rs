//! Why there is no such cluster map.

use core::fmt;

use crate::id::NodeId;
use crate::limits;
use crate::placement::LayoutError;
use crate::placement::deal::TooFewDomains;
use crate::redundancy::Redundancy;

/// Why a map cannot serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapError {
    /// Copies must be 1 to [`limits::COPIES`].
    Copies(u8),
    /// Two targets have one id.
    DuplicateId(NodeId),
    /// An id at or above [`NodeId::FIRST_INITIATOR`].
    IdTooLarge(NodeId),
    /// Fewer failure domains with a target than copies.
    TooFewDomains {
        /// Copies asked for.
        copies: u8,
        /// Targets in the map.
        targets: usize,
        /// Distinct domains among them.
        domains: usize,
    },
    /// A group whose targets are in fewer failure domains than copies: its puts could never succeed.
    UnevenDomains {
        /// What was asked for.
        redundancy: Redundancy,
        /// Distinct domains in the group.
        domains: usize,
        /// Its targets.
        members: Vec<NodeId>,
    },
    /// More members in a group than a mask has bits.
    GroupTooLarge {
        /// Cells to a group.
        cells: usize,
        /// Targets in the group.
        members: usize,
    },
    /// The cells are not what they should be.
    Layout(LayoutError),
    /// A cell has a target that is not in the map.
    Stranger {
        /// The cell's id.
        cell: u32,
        /// The target.
        target: NodeId,
    },
    /// A target that comes for another one is in a failure domain that leaves its groups with too few.
    Place {
        /// The target that goes.
        old: NodeId,
        /// The target that comes.
        new: NodeId,
        /// Copies asked for.
        copies: u8,
    },
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copies(n) => write!(f, "copies = {n}: choose 1 to {}", limits::COPIES),
            Self::DuplicateId(id) => {
                write!(f, "two targets have the id {}: give each its own", id.0)
            }
            Self::IdTooLarge(id) => {
                write!(f, "target id {} is too large: choose one below {}", id.0, NodeId::FIRST_INITIATOR)
            }
            Self::TooFewDomains { copies, targets, domains } => write!(
                f,
                "{copies} copies need {copies} failure domains, but the {targets} targets are in {domains}: add targets or \
                 domains, or ask for fewer copies"
            ),
            Self::UnevenDomains { redundancy, domains, members } => {
                let (pieces, what) = (redundancy.pieces(), redundancy.noun());
                let members: Vec<String> = members.iter().map(|id| id.0.to_string()).collect();
                write!(
                    f,
                    "{pieces} {what} need {pieces} failure domains in every group, but the group of the targets {} has \
                     {domains}: spread the targets evenly over the domains, raise group_cells, or ask for fewer {what}",
                    members.join(", ")
                )
            }
            Self::GroupTooLarge { cells, members } => write!(
                f,
                "a group of {cells} cells has {members} targets, which is more than {}: lower group_cells",
                limits::GROUP_MEMBERS
            ),
            Self::Layout(error) => error.fmt(f),
            Self::Stranger { cell, target } => write!(
                f,
                "cell {cell} of the layout has target {}, which is not in the map: make the next map with `cluster plan`",
                target.0
            ),
            Self::Place { old, new, copies } => write!(
                f,
                "target {} cannot take the place of target {}: a group would have fewer failure domains than {copies} copies \
                 need: replace it by one of its own domain, or remove it and add the other",
                new.0, old.0
            ),
        }
    }
}

impl From<TooFewDomains> for MapError {
    fn from(few: TooFewDomains) -> Self {
        Self::TooFewDomains { copies: few.copies, targets: few.targets, domains: few.domains }
    }
}

impl core::error::Error for MapError {}
