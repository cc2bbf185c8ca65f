//! Whole conversations on a perfect network with a fixed delay: the machines alone, without a driver's tricks.

mod coded;
mod fewer;
mod level;
mod network;
mod restore;

use std::collections::BTreeSet;

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{ChunkId, ClusterId, Epoch, NodeId};
use protocol::initiator::{Bug, ChunkPut, Event, GetError, Initiator, PutError, Query, QueryAnswer, Request};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::redundancy::{Redundancy, Wanted};
use protocol::time::Span;
use protocol::transport::{Carriage, Selection, Transport};

use network::*;

fn payload(seed: u64, len: usize) -> Bytes {
    let mut rng = protocol::rng::Rng::new(seed);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

fn configs() -> Vec<Config> {
    let base = Config { scrub_interval: Span::ZERO, ..Config::default() };
    vec![
        Config { transport: Transport::REPLICAST_M, ..base.clone() },
        Config { transport: Transport::REPLICAST_M, multicast: false, ..base.clone() },
        Config { transport: Transport::REPLICAST_H, ..base.clone() },
        Config { transport: Transport::REPLICAST_H, multicast: false, ..base.clone() },
        Config { transport: Transport::LEADER, ..base.clone() },
        Config { transport: Transport::LEADER, lead_gets: true, ..base.clone() },
        Config { transport: Transport::LEADER, multicast: false, ..base.clone() },
        Config { transport: Transport::HASH, ..base.clone() },
        Config { transport: Transport { reserved: true, ..Transport::HASH }, ..base.clone() },
        Config { transport: Transport { selection: Selection::Ranked, ..Transport::REPLICAST_M }, ..base.clone() },
        Config { transport: Transport { carriage: Carriage::Consecutive, ..Transport::LEADER }, ..base.clone() },
        Config { transport: Transport::REPLICAST_M, depth: 1, ..base.clone() },
        Config { transport: Transport::REPLICAST_H, depth: 1, ..base.clone() },
        Config { transport: Transport::HASH, depth: 1, ..base },
    ]
}

#[test]
fn what_is_put_comes_back_with_every_transport() {
    for config in configs() {
        let mut cluster = Cluster::new(&config);
        let chunks: Vec<Bytes> = [1, 100, 16 << 10, 128 << 10, 1 << 20].map(|n| payload(n as u64, n)).to_vec();
        for (handle, chunk) in chunks.iter().enumerate() {
            cluster.put(handle as u64, chunk.clone());
        }
        for event in cluster.run() {
            let Event::Put { handle, result: Ok(stored) } = event else { panic!("{config:?}: {event:?}") };
            assert_eq!(stored.holders.len(), 3, "{config:?}");
            assert!(config.depth > 1 || stored.rounds == 1, "{config:?}: {} rounds", stored.rounds);
            assert_eq!(stored.holders, cluster.holders(&ChunkId::of_payload(&chunks[handle as usize])));
        }
        for (handle, chunk) in chunks.iter().enumerate() {
            cluster.request(Request::Get {
                handle: handle as u64,
                id: ChunkId::of_payload(chunk),
                holders: vec![],
                fragments: None,
            });
        }
        for event in cluster.run() {
            let Event::Get { handle, result: Ok(fetched) } = event else { panic!("{config:?}: {event:?}") };
            assert_eq!(fetched.pieces.concat(), chunks[handle as usize]);
        }
        assert_eq!(cluster.sent.get("repair"), None, "{config:?}: {:?}", cluster.sent);
    }
}

/// Each with as many copies as were asked for, whatever the map has; more than share a multicast address go in several
/// transmissions.
#[test]
fn chunks_are_kept_as_each_was_asked_for() {
    for config in configs() {
        for copies in [2, 3] {
            let mut cluster = Cluster::of(map(9, copies), &config);
            for own in [1, 2, 3] {
                let (handle, chunk) = (u64::from(own), payload(u64::from(own), 100_000));
                let (id, redundancy) = (ChunkId::of_payload(&chunk), Redundancy::copies(own));
                cluster.request(Request::Put { handle, put: ChunkPut { redundancy, ..ChunkPut::new(id, chunk) } });
                for event in cluster.run() {
                    let Event::Put { result: Ok(stored), .. } = event else { panic!("{config:?}: {event:?}") };
                    assert_eq!(stored.holders.len(), usize::from(own), "{config:?}");
                    // A leader knows nobody's state at first.
                    let led = config.transport.selection == Selection::Leader;
                    assert!(led || stored.rounds == 1, "{config:?}: {} rounds", stored.rounds);
                    assert_eq!(stored.holders, cluster.holders(&id));
                }
                for asked in [1, 2, 3] {
                    let renew =
                        Request::Query { handle, query: Query::Renew { id, redundancy: Redundancy::copies(asked) } };
                    cluster.request(renew);
                    let is_promised =
                        |event: &Event| matches!(event, Event::Query { answer: QueryAnswer::Renew(Ok(true)), .. });
                    assert_eq!(cluster.run().iter().any(is_promised), asked <= own, "{config:?}: {own} for {asked}");
                }
            }
            assert_eq!(cluster.sent.get("repair"), None, "{config:?}: {:?}", cluster.sent);
        }
    }
}

#[test]
fn negotiated_gets_come_one_after_the_other() {
    for config in configs().into_iter().filter(|config| config.transport != Transport::HASH) {
        let mut cluster = Cluster::new(&config);
        let chunks: Vec<Bytes> = (0..12).map(|n| payload(n, 1 << 20)).collect();
        for (handle, chunk) in chunks.iter().enumerate() {
            cluster.put(handle as u64, chunk.clone());
        }
        cluster.run();
        for (handle, chunk) in chunks.iter().enumerate() {
            cluster.request(Request::Get {
                handle: handle as u64,
                id: ChunkId::of_payload(chunk),
                holders: vec![],
                fragments: None,
            });
        }
        cluster.run();
        // A transfer takes several quanta; those of two never mix, or the port would get more than it can take.
        assert!(cluster.fetched.len() > 2 * chunks.len());
        cluster.fetched.dedup();
        assert_eq!(cluster.fetched.len(), chunks.len(), "{config:?}");
    }
}

#[test]
fn a_get_outlasts_a_cut_cable_but_not_dead_holders() {
    for config in configs() {
        let mut cluster = Cluster::new(&config);
        let chunk = payload(4, 1_000);
        let id = ChunkId::of_payload(&chunk);
        cluster.put(1, chunk);
        cluster.run();
        let holders = cluster.holders(&id);
        // How long a get lasts when these are silent.
        let mut lasts = |dead: Vec<NodeId>| {
            cluster.dead = dead.into_iter().collect();
            let begin = cluster.now;
            cluster.request(Request::Get { handle: 2, id, holders: vec![], fragments: None });
            let events = cluster.run();
            let unavailable = matches!(&events[..], [Event::Get { result: Err(GetError::Unavailable { .. }), .. }]);
            assert!(unavailable, "{config:?}: {events:?}");
            cluster.now.since(begin)
        };
        assert!(lasts((1..=9).map(NodeId).collect()) >= config.give_up, "{config:?}: the cable could not be healed");
        assert!(lasts(holders) < config.give_up, "{config:?}: waited for dead holders");
    }
}

#[test]
fn a_chunk_with_only_damaged_copies_is_not_called_not_found() {
    for (config, rot) in configs().into_iter().flat_map(|c| [(c.clone(), Rot::Found), (c, Rot::Sent)]) {
        let mut cluster = Cluster::new(&config);
        let chunk = payload(4, 1_000);
        let id = ChunkId::of_payload(&chunk);
        cluster.put(1, chunk);
        cluster.run();
        let holders = cluster.holders(&id);
        cluster.rot = Some(rot);
        if rot == Rot::Sent {
            let disks = cluster.disks.values_mut();
            disks.filter_map(|disk| disk.get_mut(&id)).for_each(|copy| *copy = payload(5, 1_000));
        }
        let begin = cluster.now;
        cluster.request(Request::Get { handle: 2, id, holders: vec![], fragments: None });
        let mut events = cluster.run();
        events.retain(|event| !matches!(event, Event::CorruptCopy { .. }));
        let [Event::Get { result: Err(GetError::Unavailable { silent, corrupt }), .. }] = &events[..] else {
            panic!("{config:?}, {rot:?}: {events:?}")
        };
        assert_eq!((silent.as_slice(), corrupt), (&[][..], &holders), "{config:?}, {rot:?}");
        assert!(cluster.now.since(begin) < config.give_up, "{config:?}, {rot:?}");
    }
}

#[test]
fn two_dead_targets_hinder_nothing() {
    for config in configs() {
        let mut cluster = Cluster::new(&config);
        cluster.dead.extend([NodeId(2), NodeId(7)]);
        for n in 0..40 {
            let chunk = payload(n, 5_000);
            cluster.put(n, chunk);
        }
        for event in cluster.run() {
            let Event::Put { result: Ok(stored), .. } = event else { panic!("{config:?}: {event:?}") };
            assert!(stored.holders.iter().all(|n| !cluster.dead.contains(n)));
        }
    }
}

#[test]
fn a_chunk_that_is_there_is_not_sent_again() {
    for config in configs() {
        let mut cluster = Cluster::new(&config);
        let chunk = payload(3, 20_000);
        cluster.put(1, chunk.clone());
        cluster.run();
        let sent = cluster.sent.get("data").copied();
        cluster.put(2, chunk);
        let events = cluster.run();
        assert!(matches!(&events[..], [Event::Put { result: Ok(s), .. }] if s.holders.len() == 3));
        assert_eq!(cluster.sent.get("data").copied(), sent, "{config:?}");
    }
}

#[test]
fn what_was_never_put_is_not_found() {
    for config in configs() {
        let mut cluster = Cluster::new(&config);
        cluster.request(Request::Get {
            handle: 1,
            id: ChunkId::of_payload(b"nobody has this"),
            holders: vec![],
            fragments: None,
        });
        let events = cluster.run();
        assert!(matches!(&events[..], [Event::Get { result: Err(GetError::NotFound), .. }]), "{config:?}: {events:?}");
    }
}

#[test]
fn too_few_live_targets_fail_with_names() {
    let config = Config { give_up: Span::from_millis(500), ..configs().remove(0) };
    let mut cluster = Cluster::new(&config);
    cluster.dead.extend((1..=7).map(NodeId));
    let chunk = payload(1, 1_000);
    cluster.put(1, chunk);
    let events = cluster.run();
    let [Event::Put { result: Err(PutError::TooFewCopies { have, silent, .. }), .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert!(have.len() <= 2 && silent.len() >= 7, "{have:?} {silent:?}");
}

/// Three servers of three targets each: targets 1, 2 and 3 are on the first.
fn servers() -> ClusterMap {
    let entry = |n| TargetEntry { id: NodeId(n), domain: (n as u16 - 1) / 3, capacity: 1 << 30 };
    ClusterMap::new(ClusterId(7), Epoch(1), 3, 3, (1..=9).map(entry).collect()).expect("a good map")
}

#[test]
fn a_put_that_lacks_a_failure_domain_says_so_soon() {
    // By the ranking one silent target after the other is tried.
    for config in configs().into_iter().filter(|config| !config.transport.is_ranked()) {
        let mut cluster = Cluster::of(servers(), &config);
        cluster.dead.extend((1..=6).map(NodeId));
        // The second finds known what the first waited for.
        for (n, limit) in [(1, Span::from_secs(10)), (2, Span::from_secs(1))] {
            let (began, chunk) = (cluster.now, payload(n, 1_000));
            cluster.put(n, chunk);
            let events = cluster.run();
            let Some(Event::Put { result: Err(error), .. }) = events.iter().find(|e| matches!(e, Event::Put { .. }))
            else {
                panic!("{config:?}: {events:?}")
            };
            let PutError::TooFewCopies { have, domains, possible: 1, silent, .. } = error else { panic!("{error:?}") };
            assert_eq!(servers().count_domains(have), *domains, "{have:?}");
            assert!(!silent.is_empty() && silent.iter().all(|id| id.0 <= 6), "{config:?}: {silent:?}");
            let says = "copies are needed in 3 failure domains, or 2 while others are down, durable in ";
            assert!(error.to_string().starts_with(says), "{error}");
            assert!(cluster.now.since(began) <= limit, "{config:?}: {}", cluster.now.since(began));
        }
        cluster.dead.clear();
        let chunk = payload(3, 1_000);
        cluster.put(3, chunk);
        let events = cluster.run();
        assert!(events.iter().any(|e| matches!(e, Event::Put { result: Ok(_), .. })), "{config:?}: {events:?}");
    }
}

/// Copies that are there already, two of them on one server.
#[test]
fn copies_of_one_domain_count_once() {
    let put = |bug, renew| {
        let mut cluster = Cluster::of(servers(), &configs()[0]);
        cluster.initiator = Initiator::new(INITIATOR, servers(), configs().remove(0), 42).with_bug(bug);
        let (chunk, handle) = (payload(1, 1_000), 1);
        let id = ChunkId::of_payload(&chunk);
        for holder in [1, 2, 4].map(NodeId) {
            cluster.disks.entry(holder).or_default().insert(id, chunk.clone());
        }
        cluster.request(if renew {
            Request::Query { handle, query: Query::Renew { id, redundancy: None } }
        } else {
            Request::Put { handle, put: ChunkPut::new(id, chunk) }
        });
        cluster.run()
    };
    let holders = |events: Vec<Event>| {
        let stored = events.into_iter().find_map(|event| match event {
            Event::Put { result, .. } => result.ok(),
            _ => None,
        });
        stored.expect("stored").holders
    };
    assert_eq!(servers().count_domains(&holders(put(None, false))), 3);
    let wrong = Some(Bug::IgnoreDomains);
    assert!(servers().count_domains(&holders(put(wrong, false))) < 3, "the planted defect does nothing");
    let renewed = |events: Vec<Event>| {
        events.iter().any(|e| matches!(e, Event::Query { answer: QueryAnswer::Renew(Ok(true)), .. }))
    };
    assert!(!renewed(put(None, true)) && renewed(put(wrong, true)));
}

#[test]
fn lists_merge_what_many_hold_page_by_page() {
    let mut cluster = Cluster::new(&configs()[0]);
    let mut ids = BTreeSet::new();
    for n in 0..200 {
        let chunk = payload(n, 64);
        ids.insert(ChunkId::of_payload(&chunk));
        cluster.put(n, chunk);
    }
    cluster.run();
    cluster.request(Request::Query { handle: 1, query: Query::List { prefix: vec![0] } });
    let events = cluster.run();
    let [Event::Query { answer: QueryAnswer::List(Ok(found)), .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(found.chunks.iter().map(|(id, _)| *id).collect::<BTreeSet<_>>(), ids);
    assert!(found.chunks.iter().all(|(_, by)| by.len() == 3) && found.silent.is_empty());
}

#[test]
fn control_messages_of_a_put_stay_below_128_bytes() {
    use protocol::wire::{
        Answer, Bid, Granted, Head, Message, OfferedWindow, Purpose, PutRequest, TAG, encode_message,
    };
    let head = Head { cluster: ClusterId(1), epoch: Epoch(1), from: NodeId(1) };
    let span = Span::from_micros(5);
    let txn = protocol::id::TxnId(1);
    let slot = OfferedWindow { start: span, length: span, transfer: span, done: span, rate: 1, size: 1 };
    let granted = (1..=3).map(|n| Granted { target: NodeId(n), offset: span }).collect();
    let request = PutRequest {
        txn,
        round: 1,
        id: ChunkId::of_payload(b"x"),
        size: 1,
        group: protocol::id::GroupId(0),
        earliest: span,
        stretch: 140,
        unreserved: false,
        wanted: Wanted::BY_MAP,
        purpose: Purpose::Store,
        busy: protocol::wire::BusyWindows::new(),
    };
    for message in [
        Message::PutRequest(request),
        Message::Bid(Bid { txn, round: 1, answer: Answer::Window(slot) }),
        Message::Accept { txn, round: 1, granted },
    ] {
        let length = encode_message(head, &message).len() + TAG;
        assert!(length <= 128, "{} takes {length} bytes", message.name());
    }
}
