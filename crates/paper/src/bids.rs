//! The windows that a target of Replicast has offered: where the next one goes, and what becomes of those that are not
//! accepted.

use protocol::id::TxnId;
use protocol::rng::Rng;
use protocol::time::{Instant, Span};

use crate::config::{Config, Placement, Timing};

/// Bids in the queue up to which a cancelled window may be offered again whole.
const SHORT_QUEUE: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Tentative,
    Accepted,
    Cancelled,
}

#[derive(Clone, Copy, Debug)]
struct Bid {
    txn: TxnId,
    left: Instant,
    right: Instant,
    state: State,
    /// When it was offered.
    since: Instant,
    /// Which others were offered the time of this window while it was tentative.
    second: Option<Second>,
}

/// A bid for the time of another's tentative window. It takes that one's place when it is cancelled.
#[derive(Clone, Copy, Debug)]
struct Second {
    txn: TxnId,
    left: Instant,
    right: Instant,
    since: Instant,
    is_accepted: bool,
}

impl Bid {
    const fn tentative(txn: TxnId, left: Instant, right: Instant, since: Instant) -> Self {
        Self { txn, left, right, state: State::Tentative, since, second: None }
    }
}

impl From<Second> for Bid {
    fn from(second: Second) -> Self {
        let state = if second.is_accepted { State::Accepted } else { State::Tentative };
        Self { state, ..Self::tentative(second.txn, second.left, second.right, second.since) }
    }
}

/// The bids of one target, in the order of their windows.
#[derive(Debug)]
pub(crate) struct Bids {
    placement: Placement,
    /// A hop: from sending a control message to its arrival.
    hop: Span,
    trip: Span,
    list: Vec<Bid>,
    /// Whether a target that has nothing to do always widens its bid (Replicast-M), or in half of the cases.
    always_widen: bool,
    widen: bool,
    double: bool,
    rng: Rng,
}

impl Bids {
    pub(crate) fn new(config: &Config, hop: Span, seed: u64) -> Self {
        let always_widen = config.placement == Placement::Behind;
        let widen = config.widen_idle;
        let rng = Rng::new(seed);
        let (placement, trip, double) = (config.placement, config.trip, config.double_booking);
        Self { placement, hop, trip, list: Vec::new(), always_widen, widen, double, rng }
    }

    /// The window of a new bid: not before `earliest`, nor before the disk is ready in `disk_delay`.
    pub(crate) fn offer(
        &mut self,
        now: Instant,
        txn: TxnId,
        earliest: Instant,
        disk_delay: Span,
        t: &Timing,
    ) -> (Instant, Instant) {
        let first = (now + t.pdu + self.hop).max(earliest);
        let idle = self.list.is_empty();
        let ready = first.max(now + disk_delay);
        let bid = match self.placement {
            Placement::Behind => {
                self.expire(now, t.window);
                if disk_delay == Span::ZERO
                    && let Some(again) = self.reuse(txn, first, t.window)
                {
                    return again;
                }
                let left = self.list.last().map_or(ready, |last| ready.max(last.right + self.trip));
                let right = left + t.window + self.extra(self.list.is_empty(), disk_delay, t);
                self.list.push(Bid::tentative(txn, left, right, now));
                (left, right)
            }
            Placement::Hole => {
                let (at, left) = self.hole(ready, t.window, self.trip);
                if self.double
                    && disk_delay == Span::ZERO
                    && let Some(shared) = self.book_twice(now, txn, first, left, t)
                {
                    return shared;
                }
                let right = left + t.window + self.extra(idle, disk_delay, t);
                self.list.insert(at, Bid::tentative(txn, left, right, now));
                (left, right)
            }
            Placement::Fit => {
                let (at, left) = self.hole(ready, t.reserve, Span::ZERO);
                let end = self.list.get(at).map_or(Instant::FAR, |next| next.left);
                let right = end.min(left + t.window);
                self.list.insert(at, Bid::tentative(txn, left, right, now));
                (left, right)
            }
        };
        debug_assert!(self.is_in_order());
        bid
    }

