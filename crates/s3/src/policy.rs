//! Bucket policies: what is allowed to whom beside the owner, and what is denied even to the owner.
//!
//! A policy that says anything which is not understood here is refused when it is put, so that none means less or more
//! than its words.

mod document;

use std::net::IpAddr;

use ipnet::IpNet;
use object::catalog::Row;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Result, s3_error};

use crate::face::{Face, owner};
use crate::who::Who;

/// The attribute of a bucket that has its policy, as it was put.
const POLICY: &str = "policy";
/// Bytes of a policy, as in S3.
const MOST: usize = 20 << 10;

/// Bytes of what conditions look at in a request: comparing may take as many steps as text and pattern have bytes, multiplied.
const TEXT_BYTES: usize = 2_048;

/// Operations, the action that each needs, and the one that it needs when a version is named.
const OPERATIONS: &[(&str, &str, &str)] = &[
    ("AbortMultipartUpload", "AbortMultipartUpload", ""),
    ("CompleteMultipartUpload", "PutObject", ""),
    ("CopyObject", "PutObject", ""),
    ("CreateMultipartUpload", "PutObject", ""),
    ("DeleteBucket", "DeleteBucket", ""),
    ("DeleteBucketCors", "PutBucketCORS", ""),
    ("DeleteBucketLifecycle", "PutLifecycleConfiguration", ""),
    ("DeleteBucketPolicy", "DeleteBucketPolicy", ""),
    ("DeleteBucketTagging", "PutBucketTagging", ""),
    ("DeleteObject", "DeleteObject", "DeleteObjectVersion"),
    ("DeleteObjects", "DeleteObject", ""),
    ("DeleteObjectTagging", "DeleteObjectTagging", "DeleteObjectVersionTagging"),
    ("GetBucketCors", "GetBucketCORS", ""),
    ("GetBucketLifecycleConfiguration", "GetLifecycleConfiguration", ""),
    ("GetBucketLocation", "GetBucketLocation", ""),
    ("GetBucketPolicy", "GetBucketPolicy", ""),
    ("GetBucketPolicyStatus", "GetBucketPolicyStatus", ""),
    ("GetBucketTagging", "GetBucketTagging", ""),
    ("GetBucketVersioning", "GetBucketVersioning", ""),
    ("GetObject", "GetObject", "GetObjectVersion"),
    ("GetObjectLegalHold", "GetObjectLegalHold", ""),
    ("GetObjectLockConfiguration", "GetBucketObjectLockConfiguration", ""),
    ("GetObjectRetention", "GetObjectRetention", ""),
    ("GetObjectTagging", "GetObjectTagging", "GetObjectVersionTagging"),
    ("HeadBucket", "ListBucket", ""),
    ("HeadObject", "GetObject", "GetObjectVersion"),
    ("ListMultipartUploads", "ListBucketMultipartUploads", ""),
    ("ListObjectVersions", "ListBucketVersions", ""),
    ("ListObjects", "ListBucket", ""),
    ("ListObjectsV2", "ListBucket", ""),
    ("ListParts", "ListMultipartUploadParts", ""),
    ("PostObject", "PutObject", ""),
    ("PutBucketCors", "PutBucketCORS", ""),
    ("PutBucketLifecycleConfiguration", "PutLifecycleConfiguration", ""),
    ("PutBucketPolicy", "PutBucketPolicy", ""),
    ("PutBucketTagging", "PutBucketTagging", ""),
    ("PutBucketVersioning", "PutBucketVersioning", ""),
    ("PutObject", "PutObject", ""),
    ("PutObjectLegalHold", "PutObjectLegalHold", ""),
    ("PutObjectLockConfiguration", "PutBucketObjectLockConfiguration", ""),
    ("PutObjectRetention", "PutObjectRetention", ""),
    ("PutObjectTagging", "PutObjectTagging", "PutObjectVersionTagging"),
    ("UploadPart", "PutObject", ""),
    ("UploadPartCopy", "PutObject", ""),
];

/// An action that no operation is for: it is needed beside others.
pub(crate) const BYPASS: &str = "BypassGovernanceRetention";

