//! Judges the answers to gateways about chunks: a chunk that is not found may only be where no map looks for it.

use std::collections::{BTreeMap, BTreeSet};

use protocol::id::{ChunkId, NodeId};
use protocol::initiator::{GetError, PutError};
use protocol::redundancy::Redundancy;
use protocol::time::Instant;

use super::{NodeMachine, World};
use crate::excuse::Excuse;
use crate::object::coroutines::{Ticket, lock};

/// What gateways have asked for, and what they were answered.
#[derive(Default)]
pub(super) struct Replies {
    /// Gets and renewals under way.
    pub(super) gets: BTreeMap<Ticket, ChunkId>,
    pub(super) renewals: BTreeMap<Ticket, (ChunkId, Option<Redundancy>)>,
    /// Under which map each chunk was promised last, with each redundancy, and how many copies there were then.
    pub(super) promised: BTreeMap<(ChunkId, Option<Redundancy>), (usize, u8)>,
    /// Which gateway did not find a chunk last that is where nobody looks for it, and when.
    pub(super) unfound: Option<(NodeId, Instant)>,
    /// Whether cleaning cannot go on for such a chunk.
    pub(super) stuck: bool,
}

impl World<'_> {
    /// A gateway counts on a chunk from now on, of which there are so many copies under this map.
    pub(super) fn promised(&mut self, map: usize, id: ChunkId, redundancy: Option<Redundancy>, copies: u8) {
        let Some(gateways) = &mut self.gateways else { return };
        gateways.replies.promised.insert((id, redundancy), (map, copies));
    }

    /// Whether a gateway counts on it.
    pub(super) fn is_promised(&self, id: ChunkId, redundancy: Option<Redundancy>) -> bool {
        self.gateways.as_ref().is_some_and(|gateways| gateways.replies.promised.contains_key(&(id, redundancy)))
    }

    /// Chunks were dropped. Of those that nobody has any more no earlier promise counts: whether they might go is judged by what
    /// refers to them.
    pub(super) fn forget_promised(&mut self) {
        let Some(gateways) = &self.gateways else { return };
        let has = |(node, state): (&NodeId, &super::Node), id: &ChunkId| match &state.machine {
            NodeMachine::Target(_, disk) => disk.names(id).is_some(),
            NodeMachine::Down(_) => self.had(*node, id),
            NodeMachine::Initiator(_) | NodeMachine::Aggregator(_) | NodeMachine::Off | NodeMachine::Gone => false,
        };
        let ids: BTreeSet<ChunkId> = gateways.replies.promised.keys().map(|(id, _)| *id).collect();
        let gone: Vec<ChunkId> = ids.into_iter().filter(|id| !self.nodes.iter().any(|node| has(node, id))).collect();
        if let Some(gateways) = &mut self.gateways {
            gateways.replies.promised.retain(|(id, _), _| !gone.contains(id));
        }
    }

    /// The same of as many as this map has, or as was asked for, wherever they are.
    pub(super) fn renewed(&mut self, by: NodeId, ticket: Ticket) {
        let map = self.nodes.get(&by).map_or(0, |node| node.map);
        let Some(gateways) = &mut self.gateways else { return };
        let Some((id, redundancy)) = gateways.replies.renewals.remove(&ticket) else { return };
        let copies = self.goal(map, redundancy).pieces() as u8;
        self.promised(map, id, redundancy, copies);
    }

    /// A get of a gateway ended: whether it may, though nothing is wrong any more.
    pub(super) fn judge_get(&mut self, by: NodeId, id: ChunkId, error: Option<&GetError>) {
        let found_nothing = match error {
            Some(GetError::NotFound) => true,
            Some(GetError::Unavailable { silent, .. }) => silent.is_empty(),
            Some(GetError::Busy) | None => false,
        };
        let excused = found_nothing && self.healed && self.is_elsewhere(by, id);
        if excused {
            self.excuse(Excuse::Regrouped, by, id);
            let now = self.now;
            self.gateways.iter_mut().for_each(|gateways| gateways.replies.unfound = Some((by, now)));
        }
        if let Some(gateways) = &self.gateways {
            let elsewhere = &mut lock(&gateways.scheduler.queues).history.elsewhere;
            let _ = if excused { elsewhere.insert(id) } else { elsewhere.remove(&id) };
        }
    }

    /// The same for a put that began then. What ends well that had begun before says nothing of one that failed meanwhile.
    pub(super) fn judge_put(&mut self, by: NodeId, id: ChunkId, error: Option<&PutError>, since: Instant) {
        let excused = self.healed && error.is_some_and(|error| self.was_full(id, error, by, since));
        if let Some(gateways) = &self.gateways {
            let without_room = &mut lock(&gateways.scheduler.queues).history.without_room;
            if excused {
                without_room.insert((by, id), self.now);
            } else if without_room.get(&(by, id)).is_some_and(|failed| *failed < since) {
                without_room.remove(&(by, id));
            }
        }
    }

    /// Whether good copies of a chunk are left, but only on targets that are not asked: on some of its group by an older map.
    fn is_elsewhere(&self, by: NodeId, id: ChunkId) -> bool {
        let Some(node) = self.nodes.get(&by) else { return false };
        let has = |target: &NodeId| self.holds(*target, &id).is_some();
        let mut before = (0..node.map).flat_map(|map| self.group(map, &id));
        !self.asked(node.map, &id).iter().any(has) && before.any(|target| has(&target))
    }
}
