//! Whether targets are as full as each other, as far as copies can move between them, and whether nothing moves any more.

use std::collections::{BTreeMap, BTreeSet};

use protocol::id::{ChunkId, GroupId, NodeId};
use protocol::redundancy::Redundancy;
use protocol::time::{Instant, Span};

use super::{NodeMachine, World};

/// What two targets may differ by, in thousandths of what each has room for, whatever they hold.
const FAR: u64 = 60;
/// The same when the fuller one is nearly full, in thousandths.
const NEARLY_FULL: u64 = 850;
const FAR_WHEN_FULL: u64 = 30;
/// And in chunks: they differ in size.
const CHUNKS: u64 = 12;

/// How full a target is.
#[derive(Clone, Copy)]
struct Fill {
    live: u64,
    room: u64,
    chunks: u64,
}

impl Fill {
    fn part(self, bytes: u64) -> u64 {
        bytes.saturating_mul(1_000) / self.room.max(1)
    }

    /// Whether it is too much fuller than another.
    fn is_far_above(self, other: Self) -> bool {
        let full = self.part(self.live);
        let least = Self { room: self.room.min(other.room), ..self };
        let chunk = (self.live / self.chunks.max(1)).max(other.live / other.chunks.max(1));
        let few = least.part(CHUNKS * chunk);
        let far = if full >= NEARLY_FULL { FAR_WHEN_FULL.max(few) } else { FAR.max(full / 7).max(few) };
        full > other.part(other.live) + far
    }
}

/// The good copies of the chunks of a group, and in how many failure domains each is wanted.
type Copies = BTreeMap<ChunkId, (Vec<NodeId>, usize)>;

impl World<'_> {
    /// A copy was put on an emptier target.
    pub(super) fn moves(&mut self) {
        (self.whole.moved, self.whole.made) = (Some(self.now), Some(self.now));
        self.outcome.moved += 1;
    }

    /// What is not level, and could be; or that copies moved a moment ago.
    pub(super) fn not_level(&self) -> Option<String> {
        let map = &self.maps[self.maps.len() - 1];
        let far = map.group_ids().find_map(|group| self.not_level_in(group));
        let quiet = self.scenario.config.census_interval.times(6) + Span::from_millis(500);
        let moves = |at: &Instant| self.now.since(*at) < quiet;
        far.or_else(|| self.whole.moved.filter(moves).map(|at| format!("a copy moved at {at}")))
    }

    fn not_level_in(&self, group: GroupId) -> Option<String> {
        let map = &self.maps[self.maps.len() - 1];
        let members: Vec<NodeId> = map.members(group).map(|member| member.id).collect();
        let fills: BTreeMap<NodeId, Fill> =
            members.iter().filter_map(|member| Some((*member, self.fill_of(*member)?))).collect();
        let is_far = |from: &NodeId, to: &NodeId| match (fills.get(from), fills.get(to)) {
            (Some(from), Some(to)) => from.is_far_above(*to),
            _ => false,
        };
        let pairs = members.iter().flat_map(|from| members.iter().map(move |to| (*from, *to)));
        // In a group with no more domains than copies, copies stay in their domains, also of chunks that have fewer.
        let may_cross = map.count_domains(&members) > map.redundancy().pieces();
        let may = |(from, to): &(NodeId, NodeId)| may_cross || map.domain(*from) == map.domain(*to);
        let pairs: Vec<(NodeId, NodeId)> = pairs.filter(may).filter(|(from, to)| is_far(from, to)).collect();
        if pairs.is_empty() {
            return None;
        }
        let copies = self.copies_of(group)?;
        pairs.into_iter().filter(|(_, to)| self.has_room(*to)).find_map(|(from, to)| {
            let could = |(id, (holders, _)): (&ChunkId, &(Vec<NodeId>, usize))| {
                let others = holders.iter().filter(|holder| **holder != from);
                let apart =
                    others.filter_map(|holder| map.domain(*holder)).all(|domain| Some(domain) != map.domain(to));
                (holders.contains(&from) && !holders.contains(&to) && apart).then_some(*id)
            };
            let id = copies.iter().find_map(could)?;
            let [one, other] = [from, to].map(|node| fills.get(&node).map_or(0, |fill| fill.part(fill.live)));
            Some(format!("{from} is full to {one} thousandths, and {to} to {other}, where {id:?} could be"))
        })
    }

    /// Of a target whose disk takes chunks.
    fn fill_of(&self, id: NodeId) -> Option<Fill> {
        match self.nodes.get(&id).map(|node| &node.machine) {
            Some(NodeMachine::Target(_, disk)) if !disk.has_failed() => {
                let space = disk.space();
                let live = space.written.saturating_sub(space.dead);
                Some(Fill { live, room: space.written + space.free, chunks: disk.chunks().0 })
            }
            _ => None,
        }
    }

    /// Nothing when one of its chunks has too few or too many copies: then others have to be made first, or to go, or neither can be.
    fn copies_of(&self, group: GroupId) -> Option<Copies> {
        let map = &self.maps[self.maps.len() - 1];
        let members: BTreeSet<NodeId> = map.members(group).map(|member| member.id).collect();
        let mut copies = Copies::new();
        for keeper in map.keepers(group) {
            let Some(NodeMachine::Target(_, disk)) = self.nodes.get(&keeper).map(|node| &node.machine) else {
                continue;
            };
            for id in disk.held().into_iter().filter(|id| map.group_of(id) == group) {
                let wanted = disk.redundancy(&id.whole(), map.redundancy()).map_or(1, Redundancy::pieces);
                let (holders, most) = copies.entry(id.whole()).or_default();
                holders.push(keeper);
                *most = (*most).max(wanted);
            }
        }
        let newest = self.maps.len() - 1;
        let is_right = |(holders, wanted): &(Vec<NodeId>, usize)| {
            holders.len() == *wanted
                && self.spread(newest, holders) == *wanted
                && holders.iter().all(|holder| members.contains(holder))
        };
        copies.values().all(is_right).then_some(copies)
    }
}
