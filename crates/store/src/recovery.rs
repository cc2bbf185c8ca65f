//! What the segments say when a store is opened.

use std::collections::BTreeMap;
use std::io;

use protocol::id::ChunkId;
use protocol::machine::Stamps;

use crate::backend::Backend;
use crate::bug::Bug;
use crate::damaged::Damaged;
use crate::record::{ALIGN, Header, Kind, RECORD_HEADER, SEGMENT_HEADER};
use crate::stage::BLOCK;
use crate::usage::Usage;
use crate::{Place, Recovery, StoreError, io_error, record, segment_name};

/// Bytes of a segment's end that are written again at a time.
const AGAIN: usize = 256 << 10;
/// What the newest record of a chunk says.
#[derive(Clone, Copy)]
enum Newest {
    Here(Place),
    Gone,
    /// Gone, because it was damaged.
    Damaged,
}

/// What was found so far.
#[derive(Default)]
pub(crate) struct Found {
    newest: BTreeMap<ChunkId, (u64, Newest)>,
    usage: Usage,
    /// Records that were not whole: segment, chunk, and whether they must have been whole once.
    struck: Vec<(u32, ChunkId, bool)>,
    /// The sequence numbers of those.
    struck_at: Vec<u64>,
    /// Those behind something unreadable, of which less is known.
    torn: Vec<ChunkId>,
    sequence: u64,
    /// The last segment that has records, and where they end, if nothing but records is before.
    pub(crate) resume: Option<(u32, u64)>,
    bug: Option<Bug>,
}

/// What a scan of one segment knows.
struct Walk {
    segment: u32,
    name: String,
    last: bool,
    /// Where the records end that follow each other without anything else between.
    chain: u64,
    /// Whether something unreadable was met: what comes behind may be payload that imitates records.
    lost: bool,
    /// Whether a record was found behind that.
    scattered: bool,
    /// Where the last good record ends.
    end: u64,
    /// Everything before this was durable when a record behind it was written.
    durable: u64,
    /// Records that are not whole, by their ends.
    struck: Vec<(u64, ChunkId, u64)>,
    /// Whether anything was written over.
    changed: bool,
}

impl Walk {
    /// Writes again what no record says was durable before: after a failed sync the page cache may show what the kernel
    /// has given up writing, and would sync nothing of it.
    fn write_again(&self, backend: &dyn Backend, len: u64, bug: Option<Bug>) -> io::Result<()> {
        let mut offset = self.durable / BLOCK as u64 * BLOCK as u64;
        let end = self.end.max(self.chain).next_multiple_of(BLOCK as u64).min(len);
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
}

impl Found {
    pub(crate) fn planted(bug: Option<Bug>) -> Self {
        Self { bug, ..Self::default() }
    }

