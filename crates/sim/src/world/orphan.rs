//! A chunk whose last good copy is on a target that is lost for good. No node can know that the target is lost, so it
//! has to stay in the map.

use std::collections::BTreeMap;

use protocol::id::{ChunkId, NodeId};
use protocol::map::ClusterMap;
use protocol::time::{Instant, Span};

use super::{NodeMachine, World};

/// Most copies that go bad at once.
const COPIES: usize = 3;

/// The chunk.
pub(super) struct Orphan {
    chunk: ChunkId,
    last: NodeId,
    /// The target that found its copy damaged, and when.
    found: BTreeMap<NodeId, Instant>,
}

impl World<'_> {
    /// All copies go bad of a chunk that a target had which was lost for good, but for that one; and somebody reads it.
    pub(super) fn orphan(&mut self, last: NodeId, seed: u64) {
        let Some(reader) = self.initiators.first().copied().filter(|_| !self.healed && self.orphan.is_none()) else {
            return;
        };
        let others = |chunk: &ChunkId| -> Vec<NodeId> {
            self.nodes.keys().copied().filter(|node| self.holds(*node, chunk).is_some()).collect()
        };
        let had = self
            .lost
            .iter()
            .filter(|(chunk, node)| *node == last && chunk.code().is_none() && self.promises.contains_key(chunk));
        let all = had.map(|(chunk, _)| (*chunk, others(chunk)));
        let few = |(_, others): &(ChunkId, Vec<NodeId>)| (1..=COPIES).contains(&others.len());
        let all: Vec<(ChunkId, Vec<NodeId>)> = all.filter(few).collect();
        let Some((chunk, others)) = all.get((seed % all.len().max(1) as u64) as usize).cloned() else { return };
        others.iter().for_each(|node| self.spoil_chunk(*node, chunk));
        self.note(56, last, others.len(), || format!("had the last copy of {chunk:?}: those of {others:?} go bad"));
        self.orphan = Some(Orphan { chunk, last, found: BTreeMap::new() });
        self.next_handle += 1;
        let handle = self.next_handle;
        let (asked, request) = self.ask_get(handle, chunk);
        self.open.insert((reader, handle), asked);
        self.input(reader, None, Some(request));
    }

    /// A target has found that its copy of a chunk is damaged.
    pub(super) fn found_damaged(&mut self, by: NodeId, chunk: ChunkId) {
        if let Some(orphan) = self.orphan.as_mut().filter(|orphan| orphan.chunk == chunk) {
            orphan.found.insert(by, self.now);
        }
    }

    /// A target that is taken out of a map for its silence is not known at that moment to have the last copy of
    /// anything.
    pub(super) fn check_orphan(&mut self, before: &ClusterMap, gone: &[NodeId], asked: Instant) {
        let Some(Orphan { chunk, last, found }) = &self.orphan else { return };
        let is_left =
            self.promises.contains_key(chunk) && !self.nodes.keys().any(|id| self.holds(*id, chunk).is_some());
        // With another disk it has none.
        let is_replaced = self.governing.as_ref().is_some_and(|state| state.replaced.contains_key(last));
        // Nobody looks for it where no map leads any more.
        let is_sought = before.keepers(before.group_of(chunk)).contains(last);
        if !gone.contains(last) || !is_left || is_replaced || !is_sought {
            return;
        }
        // A target whose copy is damaged says that it has one until it reads it. Where the record of a drop did not outlive
        // a crash or a lost sector, the copy is back. A target that looks for one is told that there is one then, and cannot
        // know better.
        let names =
            |node: &super::Node| matches!(&node.machine, NodeMachine::Target(_, disk) if disk.names(chunk).is_some());
        if self.nodes.values().any(names) {
            return;
        }
        // A target that misses a copy looks for another. All others of the group answer, or are silent for as long as
        // it waits.
        let looks = self.scenario.config.bid_timeout.times(32) + Span::from_millis(50);
        // A target that got another disk forgets.
        let knows = |(by, at): &(&NodeId, &Instant)| {
            let is_up = |node: &super::Node| matches!(node.machine, NodeMachine::Target(..));
            let is_in_map = before.target(**by).is_some() && !self.disk_lost.contains_key(by);
            **at + looks < asked && is_in_map && self.nodes.get(by).is_some_and(is_up)
        };
        if let Some((by, at)) = found.iter().find(knows) {
            self.fail(format!(
                "{last} was taken out, and has the last copy of {chunk:?}: {by} found at {at} that its own is damaged"
            ));
        }
    }
}
