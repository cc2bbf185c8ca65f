//! An attacker that records datagrams and replays them, also those of earlier lives; and the check that no node falls
//! for it.

use std::collections::BTreeMap;

use bytes::Bytes;
use protocol::id::NodeId;
use protocol::rng::Rng;
use protocol::time::{Instant, Span};
use protocol::wire::is_data;

/// Datagrams that are remembered, from all times alike.
const RECORDED: usize = 512;
/// Played back when a node begins a new life: of those that it sent or got before, at most.
const AT_A_START: usize = 40;
/// Time in which these come.
const SOON: u64 = 20_000_000;

pub(super) struct Recorder {
    /// Per thousand datagrams that are sent.
    chance: u64,
    rng: Rng,
    recorded: Vec<(NodeId, Bytes)>,
    seen: u64,
    /// The sequence numbers that each node, in all its lives, took of each session: a bit for each.
    accepted: BTreeMap<(NodeId, u64), Vec<u64>>,
    /// The sessions that a node took of each sender, in their order.
    lives: BTreeMap<(NodeId, NodeId), Vec<u64>>,
}

fn word(datagram: &[u8], at: usize) -> u64 {
    datagram.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// The sender of a control datagram, as it declares.
pub(super) fn sender(datagram: &[u8]) -> NodeId {
    NodeId((word(datagram, 8) >> 32) as u32)
}

impl Recorder {
    pub(super) const fn new(chance: u64, rng: Rng) -> Self {
        Self { chance, rng, recorded: Vec::new(), seen: 0, accepted: BTreeMap::new(), lives: BTreeMap::new() }
    }

    /// A datagram will arrive `at` this time: what is played back because of it, when and to which node.
    pub(super) fn sent(&mut self, at: Instant, to: NodeId, datagram: &Bytes) -> Vec<(Instant, NodeId, Bytes)> {
        if self.chance == 0 || is_data(datagram) {
            return Vec::new();
        }
        self.seen += 1;
        if self.recorded.len() < RECORDED {
            self.recorded.push((to, datagram.clone()));
        } else if let Some(old) = self.recorded.get_mut(self.rng.below(self.seen) as usize) {
            *old = (to, datagram.clone());
        }
        let plays = self.rng.chance(self.chance, 1_000);
        plays
            .then(|| self.rng.below(self.recorded.len() as u64) as usize)
            .map(|n| self.again(at, n))
            .into_iter()
            .collect()
    }

    fn again(&mut self, at: Instant, n: usize) -> (Instant, NodeId, Bytes) {
        let (to, datagram) = &self.recorded[n];
        (at + Span::from_nanos(self.rng.below(SOON)), *to, datagram.clone())
    }

    /// `node` begins a new life: what it sent and received in earlier ones is replayed.
    pub(super) fn restarted(&mut self, now: Instant, node: NodeId) -> Vec<(Instant, NodeId, Bytes)> {
        let of_node = |(to, datagram): &(NodeId, Bytes)| *to == node || sender(datagram) == node;
        let old: Vec<usize> = (0..self.recorded.len()).filter(|n| of_node(&self.recorded[*n])).collect();
        old.into_iter().rev().take(AT_A_START).map(|n| self.again(now, n)).collect()
    }

    /// A machine takes a datagram: what is wrong with that.
    pub(super) fn accepted(&mut self, to: NodeId, datagram: &Bytes) -> Option<String> {
        if self.chance == 0 || is_data(datagram) {
            return None;
        }
        let (from, session, sequence) = (sender(datagram), word(datagram, 16), word(datagram, 24));
        let lives = self.lives.entry((to, from)).or_default();
        match lives.iter().position(|life| *life == session) {
            None => lives.push(session),
            Some(life) if life + 1 < lives.len() => {
                return Some(format!("{to} accepted what {from} sent in an earlier life"));
            }
            Some(_) => {}
        }
        let bits = self.accepted.entry((to, session)).or_default();
        let (word, bit) = ((sequence / 64) as usize, 1 << (sequence % 64));
        if bits.len() <= word {
            bits.resize(word + 1, 0);
        }
        let again = bits[word] & bit != 0;
        bits[word] |= bit;
        again.then(|| format!("{to} took a datagram of {from} twice"))
    }
}
