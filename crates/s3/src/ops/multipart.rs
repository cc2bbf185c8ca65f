//! Uploads in parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use catalog::object_manifest::{Body, ObjectManifest, VersionId, decode_entries, encode_entries};
use catalog::{Change, Row, Start, Upload, all_buckets};
use hex_simd::AsciiCase;
use http::HeaderMap;
use object::objects::{Kept, ObjectError, Reader};
use s3s::crypto::{Checksum as _, Md5};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use super::acl::of_new_object;
use super::body::{Expected, Incoming};
use super::copy::copy_source;
use super::list::{Listed, PAGE, Query, common_prefixes, echoed, encoding, page, page_length};
use super::put::{condition, draft, header, put_error, requested_attributes};
use crate::rules::acl::{ACL, asked_acl};
use crate::rules::attributes::{self, Attributes, CHECKSUM_TYPE, UPLOAD, initiator_dto, owner, owner_dto, time};
use crate::rules::caller::Caller;
use crate::rules::checksums::{self, of_part, set_checksums, take_checksums};
use crate::rules::encryption::{self, asked_encryption, customer_key};
use crate::rules::headers::headers;
use crate::rules::lock::{self, requested_lock};
use crate::rules::preconditions::preconditions;
use crate::rules::{error, lifecycle, storage_class, tags};
use crate::state::State;

/// Parts of one upload, as in S3.
pub(crate) const PARTS: i32 = 10_000;
/// Bytes of each part but the last, as in S3.
const LEAST: u64 = 5 << 20;
/// Bytes of a part at most, as in S3.
const MOST: i64 = 5 << 30;
/// Uploads that are not completed are forgotten after this.
const EXPIRY: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Attributes of an upload that its object does not have.
pub(crate) const ALGORITHM: &str = "upload-algorithm";
const KIND: &str = "upload-checksum-type";
impl Listed for Upload {
    fn key(&self) -> &str {
        &self.record.key
    }

    fn mark(&self) -> (Start, Option<String>) {
        (Start::Version(self.record.key.clone().into_bytes(), self.id), Some(self.id.to_string()))
    }
}

pub(crate) fn create_upload(
    state: &State,
    caller: &Caller,
    mut input: CreateMultipartUploadInput,
) -> S3Result<(CreateMultipartUploadOutput, HeaderMap)> {
    let bucket = state.bucket(&input.bucket, caller, &input.key)?;
    let mut record = draft(&bucket, &input.key)?;
    record.attributes =
        requested_attributes(&bucket, caller, &input.key, requested_lock!(input), headers!(input, input.tagging))?;
    let list = of_new_object(state, &bucket, caller, &input.key, &asked_acl!(input))?;
    record.attributes.extend(list.map(|list| (ACL.to_owned(), list)));
    let class = input.storage_class.as_ref().map(StorageClass::as_str);
    state.classes.apply(class, &bucket.record, &mut record)?;
    let algorithm = input.checksum_algorithm.as_ref().map(|a| a.as_str().to_owned());
    algorithm.as_deref().map_or(Ok(()), checksums::check_algorithm)?;
    let kind = input.checksum_type.as_ref().map(|t| t.as_str().to_owned());
    checksums::check_kind(algorithm.as_deref(), kind.as_deref())?;
    let default = algorithm.as_deref().map(checksums::default_kind).map(str::to_owned);
    let algorithm_kind = kind.clone().or(default).map(ChecksumType::from);
    record.attributes.extend(algorithm.map(|name| (ALGORITHM.to_owned(), name)));
    record.attributes.extend(kind.map(|name| (KIND.to_owned(), name)));
    let encryption = asked_encryption!(input)?;
    let customer = encryption.customer.clone();
    state.seal(&bucket, encryption, &mut record, None)?;
    let headers = encryption::headers_of_put(&record, customer.as_ref());
    let id = state.objects.next_version();
    let upload = Upload { id, record };
    state.objects.catalog().change(Change::StartUpload(upload)).map_err(error::catalog)?;
    let output = CreateMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(id.to_string()),
        checksum_type: algorithm_kind,
        checksum_algorithm: input.checksum_algorithm,
        ..CreateMultipartUploadOutput::default()
    };
    Ok((output, headers))
}

/// An answer with more headers.
pub(crate) fn respond<T>((output, headers): (T, HeaderMap)) -> S3Response<T> {
    S3Response { headers, ..S3Response::new(output) }
}

