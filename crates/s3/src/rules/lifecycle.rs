//! Lifecycle rules: which objects, noncurrent versions and uploads expire or move to another storage class, and when.

use std::num::NonZero;

use catalog::object_manifest::{KEY_BYTES, ObjectManifest};
use catalog::{Row, Upload};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Result, s3_error};
use serde::{Deserialize, Serialize};

use super::{attributes, query, tags};

/// The attribute of a bucket that has its rules.
pub(crate) const LIFECYCLE: &str = "lifecycle";
/// Characters of the name of a rule, as in S3.
const ID_LENGTH: usize = 255;
/// Tags in a filter.
const MOST_TAGS: usize = 50;
/// Rules of a bucket, as in S3.
pub(crate) const MOST: usize = 1_000;
const DAY: u64 = 24 * 3_600 * 1_000_000;

/// One rule, as it is stored. Times are microseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rule {
    id: Option<String>,
    enabled: bool,
    prefix: String,
    /// Whether the prefix was given in a filter. An answer has it in the same place.
    filter: bool,
    tags: Vec<(String, String)>,
    greater: Option<i64>,
    less: Option<i64>,
    days: Option<i32>,
    date: Option<u64>,
    lone_markers: bool,
    older_days: Option<i32>,
    older_kept: Option<i32>,
    upload_days: Option<i32>,
    /// When objects move to another storage class, and older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    moves: Vec<Move>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    older_moves: Vec<OlderMove>,
    /// Microseconds of a day.
    #[serde(skip)]
    day: Day,
}

/// When an object moves to a storage class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Move {
    days: Option<i32>,
    date: Option<u64>,
    class: String,
}

/// When a noncurrent version does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OlderMove {
    days: i32,
    kept: Option<i32>,
    class: String,
}

/// How long a day is, in microseconds: an operator who tries rules out may have shorter ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Day(u64);

impl Default for Day {
    fn default() -> Self {
        Self(DAY)
    }
}

impl Day {
    pub(crate) fn of_seconds(seconds: NonZero<u64>) -> Self {
        Self(seconds.get().saturating_mul(1_000_000).min(DAY))
    }

    /// The end of so many days after `from`, counted from the next midnight, as in S3.
    fn end(self, from: u64, days: i32) -> u64 {
        let days = u64::try_from(days).unwrap_or(0);
        (from / self.0 + 1 + days) * self.0
    }

    /// Whether so many days have passed since `from`.
    fn is_over(self, from: u64, days: i32, now: u64) -> bool {
        now >= self.end(from, days)
    }
}

/// A date, which must be the beginning of a day.
fn midnight(date: &Timestamp) -> S3Result<u64> {
    let micros = u64::try_from(attributes::seconds(date)).unwrap_or(0) * 1_000_000;
    let whole = time::OffsetDateTime::from(date.clone()).nanosecond() == 0;
    if micros % DAY == 0 && whole {
        return Ok(micros);
    }
    Err(s3_error!(InvalidArgument, "'Date' must be at midnight GMT"))
}

/// Refuses a class to which a rule moves objects already.
fn check_again<'a>(mut known: impl Iterator<Item = &'a String>, class: &str) -> S3Result<()> {
    if known.all(|known| known != class) {
        return Ok(());
    }
    Err(s3_error!(InvalidRequest, "'StorageClass' must be different for transition actions in the same rule"))
}

/// Refuses days that there are not.
fn positive(what: &str, action: &str, days: i32) -> S3Result<()> {
    if days > 0 {
        return Ok(());
    }
    Err(s3_error!(InvalidArgument, "'{what}' for {action} action must be a positive integer"))
}

/// When the newest version of a key expires, and by which of the rules, as answers say it.
pub(crate) fn expiration(rules: &[Rule], record: &ObjectManifest) -> Option<String> {
    let ends = rules.iter().filter_map(|rule| Some((rule.expires(record)?, rule)));
    let (at, rule) = ends.min_by_key(|(at, _)| *at)?;
    let mut date = vec![];
    attributes::time(at).format(TimestampFormat::HttpDate, &mut date).ok()?;
    let id = query::encode(rule.id.as_deref().unwrap_or_default());
    Some(format!("expiry-date=\"{}\", rule-id=\"{id}\"", String::from_utf8(date).ok()?))
}

