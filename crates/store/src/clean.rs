//! Forgetting chunks that nothing refers to.

use std::sync::PoisonError;

use protocol::id::ChunkId;
use protocol::promise::{Promise, Verdict};
use protocol::redundancy::Wanted;

use crate::bug::Bug;
use crate::{RecordLocation, Store, WriteError, bury, lock};

/// What became of chunks that nothing refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Which are forgotten, durably, the first being the lowest bit.
    pub dropped: u32,
    /// Bytes of their records.
    pub bytes: u64,
    /// Why some that may go did not.
    pub failed: Option<WriteError>,
}

impl Store {
    /// The size of a chunk that is durable here and kept for what is wanted, on which somebody counts from now on. What the disk
    /// does not read is none of these.
    #[must_use]
    pub fn promise(&self, id: &ChunkId, promise: impl Into<Promise>) -> Option<u32> {
        let promise = promise.into();
        let place = *self.index().get(id)?;
        let mut stamps = place.stamps;
        stamps.keep(promise);
        if stamps != place.stamps && !self.has(Bug::NameUnpromised) {
            let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
            index.get_mut(id)?.stamps.keep(promise);
        }
        let serves = place.serves(promise) || self.has(Bug::ForgetWanted);
        (serves && !lock(&self.damaged).is_unread(id)).then_some(place.len)
    }

    /// Judges chunks, 32 at most, and forgets those that may go, with one sync.
    ///
    /// A chunk leaves the index in the step that judges it, before its tombstone is written: a look-up either promised
    /// it in time, or finds it gone, so that it is put again, behind the tombstone. When there is no room for the
    /// tombstone, the chunk is back. When the disk fails, it is not: the tombstone may be there at the next start, so
    /// the chunk must not be promised until then.
    #[must_use]
    pub fn discard(&self, ids: &[ChunkId], mark: u32, since: u32) -> Discarded {
        self.discard_kept_for(ids, mark, since, None)
    }

    /// The same; copies that are kept for more than this stay.
    #[must_use]
    pub fn discard_kept_for(&self, ids: &[ChunkId], mark: u32, since: u32, most: Option<Wanted>) -> Discarded {
        let mut writer = lock(&self.writer);
        let gone = self.take_condemned(ids, mark, since, most);
        let mut done = Discarded::default();
        let mut written = Vec::new();
        for (bit, id, place) in gone {
            match self.write_tombstone(&mut writer, &id, &[], self.for_tombstones()) {
                Ok(()) => written.push((bit, place)),
                Err(error) => {
                    if !matches!(error, WriteError::Io(_)) {
                        self.put_back(id, place);
                    }
                    done.failed = Some(error);
                }
            }
        }
        if let Err(error) = self.settle_damaged(&mut writer, ids) {
            done.failed = Some(error);
        }
        // Also what a write that failed on the way had staged.
        if let Err(error) = self.sync_locked(&mut writer) {
            written.clear();
            done.failed = Some(error);
        }
        for (bit, place) in written {
            done.dropped |= 1 << bit;
            done.bytes += place.record_len();
        }
        done
    }

    fn take_condemned(
        &self,
        ids: &[ChunkId],
        mark: u32,
        since: u32,
        most: Option<Wanted>,
    ) -> Vec<(usize, ChunkId, RecordLocation)> {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let mut gone = Vec::new();
        for (bit, id) in ids.iter().enumerate().take(32) {
            let Some(place) = index.get_mut(id).filter(|place| most.is_none_or(|most| most.covers(place.wanted)))
            else {
                continue;
            };
            if place.stamps.judge(mark, since) == Verdict::Drop {
                let place = *place;
                index.remove(id);
                bury(&mut lock(&self.usage), place);
                gone.push((bit, *id, place));
            }
        }
        gone
    }

    fn put_back(&self, id: ChunkId, place: RecordLocation) {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        index.insert(id, place);
        lock(&self.usage).change(place.segment, |segment| {
            segment.live += place.record_len();
            segment.buried -= 1;
        });
    }
}
