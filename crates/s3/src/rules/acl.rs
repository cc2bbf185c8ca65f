//! Access lists of buckets and objects: who owns them, and what that lets others do.

use catalog::Row;
use catalog::object_manifest::ObjectManifest;
use s3s::dto::{AccessControlPolicy, Grant as GrantDto, Grantee as GranteeDto, Permission as PermissionDto, Type};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};
use serde::{Deserialize, Serialize};

use super::attributes::{owner, owner_dto};
use super::ownership::{Ownership, PublicBlock};

/// The attribute of a bucket or an object with its list.
pub(crate) const ACL: &str = "acl";
/// Grants in a list, as in S3.
const MOST: usize = 100;
/// The owner of what somebody put without a signature, as S3 calls them.
pub(crate) const NOBODY: &str = "65a011a29cdf8ec533ec3d1ccaae921c";

const EVERYBODY: &str = "http://acs.amazonaws.com/groups/global/AllUsers";
const SIGNED: &str = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers";
const LOGS: &str = "http://acs.amazonaws.com/groups/s3/LogDelivery";

/// The list of what is its owner's and the bucket's owner's alike, which is what every object of a bucket without lists has.
const FOR_OWNER: &str = "bucket-owner-full-control";

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum Permission {
    FullControl,
    Read,
    Write,
    ReadAcp,
    WriteAcp,
}

impl Permission {
    const NAMES: [(&'static str, Self); 5] = [
        (PermissionDto::FULL_CONTROL, Self::FullControl),
        (PermissionDto::READ, Self::Read),
        (PermissionDto::WRITE, Self::Write),
        (PermissionDto::READ_ACP, Self::ReadAcp),
        (PermissionDto::WRITE_ACP, Self::WriteAcp),
    ];

    fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, permission)| *permission)
    }

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }

    /// The one that an action needs: on the object, or on its bucket. `None` where no list lets anybody do it.
    fn of_action(action: &str) -> Option<(Self, bool)> {
        Some(match action {
            "GetObject" | "GetObjectVersion" | "GetObjectAttributes" | "GetObjectVersionAttributes" => {
                (Self::Read, true)
            }
            "GetObjectAcl" | "GetObjectVersionAcl" => (Self::ReadAcp, true),
            "PutObjectAcl" | "PutObjectVersionAcl" => (Self::WriteAcp, true),
            "ListBucket" | "ListBucketVersions" | "ListBucketMultipartUploads" => (Self::Read, false),
            "PutObject" | "DeleteObject" | "AbortMultipartUpload" | "ListMultipartUploadParts" => (Self::Write, false),
            "GetBucketAcl" => (Self::ReadAcp, false),
            "PutBucketAcl" => (Self::WriteAcp, false),
            _ => return None,
        })
    }
}

/// Whether an action is decided by what there is under its key.
pub(crate) fn is_of_object(action: &str) -> bool {
    action == "DeleteObject" || Permission::of_action(action).is_some_and(|(_, of_object)| of_object)
}

/// Who is granted something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Grantee {
    User(String),
    Everybody,
    Signed,
    Logs,
}

impl Grantee {
    fn of_group(uri: &str) -> Option<Self> {
        [(EVERYBODY, Self::Everybody), (SIGNED, Self::Signed), (LOGS, Self::Logs)]
            .into_iter()
            .find_map(|(known, grantee)| (known == uri).then_some(grantee))
    }

    fn includes(&self, user: Option<&str>) -> bool {
        match self {
            Self::User(name) => user == Some(name),
            Self::Everybody => true,
            Self::Signed => user.is_some(),
            Self::Logs => false,
        }
    }

    fn is_public(&self) -> bool {
        matches!(self, Self::Everybody | Self::Signed)
    }

    fn to_dto(&self) -> GranteeDto {
        let group = |uri: &str| GranteeDto {
            uri: Some(uri.to_owned()),
            type_: Type::from_static(Type::GROUP),
            ..empty_grantee()
        };
        match self {
            Self::User(name) => GranteeDto {
                display_name: Some(name.clone()),
                id: Some(name.clone()),
                type_: Type::from_static(Type::CANONICAL_USER),
                ..empty_grantee()
            },
            Self::Everybody => group(EVERYBODY),
            Self::Signed => group(SIGNED),
            Self::Logs => group(LOGS),
        }
    }
}

fn empty_grantee() -> GranteeDto {
    let type_ = Type::from_static(Type::CANONICAL_USER);
    GranteeDto { display_name: None, email_address: None, id: None, type_, uri: None }
}

/// One grant of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Grant {
    pub(crate) to: Grantee,
    pub(crate) permission: Permission,
}

