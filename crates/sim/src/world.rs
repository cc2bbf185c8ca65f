//! One cluster on one event queue, ordered by time, then by a seeded shuffle of ties.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use protocol::id::{ChunkId, ClusterId, Epoch, NodeId, OpId};
use protocol::initiator::{self, GetError, Initiator};
use protocol::machine::{Body, Completion, Destination, Effect, Input, Machine, Output, Transmit};
use protocol::map::{ClusterMap, MemberSet, TargetEntry};
use protocol::rng::{Rng, mix};
use protocol::target::{self, Setup, Target};
use protocol::time::{Instant, Span};
use protocol::wire::{Opener, Sealer, datagrams};
use store::Options;

use crate::Outcome;
use crate::check::Windows;
use crate::disk::{Acknowledged, Answer, Disk};
use crate::net::{Net, listeners};
use crate::swarm::{GROUP_CELLS, NewMap, Planted, Scenario};

const CLUSTER: ClusterId = ClusterId(0x51);
const KEY: [u8; 32] = [0x17; 32];
/// Time in which faults happen.
const STORM: Span = Span::from_millis(400);
/// Time by which everything must be done.
const END: Span = Span::from_secs(30);

enum Machinery {
    Initiator(Box<Initiator>),
    Target(Box<Target>, Disk),
    /// A target without power.
    Down(Disk),
    /// Only while it changes from one of these to another.
    Gone,
}

struct Node {
    machinery: Machinery,
    sealer: Sealer,
    opener: Opener,
    /// The node's clock: this far ahead, and so many parts per million fast.
    offset: u64,
    drift: u64,
    /// Which map it uses, and whether it finds the newer one later than others.
    map: usize,
    late: bool,
    /// Counts restarts and wakes, so that what was meant for an earlier life or deadline is known.
    life: u32,
    wake: u64,
}

impl Node {
    fn local(&self, now: Instant) -> Instant {
        let nanos = u128::from(now.as_nanos());
        Instant::from_nanos(self.offset + (nanos + nanos * u128::from(self.drift) / 1_000_000) as u64)
    }

    fn global(&self, local: Instant) -> Instant {
        let nanos = u128::from(local.as_nanos().saturating_sub(self.offset));
        Instant::from_nanos((nanos * 1_000_000 / u128::from(1_000_000 + self.drift)) as u64 + 1)
    }
}

enum Happening {
    Datagram(NodeId, Bytes),
    Done(NodeId, u32, OpId, Completion),
    Commit(NodeId, u32),
    Wake(NodeId, u64),
    Crash(NodeId),
    Restart(NodeId),
    InitiatorCrash,
    Cut(NodeId, bool, bool),
    Mend,
    Flip(NodeId, u64),
    NewMap,
    Heal,
}

pub(crate) struct World<'a> {
    scenario: &'a Scenario,
    /// The cluster maps: the first one, and the newer one if there is one.
    maps: Vec<ClusterMap>,
    /// Who listens to which multicast number, under each map. Empty while there is one map: then its sets say so.
    listeners: Vec<BTreeMap<u32, Vec<NodeId>>>,
    now: Instant,
    queue: BTreeMap<(Instant, u64, u64), Happening>,
    sequence: u64,
    ties: Rng,
    rng: Rng,
    net: Net,
    nodes: BTreeMap<NodeId, Node>,
    initiators: Vec<NodeId>,
    next_initiator: u32,
    /// Requests under way: what was asked, by initiator and handle.
    open: BTreeMap<(NodeId, u64), Asked>,
    next_handle: u64,
    puts_left: u32,
    gets_left: u32,
    acknowledged: Acknowledged,
    /// When a chunk first became durable on each target: two puts of it may write to one target twice.
    durable_at: BTreeMap<ChunkId, BTreeMap<NodeId, Instant>>,
    healed: bool,
    flipped: Option<NodeId>,
    windows: Windows,
    outcome: Outcome,
    trace: Option<&'a mut dyn FnMut(&str)>,
}

