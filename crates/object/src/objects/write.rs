//! Putting: bytes to chunks, a few of them on their way at once.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error as StdError;

use bytes::{Bytes, BytesMut};
use protocol::id::{ChunkId, coded};
use protocol::initiator::{ChunkPut, Stored};
use protocol::redundancy::Redundancy;

use super::ahead::{Ahead, Share};
use super::{Kept, Made, ObjectError, Objects, failed};
use crate::manifest::{self, Entry};
use crate::seal::DataKey;
use crate::service::{ChunkService, Pending, ServiceError};
use catalog::Condition;
use catalog::entry::SEALABLE;
use catalog::object_manifest::{Body, ENTRIES, ObjectManifest};

/// How hard it is tried to compress: the least, which is the fastest.
const LEVEL: i32 = 1;
/// A chunk is stored compressed when that saves one part in so many, or more.
const WORTH: usize = 8;
/// Chunks of an object that are on their way while the next is filled, as far as there is room for them.
const PIPELINE: usize = 3;
/// Bytes of the smallest chunk that is kept as pieces of a code: of a smaller one copies cost little, and are fewer messages.
const SMALLEST_CODED: usize = 64 << 10;

/// What is known of an object when its last byte was seen.
#[derive(Clone, Debug, Default)]
pub struct Sealed {
    /// Its entity tag, without quotes.
    pub etag: String,
    /// More attributes: checksums that came last, for example.
    pub attributes: BTreeMap<String, String>,
}

/// Where the bytes of an object come from.
pub trait Source {
    /// The next bytes, of any length; `None` after the last.
    ///
    /// # Errors
    /// When they cannot be had: the put fails with this error.
    fn next(&mut self) -> Result<Option<Bytes>, Box<dyn StdError + Send + Sync>>;
    /// How many bytes are still to come, as far as it is known: there may be more or fewer.
    fn left(&self) -> Option<u64> {
        None
    }
    /// Sees all bytes in order, each while they are on their way to the targets already.
    fn digest(&mut self, bytes: &Bytes);
    /// Whether the bytes are to be compressed where that is worth it; `None` leaves it to [`Objects::compressing`].
    fn compress(&self) -> Option<bool> {
        None
    }
    /// What the bytes are encrypted with, if they are. Then they are not compressed: how well that goes would say
    /// something of them.
    fn key(&self) -> Option<DataKey> {
        None
    }
    /// Called once after the last byte.
    ///
    /// # Errors
    /// When the bytes are not what they should be: the put fails with this error.
    fn seal(&mut self, size: u64) -> Result<Sealed, Box<dyn StdError + Send + Sync>>;
}

/// Bytes that were stored.
#[derive(Clone, Debug)]
pub struct Written {
    /// How many.
    pub size: u64,
    /// Where.
    pub body: Body,
    /// What the source declared of them.
    pub sealed: Sealed,
    /// How well they are kept so far.
    pub kept: Kept,
}

/// A chunk on its way.
struct Flying {
    id: ChunkId,
    pending: Pending<Result<Stored, ServiceError>>,
    /// Without one, nothing may be filled before it has landed.
    share: Option<Share>,
}

impl Objects {
    /// Puts what `source` yields as the newest version of the key of `record`, which has all that is known before.
    ///
    /// # Errors
    /// When bytes cannot be had or stored, or the condition does not hold. Then nothing changed.
    pub fn put(
        &self,
        record: ObjectManifest,
        condition: &Condition,
        source: &mut dyn Source,
    ) -> Result<Made, ObjectError> {
        let begun = self.host.elapsed();
        if *condition != Condition::Always {
            // Before any byte is taken: the catalog decides again when the version is to become visible.
            condition.check(self.catalog.newest(&record.bucket, &record.key)?.as_ref())?;
        }
        let mut writer = Writer::new(self, source.compress(), source.key(), record.redundancy());
        let (size, inline) = writer.take(source, self.inline)?;
        // One chunk need not be durable before its manifest is sent: no row names the version before both are.
        let single = inline.is_none() && writer.leaf.len() == 1 && writer.top.is_empty();
        if !single {
            writer.land_all()?;
        }
        let sealed = source.seal(size).map_err(ObjectError::Source)?;
        let body = writer.body(inline)?;
        let mut record = ObjectManifest { size, body, etag: sealed.etag, ..record };
        record.attributes.extend(sealed.attributes);
        self.commit(record, condition, None, begun, || writer.land_all().map(|()| writer.kept))
    }

