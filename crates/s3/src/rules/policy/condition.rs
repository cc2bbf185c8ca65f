//! Conditions of statements.

use std::net::IpAddr;

use ipnet::IpNet;
use s3s::dto::{Timestamp, TimestampFormat};
use s3s::{S3Error, S3Result, s3_error};
use time::OffsetDateTime;

use super::keys;
use super::pattern::Pattern;
use crate::rules::context::{Context, normal_key};

/// How the value of a request compares with that of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Order {
    fn holds<T: PartialOrd>(self, of_request: T, of_policy: T) -> bool {
        match self {
            Self::Equal => of_request == of_policy,
            Self::Less => of_request < of_policy,
            Self::LessOrEqual => of_request <= of_policy,
            Self::Greater => of_request > of_policy,
            Self::GreaterOrEqual => of_request >= of_policy,
        }
    }
}

/// What is compared, and the values of the policy, one of which must be met.
#[derive(Debug)]
enum Test {
    Text(Vec<Pattern>),
    AnyCase(Vec<Pattern>),
    Arn(Vec<Pattern>),
    Number(Order, Vec<f64>),
    Date(Order, Vec<OffsetDateTime>),
    Bool(Vec<bool>),
    Address(Vec<IpNet>),
    Binary(Vec<Vec<u8>>),
    /// Whether the key has no value.
    Null(Vec<bool>),
}

impl Test {
    fn met_by(&self, value: &str, context: &Context) -> bool {
        match self {
            Self::Text(patterns) => patterns.iter().any(|pattern| pattern.matches(value, context)),
            Self::AnyCase(patterns) => patterns.iter().any(|pattern| pattern.matches_any_case(value, context)),
            Self::Arn(patterns) => patterns.iter().any(|pattern| pattern.matches_arn(value, context)),
            Self::Number(order, numbers) => {
                number(value).is_some_and(|own| numbers.iter().any(|other| order.holds(own, *other)))
            }
            Self::Date(order, dates) => {
                date(value).is_some_and(|own| dates.iter().any(|other| order.holds(own, *other)))
            }
            Self::Bool(truths) => truth(value).is_some_and(|own| truths.contains(&own)),
            Self::Address(nets) => value.parse::<IpAddr>().is_ok_and(|own| nets.iter().any(|net| net.contains(&own))),
            Self::Binary(values) => binary(value).is_some_and(|own| values.contains(&own)),
            Self::Null(_) => false,
        }
    }

    fn patterns(&self) -> &[Pattern] {
        match self {
            Self::Text(patterns) | Self::AnyCase(patterns) | Self::Arn(patterns) => patterns,
            _ => &[],
        }
    }
}

/// How a key of several values is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    /// Every value of the request must do; so it is without any.
    All,
    /// One must.
    Any,
}

/// One condition: an operator, a key, and values.
#[derive(Debug)]
pub(super) struct Condition {
    key: String,
    test: Test,
    /// Whether the test must fail.
    negated: bool,
    /// Whether it holds for a request without the key.
    if_exists: bool,
    set: Option<Set>,
}

impl Condition {
    /// The condition that a policy has, in which texts have variables or not.
    pub(super) fn new(operator: &str, key: &str, values: &[String], variables: bool) -> S3Result<Self> {
        let unknown = || s3_error!(MalformedPolicy, "Invalid Condition type : {operator}");
        let normal = normal_key(key);
        if !keys::is_known(&normal) {
            return Err(s3_error!(MalformedPolicy, "Policy has an invalid condition key: {key}"));
        }
        let (set, name) = match operator.split_once(':') {
            None => (None, operator),
            Some(("ForAllValues", name)) => (Some(Set::All), name),
            Some(("ForAnyValue", name)) => (Some(Set::Any), name),
            Some(_) => return Err(unknown()),
        };
        let (name, if_exists) = name.strip_suffix("IfExists").map_or((name, false), |name| (name, true));
        let (name, negated) = match name {
            "NotIpAddress" => ("IpAddress", true),
            _ => match name.split_once("Not") {
                Some((kind @ ("String" | "Numeric" | "Date" | "Arn"), rest)) if rest.starts_with(['E', 'L']) => {
                    (positive(kind, rest).ok_or_else(unknown)?, true)
                }
                Some(_) => return Err(unknown()),
                None => (name, false),
            },
        };
        let test = test(name, values, variables)?.ok_or_else(unknown)?;
        if matches!(test, Test::Null(_)) && if_exists {
            return Err(unknown());
        }
        Ok(Self { key: normal, test, negated, if_exists, set })
    }

    /// The key, which is a normal one.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Whether it has no value that a request's could meet.
    pub(super) fn is_empty(&self) -> bool {
        match &self.test {
            Test::Text(patterns) | Test::AnyCase(patterns) | Test::Arn(patterns) => patterns.is_empty(),
            Test::Number(_, numbers) => numbers.is_empty(),
            Test::Date(_, dates) => dates.is_empty(),
            Test::Bool(truths) | Test::Null(truths) => truths.is_empty(),
            Test::Address(nets) => nets.is_empty(),
            Test::Binary(values) => values.is_empty(),
        }
    }

