//! The control messages: what nodes say to each other.

use bytes::Bytes;
use smallvec::SmallVec;

use super::aggregating::Aggregating;
use super::codec::BusyWindows;
use super::lead::Leading;
use crate::census::{Holding, IdRange};
use crate::health::Health;
use crate::id::{ChunkId, ChunkKind, Epoch, GroupId, NodeId, TxnId};
use crate::limits;
use crate::map::MapDocument;
use crate::redundancy::{Piece, Wanted};
use crate::time::Span;

/// Everything that nodes say to each other besides payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Initiator to group: can you take a copy of this chunk, and when?
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
        granted: Grants,
    },
    /// Initiator to group: have you this chunk (of a coded one any piece: [`TxnId::of_piece`]), when could you send it?
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
    /// Initiator to one target, when an acknowledgement is late: what became of this transaction? Or, of one that sent nothing: is
    /// there a copy of the chunk, which is counted on from now on?
    Probe {
        /// Which transaction.
        txn: TxnId,
        /// Its chunk.
        id: ChunkId,
        /// What the copy has to be kept for.
        wanted: Wanted,
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
        /// In ascending order; at most [`LISTED`](crate::limits::LISTED).
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
    /// To an aggregator.
    Aggregating(Aggregating),
    /// Target to those that it deals with: I stop on purpose, or have been started.
    Presence {
        /// Whether it is there from now on.
        here: bool,
    },
    /// Target to the other members of a chunk's group: the copy here was damaged, and is gone.
    Gone {
        /// The chunk.
        id: ChunkId,
    },
    /// Target to target: what do you hold of a group's chunks in a range of ids?
    Census(CensusRequest),
    /// Target to target: that.
    Counted {
        /// Which transaction.
        txn: TxnId,
        /// What is held.
        holding: Holding,
    },
    /// Target to target: put a chunk of which you have a copy, as there are too few. The answer is an [`Ack`]: pending, durable when
    /// that is done, or why not.
    Restore {
        /// Which transaction.
        txn: TxnId,
        /// The chunk.
        id: ChunkId,
        /// What its copies are to be kept for.
        wanted: Wanted,
        /// Of a coded chunk, the targets that have other pieces; at most [`PIECES`](crate::limits::PIECES).
        holders: Vec<NodeId>,
    },
    /// Target to target: your copy of a chunk is one too many. Note a moment ([`Noted`](Self::Noted)); or, after the moment that you
    /// noted, let it go unless you promised it since. Then the answer is an [`Ack`]: unknown when it is gone, durable when it stays.
    Surplus {
        /// Which transaction.
        txn: TxnId,
        /// The chunk.
        id: ChunkId,
        /// What the copies that stay are kept for, all together: a copy that is kept for more stays, too.
        wanted: Wanted,
        /// The moment.
        note: Option<u64>,
    },
    /// Target to target: the moment.
    Noted {
        /// Which transaction.
        txn: TxnId,
        /// What stands for it, to the target that noted it; not 0.
        note: u64,
    },
    /// Target to target: how full are you?
    Fill {
        /// Which transaction.
        txn: TxnId,
    },
    /// Target to target: so full.
    Filled {
        /// Which transaction.
        txn: TxnId,
        /// That.
        fill: Fill,
    },
    /// Target to target: put a chunk of which you have a copy on one certain member of its group, which is emptier. The answer is an
    /// [`Ack`], as to [`Restore`](Self::Restore).
    Move {
        /// Which transaction.
        txn: TxnId,
        /// The chunk.
        id: ChunkId,
        /// What the new copy is to be kept for.
        wanted: Wanted,
        /// The target that is to have it.
        to: NodeId,
    },
    /// Initiator to target: what do you know as a steward, and what did you make again?
    Health {
        /// Which transaction.
        txn: TxnId,
    },
    /// Target to initiator: that.
    HealthReport {
        /// Which transaction.
        txn: TxnId,
        /// That.
        report: HealthReport,
    },
    /// To a node with a newer cluster map: send parts of its document.
    MapRequest(MapRequest),
    /// To a node with an older cluster map: a part of the document of the sender's.
    MapPart(MapPart),
}

