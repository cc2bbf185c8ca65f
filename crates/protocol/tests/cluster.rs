//! Whole conversations on a perfect network with a fixed delay: the machines alone, without a driver's tricks.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use protocol::config::{Config, Transport};
use protocol::id::{ChunkId, ClusterId, Epoch, NodeId, TxnId};
use protocol::initiator::{Bug, Event, GetError, Initiator, PutError, Request, Scope};
use protocol::machine::{
    Body, Completion, Destination, Effect, Input, Machine, Output, ReadFailure, Transmit, WriteFailure,
};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::target::{Setup, Target};
use protocol::time::{Instant, Span};
use protocol::wire::datagrams;

const DELAY: Span = Span::from_micros(10);
const DISK: Span = Span::from_micros(300);
const INITIATOR: NodeId = NodeId(NodeId::FIRST_INITIATOR + 1);

enum Item {
    Datagram(Bytes),
    Done(protocol::id::OpId, Completion),
}

struct Cluster {
    map: ClusterMap,
    now: Instant,
    initiator: Initiator,
    targets: BTreeMap<NodeId, Target>,
    disks: BTreeMap<NodeId, BTreeMap<ChunkId, Bytes>>,
    queue: BTreeMap<(Instant, u64), (NodeId, Item)>,
    sequence: u64,
    wakes: BTreeMap<NodeId, Instant>,
    dead: BTreeSet<NodeId>,
    events: Vec<Event>,
    sent: BTreeMap<&'static str, usize>,
    /// Whose payload reached the initiator, in order.
    fetched: Vec<TxnId>,
    /// What has become of every copy.
    rot: Option<Rot>,
}

/// Who notices that a copy is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rot {
    /// The target, when it reads.
    Found,
    /// The initiator, when it verifies.
    Sent,
}

fn map(targets: u32, copies: u8) -> ClusterMap {
    let entries = (1..=targets).map(|n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 }).collect();
    ClusterMap::new(ClusterId(7), Epoch(1), copies, 3, entries).expect("a good map")
}

impl Cluster {
    fn new(config: &Config) -> Self {
        Self::of(map(9, 3), config)
    }

    fn of(map: ClusterMap, config: &Config) -> Self {
        let initiator = Initiator::new(INITIATOR, map.clone(), config.clone(), 42);
        let setup = |id| Setup { id, map: map.clone(), free: 1 << 30, chunks: 0, bug: None };
        let targets = map.targets().map(|t| (t.id, Target::new(setup(t.id), config.clone()))).collect();
        let disks = map.targets().map(|t| (t.id, BTreeMap::new())).collect();
        Self {
            map,
            now: Instant::from_nanos(1),
            initiator,
            targets,
            disks,
            queue: BTreeMap::new(),
            sequence: 0,
            wakes: BTreeMap::new(),
            dead: BTreeSet::new(),
            events: Vec::new(),
            sent: BTreeMap::new(),
            fetched: Vec::new(),
            rot: None,
        }
    }

    fn push(&mut self, delay: Span, to: NodeId, item: Item) {
        self.sequence += 1;
        self.queue.insert((self.now + delay, self.sequence), (to, item));
    }

    fn transmit(&mut self, transmit: &Transmit) {
        let receivers: Vec<NodeId> = match transmit.to {
            Destination::Node(node) => vec![node],
            Destination::Members(set) => self.map.resolve(set).collect(),
        };
        let bodies: Vec<Bytes> = match &transmit.body {
            Body::Control(message) => {
                let (_, decoded) = protocol::wire::decode_message(message).expect("our own message");
                *self.sent.entry(decoded.name()).or_default() += 1;
                vec![message.clone()]
            }
            Body::Data(run) => {
                *self.sent.entry("data").or_default() += 1;
                if transmit.to == Destination::Node(INITIATOR) {
                    self.fetched.push(run.header.txn);
                }
                datagrams(run).map(|(header, payload)| [&header[..], &payload[..]].concat().into()).collect()
            }
        };
        for to in receivers {
            for body in &bodies {
                self.push(DELAY, to, Item::Datagram(body.clone()));
            }
        }
    }