    /// A second bid for the time of a tentative one that begins before `left`, if the first will have been answered, and
    /// the second told, before it begins: three hops from the first offer, and a little.
    fn book_twice(
        &mut self,
        now: Instant,
        txn: TxnId,
        first: Instant,
        left: Instant,
        t: &Timing,
    ) -> Option<(Instant, Instant)> {
        let notice = self.hop.times(3) + self.trip.times(2);
        let serves = |bid: &&mut Bid| {
            let free = bid.state == State::Tentative && bid.second.is_none();
            let begins = bid.left >= first && bid.left >= bid.since + notice && bid.left < left;
            free && begins && now.since(bid.since) > t.pdu
        };
        let bid = self.list.iter_mut().find(serves)?;
        let right = bid.left + t.window;
        bid.second = Some(Second { txn, left: bid.left, right, since: now, is_accepted: false });
        Some((bid.left, right))
    }

    /// The first hole of this length, `gap` behind what is before it: its place in the list, and its beginning.
    fn hole(&self, from: Instant, length: Span, gap: Span) -> (usize, Instant) {
        let mut left = from;
        for (at, bid) in self.list.iter().enumerate() {
            if left + length <= bid.left {
                return (at, left);
            }
            left = left.max(bid.right + gap);
        }
        (self.list.len(), left)
    }

    /// What a target with nothing to do adds to its window, so that it is likelier to be chosen.
    fn extra(&mut self, idle: bool, disk_delay: Span, t: &Timing) -> Span {
        let widens = self.widen && idle && disk_delay < t.net && (self.always_widen || self.rng.chance(1, 2));
        if widens { t.net.times(2) } else { Span::ZERO }
    }

    /// A cancelled window, offered again as it is. The one that ends last is looked at first.
    fn reuse(&mut self, txn: TxnId, first: Instant, window: Span) -> Option<(Instant, Instant)> {
        if self.list.len() > SHORT_QUEUE {
            return None;
        }
        let bid = self.list.iter_mut().rev().find(|bid| bid.state == State::Cancelled)?;
        if bid.right.since(bid.left.max(first)) < window {
            return None;
        }
        (bid.txn, bid.state) = (txn, State::Tentative);
        Some((bid.left, bid.right))
    }

    /// Forgets cancelled windows that are last, and those that are too short by now.
    fn expire(&mut self, now: Instant, window: Span) {
        while self.list.last().is_some_and(|bid| bid.state == State::Cancelled) {
            self.list.pop();
        }
        let soon = now + self.hop;
        self.list.retain(|bid| bid.state != State::Cancelled || bid.left >= soon || bid.right.since(soon) >= window);
    }

    /// The initiator takes the part from `left` to `right`. Returns those that were offered the same time, and must be told.
    pub(crate) fn accept(
        &mut self,
        now: Instant,
        txn: TxnId,
        left: Instant,
        right: Instant,
        t: &Timing,
    ) -> Option<TxnId> {
        if let Some(second) = self.second(txn) {
            *second = Second { left, right, is_accepted: true, ..*second };
            return None;
        }
        if self.placement == Placement::Behind {
            self.expire(now, t.window);
        }
        let at = self.list.iter().position(|bid| bid.txn == txn && bid.state == State::Tentative)?;
        let old = self.list[at];
        self.list[at] = Bid { left, right, state: State::Accepted, second: None, ..old };
        // A cancelled neighbour grows into the room that this one leaves.
        if at > 0 && left.since(old.left) > t.pdu {
            let before = &mut self.list[at - 1];
            if before.state == State::Cancelled {
                before.right = left - self.trip;
            }
        }
        if old.right.since(right) > t.pdu
            && let Some(after) = self.list.get_mut(at + 1)
            && after.state == State::Cancelled
        {
            after.left = right + self.trip;
        }
        debug_assert!(self.is_in_order());
        old.second.map(|second| second.txn)
    }

    /// The second bid of this transaction.
    fn second(&mut self, txn: TxnId) -> Option<&mut Second> {
        self.list.iter_mut().filter_map(|bid| bid.second.as_mut()).find(|second| second.txn == txn)
    }

