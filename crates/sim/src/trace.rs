//! What a replay says: a line for each thing that happens, in the words of the documentation.

pub(crate) mod objects;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bytes::Bytes;
use protocol::census::Holding;
use protocol::id::{ChunkId, NodeId, TxnId};
use protocol::initiator::{Busy, Fetched, Found, GetError, PutError, Stored, TargetState};
use protocol::machine::{IgnoredReason, NewerMap};
use protocol::target;
use protocol::wire::{Ack, Aggregating, Answer, DataHeader, Direction, Fill, Leading, Message, Usage, decode_message};

use store::backend::Spot;

use crate::disks::Spoil;
use crate::swarm::{Faults, Scenario, Trouble};
use crate::topology::{Blackout, Topology};

/// What happens to connections, if they carry everything.
fn over_connections(faults: &Faults) -> String {
    faults.connections.map_or(String::new(), |connections| {
        format!(
            "\nover connections: of 1,000 messages {} find them stalled, {} break them",
            connections.stalls, connections.breaks
        )
    })
}

/// What a run depends on, a line each.
pub(crate) fn scenario(scenario: &Scenario) -> String {
    let s = scenario;
    let config = &s.config;
    let multicast = if config.multicast { "with multicast" } else { "without multicast" };
    let transport = config.transport;
    let (faults, disks) = (&s.faults, &s.disks);
    let mut text = format!(
        "seed {}: {} targets, {} initiators, {transport} {multicast}\n\
         work: {} puts and as many gets, chunks of up to {} bytes, {} at once for each initiator\n\
         links: {} MB/s; disks: {} MB/s, a sync takes {}, {} bytes each\n\
         of 1,000 datagrams: {} lost, {} doubled, {} delayed, {} damaged, {} played back\n\
         faults: {} crashes of targets and {} of initiators, {} partitions, {} spoiled bytes, clocks off by up to {} ppm",
        s.seed,
        s.targets,
        s.initiators,
        s.operations,
        s.largest,
        config.depth,
        s.link / 1_000_000,
        s.disk.0 / 1_000_000,
        s.disk.1,
        s.capacity,
        faults.loss,
        faults.duplicate,
        faults.reorder,
        faults.corrupt,
        s.replays,
        s.crashes,
        s.initiator_crashes,
        s.partitions,
        disks.spoils.len(),
        s.drift,
    );
    text += &over_connections(faults);
    if let Some((target, times)) = s.slow {
        let _ = write!(text, "\nthe disk of target-{target} is {times} times slower");
    }
    if let Some((begins, ends)) = s.mute {
        let _ = write!(text, "\nthe switch drops multicast from {begins} to {ends}");
    }
    let _ = write!(text, "\nsegments of {} bytes, checks for room every {}", disks.segment, disks.check_interval);
    if disks.stops + disks.restless > 0 {
        let _ = write!(text, "; machines stop {} times in the midst of a change", disks.stops + disks.restless);
    }
    if !s.troubles.is_empty() {
        let troubles: Vec<&str> = s.troubles.iter().map(|t| trouble(*t)).collect();
        let _ = write!(text, "\ndisks in trouble for a while: {}", troubles.join(", "));
    }
    text += &topology(&s.topology);
    text.push_str(&s.aggregators.describe());
    if let Some(governing) = &s.governing {
        let _ = write!(text, "\n{}", governing.describe());
    }
    if let Some(cleaning) = &s.cleaning {
        let calm = if cleaning.calm { ", and little else happens" } else { "" };
        let _ = write!(
            text,
            "\n{} cleaners, a grace time of {}; of 1,000 operations {} forget a chunk{calm}",
            cleaning.cleaners, cleaning.grace, cleaning.forgets
        );
        if let Some((at, left)) = cleaning.outage {
            let _ = write!(text, "; after {at} all targets but {left} are cut off until the heal");
        }
    }
    if let Some(settings) = &s.objects {
        let _ = write!(text, "\n{}", objects::gateways(settings));
    }
    if let Some(planted) = s.planted {
        let _ = write!(text, "\nplanted defect: {}", planted.name());
    }
    text + "\n\nseconds       node          what"
}

