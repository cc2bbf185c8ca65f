//! Which cluster maps can serve, and how their groups are addressed.

use protocol::id::{ChunkId, ClusterId, Epoch, GroupId, NodeId};
use protocol::map::{ClusterMap, MapError, TargetEntry};

/// Target `n` is in the `n`th of `domains`.
fn map(domains: &[u16], copies: u8, group_cells: usize) -> Result<ClusterMap, MapError> {
    let entry = |(n, domain): (usize, &u16)| TargetEntry { id: NodeId(n as u32), domain: *domain, capacity: 1 << 30 };
    ClusterMap::new(ClusterId(1), Epoch(1), copies, group_cells, domains.iter().enumerate().map(entry).collect())
}

#[test]
fn a_map_with_a_group_that_cannot_keep_copies_apart_is_refused() {
    let mut domains = vec![0; 16];
    domains.extend([1, 2]);
    let error = map(&domains, 3, 3).expect_err("most groups are in one domain");
    assert!(matches!(error, MapError::UnevenDomains { copies: 3, domains: 1 | 2, .. }), "{error:?}");
    assert!(error.to_string().contains("raise group_cells"), "{error}");
    assert!(map(&domains, 3, 6).is_ok(), "one group of all has three domains");
}

#[test]
fn every_set_that_has_an_address_is_listened_to_by_all_that_it_names() {
    let domains: Vec<u16> = (0..20).collect();
    for (copies, group_cells) in [(2, 8), (3, 3), (2, 10), (3, 6), (4, 4), (4, 5)] {
        let map = map(&domains, copies, group_cells).expect("a good map");
        let listens: Vec<_> = (0..20).map(|n| map.memberships(NodeId(n))).collect();
        for group in (0..map.groups()).map(GroupId) {
            let members: Vec<NodeId> = map.members(group).map(|t| t.id).collect();
            let pairs = members.iter().flat_map(|a| members.iter().map(|b| [*a, *b]));
            let sets = pairs.filter_map(|pair| map.set_of(group, |n| pair.contains(&n)));
            for set in sets.filter(|s| s.mask.count_ones() == 2).chain([map.group_set(group)]) {
                let heard = map.resolve(set).all(|n| listens[n.0 as usize].contains(&set));
                assert_eq!(heard, map.number(set).is_some(), "{copies} copies, {group_cells} cells: {set:?}");
            }
        }
    }
}

#[test]
fn groups_apart_share_no_cell_and_cover_every_target() {
    let together = map(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17], 3, 3).expect("a good map");
    let apart = together.clone().apart();
    assert_eq!((together.groups(), apart.groups()), (6, 2));
    let mut all: Vec<NodeId> =
        (0..2).flat_map(|g| apart.members(GroupId(g)).map(|t| t.id).collect::<Vec<_>>()).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 18);
    for n in 0..200_u32 {
        let id = ChunkId::of_payload(&n.to_le_bytes());
        let group = apart.group_of(&id);
        let named: Vec<NodeId> = apart.resolve(apart.group_set(group)).collect();
        assert_eq!(named, apart.members(group).map(|t| t.id).collect::<Vec<_>>());
    }
}
