//! A running target among datagrams that are garbage, cut off, too large, forged or sent again: each is counted by its
//! reason and dropped, the process neither ends nor grows, and puts and gets go on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use common::{Cluster, content};
use node::ClusterConfig;
use protocol::id::{ChunkId, ClusterId, NodeId, TxnId};
use protocol::wire::{Ack, DataHeader, Head, Message, Opened, Session, VERSION, decode_message, encode_message};

/// The largest payload of a UDP datagram.
const LARGEST: usize = 65_507;

/// Somebody with a socket, and with the cluster's key where a test says so.
struct Stranger {
    socket: UdpSocket,
    victim: SocketAddr,
    metrics: SocketAddr,
    head: Head,
    session: Session,
}

impl Stranger {
    fn before(config: &ClusterConfig) -> Self {
        let target = &config.targets[0];
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let map = config.map().unwrap();
        let head = Head { cluster: map.cluster, epoch: map.epoch, from: NodeId(NodeId::FIRST_INITIATOR + 4_711) };
        let session = Session::new(config.key().unwrap(), map.cluster, head.from, 4_711);
        Self { socket, victim: target.address, metrics: target.metrics.unwrap(), head, session }
    }

    fn send(&self, datagram: &[u8]) {
        self.socket.send_to(datagram, self.victim).unwrap();
    }

    fn sealed(&mut self, message: &Message) -> Bytes {
        self.seal(&encode_message(self.head, message))
    }

    fn seal(&mut self, message: &[u8]) -> Bytes {
        self.session.seal(message)
    }

    /// Waits until the target has worked off what was sent before, which its answer to a ping shows.
    fn settle(&mut self) {
        for n in 0..50 {
            let ping = self.sealed(&Message::Ping { txn: TxnId(n) });
            self.send(&ping);
            let mut answer = [0; 2_048];
            while let Ok((len, _)) = self.socket.recv_from(&mut answer) {
                let opened = self.session.open(node::clock::now(), Bytes::copy_from_slice(&answer[..len]));
                let message = match opened {
                    Ok(Opened::Good(message)) => message,
                    Ok(Opened::Between(replies) | Opened::Unproven(replies)) => {
                        replies.iter().for_each(|reply| self.send(reply));
                        continue;
                    }
                    Err(_) => continue,
                };
                if matches!(decode_message(&message), Some((_, Message::Pong { txn, .. })) if txn == TxnId(n)) {
                    return;
                }
            }
        }
        panic!("the target does not answer");
    }

    fn dropped(&self, reason: &str) -> u64 {
        let page = ureq::get(format!("http://{}/metrics", self.metrics)).call().unwrap();
        let page = page.into_body().read_to_string().unwrap();
        let series = page.lines().filter(|line| line.starts_with("reservoir_target_dropped_total{"));
        let mut of_reason = series.filter(|line| line.contains(&format!("reason=\"{reason}\"")));
        of_reason.next().map_or(0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
    }

    /// Sends these, one by one, and checks that exactly they are dropped for this reason.
    fn expect(&mut self, reason: &str, datagrams: &[Bytes]) {
        self.settle();
        let before = self.dropped(reason);
        for datagram in datagrams {
            self.send(datagram);
            self.settle();
        }
        assert_eq!(self.dropped(reason) - before, datagrams.len() as u64, "{reason}");
    }
}

fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn hostile_datagrams_are_counted_and_dropped_and_the_target_serves_on() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = Cluster::start(&data, &["--targets", "3"]);
    let config = ClusterConfig::load(Path::new(&cluster.config())).unwrap();
    let mut stranger = Stranger::before(&config);
    let processes = cluster.children("target");
    let good = stranger.sealed(&Message::Ping { txn: TxnId(1) });
    with_a_wrong_shape(&mut stranger, &good);
    with_a_wrong_seal(&mut stranger, &good);
    with_the_key(&mut stranger);