/// The storage class that an object which is the newest version has by now, if rules say so: of several the last one.
pub(crate) fn moves<'a>(rules: &'a [Rule], record: &ObjectManifest, now: u64) -> Option<&'a str> {
    let named = rules.iter().filter(|rule| rule.names(record));
    let due = named.flat_map(|rule| rule.moves.iter().filter_map(|to| Some((to.at(record, rule.day)?, &*to.class))));
    due.filter(|(at, _)| *at <= now).max_by_key(|(at, _)| *at).map(|(_, class)| class)
}

/// The same of a noncurrent version that was replaced at `since`, when `newer` noncurrent ones are newer.
pub(crate) fn moves_older<'a>(
    rules: &'a [Rule],
    record: &ObjectManifest,
    since: u64,
    newer: usize,
    now: u64,
) -> Option<&'a str> {
    let named = rules.iter().filter(|rule| rule.names(record));
    let all = named.flat_map(|rule| rule.older_moves.iter().map(|to| (rule.day.end(since, to.days), to)));
    let enough = |to: &OlderMove| newer >= usize::try_from(to.kept.unwrap_or(0)).unwrap_or(0);
    let due = all.filter(|(at, to)| *at <= now && enough(to));
    due.max_by_key(|(at, _)| *at).map(|(_, to)| &*to.class)
}

impl Move {
    fn at(&self, record: &ObjectManifest, day: Day) -> Option<u64> {
        self.days.map(|days| day.end(record.version.micros(), days)).or(self.date)
    }
}

impl Rule {
    /// The storage classes that it names.
    pub(crate) fn classes(&self) -> impl Iterator<Item = &str> {
        self.moves.iter().map(|to| &*to.class).chain(self.older_moves.iter().map(|to| &*to.class))
    }

    fn names(&self, record: &ObjectManifest) -> bool {
        let tags = record.attributes.get(tags::TAGS).and_then(|text| tags::read(text).ok()).unwrap_or_default();
        let size = i64::try_from(record.size).unwrap_or(i64::MAX);
        self.enabled
            && record.key.starts_with(&self.prefix)
            && self.tags.iter().all(|tag| tags.contains(tag))
            && self.greater.is_none_or(|limit| size > limit)
            && self.less.is_none_or(|limit| size < limit)
    }

    /// When an object that is the newest version expires, if it does.
    fn expires(&self, record: &ObjectManifest) -> Option<u64> {
        let by_age = self.days.map(|days| self.day.end(record.version.micros(), days));
        by_age.into_iter().chain(self.date).min().filter(|_| self.names(record))
    }

    /// Whether an object that is the newest version expires by now.
    pub(crate) fn ends(&self, record: &ObjectManifest, now: u64) -> bool {
        self.expires(record).is_some_and(|at| now >= at)
    }

    /// Whether a noncurrent version expires that was replaced at `since`, when `newer` noncurrent ones are newer.
    pub(crate) fn ends_older(&self, record: &ObjectManifest, since: u64, newer: usize, now: u64) -> bool {
        let kept = usize::try_from(self.older_kept.unwrap_or(0)).unwrap_or(0);
        self.names(record) && newer >= kept && self.older_days.is_some_and(|days| self.day.is_over(since, days, now))
    }

    /// Whether a delete marker expires that is the only version of its key.
    pub(crate) fn ends_lone_marker(&self, record: &ObjectManifest) -> bool {
        self.lone_markers && self.names(record)
    }

    /// Whether an upload expires.
    pub(crate) fn ends_upload(&self, upload: &Upload, now: u64) -> bool {
        let days = self.upload_days.filter(|_| self.enabled && upload.record.key.starts_with(&self.prefix));
        days.is_some_and(|days| self.day.is_over(upload.id.micros(), days, now))
    }

