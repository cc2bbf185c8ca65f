//! Which cluster map a node uses, how newer ones come to it, and which targets come and go with them.

use protocol::id::{ChunkId, NodeId};
use protocol::initiator;
use protocol::map::{ClusterMap, MapDocument, MemberSet};
use protocol::rng::mix;
use protocol::time::{Instant, Span};

use super::{NodeMachine, Scheduled, World};
use crate::planted::PlantedBug;

/// Until a node that learned of a newer map has read it.
const READ: Span = Span::from_micros(100);
/// Until a target is switched off that a newer map does not have.
const RETIRE: u64 = 100_000_000;

/// Bytes of the shortest document of a map, and how many more each newer one has: both are several parts.
const DOCUMENT: (usize, usize) = (6_000, 9_000);

/// The maps as they travel: each document tells which of them it is.
pub(super) fn with_documents(maps: Vec<ClusterMap>) -> Vec<ClusterMap> {
    maps.into_iter().enumerate().map(|(nth, map)| with_document(map, nth)).collect()
}

pub(super) fn with_document(map: ClusterMap, nth: usize) -> ClusterMap {
    map.with_document(MapDocument::new(document(nth).into()))
}

/// No two words in a row are equal, within one or between two.
fn document(nth: usize) -> Vec<u8> {
    let words = (DOCUMENT.0 + nth * DOCUMENT.1) / 8;
    (0..words).flat_map(|word| mix((nth << 32 | word) as u64).to_le_bytes()).collect()
}

