//! What targets put for lost copies has what clients leave of a target, and a share of it in any case.

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{ChunkId, NodeId, OpId, TxnId};
use protocol::machine::{Completion, Effect, Held, Input};
use protocol::redundancy::Wanted;
use protocol::target::Target;
use protocol::time::{Instant, Span};
use protocol::wire::{Ack, Answer, Bid, DataHeader, Granted, Message, OfferedWindow, Purpose, PutRequest};

use crate::common::{self, CLUSTER, INITIATOR, arriving, at, from, hear, put, step, target, tell, window};

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
    Message::PutRequest(PutRequest { purpose: Purpose::Restore { urgent, sent: None }, ..request })
}

/// The initiator takes the whole of what it was offered.
fn accept(target: &mut Target, now: Instant, txn: u64) -> Vec<Message> {
    let granted = vec![Granted { target: NodeId(1), offset: Span::ZERO }].into();
    let message = Message::Accept { txn: TxnId(txn), round: 1, granted };
    common::step(target, now, arriving(from(INITIATOR, &message))).0
}

/// One of maintenance is offered a window, from a millisecond on, and a client asks for the same time; neither accepts. What they are
/// offered.
fn beside(target: &mut Target, now: Instant, txn: u64, urgent: bool) -> (OfferedWindow, OfferedWindow) {
    let offered = window(&tell(target, now, &maintenance(txn, Span::from_millis(1), urgent), None).0);
    let (said, _) = tell(target, now, &client(txn + 1, offered.start), None);
    for txn in [txn, txn + 1] {
        common::step(target, now, arriving(from(INITIATOR, &common::refused(txn, 1))));
    }
    (offered, window(&said))
}

/// One whose maintenance was just served like a client.
fn after_the_floor() -> (Target, Instant) {
    let mut target = target();
    let now = served_like_a_client(&mut target);
    (target, now)
}

fn served_like_a_client(target: &mut Target) -> Instant {
    let now = at(1_000_000);
    window(&tell(target, now, &maintenance(1, Span::ZERO, false), None).0);
    accept(target, now, 1);
    now
}

#[test]
fn a_client_is_offered_what_maintenance_has_and_takes_it_when_it_accepts() {
    let (mut target, now) = after_the_floor();
    let lead = Span::from_micros(100);
    let first = window(&tell(&mut target, now, &maintenance(6, lead, false), None).0);
    accept(&mut target, now, 6);
    let second = window(&tell(&mut target, now, &maintenance(7, lead, false), None).0);
    assert!(second.start >= first.start + first.transfer, "they have one after the other");
    let (said, _) = tell(&mut target, now, &client(8, first.start), None);
    assert_eq!((window(&said).start, said.len()), (first.start, 1), "nothing goes back for a question");
    common::step(&mut target, now, arriving(from(INITIATOR, &common::refused(8, 1))));
    let offered = window(&tell(&mut target, now, &client(9, first.start + first.transfer.div(2)), None).0);
    assert_eq!(offered.start, first.start + first.transfer.div(2));
    let said = accept(&mut target, now, 9);
    assert!(said.contains(&Message::Ack { txn: TxnId(6), ack: Ack::Unknown }), "{said:?}");
    let busy = |said: &Message| matches!(said, Message::Bid(Bid { txn: TxnId(7), answer: Answer::Busy(_), .. }));
    assert!(said.iter().any(busy), "it may not choose it any more: {said:?}");
    let third = window(&tell(&mut target, now, &maintenance(10, lead, false), None).0);
    assert!(third.start >= offered.start + offered.transfer, "what a client has is no maintenance's");
}

#[test]
fn the_last_copy_keeps_its_window() {
    let (mut target, now) = after_the_floor();
    let (urgent, client) = beside(&mut target, now, 2, true);
    assert!(client.start >= urgent.start + urgent.transfer, "{client:?}");
}

