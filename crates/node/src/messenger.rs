//! The messenger's workers: threads that read what comes over connections, and hand it on in the order in which it came.
//!
//! Which worker serves a connection, and when it moves to another one, a [`Pool`] decides. A worker that gives a connection away
//! has handed on all that it read, and passes on the rest of a frame that was not whole: the next one goes on where it ended.

mod arrivals;
mod dual;
mod in_order;
mod reader;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use protocol::messenger::{ConnectionId, Done, Move, Policy, Pool};
use protocol::time::Span;
use rustix::event::{EventfdFlags, eventfd};

use crate::carrier::{Poller, RESERVED};
use crate::clock::now;

pub use arrivals::Arrival;
pub(crate) use arrivals::Arrivals;
pub use dual::Dual;
pub use in_order::InOrder;
pub(crate) use reader::{LENGTH, LONGEST};
pub use reader::{Progress, Reader};
pub use stream::Stream;

const BELL: u64 = RESERVED;
/// Descriptors that are handled before the next poll.
const EVENTS: usize = 64;
/// Bytes that are read at once.
const READ: usize = 256 << 10;

/// Takes what workers have read, in their threads.
pub trait Dispatch: Send + Sync + 'static {
    /// A worker brings what came over a connection, after what came before.
    fn came(&self, arrival: Arrival) -> Spent;
}

/// What is to be known of the time that handing on took: the worker was at work for all of it that it did not wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// How long the worker waited for others.
    pub waited: Span,
    /// How long others were busy with what the worker has brought of this connection, and nobody was told yet.
    pub beside: Span,
}

/// A worker's place: what it waits for, and what others have it do.
#[derive(Debug)]
struct Desk {
    poller: Poller,
    bell: OwnedFd,
    orders: Mutex<Vec<Order>>,
}

#[derive(Debug)]
enum Order {
    /// Serve it, unless it is another worker's by now.
    Serve(u32, Reader),
    /// It may be another worker's: give it to whose it is.
    Release(u32),
}

#[derive(Debug)]
struct Shared<D> {
    pool: Mutex<Pool>,
    desks: Vec<Desk>,
    dispatch: Arc<D>,
    stops: AtomicBool,
    #[cfg(test)]
    bug: Option<tests::Bug>,
}

/// The workers of one messenger. They end when it is dropped.
#[derive(Debug)]
pub struct Workers<D: Dispatch> {
    shared: Arc<Shared<D>>,
    threads: Vec<JoinHandle<()>>,
}

impl<D: Dispatch> Workers<D> {
    /// Starts so many, at least one, which hand to `dispatch` what they read.
    ///
    /// # Errors
    /// There are no descriptors or threads left.
    pub fn start(count: usize, policy: Policy, name: &str, dispatch: Arc<D>) -> std::io::Result<Self> {
        let count = count.max(1);
        let desks = (0..count).map(|_| Desk::new()).collect::<std::io::Result<Vec<_>>>()?;
        let (pool, stops) = (Mutex::new(Pool::new(policy, count)), AtomicBool::new(false));
        let shared = Shared {
            pool,
            desks,
            dispatch,
            stops,
            #[cfg(test)]
            bug: None,
        };
        Self::run(shared, name)
    }

    fn run(shared: Shared<D>, name: &str) -> std::io::Result<Self> {
        let mut workers = Self { shared: Arc::new(shared), threads: Vec::new() };
        for own in 0..workers.shared.desks.len() {
            let shared = Arc::clone(&workers.shared);
            let thread = std::thread::Builder::new().name(format!("{name}-{own}"));
            workers.threads.push(thread.spawn(move || shared.work(own))?);
        }
        Ok(workers)
    }

    /// Has a connection served, by a number that no other has. Whether there is room for it.
    pub fn serve(&self, connection: u32, reader: Reader) -> bool {
        let worker = lock(&self.shared.pool).open(id(connection));
        if let Ok(worker) = worker {
            self.shared.order(worker, Order::Serve(connection, reader));
        }
        worker.is_ok()
    }

    /// Has another worker serve a connection, whatever the policy says.
    pub fn assign(&self, connection: u32, worker: usize) {
        let moved = lock(&self.shared.pool).assign(id(connection), worker);
        self.shared.release(moved);
    }
}

