//! A cluster on a real network path: every server a process in its own network namespace, joined by a switch with
//! multicast snooping. Skipped, with the reason, where no such rack can be built.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::content;
use serde_json::Value;
use testkit::{Carrier, Plan, Process, Rack, Shape};

/// The host of the gateway; target `n` is on host `n`.
const GATEWAY: usize = 0;
const MIB: usize = 1 << 20;

/// Some targets and a gateway, each on a host of its own.
struct Cluster {
    inner: testkit::Cluster,
    targets: usize,
    carrier: Carrier,
    /// One rack at a time: two would fight for the processors.
    _alone: MutexGuard<'static, ()>,
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    testkit::wait_until(what, || Ok(holds())).unwrap();
}

impl Cluster {
    /// Starts the targets. `None`, and the reason printed, where this machine cannot.
    fn start(targets: usize, rate_mbit: u32) -> Option<Self> {
        Self::start_on(false, targets, rate_mbit)
    }

    /// The same on a network of IPv6, or of IPv4.
    fn start_on(ipv6: bool, targets: usize, rate_mbit: u32) -> Option<Self> {
        Self::start_over(Carrier::Udp, ipv6, targets, rate_mbit)
    }

    /// The same over datagrams, or over encrypted connections.
    fn start_over(carrier: Carrier, ipv6: bool, targets: usize, rate_mbit: u32) -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        if let Some(reason) = Rack::obstacle(ipv6) {
            eprintln!("skipped: {reason}");
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let inner = testkit::Cluster::start(Plan {
            program: env!("CARGO_BIN_EXE_reservoir").into(),
            place: std::env::temp_dir(),
            targets,
            gateways: 1,
            spares: 0,
            group_cells: 3,
            switches: 0,
            carrier,
            encrypt: carrier == Carrier::Tcp,
            shape: Shape { rate_mbit: Some(rate_mbit), ipv6, ..Shape::default() },
            capacity: "512MiB".to_owned(),
            out_after_seconds: 600,
            log: "node=trace".to_owned(),
        });
        Some(Self { inner: inner.unwrap(), targets, carrier, _alone: alone })
    }

    fn rack(&self) -> &Rack {
        self.inner.rack()
    }

    /// Starts the gateway, or another one in its place.
    fn serve(&mut self, transport: &str) {
        self.inner.serve(GATEWAY, transport).unwrap();
        let status = self.ask(&["status", "--json"]);
        assert_eq!(status["transport"], transport);
        assert_eq!(
            status["multicast"],
            self.carrier == Carrier::Udp,
            "multicast was not found, or is where there is none"
        );
    }

    /// Kills two of five targets, but not this one: from now on every put must use it.
    fn leave_three(&mut self, id: usize) {
        assert_eq!(self.targets, 5, "three of them have the three copies of everything");
        for other in [id + 1, id + 2] {
            self.inner.kill_target((other - 1) % 5 + 1).unwrap();
        }
        assert_eq!(self.alive(), 3);
    }

    fn file(&self, name: &str) -> PathBuf {
        self.inner.file(name)
    }

    /// `reservoir` with `args` on a host.
    fn command(&self, host: usize, args: &[&str]) -> Command {
        self.inner.command(host, args)
    }

    /// Runs a command of the gateway's host, which must succeed; what it printed.
    fn run(&self, args: &[&str]) -> Vec<u8> {
        self.inner.run(args).unwrap()
    }

    /// Begins a command on the gateway's host.
    fn begin(&self, args: &[&str]) -> Process {
        self.rack().start(self.command(GATEWAY, args), &self.file("command.log")).unwrap()
    }

    fn ask(&self, args: &[&str]) -> Value {
        self.inner.ask(args).unwrap()
    }

    /// How many targets answer.
    fn alive(&self) -> usize {
        self.inner.alive().unwrap()
    }

    /// Makes a file and puts it under its name; how many chunks each target that answers got meanwhile.
    fn put(&self, name: &str, bytes: &[u8]) -> BTreeMap<u64, u64> {
        fs::write(self.file(name), bytes).unwrap();
        let before = self.inner.chunks().unwrap();
        self.run(&["put", self.file(name).to_str().unwrap()]);
        let had = |id: &u64| before.get(id).copied().unwrap_or(0);
        self.inner.chunks().unwrap().into_iter().map(|(id, chunks)| (id, chunks.saturating_sub(had(&id)))).collect()
    }

