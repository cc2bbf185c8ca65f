//! The leader of a group, told and asked by hand: what it grants, and that nobody depends on it.

use protocol::config::Config;
use protocol::id::{ChunkId, Epoch, GroupId, NodeId, TxnId};
use protocol::initiator::{ChunkPut, Initiator, Request};
use protocol::limits;
use protocol::machine::{Body, Completion, Destination, Effect, Held, Input, Machine, Output};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::redundancy::{Redundancy, Wanted};
use protocol::target::{Setup, Target};
use protocol::time::{Instant, Span};
use protocol::transport::Transport;
use protocol::wire::{
    Ack, Answer, Bid, DataHeader, Direction, Grant, GrantedWindow, Holds, LeadRequest, Leading, Message, PutRequest,
    Report, decode_message,
};

use crate::common::{self, CLUSTER, INITIATOR, arriving, at, from, map, put, step, tell, window};

const GROUP: GroupId = GroupId(0);

fn member(id: u32) -> Target {
    let setup = Setup { id: NodeId(id), map: map(), free: 1 << 30, chunks: 0, seed: 0, bug: None };
    Target::new(setup, Config { scrub_interval: Span::ZERO, ..Config::default() })
}

fn report(term: u32, disk: Span) -> Message {
    let (each, whole) = (Span::from_micros(100), Span::from_micros(200));
    Message::Leading(Leading::Report(Report {
        group: GROUP,
        term,
        port: Span::ZERO,
        disk,
        size: 1 << 20,
        each,
        whole,
        rate: 1_000_000_000,
        free: 1 << 30,
    }))
}

fn lead_request(txn: u64, round: u8, id: ChunkId) -> LeadRequest {
    let Message::PutRequest(put) = put(txn, round, id, 1 << 20) else { unreachable!("it is one") };
    let PutRequest { txn, round, id, size, group, earliest, busy, .. } = put;
    let (wanted, have, avoid) = (Wanted::of(Some(Redundancy::Copies(3))), Vec::new(), Vec::new());
    LeadRequest { txn, round, wanted, id, size, group, earliest, busy, have, avoid }
}

fn request(txn: u64, id: ChunkId) -> Message {
    Message::Leading(Leading::Request(lead_request(txn, 1, id)))
}

fn grant(txn: u64, term: u32, id: ChunkId, target: u32) -> Message {
    let turn = GrantedWindow { target: NodeId(target), start: Span::from_millis(1), done: Span::from_millis(3) };
    Message::Leading(Leading::Grant(Grant {
        initiator: INITIATOR,
        txn: TxnId(txn),
        round: 1,
        id,
        size: 1 << 20,
        group: GROUP,
        term,
        direction: Direction::Put(Wanted::BY_MAP),
        transfer: Span::from_millis(1),
        rate: 1_000_000_000,
        windows: vec![turn],
    }))
}

fn grant_of(message: &Message) -> Option<&Grant> {
    match message {
        Message::Leading(Leading::Grant(grant)) => Some(grant),
        _ => None,
    }
}

fn grants(messages: &[Message]) -> Vec<Grant> {
    messages.iter().filter_map(grant_of).cloned().collect()
}

fn hear(target: &mut Target, nanos: u64, sender: u32, message: &Message) -> Vec<Message> {
    step(target, at(nanos), arriving(from(NodeId(sender), message))).0
}

/// Target 1, which leads and has heard from its members.
fn leader() -> Target {
    let mut leader = member(1);
    let id = ChunkId::of_payload(b"first");
    let (answer, _) = step(&mut leader, at(0), arriving(from(INITIATOR, &request(1, id))));
    assert!(answer.contains(&Message::Bid(Bid { txn: TxnId(1), round: 1, answer: Answer::Busy(Span::ZERO) })));
    let claim = Message::Leading(Leading::Claim { group: GROUP, term: 1 });
    assert_eq!(answer.iter().filter(|m| **m == claim).count(), 2, "both members are told: {answer:?}");
    for sender in [2, 3] {
        assert!(hear(&mut leader, 10, sender, &report(1, Span::ZERO)).is_empty());
    }
    leader
}

