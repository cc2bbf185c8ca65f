//! Which holder serves a get, and what that does to the tail.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use sim::perf::{Change, Outcome, Scenario, run};

fn reads(set: &[&str]) -> Outcome {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/reads.toml");
    let shorter = ["targets=18", "initiators=18", "warm_up=200ms", "length=200ms"];
    let set = shorter.iter().chain(set).map(|s| Change { flag: "--set", text: (*s).to_owned() });
    let text = std::fs::read_to_string(path).unwrap();
    run(&Scenario::parse("reads.toml", &text, &set.collect::<Vec<_>>()).unwrap().setup).unwrap()
}

fn tail(outcome: &Outcome) -> f64 {
    let more = outcome.product.as_ref().unwrap();
    assert_eq!(more.failed, 0);
    more.get_latency.value_at_quantile(0.999) as f64
}

#[test]
fn bids_choose_the_holder_that_is_done_first() {
    let (random, least, bids) =
        (reads(&["protocol=hash"]), reads(&["protocol=hash", "get_choice=best"]), reads(&["get_choice=best"]));
    assert!(tail(&random) > 2.0 * tail(&bids), "{} {}", tail(&random), tail(&bids));
    assert!(tail(&random) > 2.0 * tail(&least));
}

#[test]
fn bids_avoid_slow_disks() {
    let (random, bids) = (reads(&["protocol=hash", "slow_times=10"]), reads(&["slow_times=10"]));
    assert!(tail(&random) > 10.0 * tail(&bids), "{} {}", tail(&random), tail(&bids));
    assert_eq!(bids.product.unwrap().unfinished, 0);
}

#[test]
fn remembered_holders_take_fewer_messages_and_no_longer() {
    let few = ["objects=500", "warm_up=1s"];
    let of = |remember| reads(&[few[0], few[1], remember]);
    let (with, without) = (of("remember=true"), of("remember=false"));
    let messages =
        |outcome: &Outcome| outcome.product.as_ref().unwrap().control_messages as f64 / outcome.chunks as f64;
    assert!(messages(&with) < 0.5 * messages(&without), "{} {}", messages(&with), messages(&without));
    assert!(tail(&with) < 1.2 * tail(&without));
}

#[test]
fn hedging_keeps_its_budget_and_every_get_ends() {
    for protocol in ["protocol=hash", "protocol=replicast-m", "protocol=replicast-h", "protocol=leader"] {
        let outcome = reads(&[
            protocol,
            "overlap=false",
            "lead_gets=true",
            "hedge_percent=3",
            "load=0.6",
            "loss_ppm=300",
            "reads_percent=70",
        ]);
        tail(&outcome);
        let more = outcome.product.unwrap();
        let share = more.hedged as f64 / more.gets as f64;
        assert!(share < 0.033 && more.unfinished == 0, "{protocol}: {share}");
        assert!(share > 0.001 || protocol == "protocol=leader", "{protocol}: nobody was ever late");
    }
}
