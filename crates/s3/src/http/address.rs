//! What the head of a request says of where it goes: its host and its path.

use http::header::HOST;
use http::{HeaderMap, HeaderValue, Request, Uri};
use percent_encoding::percent_decode_str;

use super::host::Domain;
use crate::rules::error::About;

/// Host and path of a request.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    uri: Uri,
    host: Option<HeaderValue>,
    copies: bool,
}

impl Address {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        Self::new(request.uri(), request.headers())
    }

    pub(crate) fn new(uri: &Uri, headers: &HeaderMap) -> Self {
        let copies = headers.contains_key("x-amz-copy-source");
        Self { uri: uri.clone(), host: headers.get(HOST).cloned(), copies }
    }

    /// The host and the port, as the client has them. With HTTP/2 they are in the address.
    pub(crate) fn host(&self) -> &str {
        let host = self.host.as_ref().and_then(|host| host.to_str().ok());
        host.or_else(|| self.uri.authority().map(http::uri::Authority::as_str)).unwrap_or_default()
    }

    /// The bucket that the request is for.
    pub(crate) fn bucket(&self, domain: Option<&Domain>) -> Option<String> {
        let by_host = domain.and_then(|domain| domain.bucket(self.host()));
        by_host.or_else(|| self.uri.path().split('/').nth(1).filter(|name| !name.is_empty()).map(str::to_owned))
    }

    /// The resource that the request is for: `/BUCKET/KEY`.
    pub(crate) fn resource(&self, domain: Option<&Domain>) -> String {
        let path = percent_decode_str(self.uri.path()).decode_utf8_lossy();
        match domain.and_then(|domain| domain.bucket(self.host())) {
            Some(bucket) => format!("/{bucket}{path}"),
            None => path.into_owned(),
        }
    }

    /// What errors say of it.
    pub(crate) fn about(&self, domain: Option<&Domain>) -> About {
        About { resource: self.resource(domain), copies: self.copies }
    }

    /// What kind of thing it is for, as errors name it.
    pub(crate) fn kind(&self, domain: Option<&Domain>) -> &'static str {
        match self.resource(domain).trim_start_matches('/').split_once('/') {
            Some((_, key)) if !key.is_empty() => "OBJECT",
            _ if self.bucket(domain).is_some() => "BUCKET",
            _ => "SERVICE",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn a_request_names_its_bucket_by_host_or_by_path() {
        let domain = Domain::new("localhost").unwrap();
        let ask = |host: &str, path: &str| {
            let address = Address::of(&Request::get(path).header(HOST, host).body(()).unwrap());
            let domain = Some(&domain);
            (address.bucket(domain).unwrap_or_default(), address.resource(domain), address.kind(domain))
        };
        let is = |bucket: &str, resource: &str, kind| (bucket.to_owned(), resource.to_owned(), kind);
        assert_eq!(ask("b.localhost:80", "/a/b%20c"), is("b", "/b/a/b c", "OBJECT"));
        assert_eq!(ask("b.localhost:80", "/"), is("b", "/b/", "BUCKET"));
        assert_eq!(ask("localhost:80", "/first/second"), is("first", "/first/second", "OBJECT"));
        assert_eq!(ask("127.0.0.1", "/first"), is("first", "/first", "BUCKET"));
        assert_eq!(ask("127.0.0.1", "/"), is("", "/", "SERVICE"));
    }
}
