//! What peers say that know the cluster's key and mean no good.

use arbitrary::Arbitrary;
use erasure::{BLOCK, Code};
use protocol::census::{Counted, Holding, IdRange, PARTS};
use protocol::health::{Health, Lacks};
use protocol::id::coded::Header;
use protocol::id::{ChunkId, Epoch, GroupId, NodeId, TxnId};
use protocol::limits::{PIECES, SOUGHT};
use protocol::map::MapDocument;
use protocol::redundancy::{Piece, Redundancy, Wanted};
use protocol::time::Span;
use protocol::wire::{
    Ack, AggregateOrder, AggregateRequest, Aggregating, Answer, ByteRange, CensusRequest, Direction, Discard, Fill,
    Grant, Granted, GrantedWindow, HealthReport, Holds, LeadRequest, Leading, MapPart, MapRequest, Message, Nowhere,
    OfferedWindow, Purpose, PutRequest, Receiver, Repair, Report, Seek, Usage,
};

use crate::{AnySpan, Rare, chunk, their_txn};

/// A well-formed control message with hostile contents.
#[derive(Arbitrary, Clone, Debug)]
pub enum Say {
    Census {
        group: u8,
        depth: u8,
        bits: u32,
        salt: u64,
        after: Option<u8>,
    },
    Counted {
        sums: bool,
        ids: Vec<u8>,
        more: bool,
    },
    Restore {
        chunk: u8,
        wanted: u8,
        holders: Vec<u8>,
    },
    Move {
        chunk: u8,
        wanted: u8,
        to: u8,
    },
    Surplus {
        chunk: u8,
        wanted: u8,
        note: Option<u64>,
    },
    Noted {
        note: u64,
    },
    Fill,
    Filled {
        live: u64,
        room: u64,
        chunks: u64,
    },
    MapRequest {
        offset: u32,
        parts: u8,
    },
    MapPart {
        digest: u8,
        size: u16,
        part: u8,
        bytes: Vec<u8>,
    },
    Health,
    Presence {
        here: bool,
    },
    HealthReport {
        epoch: u8,
        groups: Vec<(u8, bool)>,
        restored: u64,
        watched: Vec<(u8, Option<AnySpan>)>,
        moved: u64,
        nowhere: Option<(u32, u32, Vec<u8>)>,
    },
    Put {
        round: AnyRound,
        chunk: u8,
        size: Rare<u32>,
        group: u8,
        earliest: AnySpan,
        stretch: u16,
        unreserved: bool,
        wanted: u8,
        purpose: AnyPurpose,
        busy: Vec<AnySpan>,
    },
    Bid {
        round: AnyRound,
        answer: AnyAnswer,
    },
    Accept {
        round: AnyRound,
        granted: Vec<(u8, AnySpan)>,
    },
    Get {
        round: AnyRound,
        chunk: u8,
        unreserved: bool,
        earliest: AnySpan,
    },
    Ack {
        code: u8,
        piece: u8,
    },
    Repair {
        rate: u32,
        ranges: Vec<(u32, u32)>,
    },
    Probe {
        chunk: u8,
        wanted: u8,
    },
    Suspect {
        chunk: u8,
    },
    Gone {
        chunk: u8,
    },
    List {
        prefix: Vec<u8>,
        after: Option<u8>,
    },
    Listed {
        ids: Vec<u8>,
        more: bool,
    },
    Ping,
    Pong {
        free: u64,
        chunks: u64,
    },
    Mark,
    Marked,
    Discard {
        page: u16,
        mark: u8,
        since: u8,
        ids: Vec<u8>,
    },
    Discarded {
        page: u16,
        dropped: Option<u32>,
        bytes: u64,
    },
    Usage,
    Used {
        live: u64,
        dead: u64,
        reclaimed: u64,
        damaged: u64,
        damaged_more: bool,
    },
    LeadRequest {
        round: AnyRound,
        chunk: u8,
        earliest: AnySpan,
        have: Vec<u8>,
        avoid: Vec<u8>,
        busy: Vec<AnySpan>,
    },
    Seek {
        round: AnyRound,
        chunk: u8,
        leader: u8,
        earliest: AnySpan,
    },
    Holds {
        round: AnyRound,
        chunk: u8,
        initiator: u8,
        group: u8,
        port: AnySpan,
        read: AnySpan,
        alone: AnySpan,
        rate: u32,
    },
    Grant {
        round: AnyRound,
        chunk: u8,
        initiator: u8,
        group: u8,
        term: u8,
        read: bool,
        times: AnySpan,
        windows: Vec<(u8, AnySpan)>,
    },
    Claim {
        group: u8,
        term: u8,
    },
    Report {
        group: u8,
        term: u8,
        port: AnySpan,
        disk: AnySpan,
        each: AnySpan,
        rate: u32,
        free: u64,
    },
    AggregateRequest {
        round: AnyRound,
        code: u8,
        size: AnySize,
        rate: u32,
        earliest: AnySpan,
    },
    AggregateOrder {
        round: AnyRound,
        code: u8,
        size: AnySize,
        rate: u32,
        receivers: Vec<(u8, u8, AnySpan)>,
    },
}

