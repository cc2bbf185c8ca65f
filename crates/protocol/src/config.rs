//! What is configured, with the defaults.

use crate::limits;
use crate::time::Span;
use crate::transport::Transport;

/// Which of the holders that offer a chunk serves a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetChoice {
    /// The first whose offer ends soon, compared with what the transfer alone takes. Without negotiation: the first of the hash
    /// ranking, which is not chosen by load at all.
    FirstGood,
    /// The targets that are done first, chosen when all have answered or the silent ones are late. Without negotiation:
    /// the first of the ranking, as many as there are copies.
    Best,
}

/// Settings of both machines. The same values in daemon and simulator give the same behaviour.
#[derive(Clone, Debug)]
pub struct Config {
    /// How copies are placed and carried.
    pub transport: Transport,
    /// Whether multicast works on this network (daemons probe it).
    pub multicast: bool,
    /// With [`Selection::Leader`](crate::transport::Selection::Leader): whether gets ask it, too.
    pub lead_gets: bool,
    /// Puts and gets that an initiator works on at once.
    pub depth: usize,
    /// Port rate to begin with, bytes per second; what transfers really took replaces it.
    pub link_rate: u64,
    /// Payload bytes in one datagram: the path's MTU less the headers.
    pub per_datagram: usize,
    /// Payload bytes handed to the driver at once; the next follow when the rate allows.
    pub quantum: usize,
    /// Bytes of chunks that a target holds in memory at once (reserved, arriving or being written).
    pub receive_buffer: u64,
    /// Bytes of maintenance that are handed to a port at once, and that a window of it is for at least: what a port
    /// takes in half of a millisecond, as what is under way stays in the way of a client that takes the window.
    pub part: u32,
    /// Time kept free after each window.
    pub guard: Span,
    /// How long a tentative window is kept when nobody accepts it.
    pub tentative: Span,
    /// A bid that could not begin within this is answered with `Busy`.
    pub max_wait: Span,
    /// Window length asked of a bid in percent of the transfer, Replicast-M: ports become free at different times, and
    /// the chosen windows must have a transfer's length in common. Longer windows would block ports, and leave gaps
    /// that are too short for others.
    pub stretch_m: u16,
    /// The same for Replicast-H, whose transfers follow each other: per copy.
    pub stretch_h: u16,
    /// Give windows back that begin much later than those before, and ask again, at most
    /// [`limits::CANCELS`] times a put. (Negotiated puts.)
    pub choosy: bool,
    /// The initiator never waits longer than this for bids before it asks again.
    pub bid_timeout: Span,
    /// Rounds in a row that a target misses before it counts as down: puts are content with the copies that the others can have. The
    /// silent are asked every [`bid_timeout`](Self::bid_timeout).
    pub down: u8,
    /// Silence after which an expected datagram or acknowledgement is asked for.
    pub late: Span,
    /// A put, get or list that takes longer fails.
    pub give_up: Span,
    /// Which holder serves a get.
    pub get_choice: GetChoice,
    /// Whether an initiator first asks the targets that it knows to hold a chunk.
    pub remember: bool,
    /// Gets in a hundred for which another holder is asked, too, when the payload is later than was promised by more than
    /// usual; 0 is never.
    pub hedge_percent: u8,
    /// How often a target scrubs a stretch; zero is never.
    pub scrub_interval: Span,
    /// Bytes in a stretch.
    pub scrub_bytes: u64,
    /// How often the steward of a group looks whether all chunks have their copies; zero is never.
    pub census_interval: Span,
    /// After how many such times without a question from its steward the next member in line is steward, too.
    pub steward_after: u8,
    /// How often a target asks a few others whether they are there; zero is never.
    pub watch_interval: Span,
    /// How long one that stopped on purpose is not called silent.
    pub restart_within: Span,
}

/// They are no fewer than this: each part of a copy is negotiated for.
const SMALLEST_PART: u64 = 32 << 10;

impl Config {
    /// The defaults for ports that carry so many bytes of payload in a second.
    #[must_use]
    pub fn of_link(link_rate: u64) -> Self {
        let usual = Self::default();
        // An offer and its answer may wait behind what was handed to a port at once, at four ports. That takes no time on a fast link; on
        // one of 100 Mb/s offers would be over before they could be taken.
        let behind = Span::of_transfer(4 * usual.quantum as u64, link_rate);
        let part = (link_rate / 2_000).clamp(SMALLEST_PART, limits::CHUNK_BYTES.into()) as u32;
        Self { link_rate, tentative: usual.tentative + behind, part, ..usual }
    }

    /// Bytes that are handed to a port at once.
    pub(crate) fn quantum_of(&self, maintenance: bool) -> usize {
        if maintenance { self.quantum.min(self.part as usize) } else { self.quantum }
    }

    /// How long what is under way may wait in a queue that is emptied at `rate` bytes per second: senders send a quantum at once, and what
    /// it holds of two of them comes in turn. And `more` bytes after that.
    pub(crate) fn queued(&self, rate: u64, more: u32) -> Span {
        Span::of_transfer(2 * self.quantum as u64 + u64::from(more), rate)
    }

    /// For how long a chunk may have too few copies before they are made: it may just be being put.
    #[must_use]
    pub fn settling(&self) -> Span {
        self.late.times(20)
    }

    /// The pause after a sweep, or a look for what is missing, while something is to be looked at again.
    pub(crate) fn short_pause(&self) -> Span {
        self.settling().min(self.census_interval)
    }

    /// How long it is remembered that a copy was put elsewhere, so that the old copy goes and not the new one. One
    /// sweep finds that there is a copy too many, another one that all others have been known for long enough, and a
    /// target that restarts meanwhile may cost a few more sweeps.
    pub(crate) fn moved_for(&self) -> Span {
        self.give_up.times(4) + self.census_interval.times(8)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            transport: Transport::REPLICAST_M,
            multicast: true,
            lead_gets: false,
            depth: 4,
            link_rate: 1_250_000_000,
            per_datagram: 8_192,
            quantum: 256 << 10,
            receive_buffer: 32 << 20,
            part: 512 << 10,
            guard: Span::from_micros(2),
            tentative: Span::from_millis(20),
            max_wait: Span::from_secs(2),
            stretch_m: 140,
            stretch_h: 110,
            choosy: false,
            bid_timeout: Span::from_millis(50),
            down: 60,
            late: Span::from_millis(20),
            give_up: Span::from_secs(30),
            get_choice: GetChoice::FirstGood,
            remember: true,
            hedge_percent: 0,
            scrub_interval: Span::from_secs(1),
            scrub_bytes: 1 << 20,
            census_interval: Span::ZERO,
            steward_after: 3,
            watch_interval: Span::ZERO,
            restart_within: Span::from_secs(120),
        }
    }
}
