//! Requests that no good client makes: each gets the error that S3 has for it, and the next one is answered.

use std::io::Write;
use std::net::TcpStream;

use jiff::Timestamp;

use crate::client::S3;
use crate::common::{Cluster, content};

/// Sends a whole request as it is, and reads until the other end has no more to say.
fn raw(s3: &S3, sent: &[u8]) -> String {
    let head = format!("Connection: close\r\nHost: {}\r\n", s3.host());
    let text = String::from_utf8_lossy(sent);
    let (line, rest) = text.split_once("\r\n").unwrap();
    let host = if rest.contains("Host: other") { "Connection: close\r\n" } else { &head };
    s3.exchange(format!("{line}\r\n{host}{rest}").as_bytes(), false)
}

/// The signed path of an object.
fn signed(s3: &S3, method: &str, key: &str) -> String {
    let address = s3.address(method, "hard", key, &[], Timestamp::now());
    address.strip_prefix(&s3.endpoint).unwrap().to_owned()
}

#[test]
fn requests_that_are_not_as_they_should_be_get_their_errors() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3"]);
    let s3 = S3::of(&cluster);
    s3.put("hard", "", b"").is(200);
    lengths(&s3);
    paths(&s3);
    signatures(&s3);
    garbage(&s3);
    stalled(&s3);
    s3.put("hard", "after", b"all that").is(200);
    assert_eq!(s3.get("hard", "after").is(200).body, b"all that");
    let gateway = std::fs::read_dir(cluster.directory.join("logs")).unwrap().flatten();
    for log in gateway {
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert!(!text.contains("panicked") && !text.contains(&s3.secret), "{text}");
    }
    assert!(cluster.stop());
}