    fn effect(&mut self, node: NodeId, op: protocol::id::OpId, effect: Effect) {
        let disk = self.disks.entry(node).or_default();
        let (delay, completion) = match effect {
            Effect::Lookup { id, .. } => (Span::ZERO, Completion::Found(disk.get(&id).map(|b| b.len() as u32))),
            Effect::Write { id, pieces, verify, .. } => {
                let good = !verify || id.matches(pieces.iter().map(|p| &p[..]));
                if good {
                    disk.insert(id, pieces.concat().into());
                }
                let result = if good { Ok(()) } else { Err(WriteFailure::BadHash) };
                (DISK, Completion::Written { result, free: 1 << 30 })
            }
            Effect::Read { id } => {
                let read = disk.get(&id).cloned().ok_or(ReadFailure::Missing);
                let found = self.rot.is_some_and(|rot| rot == Rot::Found);
                (DISK, Completion::Read(if found { Err(ReadFailure::Corrupt) } else { read }))
            }
            Effect::Verify { id, pieces } => {
                (Span::ZERO, Completion::Verified(id.matches(pieces.iter().map(|p| &p[..]))))
            }
            Effect::List { prefix, after, limit } => {
                let all = disk.keys().filter(|id| id.encode().starts_with(&prefix) && Some(**id) > after);
                let mut ids: Vec<ChunkId> = all.copied().collect();
                let more = ids.len() > limit;
                ids.truncate(limit);
                (Span::ZERO, Completion::Listed { ids, more })
            }
            Effect::Discard { .. } => (DISK, Completion::Discarded { dropped: 0, bytes: 0, result: Ok(()) }),
            Effect::Usage => (Span::ZERO, Completion::Used(protocol::wire::Usage::default())),
            Effect::Scrub { .. } => {
                let bad: Vec<ChunkId> = disk.keys().copied().collect();
                disk.clear();
                (Span::ZERO, Completion::Scrubbed { next: None, bytes: 0, bad, result: Ok(()) })
            }
        };
        self.push(delay, node, Item::Done(op, completion));
    }

    fn handle(&mut self, node: NodeId, item: Option<Item>) {
        if self.dead.contains(&node) {
            return;
        }
        let mut out = Vec::new();
        let now = self.now;
        let deadline = if node == INITIATOR {
            let input = match item {
                None => Input::Wake,
                Some(Item::Datagram(d)) => Input::Datagram(d),
                Some(Item::Done(op, completion)) => Input::Done { op, completion },
            };
            self.initiator.handle_input(now, input);
            self.drain_initiator(&mut out)
        } else {
            let Some(target) = self.targets.get_mut(&node) else {
                return;
            };
            let input = match item {
                None => Input::Wake,
                Some(Item::Datagram(d)) => Input::Datagram(d),
                Some(Item::Done(op, completion)) => Input::Done { op, completion },
            };
            target.handle_input(now, input);
            loop {
                match target.poll_output() {
                    Output::Transmit(t) => out.push((None, Some(t))),
                    Output::Effect { op, effect } => out.push((Some((op, effect)), None)),
                    Output::Event(_) => {}
                    Output::Idle(deadline) => break deadline,
                }
            }
        };
        self.wakes.remove(&node);
        if let Some(deadline) = deadline.filter(|d| d.at < Instant::FAR) {
            self.wakes.insert(node, deadline.at.max(now));
        }
        for (effect, transmit) in out {
            if let Some((op, effect)) = effect {
                self.effect(node, op, effect);
            }
            if let Some(transmit) = transmit {
                self.transmit(&transmit);
            }
        }
    }

    #[expect(clippy::type_complexity, reason = "a local list of two kinds of work")]
    fn drain_initiator(
        &mut self,
        out: &mut Vec<(Option<(protocol::id::OpId, Effect)>, Option<Transmit>)>,
    ) -> Option<protocol::machine::Deadline> {
        loop {
            match self.initiator.poll_output() {
                Output::Transmit(t) => out.push((None, Some(t))),
                Output::Effect { op, effect } => out.push((Some((op, effect)), None)),
                Output::Event(Event::Bid { .. }) => {}
                Output::Event(event) => self.events.push(event),
                Output::Idle(deadline) => return deadline,
            }
        }
    }

