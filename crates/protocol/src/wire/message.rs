//! The control messages.

use bytes::{BufMut, Bytes, BytesMut};

use super::codec::Reader;
use super::lead::Leading;
use super::{CONTROL_HEADER, Head, MAGIC, VERSION};
use crate::id::{ChunkId, ClusterId, Epoch, GroupId, NodeId, TxnId};
use crate::limits;
use crate::time::Span;

/// Everything that nodes say to each other besides payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Initiator to group: who can take a copy of this chunk, and when?
    PutRequest(PutRequest),
    /// Target to initiator: the answer to a put or get request; to a list (of round 0) only that it is busy.
    Bid(Bid),
    /// Initiator to group: these are chosen; a bidder that is not named is free again.
    Accept {
        /// Which transaction.
        txn: TxnId,
        /// Which round of it the windows belong to.
        round: u8,
        /// The chosen, each with the part of its bid's window that will be used.
        granted: Vec<Granted>,
    },
    /// Initiator to group: who has this chunk, and when could it send it?
    GetRequest {
        /// Which transaction.
        txn: TxnId,
        /// Which round of it.
        round: u8,
        /// The chunk.
        id: ChunkId,
        /// Whether the target may start at once, without a reservation.
        unreserved: bool,
        /// The initiator cannot receive before this, from now.
        earliest: Span,
    },
    /// Target to initiator: the copy is durable here, or why not.
    Ack {
        /// Which transaction.
        txn: TxnId,
        /// What became of it.
        ack: Ack,
    },
    /// Receiver of payload to its sender: these ranges are missing. (A target asks an initiator, or the reverse.)
    Repair(Repair),
    /// Initiator to one target, when an acknowledgement is late: what became of this transaction?
    Probe {
        /// Which transaction.
        txn: TxnId,
        /// Its chunk.
        id: ChunkId,
    },
    /// Initiator to target: this copy failed its hash when it arrived here; look at it.
    Suspect {
        /// The chunk.
        id: ChunkId,
    },
    /// Initiator to target: which chunks do you hold?
    List {
        /// Which transaction.
        txn: TxnId,
        /// First bytes of the encoded ids; at most 33.
        prefix: Vec<u8>,
        /// After this one.
        after: Option<ChunkId>,
    },
    /// Target to initiator: the answer to a list.
    Listed {
        /// Which transaction.
        txn: TxnId,
        /// In ascending order; at most [`limits::LISTED`].
        ids: Vec<ChunkId>,
        /// Whether there are more.
        more: bool,
    },
    /// Initiator to target: remember this moment, and from now on what is promised of which copy (`docs/cleaning.md`).
    Mark {
        /// Which transaction; it names the mark, too.
        txn: TxnId,
    },
    /// Target to initiator: it is remembered.
    Marked {
        /// Which transaction.
        txn: TxnId,
    },
    /// Initiator to target: nothing refers to these chunks. Drop those that may go, condemn the others.
    Discard(Discard),
    /// Target to initiator: what became of them.
    Discarded {
        /// Which transaction.
        txn: TxnId,
        /// Which page of it.
        page: u16,
        /// Which of the page's chunks are dropped, durably, the first being the lowest bit; `None` when the mark is not
        /// known here (any more).
        dropped: Option<u32>,
        /// Bytes of them.
        bytes: u64,
    },
    /// Initiator to target: what do your bytes do?
    Usage {
        /// Which transaction.
        txn: TxnId,
    },
    /// Target to initiator: the answer.
    Used {
        /// Which transaction.
        txn: TxnId,
        /// The bytes.
        usage: Usage,
    },
    /// Initiator to target: are you there? Also asks for fill and load.
    Ping {
        /// Which transaction.
        txn: TxnId,
    },
    /// Target to initiator: yes.
    Pong {
        /// Which transaction.
        txn: TxnId,
        /// Bytes that new chunks may take.
        free: u64,
        /// Chunks held.
        chunks: u64,
    },
    /// Of a group's leader.
    Leading(Leading),
}

/// A page of chunks that nothing refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discard {
    /// Which transaction.
    pub txn: TxnId,
    /// Which page of it.
    pub page: u16,
    /// The mark before which everything that may refer to them was begun; what was promised since must stay.
    pub mark: TxnId,
    /// The mark with which they must have been condemned to go now; 0 when none was set before.
    pub since: TxnId,
    /// The chunks; at most [`limits::LISTED`].
    pub ids: Vec<ChunkId>,
}

