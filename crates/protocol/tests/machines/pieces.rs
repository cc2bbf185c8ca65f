//! Gets of coded chunks: one question for all pieces, the soonest accepted in windows that follow each other, and others in place of those
//! that are late.

use std::ops::Range;
use std::slice;

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::coded::{Coded, cut, fragments_of};
use protocol::id::{Epoch, NodeId, TxnId};
use protocol::initiator::{Event, Initiator, Request};
use protocol::machine::{Completion, Effect, Held, Input, Machine, Output};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::redundancy::{Piece, Pieces, Wanted};
use protocol::time::{Instant, Span};
use protocol::wire::{Ack, Answer, Bid, DataHeader, Message, OfferedWindow};

use crate::common::{CLUSTER, INITIATOR, Said, arriving, at, from, get, get_accepted, hear, step, target};

const TRANSFER: Span = Span::from_micros(10);
/// Targets, each of which has a piece but the last one.
const TARGETS: u32 = 7;

fn chunk() -> Coded {
    cut("4+2".parse().expect("a code"), &Bytes::from(vec![7; 9_000])).expect("it is short")
}

fn initiator(remember: bool) -> Initiator {
    let entry = |id| TargetEntry { id: NodeId(id), domain: id as u16, capacity: 1 << 30 };
    let map = ClusterMap::new(CLUSTER, Epoch(1), 7, 1, (1..=TARGETS).map(entry).collect()).expect("a good map");
    Initiator::new(INITIATOR, map, Config { remember, ..Config::default() }, 1)
}

/// Asks for the chunk: the transaction and the round of the one question, and to how many transmissions it comes.
fn ask(initiator: &mut Initiator, now: Instant) -> (TxnId, u8, usize) {
    ask_for(initiator, now, None)
}

fn ask_for(initiator: &mut Initiator, now: Instant, fragments: Option<Pieces>) -> (TxnId, u8, usize) {
    let request = Request::Get { handle: 1, id: chunk().id, holders: vec![], fragments };
    question(&hear(initiator, now, Input::Request(request)).messages)
}

fn question(messages: &[Message]) -> (TxnId, u8, usize) {
    let Some(Message::GetRequest { txn, round, id, .. }) = messages.first() else { panic!("{messages:?}") };
    assert_eq!(*id, chunk().id, "any piece is asked for");
    (*txn, *round, messages.len())
}

fn window(start: Span, length: Span) -> OfferedWindow {
    let size = chunk().pieces[0].len() as u32;
    OfferedWindow { start, length, transfer: TRANSFER, done: start + TRANSFER, rate: 1 << 30, size }
}

/// Target n offers piece n - 1, as soon as this.
fn offers(initiator: &mut Initiator, now: Instant, (txn, round): (TxnId, u8), target: u32, start: Span) -> Said<Event> {
    let txn = txn.of_piece(Piece(target as u8 - 1));
    let bid = Message::Bid(Bid { txn, round, answer: Answer::Window(window(start, TRANSFER.times(5))) });
    hear(initiator, now, arriving(from(NodeId(target), &bid)))
}

fn has_none(initiator: &mut Initiator, now: Instant, (txn, round): (TxnId, u8)) -> Said<Event> {
    let bid = Message::Bid(Bid { txn, round, answer: Answer::NotHere });
    hear(initiator, now, arriving(from(NodeId(TARGETS), &bid)))
}

/// Who is accepted in one message, and how far in the windows.
fn accepted(said: &Said<Event>) -> Vec<(u32, Span)> {
    let [Message::Accept { txn, granted, .. }] = &said.messages[..] else { panic!("{:?}", said.messages) };
    assert_eq!(txn.whole(), *txn);
    granted.iter().map(|granted| (granted.target.0, granted.offset)).collect()
}

