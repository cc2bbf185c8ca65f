//! A datagram counts once, whatever came after it.

use bytes::Bytes;
use protocol::id::{ClusterId, Epoch, NodeId, TxnId};
use protocol::wire::{DropReason, Head, Message, Opener, Sealer, encode_message};

#[test]
fn what_was_heard_is_dropped_when_it_comes_again_after_others() {
    let (key, cluster) = ([7; 32], ClusterId(1));
    let head = Head { cluster, epoch: Epoch(1), from: NodeId(1) };
    let mut sealer = Sealer::new(key, 1_000);
    let mut seal = |n| sealer.seal(&encode_message(head, &Message::Ping { txn: TxnId(n) }));
    let sealed: Vec<Bytes> = (0..3_000).map(&mut seal).collect();
    let mut opener = Opener::new(key, cluster);
    // Every third is overtaken by the two behind it; then, by turns, all that came so far come again.
    for n in (0..sealed.len()).step_by(3) {
        for each in [n + 1, n + 2, n] {
            assert!(opener.open(sealed[each].clone()).is_ok(), "{each} is new");
        }
        for again in (0..=n + 2).rev().take(20).chain((0..n).step_by(500)) {
            assert_eq!(opener.open(sealed[again].clone()), Err(DropReason::Replayed), "{again} after {n}");
        }
    }
}
