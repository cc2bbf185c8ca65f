//! Ranges that are not valid. S3 ignores them and answers with the whole object.
//!
//! `s3s` refuses them once it has verified the signature, which may cover the header. So a request with such a range has a
//! route of its own: when its signature is good, the request is served again without the header, for the user who was found.

use http::{Extensions, HeaderMap, Method, Uri, header};
use s3s::auth::Credentials;
use s3s::dto::Range;
use s3s::route::S3Route;
use s3s::service::S3Service;
use s3s::{Body, S3Request, S3Response, S3Result, s3_error};

/// The credentials of the original request, whose signature is good. The request that is served again has no signature;
/// clients cannot set a request's extensions.
#[derive(Clone)]
pub(crate) struct Verified(pub(crate) Option<Credentials>);

/// The route that serves the request without its range.
pub(crate) struct WithoutRange {
    pub(crate) service: S3Service,
}

#[async_trait::async_trait]
impl S3Route for WithoutRange {
    fn is_match(&self, method: &Method, _: &Uri, headers: &HeaderMap, _: &mut Extensions) -> bool {
        let read = *method == Method::GET || *method == Method::HEAD;
        let range = headers.get(header::RANGE);
        read && range.is_some_and(|range| range.to_str().map_or(true, |text| Range::parse(text).is_err()))
    }

    /// Access is checked when it is served again.
    async fn check_access(&self, _: &mut S3Request<Body>) -> S3Result<()> {
        Ok(())
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let uri = unsigned(&request.uri)?;
        let mut again = http::Request::new(request.input);
        *again.method_mut() = request.method;
        *again.uri_mut() = uri;
        *again.headers_mut() = request.headers;
        again.headers_mut().remove(header::RANGE);
        again.headers_mut().remove(header::AUTHORIZATION);
        *again.extensions_mut() = request.extensions;
        again.extensions_mut().insert(Verified(request.credentials));
        let answer = self.service.call(again).await.map_err(|failure| s3_error!(InternalError, "{failure:?}"))?;
        let (head, body) = answer.into_parts();
        let mut answer = S3Response::with_status(body, head.status);
        answer.headers = head.headers;
        answer.extensions = head.extensions;
        Ok(answer)
    }
}

/// The address without its signature.
fn unsigned(uri: &Uri) -> S3Result<Uri> {
    let Some(query) = uri.query() else { return Ok(uri.clone()) };
    let kept: Vec<&str> = query.split('&').filter(|part| !part.starts_with("X-Amz-Signature=")).collect();
    let mut parts = uri.clone().into_parts();
    let path = if kept.is_empty() { uri.path().to_owned() } else { format!("{}?{}", uri.path(), kept.join("&")) };
    parts.path_and_query = Some(path.parse().map_err(|_| s3_error!(InvalidURI))?);
    Uri::from_parts(parts).map_err(|_| s3_error!(InvalidURI))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn an_address_loses_its_signature_and_nothing_else() {
        let without = |text: &str| unsigned(&text.parse().unwrap()).unwrap().to_string();
        assert_eq!(without("/b/k%20?versionId=1&X-Amz-Signature=ab&X-Amz-Date=c"), "/b/k%20?versionId=1&X-Amz-Date=c");
        assert_eq!(without("http://h:1/b?X-Amz-Signature=ab"), "http://h:1/b");
        assert_eq!(without("/b/k"), "/b/k");
    }
}
