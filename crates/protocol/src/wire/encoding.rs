//! The control messages as bytes.

use bytes::{BufMut, Bytes};

use super::aggregating::Aggregating;
use super::codec::{Reader, put_after, put_windows, take_after, take_windows, wire_rate, wire_span};
use super::healing;
use super::lead::Leading;
use super::message::{
    Ack, Answer, Bid, ByteRange, Discard, Granted, MapPart, MapRequest, Message, OfferedWindow, Purpose, PutRequest,
    Repair, Usage,
};
use super::{CONTROL_HEADER, Head, MAGIC, MAX_CONTROL, VERSION};
use crate::id::{ChunkId, ClusterId, Epoch, GroupId, NodeId, TxnId};
use crate::limits;
use crate::map::MapDocument;
use crate::redundancy::{Piece, Wanted};

/// Encodes a message behind its header, for a [`Session`](super::Session) to finish.
#[must_use]
pub fn encode_message(head: Head, message: &Message) -> Bytes {
    let mut room = [0; MAX_CONTROL];
    let mut out = &mut room[..];
    out.put_u8(MAGIC);
    out.put_u8(VERSION);
    out.put_u8(message.code());
    out.put_u8(0);
    out.put_u32_le(head.cluster.0);
    out.put_u32_le(head.epoch.0);
    out.put_u32_le(head.from.0);
    // Of its session.
    out.put_bytes(0, 16);
    debug_assert_eq!(MAX_CONTROL - out.len(), CONTROL_HEADER);
    message.put(&mut out);
    let free = out.len();
    Bytes::copy_from_slice(&room[..MAX_CONTROL - free])
}

/// Decodes an opened control datagram (header and message, no tag). `None` for anything malformed, trailing bytes
/// included.
#[must_use]
pub fn decode_message(datagram: &[u8]) -> Option<(Head, Message)> {
    let mut r = Reader::new(datagram);
    if r.u8()? != MAGIC || r.u8()? != VERSION {
        return None;
    }
    let code = r.u8()?;
    let _flags = r.u8()?;
    let head = Head { cluster: ClusterId(r.u32()?), epoch: Epoch(r.u32()?), from: NodeId(r.u32()?) };
    let (_session, _sequence) = (r.u64()?, r.u64()?);
    let message = Message::take(code, &mut r)?;
    r.at_end().then_some((head, message))
}

impl Message {
    const fn code(&self) -> u8 {
        match self {
            Self::PutRequest(_) => 1,
            Self::Bid(_) => 2,
            Self::Accept { .. } => 3,
            Self::GetRequest { .. } => 4,
            Self::Ack { .. } => 5,
            Self::Repair(_) => 6,
            Self::Probe { wanted: Wanted::BY_MAP, .. } => 7,
            Self::Probe { .. } => 27,
            Self::Suspect { .. } => 8,
            Self::List { .. } => 9,
            Self::Listed { .. } => 10,
            Self::Ping { .. } => 11,
            Self::Pong { .. } => 12,
            Self::Mark { .. } => 13,
            Self::Marked { .. } => 14,
            Self::Discard(_) => 15,
            Self::Discarded { .. } => 16,
            Self::Usage { .. } => 17,
            Self::Used { .. } => 18,
            Self::Leading(leading) => leading.code(),
            Self::MapRequest(_) => 25,
            Self::MapPart(_) => 26,
            Self::Census(_) => 28,
            Self::Counted { .. } => 29,
            Self::Restore { .. } => 30,
            Self::Health { .. } => 31,
            Self::HealthReport { .. } => 32,
            Self::Surplus { .. } => 33,
            Self::Noted { .. } => 34,
            Self::Presence { .. } => 35,
            Self::Fill { .. } => 36,
            Self::Filled { .. } => 37,
            Self::Move { .. } => 38,
            Self::Gone { .. } => 39,
            Self::Aggregating(aggregating) => aggregating.code(),
        }
    }

