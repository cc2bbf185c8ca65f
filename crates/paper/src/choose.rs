//! Picking windows among bids.

use protocol::id::NodeId;
use protocol::limits;
use protocol::time::{Instant, Span};

use crate::config::Timing;

/// An offer is late when its copy takes so many times as long as the soonest.
const LATE: u64 = 2;

/// One bid, on the initiator's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) target: NodeId,
    /// Its place in the group's mask.
    pub(crate) bit: u32,
    pub(crate) left: Instant,
    pub(crate) right: Instant,
    /// When the target's disk has written all that it has accepted.
    pub(crate) disk_free: Instant,
    /// How long it takes to write this chunk.
    pub(crate) write: Span,
}

impl Offer {
    /// When the chunk should be on disk, if its last byte comes at `end`.
    fn durable(&self, end: Instant) -> Instant {
        end.max(self.disk_free) + self.write
    }
}

/// A chosen part of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    pub(crate) target: NodeId,
    pub(crate) bit: u32,
    pub(crate) left: Instant,
    pub(crate) right: Instant,
}

impl Pick {
    const fn of(offer: &Offer, left: Instant, right: Instant) -> Self {
        Self { target: offer.target, bit: offer.bit, left, right }
    }
}

/// Replicast-M as the papers have it: of `offers` in order of their beginnings, the first `copies` neighbours with a
/// common window that is long enough. The very last run of neighbours is never looked at.
pub(crate) fn neighbours(offers: &[Offer], copies: usize, now: Instant, t: &Timing, picks: &mut Vec<Pick>) {
    let runs = offers.len().saturating_sub(copies);
    for run in offers.windows(copies).take(runs.max(1)) {
        let begin = run[copies - 1].left.max(now + t.pdu);
        let end = run.iter().map(|offer| offer.right).min().unwrap_or(begin);
        if end.since(begin) >= t.reserve {
            picks.extend(run.iter().map(|offer| Pick::of(offer, begin, begin + t.reserve)));
            return;
        }
    }
}

/// The earliest window that is common to any `copies` of the offers and that `free` allows; among those who have it,
/// the ones whose disks are least busy (or, without `least_backlog`, whose windows begin last: they have least to
/// offer to others).
pub(crate) fn any_common(
    offers: &[Offer],
    copies: usize,
    now: Instant,
    t: &Timing,
    least_backlog: bool,
    free: impl Fn(Instant, Span) -> Instant,
    picks: &mut Vec<Pick>,
) {
    let mut best: Option<Instant> = None;
    for offer in offers {
        let begin = free(offer.left.max(now + t.pdu), t.reserve);
        let serves = offers.iter().filter(|o| covers(o, begin, t.reserve)).count();
        if serves >= copies && best.is_none_or(|b| begin < b) {
            best = Some(begin);
        }
    }
    let Some(begin) = best else { return };
    let mut serving = [(Span::ZERO, 0_usize); limits::GROUP_MEMBERS];
    let mut count = 0;
    for (at, offer) in offers.iter().enumerate() {
        if covers(offer, begin, t.reserve) {
            let rank = if least_backlog { offer.disk_free.since(now) } else { begin.since(offer.left) };
            serving[count] = (rank, at);
            count += 1;
        }
    }
    serving[..count].sort_unstable();
    picks.extend(serving[..copies].iter().map(|(_, at)| Pick::of(&offers[*at], begin, begin + t.reserve)));
}

/// The common window of any `copies` of the offers with which the last copy should be on disk soonest: a slow or busy
/// disk is left out although its port is free.
pub(crate) fn soonest(
    offers: &[Offer],
    copies: usize,
    now: Instant,
    t: &Timing,
    free: impl Fn(Instant, Span) -> Instant,
    picks: &mut Vec<Pick>,
) {
    let mut best: Option<(Instant, Instant)> = None;
    for offer in offers {
        let begin = free(offer.left.max(now + t.pdu), t.reserve);
        let (serving, count) = by_completion(offers, begin, t);
        if count >= copies {
            let done = (serving[copies - 1].0, begin);
            best = Some(best.map_or(done, |b| b.min(done)));
        }
    }
    let Some((_, begin)) = best.filter(|(durable, _)| *durable <= latest(offers, copies, now, t)) else { return };
    let (serving, _) = by_completion(offers, begin, t);
    picks.extend(serving[..copies].iter().map(|(_, at)| Pick::of(&offers[*at], begin, begin + t.reserve)));
}

