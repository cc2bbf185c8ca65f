//! What targets put for lost copies has what clients leave of a target, and a share of it in any case.

mod common;

use common::{INITIATOR, arriving, at, from, put, target, tell, window};
use protocol::id::{ChunkId, NodeId, TxnId};
use protocol::target::Target;
use protocol::time::{Instant, Span};
use protocol::wire::{Ack, Answer, Bid, Granted, Message, OfferedWindow, PutRequest};

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
fn a_client_waits_for_one_of_maintenance() {
    let (mut target, now) = after_the_floor();
    let earliest = Span::from_millis(1);
    let offered = window(&tell(&mut target, now, &maintenance(2, earliest, false), None).0);
    let (said, _) = tell(&mut target, now, &client(3, offered.start), None);
    assert_eq!(window(&said).start, offered.start + offered.length.min(offered.transfer.percent(105)));
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
    // After ten times what it took.
    assert!(!goes_back(&mut target, now + Span::from_millis(30), 30));
}
