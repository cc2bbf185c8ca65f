//! Files in memory, which take no time and end with the process.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Backend;

type Files = BTreeMap<String, Vec<u8>>;

/// Files in memory. Clones share them, so that they can outlive the store that uses them.
#[derive(Clone, Debug, Default)]
pub struct MemoryBackend {
    files: Arc<Mutex<Files>>,
}

impl MemoryBackend {
    /// No files yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn missing(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, name.to_owned())
}

impl Backend for MemoryBackend {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        Ok(self.files().iter().map(|(name, file)| (name.clone(), file.len() as u64)).collect())
    }

    fn create(&self, name: &str, len: u64) -> io::Result<()> {
        let mut files = self.files();
        if files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        files.insert(name.to_owned(), vec![0; len as usize]);
        Ok(())
    }

    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let files = self.files();
        let file = files.get(name).ok_or_else(|| missing(name))?;
        let bytes = file.get(offset as usize..offset as usize + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut files = self.files();
        let file = files.get_mut(name).ok_or_else(|| missing(name))?;
        let at = offset as usize;
        let end = at + bytes.len();
        file.resize(file.len().max(end), 0);
        file[at..end].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.files().get(name).map(drop).ok_or_else(|| missing(name))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files().remove(name).map(drop).ok_or_else(|| missing(name))
    }
}
