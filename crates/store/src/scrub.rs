//! Looking for copies that have rotted.

use std::sync::PoisonError;

use protocol::id::ChunkId;

use crate::bug::Bug;
use crate::{ReadError, Store, WriteError, bury, lock};

/// Most chunks that one stretch of a scrub reads: where each is a seek away, that is about half a second.
const SCRUBBED: usize = 64;

/// What a stretch of a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Where to go on; `None` when the end was reached.
    pub next: Option<ChunkId>,
    /// Bytes read.
    pub bytes: u64,
    /// Chunks whose copy was bad, and is forgotten.
    pub bad: Vec<ChunkId>,
    /// Chunks that the disk could not read, and what it said: no proof of damage, so they stay.
    pub unread: Vec<(ChunkId, String)>,
    /// Why some of the bad ones could not be forgotten durably: the next start finds these again.
    pub failed: Option<WriteError>,
}

impl Store {
    /// Verifies checksum and hash of the chunks after `after`, about `max_bytes` of them and 64 at most, and forgets bad
    /// ones, durably if the disk lets it.
    #[must_use]
    pub fn scrub(&self, after: Option<ChunkId>, max_bytes: u64) -> Scrubbed {
        let mut scrubbed = Scrubbed { next: after, ..Scrubbed::default() };
        for _ in 0..SCRUBBED {
            let next = {
                let index = self.index();
                let mut ids = index.keys();
                match scrubbed.next {
                    None => ids.next().copied(),
                    Some(last) => index.range(last..).map(|(id, _)| *id).find(|id| *id != last),
                }
            };
            let Some(id) = next else {
                scrubbed.next = None;
                return scrubbed;
            };
            scrubbed.next = Some(id);
            let good = match self.read(&id) {
                Ok(payload) => {
                    scrubbed.bytes += payload.len() as u64;
                    id.matches([&payload[..]])
                }
                Err(ReadError::Corrupt) => false,
                // Gone meanwhile.
                Err(ReadError::Missing) => true,
                Err(ReadError::Exhausted(problem) | ReadError::Io(problem)) => {
                    scrubbed.unread.push((id, problem));
                    !self.has(Bug::ForgetUnread)
                }
            };
            if !good {
                if !self.has(Bug::KeepBad)
                    && let Err(error) = self.drop_damaged(&[id])
                {
                    self.forget(&id);
                    scrubbed.failed = Some(error);
                }
                scrubbed.bad.push(id);
            }
            if scrubbed.bytes >= max_bytes {
                break;
            }
        }
        scrubbed
    }

    /// Forgets a bad copy until the next start, so that it does not count as one meanwhile.
    fn forget(&self, id: &ChunkId) {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let old = index.remove(id);
        old.into_iter().for_each(|old| bury(&mut lock(&self.usage), old));
    }
}
