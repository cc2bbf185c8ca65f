//! A target that is added gets its share of what is stored by itself, while all is read.

use std::fs;
use std::time::{Duration, Instant};

use crate::common::{Cluster, Role, content};
use serde_json::Value;

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(400);
const OBJECTS: u64 = 30;
const BYTES: usize = 4_000_000;

/// Bytes that each target holds, in the order of their ids.
fn live(status: &Value) -> Vec<u64> {
    status["targets"].as_array().unwrap().iter().map(|target| target["live"].as_u64().unwrap_or(0)).collect()
}

fn assert_reads(cluster: &Cluster, n: u64) {
    assert!(cluster.run(&["get", &format!("o{n}"), "-o", "-"]) == content(BYTES, n), "o{n} is another");
}

/// Waits until the status is so, and reads an object at each look.
fn wait_for(cluster: &Cluster, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + LIMIT;
    for n in (0..OBJECTS).cycle() {
        let status = cluster.status();
        if is_so(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "not {what}: {status}");
        assert_reads(cluster, n);
        std::thread::sleep(Duration::from_millis(300));
    }
    unreachable!("it goes round")
}

/// A cluster of targets that are small, so that what a test stores fills them.
fn small_cluster(data: &std::path::Path) -> Cluster {
    assert!(Cluster::start(data, &["--targets", "4"]).stop());
    let path = data.join("cluster.toml");
    let map = fs::read_to_string(&path).unwrap();
    let lines = map.lines().map(|line| if line.starts_with("capacity = ") { "capacity = \"256MiB\"" } else { line });
    let lines: Vec<&str> = lines.collect();
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    Cluster::start(data, &[])
}

#[test]
fn a_target_that_is_added_gets_its_share_and_no_more() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = small_cluster(&data);
    for n in 0..OBJECTS {
        let put = cluster.try_run(&["put", "-", &format!("o{n}")], &content(BYTES, n));
        assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    }
    let before = wait_for(&cluster, "whole", |status| status["whole"] == true);
    let (old, moved_before) = (live(&before), before["moved_bytes"].as_u64().unwrap());
    assert_eq!(old.len(), 4, "{before}");

    let key = data.join("cluster.key").to_str().unwrap().to_owned();
    let disk = place.path().join("disk").to_str().unwrap().to_owned();
    let gateway = cluster.gateway();
    let words = ["--key-file", &key, "--data", &disk, "--capacity", "256MiB", "--domain", "server-5"];
    let fifth = Role::start(&[&["target", "--join", &gateway], &words[..]].concat());
    let stored: u64 = old.iter().sum();
    let share = stored / 5;
    // What it has got, others have lost: no chunk has a copy too many.
    let after = wait_for(&cluster, "level", |status| {
        let now = live(status);
        let sum: u64 = now.iter().sum();
        status["whole"] == true && now.len() == 5 && now[4] > share * 3 / 4 && sum < stored + stored / 50
    });
    let now = live(&after);
    for (id, (before, after)) in (1..).zip(old.iter().zip(&now)) {
        // Who had little, as it was slow then, may have got some, too.
        let most = (*before).max(share * 11 / 10);
        assert!(*after < most && *after > share * 3 / 4, "target {id}: {before}, then {after}, of {stored}");
    }
    // And it stops by itself.
    std::thread::sleep(Duration::from_secs(25));
    let last = wait_for(&cluster, "whole", |status| status["whole"] == true);
    let moved = last["moved_bytes"].as_u64().unwrap() - moved_before;
    assert!(moved > share * 3 / 4 && moved < share * 13 / 10, "{moved} of {share} moved: {last}");
    assert!(live(&last)[4] < share * 5 / 4, "{last}");
    (0..OBJECTS).for_each(|n| assert_reads(&cluster, n));
    assert!(fifth.stop() && cluster.stop());
}

#[test]
fn the_layout_before_is_forgotten_when_nothing_is_left_there() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "9"]);
    for n in 0..4 {
        let put = cluster.try_run(&["put", "-", &format!("o{n}")], &content(BYTES, n));
        assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    }
    let shown = || -> Value { serde_json::from_slice(&cluster.run(&["cluster", "show", "--json"])).unwrap() };
    cluster.run(&["cluster", "plan", "--group-cells", "2", "--write"]);
    assert_eq!((&shown()["epoch"], &shown()["carries_previous"]), (&2.into(), &true.into()));
    let deadline = Instant::now() + LIMIT;
    while shown()["carries_previous"] == true {
        assert!(Instant::now() < deadline, "it is not forgotten: {}", cluster.status());
        (0..4).for_each(|n| assert_reads(&cluster, n));
        std::thread::sleep(Duration::from_secs(1));
    }
    let text = fs::read_to_string(cluster.config()).unwrap();
    assert!(text.contains("\nsettled = 2\n") && !text.contains("[previous]"), "{text}");
    wait_for_use(&cluster, 3);
    (0..4).for_each(|n| assert_reads(&cluster, n));
    assert!(cluster.stop());
}

/// Waits until the gateway uses the map of an epoch, and all is whole by it.
fn wait_for_use(cluster: &Cluster, epoch: u32) {
    let deadline = Instant::now() + LIMIT;
    while cluster.status()["epoch"] != epoch || cluster.status()["whole"] != true {
        assert!(Instant::now() < deadline, "epoch {epoch} is not in use: {}", cluster.status());
        std::thread::sleep(Duration::from_millis(300));
    }
}
