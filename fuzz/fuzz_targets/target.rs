//! A target among authentic but hostile initiators and other targets, behind an honest driver. It must not panic, keep its state
//! bounded, never have two accepted windows overlap, and say of no copy or piece that it is durable before it is.

#![no_main]

use std::collections::{BTreeMap, BTreeSet};

use arbitrary::Arbitrary;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use protocol::census::{Count, Counted};
use protocol::id::{ChunkId, NodeId, OpId, TxnId};
use protocol::limits;
use protocol::machine::{
    Body, Completion, Destination, Effect, Held, Input, Machine, Output, ReadFailure, Transmit, WriteFailure,
};
use protocol::promise::{Promise, Stamps, Verdict};
use protocol::redundancy::{Piece, Wanted};
use protocol::target::{Event, Request, Setup, Target};
use protocol::time::{Instant, Span};
use protocol::wire::{Ack, Answer, MAX_CONTROL, Message, TAG, datagrams, decode_message, encode_message};
use reservoir_fuzz::{AnyBegun, AnyData, Begun, CLUSTER, Knobs, Say, bytes_of, chunk, head, map, their_txn};

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
        txn: AnyTxn,
        say: Say,
    },
    Data {
        from: u8,
        txn: AnyTxn,
        data: AnyData,
    },
    Raw(Vec<u8>),
    /// The driver finishes one of the effects under way.
    Finish {
        which: u8,
        fails: u8,
    },
    FinishAll,
    Wait {
        micros: u16,
        times: u8,
    },
    /// Time passes to the deadline that the target named.
    Deadline,
    Epoch(u8),
}

/// What something is said about.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum AnyTxn {
    /// A transaction of theirs; of a get of any pieces the part that fetches a certain one.
    Theirs { n: u8, piece: Option<u8> },
    /// What the target has begun.
    Own(AnyBegun),
}

/// A copy or a piece on the disk.
struct Copy {
    bytes: Bytes,
    wanted: Wanted,
    stamps: Stamps,
}

/// The driver, and what it knows to be true.
struct World {
    target: Target,
    now: Instant,
    deadline: Option<Instant>,
    under_way: BTreeMap<OpId, Effect>,
    disk: BTreeMap<ChunkId, Copy>,
    /// Wakes in a row after which the deadline was over already.
    spins: usize,
    /// What was found damaged, and not written since.
    missing: BTreeSet<ChunkId>,
    room: u64,
    begun: Begun,
    /// The chunk that was put last in a transaction of others.
    theirs: BTreeMap<TxnId, u8>,
    /// What the target was told to put elsewhere or to let go. That it is done is said as that a copy is durable.
    orders: BTreeSet<(NodeId, TxnId)>,
    /// The moment that it noted last: nobody guesses what stands for it.
    noted: u64,
    has_stewards: bool,
    /// Accepted windows in force.
    windows: Vec<(ChunkId, Instant, Instant)>,
    /// The chunk that the present input is about.
    about: Option<ChunkId>,
}

fuzz_target!(|plan: Plan| {
    let room = if plan.little_room { 60_000 } else { 1 << 30 };
    let setup = Setup { id: NodeId(1), map: map(head(NodeId(1), 0).epoch), free: room, chunks: 0, seed: 0, bug: None };
    let config = plan.knobs.config();
    let mut world = World {
        target: Target::new(setup, config.clone()),
        now: Instant::ZERO,
        deadline: None,
        under_way: BTreeMap::new(),
        disk: BTreeMap::new(),
        spins: 0,
        missing: BTreeSet::new(),
        room,
        begun: Begun::default(),
        theirs: BTreeMap::new(),
        orders: BTreeSet::new(),
        noted: 0,
        has_stewards: config.census_interval > Span::ZERO,
        windows: Vec::new(),
        about: None,
    };
    plan.steps.into_iter().for_each(|step| world.step(step));
    world.settle();
});

