//! A sweep while it is under way: the range of all ids, a part of it, a part of that part, and so on down to the range
//! that is looked at now, each with what members have said of it.

use std::collections::{BTreeMap, BTreeSet};

use super::ASKED;
use crate::census::{Counted, Holding, IdRange, PARTS};
use crate::health::Lacks;
use crate::id::{ChunkId, ChunkKind, NodeId, TxnId};
use crate::limits;
use crate::rng::mix;
use crate::time::Instant;

/// With so many parts that have to be looked at, all that is in their range is listed at once.
const MANY: usize = PARTS / 4;
/// A list's first page must reach this part. Otherwise the list would be too long, and the sweep goes on part by part.
const FIRST_PAGE: usize = 4;
/// A list of more copies is too long, whatever its first page said.
const LISTED: usize = PARTS * limits::COUNTED;

/// A part of a range as it was when there was nothing to do in it.
#[derive(Clone, Debug)]
pub(super) struct Settled {
    /// Of what all held of it; 0: there was something to do, or it was not looked at as it was then.
    pub(super) print: u64,
    /// What has too few copies as far as is known, since some are silent; seldom anything.
    pub(super) lacks: Option<Box<Lacks>>,
    /// When it is to be looked at although nothing has changed.
    pub(super) again: Instant,
}

impl Settled {
    pub(super) const NOTHING: Self = Self { print: 0, lacks: None, again: Instant::FAR };

    /// Whether it is as it was.
    pub(super) fn holds(&self, print: u64, now: Instant) -> bool {
        print == self.print && now < self.again
    }
}

/// An answer that is owed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    pub(super) asked: u8,
    pub(super) again: Instant,
    pub(super) after: Option<ChunkId>,
}

/// Whether the copies of a divided range are listed for all of its parts at once: where most have to be looked at and hold little, an
/// answer for each would be nearly empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listing {
    /// It is not decided.
    Open,
    UnderWay,
    TooMany,
    Over,
}

/// A range that is looked at, and what is known of it.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) range: IdRange,
    /// Which part of the range before it in the path it is, and as what it is remembered there.
    pub(super) part: usize,
    pub(super) print: u64,
    /// The targets that still owe an answer.
    pub(super) owed: BTreeMap<NodeId, Owed>,
    pub(super) copies: BTreeMap<NodeId, Vec<Counted>>,
    pub(super) sums: BTreeMap<NodeId, Box<[u64; PARTS]>>,
    pub(super) listing: Listing,
    /// Of each part, when all have answered and the range is divided.
    pub(super) prints: Vec<u64>,
    /// How many were silent then.
    pub(super) silent: usize,
    pub(super) next_part: usize,
    pub(super) lacks: Lacks,
    /// Whether there is something to do in it.
    pub(super) busy: bool,
    /// Whether what was looked at is not what its print says. A copy that a target does not hold for a moment, as when
    /// its disk does not read it, was in the sum that it told, and is not in its list.
    pub(super) changed: bool,
    /// When something is to be done in it.
    pub(super) again: Instant,
}

#[derive(Debug)]
pub(super) struct Sweep {
    pub(super) began: Instant,
    pub(super) txn: TxnId,
    pub(super) silent: BTreeSet<NodeId>,
    /// From the range of all ids to the one that is looked at.
    pub(super) path: Vec<Visit>,
    /// Ranges that were divided less often have too many copies to be listed.
    pub(super) lists_from: u8,
    /// Whether nothing was known to lack copies when it began, but for what may just be being put: it has time, and rests between
    /// questions.
    pub(super) has_time: bool,
}

impl Sweep {
    pub(super) fn new(now: Instant, txn: TxnId, keepers: &[NodeId], has_time: bool) -> Self {
        let nothing = keepers.iter().map(|keeper| (*keeper, None)).collect();
        let all = Visit::new(IdRange::ALL, 0, 0, nothing, now);
        Self { began: now, txn, silent: BTreeSet::new(), path: vec![all], lists_from: 0, has_time }
    }

    /// All have answered. Whether all copies are to be listed now, since so many parts are `open`, which means that
    /// they have to be looked at. The holders are asked from `begin` on.
    pub(super) fn lists(&mut self, begin: Instant, open: usize) -> bool {
        let Some(visit) = self.path.last_mut() else { return false };
        match visit.listing {
            Listing::Open if open >= MANY && visit.range.depth() >= self.lists_from => {
                visit.begin_list(begin);
                return true;
            }
            Listing::TooMany => self.lists_from = visit.range.depth() + 1,
            Listing::Open | Listing::UnderWay | Listing::Over => {}
        }
        visit.listing = Listing::Over;
        false
    }

    pub(super) fn next_deadline(&self) -> Instant {
        let owed = self.path.last().into_iter().flat_map(|visit| visit.owed.values());
        owed.map(|owed| owed.again).min().unwrap_or(Instant::ZERO)
    }

    /// A target that has been asked often enough is silent until the next sweep.
    pub(super) fn give_up_silent(&mut self, now: Instant) {
        let Some(visit) = self.path.last_mut() else { return };
        let given_up = visit.owed.iter().filter(|(_, owed)| owed.again <= now && owed.asked >= ASKED);
        self.silent.extend(given_up.map(|(keeper, _)| *keeper));
    }
}

