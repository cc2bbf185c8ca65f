//! Forms that browsers send with a file. `s3s` holds a form's file in memory and passes over fields that it does not know,
//! so that forms come few at a time, up to a size, and are looked through before.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use multer::Multipart;
use s3s::{Body, HttpResponse, StdError as BoxError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::plain;
use crate::version2;

/// Bytes of a form's file.
pub(crate) const FILE_BYTES: u64 = 16 << 20;
/// Bytes of a form beside its file.
const MORE_BYTES: usize = 1 << 20;
/// Forms at once.
const FORMS: usize = 8;
/// How long a form may take to come.
const TIME: Duration = Duration::from_secs(120);
/// How long a form waits for its turn.
const PATIENCE: Duration = Duration::from_secs(20);

/// Fields that are understood, beside user metadata and what is to be ignored.
const FIELDS: &[&str] = &[
    "bucket",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-type",
    "expires",
    "file",
    "key",
    "policy",
    "redirect",
    "submit",
    "success_action_redirect",
    "success_action_status",
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-object-lock-legal-hold",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-retain-until-date",
    "x-amz-signature",
];

/// Fields that ask for nothing when they have this value.
const IDLE: &[(&str, &str)] = &[("acl", "private"), ("x-amz-acl", "private"), ("x-amz-storage-class", "STANDARD")];

/// A form's turn.
#[derive(Clone)]
pub(crate) struct Forms(Arc<Semaphore>);

/// Whether a request is a form with a file.
pub(crate) fn is_form<B>(request: &Request<B>) -> bool {
    request.method() == Method::POST && boundary(request).is_some()
}

fn boundary<B>(request: &Request<B>) -> Option<String> {
    multer::parse_boundary(request.headers().get(CONTENT_TYPE)?.to_str().ok()?).ok()
}

impl Forms {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(FORMS)))
    }

    /// The form in a request when it is whole and understood, and its turn, which ends when it is stored.
    pub(crate) async fn take<B>(
        &self,
        request: Request<B>,
    ) -> Result<(Request<Body>, OwnedSemaphorePermit), HttpResponse>
    where
        B: hyper::body::Body,
        B::Error: Into<BoxError>,
    {
        let turn = tokio::time::timeout(PATIENCE, Arc::clone(&self.0).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            let why = "too many forms are on their way already";
            return Err(plain(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", why));
        };
        let boundary = boundary(&request).unwrap_or_default();
        let (head, body) = request.into_parts();
        let whole = Limited::new(body, FILE_BYTES as usize + MORE_BYTES).collect();
        let bytes = match tokio::time::timeout(TIME, whole).await {
            Ok(Ok(whole)) => whole.to_bytes(),
            Ok(Err(broken)) if broken.is::<http_body_util::LengthLimitError>() => {
                let why = format!("a file in a form may have {FILE_BYTES} bytes");
                return Err(plain(StatusCode::BAD_REQUEST, "EntityTooLarge", &why));
            }
            Ok(Err(_)) => return Err(plain(StatusCode::BAD_REQUEST, "IncompleteBody", "the form broke off")),
            Err(_) => return Err(plain(StatusCode::BAD_REQUEST, "RequestTimeout", "the form took too long to come")),
        };
        match refused_field(bytes.clone(), &boundary).await {
            Ok(None) => Ok((Request::from_parts(head, Body::from(bytes)), turn)),
            Ok(Some(name)) if matches!(&*name, "awsaccesskeyid" | "signature") => Err(version2::refusal()),
            Ok(Some(name)) => {
                let why = format!("the field {name:?} of the form is not supported, or not with this value");
                Err(plain(StatusCode::NOT_IMPLEMENTED, "NotImplemented", &escaped(&why)))
            }
            Err(_) => Err(plain(StatusCode::BAD_REQUEST, "MalformedPOSTRequest", "this is no form with a file")),
        }
    }
}

/// What S3 says to a form that is not as its policy demands. `s3s` has the code of a policy that cannot be read for it, so
/// that only the words tell them apart.
pub(crate) fn broken_policy(answer: HttpResponse) -> HttpResponse {
    let text = answer.body().bytes().unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let breaks = ["Policy condition ", "Bucket in form field ", " does not match policy"];
    if !text.contains("<Code>InvalidPolicyDocument</Code>") || !breaks.iter().any(|words| text.contains(words)) {
        return answer;
    }
    plain(StatusCode::FORBIDDEN, "AccessDenied", "Invalid according to Policy: Policy Condition failed")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// The first field that would mean something which is not done here.
async fn refused_field(form: Bytes, boundary: &str) -> multer::Result<Option<String>> {
    let stream = futures_util::stream::iter([Ok::<_, Infallible>(form)]);
    let mut form = Multipart::new(stream, boundary);
    while let Some(field) = form.next_field().await? {
        let name = field.name().unwrap_or_default().to_ascii_lowercase();
        if name == "file" {
            // What comes after it counts for nothing.
            return Ok(None);
        }
        let known = FIELDS.contains(&name.as_str()) || name.starts_with("x-amz-meta-") || name.starts_with("x-ignore-");
        let idle = IDLE.iter().find(|(idle, _)| *idle == name).map(|(_, value)| *value);
        // A name for the file that the browser chooses is not put into the key.
        let text = field.text().await?;
        let refused = match idle {
            Some(value) => text != value,
            None => !known || name == "key" && text.contains("${filename}"),
        };
        if refused {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    fn refused(fields: &[(&str, &str)]) -> multer::Result<Option<String>> {
        let part = |(name, value): &(&str, &str)| {
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        let text: String = fields.iter().map(part).collect::<String>() + "--b--\r\n";
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(refused_field(Bytes::from(text), "b"))
    }

    #[test]
    fn what_a_form_cannot_ask_for_is_refused() {
        let good = [("Key", "k"), ("acl", "private"), ("x-amz-meta-a", "b"), ("file", "x"), ("tagging", "after it")];
        assert_eq!(refused(&good).unwrap(), None);
        for bad in
            [("acl", "public-read"), ("tagging", "<Tagging/>"), ("key", "a/${filename}"), ("x-amz-checksum-crc32", "")]
        {
            assert_eq!(refused(&[("policy", "x"), bad, ("file", "x")]).unwrap().as_deref(), Some(bad.0));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(runtime.block_on(refused_field(Bytes::from_static(b"no form"), "b")).is_err());
    }

    #[test]
    fn a_form_is_known_by_its_type() {
        let ask = |method: &str, kind: &str| {
            is_form(&Request::builder().method(method).uri("/b").header(CONTENT_TYPE, kind).body(()).unwrap())
        };
        assert!(ask("POST", "multipart/form-data; boundary=x"));
        assert!(!ask("PUT", "multipart/form-data; boundary=x") && !ask("POST", "text/xml"));
    }
}
