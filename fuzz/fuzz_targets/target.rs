//! A target among authentic but hostile initiators, behind an honest driver. It must not panic, keep its state bounded,
//! never have two accepted windows overlap, and say of no chunk that it is durable before it is.

#![no_main]

use std::collections::BTreeMap;

use arbitrary::Arbitrary;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use protocol::census::{Count, Counted};
use protocol::id::{ChunkId, NodeId, OpId, TxnId};
use protocol::limits;
use protocol::machine::{Body, Completion, Effect, Input, Machine, Output, ReadFailure, Transmit, WriteFailure};
use protocol::redundancy::Wanted;
use protocol::target::{Event, Request, Setup, Target};
use protocol::time::{Instant, Span};
use protocol::wire::{Ack, Answer, MAX_CONTROL, Message, TAG, datagrams, decode_message, encode_message};
use reservoir_fuzz::{AnyData, CLUSTER, Knobs, Say, head, map};

#[derive(Arbitrary, Debug)]
struct Plan {
    knobs: Knobs,
    little_room: bool,
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
    Data {
        from: u8,
        txn: u8,
        data: AnyData,
    },
    Raw(Vec<u8>),
    /// The driver finishes one of the effects under way.
    Finish {
        which: u8,
        fails: u8,
    },
    Wait {
        micros: u16,
        times: u8,
    },
    /// Time passes to the deadline that the target named.
    Deadline,
    Epoch(u8),
}

/// The driver, and what it knows to be true.
struct World {
    target: Target,
    now: Instant,
    deadline: Option<Instant>,
    under_way: BTreeMap<OpId, Effect>,
    disk: BTreeMap<ChunkId, Bytes>,
    room: u64,
    /// Accepted windows in force.
    windows: Vec<(ChunkId, Instant, Instant)>,
    /// The chunk that the present input is about.
    about: Option<ChunkId>,
}

fuzz_target!(|plan: Plan| {
    let room = if plan.little_room { 60_000 } else { 1 << 30 };
    let setup = Setup { id: NodeId(1), map: map(head(NodeId(1), 0).epoch), free: room, chunks: 0, seed: 0, bug: None };
    let mut world = World {
        target: Target::new(setup, plan.knobs.config()),
        now: Instant::ZERO,
        deadline: None,
        under_way: BTreeMap::new(),
        disk: BTreeMap::new(),
        room,
        windows: Vec::new(),
        about: None,
    };
    plan.steps.into_iter().for_each(|step| world.step(step));
    world.settle();
});

/// The initiators, and now and then something that is none.
fn initiator(n: u8) -> NodeId {
    if n > 250 { NodeId(u32::from(n) - 250) } else { NodeId(NodeId::FIRST_INITIATOR + u32::from(n % 3)) }
}

