//! A policy's JSON.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;

use s3s::{S3Error, S3Result, s3_error};
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer, StrDeserializer};
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use super::actions::{actions, on_objects};
use super::condition::Condition;
use super::pattern::{Pattern, fits};
use super::principal::Principals;
use super::{Listed, Policy, Statement, keys};

/// The prefix of the names of buckets and objects.
const ARN: &str = "arn:aws:s3:::";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct Document {
    version: Option<String>,
    #[serde(rename = "Id")]
    _id: Option<String>,
    statement: Option<Many<StatementJson>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct StatementJson {
    sid: Option<String>,
    effect: Option<String>,
    principal: Option<Principal>,
    not_principal: Option<Principal>,
    action: Option<Many<Text>>,
    not_action: Option<Many<Text>>,
    resource: Option<Many<Text>>,
    not_resource: Option<Many<Text>>,
    #[serde(default)]
    condition: Pairs<Pairs<Many<Text>>>,
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

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Vec<T>, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Vec<T>, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Vec<T>, E> {
        self.visit_str(&value.to_string())
    }
}

/// A string, or a truth value or number that stands without quotes.
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

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<String, E> {
                Ok(value.to_string())
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<String, E> {
                Ok(value.to_string())
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<String, E> {
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
                if text == "*" { Ok(Principal::Star) } else { Err(E::custom("Invalid principal in policy")) }
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

/// The policy in this text, for this bucket. One that is `new` is held to rules that others were not when they were put,
/// and must not be: a policy that cannot be read would lock everybody out.
pub(super) fn read(text: &str, bucket: &str, new: bool) -> S3Result<Policy> {
    if !text.trim_start().starts_with('{') {
        return Err(malformed("Policies must be valid JSON and the first byte must be '{'"));
    }
    let document: Document = serde_json::from_str(text).map_err(malformed)?;
    let variables = match document.version.as_deref() {
        Some("2012-10-17") => true,
        None | Some("2008-10-17") => false,
        Some(_) => return Err(malformed("The policy must contain a valid version string")),
    };
    let statements = document.statement.ok_or_else(|| missing("Statement"))?.0;
    if statements.is_empty() {
        return Err(malformed("Could not parse the policy: Statement is empty!"));
    }
    let mut ids = BTreeSet::new();
    if new && statements.iter().filter_map(|json| json.sid.as_deref()).any(|id| !ids.insert(id.to_owned())) {
        return Err(malformed("Statement IDs (SID) in a single policy must be unique."));
    }
    let statements: Vec<Statement> =
        statements.into_iter().map(|json| statement(json, bucket, variables)).collect::<S3Result<_>>()?;
    if new {
        statements.iter().try_for_each(check_conditions)?;
    }
    Ok(Policy { statements })
}

fn missing(field: &str) -> S3Error {
    malformed(format_args!("Missing required field {field}"))
}

/// A field, or the one that stands for all that it does not name. Exactly one of them is there.
fn either<T>(name: &str, plain: Option<T>, inverted: Option<T>) -> S3Result<Listed<T>> {
    match (plain, inverted) {
        (Some(these), None) => Ok(Listed { these, inverted: false }),
        (None, Some(these)) => Ok(Listed { these, inverted: true }),
        (None, None) => Err(missing(name)),
        (Some(_), Some(_)) => Err(malformed(format_args!("a statement has {name} or Not{name}, not both"))),
    }
}

/// The same with each of its texts read.
fn each<T>(name: &str, listed: Listed<Many<Text>>, read: impl Fn(&str) -> S3Result<T>) -> S3Result<Listed<Vec<T>>> {
    if listed.these.0.is_empty() {
        return Err(malformed(format_args!("Missing required field {name} cannot be empty!")));
    }
    let these = listed.these.0.iter().map(|text| read(&text.0)).collect::<S3Result<_>>()?;
    Ok(Listed { these, inverted: listed.inverted })
}

fn statement(json: StatementJson, bucket: &str, variables: bool) -> S3Result<Statement> {
    let allow = match json.effect.as_deref() {
        Some("Allow") => true,
        Some("Deny") => false,
        Some(other) => return Err(malformed(format_args!("Invalid effect: {other}"))),
        None => return Err(missing("Effect")),
    };
    let principals = either("Principal", json.principal, json.not_principal)?;
    if allow && principals.inverted {
        return Err(malformed("Allow with NotPrincipal is not allowed."));
    }
    let principals = Listed { these: principals_of(principals.these)?, inverted: principals.inverted };
    let actions = each("Action", either("Action", json.action, json.not_action)?, action_pattern)?;
    let resources = either("Resource", json.resource, json.not_resource)?;
    let resources = each("Resource", resources, |text| resource_pattern(text, bucket, variables))?;
    let mut conditions = vec![];
    for (operator, keys) in json.condition.0 {
        for (key, values) in keys.0 {
            let values: Vec<String> = values.0.into_iter().map(|text| text.0).collect();
            conditions.push(Condition::new(&operator, &key, &values, variables)?);
        }
    }
    let statement = Statement { allow, principals, actions, resources, conditions };
    check_actions(&statement)?;
    Ok(statement)
}

/// Each action must be one that there is, for something that the statement names.
fn check_actions(statement: &Statement) -> S3Result<()> {
    let named = &statement.actions.these;
    let lower = |action: &str| action.to_ascii_lowercase();
    for pattern in named {
        if !actions().any(|action| fits(pattern, &lower(action))) {
            return Err(malformed(format_args!("Policy has invalid action: s3:{pattern}")));
        }
    }
    if statement.actions.inverted {
        return Ok(());
    }
    let plain = |pattern: &Pattern| pattern.plain().map(|text| (text.contains('/'), text.ends_with('*')));
    let resources = &statement.resources;
    let has = |wanted: fn((bool, bool)) -> bool| {
        resources.inverted || resources.these.iter().any(|pattern| plain(pattern).is_none_or(wanted))
    };
    let (objects, whole) = (has(|(slash, star)| slash || star), has(|(slash, _)| !slash));
    for pattern in named {
        let mut matching = actions().filter(|action| fits(pattern, &lower(action)));
        if !matching.any(|action| if on_objects(action) { objects } else { whole }) {
            return Err(malformed(format_args!("Action does not apply to any resource(s) in statement: s3:{pattern}")));
        }
    }
    Ok(())
}

/// Requests for an action of the statement must be able to have what its conditions look at.
fn check_conditions(statement: &Statement) -> S3Result<()> {
    if statement.conditions.iter().any(Condition::is_empty) {
        return Err(malformed("a condition has a value"));
    }
    let Listed { these, inverted } = &statement.actions;
    let named = |action: &str| these.iter().any(|pattern| fits(pattern, &action.to_ascii_lowercase())) != *inverted;
    for condition in &statement.conditions {
        if !actions().any(|action| named(action) && keys::apply(condition.key(), action)) {
            return Err(malformed("Conditions do not apply to combination of actions and resources in statement"));
        }
    }
    Ok(())
}

fn principals_of(json: Principal) -> S3Result<Principals> {
    let Principal::Kinds(kinds) = json else { return Ok(Principals::Everybody) };
    let names = |names: Many<Text>| names.0.into_iter().map(|text| text.0).collect();
    let kinds: Vec<(String, Vec<String>)> = kinds.0.into_iter().map(|(kind, list)| (kind, names(list))).collect();
    Principals::of(&kinds)
}

fn action_pattern(text: &str) -> S3Result<String> {
    if text == "*" {
        return Ok(text.to_owned());
    }
    let name = text.split_once(':').filter(|(service, _)| service.eq_ignore_ascii_case("s3"));
    let (_, name) = name.ok_or_else(|| malformed(format_args!("Policy has invalid action: {text}")))?;
    Ok(name.to_ascii_lowercase())
}

fn resource_pattern(text: &str, bucket: &str, variables: bool) -> S3Result<Pattern> {
    let rest = text.strip_prefix(ARN).and_then(|name| name.strip_prefix(bucket));
    match rest {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            Pattern::new(&format!("{bucket}{rest}"), true, variables)
        }
        // What begins like the bucket and goes on with a star is the bucket and all in it.
        Some("*") => Pattern::new(&format!("{bucket}*"), true, variables),
        _ => Err(malformed(format_args!("Policy has invalid resource: {text}"))),
    }
}
