//! A node between initiators and targets that saves initiators from sending more than once (`docs/aggregator.md`, which
//! names the paper). It passes the pieces of data of a coded chunk on, and computes the pieces of parity from them. A
//! copy that comes it sends to each receiver.
//!
//! It keeps nothing, promises nothing, and no node relies on it: targets check every piece against the chunk's id,
//! acknowledge to the initiator, and ask the initiator for what is missing. So an aggregator that loses datagrams, lies
//! or dies costs time, and no data.

mod order;
mod parity;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::calendar::{Calendar, Window};
use crate::config::Config;
use crate::id::{NodeId, TxnId};
use crate::limits;
use crate::machine::{Body, Deadline, Destination, IgnoredReason, Input, Machine, NewerMap, Output, Transmit};
use crate::map::ClusterMap;
use crate::map_fetch::{MapFetch, Step, parts};
use crate::time::{Instant, Span};
use crate::wire::{
    AggregateOrder, AggregateRequest, Aggregating, Answer, Bid, DataHeader, Head, Message, OfferedWindow,
    decode_message, encode_message, is_data,
};
use order::Order;

/// What a driver tells it.
#[derive(Clone, Debug)]
pub enum Request {
    /// A newer cluster map has come.
    Map(ClusterMap),
}

/// Bytes of parity that an aggregator computes at once, when nothing else is said.
pub const MEMORY: u64 = 256 << 20;

/// What an aggregator starts with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its id in the map.
    pub id: NodeId,
    /// The cluster's map.
    pub map: ClusterMap,
    /// Bytes of parity that it may compute at once.
    pub memory: u64,
    /// A defect to plant, to prove that the checkers find it. `None` in every daemon.
    pub bug: Option<Bug>,
}

/// What it reports, for metrics and checkers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A bid was sent.
    Bid {
        /// What it says.
        answer: Answer,
    },
    /// All of a chunk has passed.
    Passed {
        /// Bytes that came.
        came: u64,
        /// Bytes that were sent, of these of parity.
        sent: u64,
        /// See [`sent`](Self::Passed::sent).
        parity: u64,
    },
    /// Something of a chunk did not come in time: targets ask its initiator for what they lack.
    Expired,
    /// Something could not be used.
    Ignored(IgnoredReason),
    /// Others use a newer cluster map: once there is one that can be used, from them or elsewhere, hand it in with [`Request::Map`].
    NewerMap(NewerMap),
}

/// Defects that can be planted to prove that the simulator's checkers bite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Parity is computed with the coefficients of another piece.
    WrongCoefficient,
    /// What passes of one chunk is added to the parity of another as well.
    MixStripes,
    /// The sums of a chunk that has passed are those that the next begins with.
    StaleSums,
    /// Pieces of parity have each other's numbers.
    SwapPieces,
}

/// What was offered, until it is ordered.
#[derive(Clone, Copy, Debug)]
struct Offered {
    round: u8,
    /// Bytes that are kept for it if it is ordered.
    held: u64,
    code: Option<erasure::Code>,
    size: u32,
    at: Instant,
    until: Instant,
}

/// Chunks that may be under way at once, and offers that may be open; more are answered that it is busy.
const ORDERS: usize = 4_096;
/// How much longer than until its last window what was ordered may be under way, in times that an answer is late.
const LATE: u64 = 8;

/// The aggregator machine.
#[derive(Debug)]
pub struct Aggregator {
    setup: Setup,
    config: Arc<Config>,
    now: Instant,
    out: VecDeque<Output<Event>>,
    map_fetch: MapFetch,
    /// What its port outwards is taken for: that is what it has least of.
    calendar: Calendar,
    offered: BTreeMap<(NodeId, TxnId), Offered>,
    orders: BTreeMap<(NodeId, TxnId), Order>,
    /// Bytes of parity of all orders.
    held: u64,
    /// (With a bug.) Sums of what has passed.
    stale: Option<parity::Parity>,
}

impl Aggregator {
    /// One that has passed nothing yet. Its port has the configuration's rate.
    #[must_use]
    pub fn new(setup: Setup, config: impl Into<Arc<Config>>) -> Self {
        Self {
            setup,
            config: config.into(),
            now: Instant::ZERO,
            out: VecDeque::new(),
            map_fetch: MapFetch::default(),
            calendar: Calendar::default(),
            offered: BTreeMap::new(),
            orders: BTreeMap::new(),
            held: 0,
            stale: None,
        }
    }

