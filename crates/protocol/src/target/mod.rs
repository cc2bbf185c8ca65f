//! The target: one disk with its own calendar. It bids, receives, makes durable, acknowledges, and serves.
//!
//! All control flow is here; [`receive`] knows what a copy on its way in is, [`serve`] what one on its way out is,
//! [`clean`] which copies may go, [`lead`] what a leader grants for its group.

mod api;
mod census;
mod clean;
mod finished;
mod lead;
mod levelling;
mod missing;
mod newer;
mod pending;
mod presence;
mod receive;
mod recent_grants;
mod restore;
mod serve;
mod surplus;
mod witness;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

pub use api::{Bug, Event, Request, Setup};
use census::Census;
use clean::Marks;
use finished::Finished;
use lead::Lead;
use levelling::Leaving;
use missing::Missing;
use pending::Pending;
use presence::Presence;
use receive::{Busy, Maintenance, Reservation, Stage};
use restore::{Made, Restoring};
use serve::Serving;
use witness::Watch;

use crate::calendar::{Calendar, Window};
use crate::config::Config;
use crate::estimate::{AcceptRate, DiskQueue, LatencyEstimate, READS, Rate, WRITES};
use crate::flat_map::FlatMap;
use crate::id::{ChunkId, NodeId, OpId, TxnId};
use crate::limits;
use crate::machine::{
    Body, Completion, Deadline, Destination, Effect, Held, IgnoredReason, Input, Machine, Output, ReadFailure,
    Transmit, WriteFailure,
};
use crate::map_fetch::MapFetch;
use crate::rng::Unguessable;
use crate::time::{Instant, Span};
use crate::transfer::Port;
use crate::wire::{
    Ack, Answer, Bid, DataHeader, Granted, Head, Leading, Message, OfferedWindow, PutRequest, Repair, Seek,
    decode_message, encode_message, is_data,
};

/// Attempts to find a quiet moment, at eighths of the interval, before a scrub takes its turn on a busy target: none is put off
/// for longer than the interval.
const SCRUB_ATTEMPTS: u8 = 8;

/// The target machine. What every input needs comes first, then what a copy on its way in needs: where there are many thousands,
/// as in a simulation, none is in a cache, and each line of memory that is touched is waited for.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Target {
    now: Instant,
    /// When the message that is handled came here; now, if it is none.
    arrived: Instant,
    out: VecDeque<Output<Event>>,
    config: Arc<Config>,
    scrub_at: Instant,
    /// When the leader's part of this target, or the member's, has something to do.
    lead_due: Option<Instant>,
    next_op: u64,
    setup: Setup,
    /// Where all that nobody may guess comes from: transactions of its own, and the seeds of machines that it makes.
    secrets: Unguessable,
    /// Says which of its lives this is, to stewards that got a note in an earlier one.
    life: u32,
    /// Whether a write failed: then the disk takes no more, but what it can still read is served.
    disk_failed: bool,
    marks: Marks,
    /// Copies on their way out.
    servings: FlatMap<TxnId, Serving, 0>,
    pending: FlatMap<OpId, Pending, 3>,
    /// Copies on their way in.
    reservations: FlatMap<TxnId, Reservation, 4>,
    /// The port inwards.
    inward: Calendar,
    /// What maintenance has of it until others want it.
    leftover: Calendar,
    lateness: LatencyEstimate,
    link: Rate,
    /// What arrives just now.
    busy: Option<Busy>,
    /// Of the windows offered.
    accept_rate: AcceptRate,
    scrub_until: Instant,
    writes: DiskQueue,
    /// How recent transactions ended.
    finished: Finished,
    map_fetch: MapFetch,
    /// Made when it is needed first.
    restoring: Option<Box<Restoring>>,
    maintenance: Maintenance,
    presence: Presence,
    leaving: Leaving,
    /// The port outwards, and what it is sending.
    outward: Calendar,
    /// What maintenance has of it until somebody reads.
    outward_leftover: Calendar,
    port: Port,
    reads: DiskQueue,
    lead: Lead,
    scrub_cursor: Option<ChunkId>,
    /// Looks for a quiet moment that were in vain.
    scrub_attempts: u8,
    /// What the last stretch of a scrub took; [`Self::scrub_until`] is when the one under way should be over.
    scrub_took: Span,
    census: Census,
    watch: Watch,
    made: Made,
    missing: Missing,
}

