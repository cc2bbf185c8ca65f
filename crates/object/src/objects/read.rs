//! Getting: only the chunks that a range touches, a few of them asked for ahead.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use protocol::initiator::Fetched;

use super::ahead::Share;
use super::chunks::{Chunks, Slice};
use super::{ObjectError, Objects, failed};
use crate::manifest::{Entry, Malformed};
use crate::seal::{DataKey, SealError};
use crate::service::{Pending, ServiceError};
use catalog::Row;
use catalog::object_manifest::Body;

/// Chunks of an object that are asked for ahead, as far as there is room for them.
const PIPELINE: usize = 4;

/// A chunk that was asked for.
struct ChunkFetch {
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
    flight: VecDeque<ChunkFetch>,
    /// Room for the chunk that `pieces` are of.
    share: Option<Share>,
    /// Those that were not asked for yet.
    chunks: Chunks,
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
            chunks: Chunks::default(),
        };
        let range = range.start.min(row.record.size)..range.end.min(row.record.size);
        if range.is_empty() {
            return Ok(reader);
        }
        let body = objects.whole(row)?.body;
        if let Body::Inline(bytes) = body {
            let (length, range) = (row.record.size as usize, range.start as usize..range.end as usize);
            let is_sealed = bytes.len() != length;
            let piece = if is_sealed { reader.unseal(&[(0, bytes)], length, range)? } else { bytes.slice(range) };
            reader.pieces.push_back(piece);
            return Ok(reader);
        }
        reader.chunks = Chunks::of(body, &range).map_err(|why| ObjectError::Manifest { id: row.manifest, why })?;
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
            let Some(ChunkFetch { slice, bytes, pending, share }) = self.flight.pop_front() else { return Ok(None) };
            self.share = share;
            let id = slice.entry.id;
            let fetched = pending.wait().map_err(failed(id))?;
            let pieces =
                arrange(fetched.pieces, &bytes).ok_or(ObjectError::Manifest { id, why: Malformed::ChunkLength })?;
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
            let Some(slice) = self.chunks.next(&self.objects)? else { break };
            let (fragments, bytes) = slice.to_fetch();
            let share = self.objects.gets.share(bytes.iter().map(Range::len).sum());
            if share.is_none() && !(self.flight.is_empty() && self.pieces.is_empty()) {
                self.chunks.put_back(slice);
                break;
            }
            let pending = self.objects.service.get_fragments(slice.entry.id, vec![], fragments);
            self.flight.push_back(ChunkFetch { slice, bytes, pending, share });
        }
        Ok(())
    }
}

/// The pieces of which these ranges of a chunk were fetched, each with where it begins; `None` when they have fewer or more bytes.
fn arrange(fetched: Vec<Bytes>, ranges: &[Range<usize>]) -> Option<Vec<(usize, Bytes)>> {
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
