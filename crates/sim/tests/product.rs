//! The product's machines on the performance driver: closed forms first, then that modes, builds and threads agree, and
//! that what a real network does to them is survived.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use hdrhistogram::Histogram;
use protocol::time::Span;
use sim::perf::{Change, Load, Machines, Outcome, Scenario, Setup, run, run_all};

/// A scenario of the product's machines.
fn product(keys: &str) -> Setup {
    let text = format!("profile = \"product\"\n{keys}");
    Scenario::parse("test.toml", &text, &[]).unwrap().setup
}

/// A scenario that ships, with changes.
fn shipped(name: &str, set: &[&str]) -> Setup {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(name);
    let set: Vec<Change> = set.iter().map(|s| Change { flag: "--set", text: (*s).to_owned() }).collect();
    Scenario::parse(name, &std::fs::read_to_string(path).unwrap(), &set).unwrap().setup
}

fn close(is: f64, should: f64, tolerance: f64) {
    assert!((is / should - 1.0).abs() <= tolerance, "{is} is not {should} within {tolerance}");
}

fn no_failure(outcome: &Outcome) {
    let more = outcome.product.as_ref().unwrap();
    assert_eq!((more.failed, more.unfinished), (0, 0));
    assert!(outcome.chunks > 0);
}

/// Nanoseconds that a chunk takes on a link of 10 Gbit/s: datagrams of 8,940 bytes, each with 98 bytes of headers.
fn on_link(chunk: u64) -> f64 {
    (chunk + chunk.div_ceil(8_940) * 98) as f64 * 0.8
}

/// A control message on the wire and its trip: about 150 bytes.
const HOP: f64 = 150.0 * 0.8 + 1_000.0;

#[test]
fn a_put_over_an_idle_network_takes_what_the_formula_says() {
    for chunk in [16_u64, 128, 1024] {
        let idle = format!(
            "initiators = 1\nlink_mbit_per_s = 10000\ndisk_mb_per_s = 1000\ndisk_operation = \"3us\"\n\
             disk_sync = \"20us\"\nwarm_up = \"50ms\"\nlength = \"200ms\"\nchunk = \"{chunk}KiB\"\n"
        );
        let disk = chunk as f64 * 1e9 / 1024.0 / 1000.0 + 23_000.0;
        // Request, bid, payload, disk, acknowledgement.
        let one_copy = 3.0 * HOP + on_link(chunk << 10) + 1_000.0 + disk;
        let hash = product(&format!("{idle}protocol = \"hash\"\ncopies = 1\ntargets = 4\ngroup = 1\n"));
        let outcome = run(&hash).unwrap();
        no_failure(&outcome);
        close(outcome.latency.mean(), one_copy, 0.01);
        close(outcome.chunks_per_second, 1e9 / one_copy, 0.01);
        // One multicast to three, in a window that begins when the choice has usually been made.
        let outcome = run(&product(&format!("{idle}protocol = \"replicast-m\"\ntargets = 9\n"))).unwrap();
        no_failure(&outcome);
        close(outcome.latency.mean(), one_copy, if chunk == 16 { 0.12 } else { 0.03 });
        assert_eq!(outcome.collisions, 0);
    }
}

/// One client alone: nobody but itself is in the way of any target. Nor do its bids that wait for its processor seem to offer other
/// windows, the first of them the soonest.
#[test]
fn idle_fast_disks_share_what_one_client_puts() {
    let busy = "cpu_message = \"20us\"\ncpu_kib = \"600ns\"\nwake_jitter = \"1ms\"";
    for costs in ["", busy] {
        for protocol in ["replicast-m", "replicast-h", "leader"] {
            for chunk in ["16KiB", "128KiB", "1MiB"] {
                let outcome = run(&product(&format!(
                    "protocol = \"{protocol}\"\ninitiators = 1\ntargets = 9\nlink_mbit_per_s = 10000\n\
                     disk_mb_per_s = 1500\nchunk = \"{chunk}\"\nwarm_up = \"0s\"\nlength = \"2s\"\n{costs}\n"
                )))
                .unwrap();
                no_failure(&outcome);
                let spread = outcome.load.most as f64 / outcome.load.mean;
                assert!(spread <= 1.2, "{protocol} {chunk} {costs}: {spread}");
            }
        }
    }
}

