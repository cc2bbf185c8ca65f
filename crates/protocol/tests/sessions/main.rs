//! Sessions: what a node believes of others after restarts of both, with replays, losses and copies in between.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod node;

use bytes::Bytes;
use protocol::id::{ClusterId, NodeId, TxnId};
use protocol::limits;
use protocol::rng::Rng;
use protocol::time::Span;
use protocol::wire::{DataHeader, DropReason, Session, TAG, is_answerable};

use node::*;

#[test]
fn the_first_word_after_a_start_costs_a_round_trip_and_makes_both_known() {
    let (mut gateway, mut target) = (Node::start(1 << 24, 1), Node::start(1, 2));
    let first = gateway.ping(1);
    let challenge = target.take(ms(1_000), &first);
    assert_eq!((challenge.len(), target.received.len()), (1, 0), "nothing is believed yet");
    let replies = gateway.take(ms(1_000), &challenge[0]);
    let proofs: Vec<Bytes> = replies.iter().flat_map(|reply| target.take(ms(1_000), reply)).collect();
    assert_eq!(target.received, [(1 << 24, 1)], "it was said again behind the proof");
    // What the target says next is believed at once.
    let answer = target.ping(2);
    assert!(proofs.iter().chain([&answer]).all(|datagram| gateway.take(ms(1_000), datagram).is_empty()));
    assert_eq!(gateway.received, [(1, 2)]);
    // From then on nothing but messages is sent.
    for n in 10..3_000 {
        let ping = gateway.ping(n);
        assert!(target.take(ms(1_000 + n), &ping).is_empty());
    }
    assert_eq!((target.received.len(), target.dropped.len()), (2_991, 0));
}

#[test]
fn what_was_said_while_the_question_was_on_its_way_is_heard_too() {
    let (mut a, mut b) = (Node::start(1, 10), Node::start(2, 20));
    let (first, second) = (a.ping(1), a.ping(2));
    let asked = b.take(ms(1), &first);
    // The second was on its way already, and the question names the first alone.
    assert!(b.take(ms(1), &second).is_empty() && b.received.is_empty());
    let mut to_a = asked;
    for n in 2..6 {
        let to_b: Vec<Bytes> = to_a.iter().flat_map(|datagram| a.take(ms(n), datagram)).collect();
        to_a = to_b.iter().flat_map(|datagram| b.take(ms(n), datagram)).collect();
    }
    assert_eq!((&b.received[..], to_a.len()), (&[(1, 1), (1, 2)][..], 0));
}

#[test]
fn one_word_to_nine_is_heard_by_nine() {
    let mut gateway = Node::start(1 << 24, 1);
    let first = gateway.ping(1);
    for n in 1..=9 {
        let mut target = Node::start(n, 100 + u64::from(n));
        deliver(ms(1_000), &mut gateway, &mut target, &first);
        assert_eq!(target.received, [(1 << 24, 1)]);
    }
}

#[test]
fn forged_doubled_and_foreign_datagrams_are_dropped() {
    let (mut gateway, mut target, _) = acquainted();
    let (first, second) = (gateway.ping(2), gateway.ping(3));
    for datagram in [&second, &first, &first, &second] {
        target.take(ms(1_100), datagram);
    }
    assert_eq!(target.received[1..], [(1 << 24, 3), (1 << 24, 2)], "overtaking is allowed");
    assert_eq!(target.dropped, [DropReason::Replayed; 2]);
    target.dropped.clear();
    let with = |at: usize, change: u8| {
        let mut changed = first.to_vec();
        changed[at] = changed[at].wrapping_add(change);
        Bytes::from(changed)
    };
    let stranger = Session::new([8; 32], CLUSTER, NodeId(1 << 24), 7).seal(&first[..first.len() - TAG]);
    let (short, foreign) = (first.slice(..40), with(0, 1));
    for datagram in [with(16, 1), with(24, 1), with(33, 1), stranger, with(4, 1), with(1, 1), short, foreign] {
        target.take(ms(1_101), &datagram);
    }
    use DropReason::{Forged, Malformed, OtherCluster, Version};
    assert_eq!(target.dropped, [Forged, Forged, Forged, Forged, OtherCluster, Version, Malformed, Malformed]);
    target.dropped.clear();
    let data = DataHeader { cluster: CLUSTER, from: gateway.id, txn: TxnId(1), offset: 0, size: 9 }.encode();
    [0, 1, 31].iter().for_each(|len| drop(target.take(ms(1_101), &Bytes::copy_from_slice(&data[..*len]))));
    assert_eq!(target.dropped, [Malformed; 3]);
    target.dropped.clear();
    let early = gateway.ping(4);
    for n in 0..2_000 {
        let ping = gateway.ping(5 + n);
        target.take(ms(1_102), &ping);
    }
    target.take(ms(1_103), &early);
    assert_eq!(target.dropped, [DropReason::Replayed], "too old to tell");
}