/// What a target knows of the copies of others, and what it did for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthReport {
    /// By which map.
    pub epoch: Epoch,
    /// The groups of which it is the steward; [`STEWARDED`](crate::limits::STEWARDED) at most.
    pub groups: Vec<(GroupId, Health)>,
    /// Chunks that it is putting because they have too few copies.
    pub restoring: u16,
    /// Chunks that it has put for that reason since it was started.
    pub restored: u64,
    /// Their bytes.
    pub restored_bytes: u64,
    /// The targets it watches, and for how long each that is silent was; [`WATCHED`](crate::limits::WATCHED) at most.
    pub watched: Vec<(NodeId, Option<Span>)>,
    /// Chunks that it is putting on emptier targets.
    pub moving: u16,
    /// Chunks that it has put there since it was started.
    pub moved: u64,
    /// Their bytes.
    pub moved_bytes: u64,
    /// Those whose copy on its disk was damaged, and that it found nowhere; `None` before it has looked for them.
    pub nowhere: Option<Nowhere>,
}

/// Chunks whose copy on a target's disk was damaged, and of which nobody else was found to have one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nowhere {
    /// Those of which all that may have them said that they do not: nothing refers to them, or they are lost.
    pub lost: u32,
    /// Those that a target may have that did not answer.
    pub sought: u32,
    /// The targets that did not; when they are [`SOUGHT`](crate::limits::SOUGHT), there may be more.
    pub silent: Vec<NodeId>,
}

impl Nowhere {
    /// One more did not answer.
    pub(crate) fn note_silent(&mut self, silent: NodeId) {
        if !self.silent.contains(&silent) && self.silent.len() < limits::SOUGHT {
            self.silent.push(silent);
        }
    }
}

impl HealthReport {
    /// That of a target that knows of no group, and did nothing.
    #[must_use]
    pub const fn of(epoch: Epoch) -> Self {
        Self {
            epoch,
            groups: Vec::new(),
            restoring: 0,
            restored: 0,
            restored_bytes: 0,
            watched: Vec::new(),
            moving: 0,
            moved: 0,
            moved_bytes: 0,
            nowhere: Some(Nowhere { lost: 0, sought: 0, silent: Vec::new() }),
        }
    }
}

/// How full a target is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Bytes of the chunks that it holds, and of those that are on their way to it, without those of which it has put copies
    /// elsewhere, so that its own are about to go.
    pub live: u64,
    /// Bytes that chunks may take in all; 0 when it takes none.
    pub room: u64,
    /// Chunks that it holds.
    pub chunks: u64,
}

/// A question of a census.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CensusRequest {
    /// Which transaction.
    pub txn: TxnId,
    /// Whose chunks.
    pub group: GroupId,
    /// Which of them.
    pub range: IdRange,
    /// What sums are made with.
    pub salt: u64,
    /// Only what is behind this one.
    pub after: Option<ChunkId>,
}

/// Parts of a [`MapDocument`] that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRequest {
    /// Where the first begins.
    pub offset: u32,
    /// How many; 16 at most are sent.
    pub parts: u8,
}

/// A part of a [`MapDocument`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapPart {
    /// The whole document's.
    pub digest: [u8; MapDocument::DIGEST],
    /// Bytes of the whole document.
    pub size: u32,
    /// Where this part begins.
    pub offset: u32,
    /// Its bytes: [`MapDocument::PART`] at most.
    pub bytes: Bytes,
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
    /// The chunks; at most [`LISTED`](crate::limits::LISTED).
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
    /// What the copy is to be kept for.
    pub wanted: Wanted,
    /// Why it is put.
    pub purpose: Purpose,
    /// When the initiator's port is taken, from now: begin and end of each window, in order and without overlaps; at most
    /// [`RANGES`](crate::limits::RANGES), the first ones.
    pub busy: BusyWindows,
}

