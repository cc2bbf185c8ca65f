//! The papers' network: every message takes a fixed trip; control and reserved payload have a share of the link each and do
//! not meet; there is no queue in a switch. Reserved payload leaves its initiator's port in order at the rate of its share.
//! Flows that share a link are paced by their initiators, and a target's port takes them at its rate.

use bytes::Bytes;
use protocol::machine::{Body, DataRun, Destination};
use protocol::time::Span;
use protocol::wire::DataHeader;

use crate::perf::driver::{Driver, Event, Fabric, MachineSet};
use crate::perf::node::Arrived;
use crate::perf::setup::{Mode, Paper, Setup};

/// Frames and a control message that a port takes at once before its rate binds, in bytes.
const BURST: u64 = 9_300;

pub(in crate::perf) struct Ideal {
    /// Bits per second for payload; nanoseconds of a control message; from port to port.
    rate: u64,
    control: u64,
    trip: u64,
    /// Bytes: a frame, a control message.
    frame: usize,
    weight: u64,
    mode: Mode,
    is_reserved: bool,
    late_frames: Span,
    /// Whether control takes a part of a target's port.
    crosses: bool,
    /// When each target's port has taken all that was sent to it, and each initiator's has sent all that it was given.
    ports: Vec<u64>,
    uplinks: Vec<u64>,
}

#[derive(Clone)]
pub(in crate::perf) enum Wire {
    Control(Destination, Bytes),
    Payload(Destination, DataHeader, Bytes),
    /// The next frame of a run leaves an initiator.
    Frame(u32, Destination, DataHeader, Bytes),
}

impl Ideal {
    pub(in crate::perf) fn new(setup: &Setup, paper: &Paper) -> Self {
        let config = &paper.config;
        Self {
            rate: config.data_rate(),
            control: config.timing(1).pdu.as_nanos(),
            trip: config.trip.as_nanos(),
            frame: config.frame as usize,
            weight: u64::from(config.control),
            mode: setup.mode,
            is_reserved: config.protocol.negotiates(),
            late_frames: paper.quirks.late_frames,
            crosses: paper.costs.is_some(),
            ports: vec![0; setup.targets as usize],
            uplinks: vec![0; setup.initiators as usize],
        }
    }

    fn wire_time(&self, bytes: usize) -> u64 {
        (bytes as u128 * 8_000_000_000 / u128::from(self.rate)) as u64
    }
}

impl Fabric for Ideal {
    type Wire = Wire;
    /// What is paced asks the target's port when it is sent.
    const PARTS: bool = false;

    fn trip(&self) -> u64 {
        self.trip
    }

    fn send<M: MachineSet>(driver: &mut Driver<'_, M, Self>, from: u32, to: Destination, body: Body) {
        match body {
            Body::Control(bytes) => {
                let at = driver.leaves(from, None) + driver.fabric.control + driver.fabric.trip;
                driver.post(from, at, to, Event::Wire(Wire::Control(to, bytes)));
            }
            Body::Data(run) if driver.fabric.is_reserved => driver.reserved(from, to, run),
            Body::Data(run) => driver.paced(from, to, run),
        }
    }

    fn owner(_: &Wire) -> Option<u32> {
        None
    }

    fn destination(wire: &Wire) -> Option<Destination> {
        match wire {
            Wire::Control(to, _) | Wire::Payload(to, ..) => Some(*to),
            Wire::Frame(..) => None,
        }
    }

    fn prefetch(&self, _slot: usize) -> u64 {
        0
    }

    fn happen<M: MachineSet>(driver: &mut Driver<'_, M, Self>, wire: Wire) {
        let of = |header: &DataHeader, kind: u64| header.txn.0 ^ kind << 60 ^ u64::from(header.offset) << 16;
        match wire {
            Wire::Control(to, bytes) => driver.each(to, 1 << 32 | bytes.len() as u64, |driver, node| {
                driver.measures.count.control_bytes += driver.fabric.weight;
                driver.measures.count.control_messages += 1;
                let (now, takes) = (driver.now, driver.fabric.control);
                if driver.fabric.crosses
                    && let Some(due) = driver.fabric.ports.get_mut(node as usize)
                {
                    // What control takes of a target's port payload has to wait.
                    *due = now.max(*due) + takes;
                }
                driver.reached(node, Arrived::Control(bytes.clone()));
            }),
            Wire::Payload(to, header, payload) => driver.each(to, of(&header, 2), |driver, node| {
                driver.reached(node, Arrived::Payload(header, payload.len() as u32, 0));
            }),
            Wire::Frame(from, to, header, rest) => {
                driver.happens(from, of(&header, 3));
                driver.frame(from, to, header, &rest);
            }
        }
    }
}

impl<M: MachineSet> Driver<'_, M, Ideal> {
    /// A run into a reserved window.
    fn reserved(&mut self, from: u32, to: Destination, run: DataRun) {
        // The port sends in order.
        let n = (from - self.setup.targets) as usize;
        let start = self.now.max(self.fabric.uplinks[n]);
        let takes = self.fabric.wire_time(run.payload.len());
        self.fabric.uplinks[n] = start + takes;
        let (first, last) = (start + self.fabric.trip, start + takes + self.fabric.trip);
        for target in self.receivers(to) {
            let due = &mut self.fabric.ports[target as usize];
            self.measures.count.collisions += u64::from(*due > first);
            *due = last.max(*due);
        }
        match self.fabric.mode {
            Mode::Frame => self.push(from, start, Event::Wire(Wire::Frame(from, to, run.header, run.payload))),
            Mode::Transfer => {
                let frames = run.payload.len().div_ceil(run.per_datagram.max(1));
                let late: u64 = (0..frames).map(|_| self.lateness(from)).sum();
                self.post(from, last + late, to, Event::Wire(Wire::Payload(to, run.header, run.payload)));
            }
        }
    }

    /// One frame of a run; the rest follows it.
    fn frame(&mut self, from: u32, to: Destination, header: DataHeader, rest: &Bytes) {
        let len = rest.len().min(self.fabric.frame);
        let sent = self.now + self.lateness(from) + self.fabric.wire_time(len);
        self.post(from, sent + self.fabric.trip, to, Event::Wire(Wire::Payload(to, header, rest.slice(..len))));
        if len < rest.len() {
            let next = DataHeader { offset: header.offset + len as u32, ..header };
            self.push(from, sent, Event::Wire(Wire::Frame(from, to, next, rest.slice(len..))));
        }
    }

    /// A frame that its initiator has put on the wire at its flow's rate: the target's port takes it at its own, and
    /// holds the sender back without loss when too much comes at once.
    fn paced(&mut self, from: u32, to: Destination, run: DataRun) {
        let arrives = self.leaves(from, Some(run.payload.len() as u64)) + self.fabric.trip + self.lateness(from);
        let (takes, burst) = (self.fabric.wire_time(run.payload.len()), self.fabric.wire_time(BURST as usize));
        let mut last = arrives;
        for target in self.receivers(to) {
            let due = &mut self.fabric.ports[target as usize];
            last = last.max((*due + takes).saturating_sub(burst));
            *due = arrives.max(*due) + takes;
        }
        self.post(from, last, to, Event::Wire(Wire::Payload(to, run.header, run.payload)));
    }

    fn lateness(&mut self, from: u32) -> u64 {
        match self.fabric.late_frames {
            Span::ZERO => 0,
            most => self.node(from).chance.below(most.as_nanos() + 1),
        }
    }
}
