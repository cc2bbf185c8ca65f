//! Drawing a whole scenario from a seed. Some faults are switched off entirely in some seeds, so that each also runs
//! without the noise of the others.

use protocol::cleaner;
use protocol::config::{Config, Reads, Transport};
use protocol::initiator;
use protocol::rng::Rng;
use protocol::target::Bug;
use protocol::time::Span;
use protocol::wire;
use store::backend::Spot;

use crate::cleaning::Cleaning;
use crate::disks::{Disks, Spoil};
use crate::layout::Layout;
use crate::object::Objects;

/// Time in which faults happen.
pub(crate) const STORM: Span = Span::from_millis(400);
/// Puts before the heal, and as many gets.
const OPERATIONS: u32 = 200;
/// What the weights of targets in a map are of.
const CAPACITY: u64 = 8 << 20;

/// A defect that is planted to prove that the checkers bite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A defect of the target machine.
    Target(Bug),
    /// A defect of the initiator machine.
    Initiator(initiator::Bug),
    /// A defect of the steps of a cleaner.
    Cleaner(cleaner::Bug),
    /// A defect of what judges other nodes' sessions.
    Session(wire::Bug),
    /// A restart forgets the newest records of the index.
    LoseIndexTail,
    /// A disk whose sync failed says that it went well.
    IgnoreFailedSync,
    /// A defect of the object layer.
    Object(object::Bug),
    /// A cleaner reads what refers to chunks at once after its mark.
    HurryCleaner,
    /// A node that was restarted uses the first map, whatever it heard of.
    OldMapAfterRestart,
    /// A defect of the store.
    Store(store::Bug),
    /// The list of a name's versions does not say who was silent.
    HideSilence,
    /// The list of a name's versions says of each that it has all its copies.
    ManyHolders,
}

