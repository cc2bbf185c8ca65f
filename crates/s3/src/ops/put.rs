//! PutObject, and what copies and uploads share with it.

use catalog::object_manifest::{KEY_BYTES, Kind, ObjectManifest, VersionId};
use catalog::{Condition, Refused, Row};
use http::HeaderMap;
use object::objects::{Kept, ObjectError};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use super::acl::of_new_object;
use super::body::{Expected, Incoming};
use super::kept::respond;
use crate::rules::acl::{ACL, asked_acl};
use crate::rules::attributes::{self, Attributes, CHECKSUM_TYPE};
use crate::rules::caller::Caller;
use crate::rules::checksums::{set_checksums, take_checksums};
use crate::rules::encryption::{self, Sealing, asked_encryption};
use crate::rules::form::FormFields;
use crate::rules::headers::{Headers, headers};
use crate::rules::lifecycle::{self, Rule};
use crate::rules::lock::{self, requested_lock};
use crate::rules::versioning::Versioning;
use crate::rules::{error, policy, tags};
use crate::state::State;
use crate::state::fair_queue::Permit;

/// The largest object of one put, as in S3.
const PUT_BYTES: i64 = 5 << 30;

/// A put, up to its body.
struct Prepared {
    record: ObjectManifest,
    condition: Condition,
    compress: Option<bool>,
    rules: Vec<Rule>,
    expected: Expected,
    sealing: Option<Sealing>,
    /// What the answer says of the encryption.
    headers: HeaderMap,
}

pub(crate) async fn put_object(
    state: &State,
    mut request: S3Request<PutObjectInput>,
) -> S3Result<S3Response<PutObjectOutput>> {
    let mut caller = Caller::of(&request.extensions)?;
    if let Some(form) = request.extensions.get::<FormFields>() {
        form.apply(&mut request.input);
        caller = caller.with(|context| form.examine(context));
    }
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
    let put = move |state: &State, prepared, permit| put(state, prepared, body, permit);
    state.transfer(&request.extensions, find, put).await.map(respond)
}

/// Refuses all that can be refused before the body is asked for.
fn prepare(state: &State, caller: &Caller, mut input: PutObjectInput, expected: Expected) -> S3Result<Prepared> {
    let bucket = &state.bucket(&input.bucket, caller, &input.key)?;
    if input.content_length.is_some_and(|length| length > PUT_BYTES) {
        return Err(S3ErrorCode::EntityTooLarge.into());
    }
    expected.check()?;
    let encryption = asked_encryption!(input)?;
    let condition = condition(input.if_match.as_ref(), input.if_none_match.as_ref())?;
    let mut record = draft(bucket, &input.key)?;
    record.attributes =
        requested_attributes(bucket, caller, &input.key, requested_lock!(input), headers!(input, input.tagging))?;
    lock::apply_default(bucket, &mut record.attributes)?;
    let list = of_new_object(state, bucket, caller, &input.key, &asked_acl!(input))?;
    record.attributes.extend(list.map(|list| (ACL.to_owned(), list)));
    let class = input.storage_class.as_ref().map(StorageClass::as_str);
    state.classes.apply(class, &bucket.record, &mut record)?;
    check_condition(state, &record.bucket, &record.key, &condition)?;
    let (compress, rules) = (tags::compress(&bucket.record), state.rules(bucket)?);
    let customer = encryption.customer.clone();
    let sealing = state.seal(bucket, encryption, &mut record, None)?;
    let headers = encryption::headers_of_put(&record, customer.as_ref());
    Ok(Prepared { record, condition, compress, rules, expected, sealing, headers })
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
) -> S3Result<(PutObjectOutput, Kept, HeaderMap)> {
    let Prepared { record, condition, compress, rules, expected, sealing, headers } = prepared;
    let mut incoming = Incoming::new(body, expected, permit).sealed(sealing);
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
    Ok((output, made.kept, headers))
}

/// A new version of this key, without content.
pub(crate) fn draft(bucket: &Row, key: &str) -> S3Result<ObjectManifest> {
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
    let mut record = ObjectManifest::new(Kind::Object, &bucket.record.bucket, key, VersionId::default());
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
