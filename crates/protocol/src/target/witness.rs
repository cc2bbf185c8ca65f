//! Which of the other targets are silent: each is asked now and then by a few of other failure domains whether it is there.

use std::collections::BTreeMap;

use super::{Event, IgnoredReason, Message, NodeId, Target, TxnId};
use crate::id::Epoch;
use crate::map::ClusterMap;
use crate::rng::mix;
use crate::time::{Instant, Span};

/// Who watches a target.
const WITNESSES: usize = 4;
/// How far a witness may be in the order in which targets watch each other.
const REACH: usize = 64;
/// Questions in a row without an answer after which a target is silent.
const MISSED: u8 = 3;

/// The targets that this one watches.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// By which map; none yet.
    epoch: Option<Epoch>,
    watched: BTreeMap<NodeId, Watched>,
    next: Instant,
    asked: u64,
}

#[derive(Debug)]
struct Watched {
    /// The last question.
    txn: TxnId,
    /// Questions without an answer, and when the first of them was asked.
    missed: u8,
    since: Instant,
}

/// Whom a target watches: of those before it in an order that hashing makes, each of which it is one of the next few of other
/// failure domains. So a target has witnesses in several domains, and each watches as many others.
fn watched_by(own: NodeId, map: &ClusterMap) -> Vec<NodeId> {
    let mut order: Vec<(u64, NodeId, u16)> =
        map.targets().map(|target| (mix(u64::from(target.id.0) | 1 << 41), target.id, target.domain)).collect();
    order.sort_unstable();
    let Some(place) = order.iter().position(|(_, id, _)| *id == own) else { return Vec::new() };
    let count = order.len();
    let at = |place: usize| order[place % count];
    let is_witness = |of: usize| {
        let (_, id, domain) = at(of);
        let mut domains = vec![domain];
        for next in (1..count.min(REACH)).map(|n| at(of + n)) {
            if !domains.contains(&next.2) {
                if next.1 == own {
                    return Some(id);
                }
                domains.push(next.2);
                if domains.len() > WITNESSES {
                    return None;
                }
            }
        }
        None
    };
    (1..count.min(REACH)).filter_map(|back| is_witness(place + count - back)).collect()
}

impl Watch {
    pub(super) fn next_deadline(&self, interval: Span) -> Option<Instant> {
        (interval > Span::ZERO).then_some(self.next)
    }
}

impl Target {
    /// Who is silent as far as this target knows, and since when.
    pub fn silent(&self) -> impl Iterator<Item = (NodeId, Instant)> {
        let silent = self.watch.watched.iter().filter(|(_, watched)| watched.missed >= MISSED);
        silent.map(|(id, watched)| (*id, watched.since))
    }

    /// Whom this target watches.
    pub fn watched(&self) -> impl Iterator<Item = NodeId> {
        self.watch.watched.keys().copied()
    }

    pub(super) fn wake_watch(&mut self) {
        let interval = self.config.watch_interval;
        if interval == Span::ZERO || self.now < self.watch.next {
            return;
        }
        if self.watch.epoch != Some(self.setup.map.epoch) {
            self.look_up_watched();
        }
        self.watch.next = self.now + interval;
        let (now, seed) = (self.now, self.setup.seed);
        let mut questions = Vec::with_capacity(self.watch.watched.len());
        for (id, watched) in &mut self.watch.watched {
            if watched.missed == 0 {
                watched.since = now;
            }
            watched.missed = watched.missed.saturating_add(1);
            self.watch.asked += 1;
            watched.txn = TxnId(mix(seed ^ mix(self.watch.asked ^ 0x7769_746e)));
            questions.push((*id, watched.txn));
        }
        for (id, txn) in questions {
            self.send(id, &Message::Ping { txn });
        }
    }

    /// Who is watched by the newest map; of those that were before, what is known stays.
    fn look_up_watched(&mut self) {
        let mut before = core::mem::take(&mut self.watch.watched);
        let new = || Watched { txn: TxnId(0), missed: 0, since: self.now };
        let all = watched_by(self.setup.id, &self.setup.map);
        self.watch.watched = all.into_iter().map(|id| (id, before.remove(&id).unwrap_or_else(new))).collect();
        self.watch.epoch = Some(self.setup.map.epoch);
    }

    /// A target is there. Whether this one asked.
    pub(super) fn is_there(&mut self, from: NodeId, txn: TxnId) -> bool {
        let Some(watched) = self.watch.watched.get_mut(&from) else { return false };
        if watched.txn == txn {
            watched.missed = 0;
        } else {
            self.event(Event::Ignored(IgnoredReason::Late));
        }
        true
    }
}
