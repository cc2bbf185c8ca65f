//! The leader of a group: grants windows on behalf of the other members, which keep the last word (`docs/leader.md`).
//!
//! What a leader knows of its group is a guess, put right by reports. A wrong guess costs time: an initiator that was granted what a
//! member cannot keep negotiates directly.

use std::collections::BTreeMap;

use super::recent_grants::RecentGrants;
use super::{Answer, Effect, Event, Instant, Message, NodeId, Pending, Span, Target, TxnId, Window, is_newer, limits};
use crate::calendar::Calendar;
use crate::choose::{Bids, Offer, Offers, windows};
use crate::estimate::size_class;
use crate::id::GroupId;
use crate::machine::{Destination, Held, IgnoredReason};
use crate::map::ClusterMap;
use crate::wire::{Direction, Grant, GrantedWindow, Holds, LeadRequest, Leading, Report, Seek};

/// A leader that is asked claims its group again after so many times [`Config::late`](crate::config::Config::late), so that its
/// members report.
const CLAIM: u64 = 5;
/// Claims without an answer after which nothing more is granted of a member, or asked of a leader.
const LEASE: u64 = 3;
/// The size of the copy for which members report what a write takes.
const REPORTED: u32 = limits::CHUNK_BYTES >> 3;
/// Copies after which a member reports although the leader's estimate was about right.
const UNREPORTED: u8 = 15;
/// A leader is about right when a copy is durable so soon after or before what it granted: a part of what it takes by itself.
const ABOUT: u64 = 2;

/// What a target knows of one of its groups.
#[derive(Debug, Default)]
struct Group {
    term: u32,
    /// Its leader, and when the last message of that leader came.
    leader: Option<(NodeId, Instant)>,
    /// What we know of its members, while we lead it.
    leadership: Option<Leadership>,
}

#[derive(Debug)]
struct Leadership {
    views: BTreeMap<NodeId, View>,
    /// When we were asked last.
    asked: Instant,
    claim_at: Instant,
}

/// A member as its leader sees it.
#[derive(Debug)]
struct View {
    reported: Instant,
    inward: Calendar,
    /// Until when transfers that this leader did not grant occupy the port.
    port_busy_until: Instant,
    disk_free: Instant,
    /// For each size class, what a write keeps the disk by, and what it takes by itself.
    writes: BTreeMap<u32, (Span, Span)>,
    rate: u64,
    free: u64,
    outward: Calendar,
    read_free: Instant,
}

/// Answers to a seek, gathered.
#[derive(Debug)]
struct Sought {
    until: Instant,
    holders: Vec<(NodeId, Instant, Holds)>,
}

/// What a target keeps as a leader and as a member.
#[derive(Debug, Default)]
pub(super) struct Lead {
    groups: BTreeMap<GroupId, Group>,
    sought: BTreeMap<TxnId, Sought>,
    /// To which initiators windows were granted lately, and for which round.
    recent_grants: RecentGrants,
    /// Copies received since the last report to the leader.
    unreported: u8,
}

impl Lead {
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let claims =
            self.groups.values().filter_map(|g| Some(g.leadership.as_ref()?.claim_at)).filter(|at| *at < Instant::FAR);
        claims.chain(self.sought.values().map(|s| s.until)).min()
    }

    /// An initiator does not use what was granted.
    pub(super) fn release(&mut self, txn: TxnId) {
        let leadership = self.groups.values_mut().filter_map(|group| group.leadership.as_mut());
        for view in leadership.flat_map(|leadership| leadership.views.values_mut()) {
            view.inward.remove(txn);
            view.outward.remove(txn);
        }
    }

    /// Whether windows were granted for this round of a transaction, or for a later one.
    fn has_granted(&self, initiator: NodeId, txn: TxnId, round: u8) -> bool {
        self.recent_grants.get(txn).is_some_and(|(to, last)| to == initiator && !is_newer(round, last))
    }

    /// Forgets which groups it led, and which leaders it followed: another map has other groups.
    pub(super) fn forget(&mut self) {
        self.groups.clear();
        self.sought.clear();
    }
}

impl View {
    fn of(now: Instant, arrived: Instant, report: &Report) -> Self {
        let mut view = Self {
            reported: now,
            inward: Calendar::default(),
            port_busy_until: now,
            disk_free: now,
            writes: BTreeMap::new(),
            rate: 1,
            free: 0,
            outward: Calendar::default(),
            read_free: now,
        };
        view.update(now, arrived, report);
        view
    }

