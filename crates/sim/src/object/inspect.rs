//! What is checked when all is over: every name is read once more, by a gateway that has just begun, and the manifests say
//! what the catalog says.

use catalog::object_manifest::{Body, ObjectManifest};
use catalog::{Catalog, CatalogError, Start, Transient};
use object::ChunkService;
use object::rebuild::Manifests;
use protocol::id::{ChunkId, ChunkKind};
use protocol::redundancy::Redundancy;
use protocol::time::Span;

use super::client::{Client, Ended, KEPT, KEYS, PLAIN};

/// Times that something is tried which is waited for only briefly, and what is between two.
const TRIES: u32 = 20;
const AGAIN: Span = Span::from_millis(20);
/// More than there is.
const PAGE: usize = 10_000;

impl Client {
    /// Checks everything, and records in the history what is wrong.
    pub(crate) fn inspect(&self) {
        if let Err(why) = self.check() {
            self.gateway.handle.record(|history, _| history.fail(format!("at the end: {why}")));
        }
    }

    /// Does something, more than once where answers are waited for so briefly that it may fail though nothing is wrong.
    pub(crate) fn insist<T>(&self, ask: impl Fn() -> Result<T, Ended>) -> Result<T, Ended> {
        let mut outcome = ask();
        for _ in 1..TRIES {
            if outcome.as_ref().err().is_none_or(|ended| self.is_excused(ended)) || !self.settings.is_brief() {
                break;
            }
            self.gateway.handle.sleep(AGAIN);
            outcome = ask();
        }
        outcome
    }

    /// The same, where nothing may fail but for a reason that the world knows.
    fn insist_on<T>(&self, what: &str, ask: impl Fn() -> Result<T, Ended>) -> Result<Option<T>, String> {
        match self.insist(ask) {
            Ok(done) => Ok(Some(done)),
            Err(ended @ Ended::Wanting(..)) if self.is_excused(&ended) => Ok(None),
            Err(ended) => Err(format!("{what}: {ended}")),
        }
    }

    fn check(&self) -> Result<(), String> {
        for bucket in [PLAIN, KEPT] {
            for key in KEYS {
                self.insist_on(&format!("reading {bucket}/{key}"), || self.read((bucket, key)))?;
            }
            self.insist_on(&format!("listing {bucket}"), || self.list(bucket))?;
        }
        self.compare()?;
        let referenced = self.references()?;
        self.check_listed(&referenced)?;
        self.gateway.handle.record(|history, _| history.referenced.extend(referenced));
        Ok(())
    }

    /// The manifests say what the catalog says, and a catalog that is made from them does.
    fn compare(&self) -> Result<(), String> {
        let manifests = Manifests::read(&self.gateway).map_err(|error| error.to_string())?;
        let is_manifest = |id: &ChunkId| id.kind() == ChunkKind::Manifest;
        if self.gateway.handle.record(|history, _| history.elsewhere.iter().any(is_manifest)) {
            // Nobody knows what those say that cannot be read.
            return Ok(());
        }
        let comparison = manifests.compare(&self.gateway).map_err(|error| error.to_string())?;
        if let Some(first) = comparison.differences.first() {
            return Err(format!("catalog and manifests differ: {first}"));
        }
        if !comparison.harmless.is_empty() {
            // What was begun and never answered comes back, as nobody got an answer that it was not made.
            return Ok(());
        }
        let again = || {
            let fresh = Transient::new()?;
            manifests.fill(&fresh)?;
            for bucket in [PLAIN, KEPT] {
                let all = |catalog: &dyn Catalog| catalog.versions(bucket, &Start::Key(vec![]), PAGE);
                if all(&fresh)? != all(&self.gateway)? {
                    return Ok(Some(bucket));
                }
            }
            Ok::<_, CatalogError>(None)
        };
        match again().map_err(|error| error.to_string())? {
            Some(bucket) => Err(format!("a catalog that is made from the manifests has other versions in {bucket}")),
            None => Ok(()),
        }
    }

    /// The chunks that rows refer to, with the redundancy of the objects.
    fn references(&self) -> Result<Vec<(ChunkId, Option<Redundancy>)>, String> {
        let mut all = vec![];
        for bucket in [PLAIN, KEPT] {
            let rows = self.gateway.versions(bucket, &Start::Key(vec![]), PAGE).map_err(|error| error.to_string())?;
            for (row, _) in rows {
                all.push((row.manifest, None));
                let whole = self.insist_on(&format!("what is in {bucket}"), || Ok(self.objects.whole(&row)?))?;
                let of = |record: &ObjectManifest| {
                    referenced(record).into_iter().map(|id| (id, record.redundancy())).collect::<Vec<_>>()
                };
                all.extend(whole.iter().flat_map(of));
            }
        }
        Ok(all)
    }

    /// All that is referred to is in a list of all targets.
    fn check_listed(&self, referenced: &[(ChunkId, Option<Redundancy>)]) -> Result<(), String> {
        for kind in [ChunkKind::Manifest, ChunkKind::Payload] {
            let found = self.gateway.list(vec![kind as u8]).wait().map_err(|error| error.to_string())?;
            if !found.silent.is_empty() {
                return Err(format!("{:?} are silent to a list", found.silent));
            }
            let listed = |id: &ChunkId| found.chunks.iter().any(|(other, _)| other == id);
            let mut of_kind = referenced.iter().map(|(id, _)| id).filter(|id| id.kind() == kind);
            if let Some(id) = of_kind.find(|id| !listed(id)) {
                return Err(format!("{id:?} is referred to, and in no list"));
            }
        }
        Ok(())
    }
}

/// The chunks that a record refers to; objects here are too small for index chunks.
pub(crate) fn referenced(record: &ObjectManifest) -> Vec<ChunkId> {
    match &record.body {
        Body::Chunks(entries) => entries.iter().map(|entry| entry.id).collect(),
        Body::Indexed(indexes) => indexes.iter().map(|(entry, _)| entry.id).collect(),
        Body::Inline(_) | Body::InManifest => vec![],
    }
}
