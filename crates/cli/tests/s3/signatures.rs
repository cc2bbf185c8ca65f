//! What a signature covers, and what of a body that comes in signed chunks has to be there, through the real binary.

use jiff::{SignedDuration, Timestamp};
use ring::{digest, hmac};

use crate::client::S3;
use crate::common::{Cluster, content};

const BUCKET: &str = "signed";
const SECRET: &[u8] = b"the secret table";
const COPY: (&str, &str) = ("x-amz-copy-source", "/signed/secret");
const CHUNKS: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const CHUNKS_AND_TRAILER: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";
const BARE_CHUNKS_AND_TRAILER: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";

fn hex(bytes: &[u8]) -> String {
    hex_simd::encode_to_string(bytes, hex_simd::AsciiCase::Lower)
}

fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// A request that is signed in its header.
struct Signed<'a> {
    s3: &'a S3,
    method: &'a str,
    path: &'a str,
    /// Of the body, as `x-amz-content-sha256` says it.
    payload: &'a str,
    /// Headers beside those that every signature has, in their order.
    headers: &'a [(&'a str, &'a str)],
    /// The signed ones; all when it is `None`.
    covered: Option<&'a str>,
}

/// Its head, and what signatures of chunks begin with.
struct Head {
    text: String,
    seed: String,
    date: String,
    scope: String,
    key: hmac::Key,
}

impl Signed<'_> {
    fn head(&self) -> Head {
        let (s3, now) = (self.s3, Timestamp::now());
        let date = now.strftime("%Y%m%dT%H%M%SZ").to_string();
        let scope = format!("{}/us-east-1/s3/aws4_request", &date[..8]);
        let mut headers = vec![("host", s3.host()), ("x-amz-content-sha256", self.payload), ("x-amz-date", &date)];
        headers.extend(self.headers);
        headers.sort_unstable();
        let all = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let covered = self.covered.unwrap_or(&all);
        let canonical: String = covered
            .split(';')
            .flat_map(|name| headers.iter().filter(move |(other, _)| *other == name))
            .map(|(name, value)| format!("{name}:{value}\n"))
            .collect();
        let request = format!("{}\n{}\n\n{canonical}\n{covered}\n{}", self.method, self.path, self.payload);
        let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", sha256(request.as_bytes()));
        let begin = hmac::Key::new(hmac::HMAC_SHA256, format!("AWS4{}", s3.secret).as_bytes());
        let key = scope
            .split('/')
            .fold(begin, |key, part| hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, part.as_bytes()).as_ref()));
        let seed = hex(hmac::sign(&key, text.as_bytes()).as_ref());
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let text = format!(
            "{} {} HTTP/1.1\r\n{headers}Authorization: AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={covered}, \
             Signature={seed}\r\nConnection: close\r\n",
            self.method, self.path, s3.key
        );
        Head { text, seed, date, scope, key }
    }

    /// Asks, with other headers that are added on the way.
    fn ask(&self, added: &str, body: &[u8]) -> String {
        let head = format!("{}{added}Content-Length: {}\r\n\r\n", self.head().text, body.len());
        self.s3.exchange(&[head.as_bytes(), body].concat(), false)
    }
}

#[track_caller]
fn is(answer: &str, status: u16, code: &str) {
    let good = answer.starts_with(&format!("HTTP/1.1 {status} "))
        && (code.is_empty() || answer.contains(&format!("<Code>{code}</Code>")));
    assert!(good, "not {status} {code}: {answer}");
}

#[track_caller]
fn lacks(answer: &str, name: &str) {
    is(answer, 403, "AccessDenied");
    assert!(answer.contains(&format!("<HeadersNotSigned>{name}</HeadersNotSigned>")), "{answer}");
}

#[test]
fn signatures_cover_the_host_and_what_asks_for_something() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3"]);
    let s3 = S3::of(&cluster);
    s3.put(BUCKET, "", b"").is(200);
    s3.put(BUCKET, "secret", SECRET).is(200);
    addresses(&s3);
    locks(&s3);
    headers(&s3);
    one_way_to_sign(&s3);
    assert_eq!(s3.get(BUCKET, "secret").is(200).body, SECRET);
    assert!(cluster.stop());
}

