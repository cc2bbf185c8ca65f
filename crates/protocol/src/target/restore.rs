//! Chunks with too few copies, of which this target has one: it puts them, as any initiator does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::{
    Ack, Bug, ChunkId, Effect, Event, Held, IgnoredReason, Message, NodeId, Output, Pending, ReadFailure, Target,
    TxnId, Window,
};
use crate::config::Config;
use crate::id::OpId;
use crate::initiator::{self, GetError, Initiator, Payload, PutError};
use crate::limits;
use crate::machine::{Body, Completion, Input, Machine};
use crate::redundancy::{Piece, Wanted};
use crate::steward;
use crate::time::{Instant, Span};
use crate::transport::{Selection, Transport};
use crate::wire::HealthReport;

/// Of the [chunks that it puts](limits::RESTORES), those that only move to emptier targets, as there are enough copies.
const MOVES: usize = 4;

/// The initiator that puts what this target has, and what it was told to put.
#[derive(Debug)]
pub(super) struct Restoring {
    initiator: Initiator,
    jobs: BTreeMap<u64, Job>,
    next: u64,
    /// Those that are to be read, and the size of the one that is being read.
    to_read: VecDeque<(u64, Held)>,
    reading: Option<u32>,
}

/// What was made since this target was started.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Made {
    chunks: u64,
    bytes: u64,
    moved: u64,
    moved_bytes: u64,
}

/// A chunk that is to be put.
#[derive(Debug)]
struct Job {
    id: ChunkId,
    wanted: Wanted,
    since: Instant,
    /// The steward that hears how it ended, and to which question that is the answer.
    steward: NodeId,
    txn: TxnId,
    /// Its bytes, once they are read; of a coded chunk, once enough of it is fetched, those of all pieces.
    payload: Option<Payload>,
    /// Which piece is here, and which targets have others.
    piece: Piece,
    holders: Vec<NodeId>,
    /// With how many copies it is done, as no more can be had.
    most: u8,
    /// The member that is to have it, when there are enough copies.
    to: Option<NodeId>,
}

impl Job {
    fn request(&self, handle: u64) -> Option<initiator::Request> {
        let Self { id, piece, wanted, most, to, .. } = *self;
        let payload = self.payload.clone()?;
        Some(initiator::Request::Restore { handle, id, payload, piece, wanted, most, to })
    }

    /// Bytes of each copy or piece that is put.
    fn size(&self) -> u64 {
        self.payload.as_ref().map_or(0, Payload::size) as u64
    }
}

impl Restoring {
    fn job_of(&mut self, id: &ChunkId) -> Option<&mut Job> {
        self.jobs.values_mut().find(|job| job.id == *id)
    }

    fn moving(&self) -> usize {
        self.jobs.values().filter(|job| job.to.is_some()).count()
    }

    /// Whether there is room for another one. What has too few copies goes before what only moves.
    fn has_place(&self, moves: bool) -> bool {
        self.jobs.len() < limits::RESTORES && (!moves || self.moving() < MOVES)
    }
}

impl Target {
    /// Whether a chunk is being put from here, as there are too few copies of it, or to move one. It stays until that is over.
    #[must_use]
    pub fn is_restoring(&self, id: &ChunkId) -> bool {
        self.restoring.as_ref().is_some_and(|restoring| restoring.jobs.values().any(|job| job.id.whole() == id.whole()))
    }

    /// A steward says that a chunk that is here has too few copies, or is to have one more in a certain place.
    pub(super) fn restore(
        &mut self,
        from: NodeId,
        txn: TxnId,
        (id, wanted): (ChunkId, Wanted),
        holders: Vec<NodeId>,
        to: Option<NodeId>,
    ) {
        let restoring = match &mut self.restoring {
            Some(restoring) => restoring,
            none => none.insert(Box::new(Restoring::new(&self.setup, &self.config, self.secrets.next_u64()))),
        };
        let is_new = match restoring.job_of(&id) {
            Some(job) => {
                // Another order waits until this one is done.
                if job.to == to {
                    (job.steward, job.txn) = (from, txn);
                }
                false
            }
            None => restoring.has_place(to.is_some()),
        };
        // It may be gone in a moment; if not, the steward says so again.
        let is_new = is_new && !self.is_judging(&id);
        self.deliver(from, &Message::Ack { txn, ack: Ack::Pending });
        let Some(restoring) = self.restoring.as_mut().filter(|_| is_new) else { return };
        let handle = restoring.next;
        restoring.next += 1;
        let (since, payload, piece, most) = (self.now, None, Piece::default(), u8::MAX);
        restoring.jobs.insert(handle, Job { id, wanted, since, steward: from, txn, payload, piece, holders, most, to });
        self.begin_effect(Effect::Lookup { id, promise: None }, Pending::Restore { handle });
    }

    /// Whether it is here is known.
    pub(super) fn restore_looked_up(&mut self, handle: u64, found: Option<Held>) {
        match found {
            Some(held) => {
                self.restoring.iter_mut().for_each(|restoring| restoring.to_read.push_back((handle, held)));
                self.maintain_on();
            }
            None => self.restored(handle, Ack::Unknown),
        }
    }

