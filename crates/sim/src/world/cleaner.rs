//! Cleaners of chunks that initiators put: what refers to a chunk is a row of a catalog that the world keeps, or a
//! manifest that is put after it. An owner that forgets a chunk lets it go.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use protocol::cleaner::{Cleaner, Unfinished, Want};
use protocol::id::{ChunkId, ChunkKind, NodeId};
use protocol::initiator::{self, Busy, Found, Query, QueryAnswer};
use protocol::rng::Rng;
use protocol::time::{Instant, Span};

use super::promise::Promise;
use super::{NodeMachine, Scheduled, World};
use crate::cleaning::Cleaning;
use crate::disk::Disk;
use crate::planted::PlantedBug;
use crate::swarm::Scenario;
use crate::trace;

/// Passes without any work beside them, after which nothing may be left to clean: the first condemns, the second drops. One
/// during which a target had no room to forget is not counted, nor is one during which a copy was made: that stays until the next pass
/// but one.
const PASSES: u32 = 2;
/// Chunks that were forgotten last.
const FORGOTTEN: usize = 32;
/// Between one pass and the next.
const PAUSE: Span = Span::from_millis(1);

/// What happens around cleaners.
pub(super) enum Event {
    /// A cleaner does what it wants next.
    GoOn(NodeId, Done),
    /// Something refers to a chunk that an initiator has put: a row, or a manifest that it puts.
    Refer(NodeId, Reference, bool),
    /// An initiator is asked for something more.
    Feed(NodeId),
    /// All targets but so many are cut off.
    Outage(u32),
}

/// What a cleaner has done.
#[derive(Clone, Copy)]
pub(super) enum Done {
    Began,
    Rested,
    Read,
}

/// A chunk that a row or a manifest refers to.
#[derive(Clone)]
pub(super) struct Reference {
    chunk: ChunkId,
    bytes: Bytes,
    promise: Arc<Promise>,
    /// When its put began.
    begun: Instant,
}

struct Worker {
    machine: Cleaner,
    /// What this pass found to be referred to, and the manifests that may go.
    referenced: BTreeSet<ChunkId>,
    garbage: Vec<(ChunkId, Vec<NodeId>)>,
    /// When the pass began.
    began: Instant,
}

pub(super) struct State {
    settings: Cleaning,
    /// Quiet passes that there are to be.
    passes: u32,
    rng: Rng,
    workers: BTreeMap<NodeId, Worker>,
    /// Chunks that the catalog has.
    rows: BTreeSet<ChunkId>,
    /// By their manifests.
    references: BTreeMap<ChunkId, Reference>,
    /// Manifests that count no more.
    removed: BTreeSet<ChunkId>,
    /// Payload chunks that are counted on, in the order in which that began.
    counted_on: VecDeque<ChunkId>,
    /// The newest first, and when.
    forgotten: VecDeque<(ChunkId, Instant)>,
    /// Manifests that are still to be put.
    coming: u32,
    /// Since when nothing is asked for any more.
    quiet: Option<Instant>,
    quiet_passes: u32,
}

impl State {
    pub(super) fn new(settings: Cleaning, scenario: &Scenario) -> Self {
        let rng = Rng::new(scenario.seed).fork(61);
        let passes = scenario.quiet_passes(PASSES);
        let (workers, rows, references, removed) = Default::default();
        let (counted_on, forgotten) = Default::default();
        let (coming, quiet, quiet_passes) = (0, None, 0);
        Self {
            settings,
            passes,
            rng,
            workers,
            rows,
            references,
            removed,
            counted_on,
            forgotten,
            coming,
            quiet,
            quiet_passes,
        }
    }

    pub(super) fn storm(&self) -> Option<Span> {
        self.settings.storm()
    }

    /// Whether all that goes should be gone.
    pub(super) fn is_done(&self) -> bool {
        self.quiet_passes >= self.passes
    }

    /// Whether this is a manifest that names another chunk: only the initiator that put that chunk puts it.
    pub(super) fn names(&self, id: &ChunkId) -> bool {
        self.references.contains_key(id)
    }
}

