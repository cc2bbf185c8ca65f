//! One run: events, clocks, processors and disks around the machines of a cluster, and what is counted of them.
//!
//! Which machines ([`MachineSet`]) and what is between them ([`Fabric`]) are the run's. The drain after each input, the
//! one wake that is armed for each node, the digest of all events and the measured time are the same for all.

use std::collections::VecDeque;

use protocol::aggregator::{self, Aggregator};
use protocol::id::{NodeId, OpId};
use protocol::machine::{Completion, Deadline, Destination, Input, Machine, Output};
use protocol::map::MemberSet;
use protocol::rng::Rng;
use protocol::time::Instant;

use super::chance::exponential;
use super::disk::{Disk, Finished};
use super::node::{Arrived, Due, Life, Node};
use super::queue::{Order, Queue, SOURCES};
use super::setup::{Load, Machines, Setup};
use super::stats::Outcome;

mod conditions;
mod counts;
mod crash;
mod effects;
mod fabric;
mod inputs;
mod kinds;
mod loss;
mod machines;
mod maps;
mod measure;
mod outcome;
mod parts;
mod prefetch;

use self::conditions::Conditions;
use self::fabric::{Ideal, Switch};
use self::kinds::{Fabric, MachineSet};
use self::machines::{Papers, Products};
use self::maps::Maps;
use self::parts::{Parts, RemoteEvent};
pub(super) use measure::Measures;

/// Room on a target's disk, which is not what is asked for here.
pub(super) const FREE: u64 = 1 << 60;

/// What follows how far a run is.
pub(super) type Progress<'a> = &'a mut dyn FnMut(f64);

/// The source of what happens to all: the last in order.
const RUN: u32 = SOURCES - 1;
/// How often in turn a node may want to be woken at once.
const RESTLESS: u32 = 1_000;

/// What happens at a moment. Numbers of nodes: targets first, initiators behind them, then the lanes of aggregators.
#[derive(Clone)]
pub(super) enum Event<W, N> {
    /// A node's deadline.
    Wake(u32),
    /// On the network.
    Wire(W),
    /// A node's processor comes to the oldest of its inbox. (In which of its lives: a crash undoes it.)
    Handle(u32, u32),
    /// A target knows a hash; its disk is done; a write is on its disk.
    Hashed(u32, u32),
    Disk(u32, u32),
    Written(u32, OpId),
    /// The next target crashes; it starts anew.
    Crash,
    Restart(u32),
    /// Targets are lost, and all others hear of it.
    Lose,
    /// The first aggregator dies.
    Die,
    /// The next request of an initiator.
    Arrival(u32),
    /// What a part should know of another.
    Notice(N),
    /// Measuring begins; measuring ends.
    Measure,
    Stop,
}

impl<W, N> Event<W, N> {
    /// The node whose own event this is; `of_wire` says it of what happens on the network. Of wakes only the earliest counts,
    /// which [`Node::armed`] knows.
    fn owner(&self, targets: u32, of_wire: impl FnOnce(&W) -> Option<u32>) -> Option<u32> {
        match self {
            Self::Handle(node, _)
            | Self::Hashed(node, _)
            | Self::Disk(node, _)
            | Self::Written(node, _)
            | Self::Restart(node) => Some(*node),
            Self::Arrival(n) => Some(n + targets),
            Self::Wire(wire) => of_wire(wire),
            Self::Wake(_) | Self::Notice(_) | Self::Crash => None,
            Self::Lose | Self::Die | Self::Measure | Self::Stop => None,
        }
    }
}

