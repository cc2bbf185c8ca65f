//! Strangers at the port of a target that is carried by TCP, and nodes that do not take what they asked for: what that costs
//! the target, and what others notice.

use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use node::ClusterConfig;
use node::carrier::{Carrier, Readiness};
use node::tcp::Tcp;
use protocol::id::{NodeId, TxnId};
use protocol::machine::{Body, Destination, Transmit};
use protocol::wire::{Head, Message, encode_message};
use socket2::SockRef;

use crate::common::{Cluster, content, wait_until};
use crate::idle::{MANY, TOKEN, connect, number, ping};

/// Strangers come one after the other, so many in a second, for so long.
const RATE: u32 = 5_000;
const STORM: Duration = Duration::from_secs(4);
/// Of which more keep still than a target hears out at once. A process may have 1,024 descriptors: other tests that need many
/// wait ([`MANY`]).
const HELD: usize = 700;
/// What a target may allocate for them, and for what else it does meanwhile.
const MEMORY: u64 = 32 << 10;

/// What they say: nothing, something else, half a frame, the beginning of the longest, half of how TLS begins.
const SAID: [&[u8]; 5] =
    [b"", b"GET / HTTP/1.1\r\n\r\n", &[40, 0, 0, 0, 1], &[0xe3, 0xff, 0, 0, 1], &[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3]];

/// How one begins to encrypt who has another key: all that a target needs to sign its answer.
fn whole_hello(config: &ClusterConfig, place: &Path) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut other = config.clone();
    other.key_file = place.join("other.key");
    fs::write(&other.key_file, "17".repeat(32)).unwrap();
    other.targets[0].address = listener.local_addr().unwrap();
    let from = NodeId(NodeId::FIRST_INITIATOR + 1_002);
    let mut stranger = Tcp::open(&other, "127.0.0.1:0".parse().unwrap(), from).unwrap();
    stranger.send(&ping(&other, from, TxnId(1)));
    let mut heard = listener.accept().unwrap().0;
    stranger.ready(TOKEN, Readiness { writable: true, failed: false });
    let mut hello = vec![0; 4_096];
    let length = heard.read(&mut hello).unwrap();
    hello.truncate(length);
    hello
}

/// Connects and connects, and says something of this. How many they were.
fn storm(address: SocketAddr, said: &[&[u8]], ends: &AtomicBool) -> u32 {
    let (began, mut came, mut held) = (Instant::now(), 0, VecDeque::new());
    while !ends.load(Ordering::Acquire) {
        let due = began + Duration::from_secs(1) * came / RATE;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let Ok(mut stranger) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        // It leaves nothing behind that would keep a port.
        SockRef::from(&stranger).set_linger(Some(Duration::ZERO)).unwrap();
        // The target may have ended it already.
        let _ = stranger.write_all(said[came as usize % said.len()]);
        came += 1;
        held.push_back(stranger);
        if held.len() > HELD {
            held.pop_front();
        }
    }
    came
}

/// A target of a cluster, seen from outside.
struct Seen {
    process: PathBuf,
    metrics: String,
}

impl Seen {
    fn memory(&self) -> u64 {
        number(&self.process, "VmRSS")
    }

    /// Hundredths of a second of a processor.
    fn cpu(&self) -> u64 {
        let stat = fs::read_to_string(self.process.join("stat")).unwrap();
        let after_name = stat.rsplit(") ").next().unwrap();
        after_name.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }

