//! Versioning, and ListObjectVersions.

use catalog::object_manifest::{Kind, ObjectManifest};
use catalog::{Row, Start};
use s3s::dto::*;
use s3s::{S3Result, s3_error};

use super::list::{Listed, Query, common_prefixes, echoed, encoding, page, page_length};
use crate::rules::acl::object_owner;
use crate::rules::attributes::{etag, modified, version_id};
use crate::rules::caller::Caller;
use crate::rules::error;
use crate::rules::storage_class;
use crate::rules::versioning::VERSIONING;
use crate::state::State;

pub(crate) fn put_bucket_versioning(
    state: &State,
    caller: &Caller,
    input: PutBucketVersioningInput,
) -> S3Result<PutBucketVersioningOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    if input.versioning_configuration.mfa_delete.is_some_and(|mfa| mfa.as_str() != MFADelete::DISABLED) {
        return Err(s3_error!(NotImplemented, "MFA delete is not supported"));
    }
    let status = input.versioning_configuration.status;
    let status = status.ok_or_else(|| s3_error!(IllegalVersioningConfigurationException, "no status"))?;
    let status = status.as_str().to_owned();
    if ![BucketVersioningStatus::ENABLED, BucketVersioningStatus::SUSPENDED].contains(&status.as_str()) {
        return Err(s3_error!(MalformedXML, "{status:?} is no status of versioning"));
    }
    state.set_bucket(&bucket, VERSIONING, Some(status))?;
    Ok(PutBucketVersioningOutput::default())
}

pub(crate) fn get_bucket_versioning(
    state: &State,
    caller: &Caller,
    input: GetBucketVersioningInput,
) -> S3Result<GetBucketVersioningOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let status = bucket.record.attributes.get(VERSIONING).cloned().map(BucketVersioningStatus::from);
    Ok(GetBucketVersioningOutput { status, ..GetBucketVersioningOutput::default() })
}

pub(crate) fn list_object_versions(
    state: &State,
    caller: &Caller,
    input: ListObjectVersionsInput,
) -> S3Result<ListObjectVersionsOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let most = page_length("max-keys", input.max_keys)?;
    let encode = encoding(input.encoding_type.as_ref())?;
    let query = Query::new(input.prefix.as_deref(), input.delimiter.as_deref(), input.key_marker.as_deref(), most);
    let start = first_version(state, &bucket, &query, input.version_id_marker.as_deref())?;
    let name = &bucket.record.bucket;
    let page = page(&query, start, |start, limit| state.objects.catalog().versions(name, start, limit))?;
    let owner = |record: &ObjectManifest| object_owner(record, &bucket.record);
    let (mut versions, mut markers) = (vec![], vec![]);
    for (row, newest) in page.rows {
        let record = row.record;
        if record.kind == Kind::Marker {
            markers.push(DeleteMarkerEntry {
                is_latest: Some(newest),
                last_modified: Some(modified(&record)),
                owner: Some(owner(&record)),
                version_id: Some(version_id(&record)),
                key: Some(encode(record.key)),
            });
        } else {
            versions.push(ObjectVersion {
                e_tag: etag(&record),
                is_latest: Some(newest),
                last_modified: Some(modified(&record)),
                owner: Some(owner(&record)),
                size: i64::try_from(record.size).ok(),
                storage_class: Some(storage_class::of(&record).into()),
                version_id: Some(version_id(&record)),
                key: Some(encode(record.key)),
                ..ObjectVersion::default()
            });
        }
    }
    let (next_key, next_version) = page.next.unzip();
    Ok(ListObjectVersionsOutput {
        common_prefixes: Some(common_prefixes(page.prefixes, encode)),
        delete_markers: Some(markers),
        delimiter: echoed(input.delimiter, encode),
        encoding_type: input.encoding_type,
        is_truncated: Some(next_key.is_some()),
        key_marker: Some(encode(input.key_marker.unwrap_or_default())),
        max_keys: Some(most as i32),
        name: Some(input.bucket),
        next_key_marker: next_key.map(encode),
        next_version_id_marker: next_version.flatten(),
        prefix: Some(encode(input.prefix.unwrap_or_default())),
        version_id_marker: Some(input.version_id_marker.unwrap_or_default()),
        versions: Some(versions),
        ..ListObjectVersionsOutput::default()
    })
}

/// Where a list of versions begins.
fn first_version(state: &State, bucket: &Row, query: &Query, version: Option<&str>) -> S3Result<Start> {
    let key = &query.after;
    let version = version.filter(|text| !text.is_empty());
    if version.is_some() && key.is_empty() {
        return Err(s3_error!(InvalidArgument, "A version-id marker cannot be specified without a key marker."));
    }
    let id = match version {
        None => return Ok(query.start()),
        Some("null") => {
            let row = state.objects.catalog().version(&bucket.record.bucket, key, None).map_err(error::catalog)?;
            row.map(|row| row.record.version)
        }
        Some(text) => Some(text.parse().map_err(|()| s3_error!(InvalidArgument, "Invalid version id specified"))?),
    };
    Ok(id.map_or_else(|| query.start(), |id| Start::Version(key.clone().into_bytes(), id)))
}

impl Listed for (Row, bool) {
    fn key(&self) -> &str {
        &self.0.record.key
    }

    fn mark(&self) -> (Start, Option<String>) {
        let record = &self.0.record;
        (Start::Version(record.key.clone().into_bytes(), record.version), Some(version_id(record)))
    }
}
