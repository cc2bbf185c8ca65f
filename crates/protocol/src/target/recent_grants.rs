//! The grants of the last transactions, by which a leader recognises a request that the network doubled or delayed.

use std::collections::{BTreeMap, VecDeque};

use crate::id::{NodeId, TxnId};
use crate::limits;

/// The last [`limits::FINISHED`] transactions.
#[derive(Debug, Default)]
pub(super) struct RecentGrants {
    /// To which initiator, and in which round.
    last: BTreeMap<TxnId, (NodeId, u8)>,
    /// Oldest first.
    order: VecDeque<TxnId>,
}

impl RecentGrants {
    /// A transaction's last round replaces an earlier one.
    pub(super) fn remember(&mut self, txn: TxnId, to: NodeId, round: u8) {
        if self.last.insert(txn, (to, round)).is_some() {
            self.order.retain(|granted| *granted != txn);
        } else if self.order.len() >= limits::FINISHED {
            self.order.pop_front().map(|oldest| self.last.remove(&oldest));
        }
        self.order.push_back(txn);
    }

    pub(super) fn get(&self, txn: TxnId) -> Option<(NodeId, u8)> {
        self.last.get(&txn).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_and_a_later_round_is_the_newest() {
        let (mut granted, to) = (RecentGrants::default(), NodeId(NodeId::FIRST_INITIATOR));
        granted.remember(TxnId(0), to, 0);
        granted.remember(TxnId(1), to, 0);
        granted.remember(TxnId(0), to, 1);
        for n in 2..=limits::FINISHED as u64 {
            granted.remember(TxnId(n), to, 0);
        }
        assert_eq!((granted.get(TxnId(0)), granted.get(TxnId(1))), (Some((to, 1)), None));
        assert_eq!(granted.last.len(), granted.order.len());
    }
}