/// Whoever holds a signed address cannot ask for more with it.
fn addresses(s3: &S3) {
    let send = |method: &str, address: &str, headers: &[(&str, &str)]| s3.send(method, address, headers, b"").unwrap();
    let put = s3.address("PUT", BUCKET, "inbox", &[], Timestamp::now());
    for added in [COPY, ("x-amz-tagging", "a=b"), ("x-amz-meta-a", "b"), ("x-amz-acl", "private"), ("x-amz-date", "x")]
    {
        let answer = send("PUT", &put, &[added]).fails(403, "AccessDenied");
        assert_eq!(answer.element("HeadersNotSigned"), added.0);
        // Names of parameters can be written in another way.
        let other = put.replace("X-Amz-Sig", "X-Amz-%53ig");
        send("PUT", &other, &[added]).fails(403, "AccessDenied");
    }
    s3.head(BUCKET, "inbox").is(404);
    let upload = s3.ask("POST", (BUCKET, "parts"), &[("uploads", "")], &[], b"").is(200).element("UploadId");
    let query = [("partNumber", "1"), ("uploadId", upload.as_str())];
    let part = s3.address("PUT", BUCKET, "parts", &query, Timestamp::now());
    send("PUT", &part, &[COPY]).fails(403, "AccessDenied");
    // What is covered does what it says.
    s3.ask("PUT", (BUCKET, "copy"), &[], &[COPY], b"").is(200);
    assert_eq!(s3.get(BUCKET, "copy").is(200).body, SECRET);
    send("PUT", &part, &[]).is(200);
    // It can only make the request stricter.
    for (payload, status) in [("UNSIGNED-PAYLOAD", 200), (&*sha256(b""), 200), (&*sha256(b"x"), 400)] {
        send("PUT", &put, &[("x-amz-content-sha256", payload)]).is(status);
    }
    let expires = |value: &str| send("PUT", &put.replace("Expires=300", &format!("Expires={value}")), &[]);
    for value in ["%2B300", "-1", "x", "604801", ""] {
        expires(value).fails(400, "AuthorizationQueryParametersError");
    }
    expires("0").fails(403, "AccessDenied");
    expires("301").fails(403, "SignatureDoesNotMatch");
}

