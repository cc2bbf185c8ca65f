//! What the machines' fuzz targets share: a small world of chunks and transactions, in which collisions are likely.

mod begun;
mod chunks;
mod say;

use arbitrary::Arbitrary;
use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{ClusterId, Epoch, NodeId, TxnId};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::time::Span;
use protocol::transport::Transport;
use protocol::wire::{DataHeader, Head};

pub use begun::{AnyBegun, Begun};
pub use chunks::{bytes_of, chunk, coded};
pub use say::{AnyAnswer, AnyPurpose, AnyRound, AnySize, Say};

/// The one cluster.
pub const CLUSTER: ClusterId = ClusterId(7);

/// Six targets in two cells that make one group, with the map's `epoch`.
#[must_use]
pub fn map(epoch: Epoch) -> ClusterMap {
    let target = |n: u32| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 };
    ClusterMap::new(CLUSTER, epoch, 3, 2, (1..=6).map(target).collect()).expect("a good map")
}

/// One of the few transactions of others that a machine hears of, none of which fetches one of any pieces.
#[must_use]
pub fn their_txn(n: u8) -> TxnId {
    TxnId(u64::from(n % 8) << 5)
}

/// A span of up to 4.29 s on the wire, short ones being likelier.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct AnySpan(u16, u8);

impl AnySpan {
    /// The span.
    #[must_use]
    pub fn get(self) -> Span {
        Span::from_nanos((u64::from(self.0) << (self.1 % 17)).min(u64::from(u32::MAX)))
    }
}

/// Something that is seldom there: where it is not, what was meant is said.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Rare<T>(u8, T);

impl<T> Rare<T> {
    /// It, if it is there.
    pub fn get(self) -> Option<T> {
        (self.0 % 8 == 7).then_some(self.1)
    }
}

/// Settings at which bounds are reached soon.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Knobs {
    transport: u8,
    multicast: bool,
    depth: u8,
    slow_link: bool,
    small_buffer: bool,
    scrub: bool,
    stewards: bool,
}

impl Knobs {
    /// The configuration.
    #[must_use]
    pub fn config(self) -> Config {
        Config {
            transport: Transport::NAMED[usize::from(self.transport) % Transport::NAMED.len()].transport,
            multicast: self.multicast,
            depth: usize::from(self.depth % 5),
            link_rate: if self.slow_link { 10_000_000 } else { 1_250_000_000 },
            per_datagram: 8_192,
            quantum: 16 << 10,
            receive_buffer: if self.small_buffer { 50_000 } else { 8 << 20 },
            give_up: Span::from_millis(500),
            late: Span::from_millis(5),
            bid_timeout: Span::from_millis(10),
            scrub_interval: if self.scrub { Span::from_millis(50) } else { Span::ZERO },
            census_interval: if self.stewards { Span::from_millis(100) } else { Span::ZERO },
            watch_interval: if self.stewards { Span::from_millis(100) } else { Span::ZERO },
            ..Config::default()
        }
    }
}

/// Payload that claims to belong to a transfer.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct AnyData {
    /// If not what the transaction is about.
    chunk: Rare<u8>,
    /// If it does not begin with the first byte.
    offset: Rare<u32>,
    /// If it does not go to the end.
    len: Rare<u16>,
    /// The size to claim, if not the chunk's.
    size: Rare<u32>,
    /// If the bytes are not the chunk's.
    wrong: Rare<()>,
}

impl AnyData {
    /// The datagram, of a transaction that is about these bytes; from a sender of any name, since nothing authenticates it.
    #[must_use]
    pub fn datagram(self, from: NodeId, txn: TxnId, about: Bytes) -> Bytes {
        let bytes = self.chunk.get().map_or(about, |n| chunk(n).1);
        let offset = self.offset.get().unwrap_or(0) as usize;
        let at = if offset > bytes.len() { offset % bytes.len() } else { offset };
        let end = (at + self.len.get().map_or(bytes.len(), usize::from)).min(bytes.len());
        let mut payload = bytes[at..end].to_vec();
        if self.wrong.get().is_some()
            && let Some(first) = payload.first_mut()
        {
            *first ^= 1;
        }
        let size = self.size.get().unwrap_or(bytes.len() as u32);
        let offset = if self.size.get().is_some() { offset as u32 } else { at as u32 };
        let header = DataHeader { cluster: CLUSTER, from, txn, offset, size };
        [&header.encode()[..], &payload].concat().into()
    }
}

/// The head of a message from `from`, with an epoch around the machines' own.
#[must_use]
pub fn head(from: NodeId, epoch: u8) -> Head {
    // Mostly the machines' own epoch, 5.
    Head { cluster: CLUSTER, epoch: Epoch(if epoch < 200 { 5 } else { u32::from(epoch - 200) }), from }
}
