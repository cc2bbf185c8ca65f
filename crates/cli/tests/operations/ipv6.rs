//! A cluster whose network is IPv6, on one machine. `rack.rs` has one on a network with cables and a switch.

use std::fs;
use std::net::{Ipv6Addr, TcpListener, UdpSocket};
use std::path::Path;

use crate::client::S3;
use crate::common::{Cluster, content, error_of};
use testkit::{Rack, Shape};

pub(crate) fn has_ipv6() -> bool {
    match UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("skipped: this machine has no IPv6: {error}");
            false
        }
    }
}

#[test]
fn files_objects_status_and_metrics_are_had_over_ipv6() {
    if !has_ipv6() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let cluster = Cluster::start(&data, &["--ipv6", "--targets", "4"]);
    let config = fs::read_to_string(cluster.config()).unwrap();
    let gateway = fs::read_to_string(data.join("gateway.toml")).unwrap();
    assert!(!config.contains("127.0.0.1") && !gateway.contains("127.0.0.1"), "{config}{gateway}");

    let bytes = content(3_000_000, 1);
    let file = place.path().join("file");
    fs::write(&file, &bytes).unwrap();
    cluster.run(&["put", file.to_str().unwrap()]);
    assert!(cluster.run(&["get", "file", "--output", "-"]) == bytes);

    let s3 = S3::of(&cluster);
    assert!(s3.endpoint.starts_with("http://[::1]:"), "{}", s3.endpoint);
    s3.ask("PUT", ("bucket", ""), &[], &[], b"").is(200);
    s3.put("bucket", "key", &bytes).is(200);
    assert!(s3.get("bucket", "key").is(200).body == bytes);

    let status = cluster.status();
    assert!(status["targets"].as_array().unwrap().iter().all(|target| target["alive"] == true), "{status}");
    let metrics = config.lines().find_map(|line| line.strip_prefix("metrics = ")).unwrap().trim_matches('"');
    for address in [metrics, &cluster.gateway()] {
        let page = ureq::get(format!("http://{address}/metrics")).call().unwrap().into_body().read_to_string().unwrap();
        assert!(page.contains("_dropped_total{"), "{page}");
        let foreign = ureq::get(format!("http://{address}/metrics")).header("Origin", "http://[::2]:80").call();
        assert!(matches!(foreign, Err(ureq::Error::StatusCode(403))), "{foreign:?}");
    }

    // What it is, it stays.
    assert!(cluster.stop());
    let cluster = Cluster::start(&data, &[]);
    assert!(cluster.run(&["get", "file", "--output", "-"]) == bytes);
    assert!(S3::of(&cluster).get("bucket", "key").is(200).body == bytes);

    // With a certificate for the address, and no name, the commands speak TLS to it.
    assert!(cluster.stop());
    let made = rcgen::generate_simple_self_signed([Ipv6Addr::LOCALHOST.to_string()]).unwrap();
    fs::write(data.join("s3.pem"), made.cert.pem()).unwrap();
    fs::write(data.join("s3.key"), made.signing_key.serialize_pem()).unwrap();
    fs::write(data.join("gateway.toml"), format!("{gateway}certificate = \"s3.pem\"\nkey = \"s3.key\"\n")).unwrap();
    let cluster = Cluster::start(&data, &[]);
    assert!(cluster.output().contains("endpoint: https://[::1]:"), "{}", cluster.output());
    assert!(cluster.run(&["get", "file", "--output", "-"]) == bytes);
    assert!(cluster.stop());
}

#[test]
fn an_existing_cluster_stays_on_its_family_and_says_so() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    assert!(Cluster::start(&data, &["--targets", "3"]).stop());
    let cluster = Cluster::start(&data, &["--ipv6"]);
    assert!(cluster.output().contains("is on IPv4 and stays there"), "{}", cluster.output());
}

#[test]
fn an_address_of_ipv6_that_is_taken_is_reported() {
    if !has_ipv6() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let cluster = Cluster::start(&data, &["--ipv6", "--targets", "3"]);
    let address = cluster.gateway();
    assert!(cluster.stop());
    let _taken = TcpListener::bind(&address).unwrap();
    let why = error_of(&["up", "--once", "--data", data.to_str().unwrap()]);
    assert!(why.contains(&format!("the gateway's address {address} is in use")), "{why}");
}

#[test]
fn the_loopback_interface_carries_multicast_of_ipv6_where_it_has_a_route() {
    if let Some(reason) = Rack::obstacle(true) {
        return eprintln!("skipped: {reason}");
    }
    let place = tempfile::tempdir().unwrap();
    // A host of its own: the machine's routes are left alone.
    let rack = Rack::build(&Shape { hosts: 1, ipv6: true, ..Shape::default() }).unwrap();
    let up = |name: &str| {
        let mut up = rack.command(0, Path::new(env!("CARGO_BIN_EXE_reservoir")));
        up.args(["up", "--ipv6", "--once", "--demo", "--data"]).arg(place.path().join(name)).env_remove("RUST_LOG");
        let output = up.output().unwrap();
        let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{printed}");
        (printed, fs::read_to_string(place.path().join(name).join("logs/gateway.log")).unwrap())
    };
    let (printed, log) = up("without");
    assert!(printed.contains("without multicast"), "{printed}");
    let advice = "ip -6 route add local ff15::/16 dev lo";
    assert!(log.contains(advice), "{log}");
    let mut words = advice.split(' ');
    let mut route = rack.command(0, Path::new(words.next().unwrap()));
    assert!(route.args(words).status().unwrap().success(), "the advice cannot be followed");
    let (printed, _) = up("with");
    assert!(printed.contains("with multicast"), "{printed}");
}
