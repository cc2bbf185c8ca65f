//! What a put that lacks a last piece does about it.

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{ChunkId, Epoch, NodeId};
use protocol::initiator::{ChunkPut, Event, Initiator, PutError, Request, Stored};
use protocol::machine::{Body, Destination, Input, Machine, Output};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::time::Span;
use protocol::wire::{Ack, Answer, Bid, Message, OfferedWindow, decode_message};

use crate::common::{CLUSTER, INITIATOR, arriving, at, from, hear};

/// Targets 1 and 4 are in one failure domain, 2 and 3 in others.
fn map(epoch: u32, copies: u8) -> ClusterMap {
    let entry = |(n, domain)| TargetEntry { id: NodeId(n), domain, capacity: 1 << 30 };
    let targets = [(1, 1), (2, 2), (3, 3), (4, 1)].map(entry).to_vec();
    ClusterMap::new(CLUSTER, Epoch(epoch), copies, 2, targets).expect("a good map")
}

/// One whose put is durable on 1 and 2, and failed on 3: who is asked next, up to a second later, and how the put ended. Nobody
/// answers any more.
fn after_a_failure(newer: Option<ClusterMap>) -> (Vec<NodeId>, Option<Result<Stored, PutError>>) {
    let payload = Bytes::from_static(b"a chunk");
    let id = ChunkId::of_payload(&payload);
    let mut initiator = Initiator::new(INITIATOR, map(1, 3), Config { multicast: false, ..Config::default() }, 1);
    let put = Request::Put { handle: 1, put: ChunkPut::new(id, payload) };
    let sent = hear(&mut initiator, at(0), Input::Request(put));
    let Some(Message::PutRequest(request)) = sent.messages.first() else { panic!("{:?}", sent.messages) };
    let (txn, span) = (request.txn, Span::from_micros(10));
    let slot = OfferedWindow { start: span, length: span, transfer: span, done: span.times(2), rate: 1 << 30, size: 7 };
    let bid = |answer| Message::Bid(Bid { txn, round: 1, answer });
    for (target, answer) in [(1, Answer::HaveIt), (2, Answer::HaveIt), (3, Answer::Window(slot)), (4, Answer::NotHere)]
    {
        hear(&mut initiator, at(10), arriving(from(NodeId(target), &bid(answer))));
    }
    let failed = Message::Ack { txn, ack: Ack::DiskFailed };
    initiator.handle_input(at(10_000), arriving(from(NodeId(3), &failed)));
    let (mut now, mut asked, mut newer) = (at(10_000), Vec::new(), newer);
    loop {
        match initiator.poll_output() {
            Output::Transmit(transmit) => {
                let (Destination::Node(to), Body::Control(message)) = (transmit.to, transmit.body) else { continue };
                if let Some((_, Message::PutRequest(_))) = decode_message(&message) {
                    asked.push(to);
                }
            }
            Output::Event(Event::Put { result, .. }) => return (asked, Some(result)),
            Output::Idle(Some(deadline)) if deadline.at <= at(0) + Span::from_secs(1) => match newer.take() {
                Some(newer) => initiator.handle_input(now, Input::Request(Request::Map(newer))),
                None => {
                    now = now.max(deadline.at) + Span::from_nanos(1);
                    initiator.handle_input(now, Input::Wake);
                }
            },
            Output::Idle(_) => return (asked, None),
            _ => {}
        }
    }
}

/// Another target where there is a copy already is no way to go on.
#[test]
fn who_failed_is_asked_again_where_the_rest_is_in_used_domains() {
    let (asked, _) = after_a_failure(None);
    assert!(asked.contains(&NodeId(3)), "{asked:?}");
}

#[test]
fn a_put_that_has_what_a_newer_map_asks_for_is_done() {
    let (_, result) = after_a_failure(Some(map(2, 2)));
    let Some(Ok(stored)) = result else { panic!("{result:?}") };
    assert_eq!(stored.holders, [1, 2].map(NodeId));
}
