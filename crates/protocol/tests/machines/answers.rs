//! What a machine answers, and what it makes of answers.

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{ChunkId, Epoch, GroupId, NodeId, TxnId};
use protocol::initiator::{ChunkPut, Initiator, Query, QueryAnswer};
use protocol::machine::{Body, Completion, Destination, Effect, Input, Machine, Output, ReadFailure, WriteFailure};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::redundancy::Wanted;
use protocol::target::{Event, Target};
use protocol::time::{Instant, Span};
use protocol::transport::Transport;
use protocol::wire::{Ack, Answer, Bid, DataHeader, Message, OfferedWindow, decode_message};
use protocol::{initiator, limits};

use crate::common::{
    self, CLUSTER, INITIATOR, arriving, at, from, get, get_accepted, hear, initiator, put, step, target, tell, window,
};

const PAYLOAD: &[u8] = b"stored";

/// One round of a put, to the end of the write.
fn put_round(target: &mut Target, round: u8, result: Result<(), WriteFailure>) -> Vec<Event> {
    window(&tell(target, at(10), &put(1, round, ChunkId::of_payload(PAYLOAD), 6), None).0);
    let header = DataHeader { cluster: CLUSTER, from: INITIATOR, txn: TxnId(1), offset: 0, size: 6 };
    let datagram = Bytes::from([&header.encode()[..], PAYLOAD].concat());
    let (_, effects) = step(target, at(10), arriving(datagram));
    let [(op, Effect::Write { .. })] = effects[..] else { panic!("{effects:?}") };
    hear(target, at(10), Input::Done { op, completion: Completion::Written { result, free: 1 << 30 } }).events
}

#[test]
fn a_probe_tells_the_fate_of_the_last_round() {
    let mut target = target();
    let id = ChunkId::of_payload(PAYLOAD);
    let probe = Message::Probe { txn: TxnId(1), id, wanted: Wanted::BY_MAP };
    let ack = |ack| [Message::Ack { txn: TxnId(1), ack }];
    put_round(&mut target, 1, Err(WriteFailure::NoSpace));
    assert_eq!(tell(&mut target, at(11), &probe, None).0, ack(Ack::NoSpace));
    window(&tell(&mut target, at(12), &put(1, 2, id, 6), None).0);
    assert_eq!(tell(&mut target, at(13), &probe, None).0, ack(Ack::Pending), "payload is waited for");
    let mut target = common::target();
    put_round(&mut target, 1, Err(WriteFailure::NoSpace));
    put_round(&mut target, 2, Ok(()));
    assert_eq!(tell(&mut target, at(14), &probe, Some(6)).0, ack(Ack::Durable));
}

#[test]
fn whoever_uses_an_older_map_is_not_told_of_copies_to_count_on() {
    let mut target = target();
    let id = ChunkId::of_payload(PAYLOAD);
    put_round(&mut target, 1, Ok(()));
    let probe = Message::Probe { txn: TxnId(1), id, wanted: Wanted::BY_MAP };
    assert_eq!(tell(&mut target, at(11), &probe, Some(6)).0, [Message::Ack { txn: TxnId(1), ack: Ack::Durable }]);
    let entry = |n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 };
    let newer = ClusterMap::new(CLUSTER, Epoch(2), 3, 3, (1..=30).map(entry).collect()).expect("a good map");
    hear(&mut target, at(12), Input::Request(protocol::target::Request::Map(newer)));
    let (messages, _) = tell(&mut target, at(13), &probe, Some(6));
    assert!(matches!(messages[..], [Message::Bid(Bid { answer: Answer::Stale, .. })]), "{messages:?}");
}

