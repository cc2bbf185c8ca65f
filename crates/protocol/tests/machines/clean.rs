//! What a target refuses a cleaner, and in which order a cleaner asks.

use std::collections::BTreeSet;

use protocol::cleaner::{Cleaner, Summary, Unfinished, Want};
use protocol::config::Config;
use protocol::id::{ChunkId, ClusterId, Epoch, NodeId, TxnId, coded};
use protocol::initiator::{self, Busy, Discarded, Found, Initiator, Mark, Marked, Query, QueryAnswer};
use protocol::limits;
use protocol::machine::{Completion, Destination, Effect, Input, Machine, Output, WriteFailure};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::promise::{Stamps, Verdict};
use protocol::redundancy::{Piece, Wanted};
use protocol::target::{Event, Setup, Target};
use protocol::time::Span;
use protocol::wire::{Ack, Answer, Bid, Discard, Head, Message, encode_message};

use crate::common::{self, INITIATOR, arriving, at, hear, initiator, put, step, target};

fn sent(epoch: u32, message: &Message) -> Input<protocol::target::Request> {
    let head = Head { cluster: ClusterId(1), epoch: Epoch(epoch), from: INITIATOR };
    arriving(encode_message(head, message))
}

fn discard(mark: u64, since: u64, id: ChunkId) -> Message {
    Message::Discard(Discard { txn: TxnId(9), page: 2, mark: TxnId(mark), since: TxnId(since), ids: vec![id] })
}

#[test]
fn a_target_numbers_its_marks_and_remembers_promises() {
    let (mut target, id) = (target(), ChunkId::of_payload(b"x"));
    let (answer, effects) = step(&mut target, at(0), sent(1, &discard(5, 0, id)));
    assert!(effects.is_empty(), "a mark that it does not know: {effects:?}");
    assert_eq!(answer, [Message::Discarded { txn: TxnId(9), page: 2, dropped: None, bytes: 0 }]);
    for (n, mark) in [5, 6, 5].into_iter().enumerate() {
        let (answer, _) = step(&mut target, at(1), sent(1, &Message::Mark { txn: TxnId(mark) }));
        assert_eq!(answer, [Message::Marked { txn: TxnId(mark) }], "mark {n}");
    }
    let promised = |effects: &[_]| match effects {
        [(_, Effect::Lookup { promise, .. })] => *promise,
        other => panic!("{other:?}"),
    };
    assert_eq!(promised(&step(&mut target, at(2), sent(1, &put(1, 1, id, 10))).1), Some(2.into()));
    assert_eq!(
        promised(&step(&mut target, at(2), sent(1, &Message::Probe { txn: TxnId(3), id, wanted: Wanted::BY_MAP })).1),
        Some(2.into())
    );
    assert_eq!(promised(&step(&mut target, at(2), sent(1, &common::get(4, 1, id))).1), None, "a get promises nothing");
    let (_, effects) = step(&mut target, at(3), sent(1, &discard(6, 5, id)));
    let [(op, Effect::Discard { mark: 2, since: 1, .. })] = effects[..] else { panic!("{effects:?}") };
    let completion = Completion::Discarded { dropped: 1, bytes: 64, result: Ok(()) };
    let (answer, _) = step(&mut target, at(4), Input::Done { op, completion });
    assert_eq!(answer, [Message::Discarded { txn: TxnId(9), page: 2, dropped: Some(1), bytes: 64 }]);
    // Only an earlier mark than this look's says what was condemned before it.
    for since in [5, 6, 7] {
        let (_, effects) = step(&mut target, at(5), sent(1, &discard(5, since, id)));
        assert!(matches!(effects[..], [(_, Effect::Discard { mark: 1, since: 0, .. })]), "{effects:?}");
    }
}

#[test]
fn the_oldest_of_many_marks_is_forgotten_and_what_refers_to_it_is_refused() {
    let (mut target, id) = (target(), ChunkId::of_payload(b"x"));
    for mark in 1..=limits::MARKS as u64 + 1 {
        step(&mut target, at(mark), sent(1, &Message::Mark { txn: TxnId(mark) }));
    }
    let (answer, effects) = step(&mut target, at(100), sent(1, &discard(1, 0, id)));
    assert!(effects.is_empty(), "{effects:?}");
    assert_eq!(answer, [Message::Discarded { txn: TxnId(9), page: 2, dropped: None, bytes: 0 }]);
    let (_, effects) = step(&mut target, at(100), sent(1, &discard(2, 1, id)));
    assert!(matches!(effects[..], [(_, Effect::Discard { mark: 2, since: 0, .. })]), "{effects:?}");
    let (_, effects) = step(&mut target, at(100), sent(1, &discard(3, 2, id)));
    assert!(matches!(effects[..], [(_, Effect::Discard { mark: 3, since: 2, .. })]), "{effects:?}");
}

