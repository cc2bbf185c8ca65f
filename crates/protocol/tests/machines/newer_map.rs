//! A newer cluster map comes from whoever uses it, part by part.

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{Epoch, NodeId, TxnId};
use protocol::initiator::{Event, Initiator, Request};
use protocol::machine::{Input, Machine, NewerMap, Output};
use protocol::map::{ClusterMap, MapDocument};
use protocol::target::{self, Setup, Target};
use protocol::wire::{Head, MapPart, MapRequest, Message, encode_message};

use crate::common::{CLUSTER, INITIATOR, Said, arriving, at, hear, initiator, map, target};

/// Parts that are asked for at once.
const ASKED: usize = 4;
/// More than that.
const SIZE: usize = 40 * MapDocument::PART + 7;

fn document(seed: u8) -> MapDocument {
    let bytes: Vec<u8> = (0..SIZE).map(|n| (n / 251) as u8 ^ n as u8 ^ seed).collect();
    MapDocument::new(bytes.into()).expect("it is short enough")
}

fn newer(epoch: u32, document: MapDocument) -> ClusterMap {
    let targets = map().targets().cloned().collect();
    ClusterMap::new(CLUSTER, Epoch(epoch), 3, 1, targets).expect("a good map").with_document(Some(document))
}

/// A target with a map of this epoch.
fn ahead(epoch: u32, document: MapDocument) -> Target {
    let setup = Setup { id: NodeId(2), map: newer(epoch, document), free: 1 << 30, chunks: 0, seed: 0, bug: None };
    Target::new(setup, Config::default())
}

fn says(node: NodeId, epoch: u32, message: &Message) -> Bytes {
    encode_message(Head { cluster: CLUSTER, epoch: Epoch(epoch), from: node }, message)
}

/// Target 2, which uses a map of this epoch, says something to the initiator.
fn hears(machine: &mut Initiator, now: u64, epoch: u32, message: &Message) -> Said<Event> {
    hear(machine, at(now), arriving(says(NodeId(2), epoch, message)))
}

fn asks(said: &Said<Event>) -> Option<MapRequest> {
    said.messages.iter().find_map(|message| match message {
        Message::MapRequest(request) => Some(*request),
        _ => None,
    })
}

fn parts(from: &mut Target, epoch: u32, request: MapRequest) -> Vec<Message> {
    let datagram = says(INITIATOR, epoch, &Message::MapRequest(request));
    hear(from, at(1), arriving(datagram)).messages
}

fn given(said: &Said<Event>) -> Option<&MapDocument> {
    said.events.iter().find_map(|event| match event {
        Event::NewerMap(NewerMap::Here { document, .. }) => Some(document),
        _ => None,
    })
}

fn in_vain(said: &Said<Event>) -> bool {
    said.events.iter().any(|event| matches!(event, Event::NewerMap(NewerMap::Needed { epoch: Epoch(2) })))
}

fn deadline(machine: &mut Initiator) -> u64 {
    match machine.poll_output() {
        Output::Idle(Some(deadline)) => deadline.at.as_nanos(),
        _ => panic!("it should wait for something"),
    }
}

/// Hands over all that is asked for, but for what is `lost`; the document and the messages that it took.
fn fetch(
    machine: &mut Initiator,
    from: &mut Target,
    epoch: u32,
    mut lost: impl FnMut(usize) -> bool,
) -> (MapDocument, usize) {
    let (mut now, mut count) = (1_000, 0);
    let mut said = hears(machine, now, epoch, &Message::Pong { txn: TxnId(9), free: 1, chunks: 0 });
    loop {
        let mut next = None;
        for part in asks(&said).map(|request| parts(from, 1, request)).unwrap_or_default() {
            count += 1;
            if lost(count) {
                continue;
            }
            let answer = hears(machine, now, epoch, &part);
            if let Some(document) = given(&answer) {
                return (document.clone(), count);
            }
            next = asks(&answer).is_some().then_some(answer).or(next);
        }
        said = next.unwrap_or_else(|| {
            now = deadline(machine);
            hear(machine, at(now), Input::Wake)
        });
    }
}

#[test]
fn a_document_of_many_parts_comes_whole() {
    let (mut machine, mut from) = (initiator(), ahead(2, document(0)));
    let (fetched, sent) = fetch(&mut machine, &mut from, 2, |_| false);
    assert_eq!((fetched, sent), (document(0), SIZE.div_ceil(MapDocument::PART)));
}

/// While parts come, those behind them are on their way.
#[test]
fn parts_that_come_slowly_are_not_asked_for_again() {
    let (mut machine, mut from) = (initiator(), ahead(2, document(0)));
    let late = Config::default().late.as_nanos();
    let said = hears(&mut machine, 1, 2, &Message::Pong { txn: TxnId(9), free: 1, chunks: 0 });
    let mut slow = parts(&mut from, 1, asks(&said).expect("it asks"));
    let _ = slow.pop();
    let mut now = 1;
    for part in slow {
        now += late * 3 / 4;
        assert_eq!(asks(&hear(&mut machine, at(now), Input::Wake)), None);
        assert_eq!(asks(&hears(&mut machine, now, 2, &part)), None);
    }
    // The last of them is lost.
    let again = asks(&hear(&mut machine, at(now + late), Input::Wake)).expect("it asks again");
    assert_eq!(again.offset as usize, (ASKED - 1) * MapDocument::PART);
}

#[test]
fn lost_parts_are_asked_for_again() {
    let (mut machine, mut from) = (initiator(), ahead(2, document(0)));
    let (fetched, sent) = fetch(&mut machine, &mut from, 2, |nth| nth.wrapping_mul(0x9e37_79b9) >> 9 & 3 == 0);
    assert!(fetched == document(0) && sent < 2 * SIZE.div_ceil(MapDocument::PART), "{sent} parts were sent");
}

