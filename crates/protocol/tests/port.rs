//! What a target makes of its port: how fast it is, and which holes it offers.

mod common;

use bytes::Bytes;
use common::{CLUSTER, INITIATOR, at, hear, put, step, target_with, tell, window};
use protocol::config::Config;
use protocol::id::{ChunkId, TxnId};
use protocol::machine::{Completion, Effect, Input};
use protocol::target::Target;
use protocol::time::Span;
use protocol::wire::DataHeader;

const SIZE: u32 = 100_000;
const DATAGRAM: u32 = 10_000;
/// Nanoseconds that a datagram takes on the port, which carries a byte in a nanosecond.
const EACH: u64 = 10_000;

fn target() -> Target {
    target_with(Config { link_rate: 1_000_000_000, scrub_interval: Span::ZERO, guard: Span::ZERO, ..Config::default() })
}

fn id(txn: u64) -> ChunkId {
    ChunkId::of_payload(&txn.to_le_bytes())
}

/// One datagram of a transaction; a write that comes of it is done at once.
fn arrives(target: &mut Target, now: u64, txn: u64, offset: u32) {
    let header = DataHeader { cluster: CLUSTER, from: INITIATOR, txn: TxnId(txn), offset, size: SIZE };
    let payload = Bytes::from(vec![0; DATAGRAM as usize]);
    let (_, effects) = step(target, at(now), Input::Payload { header, payload });
    if let [(op, Effect::Write { .. })] = effects[..] {
        let completion = Completion::Written { result: Ok(()), free: 1 << 30 };
        hear(target, at(now), Input::Done { op, completion });
    }
}

#[test]
fn copies_that_arrive_at_once_do_not_make_the_port_look_slow() {
    let mut target = target();
    let mut now = 0;
    for pair in 0..40 {
        let txns = [2 * pair, 2 * pair + 1];
        for txn in txns {
            window(&tell(&mut target, at(now), &put(txn, 1, id(txn), SIZE), None).0);
        }
        for offset in (0..SIZE).step_by(DATAGRAM as usize) {
            for txn in txns {
                now += EACH;
                arrives(&mut target, now, txn, offset);
            }
        }
        now += EACH;
    }
    let slot = window(&tell(&mut target, at(now), &put(1_000, 1, id(1_000), SIZE), None).0);
    let alone = u64::from(SIZE);
    assert!(slot.transfer.as_nanos().abs_diff(alone) < alone / 20, "{:?}", slot.transfer);
}

#[test]
fn a_hole_that_is_a_little_too_short_is_offered_for_what_it_is() {
    for (hole, offered) in [(80_000, true), (70_000, false)] {
        let mut target = target();
        let ask = |target: &mut Target, now, txn| window(&tell(target, at(now), &put(txn, 1, id(txn), SIZE), None).0);
        // The second window is behind the first; when the first is nearly over, it is given back.
        ask(&mut target, 0, 1);
        let second = ask(&mut target, 0, 2);
        let now = u64::from(SIZE) - hole;
        let refusal = common::from(INITIATOR, &common::refused(1, 1));
        step(&mut target, at(now), Input::Datagram(refusal));
        let third = ask(&mut target, now, 3);
        assert_eq!(third.transfer, Span::from_nanos(u64::from(SIZE)));
        if offered {
            assert_eq!((third.start, third.length), (Span::ZERO, Span::from_nanos(hole)));
        } else {
            assert_eq!(third.start, (second.start + second.length).less(Span::from_nanos(now)));
        }
    }
}
