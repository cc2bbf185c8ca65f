//! Picking among bids: which targets, and when.

use smallvec::SmallVec;

use crate::calendar::{Calendar, Window};
use crate::estimate::PromiseError;
use crate::flat_map::FlatMap;
use crate::goal::Goal;
use crate::id::{NodeId, TxnId};
use crate::time::{Instant, Span};

/// The offers of a group.
pub(crate) type Offers = FlatMap<NodeId, Offer, 9>;

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
    /// For how many bytes of the next part it is, if the copy comes in parts.
    pub(crate) part: Option<u32>,
}

impl Offer {
    /// How long it takes from the beginning of the transfer until the copy is durable.
    pub(crate) fn takes(&self) -> Span {
        self.done.since(self.start)
    }

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

/// The offer that takes the shortest time from its window to the disk.
fn quickest(offers: &Offers) -> Option<&Offer> {
    offers.values().min_by_key(|offer| offer.takes())
}

/// What a choice is made among, and how far it is believed.
#[derive(Clone, Copy)]
pub(crate) struct Bids<'a> {
    pub(crate) offers: &'a Offers,
    /// What differs by less than this is durable at about the same time.
    usual: Span,
    /// What is in doubt because all targets that bid [seem idle](doubt_of_idle).
    doubt: Span,
}

impl<'a> Bids<'a> {
    pub(crate) fn new(offers: &'a Offers, doubt: Option<Span>) -> Self {
        // Not of the wait for windows as well, or much would be late under load.
        let usual = quickest(offers).map_or(Span::ZERO, about).max(Span::from_nanos(1));
        Self { offers, usual, doubt: doubt.unwrap_or(Span::ZERO) }
    }

    fn tolerance(&self) -> Span {
        self.usual.max(self.doubt)
    }
}

/// How much sooner or later than an offer is about as soon: an eighth of what it takes from its window to the disk.
fn about(offer: &Offer) -> Span {
    offer.takes().div(8)
}

/// How much offers may differ and still count as equal, when all targets that bid seem idle: their windows begin at about
/// the same time, none takes more than twice as long as the quickest, and none is for a part. What they differ by then is
/// not what they have to do, but how their last copies went, and those that went well would get all that come. `None` when
/// they have different things to do.
pub(crate) fn doubt_of_idle(offers: &Offers, bytes: u32, error: &PromiseError) -> Option<Span> {
    let quickest = quickest(offers).filter(|_| offers.len() > 1)?;
    let first = offers.values().map(|offer| offer.start).min()?;
    // Bids come one after the other, and their windows begin later by that.
    let together = about(quickest).max(quickest.slack.min(quickest.takes().div(2)));
    let is_idle = |offer: &Offer| {
        offer.start.since(first) <= together && offer.takes() <= quickest.takes().times(2) && offer.part.is_none()
    };
    offers.values().all(is_idle).then(|| error.between_two(bytes, quickest.takes()))
}

/// Puts what is durable at about the same time as the soonest on one level: among those on a level the chunk's hash decides,
/// so that the idle targets of a cluster share the load.
fn level(finish: Instant, soonest: Instant, tolerance: Span) -> u64 {
    let later = finish.since(soonest);
    // Mostly so, and a division is dear where each choice makes a hundred.
    if later < tolerance { 0 } else { later.as_nanos() / tolerance.as_nanos() }
}

/// Targets that one transmission serves, from `start` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) start: Instant,
    pub(crate) targets: Vec<NodeId>,
    pub(crate) length: Span,
    pub(crate) rate: u64,
}

/// The transaction of windows in a calendar that is thrown away: its id does not matter.
const NOBODY: TxnId = TxnId(0);

/// A target for each piece that is missing, or for as many as can be had. One transmission to as many as share a window, but
/// `most`; the rest one by one. All of them one by one when one is the most.
pub(crate) fn windows(most: usize, bids: Bids<'_>, goal: &Goal, now: Instant, uplink: &Calendar) -> Vec<Choice> {
    let (used_domains, need) = (goal.domains(), goal.missing().len());
    if most <= 1 {
        return consecutive(bids, used_domains, need, now, uplink);
    }
    let Some(first) = common(bids, used_domains, need.min(most), now, uplink) else {
        return Vec::new();
    };
    let rest = need - first.targets.len();
    if rest == 0 {
        return vec![first];
    }
    let mut used_domains = used_domains.to_vec();
    used_domains.extend(first.targets.iter().filter_map(|t| Some(bids.offers.get(t)?.domain)));
    let mut uplink = uplink.clone();
    uplink.insert_free(Window { start: first.start, end: first.start + first.length, txn: NOBODY });
    let mut choices = vec![first];
    choices.extend(consecutive(bids, &used_domains, rest, now, &uplink));
    choices
}