#[test]
fn a_target_says_what_a_discard_came_to() {
    for (dropped, result, told, free) in
        [(0_u32, Ok(()), false, true), (4, Ok(()), true, true), (5, Err(WriteFailure::Disk), true, false)]
    {
        let count = dropped.count_ones();
        let setup = Setup { id: NodeId(1), map: common::map(), free: 1 << 30, chunks: 7, seed: 0, bug: None };
        let mut target = Target::new(setup, Config { scrub_interval: Span::ZERO, ..Config::default() });
        step(&mut target, at(0), sent(1, &Message::Mark { txn: TxnId(5) }));
        let ids: Vec<ChunkId> = [b"x", b"y", b"z"].map(|bytes| ChunkId::of_payload(bytes)).into();
        let page = Message::Discard(Discard { txn: TxnId(9), page: 2, mark: TxnId(5), since: TxnId(0), ids });
        let (_, effects) = step(&mut target, at(1), sent(1, &page));
        let [(op, _)] = effects[..] else { panic!("{effects:?}") };
        let completion = Completion::Discarded { dropped, bytes: 64, result };
        let events = hear(&mut target, at(2), Input::Done { op, completion }).events;
        let discarded: Vec<_> = events.iter().filter(|event| matches!(event, Event::Discarded { .. })).collect();
        assert_eq!(discarded.len(), usize::from(told), "{events:?}");
        assert!(!told || *discarded[0] == Event::Discarded { chunks: count, bytes: 64 }, "{events:?}");
        assert_eq!(events.contains(&Event::DiskFailed), !free, "{events:?}");
        let (pong, _) = step(&mut target, at(3), sent(1, &Message::Ping { txn: TxnId(1) }));
        let [Message::Pong { free: left, chunks, .. }] = pong[..] else { panic!("{pong:?}") };
        assert_eq!((left > 0, chunks), (free, 7 - u64::from(count)));
    }
}

#[test]
fn a_cleaner_with_an_old_map_is_refused() {
    let (mut target, id) = (target(), ChunkId::of_payload(b"x"));
    step(&mut target, at(0), sent(1, &Message::Mark { txn: TxnId(5) }));
    // Somebody puts under a newer map, which this target has not found yet.
    step(&mut target, at(1), sent(2, &put(1, 1, id, 10)));
    let refused = |txn| [Message::Bid(Bid { txn: TxnId(txn), round: 0, answer: Answer::Stale })];
    assert_eq!(step(&mut target, at(2), sent(1, &discard(5, 0, id))).0, refused(9));
    assert_eq!(step(&mut target, at(2), sent(1, &Message::Mark { txn: TxnId(6) })).0, refused(6));
}

#[test]
fn only_an_earlier_condemnation_drops() {
    let mut stamps = Stamps::default();
    assert_eq!(stamps.judge(1, 0), Verdict::Condemn);
    assert_eq!(stamps.judge(2, 1), Verdict::Drop);
    // Two cleaners, one with the marks 3 and 5, the other with 4 and 6.
    let mut stamps = Stamps::default();
    assert_eq!(
        (stamps.judge(3, 0), stamps.judge(4, 0), stamps.judge(5, 3)),
        (Verdict::Condemn, Verdict::Condemn, Verdict::Drop)
    );
    assert_eq!((stamps.judge(5, 2), stamps.judge(6, 4)), (Verdict::Condemn, Verdict::Drop));
    let mut stamps = Stamps::promised(4);
    assert_eq!((stamps.judge(4, 3), stamps.judge(5, 4)), (Verdict::Keep, Verdict::Condemn));
}