impl World<'_> {
    /// Half of the nodes can use a newer map later: their files cannot be written before.
    fn is_late(&self, node: NodeId, map: usize) -> bool {
        mix(self.scenario.seed ^ u64::from(node.0) ^ (map as u64) << 40) & 1 == 1
    }

    /// Which map is in a node's file now: the newest that it has found. A target's file has it from its first map on.
    pub(super) fn file(&self, node: NodeId) -> usize {
        let has = |nth: usize| self.has(node, nth);
        let first = (0..self.maps.len()).find(|nth| has(*nth)).unwrap_or(0);
        let forgets = self.scenario.planted == Some(PlantedBug::OldMapAfterRestart) && !self.healed;
        if forgets && self.nodes.get(&node).is_some_and(|n| n.life > 0) {
            return first;
        }
        let fetched = match self.nodes.get(&node) {
            Some(node) => node.fetched,
            // A node that begins reads what is decided.
            None if self.governing.is_some() && node.is_initiator() => self.maps.len() - 1,
            None => 0,
        };
        let there = |nth: &usize| {
            // The operator puts it into every file, but for some that only others can give it to.
            *nth <= fetched
                || self.governing.is_none()
                    && self.is_usable(node, *nth)
                    && (self.healed || !self.is_left_out(node, *nth))
        };
        (first..self.maps.len()).rev().filter(|nth| has(*nth)).find(there).unwrap_or(first)
    }

    /// A target does not take a map without it: the one that wrote such a map switches it off.
    pub(super) fn has(&self, node: NodeId, nth: usize) -> bool {
        let map = &self.maps[nth];
        node.is_initiator() || map.target(node).is_some() || map.aggregators().contains(&node)
    }

    /// Whether a node can use a map by now.
    fn is_usable(&self, node: NodeId, nth: usize) -> bool {
        let map = &self.topology.maps[nth];
        let since = if self.is_late(node, nth) { map.found } else { map.notified };
        self.healed || self.now >= Instant::ZERO + since
    }

    /// Whether nobody but other nodes gives a node a map, before the heal.
    fn is_left_out(&self, node: NodeId, nth: usize) -> bool {
        mix(self.scenario.seed ^ u64::from(node.0) ^ (nth as u64) << 41) & 1 == 1
    }

    /// Another node gave a node its map.
    pub(super) fn fetched(&mut self, id: NodeId, document: &MapDocument) {
        let Some(nth) = self.maps.iter().position(|map| map.document() == Some(document)) else {
            return self.fail(format!("{id} was given a map of {} bytes that nobody made", document.bytes().len()));
        };
        if self.has(id, nth)
            && self.is_usable(id, nth)
            && let Some(node) = self.nodes.get_mut(&id)
        {
            node.fetched = node.fetched.max(nth);
            self.push(self.now + READ, Scheduled::Reload(id));
        }
    }

    /// A node learned of a newer map, and reads its file.
    pub(super) fn need_map(&mut self, id: NodeId) {
        if self.nodes.get(&id).is_some_and(|node| self.file(id) > node.map) {
            self.push(self.now + READ, Scheduled::Reload(id));
        }
    }

    /// Hands a node the map in its file, if that is newer than the one in use.
    pub(super) fn reload(&mut self, id: NodeId) {
        let found = self.file(id);
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.map < found) else { return };
        node.map = found;
        self.whole.mapped = Some(self.now);
        self.uses(id, found);
        self.note(12, id, found, || format!("uses map {}", found + 1));
        self.input(id, None, Some(initiator::Request::Map(self.maps[found].clone())));
    }

    /// From now on a node uses a map, unless it did before.
    pub(super) fn uses(&mut self, id: NodeId, map: usize) {
        self.first_used.entry((id, map)).or_insert(self.now);
        self.check_one_map(id, map);
    }

    /// A newer map is there: its targets begin, and those that it does not have are switched off after a while.
    pub(super) fn new_map(&mut self, nth: usize) {
        for id in self.more(nth, nth - 1) {
            self.add_target(id);
        }
        for id in self.more(nth - 1, nth) {
            let at = self.now + Span::from_nanos(self.rng.below(RETIRE));
            self.push(at, Scheduled::Retire(id));
        }
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        nodes.into_iter().for_each(|id| self.push(self.now, Scheduled::Reload(id)));
    }

    /// The targets of one map that another does not have.
    fn more(&self, one: usize, other: usize) -> Vec<NodeId> {
        let ids = self.maps[one].targets().map(|t| t.id);
        ids.filter(|id| self.maps[other].target(*id).is_none()).collect()
    }

    /// A target that no newer map has is switched off for ever.
    pub(super) fn retire(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.remove(&id) {
            if let NodeMachine::Target(_, mut disk) | NodeMachine::Down(mut disk) = node.machine {
                self.loses(id, &mut disk);
            }
            self.windows.crashed(id);
            self.note(18, id, 0, || "is switched off for ever".to_owned());
        }
    }

    /// Which targets get what `from` sends to a set: the address is of its own map, and each target listens to those of its own.
    pub(super) fn listening(&self, from: NodeId, set: MemberSet) -> Vec<NodeId> {
        let map = &self.maps[self.nodes.get(&from).map_or(0, |node| node.map)];
        let Some(number) = map.number(set) else { return Vec::new() };
        let uses = |id: &NodeId, map: usize| self.nodes.get(id).is_some_and(|node| node.map == map);
        let mut all = Vec::new();
        for (map, listeners) in self.listeners.iter().enumerate() {
            let them = listeners.get(&number).into_iter().flatten();
            all.extend(them.filter(|id| uses(id, map)).copied());
        }
        all
    }

    /// The targets that are asked for a chunk under a map: its group, and its group by the layout before, as long as
    /// the map carries that.
    pub(super) fn asked(&self, map: usize, id: &ChunkId) -> Vec<NodeId> {
        let mut asked = self.group(map, id);
        let map = &self.maps[map];
        let before = map.previous().map(|previous| previous.targets_of(id)).unwrap_or_default();
        asked.extend(before.into_iter().filter(|target| map.target(*target).is_some()));
        asked
    }

    /// The members of a chunk's group under a map.
    pub(super) fn group(&self, map: usize, id: &ChunkId) -> Vec<NodeId> {
        let map = &self.maps[map];
        map.members(map.group_of(id)).map(|t| t.id).collect()
    }
}
