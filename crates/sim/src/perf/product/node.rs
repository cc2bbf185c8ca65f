//! What a node has beside its machine: a clock that is wrong, and a processor that is busy.

use std::collections::VecDeque;

use bytes::Bytes;
use protocol::id::OpId;
use protocol::machine::{Completion, Input};
use protocol::rng::Rng;
use protocol::time::Instant;
use protocol::wire::DataHeader;

use super::Cpu;

/// Clocks begin anywhere within this.
const OFFSETS: u64 = 1_000_000_000_000;

/// What reaches a node.
#[derive(Debug)]
pub(in crate::perf) enum Arrived {
    Control(Bytes),
    Payload(DataHeader, Bytes),
    Done(OpId, Completion),
}

impl Arrived {
    pub(in crate::perf) fn input<R>(self) -> Input<R> {
        match self {
            Self::Control(bytes) => Input::Datagram(bytes),
            Self::Payload(header, payload) => Input::Payload { header, payload },
            Self::Done(op, completion) => Input::Done { op, completion },
        }
    }
}

/// A clock that began anywhere, and is up to so many millionths too fast or too slow.
#[derive(Clone, Copy, Debug)]
pub(in crate::perf) struct Clock {
    offset: u64,
    ppm: i64,
}

impl Clock {
    pub(in crate::perf) fn draw(rng: &mut Rng, drift_ppm: u32) -> Self {
        let ppm = rng.below(2 * u64::from(drift_ppm) + 1) as i64 - i64::from(drift_ppm);
        Self { offset: rng.below(OFFSETS), ppm }
    }

    /// What it shows at a moment.
    pub(in crate::perf) fn local(self, at: u64) -> Instant {
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

    /// The first moment at which it shows so much.
    pub(in crate::perf) fn moment(self, local: Instant) -> u64 {
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
pub(in crate::perf) struct Processor {
    /// When it is done with all that came.
    free: u64,
    /// When it is done with the payload that came, which it handles while it arrives.
    payload_free: u64,
    pub(in crate::perf) inbox: VecDeque<Arrived>,
    /// Time at work since measuring began.
    pub(in crate::perf) work: u64,
}

fn of_payload(cpu: &Cpu, bytes: u64) -> u64 {
    cpu.kib.as_nanos() * bytes / 1024
}

impl Processor {
    pub(in crate::perf) const fn free(&self) -> u64 {
        self.free
    }

    /// The first datagram of a train came.
    pub(in crate::perf) fn head(&mut self, now: u64, cpu: &Cpu, bytes: u64) -> u64 {
        self.payload_free = self.payload_free.max(now) + of_payload(cpu, bytes);
        self.work(now, of_payload(cpu, bytes))
    }

    /// The rest of it came, the last datagram just now.
    pub(in crate::perf) fn rest(&mut self, now: u64, cpu: &Cpu, bytes: u64, last: u64) -> u64 {
        let all = of_payload(cpu, bytes);
        // Never ahead of what arrived, and behind when the processor is slower than the wire.
        self.payload_free = (self.payload_free + all).max(now);
        self.work += all;
        self.free = (self.free.max(now) + of_payload(cpu, last)).max(self.payload_free);
        self.free
    }

    /// Works so long, from `now` or when it is free; when it is done.
    pub(in crate::perf) fn work(&mut self, now: u64, time: u64) -> u64 {
        self.work += time;
        self.free = self.free.max(now) + time;
        self.free
    }

    /// Sends payload; when the first datagram of it leaves.
    pub(in crate::perf) fn send(&mut self, now: u64, cpu: &Cpu, bytes: u64, first: u64) -> u64 {
        let leaves = self.free.max(now) + of_payload(cpu, first);
        self.work(now, of_payload(cpu, bytes));
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
