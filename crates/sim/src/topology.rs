//! Where the targets of a scenario are, how its cluster map changes, what befalls whole failure domains, and which nodes sleep.

use std::collections::{BTreeMap, BTreeSet};

use protocol::id::{ClusterId, Epoch, NodeId};
use protocol::map::{ClusterMap, MapError, TargetEntry};
use protocol::planner::{self, Plan, Wish};
use protocol::redundancy::Redundancy;
use protocol::rng::Rng;
use protocol::time::Span;

/// Cells of a negotiating group.
const GROUP_CELLS: usize = 3;
/// Most newer maps.
const NEWER: u64 = 3;

/// One cluster map of a scenario.
#[derive(Clone, Debug)]
pub struct Map {
    /// Copies of a chunk.
    pub copies: u8,
    /// Its targets.
    pub targets: Vec<TargetEntry>,
    /// Those of them that take no chunks.
    pub drained: BTreeSet<NodeId>,
    /// Cells in a group.
    pub group_cells: usize,
    /// Whether chunks are in other groups than by the map before.
    pub regroups: bool,
    /// When the nodes have it that are notified at once.
    pub notified: Span,
    /// When the others find it, if they learn of it.
    pub found: Span,
    /// What it changes.
    pub changes: Vec<&'static str>,
}

/// A disk that is lost for ever.
#[derive(Clone, Copy, Debug)]
pub struct Lost {
    /// Of which target.
    pub target: NodeId,
    /// When.
    pub at: Span,
    /// How long until an empty one is in its place.
    pub replaced: Span,
}

/// Where the targets are, and what happens to them by whole domains.
#[derive(Clone, Debug)]
pub struct Topology {
    /// The maps, oldest first. The first is there from the beginning.
    pub maps: Vec<Map>,
    /// How many copies a put may lack while failure domains are down, if it is not as many as where nothing is said.
    pub may_lack: Option<u8>,
    /// Whether groups share no cells.
    pub disjoint_groups: bool,
    /// Those that aggregate.
    pub aggregators: Vec<NodeId>,
    /// Targets that may be lost with what they hold: those of fewer domains than there are copies.
    pub losable: BTreeSet<NodeId>,
    /// Whether maps change the number of copies.
    pub resizes: bool,
    /// What the weights of targets are of.
    pub capacity: u64,
    /// Whether the first map is one from before there were cells in maps.
    pub taken_over: bool,
    /// Domains that crash as a whole, before the heal.
    pub domain_crashes: u32,
    /// Domains that are cut off as a whole, before the heal.
    pub domain_cuts: u32,
    /// Disks that are lost: of fewer domains than there are copies.
    pub lost: Vec<Lost>,
    /// Domains that go down together.
    pub blackout: Option<Blackout>,
    /// Times that a node sleeps for a while; the clock of half of them jumps meanwhile.
    pub sleeps: u32,
}

/// How many domains go down together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blackout {
    /// Three of four: their processes, or their power.
    Most,
    /// The power of all.
    All,
}

impl Topology {
    /// The topology of a seed.
    pub(crate) fn draw(seed: u64, copies: u8, capacity: u64) -> Self {
        let mut rng = Rng::new(seed).fork(30);
        let disjoint_groups = rng.chance(1, 4);
        let first = first(&mut rng, copies, capacity, disjoint_groups);
        let resizes = rng.chance(1, 4);
        let least = if resizes { 2 } else { copies };
        let losable = losable(&mut rng, &first, least);
        // Before there were cells, domains of very different sizes were refused.
        let taken_over = Rng::new(seed).fork(35).chance(1, 3) && first.take_over(ClusterId(0), disjoint_groups).is_ok();
        let mut topology = Self {
            maps: vec![first],
            may_lack: draw_may_lack(seed),
            aggregators: Vec::new(),
            disjoint_groups,
            losable: losable.clone(),
            resizes,
            capacity,
            taken_over,
            domain_crashes: 0,
            domain_cuts: 0,
            lost: Vec::new(),
            blackout: None,
            sleeps: 0,
        };
        topology.draw_maps(&mut Rng::new(seed).fork(31), resizes, &losable, capacity);
        topology.draw_faults(&mut Rng::new(seed).fork(32), &losable);
        topology
    }

