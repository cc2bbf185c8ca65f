//! Many runs on all cores. When there are fewer runs than cores, those of large clusters have several each. The results do not
//! depend on how many threads there are.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::driver::run_on;
use super::setup::Setup;
use super::stats::Outcome;

/// Parts of a run that `progress` tells apart.
const PARTS: f64 = 1_000.0;

/// Runs every setup on `threads` threads; `progress` hears now and then how many are done, those under way by their share
/// of the time. The outcomes are in the order of the setups.
///
/// # Errors
/// The first of the setups that cannot be run, with its number and why.
pub fn run_all(
    setups: &[Setup],
    threads: usize,
    progress: &(dyn Fn(f64) + Sync),
) -> Result<Vec<Outcome>, (usize, String)> {
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let outcomes: Mutex<Vec<Option<Result<Outcome, String>>>> = Mutex::new(vec![None; setups.len()]);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, setups.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(setup) = setups.get(at) else { return };
                    let mut reported = 0;
                    let mut report = |share: f64| {
                        let parts = ((share * PARTS) as u64).max(reported);
                        let more = parts - reported;
                        reported = parts;
                        progress((done.fetch_add(more, Ordering::Relaxed) + more) as f64 / PARTS);
                    };
                    let outcome = run_on(setup, threads / setups.len(), &mut report);
                    outcomes.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(outcome);
                    report(1.0);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    let checked = outcomes.into_iter().flatten().enumerate().map(|(at, outcome)| outcome.map_err(|why| (at, why)));
    checked.collect()
}

/// Threads that this machine runs at once.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
