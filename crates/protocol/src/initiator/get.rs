//! One get: ask for the holders of the chunk, accept the first good bid, receive, verify; the next when anything fails.

use bytes::Bytes;

mod hedge;
mod job;
mod offer;
mod progress;

use super::context::Rounds;
use super::part::Part;
use super::round::{LeaderAttempts, Round};
use super::{
    Bug, Context, DataHeader, Deadline, Destination, Effect, Event, Fetched, GetError, GroupId, Instant, NodeId, Span,
    Step, TxnId, members,
};
use crate::calendar::Window;
use crate::config::GetChoice;
use crate::machine::IgnoredReason;
use crate::transfer::Incoming;
use crate::wire::{Ack, Answer, Bid, Direction, Grant, Granted, Grants, Leading, Message, OfferedWindow, Repair, Seek};

use hedge::{Hedge, beginning};
pub(super) use job::Job;
pub(super) use offer::{Offer, SOON, fit};
use progress::Progress;

/// Times that missing ranges are asked for without anything new arriving, before the next holder is tried.
const REPAIRS: u8 = 8;
/// Rounds in which nobody offered anything or was busy, with somebody silent, before the get fails.
const FRUITLESS: u8 = 8;

#[derive(Debug)]
pub(super) struct Get {
    txn: TxnId,
    job: Job,
    progress: Progress,
    round: Round,
    offers: Vec<Offer>,
    leader: LeaderAttempts,
    /// Whether rounds ask by multicast. Not after a member was silent: it may listen to the groups of another map.
    multicast: bool,
    reachability: Rounds,
    /// The round whose offer was accepted.
    accepted: u8,
    hedge: Hedge,
    phase: Phase,
}

/// Those of `some` that are in the map, and not among `others`.
fn beside(context: &Context, some: &[NodeId], others: &[NodeId]) -> Vec<NodeId> {
    let is_left = |id: &NodeId| context.map.target(*id).is_some() && !others.contains(id);
    some.iter().copied().filter(is_left).collect()
}

#[derive(Debug)]
enum Phase {
    Asking { since: Instant, soft: Instant, hard: Instant },
    Resting { until: Instant },
    Receiving { from: NodeId, incoming: Incoming, rate: u64, promised: Instant, due: Instant, repairs: u8 },
    Verifying { from: NodeId, pieces: Vec<Bytes> },
}

impl Get {
    pub(super) fn new(context: &mut Context, txn: TxnId, job: Job) -> Self {
        let mut get = Self::unasked(context, txn, job);
        get.ask(context);
        get
    }

    /// The same with an offer that was accepted: what it is, and when its window was `fit` in.
    pub(super) fn accepted(
        context: &mut Context,
        txn: TxnId,
        job: Job,
        round: u8,
        offer: Offer,
        start: Instant,
    ) -> Self {
        let mut get = Self::unasked(context, txn, job);
        (get.round.number, get.progress.rounds) = (round, 1);
        get.round.group = context.map.group_of(&get.job.id);
        (get.round.asked_of, get.round.answered) = (vec![offer.0], vec![offer.0]);
        get.offers.push(offer);
        get.expect(context, offer, start);
        get
    }

    fn unasked(context: &Context, txn: TxnId, job: Job) -> Self {
        // A leader chooses among the members of its group, where listed holders need not be.
        let left = u8::from(context.config.lead_gets && job.holders.is_empty());
        Self {
            txn,
            job,
            progress: Progress::default(),
            round: Round::new(),
            offers: Vec::new(),
            leader: LeaderAttempts { asked: None, last: None, left },
            multicast: true,
            reachability: Rounds::default(),
            accepted: 0,
            hedge: Hedge::Off,
            phase: Phase::Resting { until: context.now },
        }
    }

