//! Hands on in the order of sending what several workers bring of one client, without one of them waiting for another.

use std::sync::Mutex;

use protocol::messenger::{Disorder, Order};

use super::lock;

/// What came over the connections of one client. See the [module](self).
#[derive(Debug)]
pub struct InOrder<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    order: Order<T>,
    /// Whether a worker hands on: it goes on with what others bring meanwhile.
    is_busy: bool,
}

impl<T> InOrder<T> {
    /// Nothing came yet. At most so many are kept that came too early.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self { state: Mutex::new(State { order: Order::new(most), is_busy: false }) }
    }

    /// These came, with their numbers: those that can be are handed on, here or by the worker that does so already.
    ///
    /// # Errors
    /// The client does not keep to its order: one of the numbers was there before, or is too far ahead. The others are handed
    /// on all the same.
    pub fn came(&self, items: impl IntoIterator<Item = (u64, T)>, mut hand_on: impl FnMut(T)) -> Result<(), Disorder> {
        let mut state = lock(&self.state);
        let mut outcome = Ok(());
        for (number, item) in items {
            outcome = outcome.and(state.order.came(number, item));
        }
        if state.is_busy {
            return outcome;
        }
        state.is_busy = true;
        while let Some(item) = state.order.next() {
            drop(state);
            hand_on(item);
            state = lock(&self.state);
        }
        state.is_busy = false;
        outcome
    }
}