#[test]
fn a_share_is_kept_for_it() {
    let (mut target, now) = after_the_floor();
    let yields = |target: &mut Target, at: Instant, txn: u64| {
        let (maintenance, client) = beside(target, at, txn, false);
        client.start < maintenance.start + maintenance.transfer
    };
    assert!(yields(&mut target, now, 10), "it had its share");
    assert!(yields(&mut target, now + Span::from_millis(2), 20), "it had its share");
    // After fifty times what it took.
    let now = now + Span::from_millis(150);
    assert!(!yields(&mut target, now, 30));
    // A window that a client took before anything came is no use of it.
    for txn in [31, 32] {
        let offered = window(&tell(&mut target, now, &maintenance(txn, Span::ZERO, false), None).0);
        assert!(offered.size == SIZE);
        common::step(&mut target, now, arriving(from(INITIATOR, &common::refused(txn, 1))));
    }
    assert!(!yields(&mut target, now, 40));
}

#[test]
fn a_share_is_no_more_than_that_where_one_copy_takes_long() {
    let config = Config { scrub_interval: Span::ZERO, ..Config::of_link(2_500_000) };
    let mut target = common::target_with(config);
    let now = served_like_a_client(&mut target);
    let yields = |target: &mut Target, after: u64, txn: u64| {
        let (maintenance, client) = beside(target, now + Span::from_millis(after), txn, false);
        client.start < maintenance.start + maintenance.transfer
    };
    // It took a tenth of a second, which is its share of five.
    assert!(yields(&mut target, 4_900, 10), "it had its share");
    assert!(!yields(&mut target, 5_300, 20));
}

#[test]
fn a_client_that_is_late_takes_the_window_behind_its_own() {
    let parts = Config { scrub_interval: Span::ZERO, part: SIZE / 16, ..Config::default() };
    let mut target = common::target_with(parts);
    let now = served_like_a_client(&mut target) + Span::from_millis(1);
    comes(&mut target, now, 1, (0, SIZE));
    let clients = window(&tell(&mut target, now, &client(2, Span::ZERO), None).0);
    accept(&mut target, now, 2);
    let behind = window(&tell(&mut target, now, &maintenance(3, Span::ZERO, false), None).0);
    accept(&mut target, now, 3);
    assert!(behind.start >= clients.start + clients.transfer && behind.start < clients.transfer.times(2), "{behind:?}");
    let sent = |target: &mut Target, now: Instant, offset: u32| {
        let header = DataHeader { cluster: CLUSTER, from: INITIATOR, txn: TxnId(2), offset, size: SIZE };
        let payload = Bytes::from(vec![0; SIZE as usize / 8]);
        step(target, now, Input::Payload { header, payload, arrived: now }).0
    };
    let lost = Message::Ack { txn: TxnId(3), ack: Ack::Unknown };
    let start = now + clients.start;
    assert!(!sent(&mut target, start + clients.transfer.div(8), 0).contains(&lost), "it is in time");
    let late = start + clients.transfer.times(7).div(8);
    assert!(sent(&mut target, late, SIZE / 8).contains(&lost), "six eighths are still to come");
    let next = window(&tell(&mut target, late, &maintenance(4, Span::ZERO, false), None).0);
    assert!(next.start >= clients.transfer.percent(70), "{next:?} is behind them");
}

/// A copy that may come in parts, of which so much was sent.
fn part(txn: u64, round: u8, sent: u32) -> Message {
    let Message::PutRequest(request) = maintenance(txn, Span::ZERO, false) else { unreachable!("it is a request") };
    Message::PutRequest(PutRequest { round, purpose: Purpose::Restore { urgent: false, sent: Some(sent) }, ..request })
}

/// What the answer is to such a request.
fn answer(said: &[Message]) -> Answer {
    match said {
        [Message::Bid(bid)] => bid.answer,
        other => panic!("{other:?} is no answer"),
    }
}

/// Bytes of a chunk come, from `offset` on.
fn comes(target: &mut Target, now: Instant, txn: u64, (offset, len): (u32, u32)) -> Vec<OpId> {
    let header = DataHeader { cluster: CLUSTER, from: INITIATOR, txn: TxnId(txn), offset, size: SIZE };
    let payload = Bytes::from(vec![0; len as usize]);
    writes(step(target, now, Input::Payload { header, payload, arrived: now }).1)
}

