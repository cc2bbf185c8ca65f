//! Files as objects, through a real cluster: `put`, `get`, `stat`, `ls`, `rm`.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::client::S3;
use crate::common::{Cluster, content, signal};

/// Sizes around the boundaries of chunks and of parts.
const SIZES: [usize; 8] = [0, 1, 4_096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 16 << 20, 40_000_000];

fn put_all(cluster: &Cluster, round: u64) {
    for size in SIZES {
        let path = cluster.directory.join(format!("source-{size}"));
        fs::write(&path, content(size, round)).unwrap();
        cluster.run(&["put", path.to_str().unwrap(), &format!("file {size}/ü")]);
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
    assert_eq!(cluster.keys("s3://files").len(), SIZES.len());
    let stat: serde_json::Value = serde_json::from_slice(&cluster.run(&["stat", "file 1/ü", "--json"])).unwrap();
    assert_eq!((&stat["size"], &stat["bucket"]), (&1.into(), &"files".into()));
    assert_eq!(stat["checksums"][0][0], "x-amz-checksum-crc64nvme", "{stat}");
    let manifest = &stat["places"]["chunks"][0]["holders"][0];
    assert!(manifest["piece"].is_null() && manifest["targets"].as_array().unwrap().len() >= 3, "{stat}");
    let without: serde_json::Value =
        serde_json::from_slice(&cluster.run(&["stat", "file 1/ü", "--json", "--chunks", "0"])).unwrap();
    assert!(without["places"].is_null(), "{without}");
    assert!(cluster.stop());
    let cluster = started(&place, &["--targets", "9"]);
    assert!(cluster.output().contains("found again"), "{}", cluster.output());
    check_all(&cluster, 2);
    assert!(cluster.stop());
}

#[test]
fn standard_input_and_output_and_a_missing_name() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place, &["--targets", "3", "--no-multicast"]);
    let data = content(3_000_000, 7);
    assert_eq!(cluster.keys("s3://files"), [""; 0], "nobody has put anything yet");
    assert!(cluster.try_run(&["put", "-", "piped"], &data).status.success());
    assert!(cluster.run(&["get", "piped", "-o", "-"]) == data);
    let into = cluster.directory.join("not-there");
    let output = cluster.try_run(&["get", "missing", "-o", into.to_str().unwrap()], b"");
    assert!(!output.status.success() && !into.exists());
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no object s3://files/missing"));
    assert!(!cluster.try_run(&["stat", "missing"], b"").status.success());
    let long = "x".repeat(1_000);
    assert!(cluster.try_run(&["put", "-", &long], b"1").status.success());
    let table = String::from_utf8(cluster.run(&["ls"])).unwrap();
    assert!(table.lines().any(|line| line.ends_with("  piped")) && table.contains(&long), "{table}");
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
    assert_eq!(cluster.output().matches("it stays down, the others go on").count(), 2, "{}", cluster.output());
}

#[test]
fn a_killed_gateway_leaves_the_old_version() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place, &["--targets", "3", "--no-restart"]);
    let (old, new) = (content(100_000, 1), content(40 << 20, 2));
    assert!(cluster.try_run(&["put", "-", "f"], &old).status.success());
    let gateway = cluster.children("gateway");
    assert_eq!(gateway.len(), 1);
    std::thread::scope(|scope| {
        let put = scope.spawn(|| cluster.try_run(&["put", "/dev/zero", "f"], b""));
        std::thread::sleep(Duration::from_millis(300));
        signal(gateway[0], "-KILL");
        assert!(!put.join().unwrap().status.success(), "a put without end succeeded");
    });
    let directory = cluster.crash();
    wait_for_silence(&directory);
    let cluster = Cluster::start(&directory, &["--targets", "3"]);
    assert!(cluster.run(&["get", "f", "-o", "-"]) == old);
    assert!(cluster.try_run(&["put", "-", "f"], &new).status.success());
    assert!(cluster.run(&["get", "f", "-o", "-"]) == new);
}