#[test]
fn a_copy_that_was_read_damaged_is_scrubbed_and_only_then_called_dropped() {
    let mut target = target();
    let id = ChunkId::of_payload(b"rotten");
    tell(&mut target, at(1), &get(1, 1, id), Some(6));
    let (_, effects) = step(&mut target, at(2), get_accepted(1, 1));
    let [(op, Effect::Read { .. })] = effects[..] else { panic!("{effects:?}") };
    let completion = Completion::Read(Err(ReadFailure::Corrupt));
    let sent = hear(&mut target, at(3), Input::Done { op, completion });
    assert!(!sent.events.iter().any(|event| matches!(event, Event::Corrupt { .. })), "{:?}", sent.events);
    let [(op, Effect::Scrub { after: Some(after), max_bytes: 1 })] = sent.effects[..] else {
        panic!("{:?}", sent.effects)
    };
    assert!(after < id, "the scrub begins behind the copy");
    let completion = Completion::Scrubbed { next: Some(id), bytes: 0, bad: vec![id], result: Ok(()) };
    let sent = hear(&mut target, at(4), Input::Done { op, completion });
    assert_eq!(sent.events, [Event::Corrupt { id }]);
}

#[test]
fn a_disk_that_failed_takes_nothing_more_but_serves() {
    let mut target = target();
    let (kept, other) = (ChunkId::of_payload(b"kept"), ChunkId::of_payload(b"other"));
    assert!(put_round(&mut target, 1, Err(WriteFailure::Disk)).contains(&Event::DiskFailed));
    for found in [None, Some(4)] {
        let (messages, _) = tell(&mut target, at(11), &put(2, 1, other, 5), found);
        assert!(matches!(messages[..], [Message::Bid(Bid { answer: Answer::NoSpace, .. })]), "{messages:?}");
    }
    let (messages, _) = tell(&mut target, at(12), &Message::Ping { txn: TxnId(3) }, None);
    assert!(matches!(messages[..], [Message::Pong { free: 0, .. }]), "{messages:?}");
    window(&tell(&mut target, at(13), &get(4, 1, kept), Some(4)).0);
}

#[test]
fn the_same_request_gets_the_same_answer_as_it_stands_then() {
    let id = ChunkId::of_payload(b"x");
    for (request, found) in [(put(1, 1, id, 1 << 20), None), (get(1, 1, id), Some(1 << 20))] {
        let mut target = target();
        // Behind another window, so that it begins later.
        window(&tell(&mut target, at(0), &put(2, 1, ChunkId::of_payload(b"y"), 1 << 20), None).0);
        window(&tell(&mut target, at(0), &get(3, 1, ChunkId::of_payload(b"z")), Some(1 << 20)).0);
        let first = window(&tell(&mut target, at(0), &request, found).0);
        let again = window(&tell(&mut target, at(1_000), &request, found).0);
        assert!(first.start > Span::from_nanos(1_000), "{first:?}");
        assert_eq!(again.start + Span::from_nanos(1_000), first.start);
        assert_eq!((again.length, again.transfer, again.rate), (first.length, first.transfer, first.rate));
        let late = first.start + Span::from_nanos(1_000);
        let last = window(&tell(&mut target, at(late.as_nanos()), &request, found).0);
        assert_eq!((last.start, last.length + Span::from_nanos(1_000)), (Span::ZERO, first.length));
    }
}

fn is_busy(messages: &[Message]) -> bool {
    matches!(messages, [Message::Bid(Bid { answer: Answer::Busy(_), .. })])
}

