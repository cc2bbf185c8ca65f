//! What became of recent transactions, for questions that come late.

use std::collections::VecDeque;

use crate::id::TxnId;
use crate::limits;
use crate::wire::Ack;

/// The last [`limits::FINISHED`] ends of transactions, oldest first. One is remembered for each that ends and hardly ever asked
/// for, so they are only looked through.
#[derive(Debug, Default)]
pub(super) struct Finished(VecDeque<(TxnId, Ack)>);

impl Finished {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn prefetch(&self) -> u64 {
        self.0.back().map_or(0, |(txn, _)| txn.0)
    }

    pub(super) fn remember(&mut self, txn: TxnId, fate: Ack) {
        if self.0.len() >= limits::FINISHED {
            self.0.pop_front();
        }
        self.0.push_back((txn, fate));
    }

    /// The fate of a transaction's last round.
    pub(super) fn get(&self, txn: TxnId) -> Option<Ack> {
        self.0.iter().rev().find(|(finished, _)| *finished == txn).map(|(_, fate)| *fate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_and_a_later_fate_is_the_newest() {
        let mut finished = Finished::default();
        finished.remember(TxnId(0), Ack::Unknown);
        finished.remember(TxnId(1), Ack::Durable);
        finished.remember(TxnId(0), Ack::Durable);
        for n in 2..=limits::FINISHED as u64 {
            finished.remember(TxnId(n), Ack::Durable);
        }
        assert_eq!((finished.get(TxnId(0)), finished.get(TxnId(1))), (Some(Ack::Durable), None));
        assert_eq!(finished.0.len(), limits::FINISHED);
    }
}
