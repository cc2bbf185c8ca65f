//! Counting on chunks that another version has: each has its copies promised first, as by a put of it, so that a cleaner
//! that does not see the new version yet leaves them.

use std::collections::VecDeque;

use protocol::id::coded;
use protocol::initiator::ChunkPut;
use protocol::redundancy::Redundancy;

use super::{Kept, ObjectError, Objects, failed};
use crate::manifest::{self, Entry};
use catalog::object_manifest::{Body, ObjectRecord};

/// Chunks that are asked for at once.
const PIPELINE: usize = 16;

impl Objects {
    /// Counts on all chunks of a record, with the redundancy that it has.
    pub(super) fn renew(&self, record: &ObjectRecord) -> Result<Kept, ObjectError> {
        let (redundancy, mut kept) = (record.redundancy(), Kept::default());
        match &record.body {
            Body::Chunks(entries) => self.renew_entries(entries.iter().copied(), redundancy),
            Body::Indexed(indexes) => {
                for (index, _) in indexes {
                    kept.and(self.renew_entries(std::iter::once(*index), redundancy)?);
                    let bytes = self.fetch(index.id)?;
                    let entries = manifest::decode_index(&bytes);
                    let entries = entries.map_err(|why| ObjectError::Manifest { id: index.id, why })?;
                    kept.and(self.renew_entries(entries.into_iter(), redundancy)?);
                }
                Ok(kept)
            }
            Body::Inline(_) | Body::InManifest => Ok(kept),
        }
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
