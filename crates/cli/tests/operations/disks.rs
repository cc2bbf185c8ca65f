//! Disks that are full, read-only, damaged or gone, under real processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Cluster, content, error_of, make_store, reservoir, rot, signal, wait_until};

/// A cluster that was started once; `change` has edited its map.
fn made(place: &Path, targets: &str, change: impl Fn(String) -> String) -> PathBuf {
    let data = place.join("data");
    let output = reservoir(&["up", "--data", data.to_str().unwrap(), "--targets", targets, "--once"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let map = data.join("cluster.toml");
    fs::write(&map, change(fs::read_to_string(&map).unwrap())).unwrap();
    data
}

fn with_capacity(map: &str, capacity: &str) -> String {
    let change = |line: &str| match line.strip_prefix("capacity = ") {
        Some(_) => format!("capacity = \"{capacity}\"\n"),
        None => format!("{line}\n"),
    };
    map.lines().map(change).collect()
}

/// A small file system at `path`, unmounted when dropped. `None`, with the reason printed, where this user may not.
struct Mount(PathBuf);

impl Mount {
    fn at(path: &Path, options: &str) -> Option<Self> {
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path).output().unwrap();
        if !mount.status.success() {
            println!("skipped: mounting needs root: {}", String::from_utf8_lossy(&mount.stderr));
            return None;
        }
        Some(Self(path.to_owned()))
    }

    fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        assert!(Command::new("mount").args(["-o", &options]).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The one error line of a put that must fail.
fn put_error(cluster: &Cluster, name: &str, bytes: &[u8]) -> String {
    let source = cluster.directory.join("source");
    fs::write(&source, bytes).unwrap();
    let output = cluster.try_run(&["put", source.to_str().unwrap(), name], b"");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "a put succeeded without room");
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("reservoir: ")).collect();
    assert_eq!(lines.len(), 1, "not one line: {text}");
    lines[0].to_owned()
}

/// A put that finds no room leaves no file, and what was there stays readable.
fn nothing_half_written(cluster: &Cluster, full: &[u8]) {
    let small = content(10_000, 1);
    assert!(cluster.try_run(&["put", "-", "small"], &small).status.success());
    let error = put_error(cluster, "large", full);
    assert!(error.contains("full targets: ") && error.contains("free space"), "{error}");
    assert!(error.contains("silent targets: none"), "a target with an answer is called silent: {error}");
    assert_eq!(cluster.keys("s3://files"), ["small"]);
    assert!(!cluster.try_run(&["stat", "large"], b"").status.success());
    assert!(cluster.run(&["get", "small", "-o", "-"]) == small);
    assert_eq!(cluster.children("target").len(), 3, "a full target ended");
}

#[test]
fn a_cluster_at_its_capacity_refuses_puts_and_serves_gets() {
    let place = tempfile::tempdir().unwrap();
    let data = made(place.path(), "3", |map| with_capacity(&map, "64MiB"));
    let cluster = Cluster::start(&data, &["--targets", "3"]);
    nothing_half_written(&cluster, &content(80 << 20, 2));
    assert!(cluster.stop());
}

#[test]
fn a_full_file_system_refuses_puts_and_serves_gets() {
    let place = tempfile::tempdir().unwrap();
    let data = made(place.path(), "3", |map| with_capacity(&map, "256MiB"));
    // Room for a segment of 16 MiB and the reserve, which is three, and not for a fifth.
    let directory = data.join("targets/2");
    let Some(_mount) = Mount::at(&directory, "size=72m") else { return };
    make_store(data.join("cluster.toml").to_str().unwrap(), 2);
    let cluster = Cluster::start(&data, &["--targets", "3"]);
    nothing_half_written(&cluster, &content(60 << 20, 2));
    // What is left of the segment, and not of the capacity.
    assert!(value(&data, 2, "free_bytes") < f64::from(2 << 20), "{}", value(&data, 2, "free_bytes"));
    assert!(value(&data, 1, "free_bytes") > f64::from(64 << 20));
    let status: serde_json::Value = serde_json::from_slice(&cluster.run(&["status", "--json"])).unwrap();
    assert!(status["targets"][1]["free"].as_u64() < Some(2 << 20), "{status}");
    let log = || fs::read_to_string(data.join("logs/target-2.log")).unwrap();
    wait_until("a line about it", || log().contains("its file system is full: free space"));
    assert!(!log().contains("`capacity`"), "{}", log());
    assert!(cluster.stop());
}

#[test]
fn room_that_others_take_and_leave_is_seen_without_a_put() {
    let place = tempfile::tempdir().unwrap();
    let data = made(place.path(), "3", |map| with_capacity(&map, "256MiB"));
    let directory = data.join("targets/2");
    let Some(_mount) = Mount::at(&directory, "size=132m") else { return };
    make_store(data.join("cluster.toml").to_str().unwrap(), 2);
    let cluster = Cluster::start(&data, &["--targets", "3"]);
    let free = || {
        let status: serde_json::Value = serde_json::from_slice(&cluster.run(&["status", "--json"])).unwrap();
        status["targets"][1]["free"].as_u64().unwrap()
    };
    assert!((60 << 20..100 << 20).contains(&free()), "{}", free());
    let other = directory.join("of-somebody-else");
    fs::write(&other, content(70 << 20, 1)).unwrap();
    wait_until("less free space", || free() <= 16 << 20);
    fs::remove_file(other).unwrap();
    wait_until("more free space", || free() > 60 << 20);
    assert!(cluster.stop());
}

#[test]
fn a_file_whose_copies_are_all_damaged_is_refused_with_the_reason() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = Cluster::start(&data, &["--targets", "3"]);
    let bytes = content(3 << 20, 7);
    for (name, part) in [("one", &bytes[..1 << 20]), ("three", &bytes)] {
        assert!(cluster.try_run(&["put", "-", name], part).status.success());
    }
    // The last chunk of three: the answer has begun when it is missed.
    cluster.rot(&[1, 2, 3], [&bytes[(2 << 20) + 1_000..][..32]]);
    let error = String::from_utf8(cluster.try_run(&["get", "three", "-o", "-"], b"").stderr).unwrap();
    assert!(error.contains("broke off after ") && error.contains("the log of the gateway"), "{error}");
    cluster.rot(&[1, 2, 3], [&bytes[1_000..][..32]]);
    for name in ["one", "three"] {
        let error = String::from_utf8(cluster.try_run(&["get", name, "-o", "-"], b"").stderr).unwrap();
        // Until a scrub has forgotten the copies they are damaged, then they are not there.
        let why = ["every copy that there is is damaged", "no target of its group holds the chunk", "damaged copy: "];
        assert!(error.contains("chunk p") && why.iter().any(|why| error.contains(why)), "{error}");
        assert!(!error.contains("broke off"), "{error}");
    }
    assert!(cluster.stop());
}

