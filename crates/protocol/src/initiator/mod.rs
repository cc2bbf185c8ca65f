//! The initiator: negotiates, sends in the reserved windows, counts durable copies; fetches and verifies.
//!
//! One file a transaction kind ([`put`], [`get`], [`ask`] for lists and pings). The
//! parent holds all control flow: it routes inputs, and starts what waits when something ends.

mod api;
mod ask;
mod get;
mod memory;
mod multicast;
mod newer;
mod put;
mod silence;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

pub use api::*;
use ask::Ask;
use get::Get;
use memory::Memory;
use multicast::Multicast;
use put::Put;

use crate::calendar::{Calendar, least};
use crate::config::{Config, Transport};
use crate::estimate::Typical;
use crate::id::{ChunkId, GroupId, NodeId, OpId, TxnId};
use crate::limits;
use crate::machine::{Body, Completion, Deadline, Destination, Effect, Input, Machine, Output, Transmit};
use crate::map::ClusterMap;
use crate::rng::Rng;
use crate::time::{Instant, Span};
use crate::transfer::Port;
use crate::wire::{
    Ack, Answer, Bid, DataHeader, Grant, Head, Leading, Message, decode_message, encode_message, is_data,
};

/// Most that a window is longer for what bids differ by, in percent of the transfer.
const MEET: u16 = 35;

/// What all transactions of one initiator share.
#[derive(Debug)]
struct Shared {
    id: NodeId,
    map: ClusterMap,
    config: Config,
    rng: Rng,
    now: Instant,
    out: VecDeque<Output<Event>>,
    next_op: u64,
    effects: BTreeMap<OpId, TxnId>,
    /// Our own port: what it is busy with now, and when it will be, outwards and inwards. Without negotiation: the bytes of
    /// puts that it has to send yet.
    port: Port,
    unsent: u64,
    uplink: Calendar,
    downlink: Calendar,
    /// From a request to a bid.
    bids: Typical,
    /// From a request to the choice among bids.
    choices: Typical,
    /// From a request to a leader to its grant, those included that came too late.
    grants: Typical,
    /// From the promised beginning of a get's payload to its arrival.
    lateness: Typical,
    multicast: Multicast,
    memory: Memory,
    /// How long the windows of the next put may keep it waiting (if choosy).
    max_bid_wait: Span,
    bug: Option<Bug>,
    /// Gets of which a holder was accepted, and those of them of which another was asked, too.
    served: u64,
    hedged: u64,
    /// Rounds that each member has missed in a row, and when the last of them was over.
    missed: BTreeMap<NodeId, (u8, Instant)>,
    /// Who left a whole series of questions unanswered and has said nothing since, and when the series ended.
    silent: BTreeMap<NodeId, Instant>,
}

impl Shared {
    /// When our port is taken for what it will send, from now on; what is free between is enough for a transfer of `length`.
    fn taken(&self, length: Span) -> Vec<(Span, Span)> {
        let mut taken: Vec<(Span, Span)> = Vec::new();
        for window in self.uplink.windows().filter(|w| w.end > self.now) {
            let (start, end) = (window.start.since(self.now), window.end.since(self.now));
            if end.to_wire().is_none() {
                break;
            }
            let full = taken.len() == limits::RANGES;
            match taken.last_mut() {
                Some(last) if start < last.1 + least(length) => last.1 = end,
                _ if full => break,
                _ => taken.push((start, end)),
            }
        }
        taken
    }

    fn head(&self) -> Head {
        Head { cluster: self.map.cluster, epoch: self.map.epoch, from: self.id }
    }

    fn send(&mut self, to: Destination, message: &Message) {
        let body = Body::Control(encode_message(self.head(), message));
        self.out.push_back(Output::Transmit(Transmit { to, body }));
    }

    /// To `members` of a group by multicast if that `may` be (when they are many, to all of the group: only sets of a few
    /// have an address of their own), or to each of them. Whether it was by multicast.
    fn send_group(&mut self, group: GroupId, members: &[NodeId], message: &Message, may: bool) -> bool {
        let by_multicast = may && self.multicast() && self.config.transport != Transport::Hash && members.len() > 1;
        if by_multicast {
            let few = members.len() <= usize::from(self.map.copies);
            let own = if few { self.map.set_of(group, |n| members.contains(&n)) } else { None };
            let set = own.unwrap_or_else(|| self.map.group_set(group));
            self.send(Destination::Members(set), message);
        } else {
            for member in members {
                self.send(Destination::Node(*member), message);
            }
        }
        by_multicast
    }

