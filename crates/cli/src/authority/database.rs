//! Maps that are decided in the database that several gateways share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use catalog::{DecidedMap, Postgres};
use jiff::Timestamp;
use node::{Client, ClusterConfig};
use protocol::map::MapDocument;

use super::{MapAuthority, Verdict};
use crate::background::{self, Background};
use crate::local_cluster;
use crate::password::without_password;

/// How often a gateway looks for a newer map.
const LOOK: Duration = Duration::from_secs(2);

/// The table of maps.
pub(crate) struct Database {
    table: Postgres,
    /// The file of this machine, which follows.
    path: PathBuf,
    /// The node that proposes.
    decided_by: String,
    /// For people.
    address: String,
}

impl Database {
    /// Opens the table in the database at `url`, for the cluster whose file is `config`.
    pub(crate) fn open(url: &str, config: &Path, decided_by: &str) -> anyhow::Result<Self> {
        let name = local_cluster::read(config)?.cluster;
        let table = Postgres::open(url, std::env::var("PGPASSWORD").ok().as_deref(), &name)?;
        let address = without_password(url).unwrap_or_else(|_| "a database".to_owned());
        Ok(Self { table, path: config.to_owned(), decided_by: decided_by.to_owned(), address })
    }

    /// Decides `map`, if that of epoch `after` is the newest still.
    fn decide(&self, after: Option<u32>, map: &ClusterConfig) -> anyhow::Result<Verdict> {
        let document = map.document().context("the cluster map is too long: more than 4 MiB, compressed")?;
        let micros = u64::try_from(Timestamp::now().as_microsecond()).unwrap_or(0);
        let (document, decided_by) = (document.bytes().to_vec(), self.decided_by.clone());
        let decided = self.table.decide_map(after, &DecidedMap { epoch: map.epoch, document, decided_by, micros })?;
        Ok(if decided { Verdict::Decided } else { Verdict::Conflict })
    }

    /// The newest map, if one was decided.
    fn decided(&self) -> anyhow::Result<Option<ClusterConfig>> {
        let Some(row) = self.table.newest_map()? else { return Ok(None) };
        let document = MapDocument::new(row.document.into()).context("the newest map in the database is none")?;
        Ok(Some(ClusterConfig::received(&document, &local_cluster::read(&self.path)?)?))
    }

    /// Puts a map into the file of this machine, unless that has it already.
    fn keep(&self, map: &ClusterConfig) -> anyhow::Result<()> {
        let (text, before) = local_cluster::read_text(&self.path)?;
        let map = ClusterConfig { path: self.path.clone(), ..map.clone() };
        let done = before.epoch >= map.epoch || map.replace((&text, before.epoch))?;
        ensure!(done, "{} was changed meanwhile", self.path.display());
        Ok(())
    }

    /// Lets a gateway use the newest map, until what is returned is dropped. A newer one that it uses already (from a file that
    /// somebody wrote by hand, or from before the database was set back) is put into the table.
    pub(crate) fn follow(self: &Arc<Self>, client: &Client) -> anyhow::Result<Background> {
        let (this, client) = (Arc::clone(self), client.clone());
        background::start("map", move |pauses| {
            let (mut compared, mut last) = (None, None);
            loop {
                // The same is said once, and not every few seconds.
                let problem = this.look(&client, &mut compared).err().map(|error| format!("{error:#}"));
                if let Some(problem) = problem.as_ref().filter(|problem| last.as_ref() != Some(*problem)) {
                    tracing::warn!("this gateway works on with the cluster map that it has: {problem}");
                }
                last = problem;
                if !pauses.rest(LOOK) {
                    return;
                }
            }
        })
    }

    fn look(&self, client: &Client, compared: &mut Option<u32>) -> anyhow::Result<()> {
        let (used, newest) = (client.config(), self.table.newest_map_epoch()?);
        if newest > Some(used.epoch) {
            let map = self.decided()?.context("the newest map is gone from the database")?;
            self.keep(&map)?;
            client.reload();
            return Ok(());
        }
        if newest < Some(used.epoch) {
            // One that was down may have an old one, of which the targets know better.
            let answered = client.ping().wait()?.is_ok_and(|states| states.iter().any(|state| state.answer.is_some()));
            if answered && client.newer_map().is_none() {
                // Where another gateway was first, the next look finds that.
                let verdict = self.decide(newest, &used)?;
                if verdict == Verdict::Decided {
                    tracing::info!("the cluster map of epoch {} is in the database now", used.epoch);
                }
            }
            return Ok(());
        }
        if *compared != Some(used.epoch) {
            let decided = self.decided()?.filter(|decided| decided.epoch == used.epoch);
            if decided.is_some_and(|decided| decided.document() != used.document()) {
                bail!(
                    "it is another than that of epoch {} that was decided in the database: make the next map with `reservoir \
                     cluster plan --write`, and write none by hand",
                    used.epoch
                );
            }
            *compared = Some(used.epoch);
        }
        Ok(())
    }
}

impl MapAuthority for Database {
    fn newest(&self) -> anyhow::Result<ClusterConfig> {
        let map = self.decided()?;
        let map =
            map.context("no cluster map is in the database yet: start a gateway, which puts the one in use there")?;
        let file = local_cluster::read(&self.path)?.epoch;
        ensure!(
            file <= map.epoch,
            "{} has a map of epoch {file}, and the database {}: a gateway that uses it puts it there within seconds; look again then",
            self.path.display(),
            map.epoch
        );
        Ok(map)
    }

    fn propose(&self, from: &ClusterConfig, next: &ClusterConfig) -> anyhow::Result<Verdict> {
        let verdict = self.decide(Some(from.epoch), next)?;
        if verdict == Verdict::Decided
            && let Err(error) = self.keep(next)
        {
            tracing::warn!("the map of epoch {} is decided, and a gateway will bring it here: {error:#}", next.epoch);
        }
        Ok(verdict)
    }

    fn location(&self) -> String {
        format!("in {}", self.address)
    }
}
