//! What a catalog knows.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use crate::incomplete_changes::{About, IncompleteChanges, contradicted};
use catalog::{Catalog, CatalogError, Row, Start, all_buckets};

/// Versions of a catalog that are read at once.
const PAGE: usize = 1_000;

/// All rows of a catalog, and its runs.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) begun: IncompleteChanges,
    pub(super) buckets: BTreeMap<String, Row>,
    /// By bucket and key, oldest first.
    pub(super) versions: BTreeMap<(String, String), Vec<Row>>,
    /// Keys whose last version is not the one that the catalog takes for the newest.
    pub(super) disordered: BTreeSet<(String, String)>,
}

impl Known {
    /// Reads it. The runs come first: what is begun meanwhile counts as under way.
    pub(super) fn read(catalog: &dyn Catalog) -> Result<Self, CatalogError> {
        let mut known = Self { begun: IncompleteChanges::of(catalog)?, ..Self::default() };
        for row in all_buckets(catalog) {
            let row = row?;
            let bucket = row.record.bucket.clone();
            let mut start = Start::Key(vec![]);
            loop {
                let page = catalog.versions(&bucket, &start, PAGE)?;
                let Some((last, _)) = page.last() else { break };
                start = Start::Version(last.record.key.clone().into_bytes(), last.record.version);
                for (row, newest) in page {
                    let name = (bucket.clone(), row.record.key.clone());
                    let rows = known.versions.entry(name.clone()).or_default();
                    if newest != rows.is_empty() {
                        known.disordered.insert(name);
                    }
                    rows.push(row);
                }
            }
            known.buckets.insert(bucket, row);
        }
        known.versions.values_mut().for_each(|rows| rows.reverse());
        Ok(known)
    }

    fn of(&self, name: &(String, String)) -> &[Row] {
        self.versions.get(name).map_or(&[], Vec::as_slice)
    }

    /// The versions of the key of this row.
    pub(super) fn rows_of(&self, row: &Row) -> impl Iterator<Item = &Row> {
        self.of(&(row.record.bucket.clone(), row.record.key.clone())).iter()
    }

    /// All rows.
    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.buckets.values().chain(self.versions.values().flatten())
    }

    /// Whether it knows what became of the change of this manifest, and that is not what the manifest says.
    pub(super) fn denies(&self, row: &Row) -> bool {
        let record = &row.record;
        if !self.begun.is_known(record.begun().run()) {
            return false;
        }
        let found = contradicted(row, |about| {
            let row = match about {
                About::Bucket(name) => self.buckets.get(name),
                About::Version(version) => {
                    self.rows_of(row).find(|row| row.record.version == version && row.record.null == record.null)
                }
            };
            Ok::<_, Infallible>(row.cloned())
        });
        found == Ok(true)
    }
}