    /// What it dropped for this reason.
    fn dropped(&self, reason: &str) -> u64 {
        let page = ureq::get(format!("http://{}/metrics", self.metrics)).call().unwrap();
        let page = page.into_body().read_to_string().unwrap();
        let is_it = |line: &&str| line.contains("_dropped") && line.contains(&format!("reason=\"{reason}\""));
        let line = page.lines().find(is_it).unwrap_or_else(|| panic!("{reason} is not counted: {page}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64
    }
}

fn start(place: &Path, more: &[&str]) -> (Cluster, ClusterConfig, Seen) {
    let cluster = Cluster::start(&place.join("data"), &[&["--carrier", "tcp", "--targets", "3"], more].concat());
    let config = ClusterConfig::load(Path::new(&cluster.config())).unwrap();
    let process = Path::new("/proc").join(cluster.children("target")[0].to_string());
    let metrics = config.targets[0].metrics.unwrap().to_string();
    (cluster, config, Seen { process, metrics })
}

/// Puts and gets for so long; each must succeed. How many they were.
fn work(cluster: &Cluster, time: Duration, bytes: &[u8]) -> u32 {
    let (began, mut done) = (Instant::now(), 0);
    while began.elapsed() < time {
        let key = format!("key-{}", done % 10);
        let put = cluster.try_run(&["put", "-", &key], bytes);
        assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
        assert!(cluster.run(&["get", &key, "-o", "-"]) == bytes);
        done += 1;
    }
    done
}

fn nobody_notices_how_many_strangers_come_with(more: &[&str], is_whole: bool, ended_as: &str) {
    let place = tempfile::tempdir().unwrap();
    let (cluster, config, target) = start(place.path(), more);
    let hello = is_whole.then(|| whole_hello(&config, place.path()));
    let said = hello.as_ref().map_or(SAID.to_vec(), |hello| vec![hello.as_slice()]);
    let bytes = content(300_000, 4);
    work(&cluster, Duration::from_secs(1), &bytes);
    let (memory, cpu) = (target.memory(), target.cpu());
    let without = work(&cluster, STORM, &bytes);
    let usual = target.cpu() - cpu;
    let ends = AtomicBool::new(false);
    let (with, came, busy) = std::thread::scope(|scope| {
        let cpu = target.cpu();
        let strangers = scope.spawn(|| storm(config.targets[0].address, &said, &ends));
        let with = work(&cluster, STORM, &bytes);
        ends.store(true, Ordering::Release);
        (with, strangers.join().unwrap(), target.cpu() - cpu)
    });
    let more_memory = target.memory().saturating_sub(memory);
    eprintln!(
        "{more:?}, {is_whole}: {came} strangers in {STORM:?}; {without} puts and gets without, {with} with; the target was busy for \
         {usual} and {busy} hundredths of a second, and keeps {more_memory} KiB more"
    );
    assert!(came > 1_000, "they hardly came: {came}");
    // On a busy machine they are no measure; a target that hears nobody else would have done nothing.
    assert!(with * 5 >= without, "{with} puts and gets, {without} without");
    assert!(more_memory < MEMORY, "{more_memory} KiB more");
    // Who is refused at once does not stay long enough to be one too many.
    assert!(is_whole || target.dropped("stranger") > 0);
    assert!(target.dropped(ended_as) > 0);
    assert!(cluster.stop());
}

#[test]
fn nobody_notices_how_many_strangers_come() {
    let _alone = MANY.lock().unwrap_or_else(PoisonError::into_inner);
    nobody_notices_how_many_strangers_come_with(&[], false, "malformed_frame");
    nobody_notices_how_many_strangers_come_with(&["--encrypt"], false, "not_encrypted");
    nobody_notices_how_many_strangers_come_with(&["--encrypt"], true, "not_encrypted");
}

#[test]
fn who_takes_no_answer_is_not_waited_for() {
    let place = tempfile::tempdir().unwrap();
    let (cluster, config, target) = start(place.path(), &[]);
    let bytes = content(300_000, 4);
    work(&cluster, Duration::from_secs(1), &bytes);
    let memory = target.memory();
    // It asks and asks, and takes nothing: answers wait in the kernel, then in the target, and then they are dropped.
    let mut slow = connect(&config, 1);
    let map = config.map().unwrap();
    let from = NodeId(NodeId::FIRST_INITIATOR + 1_001);
    let head = Head { cluster: map.cluster, epoch: map.epoch, from };
    let mut txn = 0;
    wait_until("answers are dropped", || {
        for _ in 0..4_000 {
            txn += 1;
            let ping = Body::Control(encode_message(head, &Message::Ping { txn: TxnId(txn) }));
            slow.send(&Transmit { to: Destination::Node(NodeId(config.targets[0].id)), body: ping });
        }
        slow.ready(TOKEN, Readiness { writable: true, failed: false });
        target.dropped("backlog") > 0 || target.dropped("connection_lost") > 0
    });
    work(&cluster, Duration::from_secs(2), &bytes);
    let more = target.memory().saturating_sub(memory);
    eprintln!("{txn} questions; the target keeps {more} KiB more");
    assert!(more < MEMORY, "{more} KiB more");
    // Its connection is given up, with all that waits for it.
    wait_until("the connection is closed", || target.dropped("connection_lost") > 0);
    drop(slow);
    assert!(cluster.stop());
}