#[test]
fn a_restarted_target_is_heard_although_it_begins_to_count_anew() {
    let (mut gateway, mut target, _) = acquainted();
    for n in 0..5_000 {
        let ping = target.ping(n);
        gateway.take(ms(1_100), &ping);
    }
    gateway.received.clear();
    let mut target = Node::start(1, 3);
    // The gateway speaks first, as it does, then the target by itself. That first word is lost: the earlier life may have
    // heard it.
    let lost = gateway.ping(1);
    deliver(ms(2_100), &mut gateway, &mut target, &lost);
    let answer = target.ping(2);
    deliver(ms(2_110), &mut target, &mut gateway, &answer);
    let request = gateway.ping(3);
    assert!(target.take(ms(2_120), &request).is_empty());
    assert_eq!((target.received, gateway.received), (vec![(1 << 24, 3)], vec![(1, 2)]));
}

#[test]
fn a_session_that_is_over_is_never_believed_again() {
    let (mut gateway, mut target, _) = acquainted();
    let lost: Vec<Bytes> = (0..50).map(|n| target.ping(n)).collect();
    let mut target = Node::start(1, 3);
    let hello = target.ping(7);
    deliver(ms(2_100), &mut target, &mut gateway, &hello);
    gateway.received.clear();
    // Never delivered before, but of the earlier life: the target of today is asked, and does not know it.
    for (n, old) in lost.iter().enumerate() {
        deliver(ms(2_200 + 20 * n as u64), &mut target, &mut gateway, old);
    }
    assert_eq!(gateway.received, []);
    let next = target.ping(8);
    deliver(ms(9_000), &mut target, &mut gateway, &next);
    assert_eq!(gateway.received, [(1, 8)], "the session of today still counts");
}

#[test]
fn what_an_earlier_life_of_the_receiver_heard_is_not_heard_again() {
    let (mut gateway, mut target, _) = acquainted();
    let received: Vec<Bytes> = (0..20).map(|n| gateway.ping(n)).collect();
    received.iter().for_each(|ping| drop(target.take(ms(1_999), ping)));
    assert_eq!(target.received.len(), 21);
    // The gateway lives on in its session, and proves it when the target asks; yet what was recorded is old, however much
    // time either of them believes to have passed.
    for (life, later) in [(3, 0), (4, 1), (5, 20), (6, 1_000_000_000)] {
        let mut target = Node::start(1, life);
        received.iter().for_each(|ping| drop(deliver(ms(1_999 + later), &mut gateway, &mut target, ping)));
        assert_eq!(target.received, []);
        let fresh = gateway.ping(500 + life);
        for ping in received.iter().chain([&fresh]).chain(&received) {
            deliver(ms(2_020 + later), &mut gateway, &mut target, ping);
        }
        assert_eq!(target.received, [(1 << 24, 500 + life)]);
    }
}

