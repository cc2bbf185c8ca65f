//! Uploads in parts, versions, tags, users and the catalog, through the real binary and real sockets.

use std::fs;
use std::time::{Duration, Instant};

use md5::{Digest, Md5};

use crate::client::{Answer, S3};
use crate::common::{Cluster, content, reservoir, signal};

const MIB: usize = 1 << 20;
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn parts_versions_and_tags_are_those_of_s3_and_the_catalog_can_be_made_again() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--no-restart"]);
    let s3 = S3::of(&cluster);
    uploads(&s3);
    part_refusals(&s3);
    upload_lists(&s3);
    checksums(&s3);
    versions(&s3);
    suspended(&s3);
    version_lists(&s3);
    tags(&s3);
    users(&cluster, &s3);
    catalog(cluster, &s3);
}

fn create(s3: &S3, key: &str) -> String {
    let id = s3.ask("POST", ("parts", key), &[("uploads", "")], &[], b"").is(200).element("UploadId");
    assert_eq!(id.len(), 32);
    id
}

fn part(s3: &S3, key: &str, id: &str, number: usize, body: &[u8]) -> String {
    let number = number.to_string();
    let query = [("partNumber", number.as_str()), ("uploadId", id)];
    s3.ask("PUT", ("parts", key), &query, &[], body).is(200).header("etag").to_owned()
}

