//! Chunks on one disk.
//!
//! Payload is appended to preallocated segment files, checksummed per record, and made durable by group commit: one
//! `fdatasync` for everything appended since the last. The index from ids to places is kept in memory, so that a bid
//! never waits for the disk, and is rebuilt by reading the record headers. `docs/disk.md` has every offset.

pub mod backend;
mod record;
mod stage;

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use bytes::Bytes;
use protocol::id::ChunkId;

use backend::Backend;
use record::{ALIGN, Header, Kind, RECORD_HEADER, SEGMENT_HEADER};
use stage::{BLOCK, Stage};

/// Version of the disk format; another one is refused.
pub const FORMAT: u32 = 1;
/// The file that says whose directory this is.
const IDENTITY: &str = "identity";
/// Compaction moves live records in batches of this part of a segment.
const BATCHES: u64 = 64;

/// How a store is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that the store may fill, the reserve included.
    pub capacity: u64,
    /// Bytes of it that are kept free for compaction and tombstones.
    pub reserve: u64,
    /// Length of a segment file; at least one largest record.
    pub segment_size: u64,
    /// The cluster, [`ClusterId`](protocol::id::ClusterId).
    pub cluster: u32,
    /// The target, [`NodeId`](protocol::id::NodeId).
    pub target: u32,
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory belongs to somebody else.
    #[error(
        "the data directory belongs to cluster {found_cluster:08x}, target {found_target}, not to cluster {cluster:08x}, \
         target {target}: correct `data` or `id` in the cluster map, or use an empty directory"
    )]
    Other {
        /// Cluster found on disk.
        found_cluster: u32,
        /// Target found on disk.
        found_target: u32,
        /// Cluster expected.
        cluster: u32,
        /// Target expected.
        target: u32,
    },
    /// Written by another version.
    #[error("the data directory has format {found}, this build reads {FORMAT}: use the build that wrote it")]
    Format {
        /// Format found on disk.
        found: u32,
    },
    /// The file with the identity cannot be read.
    #[error("the file `{IDENTITY}` of the data directory is damaged, but there are segments: restore it from a copy")]
    Identity,
    /// The disk failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// How it failed.
        source: io::Error,
    },
}

/// Why a write failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// No room.
    #[error("the disk is full: raise `capacity`, or free space")]
    NoSpace,
    /// The disk failed; after a failed sync nothing more is written until the store is opened again.
    #[error("the disk failed: {0}")]
    Io(String),
}

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Not here.
    #[error("the chunk is not on this disk")]
    Missing,
    /// Here, but not what was written.
    #[error("the chunk is damaged on this disk")]
    Corrupt,
    /// The disk failed.
    #[error("the disk failed: {0}")]
    Io(String),
}

/// What was found when a store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Chunks.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Records near the end that are not whole, and were struck out: a crash cut them off before they were acknowledged, or
    /// they were damaged since.
    pub torn: Vec<ChunkId>,
}

/// Fill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes that may be filled.
    pub capacity: u64,
    /// Bytes written, dead ones included.
    pub used: u64,
    /// Bytes written that nothing refers to any more.
    pub dead: u64,
    /// Bytes that new chunks may take: the reserve is left out.
    pub free: u64,
}

/// What a stretch of a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Where to go on; `None` when the end was reached.
    pub next: Option<ChunkId>,
    /// Bytes read.
    pub bytes: u64,
    /// Chunks whose copy was bad: forgotten, durably.
    pub bad: Vec<ChunkId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    segment: u32,
    offset: u64,
    len: u32,
    sequence: u64,
}

impl Place {
    fn record_len(self) -> u64 {
        record::span(self.len)
    }
}

/// The part that only one thread may use at a time.
#[derive(Debug)]
struct Writer {
    segment: u32,
    offset: u64,
    /// A segment that was created ahead of its use.
    spare: Option<u32>,
    sequence: u64,
    stage: Stage,
    pending: Vec<(ChunkId, Option<Place>)>,
    failed: bool,
}

