//! One target's disk: the real store over a backend that tears what was not synced, with time charged.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use protocol::id::{ChunkId, OpId};
use protocol::machine::{Completion, Effect, ReadFailure, WriteFailure};
use protocol::time::{Instant, Span};
use protocol::wire::Usage;
use store::backend::CrashBackend;
use store::{Options, ReadError, Store, WriteError};

use crate::swarm::Trouble;

/// A write that waits for its group.
struct Write {
    op: OpId,
    id: ChunkId,
    pieces: Vec<Bytes>,
    verify: bool,
    promise: u32,
}

pub(crate) struct Disk {
    pub(crate) backend: CrashBackend,
    /// Whether a failed sync is taken for a good one (a planted defect).
    pub(crate) trusting: bool,
    options: Options,
    store: Option<Store>,
    rate: u64,
    sync: Span,
    queue: VecDeque<Write>,
    /// Most writes of a group.
    most: usize,
    /// Whether the store refused a write because the disk failed: it takes no more until it is opened again.
    failed: bool,
    /// The group that is being made durable.
    group: Vec<(OpId, ChunkId, Result<(), WriteFailure>)>,
    /// Chunks in the order in which they became durable.
    order: Vec<ChunkId>,
    reads_done: Instant,
}

/// What a disk answers to an effect.
pub(crate) enum Answer {
    /// At once.
    Now(Completion),
    /// At this time.
    At(Instant, Completion),
    /// A group is being made durable: call [`Disk::commit`] at this time.
    CommitAt(Instant),
    /// With a later group.
    Queued,
}

impl Disk {
    /// An empty disk of `rate` bytes per second, whose groups of at most `most` writes take `sync` more.
    pub(crate) fn new(options: Options, rate: u64, sync: Span, most: usize) -> Self {
        let mut disk = Self {
            backend: CrashBackend::new(),
            trusting: false,
            options,
            store: None,
            rate,
            sync,
            queue: VecDeque::new(),
            most,
            failed: false,
            group: Vec::new(),
            order: Vec::new(),
            reads_done: Instant::ZERO,
        };
        disk.open(false);
        disk
    }

    /// Starts, or starts again on a disk that is well; with `forget`, the newest records are lost on the way (a planted defect).
    pub(crate) fn open(&mut self, forget: bool) {
        self.mend();
        self.failed = false;
        match Store::open(Box::new(self.backend.clone()), self.options.clone()) {
            Ok((store, _)) => {
                if forget {
                    for id in self.order.iter().rev().take(5) {
                        let _ = store.remove(id);
                    }
                }
                self.store = Some(store);
            }
            Err(error) => panic!("a store does not open again: {error}"),
        }
    }

    /// The power fails.
    pub(crate) fn crash(&mut self, seed: u64) {
        self.kill();
        self.backend.crash(seed);
    }

    /// The process ends without warning: what it wrote is still there, durable or not.
    pub(crate) fn kill(&mut self) {
        self.store = None;
        self.queue.clear();
        self.group.clear();
    }

    /// From now on the disk fails in this way.
    pub(crate) fn trouble(&self, trouble: Trouble) {
        match trouble {
            Trouble::FailSync => self.backend.set_fail_sync(true),
            Trouble::FailWrite => self.backend.set_fail_write(true),
            Trouble::Full => self.backend.set_full(true),
        }
    }

    /// The disk is well again.
    pub(crate) fn mend(&self) {
        self.backend.set_fail_sync(false);
        self.backend.set_fail_write(false);
        self.backend.set_full(false);
    }

    /// Whether the store takes no more writes.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Flips a byte. Which chunks it damaged; `None` when nothing was written yet.
    pub(crate) fn flip(&self, seed: u64) -> Option<BTreeSet<ChunkId>> {
        let good = self.good();
        let flipped = self.backend.flip_byte(seed);
        flipped.then(|| good.difference(&self.good()).copied().collect())
    }

    /// The chunks that the store names.
    pub(crate) fn held(&self) -> Vec<ChunkId> {
        self.store.as_ref().map_or_else(Vec::new, |store| store.list(&[], None, usize::MAX).0)
    }

    /// The chunks whose copies are good.
    fn good(&self) -> BTreeSet<ChunkId> {
        self.held().into_iter().filter(|id| self.durable(id).is_some()).collect()
    }

    pub(crate) fn chunks(&self) -> (u64, u64) {
        self.store.as_ref().map_or((0, 0), |store| (store.chunks(), store.space().free))
    }

    /// The durable bytes of a chunk, if they are good.
    pub(crate) fn durable(&self, id: &ChunkId) -> Option<Bytes> {
        self.store.as_ref()?.read(id).ok()
    }

