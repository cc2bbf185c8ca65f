//! Who takes whom for silent.

use std::collections::{BTreeMap, BTreeSet};

use protocol::config::Config;
use protocol::id::{ClusterId, Epoch, NodeId};
use protocol::machine::{Body, Destination, Input, Machine, Output};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::target::{Setup, Target};
use protocol::time::{Instant, Span};
use protocol::wire::{Message, decode_message};

use crate::common::{self, from, hear, step};

const INTERVAL: Span = Span::from_secs(1);

fn target(id: u32, map: &ClusterMap) -> Target {
    let setup = Setup { id: NodeId(id), map: map.clone(), free: 1 << 30, chunks: 0, seed: id.into(), bug: None };
    Target::new(setup, Config { watch_interval: INTERVAL, scrub_interval: Span::ZERO, ..Config::default() })
}

fn map(targets: u32, a_domain: u32) -> ClusterMap {
    let entry = |n: u32| TargetEntry { id: NodeId(n), domain: (n / a_domain) as u16, capacity: 1 << 30 };
    ClusterMap::new(ClusterId(1), Epoch(1), 3, 3, (0..targets).map(entry).collect()).expect("a good map")
}

#[test]
fn each_target_has_a_few_witnesses_in_different_domains_and_each_watches_as_many() {
    for (targets, a_domain) in [(9, 1), (9, 3), (90, 10), (400, 2)] {
        let map = map(targets, a_domain);
        let domains = (targets / a_domain) as usize;
        let mut witnesses: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        let mut most = 0;
        for id in map.targets().map(|target| target.id) {
            let mut target = target(id.0, &map);
            step(&mut target, Instant::ZERO, Input::Wake);
            most = most.max(target.watched().count());
            target.watched().for_each(|watched| witnesses.entry(watched).or_default().push(id));
        }
        assert_eq!(witnesses.len() as u32, targets, "{targets} in domains of {a_domain}");
        assert!(most <= 16, "{targets} in domains of {a_domain}: {most}");
        for (id, witnesses) in witnesses {
            let of: BTreeSet<u16> = witnesses.iter().filter_map(|witness| map.domain(*witness)).collect();
            assert_eq!((witnesses.len(), of.len()), (4.min(domains - 1), 4.min(domains - 1)), "{id}: {witnesses:?}");
            assert!(map.domain(id).is_some_and(|own| !of.contains(&own)), "{id} is watched by its own domain");
        }
    }
}

/// Lets the target ask, and answers for all but these.
fn tick(target: &mut Target, seconds: u64, dead: &[NodeId]) {
    target.handle_input(Instant::ZERO + Span::from_secs(seconds), Input::Wake);
    let mut asked = Vec::new();
    loop {
        match target.poll_output() {
            Output::Transmit(transmit) => {
                let (Destination::Node(to), Body::Control(message)) = (transmit.to, transmit.body) else { continue };
                if let Some((_, Message::Ping { txn })) = decode_message(&message) {
                    asked.push((to, txn));
                }
            }
            Output::Idle(_) => break,
            _ => {}
        }
    }
    for (to, txn) in asked.into_iter().filter(|(to, _)| !dead.contains(to)) {
        let pong = from(to, &Message::Pong { txn, free: 0, chunks: 0 });
        let said = hear(target, Instant::ZERO + Span::from_secs(seconds), common::arriving(pong));
        assert!(said.events.is_empty(), "{:?}", said.events);
    }
}

#[test]
fn who_answers_nothing_for_three_intervals_is_silent_until_he_answers() {
    let map = map(9, 1);
    let mut target = target(1, &map);
    tick(&mut target, 0, &[]);
    let dead: Vec<NodeId> = target.watched().take(1).collect();
    tick(&mut target, 1, &dead);
    tick(&mut target, 2, &dead);
    assert_eq!(target.silent().count(), 0);
    tick(&mut target, 3, &dead);
    assert_eq!(target.silent().collect::<Vec<_>>(), [(dead[0], Instant::ZERO + Span::from_secs(1))]);
    tick(&mut target, 4, &[]);
    assert_eq!(target.silent().count(), 0);
}

#[test]
fn who_said_that_he_stops_is_not_silent_for_as_long_as_a_restart_may_take() {
    for (map, within) in [(map(9, 1), 120), (map(9, 1).with_restart_within(Span::from_secs(20)), 20)] {
        let mut target = target(1, &map);
        tick(&mut target, 0, &[]);
        let gone: Vec<NodeId> = target.watched().take(1).collect();
        let stops = from(gone[0], &Message::Presence { here: false });
        hear(&mut target, Instant::ZERO, common::arriving(stops));
        (1..within).for_each(|second| tick(&mut target, second, &gone));
        assert_eq!(target.silent().count(), 0, "{within}");
        tick(&mut target, within, &gone);
        assert_eq!(target.silent().map(|(id, _)| id).collect::<Vec<_>>(), gone, "{within}");
    }
}
