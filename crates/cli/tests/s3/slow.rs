//! Clients that are slow, or stand still: each is ended after a time, whether it asks, sends or is answered, and others are
//! served meanwhile.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::client::S3;
use crate::common::{Cluster, content};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Connections on which nothing is asked.
const IDLE: usize = 900;
/// Clients that take nothing of what they asked for: more than objects are worked on at once.
const DEAF: usize = 70;
/// Bytes of what they ask for: more than fits on the way to them.
const LARGE: usize = 24 << 20;

/// Sockets that the gateway has open.
fn sockets(gateway: u32) -> usize {
    let files = fs::read_dir(format!("/proc/{gateway}/fd")).unwrap().flatten();
    files
        .filter(|file| fs::read_link(file.path()).is_ok_and(|link| link.to_string_lossy().starts_with("socket:")))
        .count()
}

/// Tries until it succeeds.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not after {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn host(s3: &S3) -> &str {
    s3.endpoint.strip_prefix("http://").unwrap()
}

/// Connects and sends this.
fn begin(s3: &S3, sent: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(host(s3)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(sent).unwrap();
    stream
}

/// The head of a signed request.
fn head(s3: &S3, method: &str, key: &str, query: &[(&str, &str)], more: &str) -> String {
    let address = s3.address(method, "slow", key, query, Timestamp::now());
    let path = address.strip_prefix(&s3.endpoint).unwrap();
    format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n{more}\r\n", host(s3))
}

/// Sends `bytes` over and over, a few a second, until the other end has had enough; what it response.
fn trickle(mut stream: TcpStream, bytes: &[u8]) -> String {
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let (deadline, mut response) = (Instant::now() + LIMIT, vec![]);
    loop {
        assert!(Instant::now() < deadline, "the gateway still waits");
        let sent = stream.write_all(bytes);
        let mut part = [0; 4_096];
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(count) => response.extend(&part[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && sent.is_ok() => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&response).into_owned()
}

/// What was on its way to a client that asked and then took nothing.
fn rest(mut stream: TcpStream) -> usize {
    let (mut part, mut count) = (vec![0; 1 << 16], 0);
    while let Ok(more @ 1..) = stream.read(&mut part) {
        count += more;
    }
    count
}

#[test]
fn slow_clients_are_ended_and_others_are_served() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("data");
    assert!(Cluster::start(&directory, &["--targets", "3"]).stop());
    let settings = directory.join("gateway.toml");
    let text = fs::read_to_string(&settings).unwrap();
    fs::write(settings, text.replace("[s3]\n", "[s3]\npatience_seconds = 2\n")).unwrap();
    let cluster = Cluster::start(&directory, &[]);
    let s3 = S3::of(&cluster);
    s3.put("slow", "", b"").is(200);
    let large = content(LARGE, 1);
    s3.put("slow", "large", &large).is(200);
    let gateway = cluster.children("gateway")[0];
    // Its own connections are idle as well, and go.
    until("the gateway is at rest", || {
        let before = sockets(gateway);
        std::thread::sleep(Duration::from_secs(3));
        sockets(gateway) == before
    });
    let at_rest = sockets(gateway);
    let mut idle: Vec<TcpStream> = (0..IDLE).map(|_| begin(&s3, b"")).collect();
    // One that speaks HTTP/2 and asks nothing, and one that has been answered.
    idle.push(begin(&s3, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"));
    idle.push(begin(&s3, head(&s3, "HEAD", "large", &[], "").as_bytes()));
    let deaf: Vec<TcpStream> = (0..DEAF).map(|_| begin(&s3, head(&s3, "GET", "large", &[], "").as_bytes())).collect();
    let long = "Content-Length: 1000000\r\n";
    let slow_head = begin(&s3, b"GET / HTTP/1.1\r\n");
    let slow_body = begin(&s3, head(&s3, "PUT", "never", &[], long).as_bytes());
    let slow_xml = begin(&s3, head(&s3, "PUT", "", &[("tagging", "")], long).as_bytes());
    std::thread::scope(|scope| {
        scope.spawn(|| trickle(slow_head, b"X-A: b\r\n"));
        let bodies = [slow_body, slow_xml].map(|stream| scope.spawn(|| trickle(stream, b"ten bytes.")));
        for n in 0..20_u64 {
            let (key, body) = (n.to_string(), content(200_000, n));
            let ask = |method: &str, body: &[u8]| {
                let answer = s3.send(method, &s3.address(method, "slow", &key, &[], Timestamp::now()), &[], body);
                answer.ok().filter(|answer| answer.status == 200)
            };
            until("a put", || ask("PUT", &body).is_some());
            until("a get", || ask("GET", b"").is_some_and(|answer| answer.body == body));
        }
        for body in bodies {
            let response = body.join().unwrap();
            assert!(response.is_empty() || response.contains("<Code>RequestTimeout</Code>"), "{response}");
        }
    });
    until("all are ended", || sockets(gateway) <= at_rest);
    for stream in deaf {
        assert!(rest(stream) < LARGE, "the answer is whole: the gateway waited");
    }
    for mut stream in idle {
        let _ = stream.read_to_end(&mut vec![]).expect("the gateway has closed it");
    }
    s3.head("slow", "never").is(404);
    s3.list("slow", &[("tagging", "")]).fails(404, "NoSuchTagSet");
    assert!(s3.get("slow", "large").is(200).body == large);
    assert!(cluster.stop());
}
