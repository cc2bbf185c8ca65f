//! A cluster that is carried by TCP.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::common::{Cluster, content, wait_until};
use crate::ipv6::has_ipv6;

#[test]
fn over_tcp_objects_are_put_and_got_also_when_targets_die_and_strangers_speak() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let cluster = Cluster::start(&data, &["--carrier", "tcp", "--no-restart"]);
    let bytes = content(20 << 20, 3);
    assert!(cluster.try_run(&["put", "-", "before"], &bytes).status.success());
    assert!(cluster.run(&["get", "before", "-o", "-"]) == bytes);
    // Somebody else speaks to a target: nothing comes back, and it goes on.
    let map = fs::read_to_string(data.join("cluster.toml")).unwrap();
    assert!(map.contains("carrier = \"tcp\""), "{map}");
    let address = map.lines().find_map(|line| line.strip_prefix("address = \"")).unwrap().trim_end_matches('"');
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    assert_eq!(stranger.read(&mut [0; 100]).unwrap(), 0, "it is not heard out");
    // One dies; the others have all, and what comes is stored on them.
    cluster.kill_target(1);
    assert!(cluster.run(&["get", "before", "-o", "-"]) == bytes);
    assert!(cluster.try_run(&["put", "-", "after"], &bytes).status.success());
    assert!(cluster.run(&["get", "after", "-o", "-"]) == bytes);
    wait_until("why it is silent", || {
        let status = String::from_utf8(cluster.run(&["status"])).unwrap();
        status.contains("says that nobody listens at")
    });
    assert!(cluster.stop());
    // It stays as it is when something else is asked for.
    let again = Cluster::start(&data, &["--carrier", "udp"]);
    assert!(again.output().contains("is carried by tcp"), "{}", again.output());
    assert!(again.run(&["get", "after", "-o", "-"]) == bytes);
    assert!(again.stop());
}

#[test]
fn encrypted_objects_are_put_and_got_also_by_workers_and_when_a_target_dies() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let cluster = Cluster::start(&data, &["--carrier", "tcp", "--encrypt", "--targets", "5", "--no-restart"]);
    let path = data.join("cluster.toml");
    let map = fs::read_to_string(&path).unwrap();
    assert!(map.contains("carrier = \"tcp\"") && map.contains("encrypt = true"), "{map}");
    let bytes = content(20 << 20, 3);
    assert!(cluster.try_run(&["put", "-", "before"], &bytes).status.success());
    assert!(cluster.run(&["get", "before", "-o", "-"]) == bytes);
    cluster.kill_target(1);
    assert!(cluster.try_run(&["put", "-", "after"], &bytes).status.success());
    assert!(cluster.run(&["get", "after", "-o", "-"]) == bytes);
    assert!(cluster.stop());
    // With workers, of which every node has two, and a gateway one.
    fs::write(&path, map.replace("encrypt = true", "encrypt = true\nworkers = 2\ngateway_workers = 1")).unwrap();
    let again = Cluster::start(&data, &["--targets", "5"]);
    assert!(again.run(&["get", "before", "-o", "-"]) == bytes && again.run(&["get", "after", "-o", "-"]) == bytes);
    assert!(again.try_run(&["put", "-", "later"], &bytes).status.success());
    assert!(again.run(&["get", "later", "-o", "-"]) == bytes);
    assert!(again.stop());
}

#[test]
fn over_tcp_of_ipv6_objects_are_put_and_got() {
    if !has_ipv6() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let cluster = Cluster::start(&data, &["--carrier", "tcp", "--ipv6", "--targets", "4"]);
    let map = fs::read_to_string(cluster.config()).unwrap();
    assert!(map.contains("carrier = \"tcp\"") && !map.contains("127.0.0.1"), "{map}");
    let bytes = content(5 << 20, 7);
    assert!(cluster.try_run(&["put", "-", "key"], &bytes).status.success());
    assert!(cluster.run(&["get", "key", "-o", "-"]) == bytes);
    let status = cluster.status();
    assert!(status["targets"].as_array().unwrap().iter().all(|target| target["alive"] == true), "{status}");
    assert!(cluster.stop());
}
