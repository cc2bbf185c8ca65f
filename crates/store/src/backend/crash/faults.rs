//! What can be made to go wrong with a disk in memory.

use std::io;

use protocol::id::ChunkId;
use protocol::rng::Rng;

use super::{CrashBackend, Disk, File, PAGE, SECTOR};
use crate::IDENTITY;
use crate::record::{ALIGN, Header, IDENTITY_LEN, Identity, Kind, RECORD_HEADER};

/// How syncs fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncFault {
    /// The next one; Linux reports a page that could not be written once.
    Once,
    /// All, until the disk is well.
    Always,
}

/// Where a byte rots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// Anywhere in what was written behind a segment's first record header.
    Anywhere,
    /// In a record's header.
    Header,
    /// In a tombstone.
    Tombstone,
    /// In the last record of the newest segment.
    Tail,
}

/// What rotted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rot {
    /// Payload.
    Payload,
    /// A record's header, or a tombstone.
    Header,
}

pub(super) fn refused() -> io::Error {
    io::Error::other("the disk said no")
}

impl Disk {
    /// Whether the machine runs.
    pub(super) fn runs(&self) -> io::Result<()> {
        if self.stopped { Err(io::Error::other("the machine stopped")) } else { Ok(()) }
    }

    /// One change more; the one that burns the fuse is cut off half-way.
    pub(super) fn burn(&mut self) -> io::Result<()> {
        self.fuse = match self.fuse {
            Some(0) => {
                self.stopped = true;
                None
            }
            Some(left) => Some(left - 1),
            None => None,
        };
        self.runs()
    }

    /// Names of new files and removals are durable. That holds for all of the directory at once.
    pub(super) fn sync_directory(&mut self) {
        self.unlinked.clear();
        self.files.values_mut().for_each(|file| file.unnamed = false);
    }

    /// The secret of the store that is here.
    fn secret(&self) -> u64 {
        let identity = self.files.get(IDENTITY).and_then(|file| Identity::decode(file.live.get(..IDENTITY_LEN)?));
        identity.map_or(0, |identity| identity.secret)
    }

    pub(super) fn revive(&mut self) {
        self.stopped = false;
        self.fuse = None;
    }
}

impl File {
    /// Brings the dirty pages to the medium.
    pub(super) fn write_back(&mut self) {
        for (offset, len) in std::mem::take(&mut self.unsynced) {
            let from = offset / PAGE * PAGE;
            let to = (offset + len).next_multiple_of(PAGE).min(self.live.len());
            self.durable[from..to].copy_from_slice(&self.live[from..to]);
        }
    }

    /// A sync has failed: pages are clean from now on, whether they were written, are only in the cache, or not even that.
    pub(super) fn drop_pages(&mut self, rng: &mut Rng) {
        let mood = rng.below(3);
        for (offset, len) in std::mem::take(&mut self.unsynced) {
            let mut at = offset / PAGE * PAGE;
            while at < offset + len {
                let end = (at + PAGE).min(self.live.len());
                match if mood == 2 { rng.below(3) } else { mood } {
                    0 => {}
                    1 => self.durable[at..end].copy_from_slice(&self.live[at..end]),
                    _ => self.live[at..end].copy_from_slice(&self.durable[at..end]),
                }
                at = end;
            }
        }
    }

    /// The record headers: where, and what they say.
    fn headers(&self, secret: u64) -> impl DoubleEndedIterator<Item = (usize, Header)> {
        (0..self.live.len() / ALIGN as usize)
            .map(|n| n * ALIGN as usize)
            .filter_map(move |at| Some((at, Header::decode(&self.live[at..], secret, at as u64)?)))
    }

    fn rot(&mut self, at: usize) {
        self.live[at] ^= 0x10;
        self.durable[at] ^= 0x10;
    }
}

impl CrashBackend {
    /// Flips one byte of a segment somewhere behind its first record's header, in what was written. Returns whether there
    /// was one.
    pub fn flip_byte(&self, seed: u64) -> bool {
        self.rot(seed, Spot::Anywhere).is_some()
    }

