//! One run of the product's machines.

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{NodeId, OpId};
use protocol::initiator::{Event as InitiatorEvent, Initiator, Request, Stored};
use protocol::machine::{Completion, Destination, Effect, Input, Machine, Output};
use protocol::map::ClusterMap;
use protocol::rng::Rng;
use protocol::target::{Event as TargetEvent, Setup as TargetSetup, Target};
use protocol::time::Instant;

use super::super::chance::exponential;
use super::super::cluster::{TOLD_EACH, Tell, map_of};
use super::super::queue::Queue;
use super::super::setup::{Load, Setup};
use super::super::stats::{self, Outcome, histogram};
use super::Profile;
use super::counts::Counts;
use super::disk::{Disk, Finished};
use super::node::{Arrived, Clock, Processor};
use super::wire::{Port, Train, Uplink};
use super::workload::Workload;

mod crash;
mod outcome;
mod traffic;

use crash::Life;

/// Payload is not made: every chunk is a slice of these zeros, which nobody reads or writes.
static ZEROS: [u8; protocol::limits::CHUNK_BYTES as usize] = [0; protocol::limits::CHUNK_BYTES as usize];

/// Room on a target's disk, which is not what is asked for here.
const FREE: u64 = 1 << 60;
/// Parts of the measured time for which throughput is kept.
const HUNDRED: usize = 100;

enum Happening {
    /// A node's deadline.
    Wake(u32),
    /// A control message reaches its receivers' ports.
    Control(Destination, Bytes),
    /// A train begins to reach its receivers' ports; or its end does.
    Head(u32),
    Tail(u32),
    /// A node's port may have sent a train.
    Sent(u32),
    /// Something is through a node's port.
    Reached(u32, Arrived),
    /// A node's processor comes to the oldest of its inbox.
    /// (In which of its lives: a crash undoes it.)
    Handle(u32, u32),
    /// A target knows a hash; its disk is done.
    Hashed(u32, u32),
    Disk(u32, u32),
    /// The next target crashes; it starts anew.
    Crash,
    Restart(u32),
    Arrival(u32),
    /// Measuring begins; measuring ends.
    Measure,
    Stop,
}

#[derive(Default)]
struct Counters {
    puts: u64,
    gets: u64,
    failed: u64,
    more_rounds: u64,
    control_bytes: u64,
    control_messages: u64,
    payload_bytes: u64,
    dropped: u64,
    repairs: u64,
    hedged: u64,
    released: u64,
    expired: u64,
    collisions: u64,
}

struct Cluster<'a> {
    setup: &'a Setup,
    profile: &'a Profile,
    map: ClusterMap,
    queue: Queue<Happening>,
    now: u64,
    /// Arrivals; lost datagrams; late wakes.
    rng: [Rng; 3],
    workload: Workload,
    targets: Vec<Target>,
    initiators: Vec<Initiator>,
    /// Targets first, as everything that there is for each node.
    clocks: Vec<Clock>,
    processors: Vec<Processor>,
    armed: Vec<u64>,
    lives: Vec<Life>,
    /// Crashes until now.
    crashed: u32,
    /// Puts that were acknowledged with too few copies on disks.
    undurable: u64,
    uplinks: Vec<Uplink>,
    ports: Vec<Port>,
    disks: Vec<Disk>,
    trains: Vec<Option<Train>>,
    free_trains: Vec<u32>,
    /// Nodes of a destination, and what is done at once: kept so that nothing is allocated for each event.
    receivers: Vec<u32>,
    at_once: Vec<(OpId, Completion)>,
    /// Nanoseconds that 2^20 bytes take on a link, and how many fit into a queue.
    per_mib: u64,
    room: u64,
    began: u64,
    ended: Option<u64>,
    /// Requests of the measured time that are not over.
    open: u64,
    count: Counters,
    /// What was counted until measuring ended.
    stopped: Counters,
    put_latency: hdrhistogram::Histogram<u64>,
    get_latency: hdrhistogram::Histogram<u64>,
    series: Vec<u64>,
    found: Vec<u64>,
    asked: Counts,
    transfers: Counts,
    /// Requests that ended well, by hundredths of the measured time.
    ended_in: [u64; HUNDRED],
    work: (u64, u64, u64, stats::Load),
    events: u64,
    digest: u64,
}

