//! What a node has beside its machine: a clock that is wrong, and a processor that is busy.

use std::collections::VecDeque;

use bytes::Bytes;
use protocol::id::OpId;
use protocol::machine::{Completion, Input};
use protocol::rng::Rng;
use protocol::time::Instant;
use protocol::wire::DataHeader;
use smallvec::SmallVec;

use super::setup::Cpu;

/// Clocks begin anywhere within this.
const OFFSETS: u64 = 1_000_000_000_000;

/// Payload is not made: every chunk is a slice of these zeros, which nobody reads or writes.
static ZEROS: [u8; protocol::limits::CHUNK_BYTES as usize] = [0; protocol::limits::CHUNK_BYTES as usize];

/// The bytes of a chunk.
pub(super) fn payload(size: u32) -> Bytes {
    Bytes::from_static(&ZEROS[..size as usize])
}

/// Where in a piece of a coded chunk its number is, which is all that machines read of payload.
const NUMBER: usize = 1;

/// The beginning of a piece of a coded chunk, or all of it.
pub(super) fn piece(size: u32, number: u8) -> Bytes {
    if number == 0 || (size as usize) <= NUMBER {
        return payload(size);
    }
    let mut bytes = vec![0; size as usize];
    bytes[NUMBER] = number;
    bytes.into()
}

/// The number of the piece that begins so.
pub(super) fn number(payload: &[u8]) -> u8 {
    payload.get(NUMBER).copied().unwrap_or(0)
}

/// A node beside its machine. What nearly all events need comes first and lies together: in a large cluster it is in no
/// cache.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Node {
    /// Rolling hash of what happened to it.
    pub(super) digest: u64,
    pub(super) clock: Clock,
    /// When it is to be woken next.
    pub(super) armed: u64,
    /// Events that it added.
    pub(super) added: u32,
    pub(super) life: Life,
    pub(super) processor: Processor,
    /// When its own events come.
    pub(super) due: Due,
    /// What is drawn for an initiator's requests and how late its payload leaves; how late it wakes.
    pub(super) chance: Rng,
    pub(super) late: Rng,
}

impl Node {
    /// Reads it, and says nothing.
    pub(super) fn prefetch(&self) -> u64 {
        self.digest ^ self.processor.work ^ self.due.0.len() as u64
    }

    /// A node as it begins, with a clock that is up to so many millionths wrong.
    pub(super) fn new(number: u32, seeds: &Rng, drift_ppm: Option<u32>) -> Self {
        let own = |purpose| seeds.fork(purpose).fork(u64::from(number));
        Self {
            clock: drift_ppm.map_or(Clock::EXACT, |ppm| Clock::draw(&mut own(4), ppm)),
            processor: Processor::default(),
            due: Due::default(),
            armed: u64::MAX,
            life: Life::default(),
            chance: own(5),
            late: own(7),
            added: 0,
            digest: 0,
        }
    }
}

/// When some events come: mostly none, one or two.
#[derive(Debug, Default)]
pub(super) struct Due(SmallVec<[u64; 3]>);

impl Due {
    pub(super) fn add(&mut self, at: u64) {
        self.0.push(at);
    }

    /// One of those at this time has come.
    pub(super) fn remove(&mut self, at: u64) {
        if let Some(place) = self.0.iter().position(|due| *due == at) {
            self.0.swap_remove(place);
        }
    }

    /// Whether all of them come later.
    pub(super) fn is_after(&self, at: u64) -> bool {
        self.0.iter().all(|due| *due > at)
    }
}

/// How often a node has started, and whether it is down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) number: u32,
    pub(super) is_down: bool,
}

/// What reaches a node. Small, because most events carry one: of payload only how many bytes it has, and the number in the beginning of
/// a piece.
#[derive(Clone, Debug)]
pub(super) enum Arrived {
    Control(Bytes),
    Payload(DataHeader, u32, u8),
    Done(OpId, Box<Completion>),
    /// A deadline.
    Wake,
}

impl Arrived {
    /// What it is for the node's machine, when it reached the node at `arrived` by its clock.
    pub(super) fn input<R>(self, arrived: Instant) -> Input<R> {
        match self {
            Self::Control(bytes) => Input::Datagram { bytes, arrived },
            Self::Payload(header, bytes, number) => Input::Payload { header, payload: piece(bytes, number), arrived },
            Self::Done(op, completion) => Input::Done { op, completion: *completion },
            Self::Wake => Input::Wake,
        }
    }
}

/// A clock that began anywhere, and is up to so many millionths too fast or too slow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    offset: u64,
    ppm: i64,
}

impl Clock {
    /// One that shows the simulator's time.
    pub(super) const EXACT: Self = Self { offset: 0, ppm: 0 };

