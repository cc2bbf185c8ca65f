//! Pieces of a coded chunk that lie twice: those who have one are asked for a certain other.

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::coded::cut;
use protocol::id::{Epoch, NodeId, TxnId};
use protocol::initiator::{ChunkPut, Initiator, Request};
use protocol::machine::Input;
use protocol::map::{ClusterMap, TargetEntry};
use protocol::redundancy::Piece;
use protocol::time::Span;
use protocol::wire::{Answer, Bid, Message, OfferedWindow, PutRequest};

use crate::common::{CLUSTER, INITIATOR, arriving, at, from, hear};

/// What the group is asked for.
fn asked(messages: &[Message]) -> Option<&PutRequest> {
    messages.iter().find_map(|message| if let Message::PutRequest(request) = message { Some(request) } else { None })
}

fn says(initiator: &mut Initiator, now: u64, target: u32, (txn, round): (TxnId, u8), answer: Answer) -> Vec<Message> {
    let bid = Message::Bid(Bid { txn, round, answer });
    hear(initiator, at(now), arriving(from(NodeId(target), &bid))).messages
}

#[test]
fn what_was_offered_for_a_piece_that_somebody_has_is_for_no_other() {
    let entry = |id| TargetEntry { id: NodeId(id), domain: id as u16, capacity: 1 << 30 };
    let map = ClusterMap::new(CLUSTER, Epoch(1), 5, 1, (1..=5).map(entry).collect()).expect("a good map");
    let mut initiator = Initiator::new(INITIATOR, map, Config { multicast: false, ..Config::default() }, 1);
    let coded = cut("2+2".parse().expect("a code"), &Bytes::from(vec![7; 9_000])).expect("it is short");
    let put = Request::Put { handle: 1, put: ChunkPut::coded(coded) };
    let mut messages = hear(&mut initiator, at(0), Input::Request(put)).messages;
    let PutRequest { txn, round, id, size, .. } = asked(&messages).expect("the group is asked").clone();
    assert_eq!(id.piece(), None);
    // All have a piece, and nobody the last two.
    for target in 1..=5 {
        let piece = Piece(u8::from(target == 5));
        messages = says(&mut initiator, 1_000, target, (txn, round), Answer::HavePiece(piece));
    }
    assert!(asked(&messages).is_none(), "it rests first");
    let messages = hear(&mut initiator, at(100_000_000), Input::Wake).messages;
    let requests = messages.iter().filter(|message| matches!(message, Message::PutRequest(_))).count();
    let PutRequest { round, id, .. } = asked(&messages).expect("they are asked again").clone();
    assert_eq!((requests, id.piece()), (3, Some(Piece(2))), "in one of four domains the first piece counts");
    // Only those that are asked answer in that round.
    let transfer = Span::from_micros(10);
    let window = OfferedWindow {
        start: transfer,
        length: transfer.times(9),
        transfer,
        done: transfer.times(9),
        rate: 1_000_000_000,
        size,
    };
    let mut after = Vec::new();
    for target in 1..=4 {
        let answer = if target >= 3 { Answer::HavePiece(Piece(2)) } else { Answer::Window(window) };
        after.extend(says(&mut initiator, 100_001_000, target, (txn, round), answer));
    }
    let granted = after.iter().any(|message| matches!(message, Message::Accept { granted, .. } if !granted.is_empty()));
    assert!(!granted, "a window for the third piece is not used for the fourth: {after:?}");
    assert_eq!(asked(&after).and_then(|request| request.id.piece()), Some(Piece(3)));
}
