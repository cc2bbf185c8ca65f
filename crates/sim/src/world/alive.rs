//! Which targets could have answered: what excuses a put that was acknowledged with fewer copies than were wanted.

use std::collections::BTreeSet;

use protocol::id::{ChunkId, NodeId};
use protocol::time::Instant;

use super::workload::Putting;
use super::{NodeMachine, World};
use crate::excuse::Excuse;

/// Times that a silent target is asked whether it is back before it must have been heard.
const ASKED: u64 = 8;

impl World<'_> {
    /// Some nodes can be reached again from now on.
    pub(super) fn are_back(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        let now = self.now;
        self.back.extend(nodes.into_iter().map(|node| (node, now)));
    }

    /// Nobody is cut off any more, or others are.
    pub(super) fn cut(&mut self, nodes: Option<(Vec<NodeId>, bool, bool)>) {
        let before = std::mem::replace(&mut self.net.cut, nodes);
        self.are_back(before.into_iter().flat_map(|(nodes, ..)| nodes));
    }

    /// Whether a node was up, awake and not cut off all the time since then.
    fn is_alive_since(&self, id: NodeId, since: Instant) -> bool {
        let is_cut = self.net.isolated.contains(&id) || self.net.cut.iter().any(|(nodes, ..)| nodes.contains(&id));
        let is_up = |node: &super::Node| !matches!(node.machine, NodeMachine::Down(..)) && node.sleeps.is_none();
        !is_cut && self.nodes.get(&id).is_some_and(is_up) && self.back.get(&id).is_none_or(|back| *back <= since)
    }

    /// In how many failure domains of a chunk's group copies, or pieces, are due to a put: as many as are possible with
    /// the targets that were alive all the time since a little before it began, and those that have one. These are no
    /// more than are wanted, and no fewer than the map lets be enough. An initiator that was itself asleep or cut off
    /// meanwhile has not asked so often, and may still take targets for silent that were before; so may one to which a
    /// connection was away. A target that was alive, or was `harmed`, could have any piece; among the others a second one with the same piece adds nothing.
    pub(super) fn due(
        &self,
        by: NodeId,
        map: usize,
        put: &Putting,
        holders: &[NodeId],
        harmed: &BTreeSet<NodeId>,
    ) -> usize {
        let group = self.group(map, &put.id);
        let patience = self.scenario.config.bid_timeout.times(ASKED);
        let since = Instant::from_nanos(put.begun.1.as_nanos().saturating_sub(patience.as_nanos()));
        let asked = self.is_alive_since(by, since);
        let is_heard = |node: &NodeId| self.is_alive_since(*node, since) && !self.net.was_away(by, *node, since);
        let alive = group.iter().copied().filter(|node| asked && is_heard(node));
        let any = alive.chain(harmed.iter().copied()).collect();
        let domains = self.reached_with(map, &put.id, holders.iter().filter(|holder| group.contains(holder)), &any);
        let least = self.maps[map].least(put.redundancy);
        domains.clamp(least, self.goal(map, put.redundancy).pieces().max(least))
    }

    /// A put was acknowledged with fewer copies than were wanted, and might be.
    pub(super) fn excuse_fewer(&mut self, by: NodeId, id: ChunkId) {
        self.excuse(Excuse::DomainsDown, by, id);
    }
}
