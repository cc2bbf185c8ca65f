//! Hostile cluster maps: a clear refusal or a map on which every question has an answer.

#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use node::ClusterConfig;
use node::udp::group_address;
use protocol::id::ChunkId;
use protocol::limits::GROUP_MEMBERS;

fuzz_target!(|text: &str| {
    let config = match ClusterConfig::parse(text, Path::new("cluster.toml")) {
        Ok(config) => config,
        Err(error) => {
            assert_eq!(error.to_string().lines().count(), 1, "not one line: {error}");
            return;
        }
    };
    let map = config.map().expect("it was checked");
    for interface in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        assert!(config.protocol(interface).per_datagram > 0);
    }
    for n in 0..8_u8 {
        let id = ChunkId::of_payload(&[n]);
        let group = map.group_of(&id);
        let members = map.members(group).count();
        assert!(map.is_group(group) && (usize::from(map.copies)..=GROUP_MEMBERS).contains(&members));
        let ranked = map.ranked(&id);
        assert_eq!(ranked.len(), members);
        for target in ranked {
            let set = map.set_of(group, |id| id == target).expect("it is a member");
            assert_eq!(map.resolve(set).collect::<Vec<_>>(), [target]);
        }
    }
    let first = map.group_ids().next().expect("there is one");
    let all = map.group_set(first);
    assert_eq!(map.resolve(all).count(), map.members(first).count());
    for ipv6 in [false, true] {
        assert!(group_address(&map, all, ipv6).is_none_or(|address| address.is_multicast()));
    }
    for target in &config.targets {
        assert!(config.capacity(target).is_ok() && map.domain(protocol::id::NodeId(target.id)).is_some());
    }
});
