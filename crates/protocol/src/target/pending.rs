//! What the effects of a target were started for.

use super::{ChunkId, NodeId, PutRequest, Seek, TxnId};
use crate::id::{Epoch, OpId};
use crate::time::{Instant, Span};

/// What an effect under way was started for.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    Put {
        from: NodeId,
        request: PutRequest,
        arrived: Instant,
    },
    Get {
        from: NodeId,
        txn: TxnId,
        round: u8,
        unreserved: bool,
        earliest: Span,
        /// Whether any piece of a coded chunk is asked for.
        any: bool,
    },
    Granted {
        from: NodeId,
        txn: TxnId,
        round: u8,
    },
    Seek {
        from: NodeId,
        seek: Seek,
    },
    Probe {
        from: NodeId,
        txn: TxnId,
    },
    List {
        from: NodeId,
        txn: TxnId,
    },
    Write {
        txn: TxnId,
        id: ChunkId,
        size: u32,
        begun: Instant,
    },
    Read {
        txn: TxnId,
        begun: Instant,
    },
    Scrub {
        background: bool,
        begun: Instant,
    },
    /// Those that are judged, with their places in the page.
    Discard {
        from: NodeId,
        txn: TxnId,
        page: u16,
        judged: Vec<(u8, ChunkId)>,
    },
    Usage {
        from: NodeId,
        txn: TxnId,
    },
    Fill {
        from: NodeId,
        txn: TxnId,
    },
    Census {
        from: NodeId,
        txn: TxnId,
        epoch: Epoch,
    },
    Restore {
        handle: u64,
    },
    Missing,
    /// Of the initiator that puts chunks again.
    Fetched {
        op: OpId,
    },
    RestoreRead {
        handle: u64,
        begun: Instant,
    },
    Surplus {
        from: NodeId,
        txn: TxnId,
        id: ChunkId,
    },
}
