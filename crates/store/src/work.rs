//! What a target machine asks of its store, answered alike by every driver.

use protocol::machine::{Completion, Effect, ReadFailure, WriteFailure};
use protocol::wire::Usage;

use crate::{Discarded, ReadError, Store, WriteError};

/// Most writes that one sync makes durable.
pub const GROUP: usize = 64;

impl From<&WriteError> for WriteFailure {
    fn from(error: &WriteError) -> Self {
        match error {
            WriteError::NoSpace | WriteError::FileSystemFull => Self::NoSpace,
            WriteError::Exhausted(_) => Self::Exhausted,
            WriteError::Io(_) => Self::Disk,
        }
    }
}

impl From<&ReadError> for ReadFailure {
    fn from(error: &ReadError) -> Self {
        match error {
            ReadError::Missing => Self::Missing,
            ReadError::Corrupt => Self::Corrupt,
            ReadError::Exhausted(_) | ReadError::Io(_) => Self::Disk,
        }
    }
}

impl From<Discarded> for Completion {
    fn from(done: Discarded) -> Self {
        let result = done.failed.as_ref().map_or(Ok(()), |error| Err(error.into()));
        Self::Discarded { dropped: done.dropped, bytes: done.bytes, result }
    }
}

impl Store {
    /// Answers what does not wait for the disk.
    ///
    /// # Errors
    /// The effect, when it does.
    pub fn at_once(&self, effect: Effect) -> Result<Completion, Effect> {
        Ok(match effect {
            Effect::Lookup { id, promise: None } => Completion::Found(self.contains(&id)),
            Effect::Lookup { id, promise: Some(mark) } => Completion::Found(self.promise(&id, mark)),
            Effect::Usage => {
                let space = self.space();
                let live = space.written.saturating_sub(space.dead);
                let (damaged, damaged_more) = self.damaged();
                let (dead, reclaimed) = (space.dead, space.reclaimed);
                Completion::Used(Usage { live, dead, reclaimed, damaged, damaged_more })
            }
            Effect::List { prefix, after, limit } => {
                let (ids, more) = self.list(&prefix, after.as_ref(), limit);
                Completion::Listed { ids, more }
            }
            Effect::Verify { id, pieces } => Completion::Verified(id.matches(pieces.iter().map(|p| &p[..]))),
            disk @ (Effect::Write { .. } | Effect::Discard { .. } | Effect::Read { .. } | Effect::Scrub { .. }) => {
                return Err(disk);
            }
        })
    }
}