    /// The initiator takes others.
    pub(crate) fn cancel(&mut self, now: Instant, txn: TxnId, t: &Timing) {
        for bid in &mut self.list {
            bid.second = bid.second.filter(|second| second.txn != txn);
        }
        if self.placement == Placement::Behind {
            self.expire(now, t.window);
        }
        let Some(mut at) = self.list.iter().position(|bid| bid.txn == txn && bid.state == State::Tentative) else {
            return;
        };
        if self.placement != Placement::Behind {
            match self.list[at].second {
                Some(second) => self.list[at] = second.into(),
                None => drop(self.list.remove(at)),
            }
            return;
        }
        self.list[at].state = State::Cancelled;
        if self.list.get(at + 1).is_some_and(|bid| bid.state == State::Cancelled) {
            self.list[at].right = self.list[at + 1].right;
            self.list.remove(at + 1);
        }
        if at > 0 && self.list[at - 1].state == State::Cancelled {
            at -= 1;
            self.list[at].right = self.list[at + 1].right;
            self.list.remove(at + 1);
        }
    }

    /// The payload of an accepted window is here.
    pub(crate) fn done(&mut self, txn: TxnId) {
        self.list.retain(|bid| bid.txn != txn || bid.state != State::Accepted);
    }

    /// Windows whose payload is still to come.
    pub(crate) fn accepted(&self) -> u64 {
        self.list.iter().filter(|bid| bid.state == State::Accepted).count() as u64
    }

    /// Whether a bid waits for its answer.
    pub(crate) fn has_tentative(&self) -> bool {
        self.list.iter().any(|bid| bid.state == State::Tentative)
    }

    /// Windows that are promised must not overlap, whatever became of the others.
    fn is_in_order(&self) -> bool {
        let promised: Vec<&Bid> = self.list.iter().filter(|bid| bid.state != State::Cancelled).collect();
        promised.windows(2).all(|pair| pair[0].right <= pair[1].left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Protocol;

    const BUSY: TxnId = TxnId(1);
    const FIRST: TxnId = TxnId(2);
    const SECOND: TxnId = TxnId(3);

    /// A target that is busy for a while, and offered the window behind that twice: that window.
    fn booked_twice() -> (Bids, Timing, Instant, (Instant, Instant)) {
        let config = Config { double_booking: true, ..Config::paper(Protocol::ReplicastH, 1_000 << 20) };
        let t = config.timing(1 << 20);
        let mut bids = Bids::new(&config, t.pdu + config.trip, 1);
        let (now, zero) = (Instant::from_nanos(1_000), Span::ZERO);
        let (left, right) = bids.offer(now, BUSY, now, zero, &t);
        assert_eq!(bids.accept(now, BUSY, left, right, &t), None);
        let first = bids.offer(now, FIRST, now, zero, &t);
        assert!(first.0 > right);
        let soon = now + t.pdu;
        assert!(bids.offer(soon, TxnId(4), now, zero, &t).0 > first.1, "it is not old enough");
        bids.cancel(soon, TxnId(4), &t);
        let later = now + t.pdu.times(2);
        let second = bids.offer(later, SECOND, now, zero, &t);
        assert_eq!(second.0, first.0);
        assert!(bids.offer(later, TxnId(5), now, zero, &t).0 > second.1, "nothing is offered three times");
        bids.cancel(later, TxnId(5), &t);
        (bids, t, later, second)
    }

    #[test]
    fn the_first_of_two_wins() {
        let (mut bids, t, now, (left, right)) = booked_twice();
        assert_eq!(bids.accept(now, SECOND, left, right, &t), None);
        assert_eq!(bids.accept(now, FIRST, left, right, &t), Some(SECOND));
        assert_eq!(bids.accepted(), 2);
    }

    #[test]
    fn the_second_of_two_keeps_what_the_first_gives_back() {
        let (mut bids, t, now, (left, right)) = booked_twice();
        bids.cancel(now, FIRST, &t);
        assert!(bids.has_tentative());
        assert_eq!(bids.accept(now, SECOND, left, right, &t), None);
        assert_eq!(bids.accepted(), 2);
        // The same when it has accepted already.
        let (mut bids, t, now, (left, right)) = booked_twice();
        bids.accept(now, SECOND, left, right, &t);
        bids.cancel(now, FIRST, &t);
        assert_eq!((bids.accepted(), bids.has_tentative()), (2, false));
    }

    #[test]
    fn a_second_that_goes_leaves_the_first_alone() {
        let (mut bids, t, now, (left, right)) = booked_twice();
        bids.cancel(now, SECOND, &t);
        assert_eq!(bids.accept(now, FIRST, left, right, &t), None);
    }
}
