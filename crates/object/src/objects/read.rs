//! Getting: only the chunks that a range touches, a few of them asked for ahead.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::{iter, slice};

use bytes::Bytes;
use protocol::id::coded;
use protocol::initiator::Fetched;
use protocol::redundancy::Pieces;

use super::ahead::Share;
use super::{ObjectError, Objects, failed};
use crate::manifest::{self, Entry, Malformed};
use crate::seal::{DataKey, SealError, sealed_ranges};
use crate::service::{Pending, ServiceError};
use catalog::Row;
use catalog::object_manifest::Body;

/// Chunks of an object that are asked for ahead, as far as there is room for them.
const PIPELINE: usize = 4;

/// A chunk and the bytes of it that are wanted.
#[derive(Clone, Debug)]
struct Slice {
    entry: Entry,
    range: Range<usize>,
}

impl Slice {
    /// What of the chunk is to be fetched: fragments, where it is coded and these alone have the bytes; and which bytes of it those are. What is
    /// compressed is read whole.
    fn to_fetch(&self) -> (Option<Pieces>, Vec<Range<usize>>) {
        let (entry, length) = (&self.entry, self.entry.length as usize);
        let some = match () {
            () if entry.is_sealed() => coded::fragments_of(&entry.id, length, &sealed_ranges(&self.range)),
            () if entry.is_packed() => None,
            () => coded::fragments_of(&entry.id, length, slice::from_ref(&self.range)),
        };
        some.map_or((None, iter::once(0..length).collect()), |(fragments, bytes)| (Some(fragments), bytes))
    }
}

/// A chunk that was asked for.
struct Asked {
    slice: Slice,
    /// The bytes of the chunk that come, in order.
    bytes: Vec<Range<usize>>,
    pending: Pending<Result<Fetched, ServiceError>>,
    share: Option<Share>,
}

/// Reads a range of an object, piece by piece.
pub struct Reader {
    objects: Arc<Objects>,
    /// What encrypted bytes are read with.
    key: Option<DataKey>,
    /// Ready bytes.
    pieces: VecDeque<Bytes>,
    flight: VecDeque<Asked>,
    /// Room for the chunk that `pieces` are of.
    share: Option<Share>,
    slices: VecDeque<Slice>,
    /// Index chunks not read yet, each with the wanted range of what it covers.
    indexes: VecDeque<(Entry, Range<u64>)>,
}

impl Reader {
    /// Reads `range` of the object in `row`; the range must be in it.
    ///
    /// # Errors
    /// When its manifest cannot be had.
    pub fn new(objects: &Arc<Objects>, row: &Row, range: Range<u64>) -> Result<Self, ObjectError> {
        Self::with_key(objects, row, range, None)
    }

    /// The same of an object that is encrypted with this key, if it is.
    ///
    /// # Errors
    /// As [`Reader::new`], and when the key is not that of the object.
    pub fn with_key(
        objects: &Arc<Objects>,
        row: &Row,
        range: Range<u64>,
        key: Option<DataKey>,
    ) -> Result<Self, ObjectError> {
        let mut reader = Self {
            objects: Arc::clone(objects),
            key,
            pieces: VecDeque::new(),
            flight: VecDeque::new(),
            share: None,
            slices: VecDeque::new(),
            indexes: VecDeque::new(),
        };
        let range = range.start.min(row.record.size)..range.end.min(row.record.size);
        if range.is_empty() {
            return Ok(reader);
        }
        match objects.whole(row)?.body {
            Body::Inline(bytes) => {
                let (length, range) = (row.record.size as usize, range.start as usize..range.end as usize);
                let is_sealed = bytes.len() != length;
                let piece = if is_sealed { reader.unseal(&[(0, bytes)], length, range)? } else { bytes.slice(range) };
                reader.pieces.push_back(piece);
            }
            Body::Chunks(entries) => reader.slices = slices(&entries, &range),
            Body::Indexed(indexes) => {
                let mut start = 0;
                for (entry, covers) in indexes {
                    if let Some(part) = overlap(start, covers, &range) {
                        reader.indexes.push_back((entry, part));
                    }
                    start += covers;
                }
            }
            Body::InManifest => return Err(ObjectError::Manifest { id: row.manifest, why: Malformed::Size }),
        }
        reader.ask()?;
        Ok(reader)
    }

