//! One machine at a time, told and asked by hand.

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{ChunkId, ClusterId, Epoch, GroupId, NodeId, OpId, TxnId};
use protocol::initiator::Initiator;
use protocol::machine::{Body, Completion, Effect, Held, Input, Machine, Output};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::redundancy::Wanted;
use protocol::target::{Setup, Target};
use protocol::time::{Instant, Span};
use protocol::wire::{
    Answer, Bid, BusyWindows, Granted, Grants, Head, Message, OfferedWindow, Purpose, PutRequest, decode_message,
    encode_message,
};

pub(crate) const CLUSTER: ClusterId = ClusterId(1);
pub(crate) const INITIATOR: NodeId = NodeId(NodeId::FIRST_INITIATOR);

pub(crate) fn from(node: NodeId, message: &Message) -> Bytes {
    encode_message(Head { cluster: CLUSTER, epoch: Epoch(1), from: node }, message)
}

pub(crate) fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

/// What came of one input.
pub(crate) struct Said<E> {
    pub(crate) messages: Vec<Message>,
    pub(crate) effects: Vec<(OpId, Effect)>,
    pub(crate) events: Vec<E>,
}

/// Hands one input to a machine.
pub(crate) fn hear<M: Machine>(machine: &mut M, now: Instant, input: Input<M::Request>) -> Said<M::Event> {
    machine.handle_input(now, input);
    let mut sent = Said { messages: Vec::new(), effects: Vec::new(), events: Vec::new() };
    loop {
        match machine.poll_output() {
            Output::Transmit(transmit) => {
                if let Body::Control(message) = transmit.body {
                    sent.messages.push(decode_message(&message).expect("what is sent can be decoded").1);
                }
            }
            Output::Effect { op, effect } => sent.effects.push((op, effect)),
            Output::Event(event) => sent.events.push(event),
            Output::Idle(_) => return sent,
        }
    }
}

/// Hands one input to a machine: the messages and effects that come of it.
pub(crate) fn step<M: Machine>(
    machine: &mut M,
    now: Instant,
    input: Input<M::Request>,
) -> (Vec<Message>, Vec<(OpId, Effect)>) {
    let sent = hear(machine, now, input);
    (sent.messages, sent.effects)
}

pub(crate) fn target() -> Target {
    target_with(Config { scrub_interval: Span::ZERO, ..Config::default() })
}

pub(crate) fn target_with(config: Config) -> Target {
    let setup = Setup { id: NodeId(1), map: map(), free: 1 << 30, chunks: 0, seed: 0, bug: None };
    Target::new(setup, config)
}

/// Says something to a target and answers the look-up that follows.
pub(crate) fn tell(
    target: &mut Target,
    now: Instant,
    message: &Message,
    found: Option<u32>,
) -> (Vec<Message>, Vec<(OpId, Effect)>) {
    let (mut messages, mut effects) = step(target, now, arriving(from(INITIATOR, message)));
    if let [(op, Effect::Lookup { id, .. })] = effects[..] {
        let found = found.map(|size| Held { id, size, wanted: Wanted::BY_MAP });
        let (more, next) = step(target, now, Input::Done { op, completion: Completion::Found(found) });
        messages.extend(more);
        effects = next;
    }
    (messages, effects)
}

/// A datagram that is handled when it comes.
pub(crate) const fn arriving<R>(bytes: Bytes) -> Input<R> {
    Input::Datagram { bytes, arrived: Instant::FAR }
}

pub(crate) fn put(txn: u64, round: u8, id: ChunkId, size: u32) -> Message {
    let (group, earliest) = (GroupId(0), Span::ZERO);
    Message::PutRequest(PutRequest {
        txn: TxnId(txn),
        round,
        id,
        size,
        group,
        earliest,
        stretch: 100,
        unreserved: false,
        wanted: Wanted::BY_MAP,
        purpose: Purpose::Store,
        busy: BusyWindows::new(),
    })
}

pub(crate) fn window(messages: &[Message]) -> OfferedWindow {
    match messages {
        [Message::Bid(Bid { answer: Answer::Window(slot), .. })] => *slot,
        other => panic!("no window: {other:?}"),
    }
}

pub(crate) fn map() -> ClusterMap {
    let targets = (1..=3).map(|n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 }).collect();
    ClusterMap::new(CLUSTER, Epoch(1), 3, 1, targets).expect("a good map")
}

pub(crate) fn initiator() -> Initiator {
    Initiator::new(INITIATOR, map(), Config::default(), 1)
}

pub(crate) fn get(txn: u64, round: u8, id: ChunkId) -> Message {
    Message::GetRequest { txn: TxnId(txn), round, id, unreserved: false, earliest: Span::ZERO }
}

/// An answer to bids in which others were chosen.
pub(crate) fn refused(txn: u64, round: u8) -> Message {
    Message::Accept { txn: TxnId(txn), round, granted: Grants::new() }
}

/// The acceptance of what target 1 offered.
pub(crate) fn get_accepted<R>(txn: u64, round: u8) -> Input<R> {
    let granted = vec![Granted { target: NodeId(1), offset: Span::ZERO }];
    arriving(from(INITIATOR, &Message::Accept { txn: TxnId(txn), round, granted: granted.into() }))
}
