//! The windows that a target of Replicast has offered: where the next one goes, and what becomes of those that are not
//! accepted.

use super::config::{Config, Placement, Timing};
use crate::id::TxnId;
use crate::rng::Rng;
use crate::time::{Instant, Span};

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
}

/// The bids of one target, in the order of their windows.
#[derive(Debug)]
pub(super) struct Bids {
    placement: Placement,
    /// A hop: from sending a control message to its arrival.
    hop: Span,
    trip: Span,
    list: Vec<Bid>,
    /// Whether a target that has nothing to do always widens its bid (Replicast-M), or in half of the cases.
    always_widen: bool,
    widen: bool,
    rng: Rng,
}

impl Bids {
    pub(super) fn new(config: &Config, hop: Span, seed: u64) -> Self {
        let always_widen = config.placement == Placement::Behind;
        let widen = config.widen_idle;
        let rng = Rng::new(seed);
        Self { placement: config.placement, hop, trip: config.trip, list: Vec::new(), always_widen, widen, rng }
    }

    /// The window of a new bid: not before `earliest`, nor before the disk is ready in `disk_delay`.
    pub(super) fn offer(
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
                self.list.push(Bid { txn, left, right, state: State::Tentative });
                (left, right)
            }
            Placement::Hole => {
                let (at, left) = self.hole(ready, t.window, self.trip);
                let right = left + t.window + self.extra(idle, disk_delay, t);
                self.list.insert(at, Bid { txn, left, right, state: State::Tentative });
                (left, right)
            }
            Placement::Fit => {
                let (at, left) = self.hole(ready, t.reserve, Span::ZERO);
                let end = self.list.get(at).map_or(Instant::FAR, |next| next.left);
                let right = end.min(left + t.window);
                self.list.insert(at, Bid { txn, left, right, state: State::Tentative });
                (left, right)
            }
        };
        debug_assert!(self.is_in_order());
        bid
    }

    /// The first hole of this length, `apart` from what is before it: its place in the list, and its beginning.
    fn hole(&self, from: Instant, length: Span, apart: Span) -> (usize, Instant) {
        let mut left = from;
        for (at, bid) in self.list.iter().enumerate() {
            if left + length <= bid.left {
                return (at, left);
            }
            left = left.max(bid.right + apart);
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

    /// The initiator takes the part from `left` to `right`.
    pub(super) fn accept(&mut self, now: Instant, txn: TxnId, left: Instant, right: Instant, t: &Timing) {
        if self.placement == Placement::Behind {
            self.expire(now, t.window);
        }
        let Some(at) = self.list.iter().position(|bid| bid.txn == txn && bid.state == State::Tentative) else {
            return;
        };
        let old = self.list[at];
        self.list[at] = Bid { left, right, state: State::Accepted, ..old };
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
    }

    /// The initiator takes others.
    pub(super) fn cancel(&mut self, now: Instant, txn: TxnId, t: &Timing) {
        if self.placement == Placement::Behind {
            self.expire(now, t.window);
        }
        let Some(mut at) = self.list.iter().position(|bid| bid.txn == txn && bid.state == State::Tentative) else {
            return;
        };
        if self.placement != Placement::Behind {
            self.list.remove(at);
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
    pub(super) fn done(&mut self, txn: TxnId) {
        self.list.retain(|bid| bid.txn != txn || bid.state != State::Accepted);
    }

    /// Windows whose payload is still to come.
    pub(super) fn accepted(&self) -> u64 {
        self.list.iter().filter(|bid| bid.state == State::Accepted).count() as u64
    }

    /// Whether a bid waits for its answer.
    pub(super) fn has_tentative(&self) -> bool {
        self.list.iter().any(|bid| bid.state == State::Tentative)
    }

    /// Windows that are promised must not overlap, whatever became of the others.
    fn is_in_order(&self) -> bool {
        let promised: Vec<&Bid> = self.list.iter().filter(|bid| bid.state != State::Cancelled).collect();
        promised.windows(2).all(|pair| pair[0].right <= pair[1].left)
    }
}