/// The domains, the maps, and what happens to whole domains.
fn topology(topology: &Topology) -> String {
    let mut text = String::new();
    for (map, nth) in topology.maps.iter().zip(1..) {
        let mut domains: BTreeMap<u16, Vec<NodeId>> = BTreeMap::new();
        map.targets.iter().for_each(|t| domains.entry(t.domain).or_default().push(t.id));
        let domains: Vec<String> = domains.values().map(|ids| nodes(ids)).collect();
        let _ = write!(text, "\nmap {nth}: {} copies, by failure domain: {}", map.copies, domains.join("; "));
        if nth > 1 {
            let changes = if map.changes.is_empty() { "changes nothing".to_owned() } else { map.changes.join(", ") };
            let _ =
                write!(text, "\n  it {changes}, after {}, and can be used by all after {}", map.notified, map.found);
        }
    }
    if topology.taken_over {
        text += "\nthe first map is one from before there were cells in maps";
    }
    if topology.disjoint_groups {
        text += "\ngroups share no cells";
    }
    for lost in &topology.lost {
        let _ = write!(text, "\nthe disk of {} is lost after {}", lost.target, lost.at);
    }
    let _ = write!(
        text,
        "\nwhole domains: {} crashes, {} partitions{}; nodes sleep {} times",
        topology.domain_crashes,
        topology.domain_cuts,
        match topology.blackout {
            Some(Blackout::Most) => ", and a blackout of most",
            Some(Blackout::All) => ", and the power fails everywhere",
            None => "",
        },
        topology.sleeps
    );
    text
}

/// One line of what happens at a node.
pub(crate) fn line(now: impl std::fmt::Display, node: NodeId, what: &str) -> String {
    format!("{now:<13} {node:<13} {what}", now = now.to_string(), node = node.to_string())
}

/// A datagram as its receiver hears it.
pub(crate) fn datagram(datagram: &Bytes) -> String {
    if let Some((head, message)) = decode_message(datagram) {
        return format!("hears from {}: {}", head.from, self::message(&message));
    }
    match DataHeader::decode(datagram) {
        Some((header, payload)) => format!(
            "hears from {}: payload of {}, {} bytes from {} on of {}",
            header.from,
            number(header.txn),
            payload.len(),
            header.offset,
            header.size
        ),
        None => "hears something malformed".to_owned(),
    }
}

/// One that moves a copy, or has one go.
fn levelling(message: &Message) -> String {
    match message {
        Message::Move { txn, id, to, .. } => format!("move {}: put {id:?} on {to}", number(*txn)),
        Message::Fill { txn } => format!("fill {}", number(*txn)),
        Message::Filled { txn, fill } => {
            let (txn, Fill { live, room, chunks }) = (number(*txn), fill);
            format!("filled for {txn}: {chunks} chunks, {live} bytes of {room}")
        }
        Message::Surplus { txn, id, note: None, .. } => format!("surplus {}: {id:?}", number(*txn)),
        Message::Surplus { txn, id, note: Some(_), .. } => format!("surplus {}: let {id:?} go", number(*txn)),
        Message::Noted { txn, .. } => format!("noted {}", number(*txn)),
        other => other.name().to_owned(),
    }
}

/// A transaction's number, short.
fn number(txn: TxnId) -> String {
    format!("#{:08x}", txn.0 >> 32)
}

