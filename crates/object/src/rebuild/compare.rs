//! A catalog beside the manifests: what is different, and what makes it right.

use std::collections::{BTreeMap, BTreeSet};

use protocol::id::ChunkId;

use super::known::Known;
use super::{Manifests, RebuildError, Standing};
use catalog::object_manifest::{Kind, LEAVING, ObjectManifest, VersionId};
use catalog::{Amends, Catalog, Row};

/// How a catalog compares with the manifests.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// What is different, a line each.
    pub differences: Vec<String>,
    /// How many of the differences it takes an [`Amendment`] to mend that keeps what the catalog knows.
    pub amendable: usize,
    /// How many of the differences are lost bytes and manifests, which nothing brings back.
    pub lost: usize,
    /// Left by changes that were not made, or are under way, a line each. Nothing of it counts, and cleaning takes it.
    pub harmless: Vec<String>,
    /// What could not be used, and is neither of both as far as is known, a line each.
    pub remarks: Vec<String>,
}

/// What is believed where a catalog and the manifests differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// The catalog, of all changes whose run it knows; of others the manifests.
    Catalog,
    /// The manifests, as if there were no catalog.
    Manifests,
}

/// What makes a catalog say what is believed; a line for each version and bucket that it changes.
#[derive(Debug, Default)]
pub struct Amendment {
    /// What the catalog did not know of.
    pub adds: Vec<String>,
    /// What it knows to be removed, or never made, unless it lost the row.
    pub brings_back: Vec<String>,
    /// What is no more.
    pub removes: Vec<String>,
    /// What is otherwise.
    pub changes: Vec<String>,
    /// What could not be used, a line each.
    pub remarks: Vec<String>,
    /// Buckets and versions then.
    pub counts: (usize, usize),
    /// The changes.
    pub amends: Amends,
}

/// What of a name, and of which version of it: a bucket has neither key nor version.
type Name = (String, String, Option<VersionId>);

/// What the catalog, and what something else says of each name that either has.
fn beside<'a>(known: &'a Known, others: &[&Standing<'a>]) -> BTreeMap<Name, Vec<Option<&'a Row>>> {
    let mut all: BTreeMap<Name, Vec<Option<&Row>>> = BTreeMap::new();
    let mut note = |at: usize, row: &'a Row| {
        let ObjectManifest { bucket, key, version, .. } = &row.record;
        let name = (bucket.clone(), key.clone(), (!key.is_empty()).then_some(*version));
        all.entry(name).or_insert_with(|| vec![None; others.len() + 1])[at] = Some(row);
    };
    known.rows().for_each(|row| note(0, row));
    for (at, standing) in others.iter().enumerate() {
        standing.rows().for_each(|row| note(at + 1, row));
    }
    all
}

