//! How a manifest names a chunk, and what can be wrong with a manifest.
//!
//! All numbers are little-endian. `docs/manifest.md` shows the layouts byte by byte.

use protocol::id::ChunkId;
use protocol::limits::CHUNK_BYTES;

/// The version of both formats, while no chunk is compressed or encrypted.
pub const FORMAT: u8 = 1;
/// The version of index chunks and of objects' manifests that name compressed chunks.
pub const PACKED: u8 = 2;
/// The version of those that name encrypted chunks, and of manifests with encrypted bytes in them.
pub const SEALED: u8 = 3;
/// Bytes of an encoded entry: a chunk id and a length.
pub const ENTRY_BYTES: usize = ChunkId::LEN + 4;
/// Bytes that an entry of later formats has more: what was done to the chunk, and its length without that.
const PACKED_BYTES: usize = 5;
/// What was done to a chunk: nothing, it was compressed with Zstandard, or it was encrypted.
const CODECS: [u8; 3] = [0, 1, 2];

/// Bytes that are encrypted together: a range decrypts those blocks alone that it touches.
pub const SEAL_BLOCK: usize = 64 << 10;
/// Bytes before the blocks of an encrypted chunk: what its own key is made from.
pub const SEAL_SALT: usize = 16;
/// Bytes after each block: what shows that it is as it was.
pub const SEAL_TAG: usize = 16;

/// Bytes of so many when they are encrypted.
#[must_use]
pub const fn sealed_length(plain: u64) -> u64 {
    if plain == 0 { 0 } else { SEAL_SALT as u64 + plain + plain.div_ceil(SEAL_BLOCK as u64) * SEAL_TAG as u64 }
}

/// Most bytes that still are a chunk when they are encrypted.
pub const SEALABLE: usize = CHUNK_BYTES as usize - SEAL_SALT - (CHUNK_BYTES as usize).div_ceil(SEAL_BLOCK) * SEAL_TAG;

/// One chunk of a file, or one index chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The chunk.
    pub id: ChunkId,
    /// Its length in bytes, 1 to 8 MiB.
    pub length: u32,
    /// Bytes of the object that are in it: more than `length` when they are compressed, fewer when they are encrypted, as many
    /// otherwise.
    pub plain: u32,
}

impl Entry {
    /// A chunk that is not compressed.
    #[must_use]
    pub const fn new(id: ChunkId, length: u32) -> Self {
        Self { id, length, plain: length }
    }

    /// Whether its bytes are compressed.
    #[must_use]
    pub const fn is_packed(&self) -> bool {
        self.plain > self.length
    }

    /// Whether its bytes are encrypted. Such are not compressed.
    #[must_use]
    pub const fn is_sealed(&self) -> bool {
        self.plain < self.length
    }
}

/// The format that entries are written in.
pub fn format_of(entries: &[Entry]) -> u8 {
    if entries.iter().any(Entry::is_sealed) {
        SEALED
    } else if entries.iter().any(Entry::is_packed) {
        PACKED
    } else {
        FORMAT
    }
}

/// Bytes of an entry in this format.
pub const fn entry_bytes(format: u8) -> usize {
    if format == FORMAT { ENTRY_BYTES } else { ENTRY_BYTES + PACKED_BYTES }
}

/// Writes an entry in this format.
pub fn put_entry(out: &mut Vec<u8>, entry: Entry, format: u8) {
    out.extend(entry.id.encode());
    out.extend(entry.length.to_le_bytes());
    if format != FORMAT {
        out.push(CODECS[if entry.is_sealed() { 2 } else { usize::from(entry.is_packed()) }]);
        out.extend(entry.plain.to_le_bytes());
    }
}

/// Reads what [`put_entry`] wrote: [`entry_bytes`] of it.
pub fn read_entry(part: &[u8], format: u8) -> Result<Entry, Malformed> {
    let mut encoded = [0; ChunkId::LEN];
    encoded.copy_from_slice(&part[..ChunkId::LEN]);
    let id = ChunkId::decode(&encoded).filter(|id| id.version_ms().is_none()).ok_or(Malformed::Kind)?;
    let length = u32_at(part, ChunkId::LEN);
    let possible = |bytes: u32| (1..=CHUNK_BYTES).contains(&bytes);
    if !possible(length) {
        return Err(Malformed::ChunkLength);
    }
    if format == FORMAT {
        return Ok(Entry::new(id, length));
    }
    let plain = u32_at(part, ENTRY_BYTES + 1);
    match (CODECS.iter().position(|codec| *codec == part[ENTRY_BYTES]), plain) {
        (Some(0), plain) if plain == length => Ok(Entry::new(id, length)),
        (Some(1), plain) if plain > length && possible(plain) => Ok(Entry { id, length, plain }),
        (Some(2), plain) if format == SEALED && sealed_length(plain.into()) == length.into() => {
            Ok(Entry { id, length, plain })
        }
        _ => Err(Malformed::Packing),
    }
}

/// What is wrong with a manifest or an index chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It does not begin as one.
    #[error("it does not begin like a manifest: another program may have stored it")]
    Magic,
    /// A later format.
    #[error("it has format {0}, this program knows up to {SEALED}: use a newer reservoir")]
    Format(u8),
    /// A level of indirection that there is not.
    #[error("it has level {0}, this program knows 0 and 1: use a newer reservoir")]
    Level(u8),
    /// Shorter or longer than its counts say.
    #[error("its length does not fit its counts")]
    Length,
    /// The name is empty, too long or not UTF-8.
    #[error("its name is not usable")]
    Name,
    /// A chunk id of an unknown kind, or that of a manifest.
    #[error("it names a chunk of another kind")]
    Kind,
    /// An entry without bytes or larger than a chunk.
    #[error("it names a chunk of an impossible length")]
    ChunkLength,
    /// A compressed chunk that did not become smaller, an encrypted one of another length than it has, an unknown way to
    /// compress, or a format for such chunks without any.
    #[error("it does not say as it should which chunks are compressed or encrypted")]
    Packing,
    /// The entries do not add up to the size.
    #[error("its chunks do not add up to its size")]
    Size,
    /// Its attributes are doubled or in another order than that of their names.
    #[error("its attributes are not in order")]
    Order,
    /// Its chunks are kept in another way than this program knows.
    #[error("its chunks are kept in a way that this program does not know: use a newer reservoir")]
    Redundancy,
    /// The version in its id is another.
    #[error("its version is not that of its id")]
    Version,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}