    /// Flips one byte of what was written to a segment; `None` when there is nothing of the kind.
    pub fn rot(&self, seed: u64, spot: Spot) -> Option<Rot> {
        let mut rng = Rng::new(seed);
        let mut disk = self.disk();
        let secret = disk.secret();
        let segments = disk.files.iter_mut().filter(|(name, _)| name.starts_with("segment-")).map(|(_, file)| file);
        let mut segments: Vec<&mut File> = segments.filter(|file| file.headers(secret).next().is_some()).collect();
        let file = match spot {
            Spot::Tail => segments.pop()?,
            Spot::Tombstone => {
                segments.retain(|file| file.headers(secret).any(|(_, header)| header.kind == Kind::Tombstone));
                let nth = rng.below(segments.len() as u64) as usize;
                segments.into_iter().nth(nth)?
            }
            Spot::Anywhere | Spot::Header => {
                let nth = rng.below(segments.len() as u64) as usize;
                segments.into_iter().nth(nth)?
            }
        };
        let headers: Vec<(usize, Header)> = file
            .headers(secret)
            .filter(|(_, header)| spot != Spot::Tombstone || header.kind == Kind::Tombstone)
            .collect();
        let at = match spot {
            Spot::Anywhere => {
                let used = file.live.iter().rposition(|byte| *byte != 0).filter(|used| *used > 192)?;
                128 + rng.below((used - 128) as u64) as usize
            }
            Spot::Header | Spot::Tombstone => {
                headers[rng.below(headers.len() as u64) as usize].0 + rng.below(RECORD_HEADER) as usize
            }
            Spot::Tail => {
                let (at, header) = headers.last()?;
                at + rng.below(RECORD_HEADER + u64::from(header.len)) as usize
            }
        };
        let hit = |(begins, _): &(usize, Header)| (*begins..begins + RECORD_HEADER as usize).contains(&at);
        let rot = if headers.iter().any(hit) { Rot::Header } else { Rot::Payload };
        file.rot(at);
        Some(rot)
    }

    /// Flips a byte of the payload of each record of a chunk. Returns whether there was one.
    pub fn rot_chunk(&self, id: &ChunkId) -> bool {
        let mut disk = self.disk();
        let (secret, mut any) = (disk.secret(), false);
        for file in disk.files.iter_mut().filter(|(name, _)| name.starts_with("segment-")).map(|(_, file)| file) {
            let is_of = |header: &Header| header.kind == Kind::Chunk && header.id == *id && header.len > 0;
            let records: Vec<usize> =
                file.headers(secret).filter(|(_, header)| is_of(header)).map(|(at, _)| at).collect();
            any |= !records.is_empty();
            records.into_iter().for_each(|at| file.rot(at + RECORD_HEADER as usize));
        }
        any
    }

    /// From now on a sector of what was written to a segment cannot be read, until it is written again. Returns whether
    /// there was one.
    pub fn lose_sector(&self, seed: u64) -> bool {
        let mut rng = Rng::new(seed);
        let mut disk = self.disk();
        let secret = disk.secret();
        let segments = disk.files.iter_mut().filter(|(name, _)| name.starts_with("segment-")).map(|(_, file)| file);
        let mut segments: Vec<&mut File> = segments.filter(|file| file.headers(secret).next().is_some()).collect();
        let nth = rng.below(segments.len() as u64) as usize;
        let Some(file) = segments.get_mut(nth) else { return false };
        let used = file.live.iter().rposition(|byte| *byte != 0).unwrap_or(0);
        file.unreadable.insert(rng.below((used / SECTOR) as u64 + 1) as usize);
        true
    }

    /// Gives up what cannot be read: zeros stand there from now on, as after a copy of the disk to a new one. Returns
    /// whether there was anything.
    pub fn give_up_unreadable(&self) -> bool {
        let mut any = false;
        for file in self.disk().files.values_mut() {
            for sector in std::mem::take(&mut file.unreadable) {
                let end = ((sector + 1) * SECTOR).min(file.live.len());
                file.live[sector * SECTOR..end].fill(0);
                file.durable[sector * SECTOR..end].fill(0);
                any = true;
            }
        }
        any
    }

    /// The machine stops in the midst of the change after `changes` more: of a write, a sync, a new file or a removal. From
    /// then on nothing works, until [`CrashBackend::crash`] or [`CrashBackend::kill`].
    pub fn stop_after(&self, changes: u64) {
        self.disk().fuse = Some(changes);
    }

    /// Whether the machine stopped.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.disk().stopped
    }

    /// Only the process was at an end: what it wrote is in the page cache.
    pub fn kill(&self) {
        self.disk().revive();
    }

    /// Whether new files find no room.
    pub fn set_full(&self, full: bool) {
        self.disk().full = full;
    }

    /// Whether syncs fail.
    pub fn set_fail_sync(&self, fail: bool) {
        self.set_sync_fault(fail.then_some(SyncFault::Always));
    }

    /// How syncs fail. One that fails makes pages clean: each may be on the medium, or only in the cache, which shows it
    /// until the power fails, or the cache shows again what was there before. A later sync says nothing of them.
    pub fn set_sync_fault(&self, fault: Option<SyncFault>) {
        self.disk().sync_fault = fault;
    }

    /// Whether writes fail. The first half of what they bring is written all the same.
    pub fn set_fail_write(&self, fail: bool) {
        self.disk().fail_write = fail;
    }

    /// Whether reads fail.
    pub fn set_fail_read(&self, fail: bool) {
        self.disk().fail_read = fail;
    }
}
