//! The target of Replicast with the papers' rules.

use core::convert::Infallible;

use bytes::Bytes;

use super::bids::Bids;
use super::config::{Config, Timing};
use super::wire::{Pdu, absolute, relative, span};
use super::{Disk, Shared, owner};
use crate::id::{NodeId, TxnId};
use crate::machine::{Destination, Input, Output};
use crate::rng::Rng;
use crate::time::{Instant, Span};

/// A copy that is arriving.
#[derive(Debug)]
struct Arriving {
    txn: TxnId,
    received: u32,
    pieces: Vec<Bytes>,
}

/// The machine.
#[derive(Debug)]
pub struct Target {
    cx: Shared<Infallible>,
    bids: Bids,
    disk: Disk,
    arriving: Vec<Arriving>,
    /// Requests, and those of them that came while a bid waited for its answer.
    pub(super) requests: (u64, u64),
}

impl Target {
    pub(super) fn new(id: NodeId, config: Config, seed: u64) -> Self {
        let hop = config.timing(1).pdu + config.trip;
        let bids = Bids::new(&config, hop, Rng::new(seed).fork(u64::from(id.0)).next_u64());
        Self { cx: Shared::new(id, config), bids, disk: Disk::default(), arriving: Vec::new(), requests: (0, 0) }
    }

    pub(super) fn handle_input(&mut self, now: Instant, input: Input<Infallible>) {
        self.cx.advance(now);
        match input {
            Input::Datagram(datagram) => self.control(&datagram),
            Input::Payload { header, payload } => self.payload(header.txn, header.size, &payload),
            Input::Done { op, .. } => {
                let txn = TxnId(op.0);
                self.cx.send(Destination::Node(owner(txn)), &Pdu::Ack { txn });
            }
            Input::Wake | Input::Request(_) => {}
        }
    }

    pub(super) fn poll_output(&mut self) -> Output<Infallible> {
        self.cx.out.pop_front().unwrap_or(Output::Idle(None))
    }

    fn control(&mut self, datagram: &Bytes) {
        match Pdu::decode(datagram) {
            Some(Pdu::Request { txn, from, round, size, earliest }) => {
                self.requests.0 += 1;
                self.requests.1 += u64::from(self.bids.has_tentative());
                let t = self.cx.timing(size);
                let earliest = absolute(self.cx.sent(), earliest as i64);
                let delay = self.disk_delay(&t);
                let backlog = self.disk.backlog(self.cx.now) + t.disk.times(self.bids.accepted());
                let (left, right) = self.bids.offer(self.cx.now, txn, earliest, delay, &t);
                let bid = Pdu::Bid {
                    txn,
                    from: self.cx.id,
                    round,
                    start: relative(left, self.cx.now),
                    length: right.since(left).as_nanos(),
                    backlog: backlog.as_nanos(),
                    write: t.disk.as_nanos(),
                };
                self.cx.send(Destination::Node(from), &bid);
            }
            Some(Pdu::Accept { txn, grants }) => {
                let (t, now) = (self.cx.memo, self.cx.now);
                if let Some(grant) = grants.of(self.cx.id) {
                    let left = absolute(self.cx.sent(), grant.start);
                    if let Some(second) = self.bids.accept(now, txn, left, left + span(grant.length), &t) {
                        let reject = Pdu::Reject { txn: second, from: self.cx.id };
                        self.cx.send(Destination::Node(owner(second)), &reject);
                    }
                } else {
                    self.bids.cancel(now, txn, &t);
                }
            }
            _ => {}
        }
    }

    /// How long the disk's backlog keeps a new chunk waiting: nothing while the queue has room.
    fn disk_delay(&self, t: &Timing) -> Span {
        let (backlog, now) = (self.disk.backlog(self.cx.now), self.cx.now);
        let (waiting, room) = (self.disk.waiting(now, t.disk), self.cx.config.queue_chunks(t.bytes));
        if waiting > room {
            backlog
        } else if waiting == room {
            backlog.less(t.net)
        } else {
            Span::ZERO
        }
    }

    fn payload(&mut self, txn: TxnId, size: u32, payload: &Bytes) {
        let at = self.arriving.iter().position(|a| a.txn == txn).unwrap_or_else(|| {
            self.arriving.push(Arriving { txn, received: 0, pieces: Vec::new() });
            self.arriving.len() - 1
        });
        let copy = &mut self.arriving[at];
        copy.received += payload.len() as u32;
        copy.pieces.push(payload.clone());
        if copy.received < size {
            return;
        }
        let pieces = self.arriving.swap_remove(at).pieces;
        self.bids.done(txn);
        let t = self.cx.timing(size);
        self.disk.write(self.cx.now, t.disk);
        self.cx.write(txn, pieces);
    }
}
