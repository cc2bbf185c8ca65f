//! The choosy initiator: bids that begin too late are given back, and others asked for.
//!
//! An initiator keeps a *maximum bid wait*. A put whose chosen windows begin later than that cancels them all, doubles its
//! own value, waits a quarter of it and asks again, a few times at most; then it takes what it gets. What it learned is
//! averaged into the value that the next put begins with.

use crate::time::Span;

/// Round trips of control that the first put waits at most.
const ROUND_TRIPS: u64 = 3;

/// The maximum bid wait of one put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaxBidWait {
    most: Span,
    cancelled: u8,
}

impl MaxBidWait {
    /// What an initiator begins with that needs `round_trip` to ask and to be answered.
    #[must_use]
    pub fn first(round_trip: Span) -> Span {
        round_trip.times(ROUND_TRIPS)
    }

    /// A put's that waits for `most` before it gives windows back.
    #[must_use]
    pub const fn new(most: Span) -> Self {
        Self { most, cancelled: 0 }
    }

    /// Begins with `most`, unless windows were given back already.
    pub const fn begin(&mut self, most: Span) {
        if self.cancelled == 0 {
            self.most = most;
        }
    }

    /// Whether windows that begin after `wait` are to be given back, `cancels` times at most: then how long to wait before
    /// asking again.
    pub fn reconsiders(&mut self, wait: Span, cancels: u8) -> Option<Span> {
        if wait <= self.most || self.cancelled >= cancels {
            return None;
        }
        self.cancelled += 1;
        self.most = self.most.times(2);
        Some(self.most.div(4))
    }

    /// The value as it is by now.
    #[must_use]
    pub const fn most(&self) -> Span {
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_and_gives_in() {
        let us = Span::from_micros;
        let mut wait = MaxBidWait::new(MaxBidWait::first(us(4)));
        assert_eq!(wait.reconsiders(us(12), 3), None);
        assert_eq!(wait.reconsiders(us(13), 3), Some(us(6)));
        assert_eq!(wait.reconsiders(us(24), 3), None);
        let mut times = 1;
        while wait.reconsiders(Span::from_secs(1), 3).is_some() {
            times += 1;
        }
        assert_eq!(times, 3);
        assert_eq!(wait.most(), us(12 << 3));
    }
}
