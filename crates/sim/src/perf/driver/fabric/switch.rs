//! A switch: every node has a port out and a port in, with a queue that all that is sent to it shares.

use bytes::Bytes;
use protocol::machine::{Body, DataRun, Destination};
use protocol::rng::Rng;
use protocol::wire::{DATA_HEADER, DataHeader, TAG};

use super::wire::{Begun, Port, Sent, Train, Uplink, parts};
use crate::perf::driver::{Driver, Event, Fabric, MachineSet};
use crate::perf::node::{Arrived, number};
use crate::perf::setup::profile::{HEADERS, Profile};
use crate::perf::setup::{Mode, Setup};

pub(in crate::perf) struct Switch {
    /// Of each of the part's nodes.
    links: Vec<Link>,
    /// By sender what of it reaches nodes of this part: one train at a time.
    trains: Vec<Option<Box<Train>>>,
    /// Nanoseconds that 2^20 bytes take on a link, how many fit into a queue, and from port to port.
    per_mib: u64,
    room: u64,
    control_first: bool,
    trip: u64,
    mode: Mode,
    /// Datagrams lost on the way to each receiver, in a million.
    loss_ppm: u64,
    /// The first aggregator, and how many lanes each has.
    aggregators: u32,
    lanes: u32,
}

/// Tells what is through a port apart from other events.
const THROUGH: u64 = 5 << 32;

/// A node's link: its port out, the switch's port to it, and the generator that draws what is lost there.
struct Link {
    port: Port,
    uplink: Uplink,
    losses: Rng,
}

#[derive(Clone)]
pub(in crate::perf) enum Wire {
    /// A control message reaches its receivers' ports.
    Control(Destination, Bytes),
    /// A train of this sender begins to reach its receivers' ports; or its end does.
    Head(u32, Box<Train>),
    Tail(u32, Destination),
    /// A node's port may have sent a train.
    Sent(u32),
    /// Something is through a node's port.
    Through(u32, Arrived),
}

impl Link {
    fn new(losses: Rng) -> Self {
        Self { port: Port::default(), uplink: Uplink::default(), losses }
    }
}

impl Switch {
    /// The ports of these nodes.
    pub(in crate::perf) fn new(setup: &Setup, profile: &Profile, nodes: &[u32], losses: &Rng) -> Self {
        let per_mib = ((8_u128 << 20) * 1_000_000_000 / u128::from(profile.link.max(1))) as u64;
        Self {
            links: nodes.iter().map(|node| Link::new(losses.fork(u64::from(*node)))).collect(),
            trains: vec![None; setup.nodes() as usize],
            per_mib,
            room: ((u128::from(profile.switch_queue) * u128::from(per_mib)) >> 20) as u64,
            control_first: profile.control_first,
            trip: profile.trip.as_nanos(),
            mode: setup.mode,
            loss_ppm: u64::from(profile.loss_ppm),
            aggregators: setup.targets + setup.initiators,
            lanes: profile.lanes.max(1),
        }
    }

    /// Which of a node's lanes a train leaves by: of those of an aggregator the one that has least to do.
    fn lane(&self, node: u32, slot: usize) -> (u32, usize) {
        if node < self.aggregators {
            return (node, slot);
        }
        let least = (0..self.lanes as usize).min_by_key(|lane| self.links[slot + lane].uplink.backlog());
        let lane = least.unwrap_or(0);
        (node + lane as u32, slot + lane)
    }

    fn wire_time(&self, bytes: u64) -> u64 {
        (bytes * self.per_mib) >> 20
    }

    fn loses(&mut self, slot: usize) -> bool {
        self.loss_ppm > 0 && self.links[slot].losses.chance(self.loss_ppm, 1_000_000)
    }

    /// Lets a port's queue grow and shrink until now; what it drops for `node` is noted with its train.
    fn advance(&mut self, node: u32, slot: usize, now: u64) {
        let port = &mut self.links[slot].port;
        if node >= self.aggregators {
            return port.pass(now);
        }
        let each = port.advance(now, self.room);
        if each == 0 {
            return;
        }
        for sender in port.arriving() {
            let Some(train) = self.trains[*sender as usize].as_mut() else { continue };
            // The last of what arrived until now.
            let all = train.len as u64;
            let share = |time: u64| (u128::from(all) * u128::from(time) / u128::from(train.takes.max(1))) as u64;
            let to = share(now - train.reached).min(all);
            let from = to.saturating_sub(share(each));
            train.dropped.push((node, from, to));
        }
    }
}

