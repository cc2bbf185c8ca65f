//! The S3 API through the real binary and real sockets.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use md5::{Digest, Md5};

use crate::client::S3;
use crate::common::{Cluster, content};

fn etag(bytes: &[u8]) -> String {
    let digits = hex_simd::encode_to_string(Md5::digest(bytes), hex_simd::AsciiCase::Lower);
    format!("\"{digits}\"")
}

/// Keys with everything that UTF-8 and paths have to offer, but parts of only dots: this client's addresses cannot have
/// them.
fn odd_keys() -> Vec<String> {
    let odd = [
        "plain",
        "a b",
        "a+b",
        "a%20b",
        "a%2Fb",
        "%",
        "ü/ö/ä",
        "日本語/キー",
        "🦀",
        "a//b",
        "/leading",
        "trailing/",
        "?q=1&r",
        "#frag",
        "a=b;c",
        "'\"<>&",
        "*(){}[]|\\^`~",
        "e\u{301}",
        "\u{e9}",
        "\u{202e}rtl",
        "\u{feff}bom",
        "a:b@c,d!$",
    ];
    let mut keys: Vec<String> = odd.iter().map(|key| (*key).to_owned()).collect();
    keys.push("k".repeat(1_024));
    keys.push("ü".repeat(512));
    keys
}

#[test]
fn objects_come_back_as_they_were_put() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &[]);
    let s3 = S3::of(&cluster);
    let users = cluster.directory.join("users.toml");
    assert_eq!(fs::metadata(users).unwrap().permissions().mode() & 0o777, 0o600);
    buckets(&s3);
    bodies(&s3);
    keys(&s3);
    headers(&s3);
    conditions(&s3);
    copies(&s3);
    lists(&s3);
    deletes(&s3);
    refusals(&s3);
    signatures(&s3);
    broken_bodies(&s3);
    cors(&s3);
    table(&s3);
    // The command's own bucket.
    cluster.run(&["put", &cluster.config(), "a file"]);
    let listed = String::from_utf8(cluster.run(&["ls", "--json"])).unwrap();
    assert!(listed.contains("a file") && !listed.contains("bodies"), "{listed}");
    for log in fs::read_dir(cluster.directory.join("logs")).unwrap().flatten() {
        let text = fs::read_to_string(log.path()).unwrap();
        assert!(!text.contains(&s3.secret) && !text.contains("panicked"), "{:?}: {text}", log.path());
    }
    assert!(cluster.stop());
}

fn buckets(s3: &S3) {
    s3.list("first", &[]).fails(404, "NoSuchBucket");
    s3.put("first", "", b"").is(200);
    s3.put("first", "", b"").is(200);
    s3.put("second", "", b"").is(200);
    s3.put("Bad_Name", "", b"").fails(400, "InvalidBucketName");
    s3.head("first", "").is(200);
    s3.head("third", "").is(404);
    s3.put("first", "key", b"x").is(200);
    s3.delete("first", "").fails(409, "BucketNotEmpty");
    s3.delete("first", "key").is(204);
    s3.delete("first", "").is(204);
    s3.delete("first", "").fails(404, "NoSuchBucket");
    s3.put("first", "key", b"x").fails(404, "NoSuchBucket");
    s3.put("first", "", b"").is(200);
    s3.get("first", "key").fails(404, "NoSuchKey");
    let listed = s3.ask("GET", ("", ""), &[], &[], b"").is(200);
    assert_eq!(listed.elements("Name"), ["first", "second"]);
    s3.delete("second", "").is(204);
}

