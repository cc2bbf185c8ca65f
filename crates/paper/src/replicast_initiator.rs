//! The initiator of Replicast with the papers' rules.

use std::collections::VecDeque;

use bytes::Bytes;
use protocol::choosy::MaxBidWait;
use protocol::id::{NodeId, TxnId};
use protocol::machine::{Deadline, Destination, Input, Output};
use protocol::map::MemberSet;
use protocol::rng::Rng;
use protocol::time::{Instant, Span};

use crate::choose::{Offer, Pick, any_common, any_in_turn, consecutive, first_free, neighbours, soonest};
use crate::config::{Choice, Config, Protocol};
use crate::wire::{Grant, Grants, Pdu, absolute, ahead, relative, span};
use crate::{Context, Event, Members, Request, txn_of};

/// Times a choosy initiator gives windows back for one put. The papers have no limit but that the wait doubles.
const CANCELS: u8 = 8;

/// A put under way.
#[derive(Debug)]
struct Put {
    handle: u64,
    asked: Instant,
    /// Beginning of this attempt.
    began: Instant,
    txn: TxnId,
    round: u8,
    payload: Bytes,
    group: usize,
    /// Members that are to answer this round, by place.
    asking: u32,
    offers: Vec<Offer>,
    /// Members that were chosen in this attempt.
    chosen: u32,
    acked: u32,
    /// When the last chosen window ends.
    booked: Instant,
    /// The members with the chosen windows that end then and before, and their ends. (Replicast-H.)
    windows: Vec<(u32, Instant)>,
    wait: MaxBidWait,
}

/// What is to be done later.
#[derive(Clone, Copy, Debug)]
struct Task {
    at: Instant,
    txn: TxnId,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Send { to: Destination },
    Query,
}

/// The machine.
#[derive(Debug)]
pub struct Initiator {
    context: Context<Event>,
    rng: Rng,
    members: Members,
    last_group: Option<usize>,
    count: u64,
    puts: Vec<Put>,
    waiting: VecDeque<(Instant, Request)>,
    tasks: Vec<Task>,
    /// Windows on our own port.
    uplink: Vec<(Instant, Instant)>,
    picks: Vec<Pick>,
    /// The maximum bid wait of the next put.
    wait: Span,
}

impl Initiator {
    pub(crate) fn new(id: NodeId, members: Members, config: Config, seed: u64) -> Self {
        let round_trip = (config.timing(1).pdu + config.trip).times(2);
        Self {
            wait: MaxBidWait::first(round_trip),
            context: Context::new(id, config),
            rng: Rng::new(seed).fork(u64::from(id.0)),
            members,
            last_group: None,
            count: 0,
            puts: Vec::new(),
            waiting: VecDeque::new(),
            tasks: Vec::new(),
            uplink: Vec::new(),
            picks: Vec::new(),
        }
    }

    pub(crate) fn handle_input(&mut self, now: Instant, input: Input<Request>) {
        self.context.advance(now);
        match input {
            Input::Request(request) => self.waiting.push_back((now, request)),
            Input::Datagram { bytes, .. } => match Pdu::decode(&bytes) {
                Some(Pdu::Bid { txn, from, round, start, length, backlog, write }) => {
                    let left = absolute(self.context.sent(), start);
                    let (right, disk_free) = (left + span(length), self.context.sent() + span(backlog));
                    let offer = Offer { target: from, bit: 0, left, right, disk_free, write: span(write) };
                    self.bid(txn, round, offer);
                }
                Some(Pdu::Ack { txn }) => self.ack(txn),
                Some(Pdu::Reject { txn, from }) => self.rejected(txn, from),
                _ => {}
            },
            Input::Wake | Input::Done { .. } | Input::Payload { .. } => {}
        }
        while self.puts.len() < self.context.config.depth.max(1)
            && let Some((asked, request)) = self.waiting.pop_front()
        {
            self.begin(request.handle, asked, request.payload);
        }
        self.run_tasks();
    }

    pub(crate) fn outputs(&mut self) -> &mut VecDeque<Output<Event>> {
        &mut self.context.out
    }

    pub(crate) fn next_deadline(&self) -> Option<Deadline> {
        let next = self.tasks.iter().map(|task| task.at).min();
        next.map(|at| Deadline { at, why: "window" })
    }

    fn begin(&mut self, handle: u64, asked: Instant, payload: Bytes) {
        let group = self.members.next_group(&mut self.rng, &mut self.last_group);
        self.count += 1;
        let put = Put {
            handle,
            asked,
            began: self.context.now,
            txn: txn_of(self.context.id, self.count),
            round: 0,
            payload,
            group,
            asking: 0,
            offers: Vec::with_capacity(self.members.groups[group].1.len()),
            chosen: 0,
            acked: 0,
            booked: self.context.now,
            windows: Vec::new(),
            wait: MaxBidWait::new(self.wait),
        };
        self.puts.push(put);
        self.ask(self.puts.len() - 1);
    }

