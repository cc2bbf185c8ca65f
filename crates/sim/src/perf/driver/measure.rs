//! What is counted in a run.

use hdrhistogram::Histogram;

use super::counts::Counts;
use crate::perf::setup::Setup;
use crate::perf::setup::profile::Profile;
use crate::perf::stats::histogram;

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
pub(super) struct Work {
    pub(super) disks: u64,
    pub(super) scheduled: u64,
    pub(super) targets: u64,
    pub(super) initiators: u64,
    /// By each disk.
    pub(super) bytes: Vec<u64>,
}

/// What is counted.
pub(in crate::perf) struct Measures {
    pub(in crate::perf) began: u64,
    pub(in crate::perf) ended: Option<u64>,
    pub(super) length: u64,
    pub(super) keeps_series: bool,
    /// Requests of the measured time that are not over, and when the last that is was.
    pub(super) open: u64,
    pub(super) closed: u64,
    pub(in crate::perf) count: Counters,
    /// What was counted until measuring ended.
    pub(in crate::perf) stopped: Counters,
    /// From the request; from the beginning of the attempt that succeeded; of gets.
    pub(super) latency: Histogram<u64>,
    pub(super) attempt: Histogram<u64>,
    pub(super) get_latency: Histogram<u64>,
    /// When attempts were over, and how long they took.
    pub(super) series: Vec<(u64, u64)>,
    pub(super) found: Vec<u64>,
    /// Puts that nobody negotiates, and transfers, by target and stretch of time.
    pub(in crate::perf) asked: Counts,
    pub(in crate::perf) transfers: Counts,
    /// Requests that ended well, by hundredths of the measured time.
    pub(super) ended_in: Vec<u64>,
    /// Puts that were acknowledged with too few copies on disks.
    pub(in crate::perf) undurable: u64,
    pub(super) work: Work,
    /// Whether copies are to be made yet, for which the run goes on.
    pub(super) is_mending: bool,
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

    pub(super) fn begin(&mut self, now: u64, interval: u64, targets: usize) {
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
    pub(super) fn with(mut self, others: impl Iterator<Item = Self>) -> Self {
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
