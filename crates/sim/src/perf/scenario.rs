//! Scenarios as files: flat TOML, every key with a default, errors with the line and what would be allowed.

use std::fmt;

use ::paper::Protocol;
use protocol::size;
use protocol::time::Span;
use protocol::transport::Transport;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Unexpected, Visitor};

use super::setup::{Load, Machines, Mode, Setup, Slow};

mod paper;
mod product;

use self::paper::{ChoiceName, PlacementName, QuirkName};
use self::product::{CodeName, GetChoiceName, LostName, ProfileName};

/// A number of bytes, written `16KiB`.
#[derive(Clone, Copy, Debug)]
struct Size(u64);

/// The longest time that is simulated, and the longest delay or guard.
const LONGEST: Span = Span::from_secs(3_600);
const DELAY: Span = Span::from_secs(1);

/// A time, written `10ms`.
#[derive(Clone, Copy, Debug)]
struct Time(Span);

/// What a scenario file may say.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: Option<String>,
    profile: Option<ProfileName>,
    protocol: Option<ProtocolName>,
    initiators: Option<u32>,
    targets: Option<u32>,
    group: Option<u32>,
    copies: Option<u8>,
    chunk: Option<Size>,
    mix: Option<Vec<(Size, u32)>>,
    disk_mb_per_s: Option<u64>,
    disk_queue: Option<Size>,
    link_mbit_per_s: Option<u64>,
    data_percent: Option<u64>,
    frame: Option<u32>,
    trip: Option<Time>,
    control_bytes: Option<u32>,
    stretch_percent: Option<u64>,
    placement: Option<PlacementName>,
    choice: Option<ChoiceName>,
    guard: Option<Time>,
    widen_idle: Option<bool>,
    least_backlog: Option<bool>,
    overlap: Option<bool>,
    choosy: Option<bool>,
    double_booking: Option<bool>,
    depth: Option<u32>,
    load: Option<f64>,
    slow_one_in: Option<u32>,
    slow_times: Option<u32>,
    warm_up: Option<Time>,
    length: Option<Time>,
    mode: Option<ModeName>,
    seed: Option<u64>,
    seeds: Option<u64>,
    quirks: Option<Vec<QuirkName>>,
    reads_percent: Option<u32>,
    objects: Option<u32>,
    zipf: Option<f64>,
    switch_queue: Option<Size>,
    control_first: Option<bool>,
    loss_ppm: Option<u32>,
    drift_ppm: Option<u32>,
    wake_jitter: Option<Time>,
    cpu_message: Option<Time>,
    cpu_kib: Option<Time>,
    hash_mb_per_s: Option<u64>,
    hash_ahead: Option<bool>,
    disk_operation: Option<Time>,
    disk_sync: Option<Time>,
    receive_buffer: Option<Size>,
    tentative: Option<Time>,
    late: Option<Time>,
    drain: Option<Time>,
    lead_gets: Option<bool>,
    get_choice: Option<GetChoiceName>,
    remember: Option<bool>,
    hedge_percent: Option<u8>,
    crash_every: Option<Time>,
    crash_down: Option<Time>,
    servers: Option<u32>,
    lose: Option<LostName>,
    lose_at: Option<Time>,
    lost_chunks: Option<u32>,
    census_interval: Option<Time>,
    code: Option<CodeName>,
    aggregators: Option<u32>,
    aggregator_lanes: Option<u32>,
    aggregator_kib: Option<Time>,
    aggregator_dies: Option<Time>,
}

/// A protocol by its name: one of the papers' or of their rivals, one of the product's, or both.
#[derive(Clone, Copy, Debug)]
struct ProtocolName {
    paper: Option<Protocol>,
    product: Option<Transport>,
}

impl ProtocolName {
    fn find(name: &str) -> Option<Self> {
        let paper = Protocol::ALL.into_iter().chain(Protocol::RIVALS).find(|protocol| protocol.name() == name);
        let product = name.parse().ok();
        (paper.is_some() || product.is_some()).then_some(Self { paper, product })
    }

    /// All names, each once.
    fn names() -> String {
        let product = Transport::NAMED.iter().map(|named| named.name);
        let papers = Protocol::ALL.into_iter().chain(Protocol::RIVALS).map(Protocol::name);
        let papers: Vec<&str> = papers.collect();
        let all = papers.iter().copied().chain(product.filter(|name| !papers.contains(name)));
        all.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    }
}

impl Default for ProtocolName {
    fn default() -> Self {
        Self { paper: Some(Protocol::ReplicastM), product: Some(Transport::REPLICAST_M) }
    }
}

