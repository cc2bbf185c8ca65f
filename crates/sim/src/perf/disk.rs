//! A model of a target's disk: a rate, a fixed time for each operation, and syncs that all writes that wait share; or the
//! papers' disk, which has a rate and nothing else.

use std::collections::VecDeque;

use bytes::Bytes;
use protocol::id::{ChunkId, OpId};
use protocol::time::Span;
use store::GROUP;

use super::setup::{DiskTimes, Setup};

#[derive(Debug)]
enum Job {
    Write { op: OpId, id: ChunkId, bytes: u64 },
    Read { op: OpId, payload: Bytes },
}

/// What a disk has done.
#[derive(Debug)]
pub(super) enum Finished {
    Written { op: OpId, id: ChunkId, bytes: u64 },
    Read { op: OpId, payload: Bytes },
}

/// What follows when a write is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The hash is known at this time: [`Disk::hashed`].
    Hashed(u64),
    /// It is written at this time.
    Written(u64),
    /// It waits: [`Disk::begin`].
    Waits,
}

/// A disk: one operation after another in the order in which they came, but all writes that wait go with the first.
#[derive(Debug)]
pub(super) struct Disk {
    rate: u64,
    /// Only the rate counts, and a write is known to end when it comes.
    is_plain: bool,
    operation: u64,
    sync: u64,
    /// Bytes hashed in a second, and whether that happens before the disk is asked.
    hash: u64,
    hash_ahead: bool,
    hashed_at: u64,
    hashing: VecDeque<Job>,
    waiting: VecDeque<Job>,
    /// Under way, and when it ends; its time at work since measuring began.
    group: Vec<Job>,
    until: u64,
    pub(super) work: u64,
    pub(super) bytes: u64,
}

impl Disk {
    /// A disk of `rate` bytes per second that is `times` times slower in everything but hashing.
    pub(super) fn new(rate: u64, times: &DiskTimes, hash: u64, slower: u32) -> Self {
        let slower = u64::from(slower.max(1));
        Self {
            rate: (rate / slower).max(1),
            is_plain: false,
            operation: times.operation.as_nanos() * slower,
            sync: times.sync.as_nanos() * slower,
            hash,
            hash_ahead: times.hash_ahead,
            hashed_at: 0,
            hashing: VecDeque::new(),
            waiting: VecDeque::new(),
            group: Vec::new(),
            until: 0,
            work: 0,
            bytes: 0,
        }
    }

    /// The papers' disk.
    pub(super) fn plain(rate: u64) -> Self {
        Self { is_plain: true, ..Self::new(rate, &DiskTimes::default(), 0, 1) }
    }

    fn hash_time(&self, bytes: u64) -> u64 {
        if self.hash == 0 { 0 } else { Span::of_transfer(bytes, self.hash).as_nanos() }
    }

    /// From the hashing to the sync, for a chunk of so many bytes that no other is written with.
    pub(super) fn alone(&self, bytes: u64) -> u64 {
        self.hash_time(bytes) + self.operation + Span::of_transfer(bytes, self.rate).as_nanos() + self.sync
    }

    /// Reads it, and says nothing.
    pub(super) fn prefetch(&self) -> u64 {
        self.work ^ self.waiting.len() as u64 ^ self.group.len() as u64
    }

    /// A chunk to be hashed and made durable.
    pub(super) fn write(&mut self, now: u64, op: OpId, id: ChunkId, bytes: u64) -> Next {
        if self.is_plain {
            let takes = (u128::from(bytes) * 1_000_000_000 / u128::from(self.rate)) as u64;
            self.until = self.until.max(now) + takes;
            self.work += takes;
            self.bytes += bytes;
            return Next::Written(self.until);
        }
        let job = Job::Write { op, id, bytes };
        if self.hash_ahead && self.hash > 0 {
            self.hashed_at = self.hashed_at.max(now) + self.hash_time(bytes);
            self.hashing.push_back(job);
            return Next::Hashed(self.hashed_at);
        }
        self.waiting.push_back(job);
        Next::Waits
    }

    pub(super) fn hashed(&mut self) {
        self.waiting.extend(self.hashing.pop_front());
    }

    pub(super) fn read(&mut self, op: OpId, payload: Bytes) {
        self.waiting.push_back(Job::Read { op, payload });
    }

    /// Begins with what waits if nothing is under way: when that is done ([`Disk::finish`]).
    pub(super) fn begin(&mut self, now: u64) -> Option<u64> {
        if !self.group.is_empty() {
            return None;
        }
        let mut time = self.take()?;
        if matches!(self.group[0], Job::Write { .. }) {
            // Without a sync to share, nothing is won by waiting for each other.
            while self.sync > 0 && self.group.len() < GROUP {
                let next = self.waiting.iter().position(|job| matches!(job, Job::Write { .. }));
                let Some(job) = next.and_then(|at| self.waiting.remove(at)) else { break };
                self.waiting.push_front(job);
                time += self.take()?;
            }
            time += self.sync;
        }
        self.work += time;
        self.until = now + time;
        Some(self.until)
    }

