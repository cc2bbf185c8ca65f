//! Strangers: whoever has no key keeps nobody who has one from being served, however many connections he holds and whatever
//! he leaves undone on them, from the same address, as behind a proxy, and from others.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use ring::hmac;
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[path = "common/client.rs"]
mod client;
mod common;

use client::S3;
use common::{Cluster, content};

/// Connections of strangers.
const CROWD: usize = 1_000;
/// Most strangers at once, when they had their chance.
const MOST: usize = 512;
/// Most strangers at once, those included that came just now.
const MOST_NEW: f64 = 1_536.0;
/// Requests of strangers that are refused on one connection.
const REFUSED: usize = 100;
/// Longer than a stranger may do nothing.
const LATE: Duration = Duration::from_secs(40);
/// More than requests work on bytes at once.
const ENOUGH: usize = 140;
/// How many of them a user may have at once.
const SHARE: f64 = 96.0;
/// Far below what a request would wait for its turn.
const SOON: Duration = Duration::from_secs(10);
/// What of a body strangers send.
const THREE: &str = "abc";

fn started(place: &tempfile::TempDir, settings: &str) -> (Cluster, S3) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let directory = place.path().join("data");
    let mut cluster = Cluster::start(&directory, &["--targets", "3"]);
    if !settings.is_empty() {
        assert!(cluster.stop());
        let file = directory.join("gateway.toml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(file, text.replace("[s3]\n", &format!("[s3]\n{settings}"))).unwrap();
        cluster = Cluster::start(&directory, &[]);
    }
    let s3 = S3::of(&cluster);
    if settings.is_empty() {
        s3.put("bucket", "", b"").is(200);
    }
    (cluster, s3)
}

fn host(s3: &S3) -> &str {
    s3.endpoint.split_once("://").unwrap().1
}

/// The address of an object, signed; without the endpoint.
fn signed(s3: &S3, method: &str, key: &str) -> String {
    s3.address(method, "bucket", key, &[], Timestamp::now()).strip_prefix(&s3.endpoint).unwrap().to_owned()
}

/// A head and three bytes of its body.
fn begun(s3: &S3, line: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("{line} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n{body}", host(s3)).into_bytes()
}

/// What strangers leave undone: a kind for each number.
fn undone(s3: &S3, n: usize) -> Vec<u8> {
    let long = "Content-Length: 1000000\r\n";
    let wrong = signed(s3, "PUT", "never").replace("X-Amz-Signature=", "X-Amz-Signature=0");
    let wrong_get = signed(s3, "GET", "k0").replace("X-Amz-Signature=", "X-Amz-Signature=0");
    let form = format!("Content-Type: multipart/form-data; boundary=b\r\n{long}");
    let field = "--b\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nk";
    match n % 12 {
        0 => vec![],
        1 => b"GET / HTTP/1.1\r\nHo".to_vec(),
        2 => begun(s3, "PUT /bucket/never", long, THREE),
        3 => begun(s3, &format!("PUT {wrong}"), long, THREE),
        4 => begun(s3, "PUT /bucket/never", &format!("{long}Expect: 100-continue\r\n"), ""),
        5 => begun(s3, "PUT /bucket/never", "Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n"),
        6 => begun(s3, "POST /bucket", &form, field),
        7 => begun(s3, "POST /bucket?delete", long, "<De"),
        8 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
        9 => begun(s3, "GET /bucket/k0", "", "").repeat(20),
        10 => begun(s3, &format!("GET {wrong_get}"), "Content-Length: 10\r\n", THREE),
        _ => begun(s3, "PUT /bucket/never?partNumber=1&uploadId=x", long, THREE),
    }
}

/// One byte more, of those that go on little by little.
fn drip(n: usize) -> &'static [u8] {
    match n % 12 {
        1 => b"s",
        2 | 3 | 6 | 7 | 10 | 11 => b"x",
        5 => b"1\r\nx\r\n",
        _ => b"",
    }
}