#[test]
fn a_target_fetches_as_an_initiator_does() {
    let (mut machine, mut from) = (target(), ahead(2, document(0)));
    let mut said = hear(&mut machine, at(1), arriving(says(INITIATOR, 2, &Message::Ping { txn: TxnId(1) })));
    let mut document = None;
    for _ in 0..SIZE.div_ceil(ASKED * MapDocument::PART) {
        let request = said.messages.iter().find_map(|message| match message {
            Message::MapRequest(request) => Some(*request),
            _ => None,
        });
        let mut next = None;
        for part in parts(&mut from, 1, request.expect("it asks")) {
            let answer = hear(&mut machine, at(2), arriving(says(INITIATOR, 2, &part)));
            document = answer.events.iter().find_map(|event| match event {
                target::Event::NewerMap(NewerMap::Here { document, .. }) => Some(document.clone()),
                _ => document.take(),
            });
            next = (!answer.messages.is_empty()).then_some(answer).or(next);
        }
        let Some(next) = next else { break };
        said = next;
    }
    assert_eq!(document, Some(self::document(0)));
}

#[test]
fn a_node_that_is_restarted_with_a_newer_map_begins_again() {
    let (mut machine, mut second, mut third) = (initiator(), ahead(2, document(0)), ahead(3, document(1)));
    let said = hears(&mut machine, 1, 2, &Message::Pong { txn: TxnId(9), free: 1, chunks: 0 });
    let request = asks(&said).expect("it asks");
    let mut last = None;
    for part in parts(&mut second, 1, request) {
        last = asks(&hears(&mut machine, 2, 2, &part));
    }
    // From here on it is another document: none of what came belongs to it.
    let mut request = last.expect("it asks for more");
    assert_eq!(request.offset as usize, ASKED * MapDocument::PART);
    for _ in 0..2 * SIZE.div_ceil(ASKED * MapDocument::PART) {
        let mut next = None;
        for part in parts(&mut third, 1, request) {
            let answer = hears(&mut machine, 3, 3, &part);
            if let Some(fetched) = given(&answer) {
                return assert_eq!(fetched, &document(1));
            }
            next = asks(&answer).or(next);
        }
        request = next.unwrap_or_else(|| {
            let now = deadline(&mut machine);
            asks(&hear(&mut machine, at(now), Input::Wake)).expect("it asks again")
        });
    }
    panic!("the document did not come");
}

#[test]
fn parts_that_are_not_of_one_document_are_no_map() {
    let (mut machine, mut from) = (initiator(), ahead(2, document(0)));
    let said = hears(&mut machine, 1, 2, &Message::Pong { txn: TxnId(9), free: 1, chunks: 0 });
    let mut request = asks(&said);
    while let Some(wanted) = request.take() {
        for mut part in parts(&mut from, 1, wanted) {
            if let Message::MapPart(MapPart { offset: 5120, bytes, .. }) = &mut part {
                *bytes = vec![7; MapDocument::PART].into();
            }
            let answer = hears(&mut machine, 2, 2, &part);
            assert_eq!(given(&answer), None);
            if in_vain(&answer) {
                return;
            }
            request = asks(&answer).or(request);
        }
    }
    panic!("what came is not said to be useless");
}

#[test]
fn who_does_not_give_its_map_is_asked_a_few_times_and_then_others_are() {
    let mut machine = initiator();
    let pong = Message::Pong { txn: TxnId(9), free: 1, chunks: 0 };
    assert!(asks(&hears(&mut machine, 1, 2, &pong)).is_some());
    let mut asked = 1;
    let end = loop {
        let now = deadline(&mut machine);
        let said = hear(&mut machine, at(now), Input::Wake);
        if in_vain(&said) {
            break now;
        }
        asked += usize::from(asks(&said).is_some());
        // Meanwhile nobody else is asked for the same.
        assert_eq!(asks(&hears(&mut machine, now, 2, &pong)), None);
    };
    assert_eq!(asked, 5);
    assert_eq!(asks(&hears(&mut machine, end + 999_999_999, 2, &pong)), None, "a pause comes first");
    assert!(asks(&hears(&mut machine, end + 1_000_000_000, 2, &pong)).is_some());
}

#[test]
fn a_map_is_given_to_those_only_that_have_an_older_one() {
    let request = MapRequest { offset: 0, parts: 200 };
    let mut from = ahead(2, document(0));
    assert_eq!(parts(&mut from, 1, request).len(), 16, "more are not sent at once");
    assert_eq!(parts(&mut from, 1, MapRequest { offset: SIZE as u32, parts: 1 }).len(), 1, "the last");
    assert_eq!(parts(&mut from, 1, MapRequest { offset: u32::MAX, parts: 1 }), []);
    assert_eq!(parts(&mut from, 2, request), []);
    let mut without = target();
    assert_eq!(parts(&mut without, 0, request), [], "it was made without a document");
}

#[test]
fn a_map_that_came_otherwise_ends_the_asking() {
    let mut machine = initiator();
    let pong = Message::Pong { txn: TxnId(9), free: 1, chunks: 0 };
    assert!(asks(&hears(&mut machine, 1, 2, &pong)).is_some());
    hear(&mut machine, at(2), Input::Request(Request::Map(newer(2, document(0)))));
    let Output::Idle(None) = machine.poll_output() else { panic!("nothing is waited for") };
    // What comes late is nobody's.
    let part = parts(&mut ahead(2, document(0)), 1, MapRequest { offset: 0, parts: 1 }).remove(0);
    let said = hears(&mut machine, 3, 2, &part);
    assert!(given(&said).is_none() && asks(&said).is_none());
}
