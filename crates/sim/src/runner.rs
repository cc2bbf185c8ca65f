//! Many seeds on all cores, or one seed step by step.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Outcome;
use crate::excuse::Excuse;
use crate::planted::PlantedBug;
use crate::swarm::Scenario;
use crate::threads;
use crate::world::World;

/// What a run of many seeds found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Seeds run.
    pub seeds: u64,
    /// Puts acknowledged, over all.
    pub puts: u64,
    /// Gets that returned the right bytes, over all.
    pub gets: u64,
    /// Events handled, over all.
    pub events: u64,
    /// In how many seeds each excuse was used, and how often over all.
    pub excuses: BTreeMap<Excuse, (u64, u64)>,
    /// In how many seeds copies were put on emptier targets, and how many over all.
    pub moved: (u64, u64),
    /// What happened to the disks, over all.
    pub disks: crate::disks::Seen,
    /// What became of cluster maps that gateways proposed, over all.
    pub governed: crate::governing::Governed,
    /// Seeds that failed, and why; in order of the seed.
    pub failures: Vec<(u64, String)>,
}

/// Runs one seed. A panic of the code under test is a failure like any other.
#[must_use]
pub fn run_seed(seed: u64, planted: Option<PlantedBug>) -> Outcome {
    std::panic::catch_unwind(|| World::new(&Scenario::draw(seed, planted), None).run()).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        let failure = Some(format!("panicked: {}", text.unwrap_or("without a message")));
        Outcome { failure, ..Outcome::default() }
    })
}

/// Runs one seed and prints every step.
pub fn replay(seed: u64, planted: Option<PlantedBug>, print: &mut dyn FnMut(&str)) -> Outcome {
    let scenario = Scenario::draw(seed, planted);
    print(&crate::trace::scenario(&scenario));
    World::new(&scenario, Some(print)).run()
}

/// Runs `count` seeds from `first` (and from 0 behind the last) on `threads` threads; `progress` is called with how many are done.
pub fn check_seeds(
    first: u64,
    count: u64,
    planted: Option<PlantedBug>,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Report {
    let (done, report) = (AtomicU64::new(0), Mutex::new(Report::default()));
    threads::each(count as usize, threads, |nth| {
        let seed = first.wrapping_add(nth as u64);
        let outcome = run_seed(seed, planted);
        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
        report.seeds += 1;
        report.puts += u64::from(outcome.puts);
        report.gets += u64::from(outcome.gets);
        report.events += outcome.events;
        for (excuse, times) in outcome.excuses.iter() {
            let (seeds, all) = report.excuses.entry(excuse).or_insert((0, 0));
            (*seeds, *all) = (*seeds + 1, *all + times);
        }
        report.moved.0 += u64::from(outcome.moved > 0);
        report.moved.1 += u64::from(outcome.moved);
        report.disks.add(&outcome.disks);
        report.governed.add(&outcome.governed);
        report.failures.extend(outcome.failure.map(|why| (seed, why)));
        progress(done.fetch_add(1, Ordering::Relaxed) + 1);
    });
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.failures.sort();
    report
}