/// Actions of operations that are refused anyway: a policy may name them.
const IDLE: &[&str] = &[
    "GetBucketAcl",
    "PutBucketAcl",
    "GetObjectAcl",
    "GetObjectVersionAcl",
    "PutObjectAcl",
    "PutObjectVersionAcl",
    "GetObjectAttributes",
    "GetObjectVersionAttributes",
    "GetObjectTorrent",
    "RestoreObject",
    "GetBucketLogging",
    "PutBucketLogging",
    "GetBucketNotification",
    "PutBucketNotification",
    "GetBucketWebsite",
    "PutBucketWebsite",
    "GetBucketPublicAccessBlock",
    "PutBucketPublicAccessBlock",
];

/// The action of S3 that an operation needs; none for those that need no bucket.
pub(crate) fn action(operation: &str, versioned: bool) -> &'static str {
    let found = OPERATIONS.iter().find(|(name, ..)| *name == operation);
    match found {
        Some((_, _, version)) if versioned && !version.is_empty() => version,
        Some((_, plain, _)) => plain,
        None => "",
    }
}

/// The action that is needed instead of this one when a version is named.
fn action_of_version(action: &str) -> &'static str {
    let found = OPERATIONS.iter().find(|(_, plain, version)| *plain == action && !version.is_empty());
    found.map_or("", |(_, _, version)| version)
}

/// All actions that a policy can name.
fn actions() -> impl Iterator<Item = &'static str> {
    let needed = OPERATIONS.iter().flat_map(|(_, plain, version)| [*plain, *version]);
    needed.chain(IDLE.iter().copied()).chain([BYPASS]).filter(|name| !name.is_empty())
}

/// Whether an action is one on objects, and not on their bucket.
fn on_objects(action: &str) -> bool {
    !action.contains("Bucket") && !action.contains("Lifecycle")
}

/// Whether `text` is what `pattern` says: `*` stands for any characters, `?` for one.
fn fits(pattern: &str, text: &str) -> bool {
    // Text that is too short is not looked through: a pattern may be long.
    if pattern.chars().filter(|sign| *sign != '*').count() > text.chars().count() {
        return false;
    }
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // Where to go on when what follows the last star does not fit: the star takes one character more.
    let mut retry = None;
    loop {
        let mut rest = pattern.clone();
        match (rest.next(), text.clone().next()) {
            (Some('*'), _) => {
                retry = Some((rest.clone(), text.clone()));
                pattern = rest;
                continue;
            }
            (Some(want), Some(found)) if want == '?' || want == found => {
                pattern = rest;
                text.next();
                continue;
            }
            (None, None) => return true,
            _ => {}
        }
        let Some((after, taken)) = &mut retry else { return false };
        if taken.next().is_none() {
            return false;
        }
        (pattern, text) = (after.clone(), taken.clone());
    }
}

/// What a policy says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    Denied,
    /// Nothing.
    Silent,
}

/// Whom a statement is about.
#[derive(Debug)]
enum Principals {
    Everybody,
    Users(Vec<String>),
}

/// What a condition looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    SourceIp,
    SecureTransport,
    UserName,
    Referer,
    UserAgent,
    Prefix,
    Delimiter,
}

/// How a condition compares.
#[derive(Clone, Debug)]
enum Test {
    Equals(Vec<String>),
    EqualsIgnoreCase(Vec<String>),
    Like(Vec<String>),
    Within(Vec<IpNet>),
    Bool(Vec<bool>),
}

#[derive(Debug)]
struct Condition {
    key: Key,
    test: Test,
    /// Whether it is to fail.
    negated: bool,
}

