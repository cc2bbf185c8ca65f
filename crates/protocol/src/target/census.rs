//! A census: the stewards of its groups ask this target what it holds, and it is itself the steward of some groups.

use super::{Bug, Effect, Event, IgnoredReason, Message, NodeId, Pending, Target, TxnId};
use crate::census::Holding;
use crate::config::Config;
use crate::health::Health;
use crate::id::{ChunkId, Epoch, GroupId};
use crate::map::ClusterMap;
use crate::rng::mix;
use crate::steward::{Context, Steward};
use crate::time::{Instant, Span};
use crate::wire::{Ack, CensusRequest, Fill};

/// The stewards of this target's groups, as far as it is one or waits to become one.
#[derive(Debug, Default)]
pub(super) struct Census {
    /// The map by which the groups are known; none yet.
    map: Option<ClusterMap>,
    groups: Vec<Stewardship>,
}

/// What this target does for a group that it belongs to.
#[derive(Debug)]
struct Stewardship {
    group: GroupId,
    /// Members that are to be the steward rather than this one.
    before: Vec<NodeId>,
    /// When one of these asked last what is held.
    asked_at: Instant,
    steward: Option<Box<Steward>>,
}

impl Stewardship {
    fn new(group: GroupId, own: NodeId, members: impl Iterator<Item = NodeId>, now: Instant) -> Self {
        let rank = |node: NodeId| mix(u64::from(group.0) << 32 ^ u64::from(node.0));
        let before = members.filter(|member| rank(*member) < rank(own)).collect();
        Self { group, before, asked_at: now, steward: None }
    }

    /// When this target becomes the steward, if no member does that is to be it rather. The steward pauses and rests
    /// for less long than that.
    fn due(&self, config: &Config) -> Instant {
        self.asked_at + config.census_interval.times(u64::from(config.steward_after) * self.before.len() as u64)
    }

    fn next_deadline(&self, config: &Config) -> Instant {
        self.steward.as_ref().map_or_else(|| self.due(config), |steward| steward.next_deadline())
    }
}

impl Census {
    pub(super) fn next_deadline(&self, config: &Config) -> Option<Instant> {
        if config.census_interval == Span::ZERO {
            return None;
        }
        let next = self.groups.iter().map(|group| group.next_deadline(config)).min();
        // The groups are looked up by the first wake.
        Some(if self.map.is_none() { Instant::ZERO } else { next? })
    }
}

impl Target {
    /// What this target knows of the groups of which it is the steward.
    pub fn health(&self) -> impl Iterator<Item = (GroupId, Health)> {
        let stewards = self.census.groups.iter().filter_map(|group| group.steward.as_ref());
        stewards.filter_map(|steward| Some((steward.group(), steward.health()?)))
    }

    pub(super) fn wake_census(&mut self) {
        if self.config.census_interval == Span::ZERO {
            return;
        }
        if self.census.map.as_ref().map(|map| map.epoch) != Some(self.setup.map.epoch) {
            self.look_up_groups();
        }
        for nth in 0..self.census.groups.len() {
            let group = &mut self.census.groups[nth];
            if group.next_deadline(&self.config) > self.now {
                continue;
            }
            if group.steward.is_none() {
                let seed = self.secrets.next_u64();
                group.steward = Some(Box::new(Steward::new(group.group, &self.setup.map, seed, self.now)));
            }
            self.with_steward(nth, |steward, context| steward.wake(context));
        }
    }

    fn look_up_groups(&mut self) {
        let (own, map, now) = (self.setup.id, &self.setup.map, self.now);
        let mine = map.group_ids().filter(|group| map.members(*group).any(|member| member.id == own));
        let groups = mine.map(|group| Stewardship::new(group, own, map.members(group).map(|member| member.id), now));
        let mut groups: Vec<Stewardship> = groups.collect();
        // A steward that is the first in line goes on with what it knows; one that stood in for another may be none any
        // more.
        let before = core::mem::take(&mut self.census);
        if let Some(older) = &before.map {
            for steward in before.groups.into_iter().filter_map(|group| group.steward) {
                if let Some(of) = groups.iter_mut().find(|of| of.group == steward.group() && of.before.is_empty()) {
                    of.steward = Some(Box::new(steward.by_newer_map(map, older, now)));
                }
            }
        }
        self.census = Census { map: Some(map.clone()), groups };
    }

