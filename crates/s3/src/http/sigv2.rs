//! Signatures of version 2, which are refused: they cover neither the body nor most headers.

use http::{HeaderMap, StatusCode, Uri, header};
use s3s::HttpResponse;

use crate::rules::error::plain;
use crate::rules::query::parameters;

/// The message of S3 where only signatures of version 4 are accepted.
const WHY: &str = "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.";

/// The answer to a request that is signed so.
pub(crate) fn refusal() -> HttpResponse {
    plain(StatusCode::BAD_REQUEST, "InvalidRequest", WHY)
}

/// Whether a request is signed so, in its header or in its address.
pub(crate) fn is_signed(headers: &HeaderMap, uri: &Uri) -> bool {
    let signed = |value: &[u8]| value.starts_with(b"AWS ") && value.contains(&b':');
    let header = headers.get(header::AUTHORIZATION).is_some_and(|value| signed(value.as_bytes()));
    header || parameters(uri.query().unwrap_or_default()).any(|(name, _)| name == "AWSAccessKeyId")
}
