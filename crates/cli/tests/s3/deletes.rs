//! Many keys are deleted by few requests: all of them go, nothing else does, and the gateway keeps nothing of it.
//!
//! `RESERVOIR_KEYS` takes another number of keys.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::client::S3;
use crate::common::Cluster;

/// Keys, unless the environment says otherwise.
const KEYS: usize = 10_000;
/// Keys of one request, as many as S3 has.
const AT_ONCE: usize = 1_000;
/// Clients at once.
const CLIENTS: usize = 16;
/// What the gateway may keep in memory of a delete, whatever its size, KiB.
const KEPT: u64 = 96 << 10;

fn key(n: usize) -> String {
    format!("directory-{:04}/object-{n:08}", n % 100)
}

/// Does `work` with every number below `count`, several at once.
fn each(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while let Some(n) = Some(next.fetch_add(1, Ordering::SeqCst)).filter(|n| *n < count) {
                    work(n);
                }
            });
        }
    });
}

/// Deletes keys by requests; how many were reported deleted.
fn delete(s3: &S3, bucket: &str, keys: usize) -> usize {
    let gone = AtomicUsize::new(0);
    each(keys.div_ceil(AT_ONCE), |page| {
        let numbers = page * AT_ONCE..keys.min((page + 1) * AT_ONCE);
        let names: String = numbers.map(|n| format!("<Object><Key>{}</Key></Object>", key(n))).collect();
        let xml = format!("<Delete>{names}</Delete>");
        let answer = s3.ask("POST", (bucket, ""), &[("delete", "")], &[], xml.as_bytes()).is(200);
        assert_eq!(answer.elements("Code"), [""; 0], "{}", answer.text());
        gone.fetch_add(answer.elements("Key").len(), Ordering::SeqCst);
    });
    gone.into_inner()
}

/// Keys that a list shows, page by page.
fn listed(s3: &S3, bucket: &str) -> usize {
    let (mut count, mut token) = (0, String::new());
    loop {
        let mut query = vec![("list-type", "2")];
        if !token.is_empty() {
            query.push(("continuation-token", &token));
        }
        let page = s3.list(bucket, &query).is(200);
        count += page.elements("Key").len();
        token = page.element("NextContinuationToken");
        if token.is_empty() {
            return count;
        }
    }
}

/// Memory that a process has resident, KiB.
fn resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn many_keys_are_deleted_at_once() {
    let keys = std::env::var("RESERVOIR_KEYS").map_or(KEYS, |text| text.parse().expect("a number of keys"));
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3"]);
    let s3 = S3::of(&cluster);
    let gateway = cluster.children("gateway")[0];
    s3.put("many", "", b"").is(200);
    s3.put("many", "stays", b"x").is(200);
    let begin = Instant::now();
    each(keys, |n| {
        s3.put("many", &key(n), n.to_string().as_bytes()).is(200);
    });
    println!("{keys} keys were put in {:?}", begin.elapsed());
    assert_eq!(listed(&s3, "many"), keys + 1);
    let (before, begin) = (resident(gateway), Instant::now());
    assert_eq!(delete(&s3, "many", keys), keys);
    let (took, after) = (begin.elapsed(), resident(gateway));
    let begin = Instant::now();
    assert_eq!(listed(&s3, "many"), 1);
    println!("deleted in {took:?}, listed in {:?}; {before} KiB before, {after} after", begin.elapsed());
    assert!(after < before + KEPT, "{before} KiB before, {after} after");
    let versions = s3.list("many", &[("versions", "")]).is(200);
    assert_eq!(versions.elements("Key"), ["stays"], "nothing is left of what had no versions");
    // Again, and of a bucket that keeps versions.
    assert_eq!(delete(&s3, "many", AT_ONCE), AT_ONCE);
    s3.put("kept", "", b"").is(200);
    let xml = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    s3.ask("PUT", ("kept", ""), &[("versioning", "")], &[], xml).is(200);
    each(AT_ONCE, |n| {
        s3.put("kept", &key(n), b"x").is(200);
    });
    assert_eq!(delete(&s3, "kept", AT_ONCE), AT_ONCE);
    assert_eq!(listed(&s3, "kept"), 0);
    let versions = s3.list("kept", &[("versions", ""), ("max-keys", "1000")]).is(200);
    assert_eq!(versions.text().matches("<DeleteMarker>").count(), AT_ONCE / 2);
    assert_eq!(s3.get("many", "stays").is(200).body, b"x");
    cluster.run(&["catalog", "check"]);
    assert!(cluster.stop());
}
