//! PutObject and CopyObject.

use catalog::object_manifest::{KEY_BYTES, Kind, ObjectRecord, VersionId};
use catalog::{Condition, Refused, Row};
use object::objects::{Kept, Made, ObjectError};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use super::body::{Expected, Incoming};
use super::kept::respond;
use crate::rules::attributes::{self, Attributes, CHECKSUM_TYPE, UPLOAD};
use crate::rules::caller::Caller;
use crate::rules::checksums::{set_checksums, take_checksums};
use crate::rules::headers::{Headers, headers};
use crate::rules::lifecycle::{self, Rule};
use crate::rules::lock::{self, requested_lock};
use crate::rules::preconditions::preconditions;
use crate::rules::versioning::Versioning;
use crate::rules::{error, policy, tags};
use crate::state::State;
use crate::state::fair_queue::Permit;

/// The largest object of one put, as in S3.
const PUT_BYTES: i64 = 5 << 30;

/// A put, up to its body.
struct Prepared {
    record: ObjectRecord,
    condition: Condition,
    compress: Option<bool>,
    rules: Vec<Rule>,
    expected: Expected,
}

pub(crate) async fn put_object(
    state: &State,
    mut request: S3Request<PutObjectInput>,
) -> S3Result<S3Response<PutObjectOutput>> {
    let caller = Caller::of(&request.extensions)?;
    let trailer = header(&request, "x-amz-trailer");
    let expected = Expected {
        length: request.input.content_length,
        md5: request.input.content_md5.take(),
        checksums: take_checksums!(request.input),
        algorithm: request.input.checksum_algorithm.take().map(|a| a.as_str().to_owned()),
        trailer,
        trailers: request.trailing_headers.take(),
    };
    let (body, input) = (request.input.body.take(), request.input);
    let find = move |state: &State| prepare(state, &caller, input, expected);
    let prepared = state.query(&request.extensions, find).await?;
    let permit = state.transfer_permit(&request.extensions).await?;
    let work = move |state: &State| put(state, prepared, body, permit);
    state.blocking(work).await.map(respond)
}

/// Refuses all that can be refused before the body is asked for.
fn prepare(state: &State, caller: &Caller, mut input: PutObjectInput, expected: Expected) -> S3Result<Prepared> {
    let bucket = &state.bucket(&input.bucket, caller, &input.key)?;
    if input.content_length.is_some_and(|length| length > PUT_BYTES) {
        return Err(S3ErrorCode::EntityTooLarge.into());
    }
    expected.check()?;
    let condition = condition(input.if_match.as_ref(), input.if_none_match.as_ref())?;
    let mut record = draft(bucket, &input.key)?;
    record.attributes =
        requested_attributes(bucket, caller, &input.key, requested_lock!(input), headers!(input, input.tagging))?;
    lock::apply_default(bucket, &mut record.attributes)?;
    let class = input.storage_class.as_ref().map(StorageClass::as_str);
    state.classes.apply(class, &bucket.record, &mut record)?;
    check_condition(state, &record.bucket, &record.key, &condition)?;
    let (compress, rules) = (tags::compress(&bucket.record), lifecycle::rules(bucket)?);
    Ok(Prepared { record, condition, compress, rules, expected })
}

/// Refuses what is asked for on a condition that does not hold now. A write checks it again when it is made.
pub(crate) fn check_condition(state: &State, bucket: &str, key: &str, condition: &Condition) -> S3Result<()> {
    if *condition == Condition::Always {
        return Ok(());
    }
    let newest = state.objects.catalog().newest(bucket, key).map_err(error::catalog)?;
    let checked = condition.check(newest.as_ref());
    checked.map_err(|refused| put_error(ObjectError::Catalog(refused.into()), condition))
}

