//! How many bytes go where when one layout follows another.

use std::collections::BTreeMap;

use crate::id::NodeId;
use crate::map::ClusterMap;
use crate::placement::{Layout, Placement};

/// What a target gives and gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Move {
    /// Bytes that it has, and others have in the end.
    pub leaves: u64,
    /// Bytes that come to it.
    pub arrives: u64,
}

/// What moves from one map to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// For each target of which something goes, or to which something comes.
    pub targets: BTreeMap<NodeId, Move>,
    /// Bytes on targets that are not asked for them any more: until they moved, they are not found there.
    pub strays: u64,
}

impl Moves {
    /// Bytes that move.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.targets.values().map(|moves| moves.arrives).fold(0, u64::saturating_add)
    }

    /// From `before` to `after`, when all copies of all chunks have `stored` bytes, and each group's copies are spread
    /// over its targets by their capacities. Copies stay where the next layout looks for them. The others move, and so
    /// does what makes the difference to an even fill of each group.
    #[must_use]
    pub fn between(before: &ClusterMap, after: &ClusterMap, stored: u64) -> Self {
        let mut fills: BTreeMap<NodeId, Fill> = BTreeMap::new();
        let (old, new) = (before.placement(), after.placement());
        for ((from, to), bytes) in common(old, new, stored) {
            let stay: Vec<NodeId> = new.layout().group(to).collect();
            for (id, part) in spread(before, old.layout(), from, bytes) {
                let fill = fills.entry(id).or_default();
                fill.has += part;
                fill.keeps += if stay.contains(&id) { part } else { 0 };
            }
            for (id, part) in spread(after, new.layout(), to, bytes) {
                fills.entry(id).or_default().wants += part;
            }
        }
        let strays = fills.values().map(|fill| fill.has - fill.keeps).fold(0, u64::saturating_add);
        let moves = |fill: Fill| Move {
            leaves: fill.has - fill.keeps.min(fill.wants),
            arrives: fill.wants.saturating_sub(fill.keeps),
        };
        let targets = fills.into_iter().map(|(id, fill)| (id, moves(fill)));
        Self { targets: targets.filter(|(_, moves)| *moves != Move::default()).collect(), strays }
    }
}

/// Bytes of one target.
#[derive(Clone, Copy, Default)]
struct Fill {
    has: u64,
    /// Of these, what is looked for there by the next layout.
    keeps: u64,
    /// By the next layout.
    wants: u64,
}

/// How many bytes go from which group, by its place, to which.
fn common(old: &Placement, new: &Placement, stored: u64) -> BTreeMap<(usize, usize), u64> {
    let mut counts: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    let (a, b) = (old.layout(), new.layout());
    let total = if a.drawn == b.drawn {
        let total = a.shares.max(b.shares);
        let owner = |of: &Placement, share: u32| of.owner(share / (total / of.layout().shares));
        (0..total).for_each(|share| *counts.entry((owner(old, share), owner(new, share))).or_default() += 1);
        u64::from(total)
    } else {
        // The two divide chunks in ways that have nothing to do with each other.
        for from in old.leads() {
            for to in new.leads() {
                let count = |of: &Layout, place: u32| u64::from(of.cells[place as usize].shares.len());
                counts.insert((*from as usize, *to as usize), count(a, *from) * count(b, *to));
            }
        }
        u64::from(a.shares) * u64::from(b.shares)
    };
    let bytes = |count: u64| (u128::from(stored) * u128::from(count) / u128::from(total.max(1))) as u64;
    counts.into_iter().map(|(groups, count)| (groups, bytes(count))).collect()
}

/// A group's bytes, divided among its targets by capacity, but that no failure domain gets more than one copy, or piece, of every chunk.
fn spread(map: &ClusterMap, layout: &Layout, place: usize, bytes: u64) -> Vec<(NodeId, u64)> {
    let weight = |id: NodeId| u128::from(map.target(id).map_or(1, |target| (target.capacity >> 20).max(1)));
    let mut domains: BTreeMap<Option<u16>, Vec<NodeId>> = BTreeMap::new();
    for id in layout.group(place) {
        domains.entry(map.target(id).map(|target| target.domain)).or_default().push(id);
    }
    let pieces = map.redundancy().pieces();
    let most = if domains.len() >= pieces { bytes.div_ceil(pieces.max(1) as u64) } else { bytes };
    let weighed = domains.into_values().map(|ids| (ids.iter().map(|id| weight(*id)).sum::<u128>(), ids));
    let mut weighed: Vec<(u128, Vec<NodeId>)> = weighed.collect();
    // The largest first: what it cannot have, the others share.
    weighed.sort_unstable_by_key(|(sum, _)| core::cmp::Reverse(*sum));
    let (mut left, mut sum) = (u128::from(bytes), weighed.iter().map(|(sum, _)| *sum).sum::<u128>());
    let mut parts = Vec::new();
    for (of_domain, ids) in weighed {
        let part = (left * of_domain / sum.max(1)).min(u128::from(most));
        parts.extend(ids.iter().map(|id| (*id, (part * weight(*id) / of_domain.max(1)) as u64)));
        (left, sum) = (left - part, sum - of_domain);
    }
    parts
}
