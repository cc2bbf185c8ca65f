//! CORS rules of buckets.

use s3s::dto::*;
use s3s::{S3ErrorCode, S3Result, s3_error};

use crate::rules::caller::Caller;
use crate::rules::cors::{self, BrowserRequest, CORS, Rule};
use crate::rules::error;
use crate::state::State;

/// The first rule of a bucket that allows the request of a page. Blocks.
pub(crate) fn rule_for(state: &State, bucket: &str, page: &BrowserRequest) -> S3Result<Option<Rule>> {
    let Some(row) = state.objects.catalog().bucket(bucket).map_err(error::catalog)? else { return Ok(None) };
    let rules = cors::rules(row.record.attributes.get(CORS))?;
    Ok(rules.into_iter().find(|rule| rule.allows(page)))
}

pub(crate) fn put_bucket_cors(
    state: &State,
    caller: &Caller,
    input: PutBucketCorsInput,
) -> S3Result<PutBucketCorsOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let rules = cors::from_dto(input.cors_configuration.cors_rules)?;
    let text = serde_json::to_string(&rules).map_err(|e| s3_error!(InternalError, "{e}"))?;
    state.set_bucket(&bucket, CORS, Some(text))?;
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