    /// The next bytes; `None` after the last.
    ///
    /// # Errors
    /// When a chunk cannot be had; the bytes before are good.
    pub fn piece(&mut self) -> Result<Option<Bytes>, ObjectError> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Ok(Some(piece));
            }
            // What there was no room for before the last piece was taken is asked for now.
            self.share = None;
            self.ask()?;
            let Some(Asked { slice, bytes, pending, share }) = self.flight.pop_front() else { return Ok(None) };
            self.share = share;
            let id = slice.entry.id;
            let fetched = pending.wait().map_err(failed(id))?;
            let pieces =
                place(fetched.pieces, &bytes).ok_or(ObjectError::Manifest { id, why: Malformed::ChunkLength })?;
            if slice.entry.is_sealed() {
                let piece = self.unseal(&pieces, slice.entry.plain as usize, slice.range)?;
                self.pieces.push_back(piece);
            } else if slice.entry.is_packed() {
                let stored = pieces.iter().map(|(_, piece)| &piece[..]).collect::<Vec<_>>().concat();
                self.pieces.push_back(Bytes::from(unpack(slice.entry, &stored)?).slice(slice.range));
            } else {
                for (at, piece) in pieces {
                    let from = slice.range.start.clamp(at, at + piece.len()) - at;
                    let to = slice.range.end.clamp(at, at + piece.len()) - at;
                    if from < to {
                        self.pieces.push_back(piece.slice(from..to));
                    }
                }
            }
            self.ask()?;
        }
    }

    /// The bytes of `range` in an encrypted chunk of so many.
    fn unseal(&self, pieces: &[(usize, Bytes)], plain: usize, range: Range<usize>) -> Result<Bytes, ObjectError> {
        let key = self.key.as_ref().ok_or(SealError::NoKey)?;
        Ok(key.open(pieces, plain, range)?)
    }

    /// Asks for chunks ahead.
    fn ask(&mut self) -> Result<(), ObjectError> {
        while self.flight.len() < PIPELINE {
            if let Some(slice) = self.slices.front() {
                let (fragments, bytes) = slice.to_fetch();
                let share = self.objects.gets.share(bytes.iter().map(Range::len).sum());
                if share.is_none() && !(self.flight.is_empty() && self.pieces.is_empty()) {
                    break;
                }
                let Some(slice) = self.slices.pop_front() else { break };
                let pending = self.objects.service.get_fragments(slice.entry.id, vec![], fragments);
                self.flight.push_back(Asked { slice, bytes, pending, share });
            } else if let Some((entry, range)) = self.indexes.pop_front() {
                let bytes = self.objects.fetch(entry.id)?;
                let entries =
                    manifest::decode_index(&bytes).map_err(|why| ObjectError::Manifest { id: entry.id, why })?;
                self.slices = slices(&entries, &range);
            } else {
                break;
            }
        }
        Ok(())
    }
}

/// The pieces of which these ranges of a chunk were fetched, each with where it begins; `None` when they have fewer or more bytes.
fn place(fetched: Vec<Bytes>, ranges: &[Range<usize>]) -> Option<Vec<(usize, Bytes)>> {
    let mut placed = Vec::with_capacity(fetched.len().max(ranges.len()));
    let mut pieces = fetched.into_iter();
    let mut piece = Bytes::new();
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            if piece.is_empty() {
                piece = pieces.next()?;
            }
            let part = piece.split_to(piece.len().min(range.end - at));
            placed.push((at, part.clone()));
            at += part.len();
        }
    }
    (piece.is_empty() && pieces.all(|more| more.is_empty())).then_some(placed)
}

/// The bytes of the object in a compressed chunk.
fn unpack(entry: Entry, stored: &[u8]) -> Result<Vec<u8>, ObjectError> {
    let plain = zstd::bulk::decompress(stored, entry.plain as usize);
    plain
        .ok()
        .filter(|plain| plain.len() == entry.plain as usize)
        .ok_or(ObjectError::Manifest { id: entry.id, why: Malformed::Packing })
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