/// A round of a transaction, mostly one of the first.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct AnyRound(u8);

impl AnyRound {
    fn get(self) -> u8 {
        if self.0 < 200 { self.0 % 4 } else { self.0 }
    }
}

/// Why a copy is put.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum AnyPurpose {
    Store,
    Remove,
    Restore { urgent: bool, sent: Option<u32> },
}

impl AnyPurpose {
    fn get(self, size: u32) -> Purpose {
        match self {
            Self::Store => Purpose::Store,
            Self::Remove => Purpose::Remove,
            Self::Restore { urgent, sent } => Purpose::Restore { urgent, sent: sent.map(|sent| sent % size.max(1)) },
        }
    }
}

/// The size of what an aggregator passes on: mostly one that a piece may have.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct AnySize {
    blocks: u8,
    more: Rare<u8>,
}

impl AnySize {
    fn get(self, code: Option<Code>) -> u32 {
        let whole = code.map_or(1, Header::len) + BLOCK * usize::from(self.blocks % 16);
        whole as u32 + u32::from(self.more.get().unwrap_or(0))
    }
}

/// The content of a hostile bid.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum AnyAnswer {
    Window { start: AnySpan, length: AnySpan, transfer: AnySpan, done: AnySpan, rate: u32, size: Rare<u32>, part: bool },
    HaveIt,
    HavePiece(u8),
    NotHere,
    Busy(AnySpan),
    NoSpace,
    Stale,
}

impl AnyAnswer {
    fn get(self, about: usize) -> Answer {
        match self {
            Self::Window { start, length, transfer, done, rate, size, part } => {
                let offered = OfferedWindow {
                    start: start.get(),
                    length: length.get(),
                    transfer: transfer.get(),
                    done: done.get(),
                    rate: rate.into(),
                    size: size.get().unwrap_or(about as u32),
                };
                if part { Answer::Part(offered) } else { Answer::Window(offered) }
            }
            Self::HaveIt => Answer::HaveIt,
            Self::HavePiece(n) => Answer::HavePiece(piece(n)),
            Self::NotHere => Answer::NotHere,
            Self::Busy(wait) => Answer::Busy(wait.get()),
            Self::NoSpace => Answer::NoSpace,
            Self::Stale => Answer::Stale,
        }
    }
}

/// One that some chunk may have.
fn piece(n: u8) -> Piece {
    Piece(n % PIECES as u8)
}

/// What a copy is to be kept for.
fn wanted(code: u8) -> Wanted {
    Wanted::from_code(code).unwrap_or(Wanted::BY_MAP)
}

/// Targets of the map and a few that are none; at most so many.
fn nodes(list: Vec<u8>, most: usize) -> Vec<NodeId> {
    list.into_iter().take(most).map(|n| NodeId(u32::from(n % 8))).collect()
}

