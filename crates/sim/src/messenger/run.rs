//! The run: events in order of their time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use protocol::messenger::{ConnectionId, Done, Lanes, Pool};
use protocol::rng::Rng;
use protocol::time::{Instant, Span};

use super::testbed::{
    CLIENTS, CORES, DEPTH, DISPATCH, Direction, JOBS, LINK, NODES, OF_CLIENTS, REACHED, REQUESTS, Setup, TARGETS,
    TARGETS_OF_NODE, WORKERS, reading,
};

/// Jobs that are busy at one time when the skew moves.
const BUSY: usize = 6;
/// Bytes by worker are counted in intervals of this length (Figure 11).
const INTERVAL: Span = Span::from_secs(5);

/// What a run measured.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Requests that were answered in the measured time.
    pub answered: u64,
    /// The same in a second.
    pub per_second: f64,
    /// The standard deviation of KB that workers processed in each 5 s, from the beginning on.
    pub deviations: Vec<f64>,
    /// Events of each worker in the measured time, in ascending order.
    pub events: Vec<u64>,
    /// The share of the measured time in which cores work.
    pub cores: f64,
    /// Segments that a switch dropped in the measured time.
    pub dropped: u64,
    /// Connections that moved in the measured time.
    pub moved: u64,
    /// Events handled.
    pub handled: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The next part of a request's message reaches the port of its receiver.
    Segment(usize),
    /// All of it is there.
    Arrived(usize),
    /// A worker of a target wants a core for its turn.
    Ready(usize, usize),
    /// The turn is over.
    Turn(usize, usize),
    /// A target's worker has read what came from a peer over one of several connections that share a lock.
    Unlocked(usize, usize),
    /// A second thread has handed a message on.
    HandedOn(usize),
    /// A target has processed a request.
    Processed(usize, usize),
    /// A target's pool wants to be asked.
    Balance(usize),
    /// Bytes by worker are counted.
    Count,
    /// What is measured begins.
    Begin,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Request,
    Replica,
    Acknowledgement,
    Answer,
    /// Not one of a client: it keeps a light connection in use.
    Heartbeat,
}

/// A request, or a heartbeat: each has one message at a time.
#[derive(Clone, Copy, Debug)]
struct Request {
    job: usize,
    stage: Stage,
    primary: usize,
    secondary: usize,
    /// Of the target that gets the message.
    connection: usize,
    /// Among those of its bundle.
    number: u64,
    /// Bytes that have not arrived.
    left: u64,
}

#[derive(Clone, Debug, Default)]
struct Worker {
    queue: VecDeque<usize>,
    /// What it does, since when.
    busy: Option<(usize, u64)>,
    /// Its connection moves on when the turn is over.
    leaves: Option<usize>,
    bytes: u64,
    events: u64,
}

/// The connections from one target to another that carry replicas.
#[derive(Clone, Debug)]
struct Bundle {
    lanes: Lanes,
    /// Bytes on their way on each, of messages that leave this target.
    queued: Vec<u64>,
    sent: u64,
    /// Of messages that come.
    expected: u64,
    held: BTreeMap<u64, usize>,
    /// Workers that read from it, or want to; the first has its lock.
    readers: VecDeque<usize>,
}

#[derive(Debug)]
struct Target {
    pool: Pool,
    workers: Vec<Worker>,
    bundles: Vec<Bundle>,
    processing: VecDeque<usize>,
    /// When the pool is to be asked, so that it is asked once.
    asked: Option<Instant>,
}

/// What waits for a core.
#[derive(Clone, Copy, Debug)]
enum Work {
    Worker(usize, usize),
    HandOn(usize, usize),
}

/// The port of a switch before a machine.
#[derive(Clone, Copy, Debug, Default)]
struct Port {
    /// When nothing is left in it.
    free: u64,
    /// It dropped something since it was empty.
    overflowed: bool,
}

#[derive(Debug, Default)]
struct Node {
    busy: usize,
    ready: VecDeque<Work>,
    worked: u64,
}

struct Run<'a> {
    setup: &'a Setup,
    now: u64,
    order: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    requests: Vec<Request>,
    targets: Vec<Target>,
    nodes: Vec<Node>,
    /// Those of servers, then those of clients.
    ports: Vec<Port>,
    rng: Rng,
    measuring: bool,
    outcome: Outcome,
}

