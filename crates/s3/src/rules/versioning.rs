//! Whether a bucket keeps older versions.

use catalog::object_manifest::ObjectManifest;
use s3s::dto::BucketVersioningStatus;

use super::attributes::Attributes;

/// The attribute of a bucket that says whether it keeps versions.
pub(crate) const VERSIONING: &str = "versioning";

/// What becomes of the older versions of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Versioning {
    /// They are replaced.
    Never,
    /// They are kept.
    Enabled,
    /// Those from before are kept.
    Suspended,
}

impl Versioning {
    pub(crate) fn of(bucket: &ObjectManifest) -> Self {
        match bucket.attributes.get(VERSIONING).map(String::as_str) {
            Some(BucketVersioningStatus::ENABLED) => Self::Enabled,
            Some(BucketVersioningStatus::SUSPENDED) => Self::Suspended,
            _ => Self::Never,
        }
    }
}

/// Makes a bucket keep versions.
pub(crate) fn enable(attributes: &mut Attributes) {
    attributes.insert(VERSIONING.to_owned(), BucketVersioningStatus::ENABLED.to_owned());
}
