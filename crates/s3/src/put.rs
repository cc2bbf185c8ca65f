//! PutObject and CopyObject.

use object::catalog::{Condition, Refused, Row};
use object::objects::ObjectError;
use object::record::{KEY_BYTES, Kind, Record, VersionId};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use crate::attributes::{self, Attributes, CHECKSUM_TYPE, Headers, headers};
use crate::body::{Expected, Incoming, given_sums};
use crate::error;
use crate::face::Face;
use crate::get::wanted;
use crate::lock::{self, given_lock};
use crate::multipart::UPLOAD;
use crate::versions::Versioning;
use crate::who::Who;
use crate::{bucket_tags, policy, tagging};

/// The largest object of one put, as in S3.
const PUT_BYTES: i64 = 5 << 30;

impl Face {
    pub(crate) async fn do_put_object(
        &self,
        mut request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let who = Who::known(&request.extensions)?;
        let (bucket, key) = (request.input.bucket.clone(), request.input.key.clone());
        let asks = who.clone();
        let look = move |face: &Self| face.bucket(&bucket, &asks, &key);
        let bucket = self.look(&who, &request.extensions, look).await?;
        let turn = self.turn(&request.extensions).await?;
        let trailer = header(&request, "x-amz-trailer");
        let expected = Expected {
            length: request.input.content_length,
            md5: request.input.content_md5.take(),
            sums: given_sums!(request.input),
            algorithm: request.input.checksum_algorithm.take().map(|a| a.as_str().to_owned()),
            trailer,
            trailers: request.trailing_headers.take(),
        };
        let mut incoming = Incoming::new(request.input.body.take(), expected, turn);
        let work = move |face: &Self| face.put(&who, &bucket, request.input, &mut incoming);
        self.blocking(work).await.map(S3Response::new)
    }

    fn put(
        &self,
        who: &Who,
        bucket: &Row,
        mut input: PutObjectInput,
        incoming: &mut Incoming,
    ) -> S3Result<PutObjectOutput> {
        if input.content_length.is_some_and(|length| length > PUT_BYTES) {
            return Err(S3ErrorCode::EntityTooLarge.into());
        }
        incoming.compress = bucket_tags::compress(&bucket.record);
        let condition = condition(input.if_match.as_ref(), input.if_none_match.as_ref())?;
        let mut record = self.draft(bucket, &input.key)?;
        record.attributes =
            self.attributes(bucket, who, &input.key, given_lock!(input), headers!(input, input.tagging))?;
        lock::apply_default(bucket, &mut record.attributes)?;
        let row = self.objects.put(record, &condition, incoming).map_err(|e| put_error(e, &condition))?;
        let record = row.record;
        let sum = |name: &str| attributes::get(&record, name);
        Ok(PutObjectOutput {
            e_tag: attributes::etag(&record),
            checksum_crc32: sum("x-amz-checksum-crc32"),
            checksum_crc32c: sum("x-amz-checksum-crc32c"),
            checksum_crc64nvme: sum("x-amz-checksum-crc64nvme"),
            checksum_sha1: sum("x-amz-checksum-sha1"),
            checksum_sha256: sum("x-amz-checksum-sha256"),
            checksum_type: sum(CHECKSUM_TYPE).map(ChecksumType::from),
            version_id: (!record.null).then(|| record.version.to_string()),
            ..PutObjectOutput::default()
        })
    }

    /// A version of this key before anything is known of it.
    pub(crate) fn draft(&self, bucket: &Row, key: &str) -> S3Result<Record> {
        if key.is_empty() {
            return Err(s3_error!(InvalidArgument, "an object has a key"));
        }
        // Keys in a path were looked at before, those in a form were not.
        if key.len() > KEY_BYTES {
            return Err(S3ErrorCode::KeyTooLongError.into());
        }
        if key.contains('\0') {
            return Err(s3_error!(InvalidArgument, "a key cannot have a null character"));
        }
        let mut record = Record::new(Kind::Object, &bucket.record.bucket, key, VersionId::default());
        record.null = Versioning::of(&bucket.record) != Versioning::Enabled;
        Ok(record)
    }

    /// What a request gives for its version beside the bytes, which `who` may give.
    pub(crate) fn attributes(
        &self,
        bucket: &Row,
        who: &Who,
        key: &str,
        given: lock::Given,
        headers: Headers,
    ) -> S3Result<Attributes> {
        if headers.tagging.is_some() {
            policy::check(bucket, who, "PutObjectTagging", key)?;
        }
        let mut attributes = headers.attributes()?;
        lock::keep(bucket, who, key, &given, &mut attributes)?;
        Ok(attributes)
    }