/// A store. Reads, look-ups and one writer may work at the same time.
#[derive(Debug)]
pub struct Store {
    backend: Box<dyn Backend>,
    options: Options,
    index: RwLock<BTreeMap<ChunkId, Place>>,
    usage: Mutex<Usage>,
    writer: Mutex<Writer>,
}

#[derive(Debug, Default)]
struct Usage {
    written: BTreeMap<u32, u64>,
    live: BTreeMap<u32, u64>,
}

impl Usage {
    fn used(&self) -> u64 {
        self.written.values().sum()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held left data that recovery could read as well: go on.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn segment_name(segment: u32) -> String {
    format!("segment-{segment:08}")
}

/// The reverse of [`segment_name`]; `None` for every other file.
fn segment_number(name: &str) -> Option<u32> {
    name.strip_prefix("segment-")?.parse().ok().filter(|segment| segment_name(*segment) == name)
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Io { what, source }
}

fn write_error(error: &io::Error) -> WriteError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => WriteError::NoSpace,
        _ => WriteError::Io(error.to_string()),
    }
}

fn already_failed() -> WriteError {
    WriteError::Io("an earlier write failed: restart the target when the disk is well".to_owned())
}

/// Stops the writer: what the kernel dropped after a failed write or sync is unknown, and must never be called durable.
fn fail(writer: &mut Writer, error: &io::Error) -> WriteError {
    writer.failed = true;
    writer.pending.clear();
    write_error(error)
}

impl Store {
    /// Opens the store on `backend`, or makes a new one when it is empty.
    ///
    /// # Errors
    /// When the directory belongs to another target or version, or the disk fails.
    pub fn open(backend: Box<dyn Backend>, options: Options) -> Result<(Self, Recovery), StoreError> {
        let files = backend.list().map_err(io_error("listing the data directory"))?;
        let mut segments: Vec<(u32, u64)> =
            files.iter().filter_map(|(name, len)| Some((segment_number(name)?, *len))).collect();
        segments.sort_unstable();
        identify(backend.as_ref(), &options, &files, segments.is_empty())?;
        let mut found = Found::default();
        // The last two segments may have been prepared and never used: writing stopped in one of the last three.
        let checked = segments.len().saturating_sub(3);
        for (n, (segment, len)) in segments.iter().enumerate() {
            found.scan(backend.as_ref(), *segment, *len, n >= checked)?;
        }
        let after = segments.last().map_or(1, |(segment, _)| segment + 1);
        for segment in found.empty() {
            backend.remove(&segment_name(segment)).map_err(io_error("removing an unused segment"))?;
        }
        // Writing goes on where it stopped, unless there is damage before: behind that, recovery believes less.
        let resume = found.resume.filter(|(_, end)| *end < options.segment_size);
        let (segment, offset) = resume.unwrap_or((after, 0));
        let mut stage = Stage::default();
        if offset > 0 {
            let mut block = vec![0; offset as usize % BLOCK];
            let begins = offset - block.len() as u64;
            backend.read_at(&segment_name(segment), begins, &mut block).map_err(io_error("reading a segment's end"))?;
            stage.resume(&block, begins);
        }
        let (index, usage, recovery) = found.finish();
        let sequence = recovery.1;
        let store = Self {
            backend,
            options,
            index: RwLock::new(index),
            usage: Mutex::new(usage),
            writer: Mutex::new(Writer {
                segment,
                offset,
                spare: None,
                sequence,
                stage,
                pending: Vec::new(),
                failed: false,
            }),
        };
        Ok((store, recovery.0))
    }

    fn index(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<ChunkId, Place>> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size of a chunk that is durable here.
    #[must_use]
    pub fn contains(&self, id: &ChunkId) -> Option<u32> {
        self.index().get(id).map(|place| place.len)
    }

    /// How many chunks are durable here.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.index().len() as u64
    }