/// A cleaner's first pass waits for nobody: what it finds unreferenced may be referred to a moment later, and must be
/// healed when copies of it are lost.
#[test]
fn only_a_pass_that_waited_is_certain() {
    let mut stamps = Stamps::promised(0);
    assert_eq!(stamps.judge(1, 0), Verdict::Condemn);
    assert!(!stamps.is_unreferenced());
    // Another cleaner's pass that waited, which may not drop what was condemned after its pass before.
    let mut of_two = stamps;
    assert!(of_two.judge(3, 0) == Verdict::Condemn && !of_two.is_unreferenced());
    let mut later = Stamps::promised(1);
    assert!(later.judge(2, 1) == Verdict::Condemn && later.is_unreferenced());
    later.promise(2);
    assert!(!later.is_unreferenced());
    assert!(later.judge(3, 2) == Verdict::Condemn && later.judge(4, 3) == Verdict::Drop);
    assert_eq!(stamps.judge(2, 1), Verdict::Drop);
}

fn mark(n: u64) -> Mark {
    Mark { name: TxnId(n), epoch: Epoch(1) }
}

fn found(id: ChunkId) -> Found {
    Found { chunks: vec![(id, vec![NodeId(1)])], silent: vec![] }
}

/// Of the slice that was looked through, the coded chunks follow: of these there are none.
fn no_coded(cleaner: &mut Cleaner, slice: &[u8]) {
    assert_eq!(cleaner.want(), Want::List { prefix: [&[2], slice].concat() });
    cleaner.listed(Ok(Found { chunks: vec![], silent: vec![] }), |_| false);
}

#[test]
fn pieces_go_when_nothing_refers_to_their_chunk() {
    let (code, bytes) = ("2+1".parse().expect("a code"), [b"kept", b"gone"]);
    let [kept, gone] = bytes.map(|bytes| coded::cut(code, bytes).expect("it is short").id);
    let mut cleaner = Cleaner::new(false);
    cleaner.marked(Ok(Marked { mark: mark(1), silent: vec![] }));
    cleaner.read(1, vec![]);
    assert_eq!(cleaner.want(), Want::List { prefix: vec![0] });
    cleaner.listed(Ok(Found { chunks: vec![], silent: vec![] }), |_| true);
    assert_eq!(cleaner.want(), Want::List { prefix: vec![2] });
    let pieces = [kept, gone].map(|id| [0, 1, 2].map(|n| (id.of_piece(Piece(n)), vec![NodeId(u32::from(n) + 1)])));
    cleaner.listed(Ok(Found { chunks: pieces.concat(), silent: vec![] }), |id| *id == kept);
    let Want::Discard(discard) = cleaner.want() else { panic!("they go") };
    assert_eq!(discard.chunks, pieces[1]);
}

#[test]
fn a_cleaner_waits_before_it_reads_and_stops_at_silence() {
    let id = ChunkId::of_payload(b"x");
    let mut cleaner = Cleaner::new(false);
    for (n, since) in [(1, None), (2, Some(mark(1)))] {
        assert_eq!(cleaner.want(), Want::Mark);
        cleaner.marked(Ok(Marked { mark: mark(n), silent: vec![] }));
        if since.is_some() {
            assert_eq!(cleaner.want(), Want::Rest, "what was begun before the mark may not be there yet");
            cleaner.rested();
        }
        assert_eq!(cleaner.want(), Want::Read { from: 0 });
        cleaner.read(1, vec![]);
        assert_eq!(cleaner.want(), Want::List { prefix: vec![0] });
        cleaner.listed(Ok(found(id)), |_| false);
        let discard = initiator::Discard { mark: mark(n), since, chunks: found(id).chunks };
        assert_eq!((cleaner.want(), cleaner.want()), (Want::Discard(discard.clone()), Want::Discard(discard)));
        cleaner.discarded(Ok(Discarded { copies: n, bytes: 64, silent: vec![] }));
        no_coded(&mut cleaner, &[]);
        let look = Summary { unreferenced: 1, copies: n, bytes: 64, unfinished: None };
        assert_eq!(cleaner.want(), Want::Over(look));
        cleaner.next_pass();
    }
    cleaner.marked(Ok(Marked { mark: mark(3), silent: vec![] }));
    cleaner.rested();
    cleaner.read(1, vec![]);
    assert_eq!(cleaner.want(), Want::List { prefix: vec![0] });
    cleaner.listed(Ok(Found { silent: vec![NodeId(2)], ..found(id) }), |_| false);
    let Want::Over(look) = cleaner.want() else { panic!("it went on without target 2") };
    assert_eq!(look.unfinished, Some(Unfinished::Silent(vec![NodeId(2)])));
    cleaner.next_pass();
    cleaner.marked(Ok(Marked { mark: mark(4), silent: vec![NodeId(2)] }));
    assert!(matches!(cleaner.want(), Want::Over(_)), "it goes on without a mark on target 2");
}