    fn update(&mut self, now: Instant, arrived: Instant, report: &Report) {
        self.reported = now;
        self.port_busy_until = arrived + report.port;
        self.disk_free = arrived + report.disk;
        self.writes.insert(size_class(report.size), (report.each, report.whole));
        self.rate = report.rate.max(1);
        self.free = report.free;
    }

    /// What a write of `size` keeps the disk by, and takes by itself: from the nearest size that was reported. A smaller one may take
    /// so much less, for all that is known: a member without a report is to be tried.
    fn write(&self, size: u32) -> (Span, Span) {
        let class = size_class(size);
        let nearest = self.writes.iter().min_by_key(|(known, _)| known.abs_diff(class));
        let less = |known: u32| 1 << known.saturating_sub(class);
        nearest.map_or((Span::ZERO, Span::ZERO), |(known, (each, whole))| {
            (each.div(less(*known)), whole.div(less(*known)))
        })
    }

    /// When a copy should be durable whose transfer ends at `end`.
    fn durable(&self, end: Instant, size: u32) -> Instant {
        let (each, whole) = self.write(size);
        (self.disk_free.max(end) + each).max(end + whole)
    }
}

impl Target {
    pub(super) fn leading(&mut self, from: NodeId, message: Leading) {
        match message {
            Leading::Request(request) => self.lead_request(from, &request),
            Leading::Seek(seek) => {
                let id = seek.id;
                self.begin_effect(Effect::Lookup { id, promise: None }, Pending::Seek { from, seek });
            }
            Leading::Holds(holds) => self.holds(from, holds),
            Leading::Grant(grant) => self.on_grant(from, &grant),
            Leading::Claim { group, term } => self.claimed(from, group, term),
            Leading::Report(report) => self.reported(from, &report),
        }
        self.lead_due = self.lead.next_deadline();
    }

    fn lease(&self) -> Span {
        self.config.late.times(CLAIM * LEASE)
    }

    fn is_member(&self, id: GroupId, node: NodeId) -> bool {
        self.setup.map.is_group(id) && self.setup.map.members(id).any(|t| t.id == node)
    }

    /// Makes sure that we lead the group: not when we are no member, or when one with a lower id does.
    fn lead(&mut self, id: GroupId) -> bool {
        let (own, now, lease) = (self.setup.id, self.now, self.lease());
        if !self.is_member(id, own) {
            return false;
        }
        let group = self.lead.groups.entry(id).or_default();
        if group.leadership.is_none() {
            if group.leader.is_some_and(|(leader, claimed)| leader < own && now.since(claimed) < lease) {
                return false;
            }
            group.term = group.term.saturating_add(1);
            group.leadership = Some(Leadership { views: BTreeMap::new(), asked: now, claim_at: now });
        }
        group.leader = Some((own, now));
        let Some(leadership) = &mut group.leadership else { return false };
        leadership.asked = now;
        if leadership.claim_at <= now || leadership.claim_at == Instant::FAR {
            self.claim(id);
        }
        true
    }

    /// Tells the members that we lead them.
    fn claim(&mut self, id: GroupId) {
        let next = self.now + self.config.late.times(CLAIM);
        let Some(group) = self.lead.groups.get_mut(&id) else { return };
        let Some(leadership) = &mut group.leadership else { return };
        leadership.claim_at = next;
        let claim = Message::Leading(Leading::Claim { group: id, term: group.term });
        let own = self.setup.id;
        let others: Vec<NodeId> = self.setup.map.members(id).map(|t| t.id).filter(|member| *member != own).collect();
        others.into_iter().for_each(|member| self.send(member, &claim));
        self.report(id, own, REPORTED);
    }

    fn claimed(&mut self, from: NodeId, id: GroupId, term: u32) {
        if !self.is_member(id, self.setup.id) || !self.is_member(id, from) {
            return self.event(Event::Ignored(IgnoredReason::Invalid));
        }
        let now = self.now;
        let group = self.lead.groups.entry(id).or_default();
        if group.leadership.is_some() && self.setup.id < from {
            // The lowest leads; it says so again, in a later term.
            group.term = group.term.max(term).saturating_add(1);
            return self.claim(id);
        }
        if term >= group.term {
            group.term = term;
            group.leadership = None;
            group.leader = Some((from, now));
        }
        // A claim with a term that is over is answered with the later one.
        self.report(id, from, REPORTED);
    }

