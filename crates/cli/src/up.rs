//! A whole cluster on this machine.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::args::{TransportArg, UpArgs};
use crate::client::Gateway;
use crate::layout::{self, Cluster, Door, S3File};
use crate::output::line;
use crate::process::{Family, Role};
use crate::service::NodeCluster;
use crate::{api, demo, gateway, numbers, private};

/// How long targets and gateway may take until all of them answer. Recovery of a large store is part of it.
const START: Duration = Duration::from_secs(90);

/// Held by the running `up`.
const LOCK: &str = "up.lock";

/// A running cluster. Its processes stop when this is dropped.
pub(crate) struct Running {
    /// The targets in the order of the configuration, then the gateway.
    pub(crate) family: Family,
    /// Where files are put.
    pub(crate) gateway: Gateway,
    /// What is configured.
    pub(crate) cluster: Cluster,
    /// Set by Ctrl-C.
    pub(crate) stop: Arc<AtomicBool>,
    /// Held while this cluster runs.
    _lock: File,
}

/// Runs `reservoir up`.
pub(crate) fn run(args: &UpArgs) -> anyhow::Result<()> {
    let stop = watch_signals()?;
    let mut running = start(args, stop)?;
    summary(&running, args)?;
    if args.demo {
        match demo::run(&mut running, args.json) {
            Err(_) if running.stop.load(Ordering::SeqCst) => return Ok(()),
            outcome => outcome?,
        }
    }
    if args.once {
        return Ok(());
    }
    what_next(&running)?;
    while !running.stop.load(Ordering::SeqCst) {
        for news in running.family.0.iter_mut().filter_map(|role| role.attend(Instant::now(), !args.no_restart)) {
            crate::output::say!("reservoir: {news}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    crate::output::say!("reservoir: stopping; the data stays in {}", running.cluster.directory.display());
    Ok(())
}

/// Makes or opens the cluster in the data directory, starts its processes and waits until all answer.
pub(crate) fn start(args: &UpArgs, stop: Arc<AtomicBool>) -> anyhow::Result<Running> {
    let is_new = !args.data.exists();
    fs::create_dir_all(&args.data)
        .with_context(|| format!("the directory {} cannot be made: choose another with --data", args.data.display()))?;
    let lock = lock(&args.data)?;
    let cluster = layout::open_or_create(args).inspect_err(|_| {
        // Where nothing was made, nothing stays.
        if !args.data.join("cluster.toml").exists() {
            let _ = fs::remove_file(args.data.join(LOCK));
            if is_new {
                let _ = fs::remove_dir(&args.data);
            }
        }
    })?;
    private::tighten_cluster(&cluster.directory);
    let mut family = start_targets(&cluster, &stop)?;
    let logs = cluster.directory.join("logs");
    for door in &cluster.gateways {
        let url = args.catalog.url.as_deref();
        family.0.push(start_gateway(&cluster.config_path, &door.settings, args.transport, args.no_multicast, url)?);
    }
    let advice = format!("see its log {}", logs.join("gateway.log").display());
    let gateway = Gateway::at(&cluster.gateway(), &cluster.config_path, START, advice);
    let mut running = Running { family, gateway, cluster, stop, _lock: lock };
    running.wait_ready()?;
    Ok(running)
}

/// Starts the targets of a cluster and waits until all of them answer: a gateway looks for multicast when it starts,
/// and finds it only when targets are there.
pub(crate) fn start_targets(cluster: &Cluster, stop: &AtomicBool) -> anyhow::Result<Family> {
    let logs = cluster.directory.join("logs");
    fs::create_dir_all(&logs).with_context(|| format!("the directory {} cannot be made", logs.display()))?;
    let config = cluster.config_path.display().to_string();
    let mut family = Family::default();
    for id in &cluster.targets {
        let role = [String::from("target"), "--config".into(), config.clone(), "--id".into(), id.to_string()];
        let log = logs.join(format!("target-{id}.log"));
        family.0.push(Role::start(&format!("target {id}"), role.to_vec(), log)?);
    }
    wait_for_targets(cluster, &mut family, stop)?;
    Ok(family)
}

/// Starts a gateway of a cluster. It gets the address of its catalog, if there is one, where nobody else sees it.
pub(crate) fn start_gateway(
    config: &Path,
    settings: &Path,
    transport: Option<TransportArg>,
    no_multicast: bool,
    catalog: Option<&str>,
) -> anyhow::Result<Role> {
    let mut role = vec![String::from("gateway"), "--config".into(), config.display().to_string()];
    role.extend(["--settings".into(), settings.display().to_string()]);
    if let Some(transport) = transport {
        role.extend(["--transport".into(), transport.name().into()]);
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
    /// Waits until every target answers the gateway.
    pub(crate) fn wait_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START;
        loop {
            self.family.check()?;
            if self.stop.load(Ordering::SeqCst) {
                bail!("stopped before the cluster was ready");
            }
            if let Ok(status) = self.gateway.status()
                && status.targets.iter().all(|t| t.alive)
                && self.cluster.gateways.iter().all(Door::answers)
            {
                return self.family.check();
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
fn wait_for_targets(cluster: &Cluster, family: &mut Family, stop: &AtomicBool) -> anyhow::Result<()> {
    let config = layout::load(&cluster.config_path)?;
    let client = NodeCluster::start(&config, None, true, None)?;
    let deadline = Instant::now() + START;
    loop {
        family.check()?;
        if stop.load(Ordering::SeqCst) {
            bail!("stopped before the cluster was ready");
        }
        let status = gateway::Cluster::status(&client)?;
        let silent: Vec<String> = status.targets.iter().filter(|t| !t.alive).map(|t| t.id.to_string()).collect();
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

/// Becomes true at the first Ctrl-C or SIGTERM.
pub(crate) fn watch_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the signal handler cannot be started")?;
    // Registered before this returns, so that no signal is lost.
    let mut signals = {
        let _guard = runtime.enter();
        Signals::new().context("the signal handler cannot be registered")?
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            runtime.block_on(signals.any());
            seen.store(true, Ordering::SeqCst);
        })
        .context("the signal thread cannot be started")?;
    Ok(stop)
}

/// What asks a process to stop.
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    /// Not asked for: a write beyond the limit on the size of files then fails, where it would end the process.
    _too_long: tokio::signal::unix::Signal,
}

impl Signals {
    /// Registers for them; needs a runtime.
    pub(crate) fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let too_long = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            _too_long: signal(too_long)?,
        })
    }

    /// Waits for one of them.
    pub(crate) async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => (),
            _ = self.terminate.recv() => (),
        }
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

fn summary(running: &Running, args: &UpArgs) -> anyhow::Result<()> {
    let status = running.gateway.status()?;
    let files = running.gateway.list().map_or(0, |list| list.files.len());
    let carried = if status.multicast { "with multicast" } else { "without multicast" };
    let text = format!(
        "{} {} targets and {} are up ({} copies, {} {carried}).\nData: {}   Files: {files}   Largest process: {}",
        if running.cluster.created { "New cluster:" } else { "Cluster found again:" },
        status.targets.len(),
        match running.cluster.gateways.len() {
            1 => "a gateway".to_owned(),
            count => format!("{count} gateways"),
        },
        status.copies,
        status.transport,
        running.cluster.directory.display(),
        numbers::size(running.family.largest_resident()),
    );
    if args.json {
        crate::output::say!("{text}");
        return Ok(());
    }
    line(&text)
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
    if is_plain { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

fn what_next(running: &Running) -> anyhow::Result<()> {
    let (name, program) = (api::path_segment("notes.txt"), crate::output::program());
    let flag = match running.cluster.default_directory() {
        true => String::new(),
        false => format!(" --config {}", quoted(&running.cluster.config_path.display().to_string())),
    };
    let base = running.gateway.base();
    let token = running.cluster.config_path.with_file_name(crate::token::FILE).display().to_string();
    let mut text = String::new();
    let config_path = &running.cluster.config_path;
    let file = layout::gateway_file(config_path)?;
    let certificate = file.s3.as_ref().map(|s3| s3.certificate(&running.cluster.directory)).transpose()?.flatten();
    let trust = certificate.map_or_else(String::new, |files| {
        let path = files.chain.display();
        format!("where nobody knows who signed the certificate: AWS_CA_BUNDLE={path}, rclone --ca-cert {path}\n  ")
    });
    let user = layout::users(config_path, file.s3.as_ref()).list()?.into_iter().next();
    let mut endpoints = running.cluster.gateways.iter().filter_map(|door| door.s3.as_ref()).map(S3File::endpoint);
    if let (Some(endpoint), Some(user)) = (endpoints.next(), user) {
        let more: String = endpoints.map(|endpoint| format!("\nanother endpoint: {endpoint}")).collect();
        let (key, show) = (user.access_key, format!("{program} user show {}{flag}", quoted(&user.name)));
        // What is printed may end in a journal that others read.
        let secret = match running.cluster.new_user.as_ref().filter(|new| new.name == user.name) {
            Some(new) => format!("secret key: {}\n(printed this once; `{show}` shows it again)", new.secret_key),
            None => format!("the secret key is shown by `{show}`"),
        };
        text = format!(
            "\nendpoint: {endpoint}{more}\naccess key: {key}\n{secret}\n\n\
             Try, in another terminal:\n  \
             export AWS_ACCESS_KEY_ID={key} AWS_SECRET_ACCESS_KEY=$({show} --secret) AWS_DEFAULT_REGION=us-east-1 \
             AWS_ENDPOINT_URL={endpoint}\n  \
             aws s3 mb s3://first && aws s3 cp README.md s3://first/\n  \
             rclone lsl ':s3,provider=Other,env_auth=true,endpoint=\"{endpoint}\":first'\n  \
             {trust}status page: {base}/\n"
        );
    }
    line(&format!(
        "{text}\nWithout S3:\n  \
         {program} put README.md --name notes.txt{flag}\n  \
         {program} get notes.txt -o copy.txt{flag}\n  \
         {program} ls{flag}\n  \
         {program} status{flag}\n  \
         (printf 'Authorization: Bearer '; cat '{token}') | curl -H @- {base}/v1/files/{name}\n\
         Ctrl-C stops the cluster; the data stays.",
    ))
}