/// Runs one cluster to its end.
pub(in crate::perf) fn run(setup: &Setup, profile: &Profile, tell: Tell<'_>) -> Result<Outcome, String> {
    let mut cluster = Cluster::new(setup, profile)?;
    cluster.run(tell);
    Ok(cluster.outcome())
}

fn target(n: u32, map: &ClusterMap, config: &Config) -> Target {
    let own = TargetSetup { id: NodeId(n), map: map.clone(), free: FREE, chunks: 0, bug: None };
    Target::new(own, config.clone())
}

impl<'a> Cluster<'a> {
    fn new(setup: &'a Setup, profile: &'a Profile) -> Result<Self, String> {
        let map = map_of(setup)?;
        let map = if profile.overlap { map } else { map.apart() };
        let seeds = Rng::new(setup.seed);
        let nodes = (setup.targets + setup.initiators) as usize;
        let mut config = profile.config.clone();
        config.depth = match setup.load {
            Load::Closed { depth } => depth as usize,
            Load::Open { .. } => setup.protocol.depth,
        };
        let mut numbers = seeds.fork(2);
        let initiators = (0..setup.initiators).map(|n| {
            let id = NodeId(NodeId::FIRST_INITIATOR + n);
            Initiator::new(id, map.clone(), config.clone(), numbers.next_u64())
        });
        let (mut clocks, rate) = (seeds.fork(4), setup.protocol.disk);
        let per_mib = ((8_u128 << 20) * 1_000_000_000 / u128::from(setup.protocol.link.max(1))) as u64;
        Ok(Self {
            initiators: initiators.collect(),
            targets: (0..setup.targets).map(|n| target(n, &map, &config)).collect(),
            clocks: (0..nodes).map(|_| Clock::draw(&mut clocks, profile.drift_ppm)).collect(),
            disks: (0..setup.targets)
                .map(|n| Disk::new(rate, &profile.disk, profile.cpu.hash, setup.slow.of(n)))
                .collect(),
            workload: Workload::new(seeds.fork(3), &setup.sizes, (profile.reads, profile.objects, profile.skew), &map),
            setup,
            profile,
            map,
            queue: Queue::new(),
            now: 0,
            rng: [5, 6, 7].map(|purpose| seeds.fork(purpose)),
            processors: (0..nodes).map(|_| Processor::default()).collect(),
            armed: vec![u64::MAX; nodes],
            lives: vec![Life::default(); nodes],
            crashed: 0,
            undurable: 0,
            uplinks: (0..nodes).map(|_| Uplink::default()).collect(),
            ports: (0..nodes).map(|_| Port::default()).collect(),
            trains: Vec::new(),
            free_trains: Vec::new(),
            receivers: Vec::new(),
            at_once: Vec::new(),
            per_mib,
            room: ((u128::from(profile.switch_queue) * u128::from(per_mib)) >> 20) as u64,
            began: 0,
            ended: None,
            open: 0,
            count: Counters::default(),
            stopped: Counters::default(),
            put_latency: histogram(),
            get_latency: histogram(),
            series: Vec::new(),
            found: Vec::new(),
            asked: Counts::default(),
            ended_in: [0; HUNDRED],
            transfers: Counts::default(),
            work: (0, 0, 0, stats::Load::default()),
            events: 0,
            digest: 0,
        })
    }

