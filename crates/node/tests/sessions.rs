//! Restarts of real sockets: a node that starts anew is accepted at once, whatever an earlier life had counted to.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use node::clock::now;
use node::config::{MulticastChoice, Network, Protocol, TargetConfig};
use node::free_port;
use node::target::{TargetNode, make_store};
use node::{Client, ClientOptions, ClusterConfig};
use protocol::id::{ChunkId, NodeId};
use protocol::wire::{Head, Message, Opened, Session, decode_message, encode_message};

fn config(dir: &Path, targets: u32) -> ClusterConfig {
    std::fs::write(dir.join("cluster.key"), "5a".repeat(32)).unwrap();
    let target = |id| TargetConfig {
        id,
        domain: format!("disk-{id}"),
        address: (Ipv4Addr::LOCALHOST, free_port(Ipv4Addr::LOCALHOST).unwrap()).into(),
        data: format!("target-{id}").into(),
        capacity: "256MiB".to_owned(),
        metrics: None,
        write_delay_ms: 0,
        moved: false,
        drain: false,
    };
    let config = ClusterConfig {
        cluster: dir.display().to_string(),
        epoch: 1,
        copies: targets as u8,
        min_copies: None,
        fewest_copies: None,
        group_cells: 3,
        overlap: true,
        key_file: "cluster.key".into(),
        network: Network { multicast: MulticastChoice::Off, ..Network::default() },
        protocol: Protocol::default(),
        targets: (1..=targets).map(target).collect(),
        layout: None,
        previous: None,
        switches: Vec::new(),
        settled: None,
        last_id: None,
        out_after_seconds: None,
        maintenance_floor: None,
        moves_paused: false,
        restart_within_seconds: None,
        path: dir.join("cluster.toml"),
    };
    (1..=targets).for_each(|id| make_store(&config, id).unwrap());
    config
}

fn answers(client: &Client) -> bool {
    client.ping().wait().unwrap().unwrap().iter().all(|state| state.answer.is_some())
}

/// An earlier life of target 1, made by hand: it answers, having counted to what the next life will not reach.
fn earlier_life(config: &ClusterConfig, over: &AtomicBool) {
    let socket = UdpSocket::bind(config.targets[0].address).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut session = Session::new(config.key().unwrap(), config.map().unwrap().cluster, NodeId(1), 1);
    for _ in 0..1_000_000 {
        let _ = session.seal(&[0; protocol::wire::CONTROL_HEADER]);
    }
    while !over.load(Ordering::Relaxed) {
        let mut datagram = [0; 2_048];
        let Ok((len, from)) = socket.recv_from(&mut datagram) else { continue };
        let message = match session.open(now(), Bytes::copy_from_slice(&datagram[..len])) {
            Ok(Opened::Good(message)) => message,
            Ok(Opened::Between(replies) | Opened::Unproven(replies)) => {
                replies.iter().for_each(|reply| assert!(socket.send_to(reply, from).is_ok()));
                continue;
            }
            Err(_) => continue,
        };
        let Some((head, Message::Ping { txn })) = decode_message(&message) else { continue };
        let pong = encode_message(Head { from: NodeId(1), ..head }, &Message::Pong { txn, free: 1, chunks: 0 });
        socket.send_to(&session.seal(&pong), from).unwrap();
    }
}

#[test]
fn a_target_that_counts_from_lower_after_a_restart_is_heard_by_a_gateway_that_runs_on() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), 1);
    let client = Client::start(&config, ClientOptions::default()).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| earlier_life(&config, &over));
        let answered = (0..20).any(|_| answers(&client));
        over.store(true, Ordering::Relaxed);
        assert!(answered, "{}", client.metrics());
    });
    for _ in 0..3 {
        let target = TargetNode::start(&config, 1).unwrap();
        assert!(answers(&client), "{}", client.metrics());
        target.stop();
        assert!(!answers(&client));
    }
}

#[test]
fn the_first_put_of_a_new_gateway_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), 3);
    let targets: Vec<TargetNode> = (1..=3).map(|id| TargetNode::start(&config, id).unwrap()).collect();
    // Where others keep the processors busy an answer may be late: one of ten must need no second negotiation.
    let at_once = (0..10_u8).any(|n| {
        let client = Client::start(&config, ClientOptions::default()).unwrap();
        let bytes = Bytes::from(vec![n; 1_000]);
        client.put(ChunkId::of_payload(&bytes), bytes).wait().unwrap().unwrap().rounds == 1
    });
    assert!(at_once, "each first put had to negotiate again");
    targets.into_iter().for_each(TargetNode::stop);
}
