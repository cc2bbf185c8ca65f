//! Where the targets of a scenario are, how its cluster map changes, what befalls whole failure domains, and who sleeps.

use std::collections::{BTreeMap, BTreeSet};

use protocol::id::{ClusterId, Epoch, NodeId};
use protocol::map::{ClusterMap, MapError, TargetEntry};
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
    /// When those nodes have it that are told at once.
    pub told: Span,
    /// When the others find it, if they hear of it.
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
pub struct Layout {
    /// The maps, oldest first. The first is there from the beginning.
    pub maps: Vec<Map>,
    /// Whether groups share no cells.
    pub apart: bool,
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

impl Layout {
    /// The layout of a seed.
    pub(crate) fn draw(seed: u64, copies: u8, capacity: u64) -> Self {
        let mut rng = Rng::new(seed).fork(30);
        let apart = rng.chance(1, 4);
        let first = first(&mut rng, copies, capacity, apart);
        let resizes = rng.chance(1, 4);
        let least = if resizes { 2 } else { copies };
        let losable = losable(&mut rng, &first, least);
        let mut layout = Self {
            maps: vec![first],
            apart,
            domain_crashes: 0,
            domain_cuts: 0,
            lost: Vec::new(),
            blackout: None,
            sleeps: 0,
        };
        layout.draw_maps(&mut Rng::new(seed).fork(31), resizes, &losable, capacity);
        layout.draw_faults(&mut Rng::new(seed).fork(32), &losable);
        layout
    }

    fn draw_maps(&mut self, rng: &mut Rng, resizes: bool, losable: &BTreeSet<NodeId>, capacity: u64) {
        let newer = if rng.chance(3, 4) { 1 + rng.below(NEWER) } else { 0 };
        let mut next = self.maps[0].targets.iter().map(|t| t.id.0).max().unwrap_or(0) + 1;
        let mut told = 0;
        for _ in 0..newer {
            told += 10 + rng.below(110);
            let mut map = self.maps[self.maps.len() - 1].clone();
            map.changes.clear();
            (map.told, map.found) = (Span::from_millis(told), Span::from_millis(told + rng.below(250)));
            for _ in 0..=rng.below(2) {
                let before = map.clone();
                let what = change(rng, &mut map, &mut next, resizes, losable, capacity);
                match map.build(Epoch(1), self.apart) {
                    Ok(_) => map.changes.push(what),
                    Err(_) => map = before,
                }
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

    /// No targets go down or are cut off together, nobody sleeps, and no disk is lost.
    pub(crate) fn calm(&mut self) {
        (self.domain_crashes, self.domain_cuts, self.sleeps, self.blackout) = (0, 0, 0, None);
        self.lost.clear();
    }

    /// Mostly, for what must be found and cleaned at the end, no map moves a chunk to another group.
    pub(crate) fn keep_places(&mut self, seed: u64) {
        let mut rng = Rng::new(seed).fork(34);
        if rng.chance(1, 4) {
            return;
        }
        self.maps.truncate(1);
        if rng.chance(1, 2) {
            return;
        }
        let mut next = self.maps[0].clone();
        let told = 20 + rng.below(200);
        (next.told, next.found) = (Span::from_millis(told), Span::from_millis(told + rng.below(150)));
        next.changes.push("changes nothing");
        // While every group is the whole cluster, a newcomer moves nothing.
        let whole = |map: &Map| map.targets.len() / usize::from(map.copies) <= GROUP_CELLS;
        let last = next.targets.last().cloned().filter(|_| rng.chance(3, 4));
        if let Some(last) = last {
            let mut grown = next.clone();
            grown.changes = vec!["adds targets"];
            grown.targets.push(TargetEntry { id: NodeId(last.id.0 + 1), ..last });
            if whole(&grown) && grown.build(Epoch(1), self.apart).is_ok() {
                next = grown;
            }
        }
        self.maps.push(next);
    }

    /// Whether a chunk may lose all its copies when those of another domain are damaged as well.
    pub(crate) fn loses_all_but_one(&self) -> bool {
        let is_kept = |id: NodeId| self.maps.iter().all(|map| map.targets.iter().any(|target| target.id == id));
        let is_lost = |id: &NodeId| !is_kept(*id) || self.lost.iter().any(|lost| lost.target == *id);
        let domains = self.domains().into_iter().filter(|domain| domain.iter().any(is_lost)).count();
        let copies = self.maps.iter().map(|map| usize::from(map.copies)).min().unwrap_or(0);
        domains + 1 >= copies
    }

    /// The targets of each domain of the first map.
    pub(crate) fn domains(&self) -> Vec<Vec<NodeId>> {
        by_domain(&self.maps[0].targets).into_values().collect()
    }

    /// The maps as the machines know them.
    pub(crate) fn cluster_maps(&self, cluster: ClusterId) -> Result<Vec<ClusterMap>, MapError> {
        let mut maps: Vec<ClusterMap> = Vec::new();
        for (map, epoch) in self.maps.iter().zip(1..) {
            let built = map.build_for(cluster, Epoch(epoch), self.apart)?;
            maps.push(match maps.last() {
                Some(older) => built.after(older),
                None => built,
            });
        }
        Ok(maps)
    }
}

impl Map {
    fn build(&self, epoch: Epoch, apart: bool) -> Result<ClusterMap, MapError> {
        self.build_for(ClusterId(0), epoch, apart)
    }

    fn build_for(&self, cluster: ClusterId, epoch: Epoch, apart: bool) -> Result<ClusterMap, MapError> {
        let map = ClusterMap::new(cluster, epoch, self.copies, GROUP_CELLS, self.targets.clone())?;
        Ok(if apart { map.apart() } else { map })
    }
}

fn by_domain(targets: &[TargetEntry]) -> BTreeMap<u16, Vec<NodeId>> {
    let mut domains: BTreeMap<u16, Vec<NodeId>> = BTreeMap::new();
    targets.iter().for_each(|t| domains.entry(t.domain).or_default().push(t.id));
    domains
}

/// Mostly 12 to 30 targets in 3 to 10 uneven domains; sometimes few, each a domain of its own.
fn first(rng: &mut Rng, copies: u8, capacity: u64, apart: bool) -> Map {
    let map = |domains: Vec<u16>| {
        let entry = |(domain, n)| TargetEntry { id: NodeId(n), domain, capacity };
        let targets = domains.into_iter().zip(1..).map(entry).collect();
        Map { copies, targets, told: Span::ZERO, found: Span::ZERO, changes: Vec::new() }
    };
    let few = rng.chance(1, 5);
    for _ in 0..16 {
        let targets = if few { 5 + rng.below(8) } else { 12 + rng.below(19) };
        let domains = if few { targets } else { (3 + rng.below(8)).min(targets) };
        // Each has one; the others go rather to the first.
        let domain = |n| if n < domains { n } else { rng.below(domains).min(rng.below(domains)) };
        let drawn = map((0..targets).map(domain).map(|n| n as u16).collect());
        if drawn.build(Epoch(1), apart).is_ok() {
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
    match (rng.below(6), lost) {
        (0, Some(lost)) => {
            map.targets.remove(lost);
            "removes a target"
        }
        (1, Some(lost)) => {
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
        _ => {
            let new = map.targets.iter().map(|t| t.domain).max().unwrap_or(0) + 1;
            for _ in 0..=rng.below(3) {
                map.targets.push(fresh(if rng.chance(1, 3) { new } else { domain }));
            }
            "adds targets"
        }
    }
}
