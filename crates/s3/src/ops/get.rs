//! GetObject and HeadObject.

use std::ops::Range as Bytes;
use std::sync::Arc;

use catalog::Row;
use catalog::object_manifest::ObjectManifest;
use http::{HeaderMap, HeaderName, HeaderValue};
use object::objects::Reader;
use object::seal::DataKey;
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use super::multipart::PARTS;
use super::{body, holders};
use crate::rules::attributes::{self, CHECKSUM_TYPE, etag, metadata, modified};
use crate::rules::caller::Caller;
use crate::rules::checksums::set_checksums;
use crate::rules::encryption::{self, CustomerKey, customer_key};
use crate::rules::preconditions::{Preconditions, preconditions};
use crate::rules::{error, lifecycle, lock, storage_class, tags};
use crate::state::State;
use crate::state::admission::Admission;

/// How many tags an object has.
const TAG_COUNT: HeaderName = HeaderName::from_static("x-amz-tagging-count");

/// The input of GetObject and HeadObject.
struct ReadRequest {
    bucket: String,
    key: String,
    version: Option<String>,
    preconditions: Preconditions,
    range: Option<Range>,
    part: Option<i32>,
    /// Whether checksums are asked for as well.
    checksums: bool,
    /// The key that the client encrypted it with.
    customer: Option<CustomerKey>,
}

/// The [`ReadRequest`] of a request.
macro_rules! read_request {
    ($input:expr) => {
        ReadRequest {
            bucket: $input.bucket,
            key: $input.key,
            version: $input.version_id,
            preconditions: preconditions!($input),
            range: $input.range,
            part: $input.part_number,
            checksums: $input.checksum_mode.is_some(),
            customer: customer_key!($input)?,
        }
    };
}

/// The part of a version that a request asks for.
struct Part {
    range: Bytes<u64>,
    /// `Content-Range`, when it is not the whole.
    content_range: Option<String>,
    parts_count: Option<i32>,
}

impl Part {
    fn length(&self) -> u64 {
        self.range.end - self.range.start
    }
}

fn part(record: &ObjectManifest, range: Option<&Range>, number: Option<i32>) -> S3Result<Part> {
    let size = record.size;
    let invalid = || {
        let mut error = S3Error::new(S3ErrorCode::InvalidRange);
        let mut headers = http::HeaderMap::new();
        if let Ok(value) = http::HeaderValue::from_str(&format!("bytes */{size}")) {
            headers.insert(http::header::CONTENT_RANGE, value);
        }
        error.set_headers(headers);
        error
    };
    let (range, parts_count) = match (range, number) {
        (Some(_), Some(_)) => return Err(s3_error!(InvalidRequest, "ask for a range or for a part, not for both")),
        (None, None) => return Ok(Part { range: 0..size, content_range: None, parts_count: None }),
        (Some(range), None) => (range.check(size).map_err(|_| invalid())?, None),
        (None, Some(number)) if !(1..=PARTS).contains(&number) => {
            return Err(s3_error!(InvalidArgument, "Part number must be an integer between 1 and {PARTS}, inclusive"));
        }
        (None, Some(number)) => {
            let count = record.parts.len().max(1);
            let index = number.checked_sub(1).and_then(|n| usize::try_from(n).ok()).filter(|index| *index < count);
            let index = index.ok_or_else(|| {
                error::custom(
                    "InvalidPartNumber",
                    http::StatusCode::RANGE_NOT_SATISFIABLE,
                    "The requested partnumber is not satisfiable",
                )
            })?;
            let start: u64 = record.parts.iter().take(index).sum();
            let length = record.parts.get(index).copied().unwrap_or(size);
            (start..start + length, (!record.parts.is_empty()).then_some(count as i32))
        }
    };
    if range.is_empty() {
        return Ok(Part { range, content_range: None, parts_count });
    }
    let content_range = Some(format!("bytes {}-{}/{size}", range.start, range.end - 1));
    Ok(Part { range, content_range, parts_count })
}

/// What a read asks for.
struct Found {
    row: Row,
    part: Part,
    /// What its bytes are read with, if they are encrypted.
    key: Option<DataKey>,
    /// The answer without its body.
    output: GetObjectOutput,
    headers: HeaderMap,
}

fn find_version(state: &State, caller: &Caller, asked: &ReadRequest) -> S3Result<Found> {
    let bucket = state.bucket(&asked.bucket, caller, &asked.key)?;
    let row = state.find_for(caller, &bucket, &asked.key, asked.version.as_deref())?;
    let key = state.unseal(&row.record, asked.customer.as_ref())?.map(|sealing| sealing.key);
    asked.preconditions.check(&row.record)?;
    let part = part(&row.record, asked.range.as_ref(), asked.part)?;
    let mut output = get_output(&row.record, &part, asked.checksums);
    if asked.version.is_none() {
        output.expiration = lifecycle::expiration(&state.rules(&bucket)?, &row.record);
    }
    let headers = encryption::headers(&row.record, asked.customer.as_ref());
    Ok(Found { row, part, key, output, headers })
}

