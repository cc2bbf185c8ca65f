//! What a signature has to cover, as in S3: the host, and every header whose name begins with `x-amz-`. `s3s` verifies
//! only what is listed as signed. Operations read every header, so that the holder of a signed address could ask for
//! more with it.

use std::borrow::Cow;

use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use hyper::body::Body;
use s3s::HttpResponse;

use crate::rules::error::{escaped, plain, with_element};
use crate::rules::query::{decode, parameters};

/// The longest validity of a signed address, in seconds, as in S3.
const LONGEST: u64 = 604_800;
/// What a signed address has beside its signature.
const PARAMETERS: [&str; 5] =
    ["X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-SignedHeaders", "X-Amz-Expires"];
/// The header with the hash of the signed body.
const PAYLOAD: &str = "x-amz-content-sha256";
/// The SHA-256 of no bytes.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The answer to a request whose signature leaves out what it has to cover; `None` when it is in order, as far as can be
/// seen without the key, or not signed.
pub(crate) fn refusal<B: Body>(request: &Request<B>) -> Option<HttpResponse> {
    let (headers, query) = (request.headers(), request.uri().query().unwrap_or_default());
    let in_query = values_of(query, "X-Amz-Signature").next().is_some();
    let in_headers = headers.get_all(header::AUTHORIZATION).iter().count();
    let refuse = |code, why| Some(plain(StatusCode::BAD_REQUEST, code, why));
    let listed = match (in_headers, in_query) {
        (0, false) => return None,
        (0, true) => match in_address(query) {
            Ok(listed) => listed,
            Err((status, code, why)) => return Some(plain(status, code, why)),
        },
        (1, false) => match in_header(headers) {
            Some(listed) => listed.into(),
            None => return Some(unreadable(headers)),
        },
        _ => {
            let why = "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string \
                       parameter or the Authorization header should be specified";
            return refuse("InvalidArgument", why);
        }
    };
    let listed: Vec<&str> = listed.split(';').collect();
    let missing = not_covered(headers, &listed, in_query);
    if !missing.is_empty() {
        let element = format!("<HeadersNotSigned>{}</HeadersNotSigned>", escaped(&missing.join(", ")));
        let why = "There were headers present in the request which were not signed";
        return Some(with_element(StatusCode::FORBIDDEN, "AccessDenied", why, &element));
    }
    let payload = headers.get(PAYLOAD).map_or(EMPTY.as_bytes(), |payload| payload.as_bytes());
    // A missing body is not read, so that nothing else would notice that another one was signed.
    if payload.len() == EMPTY.len() && payload != EMPTY.as_bytes() && request.body().is_end_stream() {
        return refuse("XAmzContentSHA256Mismatch", "the request has no body, and x-amz-content-sha256 is that of one");
    }
    None
}

/// The list of signed headers in a signed address, which must be good for a sensible time; or status, code and message.
fn in_address(query: &str) -> Result<Cow<'_, str>, (StatusCode, &'static str, &'static str)> {
    let refusal = |why| Err((StatusCode::BAD_REQUEST, "AuthorizationQueryParametersError", why));
    if PARAMETERS.iter().any(|name| values_of(query, name).next().is_none()) {
        return refusal(
            "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, \
             X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.",
        );
    }
    let expires = values_of(query, "X-Amz-Expires").next().unwrap_or_default();
    let digits = expires.strip_prefix('-').unwrap_or(&expires);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return refusal("X-Amz-Expires should be a number");
    }
    match expires.parse() {
        _ if digits.len() < expires.len() => refusal("X-Amz-Expires must be non-negative"),
        // Also when its date is a little later than the time here.
        Ok(0) => Err((StatusCode::FORBIDDEN, "AccessDenied", "Request has expired")),
        Ok(1..=LONGEST) => Ok(values_of(query, "X-Amz-SignedHeaders").next().unwrap_or_default()),
        Ok(_) | Err(_) => refusal(
            "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less than \
             604800 seconds",
        ),
    }
}

/// The answer to an authorization header that cannot be read.
fn unreadable(headers: &HeaderMap) -> HttpResponse {
    let text = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    if text.is_empty() {
        plain(StatusCode::FORBIDDEN, "AccessDenied", "Access Denied")
    } else if text.starts_with(b"AWS4-HMAC-SHA256") {
        let why = "The authorization header is malformed; it needs Credential, SignedHeaders and Signature.";
        plain(StatusCode::BAD_REQUEST, "AuthorizationHeaderMalformed", why)
    } else {
        plain(StatusCode::BAD_REQUEST, "InvalidArgument", "Unsupported Authorization Type")
    }
}

/// The values of a parameter, whose name may be encoded.
fn values_of<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
    let requested =
        parameters(query).filter(move |(requested, _)| decode(requested).is_some_and(|requested| requested == name));
    requested.map(|(_, value)| decode(value).unwrap_or_default())
}

/// The list of signed headers, where `s3s` takes it from: `AWS4-HMAC-SHA256 Credential=..., SignedHeaders=...,
/// Signature=...`.
fn in_header(headers: &HeaderMap) -> Option<&str> {
    let fields = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("AWS4-HMAC-SHA256 ")?;
    fields.split(',').nth(1)?.trim_start().strip_prefix("SignedHeaders=")
}