    /// Durable chunks whose encoded id begins with `prefix`, after `after`, in order; and whether there are more.
    #[must_use]
    pub fn list(&self, prefix: &[u8], after: Option<&ChunkId>, limit: usize) -> (Vec<ChunkId>, bool) {
        let index = self.index();
        let mut first = [0; ChunkId::LEN];
        let len = prefix.len().min(ChunkId::LEN);
        first[..len].copy_from_slice(&prefix[..len]);
        let begin = ChunkId::decode(&first).into_iter().chain(after.copied()).max();
        let Some(begin) = begin else { return (Vec::new(), false) };
        let mut matching = index
            .range(begin..)
            .map(|(id, _)| *id)
            .filter(|id| after != Some(id))
            .take_while(|id| id.encode().starts_with(prefix));
        let ids: Vec<ChunkId> = matching.by_ref().take(limit).collect();
        let more = matching.next().is_some();
        (ids, more)
    }

    /// Fill.
    #[must_use]
    pub fn space(&self) -> Space {
        let usage = lock(&self.usage);
        let (used, live) = (usage.used(), usage.live.values().sum::<u64>());
        let capacity = self.options.capacity;
        Space { capacity, used, dead: used - live, free: capacity.saturating_sub(self.options.reserve + used) }
    }

    /// Appends a chunk. It is neither durable nor visible before [`Store::sync`]. A chunk that is here already is not
    /// written twice.
    ///
    /// # Errors
    /// No room, or the disk failed: then nothing of it is visible.
    pub fn append(&self, id: &ChunkId, pieces: &[Bytes]) -> Result<(), WriteError> {
        let mut writer = lock(&self.writer);
        if self.contains(id).is_some() || writer.pending.iter().any(|(other, place)| other == id && place.is_some()) {
            return Ok(());
        }
        let len = pieces.iter().map(Bytes::len).sum::<usize>() as u32;
        let room = self.space().free;
        if room < record::span(len) {
            return Err(WriteError::NoSpace);
        }
        let place = self.write(&mut writer, Kind::Chunk, id, pieces)?;
        writer.pending.push((*id, Some(place)));
        Ok(())
    }

    /// Forgets a chunk, durably.
    ///
    /// # Errors
    /// The disk failed: the chunk may be there or not after the next start.
    pub fn remove(&self, id: &ChunkId) -> Result<(), WriteError> {
        let mut writer = lock(&self.writer);
        self.write(&mut writer, Kind::Tombstone, id, &[])?;
        writer.pending.push((*id, None));
        self.sync_locked(&mut writer)
    }

    fn write(&self, writer: &mut Writer, kind: Kind, id: &ChunkId, pieces: &[Bytes]) -> Result<Place, WriteError> {
        if writer.failed {
            return Err(already_failed());
        }
        let len = pieces.iter().map(Bytes::len).sum::<usize>() as u32;
        let span = record::span(len);
        if writer.offset == 0 || writer.offset + span > self.options.segment_size {
            self.roll(writer, span)?;
        }
        // It ends where a damaged disk may have made it begin; of equal numbers the later record counts.
        writer.sequence = writer.sequence.saturating_add(1);
        let place = Place { segment: writer.segment, offset: writer.offset, len, sequence: writer.sequence };
        let header = Header { kind, id: *id, len, segment: place.segment, sequence: place.sequence, crc: 0 };
        let header = Header { crc: record::checksum(pieces.iter().map(|p| &p[..])), ..header }.encode();
        let padding = [0; ALIGN as usize];
        let parts = std::iter::once(&header[..]).chain(pieces.iter().map(|p| &p[..]));
        let rest = &padding[..(span - RECORD_HEADER - u64::from(len)) as usize];
        parts.chain([rest]).try_for_each(|part| self.stage(writer, part))?;
        writer.offset += span;
        *lock(&self.usage).written.entry(place.segment).or_default() += span;
        Ok(place)
    }

    /// Goes on to a new segment. What the old one holds is made durable first, so that only the last used segment of a run
    /// can have torn records.
    fn roll(&self, writer: &mut Writer, span: u64) -> Result<(), WriteError> {
        if writer.offset > 0 {
            self.sync_locked(writer)?;
            writer.segment += 1;
            writer.offset = 0;
        }
        if writer.spare != Some(writer.segment) {
            self.create_unprepared(writer, span)?;
        }
        writer.spare = None;
        let (cluster, target) = (self.options.cluster, self.options.target);
        let header = record::segment_header(cluster, target, writer.segment);
        writer.stage.begin();
        self.stage(writer, &header)?;
        writer.offset = SEGMENT_HEADER;
        Ok(())
    }

