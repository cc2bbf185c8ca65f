//! Copies on their way out: bid, window, read, payload, repair.

use core::ops::Add;

use bytes::Bytes;

use super::{
    Ack, Answer, ChunkId, DataHeader, Effect, Event, Held, Instant, Message, NodeId, OfferedWindow, Output, Pending,
    ReadFailure, Repair, Span, Target, TxnId, Window, is_newer, limits,
};
use crate::machine::{Destination, IgnoredReason};
use crate::transfer::{Outgoing, SLOWEST};
use crate::wire::{Grant, GrantedWindow};

/// One copy on its way out.
#[derive(Debug)]
pub(super) struct Serving {
    from: NodeId,
    id: ChunkId,
    round: u8,
    size: u32,
    rate: u64,
    /// When it may be sent: what was offered, then what was accepted of it.
    window: (Instant, Instant),
    transfer: Span,
    /// Whether its initiator may still move it: a leader granted it, which does not know the initiator's port.
    movable: bool,
    state: State,
    /// When it is forgotten.
    until: Instant,
}

#[derive(Debug)]
enum State {
    Tentative,
    Reading,
    /// The disk reads it, and nobody waits for it any more.
    Stopped,
    Sending {
        payload: Bytes,
        outgoing: Outgoing,
    },
}

impl State {
    /// Whether the disk reads it.
    const fn is_reading(&self) -> bool {
        matches!(self, Self::Reading | Self::Stopped)
    }
}

impl Serving {
    /// Whether all of it has been sent: it is only kept for repairs.
    fn is_sent(&self) -> bool {
        matches!(&self.state, State::Sending { outgoing, .. } if outgoing.next_deadline().is_none())
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Sending { outgoing, .. } => Some(outgoing.next_deadline().unwrap_or(self.until)),
            State::Tentative => Some(self.until),
            State::Reading | State::Stopped => None,
        }
    }
}

impl Target {
    /// Offers to send what is held; whether any piece of its chunk was asked for, which is answered by the part that fetches this one.
    pub(super) fn offer_get(
        &mut self,
        from: NodeId,
        txn: TxnId,
        round: u8,
        (held, any): (Held, bool),
        unreserved: bool,
        earliest: Span,
    ) {
        let Held { id, size, .. } = held;
        let txn = id.piece().filter(|_| any).map_or(txn, |piece| txn.of_piece(piece));
        match self.servings.get(&txn) {
            // Another's transaction, or a round that is over: nobody waits for an answer.
            Some(serving) if serving.from != from || is_newer(serving.round, round) => {
                return self.event(Event::Ignored(IgnoredReason::Late));
            }
            // The same request again: the same answer, as it stands now.
            Some(serving) if serving.round == round && matches!(serving.state, State::Tentative) => {
                let answer = Answer::Window(self.offered_window(serving));
                return self.bid(from, txn, round, answer);
            }
            Some(serving) if serving.round == round => {
                return self.bid(from, txn, round, Answer::Busy(self.config.late));
            }
            // One read at a time: a second one would make a slow disk slower, and impatience must not queue reads.
            Some(serving) if serving.state.is_reading() => {
                return self.bid(from, txn, round, Answer::Busy(self.config.late));
            }
            Some(_) => self.drop_serving(txn),
            None => {}
        }
        let Some(flows) = self.make_room_to_serve(size) else {
            return self.bid(from, txn, round, Answer::Busy(self.config.late));
        };
        let transfer = self.link.span(self.now, u64::from(size)) + self.config.guard;
        let (start, hole_end, rate) = if unreserved {
            (self.now, Instant::FAR, self.link.get(self.now) / (flows + 1))
        } else {
            // Where the disk will have read it: a window before that would be empty, here and at the initiator. What goes
            // out in one piece fits into any queue, and need not wait for a guess.
            let is_long = size as usize > self.config.quantum;
            let read = if is_long { self.read_times(size).0.min(self.config.max_wait) } else { Span::ZERO };
            let (start, hole_end) = self.in_the_way_of_reads().hole(self.now + earliest.max(read), transfer);
            (start, hole_end, self.link.get(self.now))
        };
        // An initiator that asks for any pieces has them come one after the other.
        let others = id.code().filter(|_| any).map_or(1, |code| code.data() as u64);
        let end = hole_end.min(start + transfer.times(1 + others));
        let wait = start.since(self.now);
        if wait > self.config.max_wait {
            // By then the window would be near enough.
            let again = wait.less(self.config.max_wait).min(self.config.max_wait).max(self.config.late);
            return self.bid(from, txn, round, Answer::Busy(again));
        }
        if !unreserved {
            self.outward.insert(Window { start, end, txn });
        }
        let until = self.now + self.config.tentative.max(wait);
        let serving = Serving {
            from,
            id,
            round,
            size,
            rate,
            window: (start, end),
            transfer,
            movable: false,
            state: State::Tentative,
            until,
        };
        let offered = self.offered_window(&serving);
        self.servings.insert(txn, serving);
        self.bid(from, txn, round, Answer::Window(offered));
    }

