//! The wire format is frozen here: a changed byte is a new version.

use bytes::Bytes;
use proptest::prelude::*;
use protocol::census::{Counted, Holding, IdRange, PARTS};
use protocol::health::{Health, Lacks};
use protocol::id::{ChunkId, ClusterId, Epoch, GroupId, NodeId, TxnId};
use protocol::machine::DataRun;
use protocol::map::{ClusterMap, TargetEntry};
use protocol::redundancy::{Piece, Redundancy, Wanted};
use protocol::time::{Instant, Span};
use protocol::wire::{
    Ack, AggregateOrder, AggregateRequest, Aggregating, Answer, Bid, BusyWindows, ByteRange, CensusRequest, DataHeader,
    Direction, Discard, Fill, Grant, Granted, GrantedWindow, Head, HealthReport, Holds, LeadRequest, Leading, MapPart,
    MapRequest, Message, Nowhere, OfferedWindow, Opened, Purpose, PutRequest, Receiver, Repair, Report, Seek, Session,
    TAG, Usage, datagrams, decode_message, encode_message,
};

const KEY: [u8; 32] = [9; 32];

fn head() -> Head {
    Head { cluster: ClusterId(0x0403_0201), epoch: Epoch(5), from: NodeId(6) }
}

fn span(n: u64) -> Span {
    Span::from_nanos(n)
}

fn census_messages() -> Vec<(Message, &'static str, usize)> {
    let (txn, id) = (TxnId(9), ChunkId::of_payload(b"reservoir"));
    let wanted = Wanted::of(Some(Redundancy::Copies(2)));
    let range = IdRange::new(2, 0x123).expect("there is such a range");
    let mut sums = Box::new([0; PARTS]);
    (sums[0], sums[63]) = (1, 0x0807_0605_0403_0201);
    let lacks = Lacks { at_risk: [1, 2, 3, 4, 5, 6, 7], strayed: 8 };
    let groups = vec![(GroupId(2), Health { lacks, whole: true })];
    let report = HealthReport { groups, restoring: 1, restored: 2, restored_bytes: 3, ..HealthReport::of(Epoch(5)) };
    let watched = vec![(NodeId(4), None), (NodeId(5), Some(Span::from_millis(9)))];
    let witness = HealthReport { watched, ..report.clone() };
    let mover = HealthReport { moving: 4, moved: 5, moved_bytes: 6, ..report.clone() };
    let nowhere = Nowhere { lost: 7, sought: 8, silent: vec![NodeId(4), NodeId(5)] };
    let seeker = HealthReport { nowhere: Some(nowhere), ..report.clone() };
    let starter = HealthReport { nowhere: None, ..report.clone() };
    let fill = Fill { live: 1, room: 2, chunks: 3 };
    let copies = vec![Counted { id, wanted }, Counted { id, wanted: Wanted::BY_MAP }];
    let census = |after| Message::Census(CensusRequest { txn, group: GroupId(2), range, salt: 7, after });
    vec![
        (census(None), "census", 74),
        (census(Some(id)), "census-after", 107),
        (Message::Counted { txn, holding: Holding::Sums(sums) }, "counted-sums", 569),
        (Message::Counted { txn, holding: Holding::Copies { copies, more: true } }, "counted-copies", 126),
        (Message::Restore { txn, id, wanted, holders: vec![] }, "restore", 90),
        (Message::Restore { txn, id, wanted, holders: vec![NodeId(4), NodeId(5)] }, "restore-pieces", 99),
        (Message::Surplus { txn, id, wanted, note: None }, "surplus", 98),
        (Message::Surplus { txn, id, wanted, note: Some(0x0102) }, "surplus-noted", 98),
        (Message::Noted { txn, note: 0x0102 }, "noted", 64),
        (Message::Health { txn }, "health", 56),
        (Message::HealthReport { txn, report }, "health-report", 116),
        (Message::HealthReport { txn, report: witness }, "health-report-watching", 133),
        (Message::Presence { here: false }, "presence", 49),
        (Message::Gone { id }, "gone", 81),
        (Message::HealthReport { txn, report: mover }, "health-report-moving", 135),
        (Message::HealthReport { txn, report: seeker }, "health-report-seeking", 153),
        (Message::HealthReport { txn, report: starter }, "health-report-starting", 145),
        (Message::Fill { txn }, "fill", 56),
        (Message::Filled { txn, fill }, "filled", 80),
        (Message::Move { txn, id, wanted, to: NodeId(4) }, "move", 94),
    ]
}

