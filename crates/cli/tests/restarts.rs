//! Targets that are restarted on purpose, one after the other, under load: no operation fails, and none waits for them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "common/client.rs"]
mod client;
mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use client::S3;
use common::{Cluster, content, signal};

/// How long it is measured without restarts, and how long a target has until the next is restarted.
const CALM: Duration = Duration::from_secs(6);
const TURN: Duration = Duration::from_secs(3);
const CLIENTS: usize = 3;
/// Each client begins an operation so often: a target that starts wants processors too, and clients that never pause leave it none.
const PACE: Duration = Duration::from_millis(25);

/// What each operation took, in ascending order; all must succeed.
fn load(s3: &S3, over: &AtomicBool, round: usize) -> Vec<Duration> {
    let work = |client: usize| {
        let (mut took, mut next) = (vec![], Instant::now());
        let mut operate = |operation: &dyn Fn()| {
            next = (next + PACE).max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let began = Instant::now();
            operation();
            took.push(began.elapsed());
        };
        for n in 0.. {
            if over.load(Ordering::Relaxed) {
                break;
            }
            let (key, bytes) =
                (format!("{round}-{client}-{n}"), content(100_000, (round * 1_000_000 + client * 10_000 + n) as u64));
            operate(&|| drop(s3.put("bucket", &key, &bytes).is(200)));
            operate(&|| assert!(s3.get("bucket", &key).is(200).body == bytes, "{key}"));
        }
        took
    };
    let mut all: Vec<Duration> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(move || work(client))).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    all.sort_unstable();
    all
}

fn p99(all: &[Duration]) -> Duration {
    all[all.len() * 99 / 100]
}

#[test]
fn nobody_waits_for_a_target_that_is_restarted() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3", "--no-restart"]);
    let s3 = S3::of(&cluster);
    s3.put("bucket", "", b"").is(200);
    let over = AtomicBool::new(false);
    let calm = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(CALM);
            over.store(true, Ordering::Relaxed);
        });
        load(&s3, &over, 0)
    });
    over.store(false, Ordering::Relaxed);
    let mut running = vec![];
    let restless = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&s3, &over, 1));
        for (id, pid) in (1..).zip(cluster.children("target")) {
            signal(pid, "-TERM");
            std::thread::sleep(Duration::from_millis(500));
            running.push(cluster.start_target(id));
            std::thread::sleep(TURN);
        }
        over.store(true, Ordering::Relaxed);
        load.join().unwrap()
    });
    let figures = [&calm, &restless].map(|all| (all.len(), p99(all), all[all.len() - 1]));
    println!("operations, p99 and longest without restarts, and with: {figures:?}");
    // A put that waited until its silence told that a target is down would take 3 s.
    assert!(restless[restless.len() - 1] < Duration::from_secs(2), "{figures:?}");
}