#[test]
fn a_leader_grants_windows_that_follow_each_other() {
    let mut leader = leader();
    let mut ends = Vec::new();
    for txn in 2..5 {
        let id = ChunkId::of_payload(&[txn]);
        let (answer, _) = step(&mut leader, at(20), arriving(from(INITIATOR, &request(txn.into(), id))));
        let granted = grants(&answer);
        assert_eq!(granted.len(), 2, "one for the other members, one for the initiator: {answer:?}");
        assert_eq!(granted[0], granted[1]);
        let mut targets: Vec<NodeId> = granted[0].windows.iter().map(|turn| turn.target).collect();
        targets.sort_unstable();
        assert_eq!(targets, [1, 2, 3].map(NodeId));
        let start = granted[0].windows[0].start;
        assert!(granted[0].windows.iter().all(|turn| turn.start == start), "one transmission serves all");
        assert!(ends.last().is_none_or(|end| *end <= start), "{ends:?} {start}");
        ends.push(start + granted[0].transfer);
    }
    // It keeps to what it granted of itself.
    let (bid, _) = tell(&mut leader, at(30), &put(9, 1, ChunkId::of_payload(b"other"), 1 << 20), None);
    assert!(window(&bid).start + Span::from_nanos(10) >= ends[2], "{bid:?} {ends:?}");
}

/// A map with the same targets in one cell, whose id leaves too few bits of an address for its members.
fn without_addresses() -> (ClusterMap, GroupId) {
    let (map, id) = (map(), limits::CELL_IDS - 1);
    let mut layout = map.placement().layout().clone();
    layout.cells[0].id = id;
    layout.cells[0].targets.extend([4, 5].map(NodeId));
    let entry = |n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 };
    let map = ClusterMap::with_layout(CLUSTER, Epoch(1), 3, (1..=5).map(entry).collect(), layout).expect("a good map");
    assert!(!map.has_addresses());
    (map, GroupId(id))
}

#[test]
fn a_leader_grants_nothing_to_sets_that_have_no_address() {
    let (map, group) = without_addresses();
    let setup = Setup { id: NodeId(1), map, free: 1 << 30, chunks: 0, seed: 0, bug: None };
    let mut leader = Target::new(setup, Config { scrub_interval: Span::ZERO, ..Config::default() });
    let mut hear = |nanos: u64, sender: NodeId, message: Leading| {
        leader.handle_input(at(nanos), arriving(from(sender, &Message::Leading(message))));
        let mut sent = Vec::new();
        loop {
            match leader.poll_output() {
                Output::Transmit(transmit) => {
                    let Body::Control(message) = transmit.body else { continue };
                    sent.push((transmit.to, decode_message(&message).expect("what is sent can be decoded").1));
                }
                Output::Idle(_) => return sent,
                _ => {}
            }
        }
    };
    let asked = |txn| LeadRequest { group, ..lead_request(txn, 1, ChunkId::of_payload(&[txn as u8])) };
    hear(0, INITIATOR, Leading::Request(asked(1)));
    for sender in 2..=5 {
        let Message::Leading(Leading::Report(report)) = report(1, Span::ZERO) else { unreachable!("it is one") };
        hear(10, NodeId(sender), Leading::Report(Report { group, ..report }));
    }
    let sent = hear(20, INITIATOR, Leading::Request(asked(2)));
    let granted: Vec<&Grant> = sent.iter().filter_map(|(_, message)| grant_of(message)).collect();
    let starts: std::collections::BTreeSet<Span> = granted[0].windows.iter().map(|turn| turn.start).collect();
    assert_eq!(starts.len(), 3, "each copy is sent by itself: {:?}", granted[0].windows);
    assert!(sent.iter().all(|(to, _)| matches!(to, Destination::Node(_))), "nobody listens to sets: {sent:?}");
}

#[test]
fn a_busy_disk_is_told_of_and_left_out() {
    let mut leader = leader();
    hear(&mut leader, 15, 3, &report(1, Span::from_millis(500)));
    let (answer, _) = step(&mut leader, at(20), arriving(from(INITIATOR, &request(2, ChunkId::of_payload(b"x")))));
    let done: Vec<Span> = grants(&answer)[0].windows.iter().map(|turn| turn.done).collect();
    assert!(done.iter().any(|done| *done > Span::from_millis(400)), "three members, three copies: {done:?}");
    // Who has a copy already is not asked for another.
    let id = ChunkId::of_payload(b"y");
    let Message::Leading(Leading::Request(again)) = request(3, id) else { unreachable!("it is one") };
    let again = LeadRequest { have: vec![NodeId(1)], avoid: vec![NodeId(3)], ..again };
    let (answer, _) = step(&mut leader, at(30), arriving(from(INITIATOR, &Message::Leading(Leading::Request(again)))));
    let windows: Vec<NodeId> = grants(&answer)[0].windows.iter().map(|window| window.target).collect();
    assert_eq!(windows, [NodeId(2)], "one is left for two copies, and is granted");
}

