//! The event queue of a run.

use crate::heap::{self, Heap};

/// A key: when, in which order among equals, and where the event lies.
#[derive(Clone, Copy, Debug)]
struct Key {
    at: u64,
    /// Wraps: only the order of events at one moment is read from it, and no moment has 2^31 of them.
    sequence: u32,
    slot: u32,
}

impl heap::Key for Key {
    fn is_before(self, other: Self) -> bool {
        self.at < other.at || self.at == other.at && (self.sequence.wrapping_sub(other.sequence) as i32) < 0
    }

    fn slot(self) -> u32 {
        self.slot
    }
}

/// Events in the order of their time in nanoseconds, and among equals of their insertion.
#[derive(Debug)]
pub(super) struct Queue<E> {
    heap: Heap<Key, E>,
    sequence: u32,
}

impl<E> Queue<E> {
    pub(super) const fn new() -> Self {
        Self { heap: Heap::new(), sequence: 0 }
    }

    pub(super) fn push(&mut self, at: u64, event: E) {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        self.heap.push(event, |slot| Key { at, sequence, slot });
    }

    pub(super) fn pop(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|(key, event)| (key.at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::rng::Rng;

    #[test]
    fn events_come_in_order_of_time_then_insertion() {
        let mut rng = Rng::new(7);
        let mut queue = Queue::new();
        // Just before the sequence wraps: the order of equals must survive it.
        queue.sequence = u32::MAX - 500;
        let mut model = std::collections::BTreeMap::new();
        let mut popped = 0;
        for n in 0..5_000_u64 {
            let at = popped + rng.below(40);
            queue.push(at, n);
            model.insert((at, n), ());
            if rng.chance(45, 100) {
                let (at, event) = queue.pop().unwrap();
                assert_eq!(model.pop_first().unwrap().0, (at, event));
                popped = at;
            }
        }
        while let Some((at, event)) = queue.pop() {
            assert_eq!(model.pop_first().unwrap().0, (at, event));
        }
        assert!(model.is_empty());
    }
}
