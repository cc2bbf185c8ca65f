//! The simulator beside queueing theory, and real placement beside Poisson's law.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use protocol::id::{ChunkId, ClusterId, Epoch, NodeId};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::rng::Rng;
use sim::perf::{Outcome, cores, run_all};
use sim::theory::{Case, cases, poisson_at_least};

fn of(names: &str) -> Vec<(Case, Outcome)> {
    let cases: Vec<Case> = cases().unwrap().into_iter().filter(|case| case.name.starts_with(names)).collect();
    let setups: Vec<_> = cases.iter().map(|case| case.setup.clone()).collect();
    let outcomes = run_all(&setups, cores(), &|_| ()).unwrap();
    assert!(!cases.is_empty());
    cases.into_iter().zip(outcomes).collect()
}

fn agree(names: &str) {
    for (case, outcome) in of(names) {
        let lines = case.compare(&outcome);
        assert!(lines.iter().any(|line| line.applies));
        for line in lines.iter().filter(|line| line.applies) {
            assert!((line.ratio() - 1.0).abs() < 0.03, "{}: {line:?}", case.name);
        }
    }
}

#[test]
fn hashed_requests_meet_as_poisson_says() {
    agree("hash, three copies");
}

#[test]
fn a_disk_behind_a_hash_is_a_queue_with_constant_service() {
    agree("hash, one copy");
}

#[test]
fn the_shorter_of_two_queues_is_as_the_mean_field_says() {
    agree("least-of-two");
}

#[test]
fn negotiated_transfers_hardly_meet() {
    for (case, outcome) in of("replicast-m, three copies") {
        let shares = case.intervals(&outcome).unwrap();
        let met: f64 = shares.iter().skip(4).sum();
        assert!(met < 0.1 * poisson_at_least(4, 1.0), "{}: {shares:?}", case.name);
        let line = case.compare(&outcome).into_iter().find(|line| line.what.starts_with("variance")).unwrap();
        assert!(line.measured < 0.6, "{line:?}");
    }
}

#[test]
fn bids_keep_disks_from_queueing() {
    for (case, outcome) in of("replicast-h, one copy") {
        let found = &outcome.product.as_ref().unwrap().found;
        let longer = found.iter().skip(2).sum::<u64>() as f64 / found.iter().sum::<u64>() as f64;
        assert!(longer < 0.02, "{}: {found:?}", case.name);
    }
}

/// Real ids of chunks, the real map, and nothing simulated but the time at which each put comes.
#[test]
fn the_map_spreads_real_chunks_as_poisson_says() {
    let targets = 90;
    let entries = (0..targets).map(|n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 40 });
    let map = ClusterMap::new(ClusterId(1), Epoch(1), 3, 3, entries.collect()).unwrap();
    // Intervals with as many copies as targets each, at moments that are drawn evenly: a Poisson process but for the
    // number of all.
    let (intervals, mut rng) = (2_000_u64, Rng::new(1));
    let mut counts = vec![0_u32; (intervals * u64::from(targets)) as usize];
    for n in 0..intervals * u64::from(targets) / 3 {
        let at = rng.below(intervals) * u64::from(targets);
        let ranked = map.ranked(&ChunkId::of_payload(&n.to_le_bytes()));
        ranked.iter().take(3).for_each(|target| counts[(at + u64::from(target.0)) as usize] += 1);
    }
    for least in [2, 4] {
        let is = counts.iter().filter(|count| **count >= least).count() as f64 / counts.len() as f64;
        let law = poisson_at_least(least, 1.0);
        assert!((is / law - 1.0).abs() < if least == 2 { 0.01 } else { 0.05 }, "{is} is not {law}");
    }
}
