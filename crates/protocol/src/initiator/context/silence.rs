//! Which targets have been silent for how long, as far as this initiator noticed. It asks silent targets by itself
//! until they answer. So it knows which are down without a put that waits for them, and notices at once when one is
//! back.

use super::{Context, Destination, Instant, Message, NodeId, TxnId};
use crate::machine::Deadline;

/// Rounds that a member may miss before others no longer wait for its bid.
const SUSPECT: u8 = 2;
/// Silent targets that are asked at a time; of more, others the next time.
const ASKED: usize = 16;

/// A target that missed what it was asked.
#[derive(Clone, Copy, Debug)]
pub(in crate::initiator) struct Missed {
    /// How many rounds in a row.
    rounds: u8,
    /// When the last of them was over.
    over: Instant,
    /// When the last was over that was counted.
    counted: Instant,
}

/// How the silent are asked whether they are back.
#[derive(Debug, Default)]
pub(in crate::initiator) struct Pings {
    /// When they were asked last, and as what.
    last: Option<(Instant, TxnId)>,
    /// Which of them, in the order of the ids.
    asked: Vec<NodeId>,
}

impl Context {
    pub(in crate::initiator) fn is_suspect(&self, node: NodeId) -> bool {
        self.missed.get(&node).is_some_and(|missed| missed.rounds >= SUSPECT)
    }

    /// Whether a member has missed so many rounds in a row that it is down, and not only restarting.
    pub(in crate::initiator) fn is_down(&self, node: NodeId) -> bool {
        self.missed.get(&node).is_some_and(|missed| missed.rounds >= self.config.down)
    }

    /// Whether anybody is.
    pub(in crate::initiator) fn has_down(&self) -> bool {
        self.missed.values().any(|missed| missed.rounds >= self.config.down)
    }

    pub(in crate::initiator) fn mark_reachable(&mut self, node: NodeId) {
        self.missed.remove(&node);
    }

    /// A member says itself that it stops.
    pub(in crate::initiator) fn mark_down(&mut self, node: NodeId) {
        self.missed.insert(node, Missed { rounds: self.config.down.max(SUSPECT), over: self.now, counted: self.now });
    }

    /// Nothing came from a member in a round that began at `since`. Rounds at one time count as one, and so do short ones that
    /// follow each other when it is suspect: a moment's silence is not many.
    pub(in crate::initiator) fn miss(&mut self, node: NodeId, since: Instant) {
        let (now, least) = (self.now, self.config.bid_timeout);
        let fresh = Missed { rounds: 0, over: Instant::ZERO, counted: Instant::ZERO };
        let missed = self.missed.entry(node).or_insert(fresh);
        if since < missed.over {
            return;
        }
        missed.over = now;
        if missed.rounds < SUSPECT || now.since(missed.counted) >= least {
            (missed.rounds, missed.counted) = (missed.rounds.saturating_add(1), now);
        }
    }

    /// Those that no map has any more are asked nothing.
    pub(in crate::initiator) fn forget_strangers(&mut self) {
        let map = &self.map;
        self.missed.retain(|node, _| map.target(*node).is_some());
    }

    /// Asks silent targets whether they are back, when it is time and nothing else has asked them for as long. A target
    /// that did not answer the last time has missed one round more.
    pub(in crate::initiator) fn ask_silent(&mut self) {
        if self.next_asking().is_none_or(|next| next.at > self.now) {
            return;
        }
        let silent: Vec<NodeId> = self.silent().filter(|(_, at)| *at <= self.now).map(|(node, _)| node).collect();
        let asked = core::mem::take(&mut self.pings.asked);
        if let Some((since, _)) = self.pings.last {
            for node in asked.iter().copied().filter(|node| silent.contains(node)) {
                self.miss(node, since);
            }
        }
        let txn = TxnId(self.txns.next_u64());
        let after = silent.iter().position(|node| Some(node) > asked.last()).unwrap_or(0);
        let turn = silent.iter().copied().cycle().skip(after).take(silent.len().min(ASKED)).collect::<Vec<NodeId>>();
        turn.iter().for_each(|node| self.send(Destination::Node(*node), &Message::Ping { txn }));
        self.pings = Pings { last: Some((self.now, txn)), asked: turn };
    }

    /// The targets that are suspect, and when each may be asked by itself.
    fn silent(&self) -> impl Iterator<Item = (NodeId, Instant)> {
        let suspects = self.missed.iter().filter(|(_, missed)| missed.rounds >= SUSPECT);
        suspects.map(|(node, missed)| (*node, missed.over + self.config.bid_timeout))
    }

    pub(in crate::initiator) fn next_asking(&self) -> Option<Deadline> {
        // A target that restores asks for the copies that it needs, and counts on nothing less.
        let first = self.silent().filter(|_| self.id.is_initiator()).map(|(_, at)| at).min()?;
        let at = self.pings.last.map_or(first, |(last, _)| first.max(last + self.config.bid_timeout));
        Some(Deadline { at, why: "the silent" })
    }

    /// Whether this was a question to silent targets: one that answers is back.
    pub(in crate::initiator) fn is_back(&self, txn: TxnId) -> bool {
        self.pings.last.is_some_and(|(_, asked)| asked == txn)
    }
}
