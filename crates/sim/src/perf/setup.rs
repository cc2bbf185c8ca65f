//! What a run consists of.

pub(super) mod profile;
pub(super) mod repair;

use paper::{Config, Protocol};
use protocol::time::Span;

use self::profile::Profile;

/// One cluster, its load, and how it is measured.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The machines, and what they are set to.
    pub machines: Machines,
    /// Initiators.
    pub initiators: u32,
    /// Targets; a multiple of the copies.
    pub targets: u32,
    /// Targets in a negotiating group; a multiple of the copies.
    pub group: u32,
    /// Chunk sizes in bytes, each with its weight.
    pub sizes: Vec<(u32, u32)>,
    /// How chunks come.
    pub load: Load,
    /// Slow disks.
    pub slow: Slow,
    /// Time before measuring begins.
    pub warm_up: Span,
    /// Time that is measured.
    pub length: Span,
    /// How payload is carried.
    pub mode: Mode,
    /// Keep the latency of every chunk in order.
    pub keep_series: bool,
    /// Decides everything that is left to chance.
    pub seed: u64,
}

/// Whose machines are run, and on what.
#[derive(Clone, Debug)]
pub enum Machines {
    /// The papers' and the rivals', on the papers' network.
    Paper(Box<Paper>),
    /// The product's own, on a network with queues.
    Product(Box<Profile>),
}

/// A run of the papers' machines.
#[derive(Clone, Debug)]
pub struct Paper {
    /// Protocol and constants.
    pub config: Config,
    /// Processors and disks as the product's machines have them, for those that send by unicast.
    pub costs: Option<Costs>,
    /// What the papers' simulator did that a simulator should not.
    pub quirks: Quirks,
}

/// What nodes need beside the network and the rate of their disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Processor time.
    pub cpu: Cpu,
    /// Time of disks.
    pub disk: DiskTimes,
}

/// Processor time that a node needs. One thread handles its messages and payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// For one control message, sent or received.
    pub message: Span,
    /// For 1,024 bytes of payload, sent or received.
    pub kib: Span,
    /// Bytes hashed in a second; 0 is no time.
    pub hash: u64,
}

impl Cpu {
    /// Nanoseconds for so many bytes of payload.
    pub(super) const fn payload(&self, bytes: u64) -> u64 {
        self.kib.as_nanos() * bytes / 1024
    }

    /// Nanoseconds for so many bytes of payload, or for a control message.
    pub(super) fn takes(&self, payload: Option<u64>) -> u64 {
        payload.map_or(self.message.as_nanos(), |bytes| self.payload(bytes))
    }
}

/// What disks need beside the time that their rate makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskTimes {
    /// For each read or write.
    pub operation: Span,
    /// For each sync, which all writes that wait share.
    pub sync: Span,
    /// Whether chunks are hashed while the disk works on those before them, as in the daemon, instead of by the thread that
    /// writes.
    pub hash_ahead: bool,
}

/// How chunks come to the initiators.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Each initiator always has this many puts under way.
    Closed {
        /// How many.
        depth: u32,
    },
    /// Poisson, at this mean rate over the cluster.
    Open {
        /// Chunks per second.
        chunks_per_second: f64,
    },
}

/// Disks that are slower than the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slow {
    /// One disk in so many; 0 is none.
    pub one_in: u32,
    /// So many times slower.
    pub times: u32,
}

impl Slow {
    /// How many times slower the disk of target `n` is: 1 for one that is not.
    pub(super) const fn of(&self, n: u32) -> u32 {
        if self.one_in > 0 && n.is_multiple_of(self.one_in) && self.times > 0 { self.times } else { 1 }
    }
}

/// How payload is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A transfer into a reserved window is one event. (Flows that share a link are always carried frame by frame.)
    Transfer,
    /// Every frame is an event.
    Frame,
}

/// Peculiarities of the papers' simulator that make its figures differ from what it simulates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    /// What is completed in the last hundredth of the time is not counted, but the whole time divides.
    pub last_hundredth: bool,
    /// A disk's queued work counts as done.
    pub scheduled_work: bool,
    /// Every frame leaves up to so much late.
    pub late_frames: Span,
    /// Every initiator of a closed loop begins up to so much after the run does, and not all at the same instant.
    pub staggered_start: Span,
}

impl Machines {
    /// Copies of a chunk.
    #[must_use]
    pub fn copies(&self) -> u8 {
        match self {
            Self::Paper(paper) => paper.config.copies,
            Self::Product(profile) => profile.copies,
        }
    }

