#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::net::IpAddr;

use super::*;
use crate::rules::caller::Peer;

fn caller(user: Option<&str>) -> Caller {
    Caller {
        user: user.map(str::to_owned),
        action: "",
        peer: Peer { address: IpAddr::from([10, 1, 2, 3]), secure: false },
        prefix: None,
        delimiter: None,
        referer: None,
        agent: None,
        expects: None,
        expects_source: None,
    }
}

fn read(statements: &str) -> S3Result<Policy> {
    document::read(&format!(r#"{{"Version":"2012-10-17","Statement":{statements}}}"#), "b")
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
    let mut asks = caller(None);
    for (length, refused) in [(TEXT_BYTES, false), (TEXT_BYTES + 1, true)] {
        asks.agent = Some("a".repeat(length));
        assert_eq!(policy.check_length(&asks).is_err(), refused);
        assert!(plain.check_length(&asks).is_ok());
    }
    asks.agent = Some("a".repeat(TEXT_BYTES));
    assert_eq!(policy.says(&asks, "ListBucket", "b"), Verdict::Allowed);
}

#[test]
fn conditions_must_all_hold() {
    let says = |condition: &str, caller: &Caller| {
        let text = format!(r#""Action":"s3:ListBucket","Resource":"arn:aws:s3:::b","Condition":{condition}"#);
        one(&text).unwrap().says(caller, "ListBucket", "b") == Verdict::Allowed
    };
    let mut asks = caller(Some("ann"));
    assert!(says(r#"{"IpAddress":{"aws:SourceIp":["192.168.0.1","10.0.0.0/8"]}}"#, &asks));
    assert!(!says(r#"{"NotIpAddress":{"aws:SourceIp":"10.0.0.0/8"}}"#, &asks));
    assert!(says(r#"{"Bool":{"aws:SecureTransport":false}}"#, &asks));
    assert!(!says(r#"{"Bool":{"aws:SecureTransport":"true"}}"#, &asks));
    assert!(!says(r#"{"StringEquals":{"s3:prefix":""}}"#, &asks), "what is not there equals nothing");
    assert!(says(r#"{"StringNotEquals":{"s3:prefix":"a/"}}"#, &asks));
    asks.prefix = Some("home/ann/".to_owned());
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
        r#""NotAction":"s3:GetObject","Resource":"arn:aws:s3:::b/*""#,
        &format!(r#"{get},"Condition":{{"IpAddress":{{"aws:SourceIp":"10.0.0.0/99"}}}}"#),
        &format!(r#"{get},"Effect":"Deny""#),
    ] {
        assert_eq!(one(bad).unwrap_err().code(), &S3ErrorCode::MalformedPolicy, "{bad}");
    }
    for unknown in [
        r#""Action":"s3:GetObject","Resource":"arn:aws:s3:::b/${aws:username}/*""#,
        &format!(r#"{get},"Condition":{{"NumericLessThan":{{"s3:max-keys":"1"}}}}"#),
        &format!(r#"{get},"Condition":{{"StringEqualsIfExists":{{"s3:prefix":"1"}}}}"#),
        &format!(r#"{get},"Condition":{{"StringEquals":{{"aws:SourceIp":"10.0.0.1"}}}}"#),
    ] {
        assert_eq!(one(unknown).unwrap_err().code(), &S3ErrorCode::NotImplemented, "{unknown}");
    }
    for principal in [r#""ann""#, r#"{"AWS":"arn:aws:iam::1:root"}"#, r#"{"AWS":[]}"#, r#"{"AWS":"a*"}"#] {
        let text = format!(r#"{{"Effect":"Allow","Principal":{principal},{get}}}"#);
        assert_eq!(read(&text).unwrap_err().code(), &S3ErrorCode::MalformedPolicy, "{principal}");
    }
    for text in ["", "{}", r#"{"Statement":[]}"#, r#"{"Version":"2020-01-01","Statement":[]}"#, "[", "1"] {
        assert!(document::read(text, "b").is_err(), "{text}");
    }
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
