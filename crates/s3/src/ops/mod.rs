//! The operations of S3, each a line that leads to the function that does it.

mod acl;
pub(crate) mod attributes;
mod body;
mod bucket;
mod bucket_tags;
mod copy;
pub(crate) mod cors;
mod delete;
mod encryption;
mod etag;
mod get;
mod holders;
mod kept;
pub(crate) mod lifecycle;
mod list;
mod lock;
pub(crate) mod multipart;
mod policy;
mod put;
mod tags;
mod versions;

use http::header::HOST;
use http::uri::Authority;
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result};

use crate::rules::caller::{Caller, Peer};
use crate::state::State;

/// The implementation of all operations.
pub(crate) struct Operations(pub(crate) State);

type Answer<T> = S3Result<S3Response<T>>;

/// Does `$work` with the caller and the input, on a thread that may block.
macro_rules! query {
    ($state:expr, $request:expr, $work:path) => {
        query!($state, $request, $work, S3Response::new)
    };
    ($state:expr, $request:expr, $work:path, $respond:path) => {{
        let (caller, input) = (Caller::of(&$request.extensions)?, $request.input);
        let work = move |state: &State| $work(state, &caller, input);
        $state.query(&$request.extensions, work).await.map($respond)
    }};
}

/// As [`query`], with a permit to make a list.
macro_rules! list {
    ($state:expr, $request:expr, $work:path) => {{
        let (caller, input) = (Caller::of(&$request.extensions)?, $request.input);
        let permit = $state.list_permit(&$request.extensions).await?;
        let work = move |state: &State| {
            let _permit = permit;
            $work(state, &caller, input)
        };
        $state.blocking(work).await.map(S3Response::new)
    }};
}

/// The address of what a request is for, as its client asked.
fn location<T>(request: &S3Request<T>) -> Option<String> {
    let peer = request.extensions.get::<Peer>()?;
    let host = request.headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| request.uri.authority().map(Authority::as_str))?;
    let scheme = if peer.secure { "https" } else { "http" };
    Some(format!("{scheme}://{host}{}", request.uri.path()))
}

#[async_trait::async_trait]
impl S3 for Operations {
    async fn list_buckets(&self, request: S3Request<ListBucketsInput>) -> Answer<ListBucketsOutput> {
        list!(self.0, request, bucket::list_buckets)
    }

    async fn create_bucket(&self, request: S3Request<CreateBucketInput>) -> Answer<CreateBucketOutput> {
        query!(self.0, request, bucket::create_bucket)
    }

    async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> Answer<HeadBucketOutput> {
        query!(self.0, request, bucket::head_bucket)
    }

    async fn delete_bucket(&self, request: S3Request<DeleteBucketInput>) -> Answer<DeleteBucketOutput> {
        query!(self.0, request, bucket::delete_bucket)
    }

    async fn get_bucket_location(&self, request: S3Request<GetBucketLocationInput>) -> Answer<GetBucketLocationOutput> {
        query!(self.0, request, bucket::get_bucket_location)
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
        put::put_object(&self.0, request).await
    }

