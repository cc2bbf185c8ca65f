//! A run in parts, each with nodes of its own and on a thread of its own.
//!
//! Nothing that a node does reaches another sooner than the network's trip takes. So a part may go on until a trip
//! after the time that all others have reached, and no part waits for one that is ahead. The order of a node's events,
//! and what is drawn for it, depend on that node alone. So a run has the same result in any number of parts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use protocol::map::ClusterMap;

use super::{Driver, Event, Fabric, MachineSet, Progress};
use crate::perf::queue::Order;
use crate::perf::setup::Setup;

/// Nodes for which another part is worth its while.
const NODES: u32 = 1_000;
/// Most parts.
const PARTS: usize = 32;
/// How often a part says in a trip how far it is.
const STEPS: u64 = 8;
/// How often a thread spins how far the others are before it lets others have its core.
const SPINS: u32 = 200;
/// Parts of the time that are distinguished in the progress of a run.
const SHARES: u64 = 1_000;

/// Which part a node is in, and which of its nodes it is, targets first.
#[derive(Clone, Copy, Debug)]
struct NodeLocation {
    part: u16,
    slot: u32,
}

/// Which nodes are in which part.
#[derive(Debug)]
pub(in crate::perf) struct Parts {
    locations: Vec<NodeLocation>,
    /// The nodes of each part: targets in their order, then initiators, then the lanes of aggregators, which are in the first.
    nodes: Vec<Vec<u32>>,
}

impl Parts {
    /// Cuts a cluster into at most so many parts. The targets of a group are in one as far as that can be.
    pub(super) fn of(setup: &Setup, map: &ClusterMap, most: usize) -> Self {
        let all = setup.nodes();
        let count = most.clamp(1, PARTS).min((all / NODES).max(1) as usize);
        let cells = &map.placement().layout().cells;
        let mut part = vec![0; all as usize];
        for (place, cell) in cells.iter().enumerate() {
            cell.targets.iter().for_each(|target| part[target.0 as usize] = place * count / cells.len());
        }
        for n in 0..setup.initiators as usize {
            part[setup.targets as usize + n] = n * count / setup.initiators as usize;
        }
        let mut nodes = vec![Vec::new(); count];
        let mut locations = Vec::new();
        for (node, part) in (0..).zip(part) {
            locations.push(NodeLocation { part: part as u16, slot: nodes[part].len() as u32 });
            nodes[part].push(node);
        }
        Self { locations, nodes }
    }

    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes of a part, targets first.
    pub(super) fn nodes(&self, part: usize) -> &[u32] {
        &self.nodes[part]
    }

    pub(super) fn part(&self, node: u32) -> usize {
        usize::from(self.locations[node as usize].part)
    }

    /// Which of its part's nodes this is.
    pub(super) fn slot(&self, node: u32) -> usize {
        self.locations[node as usize].slot as usize
    }
}

/// An event for another part.
pub(super) struct RemoteEvent<W, N> {
    pub(super) at: u64,
    pub(super) order: Order,
    pub(super) event: Event<W, N>,
}

/// What the other parts know of one.
struct PartState<W, N> {
    /// What comes to it.
    inbox: Mutex<Vec<RemoteEvent<W, N>>>,
    /// Its clock: every event before this time is done. Nothing that it sends arrives sooner than a trip after it (the lookahead).
    reached: AtomicU64,
    /// When all its requests of the measured time were over; [`OPEN`] until then.
    over: AtomicU64,
}

/// The time at which nothing is over.
const OPEN: u64 = u64::MAX;

/// What the parts of a run share.
struct SharedState<W, N> {
    parts: Vec<PartState<W, N>>,
    /// A thread has panicked: the others stop waiting for it.
    is_broken: AtomicBool,
}

/// How far a part may go on.
#[derive(Clone, Copy)]
struct Reach {
    /// What others send comes then at the earliest.
    until: u64,
    /// When all requests of the measured time were over, in all parts.
    over: u64,
}

