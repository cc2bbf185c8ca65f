//! Putting and getting whole files in bounded memory.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::id::{ChunkId, ChunkKind, NodeId};
use protocol::initiator::{Fetched, Found, Scope, Stored};
use protocol::limits::CHUNK_BYTES;

use crate::bug::Bug;
use crate::error::Error;
use crate::host::{Host, System};
use crate::manifest::{self, ENTRIES, Entry, Manifest};
use crate::record;
use crate::service::{ChunkService, Pending, ServiceError};

/// Bytes of a payload chunk unless something else is asked for.
pub const CHUNK_SIZE: usize = 1 << 20;

/// How a file is put.
#[derive(Clone, Debug)]
pub struct PutOptions {
    /// Bytes of each payload chunk but the last.
    pub chunk_size: usize,
    /// Chunks on their way at once; memory is this many chunks.
    pub pipeline: usize,
    /// Entries in a manifest or index chunk; lower only in tests.
    pub entries: usize,
    /// A put that took longer fails: half the grace time of cleaning.
    pub limit: Duration,
    /// Whose clocks count.
    pub host: Arc<dyn Host>,
    /// A planted defect.
    pub bug: Option<Bug>,
}

impl Default for PutOptions {
    fn default() -> Self {
        let host = Arc::new(System::default());
        Self { chunk_size: CHUNK_SIZE, pipeline: 8, entries: ENTRIES, limit: crate::LIMIT, host, bug: None }
    }
}

/// One version of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its manifest chunk.
    pub id: ChunkId,
    /// What the manifest says.
    pub manifest: Manifest,
    /// The targets that hold the manifest.
    pub holders: Vec<NodeId>,
}

/// The newest version of every name.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// By name.
    pub files: BTreeMap<String, Version>,
    /// Manifests that could not be read, with the reason.
    pub unreadable: Vec<(ChunkId, String)>,
    /// Targets that did not answer.
    pub silent: Vec<NodeId>,
    /// Whether so many are silent that files or newer versions may be missing here.
    pub incomplete: bool,
}

/// The last time that a version can have: an id has 48 bits for it.
const LAST_MS: u64 = (1 << 48) - 1;

/// Stores what `source` yields as the newest version of `name`. `stored` sees each chunk that became durable. When this
/// returns, the version is the newest for everybody who asks.
///
/// # Errors
/// When the source cannot be read or a chunk finds too few targets; the put can be repeated. No version is visible then,
/// except after an error for the manifest itself ([`Error::Put`] with a manifest's id): some targets may hold it, and
/// whoever reads the name next makes it durable.
pub fn put_file(
    service: &dyn ChunkService,
    name: &str,
    source: &mut dyn Read,
    options: &PutOptions,
    stored: &mut dyn FnMut(&Stored),
) -> Result<Version, Error> {
    if !manifest::valid_name(name) {
        return Err(Error::Name(name.to_owned()));
    }
    if options.chunk_size == 0 || options.chunk_size > CHUNK_BYTES as usize {
        return Err(Error::ChunkSize(options.chunk_size));
    }
    let begun = options.host.elapsed();
    let before = versions(service, name, Scope::LiveOf)?.chunks.last().and_then(|(id, _)| id.version_ms());
    if before.is_some_and(|ms| ms >= LAST_MS) {
        return Err(Error::Clock(name.to_owned()));
    }
    let mut writer = Writer { service, name, options, stored, flight: VecDeque::new(), leaf: vec![], top: vec![] };
    let mut hasher = blake3::Hasher::new();
    let mut size = 0;
    loop {
        let chunk =
            read_chunk(source, options.chunk_size).map_err(|cause| Error::Read { name: name.to_owned(), cause })?;
        if chunk.is_empty() {
            break;
        }
        size += chunk.len() as u64;
        hasher.update(&chunk);
        let last = chunk.len() < options.chunk_size;
        writer.payload(chunk)?;
        if last {
            break;
        }
    }
    let (indirect, entries) = writer.finish()?;
    if options.host.elapsed().saturating_sub(begun) >= options.limit {
        return Err(Error::TooSlow(name.to_owned(), options.limit));
    }
    let now_ms = options.host.wall().as_millis() as u64;
    let before = before.filter(|_| options.bug != Some(Bug::OwnTime));
    let manifest = Manifest {
        name: name.to_owned(),
        size,
        created_ms: now_ms.max(before.map_or(0, |ms| ms + 1)),
        hash: *hasher.finalize().as_bytes(),
        chunk_size: options.chunk_size as u32,
        indirect,
        entries,
    };
    let bytes = Bytes::from(manifest.encode());
    let id = ChunkId::of_manifest(name, manifest.created_ms, &bytes);
    let outcome = service.put(id, bytes).wait();
    let copies = outcome.map_err(|cause| Error::Put { name: name.to_owned(), id, cause: Box::new(cause) })?;
    stored(&copies);
    Ok(Version { id, manifest, holders: copies.holders })
}

