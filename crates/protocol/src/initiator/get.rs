//! One get: ask who has the chunk, accept the first good bid, receive, verify; the next holder when anything fails.

use bytes::Bytes;

mod hedge;

use super::multicast::Rounds;
use super::{
    ChunkId, DataHeader, Deadline, Destination, Effect, Event, Fetched, GetError, Instant, NodeId, Shared, Span, Step,
    TxnId, members,
};
use crate::calendar::Window;
use crate::config::{Reads, Transport};
use crate::id::GroupId;
use crate::transfer::Incoming;
use crate::wire::{Ack, Answer, Bid, Grant, Granted, Leading, Message, Repair, Seek, Slot};

use hedge::{Hedge, beginning};

/// Times that missing ranges are asked for without anything new arriving, before the next holder is tried.
const REPAIRS: u8 = 8;
/// Rounds in which nobody offered anything or was busy, with somebody silent, before the get fails.
const FRUITLESS: u8 = 8;

/// A better offer could not gain more than this.
const SOON: Span = Span::from_micros(200);

#[derive(Debug)]
pub(super) struct Get {
    txn: TxnId,
    handle: u64,
    id: ChunkId,
    asked: Instant,
    give_up_at: Instant,
    round: u8,
    rounds: u32,
    fruitless: u8,
    group: GroupId,
    /// Whether this round asks by multicast. Not after a member was silent: it may listen to the groups of another map.
    multicast: bool,
    heard: Rounds,
    /// The round whose offer was accepted.
    accepted: u8,
    hedge: Hedge,
    asked_of: Vec<NodeId>,
    answered: Vec<NodeId>,
    /// The leader that is to choose a holder in this round.
    leader: Option<NodeId>,
    /// Whether the leader may be asked yet.
    led: bool,
    asked_leader: Instant,
    absent: Vec<NodeId>,
    /// When the first of those who may serve later may, if there are any.
    busy: Option<Span>,
    offers: Vec<(NodeId, Slot, Instant)>,
    /// Holders that failed this get; asked again when there is nobody else.
    tried: Vec<NodeId>,
    /// Holders that said themselves that their copy is damaged or cannot be read: not asked again.
    corrupt: Vec<NodeId>,
    /// Holders whose copy arrived damaged. That may have happened on the way.
    suspect: Vec<NodeId>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Asking { since: Instant, soft: Instant, hard: Instant },
    Resting { until: Instant },
    Receiving { from: NodeId, incoming: Incoming, promised: Instant, due: Instant, repairs: u8 },
    Verifying { from: NodeId, pieces: Vec<Bytes> },
}

impl Get {
    pub(super) fn new(cx: &mut Shared, txn: TxnId, handle: u64, id: ChunkId, asked: Instant) -> Self {
        let mut get = Self {
            txn,
            handle,
            id,
            asked,
            give_up_at: asked + cx.config.give_up,
            round: 0,
            rounds: 0,
            fruitless: 0,
            group: GroupId(0),
            multicast: true,
            heard: Rounds::default(),
            accepted: 0,
            hedge: Hedge::Off,
            asked_of: Vec::new(),
            answered: Vec::new(),
            leader: None,
            led: cx.config.lead_gets,
            asked_leader: cx.now,
            absent: Vec::new(),
            busy: None,
            offers: Vec::new(),
            tried: Vec::new(),
            corrupt: Vec::new(),
            suspect: Vec::new(),
            phase: Phase::Resting { until: cx.now },
        };
        get.ask(cx);
        get
    }