fn locks(s3: &S3) {
    let until = (Timestamp::now() + SignedDuration::from_hours(1)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    s3.ask("PUT", ("locks", ""), &[], &[("x-amz-bucket-object-lock-enabled", "true")], b"").is(200);
    let lock = |mode| [("x-amz-object-lock-mode", mode), ("x-amz-object-lock-retain-until-date", until.as_str())];
    let locked = s3.ask("PUT", ("locks", "k"), &[], &lock("GOVERNANCE"), b"x").is(200);
    let query = [("versionId", locked.header("x-amz-version-id"))];
    let remove = s3.address("DELETE", "locks", "k", &query, Timestamp::now());
    let bypass = ("x-amz-bypass-governance-retention", "true");
    s3.send("DELETE", &remove, &[bypass], b"").unwrap().fails(403, "AccessDenied");
    s3.ask("GET", ("locks", "k"), &query, &[], b"").is(200);
    let put = s3.address("PUT", "locks", "for-ever", &[], Timestamp::now());
    s3.send("PUT", &put, &lock("COMPLIANCE"), b"x").unwrap().fails(403, "AccessDenied");
    s3.head("locks", "for-ever").is(404);
    s3.ask("DELETE", ("locks", "k"), &query, &[bypass], b"").is(204);
}

/// The same for an eavesdropper on the way.
fn headers(s3: &S3) {
    let (empty, body) = (sha256(b""), sha256(b"hello"));
    let get = Signed { s3, method: "GET", path: "/signed/secret", payload: &empty, headers: &[], covered: None };
    let put = Signed { method: "PUT", path: "/signed/way", payload: &body, ..get };
    is(&get.ask("", b""), 200, "");
    is(&put.ask("", b"hello"), 200, "");
    lacks(&put.ask("x-amz-meta-a: b\r\n", b"hello"), "x-amz-meta-a");
    let copy = Signed { payload: &empty, ..put };
    lacks(&copy.ask("X-Amz-Copy-Source: /signed/secret\r\n", b""), "x-amz-copy-source");
    for (covered, name) in [
        ("x-amz-content-sha256;x-amz-date", "host"),
        ("host;x-amz-content-sha256", "x-amz-date"),
        ("host;x-amz-date", "x-amz-content-sha256"),
        ("", "x-amz-content-sha256, x-amz-date, host"),
        ("Host;x-amz-content-sha256;x-amz-date", "host"),
    ] {
        lacks(&Signed { covered: Some(covered), ..get }.ask("", b""), name);
    }
    // A value that is no text is in no signature, whatever the list says.
    let no_text = |name: &str| {
        let covered = format!("host;x-amz-content-sha256;x-amz-date;{name}");
        let head = Signed { covered: Some(&covered), ..put }.head().text;
        let added = [name.as_bytes(), b": \xff\r\nContent-Length: 5\r\n\r\nhello"].concat();
        s3.exchange(&[head.as_bytes(), &added].concat(), false)
    };
    lacks(&no_text("x-amz-tagging"), "x-amz-tagging");
    // Metadata is text in ISO-8859-1 then, which this signature is not of.
    is(&no_text("x-amz-meta-a"), 403, "SignatureDoesNotMatch");
    // The algorithm is no place for another list.
    let list = "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-meta-a";
    let head = put.head().text.replace("AWS4-HMAC-SHA256 ", &format!("AWS4-HMAC-SHA256,{list} "));
    let sent = format!("{head}x-amz-meta-a: b\r\nContent-Length: 5\r\n\r\nhello");
    assert!(s3.exchange(sent.as_bytes(), false).starts_with("HTTP/1.1 4"));
    // The body that was signed is not there.
    is(&Signed { payload: &body, ..get }.ask("", b""), 400, "XAmzContentSHA256Mismatch");
    is(&put.ask("", b""), 400, "XAmzContentSHA256Mismatch");
    assert_eq!(s3.get(BUCKET, "way").is(200).body, b"hello");
    assert!(!s3.head(BUCKET, "way").headers.contains_key("x-amz-meta-a"));
}

fn one_way_to_sign(s3: &S3) {
    let path = s3.address("GET", BUCKET, "secret", &[], Timestamp::now());
    let empty = sha256(b"");
    let path = path.strip_prefix(&s3.endpoint).unwrap();
    let twice = Signed { s3, method: "GET", path, payload: &empty, headers: &[], covered: None };
    is(&twice.ask("", b""), 400, "InvalidArgument");
    let once = Signed { path: "/signed/secret", ..twice };
    is(&once.ask("", b""), 200, "");
    is(&once.ask("Authorization: AWS4-HMAC-SHA256 x\r\n", b""), 400, "InvalidArgument");
}

/// A body in chunks, and what is left out of it.
#[derive(Clone, Copy)]
struct Chunked<'a> {
    s3: &'a S3,
    payload: &'a str,
    /// How many bytes it says to have.
    length: &'a str,
    /// Chunks that are sent, the last and empty one among them.
    sent: usize,
    /// The name that is announced for the trailer.
    announced: &'a str,
    /// The trailer's lines, which have to be sorted.
    trailer: &'a [(&'a str, &'a str)],
}