/// Connections of strangers. One that is sent away comes again, some times a second.
struct Crowd {
    held: Vec<(TcpStream, usize)>,
    come: usize,
    /// Whether each has an address of some that are not the clients'.
    elsewhere: bool,
}

/// What goes on until this is dropped, whatever fails before.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A connection from an address of this machine.
fn connected(server: &str, from: Ipv4Addr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrV4::new(from, 0)).unwrap();
    rustix::net::connect(&socket, &server.parse::<SocketAddr>().unwrap()).unwrap();
    socket.into()
}

impl Crowd {
    fn come(s3: &S3, n: usize) -> TcpStream {
        Self::come_from(s3, n, Ipv4Addr::LOCALHOST)
    }

    fn come_from(s3: &S3, n: usize, address: Ipv4Addr) -> TcpStream {
        let mut stream = connected(host(s3), address);
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write(&undone(s3, n));
        stream
    }

    fn new(s3: &S3, count: usize, elsewhere: bool) -> Self {
        let mut crowd = Self { held: vec![], come: count, elsewhere };
        crowd.held = (0..count).map(|n| (crowd.another(s3, n), n)).collect();
        crowd
    }

    fn another(&self, s3: &S3, n: usize) -> TcpStream {
        let address = if self.elsewhere { Ipv4Addr::new(127, 0, 0, 2 + (n % 20) as u8) } else { Ipv4Addr::LOCALHOST };
        Self::come_from(s3, n, address)
    }

