//! One aggregator, with initiators and targets that are only told of.

use super::*;
use crate::id::coded::{Coded, cut};
use crate::id::{ClusterId, Epoch};
use crate::map::TargetEntry;
use crate::redundancy::Piece;
use crate::wire::Receiver;

const RATE: u64 = 1_000_000_000;
const INITIATOR: NodeId = NodeId(NodeId::FIRST_INITIATOR + 3);
const TXN: TxnId = TxnId(77);

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1_000)
}

fn aggregator() -> Aggregator {
    let entry = |id| TargetEntry { id: NodeId(id), domain: id as u16, capacity: 1 << 30 };
    let map = ClusterMap::new(ClusterId(5), Epoch(1), 3, 3, (1..=9).map(entry).collect()).expect("a good map");
    let setup = Setup { id: NodeId(100), map, memory: 1 << 20, bug: None };
    Aggregator::new(setup, Config { per_datagram: 1_000, ..Config::of_link(8 * RATE) })
}

fn says(aggregator: &mut Aggregator, now: Instant, message: &Message) {
    let head = Head { cluster: ClusterId(5), epoch: Epoch(1), from: INITIATOR };
    let bytes = encode_message(head, message);
    aggregator.handle_input(now, Input::Datagram { bytes, arrived: now });
}

/// What is sent: answers, and payload by receiver.
#[derive(Default)]
struct Sent {
    answers: Vec<Answer>,
    payload: BTreeMap<NodeId, Vec<(DataHeader, Bytes)>>,
    events: Vec<Event>,
}

fn drain(aggregator: &mut Aggregator, sent: &mut Sent) -> Option<Instant> {
    loop {
        match aggregator.poll_output() {
            Output::Transmit(Transmit { to: Destination::Node(to), body: Body::Data(run) }) => {
                sent.payload.entry(to).or_default().push((run.header, run.payload));
            }
            Output::Transmit(Transmit { body: Body::Control(bytes), .. }) => match decode_message(&bytes) {
                Some((_, Message::Bid(bid))) => sent.answers.push(bid.answer),
                other => panic!("{other:?}"),
            },
            Output::Event(event) => sent.events.push(event),
            Output::Idle(deadline) => return deadline.map(|deadline| deadline.at),
            other => panic!("{other:?}"),
        }
    }
}

/// A chunk of 4+2, ordered from the first moment on; what is sent of it as one transfer.
fn ordered(aggregator: &mut Aggregator, sent: &mut Sent) -> (Coded, Vec<u8>) {
    let code = erasure::Code::new(4, 2).expect("a code");
    let chunk: Vec<u8> = (0..20_000_u64).map(|n| crate::rng::mix(n) as u8).collect();
    let coded = cut(code, &chunk).expect("it is short");
    let size = coded.pieces[0].len() as u32;
    let (txn, round, code, rate) = (TXN, 1, Some(code), RATE);
    let request = AggregateRequest { txn, round, code, size, rate, earliest: Span::from_micros(10) };
    says(aggregator, aggregator.now, &Message::Aggregating(Aggregating::Request(request)));
    drain(aggregator, sent);
    let start = |nth: u64| Span::from_micros(10) + Span::of_transfer(nth.min(3) * u64::from(size), RATE);
    let receiver =
        |nth: u8| Receiver { piece: Piece(nth), target: NodeId(1 + u32::from(nth)), start: start(nth.into()) };
    let receivers = (0..6).map(receiver).collect();
    let order = AggregateOrder { txn, round, code, size, rate, receivers };
    says(aggregator, aggregator.now, &Message::Aggregating(Aggregating::Order(order)));
    drain(aggregator, sent);
    let sends = coded.pieces[..4].concat();
    (coded, sends)
}

fn header(offset: usize, size: usize) -> DataHeader {
    DataHeader { cluster: ClusterId(5), from: INITIATOR, txn: TXN, offset: offset as u32, size: size as u32 }
}

fn whole(parts: &[(DataHeader, Bytes)]) -> Vec<u8> {
    let mut bytes = vec![0; parts[0].0.size as usize];
    for (header, payload) in parts {
        assert_eq!((header.from, header.txn, header.size as usize), (INITIATOR, TXN, bytes.len()));
        bytes[header.offset as usize..][..payload.len()].copy_from_slice(payload);
    }
    bytes
}

