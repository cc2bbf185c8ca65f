//! What a machine answers, and what it makes of answers.

mod common;

use bytes::Bytes;
use common::{CLUSTER, INITIATOR, at, from, get, get_accepted, hear, put, step, target, tell, window};
use protocol::id::{ChunkId, TxnId};
use protocol::machine::{Completion, Effect, Input, ReadFailure, WriteFailure};
use protocol::target::{Event, Target};
use protocol::time::Span;
use protocol::wire::{Ack, Answer, Bid, DataHeader, Message};

const PAYLOAD: &[u8] = b"stored";

/// One round of a put, to the end of the write.
fn put_round(target: &mut Target, round: u8, result: Result<(), WriteFailure>) -> Vec<Event> {
    window(&tell(target, at(10), &put(1, round, ChunkId::of_payload(PAYLOAD), 6), None).0);
    let header = DataHeader { cluster: CLUSTER, from: INITIATOR, txn: TxnId(1), offset: 0, size: 6 };
    let datagram = Bytes::from([&header.encode()[..], PAYLOAD].concat());
    let (_, effects) = step(target, at(10), Input::Datagram(datagram));
    let [(op, Effect::Write { .. })] = effects[..] else { panic!("{effects:?}") };
    hear(target, at(10), Input::Done { op, completion: Completion::Written { result, free: 1 << 30 } }).events
}

#[test]
fn a_probe_tells_the_fate_of_the_last_round() {
    let mut target = target();
    let id = ChunkId::of_payload(PAYLOAD);
    let probe = Message::Probe { txn: TxnId(1), id };
    let ack = |ack| [Message::Ack { txn: TxnId(1), ack }];
    put_round(&mut target, 1, Err(WriteFailure::NoSpace));
    assert_eq!(tell(&mut target, at(11), &probe, None).0, ack(Ack::NoSpace));
    window(&tell(&mut target, at(12), &put(1, 2, id, 6), None).0);
    let (messages, _) = tell(&mut target, at(13), &probe, None);
    assert!(matches!(messages[..], [Message::Repair(_)]), "payload is waited for: {messages:?}");
    let mut target = common::target();
    put_round(&mut target, 1, Err(WriteFailure::NoSpace));
    put_round(&mut target, 2, Ok(()));
    assert_eq!(tell(&mut target, at(14), &probe, Some(6)).0, ack(Ack::Durable));
}

#[test]
fn a_copy_that_was_read_damaged_is_scrubbed_and_only_then_called_dropped() {
    let mut target = target();
    let id = ChunkId::of_payload(b"rotten");
    tell(&mut target, at(1), &get(1, 1, id), Some(6));
    let (_, effects) = step(&mut target, at(2), get_accepted(1, 1));
    let [(op, Effect::Read { .. })] = effects[..] else { panic!("{effects:?}") };
    let completion = Completion::Read(Err(ReadFailure::Corrupt));
    let said = hear(&mut target, at(3), Input::Done { op, completion });
    assert!(!said.events.iter().any(|event| matches!(event, Event::Corrupt { .. })), "{:?}", said.events);
    let [(op, Effect::Scrub { after: Some(after), max_bytes: 1 })] = said.effects[..] else {
        panic!("{:?}", said.effects)
    };
    assert!(after < id, "the scrub begins behind the copy");
    let completion = Completion::Scrubbed { next: Some(id), bytes: 0, bad: vec![id] };
    let said = hear(&mut target, at(4), Input::Done { op, completion });
    assert_eq!(said.events, [Event::Corrupt { id }]);
}

#[test]
fn a_disk_that_failed_takes_nothing_more_but_serves() {
    let mut target = target();
    let (kept, other) = (ChunkId::of_payload(b"kept"), ChunkId::of_payload(b"other"));
    assert!(put_round(&mut target, 1, Err(WriteFailure::Disk)).contains(&Event::DiskFailed));
    for found in [None, Some(4)] {
        let (messages, _) = tell(&mut target, at(11), &put(2, 1, other, 5), found);
        assert!(matches!(messages[..], [Message::Bid(Bid { answer: Answer::NoSpace, .. })]), "{messages:?}");
    }
    let (messages, _) = tell(&mut target, at(12), &Message::Ping { txn: TxnId(3) }, None);
    assert!(matches!(messages[..], [Message::Pong { free: 0, .. }]), "{messages:?}");
    window(&tell(&mut target, at(13), &get(4, 1, kept), Some(4)).0);
}

#[test]
fn the_same_request_gets_the_same_answer_as_it_stands_then() {
    let id = ChunkId::of_payload(b"x");
    for (request, found) in [(put(1, 1, id, 1 << 20), None), (get(1, 1, id), Some(1 << 20))] {
        let mut target = target();
        // Behind another window, so that it begins later.
        window(&tell(&mut target, at(0), &put(2, 1, ChunkId::of_payload(b"y"), 1 << 20), None).0);
        window(&tell(&mut target, at(0), &get(3, 1, ChunkId::of_payload(b"z")), Some(1 << 20)).0);
        let first = window(&tell(&mut target, at(0), &request, found).0);
        let again = window(&tell(&mut target, at(1_000), &request, found).0);
        assert!(first.start > Span::from_nanos(1_000), "{first:?}");
        assert_eq!(again.start + Span::from_nanos(1_000), first.start);
        assert_eq!((again.length, again.transfer, again.rate), (first.length, first.transfer, first.rate));
        let late = first.start + Span::from_nanos(1_000);
        let last = window(&tell(&mut target, at(late.as_nanos()), &request, found).0);
        assert_eq!((last.start, last.length + Span::from_nanos(1_000)), (Span::ZERO, first.length));
    }
}

fn is_busy(messages: &[Message]) -> bool {
    matches!(messages, [Message::Bid(Bid { answer: Answer::Busy(_), .. })])
}

#[test]
fn whoever_cannot_be_served_now_is_told_so() {
    let mut target = target();
    let id = ChunkId::of_payload(PAYLOAD);
    window(&tell(&mut target, at(10), &put(1, 255, id, 6), None).0);
    let header = DataHeader { cluster: CLUSTER, from: INITIATOR, txn: TxnId(1), offset: 0, size: 6 };
    let datagram = Bytes::from([&header.encode()[..], PAYLOAD].concat());
    let (_, effects) = step(&mut target, at(10), Input::Datagram(datagram));
    assert!(matches!(effects[..], [(_, Effect::Write { .. })]), "{effects:?}");
    // The copy is being written; the rounds have begun again at 0.
    assert!(is_busy(&tell(&mut target, at(11), &put(1, 0, id, 6), None).0));
    assert!(tell(&mut target, at(11), &put(1, 254, id, 6), None).0.is_empty());
    for txn in 2..2_000 {
        step(&mut target, at(12), Input::Datagram(from(INITIATOR, &put(txn, 1, id, 6))));
    }
    for request in [put(2_000, 1, id, 6), get(2_000, 1, id)] {
        assert!(is_busy(&step(&mut target, at(13), Input::Datagram(from(INITIATOR, &request))).0));
    }
}
