//! Chunks on one disk.
//!
//! Payload is appended to preallocated segment files, checksummed per record, and made durable by group commit: one
//! `fdatasync` for everything appended since the last. The index from ids to places is kept in memory, so that a bid
//! never waits for the disk, and is rebuilt by reading the record headers. `docs/disk.md` has every offset.

mod api;
pub mod backend;
mod bug;
mod census;
mod clean;
mod compact;
mod damaged;
mod gap;
mod identity;
mod limit;
mod location;
mod record;
mod recovery;
mod scrub;
mod segment_files;
mod torn_or_damaged;
mod usage;
mod work;
mod write_buffer;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use bytes::Bytes;
use protocol::id::ChunkId;
use protocol::promise::{Promise, Stamps};
use protocol::redundancy::Wanted;

pub use api::{Options, ReadError, Recovery, Space, StoreError, WriteError};
pub use bug::Bug;
pub use clean::Discarded;
pub use compact::{Compaction, Step};
pub use gap::Gap;
pub use scrub::Scrubbed;
pub use segment_files::PreparedSegment;
pub use work::{GROUP, Group, Read, Report, Trouble, Work, Write};

use backend::Backend;
use damaged::Damaged;
use identity::identify;
use location::{LONGEST, RecordLocation, begins};
use record::{ALIGN, Header, Identity, Kind, RECORD_HEADER, SEGMENT_HEADER};
use recovery::Found;
use usage::Usage;
use write_buffer::{BLOCK, WriteBuffer};

/// Version of the disk format; another one is refused.
pub const FORMAT: u32 = 3;
/// The file that says whose directory this is: without it, there is no store.
pub const IDENTITY: &str = "identity";

/// The part that only one thread may use at a time.
#[derive(Debug)]
struct Writer {
    segment: u32,
    offset: u64,
    /// Length of the segment's file.
    len: u64,
    /// Up to where the segment is durable.
    synced: u64,
    /// A segment that was created ahead of its use.
    spare: Option<u32>,
    sequence: u64,
    buffer: WriteBuffer,
    pending: Vec<(ChunkId, Option<RecordLocation>)>,
    failed: bool,
}

impl Writer {
    /// Whether a copy of a chunk is on its way: written, and not visible yet.
    fn is_coming(&self, id: &ChunkId) -> bool {
        self.pending.iter().any(|(other, place)| other == id && place.is_some())
    }
}

