//! A run in parts, each with nodes of its own and on a thread of its own.
//!
//! Nothing that a node does reaches another sooner than the network's trip takes. So the parts go on together in windows of
//! that length: in one of them nothing that is done in a part can matter to another, and what is sent over is exchanged
//! between two. In which order a node's events come, and what is drawn for it, is the node's own; so a run comes to the same
//! in any number of parts.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use protocol::map::ClusterMap;

use super::{Driver, Event, Fabric, MachineSet, Progress};
use crate::perf::queue::Order;
use crate::perf::setup::Setup;

/// Nodes for which another part is worth its while.
const NODES: u32 = 1_000;
/// Most parts.
const PARTS: usize = 32;
/// How often a thread looks whether the others have come before it lets others have its core.
const LOOKS: u32 = 200;
/// Parts of the time that are distinguished in the progress of a run.
const SHARES: u64 = 1_000;

/// Which part a node is in, and which of its nodes it is, targets first.
#[derive(Clone, Copy, Debug)]
struct Place {
    part: u16,
    slot: u32,
}

/// Which nodes are in which part.
#[derive(Debug)]
pub(in crate::perf) struct Parts {
    places: Vec<Place>,
    /// The nodes of each part: targets in their order, then initiators.
    nodes: Vec<Vec<u32>>,
}

impl Parts {
    /// Cuts a cluster into at most so many parts. The targets of a group are in one as far as that can be.
    pub(super) fn of(setup: &Setup, map: &ClusterMap, most: usize) -> Self {
        let all = setup.targets + setup.initiators;
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
        let mut places = Vec::new();
        for (node, part) in (0..).zip(part) {
            places.push(Place { part: part as u16, slot: nodes[part].len() as u32 });
            nodes[part].push(node);
        }
        Self { places, nodes }
    }

    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes of a part, targets first.
    pub(super) fn nodes(&self, part: usize) -> &[u32] {
        &self.nodes[part]
    }

    pub(super) fn part(&self, node: u32) -> usize {
        usize::from(self.places[node as usize].part)
    }

    /// Which of its part's nodes this is.
    pub(super) fn slot(&self, node: u32) -> usize {
        self.places[node as usize].slot as usize
    }
}

/// An event for another part.
pub(super) struct Letter<W> {
    pub(super) at: u64,
    pub(super) order: Order,
    pub(super) event: Event<W>,
}

/// What goes from part to part between two windows.
struct Exchange<W, N> {
    /// For each part what comes to it.
    letters: Vec<Mutex<Vec<Letter<W>>>>,
    notices: Vec<Mutex<Vec<N>>>,
    /// For each part when the first event comes that it knows of, and how many requests it has open, or that it still measures.
    firsts: Vec<AtomicU64>,
    open: Vec<AtomicU64>,
}

impl<W, N> Exchange<W, N> {
    fn new(parts: usize) -> Self {
        Self {
            letters: (0..parts).map(|_| Mutex::default()).collect(),
            notices: (0..parts).map(|_| Mutex::default()).collect(),
            firsts: (0..parts).map(|_| AtomicU64::default()).collect(),
            open: (0..parts).map(|_| AtomicU64::default()).collect(),
        }
    }
}

/// Where threads wait for each other. A window takes microseconds: nobody sleeps.
struct Rendezvous {
    threads: usize,
    here: AtomicUsize,
    times: AtomicUsize,
    /// One of them is gone and will not come.
    is_broken: AtomicBool,
}

impl Rendezvous {
    fn meet(&self) {
        let times = self.times.load(Ordering::Acquire);
        if self.here.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.here.store(0, Ordering::Relaxed);
            self.times.store(times + 1, Ordering::Release);
            return;
        }
        let mut looks = 0;
        while self.times.load(Ordering::Acquire) == times {
            assert!(!self.is_broken.load(Ordering::Relaxed), "another part of the run has stopped");
            looks += 1;
            if looks < LOOKS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

/// Breaks the rendezvous when its thread panics, so that nobody waits for it.
struct Present<'a>(&'a Rendezvous);

impl Drop for Present<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_broken.store(true, Ordering::Relaxed);
        }
    }
}

