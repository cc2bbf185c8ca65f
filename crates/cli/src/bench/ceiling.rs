//! What the raw socket and the raw disk can do here.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::fs::OFlags;

use crate::numbers;

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
    Ok(numbers::mb_per_s(bytes, seconds))
}

/// Bytes (10^6) per second that the disk of `place` takes by append and `fdatasync`: the best of one file and of `files` at
/// once, as a cluster on one machine writes, through the page cache and past it.
pub(super) fn disk(place: &Path, files: usize) -> anyhow::Result<f64> {
    let mut best = 0_f64;
    for past_cache in [false, true] {
        best = best.max(append(place, past_cache)?);
        let together = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..files).map(|_| scope.spawn(|| append(place, past_cache))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(Ok(0.0))).sum::<anyhow::Result<f64>>()
        })?;
        best = best.max(together);
    }
    Ok(best)
}

/// Appends to one file for a while.
fn append(place: &Path, past_cache: bool) -> anyhow::Result<f64> {
    let what = || format!("the raw disk cannot be measured in {}: choose another place with --data", place.display());
    let named = tempfile::NamedTempFile::new_in(place).with_context(what)?;
    let past = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
    let opened = OpenOptions::new().write(true).custom_flags(if past_cache { past } else { 0 }).open(named.path());
    let mut file = match opened {
        Ok(file) => file,
        // A file system without such writes.
        Err(_) if past_cache => return Ok(0.0),
        Err(error) => return Err(error).with_context(what),
    };
    let memory: Vec<u8> = (0..APPEND + BLOCK).map(|i| (i * 31 + i / 257) as u8).collect();
    let from = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
    let (begin, mut bytes) = (Instant::now(), 0_u64);
    while begin.elapsed() < TIME && bytes < MOST {
        file.write_all(&memory[from..from + APPEND]).with_context(what)?;
        file.sync_data().with_context(what)?;
        bytes += APPEND as u64;
    }
    Ok(numbers::mb_per_s(bytes, begin.elapsed().as_secs_f64()))
}
