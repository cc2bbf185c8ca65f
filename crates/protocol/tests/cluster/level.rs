//! Copies move from full targets to empty ones, and no more than that takes.

use std::collections::BTreeSet;

use protocol::config::Config;
use protocol::id::{ChunkId, NodeId};
use protocol::map::ClusterMap;
use protocol::target::{Request, Setup, Target};
use protocol::time::Span;

use super::network::*;
use super::payload;

const INTERVAL: Span = Span::from_secs(1);
const CHUNK: usize = 1_000;

/// A cluster with so many chunks on some of its targets, each of which has room for so many bytes.
fn filled(map: ClusterMap, chunks: u64, room: u64, holds: impl Fn(NodeId) -> bool) -> (Cluster, Vec<ChunkId>) {
    let config = Config {
        census_interval: INTERVAL,
        scrub_interval: Span::ZERO,
        give_up: Span::from_secs(5),
        ..Config::default()
    };
    let mut cluster = Cluster::of(map, &config);
    cluster.room = room;
    let mut ids = Vec::new();
    for n in 0..chunks {
        let bytes = payload(n, CHUNK);
        let id = ChunkId::of_payload(&bytes);
        let mut domains = BTreeSet::new();
        for holder in cluster.map.ranked(&id).into_iter().filter(|id| holds(*id)) {
            if domains.len() < usize::from(cluster.map.copies) && domains.insert(cluster.map.domain(holder)) {
                cluster.disks.get_mut(&holder).expect("it is there").insert(id, bytes.clone());
            }
        }
        assert_eq!(domains.len(), usize::from(cluster.map.copies));
        ids.push(id);
    }
    for id in cluster.map.targets().map(|target| target.id).collect::<Vec<_>>() {
        let (map, seed, chunks) = (cluster.map.clone(), u64::from(id.0), chunks_of(&cluster, id.0) as u64);
        let setup = Setup { id, map, free: room - chunks * CHUNK as u64, chunks, seed, bug: None };
        cluster.targets.insert(id, Target::new(setup, config.clone()));
        cluster.handle(id, None);
    }
    (cluster, ids)
}

/// Lets some censuses pass; what the disks have won is told.
fn run(cluster: &mut Cluster, censuses: u64) {
    for _ in 0..censuses * 2 {
        let free = |cluster: &Cluster, id: &NodeId| {
            let live: u64 = cluster.disks[id].values().map(|bytes| bytes.len() as u64).sum();
            cluster.room.saturating_sub(live)
        };
        for id in cluster.map.targets().map(|target| target.id).collect::<Vec<_>>() {
            cluster.tell(id, Request::Free(free(cluster, &id)));
        }
        cluster.run_for(INTERVAL.div(2));
    }
}

fn chunks_of(cluster: &Cluster, id: u32) -> usize {
    cluster.disks[&NodeId(id)].len()
}

fn moves(cluster: &Cluster) -> usize {
    cluster.sent.get("move").copied().unwrap_or(0)
}

/// All have their copies, no others, each in a failure domain of its own.
fn assert_right(cluster: &Cluster, ids: &[ChunkId]) {
    for id in ids {
        let holders = cluster.holders(id);
        let goal = cluster.map.goal(cluster.map.redundancy(), &holders);
        assert!(goal.is_met() && holders.len() == usize::from(cluster.map.copies), "{holders:?}");
    }
}

#[test]
fn a_target_that_is_added_gets_its_share_and_no_more_moves() {
    for (targets, chunks) in [(10, 350), (18, 600), (27, 900)] {
        let (mut cluster, ids) = filled(map(targets, 3), chunks, 200_000, |id| id.0 != targets);
        let mean = 3 * chunks as usize / targets as usize;
        run(&mut cluster, 60);
        let got = chunks_of(&cluster, targets);
        assert!(got > mean * 3 / 4 && got < mean * 5 / 4, "{got} of {mean}");
        let before = moves(&cluster);
        // Not sent to oneself, and each but once: nothing is lost here.
        assert!(before * 10 <= got * 13, "{before} moves for {got}");
        assert_right(&cluster, &ids);
        run(&mut cluster, 30);
        assert_eq!(moves(&cluster), before, "it is over");
        let surplus = cluster.sent.get("surplus").copied();
        run(&mut cluster, 10);
        assert_eq!(cluster.sent.get("surplus").copied(), surplus, "nothing is left to do");
    }
}

#[test]
fn what_hashing_has_filled_stays() {
    for targets in [9, 18, 27] {
        let (mut cluster, ids) = filled(map(targets, 3), u64::from(targets) * 400, 2_000_000, |_| true);
        run(&mut cluster, 20);
        assert_eq!(moves(&cluster), 0, "of {targets}");
        assert_right(&cluster, &ids);
    }
}

/// In three domains each chunk has a copy in each: a newcomer takes from those of its own.
#[test]
fn copies_stay_in_distinct_failure_domains() {
    let entry = |n: u32| protocol::map::TargetEntry { id: NodeId(n), domain: (n % 3) as u16, capacity: 1 << 30 };
    let cluster = protocol::id::ClusterId(7);
    let map = ClusterMap::new(cluster, protocol::id::Epoch(1), 3, 3, (1..=7).map(entry).collect()).expect("a good map");
    let (mut cluster, ids) = filled(map, 200, 200_000, |id| id.0 != 7);
    let before: Vec<usize> = (1..=6).map(|id| chunks_of(&cluster, id)).collect();
    run(&mut cluster, 60);
    let got = chunks_of(&cluster, 7);
    // Of two that had all of their domain, a third each is left.
    assert!((50..=75).contains(&got), "{got}");
    for (id, before) in (1..=6).zip(before).filter(|(id, _)| id % 3 != 1) {
        assert_eq!(chunks_of(&cluster, id), before, "{id} is of another domain");
    }
    assert_right(&cluster, &ids);
}

/// Others have only a little less; what the hash gave it is more than it can take.
#[test]
fn a_target_that_is_nearly_full_is_relieved() {
    let room = 150_000;
    let (mut cluster, ids) = filled(map(9, 3), 390, room, |_| true);
    let fullest = |cluster: &Cluster| (1..=9).map(|id| chunks_of(cluster, id)).max().unwrap_or(0);
    let before = fullest(&cluster);
    assert!(before * CHUNK > 90 * room as usize / 100, "{before}");
    run(&mut cluster, 60);
    assert!(fullest(&cluster) * CHUNK < 90 * room as usize / 100, "{before}, then {}", fullest(&cluster));
    assert_right(&cluster, &ids);
    let before = moves(&cluster);
    run(&mut cluster, 20);
    assert_eq!(moves(&cluster), before);
}

/// What is at risk goes first, and while it may be that nobody knows what a silent target has, nothing moves.
#[test]
fn nothing_moves_while_a_target_is_silent() {
    let (mut cluster, _) = filled(map(10, 3), 350, 200_000, |id| id.0 != 10);
    cluster.dead.insert(NodeId(3));
    run(&mut cluster, 20);
    assert_eq!((moves(&cluster), chunks_of(&cluster, 10)), (0, 0));
    cluster.dead.remove(&NodeId(3));
    cluster.handle(NodeId(3), None);
    run(&mut cluster, 60);
    assert!(chunks_of(&cluster, 10) > 70, "{}", chunks_of(&cluster, 10));
}
