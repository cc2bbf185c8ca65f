//! What a target takes at most, and what it answers then.

use bytes::Bytes;
use protocol::config::Config;
use protocol::id::{ChunkId, ClusterId, Epoch, NodeId, TxnId};
use protocol::limits;
use protocol::machine::{Body, Completion, Destination, Effect, Input};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::target::Request;
use protocol::time::{Instant, Span};
use protocol::transfer::{Incoming, Outgoing, Port};
use protocol::wire::{
    Ack, Answer, Bid, ByteRange, DataHeader, Granted, Message, OfferedWindow, Purpose, PutRequest, Repair,
};

use crate::common::{self, CLUSTER, arriving, at, put, step, target, target_with, tell, window};

fn id(n: u64) -> ChunkId {
    ChunkId::of_payload(&n.to_le_bytes())
}

fn answer(messages: &[Message]) -> Answer {
    match messages {
        [Message::Bid(Bid { answer, .. })] => *answer,
        other => panic!("no answer: {other:?}"),
    }
}

fn unreserved(message: Message) -> Message {
    let Message::PutRequest(request) = message else { panic!("{message:?}") };
    Message::PutRequest(PutRequest { unreserved: true, ..request })
}

#[test]
fn a_target_keeps_only_so_many_reservations() {
    for plain in [true, false] {
        let mut target = target();
        let request = |txn| if plain { unreserved(put(txn, 1, id(txn), 6)) } else { put(txn, 1, id(txn), 6) };
        for txn in 1..=limits::RESERVATIONS as u64 {
            window(&tell(&mut target, at(1), &request(txn), None).0);
        }
        let more = limits::RESERVATIONS as u64 + 1;
        assert!(matches!(answer(&tell(&mut target, at(1), &request(more), None).0), Answer::Busy(_)));
        assert_eq!(target.in_progress(), limits::RESERVATIONS);
        // Whoever is free again makes room.
        tell(&mut target, at(2), &common::refused(1, 1), None);
        let refused = if plain { limits::RESERVATIONS } else { limits::RESERVATIONS - 1 };
        assert_eq!(target.in_progress(), refused);
    }
}

#[test]
fn a_full_target_offers_windows_for_removals_alone() {
    let mut target = target();
    let manifest = ChunkId::of_manifest("name", 1, b"removed");
    step(&mut target, at(0), Input::Request(Request::Free(0)));
    for (txn, id, removal, offered) in
        [(1, manifest, false, false), (2, id(1), false, false), (3, id(1), true, false), (4, manifest, true, true)]
    {
        let Message::PutRequest(request) = put(txn, 1, id, 7) else { panic!("no request") };
        let purpose = if removal { Purpose::Remove } else { Purpose::Store };
        let request = Message::PutRequest(PutRequest { purpose, ..request });
        let answer = answer(&tell(&mut target, at(1), &request, None).0);
        assert_eq!(matches!(answer, Answer::Window(_)), offered, "{txn}: {answer:?}");
        assert_eq!(answer == Answer::NoSpace, !offered, "{txn}: {answer:?}");
    }
    let granted = vec![Granted { target: NodeId(1), offset: Span::ZERO }];
    tell(&mut target, at(2), &Message::Accept { txn: TxnId(4), round: 1, granted: granted.into() }, None);
    let header = DataHeader { cluster: CLUSTER, from: common::INITIATOR, txn: TxnId(4), offset: 0, size: 7 };
    let datagram = Bytes::from([&header.encode()[..], b"removed"].concat());
    let (_, effects) = step(&mut target, at(1_000), arriving(datagram));
    assert!(matches!(effects[..], [(_, Effect::Write { removal: true, .. })]), "{effects:?}");
}

#[test]
fn a_receive_buffer_is_not_promised_twice() {
    let config = |chunks: u64| Config { receive_buffer: chunks << 20, scrub_interval: Span::ZERO, ..Config::default() };
    let offered = |chunks| {
        let mut target = target_with(config(chunks));
        let ask = |txn| window(&tell(&mut target, at(0), &put(txn, 1, id(txn), 1 << 20), None).0);
        (1..=2).map(ask).collect::<Vec<OfferedWindow>>()
    };
    let (both, one) = (offered(2), offered(1));
    assert!(both[1].start < both[0].done, "two fit: {both:?}");
    assert!(one[1].start >= one[0].done, "the second was promised room that the first still has: {one:?}");
    let config = config(3);
    let large = put(5, 1, id(5), (3 << 20) + 1);
    assert!(matches!(answer(&tell(&mut target_with(config.clone()), at(0), &large, None).0), Answer::Busy(_)));
    window(&tell(&mut target_with(config.clone()), at(0), &put(5, 1, id(5), 3 << 20), None).0);
    // Without reservations: whoever finds no room is refused at once.
    let mut target = target_with(config);
    for txn in 1..=3 {
        window(&tell(&mut target, at(0), &unreserved(put(txn, 1, id(txn), 1 << 20)), None).0);
    }
    assert!(matches!(answer(&tell(&mut target, at(0), &unreserved(put(4, 1, id(4), 1)), None).0), Answer::Busy(_)));
}