    fn with_steward<R>(&mut self, nth: usize, act: impl FnOnce(&mut Steward, &mut Context<'_>) -> R) -> Option<R> {
        let steward = self.census.groups.get_mut(nth)?.steward.as_mut()?;
        let bug = match self.setup.bug {
            Some(Bug::Steward(bug)) => Some(bug),
            _ => None,
        };
        let mut context = Context { now: self.now, map: &self.setup.map, config: &self.config, bug, out: Vec::new() };
        let result = act(steward, &mut context);
        for (to, message) in context.out {
            self.deliver(to, &message);
        }
        Some(result)
    }

    /// Offers an answer to the stewards of this target, one after the other, until one of them has asked for it.
    fn a_steward_takes(&mut self, take: impl Fn(&mut Steward, &mut Context<'_>) -> bool) -> bool {
        (0..self.census.groups.len()).any(|nth| self.with_steward(nth, &take).unwrap_or(false))
    }

    /// Says something of a census to a target, which may be this one.
    pub(super) fn deliver(&mut self, to: NodeId, message: &Message) {
        let (own, epoch) = (self.setup.id, self.setup.map.epoch);
        match message {
            _ if to != own => self.send(to, message),
            Message::Census(request) => self.census_asked(own, epoch, *request),
            Message::Counted { txn, holding } => self.counted(own, epoch, *txn, holding),
            Message::Restore { txn, id, wanted, holders } => {
                self.restore(own, *txn, (*id, *wanted), holders.clone(), None);
            }
            Message::Fill { txn } => self.fill_asked(own, *txn),
            Message::Filled { txn, fill } => self.filled(own, *txn, *fill),
            Message::Move { txn, id, wanted, to } => self.move_copy(own, epoch, *txn, (*id, *wanted), *to),
            Message::Probe { txn, id, wanted } => self.probe(own, *txn, *id, *wanted),
            Message::Surplus { txn, id, wanted, note } => self.surplus(own, epoch, (*txn, *id, *wanted), *note),
            Message::Noted { txn, note } => self.noted(own, *txn, *note),
            Message::Ack { txn, ack } => drop(self.order_acked(own, *txn, *ack)),
            other => debug_assert!(false, "{} is nothing of a census", other.name()),
        }
    }

    /// What is held here is asked for.
    pub(super) fn census_asked(&mut self, from: NodeId, epoch: Epoch, request: CensusRequest) {
        if epoch != self.setup.map.epoch {
            // Chunks may be of other groups.
            return self.event(Event::Ignored(IgnoredReason::OtherMap));
        }
        if let Some(group) = self.census.groups.iter_mut().find(|group| group.group == request.group)
            && group.before.contains(&from)
        {
            group.asked_at = self.now;
            group.steward = None;
        }
        let CensusRequest { txn, group, range, salt, after } = request;
        let map = self.setup.map.clone();
        let pending = Pending::Census { from, txn, epoch };
        self.begin_effect(Effect::Census { map, group, range, salt, after }, pending);
    }

    /// What is held here is known.
    pub(super) fn census_counted(&mut self, to: NodeId, txn: TxnId, epoch: Epoch, holding: Holding) {
        if epoch == self.setup.map.epoch {
            self.deliver(to, &Message::Counted { txn, holding });
        } else {
            self.event(Event::Ignored(IgnoredReason::OtherMap));
        }
    }

    /// A target says what it holds.
    pub(super) fn counted(&mut self, from: NodeId, epoch: Epoch, txn: TxnId, holding: &Holding) {
        let is_current = epoch == self.setup.map.epoch;
        let taken = is_current && self.a_steward_takes(|steward, context| steward.counted(context, from, txn, holding));
        if !taken {
            self.event(Event::Ignored(IgnoredReason::Late));
        }
    }

    /// The copy here was damaged, and is gone: another need not wait until a sweep finds that.
    pub(super) fn say_gone(&mut self, id: ChunkId) {
        if self.config.census_interval == Span::ZERO {
            return;
        }
        let (own, map) = (self.setup.id, self.setup.map.clone());
        let others = map.members(map.group_of(&id)).map(|member| member.id).filter(|member| *member != own);
        others.for_each(|member| self.send(member, &Message::Gone { id }));
        self.missing.hurry(self.now);
        self.copy_gone(map.epoch, &id);
    }

    /// A member of a chunk's group has no copy of it any more.
    pub(super) fn copy_gone(&mut self, epoch: Epoch, id: &ChunkId) {
        if epoch != self.setup.map.epoch {
            return self.event(Event::Ignored(IgnoredReason::OtherMap));
        }
        // Every member hears it, and one is the steward.
        let group = self.setup.map.group_of(id);
        if let Some(nth) = self.census.groups.iter().position(|of| of.group == group) {
            self.with_steward(nth, |steward, context| steward.copy_gone(context, *id));
        }
    }

    /// A target has been started, perhaps with another disk.
    pub(super) fn look_what_is_there(&mut self, of: NodeId) {
        for nth in 0..self.census.groups.len() {
            self.with_steward(nth, |steward, context| steward.is_back(context, of));
        }
    }

    /// A target noted a moment, of whose copies one is to go.
    pub(super) fn noted(&mut self, from: NodeId, txn: TxnId, note: u64) {
        if !self.a_steward_takes(|steward, context| steward.noted(context, from, txn, note)) {
            self.event(Event::Ignored(IgnoredReason::Late));
        }
    }

    /// A target says how full it is.
    pub(super) fn filled(&mut self, from: NodeId, txn: TxnId, fill: Fill) {
        if !self.a_steward_takes(|steward, _| steward.filled(from, txn, fill)) {
            self.event(Event::Ignored(IgnoredReason::Late));
        }
    }

    /// Whether an answer is for a steward of this target.
    pub(super) fn order_acked(&mut self, from: NodeId, txn: TxnId, ack: Ack) -> bool {
        self.a_steward_takes(|steward, context| steward.acked(context, from, txn, ack))
    }
}
