//! The cluster map that a run begins with, and the next one, where targets are lost.

use std::collections::{BTreeMap, BTreeSet};

use protocol::id::{ClusterId, Epoch, GroupId, NodeId};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::planner::{Wish, plan};
use protocol::redundancy::Redundancy;
use protocol::time::Span;

use super::RUN;
use crate::perf::queue::LAST;
use crate::perf::setup::Setup;
use crate::perf::setup::profile::Profile;
use crate::perf::setup::repair::{Loss, Lost};

/// The maps of a run.
#[derive(Debug)]
pub(in crate::perf) struct Maps {
    pub(in crate::perf) first: ClusterMap,
    /// That without the targets that are lost.
    pub(in crate::perf) next: Option<ClusterMap>,
    /// For each cell the targets of the group that begins with it, in the order of their bits: by the first map, then by the next.
    pub(super) members: Vec<Box<[u32]>>,
    /// Where those by the next map begin.
    pub(super) next_begins: u32,
}

impl Maps {
    pub(super) fn new(first: ClusterMap, next: Option<ClusterMap>) -> Self {
        let mut members = members_of(&first);
        let next_begins = members.len() as u32;
        members.extend(next.iter().flat_map(members_of));
        Self { first, next, members, next_begins }
    }

    /// The targets that are lost.
    pub(in crate::perf) fn lost(&self) -> Vec<NodeId> {
        let is_lost = |id: &NodeId| self.next.as_ref().is_some_and(|next| next.target(*id).is_none());
        self.first.targets().map(|target| target.id).filter(is_lost).collect()
    }
}

fn members_of(map: &ClusterMap) -> Vec<Box<[u32]>> {
    let last = map.placement().layout().cells.iter().map(|cell| cell.id).max().unwrap_or(0);
    (0..=last).map(|cell| map.members(GroupId(cell)).map(|target| target.id.0).collect()).collect()
}

/// The map that a run begins with.
pub(super) fn first(setup: &Setup) -> Result<ClusterMap, String> {
    let copies = u32::from(setup.machines.copies()).max(1);
    let last = setup.warm_up + setup.length + setup.product().map_or(Span::ZERO, |profile| profile.drain);
    if last.as_nanos() >= LAST {
        return Err(format!("warm_up + length = {} s: choose 4 hours at most", last.as_nanos() / 1_000_000_000));
    }
    if setup.initiators == 0 || setup.nodes() >= RUN {
        return Err(format!("initiators = {}: choose one at least, and {RUN} nodes at most", setup.initiators));
    }
    if setup.targets == 0 || !setup.targets.is_multiple_of(copies) {
        return Err(format!("targets = {}: choose a multiple of the {copies} copies", setup.targets));
    }
    if setup.group > setup.targets {
        return Err(format!("group = {} is larger than the cluster of {} targets", setup.group, setup.targets));
    }
    if setup.group < copies || !setup.group.is_multiple_of(copies) {
        return Err(format!("group = {}: choose a multiple of the {copies} copies", setup.group));
    }
    let servers = setup.product().map_or(0, |profile| profile.servers);
    let domain = |n: u32| n.checked_rem(servers).unwrap_or(n) as u16;
    let entry = |n| TargetEntry { id: NodeId(n), domain: domain(n), capacity: 1 << 40 };
    let entries = (0..setup.targets).map(entry).collect();
    let cells = (setup.group / copies) as usize;
    let map =
        ClusterMap::new(ClusterId(1), Epoch(1), copies as u8, cells, entries).map_err(|error| error.to_string())?;
    let lanes = setup.product().map_or(1, |profile| profile.lanes.max(1));
    let aggregators = 0..setup.product().map_or(0, |profile| profile.aggregators);
    Ok(map.with_aggregators(aggregators.map(|n| NodeId(setup.targets + n * lanes))))
}

/// The map after a loss.
pub(super) fn without(map: &ClusterMap, profile: &Profile, loss: Loss) -> Result<ClusterMap, String> {
    let first = map.targets().map(|target| target.id).min();
    let domain = first.and_then(|first| map.domain(first));
    let is_lost = |target: &&TargetEntry| match loss.what {
        Lost::Target => Some(target.id) == first,
        Lost::Server => Some(target.domain) == domain,
    };
    let wish = Wish {
        targets: map.targets().filter(|target| !is_lost(target)).map(|t| (t.id, t.clone())).collect(),
        drained: BTreeSet::new(),
        replacements: BTreeMap::new(),
        copies: map.copies,
        most: Redundancy::Copies(map.copies),
        group_cells: map.placement().layout().group_cells,
        overlap: profile.overlap,
        level: false,
    };
    plan(map, &wish, 0).map(|plan| plan.map).map_err(|error| format!("there is no map without what is lost: {error}"))
}
