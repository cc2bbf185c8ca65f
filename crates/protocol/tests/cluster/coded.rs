//! Chunks that are kept as pieces of a code.

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::coded::{self, Coded};
use protocol::id::{ChunkId, NodeId};
use protocol::initiator::{ChunkPut, Event, GetError, Query, QueryAnswer, Request};
use protocol::redundancy::Redundancy;
use protocol::time::Span;

use super::network::*;
use super::{configs, payload};

/// A chunk, in pieces of `code`, and its bytes.
fn cut(code: &str, seed: u64, len: usize) -> (Coded, Bytes) {
    let (code, bytes) = (code.parse().expect("a code"), payload(seed, len));
    (coded::cut(code, &bytes).expect("it is short"), bytes)
}

/// Who has which piece, in the order of pieces.
fn pieces(cluster: &Cluster, id: &ChunkId) -> Vec<(u8, NodeId)> {
    let held = cluster.disks.iter().flat_map(|(target, disk)| disk.keys().map(move |held| (held, *target)));
    let own = held.filter(|(held, _)| held.whole() == *id);
    let mut own: Vec<(u8, NodeId)> = own.map(|(held, target)| (held.piece().expect("a piece").0, target)).collect();
    own.sort_unstable();
    own
}

fn get(cluster: &mut Cluster, id: ChunkId) -> Result<Bytes, GetError> {
    cluster.request(Request::Get { handle: 7, id, holders: vec![], fragments: None });
    let mut events = cluster.run();
    events.retain(|event| matches!(event, Event::Get { handle: 7, .. }));
    let [Event::Get { result, .. }] = &events[..] else { panic!("{events:?}") };
    result.clone().map(|fetched| fetched.pieces.concat().into())
}

fn put(cluster: &mut Cluster, handle: u64, coded: Coded) {
    cluster.request(Request::Put { handle, put: ChunkPut::coded(coded) });
    let events = cluster.run();
    let is_stored = |event: &Event| matches!(event, Event::Put { result: Ok(_), .. });
    assert!(events.iter().any(is_stored), "{events:?}");
}

#[test]
fn pieces_are_put_apart_and_any_that_are_enough_give_the_chunk_back_with_every_transport() {
    for config in configs() {
        for (code, data, parity) in [("2+1", 2, 1), ("4+2", 4, 2), ("5+3", 5, 3)] {
            let mut cluster = Cluster::new(&config);
            let (chunk, bytes) = cut(code, 3, 100_000);
            let id = chunk.id;
            cluster.request(Request::Put { handle: 1, put: ChunkPut::coded(chunk.clone()) });
            let events = cluster.run();
            let [Event::Put { result: Ok(stored), .. }] = &events[..] else { panic!("{config:?}: {events:?}") };
            assert_eq!((stored.rounds, stored.holders.len()), (1, data + parity), "{config:?}");
            let held = pieces(&cluster, &id);
            assert_eq!(
                held.iter().map(|(n, _)| usize::from(*n)).collect::<Vec<_>>(),
                (0..data + parity).collect::<Vec<_>>()
            );
            let sent = cluster.sent.get("data").copied();
            put(&mut cluster, 2, chunk);
            assert_eq!(cluster.sent.get("data").copied(), sent, "{config:?}: what is there is not sent again");
            assert_eq!(get(&mut cluster, id), Ok(bytes.clone()), "{config:?}");
            // Those of data are lost, so that what is read has to be decoded.
            cluster.dead = held.iter().take(parity).map(|(_, target)| *target).collect();
            assert_eq!(get(&mut cluster, id), Ok(bytes.clone()), "{config:?}");
            cluster.dead.insert(held[data].1);
            assert!(matches!(get(&mut cluster, id), Err(GetError::Unavailable { .. })), "{config:?}");
            cluster.dead.clear();
            assert_eq!(get(&mut cluster, id), Ok(bytes.clone()), "{config:?}");
            let renew = Request::Query { handle: 9, query: Query::Renew { id, redundancy: None } };
            for (lost, (_, holder)) in held.iter().enumerate().take(2) {
                cluster.request(renew.clone());
                let is_whole = |e: &Event| matches!(e, Event::Query { answer: QueryAnswer::Renew(Ok(true)), .. });
                assert_eq!(cluster.run().iter().any(is_whole), lost == 0, "{config:?}");
                let disk = cluster.disks.get_mut(holder).expect("it is there");
                disk.clear();
            }
        }
    }
}

