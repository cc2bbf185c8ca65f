//! One target's disk: the real store over a backend that fails as disks do, with time charged, and what a target does to
//! keep its store in room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use protocol::id::{ChunkId, OpId, coded};
use protocol::machine::{Completion, Effect, WriteFailure};
use protocol::redundancy::{Redundancy, Wanted};
use protocol::time::{Instant, Span};
use store::backend::{CrashBackend, Rot, SyncFault};
use store::{
    Bug, Compaction, Group, Options, PreparedSegment, Recovery, Report, Space, Step, Store, StoreError,
    Trouble as Problem, Work, Write, WriteError,
};

use crate::disks::Spoil;
use crate::swarm::Trouble;

/// How a disk is set up.
pub(crate) struct Setup {
    pub(crate) options: Options,
    /// Bytes per second.
    pub(crate) rate: u64,
    /// What a sync takes.
    pub(crate) sync: Span,
    /// Most writes of a group.
    pub(crate) most: usize,
    /// From one check for room to the next.
    pub(crate) check_interval: Span,
    /// From one step of a compaction to the next, besides its time.
    pub(crate) pace: Span,
    pub(crate) bug: Option<Bug>,
    /// Decides what a failed sync drops.
    pub(crate) seed: u64,
}

pub(crate) struct Disk {
    pub(crate) backend: CrashBackend,
    setup: Setup,
    store: Option<Store>,
    queue: VecDeque<Write>,
    /// Whether the store refused a write because the disk failed: it takes no more until it is opened again.
    failed: bool,
    /// Whether a copy that may go stayed, for want of room for its tombstone.
    cramped: bool,
    /// The group that is being made durable.
    group: Option<Group>,
    /// Chunks in the order in which they became durable.
    order: Vec<ChunkId>,
    reads_done: Instant,
    /// A segment whose file is made, and not handed to the writer yet.
    ahead: Option<PreparedSegment>,
    /// A compaction that is under way.
    compaction: Option<Compaction>,
    /// Segments emptied.
    pub(crate) emptied: u32,
}

/// The completions that a store reports.
#[derive(Default)]
struct Completions {
    done: Vec<(OpId, Completion)>,
}

impl Report for Completions {
    fn done(&mut self, op: OpId, completion: Completion) {
        self.done.push((op, completion));
    }

    // Of what went wrong the machine needs only the completions.
    fn trouble(&mut self, _: Problem) {}
}

impl Completions {
    /// Whether the store will take no more writes.
    fn failed(&self) -> bool {
        let result = |completion: &Completion| match completion {
            Completion::Written { result, .. }
            | Completion::Discarded { result, .. }
            | Completion::Scrubbed { result, .. } => *result,
            _ => Ok(()),
        };
        self.done.iter().any(|(_, completion)| result(completion) == Err(WriteFailure::Disk))
    }

    /// Whether there was no room to forget something.
    fn cramped(&self) -> bool {
        let none = |completion: &Completion| {
            matches!(completion, Completion::Discarded { result: Err(WriteFailure::NoSpace), .. })
        };
        self.done.iter().any(|(_, completion)| none(completion))
    }
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
    /// An empty disk.
    pub(crate) fn new(setup: Setup) -> Self {
        let mut disk = Self {
            backend: CrashBackend::seeded(setup.seed),
            setup,
            store: None,
            queue: VecDeque::new(),
            failed: false,
            cramped: false,
            group: None,
            order: Vec::new(),
            reads_done: Instant::ZERO,
            ahead: None,
            compaction: None,
            emptied: 0,
        };
        if let Err(error) = disk.open(false) {
            panic!("an empty disk is refused: {error}");
        }
        disk
    }

    /// Starts, or starts again; with `forget`, the newest records are lost on the way (a planted defect). What the start
    /// found.
    pub(crate) fn open(&mut self, forget: bool) -> Result<Recovery, StoreError> {
        let (store, recovery) =
            Store::open_planted(Box::new(self.backend.clone()), self.setup.options.clone(), self.setup.bug)?;
        if forget {
            for id in self.order.iter().rev().take(5) {
                let _ = store.remove(id);
            }
        }
        self.failed = matches!(recovery.forgetful, Some(WriteError::Io(_)));
        self.store = Some(store);
        Ok(recovery)
    }

    /// The power fails.
    pub(crate) fn crash(&mut self, seed: u64) {
        self.end();
        self.backend.crash(seed);
    }