    fn stage(&self, writer: &mut Writer, bytes: &[u8]) -> Result<(), WriteError> {
        let name = segment_name(writer.segment);
        let staged = writer.stage.append(bytes, |blocks, offset| self.backend.write_at(&name, offset, blocks));
        staged.map_err(|error| fail(writer, &error))
    }

    /// Creates the segment that is needed now. When the one that is being prepared has its number, takes the next: the
    /// prepared one stays empty, and goes at the next start.
    fn create_unprepared(&self, writer: &mut Writer, span: u64) -> Result<(), WriteError> {
        match self.create_segment(writer.segment, span) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                writer.segment += 1;
                self.create_segment(writer.segment, span).map_err(|error| write_error(&error))
            }
            created => created.map_err(|error| write_error(&error)),
        }
    }

    fn create_segment(&self, segment: u32, span: u64) -> io::Result<()> {
        let size = self.options.segment_size.max(SEGMENT_HEADER + span).next_multiple_of(BLOCK as u64);
        self.backend.create(&segment_name(segment), size)
    }

    /// Whether the segment in use is half full and none is ready to follow it: time for [`Store::prepare_segment`].
    #[must_use]
    pub fn wants_segment(&self) -> bool {
        let writer = lock(&self.writer);
        !writer.failed
            && writer.spare.is_none()
            && (writer.offset == 0 || writer.offset * 2 > self.options.segment_size)
    }

    /// Creates the next segment ahead of time, without holding up writes, so that no write has to wait for it. Only one
    /// thread may call it.
    ///
    /// # Errors
    /// No room, or the disk failed.
    pub fn prepare_segment(&self) -> Result<(), WriteError> {
        if !self.wants_segment() {
            return Ok(());
        }
        let next = {
            let writer = lock(&self.writer);
            if writer.offset == 0 { writer.segment } else { writer.segment + 1 }
        };
        match self.create_segment(next, 0) {
            Ok(()) => {}
            // The writer was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(error) => return Err(write_error(&error)),
        }
        let mut writer = lock(&self.writer);
        if writer.segment < next || writer.offset == 0 {
            writer.spare = Some(next);
        }
        Ok(())
    }

    /// Makes everything appended so far durable, and visible.
    ///
    /// # Errors
    /// The disk failed: nothing of it becomes visible, and the store takes no more writes.
    pub fn sync(&self) -> Result<(), WriteError> {
        self.sync_locked(&mut lock(&self.writer))
    }

    fn sync_locked(&self, writer: &mut Writer) -> Result<(), WriteError> {
        if writer.failed {
            // What was appended before the failure is lost with it, though its append went well.
            return Err(already_failed());
        }
        if writer.pending.is_empty() {
            return Ok(());
        }
        let name = segment_name(writer.segment);
        let flushed = writer.stage.flush(|blocks, offset| self.backend.write_at(&name, offset, blocks));
        flushed.and_then(|()| self.backend.sync(&name)).map_err(|error| fail(writer, &error))?;
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let mut usage = lock(&self.usage);
        for (id, place) in writer.pending.drain(..) {
            let old = match place {
                Some(place) => {
                    *usage.live.entry(place.segment).or_default() += place.record_len();
                    index.insert(id, place)
                }
                None => index.remove(&id),
            };
            if let Some(old) = old {
                *usage.live.entry(old.segment).or_default() -= old.record_len();
            }
        }
        Ok(())
    }

    /// Reads a chunk and checks its checksum.
    ///
    /// # Errors
    /// Not here, damaged, or the disk failed.
    pub fn read(&self, id: &ChunkId) -> Result<Bytes, ReadError> {
        let place = *self.index().get(id).ok_or(ReadError::Missing)?;
        match self.read_place(id, place) {
            // Compaction moved it just now, and removed its segment.
            Err(ReadError::Missing) => {
                let place = *self.index().get(id).ok_or(ReadError::Missing)?;
                self.read_place(id, place)
            }
            read => read,
        }
    }

    fn read_place(&self, id: &ChunkId, place: Place) -> Result<Bytes, ReadError> {
        let mut buffer = vec![0; RECORD_HEADER as usize + place.len as usize];
        match self.backend.read_at(&segment_name(place.segment), place.offset, &mut buffer) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ReadError::Missing),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(ReadError::Corrupt),
            Err(error) => return Err(ReadError::Io(error.to_string())),
        }
        let bytes = Bytes::from(buffer);
        let payload = bytes.slice(RECORD_HEADER as usize..);
        let good = Header::decode(&bytes).is_some_and(|header| {
            header.id == *id && header.len == place.len && header.crc == record::checksum([&payload[..]])
        });
        if good { Ok(payload) } else { Err(ReadError::Corrupt) }
    }

    /// Verifies checksum and hash of the chunks after `after`, about `max_bytes` of them, and forgets bad ones durably.
    #[must_use]
    pub fn scrub(&self, after: Option<ChunkId>, max_bytes: u64) -> Scrubbed {
        let mut scrubbed = Scrubbed { next: after, ..Scrubbed::default() };
        loop {
            let next = {
                let index = self.index();
                let mut ids = index.keys();
                match scrubbed.next {
                    None => ids.next().copied(),
                    Some(last) => index.range(last..).map(|(id, _)| *id).find(|id| *id != last),
                }
            };
            let Some(id) = next else {
                scrubbed.next = None;
                return scrubbed;
            };
            scrubbed.next = Some(id);
            let good = match self.read(&id) {
                Ok(payload) => {
                    scrubbed.bytes += payload.len() as u64;
                    id.matches([&payload[..]])
                }
                Err(ReadError::Corrupt) => false,
                // Gone meanwhile, or the disk cannot say: not proof of damage.
                Err(ReadError::Missing | ReadError::Io(_)) => true,
            };
            if !good && self.remove(&id).is_ok() {
                scrubbed.bad.push(id);
            }
            if scrubbed.bytes >= max_bytes {
                return scrubbed;
            }
        }
    }

    /// Empties the segment with the most dead bytes, if more than half of it is dead: its live records are appended
    /// again and made durable, then the file goes. Writes go on meanwhile: `pause` is called with the bytes of each batch
    /// after it was moved, may wait there, and may break off (the next call goes on). Returns the bytes won; `None` when
    /// there is nothing to win, or it was broken off. Only one thread may call it.
    ///
    /// # Errors
    /// No room, or the disk failed: nothing is lost.
    pub fn compact(&self, pause: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<Option<u64>, WriteError> {
        let Some(segment) = self.deadest() else { return Ok(None) };
        let live: Vec<(ChunkId, Place)> = self
            .index()
            .iter()
            .filter(|(_, place)| place.segment == segment)
            .map(|(id, place)| (*id, *place))
            .collect();
        let mut batch = Vec::new();
        let mut bytes = 0;
        for (id, place) in live {
            match self.read(&id) {
                Ok(payload) => batch.push((id, place, payload)),
                Err(ReadError::Missing) => {}
                // Damaged: the scrub reports it and forgets it; until then the segment stays.
                Err(ReadError::Corrupt | ReadError::Io(_)) => return Ok(None),
            }
            bytes += place.record_len();
            if bytes * BATCHES >= self.options.segment_size {
                self.relocate(&mut batch)?;
                if pause(bytes).is_break() {
                    return Ok(None);
                }
                bytes = 0;
            }
        }
        self.relocate(&mut batch)?;
        let tombstones = self.tombstones(segment)?;
        let mut writer = lock(&self.writer);
        // What was put again and is not visible yet must not be taken for removed.
        self.sync_locked(&mut writer)?;
        for id in tombstones.into_iter().filter(|id| self.contains(id).is_none()) {
            self.write(&mut writer, Kind::Tombstone, &id, &[])?;
            writer.pending.push((id, None));
        }
        self.sync_locked(&mut writer)?;
        self.backend.remove(&segment_name(segment)).map_err(|error| write_error(&error))?;
        let mut usage = lock(&self.usage);
        usage.live.remove(&segment);
        Ok(usage.written.remove(&segment))
    }

    /// The closed segment with the most dead bytes, if that is more than half of it.
    fn deadest(&self) -> Option<u32> {
        let open = lock(&self.writer).segment;
        let usage = lock(&self.usage);
        let dead = |segment: &u32, written: u64| written - usage.live.get(segment).copied().unwrap_or(0);
        let closed = usage.written.iter().filter(|(segment, _)| **segment != open);
        let dead = closed.map(|(segment, written)| (dead(segment, *written), *segment, *written));
        dead.filter(|(dead, _, written)| dead * 2 > *written).max().map(|(_, segment, _)| segment)
    }

    /// Appends records again, durably, unless they were removed in the meantime.
    fn relocate(&self, batch: &mut Vec<(ChunkId, Place, Bytes)>) -> Result<(), WriteError> {
        let mut writer = lock(&self.writer);
        for (id, place, payload) in batch.drain(..) {
            if self.index().get(&id) == Some(&place) {
                let place = self.write(&mut writer, Kind::Chunk, &id, &[payload])?;
                writer.pending.push((id, Some(place)));
            }
        }
        self.sync_locked(&mut writer)
    }

    /// Chunks whose newest record in a segment is a tombstone. It outlives the segment, or an older record of its chunk
    /// in another one would come back.
    fn tombstones(&self, segment: u32) -> Result<Vec<ChunkId>, WriteError> {
        let files = self.backend.list().map_err(|error| write_error(&error))?;
        let len = files.iter().find(|(name, _)| *name == segment_name(segment)).map_or(0, |(_, len)| *len);
        let mut found = Found::default();
        found.scan(self.backend.as_ref(), segment, len, false).map_err(|error| WriteError::Io(error.to_string()))?;
        Ok(found.newest.into_iter().filter(|(_, (_, place))| place.is_none()).map(|(id, _)| id).collect())
    }
}

