//! Users with keys of their own: none keeps the others from being served, and what each keeps is bounded.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should stop")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use jiff::Timestamp;

#[path = "common/client.rs"]
mod client;
mod common;

use client::S3;
use common::{Cluster, content};

/// More requests than are worked on at once.
const CROWD: usize = 200;
/// Far below what a request would wait for a turn.
const SOON: Duration = Duration::from_secs(3);
/// Buckets of a user.
const BUCKETS: usize = 1_000;

/// Two users, who do not know each other.
fn started(place: &tempfile::TempDir) -> (Cluster, S3, S3) {
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3"]);
    let s3 = S3::of(&cluster);
    cluster.run(&["user", "add", "mallory"]);
    let shown = cluster.run(&["user", "show", "mallory", "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
    let text = |name: &str| shown[name].as_str().unwrap_or_else(|| panic!("no {name}: {shown}")).to_owned();
    let mallory = S3::new(&s3.endpoint, &text("access_key"), &text("secret_key"));
    s3.put("bucket", "", b"").is(200);
    mallory.put("hers", "", b"").is(200);
    (cluster, s3, mallory)
}

/// Begins a request of a user, and does not end it.
fn begin(s3: &S3, method: &str, (bucket, key): (&str, &str), query: &[(&str, &str)], more: &str) -> TcpStream {
    let address = s3.address(method, bucket, key, query, Timestamp::now());
    let path = address.strip_prefix(&s3.endpoint).unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n{more}\r\nabc", s3.host());
    let mut stream = TcpStream::connect(s3.host()).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

/// How long a user's put, get and list take together.
fn ask(s3: &S3, n: usize) -> Duration {
    let (key, body, begin) = (format!("k{n}"), content(100_000, n as u64), Instant::now());
    s3.put("bucket", &key, &body).is(200);
    assert!(s3.get("bucket", &key).is(200).body == body);
    s3.list("bucket", &[("list-type", "2")]).is(200);
    let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    s3.ask("PUT", ("bucket", &key), &[("tagging", "")], &[], tags.as_bytes()).is(200);
    begin.elapsed()
}

#[test]
fn a_user_with_many_slow_requests_keeps_no_other_waiting() {
    let place = tempfile::tempdir().unwrap();
    let (cluster, s3, mallory) = started(&place);
    let large = content(64 << 20, 7);
    mallory.put("hers", "large", &large).is(200);
    let length = "Content-Length: 1000000\r\n";
    let tagging: &[(&str, &str)] = &[("tagging", "")];
    let nothing = &tagging[..0];
    let kinds = [
        ("uploads", "PUT", "slow", nothing, length),
        ("documents", "PUT", "large", tagging, length),
        ("readers", "GET", "large", nothing, ""),
    ];
    for (n, (kind, method, key, query, more)) in kinds.into_iter().enumerate() {
        let held: Vec<TcpStream> = (0..CROWD).map(|_| begin(&mallory, method, ("hers", key), query, more)).collect();
        std::thread::sleep(Duration::from_secs(1));
        let took = ask(&s3, n);
        assert!(took < SOON, "{kind}: {took:?}");
        drop(held);
    }
    copies(&s3, &mallory);
    assert!(cluster.stop());
}

/// Copies of much on the server need no client that goes on.
fn copies(s3: &S3, mallory: &S3) {
    let id = mallory.ask("POST", ("hers", "copy"), &[("uploads", "")], &[], b"").is(200).element("UploadId");
    let ask_for = |n: usize| {
        let (number, source) = ((n + 1).to_string(), [("x-amz-copy-source", "/hers/large")]);
        let query = [("partNumber", number.as_str()), ("uploadId", id.as_str())];
        let address = mallory.address_with("PUT", ("hers", "copy"), &query, &source, Timestamp::now());
        let path = address.strip_prefix(&mallory.endpoint).unwrap().to_owned();
        let mut stream = TcpStream::connect(mallory.host()).unwrap();
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: {}\r\nx-amz-copy-source: /hers/large\r\nContent-Length: 0\r\n\r\n",
            mallory.host()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let held: Vec<TcpStream> = (0..CROWD).map(ask_for).collect();
    std::thread::sleep(Duration::from_secs(1));
    let took = ask(s3, 9);
    assert!(took < SOON, "copies: {took:?}");
    // They end when their clients leave: it would be minutes.
    drop(held);
    let begin = Instant::now();
    let mut one = ask_for(CROWD);
    one.set_read_timeout(Some(5 * SOON)).unwrap();
    let mut response = [0; 12];
    match one.read_exact(&mut response) {
        Ok(()) => assert_eq!(&response, b"HTTP/1.1 200", "{}", String::from_utf8_lossy(&response)),
        Err(error) => assert!(error.kind() != ErrorKind::WouldBlock, "{:?}", begin.elapsed()),
    }
}

#[test]
fn what_a_user_keeps_is_bounded() {
    let place = tempfile::tempdir().unwrap();
    let (cluster, s3, mallory) = started(&place);
    let long = |length: usize| "x".repeat(length);
    mallory.ask("PUT", ("hers", "k"), &[], &[("cache-control", &long(8_000))], b"").is(200);
    mallory.ask("PUT", ("hers", "k"), &[], &[("cache-control", &long(8_200))], b"").fails(400, "MetadataTooLarge");
    let rules = |length: usize| {
        let origin = format!("https://{}", long(length));
        let rule =
            format!("<CORSRule><AllowedMethod>GET</AllowedMethod><AllowedOrigin>{origin}</AllowedOrigin></CORSRule>");
        let text = format!("<CORSConfiguration>{rule}</CORSConfiguration>");
        mallory.ask("PUT", ("hers", ""), &[("cors", "")], &[], text.as_bytes())
    };
    rules(250_000).is(200);
    rules(270_000).fails(400, "EntityTooLarge");
    std::thread::scope(|scope| {
        for hand in 0..8 {
            let mallory = mallory.clone();
            let numbers = (1..BUCKETS).filter(move |n| n % 8 == hand);
            scope.spawn(move || numbers.for_each(|n| drop(mallory.put(&format!("hers{n}"), "", b"").is(200))));
        }
    });
    mallory.put("one-more", "", b"").fails(400, "TooManyBuckets");
    assert_eq!(mallory.list("", &[]).is(200).elements("Name").len(), BUCKETS);
    s3.put("his", "", b"").is(200);
    assert_eq!(s3.list("", &[]).is(200).elements("Name"), ["bucket", "his"]);
    assert!(cluster.stop());
}
