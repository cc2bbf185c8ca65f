//! The catalog from the manifests: made again, or compared.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use protocol::id::{ChunkId, ChunkKind};
use protocol::initiator::Scope;

use crate::catalog::{Catalog, CatalogError, Change, Condition, Postgres, Row, Sqlite, Start};
use crate::record::{Body, Kind, LEAVING, MAGIC, Record, VersionId};
use crate::removal::Removals;
use crate::service::{ChunkService, ServiceError};
use crate::unanswered::{Begun, contradicts};

/// Manifests that are asked for ahead.
const PIPELINE: usize = 16;
/// Versions of a catalog that are compared at once.
const PAGE: usize = 1_000;

/// Why the manifests could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// The targets could not be asked.
    #[error("the targets could not be asked: {0}")]
    List(ServiceError),
    /// Too many are silent.
    #[error("{0} targets are silent, so that manifests may be missing: start them, then try again")]
    Silent(usize),
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The new catalog could not be put in the place of the old.
    #[error("the new catalog cannot be put in place: {0}")]
    Io(#[from] std::io::Error),
}

/// What the manifests say.
#[derive(Debug, Default)]
pub struct Manifests {
    /// All records, by bucket and key, in the order of their versions and revisions.
    records: BTreeMap<(String, String), Vec<Row>>,
    /// Those of objects of one chunk whose chunk is not there, by manifest, with the chunk.
    unfinished: BTreeMap<ChunkId, (Row, ChunkId)>,
    /// Manifests that cannot be read, a line each.
    unread: Vec<String>,
}

/// What stands when all that was removed or replaced is gone.
#[derive(Debug, Default)]
struct Standing<'a> {
    buckets: BTreeMap<&'a str, &'a Row>,
    /// Versions by bucket and key, oldest first.
    versions: BTreeMap<(&'a str, &'a str), Vec<&'a Row>>,
    /// Keys whose buckets do not stand.
    homeless: Vec<(&'a str, &'a str)>,
}

impl Standing<'_> {
    /// Whether this is an empty bucket that somebody began to remove: the last that is missing is the manifest that says it
    /// is gone.
    fn is_left(&self, bucket: &Row) -> bool {
        let record = &bucket.record;
        let empty = self.versions.keys().all(|(name, _)| *name != record.bucket);
        empty && record.attributes.contains_key(LEAVING)
    }

    /// Whether this very row stands.
    fn has(&self, row: &Row) -> bool {
        let record = &row.record;
        let bucket = self.buckets.get(record.bucket.as_str()).copied();
        let versions = self.versions.get(&(record.bucket.as_str(), record.key.as_str()));
        bucket.into_iter().chain(versions.into_iter().flatten().copied()).any(|stands| stands == row)
    }
}

/// How a catalog compares with the manifests.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// What is different, a line each.
    pub differences: Vec<String>,
    /// Left by changes that were never answered, or are under way, a line each. Nothing of it counts, and cleaning takes it.
    pub harmless: Vec<String>,
    /// What could not be used, and is neither of both as far as is known, a line each.
    pub remarks: Vec<String>,
}

impl Manifests {
    /// Reads all manifests of the cluster.
    ///
    /// # Errors
    /// When targets cannot be asked, or so many are silent that they may be all that have a manifest.
    pub fn read(service: &dyn ChunkService) -> Result<Self, RebuildError> {
        let all = list(service, ChunkKind::Manifest)?;
        let payload: BTreeSet<ChunkId> = list(service, ChunkKind::Payload)?.into_iter().collect();
        let mut manifests = Self::default();
        let mut flight = VecDeque::new();
        let mut ids = all.into_iter();
        loop {
            while flight.len() < PIPELINE {
                let Some(id) = ids.next() else { break };
                flight.push_back((id, service.get(id)));
            }
            let Some((manifest, pending)) = flight.pop_front() else { break };
            match pending.wait() {
                Ok(fetched) => manifests.take(manifest, &fetched.pieces.concat(), &payload),
                Err(error) => manifests.unread.push(format!("the manifest {manifest} cannot be read: {error}")),
            }
        }
        for rows in manifests.records.values_mut() {
            rows.sort_by_key(|row| (row.record.version, row.record.revision, row.manifest));
        }
        Ok(manifests)
    }

