//! The catalog from the manifests: made again, or compared.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use protocol::id::{ChunkId, ChunkKind};
use protocol::initiator::Scope;

use crate::catalog::{Catalog, CatalogError, Change, Condition, Postgres, Row, Sqlite, Start};
use crate::record::{Body, Kind, MAGIC, Record, VersionId};
use crate::removal::Removals;
use crate::service::{ChunkService, ServiceError};

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
    buckets: BTreeMap<String, Row>,
    /// Versions by bucket and key, oldest first.
    versions: BTreeMap<(String, String), Vec<Row>>,
    /// What could not be used, a line each.
    pub remarks: Vec<String>,
}

/// All records of a key.
type Records = Vec<Row>;

impl Manifests {
    /// Reads all manifests of the cluster.
    ///
    /// # Errors
    /// When targets cannot be asked, or as many as copies are silent.
    pub fn read(service: &dyn ChunkService) -> Result<Self, RebuildError> {
        let all = list(service, ChunkKind::Manifest)?;
        let payload: BTreeSet<ChunkId> = list(service, ChunkKind::Payload)?.into_iter().collect();
        let mut manifests = Self::default();
        let mut records: BTreeMap<(String, String), Records> = BTreeMap::new();
        let mut flight = VecDeque::new();
        let mut ids = all.into_iter();
        loop {
            while flight.len() < PIPELINE {
                let Some(id) = ids.next() else { break };
                flight.push_back((id, service.get(id)));
            }
            let Some((manifest, pending)) = flight.pop_front() else { break };
            let bytes = match pending.wait() {
                Ok(fetched) => fetched.pieces.concat(),
                Err(error) => {
                    manifests.remarks.push(format!("the manifest {manifest} cannot be read: {error}"));
                    continue;
                }
            };
            if !bytes.starts_with(&MAGIC) {
                continue;
            }
            match Record::decode(&bytes) {
                Ok(record) => {
                    let name = (record.bucket.clone(), record.key.clone());
                    let unfinished = single_chunk(&record).filter(|id| !payload.contains(id));
                    if let Some(id) = unfinished {
                        let text = format!(
                            "{}/{}: version {} was not finished, or its bytes are lost ({id})",
                            name.0, name.1, record.version
                        );
                        manifests.remarks.push(text);
                        continue;
                    }
                    records.entry(name).or_default().push(Row { record: record.row(), manifest });
                }
                Err(why) => manifests.remarks.push(format!("the manifest {manifest} cannot be read: {why}")),
            }
        }
        manifests.resolve(records);
        Ok(manifests)
    }

    fn resolve(&mut self, records: BTreeMap<(String, String), Records>) {
        for ((bucket, key), mut records) in records {
            records.sort_by_key(|row| (row.record.version, row.record.revision, row.manifest));
            if key.is_empty() {
                if let Some(newest) = records.pop().filter(|row| row.record.kind == Kind::Bucket) {
                    self.buckets.insert(bucket, newest);
                }
                continue;
            }
            let versions = standing(records);
            if !versions.is_empty() {
                self.versions.insert((bucket, key), versions);
            }
        }
        let buckets = &self.buckets;
        let mut homeless = vec![];
        self.versions.retain(|(bucket, key), _| {
            let kept = buckets.contains_key(bucket);
            if !kept {
                homeless.push(format!("{bucket}/{key}: there is no such bucket"));
            }
            kept
        });
        self.remarks.append(&mut homeless);
    }

    /// What makes an empty catalog say the same.
    fn changes(&self) -> impl Iterator<Item = Change> {
        let rows = self.buckets.values().map(|row| Change::CreateBucket(row.clone()));
        let versions = self.versions.values().flatten();
        rows.chain(versions.map(|row| Change::Put(row.clone(), Condition::Always)))
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

    /// What is different in a catalog, a line each.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn compare(&self, catalog: &dyn Catalog) -> Result<Vec<String>, RebuildError> {
        let mut differences = vec![];
        let mut there: BTreeMap<String, Row> = BTreeMap::new();
        for row in catalog.buckets()? {
            there.insert(row.record.bucket.clone(), row);
        }
        let names: BTreeSet<&String> = self.buckets.keys().chain(there.keys()).collect();
        for name in names {
            match (self.buckets.get(name), there.get(name)) {
                (Some(manifest), Some(row)) if manifest == row => {}
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
                    let name = (record.bucket.clone(), record.key.clone());
                    let known = self.versions.get(&name).map_or(&[][..], Vec::as_slice);
                    let manifest = known.iter().find(|known| known.record.version == record.version);
                    let is_last = known.last().is_some_and(|last| last.record.version == record.version);
                    if manifest != Some(&row) {
                        differences.push(format!("{}/{}: {}", name.0, name.1, said(manifest, Some(&row))));
                    } else if is_last != newest {
                        differences.push(format!("{}/{}: another version is the newest", name.0, name.1));
                    }
                    seen.insert((name, record.version));
                }
            }
        }
        for ((bucket, key), rows) in &self.versions {
            let name = (bucket.clone(), key.clone());
            let missing = rows.iter().filter(|row| !seen.contains(&(name.clone(), row.record.version)));
            differences.extend(missing.map(|row| format!("{bucket}/{key}: {}", said(Some(row), None))));
        }
        Ok(differences)
    }

    /// Buckets, and versions in them.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.buckets.len(), self.versions.values().map(Vec::len).sum())
    }
}

/// The versions that stand when all that was removed is gone, oldest first. A removal counts for the revision of its
/// version that it saw, and for those before it; that of a null version for all older null versions as well.
fn standing(records: Records) -> Vec<Row> {
    let removals = Removals::of(records.iter().map(|row| &row.record));
    let stands = |row: &Row| row.record.kind != Kind::Erased && !removals.remove(&row.record);
    let records: Records = records.into_iter().filter(stands).collect();
    let newest_null = records.iter().map(|row| &row.record).filter(|record| record.null);
    let newest_null = newest_null.map(|record| record.version).max();
    // Sorted by version and revision: a later record of a version takes the place of an earlier one.
    let mut standing: BTreeMap<VersionId, Row> = BTreeMap::new();
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
    if found.silent.len() >= service.copies() {
        return Err(RebuildError::Silent(found.silent.len()));
    }
    Ok(found.chunks.into_iter().map(|(id, _)| id).collect())
}

fn said(manifest: Option<&Row>, row: Option<&Row>) -> String {
    let one = |row: Option<&Row>| row.map_or("nothing".to_owned(), |row| row.record.version.to_string());
    format!("the manifests have {}, the catalog has {}", one(manifest), one(row))
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
        standing(records).iter().map(|row| row.record.version.micros()).collect()
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
        let standing = standing(vec![row(Kind::Object, 1, true), revised.clone()]);
        assert_eq!(standing, [revised]);
    }
}