/// The children of a crashed `up` end by themselves: then their addresses are free.
fn wait_for_silence(directory: &Path) {
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
    let demo = |more: &[&str]| {
        let args = [&["up", "--data", data.to_str().unwrap(), "--demo", "--once"], more].concat();
        let output = crate::common::reservoir(&args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    };
    let output = demo(&["--json", "--out-after", "10"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["every_comparison_held"], true);
    assert_eq!(report["put"]["size"], 64 << 20);
    let copies = report["copies_by_target"].as_object().unwrap();
    // 64 chunks and the manifests of object and bucket.
    assert!(copies.values().map(|copies| copies.as_u64().unwrap()).sum::<u64>() >= 3 * 66, "{report}");
    // What the lost target had was made again elsewhere, and what happened meanwhile was said.
    let (loss, lost) = (&report["loss"], report["stopped_target"].to_string());
    assert_eq!(loss["target"].to_string(), lost, "{report}");
    let (out, whole) = (loss["out_seconds"].as_f64().unwrap(), loss["whole_seconds"].as_f64().unwrap());
    // The ten seconds begin when it was heard of last, which was up to a look before.
    assert!(out >= 5.0 && out <= whole && loss["get_mb_per_s"].as_f64() > Some(0.0), "{report}");
    let had = copies[&lost].as_u64().unwrap();
    assert!(loss["restored_chunks"].as_u64() >= Some(had) && had >= 64 / 3, "{report}");
    assert!(loss["restored_bytes"].as_u64() >= Some((had - 3) << 20), "{report}");
    let said = String::from_utf8(output.stderr).unwrap();
    for (line, all) in [
        ("is lost for good", &[" is lost for good: killed, and not started again"][..]),
        ("read without it", &["equal"]),
        (&format!("target {lost} is down for "), &["it is taken out of the cluster map in "]),
        (" s: whole again: ", &["chunks with ", "iB made again on other targets"]),
        ("read once more", &["equal"]),
    ] {
        let found = said.lines().find(|said| said.contains(line)).unwrap_or_else(|| panic!("no {line:?} in {said}"));
        assert!(all.iter().all(|part| found.contains(part)), "{found}");
    }
    // A cluster that was there before loses nothing, and goes on with those that are left.
    let said = String::from_utf8(demo(&[]).stdout).unwrap();
    assert!(said.contains("Cluster found again: 8 targets and a gateway are up"), "{said}");
    assert!(said.contains("No target is lost for good: this cluster was there before."), "{said}");
}

/// The files below a directory by their paths in it.
fn below(root: &Path) -> Vec<(String, Vec<u8>)> {
    let (mut open, mut found) = (vec![root.to_owned()], vec![]);
    while let Some(path) = open.pop() {
        for entry in fs::read_dir(&path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.push((name, fs::read(path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn trees_come_back_and_go() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place, &["--targets", "3"]);
    let (tree, back) = (place.path().join("a tree"), place.path().join("back"));
    for n in 0..30 {
        let path = tree.join(format!("{}/deeper ü/{n}.bin", n % 3));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content(n * 40_000, n as u64)).unwrap();
    }
    std::os::unix::fs::symlink(tree.join("0"), tree.join("a link to a directory")).unwrap();
    cluster.run(&["put", "-r", tree.to_str().unwrap()]);
    assert_eq!(cluster.keys("a tree/").len(), 30);
    assert_eq!(cluster.keys("a tree/1/").len(), 10);
    cluster.run(&["get", "-r", "a tree", "-o", back.to_str().unwrap()]);
    fs::remove_file(tree.join("a link to a directory")).unwrap();
    assert!(below(&back) == below(&tree), "the tree came back changed");
    // One object beside it whose key begins alike.
    assert!(cluster.try_run(&["put", "-", "a tree, too"], b"x").status.success());
    let removed: serde_json::Value = serde_json::from_slice(&cluster.run(&["rm", "-r", "a tree", "--json"])).unwrap();
    assert_eq!(removed["objects"], 30);
    assert_eq!(cluster.keys("s3://files"), ["a tree, too"]);
    cluster.run(&["rm", "a tree, too"]);
    for args in [&["rm", "a tree, too"][..], &["rm", "-r", "a tree"], &["get", "-r", "a tree"]] {
        let output = cluster.try_run(args, b"");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains("there is no"), "{args:?}: {error}");
    }
    assert!(cluster.stop());
}

#[test]
fn any_bucket_and_any_user_may_be_given() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place, &["--targets", "3"]);
    let s3 = S3::of(&cluster);
    s3.put("photos", "", b"").is(200);
    let bytes = content(20_000_000, 3);
    let path = cluster.directory.join("cat.jpg");
    fs::write(&path, &bytes).unwrap();
    for to in ["s3://photos", "s3://photos/a/", "s3://photos/b/renamed"] {
        cluster.run(&["put", path.to_str().unwrap(), to]);
    }
    assert_eq!(cluster.keys("s3://photos"), ["a/cat.jpg", "b/renamed", "cat.jpg"]);
    assert_eq!(String::from_utf8(cluster.run(&["ls", "s3://"])).unwrap(), "s3://photos\n");
    // What the one wrote the other reads, both ways; an object in parts has a checksum of all its bytes.
    assert!(s3.get("photos", "a/cat.jpg").is(200).body == bytes);
    s3.put("photos", "by another", &bytes).is(200);
    let back = place.path().join("back");
    let read = |key: &str| -> serde_json::Value {
        serde_json::from_slice(&cluster.run(&["get", key, "-o", back.to_str().unwrap(), "--json"])).unwrap()
    };
    for key in ["s3://photos/by another", "s3://photos/cat.jpg"] {
        assert_eq!(read(key)["verified"], "CRC64NVME", "{key}");
        assert!(fs::read(&back).unwrap() == bytes);
    }
    let sum = [("x-amz-checksum-sha256", "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=")];
    s3.ask("PUT", ("photos", "abc"), &[], &sum, b"abc").is(200);
    assert!(!read("s3://photos/abc")["verified"].is_null());
    // Another user's bucket is refused, and so is one that is not there.
    cluster.run(&["user", "add", "ann"]);
    let error = |args: &[&str]| {
        let output = cluster.try_run(args, b"x");
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(error(&["get", "s3://photos/cat.jpg", "-o", "-", "--user", "ann"]).contains("AccessDenied"));
    assert!(error(&["get", "x", "--user", "bob"]).contains("bob"));
    for nowhere in [&["put", "-", "s3://nowhere/x"][..], &["stat", "s3://nowhere/x"], &["rm", "s3://nowhere/x"]] {
        let why = error(nowhere);
        assert!(
            why.contains("there is no bucket \"nowhere\"") && why.contains("mb s3://nowhere"),
            "{nowhere:?}: {why}"
        );
    }
    assert!(error(&["put", "-", "s3://No_Where/x"]).contains("3 to 63"));
    // Of a tree one file is enough to see that.
    let all = error(&["put", "-r", env!("CARGO_MANIFEST_DIR"), "s3://nowhere/"]);
    assert!(all.contains("the rest cannot be") && all.matches("there is no bucket").count() == 1, "{all}");
    assert!(error(&["put", "-", "a/../b"]).contains("no URL can carry"));
    assert!(error(&["put", "-"]).contains("has no name"));
    // What is there stays as it was when a get breaks.
    assert!(error(&["get", "s3://photos/gone", "-o", back.to_str().unwrap()]).contains("there is no object"));
    assert_eq!(fs::read(&back).unwrap(), b"abc");
    assert!(cluster.stop());
}

/// A directory that the version before buckets wrote, with addresses that are free here.
fn unpacked(place: &Path) -> PathBuf {
    unpacked_from("files-of-0.1.tar.gz", place)
}

/// The same from this archive.
fn unpacked_from(archive: &str, place: &Path) -> PathBuf {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(archive);
    let tar = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(place).status().unwrap();
    assert!(tar.success());
    let data = place.join("data");
    let port = || {
        let both = |address| UdpSocket::bind(address).and_then(|_| TcpListener::bind(address));
        node::at_free_port(Ipv4Addr::LOCALHOST.into(), both).unwrap().local_addr().unwrap().port()
    };
    for name in ["cluster.toml", "gateway.toml"] {
        let text = fs::read_to_string(data.join(name)).unwrap();
        let line = |line: &str| match line.split_once("127.0.0.1:") {
            Some((before, _)) => format!("{before}127.0.0.1:{}\"\n", port()),
            None => format!("{line}\n"),
        };
        fs::write(data.join(name), text.lines().map(line).collect::<String>()).unwrap();
    }
    data
}

/// The bytes that are in it: each block of 4 KiB begins with the file's number and its own.
fn old_content(length: usize, number: usize) -> Vec<u8> {
    let block = |n: usize| format!("{:.<4096}", format!("{number:04}-{n:08}")).into_bytes();
    let mut bytes: Vec<u8> = (0..length.div_ceil(4_096)).flat_map(block).collect();
    bytes.truncate(length);
    bytes
}

#[test]
fn files_of_earlier_versions_make_their_bucket() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&unpacked(place.path()), &["--no-multicast"]);
    cluster.run(&["migrate"]);
    assert_eq!(cluster.keys("s3://files").len(), 7);
    assert!(cluster.stop());
}

#[test]
fn files_of_earlier_versions_become_objects() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&unpacked(place.path()), &["--no-multicast"]);
    let old = [
        ("%2E%2E", old_content(1, 2)),
        ("/rooted//twice", old_content(1, 2)),
        ("100% sure?&#+", old_content(70_000, 9)),
        ("a dir/ü.txt", old_content(2_600_000, 4)),
        ("edge", old_content(1 << 20, 3)),
        ("empty", vec![]),
        ("one", old_content(1, 2)),
    ];
    let names: Vec<&str> = old.iter().map(|(name, _)| *name).collect();
    let migrate = |more: &[&str]| -> serde_json::Value {
        serde_json::from_slice(&cluster.run(&[&["migrate", "--json"], more].concat())).unwrap()
    };
    assert_eq!(migrate(&["--dry-run"])["moved"], old.len());
    assert_eq!(cluster.keys("s3://files"), [""; 0], "only the files were to be named");
    // An object in the way stays, and so does the file.
    assert!(cluster.try_run(&["put", "-", "edge"], b"in the way").status.success());
    let output = cluster.try_run(&["migrate"], b"");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("\"edge\" was not moved: there is another object"), "{error}");
    assert!(error.contains("1 files were not moved"), "{error}");
    assert_eq!(cluster.run(&["get", "edge", "-o", "-"]), b"in the way");
    cluster.run(&["rm", "edge"]);
    assert_eq!(migrate(&[])["moved"], 1);
    let mut keys = cluster.keys("s3://files");
    keys.sort();
    assert_eq!(keys, names);
    let held = |cluster: &Cluster| -> u64 {
        let status: serde_json::Value = serde_json::from_slice(&cluster.run(&["status", "--json"])).unwrap();
        status["targets"].as_array().unwrap().iter().map(|target| target["chunks"].as_u64().unwrap()).sum()
    };
    // Nothing is left to be moved, and what the files alone referred to goes, as one that was replaced.
    assert_eq!(migrate(&[])["moved"], 0);
    let before = held(&cluster);
    cluster.run(&["clean", "--grace", "1"]);
    assert!(held(&cluster) < before);
    cluster.run(&["catalog", "check"]);
    for (name, bytes) in &old {
        let key = format!("s3://files/{name}");
        assert!(cluster.run(&["get", &key, "-o", "-"]) == *bytes, "{name} came back changed");
    }
    let stat = String::from_utf8(cluster.run(&["stat", "one"])).unwrap();
    assert!(stat.contains("x-amz-meta-reservoir-stored-ms"), "{stat}");
    assert!(cluster.stop());
}

