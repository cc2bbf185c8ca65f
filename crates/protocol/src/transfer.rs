//! The two ends of a payload transfer, the same for puts and gets.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::limits;
use crate::machine::{Body, DataRun, Destination, Transmit};
use crate::time::{Instant, Span};
use crate::wire::{ByteRange, DataHeader};

/// What is missing of a transfer is sent again at no less than this part of the transfer's rate, whatever is asked for.
pub const SLOWEST: u64 = 128;

/// Most that the next quantum is handed over sooner than it is due: a node is woken within that time, mostly. What waits in a port
/// longer is in the way of questions and answers.
const AHEAD: Span = Span::from_millis(1);

/// The sending end: hands out its ranges in quanta, at its rate.
#[derive(Clone, Debug)]
pub struct Outgoing {
    to: Destination,
    header: DataHeader,
    payload: Bytes,
    ranges: VecDeque<ByteRange>,
    rate: u64,
    /// When what is sent next is due on the wire.
    next: Instant,
    /// Until when others have the port.
    others: Instant,
    /// By how much it is handed over sooner, so that the port does not stand still until this node is woken. Nothing until it was due
    /// once: no transfer begins before its window.
    ahead: Span,
}

/// A port outwards, as far as its own node knows: what waits in it would only come later than its receivers expect, or
/// be dropped.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    rate: u64,
    free: Instant,
}

impl Port {
    /// A port of `rate` bytes per second.
    #[must_use]
    pub const fn new(rate: u64) -> Self {
        Self { rate, free: Instant::ZERO }
    }

    /// When it is through with what it was handed.
    pub(crate) const fn free(&self) -> Instant {
        self.free
    }
}

/// What is handed out at once, in bytes: the whole datagrams of a quantum.
#[must_use]
pub fn at_once(quantum: usize, per_datagram: usize) -> usize {
    (quantum / per_datagram.max(1)).max(1) * per_datagram.max(1)
}

impl Outgoing {
    /// The whole of `payload`, from `start` on. `header` names the transfer, and where in that the payload begins.
    #[must_use]
    pub fn whole(to: Destination, header: DataHeader, payload: Bytes, start: Instant, rate: u64) -> Self {
        let all = ByteRange { offset: 0, len: payload.len() as u32 };
        let (ranges, ahead) = (VecDeque::from([all]), Span::ZERO);
        Self { to, header, payload, ranges, rate: rate.max(1), next: start, others: start, ahead }
    }

    /// Only `ranges` of it. Ranges that are empty or outside the payload are left out.
    #[must_use]
    pub fn ranges(mut self, ranges: &[ByteRange]) -> Self {
        let size = self.payload.len() as u64;
        let inside = |range: &&ByteRange| range.len > 0 && u64::from(range.offset) + u64::from(range.len) <= size;
        self.ranges = ranges.iter().filter(inside).take(limits::RANGES).copied().collect();
        self
    }

    /// What to send now, if it is time and the port is nearly through with what it was handed before: half of a quantum may still wait
    /// in it, but no more than a [moment](AHEAD).
    pub fn poll(&mut self, now: Instant, quantum: usize, per_datagram: usize, port: &mut Port) -> Option<Transmit> {
        if now < self.due() {
            return None;
        }
        let step = at_once(quantum, per_datagram);
        self.ahead = Span::of_transfer(step as u64 / 2, port.rate.max(self.rate)).min(AHEAD);
        if now + self.ahead < port.free {
            self.others = port.free;
            return None;
        }
        let range = self.ranges.front_mut()?;
        let take = range.len.min(u32::try_from(step).unwrap_or(u32::MAX));
        let (from, to) = (range.offset as usize, (range.offset + take) as usize);
        let header = DataHeader { offset: self.header.offset + range.offset, ..self.header };
        range.offset += take;
        range.len -= take;
        if range.len == 0 {
            self.ranges.pop_front();
        }
        // Counted from when this was due, so that a late wake-up does not slow the rest.
        port.free = port.free.max(self.next) + Span::of_transfer(u64::from(take), port.rate.max(self.rate));
        self.next = self.next.max(self.others) + Span::of_transfer(u64::from(take), self.rate);
        let run = DataRun { header, payload: self.payload.slice(from..to), per_datagram };
        Some(Transmit { to: self.to, body: Body::Data(run) })
    }

    /// When there is more to send, or `None` when all is sent.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        (!self.ranges.is_empty()).then_some(self.due())
    }

    /// When the next is handed over.
    fn due(&self) -> Instant {
        self.next.max(self.others) - self.ahead
    }

    /// Bytes that are not sent yet.
    #[must_use]
    pub fn unsent(&self) -> u64 {
        self.ranges.iter().map(|range| u64::from(range.len)).sum()
    }

    /// Where it goes.
    #[must_use]
    pub const fn to(&self) -> Destination {
        self.to
    }
}

/// The receiving end: keeps what came, knows what is missing.
#[derive(Clone, Debug)]
pub struct Incoming {
    size: u32,
    pieces: BTreeMap<u32, Bytes>,
    received: u32,
}

impl Incoming {
    /// Nothing of `size` bytes yet.
    #[must_use]
    pub const fn new(size: u32) -> Self {
        Self { size, pieces: BTreeMap::new(), received: 0 }
    }

