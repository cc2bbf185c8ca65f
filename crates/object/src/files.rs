//! Files as earlier versions kept them: each with a manifest and a name of its own, beside the objects. They are read
//! here, so that they can become objects, and their manifests dropped.

use std::collections::VecDeque;
use std::io::{self, Read};

use bytes::{Buf, Bytes};
use protocol::id::{ChunkId, ChunkKind, NodeId};
use protocol::initiator::{Discard, Fetched, Mark};

use crate::manifest::{self, Entry, Malformed, Manifest};
use crate::service::{ChunkService, Pending, ServiceError};
use catalog::object_manifest;

/// Chunks that are asked for ahead.
const PIPELINE: usize = 8;
/// Manifests in one discard.
const BATCH: usize = 1_024;
/// Times that all targets are asked before one that is silent ends it: on a busy machine one may be so for a moment.
const ASKED: usize = 10;

/// Why files could not be found, read or dropped.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The targets could not be asked.
    #[error("the targets could not be asked: {0}")]
    Service(ServiceError),
    /// What only silent targets hold is not known.
    #[error("targets {0} are silent, were restarted, or know a newer cluster map: start them, then try again")]
    Silent(String),
    /// A chunk could not be fetched.
    #[error("chunk {0} cannot be had: {1}")]
    Chunk(ChunkId, Box<ServiceError>),
    /// A manifest or an index chunk is damaged, or of a newer version.
    #[error("{0} cannot be read: {1}")]
    Malformed(ChunkId, Malformed),
    /// The chunks are good, but together they are not the file that was put.
    #[error("the bytes read are not the file that was put ({0})")]
    Mismatch(&'static str),
}

/// A chunk and its holders.
type Held = (ChunkId, Vec<NodeId>);

/// The newest version of a file.
#[derive(Clone, Debug)]
pub struct File {
    /// Its manifest chunk.
    pub id: ChunkId,
    /// What the manifest says.
    pub manifest: Manifest,
    /// The manifests of all its versions, this one included, with their holders.
    pub versions: Vec<(ChunkId, Vec<NodeId>)>,
}

/// Hands over every file of the cluster, or why one cannot be read. Ends early when `each` says so with an error.
///
/// # Errors
/// Those of `each`, and when a target is silent: nothing may be left behind.
pub fn each_file<E: From<FileError>>(
    service: &dyn ChunkService,
    each: &mut dyn FnMut(Result<File, FileError>) -> Result<(), E>,
) -> Result<(), E> {
    // In steps, so that no more ids are in memory than those of a part of the names.
    for first in 0..=u8::MAX {
        let found = complete(|| service.list(vec![ChunkKind::Manifest as u8, first]).wait(), |found| &found.silent)?;
        let mut names = by_name(found.chunks).into_iter();
        let mut flight = VecDeque::new();
        loop {
            while flight.len() < PIPELINE {
                let Some(versions) = names.next() else { break };
                let Some((id, holders)) = versions.last().cloned() else { continue };
                flight.push_back((id, service.get_listed(id, holders), versions));
            }
            let Some((id, pending, versions)) = flight.pop_front() else { break };
            match open(id, pending) {
                Ok(None) => {}
                Ok(Some(manifest)) => each(Ok(File { id, manifest, versions }))?,
                Err(error) => each(Err(error))?,
            }
        }
    }
    Ok(())
}

/// The versions of each name, oldest first: ids ascend, by name and then by time.
fn by_name(mut chunks: Vec<Held>) -> Vec<Vec<Held>> {
    chunks.sort();
    let mut names: Vec<Vec<Held>> = vec![];
    for held in chunks {
        match names.last_mut() {
            Some(versions) if versions[0].0.placement_key() == held.0.placement_key() => versions.push(held),
            _ => names.push(vec![held]),
        }
    }
    names
}

/// The manifest of a file; `None` when it is one of an object.
fn open(id: ChunkId, pending: Pending<Result<Fetched, ServiceError>>) -> Result<Option<Manifest>, FileError> {
    let bytes = pending.wait().map_err(|error| FileError::Chunk(id, error.into()))?.pieces.concat();
    if bytes.starts_with(&object_manifest::MAGIC) {
        return Ok(None);
    }
    let manifest = Manifest::decode(&bytes).map_err(|why| FileError::Malformed(id, why))?;
    if ChunkId::of_manifest(&manifest.name, manifest.created_ms, &bytes) != id {
        return Err(FileError::Malformed(id, Malformed::Version));
    }
    Ok(Some(manifest))
}