/// What the targets say that they hold: chunks and live bytes of each, by its id.
fn held(cluster: &Cluster) -> Vec<(u64, u64)> {
    let status: serde_json::Value = serde_json::from_slice(&cluster.run(&["status", "--json"])).unwrap();
    let number = |target: &serde_json::Value, what: &str| target[what].as_u64().unwrap();
    let targets = status["targets"].as_array().unwrap().iter();
    targets.map(|target| (number(target, "chunks"), number(target, "live"))).collect()
}

/// 16 targets of different sizes, some of them on one server, that the version before cells in maps wrote to: object `NN`, of
/// 80,000 bytes, or of 100 when NN is divided by three. Objects 05 and 06 were removed again.
#[test]
fn a_cluster_of_many_groups_is_taken_over_without_moving_a_byte() {
    let place = tempfile::tempdir().unwrap();
    let data = unpacked_from("groups-of-0.1.tar.gz", place.path());
    let map = data.join("cluster.toml");
    assert!(!fs::read_to_string(&map).unwrap().contains("layout"));
    let cluster = Cluster::start(&data, &["--no-multicast"]);
    let text = fs::read_to_string(&map).unwrap();
    assert!(text.contains("\ndrawn = [") && !text.contains("[previous]"), "{text}");
    let status: serde_json::Value = serde_json::from_slice(&cluster.run(&["status", "--json"])).unwrap();
    let groups = status["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 5);
    assert!(groups.iter().all(|group| group.as_array().unwrap().len() < 16), "{groups:?}");
    cluster.run(&["catalog", "check"]);
    let before = held(&cluster);
    let object = |n: usize| old_content(if n.is_multiple_of(3) { 100 } else { 80_000 }, n);
    let there = || (0..48).filter(|n| ![5, 6].contains(n));
    assert_eq!(cluster.keys("s3://files").len(), there().count());
    for n in there() {
        let key = format!("s3://files/{n:02}");
        assert!(cluster.run(&["get", &key, "-o", "-"]) == object(n), "{key} came back changed");
    }
    assert_eq!(held(&cluster), before, "nothing moved");
    // Copies of the objects find all three of each chunk in its group, and make none: only manifests come, which have less
    // than 4 KiB. A busy machine may answer so late that a few are made all the same.
    let s3 = S3::of(&cluster);
    let sum = |held: Vec<(u64, u64)>| held.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let before = sum(before);
    for n in there().filter(|n| !n.is_multiple_of(3)) {
        let from = [("x-amz-copy-source", &*format!("files/{n:02}"))];
        s3.ask("PUT", ("files", &format!("again/{n}")), &[], &from, b"").is(200);
    }
    let after = sum(held(&cluster));
    let (chunks, bytes) = (after.0 - before.0, after.1 - before.1);
    let few = 5 * 80_000;
    assert!(chunks >= 3 * 31 && bytes < chunks * 4_096 + few, "{bytes} bytes in {chunks} chunks came");
    assert!(cluster.stop());
}

/// The versions of all keys of a bucket.
fn versions(s3: &S3, bucket: &str) -> Vec<String> {
    s3.list(bucket, &[("versions", "")]).is(200).elements("Key")
}

#[test]
fn a_migration_that_was_killed_goes_on_and_puts_nothing_twice() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&unpacked(place.path()), &["--no-multicast"]);
    let s3 = S3::of(&cluster);
    s3.put("files", "", b"").is(200);
    let enabled = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    s3.ask("PUT", ("files", ""), &[("versioning", "")], &[], enabled.as_bytes()).is(200);
    // What somebody copied already, byte for byte, counts as moved.
    s3.put("files", "edge", &old_content(1 << 20, 3)).is(200);
    let mut partly = 0;
    for patience in (0..).map(|n| Duration::from_millis(20 * n)) {
        let mut migrate = cluster.spawn(&["migrate"]);
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline && migrate.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = migrate.kill();
        let status = migrate.wait().unwrap();
        let count = versions(&s3, "files").len();
        partly += usize::from((2..7).contains(&count));
        if status.code().is_some() {
            assert!(status.success(), "the last one left something");
            break;
        }
    }
    println!("{partly} of the attempts were killed when some files were objects");
    let mut keys = versions(&s3, "files");
    keys.sort();
    let names = ["%2E%2E", "/rooted//twice", "100% sure?&#+", "a dir/ü.txt", "edge", "empty", "one"];
    assert_eq!(keys, names.map(|name| name.replace('&', "&amp;")), "each was put once");
    let again: serde_json::Value = serde_json::from_slice(&cluster.run(&["migrate", "--json"])).unwrap();
    assert_eq!((&again["moved"], &again["failed"]), (&0.into(), &0.into()));
    assert!(cluster.run(&["get", "a dir/ü.txt", "-o", "-"]) == old_content(2_600_000, 4));
    assert!(cluster.run(&["get", "edge", "-o", "-"]) == old_content(1 << 20, 3));
    assert!(cluster.stop());
}

