//! Failures as errors of S3.

use std::borrow::Cow;
use std::error::Error as StdError;

use catalog::{CatalogError, Refused};
use http::{StatusCode, header};
use object::ServiceError;
use object::objects::ObjectError;
use s3s::{Body, HttpResponse, S3Error, S3ErrorCode, StdError as BoxError, s3_error};

use super::messages::message;

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
        error @ ObjectError::Seal(_) => {
            tracing::error!("{error}");
            S3Error::with_message(S3ErrorCode::InternalError, error.to_string())
        }
        error @ ObjectError::TooSlow(_) => S3Error::with_message(S3ErrorCode::RequestTimeout, error.to_string()),
        ObjectError::TooLarge => S3ErrorCode::EntityTooLarge.into(),
    }
}

/// The part of a message for a change whose outcome is unknown.
const OPEN: &str = "a change that was asked for may have been made or not: read before you ask for it again";

/// The error for a failure of the catalog.
pub(crate) fn catalog(error: CatalogError) -> S3Error {
    match error {
        CatalogError::Refused(refused) => match refused {
            Refused::NoBucket => S3ErrorCode::NoSuchBucket.into(),
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
    answer
}

/// What a request was for, as its errors say it.
pub(crate) struct About {
    /// `/BUCKET/KEY`.
    pub(crate) resource: String,
    /// It copies, so that another bucket or key may be the one that is missing.
    pub(crate) copies: bool,
}

/// Gives an answer that is an error what S3 says with each: a message, what it was about, and the ids of the request and
/// the gateway.
pub(crate) fn complete(answer: &mut HttpResponse, about: &About, request: &str, gateway: &str) {
    let status = answer.status();
    if status == StatusCode::NOT_MODIFIED {
        answer.headers_mut().remove(header::CONTENT_TYPE);
        *answer.body_mut() = Body::empty();
    }
    if !status.is_client_error() && !status.is_server_error() {
        return;
    }
    let document = answer.body().bytes().unwrap_or_default();
    let document = String::from_utf8_lossy(&document);
    let Some((document, _)) = document.rsplit_once("</Error>") else { return };
    let Some((begin, rest)) = document.split_once("</Code>") else { return };
    let code = begin.rsplit('>').next().unwrap_or_default();
    let said = match message(code) {
        _ if rest.starts_with("<Message>") => String::new(),
        known => format!("<Message>{}</Message>", known.unwrap_or(code)),
    };
    let place = about.resource.trim_start_matches('/');
    let (bucket, key) = place.split_once('/').unwrap_or((place, ""));
    let named = match code {
        _ if about.copies => String::new(),
        "NoSuchBucket" | "BucketNotEmpty" | "BucketAlreadyExists" | "InvalidBucketName" => {
            format!("<BucketName>{}</BucketName>", escaped(bucket))
        }
        "NoSuchKey" => format!("<Key>{}</Key>", escaped(key)),
        _ => String::new(),
    };
    let body = format!(
        "{begin}</Code>{said}{rest}{named}<Resource>{}</Resource><RequestId>{request}</RequestId>\
         <HostId>{gateway}</HostId></Error>",
        escaped(&about.resource)
    );
    *answer.body_mut() = Body::from(body);
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/xml"));
}

/// A text as XML has it.
pub(crate) fn escaped(text: &str) -> String {
    // XML has no other control characters than these.
    let allowed = |sign: &char| !sign.is_control() || matches!(sign, '\n' | '\r' | '\t');
    let text: String = text.chars().filter(allowed).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// An error of S3 as the error of a source of bytes.
pub(crate) fn boxed(error: S3Error) -> BoxError {
    Box::new(error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    fn completed(error: S3Error, resource: &str) -> String {
        let mut answer = error.to_http_response().unwrap();
        complete(&mut answer, &About { resource: resource.to_owned(), copies: false }, "ID", "HOST");
        assert_eq!(answer.headers().get(header::CONTENT_TYPE).unwrap(), "application/xml");
        let text = String::from_utf8(answer.body().bytes().unwrap().to_vec()).unwrap();
        text.split_once("<Error>").unwrap().1.to_owned()
    }

    #[test]
    fn an_error_says_what_happened_to_what_and_under_which_id() {
        assert_eq!(
            completed(S3ErrorCode::NoSuchKey.into(), "/b/a&b/c"),
            "<Code>NoSuchKey</Code><Message>The specified key does not exist.</Message><Key>a&amp;b/c</Key>\
             <Resource>/b/a&amp;b/c</Resource><RequestId>ID</RequestId><HostId>HOST</HostId></Error>"
        );
        let text = completed(S3ErrorCode::NoSuchBucket.into(), "/b");
        assert!(text.contains("bucket does not exist</Message><BucketName>b</BucketName><Resource>/b</Resource>"));
        let own = S3Error::with_message(S3ErrorCode::AccessDenied, "why");
        assert!(completed(own, "/").starts_with("<Code>AccessDenied</Code><Message>why</Message><Resource>/<"));
        let with_headers = {
            let mut error: S3Error = S3ErrorCode::InvalidRange.into();
            error.set_headers(http::HeaderMap::new());
            error
        };
        assert!(completed(with_headers, "/b/k").contains("<Message>"));
        assert!(completed(custom("Other", StatusCode::BAD_REQUEST, ""), "/b").contains("<RequestId>ID<"));
    }

    #[test]
    fn what_is_no_error_stays() {
        let mut answer = HttpResponse::new(Body::from("<Error><Code>x</Code></Error>".to_owned()));
        complete(&mut answer, &About { resource: "/b".to_owned(), copies: false }, "ID", "HOST");
        assert_eq!(answer.body().bytes().unwrap(), "<Error><Code>x</Code></Error>");
    }
}
