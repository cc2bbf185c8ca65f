//! One, two and three copies side by side in one cluster, as storage classes and buckets say.

use std::fs;

use serde_json::Value;

use crate::client::{Answer, S3};
use crate::common::{Classes, Cluster, content};

const MIB: usize = 1 << 20;
const CLASS: &str = "x-amz-storage-class";
const BUCKET: &str = "kept";

/// Bytes that the targets keep, all copies.
fn live(cluster: &Cluster) -> u64 {
    let status: Value = serde_json::from_slice(&cluster.run(&["status", "--json"])).unwrap();
    status["targets"].as_array().unwrap().iter().map(|target| target["live"].as_u64().unwrap()).sum()
}

/// How many copies of so many bytes something takes.
fn copies(cluster: &Cluster, bytes: usize, put: impl FnOnce()) -> f64 {
    let before = live(cluster);
    put();
    let taken = (live(cluster) - before) as f64 / bytes as f64;
    assert!((taken - taken.round()).abs() < 0.05, "{taken} copies");
    taken.round()
}

fn put(s3: &S3, key: &str, bytes: &[u8], class: Option<&str>) -> Answer {
    let headers: Vec<(&str, &str)> = class.map(|class| (CLASS, class)).into_iter().collect();
    s3.ask("PUT", (BUCKET, key), &[], &headers, bytes)
}

fn put_in_parts(s3: &S3, key: &str, bytes: &[u8], class: &str) {
    let id = s3.ask("POST", (BUCKET, key), &[("uploads", "")], &[(CLASS, class)], b"").is(200).element("UploadId");
    assert_eq!(s3.list(BUCKET, &[("uploads", "")]).is(200).element("StorageClass"), class);
    let part = |number: &str, bytes: &[u8]| {
        let query = [("partNumber", number), ("uploadId", id.as_str())];
        let tag = s3.ask("PUT", (BUCKET, key), &query, &[], bytes).is(200).header("etag").to_owned();
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>")
    };
    let (first, second) = bytes.split_at(5 * MIB);
    let parts = [part("1", first), part("2", second)].concat();
    let xml = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    s3.ask("POST", (BUCKET, key), &[("uploadId", &id)], &[], xml.as_bytes()).is(200);
}

fn tag(s3: &S3, class: &str) -> Answer {
    let tag = format!("<Tag><Key>reservoir:storage-class</Key><Value>{class}</Value></Tag>");
    let xml = format!("<Tagging><TagSet>{tag}</TagSet></Tagging>");
    s3.ask("PUT", (BUCKET, ""), &[("tagging", "")], &[], xml.as_bytes())
}