impl World<'_> {
    pub(super) fn add_cleaners(&mut self) {
        let Some(settings) = self.scenario.cleaning else { return };
        self.cleaning = Some(State::new(settings, self.scenario));
        let bug = match self.scenario.planted {
            Some(PlantedBug::Cleaner(bug)) => Some(bug),
            _ => None,
        };
        for _ in 0..settings.cleaners {
            self.add_initiator();
            let (Some(node), Some(cleaning)) = (self.initiators.pop(), &mut self.cleaning) else { return };
            let machine = Cleaner::new(false).with_bug(bug);
            let worker = Worker { machine, referenced: BTreeSet::new(), garbage: vec![], began: self.now };
            cleaning.workers.insert(node, worker);
            self.go_on_after(node, Span::ZERO, Done::Began);
        }
        let storm = settings.storm().unwrap_or(super::STORM).as_nanos();
        for _ in 0..settings.restarts {
            let Some(State { rng, .. }) = &mut self.cleaning else { return };
            let node = NodeId(1 + rng.below(u64::from(self.scenario.targets)) as u32);
            let at = self.now + Span::from_nanos(rng.below(storm));
            let down = Span::from_micros(rng.below(2_000));
            self.will_be_down(node, at, down);
        }
        if let Some((at, left)) = settings.outage {
            self.push(self.now + at, Scheduled::Cleaner(Event::Outage(left)));
        }
    }

    fn go_on_after(&mut self, node: NodeId, span: Span, done: Done) {
        self.push(self.now + span, Scheduled::Cleaner(Event::GoOn(node, done)));
    }

    pub(super) fn cleaner_happens(&mut self, event: Event) {
        match event {
            Event::GoOn(node, done) => {
                if let Some(worker) = self.worker(node) {
                    match done {
                        Done::Began => {}
                        Done::Rested => worker.machine.rested(),
                        Done::Read => worker.machine.read(1, std::mem::take(&mut worker.garbage)),
                    }
                    self.go_on_cleaning(node);
                }
            }
            Event::Refer(_, reference, true) => self.add_row(reference),
            Event::Refer(initiator, reference, false) => self.put_manifest(initiator, reference),
            Event::Feed(initiator) if self.initiators.contains(&initiator) => self.feed_some(initiator, 1),
            Event::Feed(_) => {}
            Event::Outage(left) => self.outage(left),
        }
    }

    fn worker(&mut self, node: NodeId) -> Option<&mut Worker> {
        self.cleaning.as_mut()?.workers.get_mut(&node)
    }

    /// Whether all that may go is gone. None goes while a target is silent, for good or not.
    pub(super) fn is_cleaned(&self) -> bool {
        self.cleaning.as_ref().is_none_or(State::is_done) || !self.dead_in_map().is_empty()
    }

    pub(super) fn is_cleaner(&self, node: NodeId) -> bool {
        self.cleaning.as_ref().is_some_and(|cleaning| cleaning.workers.contains_key(&node))
    }

    fn outage(&mut self, left: u32) {
        if self.healed {
            return;
        }
        let mut targets: Vec<NodeId> = self.nodes.keys().filter(|id| !id.is_initiator()).copied().collect();
        let Some(cleaning) = &mut self.cleaning else { return };
        for _ in 0..left.min(targets.len() as u32) {
            targets.swap_remove(cleaning.rng.below(targets.len() as u64) as usize);
        }
        self.net.isolated.extend(targets);
        self.note(51, NodeId(0), left as usize, || format!("all targets but {left} are cut off"));
    }

    /// Does what a cleaner wants.
    fn go_on_cleaning(&mut self, node: NodeId) {
        let hurries = self.scenario.planted == Some(PlantedBug::HurryCleaner);
        let Some(State { settings, rows, workers, .. }) = &mut self.cleaning else { return };
        let Some(worker) = workers.get_mut(&node) else { return };
        let query = match worker.machine.want() {
            Want::Mark => Query::Mark,
            Want::Rest => {
                let grace = if hurries { Span::ZERO } else { settings.grace };
                return self.go_on_after(node, grace, Done::Rested);
            }
            Want::Read { .. } => {
                // Then all manifests.
                worker.referenced.clone_from(rows);
                let prefix = vec![ChunkKind::Manifest as u8];
                Query::List { prefix }
            }
            Want::List { prefix } => Query::List { prefix },
            Want::Discard(discard) => Query::Discard(discard),
            Want::Over(pass) => {
                worker.machine.next_pass();
                let began = std::mem::replace(&mut worker.began, self.now + PAUSE);
                let report = object::clean::Report { pass, problem: None };
                self.note(49, node, report.pass.copies as usize, || trace::objects::pass_over(&report));
                self.go_on_after(node, PAUSE, Done::Began);
                return self.quiet_pass_over(node, began, report.pass.unfinished.is_none());
            }
        };
        self.input(node, None, Some(initiator::Request::Query { handle: 0, query }));
    }

    /// When nothing is asked for any more, one cleaner goes on for a while.
    fn quiet_pass_over(&mut self, node: NodeId, began: Instant, finished: bool) {
        let working = !self.healed || !self.open.is_empty() || self.puts_left + self.gets_left > 0;
        // What was stalled before the heal may count on chunks when it arrives.
        let finished = finished && self.net.is_through(began);
        let finished = !self.was_cramped() && finished && self.whole.made.is_none_or(|made| began > made);
        let Some(cleaning) = &mut self.cleaning else { return };
        if working || cleaning.coming > 0 {
            return;
        }
        if let Some(quiet) = cleaning.quiet {
            cleaning.quiet_passes += u32::from(finished && began >= quiet);
            return;
        }
        cleaning.quiet = Some(self.now);
        cleaning.workers.retain(|other, _| *other == node);
        // So that much is condemned and dropped while segments are emptied.
        (0..cleaning.counted_on.len() / 2).for_each(|_| self.forget_one());
    }

    /// Whether any target had no room to forget what may go, since this was asked last.
    pub(super) fn was_cramped(&mut self) -> bool {
        let targets = self.nodes.values_mut().filter_map(|node| match &mut node.machine {
            NodeMachine::Target(_, disk) => Some(disk),
            _ => None,
        });
        // Each of them is asked, or what one had to say now would count the next time.
        targets.map(Disk::was_cramped).max().unwrap_or(false)
    }

    /// What a cleaner's initiator says.
    pub(super) fn cleaner_event(&mut self, id: NodeId, event: initiator::Event) {
        use initiator::Event;
        match event {
            Event::Query { answer: QueryAnswer::Mark(result), .. } => {
                self.note(47, id, 0, || trace::objects::marked(&result));
                self.worker(id).into_iter().for_each(|worker| worker.machine.marked(result.clone()));
            }
            Event::Query { answer: QueryAnswer::Discard(result), .. } => {
                self.note(48, id, 0, || trace::objects::discarded(&result));
                self.worker(id).into_iter().for_each(|worker| worker.machine.discarded(result.clone()));
            }
            Event::Query { answer: QueryAnswer::List(result), .. } => {
                self.note(45, id, result.as_ref().map_or(0, |found| found.chunks.len()), || trace::list(&result));
                let Some(worker) = self.worker(id) else { return };
                if matches!(worker.machine.want(), Want::Read { .. }) {
                    return self.read_manifests(id, result);
                }
                let referenced = &worker.referenced;
                worker.machine.listed(result, |chunk| referenced.contains(chunk));
            }
            _ => return,
        }
        self.go_on_cleaning(id);
    }

    /// The manifests are listed: what they name is referred to.
    fn read_manifests(&mut self, id: NodeId, result: Result<Found, Busy>) {
        let Some(State { settings, references, removed, workers, .. }) = &mut self.cleaning else { return };
        let Some(worker) = workers.get_mut(&id) else { return };
        match result {
            Ok(found) if !worker.machine.lacks(&found.silent) => {
                for (manifest, holders) in found.chunks {
                    if removed.contains(&manifest) {
                        worker.garbage.push((manifest, holders));
                    } else if let Some(reference) = references.get(&manifest) {
                        worker.referenced.insert(reference.chunk);
                    }
                }
                let reading = settings.reading;
                return self.go_on_after(id, reading, Done::Read);
            }
            Ok(found) => worker.machine.stop(Unfinished::Silent(found.silent)),
            Err(Busy) => worker.machine.stop(Unfinished::Busy),
        }
        self.go_on_cleaning(id);
    }

    /// A put ended well: whether somebody counts on its chunk from now on. When there are cleaners, a row refers to it, or a
    /// manifest that is put next; and what comes too late may be cleaned away.
    pub(super) fn is_counted_on(
        &mut self,
        by: NodeId,
        id: ChunkId,
        bytes: &Bytes,
        promise: &Arc<Promise>,
        begun: Instant,
    ) -> bool {
        let now = self.now;
        let Some(State { settings, rng, references, forgotten, coming, .. }) = &mut self.cleaning else { return true };
        if let Some(reference) = references.get(&id).cloned() {
            let in_time = now.since(reference.begun) < settings.limit();
            if in_time {
                self.count_on(reference);
            }
            return in_time;
        }
        if id.kind() == ChunkKind::Manifest {
            return true;
        }
        let left = settings.limit().less(now.since(begun));
        if left == Span::ZERO {
            forgotten.truncate(FORGOTTEN - 1);
            forgotten.push_front((id, now));
            return false;
        }
        *coming += 1;
        let after = if rng.chance(2, 3) { Span::from_nanos(rng.below(left.as_nanos())) } else { Span::ZERO };
        let is_row = rng.chance(1, 3);
        let reference = Reference { chunk: id, bytes: bytes.clone(), promise: promise.clone(), begun };
        self.push(now + after, Scheduled::Cleaner(Event::Refer(by, reference, is_row)));
        false
    }

    fn add_row(&mut self, reference: Reference) {
        let Some(State { rows, coming, .. }) = &mut self.cleaning else { return };
        *coming -= 1;
        rows.insert(reference.chunk);
        self.count_on(reference);
    }

    /// What refers to a chunk is there, and its put is acknowledged.
    fn count_on(&mut self, Reference { chunk, bytes, promise, .. }: Reference) {
        self.acknowledged.insert(chunk, bytes);
        self.promise(chunk, promise);
        self.cleaning.iter_mut().for_each(|cleaning| cleaning.counted_on.push_back(chunk));
    }

    fn put_manifest(&mut self, initiator: NodeId, what: Reference) {
        let Some(State { references, coming, .. }) = &mut self.cleaning else { return };
        *coming -= 1;
        if !self.initiators.contains(&initiator) {
            return;
        }
        self.next_handle += 1;
        let handle = self.next_handle;
        let payload = Bytes::from([&what.chunk.encode()[..], &handle.to_le_bytes()].concat());
        let id = ChunkId::of_manifest("named", handle, &payload);
        references.insert(id, what);
        let (asked, request) = self.ask_put(initiator, handle, (id, payload), None, true);
        self.open.insert((initiator, handle), asked);
        self.input(initiator, None, Some(request));
    }

    /// Sometimes nobody counts on a chunk any more.
    pub(super) fn forget_some(&mut self) {
        let Some(State { settings, rng, .. }) = &mut self.cleaning else { return };
        if rng.chance(settings.forgets, 1_000) {
            self.forget_one();
        }
    }

    fn forget_one(&mut self) {
        let Some(State { rng, rows, references, removed, counted_on, forgotten, .. }) = &mut self.cleaning else {
            return;
        };
        if counted_on.is_empty() {
            return;
        }
        // Rather old ones: they are in segments together.
        let among = if rng.chance(2, 3) { counted_on.len().min(4) } else { counted_on.len() };
        let Some(chunk) = counted_on.remove(rng.below(among as u64) as usize) else { return };
        counted_on.retain(|other| *other != chunk);
        rows.remove(&chunk);
        forgotten.truncate(FORGOTTEN - 1);
        forgotten.push_front((chunk, self.now));
        let of =
            references.iter().filter(|(id, reference)| reference.chunk == chunk && self.acknowledged.contains_key(id));
        let mut gone: Vec<ChunkId> = of.map(|(id, _)| *id).collect();
        removed.extend(&gone);
        gone.push(chunk);
        for id in &gone {
            self.acknowledged.remove(id);
            self.promises.remove(id);
            self.open.values_mut().for_each(|asked| asked.forget(id));
        }
        self.note(50, NodeId(0), gone.len(), || format!("nobody counts on {chunk:?} any more"));
    }

    /// A chunk that was forgotten, or never counted on: rather one that is about to go.
    pub(super) fn draw_forgotten(&mut self) -> Option<(ChunkId, Bytes)> {
        let now = self.now;
        let State { settings, rng, forgotten, .. } = self.cleaning.as_mut()?;
        if !rng.chance(1, 3) {
            return None;
        }
        let is_due = |at: Instant| (settings.grace..settings.grace.times(4)).contains(&now.since(at));
        let due: Vec<ChunkId> = forgotten.iter().filter(|(_, at)| is_due(*at)).map(|(id, _)| *id).collect();
        let nth = rng.below(due.len().max(1) as u64) as usize;
        let id = due.get(nth).or_else(|| forgotten.front().map(|(id, _)| id)).copied()?;
        forgotten.retain(|(other, _)| *other != id);
        self.contents.get(&id).map(|bytes| (id, bytes.clone()))
    }

    /// Whether all copies were harmed of all manifests that name a chunk: cleaners rightly take it for unreferenced.
    pub(super) fn lost_its_references(&self, id: &ChunkId) -> bool {
        let Some(State { rows, references, removed, .. }) = &self.cleaning else { return false };
        if rows.contains(id) {
            return false;
        }
        let of =
            references.iter().filter(|(manifest, reference)| reference.chunk == *id && !removed.contains(manifest));
        let mut manifests = of.filter_map(|(manifest, _)| Some((*manifest, self.promises.get(manifest)?))).peekable();
        let is_lost = |(manifest, promise): (ChunkId, &Arc<Promise>)| {
            let holders = self.holders_since(manifest, promise);
            holders.iter().all(|holder| self.harmed(manifest, *holder).is_some())
        };
        manifests.peek().is_some() && manifests.all(is_lost)
    }

    /// No target holds a chunk that nothing refers to.
    pub(super) fn check_cleaned(&mut self) {
        let Some(cleaning) = &self.cleaning else { return };
        let names = |_: &Disk, id: &ChunkId| {
            let stays = id.kind() != ChunkKind::Payload && !cleaning.removed.contains(id);
            stays.then(|| cleaning.references.get(id).map(|reference| reference.chunk).into_iter().collect())
        };
        if let Some(why) = self.left_over(cleaning.rows.clone(), cleaning.passes, names) {
            self.fail(why);
        }
    }
}
