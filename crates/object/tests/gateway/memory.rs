//! Chunks in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use object::objects::{Sealed, Source};
use object::{ChunkService, Entry, Manifest, Pending, ServiceError, manifest};
use protocol::id::{ChunkId, ChunkKind, ClusterId, Epoch, NodeId, TxnId, coded};
use protocol::initiator::{
    ChunkPut, Discard, Discarded, Fetched, Found, GetError, Mark, Marked, Payload, PutError, Stored,
};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::promise::{Stamps, Verdict};
use protocol::redundancy::{Piece, Pieces, Redundancy};
use protocol::time::Span;

/// An object that comes in one piece.
pub(crate) struct All(pub(crate) Option<Bytes>);

impl Source for All {
    fn next(&mut self) -> Result<Option<Bytes>, Box<dyn Error + Send + Sync>> {
        Ok(self.0.take())
    }

    fn digest(&mut self, _: &Bytes) {}

    fn seal(&mut self, size: u64) -> Result<Sealed, Box<dyn Error + Send + Sync>> {
        Ok(Sealed { etag: size.to_string(), ..Sealed::default() })
    }
}

/// Targets in these failure domains, with ids from 1 on, in one group, and three copies.
pub(crate) fn map(domains: &[u16]) -> ClusterMap {
    let entry = |(id, domain): (u32, &u16)| TargetEntry { id: NodeId(id), domain: *domain, capacity: 1 << 30 };
    ClusterMap::new(ClusterId(1), Epoch(1), 3, 3, (1..).zip(domains).map(entry).collect()).unwrap()
}

#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) chunks: Mutex<BTreeMap<ChunkId, Bytes>>,
    /// Whether no copy can be made.
    pub(crate) full: bool,
    pub(crate) silent: Vec<NodeId>,
    /// Chunks of this kind are on targets outside of their groups: only who knows their holders gets them.
    pub(crate) elsewhere: Option<ChunkKind>,
    /// Four targets in a domain each, if not this.
    pub(crate) map: Option<ClusterMap>,
    pub(crate) flying: std::sync::Arc<AtomicUsize>,
    pub(crate) most: AtomicUsize,
    /// Bytes that were fetched.
    pub(crate) fetched: std::sync::Arc<AtomicUsize>,
    /// The targets' marks, and what is known of each chunk by them.
    pub(crate) marks: AtomicUsize,
    /// What was put as a removal.
    pub(crate) removals: Mutex<BTreeSet<ChunkId>>,
    /// With which redundancy each chunk was put last.
    pub(crate) kept: Mutex<BTreeMap<ChunkId, Option<Redundancy>>>,
    pub(crate) stamps: Mutex<BTreeMap<ChunkId, Stamps>>,
}

impl Memory {
    /// Stores a file as earlier versions did, in chunks of so many bytes, with index chunks of so many entries if the
    /// manifest shall name those; its manifest.
    pub(crate) fn put_file(
        &self,
        name: &str,
        created_ms: u64,
        bytes: &[u8],
        chunk_size: usize,
        fanout: Option<usize>,
    ) -> ChunkId {
        let send = |chunk: Vec<u8>| {
            let entry = Entry::new(ChunkId::of_payload(&chunk), chunk.len() as u32);
            self.put(ChunkPut::new(entry.id, chunk.into())).wait().unwrap();
            entry
        };
        let mut entries: Vec<Entry> = bytes.chunks(chunk_size).map(|chunk| send(chunk.to_vec())).collect();
        if let Some(fanout) = fanout {
            entries = entries.chunks(fanout).map(|leaf| send(manifest::encode_index(leaf))).collect();
        }
        let manifest = Manifest {
            name: name.to_owned(),
            size: bytes.len() as u64,
            created_ms,
            hash: *blake3::hash(bytes).as_bytes(),
            chunk_size: chunk_size as u32,
            indirect: fanout.is_some(),
            entries,
        };
        let bytes = Bytes::from(manifest.encode());
        let id = ChunkId::of_manifest(name, created_ms, &bytes);
        self.put(ChunkPut::new(id, bytes)).wait().unwrap();
        id
    }

