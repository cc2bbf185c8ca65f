//! Data datagrams: a fixed header, then payload.

use bytes::{BufMut, Bytes};

use super::codec::Reader;
use super::{DATA_HEADER, MAGIC, VERSION};
use crate::id::{ClusterId, NodeId, TxnId};
use crate::limits;

/// The type byte of a data datagram.
pub(super) const DATA_TYPE: u8 = 0x80;

/// What stands before the payload. Not authenticated: the transaction's number is secret, and the chunk's hash decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// Which cluster.
    pub cluster: ClusterId,
    /// The sender.
    pub from: NodeId,
    /// Which transaction.
    pub txn: TxnId,
    /// Where in the chunk the payload belongs.
    pub offset: u32,
    /// Size of the whole chunk.
    pub size: u32,
}

impl DataHeader {
    /// The header as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; DATA_HEADER] {
        let mut out = [0; DATA_HEADER];
        let mut w = &mut out[..];
        w.put_u8(MAGIC);
        w.put_u8(VERSION);
        w.put_u8(DATA_TYPE);
        w.put_u8(0);
        w.put_u32_le(self.cluster.0);
        w.put_u32_le(self.from.0);
        w.put_u64_le(self.txn.0);
        w.put_u32_le(self.offset);
        w.put_u32_le(self.size);
        out
    }

    /// Splits a data datagram into header and payload; `None` when it is malformed: wrong version, no payload, or
    /// payload outside the chunk.
    #[must_use]
    pub fn decode(datagram: &Bytes) -> Option<(Self, Bytes)> {
        let mut r = Reader::new(datagram.get(..DATA_HEADER)?);
        if r.u8()? != MAGIC || r.u8()? != VERSION || r.u8()? != DATA_TYPE {
            return None;
        }
        let _flags = r.u8()?;
        let header = Self {
            cluster: ClusterId(r.u32()?),
            from: NodeId(r.u32()?),
            txn: TxnId(r.u64()?),
            offset: r.u32()?,
            size: r.u32()?,
        };
        let payload = datagram.slice(DATA_HEADER..);
        let end = u64::from(header.offset) + payload.len() as u64;
        let fits = header.size <= limits::CHUNK_BYTES && end <= u64::from(header.size) && !payload.is_empty();
        fits.then_some((header, payload))
    }
}

/// Consecutive payload of one transfer: the driver sends it as datagrams of at most `per_datagram` payload bytes, each
/// behind its own header (see [`DataHeader`]).
#[derive(Clone, Debug)]
pub struct DataRun {
    /// The header of the first datagram; the offset of the others follows.
    pub header: DataHeader,
    /// The bytes.
    pub payload: Bytes,
    /// Payload bytes per datagram, at least 1.
    pub per_datagram: usize,
}

/// The datagrams of a run: header and payload of each.
pub fn datagrams(run: &DataRun) -> impl Iterator<Item = ([u8; DATA_HEADER], Bytes)> + '_ {
    let step = run.per_datagram.max(1);
    (0..run.payload.len()).step_by(step).map(move |at| {
        let header = DataHeader { offset: run.header.offset + at as u32, ..run.header };
        (header.encode(), run.payload.slice(at..(at + step).min(run.payload.len())))
    })
}
