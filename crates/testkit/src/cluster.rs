//! A cluster of the real binary on a rack: a target or a gateway on each host.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::process::Process;
use crate::rack::{Rack, Shape, is_own, is_stale};

/// How long a cluster may take to do what it is waited for.
const LIMIT: Duration = Duration::from_secs(60);
/// The ports of gateways, on their own hosts' loopback interface.
const HTTP: u16 = 8_080;
const S3: u16 = 8_081;
/// The port of the targets.
const TARGET: u16 = 7_000;
/// The keys of the only user.
const KEYS: (&str, &str) = ("RACKACCESSKEY", "the secret key of a rack");
/// The port of the targets' metrics.
const METRICS: u16 = 7_100;

/// What a cluster on a rack looks like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The binary `reservoir`.
    pub program: PathBuf,
    /// Where its directory is made.
    pub place: PathBuf,
    /// Targets, each on a host of its own.
    pub targets: usize,
    /// Hosts for gateways and other initiators; nothing runs on them before [`Cluster::serve`].
    pub gateways: usize,
    /// The rack's cables and switch; its number of hosts follows from the above.
    pub shape: Shape,
    /// Bytes that each target may fill, as `cluster.toml` writes it.
    pub capacity: String,
    /// What targets log, as `RUST_LOG`.
    pub log: String,
}

/// A running cluster. Gateway `n` is on host `n`; target `id`, which counts from 1, on the host `gateways + id - 1`.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order: processes before their hosts, hosts before their directories.
    gateways: Vec<Option<Process>>,
    targets: Vec<Option<Process>>,
    rack: Rack,
    place: TempDir,
    plan: Plan,
}

impl Cluster {
    /// Builds the rack and starts the targets.
    ///
    /// # Errors
    /// The rack cannot be built, or a target does not start: with its words.
    pub fn start(plan: Plan) -> anyhow::Result<Self> {
        let hosts = plan.targets + plan.gateways;
        let rack = Rack::build(&Shape { hosts, ..plan.shape })?;
        remove_stale_places(&plan.place);
        let place = tempfile::Builder::new()
            .prefix(&format!("rack-{}-", std::process::id()))
            .tempdir_in(&plan.place)
            .with_context(|| format!("no directory can be made in {}", plan.place.display()))?;
        let (gateways, targets) =
            ((0..plan.gateways).map(|_| None).collect(), (0..plan.targets).map(|_| None).collect());
        let mut cluster = Self { gateways, targets, rack, place, plan };
        cluster.configure()?;
        cluster.make_stores()?;
        cluster.start_targets()?;
        Ok(cluster)
    }

    /// One configuration for all hosts.
    fn configure(&self) -> anyhow::Result<()> {
        let rate = self.plan.shape.rate_mbit.unwrap_or(10_000);
        let mut text = format!(
            "cluster = \"rack\"\nepoch = 1\nkey_file = \"cluster.key\"\n[network]\nmulticast_port = 7400\n\
             [protocol]\nlink_mbps = {rate}\n"
        );
        for id in 1..=self.plan.targets {
            let (host, capacity) = (self.rack.address(self.host_of(id)), &self.plan.capacity);
            let (address, metrics) = (SocketAddr::new(host, TARGET), SocketAddr::new(host, METRICS));
            write!(
                text,
                "[[target]]\nid = {id}\ndomain = \"server-{id}\"\naddress = \"{address}\"\ndata = \"target-{id}\"\n\
                 capacity = \"{capacity}\"\nmetrics = \"{metrics}\"\n"
            )?;
        }
        fs::write(self.config(), text).context("the configuration cannot be written")?;
        fs::write(self.file("cluster.key"), "7e".repeat(32)).context("the key cannot be written")?;
        let (access, secret) = KEYS;
        let user = format!("[[user]]\nname = \"rack\"\naccess_key = \"{access}\"\nsecret_key = \"{secret}\"\n");
        fs::write(self.file("users.toml"), user).context("users.toml cannot be written")?;
        let gateway = format!("http = \"{}\"\n[s3]\nlisten = \"{}\"\n", self.address(HTTP), self.address(S3));
        fs::write(self.file("gateway.toml"), gateway).context("gateway.toml cannot be written")
    }

