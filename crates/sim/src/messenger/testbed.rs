//! The paper's testbed: what it gives, and what had to be chosen.

use protocol::messenger::{Choice, Policy};
use protocol::time::Span;

/// Machines with clients (section IV A).
pub(crate) const CLIENTS: usize = 3;
/// Jobs of each (`numjobs`), each of which has connections of its own.
pub(crate) const JOBS: usize = 8;
/// Requests under way of each job (`iodepth`).
pub(crate) const DEPTH: usize = 4;
/// Servers.
pub(crate) const NODES: usize = 4;
/// Targets (OSDs) of each.
pub(crate) const TARGETS_OF_NODE: usize = 2;
/// All targets.
pub(crate) const TARGETS: usize = NODES * TARGETS_OF_NODE;
/// Workers of each target.
pub(crate) const WORKERS: usize = 16;
/// Cores of each server.
pub(crate) const CORES: usize = 10;
/// Reading, decoding and checking a message of [`MEASURED`] bytes (Figure 3).
pub(crate) const READ: Span = Span::from_micros(24);
/// Handing it on (Figure 3); it does not grow with the size.
pub(crate) const DISPATCH: Span = Span::from_micros(29);
/// The message that was measured.
pub(crate) const MEASURED: u64 = 4 << 10;
/// The network, in bytes a second: 10 Gb/s.
pub(crate) const LINK: u64 = 1_250_000_000;
/// What was reached of it (Figure 5), in bytes a second: reading takes that much longer for each byte more.
pub(crate) const REACHED: u64 = LINK / 2;
/// Connections of clients to a target.
pub(crate) const OF_CLIENTS: usize = CLIENTS * JOBS;
/// Requests under way.
pub(crate) const REQUESTS: usize = OF_CLIENTS * DEPTH;

/// Constants that the paper does not give.
#[derive(Clone, Copy, Debug)]
pub struct Chosen {
    /// What else a worker's turn takes and Figure 3 has not: the call that says what can be read, locks, sending what follows.
    /// It keeps no core.
    pub rest: Span,
    /// From one process to another where nothing waits, what a client does between two requests included.
    pub trip: Span,
    /// What a request or an answer without payload weighs.
    pub header: u64,
    /// What a switch keeps for a port, in bytes; more is dropped.
    pub buffer: u64,
    /// What TCP sends at once of a message.
    pub segment: u64,
    /// After how long TCP sends again what was dropped.
    pub again: Span,
    /// What handing a message from one thread to another costs.
    pub handover: Span,
    /// What processing takes a target for a request, one after the other, in the full system.
    pub processing: Span,
    /// Heartbeats: of each light connection one comes in this time.
    pub heartbeat: Span,
    /// Light connections of each target.
    pub light: usize,
}

impl Chosen {
    /// As `docs/messenger.md` argues for each.
    pub const DEFAULT: Self = Self {
        rest: Span::from_micros(157),
        trip: Span::from_micros(80),
        header: 200,
        buffer: 512 << 10,
        segment: 64 << 10,
        again: Span::from_millis(1),
        handover: Span::from_micros(3),
        processing: Span::from_micros(60),
        heartbeat: Span::from_secs(3),
        light: 28,
    };
}

/// What clients ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Random reads.
    Read,
    /// Random writes, of which a second target gets a copy before they are answered.
    Write,
}

/// How a messenger works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messenger {
    /// Where connections are served.
    pub policy: Policy,
    /// Whether a second thread hands on what the first has read (section III B).
    pub dual: bool,
    /// Connections between two targets (section III C).
    pub connections: usize,
    /// Which of them takes the next message.
    pub choice: Choice,
    /// Whether they count as one: they share a lock, and messages are handed on in the order in which they were sent.
    pub ordered: bool,
    /// Whether no more is sent to a port than its buffer takes.
    pub bounded: bool,
}

/// A run.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// All randomness.
    pub seed: u64,
    /// The messenger of all.
    pub messenger: Messenger,
    /// What is asked for.
    pub direction: Direction,
    /// Of so many bytes.
    pub size: u64,
    /// Whether requests are processed, too (the paper's full test), or answered as soon as they were handed on.
    pub full: bool,
    /// How often other jobs become the busy ones; never, when it is none.
    pub moving: Option<Span>,
    /// Before what is measured.
    pub warm_up: Span,
    /// What is measured.
    pub length: Span,
    /// What the paper does not give.
    pub chosen: Chosen,
}

/// What reading a message of so many bytes takes.
pub(crate) fn reading(bytes: u64) -> Span {
    let more = Span::of_transfer(bytes, REACHED);
    Span::from_nanos(READ.as_nanos() + more.as_nanos()).less(Span::of_transfer(MEASURED, REACHED))
}

impl Setup {
    /// Requests a second when no message waits for a worker, a lock or a core, and when ports and processing lose no time: what
    /// no policy is above.
    #[must_use]
    pub fn bound(&self) -> f64 {
        let (chosen, size) = (&self.chosen, self.size as f64);
        let empty = reading(chosen.header);
        let full = reading(self.size + chosen.header);
        // Targets that process it, messages to workers, trips.
        let (copies, read, trips) = match self.direction {
            Direction::Read => (1.0, vec![empty], 2),
            Direction::Write => (2.0, vec![full, full, empty], 4),
        };
        let turns: u64 = read.iter().map(|read| (chosen.rest + *read + DISPATCH).as_nanos()).sum();
        let transfer = Span::of_transfer(self.size, LINK).as_nanos() as f64 * copies;
        let nanos = (turns + chosen.trip.times(trips).as_nanos()) as f64 + transfer;
        let ports = match self.direction {
            Direction::Read => CLIENTS as f64 * LINK as f64 / size,
            Direction::Write => NODES as f64 * LINK as f64 / (copies * size),
        };
        let processed = TARGETS as f64 * 1e9 / (copies * chosen.processing.as_nanos() as f64);
        let bound = (REQUESTS as f64 * 1e9 / nanos).min(ports);
        if self.full { bound.min(processed) } else { bound }
    }
}
