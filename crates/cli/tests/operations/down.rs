//! A target that is lost for good is taken out of the cluster map by itself, and what it had is made again.

use std::fs;

use crate::common::{Cluster, content, happened};
use crate::metrics::scrape_gateway;
use serde_json::Value;

#[test]
fn a_target_that_is_lost_for_good_goes_and_its_copies_are_made_again() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--no-restart"]);
    let (file, back) = (place.path().join("file"), place.path().join("back"));
    let bytes = content(40 << 20, 7);
    fs::write(&file, &bytes).unwrap();
    cluster.run(&["put", file.to_str().unwrap()]);
    cluster.wait_for("whole", |status| status["whole"] == true);

    cluster.kill_target(4);
    let seen = cluster.wait_for("down", |status| status["down"]["targets"]["4"].is_u64());
    assert_eq!(
        (&seen["epoch"], &seen["down"]["out_after_seconds"]),
        (&1.into(), &30.into()),
        "down is not out: {seen}"
    );
    let text = String::from_utf8(cluster.run(&["status"])).unwrap();
    assert!(text.contains("target 4 is down for") && text.contains("it is taken out of the cluster map in "), "{text}");
    // The gateway notes it when it looks the next time.
    let is_whole = |status: &Value| status["epoch"] == 2 && status["whole"] == true && happened(status, "whole again");
    let after = cluster.wait_for("whole again", is_whole);
    assert!(after["targets"].as_array().unwrap().iter().all(|target| target["id"] != 4), "{after}");
    for what in ["target 4 is silent", "target 4 is down", "target 4 is out of the cluster map", "whole again"] {
        assert!(happened(&after, what), "{what}: {after}");
    }

    // Two at once may have one cause: a person decides.
    cluster.kill_target(5);
    cluster.kill_target(6);
    let held = cluster.wait_for("held", |status| status["down"]["held"].is_string());
    let why = held["down"]["held"].as_str().unwrap();
    assert!(why.contains("2 failure domains fell silent together"), "{why}");
    assert_eq!(held["epoch"], 2);
    let gauges = scrape_gateway(&place.path().join("data"));
    let gauge = |name: &str| gauges[&format!("reservoir_gateway_{name}")];
    assert_eq!((gauge("take_out_held"), gauge("down_targets"), gauge("silent_targets")), (1.0, 2.0, 2.0));
    assert_eq!((gauge("whole"), gauge("restored_chunks")), (0.0, held["restored_chunks"].as_f64().unwrap()));
    assert!(gauge("at_risk_chunks") > 0.0, "{gauges:?}");
    cluster.run(&["get", "file", "-o", back.to_str().unwrap()]);
    assert!(fs::read(&back).unwrap() == bytes);
    cluster.run(&["cluster", "remove", "5"]);
    let after = cluster.wait_for("whole with one out and one down", |status| {
        status["epoch"].as_u64() >= Some(3) && status["at_risk"].as_u64() < held["at_risk"].as_u64()
    });
    assert!(after["targets"].as_array().unwrap().iter().all(|target| target["id"] != 5), "{after}");
}

/// Copies are found damaged after a target fell silent that has the only other one: nobody who answers has the chunk then, so no steward counts it.
#[test]
fn a_target_that_may_have_the_last_copy_stays_until_it_is_back() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let cluster = Cluster::start(&data, &["--no-restart", "--targets", "6"]);
    let bytes = content(1 << 20, 7);
    assert!(cluster.try_run(&["put", "-", "f"], &bytes).status.success());
    cluster.wait_for("whole", |status| status["whole"] == true);
    let segment = |target: u32| data.join(format!("targets/{target}/segment-00000001"));
    let sample = &bytes[700_000..][..32];
    let holds =
        |target: &u32| fs::read(segment(*target)).unwrap_or_default().windows(32).any(|window| window == sample);
    let holders: Vec<u32> = (1..=6).filter(holds).collect();
    assert_eq!(holders.len(), 3, "{holders:?}");
    let last = holders[0];
    cluster.kill_target(last);
    cluster.rot(&holders[1..], [sample]);
    assert!(!cluster.try_run(&["get", "f", "-o", "-"], b"").status.success());
    let is_sought =
        |status: &Value| status["sought"].as_u64() > Some(0) && status["sought_on"] == serde_json::json!([last]);
    cluster.wait_for("sought", is_sought);
    let held = cluster.wait_for("held", |status| status["down"]["held"].is_string());
    let why = held["down"]["held"].as_str().unwrap();
    assert!(
        why.starts_with(&format!("target {last} stays in the cluster map: it may have the last copies of chunks")),
        "{why}"
    );
    assert!(held["epoch"] == 1 && held["whole"] == false && is_sought(&held), "{held}");
    let text = String::from_utf8(cluster.run(&["status"])).unwrap();
    assert!(
        text.contains("sought: ") && text.contains(&format!("target {last} may have the last copies: start it")),
        "{text}"
    );
    assert!(scrape_gateway(&data)["reservoir_gateway_sought_chunks"] > 0.0);

    let _target = cluster.start_target(last);
    let whole = cluster.wait_for("whole again", |status| status["whole"] == true && status["sought"] == 0);
    assert_eq!((&whole["epoch"], &whole["nowhere"]), (&1.into(), &0.into()), "{whole}");
    assert!(cluster.run(&["get", "f", "-o", "-"]) == bytes);
}

#[test]
fn the_map_in_use_says_after_how_long_a_target_goes() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--no-restart", "--targets", "4"]);
    let write = |epoch: u32, after: u32| {
        let is_said = |line: &str| line.starts_with("epoch = ") || line.starts_with("out_after_seconds = ");
        cluster.change_map(|map| {
            let kept: String = map.lines().filter(|line| !is_said(line)).map(|line| format!("{line}\n")).collect();
            format!("epoch = {epoch}\nout_after_seconds = {after}\n{kept}")
        });
    };
    cluster.wait_for("as `up` has it", |status| status["down"]["out_after_seconds"] == 30);
    write(2, 0);
    cluster.wait_for("never", |status| status["epoch"] == 2 && status["down"]["out_after_seconds"] == 0);
    cluster.kill_target(4);
    // The gateway began with a time that would be over by then.
    let seen = cluster.wait_for("down for longer", |status| status["down"]["targets"]["4"].as_u64() > Some(34));
    assert_eq!((&seen["epoch"], &seen["down"]["out_in_seconds"]), (&2.into(), &serde_json::json!({})), "{seen}");
    let text = String::from_utf8(cluster.run(&["status"])).unwrap();
    assert!(text.contains("it stays in the cluster map, as `out_after_seconds` is 0"), "{text}");
    write(3, 300);
    let left = |status: &Value| status["down"]["out_in_seconds"]["4"].as_u64();
    let seen = cluster.wait_for("another time", |status| left(status).is_some());
    assert!(seen["epoch"] == 3 && (200..266).contains(&left(&seen).unwrap()), "{seen}");
    // As long as that it was down: it goes at the next look.
    write(4, 20);
    cluster.wait_for("out", |status| status["epoch"] == 5 && happened(status, "target 4 is out of the cluster map"));
}
