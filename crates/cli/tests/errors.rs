//! What goes wrong is reported in one line that helps, and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Cluster, error_of, reservoir};

/// A stopped cluster of three targets.
fn made(place: &Path) -> PathBuf {
    let data = place.join("data");
    let output = reservoir(&["up", "--data", data.to_str().unwrap(), "--targets", "3", "--once"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    data
}

/// Changes the configuration and starts; the error.
fn broken(data: &Path, change: impl Fn(&str) -> String) -> String {
    let path = data.join("cluster.toml");
    let good = fs::read_to_string(&path).unwrap();
    fs::write(&path, change(&good)).unwrap();
    let error = error_of(&["up", "--data", data.to_str().unwrap(), "--targets", "3", "--once"]);
    let role = error_of(&["target", "--config", path.to_str().unwrap(), "--id", "1"]);
    assert!(role.len() > 20);
    fs::write(&path, good).unwrap();
    error
}

#[test]
fn help_explains_every_command() {
    let commands = [
        "up", "target", "switch", "gateway", "put", "get", "stat", "ls", "rm", "mb", "rb", "rewrite", "migrate",
        "status", "user", "key", "catalog", "cluster", "clean", "bench", "sim",
    ];
    let all = String::from_utf8(reservoir(&["--help"]).stdout).unwrap();
    for command in commands {
        assert!(all.contains(command), "{command} is not in the help");
        let output = reservoir(&[command, "--help"]);
        assert!(output.status.success() && output.stdout.len() > 200, "{command}");
    }
    assert_eq!(reservoir(&["nonsense"]).status.code(), Some(2));
}

#[test]
fn a_configuration_that_is_wrong_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let data = made(place.path());
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(data.join("cluster.key")).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "others can read the key");
    let error = broken(&data, |good| format!("{good}\nthis is not TOML"));
    assert!(error.contains("cluster.toml") && error.contains("line"), "{error}");
    let error = broken(&data, |good| good.replace("epoch", "epok"));
    assert!(error.contains("epok"), "{error}");
    let error = broken(&data, |good| good.replace("id = 2", "id = 1"));
    assert!(error.contains("two targets have the id 1"), "{error}");
    let error = broken(&data, |good| good.replace("copies = 3", "copies = 4"));
    assert!(error.contains("4 copies need 4 failure domains"), "{error}");
}

#[test]
fn too_few_targets_make_nothing() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    for targets in ["0", "2"] {
        let error = error_of(&["up", "--data", data.to_str().unwrap(), "--targets", targets, "--once"]);
        assert!(error.contains("--targets"), "{error}");
        assert!(!data.exists(), "something half-written");
    }
    fs::create_dir(&data).unwrap();
    error_of(&["up", "--data", data.to_str().unwrap(), "--targets", "2", "--once"]);
    assert_eq!(fs::read_dir(&data).unwrap().count(), 0, "something half-written");
}

#[test]
fn a_missing_configuration_and_a_silent_gateway_are_reported() {
    let place = tempfile::tempdir().unwrap();
    let nowhere = place.path().join("nowhere/cluster.toml");
    let nowhere = nowhere.to_str().unwrap();
    for args in [&["target", "--id", "1"][..], &["gateway"], &["ls"], &["status"], &["get", "x"], &["stat", "x"]] {
        let error = error_of(&[args, &["--config", nowhere]].concat());
        assert!(error.contains("nowhere") && error.contains("reservoir up"), "{error}");
    }
    assert!(error_of(&["put", ".", "--config", nowhere]).contains(". is a directory"));
    let data = made(place.path());
    let config = data.join("cluster.toml");
    let error = error_of(&["ls", "--config", config.to_str().unwrap()]);
    assert!(error.contains("does not answer") && error.contains("reservoir up"), "{error}");
    assert!(error.contains("starting the gateway again"), "{error}");
    let error = error_of(&["target", "--config", config.to_str().unwrap(), "--id", "77"]);
    assert!(error.contains("77"), "{error}");
}