fn bodies(s3: &S3) {
    s3.put("bodies", "", b"").is(200);
    const MIB: usize = 1 << 20;
    for (seed, size) in [0, 1, 100, 65_536, 65_537, MIB - 1, MIB, MIB + 1, 5 * MIB + 7].into_iter().enumerate() {
        let body = content(size, seed as u64);
        let put = s3.put("bodies", "body", &body).is(200);
        assert_eq!(put.header("etag"), etag(&body));
        let got = s3.get("bodies", "body").is(200);
        assert!(got.body == body, "{size} bytes are not what was put");
        assert_eq!(got.header("etag"), etag(&body));
        assert_eq!(got.header("content-length"), size.to_string());
        let head = s3.head("bodies", "body").is(200);
        assert_eq!(head.header("content-length"), size.to_string());
        for (from, to) in [(0, 0), (0, size / 2), (size / 3, size - 1), (size - 1, size + 10), (MIB - 1, MIB)] {
            if size == 0 || from >= size || from > to {
                continue;
            }
            let range = format!("bytes={from}-{to}");
            let part = s3.ask("GET", ("bodies", "body"), &[], &[("range", &range)], b"").is(206);
            let end = to.min(size - 1);
            assert!(part.body == body[from..=end], "{range} of {size}");
            assert_eq!(part.header("content-range"), format!("bytes {from}-{end}/{size}"));
        }
        if size > 0 {
            let tail = s3.ask("GET", ("bodies", "body"), &[], &[("range", "bytes=-5")], b"").is(206);
            assert_eq!(tail.body, body[size.saturating_sub(5)..]);
        }
        let beyond = format!("bytes={size}-");
        s3.ask("GET", ("bodies", "body"), &[], &[("range", &beyond)], b"").fails(416, "InvalidRange");
        let whole = s3.ask("GET", ("bodies", "body"), &[], &[("range", "bytes=9-3")], b"").is(200);
        assert!(whole.body == body, "a range that is none takes something of {size} bytes");
    }
}

fn keys(s3: &S3) {
    s3.put("keys", "", b"").is(200);
    for key in odd_keys() {
        s3.put("keys", &key, key.as_bytes()).is(200);
    }
    for key in odd_keys() {
        assert_eq!(s3.get("keys", &key).is(200).body, key.as_bytes(), "{key:?}");
    }
    let listed = s3.list("keys", &[("list-type", "2"), ("encoding-type", "url")]).is(200);
    assert_eq!(listed.elements("Key").len(), odd_keys().len(), "{}", listed.text());
    s3.put("keys", &"k".repeat(1_025), b"").fails(400, "KeyTooLongError");
}

fn headers(s3: &S3) {
    s3.put("headers", "", b"").is(200);
    let sent = [
        ("content-type", "text/x-test"),
        ("cache-control", "no-cache"),
        ("content-disposition", "attachment; filename=\"x\""),
        ("content-language", "de"),
        ("expires", "Thu, 01 Jan 2032 00:00:00 GMT"),
        ("x-amz-meta-color", "blue"),
        ("x-amz-meta-empty", ""),
    ];
    s3.ask("PUT", ("headers", "k"), &[], &sent, b"x").is(200);
    for answer in [s3.get("headers", "k").is(200), s3.head("headers", "k").is(200)] {
        for (name, value) in sent {
            assert_eq!(answer.header(name), value, "{name}");
        }
        assert!(answer.header("last-modified").ends_with("GMT"));
    }
    let asked = [
        ("response-content-type", "text/other"),
        ("response-cache-control", "max-age=5"),
        ("response-content-disposition", "inline; filename=\"a b;c\""),
        ("response-content-encoding", "gzip"),
        ("response-content-language", "fr"),
        ("response-expires", "Sat, 01 Jan 2033 00:00:00 GMT"),
    ];
    for method in ["GET", "HEAD"] {
        let answer = s3.ask(method, ("headers", "k"), &asked, &[], b"").is(200);
        for (name, value) in asked {
            assert_eq!(answer.header(name.trim_start_matches("response-")), value, "{method} {name}");
        }
        let one = s3.ask(method, ("headers", "k"), &asked[..1], &[], b"").is(200);
        assert_eq!((one.header("content-type"), one.header("cache-control")), ("text/other", "no-cache"));
    }
    s3.put("headers", "plain", b"x").is(200);
    assert_eq!(s3.head("headers", "plain").header("content-type"), "binary/octet-stream");
    let md5 = base64_simd::STANDARD.encode_to_string(Md5::digest(b"x"));
    s3.ask("PUT", ("headers", "m"), &[], &[("content-md5", &md5)], b"x").is(200);
    s3.ask("PUT", ("headers", "n"), &[], &[("content-md5", &md5)], b"y").fails(400, "BadDigest");
    s3.ask("PUT", ("headers", "n"), &[], &[("content-md5", "short")], b"y").fails(400, "InvalidDigest");
    s3.head("headers", "n").is(404);
}

