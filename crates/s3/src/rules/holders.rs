//! What is said of where an object's chunks are.

use serde::{Deserialize, Serialize};

/// The header of a GetObject that asks where the chunks of the range are in place of their bytes; its value is of how many at most. The answer has
/// it too.
pub const HOLDERS: &str = "x-reservoir-places";
/// That many can be asked for at once.
pub const MOST_CHUNKS: usize = 64;

/// The answer, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectHolders {
    /// The manifest, and the chunks of the range in order.
    pub chunks: Vec<ChunkHolders>,
    /// Whether the range has more.
    pub has_more: bool,
    /// Targets that did not say what they hold.
    pub silent: Vec<u32>,
}

/// Who has a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkHolders {
    /// Its id.
    pub id: String,
    /// Bytes of the object in it; 0 for the manifest.
    pub bytes: u32,
    /// How it is coded, as `4+2`; `null` for copies.
    pub code: Option<String>,
    /// Of a coded chunk one for each piece that somebody has, those of data first.
    pub holders: Vec<PieceHolders>,
}

/// Who has a piece of a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceHolders {
    /// Its number; `null` for copies.
    pub piece: Option<u8>,
    /// Targets.
    pub targets: Vec<u32>,
}