#[test]
fn a_recorded_challenge_or_proof_is_worth_nothing() {
    let (mut gateway, mut target, sent) = acquainted();
    // To both, in the same lives.
    let of = |node: u32| move |datagram: &&Bytes| datagram[12..16] == node.to_le_bytes();
    for n in 0..10 {
        let now = ms(1_100 + n);
        let to_gateway: Vec<Bytes> = sent.iter().filter(of(1 << 24)).flat_map(|d| target.take(now, d)).collect();
        let to_target: Vec<Bytes> = sent.iter().filter(of(1)).flat_map(|d| gateway.take(now, d)).collect();
        // A challenge that came before its session was proven is answered once more, in vain.
        assert!(to_gateway.len().max(to_target.len()) <= usize::from(n == 0));
        assert!(to_gateway.iter().all(|d| gateway.take(now, d).is_empty()));
        assert!(to_target.iter().all(|d| target.take(now, d).is_empty()));
    }
    assert_eq!((target.received.len(), gateway.received.len()), (1, 1));
    // After the target began anew: it hears everything that its earlier life heard, and the gateway what it heard.
    let mut target = Node::start(1, 3);
    for n in 0..5 {
        for datagram in sent.iter().filter(of(1 << 24)) {
            deliver(ms(2_100 + 50 * n), &mut gateway, &mut target, datagram);
        }
        for datagram in sent.iter().filter(of(1)) {
            deliver(ms(2_110 + 50 * n), &mut target, &mut gateway, datagram);
        }
    }
    assert_eq!((target.received.len(), gateway.received.len()), (0, 1));
    let first = gateway.ping(9);
    deliver(ms(3_000), &mut gateway, &mut target, &first);
    assert_eq!(target.received, [(1 << 24, 9)]);
}

#[test]
fn a_proof_that_was_held_back_is_too_late_when_the_next_life_was_heard() {
    let (mut gateway, mut target) = (Node::start(1 << 24, 1), Node::start(1, 2));
    let first = target.ping(1);
    let challenge = gateway.take(ms(1_000), &first).remove(0);
    let held = target.take(ms(1_000), &challenge);
    let mut target = Node::start(1, 3);
    let hello = target.ping(2);
    deliver(ms(1_110), &mut target, &mut gateway, &hello);
    held.iter().for_each(|datagram| drop(gateway.take(ms(1_120), datagram)));
    // It asked for no such proof any more, and takes nothing of that session.
    assert_eq!(gateway.dropped[..2], [DropReason::Replayed, DropReason::Unproven]);
    deliver(ms(1_130), &mut target, &mut gateway, &first);
    assert_eq!(gateway.received, [(1, 2)]);
}

#[test]
fn lost_and_doubled_challenges_and_proofs_delay_and_no_more() {
    let mut rng = Rng::new(5);
    let mut rounds = 0;
    for seed in 0..300 {
        let (mut a, mut b) = (Node::start(1 << 24, 2 * seed), Node::start(1, 2 * seed + 1));
        let mut way: Vec<(bool, Bytes)> = Vec::new();
        let mut now = ms(1_000);
        // A machine asks again every 50 ms until it is heard.
        let sent = (1..).find(|n| {
            way.push((true, a.ping(*n)));
            for _ in 0..25 {
                now += Span::from_millis(2);
                let arrived = core::mem::take(&mut way);
                for (to_b, datagram) in arrived {
                    for _ in 0..rng.below(3) {
                        let replies = if to_b { b.take(now, &datagram) } else { a.take(now, &datagram) };
                        way.extend(replies.into_iter().map(|reply| (!to_b, reply)));
                    }
                }
            }
            !b.received.is_empty()
        });
        rounds += sent.unwrap();
        let once: std::collections::BTreeSet<_> = b.received.iter().collect();
        assert_eq!(once.len(), b.received.len(), "{:?}", b.received);
    }
    assert!(rounds < 300 * 8, "{rounds} questions until 300 first ones were heard");
}

