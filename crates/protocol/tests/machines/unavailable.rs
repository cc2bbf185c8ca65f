//! What a get that fails says of the targets: whose copy is damaged, and who was silent.

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{ChunkId, NodeId, TxnId};
use protocol::initiator::{Event, GetError, Initiator, Request};
use protocol::machine::{Completion, Effect, Input, Machine, Output};
use protocol::time::{Instant, Span};
use protocol::wire::{Ack, Answer, Bid, DataHeader, Message, OfferedWindow};

use crate::common::{CLUSTER, arriving, at, from, hear, initiator};

const WANTED: &[u8] = b"wanted";

/// An initiator that wants [`WANTED`] from three targets, told by hand.
struct Reader {
    initiator: Initiator,
    now: Instant,
    /// The last round that it asked for.
    round: (TxnId, u8),
    rounds: usize,
    verify: Option<protocol::id::OpId>,
    events: Vec<Event>,
}

impl Reader {
    fn new() -> Self {
        let (initiator, round) = (initiator(), (TxnId(0), 0));
        let mut reader = Self { initiator, now: at(0), round, rounds: 0, verify: None, events: Vec::new() };
        reader.input(Input::Request(Request::Get {
            handle: 1,
            id: ChunkId::of_payload(WANTED),
            holders: vec![],
            fragments: None,
        }));
        reader
    }

    fn input(&mut self, input: Input<Request>) {
        let sent = hear(&mut self.initiator, self.now, input);
        for message in sent.messages {
            if let Message::GetRequest { txn, round, .. } = message {
                self.rounds += usize::from(self.round != (txn, round));
                self.round = (txn, round);
            }
        }
        self.verify = sent.effects.first().map(|(op, effect)| {
            assert!(matches!(effect, Effect::Verify { .. }), "{effect:?}");
            *op
        });
        self.events.extend(sent.events.into_iter().filter(|event| !matches!(event, Event::Bid { .. })));
    }

    fn bid(&mut self, target: u32, answer: Answer) {
        let (txn, round) = self.round;
        self.input(arriving(from(NodeId(target), &Message::Bid(Bid { txn, round, answer }))));
    }

    /// Target 1 offers a copy, the others have none.
    fn offer(&mut self) {
        let (span, size) = (Span::from_millis(1), WANTED.len() as u32);
        let slot = OfferedWindow { start: Span::ZERO, length: span, transfer: span, done: span, rate: 1_000_000, size };
        for target in [2, 3] {
            self.bid(target, Answer::NotHere);
        }
        self.bid(1, Answer::Window(slot));
    }

    /// Lets time pass until the initiator does something by itself.
    fn wake(&mut self) {
        self.initiator.handle_input(self.now, Input::Wake);
        let deadline = loop {
            match self.initiator.poll_output() {
                Output::Idle(deadline) => break deadline,
                Output::Event(event) => self.events.push(event),
                _ => {}
            }
        };
        self.now = deadline.map_or(self.now, |deadline| deadline.at).max(self.now + Span::from_micros(1));
        self.input(Input::Wake);
    }

    /// Lets time pass until it asks for another round, or has failed.
    fn next_round(&mut self) {
        let before = self.rounds;
        while self.rounds == before && self.initiator.in_progress() > 0 {
            self.wake();
        }
    }

    fn error(&self) -> Option<(&[NodeId], &[NodeId])> {
        self.events.iter().find_map(|event| match event {
            Event::Get { result: Err(GetError::Unavailable { silent, corrupt }), .. } => {
                Some((&silent[..], &corrupt[..]))
            }
            _ => None,
        })
    }
}

#[test]
fn a_copy_that_arrived_damaged_is_reported_and_its_holder_named_once() {
    let mut reader = Reader::new();
    let (id, txn, size) = (ChunkId::of_payload(WANTED), reader.round.0, WANTED.len() as u32);
    reader.offer();
    let header = DataHeader { cluster: CLUSTER, from: NodeId(1), txn, offset: 0, size };
    reader.input(Input::Payload { header, payload: Bytes::from_static(b"ruined"), arrived: Instant::FAR });
    let op = reader.verify.expect("the bytes are looked at");
    reader.input(Input::Done { op, completion: Completion::Verified(false) });
    let reported = matches!(reader.events[..], [Event::CorruptCopy { id: of, target: NodeId(1) }] if of == id);
    assert!(reported, "{:?}", reader.events);
    // Nobody else has one, so it is asked again, and finds out by itself.
    reader.next_round();
    reader.offer();
    reader.input(arriving(from(NodeId(1), &Message::Ack { txn, ack: Ack::BadHash })));
    assert_eq!(reader.error(), Some((&[][..], &[NodeId(1)][..])), "{:?}", reader.events);
}

#[test]
fn whoever_was_busy_to_the_end_is_not_called_silent() {
    let mut reader = Reader::new();
    while reader.initiator.in_progress() > 0 {
        reader.bid(2, Answer::Busy(Span::from_millis(500)));
        reader.next_round();
    }
    assert!(reader.now >= at(0) + Config::default().give_up);
    assert_eq!(reader.error(), Some((&[1, 3].map(NodeId)[..], &[][..])), "{:?}", reader.events);
}
