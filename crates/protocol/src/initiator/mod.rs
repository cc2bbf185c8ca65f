//! The initiator: negotiates, sends in the reserved windows, counts durable copies; fetches and verifies.
//!
//! One file a transaction kind ([`put`], [`get`], [`query`] for what carries no payload). The
//! parent holds all control flow: it routes inputs, and starts what waits when something ends.

mod aggregators;
mod api;
mod context;
mod gather;
mod get;
mod memory;
mod newer;
mod part;
mod put;
mod query;
mod round;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use aggregators::Aggregators;
pub use api::*;
use context::{Context, Multicast, Pings};
use gather::Gather;
use get::Get;
use memory::Memory;
use put::Put;
use query::OpenQuery;

use crate::calendar::Calendar;
use crate::config::Config;
use crate::estimate::{LatencyEstimate, PromiseError};
use crate::flat_map::FlatMap;
use crate::id::{ChunkId, GroupId, NodeId, TxnId};
use crate::limits;
use crate::machine::{Completion, Deadline, Decoded, Destination, Effect, IgnoredReason, Input, Machine, Output};
use crate::map::ClusterMap;
use crate::map_fetch::MapFetch;
use crate::redundancy::{Piece, Pieces, Wanted};
use crate::rng::{Rng, Unguessable};
use crate::time::{Instant, Span};
use crate::transfer::Port;
use crate::wire::{Ack, Answer, Bid, DataHeader, Leading, Message, decode_message, is_data};

/// One transaction under way.
#[derive(Debug)]
enum Txn {
    Put(Box<Put>),
    Get(Box<Get>),
    Query(Box<OpenQuery>),
}

/// A transaction with its next deadline, so that those of all are found without a look at each.
#[derive(Debug)]
struct Active {
    next: Deadline,
    txn: Txn,
}

impl Active {
    fn new(txn: Txn) -> Self {
        Self { next: txn.next_deadline(), txn }
    }
}

/// Whether a transaction goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Continue,
    Over,
}

/// The initiator machine.
#[derive(Debug)]
pub struct Initiator {
    context: Context,
    active: FlatMap<TxnId, Active, 4>,
    /// Gets of coded chunks; those of their pieces are active.
    gathers: BTreeMap<TxnId, Gather>,
    /// Transactions of `active` that count against the depth, and those that open questions for any pieces will come to.
    transfers: usize,
    waiting: VecDeque<(Instant, Request)>,
    map_fetch: MapFetch,
}

impl Initiator {
    /// An initiator called `id`; `seed` decides its transaction numbers and must differ from run to run. With the id of a target it
    /// is that target's, which tells it of newer maps.
    #[must_use]
    pub fn new(id: NodeId, map: ClusterMap, config: impl Into<Arc<Config>>, seed: u64) -> Self {
        let config = config.into();
        assert!(config.transport.is_sound(), "{} makes no sense", config.transport);
        let mut txns = Unguessable::new(seed);
        let context = Context {
            id,
            map,
            port: Port::new(config.link_rate),
            unsent: 0,
            config,
            rng: Rng::new(txns.next_u64()),
            txns,
            now: Instant::ZERO,
            arrived: Instant::ZERO,
            out: VecDeque::new(),
            next_op: 0,
            effects: BTreeMap::new(),
            uplink: Calendar::default(),
            downlink: Calendar::default(),
            bids: LatencyEstimate::default(),
            choices: LatencyEstimate::default(),
            grants: LatencyEstimate::default(),
            lateness: LatencyEstimate::default(),
            promises: PromiseError::default(),
            multicast: Multicast::new(true),
            memory: Memory::default(),
            max_bid_wait: Span::ZERO,
            bug: None,
            served: 0,
            hedged: 0,
            missed: BTreeMap::new(),
            pings: Pings::default(),
            gathered: VecDeque::new(),
            aggregators: Aggregators::default(),
            negotiates: None,
        };
        let (active, gathers, waiting) = (FlatMap::new(), BTreeMap::new(), VecDeque::new());
        Self { context, active, gathers, transfers: 0, waiting, map_fetch: MapFetch::default() }
    }

    /// The same with a defect.
    #[must_use]
    pub const fn with_bug(mut self, bug: Option<Bug>) -> Self {
        self.context.bug = bug;
        self
    }

    /// The same on a network of which the driver found out whether it carries multicast. Where it does not, the machine looks
    /// now and then.
    #[must_use]
    pub const fn with_multicast(mut self, works: bool) -> Self {
        self.context.multicast = Multicast::new(works);
        self
    }