#[test]
fn a_read_only_directory_is_reported() {
    let place = tempfile::tempdir().unwrap();
    let data = made(place.path(), "3", |map| map);
    let (directory, config) = (data.join("targets/2"), data.join("cluster.toml"));
    fs::remove_file(directory.join("lock")).unwrap();
    // Permission bits do not bind root; a mount does.
    let mode = std::os::unix::fs::PermissionsExt::from_mode;
    fs::set_permissions(&directory, mode(0o555)).unwrap();
    let probe = directory.join("probe");
    let _mount = if fs::write(&probe, "").is_ok() {
        fs::remove_file(probe).unwrap();
        let Some(mount) = Mount::at(&directory, "size=64m") else { return };
        make_store(config.to_str().unwrap(), 2);
        mount.remount("ro");
        Some(mount)
    } else {
        None
    };
    let before = fs::read_dir(&directory).unwrap().count();
    let role = error_of(&["target", "--config", config.to_str().unwrap(), "--id", "2"]);
    let up = error_of(&["up", "--data", data.to_str().unwrap(), "--targets", "3", "--once"]);
    for error in [role, up] {
        assert!(error.contains("targets/2") && error.contains("make it writable"), "{error}");
    }
    assert_eq!(fs::read_dir(&directory).unwrap().count(), before, "something half-written");
    let new = directory.join("new");
    let error = error_of(&["up", "--data", new.to_str().unwrap(), "--targets", "3", "--once"]);
    assert!(error.contains("choose another with --data"), "{error}");
    fs::set_permissions(&directory, mode(0o755)).unwrap_or_default();
}