    fn event(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }

    fn start(&mut self, txn: TxnId, effect: Effect) {
        self.next_op += 1;
        let op = OpId(self.next_op);
        self.effects.insert(op, txn);
        self.out.push_back(Output::Effect { op, effect });
    }

    fn data_header(&self, txn: TxnId, size: usize) -> DataHeader {
        DataHeader { cluster: self.map.cluster, from: self.id, txn, offset: 0, size: size as u32 }
    }

    /// How long to wait for bids before going on without the silent ones.
    fn patience(&self) -> Span {
        self.patient(&self.bids)
    }

    /// Until when to wait for a leader. It does more than its members, so it is slower.
    fn leader_until(&self) -> Instant {
        self.now + self.patient(&self.grants)
    }

    fn patient(&self, answers: &Typical) -> Span {
        let shortest = Span::from_micros(200).min(self.config.bid_timeout);
        answers.late().unwrap_or(self.config.bid_timeout).clamp(shortest, self.config.bid_timeout)
    }

    /// How far ahead windows should begin: the choice is usually made by then, and the payload can leave.
    fn lead(&self) -> Span {
        self.choices.usual().max(self.bids.smallest()).min(self.config.late)
    }

    /// How much later than its window a transfer may still begin. The choice is sometimes late, by what bids differ from
    /// each other; a receive buffer is kept for the payload all the same, and a transfer that runs into the next costs
    /// less than another negotiation.
    fn slack(&self) -> Span {
        self.bids.deviation().times(4).min(self.config.late.div(4))
    }

    /// How long the windows for one transfer of `length` to several targets should be, in percent of it: what bids differ by
    /// longer, so that they meet. More would keep others from the ports, and leave holes of no use between transfers.
    fn stretch(&self, length: Span) -> u16 {
        let differ = self.bids.deviation().as_nanos() * 100 / length.as_nanos().max(1);
        self.config.stretch_m + u16::try_from(differ).unwrap_or(u16::MAX).min(MEET)
    }

    /// When the beginning of a window is, on this node's clock. Such an `answer` as it came in was half a round trip under way,
    /// and so will be the payload: both are taken off, by the smallest round trip seen.
    fn window_start(&self, start: Span, answer: &Typical) -> Instant {
        self.now + start.less(answer.smallest())
    }

    /// Whether a leader that was asked at `since` is given up: it did not answer until `until`, as is known when woken.
    fn gives_leader_up(&mut self, leader: NodeId, since: Instant, until: Instant, woken: bool) -> bool {
        let late = woken && self.now >= until;
        if late {
            self.miss(leader, since);
        }
        late
    }

    /// What a leader granted comes too late to be used: whoever keeps a window for it is free again at once.
    fn give_back(&mut self, leader: NodeId, grant: &Grant) {
        let members = grant.windows.iter().map(|turn| turn.target).filter(|member| *member != leader);
        self.release(grant.txn, grant.round, members.chain([leader]).collect());
    }

    /// Tells some that what they keep for a round is not used.
    fn release(&mut self, txn: TxnId, round: u8, told: Vec<NodeId>) {
        let nobody = Message::Accept { txn, round, granted: Vec::new() };
        told.into_iter().for_each(|node| self.send(Destination::Node(node), &nobody));
    }

    /// How long to rest when targets are busy: until the first of them said that it may have a window, within reason.
    fn rest(&self, busy: Option<Span>) -> Span {
        busy.unwrap_or(Span::ZERO).min(self.config.max_wait).max(self.config.late)
    }

    /// Who leads these members: the lowest of them that is not silent. Leaders tell members by multicast what they grant, so
    /// none is asked where that does not reach them.
    fn leader(&self, members: &[NodeId]) -> Option<NodeId> {
        let may = self.config.transport == Transport::Leader && self.next_look().is_none();
        members.iter().copied().filter(|n| may && !self.is_suspect(*n)).min()
    }

    /// The failure domain of a target.
    fn domain(&self, target: NodeId) -> Option<u16> {
        match self.bug {
            Some(Bug::IgnoreDomains) => Some(target.0 as u16),
            _ => self.map.domain(target),
        }
    }

