//! The target of the conventional store: takes whatever hashing sends to it, and divides its link (UCH-CCP) or says
//! when there is too much (UCH-AIMD). The rivals' targets divide as UCH-CCP's does, and say how busy they are.

use core::convert::Infallible;

use bytes::Bytes;

use super::config::{Config, Protocol, Timing};
use super::rivals::Account;
use super::wire::{Load, Pdu};
use super::{Disk, Shared, owner};
use crate::id::{NodeId, TxnId};
use crate::machine::{Deadline, Destination, Input, Output};
use crate::time::{Instant, Span};

/// Bits per second with which UCH-AIMD begins, by which it increases, and below which it does not fall.
pub(super) const STEP: u64 = 1_000_000_000;
/// Time between two looks at what arrives, beyond a frame (UCH-AIMD).
const LOOK: Span = Span::from_micros(3);
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
    cx: Shared<Infallible>,
    disk: Disk,
    account: Account,
    flows: Vec<Flow>,
    /// Answers that wait for the disk.
    answers: Vec<(Instant, TxnId, u64)>,
    /// Frames that came since the last look.
    recent: Vec<(Instant, TxnId)>,
    looked: Instant,
}

impl Target {
    pub(super) fn new(id: NodeId, config: Config) -> Self {
        Self {
            cx: Shared::new(id, config),
            disk: Disk::default(),
            account: Account::new(),
            flows: Vec::new(),
            answers: Vec::new(),
            recent: Vec::new(),
            looked: Instant::ZERO,
        }
    }

    pub(super) fn handle_input(&mut self, now: Instant, input: Input<Infallible>) {
        self.cx.advance(now);
        match input {
            Input::Datagram(datagram) => match Pdu::decode(&datagram) {
                Some(Pdu::Request { txn, size, .. }) => self.request(txn, size),
                Some(Pdu::Probe { txn, from, size }) => {
                    let (id, write) = (self.cx.id, self.cx.timing(size).disk);
                    let load = self.account.load(write);
                    self.cx.send(Destination::Node(from), &Pdu::Busy { txn, from: id, load });
                }
                _ => {}
            },
            Input::Payload { header, payload } => self.payload(header.txn, &payload),
            Input::Done { op, .. } => {
                self.written(TxnId(op.0));
            }
            Input::Wake | Input::Request(_) => {}
        }
        while let Some(at) = self.answers.iter().position(|(when, ..)| *when <= now) {
            let (_, txn, rate) = self.answers.swap_remove(at);
            self.cx.send(Destination::Node(owner(txn)), &Pdu::Begin { txn, rate });
        }
    }

    pub(super) fn poll_output(&mut self) -> Output<Infallible> {
        self.cx.out.pop_front().unwrap_or_else(|| {
            let next = self.answers.iter().map(|(at, ..)| *at).min();
            Output::Idle(next.map(|at| Deadline { at, why: "disk" }))
        })
    }

    fn written(&mut self, txn: TxnId) {
        let write = self.account.ends(self.cx.now, txn);
        let ack = if self.cx.config.protocol == Protocol::C3Like {
            Pdu::AckBusy { txn, load: Load { in_flight: self.account.in_flight(), takes: write.as_nanos() } }
        } else {
            Pdu::Ack { txn }
        };
        self.cx.send(Destination::Node(owner(txn)), &ack);
    }

    fn shares_link(&self) -> bool {
        self.cx.config.protocol != Protocol::UchAimd
    }

    /// The flow counts from now on, although its answer waits while the disk's queue is full.
    fn request(&mut self, txn: TxnId, size: u32) {
        let t = self.cx.timing(size);
        let link = self.cx.config.link;
        let rate = if self.shares_link() { link / (self.flows.len() as u64 + 1) } else { STEP };
        self.flows.push(Flow { txn, rate, size, received: 0, pieces: Vec::new(), dinged_at: 0 });
        self.answers.push((self.cx.now + self.disk_delay(&t), txn, rate));
        self.account.begins(self.cx.now, txn, t.disk);
        self.share();
    }

    fn disk_delay(&self, t: &Timing) -> Span {
        let backlog = self.disk.backlog(self.cx.now);
        if self.is_disk_full(t) { backlog.less(t.net) } else { Span::ZERO }
    }

    fn is_disk_full(&self, t: &Timing) -> bool {
        self.disk.waiting(self.cx.now, t.disk) >= self.cx.config.queue_chunks(t.bytes)
    }

    /// Gives every flow its share, but for those that are about to end.
    fn share(&mut self) {
        if !self.shares_link() || self.flows.is_empty() {
            return;
        }
        let rate = self.cx.config.link / self.flows.len() as u64;
        let trip = self.cx.config.trip;
        for flow in &mut self.flows {
            let under_way = (u128::from(flow.rate) * u128::from(trip.as_nanos()) / 8_000_000_000) as u32;
            if flow.size - flow.received <= self.cx.config.frame + under_way {
                continue;
            }
            flow.rate = rate;
            let to = Destination::Node(owner(flow.txn));
            self.cx.out.push_back(Output::Transmit(crate::machine::Transmit {
                to,
                body: crate::machine::Body::Control(Pdu::Rate { txn: flow.txn, rate }.encode()),
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
            let t = self.cx.timing(size);
            self.disk.write(self.cx.now, t.disk);
            self.cx.write(txn, pieces);
            self.share();
        }
        if !self.shares_link() {
            self.recent.push((self.cx.now, txn));
            self.look();
        }
    }

    /// UCH-AIMD: a full disk dings everybody who sends; frames that crowd ding the first of them.
    fn look(&mut self) {
        let (now, t) = (self.cx.now, self.cx.memo);
        if now.since(self.looked) < t.frame + LOOK {
            return;
        }
        self.looked = now;
        let recent = core::mem::take(&mut self.recent);
        if self.is_disk_full(&t) {
            for (_, txn) in &recent {
                self.ding(*txn);
            }
        } else if recent.windows(2).filter(|pair| pair[1].0.since(pair[0].0) < t.frame).count() >= CLOSE {
            let rest = DING_REST * self.cx.config.frame;
            let frame = self.cx.config.frame;
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
            self.cx.send(Destination::Node(owner(txn)), &Pdu::Ding { txn });
        }
    }
}
