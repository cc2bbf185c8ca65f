//! Who asks, from where, and for what.

use std::net::IpAddr;

use http::{Extensions, HeaderMap, header};
use s3s::S3ErrorCode;
use s3s::S3Result;
use s3s::access::S3AccessContext;

use crate::access::parameters;
use crate::policy::action;
use crate::senseless::Verified;
use crate::tagging;
use crate::users::Users;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// Whether the connection is encrypted.
    pub(crate) secure: bool,
}

/// Who asks, and what policies may want to know of the request.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    /// Who signed; nobody when it is not signed.
    pub(crate) user: Option<String>,
    /// The action of S3 that is asked for, without `s3:`.
    pub(crate) action: &'static str,
    pub(crate) peer: Peer,
    pub(crate) prefix: Option<String>,
    pub(crate) delimiter: Option<String>,
    pub(crate) referer: Option<String>,
    pub(crate) agent: Option<String>,
}

impl Who {
    /// Who is behind a request, whose signature is good if it has one.
    pub(crate) fn of(context: &mut S3AccessContext<'_>, users: &Users) -> S3Result<Self> {
        let user = match signer(context) {
            Some(key) => Some(users.find(&key).ok_or(S3ErrorCode::InvalidAccessKeyId)?.name),
            None => None,
        };
        let peer = *context.extensions_mut().get::<Peer>().ok_or(S3ErrorCode::AccessDenied)?;
        let query = context.uri().query().unwrap_or_default();
        let asked = |name: &str| {
            let found = parameters(query).find(|(given, _)| *given == name);
            found.and_then(|(_, value)| tagging::decode(value))
        };
        let versioned = asked("versionId").is_some();
        Ok(Self {
            user,
            action: action(context.s3_op().name(), versioned),
            peer,
            prefix: asked("prefix"),
            delimiter: asked("delimiter"),
            referer: text(context.headers(), header::REFERER),
            agent: text(context.headers(), header::USER_AGENT),
        })
    }

    /// Somebody without a signature who sends a form.
    pub(crate) fn with_form(peer: Peer, headers: &HeaderMap) -> Self {
        Self {
            user: None,
            action: action("PostObject", false),
            peer,
            prefix: None,
            delimiter: None,
            referer: text(headers, header::REFERER),
            agent: text(headers, header::USER_AGENT),
        }
    }

    /// Who was found behind a request before.
    pub(crate) fn known(extensions: &Extensions) -> S3Result<Self> {
        extensions.get::<Self>().cloned().ok_or_else(|| S3ErrorCode::AccessDenied.into())
    }

    /// The user's name, where only users may ask.
    pub(crate) fn named(&self) -> S3Result<&str> {
        self.user.as_deref().ok_or_else(|| s3s::s3_error!(AccessDenied, "a signature is required"))
    }
}

/// The access key of who signed.
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
