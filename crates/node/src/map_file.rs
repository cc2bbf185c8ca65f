//! The file of the cluster map, which is looked at now and then: operators change it.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::config::ClusterConfig;

/// What tells one state of the file from another: its inode, length, and when it was changed.
type Stamp = (u64, u64, i64, i64);

/// The file of a cluster map.
#[derive(Debug)]
pub struct MapFile {
    path: PathBuf,
    /// As it was when it was looked at last.
    seen: Option<Stamp>,
    /// As it was when it was read last.
    read: Option<Stamp>,
}

impl MapFile {
    /// The file that a map in use came from.
    #[must_use]
    pub fn of(config: &ClusterConfig) -> Self {
        let mut file = Self { path: config.path.clone(), seen: None, read: None };
        file.read = file.stamp();
        file
    }

    fn stamp(&self) -> Option<Stamp> {
        let file = std::fs::metadata(&self.path).ok()?;
        Some((file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
    }

    /// Whether it was changed, and has a newer map than that of `epoch`, which is in use. It is read when it is the
    /// same as when this was asked last: an editor that changes it in place is done then, and a process that got a map
    /// from another node uses it.
    pub fn is_newer(&mut self, epoch: u32) -> bool {
        let stamp = self.stamp();
        let is_steady = stamp == self.seen;
        self.seen = stamp;
        if stamp.is_none() || !is_steady || stamp == self.read {
            return false;
        }
        self.read = stamp;
        match ClusterConfig::load(&self.path) {
            Ok(config) => config.epoch > epoch,
            Err(error) => {
                tracing::warn!("the cluster map was changed, and is not used: {error}");
                false
            }
        }
    }
}
