//! Maintenance gets what clients leave of a target: a window behind what the disk has to do, which is taken back when a
//! client wants it.
//!
//! A share of the time is kept for it, the floor that the operator sets, so that it gets on whatever clients do. Within
//! that share, and when no other target has a copy, it is served like a client.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::{Ack, Bug, Message, PutRequest, Reservation, Span, Stage, Target, TxnId, Window};
use crate::calendar::Calendar;
use crate::map::ClusterMap;
use crate::time::Instant;
use crate::wire::{Answer, Purpose};

/// What a target does for maintenance.
#[derive(Debug, Default)]
pub(in crate::target) struct Maintenance {
    /// The share of the ports' time, that of the port outwards, and that of the disk's.
    pub(super) ports: Floor,
    outward: Floor,
    disk: Floor,
    /// Copies that are here, and wait until the disk is idle, or has to take one.
    pub(super) waiting: VecDeque<TxnId>,
    /// When the disk may be idle.
    idle_at: Instant,
}

impl Maintenance {
    pub(in crate::target) fn prefetch(&self) -> u64 {
        self.waiting.len() as u64 ^ self.idle_at.as_nanos()
    }
}

/// When maintenance may have a window like a client's again.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::target) struct Floor {
    due: Instant,
}

impl Floor {
    /// Whether its share of the time was not used.
    pub(in crate::target) fn is_due(self, now: Instant) -> bool {
        now >= self.due
    }

    /// It has the disk or the port for so long. Such a use is the share of a longer span, and the next one is due when
    /// that is over. Spans add up, but reach no further ahead than [`LASTS`], or than the span of this use alone where
    /// that is longer.
    pub(in crate::target) fn used(&mut self, now: Instant, took: Span, map: &ClusterMap) {
        self.due = match map.maintenance_floor() {
            0 => Instant::FAR,
            floor => {
                let lasts = took.times(100).div(floor.into());
                (self.due.max(now) + lasts).min(now + LASTS.max(lasts))
            }
        };
    }
}

/// A window for maintenance begins within this time, or within that of two transfers if this is longer. One that is farther away is
/// mostly wanted by a client before it begins.
const NEAR: Span = Span::from_millis(6);

/// Within which time a window for such a transfer begins. On slow links less than two transfers would mean that a
/// holder that sends one cannot ask for the next before that is over, so that its port stands still in between.
pub(super) fn near(transfer: Span) -> Span {
    NEAR.max(transfer.times(2))
}

/// What maintenance had beyond its share is forgotten after this, unless a single use counts for longer.
const LASTS: Span = Span::from_secs(1);

/// The disk is not looked at again, whether it is idle, before this is over.
const SOON: Span = Span::from_micros(100);

/// The part of a write, in percent, within which no client's payload may be expected when it begins. A larger one is kinder to clients,
/// but then much of the time that they leave is not used.
const AHEAD: u64 = 30;

/// Of the room for what arrives, maintenance has so small a part, that clients do not wait for it.
const BUFFER: u64 = 4;

impl Target {
    /// Whether a request is content with what clients leave.
    pub(super) fn yields(&self, request: &PutRequest) -> bool {
        let waits = matches!(request.purpose, Purpose::Restore { urgent: false, .. });
        waits && !request.unreserved && !self.maintenance.ports.is_due(self.now)
    }

    /// From when on maintenance may have the port, if there is room for what it sends. `Err` says when to ask again.
    pub(super) fn left_over(&self, earliest: Instant, size: u32) -> Result<Instant, Span> {
        let yields = self.reservations.values().filter(|r| r.yields && r.stage != Stage::Writing);
        let held: u64 = yields.map(|r| u64::from(r.incoming.size())).sum();
        // A copy of which a part is here takes no more.
        if size > 0 && held > 0 && held + u64::from(size) > self.config.receive_buffer / BUFFER {
            return Err(self.config.late.max(self.link.span(self.now, size.into())));
        }
        // Not before all is here of which a part came for clients, also if it is late.
        Ok(earliest.max(self.owed_until(|_, r| !r.yields && r.stage == Stage::Arriving && r.repairs == 0)))
    }

    /// A client's payload comes: if it is late, what maintenance would send meanwhile goes back.
    pub(super) fn give_way_to_late(&mut self, txn: TxnId) {
        if self.leftover.windows().next().is_none() {
            return;
        }
        let Some(r) = self.reservations.get(&txn).filter(|r| !r.yields && r.stage.is_open()) else { return };
        let (until, part) = (r.window.1, self.link.span(self.now, self.config.part.into()));
        let end = self.now + self.link.span(self.now, r.owed().into());
        if end > until + part {
            self.give_back(until.min(self.now), end);
        }
    }

    /// A client's payload begins: what maintenance still sends after its windows are over stops.
    pub(super) fn stop_late(&mut self, txn: TxnId) {
        if self.reservations.get(&txn).is_none_or(|r| r.yields) || self.setup.bug == Some(Bug::KeepLeftover) {
            return;
        }
        let is_late = |r: &Reservation| r.can_stop() && r.stage.is_open() && r.window.1 <= self.now;
        let late: Vec<TxnId> = self.reservations.iter().filter(|(_, r)| is_late(r)).map(|(txn, _)| *txn).collect();
        late.into_iter().for_each(|txn| self.give_back_one(txn));
    }