    /// Bytes per second of a disk.
    #[must_use]
    pub fn disk(&self) -> u64 {
        match self {
            Self::Paper(paper) => paper.config.disk,
            Self::Product(profile) => profile.disk,
        }
    }

    /// Bits per second of a port.
    pub(super) fn link(&self) -> u64 {
        match self {
            Self::Paper(paper) => paper.config.link,
            Self::Product(profile) => profile.link,
        }
    }

    /// Puts and gets that an initiator works on at once.
    pub(super) fn set_depth(&mut self, depth: usize) {
        match self {
            Self::Paper(paper) => paper.config.depth = depth,
            Self::Product(profile) => profile.config.depth = depth,
        }
    }

    pub(super) fn costs(&self) -> Option<&Costs> {
        match self {
            Self::Paper(paper) => paper.costs.as_ref(),
            Self::Product(profile) => Some(&profile.costs),
        }
    }
}

impl Setup {
    /// The papers' run of `protocol`: depth one, from an empty cluster, three copies in groups of nine.
    #[must_use]
    pub fn paper(config: Config, initiators: u32, chunk: u32, length: Span) -> Self {
        let paper = Paper { config, costs: None, quirks: Quirks::default() };
        Self::new(Machines::Paper(Box::new(paper)), initiators, chunk, length)
    }

    /// These machines in the papers' cluster.
    pub(super) fn new(machines: Machines, initiators: u32, chunk: u32, length: Span) -> Self {
        Self {
            machines,
            initiators,
            targets: 90,
            group: 9,
            sizes: vec![(chunk, 1)],
            load: Load::Closed { depth: 1 },
            slow: Slow::default(),
            warm_up: Span::ZERO,
            length,
            mode: Mode::Transfer,
            keep_series: false,
            seed: 1,
        }
    }

    /// Targets, initiators, and the lanes of aggregators.
    pub(super) fn nodes(&self) -> u32 {
        let lanes = self.product().map_or(0, |profile| profile.aggregators.saturating_mul(profile.lanes.max(1)));
        self.targets.saturating_add(self.initiators).saturating_add(lanes)
    }

    /// What the papers' machines are set to; `None` when the run is of the product's.
    #[must_use]
    pub fn papers(&self) -> Option<&Paper> {
        match &self.machines {
            Machines::Paper(paper) => Some(paper),
            Machines::Product(_) => None,
        }
    }

    /// What the product's machines are set to; `None` when the run is of the papers'.
    #[must_use]
    pub fn product(&self) -> Option<&Profile> {
        match &self.machines {
            Machines::Paper(_) => None,
            Machines::Product(profile) => Some(profile),
        }
    }

    /// How the protocol is called.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.machines {
            Machines::Paper(paper) => paper.config.protocol.name().to_owned(),
            Machines::Product(profile) => profile.name(),
        }
    }

    /// Whether neighbouring groups share targets.
    #[must_use]
    pub fn shares_targets(&self) -> bool {
        match &self.machines {
            Machines::Paper(paper) => paper.config.overlap,
            Machines::Product(profile) => profile.overlap,
        }
    }

    /// The mean chunk size in bytes.
    #[must_use]
    pub fn mean_size(&self) -> f64 {
        let weight: f64 = self.sizes.iter().map(|(_, w)| f64::from(*w)).sum();
        self.sizes.iter().map(|(size, w)| f64::from(*size) * f64::from(*w)).sum::<f64>() / weight.max(1.0)
    }

    /// Chunks per second that disks could write at best, that the targets' links could carry, and that the initiators'
    /// links could send.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        let config = match &self.machines {
            Machines::Paper(paper) => &paper.config,
            Machines::Product(profile) => return profile.bounds(self),
        };
        let (copies, size) = (f64::from(config.copies), self.mean_size());
        let targets = f64::from(self.targets);
        let sent = if config.protocol == Protocol::ReplicastM { 1.0 } else { copies };
        let bytes = config.data_rate() as f64 / 8.0;
        Bounds {
            disk: targets / copies * config.disk as f64 / size,
            link: targets / copies * bytes / size,
            uplink: f64::from(self.initiators) / sent * bytes / size,
        }
    }
}

/// Upper bounds in chunks per second. Slow disks are counted as if they were not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The disks.
    pub disk: f64,
    /// The links into the targets.
    pub link: f64,
    /// The links out of the initiators.
    pub uplink: f64,
}

impl Bounds {
    /// The lowest, and its name.
    #[must_use]
    pub fn lowest(&self) -> (f64, &'static str) {
        [(self.disk, "disk"), (self.link, "target link"), (self.uplink, "initiator link")]
            .into_iter()
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap_or((self.disk, "disk"))
    }
}
