//! The event queue: a heap of four children to a node over small keys, the events themselves in a slab. Nothing is
//! allocated once both have grown to the size of the run.

/// A key: when, in which order among equals, and where the event lies.
#[derive(Clone, Copy, Debug)]
struct Key {
    at: u64,
    /// Wraps: only the order of events at one moment is read from it, and no moment has 2^31 of them.
    sequence: u32,
    slot: u32,
}

impl Key {
    const fn is_before(self, other: Self) -> bool {
        self.at < other.at || self.at == other.at && (self.sequence.wrapping_sub(other.sequence) as i32) < 0
    }
}

/// Events in the order of their time in nanoseconds, and among equals of their insertion.
#[derive(Debug)]
pub(super) struct Queue<E> {
    heap: Vec<Key>,
    slab: Vec<Option<E>>,
    free: Vec<u32>,
    sequence: u32,
}

impl<E> Queue<E> {
    pub(super) const fn new() -> Self {
        Self { heap: Vec::new(), slab: Vec::new(), free: Vec::new(), sequence: 0 }
    }

    pub(super) fn push(&mut self, at: u64, event: E) {
        let slot = if let Some(slot) = self.free.pop() {
            self.slab[slot as usize] = Some(event);
            slot
        } else {
            self.slab.push(Some(event));
            self.slab.len() as u32 - 1
        };
        self.sequence = self.sequence.wrapping_add(1);
        let key = Key { at, sequence: self.sequence, slot };
        self.heap.push(key);
        let mut hole = self.heap.len() - 1;
        while hole > 0 {
            let parent = (hole - 1) / 4;
            if !key.is_before(self.heap[parent]) {
                break;
            }
            self.heap[hole] = self.heap[parent];
            hole = parent;
        }
        self.heap[hole] = key;
    }

    pub(super) fn pop(&mut self) -> Option<(u64, E)> {
        let first = *self.heap.first()?;
        let last = self.heap.pop()?;
        if !self.heap.is_empty() {
            self.sift_down(last);
        }
        self.free.push(first.slot);
        self.slab[first.slot as usize].take().map(|event| (first.at, event))
    }

    fn sift_down(&mut self, key: Key) {
        let len = self.heap.len();
        let mut hole = 0;
        loop {
            let child = hole * 4 + 1;
            if child >= len {
                break;
            }
            let mut least = child;
            for other in child + 1..(child + 4).min(len) {
                if self.heap[other].is_before(self.heap[least]) {
                    least = other;
                }
            }
            if !self.heap[least].is_before(key) {
                break;
            }
            self.heap[hole] = self.heap[least];
            hole = least;
        }
        self.heap[hole] = key;
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
