//! Links and one switch: serialization at the sender, a bounded queue at each receiver's port, multicast by copy. Or
//! connections over them, which keep the order, stall and break.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use protocol::id::NodeId;
use protocol::map::ClusterMap;
use protocol::rng::Rng;
use protocol::time::{Instant, Span};

use crate::swarm::{Connections, Faults};

/// Time on the wire and in the switch.
const TRIP: Span = Span::from_micros(5);
/// What a port's queue holds, as time at its rate.
const QUEUE: Span = Span::from_millis(20);
/// The longest time for which a connection stalls, or is not there. Then it works for as long: nobody is silent all the time.
const AWAY: Span = Span::from_millis(300);
/// Headers of Ethernet, IP and UDP.
const OVERHEAD: u64 = 66;

/// Which targets listen to each multicast number under a map: as [`ClusterMap::memberships`] says, for all of them at once.
pub(crate) fn listeners(map: &ClusterMap) -> BTreeMap<u32, Vec<NodeId>> {
    let mut listeners: BTreeMap<u32, Vec<NodeId>> = BTreeMap::new();
    for group in map.group_ids() {
        let members: Vec<NodeId> = map.members(group).map(|t| t.id).collect();
        listeners.extend(map.number(map.group_set(group)).map(|number| (number, members.clone())));
        for mask in 0_u32..1 << members.len() {
            if (2..=u32::from(map.copies)).contains(&mask.count_ones()) {
                let chosen = members.iter().enumerate().filter(|(nth, _)| mask >> nth & 1 == 1).map(|(_, id)| *id);
                let chosen: Vec<NodeId> = chosen.collect();
                let number = map.set_of(group, |id| chosen.contains(&id)).and_then(|set| map.number(set));
                listeners.extend(number.map(|number| (number, chosen)));
            }
        }
    }
    listeners
}

/// A connection from one node to another, or its absence.
#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    /// When the last message arrives.
    last: Instant,
    /// Until when there is none.
    absent: Instant,
    /// Until when it has stalled.
    stalled: Instant,
    /// Until when nothing happens to it.
    calm: Instant,
}

pub(crate) struct Net {
    rate: u64,
    faults: Faults,
    rng: Rng,
    /// Per node: when its port is free, outwards and inwards.
    ports: BTreeMap<NodeId, (Instant, Instant)>,
    /// From one node to another.
    connections: BTreeMap<(NodeId, NodeId), Connection>,
    /// Nodes that are cut off, and from what: everything they send to others, everything they should receive, or both.
    pub(crate) cut: Option<(Vec<NodeId>, bool, bool)>,
    /// Nodes that are cut off from all others.
    pub(crate) isolated: BTreeSet<NodeId>,
    /// Whether the switch drops multicast.
    pub(crate) mute: bool,
}

impl Net {
    pub(crate) fn new(rate: u64, faults: Faults, rng: Rng) -> Self {
        Self {
            rate,
            faults,
            rng,
            ports: BTreeMap::new(),
            connections: BTreeMap::new(),
            cut: None,
            isolated: BTreeSet::new(),
            mute: false,
        }
    }

    pub(crate) fn heal(&mut self) {
        self.faults = Faults::default();
        self.cut = None;
        self.isolated.clear();
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
            if let Some(faults) = self.faults.connections {
                arrivals
                    .extend(self.over_connection(now, at, (from, *to), faults).map(|at| (at, *to, datagram.clone())));
                continue;
            }
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

    /// When a message arrives that would at `at` if nothing were before it; `None` when it is lost with its connection.
    fn over_connection(
        &mut self,
        now: Instant,
        at: Instant,
        ends: (NodeId, NodeId),
        faults: Connections,
    ) -> Option<Instant> {
        let connection = self.connections.entry(ends).or_default();
        if connection.absent > now {
            return None;
        }
        let mut away = || Span::from_nanos(self.rng.below(AWAY.as_nanos()));
        let (breaks, stalls) = (away(), away());
        let is_calm = connection.calm > now;
        if self.rng.chance(faults.breaks, 1_000) && !is_calm {
            (connection.absent, connection.calm) = (now + breaks, now + breaks + AWAY);
            // The other direction goes with it.
            let back = self.connections.entry((ends.1, ends.0)).or_default();
            back.absent = back.absent.max(now + breaks);
            back.calm = back.calm.max(now + breaks + AWAY);
            return None;
        }
        if self.rng.chance(faults.stalls, 1_000) && !is_calm {
            (connection.stalled, connection.calm) = (at + stalls, at + stalls + AWAY);
        }
        connection.last = at.max(connection.last).max(connection.stalled);
        Some(connection.last)
    }

    /// Whether what these two said to each other could be lost or late since then, as a connection broke or stalled.
    pub(crate) fn was_away(&self, one: NodeId, other: NodeId, since: Instant) -> bool {
        [(one, other), (other, one)].iter().any(|ends| {
            self.connections.get(ends).is_some_and(|connection| connection.absent.max(connection.stalled) > since)
        })
    }

    /// Whether all that went over connections which stalled has arrived before this.
    pub(crate) fn is_through(&self, at: Instant) -> bool {
        self.connections.values().all(|connection| connection.last < at)
    }

    /// Whether nothing that one sends reaches the other.
    pub(crate) fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        let isolated = self.isolated.contains(&from) || self.isolated.contains(&to);
        isolated
            || self.cut.as_ref().is_some_and(|(nodes, out, inward)| {
                let (sends, receives) = (nodes.contains(&from), nodes.contains(&to));
                sends && !receives && *out || receives && !sends && *inward
            })
    }

    fn flip(&mut self, datagram: &Bytes) -> Bytes {
        let mut bytes = datagram.to_vec();
        let at = self.rng.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << self.rng.below(8);
        bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::id::{ClusterId, Epoch};
    use protocol::map::TargetEntry;

    #[test]
    fn everybody_listens_to_what_the_map_says() {
        for (targets, domains, copies) in [(9, 9, 3), (23, 7, 3), (14, 5, 2), (6, 6, 2)] {
            let entry = |n| TargetEntry { id: NodeId(n), domain: (n % domains) as u16, capacity: 1 << 30 };
            let entries = (1..=targets).map(entry).collect();
            let map = ClusterMap::new(ClusterId(1), Epoch(1), copies, 3, entries).expect("a good map");
            let mut expected: BTreeMap<u32, Vec<NodeId>> = BTreeMap::new();
            for id in (1..=targets).map(NodeId) {
                for number in map.memberships(id).into_iter().filter_map(|set| map.number(set)) {
                    expected.entry(number).or_default().push(id);
                }
            }
            let mut all = listeners(&map);
            all.values_mut().for_each(|ids| ids.sort_unstable());
            assert_eq!(all, expected);
        }
    }
}
