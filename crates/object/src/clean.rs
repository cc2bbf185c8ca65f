//! Cleaning: what refers to which chunk. The steps are those of [`protocol::cleaner`]; `docs/cleaning.md` has the
//! argument why nothing is lost.

mod garbage;

use std::collections::{HashSet, VecDeque};

use protocol::cleaner::{self, Cleaner, Summary, Unfinished, Want};
use protocol::id::{ChunkId, ChunkKind, NodeId};
use protocol::initiator::{Busy, Found};

use crate::bug::Bug;
use crate::incomplete_changes::IncompleteChanges;
use crate::manifest::{self, Entry, Malformed, Manifest};
use crate::service::{ChunkService, ServiceError};
use catalog::object_manifest::{self, Body, ObjectManifest, decode_entries};
use catalog::{Catalog, CatalogError, Start, all_buckets};
use garbage::{Fate, Seen, judge};

/// References that are kept in memory; with more, the manifests are read several times.
const REFERENCES: usize = 1 << 20;
/// Manifests that are asked for ahead.
const PIPELINE: usize = 16;
/// Rows of a catalog that are read at once.
const PAGE: usize = 1_000;
/// Chunks in one list from which on the slices are made smaller.
const MANY: usize = 100_000;

/// Why what refers to chunks could not be read.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("the targets could not be asked: {0}")]
    List(ServiceError),
    #[error("targets are silent")]
    Silent(Vec<NodeId>),
    #[error("{0} cannot be had: {1}")]
    Chunk(ChunkId, Box<ServiceError>),
    #[error("{0} cannot be read: {1}")]
    Malformed(ChunkId, Malformed),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// What came of one pass.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was found and dropped.
    pub pass: Summary,
    /// Why it was not finished, in words.
    pub problem: Option<String>,
}

/// Finds chunks that nothing refers to, and has them dropped. Calls block.
pub struct Cleaning<'a> {
    service: &'a dyn ChunkService,
    catalog: &'a dyn Catalog,
    machine: Cleaner,
    known: References,
    /// Whether the manifests are listed in steps, by the first byte of their names' hashes.
    steps: bool,
    bug: Option<Bug>,
}

impl<'a> Cleaning<'a> {
    /// A cleaning before its first pass, which only condemns. A `dry` one drops and condemns nothing.
    #[must_use]
    pub fn new(service: &'a dyn ChunkService, catalog: &'a dyn Catalog, dry: bool) -> Self {
        let mut machine = Cleaner::new(dry);
        machine.set_slice_bytes(1);
        Self { service, catalog, machine, known: References::default(), steps: true, bug: None }
    }

    /// The same for a cluster so small that one list names everything.
    #[must_use]
    pub fn at_once(mut self) -> Self {
        self.machine.set_slice_bytes(0);
        Self { steps: false, ..self }
    }

    /// The same with a planted defect.
    #[must_use]
    pub fn with_bug(self, bug: Option<Bug>, machine: Option<cleaner::Bug>) -> Self {
        Self { bug, machine: self.machine.with_bug(machine), ..self }
    }

    /// Makes one pass. `rest` waits for the grace time; when it returns `false`, the pass ends there.
    pub fn run_pass(&mut self, rest: &mut dyn FnMut() -> bool) -> Report {
        let mut problem = None;
        let mut most = 0;
        loop {
            match self.machine.want() {
                Want::Mark => {
                    let marked = or_busy(self.service.mark().wait(), &mut problem);
                    self.machine.marked(marked);
                }
                Want::Rest if rest() => self.machine.rested(),
                Want::Rest => {
                    problem = Some("it was asked to stop".to_owned());
                    self.machine.stop(Unfinished::Unread);
                }
                Want::Read { from } => match self.read(from) {
                    Ok(garbage) => self.machine.read(self.known.until, garbage),
                    Err(Unreadable::Silent(silent)) => self.machine.stop(Unfinished::Silent(silent)),
                    Err(error) => {
                        problem = Some(error.to_string());
                        self.machine.stop(Unfinished::Unread);
                    }
                },
                Want::List { prefix } => {
                    let found = or_busy(self.service.list(prefix).wait(), &mut problem);
                    most = most.max(found.as_ref().map_or(0, |found: &Found| found.chunks.len()));
                    let known = &self.known;
                    self.machine.listed(found, |id| known.has(id));
                }
                Want::Discard(discard) => {
                    let done = or_busy(self.service.discard(discard).wait(), &mut problem);
                    self.machine.discarded(done);
                }
                Want::Over(pass) => {
                    self.known = References::default();
                    if most > MANY {
                        self.machine.set_slice_bytes(2);
                    }
                    self.machine.next_pass();
                    let problem = problem.or_else(|| pass.unfinished.as_ref().map(describe));
                    return Report { pass, problem };
                }
            }
        }
    }