impl Planted {
    /// Every defect.
    pub const ALL: [Self; 52] = [
        Self::Target(Bug::AckBeforeDurable),
        Self::Target(Bug::DropAck),
        Self::Target(Bug::SkipHashCheck),
        Self::Target(Bug::OverlapWindows),
        Self::Target(Bug::TrustGrants),
        Self::Target(Bug::KeepGrants),
        Self::Target(Bug::ClaimGranted),
        Self::Target(Bug::NeverExpire),
        Self::Target(Bug::ForgetPromise),
        Self::Initiator(initiator::Bug::NeverContent),
        Self::Session(wire::Bug::TrustSequences),
        Self::Session(wire::Bug::BelieveSessions),
        Self::Session(wire::Bug::BelieveBefore),
        Self::LoseIndexTail,
        Self::IgnoreFailedSync,
        Self::HurryCleaner,
        Self::OldMapAfterRestart,
        Self::Target(Bug::TakeOldMap),
        Self::Target(Bug::VouchOldMap),
        Self::Initiator(initiator::Bug::TrustTheRest),
        Self::Initiator(initiator::Bug::IgnoreDomains),
        Self::Initiator(initiator::Bug::KeepMap),
        Self::Initiator(initiator::Bug::KeepCopies),
        Self::Initiator(initiator::Bug::KeepHolders),
        Self::Store(store::Bug::SkipSync),
        Self::Store(store::Bug::RetrySync),
        Self::Store(store::Bug::RollUnsynced),
        Self::Store(store::Bug::TrustCache),
        Self::Store(store::Bug::TrustClean),
        Self::Store(store::Bug::ResumeOverTorn),
        Self::Store(store::Bug::SkipTombstones),
        Self::Store(store::Bug::RemoveBeforeSync),
        Self::Store(store::Bug::DropTombstones),
        Self::Store(store::Bug::NameUnpromised),
        Self::Store(store::Bug::ForgetUnread),
        Self::Store(store::Bug::KeepBad),
        Self::Store(store::Bug::StaleStamps),
        Self::Store(store::Bug::ClearTail),
        Self::Store(store::Bug::NoReserve),
        Self::Store(store::Bug::MiscountAhead),
        Self::HideSilence,
        Self::ManyHolders,
        Self::Object(object::Bug::HastyRow),
        Self::Object(object::Bug::ForgetRemoval),
        Self::Object(object::Bug::ForgetWithdrawal),
        Self::Object(object::Bug::NoLimit),
        Self::Object(object::Bug::SkipRenewal),
        Self::Object(object::Bug::OwnTime),
        Self::Object(object::Bug::SkipUploads),
        Self::Object(object::Bug::TrustEnded),
        Self::Cleaner(cleaner::Bug::IgnoreSilence),
        Self::Target(Bug::ObeyUnknown),
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Target(Bug::AckBeforeDurable) => "ack-before-durable",
            Self::Target(Bug::DropAck) => "drop-ack",
            Self::Target(Bug::SkipHashCheck) => "skip-hash-check",
            Self::Target(Bug::OverlapWindows) => "overlap-windows",
            Self::Target(Bug::TrustGrants) => "trust-grants",
            Self::Target(Bug::KeepGrants) => "keep-grants",
            Self::Target(Bug::ClaimGranted) => "claim-granted",
            Self::Target(Bug::NeverExpire) => "never-expire",
            Self::Target(Bug::ForgetPromise) => "forget-promise",
            Self::Target(Bug::ObeyUnknown) => "obey-unknown",
            Self::Cleaner(cleaner::Bug::IgnoreSilence) => "ignore-silence",
            Self::Initiator(initiator::Bug::NeverContent) => "never-content",
            Self::Session(wire::Bug::TrustSequences) => "trust-sequences",
            Self::Session(wire::Bug::BelieveSessions) => "believe-sessions",
            Self::Session(wire::Bug::BelieveBefore) => "believe-before",
            Self::Initiator(initiator::Bug::TrustTheRest) => "trust-the-rest",
            Self::Initiator(initiator::Bug::IgnoreDomains) => "ignore-domains",
            Self::HurryCleaner => "hurry-cleaner",
            Self::OldMapAfterRestart => "old-map-after-restart",
            Self::Target(Bug::TakeOldMap) => "take-old-map",
            Self::Target(Bug::VouchOldMap) => "vouch-old-map",
            Self::Initiator(initiator::Bug::KeepMap) => "keep-map",
            Self::Initiator(initiator::Bug::KeepCopies) => "keep-copies",
            Self::Initiator(initiator::Bug::KeepHolders) => "keep-holders",
            Self::Initiator(initiator::Bug::ForgetEarlier) => "forget-earlier",
            Self::HideSilence => "hide-silence",
            Self::ManyHolders => "many-holders",
            Self::Object(object::Bug::HastyRow) => "hasty-row",
            Self::Object(object::Bug::ForgetRemoval) => "forget-removal",
            Self::Object(object::Bug::ForgetWithdrawal) => "forget-withdrawal",
            Self::Object(object::Bug::NoLimit) => "no-limit",
            Self::Object(object::Bug::SkipRenewal) => "skip-renewal",
            Self::Object(object::Bug::OwnTime) => "own-time",
            Self::Object(object::Bug::SkipUploads) => "skip-uploads",
            Self::Object(object::Bug::TrustEnded) => "trust-ended",
            Self::LoseIndexTail => "lose-index-tail",
            Self::IgnoreFailedSync => "ignore-failed-sync",
            Self::Store(bug) => bug.name(),
        }
    }
}

/// Chances of network faults, per thousand datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Lost.
    pub loss: u64,
    /// Delivered twice.
    pub duplicate: u64,
    /// Delayed by up to a millisecond more.
    pub reorder: u64,
    /// One bit flipped.
    pub corrupt: u64,
}

/// A way in which a disk fails for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Syncs fail.
    FailSync,
    /// The next sync fails.
    FailOneSync,
    /// Reads fail.
    FailRead,
    /// Writes fail half-way.
    FailWrite,
    /// New segments find no room.
    Full,
}