    fn take(&mut self, manifest: ChunkId, bytes: &[u8], payload: &BTreeSet<ChunkId>) {
        if !bytes.starts_with(&MAGIC) {
            return;
        }
        let record = match Record::decode(bytes) {
            Ok(record) => record,
            Err(why) => return self.unread.push(format!("the manifest {manifest} cannot be read: {why}")),
        };
        let name = (record.bucket.clone(), record.key.clone());
        let missing = single_chunk(&record).filter(|id| !payload.contains(id));
        let row = Row { record: record.row(), manifest };
        match missing {
            Some(chunk) => drop(self.unfinished.insert(manifest, (row, chunk))),
            None => self.records.entry(name).or_default().push(row),
        }
    }

    /// What a catalog that is made from them does not have, and why, a line each.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let unfinished = self.unfinished.values().filter(|(row, _)| !self.is_removed(row));
        let unfinished = unfinished.map(|(row, chunk)| doubtful(row, *chunk));
        let homeless = self.standing(&BTreeSet::new()).homeless;
        self.unread.iter().cloned().chain(unfinished).chain(homeless.into_iter().map(without_bucket)).collect()
    }

    /// Whether another manifest says that this version was removed, or never came to be.
    fn is_removed(&self, row: &Row) -> bool {
        let name = (row.record.bucket.clone(), row.record.key.clone());
        let others = self.records.get(&name).into_iter().flatten().map(|other| &other.record);
        Removals::of(others).remove(&row.record)
    }

    /// What stands when these manifests do not count.
    fn standing(&self, without: &BTreeSet<ChunkId>) -> Standing<'_> {
        let mut all = Standing::default();
        for ((bucket, key), rows) in &self.records {
            let rows = rows.iter().filter(|row| !without.contains(&row.manifest));
            if key.is_empty() {
                if let Some(newest) = rows.last().filter(|row| row.record.kind == Kind::Bucket) {
                    all.buckets.insert(bucket, newest);
                }
                continue;
            }
            let versions = standing(rows.collect());
            if versions.is_empty() {
            } else if all.buckets.contains_key(bucket.as_str()) {
                all.versions.insert((bucket, key), versions);
            } else {
                all.homeless.push((bucket, key));
            }
        }
        all
    }

    /// What makes an empty catalog say the same.
    fn changes(&self) -> impl Iterator<Item = Change> {
        let Standing { buckets, versions, .. } = self.standing(&BTreeSet::new());
        let rows = buckets.into_values().map(|row| Change::CreateBucket(row.clone()));
        let versions = versions.into_values().flatten();
        let removals = self.records.values().flatten().map(|row| &row.record);
        let removals = removals.filter(|record| matches!(record.kind, Kind::Erased | Kind::BucketGone));
        let removals = removals.map(|record| Change::Removed {
            bucket: record.bucket.clone(),
            key: record.key.clone(),
            version: if record.kind == Kind::Erased { record.erases } else { record.version },
        });
        // The removals last: what stands is not held to them.
        rows.chain(versions.map(|row| Change::Put(row.clone(), Condition::Always))).chain(removals)
    }

    /// Reads all manifests while no gateway can change anything, and puts what they say in the place of what is in this
    /// catalog.
    ///
    /// # Errors
    /// As [`Manifests::read`], or when the catalog cannot be changed. Then it stays as it was.
    pub fn rebuild(service: &dyn ChunkService, catalog: &Postgres) -> Result<Self, RebuildError> {
        let hold = catalog.hold()?;
        let manifests = Self::read(service)?;
        hold.fill(manifests.changes())?;
        Ok(manifests)
    }

    /// Makes an empty catalog say what they say.
    ///
    /// # Errors
    /// When it cannot be changed.
    pub fn fill(&self, catalog: &dyn Catalog) -> Result<(), CatalogError> {
        self.changes().try_for_each(|change| catalog.change(change))
    }

    /// Makes a catalog in `path` from them, in place of the one that is there.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), RebuildError> {
        let fresh = path.with_extension("new");
        remove(&fresh)?;
        {
            let catalog = Sqlite::open(&fresh)?;
            catalog.change_all(self.changes())?;
        }
        remove(path)?;
        std::fs::rename(&fresh, path)?;
        Ok(())
    }

    /// Compares a catalog with them.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn compare(&self, catalog: &dyn Catalog) -> Result<Comparison, RebuildError> {
        let begun = self.begun(catalog)?;
        let standing = self.standing(&begun);
        let mut differences = vec![];
        let mut there: BTreeMap<String, Row> = BTreeMap::new();
        for row in catalog.buckets()? {
            there.insert(row.record.bucket.clone(), row);
        }
        let names: BTreeSet<&str> = standing.buckets.keys().copied().chain(there.keys().map(String::as_str)).collect();
        for name in names {
            match (standing.buckets.get(name).copied(), there.get(name)) {
                (Some(manifest), Some(row)) if manifest == row => {}
                (Some(manifest), None) if standing.is_left(manifest) => {}
                (manifest, row) => differences.push(format!("bucket {name}: {}", said(manifest, row))),
            }
        }
        let mut seen = BTreeSet::new();
        for bucket in there.keys() {
            let mut start = Start::Key(vec![]);
            loop {
                let page = catalog.versions(bucket, &start, PAGE)?;
                let Some((last, _)) = page.last() else { break };
                start = Start::Version(last.record.key.clone().into_bytes(), last.record.version);
                for (row, newest) in page {
                    let record = &row.record;
                    let (bucket, key) = (&record.bucket, &record.key);
                    let known = standing.versions.get(&(bucket.as_str(), key.as_str())).map_or(&[][..], Vec::as_slice);
                    let manifest = known.iter().find(|known| known.record.version == record.version).copied();
                    let is_last = known.last().is_some_and(|last| last.record.version == record.version);
                    if let Some((_, chunk)) = self.unfinished.get(&row.manifest) {
                        let version = record.version;
                        differences.push(format!("{bucket}/{key}: the bytes of version {version} are lost ({chunk})"));
                    } else if manifest != Some(&row) {
                        differences.push(format!("{bucket}/{key}: {}", said(manifest, Some(&row))));
                    } else if is_last != newest {
                        differences.push(format!("{bucket}/{key}: another version is the newest"));
                    }
                    seen.insert((bucket.clone(), key.clone(), record.version));
                }
            }
        }
        for ((bucket, key), rows) in &standing.versions {
            let name = |row: &Row| ((*bucket).to_owned(), (*key).to_owned(), row.record.version);
            let missing = rows.iter().filter(|row| !seen.contains(&name(row)));
            differences.extend(missing.map(|row| format!("{bucket}/{key}: {}", said(Some(row), None))));
        }
        let (harmless, remarks) = self.apart(&begun, &standing, &seen);
        Ok(Comparison { differences, harmless, remarks })
    }

    /// What is no difference: the leftovers of changes that were begun, and what could not be used. `seen` is what the catalog
    /// has.
    fn apart(
        &self,
        begun: &BTreeSet<ChunkId>,
        standing: &Standing<'_>,
        seen: &BTreeSet<(String, String, VersionId)>,
    ) -> (Vec<String>, Vec<String>) {
        let without = self.standing(&BTreeSet::new());
        let homeless = |name: &(&str, &str)| !standing.homeless.contains(name);
        let homeless: BTreeSet<(&str, &str)> = without.homeless.iter().copied().filter(homeless).collect();
        let stands = |row: &&Row| {
            let name = (row.record.bucket.as_str(), row.record.key.as_str());
            row.record.kind == Kind::Erased || homeless.contains(&name) || without.has(row)
        };
        let rows = self.records.values().flatten().filter(|row| begun.contains(&row.manifest));
        let mut harmless: Vec<String> = rows.filter(stands).map(left).collect();
        let mut remarks = self.unread.clone();
        for (row, chunk) in self.unfinished.values() {
            let Record { bucket, key, version, .. } = &row.record;
            if seen.contains(&(bucket.clone(), key.clone(), *version)) {
                continue;
            }
            if begun.contains(&row.manifest) || self.is_removed(row) {
                harmless.push(left(row));
            } else {
                remarks.push(doubtful(row, *chunk));
            }
        }
        remarks.extend(standing.homeless.iter().copied().map(without_bucket));
        (harmless, remarks)
    }

    /// The manifests of changes that were begun and that this catalog has not made.
    fn begun(&self, catalog: &dyn Catalog) -> Result<BTreeSet<ChunkId>, RebuildError> {
        let mut begun = Begun::of(catalog)?;
        let rows = || self.records.values().flatten().chain(self.unfinished.values().map(|(row, _)| row));
        rows().for_each(|row| begun.see(&row.record));
        let mut found = BTreeSet::new();
        for row in rows() {
            let run = begun.open_in(&row.record);
            if run.is_some_and(|run| begun.is_known(run.id)) && contradicts(catalog, row)? {
                found.insert(row.manifest);
            }
        }
        Ok(found)
    }

    /// Buckets, and versions in them.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let standing = self.standing(&BTreeSet::new());
        (standing.buckets.len(), standing.versions.values().map(Vec::len).sum())
    }
}

