//! What the manifests of a key say was removed.

use std::collections::BTreeMap;

use crate::record::{Kind, Record, VersionId};

/// The removals among the records of a key.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    /// Versions removed by name, each up to which revision: what was revised since then nobody removed.
    erased: BTreeMap<VersionId, u64>,
    /// Null versions up to this one were removed with a later one.
    nulls: VersionId,
}

impl Removals {
    /// What these records remove; those that say something else are passed over.
    pub(crate) fn of<'a>(records: impl Iterator<Item = &'a Record>) -> Self {
        let mut all = Self::default();
        for record in records.filter(|record| record.kind == Kind::Erased) {
            let revision = all.erased.entry(record.erases).or_default();
            *revision = record.revision.max(*revision);
            if record.null {
                all.nulls = record.version.max(all.nulls);
            }
        }
        all
    }

    /// Whether they remove this version, as it is in this record.
    pub(crate) fn remove(&self, record: &Record) -> bool {
        match self.erased.get(&record.version) {
            Some(revision) => record.revision <= *revision,
            None => record.null && record.version <= self.nulls,
        }
    }
}