/// The initiators and the targets, and what is neither.
fn node(n: u8) -> NodeId {
    NodeId(if n < 150 { NodeId::FIRST_INITIATOR + u32::from(n % 3) } else { u32::from(n % 8) })
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
                let (from, (txn, about)) = (node(from), self.txn(txn));
                if let Say::Put { chunk, .. } | Say::Grant { chunk, .. } = say {
                    self.theirs.insert(txn, chunk);
                }
                let mut message = say.message(txn, about.len());
                if let Message::Surplus { note: Some(note), .. } = &mut message {
                    *note = self.noted;
                }
                if matches!(message, Message::Restore { .. } | Message::Move { .. } | Message::Surplus { .. }) {
                    self.orders.insert((from, txn));
                }
                self.input(arrives(encode_message(head(from, epoch), &message)));
            }
            Step::Data { from, txn, data } => {
                let (txn, about) = self.txn(txn);
                self.input(arrives(data.datagram(node(from), txn, about)));
            }
            Step::Raw(bytes) => self.input(arrives(bytes.into())),
            Step::Finish { which, fails } => {
                let nth = usize::from(which) % self.under_way.len().max(1);
                if let Some(op) = self.under_way.keys().nth(nth).copied() {
                    self.finish(op, fails);
                }
            }
            Step::FinishAll => self.finish_all(),
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

    /// What it is, and about which bytes.
    fn txn(&self, txn: AnyTxn) -> (TxnId, Bytes) {
        match txn {
            AnyTxn::Theirs { n, piece } => {
                let whole = their_txn(n);
                let txn = piece.map_or(whole, |n| whole.of_piece(Piece(n % limits::PIECES as u8)));
                (txn, chunk(self.theirs.get(&txn).copied().unwrap_or(0)).1)
            }
            AnyTxn::Own(begun) => {
                let (txn, about) = self.begun.get(begun);
                (txn, bytes_of(about))
            }
        }
    }

    /// As a store does: of a coded chunk, asked for as a whole, any piece; what is not kept for what is wanted is not found.
    fn find(&mut self, id: ChunkId, promise: Option<Promise>) -> Option<Held> {
        let first = if id.code().is_some() && id.piece().is_none() { id.of_piece(Piece(0)) } else { id };
        for (id, copy) in self.disk.range_mut(first..=id) {
            promise.into_iter().for_each(|promise| copy.stamps.keep(promise));
            if promise.is_none_or(|promise| copy.wanted.covers(promise.wanted)) {
                return Some(Held { id: *id, size: copy.bytes.len() as u32, wanted: copy.wanted });
            }
        }
        None
    }

    /// An honest completion: success unless `fails` says otherwise, and then nothing happened.
    fn finish(&mut self, op: OpId, fails: u8) {
        let Some(effect) = self.under_way.remove(&op) else { return };
        self.about = match &effect {
            Effect::Lookup { id, .. } | Effect::Write { id, .. } => Some(*id),
            _ => None,
        };
        let completion = match effect {
            Effect::Lookup { id, promise } => Completion::Found(self.find(id, promise)),
            Effect::Write { id, pieces, verify, promise, .. } => {
                assert!(verify, "a write without a check");
                let bytes = Bytes::from(pieces.concat());
                let result = match fails {
                    250.. => Err(WriteFailure::Disk),
                    240.. => Err(WriteFailure::NoSpace),
                    230.. => Err(WriteFailure::Exhausted),
                    _ if !id.matches([&bytes[..]]) => Err(WriteFailure::BadHash),
                    _ => Ok(()),
                };
                if result.is_ok() {
                    self.room = self.room.saturating_sub(bytes.len() as u64);
                    self.write(id, bytes, promise);
                }
                Completion::Written { result, free: self.room }
            }
            Effect::Read { id } => Completion::Read(match (self.disk.get(&id), fails) {
                (None, _) => Err(ReadFailure::Missing),
                (_, 250..) => Err(ReadFailure::Disk),
                (_, 240..) => Err(ReadFailure::Corrupt),
                (Some(copy), _) => Ok(copy.bytes.clone()),
            }),
            Effect::List { prefix, after, limit } => {
                assert!(limit <= limits::LISTED);
                let matching = self.disk.keys().filter(|id| id.encode().starts_with(&prefix) && Some(**id) > after);
                Completion::Listed { ids: matching.take(limit).copied().collect(), more: fails % 2 == 1 }
            }
            Effect::Missing { after, limit } => {
                let mut behind = self.missing.iter().filter(|id| Some(**id) > after).copied();
                let ids = behind.by_ref().take(limit).collect();
                Completion::Listed { ids, more: behind.next().is_some() }
            }
            Effect::Scrub { after, .. } => {
                let next = self.disk.keys().find(|id| Some(**id) > after).copied();
                let bad: Vec<ChunkId> = next.filter(|_| fails >= 240).into_iter().collect();
                for id in &bad {
                    self.disk.remove(id);
                    self.missing.insert(*id);
                }
                let result = if bad.is_empty() || fails < 250 { Ok(()) } else { Err(WriteFailure::Disk) };
                Completion::Scrubbed { next, bytes: 1, bad, result }
            }
            Effect::Discard { ids, mark, since, kept_for } => {
                assert!(ids.len() <= 32 && since <= mark);
                let gone = ids.iter().enumerate().filter(|(_, id)| self.discard(id, (mark, since), kept_for, fails));
                let dropped = gone.fold(0, |mask, (bit, _)| mask | 1 << bit);
                let result = if fails < 250 { Ok(()) } else { Err(WriteFailure::Disk) };
                Completion::Discarded { dropped, bytes: 1, result }
            }
            Effect::Census { map, group, range, salt, after } => {
                let mut count = Count::new(range, salt, after);
                let counts = |id: &ChunkId| range.contains(id) && Some(*id) > after && map.group_of(id) == group;
                let held = self.disk.iter().filter(|(id, _)| counts(id));
                held.map(|(id, copy)| Counted { id: *id, wanted: copy.wanted }).all(|copy| count.add(copy));
                Completion::Counted(count.finish())
            }
            Effect::Usage => Completion::Used(protocol::wire::Usage::default()),
            effect @ (Effect::Verify { .. } | Effect::Decode { .. }) => effect.compute().expect("it needs no disk"),
        };
        self.input(Input::Done { op, completion });
    }

    fn finish_all(&mut self) {
        while let Some(op) = self.under_way.keys().next().copied() {
            self.finish(op, 0);
        }
    }

    /// Of what is there the stamps stay, and it is kept for both.
    fn write(&mut self, id: ChunkId, bytes: Bytes, promise: Promise) {
        let fresh = Copy { bytes, wanted: promise.wanted, stamps: promise.stamps() };
        let copy = self.disk.entry(id).or_insert(fresh);
        copy.wanted = copy.wanted.and(promise.wanted);
        copy.stamps.keep(promise);
        self.missing.remove(&id);
    }

    /// Whether it went.
    fn discard(&mut self, id: &ChunkId, (mark, since): (u32, u32), kept_for: Option<Wanted>, fails: u8) -> bool {
        // Nothing refers to it, so it is not missed.
        self.missing.remove(id);
        let may_go = |copy: &&mut Copy| kept_for.is_none_or(|most| most.covers(copy.wanted));
        let Some(copy) = self.disk.get_mut(id).filter(may_go) else { return false };
        let goes = copy.stamps.judge(mark, since) == Verdict::Drop && fails < 250;
        goes && self.disk.remove(id).is_some()
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
        // Of each that is put again the group and those who are said to have some are asked, piece by piece.
        let most = 4 * (before + 4) + limits::PIECES * (limits::PIECES + 8) * self.restores();
        assert!(outputs <= most, "{outputs} outputs of one input, with {before} copies in progress");
        self.check_bounds();
        // Other inputs leave deadlines to the next wake, before which more may come.
        let over = woken && self.deadline.is_some_and(|at| at <= self.now);
        self.spins = if over { self.spins + 1 } else { 0 };
        // What is put again, and was given up meanwhile, takes one turn to end, and so does each of its pieces.
        let most = self.restores() * (limits::PIECES + 1);
        assert!(self.spins <= most, "a deadline that is over already: the driver would spin");
        if over {
            self.input(Input::Wake);
        }
    }

    /// Chunks that may be put again just now: a steward orders some itself.
    fn restores(&self) -> usize {
        if self.has_stewards { limits::RESTORES } else { self.orders.len().min(limits::RESTORES) }
    }

    fn check_bounds(&self) {
        let in_progress = self.target.in_progress();
        assert!(in_progress <= limits::RESERVATIONS + limits::SERVINGS);
        let copies = self.under_way.values().filter(|e| matches!(e, Effect::Read { .. } | Effect::Write { .. }));
        let most = in_progress + limits::RESTORES;
        assert!(copies.count() <= most, "disk work for copies that nobody waits for");
        // What is computed of a piece goes on when it is not needed any more.
        let others = self.under_way.values().filter(|e| e.computes().is_none());
        assert!(others.count() <= limits::LOOKUPS + most + 1);
    }

    fn asked(&mut self, op: OpId, effect: Effect) {
        if let Effect::Write { id, .. } = &effect {
            // It was accepted as the chunk, of which its bytes say which piece they are.
            self.windows.retain(|(other, ..)| other.whole() != id.whole());
        }
        assert!(self.under_way.insert(op, effect).is_none(), "an effect's number was used twice");
    }

    fn told(&mut self, event: Event) {
        match event {
            Event::Accepted { id, start, length } => {
                let (now, end) = (self.now, start + length);
                self.windows.retain(|(_, _, end)| *end > now);
                // An empty one has nothing of the port.
                let other = self.windows.iter().find(|(_, from, to)| length > Span::ZERO && *from < end && start < *to);
                assert!(other.is_none(), "{start} to {end} overlaps {other:?}");
                self.windows.push((id, start, end));
            }
            Event::Released { id } => self.windows.retain(|(other, ..)| *other != id),
            Event::Stored { id, .. } => assert!(self.disk.contains_key(&id), "{id:?} was never written"),
            _ => {}
        }
    }

    fn transmitted(&mut self, transmit: &Transmit) {
        match &transmit.body {
            Body::Control(message) => {
                assert!(message.len() + TAG <= MAX_CONTROL);
                let (head, message) = decode_message(message).expect("what is sent can be decoded");
                assert_eq!((head.cluster, head.from), (CLUSTER, NodeId(1)));
                self.begun.note(&message);
                self.heard(transmit.to, &message);
            }
            Body::Data(run) => {
                let size = u64::from(run.header.size);
                assert!(u64::from(run.header.offset) + run.payload.len() as u64 <= size && !run.payload.is_empty());
                assert!(datagrams(run).all(|(_, part)| part.len() <= run.per_datagram));
            }
        }
    }

    /// What the target claims must be so.
    fn heard(&mut self, to: Destination, message: &Message) {
        let is_ordered = |txn| matches!(to, Destination::Node(to) if self.orders.contains(&(to, txn)));
        let claimed = match message {
            Message::Noted { note, .. } => {
                self.noted = *note;
                return;
            }
            Message::Bid(bid) => match bid.answer {
                Answer::HaveIt => self.about,
                Answer::HavePiece(piece) => self.about.map(|id| id.of_piece(piece)),
                _ => return,
            },
            Message::Ack { txn, ack } if !is_ordered(*txn) => match ack {
                Ack::Durable => self.about,
                Ack::Piece(piece) => self.about.map(|id| id.of_piece(*piece)),
                _ => return,
            },
            _ => return,
        };
        let is_so = claimed.is_some_and(|id| self.disk.contains_key(&id));
        assert!(is_so, "{message:?}, but {claimed:?} is not durable");
    }

    /// With silent initiators everything is over after a while.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            self.finish_all();
            if self.target.in_progress() == 0 {
                return;
            }
            self.now = self.now.max(self.deadline.expect("copies in progress have deadlines"));
            self.input(Input::Wake);
        }
        panic!("{} copies are in progress for ever", self.target.in_progress());
    }
}
