//! What the segments say when a store is opened.

use std::collections::BTreeMap;
use std::io;

use protocol::id::ChunkId;
use protocol::promise::Stamps;

use crate::backend::Backend;
use crate::bug::Bug;
use crate::damaged::Damaged;
use crate::gap::{Gap, Run, between};
use crate::location::begins;
use crate::record::{ALIGN, Header, Identity, Kind, RECORD_HEADER, SEGMENT_HEADER};
use crate::usage::Usage;
use crate::write_buffer::BLOCK;
use crate::{RecordLocation, Recovery, StoreError, io_error, record, segment_name};

/// Bytes of a segment's end that are written again at a time.
const AGAIN: usize = 256 << 10;
/// What the newest record of a chunk says.
#[derive(Clone, Copy)]
enum Newest {
    Here(RecordLocation),
    Gone,
    /// Gone, because it was damaged.
    Damaged,
}

/// What was found so far.
#[derive(Default)]
pub(crate) struct Found {
    newest: BTreeMap<ChunkId, (u64, Newest)>,
    pub(crate) usage: Usage,
    /// Records that were not whole: segment, chunk, and whether they must have been whole once.
    struck: Vec<(u32, ChunkId, bool)>,
    /// The sequence numbers of those.
    struck_at: Vec<u64>,
    /// Where no record could be read.
    pub(crate) gaps: Vec<Gap>,
    /// Segments with records.
    pub(crate) runs: Vec<Run>,
    sequence: u64,
    /// The last segment that has records, and where writing may go on in it.
    pub(crate) resume: Option<(u32, u64)>,
    pub(crate) identity: Identity,
    bug: Option<Bug>,
}

/// What a scan of one segment knows.
struct Walk {
    /// The length of the file as its header says; `None` when that is damaged.
    says: Option<u64>,
    segment: u32,
    name: String,
    last: bool,
    /// Where the last record ends.
    end: u64,
    /// Where the last bytes end that are no record, and not zeros.
    junk: u64,
    /// Everything before this was durable when a record behind it was written.
    durable: u64,
    /// The sequence numbers of the first and the last record.
    sequences: Option<(u64, u64)>,
    /// Whether one of them is good.
    any: bool,
    gaps: Vec<Gap>,
    /// Records that are not whole, by their ends.
    struck: Vec<(u64, ChunkId, u64)>,
}

impl Walk {
    /// Writes again what no record says was durable before: after a failed sync the page cache may show what the kernel
    /// has given up writing, and would sync nothing of it.
    fn write_again(&self, backend: &dyn Backend, len: u64, bug: Option<Bug>) -> io::Result<()> {
        let mut offset = self.durable / BLOCK as u64 * BLOCK as u64;
        let end = self.end.next_multiple_of(BLOCK as u64).min(len);
        let mut blocks = vec![0; end.saturating_sub(offset).min(AGAIN as u64) as usize];
        while offset < end {
            let take = (end - offset).min(AGAIN as u64) as usize;
            backend.read_at(&self.name, offset, &mut blocks[..take])?;
            if bug == Some(Bug::ClearTail) {
                backend.write_at(&self.name, offset, &vec![0; take])?;
                backend.sync(&self.name)?;
            }
            backend.write_at(&self.name, offset, &blocks[..take])?;
            offset += take as u64;
        }
        Ok(())
    }

    /// Takes a gap down that ends at `end`; the record behind it has this number, if there is one.
    fn skip_to(&mut self, end: u64, next: Option<u64>) {
        let between = self.sequences.zip(next).map_or(0, |((_, last), next)| between(last, next));
        let (segment, offset) = (self.segment, self.end);
        self.gaps.push(Gap { segment, offset, bytes: end - offset, records: between.max(1), durable: false });
        self.end = end;
    }
}

impl Found {
    pub(crate) fn new(identity: Identity, bug: Option<Bug>) -> Self {
        Self { identity, bug, ..Self::default() }
    }

