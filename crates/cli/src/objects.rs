//! The S3 face of a gateway, and the commands for its users and its catalog.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use object::ChunkService;
use object::catalog::Sqlite;
use object::objects::Objects;
use object::rebuild::Manifests;
use serde::Serialize;

use crate::args::{CatalogCommand, UserCommand};
use crate::output::{json, line};
use crate::service::NodeCluster;
use crate::{gateway, layout};

/// Differences that are printed.
const SHOWN: usize = 100;

/// What serves S3. The lock is held while it runs: nobody else may change the catalog.
pub(crate) struct Face {
    pub(crate) server: s3::Server,
    pub(crate) listener: TcpListener,
    _lock: File,
}

fn directory(config: &Path) -> &Path {
    config.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn catalog_path(config: &Path) -> PathBuf {
    directory(config).join("catalog.sqlite")
}

/// Keeps everybody else from the catalog.
fn lock(config: &Path) -> anyhow::Result<File> {
    let path = directory(config).join("catalog.lock");
    let file = File::create(&path).with_context(|| format!("{} cannot be written", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => {
            bail!("a gateway uses the catalog in {}: stop it first", directory(config).display())
        }
        Err(fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("{} cannot be locked", path.display()))
        }
    }
}

fn open_catalog(config: &Path) -> anyhow::Result<Sqlite> {
    let path = catalog_path(config);
    Sqlite::open(&path).with_context(|| format!("the catalog {} cannot be opened", path.display()))
}

/// The S3 face of a cluster, and its socket.
pub(crate) fn face(config: &Path, file: &layout::S3File, cluster: &Arc<NodeCluster>) -> anyhow::Result<Face> {
    let listener = TcpListener::bind(file.listen).with_context(|| {
        format!("the gateway cannot listen on {} for S3: stop what uses it, or change s3.listen", file.listen)
    })?;
    listener.set_nonblocking(true).context("the socket for S3 cannot be prepared")?;
    let lock = lock(config)?;
    let catalog = open_catalog(config)?;
    let objects = Objects::new(Arc::clone(cluster) as Arc<dyn ChunkService + Send + Sync>, Arc::new(catalog));
    let objects = objects.compressing(file.compress);
    let live = gateway::Cluster::live(&**cluster);
    let watch: s3::Watch = Arc::new(move |status| live.answered(Instant::now(), status.as_u16()));
    let certificate = file.certificate(directory(config))?;
    let settings = s3::Settings { domain: file.domain.clone(), certificate, watch: Some(watch) };
    let server = s3::Server::new(Arc::new(objects), layout::users(directory(config)), &settings)
        .map_err(|why| anyhow::anyhow!("[s3] in gateway.toml: {why}"))?;
    Ok(Face { server, listener, _lock: lock })
}

/// A user as it is listed: without the secret.
#[derive(Serialize)]
struct Listed {
    name: String,
    access_key: String,
}

/// Runs `reservoir user`. A running gateway knows at once.
pub(crate) fn user(command: &UserCommand) -> anyhow::Result<()> {
    let (UserCommand::Add { table, .. } | UserCommand::List { table } | UserCommand::Remove { table, .. }) = command;
    layout::gateway_file(&table.config)?;
    let users = layout::users(directory(&table.config));
    match command {
        UserCommand::Add { name, .. } => {
            let user = users.add(name)?;
            if table.json {
                return json(&user);
            }
            line(&format!("access key: {}\nsecret key: {}", user.access_key, user.secret_key))
        }
        UserCommand::List { .. } => {
            let list = users.list()?.into_iter().map(|user| Listed { name: user.name, access_key: user.access_key });
            let list: Vec<Listed> = list.collect();
            if table.json {
                return json(&list);
            }
            list.iter().try_for_each(|user| line(&format!("{}  {}", user.access_key, user.name)))
        }
        UserCommand::Remove { name, .. } => Ok(users.remove(name)?),
    }
}

/// What `reservoir catalog` found.
#[derive(Serialize)]
struct Found {
    buckets: usize,
    versions: usize,
    remarks: Vec<String>,
    differences: Vec<String>,
}

/// Runs `reservoir catalog`.
pub(crate) fn catalog(command: &CatalogCommand) -> anyhow::Result<()> {
    let (CatalogCommand::Rebuild { table } | CatalogCommand::Check { table }) = command;
    let config = &table.config;
    let cluster = NodeCluster::start(&layout::load(config)?, None, false, None)?;
    let (manifests, differences) = match command {
        CatalogCommand::Rebuild { .. } => {
            let _lock = lock(config)?;
            let manifests = Manifests::read(&cluster)?;
            manifests.write(&catalog_path(config))?;
            (manifests, vec![])
        }
        CatalogCommand::Check { .. } => {
            let manifests = Manifests::read(&cluster)?;
            let differences = manifests.compare(&open_catalog(config)?)?;
            (manifests, differences)
        }
    };
    let (buckets, versions) = manifests.counts();
    let count = differences.len();
    let found = Found { buckets, versions, remarks: manifests.remarks, differences };
    if table.json {
        json(&found)?;
    } else {
        let lines = found.remarks.iter().chain(&found.differences);
        lines.take(SHOWN).try_for_each(|text| line(text))?;
        line(&format!("{buckets} buckets, {versions} versions, {count} differences"))?;
    }
    if count > 0 {
        bail!("the catalog and the manifests differ in {count} places: `reservoir catalog rebuild` makes it again");
    }
    Ok(())
}
