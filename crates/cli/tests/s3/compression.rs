//! A bucket says whether its chunks are compressed: what the targets keep gets smaller, and comes back exact.

use std::fs;

use serde_json::Value;

use crate::client::S3;
use crate::common::{Cluster, content};

const MIB: usize = 1 << 20;

/// Bytes that the targets keep, all copies.
fn live(cluster: &Cluster) -> u64 {
    let status: Value = serde_json::from_slice(&cluster.run(&["status", "--json"])).unwrap();
    status["targets"].as_array().unwrap().iter().map(|target| target["live"].as_u64().unwrap()).sum()
}

/// Text that was not put before.
fn text(seed: usize) -> Vec<u8> {
    (0..)
        .flat_map(|line| format!("{seed}: line {line} of a log that says little\n").into_bytes())
        .take(4 * MIB)
        .collect()
}

/// Puts four MiB of text, whole or in parts; how many of them one copy takes.
fn taken(cluster: &Cluster, s3: &S3, bucket: &str, seed: usize, parts: bool) -> f64 {
    let (bytes, before) = (text(seed), live(cluster));
    if parts {
        let id = s3.ask("POST", (bucket, "k"), &[("uploads", "")], &[], b"").is(200).element("UploadId");
        let query = [("partNumber", "1"), ("uploadId", id.as_str())];
        let tag = s3.ask("PUT", (bucket, "k"), &query, &[], &bytes).is(200).header("etag").to_owned();
        let part = format!("<Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part>");
        let xml = format!("<CompleteMultipartUpload>{part}</CompleteMultipartUpload>");
        s3.ask("POST", (bucket, "k"), &[("uploadId", &id)], &[], xml.as_bytes()).is(200);
    } else {
        s3.put(bucket, "k", &bytes).is(200);
    }
    assert!(s3.get(bucket, "k").is(200).body == bytes);
    let part = s3.ask("GET", (bucket, "k"), &[], &[("range", "bytes=1048570-1048589")], b"").is(206);
    assert!(part.body == bytes[1_048_570..1_048_590]);
    (live(cluster) - before) as f64 / 3.0 / bytes.len() as f64
}

fn set(s3: &S3, bucket: &str, value: &str) -> crate::client::Answer {
    let tag = format!("<Tag><Key>reservoir:compress</Key><Value>{value}</Value></Tag>");
    let xml = format!("<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag>{tag}</TagSet></Tagging>");
    s3.ask("PUT", (bucket, ""), &[("tagging", "")], &[], xml.as_bytes())
}

#[test]
fn a_bucket_says_whether_its_chunks_are_compressed() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("data");
    let cluster = Cluster::start(&directory, &["--targets", "3"]);
    let s3 = S3::of(&cluster);
    s3.put("packed", "", b"").is(200);
    s3.put("plain", "", b"").is(200);
    s3.list("packed", &[("tagging", "")]).fails(404, "NoSuchTagSet");
    set(&s3, "packed", "much").fails(400, "InvalidTag");
    set(&s3, "packed", "on").is(200);
    set(&s3, "nowhere", "on").fails(404, "NoSuchBucket");
    assert!(taken(&cluster, &s3, "plain", 1, false) > 0.99);
    assert!(taken(&cluster, &s3, "packed", 2, false) < 0.5);
    assert!(taken(&cluster, &s3, "packed", 3, true) < 0.5);
    // What cannot be compressed stays as it is.
    let noise = content(2 * MIB, 4);
    s3.put("packed", "noise", &noise).is(200);
    assert!(s3.get("packed", "noise").is(200).body == noise);
    // The setting is in the manifests: it is there when the catalog was lost; and it comes before the gateway's.
    assert!(cluster.stop());
    let settings = directory.join("gateway.toml");
    let configured = fs::read_to_string(&settings).unwrap().replace("[s3]\n", "[s3]\ncompress = true\n");
    fs::write(settings, configured).unwrap();
    for name in ["catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm"] {
        let _ = fs::remove_file(directory.join(name));
    }
    let cluster = Cluster::start(&directory, &["--no-restart"]);
    let gateway = cluster.children("gateway");
    crate::common::signal(gateway[0], "-TERM");
    let rebuilt = || cluster.try_run(&["catalog", "rebuild"], b"").status.success();
    assert!((0..1_000).any(|_| rebuilt()), "the gateway that stopped holds the catalog");
    assert!(cluster.stop());
    let cluster = Cluster::start(&directory, &[]);
    let s3 = S3::of(&cluster);
    assert_eq!(s3.list("packed", &[("tagging", "")]).is(200).elements("Value"), ["b", "on"]);
    assert!(taken(&cluster, &s3, "plain", 5, false) < 0.5, "the gateway compresses what says nothing");
    set(&s3, "packed", "off").is(200);
    assert!(taken(&cluster, &s3, "packed", 6, false) > 0.99);
    s3.ask("DELETE", ("packed", ""), &[("tagging", "")], &[], b"").is(204);
    assert!(taken(&cluster, &s3, "packed", 7, false) < 0.5);
    assert!(s3.get("packed", "noise").is(200).body == noise);
    assert!(cluster.stop());
}
