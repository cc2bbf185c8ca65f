//! Servers of several targets each: one that is down takes nothing away that was acknowledged.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "common/client.rs"]
mod client;
mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use client::S3;
use common::{Cluster, content, reservoir, signal};
use serde_json::Value;

/// Three servers of three targets each; ids 1, 2 and 3 are on the first.
fn three_servers(place: &Path) -> Cluster {
    let data = place.join("data");
    let made = reservoir(&["up", "--data", data.to_str().unwrap(), "--once"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let map = data.join("cluster.toml");
    let mut text = fs::read_to_string(&map).unwrap();
    for id in 1..=9 {
        let server = format!("\"server-{}\"", (id - 1) / 3 + 1);
        text = text.replace(&format!("\"disk-{id:03}\""), &server);
    }
    assert_eq!(text.matches("server-1").count(), 3, "{text}");
    fs::write(map, text).unwrap();
    Cluster::start(&data, &["--no-restart"])
}

/// The one error line of a command that must fail, and how long it took.
fn failure(cluster: &Cluster, args: &[&str], input: &[u8]) -> (String, Duration) {
    let began = Instant::now();
    let output = cluster.try_run(args, input);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{args:?} succeeded: {text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("reservoir: ")).collect();
    assert_eq!(lines.len(), 1, "not one line: {text}");
    (lines[0].to_owned(), began.elapsed())
}

#[test]
fn a_server_that_is_down_takes_nothing_away() {
    let place = tempfile::tempdir().unwrap();
    let cluster = three_servers(place.path());
    let s3 = S3::of(&cluster);
    s3.put("bucket", "", b"").is(200);
    let files: Vec<(String, Vec<u8>)> =
        (0..12).map(|n| (format!("f{n}"), content(300_000 + n, n as u64 + 1))).collect();
    for (name, bytes) in &files {
        assert!(cluster.try_run(&["put", "-", name], b"an older version").status.success());
        assert!(cluster.try_run(&["put", "-", name], bytes).status.success());
        s3.put("bucket", name, bytes).is(200);
    }
    let targets = cluster.children("target");
    assert_eq!(targets.len(), 9);
    targets[..3].iter().for_each(|pid| signal(*pid, "-KILL"));
    for (name, bytes) in &files {
        assert!(cluster.run(&["get", name, "-o", "-"]) == *bytes, "{name}");
        let stat: Value = serde_json::from_slice(&cluster.run(&["stat", name, "--json"])).unwrap();
        assert_eq!(stat["size"], bytes.len(), "{stat}");
        assert!(s3.get("bucket", name).is(200).body == *bytes, "{name}");
        assert_eq!(s3.head("bucket", name).is(200).header("content-length"), bytes.len().to_string());
    }
    assert_eq!(cluster.keys("s3://files").len(), 12);
    assert_eq!(s3.list("bucket", &[("list-type", "2")]).is(200).elements("Key").len(), 12);
    let (error, _) = failure(&cluster, &["get", "nowhere", "-o", "-"], b"");
    assert!(error.contains("there is no object s3://files/nowhere"), "{error}");
    // A put lacks a third server.
    for name in ["f0", "new"] {
        let (error, took) = failure(&cluster, &["put", "-", name], b"newer");
        assert!(
            error.contains("copies are needed in 3 failure domains")
                && error.contains("possible in 2")
                && error.contains("silent targets: 1, 2, 3"),
            "{error}"
        );
        assert!(took < Duration::from_secs(10), "{took:?}: {error}");
    }
    s3.put("bucket", "new", b"newer").fails(503, "ServiceUnavailable");
    assert!(cluster.run(&["get", "f1", "-o", "-"]) == files[1].1);
    // What the catalog names is had from whoever has a copy, however few answer.
    signal(targets[3], "-KILL");
    assert!(cluster.run(&["get", "f2", "-o", "-"]) == files[2].1, "two domains");
    assert_eq!(cluster.keys("s3://files").len(), 12);
}