fn lengths(s3: &S3) {
    let put = |key: &str, headers: &str, body: &[u8]| {
        let head = format!("PUT {} HTTP/1.1\r\n{headers}\r\n", signed(s3, "PUT", key));
        raw(s3, &[head.as_bytes(), body].concat())
    };
    let cut = |headers: &str, body: &[u8]| {
        let head = format!("PUT {} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", signed(s3, "PUT", "never"), s3.host());
        s3.exchange(&[head.as_bytes(), body].concat(), true)
    };
    // Bytes after the body are another request, which is none.
    let answer = put("long", "Content-Length: 5\r\n", b"12345and more\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(s3.get("hard", "long").is(200).body, b"12345");
    for (headers, body) in [
        ("Content-Length: 5\r\nContent-Length: 6\r\n", &b"123456"[..]),
        ("Content-Length: -1\r\n", b""),
        ("Content-Length: many\r\n", b""),
        ("Transfer-Encoding: chunked\r\n", b"5\r\n123"),
        ("Transfer-Encoding: chunked\r\n", b"zz\r\n123\r\n0\r\n\r\n"),
        ("Content-Length: 10\r\n", b"short"),
    ] {
        let answer = cut(headers, body);
        assert!(!answer.contains(" 200 OK"), "{headers}: {answer}");
    }
    let answer = cut("Content-Length: 5368709121\r\n", b"");
    assert!(!answer.contains(" 200 OK"), "{answer}");
    s3.head("hard", "never").is(404);
    // In pieces, and whole.
    let answer = put("pieces", "Transfer-Encoding: chunked\r\n", b"5\r\n12345\r\n3\r\n678\r\n0\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(s3.get("hard", "pieces").is(200).body, b"12345678");
}

fn paths(s3: &S3) {
    let get = |path: &str| raw(s3, format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes());
    for (path, status) in [
        ("/hard/%ff%fe", "400"),
        ("/hard/%zz", "403"),
        ("/../../etc/passwd", "400"),
        ("/hard/../../etc/passwd", "403"),
        ("/..%2f..%2fetc/passwd", "400"),
        ("//hard/after", "400"),
        ("/HARD/k", "400"),
        ("/ha%00rd/k", "400"),
        ("/hard/%00", "400"),
        (&format!("/hard/{}", "k".repeat(1_025)), "400"),
        (&format!("/{}", "b".repeat(64)), "400"),
    ] {
        let answer = get(path);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    }
}

fn signatures(s3: &S3) {
    let path = signed(s3, "GET", "long");
    let get = |path: &str, headers: &str| raw(s3, format!("GET {path} HTTP/1.1\r\n{headers}\r\n").as_bytes());
    assert!(get(&path, "").starts_with("HTTP/1.1 200"));
    // Another method, host, key or date than was signed; twice; half of it; for longer than a week.
    assert!(raw(s3, format!("DELETE {path} HTTP/1.1\r\n\r\n").as_bytes()).contains(" 403 "));
    assert!(raw(s3, format!("GET {path} HTTP/1.1\r\nHost: other\r\n\r\n").as_bytes()).contains(" 403 "));
    assert!(get(&path.replace("/long", "/longer"), "").contains(" 403 "));
    assert!(!get(&path.replace("X-Amz-Expires=300", "X-Amz-Expires=9000"), "").contains(" 200 "));
    assert!(!get(&path.replace("X-Amz-Expires=300", "X-Amz-Expires=9000000"), "").contains(" 200 "));
    assert!(!get(&path.replace("X-Amz-Expires=300", "X-Amz-Expires=x"), "").contains(" 200 "));
    assert!(!get(&path.replace("X-Amz-Date=", "X-Amz-Dat="), "").contains(" 200 "));
    assert!(!get(path.split("&X-Amz-Signature").next().unwrap(), "").contains(" 200 "));
    for header in ["AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 Credential=x", "Basic eDp5", "AWS x:y", "\u{fc}"] {
        let answer = get("/hard/long", &format!("Authorization: {header}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 4"), "{header}: {answer}");
    }
    assert_eq!(s3.get("hard", "long").is(200).body, b"12345");
}

fn garbage(s3: &S3) {
    for sent in [
        &b"\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        &content(10_000, 3),
        format!("GET / HTTP/1.1\r\nHost: {}\r\nX: {}\r\n\r\n", s3.host(), "x".repeat(1 << 20)).as_bytes(),
    ] {
        let answer = s3.exchange(sent, true);
        assert!(!answer.contains(" 200 "), "{answer}");
    }
    let post = |query: &str, body: &[u8]| s3.ask("POST", ("hard", ""), &[(query, "")], &[], body);
    for xml in ["", "<", "<Delete>", "<Delete></Other>", "<Delete><Object></Object></Delete>", "\u{0}", "{}"] {
        let answer = post("delete", xml.as_bytes());
        assert!((400..500).contains(&answer.status), "{xml}: {} {}", answer.status, answer.text());
    }
    let bomb = "<!DOCTYPE d [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;\">]><Delete><Object><Key>&b;</Key></Object></Delete>";
    assert!((400..500).contains(&post("delete", bomb.as_bytes()).status));
    let keys = |count: usize| {
        let all: String = (0..count).map(|n| format!("<Object><Key>gone/{n}</Key></Object>")).collect();
        format!("<Delete><Quiet>true</Quiet>{all}</Delete>")
    };
    post("delete", keys(1_000).as_bytes()).is(200);
    post("delete", keys(1_001).as_bytes()).fails(400, "MalformedXML");
    let huge = "<Delete>".to_owned() + &" ".repeat(5 << 20) + "</Delete>";
    let answer =
        s3.send("POST", &s3.address("POST", "hard", "", &[("delete", "")], Timestamp::now()), &[], huge.as_bytes());
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status >= 400));
}

/// Clients that send half a request do not keep others waiting.
fn stalled(s3: &S3) {
    let path = signed(s3, "PUT", "stalled");
    let half = |text: &str| {
        let mut stream = TcpStream::connect(s3.host()).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    let heads: Vec<TcpStream> = (0..200).map(|_| half("GET / HTTP/1.1\r\nHo")).collect();
    let body = format!("PUT {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 100\r\n\r\nfive.", s3.host());
    let bodies: Vec<TcpStream> = (0..32).map(|_| half(&body)).collect();
    for n in 0..10 {
        s3.put("hard", &n.to_string(), &content(100_000, n)).is(200);
    }
    drop((heads, bodies));
    s3.head("hard", "stalled").is(404);
    uploads_that_stall(s3);
}

/// Uploads that stopped in the middle keep neither the threads nor the memory that others need.
fn uploads_that_stall(s3: &S3) {
    let (sent, whole) = (content(1_500_000, 1), content(5_000_000, 2));
    let stalled = (0..64).map(|n| {
        let path = signed(s3, "PUT", &format!("stalled-{n}"));
        let mut stream = TcpStream::connect(s3.host()).unwrap();
        write!(stream, "PUT {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 3000000\r\n\r\n", s3.host()).unwrap();
        stream.write_all(&sent).unwrap();
        stream
    });
    let stalled: Vec<TcpStream> = stalled.collect();
    s3.put("hard", "65th", &whole).is(200);
    assert!(s3.get("hard", "65th").is(200).body == whole);
    drop(stalled);
    s3.head("hard", "stalled-0").is(404);
}
