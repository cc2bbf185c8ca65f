//! What gateways hear of chunks, judged: which versions of a file are in a list, and whether what is not found is only where
//! nobody looks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use protocol::id::{ChunkId, ChunkKind, NodeId};
use protocol::initiator::{Busy, Found, GetError, PutError, Scope};
use protocol::time::Instant;

use super::World;
use super::promise::Promise;
use super::workload::Looked;
use crate::excuse::Excuse;
use crate::object::client::{FILES, version_of};
use crate::object::stage::{Ticket, lock};

/// What gateways have asked for, and were told.
#[derive(Default)]
pub(super) struct Told {
    /// Gets, renewals, and lists of a file's versions under way.
    pub(super) gets: BTreeMap<Ticket, ChunkId>,
    pub(super) renewals: BTreeMap<Ticket, ChunkId>,
    lists: BTreeMap<Ticket, Looked>,
    /// What was promised last of each chunk.
    pub(super) promised: BTreeMap<ChunkId, Arc<Promise>>,
    /// Who did not find a chunk last that is where nobody looks for it, and when.
    pub(super) unfound: Option<(NodeId, Instant)>,
    /// Whether cleaning cannot go on for such a chunk.
    pub(super) stuck: bool,
}

/// Whether this is the manifest of a file: none of these is ever dropped.
pub(super) fn is_of_file(id: &ChunkId) -> bool {
    id.kind() == ChunkKind::Manifest && FILES.iter().any(|file| id.bytes().starts_with(&ChunkId::name_prefix(file)))
}

fn mark(all: &mut BTreeSet<ChunkId>, id: ChunkId, is: bool) {
    let _ = if is { all.insert(id) } else { all.remove(&id) };
}

impl World<'_> {
    /// A gateway counts on these copies from now on, which are as many as this map has.
    pub(super) fn promised(&mut self, map: usize, id: ChunkId, holders: &[NodeId]) {
        let Some(gateways) = &mut self.gateways else { return };
        gateways.told.promised.insert(id, Arc::new(Promise { map, holders: holders.to_vec() }));
        if is_of_file(&id) {
            lock(&gateways.stage.desk).history.whole(version_of(id));
        }
    }

    /// The same, wherever they are.
    pub(super) fn renewed(&mut self, by: NodeId, ticket: Ticket) {
        let map = self.nodes.get(&by).map_or(0, |node| node.map);
        let Some(gateways) = &mut self.gateways else { return };
        let Some(id) = gateways.told.renewals.remove(&ticket) else { return };
        if let Some(promise) = gateways.told.promised.get_mut(&id) {
            *promise = Arc::new(Promise { map, holders: promise.holders.clone() });
        }
    }

    /// A gateway asks for a list. What must be in it if it is one of a file's versions.
    pub(super) fn lists(&mut self, by: NodeId, ticket: Ticket, scope: &Scope, prefix: &[u8]) {
        let map = self.nodes.get(&by).map_or(0, |node| node.map);
        let (Scope::GroupOf(name) | Scope::LiveOf(name)) = scope else { return };
        let asked = self.group(map, name);
        let (since, healed) = (self.now, self.healed);
        let Some(gateways) = &mut self.gateways else { return };
        let healed = healed && !gateways.settings.is_brief();
        let known = gateways.told.promised.iter().filter(|(id, _)| is_of_file(id) && id.encode().starts_with(prefix));
        let known = known.map(|(id, promise)| (*id, promise.clone())).collect();
        gateways.told.lists.insert(ticket, Looked { prefix: prefix.to_vec(), known, healed, map, asked, since });
    }

    /// It is answered.
    pub(super) fn listed(&mut self, by: NodeId, ticket: Ticket, result: &Result<Found, Busy>) {
        let looked = self.gateways.as_mut().and_then(|gateways| gateways.told.lists.remove(&ticket));
        let (Some(looked), Ok(found)) = (looked, result) else { return };
        let lacked = self.check_list(by, &looked, found);
        let (now, map) = (self.now.as_nanos(), self.nodes.get(&by).map_or(0, |node| node.map));
        let (mut doubted, mut whole) = (vec![], vec![]);
        for (id, holders) in &found.chunks {
            let is_known = self.gateways.as_ref().is_some_and(|gateways| gateways.told.promised.contains_key(id));
            if is_known || !is_of_file(id) {
                continue;
            }
            // It may be a newer map by which the gateway judges it.
            let mut maps = map..self.maps.len();
            let with_silent = [&holders[..], &found.silent].concat();
            if let Some(map) =
                maps.clone().find(|map| self.spread(*map, holders) >= usize::from(self.maps[*map].copies))
            {
                whole.push((map, *id, holders));
            } else if maps.any(|map| self.maps[map].may_hide(&with_silent)) {
                doubted.push(*id);
            }
        }
        // Its put failed, but who hears of as many copies as there should be may count on them.
        whole.into_iter().for_each(|(map, id, holders)| self.promised(map, id, holders));
        if let Some(gateways) = &self.gateways {
            let history = &mut lock(&gateways.stage.desk).history;
            lacked.into_iter().for_each(|id| history.lacked(version_of(id), now));
            doubted.into_iter().for_each(|id| history.doubted(version_of(id), now));
        }
    }

    /// A gateway hears how a get ended: whether it may, though nothing is wrong any more.
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
            self.gateways.iter_mut().for_each(|gateways| gateways.told.unfound = Some((by, now)));
        }
        if let Some(gateways) = &self.gateways {
            mark(&mut lock(&gateways.stage.desk).history.elsewhere, id, excused);
        }
    }

    /// The same for a put that began then.
    pub(super) fn judge_put(&mut self, by: NodeId, id: ChunkId, error: Option<&PutError>, since: Instant) {
        let excused = self.healed && error.is_some_and(|error| self.was_full(id, error, by, since));
        if let Some(gateways) = &self.gateways {
            mark(&mut lock(&gateways.stage.desk).history.without_room, id, excused);
        }
    }

    /// Whether good copies of a chunk are left, but only with others than those who are asked: with some of its group by an older
    /// map.
    fn is_elsewhere(&self, by: NodeId, id: ChunkId) -> bool {
        let Some(node) = self.nodes.get(&by) else { return false };
        let has = |target: &NodeId| self.holds(*target, &id).is_some();
        let mut before = (0..node.map).flat_map(|map| self.group(map, &id));
        !self.group(node.map, &id).iter().any(has) && before.any(|target| has(&target))
    }
}
