//! One cluster on one event queue, ordered by time, then by a seeded shuffle of ties.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use protocol::aggregator;
use protocol::id::{ChunkId, ClusterId, NodeId, OpId};
use protocol::initiator::{self, Initiator};
use protocol::machine::{Body, Completion, Destination, Effect, Input, Machine, NewerMap, Transmit};
use protocol::map::ClusterMap;
use protocol::rng::{Rng, mix};
use protocol::target::{self, Setup, Target};
use protocol::time::{Instant, Span};
use protocol::wire::{Opened, Session, datagrams};
use store::Options;

use crate::Outcome;
use crate::check::Windows;
use crate::disk::{self, Acknowledged, Answer, Disk};
use crate::excuse::Excuse;
use crate::net::{Net, listeners};
use crate::planted::PlantedBug;
use crate::swarm::{STORM, Scenario, Trouble};
use crate::topology::{Lost, Topology};
use crate::trace;

mod aggregators;
mod alive;
mod authority;
mod cleaner;
mod disks;
mod drained;
mod faults;
mod gateways;
mod governors;
mod level;
mod maps;
mod node;
mod objects;
mod orphan;
mod promise;
mod queue;
mod replay;
mod replies;
mod sleep;
mod surplus;
mod verdict;
mod whole;
mod workload;

use drained::{Drained, MachineOutput, convert};
use gateways::Gateways;
use node::{Node, NodeMachine};
use promise::Promise;
use queue::Queue;
use replay::Recorder;
use workload::Operation;

const CLUSTER: ClusterId = ClusterId(0x51);
const KEY: [u8; 32] = [0x17; 32];
/// Time by which everything must be done. Groups that share targets level one after the other, in rounds of some seconds.
const END: Span = Span::from_secs(60);
/// How often in turn a node that was woken may want to be woken at once.
const RESTLESS: u32 = 100;

enum Scheduled {
    /// The receiver, and when it came: it waits for a receiver that sleeps.
    Datagram(NodeId, Bytes, Instant),
    Done(NodeId, u32, OpId, Completion),
    Commit(NodeId, u32),
    Wake(NodeId, u64),
    Crash(NodeId),
    Restart(NodeId),
    InitiatorCrash,
    Cut(Vec<NodeId>, bool, bool),
    /// A whole domain loses power, or its processes end.
    DomainCrash(Vec<NodeId>, u64),
    Mend,
    Mute(bool),
    Trouble(NodeId, Trouble),
    Well(NodeId),
    NewMap(usize),
    Reload(NodeId),
    Retire(NodeId),
    LoseDisk(Lost),
    /// Until when, and by how much its clock jumps meanwhile.
    Sleep(NodeId, Instant, Span),
    Awake(NodeId),
    Heal,
    Disks(disks::Event),
    Gateway(gateways::Event),
    Cleaner(cleaner::Event),
    Governor(governors::Event),
}

pub(crate) struct World<'a> {
    scenario: &'a Scenario,
    /// The cluster maps, oldest first.
    maps: Vec<ClusterMap>,
    /// What they were made by.
    topology: Topology,
    /// Since when a node uses a map.
    first_used: BTreeMap<(NodeId, usize), Instant>,
    /// Which nodes listen to which multicast number, under each map.
    listeners: Vec<BTreeMap<u32, Vec<NodeId>>>,
    now: Instant,
    queue: Queue<Scheduled>,
    /// Memory for what a machine says next.
    outputs: Vec<MachineOutput>,
    ties: Rng,
    rng: Rng,
    net: Net,
    recorder: Recorder,
    nodes: BTreeMap<NodeId, Node>,
    initiators: Vec<NodeId>,
    next_initiator: u32,
    /// Requests under way: what was asked, by initiator and handle.
    open: BTreeMap<(NodeId, u64), Operation>,
    next_handle: u64,
    puts_left: u32,
    gets_left: u32,
    acknowledged: Acknowledged,
    /// Of each of them, what the put promised that was published last.
    promises: BTreeMap<ChunkId, Arc<Promise>>,
    /// When a chunk first became durable on each target: two puts of it may write to one target twice.
    durable_at: BTreeMap<ChunkId, BTreeMap<NodeId, Instant>>,
    /// Every chunk that was ever put.
    contents: BTreeMap<ChunkId, Bytes>,
    gateways: Option<Gateways>,
    cleaning: Option<cleaner::State>,
    governing: Option<governors::State>,
    whole: whole::State,
    orphan: Option<orphan::Orphan>,
    healed: bool,
    /// From when on every session has been asked for on the healthy network.
    settled: Instant,
    disks: disks::State,
    /// Copies that a flipped byte damaged, and that were not written again since.
    damaged: BTreeSet<(ChunkId, NodeId)>,
    /// The same piece by piece: when a target with several pieces of a chunk writes one again, the other is still
    /// damaged.
    rotten: BTreeSet<(ChunkId, NodeId)>,
    /// Copies that were on a disk that was lost, likewise.
    lost: BTreeSet<(ChunkId, NodeId)>,
    /// When a target's disk was lost last.
    disk_lost: BTreeMap<NodeId, Instant>,
    /// Copies that went since there were enough others, and that were not written again since.
    let_go: BTreeSet<(ChunkId, NodeId)>,
    /// Those that were to go when their target stopped.
    going: BTreeMap<NodeId, Vec<ChunkId>>,
    /// When either was made good last.
    mended: BTreeMap<(ChunkId, NodeId), (Instant, Excuse)>,
    /// When a node could be reached again last.
    back: BTreeMap<NodeId, Instant>,
    windows: Windows,
    outcome: Outcome,
    trace: Option<&'a mut dyn FnMut(&str)>,
}

