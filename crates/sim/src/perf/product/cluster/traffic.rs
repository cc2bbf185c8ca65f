//! What is on the wires of a run.

use bytes::Bytes;
use protocol::config::Transport;
use protocol::id::NodeId;
use protocol::machine::{Body, DataRun, Destination};
use protocol::wire::{DATA_HEADER, DataHeader, Message, TAG, decode_message};

use super::super::super::setup::Mode;
use super::super::HEADERS;
use super::super::node::Arrived;
use super::super::wire::{Begun, Sent, Train, parts};
use super::{Cluster, Happening};

impl Cluster<'_> {
    /// The index of a node.
    pub(super) fn index(&self, node: NodeId) -> u32 {
        if node.is_initiator() { node.0 - NodeId::FIRST_INITIATOR + self.setup.targets } else { node.0 }
    }

    /// Does it for every node of a destination.
    pub(super) fn each(&mut self, to: Destination, mut does: impl FnMut(&mut Self, u32)) {
        match to {
            Destination::Node(node) => {
                let index = self.index(node);
                does(self, index);
            }
            Destination::Members(set) => {
                let mut receivers = core::mem::take(&mut self.receivers);
                receivers.clear();
                receivers.extend(self.map.resolve(set).map(|node| node.0));
                receivers.iter().for_each(|node| does(self, *node));
                self.receivers = receivers;
            }
        }
    }

    pub(super) fn wire_time(&self, bytes: u64) -> u64 {
        (bytes * self.per_mib) >> 20
    }

    pub(super) fn lost(&mut self) -> bool {
        let ppm = u64::from(self.profile.loss_ppm);
        ppm > 0 && self.rng[1].chance(ppm, 1_000_000)
    }

    pub(super) fn transmit(&mut self, node: u32, to: Destination, body: Body) {
        match body {
            Body::Control(bytes) => {
                let leaves = self.processors[node as usize].work(self.now, self.profile.cpu.message.as_nanos());
                let takes = self.wire_time(bytes.len() as u64 + TAG as u64 + HEADERS);
                let sent = self.uplinks[node as usize].control(leaves, takes);
                self.queue.push(sent + self.setup.protocol.trip.as_nanos(), Happening::Control(to, bytes));
            }
            Body::Data(run) => match self.setup.mode {
                Mode::Transfer => self.train(node, to, run),
                Mode::Frame => {
                    let step = run.per_datagram.max(1);
                    for at in (0..run.payload.len()).step_by(step) {
                        let mut one = run.clone();
                        one.header.offset += at as u32;
                        one.payload = run.payload.slice(at..run.payload.len().min(at + step));
                        self.train(node, to, one);
                    }
                }
            },
        }
    }

    /// Sends a run of payload as a train.
    pub(super) fn train(&mut self, node: u32, to: Destination, run: DataRun) {
        let (len, per_datagram) = (run.payload.len() as u64, run.per_datagram.max(1));
        let full = (per_datagram as u64).min(len);
        let overhead = DATA_HEADER as u64 + HEADERS;
        let train = Train {
            to,
            header: run.header,
            payload: run.payload,
            per_datagram,
            datagram: self.wire_time(full + overhead),
            takes: self.wire_time(len + len.div_ceil(per_datagram as u64) * overhead),
            reached: 0,
            dropped: Vec::new(),
        };
        let leaves = self.processors[node as usize].send(self.now, &self.profile.cpu, len, full);
        let id = self.free_trains.pop().unwrap_or_else(|| {
            self.trains.push(None);
            self.trains.len() as u32 - 1
        });
        let begun = self.uplinks[node as usize].send(leaves, id, &train);
        self.trains[id as usize] = Some(train);
        self.begun(node, begun);
    }

    pub(super) fn begun(&mut self, node: u32, begun: Option<Begun>) {
        let Some(Begun { train, start, until }) = begun else { return };
        self.queue.push(start + self.setup.protocol.trip.as_nanos(), Happening::Head(train));
        self.queue.push(until, Happening::Sent(node));
    }

    pub(super) fn sent(&mut self, node: u32) {
        match self.uplinks[node as usize].sent(self.now, &self.trains) {
            Some(Sent::Later(at)) => self.queue.push(at, Happening::Sent(node)),
            Some(Sent::Done(train, next)) => {
                self.queue.push(self.now + self.setup.protocol.trip.as_nanos(), Happening::Tail(train));
                self.begun(node, next);
            }
            None => {}
        }
    }

    /// Lets a port's queue grow and shrink until now; what it drops is noted with its train.
    pub(super) fn advance(&mut self, node: u32) {
        let port = &mut self.ports[node as usize];
        let each = port.advance(self.now, self.room);
        if each == 0 {
            return;
        }
        for train in port.arriving() {
            let Some(train) = self.trains[*train as usize].as_mut() else { continue };
            // The last of what arrived until now.
            let all = train.payload.len() as u64;
            let share = |time: u64| (u128::from(all) * u128::from(time) / u128::from(train.takes.max(1))) as u64;
            let to = share(self.now - train.reached).min(all);
            let from = to.saturating_sub(share(each));
            train.dropped.push((node, from, to));
        }
    }

    pub(super) fn control(&mut self, to: Destination, bytes: &Bytes) {
        let weight = bytes.len() as u64 + TAG as u64 + HEADERS;
        let takes = self.wire_time(weight);
        self.each(to, |cluster, node| {
            cluster.advance(node);
            let lost = cluster.lost();
            match cluster.ports[node as usize].control(cluster.now, takes, cluster.room) {
                Some(at) if !lost => {
                    cluster.count.control_bytes += weight;
                    cluster.count.control_messages += 1;
                    cluster.count_put(node, bytes);
                    cluster.reach(at, node, Arrived::Control(bytes.clone()));
                }
                _ => cluster.count.dropped += 1,
            }
        });
    }

    /// A put that nobody negotiates is a request to each target of its copies.
    fn count_put(&mut self, node: u32, bytes: &Bytes) {
        let counts = self.ended.is_none() && self.profile.config.transport == Transport::Hash;
        if counts && matches!(decode_message(bytes), Some((_, Message::PutRequest(_)))) {
            self.asked.add(node, self.now);
        }
    }

    fn count_transfer(&mut self, node: u32) {
        if self.ended.is_none() {
            self.transfers.add(node, self.now);
        }
    }

    pub(super) fn reach(&mut self, at: u64, node: u32, arrived: Arrived) {
        if at == self.now {
            self.reached(node, arrived);
        } else {
            self.queue.push(at, Happening::Reached(node, arrived));
        }
    }

    pub(super) fn head(&mut self, id: u32) {
        let now = self.now;
        let Some(train) = self.trains[id as usize].as_mut() else { return };
        train.reached = now;
        let (to, header, datagram) = (train.to, train.header, train.datagram);
        let first = train.payload.slice(..train.per_datagram.min(train.payload.len()));
        self.each(to, |cluster, node| {
            cluster.advance(node);
            let lost = cluster.lost();
            cluster.count_transfer(node);
            let port = &mut cluster.ports[node as usize];
            cluster.count.collisions += u64::from(!port.arriving().is_empty());
            let at = port.begin(now, id, datagram, datagram);
            if lost {
                cluster.count.dropped += 1;
            } else {
                cluster.reach(at, node, Arrived::Payload(header, first.clone()));
            }
        });
    }

    pub(super) fn tail(&mut self, id: u32) {
        let Some(train) = self.trains[id as usize].as_ref() else { return };
        let to = train.to;
        self.each(to, |cluster, node| {
            cluster.advance(node);
            let at = cluster.ports[node as usize].end(cluster.now, id);
            cluster.rest(at, node, id);
        });
        self.trains[id as usize] = None;
        self.free_trains.push(id);
    }

    /// What of a train behind its first datagram reaches a node.
    pub(super) fn rest(&mut self, at: u64, node: u32, id: u32) {
        let Some(train) = self.trains[id as usize].as_ref() else { return };
        let (len, step) = (train.payload.len(), train.per_datagram);
        let (header, payload) = (train.header, train.payload.clone());
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
        if self.profile.loss_ppm > 0 {
            for from in (step..len).step_by(step) {
                if self.lost() {
                    lost.push((from, (from + step).min(len)));
                }
            }
            lost.sort_unstable();
        }
        self.count.dropped += lost.iter().map(|(from, to)| (to - from).div_ceil(step) as u64).sum::<u64>();
        parts(len, step, &lost, |from, to| {
            let header = DataHeader { offset: header.offset + from as u32, ..header };
            self.reach(at, node, Arrived::Payload(header, payload.slice(from..to)));
        });
    }
}
