//! Counting on chunks that another version has: each has its copies promised first, as by a put of it, so that a cleaner
//! that does not see the new version yet leaves them.

use std::collections::VecDeque;

use protocol::id::coded;
use protocol::initiator::ChunkPut;
use protocol::redundancy::Redundancy;

use super::write::is_kept;
use super::{Kept, ObjectError, Objects, failed};
use crate::manifest::{self, Entry};
use catalog::object_manifest::{Body, ObjectManifest};

/// Chunks that are asked for at once.
const PIPELINE: usize = 16;

impl Objects {
    /// Counts on all chunks of a record, with the redundancy that it has. Where that is a code, or was one, and they are not kept so, they
    /// are put again, and the record names these.
    pub(super) fn renew(&self, record: &mut ObjectManifest) -> Result<Kept, ObjectError> {
        let redundancy = record.redundancy();
        if let Some(kept) = self.renew_as_kept(&record.body, redundancy)? {
            return Ok(kept);
        }
        let (body, kept) = self.put_again(&self.entries(&record.body)?, redundancy)?;
        record.body = body;
        Ok(kept)
    }

    /// Counts on all chunks of a body; `None` when some are not kept so.
    fn renew_as_kept(&self, body: &Body, redundancy: Option<Redundancy>) -> Result<Option<Kept>, ObjectError> {
        let are_kept = |entries: &[Entry]| entries.iter().all(|entry| is_kept(entry, redundancy));
        let mut kept = Kept::default();
        match body {
            Body::Chunks(entries) if are_kept(entries) => {
                kept = self.renew_entries(entries.iter().copied(), redundancy)?;
            }
            Body::Chunks(_) => return Ok(None),
            Body::Indexed(indexes) => {
                for (index, _) in indexes {
                    let below = self.below(index)?;
                    if !are_kept(&below) {
                        return Ok(None);
                    }
                    kept.and(self.renew_entries(std::iter::once(*index).chain(below), redundancy)?);
                }
            }
            Body::Inline(_) | Body::InManifest => {}
        }
        Ok(Some(kept))
    }

    /// All payload chunks that a body names.
    fn entries(&self, body: &Body) -> Result<Vec<Entry>, ObjectError> {
        match body {
            Body::Chunks(entries) => Ok(entries.clone()),
            Body::Indexed(indexes) => {
                let below = |(index, _): &(Entry, u64)| self.below(index);
                Ok(indexes.iter().map(below).collect::<Result<Vec<_>, _>>()?.concat())
            }
            Body::Inline(_) | Body::InManifest => Ok(vec![]),
        }
    }

    /// The chunks that an index chunk names.
    fn below(&self, index: &Entry) -> Result<Vec<Entry>, ObjectError> {
        let bytes = self.fetch(index.id)?;
        manifest::decode_index(&bytes).map_err(|why| ObjectError::Manifest { id: index.id, why })
    }

    pub(super) fn renew_entries(
        &self,
        entries: impl Iterator<Item = Entry>,
        redundancy: Option<Redundancy>,
    ) -> Result<Kept, ObjectError> {
        let (mut flight, mut kept) = (VecDeque::new(), Kept::default());
        let mut note = |flying| self.renewed(flying, redundancy).map(|renewed| kept.and(renewed));
        for entry in entries {
            if flight.len() >= PIPELINE {
                flight.pop_front().into_iter().try_for_each(&mut note)?;
            }
            flight.push_back((entry.id, self.service.renew(entry.id, redundancy.map(Redundancy::in_copies))));
        }
        flight.into_iter().try_for_each(note)?;
        Ok(kept)
    }

    /// Where there is too little of the chunk, it is put again.
    fn renewed(&self, (id, pending): Renewing, redundancy: Option<Redundancy>) -> Result<Kept, ObjectError> {
        let mut kept = Kept::default();
        if !pending.wait().map_err(failed(id))? {
            let bytes = self.fetch(id)?;
            let put = match id.code().and_then(|code| coded::cut(code, &bytes)) {
                Some(pieces) => ChunkPut::coded(pieces),
                None => ChunkPut { redundancy, ..ChunkPut::new(id, bytes) },
            };
            let stored = self.service.put(put).wait();
            kept.note(&stored.map_err(failed(id))?);
        }
        Ok(kept)
    }
}

type Renewing = (protocol::id::ChunkId, crate::Pending<Result<bool, crate::ServiceError>>);