    /// Reads the record headers of a segment. In the `last` ones, payload is checked too, and records that are not whole
    /// are struck out: a crash cut them off before they were acknowledged, or they rotted, and they must not be taken
    /// for copies later.
    ///
    /// Behind a damaged header the next good one is looked for. That goes through payload, but none of it passes for a
    /// header.
    pub(crate) fn scan(&mut self, backend: &dyn Backend, segment: u32, len: u64, last: bool) -> Result<(), StoreError> {
        let mut walk = Walk {
            says: None,
            segment,
            name: segment_name(segment),
            last,
            end: SEGMENT_HEADER,
            junk: 0,
            durable: SEGMENT_HEADER,
            sequences: None,
            any: false,
            gaps: Vec::new(),
            struck: Vec::new(),
        };
        self.usage.add(segment, len);
        walk.says = self.read_header(backend, &walk.name, segment, len)?;
        let mut offset = SEGMENT_HEADER;
        let mut block = vec![0; len.min(64 << 10) as usize];
        while offset + RECORD_HEADER <= len {
            let take = (len - offset).min(block.len() as u64) as usize;
            backend.read_at(&walk.name, offset, &mut block[..take]).map_err(failed())?;
            let mut at = 0;
            while at + RECORD_HEADER as usize <= take {
                let here = offset + at as u64;
                let header = Header::decode(&block[at..], self.identity.secret, here).filter(|h| h.segment == segment);
                let header = header.filter(|h| here + record::span(h.len) <= len.next_multiple_of(ALIGN));
                let step = match header {
                    Some(header) => self.meet(backend, &mut walk, here, header).map_err(failed())?,
                    None => {
                        let is_empty = block[at..at + ALIGN as usize].iter().all(|byte| *byte == 0);
                        walk.junk = if is_empty { walk.junk } else { here + ALIGN };
                        ALIGN
                    }
                };
                at += step as usize;
            }
            offset += at as u64;
        }
        self.end_of(backend, walk, len)
    }

    /// The length of a segment's file, as its header says; `None` when that is damaged.
    fn read_header(
        &self,
        backend: &dyn Backend,
        name: &str,
        segment: u32,
        len: u64,
    ) -> Result<Option<u64>, StoreError> {
        let mut header = [0; SEGMENT_HEADER as usize];
        backend.read_at(name, 0, &mut header[..len.min(SEGMENT_HEADER) as usize]).map_err(failed())?;
        match record::segment_file(&header, &self.identity, segment) {
            Some((_, false)) => Err(StoreError::Foreign { name: name.to_owned() }),
            says => Ok(says.map(|(file, _)| file)),
        }
    }

    /// A segment was read to its end.
    fn end_of(&mut self, backend: &dyn Backend, mut walk: Walk, len: u64) -> Result<(), StoreError> {
        let end = walk.end;
        // What a killed process wrote and did not sync is found here, and will be called durable.
        let changed = !walk.struck.is_empty();
        if (changed || walk.last && walk.any) && self.bug != Some(Bug::TrustCache) {
            if self.bug != Some(Bug::TrustClean) {
                walk.write_again(backend, len, self.bug).map_err(io_error("writing the end of a segment again"))?;
            }
            backend.sync(&walk.name).map_err(failed())?;
        }
        if walk.junk > end {
            walk.skip_to(walk.junk, None);
        }
        if walk.any {
            let over = walk.gaps.first().filter(|_| self.bug == Some(Bug::ResumeOverTorn));
            let resumes = walk.last && (!changed || self.bug == Some(Bug::ResumeOverTorn));
            self.resume = resumes.then_some((walk.segment, over.map_or(walk.end, |gap| gap.offset)));
            self.usage.change(walk.segment, |of| of.written = walk.end.min(len) - SEGMENT_HEADER);
            let (first, last) = walk.sequences.unwrap_or_default();
            self.sequence = self.sequence.max(last);
            let (segment, says, durable) = (walk.segment, walk.says, walk.durable);
            self.runs.push(Run { segment, first, last, end, file: len, says, durable });
        }
        for gap in &mut walk.gaps {
            gap.durable = gap.offset < walk.durable;
        }
        self.gaps.extend(walk.gaps);
        self.struck_at.extend(walk.struck.iter().map(|(_, _, sequence)| *sequence));
        self.struck.extend(walk.struck.into_iter().map(|(end, id, _)| (walk.segment, id, end <= walk.durable)));
        Ok(())
    }

    /// Takes what a header at `here` says, or does not believe it. How far on the next one is.
    fn meet(&mut self, backend: &dyn Backend, walk: &mut Walk, here: u64, header: Header) -> io::Result<u64> {
        let span = record::span(header.len);
        if here > walk.end {
            walk.skip_to(here, Some(header.sequence));
        }
        let good = match header.kind {
            Kind::Struck => false,
            _ if !walk.last => true,
            _ => is_whole(backend, &walk.name, here, &header)?,
        };
        if good {
            self.take(&header, walk.segment, here);
            walk.any = true;
        } else if header.kind != Kind::Struck {
            let struck = Header { kind: Kind::Struck, ..header }.encode(self.identity.secret, here);
            backend.write_at(&walk.name, here, &struck)?;
            walk.struck.push((here + span, header.id, header.sequence));
        }
        walk.end = here + span;
        walk.durable = walk.durable.max(header.durable_before(here));
        // One that fills a gap has none, but at the beginning of a segment.
        if header.sequence > 0 {
            let first = walk.sequences.map_or(header.sequence, |(first, _)| first);
            walk.sequences = Some((first, header.sequence));
        }
        Ok(span)
    }

