//! Lifecycle rules: which objects, noncurrent versions and uploads expire, and when.

use std::num::NonZero;

use catalog::object_manifest::{KEY_BYTES, ObjectRecord};
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
    /// Microseconds of a day.
    #[serde(skip)]
    day: Day,
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

/// Refuses days that there are not.
fn positive(what: &str, action: &str, days: i32) -> S3Result<()> {
    if days > 0 {
        return Ok(());
    }
    Err(s3_error!(InvalidArgument, "'{what}' for {action} action must be a positive integer"))
}

/// When the newest version of a key expires, and by which of the rules, as answers say it.
pub(crate) fn expiration(rules: &[Rule], record: &ObjectRecord) -> Option<String> {
    let ends = rules.iter().filter_map(|rule| Some((rule.expires(record)?, rule)));
    let (at, rule) = ends.min_by_key(|(at, _)| *at)?;
    let mut date = vec![];
    attributes::time(at).format(TimestampFormat::HttpDate, &mut date).ok()?;
    let id = query::encode(rule.id.as_deref().unwrap_or_default());
    Some(format!("expiry-date=\"{}\", rule-id=\"{id}\"", String::from_utf8(date).ok()?))
}

impl Rule {
    fn names(&self, record: &ObjectRecord) -> bool {
        let tags = record.attributes.get(tags::TAGS).and_then(|text| tags::read(text).ok()).unwrap_or_default();
        let size = i64::try_from(record.size).unwrap_or(i64::MAX);
        self.enabled
            && record.key.starts_with(&self.prefix)
            && self.tags.iter().all(|tag| tags.contains(tag))
            && self.greater.is_none_or(|limit| size > limit)
            && self.less.is_none_or(|limit| size < limit)
    }

    /// When an object that is the newest version expires, if it does.
    fn expires(&self, record: &ObjectRecord) -> Option<u64> {
        let by_age = self.days.map(|days| self.day.end(record.version.micros(), days));
        by_age.into_iter().chain(self.date).min().filter(|_| self.names(record))
    }

    /// Whether an object that is the newest version expires by now.
    pub(crate) fn ends(&self, record: &ObjectRecord, now: u64) -> bool {
        self.expires(record).is_some_and(|at| now >= at)
    }

    /// Whether a noncurrent version expires that was replaced at `since`, when `newer` noncurrent ones are newer.
    pub(crate) fn ends_older(&self, record: &ObjectRecord, since: u64, newer: usize, now: u64) -> bool {
        let kept = usize::try_from(self.older_kept.unwrap_or(0)).unwrap_or(0);
        self.names(record) && newer >= kept && self.older_days.is_some_and(|days| self.day.is_over(since, days, now))
    }

    /// Whether a delete marker expires that is the only version of its key.
    pub(crate) fn ends_lone_marker(&self, record: &ObjectRecord) -> bool {
        self.lone_markers && self.names(record)
    }

    /// Whether an upload expires.
    pub(crate) fn ends_upload(&self, upload: &Upload, now: u64) -> bool {
        let days = self.upload_days.filter(|_| self.enabled && upload.record.key.starts_with(&self.prefix));
        days.is_some_and(|days| self.day.is_over(upload.id.micros(), days, now))
    }

