//! Whatever a machine drops it says, with the reason.

use bytes::Bytes;
use protocol::id::{ChunkId, Epoch, GroupId, NodeId, TxnId};
use protocol::initiator::{self, ChunkPut, Initiator, Query};
use protocol::limits;
use protocol::machine::{Completion, Effect, Held, IgnoredReason, Input};
use protocol::redundancy::Wanted;
use protocol::target::{self, Target};
use protocol::time::Span;
use protocol::wire::{Ack, Answer, Bid, DataHeader, Head, Leading, Message, Usage, encode_message};

use crate::common::{
    CLUSTER, INITIATOR, arriving, at, from, get, get_accepted, hear, initiator, put, target, tell, window,
};

const SIZE: u32 = 6;

/// Why the target dropped what it was told, if it did.
fn target_drops(target: &mut Target, input: Input<target::Request>) -> Vec<IgnoredReason> {
    let events = hear(target, at(100), input).events.into_iter();
    events.filter_map(|event| if let target::Event::Ignored(why) = event { Some(why) } else { None }).collect()
}

fn initiator_drops(initiator: &mut Initiator, input: Input<initiator::Request>) -> Vec<IgnoredReason> {
    let events = hear(initiator, at(100), input).events.into_iter();
    events.filter_map(|event| if let initiator::Event::Ignored(why) = event { Some(why) } else { None }).collect()
}

fn sent<R>(by: NodeId, message: &Message) -> Input<R> {
    arriving(from(by, message))
}

fn data<R>(txn: u64, size: u32, payload: &[u8]) -> Input<R> {
    let header = DataHeader { cluster: CLUSTER, from: INITIATOR, txn: TxnId(txn), offset: 0, size };
    arriving(Bytes::from([&header.encode()[..], payload].concat()))
}

#[test]
fn a_target_says_why_it_drops_a_datagram() {
    let mut target = target();
    let id = ChunkId::of_payload(b"stored");
    let ping = from(INITIATOR, &Message::Ping { txn: TxnId(1) });
    let nonsense = Bytes::from([&ping[..], b"more"].concat());
    assert_eq!(target_drops(&mut target, arriving(ping)), []);
    assert_eq!(target_drops(&mut target, arriving(nonsense)), [IgnoredReason::Invalid]);
    assert_eq!(target_drops(&mut target, data(1, SIZE, b"")), [IgnoredReason::Invalid]);
    let pong = Message::Pong { txn: TxnId(1), free: 0, chunks: 0 };
    assert_eq!(target_drops(&mut target, sent(NodeId(2), &pong)), [IgnoredReason::Invalid]);
    assert_eq!(target_drops(&mut target, data(7, SIZE, b"stored")), [IgnoredReason::Unsolicited]);

    window(&tell(&mut target, at(100), &put(1, 2, id, SIZE), None).0);
    assert_eq!(target_drops(&mut target, sent(INITIATOR, &put(1, 1, id, SIZE))), [IgnoredReason::Late]);
    assert_eq!(target_drops(&mut target, get_accepted(1, 1)), [IgnoredReason::Late], "of the round before");
    assert_eq!(target_drops(&mut target, get_accepted(1, 2)), []);
    assert_eq!(target_drops(&mut target, get_accepted(1, 2)), [IgnoredReason::Late], "doubled");
    assert_eq!(target_drops(&mut target, data(1, SIZE + 1, b"stored")), [IgnoredReason::Invalid]);
    let stored = hear(&mut target, at(100), data(1, SIZE, b"stored"));
    let [(op, Effect::Write { .. })] = stored.effects[..] else { panic!("{:?}", stored.effects) };
    assert_eq!(target_drops(&mut target, data(1, SIZE, b"stored")), [IgnoredReason::Late], "all is here");
    hear(&mut target, at(100), Input::Done { op, completion: Completion::Written { result: Ok(()), free: 1 << 30 } });
    assert_eq!(target_drops(&mut target, data(1, SIZE, b"stored")), [IgnoredReason::Late], "it is over");

    assert_eq!(target_drops(&mut target, get_accepted(1, 2)), [IgnoredReason::Late], "doubled when all is over");

    // The network doubles a request before the disk has said whether the chunk is here.
    let other = ChunkId::of_payload(b"others");
    let looked_up =
        [(); 2].map(|()| match hear(&mut target, at(100), sent(INITIATOR, &put(2, 1, other, SIZE))).effects[..] {
            [(op, Effect::Lookup { .. })] => op,
            ref effects => panic!("{effects:?}"),
        });
    let found = |op, size: Option<u32>| {
        let held = size.map(|size| Held { id: other, size, wanted: Wanted::BY_MAP });
        Input::Done { op, completion: Completion::Found(held) }
    };
    assert_eq!(looked_up.map(|op| target_drops(&mut target, found(op, None))), [vec![], vec![IgnoredReason::Late]]);

    // A get of a round that is over.
    window(&tell(&mut target, at(100), &get(3, 2, id), Some(SIZE)).0);
    let asked = hear(&mut target, at(100), sent(INITIATOR, &get(3, 1, id))).effects;
    let [(op, Effect::Lookup { .. })] = asked[..] else { panic!("{asked:?}") };
    assert_eq!(target_drops(&mut target, found(op, Some(SIZE))), [IgnoredReason::Late]);

    let claim = Message::Leading(Leading::Claim { group: GroupId(0), term: 1 });
    let head = Head { cluster: CLUSTER, epoch: Epoch(2), from: NodeId(2) };
    assert_eq!(target_drops(&mut target, arriving(encode_message(head, &claim))), [IgnoredReason::OtherMap]);

    // Its index is asked as much as it may be.
    for _ in 0..limits::LOOKUPS {
        assert_eq!(target_drops(&mut target, sent(INITIATOR, &Message::Suspect { id })), []);
    }
    assert_eq!(target_drops(&mut target, sent(INITIATOR, &Message::Suspect { id })), [IgnoredReason::Busy]);
}

