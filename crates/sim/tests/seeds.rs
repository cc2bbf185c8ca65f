//! Whole clusters with faults: no seed may fail, every seed repeats, every planted defect is found.

use sim::disks::Seen;
use sim::{Planted, run_seed};

fn repeat(seed: u64) -> String {
    format!("repeat it with: reservoir sim replay {seed}")
}

#[test]
fn no_seed_fails() {
    let report = sim::check_seeds(1, 300, None, 2, &|_| ());
    if let Some((seed, why)) = report.failures.first() {
        panic!("{} of {} seeds failed; seed {seed}: {why}; {}", report.failures.len(), report.seeds, repeat(*seed));
    }
    assert!(report.puts > 300 * 80 && report.gets > 300 * 80, "{report:?}");
}

/// A world in which these do not happen would find nothing that they show.
#[test]
fn disks_go_through_everything() {
    let report = sim::check_seeds(1, 100, None, 2, &|_| ());
    let Seen { emptied, stopped, stopped_starting, refused, blackouts, spoiled, full } = report.disks;
    let seen = [emptied, stopped, stopped_starting, refused, blackouts, spoiled, full];
    assert!(emptied > 500 && seen.iter().all(|often| *often > 0), "{:?}", report.disks);
}

#[test]
fn a_seed_repeats_exactly() {
    for seed in 1..20 {
        assert_eq!(run_seed(seed, None), run_seed(seed, None), "{}", repeat(seed));
    }
}

/// Digests of some seeds. A change of the protocol, the store or the simulator changes them: put in what the test prints.
const DIGESTS: [(u64, u64); 4] = [
    (1, 7_008_241_463_813_026_364),
    (2, 12_859_594_009_910_856_423),
    (3, 13_110_055_098_675_929_826),
    (4, 17_199_738_157_397_235_929),
];

/// Every build has the same constants, so builds with and without optimisation agree.
#[test]
fn a_seed_is_the_same_on_every_build() {
    let now = DIGESTS.map(|(seed, _)| (seed, run_seed(seed, None).digest));
    assert_eq!(now, DIGESTS);
}

#[test]
fn every_planted_defect_is_found() {
    for planted in Planted::ALL {
        let found = (1..=300).find_map(|seed| Some((seed, run_seed(seed, Some(planted)).failure?)));
        let (seed, why) = found.unwrap_or_else(|| panic!("{planted:?} was not found in 300 seeds"));
        println!("{planted:?}: seed {seed}: {why}");
    }
}

#[test]
fn the_last_seed_has_a_next_one() {
    let report = sim::check_seeds(u64::MAX, 2, None, 2, &|_| {});
    assert_eq!((report.seeds, report.failures), (2, Vec::new()));
}