fn complete(s3: &S3, key: &str, id: &str, parts: &[(usize, String)]) -> Answer {
    let parts: String = parts
        .iter()
        .map(|(number, etag)| format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"))
        .collect();
    let xml = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    s3.ask("POST", ("parts", key), &[("uploadId", id)], &[], xml.as_bytes())
}

fn uploads(s3: &S3) {
    s3.put("parts", "", b"").is(200);
    let bodies = [content(5 * MIB + 3, 1), content(6 * MIB, 2), content(100, 3)];
    let id = create(s3, "k");
    // In any order, and one of them twice.
    let third = part(s3, "k", &id, 7, &bodies[2]);
    part(s3, "k", &id, 1, &bodies[1]);
    let first = part(s3, "k", &id, 1, &bodies[0]);
    let second = part(s3, "k", &id, 2, &bodies[1]);
    s3.head("parts", "k").is(404);
    let parts = [(1, first), (2, second), (7, third)];
    let done = complete(s3, "k", &id, &parts).is(200);
    let mut md5 = Md5::new();
    bodies.iter().for_each(|body| md5.update(Md5::digest(body)));
    let digits = hex_simd::encode_to_string(md5.finalize(), hex_simd::AsciiCase::Lower);
    let etag = format!("\"{digits}-3\"");
    assert_eq!(done.element("ETag").replace("&quot;", "\""), etag);
    let whole = bodies.concat();
    let got = s3.get("parts", "k").is(200);
    assert!(got.body == whole);
    assert_eq!(got.header("etag"), etag);
    let range = format!("bytes={}-{}", 5 * MIB, 5 * MIB + 10);
    let got = s3.ask("GET", ("parts", "k"), &[], &[("range", &range)], b"").is(206);
    assert_eq!(got.body, whole[5 * MIB..=5 * MIB + 10]);
    let got = s3.ask("GET", ("parts", "k"), &[("partNumber", "2")], &[], b"").is(206);
    assert!(got.body == bodies[1]);
    assert_eq!(got.header("x-amz-mp-parts-count"), "3");
    // Said again, it is answered as before; the upload is gone for everything else.
    complete(s3, "k", &id, &parts).is(200);
    s3.ask("DELETE", ("parts", "k"), &[("uploadId", &id)], &[], b"").fails(404, "NoSuchUpload");
    // A part that is a range of another object.
    let id = create(s3, "copied");
    let from = [("x-amz-copy-source", "/parts/k"), ("x-amz-copy-source-range", "bytes=1000-6000000")];
    let query = [("partNumber", "1"), ("uploadId", id.as_str())];
    let copied = s3.ask("PUT", ("parts", "copied"), &query, &from, b"").is(200);
    let tag = copied.element("ETag").replace("&quot;", "\"");
    complete(s3, "copied", &id, &[(1, tag)]).is(200);
    assert!(s3.get("parts", "copied").is(200).body == whole[1000..=6_000_000]);
}

fn part_refusals(s3: &S3) {
    let id = create(s3, "bad");
    let query = |number: &'static str| [("partNumber", number), ("uploadId", "0".repeat(32).leak() as &str)];
    s3.ask("PUT", ("parts", "bad"), &query("1"), &[], b"x").fails(404, "NoSuchUpload");
    for number in ["0", "10001", "-1"] {
        let query = [("partNumber", number), ("uploadId", id.as_str())];
        s3.ask("PUT", ("parts", "bad"), &query, &[], b"x").fails(400, "InvalidArgument");
    }
    let (one, two) = (part(s3, "bad", &id, 1, b"small"), part(s3, "bad", &id, 2, b"small too"));
    complete(s3, "bad", &id, &[(1, one.clone()), (2, two.clone())]).fails(400, "EntityTooSmall");
    complete(s3, "bad", &id, &[(2, two.clone()), (1, one.clone())]).fails(400, "InvalidPartOrder");
    complete(s3, "bad", &id, &[(1, two.clone())]).fails(400, "InvalidPart");
    complete(s3, "bad", &id, &[(3, two)]).fails(400, "InvalidPart");
    complete(s3, "bad", &id, &[]).fails(400, "MalformedXML");
    complete(s3, "other", &id, &[(1, one)]).fails(404, "NoSuchUpload");
    s3.delete("parts", "").fails(409, "BucketNotEmpty");
    s3.ask("DELETE", ("parts", "bad"), &[("uploadId", &id)], &[], b"").is(204);
    s3.ask("DELETE", ("parts", "bad"), &[("uploadId", &id)], &[], b"").fails(404, "NoSuchUpload");
    s3.head("parts", "bad").is(404);
}

fn upload_lists(s3: &S3) {
    let mut ids: Vec<(String, String)> = ["a/1", "a/2", "b", "b"].map(|key| (key.to_owned(), create(s3, key))).to_vec();
    ids.sort_unstable();
    let listed = s3.list("parts", &[("uploads", "")]).is(200);
    let found: Vec<_> = listed.elements("Key").into_iter().zip(listed.elements("UploadId")).collect();
    assert_eq!(found, ids);
    let folded = s3.list("parts", &[("uploads", ""), ("delimiter", "/")]).is(200);
    assert_eq!(folded.elements("Key"), ["b", "b"]);
    assert_eq!(folded.elements("CommonPrefixes"), ["<Prefix>a/</Prefix>"]);
    let mut found = vec![];
    let (mut key, mut id) = (String::new(), String::new());
    loop {
        let query =
            [("uploads", ""), ("max-uploads", "1"), ("key-marker", key.as_str()), ("upload-id-marker", id.as_str())];
        let query = if key.is_empty() { &query[..2] } else { &query[..] };
        let page = s3.list("parts", query).is(200);
        found.extend(page.elements("Key").into_iter().zip(page.elements("UploadId")));
        if page.element("IsTruncated") != "true" {
            break;
        }
        (key, id) = (page.element("NextKeyMarker"), page.element("NextUploadIdMarker"));
    }
    assert_eq!(found, ids);
    let (key, id) = &ids[0];
    let tags: Vec<String> = (1..4).map(|n| part(s3, key, id, n, &[n as u8])).collect();
    let ask = |query: &[(&str, &str)]| s3.ask("GET", ("parts", key), query, &[], b"").is(200);
    let page = ask(&[("uploadId", id), ("max-parts", "2")]);
    assert_eq!(page.elements("PartNumber"), ["1", "2"]);
    assert_eq!(page.element("NextPartNumberMarker"), "2");
    let page = ask(&[("uploadId", id), ("part-number-marker", "2")]);
    assert_eq!(page.element("ETag").replace("&quot;", "\""), tags[2]);
    assert_eq!(page.element("IsTruncated"), "false");
    for (key, id) in &ids {
        s3.ask("DELETE", ("parts", key), &[("uploadId", id)], &[], b"").is(204);
    }
}

fn checksums(s3: &S3) {
    let put = |key: &str, headers: &[(&str, &str)]| s3.ask("PUT", ("parts", key), &[], headers, b"123456789");
    // The check values of the CRCs in their catalogue, and the hashes of "123456789".
    let good = [
        ("x-amz-checksum-crc32", "y/Q5Jg=="),
        ("x-amz-checksum-crc32c", "4waSgw=="),
        ("x-amz-checksum-crc64nvme", "rosUhgp5mIg="),
        ("x-amz-checksum-sha1", "98O8HYCOBHMq32eZZczDTKeuNEE="),
        ("x-amz-checksum-sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
    ];
    for (name, value) in good {
        assert_eq!(put("sum", &[(name, value)]).is(200).header(name), value);
        put("sum", &[(name, &format!("A{}", &value[1..]))]).fails(400, "BadDigest");
        put("sum", &[(name, "AAAA")]).fails(400, "InvalidRequest");
    }
    put("sum", &good[..2]).fails(400, "InvalidRequest");
    put("sum", &[good[0]]).is(200);
    let got = s3.ask("GET", ("parts", "sum"), &[], &[("x-amz-checksum-mode", "ENABLED")], b"").is(200);
    assert_eq!((got.header("x-amz-checksum-crc32"), got.header("x-amz-checksum-type")), ("y/Q5Jg==", "FULL_OBJECT"));
    assert_eq!(s3.get("parts", "sum").is(200).header("x-amz-checksum-crc32"), "");
}

fn versioning(s3: &S3, bucket: &str, status: &str) {
    let xml = format!("<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>");
    s3.ask("PUT", (bucket, ""), &[("versioning", "")], &[], xml.as_bytes()).is(200);
    let printed = s3.list(bucket, &[("versioning", "")]).is(200);
    assert_eq!(printed.element("Status"), status);
}

fn versions(s3: &S3) {
    s3.put("versions", "", b"").is(200);
    assert_eq!(s3.list("versions", &[("versioning", "")]).is(200).element("Status"), "");
    let before = s3.put("versions", "k", b"null").is(200);
    assert_eq!(before.header("x-amz-version-id"), "");
    versioning(s3, "versions", "Enabled");
    let ids: Vec<String> =
        (1..4).map(|n| s3.put("versions", "k", &[n]).is(200).header("x-amz-version-id").to_owned()).collect();
    let get = |id: &str| s3.ask("GET", ("versions", "k"), &[("versionId", id)], &[], b"");
    assert_eq!(s3.get("versions", "k").is(200).body, [3]);
    assert_eq!(get(&ids[0]).is(200).body, [1]);
    assert_eq!(get("null").is(200).body, b"null");
    get(&"0".repeat(32)).fails(404, "NoSuchVersion");
    get("what").fails(400, "InvalidArgument");
    let gone = s3.delete("versions", "k").is(204);
    assert_eq!(gone.header("x-amz-delete-marker"), "true");
    let marker = gone.header("x-amz-version-id").to_owned();
    let missing = s3.get("versions", "k").fails(404, "NoSuchKey");
    assert_eq!(missing.header("x-amz-delete-marker"), "true");
    let refused = get(&marker).fails(405, "MethodNotAllowed");
    assert_eq!((refused.header("allow"), refused.header("x-amz-delete-marker")), ("DELETE", "true"));
    assert!(refused.header("last-modified").ends_with("GMT"));
    assert_eq!(s3.list("versions", &[]).is(200).elements("Key").len(), 0);
    s3.delete("versions", "").fails(409, "BucketNotEmpty");
    let delete = |id: &str| s3.ask("DELETE", ("versions", "k"), &[("versionId", id)], &[], b"").is(204);
    assert_eq!(delete(&marker).header("x-amz-delete-marker"), "true");
    assert_eq!(s3.get("versions", "k").is(200).body, [3]);
    delete(&ids[2]);
    assert_eq!(s3.get("versions", "k").is(200).body, [2]);
    delete("null");
    get("null").fails(404, "NoSuchVersion");
    // An older version copied over the newest.
    let from = [("x-amz-copy-source", format!("versions/k?versionId={}", ids[0]))];
    s3.ask("PUT", ("versions", "k"), &[], &[(from[0].0, &from[0].1)], b"").is(200);
    assert_eq!(s3.get("versions", "k").is(200).body, [1]);
}

fn suspended(s3: &S3) {
    s3.put("suspended", "", b"").is(200);
    versioning(s3, "suspended", "Enabled");
    let kept = s3.put("suspended", "k", b"kept").is(200).header("x-amz-version-id").to_owned();
    versioning(s3, "suspended", "Suspended");
    s3.put("suspended", "k", b"null 1").is(200);
    s3.put("suspended", "k", b"null 2").is(200);
    let listed = s3.list("suspended", &[("versions", "")]).is(200);
    assert_eq!(listed.elements("VersionId"), ["null", &kept]);
    let gone = s3.delete("suspended", "k").is(204);
    assert_eq!((gone.header("x-amz-version-id"), gone.header("x-amz-delete-marker")), ("null", "true"));
    let listed = s3.list("suspended", &[("versions", "")]).is(200);
    assert_eq!(listed.elements("VersionId").len(), 2);
    assert_eq!(s3.ask("GET", ("suspended", "k"), &[("versionId", &kept)], &[], b"").is(200).body, b"kept");
}

fn version_lists(s3: &S3) {
    s3.put("listed", "", b"").is(200);
    versioning(s3, "listed", "Enabled");
    let mut expected = vec![];
    for key in ["a", "b/1", "b/2", "c"] {
        let mut ids: Vec<String> =
            (0..3_u8).map(|n| s3.put("listed", key, &[n]).is(200).header("x-amz-version-id").to_owned()).collect();
        ids.reverse();
        expected.extend(ids.into_iter().map(|id| (key.to_owned(), id)));
    }
    let page = s3.list("listed", &[("versions", "")]).is(200);
    let found: Vec<_> = page.elements("Key").into_iter().zip(page.elements("VersionId")).collect();
    assert_eq!(found, expected);
    assert_eq!(page.elements("IsLatest").iter().filter(|text| *text == "true").count(), 4);
    for most in ["1", "2", "5"] {
        let mut found = vec![];
        let (mut key, mut id) = (String::new(), String::new());
        loop {
            let query = [
                ("versions", ""),
                ("max-keys", most),
                ("key-marker", key.as_str()),
                ("version-id-marker", id.as_str()),
            ];
            let query = if key.is_empty() { &query[..2] } else { &query[..] };
            let page = s3.list("listed", query).is(200);
            found.extend(page.elements("Key").into_iter().zip(page.elements("VersionId")));
            if page.element("IsTruncated") != "true" {
                break;
            }
            (key, id) = (page.element("NextKeyMarker"), page.element("NextVersionIdMarker"));
        }
        assert_eq!(found, expected, "pages of {most}");
    }
    let page = s3.list("listed", &[("versions", ""), ("delimiter", "/")]).is(200);
    assert_eq!(page.elements("Key").len(), 6);
    assert_eq!(page.elements("CommonPrefixes"), ["<Prefix>b/</Prefix>"]);
}

fn tags(s3: &S3) {
    s3.put("tags", "", b"").is(200);
    s3.ask("PUT", ("tags", "k"), &[], &[("x-amz-tagging", "a=1&b=x%20y")], &content(70_000, 4)).is(200);
    let get = || s3.ask("GET", ("tags", "k"), &[("tagging", "")], &[], b"").is(200);
    assert_eq!(
        (get().elements("Key"), get().elements("Value")),
        (vec!["a".into(), "b".into()], vec!["1".into(), "x y".into()])
    );
    assert_eq!(s3.get("tags", "k").is(200).header("x-amz-tagging-count"), "2");
    let xml = "<Tagging><TagSet><Tag><Key>c</Key><Value>ü</Value></Tag></TagSet></Tagging>";
    s3.ask("PUT", ("tags", "k"), &[("tagging", "")], &[], xml.as_bytes()).is(200);
    assert_eq!((get().element("Key"), get().element("Value")), ("c".to_owned(), "ü".to_owned()));
    assert!(s3.get("tags", "k").is(200).body == content(70_000, 4));
    s3.ask("DELETE", ("tags", "k"), &[("tagging", "")], &[], b"").is(204);
    assert_eq!(get().elements("Key").len(), 0);
    s3.ask("GET", ("tags", "missing"), &[("tagging", "")], &[], b"").fails(404, "NoSuchKey");
    s3.ask("PUT", ("tags", "k"), &[], &[("x-amz-tagging", "a=1&a=2")], b"x").fails(400, "InvalidArgument");
    s3.ask("PUT", ("tags", "k"), &[], &[("x-amz-tagging", "=1")], b"x").fails(400, "InvalidTag");
}

fn users(cluster: &Cluster, s3: &S3) {
    let printed = String::from_utf8(cluster.run(&["user", "add", "ann"])).unwrap();
    let value = |name: &str| printed.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    let ann = S3::new(&s3.endpoint, &value("access key:"), &value("secret key:"));
    ann.put("anns", "", b"").is(200);
    ann.put("anns", "k", b"hers").is(200);
    ann.put("tags", "k", b"x").fails(403, "AccessDenied");
    ann.get("tags", "k").fails(403, "AccessDenied");
    ann.put("tags", "", b"").fails(409, "BucketAlreadyExists");
    s3.get("anns", "k").fails(403, "AccessDenied");
    let from = [("x-amz-copy-source", "tags/k")];
    ann.ask("PUT", ("anns", "stolen"), &[], &from, b"").fails(403, "AccessDenied");
    let listed = String::from_utf8(cluster.run(&["user", "list"])).unwrap();
    assert!(listed.contains("ann") && listed.contains("admin") && !listed.contains(&ann.secret), "{listed}");
    cluster.run(&["user", "remove", "ann"]);
    ann.get("anns", "k").fails(403, "InvalidAccessKeyId");
}

/// The catalog is made again from the manifests, and nothing is different for anybody who asks.
fn catalog(cluster: Cluster, s3: &S3) {
    let seen = |s3: &S3| -> Vec<String> {
        let buckets = ["parts", "versions", "suspended", "listed", "tags"];
        let lists = buckets.iter().map(|bucket| s3.list(bucket, &[("versions", "")]).is(200).text());
        let settings = buckets.iter().map(|bucket| s3.list(bucket, &[("versioning", "")]).is(200).text());
        lists.chain(settings).collect()
    };
    let before = seen(s3);
    let check = String::from_utf8(cluster.run(&["catalog", "check"])).unwrap();
    assert!(check.contains("0 differences"), "{check}");
    let config = cluster.config();
    let refused = reservoir(&["catalog", "rebuild", "--config", &config]);
    assert!(!refused.status.success(), "the gateway runs");
    signal(cluster.children("gateway")[0], "-KILL");
    let file = cluster.directory.join("catalog.sqlite");
    for _ in 0..2 {
        let rebuild = || reservoir(&["catalog", "rebuild", "--config", &config]).status.success();
        assert!((0..1_000).any(|_| rebuild()), "the killed gateway holds the catalog");
        let check = String::from_utf8(cluster.run(&["catalog", "check"])).unwrap();
        assert!(check.contains("0 differences"), "{check}");
        // And once more from nothing.
        std::fs::remove_file(&file).unwrap();
    }
    // A damaged one is not believed, nor taken for an empty one.
    std::fs::write(&file, b"no catalog".repeat(4_096)).unwrap();
    for command in [&["check"][..], &["rebuild"]] {
        let refused = reservoir(&[&["catalog"], command, &["--config", &config]].concat());
        let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && printed.contains("damaged") && printed.contains("--from-manifests"),
            "{printed}"
        );
    }
    let dry = String::from_utf8(cluster.run(&["catalog", "rebuild", "--from-manifests", "--dry-run"])).unwrap();
    assert!(dry.contains("adds ") && dry.contains(" 0 removed") && dry.contains("nothing was changed"), "{dry}");
    assert!(std::fs::read(&file).unwrap().starts_with(b"no catalog"));
    cluster.run(&["catalog", "rebuild", "--from-manifests"]);
    let rebuilt = String::from_utf8(cluster.run(&["catalog", "rebuild"])).unwrap();
    assert!(rebuilt.contains("done: 0 added, 0 brought back, 0 removed, 0 changed"), "{rebuilt}");
    std::fs::remove_file(&file).unwrap();
    // An empty catalog differs, and the command says so.
    assert!(!reservoir(&["catalog", "check", "--config", &config]).status.success());
    cluster.run(&["catalog", "rebuild"]);
    let directory = cluster.directory.clone();
    assert!(cluster.stop());
    let cluster = Cluster::start(&directory, &[]);
    let s3 = S3::of(&cluster);
    assert_eq!(seen(&s3), before);
    assert!(s3.get("tags", "k").is(200).body == content(70_000, 4));
    s3.get("parts", "k").is(200);
    lifecycle(cluster, &s3);
}

/// What has expired is gone when a gateway has swept, which it does when it starts.
fn lifecycle(cluster: Cluster, s3: &S3) {
    s3.put("ends", "", b"").is(200);
    for key in ["old/1", "old/2", "young"] {
        s3.put("ends", key, b"x").is(200);
    }
    let rule = |what: &str| {
        let xml = format!(
            "<LifecycleConfiguration><Rule><ID>a</ID><Filter><Prefix>old/</Prefix></Filter><Status>Enabled</Status>\
             {what}</Rule></LifecycleConfiguration>"
        );
        s3.ask("PUT", ("ends", ""), &[("lifecycle", "")], &[], xml.as_bytes())
    };
    rule("<Transition><Days>1</Days><StorageClass>GLACIER</StorageClass></Transition>")
        .fails(400, "InvalidStorageClass");
    rule("<Expiration><Days>0</Days></Expiration>").fails(400, "InvalidArgument");
    rule("").fails(400, "MalformedXML");
    s3.list("ends", &[("lifecycle", "")]).fails(404, "NoSuchLifecycleConfiguration");
    rule("<Expiration><Date>2020-01-01T00:00:00Z</Date></Expiration>").is(200);
    let printed = s3.list("ends", &[("lifecycle", "")]).is(200);
    assert_eq!((printed.element("ID"), printed.element("Prefix")), ("a".to_owned(), "old/".to_owned()));
    let directory = cluster.directory.clone();
    assert!(cluster.stop());
    let cluster = Cluster::start(&directory, &[]);
    let s3 = S3::of(&cluster);
    let is_left = |s3: &S3, left: &[&str]| {
        let deadline = Instant::now() + LIMIT;
        while s3.list("ends", &[]).is(200).elements("Key") != left {
            assert!(Instant::now() < deadline, "expired objects stay");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    is_left(&s3, &["young"]);
    // A day may be short.
    assert!(cluster.stop());
    let file = directory.join("gateway.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen("[s3]\n", "[s3]\nlifecycle_day_seconds = 1\n", 1)).unwrap();
    let cluster = Cluster::start(&directory, &[]);
    let s3 = S3::of(&cluster);
    s3.put("ends", "old/3", b"x").is(200);
    let xml = "<LifecycleConfiguration><Rule><Filter><Prefix>old/</Prefix></Filter><Status>Enabled</Status>\
               <Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>";
    s3.ask("PUT", ("ends", ""), &[("lifecycle", "")], &[], xml.as_bytes()).is(200);
    assert_eq!(s3.list("ends", &[("lifecycle", "")]).is(200).element("ID").len(), 32);
    is_left(&s3, &["young"]);
    drop(cluster);
}
