//! Gets while a newer map has a layout before it: what did not move yet is where that one has it.

use protocol::config::Config;
use protocol::id::{ChunkId, Epoch, NodeId, TxnId};
use protocol::initiator::{Event, GetError, Initiator, Request};
use protocol::machine::{Body, Destination, Input, Machine, Output};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::time::{Instant, Span};
use protocol::transport::Transport;
use protocol::wire::{Answer, Bid, Message, OfferedWindow, decode_message};

use crate::common::{CLUSTER, INITIATOR, arriving, at, from};

/// Each has a group of three targets for the wanted chunk, and no target in both.
const OLD: [u32; 3] = [1, 2, 3];

fn wanted() -> ChunkId {
    ChunkId::of_payload(b"wanted")
}

fn members(map: &ClusterMap) -> Vec<NodeId> {
    map.members(map.group_of(&wanted())).map(|target| target.id).collect()
}

/// A map by which the chunk is elsewhere than before.
fn moved() -> ClusterMap {
    let map = |targets: std::ops::RangeInclusive<u32>| {
        let entry = |n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 };
        ClusterMap::new(CLUSTER, Epoch(1), 3, 1, targets.map(entry).collect()).expect("a good map")
    };
    let old = map(1..=3);
    let is_elsewhere = |map: &ClusterMap| members(map).iter().all(|member| !OLD.contains(&member.0));
    let new = (12..60).map(|last| map(1..=last)).find(is_elsewhere).expect("another group");
    new.with_previous(Some(old.placement().clone()))
}

fn window() -> Answer {
    let span = Span::from_millis(1);
    Answer::Window(OfferedWindow {
        start: Span::ZERO,
        length: span,
        transfer: span,
        done: span,
        rate: 1_000_000,
        size: 6,
    })
}

/// What came of a get.
struct Seen {
    /// Who was accepted, and when.
    accepted: Vec<(NodeId, Instant)>,
    outcome: Option<Result<(), GetError>>,
    /// How often each target was asked.
    asked: std::collections::BTreeMap<NodeId, usize>,
}

/// Asks for the chunk. Each target is asked with the number of its question, and answers at once or is silent. It ends when the get
/// is over, or at a time.
fn get(map: &ClusterMap, config: Config, until: Instant, answer: impl Fn(NodeId, usize) -> Option<Answer>) -> Seen {
    let mut initiator = Initiator::new(INITIATOR, map.clone(), config, 1);
    let mut seen = Seen { accepted: Vec::new(), outcome: None, asked: Default::default() };
    let mut now = at(0);
    let mut inputs = std::collections::VecDeque::from([Input::Request(Request::Get {
        handle: 1,
        id: wanted(),
        holders: vec![],
        fragments: None,
    })]);
    while seen.outcome.is_none() && now < until {
        initiator.handle_input(now, inputs.pop_front().unwrap_or(Input::Wake));
        loop {
            match initiator.poll_output() {
                Output::Transmit(transmit) => {
                    let Body::Control(message) = &transmit.body else { continue };
                    let to: Vec<NodeId> = match transmit.to {
                        Destination::Node(node) => vec![node],
                        Destination::Members(set) => map.resolve(set).collect(),
                    };
                    let (_, message) = decode_message(message).expect("what is sent can be decoded");
                    for node in to {
                        match &message {
                            Message::GetRequest { txn, round, .. } => {
                                let times = seen.asked.entry(node).or_default();
                                *times += 1;
                                inputs.extend(answer(node, *times).map(|answer| bid(node, *txn, *round, answer)));
                            }
                            Message::Accept { granted, .. } if granted.iter().any(|one| one.target == node) => {
                                seen.accepted.push((node, now));
                            }
                            _ => {}
                        }
                    }
                }
                Output::Event(Event::Get { result, .. }) => seen.outcome = Some(result.map(drop)),
                Output::Idle(deadline) if inputs.is_empty() => {
                    now = deadline.map_or(until, |deadline| deadline.at.max(now));
                    break;
                }
                Output::Idle(_) => break,
                _ => {}
            }
        }
    }
    seen
}

fn bid(node: NodeId, txn: TxnId, round: u8, answer: Answer) -> Input<Request> {
    arriving(from(node, &Message::Bid(Bid { txn, round, answer })))
}

/// A moment by which a get should have found what is there, although somebody is silent.
fn soon() -> Instant {
    at(0) + Config::default().bid_timeout.times(2)
}

#[test]
fn who_had_the_chunk_before_is_asked_although_its_group_is_silent_or_busy() {
    let map = moved();
    let group = members(&map);
    let busy = Some(Answer::Busy(Span::from_secs(1)));
    for (others, one) in [(Some(Answer::NotHere), None), (Some(Answer::NotHere), busy), (None, None), (busy, busy)] {
        for holder in OLD.map(NodeId) {
            let seen = get(&map, Config::default(), soon(), |node, _| {
                if OLD.contains(&node.0) {
                    return Some(if node == holder { window() } else { Answer::NotHere });
                }
                if node == group[0] { one } else { others }
            });
            let by: Vec<NodeId> = seen.accepted.iter().map(|(by, _)| *by).collect();
            assert_eq!(by.first(), Some(&holder), "{others:?} and {one:?}: {:?}", seen.asked);
            let again: Vec<usize> = group.iter().filter_map(|member| seen.asked.get(member).copied()).collect();
            assert_eq!(again, [1; 3], "who is busy is not asked again at once");
        }
    }
}

#[test]
fn who_had_the_chunk_before_is_asked_although_a_holder_never_sends() {
    let map = moved();
    let group = members(&map);
    let long = at(0) + Config::default().give_up;
    let seen = get(&map, Config::default(), long, |node, _| {
        Some(if node == group[1] || node.0 == 2 { window() } else { Answer::NotHere })
    });
    assert_eq!(seen.accepted.first().map(|(by, _)| *by), Some(group[1]));
    assert!(seen.accepted.iter().any(|(by, _)| *by == NodeId(2)), "{:?}", seen.asked);
}

#[test]
fn the_conventional_store_looks_there_as_well() {
    let map = moved();
    let config = Config { transport: Transport::HASH, ..Config::default() };
    let long = at(0) + config.bid_timeout.times(4);
    let group = members(&map);
    let seen = get(&map, config, long, |node, _| match node {
        NodeId(3) => Some(window()),
        node if node == group[2] => None,
        _ => Some(Answer::NotHere),
    });
    assert_eq!(seen.accepted.first().map(|(by, _)| *by), Some(NodeId(3)), "{:?}", seen.asked);
}

#[test]
fn nothing_is_called_absent_while_who_had_it_before_is_silent() {
    let map = moved();
    let long = at(0) + Config::default().give_up.times(2);
    let absent = |silent: Option<u32>| move |node: NodeId, _| (Some(node.0) != silent).then_some(Answer::NotHere);
    assert_eq!(get(&map, Config::default(), long, absent(None)).outcome, Some(Err(GetError::NotFound)));
    for silent in OLD {
        let outcome = get(&map, Config::default(), long, absent(Some(silent))).outcome;
        let named = Err(GetError::Unavailable { silent: vec![NodeId(silent)], corrupt: vec![] });
        assert_eq!(outcome, Some(named), "{silent}");
    }
}
