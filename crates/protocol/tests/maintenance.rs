//! What targets put for lost copies has what clients leave of a target, and a share of it in any case.

mod common;

use bytes::Bytes;
use common::{CLUSTER, INITIATOR, arriving, at, from, hear, put, step, target, tell, window};
use protocol::id::{ChunkId, NodeId, OpId, TxnId};
use protocol::machine::{Completion, Effect, Input};
use protocol::redundancy::Wanted;
use protocol::target::Target;
use protocol::time::{Instant, Span};
use protocol::wire::{Ack, Answer, Bid, DataHeader, Granted, Message, OfferedWindow, PutRequest};

const SIZE: u32 = 1 << 18;

fn id(txn: u64) -> ChunkId {
    ChunkId::of_payload(&txn.to_le_bytes())
}

fn client(txn: u64, earliest: Span) -> Message {
    let Message::PutRequest(request) = put(txn, 1, id(txn), SIZE) else { unreachable!("it is a request") };
    Message::PutRequest(PutRequest { earliest, ..request })
}

fn maintenance(txn: u64, earliest: Span, urgent: bool) -> Message {
    let Message::PutRequest(request) = client(txn, earliest) else { unreachable!("it is a request") };
    Message::PutRequest(PutRequest { restores: true, urgent, ..request })
}

/// The initiator takes the whole of what it was offered.
fn accept(target: &mut Target, now: Instant, txn: u64) -> Vec<Message> {
    let granted = vec![Granted { target: NodeId(1), offset: Span::ZERO }].into();
    let message = Message::Accept { txn: TxnId(txn), round: 1, granted };
    common::step(target, now, arriving(from(INITIATOR, &message))).0
}

/// Two of maintenance are offered windows behind each other, from `earliest` on, and a client asks for the same time. What the first of
/// them was offered, what the client is, and what is said besides.
fn beside(target: &mut Target, now: Instant, txn: u64, urgent: bool) -> (OfferedWindow, OfferedWindow, Vec<Message>) {
    let earliest = Span::from_millis(1);
    let offered = window(&tell(target, now, &maintenance(txn, earliest, urgent), None).0);
    window(&tell(target, now, &maintenance(txn + 1, earliest, urgent), None).0);
    let (mut said, _) = tell(target, now, &client(txn + 2, offered.start), None);
    let bid = said.pop().expect("it answers");
    common::step(target, now, arriving(from(INITIATOR, &common::refused(txn, 1))));
    common::step(target, now, arriving(from(INITIATOR, &common::refused(txn + 1, 1))));
    common::step(target, now, arriving(from(INITIATOR, &common::refused(txn + 2, 1))));
    (offered, window(&[bid]), said)
}

/// One that was just served like a client.
fn after_the_floor() -> (Target, Instant) {
    let (mut target, now) = (target(), at(1_000_000));
    window(&tell(&mut target, now, &maintenance(1, Span::ZERO, false), None).0);
    accept(&mut target, now, 1);
    (target, now)
}

#[test]
fn a_client_has_the_window_that_maintenance_was_offered() {
    let (mut target, now) = after_the_floor();
    let (maintenance, client, said) = beside(&mut target, now, 2, false);
    assert_eq!(client.start, maintenance.start);
    assert!(matches!(said[..], [Message::Bid(Bid { txn: TxnId(2), answer: Answer::Busy(_), .. })]), "{said:?}");
}

#[test]
fn a_client_waits_for_less_than_half_of_one_of_maintenance() {
    let said = |percent| {
        let (mut target, now) = after_the_floor();
        let offered = window(&tell(&mut target, now, &maintenance(2, Span::from_millis(1), false), None).0);
        let earliest = offered.start + offered.transfer.percent(percent);
        let (mut said, _) = tell(&mut target, now, &client(3, earliest), None);
        let start = window(&[said.pop().expect("it answers")]).start;
        let end = offered.start + offered.length.min(offered.transfer.percent(105));
        assert_eq!(start, if said.is_empty() { end } else { earliest }, "{said:?}");
        said
    };
    assert_eq!(said(60), []);
    assert!(matches!(said(40)[..], [Message::Bid(Bid { txn: TxnId(2), answer: Answer::Busy(_), .. })]));
}

#[test]
fn the_last_copy_keeps_its_window() {
    let (mut target, now) = after_the_floor();
    let (urgent, client, said) = beside(&mut target, now, 2, true);
    assert!(said.is_empty(), "{said:?}");
    assert!(client.start >= urgent.start + urgent.transfer, "{client:?}");
}

#[test]
fn what_was_accepted_and_has_not_begun_goes_back_too() {
    let (mut target, now) = after_the_floor();
    let lead = Span::from_micros(100);
    let first = window(&tell(&mut target, now, &maintenance(6, lead, false), None).0);
    window(&tell(&mut target, now, &maintenance(7, lead, false), None).0);
    accept(&mut target, now, 6);
    accept(&mut target, now, 7);
    let (said, _) = tell(&mut target, now, &client(8, first.start), None);
    assert!(said.contains(&Message::Ack { txn: TxnId(6), ack: Ack::Unknown }), "{said:?}");
    assert_eq!(window(&said[said.len() - 1..]).start, first.start);
}

#[test]
fn a_share_is_kept_for_it() {
    let (mut target, now) = after_the_floor();
    let goes_back = |target: &mut Target, at: Instant, txn: u64| !beside(target, at, txn, false).2.is_empty();
    assert!(goes_back(&mut target, now, 10), "it had its share");
    assert!(goes_back(&mut target, now + Span::from_millis(2), 20), "it had its share");
    // After fifty times what it took.
    assert!(!goes_back(&mut target, now + Span::from_millis(150), 30));
}

