//! Copies on their way in: bid, window, payload, write, acknowledgement.

mod disk;
mod granted;
mod maintenance;
mod parts;
mod port;
mod stage;

use bytes::Bytes;

use super::{
    Ack, Answer, Bug, ChunkId, DataHeader, Effect, Event, Held, Instant, Message, NodeId, OfferedWindow, Pending,
    PutRequest, Repair, Span, Target, TxnId, Window, WriteFailure, is_newer, limits,
};
use crate::machine::{IgnoredReason, Input};
use crate::promise::Promise;
use crate::redundancy::Wanted;
use crate::transfer::{Incoming, at_once};
use crate::wire::{ByteRange, Purpose};

pub(super) use maintenance::Maintenance;
pub(super) use port::Busy;
use stage::Claim;
pub(super) use stage::Stage;

/// Times that missing ranges are asked for without anything new arriving, before the copy is given up.
const REPAIRS: u8 = 6;

/// One copy on its way in.
#[derive(Debug)]
pub(super) struct Reservation {
    from: NodeId,
    id: ChunkId,
    round: u8,
    answer: OfferedWindow,
    /// When the answer was sent; its spans count from here.
    bid_at: Instant,
    window: (Instant, Instant),
    claim: Claim,
    wanted: Wanted,
    purpose: Purpose,
    /// What of it the window is for, if it comes in parts.
    part: Option<ByteRange>,
    /// Whether a client may have its window.
    yields: bool,
    pub(super) stage: Stage,
    incoming: Incoming,
    /// When to expire (tentative) or to ask for what is missing; never without one.
    timer: Option<Instant>,
    /// Since when expected payload has not arrived. `None` after the last byte: what is missing then is lost, and not queued.
    stalled_since: Option<Instant>,
    repairs: u8,
}

impl Reservation {
    /// Whether it is a copy of this chunk.
    pub(super) fn is_of(&self, id: &ChunkId) -> bool {
        self.id.whole() == id.whole()
    }

    /// What was offered, with its spans counted from `now`.
    fn answer_at(&self, now: Instant) -> Answer {
        let since = now.since(self.bid_at);
        let start = self.answer.start.less(since);
        let length = self.answer.length.less(since.less(self.answer.start));
        let offered = OfferedWindow { start, length, done: self.answer.done.less(since), ..self.answer };
        if self.part.is_some() { Answer::Part(offered) } else { Answer::Window(offered) }
    }

    pub(super) fn prefetch(&self) -> u64 {
        self.bid_at.as_nanos()
            ^ self.window.1.as_nanos()
            ^ u64::from(self.repairs)
            ^ u64::from(self.incoming.size())
            ^ self.timer.map_or(0, Instant::as_nanos)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.timer.filter(|_| !self.stage.is_here())
    }
}

impl Target {
    /// Bytes held in memory or promised.
    pub(super) fn held(&self) -> u64 {
        self.reservations.values().map(|r| u64::from(r.incoming.size())).sum()
    }

    pub(super) fn put_request(&mut self, from: NodeId, request: PutRequest) {
        let (txn, round) = (request.txn, request.round);
        match self.reservations.get(&txn) {
            // Another's transaction, or a round that is over: nobody waits for an answer.
            Some(r) if r.from != from || is_newer(r.round, round) => {
                return self.event(Event::Ignored(IgnoredReason::Late));
            }
            Some(r) if r.stage.is_here() => return self.bid(from, txn, round, Answer::Busy(self.config.late)),
            // The same request again: the same answer, as it stands now.
            Some(r) if r.round == round => return self.bid(from, txn, round, r.answer_at(self.now)),
            Some(r) if r.goes_on(&request) => self.rest(txn, round),
            Some(_) => self.drop_reservation(request.txn),
            None => {}
        }
        let promise = self.promise(request.wanted, request.purpose.restores());
        self.begin_effect(
            Effect::Lookup { id: request.id, promise },
            Pending::Put { from, request, arrived: self.arrived },
        );
    }

