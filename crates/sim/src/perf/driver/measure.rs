//! What is counted in a run, and what it comes to.

use hdrhistogram::Histogram;

use super::counts::Counts;
use super::{Driver, Fabric, MachineSet};
use crate::perf::node::Node;
use crate::perf::setup::profile::{Measured, Profile};
use crate::perf::setup::{Machines, Setup};
use crate::perf::stats::{self, Outcome, histogram};
use crate::perf::stock::Stock;

/// Parts of the measured time for which throughput is kept.
const HUNDRED: usize = 100;

#[derive(Default)]
pub(in crate::perf) struct Counters {
    pub(in crate::perf) puts: u64,
    pub(in crate::perf) gets: u64,
    pub(in crate::perf) failed: u64,
    pub(in crate::perf) aborted: u64,
    pub(in crate::perf) more_rounds: u64,
    pub(in crate::perf) cancelled: u64,
    pub(in crate::perf) rejected: u64,
    pub(in crate::perf) control_bytes: u64,
    pub(in crate::perf) control_messages: u64,
    pub(in crate::perf) payload_bytes: u64,
    pub(in crate::perf) dropped: u64,
    pub(in crate::perf) repairs: u64,
    pub(in crate::perf) hedged: u64,
    pub(in crate::perf) released: u64,
    pub(in crate::perf) expired: u64,
    pub(in crate::perf) collisions: u64,
}

/// Time that disks and processors worked, and what disks wrote.
#[derive(Default)]
struct Work {
    disks: u64,
    scheduled: u64,
    targets: u64,
    initiators: u64,
    /// By each disk.
    bytes: Vec<u64>,
}

/// What is counted.
pub(in crate::perf) struct Measures {
    pub(in crate::perf) began: u64,
    pub(in crate::perf) ended: Option<u64>,
    length: u64,
    keeps_series: bool,
    /// Requests of the measured time that are not over, and when the last that is was.
    open: u64,
    closed: u64,
    pub(in crate::perf) count: Counters,
    /// What was counted until measuring ended.
    pub(in crate::perf) stopped: Counters,
    /// From the request; from the beginning of the attempt that succeeded; of gets.
    latency: Histogram<u64>,
    attempt: Histogram<u64>,
    get_latency: Histogram<u64>,
    /// When attempts were over, and how long they took.
    series: Vec<(u64, u64)>,
    found: Vec<u64>,
    /// Puts that nobody negotiates, and transfers, by target and stretch of time.
    pub(in crate::perf) asked: Counts,
    pub(in crate::perf) transfers: Counts,
    /// Requests that ended well, by hundredths of the measured time.
    ended_in: Vec<u64>,
    /// Puts that were acknowledged with too few copies on disks.
    pub(in crate::perf) undurable: u64,
    work: Work,
    /// Whether copies are to be made yet, for which the run goes on.
    is_mending: bool,
}

impl Measures {
    pub(super) fn new(setup: &Setup) -> Self {
        Self {
            began: 0,
            ended: None,
            length: setup.length.as_nanos(),
            keeps_series: setup.keep_series,
            open: 0,
            closed: 0,
            count: Counters::default(),
            stopped: Counters::default(),
            latency: histogram(),
            attempt: histogram(),
            get_latency: histogram(),
            series: Vec::new(),
            found: Vec::new(),
            asked: Counts::default(),
            transfers: Counts::default(),
            ended_in: vec![0; HUNDRED],
            undurable: 0,
            work: Work::default(),
            is_mending: setup.product().is_some_and(Profile::mends),
        }
    }

    /// Some copies were made: perhaps all that are to be.
    pub(super) fn mended(&mut self, now: u64, is_whole: bool) {
        if is_whole && self.is_mending {
            (self.is_mending, self.closed) = (false, self.closed.max(now));
        }
    }

    /// A put took so long, and its last attempt so long.
    pub(in crate::perf) fn put_took(&mut self, now: u64, took: u64, attempt: u64) {
        self.latency.saturating_record(took);
        self.attempt.saturating_record(attempt);
        self.keep(now, attempt);
    }

    pub(in crate::perf) fn get_took(&mut self, now: u64, took: u64) {
        self.get_latency.saturating_record(took);
        self.keep(now, took);
    }

    fn keep(&mut self, now: u64, took: u64) {
        if self.keeps_series {
            self.series.push((now, took));
        }
    }