impl Condition {
    fn holds(&self, who: &Who) -> bool {
        let text = match self.key {
            Key::SourceIp | Key::SecureTransport => None,
            Key::UserName => who.user.as_deref(),
            Key::Referer => who.referer.as_deref(),
            Key::UserAgent => who.agent.as_deref(),
            Key::Prefix => who.prefix.as_deref(),
            Key::Delimiter => who.delimiter.as_deref(),
        };
        // What a request does not have equals nothing.
        let any = |values: &[String], same: fn(&str, &str) -> bool| {
            text.is_some_and(|text| values.iter().any(|value| same(value, text)))
        };
        let found = match &self.test {
            Test::Equals(values) => any(values, |value, text| value == text),
            Test::EqualsIgnoreCase(values) => any(values, |value, text| value.eq_ignore_ascii_case(text)),
            Test::Like(values) => any(values, fits),
            Test::Within(nets) => nets.iter().any(|net| net.contains(&who.peer.address)),
            Test::Bool(values) => values.contains(&who.peer.secure),
        };
        found != self.negated
    }

    /// Whether it keeps a statement from being about the whole world.
    fn narrows(&self) -> bool {
        let narrow = |net: &IpNet| net.prefix_len() >= if matches!(net.addr(), IpAddr::V4(_)) { 8 } else { 32 };
        match &self.test {
            Test::Within(nets) => !self.negated && nets.iter().all(narrow),
            _ => !self.negated && self.key == Key::UserName,
        }
    }
}

#[derive(Debug)]
struct Statement {
    allow: bool,
    principals: Principals,
    /// Patterns in small letters, without `s3:`.
    actions: Vec<String>,
    /// Patterns of `BUCKET` and `BUCKET/KEY`.
    resources: Vec<String>,
    conditions: Vec<Condition>,
}

impl Statement {
    fn covers(&self, who: &Who, action: &str, resource: &str) -> bool {
        self.concerns(who, action) && self.resources.iter().any(|pattern| fits(pattern, resource))
    }

    /// Whether it is about what `who` does, with some resource.
    fn concerns(&self, who: &Who, action: &str) -> bool {
        let about = match &self.principals {
            Principals::Everybody => true,
            Principals::Users(names) => who.user.as_ref().is_some_and(|user| names.contains(user)),
        };
        let action = action.to_ascii_lowercase();
        about
            && self.actions.iter().any(|pattern| fits(pattern, &action))
            && self.conditions.iter().all(|condition| condition.holds(who))
    }

    fn is_public(&self) -> bool {
        let everybody = matches!(self.principals, Principals::Everybody);
        self.allow && everybody && !self.conditions.iter().any(Condition::narrows)
    }
}

/// A policy that was understood.
#[derive(Debug)]
struct Policy {
    statements: Vec<Statement>,
}

impl Policy {
    /// The policy of a bucket, if it has one.
    fn of(bucket: &Row) -> S3Result<Option<Self>> {
        let text = bucket.record.attributes.get(POLICY);
        text.map(|text| document::read(text, &bucket.record.bucket)).transpose()
    }

    /// Refuses what has more to compare than anybody needs: nothing of it can be passed over, as a statement may deny.
    fn check_length(&self, who: &Who) -> S3Result<()> {
        let texts = [&who.prefix, &who.delimiter, &who.referer, &who.agent];
        let long = texts.into_iter().flatten().any(|text| text.len() > TEXT_BYTES);
        if long && self.statements.iter().any(|statement| !statement.conditions.is_empty()) {
            return Err(s3_error!(
                AccessDenied,
                "the bucket's policy has conditions: prefix, delimiter, Referer and User-Agent may have {TEXT_BYTES} bytes each"
            ));
        }
        Ok(())
    }

    fn says(&self, who: &Who, action: &str, resource: &str) -> Verdict {
        let mut covering = self.statements.iter().filter(|s| s.covers(who, action, resource)).peekable();
        if covering.peek().is_none() {
            Verdict::Silent
        } else if covering.all(|statement| statement.allow) {
            Verdict::Allowed
        } else {
            Verdict::Denied
        }
    }

    fn users(&self) -> impl Iterator<Item = &String> {
        self.statements.iter().flat_map(|statement| match &statement.principals {
            Principals::Everybody => &[][..],
            Principals::Users(names) => names,
        })
    }
}

