//! How a messenger's pool shares connections among workers.

use proptest::prelude::*;
use protocol::messenger::{ConnectionId, Done, Move, Policy, Pool, Refused};
use protocol::time::{Instant, Span};

const MILLISECOND: u64 = 1_000_000;

fn id(number: usize) -> ConnectionId {
    ConnectionId(number as u64)
}

fn time(nanos: u64) -> Done {
    Done { bytes: 0, time: Span::from_nanos(nanos) }
}

fn bytes(bytes: u64) -> Done {
    Done { bytes, time: Span::ZERO }
}

fn pool(policy: Policy, workers: usize, connections: usize) -> Pool {
    let mut pool = Pool::new(policy, workers);
    (0..connections).for_each(|n| assert!(pool.open(id(n)).unwrap() < workers));
    pool
}

/// A period in which each connection had so much done; what moves at its end.
fn period(pool: &mut Pool, now: &mut Instant, done: &[Done]) -> Vec<Move> {
    done.iter().enumerate().for_each(|(n, done)| pool.record(*now, id(n), *done));
    match pool.deadline() {
        Some(deadline) => {
            assert!(pool.balance(*now).is_empty(), "before the deadline nothing happens");
            *now = deadline;
            pool.balance(deadline)
        }
        None => Vec::new(),
    }
}

fn sorted(mut loads: Vec<u64>) -> Vec<u64> {
    loads.sort_unstable_by(|a, b| b.cmp(a));
    loads
}

