//! What is refused before an operation begins: what the caller may not do, and what would silently mean something else here.

use std::sync::Arc;

use http::header::{CONTENT_LENGTH, EXPECT};
use http::{HeaderMap, HeaderValue, Method};
use s3s::access::{S3Access, S3AccessContext};
use s3s::path::S3Path;
use s3s::{S3ErrorCode, S3Result, s3_error};

use super::caller::{of_request, signer};
use crate::rules::caller::{Caller, Peer};
use crate::rules::checksums;
use crate::rules::query::parameters;
use crate::rules::storage_class::STORAGE_CLASS;
use crate::state::State;
use crate::state::admission::Admission;

/// Query parameters that are understood, beside those of signatures and the headers that a query may override. Others
/// would be ignored: S3 has operations under names that `s3s` does not know, and a request for one of them must not
/// become a request for something else.
const QUERY: &[&str] = &[
    "acl",
    "attributes",
    "continuation-token",
    "cors",
    "delete",
    "delimiter",
    "encoding-type",
    "encryption",
    "fetch-owner",
    "key-marker",
    "lifecycle",
    "list-type",
    "location",
    "legal-hold",
    "marker",
    "max-buckets",
    "max-keys",
    "max-parts",
    "max-uploads",
    "object-lock",
    "ownershipControls",
    "part-number-marker",
    "partNumber",
    "policy",
    "policyStatus",
    "prefix",
    "publicAccessBlock",
    "retention",
    "start-after",
    "tagging",
    "upload-id-marker",
    "uploadId",
    "uploads",
    "version-id-marker",
    "versionId",
    "versioning",
    "versions",
    "x-id",
    "bucket-region",
];

/// Headers that ask for something that is not done here, with the value that asks for nothing.
const HEADERS: &[(&str, &[&str])] = &[
    ("x-amz-mfa", &[]),
    ("x-amz-website-redirect-location", &[]),
    ("x-amz-write-offset-bytes", &[]),
    ("x-amz-rename-source", &[]),
];

/// Refuses requests with parts that are not understood, and finds their caller. What a caller may do is checked where the
/// bucket is looked up; for a request without a signature already here, before its body is read.
pub(crate) struct Access {
    pub(crate) state: State,
}

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        for (name, value) in context.headers() {
            let name = name.as_str();
            let value = value.to_str().unwrap_or_default();
            if HEADERS.iter().any(|(known, fine)| *known == name && !fine.contains(&value)) {
                return Err(s3_error!(NotImplemented, "the header {name} is not supported with this value"));
            }
        }
        check_digests(context.headers())?;
        check_encryption(context)?;
        if let Some(class) = context.headers().get(STORAGE_CLASS) {
            self.state.classes.check(class.to_str().unwrap_or_default())?;
        }
        let signed = signer(context).is_some();
        for (name, _) in parameters(context.uri().query().unwrap_or_default()) {
            let known = QUERY.contains(&name)
                || name.to_ascii_lowercase().starts_with("x-amz-")
                || name.starts_with("response-");
            if name.starts_with("response-") && !signed {
                return Err(s3_error!(InvalidRequest, "only signed requests can ask for other response headers"));
            }
            if !known {
                return Err(s3_error!(NotImplemented, "the query parameter {name} is not supported"));
            }
        }
        if let S3Path::Object { key, .. } = context.s3_path()
            && key.contains('\0')
        {
            return Err(s3_error!(InvalidArgument, "a key cannot have a null character"));
        }
        let caller = of_request(context, &self.state.users)?;
        let admission = context.extensions_mut().get::<Admission>().cloned().ok_or(S3ErrorCode::AccessDenied)?;
        if caller.user.is_some() {
            admission.sign();
        } else {
            self.check_unsigned(context, caller.clone()).await?;
            context.extensions_mut().insert(admission.allow());
        }
        let has_document = has_document(context.method(), context.s3_op().name());
        if has_document && caller.user.is_some() && context.headers().contains_key(EXPECT) {
            self.check_signed(context, caller.clone()).await?;
        }
        if has_document {
            let length = context.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
            let permit = self.state.document_permit(&caller, length, context.extensions_mut()).await?;
            // Until the request is answered.
            context.extensions_mut().insert(Arc::new(permit));
        }
        context.extensions_mut().insert(caller);
        Ok(())
    }
}

