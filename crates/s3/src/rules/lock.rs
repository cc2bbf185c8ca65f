//! Object lock: versions that are kept until a date, or while a legal hold is on.

use std::time::{Duration, SystemTime};

use catalog::Row;
use catalog::object_manifest::ObjectManifest;
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};
use serde::{Deserialize, Serialize};

use super::attributes::{Attributes, get};
use super::caller::Caller;
use super::error;
use super::policy::{self, BYPASS};
use super::versioning::{self, Versioning};

/// The attribute of a bucket with object lock: its default retention.
pub(crate) const LOCK: &str = "object-lock";
/// The attributes of a version.
pub(crate) const MODE: &str = "x-amz-object-lock-mode";
pub(crate) const UNTIL: &str = "x-amz-object-lock-retain-until-date";
pub(crate) const HOLD: &str = "x-amz-object-lock-legal-hold";
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// The longest default retention, as in S3.
const DAYS: i32 = 36_500;

/// The retention of versions that are put without one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BucketDefault {
    mode: Option<String>,
    days: Option<i32>,
    years: Option<i32>,
}

/// The retention of a version.
#[derive(Debug)]
pub(crate) struct Retention {
    pub(crate) mode: String,
    pub(crate) until: Timestamp,
}

/// The lock that a request asks for.
#[derive(Debug)]
pub(crate) struct RequestedLock {
    pub(crate) mode: Option<ObjectLockMode>,
    pub(crate) until: Option<Timestamp>,
    pub(crate) hold: Option<ObjectLockLegalHoldStatus>,
}

/// The [`RequestedLock`] of a request: every kind of request has these fields of its own.
macro_rules! requested_lock {
    ($input:expr) => {
        $crate::rules::lock::RequestedLock {
            mode: $input.object_lock_mode.take(),
            until: $input.object_lock_retain_until_date.take(),
            hold: $input.object_lock_legal_hold_status.take(),
        }
    };
}
pub(crate) use requested_lock;

fn is_past(time: &Timestamp) -> bool {
    *time <= Timestamp::from(SystemTime::now())
}

/// A time as it is kept.
pub(crate) fn date(time: &Timestamp) -> S3Result<String> {
    let mut text = vec![];
    time.format(TimestampFormat::DateTime, &mut text).map_err(|e| s3_error!(InvalidArgument, "{e}"))?;
    String::from_utf8(text).map_err(|e| s3_error!(InternalError, "{e}"))
}

fn is_mode(mode: &str) -> bool {
    [ObjectLockMode::GOVERNANCE, ObjectLockMode::COMPLIANCE].contains(&mode)
}

impl Retention {
    pub(crate) fn of(record: &ObjectManifest) -> S3Result<Option<Self>> {
        let (Some(mode), Some(until)) = (get(record, MODE), record.attributes.get(UNTIL)) else { return Ok(None) };
        let until = Timestamp::parse(TimestampFormat::DateTime, until);
        // A retention that cannot be read must not count as over.
        let until = until.map_err(|_| s3_error!(InternalError, "the version has a retention that cannot be read"))?;
        Ok(Some(Self { mode, until }))
    }

    /// The retention in the headers of a request: both parts, or none.
    fn in_headers(mode: Option<&str>, until: Option<&Timestamp>) -> S3Result<Option<Self>> {
        let (mode, until) = match (mode, until) {
            (None, None) => return Ok(None),
            (Some(mode), Some(until)) => (mode, until),
            _ => return Err(s3_error!(InvalidArgument, "{MODE} and {UNTIL} must both be supplied")),
        };
        if !is_mode(mode) {
            return Err(s3_error!(InvalidArgument, "Unknown wormMode directive."));
        }
        Self::of_future(mode, until).map(Some)
    }

    /// The retention in a document: both parts, or none. What is no mode there is no document.
    pub(crate) fn in_document(asked: &ObjectLockRetention) -> S3Result<Option<Self>> {
        match (&asked.mode, &asked.retain_until_date) {
            (None, None) => Ok(None),
            (Some(mode), Some(until)) if is_mode(mode.as_str()) => Self::of_future(mode.as_str(), until).map(Some),
            _ => Err(S3ErrorCode::MalformedXML.into()),
        }
    }

    fn of_future(mode: &str, until: &Timestamp) -> S3Result<Self> {
        if is_past(until) {
            return Err(s3_error!(InvalidArgument, "The retain until date must be in the future!"));
        }
        Ok(Self { mode: mode.to_owned(), until: until.clone() })
    }

    pub(crate) fn is_over(&self) -> bool {
        is_past(&self.until)
    }

    /// Whether another retention only goes on with this one. Another mode does not, also when it is stricter: it cannot be
    /// taken back.
    pub(crate) fn is_kept_by(&self, other: Option<&Self>) -> bool {
        other.is_some_and(|other| other.until >= self.until && other.mode == self.mode)
    }

    pub(crate) fn keep(&self, attributes: &mut Attributes) -> S3Result<()> {
        attributes.insert(MODE.to_owned(), self.mode.clone());
        attributes.insert(UNTIL.to_owned(), date(&self.until)?);
        Ok(())
    }
}

/// Removes the lock from attributes that were copied from another version.
pub(crate) fn forget(attributes: &mut Attributes) {
    [MODE, UNTIL, HOLD].iter().for_each(|name| drop(attributes.remove(*name)));
}

