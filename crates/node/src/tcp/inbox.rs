//! What workers have read, until the node's loop takes it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::messenger::{Arrival, Arrivals, Dispatch, Spent};

/// What the loop takes at once, before it looks at anything else.
const TAKEN: usize = 512 << 10;

/// See the [module](self). It wakes the loop when it was empty.
#[derive(Debug)]
pub(super) struct Inbox {
    arrivals: Arrivals,
    bell: OwnedFd,
}

impl Inbox {
    pub(super) fn new() -> std::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { arrivals: Arrivals::default(), bell })
    }

    /// What waits, but not more than there is time for. The bell goes on ringing while there is more.
    pub(super) fn take(&self) -> Vec<Arrival> {
        self.arrivals.take(TAKEN, || {
            let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
        })
    }

    /// Workers wait for room no longer, and what they bring is dropped.
    pub(super) fn close(&self) {
        self.arrivals.close();
    }
}

impl Dispatch for Inbox {
    fn came(&self, arrival: Arrival) -> Spent {
        let waited = self.arrivals.put(arrival, || {
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        });
        Spent { waited, ..Spent::default() }
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