    fn draw_maps(&mut self, rng: &mut Rng, resizes: bool, losable: &BTreeSet<NodeId>, capacity: u64) {
        let newer = if rng.chance(3, 4) { 1 + rng.below(NEWER) } else { 0 };
        let mut next = self.maps[0].targets.iter().map(|t| t.id.0).max().unwrap_or(0) + 1;
        let mut notified = 0;
        let Ok(mut built) = self.first_map(ClusterId(0)) else { return };
        for _ in 0..newer {
            notified += 10 + rng.below(110);
            let mut map = self.maps[self.maps.len() - 1].clone();
            map.changes.clear();
            (map.notified, map.found) = (Span::from_millis(notified), Span::from_millis(notified + rng.below(250)));
            for _ in 0..=rng.below(2) {
                let before = map.clone();
                let what = change(rng, &mut map, &mut next, resizes, losable, capacity);
                match map.plan(&built, self.disjoint_groups) {
                    Ok(_) => map.changes.push(what),
                    Err(_) => map = before,
                }
            }
            if let Ok(plan) = map.plan(&built, self.disjoint_groups) {
                (map.regroups, built) = (plan.regroups, plan.map);
            }
            self.maps.push(map);
        }
    }

    fn draw_faults(&mut self, rng: &mut Rng, losable: &BTreeSet<NodeId>) {
        let mut some = |most: u64| if rng.chance(1, 2) { 1 + rng.below(most) as u32 } else { 0 };
        (self.domain_crashes, self.domain_cuts, self.sleeps) = (some(3), some(2), some(4));
        self.blackout = [Some(Blackout::Most), Some(Blackout::All), None, None][rng.below(4) as usize];
        if rng.chance(1, 3) {
            for target in losable {
                let lost = Lost {
                    target: *target,
                    at: Span::from_millis(20 + rng.below(360)),
                    replaced: Span::from_millis(1 + rng.below(80)),
                };
                self.lost.extend(rng.chance(2, 3).then_some(lost));
            }
        }
    }

    /// Targets that are empty join late.
    pub(crate) fn join(&mut self, rng: &mut Rng, capacity: u64) {
        let Some(map) = self.maps.last() else { return };
        let mut next = map.clone();
        // Before all faults are over.
        let before = map.notified.as_nanos() / 1_000_000;
        let earliest = before.max(150) + 1;
        let notified = Span::from_millis(earliest + rng.below(390_u64.saturating_sub(earliest).max(1)));
        (next.notified, next.found) = (notified, notified + Span::from_millis(rng.below(50)));
        let all = || self.maps.iter().flat_map(|map| &map.targets);
        let id = all().map(|target| target.id.0).max().unwrap_or(0) + 1;
        let domains = next.targets.iter().map(|target| target.domain).max().unwrap_or(0) + 1;
        for n in 0..=rng.below(2) as u32 {
            let domain = if rng.chance(1, 2) { domains } else { rng.below(u64::from(domains)) as u16 };
            next.targets.push(TargetEntry { id: NodeId(id + n), domain, capacity });
        }
        next.changes = vec!["adds targets"];
        let present = self.cluster_maps(ClusterId(0)).ok().and_then(|mut maps| maps.pop());
        if let Some(Ok(plan)) = present.map(|before| next.plan(&before, self.disjoint_groups)) {
            next.regroups = plan.regroups;
            self.maps.push(next);
        }
    }

    /// No targets go down or are cut off together, nobody sleeps, and no disk is lost.
    pub(crate) fn calm(&mut self) {
        (self.domain_crashes, self.domain_cuts, self.sleeps, self.blackout) = (0, 0, 0, None);
        self.lost.clear();
    }

    /// For what clients of gateways go on to read, and what must be found and cleaned at the end.
    pub(crate) fn keep_for_clients(&mut self, seed: u64) {
        self.keep_places(seed);
        self.keep_all();
    }

