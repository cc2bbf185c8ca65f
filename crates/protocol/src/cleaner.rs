//! Cleaning: which steps, in which order, find the chunks that nothing refers to and have them dropped.
//!
//! A driver asks [`Cleaner::want`] what to do next, does it, and says how it ended. Only the application knows what
//! refers to chunks. It reads that when it is asked to, after the mark and the grace time. `docs/cleaning.md` has the
//! argument why nothing goes that something counts on.

use crate::id::{ChunkId, ChunkKind, NodeId};
use crate::initiator::{Busy, Discard, Discarded, Found, Mark, Marked};

/// Chunks in one discard.
const BATCH: usize = 1_024;
/// What a cleaner wants done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Set a mark: [`Cleaner::marked`].
    Mark,
    /// Let a grace time pass from now on: [`Cleaner::rested`].
    Rest,
    /// Read what refers to the payload chunks of this slice of the space of ids and of those behind it, of as many as memory
    /// allows: [`Cleaner::read`], or [`Cleaner::stop`] when something cannot be read.
    Read {
        /// The slice: the first [`Cleaner::slice_bytes`] bytes of an id.
        from: u32,
    },
    /// List the chunks of all targets with this prefix: [`Cleaner::listed`].
    List {
        /// First bytes of the encoded ids.
        prefix: Vec<u8>,
    },
    /// [`Cleaner::discarded`].
    Discard(Discard),
    /// The pass is over; [`Cleaner::next_pass`] begins the next.
    Over(Summary),
}

/// Defects that can be planted to prove that the simulator's checkers bite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// What silent targets hold counts as known.
    IgnoreSilence,
}

/// Why a pass was not finished: then nothing more is dropped by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// These targets were silent, restarted, or know a newer cluster map.
    Silent(Vec<NodeId>),
    /// Too much waits.
    Busy,
    /// What refers to chunks could not be read.
    Unread,
}

/// What a pass found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Chunks to which nothing refers.
    pub unreferenced: u64,
    /// Copies that were dropped.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Why it was not finished.
    pub unfinished: Option<Unfinished>,
}

#[derive(Debug)]
enum Phase {
    Marking,
    Resting,
    Reading {
        from: u32,
    },
    /// The chunks of the slice `at`, the plain or the coded.
    Listing {
        at: u32,
        until: u32,
        coded: bool,
    },
    /// Then that list follows, or the next reading.
    Discarding {
        at: u32,
        until: u32,
        coded: bool,
    },
    Over,
}

/// A cleaner between one input and the next.
#[derive(Debug)]
pub struct Cleaner {
    phase: Phase,
    /// Whether nothing is sent to the targets.
    dry: bool,
    slice_bytes: u8,
    mark: Option<Mark>,
    /// The mark of the pass before.
    since: Option<Mark>,
    /// Targets that have not been told yet.
    queue: Vec<(ChunkId, Vec<NodeId>)>,
    summary: Summary,
    bug: Option<Bug>,
}

impl Cleaner {
    /// A cleaner before its first pass, which condemns and drops nothing. A `dry` one sends the targets nothing.
    #[must_use]
    pub fn new(dry: bool) -> Self {
        let summary = Summary::default();
        Self {
            phase: Phase::Marking,
            dry,
            slice_bytes: 0,
            mark: None,
            since: None,
            queue: Vec::new(),
            summary,
            bug: None,
        }
    }

    /// The same with a planted defect.
    #[must_use]
    pub fn with_bug(self, bug: Option<Bug>) -> Self {
        Self { bug, ..self }
    }

    /// From the next pass on, as many bytes of an id as this decide its slice: at most two.
    pub fn set_slice_bytes(&mut self, bytes: u8) {
        self.slice_bytes = bytes.min(2);
    }

    /// How many of an id's first bytes decide its slice.
    #[must_use]
    pub fn slice_bytes(&self) -> u8 {
        self.slice_bytes
    }

    /// Whether a pass cannot go on, since these did not answer: what they hold is not known.
    #[must_use]
    pub fn lacks(&self, silent: &[NodeId]) -> bool {
        !silent.is_empty() && self.bug != Some(Bug::IgnoreSilence)
    }

    fn slices(&self) -> u32 {
        1 << (8 * u32::from(self.slice_bytes))
    }

