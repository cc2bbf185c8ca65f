//! How a store is set up, and what it says of itself and of failures.

use std::io;

use protocol::id::ChunkId;

use crate::{FORMAT, Gap, IDENTITY};

/// How a store is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that the segment files may take of the disk, used or not, the reserve included.
    pub capacity: u64,
    /// Bytes of it that are kept free for what wins room: removals, tombstones and compaction; less than three segments count
    /// as three.
    pub reserve: u64,
    /// Length of a segment file; a larger record is refused.
    pub segment_size: u64,
    /// The cluster, [`ClusterId`](protocol::id::ClusterId).
    pub cluster: u32,
    /// The target, [`NodeId`](protocol::id::NodeId).
    pub target: u32,
    /// A number that nobody can guess. A new store keeps it and puts it into the checksums of its records, so that nothing that
    /// somebody has stored passes for one.
    pub secret: u64,
}

/// Why a store could not be opened. A cause stands in the message, and is not the error's `source` as well.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory belongs to somebody else.
    #[error(
        "the data directory belongs to cluster {found_cluster:08x}, target {found_target}, not to cluster {cluster:08x}, \
         target {target}: correct `data` or `id` in the cluster map, or use an empty directory"
    )]
    Other {
        /// Cluster found on disk.
        found_cluster: u32,
        /// Target found on disk.
        found_target: u32,
        /// Cluster expected.
        cluster: u32,
        /// Target expected.
        target: u32,
    },
    /// Written by another version.
    #[error("the data directory has format {found}, this build reads {FORMAT}: use the build that wrote it")]
    Format {
        /// Format found on disk.
        found: u32,
    },
    /// The file with the identity cannot be read.
    #[error("the file `{IDENTITY}` of the data directory is damaged, but there are segments: restore it from a copy")]
    Identity,
    /// A segment of another store.
    #[error(
        "`{name}` of the data directory belongs to another store than its file `{IDENTITY}`: restore all files from the \
         same copy"
    )]
    Foreign {
        /// The file.
        name: String,
    },
    /// The disk failed.
    #[error("{what}: {cause}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// How it failed.
        cause: io::Error,
    },
}

/// Why a write failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The capacity is used up.
    #[error(
        "its `capacity` is used up: raise it, add a target, or have what was deleted, and what failed puts left, dropped sooner \
         (`reservoir clean --grace S`, with S more than twice what any put takes)"
    )]
    NoSpace,
    /// There is no room in the file system, whatever the capacity.
    #[error("its file system is full: free space on it, or move the target to a larger one")]
    FileSystemFull,
    /// The process may not have what the write takes, whatever the disk: nothing was written.
    #[error("{0}")]
    Exhausted(String),
    /// The disk failed; after a failed sync nothing more is written until the store is opened again.
    #[error("the disk failed: {0}")]
    Io(String),
}

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Not here.
    #[error("the chunk is not on this disk")]
    Missing,
    /// Here, but not what was written.
    #[error("the chunk is damaged on this disk")]
    Corrupt,
    /// The process may not have what the read takes, whatever the disk.
    #[error("{0}")]
    Exhausted(String),
    /// The disk failed.
    #[error("the disk failed: {0}")]
    Io(String),
}

/// What was found when a store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Chunks.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Records at the end that are not whole, and were struck out: a crash cut them off before they were acknowledged.
    /// Damage to the last that were acknowledged looks the same.
    pub torn: Vec<ChunkId>,
    /// Records that are not whole and once were, because they were durable when later ones were written: damaged since,
    /// and struck out.
    pub damaged: Vec<ChunkId>,
    /// Places where records cannot be read that were durable once. They are found again at every start, until compaction
    /// has emptied the segment.
    pub gaps: Vec<Gap>,
    /// The same at the end, where a crash cut records off before they were acknowledged; struck out. Damage to the last that
    /// were acknowledged looks the same.
    pub cut: Vec<Gap>,
    /// Those of the damaged records that no later record makes good or drops.
    pub missed: Vec<ChunkId>,
    /// Why it could not be noted durably that some of these are missed: the next start does not know of them.
    pub forgetful: Option<WriteError>,
}

/// Fill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes that the segment files may take of the disk.
    pub capacity: u64,
    /// Bytes that they take, used or not.
    pub used: u64,
    /// Bytes written to them, dead ones included.
    pub written: u64,
    /// Bytes written that nothing refers to any more.
    pub dead: u64,
    /// Bytes of segments that compaction has removed since the store was opened.
    pub reclaimed: u64,
    /// Bytes that new chunks may take, as far as they fill segments without a rest: of the capacity and of what the file
    /// system still has, each without the reserve, the smaller counts.
    pub free: u64,
}