    /// From a request, with a name for a rule that has none.
    pub(crate) fn from_dto(rule: LifecycleRule, name: impl FnOnce() -> S3Result<String>) -> S3Result<Self> {
        let enabled = match rule.status.as_str() {
            ExpirationStatus::ENABLED => true,
            ExpirationStatus::DISABLED => false,
            _ => return Err(S3ErrorCode::MalformedXML.into()),
        };
        let id = match rule.id.filter(|id| !id.is_empty()) {
            Some(id) if id.chars().count() > ID_LENGTH => {
                return Err(s3_error!(InvalidArgument, "ID length should not exceed allowed limit of {ID_LENGTH}"));
            }
            Some(id) => id,
            None => name()?,
        };
        let mut kept = Self { id: Some(id), enabled, ..Self::default() };
        match (rule.prefix, rule.filter) {
            (Some(prefix), None) => kept.prefix = prefix,
            (None, Some(filter)) => kept.set_filter(filter)?,
            // One of them says what the rule is about.
            _ => return Err(S3ErrorCode::MalformedXML.into()),
        }
        if kept.prefix.len() > KEY_BYTES {
            return Err(s3_error!(InvalidRequest, "The maximum size of a prefix is {KEY_BYTES}."));
        }
        if let Some(end) = rule.expiration {
            kept.set_expiration(&end)?;
        }
        if let Some(older) = rule.noncurrent_version_expiration {
            kept.set_older(&older)?;
        }
        if let Some(abort) = rule.abort_incomplete_multipart_upload {
            let days = abort.days_after_initiation.ok_or(S3ErrorCode::MalformedXML)?;
            positive("DaysAfterInitiation", "AbortIncompleteMultipartUpload", days)?;
            kept.upload_days = Some(days);
        }
        kept.set_moves(rule.transitions.unwrap_or_default())?;
        kept.set_older_moves(rule.noncurrent_version_transitions.unwrap_or_default())?;
        kept.check()?;
        Ok(kept)
    }

    /// What the rule is about: one thing, or several together.
    fn set_filter(&mut self, filter: LifecycleRuleFilter) -> S3Result<()> {
        let several = [
            filter.and.is_some(),
            filter.prefix.is_some(),
            filter.tag.is_some(),
            filter.object_size_greater_than.is_some(),
            filter.object_size_less_than.is_some(),
        ];
        if several.iter().filter(|is_there| **is_there).count() > 1 {
            return Err(S3ErrorCode::MalformedXML.into());
        }
        let joined = filter.and.is_some();
        let and = filter.and.unwrap_or_default();
        self.filter = true;
        let prefix = filter.prefix.or(and.prefix);
        let tags = filter.tag.into_iter().chain(and.tags.unwrap_or_default());
        let tags = tags.map(|tag| tag.key.zip(tag.value)).collect::<Option<_>>();
        self.tags = tags::check(tags.ok_or(S3ErrorCode::MalformedXML)?, MOST_TAGS)?;
        self.greater = filter.object_size_greater_than.or(and.object_size_greater_than);
        self.less = filter.object_size_less_than.or(and.object_size_less_than);
        let count = usize::from(prefix.is_some())
            + self.tags.len()
            + usize::from(self.greater.is_some())
            + usize::from(self.less.is_some());
        if joined && count < 2 {
            return Err(S3ErrorCode::MalformedXML.into());
        }
        self.prefix = prefix.unwrap_or_default();
        if self.greater.is_some_and(|size| size < 0) || self.less.is_some_and(|size| size < 1) {
            return Err(s3_error!(
                InvalidArgument,
                "'ObjectSizeGreaterThan' and 'ObjectSizeLessThan' must be positive"
            ));
        }
        if self.greater.zip(self.less).is_some_and(|(greater, less)| greater >= less) {
            return Err(s3_error!(
                InvalidRequest,
                "'ObjectSizeLessThan' has to be a value greater than 'ObjectSizeGreaterThan'"
            ));
        }
        Ok(())
    }

