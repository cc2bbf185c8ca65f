//! What an initiator is asked, and what it reports.

use core::fmt;

use bytes::Bytes;

use crate::id::coded::{Coded, Header};
use crate::id::{ChunkId, Epoch, NodeId, TxnId};
use crate::machine::{IgnoredReason, NewerMap};
use crate::map::ClusterMap;
use crate::redundancy::{Piece, Pieces, Redundancy, Wanted};
use crate::time::Span;
use crate::wire::{Answer, HealthReport, Usage};

/// A chunk to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkPut {
    /// The chunk's id.
    pub id: ChunkId,
    /// Its bytes: of each copy or piece 1 to [`limits::CHUNK_BYTES`](crate::limits::CHUNK_BYTES).
    pub payload: Payload,
    /// How it is kept; `None` is as the map says when it is done.
    pub redundancy: Option<Redundancy>,
    /// Whether it is a manifest that says that something is removed: targets have room for it when they are full.
    pub removal: bool,
}

/// What is put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The bytes of every copy.
    Copies(Bytes),
    /// All pieces of a coded chunk, by their numbers.
    Pieces(Vec<Bytes>),
}

impl Payload {
    /// Of each copy or piece.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Copies(bytes) => bytes.len(),
            Self::Pieces(pieces) => pieces.first().map_or(0, Bytes::len),
        }
    }

    /// Bytes of the chunk.
    #[must_use]
    pub fn length(&self) -> usize {
        match self {
            Self::Copies(bytes) => bytes.len(),
            Self::Pieces(pieces) => {
                pieces.first().and_then(|piece| Header::decode(piece)).map_or(0, |read| read.length())
            }
        }
    }

    /// Whether it is what an id of this kind is put with.
    pub(super) fn is_of(&self, id: &ChunkId) -> bool {
        match (self, id.code().filter(|_| id.piece().is_none())) {
            (Self::Copies(_), code) => code.is_none(),
            (Self::Pieces(pieces), Some(code)) => {
                let size = self.size();
                pieces.len() == code.fragments() && pieces.iter().all(|piece| piece.len() == size)
            }
            (Self::Pieces(_), None) => false,
        }
    }

    /// The bytes of a piece; copies are alike.
    pub(super) fn of(&self, piece: Piece) -> Bytes {
        match self {
            Self::Copies(bytes) => bytes.clone(),
            Self::Pieces(pieces) => pieces.get(usize::from(piece.0)).cloned().unwrap_or_default(),
        }
    }

    /// Whether one transmission may serve several targets.
    pub(super) const fn is_common(&self) -> bool {
        matches!(self, Self::Copies(_))
    }
}

impl ChunkPut {
    /// A chunk that is kept as the map says.
    #[must_use]
    pub const fn new(id: ChunkId, payload: Bytes) -> Self {
        Self { id, payload: Payload::Copies(payload), redundancy: None, removal: false }
    }

    /// A coded chunk.
    #[must_use]
    pub fn coded(Coded { id, pieces }: Coded) -> Self {
        Self { id, payload: Payload::Pieces(pieces), redundancy: None, removal: false }
    }
}

