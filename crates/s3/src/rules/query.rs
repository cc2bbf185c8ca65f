//! Parameters of a query, and percent encoding.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// The names and values in a query, as they are encoded.
pub(crate) fn parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').filter(|part| !part.is_empty()).map(|part| part.split_once('=').unwrap_or((part, "")))
}

/// What is encoded in a query: all but letters, digits and `-_.~`.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// What is encoded in keys of lists, as in S3: `/` and `*` stay as well.
const PLAIN_IN_KEYS: AsciiSet = PLAIN.remove(b'/').remove(b'*');

/// Encodes a name or a value in a query.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, &PLAIN).to_string()
}

/// Encodes a key in a list.
pub(crate) fn encode_key(key: &str) -> String {
    utf8_percent_encode(key, &PLAIN_IN_KEYS).to_string()
}

/// The reverse of [`encode`]; `None` for a broken escape, and for what is not UTF-8.
pub(crate) fn decode(text: &str) -> Option<Cow<'_, str>> {
    // Most have nothing to decode, and each request has several.
    if !text.contains(['%', '+']) {
        return Some(text.into());
    }
    let is_digits = |rest: &str| rest.len() >= 2 && rest.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit);
    if !text.split('%').skip(1).all(is_digits) {
        return None;
    }
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8().ok().map(|text| text.into_owned().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_distinguished() {
        let found: Vec<_> = parameters("a=1&b&c=x=y&&").collect();
        assert_eq!(found, [("a", "1"), ("b", ""), ("c", "x=y")]);
    }

    #[test]
    fn what_is_encoded_is_decoded_and_nothing_else() {
        assert_eq!(encode("a b/ü~+"), "a%20b%2F%C3%BC~%2B");
        assert_eq!(decode("a%20b+%c3%BC%2B").as_deref(), Some("a b ü+"));
        for bad in ["%", "%4", "%zz", "%+1", "a%2%41", "%ff"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    #[test]
    fn keys_are_encoded_for_xml() {
        assert_eq!(encode_key("a b/ü+\u{1}"), "a%20b/%C3%BC%2B%01");
    }
}
