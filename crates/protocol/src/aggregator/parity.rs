//! Parity that is computed of what passes, in whatever order it comes.

use bytes::{Bytes, BytesMut};
use erasure::{BLOCK, Code, Combination};

use super::Bug;
use crate::id::coded::{Header, renumber};

/// The pieces of parity of one chunk, as far as its pieces of data have passed.
#[derive(Debug)]
pub(super) struct Parity {
    code: Code,
    combination: Combination,
    /// Of each piece of parity header and sum. The headers are those of data, but for the number.
    sums: Vec<BytesMut>,
    /// Which bytes of each piece of data have passed: ranges in order, that do not touch.
    passed: Vec<Vec<(u32, u32)>>,
    /// How many bytes of each block are missing, of all pieces of data together; first stands the header, of which one is enough.
    missing: Vec<u32>,
    bug: Option<Bug>,
}

impl Parity {
    /// Nothing has passed of pieces of `size` bytes. `None` when no piece of this code has that size.
    pub(super) fn new(code: Code, size: u32, bug: Option<Bug>) -> Option<Self> {
        let header = Header::len(code);
        let blocks = (size as usize).checked_sub(header).filter(|fragment| fragment.is_multiple_of(BLOCK))? / BLOCK;
        let mut missing = vec![(BLOCK * code.data()) as u32; blocks + 1];
        missing[0] = header as u32;
        let sums = vec![BytesMut::zeroed(size as usize); code.parity()];
        Some(Self { code, combination: code.encoding(), sums, passed: vec![Vec::new(); code.data()], missing, bug })
    }

    /// Bytes that it keeps.
    pub(super) fn held(&self) -> u64 {
        self.sums.iter().map(|sum| sum.len() as u64).sum()
    }

    /// How many pieces of parity there are.
    pub(super) const fn count(&self) -> usize {
        self.code.parity()
    }

    /// (With a bug.) Begins with the sums of another chunk.
    pub(super) fn begin_with(&mut self, stale: &Self) {
        for (own, stale) in self.sums.iter_mut().zip(&stale.sums) {
            own.iter_mut().zip(stale).for_each(|(own, stale)| *own = *stale);
        }
    }

    /// (With a bug.) Adds bytes that are none of this chunk's.
    pub(super) fn spoil(&mut self, at: u32, bytes: &[u8]) {
        for sum in &mut self.sums {
            sum.iter_mut().skip(at as usize).zip(bytes).for_each(|(sum, byte)| *sum ^= byte);
        }
    }

    /// Some bytes of a piece of data pass, from `at` on. Which bytes of the parity are known now that were not before, in
    /// ranges from their first to behind their last.
    pub(super) fn add(&mut self, piece: usize, at: u32, bytes: &[u8]) -> Vec<(u32, u32)> {
        let Some(passed) = self.passed.get_mut(piece) else { return Vec::new() };
        let mut known = Vec::new();
        // What passes again would cancel itself out.
        for (from, to) in note(passed, at, at + bytes.len() as u32) {
            self.add_new(piece, from, &bytes[(from - at) as usize..(to - at) as usize], &mut known);
        }
        known
    }

    fn add_new(&mut self, piece: usize, at: u32, bytes: &[u8], known: &mut Vec<(u32, u32)>) {
        let header = Header::len(self.code) as u32;
        let of_header = (header.saturating_sub(at) as usize).min(bytes.len());
        if piece == 0 && of_header > 0 {
            let (from, to) = (at as usize, at as usize + of_header);
            self.sums.iter_mut().for_each(|sum| sum[from..to].copy_from_slice(&bytes[..of_header]));
            self.missing[0] -= of_header as u32;
            if self.missing[0] == 0 {
                for (number, sum) in (self.code.data()..).zip(&mut self.sums) {
                    renumber(sum, number);
                }
                extend(known, 0, header);
            }
        }
        let (bytes, at) = (&bytes[of_header..], (at + of_header as u32).saturating_sub(header) as usize);
        let mut outputs: Vec<&mut [u8]> = self.sums.iter_mut().map(|sum| &mut sum[header as usize..]).collect();
        let as_if = if self.bug == Some(Bug::WrongCoefficient) { self.code.data() - 1 - piece } else { piece };
        self.combination.add(as_if, at, bytes, &mut outputs);
        let end = at + bytes.len();
        for block in at / BLOCK..end.div_ceil(BLOCK) {
            let (from, to) = ((block * BLOCK).max(at), ((block + 1) * BLOCK).min(end));
            let missing = &mut self.missing[block + 1];
            *missing -= (to - from) as u32;
            if *missing == 0 {
                let start = header + (block * BLOCK) as u32;
                extend(known, start, start + BLOCK as u32);
            }
        }
    }

