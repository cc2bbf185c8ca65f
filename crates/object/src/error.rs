//! Why a file could not be put or got.

use protocol::id::ChunkId;

use crate::service::ServiceError;

/// Why a file could not be put, got or found. Each message says what failed, on what, and what to do; a cause
/// stands in it, and is not the error's `source` as well.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name cannot be used.
    #[error("the name {0:?} cannot be stored: use 1 to {max} bytes without control characters", max = crate::manifest::NAME_BYTES)]
    Name(String),
    /// The chunk size cannot be used.
    #[error("a chunk size of {0} bytes is not possible: choose 1 to {max}", max = protocol::limits::CHUNK_BYTES)]
    ChunkSize(usize),
    /// The name has no version.
    #[error("there is no file named {0:?}")]
    NotFound(String),
    /// Too many targets are silent to know which version is the newest, or whether there is one.
    #[error("{name:?}: the newest version may be on silent targets ({silent}): start them, then try again")]
    Silent {
        /// The name.
        name: String,
        /// Who is silent.
        silent: String,
    },
    /// A version was found, but is not readable by this program or was damaged before it was stored.
    #[error("the manifest {id} cannot be read: {why}")]
    Manifest {
        /// The manifest's chunk.
        id: ChunkId,
        /// What is wrong.
        why: crate::manifest::Malformed,
    },
    /// The chunks are good, but together they are not the file that was put.
    #[error("{name:?}: the bytes read are not the file that was put ({what}): put the file again")]
    Mismatch {
        /// The name.
        name: String,
        /// Length or hash.
        what: &'static str,
    },
    /// The newest version has the last time that there is: none can come after it.
    #[error(
        "{0:?} cannot be put again: its newest version has the last possible time, because a gateway's clock was wrong; \
         use another name"
    )]
    Clock(String),
    /// More chunks than a manifest with an indirect level can name.
    #[error("{0:?} is too large for its chunk size: choose larger chunks")]
    TooLarge(String),
    /// It took so long that chunks it counts on may have been cleaned away.
    #[error("{0:?} took more than {limit} s, which is half the grace time of cleaning: put it again, faster", limit = .1.as_secs())]
    TooSlow(String, std::time::Duration),
    /// A chunk could not be stored.
    #[error("chunk {id} of {name:?} was not stored: {cause}")]
    Put {
        /// The file.
        name: String,
        /// The chunk.
        id: ChunkId,
        /// Why.
        cause: Box<ServiceError>,
    },
    /// A chunk could not be fetched.
    #[error("chunk {id} of {name:?} was not read: {cause}")]
    Get {
        /// The file.
        name: String,
        /// The chunk.
        id: ChunkId,
        /// Why.
        cause: Box<ServiceError>,
    },
    /// The targets could not be asked for versions.
    #[error("the versions of {name:?} could not be listed: {cause}")]
    List {
        /// The file, or what was asked for.
        name: String,
        /// Why.
        cause: Box<ServiceError>,
    },
    /// The source could not be read.
    #[error("the data for {name:?} could not be read: {cause}")]
    Read {
        /// The file.
        name: String,
        /// Why.
        cause: std::io::Error,
    },
    /// The destination could not be written.
    #[error("the data of {name:?} could not be written: {cause}")]
    Write {
        /// The file.
        name: String,
        /// Why.
        cause: std::io::Error,
    },
}
