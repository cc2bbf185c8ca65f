//! Files of a real directory.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::buffer::spare_capacity;
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock, statvfs};
use rustix::io::Errno;

use super::Backend;
use crate::limit;
use crate::write_buffer::BLOCK;

const LOCK: &str = "lock";
/// The mode of its files: nobody else reads what is stored.
const OWNER: u32 = 0o600;

/// A directory that this process alone uses.
#[derive(Debug)]
pub struct FileBackend {
    dir: PathBuf,
    /// The directory itself, kept open so that a process without descriptors can still make it durable.
    itself: File,
    open: Mutex<BTreeMap<String, Arc<Handles>>>,
    _lock: File,
}

/// One file, opened twice.
#[derive(Debug)]
struct Handles {
    /// Through the page cache.
    cached: File,
    /// Past it; `None` where the file system cannot.
    direct: Option<File>,
}

impl FileBackend {
    /// Opens a directory that exists.
    ///
    /// # Errors
    /// `WouldBlock` when another process has it; or the directory cannot be used.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(OWNER).open(dir.join(LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { dir: dir.to_owned(), itself: File::open(dir)?, open: Mutex::new(BTreeMap::new()), _lock: lock })
    }

    fn file(&self, name: &str) -> io::Result<Arc<Handles>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(name) {
            return Ok(Arc::clone(file));
        }
        let path = self.dir.join(name);
        let cached = OpenOptions::new().read(true).write(true).open(&path)?;
        let file = Arc::new(Handles { cached, direct: open_direct(&path)? });
        Self::keep(&mut open, name, &file);
        Ok(file)
    }

    fn keep(open: &mut BTreeMap<String, Arc<Handles>>, name: &str, file: &Arc<Handles>) {
        // Enough for the segments in use; the rest are opened again when they are read.
        if open.len() >= 128 {
            open.pop_first();
        }
        open.insert(name.to_owned(), Arc::clone(file));
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.itself.sync_all()
    }
}

/// Opens a file past the page cache; `None` where the file system cannot.
fn open_direct(path: &Path) -> io::Result<Option<File>> {
    let past = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
    match OpenOptions::new().write(true).custom_flags(past).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if limit::exceeded(&error).is_some() => Err(error),
        Err(_) => Ok(None),
    }
}

/// Whether a write may go past the page cache: with it, the processor copies no payload, and a busy disk is not held up by
/// pages that wait to be written back.
fn is_aligned(blocks: &[u8], offset: u64) -> bool {
    let whole = blocks.len().is_multiple_of(BLOCK) && offset.is_multiple_of(BLOCK as u64);
    whole && blocks.as_ptr().align_offset(BLOCK) == 0
}

impl Backend for FileBackend {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().into_string();
            if let Ok(name) = name
                && name != LOCK
                && entry.file_type()?.is_file()
            {
                files.push((name, entry.metadata()?.len()));
            }
        }
        files.sort();
        Ok(files)
    }

    fn create(&self, name: &str, len: u64) -> io::Result<()> {
        let path = self.dir.join(name);
        let cached = OpenOptions::new().create_new(true).read(true).write(true).mode(OWNER).open(&path)?;
        // Allocated, not written with zeros: that would halve the latency of a sync, but double what the disk has to take.
        let written = fallocate(&cached, FallocateFlags::empty(), 0, len)
            .map_err(io::Error::from)
            .or_else(|error| match error.kind() {
                io::ErrorKind::Unsupported => cached.set_len(len),
                _ => Err(error),
            })
            .and_then(|()| cached.sync_all())
            .and_then(|()| self.sync_dir())
            .and_then(|()| open_direct(&path));
        match written {
            // What is made can be written: the writer needs no more descriptors.
            Ok(direct) => {
                let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
                Self::keep(&mut open, name, &Arc::new(Handles { cached, direct }));
                Ok(())
            }
            Err(error) => {
                // Half a file is of no use to anybody; the first error is the one to report.
                let _ = std::fs::remove_file(&path);
                Err(error)
            }
        }
    }

    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file(name)?.cached.read_exact_at(buffer, offset)
    }

    /// Into memory that was not zeroed before.
    fn read(&self, name: &str, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let file = self.file(name)?;
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let at = offset + bytes.len() as u64;
            match rustix::io::pread(&file.cached, spare_capacity(&mut bytes), at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // An allocator may have given more than was asked for, and the file goes on.
        bytes.truncate(len);
        Ok(bytes)
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.file(name)?;
        if let Some(direct) = &file.direct
            && is_aligned(bytes, offset)
        {
            match direct.write_all_at(bytes, offset) {
                // A disk with larger blocks than ours.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                written => return written,
            }
        }
        file.cached.write_all_at(bytes, offset)
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.file(name)?.cached.sync_data()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        std::fs::remove_file(self.dir.join(name))?;
        self.sync_dir()
    }

    fn room(&self) -> Option<u64> {
        let space = statvfs(&self.dir).ok()?;
        Some(space.f_bavail.saturating_mul(space.f_frsize))
    }
}
