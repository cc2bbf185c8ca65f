//! Names of things: chunks, nodes, transactions.

pub mod coded;

use core::fmt;

use crate::limits;
use crate::redundancy::{Piece, Redundancy, Wanted};

/// A node (target or initiator) of one cluster. Targets have the id of the cluster map; initiators draw theirs from
/// [`NodeId::FIRST_INITIATOR`] upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl NodeId {
    /// Ids below belong to targets, this one and above to initiators.
    pub const FIRST_INITIATOR: u32 = 1 << 24;

    /// Whether this is an initiator's id.
    #[must_use]
    pub const fn is_initiator(self) -> bool {
        self.0 >= Self::FIRST_INITIATOR
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_initiator() {
            write!(f, "initiator-{}", self.0 - Self::FIRST_INITIATOR)
        } else {
            write!(f, "target-{}", self.0)
        }
    }
}

/// Which cluster a datagram belongs to: the first bytes of the hash of the cluster's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u32);

impl ClusterId {
    /// The id of the cluster called `name`.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        let hash = blake3::hash(name.as_bytes());
        let b = hash.as_bytes();
        Self(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }
}

/// The version of the cluster map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u32);

/// One put, get or find of one initiator; drawn at random, so that a stranger cannot guess it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxnId(pub u64);

impl TxnId {
    /// Bits that say of which piece a get is that asks for any pieces of a coded chunk; those of the whole get are 0.
    const PIECE: u64 = 0x1f;

    /// The part of this get of a coded chunk that fetches `piece`. A target that is asked for any piece uses it in its
    /// answer, for the piece that it has.
    #[must_use]
    pub const fn of_piece(self, piece: Piece) -> Self {
        Self(self.whole().0 | (piece.0 as u64 + 1) & Self::PIECE)
    }

    /// The get of which this is a part.
    #[must_use]
    pub const fn whole(self) -> Self {
        Self(self.0 & !Self::PIECE)
    }

    /// Whether it may be one that asks for any pieces.
    pub(crate) const fn is_whole(self) -> bool {
        self.0 & Self::PIECE == 0
    }

    /// Which piece this part fetches, if it is one.
    pub(crate) fn piece(self) -> Option<Piece> {
        let number = (self.0 & Self::PIECE).checked_sub(1)?;
        (number < limits::PIECES as u64).then_some(Piece(number as u8))
    }
}

/// One effect that a machine asked its driver for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// The negotiating group with this number: that many cells into the ring of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// What a chunk's bytes are, which decides how its id is made and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChunkKind {
    /// User bytes: the id is the BLAKE3 hash of the stored bytes.
    Payload = 0,
    /// The manifest of one version of a name: see [`ChunkId::of_manifest`].
    Manifest = 1,
    /// User bytes that are kept as fragments of a code, and each of these fragments: see [`coded`].
    Coded = 2,
}

impl ChunkKind {
    /// Every kind, in the order of ids.
    pub const ALL: [Self; 3] = [Self::Payload, Self::Manifest, Self::Coded];

    /// The kind with this wire and disk code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Payload),
            1 => Some(Self::Manifest),
            2 => Some(Self::Coded),
            _ => None,
        }
    }
}

/// The name of a chunk. Every id can be checked against the bytes it names ([`ChunkId::matches`]), so a copy is never
/// believed on a node's word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId {
    kind: ChunkKind,
    bytes: [u8; 32],
}

impl ChunkId {
    /// Encoded length: a kind byte and 32 bytes.
    pub const LEN: usize = 33;
    /// Length of the part of a manifest's id that is the same for all versions of a name.
    pub const NAME_LEN: usize = 16;

    /// The id of a payload chunk with these bytes.
    #[must_use]
    pub fn of_payload(bytes: &[u8]) -> Self {
        Self { kind: ChunkKind::Payload, bytes: *blake3::hash(bytes).as_bytes() }
    }

