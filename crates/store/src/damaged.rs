//! Which copies were dropped because they were damaged, and are not here again.

use std::collections::BTreeSet;

use bytes::Bytes;
use protocol::id::ChunkId;

use crate::record::{DAMAGED, Kind};
use crate::{Store, WriteError, Writer, lock};

/// Chunks that are remembered; of further ones it is only known that there are more.
const REMEMBERED: usize = 65_536;

/// Chunks whose copy here was damaged and dropped, and was not written again since.
#[derive(Debug, Default)]
pub(crate) struct Damaged {
    ids: BTreeSet<ChunkId>,
    /// Whether there are more than these.
    more: bool,
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
        self.ids.remove(id)
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
        (damaged.ids.len() as u64 + lost, damaged.more || lost > 0)
    }

    /// Forgets damaged copies, durably, and remembers that it did.
    pub(crate) fn drop_damaged(&self, ids: &[ChunkId]) -> Result<(), WriteError> {
        // Also when no tombstone can be written: they are missed all the same.
        ids.iter().for_each(|id| lock(&self.damaged).add(*id));
        let mut writer = lock(&self.writer);
        ids.iter().try_for_each(|id| self.bury_damaged(&mut writer, id, self.for_tombstones()))?;
        self.sync_locked(&mut writer)
    }

    /// Stages the tombstone of a copy that was damaged; the files may take `most` bytes for it.
    pub(crate) fn bury_damaged(&self, writer: &mut Writer, id: &ChunkId, most: u64) -> Result<(), WriteError> {
        self.write(writer, Kind::Tombstone, id, &[Bytes::from_static(DAMAGED)], most)?;
        writer.pending.push((*id, None));
        Ok(())
    }

    /// Misses these chunks no more, to which nothing refers, as far as they are not here.
    pub(crate) fn settle_damaged(&self, writer: &mut Writer, ids: &[ChunkId]) -> Result<(), WriteError> {
        for id in ids.iter().filter(|id| self.contains(id).is_none()) {
            if lock(&self.damaged).settle(id) {
                self.write(writer, Kind::Tombstone, id, &[], self.for_tombstones())?;
                writer.pending.push((*id, None));
            }
        }
        Ok(())
    }
}
