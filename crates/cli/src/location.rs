//! Which object is meant.

use std::fmt;
use std::str::FromStr;

use crate::output::printable;

/// The bucket of objects that are given without one. It is made when something is put there.
pub(crate) const BUCKET: &str = "files";

/// An object, or what the keys of several begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) bucket: String,
    /// Empty: the bucket.
    pub(crate) key: String,
}

impl Location {
    /// This key, with another after it.
    pub(crate) fn join(&self, more: &str) -> Self {
        Self { bucket: self.bucket.clone(), key: format!("{}{more}", self.key) }
    }

    /// The last part of the key; of a bucket its name.
    pub(crate) fn last(&self) -> &str {
        let key = self.key.trim_end_matches('/');
        if key.is_empty() { &self.bucket } else { key.rsplit('/').next().unwrap_or(key) }
    }

    /// As a directory: what is in it has keys that begin so.
    pub(crate) fn directory(mut self) -> Self {
        if !self.key.is_empty() && !self.key.ends_with('/') {
            self.key.push('/');
        }
        self
    }

    /// Whether a URL can carry this key: it takes `.` and `..` for directories.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.key.split('/').find(|part| matches!(*part, "." | "..")) {
            Some(part) => {
                Err(format!("the key {:?} has a part {part:?}, which no URL can carry: use another", self.key))
            }
            None => Ok(()),
        }
    }
}

impl FromStr for Location {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (bucket, key) = match text.strip_prefix("s3://") {
            Some(rest) => rest.split_once('/').unwrap_or((rest, "")),
            // A variable in a script that is not set must not name everything.
            None if text.is_empty() => return Err(format!("an empty key: all of the bucket is s3://{BUCKET}")),
            None if text.starts_with("s3:") => {
                return Err(format!("{text:?} begins as an address and is none: write s3://BUCKET/KEY"));
            }
            None => (BUCKET, text),
        };
        if bucket.is_empty() && !key.is_empty() {
            return Err(format!("{text:?} names no bucket: write s3://BUCKET/KEY"));
        }
        let location = Self { bucket: bucket.to_owned(), key: key.to_owned() };
        location.check()?;
        Ok(location)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bucket.is_empty() {
            return f.write_str("s3://");
        }
        write!(f, "s3://{}/{}", printable(&self.bucket), printable(&self.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_parsed_and_printed() {
        for (text, bucket, key) in [
            ("a name", BUCKET, "a name"),
            ("s3://b/k/l", "b", "k/l"),
            ("s3://b", "b", ""),
            ("s3://b/", "b", ""),
            ("s3://", "", ""),
            ("/rooted", BUCKET, "/rooted"),
        ] {
            let location: Result<Location, String> = text.parse();
            assert_eq!(location, Ok(Location { bucket: bucket.to_owned(), key: key.to_owned() }), "{text}");
        }
        let hostile = Location { bucket: BUCKET.to_owned(), key: "a\u{1b}[31m\nä".to_owned() };
        assert_eq!(hostile.to_string(), "s3://files/a\\u{1b}[31m\\nä");
        assert!("".parse::<Location>().is_err_and(|why| why.contains("s3://files")));
        for text in ["s3:/b/k", "s3:///k", "s3:b"] {
            assert!(text.parse::<Location>().is_err_and(|why| why.contains("s3://BUCKET/KEY")), "{text}");
        }
        for text in ["..", "a/../b", "s3://b/.", "./x"] {
            assert!(text.parse::<Location>().is_err_and(|why| why.contains("URL")), "{text}");
        }
        let last = |text: &str| text.parse::<Location>().map(|location| location.last().to_owned());
        assert_eq!(last("s3://b/a/c/"), Ok("c".to_owned()));
        assert_eq!(last("s3://b"), Ok("b".to_owned()));
    }
}