#[test]
fn what_waits_for_proofs_is_bounded_and_so_is_what_is_asked() {
    let (_, mut target, _) = acquainted();
    // Of one sender, many lives at once; then of many senders.
    let asked = |target: &mut Node, now, from: u32, seed| {
        let ping = Node::start(from, seed).ping(1);
        target.take(now, &ping).len()
    };
    let of_one: usize = (0..1_000).map(|n| asked(&mut target, ms(3_000), 7, n)).sum();
    assert_eq!(of_one, limits::UNPROVEN_OF_A_SENDER);
    assert_eq!(target.dropped.len(), 1_000 - limits::UNPROVEN_OF_A_SENDER);
    let of_many: usize = (0..5_000).map(|n| asked(&mut target, ms(3_001), 100 + n as u32, n)).sum();
    assert_eq!(of_many, limits::UNPROVEN - limits::UNPROVEN_OF_A_SENDER);
    // Sessions that are over hold no place, though they are played back without a pause.
    let old: Vec<Bytes> = (0..limits::UNPROVEN_OF_A_SENDER as u64).map(|n| Node::start(9, 50 + n).ping(1)).collect();
    let (mut target, mut speaker) = (Node::start(1, 5), Node::start(9, 99));
    for n in 0..100 {
        old.iter().for_each(|ping| drop(target.take(ms(3_100 + n), ping)));
        if n % 25 == 10 {
            let ping = speaker.ping(n);
            deliver(ms(3_100 + n), &mut speaker, &mut target, &ping);
        }
    }
    assert_eq!(target.received, [(9, 35), (9, 60), (9, 85)]);
    // One that speaks without a pause is asked a hundred times in a second, and heard as soon as it answers.
    let mut target = Node::start(1, 3);
    let mut speaker = Node::start(1 << 24, 12);
    let pings: Vec<Bytes> = (0..10_000).map(|n| speaker.ping(n)).collect();
    let asks: Vec<Bytes> = (0..10_000).flat_map(|n| target.take(ms(4_000 + n / 10), &pings[n as usize])).collect();
    assert_eq!(asks.len(), 100);
    let replies = speaker.take(ms(5_000), asks.last().unwrap());
    replies.iter().for_each(|reply| drop(target.take(ms(5_000), reply)));
    assert_eq!(target.received, [], "that was too long ago to say it again");
    let next = speaker.ping(10_000);
    target.take(ms(5_000), &next);
    assert_eq!(target.received, [(1 << 24, 10_000)]);
    // One that waits with its answer says again what it was asked for, and that is not everything.
    let (mut target, mut speaker) = (Node::start(1, 4), Node::start(1 << 24, 13));
    let pings: Vec<Bytes> = (0..30).map(|n| speaker.ping(n)).collect();
    let asks: Vec<Bytes> = (0..30).flat_map(|n| target.take(ms(6_000 + n), &pings[n as usize])).collect();
    assert_eq!(asks.len(), 3);
    let replies = speaker.take(ms(6_030), asks.last().unwrap());
    replies.iter().for_each(|reply| drop(target.take(ms(6_030), reply)));
    assert_eq!(target.received, (0..limits::MISSED as u64).map(|n| (1 << 24, n)).collect::<Vec<_>>());
}

#[test]
fn what_is_said_again_is_heard_once_and_by_one_life_of_whom_it_is_for() {
    let (mut gateway, mut target, mut other) = (Node::start(1 << 24, 1), Node::start(1, 2), Node::start(2, 3));
    let mut sent = Vec::new();
    for n in 0..5 {
        let ping = gateway.ping(n);
        sent.extend(deliver(ms(1_000 + n), &mut gateway, &mut target, &ping));
    }
    assert_eq!(target.received.len(), 5);
    let mut again = |target: &mut Node, from: u64| {
        for n in 0..200 {
            let datagram = &sent[(n * 7 % sent.len() as u64) as usize].clone();
            sent.extend(deliver(ms(from + 5 * n), &mut gateway, target, datagram));
            sent.truncate(2_000);
        }
    };
    again(&mut target, 2_000);
    assert_eq!(target.received.len(), 5);
    // A later life of the same, which also gets the answers to the challenges of the earlier one; and another node, which
    // was told nothing of this.
    let mut target = Node::start(1, 4);
    again(&mut target, 4_000);
    assert_eq!(target.received, []);
    again(&mut other, 6_000);
    let once: std::collections::BTreeSet<_> = other.received.iter().collect();
    assert_eq!(once.len(), other.received.len(), "what has no address may be heard by others, and once");
}