/// Why a copy is put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// A client stores something.
    #[default]
    Store,
    /// A client removes something, which a manifest says: it may have of the room that is kept for what wins some. The same as
    /// [`Store`](Self::Store) for a payload chunk.
    Remove,
    /// A holder puts it, because copies were lost, or to move one: it has what clients leave.
    Restore {
        /// Nobody else has a copy, so it is served like a client.
        urgent: bool,
        /// Set where it may come in parts, each in a window of its own: how many bytes were sent in windows before. It is 0 for those
        /// that did not offer one for a [part](Answer::Part).
        sent: Option<u32>,
    },
}

impl Purpose {
    /// Whether a chunk says that something is removed.
    pub(crate) fn removes(self, id: &ChunkId) -> bool {
        self == Self::Remove && id.kind() == ChunkKind::Manifest
    }

    /// Whether a holder puts it.
    #[must_use]
    pub const fn restores(self) -> bool {
        matches!(self, Self::Restore { .. })
    }

    /// How many bytes were sent before, if it may come in parts.
    #[must_use]
    pub const fn sent(self) -> Option<u32> {
        match self {
            Self::Restore { sent, .. } => sent,
            Self::Store | Self::Remove => None,
        }
    }
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
    Window(OfferedWindow),
    /// The same for the next part of a copy. When a client takes the window, what came by then is kept.
    Part(OfferedWindow),
    /// The copy is durable here already: it counts.
    HaveIt,
    /// This piece of the coded chunk is durable here already: it counts as that.
    HavePiece(Piece),
    /// (To a get.) Not here. (To the request for the next part of a copy.) What came of it before is not here any more.
    NotHere,
    /// Nothing free soon enough; ask again after this.
    Busy(Span),
    /// No room for it, or on a disk that takes no more because it failed.
    NoSpace,
    /// The request was made with an old cluster map; the head of this message has the epoch of the new one.
    Stale,
}

impl Answer {
    /// The window that is offered, for all of a copy or for a part.
    #[must_use]
    pub const fn window(&self) -> Option<&OfferedWindow> {
        match self {
            Self::Window(offered) | Self::Part(offered) => Some(offered),
            Self::HaveIt | Self::HavePiece(_) | Self::NotHere | Self::Busy(_) | Self::NoSpace | Self::Stale => None,
        }
    }
}

/// A window of time in which a target's port and disk are free for one transfer. All spans count from the moment at
/// which the bid was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedWindow {
    /// Begin.
    pub start: Span,
    /// Length of the window. It may be shorter than the transfer, which then begins with it and runs on a little.
    pub length: Span,
    /// How much of it the transfer will take.
    pub transfer: Span,
    /// When the copy should be durable (put) or its last byte sent (get), if the transfer starts with the window.
    pub done: Span,
    /// Bytes per second at which to send.
    pub rate: u64,
    /// The chunk's size: for a get, the initiator does not know it. Of a [part](Answer::Part) its bytes.
    pub size: u32,
}

/// The chosen: mostly as many as a chunk has copies.
pub type Grants = SmallVec<[Granted; 3]>;

/// One chosen target in an accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The target.
    pub target: NodeId,
    /// How far into its bid's window the transfer begins.
    pub offset: Span,
}

/// The fate of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// Verified and durable.
    Durable,
    /// The same of a coded chunk, as this piece of it.
    Piece(Piece),
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
    pub rate: u64,
    /// Offset and length of each; at most [`RANGES`](crate::limits::RANGES).
    pub ranges: Vec<ByteRange>,
}

/// Some bytes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub offset: u32,
    /// How many.
    pub len: u32,
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
            Self::Aggregating(aggregating) => aggregating.name(),
            Self::Census(_) => "census",
            Self::Counted { .. } => "counted",
            Self::Restore { .. } => "restore",
            Self::Surplus { .. } => "surplus",
            Self::Noted { .. } => "noted",
            Self::Fill { .. } => "fill",
            Self::Filled { .. } => "filled",
            Self::Move { .. } => "move",
            Self::Health { .. } => "health",
            Self::HealthReport { .. } => "health-report",
            Self::Presence { .. } => "presence",
            Self::Gone { .. } => "gone",
            Self::MapRequest(_) => "map-request",
            Self::MapPart(_) => "map-part",
        }
    }
}
