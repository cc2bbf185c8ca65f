//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use node::config::CarrierChoice;
use protocol::messenger::Policy;
use protocol::redundancy::Redundancy;
use protocol::transport::Transport;

mod messenger;
mod objects;
mod plan;
mod switch;
mod target;
mod up;
mod users;
pub(crate) use messenger::{MessengerArgs, Skew, Switches};
pub(crate) use objects::{
    BucketArgs, GetArgs, LsArgs, MigrateArgs, ObjectArgs, PutArgs, RewriteArgs, RmArgs, StatArgs,
};
pub(crate) use plan::{ClusterCommand, PlanArgs, ShowArgs};
pub(crate) use switch::SwitchArgs;
pub(crate) use target::{JoinArgs, TargetArgs};
pub(crate) use up::UpArgs;
pub(crate) use users::{KeyCommand, UserCommand};

/// A scale-out object store that negotiates reservations.
///
/// Start with `reservoir up --demo`: a whole cluster on this machine, an object put, read back, and read again after a
/// loss, of which the cluster heals.
#[derive(Debug, Parser)]
#[command(name = "reservoir", version, max_term_width = 100)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a whole cluster on this machine until Ctrl-C: targets and a gateway.
    Up(UpArgs),
    /// Run one target of a cluster, or add this server's disk to a cluster and run it.
    Target(TargetArgs),
    /// Run a switch of a cluster: it computes parity in flight for gateways.
    Switch(SwitchArgs),
    /// Run a gateway: objects over S3, status and metrics over HTTP.
    Gateway(GatewayArgs),
    /// Store a file, or a tree of them, as objects.
    Put(PutArgs),
    /// Read an object, or a tree of them, back, verified.
    Get(GetArgs),
    /// Show what is known of an object.
    Stat(StatArgs),
    /// List objects.
    Ls(LsArgs),
    /// Remove an object, or a tree of them.
    Rm(RmArgs),
    /// Make a bucket.
    Mb(BucketArgs),
    /// Remove a bucket in which nothing is.
    Rb(BucketArgs),
    /// Keep a bucket's objects otherwise, in the background, or show how they are kept: copies, or pieces of a code.
    Rewrite(RewriteArgs),
    /// Move the files that earlier versions kept beside the objects into a bucket.
    Migrate(MigrateArgs),
    /// Show the cluster at a glance.
    Status(TableArgs),
    /// Manage the users of the S3 API.
    #[command(subcommand)]
    User(UserCommand),
    /// Manage the keys that the gateway encrypts with.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Make the catalog of objects again, or check it.
    #[command(subcommand)]
    Catalog(CatalogCommand),
    /// Change the cluster.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Drop chunks that nothing refers to any more, now.
    Clean(CleanArgs),
    /// Measure this machine's ceilings and what the cluster reaches of them.
    Bench(BenchArgs),
    /// Run the protocol in the simulator.
    #[command(subcommand)]
    Sim(SimCommand),
}

/// The name of a transport.
fn transport() -> impl TypedValueParser<Value = Transport> {
    let names = Transport::NAMED.map(|named| PossibleValue::new(named.name).help(named.description));
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Transport>())
}

/// The name of a policy of the messenger.
fn balance() -> impl TypedValueParser<Value = Policy> {
    let names = Policy::NAMED.map(|named| PossibleValue::new(named.name).help(named.description));
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Policy>())
}

/// Where the catalog of objects is.
#[derive(Clone, Default, ClapArgs)]
pub(crate) struct CatalogArg {
    /// The database of the catalog, postgres://USER@HOST/DATABASE (default: as gateway.toml says, or else a file). The
    /// password may stand in PGPASSWORD.
    #[arg(long = "catalog", value_name = "URL", env = "RESERVOIR_CATALOG", hide_env_values = true)]
    pub(crate) url: Option<String>,
}

/// The address may have a password, which is never printed.
impl std::fmt::Debug for CatalogArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CatalogArg").finish_non_exhaustive()
    }
}