/// What the bytes written to a target's disk do, and which went bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of records of chunks that are held.
    pub live: u64,
    /// Bytes that nothing refers to any more, which compaction wins back.
    pub dead: u64,
    /// Bytes that compaction has won back since the target was started.
    pub reclaimed: u64,
    /// Chunks whose copy here was damaged and dropped, and is not here again.
    pub damaged: u64,
    /// Whether there are more of these than the target remembers.
    pub damaged_more: bool,
}

/// A put request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutRequest {
    /// Which transaction.
    pub txn: TxnId,
    /// Which round of it: a bid names it, so that late ones are known.
    pub round: u8,
    /// The chunk.
    pub id: ChunkId,
    /// Its bytes.
    pub size: u32,
    /// Its group.
    pub group: GroupId,
    /// The initiator cannot send before this, from now.
    pub earliest: Span,
    /// How long the window should be, in percent of the transfer, so that windows of several targets can meet.
    pub stretch: u16,
    /// No reservation wanted: answer at once with a share of the link (the conventional store).
    pub unreserved: bool,
    /// A manifest that says that something is removed: it may have of the room that is kept for what wins some. Means nothing
    /// for a payload chunk.
    pub removal: bool,
    /// When the initiator's port is taken, from now: begin and end of each window, in order and without overlaps; at most
    /// [`limits::RANGES`], the first ones.
    pub taken: Vec<(Span, Span)>,
}

/// What a target answers to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bid {
    /// Which transaction.
    pub txn: TxnId,
    /// Which round of it.
    pub round: u8,
    /// The answer.
    pub answer: Answer,
}

/// The content of a bid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A window, tentatively reserved.
    Window(Slot),
    /// The copy is durable here already: it counts.
    HaveIt,
    /// (To a get.) Not here.
    NotHere,
    /// Nothing free soon enough; ask again after this.
    Busy(Span),
    /// No room for it, or on a disk that takes no more because it failed.
    NoSpace,
    /// The request was made with an old cluster map; the head of this message has the epoch of the new one.
    Stale,
}

/// A window of time in which a target's port and disk are free for one transfer. All spans count from the moment at
/// which the bid was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Begin.
    pub start: Span,
    /// Length of the window. It may be shorter than the transfer, which then begins with it and runs on a little.
    pub length: Span,
    /// How much of it the transfer will take.
    pub transfer: Span,
    /// When the copy should be durable (put) or its last byte sent (get), if the transfer starts with the window.
    pub done: Span,
    /// Bytes per second at which to send.
    pub rate: u32,
    /// The chunk's size: for a get, the initiator does not know it.
    pub size: u32,
}

/// One chosen target in an accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Who.
    pub target: NodeId,
    /// How far into its bid's window the transfer begins.
    pub offset: Span,
}

/// The fate of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// Verified and durable.
    Durable,
    /// (To payload.) The bytes did not match the id: send again. (To an accepted get.) The copy here is damaged.
    BadHash,
    /// No room.
    NoSpace,
    /// The copy could not be written (put) or read (get).
    DiskFailed,
    /// (To a probe.) Payload is still missing, which is asked for when it is late; or it is being written; or too busy to look:
    /// ask again. (To a repair.) It is still read, or waits for the port.
    Pending,
    /// (To a probe.) Nothing known, not held: a restart, an expired window.
    Unknown,
}

/// A request for missing ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Which transaction.
    pub txn: TxnId,
    /// Not faster than this, in bytes per second: what came faster was lost.
    pub rate: u32,
    /// Offset and length of each; at most [`limits::RANGES`].
    pub ranges: Vec<Leg>,
}

/// Some bytes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// First byte.
    pub offset: u32,
    /// How many.
    pub len: u32,
}