    /// Whether a transaction is under way here.
    pub(crate) fn has(&self, txn: TxnId) -> bool {
        self.active.contains_key(&txn)
    }

    /// Has a port together with somebody else, whose windows are in `outward` and `inward`: learns of those, and takes its own out of
    /// there and of `leftover`, until [`Initiator::share_port`] says which of them are left.
    pub(crate) fn take_port(
        &mut self,
        now: Instant,
        outward: &mut Calendar,
        leftover: &mut Calendar,
        inward: &mut Calendar,
    ) {
        let mine = &self.active;
        for (own, shared) in [(&mut self.context.uplink, outward), (&mut self.context.downlink, inward)] {
            let foreign: Vec<TxnId> = own.windows().map(|w| w.txn).filter(|txn| !mine.contains_key(txn)).collect();
            foreign.iter().for_each(|txn| own.remove(*txn));
            mine.keys().for_each(|txn| shared.remove(*txn));
            shared.windows().filter(|w| w.end > now).for_each(|w| own.insert_overlapping(*w));
        }
        *leftover = Calendar::default();
    }

    /// Puts the windows of what is under way into `outward` and `inward`, and of what gives way to others into `leftover`.
    pub(crate) fn share_port(
        &self,
        now: Instant,
        outward: &mut Calendar,
        leftover: &mut Calendar,
        inward: &mut Calendar,
    ) {
        let fetched = self.context.downlink.windows().filter(|w| w.end > now && self.has(w.txn));
        fetched.for_each(|window| inward.insert_free(*window));
        for window in self.context.uplink.windows().filter(|w| w.end > now) {
            match self.active.get(&window.txn).map(|active| &active.txn) {
                Some(Txn::Put(put)) if put.gives_way() => leftover.insert_free(*window),
                Some(_) => outward.insert_free(*window),
                None => {}
            }
        }
    }

    /// Others have the port when these would have sent: each asks for another window.
    pub(crate) fn give_way(&mut self, now: Instant, puts: &[TxnId]) {
        (self.context.now, self.context.arrived) = (now, now);
        for txn in puts {
            self.step(*txn, |active, context| match active {
                Txn::Put(put) => put.give_way(context),
                Txn::Get(_) | Txn::Query(_) => Step::Continue,
            });
        }
    }