fn message(message: &Message) -> String {
    match message {
        Message::PutRequest(r) => {
            let how = if r.unreserved { ", unreserved" } else { "" };
            let (txn, round, id, size) = (number(r.txn), r.round, r.id, r.size);
            let part = r.purpose.sent().map_or_else(String::new, |sent| format!(", in parts after {sent}"));
            format!("put request {txn} round {round}: {id:?} of {size} bytes{part}, not before {}{how}", r.earliest)
        }
        Message::GetRequest { txn, round, id, unreserved, earliest } => {
            let how = if *unreserved { ", unreserved" } else { "" };
            format!("get request {} round {round}: {id:?}, not before {earliest}{how}", number(*txn))
        }
        Message::Bid(bid) => format!("bid for {} round {}: {}", number(bid.txn), bid.round, answer(&bid.answer)),
        Message::Accept { txn, round, granted } => {
            let chosen = granted.iter().map(|g| format!("{} after {}", g.target, g.offset)).collect::<Vec<_>>();
            let chosen = if chosen.is_empty() { "nobody".to_owned() } else { chosen.join(", ") };
            format!("accept of {} round {round}: {chosen}", number(*txn))
        }
        Message::Ack { txn, ack } => format!("ack of {}: {}", number(*txn), fate(*ack)),
        Message::Repair(repair) => {
            let ranges = repair.ranges.iter().map(|r| format!("{} bytes from {} on", r.len, r.offset));
            format!("repair of {}: {}", number(repair.txn), ranges.collect::<Vec<_>>().join(", "))
        }
        Message::Probe { txn, id, .. } => format!("probe of {}: what became of {id:?}?", number(*txn)),
        Message::Census(request) => {
            let (depth, bits) = (request.range.depth(), request.range.bits());
            format!("census {}: what of group {} in range {depth}/{bits:x}?", number(request.txn), request.group.0)
        }
        Message::Counted { txn, holding: Holding::Sums(_) } => format!("census {}: these sums", number(*txn)),
        Message::Counted { txn, holding: Holding::Copies { copies, more } } => {
            let ids: Vec<ChunkId> = copies.iter().map(|copy| copy.id).collect();
            format!("census {}: {ids:?}{}", number(*txn), if *more { " and more" } else { "" })
        }
        Message::Restore { txn, id, .. } => format!("restore {}: put {id:?}", number(*txn)),
        Message::Move { .. } | Message::Fill { .. } | Message::Filled { .. } => levelling(message),
        Message::Surplus { .. } | Message::Noted { .. } => levelling(message),
        Message::Suspect { id } => format!("suspect: the copy of {id:?} arrived damaged"),
        Message::List { txn, prefix, after } => {
            let after = after.map_or_else(String::new, |id| format!(" after {id:?}"));
            format!("list {}: a prefix of {} bytes{after}", number(*txn), prefix.len())
        }
        Message::Listed { txn, ids, more } => {
            format!("listed for {}: {}{}", number(*txn), chunks(ids), if *more { ", and more" } else { "" })
        }
        Message::Ping { txn } => format!("ping {}", number(*txn)),
        Message::Mark { txn } => format!("mark {}", number(*txn)),
        Message::Marked { txn } => format!("marked {}", number(*txn)),
        Message::Discard(d) => {
            let (txn, mark, since) = (number(d.txn), number(d.mark), number(d.since));
            format!("discard {txn} page {}, mark {mark} since {since}: {}", d.page, chunks(&d.ids))
        }
        Message::Discarded { txn, page, dropped: Some(dropped), bytes } => {
            format!("discarded for {} page {page}: {} copies of {bytes} bytes", number(*txn), dropped.count_ones())
        }
        Message::Discarded { txn, dropped: None, .. } => format!("discarded for {}: no such mark", number(*txn)),
        Message::Usage { txn } => format!("usage {}", number(*txn)),
        Message::Health { txn } => format!("health {}", number(*txn)),
        Message::Presence { here } => format!("presence: {here}"),
        Message::Gone { id } => format!("gone: the copy of {id:?} was damaged"),
        Message::HealthReport { txn, .. } => format!("health of {}", number(*txn)),
        Message::Used { txn, usage: Usage { live, dead, reclaimed, .. } } => {
            format!("used for {}: {live} bytes live, {dead} dead, {reclaimed} reclaimed", number(*txn))
        }
        Message::Pong { txn, free, chunks } => format!("pong to {}: {free} bytes free, {chunks} chunks", number(*txn)),
        Message::Leading(message) => leading(message),
        Message::Aggregating(message) => aggregating(message),
        Message::MapRequest(r) => format!("asks for {} parts of a newer map from byte {} on", r.parts, r.offset),
        Message::MapPart(p) => format!("{} of {} bytes of its map from byte {} on", p.bytes.len(), p.size, p.offset),
    }
}

