//! An initiator among authentic but hostile targets, behind an honest driver. It must not panic, keep its state bounded,
//! answer every request exactly once and in time, hand on no byte that was not verified, and count no copy that no
//! target claimed.

#![no_main]

use std::collections::{BTreeMap, BTreeSet};

use arbitrary::Arbitrary;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use protocol::id::{ChunkId, NodeId, OpId, TxnId};
use protocol::initiator::{ChunkPut, Discard, Event, Initiator, Mark, Query, Request};
use protocol::machine::{Body, Completion, Effect, Input, Machine, Output, Transmit};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::redundancy::Wanted;
use protocol::time::{Instant, Span};
use protocol::wire::{Ack, Answer, MAX_CONTROL, Message, TAG, decode_message, encode_message};
use reservoir_fuzz::{AnyData, CLUSTER, Knobs, Say, chunk, head};

const OWN: NodeId = NodeId(NodeId::FIRST_INITIATOR);

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
}

#[derive(Arbitrary, Debug)]
enum Step {
    Put(u8),
    Get(u8),
    List(u8),
    Ping,
    Map(AnyMap),
    /// A target says something about a transaction that was begun: `txn` counts back from the newest.
    Say {
        from: u8,
        epoch: u8,
        txn: u8,
        say: Say,
    },
    /// The same from several targets, one after the other.
    Chorus {
        first: u8,
        last: u8,
        txn: u8,
        say: Say,
    },
    Data {
        from: u8,
        txn: u8,
        data: AnyData,
    },
    Raw(Vec<u8>),
    Finish {
        which: u8,
    },
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
        ClusterMap::new(CLUSTER, epoch, self.copies % 4, usize::from(self.group_cells % 4), targets.collect()).ok()
    }
}