/// A series of target `id`, all labels but its own cut off; `None` when it is not there.
fn metric(data: &Path, id: usize, name: &str) -> Option<(String, f64)> {
    let map = fs::read_to_string(data.join("cluster.toml")).unwrap();
    let address =
        map.lines().filter_map(|line| line.strip_prefix("metrics = ")).nth(id - 1)?.trim_matches('"').to_owned();
    let text = ureq::get(format!("http://{address}/metrics")).call().ok()?.body_mut().read_to_string().ok()?;
    let line = text.lines().find(|line| line.starts_with(&format!("reservoir_target_{name}{{")))?;
    let (labels, value) = line.rsplit_once(' ')?;
    Some((labels.to_owned(), value.parse().ok()?))
}

fn value(data: &Path, id: usize, name: &str) -> f64 {
    metric(data, id, name).map_or(0.0, |(_, value)| value)
}

#[test]
fn damage_is_in_the_status_until_it_is_made_good() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = Cluster::start(&data, &["--targets", "3"]);
    let bytes = content(4 << 20, 9);
    let put = |cluster: &Cluster| assert!(cluster.try_run(&["put", "-", "f"], &bytes).status.success());
    put(&cluster);
    let missed = |cluster: &Cluster| {
        let status: serde_json::Value = serde_json::from_slice(&cluster.run(&["status", "--json"])).unwrap();
        let targets: Vec<Option<u64>> = (0..3).map(|n| status["targets"][n]["damaged"].as_u64()).collect();
        assert_eq!(
            (targets.iter().flatten().sum::<u64>().into(), targets.contains(&None).into()),
            (status["damaged"]["copies"].clone(), status["damaged"]["at_least"].clone()),
            "{status}"
        );
        targets
    };
    assert_eq!(missed(&cluster), [Some(0); 3]);
    assert!(!String::from_utf8(cluster.run(&["status"])).unwrap().contains("damage: "));
    // Whoever has other copies is away, and cannot make these again.
    let others = [0, 2].map(|n| cluster.children("target")[n]);
    others.iter().for_each(|pid| signal(*pid, "-STOP"));
    rot(&data.join("targets/2/segment-00000001"), [0, 2].map(|chunk| &bytes[(chunk << 20) + 700_000..][..32]));
    let lost = [None, Some(2), None];
    wait_until("a scrub of what rotted", || missed(&cluster) == lost);
    assert_eq!(value(&data, 2, "damaged_chunks"), 2.0);
    signal(cluster.children("target")[1], "-KILL");
    wait_until("its end", || missed(&cluster) == [None; 3]);
    wait_until("its restart", || missed(&cluster)[1].is_some());
    assert_eq!(missed(&cluster), lost, "it was forgotten");
    let table = String::from_utf8(cluster.run(&["status"])).unwrap();
    let says = |words: &str| table.contains(words);
    assert!(says("damage: at least 2 copies were damaged and dropped") && says("up to 2 chunks"), "{table}");
    others.iter().for_each(|pid| signal(*pid, "-CONT"));
    wait_until("what the others have", || missed(&cluster) == [Some(0); 3]);
    assert_eq!(value(&data, 2, "damaged_chunks"), 0.0);
    assert!(cluster.stop());
}