/// The payload of a transaction comes in its window. The writes that come of it.
fn arrives(target: &mut Target, now: Instant, txn: u64) -> Vec<OpId> {
    let header = DataHeader { cluster: CLUSTER, from: INITIATOR, txn: TxnId(txn), offset: 0, size: SIZE };
    let payload = Bytes::from(vec![0; SIZE as usize]);
    writes(step(target, now, Input::Payload { header, payload, arrived: now }).1)
}

fn writes(effects: Vec<(OpId, Effect)>) -> Vec<OpId> {
    effects.into_iter().filter_map(|(op, effect)| matches!(effect, Effect::Write { .. }).then_some(op)).collect()
}

/// A copy of a chunk is offered a window, accepted, and here. When, and the writes that come of it.
fn is_put(target: &mut Target, now: Instant, message: &Message, txn: u64) -> (Instant, Vec<OpId>) {
    let offered = window(&tell(target, now, message, None).0);
    accept(target, now, txn);
    let now = now + offered.start;
    (now, arrives(target, now, txn))
}

fn is_written(target: &mut Target, now: Instant, op: OpId) -> Vec<OpId> {
    writes(step(target, now, written(op)).1)
}

fn written<R>(op: OpId) -> Input<R> {
    Input::Done { op, completion: Completion::Written { result: Ok(()), free: 1 << 30 } }
}

/// A target whose disk writes a client's chunk, and then another one.
fn at_two_writes() -> (Target, Instant, [OpId; 2]) {
    let (mut target, now) = (target(), at(1_000_000));
    // The share of the port and that of the disk are used.
    let mut now = now;
    for txn in [1, 2] {
        let (here, begun) = is_put(&mut target, now, &maintenance(txn, Span::ZERO, false), txn);
        now = here + Span::from_millis(1);
        assert_eq!(is_written(&mut target, now, begun[0]), []);
    }
    let (now, third) = is_put(&mut target, now, &client(3, Span::ZERO), 3);
    let (now, fourth) = is_put(&mut target, now, &client(4, Span::ZERO), 4);
    (target, now, [third[0], fourth[0]])
}

#[test]
fn a_copy_that_is_here_waits_until_the_disk_is_idle() {
    let (mut target, now, [third, fourth]) = at_two_writes();
    let (now, begun) = is_put(&mut target, now, &maintenance(5, Span::ZERO, false), 5);
    assert_eq!(begun, [], "clients' chunks are being written");
    let ask = Message::Probe { txn: TxnId(5), id: id(5), wanted: Wanted::BY_MAP };
    let (said, _) = step(&mut target, now, arriving(from(INITIATOR, &ask)));
    assert_eq!(said, [Message::Ack { txn: TxnId(5), ack: Ack::Pending }], "it is not durable, and not lost");
    assert_eq!(is_written(&mut target, now, third), [], "one more is being written");
    let begun = is_written(&mut target, now, fourth);
    assert_eq!(begun.len(), 1, "the disk is idle");
    let said = hear(&mut target, now, written(begun[0])).messages;
    assert!(said.contains(&Message::Ack { txn: TxnId(5), ack: Ack::Durable }), "{said:?}");
}

#[test]
fn a_copy_that_is_here_waits_for_a_client_that_is_nearly_here() {
    let (mut target, now, [third, fourth]) = at_two_writes();
    let (now, begun) = is_put(&mut target, now, &maintenance(5, Span::ZERO, false), 5);
    assert_eq!(begun, []);
    is_written(&mut target, now, third);
    let offered = window(&tell(&mut target, now, &client(6, Span::from_millis(1)), None).0);
    accept(&mut target, now, 6);
    // A write takes a millisecond and more.
    let now = now + offered.start + offered.transfer - Span::from_micros(20);
    assert_eq!(is_written(&mut target, now, fourth), [], "it would be in the way of the next");
    let now = now + Span::from_micros(20);
    let begun = arrives(&mut target, now, 6);
    assert_eq!(begun.len(), 1, "that of the client");
    assert_eq!(is_written(&mut target, now, begun[0]).len(), 1, "that of maintenance");
}

#[test]
fn a_copy_that_is_here_does_not_wait_for_ever() {
    let (mut target, now, _) = at_two_writes();
    let (now, begun) = is_put(&mut target, now, &maintenance(5, Span::ZERO, false), 5);
    assert_eq!(begun, []);
    let soon = writes(step(&mut target, now + Span::from_millis(2), Input::Wake).1);
    assert_eq!(soon, [], "the disk had its share");
    let later = writes(step(&mut target, now + Span::from_millis(200), Input::Wake).1);
    assert_eq!(later.len(), 1, "its share is due");
}

#[test]
fn a_client_does_not_wait_for_what_waits_for_it() {
    let (mut target, now, _) = at_two_writes();
    let done = |target: &mut Target, txn: u64| {
        let offered = window(&tell(target, now, &client(txn, Span::ZERO), None).0);
        step(target, now, arriving(from(INITIATOR, &common::refused(txn, 1))));
        offered.done
    };
    let before = done(&mut target, 10);
    let (_, begun) = is_put(&mut target, now, &maintenance(5, Span::ZERO, false), 5);
    assert_eq!(begun, []);
    assert!(done(&mut target, 11) <= before, "it counts the one that waits");
}