/// Nodes that begin anew at any time, with clocks of their own, and somebody who plays back to anybody what he saw: over
/// all lives of a node nothing is heard twice, and nothing of an earlier life after a later one.
#[test]
fn whoever_plays_back_what_is_never_heard_twice() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let mut lives = [0_u64; 4];
        let mut nodes: Vec<Node> = (0..4).map(|id| Node::start(id, seed << 20 | u64::from(id))).collect();
        let (mut sent, mut way): (Vec<Bytes>, Vec<(usize, Bytes)>) = (Vec::new(), Vec::new());
        let mut received: std::collections::BTreeMap<(usize, u32), Vec<u64>> = Default::default();
        let mut words = 0;
        for n in 0..1_500 {
            let (one, other) = (rng.below(4) as usize, rng.below(4) as usize);
            match rng.below(100) {
                0 => {
                    lives[one] += 1;
                    nodes[one] = Node::start(one as u32, seed << 20 | lives[one] << 4 | one as u64);
                }
                1..20 => {
                    words += 1;
                    way.push((other, nodes[one].ping(lives[one] << 32 | words)));
                }
                20..30 if !sent.is_empty() => way.push((other, sent[rng.below(sent.len() as u64) as usize].clone())),
                _ if !way.is_empty() => {
                    let (to, datagram) = way.swap_remove(rng.below(way.len() as u64) as usize);
                    let now = ms(rng.below(5) * 1_000 + n);
                    let from = u32::from_le_bytes(datagram[12..16].try_into().unwrap()) as usize;
                    way.extend(nodes[to].take(now, &datagram).into_iter().map(|reply| (from, reply)));
                    sent.push(datagram);
                    for (from, word) in core::mem::take(&mut nodes[to].received) {
                        let earlier = received.entry((to, from)).or_default();
                        assert!(!earlier.contains(&word), "seed {seed}: {to} heard {word:x} of {from} twice");
                        assert!(
                            earlier.iter().all(|w| w >> 32 <= word >> 32),
                            "seed {seed}: {to} heard the past of {from}"
                        );
                        earlier.push(word);
                    }
                }
                _ => {}
            }
        }
        assert!(received.values().map(Vec::len).sum::<usize>() > 5, "seed {seed}: hardly anything was heard");
    }
}

#[test]
fn two_processes_of_one_id_take_turns_and_neither_is_heard_twice() {
    let (mut gateway, mut one, _) = acquainted();
    let mut other = Node::start(1, 77);
    gateway.received.clear();
    let mut sent = 0;
    for n in 0..200 {
        let now = ms(2_000 + 5 * n);
        let ping = one.ping(2 * n);
        sent += deliver(now, &mut one, &mut gateway, &ping).len();
        let ping = other.ping(2 * n + 1);
        sent += deliver(now, &mut other, &mut gateway, &ping).len();
    }
    assert!(sent <= 400 * 3 + 2, "{sent} datagrams for 400 words");
    let once: std::collections::BTreeSet<_> = gateway.received.iter().collect();
    assert_eq!(once.len(), gateway.received.len());
}

