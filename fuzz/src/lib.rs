//! What the machines' fuzz targets share: a small world of chunks and transactions, in which collisions are likely.

use arbitrary::Arbitrary;
use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{ChunkId, ClusterId, Epoch, GroupId, NodeId, TxnId};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::census::{Counted, Holding, IdRange, PARTS};
use protocol::redundancy::{Redundancy, Wanted};
use protocol::health::{Health, Lacks};
use protocol::time::Span;
use protocol::transport::Transport;
use protocol::wire::{
    Ack, Answer, ByteRange, CensusRequest, DataHeader, Direction, Discard, Grant, Granted, GrantedWindow, Head, HealthReport, Holds, LeadRequest,
    Leading, Message, OfferedWindow, PutRequest, Repair, Report, Seek, Usage,
};

/// The one cluster.
pub const CLUSTER: ClusterId = ClusterId(7);

/// Six targets in two cells that make one group, with the map's `epoch`.
#[must_use]
pub fn map(epoch: Epoch) -> ClusterMap {
    let target = |n: u32| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 };
    ClusterMap::new(CLUSTER, epoch, 3, 2, (1..=6).map(target).collect()).expect("a good map")
}

/// Chunk `n`: a few, of sizes from one byte to several datagrams.
#[must_use]
pub fn chunk(n: u8) -> (ChunkId, Bytes) {
    let n = n % 6;
    let size = [1, 300, 4_000, 9_000, 20_000, 40_000][usize::from(n)];
    let bytes = Bytes::from(vec![n + 1; size]);
    (ChunkId::of_payload(&bytes), bytes)
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

/// Settings at which bounds are reached soon.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Knobs {
    transport: u8,
    multicast: bool,
    depth: u8,
    slow_link: bool,
    small_buffer: bool,
    scrub: bool,
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
            ..Config::default()
        }
    }
}

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
    },
    Health,
    Presence {
        here: bool,
    },
    HealthReport {
        epoch: u8,
        groups: Vec<(u8, bool)>,
        restored: u64,
    },
    Put {
        round: u8,
        chunk: u8,
        size: Option<u32>,
        group: u8,
        earliest: AnySpan,
        stretch: u16,
        unreserved: bool,
        removal: bool,
        wanted: u8,
        restores: bool,
        urgent: bool,
        sent: Option<u32>,
        busy: Vec<AnySpan>,
    },
    Bid {
        round: u8,
        answer: AnyAnswer,
    },
    Accept {
        round: u8,
        granted: Vec<(u8, AnySpan)>,
    },
    Get {
        round: u8,
        chunk: u8,
        unreserved: bool,
        earliest: AnySpan,
    },
    Ack {
        code: u8,
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
        round: u8,
        chunk: u8,
        earliest: AnySpan,
        have: Vec<u8>,
        avoid: Vec<u8>,
        busy: Vec<AnySpan>,
    },
    Seek {
        round: u8,
        chunk: u8,
        leader: u8,
        earliest: AnySpan,
    },
    Holds {
        round: u8,
        chunk: u8,
        initiator: u8,
        group: u8,
        port: AnySpan,
        read: AnySpan,
        alone: AnySpan,
        rate: u32,
    },
    Grant {
        round: u8,
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
}

/// The content of a hostile bid.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum AnyAnswer {
    Window {
        start: AnySpan,
        length: AnySpan,
        transfer: AnySpan,
        done: AnySpan,
        rate: u32,
        size: Option<u32>,
        chunk: u8,
        part: bool,
    },
    HaveIt,
    NotHere,
    Busy(AnySpan),
    NoSpace,
    Stale,
}

impl AnyAnswer {
    fn get(self) -> Answer {
        match self {
            Self::Window { start, length, transfer, done, rate, size, chunk: n, part } => {
                let offered = OfferedWindow {
                    start: start.get(),
                    length: length.get(),
                    transfer: transfer.get(),
                    done: done.get(),
                    rate,
                    size: size.unwrap_or(chunk(n).1.len() as u32),
                };
                if part { Answer::Part(offered) } else { Answer::Window(offered) }
            }
            Self::HaveIt => Answer::HaveIt,
            Self::NotHere => Answer::NotHere,
            Self::Busy(wait) => Answer::Busy(wait.get()),
            Self::NoSpace => Answer::NoSpace,
            Self::Stale => Answer::Stale,
        }
    }
}

/// What a port is taken by: in order, as messages have it.
fn windows(ends: Vec<AnySpan>) -> Vec<(Span, Span)> {
    let mut ends: Vec<Span> = ends.into_iter().map(AnySpan::get).collect();
    ends.sort_unstable();
    ends.chunks_exact(2).take(8).map(|pair| (pair[0], pair[1])).collect()
}