impl Target {
    /// A target as `setup` says. Targets may share a configuration.
    #[must_use]
    pub fn new(setup: Setup, config: impl Into<Arc<Config>>) -> Self {
        let config = config.into();
        let mut secrets = Unguessable::new(setup.seed);
        let life = secrets.next_u64() as u32;
        let scrub_at = if config.scrub_interval == Span::ZERO { Instant::FAR } else { Instant::ZERO };
        Self {
            link: Rate::new(config.link_rate),
            port: Port::new(config.link_rate),
            writes: DiskQueue::new(WRITES),
            reads: DiskQueue::new(READS),
            scrub_took: Span::of_transfer(config.scrub_bytes, READS.rate),
            busy: None,
            accept_rate: AcceptRate::default(),
            setup,
            secrets,
            life,
            config,
            out: VecDeque::new(),
            now: Instant::ZERO,
            arrived: Instant::ZERO,
            next_op: 0,
            pending: FlatMap::new(),
            reservations: FlatMap::new(),
            servings: FlatMap::new(),
            inward: Calendar::default(),
            leftover: Calendar::default(),
            outward: Calendar::default(),
            outward_leftover: Calendar::default(),
            lateness: LatencyEstimate::default(),
            finished: Finished::default(),
            marks: Marks::default(),
            lead: Lead::default(),
            lead_due: None,
            scrub_at,
            scrub_cursor: None,
            scrub_attempts: 0,
            scrub_until: Instant::ZERO,
            disk_failed: false,
            map_fetch: MapFetch::default(),
            census: Census::default(),
            watch: Watch::default(),
            restoring: None,
            presence: Presence::default(),
            made: Made::default(),
            maintenance: Maintenance::default(),
            leaving: Leaving::default(),
            missing: Missing::default(),
        }
    }

    /// When the oldest operation of a kind was handed to the disk.
    fn oldest(&self, begun: impl Fn(&Pending) -> Option<Instant>) -> Instant {
        self.pending.values().find_map(begun).unwrap_or(self.now)
    }

