//! Puts while one of three servers is down.

use super::*;
use protocol::initiator::Stored;

/// The longest put that finds known who is down.
const SOON: Span = Span::from_millis(10);

fn stored(cluster: &mut Cluster, n: u64, redundancy: Option<Redundancy>) -> (Result<Stored, PutError>, Span) {
    let (began, chunk) = (cluster.now, payload(n, 1_000));
    let id = ChunkId::of_payload(&chunk);
    cluster.request(Request::Put { handle: n, put: ChunkPut { redundancy, ..ChunkPut::new(id, chunk) } });
    let ended = loop {
        assert!(cluster.step(), "nothing is left to happen");
        let put = cluster.events.iter().position(|event| matches!(event, Event::Put { .. }));
        if let Some(put) = put {
            break cluster.events.swap_remove(put);
        }
    };
    let Event::Put { result, .. } = ended else { panic!("{ended:?}") };
    if let Ok(stored) = &result {
        let live: Vec<NodeId> = cluster.holders(&id);
        assert_eq!((&stored.holders, usize::from(stored.copies)), (&live, servers().count_domains(&live)));
    }
    (result, cluster.now.since(began))
}

#[test]
fn two_copies_are_enough_while_the_third_server_is_down_and_only_the_first_put_waits_for_it() {
    for config in configs() {
        let mut cluster = Cluster::of(servers(), &config);
        cluster.dead.extend((1..=3).map(NodeId));
        let (first, took) = stored(&mut cluster, 1, None);
        let first = first.unwrap_or_else(|error| panic!("{config:?}: {error}"));
        assert_eq!((first.copies, first.wanted, first.lacks_copies()), (2, 3, true), "{config:?}");
        assert!(took >= Span::from_secs(2) && took < Span::from_secs(8), "{config:?}: {took}");
        for n in 2..12 {
            let (next, took) = stored(&mut cluster, n, None);
            assert!(next.is_ok_and(|next| next.copies == 2), "{config:?}");
            assert!(took < SOON, "{config:?}: {took}");
        }
        // What is kept twice, or once, lacks nothing.
        for own in [1, 2, 3] {
            let (kept, took) = stored(&mut cluster, 20 + u64::from(own), Redundancy::copies(own));
            assert_eq!(kept.map(|kept| (kept.copies, kept.wanted)), Ok((own.min(2), own)), "{config:?}");
            assert!(took < SOON, "{config:?}: {took}");
        }
        // Who is back is known at once.
        cluster.dead.clear();
        cluster.run_for(config.bid_timeout.times(2));
        let (whole, took) = stored(&mut cluster, 30, None);
        assert!(whole.is_ok_and(|whole| whole.copies == 3) && took < SOON, "{config:?}: {took}");
    }
}

#[test]
fn who_is_down_is_not_waited_for_by_who_counts_on_what_is_there() {
    for config in configs() {
        let mut cluster = Cluster::of(servers(), &config);
        let id = ChunkId::of_payload(&payload(1, 1_000));
        let (put, _) = stored(&mut cluster, 1, None);
        assert!(put.is_ok_and(|put| put.copies == 3), "{config:?}");
        let renew = |cluster: &mut Cluster, copies| {
            let (began, redundancy) = (cluster.now, Redundancy::copies(copies));
            cluster.request(Request::Query { handle: 7, query: Query::Renew { id, redundancy } });
            let events = cluster.run();
            let promised = events.iter().find_map(|event| match event {
                Event::Query { answer: QueryAnswer::Renew(promised), .. } => promised.ok(),
                _ => None,
            });
            (promised, cluster.now.since(began))
        };
        cluster.dead.extend((1..=3).map(NodeId));
        let (promised, took) = renew(&mut cluster, 3);
        assert_eq!(
            (promised, took >= config.bid_timeout),
            (Some(false), true),
            "{config:?}: nobody is known to be down"
        );
        stored(&mut cluster, 2, None).0.unwrap_or_else(|error| panic!("{config:?}: {error}"));
        for (copies, enough) in [(3, false), (2, true)] {
            let (promised, took) = renew(&mut cluster, copies);
            assert_eq!((promised, took < SOON), (Some(enough), true), "{config:?}: {copies} copies, {took}");
        }
        cluster.dead.clear();
        cluster.run_for(config.bid_timeout.times(2));
        let (promised, took) = renew(&mut cluster, 3);
        assert_eq!((promised, took < SOON), (Some(true), true), "{config:?}: {took}");
    }
}