    pub(super) fn put_looked_up(&mut self, from: NodeId, request: PutRequest, arrived: Instant, found: Option<Held>) {
        let (txn, round) = (request.txn, request.round);
        let is_rest = |r: &Reservation| r.stage == Stage::Resting && r.round == round && r.is_whole_of(&request);
        let rests = self.reservations.get(&txn).map(is_rest);
        // A new put does not count on a copy whose disk fails.
        if let Some(held) = found.filter(|_| !self.disk_failed) {
            if rests == Some(true) {
                self.drop_reservation(txn);
            }
            return self.bid(from, txn, round, Answer::of_held(&held.id));
        }
        match rests {
            Some(false) => return self.event(Event::Ignored(IgnoredReason::Late)),
            // What was sent of it before is forgotten.
            None if request.purpose.sent() > Some(0) => return self.bid(from, txn, round, Answer::NotHere),
            _ => {}
        }
        // Of the room for removals the disk knows.
        let removal = request.purpose.removes(&request.id);
        // There is room for a copy of which a part is here.
        let lacks_room = rests.is_none() && !removal && self.free() < u64::from(request.size);
        if self.disk_failed || lacks_room {
            return self.bid(from, txn, round, Answer::NoSpace);
        }
        if rests.is_none() && self.reservations.len() >= limits::RESERVATIONS {
            return self.bid(from, txn, round, Answer::Busy(self.config.late));
        }
        let offer = if request.unreserved { self.offer_share(&request) } else { self.offer_window(&request, arrived) };
        let (offered, window) = match offer {
            Ok(offer) => offer,
            Err(wait) => return self.bid(from, txn, round, Answer::Busy(wait)),
        };
        let (claim, stage, timer) = if request.unreserved {
            (Claim::Unreserved, Stage::Accepted, Some(window.1 + self.config.late))
        } else {
            let never = self.setup.bug == Some(Bug::NeverExpire);
            (Claim::Offer, Stage::Tentative, (!never).then_some(self.now + self.config.tentative))
        };
        let part = self.part(&request, offered.size);
        let came = self.reservations.remove(&txn).map(|r| r.incoming);
        let reservation = Reservation {
            from,
            id: request.id,
            round,
            answer: offered,
            bid_at: self.now,
            window,
            claim,
            wanted: request.wanted,
            purpose: request.purpose,
            part,
            yields: self.yields(&request),
            stage,
            incoming: came.unwrap_or(Incoming::new(request.size)),
            timer,
            stalled_since: Some(window.1),
            repairs: 0,
        };
        let answer = reservation.answer_at(self.now);
        self.reservations.insert(txn, reservation);
        self.bid(from, txn, round, answer);
    }

    /// The conventional answer: start when you can, with a share of the link.
    fn offer_share(&self, request: &PutRequest) -> Result<(OfferedWindow, (Instant, Instant)), Span> {
        let size = u64::from(request.size);
        if self.held() + size > self.config.receive_buffer || request.earliest > self.config.max_wait {
            return Err(self.config.late);
        }
        let start = self.now + request.earliest;
        let arrives = |r: &&Reservation| !r.stage.is_here() && r.window.0 <= start && start < r.window.1;
        let flows = self.reservations.values().filter(arrives).count() as u64 + 1;
        let rate = (self.link.get(self.now) / flows).max(1);
        let transfer = Span::of_transfer(size, rate);
        let done = self.disk_done(start + transfer, request.size, request.purpose.restores()).since(self.now);
        let offered =
            OfferedWindow { start: request.earliest, length: transfer, transfer, done, rate, size: request.size };
        Ok((offered, (start, start + transfer)))
    }

