//! What is kept of an object beside its bytes: headers, user metadata and checksums, by the names they have on the wire.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use object::record::Record;
use s3s::dto::{ETag, Metadata, Timestamp, TimestampFormat};
use s3s::{S3Result, s3_error};

use crate::tagging;

/// What an object or a bucket has.
pub(crate) type Attributes = BTreeMap<String, String>;

/// User metadata is kept under this and its own name.
const META: &str = "x-amz-meta-";
/// Most bytes of user metadata, names and values together.
const META_BYTES: usize = 2_048;
/// Most bytes of all that is kept of a request's headers, names and values together; S3 takes no longer head.
const KEPT_BYTES: usize = 8_192;
/// How an object's bytes were summed up: `FULL_OBJECT` or `COMPOSITE`.
pub(crate) const CHECKSUM_TYPE: &str = "x-amz-checksum-type";

/// Standard headers of a request that are given back with the object.
#[derive(Debug, Default)]
pub(crate) struct Headers {
    pub(crate) cache_control: Option<String>,
    pub(crate) content_disposition: Option<String>,
    pub(crate) content_encoding: Option<String>,
    pub(crate) content_language: Option<String>,
    pub(crate) content_type: Option<String>,
    pub(crate) expires: Option<Timestamp>,
    pub(crate) metadata: Option<Metadata>,
    pub(crate) tagging: Option<String>,
}

/// The [`Headers`] of a request: every kind of request has these fields of its own.
macro_rules! headers {
    ($input:expr, $tagging:expr) => {
        $crate::attributes::Headers {
            cache_control: $input.cache_control,
            content_disposition: $input.content_disposition,
            content_encoding: $input.content_encoding,
            content_language: $input.content_language,
            content_type: $input.content_type,
            expires: $input.expires,
            metadata: $input.metadata,
            tagging: $tagging,
        }
    };
}
pub(crate) use headers;

impl Headers {
    /// As attributes.
    pub(crate) fn attributes(self) -> S3Result<Attributes> {
        let mut all = Attributes::new();
        let encoding = self.content_encoding.map(|text| without_aws_chunked(&text));
        let named = [
            ("cache-control", self.cache_control),
            ("content-disposition", self.content_disposition),
            ("content-encoding", encoding.filter(|text| !text.is_empty())),
            ("content-language", self.content_language),
            ("content-type", self.content_type),
            ("expires", self.expires.as_ref().and_then(http_date)),
        ];
        all.extend(named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        if let Some(tags) = self.tagging {
            tagging::keep(&mut all, &tagging::read(&tags)?);
        }
        let mut bytes = 0;
        for (name, value) in self.metadata.into_iter().flatten() {
            bytes += name.len() + value.len();
            all.insert(format!("{META}{name}"), value);
        }
        if bytes > META_BYTES {
            return Err(s3_error!(MetadataTooLarge, "user metadata may have {META_BYTES} bytes, these are {bytes}"));
        }
        let kept: usize = all.iter().map(|(name, value)| name.len() + value.len()).sum();
        if kept > KEPT_BYTES {
            return Err(s3_error!(
                MetadataTooLarge,
                "what is kept of the headers may have {KEPT_BYTES} bytes, this has {kept}"
            ));
        }
        Ok(all)
    }
}

/// `aws-chunked` says how the body was sent and not what the object is.
fn without_aws_chunked(encoding: &str) -> String {
    let kept = encoding.split(',').map(str::trim).filter(|part| *part != "aws-chunked" && !part.is_empty());
    kept.collect::<Vec<_>>().join(",")
}

fn http_date(time: &Timestamp) -> Option<String> {
    let mut text = vec![];
    time.format(TimestampFormat::HttpDate, &mut text).ok()?;
    String::from_utf8(text).ok()
}

/// An attribute of a version.
pub(crate) fn get(record: &Record, name: &str) -> Option<String> {
    record.attributes.get(name).cloned()
}

/// The type of the content; S3 has a default.
pub(crate) fn content_type(record: &Record) -> Option<String> {
    Some(get(record, "content-type").unwrap_or_else(|| "binary/octet-stream".to_owned()))
}

/// When the object expires for caches.
pub(crate) fn expires(record: &Record) -> Option<Timestamp> {
    Timestamp::parse(TimestampFormat::HttpDate, record.attributes.get("expires")?).ok()
}

/// User metadata by its own names.
pub(crate) fn metadata(record: &Record) -> Option<Metadata> {
    let found: Metadata = record
        .attributes
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(META)?.to_owned(), value.clone())))
        .collect();
    (!found.is_empty()).then_some(found)
}

/// The entity tag of a version.
pub(crate) fn etag(record: &Record) -> Option<ETag> {
    Some(ETag::Strong(record.etag.clone()))
}

/// When a version was put. S3 counts whole seconds where it compares, and so do HTTP's dates.
pub(crate) fn modified(record: &Record) -> Timestamp {
    time(record.version.micros())
}

/// A time as S3 has it.
pub(crate) fn time(micros: u64) -> Timestamp {
    Timestamp::from(UNIX_EPOCH + Duration::from_micros(micros))
}

/// The id of a version as clients see it.
pub(crate) fn version_id(record: &Record) -> String {
    if record.null { "null".to_owned() } else { record.version.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_headers_is_bounded() {
        let with = |length| Headers { cache_control: Some("x".repeat(length)), ..Headers::default() };
        assert!(with(KEPT_BYTES - 13).attributes().is_ok());
        assert!(with(KEPT_BYTES - 12).attributes().is_err());
    }
}
