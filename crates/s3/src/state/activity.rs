//! The traffic of a connection: requests in work, and what the client sends and takes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that a client must send of a body, or take of an answer, within one timeout.
pub(crate) const MIN_PROGRESS: u64 = 64 << 10;

/// Bytes that a client may send while no request is in work: the longest head, and what HTTP/2 needs beside requests. A
/// client that sends more asks for nothing, such as with frames that only have to be answered.
const IDLE_BYTES: u64 = 512 << 10;

/// The traffic of one connection.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<Counters>);

#[derive(Debug)]
struct Counters {
    /// Requests that are not answered yet.
    working: usize,
    /// Since when `recent` counts.
    since: Instant,
    /// Bytes that the client took since then.
    recent: u64,
    /// Bytes that the client took since it connected.
    received: u64,
    /// Bytes that the client sent since a request was in work.
    idle: u64,
}

/// A request that is not answered yet.
pub(crate) struct Working(Arc<Activity>);

impl Activity {
    pub(crate) fn new(now: Instant) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Counters { working: 0, since: now, recent: 0, received: 0, idle: 0 })))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Counters) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A request has come.
    pub(crate) fn work(self: &Arc<Self>) -> Working {
        self.with(|counters| {
            counters.working += 1;
            counters.idle = 0;
        });
        Working(Arc::clone(self))
    }

    /// Counts bytes that the client sent, and says whether it may go on.
    pub(crate) fn count_sent(&self, bytes: u64) -> bool {
        self.with(|counters| {
            counters.idle = if counters.working > 0 { 0 } else { counters.idle + bytes };
            counters.idle <= IDLE_BYTES
        })
    }

    /// Counts bytes that the client took.
    pub(crate) fn count_taken(&self, bytes: u64) {
        self.with(|counters| {
            counters.recent += bytes;
            counters.received += bytes;
        });
    }

    /// Bytes that the client took since it connected.
    pub(crate) fn received(&self) -> u64 {
        self.with(|counters| counters.received)
    }

    /// Whether the client has been idle for `timeout`: no request was in work, and it took too little of its answers.
    /// Bodies of requests have a timeout of their own.
    pub(crate) fn is_idle(&self, now: Instant, timeout: Duration) -> bool {
        self.with(|counters| {
            if counters.working == 0 && now.saturating_duration_since(counters.since) < timeout {
                return false;
            }
            let idle = counters.working == 0 && counters.recent < MIN_PROGRESS;
            (counters.since, counters.recent) = (now, 0);
            idle
        })
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.with(|counters| {
            counters.working -= 1;
            (counters.since, counters.recent) = (Instant::now(), 0);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn a_client_that_sends_much_and_asks_nothing_is_ended() {
        let activity = Activity::new(Instant::now());
        assert!(activity.count_sent(IDLE_BYTES));
        let work = activity.work();
        assert!(activity.count_sent(100 * IDLE_BYTES), "a body");
        drop(work);
        assert!(activity.count_sent(IDLE_BYTES) && !activity.count_sent(1));
    }

    #[test]
    fn a_client_that_neither_asks_nor_takes_is_idle() {
        let begin = Instant::now();
        let activity = Activity::new(begin);
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert!(!activity.is_idle(at(59), TIMEOUT));
        let work = activity.work();
        assert!(!activity.is_idle(at(1_000), TIMEOUT), "a request is in work");
        drop(work);
        let answered = Instant::now();
        let at = |seconds| answered + Duration::from_secs(seconds);
        activity.count_taken(MIN_PROGRESS);
        assert!(!activity.is_idle(at(61), TIMEOUT), "the client takes its answer");
        activity.count_taken(MIN_PROGRESS - 1);
        assert!(!activity.is_idle(at(120), TIMEOUT));
        assert!(activity.is_idle(at(121), TIMEOUT), "and now too little of it");
    }
}
