//! A cluster of the real binary on a rack: a target or a gateway on each host.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::fs::Permissions;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::postgres::Postgres;
use crate::process::Process;
use crate::rack::{Rack, Shape, is_own, is_stale};

/// How long a cluster may take to do what it is waited for.
const LIMIT: Duration = Duration::from_secs(60);
/// The port where gateways are asked for their status, and for a place in the cluster.
const HTTP: u16 = 8_080;
/// The port of S3, on a gateway's own loopback interface: no client's bytes go over its cable.
const S3: u16 = 8_081;
/// The port of the targets.
const TARGET: u16 = 7_000;
/// The keys of the only user.
const KEYS: (&str, &str) = ("RACKACCESSKEY", "the secret key of a rack");
/// The port of the targets' metrics, and of the switches'.
const METRICS: u16 = 7_100;
/// Ids of switches begin here.
const SWITCHES: usize = 1_000;
/// What targets and switches say when they are.
const READY: &str = "is ready on";

/// What carries messages and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// Datagrams, and multicast.
    Udp,
    /// Connections.
    Tcp,
}

impl Carrier {
    /// Its name, as `cluster.toml` writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }

    /// How it is called where it `encrypts` or does not.
    #[must_use]
    pub const fn words(self, encrypts: bool) -> &'static str {
        match (self, encrypts) {
            (Self::Udp, false) => "UDP",
            (Self::Udp, true) => "UDP with encrypted payload",
            (Self::Tcp, false) => "TCP",
            (Self::Tcp, true) => "TLS",
        }
    }
}

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
    /// Hosts of targets that may join later, with [`Cluster::join`].
    pub spares: usize,
    /// Cells of three targets in a negotiating group.
    pub group_cells: usize,
    /// Switches that compute parity in flight, each on a host of its own, whose cable is [`SWITCH_CABLES`] times as fast.
    pub switches: usize,
    /// What carries messages and payload.
    pub carrier: Carrier,
    /// Whether that is encrypted.
    pub encrypt: bool,
    /// The rack's cables and switch; its number of hosts follows from the above.
    pub shape: Shape,
    /// Bytes that each target may fill, as `cluster.toml` writes it.
    pub capacity: String,
    /// For how long a target is down before it is taken out of the map, seconds; 0 is never.
    pub out_after_seconds: u32,
    /// What targets log, as `RUST_LOG`.
    pub log: String,
}

/// Cables of others that one of a switch is worth.
pub const SWITCH_CABLES: u32 = 8;