    /// What is served to a transaction: of one that asked for any pieces, the one that was offered.
    pub(super) fn serving_of(&self, txn: TxnId) -> Option<TxnId> {
        let serving = self.servings.from(&txn).map(|(serving, _)| *serving);
        serving.filter(|serving| *serving == txn || txn.is_whole() && serving.whole() == txn)
    }

    /// What is offered, as it stands now.
    fn offered_window(&self, serving: &Serving) -> OfferedWindow {
        let (size, transfer, (start, end)) = (serving.size, serving.transfer, serving.window);
        let wait = start.since(self.now);
        let length = end.since(start.max(self.now));
        // The disk reads once the window is accepted, which may be long before it begins.
        let read = self.read_times(size).0.min(self.config.max_wait);
        OfferedWindow { start: wait, length, transfer, done: wait.max(read) + transfer, rate: serving.rate, size }
    }

    /// Makes room for one more copy on its way out, by forgetting the oldest of those that are only kept for repairs. How
    /// many are being sent; `None` when these leave no room.
    fn make_room_to_serve(&mut self, size: u32) -> Option<u64> {
        let most = self.config.receive_buffer.max(u64::from(size));
        let (mut count, mut held) = (self.servings.len(), u64::from(size));
        held += self.servings.values().map(|s| u64::from(s.size)).sum::<u64>();
        let mut sent: Vec<(Instant, TxnId, u32)> = self
            .servings
            .iter()
            .filter(|(_, serving)| serving.is_sent())
            .map(|(txn, serving)| (serving.until, *txn, serving.size))
            .collect();
        let flows = (count - sent.len()) as u64;
        sent.sort_unstable();
        let mut oldest = sent.into_iter();
        while count >= limits::SERVINGS || held > most {
            let (_, txn, bytes) = oldest.next()?;
            self.drop_serving(txn);
            count -= 1;
            held -= u64::from(bytes);
        }
        Some(flows)
    }

    pub(super) fn get_accepted(&mut self, txn: TxnId, round: u8, offset: Option<Span>) {
        let Some(serving) = self.servings.get_mut(&txn) else {
            return;
        };
        if let (true, true, Some(offset)) = (serving.movable, serving.round == round, offset) {
            return self.move_serving(txn, offset);
        }
        let Some(serving) = self.servings.get_mut(&txn) else {
            return;
        };
        if serving.round != round {
            return self.event(Event::Ignored(IgnoredReason::Late));
        }
        let Some(offset) = offset else {
            if serving.state.is_reading() {
                serving.state = State::Stopped;
                return self.outward.remove(txn);
            }
            return self.drop_serving(txn);
        };
        if !matches!(serving.state, State::Tentative) {
            return self.event(Event::Ignored(IgnoredReason::Late));
        }
        let start = (serving.window.0 + offset).min(serving.window.1);
        serving.window = (start, serving.window.1.min(start + serving.transfer));
        serving.state = State::Reading;
        let (id, (start, end)) = (serving.id, serving.window);
        self.outward.trim(txn, start, end);
        self.make_way(start, end);
        self.start(Effect::Read { id }, Pending::Read { txn, begun: self.now });
    }

