//! All copies or pieces of a chunk that its steward was told of, and what is wanted of them.

use std::collections::BTreeSet;

use super::Bug;
use crate::goal::Goal;
use crate::id::{ChunkId, NodeId};
use crate::map::ClusterMap;
use crate::redundancy::{Piece, Redundancy, Wanted};

/// A copy, or a piece of a coded chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) holder: NodeId,
    pub(super) piece: Piece,
    pub(super) kept_for: Wanted,
}

/// The copies of a chunk, or its pieces.
#[derive(Debug)]
pub(super) struct Copies<'a> {
    /// Of a coded chunk that of all of it.
    pub(super) id: ChunkId,
    pub(super) map: &'a ClusterMap,
    /// The members of its group.
    pub(super) members: &'a [NodeId],
    pub(super) all: Vec<Copy>,
}

impl Copies<'_> {
    /// What different objects want of them. Each wish has to be met by copies that are kept for it, or it would be
    /// forgotten when others are lost. The most first.
    pub(super) fn wanted(&self, bug: Option<Bug>) -> Vec<Wanted> {
        if bug == Some(Bug::ForgetWanted) {
            return vec![Wanted::BY_MAP];
        }
        let parts: BTreeSet<u8> = self.all.iter().flat_map(|copy| copy.kept_for.parts()).map(Wanted::code).collect();
        parts.into_iter().rev().filter_map(Wanted::from_code).collect()
    }

    /// How it has to be kept for this.
    fn redundancy(&self, wanted: Wanted) -> Redundancy {
        self.id.redundancy(wanted, self.map.redundancy())
    }

    /// Whose copies are kept for this.
    pub(super) fn kept_for(&self, wanted: Wanted) -> Vec<NodeId> {
        let fits = self.all.iter().filter(|copy| copy.kept_for.covers(wanted));
        fits.map(|copy| copy.holder).collect()
    }

    /// How far what is wanted is met by some of these.
    fn goal<'c>(&self, wanted: Wanted, some: impl IntoIterator<Item = &'c Copy>) -> Goal {
        let redundancy = self.redundancy(wanted);
        let fits = some.into_iter().filter(|copy| copy.kept_for.covers(wanted));
        let held = fits.filter_map(|copy| Some((redundancy.counting(copy.piece), self.map.domain(copy.holder)?)));
        Goal::new(redundancy).with(held)
    }

    /// What is wanted and not met by the copies in the group, and how far it is.
    pub(super) fn lacking(&self, bug: Option<Bug>) -> Option<(Wanted, Goal)> {
        let goal = |wanted: Wanted| {
            let counts = |copy: &&Copy| bug == Some(Bug::CountMoved) || self.members.contains(&copy.holder);
            let here = self.all.iter().filter(|copy| counts(copy) && copy.kept_for.covers(wanted)).count();
            let is_met = bug == Some(Bug::CountCopies) && self.redundancy(wanted).is_met(here);
            let goal = self.goal(wanted, self.all.iter().filter(counts));
            (!is_met && !goal.is_met()).then_some((wanted, goal))
        };
        self.wanted(bug).into_iter().find_map(goal)
    }

    /// As how many copies in distinct failure domains those count that are kept for this, wherever they are; `None` when they are enough.
    pub(super) fn at_risk(&self, wanted: Wanted) -> Option<usize> {
        let (redundancy, domains) = match self.redundancy(wanted) {
            copies @ Redundancy::Copies(_) => (copies, self.map.count_domains(&self.kept_for(wanted))),
            code @ Redundancy::Code(_) => (code, self.goal(wanted, &self.all).domains().len()),
        };
        (!redundancy.is_met(domains)).then_some(redundancy.as_copies(domains))
    }

    /// Whether some are outside of the group.
    pub(super) fn stray(&self) -> bool {
        self.all.iter().any(|copy| !self.members.contains(&copy.holder))
    }

    /// Whether there are no more than are wanted, all in the group: mostly so.
    pub(super) fn are_few(&self) -> bool {
        let Some(Copy { kept_for, .. }) = self.all.first() else { return true };
        let are_alike = self.all.iter().all(|other| other.kept_for == *kept_for);
        are_alike && self.all.len() <= self.redundancy(*kept_for).pieces() && !self.stray()
    }

    /// Those that stay when there are too many: of members, in distinct failure domains, as many as each object needs
    /// that wants some. `goes` says which of them rather go, the larger the rather; among equals hashing decides.
    pub(super) fn to_stay(&self, bug: Option<Bug>, goes: impl Fn(NodeId) -> u64) -> Vec<Copy> {
        let mut here = self.all.clone();
        here.retain(|copy| self.members.contains(&copy.holder));
        let ranked = ClusterMap::ranked_among(&self.id, here.iter().map(|copy| copy.holder).collect());
        here.sort_by_cached_key(|copy| (goes(copy.holder), ranked.iter().position(|other| *other == copy.holder)));
        let mut stay: Vec<Copy> = Vec::new();
        for wanted in self.wanted(bug) {
            let redundancy = self.redundancy(wanted);
            let mut goal = self.goal(wanted, &stay);
            let fits = here.iter().filter(|copy| copy.kept_for.covers(wanted));
            if self.id.code().is_some() && bug != Some(Bug::StayByRank) {
                // A domain may have several pieces: which of them stays follows from what the others have.
                for (piece, domain) in self.goal(wanted, &here).assigned() {
                    let is_it = |copy: &&Copy| copy.piece == piece && self.map.domain(copy.holder) == Some(domain);
                    stay.extend(fits.clone().find(is_it));
                }
                continue;
            }
            for copy in fits {
                let domain = self.map.domain(copy.holder).filter(|_| !stay.contains(copy));
                let is_few = stay.len() < redundancy.pieces() && !stay.contains(copy) && goes(copy.holder) < u64::MAX;
                let counts = domain.and_then(|domain| goal.hold(redundancy.counting(copy.piece), domain)).is_some();
                if counts || is_few && bug == Some(Bug::MoveIntoDomain) {
                    stay.push(*copy);
                }
            }
        }
        stay
    }
}
