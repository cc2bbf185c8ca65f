//! The papers' constants, and the times that follow from them.

use protocol::time::Span;

/// Which of the papers' protocols, or of the rivals that they do not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// Hashed placement, unicast copies one after another, each target divides its link among its flows.
    UchCcp,
    /// The same with additive increase and multiplicative decrease at the initiator.
    UchAimd,
    /// Negotiated; one multicast transfer into a common window.
    ReplicastM,
    /// Negotiated by multicast; unicast transfers into consecutive windows.
    ReplicastH,
    /// As UCH-CCP, but each copy goes to the less busy of two members of the chunk's group, which are asked first.
    LeastOfTwo,
    /// As UCH-CCP, but copies go to the members of the chunk's group with the best scores by what came with earlier
    /// acknowledgements, in the manner of C3.
    C3Like,
    /// As UCH-CCP, but copies go to members of the chunk's group by the answers to probes that were sent before, in the
    /// manner of Prequal.
    PrequalLike,
    /// The same by the answers to probes of this put, which waits for them: Prequal's synchronous mode.
    PrequalSync,
}

impl Protocol {
    /// The papers', in the order of the papers' tables.
    pub const ALL: [Self; 4] = [Self::UchCcp, Self::UchAimd, Self::ReplicastM, Self::ReplicastH];

    /// Those that choose by load without reserving anything.
    pub const RIVALS: [Self; 4] = [Self::LeastOfTwo, Self::C3Like, Self::PrequalLike, Self::PrequalSync];

    /// As tables and scenarios write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UchCcp => "uch-ccp",
            Self::UchAimd => "uch-aimd",
            Self::ReplicastM => "replicast-m",
            Self::ReplicastH => "replicast-h",
            Self::LeastOfTwo => "least-of-two",
            Self::C3Like => "c3-like",
            Self::PrequalLike => "prequal-like",
            Self::PrequalSync => "prequal-sync",
        }
    }

    /// Whether windows are negotiated.
    #[must_use]
    pub const fn negotiates(self) -> bool {
        matches!(self, Self::ReplicastM | Self::ReplicastH)
    }
}

/// Where a target places the window of a bid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Behind the last one; a cancelled one may be offered again whole. The papers' Replicast-M.
    Behind,
    /// In the first hole that is as long as the window. The papers' Replicast-H.
    Hole,
    /// In the first hole that is as long as what will be reserved, and as wide as the hole and the window allow.
    Fit,
}

/// How an initiator picks among bids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The papers': Replicast-M takes the first run of as many bids as copies, in order of their beginnings, that has a
    /// common window; Replicast-H the earliest bid and those that follow closely.
    Neighbours,
    /// Replicast-M takes the earliest window that is common to any as many bids as copies; Replicast-H any bids, each
    /// where the initiator's own port is free.
    Any,
    /// As `Any`, but what should be on disk soonest instead of what begins first.
    Soonest,
}

/// Constants of a run. The same for all nodes.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which protocol.
    pub protocol: Protocol,
    /// Usable bits per second of a port, each direction.
    pub link: u64,
    /// Percent of the link that reserved payload gets; control gets the rest. At 100 nothing is divided: control is
    /// charged at the full rate too.
    pub data_percent: u64,
    /// Payload bytes in a frame.
    pub frame: u32,
    /// From port to port.
    pub trip: Span,
    /// Bytes that a control message is charged as, whatever it encodes to.
    pub control: u32,
    /// Copies of a chunk.
    pub copies: u8,
    /// Puts that an initiator works on at once.
    pub depth: usize,
    /// Initiators that use the same targets, as far as an initiator has to know.
    pub initiators: u32,
    /// Bytes per second of a disk.
    pub disk: u64,
    /// Bytes that may wait for a disk before new requests are told to wait.
    pub disk_queue: u32,
    /// Length of an offered window in percent of the transfer.
    pub stretch: u64,
    /// Where windows are offered.
    pub placement: Placement,
    /// How they are chosen.
    pub choice: Choice,
    /// Time reserved beyond the transfer itself; `None` is the papers' rule, a frame and more (see [`Config::timing`]).
    pub guard: Option<Span>,
    /// A target with nothing to do widens its bid by twice the transfer, so that it is likelier to be chosen.
    pub widen_idle: bool,
    /// Prefer those whose disk has least to do, among bids that serve equally well.
    pub least_backlog: bool,
    /// Let neighbouring groups share all but one of their cells; otherwise groups share nothing.
    pub overlap: bool,
    /// Give windows back that begin later than the maximum bid wait, and ask again, at most eight times a put. (Replicast.)
    pub choosy: bool,
    /// Offer the time of a tentative window to a second initiator, which is told when the first takes it. (Replicast-H
    /// with [`Placement::Hole`].)
    pub double_booking: bool,
}

/// The times of one transfer.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Of how many bytes.
    pub bytes: u32,
    /// To put a control message on the wire.
    pub pdu: Span,
    /// To put a whole frame on the wire, at the rate of payload.
    pub frame: Span,
    /// To put the chunk on the wire.
    pub net: Span,
    /// To write it.
    pub disk: Span,
    /// Length of a window as it is offered.
    pub window: Span,
    /// Length of a window as it is reserved.
    pub reserve: Span,
}

