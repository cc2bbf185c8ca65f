//! What connections cost a target over which nothing is said.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use node::carrier::{Carrier, Readiness};
use node::tcp::Tcp;
use node::{ClusterConfig, ConfigError};
use protocol::id::{NodeId, TxnId};
use protocol::machine::{Body, Destination, Transmit};
use protocol::wire::{Head, Message, encode_message};

use crate::common::Cluster;

/// Held by who opens many connections: there is no room for two.
pub(crate) static MANY: Mutex<()> = Mutex::new(());
/// As many as fit into 1,024 descriptors, beside what other tests have open.
const CONNECTIONS: u32 = 600;
/// Ten thousand of them may take 100 MiB. What a target allocates meanwhile for other things is not theirs.
const EACH: u64 = 10 << 10;
const OTHER: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it is watched whether the target wakes up.
const WATCHED: Duration = Duration::from_secs(3);

/// The token of the first connection of a node.
pub(crate) const TOKEN: u32 = 2;

/// What an initiator asks the first target.
pub(crate) fn ping(config: &ClusterConfig, from: NodeId, txn: TxnId) -> Transmit {
    let map = config.map().unwrap();
    let head = Head { cluster: map.cluster, epoch: map.epoch, from };
    let body = Body::Control(encode_message(head, &Message::Ping { txn }));
    Transmit { to: Destination::Node(NodeId(config.targets[0].id)), body }
}

/// An initiator that the target has heard, and that has heard the target.
pub(crate) fn connect(config: &ClusterConfig, nth: u32) -> Tcp {
    let id = NodeId(NodeId::FIRST_INITIATOR + 1_000 + nth);
    let mut tcp = Tcp::open(config, "127.0.0.1:0".parse().unwrap(), id).unwrap();
    let (deadline, mut asked) = (Instant::now() + PATIENCE, Instant::now());
    let ping = ping(config, id, TxnId(nth.into()));
    tcp.send(&ping);
    loop {
        tcp.ready(TOKEN, Readiness { writable: true, failed: false });
        while tcp.receive(TOKEN) {}
        if tcp.arrived().is_some() {
            return tcp;
        }
        if asked.elapsed() > Duration::from_millis(200) {
            tcp.send(&ping);
            asked = Instant::now();
        }
        assert!(Instant::now() < deadline, "the target does not answer initiator {nth}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A line of `/proc/PID/status` or of one of its threads.
pub(crate) fn number(file: &Path, name: &str) -> u64 {
    let status = fs::read_to_string(file.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
}

/// How often the threads of a process go to sleep in some time.
fn wake_ups(process: &Path) -> u64 {
    let count = || -> u64 {
        let threads = fs::read_dir(process.join("task")).unwrap().flatten();
        threads.map(|thread| number(&thread.path(), "voluntary_ctxt_switches")).sum()
    };
    let before = count();
    std::thread::sleep(WATCHED);
    count() - before
}

fn idle(ways: &[&str]) -> Result<(), ConfigError> {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let cluster = Cluster::start(&data, &[&["--carrier", "tcp", "--targets", "3"], ways].concat());
    let config = ClusterConfig::load(Path::new(&cluster.config()))?;
    let target = cluster.children("target")[0];
    let process = Path::new("/proc").join(target.to_string());
    // What it allocates once is there.
    drop((0..20).map(|nth| connect(&config, nth)).collect::<Vec<_>>());
    let (memory, wakes) = (number(&process, "VmRSS"), wake_ups(&process));
    let held: Vec<Tcp> = (20..CONNECTIONS + 20).map(|nth| connect(&config, nth)).collect();
    let sockets = fs::read_dir(process.join("fd")).unwrap().count();
    assert!(sockets >= CONNECTIONS as usize, "{sockets} descriptors: the connections are not there");
    std::thread::sleep(Duration::from_secs(1));
    let (more, now) = (number(&process, "VmRSS").saturating_sub(memory), wake_ups(&process));
    eprintln!("{ways:?}: {more} KiB for {CONNECTIONS} connections; {wakes} wake-ups without, {now} with");
    assert!(more << 10 <= EACH * u64::from(CONNECTIONS) + OTHER, "{more} KiB for {CONNECTIONS} connections");
    assert!(now <= wakes + wakes / 2 + 100, "{now} wake-ups in {WATCHED:?}, {wakes} without");
    drop(held);
    assert!(cluster.stop());
    Ok(())
}

#[test]
fn connections_over_which_nothing_is_said_cost_little_and_wake_nobody() {
    let _alone = MANY.lock().unwrap_or_else(PoisonError::into_inner);
    for ways in [&[][..], &["--encrypt"]] {
        idle(ways).unwrap();
    }
}