/// What the local application asks of an initiator. Each but a map is answered by exactly one event with the same
/// `handle`.
#[derive(Clone, Debug)]
pub enum Request {
    /// Store a chunk on as many targets as the map says.
    Put {
        /// The caller's name for this request.
        handle: u64,
        /// The chunk, and how it is kept.
        put: ChunkPut,
    },
    /// Store a chunk of which this node, a target, has a copy: that counts.
    Restore {
        /// The caller's name for this request, which is answered as a put is.
        handle: u64,
        /// The chunk.
        id: ChunkId,
        /// Its bytes.
        payload: Payload,
        /// Which piece of a coded chunk this node has; copies are alike.
        piece: Piece,
        /// What its copies are to be kept for.
        wanted: Wanted,
        /// It is done with so many copies, also when more are wanted.
        most: u8,
        /// The only member of the group that is to have a copy beside those that there are, if it is to be a certain one: it is
        /// done when that has one.
        to: Option<NodeId>,
    },
    /// Fetch a chunk.
    Get {
        /// The caller's name for this request.
        handle: u64,
        /// The chunk's id.
        id: ChunkId,
        /// Targets that were listed as its holders, in its group or not. They are asked first. Empty when none are known.
        holders: Vec<NodeId>,
        /// Of a coded chunk, the fragments of data that are wanted; all, and what is not coded in any case, when `None`.
        fragments: Option<Pieces>,
    },
    /// Fetch what all pieces of a coded chunk can be made of, and make them.
    Pieces {
        /// The caller's name for this request.
        handle: u64,
        /// The chunk's id.
        id: ChunkId,
        /// Targets that were listed as holders of others. They are asked first. Empty when none are known.
        holders: Vec<NodeId>,
        /// Pieces that are here: verified.
        here: Vec<Bytes>,
    },
    /// Ask targets something that carries no payload.
    Query {
        /// The caller's name for this request.
        handle: u64,
        /// What is asked.
        query: Query,
    },
    /// Use this cluster map from now on (ignored when it is older than the present one).
    Map(ClusterMap),
}

/// A question to several targets, which carries no payload.
#[derive(Clone, Debug)]
pub enum Query {
    /// To all: which chunks they hold.
    List {
        /// First bytes of the encoded ids.
        prefix: Vec<u8>,
    },
    /// To all: what they say of themselves.
    Ping,
    /// To all aggregators of the map: whether they are there.
    PingSwitches,
    /// To the group of a chunk: whether it has all its pieces, which are then promised as to a put of it.
    Renew {
        /// The chunk.
        id: ChunkId,
        /// How it is kept; `None` is as the map says when the answer is known.
        redundancy: Option<Redundancy>,
    },
    /// To all: that they remember this moment (`docs/cleaning.md`).
    Mark,
    /// To those that hold chunks to which nothing refers: that they drop them.
    Discard(Discard),
    /// To all: what their bytes do.
    Usage,
    /// To all: what they know as stewards, and what they made again.
    Health,
}

/// The answer to the [`Query`] of the same name, or that too much waits here.
#[derive(Clone, Debug)]
pub enum QueryAnswer {
    /// Ids in ascending order, each once, and the targets that did not answer. [`Busy`] also when so many targets were too
    /// busy until the end that the list would be worth nothing.
    List(Result<Found, Busy>),
    /// One entry for each target of the map, or for each aggregator.
    Ping(Result<Vec<TargetState>, Busy>),
    /// Whether enough targets in distinct failure domains promised a copy.
    Renew(Result<bool, Busy>),
    /// The mark, and the targets that do not know it.
    Mark(Result<Marked, Busy>),
    /// What became of the chunks.
    Discard(Result<Discarded, Busy>),
    /// Of those that answered.
    Usage(Result<Vec<(NodeId, Usage)>, Busy>),
    /// Of those that answered.
    Health(Result<Vec<(NodeId, HealthReport)>, Busy>),
}

impl Query {
    /// The answer that too much waits here.
    pub(super) const fn refused(&self) -> QueryAnswer {
        match self {
            Self::List { .. } => QueryAnswer::List(Err(Busy)),
            Self::Ping | Self::PingSwitches => QueryAnswer::Ping(Err(Busy)),
            Self::Renew { .. } => QueryAnswer::Renew(Err(Busy)),
            Self::Mark => QueryAnswer::Mark(Err(Busy)),
            Self::Discard(_) => QueryAnswer::Discard(Err(Busy)),
            Self::Usage => QueryAnswer::Usage(Err(Busy)),
            Self::Health => QueryAnswer::Health(Err(Busy)),
        }
    }
}

