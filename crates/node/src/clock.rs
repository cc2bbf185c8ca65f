//! The clock of a node.

use protocol::time::Instant;
use rustix::time::{ClockId, clock_gettime};

/// Monotonic time of this host.
#[must_use]
pub fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
