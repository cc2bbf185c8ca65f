//! A second request for a get whose holder is late: who begins to send first is received from, the other is told to stop.

use super::{
    Answer, Bid, Destination, Event, Get, Instant, Message, NodeId, Phase, Shared, Slot, Span, Step, Transport,
};
use crate::calendar::Window;
use crate::wire::Granted;

/// How far the second request of a get is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hedge {
    Off,
    /// Another holder will be asked if nothing has come until then.
    Due(Instant),
    Asked(NodeId),
    /// It was accepted, and its payload should begin then.
    Taken(NodeId, Instant),
}

impl Shared {
    /// Whether one more get may be asked for twice: so many of all at most.
    fn may_hedge(&mut self) -> bool {
        let may = (self.hedged + 1) * 100 <= self.served * u64::from(self.config.hedge_percent);
        self.hedged += u64::from(may);
        may
    }
}

/// When the payload of an accepted offer should begin, if its window is used from `start` on. The disk reads after the
/// acceptance, so that may be later.
pub(super) fn beginning(start: Instant, slot: &Slot) -> Instant {
    start + slot.done.less(slot.start + slot.transfer)
}

impl Get {
    /// A holder was accepted, whose payload should begin at `promised`.
    pub(super) fn hedge_later(&mut self, cx: &mut Shared, promised: Instant) {
        cx.served += 1;
        self.hedge = match cx.lateness.late() {
            Some(late) if cx.config.hedge_percent > 0 => Hedge::Due(promised + late),
            _ => Hedge::Off,
        };
    }

    /// Asks another holder, if one is known and the budget allows.
    pub(super) fn hedge(&mut self, cx: &mut Shared) {
        let Phase::Receiving { from, incoming, .. } = &self.phase else { return };
        let (serving, is_late) = (*from, incoming.is_empty());
        self.hedge = Hedge::Off;
        let mut offers = self.offers.clone();
        offers.sort_by_key(|(n, slot, at)| (*at + slot.done, *n));
        let mut known: Vec<NodeId> = offers.into_iter().map(|(n, ..)| n).collect();
        known.extend(cx.memory.holders(&self.id));
        let unreserved = cx.config.transport == Transport::Hash;
        if unreserved {
            known.extend(cx.map.ranked(&self.id).into_iter().take(usize::from(cx.map.copies)));
        }
        let failed = |n: &NodeId| self.tried.contains(n) || self.corrupt.contains(n) || self.absent.contains(n);
        let other = known.into_iter().find(|n| *n != serving && !failed(n) && !cx.is_suspect(*n));
        let Some(other) = other.filter(|_| is_late && cx.may_hedge()) else { return };
        self.round = self.round.wrapping_add(1);
        let (txn, round, id, earliest) = (self.txn, self.round, self.id, Span::ZERO);
        let request = Message::GetRequest { txn, round, id, unreserved, earliest };
        cx.send(Destination::Node(other), &request);
        cx.event(Event::Hedged);
        self.hedge = Hedge::Asked(other);
    }

    /// A bid that comes when a holder is accepted already.
    pub(super) fn late_bid(&mut self, cx: &mut Shared, from: NodeId, bid: &Bid) -> Step {
        let Phase::Receiving { from: serving, incoming, .. } = &self.phase else { return Step::Continue };
        let (serving, nothing_yet) = (*serving, incoming.is_empty());
        if bid.round == self.accepted {
            if serving == from && bid.answer == Answer::NotHere {
                // The holder found that it cannot serve after all.
                self.tried.push(from);
                if !self.switch(cx) {
                    self.ask(cx);
                }
            } else if let Answer::Window(slot) = bid.answer
                && self.asked_of.contains(&from)
                && !self.answered.contains(&from)
            {
                // It holds the chunk: that is worth knowing.
                self.answered.push(from);
                self.offers.push((from, slot, cx.now));
            }
            return Step::Continue;
        }
        if bid.round != self.round || self.hedge != Hedge::Asked(from) {
            return Step::Continue;
        }
        self.hedge = Hedge::Off;
        if let Answer::Window(slot) = bid.answer {
            if nothing_yet {
                self.take_other(cx, from, &slot);
            } else {
                self.stop(cx, from, self.round);
            }
        }
        Step::Continue
    }

    fn take_other(&mut self, cx: &mut Shared, from: NodeId, slot: &Slot) {
        let window = cx.now + slot.start;
        let (start, _) = cx.downlink.hole(window, slot.transfer);
        let offset = start.since(window).min(slot.length.less(slot.transfer));
        if cx.config.transport != Transport::Hash {
            // Of two windows of one get only one will be used.
            cx.downlink.remove(self.txn);
            cx.downlink.insert(Window { start, end: start + slot.transfer, txn: self.txn });
        }
        let granted = vec![Granted { target: from, offset }];
        cx.send(Destination::Node(from), &Message::Accept { txn: self.txn, round: self.round, granted });
        self.hedge = Hedge::Taken(from, beginning(start, slot));
    }

    fn stop(&self, cx: &mut Shared, holder: NodeId, round: u8) {
        cx.send(Destination::Node(holder), &Message::Accept { txn: self.txn, round, granted: Vec::new() });
    }

    /// Receives from the second holder, if there is one; whether.
    pub(super) fn switch(&mut self, cx: &mut Shared) -> bool {
        let Hedge::Taken(other, begins) = self.hedge else { return false };
        self.hedge = Hedge::Off;
        let Phase::Receiving { from, promised, due, .. } = &mut self.phase else { return false };
        let (first, first_begins) = (core::mem::replace(from, other), core::mem::replace(promised, begins));
        *due = (*due).max(begins + cx.config.late);
        cx.lateness.sample(cx.now.since(first_begins));
        self.stop(cx, first, self.accepted);
        self.accepted = self.round;
        true
    }

    /// The payload of `from` begins: whether it is received. Who is slower is told to stop.
    pub(super) fn begins(&mut self, cx: &mut Shared, from: NodeId) -> bool {
        let Phase::Receiving { from: serving, incoming, .. } = &self.phase else { return false };
        match self.hedge {
            Hedge::Taken(other, _) if other == from && incoming.is_empty() => self.switch(cx),
            Hedge::Taken(other, _) if *serving == from => {
                self.hedge = Hedge::Off;
                self.stop(cx, other, self.round);
                true
            }
            Hedge::Due(_) if *serving == from => {
                self.hedge = Hedge::Off;
                true
            }
            _ => *serving == from,
        }
    }
}
