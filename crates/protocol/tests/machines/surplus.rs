//! When a target lets a copy go that is one too many.

use protocol::id::{ChunkId, Epoch, NodeId, TxnId};
use protocol::machine::{Completion, Effect, Input, WriteFailure};
use protocol::redundancy::Wanted;
use protocol::target::{Event, Target};
use protocol::wire::{Ack, Head, Message, encode_message};

use crate::common::{CLUSTER, arriving, at, hear, step, target};

const STEWARD: NodeId = NodeId(2);

fn sent(epoch: u32, message: &Message) -> Input<protocol::target::Request> {
    arriving(encode_message(Head { cluster: CLUSTER, epoch: Epoch(epoch), from: STEWARD }, message))
}

fn surplus(id: ChunkId, note: Option<u64>) -> Message {
    Message::Surplus { txn: TxnId(9), id, wanted: Wanted::BY_MAP, note }
}

/// The moment that a target notes.
fn note(target: &mut Target, id: ChunkId) -> u64 {
    let (answer, effects) = step(target, at(2), sent(1, &surplus(id, None)));
    let ([Message::Noted { txn: TxnId(9), note }], []) = (&answer[..], &effects[..]) else { panic!("{answer:?}") };
    *note
}

/// After which number nothing must have been promised.
fn judged(target: &mut Target, message: &Message) -> (protocol::id::OpId, u32) {
    let (_, effects) = step(target, at(2), sent(1, message));
    let [(op, Effect::Discard { mark, since, .. })] = effects[..] else { panic!("{effects:?}") };
    assert_eq!(mark, since, "it goes at once");
    (op, mark)
}

#[test]
fn a_copy_stays_that_was_promised_since() {
    let (mut target, id) = (target(), ChunkId::of_payload(b"x"));
    let promise = |target: &mut Target| {
        let probe = Message::Probe { txn: TxnId(3), id, wanted: Wanted::BY_MAP };
        let (_, effects) = step(target, at(2), sent(1, &probe));
        let [(_, Effect::Lookup { promise: Some(promise), .. })] = effects[..] else { panic!("{effects:?}") };
        promise.mark
    };
    let before = promise(&mut target);
    let noted = note(&mut target, id);
    let after = promise(&mut target);
    let (_, mark) = judged(&mut target, &surplus(id, Some(noted)));
    assert!(before < mark && after >= mark, "{before}, {mark}, {after}");
    // What another asks for to be noted changes nothing about it.
    let again = note(&mut target, id);
    assert!(again > noted);
    assert_eq!(judged(&mut target, &surplus(id, Some(noted))).1, mark);
}

#[test]
fn what_was_noted_in_another_life_or_under_another_map_counts_for_nothing() {
    let (mut target, id) = (target(), ChunkId::of_payload(b"x"));
    let noted = note(&mut target, id);
    let (answer, effects) = step(&mut target, at(3), sent(1, &surplus(id, Some(noted ^ 1 << 40))));
    assert_eq!((&answer[..], effects.len()), (&[Message::Ack { txn: TxnId(9), ack: Ack::Durable }][..], 0));
    for message in [surplus(id, None), surplus(id, Some(noted))] {
        let said = hear(&mut target, at(4), sent(0, &message));
        assert!(said.messages.is_empty() && said.effects.is_empty(), "{:?}", said.messages);
    }
}

#[test]
fn a_target_says_whether_the_copy_went() {
    for (dropped, result, ack) in
        [(0, Ok(()), Ack::Durable), (1, Ok(()), Ack::Unknown), (0, Err(WriteFailure::NoSpace), Ack::Durable)]
    {
        let (mut target, id) = (target(), ChunkId::of_payload(b"x"));
        let noted = note(&mut target, id);
        let (op, _) = judged(&mut target, &surplus(id, Some(noted)));
        let completion = Completion::Discarded { dropped, bytes: 64, result };
        let said = hear(&mut target, at(3), Input::Done { op, completion });
        assert_eq!(said.messages, [Message::Ack { txn: TxnId(9), ack }]);
        let went = said.events.contains(&Event::LetGo { id, bytes: 64 });
        assert_eq!(went, dropped > 0, "{:?}", said.events);
    }
}