    /// Reads the record headers of a segment. In the `last` ones, payload is checked too, and records that are not whole
    /// are struck out: a crash cut them off before they were acknowledged, or they rotted, and they must not be taken
    /// for copies later.
    ///
    /// Behind a damaged header the search goes through payload, which may imitate records: from there on only chunks
    /// whose bytes are what their id names are believed, and no tombstones.
    pub(crate) fn scan(&mut self, backend: &dyn Backend, segment: u32, len: u64, last: bool) -> Result<(), StoreError> {
        let mut walk = Walk {
            segment,
            name: segment_name(segment),
            last,
            chain: SEGMENT_HEADER,
            lost: false,
            scattered: false,
            end: SEGMENT_HEADER,
            durable: SEGMENT_HEADER,
            struck: Vec::new(),
            changed: false,
        };
        self.usage.add(segment, len);
        let mut offset = SEGMENT_HEADER;
        let mut block = vec![0; len.min(64 << 10) as usize];
        while offset + RECORD_HEADER <= len {
            let take = (len - offset).min(block.len() as u64) as usize;
            backend.read_at(&walk.name, offset, &mut block[..take]).map_err(failed())?;
            let mut at = 0;
            while at + RECORD_HEADER as usize <= take {
                let here = offset + at as u64;
                let header = Header::decode(&block[at..]).filter(|h| h.segment == segment);
                let header = header.filter(|h| here + record::span(h.len) <= len.next_multiple_of(ALIGN));
                let step = match header {
                    Some(header) => self.meet(backend, &mut walk, here, header).map_err(failed())?,
                    None => None,
                };
                walk.lost |= step.is_none();
                at += step.unwrap_or(ALIGN) as usize;
            }
            offset += at as u64;
        }
        // What a killed process wrote and did not sync is found here, and will be called durable.
        if (walk.changed || last && walk.end > SEGMENT_HEADER) && self.bug != Some(Bug::TrustCache) {
            if last && self.bug != Some(Bug::TrustClean) {
                walk.write_again(backend, len, self.bug).map_err(io_error("writing the end of a segment again"))?;
            }
            backend.sync(&walk.name).map_err(failed())?;
        }
        if walk.end > SEGMENT_HEADER {
            let clean = !walk.scattered && !walk.changed || self.bug == Some(Bug::ResumeOverTorn);
            self.resume = (clean && last).then_some((segment, walk.chain));
            self.usage.change(segment, |of| of.written = walk.end.max(walk.chain) - SEGMENT_HEADER);
        }
        self.struck_at.extend(walk.struck.iter().map(|(_, _, sequence)| *sequence));
        self.struck.extend(walk.struck.into_iter().map(|(end, id, _)| (segment, id, end <= walk.durable)));
        Ok(())
    }

    /// Takes what a header at `here` says, or does not believe it. How far on the next one is; `None` when it cannot be
    /// told.
    fn meet(&mut self, backend: &dyn Backend, walk: &mut Walk, here: u64, header: Header) -> io::Result<Option<u64>> {
        let span = record::span(header.len);
        let good = match header.kind {
            Kind::Struck => false,
            _ if !walk.last && !walk.lost => true,
            Kind::Tombstone if walk.lost => false,
            _ => is_whole(backend, &walk.name, here, &header, walk.lost)?,
        };
        if good {
            self.take(&header, walk.segment, here);
            walk.end = here + span;
            walk.scattered |= walk.lost;
        } else if walk.lost {
            if walk.last {
                backend.write_at(&walk.name, here, &[0; 8])?;
                self.torn.push(header.id);
                walk.changed = true;
            }
            return Ok(None);
        } else if header.kind != Kind::Struck {
            backend.write_at(&walk.name, here, &Header { kind: Kind::Struck, ..header }.encode())?;
            walk.struck.push((here + span, header.id, header.sequence));
            walk.changed = true;
        }
        if !walk.lost {
            walk.chain = here + span;
            walk.durable = walk.durable.max(header.durable_before(here));
        }
        Ok(Some(span))
    }

    fn take(&mut self, header: &Header, segment: u32, offset: u64) {
        self.sequence = self.sequence.max(header.sequence);
        if header.kind == Kind::Tombstone && self.bug == Some(Bug::SkipTombstones) {
            return;
        }
        let stamps = Stamps::default();
        let place = Place { segment, offset, len: header.len, sequence: header.sequence, stamps };
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
    pub(crate) fn finish(self) -> (BTreeMap<ChunkId, Place>, Damaged, Usage, Recovery, u64) {
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
        let mut recovery = Recovery {
            chunks: index.len() as u64,
            bytes: index.values().map(|place| u64::from(place.len)).sum(),
            torn: self.torn,
            damaged: Vec::new(),
            missed: Vec::new(),
            forgetful: None,
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

/// Whether a record's payload is what its header says, and, when asked, what its id names.
fn is_whole(backend: &dyn Backend, name: &str, offset: u64, header: &Header, by_id: bool) -> io::Result<bool> {
    let mut payload = vec![0; header.len as usize];
    match backend.read_at(name, offset + RECORD_HEADER, &mut payload) {
        Ok(()) => Ok(record::checksum([&payload[..]]) == header.crc && (!by_id || header.id.matches([&payload[..]]))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