fn conditions(s3: &S3) {
    s3.put("cond", "", b"").is(200);
    s3.put("cond", "k", b"one").is(200);
    let tag = etag(b"one");
    let ask = |headers: &[(&str, &str)]| s3.ask("GET", ("cond", "k"), &[], headers, b"").status;
    assert_eq!(ask(&[("if-match", &tag)]), 200);
    assert_eq!(ask(&[("if-match", "\"other\"")]), 412);
    assert_eq!(ask(&[("if-none-match", &tag)]), 304);
    assert_eq!(ask(&[("if-none-match", "\"other\"")]), 200);
    let (past, future) = ("Thu, 01 Jan 2015 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT");
    assert_eq!(ask(&[("if-modified-since", past)]), 200);
    assert_eq!(ask(&[("if-modified-since", future)]), 304);
    assert_eq!(ask(&[("if-unmodified-since", past)]), 412);
    assert_eq!(ask(&[("if-unmodified-since", future)]), 200);
    let put = |key: &str, header: (&str, &str), body: &[u8]| s3.ask("PUT", ("cond", key), &[], &[header], body);
    put("k", ("if-none-match", "*"), b"two").fails(412, "PreconditionFailed");
    put("new", ("if-none-match", "*"), b"two").is(200);
    put("k", ("if-match", "\"other\""), b"two").fails(412, "PreconditionFailed");
    put("none", ("if-match", &tag), b"two").fails(404, "NoSuchKey");
    put("k", ("if-match", &tag), b"two").is(200);
    assert_eq!(s3.get("cond", "k").body, b"two");
    // Of many clients that create one key, one succeeds.
    let wins: usize = std::thread::scope(|scope| {
        let ask = |n: u8| scope.spawn(move || put("race", ("if-none-match", "*"), &[n]).status);
        let all: Vec<_> = (0..8).map(ask).collect();
        all.into_iter().map(|thread| usize::from(thread.join().unwrap() == 200)).sum()
    });
    assert_eq!(wins, 1);
}

fn copies(s3: &S3) {
    s3.put("copies", "", b"").is(200);
    let body = content(3 << 20, 5);
    s3.ask("PUT", ("copies", "a ü"), &[], &[("x-amz-meta-m", "1"), ("content-type", "text/a")], &body).is(200);
    let from = [("x-amz-copy-source", "copies/a%20%C3%BC")];
    let copied = s3.ask("PUT", ("copies", "b"), &[], &from, b"").is(200);
    assert_eq!(copied.element("ETag").replace("&quot;", "\""), etag(&body));
    let got = s3.get("copies", "b").is(200);
    assert!(got.body == body);
    assert_eq!((got.header("x-amz-meta-m"), got.header("content-type")), ("1", "text/a"));
    let replace = [from[0], ("x-amz-metadata-directive", "REPLACE"), ("x-amz-meta-n", "2")];
    s3.ask("PUT", ("copies", "c"), &[], &replace, b"").is(200);
    let got = s3.head("copies", "c").is(200);
    assert_eq!((got.header("x-amz-meta-m"), got.header("x-amz-meta-n")), ("", "2"));
    let missing = [("x-amz-copy-source", "copies/missing")];
    s3.ask("PUT", ("copies", "d"), &[], &missing, b"").fails(404, "NoSuchKey");
    let same = [("x-amz-copy-source", "/copies/b")];
    s3.ask("PUT", ("copies", "b"), &[], &same, b"").fails(400, "InvalidRequest");
}