    /// Tells the leader of a group how busy we are.
    fn report(&mut self, id: GroupId, leader: NodeId, size: u32) {
        let term = self.lead.groups.get(&id).map_or(0, |group| group.term);
        let (each, whole) = self.write_times(size);
        let report = Report {
            group: id,
            term,
            port: self.others_end(leader).max(self.behind(false)).since(self.now),
            disk: self.disk_backlog(),
            size,
            each,
            whole,
            rate: self.link.get(self.now).max(1),
            free: self.free(),
        };
        self.lead.unreported = 0;
        if leader == self.setup.id {
            self.reported(leader, &report);
        } else {
            self.send(leader, &Message::Leading(Leading::Report(report)));
        }
    }

    fn reported(&mut self, from: NodeId, report: &Report) {
        let (now, arrived, id) = (self.now, self.arrived, report.group);
        let member = self.is_member(id, from);
        let Some(group) = self.lead.groups.get_mut(&id).filter(|group| member && group.leadership.is_some()) else {
            return self.event(Event::Ignored(IgnoredReason::Late));
        };
        if report.term > group.term {
            group.term = report.term.saturating_add(1);
            return self.claim(id);
        }
        if let Some(leadership) = &mut group.leadership {
            let view = leadership.views.entry(from).or_insert_with(|| View::of(now, arrived, report));
            view.update(now, arrived, report);
        }
    }

    fn lead_request(&mut self, from: NodeId, request: &LeadRequest) {
        let (txn, round) = (request.txn, request.round);
        // The network doubled it, or delayed it: a second answer would be read as a member's refusal.
        if self.lead.has_granted(from, txn, round) {
            return self.event(Event::Ignored(IgnoredReason::Late));
        }
        // What was granted for an earlier round is not used any more.
        if self.lead.recent_grants.get(txn).is_some_and(|(initiator, _)| initiator == from) {
            self.lead.release(txn);
        }
        let answer = if self.lead(request.group) { self.grant_put(from, request) } else { None };
        match answer {
            Some(grant) => {
                self.lead.recent_grants.remember(txn, from, round);
                self.grant(&grant);
            }
            None => self.bid(from, txn, round, Answer::Busy(Span::ZERO)),
        }
    }

    /// Windows for all pieces of a chunk that are missing, or none.
    fn grant_put(&mut self, from: NodeId, request: &LeadRequest) -> Option<Grant> {
        let LeadRequest { have, avoid, .. } = request;
        let (now, size, lease) = (self.now, request.size, self.lease());
        let members: Vec<NodeId> = self.setup.map.members(request.group).map(|t| t.id).collect();
        let redundancy = request.wanted.redundancy(self.setup.map.redundancy());
        // Copies for which there is no domain but of those to avoid cannot be had: whether the others are enough the initiator knows.
        let usable: Vec<NodeId> = members.iter().filter(|n| !avoid.contains(n)).chain(have).copied().collect();
        let possible = self.setup.map.count_domains(&usable);
        let goal = self.setup.map.goal(redundancy, have).at_most(possible);
        if goal.is_met() {
            return None;
        }
        let ranked = ClusterMap::ranked_among(&request.id, members);
        let group = self.lead.groups.get_mut(&request.group)?;
        let term = group.term;
        let leadership = group.leadership.as_mut()?;
        let mut offers = Offers::new();
        for (id, view) in &mut leadership.views {
            if now.since(view.reported) > lease
                || view.free < u64::from(size)
                || avoid.contains(id)
                || have.contains(id)
            {
                continue;
            }
            view.inward.prune(now);
            let transfer = Span::of_transfer(u64::from(size), view.rate) + self.config.guard;
            let earliest = (now + request.earliest).max(view.port_busy_until);
            let (start, end) = view.inward.hole_for(earliest, transfer);
            let (domain, rank) = (self.setup.map.domain(*id)?, ranked.iter().position(|n| n == id)?);
            let done = view.durable(start + transfer, size);
            let rate = view.rate;
            let slack = Span::ZERO;
            offers.insert(*id, Offer { start, end, transfer, done, rate, domain, rank, slack, part: None });
        }
        let mut uplink = Calendar::default();
        let (asked, txn) = (self.arrived, request.txn);
        request
            .busy
            .iter()
            .for_each(|(start, end)| uplink.insert(Window { start: asked + *start, end: asked + *end, txn }));
        let most = if self.config.multicast { self.setup.map.most_addressed() } else { 1 };
        let choices = windows(most, Bids::new(&offers, None), &goal, now, &uplink);
        let soon = |at: Instant| at.since(now) <= self.config.max_wait;
        let turns: Vec<(Instant, NodeId)> =
            choices.iter().flat_map(|c| c.targets.iter().map(|t| (c.start, *t))).filter(|(at, _)| soon(*at)).collect();
        if turns.len() < goal.missing().len() {
            return None;
        }
        let mut grant = Grant {
            initiator: from,
            txn: request.txn,
            round: request.round,
            id: request.id,
            size,
            group: request.group,
            term,
            direction: Direction::Put(request.wanted),
            transfer: choices.iter().map(|c| c.length).max()?,
            rate: choices.iter().map(|c| c.rate).min()?,
            windows: Vec::with_capacity(turns.len()),
        };
        for (start, target) in turns {
            let (offer, view) = (offers.get(&target)?, leadership.views.get_mut(&target)?);
            let end = (start + offer.transfer).min(offer.end.max(start));
            view.inward.insert(Window { start, end, txn: request.txn });
            view.free = view.free.saturating_sub(u64::from(size));
            view.disk_free = view.disk_free.max(start + offer.transfer) + view.write(size).0;
            grant.windows.push(GrantedWindow { target, start: start.since(now), done: offer.finish(start).since(now) });
        }
        Some(grant)
    }