/// The headers that the request overrides are set by `s3s`.
pub(crate) async fn get_object(
    state: &State,
    mut request: S3Request<GetObjectInput>,
) -> S3Result<S3Response<GetObjectOutput>> {
    let caller = Caller::of(&request.extensions)?;
    let holders = holders::most(&request.headers)?;
    let asked = read_request!(request.input);
    let find = move |state: &State| find_version(state, &caller, &asked);
    if let Some(most) = holders {
        let find_holders =
            move |state: &State, found: Found, _permit| holders::find(state, &found.row, &found.part.range, most);
        return Ok(holders::respond(state.transfer(&request.extensions, find, find_holders).await?));
    }
    let begin = |state: &State, found: Found, permit| {
        let Found { row, part, key, output, headers } = found;
        let length = part.length();
        let mut reader = Reader::with_key(&state.objects, &row, part.range, key).map_err(error::s3)?;
        // Before the answer begins, so that an object that cannot be read is an error and not a broken answer.
        let first = reader.piece().map_err(error::s3)?;
        Ok((first, reader, permit, length, output, headers))
    };
    let (first, reader, permit, length, output, headers) = state.transfer(&request.extensions, find, begin).await?;
    let activity = request.extensions.get::<Admission>().map(|admission| Arc::clone(&admission.activity));
    let body = Some(body::stream(first, reader, length, permit, activity));
    Ok(S3Response { headers, ..S3Response::new(GetObjectOutput { body, ..output }) })
}

/// The answer to HeadObject, with headers that `s3s` does not know of it.
pub(crate) fn respond_head((output, headers): (HeadObjectOutput, HeaderMap)) -> S3Response<HeadObjectOutput> {
    S3Response { headers, ..S3Response::new(output) }
}

pub(crate) fn head_object(
    state: &State,
    caller: &Caller,
    mut input: HeadObjectInput,
) -> S3Result<(HeadObjectOutput, HeaderMap)> {
    let asked = read_request!(input);
    let Found { output, mut headers, .. } = find_version(state, caller, &asked)?;
    headers.extend(output.tag_count.map(|count| (TAG_COUNT, HeaderValue::from(count))));
    let output = HeadObjectOutput {
        accept_ranges: output.accept_ranges,
        cache_control: input.response_cache_control.or(output.cache_control),
        checksum_crc32: output.checksum_crc32,
        checksum_crc32c: output.checksum_crc32c,
        checksum_crc64nvme: output.checksum_crc64nvme,
        checksum_sha1: output.checksum_sha1,
        checksum_sha256: output.checksum_sha256,
        checksum_type: output.checksum_type,
        content_disposition: input.response_content_disposition.or(output.content_disposition),
        content_encoding: input.response_content_encoding.or(output.content_encoding),
        content_language: input.response_content_language.or(output.content_language),
        content_length: output.content_length,
        content_range: output.content_range,
        content_type: input.response_content_type.or(output.content_type),
        e_tag: output.e_tag,
        expiration: output.expiration,
        expires: input.response_expires.or(output.expires),
        last_modified: output.last_modified,
        metadata: output.metadata,
        object_lock_legal_hold_status: output.object_lock_legal_hold_status,
        object_lock_mode: output.object_lock_mode,
        object_lock_retain_until_date: output.object_lock_retain_until_date,
        parts_count: output.parts_count,
        storage_class: output.storage_class,
        version_id: output.version_id,
        ..HeadObjectOutput::default()
    };
    Ok((output, headers))
}

/// The answer for a part of a version, without its body. A checksum is that of the whole.
fn get_output(record: &ObjectManifest, part: &Part, with_checksums: bool) -> GetObjectOutput {
    let attribute = |name: &str| attributes::get(record, name);
    let checksum = |name: &str| attribute(name).filter(|_| with_checksums && part.content_range.is_none());
    let (object_lock_mode, object_lock_retain_until_date, object_lock_legal_hold_status) = lock::to_dto(record);
    let mut output = GetObjectOutput {
        accept_ranges: Some("bytes".to_owned()),
        cache_control: attribute("cache-control"),
        checksum_type: checksum(CHECKSUM_TYPE).map(ChecksumType::from),
        content_disposition: attribute("content-disposition"),
        content_encoding: attribute("content-encoding"),
        content_language: attribute("content-language"),
        content_length: i64::try_from(part.length()).ok(),
        content_range: part.content_range.clone(),
        content_type: attributes::content_type(record),
        e_tag: etag(record),
        expires: attributes::expires(record),
        last_modified: Some(modified(record)),
        metadata: metadata(record),
        object_lock_legal_hold_status,
        object_lock_mode,
        object_lock_retain_until_date,
        parts_count: part.parts_count,
        storage_class: storage_class::other_than_standard(record).map(StorageClass::from),
        tag_count: tags::count(record),
        version_id: attributes::version_header(record),
        ..GetObjectOutput::default()
    };
    set_checksums!(output, checksum);
    output
}
