//! One run: the machines of a cluster on the event queue, the papers' network and disks around them.
//!
//! The network is theirs: every message takes a fixed trip; control and reserved payload have a share of the link each
//! and do not meet; there is no queue in a switch. Reserved payload leaves its initiator's port in order at the rate of
//! its share. Flows that share a link are paced by their initiators, and a target's port takes them at its rate.

use bytes::Bytes;
use protocol::id::{ClusterId, Epoch, GroupId, NodeId, OpId};
use protocol::machine::{Body, DataRun, Destination, Effect, Input, Machine, Output};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::paper::{Event, Initiator, Members, Request, Target};
use protocol::rng::Rng;
use protocol::time::{Instant, Span};
use protocol::wire::DataHeader;

use super::chance::{exponential, weighted};
use super::product::node::Arrived;
use super::queue::Queue;
use super::setup::{Load, Mode, Setup};
use super::stats::{self, Outcome, histogram};

mod costs;

use costs::Costly;

/// Payload is not made: every chunk is a slice of these zeros, which nobody reads or writes.
static ZEROS: [u8; protocol::limits::CHUNK_BYTES as usize] = [0; protocol::limits::CHUNK_BYTES as usize];

/// Frames and a control message that a port takes at once before its rate binds, in bytes.
const BURST: u64 = 9_300;

enum Happening {
    /// An initiator's or target's deadline.
    Wake(u32),
    Control(Destination, Bytes),
    Payload(Destination, DataHeader, Bytes),
    /// The next frame of a run leaves an initiator.
    Frame(Destination, DataHeader, Bytes),
    Written(u32, OpId),
    /// A node's processor comes to the oldest of its inbox; a target knows a hash; its disk is done. (Costs.)
    Handle(u32),
    Hashed(u32),
    Disk(u32),
    Arrival(u32),
    /// Measuring begins.
    Measure,
}

/// A disk: writes one after another at a rate.
#[derive(Clone, Debug)]
struct Disk {
    rate: u64,
    free_at: u64,
    /// Time of all writes since measuring began, less the backlog of that moment.
    work: u64,
    bytes: u64,
}

/// The port of a target.
#[derive(Clone, Copy, Debug, Default)]
struct Port {
    /// When all that was sent to it is in, at its rate.
    due: u64,
}

struct Counters {
    chunks: u64,
    control_bytes: u64,
    payload_bytes: u64,
    aborted: u64,
    more_rounds: u64,
    cancelled: u64,
    rejected: u64,
    collisions: u64,
}

const NOTHING: Counters = Counters {
    chunks: 0,
    control_bytes: 0,
    payload_bytes: 0,
    aborted: 0,
    more_rounds: 0,
    cancelled: 0,
    rejected: 0,
    collisions: 0,
};

pub(super) struct Cluster<'a> {
    setup: &'a Setup,
    queue: Queue<Happening>,
    now: u64,
    rng: Rng,
    initiators: Vec<Initiator>,
    targets: Vec<Target>,
    /// When each node is to be woken next; targets first.
    armed: Vec<u64>,
    disks: Vec<Disk>,
    /// Processors and disks that cost time, in place of `disks`.
    costly: Option<Costly>,
    ports: Vec<Port>,
    /// When each initiator's port has sent all that it was given.
    uplinks: Vec<u64>,
    /// Targets by cell, in the order of their bits: a set's first cell and those behind it.
    members: Vec<Vec<u32>>,
    next_handle: u64,
    count: Counters,
    latency: hdrhistogram::Histogram<u64>,
    attempt: hdrhistogram::Histogram<u64>,
    series: Vec<u64>,
    events: u64,
    digest: u64,
    began: u64,
    control_time: u64,
}

/// Runs one cluster to its end.
///
/// # Errors
/// A line that says what of the setup cannot be.
pub fn run(setup: &Setup) -> Result<Outcome, String> {
    run_telling(setup, &mut |_| ())
}

/// As [`run`]; `tell` hears now and then which share of the time is simulated, 0 to 1.
pub(super) fn run_telling(setup: &Setup, tell: Tell<'_>) -> Result<Outcome, String> {
    if let Some(profile) = &setup.product {
        return super::product::run(setup, profile, tell);
    }
    let mut cluster = Cluster::new(setup)?;
    cluster.run(tell);
    Ok(cluster.outcome())
}

/// Who hears how far a run is.
pub(super) type Tell<'a> = &'a mut dyn FnMut(f64);