    /// Maintenance has the port for so many bytes.
    pub(super) fn has_port(&mut self, bytes: u32) {
        let took = self.link.span(self.now, bytes.into()).max(self.writes.ahead(bytes));
        self.maintenance.ports.used(self.now, took, &self.setup.map);
    }

    /// Maintenance has sent so many bytes.
    pub(in crate::target) fn has_sent(&mut self, bytes: u64) {
        let took = self.link.span(self.now, bytes);
        self.maintenance.outward.used(self.now, took, &self.setup.map);
    }

    /// What is in the way of a reader: maintenance only where it has not had its share for long enough.
    pub(in crate::target) fn in_the_way_of_reads(&self) -> Cow<'_, Calendar> {
        if self.maintenance.outward.is_due(self.now) {
            both(&self.outward, &self.outward_leftover)
        } else {
            Cow::Borrowed(&self.outward)
        }
    }

    /// Has the disk write, or read, the next of maintenance when it has nothing to do, or did not for long enough.
    pub(in crate::target) fn maintain_on(&mut self) {
        if self.maintenance.waiting.is_empty() && !self.has_to_read() {
            return;
        }
        let busy = (self.writing() + self.reads_ahead()).max(self.soon_busy());
        if busy > Span::ZERO && !self.maintenance.disk.is_due(self.now) {
            // When an operation is done this is tried as well.
            self.maintenance.idle_at = self.now + busy.clamp(SOON.min(self.config.late), self.config.late);
            return;
        }
        let took = if let Some(txn) = self.maintenance.waiting.pop_front() {
            let size = self.reservations.get(&txn).map_or(0, |r| r.incoming.size());
            self.begin_write(txn);
            self.writes.ahead(size)
        } else {
            self.read_next()
        };
        self.maintenance.disk.used(self.now, took, &self.setup.map);
        self.maintenance.idle_at = self.now + took.clamp(SOON.min(self.config.late), self.config.late);
    }

    /// How long until a client's payload is here, if it would wait for nearly all of the next write of maintenance.
    fn soon_busy(&self) -> Span {
        let next = self.maintenance.waiting.front().and_then(|txn| self.reservations.get(txn));
        let Some(took) = next.map(|r| self.writes.ahead(r.incoming.size())) else { return Span::ZERO };
        let until = self.now + took.percent(AHEAD);
        let comes = |r: &&Reservation| !r.yields && r.stage.is_open() && r.window.1 < until;
        let last = self.reservations.values().filter(comes).map(|r| r.window.1).max();
        last.map_or(Span::ZERO, |end| end.since(self.now).max(SOON))
    }

    /// When to look whether the disk is idle, if maintenance waits for that.
    pub(in crate::target) fn maintenance_due(&self) -> Option<Instant> {
        let waits = !self.maintenance.waiting.is_empty() || self.has_to_read();
        waits.then_some(self.maintenance.idle_at)
    }

    /// A client has the port from `start` to `end`: the windows of maintenance in between go back. What came of a copy is kept.
    pub(super) fn give_back(&mut self, start: Instant, end: Instant) {
        if self.setup.bug == Some(Bug::KeepLeftover) {
            return;
        }
        let meets = |w: &&Window| w.start < end && start < w.end;
        let yielding: Vec<TxnId> = self.leftover.windows().filter(meets).map(|w| w.txn).collect();
        yielding.into_iter().for_each(|txn| self.give_back_one(txn));
    }

    fn give_back_one(&mut self, txn: TxnId) {
        let Some(r) = self.reservations.get(&txn) else { return };
        let (from, stage, round, transfer, in_parts) = (r.from, r.stage, r.round, r.answer.transfer, r.part.is_some());
        self.free_window(txn);
        // An initiator that accepted it hears at once; one that did not may not choose it any more.
        if stage == Stage::Tentative {
            self.bid(from, txn, round, Answer::Busy(self.again_in(in_parts, transfer)));
        } else {
            self.send(from, &Message::Ack { txn, ack: Ack::Unknown });
        }
    }

    /// What is in the way of a request for the port: everything, if it is of maintenance that `yields`; otherwise only
    /// what does not yield.
    pub(super) fn in_the_way_of(&self, yields: bool) -> Cow<'_, Calendar> {
        if yields { both(&self.inward, &self.leftover) } else { Cow::Borrowed(&self.inward) }
    }

    /// The windows of maintenance that yields, or those of all others.
    pub(super) fn calendar(&mut self, yields: bool) -> &mut Calendar {
        if yields { &mut self.leftover } else { &mut self.inward }
    }

    /// A copy has no window any more.
    pub(super) fn free_port(&mut self, txn: TxnId) {
        self.inward.remove(txn);
        self.leftover.remove(txn);
    }

    /// When to ask again for a window that is not to be had: the next begins when a transfer is over.
    pub(super) fn again_in(&self, in_parts: bool, transfer: Span) -> Span {
        if in_parts { near(transfer).div(2) } else { self.config.late }
    }
}

/// The windows of all.
fn both(others: &Calendar, leftover: &Calendar) -> Cow<'static, Calendar> {
    let mut both = others.clone();
    leftover.windows().for_each(|window| both.insert_overlapping(*window));
    Cow::Owned(both)
}
