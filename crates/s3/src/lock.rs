//! Object lock: versions that are not removed before their time, or while they are held.

use std::time::{Duration, SystemTime};

use object::catalog::Row;
use object::record::Record;
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};
use serde::{Deserialize, Serialize};

use crate::attributes::{Attributes, get};
use crate::face::Face;
use crate::policy::{self, BYPASS};
use crate::versions::{self, Versioning};
use crate::who::Who;

/// The attribute of a bucket whose versions can be locked: what new ones get.
const LOCK: &str = "object-lock";
/// The attributes of a version.
const MODE: &str = "x-amz-object-lock-mode";
const UNTIL: &str = "x-amz-object-lock-retain-until-date";
const HOLD: &str = "x-amz-object-lock-legal-hold";
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// The longest default retention, as in S3.
const DAYS: i32 = 36_500;

/// The retention of versions that are put without one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Standing {
    mode: Option<String>,
    days: Option<i32>,
    years: Option<i32>,
}

/// How long a version is kept.
#[derive(Debug)]
struct Retention {
    mode: String,
    until: Timestamp,
}

/// What a request says of the lock of the version that it puts.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) mode: Option<ObjectLockMode>,
    pub(crate) until: Option<Timestamp>,
    pub(crate) hold: Option<ObjectLockLegalHoldStatus>,
}

/// The [`Given`] of a request: every kind of request has these fields of its own.
macro_rules! given_lock {
    ($input:expr) => {
        $crate::lock::Given {
            mode: $input.object_lock_mode.take(),
            until: $input.object_lock_retain_until_date.take(),
            hold: $input.object_lock_legal_hold_status.take(),
        }
    };
}
pub(crate) use given_lock;

fn is_past(time: &Timestamp) -> bool {
    *time <= Timestamp::from(SystemTime::now())
}

fn date(time: &Timestamp) -> S3Result<String> {
    let mut text = vec![];
    time.format(TimestampFormat::DateTime, &mut text).map_err(|e| s3_error!(InvalidArgument, "{e}"))?;
    String::from_utf8(text).map_err(|e| s3_error!(InternalError, "{e}"))
}

fn known_mode(mode: &str) -> S3Result<()> {
    if [ObjectLockMode::GOVERNANCE, ObjectLockMode::COMPLIANCE].contains(&mode) {
        Ok(())
    } else {
        Err(s3_error!(InvalidArgument, "Unknown wormMode directive: {mode}"))
    }
}

impl Retention {
    fn of(record: &Record) -> S3Result<Option<Self>> {
        let (Some(mode), Some(until)) = (get(record, MODE), record.attributes.get(UNTIL)) else { return Ok(None) };
        let until = Timestamp::parse(TimestampFormat::DateTime, until);
        // What cannot be read must not count as over.
        let until = until.map_err(|_| s3_error!(InternalError, "the version has a retention that cannot be read"))?;
        Ok(Some(Self { mode, until }))
    }

    /// What a request asks for; both parts, or none.
    fn asked(mode: Option<&str>, until: Option<&Timestamp>) -> S3Result<Option<Self>> {
        let (mode, until) = match (mode, until) {
            (None, None) => return Ok(None),
            (Some(mode), Some(until)) => (mode.to_owned(), until.clone()),
            _ => return Err(s3_error!(InvalidArgument, "a retention has a mode and a date")),
        };
        known_mode(&mode)?;
        if is_past(&until) {
            return Err(s3_error!(InvalidArgument, "The retain until date must be in the future!"));
        }
        Ok(Some(Self { mode, until }))
    }

    fn is_over(&self) -> bool {
        is_past(&self.until)
    }

    /// Whether another in place of this one takes nothing from it.
    fn is_kept_by(&self, other: Option<&Self>) -> bool {
        let strict = |retention: &Self| retention.mode == ObjectLockMode::COMPLIANCE;
        other.is_some_and(|other| other.until >= self.until && strict(other) >= strict(self))
    }

    fn keep(&self, attributes: &mut Attributes) -> S3Result<()> {
        attributes.insert(MODE.to_owned(), self.mode.clone());
        attributes.insert(UNTIL.to_owned(), date(&self.until)?);
        Ok(())
    }
}

/// Forgets the lock that came with attributes of another version.
pub(crate) fn forget(attributes: &mut Attributes) {
    [MODE, UNTIL, HOLD].iter().for_each(|name| drop(attributes.remove(*name)));
}

/// Keeps what a request gives for its version.
pub(crate) fn keep(bucket: &Row, who: &Who, key: &str, given: &Given, attributes: &mut Attributes) -> S3Result<()> {
    let retention = Retention::asked(given.mode.as_ref().map(ObjectLockMode::as_str), given.until.as_ref())?;
    if retention.is_none() && given.hold.is_none() {
        return Ok(());
    }
    lockable(bucket)?;
    if let Some(retention) = retention {
        policy::check(bucket, who, "PutObjectRetention", key)?;
        retention.keep(attributes)?;
    }
    if let Some(hold) = &given.hold {
        policy::check(bucket, who, "PutObjectLegalHold", key)?;
        attributes.insert(HOLD.to_owned(), known_hold(hold)?);
    }
    Ok(())
}