/// Sets the lock that a request asks for, if `caller` may.
pub(crate) fn keep(
    bucket: &Row,
    caller: &Caller,
    key: &str,
    requested: &RequestedLock,
    attributes: &mut Attributes,
) -> S3Result<()> {
    let retention =
        Retention::in_headers(requested.mode.as_ref().map(ObjectLockMode::as_str), requested.until.as_ref())?;
    if retention.is_none() && requested.hold.is_none() {
        return Ok(());
    }
    lockable(bucket)?;
    if let Some(retention) = retention {
        policy::check(bucket, caller, "PutObjectRetention", key)?;
        retention.keep(attributes)?;
    }
    if let Some(hold) = &requested.hold {
        policy::check(bucket, caller, "PutObjectLegalHold", key)?;
        attributes.insert(HOLD.to_owned(), known_hold(hold)?);
    }
    Ok(())
}

/// Sets the default retention of its bucket on a new version that has none.
pub(crate) fn apply_default(bucket: &Row, attributes: &mut Attributes) -> S3Result<()> {
    let Some(default) = BucketDefault::of(bucket)? else { return Ok(()) };
    let Some(mode) = default.mode.filter(|_| !attributes.contains_key(MODE)) else { return Ok(()) };
    let days = default.days.or(default.years.map(|years| years.saturating_mul(365))).unwrap_or(0);
    let until = Timestamp::from(SystemTime::now() + DAY * u32::try_from(days).unwrap_or(0));
    Retention { mode, until }.keep(attributes)
}

/// Refuses to remove a version that is locked.
pub(crate) fn check_removal(record: &ObjectManifest, bypass: bool) -> S3Result<()> {
    let locked = |why: &'static str| Err(S3Error::with_message(S3ErrorCode::AccessDenied, why));
    if record.attributes.get(HOLD).is_some_and(|status| status == ObjectLockLegalHoldStatus::ON) {
        return locked("the version is under a legal hold");
    }
    match Retention::of(record)?.filter(|retention| !retention.is_over()) {
        Some(retention) if retention.mode == ObjectLockMode::COMPLIANCE || !bypass => {
            locked("the version is retained until a later date")
        }
        _ => Ok(()),
    }
}

/// Whether a request bypasses governance mode: it asks to, and `caller` may.
pub(crate) fn bypasses(bucket: &Row, caller: &Caller, key: &str, asked: Option<bool>) -> S3Result<bool> {
    if asked != Some(true) {
        return Ok(false);
    }
    policy::check(bucket, caller, BYPASS, key).map(|()| true)
}

/// Refuses buckets without object lock.
pub(crate) fn lockable(bucket: &Row) -> S3Result<()> {
    if bucket.record.attributes.contains_key(LOCK) {
        Ok(())
    } else {
        Err(s3_error!(InvalidRequest, "Bucket is missing Object Lock Configuration"))
    }
}

/// Refuses a bucket with object lock and without versioning.
pub(crate) fn check_bucket(bucket: &ObjectManifest) -> S3Result<()> {
    if bucket.attributes.contains_key(LOCK) && Versioning::of(bucket) != Versioning::Enabled {
        return Err(s3_error!(
            InvalidBucketState,
            "a bucket with object lock keeps versions, and goes on to keep them"
        ));
    }
    Ok(())
}

/// Gives a new bucket object lock.
pub(crate) fn enable(attributes: &mut Attributes) {
    attributes.insert(LOCK.to_owned(), "{}".to_owned());
    versioning::enable(attributes);
}

pub(crate) fn known_hold(hold: &ObjectLockLegalHoldStatus) -> S3Result<String> {
    let known = [ObjectLockLegalHoldStatus::ON, ObjectLockLegalHoldStatus::OFF].contains(&hold.as_str());
    if known { Ok(hold.as_str().to_owned()) } else { Err(S3ErrorCode::MalformedXML.into()) }
}

/// The lock of a version, as an answer has it.
pub(crate) fn to_dto(
    record: &ObjectManifest,
) -> (Option<ObjectLockMode>, Option<Timestamp>, Option<ObjectLockLegalHoldStatus>) {
    let until = record.attributes.get(UNTIL).and_then(|text| Timestamp::parse(TimestampFormat::DateTime, text).ok());
    (get(record, MODE).map(Into::into), until, get(record, HOLD).map(Into::into))
}

impl BucketDefault {
    pub(crate) fn of(bucket: &Row) -> S3Result<Option<Self>> {
        let text = bucket.record.attributes.get(LOCK);
        text.map(|text| serde_json::from_str(text).map_err(|e| s3_error!(InternalError, "{e}"))).transpose()
    }

    pub(crate) fn from_dto(rule: Option<ObjectLockRule>) -> S3Result<Self> {
        let Some(rule) = rule else { return Ok(Self::default()) };
        let requested = rule.default_retention.ok_or(S3ErrorCode::MalformedXML)?;
        let mode = requested.mode.ok_or(S3ErrorCode::MalformedXML)?.as_str().to_owned();
        if !is_mode(&mode) {
            return Err(S3ErrorCode::MalformedXML.into());
        }
        let good = match (requested.days, requested.years) {
            (Some(days), None) => (1..=DAYS).contains(&days),
            (None, Some(years)) => (1..=DAYS / 365).contains(&years),
            _ => return Err(S3ErrorCode::MalformedXML.into()),
        };
        if !good {
            let why = "Default retention period must be a positive integer value of at most 100 years";
            return Err(error::custom("InvalidRetentionPeriod", http::StatusCode::BAD_REQUEST, why));
        }
        Ok(Self { mode: Some(mode), days: requested.days, years: requested.years })
    }

    pub(crate) fn into_dto(self) -> Option<ObjectLockRule> {
        let mode = Some(ObjectLockRetentionMode::from(self.mode?));
        let default_retention = Some(DefaultRetention { days: self.days, mode, years: self.years });
        Some(ObjectLockRule { default_retention })
    }
}