    /// Stores what `source` yields as chunks that no manifest names yet: a part of an upload, with the redundancy that the
    /// object will have.
    ///
    /// # Errors
    /// When bytes cannot be had or stored.
    pub fn write(&self, source: &mut dyn Source, redundancy: Option<Redundancy>) -> Result<Written, ObjectError> {
        let begun = self.host.elapsed();
        let mut writer = Writer::new(self, source.compress(), source.key(), redundancy);
        // An upload may have more parts than fit one manifest, so that nothing rides in it.
        let (size, _) = writer.take(source, 0)?;
        let sealed = source.seal(size).map_err(ObjectError::Source)?;
        writer.land_all()?;
        if !writer.top.is_empty() {
            return Err(ObjectError::TooLarge);
        }
        self.in_time(begun)?;
        let body = Body::Chunks(writer.entries());
        Ok(Written { size, body, sealed, kept: writer.kept })
    }

    /// Puts chunks once more, with this redundancy: a body that names these.
    pub(super) fn put_again(
        &self,
        entries: &[Entry],
        redundancy: Option<Redundancy>,
    ) -> Result<(Body, Kept), ObjectError> {
        let mut writer = Writer::new(self, None, None, redundancy);
        for entry in entries {
            let bytes = self.fetch(entry.id)?;
            let again = writer.send(bytes)?;
            writer.name(Entry { plain: entry.plain, ..again })?;
            writer.land_without_share()?;
        }
        let body = writer.body(None)?;
        writer.land_all()?;
        Ok((body, writer.kept))
    }

    /// The body of an object that consists of these lists of chunks, with its redundancy.
    ///
    /// # Errors
    /// As `parts`, or when an index chunk cannot be stored.
    pub fn join(
        &self,
        parts: impl Iterator<Item = Result<Vec<Entry>, ObjectError>>,
        redundancy: Option<Redundancy>,
    ) -> Result<Body, ObjectError> {
        let mut writer = Writer::new(self, None, None, redundancy);
        for part in parts {
            part?.into_iter().try_for_each(|entry| writer.name(entry))?;
        }
        let body = writer.body(None)?;
        writer.land_all()?;
        Ok(body)
    }
}

/// How a chunk is put that is to be kept so: what is small as copies that survive the same as the pieces of a code.
pub(super) fn keep(chunk: Bytes, redundancy: Option<Redundancy>) -> ChunkPut {
    match redundancy {
        Some(Redundancy::Code(code)) if chunk.len() >= SMALLEST_CODED => {
            // No chunk has 4 GiB.
            coded::cut(code, &chunk).map_or_else(|| copies(chunk, redundancy), ChunkPut::coded)
        }
        _ => copies(chunk, redundancy),
    }
}

fn copies(chunk: Bytes, redundancy: Option<Redundancy>) -> ChunkPut {
    let redundancy = redundancy.map(Redundancy::in_copies);
    ChunkPut { redundancy, ..ChunkPut::new(ChunkId::of_payload(&chunk), chunk) }
}

/// Whether a chunk is kept as one that is put so.
pub(super) fn is_kept(entry: &Entry, redundancy: Option<Redundancy>) -> bool {
    let code = match redundancy {
        Some(Redundancy::Code(code)) => Some(code).filter(|_| entry.length as usize >= SMALLEST_CODED),
        _ => None,
    };
    entry.id.code() == code
}

/// The chunks of one put: those on their way, and what the manifest will name.
struct Writer<'a> {
    service: &'a dyn ChunkService,
    compress: bool,
    key: Option<DataKey>,
    redundancy: Option<Redundancy>,
    ahead: &'a Ahead,
    chunk_size: usize,
    flight: VecDeque<Flying>,
    leaf: Vec<Entry>,
    top: Vec<(Entry, u64)>,
    kept: Kept,
}

impl<'a> Writer<'a> {
    fn new(objects: &'a Objects, compress: Option<bool>, key: Option<DataKey>, redundancy: Option<Redundancy>) -> Self {
        let chunk_size = if key.is_some() { objects.chunk_size.min(SEALABLE) } else { objects.chunk_size };
        Self {
            service: &*objects.service,
            compress: compress.unwrap_or(objects.compress) && key.is_none(),
            key,
            redundancy,
            ahead: &objects.puts,
            chunk_size,
            flight: VecDeque::new(),
            leaf: vec![],
            top: vec![],
            kept: Kept::default(),
        }
    }

    /// Stores all that `source` has; how many bytes, and the bytes themselves when they are at most `inline`.
    fn take(&mut self, source: &mut dyn Source, inline: usize) -> Result<(u64, Option<Bytes>), ObjectError> {
        let mut size = 0;
        let mut rest = Bytes::new();
        loop {
            let (chunk, ended) = fill(source, &mut rest, self.chunk_size)?;
            if ended && size == 0 && chunk.len() <= inline {
                source.digest(&chunk);
                return Ok((chunk.len() as u64, Some(chunk)));
            }
            if !chunk.is_empty() {
                size += chunk.len() as u64;
                let entry = self.send_payload(chunk.clone())?;
                source.digest(&chunk);
                self.name(entry)?;
            }
            if ended {
                return Ok((size, None));
            }
            drop(chunk);
            self.land_without_share()?;
        }
    }