enum Asked {
    /// Chunk, bytes, whether it was asked after the heal, and whether nobody else puts it.
    Put(ChunkId, Bytes, bool, bool),
    /// Chunk, and whether it was asked after the heal.
    Get(ChunkId, bool),
}

impl<'a> World<'a> {
    pub(crate) fn new(scenario: &'a Scenario, trace: Option<&'a mut dyn FnMut(&str)>) -> Self {
        let seeds = Rng::new(scenario.seed);
        let map = |epoch: u32, targets: u32| {
            let entry = |n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: scenario.capacity };
            let entries = (1..=targets).map(entry).collect();
            ClusterMap::new(CLUSTER, Epoch(epoch), scenario.copies, GROUP_CELLS, entries)
                .unwrap_or_else(|error| panic!("seed {}: {error}", scenario.seed))
        };
        let mut maps = vec![map(1, scenario.targets)];
        maps.extend(scenario.new_map.map(|new| map(2, scenario.targets + u32::from(new.grows))));
        let listeners = if maps.len() > 1 { maps.iter().map(listeners).collect() } else { Vec::new() };
        let mut world = Self {
            scenario,
            maps,
            listeners,
            now: Instant::from_nanos(1_000),
            queue: BTreeMap::new(),
            sequence: 0,
            ties: seeds.fork(2),
            rng: seeds.fork(3),
            net: Net::new(scenario.link, scenario.faults, seeds.fork(4)),
            nodes: BTreeMap::new(),
            initiators: Vec::new(),
            next_initiator: NodeId::FIRST_INITIATOR,
            open: BTreeMap::new(),
            next_handle: 0,
            puts_left: scenario.operations,
            gets_left: scenario.operations,
            acknowledged: BTreeMap::new(),
            durable_at: BTreeMap::new(),
            healed: false,
            flipped: None,
            windows: Windows::default(),
            outcome: Outcome { digest: scenario.seed, puts: 0, gets: 0, events: 0, failure: None },
            trace,
        };
        world.build();
        world
    }

    fn build(&mut self) {
        for n in 1..=self.scenario.targets {
            self.add_target(n);
        }
        for _ in 0..self.scenario.initiators {
            self.add_initiator();
        }
        self.storm();
    }

    fn add_target(&mut self, n: u32) {
        let (rate, sync) = self.scenario.disk;
        let slow = self.scenario.slow.filter(|(which, _)| *which + 1 == n).map_or(1, |(_, times)| times);
        let options = Options {
            capacity: self.scenario.capacity,
            reserve: self.scenario.capacity / 32,
            segment_size: 128 << 10,
            cluster: CLUSTER.0,
            target: n,
        };
        let disk = Disk::new(options, (rate / slow).max(1), sync.times(slow));
        let late = self.is_late(n);
        let target = self.target(NodeId(n), &disk, self.file(late));
        self.add(NodeId(n), Machinery::Target(Box::new(target), disk), late);
    }

    /// Half of the nodes find the newer map later.
    fn is_late(&self, n: u32) -> bool {
        self.scenario.new_map.is_some() && mix(self.scenario.seed ^ u64::from(n)) & 1 == 1
    }

    /// Which map is in a node's file now.
    fn file(&self, late: bool) -> usize {
        let there = |new: NewMap| self.now >= Instant::from_nanos(0) + if late { new.found } else { new.told };
        usize::from(self.scenario.new_map.is_some_and(there))
    }

    /// Hands a node the map in its file, if that is newer than the one in use.
    fn reload(&mut self, id: NodeId) {
        let Some((late, used)) = self.nodes.get(&id).map(|node| (node.late, node.map)) else { return };
        let found = self.file(late);
        if found > used {
            self.note(12, id, 0, || "uses the newer map".to_owned());
            if let Some(node) = self.nodes.get_mut(&id) {
                node.map = found;
            }
            self.input(id, None, Some(initiator::Request::Map(self.maps[found].clone())));
        }
    }

    fn new_map(&mut self, new: NewMap) {
        if new.grows {
            self.add_target(self.scenario.targets + 1);
        }
        let told: Vec<NodeId> = self.nodes.iter().filter(|(_, node)| !node.late).map(|(id, _)| *id).collect();
        told.into_iter().for_each(|id| self.reload(id));
    }

    fn add(&mut self, id: NodeId, machinery: Machinery, late: bool) {
        let node = Node {
            machinery,
            sealer: Sealer::new(KEY, self.now.as_nanos()),
            opener: Opener::new(KEY, CLUSTER),
            offset: self.rng.below(1_000_000_000),
            drift: self.rng.below(self.scenario.drift + 1),
            map: self.file(late),
            late,
            life: 0,
            wake: 0,
        };
        self.nodes.insert(id, node);
    }

    fn target(&self, id: NodeId, disk: &Disk, map: usize) -> Target {
        let bug = match self.scenario.planted {
            Some(Planted::Target(bug)) => Some(bug),
            Some(Planted::LoseIndexTail) | None => None,
        };
        let (chunks, free) = disk.chunks();
        let epoch = self.maps[map].epoch;
        Target::new(Setup { id, cluster: CLUSTER, epoch, free, chunks, bug }, self.scenario.config.clone())
    }

    fn add_initiator(&mut self) {
        let id = NodeId(self.next_initiator);
        self.next_initiator += 1;
        let seed = self.rng.next_u64();
        let late = self.is_late(id.0);
        let map = self.maps[self.file(late)].clone();
        let machine = Initiator::new(id, map, self.scenario.config.clone(), seed);
        self.add(id, Machinery::Initiator(Box::new(machine)), late);
        self.initiators.push(id);
    }

    /// Schedules the faults, and the end of all faults.
    fn storm(&mut self) {
        let storm = STORM.as_nanos();
        let draw = |world: &mut Self| world.now + Span::from_nanos(world.rng.below(storm));
        for _ in 0..self.scenario.crashes {
            let node = NodeId(1 + self.rng.below(u64::from(self.scenario.targets)) as u32);
            let at = draw(self);
            let back = at + Span::from_nanos(self.rng.below(storm / 4));
            self.push(at, Happening::Crash(node));
            self.push(back, Happening::Restart(node));
        }
        for _ in 0..self.scenario.initiator_crashes {
            let at = draw(self);
            self.push(at, Happening::InitiatorCrash);
        }
        for _ in 0..self.scenario.partitions {
            let node = NodeId(1 + self.rng.below(u64::from(self.scenario.targets)) as u32);
            let (at, way) = (draw(self), self.rng.below(3));
            let back = at + Span::from_nanos(self.rng.below(storm / 4));
            self.push(at, Happening::Cut(node, way != 0, way != 1));
            self.push(back, Happening::Mend);
        }
        let victim = NodeId(1 + self.rng.below(u64::from(self.scenario.targets)) as u32);
        for _ in 0..self.scenario.flips {
            let (at, seed) = (draw(self), self.rng.next_u64());
            self.push(at, Happening::Flip(victim, seed));
        }
        if let Some(new) = self.scenario.new_map {
            self.push(Instant::ZERO + new.told, Happening::NewMap);
        }
        self.push(self.now + STORM, Happening::Heal);
    }

    fn push(&mut self, at: Instant, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((at.max(self.now), self.ties.next_u64(), self.sequence), happening);
    }

    fn note(&mut self, what: u64, node: NodeId, size: usize, text: impl FnOnce() -> String) {
        let fact = self.now.as_nanos() ^ mix(what << 32 | u64::from(node.0)) ^ mix(size as u64);
        self.outcome.digest = mix(self.outcome.digest ^ fact);
        if let Some(trace) = &mut self.trace {
            trace(&format!("{} {node} {}", self.now, text()));
        }
    }

    fn fail(&mut self, why: String) {
        self.outcome.failure.get_or_insert(why);
    }

    /// Runs to the end, or to the first failure.
    pub(crate) fn run(mut self) -> Outcome {
        for id in self.initiators.clone() {
            self.feed(id);
        }
        while self.outcome.failure.is_none() {
            if self.is_finished() {
                self.last_check();
                break;
            }
            let Some(((at, _, _), happening)) = self.queue.pop_first() else {
                self.fail("nothing is left to happen, but requests are open".to_owned());
                break;
            };
            self.now = at;
            self.outcome.events += 1;
            if at > Instant::ZERO + END {
                let open = self.open.len();
                self.fail(format!(
                    "no end: {open} requests open, {} puts and {} gets to come",
                    self.puts_left, self.gets_left
                ));
                break;
            }
            self.happen(happening);
        }
        self.outcome
    }

    fn is_finished(&self) -> bool {
        self.healed && self.open.is_empty() && self.puts_left == 0 && self.gets_left == 0
    }

    /// Every acknowledged chunk has its copies, byte for byte, and nothing stays reserved for ever.
    fn last_check(&mut self) {
        let copies = usize::from(self.scenario.copies);
        for (id, bytes) in &self.acknowledged {
            let holders = self.nodes.iter().filter(|(node, _)| Some(**node) != self.flipped);
            let good = holders.filter(|(_, node)| match &node.machinery {
                Machinery::Target(_, disk) | Machinery::Down(disk) => disk.durable(id).as_ref() == Some(bytes),
                Machinery::Initiator(_) | Machinery::Gone => false,
            });
            let (good, damaged) = (good.count(), usize::from(self.flipped.is_some()));
            if good + damaged < copies {
                self.outcome.failure.get_or_insert(format!("{id:?} has {good} good copies of {copies} at the end"));
            }
        }
        // A second of quiet: tentative windows must go.
        let until = self.now + Span::from_secs(1);
        while let Some(((at, _, _), happening)) = self.queue.pop_first().filter(|((at, ..), _)| *at < until) {
            self.now = at;
            self.happen(happening);
        }
        let held: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, node)| matches!(&node.machinery, Machinery::Target(t, _) if t.in_progress() > 0))
            .map(|(id, _)| *id)
            .collect();
        if !held.is_empty() {
            self.fail(format!("{held:?} hold reservations after a second of quiet"));
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Datagram(to, datagram) => self.deliver(to, datagram),
            Happening::Done(node, life, op, completion) => {
                if self.nodes.get(&node).is_some_and(|n| n.life == life) {
                    self.input(node, Some(Input::Done { op, completion }), None);
                }
            }
            Happening::Commit(node, life) => self.commit(node, life),
            Happening::Wake(node, wake) => {
                if self.nodes.get(&node).is_some_and(|n| n.wake == wake) {
                    self.input(node, None, None);
                }
            }
            Happening::Crash(node) => self.crash(node),
            Happening::Restart(node) => self.restart(node),
            Happening::InitiatorCrash => self.initiator_crash(),
            Happening::Cut(node, out, inward) if !self.healed => self.net.cut = Some((node, out, inward)),
            Happening::Cut(..) => {}
            Happening::Mend => self.net.cut = None,
            Happening::Flip(node, seed) => {
                let Some(Node { machinery: Machinery::Target(_, disk), .. }) = self.nodes.get(&node) else { return };
                if disk.backend.flip_byte(seed) {
                    self.flipped = Some(node);
                    self.note(9, node, 0, || "a byte flips on disk".to_owned());
                }
            }
            Happening::NewMap => self.scenario.new_map.into_iter().for_each(|new| self.new_map(new)),
            Happening::Heal => self.heal(),
        }
    }

    fn heal(&mut self) {
        self.healed = true;
        self.net.heal();
        for node in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.restart(node);
        }
        // What was acknowledged is asked for once more, and new puts must succeed.
        self.puts_left += 10;
        self.gets_left += 30;
        for id in self.initiators.clone() {
            self.feed(id);
        }
    }

    fn crash(&mut self, id: NodeId) {
        let seed = self.rng.next_u64();
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if self.healed || matches!(node.machinery, Machinery::Down(_)) {
            return;
        }
        node.life += 1;
        node.wake += 1;
        if let Machinery::Target(_, mut disk) = std::mem::replace(&mut node.machinery, Machinery::Gone) {
            disk.crash(seed);
            node.machinery = Machinery::Down(disk);
        }
        self.windows.crashed(id);
        self.note(1, id, 0, || "crashes".to_owned());
    }

    fn restart(&mut self, id: NodeId) {
        let forget = self.scenario.planted == Some(Planted::LoseIndexTail);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if !matches!(node.machinery, Machinery::Down(_)) {
            return;
        }
        let Machinery::Down(mut disk) = std::mem::replace(&mut node.machinery, Machinery::Gone) else { return };
        disk.open(forget);
        node.sealer = Sealer::new(KEY, self.now.as_nanos());
        node.opener = Opener::new(KEY, CLUSTER);
        let late = node.late;
        let map = self.file(late);
        let target = self.target(id, &disk, map);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.map = map;
            node.machinery = Machinery::Target(Box::new(target), disk);
        }
        self.note(2, id, 0, || "restarts".to_owned());
        self.input(id, None, None);
    }

    fn initiator_crash(&mut self) {
        if self.healed {
            return;
        }
        let victim = self.initiators.remove(0);
        self.note(3, victim, 0, || "crashes for good".to_owned());
        self.nodes.remove(&victim);
        self.open.retain(|(id, _), _| *id != victim);
        self.add_initiator();
        if let Some(id) = self.initiators.last().copied() {
            self.feed(id);
        }
    }

    /// Gives an initiator something to do, until it has its depth.
    fn feed(&mut self, id: NodeId) {
        while self.open.range((id, 0)..=(id, u64::MAX)).count() < self.scenario.config.depth + 1 {
            let put =
                self.puts_left > 0 && (self.gets_left == 0 || self.acknowledged.is_empty() || self.rng.chance(1, 2));
            if !put && self.gets_left == 0 {
                return;
            }
            self.next_handle += 1;
            let handle = self.next_handle;
            let (asked, request) = if put { self.draw_put(handle) } else { self.draw_get(handle) };
            self.open.insert((id, handle), asked);
            self.input(id, None, Some(request));
        }
    }

    fn draw_put(&mut self, handle: u64) -> (Asked, initiator::Request) {
        self.puts_left -= 1;
        let again = self.rng.chance(1, 12).then(|| self.open.values().find_map(Asked::payload)).flatten();
        let fresh = again.is_none();
        let payload = again.unwrap_or_else(|| {
            let len = self.rng.below(self.scenario.largest) + 1;
            (0..len).map(|_| self.rng.next_u64() as u8).collect()
        });
        let id = ChunkId::of_payload(&payload);
        if !fresh {
            // Copies that the one put makes are not told to the other.
            self.open.values_mut().for_each(|asked| asked.share(id));
        }
        (Asked::Put(id, payload.clone(), self.healed, fresh), initiator::Request::Put { handle, id, payload })
    }

    fn draw_get(&mut self, handle: u64) -> (Asked, initiator::Request) {
        self.gets_left -= 1;
        let known = self.acknowledged.len() as u64;
        let id = if known == 0 || self.rng.chance(1, 20) {
            ChunkId::of_payload(&self.rng.next_u64().to_le_bytes())
        } else {
            let nth = self.rng.below(known) as usize;
            self.acknowledged.keys().nth(nth).copied().unwrap_or_else(|| ChunkId::of_payload(b""))
        };
        (Asked::Get(id, self.healed), initiator::Request::Get { handle, id })
    }

    fn deliver(&mut self, to: NodeId, datagram: Bytes) {
        let size = datagram.len();
        let Some(node) = self.nodes.get_mut(&to) else { return };
        if matches!(node.machinery, Machinery::Down(_)) {
            return;
        }
        match node.opener.open(datagram) {
            Ok(opened) => {
                self.note(4, to, size, || describe(&opened));
                self.input(to, Some(Input::Datagram(opened)), None);
            }
            Err(reason) => self.note(5, to, size, || format!("drops a datagram: {}", reason.name())),
        }
    }

    fn commit(&mut self, id: NodeId, life: u32) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&id).filter(|n| n.life == life) else { return };
        let Machinery::Target(_, disk) = &mut node.machinery else { return };
        let (done, next) = disk.commit(now);
        if let Answer::CommitAt(at) = next {
            self.push(at, Happening::Commit(id, life));
        }
        for (op, completion) in done {
            self.input(id, Some(Input::Done { op, completion }), None);
        }
    }

    /// One input for one node, then all that it says.
    fn input(&mut self, id: NodeId, any: Option<Input<std::convert::Infallible>>, request: Option<initiator::Request>) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let local = node.local(now);
        let mut said = Said::default();
        match &mut node.machinery {
            Machinery::Initiator(machine) => {
                machine.handle_input(local, request.map_or_else(|| convert(any), Input::Request));
                said.drain(machine.as_mut(), Heard::Initiator);
            }
            Machinery::Target(machine, _) => {
                machine.handle_input(
                    local,
                    match request {
                        Some(initiator::Request::Map(map)) => Input::Request(target::Request::Epoch(map.epoch)),
                        _ => convert(any),
                    },
                );
                said.drain(machine.as_mut(), Heard::Target);
            }
            Machinery::Down(_) | Machinery::Gone => return,
        }
        node.wake += 1;
        if let Some(deadline) = said.deadline {
            let (at, wake) = (node.global(deadline), node.wake);
            self.push(at, Happening::Wake(id, wake));
        }
        // In the order in which it was said: a window is accepted before its transfer is over.
        for heard in said.all {
            match heard {
                Heard::Transmit(transmit) => self.transmit(id, &transmit),
                Heard::Effect(op, effect) => self.effect(id, op, effect),
                Heard::Initiator(event) => self.initiator_event(id, event),
                Heard::Target(event) => self.target_event(id, local, event),
            }
        }
    }

    /// Who gets what `from` sends to a set: the address is of its own map, and each target listens to those of its own.
    fn listening(&self, from: NodeId, set: MemberSet) -> Vec<NodeId> {
        let map = &self.maps[self.nodes.get(&from).map_or(0, |node| node.map)];
        if self.listeners.is_empty() {
            return map.resolve(set).collect();
        }
        let Some(number) = map.number(set) else { return Vec::new() };
        let uses = |id: &NodeId, map: usize| self.nodes.get(id).is_some_and(|node| node.map == map);
        let of = |(map, listeners): (usize, &BTreeMap<u32, Vec<NodeId>>)| {
            let all = listeners.get(&number).into_iter().flatten();
            all.filter(|id| uses(id, map)).copied().collect::<Vec<_>>()
        };
        self.listeners.iter().enumerate().flat_map(of).collect()
    }

    fn transmit(&mut self, from: NodeId, transmit: &Transmit) {
        let receivers: Vec<NodeId> = match transmit.to {
            Destination::Node(node) => vec![node],
            Destination::Members(set) => self.listening(from, set),
        };
        let Some(node) = self.nodes.get_mut(&from) else { return };
        let bodies: Vec<Bytes> = match &transmit.body {
            Body::Control(message) => vec![node.sealer.seal(message)],
            Body::Data(run) => {
                datagrams(run).map(|(head, payload)| [&head[..], &payload[..]].concat().into()).collect()
            }
        };
        for body in bodies {
            for (at, to, contents) in self.net.send(self.now, from, &receivers, &body) {
                self.push(at, Happening::Datagram(to, contents));
            }
        }
    }

    fn effect(&mut self, id: NodeId, op: OpId, effect: Effect) {
        let now = self.now;
        if let Effect::Write { id: chunk, .. } = &effect {
            self.windows.over(id, *chunk);
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let life = node.life;
        let answer = match &mut node.machinery {
            Machinery::Target(_, disk) => disk.run(now, op, effect),
            Machinery::Initiator(_) => match effect {
                Effect::Verify { id, pieces } => {
                    Answer::Now(Completion::Verified(id.matches(pieces.iter().map(|p| &p[..]))))
                }
                other => panic!("an initiator has no disk for {other:?}"),
            },
            Machinery::Down(_) | Machinery::Gone => return,
        };
        match answer {
            Answer::Now(completion) => self.push(now, Happening::Done(id, life, op, completion)),
            Answer::At(at, completion) => self.push(at, Happening::Done(id, life, op, completion)),
            Answer::CommitAt(at) => self.push(at, Happening::Commit(id, life)),
            Answer::Queued => {}
        }
    }

    fn target_event(&mut self, id: NodeId, local: Instant, event: target::Event) {
        match event {
            target::Event::Accepted { id: chunk, start, length } => {
                self.note(6, id, 0, || format!("accepts {chunk:?} from {start} for {length}"));
                if let Some(problem) = self.windows.accepted(id, local, chunk, start, length) {
                    self.fail(problem);
                }
            }
            target::Event::Released { id: chunk } => self.windows.over(id, chunk),
            target::Event::NeedMap { .. } => self.reload(id),
            target::Event::Stored { id: chunk, .. } => {
                self.note(11, id, 0, || format!("has {chunk:?} durable"));
                self.durable_at.entry(chunk).or_default().entry(id).or_insert(self.now);
            }
            other => self.note(7, id, 0, || format!("{other:?}")),
        }
    }

    fn initiator_event(&mut self, id: NodeId, event: initiator::Event) {
        match event {
            initiator::Event::Put { handle, result } => {
                let Some(Asked::Put(chunk, payload, healed, fresh)) = self.open.remove(&(id, handle)) else { return };
                self.note(8, id, payload.len(), || format!("put {chunk:?}: {result:?}"));
                match result {
                    Ok(stored) => {
                        if healed && fresh {
                            self.check_prompt(chunk, &stored.holders);
                        }
                        self.acknowledge(chunk, payload, &stored.holders);
                    }
                    Err(error) if healed => self.fail(format!("a put failed after the heal: {error}")),
                    Err(_) => {}
                }
                self.feed(id);
            }
            initiator::Event::Get { handle, result } => {
                let Some(Asked::Get(chunk, healed)) = self.open.remove(&(id, handle)) else { return };
                let told = result.as_ref().map(|f| f.from).map_err(Clone::clone);
                self.note(10, id, 0, || format!("get {chunk:?}: {told:?}"));
                match (self.acknowledged.get(&chunk), result) {
                    (Some(bytes), Ok(fetched)) if fetched.pieces.concat() == *bytes => self.outcome.gets += 1,
                    (_, Ok(_)) => self.fail(format!("a get of {chunk:?} returned wrong bytes")),
                    (Some(_), Err(GetError::NotFound)) => {
                        self.fail(format!("{chunk:?} was acknowledged, and is not found"))
                    }
                    (Some(_), Err(error)) if healed => self.fail(format!("a get failed after the heal: {error}")),
                    (_, Err(_)) => {}
                }
                self.feed(id);
            }
            initiator::Event::NeedMap { .. } => self.reload(id),
            initiator::Event::List { .. }
            | initiator::Event::Ping { .. }
            | initiator::Event::Bid { .. }
            | initiator::Event::RepairAsked
            | initiator::Event::RepairSent
            | initiator::Event::CorruptCopy { .. } => {}
        }
    }

    /// On a healthy network, whoever waits for copies hears of them when they are durable, not by asking in vain.
    fn check_prompt(&mut self, id: ChunkId, holders: &[NodeId]) {
        let Some(durable) = self.durable_at.get(&id) else { return };
        let Some(last) = holders.iter().filter_map(|holder| durable.get(holder)).max().copied() else { return };
        let waited = self.now.since(last);
        if waited > self.scenario.config.late.times(6) {
            self.fail(format!("{id:?} was durable at all its holders {waited} before its put heard of it"));
        }
    }

    /// At the moment of the acknowledgement the copies must be durable, apart, and right.
    fn acknowledge(&mut self, id: ChunkId, bytes: Bytes, holders: &[NodeId]) {
        let distinct: BTreeSet<NodeId> = holders.iter().copied().collect();
        if distinct.len() < usize::from(self.scenario.copies) {
            self.fail(format!("{id:?} was acknowledged with the holders {holders:?}"));
        }
        for holder in distinct {
            // A holder without power is looked at when it is back; one with flipped bytes may have lost its copy.
            let good = match self.nodes.get(&holder).map(|n| &n.machinery) {
                Some(Machinery::Target(_, disk)) => disk.durable(&id).as_ref() == Some(&bytes),
                Some(Machinery::Down(_)) => true,
                Some(Machinery::Initiator(_) | Machinery::Gone) | None => false,
            };
            if !good && self.flipped != Some(holder) {
                self.fail(format!("{id:?} was acknowledged, but {holder} has no good durable copy"));
            }
        }
        self.outcome.puts += 1;
        self.acknowledged.insert(id, bytes);
    }
}