/// One part of a run: some of the nodes, and what happens to them. Most runs have one.
pub(super) struct Driver<'a, M: MachineSet, F: Fabric> {
    pub(super) setup: &'a Setup,
    parts: &'a Parts,
    part: usize,
    /// How many of its nodes are targets, which come first.
    own_targets: usize,
    conditions: Conditions,
    pub(super) machines: M,
    pub(super) fabric: F,
    maps: &'a Maps,
    /// Where the members of the groups of the map that is used begin in [`Maps::members`].
    first_group: u32,
    queue: Queue<Event<F::Wire, M::Notice>>,
    /// What happens at other parts' nodes.
    outbox: Vec<Vec<RemoteEvent<F::Wire, M::Notice>>>,
    pub(super) now: u64,
    targets: Vec<M::Target>,
    initiators: Vec<M::Initiator>,
    aggregators: Vec<Aggregator>,
    nodes: Vec<Node>,
    disks: Vec<Disk>,
    /// What machines want done, and what is done at once: kept so that nothing is allocated for each event.
    of_target: VecDeque<Output<<M::Target as Machine>::Event>>,
    of_initiator: VecDeque<Output<<M::Initiator as Machine>::Event>>,
    of_aggregator: VecDeque<Output<aggregator::Event>>,
    at_once: Vec<(OpId, Completion)>,
    upcoming: Vec<usize>,
    finished: Vec<Finished>,
    pub(super) measures: Measures,
    /// Crashes until now.
    crashed: u32,
    /// Events that come to all parts, until now, and when those come that are known.
    common: u32,
    common_due: Due,
    /// The node that wanted last to be woken at once, when, and how often in turn.
    restless: (u32, u64, u32),
    /// When the run is over at the latest.
    last: u64,
    events: u64,
}

/// Runs one cluster to its end.
///
/// # Errors
/// A line that says what of the setup cannot be.
pub fn run(setup: &Setup) -> Result<Outcome, String> {
    run_on(setup, 1, &mut |_| ())
}

/// As [`run`], on at most so many threads; `progress` follows which share of the time is simulated, 0 to 1.
pub(super) fn run_on(setup: &Setup, threads: usize, progress: Progress<'_>) -> Result<Outcome, String> {
    let map = maps::first(setup)?;
    let seeds = Rng::new(setup.seed);
    match &setup.machines {
        Machines::Paper(paper) => {
            let machines = Papers::new(setup, paper, &map, &seeds);
            let maps = Maps::new(map, None);
            Ok(run_parts(setup, &maps, &machines, threads, |_| Ideal::new(setup, paper), progress))
        }
        Machines::Product(profile) => {
            let map = if profile.overlap { Ok(map) } else { map.with_disjoint_groups() };
            let map = map.map_err(|error| error.to_string())?;
            let next = profile.loss.map(|loss| maps::without(&map, profile, loss)).transpose()?;
            let maps = Maps::new(map, next);
            let machines = Products::new(setup, profile, &maps, &seeds);
            let fabric = |nodes: &[u32]| Switch::new(setup, profile, nodes, &seeds.fork(6));
            // What all targets hold is known in one place, and an aggregator has to do with all.
            let threads = if profile.loss.is_some() || profile.aggregators > 0 { 1 } else { threads };
            Ok(run_parts(setup, &maps, &machines, threads, fabric, progress))
        }
    }
}

fn run_parts<M: MachineSet, F: Fabric>(
    setup: &Setup,
    maps: &Maps,
    machines: &M,
    threads: usize,
    fabric: impl Fn(&[u32]) -> F,
    progress: Progress<'_>,
) -> Outcome {
    let may_part = F::PARTS && fabric(&[]).trip() > 0;
    let parts = Parts::of(setup, &maps.first, if may_part { threads } else { 1 });
    let driver = |part| Driver::new(setup, machines.clone(), fabric(parts.nodes(part)), maps, (&parts, part));
    let mut drivers: Vec<Driver<'_, M, F>> = (0..parts.count()).map(driver).collect();
    parts::run(&mut drivers, progress);
    outcome::outcome(setup, drivers)
}

