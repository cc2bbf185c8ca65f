//! Many runs on all cores. When there are fewer runs than cores, those of large clusters have several each. The results do not
//! depend on how many threads there are.

use std::sync::atomic::{AtomicU64, Ordering};

use super::driver::run_on;
use super::setup::Setup;
use super::stats::Outcome;
use crate::threads;

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
    let done = AtomicU64::new(0);
    let outcomes = threads::map(setups.len(), threads, |at| {
        let mut reported = 0;
        let mut report = |share: f64| {
            let parts = ((share * PARTS) as u64).max(reported);
            let more = parts - reported;
            reported = parts;
            progress((done.fetch_add(more, Ordering::Relaxed) + more) as f64 / PARTS);
        };
        let outcome = run_on(&setups[at], threads / setups.len(), &mut report);
        report(1.0);
        outcome
    });
    let checked = outcomes.into_iter().enumerate().map(|(at, outcome)| outcome.map_err(|why| (at, why)));
    checked.collect()
}

/// Threads that this machine runs at once.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