/// The offers that cover a transfer from `begin` on, and when each would have it on disk, in that order; how many.
fn by_completion(offers: &[Offer], begin: Instant, t: &Timing) -> ([(Instant, usize); limits::GROUP_MEMBERS], usize) {
    let mut serving = [(Instant::FAR, 0); limits::GROUP_MEMBERS];
    let mut count = 0;
    for (at, offer) in offers.iter().enumerate().filter(|(_, offer)| covers(offer, begin, t.reserve)) {
        serving[count] = (offer.durable(begin + t.reserve), at);
        count += 1;
    }
    serving[..count].sort_unstable();
    (serving, count)
}

fn covers(offer: &Offer, begin: Instant, length: Span) -> bool {
    offer.left <= begin && begin + length <= offer.right
}

/// Replicast-H: consecutive windows for up to `wanted` copies, from `offers` in order of their beginnings.
///
/// The earliest bid is taken, cut to what is needed; then each that begins soon after the one before ends. If there is
/// no second, one of the next two bids that begins about as early and is much wider takes the first one's place: a wide
/// window is that of an idle target. It is kept at its whole width.
pub(crate) fn consecutive(offers: &[Offer], wanted: usize, t: &Timing, picks: &mut Vec<Pick>) {
    let Some(first) = offers.first() else { return };
    let gap = t.pdu.times(3).max(t.frame);
    let mut chosen = Pick::of(first, first.left, first.left + t.reserve);
    picks.push(chosen);
    let mut after = 1;
    while picks.len() < wanted {
        let end = chosen.right;
        let follows = |o: &Offer| o.left <= end + gap && o.right >= end + t.reserve;
        let Some(at) = offers[after..].iter().position(follows) else { break };
        let offer = &offers[after + at];
        let left = offer.left.max(end);
        chosen = Pick::of(offer, left, left + t.reserve);
        picks.push(chosen);
        after += at + 1;
    }
    if picks.len() == 1 && wanted > 1 && offers.len() >= 3 {
        let narrow = t.reserve + t.frame;
        let idle = |o: &&Offer| o.left <= first.left + t.frame && o.right.since(o.left) > narrow;
        if let Some(offer) = offers[1..3].iter().rev().find(idle) {
            picks[0] = Pick::of(offer, offer.left, offer.right);
        }
    }
}

/// Windows one after another for up to `wanted` copies from any of the offers, earliest first, wherever our own port
/// is free by `booked`; with `soonest`, in the order in which the copies should be on disk.
pub(crate) fn any_in_turn(
    offers: &[Offer],
    wanted: usize,
    now: Instant,
    t: &Timing,
    soonest: bool,
    booked: &mut Vec<(Instant, Instant)>,
    picks: &mut Vec<Pick>,
) {
    let latest = if soonest { latest(offers, wanted, now, t) } else { Instant::FAR };
    while picks.len() < wanted {
        let fits = offers.iter().filter(|offer| picks.iter().all(|pick| pick.target != offer.target));
        let starts = fits.filter_map(|offer| {
            let start = first_free(booked, offer.left.max(now + t.pdu), t.reserve);
            let durable = offer.durable(start + t.reserve);
            let rank = if soonest { durable } else { start };
            (start + t.reserve <= offer.right && durable <= latest).then_some((rank, start, offer))
        });
        let first = starts.min_by_key(|(rank, start, offer)| (*rank, *start, offer.disk_free));
        let Some((_, start, offer)) = first else { return };
        booked.push((start, start + t.reserve));
        picks.push(Pick::of(offer, start, start + t.reserve));
    }
}

/// Until when a copy must be on disk for its offer to be taken: twice the time of the last of the `wanted` soonest, if
/// our own port were free. A slower disk is not taken only because no other window fits just now: to ask again takes
/// little time, and a put is as slow as its slowest copy.
fn latest(offers: &[Offer], wanted: usize, now: Instant, t: &Timing) -> Instant {
    let mut all = [Instant::FAR; limits::GROUP_MEMBERS];
    for (at, offer) in offers.iter().enumerate() {
        all[at] = offer.durable(offer.left.max(now + t.pdu) + t.reserve);
    }
    all[..offers.len()].sort_unstable();
    all[..offers.len()].get(wanted - 1).map_or(Instant::FAR, |last| now + last.since(now).times(LATE))
}

/// The first moment from `from` on at which `length` is free between the windows of our own port.
pub(crate) fn first_free(booked: &[(Instant, Instant)], from: Instant, length: Span) -> Instant {
    let mut at = from;
    while let Some((_, end)) = booked.iter().find(|(start, end)| *start < at + length && at < *end) {
        at = *end;
    }
    at
}
