//! An initiator among authentic but hostile targets and aggregators, behind an honest driver. It must not panic, keep its state
//! bounded, answer every request exactly once and in time, hand on no byte that was not verified, and count no copy or piece that
//! no target claimed.

#![no_main]

use std::collections::{BTreeMap, BTreeSet};

use arbitrary::Arbitrary;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use protocol::id::coded::join;
use protocol::id::{ChunkId, NodeId, OpId, TxnId};
use protocol::initiator::{ChunkPut, Discard, Event, Initiator, Mark, Query, Request};
use protocol::limits::PIECES;
use protocol::machine::{Body, Effect, Input, Machine, Output, Transmit};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::redundancy::{Piece, Pieces, Redundancy};
use protocol::time::{Instant, Span};
use protocol::wire::{Ack, Answer, MAX_CONTROL, Message, TAG, decode_message, encode_message};
use reservoir_fuzz::{AnyBegun, AnyData, Begun, CLUSTER, Knobs, Say, bytes_of, chunk, coded, head};

const OWN: NodeId = NodeId(NodeId::FIRST_INITIATOR);
/// Most effects of one request: of a coded chunk each piece is verified, and then they are decoded.
const EFFECTS: u64 = PIECES as u64 + 1;

#[derive(Arbitrary, Debug)]
struct Plan {
    knobs: Knobs,
    map: AnyMap,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct AnyMap {
    epoch: u8,
    targets: u8,
    domains: u8,
    copies: u8,
    group_cells: u8,
    aggregators: u8,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Put {
        chunk: u8,
        copies: Option<u8>,
        removal: bool,
    },
    Get {
        chunk: u8,
        fragments: Option<u8>,
    },
    /// As a target does that has one of them.
    Pieces(u8),
    List(u8),
    Ping,
    Map(AnyMap),
    /// A target says something about a transaction that was begun.
    Say {
        from: u8,
        epoch: u8,
        txn: AnyBegun,
        say: Say,
    },
    /// The same from several targets, one after the other; of pieces each says it of the next.
    Chorus {
        first: u8,
        last: u8,
        txn: AnyBegun,
        say: Say,
    },
    Data {
        from: u8,
        txn: AnyBegun,
        data: AnyData,
    },
    DataChorus {
        first: u8,
        last: u8,
        txn: AnyBegun,
        data: AnyData,
    },
    Raw(Vec<u8>),
    Finish {
        which: u8,
    },
    FinishAll,
    Wait {
        micros: u16,
        times: u8,
    },
    Deadline,
    Renew(u8),
    Mark,
    Usage,
    Discard {
        chunks: Vec<(u8, u8)>,
        since: bool,
    },
}

/// What was asked for, and of what.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Put(ChunkId, Option<Redundancy>),
    Get(ChunkId, Option<Pieces>),
    Pieces(ChunkId),
    Query,
}

/// A datagram that came at any time before it is handled, or just now.
fn arrives<R>(bytes: Bytes) -> Input<R> {
    let millis = bytes.last().map_or(0, |last| u64::from(*last));
    Input::Datagram { bytes, arrived: Instant::ZERO + Span::from_millis(millis) }
}

impl AnyMap {
    /// A map of few targets, if one can be made of it.
    fn get(self) -> Option<ClusterMap> {
        let domains = u16::from(self.domains % 12) + 1;
        let targets = (1..=u32::from(self.targets % 12) + 1).map(|n| TargetEntry {
            id: NodeId(n),
            domain: n as u16 % domains,
            capacity: 1 << 30,
        });
        let epoch = head(OWN, self.epoch).epoch;
        let map =
            ClusterMap::new(CLUSTER, epoch, self.copies % 4, usize::from(self.group_cells % 4), targets.collect());
        Some(map.ok()?.with_aggregators((0..u32::from(self.aggregators % 3)).map(|n| NodeId(14 + n))))
    }
}

