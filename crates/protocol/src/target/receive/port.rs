//! What a target makes of its port inwards: how fast it is, what may still wait in front of it, and when it is free.

use super::{Event, Instant, NodeId, PutRequest, Reservation, Span, Stage, Target, TxnId};
use crate::calendar::{Calendar, least};

/// Payload that arrives without a pause, but for those that its sender makes.
#[derive(Clone, Copy, Debug)]
pub(in crate::target) struct Busy {
    /// How long it took to arrive, and to be handled: a processor that is behind takes what the port held back from its
    /// memory, and one that is slow holds the port up.
    arriving: Span,
    handling: Span,
    /// When the last of it came, and was handled.
    arrived: Instant,
    handled: Instant,
    bytes: u64,
}

impl Busy {
    /// The first datagram: of that the end is known, and not when it began.
    pub(super) const fn first(arrived: Instant, handled: Instant) -> Self {
        Self { arriving: Span::ZERO, handling: Span::ZERO, arrived, handled, bytes: 0 }
    }

    /// The first datagram after a pause that the sender made. Those of two sockets are read in turn, so one that came before the
    /// last may follow it.
    pub(super) fn resume(&mut self, arrived: Instant, handled: Instant) {
        (self.arrived, self.handled) = (self.arrived.max(arrived), handled);
    }

    /// Further payload.
    pub(super) fn add(&mut self, arrived: Instant, handled: Instant, bytes: usize) {
        self.arriving = self.arriving + arrived.since(self.arrived);
        self.handling = self.handling + handled.since(self.handled);
        self.bytes += bytes as u64;
        self.resume(arrived, handled);
    }

    fn took(self) -> Span {
        self.arriving.max(self.handling)
    }
}

impl Target {
    /// The earliest place for a `transfer` at or after `earliest` when the initiator, which asked at `asked`, has its port, too.
    pub(super) fn both_free(
        inward: &Calendar,
        mut earliest: Instant,
        transfer: Span,
        request: &PutRequest,
        asked: Instant,
    ) -> (Instant, Instant) {
        for (from, until) in &request.busy {
            let (start, _) = inward.hole_for(earliest, transfer);
            if start + least(transfer) <= asked + *from {
                break;
            }
            earliest = earliest.max(asked + *until);
        }
        inward.hole_for(earliest, transfer)
    }

    /// When the port is through with what is missing of some copies, if it has nothing else to do.
    pub(super) fn owed_until(&self, which: impl Fn(TxnId, &Reservation) -> bool) -> Instant {
        let owed = self.reservations.iter().filter(|(txn, r)| which(**txn, r)).map(|(_, r)| u64::from(r.owed())).sum();
        self.now + self.link.span(self.now, owed)
    }

    /// When the port is through with what should be here by now, and with the windows that this delays. Only a request
    /// that `yields` waits for what stops when a client comes.
    pub(in crate::target) fn behind(&self, yields: bool) -> Instant {
        let is_late = |r: &Reservation| r.stage.is_open() && r.window.1 <= self.now && r.repairs < 2;
        let mut until = self.owed_until(|_, r| is_late(r) && (yields || !r.can_stop()));
        if until == self.now {
            return until;
        }
        for window in self.inward.windows().filter(|w| w.end > self.now) {
            if window.start >= until {
                break;
            }
            until += window.end.since(window.start.max(self.now));
        }
        until
    }

    /// Whether the port is taken for more than a quarter of the time from `start` to `end` by what others than the leader
    /// `from` reserved.
    pub(super) fn promised_to_others(&self, from: NodeId, start: Instant, end: Instant) -> bool {
        let others = self
            .inward
            .windows()
            .filter(|w| self.reservations.get(&w.txn).and_then(|r| r.claim.leader()) != Some(from));
        let taken = others.map(|w| w.end.min(end).since(w.start.max(start))).fold(Span::ZERO, |sum, one| sum + one);
        taken > end.since(start).div(4)
    }

    /// When the port is through with what others than the leader `from` reserved.
    pub(in crate::target) fn others_end(&self, from: NodeId) -> Instant {
        let others = self.reservations.values().filter(|r| r.claim.leader() != Some(from) && !r.yields);
        others.filter(|r| r.claim.is_reserved() && !r.stage.is_here()).map(|r| r.window.1).max().unwrap_or(self.now)
    }

    pub(super) fn note_start(&mut self, promised: Instant) {
        self.lateness.sample(self.now.since(promised) + Span::from_nanos(1));
        let (now, promised) = (self.now.as_nanos() as i64, promised.as_nanos() as i64);
        self.event(Event::Started { late_nanos: now - promised });
    }

    /// Whether another copy arrives: has begun, is not complete, and does not wait for what was lost.
    pub(super) fn others_arrive(&self, txn: TxnId) -> bool {
        let pause = self.link.span(self.now, self.config.quantum as u64);
        let arrives = |r: &Reservation| {
            r.stage == Stage::Arriving && r.stalled_since.is_some_and(|since| self.now.since(since) < pause)
        };
        self.reservations.iter().any(|(other, r)| *other != txn && arrives(r))
    }

    /// How fast what is missing of a copy of `size` may come, in bytes per second: as fast as the last of it did, shared with
    /// the other copies of which something is missing.
    pub(super) fn repair_rate(&mut self, reserved: bool, size: u32) -> u64 {
        let seen = self.busy.and_then(|busy| {
            let took = busy.took();
            (took > Span::ZERO && busy.bytes > u64::from(size / 16)).then(|| took.rate_of(busy.bytes))
        });
        self.learn_rate(reserved, size);
        let rate = self.link.get(self.now).min(seen.unwrap_or(u64::MAX));
        let incomplete = self.reservations.values().filter(|r| r.stage.is_open() && r.repairs > 0).count();
        (rate / incomplete.max(1) as u64).max(1)
    }

    /// Whether what comes at once of a copy is enough to tell a port's rate: what lies between may hold back nothing of a smaller piece.
    pub(super) fn shows_rate(&self, restores: bool) -> bool {
        self.config.quantum_of(restores) >= self.config.quantum
    }

    /// Copies that arrive at once share the port: all that came of any of them, if it was enough, says how fast it is. The
    /// last of them is of `size`.
    pub(super) fn learn_rate(&mut self, reserved: bool, size: u32) {
        let Some(busy) = self.busy.take() else { return };
        if reserved && busy.bytes >= u64::from(size / 4) && busy.took() > Span::ZERO {
            // Less than a quantum may all have come at the rate of another port, through the queue before this one.
            let fastest = self.config.link_rate.max(self.link.get(self.now));
            let is_short = busy.bytes < self.config.quantum as u64;
            let shortest = if is_short { Span::of_transfer(busy.bytes, fastest) } else { Span::ZERO };
            self.link.sample(self.now, busy.bytes, busy.took().max(shortest));
        }
    }

    /// How long to wait for the next of a copy, after having asked in vain `asked` times.
    pub(super) fn patience(&self, asked: u8) -> Span {
        self.lateness.patience(asked, self.config.late) + self.config.queued(self.link.get(self.now), 0)
    }

    /// Until when what is missing of a copy may wait in a queue, behind what else should have come by now. What did not come
    /// when it was asked for is in no queue.
    pub(super) fn queued_until(&self, txn: TxnId, r: &Reservation) -> Option<Instant> {
        let others = self.owed_until(|other, r| {
            let expected = r.stage.is_open() && r.window.0 <= self.now && r.stalled_since.is_some();
            other != txn && expected && r.repairs == 0
        });
        Some(r.stalled_since? + self.patience(r.repairs) + others.since(self.now))
    }
}
