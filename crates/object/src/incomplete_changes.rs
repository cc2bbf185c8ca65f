//! Which manifests are those of changes that were begun and not made. `docs/cleaning.md` has the argument.

use std::collections::BTreeMap;

use catalog::object_manifest::{Kind, LEAVING, ObjectManifest, VersionId};
use catalog::{Catalog, CatalogError, RETURNED, Row, Run};

/// What a catalog knows of the runs whose manifests there are.
#[derive(Debug, Default)]
pub(crate) struct IncompleteChanges {
    runs: BTreeMap<u64, Run>,
    /// The latest change that the catalog should know the run of, and does not, or not how far it came: a catalog that is
    /// older than the manifests. 0 when there is none.
    beyond: u64,
}

impl IncompleteChanges {
    /// What this catalog knows now.
    pub(crate) fn of(catalog: &dyn Catalog) -> Result<Self, CatalogError> {
        let runs: BTreeMap<u64, Run> = catalog.runs()?.into_iter().map(|run| (run.id, run)).collect();
        let beyond = runs.get(&RETURNED).map_or(0, |run| run.until);
        Ok(Self { runs, beyond })
    }

    /// Takes note of a manifest. All must be seen before [`IncompleteChanges::is_known`] is asked.
    pub(crate) fn note(&mut self, record: &ObjectManifest) {
        let begun = record.begun();
        let known = self.runs.get(&begun.run()).is_some_and(|run| begun.micros() <= run.until);
        if !known {
            self.beyond = self.beyond.max(begun.micros());
        }
    }

    /// The run that began the change of this record, when it did not say that the change is settled.
    pub(crate) fn open_in(&self, record: &ObjectManifest) -> Option<&Run> {
        let begun = record.begun();
        self.runs.get(&begun.run()).filter(|run| begun.micros() >= run.settled)
    }

    /// Whether the catalog knows all that became of this run: it is not older than something that came later.
    pub(crate) fn is_known(&self, run: u64) -> bool {
        self.runs.get(&run).is_some_and(|run| run.settled > self.beyond)
    }

    /// Whether this began after all that the catalog should know and does not.
    pub(crate) fn is_later(&self, record: &ObjectManifest) -> bool {
        record.begun().micros() > self.beyond
    }
}

/// What the manifest of a change is about.
pub(crate) enum About<'a> {
    Bucket(&'a str),
    Version(VersionId),
}

/// Whether what the catalog has of it contradicts a manifest as it does before the change is made. `find` looks that up.
pub(crate) fn contradicted<E>(row: &Row, find: impl FnOnce(About<'_>) -> Result<Option<Row>, E>) -> Result<bool, E> {
    let record = &row.record;
    let about = match record.kind {
        Kind::Object | Kind::Marker => About::Version(record.version),
        Kind::Bucket => About::Bucket(&record.bucket),
        Kind::Removal => {
            let erased = find(About::Version(record.removes))?;
            return Ok(erased.is_some_and(|row| row.record.revision <= record.revision));
        }
        // It is stored when the catalog has made the change.
        Kind::BucketRemoval => return Ok(false),
    };
    Ok(find(about)?.is_none_or(|found| found.manifest != row.manifest))
}

/// Whether the catalog contradicts a manifest so that cleaning may take it.
pub(crate) fn contradicts(catalog: &dyn Catalog, row: &Row) -> Result<bool, CatalogError> {
    let record = &row.record;
    contradicted(row, |about| match about {
        About::Version(id) => version(catalog, record, id),
        About::Bucket(name) => {
            let found = catalog.bucket(name)?;
            // Its removal was made, and broken off before the manifest that says so.
            let is_left = found.is_none() && record.attributes.contains_key(LEAVING);
            Ok(if is_left { Some(row.clone()) } else { found })
        }
    })
}

/// What the catalog has of a version of this record's key.
pub(crate) fn version(
    catalog: &dyn Catalog,
    record: &ObjectManifest,
    version: VersionId,
) -> Result<Option<Row>, CatalogError> {
    let row = catalog.version(&record.bucket, &record.key, (!record.null).then_some(version))?;
    Ok(row.filter(|row| row.record.version == version))
}