    /// Takes a read that a leader granted. What the port has no room for then goes out as soon as it has.
    pub(super) fn get_granted(&mut self, grant: &Grant, granted: GrantedWindow) {
        let txn = grant.txn;
        match self.servings.get(&txn) {
            Some(s) if !Self::is_replaced(s.from, s.round, grant) || s.state.is_reading() => {
                return self.event(Event::Ignored(IgnoredReason::Late));
            }
            Some(_) => self.drop_serving(txn),
            None => {}
        }
        if self.make_room_to_serve(grant.size).is_none() {
            return self.send(grant.initiator, &Message::Ack { txn, ack: Ack::Unknown });
        }
        let (start, _) = self.in_the_way_of_reads().hole(self.since_arrival(granted.start), grant.transfer);
        let window = (start, start + grant.transfer);
        self.outward.insert(Window { start, end: window.1, txn });
        self.make_way(start, window.1);
        let serving = Serving {
            from: grant.initiator,
            id: grant.id,
            round: grant.round,
            size: grant.size,
            rate: grant.rate,
            window,
            transfer: grant.transfer,
            movable: true,
            state: State::Reading,
            until: window.1,
        };
        self.servings.insert(txn, serving);
        self.start(Effect::Read { id: grant.id }, Pending::Read { txn, begun: self.now });
    }

    /// The initiator's port is taken when a read that a leader granted would come: it comes later.
    fn move_serving(&mut self, txn: TxnId, by: Span) {
        self.outward.remove(txn);
        let (now, cluster, own) = (self.now, self.setup.map.cluster, self.setup.id);
        let Some(serving) = self.servings.get(&txn) else {
            return;
        };
        let (start, _) = self.in_the_way_of_reads().hole((serving.window.0 + by).max(now), serving.transfer);
        let Some(serving) = self.servings.get_mut(&txn) else {
            return;
        };
        serving.movable = false;
        serving.window = (start, start + serving.transfer);
        serving.until = serving.until.max(start + serving.transfer.times(2) + self.config.late.times(4));
        let end = serving.window.1;
        self.outward.insert(Window { start, end, txn });
        if let State::Sending { payload, outgoing } = &mut serving.state {
            let header = DataHeader { cluster, from: own, txn, offset: 0, size: serving.size };
            *outgoing = Outgoing::whole(outgoing.to(), header, payload.clone(), start, serving.rate);
        }
        self.make_way(start, end);
    }

    /// When the port is through with what it has to send.
    pub(super) fn outward_end(&self) -> Instant {
        self.outward.hole(self.now, self.config.give_up).0
    }

    /// When the disk would have read `size` bytes from now, and what it takes for that by itself.
    pub(super) fn read_times(&self, size: u32) -> (Span, Span) {
        let ahead = self.scrub_until.since(self.now) + self.reads_ahead();
        (self.reads.done(self.now, self.now, ahead, size).since(self.now), self.reads.each(self.now, size))
    }

    /// How long the disk is busy with reads.
    pub(super) fn reads_ahead(&self) -> Span {
        let sizes = self.servings.values().filter(|s| s.state.is_reading()).map(|s| s.size).chain(self.restore_reads());
        let ahead = sizes.map(|size| self.reads.each(self.now, size)).fold(Span::ZERO, Add::add);
        let begun = |pending: &Pending| match pending {
            Pending::Read { begun, .. } | Pending::RestoreRead { begun, .. } => Some(*begun),
            _ => None,
        };
        ahead.max(self.reads.at_work(self.now, self.oldest(begun)))
    }

