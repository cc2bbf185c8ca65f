//! The contract between a machine and its driver.
//!
//! 1. Mutate, drain, mutate: after every [`Machine::handle_input`] the driver calls [`Machine::poll_output`] until it
//!    answers [`Output::Idle`], whose deadline is the latest moment for the next [`Input::Wake`].
//! 2. `now` never decreases on one node. An early or repeated `Wake` does nothing.
//! 3. `handle_input` returns nothing. Bytes that are of no use are dropped, and reported as an event with the reason
//!    ([`IgnoredReason`]); refusals are events; a broken invariant panics.
//! 4. Disk and hashing are [`Effect`]s with an [`OpId`]: the daemon runs them on a pool, the simulator charges them
//!    time. Each is answered by exactly one [`Input::Done`], in any order.
//! 5. An acknowledgement leaves only while handling the `Done` that made it true.
//! 6. Nodes and groups have ids, not addresses: the driver owns the mapping.

use std::collections::VecDeque;

use bytes::Bytes;
use erasure::Code;

use crate::census::{Holding, IdRange};
use crate::id::{ChunkId, GroupId, NodeId, OpId, coded};
use crate::map::{ClusterMap, MemberSet};
use crate::promise::Promise;
use crate::redundancy::{Pieces, Wanted};
use crate::time::Instant;
use crate::wire::Usage;

/// What machines report of a newer cluster map.
pub use crate::map_fetch::NewerMap;
/// The payload of [`Body::Data`].
pub use crate::wire::DataRun;

/// A protocol state machine: an [`Initiator`](crate::initiator::Initiator) or a [`Target`](crate::target::Target).
pub trait Machine {
    /// What the local application asks of it.
    type Request;
    /// What it reports to the local application.
    type Event;

    /// Takes one input; `now` must not be earlier than in the call before.
    fn handle_input(&mut self, now: Instant, input: Input<Self::Request>);

    /// What is to be done, in order. A driver of many thousands of machines lends all of them the same memory for it.
    fn outputs(&mut self) -> &mut VecDeque<Output<Self::Event>>;

    /// Reads what most inputs need, and says nothing. A driver of many thousands of machines, none of which is in a cache, has
    /// several read beside each other before it hands them what comes next.
    fn prefetch(&self) -> u64 {
        0
    }

    /// Reads what lies behind the memory that [`Self::prefetch`] reads, which should be there by now.
    fn prefetch_behind(&self) -> u64 {
        0
    }

    /// When to wake it at the latest, if it wants to be woken.
    fn next_deadline(&self) -> Option<Deadline>;

    /// The next thing to do; `Idle` is always the last.
    #[must_use]
    fn poll_output(&mut self) -> Output<Self::Event> {
        self.outputs().pop_front().unwrap_or_else(|| Output::Idle(self.next_deadline()))
    }
}

/// What a driver hands to a machine.
#[derive(Debug)]
pub enum Input<R> {
    /// The deadline of the last `Idle` has come (or not: harmless). Nothing else lets time pass: a driver that was late
    /// hands over what has arrived first.
    Wake,
    /// A datagram, already opened by a [`wire::Session`](crate::wire::Session) (control) or of the data kind (unsealed).
    Datagram {
        /// Its bytes.
        bytes: Bytes,
        /// When it came to this node, which may have been busy with others since then: the spans in it count from here, but for
        /// those that allow for the time that this node takes, too.
        arrived: Instant,
    },
    /// A run of payload whose header was taken off already: many datagrams of one transfer that a driver received, or
    /// simulated, at once.
    Payload {
        /// The header of the first byte.
        header: crate::wire::DataHeader,
        /// The bytes; they must lie inside the chunk.
        payload: Bytes,
        /// When the last of them came to this node.
        arrived: Instant,
    },
    /// An effect is finished.
    Done {
        /// Which effect.
        op: OpId,
        /// How it ended.
        completion: Completion,
    },
    /// A request of the local application.
    Request(R),
}

/// What a machine wants of its driver.
#[derive(Debug)]
pub enum Output<E> {
    /// Send this.
    Transmit(Transmit),
    /// Do this, and answer with [`Input::Done`].
    Effect {
        /// To be given back with the completion.
        op: OpId,
        /// What to do.
        effect: Effect,
    },
    /// Tell the local application.
    Event(E),
    /// Nothing more for now. Wake at the deadline, if there is one.
    Idle(Option<Deadline>),
}

