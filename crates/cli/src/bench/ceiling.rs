//! What the raw socket and the raw disk can do here.

use std::io::Write;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::numbers;

/// How long each ceiling is measured.
const TIME: Duration = Duration::from_secs(1);
/// Bytes appended between two syncs.
const APPEND: usize = 4 << 20;
/// Most bytes appended in all.
const MOST: u64 = 2 << 30;

/// Bytes (10^6) per second that arrive when one thread sends datagrams of `datagram` bytes to another as fast as it
/// can, over the loopback interface.
pub(super) fn socket(datagram: usize) -> anyhow::Result<f64> {
    let what = "the raw socket cannot be measured";
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context(what)?;
    receiver.set_read_timeout(Some(Duration::from_millis(100))).context(what)?;
    rustix::net::sockopt::set_socket_recv_buffer_size(&receiver, 4 << 20).context(what)?;
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context(what)?;
    sender.connect(receiver.local_addr().context(what)?).context(what)?;
    let over = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&over);
    let send = std::thread::spawn(move || {
        let payload = vec![7; datagram];
        while !end.load(Ordering::Relaxed) {
            // A full buffer loses datagrams, which is part of the measurement.
            let _ = sender.send(&payload);
        }
    });
    let mut buffer = vec![0; datagram];
    let (begin, mut bytes) = (Instant::now(), 0_u64);
    while begin.elapsed() < TIME {
        bytes += receiver.recv(&mut buffer).unwrap_or(0) as u64;
    }
    let seconds = begin.elapsed().as_secs_f64();
    over.store(true, Ordering::Relaxed);
    // The thread holds nothing but its socket.
    let _ = send.join();
    Ok(numbers::mb_per_s(bytes, seconds))
}

/// Bytes (10^6) per second that the disk of `place` takes by append and `fdatasync`.
pub(super) fn disk(place: &Path) -> anyhow::Result<f64> {
    let what = || format!("the raw disk cannot be measured in {}: choose another place with --data", place.display());
    let mut file = tempfile::tempfile_in(place).with_context(what)?;
    let payload: Vec<u8> = (0..APPEND).map(|i| (i * 31 + i / 257) as u8).collect();
    let (begin, mut bytes) = (Instant::now(), 0_u64);
    while begin.elapsed() < TIME && bytes < MOST {
        file.write_all(&payload).with_context(what)?;
        file.sync_data().with_context(what)?;
        bytes += APPEND as u64;
    }
    Ok(numbers::mb_per_s(bytes, begin.elapsed().as_secs_f64()))
}