#[test]
fn what_was_never_put_in_pieces_is_not_found() {
    for config in configs() {
        let mut cluster = Cluster::new(&config);
        assert_eq!(get(&mut cluster, cut("4+2", 1, 10_000).0.id), Err(GetError::NotFound), "{config:?}");
    }
}

#[test]
fn a_piece_that_rots_or_is_another_is_replaced_by_one_of_parity() {
    for config in configs() {
        let mut cluster = Cluster::new(&config);
        let (chunk, bytes) = cut("4+2", 5, 40_000);
        let id = chunk.id;
        put(&mut cluster, 1, chunk.clone());
        for (n, other) in [(0, chunk.pieces[1].clone()), (2, payload(9, chunk.pieces[2].len()))] {
            let (_, holder) = pieces(&cluster, &id)[n];
            let disk = cluster.disks.get_mut(&holder).expect("it is there");
            disk.values_mut().for_each(|piece| *piece = other.clone());
        }
        assert_eq!(get(&mut cluster, id), Ok(bytes), "{config:?}");
    }
}

#[test]
fn lost_pieces_are_made_again_with_every_transport() {
    const INTERVAL: Span = Span::from_secs(1);
    for config in configs() {
        let mut cluster = Cluster::new(&Config { census_interval: INTERVAL, ..config.clone() });
        for target in cluster.map.targets().map(|target| target.id).collect::<Vec<_>>() {
            cluster.handle(target, None);
        }
        let chunks: Vec<(Coded, Bytes)> = (0..20).map(|n| cut("4+2", n, 10_000 + n as usize)).collect();
        for (n, (chunk, _)) in (0..).zip(&chunks) {
            put(&mut cluster, n, chunk.clone());
        }
        cluster.run_for(INTERVAL.times(3));
        assert_eq!(cluster.sent.get("restore"), None, "{config:?}");
        for lost in [4, 7] {
            cluster.disks.get_mut(&NodeId(lost)).expect("it is there").clear();
        }
        cluster.run_for(INTERVAL.times(10));
        for (Coded { id, .. }, bytes) in &chunks {
            let held = pieces(&cluster, id);
            assert_eq!(held.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5], "{config:?}: {held:?}");
            let mut holders: Vec<NodeId> = held.iter().map(|(_, holder)| *holder).collect();
            holders.sort_unstable();
            holders.dedup();
            assert_eq!(holders.len(), 6, "{config:?}: {held:?}");
            assert_eq!(get(&mut cluster, *id).as_ref(), Ok(bytes), "{config:?}");
        }
        assert!(cluster.targets.values().flat_map(|target| target.health()).all(|(_, health)| health.whole));
    }
}

#[test]
fn more_pieces_than_there_are_domains_are_refused_by_name() {
    let config = Config { give_up: Span::from_millis(500), ..configs().remove(0) };
    let mut cluster = Cluster::of(map(5, 3), &config);
    cluster.request(Request::Put { handle: 1, put: ChunkPut::coded(cut("4+2", 1, 9_000).0) });
    let events = cluster.run();
    let [Event::Put { result: Err(error), .. }] = &events[..] else { panic!("{events:?}") };
    let code: Redundancy = "4+2".parse().expect("a code");
    assert!(error.to_string().contains(&format!("{} failure domains", code.pieces())), "{error}");
}
