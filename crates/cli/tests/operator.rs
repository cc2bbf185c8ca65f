//! What an operator sees of processes that end, of a gateway that is stuck, and of commands that are broken off.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Cluster, Role, error_of, reservoir, signal};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn up(place: &Path) -> Cluster {
    let data = place.join("data");
    fs::create_dir(&data).unwrap();
    Cluster::start(&data, &["--targets", "3"])
}

#[test]
fn a_process_that_ends_is_named_and_started_again() {
    let place = tempfile::tempdir().unwrap();
    let cluster = up(place.path());
    let (targets, gateway) = (cluster.children("target"), cluster.children("gateway"));
    signal(targets[1], "-KILL");
    signal(gateway[0], "-KILL");
    wait_until("both are not started again", || cluster.said().matches("is started again\n").count() == 2);
    let said = cluster.said();
    let killed = said.lines().find(|line| line.starts_with("reservoir: target 2 ended")).unwrap();
    assert!(
        killed.contains("signal: 9") && killed.contains("target-2.log") && killed.contains("try 1 of 5"),
        "{killed}"
    );
    assert!(said.contains("reservoir: the gateway ended with signal: 9"), "{said}");
    wait_until("not all targets are up", || {
        let status = cluster.try_run(&["status", "--json"], b"").stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
        status["targets"].as_array().is_some_and(|targets| targets.iter().all(|target| target["alive"] == true))
    });
    let log = fs::read_to_string(cluster.directory.join("logs/target-2.log")).unwrap();
    assert_eq!(log.matches("is ready").count(), 2, "what it said before it ended is lost: {log}");
    assert!(cluster.stop());
}

#[test]
fn a_process_that_was_asked_to_stop_is_said_to_have_ended_in_order() {
    let place = tempfile::tempdir().unwrap();
    let cluster = up(place.path());
    signal(cluster.children("target")[1], "-TERM");
    wait_until("nothing is said of it", || cluster.said().contains("reservoir: target 2 ended in order"));
    let said = cluster.said();
    let line = said.lines().find(|line| line.contains("target 2 ended")).unwrap();
    assert!(!line.contains("the last line"), "{line}");
    assert!(cluster.stop());
}

#[test]
fn a_process_that_cannot_stay_up_is_said_to_with_its_reason() {
    let place = tempfile::tempdir().unwrap();
    let cluster = up(place.path());
    let identity = cluster.directory.join("targets/3");
    fs::rename(&identity, place.path().join("gone")).unwrap();
    fs::write(&identity, "no directory").unwrap();
    signal(cluster.children("target")[2], "-KILL");
    wait_until("no second try", || cluster.said().contains("try 2 of 5"));
    let said = cluster.said();
    let line = said.lines().find(|line| line.contains("try 2 of 5")).unwrap();
    assert!(line.contains("target 3 ended with exit status: 1: ") && line.contains("targets/3"), "{line}");
    assert!(cluster.stop());
}

#[test]
fn a_second_process_of_one_target_is_told_that_there_is_one() {
    let place = tempfile::tempdir().unwrap();
    let cluster = up(place.path());
    let error = error_of(&["target", "--config", &cluster.config(), "--id", "1"]);
    assert!(error.contains("another process uses its directory") && error.contains("targets/1"), "{error}");
    assert!(cluster.stop());
}

#[test]
fn a_cause_is_said_once_and_the_advice_is_not_to_do_the_same_again() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let (path, config) = (data.to_str().unwrap(), data.join("cluster.toml"));
    let start = ["up", "--data", path, "--targets", "3", "--once"];
    assert!(reservoir(&start).status.success());
    let target = ["target", "--id", "1", "--config", config.to_str().unwrap()];
    let ls = ["ls", "--config", config.to_str().unwrap()];
    for (file, commands) in [("cluster.key", [&start[..], &target]), ("gateway.toml", [&start[..], &ls])] {
        let (there, aside) = (data.join(file), data.join("aside"));
        fs::rename(&there, &aside).unwrap();
        for command in commands {
            let error = error_of(command);
            assert!(error.contains(file) && !error.contains(" up"), "{error}");
            assert_eq!(error.matches("No such file").count(), 1, "{error}");
        }
        fs::rename(&aside, &there).unwrap();
    }
    // A file in the place of a target's directory.
    let directory = data.join("targets/1");
    fs::rename(&directory, data.join("aside")).unwrap();
    fs::write(&directory, "").unwrap();
    assert_eq!(error_of(&target).matches("Not a directory").count(), 1, "{}", error_of(&target));
}

#[test]
fn a_gateway_that_never_answers_is_given_up() {
    let place = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let config = place.path().join("cluster.toml");
    fs::write(place.path().join("gateway.toml"), format!("http = \"{address}\"\n")).unwrap();
    let (big, config) = (place.path().join("big"), config.to_str().unwrap());
    fs::File::create(&big).unwrap().set_len(1 << 30).unwrap();
    let big = big.to_str().unwrap();
    let commands = [&["ls"][..], &["status"], &["get", "x", "-o", "-"], &["stat", "x"], &["put", big]];
    std::thread::scope(|scope| {
        for args in commands {
            scope.spawn(move || {
                let error = error_of(&[args, &["--timeout", "1", "--config", config]].concat());
                assert!(error.contains(&address.to_string()) && error.contains("silent for 1 s"), "{error}");
            });
        }
    });
    assert!(error_of(&["ls", "--timeout", "0", "--config", config]).contains("--timeout"));
}

#[test]
fn a_benchmark_that_is_stopped_leaves_nothing_behind() {
    let place = tempfile::tempdir().unwrap();
    let entries = || fs::read_dir(place.path()).unwrap().count();
    let data = place.path().to_str().unwrap();
    for more in [&["--seconds", "600"][..], &["--slow-target"]] {
        let bench = Role::start(&[&["bench", "--data", data], more].concat());
        wait_until("no cluster is made", || entries() > 0);
        assert!(!bench.stop(), "a broken off benchmark is no success");
        assert_eq!(entries(), 0);
    }
    let missing = place.path().join("missing");
    assert!(error_of(&["bench", "--data", missing.to_str().unwrap()]).contains("make it"));
    assert!(!missing.exists());
    for depth in ["0", "100000"] {
        assert!(error_of(&["bench", "--depth", depth]).contains("choose 1 to 1024"));
    }
}
