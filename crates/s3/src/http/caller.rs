//! Finds the caller of a request.

use http::{HeaderMap, HeaderName, header};
use s3s::access::S3AccessContext;
use s3s::{S3ErrorCode, S3Result};

use super::invalid_range::Verified;
use crate::rules::caller::{Caller, Peer};
use crate::rules::policy::action;
use crate::rules::query::{decode, parameters};
use crate::state::users::Users;

/// The caller of a request, whose signature is good if it has one.
pub(crate) fn of_request(context: &mut S3AccessContext<'_>, users: &Users) -> S3Result<Caller> {
    let user = match signer(context) {
        Some(key) => Some(users.find(&key).ok_or(S3ErrorCode::InvalidAccessKeyId)?.name),
        None => None,
    };
    let peer = *context.extensions_mut().get::<Peer>().ok_or(S3ErrorCode::AccessDenied)?;
    let query = context.uri().query().unwrap_or_default();
    let asked = |name: &str| {
        let found = parameters(query).find(|(requested, _)| *requested == name);
        found.and_then(|(_, value)| decode(value))
    };
    let versioned = asked("versionId").is_some();
    Ok(Caller {
        user,
        action: action(context.s3_op().name(), versioned),
        peer,
        prefix: asked("prefix"),
        delimiter: asked("delimiter"),
        referer: text(context.headers(), header::REFERER),
        agent: text(context.headers(), header::USER_AGENT),
        expects: text(context.headers(), HeaderName::from_static("x-amz-expected-bucket-owner")),
        expects_source: text(context.headers(), HeaderName::from_static("x-amz-source-expected-bucket-owner")),
    })
}

/// The caller of a form that is not signed.
pub(crate) fn of_form(peer: Peer, headers: &HeaderMap) -> Caller {
    Caller {
        user: None,
        action: action("PostObject", false),
        peer,
        prefix: None,
        delimiter: None,
        referer: text(headers, header::REFERER),
        agent: text(headers, header::USER_AGENT),
        expects: None,
        expects_source: None,
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