/// Who owns something, and what others may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Acl {
    pub(crate) owner: String,
    pub(crate) grants: Vec<Grant>,
}

impl Acl {
    /// The list of what is its owner's alone.
    pub(crate) fn private(owner: &str) -> Self {
        let to = Grantee::User(owner.to_owned());
        Self { owner: owner.to_owned(), grants: vec![Grant { to, permission: Permission::FullControl }] }
    }

    /// The list of a bucket, or of an object in it: what says nothing is the bucket's owner's alone.
    pub(crate) fn of(record: &ObjectManifest, bucket: &ObjectManifest) -> S3Result<Self> {
        match record.attributes.get(ACL) {
            None => Ok(Self::private(owner(bucket))),
            // What cannot be read must not let anybody in.
            Some(text) => serde_json::from_str(text).map_err(|_| s3_error!(InternalError, "the ACL cannot be read")),
        }
    }

    /// As an attribute.
    pub(crate) fn text(&self) -> S3Result<String> {
        serde_json::to_string(self).map_err(|e| s3_error!(InternalError, "{e}"))
    }

    /// What one of S3's own lists says, for something of `owner` in a bucket of `bucket_owner`.
    fn canned(name: &str, owner: &str, bucket_owner: &str) -> S3Result<Self> {
        let grant = |to, permission| Grant { to, permission };
        let bucket_owner = Grantee::User(bucket_owner.to_owned());
        let more = match name {
            "private" | "aws-exec-read" => vec![],
            "public-read" => vec![grant(Grantee::Everybody, Permission::Read)],
            "public-read-write" => {
                vec![grant(Grantee::Everybody, Permission::Read), grant(Grantee::Everybody, Permission::Write)]
            }
            "authenticated-read" => vec![grant(Grantee::Signed, Permission::Read)],
            "bucket-owner-read" => vec![grant(bucket_owner, Permission::Read)],
            FOR_OWNER => vec![grant(bucket_owner, Permission::FullControl)],
            "log-delivery-write" => {
                vec![grant(Grantee::Logs, Permission::Write), grant(Grantee::Logs, Permission::ReadAcp)]
            }
            _ => return Err(s3_error!(InvalidArgument, "{name:?} is no canned ACL")),
        };
        let mut list = Self::private(owner);
        let more = more.into_iter().filter(|new| new.to != Grantee::User(owner.to_owned())).collect::<Vec<_>>();
        list.grants.extend(more);
        Ok(list)
    }

    pub(crate) fn is_public(&self) -> bool {
        self.grants.iter().any(|grant| grant.to.is_public())
    }

    /// The users whom it names.
    pub(crate) fn users(&self) -> impl Iterator<Item = &String> {
        self.grants.iter().filter_map(|grant| match &grant.to {
            Grantee::User(name) => Some(name),
            _ => None,
        })
    }

    /// Whether it lets somebody do this. Whoever owns it may always see and change it.
    fn allows(&self, user: Option<&str>, permission: Permission, block: PublicBlock) -> bool {
        let about_itself = matches!(permission, Permission::ReadAcp | Permission::WriteAcp);
        about_itself && user == Some(&self.owner)
            || self.grants.iter().any(|grant| {
                (grant.permission == permission || grant.permission == Permission::FullControl)
                    && grant.to.includes(user)
                    && !(block.lists && grant.to.is_public())
            })
    }

    pub(crate) fn to_dto(&self) -> Vec<GrantDto> {
        let grant = |grant: &Grant| GrantDto {
            grantee: Some(grant.to.to_dto()),
            permission: Some(PermissionDto::from_static(grant.permission.name())),
        };
        self.grants.iter().map(grant).collect()
    }
}

/// Whether the lists of a bucket and of what is under a key let somebody do this. `object` is what is there.
pub(crate) fn allow(bucket: &Row, object: Option<&ObjectManifest>, user: Option<&str>, action: &str) -> S3Result<bool> {
    let record = &bucket.record;
    let Some((permission, of_object)) = Permission::of_action(action) else { return Ok(false) };
    let block = PublicBlock::in_force(record)?;
    let of_bucket = Acl::of(record, record)?;
    if !of_object {
        // Who may put may remove their own.
        let own = |object: &ObjectManifest| Acl::of(object, record).map(|list| Some(list.owner.as_str()) == user);
        let may = action != "DeleteObject" || object.map_or(Ok(true), own)?;
        return Ok(may && of_bucket.allows(user, permission, block));
    }
    match object {
        Some(object) => Ok(Acl::of(object, record)?.allows(user, permission, block)),
        // Who may list learns that it is not there.
        None => Ok(of_bucket.allows(user, Permission::Read, block)),
    }
}

