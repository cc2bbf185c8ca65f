//! What an event queue lies in: a heap of four children to a node over small keys, the events themselves in a slab. Nothing
//! is allocated once both have grown to the size of the run.

/// Says when an event comes, and where it lies.
pub(crate) trait Key: Copy {
    /// Of two events, no two of which come at once.
    fn is_before(self, other: Self) -> bool;
    fn slot(self) -> u32;
}

/// Events in the order of their keys.
#[derive(Debug)]
pub(crate) struct Heap<K, E> {
    keys: Vec<K>,
    slab: Vec<Option<E>>,
    free: Vec<u32>,
}

impl<K: Key, E> Heap<K, E> {
    pub(crate) const fn new() -> Self {
        Self { keys: Vec::new(), slab: Vec::new(), free: Vec::new() }
    }

    /// Adds an event, whose key is made of its slot.
    pub(crate) fn push(&mut self, event: E, key: impl FnOnce(u32) -> K) {
        let slot = if let Some(slot) = self.free.pop() {
            self.slab[slot as usize] = Some(event);
            slot
        } else {
            self.slab.push(Some(event));
            self.slab.len() as u32 - 1
        };
        let key = key(slot);
        self.keys.push(key);
        let mut hole = self.keys.len() - 1;
        while hole > 0 {
            let parent = (hole - 1) / 4;
            if !key.is_before(self.keys[parent]) {
                break;
            }
            self.keys[hole] = self.keys[parent];
            hole = parent;
        }
        self.keys[hole] = key;
    }

    /// The first event.
    pub(crate) fn pop(&mut self) -> Option<(K, E)> {
        let first = *self.keys.first()?;
        let last = self.keys.pop()?;
        if !self.keys.is_empty() {
            self.sift_down(last);
        }
        self.free.push(first.slot());
        self.slab[first.slot() as usize].take().map(|event| (first, event))
    }

    fn sift_down(&mut self, key: K) {
        let len = self.keys.len();
        let mut hole = 0;
        loop {
            let child = hole * 4 + 1;
            if child >= len {
                break;
            }
            let mut least = child;
            for other in child + 1..(child + 4).min(len) {
                if self.keys[other].is_before(self.keys[least]) {
                    least = other;
                }
            }
            if !self.keys[least].is_before(key) {
                break;
            }
            self.keys[hole] = self.keys[least];
            hole = least;
        }
        self.keys[hole] = key;
    }
}
