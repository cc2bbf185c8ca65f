//! Picking among bids: which targets, and when.

use std::collections::BTreeMap;

use crate::calendar::{Calendar, Window};
use crate::id::{NodeId, TxnId};
use crate::time::{Instant, Span};

/// A bid's window on this node's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) start: Instant,
    pub(crate) end: Instant,
    pub(crate) transfer: Span,
    /// When the copy should be durable if the transfer begins with the window.
    pub(crate) done: Instant,
    pub(crate) rate: u64,
    pub(crate) domain: u16,
    /// How much consistent hashing prefers this target for the chunk; 0 is most.
    pub(crate) rank: usize,
    /// How far beyond its end it may be used.
    pub(crate) slack: Span,
}

impl Offer {
    /// When the copy should be durable if the transfer begins at `at`.
    pub(crate) fn finish(&self, at: Instant) -> Instant {
        self.done + at.since(self.start)
    }

    /// Whether a transfer that begins at `at` has the port. A window may be shorter than the transfer, when that is all that
    /// is free: then it is used from its beginning.
    fn fits(&self, at: Instant) -> bool {
        self.start <= at && at + self.transfer <= self.end.max(self.start + self.transfer) + self.slack
    }
}

/// What differs by less than this is durable at about the same time: an eighth of what the quickest takes from its window
/// to the disk. Not of the wait for windows as well, or much would be late under load.
fn about(offers: &BTreeMap<NodeId, Offer>) -> Span {
    let quickest = offers.values().map(|o| o.done.since(o.start)).min().unwrap_or(Span::ZERO);
    quickest.div(8).max(Span::from_nanos(1))
}

/// Puts what is durable at about the same time as the soonest on one level: among those on a level the chunk's hash decides,
/// so that the idle targets of a cluster share the load.
fn level(finish: Instant, soonest: Instant, about: Span) -> u64 {
    finish.since(soonest).as_nanos() / about.as_nanos()
}

/// Targets that one transmission serves, from `start` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) start: Instant,
    pub(crate) targets: Vec<NodeId>,
    pub(crate) length: Span,
    pub(crate) rate: u64,
}

/// Whose windows are in a calendar that nobody keeps.
const NOBODY: TxnId = TxnId(0);

/// One multicast to as many as share a window; the rest, whose windows lie elsewhere, one by one. Without `multicast` all of
/// them one by one.
pub(crate) fn windows(
    multicast: bool,
    offers: &BTreeMap<NodeId, Offer>,
    taken: &[u16],
    need: usize,
    now: Instant,
    uplink: &Calendar,
) -> Vec<Choice> {
    if !multicast {
        return consecutive(offers, taken, need, now, uplink);
    }
    let Some(first) = common(offers, taken, need, now, uplink) else {
        return Vec::new();
    };
    let rest = need - first.targets.len();
    if rest == 0 {
        return vec![first];
    }
    let mut taken = taken.to_vec();
    taken.extend(first.targets.iter().filter_map(|t| Some(offers.get(t)?.domain)));
    let mut uplink = uplink.clone();
    uplink.insert_free(Window { start: first.start, end: first.start + first.length, txn: NOBODY });
    let mut choices = vec![first];
    choices.extend(consecutive(offers, &taken, rest, now, &uplink));
    choices
}

/// The `need` offers (or as many as can be had) that share a sub-window and are durable first, in distinct domains
/// that are not in `taken`. One transmission for all: Replicast-M.
fn common(
    offers: &BTreeMap<NodeId, Offer>,
    taken: &[u16],
    need: usize,
    now: Instant,
    uplink: &Calendar,
) -> Option<Choice> {
    let about = about(offers);
    let mut best: Option<(usize, Instant, Choice)> = None;
    for candidate in offers.values() {
        let (start, _) = uplink.place(candidate.start.max(now), candidate.transfer);
        let fits = || offers.iter().filter(|(_, o)| o.fits(start));
        let Some(soonest) = fits().map(|(_, o)| o.finish(start)).min() else {
            continue;
        };
        // What is left of a port's time before the transfer is mostly too short for another.
        let key = |(id, o): (&NodeId, &Offer)| {
            let finish = o.finish(start);
            (level(finish, soonest, about), level(start, o.start, about), o.rank, finish, *id)
        };
        let mut fitting: Vec<_> = fits().map(key).collect();
        fitting.sort_unstable();
        let mut domains = taken.to_vec();
        let mut targets = Vec::new();
        let mut last = start;
        for (_, _, _, finish, id) in fitting {
            let domain = offers[&id].domain;
            if targets.len() < need && !domains.contains(&domain) {
                domains.push(domain);
                targets.push(id);
                last = last.max(finish);
            }
        }
        let Some(rate) = targets.iter().map(|id| offers[id].rate).min() else {
            continue;
        };
        let length = targets.iter().map(|id| offers[id].transfer).max().unwrap_or(Span::ZERO);
        if uplink.place(start, length).0 != start {
            continue;
        }
        let better = best
            .as_ref()
            .is_none_or(|(count, finish, _)| targets.len() > *count || (targets.len() == *count && last < *finish));
        if better {
            best = Some((targets.len(), last, Choice { start, targets, length, rate }));
        }
    }
    best.map(|(_, _, choice)| choice)
}

