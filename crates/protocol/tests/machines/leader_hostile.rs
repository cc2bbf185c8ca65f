//! Whatever leaders, members and initiators say: a target that listens to leaders does not panic, accepts no overlapping
//! windows, and calls nothing durable that is not.

use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::prelude::*;
use protocol::config::Config;
use protocol::id::{ChunkId, GroupId, NodeId, OpId, TxnId};
use protocol::machine::{Completion, Effect, Held, Input};
use protocol::redundancy::{Redundancy, Wanted};
use protocol::target::{Event, Request, Setup, Target};
use protocol::time::{Instant, Span};
use protocol::wire::{
    Ack, Answer, DataHeader, Direction, Grant, Granted, GrantedWindow, Grants, Holds, LeadRequest, Leading, Message,
    Purpose, PutRequest, Report, Seek,
};

use crate::common::{CLUSTER, INITIATOR, arriving, from, hear, map, put};

#[derive(Clone, Copy, Debug)]
struct Step {
    what: u8,
    sender: u8,
    txn: u8,
    round: u8,
    chunk: u8,
    group: u8,
    term: u8,
    first: u32,
    second: u32,
}

fn step() -> impl Strategy<Value = Step> {
    let small = (0_u8..13, 0_u8..5, 0_u8..4, 0_u8..3, 0_u8..3, 0_u8..2, 0_u8..4);
    // Mostly soon, sometimes at the end of what the wire can say.
    let span = prop_oneof![4 => 0_u32..3_000_000, 1 => Just(u32::MAX), 1 => any::<u32>()];
    (small, span.clone(), span).prop_map(|((what, sender, txn, round, chunk, group, term), first, second)| Step {
        what,
        sender,
        txn,
        round,
        chunk,
        group: if group == 0 { 0 } else { chunk * 200 },
        term,
        first,
        second,
    })
}

fn chunk(n: u8) -> (ChunkId, Bytes) {
    let bytes = Bytes::from(vec![n; [1, 5_000, 900_000][usize::from(n)]]);
    (ChunkId::of_payload(&bytes), bytes)
}

struct World {
    target: Target,
    now: Instant,
    disk: BTreeSet<ChunkId>,
    under_way: Vec<(OpId, Effect)>,
    windows: Vec<(ChunkId, Instant, Instant)>,
}

impl World {
    fn input(&mut self, input: Input<Request>) {
        let sent = hear(&mut self.target, self.now, input);
        for event in sent.events {
            match event {
                Event::Accepted { id, start, length } => {
                    let (now, end) = (self.now, start + length);
                    self.windows.retain(|(_, _, end)| *end > now);
                    // An empty window, for what comes too late or meets others of its leader, overlaps nothing.
                    if start == end {
                        continue;
                    }
                    let other = self.windows.iter().find(|(_, begin, until)| *begin < end && start < *until);
                    assert!(other.is_none(), "{start} to {end} overlaps {other:?}");
                    self.windows.push((id, start, end));
                }
                Event::Released { id } => self.windows.retain(|(other, ..)| *other != id),
                _ => {}
            }
        }
        for (op, effect) in sent.effects {
            if let Effect::Write { id, .. } = &effect {
                self.windows.retain(|(other, ..)| other != id);
            }
            self.under_way.push((op, effect));
        }
        for message in sent.messages {
            let claims = match message {
                Message::Bid(bid) => bid.answer == Answer::HaveIt,
                Message::Ack { ack, .. } => ack == Ack::Durable,
                _ => false,
            };
            assert!(!claims || !self.disk.is_empty(), "nothing is here: {message:?}");
        }
        assert!(self.target.in_progress() < 16, "four transactions, in and out");
    }

    fn finish(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let (op, effect) = self.under_way.remove(0);
        let completion = match effect {
            Effect::Lookup { id, .. } => {
                Completion::Found(self.disk.contains(&id).then_some(Held { id, size: 5, wanted: Wanted::BY_MAP }))
            }
            Effect::Write { id, .. } => {
                self.disk.insert(id);
                Completion::Written { result: Ok(()), free: 1 << 30 }
            }
            Effect::Read { id } => {
                let bytes = (0..3).map(chunk).find(|(other, _)| *other == id).map(|(_, bytes)| bytes);
                let bytes = bytes.filter(|_| self.disk.contains(&id));
                Completion::Read(bytes.ok_or(protocol::machine::ReadFailure::Missing))
            }
            other => panic!("{other:?}"),
        };
        self.input(Input::Done { op, completion });
    }

