//! GetObject and HeadObject.

use std::ops::Range as Bytes;
use std::sync::Arc;

use object::catalog::Row;
use object::objects::Reader;
use object::record::{Kind, Record};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use crate::attributes::{self, CHECKSUM_TYPE, etag, metadata, modified};
use crate::face::Face;
use crate::lobby::Caller;
use crate::who::Who;
use crate::{body, error, lock, policy, tagging};

/// What a reader already has or knows.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) if_match: Option<ETagCondition>,
    pub(crate) if_none_match: Option<ETagCondition>,
    pub(crate) if_modified_since: Option<Timestamp>,
    pub(crate) if_unmodified_since: Option<Timestamp>,
}

/// The [`Wanted`] of a request: every kind of request has these fields of its own, a copy's are those of its source.
macro_rules! wanted {
    ($input:expr) => {
        $crate::get::Wanted {
            if_match: $input.if_match,
            if_none_match: $input.if_none_match,
            if_modified_since: $input.if_modified_since,
            if_unmodified_since: $input.if_unmodified_since,
        }
    };
    (source of $input:expr) => {
        $crate::get::Wanted {
            if_match: $input.copy_source_if_match,
            if_none_match: $input.copy_source_if_none_match,
            if_modified_since: $input.copy_source_if_modified_since,
            if_unmodified_since: $input.copy_source_if_unmodified_since,
        }
    };
}
pub(crate) use wanted;

/// What GetObject and HeadObject ask for.
struct Asked {
    bucket: String,
    key: String,
    version: Option<String>,
    wanted: Wanted,
    range: Option<Range>,
    part: Option<i32>,
    /// Whether checksums are asked for as well.
    sums: bool,
}

/// The [`Asked`] of a request.
macro_rules! asked {
    ($input:expr) => {
        Asked {
            bucket: $input.bucket,
            key: $input.key,
            version: $input.version_id,
            wanted: wanted!($input),
            range: $input.range,
            part: $input.part_number,
            sums: $input.checksum_mode.is_some(),
        }
    };
}

/// Whole seconds, which is what HTTP's dates have.
pub(crate) fn seconds(time: &Timestamp) -> i64 {
    time::OffsetDateTime::from(time.clone()).unix_timestamp()
}

fn names(condition: &ETagCondition, record: &Record) -> bool {
    condition.is_any() || condition.as_etag().is_some_and(|etag| etag.value() == record.etag)
}

impl Wanted {
    /// Whether the object is to be had: `Ok(false)` when the reader has it already.
    fn holds(&self, record: &Record) -> Result<bool, S3Error> {
        let at = seconds(&modified(record));
        match (&self.if_match, &self.if_unmodified_since) {
            (Some(condition), _) if !names(condition, record) => return Err(S3ErrorCode::PreconditionFailed.into()),
            (None, Some(time)) if at > seconds(time) => return Err(S3ErrorCode::PreconditionFailed.into()),
            _ => {}
        }
        Ok(match (&self.if_none_match, &self.if_modified_since) {
            (Some(condition), _) => !names(condition, record),
            (None, Some(time)) => at > seconds(time),
            (None, None) => true,
        })
    }

    /// For a read.
    fn check(&self, record: &Record) -> S3Result<()> {
        if self.holds(record)? {
            return Ok(());
        }
        let mut unchanged = S3Error::new(S3ErrorCode::NotModified);
        let mut headers = http::HeaderMap::new();
        if let Some(tag) = etag(record).and_then(|tag| tag.to_http_header().ok()) {
            headers.insert(http::header::ETAG, tag);
        }
        unchanged.set_headers(headers);
        Err(unchanged)
    }