    fn assert_holds(&self, name: &str, bytes: &[u8]) {
        assert!(self.run(&["get", name, "--output", "-"]) == bytes, "{name} came back changed");
    }

    /// Bytes that the gateway sent and that all targets received, while `work` was done.
    fn traffic(&self, work: impl FnOnce()) -> (f64, f64) {
        let sent = || self.rack().traffic(GATEWAY).unwrap().0;
        let received = || (1..=self.targets).map(|id| self.rack().traffic(id).unwrap().1).sum::<u64>();
        let before = (sent(), received());
        work();
        ((sent() - before.0) as f64, (received() - before.1) as f64)
    }

    fn assert_never_fragmented(&self) {
        for host in 0..=self.targets {
            assert_eq!(self.rack().fragments(host).unwrap(), 0, "host {host} made or joined IP fragments");
        }
    }
}

#[test]
fn multicast_carries_a_copy_for_all_and_unicast_one_for_each() {
    multicast_carries_a_copy_for_all_on(false);
}

#[test]
fn multicast_carries_a_copy_for_all_over_ipv6() {
    multicast_carries_a_copy_for_all_on(true);
}

fn multicast_carries_a_copy_for_all_on(ipv6: bool) {
    let Some(mut cluster) = Cluster::start_on(ipv6, 9, 1_000) else { return };
    let size = 32 * MIB;
    let mut seeds = 1..;
    for (transport, copies_sent) in [("replicast-m", 1.0), ("replicast-h", 3.0), ("leader", 1.0)] {
        cluster.serve(transport);
        // The rest is headers, negotiation, and now and then a straggler's own copy. On a busy machine these are many, so one put
        // of three that is undisturbed is enough.
        let (mut puts, mut fits) = (Vec::new(), false);
        while !fits && puts.len() < 3 {
            let bytes = content(size, seeds.next().unwrap());
            let (sent, received) = cluster.traffic(|| drop(cluster.put(transport, &bytes)));
            let (sent, received) = (sent / size as f64, received / size as f64);
            eprintln!("{transport}: {sent:.2} times the payload sent, {received:.2} times received");
            fits = (copies_sent..copies_sent + 0.5).contains(&sent) && (3.0..3.5).contains(&received);
            puts.push((sent, received));
            cluster.assert_holds(transport, &bytes);
        }
        assert!(fits, "{transport}: times the payload was sent, and received: {puts:?}");
    }
    cluster.assert_never_fragmented();
}

#[test]
fn puts_go_on_when_a_cable_is_cut_and_the_server_is_used_again_when_it_is_healed() {
    puts_go_on_when_a_cable_is_cut_on(false);
}

#[test]
fn puts_go_on_when_a_cable_of_ipv6_is_cut() {
    puts_go_on_when_a_cable_is_cut_on(true);
}

/// Cuts the cable of a target that a put counts on; it must end well all the same. Which target.
fn cut_in_the_midst_of_a_put(cluster: &Cluster) -> usize {
    let bytes = content(32 * MIB, 3);
    fs::write(cluster.file("large"), &bytes).unwrap();
    let traffic = |host| cluster.rack().traffic(host).unwrap();
    let begin = traffic(GATEWAY).0;
    let mut put = cluster.begin(&["put", cluster.file("large").to_str().unwrap(), "--json"]);
    wait_until("a quarter is sent", || traffic(GATEWAY).0 - begin > 8 * MIB as u64);
    // Whoever got most so far is sure to be counted on.
    let cut = (1..=5).max_by_key(|id| traffic(*id).1).unwrap();
    cluster.rack().cut(cut).unwrap();
    assert!(put.is_running(), "the cable was cut too late to show anything: {}", put.output());
    assert!(put.wait().unwrap(), "{}", put.output());
    assert_eq!(cluster.alive(), 4);
    cluster.assert_holds("large", &bytes);
    cut
}