    /// The earliest window in which port, disk and receive buffer are free together; `Err` says when to ask again.
    fn offer_window(
        &mut self,
        request: &PutRequest,
        asked: Instant,
    ) -> Result<(OfferedWindow, (Instant, Instant)), Span> {
        let rate = self.link.get(self.now).max(1);
        // Of what yields a part may be enough.
        let (mut bytes, least) = self.asked_for(request);
        let mut transfer = self.link.span(self.now, u64::from(bytes)) + self.config.guard;
        // From now, and not from when it was asked: the time that we take is part of what the initiator leads by.
        let yields = self.yields(request);
        let mut earliest = (self.now + request.earliest).max(self.behind(yields));
        // There is room for a copy of which a part is here.
        let more = if self.reservations.contains_key(&request.txn) { 0 } else { request.size };
        if !yields {
            self.make_room(more);
        }
        earliest = earliest.max(self.buffer_free(more.into()).ok_or(self.config.late)?);
        let most = if yields { maintenance::near(transfer) } else { self.config.max_wait };
        if yields {
            earliest = self.left_over(earliest, more)?;
        }
        let (start, hole_end) = if self.setup.bug == Some(Bug::OverlapWindows) {
            (earliest, Instant::FAR)
        } else {
            let shortest = self.link.span(self.now, u64::from(least)) + self.config.guard;
            Self::both_free(&self.in_the_way_of(yields), earliest, shortest, request, asked)
        };
        if least < bytes && hole_end < start + transfer {
            let fits = hole_end.since(start).less(self.config.guard).as_nanos();
            let fits = u128::from(fits) * u128::from(rate) / 1_000_000_000;
            bytes = (fits.min(bytes.into()) as u32).max(least);
            transfer = self.link.span(self.now, u64::from(bytes)) + self.config.guard;
        }
        let end = hole_end.min(start + transfer.percent(u64::from(request.stretch.clamp(100, 2_000))));
        let wait = start.since(self.now);
        let whole = self.link.span(self.now, u64::from(request.size - request.purpose.sent().unwrap_or(0)));
        let done = self.disk_done(start + transfer, request.size, request.purpose.restores()).since(self.now);
        let length = end.since(start);
        let fits = [wait, length, done].iter().all(|span| span.to_wire().is_some());
        if wait > most || !fits {
            // By then the window would be near enough.
            return Err(wait
                .less(most)
                .min(self.config.max_wait)
                .max(self.again_in(request.purpose.sent().is_some(), whole)));
        }
        let window = Window { start, end, txn: request.txn };
        if self.setup.bug == Some(Bug::OverlapWindows) {
            self.inward.insert_overlapping(window);
        } else {
            self.calendar(yields).insert(window);
        }
        Ok((OfferedWindow { start: wait, length, transfer, done, rate, size: bytes }, (start, end)))
    }

    /// From when on `size` bytes more fit into the receive buffer; `None` when they never do.
    fn buffer_free(&self, size: u64) -> Option<Instant> {
        let mut held = self.held();
        if held + size <= self.config.receive_buffer {
            return Some(self.now);
        }
        // It is not known when the last part comes of a copy of which another part is expected.
        let mut ends: Vec<(Instant, u64)> = self
            .reservations
            .values()
            .filter(|r| r.stage != Stage::Resting && r.end() == r.incoming.size())
            .map(|r| (r.bid_at + r.answer.done.max(r.answer.length), u64::from(r.incoming.size())))
            .collect();
        ends.sort_unstable();
        ends.into_iter().find_map(|(at, bytes)| {
            held -= bytes;
            (held + size <= self.config.receive_buffer).then_some(at.max(self.now))
        })
    }

    /// `offset` into the offered window the transfer begins; `None` when others were chosen.
    pub(super) fn put_accepted(&mut self, txn: TxnId, round: u8, offset: Option<Span>) {
        let Some(r) = self.reservations.get_mut(&txn) else {
            return;
        };
        if r.round == round && r.claim.leader().is_some() && offset.is_none() && r.stage == Stage::Accepted {
            return self.drop_reservation(txn);
        }
        if r.round != round || r.stage != Stage::Tentative {
            return self.event(Event::Ignored(IgnoredReason::Late));
        }
        self.accept_rate.sample(offset.is_some());
        let Some(offset) = offset else {
            return self.free_window(txn);
        };
        if r.purpose.restores() && !r.yields {
            let bytes = r.window_bytes();
            self.has_port(bytes);
        }
        let Some(r) = self.reservations.get_mut(&txn) else {
            return;
        };
        let start = r.window.0 + offset;
        let end = start + r.answer.transfer;
        if end > r.window.1 {
            // More than was offered. What is free of it is kept.
            let (offered, yields) = (r.window.1, r.yields);
            self.free_port(txn);
            let (free, until) = self.in_the_way_of(yields).hole(start, Span::from_nanos(1));
            let window = if free == start { (start, end.min(until)) } else { (offered, offered) };
            self.calendar(yields).insert(Window { start: window.0, end: window.1, txn });
            if let Some(r) = self.reservations.get_mut(&txn) {
                r.window = window;
            }
        } else {
            r.window = (start, end);
        }
        self.accepted(txn);
    }