/// The versions that stand when all that was removed is gone, oldest first; of records in the order of their versions and
/// revisions. A removal counts for the revision of its version that it saw, and for those before it; that of a null
/// version for all older null versions as well.
fn standing(records: Vec<&Row>) -> Vec<&Row> {
    let removals = Removals::of(records.iter().map(|row| &row.record));
    let stands = |row: &&Row| row.record.kind != Kind::Erased && !removals.remove(&row.record);
    let records: Vec<&Row> = records.into_iter().filter(stands).collect();
    let newest_null = records.iter().map(|row| &row.record).filter(|record| record.null);
    let newest_null = newest_null.map(|record| record.version).max();
    // A later record of a version takes the place of an earlier one.
    let mut standing: BTreeMap<VersionId, &Row> = BTreeMap::new();
    for row in records {
        if !row.record.null || Some(row.record.version) == newest_null {
            standing.insert(row.record.version, row);
        }
    }
    standing.into_values().collect()
}

/// The only payload chunk of an object, which is put at the same time as its manifest.
fn single_chunk(record: &Record) -> Option<ChunkId> {
    match &record.body {
        Body::Chunks(entries) if record.kind == Kind::Object && record.parts.is_empty() => match entries.as_slice() {
            [entry] => Some(entry.id),
            _ => None,
        },
        _ => None,
    }
}

