#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, UdpSocket};
use std::path::Path;

use protocol::id::{ClusterId, Epoch, TxnId};
use protocol::machine::Transmit;
use protocol::map::{MemberSet, TargetEntry};
use protocol::wire::{Head, Message, Session, encode_message};

use super::*;
use crate::free_port;
use crate::metrics::InitiatorMetrics;

fn map(cluster: u32, targets: u32) -> ClusterMap {
    let entry = |id: u32| TargetEntry { id: NodeId(id), domain: id as u16, capacity: 1 << 30 };
    ClusterMap::new(ClusterId(cluster), Epoch(1), 3, 3, (1..=targets).map(entry).collect()).unwrap()
}

#[test]
fn every_set_of_members_has_an_address_of_its_own_on_both_families() {
    let map = map(0x1234_abcd, 27);
    let sets: BTreeSet<MemberSet> = (1..=27).flat_map(|id| map.memberships(NodeId(id))).collect();
    for ipv6 in [false, true] {
        let groups: BTreeSet<IpAddr> = sets.iter().map(|set| group_address(&map, *set, ipv6).unwrap()).collect();
        assert_eq!(groups.len(), sets.len());
        assert!(groups.iter().all(|group| group.is_multicast() && group.is_ipv6() == ipv6));
    }
}

#[test]
fn the_addresses_of_groups_are_those_that_are_documented() {
    let set = MemberSet { cell: 2, mask: 0b101 };
    let at = |cluster, ipv6| group_address(&map(cluster, 27), set, ipv6).unwrap().to_string();
    assert_eq!(at(0x1234_abcd, false), "239.130.0.5");
    assert_eq!(at(0x1234_abcd, true), "ff15::1234:abcd:8082:5");
    assert_eq!(at(7, true), "ff15::7:8082:5");
}

/// A cluster of one target at `interface`.
fn config(dir: &Path, interface: IpAddr) -> ClusterConfig {
    config_of(dir, &[SocketAddr::new(interface, free_port(interface).unwrap())])
}

/// A cluster of targets at these addresses.
fn config_of(dir: &Path, addresses: &[SocketAddr]) -> ClusterConfig {
    std::fs::write(dir.join("cluster.key"), "5a".repeat(32)).unwrap();
    let mut map =
        "cluster = \"c\"\nepoch = 1\ncopies = 1\nkey_file = \"cluster.key\"\n[network]\nmulticast = \"off\"\n"
            .to_owned();
    for (id, address) in (1..).zip(addresses) {
        map += &format!(
            "[[target]]\nid = {id}\ndomain = \"d{id}\"\naddress = \"{address}\"\ndata = \"t{id}\"\ncapacity = \"64MiB\"\n"
        );
    }
    std::fs::write(dir.join("cluster.toml"), map).unwrap();
    ClusterConfig::load(&dir.join("cluster.toml")).unwrap()
}

/// The loopback addresses of the families that this machine has.
fn loopbacks() -> Vec<IpAddr> {
    let all = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let is_there = |address: &IpAddr| match UdpSocket::bind((*address, 0)) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("skipped: this machine has no {address}: {error}");
            false
        }
    };
    all.into_iter().filter(is_there).collect()
}

fn dropped(udp: &Udp, reason: &str) -> u64 {
    let page = InitiatorMetrics::new(udp.metrics()).page();
    let series = format!("reservoir_initiator_dropped_total{{reason=\"{reason}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&series)).map_or(0, |count| count.parse().unwrap())
}

fn data(to: NodeId, per_datagram: usize) -> Transmit {
    use protocol::wire::DataHeader;
    let payload = Bytes::from(vec![7; 100_000]);
    let header = DataHeader { cluster: ClusterId(1), from: NodeId(1), txn: TxnId(1), offset: 0, size: 100_000 };
    Transmit { to: Destination::Node(to), body: Body::Data(DataRun { header, payload, per_datagram }) }
}

#[test]
fn what_waited_at_a_socket_came_when_the_kernel_says() {
    for interface in loopbacks() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), interface);
        let mut udp = Udp::open(&config, config.targets[0].address, NodeId(1)).unwrap();
        let sender = UdpSocket::bind((interface, 0)).unwrap();
        let cluster = config.map().unwrap().cluster;
        let header = protocol::wire::DataHeader { cluster, from: NodeId(1), txn: TxnId(1), offset: 0, size: 1 };
        let before = now();
        sender.send_to(&[&header.encode()[..], b"x"].concat(), config.targets[0].address).unwrap();
        let sent = now();
        std::thread::sleep(Duration::from_millis(200));
        udp.receive(0);
        let (_, arrived) = udp.arrived().unwrap();
        // The two clocks are read one after the other.
        let slack = Span::from_millis(100);
        assert!(before <= arrived + slack && arrived <= sent + slack, "{before} {arrived} {sent}");
    }
}

