//! What objects need of whoever stores chunks.

use protocol::id::{ChunkId, NodeId};
use protocol::initiator::{ChunkPut, Discard, Discarded, Fetched, Found, GetError, Marked, PutError, Stored};
use protocol::map::ClusterMap;
use protocol::redundancy::{Pieces, Redundancy};

/// An answer that is on its way.
pub struct Pending<T>(Box<dyn FnOnce() -> T + Send>);

impl<T> Pending<T> {
    /// An answer that `wait` blocks for.
    pub fn new(wait: impl FnOnce() -> T + Send + 'static) -> Self {
        Self(Box::new(wait))
    }

    /// Blocks until it is there.
    #[must_use]
    pub fn wait(self) -> T {
        (self.0)()
    }
}

/// Why a chunk service did not do it.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The protocol's put failed.
    #[error(transparent)]
    Put(#[from] PutError),
    /// The protocol's get failed.
    #[error(transparent)]
    Get(#[from] GetError),
    /// Too much is waiting.
    #[error("too much is waiting already: try again later")]
    Busy,
    /// The service has ended.
    #[error("{0}")]
    Stopped(String),
}

/// Stores and finds chunks. Calls return at once; the answers are waited for.
pub trait ChunkService: Sync {
    /// Starts to store a chunk.
    fn put(&self, put: ChunkPut) -> Pending<Result<Stored, ServiceError>>;
    /// Starts to fetch a chunk; its bytes are verified against its id.
    fn get(&self, id: ChunkId) -> Pending<Result<Fetched, ServiceError>> {
        self.get_listed(id, vec![])
    }
    /// The same of a chunk that was [listed](Self::list) with these holders. They are asked too: after a change of the map
    /// they need not be where it is looked for.
    fn get_listed(&self, id: ChunkId, holders: Vec<NodeId>) -> Pending<Result<Fetched, ServiceError>> {
        self.get_fragments(id, holders, None)
    }
    /// The same, of a coded chunk only these fragments of data where `fragments` says so.
    fn get_fragments(
        &self,
        id: ChunkId,
        holders: Vec<NodeId>,
        fragments: Option<Pieces>,
    ) -> Pending<Result<Fetched, ServiceError>>;
    /// Starts to list the ids with a prefix that any target holds.
    fn list(&self, prefix: Vec<u8>) -> Pending<Result<Found, ServiceError>>;
    /// Starts to ask whether there is enough of a chunk, which is promised then as by a put.
    fn renew(&self, id: ChunkId, redundancy: Option<Redundancy>) -> Pending<Result<bool, ServiceError>>;
    /// Starts to set a mark on every target.
    fn mark(&self) -> Pending<Result<Marked, ServiceError>>;
    /// Starts to have targets discard chunks that nothing refers to.
    fn discard(&self, discard: Discard) -> Pending<Result<Discarded, ServiceError>>;
    /// The cluster map in use: how many copies there are of each chunk, and what silent targets may hide.
    fn map(&self) -> ClusterMap;
}

impl From<protocol::initiator::Busy> for ServiceError {
    fn from(_: protocol::initiator::Busy) -> Self {
        Self::Busy
    }
}