/// Refuses headers of encryption where they mean nothing, and keys that others could read on their way.
fn check_encryption(context: &mut S3AccessContext<'_>) -> S3Result<()> {
    const ASKS: &str = "x-amz-server-side-encryption";
    let puts = ["CopyObject", "CreateMultipartUpload", "PostObject", "PutObject"].contains(&context.s3_op().name());
    let mut has_key = false;
    for name in context.headers().keys() {
        let name = name.as_str();
        if name.contains("server-side-encryption-customer-key") {
            has_key = true;
        } else if name.starts_with(ASKS) && !name.contains("-customer-") && !puts {
            return Err(s3_error!(InvalidArgument, "{name} header is not supported for this operation."));
        }
    }
    let peer = context.extensions_mut().get::<Peer>();
    // What stays on this machine is not on its way anywhere.
    let safe = peer.is_some_and(|peer| peer.secure || peer.address.to_canonical().is_loopback());
    if has_key && !safe {
        return Err(s3_error!(
            InvalidRequest,
            "Requests specifying Server Side Encryption with Customer provided keys must be made over a secure \
             connection."
        ));
    }
    Ok(())
}

/// Refuses what `s3s` overlooks of checksums: an empty one, and an algorithm that there is not.
fn check_digests(headers: &HeaderMap) -> S3Result<()> {
    if headers.get("content-md5").is_some_and(HeaderValue::is_empty) {
        return Err(S3ErrorCode::InvalidDigest.into());
    }
    let name = "x-amz-sdk-checksum-algorithm";
    let algorithm = headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if algorithm.is_some_and(|algorithm| checksums::check_algorithm(algorithm).is_err()) {
        return Err(s3_error!(InvalidRequest, "Value for {name} header is invalid."));
    }
    Ok(())
}

/// The bucket and the key that a request is about, when it needs an action there.
fn resource(context: &S3AccessContext<'_>, caller: &Caller) -> Option<(String, String)> {
    match context.s3_path() {
        _ if caller.action.is_empty() => None,
        S3Path::Bucket { bucket } => Some((bucket.to_string(), String::new())),
        S3Path::Object { bucket, key } => Some((bucket.to_string(), key.to_string())),
        S3Path::Root => None,
    }
}

/// Whether the body of such a request is a document, which is read whole before the operation begins.
fn has_document(method: &Method, operation: &str) -> bool {
    let others = ["CopyObject", "CreateMultipartUpload", "PostObject", "PutObject", "UploadPart", "UploadPartCopy"];
    (*method == Method::POST || *method == Method::PUT) && !others.contains(&operation)
}

/// Whether what such a request may do follows from its body.
fn is_decided_by_body(operation: &str) -> bool {
    let operations = ["DeleteObjects", "PostObject", "PutObjectLegalHold", "PutObjectRetention", "PutObjectTagging"];
    operations.contains(&operation)
}

impl Access {
    /// Refuses what needs a signature.
    async fn check_unsigned(&self, context: &S3AccessContext<'_>, caller: Caller) -> S3Result<()> {
        let Some((bucket, key)) = resource(context, &caller) else { return caller.require_user().map(drop) };
        // The keys, or what conditions look at, are in the body.
        let some_key = is_decided_by_body(context.s3_op().name());
        let check = move |state: &State| match some_key {
            true => state.allow_some_key(&state.bucket_of_owner(&bucket, &caller)?, &caller),
            false => state.bucket(&bucket, &caller, &key).map(drop),
        };
        self.state.blocking(check).await
    }

    /// Refuses a document before its client is told to send it, as far as can be seen from the head.
    async fn check_signed(&self, context: &S3AccessContext<'_>, caller: Caller) -> S3Result<()> {
        let Some((bucket, key)) = resource(context, &caller) else { return Ok(()) };
        let some_key = is_decided_by_body(context.s3_op().name());
        let check = move |state: &State| match some_key {
            true => state.bucket_of_owner(&bucket, &caller).map(drop),
            false => state.bucket(&bucket, &caller, &key).map(drop),
        };
        self.state.blocking(check).await
    }
}
