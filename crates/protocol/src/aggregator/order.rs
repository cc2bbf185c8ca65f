//! What is to be passed on of one chunk.

use std::collections::VecDeque;

use bytes::Bytes;
use erasure::Code;

use super::Bug;
use super::parity::{Parity, note};
use crate::id::NodeId;
use crate::machine::{Body, DataRun, Destination, Transmit};
use crate::time::{Instant, Span};
use crate::wire::{AggregateOrder, ByteRange, DataHeader};

/// Datagrams of parity that may leave at once although they are a little before their time: what comes, comes in heaps.
const AHEAD: u64 = 8;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Order {
    size: u32,
    rate: u64,
    /// How many pieces of data come, one after the other.
    data: usize,
    /// The targets that get each of them; of copies several get the only one.
    receivers: Vec<(usize, NodeId)>,
    parity: Option<Parity>,
    /// The targets that get each piece of parity, and what of it is known and not sent.
    queues: Vec<Queue>,
    passed: Vec<(u32, u32)>,
    left: u64,
    sent: u64,
    sent_parity: u64,
    until: Instant,
    bug: Option<Bug>,
}

/// A piece of parity that is being sent.
#[derive(Debug)]
struct Queue {
    /// Its number among those of parity.
    nth: usize,
    to: NodeId,
    known: VecDeque<ByteRange>,
    next: Instant,
    left: u32,
}

impl Order {
    /// `None` when no piece has this size. Windows count from `at`; it is over so long after the last of them at the latest.
    pub(super) fn new(ordered: &AggregateOrder, at: Instant, late: Span, bug: Option<Bug>) -> Option<Self> {
        let (size, rate) = (ordered.size, ordered.rate.max(1));
        let data = ordered.code.map_or(1, Code::data);
        let comes = size.checked_mul(data as u32)?;
        let parity = match ordered.code {
            Some(code) => Some(Parity::new(code, size, bug)?),
            None => None,
        };
        let each = Span::of_transfer(size.into(), rate);
        let last = ordered.receivers.iter().map(|receiver| receiver.start).max().unwrap_or(Span::ZERO);
        let until = at + last + each.times(2) + late;
        let number = |receiver: &crate::wire::Receiver| usize::from(receiver.piece.0);
        let receivers = ordered.receivers.iter().filter(|receiver| number(receiver) < data);
        let receivers = receivers.map(|receiver| (number(receiver), receiver.target)).collect();
        let of_parity = ordered.receivers.iter().filter(|receiver| number(receiver) >= data);
        let queue = |receiver: &crate::wire::Receiver| {
            let (nth, to, next) = (number(receiver) - data, receiver.target, at + receiver.start);
            Queue { nth, to, known: VecDeque::new(), next, left: size }
        };
        let queues = of_parity.map(queue).collect();
        let (passed, left) = (Vec::new(), u64::from(comes));
        let (sent, sent_parity) = (0, 0);
        Some(Self { size, rate, data, receivers, parity, queues, passed, left, sent, sent_parity, until, bug })
    }

    /// (With a bug.) Begins with these sums.
    pub(super) fn with_sums(mut self, stale: Option<&Parity>) -> Self {
        if let (Some(own), Some(stale)) = (&mut self.parity, stale) {
            own.begin_with(stale);
        }
        self
    }

    pub(super) fn into_parity(self) -> Option<Parity> {
        self.parity
    }

    /// Bytes that come of it.
    pub(super) const fn comes(&self) -> u32 {
        self.size * self.data as u32
    }

    /// Bytes that are kept for it.
    pub(super) fn held(&self) -> u64 {
        self.parity.as_ref().map_or(0, Parity::held)
    }

    /// Bytes that came, that were sent, and of these of parity.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        (u64::from(self.comes()) - self.left, self.sent, self.sent_parity)
    }

    /// When it is forgotten at the latest.
    pub(super) const fn until(&self) -> Instant {
        self.until
    }

    /// Whether all has come and is sent.
    pub(super) fn is_over(&self) -> bool {
        self.left == 0 && self.queues.iter().all(|queue| queue.left == 0)
    }

    /// When there is something to send, if nothing comes before.
    pub(super) fn next_deadline(&self) -> Instant {
        let waits = self.queues.iter().filter(|queue| !queue.known.is_empty());
        waits.map(|queue| queue.next).min().unwrap_or(Instant::FAR)
    }

    /// Some of it comes.
    pub(super) fn pass(
        &mut self,
        now: Instant,
        header: &DataHeader,
        payload: &Bytes,
        per_datagram: usize,
        send: &mut impl FnMut(Transmit),
    ) {
        let fresh = note(&mut self.passed, header.offset, header.offset + payload.len() as u32);
        self.left -= fresh.iter().map(|(from, to)| u64::from(to - from)).sum::<u64>();
        let mut rest = payload.clone();
        let mut at = header.offset;
        while !rest.is_empty() {
            let (piece, offset) = ((at / self.size) as usize, at % self.size);
            let bytes = rest.split_to(rest.len().min((self.size - offset) as usize));
            at += bytes.len() as u32;
            for (_, to) in self.receivers.iter().filter(|(number, _)| *number == piece) {
                let header = DataHeader { offset, size: self.size, ..*header };
                let run = DataRun { header, payload: bytes.clone(), per_datagram };
                self.sent += bytes.len() as u64;
                send(Transmit { to: Destination::Node(*to), body: Body::Data(run) });
            }
            let Some(parity) = &mut self.parity else { continue };
            for (from, to) in parity.add(piece, offset, &bytes) {
                let range = ByteRange { offset: from, len: to - from };
                self.queues.iter_mut().for_each(|queue| queue.known.push_back(range));
            }
        }
        self.pump(now, header, per_datagram, send);
    }

    /// Sends what is known of parity, as far as its time has come.
    pub(super) fn pump(
        &mut self,
        now: Instant,
        header: &DataHeader,
        per_datagram: usize,
        send: &mut impl FnMut(Transmit),
    ) {
        let Some(parity) = &self.parity else { return };
        let ahead = Span::of_transfer(AHEAD * per_datagram as u64, self.rate);
        for queue in &mut self.queues {
            while let Some(range) = queue.known.front_mut().filter(|_| queue.next <= now) {
                let len = range.len.min(per_datagram as u32);
                let part = (range.offset, range.offset + len);
                (range.offset, range.len) = (range.offset + len, range.len - len);
                if range.len == 0 {
                    queue.known.pop_front();
                }
                let nth = if self.bug == Some(Bug::SwapPieces) { parity.count() - 1 - queue.nth } else { queue.nth };
                let header = DataHeader { offset: part.0, size: self.size, ..*header };
                let run = DataRun { header, payload: parity.bytes(nth, part), per_datagram };
                queue.next = queue.next.max(now - ahead) + Span::of_transfer(len.into(), self.rate);
                queue.left -= len;
                (self.sent, self.sent_parity) = (self.sent + u64::from(len), self.sent_parity + u64::from(len));
                send(Transmit { to: Destination::Node(queue.to), body: Body::Data(run) });
            }
        }
    }

    /// (With a bug.) Adds what passes of another chunk.
    pub(super) fn mix(&mut self, header: &DataHeader, payload: &Bytes) {
        if let Some(parity) = &mut self.parity {
            parity.spoil(header.offset % self.size, payload);
        }
    }
}