    fn ask(&mut self, context: &mut Context) {
        context.downlink.remove(self.txn);
        self.progress.rounds += 1;
        self.offers.clear();
        self.hedge = Hedge::Off;
        // Where a leader answers, its members do not.
        let leader = self.leader.asked.take();
        self.multicast &= leader.is_some() || self.round.is_complete();
        let (group, mut all) = self.candidates(context);
        if self.may_widen(context) && all.iter().all(|n| self.progress.rules_out(*n)) {
            self.progress.asks_previous = true;
            all = self.candidates(context).1;
        }
        self.round.begin(group);
        if core::mem::take(&mut self.leader.left) > 0
            && let Some(leader) = context.leader(&all)
        {
            return self.seek(context, leader, all);
        }
        let ranked = context.config.transport.is_ranked();
        let mut asked = if ranked && !self.progress.asks_previous {
            let mut ranked = context.map.ranked(&self.job.id);
            ranked.extend(self.listed(context, &ranked));
            ranked
        } else {
            all
        };
        asked.retain(|n| !self.progress.rules_out(*n));
        let is_listed = |n: &NodeId| self.job.holders.contains(n);
        if ranked {
            // The conventional store asks one after the other; those that were silent last come last. How many copies there should be
            // of a chunk that is kept otherwise than the map says is not known here: as many are asked as the map says.
            asked.sort_by_key(|n| (context.is_suspect(*n), !is_listed(n) && !self.job.holders.is_empty()));
            let most = if context.config.get_choice == GetChoice::Best { usize::from(context.map.copies) } else { 1 };
            asked.truncate(most);
        } else if self.round.number == 1 || leader.is_some() {
            let remembered = if context.config.remember { context.memory.holders(&self.job.id) } else { &[] };
            let holds = |n: &NodeId| (remembered.contains(n) || is_listed(n)) && !context.is_suspect(*n);
            if asked.iter().any(holds) {
                asked.retain(holds);
            }
        }
        if asked.is_empty() {
            // Everybody failed once: begin again.
            self.progress.tried.clear();
            self.progress.absent.clear();
            return self.rest(context);
        }
        self.round.asked_of = asked;
        // How long the transfer will be only the holders know: behind everything that is coming it fits in any case.
        let earliest = context.downlink.hole(context.now, context.config.give_up).0.since(context.now);
        let unreserved = !context.config.transport.reserved;
        let request =
            Message::GetRequest { txn: self.txn, round: self.round.number, id: self.job.id, unreserved, earliest };
        let by_multicast = context.send_group(group, &self.round.asked_of, &request, self.may_multicast());
        self.reachability.ask(context.now, by_multicast.then_some(&self.round.asked_of));
        self.phase = Phase::Asking {
            since: context.now,
            soft: context.now + context.patience(),
            hard: context.now + context.config.bid_timeout,
        };
    }

    /// The targets that may have the chunk: its group, listed holders, and when none of these serves it, its group by
    /// the layout before, from where data may not have moved yet.
    fn candidates(&self, context: &Context) -> (GroupId, Vec<NodeId>) {
        let (group, mut all) = members(&context.map, &self.job.id);
        all.retain(|member| *member != context.id);
        all.extend(self.listed(context, &all));
        if self.progress.asks_previous {
            all.extend(self.previous_members(context, &all));
        }
        (group, all)
    }

    /// Listed holders, beside these.
    fn listed(&self, context: &Context, others: &[NodeId]) -> Vec<NodeId> {
        beside(context, &self.job.holders, others)
    }

    /// The chunk's group by the layout before, beside these.
    fn previous_members(&self, context: &Context, others: &[NodeId]) -> Vec<NodeId> {
        let previous = context.map.previous().filter(|_| context.bug != Some(Bug::ForgetPrevious));
        let previous = previous.map(|previous| previous.targets_of(&self.job.id)).unwrap_or_default();
        beside(context, &previous, others)
    }

    /// Whether all that are asked may be in the chunk's group: a multicast address reaches no others.
    const fn may_multicast(&self) -> bool {
        self.multicast && !self.progress.asks_previous && self.job.holders.is_empty()
    }

    /// Whether there are others to ask, which were the chunk's group before.
    fn may_widen(&self, context: &Context) -> bool {
        !self.progress.asks_previous
            && !self.previous_members(context, &members(&context.map, &self.job.id).1).is_empty()
    }

    /// Fails when there is no target left to ask, also none that was in the chunk's group before.
    fn fail_if_nowhere(&mut self, context: &mut Context) -> Option<Step> {
        let (_, all) = self.candidates(context);
        let error = self.progress.nowhere(&all)?;
        if self.may_widen(context) {
            self.ask(context);
            return Some(Step::Continue);
        }
        Some(self.fail(context, error))
    }