    /// Puts, gets, lists and pings that are not answered yet.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.active.len() + self.gathers.len() + self.waiting.len()
    }

    fn request(&mut self, request: Request) {
        let full = self.in_progress() >= limits::WAITING;
        match request {
            Request::Map(map) => self.new_map(map),
            Request::Put { handle, put: ChunkPut { id, payload, .. } }
                if !payload.is_of(&id) || !(1..=limits::CHUNK_BYTES as usize).contains(&payload.size()) =>
            {
                self.context.event(Event::Put { handle, result: Err(PutError::Size(payload.size())) });
            }
            Request::Put { handle, .. } if full => {
                self.context.event(Event::Put { handle, result: Err(PutError::Busy) });
            }
            Request::Get { handle, .. } if full => {
                self.context.event(Event::Get { handle, result: Err(GetError::Busy) });
            }
            Request::Pieces { handle, .. } if full => {
                self.context.event(Event::Pieces { handle, result: Err(GetError::Busy) });
            }
            Request::Query { handle, query } if full => {
                self.context.event(Event::Query { handle, answer: query.refused() });
            }
            Request::Restore { handle, .. } if full => {
                self.context.event(Event::Put { handle, result: Err(PutError::Busy) });
            }
            request
            @ (Request::Put { .. } | Request::Restore { .. } | Request::Get { .. } | Request::Pieces { .. }) => {
                self.waiting.push_back((self.context.now, request));
            }
            Request::Query { handle, query } => {
                // When there is nobody to ask, it is answered by the next wake.
                let txn = self.new_txn();
                let open = OpenQuery::new(&mut self.context, txn, handle, query);
                self.active.insert(txn, Active::new(Txn::Query(Box::new(open))));
            }
        }
    }

    fn new_txn(&mut self) -> TxnId {
        loop {
            let txn = TxnId(self.context.txns.next_u64());
            if !self.active.contains_key(&txn) && !self.gathers.contains_key(&txn.whole()) {
                return txn;
            }
        }
    }

    /// Starts what waits while there is room.
    fn begin(&mut self) {
        if !self.context.config.transport.reserved {
            self.context.unsent = self.active.values().map(|active| active.txn.unsent()).sum();
        }
        while self.transfers < self.context.config.depth.max(1) {
            let Some((asked, request)) = self.waiting.pop_front() else {
                return;
            };
            let txn = self.new_txn();
            let context = &mut self.context;
            let begun = match request {
                Request::Put { handle, put } => {
                    let give_up_at = asked + context.config.give_up;
                    let wanted = Wanted::of(put.redundancy);
                    let ChunkPut { id, payload, removal, .. } = put;
                    let why = if removal { put::Why::Remove } else { put::Why::Store };
                    let piece = Piece::default();
                    let job = put::Job { handle, id, payload, piece, wanted, why, asked, give_up_at };
                    Txn::Put(Box::new(Put::new(context, txn, job)))
                }
                Request::Restore { handle, id, payload, piece, wanted, most, to } => {
                    let give_up_at = asked + context.config.give_up;
                    let why = to.map_or(put::Why::Restore(most), put::Why::Move);
                    let job = put::Job { handle, id, payload, piece, wanted, why, asked, give_up_at };
                    Txn::Put(Box::new(Put::new(context, txn, job)))
                }
                Request::Get { handle, id, holders, fragments } => {
                    let give_up_at = asked + context.config.give_up;
                    let job = get::Job { handle, id, holders, asked, give_up_at, gather: None };
                    if let Some(code) = id.code().filter(|_| id.piece().is_none()) {
                        let all = Pieces::first(code.data());
                        let mut fragments = fragments.map_or(all, |some| some.and(all));
                        if context.bug == Some(Bug::SkipFragment) {
                            fragments = fragments.lowest().map_or(all, |first| fragments.without(first));
                        }
                        let into = Decoded::Data(if fragments.is_empty() { all } else { fragments });
                        self.begin_gather(txn, Gather::new(job, code, into, Vec::new()));
                        continue;
                    }
                    Txn::Get(Box::new(Get::new(context, txn, job)))
                }
                Request::Pieces { handle, id, holders, here } => {
                    let give_up_at = asked + context.config.give_up;
                    let Some(code) = id.code() else {
                        context.event(Event::Pieces { handle, result: Err(GetError::NotFound) });
                        continue;
                    };
                    let job = get::Job { handle, id: id.whole(), holders, asked, give_up_at, gather: None };
                    self.begin_gather(txn, Gather::new(job, code, Decoded::Pieces, here));
                    continue;
                }
                Request::Query { .. } | Request::Map(_) => continue,
            };
            self.active.insert(txn, Active::new(begun));
            self.transfers += 1;
        }
    }

    fn step(&mut self, txn: TxnId, with: impl FnOnce(&mut Txn, &mut Context) -> Step) {
        let Some(active) = self.active.get_mut(&txn) else {
            return;
        };
        if with(&mut active.txn, &mut self.context) == Step::Continue {
            active.next = active.txn.next_deadline();
            return;
        }
        if !matches!(active.txn, Txn::Query(_)) {
            self.transfers -= 1;
        }
        self.active.remove(&txn);
        self.context.uplink.remove(txn);
        self.context.downlink.remove(txn);
    }

    fn message(&mut self, datagram: &Bytes) {
        let Some((head, message)) = decode_message(datagram) else {
            return self.context.event(Event::Ignored(IgnoredReason::Invalid));
        };
        let from = head.from;
        self.context.mark_reachable(from);
        if head.epoch > self.context.map.epoch && self.context.id.is_initiator() {
            self.learn_of_map(from, head.epoch);
        }
        let txn = match &message {
            Message::MapRequest(request) => return self.send_map(from, head.epoch, *request),
            Message::MapPart(part) => return self.map_part(from, head.epoch, part),
            Message::Presence { here } => return self.presence(from, *here),
            Message::Pong { txn, .. } if self.context.seen(*txn) || self.context.is_back(*txn) => return,
            answer => match answered(answer) {
                Some(txn) => txn,
                None => return self.context.event(Event::Ignored(IgnoredReason::Invalid)),
            },
        };
        if let Message::Bid(bid) = &message {
            self.context.event(Event::Bid { answer: bid.answer });
            self.context.aggregators.note_bid(from, self.context.now);
        }
        match &message {
            _ if self.active.contains_key(&txn) => {}
            Message::Bid(bid) if self.gathers.contains_key(&txn.whole()) => return self.gather_bid(from, *bid),
            Message::Ack { ack, .. } if self.gathers.contains_key(&txn) => return self.gather_refused(txn, from, *ack),
            Message::Leading(Leading::Grant(grant)) => return self.context.give_back(from, grant),
            _ => return self.context.event(Event::Ignored(IgnoredReason::Late)),
        }
        self.step(txn, |active, context| match (active, &message) {
            (Txn::Put(put), Message::Bid(bid)) => put.bid(context, from, *bid),
            (Txn::Put(put), Message::Leading(Leading::Grant(grant))) => put.on_grant(context, from, grant),
            (Txn::Get(get), Message::Leading(Leading::Grant(grant))) => get.on_grant(context, from, grant),
            (Txn::Put(put), Message::Ack { ack, .. }) => put.ack(context, from, *ack),
            (Txn::Put(put), Message::Repair(repair)) => put.repair(context, from, repair.rate, &repair.ranges),
            (Txn::Get(get), Message::Bid(bid)) => get.bid(context, from, *bid),
            (Txn::Get(get), Message::Ack { ack: Ack::Pending, .. }) => get.pending(context, from),
            (Txn::Get(get), Message::Ack { ack, .. }) => get.refused(context, from, *ack),
            (Txn::Query(query), Message::Bid(Bid { answer: Answer::Busy(wait), .. })) => {
                query.busy(context, from, *wait)
            }
            (Txn::Query(query), Message::Bid(Bid { answer: Answer::Stale, .. })) => query.stale(context, from),
            (Txn::Query(query), Message::Ack { ack, .. }) => query.promised(context, from, *ack),
            (Txn::Query(query), Message::Marked { .. }) => query.marked(context, from),
            (Txn::Query(query), Message::Used { usage, .. }) => query.used(context, from, *usage),
            (Txn::Query(query), Message::HealthReport { report, .. }) => query.health(context, from, report),
            (Txn::Query(query), Message::Discarded { page, dropped, bytes, .. }) => {
                query.discarded(context, from, *page, *dropped, *bytes)
            }
            (Txn::Query(query), Message::Listed { ids, more, .. }) => query.listed(context, from, ids, *more),
            (Txn::Query(query), Message::Pong { free, chunks, .. }) => {
                query.pong(context, from, Alive { free: *free, chunks: *chunks })
            }
            _ => {
                context.event(Event::Ignored(IgnoredReason::Invalid));
                Step::Continue
            }
        });
    }

    /// A target stops on purpose, or has been started: nobody waits for one that stops. That it is there is known from any message.
    fn presence(&mut self, from: NodeId, here: bool) {
        if self.context.map.target(from).is_none() {
            return self.context.event(Event::Ignored(IgnoredReason::OtherMap));
        }
        if here {
            return;
        }
        self.context.mark_down(from);
        let active: Vec<TxnId> = self.active.keys().copied().collect();
        for txn in active {
            self.step(txn, |active, context| match active {
                Txn::Put(put) => put.left(context, from),
                Txn::Get(get) => get.refused(context, from, Ack::Unknown),
                Txn::Query(_) => Step::Continue,
            });
        }
    }

    fn payload(&mut self, header: &DataHeader, payload: &Bytes) {
        if !self.active.contains_key(&header.txn) {
            return self.context.event(Event::Ignored(IgnoredReason::Late));
        }
        self.step(header.txn, |active, context| match active {
            Txn::Get(get) => get.data(context, header, payload),
            Txn::Put(_) | Txn::Query(_) => {
                context.event(Event::Ignored(IgnoredReason::Invalid));
                Step::Continue
            }
        });
    }

    fn wake(&mut self) {
        let now = self.context.now;
        self.context.uplink.prune(now);
        self.context.downlink.prune(now);
        self.context.check_multicast();
        self.context.ask_silent();
        self.fetch_map_on();
        self.wake_gathers();
        // Those that want the port at the same time have it in the order in which they were asked for.
        let mut due: Vec<(Instant, TxnId)> = self
            .active
            .iter()
            .filter(|(_, active)| active.next.at <= now)
            .map(|(txn, active)| (active.txn.asked(), *txn))
            .collect();
        due.sort_unstable();
        for (_, txn) in due {
            self.step(txn, |active, context| match active {
                Txn::Put(put) => put.wake(context),
                Txn::Get(get) => get.wake(context),
                Txn::Query(query) => query.wake(context),
            });
        }
    }
}

