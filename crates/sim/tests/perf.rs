//! Why the figures of performance runs can be believed: closed forms first, then that modes, builds and threads agree.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use paper::{Config, Protocol};
use protocol::time::Span;
use sim::perf::{Change, Load, Machines, Mode, Outcome, Paper, Scenario, Setup, run, run_all};

/// What the papers' machines of a run are set to.
fn papers(setup: &mut Setup) -> &mut Paper {
    match &mut setup.machines {
        Machines::Paper(paper) => paper,
        Machines::Product(_) => panic!("the run is of the product's machines"),
    }
}

const MB: u64 = 1 << 20;
const KIB: u32 = 1 << 10;

fn close(is: f64, should: f64, tolerance: f64) {
    assert!((is / should - 1.0).abs() <= tolerance, "{is} is not {should} within {tolerance}");
}

/// One initiator and just enough targets: nothing contends.
fn alone(protocol: Protocol, chunk: u32) -> Setup {
    let mut setup = Setup::paper(Config::paper(protocol, 1_000 * MB), 1, chunk, Span::from_millis(400));
    (setup.targets, setup.group) = (9, 9);
    setup
}

#[test]
fn one_flow_on_one_link_takes_what_the_formula_says() {
    for chunk in [16 * KIB, 128 * KIB, 1024 * KIB] {
        // Multicast: request, bid, the accept on its way while the payload leaves, the payload, the disk, the ack.
        let outcome = run(&alone(Protocol::ReplicastM, chunk)).unwrap();
        let t = Config::paper(Protocol::ReplicastM, 1_000 * MB).timing(chunk);
        let hop = t.pdu + Span::from_micros(1);
        let whole = hop.times(2) + t.pdu + t.net + Span::from_micros(1) + t.disk + hop;
        close(outcome.attempt.mean(), whole.as_nanos() as f64, 0.001);
        close(outcome.chunks_per_second, 1e9 / whole.as_nanos() as f64, 0.01);

        // Unicast, one copy: request, permission, payload, disk, ack.
        let mut setup = alone(Protocol::UchCcp, chunk);
        papers(&mut setup).config.copies = 1;
        (setup.targets, setup.group) = (4, 1);
        let outcome = run(&setup).unwrap();
        let t = papers(&mut setup).config.timing(chunk);
        let hop = t.pdu + Span::from_micros(1);
        let whole = hop.times(2) + t.net + Span::from_micros(1) + t.disk + hop;
        close(outcome.attempt.mean(), whole.as_nanos() as f64, 0.001);
    }
}

#[test]
fn flows_that_share_a_link_each_get_their_part() {
    for flows in [2, 3, 7, 20] {
        let mut setup = alone(Protocol::UchCcp, 1024 * KIB);
        papers(&mut setup).config.copies = 1;
        papers(&mut setup).config.disk = 1 << 45;
        (setup.targets, setup.group, setup.initiators) = (1, 1, flows);
        setup.keep_series = true;
        let t = papers(&mut setup).config.timing(1024 * KIB);
        // All begin together, so all end together, after as many transfers.
        let together = t.net.times(u64::from(flows)).as_nanos();
        setup.length = Span::from_nanos(together + together / 5);
        let outcome = run(&setup).unwrap();
        for latency in &outcome.series[..flows as usize] {
            close(*latency as f64, together as f64, 0.01);
        }
    }
}

/// One disk, Poisson arrivals, a network that takes no time: mean time in the system is d (1 + rho / (2 (1 - rho))).
#[test]
fn a_disk_is_a_queue_with_constant_service() {
    for load in [0.3, 0.6, 0.8] {
        let mut setup = alone(Protocol::UchCcp, 128 * KIB);
        papers(&mut setup).config = Config {
            copies: 1,
            depth: 8,
            link: 1_000_000_000_000_000,
            trip: Span::ZERO,
            frame: 128 * KIB,
            disk_queue: u32::MAX,
            ..Config::paper(Protocol::UchCcp, 400 * MB)
        };
        (setup.targets, setup.group, setup.initiators) = (1, 1, 400);
        let service = papers(&mut setup).config.timing(128 * KIB).disk.as_nanos() as f64;
        setup.load = Load::Open { chunks_per_second: load * 1e9 / service };
        setup.warm_up = Span::from_secs(1);
        setup.length = Span::from_secs(250);
        let outcome = run(&setup).unwrap();
        close(outcome.disk_utilisation, load, 0.01);
        close(outcome.latency.mean(), service * (1.0 + load / (2.0 * (1.0 - load))), 0.01);
    }
}

