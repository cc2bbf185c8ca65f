#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use protocol::id::{Epoch, TxnId};
use protocol::machine::DataRun;
use protocol::wire::{DataHeader, Head, Message, decode_message, encode_message, is_data};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::metrics::InitiatorMetrics;

const PATIENCE: Duration = Duration::from_secs(20);
const TARGET: NodeId = NodeId(1);
const INITIATOR: NodeId = NodeId(NodeId::FIRST_INITIATOR);

fn config(dir: &Path) -> ClusterConfig {
    std::fs::write(dir.join("cluster.key"), "5a".repeat(32)).unwrap();
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let map = format!(
        "cluster = \"c\"\nepoch = 1\ncopies = 1\nkey_file = \"cluster.key\"\n[network]\ncarrier = \"tcp\"\n\
         [[target]]\nid = 1\ndomain = \"d\"\naddress = \"127.0.0.1:{port}\"\ndata = \"t\"\ncapacity = \"64MiB\"\n"
    );
    std::fs::write(dir.join("cluster.toml"), map).unwrap();
    ClusterConfig::load(&dir.join("cluster.toml")).unwrap()
}

/// A target and an initiator.
fn pair(config: &ClusterConfig) -> (Tcp, Tcp) {
    let target = Tcp::open(config, config.targets[0].address, TARGET).unwrap();
    (target, Tcp::open(config, (Ipv4Addr::LOCALHOST, 0).into(), INITIATOR).unwrap())
}

/// Does what the loop does with sockets that are ready just now, and returns what has arrived.
fn turn(tcp: &mut Tcp) -> Vec<Bytes> {
    let mut arrived = Vec::new();
    let tokens: Vec<u32> = std::iter::once(LISTENER).chain(tcp.connections.keys().copied()).collect();
    for token in tokens {
        let flags = match (tcp.connections.get(&token), &tcp.listener) {
            (Some(connection), _) => {
                let wanted = if connection.awaits_room() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                readiness(&mut [PollFd::new(connection, wanted)])
            }
            (None, Some(listener)) => readiness(&mut [PollFd::new(listener, PollFlags::IN)]),
            (None, None) => continue,
        };
        if flags.is_empty() {
            continue;
        }
        let failed = flags.intersects(PollFlags::ERR);
        tcp.ready(token, Readiness { writable: flags.contains(PollFlags::OUT), failed });
        while tcp.receive(token) {}
        arrived.extend(std::iter::from_fn(|| tcp.arrived()).map(|(bytes, _)| bytes));
    }
    arrived
}

fn readiness(one: &mut [PollFd<'_>; 1]) -> PollFlags {
    poll(one, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    one[0].revents()
}

fn ping(config: &ClusterConfig, from: NodeId, txn: u64) -> Bytes {
    let map = config.map().unwrap();
    encode_message(Head { cluster: map.cluster, epoch: Epoch(1), from }, &Message::Ping { txn: TxnId(txn) })
}

fn message(config: &ClusterConfig, from: NodeId, to: NodeId, txn: u64) -> Transmit {
    Transmit { to: Destination::Node(to), body: Body::Control(ping(config, from, txn)) }
}

/// Payload of an initiator.
fn run_of(config: &ClusterConfig, payload: &Bytes) -> DataRun {
    let cluster = config.map().unwrap().cluster;
    let header = DataHeader { cluster, from: INITIATOR, txn: TxnId(9), offset: 0, size: payload.len() as u32 };
    DataRun { header, payload: payload.clone(), per_datagram: 49_152 }
}

/// Sends again and again, as a machine that gets no answer does, until something arrives.
fn until_heard(from: &mut Tcp, to: &mut Tcp, transmit: &Transmit) -> Vec<Bytes> {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        from.send(transmit);
        for _ in 0..5 {
            turn(from);
            let heard = turn(to);
            if !heard.is_empty() {
                return heard;
            }
        }
        assert!(std::time::Instant::now() < deadline, "nothing arrives: {}", page(from));
    }
}

fn page(tcp: &Tcp) -> String {
    InitiatorMetrics::new(tcp.metrics()).page()
}

fn dropped(tcp: &Tcp, reason: &str) -> u64 {
    let page = page(tcp);
    let line = page.lines().find(|line| line.contains("dropped") && line.contains(&format!("\"{reason}\"")));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[test]
fn messages_and_payload_arrive_whole_in_both_directions() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let (mut target, mut initiator) = pair(&config);
    let heard = until_heard(&mut initiator, &mut target, &message(&config, INITIATOR, TARGET, 7));
    let (head, heard) = decode_message(&heard[0]).unwrap();
    assert_eq!((head.from, heard), (INITIATOR, Message::Ping { txn: TxnId(7) }));
    // The initiator is in no map: it is reached over the connection that it made.
    until_heard(&mut target, &mut initiator, &message(&config, TARGET, INITIATOR, 8));
    assert_eq!((target.connections.len(), initiator.connections.len()), (1, 1));
    // More than a socket takes at once.
    let payload: Bytes = (0..8 << 20_u32).map(|n| (n / 7) as u8).collect::<Vec<u8>>().into();
    let run = run_of(&config, &payload);
    initiator.send(&Transmit { to: Destination::Node(TARGET), body: Body::Data(run.clone()) });
    assert!(initiator.connections.values().all(Connection::awaits_room), "the socket takes it all");
    let (deadline, mut arrived) = (std::time::Instant::now() + PATIENCE, Vec::new());
    while arrived.len() < datagrams(&run).count() {
        assert!(std::time::Instant::now() < deadline, "{} arrived", arrived.len());
        turn(&mut initiator);
        arrived.extend(turn(&mut target));
    }
    let sent: Vec<Bytes> =
        datagrams(&run).map(|(header, payload)| [&header[..], &payload[..]].concat().into()).collect();
    assert!(arrived == sent, "in another order, or changed");
    assert!(!initiator.connections.values().any(Connection::awaits_room));
    // What is idle keeps little: ten thousand of them are 50 MiB of this process at most.
    for connection in initiator.connections.values().chain(target.connections.values()) {
        assert!(connection.memory() <= 5 << 10, "{} bytes", connection.memory());
    }
}

#[test]
fn what_does_not_fit_is_dropped_and_counted_and_messages_go_first() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let (mut target, mut initiator) = pair(&config);
    initiator.backlog = 1 << 20;
    until_heard(&mut initiator, &mut target, &message(&config, INITIATOR, TARGET, 1));
    let payload = Bytes::from(vec![7; 64 << 20]);
    let run = run_of(&config, &payload);
    initiator.send(&Transmit { to: Destination::Node(TARGET), body: Body::Data(run.clone()) });
    let lost = dropped(&initiator, "backlog");
    assert!(lost > 0 && lost < datagrams(&run).count() as u64, "{lost}");
    initiator.send(&message(&config, INITIATOR, TARGET, 2));
    let (deadline, mut before) = (std::time::Instant::now() + PATIENCE, 0);
    loop {
        turn(&mut initiator);
        let arrived = turn(&mut target);
        before += arrived.iter().take_while(|frame| is_data(frame)).count() as u64;
        if arrived.iter().any(|frame| !is_data(frame)) {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "the message does not arrive");
    }
    assert!(before < datagrams(&run).count() as u64 - lost, "it waited for all of the payload");
}

