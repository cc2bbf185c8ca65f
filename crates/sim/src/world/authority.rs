//! Where the simulated cluster's maps are decided, what becomes of those that were, and whether they may be so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use protocol::id::NodeId;
use protocol::map::ClusterMap;
use protocol::planner::Plan;
use protocol::proposer::{Proposed, Verdict};
use protocol::rng::Rng;
use protocol::time::{Instant, Span};

use super::{NodeMachine, Scheduled, World, maps};
use crate::governing::Period;
use crate::net::listeners;
use crate::planted::PlantedBug;
use crate::topology;

/// What a map does that was made since targets were down for long.
pub(super) const TAKES_OUT: &str = "takes out who is down";
/// Until an initiator that proposes nothing has read what was decided.
const READ: u64 = 200_000_000;

/// A map that is proposed, and what it was made by.
#[derive(Clone)]
pub(super) struct Draft {
    pub(super) id: u64,
    pub(super) map: ClusterMap,
    pub(super) made_by: Arc<topology::Map>,
    /// When a gateway asked the targets that takes some out by itself, as they did not answer.
    pub(super) asked: Option<Instant>,
}

impl Proposed for Draft {
    fn is_same(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

/// The authority.
pub(super) struct Authority {
    newest: Draft,
    /// Which map of the world a draft is, once it is decided or used.
    known: BTreeMap<u64, usize>,
    /// Which gateways do not reach it, and when it is down.
    partitions: Vec<(usize, Period)>,
    outage: Option<Period>,
    began: Instant,
}

impl Authority {
    pub(super) fn new(first: Draft, partitions: Vec<(usize, Period)>, outage: Option<Period>, began: Instant) -> Self {
        Self { known: [(first.id, 0)].into(), newest: first, partitions, outage, began }
    }

    pub(super) fn newest(&self) -> &Draft {
        &self.newest
    }

    /// Whether what a gateway says arrives.
    pub(super) fn is_reached(&self, gateway: usize, now: Instant) -> bool {
        let is_in = |(from, to): &Period| self.began + *from <= now && now < self.began + *to;
        let cut = self.partitions.iter().any(|(of, period)| *of == gateway && is_in(period));
        !cut && !self.outage.as_ref().is_some_and(is_in)
    }
}

impl World<'_> {
    /// Decides a map, if the one that it was made from is the newest.
    pub(super) fn decide(&mut self, from: &Draft, next: &Draft) -> Option<Verdict> {
        let blind = self.scenario.planted == Some(PlantedBug::DecideWithoutComparing);
        let state = self.governing.as_mut()?;
        if !from.is_same(&state.authority.newest) && !blind {
            self.outcome.governed.conflicts += 1;
            return Some(Verdict::Conflict);
        }
        let before = std::mem::replace(&mut state.authority.newest, next.clone());
        self.outcome.governed.decided += 1;
        let nth = self.known_as(next);
        self.note(50, NodeId(0), nth, || format!("map {} is decided: it {}", nth + 1, next.made_by.changes.join(", ")));
        self.check_taken_out(&before.map, next);
        Some(Verdict::Decided)
    }

    /// Which map of the world this is. When it is new its targets begin, those that it does not have are switched off after a while,
    /// and initiators come to read it.
    pub(super) fn known_as(&mut self, draft: &Draft) -> usize {
        let nth = self.maps.len();
        let Some(state) = &mut self.governing else { return 0 };
        let nth = *state.authority.known.entry(draft.id).or_insert(nth);
        if nth < self.maps.len() {
            return nth;
        }
        let map = maps::with_document(draft.map.clone(), nth);
        self.listeners.push(listeners(&map));
        self.maps.push(map);
        let since = self.now.since(Instant::ZERO);
        self.topology.maps.push(topology::Map { notified: since, found: since, ..(*draft.made_by).clone() });
        self.new_map(nth);
        let followers = |id: &&NodeId| id.is_initiator() && !self.is_governor(**id);
        let followers: Vec<NodeId> = self.nodes.keys().filter(followers).copied().collect();
        for id in followers {
            let at = self.now + Span::from_nanos(self.rng.below(READ));
            self.reads(id, nth, at);
        }
        nth
    }

    /// A node has read a map that is decided.
    pub(super) fn adopts(&mut self, id: NodeId, nth: usize) {
        if let Some(node) = self.nodes.get_mut(&id)
            && node.fetched < nth
        {
            node.fetched = nth;
            self.push(self.now, Scheduled::Reload(id));
        }
    }

    /// Operators take out what may be lost; gateways by themselves only those that were lost for good when they looked.
    /// A target that got another disk since then may still go: a look and a decision take their time. So may targets
    /// that a switch cut off then, when the map has no others any more that it cuts off in another failure domain: they
    /// cannot be told from a server that died.
    fn check_taken_out(&mut self, before: &ClusterMap, next: &Draft) {
        let targets = before.targets().map(|target| target.id);
        let gone: Vec<NodeId> = targets.filter(|id| next.map.target(*id).is_none()).collect();
        let Some(state) = &self.governing else { return };
        let was_dead = |id: &NodeId| state.replaced.get(id).is_some_and(|back| next.asked.is_some_and(|at| at < *back));
        let (switch, (_, back)) = (&state.settings.switch, &state.settings.last);
        let is_cut = |begins: Span| next.asked.is_some_and(|at| (begins..*back).contains(&at.since(Instant::ZERO)));
        let cut_off = switch.iter().filter(|(_, (begins, _))| is_cut(*begins)).flat_map(|(silent, _)| silent);
        let cut_off: Vec<NodeId> = cut_off.copied().filter(|id| before.target(*id).is_some()).collect();
        let domains: BTreeSet<u16> = cut_off.iter().filter_map(|id| before.domain(*id)).collect();
        let is_alone = |id: &NodeId| domains.len() == 1 && cut_off.contains(id);
        let dead = |id: &&NodeId| state.dead.contains(id) || was_dead(id) || is_alone(id);
        let by_itself = next.made_by.changes == [TAKES_OUT];
        let wrong = gone.iter().find(|id| !dead(id) && (by_itself || !self.topology.losable.contains(id))).copied();
        self.outcome.governed.taken_out += if by_itself { gone.iter().filter(dead).count() as u32 } else { 0 };
        if let Some(asked) = next.asked.filter(|_| by_itself) {
            self.check_orphan(before, &gone, asked);
        }
        if let Some(wrong) = wrong {
            self.fail(format!("{wrong} was taken out of the map of {:?}, and is not lost", next.map.epoch));
        }
    }

    /// No two different maps of one epoch are ever in use.
    pub(super) fn check_one_map(&mut self, id: NodeId, nth: usize) {
        let epoch = self.maps[nth].epoch;
        let is_other =
            |(user, map): &(NodeId, usize)| (*map != nth && self.maps[*map].epoch == epoch).then_some((*user, *map));
        if let Some((user, map)) = self.first_used.keys().find_map(is_other) {
            self.fail(format!("{id} uses map {} and {user} map {}: two different maps of {epoch:?}", nth + 1, map + 1));
        }
    }

    /// The map that follows this one by an operator's wish, which is drawn: it keeps what is kept in other ways than its own.
    pub(super) fn draw_next(&self, present: &Draft, seed: u64) -> Option<(topology::Map, Plan)> {
        let mut rng = Rng::new(seed);
        // An id that was given once is given to nobody else.
        let ids = self.maps.iter().flat_map(|map| map.targets().map(|target| target.id.0));
        let mut next = ids.max().unwrap_or(0) + 1;
        for _ in 0..4 {
            let mut made_by = (*present.made_by).clone();
            let what = self.topology.change(&mut rng, &mut made_by, &mut next);
            made_by.changes = vec![what];
            if let Some(plan) = self.plan(present, &mut made_by) {
                return Some((made_by, plan));
            }
        }
        None
    }

    /// The map that follows this one when the cluster is to be so.
    pub(super) fn plan(&self, present: &Draft, made_by: &mut topology::Map) -> Option<Plan> {
        let mut plan = self.topology.plan(&present.map, made_by).ok()?;
        made_by.regroups = plan.regroups;
        plan.map = self.topology.set(plan.map);
        let keeps = self.scenario.redundancy.is_none_or(|own| plan.map.can_keep(own).is_ok());
        keeps.then_some(plan)
    }

    /// Whether all nodes that can have the newest map, and else which has not.
    pub(super) fn lags_behind(&self) -> Option<NodeId> {
        let newest = self.maps.len() - 1;
        let has = |id: &NodeId| self.has(*id, newest);
        let is_dead = |id: &NodeId| self.governing.as_ref().is_some_and(|state| state.dead.contains(id));
        let lags = |(id, node): (&NodeId, &super::Node)| {
            let is_up = matches!(node.machine, NodeMachine::Target(..) | NodeMachine::Initiator(_));
            // An aggregator hears of maps from initiators that ask it, and needs none before.
            let asks_nobody = self.topology.aggregators.contains(id);
            (has(id) && !asks_nobody && !is_dead(id) && (node.map < newest || !is_up)).then_some(*id)
        };
        self.nodes.iter().find_map(lags)
    }

    /// Those that are lost for good, and still in the newest map.
    pub(super) fn dead_in_map(&self) -> BTreeSet<NodeId> {
        let newest = &self.maps[self.maps.len() - 1];
        let dead = self.governing.iter().flat_map(|state| state.dead.iter().copied());
        dead.filter(|id| newest.target(*id).is_some()).collect()
    }
}