    /// Asks the group, whose leader is to choose among the holders.
    fn seek(&mut self, context: &mut Context, leader: NodeId, all: Vec<NodeId>) {
        self.leader.asked = Some(leader);
        self.round.asked_of = all;
        let earliest = context.downlink.hole(context.now, context.config.give_up).0.since(context.now);
        let (txn, round, id, group) = (self.txn, self.round.number, self.job.id, self.round.group);
        let seek = Message::Leading(Leading::Seek(Seek { txn, round, id, group, leader, earliest }));
        context.send_group(group, &self.round.asked_of, &seek, self.multicast);
        self.leader.last = Some((leader, context.now));
        let until = context.leader_until();
        self.phase = Phase::Asking { since: context.now, soft: until, hard: until };
    }

    /// The leader chose a holder, which sends in the window.
    pub(super) fn on_grant(&mut self, context: &mut Context, from: NodeId, grant: &Grant) -> Step {
        self.leader.note_grant(context, from);
        if ![self.round.number, self.accepted].contains(&grant.round) {
            context.give_back(from, grant);
            return Step::Continue;
        }
        let (Phase::Asking { .. }, [window]) = (&self.phase, &grant.windows[..]) else {
            return context.ignore(IgnoredReason::Late);
        };
        if self.leader.asked != Some(from) || grant.round != self.round.number || grant.direction != Direction::Get {
            return context.ignore(IgnoredReason::Late);
        }
        self.round.answered.push(from);
        let granted = context.arrived + window.start;
        let (start, _) = context.downlink.hole(granted.max(context.now), grant.transfer);
        context.downlink.insert(Window { start, end: start + grant.transfer, txn: self.txn });
        let late = start.since(granted);
        if late > Span::ZERO && grant.size as usize > context.config.quantum {
            // What goes out in one piece anyway fits into any queue.
            let granted = Grants::from_iter([Granted { target: window.target, offset: late }]);
            let later = Message::Accept { txn: self.txn, round: self.round.number, granted };
            context.send(Destination::Node(window.target), &later);
        }
        self.receive(context, window.target, (grant.size, grant.rate), (start, grant.transfer));
        Step::Continue
    }

    /// `from` sends so many bytes at a rate, from a moment on and for so long.
    fn receive(&mut self, context: &mut Context, from: NodeId, (size, rate): (u32, u64), when: (Instant, Span)) {
        let (promised, transfer) = when;
        let due = promised + transfer + context.payload_patience(0, rate, 0);
        self.progress.fruitless = 0;
        self.accepted = self.round.number;
        self.hedge_later(context, promised);
        self.phase = Phase::Receiving { from, incoming: Incoming::new(size), rate, promised, due, repairs: 0 };
    }

    fn rest(&mut self, context: &mut Context) {
        let span = context.rest(self.round.busy.take());
        let jitter = Span::from_nanos(context.rng.below(span.as_nanos() / 2 + 1));
        self.phase = Phase::Resting { until: context.now + span + jitter };
    }

    fn fail(&mut self, context: &mut Context, error: GetError) -> Step {
        self.end(context, Err(error))
    }

    fn end(&mut self, context: &mut Context, result: Result<Fetched, GetError>) -> Step {
        match self.job.part() {
            Some((gather, piece)) => context.gathered.push_back((gather, piece, Part::Over(result))),
            None => context.event(Event::Get { handle: self.job.handle, result }),
        }
        Step::Over
    }

    fn unavailable(&mut self, context: &mut Context) -> Step {
        let (_, all) = self.candidates(context);
        let known = |n: &NodeId| {
            self.round.answered.contains(n) || self.progress.absent.contains(n) || self.progress.corrupt.contains(n)
        };
        let silent = all.into_iter().filter(|n| !known(n)).collect();
        let corrupt = self.progress.damaged();
        self.fail(context, GetError::Unavailable { silent, corrupt })
    }