    fn accepted(&mut self, txn: TxnId) {
        let patience = self.patience(0);
        let Some(r) = self.reservations.get_mut(&txn) else {
            return;
        };
        let ((start, end), yields) = (r.window, r.yields);
        let since = end.max(self.now);
        r.stage = Stage::Accepted;
        (r.stalled_since, r.timer) = (Some(since), Some(since + patience));
        let accepted = Event::Accepted { id: r.id, start, length: end.since(start) };
        self.calendar(yields).trim(txn, start, end);
        if !yields {
            self.give_back(start, end);
        }
        self.event(accepted);
    }

    pub(super) fn data(&mut self, header: &DataHeader, payload: &Bytes) {
        let txn = header.txn;
        match self.reservations.get(&txn) {
            Some(r) if header.size != r.incoming.size() => return self.event(Event::Ignored(IgnoredReason::Invalid)),
            Some(r) if r.came_late(header.offset) => return self.late_part(header, payload),
            // Payload that comes on an offer says that the acceptance was lost on the way.
            Some(r) if r.stage == Stage::Tentative => self.accepted(txn),
            Some(_) => {}
            None if self.finished.get(txn).is_some() => return self.event(Event::Ignored(IgnoredReason::Late)),
            None if self.fetches(txn) => {
                let (header, payload, arrived) = (*header, payload.clone(), self.arrived);
                self.initiate(Input::Payload { header, payload, arrived });
                return;
            }
            None => return self.event(Event::Ignored(IgnoredReason::Unsolicited)),
        }
        let patience = self.patience(0);
        let Some(r) = self.reservations.get_mut(&txn).filter(|r| r.stage.is_open()) else {
            return self.event(Event::Ignored(IgnoredReason::Late));
        };
        let news = r.incoming.insert(header.offset, payload) > 0;
        let first = core::mem::replace(&mut r.stage, Stage::Arriving) == Stage::Accepted;
        // Once the end is here, what is missing is lost, or has been overtaken. Before, it may still be on its way.
        if news {
            r.repairs = 0;
            (r.stalled_since, r.timer) = if header.offset + payload.len() as u32 == r.end() {
                (None, Some(self.now + self.lateness.patience(0, self.config.late).div(4)))
            } else {
                (r.stalled_since.map(|since| since.max(self.now)), r.timer.map(|at| at.max(self.now + patience)))
            };
        }
        let (complete, window, reserved) = (r.incoming.is_complete(), r.window, r.claim.is_reserved());
        let (size, part) = (r.incoming.size(), r.part.filter(|_| r.owed() == 0));
        let quantum = self.config.quantum_of(r.purpose.restores());
        if !news {
            self.event(Event::Ignored(IgnoredReason::Late));
        }
        // Before the next quantum the sender waits, as its rate wants it. Its datagrams may be smaller than ours.
        let per_datagram = payload.len().min(self.config.per_datagram);
        let step = at_once(quantum, per_datagram);
        let pauses = step > per_datagram && (header.offset as usize).is_multiple_of(step);
        let alone = (first || pauses) && !self.others_arrive(txn);
        match self.busy.as_mut().filter(|_| !(alone && first)) {
            Some(busy) if alone && pauses => busy.resume(self.arrived, self.now),
            Some(busy) => busy.add(self.arrived, self.now, payload.len()),
            None => self.busy = Some(Busy::first(self.arrived, self.now)),
        }
        if first && reserved {
            self.note_start(window.0);
        }
        if first {
            self.stop_late(txn);
        }
        self.give_way_to_late(txn);
        if complete {
            self.complete(txn, window, reserved, size);
        } else if let Some(part) = part {
            self.through(txn, reserved, part.len);
            self.free_window(txn);
        }
    }