#[expect(clippy::too_many_lines, reason = "one of each message")]
fn messages() -> Vec<(Message, &'static str, usize)> {
    let txn = TxnId(0x1122_3344_5566_7788);
    let id = ChunkId::of_payload(b"reservoir");
    let slot = OfferedWindow { start: span(1), length: span(2), transfer: span(3), done: span(4), rate: 5, size: 6 };
    let request = PutRequest {
        txn,
        round: 1,
        id,
        size: 1 << 20,
        group: GroupId(2),
        earliest: span(3),
        stretch: 140,
        unreserved: false,
        wanted: Wanted::of(Some(Redundancy::Copies(2))),
        purpose: Purpose::Restore { urgent: true, sent: None },
        busy: BusyWindows::from_elem((span(1), span(2)), 1),
    };
    let removal = PutRequest { purpose: Purpose::Remove, ..request.clone() };
    let next_part = PutRequest { purpose: Purpose::Restore { urgent: false, sent: Some(4_096) }, ..request.clone() };
    let granted = (1..=3).map(|n| Granted { target: NodeId(n), offset: span(u64::from(n)) }).collect();
    let get = Message::GetRequest { txn, round: 1, id, unreserved: true, earliest: span(9) };
    let discard = Discard { txn, page: 3, mark: TxnId(4), since: TxnId(5), ids: vec![id, id] };
    let ranges = vec![ByteRange { offset: 1, len: 2 }, ByteRange { offset: 5, len: 6 }];
    let entrusted = LeadRequest {
        txn,
        round: 1,
        wanted: Wanted::of(Some(Redundancy::Copies(3))).and(Wanted::BY_MAP),
        id,
        size: 1 << 20,
        group: GroupId(2),
        earliest: span(3),
        busy: BusyWindows::from_elem((span(1), span(2)), 1),
        have: vec![NodeId(1)],
        avoid: vec![NodeId(2)],
    };
    let (group, round, initiator) = (GroupId(2), 1, NodeId(1 << 24));
    let seek = Seek { txn, round, id, group, leader: NodeId(1), earliest: span(9) };
    let (port, read, alone) = (span(1), span(2), span(3));
    let holds = Holds { initiator, txn, round, id, group, size: 6, port, read, alone, rate: 5, wanted: Wanted::BY_MAP };
    let holds_two = Holds { wanted: Wanted::of(Some(Redundancy::Copies(2))), ..holds.clone() };
    let windows = (1..=3).map(|n| GrantedWindow { target: NodeId(n), start: span(4), done: span(5) }).collect();
    let (transfer, term) = (span(3), 7);
    let grant = Grant {
        initiator,
        txn,
        round,
        id,
        size: 6,
        group,
        term,
        direction: Direction::Put(Wanted::BY_MAP),
        transfer,
        rate: 5,
        windows,
    };
    let (disk, each, whole) = (span(2), span(3), span(4));
    let report = Report { group, term, port, disk, size: 6, each, whole, rate: 5, free: 8 };
    vec![
        (Message::PutRequest(request.clone()), "put-request", 114),
        (Message::PutRequest(removal), "put-request-removal", 114),
        (Message::PutRequest(next_part), "put-request-part", 118),
        (Message::Bid(Bid { txn, round: 1, answer: Answer::Window(slot) }), "bid", 82),
        (Message::Bid(Bid { txn, round: 1, answer: Answer::Part(slot) }), "bid-part", 82),
        (Message::Bid(Bid { txn, round: 1, answer: Answer::Busy(span(7)) }), "busy", 62),
        (Message::Accept { txn, round: 1, granted }, "accept", 82),
        (get, "get-request", 95),
        (Message::Ack { txn, ack: Ack::Durable }, "ack", 57),
        (Message::Repair(Repair { txn, rate: 9, ranges }), "repair", 77),
        (Message::Probe { txn, id, wanted: Wanted::BY_MAP }, "probe", 89),
        (Message::Probe { txn, id, wanted: Wanted::of(Some(Redundancy::Copies(2))) }, "probe-for-two", 90),
        (Message::Suspect { id }, "suspect", 81),
        (Message::List { txn, prefix: vec![1, 2], after: Some(id) }, "list", 93),
        (Message::Listed { txn, ids: vec![id, id], more: true }, "listed", 124),
        (Message::Ping { txn }, "ping", 56),
        (Message::Pong { txn, free: 1, chunks: 2 }, "pong", 72),
        (Message::Mark { txn }, "mark", 56),
        (Message::Marked { txn }, "marked", 56),
        (Message::Discard(discard), "discard", 141),
        (Message::Discarded { txn, page: 1, dropped: Some(5), bytes: 6 }, "discarded", 71),
        (Message::Usage { txn }, "usage", 56),
        (
            Message::Used { txn, usage: Usage { live: 1, dead: 2, reclaimed: 3, damaged: 4, damaged_more: true } },
            "used",
            89,
        ),
        (Message::Leading(Leading::Request(entrusted)), "lead-request", 122),
        (Message::Leading(Leading::Seek(seek)), "seek", 102),
        (Message::Leading(Leading::Holds(holds)), "holds", 118),
        (Message::Leading(Leading::Holds(holds_two)), "holds", 119),
        (Message::Leading(Leading::Grant(grant)), "grant", 152),
        (Message::Leading(Leading::Claim { group: GroupId(1), term: 2 }), "claim", 56),
        (Message::Leading(Leading::Report(report)), "report", 88),
        (Message::MapRequest(MapRequest { offset: 1024, parts: 16 }), "map-request", 53),
        (
            Message::MapPart(MapPart {
                digest: [7; 16],
                size: 1030,
                offset: 1024,
                bytes: id.bytes()[..6].to_vec().into(),
            }),
            "map-part",
            80,
        ),
    ]
    .into_iter()
    .chain(census_messages())
    .chain(aggregating_messages())
    .collect()
}