    /// Mostly no map moves a chunk to another group.
    fn keep_places(&mut self, seed: u64) {
        let mut rng = Rng::new(seed).fork(34);
        if rng.chance(1, 4) {
            return;
        }
        self.maps.truncate(1);
        if rng.chance(1, 2) {
            return;
        }
        let mut next = self.maps[0].clone();
        let notified = 20 + rng.below(200);
        (next.notified, next.found) = (Span::from_millis(notified), Span::from_millis(notified + rng.below(150)));
        next.changes.push("changes nothing");
        next.regroups = false;
        let first = self.first_map(ClusterId(0));
        let last = next.targets.last().cloned().filter(|_| rng.chance(3, 4));
        if let Some(last) = last {
            let mut grown = next.clone();
            grown.changes = vec!["adds targets"];
            grown.targets.push(TargetEntry { id: NodeId(last.id.0 + 1), ..last });
            // While cells only grow, a newcomer moves nothing.
            let stays = |first| grown.plan(first, self.disjoint_groups).is_ok_and(|plan| !plan.regroups);
            if first.as_ref().is_ok_and(stays) {
                next = grown;
            }
        }
        self.maps.push(next);
    }

    /// What clients go on to read must not be lost: where lost disks may have all copies of a put that lacked some, none may lack.
    fn keep_all(&mut self) {
        if self.loses(self.fewest()) {
            self.may_lack = Some(0);
        }
    }

    /// The fewest copies of anything that is kept as the maps say.
    pub(crate) fn fewest(&self) -> usize {
        let maps = self.cluster_maps(ClusterId(0)).unwrap_or_default();
        maps.iter().map(|map| map.fewest(None).pieces()).min().unwrap_or(1)
    }

    /// Whether a chunk may lose all its copies when those of another domain are damaged as well.
    pub(crate) fn loses_all_but_one(&self) -> bool {
        self.loses_all_but_one_of(self.fewest())
    }

    /// The same of a chunk that is kept in its own way.
    pub(crate) fn loses_all_but_one_of_kept(&self, own: Redundancy) -> bool {
        let may_lack = self.may_lack != Some(0);
        self.loses_all_but_one_of(if may_lack { own.pieces().min(2) } else { own.pieces() })
    }

    /// The same of a chunk with so many copies.
    fn loses_all_but_one_of(&self, copies: usize) -> bool {
        self.loses(copies.saturating_sub(1))
    }

    /// Whether so many domains lose what they have.
    fn loses(&self, copies: usize) -> bool {
        let is_in = |map: &Map, id| map.targets.iter().any(|target| target.id == id) && !map.drained.contains(&id);
        let is_kept = |id: NodeId| self.maps.iter().all(|map| is_in(map, id));
        let is_lost = |id: &NodeId| !is_kept(*id) || self.lost.iter().any(|lost| lost.target == *id);
        let domains = self.domains().into_iter().filter(|domain| domain.iter().any(is_lost)).count();
        domains >= copies
    }

    /// The targets of each domain of the first map.
    pub(crate) fn domains(&self) -> Vec<Vec<NodeId>> {
        by_domain(&self.maps[0].targets).into_values().collect()
    }

    /// Whether a chunk may be where no map looks for it any more: the layout of its put is two regroupings old, a target was taken
    /// out of a map, or it has another number of copies.
    pub(crate) fn strands(&self) -> bool {
        let has = |map: &Map, id| map.targets.iter().any(|target| target.id == id);
        self.maps.iter().filter(|map| map.regroups).count() > 1
            || self.maps.windows(2).any(|pair| {
                let lost = pair[0].targets.iter().any(|target| !has(&pair[1], target.id));
                lost || pair[0].copies != pair[1].copies
            })
    }

    /// The maps as the machines know them.
    pub(crate) fn cluster_maps(&self, cluster: ClusterId) -> Result<Vec<ClusterMap>, MapError> {
        let mut maps = vec![self.set(self.first_map(cluster)?)];
        for map in &self.maps[1..] {
            maps.push(self.set(map.plan(&maps[maps.len() - 1], self.disjoint_groups)?.map));
        }
        Ok(maps)
    }

    /// A map with as few copies as a put may have.
    pub(crate) fn set(&self, map: ClusterMap) -> ClusterMap {
        let map = map.with_aggregators(self.aggregators.iter().copied());
        match self.may_lack {
            None => map,
            Some(lacking) => {
                let min_copies = map.copies.saturating_sub(lacking);
                map.with_min_copies(min_copies)
            }
        }
    }

