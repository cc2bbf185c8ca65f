//! Which connections are heavy: a few among many light ones, as in the paper's Figure 2.

use core::time::Duration;

use crate::args::Skew;
use protocol::rng::Rng;

/// Heavy connections at a time.
pub(super) const HEAVY: usize = 4;
/// How long a connection is heavy where the skew moves.
const MOVES: Duration = Duration::from_secs(1);

/// What each connection has to do, over time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) skew: Skew,
    pub(super) workers: usize,
    pub(super) connections: usize,
    pub(super) seed: u64,
}

impl Plan {
    /// Which connections are heavy so long after the beginning.
    pub(super) fn heavy(&self, since: Duration) -> Vec<usize> {
        let each = self.connections / self.workers;
        match self.skew {
            Skew::Even => (0..self.connections).collect(),
            Skew::Lands => (0..HEAVY).map(|nth| nth * self.workers).collect(),
            Skew::Random => {
                let mut left: Vec<usize> = (0..self.connections).collect();
                let mut rng = Rng::new(self.seed);
                (0..HEAVY).map(|_| left.swap_remove(rng.below(left.len() as u64) as usize)).collect()
            }
            Skew::Moving => {
                let turn = (since.as_millis() / MOVES.as_millis()) as usize;
                (0..HEAVY).map(|nth| turn % self.workers + (turn * HEAVY + nth) % each * self.workers).collect()
            }
        }
    }

    /// Messages that each of the heavy ones has under way: so many in all whatever the skew.
    pub(super) fn under_way(&self, of_heavy: usize) -> usize {
        if self.skew == Skew::Even { (of_heavy * HEAVY).div_ceil(self.connections) } else { of_heavy }
    }
}
