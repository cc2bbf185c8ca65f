//! Forms that browsers send with a file.
//!
//! `s3s` holds the file of a form in memory and ignores unknown fields. So forms have a largest size, few are read at
//! once, and their fields are checked first: those before the file say who sends it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::BodyExt;
use multer::Multipart;
use ring::hmac;
use s3s::post_policy::PostPolicy;
use s3s::{Body, HttpResponse, S3Error, StdError as BoxError};
use time::OffsetDateTime;

use super::caller::of_form;
use super::drain_body::WatchedBody;
use super::sigv2;
use crate::rules::caller::Peer;
use crate::rules::error::{escaped, plain};
use crate::rules::form::FormFields;
use crate::rules::messages::message;
use crate::rules::query::encode;
use crate::state::State;
use crate::state::admission::{Admission, Allowed, FIRST_REQUEST_TIMEOUT};
use crate::state::fair_queue::{self, CHECK_INTERVAL, ClientSpeed, FairQueue, Permit};
use crate::state::refusals::Reason;

/// Bytes of a form's file.
pub(crate) const FILE_BYTES: u64 = 16 << 20;
/// Bytes of a form beside its file.
const MORE_BYTES: usize = 1 << 20;
/// Bytes of the fields before the file.
const FIELDS_BYTES: u64 = 64 << 10;
/// Forms at once.
const FORMS: usize = 8;
/// How long a form may take to arrive.
const TIME: Duration = Duration::from_secs(120);
/// Forms that wait for a permit.
const WAITING: usize = 64;

/// Fields that are understood, beside user metadata and what is to be ignored.
const FIELDS: &[&str] = &[
    "acl",
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
    "tagging",
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-object-lock-legal-hold",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-retain-until-date",
    "x-amz-signature",
    "x-amz-storage-class",
];

/// Beginnings of names of fields that are understood, and of those that are to be ignored.
const PREFIXES: &[&str] =
    &["x-amz-checksum-", "x-amz-grant-", "x-amz-meta-", "x-amz-server-side-encryption", "x-ignore-"];

/// The permits for forms.
#[derive(Clone)]
pub(crate) struct Forms(FairQueue);

/// Whether a request is a form with a file.
pub(crate) fn is_form<B>(request: &Request<B>) -> bool {
    request.method() == Method::POST && boundary(request).is_some()
}

fn boundary<B>(request: &Request<B>) -> Option<String> {
    multer::parse_boundary(request.headers().get(CONTENT_TYPE)?.to_str().ok()?).ok()
}

impl Forms {
    pub(crate) fn new() -> Self {
        Self(FairQueue::new(FORMS, WAITING))
    }