/// What an initiator reports.
#[derive(Clone, Debug)]
pub enum Event {
    /// A put is over.
    Put {
        /// Of which request.
        handle: u64,
        /// Where the copies are, or why there are too few.
        result: Result<Stored, PutError>,
    },
    /// A get is over.
    Get {
        /// Of which request.
        handle: u64,
        /// The verified bytes in order, of what was wanted, or why there are none.
        result: Result<Fetched, GetError>,
    },
    /// Pieces of a coded chunk were fetched.
    Pieces {
        /// Of which request.
        handle: u64,
        /// All pieces, by their numbers, or why they cannot be made.
        result: Result<Vec<Bytes>, GetError>,
    },
    /// A query is over.
    Query {
        /// Of which request.
        handle: u64,
        /// What came of it.
        answer: QueryAnswer,
    },
    /// Others use a newer cluster map: once there is one that can be used, from them or elsewhere, hand it in with [`Request::Map`].
    NewerMap(NewerMap),
    /// A target bid: a window, or why there is none.
    Bid {
        /// What it says.
        answer: Answer,
    },
    /// Missing ranges of a get were asked for.
    RepairAsked,
    /// Missing ranges of a put were sent again.
    RepairSent,
    /// Another holder of a chunk is asked, since the first is late.
    Hedged,
    /// Multicast works on this network no more, so that all is sent by unicast; or it works again.
    Multicast {
        /// Whether it does.
        works: bool,
    },
    /// A datagram was dropped.
    Ignored(IgnoredReason),
    /// A copy did not match its id when it arrived.
    CorruptCopy {
        /// The chunk.
        id: ChunkId,
        /// The target that sent it.
        target: NodeId,
    },
}

/// A finished put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Targets with a durable copy.
    pub holders: Vec<NodeId>,
    /// The distinct failure domains that these are in: fewer than are wanted when no more were alive. Those that lack are made later.
    pub copies: u8,
    /// How many were wanted.
    pub wanted: u8,
    /// From the request to the last needed acknowledgement.
    pub took: Span,
    /// Negotiations that it needed (1 is the normal case; 0 when every copy was there already).
    pub rounds: u32,
}

impl Stored {
    /// Whether it has fewer copies than were wanted, so far.
    #[must_use]
    pub const fn lacks_copies(&self) -> bool {
        self.copies < self.wanted
    }
}

/// A finished get.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The chunk's bytes in order.
    pub pieces: Vec<Bytes>,
    /// The target that sent them.
    pub from: NodeId,
    /// From the request to the verified bytes.
    pub took: Span,
    /// Times that it was asked for.
    pub rounds: u32,
}

/// A finished list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Every id that a target holds, with its holders.
    pub chunks: Vec<(ChunkId, Vec<NodeId>)>,
    /// The targets that did not answer: what only they hold is not listed.
    pub silent: Vec<NodeId>,
}

/// A moment, as the targets remember it, under the cluster map that was in use then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its name.
    pub name: TxnId,
    /// The map.
    pub epoch: Epoch,
}

/// A mark that was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked {
    /// The mark.
    pub mark: Mark,
    /// Targets that did not say that they know it, or know a newer cluster map.
    pub silent: Vec<NodeId>,
}

/// Chunks to which nothing refers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discard {
    /// The mark after which the references were read.
    pub mark: Mark,
    /// The mark with which the chunks must have been condemned to go now.
    pub since: Option<Mark>,
    /// The chunks, with their holders.
    pub chunks: Vec<(ChunkId, Vec<NodeId>)>,
}

/// What became of a discard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Copies that were dropped, durably.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Targets that did not answer, know a newer cluster map, or do not know the mark: restarted since, for example.
    pub silent: Vec<NodeId>,
}

/// One target, or aggregator, as it answered a ping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetState {
    /// The target or aggregator.
    pub target: NodeId,
    /// `None` when it was silent.
    pub answer: Option<Alive>,
}

/// What a live target says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alive {
    /// Bytes that new chunks may take.
    pub free: u64,
    /// Chunks held.
    pub chunks: u64,
}

/// Too much is waiting already, at the initiator or at the targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// Why a put failed. Copies that were made stay; the put can be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutError {
    /// Too much is waiting already.
    Busy,
    /// The chunk is empty or too large.
    Size(usize),
    /// Not enough targets could be had in time.
    TooFewCopies {
        /// Copies made durable.
        have: Vec<NodeId>,
        /// Failure domains that they are in.
        domains: usize,
        /// Failure domains in which a copy is, or some member answered and has room.
        possible: usize,
        /// Copies wanted.
        want: u8,
        /// Copies that are enough when no more domains are alive.
        least: u8,
        /// Members that did not answer.
        silent: Vec<NodeId>,
        /// Members without room, or with a failed disk.
        full: Vec<NodeId>,
    },
}