#[test]
fn every_receiver_gets_its_piece_and_parity_as_the_last_piece_passes() {
    let (mut aggregator, mut sent) = (aggregator(), Sent::default());
    let (coded, sends) = ordered(&mut aggregator, &mut sent);
    let Answer::Window(offered) = sent.answers[0] else { panic!("{:?}", sent.answers) };
    assert_eq!((offered.start, offered.rate), (Span::from_micros(10), 8 * RATE), "all that its port carries");
    let mut now = at(10);
    for offset in (0..sends.len()).step_by(1_000) {
        let payload = Bytes::copy_from_slice(&sends[offset..sends.len().min(offset + 1_000)]);
        now += Span::of_transfer(payload.len() as u64, RATE);
        let header = header(offset, sends.len());
        aggregator.handle_input(now, Input::Payload { header, payload, arrived: now });
        drain(&mut aggregator, &mut sent);
    }
    for (nth, piece) in coded.pieces.iter().enumerate() {
        let got = whole(&sent.payload[&NodeId(1 + nth as u32)]);
        assert!(got == piece[..], "piece {nth}");
    }
    let size = coded.pieces[0].len() as u64;
    let passed = Event::Passed { came: 4 * size, sent: 6 * size, parity: 2 * size };
    assert_eq!((sent.events.last(), aggregator.in_progress(), aggregator.held), (Some(&passed), 0, 0));
    assert_eq!(drain(&mut aggregator, &mut sent), None, "nothing is left to do");
}

#[test]
fn what_is_lost_on_the_way_is_missing_in_its_piece_and_in_the_parity_and_then_forgotten() {
    let (mut aggregator, mut sent) = (aggregator(), Sent::default());
    let (coded, sends) = ordered(&mut aggregator, &mut sent);
    for offset in (0..sends.len()).step_by(1_000).filter(|offset| *offset != 2_000) {
        let payload = Bytes::copy_from_slice(&sends[offset..sends.len().min(offset + 1_000)]);
        aggregator
            .handle_input(at(40), Input::Payload { header: header(offset, sends.len()), payload, arrived: at(40) });
    }
    let mut deadline = drain(&mut aggregator, &mut sent);
    while let Some(due) = deadline {
        aggregator.handle_input(due, Input::Wake);
        deadline = drain(&mut aggregator, &mut sent);
    }
    for (nth, lacks) in [(0, true), (1, false), (3, false), (4, true), (5, true)] {
        let got: usize = sent.payload[&NodeId(1 + nth)].iter().map(|(_, payload)| payload.len()).sum();
        let size = coded.pieces[0].len();
        // Of parity whole blocks are missing.
        let least = if lacks { size - 1_000 - 2 * erasure::BLOCK } else { size };
        assert!((least..=size).contains(&got) && (got < size) == lacks, "piece {nth}: {got} of {size}");
    }
    assert_eq!((sent.events.last(), aggregator.held), (Some(&Event::Expired), 0));
}

#[test]
fn what_was_not_offered_or_not_ordered_is_not_passed_on() {
    let (mut aggregator, mut sent) = (aggregator(), Sent::default());
    let payload = Bytes::from_static(&[1; 100]);
    aggregator.handle_input(at(1), Input::Payload { header: header(0, 400), payload, arrived: at(1) });
    let receivers = vec![Receiver { piece: Piece(0), target: NodeId(1), start: Span::ZERO }];
    let order = AggregateOrder { txn: TXN, round: 1, code: None, size: 100, rate: 1, receivers };
    says(&mut aggregator, at(2), &Message::Aggregating(Aggregating::Order(order)));
    drain(&mut aggregator, &mut sent);
    let ignored = [IgnoredReason::Unsolicited, IgnoredReason::Late].map(Event::Ignored);
    assert_eq!((&sent.events[..], sent.payload.len()), (&ignored[..], 0));
    // What is offered is not kept for long.
    let request = AggregateRequest { txn: TXN, round: 1, code: None, size: 100, rate: 1, earliest: Span::ZERO };
    says(&mut aggregator, at(3), &Message::Aggregating(Aggregating::Request(request)));
    let deadline = drain(&mut aggregator, &mut sent).expect("the offer ends");
    aggregator.handle_input(deadline, Input::Wake);
    assert_eq!((drain(&mut aggregator, &mut sent), aggregator.calendar.windows().count()), (None, 0));
}

#[test]
fn copies_go_to_all() {
    let (mut aggregator, mut sent) = (aggregator(), Sent::default());
    let request = AggregateRequest { txn: TXN, round: 1, code: None, size: 1_500, rate: RATE, earliest: Span::ZERO };
    says(&mut aggregator, at(0), &Message::Aggregating(Aggregating::Request(request)));
    let receiver = |id| Receiver { piece: Piece(0), target: NodeId(id), start: Span::ZERO };
    let receivers = [2, 5, 7].map(receiver).to_vec();
    let order = AggregateOrder { txn: TXN, round: 1, code: None, size: 1_500, rate: RATE, receivers };
    says(&mut aggregator, at(1), &Message::Aggregating(Aggregating::Order(order)));
    let chunk: Vec<u8> = (0..1_500_u64).map(|n| crate::rng::mix(n) as u8).collect();
    for offset in [0, 1_000] {
        let payload = Bytes::copy_from_slice(&chunk[offset..1_500.min(offset + 1_000)]);
        aggregator.handle_input(at(2), Input::Payload { header: header(offset, 1_500), payload, arrived: at(2) });
    }
    drain(&mut aggregator, &mut sent);
    assert!([2, 5, 7].iter().all(|id| whole(&sent.payload[&NodeId(*id)]) == chunk));
    assert_eq!(sent.events.last(), Some(&Event::Passed { came: 1_500, sent: 4_500, parity: 0 }));
}

