//! Lifecycle: objects, older versions and uploads that go when their time has come.

use std::time::{SystemTime, UNIX_EPOCH};

use object::catalog::{Change, Row, Start, all_buckets};
use object::record::{Kind, Record};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};
use serde::{Deserialize, Serialize};

use crate::face::Face;
use crate::who::Who;
use crate::{error, lock, tagging};

/// The attribute of a bucket that has its rules.
const LIFECYCLE: &str = "lifecycle";
/// Rules of a bucket, as in S3.
const MOST: usize = 1_000;
/// Versions that are looked at at once.
const PAGE: usize = 1_000;
const DAY: u64 = 24 * 3_600 * 1_000_000;

/// One rule, as it is kept. Times are microseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rule {
    id: Option<String>,
    enabled: bool,
    prefix: String,
    /// Whether the prefix stood in a filter, which S3 says again as it was said.
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

/// Whether so many days have gone by since `from`; S3 counts from the midnight after.
fn over(from: u64, days: i32, now: u64) -> bool {
    let days = u64::try_from(days).unwrap_or(0);
    now >= (from / DAY + 1 + days) * DAY
}

impl Rule {
    fn names(&self, record: &Record) -> bool {
        let tags = record.attributes.get(tagging::TAGS).and_then(|text| tagging::read(text).ok()).unwrap_or_default();
        let size = i64::try_from(record.size).unwrap_or(i64::MAX);
        self.enabled
            && record.key.starts_with(&self.prefix)
            && self.tags.iter().all(|tag| tags.contains(tag))
            && self.greater.is_none_or(|limit| size > limit)
            && self.less.is_none_or(|limit| size < limit)
    }

    /// Whether an object that is the newest version is to go.
    fn ends(&self, record: &Record, now: u64) -> bool {
        let by_age = self.days.is_some_and(|days| over(record.version.micros(), days, now));
        self.names(record) && (by_age || self.date.is_some_and(|date| now >= date))
    }

    /// Whether a version is to go, which was replaced at `since`, and of which there are `newer` older ones that are newer.
    fn ends_older(&self, record: &Record, since: u64, newer: usize, now: u64) -> bool {
        let kept = usize::try_from(self.older_kept.unwrap_or(0)).unwrap_or(0);
        self.names(record) && newer >= kept && self.older_days.is_some_and(|days| over(since, days, now))
    }

