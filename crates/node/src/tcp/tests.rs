#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use protocol::id::{Epoch, TxnId};
use protocol::machine::DataRun;
use protocol::wire::{DataHeader, Head, Message, decode_message, encode_message, is_data};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::metrics::InitiatorMetrics;

const PATIENCE: Duration = Duration::from_secs(20);
const BETWEEN: Duration = Duration::from_millis(1);
const TARGET: NodeId = NodeId(1);
const INITIATOR: NodeId = NodeId(NodeId::FIRST_INITIATOR);

/// How many threads read beside the loop, and whether what they read is encrypted.
const WAYS: [(u8, bool); 4] = [(0, false), (WORKERS, false), (0, true), (WORKERS, true)];
const WORKERS: u8 = 3;
/// Of all nodes.
static TURNS: AtomicUsize = AtomicUsize::new(0);

fn config(dir: &Path, (workers, encrypt): (u8, bool)) -> ClusterConfig {
    std::fs::write(dir.join("cluster.key"), "5a".repeat(32)).unwrap();
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let map = format!(
        "cluster = \"c\"\nepoch = 1\ncopies = 1\nkey_file = \"cluster.key\"\n[network]\ncarrier = \"tcp\"\nworkers = {workers}\n\
         encrypt = {encrypt}\n[[target]]\nid = 1\ndomain = \"d\"\naddress = \"127.0.0.1:{port}\"\ndata = \"t\"\ncapacity = \"64MiB\"\n"
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
    let turns = TURNS.fetch_add(1, Ordering::Relaxed);
    tcp.flush_unsent();
    let mut arrived = Vec::new();
    let tokens: Vec<u32> = [LISTENER, INBOX].into_iter().chain(tcp.connections.keys().copied()).collect();
    for (nth, token) in tokens.into_iter().enumerate() {
        if token == INBOX {
            tcp.receive(token);
            arrived.extend(std::iter::from_fn(|| tcp.arrived()).map(|(bytes, _)| bytes));
            continue;
        }
        // Connections move from worker to worker all the time.
        if let Some(crew) = &tcp.crew {
            crew.workers.assign(token, (nth + turns) % usize::from(WORKERS));
        }
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
        // Nor does it ask by the thousand before anybody on the way had a moment: one that does is a stranger for good.
        std::thread::sleep(BETWEEN);
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
    WAYS.into_iter().for_each(messages_and_payload_arrive_whole_in_both_directions_with);
}

fn messages_and_payload_arrive_whole_in_both_directions_with(way: (u8, bool)) {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), way);
    let (mut target, mut initiator) = pair(&config);
    let heard = until_heard(&mut initiator, &mut target, &message(&config, INITIATOR, TARGET, 7));
    let (head, heard) = decode_message(&heard[0]).unwrap();
    assert_eq!((head.from, heard), (INITIATOR, Message::Ping { txn: TxnId(7) }));
    // The initiator is in no map: it is reached over the connection that it made.
    until_heard(&mut target, &mut initiator, &message(&config, TARGET, INITIATOR, 8));
    assert_eq!((target.connections.len(), initiator.connections.len()), (1, 1));
    let is_read_by_workers = |tcp: &Tcp| tcp.connections.values().all(Connection::is_read_elsewhere);
    assert_eq!((is_read_by_workers(&target), is_read_by_workers(&initiator)), (way.0 > 0, way.0 > 0));
    // More than a socket takes at once.
    let payload: Bytes = (0..8 << 20_u32).map(|n| (n / 7) as u8).collect::<Vec<u8>>().into();
    let run = run_of(&config, &payload);
    initiator.send(&Transmit { to: Destination::Node(TARGET), body: Body::Data(run.clone()) });
    // Workers take it meanwhile.
    assert!(way.0 > 0 || initiator.connections.values().all(Connection::awaits_room), "the socket takes it all");
    let (deadline, mut arrived) = (std::time::Instant::now() + PATIENCE, Vec::new());
    while arrived.len() < datagrams(&run).count() {
        assert!(std::time::Instant::now() < deadline, "{} arrived", arrived.len());
        turn(&mut initiator);
        // The initiator may have asked more than once before it was heard.
        arrived.extend(turn(&mut target).into_iter().filter(|frame| is_data(frame)));
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
    WAYS.into_iter().for_each(what_does_not_fit_is_dropped_and_counted_and_messages_go_first_with);
}

fn what_does_not_fit_is_dropped_and_counted_and_messages_go_first_with(way: (u8, bool)) {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), way);
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
    // Workers may have taken all of it before the message was sent.
    assert!(way.0 > 0 || before < datagrams(&run).count() as u64 - lost, "it waited for all of the payload");
}

