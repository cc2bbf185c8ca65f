//! Which manifests may go.

use protocol::id::{ChunkId, NodeId};

use crate::incomplete_changes::{IncompleteChanges, contradicts, version};
use crate::removal::Removals;
use catalog::object_manifest::{Body, Kind, ObjectManifest, VersionId};
use catalog::{Catalog, CatalogError, Row};

/// A record that was read.
pub(super) struct Seen {
    /// Its manifest.
    pub(super) id: ChunkId,
    pub(super) holders: Vec<NodeId>,
    /// Shortened: so that all records of a key can be kept at once.
    pub(super) record: ObjectManifest,
    /// Whether the record as it is here lacks chunks that its manifest names.
    pub(super) is_long: bool,
}

impl Seen {
    pub(super) fn new(id: ChunkId, holders: Vec<NodeId>, record: ObjectManifest) -> Self {
        let names_chunks = matches!(record.body, Body::Chunks(_) | Body::Indexed(_));
        let record = record.row();
        let is_long = names_chunks && record.body == Body::InManifest;
        Self { id, holders, record, is_long }
    }

    pub(super) fn name(&self) -> (String, String) {
        (self.record.bucket.clone(), self.record.key.clone())
    }

    fn is_removal(&self) -> bool {
        matches!(self.record.kind, Kind::Removal | Kind::BucketRemoval)
    }
}

/// What becomes of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It counts.
    Stays,
    /// It may go: another manifest says that it counts no more, and the catalog does not contradict.
    Goes,
    /// It may go if the catalog knows all that became of this run, which has ended: its change was never answered.
    GoesWith(u64),
}

/// The records of one key, each with what becomes of its manifest. A catalog that knows nothing removes nothing.
pub(super) fn judge(
    records: Vec<Seen>,
    catalog: &dyn Catalog,
    begun: &IncompleteChanges,
) -> Result<Vec<(Seen, Fate)>, CatalogError> {
    let goes = if records.first().is_some_and(|seen| seen.record.key.is_empty()) {
        judge_bucket(&records, catalog)?
    } else {
        judge_key(&records, catalog)?
    };
    let mut judged = vec![];
    for (seen, goes) in records.into_iter().zip(goes) {
        let fate = if goes { Fate::Goes } else { unanswered(&seen, catalog, begun)? };
        judged.push((seen, fate));
    }
    Ok(judged)
}

fn unanswered(seen: &Seen, catalog: &dyn Catalog, begun: &IncompleteChanges) -> Result<Fate, CatalogError> {
    let Some(run) = begun.open_in(&seen.record).filter(|run| run.ended) else { return Ok(Fate::Stays) };
    let row = Row { record: seen.record.clone(), manifest: seen.id };
    Ok(if contradicts(catalog, &row)? { Fate::GoesWith(run.id) } else { Fate::Stays })
}

fn judge_bucket(records: &[Seen], catalog: &dyn Catalog) -> Result<Vec<bool>, CatalogError> {
    let order = |seen: &&Seen| (seen.record.version, seen.record.revision, seen.id);
    let Some(newest) = records.iter().max_by_key(order) else { return Ok(vec![]) };
    let row = catalog.bucket(&newest.record.bucket)?;
    let settled = match (&row, newest.record.kind) {
        (Some(row), Kind::Bucket) => row.manifest == newest.id,
        (None, Kind::BucketRemoval) => true,
        _ => false,
    };
    // What says that the bucket is gone outlives what says that there is one.
    let alone = records.len() == 1;
    Ok(records.iter().map(|seen| settled && (seen.id != newest.id || alone && seen.is_removal())).collect())
}

fn judge_key(records: &[Seen], catalog: &dyn Catalog) -> Result<Vec<bool>, CatalogError> {
    let removals = Removals::of(records.iter().map(|seen| &seen.record));
    let last_null = last_null(records, catalog)?;
    let mut goes = vec![];
    for seen in records {
        let record = &seen.record;
        if seen.is_removal() {
            let alone = Removals::of(std::iter::once(record));
            let covers = |other: &Seen| !other.is_removal() && alone.remove(&other.record);
            goes.push(!records.iter().any(covers));
            continue;
        }
        let replaced = record.null && last_null.is_some_and(|last| record.version < last);
        let removed = removals.remove(record) || replaced;
        let revised = || records.iter().any(|other| is_later(&other.record, record));
        if !removed && !revised() {
            goes.push(false);
            continue;
        }
        goes.push(match version(catalog, record, record.version)? {
            Some(row) => row.manifest != seen.id && is_later(&row.record, record),
            None => removed,
        });
    }
    Ok(goes)
}

/// Whether a record has later attributes of the same version.
fn is_later(other: &ObjectManifest, record: &ObjectManifest) -> bool {
    other.kind == record.kind && other.version == record.version && other.revision > record.revision
}

/// The null version that the catalog has, if its manifest is there: it took the place of those before.
fn last_null(records: &[Seen], catalog: &dyn Catalog) -> Result<Option<VersionId>, CatalogError> {
    let mut nulls = records.iter().map(|seen| &seen.record).filter(|r| r.null && r.kind != Kind::Removal);
    let Some(any) = nulls.next() else { return Ok(None) };
    let row = catalog.version(&any.bucket, &any.key, None)?.map(|row| row.record.version);
    Ok(row.filter(|version| any.version == *version || nulls.any(|r| r.version == *version)))
}