fn list(service: &dyn ChunkService, kind: ChunkKind) -> Result<Vec<ChunkId>, RebuildError> {
    let found = service.list(Scope::Cluster, vec![kind as u8]).wait().map_err(RebuildError::List)?;
    if service.map().may_hide(&found.silent) {
        return Err(RebuildError::Silent(found.silent.len()));
    }
    Ok(found.chunks.into_iter().map(|(id, _)| id).collect())
}

fn said(manifest: Option<&Row>, row: Option<&Row>) -> String {
    let one = |row: Option<&Row>| row.map_or("nothing".to_owned(), |row| row.record.version.to_string());
    format!("the manifests have {}, the catalog has {}", one(manifest), one(row))
}

fn left(row: &Row) -> String {
    let Record { kind, bucket, key, version, erases, .. } = &row.record;
    let (what, version) = match kind {
        Kind::Erased => ("the removal of version ", erases.to_string()),
        Kind::Bucket | Kind::BucketGone => ("a change of the bucket", String::new()),
        Kind::Object | Kind::Marker => ("version ", version.to_string()),
    };
    let slash = if key.is_empty() { "" } else { "/" };
    format!("{bucket}{slash}{key}: {what}{version} was never answered, or is under way")
}

fn doubtful(row: &Row, chunk: ChunkId) -> String {
    let Record { bucket, key, version, .. } = &row.record;
    format!(
        "{bucket}/{key}: version {version} has no bytes ({chunk}): they are lost if it was ever acknowledged, and a put that \
         was broken off leaves the same"
    )
}

