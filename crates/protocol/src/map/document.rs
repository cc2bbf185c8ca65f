//! A cluster map as nodes hand it to each other.

use bytes::Bytes;

use crate::limits;

/// A cluster map in the words of the drivers, which alone read and write it: with addresses and settings of which machines know
/// nothing. It is the same on every node, byte for byte.
#[derive(Clone, PartialEq, Eq)]
pub struct MapDocument {
    bytes: Bytes,
    digest: [u8; Self::DIGEST],
}

impl MapDocument {
    /// Length of a digest.
    pub const DIGEST: usize = 16;
    /// Bytes in a part; the last may have fewer.
    pub const PART: usize = 1_024;

    /// The document with these bytes; `None` when there are none, or more than [`limits::MAP_BYTES`].
    #[must_use]
    pub fn new(bytes: Bytes) -> Option<Self> {
        let mut digest = [0; Self::DIGEST];
        digest.copy_from_slice(&blake3::hash(&bytes).as_bytes()[..Self::DIGEST]);
        (!bytes.is_empty() && bytes.len() <= limits::MAP_BYTES).then_some(Self { bytes, digest })
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The first bytes of its BLAKE3 hash: two maps of one epoch differ in it.
    #[must_use]
    pub const fn digest(&self) -> &[u8; Self::DIGEST] {
        &self.digest
    }
}

impl core::fmt::Debug for MapDocument {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "MapDocument({} bytes)", self.bytes.len())
    }
}
