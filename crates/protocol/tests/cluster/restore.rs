//! What was lost is made again.

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{ChunkId, Epoch, NodeId};
use protocol::initiator::Event;
use protocol::limits;
use protocol::map::ClusterMap;
use protocol::steward;
use protocol::target::{Bug, Request, Setup, Target};
use protocol::time::Span;
use protocol::wire::{Head, Message, Nowhere, encode_message};

use super::network::*;
use super::{configs, payload};

const INTERVAL: Span = Span::from_secs(1);

/// A cluster with so many chunks, in which every group has a steward.
fn filled(config: &Config, chunks: u64) -> (Cluster, Vec<ChunkId>) {
    let contents = (0..chunks).map(|n| payload(n, 100 + n as usize));
    filled_with(config, map(18, 3), contents.collect(), None)
}

/// A cluster of targets with a defect, or none, in which this was put.
fn filled_with(config: &Config, map: ClusterMap, contents: Vec<Bytes>, bug: Option<Bug>) -> (Cluster, Vec<ChunkId>) {
    put_all(Cluster::with(map, &Config { census_interval: INTERVAL, ..config.clone() }, bug), contents)
}

/// A cluster in which this was put.
fn put_all(mut cluster: Cluster, contents: Vec<Bytes>) -> (Cluster, Vec<ChunkId>) {
    // The first wake of each.
    for target in cluster.map.targets().map(|target| target.id).collect::<Vec<_>>() {
        cluster.handle(target, None);
    }
    let ids: Vec<ChunkId> = contents.iter().map(|bytes| ChunkId::of_payload(bytes)).collect();
    (0..).zip(contents).for_each(|(n, bytes)| cluster.put(n, bytes));
    let done = cluster.run().iter().filter(|event| matches!(event, Event::Put { result: Ok(_), .. })).count();
    assert_eq!(done, ids.len());
    (cluster, ids)
}

fn stewards(cluster: &Cluster) -> usize {
    cluster.targets.values().map(|target| target.health().count()).sum()
}

/// In how many groups chunks are at risk, and how many, as far as is known.
fn at_risk(cluster: &Cluster) -> u64 {
    cluster.targets.values().flat_map(|target| target.health()).map(|(_, health)| health.lacks.at_risk()).sum()
}

fn is_whole(cluster: &Cluster) -> bool {
    cluster.targets.values().flat_map(|target| target.health()).all(|(_, health)| health.whole)
}

#[test]
fn a_disk_that_comes_back_empty_is_filled_again_with_every_transport() {
    for config in configs() {
        let (mut cluster, ids) = filled(&config, 200);
        cluster.run_for(INTERVAL.times(3));
        assert_eq!(
            (stewards(&cluster), at_risk(&cluster), is_whole(&cluster)),
            (cluster.map.groups() as usize, 0, true),
            "{config:?}"
        );
        let restores = cluster.sent.get("restore").copied().unwrap_or(0);
        assert_eq!(restores, 0, "{config:?}");
        let copies = |cluster: &Cluster| ids.iter().map(|id| cluster.holders(id).len()).collect::<Vec<_>>();
        assert!(copies(&cluster).iter().all(|copies| *copies == 3), "{config:?}: {:?}", copies(&cluster));
        let lost = core::mem::take(cluster.disks.get_mut(&NodeId(4)).expect("it is there")).len();
        assert!(lost > 10, "{config:?}: {lost}");
        cluster.run_for(INTERVAL.times(8));
        assert!(copies(&cluster).iter().all(|copies| *copies == 3), "{config:?}: {:?}", copies(&cluster));
        assert_eq!((at_risk(&cluster), is_whole(&cluster)), (0, true), "{config:?}");
    }
}

