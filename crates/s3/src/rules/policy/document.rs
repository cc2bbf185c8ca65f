//! A policy's JSON.

use std::fmt;
use std::marker::PhantomData;

use ipnet::IpNet;
use s3s::{S3Error, S3Result, s3_error};
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer, StrDeserializer};
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{Condition, Key, Policy, Principals, Statement, Test, actions, fits, on_objects};

/// The prefix of the names of buckets and objects.
const ARN: &str = "arn:aws:s3:::";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct Document {
    version: Option<String>,
    #[serde(rename = "Id")]
    _id: Option<String>,
    statement: Many<StatementJson>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct StatementJson {
    #[serde(rename = "Sid")]
    _sid: Option<String>,
    effect: Effect,
    principal: Principal,
    action: Many<Text>,
    resource: Many<Text>,
    #[serde(default)]
    condition: Pairs<Pairs<Many<Text>>>,
}

#[derive(Deserialize, PartialEq, Eq)]
enum Effect {
    Allow,
    Deny,
}

/// One value, or a list of them.
struct Many<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ManyVisitor(PhantomData)).map(Self)
    }
}

struct ManyVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ManyVisitor<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one or a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<T>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Vec<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(|one| vec![one])
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
        T::deserialize(StrDeserializer::new(text)).map(|one| vec![one])
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Vec<T>, E> {
        self.visit_str(if value { "true" } else { "false" })
    }
}

/// A string, or a truth value that stands without quotes.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl Visitor<'_> for TextVisitor {
            type Value = String;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
                Ok(text.to_owned())
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<String, E> {
                Ok(value.to_string())
            }
        }
        from.deserialize_any(TextVisitor).map(Self)
    }
}

/// A map that keeps all values of a name that occurs twice.
struct Pairs<V>(Vec<(String, V)>);

impl<V> Default for Pairs<V> {
    fn default() -> Self {
        Self(vec![])
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Pairs<V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct PairsVisitor<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for PairsVisitor<V> {
            type Value = Vec<(String, V)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = vec![];
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(pairs)
            }
        }
        from.deserialize_map(PairsVisitor(PhantomData)).map(Self)
    }
}

/// The principals of a statement: `"*"`, or lists by kind.
enum Principal {
    Star,
    Kinds(Pairs<Many<Text>>),
}

impl<'de> Deserialize<'de> for Principal {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct PrincipalVisitor;
        impl<'de> Visitor<'de> for PrincipalVisitor {
            type Value = Principal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"*\" or a map")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Principal, E> {
                if text == "*" { Ok(Principal::Star) } else { Err(E::custom("a principal is \"*\" or a map")) }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Principal, A::Error> {
                Pairs::deserialize(MapAccessDeserializer::new(map)).map(Principal::Kinds)
            }
        }
        from.deserialize_any(PrincipalVisitor)
    }
}

fn malformed(why: impl fmt::Display) -> S3Error {
    s3_error!(MalformedPolicy, "{why}")
}

/// The policy in this text, for this bucket.
pub(super) fn read(text: &str, bucket: &str) -> S3Result<Policy> {
    let document: Document = serde_json::from_str(text).map_err(malformed)?;
    if document.version.is_some_and(|version| version != "2012-10-17" && version != "2008-10-17") {
        return Err(malformed("the version of a policy is 2012-10-17 or 2008-10-17"));
    }
    if document.statement.0.is_empty() {
        return Err(malformed("a policy has a statement"));
    }
    let statements = document.statement.0.into_iter().map(|json| statement(json, bucket));
    Ok(Policy { statements: statements.collect::<S3Result<_>>()? })
}

fn statement(json: StatementJson, bucket: &str) -> S3Result<Statement> {
    let actions = json.action.0.iter().map(|text| action_pattern(&text.0)).collect::<S3Result<Vec<_>>>()?;
    let resources =
        json.resource.0.iter().map(|text| resource_pattern(&text.0, bucket)).collect::<S3Result<Vec<_>>>()?;
    let mut conditions = vec![];
    for (operator, keys) in json.condition.0 {
        for (key, values) in keys.0 {
            conditions.push(condition(&operator, &key, values.0.into_iter().map(|text| text.0).collect())?);
        }
    }
    let objects = resources.iter().any(|pattern| pattern.contains('/') || pattern.ends_with('*'));
    let whole = resources.iter().any(|pattern| !pattern.contains('/'));
    for pattern in &actions {
        let mut matching = self::actions().filter(|action| fits(pattern, &action.to_ascii_lowercase())).peekable();
        if matching.peek().is_none() {
            return Err(malformed(format_args!("Policy has invalid action: s3:{pattern}")));
        }
        if !matching.any(|action| if on_objects(action) { objects } else { whole }) {
            return Err(malformed(format_args!("Action does not apply to any resource(s) in statement: s3:{pattern}")));
        }
    }
    if actions.is_empty() || resources.is_empty() {
        return Err(malformed("a statement has an action and a resource"));
    }
    Ok(Statement {
        allow: json.effect == Effect::Allow,
        principals: principals(json.principal)?,
        actions,
        resources,
        conditions,
    })
}