    pub(super) fn bid(&mut self, context: &mut Context, from: NodeId, bid: Bid) -> Step {
        if matches!(self.phase, Phase::Receiving { .. }) {
            return self.late_bid(context, from, &bid);
        }
        if bid.round != self.round.number {
            // Late, but the question had arrived.
            self.reachability.late();
            return context.ignore(IgnoredReason::Late);
        }
        let Phase::Asking { since, .. } = self.phase else {
            return context.ignore(IgnoredReason::Late);
        };
        if !self.round.awaits(from) {
            return context.ignore(IgnoredReason::Late);
        }
        self.round.answered.push(from);
        self.reachability.answered(context, from);
        if self.leader.asked.is_some() {
            // It cannot choose.
            context.grant_arrived(since);
            self.ask(context);
            return Step::Continue;
        }
        context.bid_arrived(since);
        match bid.answer {
            Answer::Window(offered) => self.offers.push((from, offered, context.arrived)),
            Answer::NotHere => self.progress.absent.push(from),
            Answer::Busy(wait) => {
                self.round.note_busy(wait);
                if context.config.transport.is_ranked() {
                    self.progress.tried.push(from);
                }
            }
            // The newer map is on its way here.
            Answer::Stale => self.round.note_busy(Span::ZERO),
            Answer::NoSpace | Answer::HaveIt | Answer::HavePiece(_) | Answer::Part(_) => {}
        }
        self.choose(context, false)
    }

    /// Takes the first offer that is good (soon, by the standard of the transfer itself); at the soft deadline, or when
    /// everybody has answered, the best one. Deadlines count when woken only, as for a put.
    fn choose(&mut self, context: &mut Context, woken: bool) -> Step {
        let Phase::Asking { since, soft, hard } = self.phase else {
            return Step::Continue;
        };
        if let Some(leader) = self.leader.asked {
            if context.gives_leader_up(leader, since, hard, woken) {
                self.ask(context);
            }
            return Step::Continue;
        }
        let all = self.round.is_complete();
        let best = self.offers.iter().min_by_key(|(n, offered, at)| (*at + offered.done, *n)).copied();
        if let Some((from, offered, at)) = best {
            let soon =
                context.config.get_choice == GetChoice::FirstGood && offered.done <= offered.transfer.times(3) + SOON;
            if soon || all || woken && context.now >= soft {
                self.accept(context, (from, offered, at));
                return Step::Continue;
            }
        } else if all || woken && context.now >= hard {
            return self.nobody(context, since);
        }
        if woken && context.now >= soft {
            self.phase = Phase::Asking { since, soft: hard, hard };
        }
        Step::Continue
    }

    /// A round without an offer.
    fn nobody(&mut self, context: &mut Context, since: Instant) -> Step {
        let (_, all) = self.candidates(context);
        let asked_of = self.round.asked_of.clone();
        for node in asked_of.iter().filter(|n| !self.round.answered.contains(n)) {
            context.miss(*node, since);
            if context.config.transport.is_ranked() {
                self.progress.tried.push(*node);
            }
        }
        if let Some(step) = self.fail_if_nowhere(context) {
            return step;
        }
        if all.iter().any(|n| !asked_of.contains(n) && !self.progress.rules_out(*n)) {
            // On to targets that were not asked, at once: the next of the ranking, or those not remembered as holders.
            self.ask(context);
            return Step::Continue;
        }
        if self.may_widen(context) {
            // What did not move yet is not on those that are silent or busy: the others need not wait for them.
            self.progress.tried.extend(all);
            self.ask(context);
            return Step::Continue;
        }
        // When not even one member says anything, our own way to all of them is cut: that may heal, so patience is the
        // only bound.
        let silence =
            self.round.answered.is_empty() && self.progress.absent.is_empty() && self.progress.corrupt.is_empty();
        let busy = self.round.busy.is_some();
        if self.job.gather.is_some() && !busy {
            // Another piece is as good.
            return self.unavailable(context);
        }
        self.progress.fruitless = self.progress.fruitless.saturating_add(u8::from(!busy && !silence));
        if self.progress.fruitless >= FRUITLESS {
            return self.unavailable(context);
        }
        // Those that do not have it now may have it in a moment (a put under way), so all are asked again.
        self.progress.absent.clear();
        self.progress.tried.clear();
        self.rest(context);
        Step::Continue
    }