/// What a port is taken by: in order, as messages have it.
fn windows(ends: Vec<AnySpan>) -> Vec<(Span, Span)> {
    let mut ends: Vec<Span> = ends.into_iter().map(AnySpan::get).collect();
    ends.sort_unstable();
    ends.chunks_exact(2).take(8).map(|pair| (pair[0], pair[1])).collect()
}

impl Say {
    /// The same of the piece that is so many further on, if it is about one.
    #[must_use]
    pub fn further(mut self, by: u8) -> Self {
        match &mut self {
            Self::Bid { answer: AnyAnswer::HavePiece(n), .. } => *n = n.wrapping_add(by),
            Self::Ack { piece, .. } => *piece = piece.wrapping_add(by),
            _ => {}
        }
        self
    }

    /// The message, about transaction `txn`, which is about so many bytes.
    #[must_use]
    pub fn message(self, txn: TxnId, about: usize) -> Message {
        match self {
            Self::Put { round, chunk: n, size, group, earliest, stretch, unreserved, wanted: kept, purpose, busy } => {
                let (id, bytes) = chunk(n);
                let size = size.get().unwrap_or(bytes.len() as u32);
                let (group, earliest) = (GroupId(group.into()), earliest.get());
                let busy = windows(busy);
                let put = PutRequest {
                    txn,
                    round: round.get(),
                    id,
                    size,
                    group,
                    earliest,
                    stretch,
                    unreserved,
                    wanted: wanted(kept),
                    purpose: purpose.get(size),
                    busy: busy.into(),
                };
                Message::PutRequest(put)
            }
            Self::Bid { round, answer } => {
                Message::Bid(protocol::wire::Bid { txn, round: round.get(), answer: answer.get(about) })
            }
            Self::Accept { round, granted } => {
                let granted = granted.into_iter().take(PIECES);
                let granted =
                    granted.map(|(n, at)| Granted { target: NodeId(u32::from(n % 8)), offset: at.get() }).collect();
                Message::Accept { txn, round: round.get(), granted }
            }
            Self::Get { round, chunk: n, unreserved, earliest } => {
                Message::GetRequest { txn, round: round.get(), id: chunk(n).0, unreserved, earliest: earliest.get() }
            }
            Self::Ack { code, piece: n } => {
                let of_piece = Ack::Piece(piece(n));
                let acks =
                    [Ack::Durable, of_piece, Ack::BadHash, Ack::NoSpace, Ack::DiskFailed, Ack::Pending, Ack::Unknown];
                Message::Ack { txn, ack: acks[usize::from(code) % acks.len()] }
            }
            Self::Repair { rate, ranges } => {
                let ranges = ranges.into_iter().take(8).map(|(offset, len)| ByteRange { offset, len }).collect();
                Message::Repair(Repair { txn, rate: rate.into(), ranges })
            }
            Self::Probe { chunk: n, wanted: kept } => Message::Probe { txn, id: chunk(n).0, wanted: wanted(kept) },
            Self::Census { group, depth, bits, salt, after } => Message::Census(CensusRequest {
                txn,
                group: GroupId(group.into()),
                range: IdRange::new(depth, bits).unwrap_or(IdRange::ALL),
                salt,
                after: after.map(|n| chunk(n).0),
            }),
            Self::Counted { sums: true, ids, .. } => {
                let mut sums = Box::new([0; PARTS]);
                ids.iter().zip(sums.iter_mut()).for_each(|(n, sum)| *sum = u64::from(*n));
                Message::Counted { txn, holding: Holding::Sums(sums) }
            }
            Self::Counted { ids, more, .. } => {
                let copies = ids.into_iter().take(28).map(|n| Counted { id: chunk(n).0, wanted: Wanted::BY_MAP });
                Message::Counted { txn, holding: Holding::Copies { copies: copies.collect(), more } }
            }
            Self::Restore { chunk: n, wanted: kept, holders } => {
                Message::Restore { txn, id: chunk(n).0, wanted: wanted(kept), holders: nodes(holders, PIECES) }
            }
            Self::Move { chunk: n, wanted: kept, to } => {
                Message::Move { txn, id: chunk(n).0, wanted: wanted(kept), to: NodeId(u32::from(to % 8)) }
            }
            Self::Surplus { chunk: n, wanted: kept, note } => {
                Message::Surplus { txn, id: chunk(n).0, wanted: wanted(kept), note }
            }
            Self::Noted { note } => Message::Noted { txn, note },
            Self::Fill => Message::Fill { txn },
            Self::Filled { live, room, chunks } => Message::Filled { txn, fill: Fill { live, room, chunks } },
            Self::MapRequest { offset, parts } => Message::MapRequest(MapRequest { offset, parts }),
            Self::MapPart { digest, size, part, bytes } => {
                let (digest, offset) = ([digest; MapDocument::DIGEST], u32::from(part) * MapDocument::PART as u32);
                let bytes = bytes.into_iter().cycle().take(usize::from(size).min(MapDocument::PART)).collect();
                Message::MapPart(MapPart { digest, size: size.into(), offset, bytes })
            }
            Self::Health => Message::Health { txn },
            Self::Presence { here } => Message::Presence { here },
            Self::HealthReport { epoch, groups, restored, watched, moved, nowhere } => {
                let group =
                    |(group, whole): (u8, bool)| (GroupId(group.into()), Health { lacks: Lacks::default(), whole });
                let watch = |(n, silent): (u8, Option<AnySpan>)| (NodeId(n.into()), silent.map(AnySpan::get));
                let nowhere =
                    nowhere.map(|(lost, sought, silent)| Nowhere { lost, sought, silent: nodes(silent, SOUGHT) });
                let report = HealthReport {
                    // No more of either than fit into a datagram with the others.
                    groups: groups.into_iter().take(16).map(group).collect(),
                    watched: watched.into_iter().take(16).map(watch).collect(),
                    restored,
                    restored_bytes: restored,
                    moved,
                    moved_bytes: moved,
                    nowhere,
                    ..HealthReport::of(Epoch(epoch.into()))
                };
                Message::HealthReport { txn, report }
            }
            Self::Suspect { chunk: n } => Message::Suspect { id: chunk(n).0 },
            Self::Gone { chunk: n } => Message::Gone { id: chunk(n).0 },
            Self::List { mut prefix, after } => {
                prefix.truncate(ChunkId::LEN);
                Message::List { txn, prefix, after: after.map(|n| chunk(n).0) }
            }
            Self::Listed { ids, more } => {
                Message::Listed { txn, ids: ids.into_iter().take(30).map(|n| chunk(n).0).collect(), more }
            }
            Self::Ping => Message::Ping { txn },
            Self::Pong { free, chunks } => Message::Pong { txn, free, chunks },
            Self::Mark => Message::Mark { txn },
            Self::Marked => Message::Marked { txn },
            Self::Discard { page, mark, since, ids } => {
                let ids = ids.into_iter().take(30).map(|n| chunk(n).0).collect();
                let [mark, since] = [mark, since].map(their_txn);
                Message::Discard(Discard { txn, page, mark, since, ids })
            }
            Self::Discarded { page, dropped, bytes } => Message::Discarded { txn, page, dropped, bytes },
            Self::Usage => Message::Usage { txn },
            Self::Used { live, dead, reclaimed, damaged, damaged_more } => {
                Message::Used { txn, usage: Usage { live, dead, reclaimed, damaged, damaged_more } }
            }
            Self::AggregateRequest { round, code, size, rate, earliest } => {
                let (code, earliest) = (Code::from_byte(code), earliest.get());
                let size = size.get(code);
                let request = AggregateRequest { txn, round: round.get(), code, size, rate: rate.into(), earliest };
                Message::Aggregating(Aggregating::Request(request))
            }
            Self::AggregateOrder { round, code, size, rate, receivers } => {
                let code = Code::from_byte(code);
                let (size, pieces) = (size.get(code), code.map_or(1, Code::fragments) as u8);
                let receiver = |(n, to, start): (u8, u8, AnySpan)| Receiver {
                    piece: Piece(n % pieces),
                    target: NodeId(u32::from(to % 8)),
                    start: start.get(),
                };
                let receivers = receivers.into_iter().take(PIECES).map(receiver).collect();
                let order = AggregateOrder { txn, round: round.get(), code, size, rate: rate.into(), receivers };
                Message::Aggregating(Aggregating::Order(order))
            }
            say => Message::Leading(say.leading(txn)),
        }
    }

