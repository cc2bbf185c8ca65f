//! What is refused before an operation is asked: who may not, and what would silently mean something else here.

use std::sync::Arc;

use http::Method;
use http::header::CONTENT_LENGTH;
use s3s::access::{S3Access, S3AccessContext};
use s3s::path::S3Path;
use s3s::{S3ErrorCode, S3Result, s3_error};

use crate::face::Face;
use crate::lobby::Caller;
use crate::policy;
use crate::who::{Who, signer};

/// Query parameters that are understood, beside those of signatures and the headers that a query may override. Others
/// would be ignored: S3 has operations under names that `s3s` does not know, and a request for one of them must not
/// become a request for something else.
const QUERY: &[&str] = &[
    "continuation-token",
    "cors",
    "delete",
    "delimiter",
    "encoding-type",
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
    "part-number-marker",
    "partNumber",
    "policy",
    "policyStatus",
    "prefix",
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
    ("x-amz-acl", &["private", "bucket-owner-full-control"]),
    ("x-amz-storage-class", &["STANDARD"]),
    ("x-amz-mfa", &[]),
    ("x-amz-website-redirect-location", &[]),
    ("x-amz-write-offset-bytes", &[]),
    ("x-amz-expected-bucket-owner", &[]),
    ("x-amz-source-expected-bucket-owner", &[]),
    ("x-amz-object-ownership", &["BucketOwnerEnforced"]),
    ("x-amz-rename-source", &[]),
];

/// Beginnings of headers that ask for something that is not done here.
const HEADER_PREFIXES: &[&str] =
    &["x-amz-server-side-encryption", "x-amz-copy-source-server-side-encryption", "x-amz-grant-"];

/// Refuses requests with parts that are not understood, and finds out who asks. What is allowed to whom is decided where
/// the bucket is looked up; a request without a signature is looked at here already, before anything of its body is read.
pub(crate) struct Access {
    pub(crate) face: Face,
}

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        for (name, value) in context.headers() {
            let name = name.as_str();
            let value = value.to_str().unwrap_or_default();
            let refused = HEADERS.iter().any(|(known, fine)| *known == name && !fine.contains(&value))
                || HEADER_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            if refused {
                return Err(s3_error!(NotImplemented, "the header {name} is not supported with this value"));
            }
        }
        let signed = signer(context).is_some();
        for (name, _) in parameters(context.uri().query().unwrap_or_default()) {
            let known = QUERY.contains(&name)
                || name.to_ascii_lowercase().starts_with("x-amz-")
                || name.starts_with("response-");
            if name.starts_with("response-") && !signed {
                return Err(s3_error!(InvalidRequest, "only who signs can ask for other response headers"));
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
        let who = Who::of(context, &self.face.users)?;
        let caller = context.extensions_mut().get::<Caller>().cloned().ok_or(S3ErrorCode::AccessDenied)?;
        if who.user.is_some() {
            caller.sign();
        } else {
            self.check_unsigned(context, who.clone()).await?;
            context.extensions_mut().insert(caller.allow());
        }
        if has_document(context.method(), context.s3_op().name()) {
            let length = context.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
            let turn = self.face.document(&who, length, context.extensions_mut()).await?;
            // Until the request is answered.
            context.extensions_mut().insert(Arc::new(turn));
        }
        context.extensions_mut().insert(who);
        Ok(())
    }
}

/// Whether the body of such a request is a document, which is read whole before the operation is asked.
fn has_document(method: &Method, operation: &str) -> bool {
    let others = ["CopyObject", "CreateMultipartUpload", "PostObject", "PutObject", "UploadPart", "UploadPartCopy"];
    (*method == Method::POST || *method == Method::PUT) && !others.contains(&operation)
}

impl Access {
    /// Refuses what only who signs may ask.
    async fn check_unsigned(&self, context: &S3AccessContext<'_>, who: Who) -> S3Result<()> {
        let (bucket, key) = match context.s3_path() {
            S3Path::Bucket { bucket } if !who.action.is_empty() => (bucket.to_string(), String::new()),
            S3Path::Object { bucket, key } if !who.action.is_empty() => (bucket.to_string(), key.to_string()),
            _ => return who.named().map(drop),
        };
        // The keys are in the body.
        let some_key = matches!(context.s3_op().name(), "DeleteObjects" | "PostObject");
        let check = move |face: &Face| match some_key {
            true => policy::check_some_key(&face.bucket_named(&bucket)?, &who),
            false => face.bucket(&bucket, &who, &key).map(drop),
        };
        self.face.blocking(check).await
    }
}

/// The names and values in a query, as they are encoded.
pub(crate) fn parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').filter(|part| !part.is_empty()).map(|part| part.split_once('=').unwrap_or((part, "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_told_apart() {
        let found: Vec<_> = parameters("a=1&b&c=x=y&&").collect();
        assert_eq!(found, [("a", "1"), ("b", ""), ("c", "x=y")]);
    }
}