impl<'a> World<'a> {
    pub(crate) fn new(scenario: &'a Scenario, trace: Option<&'a mut dyn FnMut(&str)>) -> Self {
        let seeds = Rng::new(scenario.seed);
        let maps = scenario.topology.cluster_maps(CLUSTER);
        let maps = maps.unwrap_or_else(|error| panic!("seed {}: {error}", scenario.seed));
        let maps = maps::with_documents(maps);
        let listeners = maps.iter().map(listeners).collect();
        let mut world = Self {
            scenario,
            maps,
            topology: scenario.topology.clone(),
            first_used: BTreeMap::new(),
            listeners,
            now: Instant::from_nanos(1_000),
            queue: Queue::new(),
            outputs: Vec::new(),
            ties: seeds.fork(2),
            rng: seeds.fork(3),
            net: Net::new(scenario.link, scenario.faults, seeds.fork(4)),
            recorder: Recorder::new(scenario.replays, seeds.fork(15)),
            nodes: BTreeMap::new(),
            initiators: Vec::new(),
            next_initiator: NodeId::FIRST_INITIATOR,
            open: BTreeMap::new(),
            next_handle: 0,
            puts_left: scenario.operations,
            gets_left: scenario.operations,
            acknowledged: BTreeMap::new(),
            promises: BTreeMap::new(),
            durable_at: BTreeMap::new(),
            contents: BTreeMap::new(),
            gateways: None,
            cleaning: None,
            governing: None,
            whole: whole::State::default(),
            orphan: None,
            healed: false,
            settled: Instant::FAR,
            disks: disks::State::new(scenario.seed),
            damaged: BTreeSet::new(),
            rotten: BTreeSet::new(),
            lost: BTreeSet::new(),
            disk_lost: BTreeMap::new(),
            let_go: BTreeSet::new(),
            going: BTreeMap::new(),
            mended: BTreeMap::new(),
            back: BTreeMap::new(),
            windows: Windows::default(),
            outcome: Outcome { digest: scenario.seed, ..Outcome::default() },
            trace,
        };
        world.build();
        world
    }

    fn build(&mut self) {
        for n in 1..=self.scenario.targets {
            self.add_target(NodeId(n));
        }
        for _ in 0..self.scenario.initiators {
            self.add_initiator();
        }
        self.add_gateways();
        self.add_cleaners();
        self.add_governors();
        self.add_aggregators();
        self.storm();
    }

    fn fresh_disk(&self, id: NodeId) -> Disk {
        let n = id.0;
        let (rate, sync) = self.scenario.disk;
        let slow = self.scenario.slow.filter(|(which, _)| *which + 1 == n).map_or(1, |(_, times)| times);
        let options = Options {
            capacity: self.scenario.capacity,
            reserve: self.scenario.capacity / 32,
            segment_size: self.scenario.disks.segment,
            cluster: CLUSTER.0,
            target: n,
            secret: mix(self.scenario.seed.wrapping_add(u64::from(n))),
        };
        Disk::new(disk::Setup {
            options,
            rate: (rate / slow).max(1),
            sync: sync.times(slow),
            most: self.scenario.commit,
            check_interval: self.scenario.disks.check_interval,
            pace: self.scenario.disks.pace,
            bug: self.scenario.planted.and_then(PlantedBug::of_store),
            seed: mix(self.scenario.seed ^ u64::from(n)),
        })
    }