/// The papers' Table 5, with the formula as it should be: requests arrive at random, and each leaves a bid tentative for
/// a bid's and an accept's way, so one in 1 - e^(-lambda t) meets another's.
#[test]
fn requests_meet_tentative_bids_as_often_as_the_formula_says() {
    for (share, millis) in [(0.1, 500), (0.4, 100)] {
        let mut setup = alone(Protocol::ReplicastM, 16 * KIB);
        (setup.targets, setup.initiators) = (90, 900);
        let rate = share * setup.bounds().disk;
        setup.load = Load::Open { chunks_per_second: rate };
        setup.length = Span::from_millis(millis);
        let outcome = run(&setup).unwrap();
        let t = papers(&mut setup).config.timing(16 * KIB);
        let tentative = (t.pdu + Span::from_micros(1)).times(2).as_nanos() as f64 / 1e9;
        let requests = outcome.requests.0 as f64 / 90.0 / (millis as f64 / 1e3);
        let measured = outcome.requests.1 as f64 / outcome.requests.0 as f64;
        close(measured, 1.0 - (-requests * tentative).exp(), 0.03);
    }
}

#[test]
fn frames_and_transfers_agree_where_nothing_contends() {
    for protocol in [Protocol::ReplicastM, Protocol::ReplicastH] {
        for chunk in [16 * KIB, 128 * KIB, 1024 * KIB] {
            let mut setup = alone(protocol, chunk);
            let transfer = run(&setup).unwrap();
            setup.mode = Mode::Frame;
            let frame = run(&setup).unwrap();
            close(frame.attempt.mean(), transfer.attempt.mean(), 0.001);
            close(frame.payload_bytes as f64, transfer.payload_bytes as f64, 0.01);
            assert!(frame.events > transfer.events);
        }
    }
}

fn cells() -> Vec<Setup> {
    let protocols = Protocol::ALL.into_iter();
    protocols
        .map(|protocol| Setup::paper(Config::paper(protocol, 1_000 * MB), 90, 128 * KIB, Span::from_millis(3)))
        .collect()
}

fn digests(outcomes: &[Outcome]) -> Vec<(u64, u64)> {
    outcomes.iter().map(|outcome| (outcome.digest, outcome.chunks)).collect()
}

/// The digests are written down: every build must come to the same, optimised or not.
#[test]
fn a_run_repeats_exactly_on_every_build_and_any_number_of_threads() {
    let setups = cells();
    let one = digests(&run_all(&setups, 1, &|_| ()).unwrap());
    for threads in [2, 3, 8] {
        assert_eq!(digests(&run_all(&setups, threads, &|_| ()).unwrap()), one, "{threads} threads");
    }
    let other: Vec<Setup> = setups.iter().map(|setup| Setup { seed: 2, ..setup.clone() }).collect();
    assert!(digests(&run_all(&other, 2, &|_| ()).unwrap()).iter().zip(&one).all(|(a, b)| a.0 != b.0));
    assert_eq!(one, DIGESTS, "what is repeated has changed: if it was meant to, write the new digests down");
}

const DIGESTS: [(u64, u64); 4] = [
    (14_819_607_567_980_208_608, 292),
    (17_862_452_754_730_279_887, 171),
    (5_561_131_818_115_996_345, 341),
    (4_967_485_707_025_675_433, 301),
];