#[test]
fn a_cleaner_looks_slice_by_slice() {
    let ids = [ChunkId::of_payload(b"x"), ChunkId::of_payload(b"y")];
    for bytes in [1, 2] {
        let mut cleaner = Cleaner::new(false);
        cleaner.set_slice_bytes(bytes);
        assert_eq!(cleaner.slice_bytes(), bytes);
        cleaner.marked(Ok(Marked { mark: mark(1), silent: vec![] }));
        let last = if bytes == 1 { 255 } else { 65_535 };
        for (from, until) in [(0, 2), (2, 2), (3, last), (last, last + 1)] {
            assert_eq!(cleaner.want(), Want::Read { from });
            let manifests = if from == 0 { found(ids[0]).chunks } else { vec![] };
            cleaner.read(until, manifests.clone());
            if from == 0 {
                let discard = initiator::Discard { mark: mark(1), since: None, chunks: manifests };
                assert_eq!(cleaner.want(), Want::Discard(discard), "manifests go first");
                cleaner.discarded(Ok(Discarded { copies: 0, bytes: 0, silent: vec![] }));
            }
            // A reading that gets nowhere still covers its slice.
            for slice in from..until.max(from + 1) {
                let slice_bytes = &u32::to_be_bytes(slice)[4 - usize::from(bytes)..];
                assert_eq!(cleaner.want(), Want::List { prefix: [&[0], slice_bytes].concat() });
                cleaner.listed(Ok(found(ids[1])), |id| *id == ids[1]);
                no_coded(&mut cleaner, slice_bytes);
            }
        }
        let look = Summary { unreferenced: 1, copies: 0, bytes: 0, unfinished: None };
        assert_eq!(cleaner.want(), Want::Over(look));
    }
}

#[test]
fn a_look_that_cannot_go_on_says_why() {
    let id = ChunkId::of_payload(b"x");
    type Step = fn(&mut Cleaner, ChunkId);
    let silent = || Unfinished::Silent(vec![NodeId(2)]);
    let discarded: Step = |cleaner, _| {
        cleaner.discarded(Ok(Discarded { copies: 1, bytes: 64, silent: vec![NodeId(2)] }));
    };
    let refused: Step = |cleaner, _| cleaner.discarded(Err(Busy));
    let at_discard: [(Step, Unfinished); 2] = [(discarded, silent()), (refused, Unfinished::Busy)];
    for (step, why) in at_discard {
        let mut cleaner = Cleaner::new(false);
        cleaner.marked(Ok(Marked { mark: mark(1), silent: vec![] }));
        cleaner.read(1, found(id).chunks);
        assert!(matches!(cleaner.want(), Want::Discard(_)));
        step(&mut cleaner, id);
        let Want::Over(look) = cleaner.want() else { panic!("it goes on") };
        assert_eq!(look.unfinished, Some(why));
    }
    let at_mark: [(Step, Unfinished); 2] = [
        (|cleaner, _| cleaner.marked(Err(Busy)), Unfinished::Busy),
        (|cleaner, _| cleaner.stop(Unfinished::Unread), Unfinished::Unread),
    ];
    for (step, why) in at_mark {
        let mut cleaner = Cleaner::new(false);
        step(&mut cleaner, id);
        let Want::Over(look) = cleaner.want() else { panic!("it goes on") };
        assert_eq!(look.unfinished, Some(why));
        // The next look begins anew.
        cleaner.next_pass();
        assert_eq!(cleaner.want(), Want::Mark);
    }
    let mut cleaner = Cleaner::new(false);
    cleaner.marked(Ok(Marked { mark: mark(1), silent: vec![] }));
    cleaner.read(1, vec![]);
    assert!(matches!(cleaner.want(), Want::List { .. }));
    cleaner.listed(Err(Busy), |_| false);
    let Want::Over(look) = cleaner.want() else { panic!("it goes on") };
    assert_eq!(look.unfinished, Some(Unfinished::Busy));
}