#[test]
fn whoever_cannot_be_served_now_is_told_so() {
    let mut target = target();
    let id = ChunkId::of_payload(PAYLOAD);
    window(&tell(&mut target, at(10), &put(1, 255, id, 6), None).0);
    let header = DataHeader { cluster: CLUSTER, from: INITIATOR, txn: TxnId(1), offset: 0, size: 6 };
    let datagram = Bytes::from([&header.encode()[..], PAYLOAD].concat());
    let (_, effects) = step(&mut target, at(10), arriving(datagram));
    assert!(matches!(effects[..], [(_, Effect::Write { .. })]), "{effects:?}");
    // The copy is being written; the rounds have begun again at 0.
    assert!(is_busy(&tell(&mut target, at(11), &put(1, 0, id, 6), None).0));
    assert!(tell(&mut target, at(11), &put(1, 254, id, 6), None).0.is_empty());
    for txn in 2..2_000 {
        step(&mut target, at(12), arriving(from(INITIATOR, &put(txn, 1, id, 6))));
    }
    for request in [put(2_000, 1, id, 6), get(2_000, 1, id)] {
        assert!(is_busy(&step(&mut target, at(13), arriving(from(INITIATOR, &request))).0));
    }
    let list = Message::List { txn: TxnId(2_001), prefix: Vec::new(), after: None };
    assert!(is_busy(&step(&mut target, at(14), arriving(from(INITIATOR, &list))).0));
    let (txn, unknown) = (TxnId(2_002), ChunkId::of_payload(b"not here"));
    let (messages, _) = step(
        &mut target,
        at(15),
        arriving(from(INITIATOR, &Message::Probe { txn, id: unknown, wanted: Wanted::BY_MAP })),
    );
    assert_eq!(messages, [Message::Ack { txn, ack: Ack::Pending }]);
}

/// What an initiator says until nothing is in progress, when the targets in `busy` refuse every list and those in `dead` say
/// nothing.
fn list_of_busy(busy: &[u32], dead: &[u32]) -> (Result<initiator::Found, initiator::Busy>, usize, Instant) {
    list_by(initiator(), busy, dead)
}

fn list_by(
    mut initiator: Initiator,
    busy: &[u32],
    dead: &[u32],
) -> (Result<initiator::Found, initiator::Busy>, usize, Instant) {
    let request = initiator::Request::Query { handle: 1, query: Query::List { prefix: Vec::new() } };
    let (mut now, mut input, mut asked) = (at(0), Input::Request(request), 0);
    loop {
        initiator.handle_input(now, input);
        let (mut questions, mut result) = (Vec::new(), None);
        let deadline = loop {
            match initiator.poll_output() {
                Output::Transmit(transmit) => {
                    let (Destination::Node(to), Body::Control(message)) = (transmit.to, transmit.body) else {
                        continue;
                    };
                    if let Some((_, Message::List { txn, .. })) = decode_message(&message) {
                        questions.push((to, txn));
                    }
                }
                Output::Event(initiator::Event::Query { answer: QueryAnswer::List(answer), .. }) => {
                    result = Some(answer)
                }
                Output::Idle(deadline) => break deadline,
                _ => {}
            }
        };
        if let Some(result) = result {
            return (result, asked, now);
        }
        now = deadline.map_or(now, |deadline| deadline.at);
        input = Input::Wake;
        for (to, txn) in questions {
            asked += 1;
            if dead.contains(&to.0) {
                continue;
            }
            let answer = if busy.contains(&to.0) {
                Message::Bid(Bid { txn, round: 0, answer: Answer::Busy(Span::from_millis(500)) })
            } else {
                Message::Listed { txn, ids: vec![ChunkId::of_payload(PAYLOAD)], more: false }
            };
            hear(&mut initiator, now, arriving(from(to, &answer)));
        }
    }
}

#[test]
fn a_list_that_busy_targets_refuse_never_looks_like_an_empty_one() {
    let give_up = Config::default().give_up;
    let (result, asked, end) = list_of_busy(&[1, 2, 3], &[]);
    assert_eq!(result, Err(initiator::Busy));
    assert!(end >= at(0) + give_up && asked < 3 * 70, "{asked} questions until {end}");
    let (result, ..) = list_of_busy(&[2], &[]);
    let found = result.expect("two of three answered");
    assert_eq!(found.silent, [NodeId(2)]);
    assert_eq!(found.chunks, [(ChunkId::of_payload(PAYLOAD), vec![NodeId(1), NodeId(3)])]);
}