    fn request(&mut self, request: Request) {
        self.initiator.handle_input(self.now, Input::Request(request));
        let mut out = Vec::new();
        let deadline = self.drain_initiator(&mut out);
        if let Some(deadline) = deadline {
            self.wakes.insert(INITIATOR, deadline.at);
        }
        for (effect, transmit) in out {
            if let Some((op, effect)) = effect {
                self.effect(INITIATOR, op, effect);
            }
            if let Some(transmit) = transmit {
                self.transmit(&transmit);
            }
        }
    }

    /// Runs until the initiator has nothing left to do.
    fn run(&mut self) -> Vec<Event> {
        for _ in 0..2_000_000 {
            if self.initiator.in_progress() == 0 {
                return core::mem::take(&mut self.events);
            }
            let wake = self.wakes.iter().map(|(node, at)| (*at, *node)).min();
            let next = self.queue.keys().next().copied();
            match (next, wake) {
                (Some(key), wake) if wake.is_none_or(|(at, _)| key.0 <= at) => {
                    self.now = self.now.max(key.0);
                    let (node, item) = self.queue.remove(&key).expect("just seen");
                    self.handle(node, Some(item));
                }
                (_, Some((at, node))) => {
                    self.now = self.now.max(at);
                    self.wakes.remove(&node);
                    self.handle(node, None);
                }
                (_, None) => panic!("nothing left to happen, but {} unfinished", self.initiator.in_progress()),
            }
        }
        panic!("no end in sight after {}", self.now);
    }

    fn holders(&self, id: &ChunkId) -> Vec<NodeId> {
        self.disks.iter().filter(|(_, disk)| disk.contains_key(id)).map(|(n, _)| *n).collect()
    }
}