impl Chunked<'_> {
    fn put(&self) -> String {
        let mut headers = vec![("content-encoding", "aws-chunked"), ("x-amz-decoded-content-length", self.length)];
        if !self.announced.is_empty() {
            headers.push(("x-amz-trailer", self.announced));
        }
        let request = Signed {
            s3: self.s3,
            method: "PUT",
            path: "/signed/chunks",
            payload: self.payload,
            headers: &headers,
            covered: None,
        };
        let head = request.head();
        let (signed, empty) = (self.payload != BARE_CHUNKS_AND_TRAILER, sha256(b""));
        let sign = |kind: &str, last: &str, rest: &str| {
            let text = format!("{kind}\n{}\n{}\n{last}\n{rest}", head.date, head.scope);
            hex(hmac::sign(&head.key, text.as_bytes()).as_ref())
        };
        let (mut body, mut last) = (vec![], head.seed.clone());
        for chunk in [content(9_000, 1), content(9_000, 2), vec![]].iter().take(self.sent) {
            last = sign("AWS4-HMAC-SHA256-PAYLOAD", &last, &format!("{empty}\n{}", sha256(chunk)));
            let signature = if signed { format!(";chunk-signature={last}") } else { String::new() };
            body.extend(format!("{:x}{signature}\r\n", chunk.len()).into_bytes());
            body.extend(chunk);
            let more = chunk.is_empty() && !self.trailer.is_empty();
            body.extend(if more { &b""[..] } else { b"\r\n" });
        }
        if !self.trailer.is_empty() {
            let line = |end: &str| -> String {
                self.trailer.iter().map(|(name, value)| format!("{name}:{value}{end}")).collect()
            };
            body.extend(line("\r\n").into_bytes());
            let signature = sign("AWS4-HMAC-SHA256-TRAILER", &last, &sha256(line("\n").as_bytes()));
            if signed {
                body.extend(format!("x-amz-trailer-signature:{signature}\r\n").into_bytes());
            }
            body.extend(b"\r\n");
        }
        let head = format!("{}Content-Length: {}\r\n\r\n", head.text, body.len());
        self.s3.exchange(&[head.as_bytes(), &body].concat(), false)
    }
}

#[test]
fn a_body_in_chunks_is_whole_or_refused() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3"]);
    let s3 = S3::of(&cluster);
    s3.put(BUCKET, "", b"").is(200);
    let whole = [content(9_000, 1), content(9_000, 2)].concat();
    let gone = || {
        s3.head(BUCKET, "chunks").is(404);
    };
    let chunks = Chunked { s3: &s3, payload: CHUNKS, length: "18000", sent: 3, announced: "", trailer: &[] };
    // Cut after a chunk, with the length that was signed, and with the length of what came.
    for (sent, length) in [(2, "18000"), (1, "18000"), (0, "18000"), (1, "9000"), (0, "0")] {
        is(&Chunked { sent, length, ..chunks }.put(), 400, "IncompleteBody");
        gone();
    }
    for length in ["9000", "18001"] {
        is(&Chunked { length, ..chunks }.put(), 400, "IncompleteBody");
        gone();
    }
    let stored = s3.ask("PUT", (BUCKET, "other"), &[], &[("x-amz-checksum-algorithm", "CRC32")], &whole).is(200);
    let sum = stored.header("x-amz-checksum-crc32");
    let line = [("x-amz-checksum-crc32", sum)];
    for payload in [CHUNKS_AND_TRAILER, BARE_CHUNKS_AND_TRAILER] {
        let good = Chunked { payload, announced: "x-amz-checksum-crc32", trailer: &line, ..chunks };
        is(&Chunked { sent: 2, trailer: &[], ..good }.put(), 400, "IncompleteBody");
        is(&Chunked { trailer: &[], ..good }.put(), 400, "MalformedTrailerError");
        is(&Chunked { announced: "x-amz-checksum-crc32c", ..good }.put(), 400, "MalformedTrailerError");
        let two = [line[0], ("x-amz-meta-a", "b")];
        is(&Chunked { trailer: &two, ..good }.put(), 400, "MalformedTrailerError");
        is(&Chunked { announced: "x-amz-meta-a", trailer: &two[1..], ..good }.put(), 400, "InvalidRequest");
        is(&Chunked { trailer: &[("x-amz-checksum-crc32", "AAAAAA==")], ..good }.put(), 400, "BadDigest");
        gone();
        is(&good.put(), 200, "");
        assert!(s3.get(BUCKET, "chunks").is(200).body == whole);
        s3.delete(BUCKET, "chunks").is(204);
    }
    is(&chunks.put(), 200, "");
    assert!(s3.get(BUCKET, "chunks").is(200).body == whole);
    assert!(cluster.stop());
}