    fn ask(&mut self, cx: &mut Shared) {
        cx.downlink.remove(self.txn);
        self.round = self.round.wrapping_add(1);
        self.rounds += 1;
        self.offers.clear();
        self.hedge = Hedge::Off;
        // Where a leader answers, its members do not.
        let leader = self.leader.take();
        self.multicast &= leader.is_some() || self.asked_of.iter().all(|n| self.answered.contains(n));
        self.answered.clear();
        let (group, all) = members(&cx.map, &self.id);
        self.group = group;
        if core::mem::take(&mut self.led)
            && let Some(leader) = cx.leader(&all)
        {
            return self.seek(cx, leader, all);
        }
        let unreserved = cx.config.transport == Transport::Hash;
        let usable = |n: &NodeId| !self.tried.contains(n) && !self.corrupt.contains(n) && !self.absent.contains(n);
        let mut asked = if unreserved { cx.map.ranked(&self.id) } else { all };
        asked.retain(usable);
        if unreserved {
            // The conventional store asks one after the other; those that were silent last come last.
            asked.sort_by_key(|n| cx.is_suspect(*n));
            let most = if cx.config.reads == Reads::Best { usize::from(cx.map.copies) } else { 1 };
            asked.truncate(most);
        } else if (self.round == 1 || leader.is_some()) && cx.config.remember {
            let holds = |n: &NodeId| cx.memory.holders(&self.id).contains(n) && !cx.is_suspect(*n);
            if asked.iter().any(holds) {
                asked.retain(holds);
            }
        }
        if asked.is_empty() {
            // Everybody failed once: begin again.
            self.tried.clear();
            self.absent.clear();
            return self.rest(cx);
        }
        self.asked_of = asked;
        // How long the transfer will be only the holders know: behind everything that is coming it fits in any case.
        let earliest = cx.downlink.hole(cx.now, cx.config.give_up).0.since(cx.now);
        let request = Message::GetRequest { txn: self.txn, round: self.round, id: self.id, unreserved, earliest };
        let by_multicast = cx.send_group(group, &self.asked_of, &request, self.multicast);
        self.heard.ask(cx.now, by_multicast.then_some(&self.asked_of));
        self.phase =
            Phase::Asking { since: cx.now, soft: cx.now + cx.patience(), hard: cx.now + cx.config.bid_timeout };
    }

    /// Asks the group, whose leader is to choose among the holders.
    fn seek(&mut self, cx: &mut Shared, leader: NodeId, all: Vec<NodeId>) {
        self.leader = Some(leader);
        self.asked_of = all;
        let earliest = cx.downlink.hole(cx.now, cx.config.give_up).0.since(cx.now);
        let (txn, round, id, group) = (self.txn, self.round, self.id, self.group);
        let seek = Message::Leading(Leading::Seek(Seek { txn, round, id, group, leader, earliest }));
        cx.send_group(group, &self.asked_of, &seek, self.multicast);
        self.asked_leader = cx.now;
        let until = cx.leader_until();
        self.phase = Phase::Asking { since: cx.now, soft: until, hard: until };
    }

    /// The leader chose a holder, which sends in the window.
    pub(super) fn granted(&mut self, cx: &mut Shared, from: NodeId, grant: &Grant) -> Step {
        cx.grants.sample(cx.now.since(self.asked_leader));
        if ![self.round, self.accepted].contains(&grant.round) {
            cx.give_back(from, grant);
            return Step::Continue;
        }
        let (Phase::Asking { .. }, [turn]) = (&self.phase, &grant.windows[..]) else {
            return Step::Continue;
        };
        if self.leader != Some(from) || grant.round != self.round || !grant.read {
            return Step::Continue;
        }
        self.answered.push(from);
        let (start, _) = cx.downlink.hole(cx.now + turn.start, grant.transfer);
        cx.downlink.insert(Window { start, end: start + grant.transfer, txn: self.txn });
        let late = start.since(cx.now + turn.start);
        if late > Span::ZERO && grant.size as usize > cx.config.quantum {
            // What goes out in one piece anyway fits into any queue.
            let granted = vec![Granted { target: turn.target, offset: late }];
            let later = Message::Accept { txn: self.txn, round: self.round, granted };
            cx.send(Destination::Node(turn.target), &later);
        }
        self.receive(cx, turn.target, grant.size, start, grant.transfer);
        Step::Continue
    }

    fn receive(&mut self, cx: &mut Shared, from: NodeId, size: u32, promised: Instant, transfer: Span) {
        let due = promised + transfer + cx.lateness.patience(0, cx.config.late);
        self.fruitless = 0;
        self.accepted = self.round;
        self.hedge_later(cx, promised);
        self.phase = Phase::Receiving { from, incoming: Incoming::new(size), promised, due, repairs: 0 };
    }