    /// Reads what refers to the payload chunks of the slices from `from` on. The manifests that may go come with the
    /// first.
    fn read(&mut self, from: u32) -> Result<Vec<(ChunkId, Vec<NodeId>)>, Unreadable> {
        self.known = References::new(self.machine.slice_bytes(), from);
        // In this order: the rows of an upload go when the manifest of its object is durable.
        self.read_catalog()?;
        let mut garbage = Garbage { begun: IncompleteChanges::of(self.catalog)?, ..Garbage::default() };
        let kind = ChunkKind::Manifest as u8;
        let step = |first| if self.steps { vec![kind, first] } else { vec![kind] };
        for prefix in (0..=if self.steps { u8::MAX } else { 0 }).map(step).collect::<Vec<_>>() {
            let found = self.service.list(prefix);
            let found = found.wait().map_err(Unreadable::List)?;
            if self.machine.lacks(&found.silent) {
                return Err(Unreadable::Silent(found.silent));
            }
            self.read_manifests(found, &mut garbage)?;
        }
        Ok(if from == 0 { garbage.all() } else { vec![] })
    }

    fn read_catalog(&mut self) -> Result<(), Unreadable> {
        let catalog = self.catalog;
        for bucket in all_buckets(catalog) {
            let bucket = bucket?.record.bucket;
            let mut start = Start::Key(vec![]);
            while self.bug != Some(Bug::SkipUploads) {
                let page = catalog.uploads(&bucket, &start, PAGE)?;
                let Some(last) = page.last() else { break };
                start = Start::Version(last.record.key.clone().into_bytes(), last.id);
                page.iter().try_for_each(|upload| self.read_parts(upload.id))?;
            }
            let mut start = Start::Key(vec![]);
            loop {
                let page = catalog.versions(&bucket, &start, PAGE)?;
                let Some((last, _)) = page.last() else { break };
                start = Start::Version(last.record.key.clone().into_bytes(), last.record.version);
                for (row, _) in &page {
                    self.refer(&row.record.body)?;
                }
            }
        }
        Ok(())
    }

    fn read_parts(&mut self, upload: object_manifest::VersionId) -> Result<(), Unreadable> {
        let mut after = 0;
        loop {
            let page = self.catalog.parts(upload, after, PAGE)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.number;
            for part in &page {
                // One that is gone meanwhile was replaced or completed.
                let Some(whole) = self.catalog.part(upload, part.number)? else { continue };
                let entries = decode_entries(&whole.entries);
                let entries = entries.map_err(|why| CatalogError::Engine(why.to_string()))?;
                entries.iter().for_each(|entry| self.known.add(entry.id));
            }
        }
    }

    /// Ids ascend, so that all manifests of a name follow each other.
    fn read_manifests(&mut self, found: Found, garbage: &mut Garbage) -> Result<(), Unreadable> {
        let service = self.service;
        let mut ids = found.chunks.into_iter();
        let mut flight = VecDeque::new();
        let mut records: Vec<Seen> = vec![];
        loop {
            while flight.len() < PIPELINE {
                let Some((id, holders)) = ids.next() else { break };
                let pending = service.get_listed(id, holders.clone());
                flight.push_back((id, holders, pending));
            }
            let Some((id, holders, pending)) = flight.pop_front() else { break };
            let bytes = pending.wait().map_err(|error| Unreadable::Chunk(id, Box::new(error)))?.pieces.concat();
            if records.last().is_some_and(|last| last.id.placement_key() != id.placement_key()) {
                self.read_name(&mut records, garbage)?;
            }
            if bytes.starts_with(&object_manifest::MAGIC) {
                let record = ObjectManifest::decode(&bytes).map_err(|why| Unreadable::Malformed(id, why))?;
                garbage.begun.note(&record);
                records.push(Seen::new(id, holders, record));
            } else {
                let manifest = Manifest::decode(&bytes).map_err(|why| Unreadable::Malformed(id, why))?;
                self.refer_entries(&manifest.entries, manifest.indirect)?;
            }
        }
        self.read_name(&mut records, garbage)
    }

    /// All records of one key, or of more keys whose hashes begin alike.
    fn read_name(&mut self, all: &mut Vec<Seen>, garbage: &mut Garbage) -> Result<(), Unreadable> {
        while let Some(first) = all.first() {
            let name = first.name();
            let (records, others) = std::mem::take(all).into_iter().partition(|seen| seen.name() == name);
            *all = others;
            for (seen, fate) in judge(records, self.catalog, &garbage.begun)? {
                match fate {
                    Fate::Stays => {}
                    Fate::Goes => {
                        garbage.sure.push((seen.id, seen.holders));
                        continue;
                    }
                    // What it names stays as long as it is there.
                    Fate::GoesWith(run) => garbage.unanswered.push((run, seen.id, seen.holders.clone())),
                }
                if seen.is_long {
                    let bytes = self.fetch(seen.id, seen.holders)?;
                    let whole = ObjectManifest::decode(&bytes).map_err(|why| Unreadable::Malformed(seen.id, why))?;
                    self.refer(&whole.body)?;
                } else {
                    self.refer(&seen.record.body)?;
                }
            }
        }
        Ok(())
    }

