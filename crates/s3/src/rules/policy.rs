//! Bucket policies: what others than the owner may do, and what is denied even to the owner.
//!
//! A policy with anything that is not supported is refused when it is put, so that none allows more or less than it says.

mod document;

use std::net::IpAddr;

use catalog::Row;
use ipnet::IpNet;
use s3s::{S3ErrorCode, S3Result, s3_error};

use super::attributes::owner;
use super::caller::Caller;

/// The attribute of a bucket that has its policy, as it was put.
pub(crate) const POLICY: &str = "policy";
/// Bytes of a policy, as in S3.
pub(crate) const BYTES: usize = 20 << 10;

/// Bytes of each text of a request that conditions compare: matching takes up to the product of the lengths of text and
/// pattern.
const TEXT_BYTES: usize = 2_048;

/// Operations, the action that each needs, and the one that it needs with a version id.
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
    ("GetObjectAttributes", "GetObjectAttributes", "GetObjectVersionAttributes"),
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

/// An action that is needed in addition to that of an operation.
pub(crate) const BYPASS: &str = "BypassGovernanceRetention";

/// Actions of operations that are not supported. A policy may name them.
const IDLE: &[&str] = &[
    "GetBucketAcl",
    "PutBucketAcl",
    "GetObjectAcl",
    "GetObjectVersionAcl",
    "PutObjectAcl",
    "PutObjectVersionAcl",
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

/// The action that is needed instead of this one with a version id.
fn action_of_version(action: &str) -> &'static str {
    let found = OPERATIONS.iter().find(|(_, plain, version)| *plain == action && !version.is_empty());
    found.map_or("", |(_, _, version)| version)
}

/// All actions that a policy can name.
fn actions() -> impl Iterator<Item = &'static str> {
    let needed = OPERATIONS.iter().flat_map(|(_, plain, version)| [*plain, *version]);
    needed.chain(IDLE.iter().copied()).chain([BYPASS]).filter(|name| !name.is_empty())
}

/// Whether an action is about objects, and not about their bucket.
fn on_objects(action: &str) -> bool {
    !action.contains("Bucket") && !action.contains("Lifecycle")
}

/// Whether `text` matches `pattern`: `*` stands for any characters, `?` for one.
fn fits(pattern: &str, text: &str) -> bool {
    // A text that is too short is not compared: a pattern may be long.
    if pattern.chars().filter(|sign| *sign != '*').count() > text.chars().count() {
        return false;
    }
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // Where to go on when what follows the last star does not match: the star takes one more character.
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
        let Some((after, remaining)) = &mut retry else { return false };
        if remaining.next().is_none() {
            return false;
        }
        (pattern, text) = (after.clone(), remaining.clone());
    }
}

/// The verdict of a policy on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    Denied,
    /// No statement covers it.
    Silent,
}

/// The principals of a statement.
#[derive(Debug)]
enum Principals {
    Everybody,
    Users(Vec<String>),
}

/// The key of a condition.
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

/// The operator and the values of a condition.
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
    /// Whether the test must fail.
    negated: bool,
}

impl Condition {
    fn holds(&self, caller: &Caller) -> bool {
        let text = match self.key {
            Key::SourceIp | Key::SecureTransport => None,
            Key::UserName => caller.user.as_deref(),
            Key::Referer => caller.referer.as_deref(),
            Key::UserAgent => caller.agent.as_deref(),
            Key::Prefix => caller.prefix.as_deref(),
            Key::Delimiter => caller.delimiter.as_deref(),
        };
        // A key that the request does not have equals nothing.
        let any = |values: &[String], same: fn(&str, &str) -> bool| {
            text.is_some_and(|text| values.iter().any(|value| same(value, text)))
        };
        let found = match &self.test {
            Test::Equals(values) => any(values, |value, text| value == text),
            Test::EqualsIgnoreCase(values) => any(values, |value, text| value.eq_ignore_ascii_case(text)),
            Test::Like(values) => any(values, fits),
            Test::Within(nets) => nets.iter().any(|net| net.contains(&caller.peer.address)),
            Test::Bool(values) => values.contains(&caller.peer.secure),
        };
        found != self.negated
    }

    /// Whether a statement with it is not public.
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
    fn covers(&self, caller: &Caller, action: &str, resource: &str) -> bool {
        self.concerns(caller, action) && self.resources.iter().any(|pattern| fits(pattern, resource))
    }

