//! The workers of one messenger, and which connection each of them serves.

use std::collections::BTreeMap;

use core::fmt;

use super::Policy;
use crate::time::{Instant, Span};

/// Most connections of a pool; further ones are refused.
const CONNECTIONS: usize = 1 << 16;
/// `work` lets workers be that differ by at most this part of the most loaded one: what is less is noise.
const GAP: u64 = 4;
/// `work` moves nothing from a worker that has less to do than this part of the period: nothing waits there.
const IDLE: u64 = 16;
/// `work` moves nothing that relieves the more loaded worker by less than this part of its load.
const GAIN: u64 = 32;
/// For how long `work` lets a connection be that it has moved: an estimate that was wrong costs one move in that time.
const REST: Span = Span::from_secs(1);
/// An estimate below this part of the period counts as nothing, so that one that only halves comes to an end.
const NOTHING: u64 = 1 << 14;
/// More is not expected of a connection, so that sums over all of them fit.
const MOST: u64 = u64::MAX / CONNECTIONS as u64;

/// A connection, by a number that the driver gives and does not use twice at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// What a worker did for a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Bytes of payload that came. A request to read has none.
    pub bytes: u64,
    /// For how long the worker was at it.
    pub time: Span,
}

/// A connection that is to be served by another worker. The order of its bytes is the driver's to keep: `from` ends what it
/// has begun before `to` begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which.
    pub connection: ConnectionId,
    /// The worker that has served it.
    pub from: usize,
    /// The worker that serves it from now on.
    pub to: usize,
}

/// Why a connection is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There are 65,536.
    Full,
    /// One of that number is open.
    Open(ConnectionId),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => write!(f, "the messenger has {CONNECTIONS} connections already: close some"),
            Self::Open(id) => write!(f, "connection {} is open already: give each a number of its own", id.0),
        }
    }
}

impl core::error::Error for Refused {}

#[derive(Clone, Debug)]
struct Connection {
    worker: usize,
    /// In this period, in the unit of the policy: bytes, or nanoseconds.
    done: u64,
    /// What it is expected to need in a period.
    load: u64,
    /// `work` does not move it before.
    rests_until: Instant,
}

/// A worker as its connections add up.
#[derive(Clone, Copy, Debug, Default)]
struct Worker {
    connections: usize,
    load: u64,
}

/// The connections of a messenger and its workers, which have numbers from 0 on.
#[derive(Clone, Debug)]
pub struct Pool {
    policy: Policy,
    workers: Vec<Worker>,
    connections: BTreeMap<ConnectionId, Connection>,
    /// The worker whose turn it is to get a new connection.
    turn: usize,
    /// When the period began; none while nothing is done and nothing is expected.
    since: Option<Instant>,
}

impl Pool {
    /// A pool without connections. It has one worker when `workers` is 0.
    #[must_use]
    pub fn new(policy: Policy, workers: usize) -> Self {
        let workers = vec![Worker::default(); workers.max(1)];
        Self { policy, workers, connections: BTreeMap::new(), turn: 0, since: None }
    }

    /// Takes a new connection, and says which worker serves it.
    ///
    /// # Errors
    /// When there are too many, or one of that number is open.
    pub fn open(&mut self, id: ConnectionId) -> Result<usize, Refused> {
        if self.connections.contains_key(&id) {
            return Err(Refused::Open(id));
        }
        if self.connections.len() >= CONNECTIONS {
            return Err(Refused::Full);
        }
        let least =
            |of: &dyn Fn(&Worker) -> (u64, usize)| (0..self.workers.len()).min_by_key(|w| of(&self.workers[*w]));
        let worker = match self.policy {
            Policy::RoundRobin | Policy::Bytes => Some(self.turn),
            Policy::Fewest => least(&|worker| (0, worker.connections)),
            Policy::Work => least(&|worker| (worker.load, worker.connections)),
        };
        let worker = worker.unwrap_or_default();
        self.turn = (self.turn + 1) % self.workers.len();
        self.workers[worker].connections += 1;
        self.connections.insert(id, Connection { worker, done: 0, load: 0, rests_until: Instant::ZERO });
        Ok(worker)
    }

    /// Forgets a connection that was closed.
    pub fn close(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.remove(&id) {
            let worker = &mut self.workers[connection.worker];
            worker.connections -= 1;
            worker.load -= connection.load;
        }
    }

    /// The worker that serves a connection; none when it is not open.
    #[must_use]
    pub fn worker(&self, id: ConnectionId) -> Option<usize> {
        self.connections.get(&id).map(|connection| connection.worker)
    }

    /// Has another worker serve a connection, whatever the policy says; nothing when it does, or there is no such worker.
    pub fn assign(&mut self, id: ConnectionId, to: usize) -> Option<Move> {
        let from = self.worker(id).filter(|from| *from != to && to < self.workers.len())?;
        Some(self.make(Move { connection: id, from, to }))
    }

    /// What each worker is expected to have to do in a period: bytes with [`Policy::Bytes`], nanoseconds with
    /// [`Policy::Work`], and nothing with others.
    #[must_use]
    pub fn loads(&self) -> Vec<u64> {
        self.workers.iter().map(|worker| worker.load).collect()
    }

    /// Notes what was done for a connection since that was noted last. What is done for one that was closed counts for
    /// nothing. Drivers need not say it at once, but before they ask for moves.
    pub fn record(&mut self, now: Instant, id: ConnectionId, done: Done) {
        let amount = match self.policy {
            Policy::RoundRobin | Policy::Fewest => return,
            Policy::Bytes => done.bytes,
            Policy::Work => done.time.as_nanos(),
        };
        if let Some(connection) = self.connections.get_mut(&id).filter(|_| amount > 0) {
            connection.done = connection.done.saturating_add(amount);
            self.since.get_or_insert(now);
        }
    }