/// What was just put is looked at little by little, and all of it at once as soon as copies are known to be too few.
#[test]
fn a_sweep_has_time_where_nothing_is_known_to_be_missing() {
    let long = Span::from_secs(100);
    let config = Config { scrub_interval: Span::ZERO, census_interval: long, ..Config::default() };
    // So many that they are looked at part by part.
    let content = |n| payload(n, 100);
    let (mut cluster, _) = put_all(Cluster::of(map(9, 3), &config), (0..2_000).map(content).collect());
    cluster.run_for(long.times(2));
    (2_000..2_400).for_each(|n| cluster.put(n, content(n)));
    cluster.run();
    let step = long.div(1_000);
    let most_asked = |cluster: &mut Cluster, steps: u64| {
        let asked = (0..steps).map(|_| {
            let before = cluster.sent["census"];
            cluster.run_for(step);
            cluster.sent["census"] - before
        });
        asked.max().unwrap_or(0)
    };
    // The steward of the one group asks each once; by the clock of the steps at most twice.
    let once = cluster.map.targets().count();
    let most = most_asked(&mut cluster, 2_000);
    assert!(most > 0 && most <= 2 * once, "{most}, {once}");
    assert!(is_whole(&cluster));
    cluster.disks.get_mut(&NodeId(4)).expect("it is there").clear();
    let most = most_asked(&mut cluster, 3_000);
    assert!(most > 3 * once, "{most}, {once}");
    assert!(is_whole(&cluster));
}

/// Nobody waits for the next sweep where copies are known to be gone, or a target may have another disk.
#[test]
fn what_is_known_to_be_gone_is_made_at_once() {
    let (long, soon) = (Span::from_secs(300), Span::from_secs(2));
    let config = Config { scrub_interval: Span::ZERO, census_interval: long, ..Config::default() };
    for is_damaged in [true, false] {
        let contents = (0..200).map(|n| payload(n, 100 + n as usize));
        let (mut cluster, ids) = put_all(Cluster::of(map(18, 3), &config), contents.collect());
        cluster.run_for(soon);
        let lacking = |cluster: &Cluster| ids.iter().filter(|id| cluster.holders(id).len() < 3).count();
        let lost = cluster.disks[&NodeId(4)].len();
        assert!(lost > 10 && lacking(&cluster) == 0, "{lost}");
        if is_damaged {
            // The disk finds that all that it has is damaged, when it is told to look.
            let head = Head { cluster: cluster.map.cluster, epoch: cluster.map.epoch, from: INITIATOR };
            let suspect = encode_message(head, &Message::Suspect { id: ids[0] });
            cluster.push(Span::ZERO, NodeId(4), Item::Datagram(suspect));
        } else {
            cluster.disks.get_mut(&NodeId(4)).expect("it is there").clear();
            let (id, map) = (NodeId(4), cluster.map.clone());
            let setup = Setup { id, map, free: 1 << 30, chunks: 0, seed: 99, bug: None };
            cluster.targets.insert(id, Target::new(setup, config.clone()));
            cluster.tell(NodeId(4), Request::Presence { here: true });
        }
        cluster.run_for(Span::from_micros(20));
        assert_eq!(lacking(&cluster), lost);
        cluster.run_for(soon);
        assert_eq!(lacking(&cluster), 0, "{is_damaged}");
        // Of each all other members of its group hear.
        assert_eq!(cluster.sent.get("gone").copied().unwrap_or(0) > lost, is_damaged);
    }
}

/// No steward counts a chunk of which nobody has a copy that answers: who found its own damaged asks for others, and says who may have the
/// last.
#[test]
fn what_only_a_silent_target_may_have_is_sought() {
    let config = Config { scrub_interval: Span::ZERO, ..Config::default() };
    let (mut cluster, ids) = filled(&config, 200);
    cluster.run_for(INTERVAL.times(3));
    let [last, others @ ..] = &cluster.holders(&ids[0])[..] else { panic!("it has copies") };
    let (last, others) = (*last, others.to_vec());
    let all: Vec<Vec<NodeId>> = ids.iter().map(|id| cluster.holders(id)).collect();
    let hidden =
        all.iter().filter(|holders| holders.iter().all(|id| *id == last || others.contains(id))).count() as u32;
    cluster.dead.insert(last);
    let head = Head { cluster: cluster.map.cluster, epoch: cluster.map.epoch, from: INITIATOR };
    for other in &others {
        let suspect = encode_message(head, &Message::Suspect { id: ids[0] });
        cluster.push(Span::ZERO, *other, Item::Datagram(suspect));
    }
    cluster.run_for(INTERVAL.times(2));
    for other in &others {
        let nowhere = cluster.targets[other].nowhere();
        assert_eq!(nowhere, Some(Nowhere { lost: 0, sought: hidden, silent: vec![last] }), "{other} of {hidden}");
    }
    let found = cluster.targets.iter().filter(|(id, _)| !others.contains(id)).map(|(_, target)| target.nowhere());
    assert!(
        found.into_iter().all(|nowhere| nowhere == Some(Nowhere::default())),
        "whoever misses nothing seeks nothing"
    );
    cluster.dead.remove(&last);
    cluster.handle(last, None);
    cluster.run_for(INTERVAL.times(20));
    assert!(ids.iter().all(|id| cluster.holders(id).len() == 3) && is_whole(&cluster));
    assert!(cluster.targets.values().all(|target| target.nowhere() == Some(Nowhere::default())));
}