/// Encodes a message behind its header, for a [`Session`](super::Session) to finish.
#[must_use]
pub fn encode_message(head: Head, message: &Message) -> Bytes {
    let mut out = BytesMut::with_capacity(128);
    out.put_u8(MAGIC);
    out.put_u8(VERSION);
    out.put_u8(message.code());
    out.put_u8(0);
    out.put_u32_le(head.cluster.0);
    out.put_u32_le(head.epoch.0);
    out.put_u32_le(head.from.0);
    out.put_bytes(0, 16);
    debug_assert_eq!(out.len(), CONTROL_HEADER);
    message.put(&mut out);
    out.freeze()
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

pub(super) fn wire_span(span: Span) -> u32 {
    span.to_wire().unwrap_or(u32::MAX)
}

impl Message {
    /// A short name, for counters and traces.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::PutRequest(_) => "put-request",
            Self::Bid(_) => "bid",
            Self::Accept { .. } => "accept",
            Self::GetRequest { .. } => "get-request",
            Self::Ack { .. } => "ack",
            Self::Repair(_) => "repair",
            Self::Probe { .. } => "probe",
            Self::Suspect { .. } => "suspect",
            Self::List { .. } => "list",
            Self::Listed { .. } => "listed",
            Self::Ping { .. } => "ping",
            Self::Pong { .. } => "pong",
            Self::Mark { .. } => "mark",
            Self::Marked { .. } => "marked",
            Self::Discard(_) => "discard",
            Self::Discarded { .. } => "discarded",
            Self::Usage { .. } => "usage",
            Self::Used { .. } => "used",
            Self::Leading(leading) => leading.name(),
        }
    }

    const fn code(&self) -> u8 {
        match self {
            Self::PutRequest(_) => 1,
            Self::Bid(_) => 2,
            Self::Accept { .. } => 3,
            Self::GetRequest { .. } => 4,
            Self::Ack { .. } => 5,
            Self::Repair(_) => 6,
            Self::Probe { .. } => 7,
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
        }
    }

    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::PutRequest(request) => put_request(request, out),
            Self::Bid(bid) => put_bid(bid, out),
            Self::Accept { txn, round, granted } => {
                out.put_u64_le(txn.0);
                out.put_u8(*round);
                out.put_u8(granted.len() as u8);
                for g in granted {
                    out.put_u32_le(g.target.0);
                    out.put_u32_le(wire_span(g.offset));
                }
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
                out.put_u8(*ack as u8);
            }
            Self::Repair(repair) => {
                out.put_u64_le(repair.txn.0);
                out.put_u32_le(repair.rate);
                out.put_u8(repair.ranges.len() as u8);
                for leg in &repair.ranges {
                    out.put_u32_le(leg.offset);
                    out.put_u32_le(leg.len);
                }
            }
            Self::Probe { txn, id } => {
                out.put_u64_le(txn.0);
                out.put_slice(&id.encode());
            }
            Self::Suspect { id } => out.put_slice(&id.encode()),
            Self::List { txn, prefix, after } => {
                out.put_u64_le(txn.0);
                out.put_u8(prefix.len() as u8);
                out.put_slice(prefix);
                out.put_u8(u8::from(after.is_some()));
                if let Some(id) = after {
                    out.put_slice(&id.encode());
                }
            }
            Self::Listed { txn, ids, more } => {
                out.put_u64_le(txn.0);
                out.put_u8(u8::from(*more));
                out.put_u8(ids.len() as u8);
                for id in ids {
                    out.put_slice(&id.encode());
                }
            }
            Self::Ping { txn } | Self::Mark { txn } | Self::Marked { txn } | Self::Usage { txn } => {
                out.put_u64_le(txn.0);
            }
            Self::Discard(discard) => put_discard(discard, out),
            Self::Discarded { txn, page, dropped, bytes } => {
                out.put_u64_le(txn.0);
                out.put_u16_le(*page);
                out.put_u8(u8::from(dropped.is_some()));
                out.put_u32_le(dropped.unwrap_or(0));
                out.put_u64_le(*bytes);
            }
            Self::Used { txn, usage } => {
                out.put_u64_le(txn.0);
                let numbers = [usage.live, usage.dead, usage.reclaimed, usage.damaged];
                numbers.into_iter().for_each(|number| out.put_u64_le(number));
                out.put_u8(u8::from(usage.damaged_more));
            }
            Self::Pong { txn, free, chunks } => {
                out.put_u64_le(txn.0);
                out.put_u64_le(*free);
                out.put_u64_le(*chunks);
            }
            Self::Leading(leading) => leading.put(out),
        }
    }

    fn take(code: u8, r: &mut Reader<'_>) -> Option<Self> {
        Some(match code {
            1 => Self::PutRequest(take_request(r)?),
            2 => Self::Bid(take_bid(r)?),
            3 => {
                let (txn, round, count) = (TxnId(r.u64()?), r.u8()?, r.count(limits::COPIES)?);
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
            5 => Self::Ack { txn: TxnId(r.u64()?), ack: Ack::from_code(r.u8()?)? },
            6 => {
                let (txn, rate, count) = (TxnId(r.u64()?), r.u32()?, r.count(limits::RANGES)?);
                let ranges =
                    (0..count).map(|_| Some(Leg { offset: r.u32()?, len: r.u32()? })).collect::<Option<_>>()?;
                Self::Repair(Repair { txn, rate, ranges })
            }
            7 => Self::Probe { txn: TxnId(r.u64()?), id: r.chunk()? },
            8 => Self::Suspect { id: r.chunk()? },
            9 => {
                let (txn, len) = (TxnId(r.u64()?), r.count(ChunkId::LEN)?);
                let prefix = r.slice(len)?.to_vec();
                let after = if r.flag()? { Some(r.chunk()?) } else { None };
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
            code => Self::Leading(Leading::take(code, r)?),
        })
    }
}

fn put_discard(discard: &Discard, out: &mut BytesMut) {
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

pub(super) fn put_request(request: &PutRequest, out: &mut BytesMut) {
    out.put_u64_le(request.txn.0);
    out.put_u8(request.round);
    out.put_u8(u8::from(request.unreserved) | u8::from(request.removal) << 1);
    out.put_u16_le(request.stretch);
    out.put_slice(&request.id.encode());
    out.put_u32_le(request.size);
    out.put_u32_le(request.group.0);
    out.put_u32_le(wire_span(request.earliest));
    out.put_u8(request.taken.len() as u8);
    for (start, end) in &request.taken {
        out.put_u32_le(wire_span(*start));
        out.put_u32_le(wire_span(*end));
    }
}

pub(super) fn take_request(r: &mut Reader<'_>) -> Option<PutRequest> {
    let (txn, round, flags, stretch) = (TxnId(r.u64()?), r.u8()?, r.u8()?, r.u16()?);
    let (unreserved, removal) = (flags & 1 > 0, flags & 2 > 0);
    let (id, size, group, earliest) = (r.chunk()?, r.u32()?, GroupId(r.u32()?), r.span()?);
    let window = |r: &mut Reader<'_>| Some((r.span()?, r.span()?));
    let taken: Vec<(Span, Span)> = (0..r.count(limits::RANGES)?).map(|_| window(r)).collect::<Option<_>>()?;
    let ends = taken.iter().flat_map(|(start, end)| [*start, *end]);
    let valid = (1..=limits::CHUNK_BYTES).contains(&size) && ends.is_sorted() && flags < 4;
    valid.then_some(PutRequest { txn, round, id, size, group, earliest, stretch, unreserved, removal, taken })
}

fn put_bid(bid: &Bid, out: &mut BytesMut) {
    out.put_u64_le(bid.txn.0);
    out.put_u8(bid.round);
    match bid.answer {
        Answer::Window(slot) => {
            out.put_u8(0);
            for span in [slot.start, slot.length, slot.transfer, slot.done] {
                out.put_u32_le(wire_span(span));
            }
            out.put_u32_le(slot.rate);
            out.put_u32_le(slot.size);
        }
        Answer::HaveIt => out.put_u8(1),
        Answer::NotHere => out.put_u8(2),
        Answer::Busy(wait) => {
            out.put_u8(3);
            out.put_u32_le(wire_span(wait));
        }
        Answer::NoSpace => out.put_u8(4),
        Answer::Stale => out.put_u8(5),
    }
}

fn take_bid(r: &mut Reader<'_>) -> Option<Bid> {
    let (txn, round) = (TxnId(r.u64()?), r.u8()?);
    let answer = match r.u8()? {
        0 => Answer::Window(Slot {
            start: r.span()?,
            length: r.span()?,
            transfer: r.span()?,
            done: r.span()?,
            rate: r.u32()?,
            size: r.u32()?,
        }),
        1 => Answer::HaveIt,
        2 => Answer::NotHere,
        3 => Answer::Busy(r.span()?),
        4 => Answer::NoSpace,
        5 => Answer::Stale,
        _ => return None,
    };
    Some(Bid { txn, round, answer })
}

impl Ack {
    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Durable,
            1 => Self::BadHash,
            2 => Self::NoSpace,
            3 => Self::DiskFailed,
            4 => Self::Pending,
            5 => Self::Unknown,
            _ => return None,
        })
    }
}
