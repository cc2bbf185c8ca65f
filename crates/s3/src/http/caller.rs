//! Finds the caller of a request.

use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, header};
use s3s::access::S3AccessContext;
use s3s::{S3ErrorCode, S3Result};

use super::invalid_range::Verified;
use crate::rules::caller::{Caller, Peer};
use crate::rules::context::Context;
use crate::rules::policy::action;
use crate::rules::query::{decode, parameters};
use crate::rules::tags;
use crate::state::users::Users;

/// Headers that conditions examine under `s3:` and their own names.
const HEADERS: &[&str] = &[
    "if-match",
    "if-none-match",
    "x-amz-acl",
    "x-amz-content-sha256",
    "x-amz-grant-full-control",
    "x-amz-grant-read",
    "x-amz-grant-read-acp",
    "x-amz-grant-write",
    "x-amz-grant-write-acp",
    "x-amz-object-ownership",
    "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-storage-class",
    "x-amz-website-redirect-location",
];

/// Headers, and what conditions call them.
const RENAMED: &[(&str, &str)] = &[
    ("referer", "aws:referer"),
    ("user-agent", "aws:useragent"),
    ("x-amz-object-lock-legal-hold", "s3:object-lock-legal-hold"),
    ("x-amz-object-lock-mode", "s3:object-lock-mode"),
    ("x-amz-server-side-encryption-bucket-key-enabled", "s3:bucketkeyenabled"),
];

/// Parameters, and what conditions call them.
const PARAMETERS: &[(&str, &str)] = &[
    ("prefix", "s3:prefix"),
    ("delimiter", "s3:delimiter"),
    ("max-keys", "s3:max-keys"),
    ("versionId", "s3:versionid"),
];

/// The caller of a request, whose signature is good if it has one.
pub(crate) fn of_request(context: &mut S3AccessContext<'_>, users: &Users) -> S3Result<Caller> {
    let user = match signer(context) {
        Some(key) => Some(users.find(&key).ok_or(S3ErrorCode::InvalidAccessKeyId)?.name),
        None => None,
    };
    let peer = *context.extensions_mut().get::<Peer>().ok_or(S3ErrorCode::AccessDenied)?;
    let query = context.uri().query().unwrap_or_default();
    let versioned = parameters(query).any(|(name, _)| name == "versionId");
    let mut examined = Context::new(user.as_deref(), peer.address, peer.secure);
    let headers = context.headers();
    add_headers(&mut examined, headers);
    let mut date = text(headers, HeaderName::from_static("x-amz-date"));
    let mut in_query = false;
    for (name, value) in parameters(query) {
        if let Some((_, key)) = PARAMETERS.iter().find(|(known, _)| *known == name) {
            decode(value).into_iter().for_each(|value| examined.add(*key, value.into_owned()));
        } else if name == "X-Amz-Date" {
            (date, in_query) = (decode(value).map(Cow::into_owned), true);
        }
    }
    if user.is_some() {
        examined.add("s3:authtype", if in_query { "REST-QUERY-STRING" } else { "REST-HEADER" });
        examined.add("s3:signatureversion", "AWS4-HMAC-SHA256");
        examined.sign(date);
    }
    Ok(Caller {
        user,
        action: action(context.s3_op().name(), versioned),
        context: Arc::new(examined),
        expects: text(headers, HeaderName::from_static("x-amz-expected-bucket-owner")),
        expects_source: text(headers, HeaderName::from_static("x-amz-source-expected-bucket-owner")),
    })
}

/// The caller of a form that is not signed.
pub(crate) fn of_form(peer: Peer, headers: &HeaderMap) -> Caller {
    let mut examined = Context::new(None, peer.address, peer.secure);
    for name in [header::REFERER, header::USER_AGENT] {
        let key = RENAMED.iter().find(|(known, _)| *known == name.as_str()).map(|(_, key)| *key);
        key.zip(text(headers, name)).into_iter().for_each(|(key, value)| examined.add(key, value));
    }
    Caller {
        user: None,
        action: action("PostObject", false),
        context: Arc::new(examined),
        expects: None,
        expects_source: None,
    }
}

/// What conditions examine of the headers.
fn add_headers(examined: &mut Context, headers: &HeaderMap) {
    let mut copies = false;
    for (name, value) in headers {
        let (name, Ok(value)) = (name.as_str(), value.to_str()) else { continue };
        if let Some(known) = HEADERS.iter().find(|known| **known == name) {
            examined.add(format!("s3:{known}"), value.to_owned());
        } else if let Some((_, key)) = RENAMED.iter().find(|(known, _)| *known == name) {
            examined.add(*key, value.to_owned());
        } else if name == "x-amz-copy-source" {
            copies = true;
            let source = decode(value).unwrap_or_else(|| value.into());
            // `/BUCKET/KEY` and `BUCKET/KEY` are the same source.
            examined.add("s3:x-amz-copy-source", source.trim_start_matches('/').to_owned());
        } else if name == "x-amz-tagging" {
            // What cannot be read is refused by the operation.
            tags::parse(value).into_iter().for_each(|tags| examined.add_request_tags(&tags));
        } else if name == "x-amz-object-lock-retain-until-date" {
            examined.add_retention(value.to_owned());
        } else if name == "x-amz-metadata-directive" {
            examined.add("s3:x-amz-metadata-directive", value.to_owned());
        }
    }
    if copies && examined.values("s3:x-amz-metadata-directive").is_empty() {
        // What S3 does where a copy does not say.
        examined.add("s3:x-amz-metadata-directive", "COPY");
    }
}

/// The access key of the signature.
pub(crate) fn signer(context: &mut S3AccessContext<'_>) -> Option<String> {
    let credentials = match context.extensions_mut().get::<Verified>() {
        Some(Verified(credentials)) => credentials.as_ref(),
        None => context.credentials(),
    };
    credentials.map(|credentials| credentials.access_key.clone())
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}
