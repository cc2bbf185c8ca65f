//! The catalog from the manifests: made again, amended, or compared. `docs/cleaning.md` says what is believed.

mod compare;
mod known;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use protocol::id::{ChunkId, ChunkKind, NodeId};

use crate::removal::Removals;
use crate::service::{ChunkService, ServiceError};
use catalog::object_manifest::{Body, Kind, LEAVING, MAGIC, ObjectManifest, VersionId};
use catalog::{Catalog, CatalogError, Change, Condition, Row, Sqlite};

pub use compare::{Amendment, Authority, Comparison};

/// Manifests that are asked for ahead.
const PIPELINE: usize = 16;

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
    /// All records, by bucket and key.
    records: BTreeMap<(String, String), Vec<Row>>,
    /// Those of objects of one chunk whose chunk is not there, by manifest, with the chunk.
    unfinished: BTreeMap<ChunkId, (Row, ChunkId)>,
    /// Manifests that cannot be read, a line each.
    unreadable: Vec<String>,
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

impl<'a> Standing<'a> {
    /// Whether this is an empty bucket that somebody began to remove: the last that is missing is the manifest that says it
    /// is gone.
    fn is_left(&self, bucket: &Row) -> bool {
        let record = &bucket.record;
        let empty = self.versions.keys().all(|(name, _)| *name != record.bucket);
        empty && record.attributes.contains_key(LEAVING)
    }

    /// All rows.
    fn rows(&self) -> impl Iterator<Item = &'a Row> {
        self.buckets.values().chain(self.versions.values().flatten()).copied()
    }

    /// Buckets, and versions in them.
    fn counts(&self) -> (usize, usize) {
        (self.buckets.len(), self.versions.values().map(Vec::len).sum())
    }
}

impl Manifests {
    /// Reads all manifests of the cluster.
    ///
    /// # Errors
    /// When targets cannot be asked, or so many are silent that they may be all that have a manifest.
    pub fn read(service: &dyn ChunkService) -> Result<Self, RebuildError> {
        let map = service.map();
        let (all, silent) = list(service, ChunkKind::Manifest)?;
        if map.may_hide(&silent) {
            return Err(RebuildError::Silent(silent.len()));
        }
        let (plain, mut silent) = list(service, ChunkKind::Payload)?;
        let (coded, others) = list(service, ChunkKind::Coded)?;
        silent.extend(others);
        silent.sort_unstable();
        silent.dedup();
        let payload: BTreeSet<ChunkId> = plain.into_iter().chain(coded).map(|(id, _)| id.whole()).collect();
        let is_hidden = |record: &ObjectManifest| match record.redundancy() {
            Some(redundancy) => map.may_hide_kept(&silent, Some(redundancy)),
            None => map.may_hide(&silent),
        };
        let mut manifests = Self::default();
        let mut flight = VecDeque::new();
        let mut all = all.into_iter();
        loop {
            while flight.len() < PIPELINE {
                let Some((id, holders)) = all.next() else { break };
                flight.push_back((id, service.get_listed(id, holders)));
            }
            let Some((manifest, pending)) = flight.pop_front() else { break };
            match pending.wait() {
                Ok(fetched) => {
                    let missing = manifests.take(manifest, &fetched.pieces.concat(), &payload);
                    if missing.is_some_and(is_hidden) {
                        return Err(RebuildError::Silent(silent.len()));
                    }
                }
                Err(error) => manifests.unreadable.push(format!("the manifest {manifest} cannot be read: {error}")),
            }
        }
        Ok(manifests)
    }

