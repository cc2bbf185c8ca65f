//! What was read in one thread and waits for another one, in order and bounded.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use protocol::time::{Instant, Span};

use super::Progress;
use crate::clock::now;

/// Bytes that may wait, with what each frame needs beside them. A reader that brings more waits, reads nothing, and peers stop sending.
const MOST: usize = 4 << 20;
const EACH: usize = 128;

/// What came over a connection, or that it is over.
#[derive(Debug)]
pub struct Arrival {
    /// The worker that read it.
    pub worker: usize,
    /// Over which connection it came.
    pub connection: u32,
    /// When it was read.
    pub at: Instant,
    /// The frames, in order.
    pub frames: Vec<Bytes>,
    /// How the connection ended, if it did.
    pub end: Option<Progress>,
}

impl Arrival {
    fn size(&self) -> usize {
        self.frames.iter().map(|frame| frame.len() + EACH).sum::<usize>() + EACH
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    held: Mutex<Held>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Held {
    arrivals: VecDeque<Arrival>,
    bytes: usize,
    /// Nobody takes anything any more.
    is_closed: bool,
}

impl Arrivals {
    /// Waits for room. Where nothing waited before, `first` is called before anybody can take it. Returns how long it waited for
    /// room.
    pub(crate) fn put(&self, arrival: Arrival, first: impl FnOnce()) -> Span {
        let (mut held, mut waited) = (self.held(), Span::ZERO);
        if held.bytes >= MOST {
            let began = now();
            while held.bytes >= MOST && !held.is_closed {
                held = self.changed.wait(held).unwrap_or_else(PoisonError::into_inner);
            }
            waited = now().since(began);
        }
        if held.is_closed {
            return waited;
        }
        if held.arrivals.is_empty() {
            first();
        }
        held.bytes += arrival.size();
        held.arrivals.push_back(arrival);
        drop(held);
        self.changed.notify_all();
        waited
    }

    /// What waits, up to so many bytes and a last one; `emptied` is called before anybody can put more, if nothing is left.
    pub(crate) fn take(&self, most: usize, emptied: impl FnOnce()) -> Vec<Arrival> {
        let (mut held, mut taken, mut bytes) = (self.held(), Vec::new(), 0);
        while bytes < most
            && let Some(arrival) = held.arrivals.pop_front()
        {
            bytes += arrival.size();
            taken.push(arrival);
        }
        held.bytes = held.bytes.saturating_sub(bytes);
        if held.arrivals.is_empty() {
            emptied();
        }
        drop(held);
        self.changed.notify_all();
        taken
    }

    /// The next one, when there is one; none when this was closed.
    pub(super) fn wait(&self) -> Option<Arrival> {
        let mut held = self.held();
        while !held.is_closed {
            if let Some(arrival) = held.arrivals.pop_front() {
                held.bytes = held.bytes.saturating_sub(arrival.size());
                drop(held);
                self.changed.notify_all();
                return Some(arrival);
            }
            held = self.changed.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Nobody waits any longer, and what is brought is dropped.
    pub(crate) fn close(&self) {
        self.held().is_closed = true;
        self.changed.notify_all();
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
