//! Copies that go because there are enough others: whether there are, and whether none stays beyond those that are wanted.

use std::sync::Arc;

use protocol::id::{ChunkId, NodeId};
use protocol::redundancy::Redundancy;

use super::promise::Promise;
use super::workload::Putting;
use super::{END, NodeMachine, World};

/// Times that an answer is waited for between the first promise of a copy that stays, and until another goes.
const STEPS: u64 = 32;

impl World<'_> {
    /// A target let its copy of a chunk go. Those that are left are enough for what was acknowledged, and count from now on.
    pub(super) fn lets_go(&mut self, by: NodeId, id: ChunkId) {
        if id.code().is_some() && self.holds(by, &id).is_some() {
            // It had two of its pieces.
            return;
        }
        let (map, left) = self.went(by, id);
        let domains = self.reached(map, &id, &left);
        let promise = self.promises.get(&id);
        let gateways = self.gateways.iter().flat_map(|gateways| &gateways.replies.promised);
        let redundancies = gateways.filter(|((of, _), _)| *of == id).map(|((_, redundancy), _)| *redundancy);
        let goals = redundancies.chain(promise.iter().map(|promise| promise.redundancy)).map(|of| self.goal(map, of));
        let lacking = goals.max().filter(|goal| !goal.is_met(domains));
        // Those that were kept for more may have been lost, or cleaned before the chunk was put once more, for fewer.
        if let Some(goal) = lacking.filter(|goal| self.is_wanted(map, &id, *goal)) {
            self.fail(format!(
                "{by} let its copy of {id:?} go, and copies in {} failure domains were acknowledged: {left:?} have one",
                goal.pieces()
            ));
        }
    }

    /// A target's copy is gone. By which map it went, and which targets still have one.
    fn went(&mut self, by: NodeId, id: ChunkId) -> (usize, Vec<NodeId>) {
        self.let_go.insert((id, by));
        self.durable_at.entry(id).or_default().remove(&by);
        let map = self.nodes.get(&by).map_or(0, |node| node.map);
        let left = self.copies_left(map, &id);
        if let Some(promise) = self.promises.get_mut(&id) {
            *promise = Arc::new(Promise { map, holders: left.clone(), ..**promise });
        }
        (map, left)
    }

    /// A target's machine stops. Copies that go just now may be gone from the disk before anybody heard of that.
    pub(super) fn stops_letting_go(&mut self, by: NodeId) {
        if let Some(NodeMachine::Target(target, _)) = self.nodes.get(&by).map(|node| &node.machine) {
            self.going.entry(by).or_default().extend(target.letting_go());
        }
    }

    /// It has started again: which of them went is seen now.
    pub(super) fn has_let_go(&mut self, by: NodeId) {
        for id in self.going.remove(&by).unwrap_or_default() {
            if self.holds(by, &id).is_none() && self.had(by, &id) && !self.damaged.contains(&(id, by)) {
                self.went(by, id);
            }
        }
    }

    /// It has started again: copies that it was writing when it stopped, and of which nobody heard, may have survived that.
    pub(super) fn has_kept(&mut self, by: NodeId) {
        let Some(NodeMachine::Target(_, disk)) = self.nodes.get(&by).map(|node| &node.machine) else { return };
        for id in disk.good().iter().map(ChunkId::whole) {
            self.durable_at.entry(id).or_default().entry(by).or_insert(self.now);
            self.let_go.remove(&(id, by));
        }
    }

    /// Whether a target that is asked for a chunk under a map, or is down and had it, has a copy that is kept for so
    /// much.
    fn is_wanted(&self, map: usize, id: &ChunkId, goal: Redundancy) -> bool {
        let by_map = self.maps[map].redundancy();
        self.asked(map, id).iter().any(|node| match self.nodes.get(node).map(|node| &node.machine) {
            Some(NodeMachine::Target(_, disk)) => {
                disk.redundancy(id, by_map).is_some_and(|kept| kept.pieces() >= goal.pieces())
            }
            Some(NodeMachine::Down(_)) => self.had(*node, id),
            _ => false,
        })
    }

    /// The targets that are asked for a chunk under a map and have a copy. A target that is down counts if it had one.
    fn copies_left(&self, map: usize, id: &ChunkId) -> Vec<NodeId> {
        let mut left = self.asked(map, id);
        left.sort_unstable();
        left.dedup();
        let is_up =
            |node: &NodeId| matches!(self.nodes.get(node).map(|node| &node.machine), Some(NodeMachine::Target(..)));
        left.retain(|node| {
            let is_damaged = is_up(node) && self.damaged.contains(&(*id, *node));
            self.lies_on(*node, id) || is_damaged || self.just_lost(*node, id)
        });
        left
    }

    /// Whether a target has a copy on its disk. A target that is down counts if it had one.
    pub(super) fn lies_on(&self, node: NodeId, id: &ChunkId) -> bool {
        match self.nodes.get(&node).map(|node| &node.machine) {
            Some(NodeMachine::Target(..)) => self.holds(node, id).is_some(),
            Some(NodeMachine::Down(_)) => self.had(node, id),
            _ => false,
        }
    }

    /// Whether a target lost its copy with its disk so lately that it may have promised it just before. Then it is lost like any other
    /// copy, and others go rightly.
    fn just_lost(&self, node: NodeId, id: &ChunkId) -> bool {
        let since = self.disk_lost.get(&node).map_or(END, |at| self.now.since(*at));
        self.lost.contains(&(*id, node)) && since < self.scenario.config.bid_timeout.times(STEPS)
    }

    /// Whether a target had a durable copy, which is neither lost nor gone.
    pub(super) fn had(&self, node: NodeId, id: &ChunkId) -> bool {
        let was_durable = self.durable_at.get(id).is_some_and(|at| at.contains_key(&node));
        was_durable && !self.lost.contains(&(*id, node)) && !self.let_go.contains(&(*id, node))
    }

    /// Those of these holders that did not let their copy go; and other targets that have one, if one of them did.
    pub(super) fn still_there(&self, map: usize, id: &ChunkId, holders: &[NodeId]) -> Vec<NodeId> {
        let went = |holder: &NodeId| self.let_go.contains(&(*id, *holder));
        let mut there: Vec<NodeId> = holders.iter().copied().filter(|holder| !went(holder)).collect();
        if there.len() < holders.len() {
            let others = self.copies_left(map, id).into_iter().filter(|other| !holders.contains(other));
            there.extend(others);
        }
        there
    }

    /// The holders that an acknowledgement named; where one of them let its copy go, those that count since.
    pub(super) fn holders_since(&self, id: ChunkId, promise: &Promise) -> Vec<NodeId> {
        let went = |holder: &NodeId| self.let_go.contains(&(id, *holder));
        let mut holders: Vec<NodeId> = promise.holders.iter().copied().filter(|holder| !went(holder)).collect();
        if holders.len() < promise.holders.len()
            && let Some(now) = self.promises.get(&id)
        {
            holders.extend(now.holders.iter().filter(|holder| !promise.holders.contains(holder)));
        }
        holders
    }

    /// Whether a holder let its copy go while a put was under way that counts on it, and others are enough for that.
    pub(super) fn went_rightly(&self, map: usize, put: &Putting, holder: NodeId) -> bool {
        let left = self.copies_left(map, &put.id);
        // It is gone from the disk before the target hears of that.
        let goes = match self.nodes.get(&holder).map(|node| &node.machine) {
            Some(NodeMachine::Target(target, _)) => target.letting_go().any(|id| id == put.id),
            _ => false,
        };
        (goes || self.let_go.contains(&(put.id, holder)))
            && self.goal(map, put.redundancy).is_met(self.reached(map, &put.id, &left))
    }

    /// A chunk with a copy too many, if nothing is in the way of letting it go.
    pub(super) fn too_many(&self) -> Option<String> {
        let newest = self.maps.len() - 1;
        for (id, promise) in &self.promises {
            let group = self.group(newest, id);
            let map = &self.maps[newest];
            let mut holders = map.keepers(map.group_of(id));
            holders.retain(|node| self.holds(*node, id).is_some());
            let kept_for = |node: &NodeId| match &self.nodes[node].machine {
                NodeMachine::Target(_, disk) => disk.wanted(id),
                _ => None,
            };
            let alike = holders.windows(2).all(|pair| kept_for(&pair[0]) == kept_for(&pair[1]));
            // Others may have put it for more.
            let wanted = holders.iter().filter_map(kept_for).map(|wanted| id.redundancy(wanted, map.redundancy()));
            let goal = self.goal(newest, promise.redundancy);
            let pieces = wanted.fold(goal, |most, wanted| most.max(wanted)).pieces();
            let strays = holders.iter().any(|node| !group.contains(node));
            let domains = self.reached(newest, id, holders.iter().filter(|node| group.contains(node)));
            if domains >= pieces
                && (strays || alike && holders.len() > pieces)
                && holders.iter().all(|node| self.can_forget(*node))
            {
                return Some(format!(
                    "{id:?} needs {pieces} copies, and is on {holders:?}, of which {group:?} are its group"
                ));
            }
        }
        None
    }

    /// Whether a target has room to say that a copy is gone.
    fn can_forget(&self, id: NodeId) -> bool {
        match self.nodes.get(&id).map(|node| &node.machine) {
            Some(NodeMachine::Target(_, disk)) => {
                !disk.has_failed() && disk.space().free > 2 * self.scenario.disks.segment
            }
            _ => false,
        }
    }
}