    fn put(&self, out: &mut impl BufMut) {
        match self {
            Self::PutRequest(request) => put_request(request, out),
            Self::Bid(bid) => put_bid(bid, out),
            Self::Accept { txn, round, granted } => {
                out.put_u64_le(txn.0);
                out.put_u8(*round);
                put_granted(granted, out);
            }
            Self::GetRequest { txn, round, id, unreserved, earliest } => {
                out.put_u64_le(txn.0);
                out.put_u8(*round);
                out.put_u8(u8::from(*unreserved));
                out.put_slice(&id.encode());
                out.put_u32_le(wire_span(*earliest));
            }
            Self::Ack { txn, ack } => {
                out.put_u64_le(txn.0);
                ack.put(out);
            }
            Self::Repair(repair) => put_repair(repair, out),
            Self::Probe { txn, id, wanted } => {
                out.put_u64_le(txn.0);
                out.put_slice(&id.encode());
                if *wanted != Wanted::BY_MAP {
                    out.put_u8(wanted.code());
                }
            }
            Self::Suspect { id } => out.put_slice(&id.encode()),
            Self::List { txn, prefix, after } => {
                out.put_u64_le(txn.0);
                out.put_u8(prefix.len() as u8);
                out.put_slice(prefix);
                put_after(after.as_ref(), out);
            }
            Self::Listed { txn, ids, more } => put_listed(*txn, ids, *more, out),
            Self::Ping { txn } | Self::Mark { txn } | Self::Marked { txn } | Self::Usage { txn } => {
                out.put_u64_le(txn.0)
            }
            Self::Discard(discard) => put_discard(discard, out),
            Self::Discarded { txn, page, dropped, bytes } => {
                out.put_u64_le(txn.0);
                out.put_u16_le(*page);
                out.put_u8(u8::from(dropped.is_some()));
                out.put_u32_le(dropped.unwrap_or(0));
                out.put_u64_le(*bytes);
            }
            Self::Used { txn, usage } => put_used(*txn, usage, out),
            Self::Pong { txn, free, chunks } => [txn.0, *free, *chunks].into_iter().for_each(|n| out.put_u64_le(n)),
            Self::Leading(leading) => leading.put(out),
            Self::Aggregating(aggregating) => aggregating.put(out),
            Self::MapRequest(MapRequest { offset, parts }) => {
                out.put_u32_le(*offset);
                out.put_u8(*parts);
            }
            Self::MapPart(part) => put_part(part, out),
            Self::Census(_)
            | Self::Counted { .. }
            | Self::Restore { .. }
            | Self::Surplus { .. }
            | Self::Noted { .. }
            | Self::Health { .. }
            | Self::HealthReport { .. }
            | Self::Fill { .. }
            | Self::Filled { .. }
            | Self::Move { .. }
            | Self::Presence { .. }
            | Self::Gone { .. } => healing::put(self, out),
        }
    }

    #[inline]
    fn take(code: u8, r: &mut Reader<'_>) -> Option<Self> {
        Some(match code {
            1 => Self::PutRequest(take_request(r)?),
            2 => Self::Bid(take_bid(r)?),
            3 => {
                let (txn, round, count) = (TxnId(r.u64()?), r.u8()?, r.count(limits::PIECES)?);
                let granted = (0..count)
                    .map(|_| Some(Granted { target: NodeId(r.u32()?), offset: r.span()? }))
                    .collect::<Option<_>>()?;
                Self::Accept { txn, round, granted }
            }
            4 => Self::GetRequest {
                txn: TxnId(r.u64()?),
                round: r.u8()?,
                unreserved: r.flag()?,
                id: r.chunk()?,
                earliest: r.span()?,
            },
            5 => Self::Ack { txn: TxnId(r.u64()?), ack: Ack::take(r)? },
            6 => {
                let (txn, rate, count) = (TxnId(r.u64()?), r.rate()?, r.count(limits::RANGES)?);
                let ranges =
                    (0..count).map(|_| Some(ByteRange { offset: r.u32()?, len: r.u32()? })).collect::<Option<_>>()?;
                Self::Repair(Repair { txn, rate, ranges })
            }
            7 => Self::Probe { txn: TxnId(r.u64()?), id: r.chunk()?, wanted: Wanted::BY_MAP },
            27 => Self::Probe { txn: TxnId(r.u64()?), id: r.chunk()?, wanted: Wanted::from_code(r.u8()?)? },
            8 => Self::Suspect { id: r.chunk()? },
            9 => {
                let (txn, len) = (TxnId(r.u64()?), r.count(ChunkId::LEN)?);
                let prefix = r.slice(len)?.to_vec();
                let after = take_after(r)?;
                Self::List { txn, prefix, after }
            }
            10 => {
                let (txn, more, count) = (TxnId(r.u64()?), r.flag()?, r.count(limits::LISTED)?);
                let ids = (0..count).map(|_| r.chunk()).collect::<Option<_>>()?;
                Self::Listed { txn, ids, more }
            }
            11 => Self::Ping { txn: TxnId(r.u64()?) },
            12 => Self::Pong { txn: TxnId(r.u64()?), free: r.u64()?, chunks: r.u64()? },
            13 => Self::Mark { txn: TxnId(r.u64()?) },
            14 => Self::Marked { txn: TxnId(r.u64()?) },
            15 => Self::Discard(take_discard(r)?),
            16 => {
                let (txn, page, known) = (TxnId(r.u64()?), r.u16()?, r.flag()?);
                let (dropped, bytes) = (r.u32()?, r.u64()?);
                // Without the mark nothing was dropped.
                if !known && dropped != 0 {
                    return None;
                }
                Self::Discarded { txn, page, dropped: known.then_some(dropped), bytes }
            }
            17 => Self::Usage { txn: TxnId(r.u64()?) },
            18 => {
                let txn = TxnId(r.u64()?);
                let [live, dead, reclaimed, damaged] = [r.u64()?, r.u64()?, r.u64()?, r.u64()?];
                Self::Used { txn, usage: Usage { live, dead, reclaimed, damaged, damaged_more: r.flag()? } }
            }
            25 => Self::MapRequest(MapRequest { offset: r.u32()?, parts: r.u8()? }),
            26 => {
                let (digest, size, offset) = (r.array()?, r.u32()?, r.u32()?);
                let len = usize::from(r.u16()?);
                let bytes = r.slice(len).filter(|_| (1..=MapDocument::PART).contains(&len))?;
                Self::MapPart(MapPart { digest, size, offset, bytes: Bytes::copy_from_slice(bytes) })
            }
            28..=39 => healing::take(code, r)?,
            40..=41 => Self::Aggregating(Aggregating::take(code, r)?),
            code => Self::Leading(Leading::take(code, r)?),
        })
    }
}