impl Txn {
    /// When a put was asked for.
    const fn asked(&self) -> Instant {
        match self {
            Self::Put(put) => put.asked(),
            Self::Get(_) | Self::Query(_) => Instant::ZERO,
        }
    }

    fn unsent(&self) -> u64 {
        match self {
            Self::Put(put) => put.unsent(),
            Self::Get(_) | Self::Query(_) => 0,
        }
    }

    fn next_deadline(&self) -> Deadline {
        match self {
            Self::Put(put) => put.next_deadline(),
            Self::Get(get) => get.next_deadline(),
            Self::Query(query) => query.next_deadline(),
        }
    }
}

impl Machine for Initiator {
    type Request = Request;
    type Event = Event;

    fn handle_input(&mut self, now: Instant, input: Input<Request>) {
        assert!(now >= self.context.now, "time went backwards, from {} to {now}", self.context.now);
        (self.context.now, self.context.arrived) = (now, now);
        match input {
            Input::Wake => self.wake(),
            Input::Datagram { bytes, .. } if is_data(&bytes) => match DataHeader::decode(&bytes) {
                Some((header, payload)) => self.payload(&header, &payload),
                None => self.context.event(Event::Ignored(IgnoredReason::Invalid)),
            },
            Input::Datagram { bytes, arrived } => {
                self.context.arrived = arrived.min(now);
                self.message(&bytes);
            }
            Input::Payload { header, payload, .. } => self.payload(&header, &payload),
            Input::Done { op, completion } => match (self.context.effects.remove(&op), completion) {
                (Some(txn), Completion::Verified(good)) => self.step(txn, |active, context| match active {
                    Txn::Get(get) => get.verified(context, good),
                    Txn::Put(_) | Txn::Query(_) => Step::Continue,
                }),
                (Some(txn), Completion::Decoded(decoded)) => self.gather_decoded(txn, decoded),
                _ => {}
            },
            Input::Request(request) => self.request(request),
        }
        self.gather_parts();
        self.begin();
    }