    fn rest(&mut self, cx: &mut Shared) {
        let span = cx.rest(self.busy.take());
        let jitter = Span::from_nanos(cx.rng.below(span.as_nanos() / 2 + 1));
        self.phase = Phase::Resting { until: cx.now + span + jitter };
    }

    fn fail(&mut self, cx: &mut Shared, error: GetError) -> Step {
        cx.event(Event::Get { handle: self.handle, result: Err(error) });
        Step::Over
    }

    fn unavailable(&mut self, cx: &mut Shared) -> Step {
        let (_, all) = members(&cx.map, &self.id);
        let known = |n: &NodeId| self.answered.contains(n) || self.absent.contains(n) || self.corrupt.contains(n);
        let silent = all.into_iter().filter(|n| !known(n)).collect();
        let corrupt = self.damaged();
        self.fail(cx, GetError::Unavailable { silent, corrupt })
    }

    pub(super) fn bid(&mut self, cx: &mut Shared, from: NodeId, bid: Bid) -> Step {
        if matches!(self.phase, Phase::Receiving { .. }) {
            return self.late_bid(cx, from, &bid);
        }
        if bid.round != self.round {
            // Late, but it was heard.
            self.heard.late();
            return Step::Continue;
        }
        let Phase::Asking { since, .. } = self.phase else {
            return Step::Continue;
        };
        if !self.asked_of.contains(&from) || self.answered.contains(&from) {
            return Step::Continue;
        }
        self.answered.push(from);
        self.heard.answered(cx, from);
        if self.leader.is_some() {
            // It cannot choose.
            cx.grants.sample(cx.now.since(since));
            self.ask(cx);
            return Step::Continue;
        }
        cx.bids.sample(cx.now.since(since));
        match bid.answer {
            Answer::Window(slot) => self.offers.push((from, slot, cx.now)),
            Answer::NotHere => self.absent.push(from),
            Answer::Busy(wait) => {
                self.busy = Some(self.busy.map_or(wait, |busy| busy.min(wait)));
                if cx.config.transport == Transport::Hash {
                    self.tried.push(from);
                }
            }
            // The newer map is on its way here.
            Answer::Stale => self.busy = Some(Span::ZERO),
            Answer::NoSpace | Answer::HaveIt => {}
        }
        self.choose(cx, false)
    }

    /// Takes the first offer that is good (soon, by the standard of the transfer itself); at the soft deadline, or when
    /// everybody has answered, the best one. Deadlines count when woken only, as for a put.
    fn choose(&mut self, cx: &mut Shared, woken: bool) -> Step {
        let Phase::Asking { since, soft, hard } = self.phase else {
            return Step::Continue;
        };
        if let Some(leader) = self.leader {
            if cx.gives_leader_up(leader, since, hard, woken) {
                self.ask(cx);
            }
            return Step::Continue;
        }
        let all = self.asked_of.iter().all(|n| self.answered.contains(n));
        let best = self.offers.iter().min_by_key(|(n, slot, at)| (*at + slot.done, *n)).copied();
        if let Some((from, slot, at)) = best {
            let soon = cx.config.reads == Reads::First && slot.done <= slot.transfer.times(3) + SOON;
            if soon || all || woken && cx.now >= soft {
                self.accept(cx, from, slot, at);
                return Step::Continue;
            }
        } else if all || woken && cx.now >= hard {
            return self.nobody(cx, since);
        }
        if woken && cx.now >= soft {
            self.phase = Phase::Asking { since, soft: hard, hard };
        }
        Step::Continue
    }

    fn damaged(&self) -> Vec<NodeId> {
        let mut damaged = [&self.corrupt[..], &self.suspect[..]].concat();
        damaged.sort_unstable();
        damaged.dedup();
        damaged
    }

