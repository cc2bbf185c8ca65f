//! The command line of `target`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args as ClapArgs;

/// Settings of `target`.
#[derive(Debug, ClapArgs)]
pub(crate) struct TargetArgs {
    /// The cluster's configuration.
    #[arg(long, value_name = "FILE", default_value = "./data/cluster.toml")]
    pub(crate) config: PathBuf,
    /// Which target of the configuration to be; with --join the id that the new one is to have (default: one that none had).
    #[arg(long, value_name = "N", required_unless_present = "data")]
    pub(crate) id: Option<u32>,
    /// Make an empty store in its directory, and exit. Once for each target and each empty disk: a target does not start
    /// where there is no store, as the disk may only not be mounted.
    #[arg(long)]
    pub(crate) new: bool,
    /// The directory of a target that joined, which has its configuration, the cluster's key and its store.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["config", "new"])]
    pub(crate) data: Option<PathBuf>,
    /// How to join.
    #[command(flatten)]
    pub(crate) join: JoinArgs,
    /// Stop when the process that started this one is gone.
    #[arg(long, hide = true)]
    pub(crate) with_parent: bool,
}

/// How a target joins a cluster.
#[derive(Debug, ClapArgs)]
pub(crate) struct JoinArgs {
    /// Become a target of the cluster whose gateway has this address, `http` in its gateway.toml, and run. A node that is one already just
    /// runs.
    #[arg(long, value_name = "ADDRESS", requires_all = ["data", "key_file"])]
    pub(crate) join: Option<String>,
    /// The cluster's key, as cluster.key has it. It is never sent; a copy is kept in the directory.
    #[arg(long, value_name = "FILE", requires = "join")]
    pub(crate) key_file: Option<PathBuf>,
    /// Take the place of this target, whose disk died: it is taken out of the map.
    #[arg(long, value_name = "N", requires = "join")]
    pub(crate) replace: Option<u32>,
    /// Bytes that its files may take of the disk, like 2TiB (default: what is free there).
    #[arg(long, value_name = "SIZE", requires = "join")]
    pub(crate) capacity: Option<String>,
    /// Its failure domain (default: that of the cluster's other targets at its address, or else the name of this machine).
    #[arg(long, value_name = "NAME", requires = "join")]
    pub(crate) domain: Option<String>,
    /// Where it listens (default: the address from which the gateway is reached, and a free port).
    #[arg(long, value_name = "ADDRESS:PORT", requires = "join")]
    pub(crate) listen: Option<SocketAddr>,
    /// Where it serves its metrics over HTTP (default: nowhere).
    #[arg(long, value_name = "ADDRESS:PORT", requires = "join")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Take the place of a target also when that may have every copy of some objects, which are lost then.
    #[arg(long, requires = "replace")]
    pub(crate) drop_copies: bool,
}
