//! Lifecycle rules of buckets: what expires by them is removed, and what moves gets another storage class.

use std::time::{SystemTime, UNIX_EPOCH};

use catalog::object_manifest::Kind;
use catalog::{Change, Refused, Row, Start, all_buckets};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};

use super::delete::{expire, remove};
use crate::rules::caller::Caller;
use crate::rules::lifecycle::{LIFECYCLE, MOST, Rule, moves, moves_older};
use crate::rules::{error, lock, storage_class};
use crate::state::State;

/// Versions that are read at once.
const PAGE: usize = 1_000;

pub(crate) fn put_lifecycle(
    state: &State,
    caller: &Caller,
    input: PutBucketLifecycleConfigurationInput,
) -> S3Result<PutBucketLifecycleConfigurationOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let requested = input.lifecycle_configuration.ok_or(S3ErrorCode::MalformedXML)?.rules;
    if requested.is_empty() || requested.len() > MOST {
        return Err(S3ErrorCode::MalformedXML.into());
    }
    let rules = requested.into_iter().map(|rule| Rule::from_dto(rule, name)).collect::<S3Result<Vec<Rule>>>()?;
    Rule::check_names(&rules)?;
    rules.iter().flat_map(Rule::classes).try_for_each(|class| state.classes.check(class))?;
    state.keep_setting(&bucket, LIFECYCLE, &rules)?;
    Ok(PutBucketLifecycleConfigurationOutput::default())
}

/// A name for a rule that has none.
fn name() -> S3Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|e| s3_error!(InternalError, "there is no randomness: {e}"))?;
    Ok(hex_simd::encode_to_string(random, hex_simd::AsciiCase::Lower))
}

pub(crate) fn get_lifecycle(
    state: &State,
    caller: &Caller,
    input: GetBucketLifecycleConfigurationInput,
) -> S3Result<GetBucketLifecycleConfigurationOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let rules = state.rules(&bucket)?;
    if rules.is_empty() {
        return Err(S3ErrorCode::NoSuchLifecycleConfiguration.into());
    }
    let rules = Some(rules.into_iter().map(Rule::into_dto).collect());
    Ok(GetBucketLifecycleConfigurationOutput { rules, ..GetBucketLifecycleConfigurationOutput::default() })
}

pub(crate) fn delete_lifecycle(
    state: &State,
    caller: &Caller,
    input: DeleteBucketLifecycleInput,
) -> S3Result<DeleteBucketLifecycleOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    state.set_bucket(&bucket, LIFECYCLE, None)?;
    Ok(DeleteBucketLifecycleOutput::default())
}

/// Removes what the rules of all buckets let expire. Blocks. Goes on after a failure, and returns the first one.
pub(crate) fn expire_objects(state: &State) -> S3Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
    let mut outcome = Ok(());
    for bucket in all_buckets(state.objects.catalog()) {
        let bucket = bucket.map_err(error::catalog)?;
        let rules = state.rules(&bucket)?;
        if !rules.is_empty() {
            outcome = outcome.and(expire_versions(state, &bucket, &rules, now));
            expire_bucket_uploads(state, &bucket, &rules, now)?;
        }
    }
    outcome
}

fn expire_versions(state: &State, bucket: &Row, rules: &[Rule], now: u64) -> S3Result<()> {
    let mut start = Start::Key(vec![]);
    // The previous version: its key, when it was put, and how many noncurrent versions of its key came before it.
    let mut before: Option<(String, u64, usize)> = None;
    let mut outcome = Ok(());
    loop {
        let page = state.objects.catalog().versions(&bucket.record.bucket, &start, PAGE).map_err(error::catalog)?;
        let Some((last, _)) = page.last() else { return outcome };
        start = Start::Version(last.record.key.clone().into_bytes(), last.record.version);
        for (row, newest) in page {
            let record = &row.record;
            let (since, newer) = match &before {
                Some((key, since, newer)) if *key == record.key => (*since, *newer),
                _ => (now, 0),
            };
            let gone = if newest && record.kind == Kind::Object {
                rules.iter().any(|rule| rule.ends(record, now)).then(|| expire(state, bucket, &row))
            } else if newest {
                let ends = rules.iter().any(|rule| rule.ends_lone_marker(record));
                (ends && is_alone(state, &row)?).then(|| remove(state, &row, false).map(drop))
            } else {
                let ends = rules.iter().any(|rule| rule.ends_older(record, since, newer, now));
                (ends && lock::check_removal(record, false).is_ok()).then(|| remove(state, &row, false).map(drop))
            };
            let gone = match gone {
                Some(outcome) => outcome,
                None => relocate(state, bucket, &row, if newest { None } else { Some((since, newer)) }, rules, now),
            };
            outcome = outcome.and(gone);
            before = Some((record.key.clone(), record.version.micros(), if newest { 0 } else { newer + 1 }));
        }
    }
}

/// Moves a version to the storage class that it is to have by now. An `older` one was replaced then, with so many newer ones.
fn relocate(
    state: &State,
    bucket: &Row,
    row: &Row,
    older: Option<(u64, usize)>,
    rules: &[Rule],
    now: u64,
) -> S3Result<()> {
    let class = match older {
        None => moves(rules, &row.record, now),
        Some((since, newer)) => moves_older(rules, &row.record, since, newer, now),
    };
    // A class that the operator took away moves nothing.
    let class = class.filter(|class| state.classes.has(class) && storage_class::of(&row.record) != *class);
    let Some(class) = class.filter(|_| row.record.kind == Kind::Object) else { return Ok(()) };
    let mut changed = row.record.clone();
    state.classes.apply(Some(class), &bucket.record, &mut changed)?;
    match state.objects.relocate(row, changed.attributes) {
        // Somebody changed or removed it: the next sweep sees what is there then.
        Err(failure) if matches!(failure.refused(), Some(Refused::Changed | Refused::NoVersion)) => Ok(()),
        moved => moved.map(drop).map_err(error::s3),
    }
}

/// Whether a key has no other version than this one.
fn is_alone(state: &State, row: &Row) -> Result<bool, S3Error> {
    let start = Start::Version(row.record.key.clone().into_bytes(), row.record.version);
    let next = state.objects.catalog().versions(&row.record.bucket, &start, 1).map_err(error::catalog)?;
    Ok(next.first().is_none_or(|(next, _)| next.record.key != row.record.key))
}

fn expire_bucket_uploads(state: &State, bucket: &Row, rules: &[Rule], now: u64) -> S3Result<()> {
    let catalog = state.objects.catalog();
    let mut start = Start::Key(vec![]);
    loop {
        let page = catalog.uploads(&bucket.record.bucket, &start, PAGE).map_err(error::catalog)?;
        let Some(last) = page.last() else { return Ok(()) };
        start = Start::Version(last.record.key.clone().into_bytes(), last.id);
        for upload in page {
            if rules.iter().any(|rule| rule.ends_upload(&upload, now)) {
                // A completion or an abort at this moment comes first.
                let _ = catalog.change(Change::EndUpload(upload.id));
            }
        }
    }
}
