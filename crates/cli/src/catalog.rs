//! Where the catalog of objects is, and the commands for it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use object::catalog::{Catalog, Postgres, Sqlite};
use object::rebuild::{Comparison, Manifests};
use serde::Serialize;

use crate::args::{CatalogArg, CatalogCommand};
use crate::layout::{self, S3File};
use crate::output::{json, line};
use crate::service::NodeCluster;

/// Remarks and differences that are printed, unless all are asked for.
const SHOWN: usize = 100;

/// Where the catalog is.
pub(crate) enum Place {
    /// In a file, which one process may change.
    File(PathBuf),
    /// In a database.
    Database(String),
}

impl Place {
    /// As the command line has it, or the environment, or the file of the gateway.
    pub(crate) fn of(config: &Path, arg: &CatalogArg, file: Option<&S3File>) -> Self {
        let url = arg.url.clone().filter(|url| !url.is_empty()).or_else(|| file.and_then(|file| file.catalog.clone()));
        url.map_or_else(|| Self::File(layout::directory(config).join("catalog.sqlite")), Self::Database)
    }

    /// Opens it for who changes it as long as this program runs.
    pub(crate) fn open_for_changes(&self, cluster: &NodeCluster) -> anyhow::Result<Arc<dyn Catalog>> {
        if let Self::File(path) = self {
            // Held until the process ends.
            std::mem::forget(lock(path)?);
        }
        self.open(cluster)
    }

    /// Opens the one that is there: who must not begin with an empty one does not make a file.
    pub(crate) fn open_existing(&self, cluster: &NodeCluster) -> anyhow::Result<Arc<dyn Catalog>> {
        if let Self::File(path) = self {
            ensure!(
                path.exists(),
                "there is no catalog {}: `reservoir catalog rebuild` makes it again",
                path.display()
            );
        }
        self.open(cluster)
    }

    fn open(&self, cluster: &NodeCluster) -> anyhow::Result<Arc<dyn Catalog>> {
        Ok(match self {
            Self::File(path) => Arc::new(open_file(path)?),
            Self::Database(url) => Arc::new(open_database(url, cluster)?),
        })
    }
}

fn open_file(path: &Path) -> anyhow::Result<Sqlite> {
    Sqlite::open(path).with_context(|| format!("the catalog {} cannot be opened", path.display()))
}

fn open_database(url: &str, cluster: &NodeCluster) -> anyhow::Result<Postgres> {
    let password = std::env::var("PGPASSWORD").ok();
    Ok(Postgres::open(url, password.as_deref(), &cluster.client().config().cluster)?)
}

/// Keeps everybody else from the catalog in this file.
fn lock(catalog: &Path) -> anyhow::Result<File> {
    let path = catalog.with_extension("lock");
    let file = File::create(&path).with_context(|| format!("{} cannot be written", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => bail!(
            "a gateway uses the catalog {}: stop it first, or give both a catalog that they share (`catalog` in gateway.toml)",
            catalog.display()
        ),
        Err(fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("{} cannot be locked", path.display()))
        }
    }
}

/// An address without its password, to be kept in a file that others may read.
pub(crate) fn without_password(url: &str) -> anyhow::Result<String> {
    let parts = url.split_once("://").filter(|_| !url.contains("password="));
    let (scheme, rest) =
        parts.context("a catalog is named postgres://USER@HOST/DATABASE, with the password in PGPASSWORD")?;
    let host = rest.split(['/', '?']).next().unwrap_or_default().len();
    let Some(at) = rest[..host].rfind('@') else { return Ok(url.to_owned()) };
    let user = rest[..at].split(':').next().unwrap_or_default();
    Ok(format!("{scheme}://{user}{}", &rest[at..]))
}

/// What `reservoir catalog` found.
#[derive(Serialize)]
struct Found {
    buckets: usize,
    versions: usize,
    differences: Vec<String>,
    /// What changes left that were never answered, or are under way: nothing of it counts, and cleaning takes it.
    harmless: Vec<String>,
    /// What could not be used.
    remarks: Vec<String>,
}

/// Runs `reservoir catalog`.
pub(crate) fn run(command: &CatalogCommand) -> anyhow::Result<()> {
    let (CatalogCommand::Rebuild { table, catalog } | CatalogCommand::Check { table, catalog }) = command;
    let config = &table.config;
    let place = Place::of(config, catalog, layout::gateway_file(config)?.s3.as_ref());
    let cluster = NodeCluster::start(&layout::load(config)?, None, false, None)?;
    let (manifests, compared): (Manifests, Option<Comparison>) = match (command, &place) {
        (CatalogCommand::Rebuild { .. }, Place::File(path)) => {
            let _lock = lock(path)?;
            let manifests = Manifests::read(&cluster)?;
            manifests.write(path)?;
            (manifests, None)
        }
        (CatalogCommand::Rebuild { .. }, Place::Database(url)) => {
            (Manifests::rebuild(&cluster, &open_database(url, &cluster)?)?, None)
        }
        (CatalogCommand::Check { .. }, _) => {
            let catalog = place.open_existing(&cluster)?;
            let manifests = Manifests::read(&cluster)?;
            let compared = manifests.compare(&*catalog)?;
            (manifests, Some(compared))
        }
    };
    let (buckets, versions) = manifests.counts();
    let made = || Comparison { remarks: manifests.remarks(), ..Comparison::default() };
    let Comparison { differences, harmless, remarks } = compared.unwrap_or_else(made);
    let count = differences.len();
    let found = Found { buckets, versions, differences, harmless, remarks };
    if table.json {
        json(&found)?;
    } else {
        let lines = found.differences.iter().chain(&found.remarks);
        lines.clone().take(SHOWN).try_for_each(|text| line(text))?;
        let more = lines.count().saturating_sub(SHOWN);
        if more > 0 {
            line(&format!("and {more} more: `--json` prints all"))?;
        }
        match found.harmless.len() {
            0 => {}
            left => line(&format!(
                "{left} leftovers of changes that were never answered, or are under way: harmless, nobody was told that \
                 they were made, and cleaning takes them (`--json` names them)"
            ))?,
        }
        line(&format!("{buckets} buckets, {versions} versions, {count} differences"))?;
    }
    if count > 0 {
        bail!("the catalog and the manifests differ in {count} places: `reservoir catalog rebuild` makes it again");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_kept_without_its_password() {
        let kept = |url| without_password(url).ok();
        let plain = Some("postgres://ann@h:5/d?sslmode=disable".to_owned());
        assert_eq!(kept("postgres://ann:hush@h:5/d?sslmode=disable"), plain);
        assert_eq!(kept("postgres://ann:hu@sh@h:5/d?sslmode=disable"), plain);
        assert_eq!(kept("postgres://ann@h:5/d?sslmode=disable"), plain);
        assert_eq!(kept("postgres://h/d"), Some("postgres://h/d".to_owned()));
        assert_eq!(kept("postgres://ann@h/d?password=hush"), None);
        assert_eq!(kept("ann:hush"), None);
    }
}
