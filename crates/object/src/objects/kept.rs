//! How well what was put is kept so far.

use catalog::Row;
use protocol::initiator::Stored;

/// A version that was made.
#[derive(Clone, Debug)]
pub struct Made {
    /// Its row.
    pub row: Row,
    /// How well it is kept so far.
    pub kept: Kept,
}

/// In how many failure domains copies are, and in how many they are to be, of that chunk of what was put that lacks most. Those that
/// lack are made when domains are back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// With a copy.
    pub copies: u8,
    /// To have one.
    pub wanted: u8,
}

impl Kept {
    /// Whether it has fewer copies than are wanted.
    #[must_use]
    pub const fn lacks_copies(self) -> bool {
        self.copies < self.wanted
    }

    pub(super) fn note(&mut self, stored: &Stored) {
        self.and(Self { copies: stored.copies, wanted: stored.wanted });
    }

    pub(super) fn and(&mut self, other: Self) {
        let lacks = |kept: Self| (kept.wanted.saturating_sub(kept.copies), core::cmp::Reverse(kept.copies));
        if self.wanted == 0 || lacks(other) > lacks(*self) && other.wanted > 0 {
            *self = other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lacks_most_counts() {
        let mut kept = Kept::default();
        assert!(!kept.lacks_copies());
        for (copies, wanted) in [(3, 3), (2, 3), (1, 1), (3, 3), (3, 4)] {
            kept.and(Kept { copies, wanted });
        }
        kept.and(Kept::default());
        assert_eq!((kept, kept.lacks_copies()), (Kept { copies: 2, wanted: 3 }, true));
    }
}
