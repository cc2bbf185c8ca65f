//! Who owns the objects of a bucket, whether its access lists count, and what it keeps from the public.

use catalog::object_manifest::ObjectManifest;
use s3s::dto::PublicAccessBlockConfiguration;
use s3s::{S3Result, s3_error};
use serde::{Deserialize, Serialize};

/// The attribute of a bucket that says who owns its objects.
pub(crate) const OWNERSHIP: &str = "ownership";
/// The attribute of a bucket that says what it keeps from the public.
pub(crate) const BLOCK: &str = "public-access-block";

/// Who owns the objects of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// Whoever owns the bucket. Access lists count for nothing.
    Enforced,
    /// Whoever owns the bucket, of objects that were put for it; else who put them.
    Preferred,
    /// Who put them.
    Writer,
    /// The same, as nobody says otherwise.
    Unsaid,
}

impl Ownership {
    const NAMES: [(&'static str, Self); 4] = [
        ("BucketOwnerEnforced", Self::Enforced),
        ("BucketOwnerPreferred", Self::Preferred),
        ("ObjectWriter", Self::Writer),
        // No request has this name.
        ("", Self::Unsaid),
    ];

    /// That of a bucket. A bucket that was made says nothing, and is its owner's.
    pub(crate) fn of(bucket: &ObjectManifest) -> Self {
        bucket.attributes.get(OWNERSHIP).map_or(Self::Enforced, |name| Self::named(name).unwrap_or(Self::Enforced))
    }

    /// The one of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, ownership)| *ownership)
    }

    pub(crate) fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }

    /// Whether access lists count.
    pub(crate) fn has_lists(self) -> bool {
        self != Self::Enforced
    }
}

/// What a bucket keeps from the public, whatever its policy and its access lists say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PublicBlock {
    /// No list for everybody can be put.
    pub(crate) new_lists: bool,
    /// Lists for everybody count for nothing.
    pub(crate) lists: bool,
    /// No policy for everybody can be put.
    pub(crate) new_policies: bool,
    /// A bucket with a policy for everybody is for its owner alone.
    pub(crate) policies: bool,
}

impl PublicBlock {
    /// That of a bucket, if it has one.
    pub(crate) fn of(bucket: &ObjectManifest) -> S3Result<Option<Self>> {
        let read = |text: &String| serde_json::from_str(text);
        let block = bucket.attributes.get(BLOCK).map(read).transpose();
        // What cannot be read must not let anybody in.
        block.map_err(|_| s3_error!(InternalError, "the bucket's public access block cannot be read"))
    }

    /// The same, where none keeps nothing from anybody.
    pub(crate) fn in_force(bucket: &ObjectManifest) -> S3Result<Self> {
        Self::of(bucket).map(Option::unwrap_or_default)
    }

    pub(crate) fn from_dto(asked: &PublicAccessBlockConfiguration) -> Self {
        Self {
            new_lists: asked.block_public_acls == Some(true),
            lists: asked.ignore_public_acls == Some(true),
            new_policies: asked.block_public_policy == Some(true),
            policies: asked.restrict_public_buckets == Some(true),
        }
    }

    pub(crate) fn to_dto(self) -> PublicAccessBlockConfiguration {
        PublicAccessBlockConfiguration {
            block_public_acls: Some(self.new_lists),
            block_public_policy: Some(self.new_policies),
            ignore_public_acls: Some(self.lists),
            restrict_public_buckets: Some(self.policies),
        }
    }
}