/// Passes requests on to a gateway, each on a connection of its own. The first HEAD of a key that ends so is told that there
/// is none: as if somebody put it just after.
fn blind_proxy(gateway: SocketAddr, key: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut blind = true;
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                head.extend(byte);
            }
            let request = String::from_utf8_lossy(&head).into_owned();
            let path = request.split(['?', ' ']).nth(1).unwrap();
            if request.starts_with("HEAD ") && path.ends_with(key) && std::mem::take(&mut blind) {
                let none = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                client.write_all(none).unwrap();
                continue;
            }
            let mut server = TcpStream::connect(gateway).unwrap();
            let end = head.len() - 2;
            server.write_all(&[&head[..end], b"connection: close\r\n\r\n"].concat()).unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            let _ = std::io::copy(&mut server, &mut client);
            let _ = client.shutdown(Shutdown::Both);
        }
    });
    address
}

#[test]
fn a_migration_does_not_replace_what_came_while_it_looked() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&unpacked(place.path()), &["--no-multicast"]);
    assert!(cluster.try_run(&["put", "-", "edge"], b"in the way").status.success());
    let settings = cluster.directory.join("gateway.toml");
    let text = fs::read_to_string(&settings).unwrap();
    let (_, listen) = text.split_once("listen = \"").unwrap();
    let listen = listen.split('"').next().unwrap();
    let proxy = blind_proxy(listen.parse().unwrap(), "/edge");
    fs::write(&settings, text.replace(listen, &proxy.to_string())).unwrap();
    let output = cluster.try_run(&["migrate"], b"");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("\"edge\" was not moved: there is another object"), "{error}");
    fs::write(&settings, text).unwrap();
    assert_eq!(cluster.run(&["get", "edge", "-o", "-"]), b"in the way");
    assert_eq!(cluster.keys("s3://files").len(), 7, "the others were moved");
    assert!(cluster.stop());
}

