//! What the segment files take of the disk, and what of that still counts.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::Space;
use crate::record::SEGMENT_HEADER;

/// One segment file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Segment {
    /// Length of the file: what it takes of the disk, used or not.
    pub(crate) file: u64,
    /// Bytes that its records take.
    pub(crate) written: u64,
    /// Bytes of the records that the index refers to.
    pub(crate) live: u64,
    /// Chunk records that the index does not refer to any more: a tombstone may bury them.
    pub(crate) buried: u64,
    /// Bytes of tombstones.
    pub(crate) tombstones: u64,
    /// Records that cannot be read, at least.
    pub(crate) lost: u64,
}

/// All segment files.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    segments: BTreeMap<u32, Segment>,
    /// What they take of the disk together.
    files: u64,
    /// Bytes of records in segments that were emptied and removed.
    reclaimed: u64,
    /// The segment in use; those behind it were created ahead.
    pub(crate) open: u32,
}

impl Usage {
    /// What the files take of the disk.
    pub(crate) fn files(&self) -> u64 {
        self.files
    }

    /// Counts a new file in; `false` when there is one of this number.
    pub(crate) fn add(&mut self, segment: u32, file: u64) -> bool {
        let Entry::Vacant(vacant) = self.segments.entry(segment) else { return false };
        vacant.insert(Segment { file, ..Segment::default() });
        self.files += file;
        true
    }

    /// Counts a file out.
    pub(crate) fn remove(&mut self, segment: u32) {
        self.files -= self.segments.remove(&segment).map_or(0, |segment| segment.file);
    }

    /// Counts an emptied file out, of which so many bytes were dead.
    pub(crate) fn reclaim(&mut self, segment: u32, dead: u64) {
        self.remove(segment);
        self.reclaimed += dead;
    }

    /// One file, as far as it is counted.
    pub(crate) fn get(&self, segment: u32) -> Segment {
        self.segments.get(&segment).copied().unwrap_or_default()
    }

    /// Changes what is counted of a file.
    pub(crate) fn change(&mut self, segment: u32, change: impl FnOnce(&mut Segment)) {
        if let Some(segment) = self.segments.get_mut(&segment) {
            change(segment);
        }
    }

    /// All files that have no records.
    pub(crate) fn unused(&self) -> Vec<u32> {
        self.segments.iter().filter(|(_, segment)| segment.written == 0).map(|(segment, _)| *segment).collect()
    }

    /// The newest.
    pub(crate) fn last(&self) -> Option<u32> {
        self.segments.last_key_value().map(|(segment, _)| *segment)
    }

    /// The oldest segment that holds a record which a tombstone may bury. Records follow each other in the order of their
    /// sequence numbers, so the tombstone is in this segment or in a newer one.
    pub(crate) fn first_buried(&self) -> Option<u32> {
        self.segments.iter().find(|(_, segment)| segment.buried > 0).map(|(segment, _)| *segment)
    }

    /// The closed segments of which more than one `part`th is dead, and their dead bytes; the one with the most comes first.
    pub(crate) fn deadest(&self, part: u64) -> Vec<(u32, u64)> {
        let first = self.first_buried();
        let closed = self.segments.range(..self.open).map(|(number, segment)| {
            // Tombstones that still bury something would only be moved, again and again.
            let kept = if first.is_some_and(|first| first < *number) { segment.tombstones } else { 0 };
            (segment.written.saturating_sub(segment.live + kept), *number, segment.written)
        });
        let mut dead: Vec<(u32, u64)> = closed
            .filter(|(dead, _, written)| dead * part > *written)
            .map(|(dead, segment, _)| (segment, dead))
            .collect();
        dead.sort_unstable_by_key(|(segment, dead)| Reverse((*dead, *segment)));
        dead
    }

    /// Records that cannot be read, at least.
    pub(crate) fn lost(&self) -> u64 {
        self.segments.values().map(|segment| segment.lost).fold(0, u64::saturating_add)
    }

    /// Fill, when chunks may take what lies below `most` in files of `len` bytes, and new files at most `room` bytes.
    pub(crate) fn space(&self, capacity: u64, most: u64, room: u64, len: u64) -> Space {
        let files = self.files;
        let written = self.segments.values().map(|segment| segment.written).sum::<u64>();
        let live = self.segments.values().map(|segment| segment.live).sum::<u64>();
        let begun = self.segments.range(self.open..).map(|(_, s)| s.file.saturating_sub(SEGMENT_HEADER + s.written));
        let free = most
            .checked_sub(files)
            .map_or(0, |left| left.min(room) / len * (len - SEGMENT_HEADER) + begun.sum::<u64>());
        let dead = written.saturating_sub(live);
        Space { capacity, used: files, written, dead, reclaimed: self.reclaimed, free }
    }
}