#[test]
fn the_dead_are_named_also_beside_a_busy_one() {
    let two = |busy: &[u32], dead: &[u32]| {
        let targets = (1..=4).map(|n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 }).collect();
        let map = ClusterMap::new(CLUSTER, Epoch(1), 2, 3, targets).expect("a good map");
        list_by(Initiator::new(INITIATOR, map, Config::default(), 1), busy, dead).0
    };
    let found = two(&[3], &[1, 2]).expect("as many as copies are dead: that is what to tell");
    assert_eq!(found.silent, [NodeId(1), NodeId(2)]);
    assert_eq!(two(&[2, 3], &[1]), Err(initiator::Busy));
    let found = two(&[], &[4]).expect("one may be dead");
    assert_eq!(found.silent, [NodeId(4)]);
    // Also when patience ends before they were asked often enough.
    let impatient = Config { give_up: Config::default().bid_timeout.times(2), ..Config::default() };
    let found = list_by(Initiator::new(INITIATOR, common::map(), impatient, 1), &[], &[1, 2, 3]).0;
    assert_eq!(found.expect("nobody was busy").silent, [1, 2, 3].map(NodeId));
}

/// An initiator in a cluster of so many targets, without multicast, that was asked to put [`PAYLOAD`].
fn putting(targets: u32) -> (Initiator, TxnId) {
    let targets = (1..=targets).map(|n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 }).collect();
    let map = ClusterMap::new(CLUSTER, Epoch(1), 3, 3, targets).expect("a good map");
    let mut initiator = Initiator::new(INITIATOR, map, Config { multicast: false, ..Config::default() }, 1);
    let (id, payload) = (ChunkId::of_payload(PAYLOAD), Bytes::from_static(PAYLOAD));
    let sent = hear(
        &mut initiator,
        at(0),
        Input::Request(initiator::Request::Put { handle: 1, put: ChunkPut::new(id, payload) }),
    );
    let [Message::PutRequest(request), ..] = &sent.messages[..] else { panic!("{:?}", sent.messages) };
    let txn = request.txn;
    (initiator, txn)
}

fn bid(initiator: &mut Initiator, now: Instant, target: u32, bid: Bid) -> Vec<initiator::Event> {
    hear(initiator, now, arriving(from(NodeId(target), &Message::Bid(bid)))).events
}

#[test]
fn a_put_for_which_too_few_have_room_fails_at_once_and_says_who_is_full() {
    let (mut initiator, txn) = putting(4);
    let no_space = Bid { txn, round: 1, answer: Answer::NoSpace };
    let events = bid(&mut initiator, at(10), 2, no_space);
    assert!(!events.iter().any(|event| matches!(event, initiator::Event::Put { .. })), "three are left: {events:?}");
    let events = bid(&mut initiator, at(20), 3, no_space);
    let failed = events.iter().find_map(|event| match event {
        initiator::Event::Put { result: Err(error), .. } => Some(error.clone()),
        _ => None,
    });
    let full = vec![NodeId(2), NodeId(3)];
    let error = initiator::PutError::TooFewCopies {
        have: vec![],
        domains: 0,
        possible: 2,
        want: 3,
        least: 2,
        silent: vec![],
        full,
    };
    assert_eq!(failed, Some(error));
    assert_eq!(initiator.in_progress(), 0);
}