    /// For the source of a copy, where S3 has one answer for all.
    pub(crate) fn check_copy(&self, record: &Record) -> S3Result<()> {
        if self.holds(record)? { Ok(()) } else { Err(S3ErrorCode::PreconditionFailed.into()) }
    }
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

fn part(record: &Record, range: Option<&Range>, number: Option<i32>) -> S3Result<Part> {
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
        (None, Some(number)) => {
            let count = record.parts.len().max(1);
            let index = number.checked_sub(1).and_then(|n| usize::try_from(n).ok()).filter(|index| *index < count);
            let index = index.ok_or_else(|| {
                error::custom(
                    "InvalidPartNumber",
                    http::StatusCode::RANGE_NOT_SATISFIABLE,
                    "the object has no such part",
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

impl Face {
    /// The version that is asked for, which must be an object.
    pub(crate) fn find(&self, bucket: &Row, key: &str, version: Option<&str>) -> S3Result<Row> {
        let catalog = self.objects.catalog();
        let bucket = &bucket.record.bucket;
        let (row, missing) = match version {
            None => (catalog.newest(bucket, key), S3ErrorCode::NoSuchKey),
            Some("null") => (catalog.version(bucket, key, None), S3ErrorCode::NoSuchVersion),
            Some(text) => {
                let id = text.parse().map_err(|()| s3_error!(InvalidArgument, "{text:?} is no version id"))?;
                (catalog.version(bucket, key, Some(id)), S3ErrorCode::NoSuchVersion)
            }
        };
        let row = row.map_err(error::catalog)?.ok_or(missing)?;
        if row.record.kind == Kind::Object {
            return Ok(row);
        }
        let mut failure = if version.is_none() {
            S3Error::new(S3ErrorCode::NoSuchKey)
        } else {
            S3Error::with_message(S3ErrorCode::MethodNotAllowed, "this version is a delete marker")
        };
        let mut headers = http::HeaderMap::new();
        headers.insert("x-amz-delete-marker", http::HeaderValue::from_static("true"));
        if let Ok(id) = http::HeaderValue::from_str(&attributes::version_id(&row.record)) {
            headers.insert("x-amz-version-id", id);
        }
        failure.set_headers(headers);
        Err(failure)
    }

    /// As [`Face::find`]; who may not list the bucket does not learn what is not in it.
    pub(crate) fn find_for(&self, who: &Who, bucket: &Row, key: &str, version: Option<&str>) -> S3Result<Row> {
        self.find(bucket, key, version).map_err(|failure| {
            let hidden = matches!(failure.code(), S3ErrorCode::NoSuchKey | S3ErrorCode::NoSuchVersion)
                && policy::check(bucket, who, "ListBucket", "").is_err();
            if hidden { S3ErrorCode::AccessDenied.into() } else { failure }
        })
    }

    /// The version that a read is for, the part of it, and what is said of both.
    fn look_up(&self, who: &Who, asked: &Asked) -> S3Result<(Row, Part, GetObjectOutput)> {
        let bucket = self.bucket(&asked.bucket, who, &asked.key)?;
        let row = self.find_for(who, &bucket, &asked.key, asked.version.as_deref())?;
        asked.wanted.check(&row.record)?;
        let part = part(&row.record, asked.range.as_ref(), asked.part)?;
        let output = get_output(&row.record, &part, asked.sums);
        Ok((row, part, output))
    }

    /// `s3s` sets the headers that the request overrides.
    pub(crate) async fn do_get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let who = Who::known(&request.extensions)?;
        let asked = asked!(request.input);
        let asks = who.clone();
        let look = move |face: &Self| face.look_up(&who, &asked);
        let (row, part, output) = self.look(&asks, &request.extensions, look).await?;
        let turn = self.turn(&request.extensions).await?;
        let length = part.length();
        let work = move |face: &Self| {
            let mut reader = Reader::new(&face.objects, &row, part.range).map_err(error::s3)?;
            // Before the answer begins: what cannot be read at all is an error and not a broken answer.
            let first = reader.piece().map_err(error::s3)?;
            Ok((first, reader))
        };
        let (first, reader) = self.blocking(work).await?;
        let pulse = request.extensions.get::<Caller>().map(|caller| Arc::clone(&caller.pulse));
        let body = Some(body::stream(first, reader, length, turn, pulse));
        Ok(S3Response::new(GetObjectOutput { body, ..output }))
    }

    pub(crate) fn do_head_object(&self, who: &Who, input: HeadObjectInput) -> S3Result<HeadObjectOutput> {
        let asked = asked!(input);
        let (_, _, output) = self.look_up(who, &asked)?;
        Ok(HeadObjectOutput {
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
            expires: input.response_expires.or(output.expires),
            last_modified: output.last_modified,
            metadata: output.metadata,
            object_lock_legal_hold_status: output.object_lock_legal_hold_status,
            object_lock_mode: output.object_lock_mode,
            object_lock_retain_until_date: output.object_lock_retain_until_date,
            parts_count: output.parts_count,
            version_id: output.version_id,
            ..HeadObjectOutput::default()
        })
    }
}

/// What is said of a part of a version, without its bytes. A checksum is that of the whole.
fn get_output(record: &Record, part: &Part, with_sums: bool) -> GetObjectOutput {
    let named = |name: &str| attributes::get(record, name);
    let sum = |name: &str| named(name).filter(|_| with_sums && part.content_range.is_none());
    let (object_lock_mode, object_lock_retain_until_date, object_lock_legal_hold_status) = lock::said(record);
    GetObjectOutput {
        accept_ranges: Some("bytes".to_owned()),
        cache_control: named("cache-control"),
        checksum_crc32: sum("x-amz-checksum-crc32"),
        checksum_crc32c: sum("x-amz-checksum-crc32c"),
        checksum_crc64nvme: sum("x-amz-checksum-crc64nvme"),
        checksum_sha1: sum("x-amz-checksum-sha1"),
        checksum_sha256: sum("x-amz-checksum-sha256"),
        checksum_type: sum(CHECKSUM_TYPE).map(ChecksumType::from),
        content_disposition: named("content-disposition"),
        content_encoding: named("content-encoding"),
        content_language: named("content-language"),
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
        tag_count: tagging::count(record),
        version_id: (!record.null).then(|| record.version.to_string()),
        ..GetObjectOutput::default()
    }
}
