//! Winning back what nothing refers to any more.

use std::ops::ControlFlow;

use bytes::Bytes;
use protocol::id::ChunkId;

use crate::record::Kind;
use crate::recovery::Found;
use crate::{Place, ReadError, Store, WriteError, lock, segment_name, write_error};

/// Live records are moved in batches of this part of a segment.
const BATCHES: u64 = 64;

/// What became of a segment that was to be emptied.
enum Emptied {
    Yes,
    /// It was broken off.
    Later,
    /// It holds something that has to stay for now.
    No,
}

impl Store {
    /// Empties the segment with the most dead bytes, if more than half of it is dead: its live records are appended
    /// again and made durable, then the file goes. One with a record that cannot be read has to stay, and the next has its
    /// turn. Writes go on meanwhile: `pause` is called with the bytes of each batch after it was moved, may wait there, and
    /// may break off (the next call goes on). Returns the bytes won; `None` when there is nothing to win, or it was broken
    /// off. Only one thread may call it.
    ///
    /// # Errors
    /// No room, or the disk failed: nothing is lost.
    pub fn compact(&self, pause: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<Option<u64>, WriteError> {
        let deadest = lock(&self.usage).deadest();
        for (segment, dead) in deadest {
            match self.empty(segment, dead, pause)? {
                Emptied::Yes => return Ok(Some(dead)),
                Emptied::Later => return Ok(None),
                Emptied::No => {}
            }
        }
        Ok(None)
    }

    fn empty(
        &self,
        segment: u32,
        dead: u64,
        pause: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Emptied, WriteError> {
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
                // Damaged: the scrub reports it and forgets it, or leaves it when the disk does not read it at all.
                Err(ReadError::Corrupt | ReadError::Io(_)) => return Ok(Emptied::No),
            }
            bytes += place.record_len();
            if bytes * BATCHES >= self.options.segment_size {
                self.relocate(&mut batch)?;
                if pause(bytes).is_break() {
                    return Ok(Emptied::Later);
                }
                bytes = 0;
            }
        }
        self.relocate(&mut batch)?;
        let tombstones = self.tombstones(segment)?;
        let mut writer = lock(&self.writer);
        // What was put again and is not visible yet must not be taken for removed.
        self.sync_locked(&mut writer)?;
        let buries = lock(&self.usage).first_buried().is_some_and(|first| first < segment);
        for id in tombstones.into_iter().filter(|id| self.contains(id).is_none()) {
            if lock(&self.damaged).contains(&id) {
                self.bury_damaged(&mut writer, &id)?;
            } else if buries {
                self.write(&mut writer, Kind::Tombstone, &id, &[], self.options.capacity)?;
                writer.pending.push((id, None));
            }
        }
        self.sync_locked(&mut writer)?;
        if lock(&self.usage).get(segment).live > 0 {
            return Ok(Emptied::No);
        }
        self.backend.remove(&segment_name(segment)).map_err(|error| write_error(&error))?;
        lock(&self.usage).reclaim(segment, dead);
        Ok(Emptied::Yes)
    }

    /// Appends records again, durably, unless they were removed in the meantime.
    fn relocate(&self, batch: &mut Vec<(ChunkId, Place, Bytes)>) -> Result<(), WriteError> {
        let mut writer = lock(&self.writer);
        for (id, place, payload) in batch.drain(..) {
            let is_there = |now: &Place| (now.segment, now.offset) == (place.segment, place.offset);
            if self.index().get(&id).is_some_and(is_there) {
                let place = self.write(&mut writer, Kind::Chunk, &id, &[payload], self.options.capacity)?;
                writer.pending.push((id, Some(place)));
            }
        }
        self.sync_locked(&mut writer)
    }

    /// Chunks whose newest record in a segment is a tombstone. While an older segment may hold a record of them, it
    /// outlives its segment, or that record would come back.
    fn tombstones(&self, segment: u32) -> Result<Vec<ChunkId>, WriteError> {
        let len = lock(&self.usage).get(segment).file;
        let mut found = Found::default();
        found.scan(self.backend.as_ref(), segment, len, false).map_err(|error| WriteError::Io(error.to_string()))?;
        Ok(found.tombstones().collect())
    }
}
