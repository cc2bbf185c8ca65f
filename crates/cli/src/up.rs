//! A whole cluster on this machine.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::args::UpArgs;
use crate::gateway_file::{self, S3File};
use crate::output::line;
use crate::running::{self, Running};
use crate::{demo, units};

/// Runs `reservoir up`.
pub(crate) fn run(args: &UpArgs) -> anyhow::Result<()> {
    let stop = watch_signals()?;
    let mut running = running::start(args, stop)?;
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
        for news in running.children.0.iter_mut().filter_map(|role| role.supervise(Instant::now(), !args.no_restart)) {
            crate::output::say!("reservoir: {news}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    crate::output::say!("reservoir: stopping; the data stays in {}", running.cluster.directory.display());
    Ok(())
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

fn summary(running: &Running, args: &UpArgs) -> anyhow::Result<()> {
    let status = running.gateway.status()?;
    let carried = if status.multicast { "with multicast" } else { "without multicast" };
    let text = format!(
        "{} {} targets and {} are up ({}, {} {carried}).\nData: {}   Largest process: {}",
        if running.cluster.created { "New cluster:" } else { "Cluster found again:" },
        status.targets.len(),
        match running.cluster.gateways.len() {
            1 => "a gateway".to_owned(),
            count => format!("{count} gateways"),
        },
        status.kept(),
        status.transport,
        running.cluster.directory.display(),
        units::size(running.children.largest_resident()),
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
    let program = crate::output::program();
    let flag = match running.cluster.default_directory() {
        true => String::new(),
        false => format!(" --config {}", quoted(&running.cluster.config_path.display().to_string())),
    };
    let base = running.gateway.base();
    let mut text = String::new();
    let config_path = &running.cluster.config_path;
    let file = gateway_file::load(config_path)?;
    let certificate = file.s3.as_ref().map(|s3| s3.certificate(&running.cluster.directory)).transpose()?.flatten();
    let trust = certificate.map_or_else(String::new, |files| {
        let path = files.chain.display();
        format!("where nobody knows who signed the certificate: AWS_CA_BUNDLE={path}, rclone --ca-cert {path}\n  ")
    });
    let user = gateway_file::users(config_path, file.s3.as_ref()).list()?.into_iter().next();
    let mut endpoints = running.cluster.gateways.iter().filter_map(|gateway| gateway.s3.as_ref()).map(S3File::endpoint);
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
        "{text}\nWithout an S3 client:\n  \
         {program} put README.md notes.txt{flag}\n  \
         {program} get notes.txt -o copy.txt{flag}\n  \
         {program} ls{flag}\n  \
         {program} status{flag}\n\
         Ctrl-C stops the cluster; the data stays.",
    ))
}