    /// All keys whose values it looks at.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        let variables = self.test.patterns().iter().flat_map(Pattern::keys);
        variables.chain([self.key.as_str()])
    }

    pub(super) fn holds(&self, context: &Context) -> bool {
        let values = context.values(&self.key);
        if let Test::Null(truths) = &self.test {
            return truths.contains(&values.is_empty());
        }
        let mut met = values.iter().map(|value| self.test.met_by(value, context) != self.negated);
        match self.set {
            // Where the request has nothing: a key that is not there equals nothing.
            None if values.is_empty() => self.negated || self.if_exists,
            Some(Set::Any) if values.is_empty() => self.if_exists,
            Some(Set::All) => met.all(|met| met),
            // That none is met must be true of all of several values.
            None if self.negated => met.all(|met| met),
            None | Some(Set::Any) => met.any(|met| met),
        }
    }

    /// Whether a statement with it is not public: it lets only a few pass, whoever they are.
    pub(super) fn narrows(&self) -> bool {
        if self.negated || self.if_exists || self.set == Some(Set::All) {
            return false;
        }
        let narrow = |net: &IpNet| net.prefix_len() >= if matches!(net.addr(), IpAddr::V4(_)) { 8 } else { 32 };
        match &self.test {
            Test::Address(nets) => self.key == "aws:sourceip" && nets.iter().all(narrow),
            Test::Text(patterns) | Test::AnyCase(patterns) | Test::Arn(patterns) => {
                keys::is_narrow(&self.key) && patterns.iter().all(Pattern::is_fixed)
            }
            _ => false,
        }
    }
}

/// The operator whose opposite is `KINDNotREST`.
fn positive(kind: &str, rest: &str) -> Option<&'static str> {
    let names =
        ["StringEquals", "StringEqualsIgnoreCase", "StringLike", "NumericEquals", "DateEquals", "ArnEquals", "ArnLike"];
    names.into_iter().find(|name| name.strip_prefix(kind) == Some(rest))
}

/// The test of an operator; `None` for one that there is not.
fn test(name: &str, values: &[String], variables: bool) -> S3Result<Option<Test>> {
    let patterns = |wild| values.iter().map(|text| Pattern::new(text, wild, variables)).collect::<S3Result<Vec<_>>>();
    let order = |rest: &str| {
        Some(match rest {
            "Equals" => Order::Equal,
            "LessThan" => Order::Less,
            "LessThanEquals" => Order::LessOrEqual,
            "GreaterThan" => Order::Greater,
            "GreaterThanEquals" => Order::GreaterOrEqual,
            _ => return None,
        })
    };
    if let Some(order) = name.strip_prefix("Numeric").and_then(order) {
        return Ok(Some(Test::Number(order, all(values, number, "a number")?)));
    }
    if let Some(order) = name.strip_prefix("Date").and_then(order) {
        return Ok(Some(Test::Date(order, all(values, date, "a date")?)));
    }
    Ok(Some(match name {
        "StringEquals" => Test::Text(patterns(false)?),
        "StringEqualsIgnoreCase" => Test::AnyCase(patterns(false)?),
        "StringLike" => Test::Text(patterns(true)?),
        "ArnEquals" | "ArnLike" => Test::Arn(patterns(true)?),
        "Bool" => Test::Bool(all(values, truth, "true or false")?),
        "Null" => Test::Null(all(values, truth, "true or false")?),
        "IpAddress" => Test::Address(all(values, net, "an IP address or a range of them")?),
        "BinaryEquals" => Test::Binary(all(values, binary, "binary data in base64")?),
        _ => return Ok(None),
    }))
}

fn all<T>(values: &[String], read: fn(&str) -> Option<T>, kind: &str) -> S3Result<Vec<T>> {
    let wrong =
        |text: &String| -> S3Error { s3_error!(MalformedPolicy, "Invalid value in a condition: {text} is not {kind}") };
    values.iter().map(|text| read(text).ok_or_else(|| wrong(text))).collect()
}

fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| number.is_finite())
}

/// A date as ISO 8601 has it, or seconds since 1970.
fn date(text: &str) -> Option<OffsetDateTime> {
    if let Ok(seconds) = text.parse::<i64>()
        && (text.len() > 4 || seconds < 0)
    {
        return OffsetDateTime::from_unix_timestamp(seconds).ok();
    }
    let whole = match text.split_once('T') {
        None => match text.len() {
            4 => format!("{text}-01-01T00:00:00Z"),
            7 => format!("{text}-01T00:00:00Z"),
            _ => format!("{text}T00:00:00Z"),
        },
        Some((day, time)) => {
            let (clock, zone) = time.split_at(time.find(['Z', '+', '-']).unwrap_or(time.len()));
            let seconds = if clock.len() == 5 { ":00" } else { "" };
            format!("{day}T{clock}{seconds}{}", if zone.is_empty() { "Z" } else { zone })
        }
    };
    Timestamp::parse(TimestampFormat::DateTime, &whole).ok().map(OffsetDateTime::from)
}

fn truth(text: &str) -> Option<bool> {
    text.to_ascii_lowercase().parse().ok()
}

fn net(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse().ok().map(|host: IpAddr| IpNet::from(host)))
}

fn binary(text: &str) -> Option<Vec<u8>> {
    base64_simd::STANDARD.decode_to_vec(text).ok()
}
