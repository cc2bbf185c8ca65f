//! Nine targets and a client in one process, over real sockets and real files.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

use bytes::Bytes;
use node::config::{MulticastChoice, Network, Protocol, TargetConfig};
use node::net::free_port;
use node::target::{TargetNode, make_store, without_store};
use node::{Client, ClientOptions, ClusterConfig};
use protocol::config::Transport;
use protocol::id::ChunkId;
use protocol::initiator::GetError;
use protocol::rng::Rng;

fn config(dir: &Path, multicast: MulticastChoice) -> ClusterConfig {
    std::fs::write(dir.join("cluster.key"), "5a".repeat(32)).expect("writes");
    let targets = (1..=9)
        .map(|id| TargetConfig {
            id,
            domain: format!("disk-{id}"),
            address: SocketAddrV4::new(Ipv4Addr::LOCALHOST, free_port(Ipv4Addr::LOCALHOST).expect("a port")),
            data: format!("target-{id}").into(),
            capacity: "256MiB".to_owned(),
            metrics: None,
            write_delay_ms: 0,
        })
        .collect();
    let multicast_port = free_port(Ipv4Addr::LOCALHOST).expect("a port");
    ClusterConfig {
        cluster: dir.display().to_string(),
        epoch: 1,
        copies: 3,
        group_cells: 3,
        overlap: true,
        key_file: "cluster.key".into(),
        network: Network { multicast, multicast_port, ..Network::default() },
        protocol: Protocol::default(),
        targets,
        path: dir.join("cluster.toml"),
    }
}

fn start(config: &ClusterConfig) -> Vec<TargetNode> {
    without_store(config).iter().for_each(|(id, _)| make_store(config, *id).expect("makes a store"));
    config.targets.iter().map(|t| TargetNode::start(config, t.id).expect("starts")).collect()
}

fn chunk(seed: u64, len: usize) -> Bytes {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

fn round_trip(config: &ClusterConfig, options: ClientOptions) {
    let client = Client::start(config, options).expect("starts");
    let salt = options.transport.map_or(9, |t| t as u64) * 2 + u64::from(client.multicast());
    let chunks: Vec<Bytes> =
        (0..24).map(|n| chunk(salt * 100 + n, [1, 5_000, 128 << 10, 1 << 20][n as usize % 4])).collect();
    let puts: Vec<_> = chunks.iter().map(|c| client.put(ChunkId::of_payload(c), c.clone())).collect();
    for put in puts {
        let stored = put.wait().expect("runs").unwrap_or_else(|error| panic!("{options:?}: {error}"));
        assert_eq!(stored.holders.len(), 3, "{options:?}");
    }
    let gets: Vec<_> = chunks.iter().map(|c| client.get(ChunkId::of_payload(c))).collect();
    for (get, chunk) in gets.into_iter().zip(&chunks) {
        let fetched = get.wait().expect("runs").unwrap_or_else(|error| panic!("{options:?}: {error}"));
        assert_eq!(fetched.pieces.concat(), *chunk, "{options:?}");
    }
    let absent = client.get(ChunkId::of_payload(b"never put")).wait().expect("runs");
    assert!(matches!(absent, Err(GetError::NotFound)), "{options:?}: {absent:?}");
}

#[test]
fn every_transport_gives_back_what_was_put_also_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = config(dir.path(), MulticastChoice::Auto);
    let targets = start(&config);
    for transport in [Transport::ReplicastM, Transport::ReplicastH, Transport::Leader, Transport::Hash] {
        for multicast in [None, Some(false)] {
            round_trip(&config, ClientOptions { transport: Some(transport), multicast, depth: None });
        }
    }
    let client = Client::start(&config, ClientOptions::default()).expect("starts");
    assert!(client.multicast(), "loopback carries multicast");
    let kept = chunk(77, 300_000);
    let id = ChunkId::of_payload(&kept);
    client.put(id, kept.clone()).wait().expect("runs").expect("stored");
    targets.into_iter().for_each(TargetNode::stop);
    let targets = start(&config);
    let fetched = client.get(id).wait().expect("runs").expect("still there");
    assert_eq!(fetched.pieces.concat(), kept);
    let states = client.ping().wait().expect("runs").expect("answered");
    assert!(states.iter().all(|s| s.answer.is_some()), "{states:?}");
    targets.into_iter().for_each(TargetNode::stop);
}

#[test]
fn without_multicast_and_with_two_targets_gone_all_of_it_still_works() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = config(dir.path(), MulticastChoice::Off);
    let mut targets = start(&config);
    let client = Client::start(&config, ClientOptions::default()).expect("starts");
    assert!(!client.multicast());
    let kept: Vec<Bytes> = (0..20).map(|n| chunk(n, 50_000)).collect();
    for bytes in &kept {
        client.put(ChunkId::of_payload(bytes), bytes.clone()).wait().expect("runs").expect("stored");
    }
    targets.drain(..2).for_each(TargetNode::stop);
    for bytes in &kept {
        let fetched = client.get(ChunkId::of_payload(bytes)).wait().expect("runs").expect("two copies may go");
        assert_eq!(fetched.pieces.concat(), *bytes);
    }
    let late = chunk(999, 70_000);
    let stored = client.put(ChunkId::of_payload(&late), late.clone()).wait().expect("runs").expect("on others");
    assert_eq!(stored.holders.len(), 3);
    targets.into_iter().for_each(TargetNode::stop);
}

#[test]
fn a_byte_that_flips_on_disk_is_never_returned_and_other_copies_serve() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = config(dir.path(), MulticastChoice::Auto);
    let mut targets = start(&config);
    let kept = chunk(5, 200_000);
    let id = ChunkId::of_payload(&kept);
    let client = Client::start(&config, ClientOptions::default()).expect("starts");
    let stored = client.put(id, kept.clone()).wait().expect("runs").expect("stored");
    // Two of the three copies rot while their targets run.
    for holder in &stored.holders[..2] {
        let data = dir.path().join(format!("target-{}", holder.0));
        for entry in std::fs::read_dir(data).expect("a directory").map(|e| e.expect("an entry").path()) {
            let mut bytes = std::fs::read(&entry).expect("reads");
            if let Some(at) = bytes.windows(32).position(|w| w == &kept[100_000..100_032]) {
                bytes[at] ^= 1;
                use std::os::unix::fs::FileExt;
                let file = std::fs::OpenOptions::new().write(true).open(&entry).expect("opens");
                file.write_all_at(&bytes[at..=at], at as u64).expect("writes");
            }
        }
    }
    for _ in 0..20 {
        let fetched = client.get(id).wait().expect("runs").expect("one copy is good");
        assert_eq!(fetched.pieces.concat(), kept);
        assert_eq!(fetched.from, stored.holders[2]);
    }
    targets.drain(..).for_each(TargetNode::stop);
}
