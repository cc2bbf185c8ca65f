//! `get -o` where something is already.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::{Cluster, content};

/// Where something is already: a file keeps its mode, a link stays one, and a pipe gets the bytes.
#[test]
fn what_is_there_already_is_written_as_any_program_would() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3"]);
    let data = content(3_000_000, 7);
    assert!(cluster.try_run(&["put", "-", "piped"], &data).status.success());
    let [file, link, pipe] = ["file", "link", "pipe"].map(|name| cluster.directory.join(name));
    fs::write(&file, b"before").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    cluster.run(&["get", "piped", "-o", link.to_str().unwrap()]);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && fs::read(&file).unwrap() == data);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reads = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).unwrap()
    });
    cluster.run(&["get", "piped", "-o", pipe.to_str().unwrap()]);
    assert!(reads.join().unwrap() == data && !fs::metadata(&pipe).unwrap().is_file());
    assert!(cluster.stop());
}
