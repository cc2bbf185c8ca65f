//! Who decides the cluster map. Each epoch is decided once, in one place: the file of the gateway's machine, or a table in the
//! database that several gateways share. All else follows: nodes hand on what was decided.

mod database;
mod file;

use std::path::Path;
use std::sync::Arc;

use node::ClusterConfig;
use protocol::proposer::{Proposer, Step};

pub(crate) use protocol::proposer::Verdict;

pub(crate) use self::database::Database;
use self::file::MapOfFile;
use crate::{gateway_file, process};

/// Where cluster maps are decided. Calls block.
pub(crate) trait MapAuthority: Send + Sync {
    /// The newest map.
    fn newest(&self) -> anyhow::Result<ClusterConfig>;
    /// Decides `next`, which was made from the map `from`, if that is the newest still.
    fn propose(&self, from: &ClusterConfig, next: &ClusterConfig) -> anyhow::Result<Verdict>;
    /// Where, for people.
    fn location(&self) -> String;
}

/// Has a change decided, with so many proposals at most: `make` says which map follows the newest one, or that there is nothing to
/// change. The map that has it. A proposal of which nobody says what became of it is looked for in the newest map.
pub(crate) fn decide(
    authority: &dyn MapAuthority,
    tries: u32,
    mut make: impl FnMut(&ClusterConfig) -> anyhow::Result<Option<ClusterConfig>>,
) -> anyhow::Result<Decided> {
    let mut proposer = Proposer::new(tries);
    let mut failed = None;
    loop {
        match proposer.step() {
            Step::Read => {
                // Where nobody answers now either, what went wrong first says most.
                let newest = authority.newest().map_err(|error| failed.take().unwrap_or(error))?;
                proposer.newest(newest);
            }
            Step::Make(present) => {
                let next = make(present)?;
                proposer.made(next);
            }
            Step::Propose { from, next } => match authority.propose(from, next) {
                Ok(verdict) => {
                    failed = None;
                    proposer.answered(Some(verdict));
                }
                Err(error) => {
                    failed = Some(error);
                    proposer.answered(None);
                }
            },
            Step::Use(_) => return Ok(Decided::Changed),
            Step::Nothing => return Ok(Decided::Nothing),
            // A proposal that was refused, and not outrun: why says most.
            Step::Outrun => return failed.map_or(Ok(Decided::Outrun), Err),
        }
    }
}

/// How that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decided {
    /// The newest map has the change.
    Changed,
    /// There was nothing to change.
    Nothing,
    /// Others changed the map each time.
    Outrun,
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use anyhow::bail;

    use super::*;

    fn config(epoch: u32, copies: u8) -> ClusterConfig {
        let target = |n: u32| {
            format!(
                "[[target]]\nid = {n}\naddress = \"127.0.0.1:{n}\"\ndomain = \"d{n}\"\ncapacity = \"1GiB\"\ndata = \"{n}\"\n"
            )
        };
        let targets: Vec<String> = (1..=4).map(target).collect();
        let text =
            format!("cluster = \"c\"\nepoch = {epoch}\ncopies = {copies}\nkey_file = \"k\"\n{}", targets.join(""));
        ClusterConfig::parse(&text, Path::new("cluster.toml")).expect("a good map")
    }

    /// It decides what is proposed, and does not say so.
    struct Mute(Mutex<ClusterConfig>);

    impl MapAuthority for Mute {
        fn newest(&self) -> anyhow::Result<ClusterConfig> {
            Ok(self.0.lock().expect("nobody panics").clone())
        }

        fn propose(&self, _: &ClusterConfig, next: &ClusterConfig) -> anyhow::Result<Verdict> {
            *self.0.lock().expect("nobody panics") = next.clone();
            bail!("the connection is lost")
        }

        fn location(&self) -> String {
            String::new()
        }
    }

    #[test]
    fn a_change_that_was_decided_though_nobody_said_so_is_not_made_again() {
        let authority = Mute(Mutex::new(config(1, 3)));
        let mut made = 0;
        let decided = decide(&authority, 3, |present| {
            made += 1;
            Ok(Some(config(present.epoch + 1, 2)))
        });
        assert_eq!((decided.expect("it answers"), made), (Decided::Changed, 1));
    }
}