/// Writes who this is into an empty directory, or checks it.
fn identify(backend: &dyn Backend, options: &Options, files: &[(String, u64)], empty: bool) -> Result<(), StoreError> {
    let mut stored = [0; record::IDENTITY_LEN];
    if files.iter().any(|(name, len)| name == IDENTITY && *len >= record::IDENTITY_LEN as u64) {
        backend.read_at(IDENTITY, 0, &mut stored).map_err(io_error("reading the identity"))?;
    }
    match record::decode_identity(&stored) {
        Some((format, ..)) if format != FORMAT => Err(StoreError::Format { found: format }),
        Some((_, cluster, target)) if (cluster, target) == (options.cluster, options.target) => Ok(()),
        Some((_, cluster, target)) => Err(StoreError::Other {
            found_cluster: cluster,
            found_target: target,
            cluster: options.cluster,
            target: options.target,
        }),
        None if !empty => Err(StoreError::Identity),
        None => {
            // Nothing stored yet: a torn identity is that of a first start that was cut off.
            if files.iter().any(|(name, _)| name == IDENTITY) {
                backend.remove(IDENTITY).map_err(io_error("removing a torn identity"))?;
            }
            let identity = record::encode_identity(FORMAT, options.cluster, options.target);
            backend.create(IDENTITY, identity.len() as u64).map_err(io_error("creating the identity"))?;
            backend.write_at(IDENTITY, 0, &identity).map_err(io_error("writing the identity"))?;
            backend.sync(IDENTITY).map_err(io_error("syncing the identity"))
        }
    }
}