    fn set_expiration(&mut self, end: &LifecycleExpiration) -> S3Result<()> {
        let marker = end.expired_object_delete_marker;
        let several = [end.days.is_some(), end.date.is_some(), marker.is_some()];
        if several.iter().filter(|is_there| **is_there).count() != 1 {
            return Err(S3ErrorCode::MalformedXML.into());
        }
        if let Some(days) = end.days {
            positive("Days", "Expiration", days)?;
        }
        self.date = end.date.as_ref().map(midnight).transpose()?;
        self.days = end.days;
        self.lone_markers = marker == Some(true);
        Ok(())
    }

    fn set_older(&mut self, older: &NoncurrentVersionExpiration) -> S3Result<()> {
        let days = older.noncurrent_days.ok_or(S3ErrorCode::MalformedXML)?;
        positive("NoncurrentDays", "NoncurrentVersionExpiration", days)?;
        if older.newer_noncurrent_versions.is_some_and(|kept| !(1..=100).contains(&kept)) {
            return Err(s3_error!(
                InvalidArgument,
                "'NewerNoncurrentVersions' for NoncurrentVersionExpiration action must be between 1 and 100"
            ));
        }
        (self.older_days, self.older_kept) = (Some(days), older.newer_noncurrent_versions);
        Ok(())
    }

    fn set_moves(&mut self, asked: Vec<Transition>) -> S3Result<()> {
        for to in asked {
            let class = to.storage_class.ok_or(S3ErrorCode::MalformedXML)?.as_str().to_owned();
            if to.days.is_some() == to.date.is_some() {
                return Err(S3ErrorCode::MalformedXML.into());
            }
            let after = |days: i32| self.days.is_some_and(|end| end <= days);
            if to.days.is_some_and(|days| days < 0) {
                return Err(s3_error!(InvalidArgument, "'Days' in Transition action must be nonnegative"));
            }
            if to.days.is_some_and(after) {
                return Err(s3_error!(
                    InvalidArgument,
                    "'Days' in the Expiration action must be greater than 'Days' in the Transition action"
                ));
            }
            check_again(self.moves.iter().map(|to| &to.class), &class)?;
            let date = to.date.as_ref().map(midnight).transpose()?;
            self.moves.push(Move { days: to.days, date, class });
        }
        Ok(())
    }

    fn set_older_moves(&mut self, asked: Vec<NoncurrentVersionTransition>) -> S3Result<()> {
        for to in asked {
            let class = to.storage_class.ok_or(S3ErrorCode::MalformedXML)?.as_str().to_owned();
            let days = to.noncurrent_days.ok_or(S3ErrorCode::MalformedXML)?;
            let kept = to.newer_noncurrent_versions;
            if days < 0 || kept.is_some_and(|kept| !(1..=100).contains(&kept)) {
                return Err(s3_error!(
                    InvalidArgument,
                    "'NoncurrentDays' of a transition must be nonnegative, and 'NewerNoncurrentVersions' between 1 and 100"
                ));
            }
            check_again(self.older_moves.iter().map(|to| &to.class), &class)?;
            self.older_moves.push(OlderMove { days, kept, class });
        }
        Ok(())
    }

    /// Refuses a rule that does nothing, and one for what has neither tags nor a size.
    fn check(&self) -> S3Result<()> {
        let acts = self.days.is_some() || self.date.is_some() || self.lone_markers;
        let moves = !self.moves.is_empty() || !self.older_moves.is_empty();
        if !acts && !moves && self.older_days.is_none() && self.upload_days.is_none() {
            return Err(S3ErrorCode::MalformedXML.into());
        }
        let of_objects = !self.tags.is_empty() || self.greater.is_some() || self.less.is_some();
        if of_objects && self.upload_days.is_some() {
            return Err(s3_error!(
                InvalidRequest,
                "AbortIncompleteMultipartUpload cannot be specified with Tags or object sizes."
            ));
        }
        if !self.tags.is_empty() && self.lone_markers {
            return Err(s3_error!(InvalidRequest, "ExpiredObjectDeleteMarker cannot be specified with Tags."));
        }
        Ok(())
    }

