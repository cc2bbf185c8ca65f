//! A fair limit to the requests of a kind that are in work at once. Users share it: a user with many permits waits while
//! others take what is left, so that none keeps the others from being served, however slow or heavy their requests are.
//!
//! A permit is given to a request that is allowed. Its holder must make progress while others wait.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::activity::MIN_PROGRESS;
use super::admission::Allowed;

/// How often a holder that waits for its client checks whether others wait for the permit.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a client may take for [`MIN_PROGRESS`] bytes while others wait.
const CONTENDED_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a request waits for a permit.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(20);
/// A user may have so many times the permits that are left: three quarters of all when nobody else has any, so that some
/// are left for whoever comes. The same holds for places in the queue.
const SHARE: usize = 3;

/// A party that has a share: a user, or all requests without a signature together, as anybody can send any number of those.
type Party = Option<String>;

/// The permits for all requests of a kind, and the queue for them.
#[derive(Clone, Debug)]
pub(crate) struct FairQueue(Arc<Mutex<Shares>>);

#[derive(Debug)]
struct Shares {
    most: usize,
    most_waiting: usize,
    /// Permits that nobody has.
    left: usize,
    parties: BTreeMap<Party, Share>,
}

/// What a party has.
#[derive(Debug, Default)]
struct Share {
    working: usize,
    /// In the order of arrival; closed ones do not wait any more.
    waiting: VecDeque<oneshot::Sender<Slot>>,
}

/// One of the places that are shared, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    party: Party,
    queue: FairQueue,
}

/// The permit to work on a request: a slot, and what keeps its client from being evicted when it has no signature.
#[derive(Debug)]
pub(crate) struct Permit {
    slot: Slot,
    _allowed: Option<Arc<Allowed>>,
}

impl Share {
    fn waits(&self) -> usize {
        self.waiting.iter().filter(|sender| !sender.is_closed()).count()
    }

    /// Of `left`, how many this party may have.
    fn limit(party: &Party, left: usize) -> usize {
        if party.is_some() { SHARE * left } else { left }
    }
}

impl Shares {
    /// Gives a slot to the first waiter of the party that has fewest, if one is left.
    fn grant(&mut self, queue: &FairQueue) -> Option<(oneshot::Sender<Slot>, Slot)> {
        let left = self.left;
        let may =
            |(party, share): &(&Party, &mut Share)| share.working < Share::limit(party, left) && share.waits() > 0;
        let (party, share) = self.parties.iter_mut().filter(may).min_by_key(|(_, share)| share.working)?;
        let sender = loop {
            let sender = share.waiting.pop_front()?;
            if !sender.is_closed() {
                break sender;
            }
        };
        share.working += 1;
        self.left -= 1;
        Some((sender, Slot { party: party.clone(), queue: queue.clone() }))
    }

    fn waiting(&self) -> usize {
        self.parties.values().map(Share::waits).sum()
    }
}

impl FairQueue {
    /// A queue for `most` permits at once, and `most_waiting` requests that wait.
    pub(crate) fn new(most: usize, most_waiting: usize) -> Self {
        Self(Arc::new(Mutex::new(Shares { most, most_waiting, left: most, parties: BTreeMap::new() })))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Shares) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A permit for a request of `user`; `None` when too many wait already, or it waits too long. `allowed` is that of a
    /// request without a signature.
    pub(crate) async fn take(&self, user: Option<&str>, allowed: Option<Arc<Allowed>>) -> Option<Permit> {
        let party = user.map(str::to_owned);
        if let Some(slot) = self.slot_now(&party) {
            return Some(Permit { slot, _allowed: allowed });
        }
        let (sender, receiver) = oneshot::channel();
        self.with(|shares| {
            let places = shares.most_waiting - shares.waiting();
            let limit = Share::limit(&party, places).max(1);
            let share = shares.parties.entry(party).or_default();
            share.waiting.retain(|sender| !sender.is_closed());
            (places > 0 && share.waiting.len() < limit).then(|| share.waiting.push_back(sender))
        })?;
        self.grant();
        let slot = tokio::time::timeout(QUEUE_TIMEOUT, receiver).await.ok()?.ok()?;
        Some(Permit { slot, _allowed: allowed })
    }

    /// The same where the request need not wait for it.
    pub(crate) fn take_now(&self, user: Option<&str>, allowed: Option<Arc<Allowed>>) -> Option<Permit> {
        self.slot_now(&user.map(str::to_owned)).map(|slot| Permit { slot, _allowed: allowed })
    }

    /// A slot, if one is left for this party and nobody waits.
    fn slot_now(&self, party: &Party) -> Option<Slot> {
        self.with(|shares| {
            let working = shares.parties.get(party).map_or(0, |share| share.working);
            if shares.waiting() > 0 || working >= Share::limit(party, shares.left) {
                return None;
            }
            shares.parties.entry(party.clone()).or_default().working += 1;
            shares.left -= 1;
            Some(Slot { party: party.clone(), queue: self.clone() })
        })
    }

    /// Gives what is left to the waiters that may have it.
    fn grant(&self) {
        while let Some((sender, slot)) = self.with(|shares| shares.grant(self)) {
            // A slot for a request that was given up comes back here, outside of the lock.
            drop(sender.send(slot));
        }
    }