#[test]
fn a_dry_cleaner_tells_the_targets_nothing() {
    let id = ChunkId::of_payload(b"x");
    let mut cleaner = Cleaner::new(true);
    cleaner.marked(Ok(Marked { mark: mark(1), silent: vec![] }));
    cleaner.read(1, found(id).chunks);
    assert!(matches!(cleaner.want(), Want::List { .. }));
    cleaner.listed(Ok(found(id)), |_| false);
    no_coded(&mut cleaner, &[]);
    let look = Summary { unreferenced: 2, copies: 0, bytes: 0, unfinished: None };
    assert_eq!(cleaner.want(), Want::Over(look));
}

#[test]
fn many_chunks_are_discarded_in_batches() {
    let chunks: Vec<_> = (0..2_500_u32).map(|n| (ChunkId::of_payload(&n.to_le_bytes()), vec![NodeId(1)])).collect();
    let mut cleaner = Cleaner::new(false);
    cleaner.marked(Ok(Marked { mark: mark(1), silent: vec![] }));
    cleaner.read(1, vec![]);
    assert!(matches!(cleaner.want(), Want::List { .. }));
    cleaner.listed(Ok(Found { chunks: chunks.clone(), silent: vec![] }), |_| false);
    let mut told = Vec::new();
    while let Want::Discard(discard) = cleaner.want() {
        assert!(discard.chunks.len() <= 1_024);
        told.extend(discard.chunks);
        cleaner.discarded(Ok(Discarded { copies: 1, bytes: 64, silent: vec![] }));
    }
    assert_eq!(told, chunks);
    no_coded(&mut cleaner, &[]);
    assert_eq!(cleaner.want(), Want::Over(Summary { unreferenced: 2_500, copies: 3, bytes: 192, unfinished: None }));
}

#[test]
fn a_renewal_needs_enough_promises() {
    for (acks, enough) in [([Ack::Durable; 3], true), ([Ack::Durable, Ack::Unknown, Ack::Durable], false)] {
        let mut machine = initiator();
        let request = initiator::Request::Query {
            handle: 7,
            query: Query::Renew { id: ChunkId::of_payload(b"x"), redundancy: None },
        };
        let sent = hear(&mut machine, at(0), Input::Request(request));
        let [Message::Probe { txn, .. }, ..] = sent.messages[..] else { panic!("{:?}", sent.messages) };
        let mut events = vec![];
        for (n, ack) in acks.into_iter().enumerate() {
            let datagram = common::from(NodeId(n as u32 + 1), &Message::Ack { txn, ack });
            events.extend(hear(&mut machine, at(1), arriving(datagram)).events);
        }
        assert!(
            matches!(events[..], [initiator::Event::Query { handle: 7, answer: QueryAnswer::Renew(Ok(result)) }] if result == enough),
            "{events:?}"
        );
    }
}

/// What comes of a discard of `count` chunks on the targets 1 to 3: `answer` makes an answer of each question to the first,
/// the others say nothing.
fn discarded(count: u32, answer: impl Fn(u16) -> Option<u32>) -> initiator::Discarded {
    let mut machine = initiator();
    let holders = vec![NodeId(1), NodeId(2), NodeId(3)];
    let chunks = (0..count).map(|n| (ChunkId::of_payload(&n.to_le_bytes()), holders.clone())).collect();
    let request = initiator::Discard { mark: mark(5), since: Some(mark(4)), chunks };
    let mut input = Input::Request(initiator::Request::Query { handle: 7, query: Query::Discard(request) });
    let mut told = Vec::new();
    for second in 0..100 {
        let received = hear(&mut machine, at(second * 1_000_000_000), input);
        if let [initiator::Event::Query { handle: 7, answer: QueryAnswer::Discard(result) }] = &received.events[..] {
            // Who answers is told each chunk once; who is silent, the first page until patience is over.
            let pages = count.div_ceil(limits::LISTED as u32);
            let all: Vec<u16> = (0..pages as u16).collect();
            assert!(told == all || answer(0).is_none() && told == [0], "{told:?}");
            return result.clone().expect("not busy");
        }
        let asked = received.messages.into_iter().find_map(|message| match message {
            Message::Discard(discard) if told.last().is_none_or(|last| *last < discard.page) => Some(discard),
            _ => None,
        });
        input = asked.map_or(Input::Wake, |discard| {
            assert_eq!((discard.mark, discard.since), (TxnId(5), TxnId(4)));
            assert!(discard.ids.len() <= limits::LISTED);
            told.push(discard.page);
            let dropped = answer(discard.page);
            let sent = Message::Discarded { txn: discard.txn, page: discard.page, dropped, bytes: 64 };
            arriving(common::from(NodeId(1), &sent))
        });
    }
    panic!("it never ends")
}

