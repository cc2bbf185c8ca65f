//! How far a chunk's redundancy is reached: which pieces are durable, in which failure domains, and which are missing.

use crate::limits;
use crate::redundancy::{Piece, Pieces, Redundancy};

/// What is to be durable of a chunk, and what of it is. A piece counts in one failure domain, and a domain for one piece: so
/// whatever fails as one takes one piece at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal {
    redundancy: Redundancy,
    missing: Pieces,
    /// With so many pieces it is met.
    enough: usize,
    /// The domains in which pieces count, in the order in which these came.
    domains: [u16; limits::PIECES],
    held: usize,
}

impl Goal {
    /// Nothing is durable yet.
    #[must_use]
    pub const fn new(redundancy: Redundancy) -> Self {
        let (missing, enough) = (redundancy.all(), redundancy.pieces());
        Self { redundancy, missing, enough, domains: [0; limits::PIECES], held: 0 }
    }

    /// What is to be reached.
    #[must_use]
    pub const fn redundancy(&self) -> Redundancy {
        self.redundancy
    }

    /// The same with so many pieces at the most: enough as long as no more can be had.
    #[must_use]
    pub fn at_most(self, pieces: usize) -> Self {
        let redundancy = self.redundancy.at_most(u8::try_from(pieces).unwrap_or(u8::MAX));
        // Of copies what counts already has the lowest numbers: they are alike.
        Self { redundancy, missing: self.missing.and(redundancy.all()), enough: self.enough.min(pieces.max(1)), ..self }
    }

    /// The pieces that still have to become durable, each in a domain that is not among [`domains`](Self::domains).
    #[must_use]
    pub const fn missing(&self) -> Pieces {
        self.missing
    }

    /// Whether no piece is missing, or enough of them are durable.
    #[must_use]
    pub const fn is_met(&self) -> bool {
        self.held >= self.enough
    }

    /// The failure domains in which a piece counts.
    #[must_use]
    pub fn domains(&self) -> &[u16] {
        &self.domains[..self.held]
    }

    /// The same when these pieces are durable in these domains, and nothing else. Where a domain has several pieces,
    /// one of them counts: the choice with which most domains count, in whatever order the pieces come.
    #[must_use]
    pub fn with(self, held: impl IntoIterator<Item = (Pieces, u16)>) -> Self {
        let mut domains: Vec<(u16, Pieces)> = Vec::new();
        for (pieces, domain) in held {
            match domains.iter_mut().find(|(other, _)| *other == domain) {
                Some((_, all)) => *all = all.or(pieces),
                None => domains.push((domain, pieces)),
            }
        }
        let mut counts = [None; limits::PIECES];
        for nth in 0..domains.len() {
            counts_for(nth, &domains, self.redundancy.all(), &mut counts);
        }
        let mut goal = Self { missing: self.redundancy.all(), held: 0, ..self };
        for (piece, nth) in (0..).map(Piece).zip(counts) {
            let domain = nth.and_then(|nth: usize| domains.get(nth));
            if let Some((domain, _)) = domain {
                goal.hold(piece.into(), *domain);
            }
        }
        goal
    }

    /// Which pieces count, and where, as far as [`with`](Self::with) found it.
    pub fn assigned(&self) -> impl Iterator<Item = (Piece, u16)> + '_ {
        self.redundancy.all().and_not(self.missing).iter().zip(self.domains().iter().copied())
    }

    /// Whether it would be met if pieces that are missing were in these domains as well.
    #[must_use]
    pub fn would_be_met(mut self, domains: impl IntoIterator<Item = u16>) -> bool {
        self.is_met()
            || domains.into_iter().any(|domain| {
                self.hold(self.redundancy.all(), domain);
                self.is_met()
            })
    }

    /// Some target in a failure domain holds each of these pieces durably: as which of them it counts. As none when another
    /// counts there, or when none of them is missing. What counts already stays where it counts.
    pub fn hold(&mut self, pieces: Pieces, domain: u16) -> Option<Piece> {
        if self.domains().contains(&domain) {
            return None;
        }
        let piece = self.missing.and(pieces).lowest()?;
        *self.domains.get_mut(self.held)? = domain;
        self.held += 1;
        self.missing = self.missing.without(piece);
        Some(piece)
    }
}

