//! The encryption that a bucket's new objects have where a request asks for none.

use http::StatusCode;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Result};

use crate::rules::caller::Caller;
use crate::rules::encryption::{BucketDefault, DEFAULT};
use crate::rules::error;
use crate::state::State;

pub(crate) fn put_bucket_encryption(
    state: &State,
    caller: &Caller,
    input: PutBucketEncryptionInput,
) -> S3Result<PutBucketEncryptionOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let rules = input.server_side_encryption_configuration.rules;
    let Ok([rule]) = <[ServerSideEncryptionRule; 1]>::try_from(rules) else {
        return Err(S3ErrorCode::MalformedXML.into());
    };
    let by_default = rule.apply_server_side_encryption_by_default.ok_or(S3ErrorCode::MalformedXML)?;
    let default = BucketDefault {
        method: by_default.sse_algorithm.as_str().to_owned(),
        key_id: by_default.kms_master_key_id,
        bucket_key: rule.bucket_key_enabled,
    };
    default.check()?;
    state.keep_setting(&bucket, DEFAULT, &default)?;
    Ok(PutBucketEncryptionOutput::default())
}

pub(crate) fn get_bucket_encryption(
    state: &State,
    caller: &Caller,
    input: GetBucketEncryptionInput,
) -> S3Result<GetBucketEncryptionOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let default = BucketDefault::of(&bucket)?.ok_or_else(|| {
        let why = "The server side encryption configuration was not found";
        error::custom("ServerSideEncryptionConfigurationNotFoundError", StatusCode::NOT_FOUND, why)
    })?;
    let by_default = ServerSideEncryptionByDefault {
        kms_master_key_id: default.key_id,
        sse_algorithm: ServerSideEncryption::from(default.method),
    };
    let rule = ServerSideEncryptionRule {
        apply_server_side_encryption_by_default: Some(by_default),
        bucket_key_enabled: Some(default.bucket_key.unwrap_or(false)),
    };
    let configuration = ServerSideEncryptionConfiguration { rules: vec![rule] };
    Ok(GetBucketEncryptionOutput { server_side_encryption_configuration: Some(configuration) })
}

pub(crate) fn delete_bucket_encryption(
    state: &State,
    caller: &Caller,
    input: DeleteBucketEncryptionInput,
) -> S3Result<DeleteBucketEncryptionOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    state.set_bucket(&bucket, DEFAULT, None)?;
    Ok(DeleteBucketEncryptionOutput::default())
}
