//! The next map, from the present one and a wish, so that little has to move.
//!
//! - A newcomer joins a cell. Its groups only grow: all is found where it was, and at most the newcomer's share of the bytes
//!   moves, to level the fill.
//! - A cell with twice as many targets as there are copies is split, and so is one in a group that has as many targets as can have
//!   multicast addresses. The new cell comes after the old one into the ring, and the groups around
//!   lose one of the two or the cell at their end.
//! - Groups that share no cell grow where they are fullest, and split in halves as wholes.
//! - A target that replaces another takes its place. One that is removed leaves its cell. A cell that is left with half as many
//!   targets as there are copies is merged with a neighbour, which takes nothing from any group.
//! - Shares go to another group only when a cell is split, or when the wish says so. Then every group gets what its capacity is
//!   due, up to a quarter more or less.
//! - Where none of this gives a map that serves, it is dealt anew, like the first.

use std::collections::{BTreeMap, BTreeSet};

mod draft;
pub mod moves;

use self::draft::Draft;
use self::moves::Moves;
use crate::id::{Epoch, NodeId};
use crate::map::{ClusterMap, MapError, TargetEntry};
use crate::placement::{Placement, deal};
use crate::redundancy::Redundancy;

/// What a cluster is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Its targets.
    pub targets: BTreeMap<NodeId, TargetEntry>,
    /// Those of them that are to take no chunks.
    pub drained: BTreeSet<NodeId>,
    /// Which target takes the place of which, first the one that goes; in another failure domain only where its groups
    /// have enough. Others take places of their own domain.
    pub replacements: BTreeMap<NodeId, NodeId>,
    /// Copies of every chunk.
    pub copies: u8,
    /// The largest redundancy that objects ask for by themselves (their storage classes): every group must be able to keep it.
    pub most: Redundancy,
    /// Cells in a group.
    pub group_cells: usize,
    /// Whether neighbouring groups are to share cells.
    pub overlap: bool,
    /// Whether groups are to have shares by their capacity again.
    pub level: bool,
}

impl Wish {
    /// Those that take chunks, by id.
    fn active(&self) -> Vec<TargetEntry> {
        self.targets.values().filter(|target| !self.drained.contains(&target.id)).cloned().collect()
    }
}

/// The next map.
#[derive(Clone, Debug)]
pub struct Plan {
    /// With the epoch after the present one.
    pub map: ClusterMap,
    /// What moves.
    pub moves: Moves,
    /// Whether chunks are in other groups than before, so that the map has the [previous](ClusterMap::previous) layout.
    pub regroups: bool,
    /// Whether chunks that the map before regrouped, and that have not moved since, can no longer be found: a map carries one
    /// previous layout.
    pub forgets: bool,
}

/// Makes the next map. `stored` is how many bytes all copies of all chunks have, for the plan to say how many of them move. The
/// same arguments give the same plan.
///
/// # Errors
/// When no map can keep the copies apart on the targets that are wished for, or with one in the place that it is to take; see
/// [`MapError`].
pub fn plan(map: &ClusterMap, wish: &Wish, stored: u64) -> Result<Plan, MapError> {
    let redundancy = Redundancy::copies(wish.copies).ok_or(MapError::Copies(wish.copies))?;
    let all: Vec<TargetEntry> = wish.targets.values().cloned().collect();
    let epoch = Epoch(map.epoch.0.saturating_add(1));
    let with = |layout| ClusterMap::with_layout(map.cluster, epoch, wish.copies, all.clone(), layout);
    let draft = Draft::of(map, wish, redundancy);
    if let Some((old, new)) = draft.misplaced(map, wish) {
        let copies = redundancy.max(wish.most).pieces() as u8;
        return Err(MapError::Place { old, new, copies });
    }
    let kept = draft.settle().and_then(|layout| with(layout).ok());
    let next = match kept {
        Some(next) if next.has_addresses() || !map.has_addresses() => next,
        kept => {
            let dealt = deal::first(&wish.active(), wish.copies, wish.group_cells, wish.overlap);
            let dealt = dealt.map_err(MapError::from).and_then(with);
            match (kept, dealt) {
                // Where there are no multicast addresses either way, unicast does, and nothing need move.
                (Some(kept), Ok(dealt)) if !dealt.has_addresses() => kept,
                (Some(kept), Err(_)) => kept,
                (_, dealt) => dealt?,
            }
        }
    };
    let next = next.with_overlap(wish.overlap).after(map);
    let regroups = leaves(map.placement(), &next, &[next.placement()]);
    let previous = if regroups { Some(map.placement()) } else { map.previous() };
    let next = next.with_previous(previous.cloned());
    let forgets = hides(map.previous(), &next);
    Ok(Plan { moves: Moves::between(map, &next, stored), map: next, regroups, forgets })
}

/// Whether one of these layouts places a chunk on a target that is still in the map, but that gets would not ask: neither the map's
/// layout nor its previous one leads there.
#[must_use]
pub fn hides<'p>(older: impl IntoIterator<Item = &'p Placement>, map: &ClusterMap) -> bool {
    let by: Vec<&Placement> = map.previous().into_iter().chain([map.placement()]).collect();
    older.into_iter().any(|older| leaves(older, map, &by))
}

/// Whether an older layout places chunks on a target of the map for which none of the newer layouts would ask it.
fn leaves(older: &Placement, map: &ClusterMap, by: &[&Placement]) -> bool {
    let divides_alike = |other: &&Placement| other.layout().drawn == older.layout().drawn;
    let (alike, others): (Vec<&Placement>, Vec<&Placement>) = by.iter().copied().partition(divides_alike);
    // Where chunks are divided in another way, a chunk may be in any group.
    let everywhere: BTreeSet<NodeId> = others.into_iter().flat_map(in_all_groups).collect();
    let all: Vec<&Placement> = [older].into_iter().chain(alike).collect();
    let total = all.iter().map(|placement| placement.layout().shares).max().unwrap_or(1);
    let mut places: BTreeSet<Vec<usize>> = BTreeSet::new();
    let (mut last, mut next) = (Vec::new(), Vec::new());
    for share in 0..total {
        next.clear();
        next.extend(all.iter().map(|placement| placement.owner(share / (total / placement.layout().shares))));
        if next != last {
            places.insert(next.clone());
            core::mem::swap(&mut last, &mut next);
        }
    }
    places.into_iter().any(|places| {
        let mut groups =
            all.iter().zip(places).map(|(of, place)| of.layout().group(place).collect::<BTreeSet<NodeId>>());
        let had = groups.next().unwrap_or_default();
        let asked: BTreeSet<NodeId> = groups.flatten().collect();
        had.iter().any(|id| map.target(*id).is_some() && !asked.contains(id) && !everywhere.contains(id))
    })
}

/// The targets that every group has.
fn in_all_groups(of: &Placement) -> BTreeSet<NodeId> {
    let groups = of.layout().leads().map(|place| of.layout().group(place).collect::<BTreeSet<NodeId>>());
    groups.reduce(|all, group| all.intersection(&group).copied().collect()).unwrap_or_default()
}
