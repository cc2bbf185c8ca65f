//! Seeded generators, the only randomness that machines have, so that a seed repeats a run: a small one (SplitMix64), and one
//! whose numbers say nothing of each other.

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

/// Numbers that reveal nothing about each other to anyone who does not know the seed: keyed BLAKE3 of a counter. (Anyone who sees
/// some of an [`Rng`]'s numbers can compute all others.)
#[derive(Clone, Debug)]
pub struct Unguessable {
    key: [u8; blake3::KEY_LEN],
    /// Hashes drawn.
    drawn: u64,
    /// Numbers left of the last.
    left: Vec<u64>,
}

impl Unguessable {
    /// The numbers that belong to `seed`, which nobody else may know.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let key = blake3::derive_key("reservoir 2026-11 numbers that say nothing of each other", &seed.to_le_bytes());
        Self { key, drawn: 0, left: Vec::new() }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        if self.left.is_empty() {
            let hash = blake3::keyed_hash(&self.key, &self.drawn.to_le_bytes());
            self.drawn += 1;
            self.left.extend(hash.as_bytes().as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)));
        }
        self.left.pop().unwrap_or_default()
    }
}

/// Scrambles 64 bits; also the hash behind placement scores.
#[must_use]
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_say_nothing_of_each_other_belong_to_their_seed() {
        let draw = |seed| {
            let mut numbers = Unguessable::new(seed);
            (0..1_000).map(|_| numbers.next_u64()).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(draw(1).len(), 1_000);
        assert_eq!(draw(1), draw(1));
        assert!(draw(1).is_disjoint(&draw(2)));
    }
}