/// Events from one time that this is told to the next, as a mask.
pub(super) const TOLD_EACH: u64 = (1 << 16) - 1;

pub(super) fn map_of(setup: &Setup) -> Result<ClusterMap, String> {
    let copies = u32::from(setup.protocol.copies).max(1);
    if setup.targets == 0 || !setup.targets.is_multiple_of(copies) {
        return Err(format!("targets = {}: choose a multiple of the {copies} copies", setup.targets));
    }
    if setup.group > setup.targets {
        return Err(format!("group = {} is larger than the cluster of {} targets", setup.group, setup.targets));
    }
    if setup.group < copies || !setup.group.is_multiple_of(copies) {
        return Err(format!("group = {}: choose a multiple of the {copies} copies", setup.group));
    }
    let entry = |n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 40 };
    let entries = (0..setup.targets).map(entry).collect();
    let cells = (setup.group / copies) as usize;
    ClusterMap::new(ClusterId(1), Epoch(1), setup.protocol.copies, cells, entries).map_err(|error| error.to_string())
}

impl<'a> Cluster<'a> {
    fn new(setup: &'a Setup) -> Result<Self, String> {
        let map = map_of(setup)?;
        let seeds = Rng::new(setup.seed);
        let members = (0..map.cells()).map(|c| map.members(GroupId(c)).map(|t| t.id.0).collect()).collect();
        let mut config = setup.protocol.clone();
        config.initiators = setup.initiators;
        config.depth = match setup.load {
            Load::Closed { depth } => depth as usize,
            Load::Open { .. } => config.depth,
        };
        let rate = |n| config.disk / u64::from(setup.slow.of(n));
        let targets = (0..setup.targets).map(|n| {
            let disk = costs::written_alone(setup, setup.slow.of(n)).unwrap_or_else(|| rate(n));
            let own = protocol::paper::Config { disk, ..config.clone() };
            Target::new(NodeId(n), own, seeds.fork(1).next_u64())
        });
        let mut asking = config.clone();
        asking.disk = costs::written_alone(setup, 1).unwrap_or(config.disk);
        let of_initiators = Members::new(&map, config.overlap);
        let initiators = (0..setup.initiators).map(|n| {
            let id = NodeId(NodeId::FIRST_INITIATOR + n);
            Initiator::new(id, of_initiators.clone(), asking.clone(), seeds.fork(2).next_u64())
        });
        let disks = (0..setup.targets).map(|n| Disk { rate: rate(n), free_at: 0, work: 0, bytes: 0 });
        Ok(Self {
            setup,
            queue: Queue::new(),
            now: 0,
            rng: seeds.fork(3),
            disks: disks.collect(),
            costly: Costly::of(setup),
            ports: vec![Port::default(); setup.targets as usize],
            uplinks: vec![0; setup.initiators as usize],
            armed: vec![u64::MAX; (setup.targets + setup.initiators) as usize],
            initiators: initiators.collect(),
            targets: targets.collect(),
            members,
            next_handle: 0,
            count: NOTHING,
            latency: histogram(),
            attempt: histogram(),
            series: Vec::new(),
            events: 0,
            digest: 0,
            began: 0,
            control_time: config.timing(1).pdu.as_nanos(),
        })
    }

    fn run(&mut self, tell: Tell<'_>) {
        let end = (self.setup.warm_up + self.setup.length).as_nanos();
        self.queue.push(self.setup.warm_up.as_nanos(), Happening::Measure);
        match self.setup.load {
            Load::Closed { depth } => {
                let stagger = self.setup.quirks.staggered_start.as_nanos();
                for n in (0..self.setup.initiators).flat_map(|n| (0..depth).map(move |_| n)) {
                    if stagger > 0 {
                        let at = self.rng.below(stagger);
                        self.queue.push(at, Happening::Arrival(n));
                    } else {
                        self.put(n);
                    }
                }
            }
            Load::Open { .. } => (0..self.setup.initiators).for_each(|n| self.next_arrival(n)),
        }
        while let Some((at, event)) = self.queue.pop() {
            if at > end {
                break;
            }
            self.now = at;
            self.handle(event);
            if self.events & TOLD_EACH == 0 {
                tell(self.now as f64 / end.max(1) as f64);
            }
        }
        self.now = end;
    }