/// The list that a request asks for.
#[derive(Debug, Default)]
pub(crate) struct RequestedAcl {
    pub(crate) canned: Option<String>,
    /// Who is to have which permission, as in headers.
    pub(crate) grants: Vec<(Permission, String)>,
    pub(crate) document: Option<AccessControlPolicy>,
}

/// The [`RequestedAcl`] of a request: every kind of request has these fields of its own.
macro_rules! asked_acl {
    ($input:expr) => {{
        use $crate::rules::acl::Permission;
        let grants = [
            (Permission::FullControl, $input.grant_full_control.take()),
            (Permission::Read, $input.grant_read.take()),
            (Permission::ReadAcp, $input.grant_read_acp.take()),
            (Permission::WriteAcp, $input.grant_write_acp.take()),
        ];
        $crate::rules::acl::RequestedAcl {
            canned: $input.acl.take().map(|acl| acl.as_str().to_owned()),
            grants: grants.into_iter().filter_map(|(permission, text)| Some((permission, text?))).collect(),
            document: None,
        }
    }};
}
pub(crate) use asked_acl;

impl RequestedAcl {
    pub(crate) fn is_some(&self) -> bool {
        self.canned.is_some() || !self.grants.is_empty() || self.document.is_some()
    }

    /// Whether a bucket without lists takes it: it says what is so there anyway.
    fn is_idle(&self, bucket_owner: &str) -> bool {
        match (&self.canned, &self.document) {
            (Some(name), _) => name == FOR_OWNER || name == "private",
            (None, Some(document)) => {
                let grants = document.grants.as_deref().unwrap_or_default();
                let all = |grant: &GrantDto| grant.permission.as_ref().is_some_and(|p| p.as_str() == "FULL_CONTROL");
                let to = |grant: &GrantDto| grant.grantee.as_ref().and_then(|grantee| grantee.id.clone());
                grants.iter().all(|grant| all(grant) && to(grant).as_deref() == Some(bucket_owner))
            }
            (None, None) => self.grants.iter().all(|(permission, text)| {
                let only = Grantee::User(bucket_owner.to_owned());
                *permission == Permission::FullControl
                    && grantees(text).is_ok_and(|all| all.iter().all(|one| *one == only))
            }),
        }
    }

    /// The list, for something of `owner` in a bucket of `bucket_owner`.
    fn list(&self, owner: &str, bucket_owner: &str) -> S3Result<Acl> {
        if self.canned.is_some() && !self.grants.is_empty() {
            return Err(s3_error!(InvalidRequest, "Specifying both Canned ACLs and Header Grants is not allowed"));
        }
        if self.document.is_some() && (self.canned.is_some() || !self.grants.is_empty()) {
            return Err(s3_error!(UnexpectedContent, "This request does not support content"));
        }
        let list = match (&self.canned, &self.document) {
            (Some(name), _) => Acl::canned(name, owner, bucket_owner)?,
            (None, Some(document)) => of_document(document, owner)?,
            (None, None) if self.grants.is_empty() => Acl::private(owner),
            (None, None) => {
                let mut grants = vec![];
                for (permission, text) in &self.grants {
                    grants.extend(grantees(text)?.into_iter().map(|to| Grant { to, permission: *permission }));
                }
                Acl { owner: owner.to_owned(), grants }
            }
        };
        if list.grants.len() > MOST {
            return Err(s3_error!(MalformedACLError, "an ACL may have {MOST} grants"));
        }
        Ok(list)
    }
}

/// The grantees in a header: `id="NAME", uri="GROUP"`.
fn grantees(text: &str) -> S3Result<Vec<Grantee>> {
    let one = |part: &str| {
        let (kind, value) = part.trim().split_once('=')?;
        Some((kind.trim().to_ascii_lowercase(), value.trim().trim_matches('"').to_owned()))
    };
    let read = |part: &str| {
        let (kind, value) =
            one(part).ok_or_else(|| s3_error!(InvalidArgument, "Argument format not recognized: {part}"))?;
        grantee(&kind, &value)
    };
    text.split(',').map(read).collect()
}

fn grantee(kind: &str, value: &str) -> S3Result<Grantee> {
    match kind {
        "id" if !value.is_empty() => Ok(Grantee::User(value.to_owned())),
        "id" => Err(s3_error!(InvalidArgument, "Invalid id")),
        "uri" => Grantee::of_group(value).ok_or_else(|| s3_error!(InvalidArgument, "Invalid group uri")),
        "emailaddress" => Err(S3Error::with_message(
            S3ErrorCode::UnresolvableGrantByEmailAddress,
            "The email address you provided does not match any account on record.",
        )),
        _ => Err(s3_error!(InvalidArgument, "Argument format not recognized: {kind}")),
    }
}

