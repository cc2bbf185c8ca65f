//! The catalog: an index from names to versions, for listing and for conditional writes. Everything in it but uploads
//! that are under way can be made again from the manifests.
//!
//! A row repeats the manifest of its version, so that the content of these manifests is defined here, too:
//! [`object_manifest`].

pub mod entry;
pub mod object_manifest;
mod postgres;
mod sql;
mod sqlite;
mod transient;

pub use postgres::{DecidedMap, Hold, Postgres};
pub use sqlite::Sqlite;
pub use transient::Transient;

use protocol::id::ChunkId;

use crate::object_manifest::{Kind, ObjectManifest, VersionId};

/// A version as the catalog knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The record, shortened by [`ObjectManifest::row`].
    pub record: ObjectManifest,
    /// The manifest chunk.
    pub manifest: ChunkId,
}

/// What must be true of the newest version of a key for a change to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    #[default]
    Always,
    /// There is no object.
    Absent,
    /// There is an object, with this entity tag (without quotes).
    Matches(String),
    /// There is an object.
    Present,
    /// This version is the newest, whatever it is.
    Newest(VersionId),
}

impl Condition {
    /// Whether it holds.
    ///
    /// # Errors
    /// [`Refused::NoVersion`] or [`Refused::Condition`] when it does not.
    pub fn check(&self, newest: Option<&Row>) -> Result<(), Refused> {
        let newest = newest.map(|row| &row.record);
        let object = newest.filter(|record| record.kind == Kind::Object);
        match (self, object) {
            (Self::Always, _) | (Self::Absent, None) | (Self::Present, Some(_)) => Ok(()),
            (Self::Matches(etag), Some(object)) if object.etag == *etag => Ok(()),
            (Self::Newest(version), _) if newest.is_some_and(|newest| newest.version == *version) => Ok(()),
            (Self::Matches(_) | Self::Present, None) => Err(Refused::NoVersion),
            (Self::Absent | Self::Matches(_) | Self::Newest(_), _) => Err(Refused::Condition),
        }
    }
}

/// An upload in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Its id.
    pub id: VersionId,
    /// Bucket, key and attributes that the object will have.
    pub record: ObjectManifest,
}

/// A part of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// 1 to 10,000.
    pub number: u32,
    /// Bytes.
    pub size: u64,
    /// Its entity tag, without quotes.
    pub etag: String,
    /// When it was put, microseconds since 1970.
    pub micros: u64,
    /// Its checksums by the header's name, one a line: `name=value`.
    pub checksums: String,
    /// Its chunks, encoded; empty in lists.
    pub entries: Vec<u8>,
}

/// The id of the run whose row says until when a catalog is not to be believed, because it went back to an older state.
pub const RETURNED: u64 = 0;

/// A run of a gateway: what it began under one id. Version ids name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which; random.
    pub id: u64,
    /// Every change that it began before this is finished or was withdrawn; microseconds since 1970, as in version ids.
    pub settled: u64,
    /// It begins no change after this without saying so first; the same clock. It grows while the run lives.
    pub until: u64,
    /// Whether it has ended: the catalog takes no change of it any more.
    pub ended: bool,
}

/// One transaction. Those that make a manifest count are refused when the run that began them has ended.
#[derive(Clone, Debug)]
pub enum Change {
    /// A bucket that must not exist.
    CreateBucket(Row),
    /// Other settings of a bucket that exists and has this manifest.
    SetBucket(Row, ChunkId),
    /// Removes a bucket without versions, and ends its uploads; what its removal has for a version.
    DeleteBucket(String, VersionId),
    /// A version that becomes the newest of its key. The null version takes the place of an earlier one.
    Put(Row, Condition),
    /// The same version with other attributes, in the place of this manifest.
    Revise(Row, ChunkId),
    /// Removes one version that has this manifest.
    Erase {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
        /// Which version.
        version: VersionId,
        /// Its manifest.
        manifest: ChunkId,
        /// The run that asks.
        run: u64,
    },
    /// The manifests say that versions of this key up to this one were removed: for a catalog that is made again.
    Removed {
        /// The bucket.
        bucket: String,
        /// The key; empty for the bucket itself.
        key: String,
        /// Up to which version.
        version: VersionId,
    },
    /// Begins an upload.
    StartUpload(Upload),
    /// Adds a part to an upload, or replaces it.
    PutPart(VersionId, Part),
    /// Forgets an upload and its parts.
    EndUpload(VersionId),
    /// A version that becomes the newest of its key, and the end of the upload that it came from.
    Complete(Row, Condition, VersionId),
    /// A run is alive, and has come so far.
    Heartbeat {
        /// Which.
        run: u64,
        /// As [`Run::settled`].
        settled: u64,
        /// As [`Run::until`].
        until: u64,
        /// The `until` of its last heartbeat; 0 the first time. A catalog that has less went back to an older state.
        reported: u64,
    },
    /// Ends a run, if it has not come further than this.
    EndRun {
        /// Which.
        run: u64,
        /// As [`Run::until`].
        until: u64,
    },
}

/// What a catalog is to say, whoever began it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amends {
    /// Buckets, each in the place of the one of this name; without a row there is none then.
    pub buckets: Vec<(String, Option<Row>)>,
    /// Bucket and key, and all versions that the key has then, oldest first.
    pub keys: Vec<(String, String, Vec<Row>)>,
    /// As [`Change::Removed`]: bucket, key and version.
    pub removed: Vec<(String, String, VersionId)>,
}