/// Targets for as many pieces of data as a code has, one after the other, and for those of parity, which an aggregator
/// sends: as the last of data is sent, once the first `bytes` of that, which are a datagram, have passed, or after it.
/// The aggregator passes the data on, and sends so many pieces at once. `None` when the offers are too few.
pub(crate) fn with_parity(
    bids: Bids<'_>,
    goal: &Goal,
    (data, lanes, bytes): (usize, usize, usize),
    now: Instant,
    uplink: &Calendar,
) -> Option<Vec<Choice>> {
    let offers = bids.offers;
    let parity = goal.missing().len().checked_sub(data)?;
    let mut choices = consecutive(bids, goal.domains(), data, now, uplink);
    choices.sort_by_key(|choice| choice.start);
    let Choice { start: last, length, rate, .. } = *choices.last().filter(|_| choices.len() == data)?;
    let first = Span::of_transfer(bytes as u64, rate).min(length);
    let mut domains = goal.domains().to_vec();
    domains.extend(choices.iter().flat_map(|choice| &choice.targets).filter_map(|id| Some(offers.get(id)?.domain)));
    let tolerance = bids.tolerance();
    for nth in 0..parity {
        // While the last of data passes, one of the lanes is taken.
        let waits = (nth + 1).checked_sub(lanes).map_or(0, |behind| 1 + behind / lanes.max(1));
        let begin = |offer: &Offer| offer.start.max(last + first.max(length.times(waits as u64)));
        let free = || offers.iter().filter(|(_, o)| !domains.contains(&o.domain) && o.fits(begin(o)));
        let soonest = free().map(|(_, offer)| offer.finish(begin(offer))).min()?;
        let key = |(id, offer): &(&NodeId, &Offer)| {
            (level(offer.finish(begin(offer)), soonest, tolerance), offer.rank, begin(offer), **id)
        };
        let (id, offer) = free().min_by_key(key)?;
        choices.push(Choice { start: begin(offer), targets: vec![*id], length: offer.transfer, rate: offer.rate });
        domains.push(offer.domain);
    }
    Some(choices)
}

/// The `need` offers (or as many as can be had) that share a sub-window and are durable first, in distinct domains
/// that are not in `used_domains`. One transmission for all: Replicast-M.
fn common(bids: Bids<'_>, used_domains: &[u16], need: usize, now: Instant, uplink: &Calendar) -> Option<Choice> {
    let offers = bids.offers;
    let mut common = CommonWindow {
        offers,
        used_domains,
        need,
        uplink,
        tolerance: bids.tolerance(),
        fitting: SmallVec::new(),
        best: Vec::new(),
    };
    let starts = offers.values().map(|offer| uplink.hole_for(offer.start.max(now), offer.transfer).0);
    let mut found: SmallVec<[(Instant, usize, Instant, usize); 9]> = SmallVec::new();
    for start in starts {
        if let Some((last, ..)) = common.evaluate(start) {
            let ranks = common.best.iter().filter_map(|id| Some(offers.get(id)?.rank)).fold(0, usize::saturating_add);
            found.push((start, common.best.len(), last, ranks));
        }
    }
    let most = found.iter().map(|(_, count, ..)| *count).max()?;
    let with_most = || found.iter().filter(|(_, count, ..)| *count == most);
    let (soonest, begins) = with_most().map(|(start, _, last, _)| (*last, *start)).min()?;
    // Bids come one after the other, and the windows of the last begin a little later, by what bids differ by. Among
    // sub-windows that end at nearly the same time the hash decides, or the targets that answer first would always be
    // chosen. Where ends are in doubt, it decides among all that do not begin later.
    let differ = offers.values().map(|offer| offer.slack).min().unwrap_or(Span::ZERO).min(bids.usual);
    let is_about_soonest = |(start, _, last, _): &&(Instant, usize, Instant, usize)| {
        let later = last.since(soonest);
        later <= differ || later <= bids.doubt && start.since(begins) <= differ
    };
    let about_soonest = with_most().filter(is_about_soonest);
    let start = about_soonest.min_by_key(|(start, _, _, ranks)| (*ranks, *start)).map(|(start, ..)| *start)?;
    let (_, rate, length) = common.evaluate(start)?;
    Some(Choice { start, targets: common.best, length, rate })
}

/// Orders offers, the best first: when the copy is durable, and how much of the port's time it leaves unused before it, both by
/// level; then the rank; then when exactly it is durable.
type Preference = (u64, u64, usize, Instant, NodeId);

