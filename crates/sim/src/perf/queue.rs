//! The event queue of a run.
//!
//! Most events come within milliseconds of the present, and none before it. So time is cut into short stretches. Each
//! of the next few thousand stretches has a list of its own, which is sorted when it becomes the present one. What is
//! added to the present stretch goes into a small heap, and only what comes later than all lists goes into a large one.

use std::ops::Range;

use crate::heap::{self, Key as _, Keys, Slab};

/// A stretch is 2^9 nanoseconds, and there are so many lists.
const STRETCH: u32 = 9;
const LISTS: usize = 1 << 13;
/// Lists whose bits are in one word.
const WORD: usize = u64::BITS as usize;
/// Events that are looked at ahead together.
const AHEAD: usize = 16;

/// Bits of a key's first number that say whose an event is; those above them say when.
const SOURCE: u32 = 20;
/// Most sources.
pub(super) const SOURCES: u32 = 1 << SOURCE;
/// The last moment that a key can say: 4.8 hours.
pub(super) const LAST: u64 = u64::MAX >> SOURCE;

/// What decides between events at one moment: their source, a number below [`SOURCES`], and how many events it had
/// added before. That does not depend on what others do meanwhile, so that a run can be cut into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) source: u32,
    pub(super) count: u32,
}

/// When and whose, in which order among its own, and where the event lies: one number, so that one comparison is enough.
#[derive(Clone, Copy, Debug)]
struct Key(u128);

impl Key {
    fn new(at: u64, Order { source, count }: Order, slot: u32) -> Self {
        let when = at.min(LAST) << SOURCE | u64::from(source);
        Self(u128::from(when) << 64 | u128::from(count) << 32 | u128::from(slot))
    }

    const fn at(self) -> u64 {
        (self.0 >> (64 + SOURCE)) as u64
    }

    const fn stretch(self) -> u64 {
        self.at() >> STRETCH
    }
}

impl heap::Key for Key {
    fn is_before(self, other: Self) -> bool {
        self.0 < other.0
    }

    fn slot(self) -> u32 {
        self.0 as u32
    }
}

/// Events in the order of their time in nanoseconds, and among equals of [`Order`].
#[derive(Debug)]
pub(super) struct Queue<E> {
    slab: Slab<E>,
    /// The present stretch, what was known to come in it when it began, the first one last, and what was added since.
    stretch: u64,
    present: Vec<(Key, E)>,
    added: Keys<Key>,
    /// How many of those that were known nobody has looked at.
    unseen: usize,
    /// What comes in each of the [`LISTS`] stretches that begin with the present one, in no order, and how much that is.
    lists: Vec<Vec<Key>>,
    /// Which of the lists have something in them, a bit each, so that empty ones are passed over together.
    listed: [u64; LISTS / WORD],
    /// Lists that were emptied: memory that was used just now is at hand sooner than that of the list's last turn.
    spare: Vec<Vec<Key>>,
    /// What comes later.
    later: Keys<Key>,
}

impl<E> Queue<E> {
    pub(super) fn new() -> Self {
        Self {
            slab: Slab::new(),
            stretch: 0,
            present: Vec::new(),
            unseen: 0,
            added: Keys::new(),
            lists: vec![Vec::new(); LISTS],
            listed: [0; LISTS / WORD],
            spare: Vec::new(),
            later: Keys::new(),
        }
    }

    /// Adds an event. What is later than [`LAST`] comes then.
    pub(super) fn push(&mut self, at: u64, order: Order, event: E) {
        let slot = self.slab.put(event);
        self.add(Key::new(at, order, slot));
    }

    fn add(&mut self, key: Key) {
        let stretch = key.stretch();
        if stretch <= self.stretch {
            self.added.push(key);
        } else if stretch - self.stretch < LISTS as u64 {
            let place = stretch as usize % LISTS;
            let list = &mut self.lists[place];
            if list.is_empty() {
                *list = self.spare.pop().unwrap_or_default();
                self.listed[place / WORD] |= 1 << (place % WORD);
            }
            list.push(key);
        } else {
            self.later.push(key);
        }
    }

    /// When the first event comes.
    pub(super) fn first(&mut self) -> Option<u64> {
        loop {
            let first = match (self.present.last(), self.added.first()) {
                (Some((known, _)), Some(added)) => Some(known.at().min(added.at())),
                (known, added) => known.map(|(key, _)| *key).or(added).map(Key::at),
            };
            if first.is_some() {
                return first;
            }
            self.advance()?;
        }
    }

