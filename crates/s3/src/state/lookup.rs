//! Buckets and versions, as requests ask for them and change them. All of it blocks.

use catalog::object_manifest::{Kind, ObjectManifest};
use catalog::{Refused, Row};
use object::objects::ObjectError;
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};
use serde::Serialize;

use super::State;
use crate::rules::acl::{self, Acl};
use crate::rules::caller::Caller;
use crate::rules::ownership::Ownership;
use crate::rules::policy::{self, Policy, Verdict};
use crate::rules::{attributes, error, lock, tags};

/// Bytes of each setting of a bucket, as it is kept: every request reads all settings of its bucket.
const SETTING_BYTES: usize = 256 << 10;

impl State {
    /// A bucket. Blocks.
    pub(crate) fn bucket_named(&self, name: &str) -> S3Result<Row> {
        self.objects.catalog().bucket(name).map_err(error::catalog)?.ok_or_else(|| S3ErrorCode::NoSuchBucket.into())
    }

    /// A bucket in which `caller` may do what the request asks for: with a key, or with the bucket when that is empty.
    /// Blocks.
    pub(crate) fn bucket(&self, name: &str, caller: &Caller, key: &str) -> S3Result<Row> {
        let row = self.bucket_of_owner(name, caller)?;
        let version = caller.context.values("s3:versionid").first().map(ToString::to_string);
        self.allow(&row, caller, caller.action, key, version.as_deref())?;
        Ok(row)
    }

    /// Refuses what `caller` may not do with a version of a key, the newest without an id, or with the bucket when the key
    /// is empty: by the bucket's policy, or else by access lists, where the bucket has these. Blocks.
    pub(crate) fn allow(
        &self,
        bucket: &Row,
        caller: &Caller,
        action: &str,
        key: &str,
        version: Option<&str>,
    ) -> S3Result<()> {
        let has_lists = Ownership::of(&bucket.record).has_lists();
        let policy = Policy::of(bucket)?;
        let needs_tags = !key.is_empty() && policy.as_ref().is_some_and(Policy::needs_existing);
        let needs_list = !key.is_empty() && has_lists && acl::is_of_object(action);
        // What is not there has neither tags nor a list, and whether it is there is not said before it is allowed to know it.
        let existing = if needs_tags || needs_list { self.find(bucket, key, version).ok() } else { None };
        let existing = existing.map(|row| row.record);
        let tags = existing.as_ref().filter(|_| needs_tags).and_then(tags::of);
        let tagged = tags.map(|tags| caller.with(|context| context.add_existing_tags(&tags)));
        let verdict = policy::decide(policy.as_ref(), bucket, tagged.as_ref().unwrap_or(caller), action, key)?;
        let owner = attributes::owner(&bucket.record);
        let is_owner = caller.user.as_deref() == Some(owner);
        if !has_lists {
            return if verdict == Verdict::Allowed || is_owner {
                Ok(())
            } else {
                Err(S3ErrorCode::AccessDenied.into())
            };
        }
        // A bucket's policy, and its owner, say nothing of objects of others, but may remove them.
        let foreign = |object: &ObjectManifest| Acl::of(object, &bucket.record).map(|list| list.owner != owner);
        let foreign = existing.as_ref().filter(|_| acl::is_of_object(action)).map_or(Ok(false), foreign)?;
        if (verdict == Verdict::Allowed || is_owner) && (!foreign || action == "DeleteObject") {
            return Ok(());
        }
        match acl::allow(bucket, existing.as_ref(), caller.user.as_deref(), action)? {
            true => Ok(()),
            false => Err(S3ErrorCode::AccessDenied.into()),
        }
    }

    /// Refuses what `caller` may do with no key of a bucket, for requests whose body has what decides. Blocks.
    pub(crate) fn allow_some_key(&self, bucket: &Row, caller: &Caller) -> S3Result<()> {
        let by_list = Ownership::of(&bucket.record).has_lists()
            && acl::allow(bucket, None, caller.user.as_deref(), caller.action)?;
        if by_list { Ok(()) } else { policy::check_some_key(bucket, caller) }
    }

    /// A bucket, which must be that of the owner whom the request expects. Blocks.
    pub(crate) fn bucket_of_owner(&self, name: &str, caller: &Caller) -> S3Result<Row> {
        let row = self.bucket_named(name)?;
        Caller::check_owner(caller.expects.as_deref(), attributes::owner(&row.record))?;
        Ok(row)
    }