/// Finds one of the pieces that are `left` to try for which a domain counts, where others may come to count for another.
fn counts_for(
    nth: usize,
    domains: &[(u16, Pieces)],
    mut left: Pieces,
    counts: &mut [Option<usize>; limits::PIECES],
) -> Option<Pieces> {
    while let Some(piece) = domains.get(nth).and_then(|(_, pieces)| pieces.and(left).lowest()) {
        left = left.without(piece);
        let place = usize::from(piece.0);
        let is_free = match counts[place] {
            None => true,
            Some(other) => match counts_for(other, domains, left, counts) {
                Some(tried) => {
                    left = tried;
                    false
                }
                None => true,
            },
        };
        if is_free {
            counts[place] = Some(nth);
            return None;
        }
    }
    Some(left)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use erasure::Code;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn pieces(numbers: &[u8]) -> Pieces {
        numbers.iter().copied().map(Piece).collect()
    }

    #[test]
    fn a_piece_counts_in_one_domain_and_a_domain_for_one_piece() {
        let mut goal = Goal::new(Redundancy::Copies(3));
        assert_eq!((goal.missing(), goal.is_met()), (pieces(&[0, 1, 2]), false));
        assert_eq!(goal.hold(pieces(&[1]), 7), Some(Piece(1)));
        assert_eq!(goal.hold(pieces(&[0]), 7), None, "another counts there");
        assert_eq!(goal.hold(pieces(&[1]), 8), None, "it is durable elsewhere");
        assert_eq!(goal.hold(pieces(&[1, 2]), 8), Some(Piece(2)));
        assert_eq!((goal.missing(), goal.domains()), (pieces(&[0]), &[7, 8][..]));
        assert_eq!(goal.hold(Pieces::first(9), 9), Some(Piece(0)));
        assert!(goal.is_met() && goal.missing().is_empty());
        assert_eq!((goal.hold(goal.redundancy().all(), 10), goal.domains()), (None, &[7, 8, 9][..]));
    }

    #[test]
    fn fewer_are_enough_when_no_more_can_be_had() {
        let mut goal = Goal::new(Redundancy::Copies(3));
        goal.hold(pieces(&[0, 1, 2]), 7);
        let less = goal.at_most(2);
        assert_eq!(
            (less.missing(), less.domains(), less.redundancy()),
            (pieces(&[1]), &[7][..], Redundancy::Copies(2))
        );
        goal.hold(pieces(&[0, 1, 2]), 8);
        assert!(!goal.is_met() && goal.at_most(2).is_met() && !goal.at_most(3).is_met());
        assert_eq!(goal.at_most(5), goal);
    }

    #[test]
    fn each_fragment_of_a_code_is_missing_until_it_is_held_itself() {
        let code = Code::new(2, 1).and_then(Redundancy::code).expect("a code");
        let mut goal = Goal::new(code);
        assert_eq!([goal.hold(pieces(&[2]), 7), goal.hold(pieces(&[2]), 8)], [Some(Piece(2)), None]);
        assert!(goal.would_be_met([8, 9]) && !goal.would_be_met([7, 8]));
        let less = goal.at_most(2);
        assert_eq!((less.missing(), less.redundancy()), (pieces(&[0, 1]), code), "either of them");
        assert_eq!(goal.hold(pieces(&[1]), 8), Some(Piece(1)));
        assert!(goal.at_most(2).is_met() && !goal.is_met() && !goal.at_most(3).is_met());
        assert_eq!(goal.hold(pieces(&[0]), 9), Some(Piece(0)));
        assert!(goal.is_met());
    }

    #[test]
    fn as_many_domains_count_as_can() {
        let goal = Goal::new(Code::new(2, 1).and_then(Redundancy::code).expect("a code"));
        // One after the other, 1 and 2 would count for 0 and 1, and then 3 for nothing.
        let held = [(&[0_u8][..], 1_u16), (&[1], 2), (&[0], 3), (&[1], 4), (&[2], 2)];
        let reached = goal.with(held.map(|(numbers, domain)| (pieces(numbers), domain)));
        assert!(reached.is_met(), "{reached:?}");
        assert_eq!((goal.with([]), goal.with([(pieces(&[9]), 1)])), (goal, goal));
    }

    #[test]
    fn a_set_of_pieces_has_each_once() {
        assert_eq!(pieces(&[3, 0, 3]).iter().collect::<Vec<_>>(), [Piece(0), Piece(3)]);
        assert_eq!([0, 1, 16, 17].map(|count| Pieces::first(count).len()), [0, 1, 16, 16]);
        assert_eq!(pieces(&[200]), Pieces::default());
        assert_eq!(pieces(&[1, 2]).without(Piece(2)).without(Piece(200)), pieces(&[1]));
    }

    proptest! {
        /// In whatever order pieces are named, and as many as trying all ways finds.
        #[test]
        fn the_most_is_reached_in_any_order(mut held in vec((vec(0_u8..4, 0..4), 0_u16..5), 0..8), turn in 0_usize..8) {
            let goal = Goal::new(Code::new(3, 1).and_then(Redundancy::code).expect("a code"));
            let reached = |held: &[(Vec<u8>, u16)]| goal.with(held.iter().map(|(numbers, domain)| (pieces(numbers), *domain)));
            let first = reached(&held);
            fn best(at: u16, used: Pieces, held: &[(Vec<u8>, u16)]) -> usize {
                if at == 5 {
                    return 0;
                }
                let own = held.iter().filter(|(_, domain)| *domain == at).flat_map(|(numbers, _)| numbers);
                let with = own.map(|n| Piece(*n)).filter(|piece| used.without(*piece) == used);
                let counted = with.map(|piece| 1 + best(at + 1, used.with(piece), held)).max().unwrap_or(0);
                counted.max(best(at + 1, used, held))
            }
            prop_assert_eq!(first.domains().len(), best(0, Pieces::default(), &held));
            let turn = turn.min(held.len());
            held.rotate_left(turn);
            prop_assert_eq!(reached(&held).domains().len(), first.domains().len());
            prop_assert_eq!(first.missing().len(), 4 - first.domains().len());
            let lies = |n: u8, domain: u16| held.iter().any(|(numbers, of)| *of == domain && numbers.contains(&n));
            prop_assert!(first.assigned().all(|(piece, domain)| lies(piece.0, domain)));
        }

        /// Whatever is held where, and in whatever order the answers come.
        #[test]
        fn what_counts_is_held_apart(count in 1..=limits::COPIES as u8, held in vec((vec(0_u8..8, 0..8), 0_u16..12), 0..40)) {
            let mut goal = Goal::new(Redundancy::Copies(count));
            let mut durable: BTreeMap<Piece, u16> = BTreeMap::new();
            for (numbers, domain) in &held {
                let held = pieces(numbers);
                let before = goal;
                match goal.hold(held, *domain) {
                    Some(piece) => {
                        prop_assert!(held.and(before.missing()).iter().any(|other| other == piece));
                        prop_assert_eq!(goal.missing(), before.missing().without(piece));
                        prop_assert_eq!(durable.insert(piece, *domain), None);
                        prop_assert!(!before.domains().contains(domain));
                    }
                    None => {
                        prop_assert_eq!(goal, before);
                        prop_assert!(
                            before.domains().contains(domain) || held.and(before.missing()).is_empty()
                        );
                    }
                }
            }
            let distinct: BTreeSet<u16> = durable.values().copied().collect();
            prop_assert_eq!(distinct.len() + goal.missing().len(), usize::from(count));
            prop_assert_eq!(&distinct, &goal.domains().iter().copied().collect());
            prop_assert_eq!(goal.is_met(), durable.len() == usize::from(count));
        }

        /// Of copies only the number of domains matters, and their numbers follow each other.
        #[test]
        fn copies_are_alike(count in 1..=limits::COPIES as u8, domains in vec(0_u16..12, 0..40)) {
            let redundancy = Redundancy::Copies(count);
            let mut goal = Goal::new(redundancy);
            let numbers: Vec<u8> =
                domains.iter().filter_map(|domain| goal.hold(redundancy.all(), *domain)).map(|p| p.0).collect();
            let distinct = domains.iter().collect::<BTreeSet<_>>().len();
            prop_assert_eq!(goal.missing().len(), usize::from(count).saturating_sub(distinct));
            prop_assert_eq!(goal.is_met(), redundancy.is_met(distinct));
            prop_assert_eq!(numbers, (0..count.min(distinct as u8)).collect::<Vec<_>>());
        }
    }
}
