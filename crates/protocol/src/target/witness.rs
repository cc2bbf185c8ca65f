//! Which of the other targets are silent: each is asked now and then by a few of other failure domains whether it is there.

use std::collections::BTreeMap;

use super::{Event, IgnoredReason, Message, NodeId, Target, TxnId};
use crate::id::Epoch;
use crate::map::ClusterMap;
use crate::rng::mix;
use crate::time::{Instant, Span};

/// How many others watch a target.
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
}

#[derive(Debug)]
struct Watched {
    /// The last question.
    txn: TxnId,
    /// Questions without an answer, and when the first of them was asked.
    missed: u8,
    since: Instant,
}

/// All targets in the order in which they watch each other, which hashing makes, and their failure domains.
struct Ring(Vec<(u64, NodeId, u16)>);

impl Ring {
    fn new(map: &ClusterMap) -> Self {
        let place = |id: NodeId| mix(u64::from(id.0) | 1 << 41);
        let mut all: Vec<(u64, NodeId, u16)> =
            map.targets().map(|target| (place(target.id), target.id, target.domain)).collect();
        all.sort_unstable();
        Self(all)
    }

    fn at(&self, place: usize) -> (NodeId, u16) {
        let (_, id, domain) = self.0[place % self.0.len()];
        (id, domain)
    }

    fn position(&self, id: NodeId) -> Option<usize> {
        self.0.iter().position(|(_, other, _)| *other == id)
    }

    fn reach(&self) -> core::ops::Range<usize> {
        1..self.0.len().min(REACH)
    }

    /// The next few behind a place, of other failure domains than that one and each other.
    fn witnesses(&self, place: usize) -> Vec<NodeId> {
        let (mut domains, mut witnesses) = (vec![self.at(place).1], Vec::with_capacity(WITNESSES));
        for (id, domain) in self.reach().map(|n| self.at(place + n)) {
            if witnesses.len() < WITNESSES && !domains.contains(&domain) {
                domains.push(domain);
                witnesses.push(id);
            }
        }
        witnesses
    }
}

/// The witnesses of a target: the others that watch it.
pub(super) fn witnesses_of(id: NodeId, map: &ClusterMap) -> Vec<NodeId> {
    let ring = Ring::new(map);
    ring.position(id).map_or_else(Vec::new, |place| ring.witnesses(place))
}

/// The targets that a target watches.
fn watched_by(own: NodeId, map: &ClusterMap) -> Vec<NodeId> {
    let ring = Ring::new(map);
    let Some(place) = ring.position(own) else { return Vec::new() };
    let before = ring.reach().map(|back| place + ring.0.len() - back);
    before.filter(|of| ring.witnesses(*of).contains(&own)).map(|of| ring.at(of).0).collect()
}

impl Watch {
    pub(super) fn next_deadline(&self, interval: Span) -> Option<Instant> {
        (interval > Span::ZERO).then_some(self.next)
    }
}

impl Target {
    /// The targets that are silent as far as this one knows, and since when. A target that said a moment ago that it
    /// stops is none of them: it is being started again.
    pub fn silent(&self) -> impl Iterator<Item = (NodeId, Instant)> {
        let within = self.setup.map.restart_within().unwrap_or(self.config.restart_within);
        let restarts = move |id: &NodeId| self.left().any(|(left, at)| left == *id && self.now.since(at) < within);
        let silent = self.watch.watched.iter().filter(move |(id, watched)| watched.missed >= MISSED && !restarts(id));
        silent.map(|(id, watched)| (*id, watched.since))
    }

    /// The targets that this one watches.
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
        let now = self.now;
        let mut questions = Vec::with_capacity(self.watch.watched.len());
        for (id, watched) in &mut self.watch.watched {
            if watched.missed == 0 {
                watched.since = now;
            }
            watched.missed = watched.missed.saturating_add(1);
            watched.txn = TxnId(self.secrets.next_u64());
            questions.push((*id, watched.txn));
        }
        for (id, txn) in questions {
            self.send(id, &Message::Ping { txn });
        }
    }

    /// The targets to watch by the newest map. What is known of those that were watched before stays.
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