/// Why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such bucket.
    #[error("there is no such bucket")]
    NoBucket,
    /// There is one already.
    #[error("the bucket exists")]
    BucketExists,
    /// It has versions.
    #[error("the bucket is not empty")]
    NotEmpty,
    /// There is no such version.
    #[error("there is no such version")]
    NoVersion,
    /// There is no such upload.
    #[error("there is no such upload")]
    NoUpload,
    /// The condition does not hold.
    #[error("the condition does not hold")]
    Condition,
    /// Its settings or attributes are others by now: somebody else changed them.
    #[error("it was changed by somebody else meanwhile")]
    Changed,
    /// The newest version of the key, or one that was removed, is this or a later one: put it again with a later one.
    #[error("a later version exists")]
    Stale(VersionId),
    /// The run that asks has ended: others took it for dead.
    #[error("this gateway stood still for too long: try again")]
    Ended,
}

/// Why the catalog did not do it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CatalogError {
    /// The change may not be made.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The engine failed.
    #[error("the catalog failed: {0}: look at its disk and at the gateway's log")]
    Engine(String),
    /// What it has is not what was written.
    #[error(
        "the catalog is damaged ({0}): stop the gateway, see with `reservoir catalog rebuild --from-manifests --dry-run` what \
         the manifests say, and make it again without `--dry-run`"
    )]
    Damaged(String),
    /// The database of the catalog cannot be used now, or not as it is configured. The text says what to do. A change may
    /// have been made or not.
    #[error("the catalog {0}")]
    Unavailable(String),
}

/// Where a page begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the first key that is this one or greater, bytewise.
    Key(Vec<u8>),
    /// After all versions of this key.
    After(Vec<u8>),
    /// After this version of this key; versions are listed newest first.
    Version(Vec<u8>, VersionId),
}

/// Buckets that are read at once: their settings may be large.
const BUCKETS: usize = 64;

/// All buckets, a few in memory at once.
pub fn all_buckets(catalog: &dyn Catalog) -> impl Iterator<Item = Result<Row, CatalogError>> {
    let (mut page, mut next) = (vec![].into_iter(), Some(String::new()));
    std::iter::from_fn(move || {
        if page.len() == 0 {
            let rows = match catalog.buckets(&next.take()?, BUCKETS) {
                Ok(rows) => rows,
                Err(error) => return Some(Err(error)),
            };
            next = rows.last().filter(|_| rows.len() == BUCKETS).map(|row| row.record.bucket.clone());
            page = rows.into_iter();
        }
        page.next().map(Ok)
    })
}

/// Names to versions. Calls block; they are made on threads that may.
pub trait Catalog: Send + Sync {
    /// Makes a change, durably.
    ///
    /// # Errors
    /// When it may not be made, or the engine failed.
    fn change(&self, change: Change) -> Result<(), CatalogError>;
    /// A bucket.
    ///
    /// # Errors
    /// As the engine.
    fn bucket(&self, name: &str) -> Result<Option<Row>, CatalogError>;
    /// Buckets after the one of this name, all when it is empty, in the engine's own order of names: [`all_buckets`] goes
    /// through them.
    ///
    /// # Errors
    /// As the engine.
    fn buckets(&self, after: &str, limit: usize) -> Result<Vec<Row>, CatalogError>;
    /// The newest version of a key, which may be a delete marker.
    ///
    /// # Errors
    /// As the engine.
    fn newest(&self, bucket: &str, key: &str) -> Result<Option<Row>, CatalogError>;
    /// One version of a key; `None` asks for the null version, which no id finds: S3 knows it by the name "null" only.
    ///
    /// # Errors
    /// As the engine.
    fn version(&self, bucket: &str, key: &str, version: Option<VersionId>) -> Result<Option<Row>, CatalogError>;
    /// Keys whose newest version is an object, in the order of their bytes.
    ///
    /// # Errors
    /// As the engine.
    fn objects(&self, bucket: &str, from: &Start, limit: usize) -> Result<Vec<Row>, CatalogError>;
    /// All versions, by key and newest first, and whether each is the newest.
    ///
    /// # Errors
    /// As the engine.
    fn versions(&self, bucket: &str, from: &Start, limit: usize) -> Result<Vec<(Row, bool)>, CatalogError>;
    /// An upload under way.
    ///
    /// # Errors
    /// As the engine.
    fn upload(&self, id: VersionId) -> Result<Option<Upload>, CatalogError>;
    /// Uploads by key and id, after the given one.
    ///
    /// # Errors
    /// As the engine.
    fn uploads(&self, bucket: &str, from: &Start, limit: usize) -> Result<Vec<Upload>, CatalogError>;
    /// The parts of an upload after part `after`, without their entries.
    ///
    /// # Errors
    /// As the engine.
    fn parts(&self, upload: VersionId, after: u32, limit: usize) -> Result<Vec<Part>, CatalogError>;
    /// One part with its entries.
    ///
    /// # Errors
    /// As the engine.
    fn part(&self, upload: VersionId, number: u32) -> Result<Option<Part>, CatalogError>;
    /// All runs that this catalog knows.
    ///
    /// # Errors
    /// As the engine.
    fn runs(&self) -> Result<Vec<Run>, CatalogError>;
}
