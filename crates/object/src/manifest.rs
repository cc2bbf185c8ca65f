//! The manifest of one version of a name, and the index chunks of files too large for one manifest.
//!
//! All numbers are little-endian. `docs/manifest.md` shows the layouts byte by byte.

pub use catalog::entry::{ENTRY_BYTES, Entry, FORMAT, Malformed, PACKED, SEALED};
use catalog::entry::{entry_bytes, format_of, put_entry, read_entry};
use protocol::limits::CHUNK_BYTES;

/// First bytes of a manifest.
pub const MAGIC: [u8; 4] = *b"RSVM";
/// First bytes of an index chunk.
pub const INDEX_MAGIC: [u8; 4] = *b"RSVI";
/// Longest name, in bytes.
pub const NAME_BYTES: usize = 1_024;
/// Bytes of a manifest before the name.
pub const HEADER_BYTES: usize = 64;
/// Bytes of an index chunk before its entries.
pub const INDEX_HEADER_BYTES: usize = 12;
/// Most entries in a manifest or an index chunk: what fits the largest chunk with the longest name.
pub const FILE_ENTRIES: usize = (CHUNK_BYTES as usize - HEADER_BYTES - NAME_BYTES) / ENTRY_BYTES;

/// What a version of a name is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The name.
    pub name: String,
    /// Bytes of the file.
    pub size: u64,
    /// When it was put, in milliseconds since 1970; greater than that of every older version.
    pub created_ms: u64,
    /// BLAKE3 hash of the file.
    pub hash: [u8; 32],
    /// Bytes of each payload chunk but the last.
    pub chunk_size: u32,
    /// Whether `entries` are index chunks, which name the payload chunks.
    pub indirect: bool,
    /// The chunks in order.
    pub entries: Vec<Entry>,
}

impl Manifest {
    /// The bytes of the manifest chunk.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(valid_name(&self.name), "a manifest with an unusable name: {:?}", self.name);
        assert!(self.entries.len() <= FILE_ENTRIES, "a manifest with {} entries", self.entries.len());
        assert!(format_of(&self.entries) == FORMAT, "a file's chunks are not compressed");
        let mut out = Vec::with_capacity(HEADER_BYTES + self.name.len() + self.entries.len() * ENTRY_BYTES);
        out.extend(MAGIC);
        out.extend([FORMAT, u8::from(self.indirect)]);
        out.extend((self.name.len() as u16).to_le_bytes());
        out.extend(self.size.to_le_bytes());
        out.extend(self.created_ms.to_le_bytes());
        out.extend(self.hash);
        out.extend(self.chunk_size.to_le_bytes());
        out.extend((self.entries.len() as u32).to_le_bytes());
        debug_assert_eq!(out.len(), HEADER_BYTES);
        out.extend(self.name.as_bytes());
        self.entries.iter().for_each(|entry| put_entry(&mut out, *entry, FORMAT));
        out
    }

    /// The manifest in these bytes.
    ///
    /// # Errors
    /// When they are not a manifest of a known format, or one that contradicts itself.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (head, rest) = bytes.split_at_checked(HEADER_BYTES).ok_or(Malformed::Length)?;
        check_start(head, MAGIC, FORMAT)?;
        if head[5] > 1 {
            return Err(Malformed::Level(head[5]));
        }
        let name_len = usize::from(u16::from_le_bytes([head[6], head[7]]));
        let mut hash = [0; 32];
        hash.copy_from_slice(&head[24..56]);
        let (name, entries) = rest.split_at_checked(name_len).ok_or(Malformed::Length)?;
        let name = core::str::from_utf8(name).map_err(|_| Malformed::Name)?;
        if !valid_name(name) {
            return Err(Malformed::Name);
        }
        let manifest = Self {
            name: name.to_owned(),
            size: u64_at(head, 8),
            created_ms: u64_at(head, 16),
            hash,
            chunk_size: u32_at(head, 56),
            indirect: head[5] == 1,
            entries: decode_entries(entries, u32_at(head, 60), FORMAT)?,
        };
        manifest.check_size()?;
        Ok(manifest)
    }

    /// Payload chunks of the file.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.size.div_ceil(u64::from(self.chunk_size.max(1)))
    }

    fn check_size(&self) -> Result<(), Malformed> {
        if self.chunk_size == 0 || self.chunk_size > CHUNK_BYTES {
            return Err(Malformed::ChunkLength);
        }
        let total: u64 = self.entries.iter().map(|e| u64::from(e.length)).sum();
        let adds_up = if self.indirect { self.size > 0 } else { total == self.size };
        let none_missing = self.entries.is_empty() == (self.size == 0);
        if adds_up && none_missing { Ok(()) } else { Err(Malformed::Size) }
    }
}

