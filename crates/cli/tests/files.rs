//! Files through a real cluster.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::{Cluster, content, signal};

/// Sizes around the chunk boundaries.
const SIZES: [usize; 7] = [0, 1, 4_096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5_000_000];

fn put_all(cluster: &Cluster, round: u64) {
    for size in SIZES {
        let path = cluster.directory.join(format!("source-{size}"));
        fs::write(&path, content(size, round)).unwrap();
        cluster.run(&["put", path.to_str().unwrap(), "--name", &format!("file {size}/ü")]);
        fs::remove_file(path).unwrap();
    }
}

fn check_all(cluster: &Cluster, round: u64) {
    for size in SIZES {
        let back = cluster.directory.join("back");
        cluster.run(&["get", &format!("file {size}/ü"), "-o", back.to_str().unwrap()]);
        assert!(fs::read(&back).unwrap() == content(size, round), "size {size} came back changed");
    }
}

fn started(place: &tempfile::TempDir, more: &[&str]) -> Cluster {
    let data = place.path().join("data");
    fs::create_dir_all(&data).unwrap();
    Cluster::start(&data, more)
}

#[test]
fn files_come_back_also_after_a_restart() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place, &[]);
    put_all(&cluster, 1);
    check_all(&cluster, 1);
    put_all(&cluster, 2);
    check_all(&cluster, 2);
    let list: serde_json::Value = serde_json::from_slice(&cluster.run(&["ls", "--json"])).unwrap();
    assert_eq!(list["files"].as_array().unwrap().len(), SIZES.len());
    let stat: serde_json::Value = serde_json::from_slice(&cluster.run(&["stat", "file 1/ü", "--json"])).unwrap();
    assert_eq!((stat["size"].as_u64(), stat["chunks"].as_u64()), (Some(1), Some(1)));
    assert_eq!(stat["blake3"], blake3::hash(&content(1, 2)).to_hex().as_str());
    assert!(cluster.stop());
    let cluster = started(&place, &["--targets", "9"]);
    assert!(cluster.said().contains("found again"), "{}", cluster.said());
    check_all(&cluster, 2);
    assert!(cluster.stop());
}

#[test]
fn standard_input_and_output_and_a_missing_name() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place, &["--targets", "3", "--no-multicast"]);
    let data = content(3_000_000, 7);
    assert!(cluster.try_run(&["put", "-", "--name", "piped"], &data).status.success());
    assert!(cluster.run(&["get", "piped", "-o", "-"]) == data);
    let into = cluster.directory.join("not-there");
    let output = cluster.try_run(&["get", "missing", "-o", into.to_str().unwrap()], b"");
    assert!(!output.status.success() && !into.exists());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no file named"));
    assert!(!cluster.try_run(&["stat", "missing"], b"").status.success());
    let long = "x".repeat(1_000);
    assert!(cluster.try_run(&["put", "-", "--name", &long], b"1").status.success());
    let table = String::from_utf8(cluster.run(&["ls"])).unwrap();
    let widths: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
    assert!(widths.iter().all(|width| *width == widths[0] && *width < 120) && table.contains("piped"), "{table}");
    let list: serde_json::Value = serde_json::from_slice(&cluster.run(&["ls", "--json"])).unwrap();
    assert!(list["files"].as_array().unwrap().iter().any(|file| file["name"] == long.as_str()));
    assert!(String::from_utf8(cluster.run(&["status"])).unwrap().contains("disk-003"));
    let status: serde_json::Value = serde_json::from_slice(&cluster.run(&["status", "--json"])).unwrap();
    assert_eq!((&status["multicast"], &status["targets"][1]["domain"]), (&false.into(), &"disk-002".into()));
    assert_eq!(status["targets"].as_array().unwrap().len(), 3);
}

#[test]
fn each_transport_stores_files() {
    for transport in ["hash", "replicast-m", "replicast-h"] {
        let place = tempfile::tempdir().unwrap();
        let cluster = started(&place, &["--transport", transport]);
        put_all(&cluster, 3);
        check_all(&cluster, 3);
        assert!(cluster.stop(), "{transport}");
    }
}

#[test]
fn two_killed_targets_lose_nothing() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place, &["--no-restart"]);
    put_all(&cluster, 4);
    let targets = cluster.children("target");
    assert_eq!(targets.len(), 9);
    signal(targets[1], "-KILL");
    signal(targets[6], "-KILL");
    check_all(&cluster, 4);
    put_all(&cluster, 5);
    check_all(&cluster, 5);
    assert_eq!(cluster.said().matches("it stays down, the others go on").count(), 2, "{}", cluster.said());
}

