//! What a seed decides of the disks, beyond how fast they are.

use crate::cleaning::Cleaning;
use protocol::rng::Rng;
use protocol::time::Span;
use store::backend::Spot;

/// How bytes are spoiled on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoil {
    /// One of them flips.
    Rot(Spot),
    /// A sector cannot be read any more.
    Sector,
}

/// What happened to the disks of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Segments that compactions emptied.
    pub emptied: u32,
    /// Machines that stopped in the midst of a change to a disk.
    pub stopped: u32,
    /// Machines that stopped while they recovered.
    pub stopped_starting: u32,
    /// Starts that a failing disk refused.
    pub refused: u32,
    /// Power cuts everywhere.
    pub blackouts: u32,
    /// Bytes spoiled.
    pub spoiled: u32,
}

impl Seen {
    pub(crate) fn add(&mut self, other: &Self) {
        self.emptied += other.emptied;
        self.stopped += other.stopped;
        self.stopped_starting += other.stopped_starting;
        self.refused += other.refused;
        self.blackouts += other.blackouts;
        self.spoiled += other.spoiled;
    }
}

/// Disks, and what goes wrong with them.
#[derive(Clone, Debug)]
pub struct Disks {
    /// Length of a segment, bytes.
    pub segment: u64,
    /// Bytes that a target may hold.
    pub capacity: u64,
    /// From one check for room to the next.
    pub check_interval: Span,
    /// From one step of a compaction to the next, besides its time on the disk.
    pub pace: Span,
    /// Machines that stop in the midst of a change to the disk.
    pub stops: u32,
    /// A target that stops again and again in the midst of changes, also while it recovers: how often.
    pub restless: u32,
    /// Bytes that are spoiled on one target.
    pub spoils: Vec<Spoil>,
}

impl Disks {
    /// The disks of a seed, for puts of `volume` bytes to each target and chunks of up to `largest` bytes.
    pub(crate) fn draw(seed: u64, volume: u64, largest: u64) -> Self {
        let mut rng = Rng::new(seed).fork(20);
        let least = (largest + 128).next_multiple_of(4_096);
        let segment = [least, least + 4_096, 32 << 10][rng.below(3) as usize];
        // A quarter of the disks fill up, or nearly.
        let capacity = match rng.below(4) {
            0 => (volume * (60 + rng.below(60)) / 100).max(8 * segment),
            _ => 8 << 20,
        };
        let check_interval = Span::from_millis(1 + rng.below(20));
        let some = |rng: &mut Rng, most: u64| if rng.chance(1, 2) { 1 + rng.below(most) as u32 } else { 0 };
        let stops = some(&mut rng, 4);
        let restless = if rng.chance(1, 4) { 3 + rng.below(8) as u32 } else { 0 };
        let ways = [
            Spoil::Rot(Spot::Anywhere),
            Spoil::Rot(Spot::Header),
            Spoil::Rot(Spot::Tombstone),
            Spoil::Rot(Spot::Tail),
            Spoil::Sector,
        ];
        let spoils = (0..some(&mut rng, 5)).map(|_| ways[rng.below(5) as usize]).collect();
        let pace = if rng.chance(1, 2) { Span::from_micros(rng.below(50_000)) } else { Span::ZERO };
        Self { segment, capacity, check_interval, pace, stops, restless, spoils }
    }

    /// Makes them those of a world with cleaners, or with objects; `loses` says whether a chunk of those may lose all its copies but
    /// one.
    pub(crate) fn suit(&mut self, seed: u64, cleaning: Option<Cleaning>, loses: Option<bool>) {
        if cleaning.is_some() {
            self.keep_moving(seed);
        }
        if cleaning.is_some_and(|cleaning| cleaning.calm) {
            (self.stops, self.restless) = (0, 0);
        }
        if loses.is_some() {
            self.hold_objects(seed);
        }
        if loses == Some(true) {
            self.spoils.clear();
        }
    }

    /// Neither empty nor full with so many bytes for each target, and of short segments.
    pub(crate) fn fill_partly(&mut self, rng: &mut Rng, volume: u64) {
        self.segment = self.segment.min(16 << 10);
        self.capacity = (volume * (150 + rng.below(250)) / 100 + 4 * self.segment).max(16 * self.segment);
    }

    /// For objects, of which there are fewer bytes: some disks fill up.
    fn hold_objects(&mut self, seed: u64) {
        let mut rng = Rng::new(seed).fork(23);
        self.capacity = 8 << 20;
        if rng.chance(1, 5) {
            self.segment = self.segment.min(8 << 10);
            self.capacity = self.segment * (8 + rng.below(6));
        }
    }

    /// For what is cleaned: segments are so short that many are emptied, and often slowly, so that much happens to a chunk
    /// while it is moved.
    fn keep_moving(&mut self, seed: u64) {
        let mut rng = Rng::new(seed).fork(22);
        self.segment = self.segment.min(12 << 10).max(self.segment % (32 << 10));
        self.check_interval = Span::from_millis(1 + rng.below(6));
        self.pace = if rng.chance(3, 4) { Span::from_micros(rng.below(60_000)) } else { Span::ZERO };
    }
}