    pub(super) fn read(&mut self, txn: TxnId, begun: Instant, result: Result<Bytes, ReadFailure>) {
        match &result {
            Ok(payload) => self.reads.sample(self.now, payload.len() as u32, begun),
            Err(_) => self.reads.passed(self.now),
        }
        let cluster = self.setup.map.cluster;
        let own = self.setup.id;
        let Some(serving) = self.servings.get_mut(&txn) else {
            return;
        };
        if matches!(serving.state, State::Stopped) {
            return self.drop_serving(txn);
        }
        match result {
            Ok(payload) => {
                let header = DataHeader { cluster, from: own, txn, offset: 0, size: payload.len() as u32 };
                let start = serving.window.0.max(self.now);
                let to = Destination::Node(serving.from);
                let outgoing = Outgoing::whole(to, header, payload.clone(), start, serving.rate);
                serving.until = start + serving.transfer.times(2) + self.config.late.times(4);
                serving.state = State::Sending { payload, outgoing };
            }
            Err(failure) => {
                let (from, round, id) = (serving.from, serving.round, serving.id);
                self.drop_serving(txn);
                if failure == ReadFailure::Corrupt {
                    self.suspect(&id);
                }
                // A copy that is there and cannot be served is not the same as none.
                match failure {
                    ReadFailure::Missing => self.bid(from, txn, round, Answer::NotHere),
                    ReadFailure::Corrupt => self.send(from, &Message::Ack { txn, ack: Ack::BadHash }),
                    ReadFailure::Disk => self.send(from, &Message::Ack { txn, ack: Ack::DiskFailed }),
                }
            }
        }
    }

    pub(super) fn repair_asked(&mut self, from: NodeId, repair: &Repair) {
        let header =
            DataHeader { cluster: self.setup.map.cluster, from: self.setup.id, txn: repair.txn, offset: 0, size: 0 };
        let Some(serving) = self.servings.get_mut(&repair.txn) else {
            return self.send(from, &Message::Ack { txn: repair.txn, ack: Ack::Unknown });
        };
        let State::Sending { payload, outgoing } = &mut serving.state else {
            // The disk is slower than was expected: to give up now would only make it read again.
            return self.send(from, &Message::Ack { txn: repair.txn, ack: Ack::Pending });
        };
        if outgoing.next_deadline().is_some() {
            // It waits for the port.
            return self.send(from, &Message::Ack { txn: repair.txn, ack: Ack::Pending });
        }
        let header = DataHeader { size: serving.size, ..header };
        let to = Destination::Node(serving.from);
        let rate = repair.rate.clamp(serving.rate / SLOWEST, serving.rate);
        *outgoing = Outgoing::whole(to, header, payload.clone(), self.now, rate).ranges(&repair.ranges);
        serving.until = self.now + serving.transfer.times(2) + self.config.late.times(4);
        self.event(Event::RepairSent);
    }

    pub(super) fn drop_serving(&mut self, txn: TxnId) {
        self.servings.remove(&txn);
        self.outward.remove(txn);
    }

    /// Sends what is due; forgets what is over.
    pub(super) fn pump_servings(&mut self) {
        let now = self.now;
        let mut over = Vec::new();
        // Those that want the port at the same time have it in the order of their windows.
        let mut due: Vec<(Instant, TxnId)> = self
            .servings
            .iter()
            .filter(|(_, serving)| serving.next_deadline().is_some_and(|at| at <= now))
            .map(|(txn, serving)| (serving.window.0, *txn))
            .collect();
        due.sort_unstable();
        for (_, txn) in due {
            let Some(serving) = self.servings.get_mut(&txn) else { continue };
            if let State::Sending { outgoing, .. } = &mut serving.state {
                let (quantum, datagram) = (self.config.quantum, self.config.per_datagram);
                while let Some(transmit) = outgoing.poll(now, quantum, datagram, &mut self.port) {
                    self.out.push_back(Output::Transmit(transmit));
                }
            }
            let waits = serving.state.is_reading() || serving.next_deadline().is_some_and(|at| at > now);
            if now >= serving.until && !waits {
                over.push(txn);
            }
        }
        for txn in over {
            self.drop_serving(txn);
        }
    }
}