    /// Sends bytes of the object, encrypted, or compressed when that is worth it: targets negotiate, store and verify what is
    /// sent.
    fn send_payload(&mut self, chunk: Bytes) -> Result<Entry, ObjectError> {
        let plain = chunk.len() as u32;
        if let Some(key) = &self.key {
            let sealed = key.seal(&chunk)?;
            drop(chunk);
            return self.send(sealed).map(|entry| Entry { plain, ..entry });
        }
        // What cannot be compressed is sent as it is.
        let packed = self.compress.then(|| zstd::bulk::compress(&chunk, LEVEL).ok()).flatten();
        match packed.filter(|packed| packed.len() + chunk.len() / WORTH <= chunk.len()) {
            Some(packed) => self.send(Bytes::from(packed)).map(|entry| Entry { plain, ..entry }),
            None => self.send(chunk),
        }
    }

    fn send(&mut self, chunk: Bytes) -> Result<Entry, ObjectError> {
        while self.flight.len() >= PIPELINE {
            self.land()?;
        }
        let (length, share) = (chunk.len() as u32, self.ahead.share(chunk.len()));
        let put = keep(chunk, self.redundancy);
        let entry = Entry::new(put.id, length);
        let pending = self.service.put(put);
        self.flight.push_back(Flying { id: entry.id, pending, share });
        Ok(entry)
    }

    fn name(&mut self, entry: Entry) -> Result<(), ObjectError> {
        if self.leaf.len() == ENTRIES {
            self.flush()?;
        }
        self.leaf.push(entry);
        Ok(())
    }

    /// Puts the present entries as an index chunk.
    fn flush(&mut self) -> Result<(), ObjectError> {
        if self.top.len() == ENTRIES {
            return Err(ObjectError::TooLarge);
        }
        let covers = self.leaf.iter().map(|entry| u64::from(entry.plain)).sum();
        let index = manifest::encode_index(&self.leaf);
        self.leaf.clear();
        let entry = self.send(Bytes::from(index))?;
        self.top.push((entry, covers));
        Ok(())
    }

    /// Waits for all that is on its way if some of it has no share of what may be ahead.
    fn land_without_share(&mut self) -> Result<(), ObjectError> {
        let is_over = self.flight.iter().any(|flying| flying.share.is_none());
        if is_over { self.land_all() } else { Ok(()) }
    }

    fn land(&mut self) -> Result<(), ObjectError> {
        let Some(Flying { id, pending, share: _share }) = self.flight.pop_front() else { return Ok(()) };
        self.kept.note(&pending.wait().map_err(failed(id))?);
        Ok(())
    }

    fn land_all(&mut self) -> Result<(), ObjectError> {
        while !self.flight.is_empty() {
            self.land()?;
        }
        Ok(())
    }

    fn body(&mut self, inline: Option<Bytes>) -> Result<Body, ObjectError> {
        if let Some(bytes) = inline {
            return Ok(Body::Inline(match &self.key {
                Some(key) if !bytes.is_empty() => key.seal(&bytes)?,
                _ => bytes,
            }));
        }
        if self.top.is_empty() {
            return Ok(Body::Chunks(self.entries()));
        }
        self.flush()?;
        self.land_all()?;
        Ok(Body::Indexed(std::mem::take(&mut self.top)))
    }

    fn entries(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.leaf)
    }
}

/// The next chunk, and whether it is the last. `rest` is what was left of the bytes before.
fn fill(source: &mut dyn Source, rest: &mut Bytes, size: usize) -> Result<(Bytes, bool), ObjectError> {
    // A chunk that came in one piece is not copied.
    let (mut piece, mut chunk) = (Bytes::new(), BytesMut::new());
    loop {
        let part = rest.split_to(rest.len().min(size - piece.len() - chunk.len()));
        if chunk.is_empty() && piece.is_empty() {
            piece = part;
        } else {
            if chunk.is_empty() {
                let left = source.left().and_then(|left| usize::try_from(left).ok()).unwrap_or(0);
                chunk.reserve(size.min(piece.len() + part.len() + left));
                chunk.extend_from_slice(&std::mem::take(&mut piece));
            }
            chunk.extend_from_slice(&part);
        }
        if piece.len() + chunk.len() == size {
            return Ok((whole(piece, chunk), false));
        }
        match source.next().map_err(ObjectError::Source)? {
            Some(bytes) => *rest = bytes,
            None => return Ok((whole(piece, chunk), true)),
        }
    }
}

/// A chunk that is in one of the two.
fn whole(piece: Bytes, chunk: BytesMut) -> Bytes {
    if chunk.is_empty() { piece } else { chunk.freeze() }
}
