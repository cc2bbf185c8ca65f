//! Who decides the cluster map. Each epoch is decided once, in one place: the file of the gateway's machine, or a table in the
//! database that several gateways share. All else follows: nodes hand on what was decided.

mod database;
mod file;

use std::path::Path;
use std::sync::Arc;

use node::ClusterConfig;

pub(crate) use self::database::Database;
use self::file::MapOfFile;
use crate::{gateway_file, process};

/// What became of a proposal.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is the newest map.
    Decided,
    /// The map that it was made from is not the newest any more. Nothing was changed.
    Conflict,
}

/// Where cluster maps are decided. Calls block.
pub(crate) trait MapAuthority: Send + Sync {
    /// The newest map.
    fn newest(&self) -> anyhow::Result<ClusterConfig>;
    /// Decides `next`, which was made from the map `from`, if that is the newest still.
    fn propose(&self, from: &ClusterConfig, next: &ClusterConfig) -> anyhow::Result<Verdict>;
    /// Where, for people.
    fn place(&self) -> String;
}

/// What decides the maps of the cluster whose configuration is `config`, for an operator's command. `catalog` is the database that
/// the command line names.
pub(crate) fn of_operator(config: &Path, catalog: Option<&str>) -> anyhow::Result<Box<dyn MapAuthority>> {
    let settings = gateway_file::load_if_there(config)?;
    let s3 = settings.as_ref().and_then(|settings| settings.s3.as_ref());
    Ok(match gateway_file::database(catalog, s3) {
        Some(url) => Box::new(Database::open(&url, config, &format!("{} on {}", user(), process::host()))?),
        None => Box::new(MapOfFile::of_operator(config, settings.as_ref())),
    })
}

/// What decides the maps where one gateway is: its file.
pub(crate) fn of_gateway(config: &Path) -> Arc<dyn MapAuthority> {
    Arc::new(MapOfFile::of_gateway(config))
}

fn user() -> String {
    std::env::var("USER").unwrap_or_else(|_| format!("user {}", rustix::process::getuid().as_raw()))
}