#[test]
fn members_keep_the_last_word() {
    let mut third = member(3);
    let (bid, _) = tell(&mut third, at(0), &put(7, 1, ChunkId::of_payload(b"own"), 4 << 20), None);
    assert!(window(&bid).length > Span::from_millis(2));
    let refusal = Message::Bid(Bid { txn: TxnId(1), round: 1, answer: Answer::Busy(Span::ZERO) });
    let sent = hear(&mut third, 5, 1, &grant(1, 4, ChunkId::of_payload(b"x"), 3));
    assert!(sent.contains(&refusal), "the port is another's: {sent:?}");
    assert!(
        sent.iter().any(|m| matches!(m, Message::Leading(Leading::Report(r)) if r.term == 4 && r.port > Span::ZERO))
    );
    // What an earlier leader grants is refused, and it learns why.
    let sent = hear(&mut third, 10, 2, &grant(1, 3, ChunkId::of_payload(b"x"), 3));
    assert!(
        sent.contains(&refusal)
            && sent.iter().any(|m| matches!(m, Message::Leading(Leading::Report(r)) if r.term == 4))
    );
}

#[test]
fn a_member_takes_no_more_grants_than_it_keeps_reservations() {
    let mut third = member(3);
    let most = limits::RESERVATIONS as u64;
    for txn in 1..=most + 1 {
        let Message::Leading(Leading::Grant(large)) = grant(txn, 1, ChunkId::of_payload(&txn.to_le_bytes()), 3) else {
            unreachable!("it is one")
        };
        let sent = hear(&mut third, txn, 1, &Message::Leading(Leading::Grant(Grant { size: 10, ..large })));
        let refusal = Message::Bid(Bid { txn: TxnId(txn), round: 1, answer: Answer::Busy(Span::ZERO) });
        assert_eq!(sent.contains(&refusal), txn > most, "{txn}: {sent:?}");
    }
    assert_eq!(third.in_progress(), limits::RESERVATIONS);
}

#[test]
fn a_granted_window_takes_payload_and_only_the_disk_makes_it_a_copy() {
    let mut third = member(3);
    let payload = vec![7; 1 << 20];
    let id = ChunkId::of_payload(&payload);
    let (sent, effects) = step(&mut third, at(0), arriving(from(NodeId(1), &grant(1, 1, id, 3))));
    assert!(sent.is_empty(), "silence is consent: {sent:?}");
    let [(look, Effect::Lookup { .. })] = effects[..] else { panic!("{effects:?}") };
    assert!(step(&mut third, at(1), Input::Done { op: look, completion: Completion::Found(None) }).0.is_empty());
    let header = DataHeader { cluster: CLUSTER, from: INITIATOR, txn: TxnId(1), offset: 0, size: 1 << 20 };
    let (sent, effects) =
        step(&mut third, at(2), Input::Payload { header, payload: payload.into(), arrived: Instant::FAR });
    assert!(!sent.iter().any(|m| matches!(m, Message::Ack { .. })), "{sent:?}");
    let [(write, Effect::Write { .. })] = effects[..] else { panic!("{effects:?}") };
    let done = Completion::Written { result: Ok(()), free: 1 << 30 };
    let (sent, _) = step(&mut third, at(3), Input::Done { op: write, completion: done });
    assert_eq!(sent, [Message::Ack { txn: TxnId(1), ack: Ack::Durable }]);
}

#[test]
fn a_member_that_holds_the_chunk_says_so() {
    let mut third = member(3);
    let id = ChunkId::of_payload(b"here");
    let (_, effects) = step(&mut third, at(0), arriving(from(NodeId(1), &grant(1, 1, id, 3))));
    let [(look, Effect::Lookup { promise: Some(_), .. })] = effects[..] else { panic!("{effects:?}") };
    let (sent, _) = step(
        &mut third,
        at(1),
        Input::Done {
            op: look,
            completion: Completion::Found(Some(Held { id, size: 1 << 20, wanted: Wanted::BY_MAP })),
        },
    );
    assert_eq!(sent, [Message::Bid(Bid { txn: TxnId(1), round: 1, answer: Answer::HaveIt })]);
    assert_eq!(third.in_progress(), 0, "and keeps nothing for it");
}