#[test]
fn an_initiator_says_why_it_drops_a_datagram() {
    let mut initiator = initiator();
    let ack = Message::Ack { txn: TxnId(1), ack: Ack::Durable };
    assert_eq!(initiator_drops(&mut initiator, sent(NodeId(1), &ack)), [IgnoredReason::Late]);
    let nonsense = Bytes::from([&from(NodeId(1), &ack)[..], b"more"].concat());
    assert_eq!(initiator_drops(&mut initiator, arriving(nonsense)), [IgnoredReason::Invalid]);
    assert_eq!(
        initiator_drops(&mut initiator, sent(NodeId(1), &Message::Ping { txn: TxnId(1) })),
        [IgnoredReason::Invalid]
    );
    assert_eq!(initiator_drops(&mut initiator, data(1, SIZE, b"stored")), [IgnoredReason::Late]);
    assert_eq!(initiator_drops(&mut initiator, data(1, SIZE, b"")), [IgnoredReason::Invalid]);

    // A list is no transfer, and is not answered by marks.
    let list = initiator::Request::Query { handle: 1, query: Query::List { prefix: vec![1] } };
    let asked = hear(&mut initiator, at(100), Input::Request(list)).messages;
    let Some(Message::List { txn, .. }) = asked.first() else { panic!("{asked:?}") };
    assert_eq!(initiator_drops(&mut initiator, data(txn.0, SIZE, b"stored")), [IgnoredReason::Invalid]);
    assert_eq!(
        initiator_drops(&mut initiator, sent(NodeId(1), &Message::Repair(repair(*txn)))),
        [IgnoredReason::Invalid]
    );
    let busy = Message::Bid(Bid { txn: *txn, round: 0, answer: Answer::Busy(Span::from_millis(1)) });
    assert_eq!(initiator_drops(&mut initiator, sent(NodeId(1), &busy)), []);
    assert_eq!(
        initiator_drops(&mut initiator, sent(NodeId(1), &Message::Marked { txn: *txn })),
        [IgnoredReason::Invalid]
    );
    let listed = Message::Listed { txn: *txn, ids: vec![], more: false };
    assert_eq!(initiator_drops(&mut initiator, sent(NodeId(1), &listed)), []);
    for doubled in [listed, busy] {
        assert_eq!(initiator_drops(&mut initiator, sent(NodeId(1), &doubled)), [IgnoredReason::Late], "{doubled:?}");
    }

    // A get whose payload has not been promised by anybody.
    let id = ChunkId::of_payload(b"stored");
    let asked = hear(
        &mut initiator,
        at(100),
        Input::Request(initiator::Request::Get { handle: 2, id, holders: vec![], fragments: None }),
    )
    .messages;
    let Some(Message::GetRequest { txn, .. }) = asked.first() else { panic!("{asked:?}") };
    assert_eq!(initiator_drops(&mut initiator, data(txn.0, SIZE, b"stored")), [IgnoredReason::Late]);
}