    /// Takes a manifest. Its record, when that is of an object of one chunk, which is not among the `payload`.
    fn take(&mut self, manifest: ChunkId, bytes: &[u8], payload: &BTreeSet<ChunkId>) -> Option<&ObjectManifest> {
        if !bytes.starts_with(&MAGIC) {
            return None;
        }
        let record = match ObjectManifest::decode(bytes) {
            Ok(record) => record,
            Err(why) => {
                self.unreadable.push(format!("the manifest {manifest} cannot be read: {why}"));
                return None;
            }
        };
        let name = (record.bucket.clone(), record.key.clone());
        let missing = single_chunk(&record).filter(|id| !payload.contains(id));
        let row = Row { record: record.row(), manifest };
        let Some(chunk) = missing else {
            self.records.entry(name).or_default().push(row);
            return None;
        };
        self.unfinished.insert(manifest, (row, chunk));
        self.unfinished.get(&manifest).map(|(row, _)| &row.record)
    }

    /// All manifests of objects and buckets.
    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.records.values().flatten().chain(self.unfinished.values().map(|(row, _)| row))
    }

    /// Whether the manifest of this row is among them, with all its bytes.
    fn has(&self, row: &Row) -> bool {
        let name = (row.record.bucket.clone(), row.record.key.clone());
        self.records.get(&name).into_iter().flatten().any(|other| other.manifest == row.manifest)
    }

    /// Whether another manifest says that this version was removed, or never came to be.
    fn is_removed(&self, row: &Row) -> bool {
        let name = (row.record.bucket.clone(), row.record.key.clone());
        let others = self.records.get(&name).into_iter().flatten().map(|other| &other.record);
        Removals::of(others).remove(&row.record)
    }

    /// What stands when the manifests `without` do not count, and the rows `kept` do.
    fn standing<'a>(&'a self, without: &BTreeSet<ChunkId>, kept: &[&'a Row]) -> Standing<'a> {
        let mut records: BTreeMap<(&str, &str), Vec<&Row>> = BTreeMap::new();
        let counted = self.records.values().flatten().filter(|row| !without.contains(&row.manifest));
        for row in counted.chain(kept.iter().copied()) {
            records.entry((&row.record.bucket, &row.record.key)).or_default().push(row);
        }
        let mut all = Standing::default();
        for ((bucket, key), mut rows) in records {
            rows.sort_by_key(|row| (row.record.version, row.record.revision, row.manifest));
            if key.is_empty() {
                if let Some(newest) = rows.last().filter(|row| row.record.kind == Kind::Bucket) {
                    all.buckets.insert(bucket, newest);
                }
                continue;
            }
            let versions = standing(rows);
            if versions.is_empty() {
            } else if all.buckets.contains_key(bucket) {
                all.versions.insert((bucket, key), versions);
            } else {
                all.homeless.push((bucket, key));
            }
        }
        all
    }

    /// Up to which version the manifests that count say that a key, or a bucket, was removed.
    fn removals(&self, without: &BTreeSet<ChunkId>) -> Vec<(String, String, VersionId)> {
        let counted = self.records.values().flatten().filter(|row| !without.contains(&row.manifest));
        let removal = |Row { record, .. }: &Row| {
            let version = match record.kind {
                Kind::Removal => record.removes,
                Kind::BucketRemoval => record.version,
                Kind::Object | Kind::Marker | Kind::Bucket => return None,
            };
            Some((record.bucket.clone(), record.key.clone(), version))
        };
        counted.filter_map(removal).collect()
    }

    /// What makes an empty catalog say the same.
    fn changes(&self) -> impl Iterator<Item = Change> {
        let Standing { buckets, versions, .. } = self.standing(&BTreeSet::new(), &[]);
        let rows = buckets.into_values().map(|row| Change::CreateBucket(row.clone()));
        let versions = versions.into_values().flatten();
        let removals = self.removals(&BTreeSet::new()).into_iter();
        let removals = removals.map(|(bucket, key, version)| Change::Removed { bucket, key, version });
        // The removals last: what stands is not held to them.
        rows.chain(versions.map(|row| Change::Put(row.clone(), Condition::Always))).chain(removals)
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

    /// Buckets, and versions in them.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        self.standing(&BTreeSet::new(), &[]).counts()
    }
}