    /// Tells the chosen members and the initiator.
    fn grant(&mut self, grant: &Grant) {
        let message = Message::Leading(Leading::Grant(grant.clone()));
        let own = self.setup.id;
        let others = |id: NodeId| id != own && grant.windows.iter().any(|window| window.target == id);
        match self.setup.map.set_of(grant.group, others) {
            // No target listens to larger sets, except for whole groups.
            Some(set)
                if self.config.multicast
                    && (2..=self.setup.map.most_addressed()).contains(&(set.mask.count_ones() as usize)) =>
            {
                self.send_to(Destination::Members(set), &message);
            }
            _ => grant
                .windows
                .iter()
                .filter(|window| others(window.target))
                .for_each(|window| self.send(window.target, &message)),
        }
        self.send(grant.initiator, &message);
        if grant.windows.iter().any(|window| window.target == own) {
            // Its spans count from now, and not from when it was asked for.
            self.arrived = self.now;
            self.on_grant(own, grant);
        }
    }

    /// A member's part in a grant.
    fn on_grant(&mut self, from: NodeId, grant: &Grant) {
        let own = self.setup.id;
        let Some(window) = grant.windows.iter().find(|window| window.target == own).copied() else {
            return self.event(Event::Ignored(IgnoredReason::Invalid));
        };
        if !self.is_member(grant.group, from) || !self.is_member(grant.group, own) {
            return self.event(Event::Ignored(IgnoredReason::Invalid));
        }
        let group = self.lead.groups.entry(grant.group).or_default();
        let old = group.term > grant.term;
        if !old && from != own {
            group.term = grant.term;
            group.leader = Some((from, self.now));
        }
        let Direction::Put(wanted) = grant.direction else { return self.get_granted(grant, window) };
        let kept = if old { Err(Answer::Busy(Span::ZERO)) } else { self.put_granted(from, grant, wanted, window) };
        if let Err(answer) = kept {
            self.bid(grant.initiator, grant.txn, grant.round, answer);
            self.report(grant.group, from, grant.size);
        }
    }

    /// After a copy is complete: reports to the leader when its estimate was far off.
    pub(super) fn report_unless_right(&mut self, leader: NodeId, group: GroupId, expected: Instant, size: u32) {
        let (each, whole) = self.write_times(size);
        let done = (self.now + self.writing()).max(self.now + whole);
        let off = expected.since(done).max(done.since(expected));
        self.lead.unreported += 1;
        if off > each.max(whole).div(ABOUT) || self.lead.unreported > UNREPORTED || leader == self.setup.id {
            self.report(group, leader, size);
            self.lead_due = self.lead.next_deadline();
        }
    }

    /// The chunk that an initiator seeks is here.
    pub(super) fn sought(&mut self, from: NodeId, seek: &Seek, held: Held) {
        let port = self.outward_end().max(self.now + seek.earliest).since(self.now);
        let (read, alone) = self.read_times(held.size);
        let holds = Holds {
            initiator: from,
            txn: seek.txn,
            round: seek.round,
            id: seek.id,
            group: seek.group,
            size: held.size,
            port,
            read,
            alone,
            rate: self.link.get(self.now).max(1),
            wanted: held.wanted,
        };
        if seek.leader == self.setup.id {
            self.holds(self.setup.id, holds);
            self.lead_due = self.lead.next_deadline();
        } else {
            self.send(seek.leader, &Message::Leading(Leading::Holds(holds)));
        }
    }

