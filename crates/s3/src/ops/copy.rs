//! CopyObject: names the bytes that are there, or, where they are to be encrypted otherwise, writes them anew.

use std::sync::{Arc, Weak};

use catalog::object_manifest::ObjectManifest;
use catalog::{Condition, Row};
use http::HeaderMap;
use object::objects::{Kept, Made, Reader};
use object::seal::DataKey;
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use super::acl::of_new_object;
use super::body::{Expected, Incoming};
use super::kept::respond;
use super::put::{condition, draft, put_error};
use crate::rules::acl::{ACL, asked_acl};
use crate::rules::attributes::{self, CHECKSUM_TYPE, UPLOAD};
use crate::rules::caller::Caller;
use crate::rules::checksums::set_checksums;
use crate::rules::encryption::{self, Sealing, asked_encryption, customer_key};
use crate::rules::headers::headers;
use crate::rules::lifecycle::{self, Rule};
use crate::rules::lock::{self, requested_lock};
use crate::rules::preconditions::preconditions;
use crate::rules::{error, policy, tags};
use crate::state::State;
use crate::state::fair_queue::Permit;

/// A copy, up to its bytes.
struct Copy {
    from: Row,
    record: ObjectManifest,
    condition: Condition,
    rules: Vec<Rule>,
    compress: Option<bool>,
    /// Where the bytes are written anew: what they are read with, and encrypted with.
    anew: Option<(Option<DataKey>, Option<Sealing>)>,
    headers: HeaderMap,
}

type Copied = (CopyObjectOutput, Kept, HeaderMap);

pub(crate) async fn copy_object(
    state: &State,
    request: S3Request<CopyObjectInput>,
) -> S3Result<S3Response<CopyObjectOutput>> {
    let caller = Caller::of(&request.extensions)?;
    let condition = copy_condition(&request)?;
    let (input, extensions) = (request.input, request.extensions);
    let find = move |state: &State| prepare(state, &caller, input, condition);
    let mut copy = state.query(&extensions, find).await?;
    let Some(anew) = copy.anew.take() else {
        return state.query(&extensions, move |state| share(state, copy)).await.map(respond);
    };
    let permit = state.transfer_permit(&extensions).await?;
    let asked = Arc::new(());
    let waits = Arc::downgrade(&asked);
    let copied = state.blocking(move |state| rewrite(state, copy, anew, waits, permit)).await.map(respond);
    drop(asked);
    copied
}

fn prepare(state: &State, caller: &Caller, mut input: CopyObjectInput, condition: Condition) -> S3Result<Copy> {
    let bucket = state.bucket(&input.bucket, caller, &input.key)?;
    let (asked, of_source) = (asked_encryption!(input)?, customer_key!(source of input)?);
    let new_tags = replaces("tagging", input.tagging_directive.as_ref().map(TaggingDirective::as_str))?;
    let from = copy_source(state, caller, &input.copy_source, !new_tags)?;
    let source = state.unseal(&from.record, of_source.as_ref())?;
    preconditions!(source of input).check_copy(&from.record)?;
    let replace = replaces("metadata", input.metadata_directive.as_ref().map(MetadataDirective::as_str))?;
    let itself = from.record.bucket == input.bucket && from.record.key == input.key;
    let class = input.storage_class.take();
    if itself && !replace && class.is_none() && !asked.is_some() && from.record.null {
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
    record.attributes.remove(ACL);
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
    let list = of_new_object(state, &bucket, caller, &input.key, &asked_acl!(input))?;
    record.attributes.extend(list.map(|list| (ACL.to_owned(), list)));
    state.classes.apply(class.as_ref().map(StorageClass::as_str), &bucket.record, &mut record)?;
    let customer = asked.customer.clone();
    let anew = encrypt(state, &bucket, asked, &mut record, source)?;
    let headers = encryption::headers_of_put(&record, customer.as_ref());
    let (compress, rules) = (tags::compress(&bucket.record), state.rules(&bucket)?);
    Ok(Copy { from, record, condition, rules, compress, anew, headers })
}

/// Says how the copy is encrypted. Where that takes other bytes than there are, what the old ones are read with, and the new
/// ones encrypted with. Where source and copy are encrypted, and their entity tags may be alike, they have one key, which is
/// wrapped for each.
fn encrypt(
    state: &State,
    bucket: &Row,
    asked: encryption::RequestedEncryption,
    record: &mut ObjectManifest,
    source: Option<Sealing>,
) -> S3Result<Option<(Option<DataKey>, Option<Sealing>)>> {
    let sealing = state.seal(bucket, asked, record, source.as_ref().map(|source| &source.key))?;
    match (source, sealing) {
        (None, None) => Ok(None),
        (Some(source), Some(sealing)) if source.hides_tag == sealing.hides_tag => Ok(None),
        (source, sealing) => Ok(Some((source.map(|source| source.key), sealing))),
    }
}

/// The new version names the same chunks.
fn share(state: &State, copy: Copy) -> S3Result<Copied> {
    let made = state.objects.publish(copy.record, &copy.condition);
    let made = made.map_err(|failure| put_error(failure, &copy.condition))?;
    copied(made, &copy.from, &copy.rules, copy.headers)
}

/// The new version has bytes of its own. The copy ends when the request that `asked` belongs to is dropped.
fn rewrite(
    state: &State,
    copy: Copy,
    (key, sealing): (Option<DataKey>, Option<Sealing>),
    asked: Weak<()>,
    permit: Permit,
) -> S3Result<Copied> {
    let _permit = permit;
    let Copy { from, mut record, condition, rules, compress, headers, .. } = copy;
    let size = from.record.size;
    let reader = Reader::with_key(&state.objects, &from, 0..size, key).map_err(error::s3)?;
    // The new bytes have one checksum of all of them, by the algorithm that the old ones have.
    let is_sum = |name: &String| name.starts_with("x-amz-checksum-");
    let sum = record.attributes.keys().find(|name| is_sum(name) && *name != CHECKSUM_TYPE);
    let algorithm = sum.and_then(|name| name.strip_prefix("x-amz-checksum-")).map(str::to_ascii_uppercase);
    record.attributes.retain(|name, _| !is_sum(name));
    let expected = Expected { algorithm, ..Expected::default() };
    let mut source = Incoming::copying(reader, asked, expected).sealed(sealing);
    source.compress = compress;
    let made = state.objects.put(record, &condition, &mut source);
    copied(made.map_err(|failure| put_error(failure, &condition))?, &from, &rules, headers)
}

fn copied(made: Made, from: &Row, rules: &[Rule], headers: HeaderMap) -> S3Result<Copied> {
    let Made { row, kept } = made;
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
        expiration: lifecycle::expiration(rules, &row.record),
        version_id: attributes::version_header(&row.record),
        ..CopyObjectOutput::default()
    };
    Ok((output, kept, headers))
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
