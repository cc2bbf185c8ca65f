//! Access lists, who owns objects, and what is kept from the public.

use http::StatusCode;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Result, s3_error};

use crate::rules::acl::{self, ACL, Acl, Permission, RequestedAcl, asked_acl};
use crate::rules::attributes::{owner, owner_dto};
use crate::rules::caller::Caller;
use crate::rules::error;
use crate::rules::ownership::{BLOCK, OWNERSHIP, Ownership, PublicBlock};
use crate::rules::policy::{self, Policy};
use crate::state::State;

pub(crate) fn get_bucket_acl(state: &State, caller: &Caller, input: GetBucketAclInput) -> S3Result<GetBucketAclOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let list = if Ownership::of(&bucket.record).has_lists() {
        Acl::of(&bucket.record, &bucket.record)?
    } else {
        Acl::private(owner(&bucket.record))
    };
    Ok(GetBucketAclOutput { grants: Some(list.to_dto()), owner: Some(owner_dto(&list.owner)) })
}

pub(crate) fn put_bucket_acl(
    state: &State,
    caller: &Caller,
    mut input: PutBucketAclInput,
) -> S3Result<PutBucketAclOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let write = input.grant_write.take().map(|text| (Permission::Write, text));
    let mut asked = asked_acl!(input);
    asked.grants.extend(write);
    asked.document = input.access_control_policy;
    let list = acl::replaced(&bucket, &bucket.record, &asked)?;
    check_users(state, &list)?;
    if Ownership::of(&bucket.record).has_lists() {
        state.set_bucket(&bucket, ACL, Some(list.text()?))?;
    }
    Ok(PutBucketAclOutput::default())
}

pub(crate) fn get_object_acl(state: &State, caller: &Caller, input: GetObjectAclInput) -> S3Result<GetObjectAclOutput> {
    let bucket = state.bucket(&input.bucket, caller, &input.key)?;
    let row = state.find_for(caller, &bucket, &input.key, input.version_id.as_deref())?;
    let list = if Ownership::of(&bucket.record).has_lists() {
        Acl::of(&row.record, &bucket.record)?
    } else {
        Acl::private(owner(&bucket.record))
    };
    let owner = Some(owner_dto(&list.owner));
    Ok(GetObjectAclOutput { grants: Some(list.to_dto()), owner, ..GetObjectAclOutput::default() })
}

pub(crate) fn put_object_acl(
    state: &State,
    caller: &Caller,
    mut input: PutObjectAclInput,
) -> S3Result<PutObjectAclOutput> {
    let bucket = state.bucket(&input.bucket, caller, &input.key)?;
    let mut asked = asked_acl!(input);
    asked.document = input.access_control_policy;
    let version = input.version_id.as_deref();
    let row = state.find_for(caller, &bucket, &input.key, version)?;
    check_users(state, &acl::replaced(&bucket, &row.record, &asked)?)?;
    if Ownership::of(&bucket.record).has_lists() {
        state.revise(&bucket, &input.key, version, |record| {
            let text = acl::replaced(&bucket, record, &asked)?.text()?;
            record.attributes.insert(ACL.to_owned(), text);
            Ok(())
        })?;
    }
    Ok(PutObjectAclOutput::default())
}

/// Refuses a list that names users that there are not.
pub(super) fn check_users(state: &State, list: &Acl) -> S3Result<()> {
    let mut grantees = list.users().filter(|name| *name != &list.owner).peekable();
    if grantees.peek().is_none() {
        return Ok(());
    }
    let users = state.users.list().map_err(|failure| s3_error!(InternalError, "{failure}"))?;
    match grantees.find(|name| !users.iter().any(|user| user.name == **name)) {
        Some(_) => Err(s3_error!(InvalidArgument, "Invalid id")),
        None => Ok(()),
    }
}