#[test]
fn a_killed_gateway_leaves_the_old_version() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place, &["--targets", "3", "--no-restart"]);
    let (old, new) = (content(100_000, 1), content(40 << 20, 2));
    assert!(cluster.try_run(&["put", "-", "--name", "f"], &old).status.success());
    let gateway = cluster.children("gateway");
    assert_eq!(gateway.len(), 1);
    std::thread::scope(|scope| {
        let put = scope.spawn(|| cluster.try_run(&["put", "/dev/zero", "--name", "f"], b""));
        std::thread::sleep(Duration::from_millis(300));
        signal(gateway[0], "-KILL");
        assert!(!put.join().unwrap().status.success(), "a put without end succeeded");
    });
    let directory = cluster.crash();
    wait_for_silence(&directory);
    let cluster = Cluster::start(&directory, &["--targets", "3"]);
    assert!(cluster.run(&["get", "f", "-o", "-"]) == old);
    assert!(cluster.try_run(&["put", "-", "--name", "f"], &new).status.success());
    assert!(cluster.run(&["get", "f", "-o", "-"]) == new);
}

/// The children of a crashed `up` end by themselves: then their addresses are free.
fn wait_for_silence(directory: &std::path::Path) {
    let text = fs::read_to_string(directory.join("cluster.toml")).unwrap();
    let addresses = text.lines().filter_map(|line| line.strip_prefix("address = ")).map(|a| a.trim_matches('"'));
    let deadline = Instant::now() + Duration::from_secs(20);
    for address in addresses {
        while std::net::UdpSocket::bind(address).is_err() {
            assert!(Instant::now() < deadline, "{address} is still in use after its parent died");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn the_demonstration_holds() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let output = common::reservoir(&["up", "--data", data.to_str().unwrap(), "--demo", "--once", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["every_comparison_held"], true);
    assert_eq!(report["put"]["file"]["size"], 64 << 20);
}

#[test]
fn what_was_stored_already_is_said_and_not_how_fast_it_was() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place, &["--targets", "3"]);
    let bytes = content(2_500_000, 3);
    let put = |name: &str, bytes: &[u8]| {
        let put = cluster.try_run(&["put", "-", "--name", name], bytes);
        assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
        String::from_utf8(put.stdout).unwrap()
    };
    assert!(put("a", &bytes).contains("MB/s"));
    let again = put("b", &bytes);
    assert!(again.contains("its 3 chunks were stored already") && !again.contains("MB/s"), "{again}");
    assert!(put("c", &content(2_500_000, 4)).contains("MB/s"));
    assert!(cluster.stop());
}

#[test]
fn what_http_refuses_has_a_reason_in_json() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place, &["--targets", "3"]);
    let agent = ureq::Agent::new_with_config(ureq::Agent::config_builder().http_status_as_error(false).build());
    let url = |path: &str| format!("http://{}{path}", cluster.gateway());
    let leave = cluster.leave();
    let leave = ("authorization", leave.as_str());
    let answers = [
        (agent.get(url("/nothing")).call(), 404),
        (agent.get(url("/v1/files/%ff%fe")).header(leave.0, leave.1).call(), 400),
        (agent.put(url("/v1/files/%ff%fe")).header(leave.0, leave.1).send(&b"x"[..]), 400),
        (agent.delete(url("/v1/files/x")).header(leave.0, leave.1).call(), 405),
        (agent.get(url("/v1/files/x")).header(leave.0, leave.1).call(), 404),
        // Who has no token, a host that is not the gateway, a page of another origin.
        (agent.get(url("/v1/files/x")).call(), 401),
        (agent.get(url("/v1/files")).header(leave.0, "Bearer x").call(), 401),
        (agent.put(url("/v1/files/x")).send(&b"x"[..]), 401),
        (agent.get(url("/v1/status")).header("host", "gateway.example").call(), 403),
        (agent.get(url("/metrics")).header("origin", "http://evil.example").call(), 403),
        (
            agent
                .put(url("/v1/files/x"))
                .header(leave.0, leave.1)
                .header("sec-fetch-site", "cross-site")
                .send(&b"x"[..]),
            403,
        ),
    ];
    for (answer, status) in answers {
        let mut answer = answer.unwrap();
        assert_eq!(answer.status(), status);
        let body: serde_json::Value = answer.body_mut().read_json().unwrap();
        assert!(body["error"].as_str().unwrap().len() > 10, "{body}");
    }
    assert!(cluster.stop());
}
