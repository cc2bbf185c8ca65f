//! What a target tells of a copy's course, for metrics and for those who check it.

use bytes::Bytes;
use protocol::id::{ChunkId, TxnId};
use protocol::machine::{Completion, Effect, IgnoredReason, Input, ReadFailure, WriteFailure};
use protocol::target::{Event, Target};
use protocol::time::{Instant, Span};
use protocol::wire::{DataHeader, Granted, Message, OfferedWindow};

use crate::common::{self, CLUSTER, INITIATOR, arriving, at, from, hear, put, step, target, tell, window};

const SIZE: u32 = 100_000;

fn payload() -> Bytes {
    Bytes::from(vec![5; SIZE as usize])
}

fn accept<R>(offset: Span) -> Input<R> {
    let granted = vec![Granted { target: protocol::id::NodeId(1), offset }];
    arriving(from(INITIATOR, &Message::Accept { txn: TxnId(1), round: 1, granted: granted.into() }))
}

fn data<R>(offset: u32, len: u32) -> Input<R> {
    let header = DataHeader { cluster: CLUSTER, from: INITIATOR, txn: TxnId(1), offset, size: SIZE };
    let piece = payload().slice(offset as usize..(offset + len) as usize);
    arriving(Bytes::from([&header.encode()[..], &piece].concat()))
}

/// An offer for the chunk.
fn offered(target: &mut Target) -> OfferedWindow {
    window(&tell(target, at(10), &put(1, 1, ChunkId::of_payload(&payload()), SIZE), None).0)
}

fn end(slot: &OfferedWindow) -> Instant {
    at(10) + slot.start + slot.transfer
}

#[test]
fn a_copy_that_comes_in_time_tells_its_course() {
    let failures = [WriteFailure::NoSpace, WriteFailure::Exhausted, WriteFailure::Disk].map(|why| (Err(why), false));
    for (result, stored) in std::iter::once((Ok(()), true)).chain(failures) {
        let (mut target, id) = (target(), ChunkId::of_payload(&payload()));
        let slot = offered(&mut target);
        let events = hear(&mut target, at(20), accept(Span::ZERO)).events;
        assert_eq!(events, [Event::Accepted { id, start: at(10) + slot.start, length: slot.transfer }]);
        let events = hear(&mut target, at(1_010) + slot.start, data(0, 50_000)).events;
        assert_eq!(events, [Event::Started { late_nanos: 1_000 }]);
        let sent = hear(&mut target, end(&slot), data(50_000, 50_000));
        assert_eq!(sent.events, []);
        let [(op, Effect::Write { .. })] = sent.effects[..] else { panic!("{:?}", sent.effects) };
        let now = end(&slot) + Span::from_micros(7);
        let events =
            hear(&mut target, now, Input::Done { op, completion: Completion::Written { result, free: 1 << 30 } })
                .events;
        let wanted = Event::Stored { id, bytes: SIZE, took: Span::from_micros(7) };
        assert_eq!(events.contains(&wanted), stored, "{events:?}");
        assert_eq!(events.contains(&Event::DiskFailed), result == Err(WriteFailure::Disk), "{events:?}");
        let (pong, _) = step(&mut target, now, arriving(from(INITIATOR, &Message::Ping { txn: TxnId(9) })));
        assert!(matches!(pong[..], [Message::Pong { chunks, .. }] if chunks == u64::from(stored)), "{pong:?}");
    }
}

#[test]
fn a_copy_that_comes_late_says_by_how_much() {
    let mut target = target();
    let slot = offered(&mut target);
    step(&mut target, at(20), accept(Span::ZERO));
    let late = end(&slot) + Span::from_micros(3);
    let events = hear(&mut target, late, data(0, SIZE)).events;
    assert!(events.contains(&Event::Overrun { by: Span::from_micros(3) }), "{events:?}");
}

#[test]
fn a_copy_of_which_nothing_comes_is_asked_for_and_given_up() {
    let (mut target, id) = (target(), ChunkId::of_payload(&payload()));
    offered(&mut target);
    step(&mut target, at(20), accept(Span::ZERO));
    let (mut now, mut asked) = (at(20), 0);
    while target.in_progress() > 0 {
        now += Span::from_millis(1);
        let sent = hear(&mut target, now, Input::Wake);
        let repairs = sent.messages.iter().filter(|message| matches!(message, Message::Repair(_))).count();
        assert_eq!(sent.events.iter().filter(|event| **event == Event::RepairAsked).count(), repairs);
        asked += repairs;
        assert_eq!(sent.events.contains(&Event::Released { id }), target.in_progress() == 0, "{:?}", sent.events);
        assert!(now < Instant::ZERO + Span::from_secs(60), "it is never given up");
    }
    assert_eq!(asked, 6);
}

#[test]
fn an_offer_that_nobody_accepts_expires() {
    let mut target = target();
    offered(&mut target);
    let events = hear(&mut target, at(10) + Span::from_secs(1), Input::Wake).events;
    assert_eq!((events, target.in_progress()), (vec![Event::Expired], 0));
    // An acceptance of a round that is over takes nothing.
    let mut target = common::target();
    offered(&mut target);
    tell(&mut target, at(11), &put(1, 2, ChunkId::of_payload(&payload()), SIZE), None);
    assert_eq!(hear(&mut target, at(12), accept(Span::ZERO)).events, [Event::Ignored(IgnoredReason::Late)]);
}

#[test]
fn while_the_disk_writes_nothing_more_is_asked_for() {
    let mut target = target();
    let slot = offered(&mut target);
    step(&mut target, at(20), accept(Span::ZERO));
    let (_, effects) = step(&mut target, end(&slot), data(0, SIZE));
    let [(op, Effect::Write { .. })] = effects[..] else { panic!("{effects:?}") };
    for second in 1..100 {
        let sent = hear(&mut target, at(10) + Span::from_secs(second), Input::Wake);
        assert_eq!((sent.messages, sent.events), (vec![], vec![]), "after {second} s");
    }
    let completion = Completion::Written { result: Ok(()), free: 1 << 30 };
    let (messages, _) = step(&mut target, at(10) + Span::from_secs(100), Input::Done { op, completion });
    assert!(matches!(messages[..], [Message::Ack { ack: protocol::wire::Ack::Durable, .. }]), "{messages:?}");
}

#[test]
fn a_copy_that_cannot_be_read_is_let_go() {
    for failure in [ReadFailure::Missing, ReadFailure::Corrupt, ReadFailure::Disk] {
        let (mut target, id) = (target(), ChunkId::of_payload(&payload()));
        window(&tell(&mut target, at(1), &common::get(1, 1, id), Some(SIZE)).0);
        let (_, effects) = step(&mut target, at(2), common::get_accepted(1, 1));
        let [(op, Effect::Read { .. })] = effects[..] else { panic!("{effects:?}") };
        step(&mut target, at(3), Input::Done { op, completion: Completion::Read(Err(failure)) });
        assert_eq!(target.in_progress(), 0, "{failure:?}");
    }
}
