//! A get of a chunk that was listed asks its holders, also when they are not in its group.

use std::collections::BTreeMap;

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{ChunkId, Epoch, NodeId, OpId};
use protocol::initiator::{Event, GetError, Initiator, Request};
use protocol::machine::{Body, Completion, Destination, Effect, Input, Machine, Output};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::time::{Instant, Span};
use protocol::transport::Transport;
use protocol::wire::{Answer, Bid, DataHeader, Message, OfferedWindow, decode_message};

use crate::common::{CLUSTER, INITIATOR, arriving, at, from};

const WANTED: &[u8] = b"wanted";

/// Two groups of three targets that share none.
fn map() -> ClusterMap {
    let targets = (1..=6).map(|n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 }).collect();
    ClusterMap::new(CLUSTER, Epoch(1), 3, 1, targets).expect("a good map")
}

/// The chunk's group, and the other targets.
fn groups() -> (Vec<NodeId>, Vec<NodeId>) {
    let group = map().placement().targets_of(&ChunkId::of_payload(WANTED));
    let others = (1..=6).map(NodeId).filter(|id| !group.contains(id)).collect();
    (group, others)
}

/// An initiator that gets [`WANTED`] with these listed holders, over targets of which `answers` says what they answer.
struct World {
    initiator: Initiator,
    now: Instant,
    answers: BTreeMap<NodeId, Answer>,
    /// Whom each round asked.
    rounds: Vec<Vec<NodeId>>,
    result: Option<Result<NodeId, GetError>>,
}

impl World {
    fn run(transport: &str, holders: Vec<NodeId>, answers: BTreeMap<NodeId, Answer>) -> Self {
        let transport: Transport = transport.parse().expect("a transport");
        let config = Config { transport, multicast: true, ..Config::default() };
        let initiator = Initiator::new(INITIATOR, map(), config, 1).with_multicast(true);
        let mut world = Self { initiator, now: at(0), answers, rounds: Vec::new(), result: None };
        world.input(Input::Request(Request::Get {
            handle: 1,
            id: ChunkId::of_payload(WANTED),
            holders,
            fragments: None,
        }));
        for _ in 0..10_000 {
            if world.result.is_some() {
                return world;
            }
            world.now += Span::from_millis(1);
            world.input(Input::Wake);
        }
        panic!("it never ends: {:?}", world.rounds)
    }

    fn input(&mut self, input: Input<Request>) {
        self.initiator.handle_input(self.now, input);
        let mut replies = Vec::new();
        loop {
            match self.initiator.poll_output() {
                Output::Transmit(transmit) => {
                    let Body::Control(bytes) = transmit.body else { continue };
                    let message = decode_message(&bytes).expect("what is sent can be decoded").1;
                    let to = match transmit.to {
                        Destination::Node(node) => vec![node],
                        Destination::Members(set) => map().resolve(set).collect(),
                    };
                    to.into_iter().for_each(|node| replies.extend(self.reply(node, &message)));
                }
                Output::Effect { op, effect: Effect::Verify { .. } } => replies.push(verified(op)),
                Output::Effect { effect, .. } => panic!("{effect:?}"),
                Output::Event(Event::Get { result, .. }) => self.result = Some(result.map(|fetched| fetched.from)),
                Output::Event(_) => {}
                Output::Idle(_) => break,
            }
        }
        replies.into_iter().for_each(|reply| self.input(reply));
    }

    /// What a target says to a message.
    fn reply(&mut self, node: NodeId, message: &Message) -> Option<Input<Request>> {
        match message {
            Message::GetRequest { txn, round, .. } => {
                if self.rounds.len() < usize::from(*round) {
                    self.rounds.push(Vec::new());
                }
                self.rounds.last_mut()?.push(node);
                let bid = Bid { txn: *txn, round: *round, answer: *self.answers.get(&node)? };
                Some(arriving(from(node, &Message::Bid(bid))))
            }
            Message::Accept { txn, granted, .. } if granted.iter().any(|granted| granted.target == node) => {
                let header =
                    DataHeader { cluster: CLUSTER, from: node, txn: *txn, offset: 0, size: WANTED.len() as u32 };
                Some(Input::Payload { header, payload: Bytes::from_static(WANTED), arrived: Instant::FAR })
            }
            _ => None,
        }
    }
}

fn verified(op: OpId) -> Input<Request> {
    Input::Done { op, completion: Completion::Verified(true) }
}

fn offer() -> Answer {
    let (span, size) = (Span::from_millis(1), WANTED.len() as u32);
    Answer::Window(OfferedWindow { start: Span::ZERO, length: span, transfer: span, done: span, rate: 1_000_000, size })
}

#[test]
fn a_listed_holder_outside_of_the_group_is_asked_first() {
    let (group, others) = groups();
    for transport in ["hash", "replicast-m", "replicast-h", "leader"] {
        let holder = others[1];
        let not_here = group.iter().chain(&others).map(|id| (*id, Answer::NotHere));
        let answers = not_here.chain([(holder, offer())]).collect();
        let world = World::run(transport, vec![holder], answers);
        assert_eq!((world.result, &world.rounds[..]), (Some(Ok(holder)), &[vec![holder]][..]), "{transport}");
    }
}

#[test]
fn the_group_is_asked_when_the_listed_holder_has_it_no_more() {
    let (group, others) = groups();
    for transport in ["hash", "replicast-m"] {
        let not_here = [others[0], group[0], group[1]].map(|id| (id, Answer::NotHere));
        let answers = not_here.into_iter().chain([(group[2], offer())]).collect();
        let world = World::run(transport, vec![others[0]], answers);
        assert_eq!(world.result, Some(Ok(group[2])), "{transport}");
        assert_eq!(world.rounds[0], [others[0]], "{transport}");
    }
}

#[test]
fn a_chunk_is_not_missing_while_a_listed_holder_is_silent() {
    let (group, others) = groups();
    let stranger = NodeId(77);
    let absent = || group.iter().map(|id| (*id, Answer::NotHere)).collect::<BTreeMap<_, _>>();
    let world = World::run("replicast-m", vec![others[0], stranger], absent());
    let silent = Err(GetError::Unavailable { silent: vec![others[0]], corrupt: vec![] });
    assert_eq!(world.result, Some(silent), "who is not in the map is not asked");
    let all = absent().into_iter().chain([(others[0], Answer::NotHere)]).collect();
    assert_eq!(World::run("replicast-m", vec![others[0]], all).result, Some(Err(GetError::NotFound)));
}