/// What the segments say, while they are read.
#[derive(Default)]
struct Found {
    newest: BTreeMap<ChunkId, (u64, Option<Place>)>,
    written: BTreeMap<u32, u64>,
    torn: Vec<ChunkId>,
    sequence: u64,
    /// The last segment that has records, and where they end, if nothing but records is before.
    resume: Option<(u32, u64)>,
}

impl Found {
    /// Reads the record headers of a segment. In the `last` ones, payload is checked too, and records that are not
    /// complete are struck out: they were never acknowledged, and must not be taken for copies later.
    ///
    /// Behind a damaged header the search goes through payload, which may imitate records: from there on only chunks
    /// whose bytes are what their id names are believed, and no tombstones.
    fn scan(&mut self, backend: &dyn Backend, segment: u32, len: u64, last: bool) -> Result<(), StoreError> {
        let name = segment_name(segment);
        let failed = || io_error("reading a segment");
        let mut offset = SEGMENT_HEADER;
        let mut block = vec![0; 64 << 10];
        let mut end = SEGMENT_HEADER;
        // Whether the records before `end` follow each other without anything else between.
        let mut dense = true;
        let (mut lost, mut torn) = (false, false);
        while offset + RECORD_HEADER <= len {
            let take = (len - offset).min(block.len() as u64) as usize;
            backend.read_at(&name, offset, &mut block[..take]).map_err(failed())?;
            let mut at = 0;
            while at + RECORD_HEADER as usize <= take {
                let header = Header::decode(&block[at..]).filter(|h| h.segment == segment);
                let here = offset + at as u64;
                let Some(header) = header.filter(|h| here + record::span(h.len) <= len.next_multiple_of(ALIGN)) else {
                    lost = true;
                    at += ALIGN as usize;
                    continue;
                };
                let good = match header.kind {
                    _ if !last && !lost => true,
                    Kind::Tombstone if lost => false,
                    _ => is_whole(backend, &name, here, &header, lost).map_err(failed())?,
                };
                if !good {
                    if last {
                        self.torn.push(header.id);
                        torn = true;
                        backend.write_at(&name, here, &[0; 8]).map_err(failed())?;
                    }
                    lost = true;
                    at += ALIGN as usize;
                    continue;
                }
                self.take(&header, segment, here);
                dense &= here == end;
                end = here + record::span(header.len);
                at += record::span(header.len) as usize;
            }
            offset += at as u64;
        }
        // What a killed process wrote and did not sync is found here, and will be called durable.
        if torn || last && end > SEGMENT_HEADER {
            backend.sync(&name).map_err(failed())?;
        }
        if end > SEGMENT_HEADER {
            self.resume = (dense && !torn && last).then_some((segment, end));
        }
        self.written.insert(segment, end - SEGMENT_HEADER);
        Ok(())
    }