/// The piece of a target comes, and is good: what follows.
fn comes(initiator: &mut Initiator, now: Instant, txn: TxnId, target: u32) -> Said<Event> {
    let payload = chunk().pieces[target as usize - 1].clone();
    let header = DataHeader { cluster: CLUSTER, from: NodeId(target), txn, offset: 0, size: payload.len() as u32 };
    let said = hear(initiator, now, Input::Payload { header, payload, arrived: Instant::FAR });
    let [(op, Effect::Verify { id, .. })] = &said.effects[..] else { panic!("{:?}", said.effects) };
    assert_eq!(id.piece(), Some(Piece(target as u8 - 1)));
    hear(initiator, now, Input::Done { op: *op, completion: Completion::Verified(true) })
}

/// All are accepted that have data, and come, but for the last one.
fn all_but_one(initiator: &mut Initiator, asked: Instant) -> (TxnId, Instant) {
    let (txn, round, _) = ask(initiator, asked);
    let now = asked + TRANSFER;
    for target in (1..=6).rev() {
        offers(initiator, now, (txn, round), target, Span::ZERO);
    }
    for target in 1..=3 {
        assert!(comes(initiator, now, txn.of_piece(Piece(target as u8 - 1)), target).messages.is_empty());
    }
    (txn, now)
}

fn get_of(message: &Message) -> Option<(TxnId, Option<Piece>)> {
    if let Message::GetRequest { txn, id, .. } = message { Some((*txn, id.piece())) } else { None }
}

fn deadline(initiator: &mut Initiator) -> Instant {
    let Output::Idle(Some(deadline)) = initiator.poll_output() else { panic!("nothing to wait for") };
    deadline.at
}

#[test]
fn one_question_and_one_answer_to_the_bids_and_pieces_one_after_the_other() {
    let mut initiator = initiator(false);
    let now = at(1_000);
    let (txn, round, transmissions) = ask(&mut initiator, now);
    assert_eq!((transmissions, txn.whole()), (1, txn), "all are asked at once");
    for target in (2..=6).rev() {
        assert!(offers(&mut initiator, now, (txn, round), target, Span::ZERO).messages.is_empty(), "1 has data");
    }
    let said = offers(&mut initiator, now, (txn, round), 1, Span::ZERO);
    assert_eq!(accepted(&said), [1, 2, 3, 4].map(|n| (n, TRANSFER.times(u64::from(n) - 1))));
    for target in 1..=4 {
        let said = comes(&mut initiator, now, txn.of_piece(Piece(target as u8 - 1)), target);
        let decodes = matches!(&said.effects[..], [(_, Effect::Decode { pieces, .. })] if pieces.len() == 4);
        assert_eq!(decodes, target == 4, "{:?}", said.effects);
    }
}

