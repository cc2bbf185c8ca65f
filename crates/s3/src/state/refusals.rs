//! What was refused, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why something was refused, or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A stranger was evicted.
    GaveWay,
    /// A connection was closed at once, as too many came from its address.
    TooMany,
    /// A connection was idle.
    StoodStill,
    /// A TLS handshake failed, or took too long.
    Handshake,
    /// A request was refused whose signature was missing or wrong.
    Unauthorized,
    /// A body came too slowly.
    SlowBody,
    /// A refused body was not drained to its end.
    Unread,
    /// Too many requests waited.
    Busy,
}

impl Reason {
    /// All of them, with their names for metrics.
    const ALL: [(Self, &'static str); 8] = [
        (Self::GaveWay, "gave_way"),
        (Self::TooMany, "too_many"),
        (Self::StoodStill, "stood_still"),
        (Self::Handshake, "handshake"),
        (Self::Unauthorized, "unauthorized"),
        (Self::SlowBody, "slow_body"),
        (Self::Unread, "unread"),
        (Self::Busy, "busy"),
    ];
}

/// What was refused, by [`Reason`].
#[derive(Debug, Default)]
pub(crate) struct Refusals([AtomicU64; Reason::ALL.len()]);

impl Refusals {
    pub(crate) fn count(&self, why: Reason) {
        self.0[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many, by reason.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Reason::ALL.into_iter().map(|(why, name)| (name, self.0[why as usize].load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_name() {
        assert!(Reason::ALL.iter().enumerate().all(|(n, (why, _))| *why as usize == n));
    }
}