    /// Asks every member of the group that has no copy yet.
    fn ask(&mut self, at: usize) {
        let put = &mut self.puts[at];
        let (cell, members) = &self.members.groups[put.group];
        let all = u32::MAX >> (32 - members.len());
        put.round += 1;
        put.asking = all & !put.chosen;
        put.offers.clear();
        let earliest = if put.chosen == 0 { 0 } else { ahead(put.booked, self.context.now) };
        let size = put.payload.len() as u32;
        let request = Pdu::Request { txn: put.txn, from: self.context.id, round: put.round, size, earliest };
        let to = Destination::Members(MemberSet { cell: *cell, mask: put.asking });
        self.context.send(to, &request);
    }

    fn bid(&mut self, txn: TxnId, round: u8, offer: Offer) {
        let Some(at) = self.puts.iter().position(|put| put.txn == txn && put.round == round) else { return };
        let put = &mut self.puts[at];
        let members = &self.members.groups[put.group].1;
        let Some(bit) = members.iter().position(|m| *m == offer.target) else { return };
        put.offers.push(Offer { bit: bit as u32, ..offer });
        if put.offers.len() == put.asking.count_ones() as usize {
            self.choose(at);
        }
    }

    /// All have answered: picks windows, tells everybody, books what follows.
    fn choose(&mut self, at: usize) {
        let now = self.context.now;
        let put = &mut self.puts[at];
        let copies = usize::from(self.context.config.copies);
        let t = self.context.config.timing(put.payload.len() as u32);
        let mut picks = core::mem::take(&mut self.picks);
        picks.clear();
        // Bids that begin at once arrive at once: their order is chance.
        for last in (1..put.offers.len()).rev() {
            let other = self.rng.below(last as u64 + 1) as usize;
            put.offers.swap(last, other);
        }
        put.offers.sort_by_key(|offer| offer.left);
        self.uplink.retain(|(_, end)| *end > now);
        let before = self.uplink.len();
        let hybrid = self.context.config.protocol == Protocol::ReplicastH;
        let wanted = copies - put.chosen.count_ones() as usize;
        match (hybrid, self.context.config.choice) {
            (false, Choice::Neighbours) => neighbours(&put.offers, copies, now, &t, &mut picks),
            (true, Choice::Neighbours) => consecutive(&put.offers, wanted, &t, &mut picks),
            (true, choice) => {
                let order = choice == Choice::Soonest;
                any_in_turn(&put.offers, wanted, now, &t, order, &mut self.uplink, &mut picks);
            }
            (false, choice) => {
                let uplink = &self.uplink;
                let free = |from, length| first_free(uplink, from, length);
                if choice == Choice::Soonest {
                    soonest(&put.offers, copies, now, &t, free, &mut picks);
                } else {
                    any_common(&put.offers, copies, now, &t, self.context.config.least_backlog, free, &mut picks);
                }
            }
        }
        let put = &mut self.puts[at];
        let free = first_free(&self.uplink[..before], put.booked.max(now), t.reserve);
        if self.context.config.choosy
            && let Some(first) = picks.first()
            && let Some(rest) = put.wait.reconsiders(first.left.since(free), CANCELS)
        {
            self.uplink.truncate(before);
            self.picks = picks;
            return self.cancel(at, rest);
        }
        let mut grants = Grants::default();
        for pick in &picks {
            let length = pick.right.since(pick.left).as_nanos();
            grants.push(Grant { target: pick.target.0, start: relative(pick.left, now), length });
            put.chosen |= 1 << pick.bit;
        }
        let (txn, cell, asked_of) = (put.txn, self.members.groups[put.group].0, put.asking);
        self.context.send(Destination::Members(MemberSet { cell, mask: asked_of }), &Pdu::Accept { txn, grants });
        match picks.as_slice() {
            [] if !hybrid => self.abort(at),
            [first, ..] if !hybrid => {
                let to = Destination::Members(MemberSet { cell, mask: self.puts[at].chosen });
                self.uplink.push((first.left, first.right));
                self.tasks.push(Task { at: first.left, txn, what: What::Send { to } });
            }
            picks => self.book(at, picks, t.pdu),
        }
        self.picks = picks;
    }