/// Settings of `gateway`.
#[derive(Debug, ClapArgs)]
pub(crate) struct GatewayArgs {
    /// The cluster's configuration.
    #[arg(long, value_name = "FILE", default_value = "./data/cluster.toml")]
    pub(crate) config: PathBuf,
    /// Where this gateway listens, and more (default: gateway.toml beside the configuration).
    #[arg(long, value_name = "FILE")]
    pub(crate) settings: Option<PathBuf>,
    /// Where the catalog is.
    #[command(flatten)]
    pub(crate) catalog: CatalogArg,
    /// How copies are placed and carried (default: as the configuration says).
    #[arg(long, value_parser = transport())]
    pub(crate) transport: Option<Transport>,
    /// Do not use multicast, even where it works.
    #[arg(long)]
    pub(crate) no_multicast: bool,
    /// Stop when the process that started this one is gone.
    #[arg(long, hide = true)]
    pub(crate) with_parent: bool,
}

/// Which cluster, and how to print.
#[derive(Debug, Default, ClapArgs)]
pub(crate) struct TableArgs {
    /// The cluster's configuration, which names its gateway.
    #[arg(long, value_name = "FILE", default_value = "./data/cluster.toml")]
    pub(crate) config: PathBuf,
    /// Give up when the gateway neither takes nor sends anything for so many seconds.
    #[arg(long, value_name = "S", default_value_t = 120)]
    pub(crate) timeout: u64,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl TableArgs {
    /// How long a gateway may keep silent.
    pub(crate) fn patience(&self) -> anyhow::Result<Duration> {
        ensure!(self.timeout > 0, "--timeout 0 waits for nothing: give at least 1 second");
        Ok(Duration::from_secs(self.timeout))
    }
}

/// What to do with the catalog. The targets must run.
#[derive(Debug, Subcommand)]
pub(crate) enum CatalogCommand {
    /// Make the catalog right: keep what it knows, and add what it cannot know of (all, when it was lost). While it is a file,
    /// the gateway must not run; while it is a database, what gateways are asked to change waits or fails.
    Rebuild {
        /// Believe nothing in the catalog, because it is damaged or a restored backup: make it again from the manifests.
        /// Changes that failed may come back, and so may what was removed, with an old copy of a disk.
        #[arg(long)]
        from_manifests: bool,
        /// Only say what would be changed.
        #[arg(long)]
        dry_run: bool,
        /// Where the catalog is.
        #[command(flatten)]
        catalog: CatalogArg,
        /// Which cluster, and how to print.
        #[command(flatten)]
        table: TableArgs,
    },
    /// Compare the catalog with the manifests; fails when they differ.
    Check {
        /// Where the catalog is.
        #[command(flatten)]
        catalog: CatalogArg,
        /// Which cluster, and how to print.
        #[command(flatten)]
        table: TableArgs,
    },
}

/// Settings of `clean`.
#[derive(Debug, ClapArgs)]
pub(crate) struct CleanArgs {
    /// Grace time in seconds (default: as in gateway.toml, a day). No put that is under way in any gateway may take longer
    /// than half of it.
    #[arg(long, value_name = "S")]
    pub(crate) grace: Option<u64>,
    /// Only count what nothing refers to; drop nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Where the catalog is.
    #[command(flatten)]
    pub(crate) catalog: CatalogArg,
    /// Which cluster, and how to print.
    #[command(flatten)]
    pub(crate) table: TableArgs,
}

/// Settings of `bench`.
#[derive(Debug, ClapArgs)]
pub(crate) struct BenchArgs {
    /// Seconds for each size, direction and transport.
    #[arg(long, value_name = "S", default_value_t = 3)]
    pub(crate) seconds: u64,
    /// Chunk sizes, with KiB or MiB [default: 16KiB,128KiB,1MiB; with --s3 4KiB,128KiB,1MiB].
    #[arg(long, value_delimiter = ',', value_parser = crate::units::parse_size)]
    pub(crate) sizes: Option<Vec<u64>>,
    /// Transports to compare [default: all; with --s3 replicast-m].
    #[arg(long, value_delimiter = ',', value_parser = transport())]
    pub(crate) transports: Option<Vec<Transport>>,
    /// How chunks are kept, to compare: numbers of copies, or codes of data and parity as 4+2 [default: as the cluster map says].
    #[arg(long, value_name = "N|K+M,N|K+M", value_delimiter = ',',
          conflicts_with_all = ["slow_target", "s3", "catalog", "conflicts", "strangers"])]
    pub(crate) redundancy: Option<Vec<Redundancy>>,
    /// Switches that compute the parity of codes, in the cluster made for the benchmark.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=9),
          conflicts_with_all = ["config", "slow_target", "s3", "catalog", "conflicts", "strangers"])]
    pub(crate) switches: u8,
    /// What carries messages and payload in the cluster made for the benchmark.
    #[arg(long, value_name = "CARRIER", value_parser = up::carrier(), default_value = "udp", conflicts_with = "config")]
    pub(crate) carrier: CarrierChoice,
    /// With --carrier tcp: threads of each node that read connections beside its loop; with --messenger those that are measured.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "config")]
    pub(crate) workers: u8,
    /// With --carrier tcp: how many of them the benchmark itself has, if not as many as targets.
    #[arg(long, value_name = "N", conflicts_with_all = ["config", "messenger"])]
    pub(crate) gateway_workers: Option<u8>,
    /// With --carrier tcp: how many connections there may be to another node; with --messenger how many each client has where it
    /// is measured with several [default: 1; with --messenger 2].
    #[arg(long, value_name = "N", conflicts_with = "config", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) lanes: Option<u8>,
    /// Encrypt what goes between the nodes: all of it with --carrier tcp, payload without.
    #[arg(long, conflicts_with = "config")]
    pub(crate) encrypt: bool,
    /// How connections are shared among --workers and --gateway-workers.
    #[arg(long, value_name = "POLICY", value_parser = balance(), default_value = "work", conflicts_with = "config")]
    pub(crate) balance: Policy,
    /// Puts or gets in flight, 1 to 1024 [default: 16; with --s3 8, then 32].
    #[arg(long)]
    pub(crate) depth: Option<usize>,
    /// Directory, which must exist, under which a cluster for the benchmark is made and removed (it should be on the disk
    /// to measure).
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) data: PathBuf,
    /// Use this running cluster instead of one made for the benchmark.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["slow_target", "s3", "catalog", "conflicts"])]
    pub(crate) config: Option<PathBuf>,
    /// With --config: compare with so many MB/s (10^6 bytes) instead of what this machine's sockets and disk reach, which
    /// are not measured then; for clusters behind a link of a known rate.
    #[arg(long, value_name = "MB/S", requires = "config")]
    pub(crate) ceiling: Option<f64>,
    /// Run this by `sh` when all is put, before it is got: what gets do when something breaks then, as with `kill -STOP PID` of a target.
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["slow_target", "s3", "catalog", "conflicts"])]
    pub(crate) before_gets: Option<String>,
    /// Measure the catalog alone, with this many objects.
    #[arg(long, value_name = "N", conflicts_with_all = ["slow_target", "s3"])]
    pub(crate) catalog: Option<u64>,
    /// Measure objects through a gateway's S3 endpoint, beside chunks of the same sizes.
    #[arg(long, conflicts_with = "slow_target")]
    pub(crate) s3: bool,
    /// With --s3: objects up to this size ride in their manifests [default: 64KiB].
    #[arg(long, value_name = "SIZE", requires = "s3", value_parser = crate::units::parse_size)]
    pub(crate) inline: Option<u64>,
    /// Compare put latency with one slow target (20 ms a write) among nine to that with none.
    #[arg(long)]
    pub(crate) slow_target: bool,
    /// Put and get through a gateway's S3 endpoint at a moderate rate, with and without so many connections of strangers who
    /// never sign, in turns, and show what they cost [--depth: 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000),
          conflicts_with_all = ["slow_target", "s3", "catalog", "config", "conflicts", "sizes"])]
    pub(crate) strangers: Option<u16>,
    /// Put at random times, so many times a second, and show how often transfers meet at a target, beside Poisson's law
    /// [--sizes: 1KiB; --transports: hash,replicast-m].
    #[arg(long, value_name = "RATE", conflicts_with_all = ["slow_target", "s3", "catalog", "depth"])]
    pub(crate) conflicts: Option<f64>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) messenger: MessengerArgs,
}

