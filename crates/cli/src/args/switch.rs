//! The command line of `switch`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

/// Settings of `switch`.
#[derive(Debug, ClapArgs)]
pub(crate) struct SwitchArgs {
    /// The cluster's configuration.
    #[arg(long, value_name = "FILE", default_value = "./data/cluster.toml")]
    pub(crate) config: PathBuf,
    /// Which switch of the configuration to be.
    #[arg(long, value_name = "N")]
    pub(crate) id: u32,
    /// Stop when the process that started this one is gone.
    #[arg(long, hide = true)]
    pub(crate) with_parent: bool,
}