/// A leader knows of a disk what its target reported last. One that nobody has used for a while may be fast by now, for all that is
/// known, and is tried; but it must not be buried in copies before the first of them says how slow it is.
#[test]
fn slow_disks_are_tried_with_little_by_a_leader() {
    for seed in [1, 2] {
        let keys = ["protocol=leader", "load=0.8", "reads_percent=50", "slow_times=10", &format!("seed={seed}")];
        let outcome = run(&shipped("reads.toml", &keys)).unwrap();
        no_failure(&outcome);
        let tail = outcome.latency.value_at_quantile(0.999) as f64 / 1e6;
        assert!(tail < 12.0, "seed {seed}: {tail} ms");
    }
}

#[test]
fn a_get_over_an_idle_network_takes_what_the_formula_says() {
    for (protocol, tolerance) in [("hash", 0.02), ("replicast-h", 0.05)] {
        let outcome = run(&product(&format!(
            "protocol = \"{protocol}\"\nreads_percent = 100\nobjects = 500\ninitiators = 1\ntargets = 9\n\
             link_mbit_per_s = 10000\ndisk_mb_per_s = 1000\nwarm_up = \"50ms\"\nlength = \"200ms\"\n"
        )))
        .unwrap();
        no_failure(&outcome);
        let more = outcome.product.as_ref().unwrap();
        let whole = 3.0 * HOP + 125_000.0 + on_link(128 << 10) + 1_000.0;
        close(more.get_latency.mean(), whole, tolerance);
        assert_eq!(more.gets, outcome.chunks);
    }
}

/// One disk, Poisson arrivals, a network that takes no time: mean time in the system is d (1 + rho / (2 (1 - rho))).
#[test]
fn a_disk_is_a_queue_with_constant_service() {
    for load in [0.3, 0.7] {
        let setup = product(&format!(
            "protocol = \"hash\"\ncopies = 1\ninitiators = 200\ntargets = 1\ngroup = 1\ndepth = 8\n\
             link_mbit_per_s = 10000000\ntrip = \"0ns\"\ndisk_mb_per_s = 400\nload = {load}\n\
             receive_buffer = \"1024MiB\"\nswitch_queue = \"1024MiB\"\nwarm_up = \"1s\"\nlength = \"60s\"\n"
        ));
        let outcome = run(&setup).unwrap();
        no_failure(&outcome);
        let service = 1e9 / 400.0 / 8.0;
        close(outcome.disk_utilisation, load, 0.01);
        close(outcome.latency.mean(), service * (1.0 + load / (2.0 * (1.0 - load))), 0.02);
    }
}

#[test]
fn frames_and_transfers_agree_where_nothing_contends() {
    for protocol in ["hash", "replicast-m", "replicast-h"] {
        let keys = format!("protocol = \"{protocol}\"\ninitiators = 1\ntargets = 9\nlength = \"100ms\"\n");
        let transfer = run(&product(&keys)).unwrap();
        let frame = run(&product(&format!("{keys}mode = \"frame\"\n"))).unwrap();
        close(frame.latency.mean(), transfer.latency.mean(), 0.001);
        assert!(frame.events > transfer.events);
    }
}

/// Everything at once: loss, full queues, clocks, jitter, processors, gets and puts of all sizes.
const EVERYTHING: &str = "initiators = 12\ntargets = 18\nmix = [[\"16KiB\", 5], [\"128KiB\", 4], [\"1MiB\", 1]]\n\
     reads_percent = 40\nobjects = 2000\nzipf = 0.9\nloss_ppm = 500\nswitch_queue = \"128KiB\"\n\
     drift_ppm = 200\nwake_jitter = \"50us\"\ncpu_message = \"3us\"\ncpu_kib = \"300ns\"\n\
     hash_mb_per_s = 5000\ndisk_operation = \"5us\"\ndisk_sync = \"20us\"\ndepth = 4\nslow_one_in = 9\n\
     warm_up = \"5ms\"\nlength = \"20ms\"\n";

fn everything() -> Vec<Setup> {
    let of = |protocol: &str| product(&format!("protocol = \"{protocol}\"\n{EVERYTHING}"));
    ["hash", "replicast-m", "replicast-h"].map(of).to_vec()
}