    /// Chunks that are under way.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.orders.len()
    }

    fn event(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }

    fn ignore(&mut self, why: IgnoredReason) {
        self.event(Event::Ignored(why));
    }

    fn send(&mut self, to: NodeId, message: &Message) {
        let head = Head { cluster: self.setup.map.cluster, epoch: self.setup.map.epoch, from: self.setup.id };
        let body = Body::Control(encode_message(head, message));
        self.out.push_back(Output::Transmit(Transmit { to: Destination::Node(to), body }));
    }

    fn message(&mut self, datagram: &Bytes) {
        let Some((head, message)) = decode_message(datagram) else { return self.ignore(IgnoredReason::Invalid) };
        let from = head.from;
        if head.epoch > self.setup.map.epoch {
            let step = self.map_fetch.note_epoch(self.now, from, head.epoch, self.config.late);
            self.fetch_map(step);
        }
        match message {
            Message::Aggregating(Aggregating::Request(request)) => self.bid(from, &request),
            Message::Aggregating(Aggregating::Order(order)) => self.order(from, &order),
            Message::Ping { txn } => self.send(from, &Message::Pong { txn, free: 0, chunks: 0 }),
            Message::MapRequest(request) => {
                let map = self.setup.map.clone();
                let answers: Vec<_> = parts(&map, head.epoch, request).collect();
                if answers.is_empty() {
                    self.ignore(IgnoredReason::OtherMap);
                }
                answers.iter().for_each(|part| self.send(from, part));
            }
            Message::MapPart(part) => {
                let step = self.map_fetch.part(self.now, from, head.epoch, &part, self.config.late);
                self.fetch_map(step);
            }
            // A node that stops or starts says so to all that it hears of.
            Message::Presence { .. } => {}
            _ => self.ignore(IgnoredReason::Invalid),
        }
    }

    fn fetch_map(&mut self, step: Step) {
        match step {
            Step::Nothing => {}
            Step::Send(node, request) => self.send(node, &request),
            Step::Over(newer) => self.event(Event::NewerMap(newer)),
            Step::Unsolicited => self.ignore(IgnoredReason::Late),
        }
    }

    /// When it could take something. An offer takes the port for as long as it takes to send what comes of it; that is sent in a longer
    /// time, together with what comes of others.
    fn bid(&mut self, to: NodeId, request: &AggregateRequest) {
        let AggregateRequest { txn, round, code, size, rate, earliest } = *request;
        let (came, sent, held) = volumes(code, size);
        self.offered.remove(&(to, txn));
        let offered: u64 = self.offered.values().map(|offered| offered.held).sum();
        let is_full =
            self.orders.len() + self.offered.len() >= ORDERS || self.held + offered + held > self.setup.memory;
        let port = Span::of_transfer(sent, self.config.link_rate);
        self.calendar.prune(self.now);
        self.calendar.remove(txn);
        let (placed, _) = self.calendar.hole_for(self.now + earliest, port);
        let transfer = Span::of_transfer(came, self.config.link_rate.min(rate));
        // What it sends takes as long as what comes: it is enough when its port has had time for it at the end of that.
        let start = (placed + port - transfer).max(self.now + earliest);
        let wait = start.since(self.now);
        let answer = if is_full || wait > self.config.max_wait {
            let first = self.orders.values().map(Order::until).min().unwrap_or(self.now);
            Answer::Busy(first.since(self.now).max(wait).min(self.config.max_wait))
        } else {
            self.calendar.insert_overlapping(Window { start: placed, end: placed + port, txn });
            let until = self.now + self.config.tentative;
            self.offered.insert((to, txn), Offered { round, held, code, size, at: self.now, until });
            // All that its port carries. The initiator that orders has to know how much of that is left for parity
            // while data passes.
            let rate = self.config.link_rate;
            Answer::Window(OfferedWindow { start: wait, length: transfer, transfer, done: wait + transfer, rate, size })
        };
        self.event(Event::Bid { answer });
        self.send(to, &Message::Bid(Bid { txn, round, answer }));
    }

    fn order(&mut self, from: NodeId, ordered: &AggregateOrder) {
        let Some(offered) = self.offered.remove(&(from, ordered.txn)).filter(|o| o.round == ordered.round) else {
            return self.ignore(IgnoredReason::Late);
        };
        let is_offered = (offered.code, offered.size) == (ordered.code, ordered.size);
        let made = || Order::new(ordered, offered.at, self.config.late.times(LATE), self.setup.bug);
        let Some(order) = is_offered.then(made).flatten() else {
            self.calendar.remove(ordered.txn);
            return self.ignore(IgnoredReason::Invalid);
        };
        let order = order.with_sums(self.stale.as_ref());
        self.held += order.held();
        // One of an earlier round is over.
        if let Some(before) = self.orders.insert((from, ordered.txn), order) {
            self.held -= before.held();
        }
    }

    /// Payload passes.
    fn pass(&mut self, header: &DataHeader, payload: &Bytes) {
        if self.setup.bug == Some(Bug::MixStripes) {
            let others = self.orders.iter_mut().filter(|(key, _)| **key != (header.from, header.txn));
            others.for_each(|(_, order)| order.mix(header, payload));
        }
        let key = (header.from, header.txn);
        let Some(order) = self.orders.get_mut(&key) else { return self.ignore(IgnoredReason::Unsolicited) };
        if header.size != order.comes() || header.cluster != self.setup.map.cluster {
            return self.ignore(IgnoredReason::Invalid);
        }
        order.pass(self.now, header, payload, self.config.per_datagram, &mut |transmit| {
            self.out.push_back(Output::Transmit(transmit));
        });
        self.end(key);
    }

    /// If all of a chunk has passed, or its time is over, it is forgotten.
    fn end(&mut self, key: (NodeId, TxnId)) {
        let Some(order) = self.orders.get(&key) else { return };
        let is_over = order.is_over();
        if !is_over && self.now < order.until() {
            return;
        }
        let (held, (came, sent, parity)) = (order.held(), order.counts());
        self.held -= held;
        let order = self.orders.remove(&key);
        if self.setup.bug == Some(Bug::StaleSums) {
            self.stale = order.and_then(Order::into_parity).or(self.stale.take());
        }
        self.calendar.remove(key.1);
        self.event(if is_over { Event::Passed { came, sent, parity } } else { Event::Expired });
    }

    fn wake(&mut self) {
        let now = self.now;
        let step = self.map_fetch.wake(now, self.config.late);
        self.fetch_map(step);
        let over: Vec<(NodeId, TxnId)> =
            self.offered.iter().filter(|(_, offered)| offered.until <= now).map(|(key, _)| *key).collect();
        for key in over {
            self.offered.remove(&key);
            self.calendar.remove(key.1);
        }
        let due = |order: &Order| order.until() <= now || order.next_deadline() <= now;
        let due: Vec<(NodeId, TxnId)> =
            self.orders.iter().filter(|(_, order)| due(order)).map(|(key, _)| *key).collect();
        for key in due {
            if let Some(order) = self.orders.get_mut(&key) {
                let header =
                    DataHeader { cluster: self.setup.map.cluster, from: key.0, txn: key.1, offset: 0, size: 0 };
                order.pump(now, &header, self.config.per_datagram, &mut |transmit| {
                    self.out.push_back(Output::Transmit(transmit));
                });
            }
            self.end(key);
        }
    }
}

