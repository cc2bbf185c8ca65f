//! What a store needs of a disk: a few methods over a flat directory of files.

mod crash;
mod file;
mod memory;

use std::fmt::Debug;
use std::io;

pub use crash::{CrashBackend, Rot, Spot, SyncFault};
pub use file::FileBackend;
pub use memory::MemoryBackend;

/// A flat directory of files.
pub trait Backend: Debug + Send + Sync + 'static {
    /// Names and lengths of all files.
    ///
    /// # Errors
    /// When the disk fails.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;

    /// A new file of `len` zeros; its name and its blocks are durable on return.
    ///
    /// # Errors
    /// When it exists, there is no room, or the disk fails.
    fn create(&self, name: &str, len: u64) -> io::Result<()>;

    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof` behind the end; or the disk fails.
    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// The `len` bytes from `offset` on.
    ///
    /// # Errors
    /// As [`Backend::read_at`].
    fn read(&self, name: &str, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.read_at(name, offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Writes `bytes` from `offset` on. Not durable before [`Backend::sync`].
    ///
    /// # Errors
    /// When there is no room, or the disk fails.
    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes every write to the file durable.
    ///
    /// # Errors
    /// When the disk fails; then nothing is known of the writes since the last sync.
    fn sync(&self, name: &str) -> io::Result<()>;

    /// Removes a file, durably.
    ///
    /// # Errors
    /// When the disk fails.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Bytes that new files may take; `None` when that is not known, as of memory.
    fn room(&self) -> Option<u64> {
        None
    }
}
