//! Places of segments that cannot be read, so that it is not known what they held.

/// A place of a segment's file where no record can be read, or where the file should go on and does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The number of the segment.
    pub segment: u32,
    /// Where it begins in the file.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// How many records were there at least, as the numbers of those before and behind it say. Of a segment's header 0.
    pub records: u64,
    /// Whether it was durable once, because of what is behind it in the segment.
    pub(crate) durable: bool,
}

/// The first and the last record of a segment.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) segment: u32,
    /// Sequence numbers.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Where the last one ends, and the file.
    pub(crate) end: u64,
    pub(crate) file: u64,
    /// How long it should be; `None` when the segment's header is damaged.
    pub(crate) says: Option<u64>,
    /// Everything before this was durable when a record behind it was written.
    pub(crate) durable: u64,
}

/// How many records there were between two with these numbers. A damaged disk may show any, also the highest.
pub(crate) const fn between(last: u64, next: u64) -> u64 {
    next.saturating_sub(last).saturating_sub(1)
}