    fn refer(&mut self, body: &Body) -> Result<(), Unreadable> {
        match body {
            Body::Chunks(entries) => self.refer_entries(entries, false),
            Body::Indexed(indexes) => {
                let entries: Vec<Entry> = indexes.iter().map(|(entry, _)| *entry).collect();
                self.refer_entries(&entries, true)
            }
            // A row's manifest is read as well.
            Body::Inline(_) | Body::InManifest => Ok(()),
        }
    }

    fn refer_entries(&mut self, entries: &[Entry], indirect: bool) -> Result<(), Unreadable> {
        for entry in entries {
            self.known.add(entry.id);
            if indirect {
                let bytes = self.fetch(entry.id, vec![])?;
                let below = manifest::decode_index(&bytes).map_err(|why| Unreadable::Malformed(entry.id, why))?;
                below.iter().for_each(|entry| self.known.add(entry.id));
            }
        }
        Ok(())
    }

    fn fetch(&self, id: ChunkId, holders: Vec<NodeId>) -> Result<Vec<u8>, Unreadable> {
        self.service
            .get_listed(id, holders)
            .wait()
            .map(|fetched| fetched.pieces.concat())
            .map_err(|error| Unreadable::Chunk(id, Box::new(error)))
    }
}

/// The manifests that may go.
#[derive(Default)]
struct Garbage {
    begun: IncompleteChanges,
    sure: Vec<(ChunkId, Vec<NodeId>)>,
    /// Those of changes that were never answered, if the catalog knows their run well, which shows when all were read.
    unanswered: Vec<(u64, ChunkId, Vec<NodeId>)>,
}

impl Garbage {
    fn all(self) -> Vec<(ChunkId, Vec<NodeId>)> {
        let begun = self.begun;
        let unanswered = self.unanswered.into_iter().filter(|(run, ..)| begun.is_known(*run));
        self.sure.into_iter().chain(unanswered.map(|(_, id, holders)| (id, holders))).collect()
    }
}

/// An answer as the machine takes it. The text of an error goes to `problem`.
fn or_busy<T>(answer: Result<T, ServiceError>, problem: &mut Option<String>) -> Result<T, Busy> {
    answer.map_err(|error| {
        *problem = Some(error.to_string());
        Busy
    })
}

fn describe(why: &Unfinished) -> String {
    match why {
        Unfinished::Silent(nodes) => {
            let nodes: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
            format!("targets {} are silent, were restarted, or know a newer cluster map", nodes.join(", "))
        }
        Unfinished::Busy => "too much is waiting".to_owned(),
        Unfinished::Unread => "what refers to chunks cannot be read".to_owned(),
    }
}

/// The payload chunks of some slices that something refers to, plain or coded.
#[derive(Default)]
struct References {
    slice_bytes: u8,
    from: u32,
    /// The first slice that is not known any more.
    until: u32,
    ids: HashSet<[u8; 32]>,
}

impl References {
    fn new(slice_bytes: u8, from: u32) -> Self {
        Self { slice_bytes, from, until: 1 << (8 * u32::from(slice_bytes)), ids: HashSet::new() }
    }

    fn slice(&self, id: &[u8; 32]) -> u32 {
        id[..usize::from(self.slice_bytes)].iter().fold(0, |slice, byte| slice << 8 | u32::from(*byte))
    }

    fn add(&mut self, id: ChunkId) {
        let slice = self.slice(id.bytes());
        if id.kind() == ChunkKind::Manifest || slice < self.from || slice >= self.until {
            return;
        }
        self.ids.insert(*id.bytes());
        // Forgets the later slices when there is no room for all.
        while self.ids.len() > REFERENCES && self.until > self.from + 1 {
            self.until = self.from + (self.until - self.from).div_ceil(2);
            let mut ids = std::mem::take(&mut self.ids);
            ids.retain(|id| self.slice(id) < self.until);
            self.ids = ids;
        }
    }

    /// Whether something refers to this chunk; of a slice that is not known, yes.
    fn has(&self, id: &ChunkId) -> bool {
        let slice = self.slice(id.bytes());
        slice < self.from || slice >= self.until || self.ids.contains(id.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_counts_as_referred_to() {
        let mut known = References::new(1, 3);
        let id = |first: u8, n: u32| {
            let mut bytes = [first; 32];
            bytes[1..5].copy_from_slice(&n.to_le_bytes());
            ChunkId::from_parts(ChunkKind::Payload, bytes)
        };
        (0..=REFERENCES as u32).for_each(|n| known.add(id((n % 200) as u8, n)));
        assert!(known.has(&id(2, 1)) && !known.has(&id(3, 1)) && known.until == 256);
        (0..REFERENCES as u32 * 2).for_each(|n| known.add(id((n % 200) as u8, n)));
        assert!(known.until < 256 && known.ids.len() <= REFERENCES);
        assert!(known.has(&id(known.until as u8, 1)) && !known.has(&id(3, 1)) && known.has(&id(3, 203)));
    }
}
