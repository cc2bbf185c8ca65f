//! Coded chunks that one node puts at once: what is kept free for one is in the way of the next.

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::coded::cut;
use protocol::id::{NodeId, TxnId};
use protocol::initiator::{ChunkPut, Initiator, Request};
use protocol::machine::Input;
use protocol::time::{Instant, Span};
use protocol::wire::{Answer, Bid, Message, OfferedWindow};

use crate::common::{INITIATOR, arriving, at, from, hear, map};

/// Bytes per second of all ports.
const RATE: u64 = 1_000_000;

/// Puts another chunk of 2+1; the transaction that the group is asked for, if it is.
fn put(initiator: &mut Initiator, now: Instant, nth: u8) -> Option<(TxnId, u32)> {
    let coded = cut("2+1".parse().expect("a code"), &Bytes::from(vec![nth; 60_000])).expect("it is short");
    let put = ChunkPut::coded(coded);
    asked(&hear(initiator, now, Input::Request(Request::Put { handle: nth.into(), put })).messages)
}

fn asked(messages: &[Message]) -> Option<(TxnId, u32)> {
    messages.iter().find_map(|message| match message {
        Message::PutRequest(request) => Some((request.txn, request.size)),
        _ => None,
    })
}

/// All three targets offer what is free from so long on.
fn bids(initiator: &mut Initiator, now: Instant, (txn, size): (TxnId, u32), start: Span) {
    let transfer = Span::of_transfer(size.into(), RATE);
    let (length, done, rate) = (transfer.times(4), start + transfer, RATE);
    let answer = Answer::Window(OfferedWindow { start, length, transfer, done, rate, size });
    for target in 1..=3 {
        let bid = Message::Bid(Bid { txn, round: 1, answer });
        hear(initiator, now, arriving(from(NodeId(target), &bid)));
    }
}

#[test]
fn while_the_port_has_enough_to_do_the_group_is_asked_for_one_after_the_other() {
    let mut initiator = Initiator::new(INITIATOR, map(), Config { depth: 8, ..Config::of_link(RATE) }, 1);
    let (mut now, mut later) = (at(0), Span::ZERO);
    let first = put(&mut initiator, now, 1).expect("it is asked for");
    let beside = put(&mut initiator, now, 2).expect("with an idle port, nothing is gained by waiting");
    for txn in [first, beside] {
        now += Span::from_micros(100);
        bids(&mut initiator, now, txn, later);
        later = later + Span::from_millis(100);
    }
    let third = put(&mut initiator, now, 3).expect("nobody else waits for bids");
    assert_eq!(put(&mut initiator, now, 4), None, "the third has windows kept for it now");
    bids(&mut initiator, now, third, later);
    let mut wakes = 0;
    let fourth = loop {
        now += Span::from_micros(20);
        wakes += 1;
        if let Some(fourth) = asked(&hear(&mut initiator, now, Input::Wake).messages) {
            break fourth;
        }
        assert!(wakes < 200, "it is never asked for");
    };
    // That one is never answered, and the next is asked for all the same.
    assert_ne!(fourth.0, third.0);
    assert_eq!(put(&mut initiator, now, 5), None);
    now += Span::from_millis(60);
    assert!(asked(&hear(&mut initiator, now, Input::Wake).messages).is_some(), "the fourth or the fifth");
}
