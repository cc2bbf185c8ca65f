//! What a cluster keeps can be used by nobody but its owner, whatever the umask, and whoever made it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Cluster, content};
use rustix::fs::Mode;

/// Everything below a directory, and itself.
fn all(place: &Path) -> Vec<PathBuf> {
    let mut found = vec![place.to_owned()];
    if place.is_dir() {
        let mut below: Vec<PathBuf> = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()).collect();
        below.sort();
        found.extend(below.iter().flat_map(|path| all(path)));
    }
    found
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

/// What others could use, by its mode.
fn loose(place: &Path) -> Vec<(PathBuf, u32)> {
    let modes = all(place).into_iter().map(|path| (path.clone(), mode(&path)));
    modes.filter(|(_, mode)| mode & 0o077 != 0).collect()
}

/// As a version left it that did not see to modes.
fn loosen(place: &Path) {
    for path in all(place) {
        fs::set_permissions(&path, Permissions::from_mode(if path.is_dir() { 0o755 } else { 0o644 })).unwrap();
    }
}

const WARNING: &str = "could be used by other users of this machine";

fn used(cluster: &Cluster) {
    assert!(cluster.try_run(&["put", "-", "f"], &content(3_000_000, 1)).status.success());
    cluster.run(&["user", "add", "ann"]);
    cluster.run(&["catalog", "check"]);
    let names = ["catalog.sqlite", "catalog.lock", "users.toml", "keys.toml", "logs/gateway.log", "targets/1/identity"];
    assert!(names.iter().all(|name| cluster.directory.join(name).exists()));
    assert_eq!(loose(&cluster.directory), []);
}

/// One test, because the umask is the whole process's.
#[test]
fn a_cluster_is_its_owners_alone() {
    for umask in [Mode::WGRP | Mode::WOTH, Mode::empty()] {
        rustix::process::umask(umask);
        let place = tempfile::tempdir().unwrap();
        let parent = place.path().join("parent");
        fs::create_dir(&parent).unwrap();
        let before = mode(&parent);
        let data = parent.join("data");
        let cluster = Cluster::start(&data, &["--targets", "3"]);
        used(&cluster);
        assert_eq!(cluster.output().matches(WARNING).count(), 0, "{}", cluster.output());
        assert!(cluster.stop());

        // As a plan leaves it.
        fs::copy(data.join("cluster.toml"), data.join("cluster.toml.1")).unwrap();
        loosen(&data);
        let cluster = Cluster::start(&data, &[]);
        assert_eq!(cluster.output().matches(WARNING).count(), 1, "{}", cluster.output());
        let log = fs::read_to_string(data.join("logs/target-2.log")).unwrap();
        assert_eq!(log.matches(WARNING).count(), 1, "{log}");
        used_again(&cluster);
        assert!(cluster.stop());
        assert_eq!(mode(&parent), before, "the directory above is not the cluster's");

        // With something else in it, the directory itself is not only the cluster's.
        fs::write(data.join("notes"), "").unwrap();
        loosen(&data);
        let cluster = Cluster::start(&data, &[]);
        let names: Vec<PathBuf> = loose(&data).into_iter().map(|(path, _)| path).collect();
        assert_eq!(names, [data.clone(), data.join("notes")]);
        assert!(cluster.stop());
    }
}

fn used_again(cluster: &Cluster) {
    assert!(cluster.run(&["get", "f", "-o", "-"]) == content(3_000_000, 1));
    assert_eq!(loose(&cluster.directory), []);
}

/// What belongs to somebody else cannot be tightened: that is reported, and all goes on.
#[test]
fn a_file_of_somebody_else_is_warned_of() {
    const NOBODY: u32 = 65_534;
    let place = tempfile::tempdir().unwrap();
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can act for two users");
    }
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let binary = place.path().join("reservoir");
    fs::copy(env!("CARGO_BIN_EXE_reservoir"), &binary).unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    std::os::unix::fs::chown(&data, Some(NOBODY), Some(NOBODY)).unwrap();
    let up = || {
        let mut command = Command::new(&binary);
        command.args(["up", "--once", "--targets", "3", "--data", data.to_str().unwrap()]).uid(NOBODY).gid(NOBODY);
        let output = command.current_dir("/").output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{printed}");
        printed
    };
    assert!(!up().contains("cannot be changed"));
    let users = data.join("users.toml");
    std::os::unix::fs::chown(&users, Some(0), Some(0)).unwrap();
    fs::set_permissions(&users, Permissions::from_mode(0o644)).unwrap();
    let printed = up();
    let lines: Vec<&str> = printed.lines().filter(|line| line.contains("cannot be changed")).collect();
    assert!(lines.len() == 1 && lines[0].contains("users.toml") && lines[0].contains("chmod"), "{printed}");
    assert_eq!(mode(&users), 0o644);
}
