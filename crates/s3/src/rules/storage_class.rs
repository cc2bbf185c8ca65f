//! Storage classes: names for how objects are kept. The operator says which there are and what each means. Whoever puts an
//! object asks for one with a header; else a tag of the bucket says which, or it is `STANDARD`.

use std::collections::BTreeMap;

use catalog::object_manifest::ObjectManifest;
use protocol::redundancy::Redundancy;
use s3s::{S3Result, s3_error};

use super::tags;

/// The class of what asks for none. It is how the cluster map says, unless the operator says otherwise.
pub(crate) const STANDARD: &str = "STANDARD";
/// The attribute with the class of an object or an upload that is not [`STANDARD`], and the header that asks for one.
pub(crate) const STORAGE_CLASS: &str = "x-amz-storage-class";
/// The tag of a bucket that says which class its new objects have.
pub(crate) const DEFAULT_CLASS: &str = "reservoir:storage-class";

/// The classes of a gateway, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageClasses(BTreeMap<String, Redundancy>);

impl StorageClasses {
    /// These, beside [`STANDARD`], which may be one of them.
    ///
    /// # Errors
    /// When a name is none: other than capitals, digits and `_`, or longer than 64 of them.
    pub fn new(classes: BTreeMap<String, Redundancy>) -> Result<Self, String> {
        let is_name = |name: &str| {
            let good = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
            (1..=64).contains(&name.len()) && name.bytes().all(good)
        };
        match classes.keys().find(|name| !is_name(name)) {
            Some(name) => Err(format!("the storage class {name:?}: a name is of capitals, digits and _, at most 64")),
            None => Ok(Self(classes)),
        }
    }

    /// What each means, by its name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Redundancy)> {
        self.0.iter().map(|(name, redundancy)| (name.as_str(), *redundancy))
    }

    /// Whether objects can be put in this class.
    pub(crate) fn has(&self, name: &str) -> bool {
        name == STANDARD || self.0.contains_key(name)
    }

    /// The error for a class that there is not.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn check(&self, name: &str) -> S3Result<()> {
        if self.has(name) {
            return Ok(());
        }
        let known: Vec<&str> = self.0.keys().map(String::as_str).filter(|name| *name != STANDARD).collect();
        let known = [&[STANDARD], &known[..]].concat().join(", ");
        Err(s3_error!(InvalidStorageClass, "the storage class {name:?} is none of this gateway's: {known}"))
    }

    /// Gives a new object, or an upload of one, the class that was asked for, or that of its bucket.
    ///
    /// # Errors
    /// When there is no such class.
    pub(crate) fn apply(
        &self,
        asked: Option<&str>,
        bucket: &ObjectManifest,
        record: &mut ObjectManifest,
    ) -> S3Result<()> {
        let of_bucket = || tags::value(bucket, DEFAULT_CLASS);
        let name = asked.map(str::to_owned).or_else(of_bucket).unwrap_or_else(|| STANDARD.to_owned());
        self.check(&name)?;
        record.set_redundancy(self.0.get(&name).copied());
        if name == STANDARD {
            record.attributes.remove(STORAGE_CLASS);
        } else {
            record.attributes.insert(STORAGE_CLASS.to_owned(), name);
        }
        Ok(())
    }
}

/// The class of an object or an upload.
pub(crate) fn of(record: &ObjectManifest) -> String {
    other_than_standard(record).unwrap_or_else(|| STANDARD.to_owned())
}

/// The class of an object, which S3 leaves out of answers when it is [`STANDARD`].
pub(crate) fn other_than_standard(record: &ObjectManifest) -> Option<String> {
    record.attributes.get(STORAGE_CLASS).cloned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use catalog::object_manifest::{Kind, VersionId};
    use s3s::S3ErrorCode;

    use super::super::tags::TAGS;
    use super::*;

    fn record(kind: Kind) -> ObjectManifest {
        ObjectManifest::new(kind, "b", "", VersionId::default())
    }

    #[test]
    fn the_request_counts_before_the_bucket_and_the_bucket_before_standard() {
        let (one, two) = (Redundancy::copies(1).unwrap(), Redundancy::copies(2).unwrap());
        let classes = BTreeMap::from([("ONEZONE_IA".to_owned(), one), ("REDUCED_REDUNDANCY".to_owned(), two)]);
        let classes = StorageClasses::new(classes).unwrap();
        let (plain, mut tagged, mut object) = (record(Kind::Bucket), record(Kind::Bucket), record(Kind::Object));
        tagged.attributes.insert(TAGS.to_owned(), "reservoir%3Astorage-class=ONEZONE_IA".to_owned());
        let mut kept = |asked, bucket: &ObjectManifest| {
            classes
                .apply(asked, bucket, &mut object)
                .map(|()| (of(&object), object.redundancy()))
                .map_err(|e| e.code().clone())
        };
        assert_eq!(kept(None, &tagged), Ok(("ONEZONE_IA".to_owned(), Some(one))));
        assert_eq!(kept(Some("REDUCED_REDUNDANCY"), &tagged), Ok(("REDUCED_REDUNDANCY".to_owned(), Some(two))));
        assert_eq!(kept(Some(STANDARD), &tagged), Ok((STANDARD.to_owned(), None)));
        assert_eq!(kept(None, &plain), Ok((STANDARD.to_owned(), None)));
        assert_eq!(kept(Some("GLACIER"), &plain), Err(S3ErrorCode::InvalidStorageClass));
        let standard = StorageClasses::new(BTreeMap::from([(STANDARD.to_owned(), two)])).unwrap();
        standard.apply(None, &plain, &mut object).unwrap();
        assert_eq!((other_than_standard(&object), object.redundancy()), (None, Some(two)));
        assert!(StorageClasses::new(BTreeMap::from([("cold".to_owned(), one)])).is_err());
    }
}
