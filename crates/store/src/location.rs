//! Where the record of a chunk is, and what is known of it: the index has one for each chunk.

use protocol::promise::{Promise, Stamps};
use protocol::redundancy::Wanted;

use crate::record::{self, ALIGN};
use crate::write_buffer::BLOCK;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordLocation {
    pub(crate) segment: u32,
    /// Where it begins in the segment's file, in units of [`ALIGN`].
    pub(crate) begins: u32,
    pub(crate) len: u32,
    pub(crate) wanted: Wanted,
    pub(crate) sequence: u64,
    pub(crate) stamps: Stamps,
}

/// One for each chunk is in memory.
const _: () = assert!(size_of::<RecordLocation>() <= 32, "an index is no larger than it was");

impl RecordLocation {
    pub(crate) fn record_len(self) -> u64 {
        record::span(self.len)
    }

    /// Whether it is a copy for an object that wants this.
    pub(crate) fn serves(&self, promise: Promise) -> bool {
        self.wanted.covers(promise.wanted)
    }

    /// Where it begins in the segment's file, in bytes.
    pub(crate) fn offset(self) -> u64 {
        u64::from(self.begins) * ALIGN
    }

    /// Where the record begins.
    pub(crate) fn position(&self) -> (u32, u64) {
        (self.segment, self.offset())
    }
}

/// Longest segment: every place in it has a number in 32 bits.
pub(crate) const LONGEST: u64 = u32::MAX as u64 * ALIGN - BLOCK as u64;

/// The number of an offset in a segment.
pub(crate) fn begins(offset: u64) -> u32 {
    u32::try_from(offset / ALIGN).unwrap_or(u32::MAX)
}
