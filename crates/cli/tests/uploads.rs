//! Uploads that do not end well: what was there before stays, and nothing else appears.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use common::{Cluster, content, signal};

/// Bytes of a file that is announced; each upload sends fewer.
const WHOLE: usize = 3_000_000;

fn started(place: &tempfile::TempDir) -> Cluster {
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    Cluster::start(&data, &["--targets", "3"])
}

/// The head of a put, which may go on.
fn head(cluster: &Cluster, name: &str, framing: &str) -> String {
    let leave = cluster.leave();
    format!("PUT /v1/files/{name} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {leave}\r\n{framing}\r\n")
}

/// A connection to the gateway of `cluster` that puts the file `name`: the gateway has asked for its body.
fn begun(cluster: &Cluster, name: &str, framing: &str) -> TcpStream {
    let mut stream = TcpStream::connect(cluster.gateway()).unwrap();
    let head = head(cluster, name, framing);
    write!(stream, "{head}Expect: 100-continue\r\n\r\n").unwrap();
    let mut answer = vec![];
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&answer));
    stream
}

/// Sends the first bytes of a file, framed as one HTTP chunk when `chunked`.
fn send(stream: &mut TcpStream, bytes: &[u8], chunked: bool) {
    if chunked {
        write!(stream, "{:x}\r\n", bytes.len()).unwrap();
    }
    stream.write_all(bytes).unwrap();
    if chunked {
        stream.write_all(b"\r\n").unwrap();
    }
}

/// Waits until the gateway has ended `count` puts; how many of them succeeded.
fn ended(cluster: &Cluster, count: u64) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let page = ureq::get(format!("http://{}/metrics", cluster.gateway())).call().unwrap();
        let page = page.into_body().read_to_string().unwrap();
        let of = |name: &str| -> u64 {
            page.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
        };
        let good = of("reservoir_gateway_files_put_total ");
        let failed = of("reservoir_gateway_file_put_failures_total ");
        if good + failed >= count {
            return good;
        }
        assert!(Instant::now() < deadline, "{good} puts succeeded, {failed} failed, and {count} were begun");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_upload_that_breaks_off_never_becomes_a_version() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place);
    let (old, new) = (content(100_000, 1), content(WHOLE, 2));
    assert!(cluster.try_run(&["put", "-", "--name", "f"], &old).status.success());
    let mut begun_puts = 1;
    for round in 0..4 {
        let sent = &new[..300_000 + 700_001 * round];
        for chunked in [false, true] {
            let framing = match chunked {
                true => "Transfer-Encoding: chunked".to_owned(),
                false => format!("Content-Length: {WHOLE}"),
            };
            for reset in [false, true] {
                let mut stream = begun(&cluster, "f", &framing);
                if reset {
                    // Closing with a linger of nothing sends RST.
                    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
                }
                send(&mut stream, sent, chunked);
                drop(stream);
                begun_puts += 1;
            }
            // The sending half closed only: the gateway can say what is wrong.
            let mut stream = begun(&cluster, "f", &framing);
            send(&mut stream, sent, chunked);
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            assert!(!answer.contains("200 OK"), "{answer}");
            begun_puts += 1;
        }
        let mut client = cluster.spawn(&["put", "-", "--name", "f"]);
        client.stdin.as_mut().unwrap().write_all(sent).unwrap();
        client.stdin.as_mut().unwrap().flush().unwrap();
        signal(client.id(), "-KILL");
        client.wait().unwrap();
    }
    // Whether a killed client had begun its request by then is not known; the others had.
    assert_eq!(ended(&cluster, begun_puts), 1, "an upload that broke off was taken for a file");
    assert!(cluster.run(&["get", "f", "-o", "-"]) == old, "another version than the whole one");
    assert!(cluster.try_run(&["put", "-", "--name", "f"], &new).status.success());
    assert!(cluster.run(&["get", "f", "-o", "-"]) == new);
    assert!(cluster.stop());
}

/// The gateway gives up a request whose client is gone, also when all of the body has reached it.
#[test]
fn a_client_that_leaves_after_its_last_byte_leaves_all_or_nothing() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place);
    let mut begun_puts = 0;
    for round in 0..40 {
        let bytes = content(300_000 + 40_000 * (round % 10), 3);
        for (chunked, reset) in [(false, false), (false, true), (true, false), (true, true)] {
            let framing = match chunked {
                true => "Transfer-Encoding: chunked".to_owned(),
                false => format!("Content-Length: {}", bytes.len()),
            };
            let mut stream = begun(&cluster, &format!("f{begun_puts}-{}", bytes.len()), &framing);
            if reset {
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            }
            send(&mut stream, &bytes, chunked);
            if chunked {
                stream.write_all(b"0\r\n\r\n").unwrap();
            }
            drop(stream);
            begun_puts += 1;
        }
    }
    let good = ended(&cluster, begun_puts);
    let list: serde_json::Value = serde_json::from_slice(&cluster.run(&["ls", "--json"])).unwrap();
    let files = list["files"].as_array().unwrap();
    assert_eq!(files.len() as u64, good);
    for file in files {
        let size = file["name"].as_str().unwrap().rsplit('-').next().unwrap();
        assert_eq!(file["size"].to_string(), size, "a part was taken for the whole: {file}");
    }
    assert!(cluster.stop());
}

#[test]
fn idle_uploads_keep_neither_the_state_nor_the_end_of_a_gateway() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place);
    let framing = format!("Content-Length: {WHOLE}");
    let mut uploads: Vec<TcpStream> = (0..32).map(|n| begun(&cluster, &format!("f{n}"), &framing)).collect();
    uploads.iter_mut().for_each(|stream| send(stream, b"abc", false));
    let mut one_more = TcpStream::connect(cluster.gateway()).unwrap();
    let framing = "Content-Length: 3\r\nExpect: 100-continue\r\nConnection: close";
    write!(one_more, "{}\r\n", head(&cluster, "g", framing)).unwrap();
    let mut refused = String::new();
    one_more.read_to_string(&mut refused).unwrap();
    assert!(refused.contains("works on 32 files"), "{refused}");
    cluster.run(&["status"]);
    let (log, gateway) = (cluster.directory.with_extension("log"), cluster.directory.join("logs"));
    assert!(cluster.stop());
    let said = fs::read_to_string(log).unwrap();
    assert!(!said.contains("did not stop in time"), "{said}");
    let logs = fs::read_dir(gateway).unwrap().map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    assert!(logs.into_iter().any(|log| log.contains("they are broken off")), "it did not say what it broke off");
    drop(uploads);
}