#[test]
fn copies_that_are_read_take_no_more_memory_than_the_receive_buffer() {
    let config = Config { receive_buffer: 3 << 20, scrub_interval: Span::ZERO, ..Config::default() };
    let mut target = target_with(config);
    let get =
        |txn| Message::GetRequest { txn: TxnId(txn), round: 1, id: id(txn), unreserved: true, earliest: Span::ZERO };
    for txn in 1..=3 {
        window(&tell(&mut target, at(0), &get(txn), Some(1 << 20)).0);
    }
    assert!(matches!(answer(&tell(&mut target, at(0), &get(4), Some(1)).0), Answer::Busy(_)));
    let mut target = common::target();
    for txn in 1..=limits::SERVINGS as u64 {
        window(&tell(&mut target, at(0), &get(txn), Some(1)).0);
    }
    let more = get(limits::SERVINGS as u64 + 1);
    assert!(matches!(answer(&tell(&mut target, at(0), &more, Some(1)).0), Answer::Busy(_)));
    // One that is larger than all of it has it to itself.
    let mut target = target_with(Config { receive_buffer: 1, scrub_interval: Span::ZERO, ..Config::default() });
    window(&tell(&mut target, at(0), &get(1), Some(1 << 20)).0);
    assert!(matches!(answer(&tell(&mut target, at(0), &get(2), Some(1)).0), Answer::Busy(_)));
}

#[test]
fn the_copy_that_was_sent_first_makes_room_for_the_next() {
    // As many as fit into the buffer, and as many as are served at once.
    for (size, most) in [(1 << 20, 3), (1, limits::SERVINGS as u64)] {
        let config = Config { receive_buffer: 3 << 20, scrub_interval: Span::ZERO, ..Config::default() };
        let mut target = target_with(config);
        let mut now = at(0);
        for txn in (1..=most).rev() {
            window(&tell(&mut target, now, &common::get(txn, 1, id(txn)), Some(size)).0);
            let (_, effects) = step(&mut target, now, common::get_accepted(txn, 1));
            let [(op, Effect::Read { .. })] = effects[..] else { panic!("{effects:?}") };
            let completion = Completion::Read(Ok(Bytes::from(vec![7; size as usize])));
            step(&mut target, now, Input::Done { op, completion });
            for _ in 0..20 {
                now += Span::from_nanos(100 * u64::from(size).max(10) / 1_000);
                step(&mut target, now, Input::Wake);
            }
        }
        window(&tell(&mut target, now, &common::get(most + 1, 1, id(most + 1)), Some(size)).0);
        // Of the others something can be sent again.
        let forgotten = (1..=most).filter(|txn| {
            let repair = Repair { txn: TxnId(*txn), rate: u64::MAX, ranges: vec![ByteRange { offset: 0, len: 1 }] };
            let unknown = Message::Ack { txn: TxnId(*txn), ack: Ack::Unknown };
            tell(&mut target, now, &Message::Repair(repair), None).0 == [unknown]
        });
        assert_eq!(forgotten.collect::<Vec<u64>>(), [most], "{size}");
    }
}

