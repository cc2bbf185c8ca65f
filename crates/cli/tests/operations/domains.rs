//! Servers of several targets each: one that is down takes nothing away that was acknowledged.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::client::{Answer, S3};
use crate::common::{Cluster, Role, content, reservoir, signal};
use serde_json::Value;

/// With how few copies something was stored.
const COPIES: &str = "x-reservoir-copies";

/// A counter of the gateway.
fn metric(cluster: &Cluster, name: &str) -> u64 {
    let (mut stream, mut page) = (TcpStream::connect(cluster.gateway()).unwrap(), String::new());
    write!(stream, "GET /metrics HTTP/1.0\r\nhost: {}\r\n\r\n", cluster.gateway()).unwrap();
    stream.read_to_string(&mut page).unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    line.unwrap_or_else(|| panic!("no {name}: {page}"))
}

/// The answer to the completion of an upload of these parts.
fn parts(s3: &S3, key: &str, parts: &[&[u8]]) -> Answer {
    let name = ("bucket", key);
    let upload = s3.ask("POST", name, &[("uploads", "")], &[], b"").is(200).element("UploadId");
    let mut listed = String::new();
    for (number, part) in (1..).zip(parts) {
        let asked = [("partNumber", number.to_string()), ("uploadId", upload.clone())];
        let asked: Vec<(&str, &str)> = asked.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let answer = s3.ask("PUT", name, &asked, &[], part).is(200);
        listed += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag></Part>", answer.header("etag"));
    }
    let body = format!("<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>");
    s3.ask("POST", name, &[("uploadId", &upload)], &[], body.as_bytes())
}

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

/// With a second server down nothing is put any more, and what is not known is said.
fn one_server_is_not_enough(cluster: &Cluster, s3: &S3, targets: &[u32], kept: &[u8]) {
    targets[3..6].iter().for_each(|pid| signal(*pid, "-KILL"));
    for name in ["f0", "newest"] {
        let (error, took) = failure(cluster, &["put", "-", name], b"newest");
        assert!(
            error.contains("copies are needed in 3 failure domains, or 2 while others are down, durable in")
                && error.contains("possible in 1")
                && error.contains("silent targets: target-1, target-2, target-3, target-4, target-5, target-6;"),
            "{error}"
        );
        assert!(took < Duration::from_secs(15), "{took:?}: {error}");
    }
    s3.put("bucket", "newest", b"newest").fails(503, "ServiceUnavailable");
    // What the catalog names is had from whoever has a copy, however few answer.
    assert!(cluster.run(&["get", "f2", "-o", "-"]) == *kept);
    assert!(s3.get("bucket", "new3").is(200).body.len() == 200_000);
    assert_eq!(cluster.keys("s3://files").len(), 12);
    // What nobody who answers has may be with the silent.
    assert!(!cluster.status()["out_of_reach"].as_array().unwrap().is_empty());
    let text = String::from_utf8(cluster.run(&["status"])).unwrap();
    assert!(text.contains("targets that are silent may hold all of some chunks"), "{text}");
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
    // Two servers are enough for a put, which says so. Only the first waits until it is known that no more are alive.
    let began = Instant::now();
    assert_eq!(s3.put("bucket", "f0", b"newer").is(200).header(COPIES), "2/3");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let mut slowest = Duration::ZERO;
    for n in 0..20 {
        let began = Instant::now();
        let put = s3.put("bucket", &format!("new{n}"), &content(200_000, 100 + n)).is(200);
        assert_eq!(put.header(COPIES), "2/3");
        slowest = slowest.max(began.elapsed());
    }
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    assert!(s3.get("bucket", "f0").is(200).body == *b"newer" && s3.get("bucket", "new3").is(200).body.len() == 200_000);
    let copied = s3.ask("PUT", ("bucket", "copy"), &[], &[("x-amz-copy-source", "/bucket/new1")], b"");
    assert_eq!(copied.is(200).header(COPIES), "2/3");
    assert_eq!(parts(&s3, "parts", &[&content(5 << 20, 7), b"end"]).is(200).header(COPIES), "2/3");
    let status = cluster.status();
    assert!(status["fewer_copies"]["puts"].as_u64() > Some(20) && status["min_copies"] == 2, "{status}");
    assert_eq!((&status["whole"], status["out_of_reach"].as_array().map(Vec::len)), (&Value::from(false), Some(0)));
    let text = String::from_utf8(cluster.run(&["status"])).unwrap();
    assert!(text.contains("puts were acknowledged with fewer copies than are wanted, but 2 at least"), "{text}");
    let counted = |name: &str| metric(&cluster, name);
    assert!(counted("reservoir_initiator_puts_with_fewer_copies_total") > 20);

    one_server_is_not_enough(&cluster, &s3, &targets, &files[2].1);
    // All that lacks is made when they are back.
    let _again: Vec<Role> = (1..=6).map(|id| cluster.start_target(id)).collect();
    let deadline = Instant::now() + Duration::from_secs(120);
    while cluster.status()["whole"] != true {
        assert!(Instant::now() < deadline, "{}", String::from_utf8_lossy(&cluster.run(&["status"])));
        std::thread::sleep(Duration::from_millis(200));
    }
    let began = Instant::now();
    assert!(s3.put("bucket", "last", b"last").is(200).header(COPIES).is_empty());
    assert!(began.elapsed() < Duration::from_secs(1));
}
