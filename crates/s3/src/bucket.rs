//! Buckets.

use std::collections::BTreeMap;

use object::catalog::{Refused, all_buckets};
use object::record::{Kind, Record, VersionId};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Result, s3_error};

use crate::attributes::time;
use crate::error;
use crate::face::{Face, owner};
use crate::lock;
use crate::who::Who;

/// What this cluster calls its region when a client asks: S3's first, which is the default of every client.
const REGION: &str = "us-east-1";
/// Buckets of a user: each list of buckets, each cleaning and each sweep reads those of all.
const MOST: usize = 1_000;

impl Face {
    pub(crate) fn do_list_buckets(&self, who: &Who, input: ListBucketsInput) -> S3Result<ListBucketsOutput> {
        let user = who.named()?;
        let after = input.continuation_token.unwrap_or_default();
        let prefix = input.prefix.clone().unwrap_or_default();
        let most = usize::try_from(input.max_buckets.unwrap_or(10_000)).unwrap_or(0).clamp(1, 10_000);
        let wanted = |name: &str| name > after.as_str() && name.starts_with(&prefix);
        let mut own: Vec<Bucket> = self
            .buckets_of(user)?
            .into_iter()
            .filter(|(name, _)| wanted(name))
            .map(|(name, made)| Bucket { creation_date: Some(made), name: Some(name), ..Bucket::default() })
            .collect();
        let more = own.len() > most;
        own.truncate(most);
        let continuation_token = own.last().and_then(|bucket| bucket.name.clone()).filter(|_| more);
        let owner = Owner { display_name: Some(user.to_owned()), id: Some(user.to_owned()) };
        Ok(ListBucketsOutput { buckets: Some(own), continuation_token, owner: Some(owner), prefix: input.prefix })
    }

    /// The names of a user's buckets, in the order of their bytes, and when they were made.
    fn buckets_of(&self, user: &str) -> S3Result<BTreeMap<String, Timestamp>> {
        let mut own = BTreeMap::new();
        for bucket in all_buckets(self.objects.catalog()) {
            let bucket = bucket.map_err(error::catalog)?.record;
            if owner(&bucket) == user {
                let made = created(&bucket);
                own.insert(bucket.bucket, made);
            }
        }
        Ok(own)
    }

    pub(crate) fn do_create_bucket(&self, who: &Who, input: CreateBucketInput) -> S3Result<CreateBucketOutput> {
        let user = who.named()?;
        if self.buckets_of(user)?.len() >= MOST {
            return Err(s3_error!(TooManyBuckets, "a user may have {MOST} buckets: delete some first"));
        }
        let mut record = Record::new(Kind::Bucket, &input.bucket, "", VersionId::default());
        record.attributes.insert("owner".to_owned(), user.to_owned());
        let micros = self.objects.next_version().micros();
        record.attributes.insert("created".to_owned(), micros.to_string());
        if input.object_lock_enabled_for_bucket == Some(true) {
            lock::enable(&mut record.attributes);
        }
        let location = Some(format!("/{}", input.bucket));
        match self.objects.create_bucket(record) {
            Ok(_) => Ok(CreateBucketOutput { location }),
            Err(failure) if failure.refused() == Some(Refused::BucketExists) => {
                let existing = self.objects.catalog().bucket(&input.bucket).map_err(error::catalog)?;
                Err(match existing {
                    Some(row) if owner(&row.record) == user => S3ErrorCode::BucketAlreadyOwnedByYou.into(),
                    _ => S3ErrorCode::BucketAlreadyExists.into(),
                })
            }
            Err(failure) => Err(error::s3(failure)),
        }
    }

    pub(crate) fn do_head_bucket(&self, who: &Who, input: HeadBucketInput) -> S3Result<HeadBucketOutput> {
        self.bucket(&input.bucket, who, "")?;
        Ok(HeadBucketOutput { bucket_region: Some(REGION.to_owned()), ..HeadBucketOutput::default() })
    }

    pub(crate) fn do_delete_bucket(&self, who: &Who, input: DeleteBucketInput) -> S3Result<DeleteBucketOutput> {
        let bucket = self.bucket(&input.bucket, who, "")?;
        self.objects.delete_bucket(&bucket).map_err(error::s3)?;
        Ok(DeleteBucketOutput::default())
    }

    pub(crate) fn do_get_bucket_location(
        &self,
        who: &Who,
        input: GetBucketLocationInput,
    ) -> S3Result<GetBucketLocationOutput> {
        self.bucket(&input.bucket, who, "")?;
        // S3 says nothing for its first region.
        Ok(GetBucketLocationOutput::default())
    }
}

/// When a bucket was made; its record's own time is that of its last change.
fn created(bucket: &Record) -> Timestamp {
    let made = bucket.attributes.get("created").and_then(|micros| micros.parse().ok());
    time(made.unwrap_or(bucket.version.micros()))
}