#[test]
fn a_window_that_is_too_far_away_is_not_offered() {
    let config = Config { link_rate: 1_000_000, scrub_interval: Span::ZERO, ..Config::default() };
    let most = config.max_wait;
    let mut target = target_with(config);
    let mut offered = 0;
    for txn in 1.. {
        match answer(&tell(&mut target, at(0), &put(txn, 1, id(txn), 500_000), None).0) {
            Answer::Window(slot) => {
                assert!(slot.start <= most, "{slot:?}");
                offered += 1;
            }
            Answer::Busy(wait) => {
                assert!(wait > Span::ZERO && wait <= most, "{wait:?}");
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!((2..=5).contains(&offered), "{offered} windows of half a second in two");
}

#[test]
fn a_newer_map_of_this_cluster_counts_from_when_it_comes() {
    let map = |cluster, epoch| {
        let targets = (1..=3).map(|n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 }).collect();
        Input::Request(Request::Map(ClusterMap::new(cluster, Epoch(epoch), 3, 1, targets).expect("a good map")))
    };
    let mut target = target();
    step(&mut target, at(0), map(ClusterId(CLUSTER.0 + 1), 2));
    window(&tell(&mut target, at(1), &put(1, 1, id(1), 6), None).0);
    step(&mut target, at(2), map(CLUSTER, 2));
    step(&mut target, at(3), map(CLUSTER, 1));
    assert_eq!(answer(&tell(&mut target, at(4), &put(2, 1, id(2), 6), None).0), Answer::Stale);
}

fn header() -> DataHeader {
    DataHeader { cluster: CLUSTER, from: NodeId(1), txn: TxnId(1), offset: 0, size: 4_000 }
}

#[test]
fn what_is_asked_for_again_is_sent_and_nothing_else() {
    let payload: Bytes = (0..4_000_u32).map(|n| (n % 251) as u8).collect();
    let range = |offset, len| ByteRange { offset, len };
    let asked =
        [range(0, 10), range(100, 0), range(3_990, 10), range(3_990, 11), range(u32::MAX, 1), range(1_000, 2_000)];
    let whole = Outgoing::whole(Destination::Node(NodeId(2)), header(), payload.clone(), Instant::ZERO, 1_000_000);
    let mut outgoing = whole.ranges(&asked);
    assert_eq!(outgoing.unsent(), 2_020);
    let (mut sent, mut port) = (Vec::new(), Port::new(1_000_000));
    while let Some(deadline) = outgoing.next_deadline() {
        while let Some(transmit) = outgoing.poll(deadline, 600, 600, &mut port) {
            let Body::Data(run) = transmit.body else { panic!("control") };
            let from = run.header.offset as usize;
            assert_eq!(run.payload, payload[from..from + run.payload.len()]);
            assert!(run.payload.len() <= 600);
            sent.push((run.header.offset, run.payload.len()));
        }
    }
    assert_eq!(sent, [(0, 10), (3_990, 10), (1_000, 600), (1_600, 600), (2_200, 600), (2_800, 200)]);
    assert_eq!(outgoing.unsent(), 0);
}

#[test]
fn what_is_missing_is_named_exactly() {
    let payload = Bytes::from(vec![7; 4_000]);
    let mut incoming = Incoming::new(4_000);
    let legs =
        |incoming: &Incoming| incoming.missing().iter().map(|range| (range.offset, range.len)).collect::<Vec<_>>();
    assert_eq!((legs(&incoming), incoming.outstanding()), (vec![(0, 4_000)], 4_000));
    incoming.insert(1_000, &payload.slice(..500));
    incoming.insert(3_000, &payload.slice(..500));
    assert_eq!((legs(&incoming), incoming.outstanding()), (vec![(0, 1_000), (1_500, 1_500), (3_500, 500)], 3_000));
    incoming.insert(3_500, &payload.slice(..500));
    incoming.insert(0, &payload.slice(..1_000));
    assert_eq!((legs(&incoming), incoming.is_complete()), (vec![(1_500, 1_500)], false));
    // What came twice counts once.
    assert_eq!(incoming.insert(1_400, &payload.slice(..1_700)), 1_500);
    assert!(incoming.is_complete() && incoming.missing().is_empty());
    let mut incoming = Incoming::new(4_000);
    for n in 0..100 {
        incoming.insert(n * 40, &payload.slice(..20));
    }
    assert_eq!(incoming.missing().len(), limits::RANGES, "a message names no more");
}

#[test]
fn payload_in_tiny_pieces_is_refused() {
    let (size, payload) = (1 << 20, Bytes::from(vec![7; 1 << 20]));
    let mut incoming = Incoming::new(size);
    let taken: u32 = (0..size / 2).map(|n| incoming.insert(2 * n, &payload.slice(..1))).sum();
    assert!(taken < size / 128, "{taken} pieces of a byte");
    // Datagrams of 576 bytes, the smallest that every path carries, are not tiny.
    let mut incoming = Incoming::new(size);
    let each = 576 - 28 - 32;
    for (nth, datagram) in payload.chunks(each).enumerate() {
        incoming.insert((nth * each) as u32, &Bytes::copy_from_slice(datagram));
    }
    assert!(incoming.is_complete());
}