    /// The form in a request, when it is whole and understood, and its permit until it is stored. Only the fields before the
    /// file are read before the permit is given.
    pub(crate) async fn take(
        &self,
        request: Request<WatchedBody>,
        sender: Sender<'_>,
    ) -> Result<(Request<Body>, Permit), HttpResponse> {
        let client = &sender.admission.client;
        let busy = || {
            client.count(Reason::Busy);
            plain(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", "too many forms are on their way already")
        };
        let looked_at = client.forms.try_acquire().map_err(|_| busy())?;
        let boundary = boundary(&request).unwrap_or_default();
        let (mut head, mut body) = request.into_parts();
        let mut read = vec![];
        let fields = match tokio::time::timeout(FIRST_REQUEST_TIMEOUT, fields(&mut body, &boundary, &mut read)).await {
            Ok(Ok(fields)) => fields,
            Ok(Err(multer::Error::StreamSizeExceeded { limit })) => {
                let why = format!("the fields before the file may have {limit} bytes");
                return Err(plain(StatusCode::BAD_REQUEST, "MaxPostPreDataLengthExceeded", &why));
            }
            Ok(Err(_)) => {
                return Err(plain(StatusCode::BAD_REQUEST, "MalformedPOSTRequest", "this is no form with a file"));
            }
            Err(_) => {
                client.count(Reason::SlowBody);
                let why = format!("the fields before the file took more than {} s", FIRST_REQUEST_TIMEOUT.as_secs());
                return Err(plain(StatusCode::BAD_REQUEST, "RequestTimeout", &why));
            }
        };
        match &fields.refused {
            None => {}
            Some(name) if matches!(&**name, "awsaccesskeyid" | "signature") => return Err(sigv2::refusal()),
            Some(name) => {
                let why = format!("the field {name:?} of the form is not supported, or not with this value");
                return Err(plain(StatusCode::NOT_IMPLEMENTED, "NotImplemented", &escaped(&why)));
            }
        }
        if let Some(failure) = &fields.malformed {
            let status = failure.status_code().unwrap_or(StatusCode::BAD_REQUEST);
            let code = failure.code().as_str();
            return Err(plain(status, code, failure.message().or_else(|| message(code)).unwrap_or(code)));
        }
        let (user, allowed) = sender.may_send(&fields, &head.headers).await?;
        drop(looked_at);
        let permit = self.0.take(user.as_deref(), allowed).await.ok_or_else(busy)?;
        let Ok(whole) = tokio::time::timeout(TIME, rest(body, &mut read, &permit)).await else {
            return Err(plain(StatusCode::BAD_REQUEST, "RequestTimeout", "the form took too long to come"));
        };
        whole?;
        let whole = read.concat();
        head.extensions.insert(fields.asked);
        Ok((Request::from_parts(head, Body::from(Bytes::from(whole))), permit))
    }
}

/// Reads the form from its file on, while it comes fast enough.
async fn rest(mut body: WatchedBody, read: &mut Vec<Bytes>, permit: &Permit) -> Result<(), HttpResponse> {
    let refusal = |code, why: &str| plain(StatusCode::BAD_REQUEST, code, why);
    let (mut pace, mut size) = (ClientSpeed::default(), read.iter().map(Bytes::len).sum::<usize>());
    loop {
        if size > FILE_BYTES as usize + MORE_BYTES {
            return Err(refusal("EntityTooLarge", &format!("a file in a form may have {FILE_BYTES} bytes")));
        }
        let begin = Instant::now();
        let frame = tokio::time::timeout(CHECK_INTERVAL, body.frame()).await;
        let bytes = match frame {
            Ok(None) => return Ok(()),
            Ok(Some(Err(_))) => return Err(refusal("IncompleteBody", "the form broke off")),
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            Err(_) => Bytes::new(),
        };
        pace.count(begin.elapsed(), bytes.len() as u64);
        if pace.is_slow() && permit.is_wanted() {
            return Err(refusal("RequestTimeout", &fair_queue::slow()));
        }
        size += bytes.len();
        read.push(bytes);
    }
}

/// The sender of a form.
pub(crate) struct Sender<'a> {
    pub(crate) state: &'a State,
    pub(crate) admission: &'a Admission,
    pub(crate) peer: Peer,
    pub(crate) bucket: Option<String>,
}

impl Sender<'_> {
    /// The user who signed the form, or what allows it without a signature. Refuses a wrong signature, and a missing one
    /// where the bucket's policy does not allow it. Whether the form fits its own policy is checked later.
    async fn may_send(
        &self,
        fields: &Fields,
        headers: &HeaderMap,
    ) -> Result<(Option<String>, Option<Arc<Allowed>>), HttpResponse> {
        let refusal = |code, why| plain(StatusCode::FORBIDDEN, code, why);
        let Some(signature) = &fields.signature else {
            let (caller, bucket) = (of_form(self.peer, headers), self.bucket.clone().unwrap_or_default());
            let check = move |state: &State| state.allow_some_key(&state.bucket_named(&bucket)?, &caller);
            return match self.state.blocking(check).await {
                Ok(()) => Ok((None, Some(self.admission.allow()))),
                Err(failure) => {
                    let status = failure.status_code().unwrap_or(StatusCode::FORBIDDEN);
                    let why = failure.message().unwrap_or("Access Denied");
                    Err(plain(status, failure.code().as_str(), why))
                }
            };
        };
        let policy = fields.policy.as_deref().unwrap_or_default();
        let Ok(read) = PostPolicy::from_base64(policy) else {
            return Err(plain(StatusCode::BAD_REQUEST, "InvalidPolicyDocument", "the form's policy cannot be read"));
        };
        if OffsetDateTime::from(read.expiration) <= OffsetDateTime::now_utc() {
            return Err(refusal("AccessDenied", "Request has expired"));
        }
        let credential = fields.credential.as_deref().unwrap_or_default();
        let scope: Vec<&str> = credential.rsplitn(5, '/').collect();
        let [end, service, region, date, key] = scope[..] else {
            return Err(plain(StatusCode::BAD_REQUEST, "InvalidRequest", "invalid field: x-amz-credential"));
        };
        let Some(user) = self.state.users.find(key) else {
            return Err(refusal("InvalidAccessKeyId", "there is no such access key"));
        };
        let secret = format!("AWS4{}", user.secret_key).into_bytes();
        let keyed = |secret: &[u8]| hmac::Key::new(hmac::HMAC_SHA256, secret);
        let next = |key: hmac::Key, part: &str| keyed(hmac::sign(&key, part.as_bytes()).as_ref());
        let key = [date, region, service, end].into_iter().fold(keyed(&secret), next);
        let requested = hex_simd::decode_to_vec(signature).unwrap_or_default();
        if hmac::verify(&key, policy.as_bytes(), &requested).is_err() {
            return Err(refusal("SignatureDoesNotMatch", "the form's signature is not that of its policy"));
        }
        self.admission.sign();
        Ok((Some(user.name), None))
    }
}