fn lists(s3: &S3) {
    s3.put("lists", "", b"").is(200);
    let mut keys: Vec<String> = (0..12).map(|n| format!("a/{n:02}")).collect();
    keys.extend(["b", "c/d/e", "c/f", "z"].map(str::to_owned));
    for key in &keys {
        s3.put("lists", key, b"x").is(200);
    }
    let all = s3.list("lists", &[("list-type", "2")]).is(200);
    assert_eq!(all.elements("Key"), keys);
    assert_eq!(all.element("KeyCount"), keys.len().to_string());
    assert_eq!(all.element("IsTruncated"), "false");
    for style in ["1", "2"] {
        let folded = pages(s3, style, &[("delimiter", "/")], "2");
        assert_eq!(folded, ["a/", "b", "c/", "z"], "style {style}");
        assert_eq!(pages(s3, style, &[("delimiter", "/"), ("prefix", "c/")], "1"), ["c/d/", "c/f"]);
        assert_eq!(pages(s3, style, &[("prefix", "a/")], "5"), keys[..12]);
        assert_eq!(pages(s3, style, &[], "7"), keys);
        assert_eq!(pages(s3, style, &[("prefix", "none")], "7"), [""; 0]);
    }
    let after = s3.list("lists", &[("list-type", "2"), ("start-after", "c/d/e")]).is(200);
    assert_eq!(after.elements("Key"), ["c/f", "z"]);
    let none = s3.list("lists", &[("list-type", "2"), ("max-keys", "0")]).is(200);
    assert_eq!((none.elements("Key").len(), none.element("IsTruncated").as_str()), (0, "false"));
    s3.list("lists", &[("list-type", "2"), ("continuation-token", "%%")]).fails(400, "InvalidArgument");
    s3.list("lists", &[("list-type", "2"), ("max-keys", "-1")]).fails(400, "InvalidArgument");
}

/// All keys and common prefixes in order, page by page.
fn pages(s3: &S3, style: &str, query: &[(&str, &str)], most: &str) -> Vec<String> {
    let mut found = vec![];
    let mut next = String::new();
    loop {
        let mut query = query.to_vec();
        query.push(("max-keys", most));
        if style == "2" {
            query.push(("list-type", "2"));
        }
        if !next.is_empty() {
            query.push((if style == "2" { "continuation-token" } else { "marker" }, &next));
        }
        let page = s3.list("lists", &query).is(200);
        let mut part = page.elements("Key");
        for prefix in page.elements("CommonPrefixes") {
            part.push(prefix.replace("<Prefix>", "").replace("</Prefix>", ""));
        }
        assert!(part.len() <= most.parse().unwrap(), "{}", page.text());
        part.sort_unstable();
        found.extend(part);
        if page.element("IsTruncated") != "true" {
            return found;
        }
        let keys_alone = style == "1" && !query.iter().any(|(name, _)| *name == "delimiter");
        next = page.element(if style == "2" { "NextContinuationToken" } else { "NextMarker" });
        // Of keys alone the last one is the marker, and is not repeated.
        assert_eq!(next.is_empty(), keys_alone, "{}", page.text());
        if keys_alone {
            next = found.last().unwrap().clone();
        }
    }
}