fn principals(json: Principal) -> S3Result<Principals> {
    let Principal::Kinds(kinds) = json else { return Ok(Principals::Everybody) };
    let mut users = vec![];
    for (kind, names) in kinds.0 {
        for Text(name) in names.0 {
            match kind.as_str() {
                "AWS" if name == "*" => return Ok(Principals::Everybody),
                "AWS" => {
                    let by_arn = name.strip_prefix("arn:aws:iam::").map(|rest| rest.split_once(":user/"));
                    let user = by_arn.map_or(Some(name.as_str()), |pair| pair.map(|(_, user)| user));
                    let user = user.filter(|user| !user.contains(['*', '?', ':', '$']) && !user.is_empty());
                    users.push(
                        user.ok_or_else(|| malformed(format_args!("Invalid principal in policy: {name}")))?.to_owned(),
                    );
                }
                "CanonicalUser" => users.push(name),
                _ => return Err(s3_error!(NotImplemented, "principals of the kind {kind} are not supported")),
            }
        }
    }
    if users.is_empty() { Err(malformed("a statement has a principal")) } else { Ok(Principals::Users(users)) }
}

fn action_pattern(text: &str) -> S3Result<String> {
    if text == "*" {
        return Ok(text.to_owned());
    }
    let name = text.split_once(':').filter(|(service, _)| service.eq_ignore_ascii_case("s3"));
    let (_, name) = name.ok_or_else(|| malformed(format_args!("Policy has invalid action: {text}")))?;
    Ok(name.to_ascii_lowercase())
}

fn resource_pattern(text: &str, bucket: &str) -> S3Result<String> {
    no_variables(text)?;
    let rest = text.strip_prefix(ARN).and_then(|name| name.strip_prefix(bucket));
    match rest {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => Ok(format!("{bucket}{rest}")),
        // What begins like the bucket and goes on with a star is the bucket and all in it.
        Some("*") => Ok(format!("{bucket}*")),
        _ => Err(malformed(format_args!("Policy has invalid resource: {text}"))),
    }
}

fn no_variables(text: &str) -> S3Result<()> {
    if text.contains("${") {
        return Err(s3_error!(NotImplemented, "variables in a policy are not supported: {text}"));
    }
    Ok(())
}

fn condition(operator: &str, key: &str, values: Vec<String>) -> S3Result<Condition> {
    let found = match key.to_ascii_lowercase().as_str() {
        "aws:sourceip" => Key::SourceIp,
        "aws:securetransport" => Key::SecureTransport,
        "aws:username" => Key::UserName,
        "aws:referer" => Key::Referer,
        "aws:useragent" => Key::UserAgent,
        "s3:prefix" => Key::Prefix,
        "s3:delimiter" => Key::Delimiter,
        _ => return Err(s3_error!(NotImplemented, "conditions on {key} are not supported")),
    };
    values.iter().try_for_each(|value| no_variables(value))?;
    let (test, negated) = match operator {
        "StringEquals" => (Test::Equals(values), false),
        "StringNotEquals" => (Test::Equals(values), true),
        "StringEqualsIgnoreCase" => (Test::EqualsIgnoreCase(values), false),
        "StringNotEqualsIgnoreCase" => (Test::EqualsIgnoreCase(values), true),
        "StringLike" => (Test::Like(values), false),
        "StringNotLike" => (Test::Like(values), true),
        "IpAddress" => (Test::Within(nets(&values)?), false),
        "NotIpAddress" => (Test::Within(nets(&values)?), true),
        "Bool" => (Test::Bool(truths(&values)?), false),
        _ => return Err(s3_error!(NotImplemented, "conditions with {operator} are not supported")),
    };
    let kind = match &test {
        Test::Within(_) => found == Key::SourceIp,
        Test::Bool(_) => found == Key::SecureTransport,
        Test::Equals(_) | Test::EqualsIgnoreCase(_) | Test::Like(_) => {
            found != Key::SourceIp && found != Key::SecureTransport
        }
    };
    if !kind {
        return Err(s3_error!(NotImplemented, "{operator} with {key} is not supported"));
    }
    Ok(Condition { key: found, test, negated })
}

fn nets(values: &[String]) -> S3Result<Vec<IpNet>> {
    let net = |text: &String| text.parse().or_else(|_| text.parse().map(|host: std::net::IpAddr| IpNet::from(host)));
    values.iter().map(|text| net(text).map_err(|_| malformed(format_args!("Invalid IP address: {text}")))).collect()
}

fn truths(values: &[String]) -> S3Result<Vec<bool>> {
    values
        .iter()
        .map(|text| {
            text.to_ascii_lowercase().parse().map_err(|_| malformed(format_args!("{text} is not true or false")))
        })
        .collect()
}