impl<'de> Deserialize<'de> for ProtocolName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let unknown = || D::Error::custom(format!("unknown protocol `{name}`, expected one of {}", Self::names()));
        Self::find(&name).ok_or_else(unknown)
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ModeName {
    Transfer,
    Frame,
}

/// How late a frame may leave when the quirk is switched on without saying.
pub const LATE_FRAMES: Span = Span::from_nanos(500);
/// How late an initiator may begin when the quirk is switched on without saying.
pub const STAGGERED_START: Span = Span::from_micros(20);

/// Units of times, each with its nanoseconds.
pub const TIME_UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// Reads a number with a unit behind it.
struct Measure {
    what: &'static str,
    parse: fn(&str) -> Option<u64>,
}

impl Visitor<'_> for Measure {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
        (self.parse)(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Measure {
            what: "a size with a unit (B, KiB, MiB, GiB), as in \"128KiB\"",
            parse: size::parse,
        })
        .map(Self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let what = "a whole number with a unit (ns, us, ms, s), as in \"10ms\"";
        from.deserialize_any(Measure { what, parse: nanos_of }).map(|nanos| Self(Span::from_nanos(nanos)))
    }
}

/// Nanoseconds of `10ms`, `2 s`.
fn nanos_of(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (_, unit) = TIME_UNITS.iter().find(|(name, _)| *name == &text[digits.len()..])?;
    digits.trim().parse::<u64>().ok()?.checked_mul(*unit)
}

/// A scenario that can be run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it is.
    pub title: String,
    /// The run, with the first seed.
    pub setup: Setup,
    /// How many seeds.
    pub seeds: u64,
    /// What the protocol decided because the file does not say it, in words.
    pub chosen: Option<&'static str>,
}

/// Why a scenario cannot be run: one line, which names the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError(String);

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ScenarioError {}

/// A key set to something else than the file says.
#[derive(Clone, Debug)]
pub struct Change {
    /// How it was asked for, for messages: `--set`.
    pub flag: &'static str,
    /// `key=value`.
    pub text: String,
}

impl Change {
    fn key(&self) -> &str {
        self.text.split_once('=').map_or(self.text.as_str(), |(key, _)| key).trim()
    }

    /// The key with its value, both of which have to be possible by themselves.
    fn table(&self) -> Result<toml::Table, ScenarioError> {
        let wrong = |why: &str| ScenarioError(format!("{} {}: {why}", self.flag, self.text));
        let (key, value) = self.text.split_once('=').ok_or_else(|| wrong("write key=value"))?;
        let (key, value) = (key.trim(), value.trim());
        let with = |value: &str| toml::from_str::<toml::Table>(&format!("{key} = {value}"));
        // What is not TOML by itself is a string without its quotes.
        let table = with(value).or_else(|_| with(&format!("{value:?}")));
        let wrong_toml = |error: toml::de::Error| wrong(&error.message().replace('\n', " "));
        let table = table.map_err(wrong_toml)?;
        table.clone().try_into::<File>().map_err(wrong_toml)?;
        Ok(table)
    }
}

impl Scenario {
    /// The same without the loss of targets.
    pub fn lose_nothing(&mut self) {
        if let Machines::Product(profile) = &mut self.setup.machines {
            profile.loss = None;
        }
    }

    /// Reads the `text` of the file called `name`, with some keys set to something else.
    ///
    /// # Errors
    /// When a key is unknown, a value is not of its kind, or the whole is impossible: the line, and what is allowed.
    pub fn parse(name: &str, text: &str, set: &[Change]) -> Result<Self, ScenarioError> {
        let in_file = |error: toml::de::Error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            ScenarioError(format!("{name}:{line}: {}", error.message().replace('\n', " ")))
        };
        toml::from_str::<File>(text).map_err(in_file)?;
        let mut table = toml::from_str::<toml::Table>(text).map_err(in_file)?;
        for change in set {
            table.extend(change.table()?);
        }
        let file: File = table.try_into().map_err(in_file)?;
        file.scenario().map_err(|(key, why)| {
            let changed = set.iter().rfind(|change| change.key() == key);
            let line = text.lines().position(|line| key_of(line) == Some(key));
            ScenarioError(match (changed, line) {
                (Some(change), _) => format!("{} {key}: {why}", change.flag),
                (None, Some(line)) => format!("{name}:{}: {why}", line + 1),
                (None, None) => format!("{name}: {why}"),
            })
        })
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
}

fn key_of(line: &str) -> Option<&str> {
    line.split_once('=').map(|(key, _)| key.trim())
}

