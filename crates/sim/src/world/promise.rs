//! What an acknowledgement promises, and what has taken some of it away since.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use protocol::id::{ChunkId, NodeId};
use protocol::redundancy::{Piece, Pieces, Redundancy};
use protocol::time::Instant;

use super::{NodeMachine, World};
use crate::excuse::Excuse;

/// The holders that the acknowledgement of a put listed.
#[derive(Clone, Debug)]
pub(super) struct Promise {
    /// The map that its initiator used then.
    pub(super) map: usize,
    /// Other than the map's.
    pub(super) redundancy: Option<Redundancy>,
    pub(super) holders: Vec<NodeId>,
}

impl World<'_> {
    /// Something is missing that would be a failure but for this.
    pub(super) fn excuse(&mut self, excuse: Excuse, at: NodeId, id: ChunkId) {
        if excuse == Excuse::Regrouped && !self.topology.strands() {
            self.fail(format!("{id:?} is missing at {at}, and no map forgot where it was"));
        }
        self.outcome.excuses.used(excuse);
        self.note(17, at, excuse as usize, || format!("excused: {id:?}: {}", excuse.name()));
    }

    /// An acknowledgement counts from now on. One for fewer copies takes nothing from one for more.
    pub(super) fn promise(&mut self, id: ChunkId, promise: Arc<Promise>) {
        let goal = |promise: &Promise| self.goal(promise.map, promise.redundancy);
        let more = self.promises.get(&id).filter(|before| goal(before) > goal(&promise));
        let promise = more.map_or(promise.clone(), |before| {
            let others = promise.holders.iter().filter(|holder| !before.holders.contains(holder));
            let holders = before.holders.iter().chain(others).copied().collect();
            Arc::new(Promise { holders, ..**before })
        });
        self.promises.insert(id, promise);
    }

    /// What the simulated world did to a copy, if that is why it is missing.
    pub(super) fn harmed(&self, id: ChunkId, holder: NodeId) -> Option<Excuse> {
        if self.lost.contains(&(id, holder)) || !self.nodes.contains_key(&holder) {
            return Some(Excuse::LostDisk);
        }
        self.damaged.contains(&(id, holder)).then_some(Excuse::Flipped)
    }

    /// Why a copy that was promised may be missing by now. At an acknowledgement nothing but harm to the copy counts.
    pub(super) fn excused(&self, id: ChunkId, holder: NodeId) -> Option<Excuse> {
        self.harmed(id, holder).or_else(|| self.lost_its_references(&id).then_some(Excuse::LostReference))
    }

    /// The same, or what it did until after this moment, when the copy was written again.
    fn harmed_since(&self, id: ChunkId, holder: NodeId, since: Instant) -> Option<Excuse> {
        self.excused(id, holder).or_else(|| self.mended_since(id, holder, since))
    }

    /// What it did to a copy that was written again since then; of a coded chunk another piece may have been.
    pub(super) fn mended_since(&self, id: ChunkId, holder: NodeId, since: Instant) -> Option<Excuse> {
        self.mended.get(&(id, holder)).filter(|(at, _)| *at >= since).map(|(_, excuse)| *excuse)
    }

    /// The copies of a chunk that are neither harmed since then nor with others than those `asked` under `map`,
    /// and what excuses the rest.
    pub(super) fn left(
        &self,
        id: ChunkId,
        promise: &Promise,
        map: usize,
        asked: &[NodeId],
        since: Instant,
    ) -> (Vec<NodeId>, BTreeSet<Excuse>) {
        let mut excuses = BTreeSet::new();
        let mut left = Vec::new();
        for holder in &self.holders_since(id, promise) {
            if !asked.contains(holder) {
                excuses.insert(if promise.map > map { Excuse::OlderMap } else { Excuse::Regrouped });
            } else if let Some(excuse) = self.harmed_since(id, *holder, since) {
                excuses.insert(excuse);
            } else {
                left.push(*holder);
            }
        }
        (left, excuses)
    }

    /// What a put reaches under a map.
    pub(super) fn goal(&self, map: usize, redundancy: Option<Redundancy>) -> Redundancy {
        redundancy.unwrap_or(self.maps[map].redundancy())
    }

    /// Distinct failure domains of these under a map.
    pub(super) fn spread<'n>(&self, map: usize, nodes: impl IntoIterator<Item = &'n NodeId>) -> usize {
        nodes.into_iter().filter_map(|node| self.maps[map].domain(*node)).collect::<BTreeSet<u16>>().len()
    }

    /// In how many distinct failure domains these have copies of a chunk under a map; of a coded one different pieces.
    /// If a target is down, or its piece was harmed, it is not known which piece it had.
    pub(super) fn reached<'n>(&self, map: usize, id: &ChunkId, nodes: impl IntoIterator<Item = &'n NodeId>) -> usize {
        self.reached_with(map, id, nodes, &BTreeSet::new())
    }

    /// The same when each of `others` had whatever it takes.
    pub(super) fn reached_with<'n>(
        &self,
        map: usize,
        id: &ChunkId,
        nodes: impl IntoIterator<Item = &'n NodeId>,
        others: &BTreeSet<NodeId>,
    ) -> usize {
        let nodes: Vec<NodeId> = nodes.into_iter().copied().chain(others.iter().copied()).collect();
        let Some(code) = id.code() else { return self.spread(map, &nodes) };
        let good = |node: &NodeId| match self.nodes.get(node).map(|node| &node.machine) {
            Some(NodeMachine::Target(_, disk)) => {
                let good = disk.pieces(id).into_iter().filter(|piece| disk.durable(piece).is_some());
                Some(good.filter_map(|piece| piece.piece()).collect()).filter(|good: &Pieces| !good.is_empty())
            }
            _ => None,
        };
        let mut domains: BTreeMap<u16, Pieces> = BTreeMap::new();
        for node in &nodes {
            let known = good(node).filter(|_| !others.contains(node));
            let pieces = known.unwrap_or(Redundancy::Code(code).all());
            let Some(domain) = self.maps[map].domain(*node) else { continue };
            let all = domains.entry(domain).or_default();
            *all = all.iter().chain(pieces.iter()).collect();
        }
        // A domain may have several pieces, and counts for one: which, follows from what the others have. Found without the product's `Goal`,
        // which this judges.
        let mut counts: BTreeMap<Piece, u16> = BTreeMap::new();
        domains.keys().filter(|domain| counts_for(**domain, &domains, &mut counts, &mut BTreeSet::new())).count()
    }

    /// A put may count on no target that refuses its map: one that used a newer map since before the put began.
    pub(super) fn check_epochs(&mut self, id: ChunkId, map: usize, holders: &[NodeId], since: Instant) {
        let newer = |holder: &&NodeId| {
            let known = self.first_used.range((**holder, map + 1)..=(**holder, usize::MAX));
            known.map(|(_, used)| *used).any(|used| used < since)
        };
        if let Some(holder) = holders.iter().find(newer).copied() {
            self.fail(format!(
                "{id:?} was put under map {}, but {holder} knew a newer one before the put began",
                map + 1
            ));
        }
    }
}

/// Finds a piece for which a domain counts, where others may have to count for another one.
fn counts_for(
    domain: u16,
    domains: &BTreeMap<u16, Pieces>,
    counts: &mut BTreeMap<Piece, u16>,
    tried: &mut BTreeSet<Piece>,
) -> bool {
    for piece in domains.get(&domain).into_iter().flat_map(|pieces| pieces.iter()) {
        if !tried.insert(piece) {
            continue;
        }
        let other = counts.get(&piece).copied();
        if other.is_none_or(|other| counts_for(other, domains, counts, tried)) {
            counts.insert(piece, domain);
            return true;
        }
    }
    false
}