fn aggregating(message: &Aggregating) -> String {
    match message {
        Aggregating::Request(r) => {
            format!("aggregate request {} round {}: {} bytes each", number(r.txn), r.round, r.size)
        }
        Aggregating::Order(o) => {
            let receivers = o.receivers.iter().map(|r| format!("{} to {} in {}", r.piece.0, r.target, r.start));
            let receivers = receivers.collect::<Vec<_>>().join(", ");
            format!("aggregate order {} round {}: pieces {receivers}", number(o.txn), o.round)
        }
    }
}

fn leading(message: &Leading) -> String {
    match message {
        Leading::Request(r) => {
            let (txn, round, id, size) = (number(r.txn), r.round, r.id, r.size);
            format!("put request {txn} round {round} to the leader: {id:?} of {size} bytes, not before {}", r.earliest)
        }
        Leading::Seek(s) => format!("seek {} round {}: {:?}, {} is to choose", number(s.txn), s.round, s.id, s.leader),
        Leading::Holds(h) => {
            let (txn, from) = (number(h.txn), h.initiator);
            format!("holds what {from} seeks in {txn}: port free in {}, read in {}", h.port, h.read)
        }
        Leading::Grant(g) => {
            let windows = g.windows.iter().map(|turn| format!("{} in {}", turn.target, turn.start));
            let (txn, way) = (number(g.txn), if g.direction == Direction::Get { "out of" } else { "into" });
            format!(
                "grant of {txn} round {} in term {}: {way} {}",
                g.round,
                g.term,
                windows.collect::<Vec<_>>().join(", ")
            )
        }
        Leading::Claim { group, term } => format!("claims group {} in term {term}", group.0),
        Leading::Report(r) => {
            format!("reports to group {} in term {}: port busy for {}, disk for {}", r.group.0, r.term, r.port, r.disk)
        }
    }
}

fn answer(answer: &Answer) -> String {
    match answer {
        Answer::Window(slot) => format!(
            "window in {} for {}, the transfer takes {}, done in {}",
            slot.start, slot.length, slot.transfer, slot.done
        ),
        Answer::Part(slot) => {
            format!("window in {} for {}, for a part of {} bytes", slot.start, slot.length, slot.size)
        }
        Answer::HaveIt => "have it".to_owned(),
        Answer::HavePiece(piece) => format!("have piece {}", piece.0),
        Answer::NotHere => "not here".to_owned(),
        Answer::Busy(wait) => format!("busy, ask again in {wait}"),
        Answer::NoSpace => "no space".to_owned(),
        Answer::Stale => "stale map".to_owned(),
    }
}

const fn fate(ack: Ack) -> &'static str {
    match ack {
        Ack::Durable | Ack::Piece(_) => "durable",
        Ack::BadHash => "the bytes do not match the id",
        Ack::NoSpace => "no space",
        Ack::DiskFailed => "the disk failed",
        Ack::Pending => "pending",
        Ack::Unknown => "unknown",
    }
}

/// Chunks by the first digits of their ids.
pub(crate) fn chunks<'a>(ids: impl IntoIterator<Item = &'a ChunkId>) -> String {
    let ids: Vec<String> = ids.into_iter().map(|id| format!("{id:?}")).collect();
    if ids.is_empty() { "nothing".to_owned() } else { ids.join(", ") }
}

/// What is wrong with a disk.
pub(crate) const fn trouble(trouble: Trouble) -> &'static str {
    match trouble {
        Trouble::FailSync => "syncs fail",
        Trouble::FailOneSync => "the next sync fails",
        Trouble::FailRead => "reads fail",
        Trouble::FailWrite => "writes fail half-way",
        Trouble::Full => "no room for new segments",
    }
}