#[test]
fn transfers_into_reserved_windows_never_meet() {
    for protocol in [Protocol::ReplicastM, Protocol::ReplicastH] {
        for chunk in [16 * KIB, 128 * KIB, 1024 * KIB] {
            for (mode, extra) in [(Mode::Transfer, false), (Mode::Frame, false), (Mode::Transfer, true)] {
                let mut setup = Setup::paper(Config::paper(protocol, 1_000 * MB), 90, chunk, Span::from_millis(10));
                setup.mode = mode;
                papers(&mut setup).config.choosy = extra;
                papers(&mut setup).config.double_booking = extra && protocol == Protocol::ReplicastH;
                let outcome = run(&setup).unwrap();
                assert_eq!(outcome.collisions, 0, "{protocol:?}, {chunk} bytes, {extra}");
                assert!(outcome.chunks > 0);
                assert_eq!(outcome.cancelled > 0, extra);
                assert_eq!(outcome.rejected > 0, papers(&mut setup).config.double_booking);
            }
        }
    }
}

/// A scenario that ships, with changes.
fn shipped(name: &str, set: &[&str]) -> Setup {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(name);
    let set: Vec<Change> = set.iter().map(|s| Change { flag: "--set", text: (*s).to_owned() }).collect();
    Scenario::parse(name, &std::fs::read_to_string(path).unwrap(), &set).unwrap().setup
}

#[test]
fn the_improved_protocol_comes_near_what_the_disks_can_write() {
    for (chunk, length) in [("16KiB", "30ms"), ("128KiB", "100ms")] {
        for disk in ["400", "1000"] {
            let set = [format!("chunk={chunk}"), format!("length={length}"), format!("disk_mb_per_s={disk}")];
            let setup = shipped("improved-128k-m.toml", &set.each_ref().map(String::as_str));
            let outcome = run(&setup).unwrap();
            let share = outcome.chunks_per_second / setup.bounds().disk;
            assert!(share > 0.97, "{chunk} at {disk} MB/s: {share:.3} of the bound");
            assert_eq!(outcome.collisions, 0);
        }
    }
}

/// A slow disk loses the choice instead of slowing everybody down.
#[test]
fn slow_disks_hardly_show_where_bids_say_when_a_copy_is_durable() {
    let tail = |name, protocol: &str, times: &str| {
        let set = [format!("protocol={protocol}"), format!("slow_times={times}")];
        let set = [&set[0], &set[1], "load=0.8", "warm_up=100ms", "length=400ms"];
        run(&shipped(name, &set)).unwrap().latency.value_at_quantile(0.999) as f64
    };
    for protocol in ["replicast-m", "replicast-h"] {
        let equal = tail("slow-disks-improved.toml", protocol, "1");
        for times in ["10", "40"] {
            let grows = tail("slow-disks-improved.toml", protocol, times) / equal;
            assert!(grows < 1.5, "{protocol}: p99.9 grows {grows:.2} times with disks {times} times slower");
        }
    }
    let [equal, slow] = ["1", "10"].map(|times| tail("slow-disks.toml", "replicast-m", times));
    assert!(slow > 5.0 * equal, "by the paper's rules p99.9 grows {:.2} times", slow / equal);
}

#[test]
fn a_change_replaces_the_whole_value_and_nothing_that_looks_like_its_key() {
    let text =
        "title = \"load = 3\"\nload = 0.5\nmix = [\n  [\"16KiB\", 70],\n  [\"1MiB\", 30],\n]\nlength = \"1ms\"\n";
    let parse = |text: &str, set: &[&str]| {
        let set: Vec<Change> = set.iter().map(|s| Change { flag: "--set", text: (*s).to_owned() }).collect();
        Scenario::parse("s.toml", text, &set).map(|scenario| (scenario.title, scenario.setup.sizes))
    };
    let mix = parse(text, &[r#"mix=[["4KiB", 1]]"#, "load=0.25"]).unwrap();
    assert_eq!(mix, ("load = 3".to_owned(), vec![(4 << 10, 1)]));
    let says = |text: &str, set: &[&str]| parse(text, set).unwrap_err().to_string();
    assert!(says(text, &["load=high"]).starts_with("--set load=high: "), "{}", says(text, &["load=high"]));
    assert!(says(text, &["nothing=1"]).contains("unknown field `nothing`"));
    assert!(says("load = 0.5\nload = 1\n", &["load=1"]).starts_with("s.toml:2: "));
}
