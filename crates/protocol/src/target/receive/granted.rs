//! Windows that the leader of a group granted.

use super::{
    Answer, Bug, Claim, Effect, Event, IgnoredReason, Incoming, NodeId, OfferedWindow, Pending, Reservation, Span,
    Stage, Target, TxnId, Window, limits,
};
use crate::redundancy::Wanted;
use crate::time::Instant;
use crate::wire::{Grant, GrantedWindow, Purpose};

impl Target {
    /// Takes a window that the leader `from` granted into the calendar; `Err` says to the initiator why not.
    pub(in crate::target) fn put_granted(
        &mut self,
        from: NodeId,
        grant: &Grant,
        wanted: Wanted,
        granted: GrantedWindow,
    ) -> Result<(), Answer> {
        let (txn, size) = (grant.txn, u64::from(grant.size));
        match self.reservations.get(&txn) {
            Some(r) if !Self::is_replaced(r.from, r.round, grant) || r.stage.is_here() => {
                self.event(Event::Ignored(IgnoredReason::Late));
                return Ok(());
            }
            Some(_) => self.drop_reservation(txn),
            None => {}
        }
        if self.free() < size {
            return Err(Answer::NoSpace);
        }
        self.make_room(grant.size);
        let start = self.since_arrival(granted.start);
        let busy = Answer::Busy(Span::ZERO);
        if self.reservations.len() >= limits::RESERVATIONS || self.buffer_free(size).is_none_or(|at| at > start) {
            return Err(busy);
        }
        let trusted = self.setup.bug == Some(Bug::TrustGrants);
        let end = start + grant.transfer;
        if !trusted && self.promised_to_others(from, start, end) {
            return Err(busy);
        }
        // What one leader grants is in order with itself: that grants were under way for different times makes their windows
        // meet a little.
        let (free, until) = if trusted { (start, Instant::FAR) } else { self.inward.hole(start, Span::from_nanos(1)) };
        let window = (free.min(end), until.min(end).max(free.min(end)));
        let reserved = Window { start: window.0, end: window.1, txn };
        if trusted {
            self.inward.insert_overlapping(reserved);
        } else {
            self.inward.insert(reserved);
        }
        let GrantedWindow { start, done, .. } = granted;
        let answer = OfferedWindow {
            start,
            length: grant.transfer,
            transfer: grant.transfer,
            done,
            rate: grant.rate,
            size: grant.size,
        };
        let reservation = Reservation {
            from: grant.initiator,
            id: grant.id,
            round: grant.round,
            answer,
            bid_at: self.arrived,
            window,
            claim: Claim::Grant { leader: from, group: grant.group, expected: self.arrived + done },
            wanted,
            purpose: Purpose::Store,
            part: None,
            yields: false,
            stage: Stage::Tentative,
            incoming: Incoming::new(grant.size),
            timer: Some(self.now),
            stalled_since: Some(window.1),
            repairs: 0,
        };
        self.reservations.insert(txn, reservation);
        self.accepted(txn);
        match (self.setup.bug, self.reservations.get_mut(&txn)) {
            (Some(Bug::KeepGrants), Some(r)) => r.timer = None,
            (Some(Bug::ClaimGranted), _) => self.bid(grant.initiator, txn, grant.round, Answer::HaveIt),
            _ => {}
        }
        // It may be here already. The payload does not wait for the answer.
        let promise = self.promise(wanted, false);
        let pending = Pending::Granted { from: grant.initiator, txn, round: grant.round };
        self.begin_effect(Effect::Lookup { id: grant.id, promise }, pending);
        Ok(())
    }

    /// The copy that was granted a window is here already.
    pub(in crate::target) fn granted_and_held(&mut self, from: NodeId, txn: TxnId, round: u8) {
        let expected = self.reservations.get(&txn).filter(|r| r.round == round && r.stage.is_open());
        if expected.is_some() && !self.disk_failed {
            self.drop_reservation(txn);
            self.bid(from, txn, round, Answer::HaveIt);
        }
    }
}