#[test]
fn where_something_waits_there_are_more_connections_and_one_that_is_lost_takes_none_with_it() {
    WAYS.into_iter().for_each(where_something_waits_there_are_more_connections_with);
}

fn where_something_waits_there_are_more_connections_with(way: (u8, bool)) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path(), way);
    config.network.lanes = 3;
    let (mut target, mut initiator) = pair(&config);
    initiator.backlog = 64 << 20;
    until_heard(&mut initiator, &mut target, &message(&config, INITIATOR, TARGET, 1));
    assert_eq!(initiator.connections.len(), 1, "nothing waited yet");
    let payload: Bytes = (0..32 << 20_u32).map(|n| (n / 7) as u8).collect::<Vec<u8>>().into();
    let run = run_of(&config, &payload);
    let mut sent: Vec<Bytes> =
        datagrams(&run).map(|(header, payload)| [&header[..], &payload[..]].concat().into()).collect();
    sent.sort_unstable();
    // Each time that nothing more is taken there is one more, and a message over it, before payload.
    let deadline = std::time::Instant::now() + PATIENCE;
    let mut carried = 0;
    while carried < 3 {
        initiator.send(&Transmit { to: Destination::Node(TARGET), body: Body::Data(run.clone()) });
        carried = initiator
            .connections
            .values()
            .filter(|lane| lane.waiting_bytes(true) < u64::MAX && lane.waiting_bytes(true) > 0)
            .count();
        initiator.send(&message(&config, INITIATOR, TARGET, 2));
        let mut arrived = Vec::new();
        while arrived.len() < sent.len() {
            assert!(
                std::time::Instant::now() < deadline,
                "{way:?}: {} arrived; {carried} carry payload",
                arrived.len()
            );
            turn(&mut initiator);
            arrived.extend(turn(&mut target).into_iter().filter(|frame| is_data(frame)));
        }
        arrived.sort_unstable();
        assert!(arrived == sent, "something came twice, or changed");
    }
    assert_eq!(initiator.connections.len(), 3);
    // Each of them leads back to who made it.
    until_heard(&mut initiator, &mut target, &message(&config, INITIATOR, TARGET, 3));
    until_heard(&mut target, &mut initiator, &message(&config, TARGET, INITIATOR, 4));
    assert_eq!(target.routes[&INITIATOR].connections.len(), 3);
    let lost = target.routes[&INITIATOR].connections[0];
    target.close(lost);
    until_heard(&mut initiator, &mut target, &message(&config, INITIATOR, TARGET, 5));
    until_heard(&mut target, &mut initiator, &message(&config, TARGET, INITIATOR, 6));
    assert_eq!(target.routes[&INITIATOR].connections.len(), 2);
}

#[test]
fn a_connection_that_is_lost_is_made_again_by_who_has_something_to_say() {
    WAYS.into_iter().for_each(a_connection_that_is_lost_is_made_again_by_who_has_something_to_say_with);
}

fn a_connection_that_is_lost_is_made_again_by_who_has_something_to_say_with(way: (u8, bool)) {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), way);
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
fn who_is_at_the_address_of_another_is_not_reached_there_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), WAYS[0]);
    let other = NodeId(12);
    let mut target = Tcp::open(&config, config.targets[0].address, other).unwrap();
    let mut initiator = Tcp::open(&config, (Ipv4Addr::LOCALHOST, 0).into(), INITIATOR).unwrap();
    until_heard(&mut initiator, &mut target, &message(&config, INITIATOR, TARGET, 1));
    until_heard(&mut target, &mut initiator, &message(&config, other, INITIATOR, 2));
    assert!(!initiator.routes.contains_key(&other), "it was connected to another one");
}

#[test]
fn what_is_no_frame_ends_the_connection_and_strangers_are_bounded() {
    [WAYS[0], WAYS[1]].into_iter().for_each(what_is_no_frame_ends_the_connection_and_strangers_are_bounded_with);
}

fn what_is_no_frame_ends_the_connection_and_strangers_are_bounded_with(way: (u8, bool)) {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), way);
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
            // The initiator may have said it more than once.
            turn(&mut target);
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

