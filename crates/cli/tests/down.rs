//! A target that is lost for good is taken out of the cluster map by itself, and what it had is made again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::{Cluster, content, signal};
use serde_json::Value;

fn status(cluster: &Cluster) -> Value {
    serde_json::from_slice(&cluster.run(&["status", "--json"])).unwrap()
}

/// Waits until the status is so.
fn wait_for(cluster: &Cluster, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let status = status(cluster);
        if is_so(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "not {what}: {status}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn happened(status: &Value, what: &str) -> bool {
    status["history"].as_array().unwrap().iter().any(|event| event["what"].as_str().unwrap().contains(what))
}

/// Which targets there are, by the processes that run them.
fn kill(cluster: &Cluster, target: u32) {
    let of = |pid: &u32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains(&format!("--id\0{target}\0"))
    };
    signal(cluster.children("target").into_iter().find(of).unwrap(), "-KILL");
}

#[test]
fn a_target_that_is_lost_for_good_goes_and_its_copies_are_made_again() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--no-restart"]);
    let (file, back) = (place.path().join("file"), place.path().join("back"));
    let bytes = content(40 << 20, 7);
    fs::write(&file, &bytes).unwrap();
    cluster.run(&["put", file.to_str().unwrap()]);
    wait_for(&cluster, "whole", |status| status["whole"] == true);

    kill(&cluster, 4);
    let seen = wait_for(&cluster, "down", |status| status["down"]["targets"]["4"].is_u64());
    assert_eq!(
        (&seen["epoch"], &seen["down"]["out_after_seconds"]),
        (&1.into(), &30.into()),
        "down is not out: {seen}"
    );
    let text = String::from_utf8(cluster.run(&["status"])).unwrap();
    assert!(text.contains("target 4 is down for"), "{text}");
    // The gateway notes it when it looks the next time.
    let is_whole = |status: &Value| status["epoch"] == 2 && status["whole"] == true && happened(status, "whole again");
    let after = wait_for(&cluster, "whole again", is_whole);
    assert!(after["targets"].as_array().unwrap().iter().all(|target| target["id"] != 4), "{after}");
    for what in ["target 4 is silent", "target 4 is down", "target 4 is out of the cluster map", "whole again"] {
        assert!(happened(&after, what), "{what}: {after}");
    }

    // Two at once may have one cause: a person decides.
    kill(&cluster, 5);
    kill(&cluster, 6);
    let held = wait_for(&cluster, "held", |status| status["down"]["held"].is_string());
    let why = held["down"]["held"].as_str().unwrap();
    assert!(why.contains("2 failure domains fell silent together"), "{why}");
    assert_eq!(held["epoch"], 2);
    cluster.run(&["get", "file", "-o", back.to_str().unwrap()]);
    assert!(fs::read(&back).unwrap() == bytes);
    cluster.run(&["cluster", "remove", "5"]);
    let after = wait_for(&cluster, "whole with one out and one down", |status| {
        status["epoch"].as_u64() >= Some(3) && status["at_risk"].as_u64() < held["at_risk"].as_u64()
    });
    assert!(after["targets"].as_array().unwrap().iter().all(|target| target["id"] != 5), "{after}");
}