    /// The size of the whole.
    #[must_use]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Takes payload in; what is there already is left alone. Returns how many bytes were new. Confetti (far more
    /// pieces than any path's datagrams make) is refused, so that headers cannot exhaust memory.
    pub fn insert(&mut self, offset: u32, payload: &Bytes) -> u32 {
        let Some(end) = offset.checked_add(payload.len() as u32).filter(|end| *end <= self.size) else {
            return 0;
        };
        let before = self.received;
        let mut at = offset;
        while at < end && self.pieces.len() < 64 + self.size as usize / 256 {
            if let Some((start, piece)) = self.pieces.range(..=at).next_back() {
                let covered = start + piece.len() as u32;
                if covered > at {
                    at = covered;
                    continue;
                }
            }
            let next = self.pieces.range(at..end).next().map_or(end, |(start, _)| *start);
            let fresh = payload.slice((at - offset) as usize..(next - offset) as usize);
            // A slice keeps the whole datagram in memory: a small one is copied, so that what is held stays within twice
            // the size of the chunk however the pieces overlap.
            let fresh = if fresh.len() * 2 < payload.len() { Bytes::copy_from_slice(&fresh) } else { fresh };
            self.pieces.insert(at, fresh);
            self.received += next - at;
            at = next;
        }
        self.received - before
    }

    /// Bytes that are not here.
    #[must_use]
    pub const fn outstanding(&self) -> u32 {
        self.size - self.received
    }

    /// Whether every byte is here.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.received == self.size
    }

    /// Whether nothing is here.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.received == 0
    }

    /// The first missing ranges, at most [`limits::RANGES`].
    #[must_use]
    pub fn missing(&self) -> Vec<ByteRange> {
        let mut missing = Vec::new();
        let mut at = 0;
        for (start, piece) in &self.pieces {
            if *start > at {
                missing.push(ByteRange { offset: at, len: start - at });
            }
            at = start + piece.len() as u32;
        }
        if at < self.size {
            missing.push(ByteRange { offset: at, len: self.size - at });
        }
        missing.truncate(limits::RANGES);
        missing
    }

    /// The pieces in order, leaving nothing.
    pub fn take(&mut self) -> Vec<Bytes> {
        self.received = 0;
        core::mem::take(&mut self.pieces).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{ClusterId, NodeId, TxnId};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_order_of_overlapping_pieces_gives_the_bytes(
            size in 1_u32..2_000,
            cuts in prop::collection::vec((0_u32..2_000, 1_u32..700), 0..60),
        ) {
            let bytes: Vec<u8> = (0..size).map(|n| (n * 7 % 251) as u8).collect();
            let whole = Bytes::from(bytes.clone());
            let mut incoming = Incoming::new(size);
            for (offset, len) in cuts {
                let (offset, end) = (offset.min(size - 1), (offset.min(size - 1) + len).min(size));
                incoming.insert(offset, &whole.slice(offset as usize..end as usize));
            }
            while !incoming.is_complete() {
                for range in incoming.missing() {
                    let end = (range.offset + range.len) as usize;
                    prop_assert_eq!(incoming.insert(range.offset, &whole.slice(range.offset as usize..end)), range.len);
                }
            }
            prop_assert!(incoming.missing().is_empty());
            prop_assert_eq!(incoming.take().concat(), bytes);
        }
    }

    #[test]
    fn a_port_takes_what_is_handed_to_it_in_turn() {
        let header = DataHeader { cluster: ClusterId(1), from: NodeId(1), txn: TxnId(1), offset: 0, size: 4_000 };
        let payload = Bytes::from(vec![0; 4_000]);
        let at = Instant::from_nanos;
        let mut port = Port::new(1_000_000_000);
        // Each by itself would have the port's whole rate, from the same moment on.
        let one = || Outgoing::whole(Destination::Node(NodeId(2)), header, payload.clone(), at(0), 1_000_000_000);
        let mut both = [one(), one()];
        let mut sent = Vec::new();
        for now in (0..20_000).step_by(100) {
            for (n, outgoing) in both.iter_mut().enumerate() {
                while outgoing.poll(at(now), 1_000, 1_000, &mut port).is_some() {
                    sent.push((n, now));
                }
                let unsent = outgoing.unsent();
                assert_eq!(outgoing.next_deadline().is_none(), unsent == 0);
                assert!(unsent == 0 || outgoing.next_deadline() > Some(at(now)), "woken for nothing");
            }
        }
        let times: Vec<u64> = sent.iter().map(|(_, now)| *now).collect();
        // Half of one waits in the port while the one before leaves it.
        let ahead: Vec<u64> = [0].into_iter().chain((500..7_000).step_by(1_000)).collect();
        assert_eq!(times, ahead, "{sent:?}");
        // A sender that is late catches up: the port was idle.
        let mut late = one();
        let mut count = 0;
        while late.poll(at(100_000), 1_000, 1_000, &mut port).is_some() {
            count += 1;
        }
        assert_eq!(count, 4);
    }

    #[test]
    fn a_little_that_is_new_does_not_keep_a_whole_datagram_in_memory() {
        for (new, copied) in [(1, true), (29_000, true), (31_000, false)] {
            let mut incoming = Incoming::new(60_000 + new);
            assert_eq!(incoming.insert(0, &Bytes::from(vec![7; 60_000])), 60_000);
            let datagram = Bytes::from(vec![7; 60_000]);
            assert_eq!((incoming.insert(new, &datagram), datagram.is_unique()), (new, copied));
            assert!(incoming.is_complete());
        }
    }

    #[test]
    fn payload_outside_the_chunk_is_left_alone() {
        let mut incoming = Incoming::new(10);
        assert_eq!(incoming.insert(8, &Bytes::from_static(b"abc")), 0);
        assert_eq!(incoming.insert(u32::MAX, &Bytes::from_static(b"abc")), 0);
        assert!(incoming.is_empty());
    }
}