impl Asked {
    /// Another put of this chunk begins.
    fn share(&mut self, id: ChunkId) {
        if let Self::Put(chunk, _, _, alone) = self {
            *alone &= *chunk != id;
        }
    }

    fn payload(&self) -> Option<Bytes> {
        match self {
            Self::Put(_, payload, ..) => Some(payload.clone()),
            Self::Get(..) => None,
        }
    }
}

enum Heard {
    Transmit(Transmit),
    Effect(OpId, Effect),
    Initiator(initiator::Event),
    Target(target::Event),
}

/// What a machine said in one drain.
#[derive(Default)]
struct Said {
    all: Vec<Heard>,
    deadline: Option<Instant>,
}

impl Said {
    fn drain<M: Machine>(&mut self, machine: &mut M, heard: impl Fn(M::Event) -> Heard) {
        loop {
            match machine.poll_output() {
                Output::Transmit(transmit) => self.all.push(Heard::Transmit(transmit)),
                Output::Effect { op, effect } => self.all.push(Heard::Effect(op, effect)),
                Output::Event(event) => self.all.push(heard(event)),
                Output::Idle(deadline) => {
                    self.deadline = deadline.map(|d| d.at).filter(|at| *at < Instant::FAR);
                    return;
                }
            }
        }
    }
}

fn convert<R>(input: Option<Input<std::convert::Infallible>>) -> Input<R> {
    match input {
        None | Some(Input::Wake) => Input::Wake,
        Some(Input::Datagram(datagram)) => Input::Datagram(datagram),
        Some(Input::Payload { header, payload }) => Input::Payload { header, payload },
        Some(Input::Done { op, completion }) => Input::Done { op, completion },
        Some(Input::Request(never)) => match never {},
    }
}

fn describe(datagram: &Bytes) -> String {
    protocol::wire::decode_message(datagram)
        .map(|(head, message)| format!("hears from {}: {message:?}", head.from))
        .or_else(|| {
            let (header, payload) = protocol::wire::DataHeader::decode(datagram)?;
            Some(format!(
                "hears from {}: {} bytes at {} of {:?}",
                header.from,
                payload.len(),
                header.offset,
                header.txn
            ))
        })
        .unwrap_or_else(|| "hears something malformed".to_owned())
}
