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
    let mut record = ObjectManifest::new(Kind::Object, "b", "a/k", VersionId::new(0, 0));
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
    let record = ObjectManifest::new(Kind::Object, "b", "k", VersionId::new(0, 0));
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

fn to(days: Option<i32>, class: &str) -> Transition {
    Transition { days, date: None, storage_class: Some(class.to_owned().into()) }
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
        (asked(|rule| rule.transitions = Some(vec![Transition::default()])), "MalformedXML"),
        (asked(|rule| rule.transitions = Some(vec![to(Some(-1), "COLD")])), "InvalidArgument"),
        (asked(|rule| rule.transitions = Some(vec![to(Some(1), "COLD")])), "InvalidArgument"),
        (asked(|rule| rule.transitions = Some(vec![to(Some(0), "COLD"), to(Some(0), "COLD")])), "InvalidRequest"),
        (asked(|rule| rule.transitions = Some(vec![to(None, "COLD")])), "MalformedXML"),
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

#[test]
fn of_several_moves_the_last_that_is_due_is_made() {
    let rule = asked(|rule| {
        rule.expiration = None;
        rule.transitions = Some(vec![to(Some(3), "COLD"), to(Some(0), "COOL")]);
        rule.noncurrent_version_transitions = Some(vec![NoncurrentVersionTransition {
            newer_noncurrent_versions: Some(1),
            noncurrent_days: Some(1),
            storage_class: Some("COLD".to_owned().into()),
        }]);
    });
    let rule = rule.unwrap();
    let mut record = ObjectManifest::new(Kind::Object, "b", "a/k", VersionId::new(0, 0));
    let class = |record: &ObjectManifest, now| moves(std::slice::from_ref(&rule), record, now);
    assert_eq!(class(&record, DAY - 1), None);
    assert_eq!(class(&record, DAY), Some("COOL"));
    assert_eq!(class(&record, 4 * DAY), Some("COLD"));
    let older = |newer, now| moves_older(std::slice::from_ref(&rule), &record, 0, newer, now);
    assert_eq!((older(1, 2 * DAY), older(0, 2 * DAY), older(1, DAY)), (Some("COLD"), None, None));
    let dto = rule.clone().into_dto();
    let kept = Rule::from_dto(dto, || Ok("other".into())).unwrap();
    assert_eq!(kept, rule);
    record.key = "b/k".into();
    assert_eq!(class(&record, 4 * DAY), None);
}