    /// Keeps a setting of a bucket as an attribute. Blocks.
    pub(crate) fn keep_setting(&self, bucket: &Row, attribute: &str, setting: &impl Serialize) -> S3Result<()> {
        let text = serde_json::to_string(setting).map_err(|e| s3_error!(InternalError, "{e}"))?;
        self.set_bucket(bucket, attribute, Some(text))
    }

    /// Sets or removes an attribute of a bucket. Blocks.
    pub(crate) fn set_bucket(&self, bucket: &Row, attribute: &str, value: Option<String>) -> S3Result<()> {
        if value.as_ref().is_some_and(|value| value.len() > SETTING_BYTES) {
            return Err(s3_error!(EntityTooLarge, "each setting of a bucket may have {SETTING_BYTES} bytes"));
        }
        let change = |record: &mut ObjectManifest| {
            match &value {
                Some(value) => record.attributes.insert(attribute.to_owned(), value.clone()),
                None => record.attributes.remove(attribute),
            };
            lock::check_bucket(record)
        };
        let find = || self.bucket_named(&bucket.record.bucket);
        Self::change(find, change, |row, record| self.objects.set_bucket(row, |whole| *whole = record)).map(drop)
    }

    /// Changes the attributes of a version. Blocks.
    pub(crate) fn revise(
        &self,
        bucket: &Row,
        key: &str,
        version: Option<&str>,
        change: impl Fn(&mut ObjectManifest) -> S3Result<()>,
    ) -> S3Result<Row> {
        let store =
            |row: &Row, record: ObjectManifest| self.objects.revise(row, |whole| whole.attributes = record.attributes);
        Self::change(|| self.find(bucket, key, version), change, store)
    }

    /// Finds a row, changes its record, and stores that in its place. When another request, maybe over another gateway,
    /// changed it first, all of this is done again with the new row. Blocks.
    fn change(
        find: impl Fn() -> S3Result<Row>,
        change: impl Fn(&mut ObjectManifest) -> S3Result<()>,
        store: impl Fn(&Row, ObjectManifest) -> Result<Row, ObjectError>,
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

    /// A version by its id, or the newest one. It must be an object.
    pub(crate) fn find(&self, bucket: &Row, key: &str, version: Option<&str>) -> S3Result<Row> {
        let catalog = self.objects.catalog();
        let bucket = &bucket.record.bucket;
        let (row, missing) = match version {
            None => (catalog.newest(bucket, key), S3ErrorCode::NoSuchKey),
            Some("null") => (catalog.version(bucket, key, None), S3ErrorCode::NoSuchVersion),
            Some(text) => {
                let id = text.parse().map_err(|()| s3_error!(InvalidArgument, "Invalid version id specified"))?;
                (catalog.version(bucket, key, Some(id)), S3ErrorCode::NoSuchVersion)
            }
        };
        let row = row.map_err(error::catalog)?.ok_or(missing)?;
        if row.record.kind == Kind::Object {
            return Ok(row);
        }
        let mut failure = if version.is_none() {
            S3Error::new(S3ErrorCode::NoSuchKey)
        } else {
            S3Error::new(S3ErrorCode::MethodNotAllowed)
        };
        let mut headers = http::HeaderMap::new();
        if version.is_some() {
            headers.insert(http::header::ALLOW, http::HeaderValue::from_static("DELETE"));
            headers.extend(attributes::last_modified(&row.record).map(|date| (http::header::LAST_MODIFIED, date)));
        }
        headers.insert("x-amz-delete-marker", http::HeaderValue::from_static("true"));
        if let Ok(id) = http::HeaderValue::from_str(&attributes::version_id(&row.record)) {
            headers.insert("x-amz-version-id", id);
        }
        failure.set_headers(headers);
        Err(failure)
    }

    /// As [`State::find`]. A caller who may not list the bucket does not learn which objects do not exist.
    pub(crate) fn find_for(&self, caller: &Caller, bucket: &Row, key: &str, version: Option<&str>) -> S3Result<Row> {
        self.find(bucket, key, version).map_err(|failure| {
            let hidden = matches!(failure.code(), S3ErrorCode::NoSuchKey | S3ErrorCode::NoSuchVersion)
                && self.allow(bucket, caller, "ListBucket", "", None).is_err();
            if hidden { S3ErrorCode::AccessDenied.into() } else { failure }
        })
    }
}