#[test]
fn new_connections_go_where_the_policy_says() {
    let at = |policy| {
        let mut pool = pool(policy, 3, 6);
        pool.close(id(1));
        pool.close(id(4));
        (6..8).map(|n| pool.open(id(n)).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(at(Policy::RoundRobin), [0, 1]);
    assert_eq!(at(Policy::Bytes), [0, 1]);
    assert_eq!(at(Policy::Fewest), [1, 1]);
    assert_eq!(at(Policy::Work), [1, 1]);
}

#[test]
fn a_new_connection_goes_to_the_worker_that_works_least() {
    let mut pool = pool(Policy::Work, 3, 3);
    let mut now = Instant::ZERO;
    period(&mut pool, &mut now, &[time(MILLISECOND), time(MILLISECOND), time(MILLISECOND / 10)]);
    assert_eq!(pool.open(id(3)), Ok(2));
}

#[test]
fn a_number_is_not_used_twice_and_connections_have_a_bound() {
    let mut pool = pool(Policy::Work, 4, 1 << 16);
    assert_eq!(pool.open(id(7)), Err(Refused::Open(id(7))));
    assert_eq!(pool.open(id(1 << 16)), Err(Refused::Full));
    pool.close(id(7));
    assert!(pool.open(id(7)).is_ok());
    assert_eq!(pool.worker(id(1 << 16)), None);
    // What is done for one that is not open counts for nothing, and closing it changes nothing.
    pool.record(Instant::ZERO, id(1 << 16), time(MILLISECOND));
    pool.close(id(1 << 16));
    assert_eq!(pool.deadline(), None);
}

#[test]
fn idle_connections_wake_nobody() {
    for policy in Policy::NAMED.map(|named| named.policy) {
        let mut pool = pool(policy, 4, 10_000);
        assert_eq!(pool.deadline(), None, "{policy}");
        let mut now = Instant::ZERO;
        pool.record(now, id(3), Done { bytes: 1 << 20, time: Span::from_millis(50) });
        assert_eq!(pool.deadline(), policy.period().map(|period| now + period), "{policy}");
        // What is expected of it fades away, and with it the wakes.
        let wakes = std::iter::from_fn(|| {
            now = pool.deadline()?;
            pool.balance(now);
            Some(now)
        });
        assert!(wakes.take(200).count() < 100, "{policy}");
    }
}

/// The paper's rule: the most and the least loaded worker must differ by more than half of the most, and of the
/// connections there the one that evens out best moves, one each 5 s.
#[test]
fn the_papers_balancer_moves_one_connection_each_5_s() {
    let mut pool = pool(Policy::Bytes, 2, 6);
    let mut now = Instant::ZERO;
    // Worker 0 has connections 0, 2 and 4.
    let done = [bytes(50), bytes(5), bytes(30), bytes(5), bytes(20), bytes(0)];
    let moves = period(&mut pool, &mut now, &done);
    assert_eq!(moves, [Move { connection: id(0), from: 0, to: 1 }]);
    assert_eq!(now, Instant::ZERO + Span::from_secs(5));
    assert_eq!(period(&mut pool, &mut now, &done), [], "60 and 50 differ by less than half");
}

#[test]
fn the_papers_balancer_sees_nothing_of_reads_and_ours_does() {
    let done = [time(MILLISECOND * 40), time(0), time(MILLISECOND * 40), time(0)];
    let mut now = Instant::ZERO;
    let mut papers = pool(Policy::Bytes, 2, 4);
    assert_eq!(period(&mut papers, &mut now, &done), []);
    let mut ours = pool(Policy::Work, 2, 4);
    let first: Vec<Move> = (0..3).flat_map(|_| period(&mut ours, &mut now, &done)).collect();
    assert_eq!(first, [Move { connection: id(0), from: 0, to: 1 }]);
    assert!(now <= Instant::ZERO + Span::from_millis(300), "{now}");
}

#[test]
fn a_connection_that_fills_a_worker_stays_and_the_others_leave_it() {
    let mut pool = pool(Policy::Work, 2, 6);
    let mut now = Instant::ZERO;
    let done = [80, 5, 10, 5, 10, 5].map(|ms| time(ms * MILLISECOND));
    let moves: usize = (0..100).map(|_| period(&mut pool, &mut now, &done).len()).sum();
    assert_eq!(moves, 2);
    assert_eq!(pool.worker(id(0)), Some(0));
    assert!((1..6).all(|n| pool.worker(id(n)) == Some(1)), "{:?}", pool.loads());
}

#[test]
fn a_late_driver_does_not_take_long_work_for_much() {
    let mut pool = pool(Policy::Work, 1, 1);
    pool.record(Instant::ZERO, id(0), time(1_000 * MILLISECOND));
    pool.balance(Instant::ZERO + Span::from_secs(10));
    // A tenth of the time, and one new value in four.
    assert_eq!(pool.loads(), [10 * MILLISECOND / 4]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Nothing moves to and fro: on a steady load moves come to an end, each of them relieves the more loaded of its workers,
    /// and none makes the most loaded worker worse.
    #[test]
    fn on_a_steady_load_moves_come_to_an_end(
        workers in 1_usize..20,
        done in prop::collection::vec((0_u64..100 * MILLISECOND, 0_u64..1 << 30), 1..80),
        policy in prop::sample::select(vec![Policy::Bytes, Policy::Work]),
    ) {
        let mut pool = pool(policy, workers, done.len());
        let done: Vec<Done> = done.into_iter().map(|(t, bytes)| Done { bytes, time: Span::from_nanos(t) }).collect();
        let mut now = Instant::ZERO;
        let mut last = 0;
        for n in 0..400 {
            let moves = period(&mut pool, &mut now, &done);
            if !moves.is_empty() {
                last = n;
            }
            // Undone from the last to the first, each must have been worse before it.
            let mut loads = pool.loads();
            for Move { connection, from, to } in moves.into_iter().rev() {
                prop_assert_eq!(pool.worker(connection), Some(to));
                let (mut earlier, weight) = (loads.clone(), weight(&pool, connection));
                earlier[from] += weight;
                earlier[to] -= weight;
                prop_assert!(loads[from].max(loads[to]) < earlier[from], "{:?} {:?}", earlier, loads);
                prop_assert!(sorted(loads) < sorted(earlier.clone()), "{:?}", earlier);
                loads = earlier;
            }
        }
        prop_assert!(last < 300, "still moving in period {}", last);
    }

    /// Whatever comes, `work` moves a connection at most once a second, and loads are those of the connections.
    #[test]
    fn no_connection_moves_twice_in_a_second(
        workers in 2_usize..8,
        loads in prop::collection::vec(prop::collection::vec(0_u64..100 * MILLISECOND, 12), 1..60),
    ) {
        let mut pool = pool(Policy::Work, workers, 12);
        let mut now = Instant::ZERO;
        let mut moved = [None; 12];
        for done in loads {
            let done: Vec<Done> = done.into_iter().map(time).collect();
            for Move { connection, from, to } in period(&mut pool, &mut now, &done) {
                prop_assert!(from != to && to < workers);
                let before = moved[connection.0 as usize].replace(now);
                prop_assert!(before.is_none_or(|before| now.since(before) >= Span::from_secs(1)));
            }
        }
        (0..12).for_each(|n| pool.close(id(n)));
        prop_assert!(pool.loads().iter().all(|load| *load == 0), "{:?}", pool.loads());
    }
}

/// What a connection is expected to need: what goes when it is closed.
fn weight(pool: &Pool, connection: ConnectionId) -> u64 {
    let mut without = pool.clone();
    without.close(connection);
    pool.loads().iter().sum::<u64>() - without.loads().iter().sum::<u64>()
}