/// How bytes were spoiled.
pub(crate) const fn spoil(spoil: Spoil) -> &'static str {
    match spoil {
        Spoil::Rot(Spot::Anywhere) => "a byte flips on disk",
        Spoil::Rot(Spot::Header) => "a byte of a record's header flips on disk",
        Spoil::Rot(Spot::Tombstone) => "a byte of a tombstone flips on disk",
        Spoil::Rot(Spot::Tail) => "a byte of the last record flips on disk",
        Spoil::Sector => "a sector of the disk cannot be read any more",
    }
}

fn nodes(nodes: &[NodeId]) -> String {
    if nodes.is_empty() {
        return "nobody".to_owned();
    }
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
}

/// What a target reports besides its windows and copies.
pub(crate) fn target_event(event: &target::Event) -> String {
    use target::Event;
    match event {
        Event::Bid { answer: bid } => format!("bids: {}", answer(bid)),
        Event::Accepted { id, start, length } => format!("accepts {id:?} from {start} for {length}"),
        Event::Started { late_nanos } => format!("the payload begins {late_nanos} ns after its promised moment"),
        Event::Overrun { by } => format!("a transfer ended {by} after its window"),
        Event::Expired => "a tentative window expires".to_owned(),
        Event::Waiting { id } => format!("keeps {id:?} until its disk is idle"),
        Event::Released { id } => format!("releases the window of {id:?}"),
        Event::Stored { id, .. } => format!("has {id:?} durable"),
        Event::RepairAsked => "asks for missing ranges".to_owned(),
        Event::RepairSent => "sends missing ranges again".to_owned(),
        Event::Corrupt { id } => format!("drops its copy of {id:?}, which was damaged"),
        Event::Discarded { chunks, bytes } => format!("drops {chunks} copies of {bytes} bytes"),
        Event::Restored { id, .. } => format!("has put {id:?}, which had too few copies"),
        Event::Moved { id, .. } => format!("has put {id:?} on an emptier target"),
        Event::LetGo { id, .. } => format!("lets {id:?} go, of which there are enough copies"),
        Event::DiskFailed => "its disk failed a write".to_owned(),
        Event::Ignored(IgnoredReason::Unsolicited) => "gets payload that it does not wait for".to_owned(),
        Event::Ignored(why) => format!("drops a datagram: {}", why.name()),
        Event::NewerMap(NewerMap::Here { epoch, document }) => {
            format!("has the map of epoch {}, {} bytes", epoch.0, document.bytes().len())
        }
        Event::NewerMap(NewerMap::Needed { epoch }) => format!("is not given the map of epoch {}", epoch.0),
    }
}

/// How a put ended.
pub(crate) fn put(id: ChunkId, result: &Result<Stored, PutError>) -> String {
    match result {
        Ok(stored) => {
            format!("put {id:?}: durable on {}, {} rounds, {}", nodes(&stored.holders), stored.rounds, stored.took)
        }
        Err(error) => format!("put {id:?} failed: {error}"),
    }
}

/// How a get ended.
pub(crate) fn get(id: ChunkId, result: &Result<Fetched, GetError>) -> String {
    match result {
        Ok(fetched) => format!("get {id:?}: from {}, {} rounds, {}", fetched.from, fetched.rounds, fetched.took),
        Err(error) => format!("get {id:?} failed: {error}"),
    }
}

/// How a list ended.
pub(crate) fn list(result: &Result<Found, Busy>) -> String {
    match result {
        Ok(found) => {
            let ids: Vec<ChunkId> = found.chunks.iter().map(|(id, _)| *id).collect();
            format!("list: {}; silent: {}", chunks(&ids), nodes(&found.silent))
        }
        Err(error) => format!("list failed: {error}"),
    }
}

/// How a ping ended.
pub(crate) fn ping(result: &Result<Vec<TargetState>, Busy>) -> String {
    match result {
        Ok(states) => {
            let (up, silent): (Vec<_>, Vec<_>) = states.iter().partition(|state| state.answer.is_some());
            let ids = |states: Vec<&TargetState>| nodes(&states.iter().map(|s| s.target).collect::<Vec<_>>());
            format!("ping: up: {}; silent: {}", ids(up), ids(silent))
        }
        Err(error) => format!("ping failed: {error}"),
    }
}