#[test]
fn a_clock_that_was_set_makes_nobody_wait() {
    let date = Timespec { tv_sec: 100, tv_nsec: 5_000_000 };
    let ages = [100_002, 99_004, 101_000].map(|millis| waited(Some(Duration::from_millis(millis)), date));
    assert_eq!(ages, [Span::from_millis(3), Span::ZERO, Span::ZERO], "so long ago, too long ago, and to come");
    assert_eq!(waited(None, date), Span::ZERO, "no stamp");
}

#[test]
fn what_the_kernel_has_no_room_for_is_counted() {
    for interface in loopbacks() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), interface);
        let mut udp = Udp::open(&config, config.targets[0].address, NodeId(1)).unwrap();
        assert_eq!(dropped(&udp, "receive_buffer"), 0);
        let sender = UdpSocket::bind((interface, 0)).unwrap();
        // More than its buffer takes, with all that the kernel counts for each.
        let sent = 4_000;
        for _ in 0..sent {
            sender.send_to(&[0; 8_000], config.targets[0].address).unwrap();
        }
        let mut arrived = 0;
        loop {
            let more = udp.receive(0);
            assert!(udp.arrived().is_none(), "none of them is good");
            let (malformed, lost) = (dropped(&udp, "malformed"), dropped(&udp, "receive_buffer"));
            if !more && malformed == arrived {
                assert!(lost > 0, "{malformed} arrived");
                assert_eq!(malformed + lost, sent, "each is counted once");
                break;
            }
            arrived = malformed;
        }
        // What was counted is not forgotten, nor counted again, with other sockets.
        let lost = dropped(&udp, "receive_buffer");
        udp.reload(&config).unwrap();
        assert_eq!(dropped(&udp, "receive_buffer"), lost);
    }
}

#[test]
fn what_waits_at_a_socket_that_is_closed_is_taken_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let interface = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let old = config(dir.path(), interface);
    // More than the buffer takes, and less.
    for sent in [4_000, 10] {
        let mut udp = Udp::open(&old, old.targets[0].address, NodeId(1)).unwrap();
        let sender = UdpSocket::bind((interface, 0)).unwrap();
        for _ in 0..sent {
            sender.send_to(&[0; 8_000], old.targets[0].address).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        udp.reload(&config(dir.path(), interface)).unwrap();
        assert!(udp.arrived().is_none(), "none of them is good");
        let (malformed, lost) = (dropped(&udp, "malformed"), dropped(&udp, "receive_buffer"));
        assert_eq!((malformed + lost, lost > 0), (sent, sent > 10), "{malformed} taken, {lost} lost");
    }
}

#[test]
fn what_comes_before_its_sender_is_proven_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), Ipv4Addr::LOCALHOST.into());
    let mut udp = Udp::open(&config, config.targets[0].address, NodeId(1)).unwrap();
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let map = config.map().unwrap();
    let (cluster, from) = (map.cluster, NodeId(NodeId::FIRST_INITIATOR));
    let mut session = Session::new(config.key().unwrap(), cluster, from, 1);
    let head = Head { cluster, epoch: map.epoch, from };
    for sent in 1..4 {
        let ping = session.seal(&encode_message(head, &Message::Ping { txn: TxnId(sent) }));
        sender.send_to(&ping, config.targets[0].address).unwrap();
        let deadline = now() + Span::from_secs(10);
        while dropped(&udp, "unproven") < sent {
            assert!(now() < deadline, "number {sent} is not counted");
            udp.receive(0);
            assert!(udp.arrived().is_none(), "nothing is believed yet");
        }
    }
    assert_eq!(dropped(&udp, "unproven"), 3);
}

#[test]
fn a_target_that_has_just_joined_is_answered_before_the_map_has_it() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let old = config(dirs[0].path(), Ipv4Addr::LOCALHOST.into());
    let first = old.targets[0].address;
    let new = config_of(dirs[1].path(), &[first, SocketAddr::new(first.ip(), free_port(first.ip()).unwrap())]);
    let mut udp = Udp::open(&old, first, NodeId(1)).unwrap();
    let mut newcomer = Udp::open(&new, new.targets[1].address, NodeId(2)).unwrap();
    let ping = |from: u32, to: u32| {
        let head = Head { cluster: old.map().unwrap().cluster, epoch: Epoch(1), from: NodeId(from) };
        let message = encode_message(head, &Message::Ping { txn: TxnId(1) });
        Transmit { to: Destination::Node(NodeId(to)), body: Body::Control(message) }
    };
    let deadline = now() + Span::from_secs(10);
    // The first datagrams only prove to each that the other is there.
    let hears = |sender: &mut Udp, datagram: &Transmit, other: &mut Udp| {
        loop {
            assert!(now() < deadline, "nothing comes");
            sender.send(datagram);
            std::thread::sleep(Duration::from_millis(2));
            other.receive(0);
            if other.arrived().is_some() {
                return;
            }
            sender.receive(0);
            sender.arrived();
        }
    };
    hears(&mut newcomer, &ping(2, 1), &mut udp);
    hears(&mut udp, &ping(1, 2), &mut newcomer);
    assert_eq!(dropped(&udp, "no_address"), 0);
    // Then the map has it, and nodes that speak later do not displace it.
    udp.reload(&new).unwrap();
    assert!(udp.learned.is_empty() && udp.addresses[&NodeId(2)] == new.targets[1].address);
}

