//! What comes to each target in each stretch of time: how much of it meets.

/// Counts by target and interval, which are all equally long.
#[derive(Clone, Debug, Default)]
pub(in crate::perf) struct Counts {
    length: u64,
    began: u64,
    /// For each target the interval that is counted, and how much came in it.
    open: Vec<(u64, u64)>,
    /// Intervals by how much came in them.
    intervals: Vec<u64>,
}

impl Counts {
    /// Begins to count at `began`; with a `length` of 0 nothing is counted.
    pub(in crate::perf) fn new(length: u64, began: u64, targets: usize) -> Self {
        Self { length, began, open: vec![(0, 0); targets], intervals: Vec::new() }
    }

    /// Something comes to a target.
    pub(in crate::perf) fn add(&mut self, target: usize, now: u64) {
        let Some(at) = now.checked_sub(self.began).and_then(|since| since.checked_div(self.length)) else { return };
        self.close(target, at);
        if let Some(open) = self.open.get_mut(target) {
            open.1 += 1;
        }
    }

    /// The interval `at` of a target is counted from now on; those before it are over.
    fn close(&mut self, target: usize, at: u64) {
        let Some(open) = self.open.get_mut(target).filter(|open| open.0 < at) else { return };
        let (empty, count) = (at - open.0 - 1, open.1 as usize);
        *open = (at, 0);
        let most = self.intervals.len().max(count + 1);
        self.intervals.resize(most, 0);
        self.intervals[count] += 1;
        self.intervals[0] += empty;
    }

    /// Counts what other targets' counts have, too.
    pub(in crate::perf) fn join(&mut self, other: Self) {
        self.open.extend(other.open);
        self.intervals.resize(self.intervals.len().max(other.intervals.len()), 0);
        self.intervals.iter_mut().zip(other.intervals).for_each(|(sum, more)| *sum += more);
    }

    /// The intervals that are over at `now`, by how much came in them.
    pub(in crate::perf) fn over(mut self, now: u64) -> Vec<u64> {
        let Some(at) = now.saturating_sub(self.began).checked_div(self.length) else { return Vec::new() };
        (0..self.open.len()).for_each(|target| self.close(target, at));
        self.intervals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_counted_by_what_came_in_them() {
        let mut counts = Counts::new(10, 100, 2);
        [50, 100, 109, 125, 141].into_iter().for_each(|at| counts.add(0, at));
        counts.add(1, 139);
        assert_eq!(counts.over(142), [5, 2, 1]);
        assert_eq!(Counts::default().over(5), []);
    }
}
