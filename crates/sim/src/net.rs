//! Links and one switch: serialization at the sender, a bounded queue at each receiver's port, multicast by copy.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use protocol::id::NodeId;
use protocol::map::ClusterMap;
use protocol::rng::Rng;
use protocol::time::{Instant, Span};

use crate::swarm::Faults;

/// Time on the wire and in the switch.
const TRIP: Span = Span::from_micros(5);
/// What a port's queue holds, as time at its rate.
const QUEUE: Span = Span::from_millis(20);
/// Headers of Ethernet, IP and UDP.
const OVERHEAD: u64 = 66;

/// Which targets listen to each multicast number under a map.
pub(crate) fn listeners(map: &ClusterMap) -> BTreeMap<u32, Vec<NodeId>> {
    let mut listeners: BTreeMap<u32, Vec<NodeId>> = BTreeMap::new();
    for target in map.targets() {
        for number in map.memberships(target.id).into_iter().filter_map(|set| map.number(set)) {
            listeners.entry(number).or_default().push(target.id);
        }
    }
    listeners
}

pub(crate) struct Net {
    rate: u64,
    faults: Faults,
    rng: Rng,
    /// Per node: when its port is free, outwards and inwards.
    ports: BTreeMap<NodeId, (Instant, Instant)>,
    /// A node that is cut off, and from what: everything it sends, everything it should receive, or both.
    pub(crate) cut: Option<(NodeId, bool, bool)>,
    /// Nodes that are cut off from all others.
    pub(crate) apart: BTreeSet<NodeId>,
    /// Whether the switch drops multicast.
    pub(crate) mute: bool,
}

impl Net {
    pub(crate) fn new(rate: u64, faults: Faults, rng: Rng) -> Self {
        Self { rate, faults, rng, ports: BTreeMap::new(), cut: None, apart: BTreeSet::new(), mute: false }
    }

    pub(crate) fn heal(&mut self) {
        self.faults = Faults::default();
        self.cut = None;
        self.apart.clear();
        self.mute = false;
    }

    /// Sends one datagram to `receivers` at `now`: when it arrives where, and as what.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        from: NodeId,
        receivers: &[NodeId],
        datagram: &Bytes,
    ) -> Vec<(Instant, NodeId, Bytes)> {
        let time = Span::of_transfer(datagram.len() as u64 + OVERHEAD, self.rate);
        let out = &mut self.ports.entry(from).or_default().0;
        let sent = (*out).max(now) + time;
        *out = sent;
        let mut arrivals = Vec::new();
        for to in receivers {
            if self.is_cut(from, *to) || self.rng.chance(self.faults.loss, 1_000) {
                continue;
            }
            let port = &mut self.ports.entry(*to).or_default().1;
            let reaches = sent + TRIP;
            if port.since(reaches) > QUEUE {
                continue;
            }
            // The last bit leaves the switch a transfer after the first, or after whatever is before it.
            let mut at = (*port + time).max(reaches);
            *port = at;
            if self.rng.chance(self.faults.reorder, 1_000) {
                at += Span::from_nanos(self.rng.below(1_000_000));
            }
            let contents =
                if self.rng.chance(self.faults.corrupt, 1_000) { self.flip(datagram) } else { datagram.clone() };
            if self.rng.chance(self.faults.duplicate, 1_000) {
                let again = at + Span::from_nanos(self.rng.below(2_000_000));
                arrivals.push((again, *to, contents.clone()));
            }
            arrivals.push((at, *to, contents));
        }
        arrivals
    }

    fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        let apart = self.apart.contains(&from) || self.apart.contains(&to);
        apart || self.cut.is_some_and(|(node, out, inward)| node == from && out || node == to && inward)
    }

    fn flip(&mut self, datagram: &Bytes) -> Bytes {
        let mut bytes = datagram.to_vec();
        let at = self.rng.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << self.rng.below(8);
        bytes.into()
    }
}
