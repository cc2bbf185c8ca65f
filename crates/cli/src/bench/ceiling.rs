//! What the raw socket and the raw disk can do here.

use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::fs::OFlags;
use tempfile::NamedTempFile;

use crate::units;

/// How long each ceiling is measured.
const TIME: Duration = Duration::from_millis(500);
/// Bytes appended between two syncs.
const APPEND: usize = 4 << 20;
/// Writes that go past the page cache begin in memory at a multiple of this.
const BLOCK: usize = 4_096;
/// Most bytes appended to one file.
const MOST: u64 = 1 << 30;
/// Bytes that each end goes through.
const MEMORY: usize = 64 << 20;
/// Datagrams on their way at once in the socket's measurement; few enough for a receive buffer of the usual size.
const WINDOW: usize = 8;

/// Bytes (10^6) per second that arrive when one thread sends datagrams of `datagram` bytes to another over the loopback
/// interface, as fast as the receiver takes them: more would only be lost, and cost what the receiver needs. Both ends
/// go through memory as chunks do, rather than use the same few bytes again and again out of the processor's cache.
pub(super) fn socket(datagram: usize) -> anyhow::Result<f64> {
    let what = "the raw socket cannot be measured";
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context(what)?;
    receiver.set_read_timeout(Some(Duration::from_millis(10))).context(what)?;
    rustix::net::sockopt::set_socket_recv_buffer_size(&receiver, 4 << 20).context(what)?;
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context(what)?;
    sender.connect(receiver.local_addr().context(what)?).context(what)?;
    // Datagrams that may be sent; the receiver gives one back for each that came, and all when some were lost.
    let (credits, taken) = sync_channel(WINDOW);
    for _ in 0..WINDOW {
        let _ = credits.try_send(());
    }
    let send = std::thread::spawn(move || {
        let payload = vec![7; MEMORY];
        let mut parts = payload.chunks_exact(datagram).cycle();
        while taken.recv().is_ok() {
            let _ = parts.next().map(|part| sender.send(part));
        }
    });
    let mut memory = vec![0; MEMORY];
    let places = MEMORY / datagram;
    let mut place = 0;
    let (begin, mut bytes) = (Instant::now(), 0_u64);
    while begin.elapsed() < TIME {
        place = (place + 1) % places;
        let back = match receiver.recv(&mut memory[place * datagram..(place + 1) * datagram]) {
            Ok(count) => {
                bytes += count as u64;
                1
            }
            Err(_) => WINDOW,
        };
        for _ in 0..back {
            let _ = credits.try_send(());
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    drop(credits);
    // The thread holds nothing but its socket.
    let _ = send.join();
    Ok(units::mb_per_s(bytes, seconds))
}

/// What the raw disk of `place` does, in bytes (10^6) per second.
pub(super) struct Disk {
    /// Append and `fdatasync`.
    pub(super) write: f64,
    /// Reading what no cache holds.
    pub(super) read: f64,
}

/// The best of one file and of `files` at once, as a cluster on one machine works; writes through the page cache and past
/// it, reads past it.
pub(super) fn disk(place: &Path, files: usize) -> anyhow::Result<Disk> {
    let mut best = Disk { write: 0.0, read: 0.0 };
    for (files, past_cache) in [(1, false), (files, false), (1, true), (files, true)] {
        let files = (0..files).map(|_| TestFile::new(place, past_cache)).collect::<anyhow::Result<Vec<TestFile>>>()?;
        let files: Vec<TestFile> = files.into_iter().filter(|file| file.opened.is_some()).collect();
        let together = |work: fn(&TestFile) -> std::io::Result<f64>| {
            std::thread::scope(|scope| {
                let threads: Vec<_> = files.iter().map(|file| scope.spawn(move || work(file))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap_or(Ok(0.0))).sum::<std::io::Result<f64>>()
            })
            .with_context(|| unmeasurable(place))
        };
        best.write = best.write.max(together(TestFile::append)?);
        if past_cache {
            best.read = best.read.max(together(TestFile::read)?);
        }
    }
    Ok(best)
}

fn unmeasurable(place: &Path) -> String {
    format!("the raw disk cannot be measured in {}: choose another place with --data", place.display())
}

/// A file that goes when it is dropped.
struct TestFile {
    _named: NamedTempFile,
    /// `None` on a file system that has no writes past the page cache.
    opened: Option<File>,
}

impl TestFile {
    fn new(place: &Path, past_cache: bool) -> anyhow::Result<Self> {
        let file = NamedTempFile::new_in(place).with_context(|| unmeasurable(place))?;
        let flags = if past_cache { i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0) } else { 0 };
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(file.path());
        match opened {
            Ok(opened) => Ok(Self { _named: file, opened: Some(opened) }),
            Err(_) if past_cache => Ok(Self { _named: file, opened: None }),
            Err(error) => Err(error).with_context(|| unmeasurable(place)),
        }
    }

    /// Appends for a while.
    fn append(&self) -> std::io::Result<f64> {
        self.run(MOST, |file, blocks, offset| {
            file.write_all_at(blocks, offset)?;
            file.sync_data()
        })
    }

    /// Reads once what was appended.
    fn read(&self) -> std::io::Result<f64> {
        let len = self.opened.as_ref().map_or(Ok(0), |file| file.metadata().map(|m| m.len()))?;
        self.run(len, |file, blocks, offset| file.read_exact_at(blocks, offset))
    }

    fn run(
        &self,
        most: u64,
        mut step: impl FnMut(&File, &mut [u8], u64) -> std::io::Result<()>,
    ) -> std::io::Result<f64> {
        let Some(file) = &self.opened else { return Ok(0.0) };
        let mut memory: Vec<u8> = (0..APPEND + BLOCK).map(|i| (i * 31 + i / 257) as u8).collect();
        let from = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
        let (begin, mut bytes) = (Instant::now(), 0_u64);
        while begin.elapsed() < TIME && bytes < most {
            step(file, &mut memory[from..from + APPEND], bytes)?;
            bytes += APPEND as u64;
        }
        Ok(units::mb_per_s(bytes, begin.elapsed().as_secs_f64()))
    }
}
