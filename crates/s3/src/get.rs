//! GetObject and HeadObject.

use std::ops::Range as Bytes;

use object::catalog::Row;
use object::objects::Reader;
use object::record::{Kind, Record};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use crate::attributes::{self, CHECKSUM_TYPE, etag, metadata, modified};
use crate::face::Face;
use crate::{body, error, tagging};

/// What a reader already has or knows.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) if_match: Option<ETagCondition>,
    pub(crate) if_none_match: Option<ETagCondition>,
    pub(crate) if_modified_since: Option<Timestamp>,
    pub(crate) if_unmodified_since: Option<Timestamp>,
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

    pub(crate) async fn do_get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let user = self.user(request.credentials.as_ref())?;
        let permit = self.permit().await?;
        let input = request.input;
        let work = move |face: &Self| {
            let bucket = face.bucket(&input.bucket, &user)?;
            let row = face.find(&bucket, &input.key, input.version_id.as_deref())?;
            let wanted = Wanted {
                if_match: input.if_match,
                if_none_match: input.if_none_match,
                if_modified_since: input.if_modified_since,
                if_unmodified_since: input.if_unmodified_since,
            };
            wanted.check(&row.record)?;
            let part = part(&row.record, input.range.as_ref(), input.part_number)?;
            let mut reader = Reader::new(&face.objects, &row, part.range.clone()).map_err(error::s3)?;
            // Before the answer begins: what cannot be read at all is an error and not a broken answer.
            let first = reader.piece().map_err(error::s3)?;
            Ok((row.record, part, input.checksum_mode, first, reader))
        };
        let (record, part, mode, first, reader) = self.blocking(work).await?;
        let length = part.range.end - part.range.start;
        let mut output = get_output(&record, mode.is_some() && part.content_range.is_none());
        output.body = Some(body::stream(first, reader, length, permit));
        output.content_length = i64::try_from(length).ok();
        output.content_range = part.content_range;
        output.parts_count = part.parts_count;
        Ok(S3Response::new(output))
    }

    pub(crate) fn do_head_object(&self, user: &str, input: HeadObjectInput) -> S3Result<HeadObjectOutput> {
        let bucket = self.bucket(&input.bucket, user)?;
        let row = self.find(&bucket, &input.key, input.version_id.as_deref())?;
        let wanted = Wanted {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        wanted.check(&row.record)?;
        let part = part(&row.record, input.range.as_ref(), input.part_number)?;
        let whole = part.content_range.is_none();
        let output = get_output(&row.record, input.checksum_mode.is_some() && whole);
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
            content_length: i64::try_from(part.range.end - part.range.start).ok(),
            content_range: part.content_range,
            content_type: input.response_content_type.or(output.content_type),
            e_tag: output.e_tag,
            expires: input.response_expires.or(output.expires),
            last_modified: output.last_modified,
            metadata: output.metadata,
            parts_count: part.parts_count,
            version_id: output.version_id,
            ..HeadObjectOutput::default()
        })
    }
}

/// What is said of a version, without its bytes.
fn get_output(record: &Record, with_sums: bool) -> GetObjectOutput {
    let named = |name: &str| attributes::get(record, name);
    let sum = |name: &str| named(name).filter(|_| with_sums);
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
        content_type: attributes::content_type(record),
        e_tag: etag(record),
        expires: attributes::expires(record),
        last_modified: Some(modified(record)),
        metadata: metadata(record),
        tag_count: tagging::count(record),
        version_id: (!record.null).then(|| record.version.to_string()),
        ..GetObjectOutput::default()
    }
}