#[test]
fn each_object_has_the_copies_of_its_class() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("data");
    assert!(Cluster::start(&directory, &["--targets", "3"]).stop());
    let file = Classes::of(&directory);
    let (with, refused) = (|text: &str| file.write(text), |why: &str| file.refused(why));
    with("ONEZONE_IA = { copies = 0 }");
    refused("copies = 0: choose 1 to");
    with("SAFE = { copies = 4 }");
    refused("4 copies need 4 failure domains in every group");
    with("cold = { copies = 1 }");
    refused("a name is of capitals, digits and _");
    with("ONEZONE_IA = { copies = 1 }\nREDUCED_REDUNDANCY = { copies = 2 }");

    let cluster = Cluster::start(&directory, &[]);
    let s3 = S3::of(&cluster);
    s3.put(BUCKET, "", b"").is(200);
    put(&s3, "k", b"x", Some("GLACIER")).fails(400, "InvalidStorageClass");
    let contents: Vec<Vec<u8>> = (0..8).map(|seed| content(7 * MIB, seed)).collect();
    let classes = [(None, 3.0), (Some("STANDARD"), 3.0), (Some("REDUCED_REDUNDANCY"), 2.0), (Some("ONEZONE_IA"), 1.0)];
    for (n, (class, want)) in classes.into_iter().enumerate() {
        let (key, bytes) = (format!("k{n}"), &contents[n]);
        assert_eq!(copies(&cluster, bytes.len(), || drop(put(&s3, &key, bytes, class).is(200))), want, "{class:?}");
        let got = s3.get(BUCKET, &key).is(200);
        assert!(got.body == *bytes);
        let expected = class.filter(|class| *class != "STANDARD");
        assert_eq!(got.headers.get(CLASS).map(String::as_str), expected);
    }
    assert_eq!(
        s3.list(BUCKET, &[]).is(200).elements("StorageClass"),
        ["STANDARD", "STANDARD", "REDUCED_REDUNDANCY", "ONEZONE_IA"]
    );
    // In parts.
    assert_eq!(copies(&cluster, 7 * MIB, || put_in_parts(&s3, "parts", &contents[4], "ONEZONE_IA")), 1.0);
    assert!(s3.get(BUCKET, "parts").is(200).body == contents[4]);
    // From the command line.
    let path = place.path().join("file");
    fs::write(&path, &contents[7]).unwrap();
    let path = path.to_str().unwrap();
    let put_file = |class: &str| cluster.try_run(&["put", path, "s3://kept/file", "--class", class], b"");
    let refused = String::from_utf8(put_file("GLACIER").stderr).unwrap();
    assert!(refused.contains("InvalidStorageClass"), "{refused}");
    assert_eq!(copies(&cluster, 7 * MIB, || assert!(put_file("REDUCED_REDUNDANCY").status.success())), 2.0);
    let known: Value = serde_json::from_slice(&cluster.run(&["stat", "s3://kept/file", "--json"])).unwrap();
    assert_eq!(known["storage_class"], "REDUCED_REDUNDANCY");
    // As the bucket says, unless whoever puts says otherwise.
    tag(&s3, "GLACIER").fails(400, "InvalidStorageClass");
    tag(&s3, "REDUCED_REDUNDANCY").is(200);
    assert_eq!(copies(&cluster, 7 * MIB, || drop(put(&s3, "t", &contents[5], None).is(200))), 2.0);
    assert_eq!(copies(&cluster, 7 * MIB, || drop(put(&s3, "u", &contents[6], Some("ONEZONE_IA")).is(200))), 1.0);
    // A copy to itself with another class: the two copies that were missing.
    let again = [(CLASS, "STANDARD"), ("x-amz-copy-source", "kept/u")];
    assert_eq!(copies(&cluster, 7 * MIB, || drop(s3.ask("PUT", (BUCKET, "u"), &[], &again, b"").is(200))), 2.0);
    assert!(s3.get(BUCKET, "u").is(200).body == contents[6]);
    assert!(!s3.ask("HEAD", (BUCKET, "u"), &[], &[], b"").is(200).headers.contains_key(CLASS));
    assert!(cluster.stop());
    // A class that is gone: what has it is read as before.
    fs::write(directory.join("gateway.toml"), &file.plain).unwrap();
    let cluster = Cluster::start(&directory, &[]);
    let s3 = S3::of(&cluster);
    assert!(s3.get(BUCKET, "k3").is(200).body == contents[3]);
    put(&s3, "t", b"x", None).fails(400, "InvalidStorageClass");
    assert!(cluster.stop());
}

#[test]
fn small_objects_have_the_copies_of_a_class_that_has_more_than_the_cluster() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("data");
    assert!(Cluster::start(&directory, &["--targets", "3"]).stop());
    let config = directory.join("cluster.toml");
    let fewer = ["cluster", "plan", "--copies", "1", "--stored", "0", "--write", "--config", config.to_str().unwrap()];
    assert!(crate::common::reservoir(&fewer).status.success());
    let settings = directory.join("gateway.toml");
    let plain = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, format!("{plain}\n[s3.storage_class]\nSAFE = {{ copies = 3 }}\n")).unwrap();
    let cluster = Cluster::start(&directory, &[]);
    let s3 = S3::of(&cluster);
    s3.put(BUCKET, "", b"").is(200);
    let contents = content(60 << 10, 1);
    assert_eq!(copies(&cluster, contents.len(), || drop(put(&s3, "plain", &contents, None).is(200))), 1.0);
    let other = content(60 << 10, 2);
    assert_eq!(copies(&cluster, other.len(), || drop(put(&s3, "safe", &other, Some("SAFE")).is(200))), 3.0);
    assert!(cluster.stop());
}

