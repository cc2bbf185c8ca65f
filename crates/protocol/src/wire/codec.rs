//! Reading little-endian fields, with every length checked.

use crate::id::ChunkId;
use crate::time::Span;

pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn slice(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.slice(N)?.try_into().ok()
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|b| b[0])
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A byte that must be 0 or 1.
    pub(super) fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// A byte that counts at most `limit` things.
    pub(super) fn count(&mut self, limit: usize) -> Option<usize> {
        self.u8().map(usize::from).filter(|n| *n <= limit)
    }

    pub(super) fn span(&mut self) -> Option<Span> {
        self.u32().map(|nanos| Span::from_nanos(u64::from(nanos)))
    }

    pub(super) fn chunk(&mut self) -> Option<ChunkId> {
        ChunkId::decode(&self.array()?)
    }

    pub(super) const fn at_end(&self) -> bool {
        self.0.is_empty()
    }
}