    /// Changes one thing, as an operator would, and sometimes takes back what was begun.
    pub(crate) fn change(&self, rng: &mut Rng, map: &mut Map, next: &mut u32) -> &'static str {
        if rng.chance(1, 2) && map.drained.pop_first().is_some() {
            return "cancels a drain";
        }
        change(rng, map, next, self.resizes, &self.losable, self.capacity)
    }

    /// The map that follows this one when the cluster is to be so.
    pub(crate) fn plan(&self, before: &ClusterMap, next: &Map) -> Result<Plan, MapError> {
        next.plan(before, self.disjoint_groups)
    }

    fn first_map(&self, cluster: ClusterId) -> Result<ClusterMap, MapError> {
        let first = &self.maps[0];
        if self.taken_over {
            return first.take_over(cluster, self.disjoint_groups);
        }
        first.build(cluster, self.disjoint_groups)
    }
}

impl Map {
    fn build(&self, cluster: ClusterId, disjoint_groups: bool) -> Result<ClusterMap, MapError> {
        let map = ClusterMap::new(cluster, Epoch(1), self.copies, GROUP_CELLS, self.targets.clone())?;
        if disjoint_groups { map.with_disjoint_groups() } else { Ok(map) }
    }

    /// As it was made before there were cells in maps.
    fn take_over(&self, cluster: ClusterId, disjoint_groups: bool) -> Result<ClusterMap, MapError> {
        let targets = self.targets.clone();
        ClusterMap::taken_over(cluster, Epoch(1), self.copies, GROUP_CELLS, !disjoint_groups, targets)
    }

    /// The next map, when the cluster is to be as this one says.
    fn plan(&self, before: &ClusterMap, disjoint_groups: bool) -> Result<Plan, MapError> {
        let weighed = |t: &TargetEntry| before.target(t.id).is_some_and(|was| was.capacity != t.capacity);
        let wish = Wish {
            targets: self.targets.iter().map(|target| (target.id, target.clone())).collect(),
            drained: self.drained.clone(),
            replacements: BTreeMap::new(),
            copies: self.copies,
            most: Redundancy::Copies(self.copies),
            group_cells: self.group_cells,
            overlap: !disjoint_groups,
            level: self.targets.iter().any(weighed),
        };
        planner::plan(before, &wish, 0)
    }
}

/// Mostly as where nothing is said; else none, or all but one.
fn draw_may_lack(seed: u64) -> Option<u8> {
    let mut rng = Rng::new(seed).fork(36);
    [None, None, Some(rng.below(2) as u8), Some(2)][rng.below(4) as usize]
}

fn by_domain(targets: &[TargetEntry]) -> BTreeMap<u16, Vec<NodeId>> {
    let mut domains: BTreeMap<u16, Vec<NodeId>> = BTreeMap::new();
    targets.iter().for_each(|t| domains.entry(t.domain).or_default().push(t.id));
    domains
}

/// Mostly 12 to 30 targets in 3 to 10 uneven domains; sometimes few, each a domain of its own.
fn first(rng: &mut Rng, copies: u8, capacity: u64, disjoint_groups: bool) -> Map {
    let map = |domains: Vec<u16>| {
        let entry = |(domain, n)| TargetEntry { id: NodeId(n), domain, capacity };
        let targets = domains.into_iter().zip(1..).map(entry).collect();
        let (drained, changes) = (BTreeSet::new(), Vec::new());
        Map {
            copies,
            targets,
            drained,
            group_cells: GROUP_CELLS,
            regroups: false,
            notified: Span::ZERO,
            found: Span::ZERO,
            changes,
        }
    };
    let few = rng.chance(1, 5);
    for _ in 0..16 {
        let targets = if few { 5 + rng.below(8) } else { 12 + rng.below(19) };
        let domains = if few { targets } else { (3 + rng.below(8)).min(targets) };
        // Each has one; the others go rather to the first.
        let domain = |n| if n < domains { n } else { rng.below(domains).min(rng.below(domains)) };
        let drawn = map((0..targets).map(domain).map(|n| n as u16).collect());
        if drawn.build(ClusterId(0), disjoint_groups).is_ok() {
            return drawn;
        }
    }
    map((0..9).collect())
}

/// The targets that may be lost with what they hold: those of fewer domains than there are copies.
fn losable(rng: &mut Rng, first: &Map, least: u8) -> BTreeSet<NodeId> {
    let mut domains: Vec<Vec<NodeId>> = by_domain(&first.targets).into_values().collect();
    let mut losable = BTreeSet::new();
    for _ in 0..rng.below(u64::from(least)) {
        let nth = rng.below(domains.len() as u64) as usize;
        losable.extend(domains.swap_remove(nth));
    }
    losable
}

