//! What machines want done: chunks written, read and hashed, in the time that it takes.

use bytes::Bytes;
use protocol::census::Holding;
use protocol::id::{ChunkId, NodeId, OpId};
use protocol::machine::{Completion, Destination, Effect, Held, ReadFailure};
use protocol::time::Span;
use protocol::wire::Usage;

use super::{Driver, Event, FREE, Fabric, MachineSet};
use crate::perf::disk::{Finished, Next};
use crate::perf::node::{Arrived, payload};
use crate::perf::stock::Stock;

impl<M: MachineSet, F: Fabric> Driver<'_, M, F> {
    /// The thread that fetches hashes, as in the daemon.
    pub(super) fn verify(&mut self, id: u32, op: OpId, pieces: &[Bytes]) {
        let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let takes = match self.conditions.cpu.hash {
            0 => 0,
            rate => Span::of_transfer(bytes, rate).as_nanos(),
        };
        let node = &mut self.nodes[self.parts.slot(id)];
        let at = node.processor.work(self.now, takes);
        node.processor.inbox.push_back((self.now, Arrived::Done(op, Box::new(Completion::Verified(true)))));
        let life = node.life.number;
        self.push(id, at, Event::Handle(id, life));
    }

    pub(super) fn effect(&mut self, node: u32, op: OpId, effect: Effect) {
        match effect {
            Effect::Lookup { id, .. } => {
                self.at_once.push((op, Completion::Found(self.machines.found(&id, NodeId(node)))));
            }
            Effect::Write { id, pieces, .. } => {
                let (slot, life) = (self.slot(node), self.node(node).life.number);
                let disk = &mut self.disks[slot];
                self.measures.found(disk.length());
                let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
                match disk.write(self.now, op, id, bytes) {
                    Next::Hashed(at) => self.push(node, at, Event::Hashed(node, life)),
                    Next::Written(at) => self.push(node, at, Event::Written(node, op)),
                    Next::Waits => self.begin_disk(node),
                }
            }
            Effect::Census { group, range, salt, after, .. } => {
                let stock = self.machines.stock();
                let holding = stock.map(|stock| stock.census(NodeId(node), group, (range, salt, after)));
                let nothing = || Holding::Copies { copies: Vec::new(), more: false };
                self.at_once.push((op, Completion::Counted(holding.unwrap_or_else(nothing))));
            }
            // Copies that are too many stay.
            Effect::Discard { .. } => {
                self.at_once.push((op, Completion::Discarded { dropped: 0, bytes: 0, result: Ok(()) }));
            }
            Effect::Read { id } => match self.machines.found(&id, NodeId(node)) {
                Some(Held { size, .. }) => {
                    let (slot, now) = (self.slot(node), self.now);
                    self.machines.stock().into_iter().for_each(|stock| stock.reads(&id, now));
                    self.disks[slot].read(op, payload(size));
                    self.begin_disk(node);
                }
                None => self.at_once.push((op, Completion::Read(Err(ReadFailure::Missing)))),
            },
            // No copy is ever damaged.
            Effect::Missing { .. } => self.at_once.push((op, Completion::Listed { ids: Vec::new(), more: false })),
            // Disks have room for more than any run puts, so nothing has to move from one to another.
            Effect::Usage => self.at_once.push((op, Completion::Used(Usage::default()))),
            effect => match effect.compute() {
                Ok(completion) => self.at_once.push((op, completion)),
                Err(effect) => panic!("no run asks a target for {effect:?}"),
            },
        }
    }

    /// A copy is durable. Whether it is one of a chunk that was there from the beginning.
    fn stocked(&mut self, id: &ChunkId, node: u32) -> bool {
        let now = self.now;
        let Some(stock) = self.machines.stock().filter(|_| Stock::names(id)) else { return false };
        stock.stored(id, now, NodeId(node));
        self.measures.mended(self.now, stock.is_whole());
        true
    }

    pub(super) fn begin_disk(&mut self, node: u32) {
        let slot = self.slot(node);
        if let Some(at) = self.disks[slot].begin(self.now) {
            let life = self.nodes[slot].life.number;
            self.push(node, at, Event::Disk(node, life));
        }
    }

    pub(super) fn disk_done(&mut self, node: u32) {
        let mut done = core::mem::take(&mut self.finished);
        let slot = self.slot(node);
        self.disks[slot].finish(|finished| done.push(finished));
        for finished in done.drain(..) {
            let arrived = match finished {
                Finished::Written { op, id, .. } if self.stocked(&id, node) => written(op),
                Finished::Written { op, id, bytes } => {
                    if let Some((notice, to)) = self.machines.stored(&id, bytes as u32, NodeId(node)) {
                        let at = self.now + self.fabric.trip();
                        self.post(node, at, Destination::Node(to), Event::Notice(notice));
                    }
                    written(op)
                }
                Finished::Read { op, payload } => Arrived::Done(op, Box::new(Completion::Read(Ok(payload)))),
            };
            self.reached(node, arrived);
        }
        self.finished = done;
        self.begin_disk(node);
    }
}

/// A chunk that is on disk.
pub(super) fn written(op: OpId) -> Arrived {
    Arrived::Done(op, Box::new(Completion::Written { result: Ok(()), free: FREE }))
}
