//! Disks that fail, machines that stop in the midst of a change to one, and stores that must be the same when they are
//! opened again.

use std::collections::{BTreeMap, BTreeSet};

use protocol::id::{ChunkId, NodeId};
use protocol::initiator::PutError;
use protocol::rng::Rng;
use protocol::target;
use protocol::time::{Instant, Span};
use store::StoreError;
use store::backend::{Backend, Spot};

use super::{NodeMachine, STORM, Scheduled, World};
use crate::disk::Disk;
use crate::disks::Spoil;
use crate::excuse::Excuse;
use crate::trace;

/// Most changes to a disk after which a machine stops.
const CHANGES: u64 = 40;
/// Most changes after which it stops while it recovers.
const RECOVERING: u64 = 10;

/// What happens to disks.
pub(super) enum Event {
    /// A target checks for room in its store, unless it was called to do so since.
    Keep(NodeId, u64),
    /// A machine stops after so many changes to its disk.
    Stop(NodeId, u64),
    Spoil(NodeId, u64, Spoil),
}

/// What the world knows of its disks.
pub(super) struct State {
    rng: Rng,
    /// The target that stops again and again, and how often it still does while it recovers.
    restless: Option<(NodeId, u32)>,
    /// Counts the checks for room.
    checks: BTreeMap<NodeId, u64>,
    /// Targets some of whose bytes were spoiled.
    spoiled: BTreeSet<NodeId>,
    /// Targets whose disk did not read at some time: what it did not read is not counted as a copy until it reads it again.
    pub(super) failed_reads: BTreeSet<NodeId>,
    /// Those of the spoiled whose next start may overlook records: what was dropped may be back.
    forgetful: BTreeSet<NodeId>,
    /// When targets had no room last.
    full: BTreeMap<NodeId, Instant>,
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        let rng = Rng::new(seed).fork(21);
        let (checks, full, spoiled, failed_reads, forgetful) = Default::default();
        Self { rng, restless: None, checks, spoiled, failed_reads, forgetful, full }
    }
}