    /// All that a window was for came.
    fn through(&mut self, txn: TxnId, reserved: bool, bytes: u32) {
        let (yields, restores) =
            self.reservations.get(&txn).map_or((false, false), |r| (r.yields, r.purpose.restores()));
        if yields {
            self.has_port(bytes);
        }
        self.learn_rate(reserved && self.shows_rate(restores), bytes);
        self.busy = self.others_arrive(txn).then_some(Busy::first(self.arrived, self.now));
    }

    fn complete(&mut self, txn: TxnId, window: (Instant, Instant), reserved: bool, size: u32) {
        let bytes = self.reservations.get(&txn).map_or(size, Reservation::window_bytes);
        self.through(txn, reserved, bytes);
        if reserved && self.now > window.1 {
            self.event(Event::Overrun { by: self.now.since(window.1) });
        }
        self.free_port(txn);
        let Some(r) = self.reservations.get_mut(&txn) else {
            return;
        };
        r.stage = Stage::Waiting;
        if !r.yields {
            return self.begin_write(txn);
        }
        let id = r.id;
        self.event(Event::Waiting { id });
        self.maintenance.waiting.push_back(txn);
        self.maintain_on();
    }

    /// Hands a copy that is here to the disk.
    fn begin_write(&mut self, txn: TxnId) {
        let Some(r) = self.reservations.get_mut(&txn).filter(|r| r.stage == Stage::Waiting) else {
            return;
        };
        r.stage = Stage::Writing;
        let size = r.incoming.size();
        let (from, pieces, claim) = (r.from, r.incoming.take(), r.claim);
        // Which piece of a coded chunk it is, its bytes say.
        let id = r.id.piece().map_or_else(|| r.id.of_its_piece(&pieces), |_| r.id);
        let (restores, removal) = (r.purpose.restores(), r.purpose.removes(&id));
        let promise = Promise { mark: self.marks.newest(), wanted: r.wanted, restores };
        let trusts = match self.setup.bug {
            Some(Bug::SkipHashCheck) => true,
            Some(Bug::TrustRestored) => restores,
            _ => false,
        };
        let pending = Pending::Write { txn, id, size, begun: self.now };
        self.start(Effect::Write { id, pieces, verify: !trusts, promise, removal }, pending);
        if let Claim::Grant { leader, group, expected } = claim {
            self.report_unless_right(leader, group, expected, size);
        }
        if self.setup.bug == Some(Bug::AckBeforeDurable) {
            self.send(from, &Message::Ack { txn, ack: Ack::Durable });
        }
    }

    pub(super) fn written(
        &mut self,
        txn: TxnId,
        id: ChunkId,
        size: u32,
        begun: Instant,
        result: Result<(), WriteFailure>,
    ) {
        match result {
            Ok(()) => self.writes.sample(self.now, size, begun),
            Err(_) => self.writes.passed(self.now),
        }
        let Some(r) = self.reservations.get_mut(&txn) else {
            return;
        };
        let from = r.from;
        let ack = match result {
            Ok(()) => Ack::of_held(&id),
            Err(WriteFailure::NoSpace) => Ack::NoSpace,
            Err(WriteFailure::Exhausted) => Ack::DiskFailed,
            Err(WriteFailure::Disk) => {
                self.note_failure(result);
                Ack::DiskFailed
            }
            Err(WriteFailure::BadHash) => {
                // The initiator sends it again into the same place.
                r.stage = Stage::Accepted;
                (r.stalled_since, r.timer) = (Some(self.now), Some(self.now + self.config.late));
                return self.send(from, &Message::Ack { txn, ack: Ack::BadHash });
            }
        };
        self.reservations.remove(&txn);
        if ack.durable().is_some() {
            self.setup.chunks += 1;
            self.event(Event::Stored { id, bytes: size, took: self.now.since(begun) });
        }
        self.finished.remember(txn, ack);
        if self.setup.bug != Some(Bug::DropAck) {
            self.send(from, &Message::Ack { txn, ack });
        }
    }

