//! The reason why a target is silent is reported: for each cause that can be had on one machine, with real processes.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{Cluster, Role, make_store, signal};

/// Target 4 of a configuration, with its log beside that.
fn start_fourth(config: &Path) -> Role {
    Role::start_with_log(&["target", "--id", "4", "--config", config.to_str().unwrap()], &config.with_extension("log"))
}

fn fourth(cluster: &Cluster) -> serde_json::Value {
    cluster.status()["targets"].as_array().unwrap().iter().find(|target| target["id"] == 4).cloned().unwrap_or_default()
}

/// Waits until the fourth target is silent for this reason; the words for it.
fn expect(cluster: &Cluster, reason: &str) -> String {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let target = fourth(cluster);
        if target["silence"]["reason"] == reason {
            assert_eq!(target["alive"], false);
            let text = target["silence"]["text"].as_str().unwrap().to_owned();
            let table = String::from_utf8(cluster.run(&["status"])).unwrap();
            assert!(table.contains(&format!("target 4 is silent: {}", &text[..20])), "{table}");
            return text;
        }
        assert!(Instant::now() < deadline, "not {reason}: {target}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn wait_for_word(log: &Path, word: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !fs::read_to_string(log).unwrap_or_default().contains(word) {
        assert!(Instant::now() < deadline, "{word:?} is not in {}", log.display());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A copy of the configuration in a directory of its own, changed, with an empty store for target 4.
fn elsewhere(place: &Path, name: &str, config: &str, key: &str, change: impl Fn(&str) -> String) -> std::path::PathBuf {
    let dir = place.join(name);
    fs::create_dir(&dir).unwrap();
    let map = dir.join("cluster.toml");
    fs::write(&map, change(&fs::read_to_string(config).unwrap())).unwrap();
    fs::write(dir.join("cluster.key"), key).unwrap();
    make_store(map.to_str().unwrap(), 4);
    map
}

#[test]
fn the_reason_of_silence_is_reported() {
    is_reported_at("127.0.0.1", &[]);
}

#[test]
fn the_reason_of_silence_is_reported_over_ipv6() {
    match UdpSocket::bind("[::1]:0") {
        Ok(_) => is_reported_at("[::1]", &["--ipv6"]),
        Err(error) => eprintln!("skipped: this machine has no IPv6: {error}"),
    }
}

fn is_reported_at(loopback: &str, options: &[&str]) {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = Cluster::start(&data, &[&["--targets", "3"], options].concat());
    let (config, key) = (cluster.config(), fs::read_to_string(data.join("cluster.key")).unwrap());
    // A fourth target comes into the map; somebody sits at its address and says nothing.
    let stranger = UdpSocket::bind(format!("{loopback}:0")).unwrap();
    stranger.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let address = stranger.local_addr().unwrap();
    let entry = format!(
        "\n[[target]]\nid = 4\ndomain = \"disk-004\"\naddress = \"{address}\"\ndata = \"fourth\"\ncapacity = \"1GiB\"\n"
    );
    cluster.change_map(|map| {
        let grown = map.replace("epoch = 1", "epoch = 2");
        grown.replace("targets = [1, 2, 3]", "targets = [1, 2, 3, 4]") + &entry
    });
    cluster.children("target").into_iter().chain(cluster.children("gateway")).for_each(|pid| signal(pid, "-HUP"));
    assert!(expect(&cluster, "never").contains("was ever heard"));

    // It answers everybody with what it gets, as of another version: the gateway, and the other targets.
    let mut datagram = [0; 2_048];
    let status = cluster.spawn(&["status"]);
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        let Ok((len, from)) = stranger.recv_from(&mut datagram) else { continue };
        datagram[1] += 1;
        stranger.send_to(&datagram[..len], from).unwrap();
    }
    drop(status.wait_with_output().unwrap());
    assert!(expect(&cluster, "version").contains("wire version"));
    drop(stranger);

    let closed = expect(&cluster, "closed");
    assert!(closed.contains("nobody listens") && closed.contains(&address.to_string()), "{closed}");

    // Both sides say so.
    let other_key = elsewhere(place.path(), "other-key", &config, &"a5".repeat(32), str::to_owned);
    let process = start_fourth(&other_key);
    assert!(expect(&cluster, "forged").contains("another key"));
    wait_for_word(&other_key.with_extension("log"), "it is sealed with another key");
    drop(process);
    let cluster_name = |map: &str| map.replacen("cluster = \"", "cluster = \"another-", 1);
    let other_cluster = elsewhere(place.path(), "other-cluster", &config, &key, cluster_name);
    let process = start_fourth(&other_cluster);
    assert!(expect(&cluster, "other_cluster").contains("of another cluster"));
    wait_for_word(&other_cluster.with_extension("log"), "it is of another cluster");
    drop(process);
    let warnings = ureq::get(format!("http://{}/v1/live", cluster.gateway())).call().unwrap();
    let warnings = warnings.into_body().read_to_string().unwrap();
    assert!(warnings.contains("(target 4): it is of another cluster"), "{warnings}");

    // The right one at last, which then hangs.
    let right = elsewhere(place.path(), "right", &config, &key, str::to_owned);
    let process = start_fourth(&right);
    let deadline = Instant::now() + Duration::from_secs(30);
    while fourth(&cluster)["alive"] != true {
        assert!(Instant::now() < deadline, "{}", fourth(&cluster));
    }
    assert!(fourth(&cluster)["silence"].is_null());
    signal(process.id(), "-STOP");
    assert!(expect(&cluster, "quiet").contains("nothing was heard"));
    assert!(fourth(&cluster)["silence"]["heard_seconds_ago"].as_f64().unwrap() < 60.0);
    drop(process);
    assert!(cluster.stop());
}