#[test]
fn status_says_which_classes_a_silent_target_hides_objects_of() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("data");
    assert!(Cluster::start(&directory, &["--targets", "3"]).stop());
    let settings = directory.join("gateway.toml");
    let plain = fs::read_to_string(&settings).unwrap();
    let classes = "[s3.storage_class]\nONEZONE_IA = { copies = 1 }\nREDUCED_REDUNDANCY = { copies = 2 }";
    fs::write(&settings, format!("{plain}\n{classes}\n")).unwrap();
    let cluster = Cluster::start(&directory, &[]);
    let hidden = || {
        let status: Value = serde_json::from_slice(&cluster.run(&["status", "--json"])).unwrap();
        let text = String::from_utf8(cluster.run(&["status"])).unwrap();
        let class = |name: &str| status["classes"][name]["out_of_reach"].as_array().unwrap().len();
        let lines = text.lines().filter(|line| line.starts_with("out of reach")).count();
        ([class("ONEZONE_IA"), class("REDUCED_REDUNDANCY"), status["out_of_reach"].as_array().unwrap().len()], lines)
    };
    assert_eq!(hidden(), ([0, 0, 0], 0));
    let targets = cluster.children("target");
    crate::common::signal(targets[0], "-STOP");
    let one = hidden();
    crate::common::signal(targets[1], "-STOP");
    let two = hidden();
    targets[..2].iter().for_each(|target| crate::common::signal(*target, "-CONT"));
    assert_eq!((one, two), (([1, 0, 0], 1), ([1, 1, 1], 1)));
    assert!(cluster.stop());
}

/// A cluster of three targets with a bucket and these storage classes, where a day of rules lasts a second.
fn cluster_with(classes: &str) -> (tempfile::TempDir, Cluster, S3) {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("data");
    assert!(Cluster::start(&directory, &["--targets", "3"]).stop());
    let mut settings = Classes::of(&directory);
    settings.plain = settings.plain.replacen("[s3]\n", "[s3]\nlifecycle_day_seconds = 1\n", 1);
    settings.write(classes);
    let cluster = Cluster::start(&directory, &[]);
    let s3 = S3::of(&cluster);
    s3.put(BUCKET, "", b"").is(200);
    (place, cluster, s3)
}

/// By rules objects move, without becoming other versions: to fewer copies, and to more, which there are before it is said.
#[test]
fn rules_move_objects_to_other_classes() {
    let (_place, cluster, s3) = cluster_with("ONEZONE_IA = { copies = 1 }\nREDUCED_REDUNDANCY = { copies = 2 }");
    let (small, large) = (content(1_000, 1), content(3 * MIB, 2));
    put(&s3, "down/small", &small, None).is(200);
    put(&s3, "down/large", &large, None).is(200);
    put(&s3, "up/large", &content(3 * MIB, 3), Some("ONEZONE_IA")).is(200);
    put(&s3, "stays", &small, None).is(200);
    let modified = s3.head(BUCKET, "down/large").is(200).header("last-modified").to_owned();
    let before = live(&cluster);
    let rule = |prefix: &str, class: &str| {
        format!(
            "<Rule><Filter><Prefix>{prefix}</Prefix></Filter><Status>Enabled</Status>\
             <Transition><Days>0</Days><StorageClass>{class}</StorageClass></Transition></Rule>"
        )
    };
    let rules = rule("up/", "REDUCED_REDUNDANCY") + &rule("down/", "ONEZONE_IA");
    let xml = format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>");
    s3.ask("PUT", (BUCKET, ""), &[("lifecycle", "")], &[], xml.as_bytes()).is(200);
    let listed = s3.list(BUCKET, &[("lifecycle", "")]).is(200);
    assert_eq!(listed.elements("StorageClass"), ["REDUCED_REDUNDANCY", "ONEZONE_IA"]);
    for (key, class) in
        [("down/small", "ONEZONE_IA"), ("down/large", "ONEZONE_IA"), ("up/large", "REDUCED_REDUNDANCY"), ("stays", "")]
    {
        let is_there = || s3.head(BUCKET, key).is(200).header(CLASS) == class;
        crate::common::wait_until("an object has moved", is_there);
    }
    // One more copy of what went up at least: a put need not find the target that has one. No less of what went down, as copies
    // that are too many stay.
    let more = (live(&cluster) - before) as f64 / (3 * MIB) as f64;
    assert!((0.99..2.1).contains(&more), "{more} copies more");
    assert!(s3.get(BUCKET, "down/large").is(200).body == large && s3.get(BUCKET, "down/small").is(200).body == small);
    assert!(s3.get(BUCKET, "up/large").is(200).body == content(3 * MIB, 3));
    assert_eq!(s3.head(BUCKET, "down/large").is(200).header("last-modified"), modified);
}

