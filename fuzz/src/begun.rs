//! What a machine has begun, so that peers can say something about it: its transactions have numbers that nobody guesses.

use std::collections::VecDeque;

use arbitrary::Arbitrary;
use protocol::id::{ChunkId, TxnId};
use protocol::limits::PIECES;
use protocol::redundancy::Piece;
use protocol::wire::{Leading, Message};

/// A transaction that a machine has begun.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct AnyBegun {
    /// Counted back from the newest.
    back: u8,
    /// Of a get of any pieces the part that fetches this one.
    piece: Option<u8>,
}

impl AnyBegun {
    /// The same of the piece that is so many further on.
    #[must_use]
    pub fn further(self, by: u8) -> Self {
        Self { piece: self.piece.map(|n| n.wrapping_add(by)), ..self }
    }
}

/// As far back as an input can count.
const REMEMBERED: usize = 256;

/// Transactions, in the order in which they were first heard of, and the chunks that they are about.
#[derive(Debug, Default)]
pub struct Begun(VecDeque<(TxnId, Option<ChunkId>)>);

impl Begun {
    /// The machine says this.
    pub fn note(&mut self, message: &Message) {
        let begun = match message {
            Message::PutRequest(request) => (request.txn, Some(request.id)),
            Message::GetRequest { txn, id, .. }
            | Message::Probe { txn, id, .. }
            | Message::Restore { txn, id, .. }
            | Message::Move { txn, id, .. }
            | Message::Surplus { txn, id, .. } => (*txn, Some(*id)),
            Message::Leading(Leading::Request(request)) => (request.txn, Some(request.id)),
            Message::Leading(Leading::Seek(seek)) => (seek.txn, Some(seek.id)),
            Message::List { txn, .. }
            | Message::Ping { txn }
            | Message::Mark { txn }
            | Message::Usage { txn }
            | Message::Health { txn }
            | Message::Fill { txn } => (*txn, None),
            Message::Discard(discard) => (discard.txn, None),
            Message::Census(request) => (request.txn, None),
            _ => return,
        };
        if !self.0.contains(&begun) {
            self.0.push_back(begun);
        }
        if self.0.len() > REMEMBERED {
            self.0.pop_front();
        }
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, AnyBegun { back, piece }: AnyBegun) -> (TxnId, Option<ChunkId>) {
        let nth = self.0.len().checked_sub(1 + usize::from(back) % self.0.len().max(1));
        let (txn, about) = nth.map_or((TxnId(back.into()), None), |nth| self.0[nth]);
        let piece = piece.map(|n| Piece(n % PIECES as u8));
        piece.map_or((txn, about), |piece| (txn.of_piece(piece), about.map(|id| id.of_piece(piece))))
    }
}