    /// Copies on their way in or out: none when the cluster is quiet.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.reservations.len() + self.servings.len()
    }

    /// The transactions of these copies.
    pub fn transactions(&self) -> impl Iterator<Item = TxnId> + '_ {
        self.reservations.keys().chain(self.servings.keys()).copied()
    }

    fn head(&self) -> Head {
        Head { cluster: self.setup.map.cluster, epoch: self.setup.map.epoch, from: self.setup.id }
    }

    /// When that is of which the message that is handled says that it is `span` from its sending; now, if that is over.
    fn since_arrival(&self, span: Span) -> Instant {
        (self.arrived + span).max(self.now)
    }

    fn send(&mut self, to: NodeId, message: &Message) {
        self.send_to(Destination::Node(to), message);
    }

    fn send_to(&mut self, to: Destination, message: &Message) {
        let body = Body::Control(encode_message(self.head(), message));
        self.out.push_back(Output::Transmit(Transmit { to, body }));
    }

    fn bid(&mut self, to: NodeId, txn: TxnId, round: u8, answer: Answer) {
        self.send(to, &Message::Bid(Bid { txn, round, answer }));
        self.event(Event::Bid { answer });
    }

    fn event(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }

    fn start(&mut self, effect: Effect, pending: Pending) -> OpId {
        self.next_op += 1;
        let op = OpId(self.next_op);
        self.pending.insert(op, pending);
        self.out.push_back(Output::Effect { op, effect });
        op
    }

    /// Starts a question to the index. When too many are open, the answer is "busy", and the initiator asks again.
    fn begin_effect(&mut self, effect: Effect, pending: Pending) {
        if self.pending.len() < limits::LOOKUPS {
            self.start(effect, pending);
            return;
        }
        let busy = Answer::Busy(self.config.late);
        match pending {
            Pending::Put { from, request, .. } => self.bid(from, request.txn, request.round, busy),
            Pending::Get { from, txn, round, .. } => self.bid(from, txn, round, busy),
            Pending::List { from, txn } | Pending::Discard { from, txn, .. } | Pending::Usage { from, txn } => {
                self.bid(from, txn, 0, busy);
            }
            Pending::Probe { from, txn } | Pending::Surplus { from, txn, .. } => {
                self.deliver(from, &Message::Ack { txn, ack: Ack::Pending });
            }
            // A steward finds it again.
            Pending::Restore { handle } => self.restore_looked_up(handle, None),
            Pending::Missing => self.missing_listed(None),
            // A copy that was granted a window is written once more, if it is here. An initiator that seeks asks directly after a while,
            // and a steward asks again. Else only suspicions come here: the background looks at the same copy in its turn.
            Pending::Granted { .. }
            | Pending::Seek { .. }
            | Pending::Write { .. }
            | Pending::Read { .. }
            | Pending::Fetched { .. }
            | Pending::RestoreRead { .. }
            | Pending::Census { .. }
            | Pending::Fill { .. }
            | Pending::Scrub { .. } => self.event(Event::Ignored(IgnoredReason::Busy)),
        }
    }

    /// Lets the disk look at one copy, which drops it if it is damaged: until then it counts as one.
    fn suspect(&mut self, id: &ChunkId) {
        let effect = Effect::Scrub { after: predecessor(id), max_bytes: 1 };
        self.begin_effect(effect, Pending::Scrub { background: false, begun: self.now });
    }

    fn message(&mut self, datagram: &Bytes) {
        let Some((head, message)) = decode_message(datagram) else {
            return self.event(Event::Ignored(IgnoredReason::Invalid));
        };
        self.hear(&head, &message);
        let from = head.from;
        if from == self.setup.id {
            // What it told its group itself, by multicast.
            return;
        }
        if head.epoch < self.setup.map.epoch
            && let Some((txn, round)) = self.needs_this_map(&message)
        {
            return self.bid(from, txn, round, Answer::Stale);
        }
        match message {
            // With another map others may be in the group, or other groups.
            Message::Leading(_) if head.epoch != self.setup.map.epoch => {
                self.event(Event::Ignored(IgnoredReason::OtherMap))
            }
            Message::Leading(message) => self.leading(from, message),
            Message::PutRequest(request) => self.put_request(from, request),
            Message::GetRequest { txn, round, id, unreserved, earliest } => {
                let any = id.code().is_some() && id == id.whole();
                let pending = Pending::Get { from, txn, round, unreserved, earliest, any };
                self.begin_effect(Effect::Lookup { id, promise: None }, pending);
            }
            Message::Accept { txn, round, granted } => self.accept(from, txn, round, &granted),
            Message::Repair(repair) if self.servings.contains_key(&repair.txn) || self.restoring.is_none() => {
                self.repair_asked(from, &repair);
            }
            Message::Repair(_) => self.pass_to_initiator(datagram),
            Message::Probe { txn, id, wanted } => self.probe(from, txn, id, wanted),
            Message::Suspect { id } => self.suspect(&id),
            Message::List { txn, prefix, after } => {
                let effect = Effect::List { prefix, after, limit: limits::LISTED };
                self.begin_effect(effect, Pending::List { from, txn });
            }
            Message::Ping { txn } => {
                self.send(from, &Message::Pong { txn, free: self.free(), chunks: self.setup.chunks })
            }
            Message::Mark { txn } => self.mark(from, head.epoch, txn),
            Message::Discard(discard) => self.discard(from, head.epoch, discard),
            Message::Usage { txn } => self.begin_effect(Effect::Usage, Pending::Usage { from, txn }),
            Message::Health { txn } => self.report_health(from, txn),
            Message::MapRequest(request) => self.send_map(from, head.epoch, request),
            Message::MapPart(part) => self.map_part(from, head.epoch, &part),
            Message::Census(request) => self.census_asked(from, head.epoch, request),
            Message::Counted { txn, holding } => self.counted(from, head.epoch, txn, &holding),
            Message::Restore { txn, id, wanted, holders } => self.restore(from, txn, (id, wanted), holders, None),
            Message::Fill { txn } => self.fill_asked(from, txn),
            Message::Filled { txn, fill } => self.filled(from, txn, fill),
            Message::Move { txn, id, wanted, to } => self.move_copy(from, head.epoch, txn, (id, wanted), to),
            Message::Surplus { txn, id, wanted, note } => self.surplus(from, head.epoch, (txn, id, wanted), note),
            Message::Noted { txn, note } => self.noted(from, txn, note),
            Message::Presence { here } => self.presence(from, here, datagram),
            Message::Gone { id } => self.copy_gone(head.epoch, &id),
            Message::Ack { txn, ack } if self.order_acked(from, txn, ack) => {}
            Message::Pong { txn, .. } if self.is_there(from, txn) => {}
            Message::Listed { txn, ids, .. } if self.listed(from, txn, &ids) => {}
            Message::Bid(bid) if self.missing_put_off(from, &bid) => {}
            Message::Bid(_) | Message::Ack { .. } | Message::Pong { .. } => self.pass_to_initiator(datagram),
            Message::Listed { .. } => self.event(Event::Ignored(IgnoredReason::Late)),
            Message::Marked { .. }
            | Message::Discarded { .. }
            | Message::HealthReport { .. }
            | Message::Aggregating(_)
            | Message::Used { .. } => {
                self.event(Event::Ignored(IgnoredReason::Invalid));
            }
        }
    }

    /// The transaction and the round of what is not answered to a node that uses an older map: it asks where that map
    /// has a chunk, and counts on copies there.
    fn needs_this_map(&self, message: &Message) -> Option<(TxnId, u8)> {
        let bug = self.setup.bug;
        match message {
            Message::PutRequest(request) if bug != Some(Bug::TakeOldMap) => Some((request.txn, request.round)),
            Message::Probe { txn, .. } if bug != Some(Bug::VouchOldMap) => Some((*txn, 0)),
            Message::GetRequest { txn, round, .. } => Some((*txn, *round)),
            Message::Leading(Leading::Request(request)) => Some((request.txn, request.round)),
            Message::List { txn, .. } => Some((*txn, 0)),
            _ => None,
        }
    }

    fn accept(&mut self, from: NodeId, txn: TxnId, round: u8, granted: &[Granted]) {
        if granted.is_empty() {
            self.lead.release(txn);
        }
        let mine = granted.iter().find(|g| g.target == self.setup.id).map(|g| g.offset);
        let has_window = |r: &Reservation| r.stage != Stage::Resting || mine.is_none();
        if self.reservations.get(&txn).is_some_and(has_window) {
            self.put_accepted(txn, round, mine);
        } else if let Some(serving) = self.serving_of(txn) {
            self.get_accepted(serving, round, mine);
        } else if mine.is_some() && self.finished.get(txn).is_some() {
            self.event(Event::Ignored(IgnoredReason::Late));
        } else if mine.is_some() {
            // The window expired, or went back, before it was accepted: say so at once, rather than let the transfer run late.
            self.send(from, &Message::Ack { txn, ack: Ack::Unknown });
        }
        // What else comes here was sent to all that were asked, and names others.
    }

    fn done(&mut self, op: OpId, completion: Completion) {
        let Some(pending) = self.pending.remove(&op) else {
            return;
        };
        match (pending, completion) {
            (Pending::Put { from, request, arrived }, Completion::Found(found)) => {
                self.put_looked_up(from, request, arrived, found);
            }
            (Pending::Get { from, txn, round, unreserved, earliest, any }, Completion::Found(found)) => match found {
                Some(held) => self.offer_get(from, txn, round, (held, any), unreserved, earliest),
                None => self.bid(from, txn, round, Answer::NotHere),
            },
            (Pending::Granted { from, txn, round }, Completion::Found(found)) => {
                if found.is_some() {
                    self.granted_and_held(from, txn, round);
                }
            }
            (Pending::Seek { from, seek }, Completion::Found(found)) => {
                if let Some(held) = found {
                    self.sought(from, &seek, held);
                }
            }
            (Pending::Probe { from, txn }, Completion::Found(found)) => {
                let ack = found.map_or(Ack::Unknown, |held| Ack::of_held(&held.id));
                self.deliver(from, &Message::Ack { txn, ack });
            }
            (Pending::List { from, txn }, Completion::Listed { ids, more }) => {
                self.send(from, &Message::Listed { txn, ids, more });
            }
            (Pending::Missing, Completion::Listed { ids, more }) => self.missing_listed(Some((ids, more))),
            (Pending::Usage { from, txn }, Completion::Used(usage)) => {
                self.send(from, &Message::Used { txn, usage });
            }
            (Pending::Discard { from, txn, page, judged }, Completion::Discarded { dropped, bytes, result }) => {
                let judged = judged.iter().enumerate().filter(|(nth, _)| dropped >> nth & 1 > 0);
                let dropped = judged.fold(0, |bits, (_, (place, _))| bits | 1 << place);
                self.discarded(from, txn, page, dropped, bytes, result);
            }
            (Pending::Write { txn, id, size, begun }, Completion::Written { result, free }) => {
                self.setup.free = free;
                self.written(txn, id, size, begun, result);
            }
            (Pending::Read { txn, begun }, Completion::Read(result)) => self.read(txn, begun, result),
            (Pending::Census { from, txn, epoch }, Completion::Counted(holding)) => {
                self.census_counted(from, txn, epoch, holding);
            }
            (Pending::Fill { from, txn }, Completion::Used(usage)) => self.fill_known(from, txn, &usage),
            (Pending::Surplus { from, txn, id }, Completion::Discarded { dropped, bytes, result }) => {
                self.let_go((from, txn, id), dropped > 0, bytes, result);
            }
            (Pending::Fetched { op }, completion) => self.fetched(op, completion),
            (Pending::Restore { handle }, Completion::Found(found)) => self.restore_looked_up(handle, found),
            (Pending::RestoreRead { handle, begun }, Completion::Read(result)) => {
                self.restore_read(handle, begun, result)
            }
            (Pending::Scrub { background, begun }, Completion::Scrubbed { next, bytes: _, bad, result }) => {
                if background {
                    self.scrub_cursor = next;
                    self.scrub_at = self.now + self.config.scrub_interval;
                    self.scrub_took = self.now.since(begun);
                    self.scrub_until = self.now;
                }
                for id in bad {
                    self.setup.chunks = self.setup.chunks.saturating_sub(1);
                    self.event(Event::Corrupt { id });
                    self.say_gone(id);
                }
                self.note_failure(result);
            }
            (pending, completion) => panic!("{completion:?} does not answer {pending:?}"),
        }
    }

    /// After a failed write the disk takes no more.
    fn note_failure(&mut self, result: Result<(), WriteFailure>) {
        if result == Err(WriteFailure::Disk) && !core::mem::replace(&mut self.disk_failed, true) {
            self.event(Event::DiskFailed);
        }
    }

    /// Bytes that new chunks may take, less what is promised already: none on a disk that failed.
    fn free(&self) -> u64 {
        if self.disk_failed {
            return 0;
        }
        self.setup.free.saturating_sub(self.held())
    }

    fn wake(&mut self) {
        self.inward.prune(self.now);
        self.leftover.prune(self.now);
        self.outward.prune(self.now);
        self.outward_leftover.prune(self.now);
        self.check_reservations();
        self.pump_servings();
        self.wake_leader();
        self.fetch_map_on();
        self.wake_census();
        self.maintain_on();
        self.wake_restoring();
        self.wake_watch();
        self.wake_missing();
        if self.now >= self.scrub_at {
            self.scrub();
        }
    }

    /// Verifies a stretch of what is on disk when nothing else goes on; on a target that is always busy, after some looks
    /// for such a moment, in its turn with what is. It is short, and bids say what it takes.
    fn scrub(&mut self) {
        if self.in_progress() > 0 && self.scrub_attempts < SCRUB_ATTEMPTS {
            self.scrub_attempts += 1;
            let pause = self.config.scrub_interval.div(u64::from(SCRUB_ATTEMPTS));
            self.scrub_at = self.now + pause.max(Span::from_nanos(1));
            return;
        }
        self.scrub_attempts = 0;
        self.scrub_at = Instant::FAR;
        self.scrub_until = self.now + self.scrub_took;
        let effect = Effect::Scrub { after: self.scrub_cursor, max_bytes: self.config.scrub_bytes };
        self.start(effect, Pending::Scrub { background: true, begun: self.now });
    }
}

