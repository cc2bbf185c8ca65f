//! The target of Replicast with the papers' rules.

use core::convert::Infallible;
use std::collections::VecDeque;

use bytes::Bytes;
use protocol::id::{NodeId, TxnId};
use protocol::machine::{Destination, Input, Output};
use protocol::rng::Rng;
use protocol::time::{Instant, Span};

use crate::bids::Bids;
use crate::config::{Config, Timing};
use crate::wire::{Pdu, absolute, relative, span};
use crate::{Context, Disk, owner};

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
    context: Context<Infallible>,
    bids: Bids,
    disk: Disk,
    arriving: Vec<Arriving>,
    /// Requests, and those of them that came while a bid waited for its answer.
    pub(crate) requests: (u64, u64),
}

impl Target {
    pub(crate) fn new(id: NodeId, config: Config, seed: u64) -> Self {
        let hop = config.timing(1).pdu + config.trip;
        let bids = Bids::new(&config, hop, Rng::new(seed).fork(u64::from(id.0)).next_u64());
        Self { context: Context::new(id, config), bids, disk: Disk::default(), arriving: Vec::new(), requests: (0, 0) }
    }

    pub(crate) fn handle_input(&mut self, now: Instant, input: Input<Infallible>) {
        self.context.advance(now);
        match input {
            Input::Datagram { bytes, .. } => self.control(&bytes),
            Input::Payload { header, payload, .. } => self.payload(header.txn, header.size, &payload),
            Input::Done { op, .. } => {
                let txn = TxnId(op.0);
                self.context.send(Destination::Node(owner(txn)), &Pdu::Ack { txn });
            }
            Input::Wake | Input::Request(_) => {}
        }
    }

    pub(crate) fn outputs(&mut self) -> &mut VecDeque<Output<Infallible>> {
        &mut self.context.out
    }

    fn control(&mut self, datagram: &Bytes) {
        match Pdu::decode(datagram) {
            Some(Pdu::Request { txn, from, round, size, earliest }) => {
                self.requests.0 += 1;
                self.requests.1 += u64::from(self.bids.has_tentative());
                let t = self.context.timing(size);
                let earliest = absolute(self.context.sent(), earliest as i64);
                let delay = self.disk_delay(&t);
                let backlog = self.disk.backlog(self.context.now) + t.disk.times(self.bids.accepted());
                let (left, right) = self.bids.offer(self.context.now, txn, earliest, delay, &t);
                let bid = Pdu::Bid {
                    txn,
                    from: self.context.id,
                    round,
                    start: relative(left, self.context.now),
                    length: right.since(left).as_nanos(),
                    backlog: backlog.as_nanos(),
                    write: t.disk.as_nanos(),
                };
                self.context.send(Destination::Node(from), &bid);
            }
            Some(Pdu::Accept { txn, grants }) => {
                let (t, now) = (self.context.memo, self.context.now);
                if let Some(grant) = grants.of(self.context.id) {
                    let left = absolute(self.context.sent(), grant.start);
                    if let Some(second) = self.bids.accept(now, txn, left, left + span(grant.length), &t) {
                        let reject = Pdu::Reject { txn: second, from: self.context.id };
                        self.context.send(Destination::Node(owner(second)), &reject);
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
        let (backlog, now) = (self.disk.backlog(self.context.now), self.context.now);
        let (waiting, room) = (self.disk.waiting(now, t.disk), self.context.config.queue_chunks(t.bytes));
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
        let t = self.context.timing(size);
        self.disk.write(self.context.now, t.disk);
        self.context.write(txn, pieces);
    }
}