/// A store. Reads, lookups and one writer may work at the same time.
#[derive(Debug)]
pub struct Store {
    backend: Box<dyn Backend>,
    options: Options,
    identity: Identity,
    bug: Option<Bug>,
    index: RwLock<BTreeMap<ChunkId, RecordLocation>>,
    damaged: Mutex<Damaged>,
    usage: Mutex<Usage>,
    writer: Mutex<Writer>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held left data that recovery could read as well: go on.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn segment_name(segment: u32) -> String {
    format!("segment-{segment:08}")
}

fn segment_len(options: &Options) -> u64 {
    options.segment_size.clamp(SEGMENT_HEADER + RECORD_HEADER, LONGEST).next_multiple_of(BLOCK as u64)
}

/// The reverse of [`segment_name`]; `None` for every other file.
fn segment_number(name: &str) -> Option<u32> {
    name.strip_prefix("segment-")?.parse().ok().filter(|segment| segment_name(*segment) == name)
}

/// Counts a record that the index refers to no more.
fn bury(usage: &mut Usage, old: RecordLocation) {
    usage.change(old.segment, |segment| {
        segment.live -= old.record_len();
        segment.buried += 1;
    });
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    move |cause| StoreError::Io { what, cause }
}

fn write_error(error: &io::Error) -> WriteError {
    match error.kind() {
        // What this store says of its capacity has no number of the system's.
        io::ErrorKind::StorageFull if error.raw_os_error().is_none() => WriteError::NoSpace,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => WriteError::FileSystemFull,
        _ => limit::exceeded(error).map_or_else(|| WriteError::Io(error.to_string()), WriteError::Exhausted),
    }
}

fn read_error(error: &io::Error) -> ReadError {
    match error.kind() {
        io::ErrorKind::NotFound => ReadError::Missing,
        io::ErrorKind::UnexpectedEof => ReadError::Corrupt,
        _ => limit::exceeded(error).map_or_else(|| ReadError::Io(error.to_string()), ReadError::Exhausted),
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
        Self::open_planted(backend, options, None)
    }

    /// Opens a store with a defect, to see whether it is found.
    ///
    /// # Errors
    /// Those of [`Store::open`].
    #[doc(hidden)]
    pub fn open_planted(
        backend: Box<dyn Backend>,
        options: Options,
        bug: Option<Bug>,
    ) -> Result<(Self, Recovery), StoreError> {
        let files = backend.list().map_err(io_error("listing the data directory"))?;
        let mut segments: Vec<(u32, u64)> =
            files.iter().filter_map(|(name, len)| Some((segment_number(name)?, *len))).collect();
        segments.sort_unstable();
        let identity = identify(backend.as_ref(), &options, &files, segments.is_empty())?;
        let mut found = Found::new(identity, bug);
        // The last two segments may have been prepared and never used: writing stopped in one of the last three.
        let checked = segments.len().saturating_sub(3);
        for (n, (segment, len)) in segments.iter().enumerate() {
            found.scan(backend.as_ref(), *segment, *len, n >= checked)?;
        }
        found.settle(backend.as_ref()).map_err(io_error("striking out what a crash cut off"))?;
        let after = segments.last().map_or(1, |(segment, _)| segment + 1);
        for segment in found.empty() {
            backend.remove(&segment_name(segment)).map_err(io_error("removing an unused segment"))?;
        }
        // Writing goes on where it stopped, unless something was struck out there.
        let resume = found.resume.map(|(segment, end)| (segment, end, found.len(segment)));
        let (segment, offset, len) = resume.filter(|(_, end, len)| end < len).unwrap_or((after, 0, 0));
        let mut buffer = WriteBuffer::new(segment_len(&options));
        if offset > 0 {
            let mut block = vec![0; offset as usize % BLOCK];
            let begins = offset - block.len() as u64;
            backend.read_at(&segment_name(segment), begins, &mut block).map_err(io_error("reading a segment's end"))?;
            buffer.resume(&block, begins);
        }
        let (index, damaged, mut usage, mut recovery, sequence) = found.finish();
        usage.open = segment;
        let writer = Writer {
            segment,
            offset,
            len,
            synced: offset,
            spare: None,
            sequence,
            buffer,
            pending: Vec::new(),
            failed: false,
        };
        let (index, damaged, usage, writer) =
            (RwLock::new(index), Mutex::new(damaged), Mutex::new(usage), Mutex::new(writer));
        let store = Self { backend, options, identity, bug, index, damaged, usage, writer };
        let missed: Vec<(ChunkId, Option<RecordLocation>)> = recovery.missed.iter().map(|id| (*id, None)).collect();
        recovery.forgetful = store.drop_damaged(&missed).1.err();
        Ok((store, recovery))
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn index(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<ChunkId, RecordLocation>> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size of a chunk that is durable here.
    #[must_use]
    pub fn contains(&self, id: &ChunkId) -> Option<u32> {
        self.index().get(id).map(|place| place.len)
    }

    /// What the copy of a chunk that is durable here is kept for.
    #[must_use]
    pub fn wanted(&self, id: &ChunkId) -> Option<Wanted> {
        self.index().get(id).map(|place| place.wanted)
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
        let mut ids: Vec<ChunkId> = matching.by_ref().take(limit).collect();
        let more = matching.next().is_some();
        if len == ChunkId::LEN {
            // A node that asks for one chunk wants to know whether it can be had here.
            ids.retain(|id| !lock(&self.damaged).is_unread(id));
        }
        (ids, more)
    }

    /// Fill.
    #[must_use]
    pub fn space(&self) -> Space {
        let room = self.room();
        lock(&self.usage).space(self.options.capacity, self.most(), room, self.segment_len())
    }

    /// Bytes that the files may take for the sake of new chunks. The rest, three segments at least, is for what wins room.
    fn most(&self) -> u64 {
        self.options.capacity.saturating_sub(self.reserve())
    }

    /// Bytes that the files may take for the sake of chunks that say that others are removed.
    fn for_removals(&self) -> u64 {
        self.without(2)
    }

    /// Bytes that the files may take for the sake of tombstones: removals cannot keep them from being written.
    fn for_tombstones(&self) -> u64 {
        self.without(1)
    }

    /// Bytes that the files may take for the sake of compaction, which needs room for a segment before it wins some: nothing
    /// else can keep it from working.
    fn all(&self) -> u64 {
        self.without(0)
    }

    fn without(&self, segments: u64) -> u64 {
        let least = self.most();
        let left = self.options.capacity.saturating_sub(segments * self.segment_len());
        if self.has(Bug::NoReserve) { least } else { left.max(least) }
    }

    fn reserve(&self) -> u64 {
        self.options.reserve.max(3 * self.segment_len())
    }

    /// Bytes that the file system has for more files for the sake of new chunks. Where it reports nothing, only the capacity
    /// counts, and a file that cannot be made is the first sign of a full one.
    fn room(&self) -> u64 {
        self.room_beside(self.reserve())
    }

    fn room_beside(&self, reserve: u64) -> u64 {
        self.backend.room().map_or(u64::MAX, |room| room.saturating_sub(reserve))
    }

    /// Whether there may be one more segment file, when all may take `most` bytes.
    fn may_create(&self, most: u64) -> Result<(), WriteError> {
        if lock(&self.usage).files() + self.segment_len() > most {
            return Err(WriteError::NoSpace);
        }
        let room = self.room_beside(self.options.capacity.saturating_sub(most));
        if room < self.segment_len() { Err(WriteError::FileSystemFull) } else { Ok(()) }
    }

    /// Length of a new segment's file.
    fn segment_len(&self) -> u64 {
        segment_len(&self.options)
    }

    /// Appends a chunk, and promises it. It is neither durable nor visible before [`Store::sync`]. A chunk that is here already,
    /// and kept for what is wanted, is not written twice, but promised again.
    ///
    /// # Errors
    /// No room, or the disk failed: then nothing of it is visible.
    pub fn append(&self, id: &ChunkId, pieces: &[Bytes], promise: impl Into<Promise>) -> Result<(), WriteError> {
        self.append_within(id, pieces, promise.into(), self.most())
    }

    /// Appends a chunk that says that others are removed, as [`Store::append`] does. There is room for it on a full disk, too, or
    /// nothing could ever be removed.
    ///
    /// # Errors
    /// Those of [`Store::append`].
    pub fn append_removal(
        &self,
        id: &ChunkId,
        pieces: &[Bytes],
        promise: impl Into<Promise>,
    ) -> Result<(), WriteError> {
        self.append_within(id, pieces, promise.into(), self.for_removals())
    }

    fn append_within(&self, id: &ChunkId, pieces: &[Bytes], promise: Promise, most: u64) -> Result<(), WriteError> {
        let mut writer = lock(&self.writer);
        if self.promise(id, promise).is_some() {
            return Ok(());
        }
        let mut wanted = self.index().get(id).map_or(promise.wanted, |place| promise.wanted.and(place.wanted));
        for place in writer.pending.iter_mut().filter(|(other, _)| other == id).filter_map(|(_, place)| place.as_mut())
        {
            if place.serves(promise) {
                place.stamps.keep(promise);
                return Ok(());
            }
            wanted = wanted.and(place.wanted);
        }
        let len = pieces.iter().map(Bytes::len).sum::<usize>() as u32;
        self.find_room(&writer, record::span(len), most)?;
        let mut place = self.write(&mut writer, Kind::Chunk, id, wanted, pieces, most)?;
        place.stamps = promise.stamps();
        writer.pending.push((*id, Some(place)));
        Ok(())
    }

    /// Whether a chunk's record fits: into the segment in use, the one that was created ahead, or one more.
    fn find_room(&self, writer: &Writer, span: u64, most: u64) -> Result<(), WriteError> {
        let is_within = lock(&self.usage).files() <= most;
        let fits = writer.offset > 0 && writer.offset + span <= writer.len;
        match (is_within, fits) {
            (true, true) => Ok(()),
            (true, false) if SEGMENT_HEADER + span <= self.segment_len() => match writer.spare {
                Some(_) => Ok(()),
                None => self.may_create(most),
            },
            _ => Err(WriteError::NoSpace),
        }
    }

    /// Forgets a chunk, durably.
    ///
    /// # Errors
    /// The disk failed: the chunk may be there or not after the next start.
    pub fn remove(&self, id: &ChunkId) -> Result<(), WriteError> {
        let mut writer = lock(&self.writer);
        self.write_tombstone(&mut writer, id, &[], self.for_tombstones())?;
        self.sync_locked(&mut writer)
    }

    /// Stages what says that a chunk's copy is not here any more; the files may take `most` bytes for it.
    fn write_tombstone(
        &self,
        writer: &mut Writer,
        id: &ChunkId,
        pieces: &[Bytes],
        most: u64,
    ) -> Result<(), WriteError> {
        self.write(writer, Kind::Tombstone, id, Wanted::BY_MAP, pieces, most)?;
        writer.pending.push((*id, None));
        Ok(())
    }

    /// Stages a record; the files may take `most` bytes for it.
    fn write(
        &self,
        writer: &mut Writer,
        kind: Kind,
        id: &ChunkId,
        wanted: Wanted,
        pieces: &[Bytes],
        most: u64,
    ) -> Result<RecordLocation, WriteError> {
        if writer.failed {
            return Err(already_failed());
        }
        let len = pieces.iter().map(Bytes::len).sum::<usize>() as u32;
        let span = record::span(len);
        if writer.offset == 0 || writer.offset + span > writer.len {
            self.roll(writer, most)?;
        }
        // It ends where a damaged disk may have made it begin; of equal numbers the later record counts.
        writer.sequence = writer.sequence.saturating_add(1);
        let stamps = Stamps::default();
        let place = RecordLocation {
            segment: writer.segment,
            begins: begins(writer.offset),
            len,
            sequence: writer.sequence,
            stamps,
            wanted,
        };
        let (crc, behind) =
            (record::checksum(pieces.iter().map(|p| &p[..])), Header::behind(writer.offset, writer.synced));
        let (segment, sequence) = (place.segment, place.sequence);
        let header = Header { kind, id: *id, wanted, len, segment, sequence, crc, behind };
        let header = header.encode(self.identity.secret, place.offset());
        let padding = [0; ALIGN as usize];
        let parts = std::iter::once(&header[..]).chain(pieces.iter().map(|p| &p[..]));
        let rest = &padding[..(span - RECORD_HEADER - u64::from(len)) as usize];
        parts.chain([rest]).try_for_each(|part| self.stage(writer, part))?;
        writer.offset += span;
        lock(&self.usage).change(place.segment, |segment| {
            segment.written += span;
            segment.tombstones += if kind == Kind::Tombstone { span } else { 0 };
        });
        Ok(place)
    }

    /// Goes on to a new segment. What the old one holds is made durable first, so that only the last used segment of a run
    /// can have torn records.
    fn roll(&self, writer: &mut Writer, most: u64) -> Result<(), WriteError> {
        if writer.offset > 0 {
            self.commit(writer, !self.has(Bug::RollUnsynced))?;
            writer.segment += 1;
            writer.offset = 0;
            lock(&self.usage).open = writer.segment;
        }
        if writer.spare != Some(writer.segment) {
            self.create_unprepared(writer, most)?;
        }
        writer.spare = None;
        let file = lock(&self.usage).get(writer.segment).file;
        let header = record::segment_header(&self.identity, writer.segment, file);
        writer.buffer.begin();
        self.stage(writer, &header)?;
        (writer.offset, writer.synced) = (SEGMENT_HEADER, SEGMENT_HEADER);
        let mut usage = lock(&self.usage);
        usage.open = writer.segment;
        writer.len = file;
        Ok(())
    }

    fn stage(&self, writer: &mut Writer, bytes: &[u8]) -> Result<(), WriteError> {
        let segment = writer.segment;
        let write = |blocks: &[u8], offset| self.backend.write_at(&segment_name(segment), offset, blocks);
        let staged = writer.buffer.append(bytes, write);
        staged.map_err(|error| fail(writer, &error))
    }

    /// Makes everything appended so far durable, and visible.
    ///
    /// # Errors
    /// The disk failed: nothing of it becomes visible, and the store takes no more writes.
    pub fn sync(&self) -> Result<(), WriteError> {
        self.sync_locked(&mut lock(&self.writer))
    }

    fn sync_locked(&self, writer: &mut Writer) -> Result<(), WriteError> {
        self.commit(writer, true)
    }

    /// Writes what was appended, has it durable when `durably` is set (always, but for planted defects), and shows it.
    fn commit(&self, writer: &mut Writer, durably: bool) -> Result<(), WriteError> {
        if writer.failed {
            // What was appended before the failure is lost with it, though its append went well.
            return Err(already_failed());
        }
        if writer.pending.is_empty() {
            return Ok(());
        }
        let name = segment_name(writer.segment);
        let flushed = writer.buffer.flush(|blocks, offset| self.backend.write_at(&name, offset, blocks));
        let synced = flushed.and_then(|()| if durably { self.sync_segment(&name) } else { Ok(()) });
        synced.map_err(|error| fail(writer, &error))?;
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let mut usage = lock(&self.usage);
        for (id, place) in writer.pending.drain(..) {
            let old = match place {
                Some(mut place) => {
                    // It was moved: what was promised or condemned meanwhile goes with it.
                    let now = index.get(&id).filter(|_| !self.has(Bug::StaleStamps));
                    place.stamps = now.map_or(place.stamps, |old| old.stamps);
                    usage.change(place.segment, |segment| segment.live += place.record_len());
                    lock(&self.damaged).settle(&id);
                    index.insert(id, place)
                }
                None => index.remove(&id),
            };
            old.into_iter().for_each(|old| bury(&mut usage, old));
        }
        writer.synced = writer.offset;
        Ok(())
    }

    fn sync_segment(&self, name: &str) -> io::Result<()> {
        match self.bug {
            Some(Bug::SkipSync) => Ok(()),
            Some(Bug::RetrySync) => self.backend.sync(name).or_else(|_| self.backend.sync(name)),
            _ => self.backend.sync(name),
        }
    }

    /// Reads a chunk and checks its checksum.
    ///
    /// # Errors
    /// Not here, damaged, or the disk failed.
    pub fn read(&self, id: &ChunkId) -> Result<Bytes, ReadError> {
        let read = self.read_current(id);
        if let Err(ReadError::Io(_)) = &read {
            lock(&self.damaged).note_read(id, false);
        }
        read
    }

    fn read_current(&self, id: &ChunkId) -> Result<Bytes, ReadError> {
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

    fn read_place(&self, id: &ChunkId, place: RecordLocation) -> Result<Bytes, ReadError> {
        let len = RECORD_HEADER as usize + place.len as usize;
        let read = self.backend.read(&segment_name(place.segment), place.offset(), len);
        let bytes = Bytes::from(read.map_err(|error| read_error(&error))?);
        let payload = bytes.slice(RECORD_HEADER as usize..);
        let good = Header::decode(&bytes, self.identity.secret, place.offset()).is_some_and(|header| {
            header.id == *id && header.len == place.len && header.crc == record::checksum([&payload[..]])
        });
        if good || self.has(Bug::ReadUnchecked) { Ok(payload) } else { Err(ReadError::Corrupt) }
    }
}
