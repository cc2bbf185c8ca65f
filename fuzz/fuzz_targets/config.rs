//! Hostile cluster maps: a clear refusal or a map on which every question has an answer.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use node::ClusterConfig;
use node::net::multicast_address;
use protocol::id::{ChunkId, GroupId};
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
    assert!(config.protocol(std::net::Ipv4Addr::LOCALHOST).per_datagram > 0);
    for n in 0..8_u8 {
        let id = ChunkId::of_payload(&[n]);
        let group = map.group_of(&id);
        let members = map.members(group).count();
        assert!(group.0 < map.groups() && (usize::from(map.copies)..=GROUP_MEMBERS).contains(&members));
        let ranked = map.ranked(&id);
        assert_eq!(ranked.len(), members);
        for target in ranked {
            let set = map.set_of(group, |id| id == target).expect("it is a member");
            assert_eq!(map.resolve(set).collect::<Vec<_>>(), [target]);
        }
    }
    let all = map.group_set(GroupId(0));
    assert_eq!(map.resolve(all).count(), map.members(GroupId(0)).count());
    assert!(multicast_address(&map, all).is_none_or(|address| address.is_multicast()));
    for target in &config.targets {
        assert!(config.capacity(target).is_ok() && map.domain(protocol::id::NodeId(target.id)).is_some());
    }
});
