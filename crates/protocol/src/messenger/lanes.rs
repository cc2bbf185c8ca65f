//! Several connections between two nodes: which of them takes the next message.

/// How one of several connections is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// One after the other, as in the paper's section III C.
    InTurn,
    /// The one on which least is queued; of equal ones the next in turn, so that idle ones share what comes.
    LeastQueued,
}

/// The connections to one node. It remembers only which was chosen last.
#[derive(Clone, Copy, Debug)]
pub struct Lanes {
    choice: Choice,
    last: usize,
}

impl Lanes {
    /// Nothing was sent yet.
    #[must_use]
    pub const fn new(choice: Choice) -> Self {
        Self { choice, last: usize::MAX }
    }

    /// The place in `queued` of the connection that takes the next message; none when there are no connections. `queued` are
    /// the bytes that were handed to each connection and have not left this node.
    pub fn choose(&mut self, queued: &[u64]) -> Option<usize> {
        let count = queued.len();
        let first = self.last.wrapping_add(1).checked_rem(count)?;
        let in_turn = (first..count).chain(0..first);
        let chosen = match self.choice {
            Choice::InTurn => Some(first),
            Choice::LeastQueued => in_turn.min_by_key(|at| queued[*at]),
        };
        self.last = chosen.unwrap_or(self.last);
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_queued_is_chosen_and_equal_ones_in_turn() {
        let mut lanes = Lanes::new(Choice::LeastQueued);
        let chosen: Vec<_> = (0..4).map(|_| lanes.choose(&[0, 0, 0])).collect();
        assert_eq!(chosen, [Some(0), Some(1), Some(2), Some(0)]);
        assert_eq!(lanes.choose(&[5, 9, 4]), Some(2));
        assert_eq!(lanes.choose(&[5, 9, 5]), Some(0));
        // A connection fewer, since the last was chosen.
        assert_eq!(Lanes { choice: Choice::LeastQueued, last: 7 }.choose(&[3]), Some(0));
        assert_eq!(lanes.choose(&[]), None);
    }

    #[test]
    fn in_turn_is_blind() {
        let mut lanes = Lanes::new(Choice::InTurn);
        let chosen: Vec<_> = (0..3).map(|_| lanes.choose(&[9_000, 0])).collect();
        assert_eq!(chosen, [Some(0), Some(1), Some(0)]);
    }
}
