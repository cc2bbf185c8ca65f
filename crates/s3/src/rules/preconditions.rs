//! The preconditions of reads.

use catalog::object_manifest::ObjectManifest;
use s3s::dto::{ETagCondition, Timestamp};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::attributes::{etag, last_modified, modified, seconds};

/// The preconditions in a request's headers.
#[derive(Debug, Default)]
pub(crate) struct Preconditions {
    pub(crate) if_match: Option<ETagCondition>,
    pub(crate) if_none_match: Option<ETagCondition>,
    pub(crate) if_modified_since: Option<Timestamp>,
    pub(crate) if_unmodified_since: Option<Timestamp>,
}

/// The [`Preconditions`] of a request: every kind of request has these fields of its own, a copy's are those of its source.
macro_rules! preconditions {
    ($input:expr) => {
        $crate::rules::preconditions::Preconditions {
            if_match: $input.if_match,
            if_none_match: $input.if_none_match,
            if_modified_since: $input.if_modified_since,
            if_unmodified_since: $input.if_unmodified_since,
        }
    };
    (source of $input:expr) => {
        $crate::rules::preconditions::Preconditions {
            if_match: $input.copy_source_if_match,
            if_none_match: $input.copy_source_if_none_match,
            if_modified_since: $input.copy_source_if_modified_since,
            if_unmodified_since: $input.copy_source_if_unmodified_since,
        }
    };
}
pub(crate) use preconditions;

fn names(condition: &ETagCondition, record: &ObjectManifest) -> bool {
    condition.is_any() || condition.as_etag().is_some_and(|etag| etag.value() == record.etag)
}

impl Preconditions {
    /// Whether to send the object: `Ok(false)` when the client has it already.
    fn holds(&self, record: &ObjectManifest) -> Result<bool, S3Error> {
        let at = seconds(&modified(record));
        match (&self.if_match, &self.if_unmodified_since) {
            (Some(condition), _) if !names(condition, record) => return Err(S3ErrorCode::PreconditionFailed.into()),
            (None, Some(time)) if at > seconds(time) => return Err(S3ErrorCode::PreconditionFailed.into()),
            _ => {}
        }
        Ok(match (&self.if_none_match, &self.if_modified_since) {
            (Some(condition), _) => !names(condition, record),
            (None, Some(time)) => at > seconds(time),
            (None, None) => true,
        })
    }

    /// For a read.
    pub(crate) fn check(&self, record: &ObjectManifest) -> S3Result<()> {
        if self.holds(record)? {
            return Ok(());
        }
        let mut unchanged = S3Error::new(S3ErrorCode::NotModified);
        let mut headers = http::HeaderMap::new();
        if let Some(tag) = etag(record).and_then(|tag| tag.to_http_header().ok()) {
            headers.insert(http::header::ETAG, tag);
        }
        headers.extend(last_modified(record).map(|date| (http::header::LAST_MODIFIED, date)));
        unchanged.set_headers(headers);
        Err(unchanged)
    }

    /// For the source of a copy, where S3 has one error for all.
    pub(crate) fn check_copy(&self, record: &ObjectManifest) -> S3Result<()> {
        if self.holds(record)? { Ok(()) } else { Err(S3ErrorCode::PreconditionFailed.into()) }
    }
}
