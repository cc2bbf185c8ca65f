//! Uploads that do not end well: what was there before stays, and nothing else appears.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::client::S3;
use crate::common::{Cluster, content, signal};
use jiff::Timestamp;

/// Bytes of an object that is announced; each upload sends fewer.
const WHOLE: usize = 3_000_000;

fn started(place: &tempfile::TempDir) -> Cluster {
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    Cluster::start(&data, &["--targets", "3"])
}

/// The head of a put, which may go on.
fn head(s3: &S3, key: &str, length: usize) -> String {
    let address = s3.address("PUT", "files", key, &[], Timestamp::now());
    let path = address.strip_prefix(&s3.endpoint).unwrap();
    format!("PUT {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {length}\r\n", s3.host())
}

/// A connection that puts an object: the gateway has asked for its body.
fn begun(s3: &S3, key: &str, length: usize) -> TcpStream {
    let mut stream = TcpStream::connect(s3.host()).unwrap();
    write!(stream, "{}Expect: 100-continue\r\n\r\n", head(s3, key, length)).unwrap();
    let mut answer = vec![];
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&answer));
    stream
}

/// Waits until the gateway works on nothing.
fn ended(cluster: &Cluster) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let page = ureq::get(format!("http://{}/metrics", cluster.gateway())).call().unwrap();
        let page = page.into_body().read_to_string().unwrap();
        let working = page.lines().find_map(|line| line.strip_prefix("reservoir_gateway_s3_working ")).unwrap();
        if working == "0" {
            return;
        }
        assert!(Instant::now() < deadline, "{working} requests are still in work");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_upload_that_breaks_off_never_becomes_a_version() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place);
    let s3 = S3::of(&cluster);
    let (old, new) = (content(100_000, 1), content(WHOLE, 2));
    assert!(cluster.try_run(&["put", "-", "f"], &old).status.success());
    for round in 0..4 {
        let sent = &new[..300_000 + 700_001 * round];
        for reset in [false, true] {
            let mut stream = begun(&s3, "f", WHOLE);
            if reset {
                // Closing with a linger of nothing sends RST.
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            }
            stream.write_all(sent).unwrap();
        }
        // The sending half closed only: the gateway can say what is wrong.
        let mut stream = begun(&s3, "f", WHOLE);
        stream.write_all(sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(!answer.contains("200 OK"), "{answer}");
    }
    // A client that is killed in the middle of a part, and between parts.
    for sent in [&new[..], &content(50 << 20, 3)] {
        let mut client = cluster.spawn(&["put", "-", "f"]);
        client.stdin.as_mut().unwrap().write_all(sent).unwrap();
        client.stdin.as_mut().unwrap().flush().unwrap();
        signal(client.id(), "-KILL");
        client.wait().unwrap();
    }
    ended(&cluster);
    assert!(cluster.run(&["get", "f", "-o", "-"]) == old, "another version than the whole one");
    assert!(cluster.try_run(&["put", "-", "f"], &new).status.success());
    assert!(cluster.run(&["get", "f", "-o", "-"]) == new);
    assert!(cluster.stop());
}

/// The gateway gives up a request whose client is gone, also when all of the body has reached it.
#[test]
fn a_client_that_leaves_after_its_last_byte_leaves_all_or_nothing() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place);
    let s3 = S3::of(&cluster);
    s3.put("files", "", b"").is(200);
    for round in 0..80 {
        let bytes = content(300_000 + 40_000 * (round % 10), 3);
        let mut stream = begun(&s3, &format!("f{round}-{}", bytes.len()), bytes.len());
        if round % 2 == 0 {
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        }
        stream.write_all(&bytes).unwrap();
    }
    ended(&cluster);
    let list: serde_json::Value = serde_json::from_slice(&cluster.run(&["ls", "--json"])).unwrap();
    for object in list.as_array().unwrap() {
        let size = object["key"].as_str().unwrap().rsplit('-').next().unwrap();
        assert_eq!(object["size"].to_string(), size, "a part was taken for the whole: {object}");
    }
    assert!(cluster.stop());
}

#[test]
fn idle_uploads_keep_neither_the_state_nor_the_end_of_a_gateway() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place);
    let s3 = S3::of(&cluster);
    s3.put("files", "", b"").is(200);
    let mut uploads: Vec<TcpStream> = (0..32).map(|n| begun(&s3, &format!("f{n}"), WHOLE)).collect();
    uploads.iter_mut().for_each(|stream| stream.write_all(b"abc").unwrap());
    cluster.run(&["status"]);
    let (log, gateway) = (cluster.directory.with_extension("log"), cluster.directory.join("logs"));
    assert!(cluster.stop());
    let printed = fs::read_to_string(log).unwrap();
    assert!(!printed.contains("did not stop in time"), "{printed}");
    let logs = fs::read_dir(gateway).unwrap().map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    assert!(logs.into_iter().any(|log| log.contains("they are broken off")), "it did not say what it broke off");
    drop(uploads);
}