/// A running cluster. Gateway `n` is on host `n`; target `id`, which counts from 1, on the host `gateways + id - 1`; switches are on
/// the last ones.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order: processes before their hosts, hosts before their directories.
    gateways: Vec<Option<Process>>,
    targets: Vec<Option<Process>>,
    switches: Vec<Process>,
    database: Option<Postgres>,
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
        let hosts = plan.gateways + plan.targets + plan.spares + plan.switches;
        let rack = Rack::build(&Shape { hosts, ..plan.shape })?;
        remove_stale_places(&plan.place);
        let place = tempfile::Builder::new()
            .prefix(&format!("rack-{}-", std::process::id()))
            .tempdir_in(&plan.place)
            .with_context(|| format!("no directory can be made in {}", plan.place.display()))?;
        let (gateways, targets) =
            ((0..plan.gateways).map(|_| None).collect(), (0..plan.targets + plan.spares).map(|_| None).collect());
        let mut cluster = Self { gateways, targets, switches: vec![], database: None, rack, place, plan };
        if let Some(rate) = cluster.plan.shape.rate_mbit {
            let hosts = (0..cluster.plan.switches).map(|switch| cluster.host_of_switch(switch));
            hosts.into_iter().try_for_each(|host| cluster.rack.set_rate(host, rate * SWITCH_CABLES))?;
        }
        cluster.configure()?;
        cluster.make_stores()?;
        cluster.start_targets()?;
        cluster.start_switches()?;
        Ok(cluster)
    }

    /// One configuration for all hosts.
    fn configure(&self) -> anyhow::Result<()> {
        self.configure_with(self.plan.switches)
    }

    /// The same, for as many of the switches.
    fn configure_with(&self, switches: usize) -> anyhow::Result<()> {
        let rate = self.plan.shape.rate_mbit.unwrap_or(10_000);
        let carrier = self.plan.carrier.name();
        let mut text = format!(
            "cluster = \"rack\"\nepoch = 1\ngroup_cells = {}\nout_after_seconds = {}\nkey_file = \"cluster.key\"\n\
             [network]\nmulticast_port = 7400\ncarrier = \"{carrier}\"\nencrypt = {}\n[protocol]\nlink_mbps = {rate}\n",
            self.plan.group_cells, self.plan.out_after_seconds, self.plan.encrypt
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
        for switch in 0..switches {
            let host = self.rack.address(self.host_of_switch(switch));
            let (address, metrics) = (SocketAddr::new(host, TARGET), SocketAddr::new(host, METRICS));
            let id = SWITCHES + switch;
            let link = rate * SWITCH_CABLES;
            write!(
                text,
                "[[switch]]\nid = {id}\naddress = \"{address}\"\nmetrics = \"{metrics}\"\nlink_mbps = {link}\n"
            )?;
        }
        fs::write(self.config(), text).context("the configuration cannot be written")?;
        fs::write(self.file("cluster.key"), "7e".repeat(32)).context("the key cannot be written")?;
        let (access, secret) = KEYS;
        let user = format!("[[user]]\nname = \"rack\"\naccess_key = \"{access}\"\nsecret_key = \"{secret}\"\n");
        fs::write(self.file("users.toml"), user).context("users.toml cannot be written")?;
        self.write_settings(None)
    }

    /// The settings of each gateway, with the catalog that all share, if they do.
    fn write_settings(&self, catalog: Option<&str>) -> anyhow::Result<()> {
        for gateway in 0..self.plan.gateways {
            let http = SocketAddr::new(self.rack.address(gateway), HTTP);
            let mut text = format!("http = \"{http}\"\n[s3]\nlisten = \"{}\"\n", self.s3_address());
            catalog.iter().for_each(|url| text += &format!("catalog = \"{url}\"\n"));
            let path = self.settings(gateway);
            fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))?;
        }
        Ok(())
    }

    fn settings(&self, gateway: usize) -> PathBuf {
        if gateway == 0 { self.file("gateway.toml") } else { self.file(&format!("gateway-{gateway}.toml")) }
    }

    /// Has the gateways that are served from now on share a catalog, in a server of PostgreSQL of their own. They reach it without a
    /// cable.
    ///
    /// # Errors
    /// The server does not start.
    pub fn share_catalog(&mut self) -> anyhow::Result<()> {
        let place = self.place.path();
        // The server runs as another user, in a directory of its own in this one.
        fs::set_permissions(place, Permissions::from_mode(0o711)).context("the directory cannot be opened")?;
        // What runs in a host ends with the rack, however that ends.
        let database = self.rack.visit(0, || Postgres::start_in(place))??;
        self.write_settings(Some(&database.local_database()?))?;
        self.database = Some(database);
        Ok(())
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
        missing.iter().try_for_each(|id| self.wait_ready(*id))?;
        if !self.plan.shape.snooping {
            return Ok(());
        }
        let hosts: Vec<usize> = missing.iter().map(|id| self.host_of(*id)).collect();
        wait_until("the switch knows every target's groups", || {
            let known = self.rack.groups()?;
            let all = |host: &usize| {
                Ok(self
                    .rack
                    .joined(*host)?
                    .iter()
                    .all(|group| known.get(group).is_some_and(|hosts| hosts.contains(host))))
            };
            hosts.iter().map(all).try_fold(true, |before, all: anyhow::Result<bool>| Ok(before && all?))
        })
    }

    fn start_switches(&mut self) -> anyhow::Result<()> {
        for switch in 0..self.plan.switches {
            let id = (SWITCHES + switch).to_string();
            let mut command = self.command(self.host_of_switch(switch), &["switch", "--with-parent", "--id", &id]);
            command.env("RUST_LOG", "warn,node=info");
            let mut process = self.rack.start(command, &self.file(&format!("switch-{id}.log")))?;
            wait_for_line(&mut process, &format!("switch {id}"), READY)?;
            self.switches.push(process);
        }
        Ok(())
    }

    /// Has a target join, on one of the hosts that were spared for that, and waits until it is ready.
    ///
    /// # Errors
    /// There is no such host, or it may not join: with its words.
    pub fn join(&mut self, id: usize) -> anyhow::Result<()> {
        let spares = self.plan.targets + 1..=self.plan.targets + self.plan.spares;
        ensure!(spares.contains(&id), "there is no host for target {id}");
        let (host, gateway) = (self.rack.address(self.host_of(id)), SocketAddr::new(self.rack.address(0), HTTP));
        let (listen, metrics) = (SocketAddr::new(host, TARGET), SocketAddr::new(host, METRICS));
        let mut command = self.rack.command(self.host_of(id), &self.plan.program);
        command.args(["target", "--with-parent", "--join", &gateway.to_string(), "--id", &id.to_string()]);
        command.args(["--domain", &format!("server-{id}"), "--capacity", &self.plan.capacity]);
        command.args(["--listen", &listen.to_string(), "--metrics", &metrics.to_string()]);
        command.arg("--key-file").arg(self.file("cluster.key")).arg("--data").arg(self.file(&format!("target-{id}")));
        command.env("RUST_LOG", &self.plan.log);
        self.targets[id - 1] = Some(self.rack.start(command, &self.file(&format!("target-{id}.log")))?);
        self.wait_ready(id)
    }

    fn wait_ready(&mut self, id: usize) -> anyhow::Result<()> {
        wait_for_line(self.target(id)?, &format!("target {id}"), READY)
    }

    /// Removes what a target has on its disk, which was killed.
    ///
    /// # Errors
    /// The directory cannot be removed.
    pub fn lose_data(&self, id: usize) -> anyhow::Result<()> {
        fs::remove_dir_all(self.file(&format!("target-{id}"))).context("a target's directory cannot be removed")
    }

    /// Kills the targets, empties their disks, and starts them again.
    ///
    /// # Errors
    /// A directory cannot be removed, or a target does not start.
    pub fn start_anew(&mut self) -> anyhow::Result<()> {
        self.start_anew_with(true)
    }

    /// What carries messages and payload.
    #[must_use]
    pub const fn carrier(&self) -> Carrier {
        self.plan.carrier
    }

    /// As [`Cluster::start_anew`], with the switches or without any.
    ///
    /// # Errors
    /// As for [`Cluster::start_anew`].
    pub fn start_anew_with(&mut self, switches: bool) -> anyhow::Result<()> {
        self.switches.clear();
        self.configure_with(if switches { self.plan.switches } else { 0 })?;
        self.gateways.iter_mut().for_each(|gateway| *gateway = None);
        for end in ["", "-wal", "-shm"] {
            // A catalog of what was on the old disks.
            let _ = fs::remove_file(self.file(&format!("catalog.sqlite{end}")));
        }
        for id in 1..=self.plan.targets {
            self.targets[id - 1] = None;
            self.lose_data(id)?;
        }
        self.make_stores()?;
        self.start_targets()?;
        if switches { self.start_switches() } else { Ok(()) }
    }

    /// Kills everything and starts the targets again: what they learned of their cables is forgotten.
    ///
    /// # Errors
    /// A target does not start.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.gateways.iter_mut().for_each(|gateway| *gateway = None);
        self.targets.iter_mut().for_each(|target| *target = None);
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

    /// The host of a switch; they count from 0.
    #[must_use]
    pub fn host_of_switch(&self, switch: usize) -> usize {
        self.plan.gateways + self.plan.targets + self.plan.spares + switch
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
        command.arg("--settings").arg(self.settings(gateway));
        command.env("RUST_LOG", "info");
        let mut process = self.rack.start(command, &self.file(&format!("gateway-{gateway}.log")))?;
        wait_for_line(&mut process, "the gateway", "gateway is up")?;
        self.gateways[gateway] = Some(process);
        Ok(())
    }

    /// The address of a gateway's S3 endpoint, on its own host.
    #[must_use]
    pub fn s3(&self) -> String {
        format!("http://{}", self.s3_address())
    }

    /// The access key and the secret key of its user.
    #[must_use]
    pub const fn keys(&self) -> (&'static str, &'static str) {
        KEYS
    }

    fn s3_address(&self) -> SocketAddr {
        let loopback = if self.rack.is_ipv6() { IpAddr::V6(Ipv6Addr::LOCALHOST) } else { Ipv4Addr::LOCALHOST.into() };
        SocketAddr::new(loopback, S3)
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

/// Waits until a process that was started says this, or ends.
fn wait_for_line(process: &mut Process, who: &str, line: &str) -> anyhow::Result<()> {
    wait_until(&format!("{who} is ready"), || {
        ensure!(process.is_running(), "{who} ended: {}", process.output());
        Ok(process.output().contains(line))
    })
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
