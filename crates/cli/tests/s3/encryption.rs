//! Encrypted objects: read with their key alone, and plain nowhere.

use std::fs;
use std::path::Path;

use crate::client::{Answer, S3};
use crate::common::{Cluster, content, reservoir};

const ONE: [&str; 2] = ["MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", "hRasmdxgYDKV3nvbahU1MA=="];
const TWO: [&str; 2] = ["ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=", "dT1y7SEiqn6YCJ3QeqwoIw=="];

const SSE: &str = "x-amz-server-side-encryption";
const KEY_ID: &str = "x-amz-server-side-encryption-aws-kms-key-id";

/// One that rides in its manifest, one of a chunk, and one of several.
const SIZES: [usize; 4] = [0, 100, 200_000, 2_500_000];

/// The headers of a client's key.
fn customer([key, md5]: [&str; 2]) -> [(&'static str, &str); 3] {
    [
        ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
        ("x-amz-server-side-encryption-customer-key", key),
        ("x-amz-server-side-encryption-customer-key-md5", md5),
    ]
}

/// The same for what is copied.
fn source([key, md5]: [&str; 2]) -> [(&'static str, &str); 3] {
    [
        ("x-amz-copy-source-server-side-encryption-customer-algorithm", "AES256"),
        ("x-amz-copy-source-server-side-encryption-customer-key", key),
        ("x-amz-copy-source-server-side-encryption-customer-key-md5", md5),
    ]
}

fn put(s3: &S3, key: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    s3.ask("PUT", ("box", key), &[], headers, body)
}

fn get(s3: &S3, key: &str, headers: &[(&str, &str)]) -> Answer {
    s3.ask("GET", ("box", key), &[], headers, b"")
}

fn started(place: &tempfile::TempDir) -> (Cluster, S3) {
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3"]);
    let s3 = S3::of(&cluster);
    s3.put("box", "", b"").is(200);
    (cluster, s3)
}

#[test]
fn who_has_the_key_reads_and_nobody_else() {
    let place = tempfile::tempdir().unwrap();
    let (_cluster, s3) = started(&place);
    for size in SIZES {
        one_of(&s3, &content(size, size as u64));
    }
    bad_keys(&s3);
    parts(&s3);
}

fn one_of(s3: &S3, bytes: &[u8]) {
    let stored = put(s3, "c", &customer(ONE), bytes).is(200);
    let plain = put(s3, "p", &[], bytes).is(200);
    assert_ne!(stored.header("etag"), plain.header("etag"));
    assert_eq!(stored.header("x-amz-server-side-encryption-customer-key-md5"), ONE[1]);
    get(s3, "c", &[]).fails(400, "InvalidRequest");
    s3.head("box", "c").is(400);
    get(s3, "c", &customer(TWO)).fails(403, "AccessDenied");
    s3.ask("HEAD", ("box", "c"), &[], &customer(TWO), b"").is(403);
    get(s3, "p", &customer(ONE)).fails(400, "InvalidRequest");
    let read = get(s3, "c", &customer(ONE)).is(200);
    assert!(read.body == bytes);
    assert_eq!(read.header("x-amz-server-side-encryption-customer-algorithm"), "AES256");
    assert_eq!(read.header("etag"), stored.header("etag"));
    assert_eq!(read.header("content-length"), bytes.len().to_string());
    s3.ask("HEAD", ("box", "c"), &[], &customer(ONE), b"").is(200);
    let attributes = [("x-amz-object-attributes", "ETag,ObjectSize")];
    s3.ask("GET", ("box", "c"), &[("attributes", "")], &attributes, b"").fails(400, "InvalidRequest");
    let with_key = [&attributes[..], &customer(ONE)].concat();
    let told = s3.ask("GET", ("box", "c"), &[("attributes", "")], &with_key, b"").is(200);
    assert_eq!(told.element("ObjectSize"), bytes.len().to_string());
    for (from, to) in [(0, 0), (65_535, 65_536), (130_000, 150_000), (1_048_570, 1_048_600)] {
        if to < bytes.len() {
            let range = format!("bytes={from}-{to}");
            let part = get(s3, "c", &[&customer(ONE)[..], &[("range", range.as_str())]].concat()).is(206);
            assert!(part.body == bytes[from..=to], "{range}");
        }
    }
    copies(s3, bytes);
}

/// Copies from every way of encrypting to every other.
fn copies(s3: &S3, bytes: &[u8]) {
    let service = [(SSE, "AES256")];
    let named = [(SSE, "aws:kms")];
    put(s3, "s", &service, bytes).is(200);
    put(s3, "n", &named, bytes).is(200);
    let (one, of_one, two) = (customer(ONE), source(ONE), customer(TWO));
    let nothing: &[(&str, &str)] = &[];
    for (from, of_source) in [("p", nothing), ("c", &of_one), ("s", nothing), ("n", nothing)] {
        for (to, asks, reads) in [
            ("to-plain", nothing, nothing),
            ("to-customer", &two, &two),
            ("to-same", &one, &one),
            ("to-service", &service, nothing),
            ("to-named", &named, nothing),
        ] {
            let name = format!("box/{from}");
            let headers = [&[("x-amz-copy-source", name.as_str())], of_source, asks].concat();
            let copied = put(s3, to, &headers, b"").is(200);
            let read = get(s3, to, reads).is(200);
            assert!(read.body == bytes, "{from} {to}");
            assert_eq!(read.header("etag"), copied.element("ETag").replace("&quot;", "\""), "{from} {to}");
            let hash = s3.head("box", "p").header("etag").to_owned();
            let tells = to == "to-plain" || to == "to-service";
            assert_eq!(read.header("etag") == hash, tells, "{from} {to}");
            let method = if to == "to-service" { "AES256" } else { "" };
            let method = if to == "to-named" { "aws:kms" } else { method };
            assert_eq!(read.header(SSE), method, "{from} {to}");
        }
    }
    let lacking = [("x-amz-copy-source", "box/c")];
    put(s3, "to-plain", &lacking, b"").fails(400, "InvalidRequest");
    put(s3, "to-plain", &[&lacking[..], &source(TWO)].concat(), b"").fails(403, "AccessDenied");
}

fn bad_keys(s3: &S3) {
    let all = customer(ONE);
    put(s3, "x", &all[..2], b"x").fails(400, "InvalidArgument");
    put(s3, "x", &all[..1], b"x").fails(400, "InvalidArgument");
    put(s3, "x", &all[1..], b"x").fails(400, "InvalidArgument");
    put(s3, "x", &customer([ONE[0], TWO[1]]), b"x").fails(400, "InvalidArgument");
    put(s3, "x", &customer(["c2hvcnQ=", ONE[1]]), b"x").fails(400, "InvalidArgument");
    put(s3, "x", &[("x-amz-server-side-encryption-customer-algorithm", "AES128"), all[1], all[2]], b"x")
        .fails(400, "InvalidEncryptionAlgorithmError");
    put(s3, "x", &[&all[..], &[(SSE, "AES256")]].concat(), b"x").fails(400, "InvalidArgument");
    put(s3, "x", &[(SSE, "DES")], b"x").fails(400, "InvalidArgument");
    put(s3, "x", &[(SSE, "AES256"), (KEY_ID, "k")], b"x").fails(400, "InvalidArgument");
    put(s3, "x", &[(SSE, "aws:kms"), (KEY_ID, "none")], b"x").fails(400, "KMS.NotFoundException");
    get(s3, "p", &[(SSE, "AES256")]).fails(400, "InvalidArgument");
    s3.head("box", "x").is(404);
}

/// An upload in parts has one key for all of them.
fn parts(s3: &S3) {
    let (one, bytes) = (customer(ONE), content(5 << 20, 5));
    let id = s3.ask("POST", ("box", "m"), &[("uploads", "")], &one, b"").is(200).element("UploadId");
    let part = |number: &str, headers: &[(&str, &str)], body: &[u8]| {
        s3.ask("PUT", ("box", "m"), &[("partNumber", number), ("uploadId", &id)], headers, body)
    };
    part("1", &[], &bytes).fails(400, "InvalidRequest");
    part("1", &customer(TWO), &bytes).fails(400, "InvalidRequest");
    // The second one takes the place of the first.
    part("1", &one, &content(5 << 20, 6)).is(200);
    let tags = [part("1", &one, &bytes).is(200), {
        let copies = [&one[..], &source(ONE), &[("x-amz-copy-source", "box/c")]].concat();
        part("2", &copies, b"").is(200)
    }];
    let tags = [tags[0].header("etag").to_owned(), tags[1].element("ETag").replace("&quot;", "\"")];
    let listed =
        |number: usize| format!("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", number + 1, tags[number]);
    let xml = format!("<CompleteMultipartUpload>{}{}</CompleteMultipartUpload>", listed(0), listed(1));
    s3.ask("POST", ("box", "m"), &[("uploadId", &id)], &[], xml.as_bytes()).is(200);
    get(s3, "m", &[]).fails(400, "InvalidRequest");
    let whole = [&bytes[..], &content(SIZES[3], SIZES[3] as u64)].concat();
    assert!(get(s3, "m", &one).is(200).body == whole);
    let range = [&one[..], &[("range", "bytes=5242000-5243999")]].concat();
    assert!(get(s3, "m", &range).is(206).body == whole[5_242_000..5_244_000]);
    let second = s3.ask("GET", ("box", "m"), &[("partNumber", "2")], &one, b"").is(206);
    assert!(second.body == whole[5 << 20..]);
    let plain = s3.ask("POST", ("box", "m"), &[("uploads", "")], &[], b"").is(200).element("UploadId");
    let query = [("partNumber", "1"), ("uploadId", plain.as_str())];
    s3.ask("PUT", ("box", "m"), &query, &one, b"x").fails(400, "InvalidRequest");
}

fn encryption(s3: &S3, inside: &str) -> Answer {
    let rule =
        format!("<Rule><ApplyServerSideEncryptionByDefault>{inside}</ApplyServerSideEncryptionByDefault></Rule>");
    let xml = format!("<ServerSideEncryptionConfiguration>{rule}</ServerSideEncryptionConfiguration>");
    s3.ask("PUT", ("box", ""), &[("encryption", "")], &[], xml.as_bytes())
}

fn key(cluster: &Cluster, args: &[&str]) -> String {
    let config = cluster.config();
    let output = reservoir(&[&["key"], args, &["--config", &config]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_gateway_encrypts_with_keys_of_its_own_and_says_which_is_lost() {
    let place = tempfile::tempdir().unwrap();
    let (cluster, s3) = started(&place);
    s3.list("box", &[("encryption", "")]).fails(404, "ServerSideEncryptionConfigurationNotFoundError");
    put(&s3, "plain", &[], b"plain").is(200);
    encryption(&s3, "<SSEAlgorithm>DES</SSEAlgorithm>").fails(400, "MalformedXML");
    let with_key = "<SSEAlgorithm>AES256</SSEAlgorithm><KMSMasterKeyID>k</KMSMasterKeyID>";
    encryption(&s3, with_key).fails(400, "InvalidArgument");
    encryption(&s3, "<SSEAlgorithm>AES256</SSEAlgorithm>").is(200);
    assert_eq!(s3.list("box", &[("encryption", "")]).is(200).element("SSEAlgorithm"), "AES256");
    let big = content(2_500_000, 1);
    assert_eq!(put(&s3, "old", &[], &big).is(200).header(SSE), "AES256");
    assert_eq!(key(&cluster, &["rotate"]).trim(), "version 2 encrypts from now on");
    put(&s3, "new", &[], b"new").is(200);
    key(&cluster, &["add", "mine"]);
    assert_eq!(key(&cluster, &["list"]), "aws/s3  version 1\nmine  version 1\nsse-s3  version 2\n");
    encryption(&s3, "<SSEAlgorithm>aws:kms</SSEAlgorithm><KMSMasterKeyID>mine</KMSMasterKeyID>").is(200);
    let stored = put(&s3, "named", &[], b"named").is(200);
    assert_eq!((stored.header(SSE), stored.header(KEY_ID)), ("aws:kms", "mine"));
    put(&s3, "plainly", &[(SSE, "AES256")], b"asked").is(200);
    s3.ask("DELETE", ("box", ""), &[("encryption", "")], &[], b"").is(204);
    assert_eq!(put(&s3, "after", &[], b"after").is(200).header(SSE), "");
    let reads = || {
        assert!(get(&s3, "old", &[]).is(200).body == big);
        for (name, body) in [("new", "new"), ("named", "named"), ("plainly", "asked"), ("after", "after")] {
            assert_eq!(get(&s3, name, &[]).is(200).text(), body);
        }
        assert_eq!(s3.head("box", "named").is(200).header(KEY_ID), "mine");
        assert_eq!(s3.head("box", "plainly").is(200).header(SSE), "AES256");
    };
    reads();
    lost(&cluster, &s3);
    reads();
    demanded(&s3);
}

/// Without its key an object is an error that says so, and so it is with another one.
fn lost(cluster: &Cluster, s3: &S3) {
    let file = cluster.directory.join("keys.toml");
    let kept = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let missing = get(s3, "old", &[]).fails(500, "InternalError");
    assert!(missing.element("Message").contains("sse-s3") && missing.element("Message").contains("keys.toml"));
    let missing = get(s3, "named", &[]).fails(400, "KMS.NotFoundException");
    assert!(missing.element("Message").contains("mine"));
    put(s3, "x", &[(SSE, "AES256")], b"x").fails(500, "InternalError");
    assert_eq!(get(s3, "plain", &[]).is(200).text(), "plain");
    // Keys of the same names and versions, made anew.
    key(cluster, &["rotate"]);
    key(cluster, &["add", "mine"]);
    assert!(get(s3, "old", &[]).fails(500, "InternalError").element("Message").contains("is not the one"));
    get(s3, "named", &[]).fails(400, "KMS.InvalidCiphertextException");
    fs::write(&file, kept).unwrap();
}

/// A policy demands encryption, or refuses it.
fn demanded(s3: &S3) {
    let policy = r#"{"Version":"2012-10-17","Statement":[
        {"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::box/must/*",
         "Condition":{"StringNotEquals":{"s3:x-amz-server-side-encryption":"aws:kms"}}},
        {"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::box/must/*",
         "Condition":{"StringNotLikeIfExists":{"s3:x-amz-server-side-encryption-aws-kms-key-id":"*mine"}}},
        {"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::box/mine/*",
         "Condition":{"Null":{"s3:x-amz-server-side-encryption-customer-algorithm":"true"}}}]}"#;
    s3.ask("PUT", ("box", ""), &[("policy", "")], &[], policy.as_bytes()).is(204);
    put(s3, "must/k", &[], b"x").fails(403, "AccessDenied");
    put(s3, "must/k", &[(SSE, "AES256")], b"x").fails(403, "AccessDenied");
    put(s3, "must/k", &[(SSE, "aws:kms"), (KEY_ID, "aws/s3")], b"x").fails(403, "AccessDenied");
    put(s3, "must/k", &[(SSE, "aws:kms"), (KEY_ID, "alias/mine")], b"x").is(200);
    put(s3, "mine/k", &[(SSE, "AES256")], b"x").fails(403, "AccessDenied");
    put(s3, "mine/k", &customer(ONE), b"x").is(200);
}

/// Whether any file below a directory has these bytes.
fn has(directory: &Path, bytes: &[u8]) -> bool {
    fs::read_dir(directory).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return has(&path, bytes);
        }
        let found = fs::read(&path).unwrap_or_default();
        // The first byte finds candidates fast.
        found.windows(bytes.len()).any(|window| window[0] == bytes[0] && window == bytes)
    })
}

