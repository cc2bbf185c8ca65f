//! What answers say beside what was asked for, as AWS has it, through the real binary.

use std::io::{Read, Write};
use std::net::TcpStream;

use jiff::Timestamp;

use crate::client::{Answer, S3};
use crate::common::{Cluster, content};

const B: &str = "answers";
const CORS: &str = "<CORSConfiguration><CORSRule><AllowedOrigin>http://*.example</AllowedOrigin>\
                    <AllowedMethod>GET</AllowedMethod><AllowedHeader>x-a</AllowedHeader></CORSRule><CORSRule>\
                    <AllowedOrigin>http://put.example</AllowedOrigin><AllowedMethod>PUT</AllowedMethod></CORSRule>\
                    </CORSConfiguration>";

/// A user beside the first.
pub(crate) fn ann(cluster: &Cluster, s3: &S3) -> S3 {
    let printed = String::from_utf8(cluster.run(&["user", "add", "ann"])).unwrap();
    let value = |name: &str| printed.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    S3::new(&s3.endpoint, &value("access key:"), &value("secret key:"))
}

#[test]
fn answers_say_what_those_of_aws_say() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3"]);
    let s3 = S3::of(&cluster);
    let ann = ann(&cluster, &s3);
    s3.put(B, "", b"").is(200);
    ids(&s3);
    buckets(&s3, &ann);
    delimiters(&s3);
    encodings(&s3);
    preflights(&s3);
    before_the_body(&s3, &ann);
    metadata(&s3);
    uploads(&s3);
    ways_to_sign(&s3);
    arguments(&s3);
    assert!(cluster.stop());
}

/// Every answer names its request and its gateway, and an error says what happened to what.
fn ids(s3: &S3) {
    let mut seen = std::collections::BTreeSet::new();
    let mut id = |answer: &Answer| {
        let id = answer.header("x-amz-request-id").to_owned();
        assert!(!id.is_empty() && !answer.header("x-amz-id-2").is_empty(), "{answer:?}");
        assert!(seen.insert(id.clone()), "{id} twice");
        id
    };
    let mut error = |answer: Answer, message: &str, resource: &str| {
        assert_eq!(answer.element("RequestId"), id(&answer), "{}", answer.text());
        assert_eq!(answer.element("HostId"), answer.header("x-amz-id-2"));
        assert_eq!((answer.element("Message").as_str(), answer.element("Resource").as_str()), (message, resource));
        assert_eq!(answer.header("content-type"), "application/xml");
        answer
    };
    let missing = error(s3.get(B, "a&b"), "The specified key does not exist.", "/answers/a&amp;b");
    assert_eq!(missing.fails(404, "NoSuchKey").element("Key"), "a&amp;b");
    let missing = error(s3.list("no-such-bucket", &[]), "The specified bucket does not exist", "/no-such-bucket/");
    assert_eq!(missing.fails(404, "NoSuchBucket").element("BucketName"), "no-such-bucket");
    let refused = s3.send("GET", &format!("{}/{B}/k", s3.endpoint), &[], b"").unwrap();
    error(refused, "Access Denied", "/answers/k").fails(403, "AccessDenied");
    s3.put(B, "k", b"0123456789").is(200);
    let range = s3.ask("GET", (B, "k"), &[], &[("range", "bytes=10-")], b"");
    error(range, "The requested range is not satisfiable", "/answers/k").fails(416, "InvalidRange");
    let tags = s3.list(B, &[("tagging", "")]);
    error(tags, "The TagSet does not exist", "/answers/").fails(404, "NoSuchTagSet");
    let old = [("authorization", "AWS key:signature")];
    let old = s3.send("GET", &format!("{}/{B}/k", s3.endpoint), &old, b"").unwrap().fails(400, "InvalidRequest");
    assert_eq!(old.element("RequestId"), id(&old));
    for answer in
        [s3.head(B, "none").is(404), s3.get(B, "k").is(200), s3.head(B, "k").is(200), s3.put(B, "l", b"").is(200)]
    {
        id(&answer);
    }
    let tag = s3.head(B, "k").is(200).header("etag").to_owned();
    let same = s3.ask("GET", (B, "k"), &[], &[("if-none-match", &tag)], b"").is(304);
    assert!(same.header("last-modified").ends_with("GMT") && same.header("content-type").is_empty(), "{same:?}");
    id(&same);
}

