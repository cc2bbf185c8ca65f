//! What nodes learn from what happened: rates and times, in integers.

use crate::time::Span;

/// A rate in bytes per second that follows the transfers that really took place: an eighth of each new one.
#[derive(Clone, Copy, Debug)]
pub struct Rate(u64);

impl Rate {
    /// Begins with an assumption.
    #[must_use]
    pub const fn new(assumed: u64) -> Self {
        Self(if assumed == 0 { 1 } else { assumed })
    }

    /// Takes a transfer into account.
    pub fn sample(&mut self, bytes: u64, took: Span) {
        let nanos = u128::from(took.as_nanos().max(1));
        let seen = u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX);
        // A single measurement is not believed beyond a factor of four either way.
        let seen = seen.clamp(self.0 / 4, self.0.saturating_mul(4)).max(1);
        self.0 = (self.0 - self.0 / 8).saturating_add(seen / 8).max(1);
    }

    /// Bytes per second.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// How long `bytes` take.
    #[must_use]
    pub fn span(self, bytes: u64) -> Span {
        Span::of_transfer(bytes, self.0)
    }
}

/// A time with its mean and mean deviation, as TCP keeps its round trips.
#[derive(Clone, Copy, Debug, Default)]
pub struct Typical {
    mean: u64,
    deviation: u64,
    smallest: u64,
}

impl Typical {
    /// Takes a measurement into account.
    pub fn sample(&mut self, took: Span) {
        let seen = took.as_nanos();
        if self.mean == 0 {
            *self = Self { mean: seen, deviation: seen / 2, smallest: seen };
            return;
        }
        self.deviation = self.deviation - self.deviation / 4 + self.mean.abs_diff(seen) / 4;
        self.mean = self.mean - self.mean / 8 + seen / 8;
        // The smallest creeps up, so that a path that became longer is noticed.
        self.smallest = seen.min(self.smallest + self.smallest / 256 + 1);
    }

    /// Mean and four deviations: what is longer than this is late. `None` before the first measurement.
    #[must_use]
    pub fn late(&self) -> Option<Span> {
        (self.mean > 0).then(|| Span::from_nanos(self.mean.saturating_add(4 * self.deviation)))
    }

    /// Mean and one deviation: most are not longer. Zero before the first measurement.
    #[must_use]
    pub const fn usual(&self) -> Span {
        Span::from_nanos(self.mean.saturating_add(self.deviation))
    }

    /// How long to wait for what did not come, after having asked in vain `asked` times: [`Typical::late`], doubled each
    /// time, between a tenth of `most` and `most`.
    #[must_use]
    pub fn patience(&self, asked: u8, most: Span) -> Span {
        let late = self.late().unwrap_or(most).max(most.div(10));
        late.times(1 << asked.min(8)).min(most)
    }

    /// What one measurement differs from the mean by, mostly; zero before the first.
    #[must_use]
    pub const fn deviation(&self) -> Span {
        Span::from_nanos(self.deviation)
    }

    /// The smallest of late; zero before the first measurement.
    #[must_use]
    pub const fn smallest(&self) -> Span {
        Span::from_nanos(self.smallest)
    }
}

/// How long a disk takes for one operation, by size class (powers of two), learned from completions.
#[derive(Clone, Debug)]
pub struct DiskTime {
    assumed: Rate,
    classes: [u64; 32],
}

impl DiskTime {
    /// Begins with an assumed rate in bytes per second.
    #[must_use]
    pub const fn new(assumed: u64) -> Self {
        Self { assumed: Rate::new(assumed), classes: [0; 32] }
    }

    /// Takes an operation into account: `took` is the time that it kept the disk from the next one.
    pub fn sample(&mut self, bytes: u32, took: Span) {
        let class = &mut self.classes[bytes.max(1).ilog2() as usize];
        let seen = took.as_nanos().max(1);
        *class = if *class == 0 { seen } else { *class - *class / 8 + seen / 8 };
    }

    /// How long an operation of `bytes` should take.
    #[must_use]
    pub fn expect(&self, bytes: u32) -> Span {
        match self.classes[bytes.max(1).ilog2() as usize] {
            0 => self.assumed.span(u64::from(bytes)),
            learned => Span::from_nanos(learned),
        }
    }
}
