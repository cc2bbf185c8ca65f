//! What a group's leader sends and receives (`docs/leader.md`).

use bytes::BufMut;

use super::codec::{BusyWindows, Reader, chunk_size, put_windows, take_windows, wire_rate, wire_span};
use crate::id::{ChunkId, GroupId, NodeId, TxnId};
use crate::limits;
use crate::redundancy::Wanted;
use crate::time::Span;

/// Of a grant's flags: it is of a get, and says nothing else. Those of a put are what it is kept for, doubled.
const GET: u8 = 1;

/// What a leader, its group and its initiators say to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leading {
    /// Initiator to leader.
    Request(LeadRequest),
    /// Initiator to group.
    Seek(Seek),
    /// Member to leader.
    Holds(Holds),
    /// Leader to initiator and members.
    Grant(Grant),
    /// Leader to its group: I lead you; how busy are you?
    Claim {
        /// Which group.
        group: GroupId,
        /// How often it has changed its leader.
        term: u32,
    },
    /// Member to leader: the answer, and again when the leader must be wrong about it.
    Report(Report),
}

impl Leading {
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Request(_) => "lead-request",
            Self::Seek(_) => "seek",
            Self::Holds(_) => "holds",
            Self::Grant(_) => "grant",
            Self::Claim { .. } => "claim",
            Self::Report(_) => "report",
        }
    }

    pub(super) const fn code(&self) -> u8 {
        match self {
            Self::Request(_) => 19,
            Self::Seek(_) => 20,
            Self::Holds(_) => 21,
            Self::Grant(_) => 22,
            Self::Claim { .. } => 23,
            Self::Report(_) => 24,
        }
    }

    pub(super) fn put(&self, out: &mut impl BufMut) {
        match self {
            Self::Request(request) => request.put(out),
            Self::Seek(seek) => seek.put(out),
            Self::Holds(holds) => holds.put(out),
            Self::Grant(grant) => grant.put(out),
            Self::Claim { group, term } => {
                out.put_u32_le(group.0);
                out.put_u32_le(*term);
            }
            Self::Report(report) => report.put(out),
        }
    }

    pub(super) fn take(code: u8, r: &mut Reader<'_>) -> Option<Self> {
        Some(match code {
            19 => Self::Request(LeadRequest::take(r)?),
            20 => Self::Seek(Seek::take(r)?),
            21 => Self::Holds(Holds::take(r)?),
            22 => Self::Grant(Grant::take(r)?),
            23 => Self::Claim { group: GroupId(r.u32()?), term: r.u32()? },
            24 => Self::Report(Report::take(r)?),
            _ => return None,
        })
    }
}

/// Initiator to leader: grant me windows for the pieces of this chunk that are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeadRequest {
    /// Which transaction.
    pub txn: TxnId,
    /// Which round of it.
    pub round: u8,
    /// What the copies are to be kept for.
    pub wanted: Wanted,
    /// The chunk.
    pub id: ChunkId,
    /// Its bytes.
    pub size: u32,
    /// Its group.
    pub group: GroupId,
    /// The initiator cannot send before this, from now.
    pub earliest: Span,
    /// When the initiator's port is taken, as in a put request.
    pub busy: BusyWindows,
    /// The targets that have a copy; at most [`limits::COPIES`].
    pub have: Vec<NodeId>,
    /// The targets that are not to be chosen; at most [`limits::GROUP_MEMBERS`].
    pub avoid: Vec<NodeId>,
}

/// Initiator to a whole group: which of you hold this chunk? Holders answer the leader, which picks one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seek {
    /// Which transaction.
    pub txn: TxnId,
    /// Which round of it.
    pub round: u8,
    /// The chunk.
    pub id: ChunkId,
    /// Its group.
    pub group: GroupId,
    /// The leader that is to pick.
    pub leader: NodeId,
    /// The initiator cannot receive before this, from now.
    pub earliest: Span,
}