#[test]
fn more_than_fits_is_answered_that_it_is_busy() {
    let (mut aggregator, mut sent) = (aggregator(), Sent::default());
    let code = erasure::Code::new(2, 1);
    for n in 0..4 {
        let (txn, size) = (TxnId(n), (104 + 512 * 1_000) as u32);
        let request = AggregateRequest { txn, round: 1, code, size, rate: RATE, earliest: Span::ZERO };
        says(&mut aggregator, at(n), &Message::Aggregating(Aggregating::Request(request)));
        let receivers = (0..3).map(|n| Receiver { piece: Piece(n), target: NodeId(1), start: Span::ZERO }).collect();
        let order = AggregateOrder { txn, round: 1, code, size, rate: RATE, receivers };
        says(&mut aggregator, at(n), &Message::Aggregating(Aggregating::Order(order)));
    }
    drain(&mut aggregator, &mut sent);
    let is_window = |answer: &Answer| answer.window().is_some();
    assert_eq!(sent.answers.iter().map(is_window).collect::<Vec<bool>>(), [true, true, false, false]);
    assert_eq!(aggregator.in_progress(), 2);
}

/// All are asked for before the first is ordered; and what is ordered is what was offered.
#[test]
fn what_is_offered_has_its_memory() {
    let (mut aggregator, mut sent) = (aggregator(), Sent::default());
    let (code, size, other) = (erasure::Code::new(2, 1), (104 + 512 * 1_000) as u32, (104 + 512 * 2_000) as u32);
    for n in 0..4 {
        let (txn, earliest) = (TxnId(n), Span::ZERO);
        let request = AggregateRequest { txn, round: 1, code, size, rate: RATE, earliest };
        says(&mut aggregator, at(0), &Message::Aggregating(Aggregating::Request(request)));
    }
    for (n, size) in [(0, size), (1, other), (2, size), (3, size)] {
        let receivers = (0..3).map(|n| Receiver { piece: Piece(n), target: NodeId(1), start: Span::ZERO }).collect();
        let order = AggregateOrder { txn: TxnId(n), round: 1, code, size, rate: RATE, receivers };
        says(&mut aggregator, at(1), &Message::Aggregating(Aggregating::Order(order)));
    }
    drain(&mut aggregator, &mut sent);
    let offered = sent.answers.iter().filter(|answer| answer.window().is_some()).count();
    assert_eq!((offered, aggregator.in_progress()), (2, 1), "{:?}", sent.answers);
    let refused =
        |reason| sent.events.iter().filter(|event| matches!(event, Event::Ignored(is) if *is == reason)).count();
    assert_eq!((refused(IgnoredReason::Invalid), refused(IgnoredReason::Late)), (1, 2));
}

#[test]
fn what_is_ordered_once_more_takes_no_more_memory() {
    let (mut aggregator, mut sent) = (aggregator(), Sent::default());
    ordered(&mut aggregator, &mut sent);
    let held = aggregator.held;
    ordered(&mut aggregator, &mut sent);
    assert!(held > 0 && aggregator.held == held && aggregator.in_progress() == 1);
}

/// What comes of several chunks passes at once, as long as its port is through with each when that has come.
#[test]
fn chunks_that_come_slowly_may_come_together() {
    let (mut aggregator, mut sent) = (aggregator(), Sent::default());
    let size = 104 + 512 * 100;
    let (code, earliest) = (erasure::Code::new(2, 1), Span::from_micros(500));
    // Each comes in two pieces at a rate, and leaves in three at eight times that.
    for n in 0..6 {
        let request = AggregateRequest { txn: TxnId(n), round: 1, code, size, rate: RATE, earliest };
        says(&mut aggregator, at(0), &Message::Aggregating(Aggregating::Request(request)));
    }
    drain(&mut aggregator, &mut sent);
    let (comes, leaves) =
        (Span::of_transfer(u64::from(size) * 2, RATE), Span::of_transfer(u64::from(size) * 3, 8 * RATE));
    assert!(leaves.times(5) < comes && leaves.times(6) > comes);
    let starts: Vec<Span> = sent.answers.iter().map(|answer| answer.window().expect("it has room").start).collect();
    assert_eq!(starts[..5], [earliest; 5], "its port is through with five by then");
    assert!(starts[5] > earliest && starts[5] < earliest + leaves, "{:?}", starts[5]);
}