/// An upload of this key, which `caller` must be allowed to continue.
fn find_upload(state: &State, caller: &Caller, bucket: &str, key: &str, id: &str) -> S3Result<Upload> {
    state.bucket(bucket, caller, key)?;
    let id = id.parse().map_err(|()| S3ErrorCode::NoSuchUpload)?;
    let upload = state.objects.catalog().upload(id).map_err(error::catalog)?;
    let upload = upload.filter(|upload| upload.record.bucket == bucket && upload.record.key == key);
    upload.ok_or_else(|| S3ErrorCode::NoSuchUpload.into())
}

pub(crate) async fn upload_part(
    state: &State,
    mut request: S3Request<UploadPartInput>,
) -> S3Result<S3Response<UploadPartOutput>> {
    let caller = Caller::of(&request.extensions)?;
    let trailer = header(&request, "x-amz-trailer");
    let input = &mut request.input;
    let expected = Expected {
        length: input.content_length,
        md5: input.content_md5.take(),
        checksums: take_checksums!(input),
        algorithm: input.checksum_algorithm.take().map(|a| a.as_str().to_owned()),
        trailer,
        trailers: request.trailing_headers.take(),
    };
    let customer = customer_key!(input)?;
    let (body, input) = (input.body.take(), request.input);
    let number = input.part_number;
    // All that can be refused is refused before the body is asked for.
    let find = move |state: &State| {
        let upload = find_upload(state, &caller, &input.bucket, &input.key, &input.upload_id)?;
        check_number(number)?;
        if expected.length.is_some_and(|length| length > MOST) {
            return Err(S3ErrorCode::EntityTooLarge.into());
        }
        expected.check()?;
        let algorithm = expected.algorithm.clone().or_else(|| attributes::get(&upload.record, ALGORITHM));
        let sealing = state.seal_part(&upload.record, customer.as_ref())?;
        let headers = encryption::headers(&upload.record, customer.as_ref());
        Ok((upload, Expected { algorithm, ..expected }, sealing, headers))
    };
    let put = move |state: &State, (upload, expected, sealing, headers), permit| {
        let mut source = Incoming::new(body, expected, permit).sealed(sealing);
        put_part(state, &upload, number, &mut source).map(|(part, _)| (part, headers))
    };
    let (part, headers) = state.transfer(&request.extensions, find, put).await?;
    let mut checksums = of_part(&part);
    let mut output = UploadPartOutput { e_tag: Some(ETag::Strong(part.etag)), ..UploadPartOutput::default() };
    set_checksums!(output, |name| checksums.remove(name));
    Ok(respond((output, headers)))
}

fn check_number(number: i32) -> S3Result<()> {
    if (1..=PARTS).contains(&number) {
        return Ok(());
    }
    Err(s3_error!(InvalidArgument, "Part number must be an integer between 1 and {PARTS}, inclusive"))
}

/// Stores a part, whose number is possible.
fn put_part(state: &State, upload: &Upload, number: i32, source: &mut Incoming) -> S3Result<(catalog::Part, u64)> {
    source.compress = tags::compress(&state.bucket_named(&upload.record.bucket)?.record);
    let written = state.objects.write(source, upload.record.redundancy()).map_err(error::s3)?;
    let Body::Chunks(entries) = written.body else { return Err(S3ErrorCode::EntityTooLarge.into()) };
    let checksums = written.sealed.attributes.iter().filter(|(name, _)| *name != CHECKSUM_TYPE);
    let checksums = checksums.map(|(name, value)| format!("{name}={value}\n")).collect();
    let micros = state.objects.next_version().micros();
    let part = catalog::Part {
        number: number as u32,
        size: written.size,
        etag: written.sealed.etag,
        micros,
        checksums,
        entries: encode_entries(&entries),
    };
    state.objects.catalog().change(Change::PutPart(upload.id, part.clone())).map_err(error::catalog)?;
    Ok((part, micros))
}

