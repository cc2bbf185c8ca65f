//! Where the catalog of objects is, and the commands for it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use catalog::{Catalog, Postgres, Sqlite, Transient};
use node::atomic_file;
use object::rebuild::{Amendment, Authority, Comparison, Manifests};
use serde::Serialize;

use crate::args::{CatalogArg, CatalogCommand};
use crate::gateway_file::{self, S3File};
use crate::local_cluster;
use crate::node_cluster::NodeCluster;
use crate::output::{json, line, say};

/// Remarks and differences that are printed, unless all are asked for.
const SHOWN: usize = 100;

/// Where the catalog is.
pub(crate) enum CatalogLocation {
    /// In a file, which one process may change.
    File(PathBuf),
    /// In a database.
    Database(String),
}

impl CatalogLocation {
    /// As the command line has it, or the environment, or the file of the gateway.
    pub(crate) fn of(config: &Path, arg: &CatalogArg, file: Option<&S3File>) -> Self {
        let url = gateway_file::database(arg.url.as_deref(), file);
        url.map_or_else(|| Self::File(atomic_file::directory(config).join("catalog.sqlite")), Self::Database)
    }

    /// Opens it to be changed as long as this program runs.
    pub(crate) fn open_for_changes(&self, cluster: &NodeCluster) -> anyhow::Result<Arc<dyn Catalog>> {
        if let Self::File(path) = self {
            ensure!(
                path.exists() || !path.with_extension("new").exists(),
                "the catalog {} is missing, as `reservoir catalog rebuild` was cut off: run that again",
                path.display()
            );
            // Held until the process ends.
            std::mem::forget(lock(path)?);
            let is_new = !path.exists();
            let catalog = self.open(cluster)?;
            if is_new
                && crate::gateway::Cluster::status(cluster)
                    .is_ok_and(|status| status.targets.iter().any(|t| t.chunks > Some(0)))
            {
                tracing::warn!(
                    "there was no catalog {}, and the targets hold chunks: an empty one was made. If there were objects, \
                     `reservoir catalog rebuild` finds them",
                    path.display()
                );
            }
            return Ok(catalog);
        }
        self.open(cluster)
    }

    /// Opens the one that is there, and makes none: some callers must not begin with an empty one.
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

/// What `reservoir catalog check` found.
#[derive(Serialize)]
struct Found {
    buckets: usize,
    versions: usize,
    differences: Vec<String>,
    /// What changes left that were not made, or are under way: nothing of it counts, and cleaning takes it.
    harmless: Vec<String>,
    /// What could not be used.
    remarks: Vec<String>,
}

/// What `reservoir catalog rebuild` changes: a line for each version and bucket.
#[derive(Serialize)]
struct Changed<'a> {
    buckets: usize,
    versions: usize,
    /// What the catalog did not know of.
    adds: &'a [String],
    /// What it knew to be removed, or never made, unless it lost the row.
    brings_back: &'a [String],
    removes: &'a [String],
    changes: &'a [String],
    /// What could not be used.
    remarks: &'a [String],
    /// Whether nothing was changed.
    dry_run: bool,
}

/// Runs `reservoir catalog`.
pub(crate) fn run(command: &CatalogCommand) -> anyhow::Result<()> {
    let (CatalogCommand::Rebuild { table, catalog, .. } | CatalogCommand::Check { table, catalog }) = command;
    let config = &table.config;
    let place = CatalogLocation::of(config, catalog, gateway_file::load(config)?.s3.as_ref());
    let cluster = NodeCluster::start(&local_cluster::read(config)?, None, false, None)?;
    match command {
        CatalogCommand::Check { .. } => check(&place, &cluster, table.json),
        CatalogCommand::Rebuild { from_manifests, dry_run, .. } => {
            let authority = if *from_manifests { Authority::Manifests } else { Authority::Catalog };
            let how = Rebuild { cluster: &cluster, authority, dry_run: *dry_run, json: table.json };
            match &place {
                CatalogLocation::File(path) => how.file(path),
                CatalogLocation::Database(url) => how.database(url),
            }
        }
    }
}

fn check(place: &CatalogLocation, cluster: &NodeCluster, as_json: bool) -> anyhow::Result<()> {
    let catalog = place.open_existing(cluster)?;
    let manifests = Manifests::read(cluster)?;
    let (buckets, versions) = manifests.counts();
    let Comparison { differences, amendable, lost, harmless, remarks } = manifests.compare(&*catalog)?;
    let count = differences.len();
    let found = Found { buckets, versions, differences, harmless, remarks };
    if as_json {
        json(&found)?;
    } else {
        print_lines("", &[&found.differences[..], &found.remarks[..]].concat())?;
        match found.harmless.len() {
            0 => {}
            left => line(&format!(
                "{left} leftovers of changes that were not made, or are under way: harmless, nobody got an answer that they \
                 were made, and cleaning takes them (`--json` names them)"
            ))?,
        }
        line(&format!("{buckets} buckets, {versions} versions, {count} differences"))?;
    }
    if count > 0 {
        bail!(
            "the catalog and the manifests differ in {count} places: {}",
            advice(amendable, count - amendable - lost, lost)
        );
    }
    Ok(())
}