    fn add_target(&mut self, id: NodeId) {
        let disk = self.fresh_disk(id);
        let target = self.target(id, &disk, self.file(id));
        self.add(id, NodeMachine::Target(Box::new(target), disk));
        self.are_back([id]);
        self.keep_room(id);
    }

    fn add(&mut self, id: NodeId, machine: NodeMachine) {
        let map = self.file(id);
        self.uses(id, map);
        let (offset, drift) = (self.rng.below(1_000_000_000), self.rng.below(self.scenario.drift + 1));
        let node = Node {
            machine,
            session: self.session(id),
            offset,
            drift,
            map,
            fetched: map,
            sleeps: None,
            life: 0,
            wake: 0,
            restless: 0,
        };
        self.nodes.insert(id, node);
    }

    /// The session of a node that starts now.
    fn session(&mut self, id: NodeId) -> Session {
        let bug = match self.scenario.planted {
            Some(PlantedBug::Session(bug)) => Some(bug),
            _ => None,
        };
        Session::new(KEY, CLUSTER, id, self.rng.next_u64()).with_bug(bug)
    }

    fn target(&self, id: NodeId, disk: &Disk, map: usize) -> Target {
        let bug = self.scenario.planted.and_then(PlantedBug::of_target);
        let (chunks, free) = disk.chunks();
        let map = self.maps[map].clone();
        let life = self.nodes.get(&id).map_or(0, |node| u64::from(node.life));
        let seed = mix(self.scenario.seed ^ mix(u64::from(id.0) << 32 | life));
        Target::new(Setup { id, map, free, chunks, seed, bug }, self.scenario.config.clone())
    }

    fn add_initiator(&mut self) {
        let id = NodeId(self.next_initiator);
        self.next_initiator += 1;
        let seed = self.rng.next_u64();
        let map = self.maps[self.file(id)].clone();
        let bug = match self.scenario.planted {
            Some(PlantedBug::Initiator(bug)) => Some(bug),
            _ => None,
        };
        let machine = Initiator::new(id, map, self.scenario.config.clone(), seed).with_bug(bug);
        self.add(id, NodeMachine::Initiator(Box::new(machine)));
        self.initiators.push(id);
    }

    fn push(&mut self, at: Instant, event: Scheduled) {
        self.queue.push(at.max(self.now), self.ties.next_u64(), event);
    }

    fn note(&mut self, what: u64, node: NodeId, size: usize, text: impl FnOnce() -> String) {
        let fact = self.now.as_nanos() ^ mix(what << 32 | u64::from(node.0)) ^ mix(size as u64);
        self.outcome.digest = mix(self.outcome.digest ^ fact);
        if let Some(trace) = &mut self.trace {
            trace(&trace::line(self.now, node, &text()));
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
            let Some((at, event)) = self.queue.pop() else {
                self.fail("nothing is left to happen, but requests are open".to_owned());
                break;
            };
            self.now = at;
            self.outcome.events += 1;
            if at > Instant::ZERO + END {
                let open = self.open.len();
                let lacking = self.not_whole().unwrap_or_default();
                self.fail(format!(
                    "no end: {lacking} {open} requests open, {} puts and {} gets to come",
                    self.puts_left, self.gets_left
                ));
                break;
            }
            match self.sleeper(&event) {
                Some(until) => self.push(until, event),
                None => self.happen(event),
            }
        }
        self.outcome
    }

    fn is_finished(&mut self) -> bool {
        let done = self.gateways.as_ref().is_none_or(Gateways::is_done);
        let asked = self.open.is_empty() && self.puts_left == 0 && self.gets_left == 0;
        done && self.is_cleaned() && self.healed && asked && self.is_whole()
    }