/// Runs it.
#[must_use]
pub fn run(setup: &Setup) -> Outcome {
    let mut run = Run::new(setup);
    run.start();
    let end = (setup.warm_up.as_nanos() + setup.length.as_nanos()).max(1);
    while let Some(Reverse((at, _, event))) = run.queue.pop().filter(|Reverse((at, ..))| *at <= end) {
        run.now = at;
        run.outcome.handled += 1;
        run.handle(event);
    }
    run.finish()
}

impl<'a> Run<'a> {
    fn new(setup: &'a Setup) -> Self {
        let rng = Rng::new(setup.seed);
        let targets = (0..TARGETS).map(|at| Target::new(at, setup, &mut rng.fork(at as u64))).collect();
        Self {
            setup,
            now: 0,
            order: 0,
            queue: BinaryHeap::new(),
            requests: Vec::new(),
            targets,
            nodes: (0..NODES).map(|_| Node::default()).collect(),
            ports: vec![Port::default(); NODES + CLIENTS],
            rng: rng.fork(1_000),
            measuring: false,
            outcome: Outcome::default(),
        }
    }

    fn start(&mut self) {
        self.push(self.setup.warm_up.as_nanos(), Event::Begin);
        self.push(INTERVAL.as_nanos(), Event::Count);
        let idle =
            Request { job: 0, stage: Stage::Request, primary: 0, secondary: 0, connection: 0, number: 0, left: 0 };
        for at in 0..REQUESTS {
            self.requests.push(idle);
            self.request(at);
        }
        for target in 0..TARGETS {
            for light in 0..self.setup.chosen.light {
                let connection = Target::peers_end(self.setup) + light;
                let at = self.requests.len();
                let beat = Request { stage: Stage::Heartbeat, primary: target, connection, ..idle };
                self.requests.push(beat);
                let first = self.rng.below(self.setup.chosen.heartbeat.as_nanos());
                self.push(first, Event::Arrived(at));
            }
        }
    }

