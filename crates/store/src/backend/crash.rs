//! A disk in memory that forgets and tears what was not synced, as a power cut does.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::rng::Rng;

use super::Backend;

const SECTOR: usize = 512;

#[derive(Debug, Default)]
struct File {
    durable: Vec<u8>,
    live: Vec<u8>,
    /// Unsynced writes: offset and length.
    unsynced: Vec<(usize, usize)>,
}

#[derive(Debug, Default)]
struct Disk {
    files: BTreeMap<String, File>,
    full: bool,
    fail_sync: bool,
    fail_write: bool,
}

/// A disk in memory. Clones share their contents, so that one can outlive the store that uses it.
#[derive(Clone, Debug, Default)]
pub struct CrashBackend {
    disk: Arc<Mutex<Disk>>,
}

impl CrashBackend {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the power: each sector of each unsynced write is kept or lost, as `seed` decides.
    pub fn crash(&self, seed: u64) {
        let mut rng = Rng::new(seed);
        for file in self.disk().files.values_mut() {
            let File { durable, live, unsynced } = file;
            for (offset, len) in unsynced.drain(..) {
                let fate = rng.below(3);
                let mut at = offset;
                while at < offset + len {
                    let end = ((at / SECTOR + 1) * SECTOR).min(offset + len);
                    if fate == 0 || (fate == 1 && rng.chance(1, 2)) {
                        durable[at..end].copy_from_slice(&live[at..end]);
                    }
                    at = end;
                }
            }
            live.clone_from(durable);
        }
    }

    /// Flips one byte of a segment somewhere behind its header, in what was written. Returns whether there was one.
    pub fn flip_byte(&self, seed: u64) -> bool {
        let mut rng = Rng::new(seed);
        let mut disk = self.disk();
        let mut spots: Vec<(&mut File, usize)> = Vec::new();
        for (name, file) in &mut disk.files {
            let used = file.live.iter().rposition(|b| *b != 0).unwrap_or(0);
            if name.starts_with("segment-") && used > 192 {
                spots.push((file, used));
            }
        }
        let count = spots.len() as u64;
        let Some((file, used)) = spots.into_iter().nth(rng.below(count) as usize) else { return false };
        let at = 128 + rng.below((used - 128) as u64) as usize;
        file.live[at] ^= 0x10;
        file.durable[at] ^= 0x10;
        true
    }

    /// Whether new files find no room.
    pub fn set_full(&self, full: bool) {
        self.disk().full = full;
    }

    /// Whether syncs fail. What was written before stays as it is: there or not after a power cut.
    pub fn set_fail_sync(&self, fail: bool) {
        self.disk().fail_sync = fail;
    }

    /// Whether writes fail. The first half of what they bring is written all the same.
    pub fn set_fail_write(&self, fail: bool) {
        self.disk().fail_write = fail;
    }
}

fn missing(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, name.to_owned())
}

impl Backend for CrashBackend {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        Ok(self.disk().files.iter().map(|(name, file)| (name.clone(), file.live.len() as u64)).collect())
    }

    fn create(&self, name: &str, len: u64) -> io::Result<()> {
        let mut disk = self.disk();
        if disk.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if disk.files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let zeros = vec![0; len as usize];
        disk.files.insert(name.to_owned(), File { durable: zeros.clone(), live: zeros, unsynced: Vec::new() });
        Ok(())
    }

    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let disk = self.disk();
        let file = disk.files.get(name).ok_or_else(|| missing(name))?;
        let end = offset as usize + buffer.len();
        let bytes = file.live.get(offset as usize..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.disk();
        let fails = disk.fail_write;
        let file = disk.files.get_mut(name).ok_or_else(|| missing(name))?;
        let bytes = if fails { &bytes[..bytes.len() / 2] } else { bytes };
        let at = offset as usize;
        let end = at + bytes.len();
        if end > file.live.len() {
            file.live.resize(end, 0);
            file.durable.resize(end, 0);
        }
        file.live[at..end].copy_from_slice(bytes);
        file.unsynced.push((at, bytes.len()));
        if fails { Err(io::Error::other("the disk said no")) } else { Ok(()) }
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        let mut disk = self.disk();
        if disk.fail_sync {
            return Err(io::Error::other("the disk said no"));
        }
        let file = disk.files.get_mut(name).ok_or_else(|| missing(name))?;
        let File { durable, live, unsynced } = file;
        for (offset, len) in unsynced.drain(..) {
            durable[offset..offset + len].copy_from_slice(&live[offset..offset + len]);
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk().files.remove(name).map(drop).ok_or_else(|| missing(name))
    }
}
