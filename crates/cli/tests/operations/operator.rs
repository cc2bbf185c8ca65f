//! What an operator sees of processes that end, of a gateway that is stuck, and of commands that are broken off.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{Cluster, Role, error_of, reservoir, signal, wait_until};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);

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
    wait_until("both are not started again", || cluster.output().matches("is started again\n").count() == 2);
    let printed = cluster.output();
    let killed = printed.lines().find(|line| line.starts_with("reservoir: target 2 ended")).unwrap();
    assert!(
        killed.contains("signal: 9") && killed.contains("target-2.log") && killed.contains("in 1 s (try 1)"),
        "{killed}"
    );
    assert!(printed.contains("reservoir: the gateway ended with signal: 9"), "{printed}");
    wait_until("not all targets are up", || {
        let status = cluster.try_run(&["status", "--json"], b"").stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
        status["targets"].as_array().is_some_and(|targets| targets.iter().all(|target| target["alive"] == true))
    });
    let log = fs::read_to_string(cluster.directory.join("logs/target-2.log")).unwrap();
    assert_eq!(log.matches("is ready").count(), 2, "what it logged before it ended is lost: {log}");
    assert!(cluster.stop());
}

#[test]
fn a_process_that_was_asked_to_stop_is_reported_to_have_ended_in_order() {
    let place = tempfile::tempdir().unwrap();
    let cluster = up(place.path());
    signal(cluster.children("target")[1], "-TERM");
    wait_until("it is not reported", || cluster.output().contains("reservoir: target 2 ended in order"));
    let printed = cluster.output();
    let line = printed.lines().find(|line| line.contains("target 2 ended")).unwrap();
    assert!(!line.contains("the last line"), "{line}");
    assert!(cluster.stop());
}

