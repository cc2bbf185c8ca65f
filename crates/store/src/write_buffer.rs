//! Appended bytes that are not written yet, in whole blocks and in memory that begins at one, so that the backend can write
//! past the page cache.

/// Bytes of a block: offsets, lengths and memory at multiples of it suit every disk.
pub(crate) const BLOCK: usize = 4_096;
/// Most bytes staged.
const MOST: u64 = 1 << 20;

/// A run of bytes at the end of a segment.
#[derive(Debug)]
pub(crate) struct WriteBuffer {
    /// Bytes that it takes: whole blocks.
    capacity: usize,
    /// One block more than is used, because it may begin anywhere.
    memory: Vec<u8>,
    len: usize,
    /// Where the first staged byte goes in the segment: a multiple of [`BLOCK`].
    offset: u64,
    /// Staged bytes that are not written yet.
    fresh: bool,
}

impl WriteBuffer {
    /// For segments of so many bytes, in whole blocks: one of them never fills it, unless it is long.
    pub(crate) fn new(segment: u64) -> Self {
        let capacity = segment.saturating_add(BLOCK as u64).min(MOST) as usize;
        Self { capacity, memory: Vec::new(), len: 0, offset: 0, fresh: false }
    }

    /// Forgets everything and begins at the beginning of a segment.
    pub(crate) fn begin(&mut self) {
        self.len = 0;
        self.offset = 0;
        self.fresh = false;
    }

    /// Forgets everything and goes on behind `tail`, which is in the segment already, from `offset` on: less than a block.
    pub(crate) fn resume(&mut self, tail: &[u8], offset: u64) {
        self.memory = vec![0; self.capacity + BLOCK];
        let at = self.begins();
        self.memory[at..at + tail.len()].copy_from_slice(tail);
        self.len = tail.len();
        self.offset = offset;
        self.fresh = false;
    }

    /// Appends `bytes`; what does not fit any more goes out through `write`, a function of bytes and their offset.
    pub(crate) fn append<E>(
        &mut self,
        mut bytes: &[u8],
        mut write: impl FnMut(&[u8], u64) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.memory.is_empty() {
            self.memory = vec![0; self.capacity + BLOCK];
        }
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.capacity - self.len));
            let at = self.begins() + self.len;
            self.memory[at..at + now.len()].copy_from_slice(now);
            self.len += now.len();
            self.fresh = true;
            bytes = later;
            if self.len == self.capacity {
                self.flush(&mut write)?;
            }
        }
        Ok(())
    }

    /// Writes what is staged, filled with zeros to a whole block. The last block stays here when it is not full: it is
    /// written again, the same at its beginning, together with what follows.
    pub(crate) fn flush<E>(&mut self, mut write: impl FnMut(&[u8], u64) -> Result<(), E>) -> Result<(), E> {
        if !self.fresh {
            return Ok(());
        }
        let begins = self.begins();
        let padded = self.len.next_multiple_of(BLOCK);
        self.memory[begins + self.len..begins + padded].fill(0);
        write(&self.memory[begins..begins + padded], self.offset)?;
        let whole = self.len / BLOCK * BLOCK;
        self.memory.copy_within(begins + whole..begins + self.len, begins);
        self.len -= whole;
        self.offset += whole as u64;
        self.fresh = false;
        Ok(())
    }

    /// Where in `memory` a block begins.
    fn begins(&self) -> usize {
        self.memory.as_ptr().align_offset(BLOCK).min(BLOCK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_goes_where_it_belongs(parts in prop::collection::vec((0_usize..400_000, any::<bool>()), 1..20)) {
            let (mut stage, mut file, mut wanted) = (WriteBuffer::new(MOST), Vec::new(), Vec::new());
            let mut write = |bytes: &[u8], offset: u64| -> Result<(), ()> {
                assert!(offset.is_multiple_of(BLOCK as u64) && bytes.len().is_multiple_of(BLOCK));
                assert_eq!(bytes.as_ptr().align_offset(BLOCK), 0);
                let offset = offset as usize;
                assert!(offset <= file.len(), "a hole before {offset}");
                file.resize(file.len().max(offset + bytes.len()), 0);
                file[offset..offset + bytes.len()].copy_from_slice(bytes);
                Ok(())
            };
            for (n, (len, flush)) in parts.iter().enumerate() {
                let part: Vec<u8> = (0..*len).map(|i| (i * 31 + n) as u8).collect();
                wanted.extend_from_slice(&part);
                stage.append(&part, &mut write).expect("writes are taken");
                if *flush {
                    stage.flush(&mut write).expect("writes are taken");
                }
            }
            stage.flush(&mut write).expect("writes are taken");
            prop_assert_eq!(&file[..wanted.len()], &wanted[..]);
            prop_assert!(file[wanted.len()..].iter().all(|byte| *byte == 0));
        }
    }
}