/// A look may take long, when one that is asked is silent: what is missing since the last one that is over may be on anybody until then.
#[test]
fn until_it_was_looked_for_anybody_may_have_what_is_missing() {
    let config = Config { scrub_interval: Span::ZERO, ..Config::default() };
    let (mut cluster, ids) = filled(&config, 200);
    cluster.run_for(INTERVAL.times(3));
    let seeker = cluster.holders(&ids[0])[0];
    assert_eq!(cluster.targets[&seeker].nowhere(), Some(Nowhere::default()), "it was looked, and nothing was missing");
    cluster.dead.extend(cluster.targets.keys().copied().filter(|id| *id != seeker).collect::<Vec<_>>());
    let head = Head { cluster: cluster.map.cluster, epoch: cluster.map.epoch, from: INITIATOR };
    cluster.push(Span::ZERO, seeker, Item::Datagram(encode_message(head, &Message::Suspect { id: ids[0] })));
    cluster.run_for(Span::from_micros(200));
    assert!(!cluster.disks[&seeker].contains_key(&ids[0]), "its copy is gone");
    let silent = cluster.targets[&seeker].nowhere().map(|nowhere| nowhere.silent.len());
    assert_eq!(silent, Some(limits::SOUGHT.min(cluster.targets.len() - 1)), "so many that anybody is meant");
}

/// While somebody is silent who may have what is missing, nothing is made; it is said that chunks are at risk.
#[test]
fn what_a_silent_target_has_is_not_made_again() {
    let config = Config { scrub_interval: Span::ZERO, ..Config::default() };
    let (mut cluster, ids) = filled(&config, 200);
    cluster.run_for(INTERVAL.times(3));
    let held = cluster.disks[&NodeId(4)].len() as u64;
    cluster.dead.insert(NodeId(4));
    // If it was a steward, the next in line becomes one.
    cluster.run_for(INTERVAL.times(20));
    let seen_by = |cluster: &Cluster, by: &dyn Fn(NodeId) -> bool| {
        let healths = cluster.targets.iter().filter(|(id, _)| by(**id)).flat_map(|(_, target)| target.health());
        healths.map(|(_, health)| health.lacks.at_risk()).sum::<u64>()
    };
    let alive = |id: NodeId| id != NodeId(4);
    assert_eq!((seen_by(&cluster, &alive), cluster.sent.get("restore")), (held, None));
    assert!(!cluster.targets.iter().filter(|(id, _)| alive(**id)).all(|(_, t)| t.health().all(|(_, h)| h.whole)));
    cluster.dead.remove(&NodeId(4));
    cluster.handle(NodeId(4), None);
    cluster.run_for(INTERVAL.times(20));
    assert_eq!((at_risk(&cluster), is_whole(&cluster), cluster.sent.get("restore")), (0, true, None));
    assert!(ids.iter().all(|id| cluster.holders(id).len() == 3));
    assert_eq!(stewards(&cluster), cluster.map.groups() as usize, "those that stood in have stepped back");
}

/// Whoever told a sum with a copy, and lists none of it a moment later, as his disk does not read it, may hold it again: that there was
/// nothing to do without it is not remembered of the range with it, nor of that which this is a part of. The simulator finds the defect in
/// one seed of 2,000.
#[test]
fn a_copy_that_is_not_there_for_a_moment_is_counted_later() {
    // So many in one part of all ids that it is divided once more.
    let alike = |bytes: &Bytes| ChunkId::of_payload(bytes).bytes()[0] >> 2 == 5;
    let contents: Vec<Bytes> = (0..).map(|n| payload(n, 100)).filter(alike).take(60).collect();
    for (bug, copies) in [(None, 3), (Some(Bug::Steward(steward::Bug::TrustSums)), 1)] {
        let config = Config { scrub_interval: Span::ZERO, ..Config::default() };
        let (mut cluster, ids) = filled_with(&config, map(3, 3), contents.clone(), bug);
        cluster.run_for(INTERVAL.times(3));
        let [first, others @ ..] = &cluster.holders(&ids[7])[..] else { panic!("it was put") };
        let (first, others) = (*first, others.to_vec());
        for other in others {
            let _ = cluster.disks.get_mut(&other).expect("it is there").remove(&ids[7]);
        }
        let _ = cluster.unlisted.insert((first, ids[7]));
        cluster.run_for(INTERVAL.times(3));
        assert_eq!(cluster.holders(&ids[7]), [first], "{bug:?}");
        cluster.unlisted.clear();
        cluster.run_for(INTERVAL.times(8));
        assert_eq!(cluster.holders(&ids[7]).len(), copies, "{bug:?}");
    }
}