/// Gives a version that is put now its bucket's retention, unless it has one of its own.
pub(crate) fn apply_default(bucket: &Row, attributes: &mut Attributes) -> S3Result<()> {
    let Some(default) = Standing::of(bucket)? else { return Ok(()) };
    let Some(mode) = default.mode.filter(|_| !attributes.contains_key(MODE)) else { return Ok(()) };
    let days = default.days.or(default.years.map(|years| years.saturating_mul(365))).unwrap_or(0);
    let until = Timestamp::from(SystemTime::now() + DAY * u32::try_from(days).unwrap_or(0));
    Retention { mode, until }.keep(attributes)
}

/// Refuses to remove a version that is locked.
pub(crate) fn check_removal(record: &Record, bypass: bool) -> S3Result<()> {
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

/// Whether a request that asks to bypass governance may.
pub(crate) fn bypasses(bucket: &Row, who: &Who, key: &str, asked: Option<bool>) -> S3Result<bool> {
    if asked != Some(true) {
        return Ok(false);
    }
    policy::check(bucket, who, BYPASS, key).map(|()| true)
}

/// Refuses buckets whose versions cannot be locked.
fn lockable(bucket: &Row) -> S3Result<()> {
    if bucket.record.attributes.contains_key(LOCK) {
        Ok(())
    } else {
        Err(s3_error!(InvalidRequest, "Bucket is missing Object Lock Configuration"))
    }
}

/// Refuses a bucket whose versions can be locked, and could be replaced.
pub(crate) fn check_bucket(bucket: &Record) -> S3Result<()> {
    if bucket.attributes.contains_key(LOCK) && Versioning::of(bucket) != Versioning::Enabled {
        return Err(s3_error!(
            InvalidBucketState,
            "a bucket with object lock keeps versions, and goes on to keep them"
        ));
    }
    Ok(())
}

/// Makes a new bucket one whose versions can be locked.
pub(crate) fn enable(attributes: &mut Attributes) {
    attributes.insert(LOCK.to_owned(), "{}".to_owned());
    versions::enable(attributes);
}

fn known_hold(hold: &ObjectLockLegalHoldStatus) -> S3Result<String> {
    let known = [ObjectLockLegalHoldStatus::ON, ObjectLockLegalHoldStatus::OFF].contains(&hold.as_str());
    if known { Ok(hold.as_str().to_owned()) } else { Err(S3ErrorCode::MalformedXML.into()) }
}

/// What is said of a version's lock.
pub(crate) fn said(record: &Record) -> (Option<ObjectLockMode>, Option<Timestamp>, Option<ObjectLockLegalHoldStatus>) {
    let until = record.attributes.get(UNTIL).and_then(|text| Timestamp::parse(TimestampFormat::DateTime, text).ok());
    (get(record, MODE).map(Into::into), until, get(record, HOLD).map(Into::into))
}

impl Standing {
    fn of(bucket: &Row) -> S3Result<Option<Self>> {
        let text = bucket.record.attributes.get(LOCK);
        text.map(|text| serde_json::from_str(text).map_err(|e| s3_error!(InternalError, "{e}"))).transpose()
    }

    fn read(rule: Option<ObjectLockRule>) -> S3Result<Self> {
        let Some(rule) = rule else { return Ok(Self::default()) };
        let given = rule.default_retention.ok_or(S3ErrorCode::MalformedXML)?;
        let mode = given.mode.ok_or(S3ErrorCode::MalformedXML)?.as_str().to_owned();
        known_mode(&mode).map_err(|_| S3ErrorCode::MalformedXML)?;
        let good = match (given.days, given.years) {
            (Some(days), None) => (1..=DAYS).contains(&days),
            (None, Some(years)) => (1..=DAYS / 365).contains(&years),
            _ => return Err(S3ErrorCode::MalformedXML.into()),
        };
        if !good {
            return Err(s3_error!(InvalidArgument, "a default retention lasts 1 day to 100 years"));
        }
        Ok(Self { mode: Some(mode), days: given.days, years: given.years })
    }

    fn said(self) -> Option<ObjectLockRule> {
        let mode = Some(ObjectLockRetentionMode::from(self.mode?));
        let default_retention = Some(DefaultRetention { days: self.days, mode, years: self.years });
        Some(ObjectLockRule { default_retention })
    }
}

impl Face {
    pub(crate) fn do_put_lock_configuration(
        &self,
        who: &Who,
        input: PutObjectLockConfigurationInput,
    ) -> S3Result<PutObjectLockConfigurationOutput> {
        let bucket = self.bucket(&input.bucket, who, "")?;
        let given = input.object_lock_configuration.ok_or(S3ErrorCode::MalformedXML)?;
        if given.object_lock_enabled.is_none_or(|enabled| enabled.as_str() != ObjectLockEnabled::ENABLED) {
            return Err(S3ErrorCode::MalformedXML.into());
        }
        let default = Standing::read(given.rule)?;
        let text = serde_json::to_string(&default).map_err(|e| s3_error!(InternalError, "{e}"))?;
        self.set_bucket(&bucket, LOCK, Some(text))?;
        Ok(PutObjectLockConfigurationOutput::default())
    }

    pub(crate) fn do_get_lock_configuration(
        &self,
        who: &Who,
        input: GetObjectLockConfigurationInput,
    ) -> S3Result<GetObjectLockConfigurationOutput> {
        let bucket = self.bucket(&input.bucket, who, "")?;
        let default = Standing::of(&bucket)?.ok_or(S3ErrorCode::ObjectLockConfigurationNotFoundError)?;
        let object_lock_enabled = Some(ObjectLockEnabled::from_static(ObjectLockEnabled::ENABLED));
        let configuration = ObjectLockConfiguration { object_lock_enabled, rule: default.said() };
        Ok(GetObjectLockConfigurationOutput { object_lock_configuration: Some(configuration) })
    }

    pub(crate) fn do_put_retention(
        &self,
        who: &Who,
        input: PutObjectRetentionInput,
    ) -> S3Result<PutObjectRetentionOutput> {
        let bucket = self.bucket(&input.bucket, who, &input.key)?;
        lockable(&bucket)?;
        let bypass = bypasses(&bucket, who, &input.key, input.bypass_governance_retention)?;
        let given = input.retention.unwrap_or_default();
        let mode = given.mode.as_ref().map(ObjectLockRetentionMode::as_str);
        let asked = Retention::asked(mode, given.retain_until_date.as_ref())?;
        self.revise(&bucket, &input.key, input.version_id.as_deref(), |record| {
            let active = Retention::of(record)?.filter(|old| !old.is_over() && !old.is_kept_by(asked.as_ref()));
            if active.is_some_and(|old| old.mode == ObjectLockMode::COMPLIANCE || !bypass) {
                return Err(s3_error!(AccessDenied, "the version is retained until a later date"));
            }
            [MODE, UNTIL].iter().for_each(|name| drop(record.attributes.remove(*name)));
            asked.as_ref().map_or(Ok(()), |asked| asked.keep(&mut record.attributes))
        })?;
        Ok(PutObjectRetentionOutput::default())
    }

    pub(crate) fn do_get_retention(
        &self,
        who: &Who,
        input: GetObjectRetentionInput,
    ) -> S3Result<GetObjectRetentionOutput> {
        let bucket = self.bucket(&input.bucket, who, &input.key)?;
        lockable(&bucket)?;
        let row = self.find(&bucket, &input.key, input.version_id.as_deref())?;
        let kept = Retention::of(&row.record)?.ok_or(S3ErrorCode::NoSuchObjectLockConfiguration)?;
        let (mode, until) = (Some(ObjectLockRetentionMode::from(kept.mode)), Some(kept.until));
        Ok(GetObjectRetentionOutput { retention: Some(ObjectLockRetention { mode, retain_until_date: until }) })
    }

    pub(crate) fn do_put_legal_hold(
        &self,
        who: &Who,
        input: PutObjectLegalHoldInput,
    ) -> S3Result<PutObjectLegalHoldOutput> {
        let bucket = self.bucket(&input.bucket, who, &input.key)?;
        lockable(&bucket)?;
        let status = input.legal_hold.and_then(|hold| hold.status).ok_or(S3ErrorCode::MalformedXML)?;
        let status = known_hold(&status)?;
        self.revise(&bucket, &input.key, input.version_id.as_deref(), |record| {
            record.attributes.insert(HOLD.to_owned(), status.clone());
            Ok(())
        })?;
        Ok(PutObjectLegalHoldOutput::default())
    }

    pub(crate) fn do_get_legal_hold(
        &self,
        who: &Who,
        input: GetObjectLegalHoldInput,
    ) -> S3Result<GetObjectLegalHoldOutput> {
        let bucket = self.bucket(&input.bucket, who, &input.key)?;
        lockable(&bucket)?;
        let row = self.find(&bucket, &input.key, input.version_id.as_deref())?;
        let status = get(&row.record, HOLD).ok_or(S3ErrorCode::NoSuchObjectLockConfiguration)?;
        let legal_hold = Some(ObjectLockLegalHold { status: Some(status.into()) });
        Ok(GetObjectLegalHoldOutput { legal_hold })
    }
}
