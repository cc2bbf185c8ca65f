//! What is to happen, in order of time, and among equals of a shuffle.

use protocol::time::Instant;

use crate::heap::{self, Heap};

#[derive(Clone, Copy)]
struct Key {
    at: Instant,
    tie: u64,
    slot: u32,
}

impl heap::Key for Key {
    fn is_before(self, other: Self) -> bool {
        let order = |key: Self| u128::from(key.at.as_nanos()) << 64 | u128::from(key.tie);
        order(self) < order(other)
    }

    fn slot(self) -> u32 {
        self.slot
    }
}

pub(super) struct Queue<E>(Heap<Key, E>);

impl<E> Queue<E> {
    pub(super) const fn new() -> Self {
        Self(Heap::new())
    }

    pub(super) fn push(&mut self, at: Instant, tie: u64, event: E) {
        self.0.push(event, |slot| Key { at, tie, slot });
    }

    pub(super) fn pop(&mut self) -> Option<(Instant, E)> {
        self.0.pop().map(|(key, event)| (key.at, event))
    }
}