    fn happen(&mut self, event: Scheduled) {
        match event {
            Scheduled::Datagram(to, datagram, arrived) => self.deliver(to, datagram, arrived),
            Scheduled::Done(node, life, op, completion) => {
                if self.nodes.get(&node).is_some_and(|n| n.life == life) {
                    self.check_refusal(node, &completion);
                    self.input(node, Some(Input::Done { op, completion }), None);
                }
            }
            Scheduled::Commit(node, life) => self.commit(node, life),
            Scheduled::Wake(node, wake) => {
                if self.nodes.get(&node).is_some_and(|n| n.wake == wake) {
                    self.input(node, None, None);
                }
            }
            Scheduled::Crash(node) => self.crash(node),
            Scheduled::Restart(node) => self.restart(node),
            Scheduled::InitiatorCrash => self.initiator_crash(),
            Scheduled::Cut(nodes, out, inward) if !self.healed => self.cut(Some((nodes, out, inward))),
            Scheduled::Cut(..) => {}
            Scheduled::Mend => self.cut(None),
            Scheduled::Mute(mute) => self.net.mute = mute && !self.healed,
            Scheduled::Trouble(node, trouble) => self.trouble(node, trouble),
            Scheduled::Well(node) => self.well(node),
            Scheduled::DomainCrash(nodes, seed) => self.domain_crash(&nodes, seed),
            Scheduled::NewMap(nth) => self.new_map(nth),
            Scheduled::Reload(node) => self.reload(node),
            Scheduled::Retire(node) => self.retire(node),
            Scheduled::LoseDisk(lost) => self.lose_disk(lost),
            Scheduled::Sleep(node, until, jump) => self.sleep(node, until, jump),
            Scheduled::Awake(node) => self.awake(node),
            Scheduled::Heal => self.heal(),
            Scheduled::Disks(event) => self.disks(event),
            Scheduled::Gateway(event) => self.gateway_happens(event),
            Scheduled::Cleaner(event) => self.cleaner_happens(event),
            Scheduled::Governor(event) => self.governor_happens(event),
        }
    }

    fn deliver(&mut self, to: NodeId, datagram: Bytes, arrived: Instant) {
        let size = datagram.len();
        let Some(node) = self.nodes.get_mut(&to) else { return };
        if matches!(node.machine, NodeMachine::Down(_) | NodeMachine::Off) {
            return;
        }
        let from = replay::sender(&datagram);
        let arrived = node.local(arrived);
        let opened = match node.session.open(node.local(self.now), datagram) {
            Ok(Opened::Good(opened)) => opened,
            Ok(Opened::Between(replies) | Opened::Unproven(replies)) => {
                self.note(16, to, replies.len(), || format!("hears of the session of {from}"));
                return replies.into_iter().for_each(|reply| self.carry(to, &[from], &reply));
            }
            Err(reason) => return self.note(5, to, size, || format!("drops a datagram: {}", reason.name())),
        };
        if let Some(problem) = self.recorder.accepted(to, &opened) {
            self.fail(problem);
        }
        self.note(4, to, size, || trace::datagram(&opened));
        self.input(to, Some(Input::Datagram { bytes: opened, arrived }), None);
    }

    /// Puts a datagram on the wire.
    fn carry(&mut self, from: NodeId, receivers: &[NodeId], datagram: &Bytes) {
        for (at, to, contents) in self.net.send(self.now, from, receivers, datagram) {
            if !self.healed {
                for (at, to, again) in self.recorder.sent(at, to, &contents) {
                    self.push(at, Scheduled::Datagram(to, again, at));
                }
            }
            self.push(at, Scheduled::Datagram(to, contents, at));
        }
    }

