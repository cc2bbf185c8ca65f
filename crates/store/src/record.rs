//! The bytes on disk; see `docs/disk.md`.

use crc_fast::{CrcAlgorithm, Digest};
use protocol::id::ChunkId;
use protocol::redundancy::Wanted;

use crate::write_buffer::BLOCK;

/// Records begin at multiples of this.
pub(crate) const ALIGN: u64 = 64;
/// Length of a record's header.
pub(crate) const RECORD_HEADER: u64 = 64;
/// Length of a segment's header.
pub(crate) const SEGMENT_HEADER: u64 = 64;
/// Length of the identity file.
pub(crate) const IDENTITY_LEN: usize = 32;

/// Bits of a chunk's length; those above say what the copy is kept for. What was struck out may be longer.
const LEN_BITS: u32 = 24;
const _: () = assert!(protocol::limits::CHUNK_BYTES < 1 << LEN_BITS, "every chunk's length has room");

const RECORD_MAGIC: [u8; 4] = *b"RvRc";
const SEGMENT_MAGIC: [u8; 8] = *b"RvSegm\x02\n";
const IDENTITY_MAGIC: [u8; 8] = *b"RvStore\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Chunk = 1,
    /// With a payload of one byte: because the copy was damaged.
    Tombstone = 2,
    /// Was not whole or not readable when the store was opened: stands for nothing, and says where the next record is.
    Struck = 3,
}

/// The payload of a tombstone of a copy that was damaged; others have none.
pub(crate) const DAMAGED: &[u8] = b"D";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) id: ChunkId,
    pub(crate) wanted: Wanted,
    pub(crate) len: u32,
    pub(crate) segment: u32,
    pub(crate) sequence: u64,
    /// CRC-32C of the payload.
    pub(crate) crc: u32,
    /// One more than the whole blocks from here back to what was durable when this was written; 0 says nothing.
    pub(crate) behind: u16,
}