fn buckets(s3: &S3, ann: &S3) {
    s3.put("uploads-only", "", b"").is(200);
    let upload = s3.ask("POST", ("uploads-only", "k"), &[("uploads", "")], &[], b"").is(200).element("UploadId");
    let query = [("partNumber", "1"), ("uploadId", upload.as_str())];
    s3.ask("PUT", ("uploads-only", "k"), &query, &[], &content(100_000, 1)).is(200);
    s3.delete("uploads-only", "").is(204);
    s3.ask("PUT", ("uploads-only", "k"), &query, &[], b"x").fails(404, "NoSuchBucket");
    s3.put("uploads-only", "", b"").is(200);
    assert_eq!(s3.list("uploads-only", &[("uploads", "")]).is(200).elements("UploadId").len(), 0);
    s3.ask("PUT", ("uploads-only", "k"), &query, &[], b"x").fails(404, "NoSuchUpload");
    // In this region whoever has a bucket may make it again, and nothing of it changes.
    s3.put("uploads-only", "k", b"kept").is(200);
    assert_eq!(s3.put("uploads-only", "", b"").is(200).header("location"), "/uploads-only");
    assert_eq!(s3.get("uploads-only", "k").is(200).body, b"kept");
    ann.put("uploads-only", "", b"").fails(409, "BucketAlreadyExists");
}

fn delimiters(s3: &S3) {
    for query in [&[][..], &[("list-type", "2")], &[("versions", "")], &[("uploads", "")]] {
        let with = |delimiter| s3.list(B, &[query, &[("delimiter", delimiter)]].concat()).is(200);
        assert!(!with("").text().contains("<Delimiter"), "{query:?}: {}", with("").text());
        assert_eq!(with("/").element("Delimiter"), "/");
    }
    s3.list(B, &[("max-keys", "blah")]).fails(400, "InvalidArgument");
    let page = s3.list(B, &[("uploads", "")]).text();
    assert!(page.contains("<KeyMarker") && page.contains("<UploadIdMarker"), "{page}");
}

fn encodings(s3: &S3) {
    for (given, kept) in
        [("gzip", "gzip"), ("deflate, gzip", "deflate, gzip"), ("aws-chunked", ""), ("gzip, aws-chunked", "gzip")]
    {
        s3.ask("PUT", (B, "encoded"), &[], &[("content-encoding", given)], b"x").is(200);
        assert_eq!(s3.head(B, "encoded").is(200).header("content-encoding"), kept);
    }
}

fn preflights(s3: &S3) {
    let ask = |bucket: &str, headers: &[(&str, &str)]| {
        s3.send("OPTIONS", &format!("{}/{bucket}/k", s3.endpoint), headers, b"").unwrap()
    };
    let refused = |answer: Answer, message: &str| {
        let answer = answer.fails(403, "AccessForbidden");
        assert!(answer.element("Message").starts_with(message), "{}", answer.text());
        assert!(!answer.element("Method").is_empty() && answer.element("ResourceType") == "OBJECT");
        assert_eq!(answer.header("access-control-allow-origin"), "");
    };
    let (a, put) = (("origin", "http://a.example"), ("origin", "http://put.example"));
    let method = |name: &'static str| ("access-control-request-method", name);
    refused(ask("no-such-bucket", &[a, method("GET")]), "CORSResponse: Bucket not found");
    refused(ask(B, &[a, method("GET")]), "CORSResponse: CORS is not enabled for this bucket.");
    s3.ask("PUT", (B, ""), &[("cors", "")], &[], CORS.as_bytes()).is(200);
    ask(B, &[]).fails(400, "BadRequest");
    ask(B, &[a]).fails(400, "BadRequest");
    ask(B, &[a, method("FETCH")]).fails(400, "BadRequest");
    refused(ask(B, &[a, method("PUT")]), "CORSResponse: This CORS request is not allowed.");
    refused(ask(B, &[a, method("GET"), ("access-control-request-headers", "x-b")]), "CORSResponse: This CORS");
    let fine = ask(B, &[a, method("GET"), ("access-control-request-headers", "X-A")]).is(200);
    assert_eq!(fine.header("access-control-allow-headers"), "x-a");
    assert_eq!((fine.header("access-control-allow-origin"), fine.header("access-control-allow-methods")), (a.1, "GET"));
    // The request itself, also when it is refused, and when it names the method of its preflight.
    let allowed = |method: &str, key: &str, headers: &[(&str, &str)]| {
        let address = format!("{}/{B}/{key}", s3.endpoint);
        let answer = s3.send(method, &address, headers, b"").unwrap().is(403);
        answer.header("access-control-allow-methods").to_owned()
    };
    assert_eq!(allowed("GET", "k", &[a]), "GET");
    assert_eq!((allowed("PUT", "k", &[a]), allowed("PUT", "k", &[put])), (String::new(), "PUT".to_owned()));
    assert_eq!(allowed("PUT", "k", &[a, method("GET")]), "GET");
    assert_eq!(allowed("GET", "k", &[a, method("DELETE")]), "");
}

