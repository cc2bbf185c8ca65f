//! An aggregator among authentic but hostile initiators. It must not panic, keep what it computes bounded, send to each receiver what
//! that was ordered and nothing else, with the parity of what passed, and forget all of it in time.

#![no_main]

use std::collections::BTreeMap;

use arbitrary::Arbitrary;
use bytes::Bytes;
use erasure::Code;
use libfuzzer_sys::fuzz_target;
use protocol::aggregator::{Aggregator, Event, Request, Setup};
use protocol::id::coded::Header;
use protocol::id::{ClusterId, NodeId, TxnId};
use protocol::machine::{Body, Destination, Input, Machine, Output, Transmit};
use protocol::time::{Instant, Span};
use protocol::wire::{
    AggregateOrder, Aggregating, DataHeader, MAX_CONTROL, Message, Receiver, TAG, decode_message, encode_message,
};
use reservoir_fuzz::{CLUSTER, Knobs, Rare, Say, head, map, their_txn};

const OWN: NodeId = NodeId(14);
/// Bytes of parity at once: those of one large chunk, or of several small ones.
const MEMORY: u64 = 40_000;

#[derive(Arbitrary, Debug)]
struct Plan {
    knobs: Knobs,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Say {
        from: u8,
        epoch: u8,
        txn: u8,
        say: Say,
    },
    /// Payload, of what was ordered if something was.
    Pass {
        from: u8,
        txn: u8,
        offset: u32,
        len: u16,
        /// The size to claim, if not what was ordered.
        size: Rare<u32>,
        foreign: Rare<()>,
    },
    /// All of it, in datagrams of this length, but for those that are lost.
    PassAll {
        from: u8,
        txn: u8,
        len: u16,
        lost: u8,
    },
    Raw(Vec<u8>),
    Wait {
        micros: u16,
        times: u8,
    },
    Deadline,
    Epoch(u8),
}

/// The driver, and what it knows to be true.
struct World {
    aggregator: Aggregator,
    now: Instant,
    deadline: Option<Instant>,
    /// What was ordered since nothing was under way, and what all its pieces are.
    orders: BTreeMap<Key, (AggregateOrder, Vec<Vec<u8>>)>,
    ignored: bool,
}

fuzz_target!(|plan: Plan| {
    let setup = Setup { id: OWN, map: map(head(OWN, 0).epoch), memory: MEMORY, bug: None };
    let mut world = World {
        aggregator: Aggregator::new(setup, plan.knobs.config()),
        now: Instant::ZERO,
        deadline: None,
        orders: BTreeMap::new(),
        ignored: false,
    };
    plan.steps.into_iter().for_each(|step| world.step(step));
    world.settle();
});

type Key = (NodeId, TxnId);

/// Few, so that they meet.
fn key(from: u8, txn: u8) -> Key {
    (NodeId(NodeId::FIRST_INITIATOR + u32::from(from % 3)), their_txn(txn))
}

/// What an initiator sends from one place of a transfer to another.
fn sent((_, txn): Key, from: u32, to: u32) -> Vec<u8> {
    (from..to).map(|at| (at % 251) as u8 ^ (at >> 9) as u8 ^ (txn.0 >> 5) as u8).collect()
}