    fn store(&self, id: ChunkId, payload: Bytes, full: bool) -> Pending<Result<Stored, ServiceError>> {
        assert!(id.code().is_some() || id.matches([&payload[..]]));
        self.most.fetch_max(self.flying.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        self.stamps.lock().unwrap().entry(id).or_default().promise(self.marks.load(Ordering::SeqCst) as u32);
        if !full {
            self.chunks.lock().unwrap().insert(id, payload);
        }
        let flying = self.flying.clone();
        Pending::new(move || {
            flying.fetch_sub(1, Ordering::SeqCst);
            if full {
                return Err(PutError::TooFewCopies {
                    have: vec![],
                    domains: 0,
                    possible: 0,
                    want: 3,
                    least: 2,
                    silent: vec![],
                    full: vec![],
                }
                .into());
            }
            let holders = vec![NodeId(1), NodeId(2), NodeId(3)];
            Ok(Stored { holders, copies: 3, wanted: 3, took: Span::from_millis(1), rounds: 1 })
        })
    }
}

impl ChunkService for Memory {
    fn put(&self, ChunkPut { id, payload, redundancy, removal }: ChunkPut) -> Pending<Result<Stored, ServiceError>> {
        self.kept.lock().unwrap().insert(id, redundancy);
        if removal {
            self.removals.lock().unwrap().insert(id);
        }
        let payload = match payload {
            Payload::Copies(bytes) => bytes,
            Payload::Pieces(pieces) => coded::join_all(&pieces).expect("all pieces").concat().into(),
        };
        self.store(id, payload, self.full && !removal)
    }

    fn get_fragments(
        &self,
        id: ChunkId,
        holders: Vec<NodeId>,
        fragments: Option<Pieces>,
    ) -> Pending<Result<Fetched, ServiceError>> {
        let found = self.chunks.lock().unwrap().get(&id).cloned();
        let elsewhere = self.elsewhere.is_some_and(|kind| kind == id.kind()) && holders.is_empty();
        let found = found.filter(|_| !elsewhere);
        let fetched = self.fetched.clone();
        Pending::new(move || {
            let mut bytes = found.ok_or(GetError::NotFound)?;
            if let (Some(code), Some(fragments)) = (id.code(), fragments) {
                let range = |piece: Piece| code.range(usize::from(piece.0), bytes.len());
                bytes = fragments.iter().flat_map(|piece| bytes[range(piece)].to_vec()).collect::<Vec<u8>>().into();
            }
            fetched.fetch_add(bytes.len(), Ordering::SeqCst);
            let first = bytes.split_to(bytes.len() / 2);
            Ok(Fetched { pieces: vec![first, bytes], from: NodeId(1), took: Span::from_millis(1), rounds: 1 })
        })
    }

    fn list(&self, prefix: Vec<u8>) -> Pending<Result<Found, ServiceError>> {
        let chunks = self.chunks.lock().unwrap();
        let ids = chunks.keys().filter(|id| id.encode().starts_with(&prefix));
        let holders = || (1..=3).map(NodeId).collect();
        let found = Found { chunks: ids.map(|id| (*id, holders())).collect(), silent: self.silent.clone() };
        Pending::new(move || Ok(found))
    }

    fn renew(&self, id: ChunkId, _: Option<Redundancy>) -> Pending<Result<bool, ServiceError>> {
        let there = self.chunks.lock().unwrap().contains_key(&id);
        self.stamps.lock().unwrap().entry(id).or_default().promise(self.marks.load(Ordering::SeqCst) as u32);
        Pending::new(move || Ok(there))
    }

    fn mark(&self) -> Pending<Result<Marked, ServiceError>> {
        let name = TxnId(self.marks.fetch_add(1, Ordering::SeqCst) as u64 + 1);
        let marked = Marked { mark: Mark { name, epoch: Epoch(1) }, silent: self.silent.clone() };
        Pending::new(move || Ok(marked))
    }

    fn discard(&self, discard: Discard) -> Pending<Result<Discarded, ServiceError>> {
        let (mut chunks, mut stamps) = (self.chunks.lock().unwrap(), self.stamps.lock().unwrap());
        let mut done = Discarded::default();
        let since = discard.since.map_or(0, |since| since.name.0 as u32);
        for (id, holders) in discard.chunks {
            let judged = stamps.entry(id).or_default().judge(discard.mark.name.0 as u32, since);
            if judged == Verdict::Drop {
                done.copies += holders.len() as u64;
                done.bytes += chunks.remove(&id).unwrap().len() as u64;
            }
        }
        Pending::new(move || Ok(done))
    }

    fn map(&self) -> ClusterMap {
        self.map.clone().unwrap_or_else(|| map(&[1, 2, 3, 4]))
    }
}