    pub(super) fn draw(rng: &mut Rng, drift_ppm: u32) -> Self {
        let ppm = rng.below(2 * u64::from(drift_ppm) + 1) as i64 - i64::from(drift_ppm);
        Self { offset: rng.below(OFFSETS), ppm }
    }

    /// What it shows at a moment.
    pub(super) fn local(self, at: u64) -> Instant {
        // Narrow arithmetic where it fits, which is nearly always: this is asked for every event.
        let product = i64::try_from(at).ok().and_then(|at| at.checked_mul(self.ppm));
        if let Some(product) = product
            && let Some(shows) = at.checked_add(self.offset)
        {
            return Instant::from_nanos(shows.saturating_add_signed(product / 1_000_000));
        }
        let drift = i128::from(at) * i128::from(self.ppm) / 1_000_000;
        Instant::from_nanos((i128::from(at) + i128::from(self.offset) + drift).max(0) as u64)
    }

    /// Whether it shows so much before a moment.
    pub(super) fn is_before(self, local: Instant, moment: u64) -> bool {
        moment.checked_sub(1).is_some_and(|before| local <= self.local(before))
    }

    /// The first moment at which it shows so much.
    pub(super) fn moment(self, local: Instant) -> u64 {
        let since = i128::from(local.as_nanos()) - i128::from(self.offset);
        let scaled = since * 1_000_000;
        let mut at = match u64::try_from(scaled) {
            Ok(scaled) => (scaled / (1_000_000 + self.ppm).cast_unsigned()).min(u64::MAX / 2),
            Err(_) => (scaled / i128::from(1_000_000 + self.ppm)).clamp(0, i128::from(u64::MAX / 2)) as u64,
        };
        while at < u64::MAX / 2 && self.local(at) < local {
            at += 1;
        }
        at
    }
}

/// One thread, which handles what comes in order.
#[derive(Debug, Default)]
pub(super) struct Processor {
    /// When it is done with all that came.
    free: u64,
    /// When it is done with the payload that came, which it handles while it arrives.
    payload_free: u64,
    /// What waits for it, and when that came.
    pub(super) inbox: VecDeque<(u64, Arrived)>,
    /// Time at work since measuring began.
    pub(super) work: u64,
}

impl Processor {
    pub(super) const fn free(&self) -> u64 {
        self.free
    }

    /// The first datagram of a train came.
    pub(super) fn head(&mut self, now: u64, cpu: &Cpu, bytes: u64) -> u64 {
        self.payload_free = self.payload_free.max(now) + cpu.payload(bytes);
        self.work(now, cpu.payload(bytes))
    }

    /// The rest of it came, the last datagram just now.
    pub(super) fn rest(&mut self, now: u64, cpu: &Cpu, bytes: u64, last: u64) -> u64 {
        let all = cpu.payload(bytes);
        // Never ahead of what arrived, and behind when the processor is slower than the wire.
        self.payload_free = (self.payload_free + all).max(now);
        self.work += all;
        self.free = (self.free.max(now) + cpu.payload(last)).max(self.payload_free);
        self.free
    }

    /// Works so long, from `now` or when it is free; when it is done.
    pub(super) fn work(&mut self, now: u64, time: u64) -> u64 {
        self.work += time;
        self.free = self.free.max(now) + time;
        self.free
    }

    /// Sends payload; when the first datagram of it leaves.
    pub(super) fn send(&mut self, now: u64, cpu: &Cpu, bytes: u64, first: u64) -> u64 {
        let leaves = self.free.max(now) + cpu.payload(first);
        self.work(now, cpu.payload(bytes));
        leaves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::time::Span;

    #[test]
    fn a_clock_reaches_a_deadline_at_the_moment_that_it_says() {
        let mut rng = Rng::new(5);
        for _ in 0..1_000 {
            let clock = Clock::draw(&mut rng, 200);
            let deadline = clock.local(rng.below(10_000_000_000)) + Span::from_nanos(rng.below(100_000_000));
            let at = clock.moment(deadline);
            assert!(clock.local(at) >= deadline && (at == 0 || clock.local(at - 1) < deadline));
            assert!(clock.is_before(deadline, at + 1) && !clock.is_before(deadline, at));
        }
    }

    #[test]
    fn payload_is_handled_while_it_arrives_unless_the_processor_is_slower_than_the_wire() {
        let slow = |kib| Cpu { message: Span::ZERO, kib: Span::from_nanos(kib), hash: 0 };
        for (kib, done) in [(100, 100_800), (1_000, 128_000)] {
            let (cpu, mut processor) = (slow(kib), Processor::default());
            processor.head(0, &cpu, 8 << 10);
            assert_eq!(processor.rest(100_000, &cpu, 120 << 10, 8 << 10), done.max(100_000 + 8 * kib));
        }
    }
}