fn put(
    state: &State,
    prepared: Prepared,
    body: Option<StreamingBlob>,
    permit: Permit,
) -> S3Result<(PutObjectOutput, Kept)> {
    let Prepared { record, condition, compress, rules, expected } = prepared;
    let mut incoming = Incoming::new(body, expected, permit);
    incoming.compress = compress;
    let made = state.objects.put(record, &condition, &mut incoming).map_err(|e| put_error(e, &condition))?;
    let record = made.row.record;
    let mut output = PutObjectOutput {
        e_tag: attributes::etag(&record),
        checksum_type: attributes::get(&record, CHECKSUM_TYPE).map(ChecksumType::from),
        expiration: lifecycle::expiration(&rules, &record),
        version_id: attributes::version_header(&record),
        ..PutObjectOutput::default()
    };
    set_checksums!(output, |name| attributes::get(&record, name));
    Ok((output, made.kept))
}

/// A new version of this key, without content.
pub(crate) fn draft(bucket: &Row, key: &str) -> S3Result<ObjectRecord> {
    if key.is_empty() {
        return Err(s3_error!(InvalidArgument, "an object has a key"));
    }
    // Keys in paths are checked by `s3s`, those in forms are not.
    if key.len() > KEY_BYTES {
        return Err(S3ErrorCode::KeyTooLongError.into());
    }
    if key.contains('\0') {
        return Err(s3_error!(InvalidArgument, "a key cannot have a null character"));
    }
    let mut record = ObjectRecord::new(Kind::Object, &bucket.record.bucket, key, VersionId::default());
    record.null = Versioning::of(&bucket.record) != Versioning::Enabled;
    Ok(record)
}

/// The attributes that a request sets on its version, all of which `caller` must be allowed to set.
pub(crate) fn requested_attributes(
    bucket: &Row,
    caller: &Caller,
    key: &str,
    requested: lock::RequestedLock,
    headers: Headers,
) -> S3Result<Attributes> {
    if headers.tagging.is_some() {
        policy::check(bucket, caller, "PutObjectTagging", key)?;
    }
    let mut attributes = headers.attributes()?;
    lock::keep(bucket, caller, key, &requested, &mut attributes)?;
    Ok(attributes)
}

/// The source of a copy, which `caller` must be allowed to read, with its tags when they are copied as well.
pub(crate) fn copy_source(state: &State, caller: &Caller, source: &CopySource, with_tags: bool) -> S3Result<Row> {
    let CopySource::Bucket { bucket, key, version_id } = source else {
        return Err(s3_error!(NotImplemented, "only BUCKET/KEY can be copied"));
    };
    let bucket = state.bucket_named(bucket)?;
    Caller::check_owner(caller.expects_source.as_deref(), attributes::owner(&bucket.record))?;
    let versioned = version_id.is_some();
    let version = version_id.as_deref();
    state.allow(&bucket, caller, policy::action("GetObject", versioned), key, version)?;
    let row = state.find_for(caller, &bucket, key, version)?;
    if with_tags && tags::count(&row.record).is_some() {
        state.allow(&bucket, caller, policy::action("GetObjectTagging", versioned), key, version)?;
    }
    Ok(row)
}

