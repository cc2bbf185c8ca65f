//! A disk that stands still offers nothing good.

use bytes::Bytes;
use protocol::id::{ChunkId, TxnId};
use protocol::machine::{Effect, Input};
use protocol::time::{Instant, Span};
use protocol::wire::{Answer, Bid, DataHeader, Granted, Message};

use crate::common::{self, CLUSTER, INITIATOR, arriving, at, get, get_accepted, put, step, target, tell, window};

const SIZE: u32 = 4_000;
/// Long enough for everything that was learned of the disk to be forgotten.
const LONG: u64 = 60_000_000_000;

#[test]
fn a_write_that_does_not_end_is_waited_for_by_the_next() {
    let mut target = target();
    let payload = Bytes::from(vec![7; SIZE as usize]);
    let id = ChunkId::of_payload(&payload);
    let first = window(&tell(&mut target, at(0), &put(1, 1, id, SIZE), None).0);
    let granted = vec![Granted { target: protocol::id::NodeId(1), offset: Span::ZERO }];
    let accept = Message::Accept { txn: TxnId(1), round: 1, granted: granted.into() };
    step(&mut target, at(0), arriving(common::from(INITIATOR, &accept)));
    let header = DataHeader { cluster: CLUSTER, from: INITIATOR, txn: TxnId(1), offset: 0, size: SIZE };
    let (_, effects) = step(&mut target, at(10_000), Input::Payload { header, payload, arrived: Instant::FAR });
    assert!(matches!(effects[..], [(_, Effect::Write { .. })]), "{effects:?}");
    let other = ChunkId::of_payload(b"other");
    let (next, _) = tell(&mut target, at(LONG), &put(2, 1, other, SIZE), None);
    assert!(first.done < Span::from_millis(1), "{:?}", first.done);
    assert!(matches!(next[..], [Message::Bid(Bid { answer: Answer::Busy(_), .. })]), "{next:?}");
}

#[test]
fn a_read_that_does_not_end_is_waited_for_by_the_next() {
    let mut target = target();
    let id = ChunkId::of_payload(b"x");
    let first = window(&tell(&mut target, at(0), &get(1, 1, id), Some(SIZE)).0);
    let (_, effects) = step(&mut target, at(0), get_accepted(1, 1));
    assert!(matches!(effects[..], [(_, Effect::Read { .. })]), "{effects:?}");
    let next = window(&tell(&mut target, at(LONG), &get(2, 1, id), Some(SIZE)).0);
    assert!(first.done < Span::from_millis(1), "{:?}", first.done);
    assert!(next.done > Span::from_secs(1), "{:?}", next.done);
}