    /// Why there is nobody left to ask: every member of the group said that it has no copy, or a damaged one.
    fn nowhere(&self, all: &[NodeId]) -> Option<GetError> {
        if !all.iter().all(|n| self.absent.contains(n) || self.corrupt.contains(n)) {
            return None;
        }
        let corrupt = self.damaged();
        Some(if corrupt.is_empty() {
            GetError::NotFound
        } else {
            GetError::Unavailable { silent: Vec::new(), corrupt }
        })
    }

    /// A round without an offer.
    fn nobody(&mut self, cx: &mut Shared, since: Instant) -> Step {
        let (_, all) = members(&cx.map, &self.id);
        let asked_of = self.asked_of.clone();
        for node in asked_of.iter().filter(|n| !self.answered.contains(n)) {
            cx.miss(*node, since);
            if cx.config.transport == Transport::Hash {
                self.tried.push(*node);
            }
        }
        if let Some(error) = self.nowhere(&all) {
            return self.fail(cx, error);
        }
        let fresh = |n: &&NodeId| {
            let known = [&asked_of, &self.absent, &self.tried, &self.corrupt];
            !known.iter().any(|list| list.contains(n))
        };
        if all.iter().any(|n| fresh(&n)) {
            // On to those who were not asked, at once: the next of the ranking, or who is not remembered as a holder.
            self.ask(cx);
            return Step::Continue;
        }
        // When not even one member says anything, our own way to all of them is cut: that may heal, so patience is the
        // only bound.
        let silence = self.answered.is_empty() && self.absent.is_empty() && self.corrupt.is_empty();
        let busy = self.busy.is_some();
        self.fruitless = self.fruitless.saturating_add(u8::from(!busy && !silence));
        if self.fruitless >= FRUITLESS {
            return self.unavailable(cx);
        }
        // Those who do not have it now may have it in a moment (a put under way), so everybody is asked again.
        self.absent.clear();
        self.tried.clear();
        self.rest(cx);
        Step::Continue
    }

    fn accept(&mut self, cx: &mut Shared, from: NodeId, slot: Slot, at: Instant) {
        let unreserved = cx.config.transport == Transport::Hash;
        let window = at + slot.start;
        let (start, _) = cx.downlink.hole(window.max(cx.now), slot.transfer);
        let (offset, most) = (start.since(window), slot.length.less(slot.transfer));
        let taken = start > window.max(cx.now) && offset > most;
        if taken && !unreserved && slot.size as usize > cx.config.quantum {
            // Others of ours were accepted since we asked, and our port is taken for longer than the offer reaches. The
            // next request replaces this one. (What goes out in one piece anyway fits into any queue.) Those who have not
            // answered yet were not waited for: that says nothing of multicast.
            self.asked_of.clear();
            return self.ask(cx);
        }
        let offset = offset.min(most);
        if !unreserved {
            cx.downlink.insert(Window { start, end: start + slot.transfer, txn: self.txn });
        }
        let bidders: Vec<NodeId> = self
            .asked_of
            .iter()
            .copied()
            .filter(|n| self.offers.iter().any(|(o, ..)| o == n) || cx.multicast() && self.multicast)
            .collect();
        let granted = vec![Granted { target: from, offset }];
        let accept = Message::Accept { txn: self.txn, round: self.round, granted };
        cx.send_group(self.group, &bidders, &accept, self.multicast);
        self.receive(cx, from, slot.size, beginning(start, &slot), slot.transfer);
    }

    /// The holder is still reading.
    pub(super) fn pending(&mut self, cx: &mut Shared, from: NodeId) -> Step {
        if let Phase::Receiving { from: serving, due, repairs, .. } = &mut self.phase
            && *serving == from
        {
            *repairs = 0;
            *due = cx.now + cx.config.late;
        }
        Step::Continue
    }

    /// The holder cannot read its copy; or it knows nothing of it: the accept came too late for its offer, or the repair
    /// after it forgot.
    pub(super) fn refused(&mut self, cx: &mut Shared, from: NodeId, ack: Ack) -> Step {
        if !matches!(&self.phase, Phase::Receiving { from: serving, .. } if *serving == from) {
            return Step::Continue;
        }
        if matches!(ack, Ack::BadHash | Ack::DiskFailed) {
            self.corrupt.push(from);
            let (_, all) = members(&cx.map, &self.id);
            if let Some(error) = self.nowhere(&all) {
                return self.fail(cx, error);
            }
        }
        if !self.switch(cx) {
            self.ask(cx);
        }
        Step::Continue
    }

