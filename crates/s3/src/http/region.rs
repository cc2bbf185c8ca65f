//! The region and the service in a signature. Any name of a region is accepted. `s3cmd` begins with "US", which is none, and
//! learns the region from the answer. The service must be S3: `s3s` accepts others, and reads their bodies before it checks
//! the signature.

use http::{HeaderMap, StatusCode, header};
use s3s::HttpResponse;

use crate::rules::REGION;
use crate::rules::error::with_element;

/// The answer to a request whose signature names no region or another service; `None` when it is in order, or signed in
/// another way.
pub(crate) fn wrong(headers: &HeaderMap) -> Option<HttpResponse> {
    let signature = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    // Credential=KEY/DATE/REGION/s3/aws4_request
    let mut scope = signature.split_once("Credential=")?.1.split(',').next()?.rsplit('/').skip(1);
    let (service, region) = (scope.next()?, scope.next()?);
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let why = if region.is_empty() || !region.bytes().all(good) {
        format!("The authorization header names no region; expected {REGION}")
    } else if service != "s3" {
        "The authorization header names another service; expected s3".to_owned()
    } else {
        return None;
    };
    let region = format!("<Region>{REGION}</Region>");
    Some(with_element(StatusCode::BAD_REQUEST, "AuthorizationHeaderMalformed", &why, &region))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_region_is_told_one() {
        let answer_to = |scope: &str| {
            let text = format!("AWS4-HMAC-SHA256 Credential=KEY/20260101/{scope}/aws4_request, SignedHeaders=host");
            wrong(&HeaderMap::from_iter([(header::AUTHORIZATION, text.parse().expect("a header"))]))
        };
        assert_eq!(answer_to("US/s3").map(|answer| answer.status()), Some(StatusCode::BAD_REQUEST));
        assert!(
            answer_to("/s3").is_some()
                && answer_to("eu-west-1/s3").is_none()
                && answer_to("eu-west-1/sts").is_some()
                && wrong(&HeaderMap::new()).is_none()
        );
    }
}