    /// Whether these targets, when they are silent, may be all that know of something.
    fn may_hide(&self, silent: &[NodeId]) -> bool {
        match self.bug {
            Some(Bug::ForgetEarlier) => self.map.domains(silent) >= usize::from(self.map.copies),
            _ => self.map.may_hide(silent),
        }
    }

    /// In how many distinct failure domains these targets are.
    fn domains(&self, targets: &[NodeId]) -> usize {
        match self.bug {
            Some(Bug::IgnoreDomains) => targets.len(),
            _ => self.map.domains(targets),
        }
    }
}

/// One transaction under way.
#[derive(Debug)]
enum Txn {
    Put(Put),
    Get(Get),
    Ask(Ask),
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
    shared: Shared,
    active: BTreeMap<TxnId, Txn>,
    /// Transactions of `active` that count against the depth.
    transfers: usize,
    waiting: VecDeque<(Instant, Request)>,
}

impl Initiator {
    /// An initiator called `id`; `seed` decides its transaction numbers and must differ from run to run.
    #[must_use]
    pub fn new(id: NodeId, map: ClusterMap, config: Config, seed: u64) -> Self {
        assert!(id.is_initiator(), "{id:?} is a target's id");
        let shared = Shared {
            id,
            map,
            port: Port::new(config.link_rate),
            unsent: 0,
            config,
            rng: Rng::new(seed),
            now: Instant::ZERO,
            out: VecDeque::new(),
            next_op: 0,
            effects: BTreeMap::new(),
            uplink: Calendar::default(),
            downlink: Calendar::default(),
            bids: Typical::default(),
            choices: Typical::default(),
            grants: Typical::default(),
            lateness: Typical::default(),
            multicast: Multicast::new(true),
            memory: Memory::default(),
            max_bid_wait: Span::ZERO,
            bug: None,
            served: 0,
            hedged: 0,
            missed: BTreeMap::new(),
            silent: BTreeMap::new(),
        };
        Self { shared, active: BTreeMap::new(), transfers: 0, waiting: VecDeque::new() }
    }

    /// The same with a defect.
    #[must_use]
    pub const fn planted(mut self, bug: Option<Bug>) -> Self {
        self.shared.bug = bug;
        self
    }

    /// The same on a network of which the driver found out whether it carries multicast. Where it does not, the machine looks
    /// now and then.
    #[must_use]
    pub const fn carried(mut self, works: bool) -> Self {
        self.shared.multicast = Multicast::new(works);
        self
    }