#[test]
fn the_lowest_leads_and_a_higher_one_only_when_it_is_gone() {
    let (mut first, mut second) = (leader(), member(2));
    hear(&mut second, 0, 1, &Message::Leading(Leading::Claim { group: GROUP, term: 1 }));
    let ask = |target: &mut Target, nanos| {
        step(target, at(nanos), arriving(from(INITIATOR, &request(nanos, ChunkId::of_payload(b"x"))))).0
    };
    let claims = |sent: &[Message]| sent.iter().any(|m| matches!(m, Message::Leading(Leading::Claim { .. })));
    assert!(!claims(&ask(&mut second, 100)), "the first was heard just now");
    assert!(claims(&ask(&mut second, 10_000_000_000)), "it is silent");
    // The first comes back, with an earlier term; it learns of the later one, and goes beyond it.
    let late = Message::Leading(Leading::Claim { group: GROUP, term: 2 });
    let sent = hear(&mut first, 10_000_000_100, 2, &late);
    let again = Message::Leading(Leading::Claim { group: GROUP, term: 3 });
    assert!(sent.contains(&again), "{sent:?}");
    hear(&mut second, 10_000_000_200, 1, &again);
    assert!(!claims(&ask(&mut second, 10_000_000_300)));
}

#[test]
fn readers_are_sent_to_the_holder_that_is_free() {
    let mut leader = leader();
    let id = ChunkId::of_payload(b"sought");
    let holds = |read| {
        let (port, alone) = (Span::ZERO, Span::from_micros(10));
        let (txn, round, size, rate) = (TxnId(5), 1, 1 << 20, 1_000_000_000);
        let group = GROUP;
        Message::Leading(Leading::Holds(Holds {
            initiator: INITIATOR,
            txn,
            round,
            id,
            group,
            size,
            port,
            read,
            alone,
            rate,
            wanted: Wanted::BY_MAP,
        }))
    };
    hear(&mut leader, 100, 2, &holds(Span::from_millis(9)));
    hear(&mut leader, 110, 3, &holds(Span::from_micros(9)));
    leader.handle_input(at(1_000_000), Input::Wake);
    let mut granted = Vec::new();
    loop {
        match leader.poll_output() {
            Output::Transmit(transmit) => {
                if let Body::Control(bytes) = transmit.body
                    && let Some((_, Message::Leading(Leading::Grant(grant)))) = protocol::wire::decode_message(&bytes)
                {
                    granted.push((transmit.to, grant));
                }
            }
            Output::Idle(_) => break,
            Output::Effect { .. } | Output::Event(_) => {}
        }
    }
    let to: Vec<Destination> = granted.iter().map(|(to, _)| *to).collect();
    assert_eq!(to, [NodeId(3), INITIATOR].map(Destination::Node));
    assert!(granted[0].1.direction == Direction::Get && granted[0].1.windows[0].target == NodeId(3));
}

#[test]
fn without_an_answer_of_the_leader_the_group_is_asked() {
    let config = Config { transport: Transport::LEADER, lead_gets: true, ..Config::default() };
    let mut initiator = Initiator::new(INITIATOR, map(), config, 1);
    let payload = vec![1; 100];
    let id = ChunkId::of_payload(&payload);
    let request = Request::Put { handle: 1, put: ChunkPut::new(id, payload.into()) };
    let (sent, _) = step(&mut initiator, at(0), Input::Request(request));
    assert!(matches!(&sent[..], [Message::Leading(Leading::Request(_))]), "{sent:?}");
    let (sent, _) = step(&mut initiator, at(50_000_000), Input::Wake);
    assert!(matches!(&sent[..], [Message::PutRequest(PutRequest { round: 2, .. })]), "{sent:?}");
    // A get of one that never answered, too.
    let (sent, _) = step(
        &mut initiator,
        at(50_000_001),
        Input::Request(Request::Get { handle: 2, id, holders: vec![], fragments: None }),
    );
    assert!(matches!(&sent[..], [Message::Leading(Leading::Seek(_))]), "{sent:?}");
    let (sent, _) = step(&mut initiator, at(100_000_001), Input::Wake);
    assert!(sent.iter().any(|m| matches!(m, Message::GetRequest { .. })), "{sent:?}");
    // Others never ask one.
    let (sent, _) = step(
        &mut common::initiator(),
        at(0),
        Input::Request(Request::Get { handle: 1, id, holders: vec![], fragments: None }),
    );
    assert!(matches!(&sent[..], [Message::GetRequest { .. }]), "{sent:?}");
}

