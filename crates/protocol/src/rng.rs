//! A small seeded generator (SplitMix64): the only randomness that machines have, so that a seed repeats a run.

/// A stream of pseudo-random numbers; one per node and purpose.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream that belongs to `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A stream of its own for `purpose`, so that one consumer more does not shift the draws of the others.
    #[must_use]
    pub const fn fork(&self, purpose: u64) -> Self {
        Self(mix(self.0 ^ mix(purpose.wrapping_add(0x5851_f42d_4c95_7f2d))))
    }

    /// The next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, or 0 when `bound` is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }

    /// True in `numerator` of `denominator` cases.
    pub const fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }
}

/// Scrambles 64 bits; also the hash behind placement scores.
#[must_use]
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