impl<D: Dispatch> Drop for Workers<D> {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Release);
        self.shared.desks.iter().for_each(Desk::ring);
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Desk {
    fn new() -> std::io::Result<Self> {
        let (poller, bell) = (Poller::new()?, eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        poller.watch_for(&bell, BELL, false)?;
        Ok(Self { poller, bell, orders: Mutex::new(Vec::new()) })
    }

    fn ring(&self) {
        // A full counter means that the bell is ringing already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

impl<D: Dispatch> Shared<D> {
    fn order(&self, worker: usize, order: Order) {
        let desk = &self.desks[worker];
        lock(&desk.orders).push(order);
        desk.ring();
    }

    fn release(&self, moves: impl IntoIterator<Item = Move>) {
        for Move { connection, from, .. } in moves {
            self.order(from, Order::Release(connection.0 as u32));
        }
    }

    fn work(&self, own: usize) {
        let desk = &self.desks[own];
        let mut served = BTreeMap::new();
        let (mut buffer, mut events) = (vec![0; READ], Vec::with_capacity(EVENTS));
        while !self.stops.load(Ordering::Acquire) {
            if let Err(error) = desk.poller.wait(&mut events) {
                tracing::error!("a worker of the messenger cannot wait for its connections: {error}");
                return;
            }
            for event in &events {
                if event.data.u64() == BELL {
                    let _ = rustix::io::read(&desk.bell, &mut [0_u8; 8]);
                    self.obey(own, &mut served);
                } else if let Some(reader) = served.get_mut(&(event.data.u64() as u32)) {
                    let connection = event.data.u64() as u32;
                    if !self.serve(own, connection, reader, &mut buffer)
                        && let Some(reader) = served.remove(&connection)
                    {
                        desk.poller.forget(&reader);
                    }
                }
            }
        }
    }

    /// Reads once from a connection. Whether it goes on.
    fn serve(&self, own: usize, connection: u32, reader: &mut Reader, buffer: &mut [u8]) -> bool {
        let began = now();
        let (mut bytes, mut frames) = (0, Vec::new());
        let progress = reader.read(buffer, |frame: Bytes| {
            bytes += frame.len() as u64;
            frames.push(frame);
        });
        let end = Some(progress).filter(|progress| progress.is_end());
        #[cfg(test)]
        tests::hand_on_later(self, own, connection, &mut frames);
        let mut spent = Spent::default();
        if !frames.is_empty() || end.is_some() {
            spent = self.dispatch.came(Arrival { worker: own, connection, at: began, frames, end });
        }
        let ended = now();
        let mut pool = lock(&self.pool);
        if end.is_some() {
            pool.close(id(connection));
            return false;
        }
        pool.record(ended, id(connection), Done { bytes, time: ended.since(began).less(spent.waited) + spent.beside });
        let moves = pool.balance(ended);
        drop(pool);
        self.release(moves);
        true
    }

    fn obey(&self, own: usize, served: &mut BTreeMap<u32, Reader>) {
        let orders = core::mem::take(&mut *lock(&self.desks[own].orders));
        for order in orders {
            let (connection, reader) = match order {
                Order::Serve(connection, reader) => (connection, Some(reader)),
                Order::Release(connection) => (connection, None),
            };
            let worker = lock(&self.pool).worker(id(connection));
            if let Some(reader) = reader.or_else(|| self.take(own, served, connection, worker)) {
                self.place(own, served, connection, reader, worker);
            }
        }
    }

    /// Takes a connection from this worker if it is not its any more.
    fn take(
        &self,
        own: usize,
        served: &mut BTreeMap<u32, Reader>,
        connection: u32,
        worker: Option<usize>,
    ) -> Option<Reader> {
        if worker == Some(own) {
            return None;
        }
        let reader = served.remove(&connection)?;
        self.desks[own].poller.forget(&reader);
        #[cfg(test)]
        let reader = tests::given_away(self.bug, reader)?;
        Some(reader)
    }

    /// Gives a connection to the worker that serves it now; one that was closed to nobody.
    fn place(
        &self,
        own: usize,
        served: &mut BTreeMap<u32, Reader>,
        connection: u32,
        reader: Reader,
        worker: Option<usize>,
    ) {
        match worker {
            Some(worker) if worker == own => match self.desks[own].poller.watch(&reader, connection, false) {
                Ok(()) => drop(served.insert(connection, reader)),
                Err(_) => {
                    lock(&self.pool).close(id(connection));
                    let end = Some(Progress::Over);
                    let _ = self.dispatch.came(Arrival { worker: own, connection, at: now(), frames: Vec::new(), end });
                }
            },
            Some(worker) => self.order(worker, Order::Serve(connection, reader)),
            None => {}
        }
    }
}

fn id(connection: u32) -> ConnectionId {
    ConnectionId(connection.into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
