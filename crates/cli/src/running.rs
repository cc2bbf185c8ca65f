//! The processes of a cluster on this machine.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use protocol::transport::Transport;

use crate::args::UpArgs;
use crate::client::{Gateway, S3};
use crate::local_cluster::{self, Cluster, LocalGateway};
use crate::node_cluster::NodeCluster;
use crate::process::{Children, Role};
use crate::{gateway, permissions};

/// How long targets and gateway may take until all of them answer. Recovery of a large store is part of it.
const START: Duration = Duration::from_secs(90);

/// Held by the running `up`.
const LOCK: &str = "up.lock";

/// A running cluster. Its processes stop when this is dropped.
pub(crate) struct Running {
    /// The targets in the order of the configuration, then the switches, then the gateways.
    pub(crate) children: Children,
    /// Its first gateway's pages.
    pub(crate) gateway: Gateway,
    /// What is configured.
    pub(crate) cluster: Cluster,
    /// Set by Ctrl-C.
    pub(crate) stop: Arc<AtomicBool>,
    /// Held while this cluster runs.
    _lock: File,
}

/// Makes or opens the cluster in the data directory, starts its processes and waits until all answer.
pub(crate) fn start(args: &UpArgs, stop: Arc<AtomicBool>) -> anyhow::Result<Running> {
    let is_new = !args.data.exists();
    fs::create_dir_all(&args.data)
        .with_context(|| format!("the directory {} cannot be made: choose another with --data", args.data.display()))?;
    let lock = lock(&args.data)?;
    let cluster = local_cluster::open_or_create(args).inspect_err(|_| {
        // Where nothing was made, nothing stays.
        if !args.data.join("cluster.toml").exists() {
            let _ = fs::remove_file(args.data.join(LOCK));
            if is_new {
                let _ = fs::remove_dir(&args.data);
            }
        }
    })?;
    permissions::tighten_cluster(&cluster.directory);
    let mut children = start_targets(&cluster, &stop)?;
    let logs = cluster.directory.join("logs");
    for gateway in &cluster.gateways {
        let url = args.catalog.url.as_deref();
        children.0.push(start_gateway(
            &cluster.config_path,
            &gateway.settings,
            args.transport,
            args.no_multicast,
            url,
        )?);
    }
    let advice = format!("see its log {}", logs.join("gateway.log").display());
    let gateway = Gateway::at(&cluster.gateway(), START, advice);
    let mut running = Running { children, gateway, cluster, stop, _lock: lock };
    running.wait_ready()?;
    Ok(running)
}

/// Starts the targets of a cluster and waits until all of them answer: a gateway probes multicast when it starts,
/// and finds it only when targets are there.
pub(crate) fn start_targets(cluster: &Cluster, stop: &AtomicBool) -> anyhow::Result<Children> {
    let logs = cluster.directory.join("logs");
    fs::create_dir_all(&logs).with_context(|| format!("the directory {} cannot be made", logs.display()))?;
    let config = cluster.config_path.display().to_string();
    let mut children = Children::default();
    for id in &cluster.targets {
        let role = [String::from("target"), "--config".into(), config.clone(), "--id".into(), id.to_string()];
        let log = logs.join(format!("target-{id}.log"));
        children.0.push(Role::start(&format!("target {id}"), role.to_vec(), log)?);
    }
    for id in &cluster.switches {
        let role = [String::from("switch"), "--config".into(), config.clone(), "--id".into(), id.to_string()];
        let log = logs.join(format!("switch-{id}.log"));
        children.0.push(Role::start(&format!("switch {id}"), role.to_vec(), log)?);
    }
    wait_for_targets(cluster, &mut children, stop)?;
    Ok(children)
}

/// Starts a gateway of a cluster. It gets the address of its catalog, if there is one, where nobody else sees it.
pub(crate) fn start_gateway(
    config: &Path,
    settings: &Path,
    transport: Option<Transport>,
    no_multicast: bool,
    catalog: Option<&str>,
) -> anyhow::Result<Role> {
    let mut role = vec![String::from("gateway"), "--config".into(), config.display().to_string()];
    role.extend(["--settings".into(), settings.display().to_string()]);
    if let Some(transport) = transport {
        role.extend(["--transport".into(), transport.to_string()]);
    }
    if no_multicast {
        role.push("--no-multicast".into());
    }
    let name = settings.file_stem().unwrap_or_default().display().to_string();
    let what = if name == "gateway" { "the gateway" } else { name.as_str() };
    let env = catalog.iter().map(|url| ("RESERVOIR_CATALOG", (*url).to_owned())).collect();
    Role::start_with(what, role, env, config.with_file_name("logs").join(format!("{name}.log")))
}

impl Running {
    /// Its first gateway's S3 endpoint, with the keys of its first user.
    pub(crate) fn s3(&self) -> anyhow::Result<S3> {
        let advice = format!("see its log {}", self.cluster.directory.join("logs/gateway.log").display());
        S3::of(&self.cluster.config_path, None, START, advice)
    }

    /// Waits until every target answers the gateway.
    pub(crate) fn wait_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START;
        loop {
            self.children.check()?;
            if self.stop.load(Ordering::SeqCst) {
                bail!("stopped before the cluster was ready");
            }
            if let Ok(status) = self.gateway.status()
                && status.targets.iter().all(|t| t.alive || !self.cluster.targets.contains(&t.id))
                && self.cluster.gateways.iter().all(LocalGateway::answers)
            {
                return self.children.check();
            }
            if Instant::now() >= deadline {
                bail!(
                    "not every target answered within {} s: see the logs in {}",
                    START.as_secs(),
                    self.cluster.directory.join("logs").display()
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Waits until every target answers by unicast.
fn wait_for_targets(cluster: &Cluster, children: &mut Children, stop: &AtomicBool) -> anyhow::Result<()> {
    let config = local_cluster::read(&cluster.config_path)?;
    let client = NodeCluster::start(&config, None, true, None)?;
    let deadline = Instant::now() + START;
    loop {
        children.check()?;
        if stop.load(Ordering::SeqCst) {
            bail!("stopped before the cluster was ready");
        }
        let status = gateway::Cluster::status(&client)?;
        let own = status.targets.iter().filter(|target| cluster.targets.contains(&target.id));
        let silent: Vec<String> = own.filter(|t| !t.alive).map(|t| t.id.to_string()).collect();
        if silent.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let logs = cluster.directory.join("logs");
            let why = status.targets.iter().find_map(|t| Some((t.id, t.silence.as_ref()?)));
            let why = why.map_or_else(String::new, |(id, silence)| format!(" (target {id}: {})", silence.text));
            bail!(
                "targets {} do not answer after {} s{why}: see {}",
                silent.join(", "),
                START.as_secs(),
                logs.display()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Keeps a second `up` away from the same data.
fn lock(directory: &Path) -> anyhow::Result<File> {
    let path = directory.join(LOCK);
    let file = File::create(&path)
        .with_context(|| format!("{} cannot be written: choose another directory with --data", path.display()))?;
    match file.try_lock() {
        // One that was refused may have removed it just now.
        Ok(()) if is_at(&file, &path) => Ok(file),
        Ok(()) => bail!("{} is gone: start again", path.display()),
        Err(fs::TryLockError::WouldBlock) => bail!(
            "another `reservoir up` runs on {}: stop it, or choose another directory with --data",
            directory.display()
        ),
        Err(fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("{} cannot be locked", path.display()))
        }
    }
}

/// Whether a file that is open is the one at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    matches!((file.metadata(), fs::metadata(path)), (Ok(open), Ok(there)) if (open.dev(), open.ino()) == (there.dev(), there.ino()))
}
