//! Winning back what nothing refers to any more.

use std::ops::ControlFlow;

use bytes::Bytes;
use protocol::id::ChunkId;

use crate::bug::Bug;
use crate::record::Kind;
use crate::recovery::Found;
use crate::usage::Segment;
use crate::{ReadError, RecordLocation, Store, WriteError, lock, segment_name, write_error};

/// Live records are moved in batches of this part of a segment.
const BATCHES: u64 = 64;
/// A segment is emptied when more than this part of it is dead,
const HALF: u64 = 2;
/// and this one while the reserve is in use.
const TIGHT: u64 = 64;

/// Segments worth emptying, and how far the first of them is.
#[derive(Debug)]
pub struct Compaction {
    /// Segments and their dead bytes, the one with the most last.
    candidates: Vec<(u32, u64)>,
    /// The live records of the last candidate that are still to be moved, once it was looked at.
    live: Option<std::vec::IntoIter<(ChunkId, RecordLocation)>>,
    /// Why a segment had to stay that the disk does not read.
    read_error: Option<WriteError>,
}

/// What one step of a compaction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It moved live records of so many bytes.
    Moved(u64),
    /// It emptied a segment, which won so many bytes: the compaction is over.
    Won(u64),
    /// There is nothing to win.
    Nothing,
}

impl Store {
    /// Empties the segment with the most dead bytes, if more than half of it is dead, or some of it while the reserve is in
    /// use: its live records are appended again and made durable, then the file goes. One with something in it that is needed
    /// and cannot be read has to stay, and the next has its turn. Writes go on meanwhile: `pause` is called with the bytes of
    /// each batch after it was moved, may wait there, and may break off (the next call goes on). Returns the bytes won; `None`
    /// when there is nothing to win, or it was broken off. Only one thread may call it.
    ///
    /// # Errors
    /// No room, or the disk failed: nothing is lost. A segment that the disk does not read is an error when there is nothing
    /// else to win.
    pub fn compact(&self, pause: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<Option<u64>, WriteError> {
        let mut compaction = self.compaction();
        loop {
            match self.step(&mut compaction)? {
                Step::Moved(bytes) if pause(bytes).is_break() => return Ok(None),
                Step::Moved(_) => {}
                Step::Won(bytes) => return Ok(Some(bytes)),
                Step::Nothing => return Ok(None),
            }
        }
    }

    /// Begins what [`Store::compact`] does, to be done in steps.
    #[must_use]
    pub fn compaction(&self) -> Compaction {
        let usage = lock(&self.usage);
        // While the reserve is in use, also little is worth it: tombstones must not run out of room before half of some
        // segment is dead.
        let part = if usage.files() > self.most() { TIGHT } else { HALF };
        let mut candidates = usage.deadest(part);
        drop(usage);
        candidates.reverse();
        Compaction { candidates, live: None, read_error: None }
    }

    /// Takes the next step. Anything may be written and read between two steps, but there is one compaction at a time.
    ///
    /// # Errors
    /// Those of [`Store::compact`].
    pub fn step(&self, compaction: &mut Compaction) -> Result<Step, WriteError> {
        while let Some((segment, dead)) = compaction.candidates.last().copied() {
            let live = compaction.live.get_or_insert_with(|| self.live_of(segment));
            match self.move_batch(live)? {
                // Damaged: the scrub reports it and forgets it, or leaves it when the disk does not read it at all.
                None => {}
                Some(bytes) if bytes > 0 => return Ok(Step::Moved(bytes)),
                Some(_) => match self.tombstones(segment) {
                    Ok(tombstones) if self.remove_emptied(segment, dead, &tombstones)? => return Ok(Step::Won(dead)),
                    Ok(_) => {}
                    Err(error) => compaction.read_error = Some(error),
                },
            }
            // It has to stay for now.
            compaction.candidates.pop();
            compaction.live = None;
        }
        compaction.read_error.take().map_or(Ok(Step::Nothing), Err)
    }

    fn live_of(&self, segment: u32) -> std::vec::IntoIter<(ChunkId, RecordLocation)> {
        let index = self.index();
        let here = index.iter().filter(|(_, place)| place.segment == segment);
        here.map(|(id, place)| (*id, *place)).collect::<Vec<_>>().into_iter()
    }

    /// Moves some live records, durably: how many bytes, 0 when all are moved; `None` when one cannot be read.
    fn move_batch(&self, live: &mut std::vec::IntoIter<(ChunkId, RecordLocation)>) -> Result<Option<u64>, WriteError> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        for (id, place) in live {
            match self.read(&id) {
                Ok(payload) => batch.push((id, place, payload)),
                Err(ReadError::Missing) => {}
                Err(ReadError::Corrupt | ReadError::Exhausted(_) | ReadError::Io(_)) => return Ok(None),
            }
            bytes += place.record_len();
            if bytes * BATCHES >= self.options.segment_size {
                break;
            }
        }
        self.relocate(&mut batch)?;
        Ok(Some(bytes))
    }

    /// Removes a segment whose live records were moved, and which has these tombstones; `false` when it holds something that
    /// has to stay for now.
    fn remove_emptied(&self, segment: u32, dead: u64, tombstones: &[ChunkId]) -> Result<bool, WriteError> {
        let mut writer = lock(&self.writer);
        // What was put again and is not visible yet must not be taken for removed.
        self.sync_locked(&mut writer)?;
        let buries = lock(&self.usage).first_buried().is_some_and(|first| first < segment);
        for id in tombstones.iter().filter(|id| self.contains(id).is_none()) {
            if lock(&self.damaged).contains(id) {
                self.bury_damaged(&mut writer, id, self.all())?;
            } else if buries && !self.has(Bug::DropTombstones) {
                self.write_tombstone(&mut writer, id, &[], self.all())?;
            }
        }
        self.sync_locked(&mut writer)?;
        if lock(&self.usage).get(segment).live > 0 {
            return Ok(false);
        }
        self.backend.remove(&segment_name(segment)).map_err(|error| write_error(&error))?;
        lock(&self.usage).reclaim(segment, dead);
        Ok(true)
    }

    /// Appends records again, durably, unless they were removed in the meantime.
    fn relocate(&self, batch: &mut Vec<(ChunkId, RecordLocation, Bytes)>) -> Result<(), WriteError> {
        let mut writer = lock(&self.writer);
        for (id, place, payload) in batch.drain(..) {
            let is_there = |now: &RecordLocation| now.position() == place.position();
            // One that is on its way was written for more than this one is kept for.
            if !writer.is_coming(&id) && self.index().get(&id).is_some_and(is_there) {
                let moved = self.write(&mut writer, Kind::Chunk, &id, place.wanted, &[payload], self.all())?;
                writer.pending.push((id, Some(RecordLocation { stamps: place.stamps, ..moved })));
            }
        }
        self.commit(&mut writer, !self.has(Bug::RemoveBeforeSync))
    }

    /// Chunks whose newest record in a segment is a tombstone. While an older segment may hold a record of them, it
    /// outlives its segment, or that record would come back.
    fn tombstones(&self, segment: u32) -> Result<Vec<ChunkId>, WriteError> {
        let Segment { file, tombstones, .. } = lock(&self.usage).get(segment);
        if tombstones == 0 {
            // It may go though the disk does not read it any more.
            return Ok(Vec::new());
        }
        let mut found = Found::new(self.identity, None);
        found.scan(self.backend.as_ref(), segment, file, false).map_err(|error| WriteError::Io(error.to_string()))?;
        Ok(found.tombstones().collect())
    }
}
