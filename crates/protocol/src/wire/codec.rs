//! Reading little-endian fields, with every length checked, and those that several messages have.

use bytes::BufMut;
use smallvec::SmallVec;

use crate::id::ChunkId;
use crate::limits;
use crate::time::Span;

/// When a port is busy: from and until, from now on. Mostly there is one window.
pub type BusyWindows = SmallVec<[(Span, Span); 1]>;

pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    #[inline]
    pub(super) fn slice(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.slice(N)?.try_into().ok()
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|b| b[0])
    }

    #[inline]
    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A byte that must be 0 or 1.
    #[inline]
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

    #[inline]
    pub(super) fn span(&mut self) -> Option<Span> {
        self.u32().map(|nanos| Span::from_nanos(u64::from(nanos)))
    }

    #[inline]
    pub(super) fn chunk(&mut self) -> Option<ChunkId> {
        ChunkId::decode(&self.array()?)
    }

    pub(super) const fn at_end(&self) -> bool {
        self.0.is_empty()
    }
}

/// A span as it is sent: the longest that can be, when it is longer.
pub(super) fn wire_span(span: Span) -> u32 {
    span.to_wire().unwrap_or(u32::MAX)
}

/// When a port is taken.
pub(super) fn put_windows(busy: &[(Span, Span)], out: &mut impl BufMut) {
    out.put_u8(busy.len() as u8);
    for (start, end) in busy {
        out.put_u32_le(wire_span(*start));
        out.put_u32_le(wire_span(*end));
    }
}

/// The reverse of [`put_windows`]: in order, and at most [`limits::RANGES`].
pub(super) fn take_windows(r: &mut Reader<'_>) -> Option<BusyWindows> {
    let window = |r: &mut Reader<'_>| Some((r.span()?, r.span()?));
    let busy: BusyWindows = (0..r.count(limits::RANGES)?).map(|_| window(r)).collect::<Option<_>>()?;
    busy.iter().flat_map(|(start, end)| [*start, *end]).is_sorted().then_some(busy)
}

/// The size of a chunk that there may be.
pub(super) fn chunk_size(r: &mut Reader<'_>) -> Option<u32> {
    r.u32().filter(|size| (1..=limits::CHUNK_BYTES).contains(size))
}

/// A cursor: what comes behind it is meant.
pub(super) fn put_after(after: Option<&ChunkId>, out: &mut impl BufMut) {
    out.put_u8(u8::from(after.is_some()));
    if let Some(id) = after {
        out.put_slice(&id.encode());
    }
}

pub(super) fn take_after(r: &mut Reader<'_>) -> Option<Option<ChunkId>> {
    Some(if r.flag()? { Some(r.chunk()?) } else { None })
}