fn put_listed(txn: TxnId, ids: &[ChunkId], more: bool, out: &mut impl BufMut) {
    out.put_u64_le(txn.0);
    out.put_u8(u8::from(more));
    out.put_u8(ids.len() as u8);
    for id in ids {
        out.put_slice(&id.encode());
    }
}

fn put_discard(discard: &Discard, out: &mut impl BufMut) {
    out.put_u64_le(discard.txn.0);
    out.put_u16_le(discard.page);
    out.put_u64_le(discard.mark.0);
    out.put_u64_le(discard.since.0);
    out.put_u8(discard.ids.len() as u8);
    for id in &discard.ids {
        out.put_slice(&id.encode());
    }
}

fn take_discard(r: &mut Reader<'_>) -> Option<Discard> {
    let (txn, page, mark, since) = (TxnId(r.u64()?), r.u16()?, TxnId(r.u64()?), TxnId(r.u64()?));
    let count = r.count(limits::LISTED)?;
    let ids = (0..count).map(|_| r.chunk()).collect::<Option<_>>()?;
    Some(Discard { txn, page, mark, since, ids })
}

fn put_granted(granted: &[Granted], out: &mut impl BufMut) {
    out.put_u8(granted.len() as u8);
    for granted in granted {
        out.put_u32_le(granted.target.0);
        out.put_u32_le(wire_span(granted.offset));
    }
}

fn put_repair(repair: &Repair, out: &mut impl BufMut) {
    out.put_u64_le(repair.txn.0);
    out.put_u32_le(wire_rate(repair.rate));
    out.put_u8(repair.ranges.len() as u8);
    for range in &repair.ranges {
        out.put_u32_le(range.offset);
        out.put_u32_le(range.len);
    }
}

fn put_used(txn: TxnId, usage: &Usage, out: &mut impl BufMut) {
    out.put_u64_le(txn.0);
    let numbers = [usage.live, usage.dead, usage.reclaimed, usage.damaged];
    numbers.into_iter().for_each(|number| out.put_u64_le(number));
    out.put_u8(u8::from(usage.damaged_more));
}

fn put_part(part: &MapPart, out: &mut impl BufMut) {
    out.put_slice(&part.digest);
    out.put_u32_le(part.size);
    out.put_u32_le(part.offset);
    out.put_u16_le(part.bytes.len() as u16);
    out.put_slice(&part.bytes);
}

/// In the field of a request that says how long a window should be. A target that does not know of parts offers a long
/// one for all.
const URGENT: u16 = 1 << 15;
const IN_PARTS: u16 = 1 << 14;
/// Of those: some were sent. It is asked only of those that offered a window for a part.
const SENT: u16 = 1 << 13;

fn put_request(request: &PutRequest, out: &mut impl BufMut) {
    out.put_u64_le(request.txn.0);
    out.put_u8(request.round);
    let (removal, urgent) =
        (request.purpose == Purpose::Remove, matches!(request.purpose, Purpose::Restore { urgent: true, .. }));
    let (restores, sent) = (request.purpose.restores(), request.purpose.sent());
    let flags = u8::from(request.unreserved) | u8::from(removal) << 1 | u8::from(restores) << 7;
    out.put_u8(flags | request.wanted.code() << 2);
    let flags = [(urgent, URGENT), (sent.is_some(), IN_PARTS), (sent > Some(0), SENT)];
    let flags = flags.into_iter().filter(|(is_set, _)| *is_set).fold(0, |flags, (_, flag)| flags | flag);
    out.put_u16_le(request.stretch.min(SENT - 1) | flags);
    out.put_slice(&request.id.encode());
    out.put_u32_le(request.size);
    out.put_u32_le(request.group.0);
    out.put_u32_le(wire_span(request.earliest));
    put_windows(&request.busy, out);
    sent.filter(|sent| *sent > 0).into_iter().for_each(|sent| out.put_u32_le(sent));
}

