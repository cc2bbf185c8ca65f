//! What initiators say to an aggregator (`docs/aggregator.md`). It answers with a [`Bid`](super::Bid).

use bytes::BufMut;
use erasure::Code;

use super::codec::{Reader, chunk_size, wire_rate, wire_span};
use crate::id::{NodeId, TxnId};
use crate::limits;
use crate::redundancy::Piece;
use crate::time::Span;

/// What an initiator says to an aggregator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aggregating {
    /// When could you take this?
    Request(AggregateRequest),
    /// Take it, and pass it on.
    Order(AggregateOrder),
}

/// Initiator to aggregator: when could you take so much?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AggregateRequest {
    /// Which transaction.
    pub txn: TxnId,
    /// Which round of it.
    pub round: u8,
    /// By which code, or `None` for copies.
    pub code: Option<Code>,
    /// Bytes of each piece or copy.
    pub size: u32,
    /// Bytes per second at which they are sent.
    pub rate: u64,
    /// The initiator cannot send before this, from now.
    pub earliest: Span,
}

/// Initiator to aggregator: pass this on. What is sent are the pieces of data, one after the other, as if they were one transfer; or, of
/// copies, the chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AggregateOrder {
    /// Which transaction.
    pub txn: TxnId,
    /// Which round of it.
    pub round: u8,
    /// By which code the others are made; `None`: all get what is sent.
    pub code: Option<Code>,
    /// Bytes of each piece or copy.
    pub size: u32,
    /// Bytes per second that each receiver takes.
    pub rate: u64,
    /// Which target gets which piece, and when its window begins, counted from the moment at which the bid was sent; at
    /// most [`limits::PIECES`]. Of copies the piece is the first for all of them.
    pub receivers: Vec<Receiver>,
}

/// A target that gets a piece from an aggregator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// Which.
    pub piece: Piece,
    /// The target.
    pub target: NodeId,
    /// When its window begins.
    pub start: Span,
}

impl Aggregating {
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Request(_) => "aggregate-request",
            Self::Order(_) => "aggregate-order",
        }
    }

    pub(super) const fn code(&self) -> u8 {
        match self {
            Self::Request(_) => 40,
            Self::Order(_) => 41,
        }
    }

    pub(super) fn put(&self, out: &mut impl BufMut) {
        match self {
            Self::Request(AggregateRequest { txn, round, code, size, rate, earliest }) => {
                out.put_u64_le(txn.0);
                out.put_slice(&[*round, byte(*code)]);
                [*size, wire_rate(*rate), wire_span(*earliest)].into_iter().for_each(|n| out.put_u32_le(n));
            }
            Self::Order(AggregateOrder { txn, round, code, size, rate, receivers }) => {
                out.put_u64_le(txn.0);
                out.put_slice(&[*round, byte(*code)]);
                [*size, wire_rate(*rate)].into_iter().for_each(|n| out.put_u32_le(n));
                out.put_u8(receivers.len() as u8);
                for Receiver { piece, target, start } in receivers {
                    out.put_u8(piece.0);
                    [target.0, wire_span(*start)].into_iter().for_each(|n| out.put_u32_le(n));
                }
            }
        }
    }

    pub(super) fn take(which: u8, r: &mut Reader<'_>) -> Option<Self> {
        let (txn, round, code) = (TxnId(r.u64()?), r.u8()?, take_code(r)?);
        let (size, rate) = (chunk_size(r)?, r.rate()?);
        Some(match which {
            40 => Self::Request(AggregateRequest { txn, round, code, size, rate, earliest: r.span()? }),
            41 => {
                let count = r.count(limits::PIECES)?;
                let receivers: Vec<Receiver> = (0..count).map(|_| take_receiver(r)).collect::<Option<_>>()?;
                let pieces = code.map_or(1, Code::fragments);
                let is_one = |receiver: &Receiver| usize::from(receiver.piece.0) < pieces;
                let order = AggregateOrder { txn, round, code, size, rate, receivers };
                Self::Order(Some(order).filter(|order| order.receivers.iter().all(is_one))?)
            }
            _ => return None,
        })
    }
}

fn byte(code: Option<Code>) -> u8 {
    code.map_or(0, Code::byte)
}

/// No code is 0.
fn take_code(r: &mut Reader<'_>) -> Option<Option<Code>> {
    match r.u8()? {
        0 => Some(None),
        byte => Code::from_byte(byte).map(Some),
    }
}

fn take_receiver(r: &mut Reader<'_>) -> Option<Receiver> {
    Some(Receiver { piece: Piece(r.u8()?), target: NodeId(r.u32()?), start: r.span()? })
}
