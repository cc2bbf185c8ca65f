//! The command line of `cluster`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::{CatalogArg, TableArgs};

/// What to do with the cluster.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Show the cluster map: its targets, their failure domains and groups.
    Show(ShowArgs),
    /// Make the next cluster map, and say how many bytes it moves from which targets to which.
    Plan(PlanArgs),
    /// Add targets: say what that moves, and write the next map.
    Add {
        /// A file with a section `[[target]]`, as in the configuration, for each of them.
        file: PathBuf,
        /// How.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Let targets take no chunks any more, and have what they hold put elsewhere; they stay in the map, and are read.
    Drain {
        /// Their ids.
        #[arg(required = true, value_name = "N")]
        targets: Vec<u32>,
        /// How.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Let drained targets take chunks again.
    Restore {
        /// Their ids.
        #[arg(required = true, value_name = "N")]
        targets: Vec<u32>,
        /// How.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Take targets out of the map for good. What they hold is made again from other copies.
    Remove {
        /// Their ids.
        #[arg(required = true, value_name = "N")]
        targets: Vec<u32>,
        /// How.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Take a target out of the map, and put another into its place: one that is added, or that was drained.
    Replace {
        /// The one that goes.
        old: u32,
        /// The one that takes its place.
        new: u32,
        /// A file with a section `[[target]]` for the new one, if it is not in the map yet.
        #[arg(long, value_name = "FILE")]
        add: Option<PathBuf>,
        /// How.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Give targets other capacities: chunks are divided by them.
    Weight {
        /// Like 7=2TiB.
        #[arg(required = true, value_name = "N=SIZE", value_parser = weight)]
        capacities: Vec<(u32, String)>,
        /// How.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Let copies stay where they are for now: none moves to where the map has it, or to an emptier target. What is lost is made again.
    Pause(ShowArgs),
    /// Let copies move again.
    Resume(ShowArgs),
}

/// Settings of `cluster show`, `pause` and `resume`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ShowArgs {
    /// Where gateways decide maps that share a catalog.
    #[command(flatten)]
    pub(crate) catalog: CatalogArg,
    /// Which cluster, and how to print.
    #[command(flatten)]
    pub(crate) table: TableArgs,
}

/// Settings of `cluster plan`.
#[derive(Debug, Default, ClapArgs)]
pub(crate) struct PlanArgs {
    /// Add the targets in this file: sections `[[target]]` as in the configuration.
    #[arg(long, value_name = "FILE")]
    pub(crate) add: Option<PathBuf>,
    /// Let this target take no chunks any more; it stays in the map. May be given several times.
    #[arg(long, value_name = "N")]
    pub(crate) drain: Vec<u32>,
    /// Let this target take chunks again.
    #[arg(long, value_name = "N")]
    pub(crate) restore: Vec<u32>,
    /// Take this target out of the map. One that is added in its failure domain takes its place.
    #[arg(long, value_name = "N")]
    pub(crate) remove: Vec<u32>,
    /// Take target OLD out of the map, and put NEW into its place, like 7=19: one that is added, or that was drained. It may be in
    /// another failure domain, as long as its groups have enough of them. May be given several times.
    #[arg(long, value_name = "OLD=NEW", value_parser = replacement)]
    pub(crate) replace: Vec<(u32, u32)>,
    /// Give a target another capacity, like 7=2TiB.
    #[arg(long, value_name = "N=SIZE", value_parser = weight)]
    pub(crate) capacity: Vec<(u32, String)>,
    /// Keep another number of copies of each chunk that is put from then on.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) copies: Option<u8>,
    /// Make groups of another number of cells, 1 to 10. This moves most chunks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=10))]
    pub(crate) group_cells: Option<u8>,
    /// Whether neighbouring groups share cells. To change it moves most chunks.
    #[arg(long, value_name = "BOOL")]
    pub(crate) overlap: Option<bool>,
    /// Divide chunks among the groups by their capacities again.
    #[arg(long)]
    pub(crate) level: bool,
    /// Lay the cluster out as a new one. Only while nothing is stored: what there is would not be found.
    #[arg(long, conflicts_with_all = ["add", "drain", "restore", "remove", "replace", "capacity", "copies", "group_cells", "overlap", "level"])]
    pub(crate) new: bool,
    /// Have the map decided, and write it into the configuration. The present one stays beside it, as FILE.EPOCH.
    #[arg(long)]
    pub(crate) write: bool,
    /// Write also a map that forgets the layout before the present one, where something may still be.
    #[arg(long, requires = "write")]
    pub(crate) forget_previous: bool,
    /// How.
    #[command(flatten)]
    pub(crate) rules: PlanRules,
}

/// What every change of the cluster map has to know.
#[derive(Debug, Default, ClapArgs)]
pub(crate) struct PlanRules {
    /// How many bytes all copies of all chunks have (default: what the gateway says).
    #[arg(long, value_name = "SIZE")]
    pub(crate) stored: Option<String>,
    /// Take targets out also when they may have every copy of some objects: those in as many failure domains as objects have copies.
    #[arg(long)]
    pub(crate) drop_copies: bool,
    /// Where gateways decide maps that share a catalog.
    #[command(flatten)]
    pub(crate) catalog: CatalogArg,
    /// Which cluster, and how to print.
    #[command(flatten)]
    pub(crate) table: TableArgs,
}

/// How a change of the cluster map is made.
#[derive(Debug, ClapArgs)]
pub(crate) struct ChangeArgs {
    /// Only say what it would move.
    #[arg(long)]
    dry_run: bool,
    /// Write also a map that forgets the layout before the present one, where something may still be.
    #[arg(long, conflicts_with = "dry_run")]
    forget_previous: bool,
    /// How.
    #[command(flatten)]
    rules: PlanRules,
}

impl ChangeArgs {
    /// The plan for it.
    pub(crate) fn plan(self, change: PlanArgs) -> PlanArgs {
        PlanArgs { write: !self.dry_run, forget_previous: self.forget_previous, rules: self.rules, ..change }
    }
}

fn weight(text: &str) -> Result<(u32, String), String> {
    let parts = text.split_once('=').and_then(|(id, size)| Some((id.parse().ok()?, size.to_owned())));
    parts.ok_or_else(|| format!("{text:?}: write for example 7=2TiB"))
}

fn replacement(text: &str) -> Result<(u32, u32), String> {
    let parts = text.split_once('=').and_then(|(old, new)| Some((old.parse().ok()?, new.parse().ok()?)));
    parts.ok_or_else(|| format!("{text:?}: write for example 7=19"))
}
