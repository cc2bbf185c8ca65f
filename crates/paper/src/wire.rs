//! The papers' control messages. A message is charged as its configured size; these bytes are what is decoded.
//!
//! Times are nanoseconds from the moment of sending: the receiver knows the delay, which is the same for all.

use bytes::{BufMut, Bytes};
use protocol::id::{NodeId, TxnId};
use protocol::limits;
use protocol::time::{Instant, Span};

/// Longest encoding.
const LONGEST: usize = 16 + limits::COPIES * 20;

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pdu {
    /// Initiator to target or group: who takes a copy?
    Request { txn: TxnId, from: NodeId, round: u8, size: u32, earliest: u64 },
    /// Target to initiator: this window is yours if you accept it; the disk is busy for `backlog`, and then takes
    /// `write` for this chunk.
    Bid { txn: TxnId, from: NodeId, round: u8, start: i64, length: u64, backlog: u64, write: u64 },
    /// Initiator to group: these windows, and no others.
    Accept { txn: TxnId, grants: Grants },
    /// Target to initiator: the window that was offered is another's after all, who was asked first. (Double booking.)
    Reject { txn: TxnId, from: NodeId },
    /// Target to initiator: begin, at this rate in bits per second.
    Begin { txn: TxnId, rate: u64 },
    /// Target to initiator: go on at this rate.
    Rate { txn: TxnId, rate: u64 },
    /// Target to initiator: too much comes at once.
    Ding { txn: TxnId },
    /// Target to initiator: on disk.
    Ack { txn: TxnId },
    /// Initiator to target: how busy are you, for a copy of this size? (The rivals.)
    Probe { txn: TxnId, from: NodeId, size: u32 },
    /// Target to initiator: so busy.
    Busy { txn: TxnId, from: NodeId, load: Load },
    /// Target to initiator: on disk, and this is how busy I am.
    AckBusy { txn: TxnId, load: Load },
}

/// How busy a target says it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Copies that it was asked to take and that are not on disk.
    pub(crate) in_flight: u32,
    /// Nanoseconds: what a copy that comes now should take until it is on disk (of probes), or what the disk took for
    /// this one without waiting (of acknowledgements).
    pub(crate) takes: u64,
}

/// An accepted window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) target: u32,
    pub(crate) start: i64,
    pub(crate) length: u64,
}

/// The accepted windows of one message, at most [`limits::COPIES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grants {
    len: usize,
    list: [Grant; limits::COPIES],
}

impl Grants {
    pub(crate) fn push(&mut self, grant: Grant) {
        self.list[self.len] = grant;
        self.len += 1;
    }

    pub(crate) fn of(&self, target: NodeId) -> Option<Grant> {
        self.list[..self.len].iter().find(|g| g.target == target.0).copied()
    }
}

/// `at` as the wire carries it.
pub(crate) fn relative(at: Instant, now: Instant) -> i64 {
    at.as_nanos() as i64 - now.as_nanos() as i64
}

/// The reverse, at the receiver.
pub(crate) fn absolute(sent: Instant, offset: i64) -> Instant {
    Instant::from_nanos(sent.as_nanos().saturating_add_signed(offset))
}

impl Pdu {
    pub(crate) fn encode(&self) -> Bytes {
        let mut buffer = [0; LONGEST];
        let mut w = &mut buffer[..];
        match self {
            Self::Request { txn, from, round, size, earliest } => {
                w.put_u8(1);
                w.put_u8(*round);
                w.put_u64_le(txn.0);
                w.put_u32_le(from.0);
                w.put_u32_le(*size);
                w.put_u64_le(*earliest);
            }
            Self::Bid { txn, from, round, start, length, backlog, write } => {
                w.put_u8(2);
                w.put_u8(*round);
                w.put_u64_le(txn.0);
                w.put_u32_le(from.0);
                w.put_i64_le(*start);
                w.put_u64_le(*length);
                w.put_u64_le(*backlog);
                w.put_u64_le(*write);
            }
            Self::Accept { txn, grants } => {
                w.put_u8(3);
                w.put_u8(grants.len as u8);
                w.put_u64_le(txn.0);
                for grant in &grants.list[..grants.len] {
                    w.put_u32_le(grant.target);
                    w.put_i64_le(grant.start);
                    w.put_u64_le(grant.length);
                }
            }
            Self::Begin { txn, rate } => short(&mut w, 4, *txn, *rate),
            Self::Rate { txn, rate } => short(&mut w, 5, *txn, *rate),
            Self::Ding { txn } => short(&mut w, 6, *txn, 0),
            Self::Ack { txn } => short(&mut w, 7, *txn, 0),
            Self::Probe { txn, from, size } => {
                short(&mut w, 8, *txn, u64::from(from.0));
                w.put_u32_le(*size);
            }
            Self::Busy { txn, from, load } => {
                short(&mut w, 9, *txn, u64::from(from.0));
                load.encode(&mut w);
            }
            Self::AckBusy { txn, load } => {
                short(&mut w, 10, *txn, 0);
                load.encode(&mut w);
            }
            Self::Reject { txn, from } => short(&mut w, 11, *txn, u64::from(from.0)),
        }
        let used = LONGEST - w.len();
        Bytes::copy_from_slice(&buffer[..used])
    }