impl World<'_> {
    /// Schedules what happens to disks; bytes are spoiled on `victim`.
    pub(super) fn storm_disks(&mut self, victim: NodeId) {
        let disks = self.scenario.disks.clone();
        let targets = u64::from(self.scenario.targets);
        let restless = NodeId(1 + self.disks.rng.below(targets) as u32);
        self.disks.restless = (disks.restless > 0).then_some((restless, disks.restless));
        for n in 0..disks.stops + disks.restless {
            let any = NodeId(1 + self.disks.rng.below(targets) as u32);
            let node = if n < disks.stops { any } else { restless };
            let changes = self.disks.rng.below(CHANGES);
            self.push_disks(STORM, Event::Stop(node, changes));
        }
        for spoil in disks.spoils {
            let seed = self.disks.rng.next_u64();
            self.push_disks(STORM, Event::Spoil(victim, seed, spoil));
        }
    }

    fn push_disks(&mut self, within: Span, event: Event) {
        let at = self.now + Span::from_nanos(self.disks.rng.below(within.as_nanos()));
        self.push(at, Scheduled::Disks(event));
    }

    pub(super) fn disks(&mut self, event: Event) {
        match event {
            Event::Keep(id, check) => self.keep(id, check),
            Event::Stop(id, changes) => {
                if let Some(NodeMachine::Target(_, disk)) = self.nodes.get(&id).map(|n| &n.machine)
                    && !self.healed
                {
                    disk.backend.stop_after(changes);
                }
            }
            Event::Spoil(id, seed, spoil) => {
                self.spoil(id, seed, spoil);
                if matches!(spoil, Spoil::Rot(Spot::Header | Spot::Tail)) {
                    self.start_again_soon(id);
                }
            }
        }
    }

    /// Often a target starts twice after bytes were spoiled that a start reads, with some writes between.
    fn start_again_soon(&mut self, id: NodeId) {
        if !self.disks.rng.chance(1, 2) {
            return;
        }
        let mut at = self.now;
        for _ in 0..2 {
            at += Span::from_micros(1 + self.disks.rng.below(30_000));
            let down = Span::from_micros(self.disks.rng.below(2_000));
            self.will_be_down(id, at, down);
        }
    }

    /// What the operator does about sectors that cannot be read, as a manifest that nobody can read stops all cleaning.
    pub(super) fn give_up_sectors(&mut self) {
        for node in self.nodes.values() {
            if let NodeMachine::Target(_, disk) = &node.machine {
                disk.backend.give_up_unreadable();
            }
        }
    }

    fn restart_soon(&mut self, id: NodeId) {
        let at = self.now + Span::from_nanos(self.disks.rng.below(STORM.as_nanos() / 8));
        self.push(at, Scheduled::Restart(id));
    }

    pub(super) fn spoil(&mut self, id: NodeId, seed: u64, spoil: Spoil) {
        let Some(NodeMachine::Target(_, disk)) = self.nodes.get(&id).map(|n| &n.machine) else { return };
        if let Some((hit, forgets)) = disk.spoil(seed, spoil) {
            self.note(9, id, hit.len(), || format!("{}: it damages {}", trace::spoil(spoil), trace::chunks(&hit)));
            self.note_damaged(id, hit);
            self.outcome.disks.spoiled += 1;
            self.disks.spoiled.insert(id);
            if forgets {
                self.disks.forgetful.insert(id);
            }
        }
    }

    /// A target's copy of a chunk goes bad.
    pub(super) fn spoil_chunk(&mut self, id: NodeId, chunk: ChunkId) {
        let Some(NodeMachine::Target(_, disk)) = self.nodes.get(&id).map(|node| &node.machine) else { return };
        if disk.backend.rot_chunk(&chunk) {
            self.note_damaged(id, [chunk]);
            self.disks.spoiled.insert(id);
        }
    }

    fn note_damaged(&mut self, id: NodeId, pieces: impl IntoIterator<Item = ChunkId>) {
        for piece in pieces {
            self.damaged.insert((piece.whole(), id));
            self.rotten.insert((piece, id));
        }
    }

    /// A target has its store maintained, from now on.
    pub(super) fn keep_room(&mut self, id: NodeId) {
        let check = self.disks.checks.entry(id).or_default();
        *check += 1;
        let check = *check;
        self.push(self.now, Scheduled::Disks(Event::Keep(id, check)));
    }

    fn keep(&mut self, id: NodeId, check: u64) {
        let now = self.now;
        let Some(NodeMachine::Target(_, disk)) = self.nodes.get_mut(&id).map(|n| &mut n.machine) else { return };
        if self.disks.checks.get(&id) != Some(&check) {
            return;
        }
        let before = disk.space().free;
        let emptied = disk.emptied;
        let (next, free) = (disk.keep(now), disk.space().free);
        self.outcome.disks.emptied += disk.emptied - emptied;
        self.note_room(id, before.min(free));
        if !self.has_stopped(id) {
            self.push(next, Scheduled::Disks(Event::Keep(id, check)));
            self.request(id, target::Request::Free(free));
        }
    }

    /// Whether the target's machine stopped in the midst of what its disk was asked last. Then the power has failed, or only
    /// the process has ended.
    pub(super) fn has_stopped(&mut self, id: NodeId) -> bool {
        let Some(NodeMachine::Target(_, disk)) = self.nodes.get(&id).map(|n| &n.machine) else { return false };
        if !disk.backend.has_stopped() {
            return false;
        }
        let seed = self.disks.rng.next_u64();
        self.outcome.disks.stopped += 1;
        self.note(18, id, 0, || "stops in the midst of a change to its disk".to_owned());
        self.take_down(id, seed.is_multiple_of(2).then_some(seed));
        self.restart_soon(id);
        true
    }

    /// Opens the store of a target that starts. Whether it starts.
    pub(super) fn open(&mut self, id: NodeId, disk: &mut Disk, forget: bool) -> bool {
        if let Some((_, left)) = self.disks.restless.as_mut().filter(|(node, left)| *node == id && *left > 0)
            && !self.healed
        {
            *left -= 1;
            disk.backend.stop_after(self.disks.rng.below(RECOVERING));
        }
        match disk.open(forget) {
            Ok(_) if disk.backend.has_stopped() => {
                self.stop_starting(id, disk);
                false
            }
            Ok(found) if found.damaged.is_empty() && found.gaps.is_empty() || self.disks.spoiled.contains(&id) => {
                if self.disks.forgetful.contains(&id) {
                    // What is back after it was dropped may have rotted meanwhile.
                    let good = disk.good();
                    let bad: Vec<ChunkId> = disk.held().into_iter().filter(|chunk| !good.contains(chunk)).collect();
                    self.note_damaged(id, bad);
                }
                true
            }
            Ok(found) => {
                let (chunks, places) = (trace::chunks(&found.damaged), found.gaps.len());
                self.fail(format!("{id} takes {chunks} and {places} places for damaged, and nothing was"));
                false
            }
            Err(error) => {
                self.start_failed(id, disk, &error);
                false
            }
        }
    }

    fn start_failed(&mut self, id: NodeId, disk: &mut Disk, error: &StoreError) {
        self.note(19, id, 0, || format!("does not start: {error}"));
        if disk.backend.has_stopped() {
            return self.stop_starting(id, disk);
        }
        let given_up = disk.backend.give_up_unreadable();
        self.outcome.disks.refused += 1;
        match (self.healed, given_up) {
            (false, _) => self.restart_soon(id),
            (true, true) => self.push(self.now, Scheduled::Restart(id)),
            (true, false) => self.fail(format!("the store of {id} does not open: {error}")),
        }
    }

    fn stop_starting(&mut self, id: NodeId, disk: &mut Disk) {
        self.outcome.disks.stopped_starting += 1;
        let seed = self.disks.rng.next_u64();
        if seed.is_multiple_of(2) {
            disk.crash(seed)
        } else {
            disk.kill()
        }
        self.restart_soon(id);
    }

    /// Keeps in mind when a target has no room, besides what it holds for others. A rest of a segment that is shorter than a
    /// chunk is of no use.
    pub(super) fn note_room(&mut self, id: NodeId, free: u64) {
        let Some(NodeMachine::Target(machine, _)) = self.nodes.get(&id).map(|n| &n.machine) else { return };
        let chunks = machine.in_progress() as u64 + 1;
        if free < chunks * self.scenario.largest + 2 * self.scenario.disks.segment {
            self.disks.full.insert(id, self.now);
        }
    }

    fn free(&self, id: NodeId) -> u64 {
        match self.nodes.get(&id).map(|node| &node.machine) {
            Some(NodeMachine::Target(_, disk)) => disk.space().free,
            _ => u64::MAX,
        }
    }

    /// When that was, by the clock of a node that may have jumped since.
    pub(super) fn began(&self, by: NodeId, local: Instant) -> Instant {
        let taken = self.nodes.get(&by).map_or(Span::ZERO, |node| node.local(self.now).since(local));
        Instant::from_nanos(self.now.as_nanos().saturating_sub(taken.as_nanos()))
    }

    /// Whether a put that `by` began then may fail for want of room: all those that reported so had none.
    pub(super) fn was_full(&mut self, id: ChunkId, error: &PutError, by: NodeId, since: Instant) -> bool {
        let PutError::TooFewCopies { full, .. } = error else { return false };
        for id in full {
            self.note_room(*id, self.free(*id));
        }
        // Checked after every group of writes, and in this interval otherwise.
        let had_none =
            |id: &NodeId| self.disks.full.get(id).is_some_and(|at| *at + self.scenario.disks.check_interval >= since);
        let excused = !full.is_empty() && full.iter().all(had_none);
        if excused {
            self.excuse(Excuse::Full, by, id);
        }
        excused
    }

    /// Every store holds the same when it is opened again, after a stop and after a power cut, and names good copies only.
    pub(super) fn check_stores(&mut self) {
        let mut failure = None;
        for (id, node) in &mut self.nodes {
            let NodeMachine::Target(_, disk) = &mut node.machine else { continue };
            let is_known = |chunk: &ChunkId| self.rotten.contains(&(*chunk, *id));
            let forgetful = self.disks.forgetful.contains(id);
            let found = check_store(disk, self.disks.rng.next_u64(), forgetful, is_known);
            failure = failure.or(found.err().map(|why| format!("{id}: {why}")));
        }
        failure.into_iter().for_each(|why| self.fail(why));
    }
}