impl Machine for Target {
    type Request = Request;
    type Event = Event;

    fn handle_input(&mut self, now: Instant, input: Input<Request>) {
        assert!(now >= self.now, "time went backwards, from {} to {now}", self.now);
        (self.now, self.arrived) = (now, now);
        match input {
            Input::Wake => self.wake(),
            Input::Datagram { bytes, arrived } => {
                self.arrived = arrived.min(now);
                if !is_data(&bytes) {
                    self.message(&bytes);
                } else if let Some((header, payload)) = DataHeader::decode(&bytes) {
                    self.data(&header, &payload);
                } else {
                    self.event(Event::Ignored(IgnoredReason::Invalid));
                }
            }
            Input::Payload { header, payload, arrived } => {
                self.arrived = arrived.min(now);
                self.data(&header, &payload);
            }
            Input::Done { op, completion } => {
                self.done(op, completion);
                self.maintain_on();
            }
            Input::Request(Request::Map(map)) => self.new_map(map),
            Input::Request(Request::Free(free)) => self.setup.free = free,
            Input::Request(Request::Presence { here }) => self.say_presence(here),
        }
    }

    fn outputs(&mut self) -> &mut VecDeque<Output<Event>> {
        &mut self.out
    }

    fn prefetch(&self) -> u64 {
        self.next_op
            ^ self.scrub_at.as_nanos()
            ^ self.setup.free
            ^ self.marks.prefetch()
            ^ self.servings.len() as u64
            ^ self.pending.len() as u64
            ^ self.reservations.len() as u64
            ^ self.lateness.smallest().as_nanos()
            ^ self.link.prefetch()
            ^ self.scrub_until.as_nanos()
            ^ u64::from(self.busy.is_some())
            ^ self.finished.len() as u64
            ^ self.maintenance.prefetch()
            ^ u64::from(self.map_fetch.next_deadline().is_some())
    }