impl<'a, M: MachineSet, F: Fabric> Driver<'a, M, F> {
    fn new(setup: &'a Setup, machines: M, fabric: F, maps: &'a Maps, (parts, part): (&'a Parts, usize)) -> Self {
        let (conditions, seeds) = (Conditions::of(&setup.machines), Rng::new(setup.seed));
        let nodes = parts.nodes(part);
        let (targets, initiators) = nodes.split_at(nodes.partition_point(|node| *node < setup.targets));
        let (initiators, lanes) =
            initiators.split_at(initiators.partition_point(|node| *node < setup.targets + setup.initiators));
        Self {
            targets: targets.iter().map(|n| machines.target(*n)).collect(),
            initiators: initiators.iter().map(|node| machines.initiator(node - setup.targets)).collect(),
            aggregators: if lanes.is_empty() { Vec::new() } else { machines.aggregators() },
            nodes: nodes.iter().map(|node| Node::new(*node, &seeds, conditions.drift_ppm)).collect(),
            disks: targets.iter().map(|n| setup.disk_of(*n)).collect(),
            own_targets: targets.len(),
            measures: Measures::new(setup),
            setup,
            parts,
            part,
            conditions,
            machines,
            fabric,
            maps,
            first_group: 0,
            queue: Queue::new(),
            outbox: (0..parts.count()).map(|_| Vec::new()).collect(),
            now: 0,
            of_target: VecDeque::new(),
            of_initiator: VecDeque::new(),
            of_aggregator: VecDeque::new(),
            at_once: Vec::new(),
            upcoming: Vec::new(),
            finished: Vec::new(),
            crashed: 0,
            common: 0,
            common_due: Due::default(),
            restless: (0, 0, 0),
            last: 0,
            events: 0,
        }
    }

    /// What a run begins with. When the measured time is to end, and when the run is at the latest.
    fn begin(&mut self) -> (u64, u64) {
        let end = (self.setup.warm_up + self.setup.length).as_nanos();
        self.push_for_all(self.setup.warm_up.as_nanos(), Event::Measure);
        if self.conditions.drain.is_some() {
            self.push_for_all(end, Event::Stop);
        }
        if let Some(crashes) = self.conditions.crashes {
            self.push_for_all(crashes.every.as_nanos(), Event::Crash);
        }
        if let Some(loss) = self.setup.product().and_then(|profile| profile.loss) {
            self.push_for_all(loss.at.as_nanos(), Event::Lose);
        }
        if let Some(at) = self.setup.product().and_then(|profile| profile.aggregator_dies) {
            self.push_for_all(at.as_nanos(), Event::Die);
        }
        self.last = end.saturating_add(self.conditions.drain.unwrap_or_default().as_nanos());
        self.begin_requests();
        (end, self.last)
    }

    /// Goes on with what comes before `end`.
    fn go_on(&mut self, end: u64) {
        while let Some((at, event)) = self.queue.pop(end) {
            self.now = at;
            self.prefetch_next();
            if let Some(node) = event.owner(self.setup.targets, F::owner) {
                self.node(node).due.remove(at);
            }
            self.handle(event);
        }
    }

    /// Nothing more happens; the measured time was to end at `end`.
    fn finish(&mut self, end: u64) {
        if self.measures.ended.is_none() {
            self.now = end;
            self.stop();
        }
    }

    /// The first requests.
    fn begin_requests(&mut self) {
        let stagger = self.conditions.stagger.as_nanos();
        let parts = self.parts;
        let initiators = self.setup.targets..self.setup.targets + self.setup.initiators;
        for node in parts.nodes(self.part).iter().filter(|node| initiators.contains(node)) {
            let n = node - self.setup.targets;
            match self.setup.load {
                Load::Closed { depth } => {
                    for _ in 0..depth {
                        if stagger > 0 {
                            let at = self.node(*node).chance.below(stagger);
                            self.push(*node, at, Event::Arrival(n));
                        } else {
                            self.ask(n);
                        }
                    }
                }
                Load::Open { .. } => self.next_arrival(n),
            }
        }
    }

    /// Adds an event of a node's own, which is in this part.
    pub(super) fn push(&mut self, node: u32, at: u64, event: Event<F::Wire, M::Notice>) {
        let order = self.order(node);
        if event.owner(self.setup.targets, F::owner).is_some() {
            self.node(node).due.add(at);
        }
        self.queue.push(at, order, event);
    }

    /// Adds an event of this part's node `from` that comes to others, a trip from now at the earliest.
    pub(super) fn post(&mut self, from: u32, at: u64, to: Destination, event: Event<F::Wire, M::Notice>) {
        let order = self.order(from);
        if self.parts.count() == 1 {
            return self.queue.push(at, order, event);
        }
        let parts = self.receivers(to).fold(0_u32, |parts, node| parts | 1 << self.parts.part(node));
        self.post_to(parts, at, order, &event);
    }

    /// Lets all parts know something, a trip from now.
    pub(super) fn tell_all(&mut self, from: u32, notice: M::Notice) {
        let (at, order) = (self.now + self.fabric.trip(), self.order(from));
        self.post_to(u32::MAX, at, order, &Event::Notice(notice));
    }

    /// Adds an event that comes to those parts whose bits are set.
    fn post_to(&mut self, parts: u32, at: u64, order: Order, event: &Event<F::Wire, M::Notice>) {
        for part in (0..self.parts.count()).filter(|part| parts >> part & 1 == 1) {
            if part == self.part {
                self.queue.push(at, order, event.clone());
            } else {
                self.outbox[part].push(RemoteEvent { at, order, event: event.clone() });
            }
        }
    }

    /// Adds an event that comes in every part.
    fn push_for_all(&mut self, at: u64, event: Event<F::Wire, M::Notice>) {
        self.common += 1;
        self.common_due.add(at);
        self.queue.push(at, Order { source: RUN, count: self.common }, event);
    }

    /// Whether nothing happens to a node until `at` but what comes to it from others: then it may have what comes to it
    /// first at once, as if it were that time.
    pub(super) fn is_undisturbed(&self, slot: usize, at: u64) -> bool {
        let node = &self.nodes[slot];
        let is_idle = node.processor.inbox.is_empty() && !node.life.is_down;
        is_idle && node.armed > at && node.due.is_after(at) && self.common_due.is_after(at) && at <= self.last
    }

    /// The order of the next event that a node adds.
    fn order(&mut self, node: u32) -> Order {
        let count = &mut self.node(node).added;
        *count = count.wrapping_add(1);
        Order { source: node, count: *count }
    }

    pub(super) fn node(&mut self, id: u32) -> &mut Node {
        &mut self.nodes[self.parts.slot(id)]
    }

    /// Which of this part's nodes this is, if it is in this part.
    pub(super) fn slot(&self, node: u32) -> usize {
        self.parts.slot(node)
    }

    /// Which of the part's initiators initiator `n` is.
    fn initiator(&self, n: u32) -> usize {
        self.parts.slot(n + self.setup.targets) - self.own_targets
    }

    pub(super) fn is_own(&self, node: u32) -> bool {
        self.parts.count() == 1 || self.parts.part(node) == self.part
    }

    /// Something happens to a node of this part; `what` tells it apart from others.
    pub(super) fn happens(&mut self, node: u32, what: u64) {
        self.events += 1;
        self.note(node, what);
    }

    fn note(&mut self, node: u32, what: u64) {
        let now = self.now;
        let digest = &mut self.node(node).digest;
        *digest = (*digest ^ what ^ now << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    fn handle(&mut self, event: Event<F::Wire, M::Notice>) {
        match &event {
            Event::Wake(node) => self.happens(*node, 0),
            Event::Handle(node, _) => self.happens(*node, 1),
            Event::Hashed(node, _) => self.happens(*node, 2),
            Event::Disk(node, _) => self.happens(*node, 3),
            Event::Written(node, op) => self.happens(*node, op.0 << 8 | 4),
            Event::Arrival(n) => self.happens(n + self.setup.targets, 5),
            Event::Restart(node) => self.happens(*node, 6),
            Event::Wire(_) | Event::Notice(_) => {}
            // In all parts, and counted once.
            Event::Measure | Event::Stop | Event::Crash | Event::Lose | Event::Die => {
                self.events += u64::from(self.part == 0);
                self.common_due.remove(self.now);
            }
        }
        match event {
            Event::Wake(node) => self.wake(node),
            Event::Handle(node, life) | Event::Hashed(node, life) | Event::Disk(node, life)
                if !self.lives(node, life) => {}
            Event::Handle(node, _) => {
                if let Some(arrived) = self.node(node).processor.inbox.pop_front() {
                    self.input(node, arrived);
                }
            }
            Event::Hashed(node, _) => {
                let slot = self.slot(node);
                self.disks[slot].hashed();
                self.begin_disk(node);
            }
            Event::Disk(node, _) => self.disk_done(node),
            Event::Written(node, op) => self.reached(node, effects::written(op)),
            Event::Arrival(n) => {
                self.ask(n);
                self.next_arrival(n);
            }
            Event::Wire(wire) => F::happen(self, wire),
            Event::Notice(notice) => self.machines.note(notice),
            Event::Measure => self.measure(),
            Event::Stop => self.stop(),
            Event::Crash => self.crash(),
            Event::Restart(node) => self.restart(node),
            Event::Lose => self.lose(),
            Event::Die => self.lose_aggregator(),
        }
    }

    /// The index of a node.
    pub(super) fn index(&self, node: NodeId) -> u32 {
        match node.0.checked_sub(NodeId::FIRST_INITIATOR) {
            Some(initiator) => initiator + self.setup.targets,
            // An aggregator's number comes after that of the last target.
            None if node.0 >= self.setup.targets => node.0 + self.setup.initiators,
            None => node.0,
        }
    }

    fn is_aggregator(&self, node: u32) -> bool {
        node >= self.setup.targets + self.setup.initiators
    }

    /// Something comes to a destination: `happens` to those of its nodes that are this part's. A multicast counts as one
    /// event, where its first receiver is.
    pub(super) fn each(&mut self, to: Destination, what: u64, mut happens: impl FnMut(&mut Self, u32)) {
        for (place, node) in self.receivers(to).enumerate() {
            if self.is_own(node) {
                self.events += u64::from(place == 0);
                self.note(node, what);
                happens(self, node);
            }
        }
    }

    /// The nodes of a destination.
    pub(super) fn receivers(&self, to: Destination) -> impl Iterator<Item = u32> + use<'a, M, F> {
        let (one, members, mut mask) = match to {
            Destination::Node(node) => (Some(self.index(node)), &[][..], 0),
            Destination::Members(set) => {
                // What was begun by the map before may name members that there are not any more.
                let members = &*self.maps.members[set.cell as usize];
                (None, members, set.mask & u32::MAX.checked_shr(32 - members.len() as u32).unwrap_or(0))
            }
        };
        let next = move || {
            let bit = (mask != 0).then(|| mask.trailing_zeros())?;
            mask &= mask - 1;
            Some(members[bit as usize])
        };
        one.into_iter().chain(core::iter::from_fn(next))
    }

    /// A destination as the map that is used now has it.
    fn addressed(&self, to: Destination) -> Destination {
        match to {
            Destination::Members(set) => {
                Destination::Members(MemberSet { cell: set.cell + self.first_group, mask: set.mask })
            }
            Destination::Node(_) => to,
        }
    }

    /// An initiator is asked for its next request.
    pub(super) fn ask(&mut self, n: u32) {
        let (node, at) = (n + self.setup.targets, self.initiator(n));
        let slot = self.slot(node);
        let Node { chance, clock, .. } = &mut self.nodes[slot];
        let now = clock.local(self.now);
        let request = self.machines.request(n, self.now, chance);
        self.give_initiator(at, now, Input::Request(request));
        self.drain(node);
    }

    fn next_arrival(&mut self, n: u32) {
        let Load::Open { chunks_per_second } = self.setup.load else { return };
        let mean = f64::from(self.setup.initiators) * 1e9 / chunks_per_second.max(1e-3);
        let node = n + self.setup.targets;
        let wait = exponential(&mut self.node(node).chance, (mean as u64).max(1));
        self.push(node, self.now + wait, Event::Arrival(n));
    }

    fn wake(&mut self, id: u32) {
        let (now, waits) = (self.now, self.conditions.timers_wait);
        let node = self.node(id);
        // One that was armed for later after this event was made: only the earliest counts.
        if node.armed != now {
            return;
        }
        let free = node.processor.free();
        if waits && free > now {
            node.armed = free;
            return self.push(id, free, Event::Wake(id));
        }
        node.armed = u64::MAX;
        self.input(id, (self.now, Arrived::Wake));
        if self.node(id).armed == now {
            self.check_rest(id);
        }
    }

    /// A node that was woken wants to be woken at once: time would stand still if it did so for ever.
    fn check_rest(&mut self, id: u32) {
        let (node, at, times) = self.restless;
        let times = if (node, at) == (id, self.now) { times + 1 } else { 1 };
        assert!(times < RESTLESS, "node {id} finds nothing to do at {} ns, and wants to be woken at once", self.now);
        self.restless = (id, self.now, times);
    }

    /// Keeps one wake in the queue for a node: the earliest. A deadline that moved back is found when it comes.
    fn arm(&mut self, id: u32, deadline: Option<Deadline>) {
        let Some(deadline) = deadline.map(|deadline| deadline.at).filter(|at| *at < Instant::FAR) else { return };
        let (now, jitter) = (self.now, self.conditions.wake_jitter.as_nanos());
        let node = self.node(id);
        if node.armed <= now || node.armed < u64::MAX && !node.clock.is_before(deadline, node.armed) {
            return;
        }
        let mut at = node.clock.moment(deadline).max(now);
        if jitter > 0 && at > now {
            at += node.late.below(jitter + 1);
        }
        if at < node.armed {
            node.armed = at;
            self.push(id, at, Event::Wake(id));
        }
    }

    /// What a node has to send leaves its processor at this time: so many bytes of payload, or a control message.
    pub(super) fn leaves(&mut self, node: u32, payload: Option<u64>) -> u64 {
        let takes = self.conditions.cpu(self.is_aggregator(node)).takes(payload);
        self.nodes[self.parts.slot(node)].processor.work(self.now, takes)
    }

    /// The first datagram of so many bytes of payload leaves a node's processor at this time; the others follow.
    pub(super) fn begins_to_leave(&mut self, node: u32, bytes: u64, first: u64) -> u64 {
        let cpu = self.conditions.cpu(self.is_aggregator(node));
        self.nodes[self.parts.slot(node)].processor.send(self.now, cpu, bytes, first)
    }

    /// Something has come to a node: it waits for the processor.
    pub(super) fn reached(&mut self, id: u32, arrived: Arrived) {
        let is_aggregator = self.is_aggregator(id);
        let cpu = self.conditions.cpu(is_aggregator);
        let node = &mut self.nodes[self.parts.slot(id)];
        if node.life.is_down {
            return;
        }
        let (now, processor) = (self.now, &mut node.processor);
        let at = match &arrived {
            Arrived::Control(_) => processor.work(now, cpu.takes(None)),
            Arrived::Payload(_, bytes, _) => {
                let bytes = u64::from(*bytes);
                // What passes is counted where it arrives.
                self.measures.count.payload_bytes += if is_aggregator { 0 } else { bytes };
                if bytes <= self.conditions.datagram {
                    processor.head(now, cpu, bytes)
                } else {
                    processor.rest(now, cpu, bytes, self.conditions.datagram)
                }
            }
            Arrived::Done(..) | Arrived::Wake => processor.work(now, 0),
        };
        if at == now && processor.inbox.is_empty() {
            self.input(id, (now, arrived));
        } else {
            processor.inbox.push_back((now, arrived));
            let life = node.life.number;
            self.push(id, at, Event::Handle(id, life));
        }
    }
}