    /// All of them are answered, sent away or ended, also when they do nothing.
    fn all_end(self) {
        let begin = Instant::now();
        for (mut stream, n) in self.held {
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(LATE)).unwrap();
            let mut response = vec![];
            if let Err(error) = stream.read_to_end(&mut response) {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "kind {}: {error}", n % 12);
            }
            let response = String::from_utf8_lossy(&response);
            assert!(
                n % 12 == 8 || response.is_empty() || response.starts_with("HTTP/1.1 4"),
                "kind {}: {response}",
                n % 12
            );
        }
        assert!(begin.elapsed() < LATE, "{:?}", begin.elapsed());
    }

    /// Goes on until `stop`.
    fn go_on(mut self, s3: &S3, stop: &AtomicBool) -> Self {
        let mut response = vec![0; 1 << 16];
        while !stop.load(Ordering::SeqCst) {
            for at in 0..self.held.len() {
                let (stream, n) = &mut self.held[at];
                let gone = match stream.read(&mut response) {
                    Ok(count) => count == 0,
                    Err(error) => error.kind() != ErrorKind::WouldBlock,
                };
                let n = *n;
                if gone {
                    self.held[at].0 = self.another(s3, n);
                    self.come += 1;
                } else {
                    let _ = stream.write(drip(n));
                }
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        self
    }
}

fn metrics(cluster: &Cluster) -> BTreeMap<String, f64> {
    let page = ureq::get(format!("http://{}/metrics", cluster.gateway())).call().unwrap();
    let page = page.into_body().read_to_string().unwrap();
    let series = page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    series.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

fn working(cluster: &Cluster) -> f64 {
    metrics(cluster)["reservoir_gateway_s3_working"]
}

fn refused(cluster: &Cluster, why: &str) -> f64 {
    metrics(cluster)[&format!("reservoir_gateway_s3_refused_total{{reason=\"{why}\"}}")]
}

/// What a form needs that is signed for the key `key`, and a part of its file.
fn form(s3: &S3, key: &str, file: &[u8]) -> Vec<u8> {
    let now = Timestamp::now().to_string();
    let digits: String = now.chars().filter(char::is_ascii_digit).take(14).collect();
    let (day, at) = (&digits[..8], format!("{}T{}Z", &digits[..8], &digits[8..]));
    let credential = format!("{}/{day}/us-east-1/s3/aws4_request", s3.key);
    let policy = format!(
        "{{\"expiration\":\"2099-01-01T00:00:00Z\",\"conditions\":[{{\"bucket\":\"bucket\"}},{{\"key\":\"{key}\"}},\
         {{\"x-amz-algorithm\":\"AWS4-HMAC-SHA256\"}},{{\"x-amz-credential\":\"{credential}\"}},{{\"x-amz-date\":\"{at}\"}}]}}"
    );
    let policy = base64_simd::STANDARD.encode_to_string(policy);
    let sign =
        |key: &[u8], text: &str| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec();
    let secret = format!("AWS4{}", s3.secret).into_bytes();
    let secret = [day, "us-east-1", "s3", "aws4_request"].iter().fold(secret, |key, part| sign(&key, part));
    let signature = hex_simd::encode_to_string(sign(&secret, &policy), hex_simd::AsciiCase::Lower);
    let fields = [
        ("key", key),
        ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
        ("x-amz-credential", credential.as_str()),
        ("x-amz-date", at.as_str()),
        ("policy", policy.as_str()),
        ("x-amz-signature", signature.as_str()),
    ];
    let field = |(name, value)| format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    let fields: String = fields.into_iter().map(field).collect();
    let begin = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n";
    [fields.as_bytes(), begin.as_bytes(), file].concat()
}

/// Puts and gets on a connection of its own; how long both took. Nobody else puts under this number.
fn ask(s3: &S3, n: u64) -> Duration {
    // Another agent has no connection yet.
    let s3 = S3::new(&s3.endpoint, &s3.key, &s3.secret);
    let (key, body, begin) = (format!("k{n}"), content(100_000, n), Instant::now());
    s3.put("bucket", &key, &body).is(200);
    assert!(s3.get("bucket", &key).is(200).body == body);
    begin.elapsed()
}

#[test]
fn a_stranger_takes_no_turn() {
    let place = tempfile::tempdir().unwrap();
    let (cluster, s3) = started(&place, "");
    // Each kind by itself, more often than there are turns.
    for kind in 0..12 {
        let crowd: Vec<TcpStream> = (0..ENOUGH).map(|n| Crowd::come(&s3, kind + 12 * n)).collect();
        let took = ask(&s3, kind as u64);
        assert!(took < SOON, "kind {kind}: {took:?}");
        assert_eq!(working(&cluster), 0.0, "kind {kind}");
        drop(crowd);
    }
    forms(&s3);
    assert!(refused(&cluster, "unauthorized") > 100.0, "{:?}", metrics(&cluster));
    s3.head("bucket", "never").is(404);
    stalled(&cluster, &s3);
    assert!(cluster.stop());
}

/// Forms that do not go on do not keep one that is signed waiting.
fn forms(s3: &S3) {
    let head = |length: usize| {
        let kind = "Content-Type: multipart/form-data; boundary=b";
        begun(s3, "POST /bucket", &format!("{kind}\r\nContent-Length: {length}\r\nConnection: close\r\n"), "")
    };
    let file = [&content(70_000, 3)[..], b"\r\n--b--\r\n"].concat();
    let whole = form(s3, "form", &file);
    let post = |sent: &[u8]| {
        let mut stream = TcpStream::connect(host(s3)).unwrap();
        stream.write_all(sent).unwrap();
        stream
    };
    let answer = |mut stream: TcpStream| {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let held: Vec<TcpStream> = (0..ENOUGH).map(|_| Crowd::come(s3, 6)).collect();
    let begin = Instant::now();
    let response = answer(post(&[head(whole.len()), whole.clone()].concat()));
    assert!(response.starts_with("HTTP/1.1 204"), "{response}");
    // Signed ones that do not go on have turns, and lose them while others wait.
    let halves: Vec<TcpStream> =
        (0..20).map(|_| post(&[head(whole.len()), whole[..whole.len() - 100].to_vec()].concat())).collect();
    let response = answer(post(&[head(whole.len()), whole.clone()].concat()));
    assert!(response.starts_with("HTTP/1.1 204") && begin.elapsed() < 2 * SOON, "{:?} {response}", begin.elapsed());
    assert!(s3.get("bucket", "form").is(200).body == content(70_000, 3));
    drop((held, halves));
    // Nothing of the file is looked at when the fields do not allow it.
    let wrong = String::from_utf8_lossy(&whole).replacen("x-amz-signature\"\r\n\r\n", "x-amz-signature\"\r\n\r\n0", 1);
    let response = answer(post(&[head(wrong.len()), wrong.into_bytes()].concat()));
    assert!(response.contains("<Code>SignatureDoesNotMatch</Code>"), "{response}");
}

/// Uploads of somebody with a key that stand still, or trickle, have turns, and lose them while others wait.
fn stalled(cluster: &Cluster, s3: &S3) {
    let stop = AtomicBool::new(false);
    let slow = begun(s3, &format!("PUT {}", signed(s3, "PUT", "slow")), "Content-Length: 20\r\n", "");
    let mut slow = {
        let mut stream = TcpStream::connect(host(s3)).unwrap();
        stream.write_all(&slow).unwrap();
        stream
    };
    // Slowly, while nobody waits.
    for _ in 0..10 {
        slow.write_all(b"..").unwrap();
        std::thread::sleep(Duration::from_millis(700));
    }
    let mut response = [0; 12];
    slow.read_exact(&mut response).unwrap();
    assert_eq!(&response, b"HTTP/1.1 200", "{}", String::from_utf8_lossy(&response));
    let held = (0..ENOUGH).map(|n| {
        let head = begun(s3, &format!("PUT {}", signed(s3, "PUT", "stalled")), "Content-Length: 1000000\r\n", THREE);
        let mut stream = TcpStream::connect(host(s3)).unwrap();
        stream.write_all(&head).unwrap();
        stream.set_nonblocking(true).unwrap();
        // Half of them go on, a byte at a time.
        (stream, n % 2 * 2)
    });
    let crowd = Crowd { held: held.collect(), come: 0, elsewhere: false };
    let deadline = Instant::now() + SOON;
    while working(cluster) < SHARE {
        assert!(Instant::now() < deadline, "they do not have their turns");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| crowd.go_on(s3, &stop));
        let took = ask(s3, 7);
        assert!(took < SOON, "{took:?}");
    });
    s3.head("bucket", "stalled").is(404);
}

#[test]
fn a_thousand_strangers_keep_nobody_with_a_key_waiting() {
    let place = tempfile::tempdir().unwrap();
    let (cluster, s3) = started(&place, "");
    for elsewhere in [false, true] {
        let (stop, crowd) = (AtomicBool::new(false), Crowd::new(&s3, CROWD, elsewhere));
        let crowd = std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            let crowd = scope.spawn(|| crowd.go_on(&s3, &stop));
            let clients: Vec<_> = (0..4)
                .map(|n| {
                    let s3 = &s3;
                    scope.spawn(move || (0..50).map(|_| ask(s3, n)).max().unwrap())
                })
                .collect();
            for client in clients {
                let longest = client.join().unwrap();
                assert!(longest < SOON, "{longest:?}");
            }
            let strangers = metrics(&cluster)["reservoir_gateway_s3_strangers"];
            assert!(strangers <= MOST_NEW, "{strangers} strangers");
            stop.store(true, Ordering::SeqCst);
            crowd.join().unwrap()
        });
        assert!(crowd.come >= CROWD);
        assert_eq!((working(&cluster), refused(&cluster, "busy")), (0.0, 0.0));
        crowd.all_end();
    }
    // How much slower it is: `reservoir bench --strangers 1000`.
    assert!(cluster.stop());
}

