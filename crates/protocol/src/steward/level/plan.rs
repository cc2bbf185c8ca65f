//! Between which members copies move, and how much at once.

use std::collections::{BTreeMap, BTreeSet};

use super::super::copies::{Copies, Copy};
use super::{Bug, Context};
use crate::id::NodeId;
use crate::wire::Fill;

/// Of these are how full a member is, and how far others may be from it.
const WHOLE: u64 = 1_000_000;
/// What differs by less is level: then nothing begins to move.
const FAR: u64 = 50_000;
/// The same as a part of what the fuller one has: groups that are due as much differ by hash.
const FAR_OF: u64 = 8;
/// What differs by no more is left as it is, also where much was to move.
const NEAR: u64 = 20_000;
/// Both are less for a member that is nearly full: it is relieved before it takes no more.
const NEARLY_FULL: u64 = 850_000;
const FAR_WHEN_FULL: u64 = 20_000;
const NEAR_WHEN_FULL: u64 = 10_000;
/// So many chunks may be between two at least before any moves, and half of it in the end, where disks are small: chunks differ in size.
const CHUNKS: u64 = 8;
const CHUNKS_WHEN_FULL: u64 = 4;

/// A member that gives and takes.
#[derive(Clone, Debug)]
struct Member {
    id: NodeId,
    domain: u16,
    fill: Fill,
    /// Bytes that may leave it, or come to it, before it is asked again: others may have some moved as well.
    gives: u64,
    takes: u64,
    is_outlier: bool,
}

/// What may move in a sweep.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    members: Vec<Member>,
    /// Whether chunks may be in others' domains than those of all their copies.
    may_cross: bool,
    restless: bool,
}

fn part(bytes: u64, room: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(WHOLE) / u128::from(room.max(1))).unwrap_or(u64::MAX)
}

impl Member {
    fn full(&self) -> u64 {
        part(self.fill.live, self.fill.room)
    }

    /// The mean of its chunks.
    fn chunk(&self) -> u64 {
        (self.fill.live / self.fill.chunks.max(1)).max(1)
    }

    /// From which difference on its copies move to another, and down to which.
    fn margins(&self, to: &Self) -> (u64, u64) {
        let (full, room) = (self.full(), self.fill.room.min(to.fill.room));
        let chunks = |count: u64| part(count * self.chunk().max(to.chunk()), room);
        if full >= NEARLY_FULL {
            let far = FAR_WHEN_FULL.max(chunks(CHUNKS_WHEN_FULL));
            return (far, NEAR_WHEN_FULL.max(chunks(CHUNKS_WHEN_FULL / 2)));
        }
        (FAR.max(full / FAR_OF).max(chunks(CHUNKS)), NEAR.max(chunks(CHUNKS / 2)))
    }
}

impl Plan {
    pub(super) fn new(
        context: &Context<'_>,
        members: &[NodeId],
        fills: &BTreeMap<NodeId, Fill>,
        full: &[NodeId],
        outliers: &mut BTreeSet<NodeId>,
    ) -> Self {
        let member = |id: &NodeId| {
            let fill = fills.get(id).copied().filter(|fill| fill.room > 0)?;
            let domain = context.map.domain(*id)?;
            Some(Member { id: *id, domain, fill, gives: 0, takes: 0, is_outlier: false })
        };
        let members: Vec<Member> = members.iter().filter_map(member).collect();
        let domains = context.map.count_domains(&members.iter().map(|member| member.id).collect::<Vec<_>>());
        let may_cross = domains > context.map.redundancy().pieces();
        let restless = context.bug == Some(Bug::MoveToAndFro);
        let mut plan = Self { members, may_cross, restless };
        plan.find_outliers(outliers);
        if plan.members.iter().any(|member| member.is_outlier) {
            plan.allow(context, full);
        }
        plan
    }

    /// Finds the members that are far from others, and keeps those that were, until they are near. Of two that are far
    /// from each other it takes the one that is farther from the mean. If it took both, all others would be levelled as
    /// well as soon as one is added.
    fn find_outliers(&mut self, outliers: &mut BTreeSet<NodeId>) {
        let sum =
            |of: fn(&Fill) -> u64| self.members.iter().map(|member| of(&member.fill)).fold(0, u64::saturating_add);
        let mean = part(sum(|fill| fill.live), sum(|fill| fill.room));
        let mut still = BTreeSet::new();
        for (from, to) in self.pairs() {
            let (one, other) = (&self.members[from], &self.members[to]);
            let (far, near) = self.margins(one, other);
            let differ = one.full() - other.full();
            if differ > far {
                let is_above = one.full().saturating_sub(mean) > mean.saturating_sub(other.full());
                still.insert(if is_above { one.id } else { other.id });
            }
            if differ > near {
                still.extend([one.id, other.id].into_iter().filter(|id| outliers.contains(id)));
            }
        }
        self.members.iter_mut().for_each(|member| member.is_outlier = still.contains(&member.id));
        *outliers = still;
    }