/// An answer without silent targets, asked for again when some are.
fn complete<T>(ask: impl Fn() -> Result<T, ServiceError>, silent: impl Fn(&T) -> &Vec<NodeId>) -> Result<T, FileError> {
    let mut answer = ask().map_err(FileError::Service)?;
    for _ in 1..ASKED {
        if silent(&answer).is_empty() {
            return Ok(answer);
        }
        answer = ask().map_err(FileError::Service)?;
    }
    match silent(&answer).as_slice() {
        [] => Ok(answer),
        silent => Err(FileError::Silent(silent.iter().map(|node| node.0.to_string()).collect::<Vec<_>>().join(", "))),
    }
}

/// Reads a file in order, with some chunks asked for ahead. Its end is reached only when length and hash were those that the
/// manifest says.
pub struct Reader<'a> {
    service: &'a dyn ChunkService,
    manifest: &'a Manifest,
    /// Payload chunks that were not asked for.
    entries: VecDeque<Entry>,
    /// Index chunks that were not read.
    indexes: VecDeque<Entry>,
    flight: VecDeque<(Entry, Pending<Result<Fetched, ServiceError>>)>,
    pieces: VecDeque<Bytes>,
    hasher: blake3::Hasher,
    /// Bytes still to come.
    left: u64,
}

impl<'a> Reader<'a> {
    /// The bytes of this file.
    #[must_use]
    pub fn new(service: &'a dyn ChunkService, manifest: &'a Manifest) -> Self {
        let entries: VecDeque<Entry> = manifest.entries.iter().copied().collect();
        let (entries, indexes) =
            if manifest.indirect { (VecDeque::new(), entries) } else { (entries, VecDeque::new()) };
        let (flight, pieces, hasher) = (VecDeque::new(), VecDeque::new(), blake3::Hasher::new());
        Self { service, manifest, entries, indexes, flight, pieces, hasher, left: manifest.size }
    }

    /// The next chunk; at the end none.
    fn chunk(&mut self) -> Result<Option<Fetched>, FileError> {
        while self.flight.len() < PIPELINE {
            if let Some(entry) = self.entries.pop_front() {
                self.flight.push_back((entry, self.service.get(entry.id)));
            } else if let Some(index) = self.indexes.pop_front() {
                let fetched =
                    self.service.get(index.id).wait().map_err(|error| FileError::Chunk(index.id, error.into()))?;
                let entries = manifest::decode_index(&fetched.pieces.concat());
                self.entries.extend(entries.map_err(|why| FileError::Malformed(index.id, why))?);
            } else {
                break;
            }
        }
        let Some((entry, pending)) = self.flight.pop_front() else {
            if self.left > 0 {
                return Err(FileError::Mismatch("its length"));
            }
            let is_good = self.hasher.finalize().as_bytes() == &self.manifest.hash;
            return if is_good { Ok(None) } else { Err(FileError::Mismatch("its hash")) };
        };
        let fetched = pending.wait().map_err(|error| FileError::Chunk(entry.id, error.into()))?;
        let length: usize = fetched.pieces.iter().map(Bytes::len).sum();
        if length as u64 != u64::from(entry.length) {
            return Err(FileError::Mismatch("a chunk's length"));
        }
        self.left = self.left.checked_sub(length as u64).ok_or(FileError::Mismatch("its length"))?;
        for piece in &fetched.pieces {
            self.hasher.update(piece);
        }
        Ok(Some(fetched))
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.pieces.front_mut() {
                Some(piece) if piece.is_empty() => drop(self.pieces.pop_front()),
                Some(piece) => {
                    let count = piece.len().min(buffer.len());
                    piece.copy_to_slice(&mut buffer[..count]);
                    return Ok(count);
                }
                None => match self.chunk().map_err(io::Error::other)? {
                    Some(fetched) => self.pieces.extend(fetched.pieces),
                    None => return Ok(0),
                },
            }
        }
    }
}

/// Drops the manifests of files, which then are there no more. A cleaner drops the chunks that only they refer to.
///
/// # Errors
/// When a target does not answer; then it can be done again.
pub fn drop_files(service: &dyn ChunkService, files: &[File]) -> Result<(), FileError> {
    let all: Vec<Held> = files.iter().flat_map(|file| file.versions.iter().cloned()).collect();
    // A target drops what is discarded twice, under a mark each. Nobody puts such a manifest again, so that no time has to
    // pass between.
    let mut since: Option<Mark> = None;
    for _ in 0..2 {
        let marked = complete(|| service.mark().wait(), |marked| &marked.silent)?;
        for chunks in all.chunks(BATCH) {
            let discard = Discard { mark: marked.mark, since, chunks: chunks.to_vec() };
            complete(|| service.discard(discard.clone()).wait(), |done| &done.silent)?;
        }
        since = Some(marked.mark);
    }
    Ok(())
}
