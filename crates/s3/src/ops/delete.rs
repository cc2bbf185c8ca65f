//! DeleteObject and DeleteObjects.

use catalog::object_manifest::Kind;
use catalog::{Condition, Refused, Row};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use super::put::{check_condition, condition, draft, put_error};
use crate::rules::attributes::version_id;
use crate::rules::caller::Caller;
use crate::rules::messages::message;
use crate::rules::versioning::Versioning;
use crate::rules::{error, lock, policy};
use crate::state::State;

/// Objects in one DeleteObjects, as in S3.
const AT_ONCE: usize = 1_000;
/// Threads of one DeleteObjects.
const HANDS: usize = 8;

/// The outcome of a delete.
struct Deleted {
    /// The version that was removed, or the delete marker that was put.
    version: Option<String>,
    /// Whether that is a delete marker.
    marker: bool,
}

pub(crate) fn delete_object(state: &State, caller: &Caller, input: DeleteObjectInput) -> S3Result<DeleteObjectOutput> {
    // S3 has these for directory buckets alone.
    if input.if_match_last_modified_time.is_some() || input.if_match_size.is_some() {
        return Err(S3ErrorCode::NotImplemented.into());
    }
    let bucket = state.bucket(&input.bucket, caller, &input.key)?;
    let condition = condition(input.if_match.as_ref(), None)?;
    let asked = Delete { key: &input.key, version: input.version_id.as_deref(), condition };
    let deleted = delete(state, caller, &bucket, &asked, input.bypass_governance_retention)?;
    Ok(DeleteObjectOutput {
        delete_marker: deleted.marker.then_some(true),
        version_id: deleted.version,
        ..DeleteObjectOutput::default()
    })
}

pub(crate) async fn delete_objects(
    state: &State,
    request: S3Request<DeleteObjectsInput>,
) -> S3Result<S3Response<DeleteObjectsOutput>> {
    let caller = Caller::of(&request.extensions)?;
    // It has threads of its own, so it needs the permit of a transfer.
    let permit = state.transfer_permit(&request.extensions).await?;
    let work = move |state: &State| {
        let _permit = permit;
        delete_all(state, &caller, request.input)
    };
    state.blocking(work).await.map(S3Response::new)
}

fn delete_all(state: &State, caller: &Caller, input: DeleteObjectsInput) -> S3Result<DeleteObjectsOutput> {
    // Access is checked for each key.
    let bucket = state.bucket_of_owner(&input.bucket, caller)?;
    let objects = input.delete.objects;
    if objects.is_empty() || objects.len() > AT_ONCE {
        return Err(S3ErrorCode::MalformedXML.into());
    }
    let quiet = input.delete.quiet == Some(true);
    let one = |object: &ObjectIdentifier| delete_one(state, caller, &bucket, object, input.bypass_governance_retention);
    // Each removal waits for the disks. Several at once share that time.
    let outcomes: Vec<S3Result<Deleted>> = std::thread::scope(|scope| {
        let shares = objects.chunks(objects.len().div_ceil(HANDS));
        let hands: Vec<_> =
            shares.map(|share| scope.spawn(move || share.iter().map(one).collect::<Vec<_>>())).collect();
        let join = |hand: std::thread::ScopedJoinHandle<'_, _>| {
            hand.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        hands.into_iter().flat_map(join).collect()
    });
    let (mut done, mut errors) = (vec![], vec![]);
    for (object, outcome) in objects.into_iter().zip(outcomes) {
        match outcome {
            Ok(_) if quiet => {}
            Ok(deleted) => done.push(DeletedObject {
                delete_marker: deleted.marker.then_some(true),
                delete_marker_version_id: deleted.version.filter(|_| deleted.marker),
                key: Some(object.key),
                version_id: object.version_id,
            }),
            Err(failure) => errors.push(Error {
                code: Some(failure.code().as_str().to_owned()),
                key: Some(object.key),
                message: failure.message().or_else(|| message(failure.code().as_str())).map(str::to_owned),
                version_id: object.version_id,
            }),
        }
    }
    let errors = (!errors.is_empty()).then_some(errors);
    Ok(DeleteObjectsOutput { deleted: Some(done), errors, ..DeleteObjectsOutput::default() })
}

