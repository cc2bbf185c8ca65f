//! What a target reports to its driver, and how it is set up.

use crate::id::{ChunkId, NodeId};
use crate::machine::{IgnoredReason, NewerMap};
use crate::map::ClusterMap;
use crate::time::{Instant, Span};
use crate::wire::Answer;

/// A target has no local application; these come from its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A newer cluster map has come.
    Map(ClusterMap),
    /// So many bytes are free for new chunks, as others use the disk as well, or compaction has won some.
    Free(u64),
    /// It has been started, or is about to be stopped on purpose: those that deal with it hear that.
    Presence {
        /// Whether it is there from now on.
        here: bool,
    },
}

/// What a target starts with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its id in the map.
    pub id: NodeId,
    /// The cluster's map.
    pub map: ClusterMap,
    /// Bytes that new chunks may take.
    pub free: u64,
    /// Chunks held.
    pub chunks: u64,
    /// Decides the numbers of its transactions; must differ from run to run.
    pub seed: u64,
    /// A defect to plant, to prove that the checkers find it. `None` in every daemon.
    pub bug: Option<Bug>,
}

/// What a target reports, for metrics, logs and checkers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A bid was sent: a window, or why there is none.
    Bid {
        /// What it says.
        answer: Answer,
    },
    /// A window was accepted: this transfer has the port from `start` for `length`, on this node's clock.
    Accepted {
        /// Which chunk.
        id: ChunkId,
        /// Nanoseconds of this node's clock.
        start: crate::time::Instant,
        /// How long.
        length: Span,
    },
    /// The first payload of a reserved transfer came this long after (or before) the promised moment.
    Started {
        /// Nanoseconds late; negative is early.
        late_nanos: i64,
    },
    /// The last payload of a reserved transfer came this long after its window ended.
    Overrun {
        /// How long.
        by: Span,
    },
    /// A tentative window was not accepted in time.
    Expired,
    /// An accepted window was given up: its payload did not come, or its initiator asked anew.
    Released {
        /// Which chunk.
        id: ChunkId,
    },
    /// A copy for maintenance is here, and waits until the disk has nothing to do for clients: the port is free.
    Waiting {
        /// Which chunk.
        id: ChunkId,
    },
    /// A copy became durable.
    Stored {
        /// Which chunk.
        id: ChunkId,
        /// Its bytes.
        bytes: u32,
        /// From handing the write to the disk to its completion.
        took: Span,
    },
    /// Missing ranges were asked for.
    RepairAsked,
    /// Missing ranges were sent again.
    RepairSent,
    /// A copy on this disk was damaged, and is dropped.
    Corrupt {
        /// Which chunk.
        id: ChunkId,
    },
    /// Chunks that nothing refers to were dropped.
    Discarded {
        /// How many.
        chunks: u32,
        /// Their bytes.
        bytes: u64,
    },
    /// A write failed: from now on puts are answered as by a full disk, and reads are still served. Told once.
    DiskFailed,
    /// A chunk that had too few copies was put.
    Restored {
        /// Which.
        id: ChunkId,
        /// Since when that was this target's to do.
        since: Instant,
    },
    /// A copy was put on an emptier target: the one here is to go.
    Moved {
        /// Of which chunk.
        id: ChunkId,
        /// Its bytes.
        bytes: u64,
    },
    /// A copy went, as there are enough others.
    LetGo {
        /// Of which chunk.
        id: ChunkId,
        /// Its bytes.
        bytes: u64,
    },
    /// A datagram was dropped.
    Ignored(IgnoredReason),
    /// Others use a newer cluster map: once there is one that can be used, from them or elsewhere, hand it in with [`Request::Map`].
    NewerMap(NewerMap),
}

/// Defects that can be planted to prove that the simulator's checkers bite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Of a steward.
    Steward(crate::steward::Bug),
    /// Acknowledge when the write is handed to the disk.
    AckBeforeDurable,
    /// Never send acknowledgements.
    DropAck,
    /// Store without checking the hash.
    SkipHashCheck,
    /// Offer and accept windows that overlap accepted ones.
    OverlapWindows,
    /// Keep a window of maintenance that a client has accepted.
    KeepLeftover,
    /// Take what a leader grants into the calendar, even if the port is reserved then.
    TrustGrants,
    /// Keep what a leader granted for ever, although no payload comes.
    KeepGrants,
    /// Say of a chunk that a leader granted a window for that it is here, without looking.
    ClaimGranted,
    /// Keep tentative windows for ever.
    NeverExpire,
    /// Take puts under an older cluster map than the own one.
    TakeOldMap,
    /// Vouch for a copy to an initiator that uses an older cluster map.
    VouchOldMap,
    /// Answer "have it" without remembering that a node counts on the copy now.
    ForgetPromise,
    /// Obey a discard whose mark is not known any more, as if nothing had been promised since.
    ObeyUnknown,
    /// Store what another holder puts again without checking the hash.
    TrustRestored,
    /// Do not look for other copies of chunks whose copy here was damaged.
    NeverSeek,
}