impl Visit {
    /// A range of which the copies of some are known, and others are to be asked, from `begin` on.
    pub(super) fn new(
        range: IdRange,
        part: usize,
        print: u64,
        known: BTreeMap<NodeId, Option<Vec<Counted>>>,
        begin: Instant,
    ) -> Self {
        let (mut owed, mut copies) = (BTreeMap::new(), BTreeMap::new());
        for (keeper, known) in known {
            match known {
                Some(known) => drop(copies.insert(keeper, known)),
                None => drop(owed.insert(keeper, Owed { asked: 0, again: begin, after: None })),
            }
        }
        let (sums, prints, lacks) = (BTreeMap::new(), Vec::new(), Lacks::default());
        let (silent, next_part, busy, changed, again) = (0, 0, false, false, Instant::FAR);
        let listing = Listing::Open;
        Self { range, part, print, owed, copies, sums, listing, prints, silent, next_part, lacks, busy, changed, again }
    }

    fn begin_list(&mut self, begin: Instant) {
        self.listing = Listing::UnderWay;
        // No chunk has the id that is all zeros behind these bits.
        let after = Some(first_id(self.range));
        let holds = |sums: &[u64; PARTS]| sums.iter().any(|sum| *sum != 0);
        let holders = self.sums.iter().filter(|(_, sums)| holds(sums)).map(|(holder, _)| *holder);
        self.owed = holders.map(|holder| (holder, Owed { asked: 0, again: begin, after })).collect();
    }

    /// A list is too long: what came of it is forgotten, or it would be taken for all that there is.
    fn give_list_up(&mut self) {
        self.listing = Listing::TooMany;
        self.owed.clear();
        self.copies.retain(|holder, _| !self.sums.contains_key(holder));
    }

    pub(super) fn answered(&mut self, now: Instant, from: NodeId, holding: &Holding) {
        let Some(owed) = self.owed.get_mut(&from) else { return };
        match holding {
            Holding::Sums(_) if self.listing == Listing::UnderWay => self.give_list_up(),
            Holding::Sums(sums) => {
                self.sums.insert(from, sums.clone());
                self.owed.remove(&from);
            }
            Holding::Copies { copies, more } => {
                // A page that is here already, as it was asked for twice, would be counted twice.
                if copies.first().is_some_and(|first| owed.after.is_some_and(|after| first.id <= after)) {
                    return;
                }
                let is_first = owed.after == Some(first_id(self.range));
                let within = copies.iter().filter(|copy| self.range.contains(&copy.id));
                let listed = self.copies.entry(from).or_default();
                listed.extend(within);
                let count = listed.len();
                match copies.last() {
                    Some(last) if *more => *owed = Owed { asked: 0, again: now, after: Some(last.id) },
                    _ => drop(self.owed.remove(&from)),
                }
                let reached = copies.last().filter(|_| *more).map_or(PARTS, |last| self.range.part_of(&last.id));
                let too_many = count > LISTED || is_first && reached < FIRST_PAGE;
                if self.listing == Listing::UnderWay && too_many {
                    self.give_list_up();
                }
            }
        }
    }

    /// What stands for all that is held of the range, and of each of its parts if it is divided.
    pub(super) fn prints(&self, salt: u64, silent: &BTreeSet<NodeId>) -> (u64, Vec<u64>) {
        let mut sums: BTreeMap<_, [u64; PARTS]> = self.sums.iter().map(|(keeper, sums)| (*keeper, **sums)).collect();
        for (keeper, copies) in &self.copies {
            let sums = sums.entry(*keeper).or_insert([0; PARTS]);
            for copy in copies {
                let sum = &mut sums[self.range.part_of(&copy.id)];
                *sum = sum.wrapping_add(copy.summand(salt));
            }
        }
        let whole = |sums: &[u64; PARTS]| sums.iter().copied().fold(0, u64::wrapping_add);
        let all = print(sums.iter().map(|(keeper, sums)| (*keeper, whole(sums))), silent);
        let part = |part: usize| print(sums.iter().map(|(keeper, sums)| (*keeper, sums[part])), silent);
        (all, (0..PARTS).filter(|_| !self.sums.is_empty()).map(part).collect())
    }

    /// What is known of the copies in a part: a target that told sums has none where its sum is 0.
    pub(super) fn known_of(&self, part: usize) -> BTreeMap<NodeId, Option<Vec<Counted>>> {
        // A list may be long, and is looked through for each part: what is in it is within the range.
        let is_in_part = |copy: &Counted| self.range.part_of(&copy.id) == part;
        let within = |copies: &Vec<Counted>| copies.iter().copied().filter(is_in_part).collect();
        let listed = self.copies.iter().map(|(keeper, copies)| (*keeper, Some(within(copies))));
        let summed = self.sums.iter().filter(|(keeper, _)| !self.copies.contains_key(keeper));
        let summed = summed.map(|(keeper, sums)| (*keeper, (sums[part] == 0).then(Vec::new)));
        listed.chain(summed).collect()
    }
}

/// The first id that may be in a range.
fn first_id(range: IdRange) -> ChunkId {
    range.ends(ChunkKind::Payload).0
}

/// What stands for all that keepers hold, by the sums of it: it is another one when that is. 0 when nothing is held.
fn print(held: impl Iterator<Item = (NodeId, u64)>, silent: &BTreeSet<NodeId>) -> u64 {
    let held = held.filter(|(_, sum)| *sum != 0).map(|(keeper, sum)| mix(sum ^ mix(keeper.0.into())));
    let all = held.reduce(u64::wrapping_add);
    all.map_or(0, |all| silent.iter().fold(all | 1, |print, keeper| mix(print ^ u64::from(keeper.0)) | 1))
}