    /// From a request, with a name for a rule that has none. What is not supported is refused.
    pub(crate) fn from_dto(rule: LifecycleRule, name: impl FnOnce() -> S3Result<String>) -> S3Result<Self> {
        if rule.transitions.is_some_and(|list| !list.is_empty())
            || rule.noncurrent_version_transitions.is_some_and(|list| !list.is_empty())
        {
            return Err(s3_error!(NotImplemented, "moving objects to another storage class is not supported"));
        }
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
        if let Some(date) = &end.date {
            let micros = u64::try_from(attributes::seconds(date)).unwrap_or(0) * 1_000_000;
            let whole = time::OffsetDateTime::from(date.clone()).nanosecond() == 0;
            if micros % DAY != 0 || !whole {
                return Err(s3_error!(InvalidArgument, "'Date' must be at midnight GMT"));
            }
            self.date = Some(micros);
        }
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

    /// Refuses a rule that does nothing, and one for what has neither tags nor a size.
    fn check(&self) -> S3Result<()> {
        let acts = self.days.is_some() || self.date.is_some() || self.lone_markers;
        if !acts && self.older_days.is_none() && self.upload_days.is_none() {
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
            noncurrent_version_transitions: None,
            status: ExpirationStatus::from_static(status),
            transitions: None,
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
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use catalog::object_manifest::{Kind, VersionId};

    use super::*;

    #[test]
    fn days_count_from_the_next_midnight() {
        let over = |from, days, now| Day::default().is_over(from, days, now);
        assert!(!over(5, 1, 2 * DAY - 1));
        assert!(over(5, 1, 2 * DAY));
        assert!(!over(DAY, 3, 5 * DAY - 1));
        assert!(over(DAY, 3, 5 * DAY));
        let second = Day::of_seconds(NonZero::<u64>::MIN);
        assert!(!second.is_over(5, 1, 1_999_999) && second.is_over(5, 1, 2_000_000));
    }

    #[test]
    fn a_rule_names_what_fits_its_filter() {
        let rule = Rule { enabled: true, prefix: "a/".into(), greater: Some(5), days: Some(1), ..Rule::default() };
        let mut record = ObjectRecord::new(Kind::Object, "b", "a/k", VersionId::new(0, 0));
        record.size = 6;
        assert!(rule.ends(&record, 2 * DAY) && !rule.ends(&record, DAY));
        let tagged = Rule { tags: vec![("t".into(), "1".into())], ..rule.clone() };
        assert!(!tagged.ends(&record, 2 * DAY));
        record.attributes.insert(tags::TAGS.into(), "t=1&u=2".into());
        assert!(tagged.ends(&record, 2 * DAY));
        record.size = 5;
        assert!(!rule.ends(&record, 2 * DAY));
        assert!(!Rule { enabled: false, ..tagged }.names(&record));
    }

    #[test]
    fn older_versions_go_when_enough_newer_ones_are_kept() {
        let rule = Rule { enabled: true, older_days: Some(1), older_kept: Some(2), ..Rule::default() };
        let record = ObjectRecord::new(Kind::Object, "b", "k", VersionId::new(0, 0));
        assert!(rule.ends_older(&record, 0, 2, 2 * DAY));
        assert!(!rule.ends_older(&record, 0, 1, 2 * DAY));
        assert!(!rule.ends_older(&record, 0, 2, DAY));
    }

    /// A rule of a request that lets objects expire after a day, changed.
    fn asked(change: impl FnOnce(&mut LifecycleRule)) -> Result<Rule, String> {
        let mut rule = LifecycleRule {
            abort_incomplete_multipart_upload: None,
            expiration: Some(LifecycleExpiration { days: Some(1), ..LifecycleExpiration::default() }),
            filter: Some(LifecycleRuleFilter { prefix: Some("a/".into()), ..LifecycleRuleFilter::default() }),
            id: Some("r".into()),
            noncurrent_version_expiration: None,
            noncurrent_version_transitions: None,
            prefix: None,
            status: ExpirationStatus::from_static(ExpirationStatus::ENABLED),
            transitions: None,
        };
        change(&mut rule);
        Rule::from_dto(rule, || Ok("made".into())).map_err(|refused| refused.code().as_str().to_owned())
    }

    fn filter(rule: &mut LifecycleRule) -> &mut LifecycleRuleFilter {
        rule.filter.get_or_insert_default()
    }

    #[test]
    fn a_rule_is_taken_as_s3_takes_it() {
        assert_eq!(asked(|_| {}).unwrap().id.as_deref(), Some("r"));
        assert_eq!(asked(|rule| rule.id = None).unwrap().id.as_deref(), Some("made"));
        let midnight = || Timestamp::from(std::time::UNIX_EPOCH + std::time::Duration::from_secs(86_400));
        let noon = || Timestamp::from(std::time::UNIX_EPOCH + std::time::Duration::from_secs(43_200));
        let date = |at| Some(LifecycleExpiration { date: Some(at), ..LifecycleExpiration::default() });
        assert_eq!(asked(|rule| rule.expiration = date(midnight())).unwrap().date, Some(DAY));
        assert_eq!(asked(|rule| rule.expiration = date(noon())).unwrap_err(), "InvalidArgument");
        let tag = || Tag { key: Some("k".into()), value: Some("v".into()) };
        for (refused, code) in [
            (asked(|rule| rule.status = "enabled".to_owned().into()), "MalformedXML"),
            (asked(|rule| rule.id = Some("x".repeat(256))), "InvalidArgument"),
            (asked(|rule| rule.prefix = Some("b".into())), "MalformedXML"),
            (asked(|rule| rule.filter = None), "MalformedXML"),
            (asked(|rule| filter(rule).tag = Some(tag())), "MalformedXML"),
            (asked(|rule| rule.expiration = None), "MalformedXML"),
            (asked(|rule| rule.expiration.as_mut().unwrap().date = Some(midnight())), "MalformedXML"),
            (asked(|rule| rule.expiration.as_mut().unwrap().expired_object_delete_marker = Some(true)), "MalformedXML"),
            (asked(|rule| rule.expiration.as_mut().unwrap().days = Some(0)), "InvalidArgument"),
            (asked(|rule| filter(rule).prefix = Some("x".repeat(1_025))), "InvalidRequest"),
            (asked(|rule| rule.transitions = Some(vec![Transition::default()])), "NotImplemented"),
            (
                asked(|rule| rule.noncurrent_version_expiration = Some(NoncurrentVersionExpiration::default())),
                "MalformedXML",
            ),
        ] {
            assert_eq!(refused.unwrap_err(), code);
        }
        let and = |and: LifecycleRuleAndOperator| {
            asked(|rule| rule.filter = Some(LifecycleRuleFilter { and: Some(and), ..LifecycleRuleFilter::default() }))
        };
        let sizes = |greater, less| LifecycleRuleAndOperator {
            object_size_greater_than: greater,
            object_size_less_than: less,
            ..LifecycleRuleAndOperator::default()
        };
        assert!(and(sizes(Some(1), Some(9))).is_ok());
        assert_eq!(and(sizes(Some(9), Some(9))).unwrap_err(), "InvalidRequest");
        assert_eq!(and(sizes(Some(-1), Some(9))).unwrap_err(), "InvalidArgument");
        assert_eq!(and(sizes(Some(1), None)).unwrap_err(), "MalformedXML");
        let twice = LifecycleRuleAndOperator { tags: Some(vec![tag(), tag()]), ..LifecycleRuleAndOperator::default() };
        assert_eq!(and(twice).unwrap_err(), "InvalidTag");
        let abort = |rule: &mut LifecycleRule| {
            rule.filter = Some(LifecycleRuleFilter { tag: Some(tag()), ..LifecycleRuleFilter::default() });
            let days = AbortIncompleteMultipartUpload { days_after_initiation: Some(1) };
            rule.abort_incomplete_multipart_upload = Some(days);
        };
        assert_eq!(asked(abort).unwrap_err(), "InvalidRequest");
        let rule = asked(|_| {}).unwrap();
        let other = Rule { id: Some("other".into()), ..rule.clone() };
        assert!(Rule::check_names(&[rule.clone(), other]).is_ok());
        assert!(Rule::check_names(&[rule.clone(), rule]).is_err());
    }

    #[test]
    fn a_filter_is_returned_as_it_was_given() {
        let tag = || Tag { key: Some("k".into()), value: Some("v".into()) };
        let one = |change: fn(&mut LifecycleRuleFilter, Tag)| {
            let mut given = LifecycleRuleFilter::default();
            change(&mut given, tag());
            let kept = asked(|rule| rule.filter = Some(given.clone())).unwrap();
            assert_eq!(kept.into_dto().filter, Some(given));
        };
        one(|filter, _| filter.prefix = Some("a/".into()));
        one(|filter, tag| filter.tag = Some(tag));
        one(|filter, _| filter.object_size_greater_than = Some(5));
        one(|filter, tag| {
            let (prefix, tags) = (Some("a/".into()), Some(vec![tag]));
            filter.and = Some(LifecycleRuleAndOperator { prefix, tags, ..LifecycleRuleAndOperator::default() });
        });
    }
}