    pub(super) fn data(&mut self, cx: &mut Shared, header: &DataHeader, payload: &Bytes) -> Step {
        if !self.begins(cx, header.from) {
            return Step::Continue;
        }
        let Phase::Receiving { from, incoming, promised, due, repairs } = &mut self.phase else {
            return Step::Continue;
        };
        if header.from != *from || header.size != incoming.size() {
            return Step::Continue;
        }
        if incoming.is_empty() {
            cx.lateness.sample(cx.now.since(*promised) + Span::from_nanos(1));
        }
        if incoming.insert(header.offset, payload) > 0 {
            *repairs = 0;
        }
        // Once the end is here, what is missing is lost, or has been overtaken. Before, it may still be on its way.
        let patience = cx.lateness.patience(*repairs, cx.config.late);
        let at_end = header.offset + payload.len() as u32 == header.size;
        *due = if at_end { cx.now + patience.div(4) } else { (*due).max(cx.now + patience) };
        if incoming.is_complete() {
            let (from, pieces) = (*from, incoming.take());
            cx.downlink.remove(self.txn);
            cx.start(self.txn, Effect::Verify { id: self.id, pieces: pieces.clone() });
            self.phase = Phase::Verifying { from, pieces };
        }
        Step::Continue
    }

    pub(super) fn verified(&mut self, cx: &mut Shared, good: bool) -> Step {
        let Phase::Verifying { from, pieces } = &mut self.phase else {
            return Step::Continue;
        };
        let from = *from;
        if good {
            let pieces = core::mem::take(pieces);
            if cx.config.remember && cx.memory.holders(&self.id).is_empty() {
                // A leader says of one holder only.
                let mut holders: Vec<NodeId> = self.offers.iter().map(|(holder, ..)| *holder).collect();
                holders.extend((!holders.contains(&from)).then_some(from));
                cx.memory.remember(self.id, holders);
            }
            let fetched = Fetched { pieces, from, took: cx.now.since(self.asked), rounds: self.rounds };
            cx.event(Event::Get { handle: self.handle, result: Ok(fetched) });
            return Step::Over;
        }
        cx.send(Destination::Node(from), &Message::Suspect { id: self.id });
        cx.event(Event::CorruptCopy { id: self.id, target: from });
        // Damaged on the way, or on its disk: others first, it once more when there is nobody else.
        self.tried.push(from);
        if !self.suspect.contains(&from) {
            self.suspect.push(from);
        }
        self.ask(cx);
        Step::Continue
    }

    pub(super) fn wake(&mut self, cx: &mut Shared) -> Step {
        if cx.now >= self.give_up_at && !matches!(self.phase, Phase::Verifying { .. }) {
            return self.unavailable(cx);
        }
        if matches!(self.hedge, Hedge::Due(at) if cx.now >= at) {
            self.hedge(cx);
        }
        match &mut self.phase {
            Phase::Asking { .. } => self.choose(cx, true),
            Phase::Resting { until } if cx.now >= *until => {
                self.ask(cx);
                Step::Continue
            }
            Phase::Receiving { from, incoming, due, repairs, .. } if cx.now >= *due => {
                let from = *from;
                let give_up = if incoming.is_empty() { REPAIRS / 2 } else { REPAIRS };
                if *repairs >= give_up {
                    self.tried.push(from);
                    cx.miss(from, cx.now);
                    self.ask(cx);
                    return Step::Continue;
                }
                *repairs += 1;
                *due = cx.now + cx.lateness.patience(*repairs, cx.config.late);
                let ranges = incoming.missing();
                cx.send(Destination::Node(from), &Message::Repair(Repair { txn: self.txn, rate: u32::MAX, ranges }));
                cx.event(Event::RepairAsked);
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
        if deadline.at > self.give_up_at { Deadline { at: self.give_up_at, why: "give up" } } else { deadline }
    }
}