/// Copies that were made in the group of an older map are not looked for there under the newer one.
#[test]
fn copies_outside_of_the_group_of_a_newer_map_do_not_count() {
    let id = ChunkId::of_payload(PAYLOAD);
    let map = |epoch, targets: std::ops::RangeInclusive<u32>| {
        let entry = |n| TargetEntry { id: NodeId(n), domain: 100 - n as u16, capacity: 1 << 30 };
        ClusterMap::new(CLUSTER, Epoch(epoch), 3, 1, targets.map(entry).collect()).expect("a good map")
    };
    let old = map(1, 1..=3);
    let members = |map: &ClusterMap| map.members(map.group_of(&id)).map(|t| t.id).collect::<Vec<NodeId>>();
    let is_another = |map: &ClusterMap| members(map).iter().all(|member| member.0 > 3);
    let new = (12..60).map(|last| map(2, 1..=last)).find(is_another).expect("another group");
    let inside = members(&new);
    let mut initiator = Initiator::new(INITIATOR, old, Config { multicast: false, ..Config::default() }, 1);
    let put = initiator::Request::Put { handle: 1, put: ChunkPut::new(id, Bytes::from_static(PAYLOAD)) };
    let sent = hear(&mut initiator, at(0), Input::Request(put));
    let [Message::PutRequest(request), ..] = &sent.messages[..] else { panic!("{:?}", sent.messages) };
    let have = Bid { txn: request.txn, round: request.round, answer: Answer::HaveIt };
    bid(&mut initiator, at(10), 1, have);
    bid(&mut initiator, at(10), 2, have);
    hear(&mut initiator, at(20), Input::Request(initiator::Request::Map(new)));
    let events = bid(&mut initiator, at(30), 3, have);
    assert!(!events.iter().any(|event| matches!(event, initiator::Event::Put { .. })), "{events:?}");
    // A late acknowledgement of one of them changes nothing.
    let ack = Message::Ack { txn: have.txn, ack: Ack::Durable };
    let events = hear(&mut initiator, at(40), arriving(from(NodeId(1), &ack))).events;
    assert!(!events.iter().any(|event| matches!(event, initiator::Event::Put { .. })), "{events:?}");
    // Nor are they promised, of which is asked whether they are there.
    let renew = initiator::Request::Query { handle: 2, query: Query::Renew { id, redundancy: None } };
    let mut renewing = Initiator::new(INITIATOR, map(1, 1..=3), Config::default(), 2);
    let sent = hear(&mut renewing, at(0), Input::Request(renew));
    let [Message::Probe { txn: asks, .. }, ..] = sent.messages[..] else { panic!("{:?}", sent.messages) };
    hear(&mut renewing, at(20), Input::Request(initiator::Request::Map(map(2, 1..=30))));
    let promised = |n| from(NodeId(n), &Message::Ack { txn: asks, ack: Ack::Durable });
    let events: Vec<_> = (1..=3).flat_map(|n| hear(&mut renewing, at(30), arriving(promised(n))).events).collect();
    let renewed =
        events.iter().find(|event| matches!(event, initiator::Event::Query { answer: QueryAnswer::Renew(_), .. }));
    assert!(
        matches!(renewed, Some(initiator::Event::Query { answer: QueryAnswer::Renew(Ok(false)), .. })),
        "{events:?}"
    );
    // The next round asks the group under the newer map, and its copies count.
    let mut now = at(40);
    let request = loop {
        now += Span::from_millis(1);
        assert!(now < at(0) + Config::default().give_up, "nobody is asked again");
        match hear(&mut initiator, now, Input::Wake).messages.first() {
            Some(Message::PutRequest(request)) => break request.clone(),
            _ => continue,
        }
    };
    let have = Bid { txn: request.txn, round: request.round, answer: Answer::HaveIt };
    let events: Vec<_> = inside.iter().flat_map(|member| bid(&mut initiator, now, member.0, have)).collect();
    assert!(events.iter().any(|event| matches!(event, initiator::Event::Put { result: Ok(_), .. })), "{events:?}");
}

#[test]
fn a_full_target_is_not_asked_again_by_the_same_put() {
    let (mut initiator, txn) = putting(4);
    bid(&mut initiator, at(10), 2, Bid { txn, round: 1, answer: Answer::NoSpace });
    for target in [1, 3, 4] {
        bid(&mut initiator, at(20), target, Bid { txn, round: 1, answer: Answer::Busy(Span::from_millis(1)) });
    }
    let (mut now, mut asked) = (at(20), Vec::new());
    while asked.is_empty() {
        now += Span::from_millis(1);
        assert!(now < at(0) + Config::default().give_up, "nobody is asked again");
        initiator.handle_input(now, Input::Wake);
        loop {
            match initiator.poll_output() {
                Output::Transmit(transmit) => match (transmit.to, transmit.body) {
                    (Destination::Node(to), Body::Control(_)) => asked.push(to),
                    other => panic!("{other:?}"),
                },
                Output::Idle(_) => break,
                _ => {}
            }
        }
    }
    asked.sort_unstable();
    assert_eq!(asked, [NodeId(1), NodeId(3), NodeId(4)]);
}