/// Asks on a connection and waits for the answer, an error of S3.
fn is_refused(stream: &mut TcpStream, request: &[u8]) -> String {
    stream.write_all(request).unwrap();
    let (mut response, mut more) = (vec![], [0; 4_096]);
    loop {
        let count = stream.read(&mut more).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&response));
        response.extend(&more[..count]);
        let text = String::from_utf8_lossy(&response);
        if text.contains("</Error>") && (!text.contains("chunked") || text.ends_with("0\r\n\r\n")) {
            return text.into_owned();
        }
    }
}

#[test]
fn a_connection_ends_after_many_refusals_unless_somebody_with_a_key_has_signed_on_it() {
    let place = tempfile::tempdir().unwrap();
    let (cluster, s3) = started(&place, "");
    s3.put("bucket", "k", b"").is(200);
    let get = |path: &str| begun(&s3, &format!("GET {path}"), "", "");
    let wrong = get(&signed(&s3, "GET", "k").replace("X-Amz-Signature=", "X-Amz-Signature=0"));
    // Neither a wrong signature nor none, nor a bucket that does not exist.
    for request in [&wrong, &get("/bucket/k"), &get("/nothing/k")] {
        let mut stream = TcpStream::connect(host(&s3)).unwrap();
        for n in 1..=REFUSED {
            let response = is_refused(&mut stream, request);
            assert!(response.starts_with("HTTP/1.1 4"), "{response}");
            assert_eq!(response.to_ascii_lowercase().contains("connection: close"), n == REFUSED, "{n}: {response}");
        }
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    let mut stream = TcpStream::connect(host(&s3)).unwrap();
    let mut head = [0; 12];
    stream.write_all(&get(&signed(&s3, "GET", "k"))).unwrap();
    stream.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    for _ in 0..2 * REFUSED {
        let response = is_refused(&mut stream, &wrong);
        assert!(!response.to_ascii_lowercase().contains("connection: close"), "{response}");
    }
    // A signature for another service is refused before its body is asked for.
    let other = format!(
        "Authorization: AWS4-HMAC-SHA256 Credential={}/20260101/us-east-1/sts/aws4_request, SignedHeaders=host, Signature=0\r\n\
         Content-Length: 5000\r\n",
        s3.key
    );
    let begin = Instant::now();
    let response = is_refused(&mut TcpStream::connect(host(&s3)).unwrap(), &begun(&s3, "POST /", &other, ""));
    assert!(response.contains("AuthorizationHeaderMalformed") && begin.elapsed() < SOON, "{response}");
    assert!(cluster.stop());
}

#[test]
fn strangers_write_nothing_into_the_log() {
    let place = tempfile::tempdir().unwrap();
    let (cluster, s3) = started(&place, "");
    // HTTP/2: streams that are reset as soon as they begin.
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for stream in (1_u32..400).step_by(2) {
        sent.extend(b"\0\0\x06\x01\x05");
        sent.extend(stream.to_be_bytes());
        sent.extend(b"\x82\x86\x84\x41\x01x\0\0\x04\x03\0");
        sent.extend(stream.to_be_bytes());
        sent.extend(b"\0\0\0\x08");
    }
    let mut held: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(host(&s3)).unwrap()).collect();
    for stream in &mut held {
        let _ = stream.write_all(&sent);
    }
    for mut stream in held {
        stream.set_read_timeout(Some(LATE)).unwrap();
        // It is ended, with a reset or without.
        let _ = stream.read_to_end(&mut vec![]);
    }
    ask(&s3, 0);
    let log = fs::read_to_string(cluster.directory.join("logs/gateway.log")).unwrap();
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    assert!(cluster.stop());
}