/// What to simulate.
#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    /// Run one scenario from a file and show how fast the cluster is.
    Run(RunArgs),
    /// Simulate the paper's tables and figures again, each figure beside the paper's.
    Paper(PaperArgs),
    /// Run two scenarios with the same seeds and show the differences.
    Compare(CompareArgs),
    /// Run a scenario with one key or two over several values.
    Sweep(SweepArgs),
    /// Run a scenario with several changes: each alone, each left out, and all together.
    Ablate(AblateArgs),
    /// Run every way of choosing targets, with all disks equal and with slow ones, and show the latencies.
    Rivals(RivalsArgs),
    /// Run every way for a get to choose among the holders of its chunk, by the share of gets, and show the latencies.
    Reads(ReadsArgs),
    /// Lose a target or a server while clients put, and show how fast its copies are made again, and what that costs them.
    Repair(RepairArgs),
    /// Run half gets, half puts with direct negotiation and with leaders, and show the throughput, also over time.
    Leader(ScenarioArgs),
    /// Compare conflicts, queues and latencies with what queueing theory says of them.
    Theory(ReportArgs),
    /// Run whole clusters with faults, one for each seed, and check that nothing acknowledged is lost.
    Check {
        /// How many seeds.
        #[arg(long, value_name = "N", default_value_t = 1000)]
        seeds: u64,
        /// The first seed.
        #[arg(long, value_name = "SEED", default_value_t = 1)]
        start: u64,
        /// Plant this defect, to see that the checks find it.
        #[arg(long, value_name = "DEFECT", hide = true)]
        plant: Option<sim::PlantedBug>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Run one seed again and show what happened, step by step.
    Replay {
        /// The seed.
        seed: u64,
        /// Plant this defect, to see that the checks find it.
        #[arg(long, value_name = "DEFECT", hide = true)]
        plant: Option<sim::PlantedBug>,
    },
}

