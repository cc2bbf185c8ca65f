//! What conditions of policies compare: the values that a request has, by the names of their keys.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::SystemTime;

use s3s::dto::{Timestamp, TimestampFormat};
use time::OffsetDateTime;

use super::REGION;
use super::tags::Tags;

/// Tags that the request gives, and those of what is there already: each has a key of its own, with the tag's after it.
const REQUEST_TAG: &str = "s3:requestobjecttag/";
const EXISTING_TAG: &str = "s3:existingobjecttag/";
/// The keys of the tags that the request gives.
const REQUEST_TAG_KEYS: &str = "s3:requestobjecttagkeys";

/// The values of a request. The key of a value is in small letters, but for that of a tag.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    values: Vec<(Cow<'static, str>, Cow<'static, str>)>,
    now: SystemTime,
    /// When the request was signed, as it says.
    signed: Option<String>,
}

/// A key as it is looked for: names of keys have no case, those of tags do.
pub(crate) fn normal_key(key: &str) -> String {
    let (name, tag) = key.split_at(key.find('/').unwrap_or(key.len()));
    name.to_ascii_lowercase() + tag
}

/// Whether the values of a key are those of what is there already.
pub(crate) fn is_of_existing(key: &str) -> bool {
    key.starts_with(EXISTING_TAG)
}

impl Context {
    /// What every request has: who asks, if somebody signed, from where, and when.
    pub(crate) fn new(user: Option<&str>, address: IpAddr, secure: bool) -> Self {
        let mut context = Self { values: vec![], now: SystemTime::now(), signed: None };
        context.add("aws:sourceip", address.to_canonical().to_string());
        context.add("aws:securetransport", if secure { "true" } else { "false" });
        context.add("aws:requestedregion", REGION);
        context.add("aws:viaawsservice", "false");
        context.add("aws:principaltype", if user.is_some() { "User" } else { "Anonymous" });
        if let Some(user) = user {
            context.add("aws:username", user.to_owned());
            context.add("aws:userid", user.to_owned());
            context.add("aws:principalarn", format!("arn:aws:iam::{user}:user/{user}"));
            // Every user has an account of its own.
            context.add("aws:principalaccount", user.to_owned());
            context.add("aws:principalisawsservice", "false");
        }
        context
    }

    /// One more value of a key.
    pub(crate) fn add(&mut self, key: impl Into<Cow<'static, str>>, value: impl Into<Cow<'static, str>>) {
        self.values.push((key.into(), value.into()));
    }

    /// When the request was signed, as `X-Amz-Date` has it.
    pub(crate) fn sign(&mut self, date: Option<String>) {
        self.signed = date;
    }

    /// Until when the request wants the object retained, and how many days that is.
    pub(crate) fn add_retention(&mut self, until: String) {
        if let Ok(time) = Timestamp::parse(TimestampFormat::DateTime, &until) {
            let days = (OffsetDateTime::from(time) - OffsetDateTime::from(self.now)).as_seconds_f64() / 86_400.0;
            self.add("s3:object-lock-remaining-retention-days", days.ceil().to_string());
        }
        self.add("s3:object-lock-retain-until-date", until);
    }

    /// The tags that the request gives.
    pub(crate) fn add_request_tags(&mut self, tags: &Tags) {
        for (key, value) in tags {
            self.add(format!("{REQUEST_TAG}{key}"), value.clone());
            self.add(REQUEST_TAG_KEYS, key.clone());
        }
    }

    /// The tags of what is there already.
    pub(crate) fn add_existing_tags(&mut self, tags: &Tags) {
        for (key, value) in tags {
            self.add(format!("{EXISTING_TAG}{key}"), value.clone());
        }
    }

    /// The values of a key, which is a normal one.
    pub(crate) fn values(&self, key: &str) -> Vec<Cow<'_, str>> {
        let made = match key {
            "aws:currenttime" => self.current_time(),
            "aws:epochtime" => Some(OffsetDateTime::from(self.now).unix_timestamp().to_string()),
            "s3:signatureage" => self.signature_age(),
            _ => None,
        };
        let given = self.values.iter().filter(|(name, _)| name == key).map(|(_, value)| Cow::Borrowed(&**value));
        given.chain(made.map(Cow::Owned)).collect()
    }

    fn current_time(&self) -> Option<String> {
        let mut text = vec![];
        Timestamp::from(self.now).format(TimestampFormat::DateTime, &mut text).ok()?;
        String::from_utf8(text).ok()
    }

    /// Milliseconds since it was signed.
    fn signature_age(&self) -> Option<String> {
        let signed = signing_time(self.signed.as_deref()?)?;
        Some((OffsetDateTime::from(self.now) - signed).whole_milliseconds().max(0).to_string())
    }
}

/// A time like `20261126T213441Z`.
fn signing_time(text: &str) -> Option<OffsetDateTime> {
    let digits = text.len() == 16 && text.is_ascii() && text.as_bytes()[8] == b'T' && text.ends_with('Z');
    let part = |from: usize, to: usize| text.get(from..to).filter(|_| digits);
    let written = format!(
        "{}-{}-{}T{}:{}:{}Z",
        part(0, 4)?,
        part(4, 6)?,
        part(6, 8)?,
        part(9, 11)?,
        part(11, 13)?,
        part(13, 15)?
    );
    Timestamp::parse(TimestampFormat::DateTime, &written).ok().map(OffsetDateTime::from)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn a_request_has_what_everybody_has_and_its_tags() {
        let address = IpAddr::from([10, 1, 2, 3]);
        let mut context = Context::new(Some("ann"), address, true);
        context.add_request_tags(&vec![("A".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())]);
        context.add_existing_tags(&vec![("A".to_owned(), "3".to_owned())]);
        assert_eq!(context.values("aws:sourceip"), ["10.1.2.3"]);
        assert_eq!(context.values("aws:username"), ["ann"]);
        assert_eq!(context.values("s3:requestobjecttagkeys"), ["A", "b"]);
        assert_eq!(context.values(&normal_key("s3:RequestObjectTag/A")), ["1"]);
        assert_eq!(context.values(&normal_key("S3:existingObjectTag/A")), ["3"]);
        assert!(context.values(&normal_key("s3:ExistingObjectTag/a")).is_empty());
        let seconds: i64 = context.values("aws:epochtime")[0].parse().unwrap();
        assert!(seconds > 1_700_000_000 && context.values("aws:currenttime")[0].ends_with('Z'));
        assert!(Context::new(None, address, true).values("aws:username").is_empty());
    }

    #[test]
    fn the_age_of_a_signature_counts_from_its_date() {
        let mut context = Context::new(None, IpAddr::from([10, 1, 2, 3]), true);
        context.sign(Some("20200101T000000Z".to_owned()));
        assert!(context.values("s3:signatureage")[0].parse::<i128>().unwrap() > 1_000_000_000);
        for none in ["20200101", "20201301T000000Z", "2020010ÄT00000Z", "yyyymmddThhmmssZ"] {
            context.sign(Some(none.to_owned()));
            assert!(context.values("s3:signatureage").is_empty(), "{none}");
        }
    }
}
