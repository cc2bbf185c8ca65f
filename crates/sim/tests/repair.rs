//! Targets that are lost for good in a performance run: what they had is made again, by the machines that the daemons run.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use sim::perf::{Change, Measured, Outcome, Scenario, bound, run};

/// A small cluster with a light load that loses something.
fn outcome(set: &[&str]) -> Outcome {
    let small = [
        "targets=18",
        "initiators=18",
        "load=0.2",
        "lose_at=20ms",
        "lost_chunks=300",
        "warm_up=500ms",
        "length=100ms",
        "chunk=256KiB",
    ];
    let changes = small.iter().chain(set).map(|set| Change { flag: "--set", text: (*set).to_owned() });
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/repair.toml");
    let text = std::fs::read_to_string(path).unwrap();
    run(&Scenario::parse("repair.toml", &text, &changes.collect::<Vec<_>>()).unwrap().setup).unwrap()
}

fn measured(outcome: &Outcome) -> &Measured {
    let measured = outcome.product.as_ref().unwrap();
    assert_eq!((measured.failed, measured.unfinished, measured.undurable), (0, 0, 0));
    measured
}

#[test]
fn all_copies_of_what_is_lost_are_made_again() {
    for (set, lost) in [(&["lose=target"][..], 300), (&["lose=server"], 600)] {
        let outcome = outcome(set);
        let mended = measured(&outcome).mended.as_ref().unwrap();
        assert_eq!((mended.made, mended.lost >= lost), (mended.lost, true), "{set:?}");
        assert!(mended.whole.is_some() && mended.first < mended.whole && mended.surplus == 0, "{set:?}");
        let left: Vec<(u32, f64)> = mended.disks.iter().map(|(target, busy)| (*target, 1.0 - busy)).collect();
        assert!(bound(&mended.needs, &left, 1e-3, 1e-3) > 0.0);
    }
}

#[test]
fn nothing_is_made_again_where_nobody_looks() {
    let outcome = outcome(&["census_interval=0ns"]);
    let mended = measured(&outcome).mended.as_ref().unwrap();
    assert_eq!((mended.lost, mended.made, mended.left, mended.censuses), (300, 0, 300, 0));
}

#[test]
fn equal_seeds_give_equal_runs() {
    let [one, again] = [outcome(&[]), outcome(&[])];
    assert_eq!((one.digest, one.events), (again.digest, again.events));
}

#[test]
fn nobody_is_woken_in_vain_while_copies_wait_for_a_slow_port() {
    // Several copies that go in parts share each port: then the next part waits for long.
    let outcome = outcome(&[
        "targets=12",
        "servers=12",
        "initiators=3",
        "load=0.4",
        "chunk=1MiB",
        "link_mbit_per_s=60",
        "control_first=true",
        "lose_at=100ms",
        "lost_chunks=1000",
        "warm_up=1s",
        "length=2s",
    ]);
    assert!(outcome.product.unwrap().mended.unwrap().made > 0);
}

#[test]
fn gets_do_not_stand_in_each_others_way_on_slow_links() {
    // A chunk takes 0.2 s. Who asks again for what waits in a queue, or asks another holder, makes the queue longer.
    let outcome = outcome(&[
        "targets=12",
        "servers=12",
        "initiators=3",
        "load=0.4",
        "reads_percent=50",
        "objects=2000",
        "chunk=1MiB",
        "link_mbit_per_s=40",
        "control_first=true",
        "lose_at=100ms",
        "lost_chunks=3000",
        "warm_up=1s",
        "length=5s",
    ]);
    let took = &outcome.product.unwrap().get_latency;
    assert!(took.len() > 20 && took.max() < 3_000_000_000, "{} gets, the longest {} ns", took.len(), took.max());
}
