//! Whom an initiator waits for, and for how long.

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{ChunkId, Epoch, NodeId, TxnId};
use protocol::initiator::{ChunkPut, Initiator, Request};
use protocol::machine::{Input, Machine, Output};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::time::{Instant, Span};
use protocol::wire::{Answer, Bid, Message, OfferedWindow};

use crate::common::{CLUSTER, INITIATOR, arriving, at, from, step};

/// One that puts two copies on two of four targets.
fn initiator() -> Initiator {
    let targets = (1..=4).map(|n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 }).collect();
    let map = ClusterMap::new(CLUSTER, Epoch(1), 2, 2, targets).expect("a good map");
    Initiator::new(INITIATOR, map, Config::default(), 1)
}

/// Asks for bids for a chunk of its own.
fn ask(initiator: &mut Initiator, now: Instant, n: u8) -> TxnId {
    let payload = Bytes::from(vec![n; 1_000]);
    let request = Request::Put { handle: u64::from(n), put: ChunkPut::new(ChunkId::of_payload(&payload), payload) };
    let (messages, _) = step(initiator, now, Input::Request(request));
    let [Message::PutRequest(request)] = &messages[..] else { panic!("{messages:?}") };
    request.txn
}

/// Hands over a bid of a window that lies behind all patience, of a copy on disk `times` as long from now: whom that made
/// the initiator accept.
fn bid(initiator: &mut Initiator, now: Instant, txn: TxnId, target: u32, times: u64) -> Option<Vec<u32>> {
    let (start, transfer) = (Config::default().bid_timeout.times(2), Span::from_micros(10));
    let slot =
        OfferedWindow { start, length: transfer, transfer, done: start.times(times), rate: 1 << 30, size: 1_000 };
    let bid = Message::Bid(Bid { txn, round: 1, answer: Answer::Window(slot) });
    accepted(step(initiator, now, arriving(from(NodeId(target), &bid))).0)
}

fn accepted(messages: Vec<Message>) -> Option<Vec<u32>> {
    messages.into_iter().find_map(|message| match message {
        Message::Accept { granted, .. } => Some(granted.iter().map(|g| g.target.0).collect()),
        _ => None,
    })
}

/// Lets time pass to the next deadline.
fn wait(initiator: &mut Initiator) -> (Instant, Vec<Message>) {
    let Output::Idle(Some(deadline)) = initiator.poll_output() else { panic!("nothing to wait for") };
    (deadline.at, step(initiator, deadline.at, Input::Wake).0)
}

const FAST: u64 = 2;
const SLOW: u64 = 20;

#[test]
fn one_silence_in_many_puts_is_one_silence() {
    let mut initiator = initiator();
    let txns: Vec<TxnId> = (0..2).map(|n| ask(&mut initiator, at(0), n)).collect();
    for txn in txns {
        bid(&mut initiator, at(20_000), txn, 1, FAST);
        bid(&mut initiator, at(20_000), txn, 2, SLOW);
    }
    let mut choices = Vec::new();
    let mut now = at(20_000);
    while choices.len() < 2 {
        let (at, messages) = wait(&mut initiator);
        now = at;
        choices.extend(messages.into_iter().filter_map(|message| accepted(vec![message])));
    }
    assert!(choices.iter().all(|chosen| *chosen == [1]), "others may still bid: {choices:?}");
    // They were silent once, not twice: they are waited for again, and the slow one is not taken in their place.
    let txn = ask(&mut initiator, now, 5);
    assert_eq!(bid(&mut initiator, now, txn, 1, FAST), None);
    assert_eq!(bid(&mut initiator, now, txn, 2, SLOW), None);
    assert_eq!(bid(&mut initiator, now, txn, 3, FAST), None);
    let chosen = bid(&mut initiator, now, txn, 4, FAST).expect("all have answered");
    assert!(!chosen.contains(&2), "{chosen:?}");
}

#[test]
fn bids_that_are_read_late_are_all_read_before_the_choice() {
    let mut initiator = initiator();
    let txn = ask(&mut initiator, at(0), 0);
    // This process did not run for a while: every deadline is over.
    let late = at(0) + Config::default().bid_timeout.times(2);
    assert_eq!(bid(&mut initiator, late, txn, 2, SLOW), None);
    assert_eq!(bid(&mut initiator, late, txn, 1, FAST), None);
    assert_eq!(bid(&mut initiator, late, txn, 3, FAST), None);
    let (messages, _) = step(&mut initiator, late, Input::Wake);
    let mut chosen = accepted(messages).expect("patience is over");
    chosen.sort_unstable();
    assert_eq!(chosen, [1, 3]);
}

#[test]
fn bids_that_wait_for_each_other_offer_one_window() {
    let accept = |arrived: fn(Instant) -> Instant| {
        let mut initiator = initiator();
        let txn = ask(&mut initiator, at(0), 0);
        // All came at once; this process needs longer for each than a transfer takes.
        (1..=4_u64).find_map(|n| {
            let now = at(100_000 + 50_000 * n);
            let transfer = Span::from_micros(10);
            let (start, done) = (Span::from_millis(1), Span::from_millis(2));
            let slot = OfferedWindow { start, length: transfer, transfer, done, rate: 1 << 30, size: 1_000 };
            let bid = Message::Bid(Bid { txn, round: 1, answer: Answer::Window(slot) });
            let input = Input::Datagram { bytes: from(NodeId(n as u32), &bid), arrived: arrived(now) };
            step(&mut initiator, now, input).0.into_iter().find_map(|message| match message {
                Message::Accept { granted, .. } => Some(granted.iter().map(|g| g.offset).collect::<Vec<_>>()),
                _ => None,
            })
        })
    };
    assert_eq!(accept(|_| at(100_000)), Some(vec![Span::ZERO; 2]), "two copies, one window");
    let others = accept(|now| now).expect("three offers, two copies");
    assert_ne!(others, [Span::ZERO; 2], "or they would not have come at once");
}

#[test]
fn a_quick_bid_of_where_a_copy_is_already_does_not_make_the_others_slow() {
    let entry = |(n, domain)| TargetEntry { id: NodeId(n), domain, capacity: 1 << 30 };
    let targets = [(1, 1), (2, 1), (3, 2), (4, 3)].map(entry).to_vec();
    let map = ClusterMap::new(CLUSTER, Epoch(1), 2, 4, targets).expect("a good map");
    let mut initiator = Initiator::new(INITIATOR, map, Config::default(), 1);
    let txn = ask(&mut initiator, at(0), 1);
    let held = Message::Bid(Bid { txn, round: 1, answer: Answer::HaveIt });
    step(&mut initiator, at(10_000), arriving(from(NodeId(1), &held)));
    assert_eq!(bid(&mut initiator, at(10_000), txn, 2, FAST), None);
    assert_eq!(bid(&mut initiator, at(10_000), txn, 3, SLOW), None);
    // Target 4 says nothing.
    let chosen = (0..10).find_map(|_| accepted(wait(&mut initiator).1));
    assert_eq!(chosen, Some(vec![3]), "it is the only one that can have the second copy");
}