/// Each kind of question: what answers it, said by a target that has answered already, or that was never asked.
#[test]
fn an_initiator_says_of_each_question_that_an_answer_is_doubled_or_of_another_kind() {
    use initiator::{Discard, Mark, Request};
    let mark = Mark { name: TxnId(5), epoch: Epoch(1) };
    let chunks = vec![(ChunkId::of_payload(b"x"), vec![NodeId(1)])];
    let discard = Discard { mark, since: None, chunks };
    let questions = [
        Request::Query { handle: 1, query: Query::Ping },
        Request::Query { handle: 1, query: Query::Mark },
        Request::Query { handle: 1, query: Query::Usage },
        Request::Query { handle: 1, query: Query::Discard(discard) },
        Request::Query { handle: 1, query: Query::Renew { id: ChunkId::of_payload(b"x"), redundancy: None } },
    ];
    for (kind, question) in questions.into_iter().enumerate() {
        let mut initiator = initiator();
        let asked = hear(&mut initiator, at(100), Input::Request(question)).messages;
        let txn = match asked[..] {
            [
                Message::Ping { txn } | Message::Mark { txn } | Message::Usage { txn } | Message::Probe { txn, .. },
                ..,
            ] => txn,
            [Message::Discard(ref discard), ..] => discard.txn,
            ref other => panic!("{other:?}"),
        };
        let answers = [
            Message::Pong { txn, free: 0, chunks: 0 },
            Message::Marked { txn },
            Message::Used { txn, usage: Usage::default() },
            Message::Discarded { txn, page: 0, dropped: Some(0), bytes: 0 },
            Message::Ack { txn, ack: Ack::Durable },
        ];
        for (other, answer) in answers.iter().enumerate().filter(|(other, _)| *other != kind) {
            let drops = initiator_drops(&mut initiator, sent(NodeId(1), answer));
            assert_eq!(drops, [IgnoredReason::Invalid], "{other} answers {kind}");
        }
        assert_eq!(initiator_drops(&mut initiator, sent(NodeId(1), &answers[kind])), []);
        let doubled = initiator_drops(&mut initiator, sent(NodeId(1), &answers[kind]));
        assert_eq!(doubled, [IgnoredReason::Late], "{:?}", answers[kind]);
    }
}

#[test]
fn an_initiator_says_that_bids_and_acknowledgements_come_too_late() {
    let id = ChunkId::of_payload(b"stored");
    let put = initiator::Request::Put { handle: 1, put: ChunkPut::new(id, Bytes::from_static(b"stored")) };
    let get = initiator::Request::Get { handle: 2, id, holders: vec![], fragments: None };
    for request in [put, get] {
        let mut initiator = initiator();
        let asked = hear(&mut initiator, at(100), Input::Request(request)).messages;
        let (txn, round) = match asked[..] {
            [Message::PutRequest(ref request), ..] => (request.txn, request.round),
            [Message::GetRequest { txn, round, .. }, ..] => (txn, round),
            ref other => panic!("{other:?}"),
        };
        let bid = |round| Message::Bid(Bid { txn, round, answer: Answer::Busy(Span::from_millis(1)) });
        let drops = |initiator: &mut Initiator, message: &Message| initiator_drops(initiator, sent(NodeId(1), message));
        assert_eq!(drops(&mut initiator, &bid(round.wrapping_sub(1))), [IgnoredReason::Late], "of another round");
        assert_eq!(drops(&mut initiator, &bid(round)), []);
        assert_eq!(drops(&mut initiator, &bid(round)), [IgnoredReason::Late], "doubled");
        // Nobody was chosen yet.
        assert_eq!(drops(&mut initiator, &Message::Ack { txn, ack: Ack::BadHash }), [IgnoredReason::Late]);
        assert_eq!(drops(&mut initiator, &Message::Ack { txn, ack: Ack::Pending }), [IgnoredReason::Late]);
    }
    // Nor is anything on its way that could be repaired: a get has nothing to repair at all.
    let mut initiator = initiator();
    let put = initiator::Request::Put { handle: 1, put: ChunkPut::new(id, Bytes::from_static(b"stored")) };
    let asked = hear(&mut initiator, at(100), Input::Request(put)).messages;
    let [Message::PutRequest(request), ..] = &asked[..] else { panic!("{asked:?}") };
    let early = Message::Repair(repair(request.txn));
    assert_eq!(initiator_drops(&mut initiator, sent(NodeId(1), &early)), [IgnoredReason::Late]);
}

fn repair(txn: TxnId) -> protocol::wire::Repair {
    protocol::wire::Repair { txn, rate: 1, ranges: vec![] }
}
