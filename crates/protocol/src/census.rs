//! What targets compare to find which chunks have too few copies: sums over ranges of ids, and what a small range holds.
//!
//! A range of ids has 64 parts. A target that is asked what it holds of a range answers with the chunks themselves when
//! they fit into one datagram, and else with a sum for each part. Where all sums are as they were when every chunk had
//! its copies, there is nothing to do. So the traffic grows with what differs, and not with what is held.

use crate::id::{ChunkId, ChunkKind};
use crate::limits;
use crate::redundancy::Wanted;
use crate::rng::mix;

/// Parts of a range.
pub const PARTS: usize = 1 << PART_BITS;
const PART_BITS: u32 = 6;

/// The ids that begin with certain bits, of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdRange {
    /// How often the range of all ids was divided.
    depth: u8,
    /// The bits, `depth` times six of them.
    bits: u32,
}

impl IdRange {
    /// All ids.
    pub const ALL: Self = Self { depth: 0, bits: 0 };
    /// As often ranges are divided. Ids with so many bits in common are mostly versions of one name.
    pub const DEEPEST: u8 = 5;

    /// The range with these bits; `None` when there is no such range.
    #[must_use]
    pub fn new(depth: u8, bits: u32) -> Option<Self> {
        (depth <= Self::DEEPEST && bits >> (u32::from(depth) * PART_BITS) == 0).then_some(Self { depth, bits })
    }

    /// How often the range of all ids was divided to get it.
    #[must_use]
    pub const fn depth(self) -> u8 {
        self.depth
    }

    /// Its bits, six for each division.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.bits
    }

    /// Its parts, in order; none of one that is not divided.
    pub fn parts(self) -> impl Iterator<Item = Self> {
        let is_divided = self.depth < Self::DEEPEST;
        let part = move |n| Self { depth: self.depth + 1, bits: self.bits << PART_BITS | n };
        (0..PARTS as u32).filter(move |_| is_divided).map(part)
    }

    /// In which part of it an id is that is in it.
    #[must_use]
    pub fn part_of(self, id: &ChunkId) -> usize {
        let shift = u32::BITS - (u32::from(self.depth) + 1).min(Self::DEEPEST.into()) * PART_BITS;
        (first_bits(id) >> shift) as usize % PARTS
    }

    /// Whether an id is in it.
    #[must_use]
    pub fn contains(self, id: &ChunkId) -> bool {
        let (first, last) = self.ends(id.kind());
        (first..=last).contains(id)
    }

    /// Behind the first 32 bits of all ids in it.
    #[must_use]
    pub(crate) fn end(self) -> u64 {
        u64::from(self.bits + 1) << (u32::BITS - u32::from(self.depth) * PART_BITS)
    }

    /// The first and the last id of this kind in it.
    #[must_use]
    pub fn ends(self, kind: ChunkKind) -> (ChunkId, ChunkId) {
        let free = u32::BITS - u32::from(self.depth) * PART_BITS;
        let first = self.bits.checked_shl(free).unwrap_or(0);
        let last = first | u32::MAX.checked_shr(u32::BITS - free).unwrap_or(0);
        let id = |bits: u32, fill| {
            let mut bytes = [fill; 32];
            bytes[..4].copy_from_slice(&bits.to_be_bytes());
            ChunkId::from_parts(kind, bytes)
        };
        (id(first, 0), id(last, u8::MAX))
    }
}

fn first_bits(id: &ChunkId) -> u32 {
    let mut bits = [0; 4];
    bits.copy_from_slice(&id.bytes()[..4]);
    u32::from_be_bytes(bits)
}

/// A copy, as a census counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Of which chunk.
    pub id: ChunkId,
    /// What it is kept for.
    pub wanted: Wanted,
}

impl Counted {
    /// What it adds to the sum of the part that it is in. With another salt all sums are others, so that no two sets of chunks have
    /// equal sums for long.
    #[must_use]
    pub fn summand(&self, salt: u64) -> u64 {
        let words = self.id.bytes().as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let first = mix(salt ^ u64::from(self.id.kind() as u8) << 8 ^ u64::from(self.wanted.code()));
        words.fold(first, |sum, word| mix(sum ^ word))
    }
}

/// What a target holds of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holding {
    /// The sums of the parts: the range has more copies than fit into a datagram.
    Sums(Box<[u64; PARTS]>),
    /// Its copies.
    Copies {
        /// In ascending order of the ids.
        copies: Vec<Counted>,
        /// Whether there are more behind them.
        more: bool,
    },
}

/// Counts copies, range by range: what [`Holding`] is made of.
#[derive(Debug)]
pub struct Count {
    range: IdRange,
    salt: u64,
    after: Option<ChunkId>,
    sums: [u64; PARTS],
    copies: Vec<Counted>,
    more: bool,
}