#[test]
fn loss_and_full_queues_cost_time_and_nothing_else() {
    for setup in everything() {
        let outcome = run(&setup).unwrap();
        no_failure(&outcome);
        let more = outcome.product.as_ref().unwrap();
        assert!(more.dropped > 0 && more.repairs > 0 && more.gets > 0 && outcome.chunks > more.gets);
    }
}

/// A large cluster is simulated in parts, each on a thread of its own.
#[test]
fn a_run_comes_to_the_same_in_any_number_of_parts() {
    let large = EVERYTHING
        .replace("initiators = 12\ntargets = 18", "initiators = 1500\ntargets = 2400")
        .replace("warm_up = \"5ms\"\nlength = \"20ms\"", "warm_up = \"100us\"\nlength = \"400us\"");
    for protocol in ["hash", "replicast-m", "replicast-h", "leader"] {
        let keys = format!(
            "protocol = \"{protocol}\"\ncrash_every = \"40us\"\ncrash_down = \"100us\"\ndrain = \"300us\"\n{large}"
        );
        let setup = product(&keys);
        let of = |threads| all_of(run_all(std::slice::from_ref(&setup), threads, &|_| ()).unwrap().remove(0));
        let one = of(1);
        assert!((2..=3).all(|threads| of(threads) == one), "{protocol}");
    }
}

/// All figures of an outcome. Of the least and the most a sum of histograms knows only the bucket.
fn all_of(mut outcome: Outcome) -> String {
    let counts = |histogram: &mut Histogram<u64>| {
        let counts = histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value()));
        let counts: Vec<(u64, u64)> = counts.collect();
        *histogram = Histogram::new(3).unwrap();
        counts
    };
    let of_gets = outcome.product.as_mut().map(|more| counts(&mut more.get_latency));
    format!("{:?}", (counts(&mut outcome.latency), counts(&mut outcome.attempt), of_gets, outcome))
}

fn digests(setups: &[Setup], threads: usize) -> Vec<u64> {
    run_all(setups, threads, &|_| ()).unwrap().iter().map(|outcome| outcome.digest).collect()
}

/// The digests are written down: every build must come to the same, optimised or not.
#[test]
fn a_run_repeats_exactly_on_every_build_and_any_number_of_threads() {
    let setups = everything();
    let one = digests(&setups, 1);
    assert_eq!(digests(&setups, 3), one);
    let other: Vec<Setup> = setups.iter().map(|setup| Setup { seed: 2, ..setup.clone() }).collect();
    assert!(digests(&other, 2).iter().zip(&one).all(|(a, b)| a != b));
    assert_eq!(one, DIGESTS, "what is repeated has changed: if it was meant to, write the new digests down");
}

const DIGESTS: [u64; 3] = [2_248_088_592_348_355_387, 13_750_774_929_927_912_090, 15_140_455_441_143_914_886];

#[test]
fn what_disks_can_do_counts_their_syncs_and_hashing() {
    // 125 us for the bytes; a sync of 20 us is shared by six of the twelve copies for each disk.
    for (ahead, micros) in [(true, 125.0 + 20.0 / 6.0), (false, 125.0 + 20.0 / 6.0 + 15.625)] {
        let setup = shipped("realistic.toml", &[&format!("hash_ahead={ahead}"), "warm_up=5ms", "length=5ms"]);
        let outcome = run(&setup).unwrap();
        let all = sim::perf::summary(&setup, std::slice::from_ref(&outcome));
        let share = all.iter().find(|metric| metric.key == "share_of_disks").unwrap().values[0];
        close(100.0 * outcome.chunks_per_second / share, 90e6 / 3.0 / micros, 1e-6);
    }
}

#[test]
fn reserved_transfers_hardly_meet_and_unreserved_ones_do() {
    let share = |protocol: &str| {
        let keys = format!("protocol = \"{protocol}\"\ndisk_mb_per_s = 1000\ndepth = 4\nlength = \"20ms\"\n");
        let outcome = run(&product(&keys)).unwrap();
        no_failure(&outcome);
        outcome.collisions as f64 / outcome.chunks as f64
    };
    assert!(share("replicast-m") < 0.3 && share("hash") > 0.5);
}

