//! Headers of a request that are kept with its object.

use s3s::dto::{Metadata, Timestamp, TimestampFormat};
use s3s::{S3Result, s3_error};

use super::attributes::{Attributes, META};
use super::tags;

/// Most bytes of user metadata, names and values together.
const META_BYTES: usize = 2_048;
/// Most bytes of all headers that are kept, names and values together; S3 accepts no longer head.
const KEPT_BYTES: usize = 8_192;
/// Standard headers of a request that are returned with the object.
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
        $crate::rules::headers::Headers {
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
        let standard = [
            ("cache-control", self.cache_control),
            ("content-disposition", self.content_disposition),
            ("content-encoding", encoding.filter(|text| !text.is_empty())),
            ("content-language", self.content_language),
            ("content-type", self.content_type),
            ("expires", self.expires.as_ref().and_then(http_date)),
        ];
        all.extend(standard.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        if let Some(tags) = self.tagging {
            tags::keep(&mut all, &tags::read(&tags)?);
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

/// `aws-chunked` says how the body was sent and not what the object is. The rest stays as it was given.
fn without_aws_chunked(encoding: &str) -> String {
    let kept = encoding.split(',').filter(|part| !part.trim().eq_ignore_ascii_case("aws-chunked"));
    kept.collect::<Vec<_>>().join(",").trim().to_owned()
}

fn http_date(time: &Timestamp) -> Option<String> {
    let mut text = vec![];
    time.format(TimestampFormat::HttpDate, &mut text).ok()?;
    String::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_encoding_only_aws_chunked_is_dropped() {
        for (given, kept) in [
            ("gzip", "gzip"),
            ("deflate, gzip", "deflate, gzip"),
            ("gzip,br", "gzip,br"),
            ("aws-chunked", ""),
            ("aws-chunked, gzip", "gzip"),
            ("gzip, aws-chunked", "gzip"),
            ("a, aws-chunked,b, aws-chunked", "a,b"),
        ] {
            assert_eq!(without_aws_chunked(given), kept);
        }
    }

    #[test]
    fn what_is_kept_of_headers_is_bounded() {
        let with = |length| Headers { cache_control: Some("x".repeat(length)), ..Headers::default() };
        assert!(with(KEPT_BYTES - 13).attributes().is_ok());
        assert!(with(KEPT_BYTES - 12).attributes().is_err());
    }
}