fn of_document(document: &AccessControlPolicy, owner: &str) -> S3Result<Acl> {
    let malformed = || S3Error::new(S3ErrorCode::MalformedACLError);
    let named = document.owner.as_ref().and_then(|owner| owner.id.as_deref()).ok_or_else(malformed)?;
    if named != owner {
        return Err(s3_error!(AccessDenied, "an ACL cannot name another owner"));
    }
    let mut grants = vec![];
    for grant in document.grants.as_deref().unwrap_or_default() {
        let permission = grant.permission.as_ref().and_then(|p| Permission::named(p.as_str())).ok_or_else(malformed)?;
        let to = grant.grantee.as_ref().ok_or_else(malformed)?;
        let to = match (&to.id, &to.uri, &to.email_address) {
            (Some(id), ..) => grantee("id", id),
            (None, Some(uri), _) => grantee("uri", uri),
            (None, None, Some(address)) => grantee("emailaddress", address),
            (None, None, None) => Err(malformed()),
        }?;
        grants.push(Grant { to, permission });
    }
    Ok(Acl { owner: owner.to_owned(), grants })
}

/// The error where a bucket has no lists.
fn without_lists() -> S3Error {
    S3Error::with_message(S3ErrorCode::AccessControlListNotSupported, "The bucket does not allow ACLs")
}

/// Refuses a list for everybody where the bucket does.
fn check_public(bucket: &ObjectManifest, list: &Acl) -> S3Result<()> {
    if list.is_public() && PublicBlock::in_force(bucket)?.new_lists {
        return Err(s3_error!(AccessDenied, "the bucket's public access block refuses ACLs for everybody"));
    }
    Ok(())
}

/// The list of a new object, as is asked for; `None` where the bucket has none, and all is its owner's.
pub(crate) fn of_new_object(bucket: &Row, user: Option<&str>, asked: &RequestedAcl) -> S3Result<Option<Acl>> {
    let (bucket_owner, ownership) = (owner(&bucket.record), Ownership::of(&bucket.record));
    if !ownership.has_lists() {
        return if asked.is_idle(bucket_owner) { Ok(None) } else { Err(without_lists()) };
    }
    let for_owner = asked.canned.as_deref() == Some(FOR_OWNER);
    let writer = user.unwrap_or(NOBODY);
    let object_owner = if ownership == Ownership::Preferred && for_owner { bucket_owner } else { writer };
    let list = asked.list(object_owner, bucket_owner)?;
    check_public(&bucket.record, &list)?;
    // What says what is so anyway is not kept.
    Ok(Some(list).filter(|list| *list != Acl::private(bucket_owner)))
}

/// The list of a bucket or an object, in place of the one that it has.
pub(crate) fn replaced(bucket: &Row, record: &ObjectManifest, asked: &RequestedAcl) -> S3Result<Acl> {
    let bucket_owner = owner(&bucket.record);
    if !Ownership::of(&bucket.record).has_lists() {
        return if asked.is_idle(bucket_owner) { Ok(Acl::private(bucket_owner)) } else { Err(without_lists()) };
    }
    if !asked.is_some() {
        return Err(s3_error!(MissingSecurityHeader, "Your request was missing a required header: x-amz-acl"));
    }
    let now = Acl::of(record, &bucket.record)?;
    let list = asked.list(&now.owner, bucket_owner)?;
    check_public(&bucket.record, &list)?;
    Ok(list)
}

/// The list of a new bucket, whose objects belong to whom this says.
pub(crate) fn of_new_bucket(user: &str, ownership: Ownership, asked: &RequestedAcl) -> S3Result<Option<Acl>> {
    if !ownership.has_lists() && !asked.is_idle(user) {
        return Err(S3Error::with_message(
            S3ErrorCode::InvalidBucketAclWithObjectOwnership,
            "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting",
        ));
    }
    if !ownership.has_lists() {
        return Ok(None);
    }
    let list = asked.list(user, user)?;
    Ok(Some(list).filter(|list| *list != Acl::private(user)))
}

/// The owner of an object, as answers name them.
pub(crate) fn object_owner(record: &ObjectManifest, bucket: &ObjectManifest) -> s3s::dto::Owner {
    let list = if Ownership::of(bucket).has_lists() { Acl::of(record, bucket).ok() } else { None };
    owner_dto(list.as_ref().map_or_else(|| owner(bucket), |list| &list.owner))
}

#[cfg(test)]
mod tests;