#[test]
fn an_endpoint_with_a_certificate_is_spoken_to_in_tls() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place, &["--targets", "3"]);
    assert!(cluster.try_run(&["put", "-", "before"], b"plain").status.success());
    let (data, stopped) = (cluster.directory.clone(), cluster.stop());
    assert!(stopped);
    let made = rcgen::generate_simple_self_signed(["s3.example.org".to_owned()]).unwrap();
    fs::write(data.join("s3.pem"), made.cert.pem()).unwrap();
    fs::write(data.join("s3.key"), made.signing_key.serialize_pem()).unwrap();
    let settings = data.join("gateway.toml");
    let text = fs::read_to_string(&settings).unwrap();
    let secure = "certificate = \"s3.pem\"\nkey = \"s3.key\"\n";
    fs::write(&settings, format!("{text}domain = \"s3.example.org\"\n{secure}")).unwrap();
    let cluster = Cluster::start(&data, &[]);
    assert!(cluster.output().contains("endpoint: https://"), "{}", cluster.output());
    let bytes = content(20_000_000, 1);
    assert!(cluster.try_run(&["put", "-", "f"], &bytes).status.success());
    assert!(cluster.run(&["get", "f", "-o", "-"]) == bytes);
    assert_eq!(cluster.run(&["get", "before", "-o", "-"]), b"plain");
    // A certificate that is not the gateway's.
    let other = rcgen::generate_simple_self_signed(["s3.example.org".to_owned()]).unwrap();
    fs::write(data.join("s3.pem"), other.cert.pem()).unwrap();
    let refused = || {
        let output = cluster.try_run(&["get", "f", "-o", "-"], b"");
        assert!(!output.status.success() && output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    let error = refused();
    assert!(error.contains("is not trusted") && error.contains("`certificate`"), "{error}");
    // One as plain openssl makes it.
    let mut of_authority = rcgen::CertificateParams::new(["s3.example.org".to_owned()]).unwrap();
    of_authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    fs::write(data.join("s3.pem"), of_authority.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(data.join("s3.key"), key.serialize_pem()).unwrap();
    let error = refused();
    assert!(error.contains("is not trusted") && error.contains("CA:FALSE"), "{error}");
    assert!(cluster.stop());
}

#[test]
fn what_http_refuses_has_a_reason_in_json() {
    let place = tempfile::tempdir().unwrap();
    let cluster = started(&place, &["--targets", "3"]);
    let agent = ureq::Agent::new_with_config(ureq::Agent::config_builder().http_status_as_error(false).build());
    let url = |path: &str| format!("http://{}{path}", cluster.gateway());
    let answers = [
        (agent.get(url("/nothing")).call(), 404),
        (agent.get(url("/v1/files/x")).call(), 404),
        (agent.put(url("/v1/status")).send(&b"x"[..]), 405),
        // A host that is not the gateway, a page of another origin.
        (agent.get(url("/v1/status")).header("host", "gateway.example").call(), 403),
        (agent.get(url("/metrics")).header("origin", "http://evil.example").call(), 403),
        (agent.get(url("/v1/live")).header("sec-fetch-site", "cross-site").call(), 403),
    ];
    for (answer, status) in answers {
        let mut answer = answer.unwrap();
        assert_eq!(answer.status(), status);
        let body: serde_json::Value = answer.body_mut().read_json().unwrap();
        assert!(body["error"].as_str().unwrap().len() > 10, "{body}");
    }
    assert!(cluster.stop());
}