    /// Whether a chunk is to be read that is to be put, and none is being read.
    pub(super) fn has_to_read(&self) -> bool {
        self.restoring.as_ref().is_some_and(|restoring| restoring.reading.is_none() && !restoring.to_read.is_empty())
    }

    /// Reads the next of the chunks that are to be put, one after the other. How long that should take.
    pub(super) fn read_next(&mut self) -> Span {
        let now = self.now;
        let Some(restoring) = self.restoring.as_mut() else { return Span::ZERO };
        while let Some((handle, Held { id, size, .. })) = restoring.to_read.pop_front() {
            let Some(job) = restoring.jobs.get_mut(&handle) else { continue };
            job.piece = id.piece().unwrap_or_default();
            restoring.reading = Some(size);
            self.start(Effect::Read { id }, Pending::RestoreRead { handle, begun: now });
            return self.reads.each(now, size);
        }
        Span::ZERO
    }

    /// How long the disk still reads a chunk that is to be put.
    pub(super) fn restore_reads_ahead(&self) -> Span {
        self.restore_reads().map_or(Span::ZERO, |size| self.reads.each(self.now, size))
    }

    /// What the disk reads of chunks that are to be put: its size.
    pub(super) fn restore_reads(&self) -> Option<u32> {
        self.restoring.as_ref()?.reading
    }

    pub(super) fn restore_read(&mut self, handle: u64, begun: Instant, result: Result<Bytes, ReadFailure>) {
        match &result {
            Ok(payload) => self.reads.sample(self.now, payload.len() as u32, begun),
            Err(_) => self.reads.passed(self.now),
        }
        self.restoring.iter_mut().for_each(|restoring| restoring.reading = None);
        let Some(job) = self.restoring.as_mut().and_then(|restoring| restoring.jobs.get_mut(&handle)) else { return };
        match result {
            Ok(piece) if job.id.code().is_some() && job.id.piece().is_none() => {
                let holders = core::mem::take(&mut job.holders);
                let request = initiator::Request::Pieces { handle, id: job.id, holders, here: vec![piece] };
                self.initiate(Input::Request(request));
            }
            Ok(payload) => {
                job.payload = Some(Payload::Copies(payload));
                let (request, order) = (job.request(handle), (job.steward, job.txn, job.id));
                if job.to.is_some() && self.setup.bug == Some(Bug::Steward(steward::Bug::DropBeforeDurable)) {
                    self.drop_at_once(order);
                }
                if let Some(request) = request {
                    self.initiate(Input::Request(request));
                }
            }
            Err(failure) => {
                let id = job.id.of_piece(job.piece);
                if failure == ReadFailure::Corrupt {
                    self.suspect(&id);
                }
                self.restored(handle, Ack::DiskFailed);
            }
        }
    }

    /// All pieces of a coded chunk are here, or not enough of them can be had.
    fn restore_gathered(&mut self, handle: u64, result: Result<Vec<Bytes>, GetError>) {
        let Some(job) = self.restoring.as_mut().and_then(|restoring| restoring.jobs.get_mut(&handle)) else { return };
        job.payload = result.ok().map(Payload::Pieces);
        match job.request(handle) {
            Some(request) => drop(self.initiate(Input::Request(request))),
            // A steward finds it again.
            None => self.restored(handle, Ack::DiskFailed),
        }
    }

    /// A job is over.
    fn restored(&mut self, handle: u64, ack: Ack) {
        let Some(job) = self.restoring.as_mut().and_then(|restoring| restoring.jobs.remove(&handle)) else { return };
        self.deliver(job.steward, &Message::Ack { txn: job.txn, ack });
    }

    /// What is known of the groups of which this target is the steward, and what it made again.
    pub(super) fn report_health(&mut self, to: NodeId, txn: TxnId) {
        let groups = self.health().take(limits::STEWARDED).collect();
        let jobs = self.restoring.as_ref().map_or(0, |restoring| restoring.jobs.len()) as u16;
        let moving = self.restoring.as_ref().map_or(0, |restoring| restoring.moving()) as u16;
        let restoring = jobs - moving;
        let epoch = self.setup.map.epoch;
        let silent: BTreeMap<NodeId, Instant> = self.silent().collect();
        let silent_for = |id: NodeId| (id, silent.get(&id).map(|since| self.now.since(*since)));
        let watched = self.watched().take(limits::WATCHED).map(silent_for).collect();
        let Made { chunks: restored, bytes: restored_bytes, moved, moved_bytes } = self.made;
        let nowhere = self.nowhere();
        let report = HealthReport {
            epoch,
            groups,
            restoring,
            restored,
            restored_bytes,
            watched,
            moving,
            moved,
            moved_bytes,
            nowhere,
        };
        self.send(to, &Message::HealthReport { txn, report });
    }

    /// An answer to what this target put.
    pub(super) fn pass_to_initiator(&mut self, datagram: &Bytes) {
        let arrived = self.arrived;
        if !self.initiate(Input::Datagram { bytes: datagram.clone(), arrived }) {
            self.event(Event::Ignored(IgnoredReason::Invalid));
        }
    }

