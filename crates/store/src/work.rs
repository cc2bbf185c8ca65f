//! What a target machine asks of its store, done alike by every driver.
//!
//! [`Store::work`] answers what waits for nothing. Reads go to the reader, one by one. Writes go to the writer: those that wait
//! are appended as a [`Group`], and one sync makes all of it durable. In between a driver may have payload verified ahead.

use bytes::Bytes;
use protocol::census::IdRange;
use protocol::id::{ChunkId, GroupId, OpId};
use protocol::machine::{Completion, Effect, ReadFailure, WriteFailure};
use protocol::map::ClusterMap;
use protocol::promise::Promise;
use protocol::redundancy::Wanted;
use protocol::wire::Usage;

use crate::bug::Bug;
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

/// What is to be made of an effect.
#[derive(Debug)]
pub enum Work {
    /// Nothing: it did not wait for the disk.
    Done(Completion),
    /// It waits for its group.
    Write(Write),
    /// It waits for the disk.
    Read(Read),
}

/// A change of the store that was asked for.
#[derive(Debug)]
pub struct Write {
    op: OpId,
    change: Change,
}

#[derive(Debug)]
enum Change {
    Append { id: ChunkId, pieces: Vec<Bytes>, verify: bool, promise: Promise, removal: bool },
    Discard { ids: Vec<ChunkId>, mark: u32, since: u32, kept_for: Option<Wanted> },
}

/// A read that was asked for.
#[derive(Debug)]
pub struct Read {
    op: OpId,
    kind: ReadKind,
}

#[derive(Debug)]
enum ReadKind {
    Chunk(ChunkId),
    Scrub {
        after: Option<ChunkId>,
        max_bytes: u64,
    },
    /// What needs no disk, and takes as long.
    Compute(Effect),
    Census {
        map: ClusterMap,
        group: GroupId,
        range: IdRange,
        salt: u64,
        after: Option<ChunkId>,
    },
}

/// What went wrong on the disk. A completion says only what the machine needs to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A write failed.
    Write(WriteError),
    /// A chunk that was asked for could not be read.
    Read(ChunkId, ReadError),
    /// A chunk could not be read in a scrub, and the error of the disk.
    Scrub(ChunkId, String),
    /// Copies that a scrub found damaged could not be struck out: the next start finds them again.
    Strike(WriteError),
}

/// Receives the completions and errors of the work.
pub trait Report {
    /// An effect is finished.
    fn done(&mut self, op: OpId, completion: Completion);
    /// Something went wrong.
    fn trouble(&mut self, trouble: Trouble);
}

/// Chunks that were appended together, and are durable with the next sync.
#[derive(Debug, Default)]
pub struct Group {
    appended: Vec<(OpId, ChunkId, Result<(), WriteFailure>)>,
    bytes: u64,
}

impl Write {
    /// Checks the bytes against the id if that is still to be done, so that their group need not.
    ///
    /// # Errors
    /// The operation, when the bytes are not those that the id names.
    pub fn verify(mut self) -> Result<Self, OpId> {
        if let Change::Append { id, pieces, verify, .. } = &mut self.change
            && core::mem::take(verify)
            && !id.matches(pieces.iter().map(|piece| &piece[..]))
        {
            return Err(self.op);
        }
        Ok(self)
    }
}

impl Group {
    /// Whether there is nothing to sync.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.appended.is_empty()
    }

    /// Bytes of payload in it.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its chunks, in the order in which they were appended and will be reported.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkId> {
        self.appended.iter().map(|(_, id, _)| *id)
    }
}

