//! A disk in memory that fails as disks under Linux do: a power cut forgets and tears what was not synced, a failed sync
//! may have dropped pages for good, reads fail, bits rot, and it can stop in the midst of anything.

mod faults;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::rng::Rng;

use super::Backend;

pub use faults::{Rot, Spot, SyncFault};

const SECTOR: usize = 512;
/// What the kernel caches, writes back, and drops as a whole.
const PAGE: usize = 4_096;

#[derive(Debug, Default)]
struct File {
    /// What is on the medium.
    durable: Vec<u8>,
    /// What reads see: the page cache.
    live: Vec<u8>,
    /// Writes that a sync still has to bring to the medium: offset and length.
    unsynced: Vec<(usize, usize)>,
    /// Sectors that cannot be read until they are written again.
    unreadable: BTreeSet<usize>,
    /// Whether a power cut may take the file away, because its directory was not synced since.
    unnamed: bool,
}

#[derive(Debug)]
struct Disk {
    files: BTreeMap<String, File>,
    /// Files that were removed, but whose directory was not synced since: a power cut may bring them back.
    unlinked: BTreeMap<String, File>,
    full: bool,
    sync_fault: Option<SyncFault>,
    fail_write: bool,
    fail_read: bool,
    /// After so many more changes the machine stops in the midst of one.
    fuse: Option<u64>,
    stopped: bool,
    /// Whether reads show the medium and not the page cache.
    inspected: bool,
    rng: Rng,
}

/// A disk in memory. Clones share their contents, so that one can outlive the store that uses it.
#[derive(Clone, Debug)]
pub struct CrashBackend {
    disk: Arc<Mutex<Disk>>,
}

impl Default for CrashBackend {
    fn default() -> Self {
        Self::seeded(0)
    }
}

impl CrashBackend {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty disk whose faults `seed` decides.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        let disk = Disk {
            files: BTreeMap::new(),
            unlinked: BTreeMap::new(),
            full: false,
            sync_fault: None,
            fail_write: false,
            fail_read: false,
            fuse: None,
            stopped: false,
            inspected: false,
            rng: Rng::new(seed),
        };
        Self { disk: Arc::new(Mutex::new(disk)) }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the power, and has it back: each sector of each unsynced write is kept or lost, as `seed` decides, and so are
    /// changes of the directory that were not synced.
    pub fn crash(&self, seed: u64) {
        let mut rng = Rng::new(seed);
        let mut disk = self.disk();
        disk.revive();
        for (name, file) in std::mem::take(&mut disk.unlinked) {
            if rng.chance(1, 2) {
                disk.files.entry(name).or_insert(file);
            }
        }
        disk.files.retain(|_, file| !std::mem::take(&mut file.unnamed) || rng.chance(1, 2));
        for file in disk.files.values_mut() {
            let File { durable, live, unsynced, .. } = file;
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

    /// Inspects what is on the medium: the reads of `read` bypass the page cache, and no transient fault fails them.
    pub fn inspect<T>(&self, read: impl FnOnce() -> T) -> T {
        self.disk().inspected = true;
        let seen = read();
        self.disk().inspected = false;
        seen
    }
}

fn missing(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, name.to_owned())
}

impl Backend for CrashBackend {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let disk = self.disk();
        disk.runs()?;
        Ok(disk.files.iter().map(|(name, file)| (name.clone(), file.live.len() as u64)).collect())
    }

    fn create(&self, name: &str, len: u64) -> io::Result<()> {
        let mut disk = self.disk();
        disk.runs()?;
        if disk.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if disk.files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        // Stopped between the file, its blocks and its name.
        let stopped = disk.burn();
        let len = if stopped.is_err() { disk.rng.below(3) * len / 2 } else { len };
        let zeros = vec![0; len as usize];
        let file = File { durable: zeros.clone(), live: zeros, unnamed: stopped.is_err(), ..File::default() };
        disk.files.insert(name.to_owned(), file);
        stopped?;
        disk.sync_directory();
        Ok(())
    }

    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let disk = self.disk();
        if !disk.inspected {
            disk.runs()?;
            if disk.fail_read {
                return Err(faults::refused());
            }
        }
        let file = disk.files.get(name).ok_or_else(|| missing(name))?;
        let (at, end) = (offset as usize, offset as usize + buffer.len());
        let shown = if disk.inspected { &file.durable } else { &file.live };
        let bytes = shown.get(at..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        if file.unreadable.range(at / SECTOR..end.div_ceil(SECTOR)).next().is_some() {
            return Err(faults::refused());
        }
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.disk();
        disk.runs()?;
        let stopped = disk.burn();
        let fails = disk.fail_write || stopped.is_err();
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
        file.unreadable.retain(|sector| sector * SECTOR < at || end < (sector + 1) * SECTOR);
        stopped?;
        if fails { Err(faults::refused()) } else { Ok(()) }
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        let mut disk = self.disk();
        disk.runs()?;
        disk.burn()?;
        let Disk { files, sync_fault, rng, .. } = &mut *disk;
        let file = files.get_mut(name).ok_or_else(|| missing(name))?;
        if let Some(fault) = *sync_fault {
            file.drop_pages(rng);
            if fault == SyncFault::Once {
                *sync_fault = None;
            }
            return Err(faults::refused());
        }
        file.write_back();
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut disk = self.disk();
        disk.runs()?;
        let stopped = disk.burn();
        let file = disk.files.remove(name).ok_or_else(|| missing(name))?;
        if stopped.is_err() {
            disk.unlinked.insert(name.to_owned(), file);
            return stopped;
        }
        disk.sync_directory();
        Ok(())
    }
}