    /// Puts, gets, lists and pings that are not answered yet.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.active.len() + self.waiting.len()
    }

    fn request(&mut self, request: Request) {
        let full = self.in_progress() >= limits::WAITING;
        match request {
            Request::Map(map) => self.new_map(map),
            Request::Put { handle, payload, .. }
                if payload.is_empty() || payload.len() > limits::CHUNK_BYTES as usize =>
            {
                self.shared.event(Event::Put { handle, result: Err(PutError::Size(payload.len())) });
            }
            Request::Put { handle, .. } if full => {
                self.shared.event(Event::Put { handle, result: Err(PutError::Busy) });
            }
            Request::Get { handle, .. } if full => {
                self.shared.event(Event::Get { handle, result: Err(GetError::Busy) });
            }
            Request::List { handle, .. } if full => self.shared.event(Event::List { handle, result: Err(Busy) }),
            Request::Ping { handle } if full => self.shared.event(Event::Ping { handle, result: Err(Busy) }),
            Request::Renew { handle, .. } if full => self.shared.event(Event::Renew { handle, result: Err(Busy) }),
            Request::Mark { handle } if full => self.shared.event(Event::Mark { handle, result: Err(Busy) }),
            Request::Discard { handle, .. } if full => self.shared.event(Event::Discard { handle, result: Err(Busy) }),
            Request::Usage { handle } if full => self.shared.event(Event::Usage { handle, result: Err(Busy) }),
            request @ (Request::Put { .. } | Request::Get { .. }) => {
                self.waiting.push_back((self.shared.now, request));
            }
            Request::List { handle, scope, prefix } => self.ask(|cx, txn| Ask::list(cx, txn, handle, &scope, prefix)),
            Request::Ping { handle } => self.ask(|cx, txn| Ask::ping(cx, txn, handle)),
            Request::Renew { handle, id } => self.ask(|cx, txn| Ask::renew(cx, txn, handle, id)),
            Request::Mark { handle } => self.ask(|cx, txn| Ask::mark(cx, txn, handle)),
            Request::Usage { handle } => self.ask(|cx, txn| Ask::usage(cx, txn, handle)),
            Request::Discard { handle, discard } => self.ask(|cx, txn| Ask::discard(cx, txn, handle, discard)),
        }
    }

    /// Begins a question. When there is nobody to ask, it is answered by the next wake.
    fn ask(&mut self, begin: impl FnOnce(&mut Shared, TxnId) -> Ask) {
        let txn = self.new_txn();
        let ask = begin(&mut self.shared, txn);
        self.active.insert(txn, Txn::Ask(ask));
    }

    fn new_txn(&mut self) -> TxnId {
        loop {
            let txn = TxnId(self.shared.rng.next_u64());
            if !self.active.contains_key(&txn) {
                return txn;
            }
        }
    }

    /// Starts what waits while there is room.
    fn begin(&mut self) {
        if self.shared.config.transport == Transport::Hash {
            self.shared.unsent = self.active.values().map(|active| active.unsent(&self.shared)).sum();
        }
        while self.transfers < self.shared.config.depth.max(1) {
            let Some((asked, request)) = self.waiting.pop_front() else {
                return;
            };
            let txn = self.new_txn();
            let cx = &mut self.shared;
            let begun = match request {
                Request::Put { handle, id, payload, removal } => {
                    Txn::Put(Put::new(cx, txn, handle, (id, payload, removal), asked))
                }
                Request::Get { handle, id } => Txn::Get(Get::new(cx, txn, handle, id, asked)),
                Request::List { .. }
                | Request::Ping { .. }
                | Request::Renew { .. }
                | Request::Mark { .. }
                | Request::Discard { .. }
                | Request::Usage { .. }
                | Request::Map(_) => continue,
            };
            self.active.insert(txn, begun);
            self.transfers += 1;
        }
    }

    fn step(&mut self, txn: TxnId, with: impl FnOnce(&mut Txn, &mut Shared) -> Step) {
        let Some(active) = self.active.get_mut(&txn) else {
            return;
        };
        if with(active, &mut self.shared) == Step::Over {
            if !matches!(active, Txn::Ask(_)) {
                self.transfers -= 1;
            }
            self.active.remove(&txn);
            self.shared.uplink.remove(txn);
            self.shared.downlink.remove(txn);
        }
    }

    fn message(&mut self, datagram: &Bytes) {
        let Some((head, message)) = decode_message(datagram) else {
            return;
        };
        let from = head.from;
        self.shared.heard(from);
        if head.epoch > self.shared.map.epoch {
            self.shared.event(Event::NeedMap { epoch: head.epoch });
        }
        let txn = match &message {
            Message::Bid(bid) => {
                self.shared.event(Event::Bid { answer: bid.answer });
                bid.txn
            }
            Message::Ack { txn, .. }
            | Message::Listed { txn, .. }
            | Message::Marked { txn }
            | Message::Discarded { txn, .. }
            | Message::Used { txn, .. } => *txn,
            Message::Pong { txn, .. } if self.shared.seen(*txn) => return,
            Message::Pong { txn, .. } => *txn,
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
            | Message::Leading(_) => return,
        };
        if let (Message::Leading(Leading::Grant(grant)), None) = (&message, self.active.get(&txn)) {
            return self.shared.give_back(from, grant);
        }
        self.step(txn, |active, cx| match (active, message) {
            (Txn::Put(put), Message::Bid(bid)) => put.bid(cx, from, bid),
            (Txn::Put(put), Message::Leading(Leading::Grant(grant))) => put.granted(cx, from, &grant),
            (Txn::Get(get), Message::Leading(Leading::Grant(grant))) => get.granted(cx, from, &grant),
            (Txn::Put(put), Message::Ack { ack, .. }) => put.ack(cx, from, ack),
            (Txn::Put(put), Message::Repair(repair)) => put.repair(cx, from, u64::from(repair.rate), &repair.ranges),
            (Txn::Get(get), Message::Bid(bid)) => get.bid(cx, from, bid),
            (Txn::Get(get), Message::Ack { ack: Ack::Pending, .. }) => get.pending(cx, from),
            (Txn::Get(get), Message::Ack { ack, .. }) => get.refused(cx, from, ack),
            (Txn::Ask(ask), Message::Bid(Bid { answer: Answer::Busy(wait), .. })) => ask.busy(cx, from, wait),
            (Txn::Ask(ask), Message::Bid(Bid { answer: Answer::Stale, .. })) => ask.stale(cx, from),
            (Txn::Ask(ask), Message::Ack { ack, .. }) => ask.promised(cx, from, ack),
            (Txn::Ask(ask), Message::Marked { .. }) => ask.marked(cx, from),
            (Txn::Ask(ask), Message::Used { usage, .. }) => ask.used(cx, from, usage),
            (Txn::Ask(ask), Message::Discarded { page, dropped, bytes, .. }) => {
                ask.discarded(cx, from, page, dropped, bytes)
            }
            (Txn::Ask(ask), Message::Listed { ids, more, .. }) => ask.listed(cx, from, &ids, more),
            (Txn::Ask(ask), Message::Pong { free, chunks, .. }) => ask.pong(cx, from, Alive { free, chunks }),
            _ => Step::Continue,
        });
    }

    fn payload(&mut self, header: &DataHeader, payload: &Bytes) {
        self.step(header.txn, |active, cx| match active {
            Txn::Get(get) => get.data(cx, header, payload),
            Txn::Put(_) | Txn::Ask(_) => Step::Continue,
        });
    }

    fn wake(&mut self) {
        let now = self.shared.now;
        self.shared.uplink.prune(now);
        self.shared.downlink.prune(now);
        self.shared.look();
        // Those that want the port at the same time have it in the order in which they were asked for.
        let mut due: Vec<(Instant, TxnId)> = self
            .active
            .iter()
            .filter(|(_, active)| active.next_deadline().is_some_and(|d| d.at <= now))
            .map(|(txn, active)| (active.asked(), *txn))
            .collect();
        due.sort_unstable();
        for (_, txn) in due {
            self.step(txn, |active, cx| match active {
                Txn::Put(put) => put.wake(cx),
                Txn::Get(get) => get.wake(cx),
                Txn::Ask(ask) => ask.wake(cx),
            });
        }
    }
}

