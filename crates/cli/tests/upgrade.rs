//! A cluster of an earlier binary that becomes one of this one, role by role, under load. `make upgrade` builds the earlier one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "common/client.rs"]
mod client;
mod common;

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use client::S3;
use common::{Cluster, Role, content, signal};

/// How long a role has until the next is replaced.
const TURN: Duration = Duration::from_secs(4);
const CLIENTS: usize = 3;
const SIZE: usize = 200_000;
const TARGETS: u32 = 4;

/// What clients put, get and remove until it is over; every operation succeeds. How many objects each put, of which it removed every third.
fn load(s3: &S3, over: &AtomicBool, round: usize) -> Vec<usize> {
    let work = |client: usize| {
        let mut count = 0;
        while !over.load(Ordering::Relaxed) {
            let key = format!("{round}-{client}-{count}");
            let bytes = body(round, client, count);
            s3.put("bucket", &key, &bytes).is(200);
            assert!(s3.get("bucket", &key).is(200).body == bytes, "{key}");
            if count % 3 == 0 {
                s3.delete("bucket", &key).is(204);
            }
            count += 1;
        }
        count
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(move || work(client))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

fn body(round: usize, client: usize, n: usize) -> Vec<u8> {
    content(SIZE, (round * 1_000_000 + client * 10_000 + n) as u64)
}

/// Reads all that the rounds put, and misses what they removed.
fn check(s3: &S3, rounds: &[Vec<usize>]) {
    for (round, counts) in rounds.iter().enumerate() {
        for (client, count) in counts.iter().enumerate() {
            for n in 0..*count {
                let answer = s3.get("bucket", &format!("{round}-{client}-{n}"));
                if n % 3 == 0 {
                    answer.is(404);
                } else {
                    assert!(answer.is(200).body == body(round, client, n), "{round}-{client}-{n}");
                }
            }
        }
    }
}

/// Replaces roles of `up` while clients work.
fn under_load(s3: &S3, round: usize, replace: impl FnOnce()) -> Vec<usize> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| load(s3, &over, round));
        std::thread::sleep(TURN);
        replace();
        over.store(true, Ordering::Relaxed);
        load.join().unwrap()
    })
}

fn replace_targets(cluster: &Cluster, running: &mut Vec<Role>) {
    for (id, pid) in (1..).zip(cluster.children("target")) {
        signal(pid, "-TERM");
        std::thread::sleep(Duration::from_millis(500));
        running.push(cluster.start_target(id));
        std::thread::sleep(TURN);
    }
}

fn replace_gateway(cluster: &Cluster, s3: &S3) -> Role {
    for pid in cluster.children("gateway") {
        signal(pid, "-TERM");
    }
    // Its port is free when it has ended.
    std::thread::sleep(Duration::from_secs(2));
    let role = Role::start(&["gateway", "--config", &cluster.config()]);
    let until = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(s3.host()).is_err() {
        assert!(Instant::now() < until, "the gateway does not answer");
        std::thread::sleep(Duration::from_millis(100));
    }
    role
}

/// Until nothing lacks copies, by what this binary says.
fn is_whole(cluster: &Cluster) {
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let status = cluster.status();
        if status["whole"] == true {
            return;
        }
        assert!(Instant::now() < until, "{status}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn upgrade(gateway_first: bool) {
    let before = std::env::var("RESERVOIR_BEFORE").expect("RESERVOIR_BEFORE names the earlier binary: make upgrade");
    let place = tempfile::tempdir().unwrap();
    let targets = TARGETS.to_string();
    let cluster = Cluster::start_with(&before, &place.path().join("data"), &["--targets", &targets, "--no-restart"]);
    let s3 = S3::of(&cluster);
    s3.put("bucket", "", b"").is(200);
    let (mut running, mut rounds) = (vec![], vec![]);
    if gateway_first {
        rounds.push(under_load(&s3, 0, || ()));
        running.push(replace_gateway(&cluster, &s3));
        rounds.push(under_load(&s3, 1, || replace_targets(&cluster, &mut running)));
    } else {
        rounds.push(under_load(&s3, 0, || replace_targets(&cluster, &mut running)));
        check(&s3, &rounds);
        running.push(replace_gateway(&cluster, &s3));
        rounds.push(under_load(&s3, 1, || ()));
    }
    assert!(rounds.iter().flatten().all(|count| *count > 0), "{rounds:?}");
    check(&s3, &rounds);
    is_whole(&cluster);
    println!("objects that each client put in each round: {rounds:?}");
}

#[test]
#[ignore = "needs an earlier binary: make upgrade"]
fn targets_are_replaced_and_then_the_gateway() {
    upgrade(false);
}

#[test]
#[ignore = "needs an earlier binary: make upgrade"]
fn the_gateway_is_replaced_and_then_the_targets() {
    upgrade(true);
}
