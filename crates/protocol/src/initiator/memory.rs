//! Which targets hold what, as far as this initiator remembers. Asking them first saves the rest of the group the
//! question; a wrong memory costs one more round.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::id::{ChunkId, NodeId};

/// Chunks whose holders an initiator remembers; the oldest is forgotten first.
const REMEMBERED: usize = 16_384;

type Holders = std::collections::BTreeMap<u64, SmallVec<[NodeId; 3]>>;

#[derive(Debug, Default)]
pub(super) struct Memory {
    /// By digests of ids: two that are the same are as rare as they are harmless, and whole ids would be most of the memory of a large
    /// simulated cluster.
    holders: Holders,
    /// Oldest first.
    order: VecDeque<u64>,
}

impl Memory {
    pub(super) fn remember(&mut self, id: ChunkId, holders: Vec<NodeId>) {
        let key = id.digest();
        if self.holders.insert(key, holders.into_iter().collect()).is_none() {
            self.order.push_back(key);
            if self.order.len() > REMEMBERED {
                self.order.pop_front().map(|oldest| self.holders.remove(&oldest));
            }
        }
    }

    pub(super) fn holders(&self, id: &ChunkId) -> &[NodeId] {
        self.holders.get(&id.digest()).map_or(&[], SmallVec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut memory = Memory::default();
        let id = |n: usize| ChunkId::of_payload(&n.to_le_bytes());
        for n in 0..=REMEMBERED {
            memory.remember(id(n), vec![NodeId(n as u32)]);
            memory.remember(id(n), vec![NodeId(7)]);
        }
        assert!(memory.holders(&id(0)).is_empty());
        assert_eq!(memory.holders(&id(1)), [NodeId(7)]);
        assert_eq!(memory.holders.len(), memory.order.len());
    }
}