/// Up to `need` offers with consecutive sub-windows, each with a transmission of its own, in distinct domains:
/// Replicast-H. Greedy: always the one that is durable first.
fn consecutive(
    offers: &BTreeMap<NodeId, Offer>,
    taken: &[u16],
    need: usize,
    now: Instant,
    uplink: &Calendar,
) -> Vec<Choice> {
    let about = about(offers);
    let mut uplink = uplink.clone();
    let mut domains = taken.to_vec();
    let mut choices: Vec<Choice> = Vec::new();
    while choices.len() < need {
        let fitting: Vec<(Instant, Instant, NodeId, &Offer)> = offers
            .iter()
            .filter(|(_, offer)| !domains.contains(&offer.domain))
            .filter_map(|(id, offer)| {
                let (start, _) = uplink.place(offer.start.max(now), offer.transfer);
                offer.fits(start).then_some((offer.finish(start), start, *id, offer))
            })
            .collect();
        let soonest = fitting.iter().map(|(finish, ..)| *finish).min().unwrap_or(now);
        let key = |(finish, start, id, offer): &(Instant, Instant, NodeId, &Offer)| {
            (level(*finish, soonest, about), offer.rank, *start, *id)
        };
        let next = fitting.into_iter().min_by_key(key);
        let Some((_, start, id, offer)) = next else {
            break;
        };
        domains.push(offer.domain);
        uplink.insert_free(Window { start, end: start + offer.transfer, txn: NOBODY });
        choices.push(Choice { start, targets: vec![id], length: offer.transfer, rate: offer.rate });
    }
    choices
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(start: u64, end: u64, done: u64, domain: u16) -> Offer {
        let at = Instant::from_nanos;
        Offer {
            start: at(start),
            end: at(end),
            transfer: Span::from_nanos(100),
            done: at(done),
            rate: 1_000,
            domain,
            rank: 0,
            slack: Span::ZERO,
        }
    }

    fn offers(list: &[Offer]) -> BTreeMap<NodeId, Offer> {
        list.iter().enumerate().map(|(n, o)| (NodeId(n as u32), *o)).collect()
    }

    #[test]
    fn the_common_window_avoids_the_slow_disk() {
        let bids =
            offers(&[offer(0, 140, 9_000, 0), offer(10, 150, 300, 1), offer(20, 160, 300, 2), offer(40, 180, 300, 3)]);
        let mut choice = common(&bids, &[], 3, Instant::ZERO, &Calendar::default()).expect("three fit");
        choice.targets.sort_unstable();
        assert_eq!(choice.targets, [NodeId(1), NodeId(2), NodeId(3)]);
        assert_eq!(choice.start, Instant::from_nanos(40));
    }

    #[test]
    fn among_offers_that_are_about_equal_the_hash_decides() {
        let mut bids = offers(&[offer(0, 500, 1_000, 0), offer(0, 500, 1_010, 1), offer(0, 500, 1_100, 2)]);
        bids.insert(NodeId(3), Offer { rank: 1, ..offer(0, 500, 1_300, 3) });
        bids.get_mut(&NodeId(0)).expect("it is there").rank = 9;
        let choice = common(&bids, &[], 1, Instant::ZERO, &Calendar::default()).expect("one fits");
        assert_eq!(choice.targets, [NodeId(1)]);
        let choices = consecutive(&bids, &[], 3, Instant::ZERO, &Calendar::default());
        let targets: Vec<NodeId> = choices.into_iter().flat_map(|c| c.targets).collect();
        assert_eq!(targets, [NodeId(1), NodeId(2), NodeId(0)]);
    }

    #[test]
    fn domains_are_kept_apart() {
        let bids = offers(&[offer(0, 500, 200, 7), offer(0, 500, 200, 7), offer(0, 500, 200, 8)]);
        let choice = common(&bids, &[8], 3, Instant::ZERO, &Calendar::default()).expect("one fits");
        assert_eq!(choice.targets, [NodeId(0)]);
        assert_eq!(consecutive(&bids, &[], 3, Instant::ZERO, &Calendar::default()).len(), 2);
    }

    #[test]
    fn consecutive_windows_follow_each_other_on_the_uplink() {
        let bids = offers(&[offer(0, 500, 200, 1), offer(0, 500, 210, 2), offer(0, 500, 220, 3)]);
        let starts: Vec<u64> = consecutive(&bids, &[], 3, Instant::ZERO, &Calendar::default())
            .iter()
            .map(|c| c.start.as_nanos())
            .collect();
        assert_eq!(starts, [0, 100, 200]);
    }
}