    fn push(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse((at, self.order, event)));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Segment(at) => self.segment(at),
            Event::Arrived(at) => self.arrived(at),
            Event::Ready(target, worker) => self.ready(target / TARGETS_OF_NODE, Work::Worker(target, worker)),
            Event::Turn(target, worker) => self.turn_ends(target, worker),
            Event::Unlocked(target, peer) => {
                let readers = &mut self.targets[target].bundles[peer].readers;
                readers.pop_front();
                if let Some(next) = readers.front().copied() {
                    self.rest(target, next);
                }
            }
            Event::HandedOn(at) => {
                self.core_is_free(self.receiver(at) / TARGETS_OF_NODE);
                self.in_order(at);
            }
            Event::Processed(target, at) => {
                self.targets[target].processing.pop_front();
                if let Some(next) = self.targets[target].processing.front() {
                    self.push(self.now + self.setup.chosen.processing.as_nanos(), Event::Processed(target, *next));
                }
                self.next_stage(at);
            }
            Event::Balance(target) => self.balance(target),
            Event::Count => self.count(),
            Event::Begin => {
                self.measuring = true;
                self.targets.iter_mut().flat_map(|t| &mut t.workers).for_each(|worker| worker.events = 0);
                self.nodes.iter_mut().for_each(|node| node.worked = 0);
            }
        }
    }

    /// A job asks for something.
    fn request(&mut self, at: usize) {
        let job = match self.setup.moving {
            None => at / DEPTH,
            Some(period) => (self.now / period.as_nanos().max(1)) as usize * BUSY + at % BUSY,
        } % OF_CLIENTS;
        let primary = self.rng.below(TARGETS as u64) as usize;
        let others = (TARGETS - TARGETS_OF_NODE) as u64;
        let node = primary / TARGETS_OF_NODE * TARGETS_OF_NODE;
        let secondary = (node + TARGETS_OF_NODE + self.rng.below(others) as usize) % TARGETS;
        let request = &mut self.requests[at];
        (request.job, request.primary, request.secondary) = (job, primary, secondary);
        self.send(at, Stage::Request);
    }

    /// The target that gets, or has got, a request's message.
    fn receiver(&self, at: usize) -> usize {
        let request = &self.requests[at];
        if request.stage == Stage::Replica { request.secondary } else { request.primary }
    }

    /// Payload of a message.
    fn payload(&self, stage: Stage) -> u64 {
        let is_there = match stage {
            Stage::Request => self.setup.direction == Direction::Write,
            Stage::Replica => true,
            Stage::Answer => self.setup.direction == Direction::Read,
            Stage::Acknowledgement | Stage::Heartbeat => false,
        };
        if is_there { self.setup.size } else { 0 }
    }

    fn send(&mut self, at: usize, stage: Stage) {
        let bytes = self.payload(stage) + self.setup.chosen.header;
        let Request { job, primary, secondary, .. } = self.requests[at];
        let peers = match stage {
            Stage::Replica => Some((primary, secondary)),
            Stage::Acknowledgement => Some((secondary, primary)),
            _ => None,
        };
        let (mut connection, mut number) = (job, 0);
        if let Some((from, to)) = peers {
            let bundle = &mut self.targets[from].bundles[to];
            let lane = bundle.lanes.choose(&bundle.queued).unwrap_or_default();
            bundle.queued[lane] += bytes;
            number = bundle.sent;
            bundle.sent += 1;
            connection = OF_CLIENTS + from * self.setup.messenger.connections + lane;
        }
        self.requests[at] = Request { stage, connection, number, left: bytes, ..self.requests[at] };
        self.push(self.now + self.setup.chosen.trip.as_nanos(), Event::Segment(at));
    }

    fn segment(&mut self, at: usize) {
        let chosen = &self.setup.chosen;
        let request = self.requests[at];
        let port = match request.stage {
            Stage::Answer => NODES + request.job / JOBS,
            _ => self.receiver(at) / TARGETS_OF_NODE,
        };
        let bytes = request.left.min(chosen.segment);
        let port = &mut self.ports[port];
        port.overflowed &= port.free > self.now;
        let rate = if port.overflowed { REACHED } else { LINK };
        let free = port.free.max(self.now);
        let waiting = u128::from(free - self.now) * u128::from(rate) / 1_000_000_000;
        if !self.setup.messenger.bounded && waiting + u128::from(bytes) > u128::from(chosen.buffer) {
            port.overflowed = true;
            self.outcome.dropped += u64::from(self.measuring);
            self.push(self.now + chosen.again.as_nanos(), Event::Segment(at));
            return;
        }
        let free = free + Span::of_transfer(bytes, rate).as_nanos();
        port.free = free;
        self.requests[at].left -= bytes;
        self.push(free, if request.left > bytes { Event::Segment(at) } else { Event::Arrived(at) });
    }

    fn arrived(&mut self, at: usize) {
        let Request { stage, primary, secondary, connection, .. } = self.requests[at];
        if stage == Stage::Answer {
            self.outcome.answered += u64::from(self.measuring);
            self.request(at);
            return;
        }
        let target = self.receiver(at);
        if connection >= OF_CLIENTS && stage != Stage::Heartbeat {
            let from = if stage == Stage::Replica { primary } else { secondary };
            let bytes = self.payload(stage) + self.setup.chosen.header;
            let lane = (connection - OF_CLIENTS) % self.setup.messenger.connections;
            self.targets[from].bundles[target].queued[lane] -= bytes;
        }
        let worker = self.targets[target].pool.worker(ConnectionId(connection as u64)).unwrap_or_default();
        self.targets[target].workers[worker].queue.push_back(at);
        self.wake(target, worker);
    }

    /// A worker without work takes the next message, if there is one.
    fn wake(&mut self, target: usize, worker: usize) {
        let it = &mut self.targets[target].workers[worker];
        if it.busy.is_some() {
            return;
        }
        let Some(at) = it.queue.pop_front() else { return };
        it.busy = Some((at, self.now));
        if let Some(peer) = self.locked(at) {
            let readers = &mut self.targets[target].bundles[peer].readers;
            readers.push_back(worker);
            if readers.len() > 1 {
                return;
            }
        }
        self.rest(target, worker);
    }

    /// What a turn takes beside reading and handing on keeps no core.
    fn rest(&mut self, target: usize, worker: usize) {
        self.push(self.now + self.setup.chosen.rest.as_nanos(), Event::Ready(target, worker));
    }

    fn ready(&mut self, node: usize, work: Work) {
        if self.nodes[node].busy < CORES {
            self.nodes[node].busy += 1;
            self.begin(work);
        } else {
            self.nodes[node].ready.push_back(work);
        }
    }

    fn core_is_free(&mut self, node: usize) {
        match self.nodes[node].ready.pop_front() {
            Some(work) => self.begin(work),
            None => self.nodes[node].busy -= 1,
        }
    }

    fn begin(&mut self, work: Work) {
        let (node, takes, event) = match work {
            Work::HandOn(target, at) => (target / TARGETS_OF_NODE, DISPATCH.as_nanos(), Event::HandedOn(at)),
            Work::Worker(target, worker) => {
                let Some((at, _)) = self.targets[target].workers[worker].busy else { return };
                let read = self.reading(at);
                if let Some(peer) = self.locked(at) {
                    self.push(self.now + read, Event::Unlocked(target, peer));
                }
                let is_dual = self.is_dual(self.requests[at].stage);
                let more = if is_dual { self.setup.chosen.handover } else { DISPATCH };
                (target / TARGETS_OF_NODE, read + more.as_nanos(), Event::Turn(target, worker))
            }
        };
        self.nodes[node].worked += takes;
        self.push(self.now + takes, event);
    }

    /// Whether a second thread hands a message on: those on what is to be stored or read.
    fn is_dual(&self, stage: Stage) -> bool {
        self.setup.messenger.dual && matches!(stage, Stage::Request | Stage::Replica)
    }

    /// What reading a message takes.
    fn reading(&self, at: usize) -> u64 {
        reading(self.payload(self.requests[at].stage) + self.setup.chosen.header).as_nanos()
    }

    /// The peer from which a message comes over one of several connections that count as one.
    fn locked(&self, at: usize) -> Option<usize> {
        let messenger = &self.setup.messenger;
        let request = &self.requests[at];
        match request.stage {
            Stage::Replica => Some(request.primary),
            Stage::Acknowledgement => Some(request.secondary),
            _ => None,
        }
        .filter(|_| messenger.ordered && messenger.connections > 1)
    }

    fn turn_ends(&mut self, target: usize, worker: usize) {
        self.core_is_free(target / TARGETS_OF_NODE);
        let it = &mut self.targets[target].workers[worker];
        let Some((at, since)) = it.busy.take() else { return };
        let Request { stage, connection, .. } = self.requests[at];
        let bytes = self.payload(stage);
        let it = &mut self.targets[target];
        it.workers[worker].bytes += bytes;
        it.workers[worker].events += 1;
        let done = Done { bytes, time: Span::from_nanos(self.now - since) };
        it.pool.record(Instant::from_nanos(self.now), ConnectionId(connection as u64), done);
        if let Some(asked) = it.pool.deadline().filter(|deadline| it.asked.is_none_or(|asked| asked < *deadline)) {
            it.asked = Some(asked);
            self.push(asked.as_nanos(), Event::Balance(target));
        }
        if let Some(to) = self.targets[target].workers[worker].leaves.take() {
            self.hand_over(target, worker, connection, to);
        }
        if self.is_dual(stage) {
            self.ready(target / TARGETS_OF_NODE, Work::HandOn(target, at));
        } else {
            self.in_order(at);
        }
        self.wake(target, worker);
    }

    /// A message was handed on: it counts when all that were sent before it in its bundle were.
    fn in_order(&mut self, at: usize) {
        let Some(from) = self.locked(at) else {
            self.handed_on(at);
            return;
        };
        let (to, number) = (self.receiver(at), self.requests[at].number);
        self.targets[to].bundles[from].held.insert(number, at);
        loop {
            let bundle = &mut self.targets[to].bundles[from];
            let Some(next) = bundle.held.remove(&bundle.expected) else { return };
            bundle.expected += 1;
            self.handed_on(next);
        }
    }

    fn handed_on(&mut self, at: usize) {
        let stage = self.requests[at].stage;
        let target = self.receiver(at);
        if self.setup.full && matches!(stage, Stage::Request | Stage::Replica) {
            let queue = &mut self.targets[target].processing;
            queue.push_back(at);
            if queue.len() == 1 {
                self.push(self.now + self.setup.chosen.processing.as_nanos(), Event::Processed(target, at));
            }
        } else {
            self.next_stage(at);
        }
    }

    fn next_stage(&mut self, at: usize) {
        match (self.requests[at].stage, self.setup.direction) {
            (Stage::Request, Direction::Write) => self.send(at, Stage::Replica),
            (Stage::Replica, _) => self.send(at, Stage::Acknowledgement),
            (Stage::Request, Direction::Read) | (Stage::Acknowledgement, _) => self.send(at, Stage::Answer),
            (Stage::Heartbeat, _) => self.push(self.now + self.setup.chosen.heartbeat.as_nanos(), Event::Arrived(at)),
            (Stage::Answer, _) => {}
        }
    }

    fn balance(&mut self, target: usize) {
        let moves = self.targets[target].pool.balance(Instant::from_nanos(self.now));
        self.outcome.moved += if self.measuring { moves.len() as u64 } else { 0 };
        for next in moves {
            let connection = next.connection.0 as usize;
            let it = &mut self.targets[target].workers[next.from];
            // What is in a turn ends it first.
            match it.busy.filter(|(at, _)| self.requests[*at].connection == connection) {
                Some(_) => it.leaves = Some(next.to),
                None => self.hand_over(target, next.from, connection, next.to),
            }
        }
        let it = &mut self.targets[target];
        it.asked = it.pool.deadline();
        if let Some(asked) = it.asked {
            self.push(asked.as_nanos(), Event::Balance(target));
        }
    }

    /// What waits on a connection waits for another worker.
    fn hand_over(&mut self, target: usize, from: usize, connection: usize, to: usize) {
        let requests = &self.requests;
        let (mut stay, mut go) = (VecDeque::new(), VecDeque::new());
        for at in self.targets[target].workers[from].queue.drain(..) {
            if requests[at].connection == connection { go.push_back(at) } else { stay.push_back(at) }
        }
        self.targets[target].workers[from].queue = stay;
        self.targets[target].workers[to].queue.extend(go);
        self.wake(target, to);
    }

    fn count(&mut self) {
        let workers = || self.targets.iter().flat_map(|target| &target.workers);
        let count = workers().count() as f64;
        let mean = workers().map(|worker| worker.bytes as f64).sum::<f64>() / count;
        let variance = workers().map(|worker| (worker.bytes as f64 - mean).powi(2)).sum::<f64>() / count;
        self.outcome.deviations.push(variance.sqrt() / 1e3);
        self.targets.iter_mut().flat_map(|target| &mut target.workers).for_each(|worker| worker.bytes = 0);
        self.push(self.now + INTERVAL.as_nanos(), Event::Count);
    }

    fn finish(mut self) -> Outcome {
        let seconds = self.setup.length.as_nanos() as f64 / 1e9;
        let worked: u64 = self.nodes.iter().map(|node| node.worked).sum();
        self.outcome.cores = worked as f64 / 1e9 / seconds / (NODES * CORES) as f64;
        self.outcome.per_second = self.outcome.answered as f64 / seconds;
        self.outcome.events = self.targets.iter().flat_map(|t| &t.workers).map(|worker| worker.events).collect();
        self.outcome.events.sort_unstable();
        self.outcome
    }
}