/// What becomes of the results.
#[derive(Debug, ClapArgs)]
pub(crate) struct ReportArgs {
    /// Write a report, plots and data into this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How scenarios are run.
#[derive(Debug, ClapArgs)]
pub(crate) struct ScenarioArgs {
    /// Set a key of the scenario to something else, in every run; can be given several times.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Runs of each scenario or point, with a seed each (default: as the scenario says; `compare`: 10).
    #[arg(long, value_name = "N")]
    pub(crate) seeds: Option<u64>,
    /// What becomes of the results.
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// Settings of `sim run`.
#[derive(Debug, ClapArgs)]
pub(crate) struct RunArgs {
    /// The scenario; docs/simulation.md explains its keys.
    #[arg(value_name = "SCENARIO.toml")]
    pub(crate) file: PathBuf,
    /// How it is run.
    #[command(flatten)]
    pub(crate) how: ScenarioArgs,
}

/// Settings of `sim paper`.
#[derive(Debug, ClapArgs)]
pub(crate) struct PaperArgs {
    /// Only these tables and figures. Those of the messenger are left out where they are not named.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) only: Vec<ExhibitArg>,
    /// Runs of each cell, with a seed each.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) seeds: u64,
    /// Peculiarities of the paper's simulator to switch on, to see what each is worth.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) quirks: Vec<QuirkArg>,
    /// What becomes of the results.
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// Settings of `sim compare`.
#[derive(Debug, ClapArgs)]
pub(crate) struct CompareArgs {
    /// One scenario.
    #[arg(value_name = "A.toml")]
    pub(crate) a: PathBuf,
    /// The other.
    #[arg(value_name = "B.toml")]
    pub(crate) b: PathBuf,
    /// How both are run, with the same seeds.
    #[command(flatten)]
    pub(crate) how: ScenarioArgs,
}

/// Settings of `sim sweep`.
#[derive(Debug, ClapArgs)]
pub(crate) struct SweepArgs {
    /// The scenario.
    #[arg(value_name = "SCENARIO.toml")]
    pub(crate) file: PathBuf,
    /// A key and its values; given twice, all pairs of two keys.
    #[arg(long, value_name = "KEY=VALUE,VALUE", required = true)]
    pub(crate) vary: Vec<String>,
    /// What to show of each run: a key of `sim run --json`.
    #[arg(long, value_name = "METRIC", default_value = "chunks_per_second")]
    pub(crate) metric: String,
    /// Say where at least so much of the best value is kept, and draw that level into the plot.
    #[arg(long, value_name = "PERCENT")]
    pub(crate) keep: Option<f64>,
    /// How each point is run.
    #[command(flatten)]
    pub(crate) how: ScenarioArgs,
}

/// Settings of `sim ablate`.
#[derive(Debug, ClapArgs)]
pub(crate) struct AblateArgs {
    /// The scenario without the changes.
    #[arg(value_name = "SCENARIO.toml")]
    pub(crate) file: PathBuf,
    /// A change: one key or more, set to something else. Given several times.
    #[arg(long, value_name = "KEY=VALUE,KEY=VALUE", required = true)]
    pub(crate) switch: Vec<String>,
    /// How each is run.
    #[command(flatten)]
    pub(crate) how: ScenarioArgs,
}

/// Settings of `sim rivals`.
#[derive(Debug, ClapArgs)]
pub(crate) struct RivalsArgs {
    /// The network and costs of all: the papers' without costs, or the product's.
    #[arg(long, value_enum, default_value_t = ProfileArg::Paper)]
    pub(crate) profile: ProfileArg,
    /// Loads, as shares of what equal disks could write.
    #[arg(long, value_name = "SHARE,SHARE", value_delimiter = ',', default_values_t = [0.7, 0.8, 0.9])]
    pub(crate) load: Vec<f64>,
    /// How many times slower one disk in nine is; a run with equal disks comes first.
    #[arg(long, value_name = "TIMES,TIMES", value_delimiter = ',', default_values_t = [10, 40])]
    pub(crate) slow: Vec<u32>,
    /// How each is run.
    #[command(flatten)]
    pub(crate) how: ScenarioArgs,
}

/// Settings of `sim reads`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ReadsArgs {
    /// Gets among the requests, in percent.
    #[arg(long, value_name = "PERCENT,PERCENT", value_delimiter = ',', default_values_t = [0, 25, 50, 75, 100])]
    pub(crate) reads: Vec<u32>,
    /// Loads, as shares of what equal disks could do.
    #[arg(long, value_name = "SHARE,SHARE", value_delimiter = ',', default_values_t = [0.5, 0.8])]
    pub(crate) load: Vec<f64>,
    /// How many times slower one disk in nine is; 1 is not.
    #[arg(long, value_name = "TIMES,TIMES", value_delimiter = ',', default_values_t = [1, 10])]
    pub(crate) slow: Vec<u32>,
    /// How each is run.
    #[command(flatten)]
    pub(crate) how: ScenarioArgs,
}

/// Settings of `sim repair`.
#[derive(Debug, ClapArgs)]
pub(crate) struct RepairArgs {
    /// Targets of the cluster, and as many gateways; a multiple of nine.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [90])]
    pub(crate) targets: Vec<u32>,
    /// What is lost.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [LostArg::Target, LostArg::Server])]
    pub(crate) lost: Vec<LostArg>,
    /// What clients put, as a share of what the disks could write before the loss.
    #[arg(long, value_name = "SHARE", default_value_t = 0.7)]
    pub(crate) load: f64,
    /// For how long what is lost would last if all that clients leave were used for it; from the rate the time for 1 TB is told.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.5)]
    pub(crate) seconds: f64,
    /// How each is run.
    #[command(flatten)]
    pub(crate) how: ScenarioArgs,
}

/// What is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LostArg {
    /// One target.
    Target,
    /// All targets of one server of nine.
    Server,
}

impl LostArg {
    /// As scenarios call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::Server => "server",
        }
    }
}