/// Everything that a run depends on.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Targets of the first map: their ids are 1 and up.
    pub targets: u32,
    /// Initiators.
    pub initiators: u32,
    /// Where they are, and what happens to them by whole domains.
    pub layout: Layout,
    /// Puts in all, and as many gets.
    pub operations: u32,
    /// Largest chunk, bytes.
    pub largest: u64,
    /// Settings of the machines.
    pub config: Config,
    /// Link rate, bytes per second.
    pub link: u64,
    /// Disk rate, bytes per second, and the time of a sync.
    pub disk: (u64, Span),
    /// A target whose disk is so many times slower.
    pub slow: Option<(u32, u64)>,
    /// Largest clock drift, parts per million.
    pub drift: u64,
    /// Network faults before the heal.
    pub faults: Faults,
    /// Datagrams that somebody recorded and plays back before the heal, per thousand that are sent.
    pub replays: u64,
    /// Crashes of targets before the heal.
    pub crashes: u32,
    /// Crashes of initiators before the heal.
    pub initiator_crashes: u32,
    /// Partitions of one target before the heal.
    pub partitions: u32,
    /// When the switch begins to drop multicast, and when it ends.
    pub mute: Option<(Span, Span)>,
    /// Disks that fail for a while before the heal.
    pub troubles: Vec<Trouble>,
    /// Most writes that one sync makes durable.
    pub commit: usize,
    /// Bytes that a target may hold.
    pub capacity: u64,
    /// Disks, and what goes wrong with them.
    pub disks: Disks,
    /// Cleaners of chunks that initiators put, and how these are forgotten.
    pub cleaning: Option<Cleaning>,
    /// Gateways with objects and files, in the place of initiators with chunks.
    pub objects: Option<Objects>,
    /// A planted defect.
    pub planted: Option<Planted>,
}

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn draw(seed: u64, planted: Option<Planted>) -> Self {
        let mut rng = Rng::new(seed).fork(1);
        let transports = [Transport::ReplicastM, Transport::ReplicastM, Transport::ReplicastH, Transport::Hash];
        let link = [50_000_000, 125_000_000, 1_250_000_000][rng.below(3) as usize];
        let disk_rate = [20_000_000, 100_000_000, 400_000_000][rng.below(3) as usize];
        let per_datagram = [500, 1_400, 8_900][rng.below(3) as usize];
        let transport = transports[rng.below(4) as usize];
        let mut leader = Rng::new(seed).fork(10);
        let (led, lead_gets) = (transport != Transport::Hash && leader.chance(1, 3), leader.chance(2, 3));
        let mut gets = Rng::new(seed).fork(12);
        let config = Config {
            transport: if led { Transport::Leader } else { transport },
            lead_gets,
            choosy: Rng::new(seed).fork(11).chance(1, 3),
            multicast: rng.chance(3, 4),
            depth: 1 + rng.below(4) as usize,
            link_rate: link,
            disk_rate,
            per_datagram,
            quantum: per_datagram * (1 + rng.below(16) as usize),
            receive_buffer: 64 << 10 << rng.below(3),
            guard: Span::from_micros(5 + rng.below(30)),
            tentative: Span::from_millis(5 + rng.below(10)),
            max_wait: Span::from_millis(200),
            bid_timeout: Span::from_millis(5 + rng.below(10)),
            late: Span::from_millis(2 + rng.below(8)),
            give_up: Span::from_secs(4),
            scrub_interval: Span::from_millis(20 + rng.below(200)),
            scrub_bytes: 16 << 10,
            reads: if gets.chance(1, 3) { Reads::Best } else { Reads::First },
            hedge_percent: if gets.chance(1, 2) { 1 + gets.below(100) as u8 } else { 0 },
            ..Config::default()
        };
        let mut some = |most: u64| if rng.chance(1, 2) { 1 + rng.below(most) } else { 0 };
        let faults = Faults { loss: some(40), duplicate: some(40), reorder: some(100), corrupt: some(30) };
        let (crashes, initiator_crashes) = (some(6) as u32, some(2) as u32);
        let (partitions, flips, drift) = (some(4) as u32, some(4), some(200));
        let slow = (some(1) == 1).then(|| (rng.below(9) as u32, 5 + rng.below(40)));
        let copies = if rng.chance(1, 6) { 2 } else { 3 };
        let mut layout = Layout::draw(seed, copies, CAPACITY);
        let mut disks = Rng::new(seed).fork(8);
        let troubles = if disks.chance(1, 2) { 1 + disks.below(4) } else { 0 };
        let ways = [Trouble::FailSync, Trouble::FailWrite, Trouble::Full, Trouble::FailOneSync, Trouble::FailRead];
        let troubles = (0..troubles).map(|_| ways[disks.below(5) as usize]).collect();
        let mut switch = Rng::new(seed).fork(13);
        let mute = (config.multicast && switch.chance(1, 4)).then(|| {
            let begins = switch.below(200);
            (Span::from_millis(begins), Span::from_millis(begins + 50 + switch.below(300)))
        });
        let mut recorder = Rng::new(seed).fork(14);
        let replays = if recorder.chance(1, 2) { 1 + recorder.below(40) } else { 0 };
        let objects = Objects::draw(seed);
        let config = Config { give_up: objects.map_or(config.give_up, |objects| objects.patience), ..config };
        let chunks = objects.is_none();
        let cleaning = if chunks { Cleaning::draw(seed) } else { None };
        if !chunks {
            layout.keep_places(seed);
        }
        let calm = cleaning.is_some_and(|cleaning| cleaning.calm);
        let (crashes, partitions) = if calm { (0, 0) } else { (crashes, partitions) };
        if calm {
            layout.calm();
        }
        // The daemon's limit, and two that are reached here.
        let commit = [1, 3, 64][disks.below(3) as usize];
        let largest = [1_000, 4_000, 9_000][rng.below(3) as usize];
        // Small ones are several to a segment.
        let largest = cleaning.filter(|cleaning| cleaning.small).map_or(largest, |_| 1_000);
        let targets = layout.maps[0].targets.len() as u32;
        let volume = u64::from(OPERATIONS) * u64::from(copies) * (largest / 2 + 100) / u64::from(targets);
        let mut disks = Disks::draw(seed, volume, largest);
        disks.spoils.extend((0..flips).map(|_| Spoil::Rot(Spot::Anywhere)));
        if cleaning.is_some() {
            disks.keep_moving(seed);
        }
        if calm {
            (disks.stops, disks.restless) = (0, 0);
        }
        if !chunks {
            disks.hold_objects(seed);
            if layout.loses_all_but_one() {
                disks.spoils.clear();
            }
        }
        let mut scenario = Self {
            seed,
            targets,
            initiators: if chunks { 3 } else { 0 },
            layout,
            operations: cleaning.map_or(if chunks { OPERATIONS } else { 0 }, |_| OPERATIONS * 2 / 3),
            largest,
            config,
            link,
            disk: (disk_rate, Span::from_micros(50 + rng.below(400))),
            slow,
            drift,
            faults,
            replays,
            crashes,
            initiator_crashes: if chunks { initiator_crashes } else { 0 },
            partitions,
            mute,
            troubles,
            commit,
            capacity: disks.capacity,
            disks,
            cleaning,
            objects,
            planted,
        };
        scenario.wait_for_the_slowest();
        scenario
    }

    /// Whoever gives up before the slowest disk has written, and tries again, leaves it more to write than it ever can.
    fn wait_for_the_slowest(&mut self) {
        let (Some(objects), Some((_, times))) = (&mut self.objects, self.slow) else { return };
        let least = self.disk.1.times(times * 20);
        objects.patience = objects.patience.max(least);
        self.config.give_up = objects.patience;
    }
}
