//! Lifecycle rules: which objects, noncurrent versions and uploads expire, and when.

use catalog::object_manifest::ObjectRecord;
use catalog::{Row, Upload};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Result, s3_error};
use serde::{Deserialize, Serialize};

use super::{attributes, query, tags};

/// The attribute of a bucket that has its rules.
pub(crate) const LIFECYCLE: &str = "lifecycle";
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
}

/// The end of so many days after `from`, counted from the next midnight, as in S3.
fn end(from: u64, days: i32) -> u64 {
    let days = u64::try_from(days).unwrap_or(0);
    (from / DAY + 1 + days) * DAY
}

/// Whether so many days have passed since `from`.
fn over(from: u64, days: i32, now: u64) -> bool {
    now >= end(from, days)
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
        let by_age = self.days.map(|days| end(record.version.micros(), days));
        by_age.into_iter().chain(self.date).min().filter(|_| self.names(record))
    }

    /// Whether an object that is the newest version expires by now.
    pub(crate) fn ends(&self, record: &ObjectRecord, now: u64) -> bool {
        self.expires(record).is_some_and(|at| now >= at)
    }

    /// Whether a noncurrent version expires that was replaced at `since`, when `newer` noncurrent ones are newer.
    pub(crate) fn ends_older(&self, record: &ObjectRecord, since: u64, newer: usize, now: u64) -> bool {
        let kept = usize::try_from(self.older_kept.unwrap_or(0)).unwrap_or(0);
        self.names(record) && newer >= kept && self.older_days.is_some_and(|days| over(since, days, now))
    }

    /// Whether a delete marker expires that is the only version of its key.
    pub(crate) fn ends_lone_marker(&self, record: &ObjectRecord) -> bool {
        self.lone_markers && self.names(record)
    }

    /// Whether an upload expires.
    pub(crate) fn ends_upload(&self, upload: &Upload, now: u64) -> bool {
        let days = self.upload_days.filter(|_| self.enabled && upload.record.key.starts_with(&self.prefix));
        days.is_some_and(|days| over(upload.id.micros(), days, now))
    }

    /// From a request. What is not supported is refused.
    pub(crate) fn from_dto(rule: LifecycleRule) -> S3Result<Self> {
        let refused = |what| Err(s3_error!(NotImplemented, "{what} is not supported"));
        if rule.transitions.is_some_and(|list| !list.is_empty())
            || rule.noncurrent_version_transitions.is_some_and(|list| !list.is_empty())
        {
            return refused("moving objects to another storage class");
        }
        let mut kept = Self {
            id: rule.id,
            enabled: rule.status.as_str() == ExpirationStatus::ENABLED,
            prefix: rule.prefix.unwrap_or_default(),
            ..Self::default()
        };
        if let Some(filter) = rule.filter {
            let and = filter.and.unwrap_or_default();
            kept.filter = true;
            kept.prefix = filter.prefix.or(and.prefix).unwrap_or_default();
            let tags = filter.tag.into_iter().chain(and.tags.unwrap_or_default());
            let tags = tags.map(|tag| tag.key.zip(tag.value)).collect::<Option<_>>();
            kept.tags = tags.ok_or(S3ErrorCode::MalformedXML)?;
            kept.greater = filter.object_size_greater_than.or(and.object_size_greater_than);
            kept.less = filter.object_size_less_than.or(and.object_size_less_than);
        }
        if let Some(end) = rule.expiration {
            kept.days = end.days;
            kept.date = end.date.map(|date| u64::try_from(attributes::seconds(&date)).unwrap_or(0) * 1_000_000);
            kept.lone_markers = end.expired_object_delete_marker == Some(true);
        }
        if let Some(older) = rule.noncurrent_version_expiration {
            kept.older_days = older.noncurrent_days;
            kept.older_kept = older.newer_noncurrent_versions;
        }
        kept.upload_days = rule.abort_incomplete_multipart_upload.and_then(|abort| abort.days_after_initiation);
        let positive = [kept.days, kept.older_days, kept.upload_days].iter().flatten().all(|days| *days > 0);
        if !positive {
            return Err(s3_error!(InvalidArgument, "a rule waits for one day or more"));
        }
        let acts = kept.days.is_some() || kept.date.is_some() || kept.lone_markers;
        if !acts && kept.older_days.is_none() && kept.upload_days.is_none() {
            return Err(S3ErrorCode::MalformedXML.into());
        }
        Ok(kept)
    }

    /// For an answer.
    pub(crate) fn into_dto(self) -> LifecycleRule {
        let tags: Vec<Tag> =
            self.tags.into_iter().map(|(key, value)| Tag { key: Some(key), value: Some(value) }).collect();
        let and = LifecycleRuleAndOperator {
            prefix: Some(self.prefix.clone()),
            tags: Some(tags),
            object_size_greater_than: self.greater,
            object_size_less_than: self.less,
        };
        let plain = and.tags.as_ref().is_none_or(Vec::is_empty) && self.greater.is_none() && self.less.is_none();
        let filter = if plain {
            LifecycleRuleFilter { prefix: Some(self.prefix.clone()), ..LifecycleRuleFilter::default() }
        } else {
            LifecycleRuleFilter { and: Some(and), ..LifecycleRuleFilter::default() }
        };
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

pub(crate) fn rules(bucket: &Row) -> S3Result<Vec<Rule>> {
    let kept = bucket.record.attributes.get(LIFECYCLE);
    kept.map_or(Ok(vec![]), |text| serde_json::from_str(text).map_err(|e| s3_error!(InternalError, "{e}")))
}

#[cfg(test)]
mod tests {
    use catalog::object_manifest::{Kind, VersionId};

    use super::*;

    #[test]
    fn days_count_from_the_next_midnight() {
        assert!(!over(5, 1, 2 * DAY - 1));
        assert!(over(5, 1, 2 * DAY));
        assert!(!over(DAY, 3, 5 * DAY - 1));
        assert!(over(DAY, 3, 5 * DAY));
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
}
