//! Which manifests are those of changes that were begun and never answered. `docs/cleaning.md` has the argument.

use std::collections::BTreeMap;

use crate::catalog::{Catalog, CatalogError, Row, Run};
use crate::record::{Kind, LEAVING, Record};
use crate::runs::RETURNED;

/// What a catalog knows of the runs whose manifests there are.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    runs: BTreeMap<u64, Run>,
    /// The latest change that the catalog should know the run of, and does not, or not how far it came: a catalog that is
    /// older than the manifests. 0 when there is none.
    beyond: u64,
}

impl Begun {
    /// What this catalog knows now.
    pub(crate) fn of(catalog: &dyn Catalog) -> Result<Self, CatalogError> {
        let runs: BTreeMap<u64, Run> = catalog.runs()?.into_iter().map(|run| (run.id, run)).collect();
        let beyond = runs.get(&RETURNED).map_or(0, |run| run.until);
        Ok(Self { runs, beyond })
    }

    /// Takes note of a manifest. All must be seen before [`Begun::is_known`] is asked.
    pub(crate) fn see(&mut self, record: &Record) {
        let begun = record.begun();
        let known = self.runs.get(&begun.run()).is_some_and(|run| begun.micros() <= run.until);
        if !known {
            self.beyond = self.beyond.max(begun.micros());
        }
    }

    /// The run that began the change of this record, when it did not say that the change is settled.
    pub(crate) fn open_in(&self, record: &Record) -> Option<&Run> {
        let begun = record.begun();
        self.runs.get(&begun.run()).filter(|run| begun.micros() >= run.settled)
    }

    /// Whether the catalog knows all that became of this run: it is not older than something that came later.
    pub(crate) fn is_known(&self, run: u64) -> bool {
        self.runs.get(&run).is_some_and(|run| run.settled > self.beyond)
    }
}

/// Whether the catalog contradicts a manifest as it does before the change is made.
pub(crate) fn contradicts(catalog: &dyn Catalog, row: &Row) -> Result<bool, CatalogError> {
    let record = &row.record;
    let named = match record.kind {
        Kind::Object | Kind::Marker => version(catalog, record, record.version)?,
        Kind::Bucket => {
            let row = catalog.bucket(&record.bucket)?;
            // Its removal was made, and broken off before the manifest that says so.
            if row.is_none() && record.attributes.contains_key(LEAVING) {
                return Ok(false);
            }
            row
        }
        Kind::Erased => {
            let erased = version(catalog, record, record.erases)?;
            return Ok(erased.is_some_and(|row| row.record.revision <= record.revision));
        }
        // It is stored when the catalog has made the change.
        Kind::BucketGone => return Ok(false),
    };
    Ok(named.is_none_or(|named| named.manifest != row.manifest))
}

/// What the catalog has of a version of this record's key.
pub(crate) fn version(
    catalog: &dyn Catalog,
    record: &Record,
    version: crate::record::VersionId,
) -> Result<Option<Row>, CatalogError> {
    let row = catalog.version(&record.bucket, &record.key, (!record.null).then_some(version))?;
    Ok(row.filter(|row| row.record.version == version))
}