/// The versions that stand when all that was removed is gone, oldest first; of records in the order of their versions and
/// revisions. A removal counts for the revision of its version that it saw, and for those before it; that of a null
/// version for all older null versions as well.
fn standing(records: Vec<&Row>) -> Vec<&Row> {
    let removals = Removals::of(records.iter().map(|row| &row.record));
    let stands = |row: &&Row| row.record.kind != Kind::Removal && !removals.remove(&row.record);
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
fn single_chunk(record: &ObjectManifest) -> Option<ChunkId> {
    match &record.body {
        Body::Chunks(entries) if record.kind == Kind::Object && record.parts.is_empty() => match entries.as_slice() {
            [entry] => Some(entry.id),
            _ => None,
        },
        _ => None,
    }
}

/// A chunk and its holders.
type Held = (ChunkId, Vec<NodeId>);

/// All chunks of a kind that any target holds, and the silent targets.
fn list(service: &dyn ChunkService, kind: ChunkKind) -> Result<(Vec<Held>, Vec<NodeId>), RebuildError> {
    let found = service.list(vec![kind as u8]).wait().map_err(RebuildError::List)?;
    Ok((found.chunks, found.silent))
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
        let mut record = ObjectManifest::new(kind, "b", "k", VersionId::new(micros, 0));
        record.null = null;
        let manifest = record.chunk().0;
        Row { record, manifest }
    }

    fn stands(records: Vec<Row>) -> Vec<u64> {
        standing(records.iter().collect()).iter().map(|row| row.record.version.micros()).collect()
    }

    #[test]
    fn what_was_removed_does_not_come_back() {
        let mut exact = row(Kind::Removal, 9, false);
        exact.record.removes = VersionId::new(2, 0);
        let versions = || vec![row(Kind::Object, 1, false), row(Kind::Object, 2, false), row(Kind::Marker, 3, false)];
        assert_eq!(stands(versions()), [1, 2, 3]);
        assert_eq!(stands([versions(), vec![exact]].concat()), [1, 3]);
    }

    #[test]
    fn the_null_version_is_the_newest_one_of_its_kind() {
        let nulls = || vec![row(Kind::Object, 1, true), row(Kind::Object, 2, true)];
        assert_eq!(stands(nulls()), [2]);
        assert_eq!(stands([nulls(), vec![row(Kind::Removal, 3, true)]].concat()), [0; 0]);
        assert_eq!(stands([nulls(), vec![row(Kind::Removal, 3, true), row(Kind::Object, 4, true)]].concat()), [4]);
        // A put that the catalog refused was withdrawn: the one before it stands.
        let mut withdrawn = row(Kind::Removal, 3, false);
        withdrawn.record.removes = VersionId::new(2, 0);
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
            let mut row = row(Kind::Removal, 2, null);
            row.record.version = VersionId::new(2, 0).next();
            (row.record.removes, row.record.revision) = (VersionId::new(2, 0), revision);
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
    fn a_removal_that_saw_an_earlier_revision_does_not_shield_from_a_later_removal() {
        let of = |kind, micros, revision, removes| {
            let mut row = row(kind, micros, true);
            (row.record.revision, row.record.removes) = (revision, VersionId::new(removes, 0));
            row
        };
        // A removal of 1 that was never answered, 1 with other attributes, 3 in its place, and the removal of that.
        let mut records = vec![of(Kind::Removal, 2, 0, 1), of(Kind::Object, 1, 5, 0), of(Kind::Object, 3, 0, 0)];
        assert_eq!(stands(records.clone()), [3]);
        records.push(of(Kind::Removal, 4, 0, 3));
        assert_eq!(stands(records), [0; 0]);
    }

    #[test]
    fn the_last_revision_of_a_version_counts() {
        let mut revised = row(Kind::Object, 1, true);
        revised.record.revision = 7;
        let first = row(Kind::Object, 1, true);
        assert_eq!(standing(vec![&first, &revised]), [&revised]);
    }
}