    // Far more than a target may hold: payload that belongs to nothing, and noise.
    let resident: Vec<u64> = processes.iter().map(|pid| resident_kib(*pid)).collect();
    let head = stranger.head;
    for n in 0..3_000_u64 {
        let header = DataHeader { cluster: head.cluster, from: head.from, txn: TxnId(n), offset: 0, size: 8 << 20 };
        stranger.send(&[&header.encode()[..], &content(60_000, n)].concat());
        stranger.send(&content(n as usize % 1_500, n));
        if n % 3 == 0 {
            stranger.settle();
        }
    }
    assert_eq!(cluster.children("target"), processes, "a target ended");
    for (pid, before) in processes.iter().zip(resident) {
        let after = resident_kib(*pid);
        assert!(after < before + (32 << 10), "from {before} to {after} KiB resident");
    }

    // Three copies on three targets: all of them must serve.
    let file = content(3 << 20, 5);
    let put = cluster.try_run(&["put", "-", "f"], &file);
    assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    assert!(cluster.run(&["get", "f", "-o", "-"]) == file, "other bytes came back");
    assert!(cluster.stop());
}

fn with_a_wrong_shape(stranger: &mut Stranger, good: &Bytes) {
    let start = |len: usize| {
        let mut datagram = good[..32].to_vec();
        datagram.resize(len, 7);
        Bytes::from(datagram)
    };
    let garbage = Bytes::from(vec![0xA5; 100]);
    let cut = [good.slice(..1), good.slice(..31), good.slice(..47)];
    stranger.expect("malformed", &[Bytes::new(), garbage, cut[0].clone(), cut[1].clone(), cut[2].clone()]);
    stranger.expect("malformed", &[start(1_201), start(LARGEST), Bytes::from(vec![0; LARGEST])]);
    let with = |at: usize, byte: u8| {
        let mut changed = good.to_vec();
        changed[at] = byte;
        Bytes::from(changed)
    };
    stranger.expect("version", &[with(1, 0), with(1, VERSION + 1)]);
    stranger.expect("other_cluster", &[with(4, good[4] ^ 1)]);
    let (from, txn) = (stranger.head.from, TxnId(1));
    let data = |cluster, offset| {
        let header = DataHeader { cluster, from, txn, offset, size: 8 << 20 }.encode();
        Bytes::from([&header[..], &vec![1; LARGEST - header.len()]].concat())
    };
    let own = stranger.head.cluster;
    stranger.expect("other_cluster", &[data(ClusterId(own.0 ^ 1), 0)]);
    stranger.expect("unsolicited", &[data(own, 0)]);
    // Behind the end of its chunk, and a header without payload.
    stranger.expect("invalid", &[data(own, u32::MAX), data(own, 8 << 20), data(own, 0).slice(..32)]);
}

fn with_a_wrong_seal(stranger: &mut Stranger, good: &Bytes) {
    let changed = |at: usize| {
        let mut changed = good.to_vec();
        changed[at] ^= 1;
        Bytes::from(changed)
    };
    let head = stranger.head;
    let mut other = Session::new([1; 32], head.cluster, head.from, 1);
    let foreign = other.seal(&encode_message(head, &Message::Suspect { id: ChunkId::of_payload(b"x") }));
    // The sender, the session, the sequence number, the message, the tag; a byte less; another key.
    let changes = [12, 16, 24, 32, good.len() - 1].map(changed);
    let forged = [&changes[..], &[good.slice(..good.len() - 1), foreign]].concat();
    stranger.expect("forged", &forged);
    stranger.settle();
    let once = stranger.sealed(&Message::Ping { txn: TxnId(2) });
    stranger.expect("replayed", &[]);
    stranger.send(&once);
    stranger.expect("replayed", &[once.clone(), once]);
}

/// What only a member of the cluster can send, and makes no sense to a target.
fn with_the_key(stranger: &mut Stranger) {
    let txn = TxnId(3);
    let mut invalid = vec![
        stranger.sealed(&Message::Ack { txn, ack: Ack::Durable }),
        stranger.sealed(&Message::Pong { txn, free: 0, chunks: 0 }),
    ];
    // An unknown type, and bytes left over.
    let ping = encode_message(stranger.head, &Message::Ping { txn });
    let mut unknown = ping.to_vec();
    unknown[2] = 99;
    invalid.push(stranger.seal(&unknown));
    invalid.push(stranger.seal(&[&ping[..], b"more"].concat()));
    stranger.expect("invalid", &invalid);
}