/// Whether files can have this name.
#[must_use]
pub fn valid_name(name: &str) -> bool {
    (1..=NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// The bytes of an index chunk.
#[must_use]
pub fn encode_index(entries: &[Entry]) -> Vec<u8> {
    assert!(entries.len() <= FILE_ENTRIES, "an index with {} entries", entries.len());
    let mut out = Vec::with_capacity(INDEX_HEADER_BYTES + entries.len() * ENTRY_BYTES);
    out.extend(INDEX_MAGIC);
    let format = format_of(entries);
    out.extend([format, 0, 0, 0]);
    out.extend((entries.len() as u32).to_le_bytes());
    entries.iter().for_each(|entry| put_entry(&mut out, *entry, format));
    out
}

/// The payload chunks that an index chunk names.
///
/// # Errors
/// When the bytes are not an index chunk of a known format.
pub fn decode_index(bytes: &[u8]) -> Result<Vec<Entry>, Malformed> {
    let (head, entries) = bytes.split_at_checked(INDEX_HEADER_BYTES).ok_or(Malformed::Length)?;
    let format = check_start(head, INDEX_MAGIC, SEALED)?;
    decode_entries(entries, u32_at(head, 8), format)
}

/// The format of what begins like this, up to the `newest` that it may have.
fn check_start(head: &[u8], magic: [u8; 4], newest: u8) -> Result<u8, Malformed> {
    match head {
        [a, b, c, d, ..] if [*a, *b, *c, *d] != magic => Err(Malformed::Magic),
        [_, _, _, _, format, ..] if (FORMAT..=newest).contains(format) => Ok(*format),
        _ => Err(Malformed::Format(head[4])),
    }
}

/// `count` is believed only when the bytes bear it out.
fn decode_entries(bytes: &[u8], count: u32, format: u8) -> Result<Vec<Entry>, Malformed> {
    let size = entry_bytes(format);
    if (count as usize).checked_mul(size) != Some(bytes.len()) {
        return Err(Malformed::Length);
    }
    let entries: Vec<Entry> =
        bytes.chunks_exact(size).map(|part| read_entry(part, format)).collect::<Result<_, _>>()?;
    if format_of(&entries) == format { Ok(entries) } else { Err(Malformed::Packing) }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::id::ChunkId;

    use super::*;

    fn sample(entries: Vec<Entry>) -> Manifest {
        Manifest {
            name: "a name".to_owned(),
            size: entries.iter().map(|e| u64::from(e.length)).sum(),
            created_ms: 1_700_000_000_000,
            hash: [7; 32],
            chunk_size: 1 << 20,
            indirect: false,
            entries,
        }
    }

    fn entry(length: u32) -> Entry {
        Entry::new(ChunkId::of_payload(&length.to_le_bytes()), length)
    }

    #[test]
    fn encodes_and_decodes() {
        for entries in [vec![], vec![entry(1)], vec![entry(1 << 20), entry(5)]] {
            let manifest = sample(entries.clone());
            assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
            assert_eq!(decode_index(&encode_index(&entries)), Ok(entries));
        }
    }

    #[test]
    fn the_format_is_frozen() {
        let bytes = sample(vec![entry(1 << 20), entry(5)]).encode();
        assert_eq!(bytes.len(), 64 + 6 + 2 * 37);
        assert_eq!(&bytes[..16], b"RSVM\x01\x00\x06\x00\x05\x00\x10\x00\x00\x00\x00\x00");
        assert_eq!(
            blake3::hash(&bytes).to_hex().as_str(),
            "4045682b9c05abe51b61854e8956ab633b1a4a702489a03edb402a9f6f93f96e"
        );
    }

    #[test]
    fn the_format_of_compressed_chunks_is_frozen() {
        let packed = Entry { plain: 1 << 20, ..entry(700_000) };
        let bytes = encode_index(&[entry(5), packed]);
        assert_eq!(decode_index(&bytes), Ok(vec![entry(5), packed]));
        assert_eq!(bytes.len(), 12 + 2 * 42);
        assert_eq!(&bytes[..12], b"RSVI\x02\0\0\0\x02\0\0\0");
        assert_eq!(&bytes[12 + 37..12 + 42], b"\0\x05\0\0\0");
        assert_eq!(&bytes[12 + 42 + 37..], b"\x01\0\0\x10\0");
        for (at, byte) in [(12 + 37, 1), (12 + 38, 6), (12 + 42 + 37, 0), (12 + 42 + 37, 2), (12 + 42 + 40, 0)] {
            let mut bad = bytes.clone();
            bad[at] = byte;
            assert_eq!(decode_index(&bad), Err(Malformed::Packing), "{byte} at {at}");
        }
        let mut none = encode_index(&[packed]);
        none[12 + 37] = 0;
        none.splice(12 + 38.., 700_000_u32.to_le_bytes());
        assert_eq!(decode_index(&none), Err(Malformed::Packing));
    }

    #[test]
    fn the_format_of_encrypted_chunks_is_frozen() {
        let sealed = Entry { plain: 5, ..entry(37) };
        let bytes = encode_index(&[sealed]);
        assert_eq!(decode_index(&bytes), Ok(vec![sealed]));
        assert_eq!(&bytes[..12], b"RSVI\x03\0\0\0\x01\0\0\0");
        assert_eq!(&bytes[12 + 37..], b"\x02\x05\0\0\0");
        // A format without it, another length, another way.
        for (at, byte) in [(4, 2), (4, 1), (12 + 38, 6), (12 + 37, 1), (12 + 37, 3)] {
            let mut bad = bytes.clone();
            bad[at] = byte;
            assert!(decode_index(&bad).is_err(), "{byte} at {at}");
        }
    }

    #[test]
    fn refuses_with_the_reason() {
        let good = sample(vec![entry(9)]).encode();
        let with = |at: usize, byte: u8| {
            let mut bad = good.clone();
            bad[at] = byte;
            Manifest::decode(&bad)
        };
        assert_eq!(with(0, b'X'), Err(Malformed::Magic));
        assert_eq!(with(4, 2), Err(Malformed::Format(2)));
        assert_eq!(with(5, 2), Err(Malformed::Level(2)));
        assert_eq!(with(6, 5), Err(Malformed::Length));
        assert_eq!(with(8, 8), Err(Malformed::Size));
        assert_eq!(with(64, 0), Err(Malformed::Name));
        assert_eq!(with(70, 1), Err(Malformed::Kind));
        assert_eq!(with(70, 9), Err(Malformed::Kind));
        assert_eq!(Manifest::decode(&good[..good.len() - 1]), Err(Malformed::Length));
        assert_eq!(Manifest::decode(&sample(vec![]).encode()[..10]), Err(Malformed::Length));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Manifest::decode(&bytes);
            let _ = decode_index(&bytes);
        }

        #[test]
        fn a_changed_byte_never_panics(at in 0_usize..144, byte in any::<u8>(), cut in 0_usize..200) {
            let mut bytes = sample(vec![entry(1 << 20), entry(5)]).encode();
            bytes[at] = byte;
            bytes.truncate(bytes.len().min(cut));
            if let Ok(manifest) = Manifest::decode(&bytes) {
                prop_assert_eq!(manifest.encode(), bytes);
            }
        }
    }
}