    /// Whether it covers what `caller` does, for some resource.
    fn concerns(&self, caller: &Caller, action: &str) -> bool {
        let about = match &self.principals {
            Principals::Everybody => true,
            Principals::Users(names) => caller.user.as_ref().is_some_and(|user| names.contains(user)),
        };
        let action = action.to_ascii_lowercase();
        about
            && self.actions.iter().any(|pattern| fits(pattern, &action))
            && self.conditions.iter().all(|condition| condition.holds(caller))
    }

    fn is_public(&self) -> bool {
        let everybody = matches!(self.principals, Principals::Everybody);
        self.allow && everybody && !self.conditions.iter().any(Condition::narrows)
    }
}

/// A parsed policy.
#[derive(Debug)]
pub(crate) struct Policy {
    statements: Vec<Statement>,
}

impl Policy {
    /// The policy of a bucket, if it has one.
    pub(crate) fn of(bucket: &Row) -> S3Result<Option<Self>> {
        let text = bucket.record.attributes.get(POLICY);
        text.map(|text| document::read(text, &bucket.record.bucket)).transpose()
    }

    /// Parses the policy of a bucket.
    pub(crate) fn read(text: &str, bucket: &str) -> S3Result<Self> {
        document::read(text, bucket)
    }

    /// Whether it allows something to everybody.
    pub(crate) fn is_public(&self) -> bool {
        self.statements.iter().any(Statement::is_public)
    }

    /// Refuses requests with texts that are too long to compare. They cannot be ignored, as a statement may deny.
    fn check_length(&self, caller: &Caller) -> S3Result<()> {
        let texts = [&caller.prefix, &caller.delimiter, &caller.referer, &caller.agent];
        let long = texts.into_iter().flatten().any(|text| text.len() > TEXT_BYTES);
        if long && self.statements.iter().any(|statement| !statement.conditions.is_empty()) {
            return Err(s3_error!(
                AccessDenied,
                "the bucket's policy has conditions: prefix, delimiter, Referer and User-Agent may have {TEXT_BYTES} bytes each"
            ));
        }
        Ok(())
    }

    fn says(&self, caller: &Caller, action: &str, resource: &str) -> Verdict {
        let mut covering = self.statements.iter().filter(|s| s.covers(caller, action, resource)).peekable();
        if covering.peek().is_none() {
            Verdict::Silent
        } else if covering.all(|statement| statement.allow) {
            Verdict::Allowed
        } else {
            Verdict::Denied
        }
    }

    pub(crate) fn users(&self) -> impl Iterator<Item = &String> {
        self.statements.iter().flat_map(|statement| match &statement.principals {
            Principals::Everybody => &[][..],
            Principals::Users(names) => names,
        })
    }
}

/// Refuses what `caller` may not do in a bucket: with a key, or with the bucket itself when that is empty.
pub(crate) fn check(bucket: &Row, caller: &Caller, action: &str, key: &str) -> S3Result<()> {
    let is_owner = caller.user.as_deref() == Some(owner(&bucket.record));
    // The owner is never locked out of the policy.
    if is_owner && action.ends_with("BucketPolicy") {
        return Ok(());
    }
    let name = &bucket.record.bucket;
    let resource = if key.is_empty() { name.clone() } else { format!("{name}/{key}") };
    let policy = Policy::of(bucket)?;
    policy.as_ref().map_or(Ok(()), |policy| policy.check_length(caller))?;
    let verdict = policy.map_or(Verdict::Silent, |policy| policy.says(caller, action, &resource));
    match verdict {
        Verdict::Allowed => Ok(()),
        Verdict::Silent if is_owner => Ok(()),
        Verdict::Denied => Err(s3_error!(AccessDenied, "the bucket's policy denies s3:{action}")),
        Verdict::Silent => Err(S3ErrorCode::AccessDenied.into()),
    }
}

/// Refuses what `caller` may do with no key of a bucket, for requests whose keys are in the body.
pub(crate) fn check_some_key(bucket: &Row, caller: &Caller) -> S3Result<()> {
    let actions = [caller.action, action_of_version(caller.action)];
    let allows = |statement: &Statement| statement.allow && actions.iter().any(|name| statement.concerns(caller, name));
    let policy = Policy::of(bucket)?;
    policy.as_ref().map_or(Ok(()), |policy| policy.check_length(caller))?;
    match policy {
        Some(policy) if policy.statements.iter().any(allows) => Ok(()),
        _ => Err(S3ErrorCode::AccessDenied.into()),
    }
}

#[cfg(test)]
mod tests;