    /// How much may move until members are asked again. All groups that a member is in may move as much: half of what it differs by is for
    /// all of them.
    fn allow(&mut self, context: &Context<'_>, full: &[NodeId]) {
        let mut groups: BTreeMap<NodeId, u64> = BTreeMap::new();
        for group in context.map.group_ids() {
            context.map.members(group).for_each(|member| *groups.entry(member.id).or_default() += 1);
        }
        for (from, to) in self.pairs() {
            let differ = self.members[from].full() - self.members[to].full();
            for nth in [from, to] {
                let member = &mut self.members[nth];
                let of = u128::from(differ) * u128::from(member.fill.room) / u128::from(WHOLE);
                let shared = 2 * groups.get(&member.id).copied().unwrap_or(1);
                let some = u64::try_from(of / u128::from(shared)).unwrap_or(u64::MAX).max(1);
                if nth == from {
                    member.gives = member.gives.max(some);
                } else if !full.contains(&member.id) {
                    member.takes = member.takes.max(some);
                }
            }
        }
    }

    /// The pairs of members of which one is much fuller than the other, by their places, where copies may move.
    fn pairs(&self) -> Vec<(usize, usize)> {
        let all = (0..self.members.len()).flat_map(|from| (0..self.members.len()).map(move |to| (from, to)));
        let (members, may_cross) = (&self.members, self.may_cross);
        let is_fuller = |(from, to): &(usize, usize)| members[*from].full() > members[*to].full();
        let may = |(from, to): &(usize, usize)| may_cross || members[*from].domain == members[*to].domain;
        all.filter(is_fuller).filter(may).collect()
    }

    fn margins(&self, from: &Member, to: &Member) -> (u64, u64) {
        if self.restless { (0, 0) } else { from.margins(to) }
    }

    /// By how much one is fuller than another, when a copy may move now.
    fn differ(&self, from: &Member, to: &Member) -> Option<u64> {
        let differ = from.full().checked_sub(to.full())?;
        let (_, near) = self.margins(from, to);
        let may = (from.is_outlier || to.is_outlier) && from.gives > 0 && to.takes > 0;
        (may && differ > near).then_some(differ)
    }

    /// Whether something may move.
    pub(super) fn is_open(&self) -> bool {
        let pairs = self.pairs();
        pairs.into_iter().any(|(from, to)| self.differ(&self.members[from], &self.members[to]).is_some())
    }

    /// Which copy of a chunk moves to which member, if one may: from the fullest to the emptiest, so that copies stay
    /// in distinct failure domains.
    pub(super) fn choose(&mut self, copies: &Copies<'_>, bug: Option<Bug>) -> Option<(Copy, NodeId)> {
        let holds = |id: NodeId| copies.all.iter().any(|copy| copy.holder == id);
        let is_apart = |from: &Member, to: &Member| {
            let others = copies.all.iter().filter(|copy| copy.holder != from.id);
            others.filter_map(|copy| copies.map.domain(copy.holder)).all(|domain| domain != to.domain)
        };
        let mut best: Option<(u64, usize, usize)> = None;
        for (nth, from) in self.members.iter().enumerate().filter(|(_, member)| holds(member.id)) {
            for (other, to) in self.members.iter().enumerate().filter(|(_, member)| !holds(member.id)) {
                let differ = self.differ(from, to);
                let differ = differ.filter(|_| bug == Some(Bug::MoveIntoDomain) || is_apart(from, to));
                best = best.max(differ.map(|differ| (differ, nth, other)));
            }
        }
        let (_, from, to) = best?;
        let (id, chunk) = (self.members[from].id, self.members[from].chunk());
        let copy = copies.all.iter().find(|copy| copy.holder == id).copied()?;
        let giver = &mut self.members[from];
        giver.gives = giver.gives.saturating_sub(chunk);
        giver.fill.live = giver.fill.live.saturating_sub(chunk);
        let taker = &mut self.members[to];
        taker.takes = taker.takes.saturating_sub(chunk);
        taker.fill.live += chunk;
        Some((copy, self.members[to].id))
    }
}

/// How much fuller a member is than the emptiest, in steps that are as large as what is level.
pub(in super::super) fn class_of(fills: &BTreeMap<NodeId, Fill>, member: NodeId) -> u64 {
    let full = |fill: &Fill| part(fill.live, fill.room);
    let least = fills.values().filter(|fill| fill.room > 0).map(full).min().unwrap_or(0);
    fills.get(&member).map_or(0, |fill| (full(fill) - least.min(full(fill))) / FAR)
}
