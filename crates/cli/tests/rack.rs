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

use common::content;
use serde_json::Value;
use testkit::{Process, Rack, Shape};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);
const TARGETS: usize = 9;
/// The host of the gateway, behind those of the targets.
const GATEWAY: usize = TARGETS;
const MIB: usize = 1 << 20;

/// Nine targets and a gateway, each on a host of its own. Target `n` is on host `n - 1`.
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
    fn start(rate_mbit: u32) -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        if let Some(reason) = Rack::obstacle() {
            eprintln!("skipped: {reason}");
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let rack = Rack::build(&Shape { hosts: TARGETS + 1, mtu: 9_000, rate_mbit: Some(rate_mbit) }).unwrap();
        let place = tempfile::tempdir().unwrap();
        configure(&rack, place.path(), rate_mbit);
        let mut cluster = Self { gateway: None, targets: Vec::new(), rack, place, _alone: alone };
        for host in 0..TARGETS {
            let mut command = cluster.command(host, &["target", "--with-parent", "--id", &(host + 1).to_string()]);
            command.env("RUST_LOG", "node=trace");
            let log = cluster.file(&format!("target-{}.log", host + 1));
            cluster.targets.push(cluster.rack.start(command, &log).unwrap());
        }
        for target in &mut cluster.targets {
            wait_until("targets are ready", || {
                assert!(target.is_running(), "{}", target.said());
                target.said().contains("is ready on")
            });
        }
        wait_until("the switch has heard of every target's groups", || {
            let groups = cluster.rack.groups().unwrap();
            // 84 triples and 36 pairs of nine, and all nine.
            groups.len() == 121 && groups.values().map(|hosts| hosts.len()).sum::<usize>() == 84 * 3 + 36 * 2 + 9
        });
        Some(cluster)
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
        assert_eq!(self.alive(), (1..=TARGETS as u64).collect::<Vec<_>>());
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

    fn ask(&self, args: &[&str]) -> Value {
        serde_json::from_slice(&self.run(args)).unwrap()
    }

    fn alive(&self) -> Vec<u64> {
        let status = self.ask(&["status", "--json"]);
        let targets = status["targets"].as_array().unwrap().iter();
        targets.filter(|target| target["alive"] == true).map(|target| target["id"].as_u64().unwrap()).collect()
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
        let received = || (0..TARGETS).map(|host| self.rack.traffic(host).unwrap().1).sum::<u64>();
        let before = (sent(), received());
        work();
        ((sent() - before.0) as f64, (received() - before.1) as f64)
    }

    fn assert_never_fragmented(&self) {
        for host in 0..=GATEWAY {
            assert_eq!(self.rack.fragments(host).unwrap(), 0, "host {host} made or joined IP fragments");
        }
    }
}

/// One configuration for all hosts.
fn configure(rack: &Rack, place: &Path, rate_mbit: u32) {
    let mut text = format!(
        "cluster = \"rack\"\nepoch = 1\nkey_file = \"cluster.key\"\n[network]\nmulticast_port = 7400\nmtu = 9000\n\
         [protocol]\nlink_mbps = {rate_mbit}\n"
    );
    for host in 0..TARGETS {
        let (id, address) = (host + 1, rack.address(host));
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
    let Some(mut cluster) = Cluster::start(1_000) else { return };
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
    let Some(mut cluster) = Cluster::start(300) else { return };
    cluster.serve("replicast-m");
    let bytes = content(32 * MIB, 3);
    fs::write(cluster.file("large"), &bytes).unwrap();
    let begin = cluster.rack.traffic(GATEWAY).unwrap().0;
    let put = cluster.command(GATEWAY, &["put", cluster.file("large").to_str().unwrap(), "--json"]);
    let mut put = cluster.rack.start(put, &cluster.file("put.log")).unwrap();
    wait_until("a quarter is sent", || cluster.rack.traffic(GATEWAY).unwrap().0 - begin > 8 * MIB as u64);
    cluster.rack.cut(0).unwrap();
    assert!(put.is_running(), "the cable was cut too late to show anything: {}", put.said());
    assert!(put.wait().unwrap(), "{}", put.said());
    assert_eq!(cluster.alive(), (2..=TARGETS as u64).collect::<Vec<_>>());
    cluster.assert_holds("large", &bytes);
    let during = cluster.put("during", &bytes[..4 * MIB]);
    assert!(during["copies_by_target"]["1"].is_null(), "{during}");

    cluster.rack.heal(0).unwrap();
    wait_until("the switch forwards to it again", || {
        cluster.rack.groups().unwrap().values().filter(|hosts| hosts.contains(&0)).count() == 28 + 8 + 1
    });
    wait_until("it answers again", || cluster.alive().len() == TARGETS);
    let mut number = 0;
    wait_until("it gets copies again", || {
        number += 1;
        let bytes = content(4 * MIB, 100 + number);
        let name = format!("after-{number}");
        let report = cluster.put(&name, &bytes);
        cluster.assert_holds(&name, &bytes);
        report["copies_by_target"]["1"].as_u64().is_some()
    });
    cluster.assert_never_fragmented();
}

/// Puts and gets files until the targets have said `event` once more, as lost datagrams make them say.
fn until_repaired(cluster: &Cluster, what: &str, loser: usize, event: &str, seed: u64) {
    let said = || cluster.targets.iter().map(|target| target.said().matches(event).count()).sum::<usize>();
    let (before, lost_before) = (said(), cluster.rack.lost(loser).unwrap());
    let mut puts = 0;
    // A target that loses is slow and wins few choices: three puts need not show anything.
    wait_until(what, || {
        puts += 1;
        let (name, bytes) = (format!("{what} {puts}"), content(8 * MIB, seed + puts));
        cluster.put(&name, &bytes);
        cluster.assert_holds(&name, &bytes);
        puts >= 3 && said() > before
    });
    let (lost, repairs) = (cluster.rack.lost(loser).unwrap() - lost_before, said() - before);
    eprintln!("{what}: {puts} puts, {lost} datagrams lost, {repairs} repairs");
    assert!(lost > 0, "{what}: nothing was lost");
}

#[test]
fn what_one_receiver_loses_is_repaired() {
    let Some(mut cluster) = Cluster::start(1_000) else { return };
    if let Err(reason) = cluster.rack.lose(0, 10) {
        return eprintln!("skipped: {reason:#}");
    }
    cluster.serve("replicast-m");
    until_repaired(&cluster, "a target that loses, multicast", 0, "RepairAsked", 1_000);
    cluster.serve("replicast-h");
    until_repaired(&cluster, "a target that loses, unicast", 0, "RepairAsked", 2_000);
    cluster.rack.lose(GATEWAY, 10).unwrap();
    until_repaired(&cluster, "a gateway that loses", GATEWAY, "RepairSent", 3_000);
    cluster.assert_never_fragmented();
}