    /// The process ends without warning: what it wrote is still there, durable or not.
    pub(crate) fn kill(&mut self) {
        self.end();
        self.backend.kill();
    }

    fn end(&mut self) {
        self.store = None;
        self.queue.clear();
        self.group = None;
        self.ahead = None;
        self.compaction = None;
    }

    /// From now on the disk fails in this way.
    pub(crate) fn trouble(&self, trouble: Trouble) {
        match trouble {
            Trouble::FailSync => self.backend.set_sync_fault(Some(SyncFault::Always)),
            Trouble::FailOneSync => self.backend.set_sync_fault(Some(SyncFault::Once)),
            Trouble::FailWrite => self.backend.set_fail_write(true),
            Trouble::FailRead => self.backend.set_fail_read(true),
            Trouble::Full => self.backend.set_full(true),
        }
    }

    /// The disk is well again.
    pub(crate) fn mend(&self) {
        self.backend.set_sync_fault(None);
        self.backend.set_fail_write(false);
        self.backend.set_fail_read(false);
        self.backend.set_full(false);
    }

    /// Whether a copy that may go stayed since this was asked last, for want of room for its tombstone: compaction wins some
    /// before the next check.
    pub(crate) fn was_cramped(&mut self) -> bool {
        std::mem::take(&mut self.cramped)
    }

    /// Whether the store takes no more writes.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Spoils some bytes. Which chunks that damaged, and whether records may be forgotten at the next start; `None` when
    /// there is nothing to spoil.
    pub(crate) fn spoil(&self, seed: u64, spoil: Spoil) -> Option<(BTreeSet<ChunkId>, bool)> {
        let good = self.good();
        let forgets = match spoil {
            Spoil::Rot(spot) => self.backend.rot(seed, spot)? == Rot::Header,
            Spoil::Sector => self.backend.lose_sector(seed).then_some(true)?,
        };
        Some((good.difference(&self.good()).copied().collect(), forgets))
    }

    /// The chunks that the store names.
    pub(crate) fn held(&self) -> Vec<ChunkId> {
        self.store.as_ref().map_or_else(Vec::new, |store| store.list(&[], None, usize::MAX).0)
    }

    /// The pieces that the store names of a coded chunk.
    pub(crate) fn pieces(&self, id: &ChunkId) -> Vec<ChunkId> {
        let prefix = &id.encode()[..=coded::COMMON];
        self.store.as_ref().map_or_else(Vec::new, |store| store.list(prefix, None, usize::MAX).0)
    }

    /// The chunks of which the store names a copy or a piece.
    pub(crate) fn chunks_held(&self) -> BTreeSet<ChunkId> {
        self.held().iter().map(ChunkId::whole).collect()
    }

    /// The chunks whose copies are good.
    pub(crate) fn good(&self) -> BTreeSet<ChunkId> {
        self.held().into_iter().filter(|id| self.durable(id).is_some()).collect()
    }

    pub(crate) fn chunks(&self) -> (u64, u64) {
        self.store.as_ref().map_or((0, 0), |store| (store.chunks(), store.space().free))
    }

    pub(crate) fn space(&self) -> Space {
        self.store.as_ref().map_or_else(Space::default, Store::space)
    }

    /// The length of a chunk that the store names.
    pub(crate) fn names(&self, id: &ChunkId) -> Option<u32> {
        self.store.as_ref()?.contains(id)
    }

    /// The bytes of a chunk on the medium, if they are good.
    pub(crate) fn durable(&self, id: &ChunkId) -> Option<Bytes> {
        let store = self.store.as_ref()?;
        self.backend.inspect(|| store.read(id)).ok()
    }

    /// What a copy is kept for, or a piece.
    pub(crate) fn wanted(&self, id: &ChunkId) -> Option<Wanted> {
        let held = if id.code().is_some() { *self.pieces(id).first()? } else { *id };
        self.store.as_ref()?.wanted(&held)
    }

    /// How a chunk is kept of which a copy or a piece is here, when the map says this.
    pub(crate) fn redundancy(&self, id: &ChunkId, map: Redundancy) -> Option<Redundancy> {
        self.wanted(id).map(|wanted| id.redundancy(wanted, map))
    }

    /// Scrubs everything: the bad copies.
    pub(crate) fn scrub(&self) -> Vec<ChunkId> {
        let Some(store) = &self.store else { return Vec::new() };
        let (mut bad, mut after) = (Vec::new(), None);
        loop {
            let scrubbed = store.scrub(after, u64::MAX);
            bad.extend(scrubbed.bad);
            after = scrubbed.next;
            if after.is_none() {
                return bad;
            }
        }
    }