    /// Segments without a record: left by a run that did not come to use them.
    fn empty(&mut self) -> Vec<u32> {
        self.written.extract_if(.., |_, written| *written == 0).map(|(segment, _)| segment).collect()
    }

    fn take(&mut self, header: &Header, segment: u32, offset: u64) {
        self.sequence = self.sequence.max(header.sequence);
        let place = Place { segment, offset, len: header.len, sequence: header.sequence };
        let place = (header.kind == Kind::Chunk).then_some(place);
        let newest = self.newest.entry(header.id).or_insert((header.sequence, place));
        if header.sequence >= newest.0 {
            *newest = (header.sequence, place);
        }
    }

    fn finish(self) -> (BTreeMap<ChunkId, Place>, Usage, (Recovery, u64)) {
        let index: BTreeMap<ChunkId, Place> =
            self.newest.into_iter().filter_map(|(id, (_, place))| Some((id, place?))).collect();
        let mut usage = Usage { written: self.written, live: BTreeMap::new() };
        for place in index.values() {
            *usage.live.entry(place.segment).or_default() += place.record_len();
        }
        let bytes = index.values().map(|place| u64::from(place.len)).sum();
        let recovery = Recovery { chunks: index.len() as u64, bytes, torn: self.torn };
        (index, usage, (recovery, self.sequence))
    }
}

/// Whether a record's payload is what its header says, and, when asked, what its id names.
fn is_whole(backend: &dyn Backend, name: &str, offset: u64, header: &Header, by_id: bool) -> io::Result<bool> {
    let mut payload = vec![0; header.len as usize];
    match backend.read_at(name, offset + RECORD_HEADER, &mut payload) {
        Ok(()) => Ok(record::checksum([&payload[..]]) == header.crc && (!by_id || header.id.matches([&payload[..]]))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
