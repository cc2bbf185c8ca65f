//! Datagrams, byte by byte (`docs/wire.md`): a sealed control message, or a piece of payload behind a short header.
//!
//! Control: 32 bytes of header, the message, 16 bytes of tag (BLAKE3 keyed with the cluster's key). Data: 32 bytes of
//! header, then payload, which the chunk's hash protects.

mod aggregating;
mod codec;
mod data;
mod drop_reason;
mod encoding;
mod healing;
mod held;
mod lead;
mod message;
mod peers;
mod session;

pub use aggregating::{AggregateOrder, AggregateRequest, Aggregating, Receiver};
pub use codec::BusyWindows;
pub use data::{DataHeader, DataRun, datagrams};
pub use drop_reason::DropReason;
pub use encoding::{decode_message, encode_message};
pub use lead::{Direction, Grant, GrantedWindow, Holds, LeadRequest, Leading, Report, Seek};
pub use message::{
    Ack, Answer, Bid, ByteRange, CensusRequest, Discard, Fill, Granted, Grants, HealthReport, MapPart, MapRequest,
    Message, Nowhere, OfferedWindow, Purpose, PutRequest, Repair, Usage,
};
pub use peers::{ASK_AGAIN, Bug};
pub use session::{KEY_LEN, Opened, Session, is_answerable};

use crate::id::{ClusterId, Epoch, NodeId};

/// Version of the wire format; another one is refused.
pub const VERSION: u8 = 5;
/// First byte of every datagram.
pub const MAGIC: u8 = 0x52;
/// Length of the header of a control datagram.
pub const CONTROL_HEADER: usize = 32;
/// Length of the tag at the end of a control datagram.
pub const TAG: usize = 16;
/// Length of the header of a data datagram.
pub const DATA_HEADER: usize = 32;
/// Longest control datagram: it fits any path that carries IPv6 (1,280 bytes) without fragments.
pub const MAX_CONTROL: usize = 1_200;

/// What stands at the head of every control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Which cluster.
    pub cluster: ClusterId,
    /// The sender's cluster map.
    pub epoch: Epoch,
    /// The sender.
    pub from: NodeId,
}

/// Which of the two kinds a datagram is, without looking further.
#[must_use]
pub fn is_data(datagram: &[u8]) -> bool {
    datagram.get(2) == Some(&data::DATA_TYPE)
}
