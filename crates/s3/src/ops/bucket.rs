//! Buckets.

use std::collections::BTreeMap;

use catalog::object_manifest::{Kind, ObjectManifest, VersionId};
use catalog::{Refused, all_buckets};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Result, s3_error};

use super::acl::check_users;
use crate::rules::acl::{self, ACL, Permission, asked_acl};
use crate::rules::attributes::{Attributes, owner, owner_dto, time};
use crate::rules::caller::Caller;
use crate::rules::ownership::{OWNERSHIP, Ownership};
use crate::rules::{REGION, error, lock};
use crate::state::State;

/// Buckets of a user. Each list of buckets, each cleaning and each sweep reads all buckets of the cluster.
const MOST: usize = 1_000;
/// Buckets on a page at most, as in S3.
const PAGE: i32 = 10_000;

pub(crate) fn list_buckets(state: &State, caller: &Caller, input: ListBucketsInput) -> S3Result<ListBucketsOutput> {
    let user = caller.require_user()?;
    let after = input.continuation_token.unwrap_or_default();
    let prefix = input.prefix.clone().unwrap_or_default();
    let most = input.max_buckets.unwrap_or(PAGE);
    if !(1..=PAGE).contains(&most) {
        return Err(s3_error!(InvalidArgument, "Argument max-buckets must be an integer between 1 and {PAGE}"));
    }
    let elsewhere = input.bucket_region.is_some_and(|region| region != REGION);
    let most = if elsewhere { 0 } else { usize::try_from(most).unwrap_or(0) };
    let wanted = |name: &str| name > after.as_str() && name.starts_with(&prefix);
    let mut own: Vec<Bucket> = buckets_of(state, user)?
        .into_iter()
        .filter(|(name, _)| wanted(name))
        .map(|(name, made)| Bucket { creation_date: Some(made), name: Some(name), ..Bucket::default() })
        .collect();
    let more = own.len() > most && !elsewhere;
    own.truncate(most);
    let continuation_token = own.last().and_then(|bucket| bucket.name.clone()).filter(|_| more);
    let owner = owner_dto(user);
    Ok(ListBucketsOutput { buckets: Some(own), continuation_token, owner: Some(owner), prefix: input.prefix })
}

/// The names of a user's buckets, in the order of their bytes, and when they were made.
fn buckets_of(state: &State, user: &str) -> S3Result<BTreeMap<String, Timestamp>> {
    let mut own = BTreeMap::new();
    for bucket in all_buckets(state.objects.catalog()) {
        let bucket = bucket.map_err(error::catalog)?.record;
        if owner(&bucket) == user {
            let made = created(&bucket);
            own.insert(bucket.bucket, made);
        }
    }
    Ok(own)
}

/// Makes a bucket. In this region, as in S3's first, whoever has it already is told that it is there, and nothing of it
/// changes.
pub(crate) fn create_bucket(
    state: &State,
    caller: &Caller,
    mut input: CreateBucketInput,
) -> S3Result<CreateBucketOutput> {
    let user = caller.require_user()?;
    let access = requested_access(state, user, &mut input)?;
    let mine = buckets_of(state, user)?;
    let location = Some(format!("/{}", input.bucket));
    if mine.contains_key(&input.bucket) {
        return Ok(CreateBucketOutput { location });
    }
    if mine.len() >= MOST {
        return Err(s3_error!(TooManyBuckets, "a user may have {MOST} buckets: delete some first"));
    }
    let mut record = ObjectManifest::new(Kind::Bucket, &input.bucket, "", VersionId::default());
    record.attributes.insert("owner".to_owned(), user.to_owned());
    let micros = state.objects.next_version().micros();
    record.attributes.insert("created".to_owned(), micros.to_string());
    record.attributes.extend(access);
    if input.object_lock_enabled_for_bucket == Some(true) {
        lock::enable(&mut record.attributes);
    }
    match state.objects.create_bucket(record) {
        Ok(_) => Ok(CreateBucketOutput { location }),
        Err(failure) if failure.refused() == Some(Refused::BucketExists) => {
            let existing = state.objects.catalog().bucket(&input.bucket).map_err(error::catalog)?;
            match existing {
                // Somebody with the same key was a moment faster.
                Some(row) if owner(&row.record) == user => Ok(CreateBucketOutput { location }),
                _ => Err(S3ErrorCode::BucketAlreadyExists.into()),
            }
        }
        Err(failure) => Err(error::s3(failure)),
    }
}

/// Who owns the objects of a new bucket, and its list, as attributes.
fn requested_access(state: &State, user: &str, input: &mut CreateBucketInput) -> S3Result<Attributes> {
    let mut attributes = Attributes::new();
    let ownership = match input.object_ownership.take() {
        None => Ownership::Enforced,
        Some(asked) => {
            attributes.insert(OWNERSHIP.to_owned(), asked.as_str().to_owned());
            let known = Ownership::named(asked.as_str()).filter(|ownership| *ownership != Ownership::Unsaid);
            known.ok_or_else(|| {
                s3_error!(InvalidArgument, "Invalid x-amz-object-ownership header: {}", asked.as_str())
            })?
        }
    };
    let write = input.grant_write.take().map(|text| (Permission::Write, text));
    let mut asked = asked_acl!(input);
    asked.grants.extend(write);
    if let Some(list) = acl::of_new_bucket(user, ownership, &asked)? {
        check_users(state, &list)?;
        attributes.insert(ACL.to_owned(), list.text()?);
    }
    Ok(attributes)
}

pub(crate) fn head_bucket(state: &State, caller: &Caller, input: HeadBucketInput) -> S3Result<HeadBucketOutput> {
    state.bucket(&input.bucket, caller, "")?;
    Ok(HeadBucketOutput { bucket_region: Some(REGION.to_owned()), ..HeadBucketOutput::default() })
}

pub(crate) fn delete_bucket(state: &State, caller: &Caller, input: DeleteBucketInput) -> S3Result<DeleteBucketOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    state.objects.delete_bucket(&bucket).map_err(error::s3)?;
    Ok(DeleteBucketOutput::default())
}

pub(crate) fn get_bucket_location(
    state: &State,
    caller: &Caller,
    input: GetBucketLocationInput,
) -> S3Result<GetBucketLocationOutput> {
    state.bucket(&input.bucket, caller, "")?;
    // An empty answer stands for the default region.
    Ok(GetBucketLocationOutput::default())
}

/// When a bucket was created. The version of its record is that of its last change.
fn created(bucket: &ObjectManifest) -> Timestamp {
    let made = bucket.attributes.get("created").and_then(|micros| micros.parse().ok());
    time(made.unwrap_or(bucket.version.micros()))
}