impl Txn {
    /// When a put was asked for.
    const fn asked(&self) -> Instant {
        match self {
            Self::Put(put) => put.asked(),
            Self::Get(_) | Self::Ask(_) => Instant::ZERO,
        }
    }

    fn unsent(&self, cx: &Shared) -> u64 {
        match self {
            Self::Put(put) => put.unsent(cx),
            Self::Get(_) | Self::Ask(_) => 0,
        }
    }

    fn next_deadline(&self) -> Option<Deadline> {
        match self {
            Self::Put(put) => Some(put.next_deadline()),
            Self::Get(get) => Some(get.next_deadline()),
            Self::Ask(ask) => Some(ask.next_deadline()),
        }
    }
}

impl Machine for Initiator {
    type Request = Request;
    type Event = Event;

    fn handle_input(&mut self, now: Instant, input: Input<Request>) {
        assert!(now >= self.shared.now, "time went backwards, from {} to {now}", self.shared.now);
        self.shared.now = now;
        match input {
            Input::Wake => self.wake(),
            Input::Datagram(datagram) if is_data(&datagram) => {
                if let Some((header, payload)) = DataHeader::decode(&datagram) {
                    self.payload(&header, &payload);
                }
            }
            Input::Datagram(datagram) => self.message(&datagram),
            Input::Payload { header, payload } => self.payload(&header, &payload),
            Input::Done { op, completion } => {
                if let (Some(txn), Completion::Verified(good)) = (self.shared.effects.remove(&op), completion) {
                    self.step(txn, |active, cx| match active {
                        Txn::Get(get) => get.verified(cx, good),
                        Txn::Put(_) | Txn::Ask(_) => Step::Continue,
                    });
                }
            }
            Input::Request(request) => self.request(request),
        }
        self.begin();
    }

    fn poll_output(&mut self) -> Output<Event> {
        self.shared.out.pop_front().unwrap_or_else(|| {
            let active = self.active.values().filter_map(Txn::next_deadline);
            Output::Idle(active.chain(self.shared.next_look()).min_by_key(|deadline| deadline.at))
        })
    }
}

/// A chunk's group and its targets.
fn members(map: &ClusterMap, id: &ChunkId) -> (GroupId, Vec<NodeId>) {
    let group = map.group_of(id);
    (group, map.members(group).map(|t| t.id).collect())
}
