//! A newer cluster map while the cluster works.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use node::ClusterConfig;

use crate::common::{Cluster, Role, content, make_store, signal, wait_until};

/// A tenth target at the end of the map and in its first cell, and a higher epoch.
fn grown(map: &str) -> String {
    let port = node::free_port(Ipv4Addr::LOCALHOST).unwrap();
    let entry = format!(
        "\n[[target]]\nid = 10\ndomain = \"disk-010\"\naddress = \"127.0.0.1:{port}\"\ndata = \"targets/10\"\n\
         capacity = \"1GiB\"\n"
    );
    let placed = map.replace("epoch = 1", "epoch = 2").replace("targets = [1, 4, 7]", "targets = [1, 4, 7, 10]");
    assert!(placed.contains("10]"), "{map}");
    placed + &entry
}

fn epochs(cluster: &Cluster) -> Vec<String> {
    let map = fs::read_to_string(cluster.config()).unwrap();
    let pages = map.lines().filter_map(|line| Some(line.strip_prefix("metrics = ")?.trim_matches('"').to_owned()));
    let epoch = |address: String| {
        let text = ureq::get(format!("http://{address}/metrics")).call().unwrap().body_mut().read_to_string().unwrap();
        let line = text.lines().find(|line| line.starts_with("reservoir_target_map_epoch")).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    };
    pages.map(epoch).collect()
}

/// Files are put and read without a pause while `work` changes the cluster; none may fail.
fn under_load(cluster: &Cluster, work: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut n = 0;
            while !over.load(Ordering::Relaxed) {
                let (name, bytes) = (format!("load-{n}"), content(300_000, n));
                let put = cluster.try_run(&["put", "-", &name], &bytes);
                assert!(put.status.success(), "put {n}: {}", String::from_utf8_lossy(&put.stderr));
                assert!(cluster.run(&["get", &name, "-o", "-"]) == bytes, "file {n} came back changed");
                n += 1;
            }
            n
        });
        work();
        over.store(true, Ordering::Relaxed);
        assert!(load.join().unwrap() > 0);
    });
}

fn cluster_grows(more: &[&str], notify: bool) {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = Cluster::start(&data, more);
    let old = content(2_000_000, 99);
    assert!(cluster.try_run(&["put", "-", "old"], &old).status.success());
    let mut tenth = None;
    under_load(&cluster, || {
        cluster.change_map(grown);
        make_store(&cluster.config(), 10);
        tenth = Some(Role::start(&["target", "--config", &cluster.config(), "--id", "10"]));
        // One is notified, or looks at the file by itself; the others, and the gateway, learn of it from that one.
        if notify {
            signal(cluster.children("target")[0], "-HUP");
        }
        wait_until("a reload of every target", || epochs(&cluster).iter().all(|epoch| epoch == "2"));
        wait_until("a reload of the gateway", || cluster.status()["epoch"] == 2);
        wait_until("a copy on the new target", || cluster.status()["targets"][9]["chunks"].as_u64() > Some(0));
    });
    let status = cluster.status();
    assert_eq!(status["targets"].as_array().unwrap().len(), 10);
    assert!(cluster.run(&["get", "old", "-o", "-"]) == old);
    assert!(tenth.unwrap().stop(), "the new target did not stop in order");
    assert!(cluster.stop());
}

#[test]
fn a_cluster_grows_under_load_with_multicast() {
    cluster_grows(&["--transport", "replicast-m"], true);
}

#[test]
fn a_cluster_grows_under_load_without_multicast() {
    cluster_grows(&["--transport", "replicast-h", "--no-multicast"], false);
}

#[test]
fn a_gateway_has_the_newer_map_sent_by_the_targets() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = Cluster::start(&data, &["--targets", "4"]);
    // Another layout of groups, too: the targets do not listen any more where the old gateway asks.
    let map = fs::read_to_string(cluster.config()).unwrap();
    let port = node::free_port(Ipv4Addr::LOCALHOST).unwrap();
    let old = map.lines().find(|line| line.starts_with("multicast_port")).unwrap().to_owned();
    let new = format!("multicast_port = {port}");
    let gateway = cluster.children("gateway")[0];
    signal(gateway, "-STOP");
    cluster.change_map(|map| map.replace("epoch = 1", "epoch = 7").replace(&old, &new));
    cluster.children("target").iter().for_each(|pid| signal(*pid, "-HUP"));
    wait_until("a reload of every target", || epochs(&cluster).iter().all(|epoch| epoch == "7"));
    // A machine that was left out, and on which nothing can be put beside the map.
    let kept = format!("{}.1", cluster.config());
    let _ = fs::remove_file(&kept);
    fs::create_dir(&kept).unwrap();
    let key = map.lines().find(|line| line.starts_with("key_file")).unwrap().to_owned();
    let moved_key = key.replace("cluster.key", "./cluster.key");
    cluster.change_map(|_| map.replace(&key, &moved_key));
    signal(gateway, "-CONT");
    wait_until("a word of the newer map", || cluster.status()["newer_epoch"] == 7);
    let printed = String::from_utf8(cluster.run(&["status"])).unwrap();
    assert!(
        printed.contains("others use a newer cluster map, of epoch 7, and this gateway cannot take it"),
        "{printed}"
    );
    assert_eq!(cluster.status()["epoch"], 1);
    let log = fs::read_to_string(data.join("logs/gateway.log")).unwrap();
    assert!(log.contains("goes on with the cluster map of epoch 1: cannot write "), "{log}");
    fs::remove_dir(&kept).unwrap();
    let put = cluster.try_run(&["put", "-", "f"], b"told by a stale answer");
    assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    assert_eq!(cluster.status()["epoch"], 7);
    assert!(cluster.status()["newer_epoch"].is_null());
    assert_eq!(cluster.run(&["get", "f", "-o", "-"]), b"told by a stale answer");
    // It is in the file for whoever starts here next, but for what is of this machine; the one before is beside it.
    let file = fs::read_to_string(cluster.config()).unwrap();
    assert!(file.contains("epoch = 7") && file.contains(&new) && file.contains(&moved_key), "{file}");
    assert_eq!(fs::read_to_string(&kept).unwrap(), map.replace(&key, &moved_key));
    assert!(cluster.stop());
}

