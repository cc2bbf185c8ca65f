//! The initiator of the conventional store: copies go to targets that a hash names, one after another, frame by frame
//! at the rate that the target sets (UCH-CCP) or that congestion allows (UCH-AIMD). The rivals' initiators differ only in
//! where copies go.

use std::collections::VecDeque;

use bytes::Bytes;
use protocol::id::{NodeId, TxnId};
use protocol::machine::{Deadline, Destination, Input, Output};
use protocol::rng::Rng;
use protocol::time::{Instant, Span};

use crate::config::{Config, Protocol};
use crate::rivals::{Chooser, Placed};
use crate::unicast_target::STEP;
use crate::wire::{Load, Pdu};
use crate::{Context, Event, Members, Request, txn_of};

/// Bits without a ding after which UCH-AIMD increases its rate.
const INCREASE_AFTER: u64 = 74_400;

/// Bytes that may leave at once before the link's rate binds.
const BURST: u32 = 9_300;

/// A put under way.
#[derive(Debug)]
struct Put {
    handle: u64,
    asked: Instant,
    payload: Bytes,
    /// Where the copies go; nowhere while answers are awaited.
    targets: Vec<NodeId>,
    /// Whom it asked how busy they are, and what they said.
    probed: Vec<(NodeId, Option<Load>)>,
    /// When the target of each copy was asked to take it.
    began: Vec<Instant>,
    /// The copy that is being sent, from 0.
    copy: usize,
    acked: usize,
    /// First transaction; each copy has one of its own.
    first: u64,
    flow: Flow,
}

/// The copy that is being sent.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// Bits per second; zero until the target has answered.
    rate: u64,
    begun: bool,
    sent: u32,
    /// When the frame that is on the wire is sent wholly, and its bytes.
    frame: Option<(Instant, u32)>,
    undinged: u64,
}

const IDLE: Flow = Flow { rate: 0, begun: false, sent: 0, frame: None, undinged: 0 };

/// The machine.
#[derive(Debug)]
pub struct Initiator {
    context: Context<Event>,
    rng: Rng,
    members: Members,
    last: Vec<NodeId>,
    /// Who chooses instead of the hash.
    rival: Option<Chooser>,
    count: u64,
    puts: Vec<Put>,
    /// When the link has carried all that was begun.
    link_due: Instant,
    waiting: VecDeque<(Instant, Request)>,
}

impl Initiator {
    pub(crate) fn new(id: NodeId, members: Members, config: Config, seed: u64) -> Self {
        let rng = Rng::new(seed).fork(u64::from(id.0));
        let is_rival = Protocol::RIVALS.contains(&config.protocol);
        Self {
            rival: is_rival.then(|| Chooser::new(&config, rng.clone())),
            context: Context::new(id, config),
            rng,
            members,
            last: Vec::new(),
            count: 0,
            puts: Vec::new(),
            link_due: Instant::ZERO,
            waiting: VecDeque::new(),
        }
    }

    pub(crate) fn handle_input(&mut self, now: Instant, input: Input<Request>) {
        self.context.advance(now);
        match input {
            Input::Request(request) => self.waiting.push_back((now, request)),
            Input::Datagram { bytes, .. } => match Pdu::decode(&bytes) {
                Some(Pdu::Begin { txn, rate }) => self.rate(txn, rate, true),
                Some(Pdu::Rate { txn, rate }) => self.rate(txn, rate, false),
                Some(Pdu::Ding { txn }) => self.ding(txn),
                Some(Pdu::Ack { txn }) => self.ack(txn, None),
                Some(Pdu::AckBusy { txn, load }) => self.ack(txn, Some(load)),
                Some(Pdu::Busy { txn, from, load }) => self.answered(txn, from, load),
                _ => {}
            },
            Input::Wake | Input::Done { .. } | Input::Payload { .. } => {}
        }
        while self.puts.len() < self.context.config.depth.max(1)
            && let Some((asked, request)) = self.waiting.pop_front()
        {
            self.begin(asked, request);
        }
        for at in 0..self.puts.len() {
            self.send(at);
        }
    }

    pub(crate) fn outputs(&mut self) -> &mut VecDeque<Output<Event>> {
        &mut self.context.out
    }

    pub(crate) fn next_deadline(&self) -> Option<Deadline> {
        let next = self.puts.iter().filter_map(|put| put.flow.frame.map(|(at, _)| at)).min();
        next.map(|at| Deadline { at, why: "frame" })
    }

    /// Hashed placement is as good as chance; a chunk does not follow another to the same targets.
    fn choose_targets(&mut self) -> Vec<NodeId> {
        let copies = usize::from(self.context.config.copies);
        let targets = &self.members.targets;
        let avoid = targets.len() >= 2 * copies;
        let mut chosen: Vec<NodeId> = Vec::with_capacity(copies);
        while chosen.len() < copies.min(targets.len()) {
            let target = targets[self.rng.below(targets.len() as u64) as usize];
            let used = chosen.contains(&target) || avoid && self.last.contains(&target);
            if !used {
                chosen.push(target);
            }
        }
        self.last.clone_from(&chosen);
        chosen
    }

    fn begin(&mut self, asked: Instant, request: Request) {
        let size = request.payload.len() as u32;
        let Placed { targets, probes } = match &mut self.rival {
            Some(rival) => rival.choose_targets(&self.members, self.context.timing(size).disk),
            None => Placed { targets: self.choose_targets(), probes: Vec::new() },
        };
        let first = self.count;
        self.count += u64::from(self.context.config.copies);
        let (txn, from) = (txn_of(self.context.id, first), self.context.id);
        for target in &probes {
            self.context.send(Destination::Node(*target), &Pdu::Probe { txn, from, size });
        }
        let waits = targets.is_empty();
        let probed = if waits { probes.into_iter().map(|target| (target, None)).collect() } else { Vec::new() };
        let (handle, payload, began) = (request.handle, request.payload, Vec::new());
        self.puts.push(Put { handle, asked, payload, targets, probed, began, copy: 0, acked: 0, first, flow: IDLE });
        if !waits {
            self.ask(self.puts.len() - 1);
        }
    }

