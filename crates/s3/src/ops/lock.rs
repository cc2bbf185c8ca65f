//! Object lock: the configuration of buckets, and retention and legal hold of versions.

use s3s::dto::*;
use s3s::{S3ErrorCode, S3Result, s3_error};

use crate::rules::attributes::get;
use crate::rules::caller::Caller;
use crate::rules::context::Context;
use crate::rules::lock::{BucketDefault, HOLD, LOCK, MODE, Retention, UNTIL, bypasses, date, known_hold, lockable};
use crate::state::State;

pub(crate) fn put_lock_configuration(
    state: &State,
    caller: &Caller,
    input: PutObjectLockConfigurationInput,
) -> S3Result<PutObjectLockConfigurationOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let requested = input.object_lock_configuration.ok_or(S3ErrorCode::MalformedXML)?;
    if requested.object_lock_enabled.is_none_or(|enabled| enabled.as_str() != ObjectLockEnabled::ENABLED) {
        return Err(S3ErrorCode::MalformedXML.into());
    }
    let default = BucketDefault::from_dto(requested.rule)?;
    state.keep_setting(&bucket, LOCK, &default)?;
    Ok(PutObjectLockConfigurationOutput::default())
}

pub(crate) fn get_lock_configuration(
    state: &State,
    caller: &Caller,
    input: GetObjectLockConfigurationInput,
) -> S3Result<GetObjectLockConfigurationOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let default = BucketDefault::of(&bucket)?.ok_or(S3ErrorCode::ObjectLockConfigurationNotFoundError)?;
    let object_lock_enabled = Some(ObjectLockEnabled::from_static(ObjectLockEnabled::ENABLED));
    let configuration = ObjectLockConfiguration { object_lock_enabled, rule: default.into_dto() };
    Ok(GetObjectLockConfigurationOutput { object_lock_configuration: Some(configuration) })
}

pub(crate) fn put_retention(
    state: &State,
    caller: &Caller,
    input: PutObjectRetentionInput,
) -> S3Result<PutObjectRetentionOutput> {
    let retention = input.retention.unwrap_or_default();
    let caller = &caller.with(|context| add_retention(context, &retention));
    let bucket = state.bucket(&input.bucket, caller, &input.key)?;
    lockable(&bucket)?;
    let bypass = bypasses(&bucket, caller, &input.key, input.bypass_governance_retention)?;
    let asked = Retention::in_document(&retention)?;
    state.revise(&bucket, &input.key, input.version_id.as_deref(), |record| {
        let active = Retention::of(record)?.filter(|old| !old.is_over() && !old.is_kept_by(asked.as_ref()));
        if active.is_some_and(|old| old.mode == ObjectLockMode::COMPLIANCE || !bypass) {
            return Err(s3_error!(AccessDenied, "the version is retained until a later date"));
        }
        [MODE, UNTIL].iter().for_each(|name| drop(record.attributes.remove(*name)));
        asked.as_ref().map_or(Ok(()), |asked| asked.keep(&mut record.attributes))
    })?;
    Ok(PutObjectRetentionOutput::default())
}

/// What conditions can look at of a retention in a document.
fn add_retention(context: &mut Context, asked: &ObjectLockRetention) {
    if let Some(mode) = &asked.mode {
        context.add("s3:object-lock-mode", mode.as_str().to_owned());
    }
    let until = asked.retain_until_date.as_ref().and_then(|until| date(until).ok());
    until.into_iter().for_each(|until| context.add_retention(until));
}

pub(crate) fn get_retention(
    state: &State,
    caller: &Caller,
    input: GetObjectRetentionInput,
) -> S3Result<GetObjectRetentionOutput> {
    let bucket = state.bucket(&input.bucket, caller, &input.key)?;
    lockable(&bucket)?;
    let row = state.find(&bucket, &input.key, input.version_id.as_deref())?;
    let kept = Retention::of(&row.record)?.ok_or(S3ErrorCode::NoSuchObjectLockConfiguration)?;
    let (mode, until) = (Some(ObjectLockRetentionMode::from(kept.mode)), Some(kept.until));
    Ok(GetObjectRetentionOutput { retention: Some(ObjectLockRetention { mode, retain_until_date: until }) })
}

pub(crate) fn put_legal_hold(
    state: &State,
    caller: &Caller,
    input: PutObjectLegalHoldInput,
) -> S3Result<PutObjectLegalHoldOutput> {
    let status = input.legal_hold.and_then(|hold| hold.status);
    let asked = status.as_ref().map(|status| status.as_str().to_owned());
    let caller =
        &caller.with(|context| asked.into_iter().for_each(|status| context.add("s3:object-lock-legal-hold", status)));
    let bucket = state.bucket(&input.bucket, caller, &input.key)?;
    lockable(&bucket)?;
    let status = known_hold(&status.ok_or(S3ErrorCode::MalformedXML)?)?;
    state.revise(&bucket, &input.key, input.version_id.as_deref(), |record| {
        record.attributes.insert(HOLD.to_owned(), status.clone());
        Ok(())
    })?;
    Ok(PutObjectLegalHoldOutput::default())
}

pub(crate) fn get_legal_hold(
    state: &State,
    caller: &Caller,
    input: GetObjectLegalHoldInput,
) -> S3Result<GetObjectLegalHoldOutput> {
    let bucket = state.bucket(&input.bucket, caller, &input.key)?;
    lockable(&bucket)?;
    let row = state.find(&bucket, &input.key, input.version_id.as_deref())?;
    let status = get(&row.record, HOLD).ok_or(S3ErrorCode::NoSuchObjectLockConfiguration)?;
    let legal_hold = Some(ObjectLockLegalHold { status: Some(status.into()) });
    Ok(GetObjectLegalHoldOutput { legal_hold })
}
