//! The bytes on disk; see `docs/disk.md`.

use crc_fast::{CrcAlgorithm, Digest};
use protocol::id::ChunkId;

use crate::stage::BLOCK;

/// Records begin at multiples of this.
pub(crate) const ALIGN: u64 = 64;
/// Length of a record's header.
pub(crate) const RECORD_HEADER: u64 = 64;
/// Length of a segment's header.
pub(crate) const SEGMENT_HEADER: u64 = 64;
/// Length of the identity file.
pub(crate) const IDENTITY_LEN: usize = 24;

const RECORD_MAGIC: [u8; 4] = *b"RvRc";
const SEGMENT_MAGIC: [u8; 8] = *b"RvSegm\x01\n";
const IDENTITY_MAGIC: [u8; 8] = *b"RvStore\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Chunk = 1,
    /// With a payload of one byte: because the copy was damaged.
    Tombstone = 2,
    /// Was not whole when the store was opened: stands for nothing, and says where the next record is.
    Struck = 3,
}

/// The payload of a tombstone of a copy that was damaged; others have none.
pub(crate) const DAMAGED: &[u8] = b"D";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) id: ChunkId,
    pub(crate) len: u32,
    pub(crate) segment: u32,
    pub(crate) sequence: u64,
    /// CRC-32C of the payload.
    pub(crate) crc: u32,
    /// One more than the whole blocks from here back to what was durable when this was written; 0 says nothing.
    pub(crate) behind: u16,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; RECORD_HEADER as usize] {
        let mut out = [0; RECORD_HEADER as usize];
        out[..4].copy_from_slice(&RECORD_MAGIC);
        out[4] = self.kind as u8;
        out[5..38].copy_from_slice(&self.id.encode());
        out[38..40].copy_from_slice(&self.behind.to_le_bytes());
        out[40..44].copy_from_slice(&self.len.to_le_bytes());
        out[44..48].copy_from_slice(&self.segment.to_le_bytes());
        out[48..56].copy_from_slice(&self.sequence.to_le_bytes());
        out[56..60].copy_from_slice(&self.crc.to_le_bytes());
        let crc = checksum([&out[..60]]);
        out[60..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..RECORD_HEADER as usize)?;
        if bytes[..4] != RECORD_MAGIC || word(bytes, 60)? != checksum([&bytes[..60]]) {
            return None;
        }
        let kind = match bytes[4] {
            1 => Kind::Chunk,
            2 => Kind::Tombstone,
            3 => Kind::Struck,
            _ => return None,
        };
        let id = ChunkId::decode(bytes[5..38].try_into().ok()?)?;
        let sequence = u64::from(word(bytes, 48)?) | u64::from(word(bytes, 52)?) << 32;
        let behind = u16::from_le_bytes(bytes[38..40].try_into().ok()?);
        let (len, segment, crc) = (word(bytes, 40)?, word(bytes, 44)?, word(bytes, 56)?);
        Some(Self { kind, id, len, segment, sequence, crc, behind })
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

pub(crate) fn segment_header(cluster: u32, target: u32, segment: u32) -> [u8; SEGMENT_HEADER as usize] {
    let mut out = [0; SEGMENT_HEADER as usize];
    out[..8].copy_from_slice(&SEGMENT_MAGIC);
    out[8..12].copy_from_slice(&cluster.to_le_bytes());
    out[12..16].copy_from_slice(&target.to_le_bytes());
    out[16..20].copy_from_slice(&segment.to_le_bytes());
    let crc = checksum([&out[..60]]);
    out[60..].copy_from_slice(&crc.to_le_bytes());
    out
}

pub(crate) fn encode_identity(format: u32, cluster: u32, target: u32) -> [u8; IDENTITY_LEN] {
    let mut out = [0; IDENTITY_LEN];
    out[..8].copy_from_slice(&IDENTITY_MAGIC);
    out[8..12].copy_from_slice(&format.to_le_bytes());
    out[12..16].copy_from_slice(&cluster.to_le_bytes());
    out[16..20].copy_from_slice(&target.to_le_bytes());
    let crc = checksum([&out[..20]]);
    out[20..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Format, cluster and target; `None` when it is damaged.
pub(crate) fn decode_identity(bytes: &[u8; IDENTITY_LEN]) -> Option<(u32, u32, u32)> {
    let good = bytes[..8] == IDENTITY_MAGIC && word(bytes, 20)? == checksum([&bytes[..20]]);
    if good { Some((word(bytes, 8)?, word(bytes, 12)?, word(bytes, 16)?)) } else { None }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