/// Removes one of the keys of DeleteObjects.
fn delete_one(
    state: &State,
    caller: &Caller,
    bucket: &Row,
    object: &ObjectIdentifier,
    bypass: Option<bool>,
) -> S3Result<Deleted> {
    if object.size.is_some() || object.last_modified_time.is_some() {
        return Err(S3ErrorCode::NotImplemented.into());
    }
    let version = object.version_id.as_deref();
    let caller = &match version {
        None => caller.clone(),
        Some(version) => caller.with(|context| context.add("s3:versionid", version.to_owned())),
    };
    state.allow(bucket, caller, policy::action("DeleteObject", version.is_some()), &object.key, version)?;
    let condition = match &object.e_tag {
        None => Condition::Always,
        Some(tag) if tag.value() == "*" => Condition::Present,
        Some(tag) => Condition::Matches(tag.value().to_owned()),
    };
    delete(state, caller, bucket, &Delete { key: &object.key, version, condition }, bypass)
}

/// Removes an object like a DELETE without a version, unless a newer version took its place.
pub(crate) fn expire(state: &State, bucket: &Row, row: &Row) -> S3Result<()> {
    if Versioning::of(&bucket.record) == Versioning::Never {
        return remove(state, row, false).map(drop);
    }
    let mut marker = draft(bucket, &row.record.key)?;
    marker.kind = Kind::Marker;
    match state.objects.publish(marker, &Condition::Newest(row.record.version)) {
        Err(failure) if failure.refused() != Some(Refused::Condition) => Err(error::s3(failure)),
        _ => Ok(()),
    }
}

/// What is to be removed: a key, or one version of it, if the condition holds for the key's newest version.
struct Delete<'a> {
    key: &'a str,
    version: Option<&'a str>,
    condition: Condition,
}

/// Removes a key, or one version of it. Removing what is not there succeeds, as in S3, but not on a condition.
fn delete(state: &State, caller: &Caller, bucket: &Row, asked: &Delete<'_>, bypass: Option<bool>) -> S3Result<Deleted> {
    let Delete { key, version, condition } = asked;
    let name = &bucket.record.bucket;
    let versioning = Versioning::of(&bucket.record);
    if matches!(condition, Condition::Matches(_)) {
        // Otherwise it would say what the object is to somebody who may not read it.
        state.allow(bucket, caller, policy::action("GetObject", version.is_some()), key, *version)?;
    }
    let bypass = lock::bypasses(bucket, caller, key, bypass)?;
    if version.is_none() && versioning != Versioning::Never {
        let mut marker = draft(bucket, key)?;
        marker.kind = Kind::Marker;
        let made = state.objects.publish(marker, condition).map_err(|failure| put_error(failure, condition))?;
        let row = made.row;
        return Ok(Deleted { version: Some(version_id(&row.record)), marker: true });
    }
    let id = match version {
        None | Some("null") => None,
        Some(text) => Some(text.parse().map_err(|()| s3_error!(InvalidArgument, "Invalid version id specified"))?),
    };
    let mut marker = false;
    // A put may replace what was found. Then its version is removed: otherwise this delete would have happened neither before
    // the put nor after it.
    loop {
        check_condition(state, name, key, condition)?;
        let Some(row) = state.objects.catalog().version(name, key, id).map_err(error::catalog)? else { break };
        if let Condition::Matches(tag) = condition
            && version.is_none()
            && row.record.etag != *tag
        {
            // Another put came between.
            continue;
        }
        marker = row.record.kind == Kind::Marker;
        if remove(state, &row, bypass)? {
            break;
        }
    }
    Ok(Deleted { version: version.map(str::to_owned), marker })
}

/// Removes a version for good, unless it is locked; `false` when it was changed since `row` was read.
pub(crate) fn remove(state: &State, row: &Row, bypass: bool) -> S3Result<bool> {
    lock::check_removal(&row.record, bypass)?;
    state.objects.erase(row).map_err(error::s3)
}