/// The list of a new object or upload, as is asked for, as an attribute.
pub(super) fn of_new_object(
    state: &State,
    bucket: &catalog::Row,
    caller: &Caller,
    key: &str,
    asked: &RequestedAcl,
) -> S3Result<Option<String>> {
    if asked.is_some() {
        // Who may put may also say for whom, unless a policy denies that.
        policy::decide(Policy::of(bucket)?.as_ref(), bucket, caller, "PutObjectAcl", key)?;
    }
    let list = acl::of_new_object(bucket, caller.user.as_deref(), asked)?;
    list.map(|list| check_users(state, &list).and_then(|()| list.text())).transpose()
}

pub(crate) fn get_ownership(
    state: &State,
    caller: &Caller,
    input: GetBucketOwnershipControlsInput,
) -> S3Result<GetBucketOwnershipControlsOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let ownership = Ownership::of(&bucket.record);
    if ownership == Ownership::Unsaid {
        return Err(S3ErrorCode::OwnershipControlsNotFoundError.into());
    }
    let rule = OwnershipControlsRule { object_ownership: ObjectOwnership::from_static(ownership.name()) };
    Ok(GetBucketOwnershipControlsOutput { ownership_controls: Some(OwnershipControls { rules: vec![rule] }) })
}

pub(crate) fn put_ownership(
    state: &State,
    caller: &Caller,
    input: PutBucketOwnershipControlsInput,
) -> S3Result<PutBucketOwnershipControlsOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let [rule] = &input.ownership_controls.rules[..] else { return Err(S3ErrorCode::MalformedXML.into()) };
    let name = rule.object_ownership.as_str();
    let ownership = Ownership::named(name).filter(|ownership| *ownership != Ownership::Unsaid);
    let ownership = ownership.ok_or(S3ErrorCode::MalformedXML)?;
    let list = Acl::of(&bucket.record, &bucket.record)?;
    if !ownership.has_lists() && list != Acl::private(owner(&bucket.record)) {
        return Err(s3_error!(
            InvalidBucketAclWithObjectOwnership,
            "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting"
        ));
    }
    state.set_bucket(&bucket, OWNERSHIP, Some(name.to_owned()))?;
    Ok(PutBucketOwnershipControlsOutput::default())
}

/// Without controls each object is its writer's, as in S3: a bucket of which nobody ever said anything is another case.
pub(crate) fn delete_ownership(
    state: &State,
    caller: &Caller,
    input: DeleteBucketOwnershipControlsInput,
) -> S3Result<DeleteBucketOwnershipControlsOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    state.set_bucket(&bucket, OWNERSHIP, Some(Ownership::Unsaid.name().to_owned()))?;
    Ok(DeleteBucketOwnershipControlsOutput::default())
}

pub(crate) fn get_block(
    state: &State,
    caller: &Caller,
    input: GetPublicAccessBlockInput,
) -> S3Result<GetPublicAccessBlockOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let block = PublicBlock::of(&bucket.record)?.ok_or_else(|| {
        let why = "The public access block configuration was not found";
        error::custom("NoSuchPublicAccessBlockConfiguration", StatusCode::NOT_FOUND, why)
    })?;
    Ok(GetPublicAccessBlockOutput { public_access_block_configuration: Some(block.to_dto()) })
}

pub(crate) fn put_block(
    state: &State,
    caller: &Caller,
    input: PutPublicAccessBlockInput,
) -> S3Result<PutPublicAccessBlockOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let block = PublicBlock::from_dto(&input.public_access_block_configuration);
    state.keep_setting(&bucket, BLOCK, &block)?;
    Ok(PutPublicAccessBlockOutput::default())
}

pub(crate) fn delete_block(
    state: &State,
    caller: &Caller,
    input: DeletePublicAccessBlockInput,
) -> S3Result<DeletePublicAccessBlockOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    state.set_bucket(&bucket, BLOCK, None)?;
    Ok(DeletePublicAccessBlockOutput::default())
}