    fn run(&mut self, tell: Tell<'_>) {
        let end = (self.setup.warm_up + self.setup.length).as_nanos();
        self.queue.push(self.setup.warm_up.as_nanos(), Happening::Measure);
        self.queue.push(end, Happening::Stop);
        if let Some(crashes) = self.profile.crashes {
            self.queue.push(crashes.every.as_nanos(), Happening::Crash);
        }
        match self.setup.load {
            Load::Closed { depth } => {
                for n in 0..self.setup.initiators {
                    (0..depth).for_each(|_| self.ask(n));
                }
            }
            Load::Open { .. } => (0..self.setup.initiators).for_each(|n| self.next_arrival(n)),
        }
        let most = end.saturating_add(self.profile.drain.as_nanos());
        while let Some((at, event)) = self.queue.pop() {
            if at > most || self.ended.is_some() && self.open == 0 {
                break;
            }
            self.now = at;
            self.handle(event);
            if self.events & TOLD_EACH == 0 {
                tell((self.now as f64 / end.max(1) as f64).min(1.0));
            }
        }
    }

    fn handle(&mut self, event: Happening) {
        let what = match &event {
            Happening::Wake(node) => u64::from(*node),
            Happening::Control(_, bytes) => 1 << 32 | bytes.len() as u64,
            Happening::Head(train) => 2 << 32 | u64::from(*train),
            Happening::Tail(train) => 3 << 32 | u64::from(*train),
            Happening::Sent(node) => 4 << 32 | u64::from(*node),
            Happening::Reached(node, _) => 5 << 32 | u64::from(*node),
            Happening::Handle(node, _) => 6 << 32 | u64::from(*node),
            Happening::Hashed(node, _) => 7 << 32 | u64::from(*node),
            Happening::Disk(node, _) => 8 << 32 | u64::from(*node),
            Happening::Arrival(node) => 9 << 32 | u64::from(*node),
            Happening::Measure => 10 << 32,
            Happening::Stop => 11 << 32,
            Happening::Crash => 12 << 32,
            Happening::Restart(node) => 13 << 32 | u64::from(*node),
        };
        self.events += 1;
        self.digest = (self.digest ^ what ^ self.now << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        match event {
            Happening::Wake(node) => self.wake(node),
            Happening::Control(to, bytes) => self.control(to, &bytes),
            Happening::Head(train) => self.head(train),
            Happening::Tail(train) => self.tail(train),
            Happening::Sent(node) => self.sent(node),
            Happening::Reached(node, arrived) => self.reached(node, arrived),
            Happening::Handle(node, life) | Happening::Hashed(node, life) | Happening::Disk(node, life)
                if !self.lives(node, life) => {}
            Happening::Handle(node, _) => {
                if let Some(arrived) = self.processors[node as usize].inbox.pop_front() {
                    self.input(node, arrived);
                }
            }
            Happening::Hashed(node, _) => {
                self.disks[node as usize].hashed();
                self.begin_disk(node);
            }
            Happening::Disk(node, _) => self.disk(node),
            Happening::Arrival(n) => {
                self.ask(n);
                self.next_arrival(n);
            }
            Happening::Measure => self.measure(),
            Happening::Stop => self.stop(),
            Happening::Crash => self.crash(),
            Happening::Restart(node) => self.restart(node),
        }
    }

    fn measure(&mut self) {
        self.began = self.now;
        self.count = Counters::default();
        self.found.clear();
        self.ended_in = [0; HUNDRED];
        let counts = Counts::new(self.profile.interval(self.setup), self.now, self.setup.targets);
        (self.asked, self.transfers) = (counts.clone(), counts);
        self.disks.iter_mut().for_each(|disk| disk.measure(self.now));
        self.processors.iter_mut().for_each(|processor| processor.work = 0);
    }

    /// The end of the measured time: what is still under way has the drain to end in.
    fn stop(&mut self) {
        self.ended = Some(self.now);
        let (targets, initiators) = self.processors.split_at(self.setup.targets as usize);
        let work = |of: &[Processor]| of.iter().map(|processor| processor.work).sum();
        let disks = self.disks.iter().map(|disk| disk.worked(self.now)).sum();
        let bytes: Vec<u64> = self.disks.iter().map(|disk| disk.bytes).collect();
        self.work = (disks, work(targets), work(initiators), stats::Load::of(&bytes));
        self.stopped = core::mem::take(&mut self.count);
        self.open = self.workload.unfinished(self.began, self.now);
    }

    fn ask(&mut self, initiator: u32) {
        let wish = self.workload.wish(self.now);
        let request = if wish.is_put {
            let payload = Bytes::from_static(&ZEROS[..wish.size as usize]);
            Request::Put { handle: wish.handle, id: wish.id, payload, removal: false }
        } else {
            Request::Get { handle: wish.handle, id: wish.id }
        };
        let node = initiator + self.setup.targets;
        let now = self.clocks[node as usize].local(self.now);
        self.initiators[initiator as usize].handle_input(now, Input::Request(request));
        self.drain(node);
    }

    fn next_arrival(&mut self, initiator: u32) {
        let Load::Open { chunks_per_second } = self.setup.load else { return };
        let mean = f64::from(self.setup.initiators) * 1e9 / chunks_per_second.max(1e-3);
        let wait = exponential(&mut self.rng[0], (mean as u64).max(1));
        self.queue.push(self.now + wait, Happening::Arrival(initiator));
    }

    fn wake(&mut self, node: u32) {
        // One that was armed for later after this event was made: only the earliest counts.
        if self.armed[node as usize] != self.now {
            return;
        }
        let free = self.processors[node as usize].free();
        if free > self.now {
            self.armed[node as usize] = free;
            self.queue.push(free, Happening::Wake(node));
            return;
        }
        self.armed[node as usize] = u64::MAX;
        let now = self.clocks[node as usize].local(self.now);
        match node.checked_sub(self.setup.targets) {
            None => self.targets[node as usize].handle_input(now, Input::Wake),
            Some(n) => self.initiators[n as usize].handle_input(now, Input::Wake),
        }
        self.drain(node);
    }

    fn input(&mut self, node: u32, arrived: Arrived) {
        let now = self.clocks[node as usize].local(self.now);
        match node.checked_sub(self.setup.targets) {
            None => self.targets[node as usize].handle_input(now, arrived.input()),
            Some(n) => self.initiators[n as usize].handle_input(now, arrived.input()),
        }
        self.drain(node);
    }

    fn drain(&mut self, node: u32) {
        loop {
            let deadline = match node.checked_sub(self.setup.targets) {
                None => self.drain_target(node),
                Some(n) => self.drain_initiator(n, node),
            };
            let Some((op, completion)) = self.at_once.pop() else {
                return self.arm(node, deadline);
            };
            let now = self.clocks[node as usize].local(self.now);
            let done = Arrived::Done(op, completion);
            match node.checked_sub(self.setup.targets) {
                None => self.targets[node as usize].handle_input(now, done.input()),
                Some(n) => self.initiators[n as usize].handle_input(now, done.input()),
            }
        }
    }

    fn drain_initiator(&mut self, n: u32, node: u32) -> Option<Instant> {
        loop {
            match self.initiators[n as usize].poll_output() {
                Output::Transmit(transmit) => self.transmit(node, transmit.to, transmit.body),
                Output::Effect { op, effect: Effect::Verify { pieces, .. } } => {
                    // The thread that fetches hashes, as in the daemon.
                    let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
                    let takes = match self.profile.cpu.hash {
                        0 => 0,
                        rate => protocol::time::Span::of_transfer(bytes, rate).as_nanos(),
                    };
                    let at = self.processors[node as usize].work(self.now, takes);
                    let done = Arrived::Done(op, Completion::Verified(true));
                    self.processors[node as usize].inbox.push_back(done);
                    self.queue.push(at, Happening::Handle(node, self.lives[node as usize].number));
                }
                Output::Effect { effect, .. } => panic!("an initiator has no disk for {effect:?}"),
                Output::Event(event) => self.initiator_event(n, event),
                Output::Idle(deadline) => return deadline.map(|d| d.at),
            }
        }
    }

    fn drain_target(&mut self, node: u32) -> Option<Instant> {
        loop {
            match self.targets[node as usize].poll_output() {
                Output::Transmit(transmit) => self.transmit(node, transmit.to, transmit.body),
                Output::Effect { op, effect } => self.effect(node, op, effect),
                Output::Event(event) => self.target_event(&event),
                Output::Idle(deadline) => return deadline.map(|d| d.at),
            }
        }
    }

    /// Keeps one wake in the queue for a node: the earliest. A deadline that moved back is found when it comes.
    fn arm(&mut self, node: u32, deadline: Option<Instant>) {
        let Some(deadline) = deadline.filter(|at| *at < Instant::FAR) else { return };
        let mut at = self.clocks[node as usize].moment(deadline).max(self.now);
        if at >= self.armed[node as usize] {
            return;
        }
        let jitter = self.profile.wake_jitter.as_nanos();
        if jitter > 0 && at > self.now {
            at += self.rng[2].below(jitter + 1);
        }
        if at < self.armed[node as usize] {
            self.armed[node as usize] = at;
            self.queue.push(at, Happening::Wake(node));
        }
    }

    /// Something is through a node's port: it waits for the processor.
    fn reached(&mut self, node: u32, arrived: Arrived) {
        if self.lives[node as usize].is_down {
            return;
        }
        let (now, cpu) = (self.now, &self.profile.cpu);
        let processor = &mut self.processors[node as usize];
        let at = match &arrived {
            Arrived::Control(_) => processor.work(now, cpu.message.as_nanos()),
            Arrived::Payload(_, payload) => {
                self.count.payload_bytes += payload.len() as u64;
                let (bytes, datagram) = (payload.len() as u64, self.profile.config.per_datagram as u64);
                if bytes <= datagram {
                    processor.head(now, cpu, bytes)
                } else {
                    processor.rest(now, cpu, bytes, datagram)
                }
            }
            Arrived::Done(..) => processor.work(now, 0),
        };
        if at == now && processor.inbox.is_empty() {
            self.input(node, arrived);
        } else {
            processor.inbox.push_back(arrived);
            self.queue.push(at, Happening::Handle(node, self.lives[node as usize].number));
        }
    }

    fn effect(&mut self, node: u32, op: OpId, effect: Effect) {
        match effect {
            Effect::Lookup { id, .. } => {
                self.at_once.push((op, Completion::Found(self.workload.found(&id, NodeId(node)))));
            }
            Effect::Write { id, pieces, .. } => {
                self.find(node);
                let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
                match self.disks[node as usize].write(self.now, op, id, bytes) {
                    Some(at) => self.queue.push(at, Happening::Hashed(node, self.lives[node as usize].number)),
                    None => self.begin_disk(node),
                }
            }
            Effect::Read { id } => match self.workload.found(&id, NodeId(node)) {
                Some(size) => {
                    self.disks[node as usize].read(op, Bytes::from_static(&ZEROS[..size as usize]));
                    self.begin_disk(node);
                }
                None => self.at_once.push((op, Completion::Read(Err(protocol::machine::ReadFailure::Missing)))),
            },
            effect => panic!("no run asks a target for {effect:?}"),
        }
    }

    /// A write finds what is at its disk.
    fn find(&mut self, node: u32) {
        let others = self.disks[node as usize].length();
        if self.ended.is_none() {
            self.found.resize(self.found.len().max(others + 1), 0);
            self.found[others] += 1;
        }
    }

    fn begin_disk(&mut self, node: u32) {
        if let Some(at) = self.disks[node as usize].begin(self.now) {
            self.queue.push(at, Happening::Disk(node, self.lives[node as usize].number));
        }
    }

    fn disk(&mut self, node: u32) {
        let mut done = Vec::new();
        self.disks[node as usize].finish(|finished| done.push(finished));
        for finished in done {
            let arrived = match finished {
                Finished::Written { op, id } => {
                    self.workload.stored(&id, NodeId(node));
                    Arrived::Done(op, Completion::Written { result: Ok(()), free: FREE })
                }
                Finished::Read { op, payload } => Arrived::Done(op, Completion::Read(Ok(payload))),
            };
            self.reached(node, arrived);
        }
        self.begin_disk(node);
    }

    fn initiator_event(&mut self, n: u32, event: InitiatorEvent) {
        let (handle, good, rounds) = match event {
            InitiatorEvent::Put { handle, result } => {
                let is_durable = |stored: &Stored| {
                    stored.holders.len() >= usize::from(self.map.copies) && self.workload.holds(handle, &stored.holders)
                };
                self.undurable += u64::from(result.as_ref().is_ok_and(|stored| !is_durable(stored)));
                (handle, result.is_ok(), result.map_or(0, |stored| stored.rounds))
            }
            InitiatorEvent::Get { handle, result } => {
                (handle, result.is_ok(), result.map_or(0, |fetched| fetched.rounds))
            }
            InitiatorEvent::RepairAsked => return self.count.repairs += 1,
            InitiatorEvent::Hedged => return self.count.hedged += 1,
            InitiatorEvent::List { .. }
            | InitiatorEvent::Ping { .. }
            | InitiatorEvent::Renew { .. }
            | InitiatorEvent::Mark { .. }
            | InitiatorEvent::Discard { .. }
            | InitiatorEvent::Usage { .. }
            | InitiatorEvent::NeedMap { .. }
            | InitiatorEvent::Bid { .. }
            | InitiatorEvent::RepairSent
            | InitiatorEvent::Multicast { .. }
            | InitiatorEvent::CorruptCopy { .. } => return,
        };
        let over = self.workload.over(handle);
        self.count.puts += u64::from(good && over.is_put);
        self.count.gets += u64::from(good && !over.is_put);
        self.count.failed += u64::from(!good);
        self.count_over_time(good);
        self.count.more_rounds += u64::from(rounds.saturating_sub(1));
        let in_window = over.begun >= self.began && self.ended.is_none_or(|end| over.begun < end);
        if in_window && self.now >= self.setup.warm_up.as_nanos() {
            if self.ended.is_some() {
                self.open -= 1;
                self.stopped.failed += u64::from(!good);
            }
            if good {
                let latency = if over.is_put { &mut self.put_latency } else { &mut self.get_latency };
                latency.saturating_record(self.now - over.begun);
                if self.setup.keep_series {
                    self.series.push(self.now - over.begun);
                }
            }
        }
        if matches!(self.setup.load, Load::Closed { .. }) {
            self.ask_later(n);
        }
    }

    fn count_over_time(&mut self, good: bool) {
        let since = u128::from(self.now - self.began) * HUNDRED as u128;
        let part = (since / u128::from(self.setup.length.as_nanos().max(1))) as usize;
        if self.ended.is_none()
            && let Some(ended) = self.ended_in.get_mut(part)
        {
            *ended += u64::from(good);
        }
    }

    /// The next request of a closed loop, when the outputs of this moment are taken.
    fn ask_later(&mut self, n: u32) {
        self.queue.push(self.now, Happening::Arrival(n));
    }

    const fn target_event(&mut self, event: &TargetEvent) {
        match event {
            TargetEvent::RepairAsked => self.count.repairs += 1,
            TargetEvent::Released { .. } => self.count.released += 1,
            TargetEvent::Expired => self.count.expired += 1,
            _ => {}
        }
    }
}