    /// What a target says of itself. The last answer that a put waits for lets it begin.
    fn answered(&mut self, txn: TxnId, from: NodeId, load: Load) {
        let Some(rival) = &mut self.rival else { return };
        rival.answered(from, load);
        let waiting = |put: &Put| put.targets.is_empty() && txn_of(self.context.id, put.first) == txn;
        let Some(at) = self.puts.iter().position(waiting) else { return };
        let put = &mut self.puts[at];
        if let Some(place) = put.probed.iter_mut().find(|(target, _)| *target == from) {
            place.1 = Some(load);
        }
        let loads: Vec<(NodeId, Load)> =
            put.probed.iter().filter_map(|(target, load)| Some((*target, (*load)?))).collect();
        if loads.len() == put.probed.len() {
            put.targets = rival.choose(&loads);
            self.ask(at);
        }
    }

    fn ask(&mut self, at: usize) {
        let put = &mut self.puts[at];
        put.began.push(self.context.now);
        let (txn, to) = (put.txn(self.context.id), Destination::Node(put.targets[put.copy]));
        let size = put.payload.len() as u32;
        self.context.send(to, &Pdu::Request { txn, from: self.context.id, round: 0, size, earliest: 0 });
    }

    fn find(&self, txn: TxnId) -> Option<usize> {
        self.puts.iter().position(|put| put.has_more() && put.txn(self.context.id) == txn)
    }

    /// A new rate. One that comes before the delayed permission to begin is kept, and newer than the permission's.
    fn rate(&mut self, txn: TxnId, rate: u64, begin: bool) {
        let Some(at) = self.find(txn) else { return };
        let flow = &mut self.puts[at].flow;
        if !begin || flow.rate == 0 {
            flow.rate = rate;
        }
        flow.begun |= begin;
    }

    fn ding(&mut self, txn: TxnId) {
        let Some(at) = self.find(txn) else { return };
        let flow = &mut self.puts[at].flow;
        flow.rate = (flow.rate / 2).max(STEP);
        flow.undinged = 0;
    }

    /// Hands over the frame that is sent wholly, and begins the next. When a copy is sent, the next copy's target is
    /// asked, without waiting for the acknowledgement.
    fn send(&mut self, at: usize) {
        let (now, link) = (self.context.now, self.context.config.link);
        let Some((end, len)) = self.puts[at].flow.frame else {
            return self.next_frame(at);
        };
        if end > now {
            return;
        }
        let put = &mut self.puts[at];
        let (txn, to, offset) = (put.txn(self.context.id), put.targets[put.copy], put.flow.sent);
        let payload = put.payload.clone();
        let flow = &mut put.flow;
        flow.frame = None;
        flow.sent += len;
        flow.undinged += u64::from(len) * 8;
        if self.context.config.protocol == Protocol::UchAimd && flow.undinged >= INCREASE_AFTER {
            flow.undinged = 0;
            flow.rate = (flow.rate + STEP).min(link);
        }
        let over = flow.sent == payload.len() as u32;
        if over {
            put.copy += 1;
            put.flow = IDLE;
        }
        let more = put.has_more();
        self.context.transmit(Destination::Node(to), txn, &payload, offset, len);
        match (over, more) {
            (false, _) => self.next_frame(at),
            (true, true) => self.ask(at),
            (true, false) => {}
        }
    }

    fn next_frame(&mut self, at: usize) {
        let (now, link) = (self.context.now, self.context.config.link);
        let put = &mut self.puts[at];
        if !put.flow.begun {
            return;
        }
        let rest = put.payload.len() as u32 - put.flow.sent;
        let len = rest.min(self.context.config.frame);
        let mut start = now;
        // The last frame of a copy is not charged to the link: the papers' simulator forgets it.
        if len < rest {
            start = now.max(self.link_due - wire_time(BURST, link));
            self.link_due = self.link_due.max(start) + wire_time(len, link);
        }
        put.flow.frame = Some((start + wire_time(len, put.flow.rate), len));
    }

    fn ack(&mut self, txn: TxnId, load: Option<Load>) {
        let count = txn.0 & ((1 << super::TXN_BITS) - 1);
        let copies = u64::from(self.context.config.copies);
        let Some(at) = self.puts.iter().position(|put| (put.first..put.first + copies).contains(&count)) else {
            return;
        };
        let copy = (count - self.puts[at].first) as usize;
        if let (Some(rival), Some(load)) = (&mut self.rival, load) {
            rival.acknowledged(self.puts[at].targets[copy], self.context.now.since(self.puts[at].began[copy]), load);
        }
        self.puts[at].acked += 1;
        if self.puts[at].acked == self.puts[at].targets.len() {
            let put = self.puts.swap_remove(at);
            let took = self.context.now.since(put.asked);
            self.context.out.push_back(Output::Event(Event::Put { handle: put.handle, took, attempt: took }));
        }
    }
}

impl Put {
    fn txn(&self, initiator: NodeId) -> TxnId {
        txn_of(initiator, self.first + self.copy as u64)
    }

    /// Whether a copy is still to be sent.
    fn has_more(&self) -> bool {
        self.copy < self.targets.len()
    }
}

fn wire_time(bytes: u32, bits_per_second: u64) -> Span {
    Span::from_nanos(u64::from(bytes) * 8_000_000_000 / bits_per_second.max(1))
}