/// Nanoseconds that `bytes` take at `bits_per_second`, rounded down as the papers' simulator does.
fn wire_time(bytes: u64, bits_per_second: u64) -> Span {
    Span::from_nanos((u128::from(bytes) * 8_000_000_000 / u128::from(bits_per_second.max(1))) as u64)
}

impl Config {
    /// The papers' constants for `protocol`, with disks of `disk` bytes per second.
    #[must_use]
    pub const fn paper(protocol: Protocol, disk: u64) -> Self {
        Self {
            protocol,
            link: 9_900_000_000,
            data_percent: if protocol.negotiates() { 90 } else { 100 },
            frame: 9_000,
            trip: Span::from_micros(1),
            control: if protocol.negotiates() { 300 } else { 100 },
            copies: 3,
            depth: 1,
            initiators: 1,
            disk,
            disk_queue: 256 << 10,
            stretch: if matches!(protocol, Protocol::ReplicastH) { 110 } else { 140 },
            placement: if matches!(protocol, Protocol::ReplicastH) { Placement::Hole } else { Placement::Behind },
            choice: Choice::Neighbours,
            guard: None,
            widen_idle: true,
            least_backlog: false,
            overlap: false,
            choosy: false,
            double_booking: false,
        }
    }

    /// Bits per second of payload.
    #[must_use]
    pub const fn data_rate(&self) -> u64 {
        self.link / 100 * self.data_percent
    }

    /// Bits per second of control messages.
    #[must_use]
    pub const fn control_rate(&self) -> u64 {
        if self.data_percent >= 100 { self.link } else { self.link / 100 * (100 - self.data_percent) }
    }

    /// Chunks that may wait for the disk.
    #[must_use]
    pub const fn queue_chunks(&self, bytes: u32) -> u64 {
        let chunks = self.disk_queue / if bytes == 0 { 1 } else { bytes };
        if chunks < 2 { 2 } else { chunks as u64 }
    }

    /// The times of a transfer of `bytes`, with the papers' rules for the lengths of windows: offered is `stretch`
    /// percent of the transfer and a trip, reserved is the transfer and a frame; short windows are made a frame longer
    /// than what is reserved. Replicast-M reserves a third of the stretch of large chunks besides, and Replicast-H all
    /// but a trip of what was offered.
    #[must_use]
    pub fn timing(&self, bytes: u32) -> Timing {
        let data = self.data_rate();
        let frame = wire_time(u64::from(self.frame), data);
        let net = wire_time(u64::from(bytes), data);
        let pdu = wire_time(u64::from(self.control), self.control_rate());
        let disk = Span::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(self.disk.max(1))) as u64);
        let hybrid = self.protocol == Protocol::ReplicastH;
        let mut window = (net + self.trip).percent(self.stretch);
        let mut reserve = net + self.guard.unwrap_or(frame);
        if let Some(guard) = self.guard {
            window = window.max(reserve + guard);
            return Timing { bytes, pdu, frame, net, disk, window, reserve };
        }
        if hybrid && window < frame.times(3) {
            window = (net + self.trip).percent(self.stretch + 10);
        }
        if window < reserve {
            window = reserve + frame;
        }
        if hybrid {
            reserve = window.less(self.trip);
        } else {
            let spare = window.less(reserve).as_nanos() / frame.as_nanos().max(1);
            if spare > 4 {
                reserve = net + frame.times(spare / 3);
            }
        }
        Timing { bytes, pdu, frame, net, disk, window, reserve }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The constants that the papers' simulator prints.
    #[test]
    fn times_are_those_of_the_papers() {
        let sizes = [16 << 10, 128 << 10, 1 << 20];
        let times = |protocol, disk: u64| {
            let config = Config::paper(protocol, disk << 20);
            sizes.map(|bytes| {
                let t = config.timing(bytes);
                [t.pdu, t.frame, t.net, t.window, t.reserve, t.disk].map(Span::as_nanos)
            })
        };
        let [m, h] = [Protocol::ReplicastM, Protocol::ReplicastH].map(|protocol| times(protocol, 400));
        assert_eq!(m[0], [2_424, 8_080, 14_710, 30_870, 22_790, 39_062]);
        assert_eq!(m[1], [2_424, 8_080, 117_685, 166_159, 125_765, 312_500]);
        assert_eq!(m[2], [2_424, 8_080, 941_482, 1_319_474, 1_062_682, 2_500_000]);
        assert_eq!(h.map(|t| t[3..5].to_vec()), [[30_870, 29_870], [130_553, 129_553], [1_036_730, 1_035_730]]);
        let ccp = times(Protocol::UchCcp, 1_000);
        assert_eq!(ccp.map(|t| t[..3].to_vec()), [[80, 7_272, 13_239], [80, 7_272, 105_916], [80, 7_272, 847_334]]);
        assert_eq!(ccp.map(|t| t[5]), [15_625, 125_000, 1_000_000]);
    }
}