/// Why a get failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GetError {
    /// Too much is waiting already.
    Busy,
    /// Every member of the group answered that it does not hold the chunk.
    NotFound,
    /// No good copy could be had in time, but not every target could be asked.
    Unavailable {
        /// Members that did not answer.
        silent: Vec<NodeId>,
        /// Members whose copy arrived damaged, or could not be read there.
        corrupt: Vec<NodeId>,
    },
}

fn names(nodes: &[NodeId]) -> String {
    let nodes: std::collections::BTreeSet<NodeId> = nodes.iter().copied().collect();
    if nodes.is_empty() {
        return "none".to_owned();
    }
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
}

/// What to do when there were too few targets.
fn advice(silent: &[NodeId], full: &[NodeId]) -> String {
    let todo = [
        (!silent.is_empty(), "start the silent ones"),
        (
            !full.is_empty(),
            "free space or replace the failed disk where the full ones are (their logs soon say which it is)",
        ),
        (true, "add targets in other domains"),
    ];
    todo.iter().filter(|(applies, _)| *applies).map(|(_, what)| *what).collect::<Vec<_>>().join(", or ")
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the initiator or the targets have too much waiting: try again later")
    }
}

impl fmt::Display for PutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("the initiator has too much waiting: try again later"),
            Self::Size(n) => write!(f, "a chunk of {n} bytes: 1 to {} are possible", crate::limits::CHUNK_BYTES),
            Self::TooFewCopies { have, domains, possible, want, least, silent, full } => write!(
                f,
                "copies are needed in {want} failure domains{}, durable in {domains}, and possible in {possible} (targets with \
                 one: {}; silent targets: {}; full targets: {}): {}, then put again",
                if least < want { format!(", or {least} while others are down") } else { String::new() },
                names(have),
                names(silent),
                names(full),
                advice(silent, full)
            ),
        }
    }
}

impl fmt::Display for GetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("the initiator has too much waiting: try again later"),
            Self::NotFound => f.write_str("no target of its group holds the chunk"),
            Self::Unavailable { silent, corrupt } if silent.is_empty() && !corrupt.is_empty() => write!(
                f,
                "every copy that there is is damaged (targets with one: {}): check their disks, and put it again",
                names(corrupt)
            ),
            Self::Unavailable { silent, corrupt } => write!(
                f,
                "no good copy could be had (silent targets: {}; targets with a damaged copy: {}): start the silent \
                 targets and get again, or put the chunk again",
                names(silent),
                names(corrupt)
            ),
        }
    }
}

impl core::error::Error for Busy {}
impl core::error::Error for PutError {}
impl core::error::Error for GetError {}

/// Defects that can be planted to prove that the simulator's checkers bite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// When choosy, give every window back.
    NeverContent,
    /// A list names fewer silent targets than there are, so that they seem to hide nothing.
    TrustTheRest,
    /// Puts and renewals take any two targets for two failure domains.
    IgnoreDomains,
    /// Go on with the first cluster map.
    KeepMap,
    /// Go on with the number of copies of the first cluster map.
    KeepCopies,
    /// Count copies that were made before a newer cluster map, although the chunk is looked for in another group now.
    KeepHolders,
    /// Puts and renewals are content with what the cluster map says, whatever they were asked for.
    IgnoreRedundancy,
    /// Gets do not look where a chunk was by the layout before.
    ForgetPrevious,
    /// Acknowledge a put when one copy is durable.
    AckTooFew,
    /// A put counts whatever piece a target has as one that is missing.
    CountAnyPiece,
    /// Of the fragments that a get wants, the first is left out.
    SkipFragment,
    /// Acknowledge a put with as few copies as are enough while domains are down, although all are alive.
    NeverWaitForTheLast,
    /// Be woken when an answer is late, and ask no target for it.
    WakeInVain,
}
