//! Bucket policies: what others than the owner may do, and what is denied even to the owner.
//!
//! A policy with anything that is not understood is refused when it is put, so that none allows more or less than it says.

mod actions;
mod condition;
mod document;
mod keys;
mod pattern;
mod principal;

use catalog::Row;
use s3s::{S3ErrorCode, S3Result, s3_error};

pub(crate) use self::actions::{BYPASS, action};
use self::condition::Condition;
use self::pattern::{Pattern, fits};
use self::principal::Principals;
use super::attributes::owner;
use super::caller::Caller;
use super::context::{Context, is_of_existing};
use super::ownership::PublicBlock;

/// The attribute of a bucket that has its policy, as it was put.
pub(crate) const POLICY: &str = "policy";
/// Bytes of a policy, as in S3.
pub(crate) const BYTES: usize = 20 << 10;

/// Bytes of each text of a request that conditions compare: matching takes up to the product of the lengths of text and
/// pattern.
const TEXT_BYTES: usize = 2_048;

/// The verdict of a policy on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    Denied,
    /// No statement covers it.
    Silent,
}

/// What is in a list of a statement, or all that is not.
#[derive(Debug)]
struct Listed<T> {
    these: T,
    /// Whether it is all others.
    inverted: bool,
}

#[derive(Debug)]
struct Statement {
    allow: bool,
    principals: Listed<Principals>,
    /// Patterns in small letters, without `s3:`.
    actions: Listed<Vec<String>>,
    /// Patterns of `BUCKET` and `BUCKET/KEY`.
    resources: Listed<Vec<Pattern>>,
    conditions: Vec<Condition>,
}

impl Statement {
    fn covers(&self, caller: &Caller, action: &str, resource: &str) -> bool {
        let context = &caller.context;
        self.concerns(caller, action)
            && self.resources.these.iter().any(|pattern| pattern.matches(resource, context)) != self.resources.inverted
            && self.conditions.iter().all(|condition| condition.holds(context))
    }

    /// Whether it is about whoever asks, and what they do, for some resource and under some conditions.
    fn concerns(&self, caller: &Caller, action: &str) -> bool {
        let action = action.to_ascii_lowercase();
        self.principals.these.include(caller.user.as_deref()) != self.principals.inverted
            && self.actions.these.iter().any(|pattern| fits(pattern, &action)) != self.actions.inverted
    }

    fn is_public(&self) -> bool {
        let everybody = self.principals.these == Principals::Everybody || self.principals.inverted;
        self.allow && everybody && !self.conditions.iter().any(Condition::narrows)
    }

    /// The keys whose values it looks at.
    fn keys(&self) -> impl Iterator<Item = &str> {
        let resources = self.resources.these.iter().flat_map(Pattern::keys);
        resources.chain(self.conditions.iter().flat_map(Condition::keys))
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
        text.map(|text| document::read(text, &bucket.record.bucket, false)).transpose()
    }

    /// Parses the policy that somebody puts.
    pub(crate) fn read(text: &str, bucket: &str) -> S3Result<Self> {
        document::read(text, bucket, true)
    }

    /// Whether it allows something to everybody.
    pub(crate) fn is_public(&self) -> bool {
        self.statements.iter().any(Statement::is_public)
    }

    /// Whether it looks at the tags of the object that there is.
    pub(crate) fn needs_existing(&self) -> bool {
        self.statements.iter().flat_map(Statement::keys).any(is_of_existing)
    }

    /// Refuses requests with texts that are too long to compare. They cannot be ignored, as a statement may deny.
    fn check_length(&self, context: &Context) -> S3Result<()> {
        let long = |key: &&str| context.values(key).iter().any(|value| value.len() > TEXT_BYTES);
        match self.statements.iter().flat_map(Statement::keys).find(long) {
            Some(key) => Err(s3_error!(
                AccessDenied,
                "the bucket's policy looks at {key}, of which a request may have {TEXT_BYTES} bytes"
            )),
            None => Ok(()),
        }
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

    /// The users whom it names.
    pub(crate) fn users(&self) -> impl Iterator<Item = &String> {
        self.statements.iter().flat_map(|statement| match &statement.principals.these {
            Principals::Everybody => &[][..],
            Principals::Users(names) => names,
        })
    }
}

/// What the bucket's policy, if it has one, says to what `caller` does: with a key, or with the bucket itself when that is
/// empty. Refuses what it denies.
pub(crate) fn decide(
    policy: Option<&Policy>,
    bucket: &Row,
    caller: &Caller,
    action: &str,
    key: &str,
) -> S3Result<Verdict> {
    let is_owner = caller.user.as_deref() == Some(owner(&bucket.record));
    // The owner is never locked out of the policy.
    if is_owner && action.ends_with("BucketPolicy") {
        return Ok(Verdict::Allowed);
    }
    let name = &bucket.record.bucket;
    let resource = if key.is_empty() { name.clone() } else { format!("{name}/{key}") };
    let Some(policy) = policy else { return Ok(Verdict::Silent) };
    policy.check_length(&caller.context)?;
    match policy.says(caller, action, &resource) {
        Verdict::Denied => Err(s3_error!(AccessDenied, "the bucket's policy denies s3:{action}")),
        Verdict::Allowed if !is_owner && is_kept_from_public(bucket, policy)? => {
            Err(s3_error!(AccessDenied, "the bucket's public access block keeps it from all but its owner"))
        }
        verdict => Ok(verdict),
    }
}

/// Whether the policy lets nobody in, because it would let everybody in.
fn is_kept_from_public(bucket: &Row, policy: &Policy) -> S3Result<bool> {
    Ok(PublicBlock::in_force(&bucket.record)?.policies && policy.is_public())
}

/// Refuses what `caller` may not do in a bucket as far as its policy says, and what only its owner may where that says nothing.
pub(crate) fn check(bucket: &Row, caller: &Caller, action: &str, key: &str) -> S3Result<()> {
    match decide(Policy::of(bucket)?.as_ref(), bucket, caller, action, key)? {
        Verdict::Silent if caller.user.as_deref() != Some(owner(&bucket.record)) => {
            Err(S3ErrorCode::AccessDenied.into())
        }
        _ => Ok(()),
    }
}

/// Refuses what `caller` may do with no key of a bucket and under no conditions, for requests whose body has these.
pub(crate) fn check_some_key(bucket: &Row, caller: &Caller) -> S3Result<()> {
    let actions = [caller.action, actions::action_of_version(caller.action)];
    let allows = |statement: &Statement| statement.allow && actions.iter().any(|name| statement.concerns(caller, name));
    match Policy::of(bucket)? {
        Some(policy) if policy.statements.iter().any(allows) && !is_kept_from_public(bucket, &policy)? => Ok(()),
        _ => Err(S3ErrorCode::AccessDenied.into()),
    }
}

#[cfg(test)]
mod tests;
