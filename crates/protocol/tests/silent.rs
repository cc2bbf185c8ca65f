//! Targets that left a whole series of questions unanswered are asked as before, and waited for only briefly.

mod common;

use std::collections::BTreeSet;

use common::{CLUSTER, INITIATOR, at, from};
use protocol::config::Config;
use protocol::id::{ChunkId, Epoch, NodeId};
use protocol::initiator::{Bug, Event, Found, Initiator, Request, Scope};
use protocol::machine::{Body, Destination, Input, Machine, Output};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::time::{Instant, Span};
use protocol::wire::{Message, decode_message};

/// What an answer takes to come.
const ANSWER: Span = Span::from_millis(1);
/// How many times a silent target is asked before the answer counts without it.
const ASKED: usize = 5;

/// An initiator and its clock, in a cluster of nine with three copies, of which some say nothing.
struct Asker {
    initiator: Initiator,
    now: Instant,
    dead: BTreeSet<u32>,
    config: Config,
}

/// Nine targets, with three copies of each chunk.
fn map(epoch: u32, domain: impl Fn(u32) -> u16) -> ClusterMap {
    let entry = |n| TargetEntry { id: NodeId(n), domain: domain(n), capacity: 1 << 30 };
    ClusterMap::new(CLUSTER, Epoch(epoch), 3, 3, (1..=9).map(entry).collect()).expect("a good map")
}

/// Targets 1, 2 and 3 on one server, and so on.
fn server(target: u32) -> u16 {
    (target as u16 - 1) / 3
}

/// What became of one list.
struct Asked {
    found: Found,
    took: Span,
    /// Questions to those who are silent.
    in_vain: usize,
}

impl Asker {
    fn new(dead: &[u32]) -> Self {
        Self::in_domains(dead, |n| n as u16)
    }

    fn in_domains(dead: &[u32], domain: impl Fn(u32) -> u16) -> Self {
        Self::under(map(1, domain), dead)
    }

    fn under(map: ClusterMap, dead: &[u32]) -> Self {
        let config = Config::default();
        let initiator = Initiator::new(INITIATOR, map, config.clone(), 1);
        Self { initiator, now: at(0), dead: dead.iter().copied().collect(), config }
    }

    fn list(&mut self, scope: Scope) -> Asked {
        let (began, mut in_vain, mut answers) = (self.now, 0, Vec::new());
        let mut input = Input::Request(Request::List { handle: 1, scope, prefix: Vec::new() });
        loop {
            self.initiator.handle_input(self.now, input);
            let mut found = None;
            let deadline = loop {
                match self.initiator.poll_output() {
                    Output::Transmit(transmit) => {
                        let (Destination::Node(to), Body::Control(message)) = (transmit.to, transmit.body) else {
                            panic!("a list is asked of each")
                        };
                        let Some((_, Message::List { txn, .. })) = decode_message(&message) else { continue };
                        if self.dead.contains(&to.0) {
                            in_vain += 1;
                        } else {
                            let ids = vec![ChunkId::of_payload(&to.0.to_le_bytes())];
                            let answer = Message::Listed { txn, ids, more: false };
                            answers.push((self.now + ANSWER, from(to, &answer)));
                        }
                    }
                    Output::Event(Event::List { result, .. }) => found = result.ok(),
                    Output::Idle(deadline) => break deadline.map_or(Instant::FAR, |deadline| deadline.at),
                    _ => {}
                }
            };
            if let Some(found) = found {
                return Asked { found, took: self.now.since(began), in_vain };
            }
            input = match answers.first().filter(|(at, _)| *at <= deadline) {
                Some((at, _)) => {
                    self.now = *at;
                    Input::Datagram(answers.remove(0).1)
                }
                None => {
                    assert!(deadline > self.now, "it wakes again and again at {}", self.now);
                    self.now = deadline;
                    Input::Wake
                }
            };
        }
    }

    /// A list of those that are live, as one that names this chunk's group asks.
    fn live(&mut self) -> Asked {
        self.list(Scope::LiveOf(ChunkId::of_payload(b"any")))
    }
}