    async fn copy_object(&self, request: S3Request<CopyObjectInput>) -> Answer<CopyObjectOutput> {
        copy::copy_object(&self.0, request).await
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
        get::get_object(&self.0, request).await
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> Answer<HeadObjectOutput> {
        query!(self.0, request, get::head_object, get::respond_head)
    }

    async fn get_object_attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> Answer<GetObjectAttributesOutput> {
        query!(self.0, request, attributes::get_object_attributes, attributes::respond)
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> Answer<DeleteObjectOutput> {
        query!(self.0, request, delete::delete_object)
    }

    async fn delete_objects(&self, request: S3Request<DeleteObjectsInput>) -> Answer<DeleteObjectsOutput> {
        delete::delete_objects(&self.0, request).await
    }

    async fn list_objects(&self, request: S3Request<ListObjectsInput>) -> Answer<ListObjectsOutput> {
        list!(self.0, request, list::list_objects)
    }

    async fn list_objects_v2(&self, request: S3Request<ListObjectsV2Input>) -> Answer<ListObjectsV2Output> {
        list!(self.0, request, list::list_objects_v2)
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> Answer<CreateMultipartUploadOutput> {
        query!(self.0, request, multipart::create_upload, multipart::respond)
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> Answer<CompleteMultipartUploadOutput> {
        let location = location(&request);
        let mut answer = query!(self.0, request, multipart::complete_upload, kept::respond)?;
        answer.output.location = location;
        Ok(answer)
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> Answer<AbortMultipartUploadOutput> {
        query!(self.0, request, multipart::abort_upload)
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> Answer<ListPartsOutput> {
        list!(self.0, request, multipart::list_parts)
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> Answer<ListMultipartUploadsOutput> {
        list!(self.0, request, multipart::list_uploads)
    }

    async fn put_bucket_versioning(
        &self,
        request: S3Request<PutBucketVersioningInput>,
    ) -> Answer<PutBucketVersioningOutput> {
        query!(self.0, request, versions::put_bucket_versioning)
    }

    async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> Answer<GetBucketVersioningOutput> {
        query!(self.0, request, versions::get_bucket_versioning)
    }

    async fn list_object_versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> Answer<ListObjectVersionsOutput> {
        list!(self.0, request, versions::list_object_versions)
    }

    async fn put_object_tagging(&self, request: S3Request<PutObjectTaggingInput>) -> Answer<PutObjectTaggingOutput> {
        query!(self.0, request, tags::put_object_tagging)
    }

    async fn get_object_tagging(&self, request: S3Request<GetObjectTaggingInput>) -> Answer<GetObjectTaggingOutput> {
        query!(self.0, request, tags::get_object_tagging)
    }

    async fn delete_object_tagging(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> Answer<DeleteObjectTaggingOutput> {
        query!(self.0, request, tags::delete_object_tagging)
    }

    async fn upload_part(&self, request: S3Request<UploadPartInput>) -> Answer<UploadPartOutput> {
        multipart::upload_part(&self.0, request).await
    }

    async fn upload_part_copy(&self, request: S3Request<UploadPartCopyInput>) -> Answer<UploadPartCopyOutput> {
        multipart::upload_part_copy(&self.0, request).await
    }

    async fn put_bucket_tagging(&self, request: S3Request<PutBucketTaggingInput>) -> Answer<PutBucketTaggingOutput> {
        query!(self.0, request, bucket_tags::put_bucket_tagging)
    }

    async fn get_bucket_tagging(&self, request: S3Request<GetBucketTaggingInput>) -> Answer<GetBucketTaggingOutput> {
        query!(self.0, request, bucket_tags::get_bucket_tagging)
    }

    async fn delete_bucket_tagging(
        &self,
        request: S3Request<DeleteBucketTaggingInput>,
    ) -> Answer<DeleteBucketTaggingOutput> {
        query!(self.0, request, bucket_tags::delete_bucket_tagging)
    }

    async fn put_bucket_cors(&self, request: S3Request<PutBucketCorsInput>) -> Answer<PutBucketCorsOutput> {
        query!(self.0, request, cors::put_bucket_cors)
    }

    async fn get_bucket_cors(&self, request: S3Request<GetBucketCorsInput>) -> Answer<GetBucketCorsOutput> {
        query!(self.0, request, cors::get_bucket_cors)
    }

    async fn delete_bucket_cors(&self, request: S3Request<DeleteBucketCorsInput>) -> Answer<DeleteBucketCorsOutput> {
        query!(self.0, request, cors::delete_bucket_cors)
    }

    async fn put_bucket_lifecycle_configuration(
        &self,
        request: S3Request<PutBucketLifecycleConfigurationInput>,
    ) -> Answer<PutBucketLifecycleConfigurationOutput> {
        query!(self.0, request, lifecycle::put_lifecycle)
    }

    async fn get_bucket_lifecycle_configuration(
        &self,
        request: S3Request<GetBucketLifecycleConfigurationInput>,
    ) -> Answer<GetBucketLifecycleConfigurationOutput> {
        query!(self.0, request, lifecycle::get_lifecycle)
    }

    async fn delete_bucket_lifecycle(
        &self,
        request: S3Request<DeleteBucketLifecycleInput>,
    ) -> Answer<DeleteBucketLifecycleOutput> {
        query!(self.0, request, lifecycle::delete_lifecycle)
    }

    async fn get_bucket_acl(&self, request: S3Request<GetBucketAclInput>) -> Answer<GetBucketAclOutput> {
        query!(self.0, request, acl::get_bucket_acl)
    }

    async fn put_bucket_acl(&self, request: S3Request<PutBucketAclInput>) -> Answer<PutBucketAclOutput> {
        query!(self.0, request, acl::put_bucket_acl)
    }

    async fn get_object_acl(&self, request: S3Request<GetObjectAclInput>) -> Answer<GetObjectAclOutput> {
        query!(self.0, request, acl::get_object_acl)
    }

    async fn put_object_acl(&self, request: S3Request<PutObjectAclInput>) -> Answer<PutObjectAclOutput> {
        query!(self.0, request, acl::put_object_acl)
    }

    async fn get_bucket_ownership_controls(
        &self,
        request: S3Request<GetBucketOwnershipControlsInput>,
    ) -> Answer<GetBucketOwnershipControlsOutput> {
        query!(self.0, request, acl::get_ownership)
    }

    async fn put_bucket_ownership_controls(
        &self,
        request: S3Request<PutBucketOwnershipControlsInput>,
    ) -> Answer<PutBucketOwnershipControlsOutput> {
        query!(self.0, request, acl::put_ownership)
    }

    async fn delete_bucket_ownership_controls(
        &self,
        request: S3Request<DeleteBucketOwnershipControlsInput>,
    ) -> Answer<DeleteBucketOwnershipControlsOutput> {
        query!(self.0, request, acl::delete_ownership)
    }

    async fn get_public_access_block(
        &self,
        request: S3Request<GetPublicAccessBlockInput>,
    ) -> Answer<GetPublicAccessBlockOutput> {
        query!(self.0, request, acl::get_block)
    }

    async fn put_public_access_block(
        &self,
        request: S3Request<PutPublicAccessBlockInput>,
    ) -> Answer<PutPublicAccessBlockOutput> {
        query!(self.0, request, acl::put_block)
    }

    async fn delete_public_access_block(
        &self,
        request: S3Request<DeletePublicAccessBlockInput>,
    ) -> Answer<DeletePublicAccessBlockOutput> {
        query!(self.0, request, acl::delete_block)
    }

    async fn put_bucket_encryption(
        &self,
        request: S3Request<PutBucketEncryptionInput>,
    ) -> Answer<PutBucketEncryptionOutput> {
        query!(self.0, request, encryption::put_bucket_encryption)
    }

    async fn get_bucket_encryption(
        &self,
        request: S3Request<GetBucketEncryptionInput>,
    ) -> Answer<GetBucketEncryptionOutput> {
        query!(self.0, request, encryption::get_bucket_encryption)
    }

    async fn delete_bucket_encryption(
        &self,
        request: S3Request<DeleteBucketEncryptionInput>,
    ) -> Answer<DeleteBucketEncryptionOutput> {
        query!(self.0, request, encryption::delete_bucket_encryption)
    }

    async fn put_bucket_policy(&self, request: S3Request<PutBucketPolicyInput>) -> Answer<PutBucketPolicyOutput> {
        query!(self.0, request, policy::put_bucket_policy)
    }

    async fn get_bucket_policy(&self, request: S3Request<GetBucketPolicyInput>) -> Answer<GetBucketPolicyOutput> {
        query!(self.0, request, policy::get_bucket_policy)
    }

    async fn get_bucket_policy_status(
        &self,
        request: S3Request<GetBucketPolicyStatusInput>,
    ) -> Answer<GetBucketPolicyStatusOutput> {
        query!(self.0, request, policy::get_bucket_policy_status)
    }

    async fn delete_bucket_policy(
        &self,
        request: S3Request<DeleteBucketPolicyInput>,
    ) -> Answer<DeleteBucketPolicyOutput> {
        query!(self.0, request, policy::delete_bucket_policy)
    }

    async fn put_object_lock_configuration(
        &self,
        request: S3Request<PutObjectLockConfigurationInput>,
    ) -> Answer<PutObjectLockConfigurationOutput> {
        query!(self.0, request, lock::put_lock_configuration)
    }

    async fn get_object_lock_configuration(
        &self,
        request: S3Request<GetObjectLockConfigurationInput>,
    ) -> Answer<GetObjectLockConfigurationOutput> {
        query!(self.0, request, lock::get_lock_configuration)
    }

    async fn put_object_retention(
        &self,
        request: S3Request<PutObjectRetentionInput>,
    ) -> Answer<PutObjectRetentionOutput> {
        query!(self.0, request, lock::put_retention)
    }

    async fn get_object_retention(
        &self,
        request: S3Request<GetObjectRetentionInput>,
    ) -> Answer<GetObjectRetentionOutput> {
        query!(self.0, request, lock::get_retention)
    }

    async fn put_object_legal_hold(
        &self,
        request: S3Request<PutObjectLegalHoldInput>,
    ) -> Answer<PutObjectLegalHoldOutput> {
        query!(self.0, request, lock::put_legal_hold)
    }

    async fn get_object_legal_hold(
        &self,
        request: S3Request<GetObjectLegalHoldInput>,
    ) -> Answer<GetObjectLegalHoldOutput> {
        query!(self.0, request, lock::get_legal_hold)
    }
}