    fn read(rule: LifecycleRule) -> S3Result<Self> {
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
            kept.date = end.date.map(|date| u64::try_from(crate::get::seconds(&date)).unwrap_or(0) * 1_000_000);
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

    fn said(self) -> LifecycleRule {
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
            date: self.date.map(crate::attributes::time),
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

impl Face {
    pub(crate) fn do_put_lifecycle(
        &self,
        who: &Who,
        input: PutBucketLifecycleConfigurationInput,
    ) -> S3Result<PutBucketLifecycleConfigurationOutput> {
        let bucket = self.bucket(&input.bucket, who, "")?;
        let given = input.lifecycle_configuration.ok_or(S3ErrorCode::MalformedXML)?.rules;
        if given.is_empty() || given.len() > MOST {
            return Err(S3ErrorCode::MalformedXML.into());
        }
        let rules = given.into_iter().map(Rule::read).collect::<S3Result<Vec<Rule>>>()?;
        let text = serde_json::to_string(&rules).map_err(|e| s3_error!(InternalError, "{e}"))?;
        self.set_bucket(&bucket, LIFECYCLE, Some(text))?;
        Ok(PutBucketLifecycleConfigurationOutput::default())
    }

    pub(crate) fn do_get_lifecycle(
        &self,
        who: &Who,
        input: GetBucketLifecycleConfigurationInput,
    ) -> S3Result<GetBucketLifecycleConfigurationOutput> {
        let bucket = self.bucket(&input.bucket, who, "")?;
        let rules = rules(&bucket)?;
        if rules.is_empty() {
            return Err(S3ErrorCode::NoSuchLifecycleConfiguration.into());
        }
        let rules = Some(rules.into_iter().map(Rule::said).collect());
        Ok(GetBucketLifecycleConfigurationOutput { rules, ..GetBucketLifecycleConfigurationOutput::default() })
    }

    pub(crate) fn do_delete_lifecycle(
        &self,
        who: &Who,
        input: DeleteBucketLifecycleInput,
    ) -> S3Result<DeleteBucketLifecycleOutput> {
        let bucket = self.bucket(&input.bucket, who, "")?;
        self.set_bucket(&bucket, LIFECYCLE, None)?;
        Ok(DeleteBucketLifecycleOutput::default())
    }

    /// Removes what its bucket's rules say. Blocks. What cannot be removed keeps nothing else; the first failure is told.
    pub(crate) fn expire_objects(&self) -> S3Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
        let mut outcome = Ok(());
        for bucket in all_buckets(self.objects.catalog()) {
            let bucket = bucket.map_err(error::catalog)?;
            let rules = rules(&bucket)?;
            if !rules.is_empty() {
                outcome = outcome.and(self.expire_versions(&bucket, &rules, now));
                self.expire_bucket_uploads(&bucket, &rules, now)?;
            }
        }
        outcome
    }

    fn expire_versions(&self, bucket: &Row, rules: &[Rule], now: u64) -> S3Result<()> {
        let mut start = Start::Key(vec![]);
        // The version before: its key, when it was put, and how many older ones of its key were seen with it.
        let mut before: Option<(String, u64, usize)> = None;
        let mut outcome = Ok(());
        loop {
            let page = self.objects.catalog().versions(&bucket.record.bucket, &start, PAGE).map_err(error::catalog)?;
            let Some((last, _)) = page.last() else { return outcome };
            start = Start::Version(last.record.key.clone().into_bytes(), last.record.version);
            for (row, newest) in page {
                let record = &row.record;
                let (since, newer) = match &before {
                    Some((key, since, newer)) if *key == record.key => (*since, *newer),
                    _ => (now, 0),
                };
                let gone = if newest && record.kind == Kind::Object {
                    rules.iter().any(|rule| rule.ends(record, now)).then(|| self.expire(bucket, &row))
                } else if newest {
                    let ends = rules.iter().any(|rule| rule.lone_markers && rule.names(record));
                    (ends && self.is_alone(&row)?).then(|| self.remove(&row, false).map(drop))
                } else {
                    let ends = rules.iter().any(|rule| rule.ends_older(record, since, newer, now));
                    (ends && lock::check_removal(record, false).is_ok()).then(|| self.remove(&row, false).map(drop))
                };
                outcome = outcome.and(gone.unwrap_or(Ok(())));
                before = Some((record.key.clone(), record.version.micros(), if newest { 0 } else { newer + 1 }));
            }
        }
    }

    /// Whether a key has no other version than this one.
    fn is_alone(&self, row: &Row) -> Result<bool, S3Error> {
        let start = Start::Version(row.record.key.clone().into_bytes(), row.record.version);
        let next = self.objects.catalog().versions(&row.record.bucket, &start, 1).map_err(error::catalog)?;
        Ok(next.first().is_none_or(|(next, _)| next.record.key != row.record.key))
    }

    fn expire_bucket_uploads(&self, bucket: &Row, rules: &[Rule], now: u64) -> S3Result<()> {
        let catalog = self.objects.catalog();
        let mut start = Start::Key(vec![]);
        loop {
            let page = catalog.uploads(&bucket.record.bucket, &start, PAGE).map_err(error::catalog)?;
            let Some(last) = page.last() else { return Ok(()) };
            start = Start::Version(last.record.key.clone().into_bytes(), last.id);
            for upload in page {
                let ends = |rule: &Rule| {
                    let days = rule.upload_days.filter(|_| rule.enabled && upload.record.key.starts_with(&rule.prefix));
                    days.is_some_and(|days| over(upload.id.micros(), days, now))
                };
                if rules.iter().any(ends) {
                    // Who completes or aborts it at this moment comes first.
                    let _ = catalog.change(Change::EndUpload(upload.id));
                }
            }
        }
    }
}

fn rules(bucket: &Row) -> S3Result<Vec<Rule>> {
    let kept = bucket.record.attributes.get(LIFECYCLE);
    kept.map_or(Ok(vec![]), |text| serde_json::from_str(text).map_err(|e| s3_error!(InternalError, "{e}")))
}

#[cfg(test)]
mod tests {
    use object::record::VersionId;

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
        let mut record = Record::new(Kind::Object, "b", "a/k", VersionId::new(0, 0));
        record.size = 6;
        assert!(rule.ends(&record, 2 * DAY) && !rule.ends(&record, DAY));
        let tagged = Rule { tags: vec![("t".into(), "1".into())], ..rule.clone() };
        assert!(!tagged.ends(&record, 2 * DAY));
        record.attributes.insert(tagging::TAGS.into(), "t=1&u=2".into());
        assert!(tagged.ends(&record, 2 * DAY));
        record.size = 5;
        assert!(!rule.ends(&record, 2 * DAY));
        assert!(!Rule { enabled: false, ..tagged }.names(&record));
    }

    #[test]
    fn older_versions_go_when_enough_newer_ones_are_kept() {
        let rule = Rule { enabled: true, older_days: Some(1), older_kept: Some(2), ..Rule::default() };
        let record = Record::new(Kind::Object, "b", "k", VersionId::new(0, 0));
        assert!(rule.ends_older(&record, 0, 2, 2 * DAY));
        assert!(!rule.ends_older(&record, 0, 1, 2 * DAY));
        assert!(!rule.ends_older(&record, 0, 2, DAY));
    }
}
