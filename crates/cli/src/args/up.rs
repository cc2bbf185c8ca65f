//! Settings of `up`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use node::config::CarrierChoice;
use protocol::redundancy::Redundancy;
use protocol::transport::Transport;

use super::{CatalogArg, transport};

/// Settings of `up`.
#[derive(Debug, ClapArgs)]
pub(crate) struct UpArgs {
    /// Directory of the cluster: its configuration, key, logs and all data. Made at the first start.
    #[arg(long, value_name = "DIR", default_value = "./data")]
    pub(crate) data: PathBuf,
    /// Targets of a new cluster, 3 or more (default: 9); an existing one keeps its own.
    #[arg(long, value_name = "N")]
    pub(crate) targets: Option<u32>,
    /// Switches of a new cluster, which compute parity in flight (default: 0); an existing one keeps its own.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=16))]
    pub(crate) switches: Option<u16>,
    /// Copies of each object of a new cluster, or a code of data and parity as 4+2, where its bucket does not say otherwise (default: 3);
    /// an existing one keeps its own.
    #[arg(long, value_name = "N|K+M")]
    pub(crate) redundancy: Option<Redundancy>,
    /// Make a new cluster on the loopback interface's IPv6 address; an existing one stays where it is.
    #[arg(long)]
    pub(crate) ipv6: bool,
    /// What carries messages and payload in a new cluster, udp or tcp (default: udp); an existing one keeps its own.
    #[arg(long, value_name = "CARRIER", value_parser = carrier())]
    pub(crate) carrier: Option<CarrierChoice>,
    /// Encrypt what goes between the nodes of a new cluster: all of it with --carrier tcp, payload without; an existing one keeps its
    /// own way.
    #[arg(long)]
    pub(crate) encrypt: bool,
    /// After how many seconds a target of a new cluster that is down is taken out of it, and what it had is made again (default: 30;
    /// 0 is never); in an existing one `out_after_seconds` of its cluster.toml says so.
    #[arg(long, value_name = "S")]
    pub(crate) out_after: Option<u32>,
    /// Gateways. More than one need a catalog that they share.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(crate) gateways: u16,
    /// Where the catalog is.
    #[command(flatten)]
    pub(crate) catalog: CatalogArg,
    /// Put an object of 64 MiB, read it back, stop one target, read it again, and show what was measured. A new cluster then loses a
    /// target for good, and the demonstration goes on until all that it had is made again.
    #[arg(long)]
    pub(crate) demo: bool,
    /// Exit when the cluster answered (with --demo: when the demonstration is over; success only when every
    /// comparison held).
    #[arg(long)]
    pub(crate) once: bool,
    /// How copies are placed and carried (default: as the configuration says).
    #[arg(long, value_parser = transport())]
    pub(crate) transport: Option<Transport>,
    /// Do not use multicast, even where it works.
    #[arg(long)]
    pub(crate) no_multicast: bool,
    /// Leave a process that ended down, to see how the cluster does without it.
    #[arg(long)]
    pub(crate) no_restart: bool,
    /// Print the demonstration's table as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The name of a carrier.
pub(super) fn carrier() -> impl TypedValueParser<Value = CarrierChoice> {
    let named = |name: String| CarrierChoice::ALL.into_iter().find(|carrier| carrier.name() == name);
    PossibleValuesParser::new(CarrierChoice::ALL.map(CarrierChoice::name))
        .map(move |name| named(name).unwrap_or_default())
}