fn puts_go_on_when_a_cable_is_cut_on(ipv6: bool) {
    let Some(mut cluster) = Cluster::start_on(ipv6, 5, 300) else { return };
    cluster.serve("replicast-m");
    let cut = cut_in_the_midst_of_a_put(&cluster);
    let during = cluster.put("during", &content(4 * MIB, 4));
    assert!(!during.contains_key(&(cut as u64)), "{during:?}");

    cluster.rack().heal(cut).unwrap();
    wait_until("the switch forwards to it again", || {
        cluster.inner.groups_of(cut).unwrap() == cluster.inner.groups_each()
    });
    wait_until("it answers again", || cluster.alive() == 5);
    cluster.leave_three(cut);
    // On a busy machine a straggler may get its own copy now and then: not in each of many puts.
    let mut seeds = 6..;
    let (mut bytes, mut took) = (Vec::new(), BTreeMap::new());
    wait_until("one copy is sent for all", || {
        bytes = content(4 * MIB, seeds.next().unwrap());
        let (sent, _) = cluster.traffic(|| took = cluster.put("after", &bytes));
        eprintln!("{:.2} times the payload sent", sent / bytes.len() as f64);
        sent < 2.0 * bytes.len() as f64
    });
    assert!(took[&(cut as u64)] >= 4, "{took:?}");
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
        let moved = || cluster.rack().traffic(GATEWAY).map(|(sent, received)| sent + received).unwrap();
        let begin = moved();
        let mut work = cluster.begin(args);
        wait_until("a quarter is moved", || moved() - begin > 8 * MIB as u64);
        cluster.rack().cut(GATEWAY).unwrap();
        assert!(work.is_running(), "the cable was cut too late to show anything: {}", work.output());
        // Longer than any single question waits for its answer.
        std::thread::sleep(Duration::from_secs(1));
        cluster.rack().heal(GATEWAY).unwrap();
        assert!(work.wait().unwrap(), "{args:?}: {}", work.output());
    }
    assert!(fs::read(copy).unwrap() == bytes, "the file came back changed");
}

/// Puts and gets a file; `event` counts what the targets log when a lost datagram is repaired.
fn assert_repaired(cluster: &Cluster, what: &str, loser: usize, event: &str, seed: u64) {
    let logged = || cluster.inner.running().map(|target| target.output().matches(event).count()).sum::<usize>();
    let before = (cluster.rack().lost(loser).unwrap(), logged());
    let bytes = content(16 * MIB, seed);
    cluster.put(what, &bytes);
    cluster.assert_holds(what, &bytes);
    let (lost, repairs) = (cluster.rack().lost(loser).unwrap() - before.0, logged() - before.1);
    eprintln!("{what}: {lost} datagrams lost, {repairs} repairs");
    assert!(lost > 0 && repairs > 0, "{what}: {lost} datagrams lost, {repairs} repairs");
}

#[test]
fn what_one_receiver_loses_is_repaired() {
    what_one_receiver_loses_is_repaired_on(false);
}

#[test]
fn what_one_receiver_loses_over_ipv6_is_repaired() {
    what_one_receiver_loses_is_repaired_on(true);
}

fn what_one_receiver_loses_is_repaired_on(ipv6: bool) {
    let Some(mut cluster) = Cluster::start_on(ipv6, 5, 1_000) else { return };
    if let Err(reason) = cluster.rack().lose(1, 10) {
        return eprintln!("skipped: {reason:#}");
    }
    cluster.serve("replicast-m");
    cluster.leave_three(1);
    assert_repaired(&cluster, "a target that loses, multicast", 1, "RepairAsked", 10);
    cluster.serve("replicast-h");
    assert_repaired(&cluster, "a target that loses, unicast", 1, "RepairAsked", 11);
    cluster.rack().lose(GATEWAY, 10).unwrap();
    assert_repaired(&cluster, "a gateway that loses", GATEWAY, "RepairSent", 12);
    cluster.assert_never_fragmented();
}

/// Two files, put while something is amiss: they must be there, and those who are away have none of them.
fn assert_goes_on(cluster: &Cluster, what: &str, away: usize, seed: u64) {
    let bytes = content(8 * MIB, seed);
    let took = cluster.put(what, &bytes);
    assert!(!took.contains_key(&(away as u64)), "{took:?}");
    cluster.assert_holds(what, &bytes);
}

#[test]
fn a_frozen_server_keeps_nobody_from_work_and_is_used_again() {
    let Some(mut cluster) = Cluster::start(5, 1_000) else { return };
    cluster.serve("replicast-m");
    let before = content(8 * MIB, 20);
    cluster.put("before", &before);
    cluster.inner.target(2).unwrap().freeze().unwrap();
    cluster.assert_holds("before", &before);
    assert_goes_on(&cluster, "during", 2, 21);
    cluster.inner.target(2).unwrap().thaw().unwrap();
    wait_until("it answers again", || cluster.alive() == 5);
    cluster.leave_three(2);
    let took = cluster.put("after", &content(4 * MIB, 22));
    assert!(took[&2] >= 4, "{took:?}");
}

