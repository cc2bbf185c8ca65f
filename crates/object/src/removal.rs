//! What the manifests of a key say was removed.

use std::collections::BTreeMap;

use catalog::object_manifest::{Kind, ObjectManifest, VersionId};

/// The removals among the records of a key.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    /// Versions removed by name, each up to which revision: what was revised since then nobody removed.
    removed: BTreeMap<VersionId, u64>,
    /// Null versions were removed with a later one: which later one, and up to which. The furthest, and the furthest of
    /// another one, as a removal counts in this way for all but the version that it names.
    nulls: [(VersionId, VersionId); 2],
}

impl Removals {
    /// What these records remove; those that say something else are passed over.
    pub(crate) fn of<'a>(records: impl Iterator<Item = &'a ObjectManifest>) -> Self {
        let mut all = Self::default();
        for record in records.filter(|record| record.kind == Kind::Removal) {
            let revision = all.removed.entry(record.removes).or_default();
            *revision = record.revision.max(*revision);
            if record.null {
                all.with(record.removes, record.version);
            }
        }
        all
    }

    fn with(&mut self, removes: VersionId, until: VersionId) {
        let [first, second] = &mut self.nulls;
        if until > first.1 {
            if first.0 != removes {
                *second = *first;
            }
            *first = (removes, until);
        } else if removes != first.0 && until > second.1 {
            *second = (removes, until);
        }
    }

    /// Whether they remove this version, as it is in this record.
    pub(crate) fn remove(&self, record: &ObjectManifest) -> bool {
        let by_name = self.removed.get(&record.version).is_some_and(|revision| record.revision <= *revision);
        let with = |(removes, until): &(VersionId, VersionId)| *removes != record.version && record.version <= *until;
        by_name || record.null && self.nulls.iter().any(with)
    }
}
