//! User metadata beyond ASCII. `s3s` reads headers as UTF-8, decodes what is encoded by RFC 2047, and encodes it so in
//! answers. What is not UTF-8 is ISO-8859-1, as S3 and HTTP have it: it becomes UTF-8 before anybody looks, also for the
//! signature, which clients make over their text in UTF-8.

use http::{HeaderMap, HeaderValue};

use crate::rules::attributes::META;

/// Makes the values of user metadata UTF-8.
pub(crate) fn as_utf8(headers: &mut HeaderMap) {
    for (name, value) in headers.iter_mut() {
        if name.as_str().starts_with(META) && std::str::from_utf8(value.as_bytes()).is_err() {
            let text: String = value.as_bytes().iter().map(|byte| char::from(*byte)).collect();
            if let Ok(text) = HeaderValue::from_bytes(text.as_bytes()) {
                *value = text;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn only_what_is_not_utf_8_is_changed() {
        let mut headers = HeaderMap::new();
        let given: [(&'static str, &[u8]); 4] = [
            ("x-amz-meta-plain", b"a"),
            ("x-amz-meta-utf", "\u{e9}".as_bytes()),
            ("x-amz-meta-latin", b"\xe9"),
            ("x-other", b"\xe9"),
        ];
        for (name, value) in given {
            headers.insert(name, HeaderValue::from_bytes(value).unwrap());
        }
        as_utf8(&mut headers);
        let value = |name: &str| headers.get(name).unwrap().as_bytes();
        assert_eq!((value("x-amz-meta-plain"), value("x-other")), (&b"a"[..], &b"\xe9"[..]));
        assert_eq!((value("x-amz-meta-utf"), value("x-amz-meta-latin")), ("\u{e9}".as_bytes(), "\u{e9}".as_bytes()));
    }
}