#[test]
fn a_leader_that_is_killed_is_replaced_and_leads_again() {
    let Some(mut cluster) = Cluster::start(5, 1_000) else { return };
    cluster.serve("leader");
    let before = content(8 * MIB, 30);
    cluster.put("before", &before);
    cluster.inner.kill_target(1).unwrap();
    cluster.assert_holds("before", &before);
    assert_goes_on(&cluster, "during", 1, 31);
    cluster.inner.start_targets().unwrap();
    wait_until("it answers again", || cluster.alive() == 5);
    cluster.leave_three(1);
    let took = cluster.put("after", &content(4 * MIB, 32));
    assert!(took[&1] >= 4, "{took:?}");
}

#[test]
fn multicast_is_used_while_the_switch_carries_it() {
    multicast_is_used_while_the_switch_carries_it_on(false);
}

#[test]
fn multicast_of_ipv6_is_used_while_the_switch_carries_it() {
    multicast_is_used_while_the_switch_carries_it_on(true);
}

fn multicast_is_used_while_the_switch_carries_it_on(ipv6: bool) {
    let Some(mut cluster) = Cluster::start_on(ipv6, 5, 1_000) else { return };
    cluster.rack().set_multicast(false).unwrap();
    cluster.inner.serve(GATEWAY, "replicast-m").unwrap();
    assert_eq!(cluster.ask(&["status", "--json"])["multicast"], false);
    let bytes = content(8 * MIB, 40);
    let (sent, _) = cluster.traffic(|| drop(cluster.put("file", &bytes)));
    assert!(sent > 3.0 * bytes.len() as f64, "{sent} bytes were sent: not a copy for each");
    cluster.assert_holds("file", &bytes);
    let uses = |wanted: bool| cluster.ask(&["status", "--json"])["multicast"] == wanted;
    // Bytes that are there already would not be sent.
    let mut seeds = 41..;
    let mut sends = |name| {
        let bytes = content(8 * MIB, seeds.next().unwrap());
        let (sent, _) = cluster.traffic(|| drop(cluster.put(name, &bytes)));
        cluster.assert_holds(name, &bytes);
        sent / bytes.len() as f64
    };
    // It probes now and then, also where nobody puts or gets.
    cluster.rack().set_multicast(true).unwrap();
    wait_until("multicast is found", || uses(true));
    wait_until("one copy is sent for all", || sends("found") < 2.0);
    // What was asked in vain says that it is gone.
    cluster.rack().set_multicast(false).unwrap();
    wait_until("multicast is given up", || sends("lost") > 0.0 && uses(false));
    let times = sends("without");
    assert!(times > 3.0, "{times} times the payload was sent: not a copy for each");
    let log = fs::read_to_string(cluster.file(&format!("gateway-{GATEWAY}.log"))).unwrap();
    assert!(log.contains("multicast works") && log.contains("nobody hears multicast any more"), "{log}");
}

#[test]
fn nothing_is_lost_over_encrypted_connections_whatever_breaks() {
    let Some(mut cluster) = Cluster::start_over(Carrier::Tcp, false, 5, 300) else { return };
    cluster.serve("replicast-h");
    let cut = cut_in_the_midst_of_a_put(&cluster);
    assert_goes_on(&cluster, "cut", cut, 50);
    cluster.rack().heal(cut).unwrap();
    wait_until("it answers again", || cluster.alive() == 5);

    cluster.inner.target(2).unwrap().freeze().unwrap();
    assert_goes_on(&cluster, "frozen", 2, 51);
    cluster.inner.target(2).unwrap().thaw().unwrap();
    wait_until("it answers again", || cluster.alive() == 5);

    cluster.inner.kill_target(1).unwrap();
    assert_goes_on(&cluster, "killed", 1, 52);
    cluster.inner.start_targets().unwrap();
    wait_until("it answers again", || cluster.alive() == 5);

    cluster.leave_three(cut);
    let took = cluster.put("after", &content(4 * MIB, 53));
    assert!(took[&(cut as u64)] >= 4, "{took:?}");
    if let Err(reason) = cluster.rack().lose(GATEWAY, 10) {
        return eprintln!("skipped: {reason:#}");
    }
    let bytes = content(8 * MIB, 54);
    cluster.put("loss", &bytes);
    cluster.assert_holds("loss", &bytes);
    assert!(cluster.rack().lost(GATEWAY).unwrap() > 0);
}
