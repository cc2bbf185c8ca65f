//! One order over several connections: what came over whichever of them is handed on as it was sent.

use core::fmt;
use std::collections::BTreeMap;

/// Hands on what the other side numbered from 0 in the order of the numbers, and keeps what came too early.
#[derive(Debug)]
pub struct Order<T> {
    next: u64,
    early: BTreeMap<u64, T>,
    most: usize,
}

/// What another side may not do that keeps to the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disorder {
    /// The number was there before.
    Again(u64),
    /// The number is further ahead of the next one than may be kept.
    TooEarly(u64),
}

impl fmt::Display for Disorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Again(number) => write!(f, "message {number} came twice"),
            Self::TooEarly(number) => write!(f, "message {number} came too long before those that were sent before it"),
        }
    }
}

impl core::error::Error for Disorder {}

impl<T> Order<T> {
    /// Nothing came yet. At most so many are kept: who sends has no more under way.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self { next: 0, early: BTreeMap::new(), most }
    }

    /// This one came; [`Order::next`] says what can be handed on now.
    ///
    /// # Errors
    /// The other side does not keep to what was agreed: its connections should be closed.
    pub fn came(&mut self, number: u64, item: T) -> Result<(), Disorder> {
        let ahead = number.checked_sub(self.next).ok_or(Disorder::Again(number))?;
        if ahead >= self.most as u64 {
            return Err(Disorder::TooEarly(number));
        }
        // The first one stays.
        if self.early.contains_key(&number) {
            return Err(Disorder::Again(number));
        }
        self.early.insert(number, item);
        Ok(())
    }

    /// The next in order, if it is here.
    #[expect(clippy::should_implement_trait, reason = "it does not end where there is none")]
    pub fn next(&mut self) -> Option<T> {
        let item = self.early.remove(&self.next)?;
        self.next += 1;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn whatever_comes_first_it_is_handed_on_as_it_was_sent() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let (mut order, mut handed) = (Order::new(16), Vec::new());
            // Four connections, each of which keeps its order.
            let mut lanes = vec![Vec::new(); 4];
            for number in 0..16_u64 {
                lanes[rng.below(4) as usize].insert(0, number);
            }
            while lanes.iter().any(|lane| !lane.is_empty()) {
                if let Some(number) = lanes[rng.below(4) as usize].pop() {
                    assert_eq!(order.came(number, number), Ok(()));
                }
                handed.extend(core::iter::from_fn(|| order.next()));
            }
            assert_eq!(handed, (0..16).collect::<Vec<_>>(), "seed {seed}");
        }
    }

    #[test]
    fn it_is_bounded_and_takes_nothing_twice() {
        let mut order = Order::new(3);
        assert_eq!(order.came(3, ()), Err(Disorder::TooEarly(3)));
        assert_eq!(order.came(2, ()), Ok(()));
        assert_eq!(order.came(2, ()), Err(Disorder::Again(2)));
        assert_eq!(order.next(), None);
        assert_eq!(order.came(0, ()), Ok(()));
        assert_eq!((order.next(), order.next()), (Some(()), None));
        assert_eq!(order.came(0, ()), Err(Disorder::Again(0)));
        assert_eq!(order.came(3, ()), Ok(()));
        assert_eq!(order.came(u64::MAX, ()), Err(Disorder::TooEarly(u64::MAX)));
    }
}