    /// A member holds what is sought. When as many have answered as it should have copies, or after a while, one is chosen.
    fn holds(&mut self, from: NodeId, holds: Holds) {
        let (txn, copies) = (holds.txn, holds.wanted.redundancy(self.setup.map.redundancy()).pieces());
        // Another was chosen before this one answered.
        if self.lead.has_granted(holds.initiator, txn, holds.round) {
            return self.event(Event::Ignored(IgnoredReason::Late));
        }
        if !self.lead(holds.group) || self.lead.sought.len() >= limits::SERVINGS && !self.lead.sought.contains_key(&txn)
        {
            return self.bid(holds.initiator, txn, holds.round, Answer::Busy(Span::ZERO));
        }
        let until = self.now + self.config.late.div(40);
        let sought = self.lead.sought.entry(txn).or_insert_with(|| Sought { until, holders: Vec::new() });
        if sought.holders.iter().all(|(holder, ..)| *holder != from) {
            sought.holders.push((from, self.arrived, holds));
        }
        if sought.holders.len() >= copies {
            self.grant_get(txn);
        }
    }

    fn grant_get(&mut self, txn: TxnId) {
        let Some(sought) = self.lead.sought.remove(&txn) else { return };
        let Some((_, _, first)) = sought.holders.first() else { return };
        let (id, now) = (first.group, self.now);
        let Some(group) = self.lead.groups.get_mut(&id) else { return };
        let term = group.term;
        let Some(leadership) = &mut group.leadership else { return };
        let mut best: Option<(Instant, NodeId, Instant, Instant, Span, &Holds)> = None;
        for (holder, at, holds) in &sought.holders {
            let transfer = Span::of_transfer(u64::from(holds.size), holds.rate) + self.config.guard;
            let (port, mut read) = ((*at + holds.port).max(now), *at + holds.read);
            let mut start = port.max(read);
            if let Some(view) = leadership.views.get_mut(holder) {
                view.outward.prune(now);
                read = read.max(view.read_free + holds.alone);
                start = view.outward.hole(port.max(read), transfer).0;
            }
            let done = start + transfer;
            if best.as_ref().is_none_or(|(soonest, node, ..)| (done, *holder) < (*soonest, *node)) {
                best = Some((done, *holder, start, read, transfer, holds));
            }
        }
        let Some((done, target, start, read, transfer, holds)) = best else { return };
        if let Some(view) = leadership.views.get_mut(&target) {
            view.read_free = read;
            view.outward.insert(Window { start, end: start + transfer, txn });
        }
        let window = GrantedWindow { target, start: start.since(now), done: done.since(now) };
        let grant = Grant {
            initiator: holds.initiator,
            txn,
            round: holds.round,
            id: holds.id,
            size: holds.size,
            group: id,
            term,
            direction: Direction::Get,
            transfer,
            rate: holds.rate,
            windows: vec![window],
        };
        self.lead.recent_grants.remember(txn, grant.initiator, grant.round);
        self.grant(&grant);
    }

    /// Claims again what we are asked for; chooses among holders that answered in time.
    pub(super) fn wake_leader(&mut self) {
        let (now, lease) = (self.now, self.lease());
        if self.lead_due.is_none_or(|at| at > now) {
            return;
        }
        let due = |group: &Group| group.leadership.as_ref().is_some_and(|leadership| leadership.claim_at <= now);
        let due: Vec<GroupId> = self.lead.groups.iter().filter(|(_, group)| due(group)).map(|(id, _)| *id).collect();
        for id in due {
            let asked = self.lead.groups.get(&id).and_then(|group| Some(group.leadership.as_ref()?.asked));
            if asked.is_some_and(|asked| now.since(asked) < lease) {
                self.claim(id);
            } else if let Some(leadership) = self.lead.groups.get_mut(&id).and_then(|group| group.leadership.as_mut()) {
                leadership.claim_at = Instant::FAR;
            }
        }
        let late: Vec<TxnId> = self.lead.sought.iter().filter(|(_, s)| s.until <= now).map(|(txn, _)| *txn).collect();
        late.into_iter().for_each(|txn| self.grant_get(txn));
        self.lead_due = self.lead.next_deadline();
    }

    /// Whether a grant replaces what is here of a transaction: not one that is as new, or another's.
    pub(super) fn is_replaced(from: NodeId, round: u8, grant: &Grant) -> bool {
        from == grant.initiator && round != grant.round && !is_newer(round, grant.round)
    }
}