    fn handle(&mut self, event: Happening) {
        let what = match &event {
            Happening::Wake(node) => u64::from(*node),
            Happening::Control(_, bytes) => 1 << 32 | bytes.len() as u64,
            Happening::Payload(_, header, _) => header.txn.0 ^ 2 << 60 ^ u64::from(header.offset) << 16,
            Happening::Frame(_, header, _) => header.txn.0 ^ 3 << 60 ^ u64::from(header.offset) << 16,
            Happening::Written(node, op) => op.0 ^ u64::from(*node) << 50,
            Happening::Arrival(n) => 5 << 32 | u64::from(*n),
            Happening::Measure => 6 << 32,
            Happening::Handle(node) => 7 << 32 | u64::from(*node),
            Happening::Hashed(node) => 8 << 32 | u64::from(*node),
            Happening::Disk(node) => 9 << 32 | u64::from(*node),
        };
        self.events += 1;
        self.digest = (self.digest ^ what ^ self.now << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        match event {
            Happening::Wake(node) => {
                // One that was armed for later after this event was made: only the earliest counts.
                if self.armed[node as usize] == self.now {
                    self.armed[node as usize] = u64::MAX;
                    self.wake(node);
                }
            }
            Happening::Control(to, bytes) => {
                self.each(to, |cluster, node| {
                    cluster.count.control_bytes += u64::from(cluster.setup.protocol.control);
                    cluster.crosses(node);
                    cluster.reached(node, Arrived::Control(bytes.clone()));
                });
            }
            Happening::Payload(to, header, payload) => {
                self.each(to, |cluster, node| {
                    cluster.count.payload_bytes += payload.len() as u64;
                    cluster.reached(node, Arrived::Payload(header, payload.clone()));
                });
            }
            Happening::Frame(to, header, rest) => self.frame(to, header, rest),
            Happening::Written(node, op) => self.deliver(node, costs::written(op)),
            Happening::Handle(node) => self.handle_oldest(node),
            Happening::Hashed(node) => self.hashed(node),
            Happening::Disk(node) => self.disk_done(node),
            Happening::Arrival(n) => {
                self.put(n);
                self.next_arrival(n);
            }
            Happening::Measure => self.measure(),
        }
    }

    fn measure(&mut self) {
        self.began = self.now;
        self.count = NOTHING;
        self.latency.reset();
        self.attempt.reset();
        self.series.clear();
        for disk in &mut self.disks {
            disk.work = disk.free_at.saturating_sub(self.now);
            disk.bytes = 0;
        }
        if let Some(costly) = &mut self.costly {
            costly.measure(self.now);
        }
    }

    /// Does it for every node of a destination: targets by number, initiators behind them.
    fn each(&mut self, to: Destination, mut does: impl FnMut(&mut Self, u32)) {
        match to {
            Destination::Node(node) if node.is_initiator() => {
                let index = node.0 - NodeId::FIRST_INITIATOR + self.setup.targets;
                does(self, index);
            }
            Destination::Node(node) => does(self, node.0),
            Destination::Members(set) => {
                let mut mask = set.mask;
                while mask != 0 {
                    let bit = mask.trailing_zeros();
                    mask &= mask - 1;
                    let node = self.members[set.cell as usize][bit as usize];
                    does(self, node);
                }
            }
        }
    }

    fn put(&mut self, initiator: u32) {
        let size = weighted(&mut self.rng, &self.setup.sizes);
        self.next_handle += 1;
        let request = Request { handle: self.next_handle, payload: Bytes::from_static(&ZEROS[..size as usize]) };
        let now = Instant::from_nanos(self.now);
        self.initiators[initiator as usize].handle_input(now, Input::Request(request));
        self.drain_initiator(initiator);
    }

    fn next_arrival(&mut self, initiator: u32) {
        let Load::Open { chunks_per_second } = self.setup.load else { return };
        let mean = f64::from(self.setup.initiators) * 1e9 / chunks_per_second.max(1e-3);
        let wait = exponential(&mut self.rng, (mean as u64).max(1));
        self.queue.push(self.now + wait, Happening::Arrival(initiator));
    }

    fn wake(&mut self, node: u32) {
        let now = Instant::from_nanos(self.now);
        if node < self.setup.targets {
            self.targets[node as usize].handle_input(now, Input::Wake);
            self.drain_target(node);
        } else {
            let initiator = node - self.setup.targets;
            self.initiators[initiator as usize].handle_input(now, Input::Wake);
            self.drain_initiator(initiator);
        }
    }

    fn deliver(&mut self, node: u32, arrived: Arrived) {
        let now = Instant::from_nanos(self.now);
        if node < self.setup.targets {
            self.targets[node as usize].handle_input(now, arrived.input());
            self.drain_target(node);
        } else {
            let initiator = node - self.setup.targets;
            self.initiators[initiator as usize].handle_input(now, arrived.input());
            self.drain_initiator(initiator);
        }
    }

    fn drain_initiator(&mut self, n: u32) {
        let node = n + self.setup.targets;
        loop {
            match self.initiators[n as usize].poll_output() {
                Output::Transmit(transmit) => match transmit.body {
                    Body::Control(bytes) => self.control(node, transmit.to, bytes),
                    Body::Data(run) => self.data(n, transmit.to, run),
                },
                Output::Effect { effect, .. } => panic!("an initiator has no disk for {effect:?}"),
                Output::Event(event) => self.event(n, event),
                Output::Idle(deadline) => return self.arm(node, deadline.map(|d| d.at)),
            }
        }
    }

    fn drain_target(&mut self, node: u32) {
        loop {
            match self.targets[node as usize].poll_output() {
                Output::Transmit(transmit) => match transmit.body {
                    Body::Control(bytes) => self.control(node, transmit.to, bytes),
                    Body::Data(_) => panic!("targets of the papers send no payload"),
                },
                Output::Effect { op, effect } => self.effect(node, op, effect),
                Output::Event(never) => match never {},
                Output::Idle(deadline) => return self.arm(node, deadline.map(|d| d.at)),
            }
        }
    }

    /// Keeps one wake in the queue for a node: the earliest. A deadline that moved back is found when it comes.
    fn arm(&mut self, node: u32, deadline: Option<Instant>) {
        let Some(at) = deadline.map(|at| at.as_nanos().max(self.now)) else { return };
        if at < self.armed[node as usize] {
            self.armed[node as usize] = at;
            self.queue.push(at, Happening::Wake(node));
        }
    }

    fn control(&mut self, from: u32, to: Destination, bytes: Bytes) {
        let at = self.leaves(from, None) + self.control_time + self.setup.protocol.trip.as_nanos();
        self.queue.push(at, Happening::Control(to, bytes));
    }

    fn data(&mut self, n: u32, to: Destination, run: DataRun) {
        if !self.setup.protocol.protocol.negotiates() {
            return self.paced(n + self.setup.targets, to, run);
        }
        // The port sends in order.
        let start = self.now.max(self.uplinks[n as usize]);
        let takes = self.wire_time(run.payload.len());
        self.uplinks[n as usize] = start + takes;
        let trip = self.setup.protocol.trip.as_nanos();
        let (first, last) = (start + trip, start + takes + trip);
        self.each(to, |cluster, target| {
            let port = &mut cluster.ports[target as usize];
            if port.due > first {
                cluster.count.collisions += 1;
            }
            port.due = port.due.max(last);
        });
        match self.setup.mode {
            Mode::Frame => self.queue.push(start, Happening::Frame(to, run.header, run.payload)),
            Mode::Transfer => {
                let frames = run.payload.len().div_ceil(run.per_datagram.max(1));
                let late: u64 = (0..frames).map(|_| self.lateness()).sum();
                self.queue.push(last + late, Happening::Payload(to, run.header, run.payload));
            }
        }
    }

    /// One frame of a run; the rest follows it.
    fn frame(&mut self, to: Destination, header: DataHeader, rest: Bytes) {
        let len = rest.len().min(self.setup.protocol.frame as usize);
        let sent = self.now + self.lateness() + self.wire_time(len);
        let frame = rest.slice(..len);
        let trip = self.setup.protocol.trip.as_nanos();
        self.queue.push(sent + trip, Happening::Payload(to, header, frame));
        if len < rest.len() {
            let next = DataHeader { offset: header.offset + len as u32, ..header };
            self.queue.push(sent, Happening::Frame(to, next, rest.slice(len..)));
        }
    }

    /// A frame that its initiator has put on the wire at its flow's rate: the target's port takes it at its own, and
    /// holds the sender back without loss when too much comes at once.
    fn paced(&mut self, from: u32, to: Destination, run: DataRun) {
        let arrives =
            self.leaves(from, Some(run.payload.len())) + self.setup.protocol.trip.as_nanos() + self.lateness();
        let (takes, burst) = (self.wire_time(run.payload.len()), self.wire_time(BURST as usize));
        let mut last = arrives;
        self.each(to, |cluster, target| {
            let port = &mut cluster.ports[target as usize];
            last = last.max((port.due + takes).saturating_sub(burst));
            port.due = port.due.max(arrives) + takes;
        });
        self.queue.push(last, Happening::Payload(to, run.header, run.payload));
    }

    fn lateness(&mut self) -> u64 {
        match self.setup.quirks.late_frames {
            Span::ZERO => 0,
            most => self.rng.below(most.as_nanos() + 1),
        }
    }

    fn wire_time(&self, bytes: usize) -> u64 {
        (bytes as u128 * 8_000_000_000 / u128::from(self.setup.protocol.data_rate())) as u64
    }

    fn effect(&mut self, node: u32, op: OpId, effect: Effect) {
        let Effect::Write { id, pieces, .. } = effect else {
            panic!("targets of the papers only write, not {effect:?}")
        };
        let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if self.costly.is_some() {
            return self.write(node, op, id, bytes);
        }
        let disk = &mut self.disks[node as usize];
        let takes = (u128::from(bytes) * 1_000_000_000 / u128::from(disk.rate.max(1))) as u64;
        disk.free_at = disk.free_at.max(self.now) + takes;
        disk.work += takes;
        disk.bytes += bytes;
        let at = disk.free_at;
        self.queue.push(at, Happening::Written(node, op));
    }

    fn event(&mut self, n: u32, event: Event) {
        match event {
            Event::Put { took, attempt, .. } => {
                if self.is_counted() {
                    self.count.chunks += 1;
                    self.latency.saturating_record(took.as_nanos());
                    self.attempt.saturating_record(attempt.as_nanos());
                    if self.setup.keep_series {
                        self.series.push(attempt.as_nanos());
                    }
                }
                if matches!(self.setup.load, Load::Closed { .. }) {
                    self.put(n);
                }
            }
            Event::Aborted => self.count.aborted += 1,
            Event::AnotherRound => self.count.more_rounds += 1,
            Event::Cancelled => self.count.cancelled += 1,
            Event::Rejected => self.count.rejected += 1,
        }
    }

    fn is_counted(&self) -> bool {
        let hundredth = self.setup.length.as_nanos() / 100;
        !self.setup.quirks.last_hundredth || self.now < self.began + 99 * hundredth
    }

    fn outcome(self) -> Outcome {
        let measured = self.now - self.began;
        let seconds = measured.max(1) as f64 / 1e9;
        let mut bytes: Vec<u64> = self.disks.iter().map(|disk| disk.bytes).collect();
        let time = measured.max(1) as f64 * self.disks.len().max(1) as f64;
        let scheduled: u64 = self.disks.iter().map(|d| d.work.min(measured)).sum();
        let done: u64 = self.disks.iter().map(|d| d.work.saturating_sub(d.free_at.saturating_sub(self.now))).sum();
        let (mut done, scheduled) = (done as f64 / time, scheduled as f64 / time);
        if let Some(costly) = &self.costly {
            done = costly.disks.iter().map(|disk| disk.worked(self.now)).sum::<u64>() as f64 / time;
            bytes = costly.disks.iter().map(|disk| disk.bytes).collect();
        }
        let link = self.setup.protocol.link as f64 / 8.0 * seconds * self.disks.len().max(1) as f64;
        let requests = self.targets.iter().map(Target::requests).fold((0, 0), |sum, r| (sum.0 + r.0, sum.1 + r.1));
        Outcome {
            measured,
            chunks: self.count.chunks,
            chunks_per_second: self.count.chunks as f64 / seconds,
            latency: self.latency,
            attempt: self.attempt,
            disk_utilisation: if self.setup.quirks.scheduled_work { scheduled } else { done },
            disk_scheduled: scheduled,
            link_utilisation: self.count.payload_bytes as f64 / link,
            load: stats::Load::of(&bytes),
            control_bytes: self.count.control_bytes,
            payload_bytes: self.count.payload_bytes,
            aborted: self.count.aborted,
            more_rounds: self.count.more_rounds,
            cancelled: self.count.cancelled,
            rejected: self.count.rejected,
            requests,
            collisions: self.count.collisions,
            events: self.events,
            digest: self.digest,
            series: self.series,
            product: None,
        }
    }
}