pub(crate) async fn upload_part_copy(
    state: &State,
    request: S3Request<UploadPartCopyInput>,
) -> S3Result<S3Response<UploadPartCopyOutput>> {
    let caller = Caller::of(&request.extensions)?;
    let (mut input, extensions) = (request.input, request.extensions);
    let find = move |state: &State| {
        let upload = find_upload(state, &caller, &input.bucket, &input.key, &input.upload_id)?;
        check_number(input.part_number)?;
        let (customer, of_source) = (customer_key!(input)?, customer_key!(source of input)?);
        let from = copy_source(state, &caller, &input.copy_source, false)?;
        let key = state.unseal(&from.record, of_source.as_ref())?.map(|sealing| sealing.key);
        preconditions!(source of input).check_copy(&from.record)?;
        let range = copy_range(input.copy_source_range.as_deref(), from.record.size)?;
        let sealing = state.seal_part(&upload.record, customer.as_ref())?;
        let headers = encryption::headers(&upload.record, customer.as_ref());
        Ok((upload, (from, range, key), sealing, input.part_number, headers))
    };
    let (upload, (from, range, key), sealing, number, headers) = state.query(&extensions, find).await?;
    let permit = state.transfer_permit(&extensions).await?;
    let asked = Arc::new(());
    let waits = Arc::downgrade(&asked);
    let work = move |state: &State| {
        let _permit = permit;
        let reader = Reader::with_key(&state.objects, &from, range, key).map_err(error::s3)?;
        let algorithm = attributes::get(&upload.record, ALGORITHM);
        let expected = Expected { algorithm, ..Expected::default() };
        let mut source = Incoming::copying(reader, waits, expected).sealed(sealing);
        let (part, micros) = put_part(state, &upload, number, &mut source)?;
        Ok((part, micros, from.record))
    };
    let (part, micros, from) = state.blocking(work).await?;
    drop(asked);
    let mut checksums = of_part(&part);
    let mut result = CopyPartResult {
        e_tag: Some(ETag::Strong(part.etag)),
        last_modified: Some(time(micros)),
        ..CopyPartResult::default()
    };
    set_checksums!(result, |name| checksums.remove(name));
    let output = UploadPartCopyOutput {
        copy_part_result: Some(result),
        copy_source_version_id: (!from.null).then(|| from.version.to_string()),
        ..UploadPartCopyOutput::default()
    };
    Ok(respond((output, headers)))
}

pub(crate) fn complete_upload(
    state: &State,
    caller: &Caller,
    mut input: CompleteMultipartUploadInput,
) -> S3Result<(CompleteMultipartUploadOutput, Kept, HeaderMap)> {
    let condition = condition(input.if_match.as_ref(), input.if_none_match.as_ref())?;
    let upload = match find_upload(state, caller, &input.bucket, &input.key, &input.upload_id) {
        Ok(upload) => upload,
        Err(failure) => {
            state.bucket(&input.bucket, caller, &input.key)?;
            let newest = state.objects.catalog().newest(&input.bucket, &input.key).map_err(error::catalog)?;
            let done = newest.filter(|row| row.record.attributes.get(UPLOAD) == Some(&input.upload_id));
            let done = done.map(|row| (completed(&row), Kept::default(), encryption::headers(&row.record, None)));
            return done.ok_or(failure);
        }
    };
    let listed = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
    let parts = chosen(state, upload.id, &listed)?;
    let size = parts.iter().map(|part| part.size).sum();
    if input.mpu_object_size.is_some_and(|requested| u64::try_from(requested) != Ok(size)) {
        return Err(s3_error!(InvalidRequest, "the parts have {size} bytes, which is not the declared size"));
    }
    let entries = parts.iter().map(|part| {
        let whole = state.objects.catalog().part(upload.id, part.number)?;
        // It may have been replaced by now.
        let whole = whole.filter(|whole| whole.etag == part.etag).ok_or(catalog::Refused::NoUpload)?;
        decode_entries(&whole.entries)
            .map_err(|why| ObjectError::Catalog(catalog::CatalogError::Engine(why.to_string())))
    });
    let body = state.objects.join(entries, upload.record.redundancy()).map_err(error::s3)?;
    let mut record = ObjectManifest { size, body, etag: etag_of(&parts)?, ..upload.record };
    let algorithm = record.attributes.remove(ALGORITHM);
    let kind = record.attributes.remove(KIND);
    let total = checksums::of_object(&parts, algorithm.as_deref(), kind.as_deref())?;
    for (name, value) in take_checksums!(input) {
        if record_sum(&total, name).is_none_or(|sum| sum != value) {
            return Err(s3_error!(BadDigest, "the {name} that you gave is not that of the parts"));
        }
    }
    record.attributes.extend(total);
    record.attributes.insert(UPLOAD.to_owned(), input.upload_id);
    let bucket = state.bucket_named(&input.bucket)?;
    lock::apply_default(&bucket, &mut record.attributes)?;
    record.parts = parts.iter().map(|part| part.size).collect();
    let made = state.objects.complete(record, &condition, upload.id);
    let made = made.map_err(|failure| put_error(failure, &condition))?;
    let expiration = lifecycle::expiration(&state.rules(&bucket)?, &made.row.record);
    let headers = encryption::headers(&made.row.record, None);
    Ok((CompleteMultipartUploadOutput { expiration, ..completed(&made.row) }, made.kept, headers))
}

