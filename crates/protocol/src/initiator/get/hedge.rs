//! A second request for a get whose holder is late: the one that begins to send first is received from, the other is told to stop.

use super::{
    Answer, Bid, Context, Destination, Event, Get, Instant, Message, NodeId, OfferedWindow, Phase, Span, Step,
};
use crate::calendar::Window;
use crate::machine::IgnoredReason;
use crate::wire::{Granted, Grants};

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

impl Context {
    /// Whether one more get may be asked for twice: so many of all at most.
    fn may_hedge(&mut self) -> bool {
        let may = (self.hedged + 1) * 100 <= self.served * u64::from(self.config.hedge_percent);
        self.hedged += u64::from(may);
        may
    }
}

/// When the payload of an accepted offer should begin, if its window is used from `start` on. The disk reads after the
/// acceptance, so that may be later.
pub(super) fn beginning(start: Instant, offered: &OfferedWindow) -> Instant {
    start + offered.done.less(offered.start + offered.transfer)
}

impl Get {
    /// A holder was accepted, whose payload should begin at `promised`.
    pub(super) fn hedge_later(&mut self, context: &mut Context, promised: Instant) {
        context.served += 1;
        self.hedge = match context.lateness.late() {
            Some(late) if context.config.hedge_percent > 0 || self.job.gather.is_some() => Hedge::Due(promised + late),
            _ => Hedge::Off,
        };
    }

    /// Asks another holder, if one is known and the budget allows.
    pub(super) fn hedge(&mut self, context: &mut Context) {
        let Phase::Receiving { from, incoming, .. } = &self.phase else { return };
        let (serving, is_late) = (*from, incoming.is_empty());
        self.hedge = Hedge::Off;
        if self.job.gather.is_some() {
            // No other target has this piece, and another piece is as good, which is less than another copy.
            if is_late {
                self.job.note_late(context);
            }
            return;
        }
        let mut offers = self.offers.clone();
        offers.sort_by_key(|(n, offered, at)| (*at + offered.done, *n));
        let mut known: Vec<NodeId> = offers.into_iter().map(|(n, ..)| n).collect();
        known.extend(context.memory.holders(&self.job.id));
        known.extend(self.listed(context, &known));
        if context.config.transport.is_ranked() {
            known.extend(context.map.ranked(&self.job.id).into_iter().take(usize::from(context.map.copies)));
        }
        let other =
            known.into_iter().find(|n| *n != serving && !self.progress.rules_out(*n) && !context.is_suspect(*n));
        let Some(other) = other.filter(|_| is_late && context.may_hedge()) else { return };
        self.round.number = self.round.number.wrapping_add(1);
        let (txn, round, id, earliest) = (self.txn, self.round.number, self.job.id, Span::ZERO);
        let unreserved = !context.config.transport.reserved;
        let request = Message::GetRequest { txn, round, id, unreserved, earliest };
        context.send(Destination::Node(other), &request);
        context.event(Event::Hedged);
        self.hedge = Hedge::Asked(other);
    }

    /// A bid that comes when a holder is accepted already.
    pub(super) fn late_bid(&mut self, context: &mut Context, from: NodeId, bid: &Bid) -> Step {
        let Phase::Receiving { from: serving, incoming, .. } = &self.phase else { return Step::Continue };
        let (serving, nothing_yet) = (*serving, incoming.is_empty());
        if bid.round == self.accepted {
            if serving == from && bid.answer == Answer::NotHere {
                // The holder found that it cannot serve after all.
                self.progress.tried.push(from);
                if !self.switch(context) {
                    self.ask(context);
                }
            } else if let Answer::Window(offered) = bid.answer
                && self.round.asked_of.contains(&from)
                && !self.round.answered.contains(&from)
            {
                // It holds the chunk: that is worth knowing.
                self.round.answered.push(from);
                self.offers.push((from, offered, context.arrived));
            } else {
                return context.ignore(IgnoredReason::Late);
            }
            return Step::Continue;
        }
        if bid.round != self.round.number || self.hedge != Hedge::Asked(from) {
            return context.ignore(IgnoredReason::Late);
        }
        self.hedge = Hedge::Off;
        if let Answer::Window(offered) = bid.answer {
            if nothing_yet {
                self.take_other(context, from, &offered);
            } else {
                context.release(self.txn, self.round.number, [from]);
            }
        }
        Step::Continue
    }

    fn take_other(&mut self, context: &mut Context, from: NodeId, offered: &OfferedWindow) {
        let window = context.arrived + offered.start;
        let (start, _) = context.downlink.hole(window.max(context.now), offered.transfer);
        let offset = start.since(window).min(offered.length.less(offered.transfer));
        if context.config.transport.reserved {
            // Of two windows of one get only one will be used.
            context.downlink.remove(self.txn);
            context.downlink.insert(Window { start, end: start + offered.transfer, txn: self.txn });
        }
        let granted = Grants::from_iter([Granted { target: from, offset }]);
        context.send(Destination::Node(from), &Message::Accept { txn: self.txn, round: self.round.number, granted });
        self.hedge = Hedge::Taken(from, beginning(start, offered));
    }

    /// Receives from the second holder, if there is one; whether.
    pub(super) fn switch(&mut self, context: &mut Context) -> bool {
        let Hedge::Taken(other, begins) = self.hedge else { return false };
        self.hedge = Hedge::Off;
        let Phase::Receiving { from, promised, due, .. } = &mut self.phase else { return false };
        let (first, first_begins) = (core::mem::replace(from, other), core::mem::replace(promised, begins));
        *due = (*due).max(begins + context.config.late);
        context.lateness.sample(context.now.since(first_begins));
        context.release(self.txn, self.accepted, [first]);
        self.accepted = self.round.number;
        true
    }

    /// The payload of `from` begins: whether it is received. The slower holder is told to stop.
    pub(super) fn begins(&mut self, context: &mut Context, from: NodeId) -> bool {
        let Phase::Receiving { from: serving, incoming, .. } = &self.phase else { return false };
        match self.hedge {
            Hedge::Taken(other, _) if other == from && incoming.is_empty() => self.switch(context),
            Hedge::Taken(other, _) if *serving == from => {
                self.hedge = Hedge::Off;
                context.release(self.txn, self.round.number, [other]);
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
