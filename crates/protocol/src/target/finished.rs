//! What became of recent transactions, for questions that come late.

use std::collections::{BTreeMap, VecDeque};

use crate::id::TxnId;
use crate::limits;
use crate::wire::Ack;

/// The last [`limits::FINISHED`] transactions.
#[derive(Debug)]
pub(super) struct Finished<T = Ack> {
    fates: BTreeMap<TxnId, T>,
    /// Oldest first.
    order: VecDeque<TxnId>,
}

impl<T> Default for Finished<T> {
    fn default() -> Self {
        Self { fates: BTreeMap::new(), order: VecDeque::new() }
    }
}

impl<T: Copy> Finished<T> {
    /// The fate of a transaction's last round replaces that of an earlier one.
    pub(super) fn remember(&mut self, txn: TxnId, fate: T) {
        if self.fates.insert(txn, fate).is_some() {
            self.order.retain(|finished| *finished != txn);
        } else if self.order.len() >= limits::FINISHED {
            self.order.pop_front().map(|oldest| self.fates.remove(&oldest));
        }
        self.order.push_back(txn);
    }

    pub(super) fn get(&self, txn: TxnId) -> Option<T> {
        self.fates.get(&txn).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_and_a_later_fate_is_the_newest() {
        let mut finished: Finished = Finished::default();
        finished.remember(TxnId(0), Ack::Unknown);
        finished.remember(TxnId(1), Ack::Durable);
        finished.remember(TxnId(0), Ack::Durable);
        for n in 2..=limits::FINISHED as u64 {
            finished.remember(TxnId(n), Ack::Durable);
        }
        assert_eq!((finished.get(TxnId(0)), finished.get(TxnId(1))), (Some(Ack::Durable), None));
        assert_eq!(finished.fates.len(), finished.order.len());
    }
}