/// Whether these are the bytes of what was asked for.
fn is_of(id: ChunkId, fragments: Option<Pieces>, bytes: &[Bytes]) -> bool {
    let Some((coded, code)) = coded(&id).zip(id.code()).filter(|_| id.piece().is_none()) else {
        return id.matches(bytes.iter().map(|piece| &piece[..]));
    };
    let all = Pieces::first(code.data());
    let wanted = fragments.map(|some| some.and(all)).filter(|some| !some.is_empty()).unwrap_or(all);
    join(&coded.pieces[..code.data()], wanted).is_some_and(|right| right.concat() == bytes.concat())
}

/// The driver, and what it knows to be true.
struct World {
    initiator: Initiator,
    map: ClusterMap,
    now: Instant,
    deadline: Option<Instant>,
    /// Inputs in a row after which the deadline was over already.
    spins: usize,
    under_way: BTreeMap<OpId, Effect>,
    /// Requests that are not answered.
    open: BTreeMap<u64, Asked>,
    next_handle: u64,
    begun: Begun,
    /// Which pieces of which chunk who claimed to hold; copies are the first of them.
    claims: BTreeMap<(ChunkId, NodeId), Pieces>,
}

fuzz_target!(|plan: Plan| {
    let Some(map) = plan.map.get() else { return };
    let mut world = World {
        initiator: Initiator::new(OWN, map.clone(), plan.knobs.config(), 1),
        map,
        now: Instant::ZERO,
        deadline: None,
        spins: 0,
        under_way: BTreeMap::new(),
        open: BTreeMap::new(),
        next_handle: 0,
        begun: Begun::default(),
        claims: BTreeMap::new(),
    };
    plan.steps.into_iter().for_each(|step| world.step(step));
    world.settle();
});

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Put { chunk: n, copies, removal } => {
                let (id, payload) = chunk(n);
                let put = coded(&id).map_or_else(|| ChunkPut::new(id, payload), |coded| ChunkPut::coded(coded.clone()));
                let redundancy = copies.and_then(|copies| Redundancy::copies(copies % 10));
                let handle = self.open(Asked::Put(put.id, redundancy));
                self.input(Input::Request(Request::Put { handle, put: ChunkPut { redundancy, removal, ..put } }));
            }
            Step::Get { chunk: n, fragments } => {
                let id = chunk(n).0;
                let fragments = fragments.map(|bits| (0..8).filter(|bit| bits >> bit & 1 > 0).map(Piece).collect());
                let handle = self.open(Asked::Get(id, fragments));
                // Some of them were listed: in the group, and as targets that are not in the map.
                let holders = (0..u32::from(n % 3)).map(|target| NodeId(target * 3)).collect();
                self.input(Input::Request(Request::Get { handle, id, holders, fragments }));
            }
            Step::Pieces(n) => {
                let (id, here) = chunk(n);
                let Some(coded) = coded(&id) else { return };
                let handle = self.open(Asked::Pieces(coded.id));
                let holders = (0..u32::from(n % 3)).map(|target| NodeId(target * 3)).collect();
                self.input(Input::Request(Request::Pieces { handle, id: coded.id, holders, here: vec![here] }));
            }
            Step::List(prefix) => {
                let prefix = chunk(prefix).0.encode()[..usize::from(prefix % 34)].to_vec();
                let handle = self.open(Asked::Query);
                self.input(Input::Request(Request::Query { handle, query: Query::List { prefix } }));
            }
            Step::Ping => {
                let handle = self.open(Asked::Query);
                self.input(Input::Request(Request::Query { handle, query: Query::Ping }));
            }
            Step::Renew(n) => {
                let id = chunk(n).0;
                let handle = self.open(Asked::Query);
                self.input(Input::Request(Request::Query { handle, query: Query::Renew { id, redundancy: None } }));
            }
            Step::Mark => {
                let handle = self.open(Asked::Query);
                self.input(Input::Request(Request::Query { handle, query: Query::Mark }));
            }
            Step::Usage => {
                let handle = self.open(Asked::Query);
                self.input(Input::Request(Request::Query { handle, query: Query::Usage }));
            }
            Step::Discard { chunks, since } => {
                let mark = Mark { name: TxnId(1), epoch: self.map.epoch };
                let chunks = chunks.into_iter().map(|(n, holder)| (chunk(n).0, vec![NodeId(u32::from(holder % 14))]));
                let discard = Discard { mark, since: since.then_some(mark), chunks: chunks.collect() };
                let handle = self.open(Asked::Query);
                self.input(Input::Request(Request::Query { handle, query: Query::Discard(discard) }));
            }
            Step::Map(map) => {
                if let Some(map) = map.get() {
                    if map.epoch > self.map.epoch {
                        self.map = map.clone();
                    }
                    self.input(Input::Request(Request::Map(map)));
                }
            }
            Step::Say { from, epoch, txn, say } => self.say(from, epoch, txn, say),
            Step::Chorus { first, last, txn, say } => {
                let nodes = (0..).zip(first % 16..=last % 16);
                nodes.for_each(|(n, from)| self.say(from, 0, txn.further(n), say.clone().further(n)));
            }
            Step::Data { from, txn, data } => {
                let (txn, about) = self.begun.get(txn);
                self.input(arrives(data.datagram(NodeId(u32::from(from % 16)), txn, bytes_of(about))));
            }
            Step::DataChorus { first, last, txn, data } => {
                for (n, from) in (0..).zip(first % 16..=last % 16) {
                    self.step(Step::Data { from, txn: txn.further(n), data });
                }
            }
            Step::Raw(bytes) => self.input(arrives(bytes.into())),
            Step::Finish { which } => {
                let nth = usize::from(which) % self.under_way.len().max(1);
                if let Some(op) = self.under_way.keys().nth(nth).copied() {
                    self.finish(op);
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
        }
    }

    fn open(&mut self, asked: Asked) -> u64 {
        self.next_handle += 1;
        self.open.insert(self.next_handle, asked);
        self.next_handle
    }

    fn say(&mut self, from: u8, epoch: u8, txn: AnyBegun, say: Say) {
        let from = NodeId(u32::from(from % 16));
        let (txn, about) = self.begun.get(txn);
        let message = say.message(txn, bytes_of(about).len());
        let claim = match &message {
            Message::Bid(bid) => match bid.answer {
                Answer::HaveIt => Some(Piece(0)),
                Answer::HavePiece(piece) => Some(piece),
                _ => None,
            },
            Message::Ack { ack: Ack::Durable, .. } => Some(Piece(0)),
            Message::Ack { ack: Ack::Piece(piece), .. } => Some(*piece),
            _ => None,
        };
        if let (Some(piece), Some(id)) = (claim, about) {
            let claimed = self.claims.entry((id.whole(), from)).or_default();
            *claimed = claimed.with(piece);
        }
        self.input(arrives(encode_message(head(from, epoch), &message)));
    }

    fn finish(&mut self, op: OpId) {
        let Some(effect) = self.under_way.remove(&op) else { return };
        let completion = effect.compute().expect("an initiator has no disk");
        self.input(Input::Done { op, completion });
    }

    fn finish_all(&mut self) {
        while let Some(op) = self.under_way.keys().next().copied() {
            self.finish(op);
        }
    }

    fn input(&mut self, input: Input<Request>) {
        let before = self.initiator.in_progress();
        self.initiator.handle_input(self.now, input);
        let mut outputs = 0;
        loop {
            match self.initiator.poll_output() {
                Output::Transmit(transmit) => self.transmitted(&transmit),
                Output::Effect { op, effect } => {
                    assert!(effect.computes().is_some(), "an initiator has no disk: {effect:?}");
                    assert!(self.under_way.insert(op, effect).is_none(), "an effect's number was used twice");
                }
                Output::Event(event) => self.told(event),
                Output::Idle(deadline) => {
                    // What only waits for the driver has none.
                    self.deadline = deadline.map(|deadline| deadline.at).filter(|at| *at < Instant::FAR);
                    break;
                }
            }
            outputs += 1;
        }
        assert!(outputs <= 100 * (before + 2), "{outputs} outputs of one input, with {before} requests in progress");
        self.spins = if self.deadline.is_some_and(|at| at <= self.now) { self.spins + 1 } else { 0 };
        // A request that waited for a place until it was too late takes one turn to end, and so does each of its pieces.
        let most = self.next_handle * EFFECTS + 1;
        assert!(self.spins as u64 <= most, "deadlines that are over already: the driver would spin");
        // Of a coded chunk there is a get for each piece beside its own.
        let (open, in_progress) = (self.open.len() as u64, self.initiator.in_progress() as u64);
        assert!((open..=open * EFFECTS).contains(&in_progress), "{in_progress} in progress for {open} requests");
        // What is verified goes on when it is not needed any more.
        assert!(self.under_way.len() as u64 <= self.next_handle * EFFECTS);
        assert!(self.open.is_empty() || self.deadline.is_some() || !self.under_way.is_empty());
        if self.spins > 0 {
            self.input(Input::Wake);
        }
    }

    fn told(&mut self, event: Event) {
        let mut answered = |handle| self.open.remove(&handle).expect("one answer for each request");
        match event {
            Event::Put { handle, result } => {
                let Asked::Put(id, redundancy) = answered(handle) else { panic!("it is no put") };
                let Ok(stored) = result else { return };
                let own = id.code().map(Redundancy::Code).or(redundancy);
                let least = self.map.least(own);
                let domains: BTreeSet<u16> = stored.holders.iter().filter_map(|n| self.map.domain(*n)).collect();
                assert!(domains.len() >= least, "too few domains: {stored:?}");
                let claimed = stored.holders.iter().map(|n| self.claims.get(&(id, *n)).copied().unwrap_or_default());
                let pieces = claimed.clone().fold(Pieces::default(), Pieces::or);
                assert!(claimed.into_iter().all(|pieces| !pieces.is_empty()), "nobody said so: {stored:?}");
                assert!(id.code().is_none() || pieces.len() >= least, "the same pieces: {stored:?}");
            }
            Event::Get { handle, result } => {
                let Asked::Get(id, fragments) = answered(handle) else { panic!("it is no get") };
                if let Ok(fetched) = result {
                    assert!(is_of(id, fragments, &fetched.pieces), "not the chunk's bytes");
                }
            }
            Event::Pieces { handle, result } => {
                let Asked::Pieces(id) = answered(handle) else { panic!("they were not asked for") };
                if let Ok(pieces) = result {
                    assert!(coded(&id).is_some_and(|coded| coded.pieces == pieces), "not the chunk's pieces");
                }
            }
            Event::Query { handle, .. } => drop(answered(handle)),
            _ => {}
        }
    }

    fn transmitted(&mut self, transmit: &Transmit) {
        match &transmit.body {
            Body::Control(message) => {
                assert!(message.len() + TAG <= MAX_CONTROL);
                let (head, message) = decode_message(message).expect("what is sent can be decoded");
                assert_eq!((head.cluster, head.from), (CLUSTER, OWN));
                self.begun.note(&message);
            }
            Body::Data(run) => {
                let size = u64::from(run.header.size);
                assert!(u64::from(run.header.offset) + run.payload.len() as u64 <= size && !run.payload.is_empty());
            }
        }
    }

    /// With silent targets every request is answered in the end.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            self.finish_all();
            let Some(deadline) = self.deadline.filter(|_| !self.open.is_empty()) else {
                assert!(self.open.is_empty(), "no deadline, but {} open", self.open.len());
                assert_eq!(self.initiator.in_progress(), 0);
                return;
            };
            self.now = deadline;
            self.input(Input::Wake);
        }
        panic!("{} requests are open for ever", self.open.len());
    }
}