/// Runs all parts to their end. Progress is reported by this thread, which runs the first.
pub(super) fn run<M: MachineSet, F: Fabric>(drivers: &mut [Driver<'_, M, F>], progress: Progress<'_>) {
    if let [only] = drivers {
        let mut notices = Vec::new();
        return only.run(progress, |driver| {
            core::mem::swap(&mut notices, driver.machines.notices());
            notices.drain(..).for_each(|notice| driver.machines.note(&notice));
            (driver.queue.first().unwrap_or(u64::MAX), driver.open())
        });
    }
    let parts = drivers.len();
    let rendezvous = Rendezvous {
        threads: parts,
        here: AtomicUsize::new(0),
        times: AtomicUsize::new(0),
        is_broken: AtomicBool::new(false),
    };
    // While one is read, the other is written.
    let exchanges = [Exchange::new(parts), Exchange::new(parts)];
    let meeting = (&rendezvous, &exchanges);
    let Some((first, others)) = drivers.split_first_mut() else { return };
    std::thread::scope(|scope| {
        for other in others {
            scope.spawn(move || other.run_with_others(meeting, &mut |_| ()));
        }
        first.run_with_others(meeting, progress);
    });
}

type Meeting<'a, W, N> = (&'a Rendezvous, &'a [Exchange<W, N>; 2]);

impl<M: MachineSet, F: Fabric> Driver<'_, M, F> {
    /// Runs to the end. Between two windows `exchange` takes what others have for this part, and says when the first event of
    /// all comes and how many requests of the measured time are open.
    fn run(&mut self, progress: Progress<'_>, mut exchange: impl FnMut(&mut Self) -> (u64, u64)) {
        let (end, most) = self.begin();
        let trip = self.fabric.trip().max(1);
        let mut next_report = 0;
        loop {
            let (first, open) = exchange(self);
            if first > most || open == 0 {
                break;
            }
            self.go_on(first.saturating_add(trip).min(most + 1));
            if first >= next_report {
                progress((first as f64 / end.max(1) as f64).min(1.0));
                next_report = first + (end / SHARES).max(1);
            }
        }
        self.finish(end);
    }

    fn run_with_others(&mut self, (rendezvous, exchanges): Meeting<'_, F::Wire, M::Notice>, progress: Progress<'_>) {
        let _present = Present(rendezvous);
        let mut exchanges = exchanges.iter().cycle();
        self.run(progress, |driver| {
            let Some(exchange) = exchanges.next() else { return (u64::MAX, 0) };
            driver.give(exchange);
            rendezvous.meet();
            driver.take(exchange);
            let loaded = |of: &AtomicU64| of.load(Ordering::Relaxed);
            let first = exchange.firsts.iter().map(loaded).fold(u64::MAX, u64::min);
            (first, exchange.open.iter().map(loaded).fold(0, u64::saturating_add))
        });
    }

    /// Requests of the measured time that are open; all that may come while it lasts.
    fn open(&self) -> u64 {
        if self.measures.ended.is_some() { self.measures.open } else { u64::MAX }
    }

    /// Hands over what is for other parts.
    fn give(&mut self, exchange: &Exchange<F::Wire, M::Notice>) {
        let mut first = self.queue.first().unwrap_or(u64::MAX);
        for (part, mine) in self.letters.iter_mut().enumerate().filter(|(_, mine)| !mine.is_empty()) {
            first = mine.iter().map(|letter| letter.at).fold(first, u64::min);
            lock(&exchange.letters[part]).append(mine);
        }
        let notices = self.machines.notices();
        exchange.notices.iter().for_each(|other| lock(other).extend_from_slice(notices));
        notices.clear();
        exchange.firsts[self.part].store(first, Ordering::Relaxed);
        exchange.open[self.part].store(self.open(), Ordering::Relaxed);
    }

    /// Takes what others handed over.
    fn take(&mut self, exchange: &Exchange<F::Wire, M::Notice>) {
        for Letter { at, order, event } in lock(&exchange.letters[self.part]).drain(..) {
            self.queue.push(at, order, event);
        }
        for notice in lock(&exchange.notices[self.part]).drain(..) {
            self.machines.note(&notice);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