/// What to do about these numbers of differences.
fn advice(amendable: usize, denied: usize, lost: usize) -> String {
    let mut all = vec![];
    if amendable > 0 {
        all.push(format!("{amendable} that `reservoir catalog rebuild` makes right"));
    }
    if denied > 0 {
        all.push(format!(
            "{denied} of which the catalog knows better, so that nothing is to be done if a disk came back with what was \
             removed; if the catalog was damaged, `reservoir catalog rebuild --from-manifests --dry-run` shows what that \
             would bring back and remove"
        ));
    }
    if lost > 0 {
        all.push(format!("{lost} objects whose last copies are lost: start all targets, or put the objects again"));
    }
    all.join("; ")
}

/// Prints the first lines.
fn print_lines(before: &str, lines: &[String]) -> anyhow::Result<()> {
    lines.iter().take(SHOWN).try_for_each(|text| line(&format!("{before}{text}")))?;
    match lines.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => line(&format!("and {more} more: `--json` prints all")),
    }
}

/// How to make a catalog right.
struct Rebuild<'a> {
    cluster: &'a NodeCluster,
    authority: Authority,
    dry_run: bool,
    json: bool,
}

impl Rebuild<'_> {
    fn file(&self, path: &Path) -> anyhow::Result<()> {
        let _lock = if self.dry_run { None } else { Some(lock(path)?) };
        let manifests = Manifests::read(self.cluster)?;
        // One that is missing knows nothing.
        let amendment = if path.exists() {
            self.amendment(&manifests, || Ok(manifests.amendment(&open_file(path)?, self.authority)?))?
        } else {
            manifests.amendment(&Transient::new()?, self.authority)?
        };
        self.print(&amendment)?;
        if !self.dry_run {
            match self.authority {
                Authority::Manifests => manifests.write(path)?,
                Authority::Catalog => open_file(path)?.amend(&amendment.amends)?,
            }
        }
        self.conclude(&amendment)
    }

    fn database(&self, url: &str) -> anyhow::Result<()> {
        let catalog = open_database(url, self.cluster)?;
        // Nothing that gateways are asked to change comes between.
        let hold = if self.dry_run { None } else { Some(catalog.hold()?) };
        let manifests = Manifests::read(self.cluster)?;
        let amendment = self.amendment(&manifests, || Ok(manifests.amendment(&catalog, self.authority)?))?;
        self.print(&amendment)?;
        if let Some(hold) = hold {
            match self.authority {
                Authority::Catalog => hold.amend(amendment.amends.clone(), false)?,
                Authority::Manifests => {
                    let all = manifests.amendment(&Transient::new()?, Authority::Manifests)?;
                    hold.amend(all.amends, true)?;
                }
            }
        }
        self.conclude(&amendment)
    }

    /// What makes a catalog right; of one that cannot be read and is not believed, all of it.
    fn amendment(
        &self,
        manifests: &Manifests,
        of_catalog: impl FnOnce() -> anyhow::Result<Amendment>,
    ) -> anyhow::Result<Amendment> {
        match of_catalog() {
            Err(error) if self.authority == Authority::Manifests => {
                say!("what is in the catalog is not compared: {error:#}");
                Ok(manifests.amendment(&Transient::new()?, self.authority)?)
            }
            amendment => amendment,
        }
    }

    /// Says what is going to be changed.
    fn print(&self, amendment: &Amendment) -> anyhow::Result<()> {
        if self.json {
            return Ok(());
        }
        let Amendment { adds, brings_back, removes, changes, remarks, .. } = amendment;
        for (verb, lines) in [("adds", adds), ("brings back", brings_back), ("removes", removes), ("changes", changes)]
        {
            print_lines(&format!("{verb} "), lines)?;
        }
        print_lines("", remarks)?;
        let tense = if self.dry_run { "would be" } else { "to be" };
        line(&format!("{tense} {}", counted(amendment)))
    }

    /// Says what was changed.
    fn conclude(&self, amendment: &Amendment) -> anyhow::Result<()> {
        let (buckets, versions) = amendment.counts;
        let Amendment { adds, brings_back, removes, changes, remarks, .. } = amendment;
        if self.json {
            let dry_run = self.dry_run;
            return json(&Changed { buckets, versions, adds, brings_back, removes, changes, remarks, dry_run });
        }
        if self.dry_run {
            return line("nothing was changed");
        }
        line(&format!("done: {}; {buckets} buckets, {versions} versions", counted(amendment)))
    }
}

fn counted(amendment: &Amendment) -> String {
    let Amendment { adds, brings_back, removes, changes, .. } = amendment;
    let [adds, back, removes, changes] = [adds, brings_back, removes, changes].map(Vec::len);
    format!("{adds} added, {back} brought back, {removes} removed, {changes} changed")
}
