//! Tags, and those of objects; kept as they are sent in a header: `key=value&key=value`, percent-encoded.

use std::collections::BTreeSet;

use catalog::object_manifest::ObjectManifest;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Result, s3_error};

use super::attributes::Attributes;
use super::query::{decode, encode};

/// The attribute that has the tags.
pub(crate) const TAGS: &str = "x-amz-tagging";
/// The tag that says whether chunks of new objects are compressed.
pub(crate) const COMPRESS: &str = "reservoir:compress";
/// Tags of one object, as in S3.
pub(crate) const MOST: usize = 10;
/// Characters of a key and of a value, as in S3.
const CHARACTERS: (usize, usize) = (128, 256);

pub(crate) type Tags = Vec<(String, String)>;

/// The tags in a header.
pub(crate) fn read(text: &str) -> S3Result<Tags> {
    let tags = parse(text).filter(|tags| !repeats(tags)).ok_or_else(|| {
        s3_error!(
            InvalidArgument,
            "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters without tag name \
             duplicates."
        )
    })?;
    check(tags, MOST)
}

/// The tags in a text, whatever they are; `None` when it is not encoded.
pub(crate) fn parse(text: &str) -> Option<Tags> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decode(key)?.into_owned(), decode(value)?.into_owned()))
    });
    pairs.collect()
}

/// The tags in a request's body.
pub(crate) fn from_dto(tagging: Tagging) -> S3Result<Tags> {
    let tags = tagging.tag_set.into_iter().map(|tag| Some((tag.key?, tag.value?)));
    tags.collect::<Option<Tags>>().ok_or_else(|| S3ErrorCode::MalformedXML.into())
}

/// Tags as an answer has them.
pub(crate) fn to_dto(tags: Tags) -> Vec<Tag> {
    tags.into_iter().map(|(key, value)| Tag { key: Some(key), value: Some(value) }).collect()
}

/// Tags that there may be, of which there are at most so many.
pub(crate) fn check(tags: Tags, most: usize) -> S3Result<Tags> {
    let fit = |text: &str, most| text.chars().count() <= most;
    let why = if tags.len() > most {
        return Err(s3_error!(InvalidTag, "There cannot be more than {most} tags"));
    } else if repeats(&tags) {
        "Cannot provide multiple Tags with the same key"
    } else if !tags.iter().all(|(key, _)| !key.is_empty() && fit(key, CHARACTERS.0)) {
        "The TagKey you have provided is invalid"
    } else if !tags.iter().all(|(_, value)| fit(value, CHARACTERS.1)) {
        "The TagValue you have provided is invalid"
    } else {
        return Ok(tags);
    };
    Err(s3_error!(InvalidTag, "{why}"))
}

/// Whether a key is there twice.
fn repeats(tags: &Tags) -> bool {
    let keys: BTreeSet<&str> = tags.iter().map(|(key, _)| key.as_str()).collect();
    keys.len() != tags.len()
}

/// The tags of an object, if it has any.
pub(crate) fn of(record: &ObjectManifest) -> Option<Tags> {
    record.attributes.get(TAGS).and_then(|text| parse(text))
}

/// Whether a bucket wants its new chunks compressed; `None` when it says nothing.
pub(crate) fn compress(bucket: &ObjectManifest) -> Option<bool> {
    value(bucket, COMPRESS).map(|value| value == "on")
}

/// The value of a bucket's tag.
pub(crate) fn value(bucket: &ObjectManifest, name: &str) -> Option<String> {
    let tags = parse(bucket.attributes.get(TAGS)?)?;
    tags.into_iter().find(|(key, _)| key == name).map(|(_, value)| value)
}

/// Keeps tags in place of others.
pub(crate) fn keep(attributes: &mut Attributes, tags: &Tags) {
    match text(tags) {
        None => attributes.remove(TAGS),
        Some(text) => attributes.insert(TAGS.to_owned(), text),
    };
}

/// Tags as they are kept; `None` when there are none.
pub(crate) fn text(tags: &Tags) -> Option<String> {
    let pairs: Vec<String> = tags.iter().map(|(key, value)| format!("{}={}", encode(key), encode(value))).collect();
    (!pairs.is_empty()).then(|| pairs.join("&"))
}

/// How many tags an object has, if any.
pub(crate) fn count(record: &ObjectManifest) -> Option<i32> {
    record.attributes.get(TAGS).map(|text| text.split('&').count() as i32)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn tags_come_back_as_they_were_kept() {
        let tags = vec![("a b".to_owned(), "ü&=+".to_owned()), ("c".to_owned(), String::new())];
        let mut attributes = Attributes::new();
        keep(&mut attributes, &tags);
        assert_eq!(read(&attributes[TAGS]).unwrap(), tags);
        keep(&mut attributes, &vec![]);
        assert!(attributes.is_empty());
    }

    #[test]
    fn impossible_tags_are_refused() {
        let many = (0..11).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join("&");
        for bad in ["=v", "a=1&a=2", "a=%zz", "a=%f", &many, &format!("{}=v", "k".repeat(129))] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