    /// Whether the initiator of this target has this transaction under way.
    pub(super) fn fetches(&self, txn: TxnId) -> bool {
        self.restoring.as_ref().is_some_and(|restoring| restoring.initiator.has(txn))
    }

    /// What the initiator of this target wanted is done.
    pub(super) fn fetched(&mut self, op: OpId, completion: Completion) {
        self.initiate(Input::Done { op, completion });
    }

    /// Gives the initiator of this target something to do. Whether there is one.
    pub(super) fn initiate(&mut self, input: Input<initiator::Request>) -> bool {
        self.with_initiator(|initiator, now| initiator.handle_input(now, input))
    }

    /// A reader has the port from `start` to `end`: what is put then gives way, if it can.
    pub(super) fn make_way(&mut self, start: Instant, end: Instant) {
        let meets = |w: &&Window| w.start < end && start < w.end;
        let puts: Vec<TxnId> = self.outward_leftover.windows().filter(meets).map(|w| w.txn).collect();
        if !puts.is_empty() {
            self.with_initiator(|initiator, now| initiator.give_way(now, &puts));
        }
    }

    fn with_initiator(&mut self, act: impl FnOnce(&mut Initiator, Instant)) -> bool {
        let Some(restoring) = self.restoring.as_mut() else { return false };
        // One port: what it sends to readers, and what it puts; what others put here, and what it fetches.
        let (outward, leftover) = (&mut self.outward, &mut self.outward_leftover);
        restoring.initiator.take_port(self.now, outward, leftover, &mut self.inward);
        act(&mut restoring.initiator, self.now);
        restoring.initiator.share_port(self.now, outward, leftover, &mut self.inward);
        let (mut ended, mut gathered, mut effects, mut sent) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for output in restoring.initiator.outputs().drain(..) {
            match output {
                Output::Transmit(transmit) => {
                    if let Body::Data(run) = &transmit.body {
                        sent += run.payload.len() as u64;
                    }
                    self.out.push_back(Output::Transmit(transmit));
                }
                Output::Event(initiator::Event::Put { handle, result }) => ended.push((handle, result)),
                Output::Event(initiator::Event::Pieces { handle, result }) => gathered.push((handle, result)),
                Output::Effect { op, effect } => effects.push((op, effect)),
                // What an initiator reports besides is for its own metrics.
                Output::Event(_) | Output::Idle(_) => {}
            }
        }
        if sent > 0 {
            self.has_sent(sent);
        }
        for (op, effect) in effects {
            self.start(effect, Pending::Fetched { op });
        }
        for (handle, result) in gathered {
            self.restore_gathered(handle, result);
        }
        for (handle, result) in ended {
            self.restore_ended(handle, result.err());
        }
        true
    }

    /// What lacks two copies gets one, where no more can be had.
    fn restore_ended(&mut self, handle: u64, failed: Option<PutError>) {
        let Some(job) = self.restoring.as_mut().and_then(|restoring| restoring.jobs.get_mut(&handle)) else { return };
        match failed {
            None if job.to.is_some() => {
                let (id, bytes) = (job.id, job.size());
                self.made.moved += 1;
                self.made.moved_bytes += bytes;
                self.leaving.leave(id, bytes, self.now);
                self.event(Event::Moved { id, bytes });
                self.restored(handle, Ack::Durable);
            }
            None => {
                let ack = if job.most == u8::MAX { Ack::Durable } else { Ack::NoSpace };
                let (id, bytes, since) = (job.id, job.size(), job.since);
                self.made.chunks += 1;
                self.made.bytes += bytes;
                self.event(Event::Restored { id, since });
                self.restored(handle, ack);
            }
            Some(PutError::TooFewCopies { domains, possible, want, .. })
                if domains < possible && possible < usize::from(want) =>
            {
                job.most = possible as u8;
                let request = job.request(handle);
                if let Some(request) = request {
                    self.initiate(Input::Request(request));
                }
            }
            Some(_) => self.restored(handle, Ack::NoSpace),
        }
    }

    pub(super) fn wake_restoring(&mut self) {
        let due = self.restoring.as_ref().and_then(|restoring| restoring.initiator.next_deadline());
        if due.is_some_and(|due| due.at <= self.now) {
            self.initiate(Input::Wake);
        }
    }

    pub(super) fn restoring_due(&self) -> Option<Instant> {
        let restoring = self.restoring.as_ref()?;
        restoring.initiator.next_deadline().map(|deadline| deadline.at)
    }
}

impl Restoring {
    fn new(setup: &super::Setup, config: &Arc<Config>, seed: u64) -> Self {
        // It asks the group itself: the leader may be this target.
        let transport = config.transport;
        let selection = if transport.selection == Selection::Leader { Selection::Bids } else { transport.selection };
        let config = Config {
            transport: Transport { selection, ..transport },
            depth: limits::RESTORES,
            ..Config::clone(config)
        };
        let multicast = config.multicast;
        let initiator = Initiator::new(setup.id, setup.map.clone(), config, seed).with_multicast(multicast);
        Self { initiator, jobs: BTreeMap::new(), next: 1, to_read: VecDeque::new(), reading: None }
    }
}