/// Writes the newest version of `name` to `sink`, in order, with up to `pipeline` chunks asked for ahead.
///
/// # Errors
/// When there is no such name or it cannot be read as a whole. Bytes may have been written by then; they are good
/// only when this returns `Ok`.
pub fn get_file(
    service: &dyn ChunkService,
    name: &str,
    sink: &mut dyn Write,
    pipeline: usize,
) -> Result<Version, Error> {
    let version = newest(service, name)?;
    read_version(service, &version, sink, pipeline)?;
    Ok(version)
}

/// Writes one version to `sink` and checks its length and hash.
///
/// # Errors
/// As [`get_file`].
pub fn read_version(
    service: &dyn ChunkService,
    version: &Version,
    sink: &mut dyn Write,
    pipeline: usize,
) -> Result<(), Error> {
    let manifest = &version.manifest;
    let mut output = Output { name: &manifest.name, sink, hasher: blake3::Hasher::new(), left: manifest.size };
    if manifest.indirect {
        for index in &manifest.entries {
            let bytes = fetch(service, &manifest.name, *index)?;
            let entries = manifest::decode_index(&bytes).map_err(|why| Error::Manifest { id: index.id, why })?;
            read_entries(service, &entries, &mut output, pipeline)?;
        }
    } else {
        read_entries(service, &manifest.entries, &mut output, pipeline)?;
    }
    output.finish(manifest)
}

/// The newest version of `name`. A manifest with fewer copies than promised, because its put was broken off or targets
/// were lost, is put again first: who reads after this call finds no older version.
///
/// # Errors
/// When there is none, when targets in as many failure domains as copies are silent, so that only they might know a newer
/// one, or when the newest has too few copies, no more can be made, and silent targets do not account for the missing ones.
pub fn newest(service: &dyn ChunkService, name: &str) -> Result<Version, Error> {
    newest_said_by(service, name, Scope::LiveOf)
}

fn newest_said_by(service: &dyn ChunkService, name: &str, whom: impl Fn(ChunkId) -> Scope) -> Result<Version, Error> {
    let mut found = versions(service, name, whom)?;
    // A version of which all copies were heard of needs nobody's silence. What does is concluded from a long one.
    let brief = found.brief;
    let surely = |outcome| if brief { newest_said_by(service, name, Scope::GroupOf) } else { outcome };
    let Some((id, holders)) = found.chunks.pop() else {
        return surely(Err(Error::NotFound(name.to_owned())));
    };
    let mut version = open(service, name, id, holders)?;
    let map = service.map();
    let copies = usize::from(map.copies);
    if map.domains(&version.holders) >= copies {
        return Ok(version);
    }
    let whole_with_silent = map.may_hide(&[&version.holders[..], &found.silent].concat());
    let answering = map.members(map.group_of(&id)).map(|target| target.id).filter(|id| !found.silent.contains(id));
    if whole_with_silent && map.domains(&answering.collect::<Vec<NodeId>>()) < copies {
        // It may have been promised, and another copy could not be made now: to wait for one would keep everybody from
        // reading.
        return surely(Ok(version));
    }
    match service.put(id, Bytes::from(version.manifest.encode())).wait() {
        Ok(stored) => {
            version.holders = stored.holders;
            Ok(version)
        }
        Err(_) if whole_with_silent => surely(Ok(version)),
        Err(cause) => Err(Error::Put { name: name.to_owned(), id, cause: Box::new(cause) }),
    }
}

/// Fetches and reads the manifest `id` of a version of `name`.
///
/// # Errors
/// When it cannot be had or is not a manifest of that name.
pub fn open(service: &dyn ChunkService, name: &str, id: ChunkId, holders: Vec<NodeId>) -> Result<Version, Error> {
    let fetched =
        service.get(id).wait().map_err(|cause| Error::Get { name: name.to_owned(), id, cause: Box::new(cause) })?;
    let manifest = read_manifest(id, &fetched).map_err(|why| Error::Manifest { id, why })?;
    if manifest.name != name {
        return Err(Error::Manifest { id, why: manifest::Malformed::Name });
    }
    Ok(Version { id, manifest, holders })
}