/// The first line that is answered to a head that waits for "100 Continue".
fn first_line(s3: &S3, method: &str, path: &str, headers: &[(&str, &str)]) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 1000\r\n", s3.host());
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    let mut stream = TcpStream::connect(s3.host()).unwrap();
    write!(stream, "{head}Expect: 100-continue\r\n\r\n").unwrap();
    let mut answer = vec![];
    while !answer.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    String::from_utf8(answer).unwrap().split(' ').nth(1).unwrap().to_owned()
}

/// What is refused is refused before a client sends its body.
fn before_the_body(s3: &S3, ann: &S3) {
    type Asked<'a> = (&'a str, (&'a str, &'a str), &'a [(&'a str, &'a str)], &'a [(&'a str, &'a str)]);
    let first = |s3: &S3, (method, place, query, headers): Asked<'_>| {
        let address = s3.address_with(method, place, query, headers, Timestamp::now());
        first_line(s3, method, address.strip_prefix(&s3.endpoint).unwrap(), headers)
    };
    let put = |headers: &[(&str, &str)]| first(s3, ("PUT", (B, "k"), &[], headers));
    assert_eq!(put(&[]), "100");
    assert_eq!(put(&[("if-none-match", "*")]), "412");
    assert_eq!(put(&[("if-match", "\"x\"")]), "412");
    for bad in [
        ("content-md5", "AAAA"),
        ("x-amz-checksum-crc32", "AAAA"),
        ("x-amz-sdk-checksum-algorithm", "MD4"),
        ("x-amz-tagging", "a=%zz"),
        ("x-amz-object-lock-mode", "GOVERNANCE"),
    ] {
        assert_eq!(put(&[bad]), "400", "{bad:?}");
    }
    let upload = s3.ask("POST", (B, "parts"), &[("uploads", "")], &[], b"").is(200).element("UploadId");
    let part = |number| [("partNumber", number), ("uploadId", upload.as_str())];
    assert_eq!(first(s3, ("PUT", (B, "parts"), &part("1"), &[])), "100");
    assert_eq!(first(s3, ("PUT", (B, "parts"), &part("0"), &[])), "400");
    assert_eq!(first(s3, ("PUT", (B, "parts"), &part("1"), &[("content-md5", "AAAA")])), "400");
    assert_eq!(first(s3, ("PUT", ("no-such-bucket", ""), &[("tagging", "")], &[])), "404");
    assert_eq!(first(s3, ("POST", ("no-such-bucket", ""), &[("delete", "")], &[])), "404");
    assert_eq!(first(s3, ("PUT", (B, ""), &[("tagging", "")], &[])), "100");
    assert_eq!(first(s3, ("POST", (B, ""), &[("delete", "")], &[])), "100");
    for query in [[("tagging", "")], [("policy", "")]] {
        assert_eq!(first(ann, ("PUT", (B, ""), &query, &[])), "403");
    }
    assert_eq!(first_line(s3, "PUT", &format!("/{B}/k"), &[]), "403");
    assert_eq!(s3.get(B, "k").is(200).body, b"0123456789");
}

/// Metadata beyond ASCII is UTF-8 or ISO-8859-1 in a request, and encoded by RFC 2047 in an answer.
fn metadata(s3: &S3) {
    let signed = |value| s3.address_with("PUT", (B, "meta"), &[], &[("x-amz-meta-a", value)], Timestamp::now());
    let encoded = "=?UTF-8?B?aMOp?=";
    for (sent, covered) in
        [(&b"h\xe9"[..], "h\u{e9}"), ("h\u{e9}".as_bytes(), "h\u{e9}"), (encoded.as_bytes(), encoded)]
    {
        let address = signed(covered);
        let path = address.strip_prefix(&s3.endpoint).unwrap();
        let head = format!("PUT {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 1\r\nConnection: close\r\n", s3.host());
        let request = [head.as_bytes(), b"x-amz-meta-a: ", sent, b"\r\n\r\nx"].concat();
        let answer = s3.exchange(&request, false);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{sent:?}: {answer}");
        assert_eq!(s3.head(B, "meta").is(200).header("x-amz-meta-a"), encoded);
    }
    s3.ask("PUT", (B, "meta"), &[], &[("x-amz-meta-a", "plain")], b"x").is(200);
    assert_eq!(s3.head(B, "meta").is(200).header("x-amz-meta-a"), "plain");
}