/// Windows in which a port is taken.
#[inline]
fn take_request(r: &mut Reader<'_>) -> Option<PutRequest> {
    let (txn, round, flags, stretch) = (TxnId(r.u64()?), r.u8()?, r.u8()?, r.u16()?);
    let (unreserved, removal, restores) = (flags & 1 > 0, flags & 2 > 0, flags & 1 << 7 > 0);
    let wanted = Wanted::from_code((flags & !(1 << 7)) >> 2)?;
    let (urgent, in_parts, has_sent) = (stretch & URGENT > 0, stretch & IN_PARTS > 0, stretch & SENT > 0);
    let stretch = stretch & (SENT - 1);
    let (id, size, group, earliest) = (r.chunk()?, r.u32()?, GroupId(r.u32()?), r.span()?);
    let busy = take_windows(r)?;
    let sent = if has_sent { r.u32()? } else { 0 };
    let is_sent_right = sent < size && has_sent == (sent > 0) && (in_parts || !has_sent);
    let purpose = match (removal, restores) {
        (false, true) => Purpose::Restore { urgent, sent: in_parts.then_some(sent) },
        (true, false) if !urgent && !in_parts => Purpose::Remove,
        (false, false) if !urgent && !in_parts => Purpose::Store,
        _ => return None,
    };
    let valid = (1..=limits::CHUNK_BYTES).contains(&size) && is_sent_right;
    valid.then_some(PutRequest { txn, round, id, size, group, earliest, stretch, unreserved, wanted, purpose, busy })
}

fn put_offered(offered: &OfferedWindow, out: &mut impl BufMut) {
    for span in [offered.start, offered.length, offered.transfer, offered.done] {
        out.put_u32_le(wire_span(span));
    }
    out.put_u32_le(wire_rate(offered.rate));
    out.put_u32_le(offered.size);
}

#[inline]
fn take_offered(r: &mut Reader<'_>) -> Option<OfferedWindow> {
    let (start, length, transfer, done) = (r.span()?, r.span()?, r.span()?, r.span()?);
    Some(OfferedWindow { start, length, transfer, done, rate: r.rate()?, size: r.u32()? })
}

fn put_bid(bid: &Bid, out: &mut impl BufMut) {
    out.put_u64_le(bid.txn.0);
    out.put_u8(bid.round);
    match bid.answer {
        Answer::Window(offered) => {
            out.put_u8(0);
            put_offered(&offered, out);
        }
        Answer::HaveIt => out.put_u8(1),
        Answer::HavePiece(piece) => out.put_slice(&[7, piece.0]),
        Answer::NotHere => out.put_u8(2),
        Answer::Busy(wait) => {
            out.put_u8(3);
            out.put_u32_le(wire_span(wait));
        }
        Answer::NoSpace => out.put_u8(4),
        Answer::Stale => out.put_u8(5),
        Answer::Part(offered) => {
            out.put_u8(6);
            put_offered(&offered, out);
        }
    }
}

#[inline]
fn take_bid(r: &mut Reader<'_>) -> Option<Bid> {
    let (txn, round) = (TxnId(r.u64()?), r.u8()?);
    let answer = match r.u8()? {
        0 => Answer::Window(take_offered(r)?),
        1 => Answer::HaveIt,
        2 => Answer::NotHere,
        3 => Answer::Busy(r.span()?),
        4 => Answer::NoSpace,
        5 => Answer::Stale,
        6 => Answer::Part(take_offered(r).filter(|offered| offered.size > 0)?),
        7 => Answer::HavePiece(take_piece(r)?),
        _ => return None,
    };
    Some(Bid { txn, round, answer })
}

#[inline]
fn take_piece(r: &mut Reader<'_>) -> Option<Piece> {
    r.u8().map(Piece).filter(|piece| usize::from(piece.0) < limits::PIECES)
}

impl Ack {
    fn put(self, out: &mut impl BufMut) {
        let code = match self {
            Self::Durable => 0,
            Self::BadHash => 1,
            Self::NoSpace => 2,
            Self::DiskFailed => 3,
            Self::Pending => 4,
            Self::Unknown => 5,
            Self::Piece(piece) => return out.put_slice(&[6, piece.0]),
        };
        out.put_u8(code);
    }

    #[inline]
    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(match r.u8()? {
            0 => Self::Durable,
            1 => Self::BadHash,
            2 => Self::NoSpace,
            3 => Self::DiskFailed,
            4 => Self::Pending,
            5 => Self::Unknown,
            6 => Self::Piece(take_piece(r)?),
            _ => return None,
        })
    }
}
