//! Objects that are kept as pieces of a code, under real processes: what they take, what they survive, how they are made whole, and that
//! they go.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::client::S3;
use crate::common::{Classes, Cluster, content, happened, signal, wait_until};
use crate::metrics::scrape_gateway;

const BUCKET: &str = "kept";

/// Bytes that the targets keep.
fn live(cluster: &Cluster) -> u64 {
    let status: Value = serde_json::from_slice(&cluster.run(&["status", "--json"])).unwrap();
    status["targets"].as_array().unwrap().iter().map(|target| target["live"].as_u64().unwrap_or(0)).sum()
}

fn put(cluster: &Cluster, place: &Path, name: &str, bytes: &[u8]) {
    let file = place.join(name);
    fs::write(&file, bytes).unwrap();
    cluster.run(&["put", file.to_str().unwrap()]);
}

fn get(cluster: &Cluster, place: &Path, name: &str) -> Vec<u8> {
    let back = place.join("back");
    cluster.run(&["get", name, "-o", back.to_str().unwrap()]);
    fs::read(back).unwrap()
}

#[test]
fn pieces_take_half_of_what_copies_take_and_survive_as_much() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let cluster = Cluster::start(&data, &["--no-restart", "--redundancy", "4+2"]);
    let bytes = content(40 << 20, 7);
    let before = live(&cluster);
    put(&cluster, place.path(), "file", &bytes);
    let taken = (live(&cluster) - before) as f64 / bytes.len() as f64;
    assert!((1.49..1.8).contains(&taken), "{taken} bytes for each");
    // Small ones are copies.
    let small = content(20_000, 8);
    put(&cluster, place.path(), "small", &small);
    cluster.wait_for("whole", |status| status["whole"] == true);
    assert!(cluster.output().contains("objects as 4+2"), "{}", cluster.output());
    let stat: Value = serde_json::from_slice(&cluster.run(&["stat", "file", "--json", "--chunks", "3"])).unwrap();
    let (chunks, has_more) = (stat["places"]["chunks"].as_array().unwrap(), &stat["places"]["has_more"]);
    assert_eq!(
        (chunks.len(), &chunks[0]["code"], &chunks[1]["code"], has_more),
        (4, &Value::Null, &"4+2".into(), &true.into())
    );
    let holders = chunks[1]["holders"].as_array().unwrap();
    let numbers: Vec<u64> = holders.iter().map(|holder| holder["piece"].as_u64().unwrap()).collect();
    let targets = holders.iter().flat_map(|holder| holder["targets"].as_array().unwrap());
    let targets: BTreeSet<u64> = targets.map(|target| target.as_u64().unwrap()).collect();
    assert!(numbers == [0, 1, 2, 3, 4, 5] && targets.len() >= 6, "{stat}");
    let table = String::from_utf8(cluster.run(&["stat", "file", "--chunks", "3"])).unwrap();
    assert!(table.contains("and more chunks") && table.contains(" + "), "{table}");

    // Two of the six pieces of many chunks are gone, and what is left is enough.
    cluster.kill_target(4);
    cluster.kill_target(5);
    assert!(get(&cluster, place.path(), "file") == bytes);
    assert!(get(&cluster, place.path(), "small") == small);
    // A third is too many at once: nothing is taken out by itself, but nothing is lost either.
    let held = cluster.wait_for("held", |status| status["down"]["held"].is_string());
    assert!(held["at_risk"].as_u64() > Some(0), "{held}");
    for gone in ["4", "5"] {
        cluster.run(&["cluster", "remove", gone]);
    }
    let is_whole = |status: &Value| status["whole"] == true && status["epoch"].as_u64() >= Some(3);
    let after = cluster.wait_for("whole again", |status| is_whole(status) && happened(status, "whole again"));
    assert!(after["restored_chunks"].as_u64() > Some(0), "{after}");
    // Whoever is lost now, two at once, leaves enough.
    cluster.kill_target(1);
    cluster.kill_target(9);
    assert!(get(&cluster, place.path(), "file") == bytes);
    assert!(get(&cluster, place.path(), "small") == small);
}

