//! Reading little-endian fields, with every length checked, and those that several messages have.

use bytes::BufMut;
use smallvec::SmallVec;

use crate::id::ChunkId;
use crate::limits;
use crate::time::Span;

/// When a port is busy: from and until, from now on. Mostly there is one window.
pub type BusyWindows = SmallVec<[(Span, Span); 1]>;

/// Marks a rate that is said in steps.
const COARSE: u32 = 1 << 31;
/// As a shift: ports of 17 Gb/s and more do not need the last byte, and 1 Tb/s can be said.
const COARSE_BITS: u32 = 6;

/// Bytes a second in 32 bits: all of them below 2^31, and above that without the last six bits, so never more than it is.
pub(super) fn wire_rate(rate: u64) -> u32 {
    match u32::try_from(rate) {
        Ok(rate) if rate < COARSE => rate,
        _ => COARSE | (rate >> COARSE_BITS).min(u64::from(!COARSE)) as u32,
    }
}

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

    /// Bytes a second ([`wire_rate`]).
    #[inline]
    pub(super) fn rate(&mut self) -> Option<u64> {
        let coded = self.u32()?;
        let coarse = u64::from(coded & !COARSE) << COARSE_BITS;
        Some(if coded & COARSE == 0 { coded.into() } else { coarse })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_said_as_it_is_or_a_little_lower() {
        let said = |rate| Reader::new(&wire_rate(rate).to_le_bytes()).rate().expect("four bytes");
        for rate in [0, 1, 1_250_000_000, (1 << 31) - 1, 1 << 31, 3_125_000_000, 12_500_000_000, 100_000_000_000] {
            assert_eq!(said(rate), rate);
        }
        assert_eq!(said(3_125_000_063), 3_125_000_000);
        assert_eq!(said(u64::MAX), 0x7fff_ffff << 6, "1.1 Tb/s are the most");
    }
}