#[test]
fn never_with_fewer_than_the_map_says() {
    for config in configs() {
        for (min, down, enough) in [(3, 3, false), (2, 6, false), (1, 6, true)] {
            let config = Config { give_up: Span::from_secs(20), ..config.clone() };
            let mut cluster = Cluster::of(servers().with_min_copies(min), &config);
            cluster.dead.extend((1..=down).map(NodeId));
            let (put, _) = stored(&mut cluster, 1, None);
            assert_eq!(put.is_ok(), enough, "{config:?}: {min} with {down} down: {put:?}");
            // Of several copies of its own two are made in any case.
            let (own, _) = stored(&mut cluster, 2, Redundancy::copies(2));
            assert_eq!(own.is_ok(), down == 3, "{config:?}: {own:?}");
        }
    }
}

#[test]
fn a_full_server_is_not_a_server_that_is_down() {
    for config in configs() {
        let mut cluster = Cluster::of(servers(), &config);
        for id in (1..=3).map(NodeId) {
            cluster.fill(id);
        }
        let (full, _) = stored(&mut cluster, 1, None);
        assert!(
            matches!(full, Err(PutError::TooFewCopies { ref full, .. }) if !full.is_empty()),
            "{config:?}: {full:?}"
        );
    }
}

#[test]
fn nobody_is_told_that_all_are_down_while_nobody_answers() {
    let config = Config { give_up: Span::from_secs(8), ..configs().remove(0) };
    let mut cluster = Cluster::of(servers(), &config);
    cluster.dead.extend((1..=3).map(NodeId));
    assert!(stored(&mut cluster, 1, None).0.is_ok());
    // A put whose copies are there already, on a cable that is cut.
    cluster.dead.extend((4..=9).map(NodeId));
    let (cut, took) = stored(&mut cluster, 2, None);
    assert!(cut.is_err() && took >= config.give_up, "{took}: {cut:?}");
}

#[test]
fn nobody_waits_for_a_target_that_says_that_it_stops() {
    // By the ranking an initiator is not known to those that it asked nothing.
    for config in configs().into_iter().filter(|config| !config.transport.is_ranked()) {
        let mut cluster = Cluster::of(servers(), &config);
        assert!(stored(&mut cluster, 1, None).0.is_ok_and(|stored| stored.copies == 3), "{config:?}");
        for id in (1..=3).map(NodeId) {
            cluster.stop(id);
        }
        cluster.run_for(Span::from_millis(1));
        for n in 2..6 {
            let (stored, took) = stored(&mut cluster, n, None);
            assert!(stored.is_ok_and(|stored| stored.copies == 2), "{config:?}");
            assert!(took < config.bid_timeout.times(2), "{config:?}: {took}");
        }
        let left: Vec<NodeId> = cluster.targets[&NodeId(4)].left().map(|(node, _)| node).collect();
        assert_eq!(left, [1, 2, 3].map(NodeId));
        // Their first message says that they are back.
        cluster.dead.clear();
        for id in (1..=3).map(NodeId) {
            cluster.tell(id, protocol::target::Request::Presence { here: true });
        }
        cluster.run_for(Span::from_millis(1));
        assert_eq!(cluster.targets[&NodeId(4)].left().count(), 0);
        assert!(stored(&mut cluster, 9, None).0.is_ok_and(|stored| stored.copies == 3), "{config:?}");
    }
}