#[test]
fn the_scenarios_that_ship_run_without_a_failure() {
    for (name, set) in [("realistic.toml", "length=20ms"), ("drift-and-jitter.toml", "wake_jitter=200us")] {
        let setup = shipped(name, &[set, "warm_up=5ms", "length=20ms"]);
        no_failure(&run(&setup).unwrap());
    }
}

#[test]
fn the_drain_measures_what_began_in_time() {
    let mut setup = product("initiators = 10\ntargets = 18\nload = 0.5\nlength = \"30ms\"\n");
    let outcome = run(&setup).unwrap();
    no_failure(&outcome);
    // Every put that began is in the latencies, those too that ended later.
    assert!(outcome.latency.len() >= outcome.chunks);
    let Machines::Product(profile) = &mut setup.machines else { panic!("the run is of the product's machines") };
    profile.drain = Span::ZERO;
    assert!(run(&setup).unwrap().product.unwrap().unfinished > 0);
}

/// A backlog that is over must not keep targets out of the choice: then fewer and fewer carry the load, and the slow disks'
/// queues take all places of the initiators.
#[test]
fn negotiated_windows_keep_up_with_slow_disks() {
    for protocol in ["replicast-m", "replicast-h"] {
        let name = format!("protocol={protocol}");
        let set = [name.as_str(), "targets=36", "initiators=36", "warm_up=600ms", "length=100ms"];
        let setup = shipped("rivals-realistic.toml", &set);
        let outcome = run(&setup).unwrap();
        no_failure(&outcome);
        let Load::Open { chunks_per_second } = setup.load else { panic!("the scenario has a load") };
        let completed = outcome.chunks_per_second / chunks_per_second;
        assert!(completed > 0.97, "{protocol} completes {completed} of what is asked for");
    }
}

#[test]
fn what_fails_in_the_drain_is_counted() {
    // No target has room for a chunk.
    let full = "initiators = 20\ntargets = 9\nreceive_buffer = \"1B\"\nlength = \"1us\"\ndrain = \"100s\"\n";
    let outcome = run(&product(full)).unwrap();
    let more = outcome.product.as_ref().unwrap();
    assert!(more.failed > 0, "without room requests fail");
    assert_eq!(outcome.latency.len() + more.failed + more.unfinished, 20);
}

#[test]
fn arrivals_closer_than_a_nanosecond_come_to_an_end() {
    let busy = "protocol = \"hash\"\ninitiators = 1\ntargets = 90\nchunk = \"1B\"\nload = 10\nlength = \"1us\"\ndrain = \"0ns\"\n";
    assert!(run(&product(busy)).unwrap().events > 0);
}

/// With an aggregator the initiator's port carries each byte once, in place of once and a half; what is lost is asked for, and nothing is
/// acknowledged before all of its pieces are durable.
#[test]
fn an_aggregator_spares_the_initiator_the_parity() {
    let run_with = |keys: &str| {
        let scenario = "protocol = \"replicast-h\"\ncode = \"4+2\"\ninitiators = 1\ntargets = 9\nchunk = \"1MiB\"\n\
                        depth = 4\ndisk_mb_per_s = 4000\nwarm_up = \"20ms\"\nlength = \"100ms\"\n";
        let outcome = run(&product(&format!("{scenario}{keys}"))).unwrap();
        no_failure(&outcome);
        assert_eq!(outcome.product.as_ref().unwrap().undurable, 0);
        outcome
    };
    let (alone, aggregated) = (run_with(""), run_with("aggregators = 1\n"));
    close(aggregated.chunks_per_second / alone.chunks_per_second, 1.5, 0.03);
    let lossy = run_with("aggregators = 2\nloss_ppm = 2000\ncontrol_first = true\n");
    assert!(lossy.product.as_ref().unwrap().repairs > 0 && lossy.chunks_per_second > alone.chunks_per_second);
    // Half of the measured time with it, and half without.
    let dies = run_with("aggregators = 1\naggregator_dies = \"70ms\"\n");
    close(dies.chunks_per_second / alone.chunks_per_second, 1.25, 0.1);
    // What it cannot do in time is asked for, and it is left alone then.
    let slow = run_with("aggregators = 1\naggregator_kib = \"5us\"\n");
    println!("slow {} of {}", slow.chunks_per_second, alone.chunks_per_second);
    assert!(slow.product.as_ref().unwrap().repairs > 0);
}