#[test]
fn no_plain_byte_of_an_encrypted_object_is_on_the_disk() {
    let place = tempfile::tempdir().unwrap();
    let (cluster, s3) = started(&place);
    let body = |mark: &str, size: usize| mark.bytes().cycle().take(size).collect::<Vec<u8>>();
    let named: &[(&str, &str)] = &[(SSE, "aws:kms")];
    let service: &[(&str, &str)] = &[(SSE, "AES256")];
    for (name, headers) in [("c", &customer(ONE)[..]), ("s", service), ("n", named)] {
        for size in [1_000, 200_000, 1_500_000] {
            let bytes = body(&format!("<secret of {name}>"), size);
            put(&s3, &format!("{name}{size}"), headers, &bytes).is(200);
            assert!(get(&s3, &format!("{name}{size}"), if name == "c" { headers } else { &[] }).is(200).body == bytes);
        }
    }
    let id = s3.ask("POST", ("box", "parts"), &[("uploads", "")], service, b"").is(200).element("UploadId");
    let query = [("partNumber", "1"), ("uploadId", id.as_str())];
    s3.ask("PUT", ("box", "parts"), &query, &[], &body("<secret of parts>", 300_000)).is(200);
    put(&s3, "open", &[], &body("<open>", 1_000)).is(200);
    put(&s3, "open2", &[], &body("<large and open>", 200_000)).is(200);
    let directory = cluster.crash();
    // What is not encrypted is found, so that the others would be.
    assert!(has(&directory, b"<open><open>") && has(&directory, b"<large and open><large"));
    for mark in ["<secret of c>", "<secret of s>", "<secret of n>", "<secret of parts>"] {
        assert!(!has(&directory, mark.as_bytes()), "{mark}");
    }
    // No key of a client either.
    assert!(!has(&directory, b"0123456789abcdef0123456789abcdef") && !has(&directory, ONE[0].as_bytes()));
}