    /// A write finds so many others at its disk.
    pub(super) fn found(&mut self, others: usize) {
        if self.ended.is_none() {
            self.found.resize(self.found.len().max(others + 1), 0);
            self.found[others] += 1;
        }
    }

    /// A request of the measured time, which has ended, is over.
    pub(in crate::perf) fn close(&mut self, now: u64) {
        self.open -= 1;
        self.closed = self.closed.max(now);
    }

    /// When all requests of the measured time were over, once they are.
    pub(in crate::perf) fn over(&self) -> Option<u64> {
        self.ended.filter(|_| self.open == 0 && !self.is_mending).map(|ended| ended.max(self.closed))
    }

    /// A request ended well.
    pub(in crate::perf) fn count_over_time(&mut self, now: u64) {
        let since = u128::from(now - self.began) * HUNDRED as u128;
        let part = (since / u128::from(self.length.max(1))) as usize;
        if self.ended.is_none()
            && let Some(ended) = self.ended_in.get_mut(part)
        {
            *ended += 1;
        }
    }

    fn begin(&mut self, now: u64, interval: u64, targets: usize) {
        self.began = now;
        self.count = Counters::default();
        self.latency.reset();
        self.attempt.reset();
        self.get_latency.reset();
        self.series.clear();
        self.found.clear();
        self.ended_in = vec![0; HUNDRED];
        let counts = Counts::new(interval, now, targets);
        (self.asked, self.transfers) = (counts.clone(), counts);
    }
}

impl<M: MachineSet, F: Fabric> Driver<'_, M, F> {
    pub(super) fn measure(&mut self) {
        let interval = self.setup.product().map_or(0, |profile| profile.interval(self.setup));
        self.measures.begin(self.now, interval, self.own_targets);
        self.disks.iter_mut().for_each(|disk| disk.measure(self.now));
        self.nodes.iter_mut().for_each(|node| node.processor.work = 0);
        let now = self.now;
        self.machines.stock().into_iter().for_each(|stock| stock.begin(now));
    }

    /// The end of the measured time: what is still under way has the drain to end in.
    pub(super) fn stop(&mut self) {
        let (now, measures) = (self.now, &mut self.measures);
        measures.ended = Some(now);
        let measured = now - measures.began;
        let (targets, initiators) = self.nodes.split_at(self.own_targets);
        let work = |of: &[Node]| of.iter().map(|node| node.processor.work).sum();
        measures.work = Work {
            disks: self.disks.iter().map(|disk| disk.worked(now)).sum(),
            scheduled: self.disks.iter().map(|disk| disk.work.min(measured)).sum(),
            targets: work(targets),
            initiators: work(&initiators[..self.initiators.len()]),
            bytes: self.disks.iter().map(|disk| disk.bytes).collect(),
        };
        measures.stopped = core::mem::take(&mut measures.count);
        measures.open = self.machines.unfinished(measures.began, now);
        if let Some(stock) = self.machines.stock() {
            let own = self.nodes.iter().zip(&self.disks).zip(self.parts.nodes(self.part));
            let left = own.filter(|((node, _), _)| !node.life.is_down);
            stock.end(now, left.map(|((_, disk), id)| (*id, disk.worked(now))));
        }
    }
}

impl Counters {
    fn add(&mut self, other: &Self) {
        let Self {
            puts,
            gets,
            failed,
            aborted,
            more_rounds,
            cancelled,
            rejected,
            control_bytes,
            control_messages,
            payload_bytes,
            dropped,
            repairs,
            hedged,
            released,
            expired,
            collisions,
        } = other;
        for (sum, more) in [
            (&mut self.puts, puts),
            (&mut self.gets, gets),
            (&mut self.failed, failed),
            (&mut self.aborted, aborted),
            (&mut self.more_rounds, more_rounds),
            (&mut self.cancelled, cancelled),
            (&mut self.rejected, rejected),
            (&mut self.control_bytes, control_bytes),
            (&mut self.control_messages, control_messages),
            (&mut self.payload_bytes, payload_bytes),
            (&mut self.dropped, dropped),
            (&mut self.repairs, repairs),
            (&mut self.hedged, hedged),
            (&mut self.released, released),
            (&mut self.expired, expired),
            (&mut self.collisions, collisions),
        ] {
            *sum += more;
        }
    }
}

