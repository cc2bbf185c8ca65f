//! Turns: how many requests of a kind are worked on at once. Users share them: who has many waits while others take what is
//! left, so that none keeps the others from being served, however slow or heavy his requests are. Whoever holds a turn has
//! shown that the request is allowed, and gets on with it, at the least while others wait for a turn.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::lobby::Allowed;
use crate::pulse::LEAST;

/// How often it is looked whether who waits for a client keeps others waiting.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// How long a client may take for [`LEAST`] bytes while others wait.
const HASTE: Duration = Duration::from_secs(5);
/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(20);
/// A user may have so many times the turns that are left: three quarters of all when nobody else has any, and some are left
/// whoever comes. Of places to wait as well.
const SHARE: usize = 3;

/// Who shares turns: a user, or all who have no signature together, as anybody can be any number of those.
type Party = Option<String>;

/// The turns of all requests of a kind.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<Mutex<Shares>>);

#[derive(Debug)]
struct Shares {
    most: usize,
    most_waiting: usize,
    /// Turns that nobody has.
    left: usize,
    parties: BTreeMap<Party, Share>,
}

/// What a party has of the turns.
#[derive(Debug, Default)]
struct Share {
    working: usize,
    /// In the order in which they came; closed ones do not wait any more.
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

/// Leave to work, for as long as it exists.
#[derive(Debug)]
pub(crate) struct Turn {
    party: Party,
    turns: Turns,
}

/// A turn, and what lets its request be asked when it has no signature.
#[derive(Debug)]
pub(crate) struct Leave {
    turn: Turn,
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
    /// Gives a turn that is left to the one who waits and whose party has fewest.
    fn grant(&mut self, turns: &Turns) -> Option<(oneshot::Sender<Turn>, Turn)> {
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
        Some((sender, Turn { party: party.clone(), turns: turns.clone() }))
    }

    fn waiting(&self) -> usize {
        self.parties.values().map(Share::waits).sum()
    }
}

impl Turns {
    /// So many at once, and so many that wait.
    pub(crate) fn new(most: usize, most_waiting: usize) -> Self {
        Self(Arc::new(Mutex::new(Shares { most, most_waiting, left: most, parties: BTreeMap::new() })))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Shares) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The next turn of `user`; `None` when too many wait already, or it does not come in time. `allowed` lets who has no
    /// signature ask.
    pub(crate) async fn take(&self, user: Option<&str>, allowed: Option<Arc<Allowed>>) -> Option<Leave> {
        let party = user.map(str::to_owned);
        let (sender, receiver) = oneshot::channel();
        self.with(|shares| {
            let places = shares.most_waiting - shares.waiting();
            let limit = Share::limit(&party, places).max(1);
            let share = shares.parties.entry(party).or_default();
            share.waiting.retain(|sender| !sender.is_closed());
            (places > 0 && share.waiting.len() < limit).then(|| share.waiting.push_back(sender))
        })?;
        self.grant();
        let turn = tokio::time::timeout(PATIENCE, receiver).await.ok()?.ok()?;
        Some(Leave { turn, _allowed: allowed })
    }

    /// Gives away what is left, as far as somebody who may have it waits.
    fn grant(&self) {
        while let Some((sender, turn)) = self.with(|shares| shares.grant(self)) {
            // Who left at this moment gives the turn back, outside of the lock.
            drop(sender.send(turn));
        }
    }

    /// Turns that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.with(|shares| shares.most - shares.left)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.with(|shares| {
            shares.left += 1;
            if let Some(share) = shares.parties.get_mut(&self.party) {
                share.working -= 1;
                if share.working == 0 && share.waits() == 0 {
                    shares.parties.remove(&self.party);
                }
            }
        });
        self.turns.grant();
    }
}

impl Leave {
    /// Whether somebody waits for it: of the same party, or of one that has fewer.
    pub(crate) fn is_wanted(&self) -> bool {
        let mine = &self.turn.party;
        self.turn.turns.with(|shares| {
            let working = shares.parties.get(mine).map_or(0, |share| share.working);
            shares.parties.iter().any(|(party, share)| (party == mine || share.working < working) && share.waits() > 0)
        })
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
        let one = turns.take(Some("a"), None).await.unwrap();
        let two = turns.take(Some("a"), None).await.unwrap();
        assert!(!one.is_wanted() && turns.taken() == 2);
        let waits = tokio::spawn({
            let turns = turns.clone();
            async move { turns.take(Some("a"), None).await }
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(one.is_wanted() && turns.take(Some("a"), None).await.is_none(), "one place to wait");
        drop(one);
        let three = waits.await.unwrap().unwrap();
        assert!(!two.is_wanted() && !three.is_wanted());
        assert!(turns.take(Some("a"), None).await.is_none(), "it waited for ever");
        assert_eq!(turns.taken(), 2);
        drop((two, three));
        assert_eq!(turns.taken(), 0);
    }

    /// Has as many of them ask as there may be and more, and takes what they get at once.
    async fn crowd(turns: &Turns, user: Option<&'static str>) -> Vec<Leave> {
        let ask = |_| {
            let turns = turns.clone();
            tokio::spawn(async move { tokio::time::timeout(Duration::from_secs(1), turns.take(user, None)).await })
        };
        let mut all = vec![];
        for asked in (0..200).map(ask).collect::<Vec<_>>() {
            all.extend(asked.await.unwrap().ok().flatten());
        }
        all
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_comes_finds_a_turn_left() {
        let turns = Turns::new(128, 512);
        let greedy = crowd(&turns, Some("a")).await;
        assert_eq!(greedy.len(), 96);
        let strangers = crowd(&turns, None).await;
        assert_eq!(strangers.len(), 16);
        let others = crowd(&turns, Some("b")).await;
        assert_eq!(others.len(), 12);
        let waits = tokio::spawn({
            let turns = turns.clone();
            async move { turns.take(Some("a"), None).await }
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(greedy[0].is_wanted());
        assert!(!strangers[0].is_wanted() && !others[0].is_wanted(), "theirs are not for who has more");
        let begin = tokio::time::Instant::now();
        assert!(turns.take(Some("c"), None).await.is_some());
        assert!(begin.elapsed() < Duration::from_millis(1), "who has none does not wait for who has many");
        waits.abort();
        assert!(waits.await.is_err());
        drop((greedy, strangers, others));
        assert_eq!(turns.taken(), 0);
        assert_eq!(turns.with(|shares| shares.parties.len()), 0);
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