/// Looks for the sub-window that several offers have in common. Its lists are kept from one beginning to the next, because every put
/// tries many.
struct CommonWindow<'a> {
    offers: &'a Offers,
    used_domains: &'a [u16],
    need: usize,
    uplink: &'a Calendar,
    tolerance: Span,
    /// What fits: the best is the least.
    fitting: SmallVec<[(Preference, &'a Offer); 9]>,
    /// The targets that are chosen.
    best: Vec<NodeId>,
}

impl<'a> CommonWindow<'a> {
    /// Chooses among those whose windows fit a transfer that begins at `start`. When the last of them is durable, at
    /// which rate and for how long the payload is sent; `None` when none fits, or the uplink is not free so long.
    fn evaluate(&mut self, start: Instant) -> Option<(Instant, u64, Span)> {
        let mut soonest = Instant::FAR;
        self.fitting.clear();
        for (id, offer) in self.offers.iter().filter(|(_, offer)| offer.fits(start)) {
            let finish = offer.finish(start);
            soonest = soonest.min(finish);
            if !self.used_domains.contains(&offer.domain) {
                self.fitting.push(((0, 0, offer.rank, finish, *id), offer));
            }
        }
        // What is left of a port's time before the transfer is mostly too short for another.
        for ((late, unused, .., finish, _), offer) in &mut self.fitting {
            (*late, *unused) = (level(*finish, soonest, self.tolerance), level(start, offer.start, self.tolerance));
        }
        self.best.clear();
        let (mut last, mut rate, mut length) = (start, u64::MAX, Span::ZERO);
        while self.best.len() < self.need
            && let Some(((.., finish, id), offer)) = self.fitting.iter().min_by_key(|(key, _)| key).copied()
        {
            self.best.push(id);
            (last, rate, length) = (last.max(finish), rate.min(offer.rate), length.max(offer.transfer));
            self.fitting.retain(|(_, other)| other.domain != offer.domain);
        }
        let is_free = !self.best.is_empty() && self.uplink.hole_for(start, length).0 == start;
        is_free.then_some((last, rate, length))
    }
}

/// Up to `need` offers with consecutive sub-windows, each with a transmission of its own, in distinct domains:
/// Replicast-H. The choice is greedy: the next one is always the offer that is durable first.
fn consecutive(bids: Bids<'_>, used_domains: &[u16], need: usize, now: Instant, uplink: &Calendar) -> Vec<Choice> {
    let (offers, tolerance) = (bids.offers, bids.tolerance());
    let mut uplink = uplink.clone();
    let mut domains = used_domains.to_vec();
    let mut choices: Vec<Choice> = Vec::new();
    let mut fitting: Vec<(Instant, Instant, NodeId, &Offer)> = Vec::with_capacity(offers.len());
    while choices.len() < need {
        let free = offers.iter().filter(|(_, offer)| !domains.contains(&offer.domain));
        fitting.extend(free.filter_map(|(id, offer)| {
            let (start, _) = uplink.hole_for(offer.start.max(now), offer.transfer);
            offer.fits(start).then_some((offer.finish(start), start, *id, offer))
        }));
        let soonest = fitting.iter().map(|(finish, ..)| *finish).min().unwrap_or(now);
        let key = |(finish, start, id, offer): &(Instant, Instant, NodeId, &Offer)| {
            (level(*finish, soonest, tolerance), offer.rank, *start, *id)
        };
        let next = fitting.drain(..).min_by_key(key);
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
    use crate::redundancy::Redundancy;

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
            part: None,
            slack: Span::ZERO,
        }
    }

    fn offers(list: &[Offer]) -> Offers {
        list.iter().enumerate().map(|(n, o)| (NodeId(n as u32), *o)).collect()
    }

    #[test]
    fn the_common_window_avoids_the_slow_disk() {
        let bids =
            offers(&[offer(0, 140, 9_000, 0), offer(10, 150, 300, 1), offer(20, 160, 300, 2), offer(40, 180, 300, 3)]);
        let mut choice =
            common(Bids::new(&bids, None), &[], 3, Instant::ZERO, &Calendar::default()).expect("three fit");
        choice.targets.sort_unstable();
        assert_eq!(choice.targets, [NodeId(1), NodeId(2), NodeId(3)]);
        assert_eq!(choice.start, Instant::from_nanos(40));
    }

    #[test]
    fn among_offers_that_are_about_equal_the_hash_decides() {
        let mut bids = offers(&[offer(0, 500, 1_000, 0), offer(0, 500, 1_010, 1), offer(0, 500, 1_100, 2)]);
        bids.insert(NodeId(3), Offer { rank: 1, ..offer(0, 500, 1_300, 3) });
        bids.get_mut(&NodeId(0)).expect("it is there").rank = 9;
        let choice = common(Bids::new(&bids, None), &[], 1, Instant::ZERO, &Calendar::default()).expect("one fits");
        assert_eq!(choice.targets, [NodeId(1)]);
        let choices = consecutive(Bids::new(&bids, None), &[], 3, Instant::ZERO, &Calendar::default());
        let targets: Vec<NodeId> = choices.into_iter().flat_map(|c| c.targets).collect();
        assert_eq!(targets, [NodeId(1), NodeId(2), NodeId(0)]);
    }

    /// Who is chosen together with others, and who alone, when promises of 1,000 were wrong by so much; of offers of
    /// which the hash prefers the later ones.
    fn chosen(list: &[Offer], wrong: u64) -> (u16, u16) {
        let mut error = PromiseError::default();
        (0..200).for_each(|_| error.sample(1, Span::from_nanos(1_000), Span::from_nanos(1_000 + wrong)));
        let mut offers = offers(list);
        offers.values_mut().for_each(|offer| offer.rank = 9 - usize::from(offer.domain));
        let bids = Bids::new(&offers, doubt_of_idle(&offers, 1, &error));
        let domain = |choice: &Choice| offers.get(&choice.targets[0]).expect("it bid").domain;
        let together = common(bids, &[], 1, Instant::ZERO, &Calendar::default()).expect("one fits");
        (domain(&together), domain(&consecutive(bids, &[], 1, Instant::ZERO, &Calendar::default())[0]))
    }

    #[test]
    fn what_idle_targets_differ_by_is_doubted_as_far_as_promises_were_wrong() {
        let list = [offer(0, 500, 1_000, 0), offer(0, 500, 1_300, 1), offer(0, 500, 1_900, 2)];
        assert_eq!(chosen(&list, 0), (0, 0), "promises come true");
        assert_eq!(chosen(&list, 200), (1, 1), "by two fifths of what the quickest takes they may differ");
        assert_eq!(chosen(&list, 900), (2, 2));
        let and = |other: Offer| [list[0], list[1], other];
        assert_eq!(chosen(&and(offer(0, 500, 2_100, 2)), 900), (0, 0), "one has much to do");
        assert_eq!(chosen(&and(offer(300, 800, 1_900, 2)), 900), (0, 0), "the port of one is busy");
        assert_eq!(chosen(&and(Offer { part: Some(10), ..list[2] }), 900), (0, 0), "one is for a part");
    }

    #[test]
    fn windows_of_idle_targets_begin_together_as_far_as_bids_differ() {
        let two = |begins: u64, slack: u64| {
            let second = offer(begins, begins + 500, begins + 1_300, 1);
            [offer(0, 500, 1_000, 0), second].map(|offer| Offer { slack: Span::from_nanos(slack), ..offer })
        };
        assert_eq!(chosen(&two(10, 20), 200), (1, 1));
        assert_eq!(chosen(&two(10, 5), 200).0, 0, "what begins later has to end as soon");
        assert_eq!(chosen(&two(200, 250), 900).1, 1, "bids that differ much begin together all the same");
        assert_eq!(chosen(&two(200, 100), 900).1, 0, "one port is busy");
        let late = offer(300, 800, 1_010, 1);
        let ends_together = [offer(0, 500, 1_000, 0), late].map(|offer| Offer { slack: Span::from_nanos(20), ..offer });
        assert_eq!(chosen(&ends_together, 0).0, 1, "nothing is in doubt, and both end together");
    }

    #[test]
    fn domains_are_kept_apart() {
        let bids = offers(&[offer(0, 500, 200, 7), offer(0, 500, 200, 7), offer(0, 500, 200, 8)]);
        let choice = common(Bids::new(&bids, None), &[8], 3, Instant::ZERO, &Calendar::default()).expect("one fits");
        assert_eq!(choice.targets, [NodeId(0)]);
        assert_eq!(consecutive(Bids::new(&bids, None), &[], 3, Instant::ZERO, &Calendar::default()).len(), 2);
    }

    #[test]
    fn one_transmission_serves_no_more_than_share_an_address() {
        let bids = offers(&[offer(0, 500, 200, 1), offer(0, 500, 210, 2), offer(0, 500, 220, 3)]);
        let sizes = |most| {
            let goal = Goal::new(Redundancy::Copies(3));
            let choices = windows(most, Bids::new(&bids, None), &goal, Instant::ZERO, &Calendar::default());
            choices.iter().map(|c| c.targets.len()).collect::<Vec<_>>()
        };
        assert_eq!((sizes(3), sizes(2), sizes(1)), (vec![3], vec![2, 1], vec![1, 1, 1]));
    }

    #[test]
    fn consecutive_windows_follow_each_other_on_the_uplink() {
        let bids = offers(&[offer(0, 500, 200, 1), offer(0, 500, 210, 2), offer(0, 500, 220, 3)]);
        let starts: Vec<u64> = consecutive(Bids::new(&bids, None), &[], 3, Instant::ZERO, &Calendar::default())
            .iter()
            .map(|c| c.start.as_nanos())
            .collect();
        assert_eq!(starts, [0, 100, 200]);
    }
}
