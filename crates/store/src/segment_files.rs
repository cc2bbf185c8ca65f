//! Segment files, made when they are needed or ahead of it.

use std::io;

use crate::bug::Bug;
use crate::{Store, WriteError, Writer, lock, segment_name, write_error};

/// A segment that was made ahead of its use.
#[derive(Debug)]
pub struct PreparedSegment(u32);

impl Store {
    /// Creates the segment that is needed now. When the one that is being prepared has its number, takes the next.
    pub(crate) fn create_unprepared(&self, writer: &mut Writer, most: u64) -> Result<(), WriteError> {
        match self.create_segment(writer.segment, most) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                writer.segment += 1;
                self.create_segment(writer.segment, most).map_err(|error| write_error(&error))
            }
            created => created.map_err(|error| write_error(&error)),
        }
    }

    /// Creates a segment's file, if all files then take at most `most` bytes.
    fn create_segment(&self, segment: u32, most: u64) -> io::Result<()> {
        let file = self.segment_len();
        {
            // Counted before it is there: two threads may create one at a time.
            let mut usage = lock(&self.usage);
            if usage.files() + file > most {
                return Err(io::ErrorKind::StorageFull.into());
            }
            if !usage.add(segment, file) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
        }
        let created = self.backend.create(&segment_name(segment), file);
        if created.is_err() {
            lock(&self.usage).remove(segment);
        }
        created
    }

    /// Whether the segment in use is half full, none is ready to follow it, and chunks may take one more: time for
    /// [`Store::prepare_segment`].
    #[must_use]
    pub fn wants_segment(&self) -> bool {
        self.lacks_segment() && self.may_create(self.most()).is_ok()
    }

    fn lacks_segment(&self) -> bool {
        let writer = lock(&self.writer);
        let is_due = writer.offset == 0 || writer.offset * 2 > writer.len;
        !writer.failed && writer.spare.is_none() && is_due
    }

    /// Why no segment can follow the one in use, when it is half full: chunks find no more room soon, or already.
    #[must_use]
    pub fn nearly_full(&self) -> Option<WriteError> {
        if self.lacks_segment() { self.may_create(self.most()).err() } else { None }
    }

    /// Creates the next segment ahead of time, without holding up writes, so that no write has to wait for it. Only one
    /// thread may call it.
    ///
    /// # Errors
    /// No room, or the disk failed.
    pub fn prepare_segment(&self) -> Result<(), WriteError> {
        self.make_segment()?.map_or(Ok(()), |made| self.adopt_segment(made))
    }

    /// The first half of [`Store::prepare_segment`]: makes the file, if one is wanted. Writes may go on before
    /// [`Store::adopt_segment`].
    ///
    /// # Errors
    /// No room, or the disk failed.
    pub fn make_segment(&self) -> Result<Option<PreparedSegment>, WriteError> {
        if !self.wants_segment() {
            return Ok(None);
        }
        let next = {
            let writer = lock(&self.writer);
            if writer.offset == 0 { writer.segment } else { writer.segment + 1 }
        };
        match self.create_segment(next, self.most()) {
            Ok(()) => Ok(Some(PreparedSegment(next))),
            // The writer was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(write_error(&error)),
        }
    }

    /// Hands the writer a segment that was made ahead, or removes it when the writer has passed it.
    ///
    /// # Errors
    /// The disk failed.
    pub fn adopt_segment(&self, PreparedSegment(next): PreparedSegment) -> Result<(), WriteError> {
        let mut writer = lock(&self.writer);
        if writer.segment < next || writer.segment == next && writer.offset == 0 {
            writer.spare = Some(next);
            return Ok(());
        }
        // The writer did not wait for it, and took the next number.
        self.backend.remove(&segment_name(next)).map_err(|error| write_error(&error))?;
        if !self.has(Bug::MiscountAhead) {
            lock(&self.usage).remove(next);
        }
        Ok(())
    }
}