/// Headers that have to be covered and are not. A signed address may leave open which body comes with it: the header then
/// only makes the request stricter.
fn not_covered<'a>(headers: &'a HeaderMap, listed: &[&str], in_query: bool) -> Vec<&'a str> {
    let asks = |name: &str| name.starts_with("x-amz-") && !(in_query && name == PAYLOAD);
    // A value that is not UTF-8 is not signed, whatever the list says.
    let covers = |name: &str| {
        listed.contains(&name)
            && headers.get_all(name).iter().all(|value| std::str::from_utf8(value.as_bytes()).is_ok())
    };
    let names = headers.keys().map(header::HeaderName::as_str).filter(|name| asks(name) && !covers(name));
    names.chain((!listed.contains(&"host")).then_some("host")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use http_body_util::Empty;

    use super::*;

    const KEY: &str = "AWS4-HMAC-SHA256 Credential=KEY/20260101/us-east-1/s3/aws4_request";

    const ADDRESS: &str = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=x&X-Amz-Date=x";

    fn code(uri: &str, headers: &[(&'static str, &str)]) -> Option<String> {
        let mut request = Request::get(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = refusal(&request.body(Empty::<bytes::Bytes>::new()).unwrap())?;
        let text = String::from_utf8(answer.body().bytes().unwrap().to_vec()).unwrap();
        let element = |name| Some(text.split_once(&format!("<{name}>"))?.1.split_once('<')?.0.to_owned());
        element("HeadersNotSigned").or_else(|| element("Code"))
    }

    #[test]
    fn every_header_that_asks_for_something_is_covered() {
        let header = |list: &str, more: &[(&'static str, &str)]| {
            let signature = format!("{KEY}, SignedHeaders={list}, Signature=00");
            code("/b/k", &[&[("authorization", &*signature), ("host", "h"), ("range", "bytes=0-1")], more].concat())
        };
        assert_eq!(header("host", &[]), None);
        assert_eq!(header("host;x-amz-date", &[("x-amz-date", "1")]), None);
        assert_eq!(header("x-amz-date", &[("x-amz-date", "1")]).unwrap(), "host");
        assert_eq!(header("host", &[("x-amz-acl", "private")]).unwrap(), "x-amz-acl");
        assert_eq!(header("host;x-amz-acl", &[("x-amz-acl", "private"), (PAYLOAD, EMPTY)]).unwrap(), PAYLOAD);
        assert_eq!(header("host", &[("authorization", "other")]).unwrap(), "InvalidArgument");
        for (bad, expected) in [
            (&*format!("{KEY}, Signature=00"), "AuthorizationHeaderMalformed"),
            ("AWS4-HMAC-SHA256,SignedHeaders=host Credential=x", "AuthorizationHeaderMalformed"),
            ("Basic eDp5", "InvalidArgument"),
            ("", "AccessDenied"),
        ] {
            assert_eq!(code("/b/k", &[("authorization", bad), ("host", "h")]).unwrap(), expected);
        }
        assert_eq!(code("/b/k", &[("host", "h"), ("x-amz-acl", "private")]), None, "it is not signed");
    }

    #[test]
    fn of_a_signed_address_all_but_the_body_is_covered() {
        let with = |list: &str, more: &[(&'static str, &str)]| {
            code(&format!("/b/k?X-Amz-%53ignature=0&X-Amz-Expires=9&{ADDRESS}&X-Amz-SignedHeaders={list}"), more)
        };
        assert_eq!(with("host", &[("host", "h")]), None);
        assert_eq!(with("host", &[(PAYLOAD, EMPTY)]), None);
        assert_eq!(with("host", &[(PAYLOAD, &EMPTY.replace('e', "f"))]).unwrap(), "XAmzContentSHA256Mismatch");
        assert_eq!(with("host%3Bx-amz-meta-a", &[("x-amz-meta-a", "1")]), None);
        assert_eq!(with("host", &[("x-amz-meta-a", "1")]).unwrap(), "x-amz-meta-a");
        assert_eq!(with("", &[]).unwrap(), "host");
        assert_eq!(with("host", &[("authorization", KEY)]).unwrap(), "InvalidArgument");
        let expires = |seconds: &str| {
            let uri = format!("/b/k?X-Amz-Signature=0&{ADDRESS}&X-Amz-SignedHeaders=host&X-Amz-Expires={seconds}");
            code(&uri, &[("host", "h")])
        };
        for seconds in ["", "x", "-", "-1", "%2B1", "604801", "99999999999999999999"] {
            assert_eq!(expires(seconds).unwrap(), "AuthorizationQueryParametersError", "{seconds}");
        }
        assert_eq!(expires("0").unwrap(), "AccessDenied");
        assert_eq!((expires("1"), expires("604800")), (None, None));
        let without = "/b/k?X-Amz-Signature=0&X-Amz-SignedHeaders=host&X-Amz-Expires=9";
        assert_eq!(code(without, &[("host", "h")]).unwrap(), "AuthorizationQueryParametersError");
    }
}