/// Member to leader: the chunk that an initiator seeks is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holds {
    /// Whose transaction.
    pub initiator: NodeId,
    /// Which.
    pub txn: TxnId,
    /// Which round of it.
    pub round: u8,
    /// The chunk.
    pub id: ChunkId,
    /// Its group.
    pub group: GroupId,
    /// Its bytes.
    pub size: u32,
    /// When the port is free and the initiator can receive, from now.
    pub port: Span,
    /// When the disk would have read it, behind what it reads already, from now.
    pub read: Span,
    /// What that read takes by itself.
    pub alone: Span,
    /// Bytes per second of the port.
    pub rate: u64,
    /// What the copy is kept for: how many others may answer.
    pub wanted: Wanted,
}

/// Leader to the initiator and the chosen members: these windows are reserved, unless a member says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Whose transaction.
    pub initiator: NodeId,
    /// Which.
    pub txn: TxnId,
    /// Which round of it.
    pub round: u8,
    /// The chunk.
    pub id: ChunkId,
    /// Its bytes.
    pub size: u32,
    /// Its group.
    pub group: GroupId,
    /// How often the group has changed its leader: what an earlier leader grants is refused.
    pub term: u32,
    /// What the chosen are to do.
    pub direction: Direction,
    /// What the transfer takes.
    pub transfer: Span,
    /// Bytes per second at which to send.
    pub rate: u64,
    /// The chosen, at most [`limits::COPIES`].
    pub windows: Vec<GrantedWindow>,
}

/// Which way a granted transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The chosen receive a copy, which is to be kept for this.
    Put(Wanted),
    /// The chosen one sends its copy.
    Get,
}

/// One chosen member in a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedWindow {
    /// The target.
    pub target: NodeId,
    /// When its transfer begins, from the moment at which the grant was sent.
    pub start: Span,
    /// When its copy should be durable (put) or sent (get).
    pub done: Span,
}

/// Member to leader: how busy it is. All spans count from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// For which group.
    pub group: GroupId,
    /// The latest term that the member knows.
    pub term: u32,
    /// When its port is through with what others than this leader reserved.
    pub port: Span,
    /// When its disk is through with all that is on its way to it.
    pub disk: Span,
    /// The size in bytes that the next two speak of.
    pub size: u32,
    /// What a write of it keeps the next one from the disk by.
    pub each: Span,
    /// What such a write takes on an idle disk.
    pub whole: Span,
    /// Bytes per second of the port.
    pub rate: u64,
    /// Bytes that new chunks may take.
    pub free: u64,
}

impl LeadRequest {
    fn put(&self, out: &mut impl BufMut) {
        out.put_u64_le(self.txn.0);
        out.put_u8(self.round);
        out.put_u8(self.wanted.code());
        out.put_slice(&self.id.encode());
        out.put_u32_le(self.size);
        out.put_u32_le(self.group.0);
        out.put_u32_le(wire_span(self.earliest));
        put_windows(&self.busy, out);
        for list in [&self.have, &self.avoid] {
            out.put_u8(list.len() as u8);
            list.iter().for_each(|node| out.put_u32_le(node.0));
        }
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        let (txn, round, wanted) = (TxnId(r.u64()?), r.u8()?, Wanted::from_code(r.u8()?)?);
        let (id, size, group, earliest) = (r.chunk()?, chunk_size(r)?, GroupId(r.u32()?), r.span()?);
        let busy = take_windows(r)?;
        let list = |r: &mut Reader<'_>, most| (0..r.count(most)?).map(|_| r.u32().map(NodeId)).collect::<Option<_>>();
        let (have, avoid) = (list(r, limits::COPIES)?, list(r, limits::GROUP_MEMBERS)?);
        Some(Self { txn, round, wanted, id, size, group, earliest, busy, have, avoid })
    }
}

impl Seek {
    fn put(&self, out: &mut impl BufMut) {
        out.put_u64_le(self.txn.0);
        out.put_u8(self.round);
        out.put_slice(&self.id.encode());
        out.put_u32_le(self.group.0);
        out.put_u32_le(self.leader.0);
        out.put_u32_le(wire_span(self.earliest));
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            txn: TxnId(r.u64()?),
            round: r.u8()?,
            id: r.chunk()?,
            group: GroupId(r.u32()?),
            leader: NodeId(r.u32()?),
            earliest: r.span()?,
        })
    }
}

