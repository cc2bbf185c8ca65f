//! The last minutes, second by second: what the status page plots.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Seconds that are kept.
const KEPT: usize = 300;
/// The longest time that is measured, in microseconds: longer ones count as this.
const LONGEST: u64 = 120_000_000;

/// What one second brought in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Flow {
    /// Chunks.
    pub(crate) chunks: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Those that failed.
    pub(crate) failed: u64,
    /// Median time of a chunk; none when there was none.
    pub(crate) p50_ms: Option<f64>,
    /// 99th percentile of the same.
    pub(crate) p99_ms: Option<f64>,
}

/// What one second brought.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Second {
    /// Chunks stored.
    pub(crate) put: Flow,
    /// Chunks read.
    pub(crate) get: Flow,
    /// Answers of the S3 API that did what was asked.
    pub(crate) answered: u64,
    /// Answers that refused: the client's errors.
    pub(crate) refused: u64,
    /// Answers that failed: ours.
    pub(crate) failed: u64,
    /// Copies that each target took.
    pub(crate) copies: BTreeMap<u32, u64>,
}

/// The last minutes as the page gets them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct History {
    /// Whole seconds, oldest first; the one under way is not among them.
    pub(crate) seconds: Vec<Second>,
    /// Warnings and errors of this gateway, newest first.
    pub(crate) warnings: Vec<crate::log::Line>,
}

#[derive(Debug)]
struct Gathering {
    flow: Flow,
    micros: Histogram<u32>,
}

impl Gathering {
    fn new() -> Self {
        let micros = Histogram::new_with_max(LONGEST, 2).expect("two digits up to this are allowed");
        Self { flow: Flow::default(), micros }
    }

    fn add(&mut self, done: Option<(u64, Duration)>) {
        let Some((bytes, took)) = done else {
            self.flow.failed += 1;
            return;
        };
        self.flow.chunks += 1;
        self.flow.bytes += bytes;
        self.micros.saturating_record(u64::try_from(took.as_micros()).unwrap_or(LONGEST).min(LONGEST));
    }

    fn take(&mut self) -> Flow {
        let mut flow = std::mem::take(&mut self.flow);
        if !self.micros.is_empty() {
            let ms = |quantile| Some(self.micros.value_at_quantile(quantile) as f64 / 1e3);
            (flow.p50_ms, flow.p99_ms) = (ms(0.5), ms(0.99));
            self.micros.reset();
        }
        flow
    }
}

#[derive(Debug)]
struct Inner {
    began: Instant,
    /// The second under way, counted from `began`.
    second: u64,
    put: Gathering,
    get: Gathering,
    answered: [u64; 3],
    copies: BTreeMap<u32, u64>,
    past: VecDeque<Second>,
}

impl Inner {
    /// Closes the seconds that are over at `now`.
    fn advance(&mut self, now: Instant) {
        let second = now.saturating_duration_since(self.began).as_secs();
        // After a long quiet only as many empty ones as are kept.
        self.second = self.second.max(second.saturating_sub(KEPT as u64 + 1));
        while self.second < second {
            let [answered, refused, failed] = std::mem::take(&mut self.answered);
            let copies = std::mem::take(&mut self.copies);
            let over = Second { put: self.put.take(), get: self.get.take(), answered, refused, failed, copies };
            if self.past.len() == KEPT {
                self.past.pop_front();
            }
            self.past.push_back(over);
            self.second += 1;
        }
    }
}

/// Counts what happens now, and remembers the seconds before.
#[derive(Debug)]
pub(crate) struct Live(Mutex<Inner>);

impl Live {
    /// Begins at `now`.
    pub(crate) fn new(now: Instant) -> Self {
        let (put, get, past) = (Gathering::new(), Gathering::new(), VecDeque::new());
        Self(Mutex::new(Inner { began: now, second: 0, put, get, answered: [0; 3], copies: BTreeMap::new(), past }))
    }

    fn at<T>(&self, now: Instant, act: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.advance(now);
        act(&mut inner)
    }

    /// A chunk of so many bytes was stored in this time by these targets, or could not be.
    pub(crate) fn put(&self, now: Instant, done: Option<(u64, Duration)>, holders: impl Iterator<Item = u32>) {
        self.at(now, |inner| {
            inner.put.add(done);
            holders.for_each(|target| *inner.copies.entry(target).or_default() += 1);
        });
    }

    /// A chunk of so many bytes was read in this time, or could not be.
    pub(crate) fn get(&self, now: Instant, done: Option<(u64, Duration)>) {
        self.at(now, |inner| inner.get.add(done));
    }

    /// The S3 API gave an answer with this status.
    pub(crate) fn answered(&self, now: Instant, status: u16) {
        let class = match status {
            ..400 => 0,
            400..500 => 1,
            _ => 2,
        };
        self.at(now, |inner| inner.answered[class] += 1);
    }

    /// The seconds that are over.
    pub(crate) fn seconds(&self, now: Instant) -> Vec<Second> {
        self.at(now, |inner| inner.past.iter().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn each_second_has_what_fell_into_it() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let live = Live::new(begin);
        for n in 1..=100 {
            live.put(at(10 * n - 1), Some((1_000, Duration::from_millis(n))), [1, 2 + n as u32 % 2].into_iter());
        }
        live.put(at(1_000), None, std::iter::empty());
        live.get(at(1_500), Some((7, Duration::from_micros(250))));
        live.answered(at(3_100), 200);
        live.answered(at(3_100), 404);
        live.answered(at(3_100), 503);
        let seconds = live.seconds(at(4_000));
        assert_eq!(seconds.len(), 4);
        let first = &seconds[0].put;
        assert_eq!((first.chunks, first.bytes, first.failed), (100, 100_000, 0));
        assert_eq!(seconds[0].copies, BTreeMap::from([(1, 100), (2, 50), (3, 50)]));
        let (p50, p99) = (first.p50_ms.unwrap(), first.p99_ms.unwrap());
        assert!((49.0..52.0).contains(&p50) && (98.0..101.0).contains(&p99), "{p50} {p99}");
        assert_eq!((seconds[1].put.failed, seconds[1].put.p50_ms, seconds[1].get.chunks), (1, None, 1));
        assert_eq!(seconds[2], Second::default());
        assert_eq!((seconds[3].answered, seconds[3].refused, seconds[3].failed), (1, 1, 1));
    }

    #[test]
    fn only_the_last_minutes_are_kept() {
        let begin = Instant::now();
        let live = Live::new(begin);
        live.put(begin, Some((1, Duration::ZERO)), std::iter::empty());
        let later = begin + Duration::from_secs(1_000_000);
        live.put(later, Some((1, Duration::ZERO)), std::iter::empty());
        let seconds = live.seconds(later + Duration::from_secs(1));
        assert_eq!(seconds.len(), KEPT);
        assert_eq!(seconds.iter().map(|second| second.put.chunks).sum::<u64>(), 1, "the old one is forgotten");
    }
}