/// Copies a version: the new one names the same chunks.
pub(crate) fn copy_object(
    state: &State,
    caller: &Caller,
    mut input: CopyObjectInput,
    condition: &Condition,
) -> S3Result<(CopyObjectOutput, Kept)> {
    let bucket = state.bucket(&input.bucket, caller, &input.key)?;
    let new_tags = replaces("tagging", input.tagging_directive.as_ref().map(TaggingDirective::as_str))?;
    let from = copy_source(state, caller, &input.copy_source, !new_tags)?;
    preconditions!(source of input).check_copy(&from.record)?;
    let replace = replaces("metadata", input.metadata_directive.as_ref().map(MetadataDirective::as_str))?;
    let itself = from.record.bucket == input.bucket && from.record.key == input.key;
    let class = input.storage_class.take();
    if itself && !replace && class.is_none() && from.record.null {
        let why = "This copy request is illegal because it is trying to copy an object to itself without changing the \
                   object's metadata, storage class, website redirect location or encryption attributes.";
        return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, why));
    }
    let whole = state.objects.whole(&from).map_err(error::s3)?;
    let mut record = draft(&bucket, &input.key)?;
    record.size = whole.size;
    record.etag = whole.etag;
    record.body = whole.body;
    record.attributes = whole.attributes;
    record.attributes.remove(UPLOAD);
    lock::forget(&mut record.attributes);
    lock::keep(&bucket, caller, &input.key, &requested_lock!(input), &mut record.attributes)?;
    lock::apply_default(&bucket, &mut record.attributes)?;
    if replace {
        record.attributes.retain(|name, _| {
            name.starts_with("x-amz-checksum-") || name.starts_with("x-amz-object-lock-") || name == tags::TAGS
        });
        record.attributes.extend(headers!(input, None).attributes()?);
    }
    if new_tags {
        policy::check(&bucket, caller, "PutObjectTagging", &input.key)?;
        tags::keep(&mut record.attributes, &tags::read(&input.tagging.unwrap_or_default())?);
    }
    state.classes.apply(class.as_ref().map(StorageClass::as_str), &bucket.record, &mut record)?;
    let made = state.objects.publish(record, condition).map_err(|failure| put_error(failure, condition));
    let Made { row, kept } = made?;
    let mut result = CopyObjectResult {
        checksum_type: attributes::get(&row.record, CHECKSUM_TYPE).map(ChecksumType::from),
        e_tag: attributes::etag(&row.record),
        last_modified: Some(attributes::modified(&row.record)),
        ..CopyObjectResult::default()
    };
    set_checksums!(result, |name| attributes::get(&row.record, name));
    let output = CopyObjectOutput {
        copy_object_result: Some(result),
        copy_source_version_id: attributes::version_header(&from.record),
        expiration: lifecycle::expiration(&lifecycle::rules(&bucket)?, &row.record),
        version_id: attributes::version_header(&row.record),
        ..CopyObjectOutput::default()
    };
    Ok((output, kept))
}

/// Whether a copy has values of its own in place of those of its source.
fn replaces(what: &str, directive: Option<&str>) -> S3Result<bool> {
    match directive {
        None | Some(MetadataDirective::COPY) => Ok(false),
        Some(MetadataDirective::REPLACE) => Ok(true),
        Some(_) => Err(s3_error!(InvalidArgument, "Unknown {what} directive.")),
    }
}

/// The condition of a copy on what is at its destination. `s3s` does not read these headers of a copy.
pub(crate) fn copy_condition<T>(request: &S3Request<T>) -> S3Result<Condition> {
    let read = |name| {
        let text = request.headers.get(name).map(|value| ETagCondition::parse_http_header(value.as_bytes()));
        text.transpose().map_err(|_| s3_error!(InvalidArgument, "invalid header: {name}"))
    };
    condition(read("if-match")?.as_ref(), read("if-none-match")?.as_ref())
}

/// A header as text.
pub(crate) fn header<T>(request: &S3Request<T>, name: &str) -> Option<String> {
    request.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// The condition of a write.
pub(crate) fn condition(
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> S3Result<Condition> {
    Ok(match (if_match, if_none_match) {
        (None, None) => Condition::Always,
        (None, Some(none)) if none.is_any() => Condition::Absent,
        (Some(ETagCondition::ETag(etag)), None) => Condition::Matches(etag.value().to_owned()),
        (Some(_), None) => Condition::Present,
        // S3 has no other ones either.
        _ => return Err(S3ErrorCode::NotImplemented.into()),
    })
}

/// The error of a failed put. A condition on an object that is not there has a code of its own.
pub(crate) fn put_error(failure: ObjectError, condition: &Condition) -> S3Error {
    match (failure.refused(), condition) {
        (Some(Refused::NoVersion), Condition::Matches(_) | Condition::Present) => S3ErrorCode::NoSuchKey.into(),
        _ => error::s3(failure),
    }
}
