//! The chunks that a range of an object touches, in order, read from its manifest and its index chunks.

use std::collections::VecDeque;
use std::ops::Range;
use std::{iter, slice};

use catalog::object_manifest::Body;
use protocol::id::coded;
use protocol::redundancy::Pieces;

use super::{ObjectError, Objects};
use crate::manifest::{self, Entry, Malformed};
use crate::seal::sealed_ranges;

/// A chunk and the bytes of it that are wanted.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    pub(super) entry: Entry,
    /// Counted in the bytes of the object.
    pub(super) range: Range<usize>,
}

impl Slice {
    /// What of the chunk is to be fetched: fragments, where it is coded and these alone have the bytes; and which bytes of it those are. What is
    /// compressed is read whole.
    pub(super) fn to_fetch(&self) -> (Option<Pieces>, Vec<Range<usize>>) {
        let (entry, length) = (&self.entry, self.entry.length as usize);
        let some = match () {
            () if entry.is_sealed() => coded::fragments_of(&entry.id, length, &sealed_ranges(&self.range)),
            () if entry.is_packed() => None,
            () => coded::fragments_of(&entry.id, length, slice::from_ref(&self.range)),
        };
        some.map_or((None, iter::once(0..length).collect()), |(fragments, bytes)| (Some(fragments), bytes))
    }
}

/// Those that were not taken yet.
#[derive(Default)]
pub(super) struct Chunks {
    slices: VecDeque<Slice>,
    /// Index chunks not read yet, each with the wanted range of what it covers.
    indexes: VecDeque<(Entry, Range<u64>)>,
}

impl Chunks {
    /// Those of a whole record's body that have bytes of `range`; none when its bytes are in the manifest.
    pub(super) fn of(body: Body, range: &Range<u64>) -> Result<Self, Malformed> {
        let mut chunks = Self::default();
        match body {
            Body::Inline(_) => {}
            Body::Chunks(entries) => chunks.slices = slices(&entries, range),
            Body::Indexed(indexes) => {
                let mut start = 0;
                for (entry, covers) in indexes {
                    if let Some(part) = overlap(start, covers, range) {
                        chunks.indexes.push_back((entry, part));
                    }
                    start += covers;
                }
            }
            Body::InManifest => return Err(Malformed::Size),
        }
        Ok(chunks)
    }

    /// The next one. Fetches an index chunk, where that is known from there.
    pub(super) fn next(&mut self, objects: &Objects) -> Result<Option<Slice>, ObjectError> {
        loop {
            if let Some(slice) = self.slices.pop_front() {
                return Ok(Some(slice));
            }
            let Some((Entry { id, .. }, range)) = self.indexes.pop_front() else { return Ok(None) };
            let bytes = objects.fetch(id)?;
            let entries = manifest::decode_index(&bytes).map_err(|why| ObjectError::Manifest { id, why })?;
            self.slices = slices(&entries, &range);
        }
    }

    /// One that was taken is the next one again.
    pub(super) fn put_back(&mut self, slice: Slice) {
        self.slices.push_front(slice);
    }
}

/// The part of `range` in the `length` bytes from `start`, counted from there.
fn overlap(start: u64, length: u64, range: &Range<u64>) -> Option<Range<u64>> {
    let (from, to) = (range.start.max(start), range.end.min(start + length));
    (from < to).then(|| from - start..to - start)
}

fn slices(entries: &[Entry], range: &Range<u64>) -> VecDeque<Slice> {
    let mut start = 0;
    let mut slices = VecDeque::new();
    for entry in entries {
        let length = u64::from(entry.plain);
        if let Some(part) = overlap(start, length, range) {
            slices.push_back(Slice { entry: *entry, range: part.start as usize..part.end as usize });
        }
        start += length;
    }
    slices
}
