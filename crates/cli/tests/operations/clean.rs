//! Cleaning, through the real binary, real sockets and real directories.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::client::S3;
use crate::common::{Cluster, content, signal, wait_until};
use serde_json::Value;

const MIB: usize = 1 << 20;
/// A sum over all targets; `None` while one of them does not say it.
fn sum(cluster: &Cluster, what: &str) -> Option<u64> {
    let status: Value = serde_json::from_slice(&cluster.run(&["status", "--json"])).unwrap();
    status["targets"].as_array().unwrap().iter().map(|target| target[what].as_u64()).sum()
}

/// Bytes that the targets' files take of the disk.
fn blocks(directory: &Path) -> u64 {
    let targets = std::fs::read_dir(directory.join("targets")).unwrap().flatten();
    let files = targets.flat_map(|target| std::fs::read_dir(target.path()).unwrap().flatten());
    // One that compaction has just removed counts nothing.
    files.filter_map(|file| file.metadata().ok()).map(|meta| meta.blocks() * 512).sum()
}

fn clean(cluster: &Cluster) -> Value {
    serde_json::from_slice(&cluster.run(&["clean", "--grace", "2", "--json"])).unwrap()
}

#[test]
fn what_was_deleted_goes_and_what_is_shared_stays() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3"]);
    let s3 = S3::of(&cluster);
    s3.put("bucket", "", b"").is(200);
    let (shared, file) = (content(3 * MIB + 5, 1), content(2 * MIB, 2));
    for key in ["one", "two"] {
        s3.put("bucket", key, &shared).is(200);
    }
    cluster.try_run(&["put", "-", "file"], &file);
    for n in 0..5 {
        s3.put("bucket", &format!("gone-{n}"), &content(32 * MIB, 10 + n)).is(200);
    }
    let (live, disk) = (sum(&cluster, "live").unwrap(), blocks(&cluster.directory));
    assert!(live > 3 * (165 << 20));
    assert_eq!(clean(&cluster)["copies"], 0, "something was dropped that is referred to");
    s3.ask("DELETE", ("bucket", "one"), &[], &[], b"").is(204);
    (0..5).for_each(|n| drop(s3.ask("DELETE", ("bucket", &format!("gone-{n}")), &[], &[], b"").is(204)));
    let dry: Value = serde_json::from_slice(&cluster.run(&["clean", "--dry-run", "--json"])).unwrap();
    assert!(dry["unreferenced"].as_u64() >= Some(5 * 32) && dry["copies"] == 0, "{dry}");

    // A target is killed in the middle; `up` starts it again, and the next cleaning goes on.
    let mut broken = cluster.spawn(&["clean", "--grace", "2"]);
    std::thread::sleep(Duration::from_millis(2_100));
    signal(cluster.children("target")[0], "-KILL");
    let _ = broken.wait();
    wait_until("the target", || sum(&cluster, "live").is_some());
    let mut copies = 0;
    wait_until("a finished cleaning", || {
        let output = cluster.try_run(&["clean", "--grace", "2", "--json"], b"");
        copies += serde_json::from_slice::<Value>(&output.stdout).map_or(0, |done| done["copies"].as_u64().unwrap());
        output.status.success() && sum(&cluster, "live").unwrap() < 3 * (7 << 20)
    });
    assert!(sum(&cluster, "live").unwrap() > 3 * (5 << 20), "{copies} copies: more than nothing refers to went");
    wait_until("compaction", || sum(&cluster, "reclaimed").unwrap() > 3 * (100 << 20));
    wait_until("disk space", || blocks(&cluster.directory) < disk - (3 * (100 << 20)));

    assert!(s3.get("bucket", "two").is(200).body == shared);
    assert!(cluster.run(&["get", "file", "--output", "-"]) == file);
    s3.get("bucket", "gone-1").is(404);
    cluster.run(&["catalog", "check"]);
    // What was dropped can be put again, and a copy of it is an object of its own.
    let again = content(32 * MIB, 10);
    s3.put("bucket", "gone-0", &again).is(200);
    s3.ask("PUT", ("bucket", "copy"), &[], &[("x-amz-copy-source", "bucket/gone-0")], b"").is(200);
    s3.ask("DELETE", ("bucket", "gone-0"), &[], &[], b"").is(204);
    clean(&cluster);
    clean(&cluster);
    assert!(s3.get("bucket", "copy").is(200).body == again);
    cluster.run(&["catalog", "check"]);
    let text = String::from_utf8(cluster.run(&["status"])).unwrap();
    assert!(text.contains("live") && text.contains("dead") && text.contains("reclaimed"), "{text}");
    assert!(cluster.stop());
}

#[test]
fn a_gateway_cleans_by_itself_and_not_while_a_target_is_silent() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    assert!(Cluster::start(&data, &["--targets", "4"]).stop());
    let gateway = data.join("gateway.toml");
    let text = std::fs::read_to_string(&gateway).unwrap();
    std::fs::write(&gateway, text + "\n[clean]\ngrace_seconds = 4\npause_seconds = 1\n").unwrap();
    let cluster = Cluster::start(&data, &["--no-restart"]);
    let s3 = S3::of(&cluster);
    let status = || serde_json::from_slice::<Value>(&cluster.run(&["status", "--json"])).unwrap()["cleaning"].clone();
    s3.put("bucket", "", b"").is(200);
    s3.put("bucket", "k", &content(2 * MIB, 1)).is(200);
    s3.ask("DELETE", ("bucket", "k"), &[], &[], b"").is(204);
    // Two chunks and the manifest of "k", three copies each, and then what says that it was deleted.
    wait_until("a clean cluster", || status()["copies"].as_u64() >= Some(4 * 3));
    signal(cluster.children("target")[3], "-KILL");
    wait_until("a word about it", || status()["problem"].as_str().is_some_and(|why| why.contains("silent")));
    let before = status()["copies"].clone();
    s3.put("bucket", "k", &content(MIB, 2)).is(200);
    s3.ask("DELETE", ("bucket", "k"), &[], &[], b"").is(204);
    let passes = status()["passes"].as_u64().unwrap();
    wait_until("three more passes", || status()["passes"].as_u64() >= Some(passes + 3));
    assert_eq!(status()["copies"], before);
}
