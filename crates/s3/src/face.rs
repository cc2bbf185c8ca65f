//! The operations of S3, each a few lines that lead to where it is done.

use std::sync::Arc;

use crate::error;
use crate::lobby::{Allowed, Caller};
use crate::refusals::Why;
use crate::turn::{Leave, Turns};
use crate::users::Users;
use crate::who::Who;
use crate::{lock, policy};
use http::Extensions;
use object::catalog::{Refused, Row};
use object::objects::{ObjectError, Objects};
use object::record::Record;
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};

/// Requests with bytes of objects that are worked on at once; memory is a chunk for each, and what they have ahead.
const WORKING: usize = 128;
/// Requests that are worked on at once whose body is a document: it is held in memory, with what was read from it.
const DOCUMENTS: usize = 32;
/// Of these, those of more than [`LARGE`]: reading one keeps a thread busy that others need, for a tenth of a second.
const LARGE_DOCUMENTS: usize = 4;
/// Bytes of a large document.
const LARGE: u64 = 256 << 10;
/// Lists that are made at once.
const LISTS: usize = 8;
/// Bytes of each setting of a bucket, as it is kept: every request reads all settings of its bucket.
const SETTING_BYTES: usize = 256 << 10;
/// Other requests that ask or change the catalog at once, and look-ups before an object's bytes are worked on. They have
/// few of the threads, so that nobody stands behind many of somebody else's.
const SMALL: usize = 64;
/// Requests of a kind that wait for their turn; further ones are told to slow down.
const WAITING: usize = 512;

/// The gateway's face.
#[derive(Clone)]
pub(crate) struct Face {
    pub(crate) objects: Arc<Objects>,
    pub(crate) users: Users,
    turns: Turns,
    documents: Turns,
    large: Turns,
    lists: Turns,
    small: Turns,
}

type Answer<T> = S3Result<S3Response<T>>;

impl Face {
    pub(crate) fn new(objects: Arc<Objects>, users: Users) -> Self {
        let turns = |most| Turns::new(most, WAITING);
        let (documents, large) = (turns(DOCUMENTS), turns(LARGE_DOCUMENTS));
        Self { objects, users, turns: turns(WORKING), documents, large, lists: turns(LISTS), small: turns(SMALL) }
    }

    /// Leave to work on the bytes of an object, for a request that is allowed.
    pub(crate) async fn turn(&self, extensions: &Extensions) -> S3Result<Leave> {
        take(&self.turns, &Who::known(extensions)?, extensions).await
    }