    fn accept(&mut self, context: &mut Context, offer: Offer) {
        let (from, offered, at) = offer;
        let Some((start, offset)) = fit(context, self.txn, &offered, at) else {
            // Others of ours were accepted since we asked. The next request replaces this one. Targets that have not
            // answered yet were not waited for: that says nothing of multicast.
            self.round.asked_of.clear();
            return self.ask(context);
        };
        let bidders: Vec<NodeId> = self
            .round
            .asked_of
            .iter()
            .copied()
            .filter(|n| self.offers.iter().any(|(o, ..)| o == n) || context.multicast() && self.multicast)
            .collect();
        let granted = Grants::from_iter([Granted { target: from, offset }]);
        let accept = Message::Accept { txn: self.txn, round: self.round.number, granted };
        context.send_group(self.round.group, &bidders, &accept, self.may_multicast());
        self.expect(context, offer, start);
    }

    /// An offer is accepted, and its window used from `start` on.
    fn expect(&mut self, context: &mut Context, (from, offered, _): Offer, start: Instant) {
        self.receive(context, from, (offered.size, offered.rate), (beginning(start, &offered), offered.transfer));
    }

    /// Whether this holder was accepted, and its payload is not whole.
    pub(super) fn is_served_by(&self, holder: NodeId) -> bool {
        matches!(self.phase, Phase::Receiving { from, .. } if from == holder)
    }

    /// Whether a holder has promised to send it.
    pub(super) const fn is_promised(&self) -> bool {
        matches!(self.phase, Phase::Receiving { .. } | Phase::Verifying { .. })
    }

    /// Nobody waits for it any more: what is kept for it is free again.
    pub(super) fn cancel(&self, context: &mut Context) {
        match &self.phase {
            Phase::Receiving { from, .. } => context.release(self.txn, self.accepted, [*from]),
            Phase::Asking { .. } => {
                context.release(self.txn, self.round.number, self.offers.iter().map(|(from, ..)| *from));
            }
            Phase::Resting { .. } | Phase::Verifying { .. } => {}
        }
        context.downlink.remove(self.txn);
    }

    /// The holder is still reading.
    pub(super) fn pending(&mut self, context: &mut Context, from: NodeId) -> Step {
        match &mut self.phase {
            Phase::Receiving { from: serving, due, repairs, .. } if *serving == from => {
                *repairs = 0;
                *due = context.now + context.config.late;
                Step::Continue
            }
            _ => context.ignore(IgnoredReason::Late),
        }
    }

    /// The holder cannot read its copy; or it knows nothing of it: the accept came too late for its offer, or the repair
    /// after it forgot.
    pub(super) fn refused(&mut self, context: &mut Context, from: NodeId, ack: Ack) -> Step {
        if !matches!(&self.phase, Phase::Receiving { from: serving, .. } if *serving == from) {
            return context.ignore(IgnoredReason::Late);
        }
        if matches!(ack, Ack::BadHash | Ack::DiskFailed) {
            self.progress.corrupt.push(from);
            if let Some(step) = self.fail_if_nowhere(context) {
                return step;
            }
        }
        if !self.switch(context) {
            self.ask(context);
        }
        Step::Continue
    }

    pub(super) fn data(&mut self, context: &mut Context, header: &DataHeader, payload: &Bytes) -> Step {
        let begins = self.begins(context, header.from);
        let Phase::Receiving { from, incoming, rate, promised, due, repairs } = &mut self.phase else {
            return context.ignore(IgnoredReason::Late);
        };
        if !begins || header.from != *from || header.size != incoming.size() {
            return context.ignore(IgnoredReason::Late);
        }
        if incoming.is_empty() {
            context.lateness.sample(context.now.since(*promised) + Span::from_nanos(1));
        }
        if incoming.insert(header.offset, payload) > 0 {
            *repairs = 0;
        } else {
            context.event(Event::Ignored(IgnoredReason::Late));
        }
        // Once the end is here, what is missing is lost, or has been overtaken. Before, it may still be on its way.
        let at_end = header.offset + payload.len() as u32 == header.size;
        *due = match at_end {
            true => context.now + context.lateness.patience(*repairs, context.config.late).div(4),
            false => (*due).max(context.now + context.payload_patience(*repairs, *rate, 0)),
        };
        if incoming.is_complete() {
            let (from, pieces) = (*from, incoming.take());
            context.downlink.remove(self.txn);
            context.start(self.txn, Effect::Verify { id: self.job.id, pieces: pieces.clone() });
            self.phase = Phase::Verifying { from, pieces };
        }
        Step::Continue
    }