impl Header {
    /// The header of a record at `offset` of its segment, in the store with this secret.
    pub(crate) fn encode(&self, secret: u64, offset: u64) -> [u8; RECORD_HEADER as usize] {
        let mut out = [0; RECORD_HEADER as usize];
        out[..4].copy_from_slice(&RECORD_MAGIC);
        out[4] = self.kind as u8;
        out[5..38].copy_from_slice(&self.id.encode());
        out[38..40].copy_from_slice(&self.behind.to_le_bytes());
        let wanted = if self.kind == Kind::Chunk { self.wanted } else { Wanted::BY_MAP };
        let len = self.len | u32::from(wanted.code()) << LEN_BITS;
        out[40..44].copy_from_slice(&len.to_le_bytes());
        out[44..48].copy_from_slice(&self.segment.to_le_bytes());
        out[48..56].copy_from_slice(&self.sequence.to_le_bytes());
        out[56..60].copy_from_slice(&self.crc.to_le_bytes());
        let crc = sealed(&out[..60], secret, offset);
        out[60..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Of a record that this store wrote at `offset`, and of nothing else: payload that imitates one does not know the
    /// secret, and a record that was copied is in another place.
    pub(crate) fn decode(bytes: &[u8], secret: u64, offset: u64) -> Option<Self> {
        let bytes = bytes.get(..RECORD_HEADER as usize)?;
        if bytes[..4] != RECORD_MAGIC || word(bytes, 60)? != sealed(&bytes[..60], secret, offset) {
            return None;
        }
        let kind = match bytes[4] {
            1 => Kind::Chunk,
            2 => Kind::Tombstone,
            3 => Kind::Struck,
            _ => return None,
        };
        let id = ChunkId::decode(bytes[5..38].try_into().ok()?)?;
        let sequence = long(bytes, 48)?;
        let behind = u16::from_le_bytes(bytes[38..40].try_into().ok()?);
        let (len, segment, crc) = (word(bytes, 40)?, word(bytes, 44)?, word(bytes, 56)?);
        let (wanted, len) = match kind {
            Kind::Chunk => (Wanted::from_code((len >> LEN_BITS) as u8)?, len & ((1 << LEN_BITS) - 1)),
            Kind::Tombstone | Kind::Struck => (Wanted::BY_MAP, len),
        };
        Some(Self { kind, id, wanted, len, segment, sequence, crc, behind })
    }

    /// What a record at `offset` says of a segment that is durable up to `durable`.
    pub(crate) fn behind(offset: u64, durable: u64) -> u16 {
        let blocks = (offset - durable).div_ceil(BLOCK as u64) + 1;
        u16::try_from(blocks).unwrap_or(0)
    }

    /// Up to where a segment was durable when this record was written at `offset`, as far as it says.
    pub(crate) fn durable_before(&self, offset: u64) -> u64 {
        let blocks = self.behind.checked_sub(1).map(u64::from);
        blocks.map_or(0, |blocks| offset.saturating_sub(blocks * BLOCK as u64))
    }
}

/// Bytes that a record with a payload of `len` bytes takes.
pub(crate) fn span(len: u32) -> u64 {
    (RECORD_HEADER + u64::from(len)).next_multiple_of(ALIGN)
}

pub(crate) fn checksum<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for piece in pieces {
        digest.update(piece);
    }
    digest.finalize() as u32
}

/// The checksum of a record's header at `offset`.
fn sealed(header: &[u8], secret: u64, offset: u64) -> u32 {
    checksum([&secret.to_le_bytes()[..], &offset.to_le_bytes(), header])
}

/// The header of a segment whose file has so many bytes.
pub(crate) fn segment_header(of: &Identity, segment: u32, file: u64) -> [u8; SEGMENT_HEADER as usize] {
    let mut out = [0; SEGMENT_HEADER as usize];
    out[..8].copy_from_slice(&SEGMENT_MAGIC);
    out[8..12].copy_from_slice(&of.cluster.to_le_bytes());
    out[12..16].copy_from_slice(&of.target.to_le_bytes());
    out[16..20].copy_from_slice(&segment.to_le_bytes());
    out[20..28].copy_from_slice(&file.to_le_bytes());
    // Without the right secret no record can be read: that is to be noticed.
    out[28..32].copy_from_slice(&checksum([&of.secret.to_le_bytes()[..]]).to_le_bytes());
    let crc = checksum([&out[..60]]);
    out[60..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// The length of a segment's file as its header says, and whether it is of this store; `None` when the header is damaged.
pub(crate) fn segment_file(bytes: &[u8], of: &Identity, segment: u32) -> Option<(u64, bool)> {
    let good =
        bytes.get(..8)? == SEGMENT_MAGIC && word(bytes, 16)? == segment && word(bytes, 60)? == checksum([&bytes[..60]]);
    let file = long(bytes, 20)?;
    good.then(|| (file, bytes == segment_header(of, segment, file)))
}

/// What the identity file says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Identity {
    pub(crate) format: u32,
    pub(crate) cluster: u32,
    pub(crate) target: u32,
    /// Goes into the checksums of record headers, and is nowhere else.
    pub(crate) secret: u64,
}

impl Identity {
    pub(crate) fn encode(&self) -> [u8; IDENTITY_LEN] {
        let mut out = [0; IDENTITY_LEN];
        out[..8].copy_from_slice(&IDENTITY_MAGIC);
        out[8..12].copy_from_slice(&self.format.to_le_bytes());
        out[12..16].copy_from_slice(&self.cluster.to_le_bytes());
        out[16..20].copy_from_slice(&self.target.to_le_bytes());
        out[20..28].copy_from_slice(&self.secret.to_le_bytes());
        let crc = checksum([&out[..28]]);
        out[28..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None` when it is damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (format, cluster, target) = (word(bytes, 8)?, word(bytes, 12)?, word(bytes, 16)?);
        // The first format ended with its checksum here.
        let end = if format == 1 { 20 } else { 28 };
        let good = bytes[..8] == IDENTITY_MAGIC && word(bytes, end)? == checksum([&bytes[..end]]);
        let secret = if format == 1 { 0 } else { long(bytes, 20)? };
        good.then_some(Self { format, cluster, target, secret })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_far_back_is_not_said_to_be_durable() {
        let id = ChunkId::of_payload(b"");
        let says = |offset, durable| {
            let behind = Header::behind(offset, durable);
            let wanted = Wanted::BY_MAP;
            let header = Header { kind: Kind::Chunk, id, wanted, len: 0, segment: 1, sequence: 1, crc: 0, behind };
            header.durable_before(offset)
        };
        let far = u64::from(u16::MAX - 1) * BLOCK as u64;
        assert_eq!((says(640, 640), says(640, 64), says(64 + far, 64)), (640, 0, 64));
        assert_eq!((says(64 + far + ALIGN, 64), says(1 << 40, 64)), (0, 0));
    }
}