fn without_bucket((bucket, key): (&str, &str)) -> String {
    format!("{bucket}/{key}: the bucket of this key was removed")
}

/// Removes a catalog with the files that SQLite keeps beside it.
fn remove(path: &Path) -> std::io::Result<()> {
    for end in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        match std::fs::remove_file(&name) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: Kind, micros: u64, null: bool) -> Row {
        let mut record = Record::new(kind, "b", "k", VersionId::new(micros, 0));
        record.null = null;
        let manifest = record.chunk().0;
        Row { record, manifest }
    }

    fn stands(records: Vec<Row>) -> Vec<u64> {
        standing(records.iter().collect()).iter().map(|row| row.record.version.micros()).collect()
    }

    #[test]
    fn what_was_removed_does_not_come_back() {
        let mut exact = row(Kind::Erased, 9, false);
        exact.record.erases = VersionId::new(2, 0);
        let versions = || vec![row(Kind::Object, 1, false), row(Kind::Object, 2, false), row(Kind::Marker, 3, false)];
        assert_eq!(stands(versions()), [1, 2, 3]);
        assert_eq!(stands([versions(), vec![exact]].concat()), [1, 3]);
    }

    #[test]
    fn the_null_version_is_the_newest_one_of_its_kind() {
        let nulls = || vec![row(Kind::Object, 1, true), row(Kind::Object, 2, true)];
        assert_eq!(stands(nulls()), [2]);
        assert_eq!(stands([nulls(), vec![row(Kind::Erased, 3, true)]].concat()), [0; 0]);
        assert_eq!(stands([nulls(), vec![row(Kind::Erased, 3, true), row(Kind::Object, 4, true)]].concat()), [4]);
        // A put that the catalog refused was withdrawn: the one before it stands.
        let mut withdrawn = row(Kind::Erased, 3, false);
        withdrawn.record.erases = VersionId::new(2, 0);
        assert_eq!(stands([nulls(), vec![withdrawn]].concat()), [1]);
    }

    #[test]
    fn a_removal_counts_for_what_it_saw() {
        let revised = |null, revision| {
            let mut row = row(Kind::Object, 2, null);
            row.record.revision = revision;
            row
        };
        let erasure = |null, revision| {
            let mut row = row(Kind::Erased, 2, null);
            row.record.version = VersionId::new(2, 0).next();
            (row.record.erases, row.record.revision) = (VersionId::new(2, 0), revision);
            row
        };
        for null in [false, true] {
            let records = vec![row(Kind::Object, 1, null), revised(null, 2), erasure(null, 2)];
            let older: &[u64] = if null { &[] } else { &[1] };
            assert_eq!(stands(records.clone()), older);
            // Another gateway revised it before the catalog was asked to remove it, which it refused.
            assert_eq!(stands([records.clone(), vec![revised(null, 5)]].concat()), [older, &[2]].concat());
            assert_eq!(stands([records.clone(), vec![revised(null, 5), erasure(null, 5)]].concat()), older);
            // A version that was put in the same microsecond stays.
            let mut next = row(Kind::Object, 2, null);
            next.record.version = VersionId::new(2, 7);
            assert_eq!(stands([records, vec![next]].concat()).last(), Some(&2));
        }
    }

    #[test]
    fn the_last_revision_of_a_version_counts() {
        let mut revised = row(Kind::Object, 1, true);
        revised.record.revision = 7;
        let first = row(Kind::Object, 1, true);
        assert_eq!(standing(vec![&first, &revised]), [&revised]);
    }
}
