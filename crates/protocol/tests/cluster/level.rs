//! Copies move from full targets to empty ones, and no more than that takes.

use std::collections::BTreeSet;

use protocol::config::Config;
use protocol::id::{ChunkId, ClusterId, Epoch, NodeId};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::planner::{self, Plan, Wish};
use protocol::target::{Request, Setup, Target};
use protocol::time::Span;

use super::network::*;
use super::payload;

const INTERVAL: Span = Span::from_secs(1);
const CHUNK: usize = 64;
/// Chunks that a target has room for.
const ROOM: u64 = 2_000;

/// A cluster with so many chunks on some of its targets.
fn filled(map: ClusterMap, chunks: u64, holds: impl Fn(NodeId) -> bool) -> (Cluster, Vec<ChunkId>) {
    filled_by(&map.clone(), map, chunks, holds)
}

/// The same, when an older map said where chunks are.
fn filled_by(
    older: &ClusterMap,
    map: ClusterMap,
    chunks: u64,
    holds: impl Fn(NodeId) -> bool,
) -> (Cluster, Vec<ChunkId>) {
    filled_with((Span::from_secs(5), ROOM), older, map, (chunks, |_| true), holds)
}

/// The same, when a put, get or list takes so long at most, targets have room for so many chunks, and these are as is asked.
fn filled_with(
    (give_up, room): (Span, u64),
    older: &ClusterMap,
    map: ClusterMap,
    (chunks, is_one): (u64, impl Fn(&ChunkId) -> bool),
    holds: impl Fn(NodeId) -> bool,
) -> (Cluster, Vec<ChunkId>) {
    let config = Config { census_interval: INTERVAL, scrub_interval: Span::ZERO, give_up, ..Config::default() };
    let mut cluster = Cluster::of(map, &config);
    let room = room * CHUNK as u64;
    cluster.room = room;
    let mut ids = Vec::new();
    let all = (0..).map(|n| payload(n, CHUNK)).map(|bytes| (ChunkId::of_payload(&bytes), bytes));
    for (id, bytes) in all.filter(|(id, _)| is_one(id)).take(chunks as usize) {
        let mut domains = BTreeSet::new();
        for holder in older.ranked(&id).into_iter().filter(|id| holds(*id)) {
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
            let more = cluster.more_room.get(id).copied().unwrap_or(0);
            (cluster.room + more).saturating_sub(live)
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
    for targets in [10, 18] {
        let chunks = u64::from(targets) * 330;
        let (mut cluster, ids) = filled(map(targets, 3), chunks, |id| id.0 != targets);
        run(&mut cluster, 60);
        let got = chunks_of(&cluster, targets);
        assert!((750..1_100).contains(&got), "{got} of 1,000");
        let written = cluster.written;
        assert!(written * 10 <= got as u64 * 13, "{written} were put, and it has {got}");
        assert_right(&cluster, &ids);
        let before = moves(&cluster);
        run(&mut cluster, 30);
        assert_eq!((moves(&cluster), cluster.written), (before, written), "it is over");
    }
}

/// While copies are to stay where they are none moves, and what is lost is made again all the same.
#[test]
fn nothing_moves_while_that_is_paused() {
    let paused = map(10, 3).with_moves_paused(true);
    let (mut cluster, ids) = filled(paused, 3_000, |id| id.0 != 10);
    run(&mut cluster, 20);
    assert_eq!((moves(&cluster), cluster.written, chunks_of(&cluster, 10)), (0, 0, 0));
    let (lost, _) = cluster.disks.get_mut(&NodeId(4)).expect("it is there").pop_first().expect("it has some");
    run(&mut cluster, 6);
    assert_eq!((cluster.holders(&lost).len(), moves(&cluster), cluster.written), (3, 0, 1));
    assert_right(&cluster, &ids);
}

/// Sweeps are so seldom here that a steward which remembered moves for as long as patience lasts alone would let the new copy go, as
/// hashing prefers all others, and move the chunk again.
#[test]
fn what_was_moved_goes_where_it_was_however_seldom_it_is_looked() {
    for room in [60, 100, 150] {
        let map = map(10, 3);
        let is_last = |id: &ChunkId| map.ranked(id).last() == Some(&NodeId(10));
        let patience = Span::from_millis(100);
        let (mut cluster, ids) = filled_with((patience, room), &map, map.clone(), (100, is_last), |id| id.0 != 10);
        run(&mut cluster, 60);
        assert!(chunks_of(&cluster, 10) > 10, "{}", chunks_of(&cluster, 10));
        assert_right(&cluster, &ids);
        let before = moves(&cluster);
        run(&mut cluster, 60);
        assert_eq!(moves(&cluster), before, "it is over");
    }
}

/// The map with so many targets more.
fn grown(map: &ClusterMap, more: u32, stored: u64) -> Plan {
    let last = map.targets().map(|target| target.id.0).max().unwrap_or(0);
    let new = (last + 1..=last + more).map(|n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 });
    let targets = map.targets().cloned().chain(new).map(|target| (target.id, target)).collect();
    let wish = Wish {
        targets,
        drained: BTreeSet::new(),
        replacements: Default::default(),
        copies: map.copies,
        most: map.redundancy(),
        group_cells: map.group_cells(),
        overlap: true,
        level: false,
    };
    planner::plan(map, &wish, stored).expect("they fit")
}

/// With what the planner says that has to move at the least.
#[test]
fn little_more_moves_than_has_to() {
    let full = grown(&map(15, 3), 10, 0).map.with_previous(None);
    for (older, more, splits) in [(map(18, 3), 1, false), (map(18, 3), 3, false), (full, 1, true)] {
        let targets = older.targets().count() as u64;
        let stored = targets * 990 * CHUNK as u64;
        let plan = grown(&older, more, stored);
        assert_eq!((plan.regroups, plan.map.previous().is_some()), (splits, splits));
        let (mut cluster, ids) = filled_by(&older, plan.map, targets * 330, |_| true);
        run(&mut cluster, 90);
        let (written, least) = (cluster.written * CHUNK as u64, plan.moves.bytes());
        let got: Vec<usize> = (1..=more).map(|n| chunks_of(&cluster, targets as u32 + n)).collect();
        let most = if splits { 18 } else { 13 };
        println!("{written} bytes, and {least} at the least, for {got:?} chunks");
        assert!(written * 10 <= least * most, "{written} bytes, and {least} at the least, for {got:?} chunks");
        assert!(got.iter().all(|got| *got > 600), "{got:?}");
        assert_right(&cluster, &ids);
    }
}

#[test]
fn what_hashing_has_filled_stays() {
    for targets in [9, 18, 27] {
        let (mut cluster, ids) = filled(map(targets, 3), u64::from(targets) * 400, |_| true);
        run(&mut cluster, 20);
        assert_eq!(moves(&cluster), 0, "of {targets}");
        assert_right(&cluster, &ids);
    }
}

/// In three domains each chunk has a copy in each: a newcomer takes from those of its own.
#[test]
fn copies_stay_in_distinct_failure_domains() {
    let entry = |n: u32| TargetEntry { id: NodeId(n), domain: (n % 3) as u16, capacity: 1 << 30 };
    let targets = (1..=7).map(entry).collect();
    let map = ClusterMap::new(ClusterId(7), Epoch(1), 3, 3, targets).expect("a good map");
    let (mut cluster, ids) = filled(map, 2_000, |id| id.0 != 7);
    run(&mut cluster, 60);
    let got = chunks_of(&cluster, 7);
    // Of the two that had all of its domain, two thirds are left.
    assert!((550..720).contains(&got), "{got}");
    assert_right(&cluster, &ids);
}

/// Others have only a little less.
#[test]
fn a_target_that_is_nearly_full_is_relieved() {
    let (mut cluster, ids) = filled(map(9, 3), 5_220, |_| true);
    for id in cluster.map.targets().map(|target| target.id).filter(|id| id.0 != 4).collect::<Vec<_>>() {
        cluster.more_room.insert(id, 8 * CHUNK as u64 * ROOM / 100);
    }
    let before = chunks_of(&cluster, 4);
    run(&mut cluster, 60);
    let after = chunks_of(&cluster, 4);
    assert!(before > 1_650 && after + 30 < before, "{before}, then {after}");
    assert_right(&cluster, &ids);
    let before = moves(&cluster);
    run(&mut cluster, 20);
    assert_eq!(moves(&cluster), before);
}

/// What is at risk goes first, and while nobody knows what a silent target has, nothing moves.
#[test]
fn nothing_moves_while_a_target_is_silent() {
    let (mut cluster, _) = filled(map(10, 3), 3_300, |id| id.0 != 10);
    cluster.dead.insert(NodeId(3));
    run(&mut cluster, 20);
    assert_eq!((moves(&cluster), chunks_of(&cluster, 10)), (0, 0));
    cluster.dead.remove(&NodeId(3));
    cluster.handle(NodeId(3), None);
    run(&mut cluster, 60);
    assert!(chunks_of(&cluster, 10) > 700, "{}", chunks_of(&cluster, 10));
}
