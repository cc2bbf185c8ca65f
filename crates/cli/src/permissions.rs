//! Which files and directories of a cluster are its owner's alone. A target sees to its own store (`node::target`).

use std::ffi::OsStr;
use std::path::Path;

use node::permissions::PermissionFixes;
use node::{ClusterConfig, atomic_file};

use crate::gateway_file::{self, S3File};

/// What SQLite keeps beside a catalog, and what locks it.
const CATALOG: [&str; 4] = ["catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm", "catalog.lock"];

/// Tightens the directory of a cluster on one machine, and says so.
pub(crate) fn tighten_cluster(directory: &Path) {
    let mut tightened = PermissionFixes::default();
    tightened.directory(directory, is_of_cluster);
    tightened.directory(&directory.join("targets"), |_| true);
    tightened.directory(&directory.join("logs"), |_| true);
    for text in tightened.done().into_iter().chain(tightened.problem()) {
        crate::output::say!("reservoir: {}: {text}", directory.display());
    }
}

/// Tightens what a gateway reads and writes: the cluster's key, the users, the keys of objects, and the catalog where that is a file.
pub(crate) fn tighten_gateway(config: &ClusterConfig, s3: Option<&S3File>) {
    let mut tightened = PermissionFixes::default();
    tightened.file(&config.base().join(&config.key_file));
    tightened.file(&gateway_file::users_file(&config.path, s3));
    tightened.file(&gateway_file::keys_file(&config.path, s3));
    CATALOG.iter().for_each(|name| tightened.file(&atomic_file::directory(&config.path).join(name)));
    tightened.log();
}

/// Whether `up` makes a file or directory of this name.
fn is_of_cluster(name: &OsStr) -> bool {
    // Earlier versions made a `gateway.token`.
    let known =
        ["cluster.toml", "cluster.key", "users.toml", "keys.toml", "gateway.token", "up.lock", "targets", "logs"];
    let Some(name) = name.to_str() else { return false };
    let is_gateway = name.starts_with("gateway") && name.ends_with(".toml");
    let is_earlier_map = name.strip_prefix("cluster.toml.").is_some_and(|epoch| epoch.parse::<u32>().is_ok());
    known.contains(&name) || CATALOG.contains(&name) || is_gateway || is_earlier_map
}