    /// When to ask for moves; none while connections stay where they are, so that idle ones wake no driver.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        Some(self.since? + self.policy.period()?)
    }

    /// Ends a period: the connections that move now. Before the [`deadline`](Self::deadline) it does nothing.
    pub fn balance(&mut self, now: Instant) -> Vec<Move> {
        let (Some(since), Some(period)) = (self.since, self.policy.period()) else { return Vec::new() };
        if now < since + period {
            return Vec::new();
        }
        self.learn(now.since(since), period);
        let is_active = self.workers.iter().any(|worker| worker.load > 0);
        self.since = is_active.then_some(now);
        match self.policy {
            Policy::RoundRobin | Policy::Fewest => Vec::new(),
            Policy::Bytes => self.lower_deviation().into_iter().collect(),
            Policy::Work => self.relieve(now, period),
        }
    }

    /// Turns what was done in `elapsed` into what is expected of a period.
    fn learn(&mut self, elapsed: Span, period: Span) {
        for connection in self.connections.values_mut() {
            let load = match self.policy {
                Policy::Work => {
                    // What was done in a longer time is not more. The mean with what was expected forgets a lone burst soon.
                    let (period, elapsed) = (period.as_nanos(), elapsed.as_nanos().max(1));
                    let fresh = u128::from(connection.done) * u128::from(period) / u128::from(elapsed);
                    let fresh = u64::try_from(fresh).unwrap_or(MOST).min(MOST);
                    let load = (fresh + 3 * connection.load) / 4;
                    if load < period / NOTHING { 0 } else { load }
                }
                _ => connection.done,
            }
            .min(MOST);
            let worker = &mut self.workers[connection.worker];
            worker.load = worker.load - connection.load + load;
            (connection.load, connection.done) = (load, 0);
        }
    }

    /// The paper's balancer: from the most loaded worker to the least loaded one, when they differ by more than half of the
    /// most, the connection after whose move the standard deviation is least, if it is less then.
    fn lower_deviation(&mut self) -> Option<Move> {
        let load = |worker: &usize| self.workers[*worker].load;
        // Of equal ones the first.
        let from = (0..self.workers.len()).rev().max_by_key(load)?;
        let to = (0..self.workers.len()).min_by_key(load)?;
        let (most, least) = (load(&from), load(&to));
        if most - least <= most / 2 {
            return None;
        }
        // The sum over all workers stays, and so does what the others add to the sum of squares: it is lower when that of these
        // two is lower.
        let squares = |moved: u64| {
            let square = |load: u64| u128::from(load) * u128::from(load);
            square(most - moved).saturating_add(square(least + moved))
        };
        let there = self.connections.iter().filter(|(_, connection)| connection.worker == from);
        let (id, moved) = there.map(|(id, connection)| (*id, connection.load)).min_by_key(|c| squares(c.1))?;
        (squares(moved) < squares(0)).then(|| self.make(Move { connection: id, from, to }))
    }

    /// Moves one connection after the other, each of which lowers the load of the more loaded of its two workers.
    fn relieve(&mut self, now: Instant, period: Span) -> Vec<Move> {
        let mut served = vec![Vec::new(); self.workers.len()];
        for (id, connection) in self.connections.iter().filter(|(_, c)| c.load > 0 && c.rests_until <= now) {
            served[connection.worker].push((*id, connection.load));
        }
        let mut moves = Vec::new();
        while let Some(next) = self.best_relief(&served, period) {
            served[next.from].retain(|(id, _)| *id != next.connection);
            if let Some(connection) = self.connections.get_mut(&next.connection) {
                connection.rests_until = now + REST;
            }
            moves.push(self.make(next));
        }
        moves
    }

    /// The move from the most loaded worker that can be relieved. A worker with one heavy connection alone cannot, and must not
    /// keep the others from it.
    fn best_relief(&self, served: &[Vec<(ConnectionId, u64)>], period: Span) -> Option<Move> {
        let key = |worker: &usize| (self.workers[*worker].load, self.workers[*worker].connections);
        let to = (0..self.workers.len()).min_by_key(key)?;
        let least = self.workers[to].load;
        let mut order: Vec<usize> = (0..self.workers.len()).collect();
        order.sort_by_key(|worker| core::cmp::Reverse(self.workers[*worker].load));
        let worth = |most: u64| most - least > most / GAP && most >= period.as_nanos() / IDLE;
        order.into_iter().map(|from| (from, self.workers[from].load)).take_while(|(_, most)| worth(*most)).find_map(
            |(from, most)| {
                let after = |load: u64| (most - load).max(least + load);
                let best = served[from].iter().min_by_key(|(_, load)| after(*load))?;
                let helps = most.saturating_sub(after(best.1)) > most / GAIN;
                helps.then_some(Move { connection: best.0, from, to })
            },
        )
    }

    fn make(&mut self, next: Move) -> Move {
        if let Some(connection) = self.connections.get_mut(&next.connection) {
            connection.worker = next.to;
            let load = connection.load;
            for (worker, is_new) in [(next.from, false), (next.to, true)] {
                let worker = &mut self.workers[worker];
                worker.load = if is_new { worker.load + load } else { worker.load - load };
                worker.connections = if is_new { worker.connections + 1 } else { worker.connections - 1 };
            }
        }
        next
    }
}