    pub(crate) fn run(&mut self, now: Instant, op: OpId, effect: Effect) -> Answer {
        let Some(store) = &self.store else { panic!("an effect for a disk without power") };
        match effect {
            Effect::Lookup { id, promise } => Answer::Now(Completion::Found(match promise {
                Some(mark) => store.promise(&id, mark),
                None => store.contains(&id),
            })),
            Effect::List { prefix, after, limit } => {
                let (ids, more) = store.list(&prefix, after.as_ref(), limit);
                Answer::Now(Completion::Listed { ids, more })
            }
            Effect::Verify { id, pieces } => {
                Answer::Now(Completion::Verified(id.matches(pieces.iter().map(|p| &p[..]))))
            }
            Effect::Write { id, pieces, verify, promise } => {
                self.queue.push_back(Write { op, id, pieces, verify, promise });
                if self.group.is_empty() { self.begin(now) } else { Answer::Queued }
            }
            Effect::Read { id } => {
                let result = store.read(&id).map_err(|error| match error {
                    ReadError::Missing => ReadFailure::Missing,
                    ReadError::Corrupt => ReadFailure::Corrupt,
                    ReadError::Io(_) => ReadFailure::Disk,
                });
                let bytes = result.as_ref().map_or(0, |b| b.len() as u64);
                self.reads_done = self.reads_done.max(now) + Span::of_transfer(bytes, self.rate);
                Answer::At(self.reads_done, Completion::Read(result))
            }
            Effect::Discard { ids, mark, since } => {
                let done = store.discard(&ids, mark, since);
                let result = done.failed.map_or(Ok(()), |error| Err(failure(&error)));
                self.failed |= result == Err(WriteFailure::Disk);
                let completion = Completion::Discarded { dropped: done.dropped, bytes: done.bytes, result };
                Answer::At(now + self.sync, completion)
            }
            Effect::Usage => {
                let space = store.space();
                let live = space.written - space.dead;
                let (damaged, damaged_more) = store.damaged();
                let (dead, reclaimed) = (space.dead, space.reclaimed);
                Answer::Now(Completion::Used(Usage { live, dead, reclaimed, damaged, damaged_more }))
            }
            Effect::Scrub { after, max_bytes } => {
                let scrubbed = store.scrub(after, max_bytes);
                // In its turn with the reads.
                self.reads_done = self.reads_done.max(now) + Span::of_transfer(scrubbed.bytes, self.rate);
                let result = scrubbed.failed.map_or(Ok(()), |error| Err(failure(&error)));
                self.failed |= result == Err(WriteFailure::Disk);
                let (next, bytes, bad) = (scrubbed.next, scrubbed.bytes, scrubbed.bad);
                Answer::At(self.reads_done, Completion::Scrubbed { next, bytes, bad, result })
            }
        }
    }

    /// Appends everything that waits; it is durable only at the commit, so a crash in between tears it.
    fn begin(&mut self, now: Instant) -> Answer {
        let Some(store) = &self.store else { return Answer::Queued };
        let mut bytes = 0;
        for write in self.queue.drain(..self.queue.len().min(self.most)) {
            let good = !write.verify || write.id.matches(write.pieces.iter().map(|p| &p[..]));
            let result = if good {
                store.append(&write.id, &write.pieces, write.promise).map_err(|error| failure(&error))
            } else {
                Err(WriteFailure::BadHash)
            };
            bytes += write.pieces.iter().map(Bytes::len).sum::<usize>() as u64;
            self.group.push((write.op, write.id, result));
        }
        Answer::CommitAt(now + self.sync + Span::of_transfer(bytes, self.rate))
    }

    /// Makes the group durable: its completions, and what follows for the next group.
    pub(crate) fn commit(&mut self, now: Instant) -> (Vec<(OpId, Completion)>, Answer) {
        let Some(store) = &self.store else { return (Vec::new(), Answer::Queued) };
        let synced = store.sync().map_err(|error| failure(&error));
        let synced = if self.trusting { Ok(()) } else { synced };
        let free = store.space().free;
        let mut done = Vec::new();
        for (op, id, result) in self.group.drain(..) {
            let result = result.and(synced);
            match result {
                Ok(()) => self.order.push(id),
                Err(WriteFailure::Disk) => self.failed = true,
                Err(WriteFailure::NoSpace | WriteFailure::BadHash) => {}
            }
            done.push((op, Completion::Written { result, free }));
        }
        let next = if self.queue.is_empty() { Answer::Queued } else { self.begin(now) };
        (done, next)
    }
}

fn failure(error: &WriteError) -> WriteFailure {
    match error {
        WriteError::NoSpace | WriteError::FileSystemFull => WriteFailure::NoSpace,
        WriteError::Io(_) => WriteFailure::Disk,
    }
}

/// Which bytes each acknowledged chunk must have.
pub(crate) type Acknowledged = BTreeMap<ChunkId, Bytes>;