/// A datagram that came at any time before it is handled, or just now.
fn arrives<R>(bytes: Bytes) -> Input<R> {
    let millis = bytes.last().map_or(0, |last| u64::from(*last));
    Input::Datagram { bytes, arrived: Instant::ZERO + Span::from_millis(millis) }
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Say { from, epoch, txn, say } => {
                let message = encode_message(head(initiator(from), epoch), &say.message(TxnId(txn.into())));
                self.input(arrives(message));
            }
            Step::Data { from, txn, data } => {
                self.input(arrives(data.datagram(initiator(from), TxnId(txn.into()))));
            }
            Step::Raw(bytes) => self.input(arrives(bytes.into())),
            Step::Finish { which, fails } => {
                let nth = usize::from(which) % self.under_way.len().max(1);
                if let Some(op) = self.under_way.keys().nth(nth).copied() {
                    self.finish(op, fails);
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
            Step::Epoch(n) => self.input(Input::Request(Request::Map(map(head(NodeId(1), n).epoch)))),
        }
    }

    /// An honest completion: success unless `fails` says otherwise, and then nothing happened.
    fn finish(&mut self, op: OpId, fails: u8) {
        let Some(effect) = self.under_way.remove(&op) else { return };
        self.about = match &effect {
            Effect::Lookup { id, .. } | Effect::Write { id, .. } => Some(*id),
            _ => None,
        };
        let completion = match effect {
            Effect::Lookup { id, .. } => Completion::Found(self.disk.get(&id).map(|bytes| bytes.len() as u32)),
            Effect::Write { id, pieces, verify, .. } => {
                assert!(verify, "a write without a check");
                let bytes = Bytes::from(pieces.concat());
                let result = match fails {
                    250.. => Err(WriteFailure::Disk),
                    240.. => Err(WriteFailure::NoSpace),
                    _ if !id.matches([&bytes[..]]) => Err(WriteFailure::BadHash),
                    _ => Ok(()),
                };
                if result.is_ok() {
                    self.room = self.room.saturating_sub(bytes.len() as u64);
                    self.disk.insert(id, bytes);
                }
                Completion::Written { result, free: self.room }
            }
            Effect::Read { id } => Completion::Read(match (self.disk.get(&id), fails) {
                (None, _) => Err(ReadFailure::Missing),
                (_, 250..) => Err(ReadFailure::Disk),
                (_, 240..) => Err(ReadFailure::Corrupt),
                (Some(bytes), _) => Ok(bytes.clone()),
            }),
            Effect::List { prefix, after, limit } => {
                assert!(limit <= limits::LISTED);
                let matching = self.disk.keys().filter(|id| id.encode().starts_with(&prefix) && Some(**id) > after);
                Completion::Listed { ids: matching.take(limit).copied().collect(), more: fails % 2 == 1 }
            }
            Effect::Scrub { after, .. } => {
                let next = self.disk.keys().find(|id| Some(**id) > after).copied();
                let bad: Vec<ChunkId> = next.filter(|_| fails >= 240).into_iter().collect();
                for id in &bad {
                    self.disk.remove(id);
                }
                let result = if bad.is_empty() || fails < 250 { Ok(()) } else { Err(WriteFailure::Disk) };
                Completion::Scrubbed { next, bytes: 1, bad, result }
            }
            Effect::Discard { ids, mark, since, .. } => {
                assert!(ids.len() <= 32 && since <= mark);
                let gone = ids.iter().enumerate().filter(|(_, id)| fails < 250 && self.disk.remove(*id).is_some());
                let dropped = gone.fold(0, |mask, (bit, _)| mask | 1 << bit);
                let result = if fails < 250 { Ok(()) } else { Err(WriteFailure::Disk) };
                Completion::Discarded { dropped, bytes: 1, result }
            }
            Effect::Census { range, salt, after, .. } => {
                let mut count = Count::new(range, salt, after);
                let held = self.disk.keys().filter(|id| range.contains(id) && Some(**id) > after);
                held.map(|id| Counted { id: *id, wanted: Wanted::BY_MAP }).all(|copy| count.add(copy));
                Completion::Counted(count.finish())
            }
            Effect::Usage => Completion::Used(protocol::wire::Usage::default()),
            Effect::Verify { .. } => panic!("a target does not verify"),
        };
        self.input(Input::Done { op, completion });
    }

    fn input(&mut self, input: Input<Request>) {
        let before = self.target.in_progress();
        if let Input::Datagram { bytes: datagram, .. } = &input {
            self.about = decode_message(datagram).and_then(|(_, message)| match message {
                Message::PutRequest(request) => Some(request.id),
                Message::Probe { id, .. } => Some(id),
                _ => None,
            });
        }
        let woken = matches!(input, Input::Wake);
        self.target.handle_input(self.now, input);
        let mut outputs = 0;
        loop {
            match self.target.poll_output() {
                Output::Transmit(transmit) => self.transmitted(&transmit),
                Output::Effect { op, effect } => self.asked(op, effect),
                Output::Event(event) => self.told(event),
                Output::Idle(deadline) => {
                    self.deadline = deadline.map(|deadline| deadline.at);
                    break;
                }
            }
            outputs += 1;
        }
        assert!(outputs <= 4 * (before + 4), "{outputs} outputs of one input, with {before} copies in progress");
        // Other inputs leave deadlines to the next wake, before which more may come.
        let over = self.deadline.is_some_and(|at| at <= self.now);
        assert!(!(woken && over), "a deadline that is over already: the driver would spin");
        self.check_bounds();
    }

    fn check_bounds(&self) {
        let in_progress = self.target.in_progress();
        assert!(in_progress <= limits::RESERVATIONS + limits::SERVINGS);
        let copies = self.under_way.values().filter(|e| matches!(e, Effect::Read { .. } | Effect::Write { .. }));
        let most = in_progress + limits::RESTORES;
        assert!(copies.count() <= most, "disk work for copies that nobody waits for");
        assert!(self.under_way.len() <= limits::LOOKUPS + most + 1);
    }

    fn asked(&mut self, op: OpId, effect: Effect) {
        if let Effect::Write { id, .. } = &effect {
            self.windows.retain(|(other, ..)| other != id);
        }
        assert!(self.under_way.insert(op, effect).is_none(), "an effect's number was used twice");
    }

    fn told(&mut self, event: Event) {
        match event {
            Event::Accepted { id, start, length } => {
                let (now, end) = (self.now, start + length);
                self.windows.retain(|(_, _, end)| *end > now);
                let other = self.windows.iter().find(|(_, from, to)| *from < end && start < *to);
                assert!(other.is_none(), "{start} to {end} overlaps {other:?}");
                self.windows.push((id, start, end));
            }
            Event::Released { id } => self.windows.retain(|(other, ..)| *other != id),
            Event::Stored { id, .. } => assert!(self.disk.contains_key(&id), "{id:?} was never written"),
            _ => {}
        }
    }

    fn transmitted(&self, transmit: &Transmit) {
        match &transmit.body {
            Body::Control(message) => {
                assert!(message.len() + TAG <= MAX_CONTROL);
                let (head, message) = decode_message(message).expect("what is sent can be decoded");
                assert_eq!((head.cluster, head.from), (CLUSTER, NodeId(1)));
                self.heard(&message);
            }
            Body::Data(run) => {
                let size = u64::from(run.header.size);
                assert!(u64::from(run.header.offset) + run.payload.len() as u64 <= size && !run.payload.is_empty());
                assert!(datagrams(run).all(|(_, part)| part.len() <= run.per_datagram));
            }
        }
    }

    /// What the target claims must be so.
    fn heard(&self, message: &Message) {
        let durable = match message {
            Message::Bid(bid) => bid.answer == Answer::HaveIt,
            Message::Ack { ack, .. } => *ack == Ack::Durable,
            _ => false,
        };
        let is_so = self.about.is_some_and(|id| self.disk.contains_key(&id));
        assert!(!durable || is_so, "{message:?}, but {:?} is not durable", self.about);
    }

    /// With silent initiators everything is over after a while.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            while let Some(op) = self.under_way.keys().next().copied() {
                self.finish(op, 0);
            }
            if self.target.in_progress() == 0 {
                return;
            }
            self.now = self.now.max(self.deadline.expect("copies in progress have deadlines"));
            self.input(Input::Wake);
        }
        panic!("{} copies are in progress for ever", self.target.in_progress());
    }
}