    fn make_stores(&self) -> anyhow::Result<()> {
        let making: Vec<_> = (1..=self.plan.targets)
            .map(|id| {
                let mut command = Command::new(&self.plan.program);
                command.args(["target", "--new", "--id", &id.to_string(), "--config"]).arg(self.config());
                Process::start(command, &self.file(&format!("new-{id}.log")))
            })
            .collect::<Result<_, _>>()?;
        for mut store in making {
            ensure!(store.wait()?, "a store cannot be made: {}", store.output());
        }
        Ok(())
    }

    /// Starts the targets that do not run, and waits until they are ready and the switch knows their groups.
    ///
    /// # Errors
    /// One does not start: with its words.
    pub fn start_targets(&mut self) -> anyhow::Result<()> {
        let missing: Vec<usize> = (1..=self.plan.targets).filter(|id| self.targets[id - 1].is_none()).collect();
        for id in &missing {
            let mut command = self.command(self.host_of(*id), &["target", "--with-parent", "--id", &id.to_string()]);
            command.env("RUST_LOG", &self.plan.log);
            self.targets[id - 1] = Some(self.rack.start(command, &self.file(&format!("target-{id}.log")))?);
        }
        for id in &missing {
            let target = self.target(*id)?;
            wait_until("targets are ready", || {
                ensure!(target.is_running(), "target {id} ended: {}", target.output());
                Ok(target.output().contains("is ready on"))
            })?;
        }
        if !self.plan.shape.snooping {
            return Ok(());
        }
        wait_until("the switch knows every target's groups", || {
            let hosts = missing.iter().map(|id| self.host_of(*id));
            Ok(hosts.map(|host| self.groups_of(host)).all(|groups| groups.is_ok_and(|n| n == self.groups_each())))
        })
    }

    /// Kills the targets, empties their disks, and starts them again.
    ///
    /// # Errors
    /// A directory cannot be removed, or a target does not start.
    pub fn start_anew(&mut self) -> anyhow::Result<()> {
        self.gateways.iter_mut().for_each(|gateway| *gateway = None);
        for end in ["", "-wal", "-shm"] {
            // A catalog of what was on the old disks.
            let _ = fs::remove_file(self.file(&format!("catalog.sqlite{end}")));
        }
        for id in 1..=self.plan.targets {
            self.targets[id - 1] = None;
            fs::remove_dir_all(self.file(&format!("target-{id}"))).context("a target's directory cannot be removed")?;
        }
        self.make_stores()?;
        self.start_targets()
    }

    /// The rack that it is on.
    #[must_use]
    pub fn rack(&self) -> &Rack {
        &self.rack
    }

    /// The host of a target.
    #[must_use]
    pub fn host_of(&self, id: usize) -> usize {
        self.plan.gateways + id - 1
    }

    /// A running target, to freeze it.
    ///
    /// # Errors
    /// There is none of that id, or it was killed.
    pub fn target(&mut self, id: usize) -> anyhow::Result<&mut Process> {
        let target = id.checked_sub(1).and_then(|n| self.targets.get_mut(n));
        target.and_then(Option::as_mut).with_context(|| format!("there is no running target {id}"))
    }

    /// The targets that were started and not killed.
    pub fn running(&self) -> impl Iterator<Item = &Process> {
        self.targets.iter().flatten()
    }

    /// Kills a target, as a crash would.
    ///
    /// # Errors
    /// There is none of that id, or it was killed already.
    pub fn kill_target(&mut self, id: usize) -> anyhow::Result<()> {
        self.target(id)?.kill();
        self.targets[id - 1] = None;
        Ok(())
    }

    /// Multicast groups in which the switch knows a host to be.
    ///
    /// # Errors
    /// The switch cannot be asked.
    pub fn groups_of(&self, host: usize) -> anyhow::Result<usize> {
        Ok(self.rack.groups()?.values().filter(|hosts| hosts.contains(&host)).count())
    }

    /// Multicast groups that a target joins, in a cluster of one group: the pairs and threes that it is in, and all targets.
    #[must_use]
    pub fn groups_each(&self) -> usize {
        let others = self.plan.targets - 1;
        others + others * others.saturating_sub(1) / 2 + 1
    }