#[test]
fn a_discard_says_what_was_dropped_and_who_was_silent() {
    let done = discarded(70, |page| Some(if page == 2 { 0b11 } else { 0b101 }));
    assert_eq!(done, initiator::Discarded { copies: 6, bytes: 3 * 64, silent: vec![NodeId(2), NodeId(3)] });
    // A target that was restarted does not know the mark.
    let mut done = discarded(70, |_| None);
    done.silent.sort_unstable();
    assert_eq!(done, initiator::Discarded { copies: 0, bytes: 0, silent: vec![NodeId(1), NodeId(2), NodeId(3)] });
}

#[test]
fn a_discard_goes_to_all_who_may_have_had_a_copy() {
    let entry = |id: u32| TargetEntry { id: NodeId(id), domain: id as u16, capacity: 1 << 30 };
    let dealt = |targets: std::ops::RangeInclusive<u32>| {
        ClusterMap::new(ClusterId(1), Epoch(1), 2, 2, targets.map(entry).collect()).expect("a good map")
    };
    // The groups of four of the targets 1 to 8, after those of the targets 5 to 14, of which 9 to 12 are gone.
    let before = dealt(5..=14);
    let layout = dealt(1..=8).placement().layout().clone();
    let targets = (1..=8).chain(13..=14).map(entry).collect();
    let map = ClusterMap::with_layout(ClusterId(1), Epoch(1), 2, targets, layout).expect("a good map");
    let map = map.with_previous(Some(before.placement().clone()));
    for n in 0_u32..50 {
        let id = ChunkId::of_payload(&n.to_le_bytes());
        // Enough for the map's two copies. The second is in no group of the chunk, perhaps.
        let holders = [before.placement().targets_of(&id)[0], NodeId(1 + n % 8)].map(|holder| match holder.0 {
            9..=12 => NodeId(13),
            _ => holder,
        });
        let mut machine = Initiator::new(INITIATOR, map.clone(), Config::default(), 1);
        let discard = initiator::Discard { mark: mark(5), since: None, chunks: vec![(id, holders.to_vec())] };
        machine.handle_input(
            at(0),
            Input::Request(initiator::Request::Query { handle: 7, query: Query::Discard(discard) }),
        );
        let mut told = BTreeSet::new();
        while let Output::Transmit(transmit) = machine.poll_output() {
            let Destination::Node(target) = transmit.to else { panic!("{:?}", transmit.to) };
            assert!(told.insert(target), "each is told once");
        }
        let groups = [map.placement().targets_of(&id), before.placement().targets_of(&id), holders.to_vec()];
        let expected: BTreeSet<NodeId> = groups.concat().into_iter().filter(|id| map.target(*id).is_some()).collect();
        assert_eq!(told, expected, "{id:?}");
    }
}

#[test]
fn a_discard_that_tells_nobody_anything_ends_at_once() {
    let mut machine = initiator();
    let (earlier, chunks) =
        (Mark { name: TxnId(5), epoch: Epoch(0) }, vec![(ChunkId::of_payload(b"x"), vec![NodeId(1)])]);
    let discard = initiator::Discard { mark: earlier, since: None, chunks };
    let sent = hear(
        &mut machine,
        at(0),
        Input::Request(initiator::Request::Query { handle: 7, query: Query::Discard(discard) }),
    );
    assert_eq!((sent.messages, sent.events.len()), (vec![], 0));
    let woken = hear(&mut machine, at(0), Input::Wake);
    let [initiator::Event::Query { handle: 7, answer: QueryAnswer::Discard(Ok(done)) }] = &woken.events[..] else {
        panic!("it goes on")
    };
    assert_eq!((done.copies, &done.silent[..]), (0, &[1, 2, 3].map(NodeId)[..]));
}