    /// The first event, if it comes before `end`.
    pub(super) fn pop(&mut self, end: u64) -> Option<(u64, E)> {
        let at = self.first().filter(|at| *at < end)?;
        if let Some((known, _)) = self.present.last()
            && self.added.first().is_none_or(|added| !added.is_before(*known))
        {
            return self.present.pop().map(|(_, event)| (at, event));
        }
        let key = self.added.pop()?;
        self.slab.take(key.slot()).map(|event| (at, event))
    }

    /// Which of [`Self::known`] come next, if nobody has looked at them.
    pub(super) fn look_ahead(&mut self) -> Option<Range<usize>> {
        if self.present.len() > self.unseen || self.unseen == 0 {
            return None;
        }
        let until = self.present.len();
        self.unseen = self.unseen.saturating_sub(AHEAD);
        Some(self.unseen..until)
    }

    /// Events that were known when the present stretch began.
    pub(super) fn known(&self, places: Range<usize>) -> impl Iterator<Item = &E> {
        self.present[places].iter().map(|(_, event)| event)
    }

    /// The next stretch after the present one that has a list with something in it.
    fn next_listed(&self) -> Option<u64> {
        let next = self.stretch + 1;
        let (first, passed) = (next as usize % LISTS / WORD, next as usize % WORD);
        // Bits of the first word that come before the next stretch's are those of the last lists.
        let words = self.listed.iter().cycle().skip(first).take(self.listed.len() + 1);
        let ahead = words.enumerate().find_map(|(n, word)| {
            let word = if n == 0 { word >> passed << passed } else { *word };
            (word != 0).then(|| n * WORD + word.trailing_zeros() as usize - passed)
        });
        ahead.map(|ahead| next + ahead as u64)
    }

    /// The present becomes the next stretch in which something comes. `None` when nothing does.
    fn advance(&mut self) -> Option<()> {
        self.stretch = match self.next_listed() {
            Some(stretch) => stretch,
            None => self.later.first()?.stretch(),
        };
        let place = self.stretch as usize % LISTS;
        let mut list = core::mem::take(&mut self.lists[place]);
        if !list.is_empty() {
            self.listed[place / WORD] &= !(1 << (place % WORD));
            list.sort_unstable_by_key(|key| core::cmp::Reverse(key.0));
            let slab = &mut self.slab;
            self.present.extend(list.drain(..).filter_map(|key| slab.take(key.slot()).map(|event| (key, event))));
            self.unseen = self.present.len();
            self.spare.push(list);
        }
        // What was too late for the lists before, and is not any more.
        while let Some(key) = self.later.first().filter(|key| key.stretch() - self.stretch < LISTS as u64) {
            self.later.pop();
            self.add(key);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::rng::Rng;

    #[test]
    fn events_come_in_order_of_time_then_of_who_added_them() {
        for reach in [40, 5_000, 20_000_000] {
            let mut rng = Rng::new(7);
            let mut queue = Queue::new();
            let mut model = std::collections::BTreeMap::new();
            let (mut popped, mut counts) = (0, [0_u32; 3]);
            for n in 0..5_000_u64 {
                let most = rng.below(reach) + 1;
                let at = popped + rng.below(most);
                let source = rng.below(3) as u32;
                counts[source as usize] += 1;
                let count = counts[source as usize];
                queue.push(at, Order { source, count }, n);
                model.insert((at, source, count), n);
                if rng.chance(45, 100) {
                    let (first, _) = model.first_key_value().unwrap();
                    assert_eq!((queue.first(), queue.pop(first.0)), (Some(first.0), None));
                    let ((at, ..), event) = model.pop_first().unwrap();
                    assert_eq!(queue.pop(at + 1), Some((at, event)));
                    popped = at;
                }
            }
            while let Some((at, event)) = queue.pop(u64::MAX) {
                let ((should, ..), n) = model.pop_first().unwrap();
                assert_eq!((at, event), (should, n));
            }
            assert!(model.is_empty());
        }
    }

    #[test]
    fn what_comes_from_elsewhere_may_come_before_what_was_looked_at() {
        let mut queue = Queue::new();
        queue.push(1_000_000, Order { source: 1, count: 1 }, 1);
        assert_eq!(queue.first(), Some(1_000_000));
        queue.push(10_000, Order { source: 0, count: 1 }, 0);
        assert_eq!((queue.pop(u64::MAX), queue.pop(u64::MAX)), (Some((10_000, 0)), Some((1_000_000, 1))));
    }
}