#[test]
fn a_silent_target_costs_one_operation_a_series_and_the_others_a_round() {
    let mut asker = Asker::new(&[4]);
    let series = asker.config.bid_timeout.times(ASKED as u64);
    let first = asker.live();
    assert_eq!((first.in_vain, first.took), (ASKED, series));
    assert_eq!((first.found.silent, first.found.brief), (vec![NodeId(4)], false));
    for _ in 0..100 {
        let next = asker.live();
        assert_eq!(next.in_vain, 1, "it is asked all the same");
        assert_eq!((next.found.silent, next.found.brief), (vec![NodeId(4)], true));
        assert_eq!(next.found.chunks.len(), 8);
        assert!(next.took <= asker.config.late.div(2), "{}", next.took);
    }
    // Who has to know is as patient as ever.
    let patient = asker.list(Scope::GroupOf(ChunkId::of_payload(b"any")));
    assert_eq!((patient.in_vain, patient.took, patient.found.brief), (ASKED, series, false));
    // And so is everybody when it was forgotten.
    asker.now += Span::from_secs(10);
    assert_eq!(asker.live().in_vain, ASKED);
}

#[test]
fn what_was_put_with_fewer_copies_is_hidden_by_fewer() {
    for (bug, brief) in [(None, false), (Some(Bug::ForgetEarlier), true)] {
        // There were two copies under the map before: two targets may hide such a chunk.
        let map = map(2, |n| n as u16).after(&map(1, |n| n as u16).with_fewest(2));
        let mut asker = Asker::under(map, &[4, 5]);
        asker.initiator = asker.initiator.planted(bug);
        assert!(!asker.live().found.brief, "the first asks with all patience");
        assert_eq!(asker.live().found.brief, brief);
    }
}

#[test]
fn whatever_a_target_says_ends_the_memory_of_its_silence() {
    let mut asker = Asker::new(&[4]);
    asker.live();
    // It answers the first question that reaches it.
    asker.dead.clear();
    let back = asker.live();
    assert_eq!((back.found.silent, back.took), (vec![], ANSWER));
    asker.dead.insert(4);
    assert_eq!(asker.live().in_vain, ASKED, "once more a whole series");
    // Any word of it does, while it is waited for, too.
    let pong = Message::Pong { txn: protocol::id::TxnId(1), free: 1, chunks: 1 };
    asker.initiator.handle_input(asker.now, Input::Datagram(from(NodeId(4), &pong)));
    assert_eq!(asker.live().in_vain, ASKED);
}

/// As many as there are copies may be all that know of what was acknowledged.
#[test]
fn those_who_may_be_all_that_know_are_waited_for() {
    let mut asker = Asker::new(&[4, 5, 6]);
    for _ in 0..2 {
        let asked = asker.live();
        assert_eq!((asked.in_vain, asked.found.brief), (3 * ASKED, false));
        assert_eq!(asked.found.silent, [4, 5, 6].map(NodeId));
    }
    asker.dead.remove(&5);
    asker.live();
    assert_eq!(asker.live().in_vain, 2, "two may be silent");
    // One more falls silent: it gets its series, and so do the others, since three are missing.
    asker.dead.insert(7);
    let asked = asker.live();
    assert_eq!((asked.in_vain, asked.found.brief), (3 * ASKED, false));
}

/// Three targets of one server have one copy of what was acknowledged, however many they are.
#[test]
fn a_silent_server_is_waited_for_as_briefly_as_a_silent_target() {
    let mut asker = Asker::in_domains(&[1, 2, 3], server);
    assert_eq!((asker.live().in_vain, asker.live().in_vain), (3 * ASKED, 3));
    let asked = asker.live();
    assert_eq!((asked.found.silent, asked.found.brief), ([1, 2, 3].map(NodeId).to_vec(), true));
    // Two servers, as long as a third answers.
    let mut asker = Asker::in_domains(&[1, 2, 3, 4, 5, 6, 7], |n| if n > 7 { 3 } else { server(n) });
    asker.live();
    assert!(!asker.live().found.brief, "one of each of three");
    asker.dead.remove(&7);
    asker.live();
    let asked = asker.live();
    assert_eq!((asked.found.silent.len(), asked.found.brief), (6, true));
    // One target of each server may be all that know.
    let mut asker = Asker::in_domains(&[1, 4, 7], server);
    asker.live();
    let asked = asker.live();
    assert_eq!((asked.in_vain, asked.found.brief), (3 * ASKED, false));
}

/// A map that puts targets together that were apart: what was acknowledged before may be on these alone.
#[test]
fn targets_that_were_in_other_domains_count_for_themselves() {
    let mut asker = Asker::in_domains(&[1, 4, 7], |n| n as u16);
    asker.live();
    asker.initiator.handle_input(asker.now, Input::Request(Request::Map(map(2, |n| n as u16 % 3))));
    let asked = asker.live();
    assert_eq!((asked.in_vain, asked.found.brief), (3 * ASKED, false));
}
