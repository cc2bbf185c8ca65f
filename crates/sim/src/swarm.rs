//! Drawing a whole scenario from a seed. Some faults are switched off entirely in some seeds, so that each also runs
//! without the noise of the others.

use protocol::config::{Config, GetChoice};
use protocol::id::ClusterId;
use protocol::limits;
use protocol::redundancy::Redundancy;
use protocol::rng::Rng;
use protocol::time::Span;
use protocol::transport::Transport;
use store::backend::Spot;

use crate::aggregators::Aggregators;
use crate::cleaning::Cleaning;
use crate::disks::{Disks, Spoil};
use crate::governing::Governing;
use crate::object::Objects;
use crate::planted::PlantedBug;
use crate::topology::Topology;

/// By which codes some worlds keep what is put: the first where the others need more failure domains than there are. More often with two
/// fragments of parity, of which there is more to be wrong.
const CODES: [&str; 6] = ["2+1", "3+1", "2+2", "3+2", "2+2", "3+2"];

/// Time in which faults happen.
pub(crate) const STORM: Span = Span::from_millis(400);
/// Puts before the heal, and as many gets.
const OPERATIONS: u32 = 200;
/// What the weights of targets in a map are of.
const CAPACITY: u64 = 8 << 20;

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
    /// What happens to connections, where they carry everything.
    pub connections: Option<Connections>,
}

impl Faults {
    const fn of_datagrams([loss, duplicate, reorder, corrupt]: [u64; 4]) -> Self {
        Self { loss, duplicate, reorder, corrupt, connections: None }
    }
}

/// Chances of faults of connections, per thousand messages. They deliver in order, but that a port's queue may overflow, and
/// that what stalled at the heal is overtaken: as by what goes over another connection.
#[derive(Clone, Copy, Debug)]
pub struct Connections {
    /// It and what comes after it wait, for up to 300 ms.
    pub stalls: u64,
    /// The connection breaks: it is lost, and what is sent until there is another one, up to 300 ms later.
    pub breaks: u64,
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
    pub topology: Topology,
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
    /// Gateways with objects, in the place of initiators with chunks.
    pub objects: Option<Objects>,
    /// Half of the payload chunks that initiators put are kept so, and not as the map says.
    pub redundancy: Option<Redundancy>,
    /// The code by which half of the chunks are kept that are put.
    pub code: Option<Redundancy>,
    /// Those that compute parity in flight.
    pub aggregators: Aggregators,
    /// Gateways that propose cluster maps; then all maps but the first are theirs.
    pub governing: Option<Governing>,
    /// A planted defect.
    pub planted: Option<PlantedBug>,
}

/// How the protocol is set, and the rates of links and of disks.
fn draw_config(seed: u64, rng: &mut Rng) -> (Config, u64, u64) {
    let transports = [Transport::REPLICAST_M, Transport::REPLICAST_M, Transport::REPLICAST_H, Transport::HASH];
    let link = [50_000_000, 125_000_000, 1_250_000_000][rng.below(3) as usize];
    let disk_rate = [20_000_000, 100_000_000, 400_000_000][rng.below(3) as usize];
    let per_datagram = [500, 1_400, 8_900][rng.below(3) as usize];
    let transport = transports[rng.below(4) as usize];
    let mut leader = Rng::new(seed).fork(10);
    let (is_led, lead_gets) = (transport != Transport::HASH && leader.chance(1, 3), leader.chance(2, 3));
    let mut gets = Rng::new(seed).fork(12);
    let mut census = Rng::new(seed).fork(16);
    let stewards = census.chance(2, 3);
    let often = |rng: &mut Rng| if stewards { Span::from_millis(20 + rng.below(200)) } else { Span::ZERO };
    let mut silence = Rng::new(seed).fork(17);
    let mut parts = Rng::new(seed).fork(18);
    let part = if parts.chance(1, 2) { 100 + parts.below(3_000) as u32 } else { limits::CHUNK_BYTES };
    let config = Config {
        transport: if is_led { Transport::LEADER } else { transport },
        lead_gets,
        choosy: Rng::new(seed).fork(11).chance(1, 3),
        multicast: rng.chance(3, 4),
        depth: 1 + rng.below(4) as usize,
        link_rate: link,
        per_datagram,
        quantum: per_datagram * (1 + rng.below(16) as usize),
        receive_buffer: 64 << 10 << rng.below(3),
        part,
        guard: Span::from_micros(5 + rng.below(30)),
        tentative: Span::from_millis(5 + rng.below(10)),
        max_wait: Span::from_millis(200),
        bid_timeout: Span::from_millis(5 + rng.below(10)),
        late: Span::from_millis(2 + rng.below(8)),
        down: if silence.chance(3, 4) { 6 + silence.below(10) as u8 } else { 60 },
        give_up: Span::from_secs(4),
        scrub_interval: Span::from_millis(20 + rng.below(200)),
        scrub_bytes: 16 << 10,
        get_choice: if gets.chance(1, 3) { GetChoice::Best } else { GetChoice::FirstGood },
        census_interval: often(&mut census),
        watch_interval: often(&mut census),
        // With one, two stewards often look at a chunk at the same time.
        steward_after: if census.chance(1, 3) { 1 } else { 3 },
        hedge_percent: if gets.chance(1, 2) { 1 + gets.below(100) as u8 } else { 0 },
        ..Config::default()
    };
    (config, link, disk_rate)
}