#[test]
fn who_does_not_encrypt_as_the_cluster_does_is_not_heard_and_says_why_it_hears_nothing() {
    for workers in [0, WORKERS] {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), (workers, true));
        let (mut target, mut initiator) = pair(&config);
        until_heard(&mut initiator, &mut target, &message(&config, INITIATOR, TARGET, 1));
        // One that has another key, and one that does not encrypt, both at this target's address.
        let elsewhere = |key: &str, encrypt: bool| {
            let mut other = config.clone();
            other.network.encrypt = encrypt;
            other.key_file = format!("{key}.key").into();
            std::fs::write(dir.path().join(&other.key_file), key.repeat(32)).unwrap();
            other
        };
        for other in [elsewhere("3c", true), elsewhere("5a", false)] {
            let mut stranger = Tcp::open(&other, (Ipv4Addr::LOCALHOST, 0).into(), NodeId(INITIATOR.0 + 1)).unwrap();
            let (deadline, before) = (std::time::Instant::now() + PATIENCE, dropped(&target, "not_encrypted"));
            while dropped(&target, "not_encrypted") < before + 3 {
                assert!(std::time::Instant::now() < deadline, "{} {}", page(&target), page(&stranger));
                stranger.send(&message(&config, NodeId(INITIATOR.0 + 1), TARGET, 2));
                turn(&mut stranger);
                let heard = turn(&mut target);
                assert!(heard.iter().all(|frame| decode_message(frame).unwrap().0.from == INITIATOR));
            }
            assert_eq!(stranger.reachability().silence(TARGET).obstacle, Some(Obstacle::Encryption));
            assert!(dropped(&stranger, "no_connection") > 0, "it does not wait before it tries again");
        }
        let mut stranger = TcpStream::connect(config.targets[0].address).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let (deadline, before) = (std::time::Instant::now() + PATIENCE, dropped(&target, "not_encrypted"));
        while dropped(&target, "not_encrypted") == before {
            assert!(std::time::Instant::now() < deadline, "garbage is waited on");
            turn(&mut target);
        }
        until_heard(&mut initiator, &mut target, &message(&config, INITIATOR, TARGET, 3));
    }
}

#[test]
fn nothing_that_was_said_can_be_read_on_the_way() {
    let secret = b"what nobody on the way is to read";
    for (way, is_seen) in [(WAYS[0], true), (WAYS[2], false)] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path(), way);
        let mut target = Tcp::open(&config, config.targets[0].address, TARGET).unwrap();
        // Whoever is on the way passes on what it sees.
        let (at, seen) = (config.targets[0].address, std::sync::Arc::new(std::sync::Mutex::new(Vec::new())));
        let tap = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        config.targets[0].address = tap.local_addr().unwrap();
        let heard = std::sync::Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut here = tap.accept().unwrap().0;
            let mut there = TcpStream::connect(at).unwrap();
            let mut back = (there.try_clone().unwrap(), here.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut back.0, &mut back.1));
            let mut buffer = vec![0; 64 << 10];
            while let Ok(count @ 1..) = here.read(&mut buffer) {
                heard.lock().unwrap().extend_from_slice(&buffer[..count]);
                if there.write_all(&buffer[..count]).is_err() {
                    return;
                }
            }
        });
        let mut initiator = Tcp::open(&config, (Ipv4Addr::LOCALHOST, 0).into(), INITIATOR).unwrap();
        until_heard(&mut initiator, &mut target, &message(&config, INITIATOR, TARGET, 1));
        let run = run_of(&config, &Bytes::from_static(secret));
        let sent = Transmit { to: Destination::Node(TARGET), body: Body::Data(run) };
        while !until_heard(&mut initiator, &mut target, &sent).iter().any(|frame| frame.ends_with(secret)) {}
        let seen = seen.lock().unwrap();
        assert_eq!(seen.windows(secret.len()).any(|bytes| bytes == secret), is_seen);
    }
}

#[test]
fn a_peer_that_never_begins_to_encrypt_keeps_nobody_awake() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), WAYS[2]);
    let silent = TcpListener::bind(config.targets[0].address).unwrap();
    let mut initiator = Tcp::open(&config, (Ipv4Addr::LOCALHOST, 0).into(), INITIATOR).unwrap();
    let run = run_of(&config, &Bytes::from(vec![7; 1 << 20]));
    initiator.send(&Transmit { to: Destination::Node(TARGET), body: Body::Data(run) });
    let held = silent.accept().unwrap();
    for _ in 0..100 {
        turn(&mut initiator);
    }
    let connection = initiator.connections.values().next().unwrap();
    assert!(connection.waiting() > 0 && !connection.awaits_room(), "it would be woken again and again");
    drop(held);
}
