//! Counting on chunks that another version has: each has its copies promised first, as by a put of it, so that a cleaner
//! that does not see the new version yet leaves them.

use std::collections::VecDeque;

use super::{ObjectError, Objects, failed};
use crate::manifest::{self, Entry};
use crate::record::Body;

/// Chunks that are asked for at once.
const PIPELINE: usize = 16;

impl Objects {
    pub(super) fn renew(&self, body: &Body) -> Result<(), ObjectError> {
        match body {
            Body::Chunks(entries) => self.renew_entries(entries.iter().copied()),
            Body::Indexed(indexes) => {
                for (index, _) in indexes {
                    self.renew_entries(std::iter::once(*index))?;
                    let bytes = self.fetch(index.id)?;
                    let entries = manifest::decode_index(&bytes);
                    let entries = entries.map_err(|why| ObjectError::Manifest { id: index.id, why })?;
                    self.renew_entries(entries.into_iter())?;
                }
                Ok(())
            }
            Body::Inline(_) | Body::InManifest => Ok(()),
        }
    }

    pub(super) fn renew_entries(&self, entries: impl Iterator<Item = Entry>) -> Result<(), ObjectError> {
        let mut flight = VecDeque::new();
        for entry in entries {
            if flight.len() >= PIPELINE {
                flight.pop_front().into_iter().try_for_each(|flying| self.renewed(flying))?;
            }
            flight.push_back((entry.id, self.service.renew(entry.id)));
        }
        flight.into_iter().try_for_each(|flying| self.renewed(flying))
    }

    /// Where there are too few copies, the chunk is put again.
    fn renewed(&self, (id, pending): Renewing) -> Result<(), ObjectError> {
        if pending.wait().map_err(failed(id))? {
            return Ok(());
        }
        let bytes = self.fetch(id)?;
        self.service.put(id, bytes).wait().map(drop).map_err(failed(id))
    }
}

type Renewing = (protocol::id::ChunkId, crate::Pending<Result<bool, crate::ServiceError>>);