/// What nobody has looked at is listed in a few pages, and not part by part, which would be more than twenty questions. Where nothing changes,
/// a sweep is one question to each of a group.
#[test]
fn what_is_whole_is_not_listed_again() {
    let config = Config { scrub_interval: Span::ZERO, ..Config::default() };
    let (mut cluster, _) = filled(&config, 1_500);
    cluster.run_for(INTERVAL.times(5));
    let asked = |cluster: &Cluster| cluster.sent.get("census").copied().unwrap_or(0);
    let before = asked(&cluster);
    cluster.run_for(INTERVAL.times(10));
    let keepers: usize = cluster.map.group_ids().map(|group| cluster.map.keepers(group).len()).sum();
    let swept = asked(&cluster) - before;
    assert!(
        (keepers * 7..keepers * 12).contains(&before) && swept <= keepers * 11,
        "{before} questions, then {swept} to {keepers} keepers"
    );
}

/// Where two are missing, one transmission makes both where the network carries multicast.
#[test]
fn two_copies_that_are_missing_are_made_by_one_transmission() {
    for config in configs() {
        let (mut cluster, ids) = filled(&Config { scrub_interval: Span::ZERO, ..config.clone() }, 60);
        cluster.run_for(INTERVAL.times(3));
        for holder in cluster.holders(&ids[7]).into_iter().take(2) {
            let _ = cluster.disks.get_mut(&holder).expect("it is there").remove(&ids[7]);
        }
        let sent = |cluster: &Cluster| cluster.sent.get("data").copied().unwrap_or(0);
        let (before, written) = (sent(&cluster), cluster.written);
        cluster.run_for(INTERVAL.times(4));
        assert_eq!((cluster.holders(&ids[7]).len(), cluster.written - written), (3, 2), "{config:?}");
        let most = if config.transport.is_common() && config.multicast { 1 } else { 2 };
        assert_eq!(sent(&cluster) - before, most, "{config:?}");
    }
}

/// A newer map by which a group is as it was makes nobody look through all of it again.
#[test]
fn what_is_known_outlasts_a_newer_map() {
    let config = Config { scrub_interval: Span::ZERO, ..Config::default() };
    let (mut cluster, ids) = filled(&config, 1_500);
    cluster.run_for(INTERVAL.times(5));
    let asked = |cluster: &Cluster| cluster.sent.get("census").copied().unwrap_or(0);
    let keepers: usize = cluster.map.group_ids().map(|group| cluster.map.keepers(group).len()).sum();
    let before = asked(&cluster);
    let targets = cluster.map.targets().cloned().collect();
    cluster.map = ClusterMap::new(cluster.map.cluster, Epoch(2), 3, 3, targets).expect("a good map");
    for id in cluster.map.targets().map(|target| target.id).collect::<Vec<_>>() {
        let map = cluster.map.clone();
        cluster.tell(id, Request::Map(map));
    }
    cluster.run_for(INTERVAL.div(2));
    let swept = asked(&cluster) - before;
    assert!(swept <= keepers * 3 / 2 && is_whole(&cluster), "{swept} questions to {keepers} keepers");
    // What is lost then is found all the same.
    let lost = core::mem::take(cluster.disks.get_mut(&NodeId(7)).expect("it is there")).len();
    cluster.run_for(INTERVAL.times(8));
    assert!(lost > 10 && ids.iter().all(|id| cluster.holders(id).len() == 3));
}

