//! What workers have read, until the node's loop takes it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use protocol::time::Instant;
use rustix::event::{EventfdFlags, eventfd};

use crate::messenger::{Dispatch, Progress};

/// Bytes that may wait. Workers stop reading then, and peers stop sending.
const MOST: usize = 4 << 20;

/// What came over a connection, or that it is over.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) connection: u32,
    pub(super) at: Instant,
    pub(super) frames: Vec<Bytes>,
    pub(super) end: Option<Progress>,
}

/// See the [module](self). It wakes the loop when it was empty.
#[derive(Debug)]
pub(super) struct Inbox {
    held: Mutex<Held>,
    room: Condvar,
    bell: OwnedFd,
}

#[derive(Debug, Default)]
struct Held {
    arrivals: VecDeque<Arrival>,
    bytes: usize,
    /// Nobody takes anything any more.
    is_closed: bool,
}

impl Inbox {
    pub(super) fn new() -> std::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { held: Mutex::default(), room: Condvar::new(), bell })
    }

    /// All that waits.
    pub(super) fn take(&self) -> VecDeque<Arrival> {
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
        let mut held = self.held();
        held.bytes = 0;
        self.room.notify_all();
        core::mem::take(&mut held.arrivals)
    }

    /// Workers wait for room no longer, and what they bring is dropped.
    pub(super) fn close(&self) {
        self.held().is_closed = true;
        self.room.notify_all();
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dispatch for Inbox {
    fn came(&self, _: usize, connection: u32, at: Instant, frames: &mut Vec<Bytes>, end: Option<Progress>) {
        let bytes: usize = frames.iter().map(Bytes::len).sum();
        let frames = core::mem::take(frames);
        let mut held = self.held();
        while held.bytes >= MOST && !held.is_closed {
            held = self.room.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        if held.is_closed {
            return;
        }
        let was_empty = held.arrivals.is_empty();
        held.bytes += bytes;
        held.arrivals.push_back(Arrival { connection, at, frames, end });
        drop(held);
        if was_empty {
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
