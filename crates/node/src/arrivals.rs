//! How the transfers that come to a target are spread over time: evenly, by chance, or in heaps.

use std::collections::VecDeque;

use protocol::id::ChunkId;
use protocol::time::{Instant, Span};

/// Transfers that are remembered.
const LAST: usize = 4_096;
/// Intervals are distinguished by what came in them up to this, and those with as much or more.
pub(crate) const MOST: usize = 4;

/// The last transfers of a target: when each begins, how long it has the port, and of which chunk it is, if that is known.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(VecDeque<(u64, u64, Option<ChunkId>)>);

/// What they look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spread {
    /// Intervals, each as long as the mean time from one transfer to the next, by how many transfers began in them.
    pub(crate) intervals: [u64; MOST + 1],
    /// Transfers that begin before one that began earlier has had its time.
    pub(crate) met: u64,
}

impl Arrivals {
    /// A transfer of `length` begins at `start`.
    pub(crate) fn add(&mut self, start: Instant, length: Span, id: Option<ChunkId>) {
        if self.0.len() == LAST {
            self.0.pop_front();
        }
        self.0.push_back((start.as_nanos(), length.as_nanos(), id));
    }

    /// The last transfer of this chunk does not take place.
    pub(crate) fn forget(&mut self, id: ChunkId) {
        if let Some(at) = self.0.iter().rposition(|transfer| transfer.2 == Some(id)) {
            self.0.remove(at);
        }
    }

    /// How they are spread, from the first to the last of them.
    pub(crate) fn spread(&self) -> Spread {
        let mut all: Vec<(u64, u64)> = self.0.iter().map(|(start, length, _)| (*start, *length)).collect();
        all.sort_unstable();
        let (Some(first), Some(last)) = (all.first(), all.last()) else { return Spread::default() };
        // From the first on there are as many intervals as further transfers.
        let (begin, count) = (first.0, all.len() as u64 - 1);
        let time = last.0 - begin;
        if time == 0 {
            return Spread::default();
        }
        let mut spread = Spread::default();
        let mut came = vec![0_usize; count as usize];
        let mut busy = begin.saturating_add(first.1);
        for (start, length) in &all[1..] {
            // The last of them ends the last interval.
            let at = u128::from(start - begin) * u128::from(count) / u128::from(time);
            came[(at as usize).min(count as usize - 1)] += 1;
            spread.met += u64::from(*start < busy);
            busy = busy.max(start.saturating_add(*length));
        }
        came.iter().for_each(|came| spread.intervals[(*came).min(MOST)] += 1);
        spread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(starts: &[u64], length: u64) -> Spread {
        let mut arrivals = Arrivals::default();
        starts.iter().for_each(|at| arrivals.add(Instant::from_nanos(*at), Span::from_nanos(length), None));
        arrivals.spread()
    }

    #[test]
    fn what_comes_evenly_is_alone_in_its_interval() {
        // Windows are not always granted in the order in which they begin.
        let starts: Vec<u64> = (0..20).rev().map(|n| 1_000 + 10 * n).collect();
        assert_eq!(spread(&starts, 10), Spread { intervals: [1, 17, 1, 0, 0], met: 0 });
        assert_eq!(spread(&starts, 11).met, 19);
    }

    #[test]
    fn what_comes_in_heaps_leaves_intervals_empty() {
        assert_eq!(spread(&[0, 90, 91, 92, 93, 94, 95, 96, 97, 99, 100], 1).intervals, [9, 0, 0, 0, 1]);
    }

    #[test]
    fn a_window_that_is_given_up_meets_nobody() {
        let mut arrivals = Arrivals::default();
        let id = |n: u8| ChunkId::of_payload(&[n]);
        let mut add = |start, n| arrivals.add(Instant::from_nanos(start), Span::from_nanos(10), Some(id(n)));
        [(0, 1), (5, 2), (12, 3)].into_iter().for_each(|(start, n)| add(start, n));
        assert_eq!(arrivals.spread().met, 2);
        arrivals.forget(id(2));
        assert_eq!(arrivals.spread().met, 0);
    }

    #[test]
    fn a_single_moment_is_no_time() {
        assert_eq!(spread(&[], 1), Spread::default());
        assert_eq!(spread(&[7], 1), Spread::default());
        assert_eq!(spread(&[7, 7, 7], 1), Spread::default());
    }

    #[test]
    fn only_the_last_are_remembered() {
        let mut starts: Vec<u64> = (0..LAST as u64).map(|n| 1_000_000 + n * n).collect();
        let alone = spread(&starts, 0);
        starts.splice(0..0, 0..100);
        assert_eq!(spread(&starts, 0), alone);
        assert_eq!(alone.intervals.iter().sum::<u64>(), LAST as u64 - 1);
    }
}
