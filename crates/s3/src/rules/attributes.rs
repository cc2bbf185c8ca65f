//! Attributes: what is kept of an object beside its bytes, by the names that they have on the wire.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use catalog::object_manifest::ObjectManifest;
use http::HeaderValue;
use s3s::dto::{ETag, Initiator, Metadata, Owner, Timestamp, TimestampFormat};

/// The attribute with the upload id of an object, so that a repeated completion is answered like the first.
pub(crate) const UPLOAD: &str = "upload-id";

/// The attributes of an object or a bucket, by name.
pub(crate) type Attributes = BTreeMap<String, String>;

/// User metadata is kept under this and its own name.
pub(crate) const META: &str = "x-amz-meta-";
/// The type of an object's checksum: `FULL_OBJECT` or `COMPOSITE`.
pub(crate) const CHECKSUM_TYPE: &str = "x-amz-checksum-type";

/// An attribute of a version.
pub(crate) fn get(record: &ObjectManifest, name: &str) -> Option<String> {
    record.attributes.get(name).cloned()
}

/// The type of the content; S3 has a default.
pub(crate) fn content_type(record: &ObjectManifest) -> Option<String> {
    Some(get(record, "content-type").unwrap_or_else(|| "binary/octet-stream".to_owned()))
}

/// When the object expires for caches.
pub(crate) fn expires(record: &ObjectManifest) -> Option<Timestamp> {
    Timestamp::parse(TimestampFormat::HttpDate, record.attributes.get("expires")?).ok()
}

/// User metadata by its own names.
pub(crate) fn metadata(record: &ObjectManifest) -> Option<Metadata> {
    let found: Metadata = record
        .attributes
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(META)?.to_owned(), value.clone())))
        .collect();
    (!found.is_empty()).then_some(found)
}

/// The entity tag of a version.
pub(crate) fn etag(record: &ObjectManifest) -> Option<ETag> {
    Some(ETag::Strong(record.etag.clone()))
}

/// The user whose bucket this is.
pub(crate) fn owner(bucket: &ObjectManifest) -> &str {
    bucket.attributes.get("owner").map_or("", String::as_str)
}

/// When a version was put. S3 counts whole seconds where it compares, and so do HTTP's dates.
pub(crate) fn modified(record: &ObjectManifest) -> Timestamp {
    time(record.version.micros())
}

/// The header that says when a version was put.
pub(crate) fn last_modified(record: &ObjectManifest) -> Option<HeaderValue> {
    let mut text = vec![];
    modified(record).format(TimestampFormat::HttpDate, &mut text).ok()?;
    HeaderValue::from_bytes(&text).ok()
}

/// A time as S3 has it.
pub(crate) fn time(micros: u64) -> Timestamp {
    Timestamp::from(UNIX_EPOCH + Duration::from_micros(micros))
}

/// Whole seconds, which is what HTTP's dates have.
pub(crate) fn seconds(time: &Timestamp) -> i64 {
    time::OffsetDateTime::from(time.clone()).unix_timestamp()
}

/// The id of a version as lists have it.
pub(crate) fn version_id(record: &ObjectManifest) -> String {
    version_header(record).unwrap_or_else(|| "null".to_owned())
}

/// The id of a version as the answer about it has it. The null version has none there.
pub(crate) fn version_header(record: &ObjectManifest) -> Option<String> {
    (!record.null).then(|| record.version.to_string())
}

/// A user as answers name the owner of something.
pub(crate) fn owner_dto(name: &str) -> Owner {
    Owner { display_name: Some(name.to_owned()), id: Some(name.to_owned()) }
}

/// A user as answers name whoever began an upload.
pub(crate) fn initiator_dto(name: &str) -> Initiator {
    Initiator { display_name: Some(name.to_owned()), id: Some(name.to_owned()) }
}