impl Count {
    /// Nothing was counted yet. With `after` the copies behind that chunk are wanted, and no sums.
    #[must_use]
    pub const fn new(range: IdRange, salt: u64, after: Option<ChunkId>) -> Self {
        Self { range, salt, after, sums: [0; PARTS], copies: Vec::new(), more: false }
    }

    /// Counts a copy; they come in ascending order of the ids. Whether more are to come.
    pub fn add(&mut self, copy: Counted) -> bool {
        if self.after.is_some_and(|after| copy.id <= after) {
            return true;
        }
        if self.copies.len() < limits::COUNTED {
            self.copies.push(copy);
        } else {
            self.more = true;
        }
        if self.is_listed() {
            return !self.more;
        }
        let part = &mut self.sums[self.range.part_of(&copy.id)];
        *part = part.wrapping_add(copy.summand(self.salt));
        true
    }

    /// Whether only copies are wanted.
    const fn is_listed(&self) -> bool {
        self.after.is_some() || self.range.depth == IdRange::DEEPEST
    }

    /// What was counted.
    #[must_use]
    pub fn finish(self) -> Holding {
        if self.more && !self.is_listed() {
            return Holding::Sums(Box::new(self.sums));
        }
        Holding::Copies { copies: self.copies, more: self.more }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redundancy::Redundancy;

    fn ids(count: u32) -> Vec<ChunkId> {
        let mut ids: Vec<ChunkId> = (0..count).map(|n| ChunkId::of_payload(&n.to_le_bytes())).collect();
        ids.extend((0..count).map(|n| ChunkId::of_manifest(&format!("name-{}", n % 7), u64::from(n), &[n as u8])));
        ids.sort_unstable();
        ids
    }

    #[test]
    fn each_id_is_in_one_part_of_each_range_that_it_is_in() {
        for id in ids(500) {
            let mut range = IdRange::ALL;
            while range.depth() < IdRange::DEEPEST {
                assert!(range.contains(&id));
                let parts: Vec<IdRange> = range.parts().filter(|part| part.contains(&id)).collect();
                let nth = range.parts().position(|part| part == parts[0]);
                assert_eq!((parts.len(), nth), (1, Some(range.part_of(&id))));
                assert_eq!(IdRange::new(parts[0].depth(), parts[0].bits()), Some(parts[0]));
                range = parts[0];
            }
            assert_eq!(range.parts().count(), 0);
        }
        assert_eq!((IdRange::new(6, 0), IdRange::new(1, 64), IdRange::new(0, 1)), (None, None, None));
    }

    #[test]
    fn the_sums_of_a_range_are_those_of_its_copies_in_any_order_of_parts() {
        let all = ids(400);
        let copy = |id: &ChunkId| Counted { id: *id, wanted: Wanted::BY_MAP };
        let mut count = Count::new(IdRange::ALL, 3, None);
        assert!(all.iter().all(|id| count.add(copy(id))));
        let Holding::Sums(sums) = count.finish() else { panic!("they do not fit") };
        for (part, range) in IdRange::ALL.parts().enumerate() {
            let within = all.iter().filter(|id| range.contains(id));
            let sum = within.fold(0_u64, |sum, id| sum.wrapping_add(copy(id).summand(3)));
            assert_eq!(sum, sums[part]);
        }
        let more = Counted { id: all[0], wanted: Wanted::of(Some(Redundancy::Copies(2))) };
        assert_ne!(more.summand(3), copy(&all[0]).summand(3), "what it is kept for counts");
        assert_ne!(copy(&all[0]).summand(4), copy(&all[0]).summand(3));
    }

    #[test]
    fn few_copies_are_listed_and_many_of_one_name_page_by_page() {
        let few = ids(limits::COUNTED as u32 / 2);
        let mut count = Count::new(IdRange::ALL, 0, None);
        few.iter().for_each(|id| assert!(count.add(Counted { id: *id, wanted: Wanted::BY_MAP })));
        let Holding::Copies { copies, more: false } = count.finish() else { panic!("they fit") };
        assert_eq!(copies.iter().map(|copy| copy.id).collect::<Vec<_>>(), few);

        let versions: Vec<ChunkId> = (0..100).map(|n| ChunkId::of_manifest("name", n, &[])).collect();
        let mut range = IdRange::ALL;
        while let Some(part) = range.parts().find(|part| part.contains(&versions[0])) {
            range = part;
        }
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let mut count = Count::new(range, 0, after);
            let _ = versions.iter().all(|id| count.add(Counted { id: *id, wanted: Wanted::BY_MAP }));
            let Holding::Copies { copies, more } = count.finish() else { panic!("the range is not divided") };
            found.extend(copies.iter().map(|copy| copy.id));
            after = found.last().copied();
            if !more {
                break;
            }
        }
        assert_eq!(found, versions);
    }
}
