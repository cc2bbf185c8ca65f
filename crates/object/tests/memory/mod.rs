//! Chunks in memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use object::objects::{Sealed, Source};
use object::{ChunkService, Pending, ServiceError};
use protocol::id::{ChunkId, ClusterId, Epoch, NodeId, TxnId};
use protocol::initiator::{Discard, Discarded, Fetched, Found, GetError, Mark, Marked, PutError, Scope, Stored};
use protocol::machine::{Stamps, Verdict};
use protocol::map::{ClusterMap, TargetEntry};
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
    /// Chunks with fewer copies than three, and their number.
    pub(crate) few: Mutex<BTreeMap<ChunkId, u32>>,
    /// Whether no copy can be made.
    pub(crate) full: bool,
    pub(crate) silent: Vec<NodeId>,
    /// Four targets in a domain each, if not this.
    pub(crate) map: Option<ClusterMap>,
    /// Who has the copies, if not the first.
    pub(crate) holders: Option<Vec<NodeId>>,
    /// Who of the silent answers after all when all patience is asked for.
    pub(crate) slow: Vec<NodeId>,
    /// The scopes of the lists that were asked for.
    pub(crate) scopes: Mutex<Vec<Scope>>,
    pub(crate) flying: std::sync::Arc<AtomicUsize>,
    pub(crate) most: AtomicUsize,
    /// The targets' marks, and what is known of each chunk by them.
    pub(crate) marks: AtomicUsize,
    /// What was put as a removal.
    pub(crate) removals: Mutex<BTreeSet<ChunkId>>,
    pub(crate) stamps: Mutex<BTreeMap<ChunkId, Stamps>>,
}

impl Memory {
    fn store(&self, id: ChunkId, payload: Bytes, full: bool) -> Pending<Result<Stored, ServiceError>> {
        assert!(id.matches([&payload[..]]));
        self.most.fetch_max(self.flying.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        self.stamps.lock().unwrap().entry(id).or_default().promise(self.marks.load(Ordering::SeqCst) as u32);
        if !full {
            self.chunks.lock().unwrap().insert(id, payload);
            self.few.lock().unwrap().remove(&id);
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
                    silent: vec![],
                    full: vec![],
                }
                .into());
            }
            Ok(Stored { holders: vec![NodeId(1), NodeId(2), NodeId(3)], took: Span::from_millis(1), rounds: 1 })
        })
    }
}

impl ChunkService for Memory {
    fn put(&self, id: ChunkId, payload: Bytes) -> Pending<Result<Stored, ServiceError>> {
        self.store(id, payload, self.full)
    }

    fn put_removal(&self, id: ChunkId, payload: Bytes) -> Pending<Result<Stored, ServiceError>> {
        self.removals.lock().unwrap().insert(id);
        self.store(id, payload, false)
    }

    fn get(&self, id: ChunkId) -> Pending<Result<Fetched, ServiceError>> {
        let found = self.chunks.lock().unwrap().get(&id).cloned();
        Pending::new(move || {
            let mut bytes = found.ok_or(GetError::NotFound)?;
            let first = bytes.split_to(bytes.len() / 2);
            Ok(Fetched { pieces: vec![first, bytes], from: NodeId(1), took: Span::from_millis(1), rounds: 1 })
        })
    }

    fn list(&self, scope: Scope, prefix: Vec<u8>) -> Pending<Result<Found, ServiceError>> {
        let chunks = self.chunks.lock().unwrap();
        let few = self.few.lock().unwrap();
        let holders = |id| match &self.holders {
            Some(holders) => holders.clone(),
            None => (1..=few.get(id).copied().unwrap_or(3)).map(NodeId).collect(),
        };
        let ids = chunks.keys().filter(|id| id.encode().starts_with(&prefix));
        let brief = matches!(scope, Scope::LiveOf(_)) && !self.silent.is_empty();
        let mut silent = self.silent.clone();
        silent.retain(|node| brief || !self.slow.contains(node));
        let found = Found { chunks: ids.map(|id| (*id, holders(id))).collect(), silent, brief };
        self.scopes.lock().unwrap().push(scope);
        Pending::new(move || Ok(found))
    }

    fn renew(&self, id: ChunkId) -> Pending<Result<bool, ServiceError>> {
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