impl Manifests {
    /// Compares a catalog with them.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn compare(&self, catalog: &dyn Catalog) -> Result<Comparison, RebuildError> {
        let known = self.known(catalog)?;
        let denied = self.denied(&known);
        let open = self.open(&known, &denied);
        let right = self.standing(&denied, &self.kept(&known));
        let manifests = self.standing(&open, &[]);
        let (mut amendable, mut denies, mut lost) = (vec![], vec![], vec![]);
        for (name, rows) in beside(&known, &[&right, &manifests]) {
            let [row, right, manifest] = rows[..] else { continue };
            let is_left = |row: &Row| manifests.is_left(row);
            if row != right && !(row.is_none() && right.is_some_and(is_left)) {
                amendable.push(format!("{}: {}", describe(&name), difference(right, row)));
                continue;
            }
            match (row, manifest) {
                (Some(row), _) if self.unfinished.contains_key(&row.manifest) => {
                    let chunk = self.unfinished[&row.manifest].1;
                    let version = row.record.version;
                    lost.push(format!("{}: the bytes of version {version} are lost ({chunk})", describe(&name)));
                }
                (row, manifest) if row == manifest => {}
                (Some(row), _) if !self.has(row) => lost.push(format!(
                    "{}: the manifest of version {} is lost ({})",
                    describe(&name),
                    row.record.version,
                    row.manifest
                )),
                (None, Some(manifest)) if is_left(manifest) => {}
                (None, Some(manifest)) => denies.push(format!(
                    "{}: version {} has a manifest and no row, in a run that the catalog knows",
                    describe(&name),
                    manifest.record.version
                )),
                _ => denies.push(format!("{}: {}", describe(&name), difference(manifest, row))),
            }
        }
        let disordered = known.disordered.iter();
        amendable.extend(disordered.map(|(bucket, key)| format!("{bucket}/{key}: another version is the newest")));
        let (counts, lost_count) = (amendable.len(), lost.len());
        let differences = [amendable, denies, lost].concat();
        let (harmless, remarks) = (self.harmless(&known, &open, &manifests), self.remarks_of(&known, &right));
        Ok(Comparison { differences, amendable: counts, lost: lost_count, harmless, remarks })
    }

    /// What makes this catalog right.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn amendment(&self, catalog: &dyn Catalog, authority: Authority) -> Result<Amendment, RebuildError> {
        let known = self.known(catalog)?;
        let (denied, kept) = match authority {
            Authority::Catalog => (self.denied(&known), self.kept(&known)),
            Authority::Manifests => (BTreeSet::new(), vec![]),
        };
        let right = self.standing(&denied, &kept);
        let mut all = Amendment { counts: right.counts(), ..Amendment::default() };
        let (mut buckets, mut keys) = (BTreeSet::new(), known.disordered.clone());
        for (name, rows) in beside(&known, &[&right]) {
            let [row, right] = rows[..] else { continue };
            if row == right {
                continue;
            }
            let line = describe_row(&name, right.or(row));
            match (row, right) {
                (None, Some(right)) if known.denies(right) => all.brings_back.push(line),
                (None, Some(_)) => all.adds.push(line),
                (Some(_), None) => all.removes.push(line),
                _ => all.changes.push(format!("{}: {}", describe(&name), difference(right, row))),
            }
            let (bucket, key, version) = name;
            if version.is_none() {
                buckets.insert(bucket)
            } else {
                keys.insert((bucket, key))
            };
        }
        let disordered = known.disordered.iter();
        all.changes.extend(disordered.map(|(bucket, key)| format!("{bucket}/{key}: another version is the newest")));
        all.remarks = self.remarks_of(&known, &right);
        let bucket = |name: String| {
            let row = right.buckets.get(name.as_str()).map(|row| (*row).clone());
            (name, row)
        };
        let versions = |(bucket, key): (String, String)| {
            let rows = right.versions.get(&(bucket.as_str(), key.as_str()));
            let rows = rows.into_iter().flatten().map(|row| (*row).clone()).collect();
            (bucket, key, rows)
        };
        all.amends = Amends {
            buckets: buckets.into_iter().map(bucket).collect(),
            keys: keys.into_iter().map(versions).collect(),
            removed: self.removals(&denied),
        };
        Ok(all)
    }

    fn known(&self, catalog: &dyn Catalog) -> Result<Known, RebuildError> {
        let mut known = Known::read(catalog)?;
        self.rows().for_each(|row| known.begun.note(&row.record));
        Ok(known)
    }

    /// The manifests that the catalog knows better than: what they say was not made, or is no more.
    fn denied(&self, known: &Known) -> BTreeSet<ChunkId> {
        self.rows().filter(|row| known.denies(row)).map(|row| row.manifest).collect()
    }

    /// Of these the ones whose changes were not settled: they were not made, or are under way.
    fn open(&self, known: &Known, denied: &BTreeSet<ChunkId>) -> BTreeSet<ChunkId> {
        let is_open = |row: &&Row| {
            // The removal of this bucket was made, and broken off before the manifest that says so.
            let is_left =
                row.record.attributes.contains_key(LEAVING) && !known.buckets.contains_key(&row.record.bucket);
            denied.contains(&row.manifest) && known.begun.open_in(&row.record).is_some() && !is_left
        };
        self.rows().filter(is_open).map(|row| row.manifest).collect()
    }

    /// The rows that stay whatever the manifests lack: the catalog knows what became of their runs, or their bytes are what is
    /// missing. A catalog that is older than the manifests may have others that were removed since, and cleaned away.
    fn kept<'a>(&self, known: &'a Known) -> Vec<&'a Row> {
        let stays = |row: &&Row| {
            let is_known = || known.begun.is_known(row.record.begun().run()) || known.begun.is_later(&row.record);
            self.unfinished.contains_key(&row.manifest) || is_known() && !self.has(row)
        };
        known.rows().filter(stays).collect()
    }

    /// The leftovers of changes that were begun and not made: only what would count if they had been.
    fn harmless(&self, known: &Known, open: &BTreeSet<ChunkId>, standing: &Standing<'_>) -> Vec<String> {
        let without = self.standing(&BTreeSet::new(), &[]);
        let stands: BTreeSet<ChunkId> = without.rows().map(|row| row.manifest).collect();
        let homeless: BTreeSet<(&str, &str)> =
            without.homeless.iter().copied().filter(|name| !standing.homeless.contains(name)).collect();
        let counts = |row: &&Row| {
            let name = (row.record.bucket.as_str(), row.record.key.as_str());
            row.record.kind == Kind::Removal || homeless.contains(&name) || stands.contains(&row.manifest)
        };
        let begun = self.records.values().flatten().filter(|row| open.contains(&row.manifest)).filter(counts);
        let unfinished = self.unfinished.values().map(|(row, _)| row);
        let has_row = |row: &Row| known.rows_of(row).any(|known| known.record.version == row.record.version);
        let unfinished =
            unfinished.filter(|row| !has_row(row) && (open.contains(&row.manifest) || self.is_removed(row)));
        begun.chain(unfinished).map(left).collect()
    }

    /// What the catalog says nothing of, and neither do they.
    fn remarks_of(&self, known: &Known, right: &Standing<'_>) -> Vec<String> {
        let has_row = |row: &Row| known.rows_of(row).any(|known| known.record.version == row.record.version);
        let unfinished = self.unfinished.values();
        // What is open in a known run was not made.
        let is_open = |row: &Row| known.denies(row) && known.begun.open_in(&row.record).is_some();
        let unfinished = unfinished.filter(|(row, _)| !is_open(row) && !has_row(row) && !self.is_removed(row));
        let unfinished = unfinished.map(|(row, chunk)| without_bytes(row, *chunk, known.denies(row)));
        let homeless = right.homeless.iter().copied().map(without_bucket);
        self.unreadable.iter().cloned().chain(unfinished).chain(homeless).collect()
    }
}