#[test]
fn a_connection_that_is_lost_is_made_again_by_who_has_something_to_say() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let (target, mut initiator) = pair(&config);
    drop(target);
    // Nobody listens.
    let deadline = std::time::Instant::now() + PATIENCE;
    while initiator.reachability().silence(TARGET).obstacle.is_none() {
        assert!(std::time::Instant::now() < deadline);
        initiator.send(&message(&config, INITIATOR, TARGET, 1));
        turn(&mut initiator);
    }
    assert_eq!(initiator.reachability().silence(TARGET).obstacle, Some(Obstacle::Closed));
    for _ in 0..2 {
        let mut target = Tcp::open(&config, config.targets[0].address, TARGET).unwrap();
        until_heard(&mut initiator, &mut target, &message(&config, INITIATOR, TARGET, 2));
    }
    assert!(dropped(&initiator, "no_connection") > 0, "it was not refused while nobody listened");
}

#[test]
fn what_is_no_frame_ends_the_connection_and_strangers_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let (mut target, mut initiator) = pair(&config);
    until_heard(&mut initiator, &mut target, &message(&config, INITIATOR, TARGET, 1));
    let address = config.targets[0].address;
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 8], &[0xff; 100], &65_508_u32.to_le_bytes()] {
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(garbage).unwrap();
        stranger.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let deadline = std::time::Instant::now() + PATIENCE;
        while !matches!(stranger.read(&mut [0; 16]), Ok(0)) {
            assert!(std::time::Instant::now() < deadline, "{garbage:?} is waited on");
            assert_eq!(turn(&mut target), [] as [Bytes; 0]);
        }
    }
    assert_eq!(dropped(&target, "malformed_frame"), 4);
    // A frame that is whole, and nonsense, is counted as it is over UDP.
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.write_all(&[&10_u32.to_le_bytes()[..], &[7; 10]].concat()).unwrap();
    while dropped(&target, "malformed") == 0 {
        turn(&mut target);
    }
    // Half a frame is waited for, by a bounded number of them.
    let held: Vec<TcpStream> = (0..STRANGERS + 50)
        .map(|_| {
            let mut stranger = TcpStream::connect(address).unwrap();
            stranger.write_all(&[40, 0, 0, 0, 1]).unwrap();
            turn(&mut target);
            stranger
        })
        .collect();
    assert!(target.connections.len() <= STRANGERS + 1, "{} connections", target.connections.len());
    assert!(dropped(&target, "stranger") >= 50);
    // It still hears the nodes that it knows.
    until_heard(&mut initiator, &mut target, &message(&config, INITIATOR, TARGET, 2));
    drop(held);
}
