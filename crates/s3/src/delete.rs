//! DeleteObject and DeleteObjects.

use object::catalog::{Condition, Refused, Row};
use object::record::Kind;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use crate::attributes::version_id;
use crate::error;
use crate::face::Face;
use crate::versions::Versioning;
use crate::who::Who;
use crate::{lock, policy};

/// Objects in one DeleteObjects, as in S3.
const AT_ONCE: usize = 1_000;
/// Threads of one DeleteObjects.
const HANDS: usize = 8;

/// What a delete did.
struct Deleted {
    /// The version that was removed, or the delete marker that was put.
    version: Option<String>,
    /// Whether that is a delete marker.
    marker: bool,
}

impl Face {
    pub(crate) fn do_delete_object(&self, who: &Who, input: DeleteObjectInput) -> S3Result<DeleteObjectOutput> {
        let conditional =
            input.if_match.is_some() || input.if_match_last_modified_time.is_some() || input.if_match_size.is_some();
        if conditional {
            return Err(s3_error!(NotImplemented, "conditional deletes are not supported"));
        }
        let bucket = self.bucket(&input.bucket, who, &input.key)?;
        let bypass = lock::bypasses(&bucket, who, &input.key, input.bypass_governance_retention)?;
        let deleted = self.delete(&bucket, &input.key, input.version_id.as_deref(), bypass)?;
        Ok(DeleteObjectOutput {
            delete_marker: deleted.marker.then_some(true),
            version_id: deleted.version,
            ..DeleteObjectOutput::default()
        })
    }

    pub(crate) async fn do_delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let who = Who::known(&request.extensions)?;
        // It has threads of its own, and so a turn like a put.
        let turn = self.turn(&request.extensions).await?;
        let work = move |face: &Self| {
            let _turn = turn;
            face.delete_objects(&who, request.input)
        };
        self.blocking(work).await.map(S3Response::new)
    }

    fn delete_objects(&self, who: &Who, input: DeleteObjectsInput) -> S3Result<DeleteObjectsOutput> {
        // Each key is asked for by itself.
        let bucket = self.bucket_named(&input.bucket)?;
        let objects = input.delete.objects;
        if objects.is_empty() || objects.len() > AT_ONCE {
            return Err(S3ErrorCode::MalformedXML.into());
        }
        let quiet = input.delete.quiet == Some(true);
        let one = |object: &ObjectIdentifier| self.delete_one(who, &bucket, object, input.bypass_governance_retention);
        // Each removal waits for the disks: several at once share what they wait for.
        let outcomes: Vec<S3Result<Deleted>> = std::thread::scope(|scope| {
            let shares = objects.chunks(objects.len().div_ceil(HANDS));
            let hands: Vec<_> =
                shares.map(|share| scope.spawn(move || share.iter().map(one).collect::<Vec<_>>())).collect();
            let join = |hand: std::thread::ScopedJoinHandle<'_, _>| {
                hand.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            hands.into_iter().flat_map(join).collect()
        });
        let (mut done, mut errors) = (vec![], vec![]);
        for (object, outcome) in objects.into_iter().zip(outcomes) {
            match outcome {
                Ok(_) if quiet => {}
                Ok(deleted) => done.push(DeletedObject {
                    delete_marker: deleted.marker.then_some(true),
                    delete_marker_version_id: deleted.version.filter(|_| deleted.marker),
                    key: Some(object.key),
                    version_id: object.version_id,
                }),
                Err(failure) => errors.push(Error {
                    code: Some(failure.code().as_str().to_owned()),
                    key: Some(object.key),
                    message: failure.message().map(str::to_owned),
                    version_id: object.version_id,
                }),
            }
        }
        let errors = (!errors.is_empty()).then_some(errors);
        Ok(DeleteObjectsOutput { deleted: Some(done), errors, ..DeleteObjectsOutput::default() })
    }

    /// Removes one of the keys of DeleteObjects.
    fn delete_one(
        &self,
        who: &Who,
        bucket: &Row,
        object: &ObjectIdentifier,
        bypass: Option<bool>,
    ) -> S3Result<Deleted> {
        if object.e_tag.is_some() || object.size.is_some() || object.last_modified_time.is_some() {
            return Err(s3_error!(NotImplemented, "conditional deletes are not supported"));
        }
        policy::check(bucket, who, policy::action("DeleteObject", object.version_id.is_some()), &object.key)?;
        let bypass = lock::bypasses(bucket, who, &object.key, bypass)?;
        self.delete(bucket, &object.key, object.version_id.as_deref(), bypass)
    }

    /// Removes an object as a client would that names no version, unless something newer took its place.
    pub(crate) fn expire(&self, bucket: &Row, row: &Row) -> S3Result<()> {
        if Versioning::of(&bucket.record) == Versioning::Never {
            return self.remove(row, false).map(drop);
        }
        let mut marker = self.draft(bucket, &row.record.key)?;
        marker.kind = Kind::Marker;
        match self.objects.publish(marker, &Condition::Newest(row.record.version)) {
            Err(failure) if failure.refused() != Some(Refused::Condition) => Err(error::s3(failure)),
            _ => Ok(()),
        }
    }

    /// Removes a key, or one version of it. Removing what is not there succeeds, as in S3.
    fn delete(&self, bucket: &Row, key: &str, version: Option<&str>, bypass: bool) -> S3Result<Deleted> {
        let name = &bucket.record.bucket;
        let versioning = Versioning::of(&bucket.record);
        if version.is_none() && versioning != Versioning::Never {
            let mut marker = self.draft(bucket, key)?;
            marker.kind = Kind::Marker;
            let row = self.objects.publish(marker, &Condition::Always).map_err(error::s3)?;
            return Ok(Deleted { version: Some(version_id(&row.record)), marker: true });
        }
        let id = match version {
            None | Some("null") => None,
            Some(text) => Some(text.parse().map_err(|()| s3_error!(InvalidArgument, "{text:?} is no version id"))?),
        };
        let mut marker = false;
        // A put may take the place of what was found: then that is what is removed, or else this delete would have
        // happened neither before the put nor after it.
        while let Some(row) = self.objects.catalog().version(name, key, id).map_err(error::catalog)? {
            marker = row.record.kind == Kind::Marker;
            if self.remove(&row, bypass)? {
                break;
            }
        }
        Ok(Deleted { version: version.map(str::to_owned), marker })
    }

    /// Removes a version for good, unless it is locked; whether it still was what `row` says.
    pub(crate) fn remove(&self, row: &Row, bypass: bool) -> S3Result<bool> {
        lock::check_removal(&row.record, bypass)?;
        self.objects.erase(row).map_err(error::s3)
    }
}