/// The pieces of what was ordered: those that are sent, and those of parity. A copy is the only one.
fn pieces(key: Key, order: &AggregateOrder) -> Vec<Vec<u8>> {
    let data = order.code.map_or(1, Code::data) as u32;
    let mut all: Vec<Vec<u8>> = (0..data).map(|n| sent(key, n * order.size, (n + 1) * order.size)).collect();
    if let Some(code) = order.code {
        let before = Header::len(code);
        // The header is that of the first, but for the number.
        let mut parity = vec![all[0].clone(); code.parity()];
        (code.data()..).zip(&mut parity).for_each(|(number, piece)| piece[1] = number as u8);
        let inputs: Vec<&[u8]> = all.iter().map(|piece| &piece[before..]).collect();
        let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(|piece| &mut piece[before..]).collect();
        code.encoding().make(&inputs, &mut outputs);
        all.extend(parity);
    }
    all
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Say { from, epoch, txn, say } => {
                let key = key(from, txn);
                let message = say.message(key.1, 1_000);
                self.datagram(encode_message(head(key.0, epoch), &message));
                if let Message::Aggregating(Aggregating::Order(order)) = message
                    && !self.ignored
                {
                    let pieces = pieces(key, &order);
                    self.orders.insert(key, (order, pieces));
                    self.check_memory();
                }
            }
            Step::Pass { from, txn, offset, len, size, foreign } => {
                let key = key(from, txn);
                let size = size.get().unwrap_or(self.comes(key));
                let offset = offset % size.max(1);
                self.pass(key, (offset, size.min(offset.saturating_add(len.into()))), size, foreign.get().is_some());
            }
            Step::PassAll { from, txn, len, lost } => {
                let (key, len) = (key(from, txn), u32::from(len).max(500));
                let size = self.comes(key);
                let datagrams = (0..size.div_ceil(len)).filter(|n| lost == 0 || n % u32::from(lost) != 1);
                datagrams.for_each(|n| self.pass(key, (n * len, size.min((n + 1) * len)), size, false));
            }
            // What is ordered passes as it is sent.
            Step::Raw(bytes) => {
                let bytes = Bytes::from(bytes);
                if DataHeader::decode(&bytes).is_none() {
                    self.datagram(bytes);
                }
            }
            Step::Wait { micros, times } => {
                self.now += Span::from_micros(micros.into()).times(u64::from(times) + 1);
                self.input(Input::Wake);
            }
            Step::Deadline => {
                self.now = self.now.max(self.deadline.unwrap_or(self.now));
                self.input(Input::Wake);
            }
            Step::Epoch(n) => self.input(Input::Request(Request::Map(map(head(OWN, n).epoch)))),
        }
    }

    /// Bytes that come of an order.
    fn comes(&self, key: Key) -> u32 {
        self.orders.get(&key).map_or(1_000, |(order, _)| order.size * order.code.map_or(1, Code::data) as u32)
    }

    fn pass(&mut self, key: Key, (from, to): (u32, u32), size: u32, foreign: bool) {
        let cluster = if foreign { ClusterId(CLUSTER.0 + 1) } else { CLUSTER };
        let header = DataHeader { cluster, from: key.0, txn: key.1, offset: from, size };
        self.datagram([&header.encode()[..], &sent(key, from, to)].concat().into());
    }

    fn datagram(&mut self, bytes: Bytes) {
        self.input(Input::Datagram { bytes, arrived: self.now });
    }

    fn input(&mut self, input: Input<Request>) {
        let woken = matches!(input, Input::Wake);
        self.ignored = false;
        self.aggregator.handle_input(self.now, input);
        loop {
            match self.aggregator.poll_output() {
                Output::Transmit(transmit) => self.transmitted(&transmit),
                Output::Effect { effect, .. } => panic!("an aggregator has no disk: {effect:?}"),
                Output::Event(event) => self.ignored |= matches!(event, Event::Ignored(_)),
                Output::Idle(deadline) => {
                    self.deadline = deadline.map(|deadline| deadline.at);
                    break;
                }
            }
        }
        let over = self.deadline.is_some_and(|at| at <= self.now);
        assert!(!(woken && over), "a deadline that is over already: the driver would spin");
        assert!(self.aggregator.in_progress() == 0 || self.deadline.is_some());
        if self.aggregator.in_progress() == 0 {
            self.orders.clear();
        }
    }

    fn check_memory(&self) {
        let parity = |order: &AggregateOrder| u64::from(order.size) * order.code.map_or(0, Code::parity) as u64;
        let held: u64 = self.orders.values().map(|(order, _)| parity(order)).sum();
        // Which of them are over it does not say.
        let all_are = self.aggregator.in_progress() == self.orders.len();
        assert!(!all_are || held <= MEMORY, "{held} bytes of parity");
    }

    fn transmitted(&self, transmit: &Transmit) {
        let Destination::Node(to) = transmit.to else { panic!("{:?} has no window", transmit.to) };
        match &transmit.body {
            Body::Control(message) => {
                assert!(message.len() + TAG <= MAX_CONTROL);
                let (head, _) = decode_message(message).expect("what is sent can be decoded");
                assert_eq!((head.cluster, head.from), (CLUSTER, OWN));
            }
            Body::Data(run) => {
                let key = (run.header.from, run.header.txn);
                let (order, pieces) = self.orders.get(&key).expect("nobody ordered that");
                assert!(run.header.size == order.size && !run.payload.is_empty());
                let (from, to_receiver) = (run.header.offset as usize, |r: &&Receiver| r.target == to);
                let is_of = |r: &Receiver| {
                    pieces[usize::from(r.piece.0)].get(from..from + run.payload.len()) == Some(&run.payload[..])
                };
                assert!(
                    order.receivers.iter().filter(to_receiver).any(is_of),
                    "{:?} is not what {to} gets",
                    run.header
                );
            }
        }
    }

    /// With silent initiators everything is over after a while.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            let Some(deadline) = self.deadline else {
                assert_eq!(self.aggregator.in_progress(), 0);
                return;
            };
            self.now = self.now.max(deadline);
            self.input(Input::Wake);
        }
        panic!("{} orders are under way for ever", self.aggregator.in_progress());
    }
}
