//! Turns: how many requests work on bytes at once. Whoever holds one has shown that the request is allowed, and gets on with
//! it, at the least while others wait for a turn.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::lobby::Allowed;
use crate::pulse::LEAST;

/// How often it is looked whether who waits for a client keeps others waiting.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// How long a client may take for [`LEAST`] bytes while others wait.
const HASTE: Duration = Duration::from_secs(5);
/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(20);

/// So many at once, and so many that wait.
#[derive(Clone, Debug)]
struct Queue {
    working: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    most: usize,
    most_waiting: usize,
}

impl Queue {
    fn new(most: usize, most_waiting: usize) -> Self {
        let (working, waiting) = (Arc::new(Semaphore::new(most)), Arc::new(Semaphore::new(most_waiting)));
        Self { working, waiting, most, most_waiting }
    }

    async fn take(&self) -> Option<OwnedSemaphorePermit> {
        let _place = self.waiting.try_acquire().ok()?;
        Arc::clone(&self.working).acquire_owned().await.ok()
    }

    fn is_waited_in(&self) -> bool {
        self.waiting.available_permits() < self.most_waiting
    }
}

/// The turns of all requests of a kind.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    all: Queue,
    /// Requests without a signature go through this one before: they have half of the turns.
    unsigned: Queue,
}

/// Leave to work, for as long as it exists.
#[derive(Debug)]
pub(crate) struct Turn {
    _turn: OwnedSemaphorePermit,
    /// Of a request without a signature.
    unsigned: Option<(OwnedSemaphorePermit, Arc<Allowed>)>,
    turns: Turns,
}

impl Turns {
    pub(crate) fn new(most: usize, most_waiting: usize) -> Self {
        Self { all: Queue::new(most, most_waiting), unsigned: Queue::new(most / 2, most_waiting / 2) }
    }

    /// The next turn; `None` when too many wait already, or it does not come in time. `unsigned` lets who has no signature
    /// ask.
    pub(crate) async fn take(&self, unsigned: Option<Arc<Allowed>>) -> Option<Turn> {
        let take = async {
            let unsigned = match unsigned {
                Some(allowed) => Some((self.unsigned.take().await?, allowed)),
                None => None,
            };
            Some(Turn { _turn: self.all.take().await?, unsigned, turns: self.clone() })
        };
        tokio::time::timeout(PATIENCE, take).await.ok().flatten()
    }

    /// Turns that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.all.most - self.all.working.available_permits()
    }
}

impl Turn {
    /// Whether somebody waits for it.
    pub(crate) fn is_wanted(&self) -> bool {
        self.turns.all.is_waited_in() || self.unsigned.is_some() && self.turns.unsigned.is_waited_in()
    }
}

/// How fast a client gets on, by the time that was spent waiting for it.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    waited: Duration,
    bytes: u64,
}

impl Pace {
    /// So long was waited for so many bytes.
    pub(crate) fn count(&mut self, waited: Duration, bytes: u64) {
        self.waited += waited;
        self.bytes += bytes;
        if self.bytes >= LEAST {
            *self = Self::default();
        }
    }

    /// Whether it is too slow while others wait.
    pub(crate) fn is_slow(&self) -> bool {
        self.waited >= HASTE
    }
}

/// What is said of a client that is too slow.
pub(crate) fn slow() -> String {
    format!("others wait, and less than {LEAST} bytes were sent or taken in {} s: try again later", HASTE.as_secs())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_wanted_while_somebody_waits_for_it() {
        let turns = Turns::new(2, 1);
        let (one, two) = (turns.take(None).await.unwrap(), turns.take(None).await.unwrap());
        assert!(!one.is_wanted() && turns.taken() == 2);
        let waits = tokio::spawn({
            let turns = turns.clone();
            async move { turns.take(None).await }
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(one.is_wanted() && turns.take(None).await.is_none(), "one place to wait");
        drop(one);
        let three = waits.await.unwrap().unwrap();
        assert!(!two.is_wanted() && !three.is_wanted());
        assert!(turns.take(None).await.is_none(), "it waited for ever");
    }

    #[test]
    fn who_brings_little_is_slow_and_who_waits_for_us_is_not() {
        let mut pace = Pace::default();
        for _ in 0..1_000 {
            pace.count(Duration::from_secs(4), LEAST);
            assert!(!pace.is_slow());
        }
        for _ in 0..50 {
            assert!(!pace.is_slow());
            pace.count(HASTE / 50, 1);
        }
        assert!(pace.is_slow());
    }
}