    /// Starts a gateway, or another one in its place.
    ///
    /// # Errors
    /// It does not start: with its words.
    pub fn serve(&mut self, gateway: usize, transport: &str) -> anyhow::Result<()> {
        self.gateways[gateway] = None;
        let mut command = self.command(gateway, &["gateway", "--with-parent", "--transport", transport]);
        command.env("RUST_LOG", "info");
        let mut process = self.rack.start(command, &self.file(&format!("gateway-{gateway}.log")))?;
        wait_until("the gateway is up", || {
            ensure!(process.is_running(), "the gateway ended: {}", process.output());
            Ok(process.output().contains("gateway is up"))
        })?;
        self.gateways[gateway] = Some(process);
        Ok(())
    }

    /// The address of a gateway's S3 endpoint, on its own host.
    #[must_use]
    pub fn s3(&self) -> String {
        format!("http://{}", self.address(S3))
    }

    /// The access key and the secret key of its user.
    #[must_use]
    pub const fn keys(&self) -> (&'static str, &'static str) {
        KEYS
    }

    /// A port of a gateway, on its own host.
    fn address(&self, port: u16) -> SocketAddr {
        let loopback = if self.rack.is_ipv6() { IpAddr::V6(Ipv6Addr::LOCALHOST) } else { Ipv4Addr::LOCALHOST.into() };
        SocketAddr::new(loopback, port)
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.file("cluster.toml")
    }

    /// A file of the cluster's directory.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// `reservoir` with `args` on a host.
    #[must_use]
    pub fn command(&self, host: usize, args: &[&str]) -> Command {
        let mut command = self.rack.command(host, &self.plan.program);
        command.args(args).arg("--config").arg(self.config()).env_remove("RUST_LOG");
        command
    }

    /// Runs a command of the first gateway's host, which must succeed; what it printed.
    ///
    /// # Errors
    /// It fails: with its words.
    pub fn run(&self, args: &[&str]) -> anyhow::Result<Vec<u8>> {
        let output = self.command(0, args).output().context("a command cannot be started")?;
        ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(output.stdout)
    }

    /// The same of a command that prints JSON.
    ///
    /// # Errors
    /// It fails, or prints something else.
    pub fn ask(&self, args: &[&str]) -> anyhow::Result<Value> {
        serde_json::from_slice(&self.run(args)?).with_context(|| format!("{args:?} does not print JSON"))
    }

    /// The chunks that each target holds that answers to the first gateway, by its id.
    ///
    /// # Errors
    /// The gateway does not answer.
    pub fn chunks(&self) -> anyhow::Result<BTreeMap<u64, u64>> {
        let status = self.ask(&["status", "--json"])?;
        let targets = status["targets"].as_array().context("a status names targets")?;
        Ok(targets.iter().filter_map(|target| Some((target["id"].as_u64()?, target["chunks"].as_u64()?))).collect())
    }

    /// How many targets answer to the first gateway.
    ///
    /// # Errors
    /// The gateway does not.
    pub fn alive(&self) -> anyhow::Result<usize> {
        let status = self.ask(&["status", "--json"])?;
        let targets = status["targets"].as_array().context("a status names targets")?;
        Ok(targets.iter().filter(|target| target["alive"] == true).count())
    }

    /// The page of a target's metrics.
    ///
    /// # Errors
    /// It does not give it.
    pub fn metrics(&self, id: usize) -> anyhow::Result<String> {
        let host = self.host_of(id);
        let url = format!("http://{}/metrics", SocketAddr::new(self.rack.address(host), METRICS));
        let page = self.rack.visit(host, || ureq::get(&url).call()?.body_mut().read_to_string())?;
        page.with_context(|| format!("target {id} does not give its metrics"))
    }
}

/// Waits until something holds.
///
/// # Errors
/// It does not within a minute, or cannot be found out.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = Instant::now() + LIMIT;
    while !holds()? {
        if Instant::now() > deadline {
            bail!("waited in vain: {what}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Removes the directories of this process's clusters, which is about to end.
pub fn remove_own_places(place: &Path) {
    remove_places(place, is_own);
}

/// Removes directories of clusters whose process is gone; how many that were.
pub fn remove_stale_places(place: &Path) -> usize {
    remove_places(place, is_stale)
}

fn remove_places(place: &Path, these: impl Fn(&str) -> bool) -> usize {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let places = entries.filter(|entry| entry.file_name().to_str().is_some_and(&these));
    // Another one may remove it at the same time.
    places.filter(|entry| fs::remove_dir_all(entry.path()).is_ok()).count()
}