impl<W, N> SharedState<W, N> {
    fn new(parts: usize) -> Self {
        let post = |_| PartState { inbox: Mutex::default(), reached: AtomicU64::new(0), over: AtomicU64::new(OPEN) };
        Self { parts: (0..parts).map(post).collect(), is_broken: AtomicBool::new(false) }
    }

    /// How far `part` may go on, if nothing reaches another part sooner than `trip`.
    fn reach(&self, part: usize, trip: u64) -> Reach {
        let others = self.parts.iter().enumerate().filter(|(other, _)| *other != part);
        // First how far they are: a part that is further than its last request's end has said that end before.
        let least = others.map(|(_, other)| other.reached.load(Ordering::Acquire)).fold(u64::MAX, u64::min);
        let over = self.parts.iter().map(|part| part.over.load(Ordering::Relaxed)).fold(0, u64::max);
        Reach { until: least.saturating_add(trip), over }
    }
}

/// Says when its thread panics, so that nobody waits for it.
struct Present<'a>(&'a AtomicBool);

impl Drop for Present<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Runs all parts to their end. Progress is reported by this thread, which runs the first.
pub(super) fn run<M: MachineSet, F: Fabric>(drivers: &mut [Driver<'_, M, F>], progress: Progress<'_>) {
    let shared = SharedState::new(drivers.len());
    let Some((first, others)) = drivers.split_first_mut() else { return };
    std::thread::scope(|scope| {
        for other in others {
            scope.spawn(|| other.run(&shared, &mut |_| ()));
        }
        first.run(&shared, progress);
    });
}

impl<M: MachineSet, F: Fabric> Driver<'_, M, F> {
    /// Runs to the end: until a trip after the last request of the measured time is over, which no part has passed then.
    fn run(&mut self, shared: &SharedState<F::Wire, M::Notice>, progress: Progress<'_>) {
        let _present = Present(&shared.is_broken);
        let (end, most) = self.begin();
        let trip = self.fabric.trip().max(1);
        let step = if shared.parts.len() == 1 { trip } else { trip.div_ceil(STEPS) };
        let (mut next_report, mut spins) = (0, 0);
        loop {
            let reach = shared.reach(self.part, trip);
            self.take(shared);
            let last = reach.over.saturating_add(trip).min(most + 1);
            let until = reach.until.min(last);
            let first = self.queue.first().unwrap_or(u64::MAX);
            if first < until {
                self.go_on(first.saturating_add(step).min(until));
                spins = 0;
            } else if until == last {
                break;
            } else {
                assert!(!shared.is_broken.load(Ordering::Relaxed), "another part of the run has stopped");
                spins += 1;
                if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
            self.give(shared, until);
            if first >= next_report && first < u64::MAX {
                progress((first as f64 / end.max(1) as f64).min(1.0));
                next_report = first + (end / SHARES).max(1);
            }
        }
        shared.parts[self.part].reached.store(u64::MAX, Ordering::Release);
        self.finish(end);
    }

    /// Hands over what is for other parts, and says how far this one is, to which nothing more comes before `until`.
    fn give(&mut self, shared: &SharedState<F::Wire, M::Notice>, until: u64) {
        for (post, mine) in shared.parts.iter().zip(&mut self.outbox).filter(|(_, mine)| !mine.is_empty()) {
            lock(&post.inbox).append(mine);
        }
        let own = &shared.parts[self.part];
        own.over.store(self.measures.over().unwrap_or(OPEN), Ordering::Relaxed);
        own.reached.store(self.queue.first().map_or(until, |first| first.min(until)), Ordering::Release);
    }

    /// Takes what others handed over.
    fn take(&mut self, shared: &SharedState<F::Wire, M::Notice>) {
        if shared.parts.len() > 1 {
            for RemoteEvent { at, order, event } in lock(&shared.parts[self.part].inbox).drain(..) {
                self.queue.push(at, order, event);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