    /// Permits that are taken.
    pub(crate) fn in_use(&self) -> usize {
        self.with(|shares| shares.most - shares.left)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.queue.with(|shares| {
            shares.left += 1;
            if let Some(share) = shares.parties.get_mut(&self.party) {
                share.working -= 1;
                if share.working == 0 && share.waits() == 0 {
                    shares.parties.remove(&self.party);
                }
            }
        });
        self.queue.grant();
    }
}

impl Permit {
    /// Whether a request waits for it: of the same party, or of one that has fewer.
    pub(crate) fn is_wanted(&self) -> bool {
        let mine = &self.slot.party;
        self.slot.queue.with(|shares| {
            let working = shares.parties.get(mine).map_or(0, |share| share.working);
            shares.parties.iter().any(|(party, share)| (party == mine || share.working < working) && share.waits() > 0)
        })
    }
}

/// The speed of a client: what it sent or took in the time that was spent waiting for it.
#[derive(Debug, Default)]
pub(crate) struct ClientSpeed {
    waited: Duration,
    bytes: u64,
}

impl ClientSpeed {
    /// Counts a wait, and the bytes that came of it.
    pub(crate) fn count(&mut self, waited: Duration, bytes: u64) {
        self.waited += waited;
        self.bytes += bytes;
        if self.bytes >= MIN_PROGRESS {
            *self = Self::default();
        }
    }

    /// Whether it is too slow when others wait.
    pub(crate) fn is_slow(&self) -> bool {
        self.waited >= CONTENDED_TIMEOUT
    }
}

/// The message for a client that is too slow.
pub(crate) fn slow() -> String {
    format!(
        "others wait, and less than {MIN_PROGRESS} bytes were sent or taken in {} s: try again later",
        CONTENDED_TIMEOUT.as_secs()
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_permit_is_wanted_while_a_request_waits_for_it() {
        let queue = FairQueue::new(2, 1);
        let one = queue.take(Some("a"), None).await.unwrap();
        let two = queue.take(Some("a"), None).await.unwrap();
        assert!(!one.is_wanted() && queue.in_use() == 2);
        let waits = tokio::spawn({
            let queue = queue.clone();
            async move { queue.take(Some("a"), None).await }
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(one.is_wanted() && queue.take(Some("a"), None).await.is_none(), "one place to wait");
        drop(one);
        let three = waits.await.unwrap().unwrap();
        assert!(!two.is_wanted() && !three.is_wanted());
        assert!(queue.take(Some("a"), None).await.is_none(), "it waited for ever");
        assert_eq!(queue.in_use(), 2);
        assert!(queue.take_now(Some("b"), None).is_none(), "none is left");
        drop((two, three));
        assert!(queue.take_now(Some("b"), None).is_some());
        assert_eq!(queue.in_use(), 0);
    }

    /// Has as many of them ask as there may be and more, and takes what they get at once.
    async fn crowd(queue: &FairQueue, user: Option<&'static str>) -> Vec<Permit> {
        let ask = |_| {
            let queue = queue.clone();
            tokio::spawn(async move { tokio::time::timeout(Duration::from_secs(1), queue.take(user, None)).await })
        };
        let mut all = vec![];
        for asked in (0..200).map(ask).collect::<Vec<_>>() {
            all.extend(asked.await.unwrap().ok().flatten());
        }
        all
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_comes_finds_a_permit_left() {
        let queue = FairQueue::new(128, 512);
        let greedy = crowd(&queue, Some("a")).await;
        assert_eq!(greedy.len(), 96);
        let strangers = crowd(&queue, None).await;
        assert_eq!(strangers.len(), 16);
        let others = crowd(&queue, Some("b")).await;
        assert_eq!(others.len(), 12);
        let waits = tokio::spawn({
            let queue = queue.clone();
            async move { queue.take(Some("a"), None).await }
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(greedy[0].is_wanted());
        assert!(!strangers[0].is_wanted() && !others[0].is_wanted(), "theirs are not for those that have more");
        assert!(queue.take_now(Some("c"), None).is_none(), "while somebody waits the queue decides");
        let begin = tokio::time::Instant::now();
        assert!(queue.take(Some("c"), None).await.is_some());
        assert!(begin.elapsed() < Duration::from_millis(1), "a user that has none does not wait for one that has many");
        waits.abort();
        assert!(waits.await.is_err());
        drop((greedy, strangers, others));
        assert_eq!(queue.in_use(), 0);
        assert_eq!(queue.with(|shares| shares.parties.len()), 0);
    }

    #[test]
    fn a_sender_of_little_is_slow_and_one_that_waits_for_us_is_not() {
        let mut pace = ClientSpeed::default();
        for _ in 0..1_000 {
            pace.count(Duration::from_secs(4), MIN_PROGRESS);
            assert!(!pace.is_slow());
        }
        for _ in 0..50 {
            assert!(!pace.is_slow());
            pace.count(CONTENDED_TIMEOUT / 50, 1);
        }
        assert!(pace.is_slow());
    }
}