#[test]
fn what_is_removed_goes_piece_by_piece_and_classes_change_by_a_copy() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    assert!(Cluster::start(&data, &[]).stop());
    let classes = Classes::of(&data);
    let (with, refused) = (|text: &str| classes.write(text), |why: &str| classes.refused(why));
    with("THIN = { code = \"8+3\" }");
    refused("11 pieces need 11 failure domains in every group");
    with("THIN = { code = \"4\" }");
    refused("is no code: write 4+2, for example");
    with("THIN = { code = \"4+2\", copies = 2 }");
    refused("write copies = 2, or code = \"4+2\"");
    with("THIN = { code = \"4+2\" }\nRAID = { code = \"2+1\" }");

    let cluster = Cluster::start(&data, &[]);
    let s3 = S3::of(&cluster);
    s3.put(BUCKET, "", b"").is(200);
    let bytes = content(12 << 20, 5);
    let per_byte = |put: &dyn Fn()| {
        let before = live(&cluster);
        put();
        (live(&cluster) - before) as f64 / bytes.len() as f64
    };
    // Where somebody answers late, a piece or two are put elsewhere as well; stewards let them go, also while this counts.
    let about =
        |taken: f64, of: f64| assert!((of - 0.45..of + 0.45).contains(&taken), "{taken} bytes for each, not {of}");
    let class = |class: &'static str| [("x-amz-storage-class", class)];
    about(per_byte(&|| drop(s3.ask("PUT", (BUCKET, "k"), &[], &class("THIN"), &bytes).is(200))), 1.5);
    // Nothing is put again that is kept so already.
    about(per_byte(&|| drop(s3.ask("PUT", (BUCKET, "twice"), &[], &class("THIN"), &bytes).is(200))), 0.0);
    let copied = |to: &str, class: &'static str| {
        let headers = [("x-amz-copy-source", "kept/k"), ("x-amz-storage-class", class)];
        s3.ask("PUT", (BUCKET, to), &[], &headers, b"").is(200);
        assert!(s3.get(BUCKET, to).is(200).body == bytes, "{to}");
    };
    about(per_byte(&|| copied("same", "THIN")), 0.0);
    about(per_byte(&|| copied("other", "RAID")), 1.5);
    about(per_byte(&|| copied("copies", "STANDARD")), 3.0);
    let range = s3.ask("GET", (BUCKET, "k"), &[], &[("range", "bytes=3000000-3999999")], b"").is(206);
    assert!(range.body == bytes[3_000_000..4_000_000]);
    let head = s3.ask("HEAD", (BUCKET, "other"), &[], &[], b"").is(200);
    assert_eq!(head.header("x-amz-storage-class"), "RAID");

    for key in ["k", "twice", "same"] {
        s3.ask("DELETE", (BUCKET, key), &[], &[], b"").is(204);
    }
    let clean = || serde_json::from_slice::<Value>(&cluster.run(&["clean", "--grace", "2", "--json"])).unwrap();
    let before = live(&cluster);
    wait_until("pieces go", || {
        clean();
        before - live(&cluster) >= bytes.len() as u64 * 3 / 2
    });
    for key in ["other", "copies"] {
        assert!(s3.get(BUCKET, key).is(200).body == bytes, "{key}");
    }
}

/// What a switch has counted.
fn counted(cluster: &Cluster, name: &str) -> u64 {
    let map = fs::read_to_string(cluster.config()).unwrap();
    let map: toml::Table = map.parse().unwrap();
    let address = map["switch"][0]["metrics"].as_str().unwrap();
    let agent = ureq::Agent::config_builder().build().new_agent();
    let Ok(mut answer) = agent.get(format!("http://{address}/metrics")).call() else { return 0 };
    let page = answer.body_mut().read_to_string().unwrap_or_default();
    let line = page.lines().find(|line| line.starts_with(&format!("reservoir_switch_{name}_total")));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

/// A switch computes parity in flight; without it gateways send that themselves, and when it is back it is asked again.
#[test]
fn parity_comes_from_a_switch_and_from_the_gateway_while_it_is_down() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let cluster = Cluster::start(&data, &["--redundancy", "4+2", "--switches", "1"]);
    let mut objects = Vec::new();
    let mut put_some = |what: &str, is_so: &mut dyn FnMut() -> bool| {
        wait_until(what, || {
            let (name, bytes) = (format!("o{}", objects.len()), content(3 << 20, objects.len() as u64));
            put(&cluster, place.path(), &name, &bytes);
            objects.push((name, bytes));
            is_so()
        });
    };
    put_some("a switch passes chunks on", &mut || counted(&cluster, "chunks_passed") > 3);
    // What is put is durable before the switch has counted all of it.
    wait_until("2 of parity for 4 of data", || {
        counted(&cluster, "parity_bytes") * 2 == counted(&cluster, "came_bytes")
    });
    let switch = cluster.children("switch");
    assert_eq!(switch.len(), 1);
    signal(switch[0], "-KILL");
    let mut rounds = 0;
    put_some("puts go on without it", &mut || {
        rounds += 1;
        rounds > 3
    });
    // It is started again, and counts from the beginning.
    put_some("it is asked again", &mut || {
        cluster.children("switch") != switch && counted(&cluster, "chunks_passed") > 3
    });
    for (name, bytes) in &objects {
        assert!(get(&cluster, place.path(), name) == *bytes, "{name}");
    }
    // An operator is told who stands still.
    let is_up = |status: &Value, up: bool| status["switches"][0]["alive"] == up;
    cluster.wait_for("the switch is seen", |status| is_up(status, true));
    let switch = cluster.children("switch")[0];
    signal(switch, "-STOP");
    let gauge = || scrape_gateway(&data)["reservoir_gateway_silent_switches"];
    let seen = cluster.wait_for("the switch is missed", |status| is_up(status, false));
    // The gateway notes it when it looks the next time, as it did when it was killed.
    wait_until("it is counted", || gauge() == 1.0);
    let id = seen["switches"][0]["id"].as_u64().unwrap();
    let text = String::from_utf8(cluster.run(&["status"])).unwrap();
    assert!(
        text.contains(&format!("switch {id} at ")) && text.contains("is silent: others, or the gateways"),
        "{text}"
    );
    signal(switch, "-CONT");
    wait_until("it is counted no more", || gauge() == 0.0);
    let after = cluster.wait_for("it is back", |status| is_up(status, true));
    for what in ["is silent", "answers again"] {
        assert!(happened(&after, &format!("switch {id} {what}")), "{after}");
    }
}