#[test]
fn a_sender_that_was_forgotten_is_asked_again_and_no_replay_of_it_counts() {
    let (gateway, mut target, sent) = acquainted();
    let mut others: Vec<Node> = (0..limits::SENDERS).map(|n| Node::start(100 + n as u32, 100 + n as u64)).collect();
    for other in &mut others {
        let ping = other.ping(1);
        deliver(ms(1_050), other, &mut target, &ping);
    }
    let before = target.received.len();
    let mut gateway = gateway;
    let known = others.last_mut().unwrap().ping(2);
    assert!(target.take(ms(1_055), &known).is_empty(), "who was heard just now is not asked");
    let unknown = gateway.ping(2);
    assert_eq!(target.take(ms(1_055), &unknown).len(), 1, "one more than fit was heard since");
    sent.iter().for_each(|datagram| drop(deliver(ms(1_070), &mut gateway, &mut target, datagram)));
    assert_eq!(target.received.len(), before + 1);
    let ping = gateway.ping(3);
    deliver(ms(2_000), &mut gateway, &mut target, &ping);
    assert_eq!(target.received.last(), Some(&(1 << 24, 3)));
}

#[test]
fn whoever_speaks_is_not_forgotten_for_those_who_do_not() {
    let (mut gateway, mut target, _) = acquainted();
    for n in 0..limits::SENDERS as u64 {
        let ping = gateway.ping(2 + n);
        assert!(target.take(ms(1_050), &ping).is_empty(), "{n} others were heard");
        let mut other = Node::start(100 + n as u32, 100 + n);
        let ping = other.ping(1);
        deliver(ms(1_050), &mut other, &mut target, &ping);
    }
    let ping = gateway.ping(1);
    assert!(target.take(ms(1_050), &ping).is_empty());
}

#[test]
fn a_refusal_says_why_and_is_not_answered() {
    let mut node = Node::start(1, 1);
    let other_key = Session::new([8; 32], CLUSTER, NodeId(2), 2).refusal();
    let other_cluster = Session::new(KEY, ClusterId(9), NodeId(2), 2).refusal();
    let own = Session::new(KEY, CLUSTER, NodeId(2), 2).refusal();
    for refusal in [&other_key, &other_cluster, &own] {
        assert!(node.take(ms(2), refusal).is_empty() && !is_answerable(refusal));
    }
    assert_eq!(node.dropped, [DropReason::Forged, DropReason::OtherCluster, DropReason::Refused]);
    let ping = node.ping(1);
    assert!(
        is_answerable(&ping[..own.len()]) && ping.len() > own.len(),
        "a refusal is not longer than what it answers"
    );
    let header = DataHeader { cluster: CLUSTER, from: node.id, txn: TxnId(1), offset: 0, size: 100 };
    let data = [&header.encode()[..], &[0; 100]].concat();
    assert!(!is_answerable(&ping[..20]) && !is_answerable(&[0; 100]) && !is_answerable(&data));
}

#[test]
fn what_was_heard_is_dropped_when_it_comes_again_after_others() {
    let (mut gateway, mut target, _) = acquainted();
    let sealed: Vec<Bytes> = (0..3_000).map(|n| gateway.ping(1_000 + n)).collect();
    // Every third is overtaken by the two behind it; then, by turns, what came so far comes again.
    for n in (0..sealed.len()).step_by(3) {
        for each in [n + 1, n + 2, n] {
            target.take(ms(1_100), &sealed[each]);
            assert_eq!(target.received.last(), Some(&(gateway.id.0, 1_000 + each as u64)), "{each} is new");
        }
        for again in (0..=n + 2).rev().take(20).chain((0..n).step_by(500)) {
            target.take(ms(1_100), &sealed[again]);
            assert_eq!(target.dropped.pop(), Some(DropReason::Replayed), "{again} after {n}");
        }
    }
}

#[test]
fn what_a_great_leap_overtook_is_heard() {
    let (mut gateway, mut target, _) = acquainted();
    let sealed: Vec<Bytes> = (0..3_000).map(|n| gateway.ping(1_000 + n)).collect();
    for each in (2_500..3_000).rev() {
        target.take(ms(1_100), &sealed[each]);
        assert_eq!(target.received.last(), Some(&(gateway.id.0, 1_000 + each as u64)));
    }
}

#[test]
fn a_challenge_of_another_session_is_not_answered() {
    let (mut target, mut speaker) = (Node::start(1, 2), Node::start(1 << 24, 1));
    let ping = speaker.ping(1);
    let challenge = target.take(ms(1_000), &ping).remove(0);
    for mut other in [Node::start(1 << 24, 7), Node::start(2, 1)] {
        assert!(other.take(ms(1_000), &challenge).is_empty());
        assert_eq!(other.dropped, [DropReason::Replayed]);
    }
}

