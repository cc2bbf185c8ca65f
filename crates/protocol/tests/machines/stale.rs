//! Whoever refuses a question because it knows a newer cluster map has not answered it.

use protocol::id::{NodeId, TxnId};
use protocol::initiator::{Event, Query, QueryAnswer, Request};
use protocol::machine::Input;
use protocol::wire::{Answer, Bid, Message};

use crate::common::{arriving, at, from, hear, initiator};

/// What comes of `request` when the targets 1 and 2 answer it and the third is ahead of us: at once, and after we gave up.
fn with_one_ahead(request: Request, answer: impl Fn(TxnId) -> Message) -> [Option<Event>; 2] {
    let mut machine = initiator();
    let sent = hear(&mut machine, at(0), Input::Request(request));
    let txn = match sent.messages[..] {
        [Message::List { txn, .. } | Message::Mark { txn }, ..] => txn,
        _ => panic!("{:?}", sent.messages),
    };
    let ahead = Message::Bid(Bid { txn, round: 0, answer: Answer::Stale });
    let mut events = Vec::new();
    for (node, message) in [(3, ahead), (1, answer(txn)), (2, answer(txn))] {
        events.extend(hear(&mut machine, at(1), arriving(from(NodeId(node), &message))).events);
    }
    let given_up = hear(&mut machine, at(1 << 40), Input::Wake).events;
    [events, given_up].map(|events| events.into_iter().find(|event| matches!(event, Event::Query { .. })))
}

#[test]
fn a_list_without_it_is_not_complete() {
    let request = Request::Query { handle: 7, query: Query::List { prefix: Vec::new() } };
    let answer = |txn| Message::Listed { txn, ids: Vec::new(), more: false };
    let [None, Some(Event::Query { answer: QueryAnswer::List(Ok(found)), .. })] = with_one_ahead(request, answer)
    else {
        panic!("no list, or one without waiting for the newer map")
    };
    assert_eq!((found.chunks.len(), found.silent), (0, vec![NodeId(3)]));
}

#[test]
fn a_mark_is_not_set_on_it() {
    let [Some(Event::Query { answer: QueryAnswer::Mark(Ok(marked)), .. }), None] =
        with_one_ahead(Request::Query { handle: 7, query: Query::Mark }, |txn| Message::Marked { txn })
    else {
        panic!("no mark")
    };
    assert_eq!(marked.silent, [NodeId(3)]);
}