    fn prefetch_behind(&self) -> u64 {
        let copies = self.reservations.values().fold(0, |sum, copy| sum ^ copy.prefetch());
        let pending = self.pending.iter().fold(0, |sum, (op, _)| sum ^ op.0);
        copies ^ pending ^ self.inward.prefetch() ^ self.writes.prefetch() ^ self.finished.prefetch()
    }

    fn next_deadline(&self) -> Option<Deadline> {
        debug_assert_eq!(self.lead_due, self.lead.next_deadline());
        let receive = self.reservations.values().filter_map(Reservation::next_deadline).min();
        let serve = self.servings.values().filter_map(Serving::next_deadline).min();
        let scrub = (self.scrub_at < Instant::FAR).then_some(self.scrub_at);
        let fetch = self.map_fetch.next_deadline();
        let (census, restoring) = (self.census.next_deadline(&self.config), self.restoring_due());
        [
            (receive, "reservation"),
            (serve, "serving"),
            (self.lead_due, "leader"),
            (scrub, "scrub"),
            (fetch, "a map"),
            (census, "census"),
            (restoring, "restoring"),
            (self.maintenance_due(), "an idle disk"),
            (self.watch.next_deadline(self.config.watch_interval), "watch"),
            (self.missing.next_deadline(&self.config), "copies that are missing"),
        ]
        .into_iter()
        .filter_map(|(at, why)| at.map(|at| Deadline { at, why }))
        .min_by_key(|deadline| deadline.at)
    }
}

/// Whether round `a` of a transaction comes after `b`: rounds count on from 0 after 255.
const fn is_newer(a: u8, b: u8) -> bool {
    a != b && a.wrapping_sub(b) < 128
}

/// The greatest possible id before `id`, so that a scrub "after" it begins with `id`.
fn predecessor(id: &ChunkId) -> Option<ChunkId> {
    let mut bytes = id.encode();
    let last = bytes.iter().rposition(|b| *b > 0)?;
    bytes[last] -= 1;
    bytes[last + 1..].fill(u8::MAX);
    ChunkId::decode(&bytes)
}
