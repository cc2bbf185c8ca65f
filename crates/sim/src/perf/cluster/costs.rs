//! What the product's profile charges, on the papers' network: processors that messages and payload keep busy, control
//! that takes a part of the wire, and disks that hash, seek and sync.

use protocol::id::{ChunkId, OpId};
use protocol::machine::Completion;

use super::super::product::disk::{Disk, Finished};
use super::super::product::node::{Arrived, Processor};
use super::super::setup::{Costs, Setup};
use super::{Cluster, Happening};

/// The nodes of a run whose processors and disks cost time.
pub(super) struct Costly {
    costs: Costs,
    /// Targets first.
    processors: Vec<Processor>,
    pub(super) disks: Vec<Disk>,
}

fn disk(setup: &Setup, costs: &Costs, slower: u32) -> Disk {
    Disk::new(setup.protocol.disk, &costs.disk, costs.cpu.hash, slower)
}

/// The rate of a disk, slower than others by so much, at which a chunk takes as long as it does with all that it costs.
/// Machines that reckon with a rate are told this one.
pub(super) fn written_alone(setup: &Setup, slower: u32) -> Option<u64> {
    let bytes = setup.mean_size().max(1.0) as u64;
    let takes = disk(setup, setup.costs.as_ref()?, slower).alone(bytes);
    Some((u128::from(bytes) * 1_000_000_000 / u128::from(takes.max(1))) as u64)
}

/// A chunk that is on disk.
pub(super) const fn written(op: OpId) -> Arrived {
    Arrived::Done(op, Completion::Written { result: Ok(()), free: u64::MAX })
}

impl Costly {
    pub(super) fn of(setup: &Setup) -> Option<Self> {
        let costs = setup.costs?;
        Some(Self {
            costs,
            processors: (0..setup.targets + setup.initiators).map(|_| Processor::default()).collect(),
            disks: (0..setup.targets).map(|n| disk(setup, &costs, setup.slow.of(n))).collect(),
        })
    }

    pub(super) fn measure(&mut self, now: u64) {
        self.disks.iter_mut().for_each(|disk| disk.measure(now));
    }

    /// Processor time of so many bytes of payload, or of a control message.
    const fn takes(&self, payload: Option<usize>) -> u64 {
        match payload {
            Some(bytes) => self.costs.cpu.kib.as_nanos() * bytes as u64 / 1024,
            None => self.costs.cpu.message.as_nanos(),
        }
    }
}

impl Cluster<'_> {
    /// When what a node sends now has left its processor: payload of so many bytes, or a control message.
    pub(super) fn leaves(&mut self, node: u32, payload: Option<usize>) -> u64 {
        let Some(costly) = &mut self.costly else { return self.now };
        let takes = costly.takes(payload);
        costly.processors[node as usize].work(self.now, takes)
    }

    /// Something has come to a node: it waits for the processor.
    pub(super) fn reached(&mut self, node: u32, arrived: Arrived) {
        let Some(costly) = &mut self.costly else { return self.deliver(node, arrived) };
        let takes = match &arrived {
            Arrived::Control(_) => costly.takes(None),
            Arrived::Payload(_, payload) => costly.takes(Some(payload.len())),
            Arrived::Done(..) => 0,
        };
        let processor = &mut costly.processors[node as usize];
        let at = processor.work(self.now, takes);
        if at == self.now && processor.inbox.is_empty() {
            self.deliver(node, arrived);
        } else {
            processor.inbox.push_back(arrived);
            self.queue.push(at, Happening::Handle(node));
        }
    }

    /// A node's processor comes to the oldest of what waits for it.
    pub(super) fn handle_oldest(&mut self, node: u32) {
        let oldest = self.costly.as_mut().and_then(|costly| costly.processors[node as usize].inbox.pop_front());
        if let Some(arrived) = oldest {
            self.deliver(node, arrived);
        }
    }

    /// A control message comes to the port of a target, and what it takes there payload has to wait.
    pub(super) fn crosses(&mut self, node: u32) {
        if self.costly.is_some()
            && let Some(port) = self.ports.get_mut(node as usize)
        {
            port.due = port.due.max(self.now) + self.control_time;
        }
    }

    pub(super) fn write(&mut self, node: u32, op: OpId, id: ChunkId, bytes: u64) {
        let Some(costly) = &mut self.costly else { return };
        match costly.disks[node as usize].write(self.now, op, id, bytes) {
            Some(at) => self.queue.push(at, Happening::Hashed(node)),
            None => self.begin_disk(node),
        }
    }

    pub(super) fn hashed(&mut self, node: u32) {
        if let Some(costly) = &mut self.costly {
            costly.disks[node as usize].hashed();
        }
        self.begin_disk(node);
    }

    fn begin_disk(&mut self, node: u32) {
        let begun = self.costly.as_mut().and_then(|costly| costly.disks[node as usize].begin(self.now));
        if let Some(at) = begun {
            self.queue.push(at, Happening::Disk(node));
        }
    }

    /// What was under way on a target's disk is done.
    pub(super) fn disk_done(&mut self, node: u32) {
        let mut done = Vec::new();
        if let Some(costly) = &mut self.costly {
            costly.disks[node as usize].finish(|finished| done.push(finished));
        }
        for finished in done {
            if let Finished::Written { op, .. } = finished {
                self.reached(node, written(op));
            }
        }
        self.begin_disk(node);
    }
}
