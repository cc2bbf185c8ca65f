//! What `bench --messenger` measures.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use protocol::messenger::Policy;
use serde::Serialize;

/// How the load is spread over connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Skew {
    /// All connections are alike.
    Even,
    /// Four are heavy, which round-robin has given to one worker.
    Lands,
    /// Four are heavy, by chance.
    Random,
    /// Four are heavy, each second others, which round-robin has given to one worker.
    Moving,
}

impl Skew {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::Lands => "lands",
            Self::Random => "random",
            Self::Moving => "moving",
        }
    }
}

/// What may be done beside a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "kebab-case")]
pub(crate) enum Switches {
    /// Nothing.
    Plain,
    /// Each worker has a companion, which verifies and hands on what has payload.
    Dual,
    /// Each client has several connections.
    Lanes,
    /// Each client has several connections, and one order is restored of what comes over them.
    Ordered,
    /// Each worker has a companion, and each client several connections.
    Both,
}

impl Switches {
    pub(crate) const fn has_dual(self) -> bool {
        matches!(self, Self::Dual | Self::Both)
    }

    pub(crate) const fn has_lanes(self) -> bool {
        matches!(self, Self::Lanes | Self::Ordered | Self::Both)
    }
}

/// See the [module](self).
#[derive(Debug, ClapArgs)]
pub(crate) struct MessengerArgs {
    /// Measure the messenger alone: workers that verify and answer what comes over connections, by policy, size and skew
    /// [--sizes: 4KiB,8KiB,64KiB,1MiB; --workers: one for each core, at least 2]. All of it takes half an hour.
    #[arg(long, conflicts_with_all = ["config", "slow_target", "s3", "catalog", "conflicts", "strangers", "depth", "transports"])]
    pub(crate) messenger: bool,
    /// With --messenger: how the load is spread over connections.
    #[arg(long, value_name = "SKEW", value_enum, value_delimiter = ',', default_value = "even,lands,random,moving")]
    pub(crate) skews: Vec<Skew>,
    /// With --messenger: the policies to compare; ratios are to round-robin.
    #[arg(long, value_name = "POLICY", value_parser = super::balance(), value_delimiter = ',',
          default_value = "round-robin,fewest,bytes,work")]
    pub(crate) policies: Vec<Policy>,
    /// With --messenger: what each policy is measured with.
    #[arg(long, value_name = "WITH", value_enum, value_delimiter = ',', default_value = "plain")]
    pub(crate) with: Vec<Switches>,
    /// With --messenger: clients, each with a connection.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) connections: u16,
    /// With --messenger: how long a worker is busy with a message after it has read and verified it, in microseconds of a
    /// processor: what the paper measured. 0 shows what reading and verifying alone cost.
    #[arg(long, value_name = "US", default_value_t = 29)]
    pub(crate) dispatch_us: u32,
    /// With --messenger: rounds, each of which measures everything once.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) rounds: u32,
    /// With --messenger: write a report with plots into this directory.
    #[arg(long, value_name = "DIR", requires = "messenger")]
    pub(crate) out: Option<PathBuf>,
}
