//! Failures as errors of S3.

use std::borrow::Cow;
use std::error::Error as StdError;

use catalog::{CatalogError, Refused};
use http::{StatusCode, header};
use object::ServiceError;
use object::objects::ObjectError;
use s3s::{Body, HttpResponse, S3Error, S3ErrorCode, StdError as BoxError, s3_error};

/// The error for a failed operation on objects.
pub(crate) fn s3(error: ObjectError) -> S3Error {
    match error {
        ObjectError::Catalog(error) => catalog(error),
        ObjectError::Source(source) => match source.downcast::<S3Error>() {
            Ok(error) => *error,
            Err(other) => broken_body(&*other),
        },
        ObjectError::Chunk { source, .. } if matches!(*source, ServiceError::Busy) => {
            s3_error!(SlowDown, "too much is waiting already")
        }
        error @ ObjectError::Chunk { .. } => {
            tracing::warn!("{error}");
            S3Error::with_message(S3ErrorCode::ServiceUnavailable, error.to_string())
        }
        error @ ObjectError::Manifest { .. } => {
            tracing::error!("{error}");
            S3Error::with_message(S3ErrorCode::InternalError, error.to_string())
        }
        error @ ObjectError::TooSlow(_) => S3Error::with_message(S3ErrorCode::RequestTimeout, error.to_string()),
        ObjectError::TooLarge => S3ErrorCode::EntityTooLarge.into(),
    }
}

/// The error for a bucket that does not exist.
pub(crate) fn no_bucket() -> S3Error {
    S3Error::with_message(S3ErrorCode::NoSuchBucket, "there is no such bucket")
}

/// The part of a message for a change whose outcome is unknown.
const OPEN: &str = "a change that was asked for may have been made or not: read before you ask for it again";

/// The error for a failure of the catalog.
pub(crate) fn catalog(error: CatalogError) -> S3Error {
    match error {
        CatalogError::Refused(refused) => match refused {
            Refused::NoBucket => no_bucket(),
            Refused::BucketExists => S3ErrorCode::BucketAlreadyExists.into(),
            Refused::NotEmpty => S3ErrorCode::BucketNotEmpty.into(),
            Refused::NoVersion => S3ErrorCode::NoSuchKey.into(),
            Refused::NoUpload => S3ErrorCode::NoSuchUpload.into(),
            Refused::Condition => S3ErrorCode::PreconditionFailed.into(),
            Refused::Stale(_) | Refused::Changed => S3ErrorCode::OperationAborted.into(),
            Refused::Ended => S3Error::with_message(S3ErrorCode::ServiceUnavailable, refused.to_string()),
        },
        CatalogError::Unavailable(_) => {
            tracing::warn!("{error}");
            let words = format!("the catalog cannot be used now; {OPEN}");
            S3Error::with_message(S3ErrorCode::ServiceUnavailable, words)
        }
        CatalogError::Engine(_) | CatalogError::Damaged(_) => {
            tracing::error!("{error}");
            S3Error::with_message(S3ErrorCode::InternalError, format!("the catalog failed; {OPEN}"))
        }
    }
}

/// The error for a request's body that ended with an error. The error types of `s3s` are private, so only their text
/// distinguishes a bad signature from a lost connection.
pub(crate) fn broken_body(error: &(dyn StdError + 'static)) -> S3Error {
    let words = error.to_string();
    let code = if words.contains("Sha256Mismatch") {
        return custom("XAmzContentSHA256Mismatch", StatusCode::BAD_REQUEST, words);
    } else if words.contains("SignatureMismatch") {
        S3ErrorCode::SignatureDoesNotMatch
    } else if words.contains("FormatError") || words.contains("TooLarge") || words.contains("TooMany") {
        S3ErrorCode::InvalidRequest
    } else if words.contains("came too slowly") {
        S3ErrorCode::RequestTimeout
    } else {
        S3ErrorCode::IncompleteBody
    };
    S3Error::with_message(code, words)
}

/// An error whose code `s3s` does not know.
pub(crate) fn custom(code: &'static str, status: StatusCode, message: impl Into<Cow<'static, str>>) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), message);
    error.set_status_code(status);
    error
}

/// An answer that is an error, made without `s3s`.
pub(crate) fn plain(status: StatusCode, code: &str, message: &str) -> HttpResponse {
    with_element(status, code, message, "")
}

/// The same with one more element.
pub(crate) fn with_element(status: StatusCode, code: &str, message: &str, element: &str) -> HttpResponse {
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{message}</Message>{element}\
         </Error>"
    );
    let mut answer = HttpResponse::new(Body::from(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/xml"));
    answer
}

/// An error of S3 as the error of a source of bytes.
pub(crate) fn boxed(error: S3Error) -> BoxError {
    Box::new(error)
}