#[test]
fn a_target_counts_what_others_leave_of_its_disk() {
    let mut target = target();
    let id = ChunkId::of_payload(PAYLOAD);
    step(&mut target, at(1), Input::Request(protocol::target::Request::Free(5)));
    let (messages, _) = tell(&mut target, at(2), &put(1, 1, id, 6), None);
    assert!(matches!(messages[..], [Message::Bid(Bid { answer: Answer::NoSpace, .. })]), "{messages:?}");
    step(&mut target, at(3), Input::Request(protocol::target::Request::Free(6)));
    window(&tell(&mut target, at(4), &put(2, 1, id, 6), None).0);
}

#[test]
fn a_question_that_an_initiator_refuses_is_answered_so() {
    let mut initiator = initiator();
    for handle in 0..=limits::WAITING as u64 {
        let sent =
            hear(&mut initiator, at(0), Input::Request(initiator::Request::Query { handle, query: Query::Ping }));
        let refused = matches!(
            sent.events[..],
            [initiator::Event::Query { answer: QueryAnswer::Ping(Err(initiator::Busy)), .. }]
        );
        assert_eq!(refused, handle == limits::WAITING as u64, "{:?}", sent.events);
    }
}

/// Lets all three targets answer every round of a transaction with `answer` until it fails: when it was asked for the
/// second time, how many rounds it had, and when it failed.
fn always(request: initiator::Request, answer: Answer) -> (Instant, usize, Instant) {
    let mut initiator = initiator();
    let (mut now, mut input, mut asked) = (at(0), Input::Request(request), Vec::new());
    loop {
        initiator.handle_input(now, input);
        let mut round = None;
        let deadline = loop {
            match initiator.poll_output() {
                Output::Transmit(transmit) => {
                    let Body::Control(message) = transmit.body else { continue };
                    round = match decode_message(&message).expect("what is sent can be decoded").1 {
                        Message::PutRequest(request) => Some((request.txn, request.round)),
                        Message::GetRequest { txn, round, .. } => Some((txn, round)),
                        _ => round,
                    };
                }
                Output::Idle(deadline) => break deadline,
                _ => {}
            }
        };
        if initiator.in_progress() == 0 {
            return (asked[1], asked.len(), now);
        }
        if let Some((txn, round)) = round {
            asked.push(now);
            for target in 1..=3 {
                let bid = Message::Bid(Bid { txn, round, answer });
                step(&mut initiator, now, arriving(from(NodeId(target), &bid)));
            }
        }
        now = deadline.map_or(now, |deadline| deadline.at).max(now + Span::from_micros(1));
        input = Input::Wake;
    }
}

#[test]
fn whoever_is_busy_is_asked_when_it_said_and_for_as_long_as_patience_lasts() {
    let config = Config::default();
    let payload = Bytes::from_static(PAYLOAD);
    let id = ChunkId::of_payload(PAYLOAD);
    let requests = [
        initiator::Request::Put { handle: 1, put: ChunkPut::new(id, payload) },
        initiator::Request::Get { handle: 1, id, holders: vec![], fragments: None },
    ];
    for request in requests {
        let wait = Span::from_millis(500);
        let (second, rounds, end) = always(request.clone(), Answer::Busy(wait));
        assert!(second >= at(0) + wait, "asked again at {second}");
        assert!(rounds < 70 && end >= at(0) + config.give_up, "{rounds} rounds until {end}");
        for answer in [Answer::Busy(Span::ZERO), Answer::Stale] {
            let (_, rounds, end) = always(request.clone(), answer);
            assert!(rounds > 256 && end >= at(0) + config.give_up, "{answer:?}: {rounds} rounds until {end}");
        }
    }
}