impl Measures {
    /// What the parts counted, of which the first is this.
    fn with(mut self, others: impl Iterator<Item = Self>) -> Self {
        for other in others {
            self.open += other.open;
            self.stopped.add(&other.stopped);
            self.latency += &other.latency;
            self.attempt += &other.attempt;
            self.get_latency += &other.get_latency;
            self.series.extend(other.series);
            add_each(&mut self.found, &other.found);
            self.asked.join(other.asked);
            self.transfers.join(other.transfers);
            add_each(&mut self.ended_in, &other.ended_in);
            self.undurable += other.undurable;
            self.work.disks += other.work.disks;
            self.work.scheduled += other.work.scheduled;
            self.work.targets += other.work.targets;
            self.work.initiators += other.work.initiators;
            self.work.bytes.extend(other.work.bytes);
        }
        self.series.sort_unstable();
        self.work.bytes.sort_unstable();
        self
    }
}

/// Adds numbers by their places.
fn add_each(sums: &mut Vec<u64>, more: &[u64]) {
    sums.resize(sums.len().max(more.len()), 0);
    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

/// What all parts of a run come to.
pub(super) fn outcome<M: MachineSet, F: Fabric>(setup: &Setup, mut drivers: Vec<Driver<'_, M, F>>) -> Outcome {
    let stock = drivers.first_mut().and_then(|driver| driver.machines.stock().cloned());
    let crashes = drivers.iter().map(|driver| driver.crashed).max().unwrap_or(0);
    let events = drivers.iter().map(|driver| driver.events).sum();
    let all = 0..setup.nodes();
    let node = |node: u32| drivers.iter().find(|d| d.is_own(node)).map_or(0, |d| d.nodes[d.slot(node)].digest);
    let digest =
        all.map(node).fold(0_u64, |digest, node| (digest.rotate_left(29) ^ node).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let requests = drivers.iter().flat_map(|driver| &driver.targets).map(M::requests);
    let requests = requests.fold((0, 0), |sum, r| (sum.0 + r.0, sum.1 + r.1));
    let now = drivers.first().map_or(0, |driver| driver.now);
    let mut measures = drivers.into_iter().map(|driver| driver.measures);
    let measures = measures.next().unwrap_or_else(|| Measures::new(setup)).with(measures);
    let end = measures.ended.unwrap_or(now);
    let measured = end - measures.began;
    let seconds = measured.max(1) as f64 / 1e9;
    let share = |work: u64, of: u32| work as f64 / (measured.max(1) as f64 * f64::from(of.max(1)));
    let link = setup.machines.link() as f64 / 8.0 * seconds * f64::from(setup.targets.max(1));
    let (count, work) = (measures.stopped, measures.work);
    let (done, scheduled) = (share(work.disks, setup.targets), share(work.scheduled, setup.targets));
    let counts_scheduled = setup.papers().is_some_and(|paper| paper.quirks.scheduled_work);
    let chunks = count.puts + count.gets;
    let product = matches!(setup.machines, Machines::Product(_)).then(|| {
        Box::new(Measured {
            gets: count.gets,
            get_latency: measures.get_latency,
            failed: count.failed,
            unfinished: measures.open,
            found: measures.found,
            asked: measures.asked.over(end),
            begun: measures.transfers.over(end),
            ended_in: measures.ended_in,
            undurable: measures.undurable,
            crashes,
            control_messages: count.control_messages,
            dropped: count.dropped,
            repairs: count.repairs,
            hedged: count.hedged,
            released: count.released,
            expired: count.expired,
            cpu_initiator: share(work.initiators, setup.initiators),
            cpu_target: share(work.targets, setup.targets),
            mended: stock.and_then(Stock::mended).map(Box::new),
        })
    });
    Outcome {
        measured,
        chunks,
        chunks_per_second: chunks as f64 / seconds,
        latency: measures.latency,
        attempt: measures.attempt,
        disk_utilisation: if counts_scheduled { scheduled } else { done },
        disk_scheduled: scheduled,
        link_utilisation: count.payload_bytes as f64 / link,
        load: stats::Load::of(&work.bytes),
        control_bytes: count.control_bytes,
        payload_bytes: count.payload_bytes,
        aborted: count.aborted + count.released,
        more_rounds: count.more_rounds,
        cancelled: count.cancelled,
        rejected: count.rejected,
        requests,
        collisions: count.collisions,
        events,
        digest,
        series: measures.series.into_iter().map(|(_, took)| took).collect(),
        product,
    }
}