type Wrong = (&'static str, String);

fn within<T: PartialOrd + fmt::Display>(key: &'static str, value: T, least: T, most: T) -> Result<T, Wrong> {
    if value >= least && value <= most {
        return Ok(value);
    }
    Err((key, format!("{key} = {value}: {least} to {most} are possible")))
}

impl File {
    /// The machines, and what they are set to.
    fn machines(&self) -> Result<Machines, Wrong> {
        let profile = self.profile.unwrap_or_default();
        self.check_profile(profile)?;
        match profile {
            ProfileName::Product if !self.is_unicast() => Ok(Machines::Product(Box::new(self.product()?))),
            ProfileName::Product | ProfileName::Paper => Ok(Machines::Paper(Box::new(self.paper(profile)?))),
        }
    }

    fn copies(&self) -> Result<u8, Wrong> {
        within("copies", self.copies.unwrap_or(3), 1, 8)
    }

    /// Bytes per second.
    fn disk(&self) -> Result<u64, Wrong> {
        Ok(within("disk_mb_per_s", self.disk_mb_per_s.unwrap_or(400), 1, 1_000_000)? << 20)
    }

    /// Bits per second.
    fn link(&self) -> Result<u64, Wrong> {
        Ok(within("link_mbit_per_s", self.link_mbit_per_s.unwrap_or(9_900), 1, 10_000_000)? * 1_000_000)
    }

    fn choosy(&self) -> Result<bool, Wrong> {
        let choosy = self.choosy.unwrap_or(false);
        if choosy && self.protocol.unwrap_or_default().product.is_none_or(|transport| !transport.reserved) {
            return Err(("choosy", "choosy is for `replicast-m`, `replicast-h` and `leader`".to_owned()));
        }
        Ok(choosy)
    }

    fn sizes(&self) -> Result<Vec<(u32, u32)>, Wrong> {
        let most = u64::from(protocol::limits::CHUNK_BYTES);
        let Some(mix) = &self.mix else {
            let size = self.chunk.map_or(128 << 10, |size| size.0);
            return Ok(vec![(within("chunk", size, 1, most)? as u32, 1)]);
        };
        if self.chunk.is_some() {
            return Err(("mix", "give chunk or mix, not both".to_owned()));
        }
        if mix.iter().all(|(_, weight)| *weight == 0) {
            return Err(("mix", "mix needs a size with a weight above 0, as in [[\"16KiB\", 3]]".to_owned()));
        }
        mix.iter().map(|(size, weight)| Ok((within("mix", size.0, 1, most)? as u32, *weight))).collect()
    }

    fn load(&self, mut setup: Setup) -> Result<Setup, Wrong> {
        let depth = within("depth", self.depth.unwrap_or(1), 1, 64)?;
        setup.machines.set_depth(depth as usize);
        setup.load = match self.load {
            None => Load::Closed { depth },
            Some(share) => {
                let share = within("load", share, 0.001, 10.0)?;
                if self.depth.is_none() {
                    setup.machines.set_depth(16);
                }
                Load::Open { chunks_per_second: share * setup.bounds().lowest().0 }
            }
        };
        Ok(setup)
    }

    fn scenario(&self) -> Result<Scenario, Wrong> {
        let machines = self.machines()?;
        let length = self.length.map_or(Span::from_millis(10), |time| time.0);
        if length == Span::ZERO {
            return Err(("length", "length = 0: measure for at least 1ns".to_owned()));
        }
        let times = [("length", self.length, LONGEST), ("warm_up", self.warm_up, LONGEST)];
        for (key, time, most) in times.into_iter().chain([("trip", self.trip, DELAY), ("guard", self.guard, DELAY)]) {
            if let Some(time) = time.map(|time| time.0).filter(|time| *time > most) {
                let seconds = |span: Span| span.as_nanos() / 1_000_000_000;
                return Err((key, format!("{key} = {}s: at most {}s are possible", seconds(time), seconds(most))));
            }
        }
        let initiators = within("initiators", self.initiators.unwrap_or(90), 1, 1 << 20)?;
        let copies = u32::from(machines.copies());
        let targets = within("targets", self.targets.unwrap_or(90), copies, 1 << 20)?;
        if !targets.is_multiple_of(copies) {
            return Err(("targets", format!("targets = {targets}: a multiple of the {copies} copies is possible")));
        }
        let group = self.group.unwrap_or(3 * copies);
        if group > targets {
            let why = format!("group = {group} is larger than the cluster: {copies} to {targets} are possible");
            return Err(("group", why));
        }
        let group = within("group", group, copies, protocol::limits::GROUP_MEMBERS as u32)?;
        if !group.is_multiple_of(copies) {
            return Err(("group", format!("group = {group}: a multiple of the {copies} copies is possible")));
        }
        let product = if let Machines::Product(profile) = &machines { Some(profile) } else { None };
        let pieces = product.and_then(|profile| profile.code).map_or(0, |code| code.fragments() as u32);
        within("group", group, copies.max(pieces), protocol::limits::GROUP_MEMBERS as u32)?;
        // Aggregators pass on what has begun to arrive.
        let is_framed = matches!(self.mode, Some(ModeName::Frame)) || product.is_some_and(|p| p.aggregators > 0);
        let times = within("slow_times", self.slow_times.unwrap_or(10), 1, 10_000)?;
        let slow = Slow { one_in: self.slow_one_in.unwrap_or(0), times };
        let setup = Setup {
            targets,
            group,
            sizes: self.sizes()?,
            slow,
            warm_up: self.warm_up.map_or(Span::ZERO, |time| time.0),
            mode: if is_framed { Mode::Frame } else { Mode::Transfer },
            seed: self.seed.unwrap_or(1),
            ..Setup::new(machines, initiators, 1, length)
        };
        let title = self.title.clone().unwrap_or_else(|| "a scenario".to_owned());
        let seeds = within("seeds", self.seeds.unwrap_or(1), 1, 10_000)?;
        Ok(Scenario { title, setup: self.load(setup)?, seeds, chosen: self.chosen() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str, set: &[&str]) -> String {
        let set: Vec<Change> = set.iter().map(|s| Change { flag: "--vary", text: (*s).to_owned() }).collect();
        Scenario::parse("x.toml", text, &set).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_line_and_what_is_allowed() {
        let unknown = error("title = \"x\"\n\nmulticast = 5\n", &[]);
        assert!(unknown.starts_with("x.toml:3: ") && unknown.contains("`initiators`"), "{unknown}");
        let variant = error("protocol = \"tcp\"\n", &[]);
        assert!(variant.starts_with("x.toml:1: ") && variant.contains("`replicast-m`"), "{variant}");
        let size = error("\nchunk = \"12KB\"\n", &[]);
        assert!(size.starts_with("x.toml:2: ") && size.contains("KiB"), "{size}");
        let never = error("slow_times = 10\n", &["slow_times=0"]);
        assert!(never.contains("--vary") && never.contains('1'), "{never}");
        let large = error("targets = 6\ngroup = 9\n", &[]);
        assert!(large.starts_with("x.toml:2: ") && large.contains("3 to 6"), "{large}");
        let huge = error("chunk = \"9MiB\"\n", &[]);
        assert!(huge.starts_with("x.toml:1: ") && huge.contains("8388608"), "{huge}");
        let set = error("targets = 90\n", &["targets=91"]);
        assert!(set.starts_with("--vary targets") && set.contains("multiple"), "{set}");
        assert!(error("", &["targets"]).contains("key=value"));
        assert!(error("", &["colour=red"]).contains("expected one of"));
        assert!(error("chunk = ", &[]).starts_with("x.toml:1: "));
        let other = error("\ndrift_ppm = 5\n", &[]);
        assert!(other.starts_with("x.toml:2: ") && other.contains("product"), "{other}");
        let none = error("profile = \"product\"\naggregator_kib = \"1us\"\n", &[]);
        assert!(none.starts_with("x.toml:2: ") && none.contains("how many aggregators"), "{none}");
        let paper = error("profile = \"product\"\nquirks = []\n", &[]);
        assert!(paper.starts_with("x.toml:2: ") && paper.contains("paper"), "{paper}");
        let hash = error("protocol = \"hash\"\n", &[]);
        assert!(hash.starts_with("x.toml:1: ") && hash.contains("product"), "{hash}");
        let rates = error("protocol = \"uch-aimd\"\nprofile = \"product\"\n", &[]);
        assert!(rates.starts_with("x.toml:1: ") && rates.contains("`replicast-h`"), "{rates}");
        let gets = error("protocol = \"c3-like\"\nprofile = \"product\"\nreads_percent = 5\n", &[]);
        assert!(gets.starts_with("x.toml:3: ") && gets.contains("only put"), "{gets}");
    }

    #[test]
    fn what_is_set_replaces_what_is_written() {
        let set = ["targets=180", "chunk=16KiB", "protocol = uch-ccp", "load=0.5"]
            .map(|text| Change { flag: "--set", text: text.to_owned() });
        let scenario = Scenario::parse("x.toml", "targets = 90 # many\nchunk = \"1MiB\"\n", &set).unwrap();
        assert_eq!(scenario.setup.targets, 180);
        assert_eq!(scenario.setup.sizes, [(16 << 10, 1)]);
        assert_eq!(scenario.setup.name(), "uch-ccp");
        let half = 0.5 * scenario.setup.bounds().lowest().0;
        assert_eq!(scenario.setup.load, Load::Open { chunks_per_second: half });
    }
}
