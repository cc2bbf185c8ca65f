//! The choosy initiator by hand: windows that begin too late are given back, a few times.

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{ChunkId, Epoch, NodeId};
use protocol::initiator::{Bug, ChunkPut, Initiator, Request};
use protocol::limits;
use protocol::machine::{Input, Machine, Output};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::time::{Instant, Span};
use protocol::transport::Transport;
use protocol::wire::{Ack, Answer, Bid, Message, OfferedWindow, PutRequest};

use crate::common::{CLUSTER, INITIATOR, arriving, at, from, step};

/// From a request to its bids, and how long a transfer takes.
const ROUND_TRIP: Span = Span::from_micros(100);
const TRANSFER: Span = Span::from_micros(10);
const TARGETS: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

/// One that puts a copy on each of three targets.
fn initiator(config: Config, bug: Option<Bug>) -> Initiator {
    let targets = TARGETS.map(|id| TargetEntry { id, domain: id.0 as u16, capacity: 1 << 30 }).to_vec();
    let map = ClusterMap::new(CLUSTER, Epoch(1), 3, 1, targets).expect("a good map");
    Initiator::new(INITIATOR, map, config, 1).with_bug(bug)
}

fn choosy(transport: Transport) -> Config {
    Config { choosy: true, transport, ..Config::default() }
}

fn requested(messages: &[Message]) -> Option<PutRequest> {
    messages.iter().find_map(|message| match message {
        Message::PutRequest(request) => Some(request.clone()),
        _ => None,
    })
}

fn ask(initiator: &mut Initiator, now: Instant, n: u8) -> PutRequest {
    let payload = Bytes::from(vec![n; 1_000]);
    let request = Request::Put { handle: u64::from(n), put: ChunkPut::new(ChunkId::of_payload(&payload), payload) };
    requested(&step(initiator, now, Input::Request(request)).0).expect("it asks")
}

/// All targets bid for a window that begins `wait` after the moment for which it was asked: how many windows were taken.
fn bid(initiator: &mut Initiator, now: Instant, request: &PutRequest, wait: Span) -> usize {
    let mut granted = None;
    for (n, target) in TARGETS.into_iter().enumerate() {
        // Bids were half a round trip under way; those of Replicast-H may follow each other.
        let start = request.earliest + wait;
        let length = Span::from_millis(1);
        let done = start + TRANSFER.times(2 + n as u64);
        let slot = OfferedWindow { start, length, transfer: TRANSFER, done, rate: 1 << 30, size: 1_000 };
        let bid = Message::Bid(Bid { txn: request.txn, round: request.round, answer: Answer::Window(slot) });
        let messages = step(initiator, now, arriving(from(target, &bid))).0;
        granted = granted.or(messages.into_iter().find_map(|message| match message {
            Message::Accept { granted, .. } => Some(granted.len()),
            _ => None,
        }));
    }
    granted.expect("all have bid")
}

/// Lets time pass until it asks again.
fn asks_again(initiator: &mut Initiator, until: Instant) -> Option<(Instant, PutRequest)> {
    loop {
        let Output::Idle(Some(deadline)) = initiator.poll_output() else { return None };
        if deadline.at > until {
            return None;
        }
        let messages = step(initiator, deadline.at, Input::Wake).0;
        if let Some(request) = requested(&messages) {
            return Some((deadline.at, request));
        }
    }
}

/// A put whose windows begin after `waits`, one for each round: how many windows were taken in each.
fn put(initiator: &mut Initiator, begin: Instant, n: u8, waits: &[Span]) -> (Instant, Vec<usize>) {
    let mut request = ask(initiator, begin, n);
    let (mut now, mut taken) = (begin, Vec::new());
    for wait in waits {
        now += ROUND_TRIP;
        taken.push(bid(initiator, now, &request, *wait));
        if taken.last() == Some(&0) {
            (now, request) = asks_again(initiator, now + Span::from_secs(1)).expect("it asks again");
        }
    }
    let done = now + waits.last().copied().unwrap_or_default() + Span::from_millis(1);
    while let Output::Idle(Some(deadline)) = initiator.poll_output() {
        if deadline.at > done {
            break;
        }
        step(initiator, deadline.at, Input::Wake);
    }
    for target in TARGETS {
        step(initiator, done, arriving(from(target, &Message::Ack { txn: request.txn, ack: Ack::Durable })));
    }
    (done, taken)
}

#[test]
fn late_windows_are_given_back_and_good_ones_taken() {
    for transport in [Transport::REPLICAST_M, Transport::REPLICAST_H] {
        let mut initiator = initiator(choosy(transport), None);
        let (late, good) = (ROUND_TRIP.times(20), ROUND_TRIP);
        let (_, taken) = put(&mut initiator, at(0), 1, &[late, good]);
        assert_eq!(taken, [0, 3], "{transport:?}");
    }
}

#[test]
fn it_gives_in() {
    let mut initiator = initiator(choosy(Transport::REPLICAST_M), None);
    let late = Span::from_millis(100);
    let waits = vec![late; usize::from(limits::CANCELS) + 1];
    let (_, taken) = put(&mut initiator, at(0), 1, &waits);
    assert_eq!(taken.last(), Some(&3));
    assert_eq!(taken.iter().filter(|taken| **taken == 0).count(), usize::from(limits::CANCELS), "{taken:?}");
}

/// The first put doubles; what others waited is averaged in, so that the same wait is soon no longer too late, and
/// becomes so again when waits have been short for a while.
#[test]
fn the_wait_follows_the_load() {
    let mut initiator = initiator(choosy(Transport::REPLICAST_M), None);
    let (long, short) = (ROUND_TRIP.times(20), Span::ZERO);
    let (mut now, mut n) = (at(0), 0);
    let mut put = |waits: &[Span]| {
        n += 1;
        let (done, taken) = put(&mut initiator, now, n, waits);
        now = done;
        taken
    };
    assert_eq!(put(&[long, long, long, long]), [0, 0, 0, 3]);
    assert_eq!(put(&[long]), [3]);
    for _ in 0..10 {
        assert_eq!(put(&[short]), [3]);
    }
    assert_eq!(put(&[long, short]), [0, 3]);
}

#[test]
fn without_the_switch_any_window_is_taken() {
    let mut initiator = initiator(Config::default(), None);
    assert_eq!(put(&mut initiator, at(0), 1, &[Span::from_millis(100)]).1, [3]);
}

#[test]
fn one_that_is_never_content_is_content_with_nothing() {
    let mut initiator = initiator(choosy(Transport::REPLICAST_M), Some(Bug::NeverContent));
    let mut request = ask(&mut initiator, at(0), 1);
    let mut now = at(0);
    for _ in 0..3 * limits::CANCELS {
        now += ROUND_TRIP;
        assert_eq!(bid(&mut initiator, now, &request, Span::ZERO), 0);
        (now, request) = asks_again(&mut initiator, now + Span::from_secs(1)).expect("it asks again");
    }
}
