//! What workers have read, until the node's loop takes it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use protocol::time::{Instant, Span};
use rustix::event::{EventfdFlags, eventfd};

use crate::clock::now;
use crate::messenger::{Dispatch, Progress};

/// Bytes that may wait, with what each frame needs beside them. Workers stop reading then, and peers stop sending.
const MOST: usize = 4 << 20;
const EACH: usize = 128;
/// What the loop takes at once, before it looks at anything else.
const TAKEN: usize = 512 << 10;

/// What came over a connection, or that it is over.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) connection: u32,
    pub(super) at: Instant,
    pub(super) frames: Vec<Bytes>,
    pub(super) end: Option<Progress>,
}

impl Arrival {
    fn size(&self) -> usize {
        self.frames.iter().map(|frame| frame.len() + EACH).sum::<usize>() + EACH
    }
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

    /// What waits, but not more than there is time for. The bell goes on ringing while there is more.
    pub(super) fn take(&self) -> Vec<Arrival> {
        let (mut held, mut taken, mut bytes) = (self.held(), Vec::new(), 0);
        while bytes < TAKEN
            && let Some(arrival) = held.arrivals.pop_front()
        {
            bytes += arrival.size();
            taken.push(arrival);
        }
        held.bytes = held.bytes.saturating_sub(bytes);
        if held.arrivals.is_empty() {
            let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
        }
        self.room.notify_all();
        taken
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
    fn came(&self, _: usize, connection: u32, at: Instant, frames: &mut Vec<Bytes>, end: Option<Progress>) -> Span {
        let arrival = Arrival { connection, at, frames: core::mem::take(frames), end };
        let (mut held, mut waited) = (self.held(), Span::ZERO);
        if held.bytes >= MOST {
            let began = now();
            while held.bytes >= MOST && !held.is_closed {
                held = self.room.wait(held).unwrap_or_else(PoisonError::into_inner);
            }
            waited = now().since(began);
        }
        if held.is_closed {
            return waited;
        }
        // Within the lock, or the loop could take this one and leave the bell ringing for nothing.
        if held.arrivals.is_empty() {
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
        held.bytes += arrival.size();
        held.arrivals.push_back(arrival);
        waited
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