#[test]
fn an_offer_that_comes_twice_counts_once_and_one_of_no_piece_does_not() {
    let mut initiator = initiator(false);
    let (txn, round, _) = ask(&mut initiator, at(1_000));
    for target in (2..=6).rev() {
        offers(&mut initiator, at(1_000), (txn, round), target, Span::ZERO);
        let twice = offers(&mut initiator, at(1_000), (txn, round), target, Span::ZERO);
        assert!(twice.messages.is_empty(), "nothing is taken back: {:?}", twice.messages);
    }
    // There is no piece 15 of six; it is none of those of data either.
    let bid =
        Bid { txn: txn.of_piece(Piece(15)), round, answer: Answer::Window(window(Span::ZERO, TRANSFER.times(5))) };
    let said = hear(&mut initiator, at(1_000), arriving(from(NodeId(TARGETS), &Message::Bid(bid))));
    assert!(said.messages.is_empty(), "{:?}", said.messages);
    let said = offers(&mut initiator, at(1_000), (txn, round), 1, Span::ZERO);
    assert_eq!(accepted(&said).iter().map(|(target, _)| *target).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn who_knows_nothing_of_its_offer_any_more_is_asked_again_at_once() {
    let mut initiator = initiator(false);
    let (txn, _) = all_but_one(&mut initiator, at(1_000));
    let unknown = Message::Ack { txn, ack: Ack::Unknown };
    let said = hear(&mut initiator, at(20_000), arriving(from(NodeId(4), &unknown)));
    let asked: Vec<(TxnId, Option<Piece>)> = said.messages.iter().filter_map(get_of).collect();
    let own = (txn.of_piece(Piece(3)), Some(Piece(3)));
    assert!(!asked.is_empty() && asked.iter().all(|asked| *asked == own), "{asked:?}");
}

#[test]
fn another_piece_is_asked_for_when_one_stops_in_its_midst() {
    let mut initiator = initiator(false);
    let (txn, mut now) = all_but_one(&mut initiator, at(1_000));
    let payload = chunk().pieces[3].clone();
    let header = DataHeader {
        cluster: CLUSTER,
        from: NodeId(4),
        txn: txn.of_piece(Piece(3)),
        offset: 0,
        size: payload.len() as u32,
    };
    hear(&mut initiator, now, Input::Payload { header, payload: payload.slice(..100), arrived: Instant::FAR });
    let mut repairs = 0;
    loop {
        now = deadline(&mut initiator);
        let said = hear(&mut initiator, now, Input::Wake);
        repairs += said.messages.iter().filter(|message| matches!(message, Message::Repair(_))).count();
        if said.messages.iter().any(|message| get_of(message).is_some()) {
            break;
        }
    }
    assert_eq!(repairs, 2, "the end alone may have been lost");
}

#[test]
fn parity_is_taken_where_data_would_be_much_later() {
    for (late, chosen) in [(TRANSFER.div(2), [2, 3, 4, 1]), (TRANSFER.times(4), [2, 3, 4, 5])] {
        let mut initiator = initiator(false);
        let (txn, round, _) = ask(&mut initiator, at(1_000));
        for target in (2..=6).rev() {
            offers(&mut initiator, at(1_000), (txn, round), target, Span::ZERO);
        }
        let said = offers(&mut initiator, at(1_000), (txn, round), 1, late);
        assert_eq!(accepted(&said).iter().map(|(target, _)| *target).collect::<Vec<_>>(), chosen);
    }
}

#[test]
fn nobody_is_waited_for_long_when_there_are_enough() {
    let mut initiator = initiator(false);
    let (txn, round, _) = ask(&mut initiator, at(1_000));
    for target in 3..=6 {
        assert!(offers(&mut initiator, at(2_000), (txn, round), target, Span::ZERO).messages.is_empty());
    }
    let due = deadline(&mut initiator);
    let said = hear(&mut initiator, due, Input::Wake);
    assert_eq!(accepted(&said).iter().map(|(target, _)| *target).collect::<Vec<_>>(), [3, 4, 5, 6]);
}

#[test]
fn pieces_that_nobody_offered_are_asked_for_by_themselves() {
    let mut initiator = initiator(false);
    // How long bids take is known from earlier ones.
    for n in 1..=4 {
        let (txn, now) = all_but_one(&mut initiator, at(n * 20_000));
        comes(&mut initiator, now, txn.of_piece(Piece(3)), 4);
    }
    let (txn, round, _) = ask(&mut initiator, at(1_000_000));
    for target in 1..=3 {
        offers(&mut initiator, at(1_000_000), (txn, round), target, Span::ZERO);
    }
    has_none(&mut initiator, at(1_000_000), (txn, round));
    let soft = deadline(&mut initiator);
    assert!(hear(&mut initiator, soft, Input::Wake).messages.is_empty(), "those who are silent are waited for");
    let hard = deadline(&mut initiator);
    let said = hear(&mut initiator, hard, Input::Wake);
    let [Message::Accept { granted, .. }, rest @ ..] = &said.messages[..] else { panic!("{:?}", said.messages) };
    assert_eq!(granted.len(), 3);
    assert!(rest.iter().filter_map(get_of).any(|(_, piece)| piece == Some(Piece(3))), "{rest:?}");
}

#[test]
fn another_piece_comes_in_place_of_a_late_one_which_is_stopped() {
    let mut initiator = initiator(false);
    let (txn, mut now) = all_but_one(&mut initiator, at(1_000));
    // Until it is late enough.
    let mut said = Said { messages: vec![], effects: vec![], events: vec![] };
    while !said.messages.iter().any(|message| get_of(message).is_some()) {
        now = deadline(&mut initiator);
        assert!(now < at(1_000_000_000), "nobody asks");
        said = hear(&mut initiator, now, Input::Wake);
    }
    let asked: Vec<(TxnId, Option<Piece>)> = said.messages.iter().filter_map(get_of).collect();
    let [(own, Some(Piece(number @ (4 | 5))))] = asked[..] else {
        panic!("who offered one is known: {:?}", said.messages)
    };
    let holder = u32::from(number) + 1;
    let bid = Message::Bid(Bid { txn: own, round: 1, answer: Answer::Window(window(Span::ZERO, TRANSFER.times(2))) });
    hear(&mut initiator, now, arriving(from(NodeId(holder), &bid)));
    let said = comes(&mut initiator, now, own, holder);
    assert!(said.effects.iter().any(|(_, effect)| matches!(effect, Effect::Decode { .. })));
    let is_stopped = |message: &Message| matches!(message, Message::Accept { txn: stopped, granted, .. } if *stopped == txn.of_piece(Piece(3)) && granted.is_empty());
    assert!(said.messages.iter().any(is_stopped), "{:?}", said.messages);
}

/// The second and the third.
fn two() -> Pieces {
    [Piece(1), Piece(2)].into_iter().collect()
}

#[test]
fn of_a_range_those_pieces_come_that_have_it() {
    let mut initiator = initiator(false);
    let now = at(1_000);
    let (txn, round, _) = ask_for(&mut initiator, now, Some(two()));
    for target in [4, 1, 3] {
        assert!(offers(&mut initiator, now, (txn, round), target, Span::ZERO).messages.is_empty(), "2 has some of it");
    }
    let said = offers(&mut initiator, now, (txn, round), 2, Span::ZERO);
    assert_eq!(accepted(&said), [(2, Span::ZERO), (3, TRANSFER)]);
    assert!(comes(&mut initiator, now, txn.of_piece(Piece(1)), 2).effects.is_empty());
    let said = comes(&mut initiator, now, txn.of_piece(Piece(2)), 3);
    let [(op, Effect::Decode { pieces, into })] = &said.effects[..] else { panic!("{:?}", said.effects) };
    let bytes = into.make(pieces).expect("they are all that is wanted");
    let (fragments, ranges) = fragments_of(&chunk().id, 9_000, slice::from_ref(&(3_000..6_000))).expect("not all");
    let length = ranges.iter().map(Range::len).sum();
    assert_eq!((fragments, pieces.len(), bytes.concat().len()), (two(), 2, length));
    let done = hear(&mut initiator, now, Input::Done { op: *op, completion: Completion::Decoded(Some(bytes)) });
    assert!(matches!(&done.events[..], [Event::Get { result: Ok(_), .. }]), "{:?}", done.events);
}

#[test]
fn a_range_is_decoded_where_nobody_has_its_pieces() {
    let mut initiator = initiator(false);
    let now = at(1_000);
    let (txn, round, _) = ask_for(&mut initiator, now, Some(two()));
    for target in [1, 3, 4, 5, 6] {
        assert!(offers(&mut initiator, now, (txn, round), target, Span::ZERO).messages.is_empty());
    }
    // Target 2 is silent.
    has_none(&mut initiator, now, (txn, round));
    let due = deadline(&mut initiator);
    let said = hear(&mut initiator, due, Input::Wake);
    let said = if said.messages.is_empty() {
        let due = deadline(&mut initiator);
        hear(&mut initiator, due, Input::Wake)
    } else {
        said
    };
    let granted = accepted(&said);
    assert_eq!(granted.len(), 4, "any four: {granted:?}");
    assert!(granted.iter().any(|(target, _)| *target == 3), "the other is wanted: {granted:?}");
    let mut effects = vec![];
    for (target, _) in granted {
        effects.extend(comes(&mut initiator, due, txn.of_piece(Piece(target as u8 - 1)), target).effects);
    }
    let [(_, Effect::Decode { pieces, into })] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((pieces.len(), into.make(pieces).map(|bytes| bytes.concat().len())), (4, Some(2 * 2_560)));
}

#[test]
fn others_are_asked_for_when_a_piece_of_a_range_is_late() {
    let mut initiator = initiator(false);
    let mut now = at(1_000);
    let (txn, round, _) = ask_for(&mut initiator, now, Some(two()));
    for target in (1..=6).rev() {
        offers(&mut initiator, now, (txn, round), target, Span::ZERO);
    }
    comes(&mut initiator, now, txn.of_piece(Piece(1)), 2);
    let mut asked = vec![];
    while asked.is_empty() {
        now = deadline(&mut initiator);
        assert!(now < at(1_000_000_000), "nobody asks");
        asked = hear(&mut initiator, now, Input::Wake).messages.iter().filter_map(get_of).collect();
    }
    let pieces: Vec<Option<Piece>> = asked.iter().map(|(_, piece)| *piece).collect();
    assert_eq!(pieces.len(), 3, "with the one that is here enough to decode: {pieces:?}");
    // The late one comes after all: nothing else is needed.
    let said = comes(&mut initiator, now, txn.of_piece(Piece(2)), 3);
    assert!(
        said.effects.iter().any(|(_, effect)| matches!(effect, Effect::Decode { pieces, .. } if pieces.len() == 2))
    );
}

#[test]
fn those_who_had_pieces_are_asked_first_and_all_when_they_are_too_few() {
    let mut initiator = initiator(true);
    let (txn, now) = all_but_one(&mut initiator, at(1_000));
    let said = comes(&mut initiator, now, txn.of_piece(Piece(3)), 4);
    let [(op, Effect::Decode { .. })] = said.effects[..] else { panic!("{:?}", said.effects) };
    let decoded = Completion::Decoded(Some(vec![Bytes::from(vec![7; 9_000])]));
    let said = hear(&mut initiator, now, Input::Done { op, completion: decoded });
    assert!(matches!(&said.events[..], [Event::Get { result: Ok(_), .. }]), "{:?}", said.events);
    let (txn, first, _) = ask(&mut initiator, at(1_000_000));
    // Who has none is not asked, and not waited for.
    for target in 1..=3 {
        offers(&mut initiator, at(1_000_000), (txn, first), target, Span::ZERO);
    }
    let due = deadline(&mut initiator);
    let (again, second, _) = question(&hear(&mut initiator, due, Input::Wake).messages);
    assert_eq!((again, second), (txn, first + 1));
    for target in (3..=6).rev() {
        offers(&mut initiator, due, (txn, second), target, Span::ZERO);
    }
    let due = deadline(&mut initiator);
    assert_eq!(accepted(&hear(&mut initiator, due, Input::Wake)).len(), 4);
}

#[test]
fn a_target_offers_the_piece_that_it_has_and_sends_it_when_the_get_accepts() {
    let mut target = target();
    let (whole, txn) = (chunk().id, TxnId(64));
    let (_, effects) = step(&mut target, at(0), arriving(from(INITIATOR, &get(txn.0, 1, whole))));
    let [(op, Effect::Lookup { id, .. })] = effects[..] else { panic!("{effects:?}") };
    assert_eq!(id, whole);
    let held = Held { id: whole.of_piece(Piece(4)), size: 4_000, wanted: Wanted::BY_MAP };
    let (said, _) = step(&mut target, at(0), Input::Done { op, completion: Completion::Found(Some(held)) });
    let [Message::Bid(Bid { txn: own, round: 1, answer: Answer::Window(window) })] = said[..] else {
        panic!("{said:?}")
    };
    assert_eq!(own, txn.of_piece(Piece(4)));
    assert_eq!(window.length, window.transfer.times(5), "so that all that are read have room one after the other");
    let (_, effects) = step(&mut target, at(1), get_accepted(txn.0, 1));
    assert!(matches!(effects[..], [(_, Effect::Read { id })] if id == held.id), "{effects:?}");
}