impl Holds {
    fn put(&self, out: &mut impl BufMut) {
        out.put_u32_le(self.initiator.0);
        out.put_u64_le(self.txn.0);
        out.put_u8(self.round);
        out.put_slice(&self.id.encode());
        out.put_u32_le(self.group.0);
        out.put_u32_le(self.size);
        [self.port, self.read, self.alone].into_iter().for_each(|span| out.put_u32_le(wire_span(span)));
        out.put_u32_le(wire_rate(self.rate));
        if self.wanted != Wanted::BY_MAP {
            out.put_u8(self.wanted.code());
        }
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            initiator: NodeId(r.u32()?),
            txn: TxnId(r.u64()?),
            round: r.u8()?,
            id: r.chunk()?,
            group: GroupId(r.u32()?),
            size: chunk_size(r)?,
            port: r.span()?,
            read: r.span()?,
            alone: r.span()?,
            rate: r.rate()?,
            wanted: if r.at_end() { Wanted::BY_MAP } else { Wanted::from_code(r.u8()?)? },
        })
    }
}

impl Direction {
    fn flags(self) -> u8 {
        match self {
            Self::Put(wanted) => wanted.code() << 1,
            Self::Get => GET,
        }
    }

    fn from_flags(flags: u8) -> Option<Self> {
        match flags {
            GET => Some(Self::Get),
            put if put & GET == 0 => Wanted::from_code(put >> 1).map(Self::Put),
            _ => None,
        }
    }
}

impl Grant {
    fn put(&self, out: &mut impl BufMut) {
        out.put_u32_le(self.initiator.0);
        out.put_u64_le(self.txn.0);
        out.put_u8(self.round);
        out.put_u8(self.direction.flags());
        out.put_slice(&self.id.encode());
        out.put_u32_le(self.size);
        out.put_u32_le(self.group.0);
        out.put_u32_le(self.term);
        out.put_u32_le(wire_span(self.transfer));
        out.put_u32_le(wire_rate(self.rate));
        out.put_u8(self.windows.len() as u8);
        for window in &self.windows {
            out.put_u32_le(window.target.0);
            out.put_u32_le(wire_span(window.start));
            out.put_u32_le(wire_span(window.done));
        }
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        let (initiator, txn, round) = (NodeId(r.u32()?), TxnId(r.u64()?), r.u8()?);
        let direction = Direction::from_flags(r.u8()?)?;
        let (id, size, group, term) = (r.chunk()?, chunk_size(r)?, GroupId(r.u32()?), r.u32()?);
        let (transfer, rate, count) = (r.span()?, r.rate()?, r.count(limits::COPIES)?);
        let window =
            |r: &mut Reader<'_>| Some(GrantedWindow { target: NodeId(r.u32()?), start: r.span()?, done: r.span()? });
        let windows = (0..count).map(|_| window(r)).collect::<Option<_>>()?;
        Some(Self { initiator, txn, round, id, size, group, term, direction, transfer, rate, windows })
    }
}

impl Report {
    fn put(&self, out: &mut impl BufMut) {
        out.put_u32_le(self.group.0);
        out.put_u32_le(self.term);
        out.put_u32_le(wire_span(self.port));
        out.put_u32_le(wire_span(self.disk));
        out.put_u32_le(self.size);
        out.put_u32_le(wire_span(self.each));
        out.put_u32_le(wire_span(self.whole));
        out.put_u32_le(wire_rate(self.rate));
        out.put_u64_le(self.free);
    }

    fn take(r: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            group: GroupId(r.u32()?),
            term: r.u32()?,
            port: r.span()?,
            disk: r.span()?,
            size: chunk_size(r)?,
            each: r.span()?,
            whole: r.span()?,
            rate: r.rate()?,
            free: r.u64()?,
        })
    }
}