/// Copies of parts say what is wrong with their range, and a completed upload where its object is.
fn uploads(s3: &S3) {
    s3.put(B, "five", b"01234").is(200);
    let key = "a dir/whole+\u{fc}";
    let upload = s3.ask("POST", (B, key), &[("uploads", "")], &[], b"").is(200).element("UploadId");
    let query = [("partNumber", "1"), ("uploadId", upload.as_str())];
    let copy = |range: &str| {
        let headers = [("x-amz-copy-source", "answers/five"), ("x-amz-copy-source-range", range)];
        s3.ask("PUT", (B, key), &query, &headers, b"")
    };
    for bad in ["0-2", "bytes=0", "bytes=hello-2", "bytes=0-2,3-4", "bytes=3-2", "bytes=+0-2", "bytes=0-5"] {
        copy(bad).fails(400, "InvalidArgument");
    }
    let copied = copy("bytes=1-3").is(200);
    assert!(!copied.element("ChecksumCRC64NVME").is_empty(), "{}", copied.text());
    let tag = copied.element("ETag");
    let xml = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></CompleteMultipartUpload>"
    );
    let done = s3.ask("POST", (B, key), &[("uploadId", &upload)], &[], xml.as_bytes()).is(200);
    let location = done.element("Location");
    let path = s3.address("GET", B, key, &[], Timestamp::now());
    assert_eq!(location, path.split_once('?').unwrap().0);
    let signature = path.split_once('?').unwrap().1;
    assert_eq!(s3.send("GET", &format!("{location}?{signature}"), &[], b"").unwrap().is(200).body, b"123");
}

fn ways_to_sign(s3: &S3) {
    let address = format!("{}/{B}/k", s3.endpoint);
    for (header, status, code) in [
        ("AWS HAHAHA", 400, "InvalidArgument"),
        ("Basic eDp5", 400, "InvalidArgument"),
        ("AWS4-HMAC-SHA256 Credential=HAHAHA", 400, "AuthorizationHeaderMalformed"),
        ("", 403, "AccessDenied"),
    ] {
        s3.send("GET", &address, &[("authorization", header)], b"").unwrap().fails(status, code);
    }
}

/// Methods and arguments that S3 does not have.
fn arguments(s3: &S3) {
    let send = |method: &str, path: &str| s3.send(method, &format!("{}/{path}", s3.endpoint), &[], b"").unwrap();
    for (method, path, kind) in [
        ("PATCH", "answers/k", "OBJECT"),
        ("PATCH", "answers", "BUCKET"),
        ("PUT", "", "SERVICE"),
        ("DELETE", "", "SERVICE"),
    ] {
        let refused = send(method, path).fails(405, "MethodNotAllowed");
        assert_eq!(refused.element("ResourceType"), kind);
        assert!(refused.header("allow").starts_with("GET"));
    }
    let fails =
        |key: &str, query: &[(&str, &str)]| s3.ask("GET", (B, key), query, &[], b"").fails(400, "InvalidArgument");
    fails("k", &[("partNumber", "0")]);
    fails("k", &[("partNumber", "10001")]);
    fails("", &[("versions", ""), ("version-id-marker", "null")]);
    for most in ["0", "10001"] {
        s3.ask("GET", ("", ""), &[("max-buckets", most)], &[], b"").fails(400, "InvalidArgument");
    }
    let elsewhere = s3.ask("GET", ("", ""), &[("bucket-region", "eu-west-1")], &[], b"").is(200);
    assert_eq!(elsewhere.elements("Name").len(), 0);
    let put = |headers: &[(&str, &str)]| s3.ask("PUT", (B, "bad"), &[], headers, b"x");
    put(&[("content-md5", "")]).fails(400, "InvalidDigest");
    put(&[("x-amz-tagging", "a=1&a=2")]).fails(400, "InvalidArgument");
    let create = |headers: &[(&str, &str)]| s3.ask("POST", (B, "bad"), &[("uploads", "")], headers, b"");
    let algorithm = |name| ("x-amz-checksum-algorithm", name);
    let kind = |name| ("x-amz-checksum-type", name);
    create(&[algorithm("MD4")]).fails(400, "InvalidRequest");
    create(&[algorithm("SHA256"), kind("FULL_OBJECT")]).fails(400, "InvalidRequest");
    create(&[kind("COMPOSITE")]).fails(400, "InvalidRequest");
    assert_eq!(create(&[algorithm("SHA256")]).is(200).header("x-amz-checksum-type"), "COMPOSITE");
    // What is missing is the source, and not what the address names.
    let copy = |from| s3.ask("PUT", (B, "copy"), &[], &[("x-amz-copy-source", from)], b"");
    assert_eq!(copy("no-such-bucket/k").fails(404, "NoSuchBucket").element("BucketName"), "");
    assert_eq!(copy("answers/none").fails(404, "NoSuchKey").element("Key"), "");
    s3.head(B, "bad").is(404);
}