impl Store {
    /// Does what does not wait for the disk, and returns what does.
    #[must_use]
    pub fn work(&self, op: OpId, effect: Effect) -> Work {
        Work::Done(match effect {
            Effect::Lookup { id, promise: None } => Completion::Found(self.find(&id)),
            Effect::Lookup { id, promise: Some(promise) } => Completion::Found(self.find_promised(&id, promise)),
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
            Effect::Missing { after, limit } => {
                let (ids, more) = self.missing(after.as_ref(), limit);
                Completion::Listed { ids, more }
            }
            effect @ (Effect::Verify { .. } | Effect::Decode { .. }) => {
                return Work::Read(Read { op, kind: ReadKind::Compute(effect) });
            }
            Effect::Write { id, pieces, verify, promise, removal } => {
                return Work::Write(Write { op, change: Change::Append { id, pieces, verify, promise, removal } });
            }
            Effect::Discard { ids, mark, since, kept_for } => {
                return Work::Write(Write { op, change: Change::Discard { ids, mark, since, kept_for } });
            }
            Effect::Read { id } => return Work::Read(Read { op, kind: ReadKind::Chunk(id) }),
            Effect::Census { map, group, range, salt, after } => {
                return Work::Read(Read { op, kind: ReadKind::Census { map, group, range, salt, after } });
            }
            Effect::Scrub { after, max_bytes } => {
                return Work::Read(Read { op, kind: ReadKind::Scrub { after, max_bytes } });
            }
        })
    }

    /// Appends what waits, at most `most` of it. It is durable only after [`Store::end_group`], so a crash in between tears
    /// it. Discards have syncs of their own, and are done in their turn.
    pub fn begin_group(&self, waiting: impl Iterator<Item = Write>, most: usize, report: &mut impl Report) -> Group {
        let mut group = Group::default();
        for write in waiting.take(most) {
            match write.change {
                Change::Append { id, pieces, verify, promise, removal } => {
                    group.bytes += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
                    let result = if verify && !id.matches(pieces.iter().map(|piece| &piece[..])) {
                        Err(WriteFailure::BadHash)
                    } else {
                        let append = if removal { Self::append_removal } else { Self::append };
                        append(self, &id, &pieces, promise).map_err(|error| failed(error, report))
                    };
                    group.appended.push((write.op, id, result));
                }
                Change::Discard { ids, mark, since, kept_for } => {
                    let done = self.discard_kept_for(&ids, mark, since, kept_for);
                    done.failed.iter().for_each(|error| report.trouble(Trouble::Write(error.clone())));
                    report.done(write.op, done.into());
                }
            }
        }
        group
    }

    /// Makes a group durable, and reports what became of each of its chunks.
    pub fn end_group(&self, group: Group, report: &mut impl Report) {
        let mut synced = self.sync().map_err(|error| failed(error, report));
        if self.has(Bug::IgnoreFailedSync) {
            synced = Ok(());
        }
        let free = self.space().free;
        for (op, _, result) in group.appended {
            report.done(op, Completion::Written { result: result.and(synced), free });
        }
    }

    /// Does what was asked of the disk. The bytes that were read.
    pub fn answer(&self, read: Read, report: &mut impl Report) -> u64 {
        let (bytes, completion) = match read.kind {
            ReadKind::Chunk(id) => {
                let result = self.read(&id);
                if let Err(error) = &result {
                    report.trouble(Trouble::Read(id, error.clone()));
                }
                let bytes = result.as_ref().map_or(0, |payload| payload.len() as u64);
                (bytes, Completion::Read(result.map_err(|error| (&error).into())))
            }
            ReadKind::Compute(effect) => match effect.compute() {
                Ok(completion) => (0, completion),
                Err(_) => return 0,
            },
            ReadKind::Census { map, group, range, salt, after } => {
                let holding = self.census(range, salt, after, |id| map.group_of(id) == group);
                (0, Completion::Counted(holding))
            }
            ReadKind::Scrub { after, max_bytes } => {
                let scrubbed = self.scrub(after, max_bytes);
                for (id, problem) in scrubbed.unreadable {
                    report.trouble(Trouble::Scrub(id, problem));
                }
                let result = scrubbed.failed.map_or(Ok(()), |error| {
                    let failure = (&error).into();
                    report.trouble(Trouble::Strike(error));
                    Err(failure)
                });
                let (next, bytes, bad) = (scrubbed.next, scrubbed.bytes, scrubbed.bad);
                (bytes, Completion::Scrubbed { next, bytes, bad, result })
            }
        };
        report.done(read.op, completion);
        bytes
    }
}

fn failed(error: WriteError, report: &mut impl Report) -> WriteFailure {
    let failure = (&error).into();
    report.trouble(Trouble::Write(error));
    failure
}