    /// Some bytes of a piece of parity, which are known.
    pub(super) fn bytes(&self, nth: usize, (from, to): (u32, u32)) -> Bytes {
        Bytes::copy_from_slice(&self.sums[nth][from as usize..to as usize])
    }
}

/// Adds a range to those that are known: to the last of them, if it begins where that ends.
fn extend(known: &mut Vec<(u32, u32)>, from: u32, to: u32) {
    match known.last_mut() {
        Some((_, end)) if *end == from => *end = to,
        _ => known.push((from, to)),
    }
}

/// Notes that a range has passed: what of it had not before.
pub(super) fn note(passed: &mut Vec<(u32, u32)>, from: u32, to: u32) -> Vec<(u32, u32)> {
    let (mut fresh, mut at) = (Vec::new(), from);
    let first = passed.partition_point(|(_, end)| *end < from);
    let last = passed.partition_point(|(start, _)| *start <= to);
    for (start, end) in &passed[first..last] {
        if *start > at {
            fresh.push((at, *start));
        }
        at = at.max(*end);
    }
    if at < to {
        fresh.push((at, to));
    }
    let all = passed[first..last].iter().fold((from, to), |all, range| (all.0.min(range.0), all.1.max(range.1)));
    passed.splice(first..last, [all]);
    fresh
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::id::coded;

    proptest! {
        #[test]
        fn what_is_new_is_what_was_not_there(ranges in prop::collection::vec((0_u32..60, 1_u32..20), 0..30)) {
            let (mut passed, mut all) = (Vec::new(), BTreeSet::new());
            for (from, length) in ranges {
                let fresh = note(&mut passed, from, from + length);
                let fresh: Vec<u32> = fresh.into_iter().flat_map(|(from, to)| from..to).collect();
                let expected: Vec<u32> = (from..from + length).filter(|n| all.insert(*n)).collect();
                prop_assert_eq!(fresh, expected);
                prop_assert!(passed.windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
        }

        /// In datagrams of any length, in any order, doubled: what is known is right, and all of it is known once.
        #[test]
        fn parity_is_that_of_the_writer(seed: u64, length in 1_usize..9_000, nth in 0_usize..3, step in 100_usize..1_500) {
            let code = [(2, 1), (4, 2), (3, 3)].map(|(data, parity)| Code::new(data, parity).expect("a code"))[nth];
            let chunk: Vec<u8> = (0..length as u64).map(|n| crate::rng::mix(seed ^ n) as u8).collect();
            let pieces = coded::cut(code, &chunk).expect("it is short").pieces;
            let size = pieces[0].len();
            let mut datagrams: Vec<(usize, usize)> =
                (0..code.data()).flat_map(|piece| (0..size).step_by(step).map(move |at| (piece, at))).collect();
            datagrams.extend(datagrams.clone().into_iter().step_by(3));
            datagrams.sort_by_key(|(piece, at)| crate::rng::mix(seed ^ (piece << 20 | at) as u64));
            let mut parity = Parity::new(code, size as u32, None).expect("it is of that size");
            let mut known = Vec::new();
            for (piece, at) in datagrams {
                let bytes = &pieces[piece][at..(at + step).min(size)];
                for range in parity.add(piece, at as u32, bytes) {
                    for (nth, whole) in pieces[code.data()..].iter().enumerate() {
                        prop_assert_eq!(&parity.bytes(nth, range)[..], &whole[range.0 as usize..range.1 as usize]);
                    }
                    let fresh = note(&mut known, range.0, range.1);
                    prop_assert_eq!(fresh, [range]);
                }
            }
            prop_assert_eq!(known, [(0, size as u32)]);
        }
    }

    #[test]
    fn what_is_no_piece_has_no_parity() {
        let code = Code::new(4, 2).expect("a code");
        for size in [1, 100, 199, 201, 711] {
            assert!(Parity::new(code, size, None).is_none(), "{size}");
        }
        let mut parity = Parity::new(code, 712, None).expect("a header and a block");
        assert!(parity.add(4, 0, &[1; 712]).is_empty(), "that is no piece of data");
    }
}