impl Fabric for Switch {
    type Wire = Wire;
    const PARTS: bool = true;

    fn trip(&self) -> u64 {
        self.trip
    }

    fn send<M: MachineSet>(driver: &mut Driver<'_, M, Self>, from: u32, to: Destination, body: Body) {
        match body {
            Body::Control(bytes) => {
                let leaves = driver.leaves(from, None);
                let takes = driver.fabric.wire_time(weight(&bytes));
                let slot = driver.slot(from);
                let sent = driver.fabric.links[slot].uplink.control(leaves, takes);
                driver.post(from, sent + driver.fabric.trip, to, Event::Wire(Wire::Control(to, bytes)));
            }
            Body::Data(run) => match driver.fabric.mode {
                Mode::Transfer => driver.train(from, to, &run, run.header, run.payload.len()),
                Mode::Frame => {
                    let step = run.per_datagram.max(1);
                    for at in (0..run.payload.len()).step_by(step) {
                        let header = DataHeader { offset: run.header.offset + at as u32, ..run.header };
                        driver.train(from, to, &run, header, step.min(run.payload.len() - at));
                    }
                }
            },
        }
    }

    fn owner(wire: &Wire) -> Option<u32> {
        match wire {
            Wire::Sent(node) | Wire::Through(node, _) => Some(*node),
            Wire::Control(..) | Wire::Head(..) | Wire::Tail(..) => None,
        }
    }

    fn destination(wire: &Wire) -> Option<Destination> {
        match wire {
            Wire::Control(to, _) | Wire::Tail(_, to) => Some(*to),
            Wire::Head(_, train) => Some(train.to),
            Wire::Sent(_) | Wire::Through(..) => None,
        }
    }

    fn prefetch(&self, slot: usize) -> u64 {
        let Link { port, uplink, .. } = &self.links[slot];
        port.prefetch() ^ uplink.prefetch()
    }

    fn prefetch_wire(wire: &Wire) -> u64 {
        match wire {
            Wire::Control(_, bytes) | Wire::Through(_, Arrived::Control(bytes)) => {
                // The last byte too, as a message is longer than a cache line; and the count of its references.
                let ends = bytes.first().zip(bytes.last()).map_or(0, |(first, last)| first ^ last);
                u64::from(ends) ^ u64::from(bytes.is_unique())
            }
            Wire::Head(_, train) => train.reached,
            _ => 0,
        }
    }

    fn happen<M: MachineSet>(driver: &mut Driver<'_, M, Self>, wire: Wire) {
        match wire {
            Wire::Control(to, bytes) => driver.control(to, bytes),
            Wire::Head(from, train) => driver.head(from, train),
            Wire::Tail(from, to) => driver.tail(from, to),
            Wire::Sent(node) => {
                driver.happens(node, 4 << 32);
                driver.sent(node);
            }
            Wire::Through(node, arrived) => {
                driver.happens(node, THROUGH);
                driver.reached(node, arrived);
            }
        }
    }
}

/// Bytes of a control message on the wire.
const fn weight(message: &Bytes) -> u64 {
    message.len() as u64 + TAG as u64 + HEADERS
}