    pub(super) fn verified(&mut self, context: &mut Context, good: bool) -> Step {
        let Phase::Verifying { from, pieces } = &mut self.phase else {
            return Step::Continue;
        };
        let from = *from;
        if good {
            let pieces = core::mem::take(pieces);
            let is_copy = self.job.gather.is_none();
            if context.config.remember && is_copy && context.memory.holders(&self.job.id).is_empty() {
                // A leader says of one holder only.
                let mut holders: Vec<NodeId> = self.offers.iter().map(|(holder, ..)| *holder).collect();
                holders.extend((!holders.contains(&from)).then_some(from));
                context.memory.remember(self.job.id, holders);
            }
            let fetched =
                Fetched { pieces, from, took: context.now.since(self.job.asked), rounds: self.progress.rounds };
            return self.end(context, Ok(fetched));
        }
        context.send(Destination::Node(from), &Message::Suspect { id: self.job.id });
        context.event(Event::CorruptCopy { id: self.job.id, target: from });
        // Damaged on the way, or on its disk: others first, it once more when there is nobody else.
        self.progress.tried.push(from);
        if !self.progress.suspect.contains(&from) {
            self.progress.suspect.push(from);
        }
        self.ask(context);
        Step::Continue
    }

    pub(super) fn wake(&mut self, context: &mut Context) -> Step {
        if context.now >= self.job.give_up_at && !matches!(self.phase, Phase::Verifying { .. }) {
            return self.unavailable(context);
        }
        if matches!(self.hedge, Hedge::Due(at) if context.now >= at) {
            self.hedge(context);
        }
        match &mut self.phase {
            Phase::Asking { .. } => self.choose(context, true),
            Phase::Resting { until } if context.now >= *until => {
                self.ask(context);
                Step::Continue
            }
            Phase::Receiving { from, incoming, rate, due, repairs, .. } if context.now >= *due => {
                let from = *from;
                let give_up = if incoming.is_empty() { REPAIRS / 2 } else { REPAIRS };
                if *repairs >= give_up {
                    self.progress.tried.push(from);
                    context.miss(from, context.now);
                    // What it still sends would be in the way of what another does.
                    context.release(self.txn, self.accepted, [from]);
                    self.ask(context);
                    return Step::Continue;
                }
                // What has begun to come may have lost its end only.
                if incoming.is_empty() || *repairs > 0 {
                    self.job.note_late(context);
                }
                *repairs += 1;
                *due = context.now + context.payload_patience(*repairs, *rate, incoming.outstanding());
                let repair = Repair { txn: self.txn, rate: u64::MAX, ranges: incoming.missing() };
                context.send(Destination::Node(from), &Message::Repair(repair));
                context.event(Event::RepairAsked);
                Step::Continue
            }
            Phase::Resting { .. } | Phase::Receiving { .. } | Phase::Verifying { .. } => Step::Continue,
        }
    }

    pub(super) fn next_deadline(&self) -> Deadline {
        let deadline = match &self.phase {
            Phase::Asking { soft, .. } => Deadline { at: *soft, why: "bids" },
            Phase::Resting { until } => Deadline { at: *until, why: "rest" },
            Phase::Receiving { due, .. } => match self.hedge {
                Hedge::Due(at) if at < *due => Deadline { at, why: "another holder" },
                _ => Deadline { at: *due, why: "payload" },
            },
            Phase::Verifying { .. } => {
                return Deadline { at: Instant::FAR, why: "hash" };
            }
        };
        if deadline.at > self.job.give_up_at { Deadline { at: self.job.give_up_at, why: "give up" } } else { deadline }
    }
}
