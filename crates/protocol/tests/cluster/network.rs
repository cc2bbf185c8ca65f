//! A perfect network with a fixed delay, and disks.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use protocol::census::{Count, Counted};
use protocol::config::Config;
use protocol::id::{ChunkId, ClusterId, Epoch, NodeId, TxnId};
use protocol::initiator::{ChunkPut, Event, Initiator, Request};
use protocol::machine::{
    Body, Completion, Destination, Effect, Held, IgnoredReason, Input, Machine, Output, ReadFailure, Transmit,
    WriteFailure,
};
use protocol::map::{ClusterMap, MemberSet, TargetEntry};
use protocol::promise::{Stamps, Verdict};
use protocol::redundancy::Wanted;
use protocol::target::{Bug, Setup, Target};
use protocol::time::{Instant, Span};
use protocol::wire::datagrams;

pub(super) const DELAY: Span = Span::from_micros(10);
pub(super) const DISK: Span = Span::from_micros(300);
pub(super) const INITIATOR: NodeId = NodeId(NodeId::FIRST_INITIATOR + 1);

pub(super) enum Item {
    Datagram(Bytes),
    Done(protocol::id::OpId, Completion),
}

pub(super) struct Cluster {
    pub(super) map: ClusterMap,
    pub(super) now: Instant,
    pub(super) initiator: Initiator,
    pub(super) targets: BTreeMap<NodeId, Target>,
    pub(super) disks: BTreeMap<NodeId, BTreeMap<ChunkId, Bytes>>,
    /// What is known of the use of copies.
    pub(super) stamps: BTreeMap<(NodeId, ChunkId), Stamps>,
    pub(super) queue: BTreeMap<(Instant, u64), (NodeId, Item)>,
    pub(super) sequence: u64,
    pub(super) wakes: BTreeMap<NodeId, Instant>,
    pub(super) dead: BTreeSet<NodeId>,
    /// Copies that were written.
    pub(super) written: u64,
    /// Bytes that the chunks of a target may take.
    pub(super) room: u64,
    /// How many more those of some.
    pub(super) more_room: BTreeMap<NodeId, u64>,
    pub(super) events: Vec<Event>,
    pub(super) sent: BTreeMap<&'static str, usize>,
    /// Whose payload reached the initiator, in order.
    pub(super) fetched: Vec<TxnId>,
    /// What has become of every copy.
    pub(super) rot: Option<Rot>,
    /// What a scrub dropped.
    missing: BTreeMap<NodeId, BTreeSet<ChunkId>>,
    /// How long a disk takes for a census.
    pub(super) counting: Span,
    /// Copies that are in what a census sums of large ranges, and no more when it lists small ones.
    pub(super) unlisted: BTreeSet<(NodeId, ChunkId)>,
    /// The multicast sets that each target listens to.
    pub(super) listens: BTreeMap<NodeId, Vec<MemberSet>>,
}

/// Who notices that a copy is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rot {
    /// The target, when it reads.
    Found,
    /// The initiator, when it verifies.
    Sent,
}

pub(super) fn map(targets: u32, copies: u8) -> ClusterMap {
    let entries = (1..=targets).map(|n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 }).collect();
    ClusterMap::new(ClusterId(7), Epoch(1), copies, 3, entries).expect("a good map")
}

impl Cluster {
    pub(super) fn new(config: &Config) -> Self {
        Self::of(map(9, 3), config)
    }

    pub(super) fn of(map: ClusterMap, config: &Config) -> Self {
        Self::with(map, config, None)
    }

    /// Of targets that have this defect.
    pub(super) fn with(map: ClusterMap, config: &Config, bug: Option<Bug>) -> Self {
        let initiator = Initiator::new(INITIATOR, map.clone(), config.clone(), 42);
        let setup = |id: NodeId| Setup { id, map: map.clone(), free: 1 << 30, chunks: 0, seed: u64::from(id.0), bug };
        let targets = map.targets().map(|t| (t.id, Target::new(setup(t.id), config.clone()))).collect();
        let disks = map.targets().map(|t| (t.id, BTreeMap::new())).collect();
        let listens = map.targets().map(|t| (t.id, map.memberships(t.id))).collect();
        Self {
            map,
            now: Instant::from_nanos(1),
            initiator,
            targets,
            disks,
            stamps: BTreeMap::new(),
            queue: BTreeMap::new(),
            sequence: 0,
            wakes: BTreeMap::new(),
            dead: BTreeSet::new(),
            written: 0,
            room: 1 << 30,
            more_room: BTreeMap::new(),
            events: Vec::new(),
            sent: BTreeMap::new(),
            fetched: Vec::new(),
            rot: None,
            missing: BTreeMap::new(),
            counting: DISK,
            unlisted: BTreeSet::new(),
            listens,
        }
    }

