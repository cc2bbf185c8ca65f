//! The rivals do what their names say: each chooses by load, and pays for knowing it what it must.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use paper::{Config, Protocol};
use protocol::time::Span;
use sim::perf::{Costs, Cpu, DiskTimes, Load, Machines, Outcome, Paper, Setup, Slow, run, run_all};

/// What the papers' machines of a run are set to.
fn papers(setup: &mut Setup) -> &mut Paper {
    match &mut setup.machines {
        Machines::Paper(paper) => paper,
        Machines::Product(_) => panic!("the run is of the product's machines"),
    }
}

const MB: u64 = 1 << 20;
const CHUNK: u32 = 128 << 10;

/// One group of nine, and disks that never hold a sender back.
fn group(protocol: Protocol, initiators: u32) -> Setup {
    let config = Config { disk_queue: u32::MAX, ..Config::paper(protocol, 400 * MB) };
    let mut setup = Setup::paper(config, initiators, CHUNK, Span::from_millis(400));
    setup.targets = 9;
    setup
}

/// Alone, a put takes as long as with UCH-CCP, and a probe's way there and back longer for those who wait for it; each
/// probe is a message and its answer another, and what rides on acknowledgements is free.
#[test]
fn a_rival_pays_for_its_probes() {
    let alone = |protocol| run(&group(protocol, 1)).unwrap();
    let messages = |outcome: &Outcome| outcome.control_bytes as f64 / 100.0 / outcome.chunks as f64;
    let hashed = alone(Protocol::UchCcp);
    let hop = hop_of_control();
    for (protocol, probes, waits) in [
        (Protocol::LeastOfTwo, 6.0, true),
        (Protocol::C3Like, 0.0, false),
        (Protocol::PrequalLike, 9.0, false),
        (Protocol::PrequalSync, 9.0, true),
    ] {
        let rival = alone(protocol);
        let (more, longer) = (messages(&rival) - messages(&hashed), rival.latency.mean() - hashed.latency.mean());
        assert!((more - 2.0 * probes).abs() < 0.1, "{protocol:?}: {more} messages more");
        let should = if waits { 2.0 * hop } else { 0.0 };
        assert!(
            (longer - should).abs() < 0.001 * hashed.latency.mean(),
            "{protocol:?}: {longer} ns more, not {should}"
        );
    }
}

/// From sending a control message to its arrival, in nanoseconds.
fn hop_of_control() -> f64 {
    let t = Config::paper(Protocol::UchCcp, 400 * MB).timing(CHUNK);
    (t.pdu + Span::from_micros(1)).as_nanos() as f64
}

/// What the product's profile charges comes on top of a put of one copy: each message of the way, the last frame at both
/// ends (those before it are handled while others travel), and all that the disk does for one chunk.
#[test]
fn a_put_takes_longer_by_what_processors_and_disks_cost() {
    let alone = |costs: Option<Costs>| {
        let mut setup = group(Protocol::UchCcp, 1);
        papers(&mut setup).config.copies = 1;
        // Frames of one length, so that the last is as the others.
        papers(&mut setup).config.frame = 8 << 10;
        papers(&mut setup).costs = costs;
        let outcome = run(&setup).unwrap();
        (outcome.latency.mean(), outcome.disk_utilisation, outcome.load.mean)
    };
    let micros = Span::from_micros;
    let cpu = |message, kib, hash| Costs { cpu: Cpu { message, kib, hash }, ..Costs::default() };
    let disk = |operation, sync| Costs {
        disk: DiskTimes { operation: micros(operation), sync: micros(sync), hash_ahead: false },
        ..Costs::default()
    };
    let (free, ..) = alone(None);
    for (what, costs, micros) in [
        ("nothing", Costs::default(), 0.0),
        // The request and the acknowledgement at both ends; a rate and the permission to begin, which follow each other
        // at the target, the second one at the initiator.
        ("messages", cpu(micros(4), Span::ZERO, 0), 7.0 * 4.0),
        ("payload", cpu(Span::ZERO, Span::from_nanos(300), 0), 2.0 * 0.3 * 8.0),
        ("hashing", cpu(Span::ZERO, Span::ZERO, 1 << 30), 122.07),
        ("operations", disk(50, 0), 50.0),
        ("syncs", disk(0, 20), 20.0),
    ] {
        let (mean, utilisation, load) = alone(Some(costs));
        let longer = (mean - free) / 1e3;
        assert!((longer - micros).abs() < 0.5, "{what}: {longer:.2} us longer, not {micros}");
        assert!(utilisation > 0.0 && load > 0.0, "{what}: disks at work {utilisation}, {load} bytes");
    }
}

/// A target whose disk is ten times slower gets its fair share by hash, and far less from protocols that look.
#[test]
fn a_slow_target_is_chosen_seldom() {
    let share = |protocol| {
        let mut setup = group(protocol, 30);
        papers(&mut setup).config.depth = 64;
        setup.slow = Slow { one_in: 9, times: 10 };
        setup.load = Load::Open { chunks_per_second: 0.6 * setup.bounds().disk };
        let outcome = run(&setup).unwrap();
        outcome.load.least as f64 / outcome.load.mean
    };
    let hashed = share(Protocol::UchCcp);
    assert!(hashed > 0.8, "{hashed:.2}");
    // By numbers in flight alone, two targets are alike as long as their queues are.
    for (protocol, most) in [
        (Protocol::LeastOfTwo, 0.6),
        (Protocol::C3Like, 0.6),
        (Protocol::PrequalLike, 0.5),
        (Protocol::PrequalSync, 0.3),
    ] {
        let share = share(protocol);
        assert!(share < most, "{protocol:?}: {share:.2} of a fair share");
    }
}

/// Where all targets are equal, a protocol that looks before it sends has shorter queues than one that does not.
#[test]
fn rivals_have_shorter_tails_than_hashing() {
    let tail = |protocol| {
        let mut setup = group(protocol, 90);
        setup.targets = 90;
        papers(&mut setup).config.depth = 16;
        setup.load = Load::Open { chunks_per_second: 0.8 * setup.bounds().disk };
        setup.warm_up = Span::from_millis(100);
        let outcome = run(&setup).unwrap();
        outcome.latency.value_at_quantile(0.99) as f64
    };
    let hashed = tail(Protocol::UchCcp);
    for (protocol, most) in [(Protocol::LeastOfTwo, 0.7), (Protocol::C3Like, 0.9), (Protocol::PrequalSync, 0.7)] {
        let rival = tail(protocol);
        assert!(rival < most * hashed, "{protocol:?}: p99 {rival} of {hashed} ns");
    }
}

/// The digests are written down: every build must come to the same.
#[test]
fn rivals_repeat_exactly() {
    let setups = Protocol::RIVALS.map(|protocol| Setup { length: Span::from_millis(20), ..group(protocol, 20) });
    let outcomes = run_all(&setups, 2, &|_| ()).unwrap();
    let digests: Vec<(u64, u64)> = outcomes.iter().map(|outcome| (outcome.digest, outcome.chunks)).collect();
    assert_eq!(digests, DIGESTS, "what is repeated has changed: if it was meant to, write the new digests down");
}

const DIGESTS: [(u64, u64); 4] = [
    (13_682_860_300_576_278_689, 185),
    (6_157_215_459_780_214_987, 174),
    (8_109_067_403_090_236_387, 153),
    (11_354_111_621_541_681_474, 184),
];