fn payload(seed: u64, len: usize) -> Bytes {
    let mut rng = protocol::rng::Rng::new(seed);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

fn configs() -> Vec<Config> {
    let base = Config { scrub_interval: Span::ZERO, ..Config::default() };
    vec![
        Config { transport: Transport::ReplicastM, ..base.clone() },
        Config { transport: Transport::ReplicastM, multicast: false, ..base.clone() },
        Config { transport: Transport::ReplicastH, ..base.clone() },
        Config { transport: Transport::ReplicastH, multicast: false, ..base.clone() },
        Config { transport: Transport::Leader, ..base.clone() },
        Config { transport: Transport::Leader, lead_gets: true, ..base.clone() },
        Config { transport: Transport::Leader, multicast: false, ..base.clone() },
        Config { transport: Transport::Hash, ..base.clone() },
        Config { transport: Transport::ReplicastM, depth: 1, ..base.clone() },
        Config { transport: Transport::ReplicastH, depth: 1, ..base.clone() },
        Config { transport: Transport::Hash, depth: 1, ..base },
    ]
}

#[test]
fn what_is_put_comes_back_with_every_transport() {
    for config in configs() {
        let mut cluster = Cluster::new(&config);
        let chunks: Vec<Bytes> = [1, 100, 16 << 10, 128 << 10, 1 << 20].map(|n| payload(n as u64, n)).to_vec();
        for (handle, chunk) in chunks.iter().enumerate() {
            let id = ChunkId::of_payload(chunk);
            cluster.request(Request::Put { handle: handle as u64, id, payload: chunk.clone(), removal: false });
        }
        for event in cluster.run() {
            let Event::Put { handle, result: Ok(stored) } = event else { panic!("{config:?}: {event:?}") };
            assert_eq!(stored.holders.len(), 3, "{config:?}");
            assert!(config.depth > 1 || stored.rounds == 1, "{config:?}: {} rounds", stored.rounds);
            assert_eq!(stored.holders, cluster.holders(&ChunkId::of_payload(&chunks[handle as usize])));
        }
        for (handle, chunk) in chunks.iter().enumerate() {
            cluster.request(Request::Get { handle: handle as u64, id: ChunkId::of_payload(chunk) });
        }
        for event in cluster.run() {
            let Event::Get { handle, result: Ok(fetched) } = event else { panic!("{config:?}: {event:?}") };
            assert_eq!(fetched.pieces.concat(), chunks[handle as usize]);
        }
        assert_eq!(cluster.sent.get("repair"), None, "{config:?}: {:?}", cluster.sent);
    }
}

#[test]
fn negotiated_gets_come_one_after_the_other() {
    for config in configs().into_iter().filter(|config| config.transport != Transport::Hash) {
        let mut cluster = Cluster::new(&config);
        let chunks: Vec<Bytes> = (0..12).map(|n| payload(n, 1 << 20)).collect();
        for (handle, chunk) in chunks.iter().enumerate() {
            let (handle, id) = (handle as u64, ChunkId::of_payload(chunk));
            cluster.request(Request::Put { handle, id, payload: chunk.clone(), removal: false });
        }
        cluster.run();
        for (handle, chunk) in chunks.iter().enumerate() {
            cluster.request(Request::Get { handle: handle as u64, id: ChunkId::of_payload(chunk) });
        }
        cluster.run();
        // A transfer takes several quanta; those of two never mix, or the port would get more than it can take.
        assert!(cluster.fetched.len() > 2 * chunks.len());
        cluster.fetched.dedup();
        assert_eq!(cluster.fetched.len(), chunks.len(), "{config:?}");
    }
}

#[test]
fn a_get_outlasts_a_cut_cable_but_not_dead_holders() {
    for config in configs() {
        let mut cluster = Cluster::new(&config);
        let chunk = payload(4, 1_000);
        let id = ChunkId::of_payload(&chunk);
        cluster.request(Request::Put { handle: 1, id, payload: chunk, removal: false });
        cluster.run();
        let holders = cluster.holders(&id);
        // How long a get lasts when these are silent.
        let mut lasts = |dead: Vec<NodeId>| {
            cluster.dead = dead.into_iter().collect();
            let begin = cluster.now;
            cluster.request(Request::Get { handle: 2, id });
            let events = cluster.run();
            let unavailable = matches!(&events[..], [Event::Get { result: Err(GetError::Unavailable { .. }), .. }]);
            assert!(unavailable, "{config:?}: {events:?}");
            cluster.now.since(begin)
        };
        assert!(lasts((1..=9).map(NodeId).collect()) >= config.give_up, "{config:?}: the cable could not be healed");
        assert!(lasts(holders) < config.give_up, "{config:?}: waited for dead holders");
    }
}

#[test]
fn a_chunk_with_only_damaged_copies_is_not_called_not_found() {
    for (config, rot) in configs().into_iter().flat_map(|c| [(c.clone(), Rot::Found), (c, Rot::Sent)]) {
        let mut cluster = Cluster::new(&config);
        let chunk = payload(4, 1_000);
        let id = ChunkId::of_payload(&chunk);
        cluster.request(Request::Put { handle: 1, id, payload: chunk, removal: false });
        cluster.run();
        let holders = cluster.holders(&id);
        cluster.rot = Some(rot);
        if rot == Rot::Sent {
            let disks = cluster.disks.values_mut();
            disks.filter_map(|disk| disk.get_mut(&id)).for_each(|copy| *copy = payload(5, 1_000));
        }
        let begin = cluster.now;
        cluster.request(Request::Get { handle: 2, id });
        let mut events = cluster.run();
        events.retain(|event| !matches!(event, Event::CorruptCopy { .. }));
        let [Event::Get { result: Err(GetError::Unavailable { silent, corrupt }), .. }] = &events[..] else {
            panic!("{config:?}, {rot:?}: {events:?}")
        };
        assert_eq!((silent.as_slice(), corrupt), (&[][..], &holders), "{config:?}, {rot:?}");
        assert!(cluster.now.since(begin) < config.give_up, "{config:?}, {rot:?}");
    }
}

#[test]
fn two_dead_targets_hinder_nothing() {
    for config in configs() {
        let mut cluster = Cluster::new(&config);
        cluster.dead.extend([NodeId(2), NodeId(7)]);
        for n in 0..40 {
            let chunk = payload(n, 5_000);
            cluster.request(Request::Put {
                handle: n,
                id: ChunkId::of_payload(&chunk),
                payload: chunk,
                removal: false,
            });
        }
        for event in cluster.run() {
            let Event::Put { result: Ok(stored), .. } = event else { panic!("{config:?}: {event:?}") };
            assert!(stored.holders.iter().all(|n| !cluster.dead.contains(n)));
        }
    }
}

#[test]
fn a_chunk_that_is_there_is_not_sent_again() {
    for config in configs() {
        let mut cluster = Cluster::new(&config);
        let chunk = payload(3, 20_000);
        let id = ChunkId::of_payload(&chunk);
        cluster.request(Request::Put { handle: 1, id, payload: chunk.clone(), removal: false });
        cluster.run();
        let sent = cluster.sent.get("data").copied();
        cluster.request(Request::Put { handle: 2, id, payload: chunk, removal: false });
        let events = cluster.run();
        assert!(matches!(&events[..], [Event::Put { result: Ok(s), .. }] if s.holders.len() == 3));
        assert_eq!(cluster.sent.get("data").copied(), sent, "{config:?}");
    }
}

#[test]
fn what_was_never_put_is_not_found() {
    for config in configs() {
        let mut cluster = Cluster::new(&config);
        cluster.request(Request::Get { handle: 1, id: ChunkId::of_payload(b"nobody has this") });
        let events = cluster.run();
        assert!(matches!(&events[..], [Event::Get { result: Err(GetError::NotFound), .. }]), "{config:?}: {events:?}");
    }
}

#[test]
fn too_few_live_targets_fail_with_names() {
    let config = Config { give_up: Span::from_millis(500), ..configs().remove(0) };
    let mut cluster = Cluster::new(&config);
    cluster.dead.extend((1..=7).map(NodeId));
    let chunk = payload(1, 1_000);
    cluster.request(Request::Put { handle: 1, id: ChunkId::of_payload(&chunk), payload: chunk, removal: false });
    let events = cluster.run();
    let [Event::Put { result: Err(PutError::TooFewCopies { have, silent, .. }), .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert!(have.len() <= 2 && silent.len() >= 7, "{have:?} {silent:?}");
}

/// Three servers of three targets each: targets 1, 2 and 3 are on the first.
fn servers() -> ClusterMap {
    let entry = |n| TargetEntry { id: NodeId(n), domain: (n as u16 - 1) / 3, capacity: 1 << 30 };
    ClusterMap::new(ClusterId(7), Epoch(1), 3, 3, (1..=9).map(entry).collect()).expect("a good map")
}

#[test]
fn a_put_that_lacks_a_failure_domain_says_so_soon() {
    // Without negotiation one silent target after the other is tried.
    for config in configs().into_iter().filter(|config| config.transport != Transport::Hash) {
        let mut cluster = Cluster::of(servers(), &config);
        cluster.dead.extend((1..=3).map(NodeId));
        // The second finds known what the first waited for.
        for (n, limit) in [(1, Span::from_secs(10)), (2, Span::from_secs(1))] {
            let (began, chunk) = (cluster.now, payload(n, 1_000));
            cluster.request(Request::Put {
                handle: n,
                id: ChunkId::of_payload(&chunk),
                payload: chunk,
                removal: false,
            });
            let events = cluster.run();
            let Some(Event::Put { result: Err(error), .. }) = events.iter().find(|e| matches!(e, Event::Put { .. }))
            else {
                panic!("{config:?}: {events:?}")
            };
            let PutError::TooFewCopies { have, domains, possible: 2, silent, .. } = error else { panic!("{error:?}") };
            assert_eq!(servers().domains(have), *domains, "{have:?}");
            assert!(!silent.is_empty() && silent.iter().all(|id| id.0 <= 3), "{config:?}: {silent:?}");
            assert!(error.to_string().starts_with("copies are needed in 3 failure domains, durable in "), "{error}");
            assert!(cluster.now.since(began) <= limit, "{config:?}: {}", cluster.now.since(began));
        }
        cluster.dead.clear();
        let chunk = payload(3, 1_000);
        cluster.request(Request::Put { handle: 3, id: ChunkId::of_payload(&chunk), payload: chunk, removal: false });
        let events = cluster.run();
        assert!(events.iter().any(|e| matches!(e, Event::Put { result: Ok(_), .. })), "{config:?}: {events:?}");
    }
}

/// Copies that are there already, two of them on one server.
#[test]
fn copies_of_one_domain_count_once() {
    let put = |bug, renew| {
        let mut cluster = Cluster::of(servers(), &configs()[0]);
        cluster.initiator = Initiator::new(INITIATOR, servers(), configs().remove(0), 42).planted(bug);
        let (chunk, handle) = (payload(1, 1_000), 1);
        let id = ChunkId::of_payload(&chunk);
        for holder in [1, 2, 4].map(NodeId) {
            cluster.disks.entry(holder).or_default().insert(id, chunk.clone());
        }
        cluster.request(if renew {
            Request::Renew { handle, id }
        } else {
            Request::Put { handle, id, payload: chunk, removal: false }
        });
        cluster.run()
    };
    let holders = |events: Vec<Event>| {
        let stored = events.into_iter().find_map(|event| match event {
            Event::Put { result, .. } => result.ok(),
            _ => None,
        });
        stored.expect("stored").holders
    };
    assert_eq!(servers().domains(&holders(put(None, false))), 3);
    let wrong = Some(Bug::IgnoreDomains);
    assert!(servers().domains(&holders(put(wrong, false))) < 3, "the planted defect does nothing");
    let renewed = |events: Vec<Event>| events.iter().any(|e| matches!(e, Event::Renew { result: Ok(true), .. }));
    assert!(!renewed(put(None, true)) && renewed(put(wrong, true)));
}

#[test]
fn lists_merge_what_many_hold_page_by_page() {
    let mut cluster = Cluster::new(&configs()[0]);
    let mut ids = BTreeSet::new();
    for n in 0..200 {
        let chunk = payload(n, 64);
        ids.insert(ChunkId::of_payload(&chunk));
        cluster.request(Request::Put { handle: n, id: ChunkId::of_payload(&chunk), payload: chunk, removal: false });
    }
    cluster.run();
    cluster.request(Request::List { handle: 1, scope: Scope::Cluster, prefix: vec![0] });
    let events = cluster.run();
    let [Event::List { result: Ok(found), .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(found.chunks.iter().map(|(id, _)| *id).collect::<BTreeSet<_>>(), ids);
    assert!(found.chunks.iter().all(|(_, by)| by.len() == 3) && found.silent.is_empty());
}

#[test]
fn control_messages_of_a_put_stay_below_128_bytes() {
    use protocol::wire::{Answer, Bid, Granted, Head, Message, PutRequest, Slot, TAG, encode_message};
    let head = Head { cluster: ClusterId(1), epoch: Epoch(1), from: NodeId(1) };
    let span = Span::from_micros(5);
    let txn = protocol::id::TxnId(1);
    let slot = Slot { start: span, length: span, transfer: span, done: span, rate: 1, size: 1 };
    let granted = (1..=3).map(|n| Granted { target: NodeId(n), offset: span }).collect();
    let request = PutRequest {
        txn,
        round: 1,
        id: ChunkId::of_payload(b"x"),
        size: 1,
        group: protocol::id::GroupId(0),
        earliest: span,
        stretch: 140,
        unreserved: false,
        removal: false,
        taken: Vec::new(),
    };
    for message in [
        Message::PutRequest(request),
        Message::Bid(Bid { txn, round: 1, answer: Answer::Window(slot) }),
        Message::Accept { txn, round: 1, granted },
    ] {
        let length = encode_message(head, &message).len() + TAG;
        assert!(length <= 128, "{} takes {length} bytes", message.name());
    }
}
