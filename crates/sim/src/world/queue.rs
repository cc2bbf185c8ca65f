//! What is to happen, in order. Small keys are sorted; what they stand for stays where it is.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use protocol::time::Instant;

pub(super) struct Queue<E> {
    /// When, a shuffle of what happens at one moment, and where it is.
    keys: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    events: Vec<Option<E>>,
    free: Vec<usize>,
}

impl<E> Queue<E> {
    pub(super) const fn new() -> Self {
        Self { keys: BinaryHeap::new(), events: Vec::new(), free: Vec::new() }
    }

    pub(super) fn push(&mut self, at: Instant, tie: u64, event: E) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[place] = Some(event);
        self.keys.push(Reverse((at, tie, place)));
    }

    pub(super) fn pop(&mut self) -> Option<(Instant, E)> {
        let Reverse((at, _, place)) = self.keys.pop()?;
        self.free.push(place);
        self.events[place].take().map(|event| (at, event))
    }
}