#[test]
fn what_came_is_kept_when_a_client_takes_the_window() {
    let (mut target, now) = after_the_floor();
    let now = now + Span::from_millis(1);
    comes(&mut target, now, 1, (0, SIZE));
    let Answer::Part(offered) = answer(&tell(&mut target, now, &part(2, 1, 0), None).0) else { panic!("no part") };
    assert_eq!(offered.size, SIZE, "nobody is in the way");
    accept(&mut target, now, 2);
    let now = now + offered.start + offered.transfer.div(2);
    let half = SIZE / 2;
    assert_eq!(comes(&mut target, now, 2, (0, half - 1_000)), []);
    let client_window = window(&tell(&mut target, now, &client(3, Span::ZERO), None).0);
    assert_eq!(client_window.start, Span::ZERO, "also once payload comes");
    let said = accept(&mut target, now, 3);
    assert!(said.contains(&Message::Ack { txn: TxnId(2), ack: Ack::Unknown }), "{said:?}");
    assert_eq!(target.in_progress(), 3);
    // What was under way by then.
    assert_eq!(comes(&mut target, now, 2, (half - 1_000, 1_000)), []);
    let Answer::Part(rest) = answer(&tell(&mut target, now, &part(2, 2, half), None).0) else { panic!("no part") };
    assert_eq!(rest.size, half);
    assert!(rest.start >= client_window.transfer, "behind the client");
    let granted = vec![Granted { target: NodeId(1), offset: Span::ZERO }].into();
    step(&mut target, now, arriving(from(INITIATOR, &Message::Accept { txn: TxnId(2), round: 2, granted })));
    let now = now + rest.start + rest.transfer;
    let begun = comes(&mut target, now, 2, (half, half));
    let soon = writes(step(&mut target, now + Span::from_millis(200), Input::Wake).1);
    assert_eq!(begun.len() + soon.len(), 1, "all of it is here");
}

#[test]
fn a_part_is_as_long_as_the_hole_before_a_client() {
    let mut target = common::target_with(Config { scrub_interval: Span::ZERO, part: SIZE / 8, ..Config::default() });
    let now = served_like_a_client(&mut target) + Span::from_millis(1);
    comes(&mut target, now, 1, (0, SIZE));
    let transfer = window(&tell(&mut target, now, &client(3, Span::from_micros(100)), None).0).transfer;
    accept(&mut target, now, 3);
    let Answer::Part(first) = answer(&tell(&mut target, now, &part(4, 1, 0), None).0) else { panic!("no part") };
    assert!(first.start == Span::ZERO && first.transfer <= Span::from_micros(100), "{first:?}");
    assert!(first.size >= SIZE / 4 && first.size < SIZE / 2, "the hole is of 0.47 transfers: {first:?} {transfer:?}");
}