#[test]
fn a_disk_that_reads_slowly_says_so_in_its_bids() {
    let mut target = target();
    let (id, took) = (ChunkId::of_payload(b"x"), Span::from_millis(30));
    let first = window(&tell(&mut target, at(0), &get(1, 1, id), Some(100)).0);
    assert!(first.done < Span::from_millis(1), "{first:?}");
    let (_, effects) = step(&mut target, at(0), get_accepted(1, 1));
    let [(op, Effect::Read { .. })] = effects[..] else { panic!("{effects:?}") };
    // Behind one read, and no sooner than reads take.
    let mut now = at(0) + took;
    step(&mut target, now, Input::Done { op, completion: Completion::Read(Ok(Bytes::from(vec![0; 100]))) });
    let second = window(&tell(&mut target, now, &get(2, 1, id), Some(100)).0);
    assert!(second.done >= took && second.done < took.times(2), "{second:?}");
    assert_eq!(second.start, first.start, "the port is free all the same");
    now += Span::from_nanos(1);
    step(&mut target, now, get_accepted(2, 1));
    let third = window(&tell(&mut target, now, &get(3, 1, id), Some(100)).0);
    assert!(third.done >= took.times(2).percent(99), "two reads: {third:?}");
}

/// Where a put's acceptances go, when three of nine bid, and then a fourth.
fn refusals(multicast: bool) -> (Vec<Destination>, Vec<Destination>) {
    let entry = |n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 };
    let map = ClusterMap::new(CLUSTER, Epoch(1), 3, 3, (1..=9).map(entry).collect()).expect("a good map");
    let mut initiator = Initiator::new(INITIATOR, map, Config { multicast, ..Config::default() }, 1);
    let mut hear = |now: u64, input| {
        initiator.handle_input(at(now), input);
        let (mut accepts, mut txn) = (Vec::new(), None);
        loop {
            match initiator.poll_output() {
                Output::Transmit(transmit) => {
                    let Body::Control(message) = transmit.body else { continue };
                    match decode_message(&message).expect("what is sent can be decoded").1 {
                        Message::PutRequest(request) => txn = Some(request.txn),
                        Message::Accept { .. } => accepts.push(transmit.to),
                        _ => {}
                    }
                }
                Output::Idle(_) => return (accepts, txn),
                _ => {}
            }
        }
    };
    let (payload, id) = (Bytes::from_static(PAYLOAD), ChunkId::of_payload(PAYLOAD));
    let (_, txn) = hear(0, Input::Request(initiator::Request::Put { handle: 1, put: ChunkPut::new(id, payload) }));
    let (txn, span) = (txn.expect("it asks"), Span::from_millis(5));
    let slot = OfferedWindow { start: span, length: span, transfer: span, done: span.times(2), rate: 1_000, size: 6 };
    let bid = |target| {
        let bid = Message::Bid(Bid { txn, round: 1, answer: Answer::Window(slot) });
        arriving(from(NodeId(target), &bid))
    };
    for target in 1..=3 {
        assert_eq!(hear(1_000, bid(target)).0, []);
    }
    (hear(3_000_000, Input::Wake).0, hear(3_000_001, bid(4)).0)
}

/// Nothing but its time would free what it reserved.
#[test]
fn whoever_bids_after_the_choice_is_free_again() {
    let (at_the_choice, later) = refusals(true);
    let [Destination::Members(all)] = at_the_choice[..] else { panic!("{at_the_choice:?}") };
    assert_eq!((all.mask.count_ones(), later), (9, vec![]));
    let (at_the_choice, later) = refusals(false);
    assert_eq!((at_the_choice.len(), later), (3, vec![Destination::Node(NodeId(4))]));
}

/// Whom a put asks, and as members of which group; [`PAYLOAD`] but for the last byte.
fn asked(map: ClusterMap, config: Config, last: u8) -> (Vec<NodeId>, Vec<GroupId>) {
    let payload = Bytes::from([PAYLOAD, &[last]].concat());
    let id = ChunkId::of_payload(&payload);
    let mut initiator = Initiator::new(INITIATOR, map, config, 1);
    initiator
        .handle_input(at(0), Input::Request(initiator::Request::Put { handle: 1, put: ChunkPut::new(id, payload) }));
    let mut asked = Vec::new();
    loop {
        match initiator.poll_output() {
            Output::Transmit(transmit) => {
                let (Destination::Node(to), Body::Control(message)) = (transmit.to, transmit.body) else { continue };
                if let Some((_, Message::PutRequest(request))) = decode_message(&message) {
                    asked.push((to, request.group));
                }
            }
            Output::Idle(_) => return asked.into_iter().unzip(),
            _ => {}
        }
    }
}

