//! What happened, what was counted, and what went wrong first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Events that are told when something goes wrong.
const TOLD: usize = 80;

/// What clients ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Put,
    Parts,
    Copy,
    Get,
    Range,
    Head,
    List,
    Delete,
}

/// Of one kind of request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) done: u64,
    /// Answered by 5xx, or not at all, as the gateway ended.
    pub(crate) failed: u64,
    pub(crate) slowest: Duration,
}

/// See the [module](self); all threads share it.
#[derive(Debug)]
pub(crate) struct Story {
    seed: u64,
    began: Instant,
    events: Mutex<VecDeque<String>>,
    counts: Mutex<BTreeMap<Kind, Count>>,
    faults: Mutex<BTreeMap<&'static str, u64>>,
    failure: Mutex<Option<String>>,
    over: AtomicBool,
    /// Bytes that were read and compared.
    compared: AtomicU64,
    /// Answers that said that a key is gone which had to be.
    absences: AtomicU64,
}

impl Story {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            began: Instant::now(),
            events: Mutex::default(),
            counts: Mutex::default(),
            faults: Mutex::default(),
            failure: Mutex::default(),
            over: AtomicBool::new(false),
            compared: AtomicU64::new(0),
            absences: AtomicU64::new(0),
        }
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Something happened.
    pub(crate) fn say(&self, what: &str) {
        let line = format!("{:7.1} s  {what}", self.seconds());
        println!("{line}");
        let mut events = self.events.lock().unwrap();
        if events.len() == TOLD {
            events.pop_front();
        }
        events.push_back(line);
    }

    /// A fault of this kind was made.
    pub(crate) fn fault(&self, kind: &'static str, what: &str) {
        *self.faults.lock().unwrap().entry(kind).or_default() += 1;
        self.say(&format!("{kind}: {what}"));
    }

    pub(crate) fn count(&self, kind: Kind, done: bool, took: Duration) {
        let mut counts = self.counts.lock().unwrap();
        let count = counts.entry(kind).or_default();
        *(if done { &mut count.done } else { &mut count.failed }) += 1;
        count.slowest = count.slowest.max(took);
    }

    pub(crate) fn compared(&self, bytes: usize) {
        self.compared.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn missed(&self) {
        self.absences.fetch_add(1, Ordering::Relaxed);
    }

    /// Something is wrong that must never be: all stop. The first counts.
    pub(crate) fn fail(&self, what: &str) {
        self.say(&format!("WRONG: {what}"));
        self.failure.lock().unwrap().get_or_insert_with(|| what.to_owned());
        self.end();
    }

    /// All stop.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// What went wrong, with the seed and what happened before.
    pub(crate) fn failure(&self) -> Option<String> {
        let what = self.failure.lock().unwrap().clone()?;
        let events: Vec<String> = self.events.lock().unwrap().iter().cloned().collect();
        Some(format!("seed {}: {what}\nwhat happened before:\n{}", self.seed, events.join("\n")))
    }

    /// Requests that were answered, and that were not.
    pub(crate) fn requests(&self) -> (u64, u64) {
        let counts = self.counts.lock().unwrap();
        counts.values().fold((0, 0), |(done, failed), count| (done + count.done, failed + count.failed))
    }

    /// How often each fault was made.
    pub(crate) fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.faults.lock().unwrap().clone()
    }

    pub(crate) fn print_table(&self) {
        println!("\n{:<10}{:>10}{:>10}{:>14}", "requests", "done", "failed", "slowest, ms");
        for (kind, count) in self.counts.lock().unwrap().iter() {
            let name = format!("{kind:?}").to_lowercase();
            println!("{name:<10}{:>10}{:>10}{:>14}", count.done, count.failed, count.slowest.as_millis());
        }
        let compared = self.compared.load(Ordering::Relaxed) >> 20;
        println!("compared: {compared} MiB; found absent: {} times", self.absences.load(Ordering::Relaxed));
        println!("\n{:<34}{:>6}", "faults", "times");
        for (kind, times) in self.faults() {
            println!("{kind:<34}{times:>6}");
        }
        println!("seed {}, {:.0} s", self.seed, self.seconds());
    }
}

/// Ends the story when dropped, also by a panic, so that no thread goes on.
pub(crate) struct Ending<'a>(pub(crate) &'a Story);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