    pub(crate) fn run(&mut self, now: Instant, op: OpId, effect: Effect) -> Answer {
        let Some(store) = &self.store else { panic!("an effect for a disk without power") };
        // A discard's syncs are its own: it does not wait for a group.
        let alone = matches!(effect, Effect::Discard { .. });
        let (mut completions, rate) = (Completions::default(), self.setup.rate);
        match store.work(op, effect) {
            Work::Done(completion) => Answer::Now(completion),
            Work::Write(write) if alone => {
                store.begin_group(std::iter::once(write), 1, &mut completions);
                self.at(now + self.setup.sync, completions)
            }
            Work::Write(write) => {
                self.queue.push_back(write);
                if self.group.is_none() { self.begin(now) } else { Answer::Queued }
            }
            Work::Read(read) => {
                // Reads and scrubs take their turns.
                let bytes = store.answer(read, &mut completions);
                self.reads_done = self.reads_done.max(now) + Span::of_transfer(bytes, rate);
                self.at(self.reads_done, completions)
            }
        }
    }

    /// The only completion, at a later time.
    fn at(&mut self, at: Instant, mut completions: Completions) -> Answer {
        self.failed |= completions.failed();
        self.cramped |= completions.cramped();
        match completions.done.pop() {
            Some((_, completion)) => Answer::At(at, completion),
            None => Answer::Queued,
        }
    }

    /// Appends everything that waits; it is durable only at the commit, so a crash in between tears it.
    fn begin(&mut self, now: Instant) -> Answer {
        let Some(store) = &self.store else { return Answer::Queued };
        let waiting = std::iter::from_fn(|| self.queue.pop_front());
        let group = store.begin_group(waiting, self.setup.most, &mut Completions::default());
        let takes = self.setup.sync + Span::of_transfer(group.bytes(), self.setup.rate);
        self.group = Some(group);
        Answer::CommitAt(now + takes)
    }

    /// Makes the group durable: its completions, and what follows for the next group.
    pub(crate) fn commit(&mut self, now: Instant) -> (Vec<(OpId, Completion)>, Answer) {
        let (Some(store), Some(group)) = (&self.store, self.group.take()) else { return (Vec::new(), Answer::Queued) };
        let (chunks, mut completions): (Vec<ChunkId>, _) = (group.chunks().collect(), Completions::default());
        store.end_group(group, &mut completions);
        self.failed |= completions.failed();
        let durable =
            |(_, completion): &(OpId, Completion)| matches!(completion, Completion::Written { result: Ok(()), .. });
        self.order.extend(chunks.iter().zip(&completions.done).filter(|(_, done)| durable(done)).map(|(id, _)| *id));
        let next = if self.queue.is_empty() { Answer::Queued } else { self.begin(now) };
        (completions.done, next)
    }

    /// Whether the writer wants a segment made ahead, and none is being made.
    pub(crate) fn wants_segment(&self) -> bool {
        self.ahead.is_none() && self.store.as_ref().is_some_and(Store::wants_segment)
    }

    /// Does the next thing that gives the store room, in the daemon's order: a segment ahead, then a step of a compaction.
    /// When to come again.
    pub(crate) fn keep(&mut self, now: Instant) -> Instant {
        let Setup { sync, rate, check_interval, pace, .. } = self.setup;
        let Some(store) = &self.store else { return now + check_interval };
        if let Some(made) = self.ahead.take() {
            // A file that cannot be removed stays till the next start.
            let _ = store.adopt_segment(made);
        } else if let Ok(Some(made)) = store.make_segment() {
            // Its file is durable by then; the writer may be faster.
            self.ahead = Some(made);
            return now + sync;
        }
        let mut compaction = self.compaction.take().unwrap_or_else(|| store.compaction());
        match store.step(&mut compaction) {
            Ok(Step::Moved(bytes)) => {
                self.compaction = Some(compaction);
                now + sync + pace + Span::of_transfer(2 * bytes, rate)
            }
            Ok(step) => {
                self.emptied += u32::from(matches!(step, Step::Won(_)));
                now + check_interval
            }
            Err(error) => {
                self.failed |= WriteFailure::from(&error) == WriteFailure::Disk;
                now + check_interval
            }
        }
    }
}

/// Which bytes each acknowledged chunk must have.
pub(crate) type Acknowledged = BTreeMap<ChunkId, Bytes>;
