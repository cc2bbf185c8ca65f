//! Tags of buckets. One of them is a setting: whether chunks of new objects are compressed. So an owner sets it with any
//! client of S3, over any gateway, and the gateway's configuration counts where nothing is set.

use object::record::Record;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Result, s3_error};

use crate::face::Face;
use crate::tagging::{self, TAGS};
use crate::who::Who;

/// Tags of one bucket, as in S3.
const MOST: usize = 50;
/// The tag that says whether chunks of new objects are compressed.
const COMPRESS: &str = "reservoir:compress";

/// Whether a bucket wants its new chunks compressed; `None` when it says nothing.
pub(crate) fn compress(bucket: &Record) -> Option<bool> {
    let tags = tagging::parse(bucket.attributes.get(TAGS)?)?;
    tags.iter().find(|(key, _)| key == COMPRESS).map(|(_, value)| value == "on")
}

impl Face {
    pub(crate) fn do_put_bucket_tagging(
        &self,
        who: &Who,
        input: PutBucketTaggingInput,
    ) -> S3Result<PutBucketTaggingOutput> {
        let bucket = self.bucket(&input.bucket, who, "")?;
        let tags = tagging::check(tagging::given(input.tagging)?, MOST)?;
        if tags.iter().any(|(key, value)| key == COMPRESS && !matches!(value.as_str(), "on" | "off")) {
            return Err(s3_error!(InvalidTag, "{COMPRESS} is \"on\" or \"off\""));
        }
        self.set_bucket(&bucket, TAGS, tagging::text(&tags))?;
        Ok(PutBucketTaggingOutput::default())
    }

    pub(crate) fn do_get_bucket_tagging(
        &self,
        who: &Who,
        input: GetBucketTaggingInput,
    ) -> S3Result<GetBucketTaggingOutput> {
        let bucket = self.bucket(&input.bucket, who, "")?;
        let tags = bucket.record.attributes.get(TAGS).and_then(|text| tagging::parse(text));
        let tag_set = tagging::said(tags.ok_or(S3ErrorCode::NoSuchTagSet)?);
        Ok(GetBucketTaggingOutput { tag_set })
    }

    pub(crate) fn do_delete_bucket_tagging(
        &self,
        who: &Who,
        input: DeleteBucketTaggingInput,
    ) -> S3Result<DeleteBucketTaggingOutput> {
        let bucket = self.bucket(&input.bucket, who, "")?;
        self.set_bucket(&bucket, TAGS, None)?;
        Ok(DeleteBucketTaggingOutput::default())
    }
}