#[test]
fn what_is_forgotten_of_a_copy_begins_anew() {
    let (mut target, now) = after_the_floor();
    assert_eq!(answer(&tell(&mut target, now, &part(2, 1, 1_000), None).0), Answer::NotHere, "nothing came");
    let Answer::Part(offered) = answer(&tell(&mut target, now, &part(2, 2, 0), None).0) else { panic!("no part") };
    let granted = vec![Granted { target: NodeId(1), offset: Span::ZERO }].into();
    step(&mut target, now, arriving(from(INITIATOR, &Message::Accept { txn: TxnId(2), round: 2, granted })));
    let now = now + offered.start;
    assert_eq!(comes(&mut target, now, 2, (0, 1_000)), []);
    tell(&mut target, now, &client(3, Span::ZERO), None);
    accept(&mut target, now, 3);
    // Nobody asks for the rest.
    let later = now + Span::from_secs(60);
    hear(&mut target, later, Input::Wake);
    assert_eq!(answer(&tell(&mut target, later, &part(2, 3, 1_000), None).0), Answer::NotHere);
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

/// What a member of the group says to a target.
fn say(target: &mut Target, now: Instant, member: u32, message: &Message) -> (Vec<Message>, Vec<(OpId, Effect)>) {
    step(target, now, arriving(from(NodeId(member), message)))
}

/// What a target asks of its group for a copy.
fn asked(said: &[Message]) -> PutRequest {
    let request = |said: &Message| if let Message::PutRequest(request) = said { Some(request.clone()) } else { None };
    said.iter().find_map(request).expect("it asks")
}

/// A target that sends a copy to target 3 since `now`, in a window of so many transfers.
fn sending(target: &mut Target, now: Instant, transfer: Span) -> PutRequest {
    let payload = Bytes::from(vec![7; SIZE as usize]);
    let id = ChunkId::of_payload(&payload);
    let (_, effects) =
        say(target, now, 2, &Message::Restore { txn: TxnId(70), id, wanted: Wanted::BY_MAP, holders: vec![] });
    let [(op, Effect::Lookup { .. })] = effects[..] else { panic!("{effects:?}: it looks for it") };
    let (_, effects) = step(
        target,
        now,
        Input::Done { op, completion: Completion::Found(Some(Held { id, size: SIZE, wanted: Wanted::BY_MAP })) },
    );
    let [(op, Effect::Read { .. })] = effects[..] else { panic!("{effects:?}: it reads it") };
    let (said, _) = step(target, now, Input::Done { op, completion: Completion::Read(Ok(payload)) });
    let request = asked(&said);
    assert_eq!(request.purpose.sent(), Some(0), "it may go in parts, though nothing is known yet of copies elsewhere");
    let bid = |answer| Message::Bid(Bid { txn: request.txn, round: request.round, answer });
    say(target, now, 2, &bid(Answer::HaveIt));
    let (start, done, rate) = (Span::ZERO, transfer, 1 << 30);
    let offered = OfferedWindow { start, length: transfer, transfer, done, rate, size: SIZE };
    let (said, _) = say(target, now, 3, &bid(Answer::Part(offered)));
    assert!(said.iter().any(|said| matches!(said, Message::Accept { .. })), "{said:?}");
    request
}

/// What a reader is offered while a copy is put, so long after it began.
fn read_offered(target: &mut Target, began: Instant, after: Span) -> (Instant, OfferedWindow) {
    let now = began + after;
    let offered = window(&tell(target, now, &common::get(80, 1, id(80)), Some(SIZE)).0);
    (now, offered)
}

/// A target that hands a chunk to its port in eight pieces.
fn in_quanta() -> Target {
    common::target_with(Config { scrub_interval: Span::ZERO, quantum: SIZE as usize / 8, ..Config::default() })
}

#[test]
fn what_is_put_gives_way_to_who_reads() {
    let (mut target, began, transfer) = (in_quanta(), at(1_000_000), Span::from_millis(4));
    let request = sending(&mut target, began, transfer);
    let (now, offered) = read_offered(&mut target, began, Span::from_micros(100));
    assert!(offered.start < transfer.div(2), "{offered:?}: it is offered what the copy has");
    let (said, effects) = step(&mut target, now, common::get_accepted(80, 1));
    let rest = asked(&said);
    assert_eq!((rest.txn, rest.round), (request.txn, request.round + 1), "it asks for another window");
    assert!(rest.purpose.sent() > Some(0), "what was sent is kept: {rest:?}");
    assert!(rest.earliest >= offered.start + offered.transfer.percent(74), "behind the read: {rest:?}");
    assert!(matches!(effects[..], [(_, Effect::Read { .. })]), "{effects:?}");
}

#[test]
fn what_is_put_does_not_give_way_to_a_question_nor_to_all() {
    let (mut target, began, transfer) = (in_quanta(), at(1_000_000), Span::from_millis(4));
    sending(&mut target, began, transfer);
    let (now, _) = read_offered(&mut target, began, Span::from_micros(100));
    let (said, _) = step(&mut target, now, arriving(from(INITIATOR, &common::refused(80, 1))));
    assert_eq!(said, [], "nothing goes back for a question");
    // It has sent a little, and had nothing since.
    let mut target = in_quanta();
    sending(&mut target, began, transfer);
    let (_, offered) = read_offered(&mut target, began, Span::from_millis(3));
    assert_eq!(offered.start, transfer.less(Span::from_millis(3)), "behind what the copy has, as it has its share");
}