    pub(super) fn push(&mut self, delay: Span, to: NodeId, item: Item) {
        self.sequence += 1;
        self.queue.insert((self.now + delay, self.sequence), (to, item));
    }

    pub(super) fn transmit(&mut self, transmit: &Transmit) {
        let receivers: Vec<NodeId> = match transmit.to {
            Destination::Node(node) => vec![node],
            Destination::Members(set) => {
                self.map.resolve(set).filter(|to| self.listens.get(to).is_some_and(|all| all.contains(&set))).collect()
            }
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

    pub(super) fn effect(&mut self, node: NodeId, op: protocol::id::OpId, effect: Effect) {
        let room = self.room + self.more_room.get(&node).copied().unwrap_or(0);
        let disk = self.disks.entry(node).or_default();
        let live = disk.values().map(|bytes| bytes.len() as u64).sum();
        let (delay, completion) = match effect {
            effect @ (Effect::Verify { .. } | Effect::Decode { .. }) => {
                (Span::ZERO, effect.compute().expect("it needs no disk"))
            }
            Effect::Lookup { id, promise } => {
                let held = found(disk, &id);
                let id = held.map_or(id, |held| held.id);
                promise.into_iter().for_each(|promise| self.stamps.entry((node, id)).or_default().keep(promise));
                (Span::ZERO, Completion::Found(held))
            }
            Effect::Write { id, pieces, verify, promise, .. } => {
                let good = !verify || id.matches(pieces.iter().map(|p| &p[..]));
                if good {
                    self.written += 1;
                    self.stamps.entry((node, id)).or_default().keep(promise);
                    disk.insert(id, pieces.concat().into());
                }
                let result = if good { Ok(()) } else { Err(WriteFailure::BadHash) };
                (DISK, Completion::Written { result, free: room.saturating_sub(live) })
            }
            Effect::Read { id } => {
                let read = disk.get(&id).cloned().ok_or(ReadFailure::Missing);
                let found = self.rot.is_some_and(|rot| rot == Rot::Found);
                (DISK, Completion::Read(if found { Err(ReadFailure::Corrupt) } else { read }))
            }
            Effect::List { prefix, after, limit } => {
                let all = disk.keys().filter(|id| id.encode().starts_with(&prefix) && Some(**id) > after);
                (Span::ZERO, listed(all, limit))
            }
            Effect::Missing { after, limit } => {
                let missing = self.missing.entry(node).or_default();
                missing.retain(|id| !disk.contains_key(id));
                (Span::ZERO, listed(missing.iter().filter(|id| Some(**id) > after), limit))
            }
            Effect::Discard { ids, mark, since, .. } => {
                let mut dropped = 0;
                for (bit, id) in ids.iter().enumerate() {
                    let verdict = self.stamps.entry((node, *id)).or_default().judge(mark, since);
                    if verdict == Verdict::Drop && disk.remove(id).is_some() {
                        dropped |= 1 << bit;
                    }
                }
                (DISK, Completion::Discarded { dropped, bytes: 0, result: Ok(()) })
            }
            Effect::Census { map, group, range, salt, after } => {
                let mut count = Count::new(range, salt, after);
                let unlisted = |id: &ChunkId| range.depth() > 1 && self.unlisted.contains(&(node, *id));
                let held = disk.keys().filter(|id| range.contains(id) && map.group_of(id) == group && !unlisted(id));
                let _ = held.map(|id| Counted { id: *id, wanted: Wanted::BY_MAP }).all(|copy| count.add(copy));
                (self.counting, Completion::Counted(count.finish()))
            }
            Effect::Usage => {
                // What is dead is won back at once.
                let dead = 0;
                (Span::ZERO, Completion::Used(protocol::wire::Usage { live, dead, ..Default::default() }))
            }
            Effect::Scrub { .. } => {
                let bad: Vec<ChunkId> = disk.keys().copied().collect();
                disk.clear();
                self.missing.entry(node).or_default().extend(bad.iter().copied());
                (Span::ZERO, Completion::Scrubbed { next: None, bytes: 0, bad, result: Ok(()) })
            }
        };
        self.push(delay, node, Item::Done(op, completion));
    }

    pub(super) fn handle(&mut self, node: NodeId, item: Option<Item>) {
        if self.dead.contains(&node) {
            return;
        }
        let mut out = Vec::new();
        let now = self.now;
        let deadline = if node == INITIATOR {
            let input = match item {
                None => Input::Wake,
                Some(Item::Datagram(d)) => Input::Datagram { bytes: d, arrived: Instant::FAR },
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
                Some(Item::Datagram(d)) => Input::Datagram { bytes: d, arrived: Instant::FAR },
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
    pub(super) fn drain_initiator(
        &mut self,
        out: &mut Vec<(Option<(protocol::id::OpId, Effect)>, Option<Transmit>)>,
    ) -> Option<protocol::machine::Deadline> {
        loop {
            match self.initiator.poll_output() {
                Output::Transmit(t) => out.push((None, Some(t))),
                Output::Effect { op, effect } => out.push((Some((op, effect)), None)),
                // Bids of a round that is over come late, which is nobody's fault.
                Output::Event(Event::Bid { .. } | Event::Ignored(IgnoredReason::Late)) => {}
                Output::Event(event) => self.events.push(event),
                Output::Idle(deadline) => return deadline,
            }
        }
    }

    /// Asks for a put of this payload, with the redundancy of the map.
    pub(super) fn put(&mut self, handle: u64, payload: Bytes) {
        let id = ChunkId::of_payload(&payload);
        self.request(Request::Put { handle, put: ChunkPut::new(id, payload) });
    }

    pub(super) fn request(&mut self, request: Request) {
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
    pub(super) fn run(&mut self) -> Vec<Event> {
        for _ in 0..2_000_000 {
            if self.initiator.in_progress() == 0 {
                return core::mem::take(&mut self.events);
            }
            assert!(self.step(), "nothing left to happen, but {} unfinished", self.initiator.in_progress());
        }
        panic!("no end in sight after {}", self.now);
    }

    /// A target has no room any more.
    pub(super) fn fill(&mut self, id: NodeId) {
        self.tell(id, protocol::target::Request::Free(0));
    }

    /// Somebody stops a target on purpose.
    pub(super) fn stop(&mut self, id: NodeId) {
        self.tell(id, protocol::target::Request::Presence { here: false });
        self.dead.insert(id);
    }

    /// Its driver tells a target something.
    pub(super) fn tell(&mut self, id: NodeId, request: protocol::target::Request) {
        let target = self.targets.get_mut(&id).expect("it is in the map");
        target.handle_input(self.now, Input::Request(request));
        self.handle(id, None);
    }

    /// Lets so much time pass.
    pub(super) fn run_for(&mut self, span: Span) {
        let until = self.now + span;
        while self.now < until && self.step() {}
    }

    /// Does what happens next, if anything does.
    pub(super) fn step(&mut self) -> bool {
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
            (_, None) => return false,
        }
        true
    }

    pub(super) fn holders(&self, id: &ChunkId) -> Vec<NodeId> {
        self.disks.iter().filter(|(_, disk)| disk.contains_key(id)).map(|(n, _)| *n).collect()
    }
}

/// What is on a disk of a chunk.
fn found(disk: &BTreeMap<ChunkId, Bytes>, id: &ChunkId) -> Option<Held> {
    let is_it = |(held, _): &(&ChunkId, &Bytes)| **held == *id || held.whole() == *id;
    disk.iter().find(is_it).map(|(id, bytes)| Held { id: *id, size: bytes.len() as u32, wanted: Wanted::BY_MAP })
}

/// The first of these, and whether there are more.
fn listed<'i>(all: impl Iterator<Item = &'i ChunkId>, limit: usize) -> Completion {
    let mut ids: Vec<ChunkId> = all.copied().collect();
    let more = ids.len() > limit;
    ids.truncate(limit);
    Completion::Listed { ids, more }
}