#[test]
fn a_request_that_the_network_doubled_is_answered_once() {
    let mut leader = leader();
    let id = ChunkId::of_payload(b"x");
    let mut ask = |nanos, round| {
        let message = Message::Leading(Leading::Request(lead_request(2, round, id)));
        step(&mut leader, at(nanos), arriving(from(INITIATOR, &message))).0
    };
    let first = grants(&ask(20, 1));
    assert_eq!(first.len(), 2);
    assert_eq!(ask(30, 1), [], "neither windows that nobody uses nor a refusal");
    // A later round is another request, and has the port to itself: what was granted before is not used any more.
    let again = grants(&ask(40, 2));
    assert_eq!((again.len(), again[0].windows[0].start), (2, first[0].windows[0].start));
    assert_eq!(ask(50, 1), []);
}

fn holds_of(round: u8, wanted: Wanted) -> Message {
    let (port, read, alone) = (Span::ZERO, Span::ZERO, Span::ZERO);
    let (id, txn, size, rate) = (ChunkId::of_payload(b"sought"), TxnId(5), 1 << 20, 1_000_000_000);
    let (initiator, group) = (INITIATOR, GROUP);
    Message::Leading(Leading::Holds(Holds { initiator, txn, round, id, group, size, port, read, alone, rate, wanted }))
}

#[test]
fn a_reader_waits_for_no_more_holders_than_there_should_be() {
    let mut leader = leader();
    let two = Wanted::of(Redundancy::copies(2));
    let mut hear = |nanos, member, round, wanted| {
        grants(&step(&mut leader, at(nanos), arriving(from(NodeId(member), &holds_of(round, wanted)))).0)
    };
    assert_eq!(hear(100, 2, 1, two), []);
    assert_eq!(hear(200, 3, 1, two).len(), 2, "both copies answered, in a cluster of three");
    assert_eq!(hear(300, 2, 2, Wanted::BY_MAP), []);
    assert_eq!(hear(400, 3, 2, Wanted::BY_MAP), [], "the third may be free sooner");
}

#[test]
fn a_holder_that_says_so_after_the_choice_is_not_sent_as_well() {
    let mut leader = leader();
    let holds = |round| holds_of(round, Wanted::BY_MAP);
    hear(&mut leader, 100, 2, &holds(1));
    assert_eq!(grants(&step(&mut leader, at(1_000_000), Input::Wake).0).len(), 2);
    hear(&mut leader, 1_000_100, 3, &holds(1));
    assert_eq!(grants(&step(&mut leader, at(2_000_000), Input::Wake).0), []);
    // It is sought once more.
    hear(&mut leader, 2_000_100, 3, &holds(2));
    assert_eq!(grants(&step(&mut leader, at(3_000_000), Input::Wake).0).len(), 2);
}

/// An initiator with a leader, and the transaction of what it was asked.
fn asking(request: Request) -> (Initiator, TxnId) {
    let config = Config { transport: Transport::LEADER, lead_gets: true, ..Config::default() };
    let mut initiator = Initiator::new(INITIATOR, map(), config, 1);
    let (sent, _) = step(&mut initiator, at(0), Input::Request(request));
    let txn = match &sent[..] {
        [Message::Leading(Leading::Request(request))] => request.txn,
        [Message::Leading(Leading::Seek(seek)), ..] => seek.txn,
        other => panic!("{other:?}"),
    };
    (initiator, txn)
}

fn put_of(payload: &[u8]) -> Request {
    Request::Put { handle: 1, put: ChunkPut::new(ChunkId::of_payload(payload), payload.to_vec().into()) }
}

/// A grant for a round of `txn`, of windows at some targets.
fn granted(txn: TxnId, round: u8, id: ChunkId, direction: Direction, targets: &[u32]) -> Message {
    let Message::Leading(Leading::Grant(grant)) = grant(txn.0, 1, id, 1) else { unreachable!("it is one") };
    let turn = |n: &u32| GrantedWindow { target: NodeId(*n), ..grant.windows[0] };
    let windows = targets.iter().map(turn).collect();
    let size = 100;
    Message::Leading(Leading::Grant(Grant { round, direction, size, windows, ..grant }))
}