fn check_store(disk: &mut Disk, seed: u64, forgetful: bool, is_known: impl Fn(&ChunkId) -> bool) -> Result<(), String> {
    disk.mend();
    disk.backend.give_up_unreadable();
    let bad = disk.scrub();
    if let Some(wrong) = bad.iter().find(|chunk| !is_known(chunk)) {
        return Err(format!("a scrub took {wrong:?} for damaged, which is not"));
    }
    let mut held = check_books(disk)?;
    let mut cut = None;
    // There is no index to take away: every start makes it from the segments.
    for what in ["a stop", "a power cut"] {
        let loses_power = cut.is_some();
        match cut {
            Some(seed) => disk.crash(seed),
            None => disk.kill(),
        }
        cut = Some(seed);
        disk.open(false).map_err(|error| format!("does not open after {what}: {error}"))?;
        for bad in disk.scrub() {
            // What only the page cache had well goes with the power, where it is known to be damaged on the medium.
            let was_cached = loses_power && is_known(&bad);
            match held.remove(&bad) {
                true if !was_cached => {
                    return Err(format!("held a good copy of {bad:?} before {what}, and has a bad one after it"));
                }
                false if !forgetful => return Err(format!("{bad:?} was dropped, and is back after {what}")),
                _ => {}
            }
        }
        let now = check_books(disk)?;
        if let Some(lost) = held.difference(&now).next() {
            return Err(format!("held {lost:?} before {what}, and does not after it"));
        }
        if let Some(back) = now.difference(&held).next().filter(|_| !forgetful) {
            return Err(format!("{back:?} was dropped, and is back after {what}"));
        }
        held = now;
    }
    Ok(())
}

/// What a store names is good, and its figures are those of its files and records. What it names.
fn check_books(disk: &Disk) -> Result<BTreeSet<ChunkId>, String> {
    let held: BTreeSet<ChunkId> = disk.held().into_iter().collect();
    if let Some(bad) = held.difference(&disk.good()).next() {
        return Err(format!("names {bad:?} after a scrub, and has no good copy of it"));
    }
    let space = disk.space();
    let files = disk.backend.list().map_err(|error| error.to_string())?;
    let files: u64 = files.iter().filter(|(name, _)| name.starts_with("segment-")).map(|(_, len)| len).sum();
    let record = |id: &ChunkId| (64 + u64::from(disk.names(id).unwrap_or(0))).next_multiple_of(64);
    let live: u64 = held.iter().map(record).sum();
    if space.used != files || space.used > space.capacity || space.written.saturating_sub(space.dead) != live {
        return Err(format!("has {files} bytes of files and {live} of live records, and says {space:?}"));
    }
    Ok(held)
}
