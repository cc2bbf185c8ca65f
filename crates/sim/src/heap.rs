//! What event queues lie in: a heap of four children to a node over small keys, and the events themselves in a slab. Nothing
//! is allocated once both have grown to the size of the run.

/// Says when an event comes, and where it lies.
pub(crate) trait Key: Copy {
    /// Of two events, no two of which come at once.
    fn is_before(self, other: Self) -> bool;
    fn slot(self) -> u32;
}

/// Keys in their order.
#[derive(Debug)]
pub(crate) struct Keys<K>(Vec<K>);

/// Events, each in its slot.
#[derive(Debug)]
pub(crate) struct Slab<E> {
    slots: Vec<Option<E>>,
    free: Vec<u32>,
}

/// Events in the order of their keys.
#[derive(Debug)]
pub(crate) struct Heap<K, E> {
    keys: Keys<K>,
    slab: Slab<E>,
}

impl<K: Key, E> Heap<K, E> {
    pub(crate) const fn new() -> Self {
        Self { keys: Keys::new(), slab: Slab::new() }
    }

    /// Adds an event, whose key is made of its slot.
    pub(crate) fn push(&mut self, event: E, key: impl FnOnce(u32) -> K) {
        let slot = self.slab.put(event);
        self.keys.push(key(slot));
    }

    /// The first event.
    pub(crate) fn pop(&mut self) -> Option<(K, E)> {
        let first = self.keys.pop()?;
        self.slab.take(first.slot()).map(|event| (first, event))
    }
}

impl<E> Slab<E> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn put(&mut self, event: E) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(event);
            slot
        } else {
            self.slots.push(Some(event));
            self.slots.len() as u32 - 1
        }
    }

    pub(crate) fn take(&mut self, slot: u32) -> Option<E> {
        self.free.push(slot);
        self.slots[slot as usize].take()
    }
}

impl<K: Key> Keys<K> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn first(&self) -> Option<K> {
        self.0.first().copied()
    }

    pub(crate) fn push(&mut self, key: K) {
        let keys = &mut self.0;
        keys.push(key);
        let mut hole = keys.len() - 1;
        while hole > 0 {
            let parent = (hole - 1) / 4;
            if !key.is_before(keys[parent]) {
                break;
            }
            keys[hole] = keys[parent];
            hole = parent;
        }
        keys[hole] = key;
    }

    pub(crate) fn pop(&mut self) -> Option<K> {
        let first = self.first()?;
        let last = self.0.pop()?;
        if !self.0.is_empty() {
            self.sift_down(last);
        }
        Some(first)
    }

    fn sift_down(&mut self, key: K) {
        let keys = &mut self.0;
        let len = keys.len();
        let mut hole = 0;
        loop {
            let child = hole * 4 + 1;
            if child >= len {
                break;
            }
            let mut least = child;
            for other in child + 1..(child + 4).min(len) {
                if keys[other].is_before(keys[least]) {
                    least = other;
                }
            }
            if !keys[least].is_before(key) {
                break;
            }
            keys[hole] = keys[least];
            hole = least;
        }
        keys[hole] = key;
    }
}
