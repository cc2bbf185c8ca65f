//! Policies of buckets.

use s3s::dto::*;
use s3s::{S3ErrorCode, S3Result, s3_error};

use crate::rules::caller::Caller;
use crate::rules::ownership::PublicBlock;
use crate::rules::policy::{self, POLICY, Policy};
use crate::state::State;

pub(crate) fn put_bucket_policy(
    state: &State,
    caller: &Caller,
    input: PutBucketPolicyInput,
) -> S3Result<PutBucketPolicyOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    if input.policy.len() > policy::BYTES {
        return Err(s3_error!(MalformedPolicy, "a policy may have {} bytes", policy::BYTES));
    }
    let policy = Policy::read(&input.policy, &input.bucket)?;
    if policy.is_public() && PublicBlock::in_force(&bucket.record)?.new_policies {
        return Err(s3_error!(AccessDenied, "the bucket's public access block refuses policies for everybody"));
    }
    let users = state.users.list().map_err(|failure| s3_error!(InternalError, "{failure}"))?;
    if let Some(unknown) = policy.users().find(|name| !users.iter().any(|user| user.name == **name)) {
        return Err(s3_error!(MalformedPolicy, "Invalid principal in policy: there is no user {unknown:?}"));
    }
    state.set_bucket(&bucket, POLICY, Some(input.policy))?;
    Ok(PutBucketPolicyOutput::default())
}

pub(crate) fn get_bucket_policy(
    state: &State,
    caller: &Caller,
    input: GetBucketPolicyInput,
) -> S3Result<GetBucketPolicyOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let text = bucket.record.attributes.get(POLICY).cloned();
    Ok(GetBucketPolicyOutput { policy: Some(text.ok_or(S3ErrorCode::NoSuchBucketPolicy)?) })
}

pub(crate) fn get_bucket_policy_status(
    state: &State,
    caller: &Caller,
    input: GetBucketPolicyStatusInput,
) -> S3Result<GetBucketPolicyStatusOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let policy = Policy::of(&bucket)?.ok_or(S3ErrorCode::NoSuchBucketPolicy)?;
    let is_public = Some(policy.is_public());
    Ok(GetBucketPolicyStatusOutput { policy_status: Some(PolicyStatus { is_public }) })
}

pub(crate) fn delete_bucket_policy(
    state: &State,
    caller: &Caller,
    input: DeleteBucketPolicyInput,
) -> S3Result<DeleteBucketPolicyOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    state.set_bucket(&bucket, POLICY, None)?;
    Ok(DeleteBucketPolicyOutput::default())
}
