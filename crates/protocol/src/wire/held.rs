//! What a target says that it has of a chunk: a copy, or a piece of a coded one.

use super::{Ack, Answer};
use crate::id::ChunkId;
use crate::redundancy::Piece;

impl Answer {
    /// Which piece is durable, if one is; copies are alike.
    #[must_use]
    pub(crate) const fn held(&self) -> Piece {
        match self {
            Self::HavePiece(piece) => *piece,
            _ => Piece(0),
        }
    }

    /// That a copy or a piece with this id is durable here.
    #[must_use]
    pub(crate) fn of_held(id: &ChunkId) -> Self {
        id.piece().map_or(Self::HaveIt, Self::HavePiece)
    }
}

impl Ack {
    /// That a copy or a piece with this id is durable.
    #[must_use]
    pub(crate) fn of_held(id: &ChunkId) -> Self {
        id.piece().map_or(Self::Durable, Self::Piece)
    }

    /// As which piece it is durable, if it is; copies are alike.
    #[must_use]
    pub(crate) const fn durable(self) -> Option<Piece> {
        match self {
            Self::Durable => Some(Piece(0)),
            Self::Piece(piece) => Some(piece),
            Self::BadHash | Self::NoSpace | Self::DiskFailed | Self::Pending | Self::Unknown => None,
        }
    }
}