/// Changes one thing. What is lost with what it holds is one of `losable`, which stay in their domains.
fn change(
    rng: &mut Rng,
    map: &mut Map,
    next: &mut u32,
    resizes: bool,
    losable: &BTreeSet<NodeId>,
    capacity: u64,
) -> &'static str {
    let nth = rng.below(map.targets.len() as u64) as usize;
    let domain = map.targets[rng.below(map.targets.len() as u64) as usize].domain;
    let mut fresh = |domain| {
        *next += 1;
        TargetEntry { id: NodeId(*next - 1), domain, capacity }
    };
    let lost = map.targets.iter().position(|t| losable.contains(&t.id));
    match (rng.below(7), lost) {
        (0, Some(lost)) if rng.chance(1, 2) && map.drained.insert(map.targets[lost].id) => "drains a target",
        (0, Some(lost)) => {
            map.drained.remove(&map.targets.remove(lost).id);
            "removes a target"
        }
        (1, Some(lost)) => {
            map.drained.remove(&map.targets[lost].id);
            map.targets[lost] = fresh(map.targets[lost].domain);
            "replaces a target"
        }
        (2, _) if !losable.contains(&map.targets[nth].id) => {
            map.targets[nth].domain = domain;
            "moves a target to another domain"
        }
        (3, _) => {
            let much = capacity * (1 + rng.below(4));
            map.targets.iter_mut().filter(|_| rng.chance(1, 2)).for_each(|t| t.capacity = much);
            "weighs targets anew"
        }
        (4, _) if resizes => {
            map.copies = if map.copies == 2 { 3 } else { 2 };
            "changes the number of copies"
        }
        (5, _) => {
            map.group_cells = if map.group_cells == GROUP_CELLS { GROUP_CELLS - 1 } else { GROUP_CELLS };
            "makes groups of another size"
        }
        _ => {
            let new = map.targets.iter().map(|t| t.domain).max().unwrap_or(0) + 1;
            for _ in 0..=rng.below(3) {
                map.targets.push(fresh(if rng.chance(1, 3) { new } else { domain }));
            }
            "adds targets"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::id::ChunkId;

    #[test]
    fn many_seeds_end_with_a_layout_before_that_leads_to_what_moved() {
        let (mut carry, mut leads) = (0, 0);
        for seed in 0..300 {
            let topology = Topology::draw(seed, 3, 1 << 24);
            let maps = topology.cluster_maps(ClusterId(1)).expect("drawn so that they serve");
            let last = &maps[maps.len() - 1];
            let Some(previous) = last.previous() else { continue };
            carry += 1;
            let elsewhere = |id: &ChunkId| {
                let now = last.placement().targets_of(id);
                previous.targets_of(id).iter().any(|target| last.target(*target).is_some() && !now.contains(target))
            };
            leads += usize::from((0..300_u32).map(|n| ChunkId::of_payload(&n.to_le_bytes())).any(|id| elsewhere(&id)));
            assert!(topology.maps.iter().any(|map| map.regroups), "seed {seed}");
        }
        assert!(carry >= 90 && leads >= 80, "{carry} seeds end with a layout before, {leads} need it");
    }

    #[test]
    fn maps_that_only_grow_cells_move_nothing_out_of_a_group() {
        let (mut grown, mut split) = (0, 0);
        for seed in 0..400 {
            let topology = Topology::draw(seed, 3, 1 << 24);
            let maps = topology.cluster_maps(ClusterId(1)).expect("drawn so that they serve");
            for (pair, map) in maps.windows(2).zip(&topology.maps[1..]) {
                if map.changes.iter().any(|what| *what != "adds targets") || map.changes.is_empty() {
                    continue;
                }
                let stays = (0..300_u32).map(|n| ChunkId::of_payload(&n.to_le_bytes())).all(|id| {
                    let [old, new] = [0, 1].map(|n| pair[n].placement().targets_of(&id));
                    old.iter().all(|target| new.contains(target))
                });
                assert!(stays || map.regroups, "seed {seed}: {map:?}");
                *(if map.regroups { &mut split } else { &mut grown }) += 1;
            }
        }
        assert!(grown > 2 * split && split > 0, "{grown} grew, {split} split");
    }
}
