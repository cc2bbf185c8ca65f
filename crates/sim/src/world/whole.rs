//! Whether everything that was acknowledged has its copies again, in distinct failure domains, where it is looked for.

use std::collections::BTreeSet;

use protocol::id::{ChunkId, NodeId};
use protocol::time::{Instant, Span};

use super::{NodeMachine, World};
use crate::excuse::Excuse;

/// How often it is looked at.
const PAUSE: Span = Span::from_millis(50);

/// When it is looked at.
#[derive(Default)]
pub(super) struct State {
    next: Option<Instant>,
    whole: bool,
    /// When a copy was put on an emptier target last.
    pub(super) moved: Option<Instant>,
    /// When one was put on any target, for that or because there were too few.
    pub(super) made: Option<Instant>,
    /// When a node came to use a newer map last.
    pub(super) mapped: Option<Instant>,
}

impl World<'_> {
    /// Whether nothing lacks copies any more, as far as it can have them again. Looked at now and then.
    pub(super) fn is_whole(&mut self) -> bool {
        if !self.is_kept_whole() || self.whole.whole {
            return true;
        }
        if self.whole.next.is_none_or(|at| at <= self.now) {
            self.whole.next = Some(self.now + PAUSE);
            self.whole.whole = self.not_whole().is_none();
        }
        self.whole.whole
    }

    /// A target has put a chunk since `since`, as there were too few copies. There were, if those that lay on disks for
    /// long before are no more than that, also on those of targets that were silent: a target in the map may come back.
    pub(super) fn was_lacking(&mut self, by: NodeId, id: ChunkId, since: Instant) {
        let config = &self.scenario.config;
        // A steward looks twice, so long apart, and others may have put it meanwhile.
        let looks = (config.settling() + config.census_interval).times(2);
        let is_of_one_map = self.whole.mapped.is_none_or(|at| at + looks < since);
        // What a cleaner condemned lies there and is not counted, until somebody counts on it again: also when cleaners are no
        // longer watched.
        let has_cleaners = self.scenario.cleaning.is_some() || self.gateways.is_some();
        if !is_of_one_map || self.scenario.redundancy.is_some() || id.code().is_some() || has_cleaners {
            return;
        }
        let map = self.nodes.get(&by).map_or(0, |node| node.map);
        let group = self.group(map, &id);
        // A steward waits for silent targets, in the end so long from one question to the next, and may just have asked
        // when a target came back. What the others said before need not be true any more.
        let waits = config.bid_timeout.times(64);
        let before = Instant::from_nanos(since.as_nanos().saturating_sub(waits.times(2).as_nanos()));
        let keeps_waiting = |node: &NodeId| {
            self.net.is_cut(by, *node)
                || group.iter().any(|other| self.net.was_away(*other, *node, before))
                || self.back.get(node).is_some_and(|b| *b + waits.times(2) > since)
        };
        let looks = if group.iter().any(keeps_waiting) { looks + waits } else { looks };
        let written =
            |node: &NodeId, at: Instant| self.mended.get(&(id, *node)).map_or(at, |(again, _)| at.max(*again));
        let lay = |node: &NodeId, at: Instant| {
            let is_good = self.lies_on(*node, &id) && !self.damaged.contains(&(id, *node));
            // It may be on the disk that a target got for the one that it lost, and not be durable there yet.
            let is_good = is_good && !self.lost.contains(&(id, *node));
            // A target that was silent when the put began was passed over by it, and is back before it is over.
            let was_silent = self.back.get(node).is_some_and(|back| *back > since);
            let is_read = !self.disks.failed_reads.contains(node);
            at + looks < since && group.contains(node) && is_good && is_read && !was_silent
        };
        let durable = self.durable_at.get(&id).into_iter().flatten();
        let all: Vec<(NodeId, Instant)> = durable.map(|(node, at)| (*node, written(node, *at))).collect();
        let holders: Vec<NodeId> = all.iter().filter(|(node, at)| lay(node, *at)).map(|(node, _)| *node).collect();
        // Mostly it finds enough of them, where somebody was late to answer, and makes none.
        let is_made = all.iter().any(|(_, at)| *at >= since);
        if is_made && self.goal(map, None).is_met(self.spread(map, &holders)) {
            self.fail(format!("{by} made a copy of {id:?}, of which there were enough: {holders:?} have one for long"));
        }
    }

    /// Whether chunks with too few copies get more.
    fn is_kept_whole(&self) -> bool {
        self.scenario.config.census_interval > Span::ZERO && self.gateways.is_none()
    }

    /// What is not as it should be, and can be.
    pub(super) fn not_whole(&self) -> Option<String> {
        let lacking = self.lacking();
        // Of what a cleaner condemned, and somebody put again, stewards do not know where else it lies.
        if self.cleaning.is_some() { lacking } else { lacking.or_else(|| self.too_many()).or_else(|| self.not_level()) }
    }

    /// A chunk with too few copies, and why that is no excuse.
    fn lacking(&self) -> Option<String> {
        let newest = self.maps.len() - 1;
        for (id, promise) in &self.promises {
            let goal = self.goal(newest, promise.redundancy);
            let group = self.group(newest, id);
            let good = |node: &NodeId| self.holds(*node, id).is_some();
            let here: Vec<NodeId> = group.iter().copied().filter(good).collect();
            let domains = self.reached(newest, id, &here);
            if !goal.is_met(domains) && self.excuse_for_few(id, &group, goal.pieces()).is_none() {
                let copies = goal.pieces();
                return Some(format!(
                    "{id:?} has copies in {domains} failure domains of its group, not in {copies}: {here:?}"
                ));
            }
        }
        None
    }

    /// Why a chunk cannot have all its copies again.
    fn excuse_for_few(&self, id: &ChunkId, group: &[NodeId], copies: usize) -> Option<Excuse> {
        let newest = self.maps.len() - 1;
        let map = &self.maps[newest];
        let keepers = map.keepers(map.group_of(id));
        // No target that is asked has a good copy: all were lost, or are where no map looks.
        let enough = id.code().map_or(1, |code| code.data());
        let holders = keepers.iter().filter(|keeper| self.holds(**keeper, id).is_some());
        if self.reached(newest, id, holders) < enough {
            return Some(Excuse::LostDisk);
        }
        // All copies were lost of which somebody knew that so many are wanted.
        let knows = |node: &NodeId| match self.nodes.get(node).map(|node| &node.machine) {
            Some(NodeMachine::Target(_, disk)) => {
                let redundancy = disk.redundancy(id, map.redundancy());
                self.holds(*node, id).is_some() && redundancy.is_some_and(|redundancy| redundancy.pieces() >= copies)
            }
            _ => false,
        };
        if !keepers.iter().any(knows) {
            return Some(Excuse::LostDisk);
        }
        // Of those that have it where no map looks any more, nobody knows what it is kept for.
        let is_stranded = |node: &NodeId| !keepers.contains(node) && self.holds(*node, id).is_some();
        if self.topology.strands() && self.nodes.keys().any(is_stranded) {
            return Some(Excuse::Regrouped);
        }
        let roomy: BTreeSet<NodeId> = group.iter().copied().filter(|node| self.has_room(*node)).collect();
        let holders = group.iter().filter(|node| self.holds(**node, id).is_some());
        // A target that has room may have any piece.
        let possible = self.reached_with(newest, id, holders, &roomy);
        (possible < copies).then_some(Excuse::Full)
    }

    /// Whether a target takes chunks, also the largest.
    pub(super) fn has_room(&self, id: NodeId) -> bool {
        let needs = 2 * self.scenario.largest + 2 * self.scenario.disks.segment;
        match self.nodes.get(&id).map(|node| &node.machine) {
            Some(NodeMachine::Target(_, disk)) => !disk.has_failed() && disk.space().free >= needs,
            _ => false,
        }
    }
}