    /// Takes the next job into the group: its time.
    fn take(&mut self) -> Option<u64> {
        let job = self.waiting.pop_front()?;
        let (bytes, hash) = match &job {
            Job::Write { bytes, .. } if self.hash_ahead => (*bytes, 0),
            Job::Write { bytes, .. } => (*bytes, self.hash_time(*bytes)),
            Job::Read { payload, .. } => (payload.len() as u64, 0),
        };
        self.group.push(job);
        Some(hash + self.operation + Span::of_transfer(bytes, self.rate).as_nanos())
    }

    /// What was under way is done.
    pub(super) fn finish(&mut self, mut each: impl FnMut(Finished)) {
        for job in self.group.drain(..) {
            match job {
                Job::Write { op, id, bytes } => {
                    self.bytes += bytes;
                    each(Finished::Written { op, id, bytes });
                }
                Job::Read { op, payload } => each(Finished::Read { op, payload }),
            }
        }
    }

    /// How many operations are here.
    pub(super) fn length(&self) -> usize {
        self.hashing.len() + self.waiting.len() + self.group.len()
    }

    /// What is not done is lost.
    pub(super) fn crash(&mut self, now: u64) {
        (self.work, self.until, self.hashed_at) = (self.worked(now), now, now);
        self.hashing.clear();
        self.waiting.clear();
        self.group.clear();
    }

    /// Measuring begins: what is under way counts from now on.
    pub(super) fn measure(&mut self, now: u64) {
        (self.work, self.bytes) = (self.until.saturating_sub(now), 0);
    }

    /// Time at work until `now`.
    pub(super) fn worked(&self, now: u64) -> u64 {
        self.work.saturating_sub(self.until.saturating_sub(now))
    }
}

impl Setup {
    /// The disk of target `n`.
    pub(super) fn disk_of(&self, n: u32) -> Disk {
        self.disk_slower_by(self.slow.of(n))
    }

    fn disk_slower_by(&self, times: u32) -> Disk {
        let rate = self.machines.disk();
        match self.machines.costs() {
            Some(costs) => Disk::new(rate, &costs.disk, costs.cpu.hash, times),
            None => Disk::plain(rate / u64::from(times)),
        }
    }

    /// The rate of a disk, so many times slower than others, at which a chunk takes as long as it does with all that it
    /// costs. Machines that reckon with a rate are told this one.
    pub(super) fn written_alone(&self, times: u32) -> Option<u64> {
        self.machines.costs()?;
        let bytes = self.mean_size().max(1.0) as u64;
        let takes = self.disk_slower_by(times).alone(bytes);
        Some((u128::from(bytes) * 1_000_000_000 / u128::from(takes.max(1))) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(sync: u64, hash: u64, hash_ahead: bool) -> Disk {
        let times = DiskTimes { operation: Span::from_micros(1), sync: Span::from_micros(sync), hash_ahead };
        Disk::new(1_000_000_000, &times, hash, 1)
    }

    fn write(disk: &mut Disk, now: u64, op: u64) -> Next {
        disk.write(now, OpId(op), ChunkId::of_payload(&op.to_le_bytes()), 10_000)
    }

    #[test]
    fn writes_that_wait_share_a_sync_and_reads_keep_their_place() {
        let mut disk = disk(20, 0, false);
        write(&mut disk, 0, 1);
        assert_eq!(disk.begin(0), Some(31_000));
        write(&mut disk, 0, 2);
        disk.read(OpId(3), Bytes::from_static(&[0; 1_000]));
        write(&mut disk, 0, 4);
        assert_eq!(disk.begin(5), None);
        let mut done = 0;
        disk.finish(|_| done += 1);
        assert_eq!((done, disk.begin(31_000)), (1, Some(31_000 + 42_000)));
        disk.finish(|_| done += 1);
        assert_eq!((done, disk.begin(73_000)), (3, Some(75_000)));
        assert_eq!(disk.worked(74_000), 74_000);
    }

    #[test]
    fn a_plain_disk_says_at_once_when_a_write_ends() {
        let mut disk = Disk::plain(1_000_000_000);
        assert_eq!((write(&mut disk, 5, 1), write(&mut disk, 6, 2)), (Next::Written(10_005), Next::Written(20_005)));
        assert_eq!((disk.worked(10_005), disk.bytes), (10_000, 20_000));
        disk.measure(15_005);
        assert_eq!((disk.worked(20_005), disk.bytes), (5_000, 0));
    }

    #[test]
    fn hashing_ahead_takes_no_time_of_the_disk() {
        let (mut ahead, mut within) = (disk(0, 1_000_000_000, true), disk(0, 1_000_000_000, false));
        assert_eq!((write(&mut within, 0, 1), within.begin(0)), (Next::Waits, Some(21_000)));
        let both = (write(&mut ahead, 0, 1), write(&mut ahead, 0, 2));
        assert_eq!(both, (Next::Hashed(10_000), Next::Hashed(20_000)));
        ahead.hashed();
        assert_eq!(ahead.begin(10_000), Some(21_000));
        ahead.hashed();
        ahead.finish(|_| ());
        assert_eq!(ahead.begin(21_000), Some(32_000));
    }
}
