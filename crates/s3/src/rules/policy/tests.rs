#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::net::IpAddr;
use std::sync::Arc;

use catalog::object_manifest::{Kind, ObjectManifest, VersionId};

use super::*;

fn caller(user: Option<&str>) -> Caller {
    Caller {
        user: user.map(str::to_owned),
        action: "",
        context: Arc::new(Context::new(user, IpAddr::from([10, 1, 2, 3]), false)),
        expects: None,
        expects_source: None,
    }
}

/// A caller whose request has these values.
fn asking(user: Option<&str>, values: &[(&'static str, &'static str)]) -> Caller {
    caller(user).with(|context| values.iter().for_each(|(key, value)| context.add(*key, *value)))
}

fn read(statements: &str) -> S3Result<Policy> {
    Policy::read(&format!(r#"{{"Version":"2012-10-17","Statement":{statements}}}"#), "b")
}

fn one(rest: &str) -> S3Result<Policy> {
    read(&format!(r#"{{"Effect":"Allow","Principal":"*",{rest}}}"#))
}

#[test]
fn patterns_fit_as_in_s3() {
    for (pattern, text) in [
        ("*", ""),
        ("a*c", "abbc"),
        ("a?c", "abc"),
        ("*/a*b*", "x/acb"),
        ("a*", "a*?"),
        ("*aab", "aaaab"),
        ("ü?", "üü"),
    ] {
        assert!(fits(pattern, text), "{pattern} {text}");
    }
    for (pattern, text) in [("", "a"), ("a", ""), ("?", ""), ("a*c", "ab"), ("a*b?", "ab"), ("A", "a")] {
        assert!(!fits(pattern, text), "{pattern} {text}");
    }
}

#[test]
fn what_is_denied_is_denied_whatever_else_is_allowed() {
    let policy = read(
        r#"[{"Effect":"Allow","Principal":"*","Action":["s3:GetObject","S3:listbucket"],
             "Resource":["arn:aws:s3:::b","arn:aws:s3:::b/*"]},
            {"Effect":"Deny","Principal":{"AWS":["arn:aws:iam::1:user/eve","mal"]},"Action":"s3:*","Resource":"arn:aws:s3:::b/x/*"}]"#,
    )
    .unwrap();
    assert_eq!(policy.says(&caller(None), "GetObject", "b/x/k"), Verdict::Allowed);
    assert_eq!(policy.says(&caller(None), "ListBucket", "b"), Verdict::Allowed);
    assert_eq!(policy.says(&caller(None), "PutObject", "b/k"), Verdict::Silent);
    for name in ["eve", "mal"] {
        assert_eq!(policy.says(&caller(Some(name)), "GetObject", "b/x/k"), Verdict::Denied);
        assert_eq!(policy.says(&caller(Some(name)), "GetObject", "b/k"), Verdict::Allowed);
    }
}

#[test]
fn what_is_too_long_to_compare_is_refused() {
    let pattern = format!("*{}b", "a".repeat(18_000));
    let condition = format!(r#"{{"StringNotLike":{{"aws:UserAgent":"{pattern}"}}}}"#);
    let text = format!(r#""Action":"s3:ListBucket","Resource":"arn:aws:s3:::b","Condition":{condition}"#);
    let policy = one(&text).unwrap();
    let plain = one(r#""Action":"s3:ListBucket","Resource":"arn:aws:s3:::b""#).unwrap();
    let with = |length: usize| caller(None).with(|context| context.add("aws:useragent", "a".repeat(length)));
    for (length, refused) in [(TEXT_BYTES, false), (TEXT_BYTES + 1, true)] {
        assert_eq!(policy.check_length(&with(length).context).is_err(), refused);
        assert!(plain.check_length(&with(length).context).is_ok());
    }
    assert_eq!(policy.says(&with(TEXT_BYTES), "ListBucket", "b"), Verdict::Allowed);
}

#[test]
fn conditions_must_all_hold() {
    let says = |condition: &str, caller: &Caller| {
        let text = format!(r#""Action":"s3:ListBucket","Resource":"arn:aws:s3:::b","Condition":{condition}"#);
        one(&text).unwrap().says(caller, "ListBucket", "b") == Verdict::Allowed
    };
    let asks = caller(Some("ann"));
    assert!(says(r#"{"IpAddress":{"aws:SourceIp":["192.168.0.1","10.0.0.0/8"]}}"#, &asks));
    assert!(!says(r#"{"NotIpAddress":{"aws:SourceIp":"10.0.0.0/8"}}"#, &asks));
    assert!(says(r#"{"Bool":{"aws:SecureTransport":false}}"#, &asks));
    assert!(!says(r#"{"Bool":{"aws:SecureTransport":"true"}}"#, &asks));
    assert!(!says(r#"{"StringEquals":{"s3:prefix":""}}"#, &asks), "what is not there equals nothing");
    assert!(says(r#"{"StringNotEquals":{"s3:prefix":"a/"}}"#, &asks));
    let asks = asking(Some("ann"), &[("s3:prefix", "home/ann/")]);
    assert!(says(r#"{"StringLike":{"s3:prefix":["x","home/ann/*"]},"StringEquals":{"aws:username":"ann"}}"#, &asks));
    assert!(!says(r#"{"StringLike":{"s3:prefix":"home/ann/*"},"StringEquals":{"aws:username":"bob"}}"#, &asks));
    // A name that stands twice is two conditions.
    assert!(!says(r#"{"StringLike":{"s3:prefix":"no"},"StringLike":{"s3:prefix":"home/*"}}"#, &asks));
}

#[test]
fn what_is_not_understood_is_refused() {
    let get = r#""Action":"s3:GetObject","Resource":"arn:aws:s3:::b/*""#;
    assert!(one(get).is_ok());
    for bad in [
        r#""Action":"s3:GetObjcet","Resource":"arn:aws:s3:::b/*""#,
        r#""Action":"iam:GetUser","Resource":"arn:aws:s3:::b/*""#,
        r#""Action":"s3:GetObject","Resource":"arn:aws:s3:::other/*""#,
        r#""Action":"s3:GetObject","Resource":"arn:aws:s3:::bb/*""#,
        r#""Action":"s3:GetObject","Resource":"arn:aws:s3:::b""#,
        r#""Action":"s3:ListBucket","Resource":"arn:aws:s3:::b/*""#,
        r#""Action":[],"Resource":"arn:aws:s3:::b/*""#,
        r#""Action":"s3:GetObject","NotAction":"s3:GetObject","Resource":"arn:aws:s3:::b/*""#,
        r#""Action":"s3:GetObject","Resource":"arn:aws:s3:::b/*","NotResource":"arn:aws:s3:::b/x""#,
        r#""Action":"s3:GetObject","Resource":"arn:aws:s3:::b/${aws:username""#,
        r#""Action":"s3:GetObject","Resource":"arn:aws:s3:::b/${aws:nobody}""#,
        r#""Resource":"arn:aws:s3:::b/*""#,
        r#""Action":"s3:GetObject""#,
        &format!(r#"{get},"Condition":{{"IpAddress":{{"aws:SourceIp":"10.0.0.0/99"}}}}"#),
        &format!(r#"{get},"Effect":"Deny""#),
    ] {
        assert_eq!(one(bad).unwrap_err().code(), &S3ErrorCode::MalformedPolicy, "{bad}");
    }
    for condition in [
        r#"{"NumericLessThan":{"aws:EpochTime":"x"}}"#,
        r#"{"StringResembles":{"aws:UserAgent":"x"}}"#,
        r#"{"StringNotEqual":{"aws:UserAgent":"x"}}"#,
        r#"{"StringNotNotEquals":{"aws:UserAgent":"x"}}"#,
        r#"{"NullIfExists":{"aws:UserAgent":"true"}}"#,
        r#"{"ForSomeValues:StringEquals":{"aws:UserAgent":"x"}}"#,
        r#"{"StringEquals":{"aws:Nothing":"x"}}"#,
        r#"{"StringEquals":{"s3:ExistingObjectTag/":"x"}}"#,
        r#"{"StringEquals":{"aws:UserAgent":[]}}"#,
        r#"{"DateLessThan":{"aws:CurrentTime":"tomorrow"}}"#,
        r#"{"Bool":{"aws:SecureTransport":"maybe"}}"#,
        r#"{"BinaryEquals":{"aws:UserAgent":"%"}}"#,
        // No request to get an object has it.
        r#"{"StringEquals":{"s3:prefix":"x"}}"#,
    ] {
        let text = format!(r#"{get},"Condition":{condition}"#);
        assert_eq!(one(&text).unwrap_err().code(), &S3ErrorCode::MalformedPolicy, "{condition}");
    }
    for principal in [
        r#""ann""#,
        r#"{"AWS":"arn:aws:iam::1:role/r"}"#,
        r#"{"AWS":"arn:aws:iam::1:user/*"}"#,
        r#"{"AWS":[]}"#,
        r#"{"AWS":"a*"}"#,
        r#"{"Federated":"example.org"}"#,
        r#"{"CanonicalUser":""}"#,
    ] {
        let text = format!(r#"{{"Effect":"Allow","Principal":{principal},{get}}}"#);
        assert_eq!(read(&text).unwrap_err().code(), &S3ErrorCode::MalformedPolicy, "{principal}");
    }
    for text in ["", "{}", r#"{"Statement":[]}"#, r#"{"Version":"2020-01-01","Statement":[]}"#, "[", "1"] {
        assert!(Policy::read(text, "b").is_err(), "{text}");
    }
}

/// Whether a statement with this condition covers what a caller does.
fn holds(condition: &str, caller: &Caller) -> bool {
    let text = format!(r#""Action":"s3:*","Resource":["arn:aws:s3:::b","arn:aws:s3:::b/*"],"Condition":{condition}"#);
    one(&text).unwrap().says(caller, "PutObject", "b/k") == Verdict::Allowed
}

#[test]
fn every_operator_compares_as_its_name_says() {
    let asks = asking(
        Some("ann"),
        &[
            ("s3:max-keys", "10"),
            ("s3:prefix", "Home/x"),
            ("aws:sourcearn", "arn:aws:s3:us-east-1:1:b/a"),
            ("aws:referer", "aGk="),
        ],
    );
    for (condition, expected) in [
        (r#"{"NumericEquals":{"s3:max-keys":"10"}}"#, true),
        (r#"{"NumericEquals":{"s3:max-keys":10.0}}"#, true),
        (r#"{"NumericNotEquals":{"s3:max-keys":10}}"#, false),
        (r#"{"NumericLessThan":{"s3:max-keys":"10"}}"#, false),
        (r#"{"NumericLessThanEquals":{"s3:max-keys":"10"}}"#, true),
        (r#"{"NumericGreaterThan":{"s3:max-keys":["11","9"]}}"#, true),
        (r#"{"NumericGreaterThanEquals":{"s3:max-keys":"11"}}"#, false),
        (r#"{"NumericEquals":{"s3:prefix":"10"}}"#, false),
        (r#"{"DateGreaterThan":{"aws:CurrentTime":"2020-01-01"}}"#, true),
        (r#"{"DateGreaterThan":{"aws:CurrentTime":"2020-01-01T10:00Z"}}"#, true),
        (r#"{"DateLessThan":{"aws:CurrentTime":"2020-01-01T00:00:00Z"}}"#, false),
        (r#"{"DateLessThanEquals":{"aws:CurrentTime":"2999-12-31T23:59:59+02:00"}}"#, true),
        (r#"{"DateGreaterThanEquals":{"aws:EpochTime":"1500000000"}}"#, true),
        (r#"{"DateEquals":{"aws:CurrentTime":"2020"}}"#, false),
        (r#"{"DateNotEquals":{"aws:CurrentTime":"2020-02"}}"#, true),
        (r#"{"NumericGreaterThan":{"aws:EpochTime":1500000000}}"#, true),
        (r#"{"StringEqualsIgnoreCase":{"s3:prefix":"hOME/X"}}"#, true),
        (r#"{"StringNotEqualsIgnoreCase":{"s3:prefix":"hOME/X"}}"#, false),
        (r#"{"StringEquals":{"s3:prefix":"Home/*"}}"#, false),
        (r#"{"StringLike":{"s3:prefix":"Home/?"}}"#, true),
        (r#"{"StringNotLike":{"s3:prefix":"Home/*"}}"#, false),
        (r#"{"ArnLike":{"aws:SourceArn":"arn:aws:s3:*:*:b/*"}}"#, true),
        // A star does not reach over a colon.
        (r#"{"ArnEquals":{"aws:SourceArn":"arn:*:b/a"}}"#, false),
        (r#"{"ArnNotLike":{"aws:SourceArn":"arn:aws:s3:*:*:c"}}"#, true),
        (r#"{"ArnNotEquals":{"aws:SourceArn":"arn:aws:s3:us-east-1:1:b/?"}}"#, false),
        (r#"{"ArnLike":{"aws:PrincipalArn":"arn:aws:iam::*:user/ann"}}"#, true),
        (r#"{"BinaryEquals":{"aws:Referer":"aGk="}}"#, true),
        (r#"{"BinaryEquals":{"aws:Referer":"aGkh"}}"#, false),
        (r#"{"Null":{"s3:prefix":"false"}}"#, true),
        (r#"{"Null":{"s3:prefix":true}}"#, false),
        (r#"{"Null":{"s3:delimiter":"true"}}"#, true),
        (r#"{"StringEquals":{"aws:PrincipalType":"User"}}"#, true),
        (r#"{"StringEquals":{"aws:userid":"ann","S3:PREFIX":"Home/x"}}"#, true),
    ] {
        assert_eq!(holds(condition, &asks), expected, "{condition}");
    }
}

#[test]
fn what_is_not_there_equals_nothing_unless_the_condition_needs_it_to_exist() {
    let (without, with) = (caller(None), asking(None, &[("s3:x-amz-acl", "private")]));
    for (condition, expected, expected_with) in [
        (r#"{"StringEquals":{"s3:x-amz-acl":"private"}}"#, false, true),
        (r#"{"StringEqualsIfExists":{"s3:x-amz-acl":"private"}}"#, true, true),
        (r#"{"StringEqualsIfExists":{"s3:x-amz-acl":"public-read"}}"#, true, false),
        (r#"{"StringNotEquals":{"s3:x-amz-acl":"private"}}"#, true, false),
        (r#"{"StringNotEqualsIfExists":{"s3:x-amz-acl":"private"}}"#, true, false),
        (r#"{"BoolIfExists":{"aws:MultiFactorAuthPresent":"true"}}"#, true, true),
        (r#"{"Bool":{"aws:MultiFactorAuthPresent":"true"}}"#, false, false),
        (r#"{"ForAllValues:StringEquals":{"s3:x-amz-acl":"private"}}"#, true, true),
        (r#"{"ForAnyValue:StringEquals":{"s3:x-amz-acl":"private"}}"#, false, true),
        (r#"{"ForAnyValue:StringEqualsIfExists":{"s3:x-amz-acl":"public-read"}}"#, true, false),
        (r#"{"NumericLessThanIfExists":{"s3:max-keys":"5"}}"#, true, true),
        (r#"{"IpAddressIfExists":{"aws:SourceIp":"10.0.0.0/8"}}"#, true, true),
    ] {
        assert_eq!((holds(condition, &without), holds(condition, &with)), (expected, expected_with), "{condition}");
    }
}

#[test]
fn tags_are_looked_at_one_by_one_and_together() {
    let tag = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let asks = caller(None).with(|context| {
        context.add_request_tags(&vec![tag("Project", "a"), tag("Stage", "test")]);
        context.add_existing_tags(&vec![tag("Project", "b")]);
    });
    for (condition, expected) in [
        (r#"{"StringEquals":{"s3:RequestObjectTag/Project":"a"}}"#, true),
        (r#"{"StringEquals":{"s3:RequestObjectTag/project":"a"}}"#, false),
        (r#"{"StringEquals":{"s3:ExistingObjectTag/Project":"a"}}"#, false),
        (r#"{"StringEquals":{"s3:ExistingObjectTag/Project":["a","b"]}}"#, true),
        (r#"{"ForAllValues:StringEquals":{"s3:RequestObjectTagKeys":["Project","Stage","More"]}}"#, true),
        (r#"{"ForAllValues:StringLike":{"s3:RequestObjectTagKeys":["Pro*"]}}"#, false),
        (r#"{"ForAnyValue:StringEquals":{"s3:RequestObjectTagKeys":["Stage"]}}"#, true),
        (r#"{"ForAnyValue:StringEquals":{"s3:RequestObjectTagKeys":["Other"]}}"#, false),
        (r#"{"ForAnyValue:StringNotEquals":{"s3:RequestObjectTagKeys":["Stage"]}}"#, true),
        (r#"{"ForAllValues:StringNotEquals":{"s3:RequestObjectTagKeys":["Stage"]}}"#, false),
        (r#"{"StringNotEquals":{"s3:RequestObjectTagKeys":["Stage"]}}"#, false),
    ] {
        assert_eq!(holds(condition, &asks), expected, "{condition}");
    }
    let existing = r#""Action":"s3:GetObject","Resource":"arn:aws:s3:::b/${s3:ExistingObjectTag/Owner}/*""#;
    assert!(one(existing).unwrap().needs_existing());
    assert!(!one(r#""Action":"s3:GetObject","Resource":"arn:aws:s3:::b/*""#).unwrap().needs_existing());
}

#[test]
fn variables_stand_for_what_the_request_has_and_for_no_pattern() {
    let home = r#""Action":"s3:*","Resource":"arn:aws:s3:::b/home/${aws:username}/*""#;
    let says = |policy: &Policy, user: Option<&str>, key: &str| policy.says(&caller(user), "GetObject", key);
    let policy = one(home).unwrap();
    assert_eq!(says(&policy, Some("ann"), "b/home/ann/k"), Verdict::Allowed);
    assert_eq!(says(&policy, Some("ann"), "b/home/bob/k"), Verdict::Silent);
    assert_eq!(says(&policy, Some("*"), "b/home/bob/k"), Verdict::Silent);
    assert_eq!(says(&policy, None, "b/home//k"), Verdict::Silent);
    let default = one(r#""Action":"s3:*","Resource":"arn:aws:s3:::b/${aws:username, 'all'}/${*}""#).unwrap();
    assert_eq!(says(&default, None, "b/all/*"), Verdict::Allowed);
    assert_eq!(says(&default, None, "b/all/k"), Verdict::Silent);
    // Older policies have no variables.
    let text = format!(r#"{{"Version":"2008-10-17","Statement":[{{"Effect":"Allow","Principal":"*",{home}}}]}}"#);
    let old = Policy::read(&text, "b").unwrap();
    assert_eq!(says(&old, Some("ann"), "b/home/ann/k"), Verdict::Silent);
    assert_eq!(says(&old, Some("ann"), "b/home/${aws:username}/k"), Verdict::Allowed);
    let condition = r#"{"StringLike":{"s3:prefix":"${aws:username}/*"}}"#;
    assert!(holds(condition, &asking(Some("ann"), &[("s3:prefix", "ann/x")])));
    assert!(!holds(condition, &asking(Some("ann"), &[("s3:prefix", "bob/x")])));
    assert!(!holds(condition, &asking(None, &[("s3:prefix", "ann/x")])));
}

#[test]
fn what_is_not_named_is_covered_by_the_opposite() {
    let deny = |rest: &str| read(&format!(r#"[{{"Effect":"Deny",{rest}}}]"#));
    let policy = deny(
        r#""NotPrincipal":{"AWS":["arn:aws:iam::1:user/ann"]},"NotAction":["s3:Get*"],"NotResource":["arn:aws:s3:::b/open/*"]"#,
    );
    let policy = policy.unwrap();
    let says = |user, action, resource| policy.says(&caller(user), action, resource);
    assert_eq!(says(Some("bob"), "PutObject", "b/k"), Verdict::Denied);
    assert_eq!(says(None, "PutObject", "b/k"), Verdict::Denied);
    assert_eq!(says(Some("ann"), "PutObject", "b/k"), Verdict::Silent);
    assert_eq!(says(Some("bob"), "GetObject", "b/k"), Verdict::Silent);
    assert_eq!(says(Some("bob"), "PutObject", "b/open/k"), Verdict::Silent);
    assert_eq!(policy.users().collect::<Vec<_>>(), ["ann"]);
    let allow = r#"{"Effect":"Allow","NotPrincipal":{"AWS":"ann"},"Action":"s3:*","Resource":"arn:aws:s3:::b/*"}"#;
    assert_eq!(read(allow).unwrap_err().code(), &S3ErrorCode::MalformedPolicy);
}

#[test]
fn principals_have_several_names() {
    let names = |principal: &str| {
        let get = r#""Action":"s3:GetObject","Resource":"arn:aws:s3:::b/*""#;
        let policy = read(&format!(r#"{{"Effect":"Allow","Principal":{principal},{get}}}"#)).unwrap();
        let says = |user| policy.says(&caller(user), "GetObject", "b/k") == Verdict::Allowed;
        (says(Some("ann")), says(Some("bob")), says(None))
    };
    assert_eq!(names(r#""*""#), (true, true, true));
    assert_eq!(names(r#"{"AWS":["*"]}"#), (true, true, true));
    for ann in ["ann", "arn:aws:iam::123456789012:user/ann", "arn:aws:iam:::user/ann", "arn:aws:iam::ann:root"] {
        assert_eq!(names(&format!(r#"{{"AWS":"{ann}"}}"#)), (true, false, false), "{ann}");
    }
    assert_eq!(names(r#"{"CanonicalUser":["ann","bob"]}"#), (true, true, false));
    // No request here is made by a service.
    assert_eq!(names(r#"{"Service":"logging.s3.amazonaws.com"}"#), (false, false, false));
}

#[test]
fn a_policy_that_was_taken_once_is_read_though_a_new_one_would_be_refused() {
    let text = r#"{"Statement":[
        {"Sid":"a","Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::b/*",
         "Condition":{"StringNotEquals":{"s3:prefix":"x"},"StringLike":{"aws:Referer":[]}}},
        {"Sid":"a","Effect":"Allow","Principal":"*","Action":"s3:ListBucket","Resource":"arn:aws:s3:::b"}]}"#;
    assert_eq!(Policy::read(text, "b").unwrap_err().code(), &S3ErrorCode::MalformedPolicy);
    let mut record = ObjectManifest::new(Kind::Bucket, "b", "", VersionId::default());
    record.attributes.insert(POLICY.to_owned(), text.to_owned());
    let kept = Policy::of(&Row { manifest: record.chunk().0, record }).unwrap().unwrap();
    assert_eq!(kept.says(&caller(None), "GetObject", "b/k"), Verdict::Silent);
    assert_eq!(kept.says(&caller(None), "ListBucket", "b"), Verdict::Allowed);
}

#[test]
fn a_policy_is_public_unless_it_is_for_some() {
    let public = |rest: &str| {
        let get = r#""Action":"s3:GetObject","Resource":"arn:aws:s3:::b/*""#;
        one(&format!("{get}{rest}")).unwrap().statements.iter().any(Statement::is_public)
    };
    assert!(public(""));
    assert!(public(r#","Condition":{"Bool":{"aws:SecureTransport":true}}"#));
    assert!(public(r#","Condition":{"IpAddress":{"aws:SourceIp":"0.0.0.0/1"}}"#));
    assert!(!public(r#","Condition":{"IpAddress":{"aws:SourceIp":"10.0.0.0/8"}}"#));
    assert!(public(r#","Condition":{"NotIpAddress":{"aws:SourceIp":"10.0.0.0/8"}}"#));
    assert!(!public(r#","Condition":{"StringEquals":{"aws:SourceAccount":"1"}}"#));
    assert!(public(r#","Condition":{"StringLike":{"aws:SourceAccount":"*"}}"#));
    assert!(public(r#","Condition":{"StringEqualsIfExists":{"aws:SourceAccount":"1"}}"#));
    assert!(public(r#","Condition":{"StringEquals":{"aws:Referer":"x"}}"#));
}

#[test]
fn every_operation_needs_an_action() {
    let operations = include_str!("../../ops/mod.rs")
        .split("request: S3Request<")
        .skip(1)
        .filter_map(|rest| rest.split_once("Input>"));
    let operations: Vec<&str> = operations.map(|(name, _)| name).collect();
    assert!(operations.len() > 30);
    for name in operations.iter().filter(|name| !["ListBuckets", "CreateBucket"].contains(*name)) {
        assert_ne!(action(name, false), "", "{name}");
    }
}

proptest::proptest! {
    #[test]
    fn whatever_a_policy_says_it_is_read_or_refused(text in ".{0,200}", key in "[a-zA-Z:/-]{0,30}", value in ".{0,30}") {
        let _ = Policy::read(&text, "b");
        let condition = format!("{{{:?}:{{{:?}:{:?}}}}}", "StringLike", key, value);
        for (operator, known) in [
            ("StringLike", "aws:UserAgent"),
            ("ArnLike", "aws:SourceArn"),
            ("DateLessThan", "aws:CurrentTime"),
            ("NumericEquals", "s3:max-keys"),
            ("IpAddress", "aws:SourceIp"),
            ("BinaryEquals", "aws:UserAgent"),
        ] {
            let condition = condition.replace("StringLike", operator).replace(&format!("{key:?}"), &format!("{known:?}"));
            let policy = one(&format!(r#""Action":"s3:*","Resource":"arn:aws:s3:::b/*","Condition":{condition}"#));
            if let Ok(policy) = policy {
                let asks = caller(Some("ann")).with(|context| context.add("aws:useragent", value.clone()));
                let _ = policy.says(&asks, "GetObject", &format!("b/{text}"));
            }
        }
    }
}
