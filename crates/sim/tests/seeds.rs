//! Whole clusters with faults: no seed may fail, every seed repeats, every planted defect is found.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sim::disks::Seen;
use sim::{PlantedBug, run_seed};

fn repeat(seed: u64) -> String {
    format!("repeat it with: reservoir sim replay {seed}")
}

#[test]
fn no_seed_fails_and_disks_go_through_everything() {
    let report = sim::check_seeds(1, 300, None, 2, &|_| ());
    if let Some((seed, why)) = report.failures.first() {
        panic!("{} of {} seeds failed; seed {seed}: {why}; {}", report.failures.len(), report.seeds, repeat(*seed));
    }
    assert!(report.puts > 300 * 80 && report.gets > 300 * 80, "{report:?}");
    // A world in which these do not happen would find nothing that they show.
    let Seen { emptied, stopped, stopped_starting, refused, blackouts, spoiled } = report.disks;
    let seen = [emptied, stopped, stopped_starting, refused, blackouts, spoiled];
    let excuses = [sim::Excuse::Full, sim::Excuse::LostDisk, sim::Excuse::Regrouped, sim::Excuse::DomainsDown];
    assert!(excuses.iter().all(|excuse| report.excuses.contains_key(excuse)), "{:?}", report.excuses);
    assert!(report.moved.0 >= 30 && report.moved.1 >= 1_000, "{:?}", report.moved);
    // That nobody knows whether a map was decided is rare.
    let sim::Governed { decided, conflicts, unsure: _, taken_out, stayed: _, held } = report.governed;
    let governed = [decided, conflicts, taken_out, held];
    assert!(governed.iter().all(|often| *often > 0), "{:?}", report.governed);
    assert!(emptied > 900 && seen.iter().all(|often| *often > 0), "{:?}", report.disks);
}

#[test]
fn a_seed_repeats_exactly() {
    for seed in 1..20 {
        assert_eq!(run_seed(seed, None), run_seed(seed, None), "{}", repeat(seed));
    }
}

/// Digests of some seeds. A change of the protocol, the store or the simulator changes them: put in what the test prints.
const DIGESTS: [(u64, u64); 4] = [
    (1, 15_356_191_763_565_773_202),
    (2, 6_232_424_198_541_502_286),
    (3, 8_303_961_569_799_452_970),
    (4, 6_459_548_160_102_514_060),
];

/// Every build has the same constants, so builds with and without optimisation agree.
#[test]
fn a_seed_is_the_same_on_every_build() {
    let now = DIGESTS.map(|(seed, _)| (seed, run_seed(seed, None).digest));
    assert_eq!(now, DIGESTS);
}

/// Each defect has to show in so many. All but the rarest do in 500; which seed of those is the first one changes with every
/// rule, and what shows in one seed of two hundred is not in the first 500 one time in twelve.
const SEEDS: u64 = 2_000;
/// Of maintenance: these have to show in 500.
const SOON: [&str; 8] = [
    "drop-before-durable",
    "count-moved",
    "move-into-domain",
    "forget-removal",
    "two-maps-of-one-epoch",
    "repair-from-bad",
    "forget-range",
    "silent-is-empty",
];

/// The first seeds that show what shows late: they are tried before the others, which are most of the time of this test. Where a change of the rules
/// has moved one it is looked for from the first on: put in what the test prints.
const LATE: [(&str, u64); 17] = [
    ("let-go-at-once", 1_382),
    ("no-limit", 438),
    ("overlook-unwatched", 241),
    ("wrong-coefficient", 186),
    ("swap-pieces", 186),
    ("skip-renewal", 152),
    ("vouch-old-map", 107),
    ("stale-stamps", 86),
    ("never-seek", 79),
    ("resume-over-torn", 75),
    ("stay-by-rank", 64),
    ("trust-clean", 56),
    ("clear-tail", 53),
    ("take-out-all-silent", 52),
    ("count-all-the-time", 52),
    ("ignore-redundancy", 46),
    ("keep-copies", 36),
];

#[test]
fn every_planted_defect_is_found() {
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(planted) = PlantedBug::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // Two stewards have to look at one chunk at the same time, or a copy has to be away between two answers of its
                    // holder: either takes more than a thousand seeds.
                    if ["trust-count", "trust-sums"].contains(&planted.name()) {
                        continue;
                    }
                    let most = if SOON.contains(&planted.name()) { 500 } else { SEEDS };
                    let late = LATE.iter().filter(|(name, seed)| *name == planted.name() && *seed <= most);
                    let mut seeds = late.map(|(_, seed)| *seed).chain(1..=most);
                    match seeds.find_map(|seed| Some((seed, run_seed(seed, Some(*planted)).failure?))) {
                        Some((seed, why)) => println!("{}: seed {seed}: {why}", planted.name()),
                        None => missed.lock().unwrap().push(planted.name()),
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not found in so many seeds: {}", missed.join(", "));
}

#[test]
fn the_last_seed_has_a_next_one() {
    let report = sim::check_seeds(u64::MAX, 2, None, 2, &|_| {});
    assert_eq!((report.seeds, report.failures), (2, Vec::new()));
}
