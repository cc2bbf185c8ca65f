//! A node of the cluster: its machine, its disk, its clock.

use protocol::aggregator::Aggregator;
use protocol::initiator::Initiator;
use protocol::target::Target;
use protocol::time::Instant;
use protocol::wire::Session;

use crate::disk::Disk;

pub(super) enum NodeMachine {
    Initiator(Box<Initiator>),
    Target(Box<Target>, Disk),
    Aggregator(Box<Aggregator>),
    /// An aggregator that does not run.
    Off,
    /// A target without power.
    Down(Disk),
    /// Only while it changes from one of these to another.
    Gone,
}

pub(super) struct Node {
    pub(super) machine: NodeMachine,
    pub(super) session: Session,
    /// The node's clock, since it was started: this far ahead, and so many parts per million fast.
    pub(super) offset: u64,
    pub(super) drift: u64,
    /// Which map it uses.
    pub(super) map: usize,
    /// The newest map that came to its file from another node.
    pub(super) fetched: usize,
    /// Until when it sleeps.
    pub(super) sleeps: Option<Instant>,
    /// Counts restarts and wakes, so that what was meant for an earlier life or deadline is known.
    pub(super) life: u32,
    pub(super) wake: u64,
    /// How often in turn it was woken, and wanted to be woken at once.
    pub(super) restless: u32,
}

impl Node {
    pub(super) fn local(&self, now: Instant) -> Instant {
        clock(now, self.offset, self.drift)
    }

    pub(super) fn global(&self, local: Instant) -> Instant {
        let nanos = u128::from(local.as_nanos().saturating_sub(self.offset));
        Instant::from_nanos((nanos * 1_000_000 / u128::from(1_000_000 + self.drift)) as u64 + 1)
    }
}

/// What a clock shows that is so far ahead, and so many parts per million fast.
pub(super) fn clock(now: Instant, offset: u64, drift: u64) -> Instant {
    let nanos = u128::from(now.as_nanos());
    Instant::from_nanos(offset + (nanos + nanos * u128::from(drift) / 1_000_000) as u64)
}