    /// The id of the manifest `bytes` of a version of `name`: 16 bytes of the name's hash, 6 bytes of `version_ms`
    /// (milliseconds since 1970, big-endian, so that versions sort by time), 10 bytes of the hash of the manifest.
    #[must_use]
    pub fn of_manifest(name: &str, version_ms: u64, bytes: &[u8]) -> Self {
        let mut id = [0; 32];
        id[..16].copy_from_slice(&Self::name_prefix(name));
        id[16..22].copy_from_slice(&version_ms.to_be_bytes()[2..]);
        id[22..].copy_from_slice(&blake3::hash(bytes).as_bytes()[..10]);
        Self { kind: ChunkKind::Manifest, bytes: id }
    }

    /// The first 16 bytes of the id of every version of `name`.
    #[must_use]
    pub fn name_prefix(name: &str) -> [u8; Self::NAME_LEN] {
        let mut prefix = [0; Self::NAME_LEN];
        prefix.copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..Self::NAME_LEN]);
        prefix
    }

    /// An id from its parts, as found on the wire or on disk.
    #[must_use]
    pub const fn from_parts(kind: ChunkKind, bytes: [u8; 32]) -> Self {
        Self { kind, bytes }
    }

    /// What the chunk is.
    #[must_use]
    pub const fn kind(&self) -> ChunkKind {
        self.kind
    }

    /// The 32 bytes of the id.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// Something short that two ids hardly ever share.
    pub(crate) fn digest(&self) -> u64 {
        let words = self.bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        words.fold(0, |digest: u64, word| digest.rotate_left(23) ^ word)
    }

    /// Milliseconds since 1970 of a manifest's version; `None` for a payload chunk.
    #[must_use]
    pub fn version_ms(&self) -> Option<u64> {
        let mut ms = [0; 8];
        ms[2..].copy_from_slice(&self.bytes[16..22]);
        (self.kind == ChunkKind::Manifest).then(|| u64::from_be_bytes(ms))
    }

    /// The kind byte and the 32 bytes, as the wire, the disk and the index carry them.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[0] = self.kind as u8;
        out[1..].copy_from_slice(&self.bytes);
        out
    }

    /// The reverse of [`ChunkId::encode`]; `None` for an unknown kind.
    #[must_use]
    pub fn decode(encoded: &[u8; Self::LEN]) -> Option<Self> {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(&encoded[1..]);
        Some(Self { kind: ChunkKind::from_code(encoded[0])?, bytes })
    }

    /// The part of the id that decides the negotiating group. For payload it is all of the id. For a manifest it is the
    /// name, so that one group is asked for every version of a name. For a coded chunk it is what all of its pieces
    /// share.
    #[must_use]
    pub fn placement_key(&self) -> &[u8] {
        match self.kind {
            ChunkKind::Payload => &self.bytes,
            ChunkKind::Manifest => &self.bytes[..Self::NAME_LEN],
            ChunkKind::Coded => &self.bytes[..coded::HASHED],
        }
    }

    /// What has to be durable of it, by what is wanted and what the map says: of a coded chunk its pieces, of a piece
    /// that piece alone.
    #[must_use]
    pub fn redundancy(&self, wanted: Wanted, map: Redundancy) -> Redundancy {
        match self.code() {
            Some(_) if self.piece().is_some() => Redundancy::Copies(1),
            Some(code) => Redundancy::Code(code),
            None => wanted.redundancy(map),
        }
    }

    /// Whether `parts`, one after the other, are the bytes that this id names. CPU-heavy: drivers call it for
    /// [`Effect`](crate::machine::Effect)s, machines never do.
    #[must_use]
    pub fn matches<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> bool {
        match self.kind {
            ChunkKind::Payload => hash(parts).as_bytes() == &self.bytes,
            ChunkKind::Manifest => hash(parts).as_bytes()[..10] == self.bytes[22..],
            ChunkKind::Coded => coded::matches(self, parts),
        }
    }
}

/// The hash of `parts`, one after the other.
fn hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            ChunkKind::Payload => "p",
            ChunkKind::Manifest => "m",
            ChunkKind::Coded => "c",
        })?;
        f.write_str(&blake3::Hash::from_bytes(self.bytes).to_hex())
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = self.to_string();
        f.write_str(&hex[..13])?;
        // Versions of one name differ further behind, and so do pieces of one chunk.
        if self.kind == ChunkKind::Payload { Ok(()) } else { write!(f, "-{}", &hex[57..]) }
    }
}
