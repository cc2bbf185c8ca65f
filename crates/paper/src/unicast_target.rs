//! The target of the conventional store: takes whatever hashing sends to it, and divides its link (UCH-CCP) or says
//! when there is too much (UCH-AIMD). The rivals' targets divide as UCH-CCP's does, and say how busy they are.

use core::convert::Infallible;
use std::collections::VecDeque;

use bytes::Bytes;
use protocol::id::{NodeId, TxnId};
use protocol::machine::{Deadline, Destination, Input, Output};
use protocol::time::{Instant, Span};

use crate::config::{Config, Protocol, Timing};
use crate::rivals::Account;
use crate::wire::{Load, Pdu};
use crate::{Context, Disk, owner};

/// Bits per second with which UCH-AIMD begins, by which it increases, and below which it does not fall.
pub(crate) const STEP: u64 = 1_000_000_000;
/// Time between two looks at what arrives, beyond a frame (UCH-AIMD).
const CHECK_INTERVAL: Span = Span::from_micros(3);
/// Pairs of frames closer than a frame's time that mean congestion.
const CLOSE: usize = 2;
/// Frames a flow must still have, and have sent since its last ding, to be dinged.
const DING_REST: u32 = 3;

/// A copy that is arriving, or will.
#[derive(Debug)]
struct Flow {
    txn: TxnId,
    rate: u64,
    size: u32,
    received: u32,
    pieces: Vec<Bytes>,
    /// What had been received at the last ding.
    dinged_at: u32,
}

/// The machine.
#[derive(Debug)]
pub struct Target {
    context: Context<Infallible>,
    disk: Disk,
    account: Account,
    flows: Vec<Flow>,
    /// Answers that wait for the disk.
    answers: Vec<(Instant, TxnId, u64)>,
    /// Frames that came since the last look.
    recent: Vec<(Instant, TxnId)>,
    checked: Instant,
}

impl Target {
    pub(crate) fn new(id: NodeId, config: Config) -> Self {
        Self {
            context: Context::new(id, config),
            disk: Disk::default(),
            account: Account::new(),
            flows: Vec::new(),
            answers: Vec::new(),
            recent: Vec::new(),
            checked: Instant::ZERO,
        }
    }

    pub(crate) fn handle_input(&mut self, now: Instant, input: Input<Infallible>) {
        self.context.advance(now);
        match input {
            Input::Datagram { bytes, .. } => match Pdu::decode(&bytes) {
                Some(Pdu::Request { txn, size, .. }) => self.request(txn, size),
                Some(Pdu::Probe { txn, from, size }) => {
                    let (id, write) = (self.context.id, self.context.timing(size).disk);
                    let load = self.account.load(write);
                    self.context.send(Destination::Node(from), &Pdu::Busy { txn, from: id, load });
                }
                _ => {}
            },
            Input::Payload { header, payload, .. } => self.payload(header.txn, &payload),
            Input::Done { op, .. } => {
                self.written(TxnId(op.0));
            }
            Input::Wake | Input::Request(_) => {}
        }
        while let Some(at) = self.answers.iter().position(|(when, ..)| *when <= now) {
            let (_, txn, rate) = self.answers.swap_remove(at);
            self.context.send(Destination::Node(owner(txn)), &Pdu::Begin { txn, rate });
        }
    }

    pub(crate) fn outputs(&mut self) -> &mut VecDeque<Output<Infallible>> {
        &mut self.context.out
    }

    pub(crate) fn next_deadline(&self) -> Option<Deadline> {
        let next = self.answers.iter().map(|(at, ..)| *at).min();
        next.map(|at| Deadline { at, why: "disk" })
    }

    fn written(&mut self, txn: TxnId) {
        let write = self.account.ends(self.context.now, txn);
        let ack = if self.context.config.protocol == Protocol::C3Like {
            Pdu::AckBusy { txn, load: Load { in_flight: self.account.in_flight(), takes: write.as_nanos() } }
        } else {
            Pdu::Ack { txn }
        };
        self.context.send(Destination::Node(owner(txn)), &ack);
    }