#[test]
fn a_target_without_its_directory_or_of_another_cluster_does_not_start() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (first, second) = (made(one.path()), made(two.path()));
    fs::remove_dir_all(first.join("targets")).unwrap();
    let error = error_of(&["up", "--data", first.to_str().unwrap(), "--targets", "3", "--once"]);
    assert!(error.contains("targets 1, 2, 3: there is no store"), "{error}");
    // The other cluster's disks in the place of these.
    fs::rename(second.join("targets"), first.join("targets")).unwrap();
    let error = error_of(&["up", "--data", first.to_str().unwrap(), "--targets", "3", "--once"]);
    assert!(error.contains("cluster"), "{error}");
}

#[test]
fn a_disk_that_is_not_mounted_is_not_replaced_by_an_empty_one() {
    let place = tempfile::tempdir().unwrap();
    let data = made(place.path());
    let (config, disk, away) = (data.join("cluster.toml"), data.join("targets/2"), place.path().join("away"));
    let up = ["up", "--data", data.to_str().unwrap(), "--targets", "3", "--once"];
    let target = ["target", "--config", config.to_str().unwrap(), "--id", "2"];
    fs::rename(&disk, &away).unwrap();
    // Its directory is gone, or is what it was mounted on.
    for _ in 0..2 {
        for error in [error_of(&up), error_of(&target)] {
            assert!(error.contains("target 2: there is no store") && error.contains("mount its disk"), "{error}");
            assert!(error.contains("--id 2 --new"), "{error}");
        }
        assert!(!disk.exists() || fs::read_dir(&disk).unwrap().count() == 0, "something was made in its place");
        let _ = fs::create_dir(&disk);
    }
    fs::remove_dir(&disk).unwrap();
    fs::rename(&away, &disk).unwrap();
    assert!(reservoir(&up).status.success());
    let new = [&target[..], &["--new"]].concat();
    assert!(error_of(&new).contains("already"), "a store was made anew over one");
    fs::rename(&disk, &away).unwrap();
    assert!(reservoir(&new).status.success());
    assert!(reservoir(&up).status.success());
}

#[test]
fn a_cluster_whose_making_was_broken_off_is_made_and_one_that_lost_its_map_is_not() {
    let place = tempfile::tempdir().unwrap();
    let data = made(place.path());
    let up = ["up", "--data", data.to_str().unwrap(), "--targets", "3", "--once"];
    fs::remove_file(data.join("cluster.toml")).unwrap();
    let error = error_of(&up);
    assert!(error.contains("cluster.toml is missing: put it back"), "{error}");
    assert!(!data.join("cluster.toml").exists());
    for id in 1..=3 {
        let directory = data.join(format!("targets/{id}"));
        fs::read_dir(&directory).unwrap().flatten().map(|entry| entry.path()).for_each(|path| {
            if path.file_name().unwrap() != "identity" {
                fs::remove_file(path).unwrap();
            }
        });
    }
    fs::remove_dir_all(data.join("targets/3")).unwrap();
    assert!(reservoir(&up).status.success());
}

#[test]
fn a_port_in_use_is_reported() {
    let place = tempfile::tempdir().unwrap();
    let data = made(place.path());
    let args = ["up", "--data", data.to_str().unwrap(), "--targets", "3", "--once"];
    let text = fs::read_to_string(data.join("gateway.toml")).unwrap();
    let address = text.split('"').nth(1).unwrap();
    let taken = std::net::TcpListener::bind(address).unwrap();
    let error = error_of(&args);
    assert!(error.contains(address) && error.contains("in use"), "{error}");
    drop(taken);
    let text = fs::read_to_string(data.join("cluster.toml")).unwrap();
    let address = text.lines().find_map(|line| line.strip_prefix("address = ")).unwrap().trim_matches('"');
    let taken = std::net::UdpSocket::bind(address).unwrap();
    let config = data.join("cluster.toml");
    let target = ["target", "--config", config.to_str().unwrap(), "--id", "1"];
    for error in [error_of(&args), error_of(&target)] {
        assert!(error.contains(address) && error.contains("stop"), "{error}");
    }
    drop(taken);
    let address = text.lines().find_map(|line| line.strip_prefix("metrics = ")).unwrap().trim_matches('"');
    let _taken = std::net::TcpListener::bind(address).unwrap();
    for error in [error_of(&args), error_of(&target)] {
        assert!(error.contains(address) && error.contains("change `metrics`"), "{error}");
    }
}