    fn take(&mut self, s: Step) {
        let (id, bytes) = chunk(s.chunk);
        let size = bytes.len() as u32;
        let (txn, group, term) = (TxnId(s.txn.into()), GroupId(s.group.into()), s.term.into());
        let [first, second] = [s.first, s.second].map(|nanos| Span::from_nanos(nanos.into()));
        let busy = (first <= second).then_some((first, second)).into_iter().collect();
        let (round, earliest) = (s.round, first);
        let wanted = Wanted::of(Some(Redundancy::Copies(3)));
        let Message::PutRequest(put) = put(txn.0, round, id, size) else { unreachable!("it is a request") };
        let restore = Purpose::Restore { urgent: false, sent: None };
        let purpose = if round % 2 > 0 { restore } else { Purpose::Store };
        let put = PutRequest { group, earliest, wanted, purpose, busy, ..put };
        let leading = match s.what {
            0..=2 => {
                let turn = |n| GrantedWindow { target: NodeId(n), start: first, done: first + second };
                let direction = if s.what == 0 { Direction::Get } else { Direction::Put(wanted) };
                let (initiator, transfer, rate) = (INITIATOR, second, s.first.into());
                let windows = (1..=u32::from(s.sender)).map(turn).collect();
                let grant = Grant { initiator, txn, round, id, size, group, term, direction, transfer, rate, windows };
                Leading::Grant(grant)
            }
            3 => Leading::Claim { group, term },
            4 | 5 => {
                let (port, disk, each, whole) = (first, second, first, second);
                let (rate, free) = (s.first.into(), u64::from(s.second));
                Leading::Report(Report { group, term, port, disk, size, each, whole, rate, free })
            }
            6 | 7 => {
                let (have, avoid) = (vec![NodeId(4); usize::from(s.round)], vec![NodeId(s.sender.into())]);
                let PutRequest { busy, .. } = put;
                Leading::Request(LeadRequest { txn, round, wanted, id, size, group, earliest, busy, have, avoid })
            }
            8 => {
                let (port, read, alone) = (first, second, first);
                let initiator = INITIATOR;
                let (round, rate) = (s.round, s.second.into());
                Leading::Holds(Holds { initiator, txn, round, id, group, size, port, read, alone, rate, wanted })
            }
            9 => {
                let leader = NodeId(s.sender.into());
                Leading::Seek(Seek { txn, round: s.round, id, group, leader, earliest: first })
            }
            10 => {
                let granted = Granted { target: NodeId(1), offset: first };
                let message = match s.term {
                    0 | 1 => Message::Accept { txn, round, granted: Grants::from_elem(granted, s.term.into()) },
                    _ => Message::PutRequest(put),
                };
                return self.input(arriving(from(INITIATOR, &message)));
            }
            11 => {
                let header = DataHeader { cluster: CLUSTER, from: INITIATOR, txn, offset: 0, size };
                self.input(Input::Payload { header, payload: bytes, arrived: Instant::FAR });
                return self.finish();
            }
            _ => {
                self.now += Span::from_nanos(u64::from(s.first));
                self.input(Input::Wake);
                return (0..2).for_each(|_| self.finish());
            }
        };
        let sender = if s.sender == 0 { INITIATOR } else { NodeId(s.sender.into()) };
        self.input(arriving(from(sender, &Message::Leading(leading))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn nobodys_word_breaks_a_calendar(id in 1_u32..4, multicast: bool, steps in prop::collection::vec(step(), 1..80)) {
        let setup = Setup { id: NodeId(id), map: map(), free: 1 << 30, chunks: 0, seed: 0, bug: None };
        let config = Config { scrub_interval: Span::ZERO, multicast, ..Config::default() };
        let target = Target::new(setup, config);
        let (disk, under_way, windows) = (BTreeSet::new(), Vec::new(), Vec::new());
        let mut world = World { target, now: Instant::ZERO, disk, under_way, windows };
        steps.into_iter().for_each(|step| world.take(step));
    }
}
