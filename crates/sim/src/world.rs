//! One cluster on one event queue, ordered by time, then by a seeded shuffle of ties.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use protocol::id::{ChunkId, ClusterId, Epoch, NodeId, OpId};
use protocol::initiator::{self, Initiator};
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
use crate::swarm::{GROUP_CELLS, NewMap, Planted, Scenario, Trouble};
use crate::tell;

mod faults;
mod gateways;
mod verdict;
mod workload;

use gateways::Gateways;
use workload::Asked;

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
    Mute(bool),
    Trouble(NodeId, Trouble),
    Well(NodeId),
    Flip(NodeId, u64),
    NewMap,
    Heal,
    Gateway(gateways::Event),
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
    /// Every chunk that was ever put.
    contents: BTreeMap<ChunkId, Bytes>,
    gateways: Option<Gateways>,
    healed: bool,
    /// Copies that a flipped byte damaged, and that were not written again since.
    damaged: BTreeSet<(ChunkId, NodeId)>,
    windows: Windows,
    outcome: Outcome,
    trace: Option<&'a mut dyn FnMut(&str)>,
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
            contents: BTreeMap::new(),
            gateways: None,
            healed: false,
            damaged: BTreeSet::new(),
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
        self.add_gateways();
        self.storm();
    }

    fn add_target(&mut self, n: u32) {
        let (rate, sync) = self.scenario.disk;
        let slow = self.scenario.slow.filter(|(which, _)| *which + 1 == n).map_or(1, |(_, times)| times);
        let options = Options {
            capacity: self.scenario.capacity,
            reserve: self.scenario.capacity / 32,
            segment_size: 32 << 10,
            cluster: CLUSTER.0,
            target: n,
        };
        let mut disk = Disk::new(options, (rate / slow).max(1), sync.times(slow), self.scenario.commit);
        disk.trusting = self.scenario.planted == Some(Planted::IgnoreFailedSync);
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
            _ => None,
        };
        let (chunks, free) = disk.chunks();
        let map = self.maps[map].clone();
        Target::new(Setup { id, map, free, chunks, bug }, self.scenario.config.clone())
    }

    fn add_initiator(&mut self) {
        let id = NodeId(self.next_initiator);
        self.next_initiator += 1;
        let seed = self.rng.next_u64();
        let late = self.is_late(id.0);
        let map = self.maps[self.file(late)].clone();
        let bug = match self.scenario.planted {
            Some(Planted::Initiator(bug)) => Some(bug),
            _ => None,
        };
        let machine = Initiator::new(id, map, self.scenario.config.clone(), seed).planted(bug);
        self.add(id, Machinery::Initiator(Box::new(machine)), late);
        self.initiators.push(id);
    }

    fn push(&mut self, at: Instant, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((at.max(self.now), self.ties.next_u64(), self.sequence), happening);
    }

    fn note(&mut self, what: u64, node: NodeId, size: usize, text: impl FnOnce() -> String) {
        let fact = self.now.as_nanos() ^ mix(what << 32 | u64::from(node.0)) ^ mix(size as u64);
        self.outcome.digest = mix(self.outcome.digest ^ fact);
        if let Some(trace) = &mut self.trace {
            trace(&tell::line(self.now, node, &text()));
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
        let done = self.gateways.as_ref().is_none_or(Gateways::is_done);
        done && self.healed && self.open.is_empty() && self.puts_left == 0 && self.gets_left == 0
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
            Happening::Mute(mute) => self.net.mute = mute && !self.healed,
            Happening::Trouble(node, trouble) => self.trouble(node, trouble),
            Happening::Well(node) => self.well(node),
            Happening::Flip(node, seed) => self.flip(node, seed),
            Happening::NewMap => self.scenario.new_map.into_iter().for_each(|new| self.new_map(new)),
            Happening::Heal => self.heal(),
            Happening::Gateway(event) => self.gateway_happens(event),
        }
    }

    fn deliver(&mut self, to: NodeId, datagram: Bytes) {
        let size = datagram.len();
        let Some(node) = self.nodes.get_mut(&to) else { return };
        if matches!(node.machinery, Machinery::Down(_)) {
            return;
        }
        match node.opener.open(datagram) {
            Ok(opened) => {
                self.note(4, to, size, || tell::datagram(&opened));
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
        let failed = disk.has_failed();
        if let Answer::CommitAt(at) = next {
            self.push(at, Happening::Commit(id, life));
        }
        if self.healed && failed {
            // Its last failure was not seen before: a scrub's.
            self.push(now, Happening::Well(id));
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
                        Some(initiator::Request::Map(map)) => Input::Request(target::Request::Map(map)),
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
            Destination::Members(_) if self.net.mute => Vec::new(),
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
