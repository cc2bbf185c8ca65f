//! A cluster on a real network path: every server a process in its own network namespace, joined by a switch with
//! multicast snooping. Skipped, with the reason, where no such rack can be built.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::{content, make_store};
use serde_json::Value;
use testkit::{Process, Rack, Shape};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The host of the gateway; target `n` is on host `n`.
const GATEWAY: usize = 0;
const MIB: usize = 1 << 20;

/// Some targets and a gateway, each on a host of its own.
struct Cluster {
    // Dropped in this order: processes before their hosts, hosts before their directories.
    gateway: Option<Process>,
    targets: Vec<Process>,
    rack: Rack,
    place: tempfile::TempDir,
    /// One rack at a time: two would fight for the processors.
    _alone: MutexGuard<'static, ()>,
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Cluster {
    /// Starts the targets. `None`, and the reason printed, where this machine cannot.
    fn start(targets: usize, rate_mbit: u32) -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        if let Some(reason) = Rack::obstacle() {
            eprintln!("skipped: {reason}");
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let rack = Rack::build(&Shape { hosts: targets + 1, mtu: 9_000, rate_mbit: Some(rate_mbit) }).unwrap();
        let place = tempfile::tempdir().unwrap();
        configure(&rack, place.path(), targets, rate_mbit);
        let mut cluster = Self { gateway: None, targets: Vec::new(), rack, place, _alone: alone };
        for id in 1..=targets {
            make_store(&cluster.file("cluster.toml").display().to_string(), id);
            let mut command = cluster.command(id, &["target", "--with-parent", "--id", &id.to_string()]);
            command.env("RUST_LOG", "node=trace");
            let log = cluster.file(&format!("target-{id}.log"));
            cluster.targets.push(cluster.rack.start(command, &log).unwrap());
        }
        for target in &mut cluster.targets {
            wait_until("targets are ready", || {
                assert!(target.is_running(), "{}", target.said());
                target.said().contains("is ready on")
            });
        }
        wait_until("the switch has heard of every target's groups", || {
            (1..=targets).all(|id| cluster.groups_of(id) == cluster.groups_each())
        });
        Some(cluster)
    }

    /// Multicast groups in which the switch knows a target to be.
    fn groups_of(&self, id: usize) -> usize {
        self.rack.groups().unwrap().values().filter(|hosts| hosts.contains(&id)).count()
    }

    /// Multicast groups that a target joins: the pairs and threes that it is in, and all targets.
    fn groups_each(&self) -> usize {
        let others = self.targets.len() - 1;
        others + others * (others - 1) / 2 + 1
    }

    /// Starts the gateway, or another one in its place.
    fn serve(&mut self, transport: &str) {
        self.gateway = None;
        let mut command = self.command(GATEWAY, &["gateway", "--with-parent", "--transport", transport]);
        command.env("RUST_LOG", "info");
        let mut gateway = self.rack.start(command, &self.file("gateway.log")).unwrap();
        wait_until("the gateway is up", || {
            assert!(gateway.is_running(), "{}", gateway.said());
            gateway.said().contains("gateway is up")
        });
        self.gateway = Some(gateway);
        let status = self.ask(&["status", "--json"]);
        assert_eq!(status["transport"], transport);
        assert_eq!(status["multicast"], true, "multicast was not found");
    }

    /// Kills two of five targets, but not this one: from now on every put must use it.
    fn leave_three(&mut self, id: usize) {
        let five = self.targets.len();
        assert_eq!(five, 5, "of a file's name no more than two may be silent");
        for other in [id + 1, id + 2] {
            self.targets[(other - 1) % five].kill();
        }
        assert_eq!(self.alive(), 3);
    }

    fn file(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// `reservoir` with `args` on a host.
    fn command(&self, host: usize, args: &[&str]) -> Command {
        let mut command = self.rack.command(host, Path::new(env!("CARGO_BIN_EXE_reservoir")));
        command.args(args).arg("--config").arg(self.file("cluster.toml")).env_remove("RUST_LOG");
        command
    }

    /// Runs a command of the gateway's host, which must succeed; what it printed.
    fn run(&self, args: &[&str]) -> Vec<u8> {
        let output = self.command(GATEWAY, args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Begins a command on the gateway's host.
    fn begin(&self, args: &[&str]) -> Process {
        self.rack.start(self.command(GATEWAY, args), &self.file("command.log")).unwrap()
    }

    fn ask(&self, args: &[&str]) -> Value {
        serde_json::from_slice(&self.run(args)).unwrap()
    }

    /// How many targets answer.
    fn alive(&self) -> usize {
        let status = self.ask(&["status", "--json"]);
        status["targets"].as_array().unwrap().iter().filter(|target| target["alive"] == true).count()
    }

    /// Makes a file and puts it under its name; the report.
    fn put(&self, name: &str, bytes: &[u8]) -> Value {
        fs::write(self.file(name), bytes).unwrap();
        self.ask(&["put", self.file(name).to_str().unwrap(), "--json"])
    }

    fn assert_holds(&self, name: &str, bytes: &[u8]) {
        assert!(self.run(&["get", name, "--output", "-"]) == bytes, "{name} came back changed");
    }

    /// Bytes that the gateway sent and that all targets received, while `work` was done.
    fn traffic(&self, work: impl FnOnce()) -> (f64, f64) {
        let sent = || self.rack.traffic(GATEWAY).unwrap().0;
        let received = || (1..=self.targets.len()).map(|id| self.rack.traffic(id).unwrap().1).sum::<u64>();
        let before = (sent(), received());
        work();
        ((sent() - before.0) as f64, (received() - before.1) as f64)
    }

    fn assert_never_fragmented(&self) {
        for host in 0..=self.targets.len() {
            assert_eq!(self.rack.fragments(host).unwrap(), 0, "host {host} made or joined IP fragments");
        }
    }
}

/// One configuration for all hosts.
fn configure(rack: &Rack, place: &Path, targets: usize, rate_mbit: u32) {
    let mut text = format!(
        "cluster = \"rack\"\nepoch = 1\nkey_file = \"cluster.key\"\n[network]\nmulticast_port = 7400\n\
         [protocol]\nlink_mbps = {rate_mbit}\n"
    );
    for id in 1..=targets {
        let address = rack.address(id);
        write!(
            text,
            "[[target]]\nid = {id}\ndomain = \"server-{id}\"\naddress = \"{address}:7000\"\ndata = \"target-{id}\"\n\
             capacity = \"512MiB\"\n"
        )
        .unwrap();
    }
    fs::write(place.join("cluster.toml"), text).unwrap();
    fs::write(place.join("cluster.key"), "7e".repeat(32)).unwrap();
    fs::write(place.join("gateway.toml"), "http = \"127.0.0.1:8080\"\n").unwrap();
}

#[test]
fn multicast_carries_a_copy_for_all_and_unicast_one_for_each() {
    let Some(mut cluster) = Cluster::start(9, 1_000) else { return };
    let size = 32 * MIB;
    for (transport, copies_sent) in [("replicast-m", 1.0), ("replicast-h", 3.0)] {
        cluster.serve(transport);
        let bytes = content(size, copies_sent as u64);
        let (sent, received) = cluster.traffic(|| drop(cluster.put(transport, &bytes)));
        let (sent, received) = (sent / size as f64, received / size as f64);
        eprintln!("{transport}: {sent:.2} times the payload sent, {received:.2} times received");
        // The rest is headers, negotiation, and now and then a straggler's own copy.
        assert!((copies_sent..copies_sent + 0.5).contains(&sent), "{transport}: {sent} times the payload was sent");
        assert!((3.0..3.5).contains(&received), "{transport}: {received} times the payload was received");
        cluster.assert_holds(transport, &bytes);
    }
    cluster.assert_never_fragmented();
}

#[test]
fn puts_go_on_when_a_cable_is_cut_and_the_server_is_used_again_when_it_is_healed() {
    let Some(mut cluster) = Cluster::start(5, 300) else { return };
    cluster.serve("replicast-m");
    let bytes = content(32 * MIB, 3);
    fs::write(cluster.file("large"), &bytes).unwrap();
    let traffic = |host| cluster.rack.traffic(host).unwrap();
    let begin = traffic(GATEWAY).0;
    let mut put = cluster.begin(&["put", cluster.file("large").to_str().unwrap(), "--json"]);
    wait_until("a quarter is sent", || traffic(GATEWAY).0 - begin > 8 * MIB as u64);
    // Whoever got most so far is sure to be counted on.
    let cut = (1..=5).max_by_key(|id| traffic(*id).1).unwrap();
    let id = cut.to_string();
    cluster.rack.cut(cut).unwrap();
    assert!(put.is_running(), "the cable was cut too late to show anything: {}", put.said());
    assert!(put.wait().unwrap(), "{}", put.said());
    assert_eq!(cluster.alive(), 4);
    cluster.assert_holds("large", &bytes);
    let during = cluster.put("during", &content(4 * MIB, 4));
    assert!(during["copies_by_target"][&id].is_null(), "{during}");

    cluster.rack.heal(cut).unwrap();
    wait_until("the switch forwards to it again", || cluster.groups_of(cut) == cluster.groups_each());
    wait_until("it answers again", || cluster.alive() == 5);
    cluster.leave_three(cut);
    let (bytes, mut report) = (content(4 * MIB, 6), Value::Null);
    let (sent, _) = cluster.traffic(|| report = cluster.put("after", &bytes));
    assert!(report["copies_by_target"][&id].as_u64() >= Some(4), "{report}");
    assert!(sent < 2.0 * bytes.len() as f64, "{sent} bytes were sent: not by multicast");
    cluster.assert_holds("after", &bytes);
    cluster.assert_never_fragmented();
}

#[test]
fn putting_and_getting_outlast_a_cut_of_the_gateways_own_cable() {
    let Some(mut cluster) = Cluster::start(5, 300) else { return };
    cluster.serve("replicast-m");
    let bytes = content(32 * MIB, 5);
    let (file, copy) = (cluster.file("file"), cluster.file("copy"));
    fs::write(&file, &bytes).unwrap();
    let work: [&[&str]; 2] = [&["put", file.to_str().unwrap()], &["get", "file", "--output", copy.to_str().unwrap()]];
    for args in work {
        let moved = || cluster.rack.traffic(GATEWAY).map(|(sent, received)| sent + received).unwrap();
        let begin = moved();
        let mut work = cluster.begin(args);
        wait_until("a quarter is moved", || moved() - begin > 8 * MIB as u64);
        cluster.rack.cut(GATEWAY).unwrap();
        assert!(work.is_running(), "the cable was cut too late to show anything: {}", work.said());
        // Longer than any single question waits for its answer.
        std::thread::sleep(Duration::from_secs(1));
        cluster.rack.heal(GATEWAY).unwrap();
        assert!(work.wait().unwrap(), "{args:?}: {}", work.said());
    }
    assert!(fs::read(copy).unwrap() == bytes, "the file came back changed");
}

/// Puts and gets a file; `event` counts what the targets say when a lost datagram is repaired.
fn assert_repaired(cluster: &Cluster, what: &str, loser: usize, event: &str, seed: u64) {
    let said = || cluster.targets.iter().map(|target| target.said().matches(event).count()).sum::<usize>();
    let before = (cluster.rack.lost(loser).unwrap(), said());
    let bytes = content(16 * MIB, seed);
    cluster.put(what, &bytes);
    cluster.assert_holds(what, &bytes);
    let (lost, repairs) = (cluster.rack.lost(loser).unwrap() - before.0, said() - before.1);
    eprintln!("{what}: {lost} datagrams lost, {repairs} repairs");
    assert!(lost > 0 && repairs > 0, "{what}: {lost} datagrams lost, {repairs} repairs");
}

#[test]
fn what_one_receiver_loses_is_repaired() {
    let Some(mut cluster) = Cluster::start(5, 1_000) else { return };
    if let Err(reason) = cluster.rack.lose(1, 10) {
        return eprintln!("skipped: {reason:#}");
    }
    cluster.serve("replicast-m");
    cluster.leave_three(1);
    assert_repaired(&cluster, "a target that loses, multicast", 1, "RepairAsked", 10);
    cluster.serve("replicast-h");
    assert_repaired(&cluster, "a target that loses, unicast", 1, "RepairAsked", 11);
    cluster.rack.lose(GATEWAY, 10).unwrap();
    assert_repaired(&cluster, "a gateway that loses", GATEWAY, "RepairSent", 12);
    cluster.assert_never_fragmented();
}