    fn shares_link(&self) -> bool {
        self.context.config.protocol != Protocol::UchAimd
    }

    /// The flow counts from now on, although its answer waits while the disk's queue is full.
    fn request(&mut self, txn: TxnId, size: u32) {
        let t = self.context.timing(size);
        let link = self.context.config.link;
        let rate = if self.shares_link() { link / (self.flows.len() as u64 + 1) } else { STEP };
        self.flows.push(Flow { txn, rate, size, received: 0, pieces: Vec::new(), dinged_at: 0 });
        self.answers.push((self.context.now + self.disk_delay(&t), txn, rate));
        self.account.begins(self.context.now, txn, t.disk);
        self.share();
    }

    fn disk_delay(&self, t: &Timing) -> Span {
        let backlog = self.disk.backlog(self.context.now);
        if self.is_disk_full(t) { backlog.less(t.net) } else { Span::ZERO }
    }

    fn is_disk_full(&self, t: &Timing) -> bool {
        self.disk.waiting(self.context.now, t.disk) >= self.context.config.queue_chunks(t.bytes)
    }

    /// Gives every flow its share, but for those that are about to end.
    fn share(&mut self) {
        if !self.shares_link() || self.flows.is_empty() {
            return;
        }
        let rate = self.context.config.link / self.flows.len() as u64;
        let trip = self.context.config.trip;
        for flow in &mut self.flows {
            let under_way = (u128::from(flow.rate) * u128::from(trip.as_nanos()) / 8_000_000_000) as u32;
            if flow.size - flow.received <= self.context.config.frame + under_way {
                continue;
            }
            flow.rate = rate;
            let to = Destination::Node(owner(flow.txn));
            self.context.out.push_back(Output::Transmit(protocol::machine::Transmit {
                to,
                body: protocol::machine::Body::Control(Pdu::Rate { txn: flow.txn, rate }.encode()),
            }));
        }
    }

    fn payload(&mut self, txn: TxnId, payload: &Bytes) {
        let Some(at) = self.flows.iter().position(|flow| flow.txn == txn) else { return };
        let flow = &mut self.flows[at];
        flow.received += payload.len() as u32;
        flow.pieces.push(payload.clone());
        if flow.received >= flow.size {
            let Flow { size, pieces, .. } = self.flows.swap_remove(at);
            let t = self.context.timing(size);
            self.disk.write(self.context.now, t.disk);
            self.context.write(txn, pieces);
            self.share();
        }
        if !self.shares_link() {
            self.recent.push((self.context.now, txn));
            self.check_congestion();
        }
    }

    /// UCH-AIMD: a full disk dings everybody who sends; frames that crowd ding the first of them.
    fn check_congestion(&mut self) {
        let (now, t) = (self.context.now, self.context.memo);
        if now.since(self.checked) < t.frame + CHECK_INTERVAL {
            return;
        }
        self.checked = now;
        let recent = core::mem::take(&mut self.recent);
        if self.is_disk_full(&t) {
            for (_, txn) in &recent {
                self.ding(*txn);
            }
        } else if recent.windows(2).filter(|pair| pair[1].0.since(pair[0].0) < t.frame).count() >= CLOSE {
            let rest = DING_REST * self.context.config.frame;
            let frame = self.context.config.frame;
            let first = recent[0].1;
            if let Some(flow) = self.flows.iter_mut().find(|flow| flow.txn == first)
                && flow.size - flow.received > rest
                && flow.received - flow.dinged_at > frame
            {
                flow.dinged_at = flow.received;
                self.ding(first);
            }
        }
        self.recent = recent;
        self.recent.clear();
    }

    fn ding(&mut self, txn: TxnId) {
        if self.flows.iter().any(|flow| flow.txn == txn) {
            self.context.send(Destination::Node(owner(txn)), &Pdu::Ding { txn });
        }
    }
}
