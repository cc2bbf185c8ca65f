//! A second holder is asked when the first is late, and whoever is slower is told to stop.

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{ChunkId, Epoch, NodeId, TxnId};
use protocol::initiator::{Event, Initiator, Request};
use protocol::machine::{Completion, Input, Machine, Output};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::time::{Instant, Span};
use protocol::wire::{Answer, Bid, DataHeader, Message, OfferedWindow};

use crate::common::{CLUSTER, INITIATOR, Said, arriving, at, from, hear};

const CHUNK: &[u8] = &[7; 1_000];
const TRANSFER: Span = Span::from_micros(10);

fn initiator(hedge_percent: u8) -> Initiator {
    let targets = (1..=4).map(|n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 }).collect();
    let map = ClusterMap::new(CLUSTER, Epoch(1), 2, 2, targets).expect("a good map");
    Initiator::new(INITIATOR, map, Config { hedge_percent, remember: false, ..Config::default() }, 1)
}

fn bid(initiator: &mut Initiator, now: Instant, txn: TxnId, target: u32, round: u8) -> Said<Event> {
    let done = TRANSFER.times(2);
    let slot = OfferedWindow { start: Span::ZERO, length: done, transfer: TRANSFER, done, rate: 1 << 30, size: 1_000 };
    let bid = Message::Bid(Bid { txn, round, answer: Answer::Window(slot) });
    hear(initiator, now, arriving(from(NodeId(target), &bid)))
}

fn payload(initiator: &mut Initiator, now: Instant, txn: TxnId, target: u32) -> Said<Event> {
    let header = DataHeader { cluster: CLUSTER, from: NodeId(target), txn, offset: 0, size: 1_000 };
    hear(initiator, now, Input::Payload { header, payload: Bytes::from_static(CHUNK), arrived: Instant::FAR })
}

fn ends(initiator: &mut Initiator, now: Instant, sent: Said<Event>) -> NodeId {
    let (op, _) = sent.effects.into_iter().next().expect("all of it is here");
    let sent = hear(initiator, now, Input::Done { op, completion: Completion::Verified(true) });
    let Some(Event::Get { result: Ok(fetched), .. }) = sent.events.into_iter().next() else { panic!("it is good") };
    fetched.from
}

/// A get that target 1 was accepted for, and which 2 offered, too.
fn accepted(initiator: &mut Initiator, now: Instant) -> TxnId {
    let request = Request::Get { handle: 1, id: ChunkId::of_payload(CHUNK), holders: vec![], fragments: None };
    let sent = hear(initiator, now, Input::Request(request));
    let [Message::GetRequest { txn, round: 1, .. }] = sent.messages[..] else { panic!("{:?}", sent.messages) };
    let sent = bid(initiator, now, txn, 1, 1);
    assert!(matches!(&sent.messages[..], [Message::Accept { granted, .. }] if granted[0].target == NodeId(1)));
    assert!(bid(initiator, now, txn, 2, 1).messages.is_empty());
    txn
}

/// After one get that was in time, one that is late: what is asked next, and when.
fn late(initiator: &mut Initiator) -> (TxnId, Instant, Vec<Message>) {
    let txn = accepted(initiator, at(1_000));
    let sent = payload(initiator, at(20_000), txn, 1);
    assert_eq!(ends(initiator, at(20_000), sent), NodeId(1));
    let txn = accepted(initiator, at(1_000_000));
    let Output::Idle(Some(deadline)) = initiator.poll_output() else { panic!("nothing to wait for") };
    let sent = hear(initiator, deadline.at, Input::Wake);
    (txn, deadline.at, sent.messages)
}

#[test]
fn whoever_begins_first_is_received_from_and_the_other_is_stopped() {
    for winner in [1, 2] {
        let mut initiator = initiator(100);
        let (txn, now, asked) = late(&mut initiator);
        assert!(matches!(asked[..], [Message::GetRequest { round: 2, .. }]), "{asked:?}");
        let sent = bid(&mut initiator, now, txn, 2, 2);
        assert!(
            matches!(&sent.messages[..], [Message::Accept { round: 2, granted, .. }] if granted[0].target == NodeId(2))
        );
        let sent = payload(&mut initiator, now, txn, winner);
        let [Message::Accept { round, granted, .. }] = &sent.messages[..] else { panic!("{:?}", sent.messages) };
        assert!(granted.is_empty() && u32::from(*round) == 3 - winner, "the slower one is told to stop");
        assert!(payload(&mut initiator, now, txn, 3 - winner).effects.is_empty(), "it came too late");
        assert_eq!(ends(&mut initiator, now, sent), NodeId(winner));
    }
}

#[test]
fn an_offer_after_the_payload_is_not_accepted() {
    let mut initiator = initiator(100);
    let (txn, now, _) = late(&mut initiator);
    let sent = payload(&mut initiator, now, txn, 1);
    assert_eq!(ends(&mut initiator, now, sent), NodeId(1));
    assert!(bid(&mut initiator, now, txn, 2, 2).messages.is_empty());
}

#[test]
fn without_a_budget_nobody_else_is_asked() {
    for percent in [0, 40] {
        let (_, _, asked) = late(&mut initiator(percent));
        assert!(!asked.iter().any(|message| matches!(message, Message::GetRequest { .. })), "{asked:?}");
    }
}