    /// Refuses two rules of one name.
    pub(crate) fn check_names(rules: &[Self]) -> S3Result<()> {
        let mut names = std::collections::BTreeSet::new();
        if rules.iter().all(|rule| names.insert(&rule.id)) {
            return Ok(());
        }
        Err(s3_error!(InvalidArgument, "Rule ID must be unique. Found same ID for more than one rule"))
    }

    /// The filter, as it was given.
    fn filter_dto(&self) -> LifecycleRuleFilter {
        let mut tags: Vec<Tag> = tags::to_dto(self.tags.clone());
        let prefix = Some(self.prefix.clone()).filter(|prefix| !prefix.is_empty());
        let count = usize::from(prefix.is_some())
            + tags.len()
            + usize::from(self.greater.is_some())
            + usize::from(self.less.is_some());
        let (greater, less) = (self.greater, self.less);
        if count > 1 {
            let and = LifecycleRuleAndOperator {
                prefix: Some(self.prefix.clone()),
                tags: Some(tags),
                object_size_greater_than: greater,
                object_size_less_than: less,
            };
            return LifecycleRuleFilter { and: Some(and), ..LifecycleRuleFilter::default() };
        }
        LifecycleRuleFilter {
            prefix: prefix.or_else(|| (count == 0).then(String::new)),
            tag: tags.pop(),
            object_size_greater_than: greater,
            object_size_less_than: less,
            ..LifecycleRuleFilter::default()
        }
    }

    /// For an answer.
    pub(crate) fn into_dto(self) -> LifecycleRule {
        let filter = self.filter_dto();
        let moves = self.moves.iter().map(|to| Transition {
            days: to.days,
            date: to.date.map(attributes::time),
            storage_class: Some(to.class.clone().into()),
        });
        let moves = (!self.moves.is_empty()).then(|| moves.collect());
        let older_moves = self.older_moves.iter().map(|to| NoncurrentVersionTransition {
            newer_noncurrent_versions: to.kept,
            noncurrent_days: Some(to.days),
            storage_class: Some(to.class.clone().into()),
        });
        let older_moves = (!self.older_moves.is_empty()).then(|| older_moves.collect());
        let expires = self.days.is_some() || self.date.is_some() || self.lone_markers;
        let expiration = LifecycleExpiration {
            date: self.date.map(attributes::time),
            days: self.days,
            expired_object_delete_marker: self.lone_markers.then_some(true),
        };
        let older = NoncurrentVersionExpiration {
            newer_noncurrent_versions: self.older_kept,
            noncurrent_days: self.older_days,
        };
        let status = if self.enabled { ExpirationStatus::ENABLED } else { ExpirationStatus::DISABLED };
        let abort = AbortIncompleteMultipartUpload { days_after_initiation: self.upload_days };
        LifecycleRule {
            abort_incomplete_multipart_upload: self.upload_days.map(|_| abort),
            expiration: expires.then_some(expiration),
            prefix: (!self.filter).then_some(self.prefix),
            filter: self.filter.then_some(filter),
            id: self.id,
            noncurrent_version_expiration: self.older_days.map(|_| older),
            noncurrent_version_transitions: older_moves,
            status: ExpirationStatus::from_static(status),
            transitions: moves,
        }
    }
}

/// The rules of a bucket, where days are so long.
pub(crate) fn rules(bucket: &Row, day: Day) -> S3Result<Vec<Rule>> {
    let Some(kept) = bucket.record.attributes.get(LIFECYCLE) else { return Ok(vec![]) };
    let mut rules: Vec<Rule> = serde_json::from_str(kept).map_err(|e| s3_error!(InternalError, "{e}"))?;
    rules.iter_mut().for_each(|rule| rule.day = day);
    Ok(rules)
}

#[cfg(test)]
mod tests;
