//! Tags, and those of objects; kept as they are sent in a header: `key=value&key=value`, percent-encoded.

use std::collections::BTreeSet;

use object::record::Record;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Result, s3_error};

use crate::attributes::{Attributes, version_id};
use crate::face::Face;
use crate::who::Who;

/// The attribute that has the tags.
pub(crate) const TAGS: &str = "x-amz-tagging";
/// Tags of one object, as in S3.
const MOST: usize = 10;
/// Characters of a key and of a value, as in S3.
const CHARACTERS: (usize, usize) = (128, 256);

pub(crate) type Tags = Vec<(String, String)>;

/// The tags in a header.
pub(crate) fn read(text: &str) -> S3Result<Tags> {
    check(parse(text).ok_or_else(|| s3_error!(InvalidArgument, "the tags are not encoded"))?, MOST)
}

/// The tags in a text, whatever they are; `None` when it is not encoded.
pub(crate) fn parse(text: &str) -> Option<Tags> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decode(key)?, decode(value)?))
    });
    pairs.collect()
}

/// The tags in a request's body.
pub(crate) fn given(tagging: Tagging) -> S3Result<Tags> {
    let tags = tagging.tag_set.into_iter().map(|tag| Some((tag.key?, tag.value?)));
    tags.collect::<Option<Tags>>().ok_or_else(|| S3ErrorCode::MalformedXML.into())
}

/// Tags as an answer has them.
pub(crate) fn said(tags: Tags) -> Vec<Tag> {
    tags.into_iter().map(|(key, value)| Tag { key: Some(key), value: Some(value) }).collect()
}

/// Tags that there may be, of which there are at most so many.
pub(crate) fn check(tags: Tags, most: usize) -> S3Result<Tags> {
    let keys: BTreeSet<&str> = tags.iter().map(|(key, _)| key.as_str()).collect();
    let fit = |text: &str, most| text.chars().count() <= most;
    let good = tags.iter().all(|(key, value)| !key.is_empty() && fit(key, CHARACTERS.0) && fit(value, CHARACTERS.1));
    if tags.len() > most {
        return Err(s3_error!(InvalidTag, "there can be {most} tags"));
    }
    if !good || keys.len() != tags.len() {
        return Err(s3_error!(
            InvalidTag,
            "a tag has a key of its own of 1 to 128, and a value of up to 256 characters"
        ));
    }
    Ok(tags)
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
pub(crate) fn count(record: &Record) -> Option<i32> {
    record.attributes.get(TAGS).map(|text| text.split('&').count() as i32)
}

fn encode(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(byte);
    text.bytes().map(|b| if plain(&b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

pub(crate) fn decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = vec![];
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(core::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

impl Face {
    pub(crate) fn do_put_object_tagging(
        &self,
        who: &Who,
        input: PutObjectTaggingInput,
    ) -> S3Result<PutObjectTaggingOutput> {
        let tags = check(given(input.tagging)?, MOST)?;
        let version = self.set_tags(who, &input.bucket, &input.key, input.version_id.as_deref(), &tags)?;
        Ok(PutObjectTaggingOutput { version_id: version })
    }

    pub(crate) fn do_delete_object_tagging(
        &self,
        who: &Who,
        input: DeleteObjectTaggingInput,
    ) -> S3Result<DeleteObjectTaggingOutput> {
        let version = self.set_tags(who, &input.bucket, &input.key, input.version_id.as_deref(), &vec![])?;
        Ok(DeleteObjectTaggingOutput { version_id: version })
    }

    fn set_tags(
        &self,
        who: &Who,
        bucket: &str,
        key: &str,
        version: Option<&str>,
        tags: &Tags,
    ) -> S3Result<Option<String>> {
        let bucket = self.bucket(bucket, who, key)?;
        let row = self.revise(&bucket, key, version, |record| {
            keep(&mut record.attributes, tags);
            Ok(())
        })?;
        Ok((!row.record.null).then(|| version_id(&row.record)))
    }

    pub(crate) fn do_get_object_tagging(
        &self,
        who: &Who,
        input: GetObjectTaggingInput,
    ) -> S3Result<GetObjectTaggingOutput> {
        let bucket = self.bucket(&input.bucket, who, &input.key)?;
        let row = self.find(&bucket, &input.key, input.version_id.as_deref())?;
        let text = row.record.attributes.get(TAGS).map_or("", String::as_str);
        let tag_set = said(read(text)?);
        let version_id = (!row.record.null).then(|| version_id(&row.record));
        Ok(GetObjectTaggingOutput { tag_set, version_id })
    }
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
