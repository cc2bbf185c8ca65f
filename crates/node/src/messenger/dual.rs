//! Dual workers (the paper's section III B): each worker that reads has a companion, which verifies and hands on what was
//! read together with payload. Where one read brought no payload, the reader hands it on itself, unless something that came
//! before over that connection is still the companion's: order is kept, also when the connection moves. Until then the
//! connection stays with the companion that it has.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use protocol::time::Span;

use super::arrivals::{Arrival, Arrivals};
use super::{Dispatch, Spent, lock};
use crate::clock::now;

/// What is longer has payload.
const MESSAGE: usize = 1 << 10;

/// Hands on to another one, by companions of the workers.
#[derive(Debug)]
pub struct Dual<D: Dispatch> {
    shared: Arc<Shared<D>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
pub(super) struct Shared<D> {
    dispatch: Arc<D>,
    companions: Vec<Arrivals>,
    /// What companions have to do with each connection.
    connections: Mutex<BTreeMap<u32, Held>>,
    #[cfg(test)]
    pub(super) bug: Option<super::tests::Bug>,
}

#[derive(Debug, Default)]
struct Held {
    companion: usize,
    /// What waits there, or is being handed on.
    waiting: usize,
    /// How long the companion was busy with it, until its worker brings the next.
    spent: Span,
}

impl<D: Dispatch> Dual<D> {
    /// Companions for so many workers; with none, workers do everything.
    ///
    /// # Errors
    /// There are no threads left.
    pub fn start(workers: usize, name: &str, dispatch: Arc<D>) -> std::io::Result<Self> {
        Self::run(Shared::new(workers, dispatch), name)
    }

    pub(super) fn run(shared: Shared<D>, name: &str) -> std::io::Result<Self> {
        let mut dual = Self { shared: Arc::new(shared), threads: Vec::new() };
        for own in 0..dual.shared.companions.len() {
            let shared = Arc::clone(&dual.shared);
            let thread = std::thread::Builder::new().name(format!("{name}-{own}"));
            dual.threads.push(thread.spawn(move || shared.work(own))?);
        }
        Ok(dual)
    }
}

impl<D: Dispatch> Drop for Dual<D> {
    fn drop(&mut self) {
        self.shared.companions.iter().for_each(Arrivals::close);
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Whoever brings more to a companion that is no more does not wait for it.
struct Closes<'a>(&'a Arrivals);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<D: Dispatch> Shared<D> {
    pub(super) fn new(workers: usize, dispatch: Arc<D>) -> Self {
        Self {
            dispatch,
            companions: (0..workers).map(|_| Arrivals::default()).collect(),
            connections: Mutex::default(),
            #[cfg(test)]
            bug: None,
        }
    }

    fn work(&self, own: usize) {
        let _closes = Closes(&self.companions[own]);
        while let Some(arrival) = self.companions[own].wait() {
            let began = now();
            let (connection, is_over) = (arrival.connection, arrival.end.is_some());
            let spent = self.dispatch.came(arrival);
            let busy = now().since(began).less(spent.waited);
            let mut connections = lock(&self.connections);
            if is_over {
                connections.remove(&connection);
            } else if let Some(held) = connections.get_mut(&connection) {
                held.waiting -= 1;
                held.spent = held.spent + busy;
            }
        }
    }

    /// The companion that is to hand this on, if the worker does not itself; and how long one was busy with what came before.
    fn companion(&self, arrival: &Arrival) -> (Option<usize>, Span) {
        let Arrival { worker, connection, frames, .. } = arrival;
        let has_payload = frames.iter().any(|frame| frame.len() > MESSAGE);
        let mut connections = lock(&self.connections);
        if !has_payload && !connections.contains_key(connection) {
            return (None, Span::ZERO);
        }
        let held = connections.entry(*connection).or_default();
        let spent = core::mem::take(&mut held.spent);
        let is_behind = held.waiting > 0;
        #[cfg(test)]
        let is_behind = is_behind && !super::tests::overtakes(self.bug);
        if !is_behind {
            if !has_payload {
                if held.waiting == 0 {
                    connections.remove(connection);
                }
                return (None, spent);
            }
            held.companion = *worker;
        }
        held.waiting += 1;
        (Some(held.companion), spent)
    }
}

impl<D: Dispatch> Dispatch for Dual<D> {
    fn came(&self, arrival: Arrival) -> Spent {
        let shared = &*self.shared;
        if shared.companions.is_empty() {
            return shared.dispatch.came(arrival);
        }
        let (companion, beside) = shared.companion(&arrival);
        let Some(companion) = companion else {
            return Spent { beside, ..shared.dispatch.came(arrival) };
        };
        Spent { waited: shared.companions[companion].put(arrival, || {}), beside }
    }
}