    /// Gives all bids of this round back, and asks again after `rest`.
    fn cancel(&mut self, at: usize, rest: Span) {
        let put = &self.puts[at];
        let (txn, cell, mask) = (put.txn, self.members.groups[put.group].0, put.asking);
        let nobody = Pdu::Accept { txn, grants: Grants::default() };
        self.context.send(Destination::Members(MemberSet { cell, mask }), &nobody);
        self.context.out.push_back(Output::Event(Event::Cancelled));
        self.tasks.push(Task { at: self.context.now + rest, txn, what: What::Query });
    }

    /// The papers' way to go on after bids without a common window: forget the chunk and begin with another.
    fn abort(&mut self, at: usize) {
        let put = self.puts.swap_remove(at);
        self.learn(put.wait);
        self.context.out.push_back(Output::Event(Event::Aborted));
        self.begin(put.handle, put.asked, put.payload);
    }

    /// Replicast-H: sends in each window, and asks for the copies that are still missing when there is a pause, or just
    /// before the last window ends.
    fn book(&mut self, at: usize, picks: &[Pick], pdu: Span) {
        let put = &mut self.puts[at];
        let (txn, now) = (put.txn, self.context.now);
        for pick in picks {
            put.windows.push((pick.bit, pick.right));
            let what = What::Send { to: Destination::Node(pick.target) };
            self.tasks.push(Task { at: pick.left, txn, what });
        }
        if put.chosen.count_ones() >= u32::from(self.context.config.copies) {
            return;
        }
        self.context.out.push_back(Output::Event(Event::AnotherRound));
        let (Some(first), Some(last), Choice::Neighbours) = (picks.first(), picks.last(), self.context.config.choice)
        else {
            // Windows may lie anywhere: nothing is gained by waiting for those that are booked.
            put.booked = now;
            return self.ask(at);
        };
        let before = core::mem::replace(&mut put.booked, last.right);
        let again = put.round > 1;
        let when = if again && first.left > before + pdu && before > now + pdu + self.context.config.trip {
            before
        } else if last.left > first.right + pdu {
            first.right
        } else {
            (last.right - pdu.times(2)).max(last.left)
        };
        self.tasks.push(Task { at: when.max(now), txn, what: What::Query });
    }

    /// A window was another's after all: the copy that was to go there goes elsewhere. What is on its way is taken there.
    fn rejected(&mut self, txn: TxnId, from: NodeId) {
        let Some(at) = self.puts.iter().position(|put| put.txn == txn) else { return };
        self.context.out.push_back(Output::Event(Event::Rejected));
        let put = &mut self.puts[at];
        let members = &self.members.groups[put.group].1;
        let bit = members.iter().position(|m| *m == from).map_or(0, |bit| 1 << bit);
        let is_open = put.offers.len() < put.asking.count_ones() as usize;
        let to = Destination::Node(from);
        let sends = |task: &Task| task.txn == txn && matches!(task.what, What::Send { to: other } if other == to);
        if let Some(sending) = self.tasks.iter().position(sends) {
            self.tasks.swap_remove(sending);
            put.chosen &= !bit;
            put.windows.retain(|(other, _)| 1 << other != bit);
            put.booked = put.windows.iter().map(|(_, end)| *end).max().unwrap_or(self.context.now);
            if !is_open {
                self.tasks.retain(|task| task.txn != txn || !matches!(task.what, What::Query));
                self.ask(at);
            }
        } else if is_open && put.offers.iter().any(|offer| offer.target == from) {
            put.offers.retain(|offer| offer.target != from);
            put.asking &= !bit;
        }
    }

    /// Averages what a put ended with into what the next one begins with.
    fn learn(&mut self, wait: MaxBidWait) {
        self.wait = (self.wait + wait.most()).div(2);
    }

    fn run_tasks(&mut self) {
        while let Some(next) = self.tasks.iter().position(|task| task.at <= self.context.now) {
            let task = self.tasks.swap_remove(next);
            let Some(at) = self.puts.iter().position(|put| put.txn == task.txn) else { continue };
            match task.what {
                What::Query => self.ask(at),
                What::Send { to } => {
                    let payload = self.puts[at].payload.clone();
                    self.context.transmit(to, task.txn, &payload, 0, payload.len() as u32);
                }
            }
        }
    }

    fn ack(&mut self, txn: TxnId) {
        let Some(at) = self.puts.iter().position(|put| put.txn == txn) else { return };
        self.puts[at].acked += 1;
        if self.puts[at].acked == u32::from(self.context.config.copies) {
            let put = self.puts.swap_remove(at);
            self.learn(put.wait);
            let (took, attempt) = (self.context.now.since(put.asked), self.context.now.since(put.began));
            self.context.out.push_back(Output::Event(Event::Put { handle: put.handle, took, attempt }));
        }
    }
}
