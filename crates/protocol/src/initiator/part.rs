//! What the get of a piece says to the get of its chunk.

use super::{Fetched, GetError};

/// What comes of a piece.
#[derive(Debug)]
pub(super) enum Part {
    /// It should have begun to come.
    Late,
    /// It is here, or cannot be had.
    Over(Result<Fetched, GetError>),
}
