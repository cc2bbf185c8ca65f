//! Which aggregator is asked: one of those in the map that is not known to be silent, and not known to pass nothing on.

use std::collections::BTreeMap;

use crate::id::NodeId;
use crate::map::ClusterMap;
use crate::time::{Instant, Span};

/// How long one that failed is not asked; twice as long each time, up to [`LONGEST`].
const SHORTEST: Span = Span::from_millis(100);
const LONGEST: Span = Span::from_millis(800);
/// So many bids in a row may come too late to be waited for, before it counts as an aggregator that does not answer.
const LATE_BIDS: u8 = 4;

/// Those that failed when they were asked last.
#[derive(Debug, Default)]
pub(super) struct Aggregators {
    failed: BTreeMap<NodeId, Failed>,
}

#[derive(Clone, Copy, Debug)]
struct Failed {
    again: Instant,
    pause: Span,
    /// Bids in a row that were not there in time; `None` when it answered, and passed nothing on.
    missed: Option<u8>,
}

impl Aggregators {
    /// The one that is to be asked by a node, if one is. Nodes ask different ones, as long as these do not fail.
    pub(super) fn choose(&self, map: &ClusterMap, node: NodeId, now: Instant) -> Option<NodeId> {
        let all = map.aggregators();
        let first = crate::rng::mix(node.0.into()) as usize % all.len().max(1);
        let in_turn = all[first..].iter().chain(&all[..first]).copied();
        let mut may = in_turn.filter(|id| self.failed.get(id).is_none_or(|failed| failed.again <= now));
        may.next()
    }

    /// It did not answer in time.
    pub(super) fn miss(&mut self, id: NodeId, now: Instant) {
        let missed = self.failed.get(&id).map_or(Some(0), |failed| failed.missed);
        self.pause(id, now, missed.map(|missed| missed.saturating_add(1)));
    }

    /// What it was sent did not arrive.
    pub(super) fn fail(&mut self, id: NodeId, now: Instant) {
        self.pause(id, now, None);
    }

    fn pause(&mut self, id: NodeId, now: Instant, missed: Option<u8>) {
        let pause = self.failed.get(&id).map_or(SHORTEST, |failed| failed.pause.times(2).min(LONGEST));
        // Puts that were under way together fail together.
        if self.failed.get(&id).is_none_or(|failed| failed.again <= now) {
            self.failed.insert(id, Failed { again: now + pause, pause, missed });
        }
    }

    /// It bids, maybe too late for the choice: one that was late is there all the same, and is asked again at once.
    pub(super) fn note_bid(&mut self, id: NodeId, now: Instant) {
        let late = self.failed.get_mut(&id).filter(|failed| failed.missed.is_some_and(|missed| missed < LATE_BIDS));
        if let Some(failed) = late {
            (failed.again, failed.pause) = (now, SHORTEST.div(2));
        }
    }

    /// What it was sent arrived.
    pub(super) fn succeed(&mut self, id: NodeId) {
        self.failed.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{ClusterId, Epoch};
    use crate::map::TargetEntry;

    #[test]
    fn who_fails_is_passed_over_for_a_while_and_longer_each_time() {
        let entry = |id| TargetEntry { id: NodeId(id), domain: id as u16, capacity: 1 << 30 };
        let map = ClusterMap::new(ClusterId(5), Epoch(1), 3, 3, (1..=9).map(entry).collect()).expect("a good map");
        let (node, at) = (NodeId(1), |millis| Instant::ZERO + Span::from_millis(millis));
        let mut aggregators = Aggregators::default();
        assert_eq!(aggregators.choose(&map, node, at(0)), None);
        let map = map.with_aggregators([20, 21, 22].map(NodeId));
        let first = aggregators.choose(&map, node, at(0)).expect("there are some");
        aggregators.fail(first, at(10));
        aggregators.fail(first, at(11));
        let second = aggregators.choose(&map, node, at(109)).expect("there are others");
        assert!(second != first && aggregators.choose(&map, node, at(110)) == Some(first));
        aggregators.fail(first, at(110));
        assert_eq!(aggregators.choose(&map, node, at(309)), Some(second));
        aggregators.succeed(first);
        assert_eq!(aggregators.choose(&map, node, at(110)), Some(first));
        for nth in 1..LATE_BIDS {
            aggregators.miss(second, at(320));
            assert!(aggregators.choose(&map, node, at(320)) != Some(second), "miss {nth}");
            aggregators.fail(first, at(320));
            aggregators.note_bid(second, at(320));
            assert_eq!(aggregators.choose(&map, node, at(320)), Some(second), "late bid {nth}");
            aggregators.note_bid(first, at(320));
            assert_eq!(aggregators.choose(&map, node, at(320)), Some(second), "it bid, and passed nothing on");
        }
        aggregators.miss(second, at(320));
        aggregators.note_bid(second, at(320));
        assert!(aggregators.choose(&map, node, at(320)) != Some(second), "it is always late");
        aggregators.succeed(first);
        (0..3).for_each(|n| aggregators.fail(NodeId(20 + n), at(420)));
        assert_eq!(aggregators.choose(&map, node, at(421)), None);
        let chosen: std::collections::BTreeSet<NodeId> =
            (0..20).filter_map(|n| Aggregators::default().choose(&map, NodeId(n), at(0))).collect();
        assert_eq!(chosen.len(), 3, "nodes ask different ones");
    }
}