/// Bytes that come of a chunk, that are sent, and of parity that are kept meanwhile. Of copies as many as there may be: how many it is
/// is ordered.
fn volumes(code: Option<erasure::Code>, size: u32) -> (u64, u64, u64) {
    let size = u64::from(size);
    match code {
        Some(code) => (size * code.data() as u64, size * code.fragments() as u64, size * code.parity() as u64),
        None => (size, size * limits::COPIES as u64 / 2, 0),
    }
}

impl Machine for Aggregator {
    type Request = Request;
    type Event = Event;

    fn handle_input(&mut self, now: Instant, input: Input<Request>) {
        assert!(now >= self.now, "time went backwards, from {} to {now}", self.now);
        self.now = now;
        match input {
            Input::Wake => self.wake(),
            Input::Datagram { bytes, .. } if is_data(&bytes) => match DataHeader::decode(&bytes) {
                Some((header, payload)) => self.pass(&header, &payload),
                None => self.ignore(IgnoredReason::Invalid),
            },
            Input::Datagram { bytes, .. } => self.message(&bytes),
            Input::Payload { header, payload, .. } => self.pass(&header, &payload),
            Input::Request(Request::Map(map)) => {
                if map.epoch > self.setup.map.epoch && map.cluster == self.setup.map.cluster {
                    self.map_fetch.uses(map.epoch);
                    self.setup.map = map;
                }
            }
            // It asks for none.
            Input::Done { .. } => {}
        }
    }

    fn outputs(&mut self) -> &mut VecDeque<Output<Event>> {
        &mut self.out
    }

    fn next_deadline(&self) -> Option<Deadline> {
        let offered = self.offered.values().map(|offered| Deadline { at: offered.until, why: "offer" });
        let orders = self.orders.values();
        let orders = orders.map(|order| Deadline { at: order.next_deadline().min(order.until()), why: "order" });
        let map = self.map_fetch.next_deadline().map(|at| Deadline { at, why: "map" });
        offered.chain(orders).chain(map).min_by_key(|deadline| deadline.at)
    }
}

#[cfg(test)]
mod tests;
