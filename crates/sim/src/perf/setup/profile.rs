//! What a run of the product's own machines is set to, and what is measured of it: the code that the daemons run, on a
//! network, disks, clocks and processors as they are.
//!
//! Control and payload share every wire; a switch port has a queue that fills and drops; clocks drift, threads wake late,
//! messages and payload cost processor time, writes share a sync. What is idealised: links are equally fast, a switch
//! passes on what begins to arrive, and messages are charged for their tag instead of computing it.

use erasure::Code;
use hdrhistogram::Histogram;
use protocol::config::Config;
use protocol::time::Span;
use protocol::wire::DATA_HEADER;

use super::repair::{Loss, Mended};
use super::{Bounds, Costs, Load, Setup};

/// Ethernet with its preamble and gap, IPv4 and UDP around every datagram.
pub(in crate::perf) const HEADERS: u64 = 66;
/// Of these, what counts against the MTU.
const IP_AND_UDP: u32 = 28;

/// A run of the product's machines.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The machines' settings, as a daemon has them.
    pub config: Config,
    /// Copies of a chunk.
    pub copies: u8,
    /// What chunks are kept as in place of copies.
    pub code: Option<Code>,
    /// Aggregators, and how many times as much as others' ports theirs carry.
    pub aggregators: u32,
    /// See `aggregators`.
    pub lanes: u32,
    /// Processor time of an aggregator for 1,024 bytes that come or leave, where that is another than of other nodes.
    pub aggregator_kib: Option<Span>,
    /// When the first of them dies for good.
    pub aggregator_dies: Option<Span>,
    /// Bits per second of a port, each direction.
    pub link: u64,
    /// From port to port.
    pub trip: Span,
    /// Bytes per second of a disk.
    pub disk: u64,
    /// Gets among the requests, in percent.
    pub reads: u32,
    /// Chunks that are there from the beginning, of which gets choose.
    pub objects: u32,
    /// How much gets prefer some of them: the exponent of Zipf's law, in hundredths; 0 is not at all.
    pub skew: u32,
    /// Bytes that wait at a switch port before more is dropped.
    pub switch_queue: u64,
    /// Whether control passes payload that waits there.
    pub control_first: bool,
    /// Datagrams lost on the way to each receiver, in a million.
    pub loss_ppm: u32,
    /// Clocks are up to so many millionths too fast or too slow.
    pub drift_ppm: u32,
    /// Timers fire up to so much late.
    pub wake_jitter: Span,
    /// Processors, and what disks need beside their rate.
    pub costs: Costs,
    /// Whether neighbouring groups share cells.
    pub overlap: bool,
    /// How long requests of the measured time may go on behind it.
    pub drain: Span,
    /// Targets that crash.
    pub crashes: Option<Crashes>,
    /// Failure domains, to which targets belong in turn; 0: each target is one.
    pub servers: u32,
    /// Targets that are lost for good.
    pub loss: Option<Loss>,
}

/// Targets that crash: the lowest of each group in turn, which leads it where groups have leaders. Its disk keeps what was
/// synced, and nothing else is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crashes {
    /// From one to the next.
    pub every: Span,
    /// From the crash to the new start.
    pub down: Span,
}

/// Payload bytes in a datagram on a path with this MTU.
#[must_use]
pub(in crate::perf) const fn per_datagram(mtu: u32) -> usize {
    mtu as usize - IP_AND_UDP as usize - DATA_HEADER
}

impl Profile {
    /// Payload bytes per second that a link of so many bits per second carries.
    #[must_use]
    pub(in crate::perf) const fn payload_rate(link: u64, per_datagram: usize) -> u64 {
        let full = per_datagram as u128;
        (link as u128 / 8 * full / (full + HEADERS as u128 + DATA_HEADER as u128)) as u64
    }

    /// Whether the copies of lost targets are made again.
    pub(in crate::perf) fn mends(&self) -> bool {
        self.loss.is_some() && self.config.census_interval > Span::ZERO
    }

    /// How the protocol is called; Replicast otherwise than the paper's.
    #[must_use]
    pub fn name(&self) -> String {
        self.config.transport.to_string().replace("replicast", "product")
    }