    fn leading(self, txn: TxnId) -> Leading {
        let asking = |n: u8| NodeId(NodeId::FIRST_INITIATOR + u32::from(n % 3));
        match self {
            Self::LeadRequest { round, chunk: n, earliest, have, avoid, busy } => {
                let (id, bytes) = chunk(n);
                let (size, group, earliest) = (bytes.len() as u32, GroupId(0), earliest.get());
                let (wanted, busy) = (Wanted::of(Some(Redundancy::Copies(3))), windows(busy));
                let (have, avoid) = (nodes(have, 8), nodes(avoid, 32));
                Leading::Request(LeadRequest {
                    txn,
                    round: round.get(),
                    wanted,
                    id,
                    size,
                    group,
                    earliest,
                    busy: busy.into(),
                    have,
                    avoid,
                })
            }
            Self::Seek { round, chunk: n, leader, earliest } => {
                let (id, leader, earliest) = (chunk(n).0, NodeId(u32::from(leader % 8)), earliest.get());
                Leading::Seek(Seek { txn, round: round.get(), id, group: GroupId(0), leader, earliest })
            }
            Self::Holds { round, chunk: n, initiator, group, port, read, alone, rate } => {
                let (id, bytes) = chunk(n);
                let (initiator, group, size) = (asking(initiator), GroupId(group.into()), bytes.len() as u32);
                let (port, read, alone) = (port.get(), read.get(), alone.get());
                Leading::Holds(Holds {
                    initiator,
                    txn,
                    round: round.get(),
                    id,
                    group,
                    size,
                    port,
                    read,
                    alone,
                    rate: rate.into(),
                    wanted: Wanted::BY_MAP,
                })
            }
            Self::Grant { round, chunk: n, initiator, group, term, read, times, windows } => {
                let (id, bytes) = chunk(n);
                let turn = |(n, at): (u8, AnySpan)| GrantedWindow {
                    target: NodeId(u32::from(n % 8)),
                    start: at.get(),
                    done: at.get(),
                };
                let (initiator, group, term) = (asking(initiator), GroupId(group.into()), term.into());
                let (size, transfer, rate) = (bytes.len() as u32, times.get(), 1 + u32::from(n) * 1_000_000);
                let windows = windows.into_iter().take(8).map(turn).collect();
                let direction = if read { Direction::Get } else { Direction::Put(Wanted::BY_MAP) };
                Leading::Grant(Grant {
                    initiator,
                    txn,
                    round: round.get(),
                    id,
                    size,
                    group,
                    term,
                    direction,
                    transfer,
                    rate: rate.into(),
                    windows,
                })
            }
            Self::Report { group, term, port, disk, each, rate, free } => Leading::Report(Report {
                group: GroupId(group.into()),
                term: term.into(),
                port: port.get(),
                disk: disk.get(),
                size: 1 + rate % 100_000,
                each: each.get(),
                whole: each.get(),
                rate: rate.into(),
                free,
            }),
            Self::Claim { group, term } => Leading::Claim { group: GroupId(group.into()), term: term.into() },
            _ => Leading::Claim { group: GroupId(0), term: 0 },
        }
    }
}