fn deletes(s3: &S3) {
    s3.put("deletes", "", b"").is(200);
    for key in ["a", "b", "c", "d"] {
        s3.put("deletes", key, b"x").is(200);
    }
    s3.delete("deletes", "a").is(204);
    s3.delete("deletes", "a").is(204);
    let xml = "<Delete><Object><Key>b</Key></Object><Object><Key>missing</Key></Object></Delete>";
    let md5 = base64_simd::STANDARD.encode_to_string(Md5::digest(xml));
    let headers = [("content-md5", md5.as_str())];
    let done = s3.ask("POST", ("deletes", ""), &[("delete", "")], &headers, xml.as_bytes()).is(200);
    assert_eq!(done.elements("Key"), ["b", "missing"]);
    let quiet = "<Delete><Quiet>true</Quiet><Object><Key>c</Key></Object></Delete>";
    let done = s3.ask("POST", ("deletes", ""), &[("delete", "")], &[], quiet.as_bytes()).is(200);
    assert_eq!(done.elements("Key").len(), 0);
    assert_eq!(s3.list("deletes", &[]).is(200).elements("Key"), ["d"]);
}

fn refusals(s3: &S3) {
    let put = |header| s3.ask("PUT", ("lists", "refused"), &[], &[header], b"x");
    for header in [("x-amz-mfa", "1"), ("x-amz-website-redirect-location", "/x")] {
        put(header).fails(501, "NotImplemented");
    }
    put(("x-amz-server-side-encryption", "aws:kms:dsse")).fails(501, "NotImplemented");
    put(("x-amz-acl", "public-read")).fails(400, "AccessControlListNotSupported");
    put(("x-amz-grant-read", "id=x")).fails(400, "AccessControlListNotSupported");
    put(("x-amz-storage-class", "GLACIER")).fails(400, "InvalidStorageClass");
    for query in ["torrent", "select", "made-up", "logging", "replication", "website", "notification"] {
        s3.ask("GET", ("lists", ""), &[(query, "")], &[], b"").fails(501, "NotImplemented");
        s3.ask("PUT", ("lists", "refused"), &[(query, "")], &[], b"<x/>").fails(501, "NotImplemented");
    }
    s3.head("lists", "refused").is(404);
    // Bodies that come when the request is refused already, and the next request on the same connection.
    let host = s3.endpoint.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    for length in [3, 300_000] {
        let head = format!("PUT /lists/refused HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        stream.write_all(&content(length, 1)).unwrap();
        let mut answer = String::new();
        while !answer.contains("</Error>") {
            let mut part = [0; 4096];
            let taken = stream.read(&mut part).unwrap();
            assert!(taken > 0, "the connection ended after {answer:?}");
            answer.push_str(&String::from_utf8_lossy(&part[..taken]));
        }
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    }
}

fn signatures(s3: &S3) {
    let wrong = S3::new(&s3.endpoint, &s3.key, "not the secret");
    wrong.get("lists", "b").fails(403, "SignatureDoesNotMatch");
    wrong.put("lists", "forged", b"x").fails(403, "SignatureDoesNotMatch");
    S3::new(&s3.endpoint, "NOBODY", &s3.secret).get("lists", "b").fails(403, "InvalidAccessKeyId");
    let at = |minutes: i64| {
        let date = Timestamp::now() + SignedDuration::from_mins(minutes);
        s3.send("GET", &s3.address("GET", "lists", "b", &[], date), &[], b"").unwrap()
    };
    at(0).is(200);
    at(-6).fails(403, "AccessDenied");
    at(30).fails(403, "RequestTimeTooSkewed");
    let address = s3.address("GET", "lists", "b", &[], Timestamp::now());
    s3.send("GET", &address.replace("/lists/b", "/lists/z"), &[], b"").unwrap().fails(403, "SignatureDoesNotMatch");
    let unsigned = format!("{}/lists/b", s3.endpoint);
    s3.send("GET", &unsigned, &[], b"").unwrap().fails(403, "AccessDenied");
    s3.send("GET", &unsigned, &[("range", "bytes=9-3")], b"").unwrap().fails(403, "AccessDenied");
    let old = format!("AWS {}:c2lnbmVk", s3.key);
    s3.send("GET", &unsigned, &[("authorization", &old)], b"").unwrap().fails(400, "InvalidRequest");
    let old = format!("{unsigned}?AWSAccessKeyId={}&Expires=9999999999&Signature=c2lnbmVk", s3.key);
    s3.send("GET", &old, &[], b"").unwrap().fails(400, "InvalidRequest");
    s3.head("lists", "forged").is(404);
}

fn broken_bodies(s3: &S3) {
    let address = s3.address("PUT", "lists", "broken", &[], Timestamp::now());
    let host = s3.endpoint.strip_prefix("http://").unwrap();
    let path = address.strip_prefix(&s3.endpoint).unwrap();
    for sent in [0, 10, 70_000, 2 << 20] {
        let mut stream = TcpStream::connect(host).unwrap();
        let head = format!("PUT {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3000000\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&content(sent, 1)).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = vec![];
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(!answer.contains("200 OK"), "{answer}");
    }
    s3.head("lists", "broken").is(404);
}

type Pairs = &'static [(&'static str, &'static str)];
/// Name, method, key, query, headers, body.
type Operation = (&'static str, &'static str, &'static str, Pairs, Pairs, &'static str);

/// Every operation: how it is asked, on the bucket `table` and the key `k`, or on the bucket alone when the path is "".
const OPERATIONS: &[Operation] = &[
    ("ListBuckets", "GET", "/", &[], &[], ""),
    ("HeadBucket", "HEAD", "", &[], &[], ""),
    ("GetBucketLocation", "GET", "", &[("location", "")], &[], ""),
    ("GetBucketVersioning", "GET", "", &[("versioning", "")], &[], ""),
    ("PutBucketVersioning", "PUT", "", &[("versioning", "")], &[], VERSIONING),
    ("ListObjects", "GET", "", &[], &[], ""),
    ("ListObjectsV2", "GET", "", &[("list-type", "2")], &[], ""),
    ("ListObjectVersions", "GET", "", &[("versions", "")], &[], ""),
    ("PutObject", "PUT", "k", &[], &[], "x"),
    ("GetObject", "GET", "k", &[], &[], ""),
    ("HeadObject", "HEAD", "k", &[], &[], ""),
    ("CopyObject", "PUT", "copy", &[], &[("x-amz-copy-source", "table/k")], ""),
    ("DeleteObjects", "POST", "", &[("delete", "")], &[], "<Delete><Object><Key>none</Key></Object></Delete>"),
    ("CreateMultipartUpload", "POST", "k", &[("uploads", "")], &[], ""),
    ("UploadPart", "PUT", "k", &[("partNumber", "1"), ("uploadId", "none")], &[], "x"),
    (
        "UploadPartCopy",
        "PUT",
        "k",
        &[("partNumber", "1"), ("uploadId", "none")],
        &[("x-amz-copy-source", "table/k")],
        "",
    ),
    ("CompleteMultipartUpload", "POST", "k", &[("uploadId", "none")], &[], COMPLETE),
    ("AbortMultipartUpload", "DELETE", "k", &[("uploadId", "none")], &[], ""),
    ("ListParts", "GET", "k", &[("uploadId", "none")], &[], ""),
    ("ListMultipartUploads", "GET", "", &[("uploads", "")], &[], ""),
    ("GetObjectTagging", "GET", "k", &[("tagging", "")], &[], ""),
    ("PutObjectTagging", "PUT", "k", &[("tagging", "")], &[], TAGGING),
    ("DeleteObjectTagging", "DELETE", "k", &[("tagging", "")], &[], ""),
    ("GetBucketAcl", "GET", "", &[("acl", "")], &[], ""),
    ("PutBucketAcl", "PUT", "", &[("acl", "")], &[], ""),
    ("GetObjectAcl", "GET", "k", &[("acl", "")], &[], ""),
    ("PutObjectAcl", "PUT", "k", &[("acl", "")], &[], ""),
    ("GetBucketCors", "GET", "", &[("cors", "")], &[], ""),
    ("PutBucketCors", "PUT", "", &[("cors", "")], &[], CORS),
    ("DeleteBucketCors", "DELETE", "", &[("cors", "")], &[], ""),
    ("GetBucketPolicy", "GET", "", &[("policy", "")], &[], ""),
    ("PutBucketPolicy", "PUT", "", &[("policy", "")], &[], "{}"),
    ("DeleteBucketPolicy", "DELETE", "", &[("policy", "")], &[], ""),
    ("GetBucketPolicyStatus", "GET", "", &[("policyStatus", "")], &[], ""),
    ("GetBucketLifecycleConfiguration", "GET", "", &[("lifecycle", "")], &[], ""),
    ("PutBucketLifecycleConfiguration", "PUT", "", &[("lifecycle", "")], &[], LIFECYCLE),
    ("DeleteBucketLifecycle", "DELETE", "", &[("lifecycle", "")], &[], ""),
    ("GetBucketEncryption", "GET", "", &[("encryption", "")], &[], ""),
    ("PutBucketEncryption", "PUT", "", &[("encryption", "")], &[], ""),
    ("DeleteBucketEncryption", "DELETE", "", &[("encryption", "")], &[], ""),
    ("GetBucketTagging", "GET", "", &[("tagging", "")], &[], ""),
    ("PutBucketTagging", "PUT", "", &[("tagging", "")], &[], TAGGING),
    ("DeleteBucketTagging", "DELETE", "", &[("tagging", "")], &[], ""),
    ("GetBucketReplication", "GET", "", &[("replication", "")], &[], ""),
    ("GetBucketLogging", "GET", "", &[("logging", "")], &[], ""),
    ("GetBucketNotificationConfiguration", "GET", "", &[("notification", "")], &[], ""),
    ("GetBucketWebsite", "GET", "", &[("website", "")], &[], ""),
    ("GetBucketRequestPayment", "GET", "", &[("requestPayment", "")], &[], ""),
    ("GetBucketAccelerateConfiguration", "GET", "", &[("accelerate", "")], &[], ""),
    ("GetBucketOwnershipControls", "GET", "", &[("ownershipControls", "")], &[], ""),
    ("PutBucketOwnershipControls", "PUT", "", &[("ownershipControls", "")], &[], ""),
    ("DeleteBucketOwnershipControls", "DELETE", "", &[("ownershipControls", "")], &[], ""),
    ("GetPublicAccessBlock", "GET", "", &[("publicAccessBlock", "")], &[], ""),
    ("PutPublicAccessBlock", "PUT", "", &[("publicAccessBlock", "")], &[], ""),
    ("DeletePublicAccessBlock", "DELETE", "", &[("publicAccessBlock", "")], &[], ""),
    ("GetObjectLockConfiguration", "GET", "", &[("object-lock", "")], &[], ""),
    ("PutObjectLockConfiguration", "PUT", "", &[("object-lock", "")], &[], ""),
    ("GetObjectLegalHold", "GET", "k", &[("legal-hold", "")], &[], ""),
    ("PutObjectLegalHold", "PUT", "k", &[("legal-hold", "")], &[], ""),
    ("GetObjectRetention", "GET", "k", &[("retention", "")], &[], ""),
    ("PutObjectRetention", "PUT", "k", &[("retention", "")], &[], ""),
    ("GetObjectAttributes", "GET", "k", &[("attributes", "")], &[("x-amz-object-attributes", "ETag")], ""),
    ("GetObjectTorrent", "GET", "k", &[("torrent", "")], &[], ""),
    ("RestoreObject", "POST", "k", &[("restore", "")], &[], ""),
    ("SelectObjectContent", "POST", "k", &[("select", ""), ("select-type", "2")], &[], ""),
    ("PostObject", "POST", "", &[], &[("content-type", "multipart/form-data; boundary=b")], FORM),
    ("DeleteObject", "DELETE", "k", &[], &[], ""),
    ("CreateBucket", "PUT", "", &[], &[], ""),
    ("DeleteBucket", "DELETE", "", &[], &[], ""),
];
const VERSIONING: &str = "<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>";
const TAGGING: &str = "<Tagging><TagSet><Tag><Key>c</Key><Value>d</Value></Tag></TagSet></Tagging>";
const COMPLETE: &str =
    "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>x</ETag></Part></CompleteMultipartUpload>";
const CORS: &str = "<CORSConfiguration><CORSRule><AllowedOrigin>http://*.example</AllowedOrigin>\
                    <AllowedMethod>GET</AllowedMethod><AllowedHeader>*</AllowedHeader></CORSRule></CORSConfiguration>";
const LIFECYCLE: &str = "<LifecycleConfiguration><Rule><ID>old</ID><Filter><Prefix>old/</Prefix></Filter>\
                         <Status>Enabled</Status><Expiration><Date>2020-01-01T00:00:00Z</Date></Expiration>\
                         </Rule></LifecycleConfiguration>";
const FORM: &str = "--b\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nk\r\n--b\r\nContent-Disposition: form-data; \
                    name=\"file\"; filename=\"f\"\r\n\r\nx\r\n--b--\r\n";

fn cors(s3: &S3) {
    let origin = ("origin", "http://a.example");
    let get = || s3.ask("GET", ("lists", "b"), &[], &[origin], b"").is(200);
    assert_eq!(get().header("access-control-allow-origin"), "");
    s3.list("lists", &[("cors", "")]).fails(404, "NoSuchCORSConfiguration");
    s3.ask("PUT", ("lists", ""), &[("cors", "")], &[], CORS.as_bytes()).is(200);
    assert_eq!(s3.list("lists", &[("cors", "")]).is(200).element("AllowedOrigin"), "http://*.example");
    assert_eq!(get().header("access-control-allow-origin"), "http://a.example");
    let address = format!("{}/lists/b", s3.endpoint);
    let ask = |origin: &str, method: &str| {
        let headers =
            [("origin", origin), ("access-control-request-method", method), ("access-control-request-headers", "x-a")];
        s3.send("OPTIONS", &address, &headers, b"").unwrap()
    };
    let fine = ask("http://b.example", "GET").is(200);
    assert_eq!(fine.header("access-control-allow-origin"), "http://b.example");
    assert_eq!(fine.header("access-control-allow-headers"), "x-a");
    ask("http://b.other", "GET").is(403);
    ask("http://b.example", "PUT").is(403);
    s3.ask("DELETE", ("lists", ""), &[("cors", "")], &[], b"").is(204);
    ask("http://b.example", "GET").is(403);
}

/// The table in the README says of every operation what becomes of it.
fn table(s3: &S3) {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let (_, section) = readme.split_once("## S3").unwrap();
    let (section, _) = section.split_once("## Limits").unwrap();
    let mut rows: std::collections::BTreeMap<&str, &str> = std::collections::BTreeMap::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let (names, support) = row.trim_matches(['|', ' ']).split_once(" | ").unwrap();
        rows.extend(names.split_whitespace().map(|name| (name.trim_matches('`'), support)));
    }
    assert_eq!(rows.len(), OPERATIONS.len());
    s3.put("table", "", b"").is(200);
    for (name, method, key, query, headers, body) in OPERATIONS {
        let answer = if *key == "/" {
            s3.ask(method, ("", ""), query, headers, b"").is(200)
        } else {
            s3.ask(method, ("table", key), query, headers, body.as_bytes())
        };
        let support = rows[name];
        if support.starts_with("refused: ") {
            let code = support.trim_start_matches("refused: ").trim_matches('`');
            answer.fails(501, code);
        } else {
            assert!(support.starts_with("supported") || support.starts_with("partly: "), "{name}: {support}");
            assert_ne!(answer.status, 501, "{name}: {}", answer.text());
        }
    }
}