    /// The version that a copy names, which `who` may read, with its tags when they are copied as well.
    pub(crate) fn source(&self, who: &Who, source: &CopySource, with_tags: bool) -> S3Result<Row> {
        let CopySource::Bucket { bucket, key, version_id } = source else {
            return Err(s3_error!(NotImplemented, "only BUCKET/KEY can be copied"));
        };
        let bucket = self.bucket_named(bucket)?;
        let versioned = version_id.is_some();
        policy::check(&bucket, who, policy::action("GetObject", versioned), key)?;
        let row = self.find_for(who, &bucket, key, version_id.as_deref())?;
        if with_tags && tagging::count(&row.record).is_some() {
            policy::check(&bucket, who, policy::action("GetObjectTagging", versioned), key)?;
        }
        Ok(row)
    }

    /// Copies a version: the new one names the same chunks.
    pub(crate) fn do_copy_object(&self, who: &Who, mut input: CopyObjectInput) -> S3Result<CopyObjectOutput> {
        let bucket = self.bucket(&input.bucket, who, &input.key)?;
        let new_tags = input.tagging_directive.as_ref().is_some_and(|d| d.as_str() == TaggingDirective::REPLACE);
        let from = self.source(who, &input.copy_source, !new_tags)?;
        wanted!(source of input).check_copy(&from.record)?;
        let replace = input.metadata_directive.as_ref().is_some_and(|d| d.as_str() == MetadataDirective::REPLACE);
        let itself = from.record.bucket == input.bucket && from.record.key == input.key;
        if itself && !replace && from.record.null {
            let why = "an object is copied to itself only with other metadata: use the REPLACE directive";
            return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, why));
        }
        let whole = self.objects.whole(&from).map_err(error::s3)?;
        let mut record = self.draft(&bucket, &input.key)?;
        record.size = whole.size;
        record.etag = whole.etag;
        record.body = whole.body;
        record.attributes = whole.attributes;
        record.attributes.remove(UPLOAD);
        lock::forget(&mut record.attributes);
        lock::keep(&bucket, who, &input.key, &given_lock!(input), &mut record.attributes)?;
        lock::apply_default(&bucket, &mut record.attributes)?;
        if replace {
            record.attributes.retain(|name, _| {
                name.starts_with("x-amz-checksum-") || name.starts_with("x-amz-object-lock-") || name == tagging::TAGS
            });
            record.attributes.extend(headers!(input, None).attributes()?);
        }
        if new_tags {
            policy::check(&bucket, who, "PutObjectTagging", &input.key)?;
            tagging::keep(&mut record.attributes, &tagging::read(&input.tagging.unwrap_or_default())?);
        }
        let row = self.objects.publish(record, &Condition::Always).map_err(error::s3)?;
        let result = CopyObjectResult {
            e_tag: attributes::etag(&row.record),
            last_modified: Some(attributes::modified(&row.record)),
            ..CopyObjectResult::default()
        };
        Ok(CopyObjectOutput {
            copy_object_result: Some(result),
            copy_source_version_id: (!from.record.null).then(|| from.record.version.to_string()),
            version_id: (!row.record.null).then(|| row.record.version.to_string()),
            ..CopyObjectOutput::default()
        })
    }
}

/// A header as text.
pub(crate) fn header<T>(request: &S3Request<T>, name: &str) -> Option<String> {
    request.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// What a conditional write asks for.
pub(crate) fn condition(
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> S3Result<Condition> {
    Ok(match (if_match, if_none_match) {
        (None, None) => Condition::Always,
        (None, Some(none)) if none.is_any() => Condition::Absent,
        (Some(ETagCondition::ETag(etag)), None) => Condition::Matches(etag.value().to_owned()),
        (Some(_), None) => Condition::Present,
        _ => return Err(s3_error!(NotImplemented, "only If-None-Match: * and If-Match with a tag can be asked for")),
    })
}

/// A failed put as S3 says it: a condition on an object that is not there has a code of its own.
pub(crate) fn put_error(failure: ObjectError, condition: &Condition) -> S3Error {
    match (failure.refused(), condition) {
        (Some(Refused::NoVersion), Condition::Matches(_) | Condition::Present) => S3ErrorCode::NoSuchKey.into(),
        _ => error::s3(failure),
    }
}
