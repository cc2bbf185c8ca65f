//! Which cluster maps can serve, and how their groups are addressed.

use protocol::id::{ChunkId, ClusterId, Epoch, NodeId};
use protocol::map::{ClusterMap, MapError, TargetEntry};
use protocol::planner::{Wish, plan};
use protocol::redundancy::Redundancy;

/// Target `n` is in the `n`th of `domains`.
fn map(domains: &[u16], copies: u8, group_cells: usize) -> Result<ClusterMap, MapError> {
    let entry = |(n, domain): (usize, &u16)| TargetEntry { id: NodeId(n as u32), domain: *domain, capacity: 1 << 30 };
    ClusterMap::new(ClusterId(1), Epoch(1), copies, group_cells, domains.iter().enumerate().map(entry).collect())
}

#[test]
fn a_map_with_a_group_that_cannot_keep_copies_apart_is_refused() {
    let domains = |of_0: usize| [&vec![0; of_0][..], &[1, 2]].concat();
    let error = map(&domains(40), 3, 3).expect_err("most groups are in one domain");
    assert!(
        matches!(error, MapError::UnevenDomains { redundancy: Redundancy::Copies(3), domains: 1 | 2, .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("raise group_cells"), "{error}");
    let few = map(&[0, 1], 3, 3).expect_err("fewer targets than copies");
    assert!(matches!(few, MapError::TooFewDomains { copies: 3, targets: 2, domains: 2 }), "{few:?}");
    assert!(map(&domains(16), 3, 3).is_ok(), "one group of all has three domains");
}

#[test]
fn every_set_that_has_an_address_is_listened_to_by_all_that_it_names() {
    let domains: Vec<u16> = (0..20).collect();
    for (copies, group_cells) in [(2, 8), (3, 3), (2, 10), (3, 6), (4, 4), (4, 5)] {
        let map = map(&domains, copies, group_cells).expect("a good map");
        let listens: Vec<_> = (0..20).map(|n| map.memberships(NodeId(n))).collect();
        for group in map.group_ids() {
            let members: Vec<NodeId> = map.members(group).map(|t| t.id).collect();
            let pairs = members.iter().flat_map(|a| members.iter().map(|b| [*a, *b]));
            let sets = pairs.filter_map(|pair| map.set_of(group, |n| pair.contains(&n)));
            for set in sets.filter(|s| s.mask.count_ones() == 2).chain([map.group_set(group)]) {
                let received = map.resolve(set).all(|n| listens[n.0 as usize].contains(&set));
                assert_eq!(received, map.number(set).is_some(), "{copies} copies, {group_cells} cells: {set:?}");
            }
        }
    }
}

#[test]
fn groups_apart_share_no_cell_and_cover_every_target() {
    let together = map(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17], 3, 3).expect("a good map");
    let apart = together.clone().with_disjoint_groups().expect("a good map");
    assert_eq!((together.groups(), apart.groups()), (6, 2));
    let mut all: Vec<NodeId> =
        apart.group_ids().flat_map(|g| apart.members(g).map(|t| t.id).collect::<Vec<_>>()).collect();
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

#[test]
fn silence_is_weighed_by_failure_domains() {
    let ids = |ids: &[u32]| ids.iter().copied().map(NodeId).collect::<Vec<NodeId>>();
    let servers = map(&[1, 1, 1, 2, 2, 2, 3, 3, 3], 3, 3).expect("a good map").with_min_copies(3);
    for (silent, span) in [(&[][..], 0), (&[0, 1, 2], 1), (&[0, 1, 2, 3, 4, 5], 2), (&[0, 3], 2), (&[2, 5, 8], 3)] {
        assert_eq!(
            (servers.count_domains(&ids(silent)), servers.most_domains(&ids(silent))),
            (span, span),
            "{silent:?}"
        );
        assert_eq!(servers.may_hide(&ids(silent)), span == 3, "{silent:?}");
        assert_eq!(servers.clone().with_min_copies(2).may_hide(&ids(silent)), span >= 2, "{silent:?}");
    }
    // Who is not in the map was somewhere, and so was who has moved. Each counts once.
    assert_eq!((servers.count_domains(&ids(&[1, 20, 21, 20])), servers.most_domains(&ids(&[1, 20, 21, 20]))), (1, 3));
    let moved = servers.clone().with_moved(ids(&[1, 2]));
    assert_eq!((moved.count_domains(&ids(&[0, 1, 2])), moved.most_domains(&ids(&[0, 1, 2, 2]))), (1, 3));
    assert!(moved.may_hide(&ids(&[0, 1, 2])) && !moved.may_hide(&ids(&[3, 4, 5])));
    // What was put under an earlier map, or with a redundancy of its own, may have had fewer copies.
    let older = map(&[1, 1, 1, 2, 2, 2, 3, 3, 3], 2, 3).expect("a good map");
    let raised = servers.clone().after(&older);
    assert!(raised.may_hide(&ids(&[0, 3])) && !raised.may_hide(&ids(&[0, 1])) && !servers.may_hide(&ids(&[0, 3])));
    let hides = |copies, silent: &[u32]| servers.may_hide_kept(&ids(silent), Redundancy::copies(copies));
    assert_eq!([1, 2, 3].map(|copies| hides(copies, &[0, 1])), [true, false, false]);
    assert_eq!(
        [1, 2, 3].map(|copies| hides(copies, &[0, 3])),
        [true, true, true],
        "two are enough while a third is down"
    );
}

#[test]
fn puts_are_content_with_fewer_copies_but_never_with_too_few() {
    let least = |copies, min_copies: Option<u8>| {
        let map = map(&[0, 1, 2, 3, 4, 5], copies, 3).expect("a good map");
        let map = min_copies.map_or(map.clone(), |min| map.with_min_copies(min));
        [None, Some(1), Some(2), Some(3), Some(4)].map(|own| map.least(own.and_then(Redundancy::copies)))
    };
    assert_eq!(least(3, None), [2, 1, 2, 2, 3], "one may lack, but not of two");
    assert_eq!(least(2, None), [2, 1, 2, 3, 4]);
    assert_eq!(least(1, None), [1, 1, 2, 3, 4]);
    assert_eq!(least(3, Some(3)), [3, 1, 2, 3, 4]);
    assert_eq!(least(3, Some(1)), [1, 1, 2, 2, 2]);
    assert_eq!(least(3, Some(9)), [3, 1, 2, 3, 4], "not more than all");
    // A later map knows what was enough before.
    let before = map(&[0, 1, 2], 3, 3).expect("a good map");
    let strict = map(&[0, 1, 2], 3, 3).expect("a good map").with_min_copies(3);
    assert_eq!(strict.fewest(None), Redundancy::Copies(3));
    assert_eq!(strict.after(&before).fewest(None), Redundancy::Copies(2));
}

#[test]
fn who_shares_a_domain_with_others_than_before_has_moved() {
    let moved = |before: &[u16], after: &[u16]| {
        let [before, after] = [before, after].map(|domains| map(domains, 2, 3).expect("a good map"));
        after.after(&before).moved().map(|id| id.0).collect::<Vec<u32>>()
    };
    // Other numbers of the same domains, or a domain that is split, put nobody together.
    assert!(moved(&[1, 1, 2, 2, 3, 3], &[8, 8, 2, 2, 7, 7]).is_empty());
    assert!(moved(&[1, 1, 1, 2, 2, 2], &[1, 5, 1, 2, 2, 2]).is_empty());
    assert!(moved(&[1, 1, 2, 2], &[1, 1, 2, 2, 2, 1]).is_empty(), "new ones bring nothing");
    // One joins others; two domains become one.
    assert_eq!(moved(&[1, 1, 2, 2, 3, 3], &[1, 2, 2, 2, 3, 3]), [1]);
    assert_eq!(moved(&[1, 1, 2, 3, 3], &[1, 1, 1, 3, 3]), [2]);
    // It stays so in later maps.
    let first = map(&[1, 1, 2, 2], 2, 3).expect("a good map");
    let second = map(&[1, 2, 2, 2], 2, 3).expect("a good map").after(&first);
    assert_eq!(first.clone().after(&second).moved().collect::<Vec<NodeId>>(), [NodeId(1)]);
    // Until it is taken out.
    let rest = second.targets().filter(|target| target.id != NodeId(1)).cloned().collect();
    let third = ClusterMap::new(ClusterId(1), Epoch(3), 2, 3, rest).expect("a good map").after(&second);
    assert_eq!(third.moved().count(), 0);
    assert_eq!(first.after(&third).moved().count(), 0);
}

/// 24 targets, each a domain of its own, after target 5 was drained.
fn drained() -> (ClusterMap, ClusterMap) {
    let before = map(&(0..24).collect::<Vec<u16>>(), 3, 3).expect("a good map").with_min_copies(3);
    let wish = Wish {
        targets: before.targets().map(|target| (target.id, target.clone())).collect(),
        drained: [NodeId(5)].into(),
        replacements: Default::default(),
        copies: 3,
        most: before.redundancy(),
        group_cells: 3,
        overlap: true,
        level: false,
    };
    let plan = plan(&before, &wish, 0).expect("a good map");
    assert!(plan.regroups);
    (before, plan.map.with_min_copies(3))
}

#[test]
fn what_silent_targets_hide_is_weighed_by_both_layouts() {
    let (before, after) = drained();
    let out_of_reach = |map: &ClusterMap, silent: &[NodeId]| map.out_of_reach(silent, None);
    // What was put before may have all its copies on the drained target and two others of its group then.
    let ids: Vec<ChunkId> = (0..400_u32).map(|n| ChunkId::of_payload(&n.to_le_bytes())).collect();
    let had = |id: &&ChunkId| before.placement().targets_of(id).contains(&NodeId(5));
    let group = before.placement().targets_of(ids.iter().find(had).expect("some were there"));
    let two: Vec<NodeId> = group.iter().copied().filter(|id| *id != NodeId(5)).take(2).collect();
    let silent = [&two[..], &[NodeId(5)]].concat();
    let hidden = out_of_reach(&after, &silent);
    let groups: Vec<_> = after.group_ids().collect();
    let mut seen = [0, 0];
    for id in &ids {
        let n = groups.iter().position(|group| *group == after.group_of(id)).expect("it has a group");
        let was = before.placement().targets_of(id);
        let hides = silent.iter().all(|silent| was.contains(silent));
        assert!(!hides || hidden.contains(&n), "{id:?}: {hidden:?}");
        seen[usize::from(hides)] += 1;
    }
    assert!(seen.iter().all(|often| *often > 0), "{seen:?}");
    assert!(out_of_reach(&after, &two).is_empty(), "a third copy answers");
    assert!(out_of_reach(&after, &[NodeId(5)]).is_empty());
    let alone = after.clone().with_previous(None);
    assert!(out_of_reach(&alone, &silent).is_empty(), "by the layout of now they hide nothing");
    // Three of a group hide something by any layout.
    let now = after.placement().targets_of(&ids[0]);
    assert!(!out_of_reach(&alone, &now[..3]).is_empty() && !out_of_reach(&before, &group[..3]).is_empty());
}

#[test]
fn who_was_taken_out_answers_no_more() {
    let (before, after) = drained();
    let chunk = (0..400_u32).map(|n| ChunkId::of_payload(&n.to_le_bytes())).find(|id| {
        let group = before.placement().targets_of(id);
        group.contains(&NodeId(5))
    });
    let was = before.placement().targets_of(&chunk.expect("some were there"));
    let two: Vec<NodeId> = was.into_iter().filter(|id| *id != NodeId(5)).take(2).collect();
    let rest = after.targets().filter(|target| target.id != NodeId(5)).cloned().collect();
    let layout = after.placement().layout().clone();
    let without = ClusterMap::with_layout(ClusterId(1), Epoch(3), 3, rest, layout).expect("a good map");
    let without = without.with_previous(after.previous().cloned());
    assert!(after.out_of_reach(&two, None).is_empty());
    assert!(!without.out_of_reach(&two, None).is_empty());
    assert!(without.out_of_reach(&[], Redundancy::copies(1)).is_empty(), "nobody is silent");
}