    /// Asks the catalog for a request, or changes it, when it is its turn.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        who: &Who,
        extensions: &Extensions,
        work: impl FnOnce(&Self) -> S3Result<T> + Send + 'static,
    ) -> S3Result<T> {
        let turn = take(&self.small, who, extensions).await?;
        let work = move |face: &Self| {
            let _turn = turn;
            work(face)
        };
        self.blocking(work).await
    }

    /// Leave to read a document of so many bytes, if that is known, for a request that is allowed.
    pub(crate) async fn document(&self, who: &Who, length: Option<u64>, extensions: &Extensions) -> S3Result<Leave> {
        let turns = if length.is_some_and(|length| length <= LARGE) { &self.documents } else { &self.large };
        take(turns, who, extensions).await
    }

    /// Requests that work on the bytes of objects.
    pub(crate) fn working(&self) -> usize {
        self.turns.taken()
    }

    /// Does blocking work off the async threads. It goes on when the client leaves, so permits belong into the work.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> S3Result<T> + Send + 'static,
    ) -> S3Result<T> {
        let face = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&face)).await;
        done.unwrap_or_else(|panic| Err(s3_error!(InternalError, "the request's work ended early: {panic}")))
    }

    /// A bucket. Blocks.
    pub(crate) fn bucket_named(&self, name: &str) -> S3Result<Row> {
        self.objects.catalog().bucket(name).map_err(error::catalog)?.ok_or_else(error::no_bucket)
    }

    /// A bucket, in which `who` may do what is asked for: with a key, or with the bucket itself when that is empty. Blocks.
    pub(crate) fn bucket(&self, name: &str, who: &Who, key: &str) -> S3Result<Row> {
        let row = self.bucket_named(name)?;
        policy::check(&row, who, who.action, key)?;
        Ok(row)
    }

    /// Gives a bucket another value of one attribute, or none. Blocks.
    pub(crate) fn set_bucket(&self, bucket: &Row, attribute: &str, value: Option<String>) -> S3Result<()> {
        if value.as_ref().is_some_and(|value| value.len() > SETTING_BYTES) {
            return Err(s3_error!(EntityTooLarge, "each setting of a bucket may have {SETTING_BYTES} bytes"));
        }
        let change = |record: &mut Record| {
            match &value {
                Some(value) => record.attributes.insert(attribute.to_owned(), value.clone()),
                None => record.attributes.remove(attribute),
            };
            lock::check_bucket(record)
        };
        let find = || self.bucket_named(&bucket.record.bucket);
        Self::change(find, change, |row, record| self.objects.set_bucket(row, |whole| *whole = record)).map(drop)
    }

    /// Gives a version other attributes. Blocks.
    pub(crate) fn revise(
        &self,
        bucket: &Row,
        key: &str,
        version: Option<&str>,
        change: impl Fn(&mut Record) -> S3Result<()>,
    ) -> S3Result<Row> {
        let store = |row: &Row, record: Record| self.objects.revise(row, |whole| whole.attributes = record.attributes);
        Self::change(|| self.find(bucket, key, version), change, store)
    }

    /// Finds a row, changes its record, and stores that in its place; again when somebody else, maybe over another gateway,
    /// changed it first: what they did must be looked at. Blocks.
    fn change(
        find: impl Fn() -> S3Result<Row>,
        change: impl Fn(&mut Record) -> S3Result<()>,
        store: impl Fn(&Row, Record) -> Result<Row, ObjectError>,
    ) -> S3Result<Row> {
        loop {
            let row = find()?;
            let mut record = row.record.clone();
            change(&mut record)?;
            match store(&row, record) {
                Err(failure) if failure.refused() == Some(Refused::Changed) => {}
                done => return done.map_err(error::s3),
            }
        }
    }
}

/// A turn of a kind for a request.
async fn take(turns: &Turns, who: &Who, extensions: &Extensions) -> S3Result<Leave> {
    let turn = turns.take(who.user.as_deref(), extensions.get::<Arc<Allowed>>().cloned()).await;
    turn.ok_or_else(|| {
        if let Some(caller) = extensions.get::<Caller>() {
            caller.guest.count(Why::Busy);
        }
        s3_error!(SlowDown, "the gateway works on too many such requests already: ask again later, and fewer at once")
    })
}

/// The user whose bucket this is.
pub(crate) fn owner(bucket: &Record) -> &str {
    bucket.attributes.get("owner").map_or("", String::as_str)
}

/// Does `$work` with who asks and the input, on a thread that may block.
macro_rules! ask {
    ($face:expr, $request:expr, $work:path) => {{
        let who = Who::known(&$request.extensions)?;
        let (asks, input) = (who.clone(), $request.input);
        let work = move |face: &Self| $work(face, &who, input);
        $face.look(&asks, &$request.extensions, work).await.map(S3Response::new)
    }};
}

/// As [`ask`], when it is this request's turn to make a list.
macro_rules! list {
    ($face:expr, $request:expr, $work:path) => {{
        let who = Who::known(&$request.extensions)?;
        let turn = take(&$face.lists, &who, &$request.extensions).await?;
        let input = $request.input;
        let work = move |face: &Self| {
            let _turn = turn;
            $work(face, &who, input)
        };
        $face.blocking(work).await.map(S3Response::new)
    }};
}

#[async_trait::async_trait]
impl S3 for Face {
    async fn list_buckets(&self, request: S3Request<ListBucketsInput>) -> Answer<ListBucketsOutput> {
        list!(self, request, Self::do_list_buckets)
    }

