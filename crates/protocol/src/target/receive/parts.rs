//! Copies of maintenance that come in parts. Between two parts no window is kept, but what came is.

use bytes::Bytes;

use super::{ByteRange, DataHeader, Event, IgnoredReason, PutRequest, Reservation, Stage, Target, TxnId};

/// A copy of which a part came is forgotten when the next is not asked for in so many times of what is late.
const RESTS: u64 = 50;

impl Reservation {
    /// Whether a request is for the next part of this copy.
    pub(super) fn goes_on(&self, request: &PutRequest) -> bool {
        let is_next = request.purpose.sent() > Some(0) && self.keeps_what_came();
        is_next && self.is_whole_of(request)
    }

    /// Whether a request is for the chunk that this is a copy of.
    pub(super) fn is_whole_of(&self, request: &PutRequest) -> bool {
        self.id == request.id && self.incoming.size() == request.size
    }

    /// Whether it comes in parts, and some of it is here, or on its way.
    pub(super) fn keeps_what_came(&self) -> bool {
        self.part.is_some() && (!self.incoming.is_empty() || self.stage.is_open())
    }

    /// Whether it makes way for clients, and nothing that came is lost with that.
    pub(super) fn can_stop(&self) -> bool {
        self.yields && self.part.is_some()
    }

    /// Bytes that the window is for.
    pub(super) fn window_bytes(&self) -> u32 {
        self.part.map_or(self.incoming.size(), |part| part.len)
    }

    /// Up to where it is here when the window is over.
    pub(super) fn end(&self) -> u32 {
        self.part.map_or(self.incoming.size(), |part| part.offset + part.len)
    }

    /// Bytes up to there that are not here.
    pub(super) fn owed(&self) -> u32 {
        self.incoming.outstanding().saturating_sub(self.incoming.size() - self.end())
    }

    /// Whether payload from `offset` on is of a part whose window is over.
    pub(super) fn came_late(&self, offset: u32) -> bool {
        let is_before = self.part.is_some_and(|part| offset < part.offset);
        self.stage == Stage::Resting || self.stage == Stage::Tentative && is_before
    }
}

impl Target {
    /// How many bytes a window is asked for, and for how few it may be.
    pub(super) fn asked_for(&self, request: &PutRequest) -> (u32, u32) {
        let rest = request.size - request.purpose.sent().unwrap_or(0);
        let may = request.purpose.sent().is_some() && self.yields(request);
        (rest, if may { self.config.part.min(rest) } else { rest })
    }

    /// What of a copy a window for so many bytes is for, if it may come in parts.
    pub(super) fn part(&self, request: &PutRequest, bytes: u32) -> Option<ByteRange> {
        let sent = request.purpose.sent().filter(|_| !request.unreserved)?;
        Some(ByteRange { offset: sent, len: bytes })
    }

    /// A window is over, or goes to another transfer. What came of a copy that comes in parts is kept.
    pub(super) fn free_window(&mut self, txn: TxnId) {
        match self.reservations.get(&txn) {
            Some(r) if r.keeps_what_came() => {
                let round = r.round;
                self.rest(txn, round);
            }
            _ => self.drop_reservation(txn),
        }
    }

    /// Keeps what came of a copy until its next part is asked for.
    pub(super) fn rest(&mut self, txn: TxnId, round: u8) {
        self.free_port(txn);
        let until = self.now + self.config.late.times(RESTS);
        let Some(r) = self.reservations.get_mut(&txn) else { return };
        let had = r.stage.is_open().then_some(Event::Released { id: r.id });
        (r.stage, r.round, r.repairs) = (Stage::Resting, round, 0);
        (r.stalled_since, r.timer) = (None, Some(until));
        had.into_iter().for_each(|event| self.event(event));
    }

    /// Forgets what came of copies in parts, as far as a client needs the room: it is not known when the next part
    /// comes.
    pub(super) fn make_room(&mut self, size: u32) {
        while self.held() + u64::from(size) > self.config.receive_buffer {
            let rests = |(_, r): &(&TxnId, &Reservation)| r.stage == Stage::Resting;
            let Some(txn) = self.reservations.iter().find(rests).map(|(txn, _)| *txn) else { return };
            self.drop_reservation(txn);
        }
    }

    /// Payload of a part whose window is over.
    pub(super) fn late_part(&mut self, header: &DataHeader, payload: &Bytes) {
        let Some(r) = self.reservations.get_mut(&header.txn) else { return };
        if r.incoming.insert(header.offset, payload) == 0 {
            self.event(Event::Ignored(IgnoredReason::Late));
        }
        let Some(r) = self.reservations.get(&header.txn) else { return };
        // The port had it, no matter whose window it is.
        self.busy.iter_mut().for_each(|busy| busy.add(self.arrived, self.now, payload.len()));
        if r.incoming.is_complete() {
            let (window, reserved, size) = (r.window, r.claim.is_reserved(), r.incoming.size());
            self.complete(header.txn, window, reserved, size);
        }
    }
}
