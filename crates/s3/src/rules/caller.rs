//! The caller of a request: who, from where, and for what.

use std::net::IpAddr;
use std::sync::Arc;

use http::Extensions;
use s3s::{S3ErrorCode, S3Result, s3_error};

use super::context::Context;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// Whether the connection is encrypted.
    pub(crate) secure: bool,
}

/// The caller, and what policies can examine in the request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The user who signed it, if it is signed.
    pub(crate) user: Option<String>,
    /// The action that it needs, without `s3:`.
    pub(crate) action: &'static str,
    /// What policies can examine.
    pub(crate) context: Arc<Context>,
    /// Whose bucket it must be, if the request says so.
    pub(crate) expects: Option<String>,
    /// Whose bucket the source of a copy must be, if the request says so.
    pub(crate) expects_source: Option<String>,
}

impl Caller {
    /// The same with more that policies can examine.
    pub(crate) fn with(&self, add: impl FnOnce(&mut Context)) -> Self {
        let mut context = Context::clone(&self.context);
        add(&mut context);
        Self { context: Arc::new(context), ..self.clone() }
    }

    /// The caller that was found when access to the request was checked.
    pub(crate) fn of(extensions: &Extensions) -> S3Result<Self> {
        extensions.get::<Self>().cloned().ok_or_else(|| S3ErrorCode::AccessDenied.into())
    }

    /// Refuses the bucket of another owner than the expected one.
    pub(crate) fn check_owner(expected: Option<&str>, owner: &str) -> S3Result<()> {
        match expected {
            Some(expected) if expected != owner => Err(S3ErrorCode::AccessDenied.into()),
            _ => Ok(()),
        }
    }

    /// The user's name, for what only users may do.
    pub(crate) fn require_user(&self) -> S3Result<&str> {
        self.user.as_deref().ok_or_else(|| s3_error!(AccessDenied, "a signature is required"))
    }
}