#[test]
fn what_is_granted_too_late_is_given_back_at_once() {
    let payload = vec![1; 100];
    let id = ChunkId::of_payload(&payload);
    for (request, direction, targets) in [
        (put_of(&payload), Direction::Put(Wanted::BY_MAP), &[2, 3][..]),
        (Request::Get { handle: 1, id, holders: vec![], fragments: None }, Direction::Get, &[2]),
    ] {
        let (mut initiator, txn) = asking(request);
        step(&mut initiator, at(50_000_000), Input::Wake);
        let mut hear = |nanos, message: &Message| {
            initiator.handle_input(at(nanos), arriving(from(NodeId(1), message)));
            let mut released = Vec::new();
            loop {
                match initiator.poll_output() {
                    Output::Transmit(transmit) => {
                        let Body::Control(bytes) = transmit.body else { panic!("payload") };
                        let (_, message) = protocol::wire::decode_message(&bytes).expect("it can be decoded");
                        assert_eq!(message, common::refused(txn.0, 1));
                        released.push(transmit.to);
                    }
                    Output::Idle(_) => return released,
                    _ => {}
                }
            }
        };
        let everybody: Vec<Destination> = targets.iter().chain(&[1]).map(|n| Destination::Node(NodeId(*n))).collect();
        let late = granted(txn, 1, id, direction, targets);
        assert_eq!(hear(50_000_100, &late), everybody);
        // Also when all is over, and of a transaction that nobody knows.
        for target in 1..=3 {
            let answer = if direction == Direction::Get { Answer::NotHere } else { Answer::HaveIt };
            let bid = Message::Bid(Bid { txn, round: 2, answer });
            initiator_hears(&mut initiator, 50_000_200, target, &bid);
        }
        assert_eq!(initiator.in_progress(), 0);
        let sent = initiator_hears(&mut initiator, 50_000_300, 1, &late);
        assert_eq!(sent.len(), everybody.len(), "{sent:?}");
    }
}

fn initiator_hears(initiator: &mut Initiator, nanos: u64, sender: u32, message: &Message) -> Vec<Message> {
    step(initiator, at(nanos), arriving(from(NodeId(sender), message))).0
}

#[test]
fn a_grant_that_the_network_doubled_is_not_given_back() {
    let payload = vec![1; 100];
    let id = ChunkId::of_payload(&payload);
    for (request, direction, targets) in [
        (put_of(&payload), Direction::Put(Wanted::BY_MAP), &[1, 2, 3][..]),
        (Request::Get { handle: 1, id, holders: vec![], fragments: None }, Direction::Get, &[2]),
    ] {
        let (mut initiator, txn) = asking(request);
        let grant = granted(txn, 1, id, direction, targets);
        assert_eq!(initiator_hears(&mut initiator, 100, 1, &grant), []);
        assert_eq!(initiator_hears(&mut initiator, 200, 1, &grant), []);
    }
}

#[test]
fn the_holder_that_a_leader_chose_is_remembered() {
    let payload = vec![1; 100];
    let id = ChunkId::of_payload(&payload);
    let (mut initiator, txn) = asking(Request::Get { handle: 1, id, holders: vec![], fragments: None });
    initiator_hears(&mut initiator, 100, 1, &granted(txn, 1, id, Direction::Get, &[2]));
    let header = DataHeader { cluster: CLUSTER, from: NodeId(2), txn, offset: 0, size: 100 };
    let (_, effects) =
        step(&mut initiator, at(2_000_000), Input::Payload { header, payload: payload.into(), arrived: Instant::FAR });
    let [(op, Effect::Verify { .. })] = effects[..] else { panic!("{effects:?}") };
    step(&mut initiator, at(2_000_001), Input::Done { op, completion: Completion::Verified(true) });
    assert_eq!(initiator.in_progress(), 0);
    // The leader does not answer the next get, so its group is asked; of that, who is known to hold it.
    let (sent, _) = step(
        &mut initiator,
        at(3_000_000),
        Input::Request(Request::Get { handle: 2, id, holders: vec![], fragments: None }),
    );
    assert!(sent.iter().all(|m| matches!(m, Message::Leading(Leading::Seek(_)))), "{sent:?}");
    initiator.handle_input(at(60_000_000), Input::Wake);
    let to = core::iter::from_fn(|| match initiator.poll_output() {
        Output::Transmit(transmit) => Some(transmit.to),
        _ => None,
    });
    assert_eq!(to.collect::<Vec<_>>(), [Destination::Node(NodeId(2))]);
}
