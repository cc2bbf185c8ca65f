//! Tells gaps that a crash left from damage.

use std::io;

use protocol::id::{ChunkId, ChunkKind};
use protocol::redundancy::Wanted;

use crate::backend::Backend;
use crate::gap::{Gap, Run, between};
use crate::record::{Header, Identity, Kind, RECORD_HEADER, SEGMENT_HEADER, segment_header};
use crate::recovery::Found;
use crate::segment_name;

impl Found {
    /// Tells gaps that a crash left from damage, when all segments were scanned, and strikes out the former: later they
    /// would be taken for damage.
    pub(crate) fn settle(&mut self, backend: &dyn Backend) -> io::Result<()> {
        self.check_headers();
        self.compare_runs();
        // A segment is synced before the next one is begun.
        let last = self.runs.last().map_or(0, |run| run.segment);
        for gap in &mut self.gaps {
            gap.durable |= gap.segment < last;
            if gap.durable {
                self.usage.change(gap.segment, |of| {
                    of.lost = of.lost.saturating_add(gap.records);
                    // It may be all that there is: not an unused segment.
                    of.written = of.written.max((gap.offset + gap.bytes).min(of.file).saturating_sub(SEGMENT_HEADER));
                });
            }
        }
        let first = self.runs.last().map_or(0, |run| run.first);
        for gap in self.gaps.iter().filter(|gap| !gap.durable && gap.segment == last) {
            let name = segment_name(gap.segment);
            // The number of the first that may have stood at the segment's beginning, or a later start would miss it at the end of
            // the segment before.
            let number = if gap.offset == SEGMENT_HEADER { first.saturating_sub(gap.records) } else { 0 };
            backend.write_at(&name, gap.offset, &strike(gap, number, &self.identity, self.usage.get(last).file))?;
            backend.sync(&name)?;
        }
        Ok(())
    }

    /// Looks at the headers of the segments that have records, and whether their files are as long as those say.
    fn check_headers(&mut self) {
        for Run { segment, end, file, says, durable, .. } in self.runs.iter().copied() {
            let gap = |offset, bytes, durable| Gap { segment, offset, bytes, records: 0, durable };
            match says {
                None => self.gaps.push(gap(0, SEGMENT_HEADER, durable > SEGMENT_HEADER)),
                Some(says) if file < says => {
                    let at = end.min(file);
                    let tail = self.gaps.iter_mut().find(|gap| (gap.segment, gap.offset) == (segment, at));
                    match tail {
                        Some(tail) => *tail = Gap { records: tail.records, ..gap(at, says - at, true) },
                        None => self.gaps.push(gap(at, says - at, true)),
                    }
                }
                Some(_) => {}
            }
        }
    }

    /// Each segment goes on where the one before it ended: what lies between is missing, also when nothing else shows it.
    fn compare_runs(&mut self) {
        for pair in self.runs.windows(2) {
            let (before, behind) = (pair[0], pair[1]);
            let missing = between(before.last, behind.first);
            // Between them there may have been one that compaction emptied.
            if missing == 0 || before.segment + 1 != behind.segment {
                continue;
            }
            let gap_at = |segment, offset| move |gap: &Gap| (gap.segment, gap.offset) == (segment, offset);
            let tail = self.gaps.iter().position(gap_at(before.segment, before.end));
            let head = self.gaps.iter().position(gap_at(behind.segment, SEGMENT_HEADER));
            let counted = [tail, head].into_iter().flatten().map(|at| self.gaps[at].records);
            let counted = counted.fold(0, u64::saturating_add);
            match tail.or(head) {
                Some(at) => self.gaps[at].records += missing.saturating_sub(counted),
                None => self.gaps.push(Gap {
                    segment: before.segment,
                    offset: before.end,
                    bytes: before.file.saturating_sub(before.end),
                    records: missing,
                    durable: true,
                }),
            }
        }
    }
}

/// What is to stand at the beginning of a gap that a crash left.
fn strike(gap: &Gap, number: u64, identity: &Identity, file: u64) -> [u8; RECORD_HEADER as usize] {
    if gap.offset == 0 {
        return segment_header(identity, gap.segment, file);
    }
    let header = Header {
        kind: Kind::Struck,
        id: ChunkId::from_parts(ChunkKind::Payload, [0; 32]),
        wanted: Wanted::BY_MAP,
        len: gap.bytes.saturating_sub(RECORD_HEADER) as u32,
        segment: gap.segment,
        sequence: number,
        crc: 0,
        behind: 0,
    };
    header.encode(identity.secret, gap.offset)
}
