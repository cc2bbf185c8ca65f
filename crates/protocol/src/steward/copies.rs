//! All copies of a chunk that its steward was told of, and what is wanted of them.

use std::collections::BTreeSet;

use super::Bug;
use crate::goal::Goal;
use crate::id::{ChunkId, NodeId};
use crate::map::ClusterMap;
use crate::redundancy::Wanted;

/// The copies of a chunk.
#[derive(Debug)]
pub(super) struct Copies<'a> {
    pub(super) id: ChunkId,
    pub(super) map: &'a ClusterMap,
    /// The members of its group.
    pub(super) members: &'a [NodeId],
    /// Who has one, and what it is kept for.
    pub(super) all: Vec<(NodeId, Wanted)>,
}

impl Copies<'_> {
    /// What is wanted of them by one or another: each of it has to be met by copies that are kept for it, or nobody would know of it
    /// when others are lost. The most first.
    pub(super) fn wanted(&self, bug: Option<Bug>) -> Vec<Wanted> {
        if bug == Some(Bug::ForgetWanted) {
            return vec![Wanted::BY_MAP];
        }
        let parts: BTreeSet<u8> =
            self.all.iter().flat_map(|(_, kept_for)| kept_for.parts()).map(Wanted::code).collect();
        parts.into_iter().rev().filter_map(Wanted::from_code).collect()
    }

    /// Whose copies are kept for this.
    pub(super) fn kept_for(&self, wanted: Wanted) -> Vec<NodeId> {
        let fits = self.all.iter().filter(|(_, kept_for)| kept_for.covers(wanted));
        fits.map(|(holder, _)| *holder).collect()
    }

    /// What is wanted and not met by the copies in the group, and how far it is.
    pub(super) fn lacking(&self, bug: Option<Bug>) -> Option<(Wanted, Goal)> {
        let goal = |wanted: Wanted| {
            let redundancy = wanted.redundancy(self.map.redundancy());
            let mut here = self.kept_for(wanted);
            here.retain(|holder| bug == Some(Bug::CountMoved) || self.members.contains(holder));
            let is_met = bug == Some(Bug::CountCopies) && redundancy.is_met(here.len());
            let goal = self.map.goal(redundancy, &here);
            (!is_met && !goal.is_met()).then_some((wanted, goal))
        };
        self.wanted(bug).into_iter().find_map(goal)
    }

    /// Whether some are outside of the group.
    pub(super) fn stray(&self) -> bool {
        self.all.iter().any(|(holder, _)| !self.members.contains(holder))
    }

    /// Whether there are no more than are wanted, all in the group: mostly so.
    pub(super) fn are_few(&self) -> bool {
        let Some((_, kept_for)) = self.all.first() else { return true };
        let are_alike = self.all.iter().all(|(_, other)| other == kept_for);
        are_alike && self.all.len() <= kept_for.redundancy(self.map.redundancy()).pieces() && !self.stray()
    }

    /// Those that stay when there are too many: of members, in distinct failure domains, as many as each of those needs who want
    /// something. `goes` says which of them rather go, the larger the rather; among equals hashing decides.
    pub(super) fn to_stay(&self, bug: Option<Bug>, goes: impl Fn(NodeId) -> u64) -> Vec<(NodeId, Wanted)> {
        let mut here = self.all.clone();
        here.retain(|(holder, _)| self.members.contains(holder));
        let ranked = ClusterMap::ranked_among(&self.id, here.iter().map(|(holder, _)| *holder).collect());
        here.sort_by_cached_key(|(holder, _)| (goes(*holder), ranked.iter().position(|other| other == holder)));
        let mut stay: Vec<(NodeId, Wanted)> = Vec::new();
        for wanted in self.wanted(bug) {
            let redundancy = wanted.redundancy(self.map.redundancy());
            let covers = |(_, kept_for): &&(NodeId, Wanted)| kept_for.covers(wanted);
            let stays: Vec<NodeId> = stay.iter().filter(covers).map(|(holder, _)| *holder).collect();
            let mut goal = self.map.goal(redundancy, &stays);
            for copy in here.iter().filter(covers) {
                let domain = self.map.domain(copy.0).filter(|_| !stay.contains(copy));
                let is_few = stay.len() < redundancy.pieces() && !stay.contains(copy) && goes(copy.0) < u64::MAX;
                let counts = domain.and_then(|domain| goal.hold(redundancy.of_copy(), domain)).is_some();
                if counts || is_few && bug == Some(Bug::MoveIntoDomain) {
                    stay.push(*copy);
                }
            }
        }
        stay
    }
}