#[test]
fn the_plain_ports_end_connections_that_ask_for_nothing() {
    let place = tempfile::tempdir().unwrap();
    let (cluster, _s3) = started(&place, "");
    let map = fs::read_to_string(cluster.directory.join("cluster.toml")).unwrap();
    let target = map.lines().find_map(|line| line.strip_prefix("metrics = ")).unwrap().trim_matches('"').to_owned();
    for address in [cluster.gateway(), target.clone()] {
        // HTTP/2: asks for metrics, and has no room for a byte of them (SETTINGS_INITIAL_WINDOW_SIZE is 0).
        let (authority, mut takes_nothing) = (address.as_bytes(), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec());
        takes_nothing.extend(b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0");
        let head = [b"\x82\x86\x04\x08/metrics\x41", &[authority.len() as u8][..], authority].concat();
        takes_nothing.extend([0, 0, head.len() as u8, 1, 5, 0, 0, 0, 1]);
        takes_nothing.extend(&head);
        let come = |n: usize| {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.set_read_timeout(Some(LATE)).unwrap();
            stream.write_all([&b""[..], b"GET /metrics HTTP/1.1\r\nHo", &takes_nothing][n % 3]).unwrap();
            stream
        };
        let ends = |stream: &mut TcpStream| {
            // HTTP/2 says something before; the end may be a reset.
            let _ = stream.read_to_end(&mut vec![]);
        };
        let mut first: Vec<TcpStream> = (0..ENOUGH).map(come).collect();
        std::thread::sleep(Duration::from_secs(2));
        // As many come again, and the first give way: all of them, as one that was answered counts as a newcomer from then.
        let mut held: Vec<TcpStream> = (0..ENOUGH).map(come).collect();
        let begin = Instant::now();
        first.iter_mut().for_each(ends);
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
        let page = ureq::get(format!("http://{address}/metrics")).call().unwrap();
        assert!(page.into_body().read_to_string().unwrap().ends_with("# EOF\n"));
        // The others end by themselves.
        held.iter_mut().for_each(ends);
        assert!(begin.elapsed() < LATE, "{:?}", begin.elapsed());
    }
    let asked = |host: &str| {
        let answer = ureq::get(format!("http://{target}/metrics"))
            .header("host", host)
            .config()
            .http_status_as_error(false)
            .build()
            .call();
        answer.unwrap().status().as_u16()
    };
    assert_eq!((asked("evil.example"), asked("localhost"), asked(&target)), (403, 200, 200));
    assert!(cluster.stop());
}

#[test]
fn handshakes_that_do_not_begin_keep_nobody_out() {
    let place = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let certificate = place.path().join("s3.pem");
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(place.path().join("s3.key"), made.signing_key.serialize_pem()).unwrap();
    let directory = place.path().display();
    let (cluster, s3) =
        started(&place, &format!("certificate = \"{directory}/s3.pem\"\nkey = \"{directory}/s3.key\"\n"));
    let held: Vec<TcpStream> = (0..CROWD)
        .map(|n| {
            let mut stream = TcpStream::connect(host(&s3)).unwrap();
            // Nothing, a record that does not end, or no TLS.
            let _ = stream.write_all([&b""[..], b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"][n % 3]);
            stream
        })
        .collect();
    let curl = std::process::Command::new("curl")
        .args(["--silent", "--max-time", "10", "--cacert", certificate.to_str().unwrap(), &s3.endpoint])
        .output();
    match curl {
        Ok(output) => {
            let response = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && response.contains("AccessDenied"), "{output:?}");
        }
        Err(reason) => eprintln!("skipped: curl: {reason}"),
    }
    // When another comes, those are no more than they may be that came before just now.
    std::thread::sleep(Duration::from_millis(1_200));
    let another = TcpStream::connect(host(&s3)).unwrap();
    let deadline = Instant::now() + SOON;
    while refused(&cluster, "gave_way") + refused(&cluster, "handshake") < (CROWD - MOST) as f64 {
        assert!(Instant::now() < deadline, "{:?}", metrics(&cluster));
        std::thread::sleep(Duration::from_millis(20));
    }
    drop((held, another));
    assert!(cluster.stop());
}