/// The newest version of every name in the cluster.
///
/// # Errors
/// When the targets cannot be asked. Silent targets and unreadable manifests are part of the answer.
pub fn list(service: &dyn ChunkService, pipeline: usize) -> Result<Listing, Error> {
    let what = "all files";
    let found = service.list(Scope::Cluster, vec![ChunkKind::Manifest as u8]).wait();
    let found = found.map_err(|cause| Error::List { name: what.to_owned(), cause: Box::new(cause) })?;
    let mut newest = BTreeMap::new();
    for (id, holders) in found.chunks {
        // Ids ascend, so the last of a name is its newest.
        let mut name = [0; ChunkId::NAME_LEN];
        name.copy_from_slice(&id.bytes()[..ChunkId::NAME_LEN]);
        newest.insert(name, (id, holders));
    }
    let incomplete = service.map().may_hide(&found.silent);
    let mut listing = Listing { silent: found.silent, incomplete, ..Listing::default() };
    let mut flight = VecDeque::new();
    for (id, holders) in newest.into_values() {
        if flight.len() >= pipeline.max(1) {
            flight.pop_front().into_iter().for_each(|asked| add_listed(&mut listing, asked));
        }
        flight.push_back((id, holders, service.get(id)));
    }
    flight.into_iter().for_each(|asked| add_listed(&mut listing, asked));
    Ok(listing)
}

type Asked = (ChunkId, Vec<NodeId>, Pending<Result<Fetched, ServiceError>>);

fn add_listed(listing: &mut Listing, (id, holders, pending): Asked) {
    let manifest = match pending.wait() {
        // A version of an object in a bucket: no file.
        Ok(fetched) if fetched.pieces.first().is_some_and(|piece| piece.starts_with(&record::MAGIC)) => return,
        Ok(fetched) => read_manifest(id, &fetched).map_err(|why| why.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match manifest {
        Ok(manifest) => {
            listing.files.insert(manifest.name.clone(), Version { id, manifest, holders });
        }
        Err(why) => listing.unreadable.push((id, why)),
    }
}

/// Every version of `name`, oldest first, and who is silent: too few to hide one that was acknowledged.
fn versions(service: &dyn ChunkService, name: &str, whom: impl Fn(ChunkId) -> Scope) -> Result<Found, Error> {
    if !manifest::valid_name(name) {
        return Err(Error::Name(name.to_owned()));
    }
    let mut prefix = vec![ChunkKind::Manifest as u8];
    prefix.extend(ChunkId::name_prefix(name));
    let any = ChunkId::of_manifest(name, 0, &[]);
    let mut found = service
        .list(whom(any), prefix)
        .wait()
        .map_err(|cause| Error::List { name: name.to_owned(), cause: Box::new(cause) })?;
    if service.map().may_hide(&found.silent) {
        let silent = found.silent.iter().map(|n| n.0.to_string()).collect::<Vec<_>>().join(", ");
        return Err(Error::Silent { name: name.to_owned(), silent });
    }
    found.chunks.sort_by_key(|(id, _)| *id);
    Ok(found)
}

fn read_manifest(id: ChunkId, fetched: &Fetched) -> Result<Manifest, manifest::Malformed> {
    let manifest = Manifest::decode(&fetched.pieces.concat())?;
    if id.version_ms() != Some(manifest.created_ms & LAST_MS) {
        return Err(manifest::Malformed::Version);
    }
    Ok(manifest)
}

/// Up to `size` bytes; fewer only at the end of the source.
fn read_chunk(source: &mut dyn Read, size: usize) -> std::io::Result<Bytes> {
    let mut buffer = Vec::new();
    source.take(size as u64).read_to_end(&mut buffer)?;
    Ok(Bytes::from(buffer))
}

/// A chunk and the answer it waits for.
type Flying = (Entry, Pending<Result<Stored, ServiceError>>);

/// The chunks of one put: those on their way, and the ids for the manifest.
struct Writer<'a> {
    service: &'a dyn ChunkService,
    name: &'a str,
    options: &'a PutOptions,
    stored: &'a mut dyn FnMut(&Stored),
    flight: VecDeque<Flying>,
    /// Entries of the present index chunk, or of the manifest while they fit.
    leaf: Vec<Entry>,
    /// Index chunks so far.
    top: Vec<Entry>,
}

impl Writer<'_> {
    fn payload(&mut self, chunk: Bytes) -> Result<(), Error> {
        if self.leaf.len() == self.options.entries {
            self.flush()?;
        }
        let entry = self.send(chunk)?;
        self.leaf.push(entry);
        Ok(())
    }

    /// Puts the present entries as an index chunk.
    fn flush(&mut self) -> Result<(), Error> {
        if self.top.len() == self.options.entries {
            return Err(Error::TooLarge(self.name.to_owned()));
        }
        let index = manifest::encode_index(&self.leaf);
        self.leaf.clear();
        let entry = self.send(Bytes::from(index))?;
        self.top.push(entry);
        Ok(())
    }

    fn send(&mut self, chunk: Bytes) -> Result<Entry, Error> {
        while self.flight.len() >= self.options.pipeline.max(1) {
            self.land()?;
        }
        let entry = Entry::new(ChunkId::of_payload(&chunk), chunk.len() as u32);
        self.flight.push_back((entry, self.service.put(entry.id, chunk)));
        Ok(entry)
    }

    /// Waits for the oldest chunk.
    fn land(&mut self) -> Result<(), Error> {
        let Some((entry, pending)) = self.flight.pop_front() else { return Ok(()) };
        let outcome = pending.wait();
        let copies =
            outcome.map_err(|cause| Error::Put { name: self.name.to_owned(), id: entry.id, cause: Box::new(cause) })?;
        (self.stored)(&copies);
        Ok(())
    }

    /// Waits for all; whether the manifest names index chunks, and what it names.
    fn finish(mut self) -> Result<(bool, Vec<Entry>), Error> {
        let indirect = !self.top.is_empty();
        if indirect {
            self.flush()?;
        }
        while !self.flight.is_empty() {
            self.land()?;
        }
        Ok((indirect, if indirect { self.top } else { self.leaf }))
    }
}

