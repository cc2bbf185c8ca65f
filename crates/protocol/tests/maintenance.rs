//! What targets put for lost copies has what clients leave of a target, and a share of it in any case.

mod common;

use common::{INITIATOR, arriving, at, from, put, target, tell, window};
use protocol::id::{ChunkId, NodeId, TxnId};
use protocol::target::Target;
use protocol::time::{Instant, Span};
use protocol::wire::{Ack, Answer, Bid, Granted, Message, OfferedWindow, PutRequest};

const SIZE: u32 = 1 << 20;

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

fn accept(target: &mut Target, now: Instant, txn: u64) -> Vec<Message> {
    let granted = vec![Granted { target: NodeId(1), offset: Span::ZERO }].into();
    let message = Message::Accept { txn: TxnId(txn), round: 1, granted };
    common::step(target, now, arriving(from(INITIATOR, &message))).0
}

/// What maintenance is offered from 3 ms on, what a client is that asks for the same then, and what is said besides.
fn beside(urgent: bool) -> (OfferedWindow, OfferedWindow, Vec<Message>) {
    let mut target = target();
    let (now, later) = (at(1_000_000), Span::from_millis(3));
    window(&tell(&mut target, now, &maintenance(1, Span::ZERO, false), None).0);
    accept(&mut target, now, 1);
    let offered = window(&tell(&mut target, now, &maintenance(2, later, urgent), None).0);
    let (mut said, _) = tell(&mut target, now, &client(3, later), None);
    let bid = said.pop().expect("it answers");
    (offered, window(&[bid]), said)
}

#[test]
fn a_client_has_the_window_that_maintenance_was_offered() {
    let (maintenance, client, said) = beside(false);
    assert_eq!((maintenance.start, client.start), (Span::from_millis(3), Span::from_millis(3)));
    assert!(matches!(said[..], [Message::Bid(Bid { txn: TxnId(2), answer: Answer::Busy(_), .. })]), "{said:?}");
}

#[test]
fn the_last_copy_keeps_its_window() {
    let (urgent, client, said) = beside(true);
    assert!(said.is_empty(), "{said:?}");
    assert!(client.start >= urgent.start + urgent.transfer, "{client:?}");
}

#[test]
fn what_has_not_begun_is_given_back_after_it_was_accepted() {
    let (mut target, mut now, lead) = (target(), at(1_000_000), Span::from_micros(100));
    // Uses up the share that is kept for it.
    window(&tell(&mut target, now, &maintenance(5, lead, false), None).0);
    accept(&mut target, now, 5);
    // Two behind each other: the second begins late enough to go back.
    window(&tell(&mut target, now, &maintenance(6, lead, false), None).0);
    accept(&mut target, now, 6);
    let second = window(&tell(&mut target, now, &maintenance(7, lead, false), None).0);
    accept(&mut target, now, 7);
    now += Span::from_micros(10);
    let (said, _) = tell(&mut target, now, &client(8, second.start), None);
    assert!(said.contains(&Message::Ack { txn: TxnId(7), ack: Ack::Unknown }), "{said:?}");
    let offered = window(&said[said.len() - 1..]);
    assert!(offered.start <= second.start, "{offered:?}");
}

#[test]
fn a_share_is_kept_for_it() {
    let mut target = target();
    let now = at(1_000_000);
    let busy = |target: &mut Target, at: Instant, txn: u64| {
        // A client has the port from now on.
        window(&tell(target, at, &client(txn, Span::ZERO), None).0);
        accept(target, at, txn);
    };
    let firm = |target: &mut Target, at: Instant, txn: u64| {
        let offered = window(&tell(target, at, &maintenance(txn, Span::ZERO, false), None).0);
        // Whether a client finds it where it was.
        let (said, _) = tell(target, at, &client(txn + 100, offered.start), None);
        let client = window(&said[said.len() - 1..]);
        client.start >= offered.start + offered.transfer
    };
    busy(&mut target, now, 1);
    assert!(firm(&mut target, now, 2), "the first");
    accept(&mut target, now, 2);
    assert!(!firm(&mut target, now, 3), "it had its share");
    assert!(!firm(&mut target, now + Span::from_micros(10), 4), "it had its share");
    assert!(firm(&mut target, now + Span::from_millis(30), 5), "after ten times what it took");
}