/// An answer to a form with these fields. `s3s` has put the key into it as the form has it.
pub(crate) fn answered(mut answer: HttpResponse, fields: &FormFields) -> HttpResponse {
    if let Some(location) = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok()) {
        let location = HeaderValue::from_str(&fields.in_answer(location, encode));
        answer.headers_mut().extend(location.ok().map(|value| (LOCATION, value)));
    }
    if answer.status() == StatusCode::CREATED {
        let text = answer.body().bytes().unwrap_or_default();
        let text = fields.in_answer(&String::from_utf8_lossy(&text), escaped);
        answer.headers_mut().remove(CONTENT_LENGTH);
        *answer.body_mut() = Body::from(text);
    }
    broken_policy(answer)
}

/// What S3 says to a form that is not as its policy demands. `s3s` has the code of a policy that cannot be read for it, so
/// that only the text distinguishes them.
fn broken_policy(answer: HttpResponse) -> HttpResponse {
    let text = answer.body().bytes().unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let breaks = ["Policy condition ", "Bucket in form field ", " does not match policy"];
    if !text.contains("<Code>InvalidPolicyDocument</Code>") || !breaks.iter().any(|words| text.contains(words)) {
        return answer;
    }
    plain(StatusCode::FORBIDDEN, "AccessDenied", "Invalid according to Policy: Policy Condition failed")
}

/// What the fields of a form say before its file.
#[derive(Debug, Default)]
struct Fields {
    /// The first field that would mean something which is not done here.
    refused: Option<String>,
    /// Why a field cannot be read.
    malformed: Option<S3Error>,
    asked: FormFields,
    policy: Option<String>,
    credential: Option<String>,
    signature: Option<String>,
}

/// The fields before the file. What is read of the body for them is kept in `read`.
async fn fields<B>(body: &mut B, boundary: &str, read: &mut Vec<Bytes>) -> multer::Result<Fields>
where
    B: hyper::body::Body<Data = Bytes, Error = BoxError> + Unpin + Send,
{
    let mut size = 0;
    let stream = futures_util::stream::poll_fn(|context| {
        if size > FIELDS_BYTES {
            return Poll::Ready(Some(Err(multer::Error::StreamSizeExceeded { limit: FIELDS_BYTES })));
        }
        let frame = ready!(Pin::new(&mut *body).poll_frame(context));
        let bytes = frame.map(|frame| frame.map(|frame| frame.into_data().unwrap_or_default()));
        if let Some(Ok(bytes)) = &bytes {
            size += bytes.len() as u64;
            read.push(bytes.clone());
        }
        Poll::Ready(bytes.map(|bytes| bytes.map_err(multer::Error::StreamReadFailed)))
    });
    let mut form = Multipart::new(stream, boundary);
    let mut fields = Fields::default();
    while let Some(field) = form.next_field().await? {
        let name = field.name().unwrap_or_default().to_ascii_lowercase();
        if name == "file" {
            fields.asked.set_filename(field.file_name().unwrap_or_default());
            // What comes after it counts for nothing.
            break;
        }
        let known = FIELDS.contains(&name.as_str()) || PREFIXES.iter().any(|begin| name.starts_with(begin));
        let text = field.text().await?;
        if !known {
            fields.refused = Some(name);
            break;
        }
        if let Err(failure) = fields.asked.note(&name, &text) {
            fields.malformed = Some(failure);
            break;
        }
        match name.as_str() {
            "policy" => fields.policy = fields.policy.or(Some(text)),
            "x-amz-credential" => fields.credential = fields.credential.or(Some(text)),
            "x-amz-signature" => fields.signature = fields.signature.or(Some(text)),
            _ => {}
        }
    }
    Ok(fields)
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
        parse(Bytes::from(text)).map(|fields| fields.refused)
    }

    fn parse(form: Bytes) -> multer::Result<Fields> {
        let mut body = http_body_util::Full::new(form).map_err(|never| match never {}).boxed();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(fields(&mut body, "b", &mut vec![]))
    }

    #[test]
    fn what_a_form_cannot_ask_for_is_refused() {
        let good =
            [("Key", "${filename}"), ("ACL", "private"), ("x-amz-meta-a", "b"), ("file", "x"), ("more", "after it")];
        assert_eq!(refused(&good).unwrap(), None);
        for bad in [("x-amz-website-redirect-location", "/"), ("content-language", "de"), ("more", "")] {
            assert_eq!(refused(&[("policy", "x"), bad, ("file", "x")]).unwrap().as_deref(), Some(bad.0));
        }
        assert!(parse(Bytes::from_static(b"no form")).is_err());
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
