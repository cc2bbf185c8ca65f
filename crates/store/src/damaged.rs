//! Which copies were dropped because they were damaged, and are not here again.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::PoisonError;

use bytes::Bytes;
use protocol::id::ChunkId;

use crate::bug::Bug;
use crate::record::DAMAGED;
use crate::{RecordLocation, Store, WriteError, Writer, bury, lock};

/// Chunks that are remembered; of further ones it is only known that there are more.
const REMEMBERED: usize = 65_536;

/// Chunks whose copy here was damaged and dropped, and was not written again since.
#[derive(Debug, Default)]
pub(crate) struct Damaged {
    ids: BTreeSet<ChunkId>,
    /// Whether there are more than these.
    more: bool,
    /// Those of them whose tombstone could not be written: the next start would find them here.
    unburied: BTreeSet<ChunkId>,
    /// Copies that the disk did not read when that was tried last: no proof of damage, and nothing to count on.
    unreadable: BTreeSet<ChunkId>,
}

impl Damaged {
    pub(crate) fn add(&mut self, id: ChunkId) {
        if self.ids.len() < REMEMBERED {
            self.ids.insert(id);
        } else {
            self.more |= !self.ids.contains(&id);
        }
    }

    /// A copy is here again, or nothing refers to the chunk any more.
    pub(crate) fn settle(&mut self, id: &ChunkId) -> bool {
        self.unreadable.remove(id);
        self.unburied.remove(id);
        self.ids.remove(id)
    }

    /// It is forgotten until the next start only.
    fn owe_tombstone(&mut self, id: &ChunkId) {
        if self.ids.contains(id) {
            self.unburied.insert(*id);
        }
    }

    /// Whether the disk read a copy just now.
    pub(crate) fn note_read(&mut self, id: &ChunkId, well: bool) {
        if well {
            self.unreadable.remove(id);
        } else if self.unreadable.len() < REMEMBERED {
            self.unreadable.insert(*id);
        }
    }

    pub(crate) fn is_unread(&self, id: &ChunkId) -> bool {
        self.unreadable.contains(id)
    }

    pub(crate) fn contains(&self, id: &ChunkId) -> bool {
        self.ids.contains(id)
    }
}

impl Store {
    /// How many chunks had a copy here that was damaged and dropped, and have none here since, and how many records cannot
    /// be read in segments that are still there; and whether there may be more.
    #[must_use]
    pub fn damaged(&self) -> (u64, bool) {
        let lost = lock(&self.usage).lost();
        let damaged = lock(&self.damaged);
        (lost.saturating_add(damaged.ids.len() as u64), damaged.more || lost > 0)
    }

    /// Those chunks in order, from the one after `after` on, as far as they are remembered, and those whose copy the disk did not read when
    /// that was tried last; and whether there are more.
    #[must_use]
    pub fn missing(&self, after: Option<&ChunkId>, limit: usize) -> (Vec<ChunkId>, bool) {
        let damaged = lock(&self.damaged);
        let behind = (after.map_or(Unbounded, Excluded), Unbounded);
        let all = [&damaged.ids, &damaged.unreadable].map(|ids| ids.range(behind).take(limit + 1).copied());
        let mut ids: Vec<ChunkId> = all.into_iter().flatten().collect::<BTreeSet<_>>().into_iter().collect();
        let more = ids.len() > limit;
        ids.truncate(limit);
        (ids, more)
    }

    /// Forgets copies that were found damaged in these places (`None` when they are in none any more), durably, and remembers
    /// that it did. One that was put again meanwhile, or moved, stays. Which were forgotten; and when that is not durable, they
    /// are until the next start.
    pub(crate) fn drop_damaged(
        &self,
        found: &[(ChunkId, Option<RecordLocation>)],
    ) -> (Vec<ChunkId>, Result<(), WriteError>) {
        let mut writer = lock(&self.writer);
        // What was put again and is not visible yet counts, too.
        let synced = self.sync_locked(&mut writer);
        let is_there = |(id, place): &&(ChunkId, Option<RecordLocation>)| {
            self.has(Bug::DropPutAgain)
                || self.index().get(id).map(RecordLocation::position) == place.as_ref().map(RecordLocation::position)
        };
        let bad: Vec<ChunkId> = found.iter().filter(is_there).map(|(id, _)| *id).collect();
        // Also when no tombstone can be written: they are missed all the same.
        bad.iter().for_each(|id| lock(&self.damaged).add(*id));
        let bury = |writer: &mut Writer| {
            bad.iter().try_for_each(|id| self.bury_damaged(writer, id, self.for_tombstones()))?;
            self.sync_locked(writer)
        };
        let dropped = synced.and_then(|()| bury(&mut writer));
        if dropped.is_err() {
            for id in &bad {
                self.forget(id);
                lock(&self.damaged).owe_tombstone(id);
            }
        }
        (bad, dropped)
    }

    /// Writes the tombstones for which there was no room, as far as the chunks were not put again.
    pub(crate) fn bury_the_rest(&self) -> Result<(), WriteError> {
        if lock(&self.damaged).unburied.is_empty() {
            return Ok(());
        }
        let mut writer = lock(&self.writer);
        if writer.failed {
            return Ok(());
        }
        // What was put again and is not visible yet is settled by this.
        self.sync_locked(&mut writer)?;
        // A thread that adds to them has the writer.
        let rest = lock(&self.damaged).unburied.clone();
        rest.iter().try_for_each(|id| self.bury_damaged(&mut writer, id, self.for_tombstones()))?;
        self.sync_locked(&mut writer)?;
        lock(&self.damaged).unburied.clear();
        Ok(())
    }

    /// Forgets a bad copy until the next start, so that it does not count as one meanwhile.
    fn forget(&self, id: &ChunkId) {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let old = index.remove(id);
        old.into_iter().for_each(|old| bury(&mut lock(&self.usage), old));
    }

    /// Stages the tombstone of a copy that was damaged; the files may take `most` bytes for it.
    pub(crate) fn bury_damaged(&self, writer: &mut Writer, id: &ChunkId, most: u64) -> Result<(), WriteError> {
        self.write_tombstone(writer, id, &[Bytes::from_static(DAMAGED)], most)
    }

    /// Misses these chunks no more, to which nothing refers, as far as they are not here, and not on their way either: a
    /// tombstone would bury what was put again.
    pub(crate) fn settle_damaged(&self, writer: &mut Writer, ids: &[ChunkId]) -> Result<(), WriteError> {
        for id in ids.iter().filter(|id| self.contains(id).is_none()) {
            if (!writer.is_coming(id) || self.has(Bug::DropPutAgain)) && lock(&self.damaged).settle(id) {
                self.write_tombstone(writer, id, &[], self.for_tombstones())?;
            }
        }
        Ok(())
    }
}