    fn take(&mut self, header: &Header, segment: u32, offset: u64) {
        if header.kind == Kind::Tombstone && self.bug == Some(Bug::SkipTombstones) {
            return;
        }
        let stamps = Stamps::default();
        let Header { len, sequence, wanted, .. } = *header;
        let place = RecordLocation { segment, begins: begins(offset), len, wanted, sequence, stamps };
        let says = match (header.kind, header.len) {
            (Kind::Chunk, _) => Newest::Here(place),
            (Kind::Tombstone | Kind::Struck, 0) => Newest::Gone,
            (Kind::Tombstone | Kind::Struck, _) => Newest::Damaged,
        };
        self.usage.change(segment, |of| match says {
            Newest::Here(_) => of.buried += 1,
            Newest::Gone | Newest::Damaged => of.tombstones += record::span(header.len),
        });
        let newest = self.newest.entry(header.id).or_insert((header.sequence, says));
        if header.sequence >= newest.0 {
            *newest = (header.sequence, says);
        }
    }

    /// Segments without a record, which count no more: left by a run that did not come to use them.
    pub(crate) fn empty(&mut self) -> Vec<u32> {
        let unused = self.usage.unused();
        unused.iter().for_each(|segment| self.usage.remove(*segment));
        unused
    }

    /// Length of a segment's file, in whole blocks.
    pub(crate) fn len(&self, segment: u32) -> u64 {
        self.usage.get(segment).file / BLOCK as u64 * BLOCK as u64
    }

    /// Chunks whose newest record is a tombstone.
    pub(crate) fn tombstones(self) -> impl Iterator<Item = ChunkId> {
        self.newest.into_iter().filter(|(_, (_, says))| !matches!(says, Newest::Here(_))).map(|(id, _)| id)
    }

    /// The index, the damaged copies of earlier runs, the usage, what to report, and the highest sequence number.
    pub(crate) fn finish(self) -> (BTreeMap<ChunkId, RecordLocation>, Damaged, Usage, Recovery, u64) {
        let mut index = BTreeMap::new();
        let mut damaged = Damaged::default();
        // Of what was dropped or written again since, nothing is to be noted.
        let later = |(struck, at): (&(u32, ChunkId, bool), &u64)| {
            self.newest.get(&struck.1).is_none_or(|newest| newest.0 <= *at).then_some(struck.1)
        };
        let fresh: std::collections::BTreeSet<ChunkId> =
            self.struck.iter().zip(&self.struck_at).filter_map(later).collect();
        for (id, (_, says)) in self.newest {
            match says {
                Newest::Here(place) => drop(index.insert(id, place)),
                Newest::Gone => {}
                Newest::Damaged => damaged.add(id),
            }
        }
        let mut usage = self.usage;
        for place in index.values() {
            usage.change(place.segment, |segment| {
                segment.live += place.record_len();
                segment.buried -= 1;
            });
        }
        let (gaps, cut) = self.gaps.into_iter().partition(|gap| gap.durable);
        let mut recovery = Recovery {
            chunks: index.len() as u64,
            bytes: index.values().map(|place| u64::from(place.len)).sum(),
            torn: Vec::new(),
            damaged: Vec::new(),
            missed: Vec::new(),
            forgetful: None,
            gaps,
            cut,
        };
        // A segment is synced before the next one is begun.
        let last = usage.last().unwrap_or(0);
        for (segment, id, was_durable) in self.struck {
            let what = if was_durable || segment < last { &mut recovery.damaged } else { &mut recovery.torn };
            what.push(id);
        }
        recovery.missed = recovery.damaged.iter().copied().filter(|id| fresh.contains(id)).collect();
        (index, damaged, usage, recovery, self.sequence)
    }
}

fn failed() -> impl FnOnce(io::Error) -> StoreError {
    io_error("reading a segment")
}

/// Whether a record's payload is what its header says.
fn is_whole(backend: &dyn Backend, name: &str, offset: u64, header: &Header) -> io::Result<bool> {
    match backend.read(name, offset + RECORD_HEADER, header.len as usize) {
        Ok(payload) => Ok(record::checksum([&payload[..]]) == header.crc),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
