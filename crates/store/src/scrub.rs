//! Looking for copies that have rotted.

use std::ops::Bound::{Excluded, Unbounded};

use protocol::id::ChunkId;

use crate::bug::Bug;
use crate::{ReadError, Store, WriteError, lock};

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
    /// Chunks that the disk could not read, and its error: no proof of damage, so they stay.
    pub unreadable: Vec<(ChunkId, String)>,
    /// Why some of the bad ones could not be forgotten durably: the next start finds these again.
    pub failed: Option<WriteError>,
}

impl Store {
    /// Verifies checksum and hash of the chunks after `after`, about `max_bytes` of them and 64 at most, and forgets bad
    /// ones, durably if the disk lets it.
    #[must_use]
    pub fn scrub(&self, after: Option<ChunkId>, max_bytes: u64) -> Scrubbed {
        let mut scrubbed = Scrubbed { next: after, failed: self.bury_the_rest().err(), ..Scrubbed::default() };
        for _ in 0..SCRUBBED {
            let from = scrubbed.next.map_or(Unbounded, Excluded);
            let next = self.index().range((from, Unbounded)).next().map(|(id, place)| (*id, *place));
            let Some((id, place)) = next else {
                scrubbed.next = None;
                return scrubbed;
            };
            scrubbed.next = Some(id);
            let good = match self.read_place(&id, place) {
                Ok(payload) => {
                    scrubbed.bytes += payload.len() as u64;
                    lock(&self.damaged).note_read(&id, true);
                    id.matches([&payload[..]])
                }
                Err(ReadError::Corrupt) => false,
                // Gone meanwhile, or moved.
                Err(ReadError::Missing) => true,
                Err(ReadError::Exhausted(problem)) => {
                    scrubbed.unreadable.push((id, problem));
                    true
                }
                Err(ReadError::Io(problem)) => {
                    lock(&self.damaged).note_read(&id, false);
                    scrubbed.unreadable.push((id, problem));
                    !self.has(Bug::ForgetUnread)
                }
            };
            if !good && self.has(Bug::KeepBad) {
                scrubbed.bad.push(id);
            } else if !good {
                let (bad, dropped) = self.drop_damaged(&[(id, Some(place))]);
                scrubbed.bad.extend(bad);
                scrubbed.failed = dropped.err().or(scrubbed.failed);
            }
            if scrubbed.bytes >= max_bytes {
                break;
            }
        }
        scrubbed
    }
}
