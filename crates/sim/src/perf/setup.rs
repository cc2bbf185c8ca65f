//! What a run consists of.

use protocol::paper::Config;
use protocol::time::Span;

use super::product::{Cpu, DiskTimes, Profile};

/// One cluster, its load, and how it is measured.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Protocol and constants.
    pub protocol: Config,
    /// The product's own machines instead of the papers'.
    pub product: Option<Box<Profile>>,
    /// Processors and disks as the product's machines have them, for those of the papers that send by unicast.
    pub costs: Option<Costs>,
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
    /// What the papers' simulator did that a simulator should not.
    pub quirks: Quirks,
    /// Keep the latency of every chunk in order.
    pub keep_series: bool,
    /// Decides everything that is left to chance.
    pub seed: u64,
}

/// What nodes need beside the network and the rate of their disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Processor time.
    pub cpu: Cpu,
    /// Time of disks.
    pub disk: DiskTimes,
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

impl Setup {
    /// The papers' run of `protocol`: depth one, from an empty cluster, three copies in groups of nine.
    #[must_use]
    pub fn paper(protocol: Config, initiators: u32, chunk: u32, length: Span) -> Self {
        Self {
            protocol,
            product: None,
            costs: None,
            initiators,
            targets: 90,
            group: 9,
            sizes: vec![(chunk, 1)],
            load: Load::Closed { depth: 1 },
            slow: Slow::default(),
            warm_up: Span::ZERO,
            length,
            mode: Mode::Transfer,
            quirks: Quirks::default(),
            keep_series: false,
            seed: 1,
        }
    }

    /// How the protocol is called.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.product.as_ref().map_or_else(|| self.protocol.protocol.name(), |profile| profile.name())
    }

    /// Whether neighbouring groups share targets.
    #[must_use]
    pub fn shares_targets(&self) -> bool {
        self.product.as_ref().map_or(self.protocol.overlap, |profile| profile.overlap)
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
        if let Some(profile) = &self.product {
            return profile.bounds(self);
        }
        let (copies, size) = (f64::from(self.protocol.copies), self.mean_size());
        let targets = f64::from(self.targets);
        let sent = if self.protocol.protocol == protocol::paper::Protocol::ReplicastM { 1.0 } else { copies };
        let bytes = self.protocol.data_rate() as f64 / 8.0;
        Bounds {
            disk: targets / copies * self.protocol.disk as f64 / size,
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