#[test]
fn a_map_that_is_worse_is_not_taken() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = Cluster::start(&data, &["--targets", "4"]);
    let log = || fs::read_to_string(data.join("logs/target-1.log")).unwrap();
    let good = fs::read_to_string(cluster.config()).unwrap();
    let name = good.lines().find(|line| line.starts_with("cluster = ")).unwrap().to_owned();
    let fewest = |n: u8| good.replace("epoch = 1", &format!("epoch = 2\nfewest_copies = {n}"));
    let newcomer =
        "\n[[target]]\nid = 5\ndomain = \"d\"\naddress = \"127.0.0.1:9\"\ndata = \"d\"\ncapacity = \"1GiB\"\n";
    let newer = good.replace("epoch = 1", "epoch = 2");
    let (without_cells, _) = newer.split_once("[layout]").unwrap();
    // By hand, without the layout before, in which target 4 has copies.
    let drained =
        newer.replace("id = 4\n", "id = 4\ndrain = true\n").replace("targets = [1, 2, 3, 4]", "targets = [1, 2, 3]");
    assert!(drained.contains("[1, 2, 3]") && drained.contains("drain"), "{drained}");
    let bad: [(&str, String, &str); 8] = [
        (
            "hides what is stored",
            drained,
            "do not lead to all that is stored by the layout of epoch 1: keep that layout",
        ),
        ("does not place a target", newer.clone() + newcomer, "target 5 is in no cell"),
        ("has no cells", without_cells.to_owned() + newcomer, "has no [layout], and its targets are others"),
        ("is no TOML", good.clone() + "\nthis is not TOML", "line"),
        (
            "is of another cluster",
            good.replace(&name, "cluster = \"other\"").replace("epoch = 1", "epoch = 2"),
            "names",
        ),
        ("has copies of nothing", fewest(0), "fewest_copies = 0: write a number"),
        ("had more copies than it has", fewest(4), "fewest_copies = 4: write a number"),
        ("is not newer", good.clone(), "put a newer one there"),
    ];
    for (what, text, message) in bad {
        cluster.change_map(|_| text.clone());
        signal(cluster.children("target")[0], "-HUP");
        wait_until(what, || log().contains(message));
    }
    assert!(cluster.try_run(&["put", "-", "f"], b"still here").status.success());
    assert_eq!(epochs(&cluster), ["1"; 4]);
    assert!(cluster.stop());
}

#[test]
fn another_carrier_counts_from_the_next_start_on() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let cluster = Cluster::start(&data, &["--targets", "3"]);
    let bytes = content(2_000_000, 7);
    assert!(cluster.try_run(&["put", "-", "before"], &bytes).status.success());
    cluster.change_map(|map| {
        let other = map
            .replace("epoch = 1", "epoch = 2")
            .replace("[network]\n", "[network]\ncarrier = \"tcp\"\nencrypt = true\n");
        assert!(other.contains("carrier"), "{map}");
        other
    });
    cluster.children("target").iter().for_each(|pid| signal(*pid, "-HUP"));
    wait_until("a reload of every target", || epochs(&cluster).iter().all(|epoch| epoch == "2"));
    wait_until("a reload of the gateway", || cluster.status()["epoch"] == 2);
    let log = fs::read_to_string(data.join("logs/gateway.log")).unwrap();
    assert!(log.contains("goes on with the carrier that it has"), "{log}");
    assert!(cluster.try_run(&["put", "-", "after"], &bytes).status.success());
    assert!(cluster.run(&["get", "before", "-o", "-"]) == bytes);
    assert!(cluster.run(&["get", "after", "-o", "-"]) == bytes);
    assert!(cluster.stop());
    // Now all of them take it.
    let again = Cluster::start(&data, &["--targets", "3"]);
    assert!(again.run(&["get", "after", "-o", "-"]) == bytes);
    let map = ClusterConfig::load(Path::new(&again.config())).unwrap();
    assert!(TcpStream::connect(map.targets[0].address).is_ok(), "it is not carried by TCP");
    assert!(again.stop());
}
