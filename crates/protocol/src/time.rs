//! Time as the machines see it: nanoseconds on one node's own clock, handed in by the driver.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A point on one node's own monotonic clock, in nanoseconds. Clocks of different nodes are unrelated, so an
/// `Instant` never goes on the wire: windows there are [`Span`]s relative to something both sides saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Instant {
    /// The clock's origin.
    pub const ZERO: Self = Self(0);
    /// Later than anything that happens.
    pub const FAR: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the clock's origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero when it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A span of `nanos` nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A span of `micros` microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// A span of `millis` milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// A span of `secs` seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// The span in nanoseconds.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The span in whole microseconds, rounded down.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// `percent` percent of this span.
    #[must_use]
    pub const fn percent(self, percent: u64) -> Self {
        Self(self.0.saturating_mul(percent) / 100)
    }

    /// This span taken `times` times.
    #[must_use]
    pub const fn times(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }

    /// A `divisor`th of this span (`divisor` must not be zero).
    #[must_use]
    pub const fn div(self, divisor: u64) -> Self {
        Self(self.0 / divisor)
    }

    /// This span less `other`, not below zero.
    #[must_use]
    pub const fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// As the wire carries it: nanoseconds in 32 bits, or `None` when it is longer than 4.29 s.
    #[must_use]
    pub fn to_wire(self) -> Option<u32> {
        u32::try_from(self.0).ok()
    }

    /// The rate of `bytes` in this time, in bytes per second. A span of zero counts as a nanosecond.
    #[must_use]
    pub fn rate_of(self, bytes: u64) -> u64 {
        u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(self.0.max(1))).unwrap_or(u64::MAX)
    }

    /// The time that `bytes` take at `bytes_per_second`, rounded up. A rate of zero counts as one byte a second.
    #[must_use]
    pub fn of_transfer(bytes: u64, bytes_per_second: u64) -> Self {
        if let Some(nanos) = bytes.checked_mul(1_000_000_000) {
            return Self(nanos.div_ceil(bytes_per_second.max(1)));
        }
        let rate = u128::from(bytes_per_second.max(1));
        let nanos = (u128::from(bytes) * 1_000_000_000).div_ceil(rate);
        Self(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Add<Span> for Instant {
    type Output = Self;
    fn add(self, rhs: Span) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }
}

impl AddAssign<Span> for Instant {
    fn add_assign(&mut self, rhs: Span) {
        *self = *self + rhs;
    }
}

impl Sub<Span> for Instant {
    type Output = Self;
    fn sub(self, rhs: Span) -> Self {
        Self(self.0.saturating_sub(rhs.0))
    }
}

impl Add for Span {
    type Output = Self;
    fn add(self, rhs: Self) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n < 10_000 => write!(f, "{n} ns"),
            n if n < 10_000_000 => write!(f, "{} us", n / 1_000),
            n if n < 10_000_000_000 => write!(f, "{} ms", n / 1_000_000),
            n => write!(f, "{} s", n / 1_000_000_000),
        }
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}