/// When the switch drops multicast, and when it carries it again.
fn draw_mute(seed: u64, config: &Config) -> Option<(Span, Span)> {
    let mut switch = Rng::new(seed).fork(13);
    (config.multicast && switch.chance(1, 4)).then(|| {
        let begins = switch.below(200);
        (Span::from_millis(begins), Span::from_millis(begins + 50 + switch.below(300)))
    })
}

/// Of a thousand datagrams, how many somebody records and plays back.
fn draw_replays(seed: u64) -> u64 {
    let mut recorder = Rng::new(seed).fork(14);
    if recorder.chance(1, 2) { 1 + recorder.below(40) } else { 0 }
}

/// In a third of the seeds empty targets join others that are neither full nor nearly empty.
fn draw_joins(seed: u64, volume: u64, topology: &mut Topology, disks: &mut Disks) -> bool {
    let mut joins = Rng::new(seed).fork(37);
    let join = joins.chance(1, 3);
    if join {
        disks.fill_partly(&mut joins, volume);
        topology.join(&mut joins, CAPACITY);
    }
    join
}

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn draw(seed: u64, planted: Option<PlantedBug>) -> Self {
        let mut rng = Rng::new(seed).fork(1);
        let (config, link, disk_rate) = draw_config(seed, &mut rng);
        let mut some = |most: u64| if rng.chance(1, 2) { 1 + rng.below(most) } else { 0 };
        let faults = Faults::of_datagrams([some(40), some(40), some(100), some(30)]);
        let (crashes, initiator_crashes) = (some(6) as u32, some(2) as u32);
        let (partitions, flips, drift) = (some(4) as u32, some(4), some(200));
        let slow = (some(1) == 1).then(|| (rng.below(9) as u32, 5 + rng.below(40)));
        let copies = if rng.chance(1, 6) { 2 } else { 3 };
        let mut topology = Topology::draw(seed, copies, CAPACITY);
        let mut disks = Rng::new(seed).fork(8);
        let troubles = if disks.chance(1, 2) { 1 + disks.below(4) } else { 0 };
        let ways = [Trouble::FailSync, Trouble::FailWrite, Trouble::Full, Trouble::FailOneSync, Trouble::FailRead];
        let troubles = (0..troubles).map(|_| ways[disks.below(5) as usize]).collect();
        let mute = draw_mute(seed, &config);
        let replays = draw_replays(seed);
        let objects = Objects::draw(seed);
        let config = Config { give_up: objects.map_or(config.give_up, |objects| objects.patience), ..config };
        let chunks = objects.is_none();
        let cleaning = chunks.then(|| Cleaning::draw(seed)).flatten();
        objects.iter().for_each(|_| topology.keep_for_clients(seed));
        let calm = cleaning.is_some_and(|cleaning| cleaning.calm);
        let (crashes, partitions) = if calm { (0, 0) } else { (crashes, partitions) };
        if calm {
            topology.calm();
        }
        // The daemon's limit, and two that are reached here.
        let commit = [1, 3, 64][disks.below(3) as usize];
        let largest = [1_000, 4_000, 9_000][rng.below(3) as usize];
        // Small ones are several to a segment.
        let largest = cleaning.filter(|cleaning| cleaning.small).map_or(largest, |_| 1_000);
        let targets = topology.maps[0].targets.len() as u32;
        let volume = u64::from(OPERATIONS) * u64::from(copies) * (largest / 2 + 100) / u64::from(targets);
        let mut disks = Disks::draw(seed, volume, largest);
        disks.spoils.extend((0..flips).map(|_| Spoil::Rot(Spot::Anywhere)));
        let may_join = chunks && cleaning.is_none() && config.census_interval > Span::ZERO;
        let joins = may_join && draw_joins(seed, volume, &mut topology, &mut disks);
        disks.suit(seed, cleaning, objects.is_some().then(|| topology.loses_all_but_one()));
        let mut scenario = Self {
            seed,
            targets,
            initiators: if chunks { 3 } else { 0 },
            topology,
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
            redundancy: None,
            code: None,
            aggregators: Aggregators::default(),
            governing: None,
            planted,
        };
        scenario.wait_for_the_slowest();
        scenario.govern(joins);
        scenario.mix_redundancies();
        scenario.connect();
        scenario
    }

    /// Quiet passes of a cleaner after which nothing may be left to clean, when nothing else counts on what it
    /// condemned. A holder that restores a chunk just then counts on all copies that there are.
    pub(crate) fn quiet_passes(&self, least: u32) -> u32 {
        if self.config.census_interval == Span::ZERO { least } else { least + 2 }
    }

    /// In two thirds of the seeds with plain initiators, and half as often where there are cleaners, gateways propose
    /// the maps. Where these take out targets that are down, nothing else is silent for as long, and the targets that
    /// are lost for good never have the only copies of something.
    fn govern(&mut self, joins: bool) {
        let is_cleaned = self.cleaning.is_some() && Rng::new(self.seed).fork(72).chance(1, 2);
        if joins || self.objects.is_some() || is_cleaned {
            return;
        }
        let Some(governing) = Governing::draw(self.seed, &self.topology) else { return };
        self.topology.maps.truncate(1);
        // A map is looked at until all have it.
        self.cleaning.iter_mut().for_each(|cleaning| cleaning.outage = None);
        governing.configure(self.seed, &mut self.config);
        if governing.takes_out() {
            self.disks.restless = 0;
            (self.topology.blackout, self.topology.domain_cuts, self.partitions) = (None, 0, 0);
            self.topology.may_lack = self.topology.may_lack.filter(|lacking| *lacking == 0);
        }
        self.governing = Some(governing);
    }

    /// In half of the seeds, part of what is put has fewer copies than the rest, or more.
    fn mix_redundancies(&mut self) {
        let mut rng = Rng::new(self.seed).fork(15);
        let drawn = Redundancy::copies(1 + rng.below(3) as u8).filter(|_| rng.chance(1, 2));
        let maps = self.topology.cluster_maps(ClusterId(0)).unwrap_or_default();
        let drawn = drawn.filter(|drawn| maps.iter().all(|map| map.can_keep(*drawn).is_ok()));
        match &mut self.objects {
            // What is harmed may not be all that there is of an object: its clients go on to read it.
            Some(objects) => {
                objects.redundancy = drawn.filter(|drawn| !self.topology.loses_all_but_one_of_kept(*drawn));
            }
            None => {
                let takes_out = self.governing.as_ref().is_some_and(Governing::takes_out);
                self.redundancy = drawn.filter(|drawn| !takes_out || drawn.pieces() > 1);
                let mut rng = Rng::new(self.seed).fork(81);
                if rng.chance(1, 3) {
                    // Maps that are decided on the way keep as many failure domains as they have copies.
                    let least = if self.topology.resizes { 2 } else { self.topology.maps[0].copies };
                    let most = self.governing.as_ref().map_or(usize::MAX, |_| least.into());
                    let can =
                        |code: &Redundancy| code.pieces() <= most && maps.iter().all(|map| map.can_keep(*code).is_ok());
                    let drawn = CODES[rng.below(CODES.len() as u64) as usize];
                    self.code = [drawn, CODES[0]].iter().filter_map(|code| code.parse().ok()).find(can);
                    let transport = self.config.transport;
                    if self.code.is_some() && transport.reserved && !transport.is_ranked() {
                        self.aggregators = Aggregators::draw(self.seed);
                    }
                    self.topology.aggregators = self.aggregators.ids().collect();
                }
            }
        }
    }

    /// In a fifth of the seeds connections carry everything: nothing is lost, doubled or damaged by itself, and there is no
    /// multicast.
    fn connect(&mut self) {
        let mut rng = Rng::new(self.seed).fork(90);
        if rng.chance(1, 5) {
            let mut some = |most: u64| if rng.chance(2, 3) { 1 + rng.below(most) } else { 0 };
            let connections = Connections { stalls: some(10), breaks: some(10) };
            self.faults = Faults { connections: Some(connections), ..Faults::default() };
            self.config.multicast = false;
            self.mute = None;
        }
    }

    /// An initiator that gives up before the slowest disk has written, and tries again, leaves that disk more to write
    /// than it ever can.
    fn wait_for_the_slowest(&mut self) {
        let (Some(objects), Some((_, times))) = (&mut self.objects, self.slow) else { return };
        let least = self.disk.1.times(times * 20);
        objects.patience = objects.patience.max(least);
        self.config.give_up = objects.patience;
    }
}