fn describe((bucket, key, version): &Name) -> String {
    if version.is_none() { format!("bucket {bucket}") } else { format!("{bucket}/{key}") }
}

fn describe_row(name: &Name, row: Option<&Row>) -> String {
    match (row, name.2) {
        (Some(row), Some(version)) => {
            let what = if row.record.kind == Kind::Marker { "delete marker" } else { "version" };
            format!("{}: {what} {version}", describe(name))
        }
        _ => describe(name),
    }
}

fn difference(manifest: Option<&Row>, row: Option<&Row>) -> String {
    let one = |row: Option<&Row>| row.map_or("nothing".to_owned(), |row| row.record.version.to_string());
    if manifest.is_some() && one(manifest) == one(row) {
        return format!("the manifests and the catalog have other attributes of version {}", one(row));
    }
    format!("the manifests have {}, the catalog has {}", one(manifest), one(row))
}

fn left(row: &Row) -> String {
    let ObjectManifest { kind, bucket, key, version, removes, .. } = &row.record;
    let (what, version) = match kind {
        Kind::Removal => ("the removal of version ", removes.to_string()),
        Kind::Bucket | Kind::BucketRemoval => ("a change of the bucket", String::new()),
        Kind::Object | Kind::Marker => ("version ", version.to_string()),
    };
    let slash = if key.is_empty() { "" } else { "/" };
    format!("{bucket}{slash}{key}: {what}{version} was not made, or is under way")
}

fn without_bytes(row: &Row, chunk: ChunkId, is_known: bool) -> String {
    let ObjectManifest { bucket, key, version, .. } = &row.record;
    let why = if is_known {
        "and no row in the catalog, which knows its run"
    } else {
        "and no catalog says whether it was acknowledged: a put that was broken off leaves the same"
    };
    format!("{bucket}/{key}: version {version} has no bytes ({chunk}), {why}")
}

fn without_bucket((bucket, key): (&str, &str)) -> String {
    format!("{bucket}/{key}: the bucket of this key was removed")
}