/// Why a machine has no use for a datagram that was well sealed, or for payload: reported so that it can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoredReason {
    /// It cannot be decoded, or says what cannot be so.
    Invalid,
    /// Payload of no known transfer.
    Unsolicited,
    /// Of a transfer, a question or a round that is over, or received before: the network doubled it, or it was long on its
    /// way.
    Late,
    /// Of a cluster map with which it means something else than here.
    OtherMap,
    /// There is too much to do, and the sender asks again.
    Busy,
}

impl IgnoredReason {
    /// Every reason.
    pub const ALL: [Self; 5] = [Self::Invalid, Self::Unsolicited, Self::Late, Self::OtherMap, Self::Busy];

    /// A short name, for counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Unsolicited => "unsolicited",
            Self::Late => "late",
            Self::OtherMap => "other_map",
            Self::Busy => "busy",
        }
    }
}

/// When to wake a machine, and why (for traces).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// The moment, on this node's clock.
    pub at: Instant,
    /// Which timer it is.
    pub why: &'static str,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Destination {
    /// One node.
    Node(NodeId),
    /// Several targets at once, by multicast. Only used while the initiator finds that multicast works.
    Members(MemberSet),
}

/// Something to send.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// The destination.
    pub to: Destination,
    /// What.
    pub body: Body,
}

/// The two kinds of datagrams.
#[derive(Clone, Debug)]
pub enum Body {
    /// One encoded control message without its tag: the driver seals it ([`wire::Session`](crate::wire::Session)).
    Control(Bytes),
    /// A run of payload, to be cut into datagrams.
    Data(DataRun),
}

/// Work that is not protocol: done by the driver.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Is the chunk durable here? Answered with [`Completion::Found`].
    Lookup {
        /// Which.
        id: ChunkId,
        /// When a node will count on the copy if it is there: promise it, in the same step. A copy that is not kept for
        /// what is wanted does not count. When a coded chunk is asked for as a whole, any piece of it is found.
        promise: Option<Promise>,
    },
    /// Check the pieces against the id (when `verify`), store them, make them durable. [`Completion::Written`].
    Write {
        /// Which chunk.
        id: ChunkId,
        /// Its bytes, in order.
        pieces: Vec<Bytes>,
        /// Whether to check the hash first. Always true outside planted bugs.
        verify: bool,
        /// Promise the copy, also one that is there already. If that one is not kept for what is wanted, it is written
        /// again, kept for both.
        promise: Promise,
        /// Whether it says that something is removed, and may have of the room that is kept for what wins some.
        removal: bool,
    },
    /// [Judge](crate::promise::Stamps::judge) these chunks, and forget those that may go: durably, and so that a
    /// look-up finds a chunk promised in time, or not at all. [`Completion::Discarded`].
    Discard {
        /// Which; at most 32.
        ids: Vec<ChunkId>,
        /// See [`Stamps::judge`](crate::promise::Stamps::judge).
        mark: u32,
        /// See [`Stamps::judge`](crate::promise::Stamps::judge).
        since: u32,
        /// Only those copies that are kept for no more than this, if it is said.
        kept_for: Option<Wanted>,
    },
    /// What the bytes on the disk do. [`Completion::Used`].
    Usage,
    /// Read a whole chunk from disk. [`Completion::Read`].
    Read {
        /// Which.
        id: ChunkId,
    },
    /// Check the pieces against the id. [`Completion::Verified`].
    Verify {
        /// Which chunk they should be.
        id: ChunkId,
        /// Its bytes, in order.
        pieces: Vec<Bytes>,
    },
    /// Make what is wanted from pieces of a coded chunk, all of which were verified. [`Completion::Decoded`].
    Decode {
        /// As many as it has fragments of data.
        pieces: Vec<Bytes>,
        /// What.
        into: Decoded,
    },
    /// The durable chunks whose encoded id begins with `prefix`, in order. [`Completion::Listed`].
    List {
        /// First bytes of [`ChunkId::encode`].
        prefix: Vec<u8>,
        /// Begin after this one.
        after: Option<ChunkId>,
        /// At most so many.
        limit: usize,
    },
    /// Chunks whose copy here was damaged, and is not here again, in order. [`Completion::Listed`].
    Missing {
        /// Begin after this one.
        after: Option<ChunkId>,
        /// At most so many.
        limit: usize,
    },
    /// What is held of a group's chunks in a range of ids. [`Completion::Counted`].
    Census {
        /// The map by which chunks are of the group.
        map: ClusterMap,
        /// The group.
        group: GroupId,
        /// The range.
        range: IdRange,
        /// What sums are made with.
        salt: u64,
        /// Only what is behind this one.
        after: Option<ChunkId>,
    },
    /// Verify what is on disk, from `after` on, about `max_bytes` of it. [`Completion::Scrubbed`].
    Scrub {
        /// Begin after this chunk; `None` is the beginning.
        after: Option<ChunkId>,
        /// Stop after about so many bytes.
        max_bytes: u64,
    },
}