/// The parts that a completion lists. They must exist with these tags.
fn chosen(state: &State, upload: VersionId, listed: &[CompletedPart]) -> S3Result<Vec<catalog::Part>> {
    if listed.is_empty() {
        return Err(S3ErrorCode::MalformedXML.into());
    }
    let all = state.objects.catalog().parts(upload, 0, PARTS as usize).map_err(error::catalog)?;
    let all: BTreeMap<i64, catalog::Part> = all.into_iter().map(|part| (part.number.into(), part)).collect();
    let mut chosen: Vec<catalog::Part> = vec![];
    for part in listed {
        let number = part.part_number.unwrap_or(0);
        if chosen.last().is_some_and(|last| i64::from(last.number) >= i64::from(number)) {
            return Err(S3ErrorCode::InvalidPartOrder.into());
        }
        let found = all.get(&i64::from(number));
        let found = found.filter(|found| part.e_tag.as_ref().is_some_and(|tag| tag.value() == found.etag));
        let found = found.ok_or_else(|| s3_error!(InvalidPart, "part {number} is not there with this tag"))?;
        chosen.push(found.clone());
    }
    let short = chosen[..chosen.len() - 1].iter().find(|part| part.size < LEAST);
    match short {
        Some(part) => Err(s3_error!(EntityTooSmall, "part {} has {} bytes", part.number, part.size)),
        None => Ok(chosen),
    }
}

pub(crate) fn abort_upload(
    state: &State,
    caller: &Caller,
    input: AbortMultipartUploadInput,
) -> S3Result<AbortMultipartUploadOutput> {
    if input.if_match_initiated_time.is_some() {
        return Err(s3_error!(NotImplemented, "conditional aborts are not supported"));
    }
    let upload = find_upload(state, caller, &input.bucket, &input.key, &input.upload_id)?;
    state.objects.catalog().change(Change::EndUpload(upload.id)).map_err(error::catalog)?;
    Ok(AbortMultipartUploadOutput::default())
}

pub(crate) fn list_parts(state: &State, caller: &Caller, input: ListPartsInput) -> S3Result<ListPartsOutput> {
    let upload = find_upload(state, caller, &input.bucket, &input.key, &input.upload_id)?;
    let most = page_length("max-parts", input.max_parts)?;
    let after = u32::try_from(input.part_number_marker.unwrap_or(0)).unwrap_or(0);
    let mut parts = state.objects.catalog().parts(upload.id, after, most + 1).map_err(error::catalog)?;
    let more = parts.len() > most;
    parts.truncate(most);
    let last = parts.last().map(|part| part.number as i32);
    let bucket = state.bucket_named(&input.bucket)?;
    let owner = owner(&bucket.record);
    Ok(ListPartsOutput {
        bucket: Some(input.bucket),
        initiator: Some(initiator_dto(owner)),
        is_truncated: Some(more),
        key: Some(input.key),
        max_parts: Some(most as i32),
        next_part_number_marker: Some(last.unwrap_or(0)),
        owner: Some(owner_dto(owner)),
        part_number_marker: Some(input.part_number_marker.unwrap_or(0)),
        parts: Some(parts.iter().map(part_listed).collect()),
        storage_class: Some(storage_class::of(&upload.record).into()),
        upload_id: Some(input.upload_id),
        checksum_algorithm: attributes::get(&upload.record, ALGORITHM).map(ChecksumAlgorithm::from),
        checksum_type: attributes::get(&upload.record, KIND).map(ChecksumType::from),
        ..ListPartsOutput::default()
    })
}

pub(crate) fn list_uploads(
    state: &State,
    caller: &Caller,
    input: ListMultipartUploadsInput,
) -> S3Result<ListMultipartUploadsOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let most = page_length("max-uploads", input.max_uploads)?;
    let encode = encoding(input.encoding_type.as_ref())?;
    let query = Query::new(input.prefix.as_deref(), input.delimiter.as_deref(), input.key_marker.as_deref(), most);
    let marker = input.upload_id_marker.as_deref().and_then(|id| id.parse().ok());
    let start = match marker {
        Some(id) if !query.after.is_empty() => Start::Version(query.after.clone().into_bytes(), id),
        _ => query.start(),
    };
    let name = &bucket.record.bucket;
    let page = page(&query, start, |start, limit| state.objects.catalog().uploads(name, start, limit))?;
    let (next_key, next_upload) = page.next.unzip();
    let owner = owner(&bucket.record);
    Ok(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        common_prefixes: Some(common_prefixes(page.prefixes, encode)),
        delimiter: echoed(input.delimiter, encode),
        encoding_type: input.encoding_type,
        is_truncated: Some(next_key.is_some()),
        key_marker: Some(encode(input.key_marker.unwrap_or_default())),
        max_uploads: Some(most as i32),
        next_key_marker: next_key.map(encode),
        next_upload_id_marker: next_upload.flatten(),
        prefix: input.prefix.map(encode),
        upload_id_marker: Some(input.upload_id_marker.unwrap_or_default()),
        uploads: Some(page.rows.into_iter().map(|upload| upload_listed(upload, owner, encode)).collect()),
        ..ListMultipartUploadsOutput::default()
    })
}

