//! Leaders that crash under load: what was acknowledged is on disks, and throughput stays near that of direct negotiation.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use sim::perf::{Outcome, Scenario, run};

/// Two groups of nine that share no cells, under load; the leader of one or the other crashes every 50 ms.
fn crashing(protocol: &str, more: &str) -> Outcome {
    let text = format!(
        "profile = \"product\"\nprotocol = \"{protocol}\"\noverlap = false\ninitiators = 18\ntargets = 18\n\
         depth = 2\ndisk_mb_per_s = 1000\ndisk_sync = \"20us\"\ncpu_message = \"4us\"\nwake_jitter = \"20us\"\n\
         warm_up = \"20ms\"\nlength = \"230ms\"\n{more}"
    );
    run(&Scenario::parse("test.toml", &text, &[]).unwrap().setup).unwrap()
}

const EVERY: &str = "crash_every = \"50ms\"\ncrash_down = \"30ms\"\n";

#[test]
fn a_leader_that_crashes_costs_no_acknowledged_put_and_little_throughput() {
    let (direct, led) = (crashing("replicast-m", EVERY), crashing("leader", EVERY));
    for outcome in [&direct, &led] {
        let more = outcome.product.as_ref().unwrap();
        assert_eq!((more.undurable, more.failed, more.unfinished), (0, 0, 0));
        assert!(more.crashes >= 4);
    }
    let share = led.chunks_per_second / direct.chunks_per_second;
    assert!(share >= 0.8, "{share} of direct negotiation");
}

#[test]
fn a_crash_is_felt() {
    let (without, with) = (crashing("leader", ""), crashing("leader", EVERY));
    assert_eq!(without.product.unwrap().crashes, 0);
    assert!(with.latency.max() > without.latency.max().max(5_000_000), "requests to the dead wait");
}