/// What nodes and the network cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileArg {
    /// The papers' machines and rivals on the papers' network, where only links and disks take time.
    Paper,
    /// The daemons' machines beside the rivals: processors, syncs, hashing and control take time for all.
    Product,
}

/// A table or figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExhibitArg {
    Table2,
    Table3,
    Table5,
    Fig8,
    Fig9,
    Fig10,
    Fig11,
    Fig12,
    Fig13,
    /// What choosy initiators and double booking gain with Replicast-H.
    Choosy,
    /// What choosy initiators gain with Replicast-M.
    ChoosyM,
    /// Latencies of single puts, without and with choosy initiators.
    ChoosySpikes,
    /// Throughput of the messenger alone, by policy; takes minutes, as do the others of the messenger.
    MessengerFig10,
    /// How evenly its workers share the load.
    MessengerFig11,
    /// Throughput of the whole system.
    MessengerFig12,
    /// Bandwidth of the whole system over several connections.
    MessengerFig13,
    /// What a writer gains when parity is computed in the network.
    ParityFig9,
}

/// A peculiarity of the paper's simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum QuirkArg {
    /// What is completed in the last hundredth of a run is not counted.
    LastHundredth,
    /// Work that a disk has queued counts as done.
    ScheduledWork,
    /// Every frame leaves up to 500 ns late.
    LateFrames,
    /// Initiators begin within 20 us, not at the same instant.
    StaggeredStart,
}