#[test]
fn a_challenge_that_was_lost_long_ago_is_followed_by_another() {
    let (mut target, mut speaker) = (Node::start(1, 2), Node::start(1 << 24, 1));
    let ping = speaker.ping(1);
    let challenge = target.take(ms(1_000), &ping).remove(0);
    // A challenge in return, which is lost, a proof, and the message again.
    let late = speaker.take(ms(1_000), &challenge);
    late[1..].iter().for_each(|datagram| drop(target.take(ms(4_000), datagram)));
    assert_eq!(target.received, [], "an answer that comes so late does not count");
    let ping = speaker.ping(2);
    deliver(ms(5_000), &mut speaker, &mut target, &ping);
    let ping = speaker.ping(3);
    target.take(ms(5_001), &ping);
    assert_eq!(target.received, [(1 << 24, 3)]);
}

#[test]
fn a_session_that_lost_its_place_cannot_be_proven_any_more() {
    let mut target = Node::start(1, 2);
    let mut lives: Vec<Node> = (0..=limits::UNPROVEN_OF_A_SENDER as u64).map(|n| Node::start(9, 50 + n)).collect();
    let times = (0..).step_by(10).map(|n| ms(1_000 + n));
    let challenges: Vec<Bytes> = lives
        .iter_mut()
        .zip(times)
        .map(|(life, now)| {
            let ping = life.ping(1);
            target.take(now, &ping).remove(0)
        })
        .collect();
    // The first had to make room for the last, and now the second for a question of the first.
    for (life, received) in [(0, 0), (2, 1)] {
        let answers = lives[life].take(ms(1_050), &challenges[life]);
        answers.iter().for_each(|datagram| drop(target.take(ms(1_050), datagram)));
        assert_eq!(target.received.len(), received);
    }
}

#[test]
fn a_challenge_that_is_played_back_is_not_answered_with_more_and_more() {
    let (mut target, mut speaker) = (Node::start(1, 2), Node::start(1 << 24, 1));
    let pings: Vec<Bytes> = (0..=limits::MISSED as u64).map(|n| speaker.ping(n)).collect();
    let times = (0..).step_by(10).map(|n| ms(1_000 + n));
    let asks: Vec<Bytes> = pings.iter().zip(times).flat_map(|(ping, now)| target.take(now, ping)).collect();
    let sent: Vec<usize> =
        (0..5).map(|_| speaker.take(ms(1_200), asks.last().unwrap()).iter().filter(is_again).count()).collect();
    assert_eq!(sent, [limits::MISSED, limits::MISSED, 0, 0, 0]);
}

/// Of nodes that it cannot remember, one does not know whether an earlier life of them has heard it.
#[test]
fn whoever_is_one_too_many_is_told_nothing_again() {
    let mut speaker = Node::start(1 << 24, 1);
    let first = speaker.ping(1);
    let mut hearers: Vec<Node> = (0..=limits::ANSWERED as u32).map(|n| Node::start(n, 1_000 + u64::from(n))).collect();
    let challenges: Vec<Bytes> = hearers.iter_mut().map(|node| node.take(ms(1_000), &first).remove(0)).collect();
    let mut again = |nth: usize| speaker.take(ms(1_000), &challenges[nth]).iter().filter(is_again).count();
    assert!((0..limits::ANSWERED).all(|nth| again(nth) == 1));
    assert_eq!((again(limits::ANSWERED), again(0)), (0, 1));
    // It is heard all the same.
    let last = hearers.last_mut().unwrap();
    let next = speaker.ping(2);
    deliver(ms(1_010), &mut speaker, last, &next);
    let next = speaker.ping(3);
    last.take(ms(1_020), &next);
    assert_eq!(last.received, [(1 << 24, 3)]);
}