impl Effect {
    /// Does what needs a processor and no disk, which is CPU-heavy: for drivers.
    ///
    /// # Errors
    /// The effect, when it needs more.
    pub fn compute(self) -> Result<Completion, Self> {
        match self {
            Self::Verify { id, pieces } => Ok(Completion::Verified(id.matches(pieces.iter().map(|piece| &piece[..])))),
            Self::Decode { pieces, into } => Ok(Completion::Decoded(into.make(&pieces))),
            other => Err(other),
        }
    }

    /// How many bytes [`compute`](Self::compute) goes through; `None` for what it does not do.
    #[must_use]
    pub fn computes(&self) -> Option<usize> {
        match self {
            Self::Verify { pieces, .. } | Self::Decode { pieces, .. } => Some(pieces.iter().map(Bytes::len).sum()),
            _ => None,
        }
    }
}

/// What is made from pieces of a coded chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// The bytes of these fragments of data of the chunk, in order.
    Data(Pieces),
    /// All of its pieces, by their numbers.
    Pieces,
}

impl Decoded {
    /// The fragments of data that it needs.
    pub(crate) const fn fragments(self, code: Code) -> Pieces {
        match self {
            Self::Data(fragments) => fragments,
            Self::Pieces => Pieces::first(code.data()),
        }
    }

    /// That. CPU-heavy, as [`coded`] says: for drivers.
    #[must_use]
    pub fn make(self, pieces: &[Bytes]) -> Option<Vec<Bytes>> {
        match self {
            Self::Data(wanted) => coded::join(pieces, wanted),
            Self::Pieces => coded::make_all(pieces),
        }
    }
}

/// What is durable on a target of a chunk: a copy, or a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The id of the copy or piece.
    pub id: ChunkId,
    /// Its bytes.
    pub size: u32,
    /// What it is kept for.
    pub wanted: Wanted,
}

/// How an effect ended.
#[derive(Clone, Debug)]
pub enum Completion {
    /// What is durable here of the chunk.
    Found(Option<Held>),
    /// The write, with the bytes still free on this target.
    Written {
        /// Durable, or why not.
        result: Result<(), WriteFailure>,
        /// Bytes that new chunks may still take.
        free: u64,
    },
    /// What became of chunks that nothing refers to.
    Discarded {
        /// Which are forgotten, the first being the lowest bit.
        dropped: u32,
        /// Their bytes.
        bytes: u64,
        /// Whether all that may go went, or why not.
        result: Result<(), WriteFailure>,
    },
    /// What the bytes on the disk do.
    Used(Usage),
    /// The chunk's bytes.
    Read(Result<Bytes, ReadFailure>),
    /// Whether the pieces are what the id names.
    Verified(bool),
    /// What was made; `None` when these were not enough pieces of one chunk.
    Decoded(Option<Vec<Bytes>>),
    /// The ids, and whether there are more behind them.
    Listed {
        /// In ascending order.
        ids: Vec<ChunkId>,
        /// Whether the limit cut the list.
        more: bool,
    },
    /// What is held of a range.
    Counted(Holding),
    /// One stretch of a scrub.
    Scrubbed {
        /// Where to go on; `None` when the end was reached.
        next: Option<ChunkId>,
        /// Bytes read.
        bytes: u64,
        /// Chunks whose copy here was bad, and is now forgotten.
        bad: Vec<ChunkId>,
        /// Whether they are forgotten durably, or why only until the next start.
        result: Result<(), WriteFailure>,
    },
}

/// Why a write did not become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFailure {
    /// The bytes are not those that the id names.
    BadHash,
    /// No room.
    NoSpace,
    /// The process may not have what the write takes, such as one more file. The disk is well.
    Exhausted,
    /// The disk failed.
    Disk,
}

/// Why a read gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// Not here (any more).
    Missing,
    /// Here, but damaged.
    Corrupt,
    /// The disk failed.
    Disk,
}