/// Where a get goes, with what was promised of it.
struct Output<'a> {
    name: &'a str,
    sink: &'a mut dyn Write,
    hasher: blake3::Hasher,
    /// Bytes still to come.
    left: u64,
}

impl Output<'_> {
    fn write(&mut self, entry: Entry, fetched: &Fetched) -> Result<(), Error> {
        let length: usize = fetched.pieces.iter().map(Bytes::len).sum();
        if length as u64 != u64::from(entry.length) {
            return Err(self.mismatch("a chunk's length"));
        }
        self.left = self.left.checked_sub(length as u64).ok_or_else(|| self.mismatch("its length"))?;
        for piece in &fetched.pieces {
            self.hasher.update(piece);
            self.sink.write_all(piece).map_err(|cause| Error::Write { name: self.name.to_owned(), cause })?;
        }
        Ok(())
    }

    fn mismatch(&self, what: &'static str) -> Error {
        Error::Mismatch { name: self.name.to_owned(), what }
    }

    fn finish(self, manifest: &Manifest) -> Result<(), Error> {
        if self.left != 0 {
            return Err(self.mismatch("its length"));
        }
        if self.hasher.finalize().as_bytes() != &manifest.hash {
            return Err(self.mismatch("its hash"));
        }
        self.sink.flush().map_err(|cause| Error::Write { name: self.name.to_owned(), cause })
    }
}

fn read_entries(
    service: &dyn ChunkService,
    entries: &[Entry],
    output: &mut Output<'_>,
    pipeline: usize,
) -> Result<(), Error> {
    let mut flight = VecDeque::new();
    let mut ahead = entries.iter();
    loop {
        while flight.len() < pipeline.max(1) {
            let Some(entry) = ahead.next() else { break };
            flight.push_back((*entry, service.get(entry.id)));
        }
        let Some((entry, pending)) = flight.pop_front() else { return Ok(()) };
        let outcome = pending.wait();
        let fetched = outcome.map_err(|cause| Error::Get {
            name: output.name.to_owned(),
            id: entry.id,
            cause: Box::new(cause),
        })?;
        output.write(entry, &fetched)?;
    }
}

fn fetch(service: &dyn ChunkService, name: &str, entry: Entry) -> Result<Vec<u8>, Error> {
    let fetched = service.get(entry.id).wait().map_err(|cause| Error::Get {
        name: name.to_owned(),
        id: entry.id,
        cause: Box::new(cause),
    })?;
    Ok(fetched.pieces.concat())
}