#[test]
fn a_put_names_the_group_that_it_asks() {
    let entry = |n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 };
    let map = ClusterMap::new(CLUSTER, Epoch(1), 3, 1, (1..=30).map(entry).collect()).expect("a good map");
    let config = Config { multicast: false, ..Config::default() };
    let mut groups = std::collections::BTreeSet::new();
    for last in 0..20 {
        let (mut members, named) = asked(map.clone(), config.clone(), last);
        assert!(named.iter().all(|group| *group == named[0]), "{named:?}");
        members.sort_unstable();
        assert_eq!(members, map.members(named[0]).map(|target| target.id).collect::<Vec<_>>());
        groups.insert(named[0]);
    }
    assert!(groups.len() > 3, "{groups:?}");
}

#[test]
fn without_negotiation_a_put_asks_one_target_of_a_domain() {
    let entry = |n| TargetEntry { id: NodeId(n), domain: (n as u16 - 1) / 3, capacity: 1 << 30 };
    let map = ClusterMap::new(CLUSTER, Epoch(1), 3, 3, (1..=9).map(entry).collect()).expect("a good map");
    let config = Config { transport: Transport::HASH, ..Config::default() };
    for last in 0..20 {
        let (named, _) = asked(map.clone(), config.clone(), last);
        assert_eq!((named.len(), map.count_domains(&named)), (3, 3), "{named:?}");
    }
}

/// What a newer map moved to another group is looked for where it was as well.
#[test]
fn a_chunk_that_its_group_has_not_is_looked_for_where_it_was() {
    let id = ChunkId::of_payload(PAYLOAD);
    let map = |epoch, targets: std::ops::RangeInclusive<u32>| {
        let entry = |n| TargetEntry { id: NodeId(n), domain: 100 - n as u16, capacity: 1 << 30 };
        ClusterMap::new(CLUSTER, Epoch(epoch), 3, 1, targets.map(entry).collect()).expect("a good map")
    };
    let members = |map: &ClusterMap| map.members(map.group_of(&id)).map(|t| t.id).collect::<Vec<NodeId>>();
    let old = map(1, 1..=3);
    let is_another = |map: &ClusterMap| members(map).iter().all(|member| member.0 > 3);
    let new = (12..60).map(|last| map(1, 1..=last)).find(is_another).expect("another group");
    for moved in [false, true] {
        let previous = moved.then(|| old.placement().clone());
        let new = new.clone().with_previous(previous);
        let mut initiator = Initiator::new(INITIATOR, new.clone(), Config::default(), 1);
        let mut sent = hear(
            &mut initiator,
            at(0),
            Input::Request(initiator::Request::Get { handle: 1, id, holders: vec![], fragments: None }),
        );
        let mut over = false;
        let is_nowhere = |event: &initiator::Event| {
            matches!(event, initiator::Event::Get { result: Err(initiator::GetError::NotFound), .. })
        };
        for who in [members(&new), if moved { members(&old) } else { vec![] }] {
            for node in who {
                let Some(Message::GetRequest { txn, round, .. }) = sent.messages.first().cloned() else {
                    panic!("{:?}", sent.messages)
                };
                assert!(!over, "moved: {moved}: {node} was not asked");
                let absent = Message::Bid(Bid { txn, round, answer: Answer::NotHere });
                let next = hear(&mut initiator, at(10), arriving(from(node, &absent)));
                over = next.events.iter().any(is_nowhere);
                if !next.messages.is_empty() {
                    sent = next;
                }
            }
        }
        assert!(over, "moved: {moved}");
    }
}