#[test]
fn flipped_bytes_are_found_by_the_scrub_named_and_their_space_is_won_back() {
    let place = tempfile::tempdir().unwrap();
    // Its segments have room for all of it.
    let data = made(place.path(), "3", |map| with_capacity(&map, "1GiB"));
    let cluster = Cluster::start(&data, &[]);
    let bytes = content(48 << 20, 5);
    assert!(cluster.try_run(&["put", "-", "f"], &bytes).status.success());
    // Most of its 48 chunks rot on target 1: more than half of the segment.
    let of_target = fs::read_dir(data.join("targets/1")).unwrap().map(|entry| entry.unwrap().path());
    let has_first =
        |path: &PathBuf| fs::read(path).unwrap().windows(32).any(|window| window == &bytes[700_000..][..32]);
    let segment = of_target.filter(|path| path.to_str().unwrap().contains("segment-")).find(has_first).unwrap();
    rot(&segment, (0..44).map(|chunk| &bytes[(chunk << 20) + 700_000..][..32]));
    wait_until("a scrub of all that rotted", || value(&data, 1, "corrupt_copies_total") >= 44.0);
    let log = fs::read_to_string(data.join("logs/target-1.log")).unwrap();
    let damaged: Vec<&str> = log.lines().filter(|line| line.contains("which was damaged")).collect();
    assert_eq!(damaged.len(), 44, "{log}");
    assert!(
        damaged.iter().all(|line| line.contains("ERROR") && line.contains("target 1: dropped the copy of p")),
        "{log}"
    );
    let (series, _) = metric(&data, 1, "last_corrupt_copy").unwrap();
    let chunk = series.split("chunk=\"").nth(1).unwrap().split('"').next().unwrap();
    assert!(series.contains("target=\"1\"") && damaged[43].contains(chunk), "{series} is not in {}", damaged[43]);
    // Others put there again what rotted: all chunks, and the manifests of the object and of its bucket.
    wait_until("its copies", || value(&data, 1, "chunks") == 50.0);
    assert!(cluster.run(&["get", "f", "-o", "-"]) == bytes);
    // With what it has now the segment is full, and can be emptied.
    wait_until("compaction", || value(&data, 1, "compacted_bytes_total") > 44e6);
    assert!(!segment.exists());
    assert!(value(&data, 1, "dead_bytes") < 1e5);
    assert!(cluster.run(&["get", "f", "-o", "-"]) == bytes);
    assert!(cluster.stop());
    let cluster = Cluster::start(&data, &[]);
    assert!(cluster.run(&["get", "f", "-o", "-"]) == bytes);
    assert!(cluster.stop());
}

#[test]
fn killed_holders_in_the_middle_of_a_put_lose_nothing_and_it_completes() {
    let place = tempfile::tempdir().unwrap();
    // Slow disks, so that a put takes long enough to be met in the middle.
    let data = made(place.path(), "9", |map| map.replace("\nmetrics = ", "\nwrite_delay_ms = 20\nmetrics = "));
    let cluster = Cluster::start(&data, &["--no-restart"]);
    let targets = cluster.children("target");
    let id_of = |pid: u32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        line.split('\0').skip_while(|word| *word != "--id").nth(1).unwrap().parse::<usize>().unwrap()
    };
    let mut alive: Vec<(u32, usize)> = targets.into_iter().map(|pid| (pid, id_of(pid))).collect();
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..2 {
        let bytes = content(96 << 20, round);
        let (name, source) = (format!("f-{round}"), data.join("source"));
        fs::write(&source, &bytes).unwrap();
        let copies = |id: usize| value(&data, id, "copies_stored_total");
        let before: Vec<f64> = alive.iter().map(|(_, id)| copies(*id)).collect();
        std::thread::scope(|scope| {
            let put = scope.spawn(|| cluster.try_run(&["put", source.to_str().unwrap(), &name], b""));
            // The first that has taken copies of this file, and has more on their way.
            let victim = loop {
                let found = alive.iter().zip(&before).position(|((_, id), n)| copies(*id) > n + 2.0);
                match found {
                    Some(at) => break at,
                    None => assert!(!put.is_finished(), "the put was over before a holder was found"),
                }
            };
            let (pid, _) = alive.remove(victim);
            signal(pid, "-KILL");
            assert!(!put.is_finished(), "the put was over before its holder was killed");
            let output = put.join().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        });
        files.push((name, bytes));
        for (name, bytes) in &files {
            assert!(cluster.run(&["get", name, "-o", "-"]) == *bytes, "{name} came back changed");
        }
    }
}