    pub(crate) fn decode(datagram: &[u8]) -> Option<Self> {
        let (kind, rest) = datagram.split_first()?;
        let (small, rest) = rest.split_first()?;
        let mut r = Reader(rest);
        let txn = TxnId(r.u64()?);
        Some(match kind {
            1 => {
                let from = NodeId(r.u32()?);
                Self::Request { txn, from, round: *small, size: r.u32()?, earliest: r.u64()? }
            }
            2 => {
                let from = NodeId(r.u32()?);
                let start = r.u64()?.cast_signed();
                let length = r.u64()?;
                Self::Bid { txn, from, round: *small, start, length, backlog: r.u64()?, write: r.u64()? }
            }
            3 => {
                let mut grants = Grants::default();
                for _ in 0..usize::from(*small).min(limits::COPIES) {
                    let target = r.u32()?;
                    grants.push(Grant { target, start: r.u64()?.cast_signed(), length: r.u64()? });
                }
                Self::Accept { txn, grants }
            }
            4 => Self::Begin { txn, rate: r.u64()? },
            5 => Self::Rate { txn, rate: r.u64()? },
            6 => Self::Ding { txn },
            7 => Self::Ack { txn },
            8 => Self::Probe { txn, from: r.node()?, size: r.u32()? },
            9 => Self::Busy { txn, from: r.node()?, load: r.load()? },
            10 => {
                r.u64()?;
                Self::AckBusy { txn, load: r.load()? }
            }
            11 => Self::Reject { txn, from: r.node()? },
            _ => return None,
        })
    }
}

impl Load {
    fn encode(self, w: &mut &mut [u8]) {
        w.put_u32_le(self.in_flight);
        w.put_u64_le(self.takes);
    }
}

fn short(w: &mut &mut [u8], kind: u8, txn: TxnId, rate: u64) {
    w.put_u8(kind);
    w.put_u8(0);
    w.put_u64_le(txn.0);
    w.put_u64_le(rate);
}

/// Time until `at` as an unsigned field.
pub(crate) fn ahead(at: Instant, now: Instant) -> u64 {
    at.since(now).as_nanos()
}

/// A field of nanoseconds.
pub(crate) const fn span(nanos: u64) -> Span {
    Span::from_nanos(nanos)
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(u32::from_le_bytes(*head))
    }

    fn u64(&mut self) -> Option<u64> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(u64::from_le_bytes(*head))
    }

    fn node(&mut self) -> Option<NodeId> {
        u32::try_from(self.u64()?).ok().map(NodeId)
    }

    fn load(&mut self) -> Option<Load> {
        Some(Load { in_flight: self.u32()?, takes: self.u64()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let (txn, from) = (TxnId(7 << 40 | 3), NodeId(11));
        let mut grants = Grants::default();
        for target in 0..limits::COPIES as u32 {
            grants.push(Grant { target, start: -5, length: 9 });
        }
        let all = [
            Pdu::Request { txn, from, round: 2, size: 1 << 20, earliest: 77 },
            Pdu::Bid { txn, from, round: 2, start: -1, length: 5, backlog: 1 << 40, write: 6 },
            Pdu::Accept { txn, grants },
            Pdu::Accept { txn, grants: Grants::default() },
            Pdu::Reject { txn, from },
            Pdu::Begin { txn, rate: 9_900_000_000 },
            Pdu::Rate { txn, rate: 1 },
            Pdu::Ding { txn },
            Pdu::Ack { txn },
            Pdu::Probe { txn, from, size: 5 },
            Pdu::Busy { txn, from, load: Load { in_flight: 3, takes: 1 << 33 } },
            Pdu::AckBusy { txn, load: Load { in_flight: 0, takes: 9 } },
        ];
        for pdu in all {
            let encoded = pdu.encode();
            assert_eq!(Pdu::decode(&encoded), Some(pdu));
            for cut in 0..encoded.len() {
                assert!(Pdu::decode(&encoded[..cut]) != Some(pdu) || cut >= 10, "{pdu:?} cut to {cut}");
            }
        }
        assert_eq!(Pdu::decode(&[9; 30]), None);
    }
}
