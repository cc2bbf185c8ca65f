//! Tags of objects.

use s3s::S3Result;
use s3s::dto::*;

use crate::rules::attributes::version_header;
use crate::rules::caller::Caller;
use crate::rules::tags::{self, TAGS, Tags};
use crate::state::State;

pub(crate) fn put_object_tagging(
    state: &State,
    caller: &Caller,
    input: PutObjectTaggingInput,
) -> S3Result<PutObjectTaggingOutput> {
    let tags = tags::check(tags::from_dto(input.tagging)?, tags::MOST)?;
    let version = set_tags(state, caller, &input.bucket, &input.key, input.version_id.as_deref(), &tags)?;
    Ok(PutObjectTaggingOutput { version_id: version })
}

pub(crate) fn delete_object_tagging(
    state: &State,
    caller: &Caller,
    input: DeleteObjectTaggingInput,
) -> S3Result<DeleteObjectTaggingOutput> {
    let version = set_tags(state, caller, &input.bucket, &input.key, input.version_id.as_deref(), &vec![])?;
    Ok(DeleteObjectTaggingOutput { version_id: version })
}

fn set_tags(
    state: &State,
    caller: &Caller,
    bucket: &str,
    key: &str,
    version: Option<&str>,
    tags: &Tags,
) -> S3Result<Option<String>> {
    let caller = caller.with(|context| context.add_request_tags(tags));
    let bucket = state.bucket(bucket, &caller, key)?;
    let row = state.revise(&bucket, key, version, |record| {
        tags::keep(&mut record.attributes, tags);
        Ok(())
    })?;
    Ok(version_header(&row.record))
}

pub(crate) fn get_object_tagging(
    state: &State,
    caller: &Caller,
    input: GetObjectTaggingInput,
) -> S3Result<GetObjectTaggingOutput> {
    let bucket = state.bucket(&input.bucket, caller, &input.key)?;
    let row = state.find(&bucket, &input.key, input.version_id.as_deref())?;
    let text = row.record.attributes.get(TAGS).map_or("", String::as_str);
    let tag_set = tags::to_dto(tags::read(text)?);
    Ok(GetObjectTaggingOutput { tag_set, version_id: version_header(&row.record) })
}
