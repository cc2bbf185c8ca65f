//! CORS rules of buckets.

use s3s::dto::*;
use s3s::{S3ErrorCode, S3Result};

use crate::rules::caller::Caller;
use crate::rules::cors::{self, CORS, Rule};
use crate::rules::error;
use crate::state::State;

/// The rules of a bucket; `None` when there is no such bucket. Blocks.
pub(crate) fn rules_of(state: &State, bucket: &str) -> S3Result<Option<Vec<Rule>>> {
    let row = state.objects.catalog().bucket(bucket).map_err(error::catalog)?;
    row.map(|row| cors::rules(row.record.attributes.get(CORS))).transpose()
}

pub(crate) fn put_bucket_cors(
    state: &State,
    caller: &Caller,
    input: PutBucketCorsInput,
) -> S3Result<PutBucketCorsOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let rules = cors::from_dto(input.cors_configuration.cors_rules)?;
    state.keep_setting(&bucket, CORS, &rules)?;
    Ok(PutBucketCorsOutput::default())
}

pub(crate) fn get_bucket_cors(
    state: &State,
    caller: &Caller,
    input: GetBucketCorsInput,
) -> S3Result<GetBucketCorsOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let rules = cors::rules(bucket.record.attributes.get(CORS))?;
    if rules.is_empty() {
        return Err(S3ErrorCode::NoSuchCORSConfiguration.into());
    }
    Ok(GetBucketCorsOutput { cors_rules: Some(rules.into_iter().map(Rule::into_dto).collect()) })
}

pub(crate) fn delete_bucket_cors(
    state: &State,
    caller: &Caller,
    input: DeleteBucketCorsInput,
) -> S3Result<DeleteBucketCorsOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    state.set_bucket(&bucket, CORS, None)?;
    Ok(DeleteBucketCorsOutput::default())
}