    fn commit(&mut self, id: NodeId, life: u32) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&id).filter(|n| n.life == life) else { return };
        let NodeMachine::Target(_, disk) = &mut node.machine else { return };
        let (done, next) = disk.commit(now);
        let (failed, wants_segment, free) = (disk.has_failed(), disk.wants_segment(), disk.space().free);
        self.note_room(id, free);
        if self.has_stopped(id) {
            return;
        }
        if wants_segment {
            self.keep_room(id);
        }
        if let Answer::CommitAt(at) = next {
            self.push(at, Scheduled::Commit(id, life));
        }
        if self.healed && failed {
            // Its last failure was not seen before: a scrub's.
            self.push(now, Scheduled::Well(id));
        }
        for (op, completion) in done {
            self.check_refusal(id, &completion);
            self.input(id, Some(Input::Done { op, completion }), None);
        }
    }

    /// One input for one node, then all its outputs.
    fn input(&mut self, id: NodeId, any: Option<Input<std::convert::Infallible>>, request: Option<initiator::Request>) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let (local, is_wake) = (node.local(now), any.is_none() && request.is_none());
        let mut drained = Drained::with(&mut self.outputs);
        match &mut node.machine {
            NodeMachine::Initiator(machine) => {
                machine.handle_input(local, request.map_or_else(|| convert(any), Input::Request));
                drained.drain(machine.as_mut(), MachineOutput::Initiator);
            }
            NodeMachine::Target(machine, _) => {
                machine.handle_input(
                    local,
                    match request {
                        Some(initiator::Request::Map(map)) => Input::Request(target::Request::Map(map)),
                        _ => convert(any),
                    },
                );
                drained.drain(machine.as_mut(), MachineOutput::Target);
            }
            NodeMachine::Aggregator(machine) => {
                machine.handle_input(
                    local,
                    match request {
                        Some(initiator::Request::Map(map)) => Input::Request(aggregator::Request::Map(map)),
                        _ => convert(any),
                    },
                );
                drained.drain(machine.as_mut(), MachineOutput::Aggregator);
            }
            NodeMachine::Down(_) | NodeMachine::Off | NodeMachine::Gone => return,
        }
        let again = is_wake && drained.deadline.is_some_and(|deadline| deadline <= local);
        node.restless = if again { node.restless + 1 } else { 0 };
        if node.restless > RESTLESS {
            self.fail(format!("{id} finds nothing to do when it is woken, and wants to be woken at once"));
        }
        self.perform(id, local, drained);
    }

    /// Tells a target what its driver knows: how much room there is, or that it stops.
    fn request(&mut self, id: NodeId, request: target::Request) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let local = node.local(now);
        let NodeMachine::Target(machine, _) = &mut node.machine else { return };
        let mut drained = Drained::with(&mut self.outputs);
        machine.handle_input(local, Input::Request(request));
        drained.drain(machine.as_mut(), MachineOutput::Target);
        self.perform(id, local, drained);
    }

    /// Performs what a machine wants.
    fn perform(&mut self, id: NodeId, local: Instant, mut drained: Drained) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.wake += 1;
        if let Some(deadline) = drained.deadline {
            let (at, wake) = (node.global(deadline), node.wake);
            self.push(at, Scheduled::Wake(id, wake));
        }
        // In the order of the outputs: a window is accepted before its transfer is over.
        for output in drained.all.drain(..) {
            match output {
                MachineOutput::Transmit(transmit) => self.transmit(id, &transmit),
                MachineOutput::Effect(op, effect) => self.effect(id, op, effect),
                MachineOutput::Initiator(initiator::Event::NewerMap(newer))
                | MachineOutput::Target(target::Event::NewerMap(newer))
                | MachineOutput::Aggregator(aggregator::Event::NewerMap(newer)) => match newer {
                    NewerMap::Here { document, .. } => self.fetched(id, &document),
                    NewerMap::Needed { .. } => self.need_map(id),
                },
                MachineOutput::Initiator(event) => self.initiator_event(id, event),
                MachineOutput::Target(event) => self.target_event(id, local, event),
                MachineOutput::Aggregator(event) => self.aggregator_event(id, &event),
            }
        }
        self.outputs = drained.all;
    }

    fn transmit(&mut self, from: NodeId, transmit: &Transmit) {
        let receivers: Vec<NodeId> = match transmit.to {
            Destination::Node(node) => vec![node],
            Destination::Members(_) if self.net.mute => Vec::new(),
            Destination::Members(set) => self.listening(from, set),
        };
        let Some(node) = self.nodes.get_mut(&from) else { return };
        match &transmit.body {
            Body::Control(message) => {
                let sealed = node.session.seal(message);
                self.carry(from, &receivers, &sealed);
            }
            Body::Data(run) => {
                for (head, payload) in datagrams(run) {
                    self.carry(from, &receivers, &[&head[..], &payload[..]].concat().into());
                }
            }
        }
    }

    fn effect(&mut self, id: NodeId, op: OpId, effect: Effect) {
        let now = self.now;
        if let Effect::Write { id: chunk, .. } = &effect {
            self.windows.over(id, chunk.whole());
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let life = node.life;
        let answer = match &mut node.machine {
            NodeMachine::Target(_, disk) => disk.run(now, op, effect),
            NodeMachine::Initiator(_) => match effect.compute() {
                Ok(completion) => Answer::Now(completion),
                Err(other) => panic!("an initiator has no disk for {other:?}"),
            },
            NodeMachine::Aggregator(_) | NodeMachine::Down(_) | NodeMachine::Off | NodeMachine::Gone => return,
        };
        if self.has_stopped(id) {
            return;
        }
        match answer {
            Answer::Now(completion) => self.push(now, Scheduled::Done(id, life, op, completion)),
            Answer::At(at, completion) => self.push(at, Scheduled::Done(id, life, op, completion)),
            Answer::CommitAt(at) => self.push(at, Scheduled::Commit(id, life)),
            Answer::Queued => {}
        }
    }
}
