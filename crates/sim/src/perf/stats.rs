//! What is measured in a run.

use hdrhistogram::Histogram;

/// The result of one run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Measured time, in nanoseconds.
    pub measured: u64,
    /// Chunks stored in that time.
    pub chunks: u64,
    /// Chunks stored per second.
    pub chunks_per_second: f64,
    /// From the request to the last acknowledgement, in nanoseconds.
    pub latency: Histogram<u64>,
    /// The same from the beginning of the attempt that succeeded: what the papers state.
    pub attempt: Histogram<u64>,
    /// Share of the time in which disks worked, mean of all.
    pub disk_utilisation: f64,
    /// The same with work that is only queued counted as done, as the papers' simulator counts.
    pub disk_scheduled: f64,
    /// Share of the whole rate of the targets' links that payload took.
    pub link_utilisation: f64,
    /// Bytes written by the least and the most loaded target, and by the mean one.
    pub load: Load,
    /// Bytes of control messages, received.
    pub control_bytes: u64,
    /// Bytes of payload, received.
    pub payload_bytes: u64,
    /// Attempts that found no common window.
    pub aborted: u64,
    /// Rounds of bids beyond the first.
    pub more_rounds: u64,
    /// Choices that a choosy initiator gave back because they began too late (the papers' machines; with the product's
    /// they are rounds).
    pub cancelled: u64,
    /// Windows that were offered twice and taken by the other.
    pub rejected: u64,
    /// Requests that targets received, and those that came while a bid there was tentative.
    pub requests: (u64, u64),
    /// Transfers that met another on a target's port although windows are reserved.
    pub collisions: u64,
    /// Events handled, from the beginning of the run.
    pub events: u64,
    /// Rolling hash of all events: equal for equal seeds.
    pub digest: u64,
    /// Latencies of the attempts in the order of completion, in nanoseconds; empty unless asked for.
    pub series: Vec<u64>,
    /// What is measured of the product's machines only.
    pub product: Option<Box<super::setup::profile::Measured>>,
}

/// How evenly targets are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Bytes of the least loaded.
    pub least: u64,
    /// Mean.
    pub mean: f64,
    /// Bytes of the most loaded.
    pub most: u64,
    /// Standard deviation.
    pub deviation: f64,
}

impl Load {
    pub(super) fn of(bytes: &[u64]) -> Self {
        let count = bytes.len().max(1) as f64;
        let mean = bytes.iter().sum::<u64>() as f64 / count;
        let variance = bytes.iter().map(|b| (*b as f64 - mean).powi(2)).sum::<f64>() / count;
        let (least, most) = (bytes.iter().copied().min().unwrap_or(0), bytes.iter().copied().max().unwrap_or(0));
        Self { least, mean, most, deviation: variance.sqrt() }
    }
}

/// A histogram of nanoseconds up to a thousand seconds, three digits.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1_000_000_000_000, 3).unwrap_or_else(|error| panic!("the bounds are right: {error}"))
}

/// A mean over runs with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half the width of the interval; zero for a single run.
    pub half: f64,
    /// Runs.
    pub runs: usize,
}

impl Estimate {
    /// Half the width of the interval; `None` for a single run, which says nothing of the spread.
    #[must_use]
    pub fn confidence(&self) -> Option<f64> {
        (self.runs > 1).then_some(self.half)
    }

    /// Of these values, one from each run.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let runs = values.len();
        let mean = values.iter().sum::<f64>() / runs.max(1) as f64;
        if runs < 2 {
            return Self { mean, half: 0.0, runs };
        }
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (runs - 1) as f64;
        Self { mean, half: student(runs - 1) * (variance / runs as f64).sqrt(), runs }
    }
}

/// The two-sided 95 % quantile of Student's t.
fn student(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
    ];
    TABLE.get(freedom - 1).copied().unwrap_or(1.96 + 2.5 / freedom as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_textbook() {
        let estimate = Estimate::of(&[9.0, 10.0, 11.0, 10.0]);
        // s = sqrt(2/3), t(3) = 3.182, half = t * s / 2.
        assert!((estimate.mean - 10.0).abs() < 1e-12 && (estimate.half - 1.299_04).abs() < 1e-4, "{estimate:?}");
        assert_eq!(Estimate::of(&[5.0]).half, 0.0);
    }
}