#[test]
fn a_bucket_is_kept_otherwise_by_one_command() {
    let (_place, cluster, s3) = cluster_with("RAID = { code = \"2+1\" }");
    // Older versions are rewritten as well.
    let on = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    s3.ask("PUT", (BUCKET, ""), &[("versioning", "")], &[], on.as_bytes()).is(200);
    let tags = "<Tagging><TagSet><Tag><Key>of</Key><Value>a &amp; b</Value></Tag></TagSet></Tagging>";
    s3.ask("PUT", (BUCKET, ""), &[("tagging", "")], &[], tags.as_bytes()).is(200);
    let rule = "<Rule><ID>mine</ID><Filter><Prefix>tmp/</Prefix></Filter><Status>Enabled</Status><Expiration><Days>300000</Days></Expiration></Rule>";
    let rules = format!("<LifecycleConfiguration>{rule}</LifecycleConfiguration>");
    s3.ask("PUT", (BUCKET, ""), &[("lifecycle", "")], &[], rules.as_bytes()).is(200);
    let of = |seed| content(3 * MIB, seed);
    let old = put(&s3, "twice", &of(1), None).is(200).header("x-amz-version-id").to_owned();
    put(&s3, "twice", &of(2), None).is(200);
    put(&s3, "once", &of(3), None).is(200);

    let at = format!("s3://{BUCKET}");
    let refused = cluster.try_run(&["rewrite", &at, "--class", "NONE"], b"");
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("InvalidStorageClass"),
        "{refused:?}"
    );
    let shown = || serde_json::from_slice::<Value>(&cluster.run(&["rewrite", &at, "--json"])).unwrap();
    assert_eq!(shown()["classes"], serde_json::json!({ "STANDARD": { "objects": 2, "bytes": 6 * MIB } }));
    for _ in 0..2 {
        cluster.run(&["rewrite", &at, "--class", "RAID"]);
    }
    crate::common::wait_until("all is rewritten", || {
        shown()["classes"] == serde_json::json!({ "RAID": { "objects": 2, "bytes": 6 * MIB } })
    });
    let version = [("versionId", &*old)];
    crate::common::wait_until("the older version, too", || {
        s3.ask("HEAD", (BUCKET, "twice"), &version, &[], b"").is(200).header(CLASS) == "RAID"
    });
    assert!(s3.ask("GET", (BUCKET, "twice"), &version, &[], b"").is(200).body == of(1));
    assert!(s3.get(BUCKET, "twice").is(200).body == of(2) && s3.get(BUCKET, "once").is(200).body == of(3));
    put(&s3, "new", &of(4), None).is(200);
    assert_eq!(s3.head(BUCKET, "new").is(200).header(CLASS), "RAID");
    // What the bucket said before, it says now.
    assert_eq!(s3.list(BUCKET, &[("lifecycle", "")]).is(200).elements("ID"), ["mine", "reservoir-rewrite"]);
    assert_eq!(s3.list(BUCKET, &[("tagging", "")]).is(200).elements("Key"), ["of", "reservoir:storage-class"]);
}