/// The driver, and what it knows to be true.
struct World {
    initiator: Initiator,
    map: ClusterMap,
    now: Instant,
    deadline: Option<Instant>,
    /// Inputs in a row after which the deadline was over already.
    spins: usize,
    under_way: BTreeMap<OpId, (ChunkId, Vec<Bytes>)>,
    /// Requests that are not answered, and the chunk they are about.
    open: BTreeMap<u64, Option<ChunkId>>,
    next_handle: u64,
    /// Transactions, in the order in which they were first heard of, and whose they are.
    txns: Vec<(TxnId, Option<ChunkId>)>,
    /// Who claimed to hold which chunk.
    claims: BTreeSet<(ChunkId, NodeId)>,
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
        txns: Vec::new(),
        claims: BTreeSet::new(),
    };
    plan.steps.into_iter().for_each(|step| world.step(step));
    world.settle();
});

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Put(n) => {
                let (id, payload) = chunk(n);
                let handle = self.open(Some(id));
                self.input(Input::Request(Request::Put { handle, put: ChunkPut::new(id, payload) }));
            }
            Step::Get(n) => {
                let id = chunk(n).0;
                let handle = self.open(Some(id));
                // Some of them were listed: in the group, and as targets that are not in the map.
                let holders = (0..u32::from(n % 3)).map(|target| NodeId(target * 3)).collect();
                self.input(Input::Request(Request::Get { handle, id, holders }));
            }
            Step::List(prefix) => {
                let prefix = chunk(prefix).0.encode()[..usize::from(prefix % 34)].to_vec();
                let handle = self.open(None);
                self.input(Input::Request(Request::Query { handle, query: Query::List { prefix } }));
            }
            Step::Ping => {
                let handle = self.open(None);
                self.input(Input::Request(Request::Query { handle, query: Query::Ping }));
            }
            Step::Renew(n) => {
                let id = chunk(n).0;
                let handle = self.open(Some(id));
                self.input(Input::Request(Request::Query { handle, query: Query::Renew { id, redundancy: None } }));
            }
            Step::Mark => {
                let handle = self.open(None);
                self.input(Input::Request(Request::Query { handle, query: Query::Mark }));
            }
            Step::Usage => {
                let handle = self.open(None);
                self.input(Input::Request(Request::Query { handle, query: Query::Usage }));
            }
            Step::Discard { chunks, since } => {
                let mark = Mark { name: TxnId(1), epoch: self.map.epoch };
                let chunks = chunks.into_iter().map(|(n, holder)| (chunk(n).0, vec![NodeId(u32::from(holder % 14))]));
                let discard = Discard { mark, since: since.then_some(mark), chunks: chunks.collect() };
                let handle = self.open(None);
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
                (first % 14..=last % 14).for_each(|from| self.say(from, 0, txn, say.clone()));
            }
            Step::Data { from, txn, data } => {
                let txn = self.txn(txn).0;
                self.input(arrives(data.datagram(NodeId(u32::from(from % 14)), txn)));
            }
            Step::Raw(bytes) => self.input(arrives(bytes.into())),
            Step::Finish { which } => {
                let nth = usize::from(which) % self.under_way.len().max(1);
                if let Some(op) = self.under_way.keys().nth(nth).copied() {
                    self.finish(op);
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
        }
    }

    fn open(&mut self, about: Option<ChunkId>) -> u64 {
        self.next_handle += 1;
        self.open.insert(self.next_handle, about);
        self.next_handle
    }

    fn txn(&self, back: u8) -> (TxnId, Option<ChunkId>) {
        let nth = self.txns.len().checked_sub(1 + usize::from(back) % self.txns.len().max(1));
        nth.map_or((TxnId(u64::from(back)), None), |nth| self.txns[nth])
    }

    fn say(&mut self, from: u8, epoch: u8, txn: u8, say: Say) {
        let from = NodeId(u32::from(from % 14));
        let (txn, about) = self.txn(txn);
        let message = say.message(txn);
        let claim = match &message {
            Message::Bid(bid) => bid.answer == Answer::HaveIt,
            Message::Ack { ack, .. } => *ack == Ack::Durable,
            _ => false,
        };
        if claim && let Some(id) = about {
            self.claims.insert((id, from));
        }
        self.input(arrives(encode_message(head(from, epoch), &message)));
    }

    fn finish(&mut self, op: OpId) {
        let Some((id, pieces)) = self.under_way.remove(&op) else { return };
        let good = id.matches(pieces.iter().map(|piece| &piece[..]));
        self.input(Input::Done { op, completion: Completion::Verified(good) });
    }

    fn input(&mut self, input: Input<Request>) {
        let before = self.initiator.in_progress();
        self.initiator.handle_input(self.now, input);
        let mut outputs = 0;
        loop {
            match self.initiator.poll_output() {
                Output::Transmit(transmit) => self.transmitted(&transmit),
                Output::Effect { op, effect: Effect::Verify { id, pieces } } => {
                    assert!(self.under_way.insert(op, (id, pieces)).is_none(), "an effect's number was used twice");
                }
                Output::Effect { effect, .. } => panic!("an initiator has no disk: {effect:?}"),
                Output::Event(event) => self.told(event),
                Output::Idle(deadline) => {
                    self.deadline = deadline.map(|deadline| deadline.at);
                    break;
                }
            }
            outputs += 1;
        }
        assert!(outputs <= 100 * (before + 2), "{outputs} outputs of one input, with {before} requests in progress");
        self.spins = if self.deadline.is_some_and(|at| at <= self.now) { self.spins + 1 } else { 0 };
        // A request that waited for a place until it was too late takes one turn to end.
        assert!(self.spins as u64 <= self.next_handle + 1, "deadlines that are over already: the driver would spin");
        assert_eq!(self.initiator.in_progress(), self.open.len());
        assert!(self.under_way.len() <= self.open.len() && (self.open.is_empty() || self.deadline.is_some()));
        if self.spins > 0 {
            self.input(Input::Wake);
        }
    }

    fn told(&mut self, event: Event) {
        let mut answered = |handle| self.open.remove(&handle).expect("one answer for each request");
        match event {
            Event::Put { handle, result } => {
                let id = answered(handle).expect("a put has a chunk");
                if let Ok(stored) = result {
                    let domains: BTreeSet<u16> = stored.holders.iter().filter_map(|n| self.map.domain(*n)).collect();
                    assert!(domains.len() >= self.map.least(Wanted::BY_MAP), "too few domains: {stored:?}");
                    assert!(
                        stored.holders.iter().all(|n| self.claims.contains(&(id, *n))),
                        "nobody said so: {stored:?}"
                    );
                }
            }
            Event::Get { handle, result } => {
                let id = answered(handle).expect("a get has a chunk");
                if let Ok(fetched) = result {
                    assert!(id.matches(fetched.pieces.iter().map(|piece| &piece[..])), "not the chunk's bytes");
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
                let begun = match message {
                    Message::PutRequest(request) => (request.txn, Some(request.id)),
                    Message::GetRequest { txn, id, .. } => (txn, Some(id)),
                    Message::List { txn, .. }
                    | Message::Ping { txn }
                    | Message::Mark { txn }
                    | Message::Usage { txn } => (txn, None),
                    Message::Discard(discard) => (discard.txn, None),
                    Message::Probe { txn, id, .. } => (txn, Some(id)),
                    _ => return,
                };
                if !self.txns.contains(&begun) {
                    self.txns.push(begun);
                }
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
            while let Some(op) = self.under_way.keys().next().copied() {
                self.finish(op);
            }
            let Some(deadline) = self.deadline.filter(|_| !self.open.is_empty()) else {
                assert!(self.open.is_empty(), "no deadline, but {} open", self.open.len());
                return;
            };
            self.now = deadline;
            self.input(Input::Wake);
        }
        panic!("{} requests are open for ever", self.open.len());
    }
}