#[test]
fn what_is_wrong_in_the_gateways_file_is_said_with_its_line() {
    let place = tempfile::tempdir().unwrap();
    let data = made(place.path());
    let config = data.join("cluster.toml");
    let good = fs::read_to_string(data.join("gateway.toml")).unwrap();
    let error = |text: &str| {
        fs::write(data.join("gateway.toml"), text).unwrap();
        error_of(&["gateway", "--config", config.to_str().unwrap()])
    };
    let strange = error(&format!("{good}\n[s3.storage_class]\nSTANDARD = {{ copy = 1 }}\n"));
    let line = format!("line {}: unknown field `copy`", good.lines().count() + 3);
    assert!(strange.contains(&line) && !strange.contains("ADDRESS:PORT"), "{strange}");
    let nowhere = error(&good.replacen("http = \"", "http = \"nowhere:", 1));
    assert!(nowhere.contains("line 1: ") && nowhere.contains("write http = \"ADDRESS:PORT\""), "{nowhere}");
}

#[test]
fn gateways_without_a_catalog_to_share_are_refused_before_anything_is_made() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let error = error_of(&["up", "--data", data.to_str().unwrap(), "--gateways", "2", "--once"]);
    assert!(error.contains("--catalog postgres://"), "{error}");
    assert!(!data.join("cluster.toml").exists() && !data.join("targets").exists());
}

#[test]
fn a_defect_that_the_simulator_finds_ends_with_1_and_the_seed() {
    let output = reservoir(&["sim", "check", "--seeds", "20", "--plant", "ack-before-durable"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    let line = error.lines().find(|line| line.starts_with("reservoir: ")).unwrap();
    let command = line.split('`').nth(1).unwrap();
    let args: Vec<&str> = command.split(' ').skip(1).collect();
    assert_eq!(args[..2], ["sim", "replay"], "{line}");
    let again = reservoir(&args);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8(again.stdout).unwrap().lines().count() > 100, "no steps are shown");
    assert!(reservoir(&["sim", "check", "--seeds", "2"]).status.success());
    assert_eq!(reservoir(&["sim", "check", "--plant", "nonsense"]).status.code(), Some(2));
}

#[test]
fn a_second_up_on_the_same_data_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = Cluster::start(&data, &["--targets", "3"]);
    let error = error_of(&["up", "--data", data.to_str().unwrap(), "--once"]);
    assert!(error.contains("another `reservoir up`"), "{error}");
    assert!(cluster.stop());
    // It keeps its targets, which is worth a note only where others were asked for.
    for (more, noted) in [(&[][..], false), (&["--targets", "4"], true)] {
        let up = reservoir(&[&["up", "--data", data.to_str().unwrap(), "--once"], more].concat());
        let printed = String::from_utf8(up.stderr).unwrap();
        assert!(up.status.success() && printed.contains("(asked for: 4)") == noted, "{printed}");
    }
}

#[test]
fn the_status_warns_of_a_map_that_would_not_start_again() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = Cluster::start(&data, &["--targets", "3"]);
    assert!(cluster.try_run(&["status"], b"").stderr.is_empty());
    fs::write(data.join("cluster.toml"), "this is not TOML").unwrap();
    let status = cluster.try_run(&["status"], b"");
    let printed = String::from_utf8(status.stderr).unwrap();
    assert!(
        status.status.success() && printed.contains("cluster.toml: line 1") && printed.contains("start again"),
        "{printed}"
    );
    assert!(cluster.stop());
}

#[test]
fn sizes_and_seeds_out_of_range_are_refused() {
    assert!(error_of(&["bench", "--sizes", "9MiB"]).contains("--sizes 9 MiB: "));
    assert!(error_of(&["sim", "check", "--seeds", "0"]).contains("--seeds"));
}