#[test]
fn every_datagram_that_is_not_sent_is_counted() {
    for interface in loopbacks() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), interface);
        let mut udp = Udp::open(&config, config.targets[0].address, NodeId(1)).unwrap();
        udp.send(&data(NodeId(2), 1_000));
        assert_eq!(dropped(&udp, "no_address"), 100);
        // Longer than any datagram.
        udp.send(&data(NodeId(1), 99_000));
        assert_eq!(dropped(&udp, "send_failed"), 1, "the rest of 1,000 bytes was sent");
        assert_eq!(dropped(&udp, "backlog"), 0);
    }
}

#[test]
fn a_node_goes_on_when_its_cluster_moves_to_the_other_family() {
    let [v4, v6] = loopbacks()[..] else { return };
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [old, new] = [config(dirs[0].path(), v4), config(dirs[1].path(), v6)];
    for id in [NodeId(1), NodeId(NodeId::FIRST_INITIATOR)] {
        let address = if id.is_initiator() { SocketAddr::new(v4, 0) } else { old.targets[0].address };
        let mut udp = Udp::open(&old, address, id).unwrap();
        udp.reload(&new).unwrap();
        assert_eq!(udp.local().map(|address| address.ip()), Some(v6), "{id}");
        udp.send(&data(NodeId(1), 1_000));
        assert_eq!((dropped(&udp, "send_failed"), dropped(&udp, "no_address")), (0, 0), "{id}");
    }
}

#[test]
fn control_is_marked_and_payload_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), Ipv4Addr::LOCALHOST.into());
    let target = config.targets[0].address;
    let mut udp = Udp::open(&config, SocketAddr::new(target.ip(), 0), NodeId(NodeId::FIRST_INITIATOR)).unwrap();
    let head = Head { cluster: udp.map.cluster, epoch: udp.map.epoch, from: udp.id };
    let control = encode_message(head, &Message::Ping { txn: TxnId(1) });
    let header = protocol::wire::DataHeader { cluster: head.cluster, from: udp.id, txn: TxnId(1), offset: 0, size: 9 };
    let payload = Bytes::copy_from_slice(&header.encode());
    for (head, class) in [(control.clone(), EXPEDITED), (payload, 0), (control, EXPEDITED)] {
        udp.push(Outgoing { head, payload: Bytes::new(), segment: None, to: target });
        assert_eq!(udp.sockets[0].socket.tos_v4().unwrap(), class);
    }
}

#[test]
fn payload_that_is_encrypted_comes_as_it_was_sent_and_to_nobody_who_does_not_encrypt() {
    use protocol::wire::DataHeader;
    for interface in loopbacks() {
        let dir = tempfile::tempdir().unwrap();
        let addresses: Vec<SocketAddr> =
            (0..2).map(|_| SocketAddr::new(interface, free_port(interface).unwrap())).collect();
        let plain = config_of(dir.path(), &addresses);
        let mut encrypted = plain.clone();
        encrypted.network.encrypt = true;
        // As one call for many datagrams, and each by itself.
        for per_datagram in [8_192, 1_400, 49_152, 100_000 / 2] {
            for (config, gets_it) in [(&encrypted, true), (&plain, false)] {
                let mut from = Udp::open(&encrypted, addresses[0], NodeId(1)).unwrap();
                let mut to = Udp::open(config, addresses[1], NodeId(2)).unwrap();
                let deadline = std::time::Instant::now() + Duration::from_secs(20);
                let (mut bytes, mut refused) = (0, 0);
                let mut sent = data(NodeId(2), per_datagram);
                if let Body::Data(run) = &mut sent.body {
                    run.header.cluster = config.map().unwrap().cluster;
                }
                from.send(&sent);
                while bytes < 100_000 && refused < 100_000_u64.div_ceil(per_datagram as u64) {
                    assert!(std::time::Instant::now() < deadline, "{bytes} bytes came, {refused} were refused");
                    from.flush();
                    to.receive(0);
                    while let Some((datagram, _)) = to.arrived() {
                        let (header, payload) = DataHeader::decode(&datagram).unwrap();
                        assert!(payload.iter().all(|byte| *byte == 7) && header.txn == TxnId(1));
                        bytes += payload.len();
                    }
                    refused = dropped(&to, "not_encrypted");
                }
                assert_eq!((bytes == 100_000, refused > 0), (gets_it, !gets_it));
            }
        }
    }
}