    /// Upper bounds in requests per second, whose parts are the shares of this profile.
    pub(in crate::perf) fn bounds(&self, setup: &Setup) -> Bounds {
        let (gets, puts) = (f64::from(self.reads) / 100.0, 1.0 - f64::from(self.reads) / 100.0);
        let (copies, size) = (self.code.map_or(f64::from(self.copies), Code::stored_per_byte), setup.mean_size());
        let (targets, initiators) = (f64::from(setup.targets), f64::from(setup.initiators));
        let is_once = if self.code.is_some() { self.aggregators > 0 } else { self.config.transport.is_common() };
        let sent = if is_once { 1.0 } else { copies };
        let link = Self::payload_rate(self.link, self.config.per_datagram) as f64;
        let bytes = |share: f64| (share * size).max(1e-9);
        Bounds {
            disk: targets * self.disk as f64 / bytes(puts * copies + gets),
            link: targets * link / bytes((puts * copies).max(gets)),
            uplink: initiators * link / bytes((puts * sent).max(gets)),
        }
    }

    /// Nanoseconds from one put at a target to the next, in the mean; 0 in a closed loop.
    pub(in crate::perf) fn interval(&self, setup: &Setup) -> u64 {
        let Load::Open { chunks_per_second } = setup.load else { return 0 };
        let writes = chunks_per_second * (1.0 - f64::from(self.reads) / 100.0) * self.writes().0;
        if writes > 0.0 { (f64::from(setup.targets) * 1e9 / writes) as u64 } else { 0 }
    }

    /// Targets that a put is written to, and which part of it is written to each: copies, or pieces.
    fn writes(&self) -> (f64, f64) {
        let of_code = |code: Code| (code.fragments() as f64, 1.0 / code.data() as f64);
        self.code.map_or((f64::from(self.copies), 1.0), of_code)
    }

    /// Requests per second that the disks can do with all that an operation takes them beside its bytes. In a closed loop of
    /// `n` writes for each disk, a sync is shared by half of them at most: the writes under way and those that wait for
    /// them to end are all there at once.
    pub(in crate::perf) fn disks_at_best(&self, setup: &Setup) -> f64 {
        let seconds = |span: Span| span.as_nanos() as f64 / 1e9;
        let (gets, (writes, part)) = (f64::from(self.reads) / 100.0, self.writes());
        // There are no gets of pieces.
        let (targets, size) = (f64::from(setup.targets), setup.mean_size() * part);
        let at_once = match setup.load {
            Load::Closed { depth } => f64::from(depth) * f64::from(setup.initiators) * writes / targets,
            Load::Open { .. } => f64::INFINITY,
        };
        let group = (at_once / 2.0).clamp(1.0, store::GROUP as f64);
        let hash = if self.costs.cpu.hash > 0 { size / self.costs.cpu.hash as f64 } else { 0.0 };
        let read = size / self.disk as f64 + seconds(self.costs.disk.operation);
        let write = read + seconds(self.costs.disk.sync) / group;
        let write = if self.costs.disk.hash_ahead { write.max(hash) } else { write + hash };
        targets / ((1.0 - gets) * writes * write + gets * read)
    }
}

/// What is measured beside what every [`Outcome`](crate::perf::Outcome) has.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Gets that ended well in the measured time.
    pub gets: u64,
    /// From the request to the verified bytes, in nanoseconds, of gets that began in the measured time.
    pub get_latency: Histogram<u64>,
    /// Requests that failed.
    pub failed: u64,
    /// Requests of the measured time that were not over when the drain was.
    pub unfinished: u64,
    /// Writes that found so many others at their disk: the first entry counts those that found none.
    pub found: Vec<u64>,
    /// Intervals, for each target, in which so many puts were asked for without negotiation, and so many transfers began.
    /// Each is as long as the mean time from one put at a target to the next in an open loop.
    pub asked: Vec<u64>,
    /// See `asked`.
    pub begun: Vec<u64>,
    /// Requests that ended well in each hundredth of the measured time.
    pub ended_in: Vec<u64>,
    /// Puts that were acknowledged with fewer copies on disks than are asked for.
    pub undurable: u64,
    /// Crashes of targets.
    pub crashes: u32,
    /// Control messages received.
    pub control_messages: u64,
    /// Datagrams that a full queue dropped or the wire lost, for each receiver.
    pub dropped: u64,
    /// Repairs asked for.
    pub repairs: u64,
    /// Gets for which another holder was asked, too.
    pub hedged: u64,
    /// Windows that were accepted and given up.
    pub released: u64,
    /// Bids that were not accepted in time.
    pub expired: u64,
    /// Share of a processor that initiators needed, mean.
    pub cpu_initiator: f64,
    /// Share of a processor that targets needed, mean; hashing not counted.
    pub cpu_target: f64,
    /// How copies of lost targets were made again.
    pub mended: Option<Box<Mended>>,
}