/// It is never given up: when the cause is mended, nothing else need be started anew.
#[test]
fn a_process_that_cannot_stay_up_is_started_again_and_again_with_its_reason_told_once() {
    let place = tempfile::tempdir().unwrap();
    let cluster = up(place.path());
    let (store, aside) = (cluster.directory.join("targets/3"), place.path().join("gone"));
    fs::rename(&store, &aside).unwrap();
    fs::write(&store, "no directory").unwrap();
    signal(cluster.children("target")[2], "-KILL");
    wait_until("it is given up", || cluster.output().contains("in 32 s (try 6)"));
    let printed = cluster.output();
    let reasons = || printed.lines().filter(|line| line.contains("target 3 ended with exit status: 1: "));
    let reason = reasons().next().unwrap();
    assert!(reason.contains("targets/3") && reasons().count() == 1, "{printed}");
    fs::remove_file(&store).unwrap();
    fs::rename(&aside, &store).unwrap();
    wait_until("it is not started again", || cluster.children("target").len() == 3);
    cluster.run(&["status"]);
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
fn a_cause_is_reported_once_and_the_advice_is_not_to_do_the_same_again() {
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
    fs::write(place.path().join("gateway.toml"), format!("http = \"{address}\"\n[s3]\nlisten = \"{address}\"\n"))
        .unwrap();
    let user = "[[user]]\nname = \"ann\"\naccess_key = \"AAAA\"\nsecret_key = \"BBBB\"\n";
    fs::write(place.path().join("users.toml"), user).unwrap();
    let (big, config) = (place.path().join("big"), config.to_str().unwrap());
    fs::File::create(&big).unwrap().set_len(1 << 30).unwrap();
    let big = big.to_str().unwrap();
    let commands = [&["ls"][..], &["status"], &["get", "x", "-o", "-"], &["stat", "x"], &["rm", "x"], &["put", big]];
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

/// What is printed ends in journals that others read.
#[test]
fn a_secret_is_printed_once_when_it_is_made() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let cluster = Cluster::start(&data, &["--targets", "3"]);
    let text = |args: &[&str]| String::from_utf8(cluster.run(args)).unwrap();
    let secret = text(&["user", "show", "admin", "--secret"]).trim_end().to_owned();
    assert_eq!(secret.len(), 40);
    let printed = cluster.output();
    assert_eq!(printed.matches(&secret).count(), 1, "{printed}");
    assert!(printed.contains("user show admin"), "{printed}");
    // What is to be typed has the secret all the same.
    let export = printed.lines().find(|line| line.trim_start().starts_with("export ")).unwrap();
    let shell = std::process::Command::new("sh").args(["-c", &format!("{export}; env")]).output().unwrap();
    let environment = String::from_utf8_lossy(&shell.stdout).into_owned();
    assert!(environment.contains(&format!("AWS_SECRET_ACCESS_KEY={secret}\n")), "{export}");
    let shown: serde_json::Value = serde_json::from_str(&text(&["user", "show", "admin", "--json"])).unwrap();
    assert_eq!(shown["secret_key"], *secret);
    let key = shown["access_key"].as_str().unwrap();
    assert_eq!(text(&["user", "show", "admin"]), format!("access key: {key}\nsecret key: {secret}\n"));
    assert!(printed.contains(&format!("access key: {key}\n")), "{printed}");
    let unknown = cluster.try_run(&["user", "show", "nobody"], b"");
    assert!(!unknown.status.success() && String::from_utf8_lossy(&unknown.stderr).contains("user list"));
    assert!(cluster.stop());

    let cluster = Cluster::start(&data, &[]);
    let printed = cluster.output();
    assert!(!printed.contains(&secret) && printed.contains("user show admin") && printed.contains(key), "{printed}");
    let logs = fs::read_dir(data.join("logs")).unwrap().map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    assert!(logs.into_iter().all(|log| !log.contains(&secret)));
    assert!(cluster.stop());
}

/// A cluster of three targets that take this much each.
fn small(place: &Path, capacity: &str) -> Cluster {
    let data = place.join("data");
    let path = data.to_str().unwrap();
    assert!(reservoir(&["up", "--once", "--targets", "3", "--data", path]).status.success());
    let config = data.join("cluster.toml");
    let text = fs::read_to_string(&config).unwrap();
    let lines = text.lines().map(|line| match line.starts_with("capacity") {
        true => format!("capacity = \"{capacity}\"\n"),
        false => format!("{line}\n"),
    });
    fs::write(&config, lines.collect::<String>()).unwrap();
    Cluster::start(&data, &[])
}

#[test]
fn a_benchmark_leaves_room_and_takes_its_chunks_away() {
    let place = tempfile::tempdir().unwrap();
    let cluster = small(place.path(), "1GiB");
    let bench = ["bench", "--ceiling", "1000", "--seconds", "8", "--sizes", "1MiB"];
    let rows: serde_json::Value = serde_json::from_slice(&cluster.run(&[&bench[..], &["--json"]].concat())).unwrap();
    let rows = rows["results"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    let put: u64 = rows.iter().filter(|row| row["direction"] == "put").map(|row| row["bytes"].as_u64().unwrap()).sum();
    assert!(put >= 256 << 20, "{put} bytes: {rows:?}");
    let status: serde_json::Value = serde_json::from_slice(&cluster.run(&["status", "--json"])).unwrap();
    let chunks: u64 = status["targets"].as_array().unwrap().iter().map(|t| t["chunks"].as_u64().unwrap()).sum();
    assert!(chunks < 30, "{chunks} copies are left: {status}");
    assert!(cluster.stop());
}

#[test]
fn a_benchmark_says_beforehand_that_there_is_too_little_room() {
    let place = tempfile::tempdir().unwrap();
    let cluster = small(place.path(), "300MiB");
    let begin = Instant::now();
    let refused = cluster.try_run(&["bench", "--ceiling", "1000", "--seconds", "600"], b"");
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && printed.contains("too little room") && printed.contains("--sizes"),
        "{printed}"
    );
    assert!(begin.elapsed() < LIMIT);
    assert!(cluster.stop());
}