/// Removes uploads that were begun long ago. Blocks.
pub(crate) fn expire_uploads(state: &State) -> S3Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let before = now.saturating_sub(EXPIRY).as_micros();
    let catalog = state.objects.catalog();
    for bucket in all_buckets(catalog) {
        let bucket = bucket.map_err(error::catalog)?;
        let mut start = Start::Key(vec![]);
        loop {
            let page = catalog.uploads(&bucket.record.bucket, &start, PAGE).map_err(error::catalog)?;
            let Some(last) = page.last() else { break };
            start = Start::Version(last.record.key.clone().into_bytes(), last.id);
            for upload in page.iter().filter(|upload| u128::from(upload.id.micros()) < before) {
                tracing::info!(bucket = upload.record.bucket, key = upload.record.key, "an upload has expired");
                // A completion or an abort at this moment comes first.
                let _ = catalog.change(Change::EndUpload(upload.id));
            }
        }
    }
    Ok(())
}

fn record_sum<'a>(attributes: &'a Attributes, name: &str) -> Option<&'a str> {
    attributes.get(name).map(String::as_str)
}

fn completed(row: &Row) -> CompleteMultipartUploadOutput {
    let record = &row.record;
    let mut output = CompleteMultipartUploadOutput {
        bucket: Some(record.bucket.clone()),
        key: Some(record.key.clone()),
        e_tag: attributes::etag(record),
        checksum_type: attributes::get(record, CHECKSUM_TYPE).map(ChecksumType::from),
        version_id: attributes::version_header(record),
        ..CompleteMultipartUploadOutput::default()
    };
    set_checksums!(output, |name| attributes::get(record, name));
    output
}

/// The entity tag of an object in parts: the hash of the hashes of its parts, and their number.
fn etag_of(parts: &[catalog::Part]) -> S3Result<String> {
    let mut md5 = Md5::new();
    for part in parts {
        let hash = hex_simd::decode_to_vec(&part.etag);
        md5.update(&hash.map_err(|_| s3_error!(InternalError, "a part's tag is no hash"))?);
    }
    Ok(format!("{}-{}", hex_simd::encode_to_string(md5.finalize(), AsciiCase::Lower), parts.len()))
}

fn part_listed(part: &catalog::Part) -> Part {
    let mut checksums = of_part(part);
    let mut listed = Part {
        e_tag: Some(ETag::Strong(part.etag.clone())),
        last_modified: Some(time(part.micros)),
        part_number: i32::try_from(part.number).ok(),
        size: i64::try_from(part.size).ok(),
        ..Part::default()
    };
    set_checksums!(listed, |name| checksums.remove(name));
    listed
}

fn upload_listed(upload: Upload, owner: &str, encode: fn(String) -> String) -> MultipartUpload {
    MultipartUpload {
        checksum_algorithm: attributes::get(&upload.record, ALGORITHM).map(ChecksumAlgorithm::from),
        checksum_type: attributes::get(&upload.record, KIND).map(ChecksumType::from),
        initiated: Some(time(upload.id.micros())),
        storage_class: Some(storage_class::of(&upload.record).into()),
        initiator: Some(initiator_dto(owner)),
        key: Some(encode(upload.record.key)),
        owner: Some(owner_dto(owner)),
        upload_id: Some(upload.id.to_string()),
    }
}

/// The range of a copy: `bytes=FIRST-LAST`, both within the source.
fn copy_range(asked: Option<&str>, size: u64) -> S3Result<std::ops::Range<u64>> {
    let Some(asked) = asked else { return Ok(0..size) };
    let pair = asked.strip_prefix("bytes=").and_then(|pair| pair.split_once('-'));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok());
    let pair = pair.and_then(|(first, last)| Some((digits(first)??, digits(last)??)));
    let (first, last) = pair.filter(|(first, last)| first <= last).ok_or_else(|| {
        s3_error!(
            InvalidArgument,
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the \
             zero-based offsets of the first and last bytes to copy"
        )
    })?;
    if last >= size {
        return Err(s3_error!(InvalidArgument, "Range specified is not valid for source object of size: {size}"));
    }
    Ok(first..last + 1)
}