/// Who counts slowly is asked for each page more than once, and answers as often.
#[test]
fn a_page_that_comes_twice_counts_once() {
    let config = Config { scrub_interval: Span::ZERO, ..Config::default() };
    let contents = (0..40).map(|n| payload(n, 100)).collect();
    let (mut cluster, _) = filled_with(&config, map(3, 3), contents, None);
    // Versions of one name are in one range that is not divided.
    let versions = (0..70).map(|n| ChunkId::of_manifest("name", n, &[]));
    let versions: Vec<ChunkId> = versions.collect();
    for disk in cluster.disks.values_mut() {
        disk.extend(versions.iter().map(|id| (*id, Bytes::from_static(b"a version"))));
    }
    cluster.counting = config.bid_timeout.times(5).div(2);
    cluster.run_for(INTERVAL.times(10));
    assert!(is_whole(&cluster));
    let asked = |cluster: &Cluster| cluster.sent.get("census").copied().unwrap_or(0);
    let before = asked(&cluster);
    cluster.run_for(INTERVAL.times(10));
    let groups = cluster.map.group_ids().count();
    // Each of three twice, as it does not answer in time.
    let swept = asked(&cluster) - before;
    assert!(swept > 0 && swept <= groups * 3 * 2 * 11, "{swept} questions in ten sweeps of {groups} groups");
}

/// Of a chunk with one copy left another is made before one of a chunk with two, and the copies that there are count.
#[test]
fn those_with_the_fewest_copies_come_first() {
    let config = Config { scrub_interval: Span::ZERO, ..Config::default() };
    let (mut cluster, ids) = filled(&config, 300);
    cluster.run_for(INTERVAL.times(3));
    for lost in [4, 5, 9] {
        cluster.disks.get_mut(&NodeId(lost)).expect("it is there").clear();
    }
    let left = |cluster: &Cluster, copies: usize| ids.iter().filter(|id| cluster.holders(id).len() == copies).count();
    let (none, one, two) = (left(&cluster, 0), left(&cluster, 1), left(&cluster, 2));
    assert!(one > 5 && two > 30, "{one} and {two}");
    let mut most_urgent = one;
    for _ in 0..4_000 {
        cluster.run_for(Span::from_millis(5));
        let (now_one, now_two) = (left(&cluster, 1), left(&cluster, 2));
        // Half of the others may be done before the last of these: each group is by itself.
        assert!(
            now_one <= most_urgent && (now_one == 0 || 2 * now_two >= two),
            "{now_one} of {one}, {now_two} of {two}"
        );
        most_urgent = now_one;
        if left(&cluster, 3) == ids.len() - none {
            break;
        }
    }
    assert_eq!((left(&cluster, 3), left(&cluster, 0)), (ids.len() - none, none));
}

/// What was made again of a disk that was away is too much when that is back.
#[test]
fn copies_beyond_those_that_are_wanted_go_when_nobody_can_need_them() {
    for config in configs() {
        let config = Config { scrub_interval: Span::ZERO, give_up: Span::from_secs(5), ..config };
        let (mut cluster, ids) = filled(&config, 200);
        cluster.run_for(INTERVAL.times(3));
        let away = core::mem::take(cluster.disks.get_mut(&NodeId(4)).expect("it is there"));
        cluster.run_for(INTERVAL.times(8));
        let copies = |cluster: &Cluster| ids.iter().map(|id| cluster.holders(id).len()).sum::<usize>();
        assert_eq!(copies(&cluster), 600, "{config:?}");
        cluster.disks.get_mut(&NodeId(4)).expect("it is there").extend(away);
        let many = copies(&cluster);
        cluster.run_for(config.give_up);
        assert_eq!(copies(&cluster), many, "{config:?}: a list that began before may be under way");
        cluster.run_for(INTERVAL.times(8));
        // Where the hash names who holds a chunk, the same are named again.
        let too_many = many > 600 || config.transport.is_ranked();
        assert!(too_many && copies(&cluster) == 600, "{config:?}: {many}, {}", copies(&cluster));
        assert!(ids.iter().all(|id| cluster.map.goal(cluster.map.redundancy(), &cluster.holders(id)).is_met()));
        assert!(is_whole(&cluster), "{config:?}");
        let asked = |cluster: &Cluster| cluster.sent.get("surplus").copied();
        let before = asked(&cluster);
        cluster.run_for(INTERVAL.times(20));
        assert_eq!(asked(&cluster), before, "{config:?}: nothing is left to do");
    }
}