/// Refuses what `who` may not do in a bucket: with a key, or with the bucket itself when that is empty.
pub(crate) fn check(bucket: &Row, who: &Who, action: &str, key: &str) -> S3Result<()> {
    let is_owner = who.user.as_deref() == Some(owner(&bucket.record));
    // Who owns a bucket is never locked out of its policy.
    if is_owner && action.ends_with("BucketPolicy") {
        return Ok(());
    }
    let name = &bucket.record.bucket;
    let resource = if key.is_empty() { name.clone() } else { format!("{name}/{key}") };
    let policy = Policy::of(bucket)?;
    policy.as_ref().map_or(Ok(()), |policy| policy.check_length(who))?;
    let verdict = policy.map_or(Verdict::Silent, |policy| policy.says(who, action, &resource));
    match verdict {
        Verdict::Allowed => Ok(()),
        Verdict::Silent if is_owner => Ok(()),
        Verdict::Denied => Err(s3_error!(AccessDenied, "the bucket's policy denies s3:{action}")),
        Verdict::Silent => Err(S3ErrorCode::AccessDenied.into()),
    }
}

/// Refuses what `who` may do with no key of a bucket. With which it is, is said later.
pub(crate) fn check_some_key(bucket: &Row, who: &Who) -> S3Result<()> {
    let actions = [who.action, action_of_version(who.action)];
    let allows = |statement: &Statement| statement.allow && actions.iter().any(|name| statement.concerns(who, name));
    let policy = Policy::of(bucket)?;
    policy.as_ref().map_or(Ok(()), |policy| policy.check_length(who))?;
    match policy {
        Some(policy) if policy.statements.iter().any(allows) => Ok(()),
        _ => Err(S3ErrorCode::AccessDenied.into()),
    }
}

impl Face {
    pub(crate) fn do_put_bucket_policy(
        &self,
        who: &Who,
        input: PutBucketPolicyInput,
    ) -> S3Result<PutBucketPolicyOutput> {
        let bucket = self.bucket(&input.bucket, who, "")?;
        if input.policy.len() > MOST {
            return Err(s3_error!(MalformedPolicy, "a policy may have {MOST} bytes"));
        }
        let policy = document::read(&input.policy, &input.bucket)?;
        let users = self.users.list().map_err(|failure| s3_error!(InternalError, "{failure}"))?;
        if let Some(unknown) = policy.users().find(|name| !users.iter().any(|user| user.name == **name)) {
            return Err(s3_error!(MalformedPolicy, "Invalid principal in policy: there is no user {unknown:?}"));
        }
        self.set_bucket(&bucket, POLICY, Some(input.policy))?;
        Ok(PutBucketPolicyOutput::default())
    }

    pub(crate) fn do_get_bucket_policy(
        &self,
        who: &Who,
        input: GetBucketPolicyInput,
    ) -> S3Result<GetBucketPolicyOutput> {
        let bucket = self.bucket(&input.bucket, who, "")?;
        let text = bucket.record.attributes.get(POLICY).cloned();
        Ok(GetBucketPolicyOutput { policy: Some(text.ok_or(S3ErrorCode::NoSuchBucketPolicy)?) })
    }

    pub(crate) fn do_get_bucket_policy_status(
        &self,
        who: &Who,
        input: GetBucketPolicyStatusInput,
    ) -> S3Result<GetBucketPolicyStatusOutput> {
        let bucket = self.bucket(&input.bucket, who, "")?;
        let policy = Policy::of(&bucket)?.ok_or(S3ErrorCode::NoSuchBucketPolicy)?;
        let is_public = Some(policy.statements.iter().any(Statement::is_public));
        Ok(GetBucketPolicyStatusOutput { policy_status: Some(PolicyStatus { is_public }) })
    }

    pub(crate) fn do_delete_bucket_policy(
        &self,
        who: &Who,
        input: DeleteBucketPolicyInput,
    ) -> S3Result<DeleteBucketPolicyOutput> {
        let bucket = self.bucket(&input.bucket, who, "")?;
        self.set_bucket(&bucket, POLICY, None)?;
        Ok(DeleteBucketPolicyOutput::default())
    }
}

#[cfg(test)]
mod tests;
