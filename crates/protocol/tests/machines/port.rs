//! What a target makes of its port: how fast it is, and which holes it offers.

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{ChunkId, NodeId, TxnId};
use protocol::machine::{Completion, Effect, Input, Machine, Output};
use protocol::target::Target;
use protocol::time::Span;
use protocol::wire::{DataHeader, Granted, Message, OfferedWindow, PutRequest};

use crate::common::{self, CLUSTER, INITIATOR, arriving, at, hear, put, step, target_with, tell, window};

const SIZE: u32 = 100_000;
const DATAGRAM: u32 = 10_000;
/// Nanoseconds that a datagram takes on the port, which carries a byte in a nanosecond.
const EACH: u64 = 10_000;

fn config() -> Config {
    Config { link_rate: 1_000_000_000, scrub_interval: Span::ZERO, guard: Span::ZERO, ..Config::default() }
}

fn target() -> Target {
    target_with(config())
}

fn id(txn: u64) -> ChunkId {
    ChunkId::of_payload(&txn.to_le_bytes())
}

/// One datagram of a transaction; a write that comes of it is done at once.
fn arrives(target: &mut Target, now: u64, txn: u64, offset: u32) {
    is_handled(target, (now, now), txn, offset);
}

/// One that arrived at a time, and is handled at another.
fn is_handled(target: &mut Target, (arrived, now): (u64, u64), txn: u64, offset: u32) {
    let header = DataHeader { cluster: CLUSTER, from: INITIATOR, txn: TxnId(txn), offset, size: SIZE };
    let payload = Bytes::from(vec![0; DATAGRAM as usize]);
    let (_, effects) = step(target, at(now), Input::Payload { header, payload, arrived: at(arrived) });
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
fn sockets_that_are_read_in_turn_do_not_make_the_port_look_slow() {
    let mut target = target();
    let each = SIZE / DATAGRAM;
    let mut begin = 0;
    for pair in 0..40 {
        for copy in 0..2 {
            window(&tell(&mut target, at(begin), &put(2 * pair + copy, 1, id(2 * pair + copy), SIZE), None).0);
        }
        // The datagrams of both come in turn, and half of those of one are read before half of those of the other.
        for half in [0..each / 2, each / 2..each] {
            let read = begin + u64::from(2 * half.end) * EACH;
            for copy in 0..2 {
                for nth in half.clone() {
                    let came = begin + (u64::from(2 * nth) + copy) * EACH;
                    let handled = read + copy * u64::from(each) + u64::from(nth);
                    is_handled(&mut target, (came, handled), 2 * pair + copy, nth * DATAGRAM);
                }
            }
        }
        begin += u64::from(2 * each + 1) * EACH;
    }
    let transfer = window(&tell(&mut target, at(begin), &put(1_000, 1, id(1_000), SIZE), None).0).transfer.as_nanos();
    let alone = u64::from(SIZE);
    // When one is complete, a quarter of all has come and was not read.
    assert!(transfer.abs_diff(alone) < alone * 2 / 5, "{transfer}");
}

/// How long a transfer should take after 40 whose datagrams arrive and are handled when `when` says, of their number among all.
fn learned(target: &mut Target, when: impl Fn(u64) -> (u64, u64)) -> u64 {
    let each = u64::from(SIZE / DATAGRAM);
    for txn in 0..40 {
        let (_, begins) = when(txn * each);
        window(&tell(target, at(begins), &put(txn, 1, id(txn), SIZE), None).0);
        for nth in 0..each {
            is_handled(target, when(txn * each + nth), txn, nth as u32 * DATAGRAM);
        }
    }
    let (_, last) = when(40 * each);
    window(&tell(target, at(last), &put(1_000, 1, id(1_000), SIZE), None).0).transfer.as_nanos()
}

#[test]
fn pauses_of_the_sender_do_not_make_the_port_look_slow() {
    let short = Config { quantum: 2 * DATAGRAM as usize, per_datagram: DATAGRAM as usize, ..config() };
    // It hands out two datagrams at once, and wakes late for the next two.
    let when = |nth: u64| (nth / 2 * 50 * EACH + nth % 2 * EACH, nth / 2 * 50 * EACH + nth % 2 * EACH);
    let transfer = learned(&mut target_with(short), when);
    assert!(transfer.abs_diff(u64::from(SIZE)) < u64::from(SIZE) / 20, "{transfer}");
    let slow = learned(&mut target_with(Config { quantum: SIZE as usize, ..config() }), |nth| {
        (nth * 4 * EACH, nth * 4 * EACH)
    });
    assert!(slow.abs_diff(4 * u64::from(SIZE)) < u64::from(SIZE), "what comes slowly at once is slow: {slow}");
}

#[test]
fn neither_a_processor_that_was_behind_nor_one_that_is_slow_is_taken_for_the_port() {
    // The first of each copy is handled as late as the last has come: all of it seems to come at once.
    let behind = |nth: u64| (nth * EACH, (nth / 10 * 10 + 9) * EACH + nth % 10);
    let transfer = learned(&mut target(), behind);
    assert!(transfer.abs_diff(u64::from(SIZE)) < u64::from(SIZE) / 20, "{transfer}");
    // What comes at once to a processor that needs thrice as long for each.
    let slow = |nth: u64| (nth / 10 * 40 * EACH, (nth / 10 * 40 + nth % 10 * 3) * EACH);
    let transfer = learned(&mut target(), slow);
    assert!(transfer.abs_diff(3 * u64::from(SIZE)) < u64::from(SIZE) / 4, "{transfer}");
}

#[test]
fn what_came_through_a_queue_in_a_heap_is_not_taken_for_the_port() {
    let heaps = |nth: u64| (nth / 10 * 10 * EACH + nth % 10 * EACH / 8, nth / 10 * 10 * EACH + nth % 10 * EACH / 8);
    let transfer = learned(&mut target(), heaps);
    assert!(transfer.abs_diff(u64::from(SIZE)) < u64::from(SIZE) / 20, "{transfer}");
    // More than the queue holds does say how fast it is.
    let faster = learned(&mut target_with(Config { quantum: SIZE as usize / 2, ..config() }), heaps);
    assert!(faster < u64::from(SIZE) / 2, "{faster}");
}

fn accept(target: &mut Target, now: u64, txn: u64) {
    let granted = vec![Granted { target: NodeId(1), offset: Span::ZERO }];
    let accept = Message::Accept { txn: TxnId(txn), round: 1, granted: granted.into() };
    step(target, at(now), arriving(common::from(INITIATOR, &accept)));
}

fn ask(target: &mut Target, now: u64, txn: u64) -> OfferedWindow {
    window(&tell(target, at(now), &put(txn, 1, id(txn), SIZE), None).0)
}

/// Lets time pass to `until`; what was asked for again, when, and how fast it may come.
fn repairs(target: &mut Target, until: u64) -> Vec<(u64, TxnId, u64)> {
    let mut asked = Vec::new();
    while let Output::Idle(Some(deadline)) = target.poll_output() {
        if deadline.at > at(until) {
            break;
        }
        for message in step(target, deadline.at, Input::Wake).0 {
            if let Message::Repair(repair) = message {
                asked.push((deadline.at.as_nanos(), repair.txn, repair.rate));
            }
        }
    }
    asked
}

#[test]
fn a_slow_port_is_learned_from_what_it_did_not_lose() {
    let mut target = target();
    let mut now = 0;
    for txn in 0..12 {
        ask(&mut target, now, txn);
        accept(&mut target, now, txn);
        // The switch drops what waits too long in front of a port with a tenth of the rate.
        for offset in (0..SIZE / 2).step_by(DATAGRAM as usize) {
            now += 10 * EACH;
            arrives(&mut target, now, txn, offset);
        }
        let (_, asked, rate) = repairs(&mut target, now + 500_000_000)[0];
        assert_eq!(asked, TxnId(txn));
        assert!(rate.abs_diff(100_000_000) < 20_000_000, "as fast as it came, from the first on: {rate}");
        now += 500_000_000;
    }
    let slot = ask(&mut target, now, 100);
    // A little is forgotten while nothing is measured.
    let (least, most) = (6 * u64::from(SIZE), 10 * u64::from(SIZE));
    assert!((least..=most).contains(&slot.transfer.as_nanos()), "{:?}", slot.transfer);
}

#[test]
fn what_waits_behind_another_copy_is_not_asked_for() {
    // When the first of these copies, of which a datagram came, is asked for.
    let asked = |copies: &[u64]| {
        let mut target = target();
        let begin = 10 * u64::from(SIZE);
        ask(&mut target, 0, 0);
        accept(&mut target, 0, 0);
        (0..SIZE).step_by(DATAGRAM as usize).for_each(|offset| arrives(&mut target, EACH, 0, offset));
        for txn in copies {
            ask(&mut target, begin, *txn);
            accept(&mut target, begin, *txn);
        }
        arrives(&mut target, begin + EACH, copies[0], 0);
        let all = repairs(&mut target, 1_000_000_000);
        all.iter().find(|(_, txn, _)| *txn == TxnId(copies[0])).expect("it is asked for in the end").0
    };
    assert_eq!(asked(&[1, 2]) - asked(&[1]), u64::from(SIZE), "as much later as the other takes");
}

#[test]
fn copies_whose_sender_is_gone_do_not_keep_each_other() {
    let gone = |copies: u64| {
        let mut target = target();
        for txn in 0..copies {
            ask(&mut target, 0, txn);
            accept(&mut target, 0, txn);
        }
        let asked = repairs(&mut target, 60_000_000_000);
        assert_eq!(target.in_progress(), 0, "all are dropped");
        asked.iter().map(|(at, ..)| *at).max().expect("they are asked for") - copies * u64::from(SIZE)
    };
    let (one, many) = (gone(1), gone(100));
    assert!(many < one + 2 * 100 * u64::from(SIZE), "they wait for each other once: {many} ns instead of {one}");
}

#[test]
fn what_is_here_already_is_no_reason_to_wait() {
    let mut target = target();
    ask(&mut target, 0, 1);
    accept(&mut target, 0, 1);
    let mut asked = 0;
    for now in (EACH..2_000_000_000).step_by(1_000_000) {
        asked += repairs(&mut target, now).len();
        arrives(&mut target, now, 1, 0);
    }
    assert!(asked > 0 && target.in_progress() == 0, "it is asked for {asked} times, and dropped");
}

#[test]
fn the_end_of_a_copy_says_that_the_rest_is_lost() {
    let mut target = target();
    for txn in [1, 2] {
        ask(&mut target, 0, txn);
        accept(&mut target, 0, txn);
    }
    arrives(&mut target, EACH, 1, SIZE - DATAGRAM);
    let asked = repairs(&mut target, 1_000_000_000);
    let late = Config::default().late.as_nanos();
    assert!(asked[0].1 == TxnId(1) && asked[0].0 <= EACH + late / 4, "{asked:?}");
}

#[test]
fn a_port_that_is_behind_offers_what_it_can_keep() {
    let mut target = target();
    ask(&mut target, 0, 1);
    accept(&mut target, 0, 1);
    let size = u64::from(SIZE);
    arrives(&mut target, size, 1, 0);
    // Nine tenths should be here by now.
    let slot = ask(&mut target, size, 2);
    assert_eq!(slot.start, Span::from_nanos(size - u64::from(DATAGRAM)));
}

#[test]
fn windows_are_offered_when_the_initiator_has_its_port() {
    let size = u64::from(SIZE);
    let request = |busy: &[(u64, u64)]| {
        let Message::PutRequest(request) = put(1, 1, id(1), SIZE) else { panic!("it is a request") };
        let span = |n: u64| Span::from_nanos(n);
        let busy = busy.iter().map(|(start, end)| (span(*start), span(*end))).collect();
        Message::PutRequest(PutRequest { busy, ..request })
    };
    let offered = |busy: &[(u64, u64)]| window(&tell(&mut target(), at(0), &request(busy), None).0).start.as_nanos();
    assert_eq!(offered(&[]), 0);
    assert_eq!(offered(&[(size, 3 * size)]), 0, "before it is taken");
    assert_eq!(offered(&[(size / 2, 3 * size)]), 3 * size);
    assert_eq!(offered(&[(0, size), (2 * size, 3 * size)]), size, "between");
    assert_eq!(offered(&[(0, size), (3 * size / 2, 3 * size)]), 3 * size, "half is not enough");
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
        step(&mut target, at(now), arriving(refusal));
        let third = ask(&mut target, now, 3);
        assert_eq!(third.transfer, Span::from_nanos(u64::from(SIZE)));
        if offered {
            assert_eq!((third.start, third.length), (Span::ZERO, Span::from_nanos(hole)));
        } else {
            assert_eq!(third.start, (second.start + second.length).less(Span::from_nanos(now)));
        }
    }
}