    async fn create_bucket(&self, request: S3Request<CreateBucketInput>) -> Answer<CreateBucketOutput> {
        ask!(self, request, Self::do_create_bucket)
    }

    async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> Answer<HeadBucketOutput> {
        ask!(self, request, Self::do_head_bucket)
    }

    async fn delete_bucket(&self, request: S3Request<DeleteBucketInput>) -> Answer<DeleteBucketOutput> {
        ask!(self, request, Self::do_delete_bucket)
    }

    async fn get_bucket_location(&self, request: S3Request<GetBucketLocationInput>) -> Answer<GetBucketLocationOutput> {
        ask!(self, request, Self::do_get_bucket_location)
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
        self.do_put_object(request).await
    }

    async fn copy_object(&self, request: S3Request<CopyObjectInput>) -> Answer<CopyObjectOutput> {
        ask!(self, request, Self::do_copy_object)
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
        self.do_get_object(request).await
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> Answer<HeadObjectOutput> {
        ask!(self, request, Self::do_head_object)
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> Answer<DeleteObjectOutput> {
        ask!(self, request, Self::do_delete_object)
    }

    async fn delete_objects(&self, request: S3Request<DeleteObjectsInput>) -> Answer<DeleteObjectsOutput> {
        self.do_delete_objects(request).await
    }

    async fn list_objects(&self, request: S3Request<ListObjectsInput>) -> Answer<ListObjectsOutput> {
        list!(self, request, Self::do_list_objects)
    }

    async fn list_objects_v2(&self, request: S3Request<ListObjectsV2Input>) -> Answer<ListObjectsV2Output> {
        list!(self, request, Self::do_list_objects_v2)
    }
    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> Answer<CreateMultipartUploadOutput> {
        ask!(self, request, Self::do_create_upload)
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> Answer<CompleteMultipartUploadOutput> {
        ask!(self, request, Self::do_complete_upload)
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> Answer<AbortMultipartUploadOutput> {
        ask!(self, request, Self::do_abort_upload)
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> Answer<ListPartsOutput> {
        list!(self, request, Self::do_list_parts)
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> Answer<ListMultipartUploadsOutput> {
        list!(self, request, Self::do_list_uploads)
    }

    async fn put_bucket_versioning(
        &self,
        request: S3Request<PutBucketVersioningInput>,
    ) -> Answer<PutBucketVersioningOutput> {
        ask!(self, request, Self::do_put_bucket_versioning)
    }

    async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> Answer<GetBucketVersioningOutput> {
        ask!(self, request, Self::do_get_bucket_versioning)
    }

    async fn list_object_versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> Answer<ListObjectVersionsOutput> {
        list!(self, request, Self::do_list_object_versions)
    }

    async fn put_object_tagging(&self, request: S3Request<PutObjectTaggingInput>) -> Answer<PutObjectTaggingOutput> {
        ask!(self, request, Self::do_put_object_tagging)
    }

    async fn get_object_tagging(&self, request: S3Request<GetObjectTaggingInput>) -> Answer<GetObjectTaggingOutput> {
        ask!(self, request, Self::do_get_object_tagging)
    }

    async fn delete_object_tagging(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> Answer<DeleteObjectTaggingOutput> {
        ask!(self, request, Self::do_delete_object_tagging)
    }

    async fn upload_part(&self, request: S3Request<UploadPartInput>) -> Answer<UploadPartOutput> {
        self.do_upload_part(request).await
    }

    async fn upload_part_copy(&self, request: S3Request<UploadPartCopyInput>) -> Answer<UploadPartCopyOutput> {
        self.do_upload_part_copy(request).await
    }

    async fn put_bucket_tagging(&self, request: S3Request<PutBucketTaggingInput>) -> Answer<PutBucketTaggingOutput> {
        ask!(self, request, Self::do_put_bucket_tagging)
    }

    async fn get_bucket_tagging(&self, request: S3Request<GetBucketTaggingInput>) -> Answer<GetBucketTaggingOutput> {
        ask!(self, request, Self::do_get_bucket_tagging)
    }

    async fn delete_bucket_tagging(
        &self,
        request: S3Request<DeleteBucketTaggingInput>,
    ) -> Answer<DeleteBucketTaggingOutput> {
        ask!(self, request, Self::do_delete_bucket_tagging)
    }

    async fn put_bucket_cors(&self, request: S3Request<PutBucketCorsInput>) -> Answer<PutBucketCorsOutput> {
        ask!(self, request, Self::do_put_bucket_cors)
    }

    async fn get_bucket_cors(&self, request: S3Request<GetBucketCorsInput>) -> Answer<GetBucketCorsOutput> {
        ask!(self, request, Self::do_get_bucket_cors)
    }

    async fn delete_bucket_cors(&self, request: S3Request<DeleteBucketCorsInput>) -> Answer<DeleteBucketCorsOutput> {
        ask!(self, request, Self::do_delete_bucket_cors)
    }

    async fn put_bucket_lifecycle_configuration(
        &self,
        request: S3Request<PutBucketLifecycleConfigurationInput>,
    ) -> Answer<PutBucketLifecycleConfigurationOutput> {
        ask!(self, request, Self::do_put_lifecycle)
    }

    async fn get_bucket_lifecycle_configuration(
        &self,
        request: S3Request<GetBucketLifecycleConfigurationInput>,
    ) -> Answer<GetBucketLifecycleConfigurationOutput> {
        ask!(self, request, Self::do_get_lifecycle)
    }

    async fn delete_bucket_lifecycle(
        &self,
        request: S3Request<DeleteBucketLifecycleInput>,
    ) -> Answer<DeleteBucketLifecycleOutput> {
        ask!(self, request, Self::do_delete_lifecycle)
    }

    async fn put_bucket_policy(&self, request: S3Request<PutBucketPolicyInput>) -> Answer<PutBucketPolicyOutput> {
        ask!(self, request, Self::do_put_bucket_policy)
    }

    async fn get_bucket_policy(&self, request: S3Request<GetBucketPolicyInput>) -> Answer<GetBucketPolicyOutput> {
        ask!(self, request, Self::do_get_bucket_policy)
    }

    async fn get_bucket_policy_status(
        &self,
        request: S3Request<GetBucketPolicyStatusInput>,
    ) -> Answer<GetBucketPolicyStatusOutput> {
        ask!(self, request, Self::do_get_bucket_policy_status)
    }

    async fn delete_bucket_policy(
        &self,
        request: S3Request<DeleteBucketPolicyInput>,
    ) -> Answer<DeleteBucketPolicyOutput> {
        ask!(self, request, Self::do_delete_bucket_policy)
    }

    async fn put_object_lock_configuration(
        &self,
        request: S3Request<PutObjectLockConfigurationInput>,
    ) -> Answer<PutObjectLockConfigurationOutput> {
        ask!(self, request, Self::do_put_lock_configuration)
    }

    async fn get_object_lock_configuration(
        &self,
        request: S3Request<GetObjectLockConfigurationInput>,
    ) -> Answer<GetObjectLockConfigurationOutput> {
        ask!(self, request, Self::do_get_lock_configuration)
    }

    async fn put_object_retention(
        &self,
        request: S3Request<PutObjectRetentionInput>,
    ) -> Answer<PutObjectRetentionOutput> {
        ask!(self, request, Self::do_put_retention)
    }

    async fn get_object_retention(
        &self,
        request: S3Request<GetObjectRetentionInput>,
    ) -> Answer<GetObjectRetentionOutput> {
        ask!(self, request, Self::do_get_retention)
    }

    async fn put_object_legal_hold(
        &self,
        request: S3Request<PutObjectLegalHoldInput>,
    ) -> Answer<PutObjectLegalHoldOutput> {
        ask!(self, request, Self::do_put_legal_hold)
    }

    async fn get_object_legal_hold(
        &self,
        request: S3Request<GetObjectLegalHoldInput>,
    ) -> Answer<GetObjectLegalHoldOutput> {
        ask!(self, request, Self::do_get_legal_hold)
    }
}
