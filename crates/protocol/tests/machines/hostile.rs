//! Authentic but hostile or confused peers: what each of these once did to a machine must not happen again.

use bytes::Bytes;
use protocol::id::{ChunkId, NodeId, TxnId};
use protocol::initiator::{self, Query};
use protocol::machine::{Completion, Effect, Input};
use protocol::redundancy::Wanted;
use protocol::time::Span;
use protocol::wire::{Ack, Answer, Bid, DataHeader, Granted, Message, OfferedWindow};

use crate::common::{CLUSTER, INITIATOR, arriving, at, from, initiator, put, step, target, tell, window};

#[test]
fn a_transaction_number_that_is_used_again_does_not_make_another_chunk_durable() {
    let mut target = target();
    let (stored, other) = (Bytes::from_static(b"stored"), ChunkId::of_payload(b"never stored"));
    let id = ChunkId::of_payload(&stored);
    tell(&mut target, at(1), &put(9, 1, id, 6), None);
    let header = DataHeader { cluster: CLUSTER, from: INITIATOR, txn: TxnId(9), offset: 0, size: 6 };
    let datagram = Bytes::from([&header.encode()[..], &stored].concat());
    let (_, effects) = step(&mut target, at(2), arriving(datagram));
    let [(op, Effect::Write { .. })] = effects[..] else { panic!("{effects:?}") };
    let completion = Completion::Written { result: Ok(()), free: 1 << 30 };
    let (messages, _) = step(&mut target, at(3), Input::Done { op, completion });
    assert_eq!(messages, [Message::Ack { txn: TxnId(9), ack: Ack::Durable }]);
    let (messages, _) =
        tell(&mut target, at(4), &Message::Probe { txn: TxnId(9), id: other, wanted: Wanted::BY_MAP }, None);
    assert_eq!(messages, [Message::Ack { txn: TxnId(9), ack: Ack::Unknown }]);
    window(&tell(&mut target, at(5), &put(9, 2, other, 6), None).0);
}

#[test]
fn an_acceptance_behind_its_window_leaves_the_calendar_whole() {
    let mut target = target();
    let slot = window(&tell(&mut target, at(0), &put(1, 1, ChunkId::of_payload(b"a"), 1_000), None).0);
    let granted = vec![Granted { target: NodeId(1), offset: Span::from_millis(4_000) }];
    tell(&mut target, at(0), &Message::Accept { txn: TxnId(1), round: 1, granted: granted.into() }, None);
    // It does not fit before the end of that window, and is offered the time from there or earlier.
    let next = window(&tell(&mut target, at(0), &put(2, 1, ChunkId::of_payload(b"b"), 1 << 20), None).0);
    assert!(next.start <= slot.length, "{next:?} after {slot:?}");
}

#[test]
fn an_impatient_reader_has_one_read_under_way() {
    let mut target = target();
    let id = ChunkId::of_payload(b"x");
    let mut reads = 0;
    for round in 1..=100 {
        let get = Message::GetRequest { txn: TxnId(1), round, id, unreserved: round % 2 == 0, earliest: Span::ZERO };
        tell(&mut target, at(round.into()), &get, Some(8 << 20));
        let granted = vec![Granted { target: NodeId(1), offset: Span::ZERO }];
        let accept = Message::Accept { txn: TxnId(1), round, granted: granted.into() };
        reads += tell(&mut target, at(round.into()), &accept, None).1.len();
    }
    assert_eq!(reads, 1);
}

#[test]
fn offers_that_take_no_time_leave_the_initiators_calendar_whole() {
    let mut initiator = initiator();
    let mut txns = Vec::new();
    for handle in 0..3 {
        let id = ChunkId::of_payload(&[handle as u8]);
        let (messages, _) = step(
            &mut initiator,
            at(0),
            Input::Request(initiator::Request::Get { handle, id, holders: vec![], fragments: None }),
        );
        let [Message::GetRequest { txn, .. }] = messages[..] else { panic!("{messages:?}") };
        txns.push(txn);
    }
    // The second transfer does not fit before the moment at which the first one, of no length, was put.
    for (txn, start, transfer) in [(txns[0], 50_000, 0), (txns[1], 0, 60_000), (txns[2], 0, 60_000)] {
        let [start, transfer] = [start, transfer].map(Span::from_nanos);
        let slot = OfferedWindow { start, length: transfer, transfer, done: start + transfer, rate: 1, size: 1 };
        let bid = Message::Bid(Bid { txn, round: 1, answer: Answer::Window(slot) });
        let (messages, _) = step(&mut initiator, at(0), arriving(from(NodeId(1), &bid)));
        assert!(matches!(messages[..], [Message::Accept { .. }]), "{messages:?}");
    }
}

#[test]
fn a_list_without_end_ends() {
    let mut initiator = initiator();
    let list = initiator::Request::Query { handle: 1, query: Query::List { prefix: Vec::new() } };
    let (messages, _) = step(&mut initiator, at(0), Input::Request(list));
    let [Message::List { txn, .. }, ..] = messages[..] else { panic!("{messages:?}") };
    for n in 0..10_000_u64 {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        let ids = vec![ChunkId::from_parts(protocol::id::ChunkKind::Payload, bytes)];
        let now = at(n * 10_000_000);
        step(&mut initiator, now, arriving(from(NodeId(1), &Message::Listed { txn, ids, more: true })));
        step(&mut initiator, now, Input::Wake);
        if initiator.in_progress() == 0 {
            return;
        }
    }
    panic!("still asking after {}", Span::from_nanos(10_000 * 10_000_000));
}
