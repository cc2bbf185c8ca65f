//! A systematic erasure code: data is cut into k fragments, m fragments of parity are computed from them, and any k of
//! the k+m fragments give the data back.
//!
//! It is Reed-Solomon with a Cauchy matrix over GF(2^8), laid out so that parity is made by XOR alone: a block of 512 bytes is
//! eight planes of 64, plane p has bit p of 512 elements, and what an element is multiplied by is a choice of planes to add.
//! So a device that can only XOR what passes makes it in flight, in any order and in ranges of any length ([`Combination::add`]), and a
//! processor without special instructions is as quick as its memory. The code of Ohtsuji and Tatebe's paper (section 3.4;
//! `docs/aggregator.md` names it) is the case m = 1: one row of ones, which is plain XOR.
//!
//! What is kept by a code is read back by its matrix, so that never changes: `tests/frozen.rs` has it.

mod combination;
mod field;
mod matrix;

pub use combination::Combination;

use core::fmt;
use core::str::FromStr;

/// Bytes in a block; fragments are whole blocks.
pub const BLOCK: usize = 512;
/// Most fragments of a code, data and parity together.
pub const FRAGMENTS: usize = 16;

/// How many fragments of data there are, and how many of parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code {
    data: u8,
    parity: u8,
}

impl Code {
    /// The code of `data` + `parity` fragments: two of data at the least, one of parity, [`FRAGMENTS`] in all at the most.
    #[must_use]
    pub fn new(data: u8, parity: u8) -> Option<Self> {
        let is_possible = data >= 2 && parity >= 1 && usize::from(data) + usize::from(parity) <= FRAGMENTS;
        is_possible.then_some(Self { data, parity })
    }

    /// As one byte: fragments of data in the upper half, of parity in the lower.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self.data << 4 | self.parity
    }

    /// The reverse of [`byte`](Self::byte); `None` for what is no such byte.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::new(byte >> 4, byte & 0xf)
    }

    /// Fragments of data.
    #[must_use]
    pub const fn data(self) -> usize {
        self.data as usize
    }

    /// Fragments of parity: so many may be lost.
    #[must_use]
    pub const fn parity(self) -> usize {
        self.parity as usize
    }

    /// Fragments in all.
    #[must_use]
    pub const fn fragments(self) -> usize {
        self.data() + self.parity()
    }

    /// Bytes of fragments for each byte of data; what blocks are filled up with is not counted.
    #[must_use]
    pub fn stored_per_byte(self) -> f64 {
        self.fragments() as f64 / self.data() as f64
    }

    /// Bytes in each fragment of `length` bytes of data: whole blocks. The last ones of data are filled up with zeros.
    #[must_use]
    pub const fn fragment_len(self, length: usize) -> usize {
        length.div_ceil(self.data()).next_multiple_of(BLOCK)
    }

    /// Which bytes of `length` bytes of data the fragment with this number has; those of parity have none.
    #[must_use]
    pub fn range(self, fragment: usize, length: usize) -> core::ops::Range<usize> {
        let each = self.fragment_len(length);
        let at = |n: usize| (n * each).min(length);
        let fragment = fragment.min(self.data());
        at(fragment)..at((fragment + 1).min(self.data()))
    }

    /// How parity is made: from the fragments of data, in order, those of parity.
    #[must_use]
    pub fn encoding(self) -> Combination {
        Combination::new(&matrix::parity(self.data(), self.parity()))
    }

    /// How the fragments `lost` are made from `from`, the numbers of as many as there are of data. `None` when these are others than
    /// so many different fragments, or when there is no such fragment.
    #[must_use]
    pub fn decoding(self, from: &[usize], lost: &[usize]) -> Option<Combination> {
        let exists = |n: &usize| *n < self.fragments();
        let is_once = |(at, n): (usize, &usize)| !from[..at].contains(n);
        let is_possible = from.len() == self.data()
            && from.iter().all(exists)
            && lost.iter().all(exists)
            && from.iter().enumerate().all(is_once);
        is_possible.then(|| Combination::new(&matrix::of_others(self.data(), self.parity(), from, lost)))
    }
}

/// As people write it: `4+2`.
impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.data, self.parity)
    }
}

/// A text that is no code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownCode;

impl fmt::Display for UnknownCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a code as `4+2`: at least 2 fragments of data, 1 of parity, {FRAGMENTS} in all at the most")
    }
}

impl core::error::Error for UnknownCode {}

impl FromStr for Code {
    type Err = UnknownCode;

    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        let (data, parity) = text.split_once('+').ok_or(UnknownCode)?;
        let code = Self::new(data.parse().map_err(|_| UnknownCode)?, parity.parse().map_err(|_| UnknownCode)?);
        // As it is written: no sign, no zeros before.
        code.filter(|code| code.to_string() == text).ok_or(UnknownCode)
    }
}