impl Say {
    /// The message, about transaction `txn`.
    #[must_use]
    pub fn message(self, txn: TxnId) -> Message {
        match self {
            Self::Put { round, chunk: n, size, group, earliest, stretch, unreserved, removal, wanted, restores, urgent, sent, busy } => {
                let (id, bytes) = chunk(n);
                let size = size.unwrap_or(bytes.len() as u32);
                let (group, earliest) = (GroupId(group.into()), earliest.get());
                let busy = windows(busy);
                let put = PutRequest {
                    txn,
                    round,
                    id,
                    size,
                    group,
                    earliest,
                    stretch,
                    unreserved,
                    removal,
                    wanted: Wanted::from_code(wanted).unwrap_or(Wanted::BY_MAP),
                    restores,
                    urgent,
                    sent: sent.map(|sent| sent % size.max(1)),
                    busy: busy.into(),
                };
                Message::PutRequest(put)
            }
            Self::Bid { round, answer } => Message::Bid(protocol::wire::Bid { txn, round, answer: answer.get() }),
            Self::Accept { round, granted } => {
                let granted = granted.into_iter().take(8);
                let granted = granted.map(|(n, at)| Granted { target: NodeId(n.into()), offset: at.get() }).collect();
                Message::Accept { txn, round, granted }
            }
            Self::Get { round, chunk: n, unreserved, earliest } => {
                Message::GetRequest { txn, round, id: chunk(n).0, unreserved, earliest: earliest.get() }
            }
            Self::Ack { code } => {
                let acks = [Ack::Durable, Ack::BadHash, Ack::NoSpace, Ack::DiskFailed, Ack::Pending, Ack::Unknown];
                Message::Ack { txn, ack: acks[usize::from(code) % acks.len()] }
            }
            Self::Repair { rate, ranges } => {
                let ranges = ranges.into_iter().take(8).map(|(offset, len)| ByteRange { offset, len }).collect();
                Message::Repair(Repair { txn, rate, ranges })
            }
            Self::Probe { chunk: n, wanted } => {
                let wanted = Wanted::from_code(wanted).unwrap_or(Wanted::BY_MAP);
                Message::Probe { txn, id: chunk(n).0, wanted }
            }
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
            Self::Restore { chunk: n, wanted } => {
                let wanted = Wanted::from_code(wanted).unwrap_or(Wanted::BY_MAP);
                Message::Restore { txn, id: chunk(n).0, wanted }
            }
            Self::Health => Message::Health { txn },
            Self::Presence { here } => Message::Presence { here },
            Self::HealthReport { epoch, groups, restored } => {
                let groups = groups.into_iter().take(32);
                let group = |(group, whole): (u8, bool)| (GroupId(group.into()), Health { lacks: Lacks::default(), whole });
                let (groups, epoch) = (groups.map(group).collect(), Epoch(epoch.into()));
                let report = HealthReport { epoch, groups, restoring: 0, restored, restored_bytes: restored };
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
                let [mark, since] = [mark, since].map(|n| TxnId(u64::from(n % 8)));
                Message::Discard(Discard { txn, page, mark, since, ids })
            }
            Self::Discarded { page, dropped, bytes } => Message::Discarded { txn, page, dropped, bytes },
            Self::Usage => Message::Usage { txn },
            Self::Used { live, dead, reclaimed, damaged, damaged_more } => {
                Message::Used { txn, usage: Usage { live, dead, reclaimed, damaged, damaged_more } }
            }
            say => Message::Leading(say.leading(txn)),
        }
    }

    fn leading(self, txn: TxnId) -> Leading {
        let nodes = |list: Vec<u8>, most| list.into_iter().take(most).map(|n| NodeId(u32::from(n % 8))).collect();
        let asking = |n: u8| NodeId(NodeId::FIRST_INITIATOR + u32::from(n % 3));
        match self {
            Self::LeadRequest { round, chunk: n, earliest, have, avoid, busy } => {
                let (id, bytes) = chunk(n);
                let (size, group, earliest) = (bytes.len() as u32, GroupId(0), earliest.get());
                let (wanted, busy) = (Wanted::of(Some(Redundancy::Copies(3))), windows(busy));
                let (have, avoid) = (nodes(have, 8), nodes(avoid, 32));
                Leading::Request(LeadRequest {
                    txn,
                    round,
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
                Leading::Seek(Seek { txn, round, id, group: GroupId(0), leader, earliest })
            }
            Self::Holds { round, chunk: n, initiator, group, port, read, alone, rate } => {
                let (id, bytes) = chunk(n);
                let (initiator, group, size) = (asking(initiator), GroupId(group.into()), bytes.len() as u32);
                let (port, read, alone) = (port.get(), read.get(), alone.get());
                Leading::Holds(Holds { initiator, txn, round, id, group, size, port, read, alone, rate })
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
                let direction = if read { Direction::Get } else { Direction::Put };
                Leading::Grant(Grant {
                    initiator,
                    txn,
                    round,
                    id,
                    size,
                    group,
                    term,
                    direction,
                    wanted: Wanted::BY_MAP,
                    transfer,
                    rate,
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
                rate,
                free,
            }),
            Self::Claim { group, term } => Leading::Claim { group: GroupId(group.into()), term: term.into() },
            _ => Leading::Claim { group: GroupId(0), term: 0 },
        }
    }
}

/// Payload that claims to belong to a transfer.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct AnyData {
    chunk: u8,
    offset: u32,
    len: u16,
    /// The size to claim, if not the chunk's.
    size: Option<u32>,
    /// Whether the bytes are not the chunk's.
    wrong: bool,
}

impl AnyData {
    /// The datagram; from a sender of any name, since nothing authenticates it.
    #[must_use]
    pub fn datagram(self, from: NodeId, txn: TxnId) -> Bytes {
        let (_, bytes) = chunk(self.chunk);
        let at =
            if self.offset as usize > bytes.len() { self.offset as usize % bytes.len() } else { self.offset as usize };
        let end = (at + usize::from(self.len)).min(bytes.len());
        let mut payload = bytes[at..end].to_vec();
        if self.wrong
            && let Some(first) = payload.first_mut()
        {
            *first ^= 1;
        }
        let size = self.size.unwrap_or(bytes.len() as u32);
        let offset = if self.size.is_some() { self.offset } else { at as u32 };
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
