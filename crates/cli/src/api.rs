//! What the gateway and the commands say to each other over HTTP.

use std::collections::BTreeMap;

use object::Version;
use serde::{Deserialize, Serialize};

use crate::silence::SilenceInfo;

/// Header of an answer with a file: BLAKE3 of its bytes, in hex.
pub(crate) const HASH_HEADER: &str = "x-reservoir-blake3";
/// Header of an answer with a file: its [`FileInfo`] as JSON.
pub(crate) const INFO_HEADER: &str = "x-reservoir-file";

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileInfo {
    /// Its name.
    pub(crate) name: String,
    /// Bytes.
    pub(crate) size: u64,
    /// When it was put, milliseconds since 1970: its version.
    pub(crate) created_ms: u64,
    /// BLAKE3 of its bytes.
    pub(crate) blake3: String,
    /// Payload chunks.
    pub(crate) chunks: u64,
    /// Bytes of each chunk but the last.
    pub(crate) chunk_size: u32,
    /// The id of its manifest chunk.
    pub(crate) manifest: String,
    /// Targets that hold the manifest.
    pub(crate) holders: Vec<u32>,
}

impl From<&Version> for FileInfo {
    fn from(version: &Version) -> Self {
        let manifest = &version.manifest;
        Self {
            name: manifest.name.clone(),
            size: manifest.size,
            created_ms: manifest.created_ms,
            blake3: hex(&manifest.hash),
            chunks: manifest.chunks(),
            chunk_size: manifest.chunk_size,
            manifest: version.id.to_string(),
            holders: version.holders.iter().map(|n| n.0).collect(),
        }
    }
}

/// Every file of the cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FileList {
    /// The newest version of each name.
    pub(crate) files: Vec<FileInfo>,
    /// Manifests that could not be read, with the reason.
    pub(crate) unreadable: Vec<(String, String)>,
    /// Targets that did not answer.
    pub(crate) silent: Vec<u32>,
    /// Whether so many are silent that something may be missing.
    pub(crate) incomplete: bool,
}

/// A finished put.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PutReport {
    /// What was stored.
    pub(crate) file: FileInfo,
    /// From the first byte to the durable manifest.
    pub(crate) seconds: f64,
    /// Bytes (10^6) per second.
    pub(crate) mb_per_s: f64,
    /// Median time of a chunk, from request to the last needed acknowledgement.
    pub(crate) chunk_p50_ms: f64,
    /// 99th percentile of the same.
    pub(crate) chunk_p99_ms: f64,
    /// Chunks of which every copy was there already.
    pub(crate) chunks_there: u64,
    /// Copies that each target took, the manifest's included.
    pub(crate) copies_by_target: BTreeMap<u32, u64>,
}

/// One target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TargetInfo {
    /// Its id.
    pub(crate) id: u32,
    /// Its failure domain, as the map calls it.
    pub(crate) domain: String,
    /// Whether it answered.
    pub(crate) alive: bool,
    /// Why not, as far as it is known.
    #[serde(default)]
    pub(crate) silence: Option<SilenceInfo>,
    /// Bytes that it has free.
    pub(crate) free: Option<u64>,
    /// Chunks that it holds.
    pub(crate) chunks: Option<u64>,
    /// Bytes of their records.
    pub(crate) live: Option<u64>,
    /// Bytes written that nothing refers to any more.
    pub(crate) dead: Option<u64>,
    /// Bytes won back since it was started.
    pub(crate) reclaimed: Option<u64>,
    /// Chunks whose copy there was damaged and dropped, and is not there again.
    pub(crate) damaged: Option<u64>,
    /// Whether there are more than these.
    pub(crate) damaged_more: Option<bool>,
}

/// Copies that were dropped because they were damaged, and are not back at their targets. So many chunks at most have fewer
/// copies than they should.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DamageInfo {
    /// How many, as far as the targets that answer know.
    pub(crate) copies: u64,
    /// Whether there may be more: a target remembers no more of them, or does not answer.
    pub(crate) at_least: bool,
}

/// What the gateway's cleaning has done since it was started.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CleanInfo {
    /// Looks.
    pub(crate) looks: u64,
    /// Chunks that the last finished look found nothing to refer to.
    pub(crate) unreferenced: u64,
    /// Copies dropped, by all looks.
    pub(crate) copies: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Why the last look was not finished.
    pub(crate) problem: Option<String>,
}

/// The cluster at a glance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Its name.
    pub(crate) cluster: String,
    /// Version of its map.
    pub(crate) epoch: u32,
    /// The epoch of a newer map that others use, and that this gateway's file does not have.
    pub(crate) newer_epoch: Option<u32>,
    /// Copies of each chunk.
    pub(crate) copies: u8,
    /// How copies are placed and carried.
    pub(crate) transport: String,
    /// Whether multicast is used.
    pub(crate) multicast: bool,
    /// Its targets.
    pub(crate) targets: Vec<TargetInfo>,
    /// The targets of each negotiating group.
    pub(crate) groups: Vec<Vec<u32>>,
    /// The groups, from 0 on, whose silent targets may be all that hold something.
    pub(crate) out_of_reach: Vec<u32>,
    /// What is missing because it was damaged.
    pub(crate) damaged: DamageInfo,
    /// What cleaning has done.
    pub(crate) cleaning: CleanInfo,
}

/// Why the gateway did not do it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Refusal {
    /// One line: what failed, on what, and what to do.
    pub(crate) error: String,
}

/// Bytes in hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A name as one segment of a URL path.
pub(crate) fn path_segment(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push('%');
            text.push_str(&hex(&[byte]));
        }
    }
    // A path of dots alone would be normalized away.
    if text.bytes().all(|b| b == b'.') { text.replace('.', "%2e") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_one_segment() {
        assert_eq!(path_segment("a b/ü"), "a%20b%2f%c3%bc");
        assert_eq!(path_segment(".."), "%2e%2e");
        assert_eq!(path_segment("x.y-z_~"), "x.y-z_~");
    }
}