    fn prefix(&self, slice: u32, coded: bool) -> Vec<u8> {
        let kind = if coded { ChunkKind::Coded } else { ChunkKind::Payload };
        let mut prefix = vec![kind as u8];
        prefix.extend(&slice.to_be_bytes()[4 - usize::from(self.slice_bytes)..]);
        prefix
    }

    /// What to do next; the same until its result is reported.
    #[must_use]
    pub fn want(&mut self) -> Want {
        loop {
            match self.phase {
                Phase::Marking => return Want::Mark,
                Phase::Resting => return Want::Rest,
                Phase::Reading { from } if from < self.slices() => return Want::Read { from },
                Phase::Reading { .. } => self.phase = Phase::Over,
                Phase::Listing { at, until, coded } if at < until => {
                    return Want::List { prefix: self.prefix(at, coded) };
                }
                Phase::Listing { until, .. } => self.phase = Phase::Reading { from: until },
                Phase::Discarding { at, until, coded } => match self.next_batch() {
                    Some(discard) => return Want::Discard(discard),
                    None => self.phase = Phase::Listing { at, until, coded },
                },
                Phase::Over => return Want::Over(self.summary.clone()),
            }
        }
    }

    fn next_batch(&self) -> Option<Discard> {
        let mark = self.mark.filter(|_| !self.dry && !self.queue.is_empty())?;
        let chunks = self.queue[..self.queue.len().min(BATCH)].to_vec();
        Some(Discard { mark, since: self.since, chunks })
    }

    /// The mark is set, or not everywhere.
    pub fn marked(&mut self, result: Result<Marked, Busy>) {
        match result {
            Ok(marked) if !self.lacks(&marked.silent) => {
                self.mark = Some(marked.mark);
                // A pass that can only condemn need not wait for what was begun before the mark.
                self.phase = if self.since.is_some() { Phase::Resting } else { Phase::Reading { from: 0 } };
            }
            Ok(marked) => self.stop(Unfinished::Silent(marked.silent)),
            Err(Busy) => self.stop(Unfinished::Busy),
        }
    }

    /// The grace time has passed.
    pub fn rested(&mut self) {
        self.phase = Phase::Reading { from: 0 };
    }

    /// What refers to the payload chunks before slice `until` is known; and these manifests are referred to by nothing.
    pub fn read(&mut self, until: u32, manifests: Vec<(ChunkId, Vec<NodeId>)>) {
        if let Phase::Reading { from } = self.phase {
            self.summary.unreferenced += manifests.len() as u64;
            self.queue = manifests;
            // Every reading gets on, or there would be no end.
            let until = until.clamp(from + 1, self.slices().max(from + 1));
            self.phase = Phase::Discarding { at: from, until, coded: false };
        }
    }

    /// The list that was wanted. What refers to a coded chunk refers to all of its pieces.
    pub fn listed(&mut self, result: Result<Found, Busy>, is_referenced: impl Fn(&ChunkId) -> bool) {
        let Phase::Listing { at, until, coded } = self.phase else { return };
        match result {
            Ok(found) if !self.lacks(&found.silent) => {
                self.queue = found.chunks.into_iter().filter(|(id, _)| !is_referenced(&id.whole())).collect();
                self.summary.unreferenced += self.queue.len() as u64;
                self.phase = Phase::Discarding { at: at + u32::from(coded), until, coded: !coded };
            }
            Ok(found) => self.stop(Unfinished::Silent(found.silent)),
            Err(Busy) => self.stop(Unfinished::Busy),
        }
    }

    /// What became of a discard.
    pub fn discarded(&mut self, result: Result<Discarded, Busy>) {
        match result {
            Ok(done) => {
                self.queue.drain(..self.queue.len().min(BATCH));
                self.summary.copies += done.copies;
                self.summary.bytes += done.bytes;
                if self.lacks(&done.silent) {
                    self.stop(Unfinished::Silent(done.silent));
                }
            }
            Err(Busy) => self.stop(Unfinished::Busy),
        }
    }

    /// The pass cannot go on.
    pub fn stop(&mut self, why: Unfinished) {
        self.queue.clear();
        self.summary.unfinished = Some(why);
        self.phase = Phase::Over;
    }

    /// Begins the next pass, which drops what the one before condemned.
    pub fn next_pass(&mut self) {
        self.since = self.mark.take().or(self.since);
        self.summary = Summary::default();
        self.phase = Phase::Marking;
    }
}
