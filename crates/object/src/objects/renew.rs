//! Counting on chunks that another version has: each has its copies promised first, as by a put of it, so that a cleaner
//! that does not see the new version yet leaves them.

use std::collections::VecDeque;

use protocol::initiator::ChunkPut;
use protocol::redundancy::Redundancy;

use super::{ObjectError, Objects, failed};
use crate::manifest::{self, Entry};
use catalog::object_manifest::{Body, ObjectRecord};

/// Chunks that are asked for at once.
const PIPELINE: usize = 16;

impl Objects {
    /// Counts on all chunks of a record, with the redundancy that it has.
    pub(super) fn renew(&self, record: &ObjectRecord) -> Result<(), ObjectError> {
        let redundancy = record.redundancy();
        match &record.body {
            Body::Chunks(entries) => self.renew_entries(entries.iter().copied(), redundancy),
            Body::Indexed(indexes) => {
                for (index, _) in indexes {
                    self.renew_entries(std::iter::once(*index), redundancy)?;
                    let bytes = self.fetch(index.id)?;
                    let entries = manifest::decode_index(&bytes);
                    let entries = entries.map_err(|why| ObjectError::Manifest { id: index.id, why })?;
                    self.renew_entries(entries.into_iter(), redundancy)?;
                }
                Ok(())
            }
            Body::Inline(_) | Body::InManifest => Ok(()),
        }
    }

    pub(super) fn renew_entries(
        &self,
        entries: impl Iterator<Item = Entry>,
        redundancy: Option<Redundancy>,
    ) -> Result<(), ObjectError> {
        let mut flight = VecDeque::new();
        for entry in entries {
            if flight.len() >= PIPELINE {
                flight.pop_front().into_iter().try_for_each(|flying| self.renewed(flying, redundancy))?;
            }
            flight.push_back((entry.id, self.service.renew(entry.id, redundancy)));
        }
        flight.into_iter().try_for_each(|flying| self.renewed(flying, redundancy))
    }

    /// Where there is too little of the chunk, it is put again.
    fn renewed(&self, (id, pending): Renewing, redundancy: Option<Redundancy>) -> Result<(), ObjectError> {
        if pending.wait().map_err(failed(id))? {
            return Ok(());
        }
        let bytes = self.fetch(id)?;
        self.service.put(ChunkPut { redundancy, ..ChunkPut::new(id, bytes) }).wait().map(drop).map_err(failed(id))
    }
}

type Renewing = (protocol::id::ChunkId, crate::Pending<Result<bool, crate::ServiceError>>);