impl<M: MachineSet> Driver<'_, M, Switch> {
    /// Sends a run of payload as a train.
    fn train(&mut self, node: u32, to: Destination, run: &DataRun, header: DataHeader, len: usize) {
        let (bytes, per_datagram) = (len as u64, run.per_datagram.max(1));
        let full = (per_datagram as u64).min(bytes);
        let overhead = DATA_HEADER as u64 + HEADERS;
        let at = (header.offset - run.header.offset) as usize;
        let number = number(&run.payload[at..]);
        let train = Box::new(Train {
            to,
            header,
            number,
            len,
            per_datagram,
            datagram: self.fabric.wire_time(full + overhead),
            takes: self.fabric.wire_time(bytes + bytes.div_ceil(per_datagram as u64) * overhead),
            reached: 0,
            dropped: Vec::new(),
        });
        let leaves = self.begins_to_leave(node, bytes, full);
        let (lane, slot) = self.fabric.lane(node, self.slot(node));
        let begun = self.fabric.links[slot].uplink.send(leaves, train);
        self.begun(lane, begun);
    }

    fn begun(&mut self, node: u32, begun: Option<Begun>) {
        let Some(Begun { train, start, until }) = begun else { return };
        self.post(node, start + self.fabric.trip, train.to, Event::Wire(Wire::Head(node, train)));
        self.push(node, until, Event::Wire(Wire::Sent(node)));
    }

    fn sent(&mut self, node: u32) {
        let (now, slot) = (self.now, self.slot(node));
        match self.fabric.links[slot].uplink.sent(now) {
            Some(Sent::Later(at)) => self.push(node, at, Event::Wire(Wire::Sent(node))),
            Some(Sent::Done(to, next)) => {
                self.post(node, now + self.fabric.trip, to, Event::Wire(Wire::Tail(node, to)));
                self.begun(node, next);
            }
            None => {}
        }
    }

    fn control(&mut self, to: Destination, bytes: Bytes) {
        let weight = weight(&bytes);
        let takes = self.fabric.wire_time(weight);
        let (len, is_for_one) = (bytes.len() as u64, matches!(to, Destination::Node(_)));
        let mut bytes = Some(bytes);
        self.each(to, 1 << 32 | len, |driver, node| {
            let (now, slot) = (driver.now, driver.slot(node));
            driver.fabric.advance(node, slot, now);
            let lost = driver.fabric.loses(slot);
            match driver.fabric.links[slot].port.control(now, takes, driver.fabric.room, driver.fabric.control_first) {
                Some(at) if !lost => {
                    let Some(bytes) = (if is_for_one { bytes.take() } else { bytes.clone() }) else { return };
                    driver.measures.count.control_bytes += weight;
                    driver.measures.count.control_messages += 1;
                    driver.count_put(slot, &bytes);
                    driver.reach(at, node, Arrived::Control(bytes));
                }
                _ => driver.measures.count.dropped += 1,
            }
        });
    }

    fn count_put(&mut self, slot: usize, bytes: &Bytes) {
        if self.measures.ended.is_none() && self.machines.asks_plainly(bytes) {
            self.measures.asked.add(slot, self.now);
        }
    }

    /// Something is through a node's port at this time.
    fn reach(&mut self, at: u64, node: u32, arrived: Arrived) {
        let waits = self.waits(at, node);
        self.reach_after(waits, at, node, arrived);
    }

    /// Whether what is through a node's port at this time has to wait until then. What comes later is through later: when the
    /// node itself has nothing to do before, to wait would change nothing, and is half of all events.
    fn waits(&self, at: u64, node: u32) -> bool {
        #[cfg(test)]
        if tests::ALL_WAIT.get() {
            return at > self.now;
        }
        at > self.now && !self.is_undisturbed(self.slot(node), at)
    }

    fn reach_after(&mut self, waits: bool, at: u64, node: u32, arrived: Arrived) {
        if waits {
            return self.push(node, at, Event::Wire(Wire::Through(node, arrived)));
        }
        let now = core::mem::replace(&mut self.now, at);
        if at > now {
            self.happens(node, THROUGH);
        }
        self.reached(node, arrived);
        self.now = now;
    }

    fn head(&mut self, from: u32, mut train: Box<Train>) {
        let now = self.now;
        train.reached = now;
        let (to, header, number, datagram) = (train.to, train.header, train.number, train.datagram);
        let first = train.per_datagram.min(train.len) as u32;
        self.fabric.trains[from as usize] = Some(train);
        self.each(to, header.txn.0 ^ 2 << 60, |driver, node| {
            let slot = driver.slot(node);
            driver.fabric.advance(node, slot, now);
            let lost = driver.fabric.loses(slot);
            if driver.measures.ended.is_none() {
                driver.measures.transfers.add(slot, now);
            }
            let port = &mut driver.fabric.links[slot].port;
            driver.measures.count.collisions += u64::from(!port.arriving().is_empty());
            let at = port.begin(now, from, datagram, datagram);
            if lost {
                driver.measures.count.dropped += 1;
            } else {
                driver.reach(at, node, Arrived::Payload(header, first, number));
            }
        });
    }

    fn tail(&mut self, from: u32, to: Destination) {
        self.each(to, 3 << 60 | u64::from(from), |driver, node| {
            let (now, slot) = (driver.now, driver.slot(node));
            driver.fabric.advance(node, slot, now);
            let at = driver.fabric.links[slot].port.end(now, from);
            driver.rest(at, node, slot, from);
        });
        self.fabric.trains[from as usize] = None;
    }

    /// What of a train behind its first datagram reaches a node.
    fn rest(&mut self, at: u64, node: u32, slot: usize, from: u32) {
        let Some(train) = self.fabric.trains[from as usize].as_ref() else { return };
        let (len, step) = (train.len, train.per_datagram);
        let header = train.header;
        let mut lost: Vec<(usize, usize)> = Vec::new();
        if !train.dropped.is_empty() {
            let mine = train.dropped.iter().filter(|(receiver, ..)| *receiver == node);
            // As many whole datagrams as were dropped in parts, where the last of them was.
            let (bytes, end) = mine.fold((0, 0), |(sum, end), (_, from, to)| (sum + (to - from), end.max(*to)));
            let end = (end as usize).div_ceil(step);
            let count = (bytes as usize).div_ceil(step).min(end);
            if count > 0 {
                lost.push(((end - count) * step, (end * step).min(len)));
            }
        }
        if self.fabric.loss_ppm > 0 {
            for from in (step..len).step_by(step) {
                if self.fabric.loses(slot) {
                    lost.push((from, (from + step).min(len)));
                }
            }
            lost.sort_unstable();
        }
        self.measures.count.dropped += lost.iter().map(|(from, to)| (to - from).div_ceil(step) as u64).sum::<u64>();
        let waits = self.waits(at, node);
        parts(len, step, &lost, |from, to| {
            let header = DataHeader { offset: header.offset + from as u32, ..header };
            self.reach_after(waits, at, node, Arrived::Payload(header, (to - from) as u32, 0));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use crate::perf::{Outcome, Scenario, run};

    thread_local! {
        /// Whether all that is through a port later waits until then.
        pub(super) static ALL_WAIT: Cell<bool> = const { Cell::new(false) };
    }

    const CLUSTERS: [&str; 4] = [
        "protocol = \"replicast-m\"\nload = 0.9\n",
        "protocol = \"replicast-h\"\nreads_percent = 40\nobjects = 100\nloss_ppm = 1000\n",
        "protocol = \"leader\"\ncrash_every = \"3ms\"\ncrash_down = \"2ms\"\ndrift_ppm = 100\n",
        "protocol = \"hash\"\nwake_jitter = \"20us\"\ncpu_message = \"2us\"\ncpu_kib = \"100ns\"\nhash_mb_per_s = 8000\n",
    ];

    fn figures(outcome: &Outcome) -> String {
        let product = outcome.product.as_ref().unwrap();
        let latencies: Vec<(u64, u64)> =
            outcome.latency.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
        format!("{latencies:?} {} {} {}", outcome.chunks, product.control_messages, product.repairs)
    }

    #[test]
    fn it_comes_to_the_same_whether_what_could_be_had_at_once_waits() {
        for cluster in CLUSTERS {
            let keys = format!(
                "{cluster}profile = \"product\"\ninitiators = 12\ntargets = 18\ndisk_sync = \"20us\"\n\
                 warm_up = \"2ms\"\nlength = \"20ms\"\n"
            );
            let setup = Scenario::parse("a test", &keys, &[]).unwrap().setup;
            let [at_once, waiting] = [false, true].map(|all_wait| {
                ALL_WAIT.set(all_wait);
                run(&setup).unwrap()
            });
            assert_eq!(figures(&at_once), figures(&waiting), "{cluster}");
            assert!(at_once.chunks > 100, "{cluster}: {} chunks", at_once.chunks);
        }
    }
}