fn aggregating_messages() -> Vec<(Message, &'static str, usize)> {
    let code = erasure::Code::new(4, 2);
    let request = |code| {
        let (txn, size, rate) = (TxnId(7), 0x1000, 0x0506_0708);
        Message::Aggregating(Aggregating::Request(AggregateRequest {
            txn,
            round: 2,
            code,
            size,
            rate,
            earliest: span(9),
        }))
    };
    let receiver = |piece| Receiver { piece: Piece(piece), target: NodeId(3), start: span(4) };
    let (txn, receivers) = (TxnId(7), [0, 5].map(receiver).to_vec());
    let order = AggregateOrder { txn, round: 2, code, size: 0x1000, rate: 5, receivers };
    vec![
        (request(code), "aggregate-request", 70),
        (request(None), "aggregate-request-for-copies", 70),
        (Message::Aggregating(Aggregating::Order(order)), "aggregate-order", 85),
    ]
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the fixture is a file, and this is no machine")]
fn every_message_has_its_frozen_bytes() {
    let mut lines = String::new();
    for (message, name, length) in messages() {
        let encoded = encode_message(head(), &message);
        assert_eq!(encoded.len() + TAG, length, "{name}");
        assert_eq!(decode_message(&encoded), Some((head(), message)), "{name}");
        let hex: String = encoded.iter().map(|b| format!("{b:02x}")).collect();
        lines.push_str(&format!("{name} {hex}\n"));
    }
    for (name, datagram) in between_sessions() {
        let hex: String = datagram.iter().map(|b| format!("{b:02x}")).collect();
        lines.push_str(&format!("{name} {hex}\n"));
    }
    let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire-v5.txt");
    if std::env::var_os("RESERVOIR_FREEZE").is_some() {
        std::fs::write(&fixture, &lines).expect("the fixture can be written");
    }
    let frozen = std::fs::read_to_string(&fixture).expect("the fixture is there");
    assert_eq!(lines, frozen, "the wire format changed: that needs a new version");
}

/// A first word between two nodes, what it takes to be believed, and a refusal.
fn between_sessions() -> Vec<(&'static str, Bytes)> {
    let at = |ms| Instant::ZERO + Span::from_millis(ms);
    let session = |node, seed| Session::new(KEY, head().cluster, NodeId(node), seed);
    let (mut speaker, mut listener) = (session(6, 40), session(7, 41));
    let ping = speaker.seal(&encode_message(head(), &Message::Ping { txn: TxnId(1) }));
    let reply = |opened| match opened {
        Ok(Opened::Between(replies) | Opened::Unproven(replies)) => replies,
        other => panic!("{other:?}"),
    };
    let challenge = reply(listener.open(at(3), ping.clone())).remove(0);
    let replies = reply(speaker.open(at(4), challenge.clone()));
    let [back, proof, again] = &replies[..] else { panic!("a challenge in return, the proof, the ping: {replies:?}") };
    assert_eq!(reply(listener.open(at(5), proof.clone())), [] as [Bytes; 0]);
    let ping_alone = ping.slice(..ping.len() - TAG);
    assert_eq!(listener.open(at(5), again.clone()), Ok(Opened::Good(ping_alone)));
    let (back, proof, again, refusal) = (back.clone(), proof.clone(), again.clone(), speaker.refusal());
    for (datagram, length) in [(&challenge, 77), (&back, 69), (&proof, 60), (&again, 100), (&refusal, 48)] {
        assert_eq!(datagram.len(), length);
    }
    let names = ["sealed-ping", "challenge", "challenge-in-return", "proof", "again", "refusal"];
    names.into_iter().zip([ping, challenge, back, proof, again, refusal]).collect()
}

#[test]
fn a_run_is_cut_into_datagrams_that_decode() {
    let payload: Bytes = (0..10_000_u32).map(|n| n as u8).collect();
    let header = DataHeader { cluster: ClusterId(1), from: NodeId(2), txn: TxnId(3), offset: 0, size: 10_000 };
    let run = DataRun { header, payload: payload.clone(), per_datagram: 1_400 };
    let mut seen = Vec::new();
    for (head, part) in datagrams(&run) {
        let datagram = Bytes::from([&head[..], &part[..]].concat());
        let (header, body) = DataHeader::decode(&datagram).expect("decodes");
        assert_eq!(header.offset as usize, seen.len());
        seen.extend_from_slice(&body);
    }
    assert_eq!(seen, payload);
}

/// Noise of another version would be dropped unseen.
fn version() -> u8 {
    encode_message(head(), &Message::Ping { txn: TxnId(1) })[1]
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200), code in 0_u8..28) {
        let mut bytes = bytes;
        if bytes.len() > 3 {
            bytes[..3].copy_from_slice(&[0x52, version(), code]);
        }
        if let Some((head, message)) = decode_message(&bytes) {
            let again = encode_message(head, &message);
            prop_assert_eq!(decode_message(&again), Some((head, message)));
        }
        let bytes = Bytes::from(bytes);
        let _ = DataHeader::decode(&bytes);
        let _ = Session::new(KEY, ClusterId(1), NodeId(1), 2).open(Instant::ZERO, bytes);
    }

    #[test]
    fn machines_survive_any_message(noise in prop::collection::vec((any::<[u8; 8]>(), 1_u8..28, prop::collection::vec(any::<u8>(), 0..90)), 1..40)) {
        use protocol::config::Config;
        use protocol::machine::{Input, Machine, Output};
        use protocol::target::{Setup, Target};
        let member = |n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 30 };
        let map = ClusterMap::new(ClusterId(1), Epoch(1), 3, 1, (1..=3).map(member).collect()).expect("a good map");
        let setup = Setup { id: NodeId(1), map, free: 1 << 30, chunks: 0, seed: 0, bug: None };
        let mut target = Target::new(setup, Config::default());
        for (n, (head, code, body)) in noise.into_iter().enumerate() {
            let mut datagram = vec![0x52, version(), code, 0, 1, 0, 0, 0, 1, 0, 0, 0];
            datagram.extend_from_slice(&head);
            datagram.extend_from_slice(&[0; 12]);
            datagram.extend_from_slice(&body);
            target.handle_input(Instant::from_nanos(n as u64), Input::Datagram { bytes: datagram.into(), arrived: Instant::FAR });
            while !matches!(target.poll_output(), Output::Idle(_)) {}
        }
    }
}