    pub(super) fn probe(&mut self, from: NodeId, txn: TxnId, id: ChunkId, wanted: Wanted) {
        if self.setup.bug == Some(Bug::DropAck) {
            return;
        }
        // An initiator that counts on it wants it to stay.
        self.leaving.stay(&id);
        match self.reservations.get(&txn) {
            Some(r) if r.from == from && r.stage.is_here() => {
                self.deliver(from, &Message::Ack { txn, ack: Ack::Pending });
            }
            // What lacks is sent in another window, if one is asked for.
            Some(r) if r.from == from && r.stage == Stage::Resting => {
                self.deliver(from, &Message::Ack { txn, ack: Ack::Unknown });
            }
            Some(r) if r.from == from => {
                if r.stage == Stage::Tentative {
                    self.accepted(txn);
                }
                // What is missing is asked for when it is late here.
                self.deliver(from, &Message::Ack { txn, ack: Ack::Pending });
            }
            _ => match self.finished.get(txn) {
                Some(ack) if ack.durable().is_none() => self.deliver(from, &Message::Ack { txn, ack }),
                // Only the index says what is durable: a transaction's number proves nothing, and a copy may have rotted.
                _ => {
                    let promise = self.promise(wanted, false);
                    self.begin_effect(Effect::Lookup { id, promise }, Pending::Probe { from, txn });
                }
            },
        }
    }

    fn ask_repair(&mut self, txn: TxnId) {
        let Some(r) = self.reservations.get(&txn) else {
            return;
        };
        // What a slow port lost of a copy may be more than what came.
        let shows_rate = r.claim.is_reserved() && self.shows_rate(r.purpose.restores());
        let (repairs, size) = (r.repairs, r.incoming.size());
        let rate = self.repair_rate(shows_rate, size);
        let patience = self.patience(repairs);
        let Some(r) = self.reservations.get_mut(&txn) else {
            return;
        };
        (r.stalled_since, r.timer) = (Some(self.now), Some(self.now + patience));
        let (from, ranges) = (r.from, r.incoming.missing());
        self.send(from, &Message::Repair(Repair { txn, rate, ranges }));
        self.event(Event::RepairAsked);
    }

    pub(super) fn drop_reservation(&mut self, txn: TxnId) {
        let dropped = self.reservations.remove(&txn);
        self.free_port(txn);
        if let Some(r) = dropped.filter(|r| r.stage.is_open()) {
            self.event(Event::Released { id: r.id });
        }
    }

    /// Expires what was not accepted; asks for what is late.
    pub(super) fn check_reservations(&mut self) {
        let now = self.now;
        let due: Vec<TxnId> = self
            .reservations
            .iter()
            .filter(|(_, r)| r.next_deadline().is_some_and(|at| at <= now))
            .map(|(txn, _)| *txn)
            .collect();
        for txn in due {
            let queued =
                self.reservations.get(&txn).and_then(|r| self.queued_until(txn, r)).filter(|until| *until > now);
            let Some(r) = self.reservations.get_mut(&txn) else {
                continue;
            };
            if let (true, Some(until)) = (r.stage.is_open(), queued) {
                r.timer = Some(until);
            } else if r.stage == Stage::Tentative {
                self.event(Event::Expired);
                self.accept_rate.sample(false);
                self.free_window(txn);
            } else if r.stage == Stage::Resting {
                self.drop_reservation(txn);
            } else if r.end() < r.incoming.size() {
                // What lacks of a part is asked for with the last.
                self.free_window(txn);
            } else if r.repairs >= REPAIRS {
                self.drop_reservation(txn);
            } else {
                r.repairs += 1;
                self.ask_repair(txn);
            }
        }
    }
}