    fn outputs(&mut self) -> &mut VecDeque<Output<Event>> {
        &mut self.context.out
    }

    fn prefetch(&self) -> u64 {
        let context = &self.context;
        self.active.len() as u64
            ^ context.now.as_nanos()
            ^ context.unsent
            ^ context.bids.smallest().as_nanos()
            ^ context.lateness.smallest().as_nanos()
            ^ context.served
    }

    fn prefetch_behind(&self) -> u64 {
        let active = self.active.iter().fold(0, |sum, (txn, active)| sum ^ txn.0 ^ active.next.at.as_nanos());
        active ^ self.context.uplink.prefetch()
    }

    fn next_deadline(&self) -> Option<Deadline> {
        let active = self.active.values().map(|active| active.next);
        let context = &self.context;
        let others =
            context.next_multicast_check().into_iter().chain(context.next_asking()).chain(self.next_map_request());
        let gathers = self.gathers.values().filter_map(Gather::next_deadline);
        let gathers = gathers.map(|at| Deadline { at, why: "pieces" });
        active.chain(others).chain(gathers).min_by_key(|deadline| deadline.at)
    }
}

/// A chunk's group and its targets.
fn members(map: &ClusterMap, id: &ChunkId) -> (GroupId, Vec<NodeId>) {
    let group = map.group_of(id);
    (group, map.members(group).map(|t| t.id).collect())
}

/// The transaction that a target answers with this message; `None` when it is no answer.
const fn answered(message: &Message) -> Option<TxnId> {
    Some(match message {
        Message::Bid(bid) => bid.txn,
        Message::Ack { txn, .. }
        | Message::Listed { txn, .. }
        | Message::Marked { txn }
        | Message::Discarded { txn, .. }
        | Message::Used { txn, .. }
        | Message::HealthReport { txn, .. }
        | Message::Pong { txn, .. } => *txn,
        Message::Repair(repair) => repair.txn,
        Message::Leading(Leading::Grant(grant)) => grant.txn,
        Message::PutRequest(_)
        | Message::Accept { .. }
        | Message::GetRequest { .. }
        | Message::Probe { .. }
        | Message::Suspect { .. }
        | Message::List { .. }
        | Message::Ping { .. }
        | Message::Mark { .. }
        | Message::Discard(_)
        | Message::Usage { .. }
        | Message::Health { .. }
        | Message::Leading(_)
        | Message::Aggregating(_)
        | Message::MapRequest(_)
        | Message::MapPart(_)
        | Message::Census(_)
        | Message::Counted { .. }
        | Message::Presence { .. }
        | Message::Gone { .. }
        | Message::Restore { .. }
        | Message::Fill { .. }
        | Message::Filled { .. }
        | Message::Move { .. }
        | Message::Surplus { .. }
        | Message::Noted { .. } => return None,
    })
}