impl Target {
    /// The place after the connections of peers.
    fn peers_end(setup: &Setup) -> usize {
        OF_CLIENTS + TARGETS * setup.messenger.connections
    }

    /// All its connections come in an order of their own.
    fn new(at: usize, setup: &Setup, rng: &mut Rng) -> Self {
        let messenger = &setup.messenger;
        let own = OF_CLIENTS + at * messenger.connections;
        let all = 0..Self::peers_end(setup) + setup.chosen.light;
        let mut order: Vec<usize> = all.filter(|c| !(own..own + messenger.connections).contains(c)).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, rng.below(last as u64 + 1) as usize);
        }
        let mut pool = Pool::new(messenger.policy, WORKERS);
        // Each has a number of its own, and they are few.
        let opened = order.iter().filter(|c| pool.open(ConnectionId(**c as u64)).is_ok()).count();
        debug_assert_eq!(opened, order.len());
        let bundle = Bundle {
            lanes: Lanes::new(messenger.choice),
            queued: vec![0; messenger.connections],
            sent: 0,
            expected: 0,
            held: BTreeMap::new(),
            readers: VecDeque::new(),
        };
        Self {
            pool,
            workers: vec![Worker::default(); WORKERS],
            bundles: vec![bundle; TARGETS],
            processing: VecDeque::new(),
            asked: None,
        }
    }
}
