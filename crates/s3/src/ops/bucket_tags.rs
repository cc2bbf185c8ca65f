//! Tags of buckets. Two of them are settings: whether chunks of new objects are compressed, and which storage class these
//! have. An owner sets them with any S3 client. Without them the configuration of the gateway counts.

use s3s::dto::*;
use s3s::{S3ErrorCode, S3Result, s3_error};

use crate::rules::caller::Caller;
use crate::rules::storage_class::DEFAULT_CLASS;
use crate::rules::tags::{self, COMPRESS, TAGS};
use crate::state::State;

/// Tags of one bucket, as in S3.
const MOST: usize = 50;

pub(crate) fn put_bucket_tagging(
    state: &State,
    caller: &Caller,
    input: PutBucketTaggingInput,
) -> S3Result<PutBucketTaggingOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let tags = tags::check(tags::from_dto(input.tagging)?, MOST)?;
    if tags.iter().any(|(key, value)| key == COMPRESS && !matches!(value.as_str(), "on" | "off")) {
        return Err(s3_error!(InvalidTag, "{COMPRESS} is \"on\" or \"off\""));
    }
    if let Some((_, class)) = tags.iter().find(|(key, _)| key == DEFAULT_CLASS) {
        state.classes.check(class)?;
    }
    state.set_bucket(&bucket, TAGS, tags::text(&tags))?;
    Ok(PutBucketTaggingOutput::default())
}

pub(crate) fn get_bucket_tagging(
    state: &State,
    caller: &Caller,
    input: GetBucketTaggingInput,
) -> S3Result<GetBucketTaggingOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let tags = bucket.record.attributes.get(TAGS).and_then(|text| tags::parse(text));
    let tag_set = tags::to_dto(tags.ok_or(S3ErrorCode::NoSuchTagSet)?);
    Ok(GetBucketTaggingOutput { tag_set })
}

pub(crate) fn delete_bucket_tagging(
    state: &State,
    caller: &Caller,
    input: DeleteBucketTaggingInput,
) -> S3Result<DeleteBucketTaggingOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    state.set_bucket(&bucket, TAGS, None)?;
    Ok(DeleteBucketTaggingOutput::default())
}
