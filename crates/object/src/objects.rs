//! Objects: versions of keys in buckets, in chunks and in the catalog.
//!
//! A put stores payload chunks, then the manifest, and last the catalog's row, which makes the version visible. When
//! the manifest is known before the payload is durable, both are on their way at once. Whatever fails before the row is
//! there leaves nothing that can be seen.

mod ahead;
mod chunks;
mod holders;
mod kept;
mod read;
mod renew;
mod write;

pub use holders::{ChunkHolders, ObjectHolders};
pub use kept::{Kept, Made};
pub use read::Reader;
pub use write::{Sealed, Source, Written};

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::id::ChunkId;
use protocol::initiator::{ChunkPut, Stored};
use protocol::redundancy::Redundancy;

use self::ahead::Ahead;
use crate::Bug;
use crate::host::{Host, System};
use crate::manifest::Malformed;
use crate::runs::{Flight, RunTiming, Runs};
use crate::seal::SealError;
use crate::service::{ChunkService, Pending, ServiceError};
use catalog::object_manifest::{BEGUN, Body, Kind, LEAVING, ObjectManifest, VersionId};
use catalog::{Catalog, CatalogError, Change, Condition, Refused, Row, Start};

/// Times that a version is put again because a later one of its key came between; each time somebody else's succeeded.
const ATTEMPTS: usize = 64;

/// Bytes of chunks that all puts together, and all gets together, may have on their way ahead, unless something else is asked
/// for.
pub const AHEAD: usize = 32 << 20;
/// Bytes of a payload chunk unless something else is asked for.
pub const CHUNK_SIZE: usize = 1 << 20;
/// Bytes of the largest object that rides in its manifest, unless something else is asked for.
pub const INLINE: usize = 64 << 10;
/// The most that may be asked for.
pub const MOST_INLINE: usize = 512 << 10;

/// Why an object could not be put, got or removed.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// A chunk could not be stored or fetched.
    #[error("chunk {id}: {source}")]
    Chunk {
        /// Which.
        id: ChunkId,
        /// Why.
        source: Box<ServiceError>,
    },
    /// A manifest is not readable by this program, or not what the catalog says.
    #[error("the manifest {id} cannot be read: {why}")]
    Manifest {
        /// Which.
        id: ChunkId,
        /// What is wrong.
        why: Malformed,
    },
    /// The catalog refused or failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// Whoever gives the bytes failed, or found that they are not what they should be.
    #[error("the bytes could not be had: {0}")]
    Source(Box<dyn StdError + Send + Sync>),
    /// More chunks than a manifest can name.
    #[error("the object is too large")]
    TooLarge,
    /// It cannot be encrypted, or not be decrypted.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// It took so long that chunks it counts on may have been cleaned away.
    #[error("it took more than {} s, which is half the grace time of cleaning: put it again, in smaller parts", .0.as_secs())]
    TooSlow(Duration),
}

/// A failure of this chunk.
fn failed(id: ChunkId) -> impl FnOnce(ServiceError) -> ObjectError {
    move |source| ObjectError::Chunk { id, source: Box::new(source) }
}

impl From<Refused> for ObjectError {
    fn from(refused: Refused) -> Self {
        Self::Catalog(refused.into())
    }
}

impl ObjectError {
    /// What the catalog refused, if it did.
    #[must_use]
    pub const fn refused(&self) -> Option<Refused> {
        match self {
            Self::Catalog(CatalogError::Refused(refused)) => Some(*refused),
            _ => None,
        }
    }
}

/// Objects of a cluster. Calls block; they are made on threads that may.
pub struct Objects {
    service: Arc<dyn ChunkService + Send + Sync>,
    catalog: Arc<dyn Catalog>,
    host: Arc<dyn Host>,
    runs: Runs,
    /// Whether chunks are compressed when that is worth it.
    compress: bool,
    limit: Duration,
    /// Objects up to this many bytes ride in their manifest.
    inline: usize,
    /// Bytes of each payload chunk but the last.
    chunk_size: usize,
    puts: Ahead,
    gets: Ahead,
    bug: Option<Bug>,
}

impl Objects {
    /// Objects in these chunks and this catalog.
    #[must_use]
    pub fn new(service: Arc<dyn ChunkService + Send + Sync>, catalog: Arc<dyn Catalog>) -> Self {
        let (puts, gets) = (Ahead::new(AHEAD), Ahead::new(AHEAD));
        let host: Arc<dyn Host> = Arc::new(System::default());
        let runs = Runs::new(Arc::clone(&host), RunTiming::default());
        let (limit, inline, chunk_size) = (crate::LIMIT, INLINE, CHUNK_SIZE);
        Self { service, catalog, host, runs, compress: false, limit, inline, chunk_size, puts, gets, bug: None }
    }

    /// As these, by other clocks than the system's, and with runs that keep time so. To be asked for before anything else.
    #[must_use]
    pub fn on(self, host: Arc<dyn Host>, timing: RunTiming) -> Self {
        Self { runs: Runs::new(Arc::clone(&host), timing), host, ..self }
    }

    /// The same with a planted defect.
    #[must_use]
    pub fn with_bug(self, bug: Option<Bug>) -> Self {
        Self { bug, ..self }
    }

    /// As these, with payload chunks of so many bytes: 1 to [`CHUNK_BYTES`](protocol::limits::CHUNK_BYTES).
    #[must_use]
    pub fn with_chunk_size(self, bytes: usize) -> Self {
        Self { chunk_size: bytes.clamp(1, protocol::limits::CHUNK_BYTES as usize), ..self }
    }

    /// The same, which compress payload chunks that become smaller by an eighth or more. All read both kinds.
    #[must_use]
    pub fn compressing(self, compress: bool) -> Self {
        Self { compress, ..self }
    }

    /// As these, but whatever makes a version visible fails when it took longer than this: half the grace time of cleaning.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// As these, but objects up to this many bytes, or [`MOST_INLINE`], ride in their manifests: one chunk less is put, and
    /// the same bytes in several objects are stored for each.
    #[must_use]
    pub fn with_inline(self, bytes: usize) -> Self {
        Self { inline: bytes.min(MOST_INLINE), ..self }
    }

    /// As these, but so many bytes of chunks may be on their way ahead of what the puts, and as many ahead of what the gets
    /// are at: each is at one chunk, and has more only while there is room.
    #[must_use]
    pub fn with_ahead(self, bytes: usize) -> Self {
        Self { puts: Ahead::new(bytes), gets: Ahead::new(bytes), ..self }
    }

    /// The catalog, for listing.
    #[must_use]
    pub fn catalog(&self) -> &dyn Catalog {
        &*self.catalog
    }

    /// A version id that this process has not issued before.
    #[must_use]
    pub fn next_version(&self) -> VersionId {
        self.runs.next()
    }

    /// Tells the catalog that this gateway lives, and which of its changes are settled: to be called every [`crate::HEARTBEAT`].
    /// Ends the runs of gateways that did not do so for long.
    ///
    /// # Errors
    /// As the catalog's engine; the next call makes up for it.
    pub fn heartbeat(&self) -> Result<(), CatalogError> {
        self.runs.heartbeat(&*self.catalog, self.host.elapsed())
    }

    /// Tells the catalog that this gateway has nothing under way any more: to be called when it stops.
    ///
    /// # Errors
    /// As the catalog's engine; then others find that it is gone.
    pub fn end(&self) -> Result<(), CatalogError> {
        self.runs.end(&*self.catalog)
    }

    /// Makes a bucket.
    ///
    /// # Errors
    /// [`Refused::BucketExists`], or when it cannot be stored.
    pub fn create_bucket(&self, mut record: ObjectManifest) -> Result<Row, ObjectError> {
        if self.catalog.bucket(&record.bucket)?.is_some() {
            return Err(Refused::BucketExists.into());
        }
        let mut later_than = 0;
        loop {
            let flight = self.begin(&mut record, later_than)?;
            let row = self.store(record.clone())?;
            match self.make(Change::CreateBucket(row.clone()), flight) {
                // One that was there was removed by a gateway whose clock is ahead. It is reported once.
                Err(CatalogError::Refused(Refused::Stale(removed))) if later_than < removed.micros() => {
                    later_than = removed.micros();
                }
                outcome => return outcome.map(|()| row).map_err(ObjectError::from),
            }
        }
    }

    /// Gives a bucket other attributes.
    ///
    /// # Errors
    /// [`Refused::NoBucket`], [`Refused::Changed`] when `bucket` is not how it is by now, or when it cannot be stored.
    pub fn set_bucket(&self, bucket: &Row, change: impl FnOnce(&mut ObjectManifest)) -> Result<Row, ObjectError> {
        let mut record = bucket.record.clone();
        record.attributes.remove(LEAVING);
        change(&mut record);
        let flight = self.begin(&mut record, bucket.record.version.micros())?;
        let row = self.store(record)?;
        self.make(Change::SetBucket(row.clone(), bucket.manifest), flight)?;
        Ok(row)
    }

    /// Removes a bucket. The catalog comes before the manifest that says so: it knows whether the bucket is empty. What is
    /// stored before both distinguishes a removal that was broken off between them from a lost row.
    ///
    /// # Errors
    /// [`Refused::NoBucket`], [`Refused::Changed`], [`Refused::NotEmpty`], or when it cannot be stored.
    pub fn delete_bucket(&self, bucket: &Row) -> Result<(), ObjectError> {
        if !self.catalog.versions(&bucket.record.bucket, &Start::Key(vec![]), 1)?.is_empty() {
            return Err(Refused::NotEmpty.into());
        }
        let bucket = &self.set_bucket(bucket, |record| {
            record.attributes.insert(LEAVING.to_owned(), String::new());
        })?;
        // Before the catalog's change: whoever makes a bucket of that name after it has a later version.
        let mut gone = ObjectManifest::new(Kind::BucketRemoval, &bucket.record.bucket, "", VersionId::default());
        let flight = self.begin(&mut gone, bucket.record.version.micros())?;
        let deleted = self.catalog.change(Change::DeleteBucket(bucket.record.bucket.clone(), gone.version));
        if let Err(error) = deleted {
            if matches!(error, CatalogError::Refused(_)) {
                flight.settle();
            }
            return Err(error.into());
        }
        self.store(gone)?;
        flight.settle();
        Ok(())
    }

    /// Makes `record`, whose body another version has, the newest version of its key.
    ///
    /// # Errors
    /// When the condition does not hold, the bucket is gone, or it cannot be stored. Then nothing changed.
    pub fn publish(&self, mut record: ObjectManifest, condition: &Condition) -> Result<Made, ObjectError> {
        let begun = self.host.elapsed();
        let skips = self.bug == Some(Bug::SkipRenewal);
        let kept = if skips { Kept::default() } else { self.renew(&mut record)? };
        self.commit(record, condition, None, begun, || Ok(kept))
    }

    /// Makes `record`, which [`Objects::join`] made, the newest version of its key, for an object put in parts, whose upload ends with it.
    ///
    /// # Errors
    /// As [`Objects::publish`], and [`Refused::NoUpload`].
    pub fn complete(
        &self,
        record: ObjectManifest,
        condition: &Condition,
        upload: VersionId,
    ) -> Result<Made, ObjectError> {
        let begun = self.host.elapsed();
        let kept = match &record.body {
            // The parts' chunks have the upload's rows until this is done; these chunks have nothing.
            Body::Indexed(indexes) => {
                self.renew_entries(indexes.iter().map(|(entry, _)| *entry), record.redundancy())?
            }
            _ => Kept::default(),
        };
        self.commit(record, condition, Some(upload), begun, || Ok(kept))
    }

    /// `before_row` is called when the manifest was sent, and must succeed before the version becomes visible.
    fn commit(
        &self,
        mut record: ObjectManifest,
        condition: &Condition,
        upload: Option<VersionId>,
        begun: Duration,
        before_row: impl FnOnce() -> Result<Kept, ObjectError>,
    ) -> Result<Made, ObjectError> {
        let newest = self.catalog.newest(&record.bucket, &record.key)?;
        // Before anything is stored: the catalog decides again when the change is made.
        condition.check(newest.as_ref())?;
        if record.kind == Kind::Marker {
            self.outlast_hidden(&mut record, newest.as_ref())?;
        }
        let (mut before_row, mut kept) = (Some(before_row), Kept::default());
        let mut later_than = newest.map_or(0, |row| row.record.version.micros());
        // A copy is a change of its own.
        record.attributes.remove(BEGUN);
        for _ in 0..ATTEMPTS {
            let flight = self.begin(&mut record, later_than)?;
            let (manifest, bytes) = record.chunk();
            let pending = self.put_manifest(&record, manifest, bytes);
            let outcome = before_row.take().map_or(Ok(Kept::default()), |before_row| before_row());
            if self.bug != Some(Bug::HastyRow) {
                let stored = pending.wait();
                kept.and(outcome?);
                kept.note(&stored.map_err(failed(manifest))?);
            }
            if let Err(error) = self.in_time(begun) {
                self.withdraw(&record, flight);
                return Err(error);
            }
            let row = Row { record: record.clone().row(), manifest };
            let change = match upload {
                Some(upload) => Change::Complete(row.clone(), condition.clone(), upload),
                None => Change::Put(row.clone(), condition.clone()),
            };
            match self.catalog.change(change) {
                Ok(()) => {
                    flight.settle();
                    return Ok(Made { row, kept });
                }
                Err(CatalogError::Refused(refused)) => {
                    if refused == Refused::Ended {
                        self.runs.ended(record.version.run());
                    }
                    self.withdraw(&record, flight);
                    match refused {
                        Refused::Stale(newest) => later_than = newest.micros(),
                        Refused::Ended => {}
                        _ => return Err(refused.into()),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(failed(record.chunk().0)(ServiceError::Busy))
    }

    /// Whether what was begun then may still make something visible: longer than that targets need not keep chunks to which
    /// nothing refers.
    fn in_time(&self, begun: Duration) -> Result<(), ObjectError> {
        if self.host.elapsed().saturating_sub(begun) < self.limit || self.bug == Some(Bug::NoLimit) {
            Ok(())
        } else {
            Err(ObjectError::TooSlow(self.limit))
        }
    }

    /// Gives a version other attributes.
    ///
    /// # Errors
    /// [`Refused::NoVersion`], [`Refused::Changed`] when `row` is not how it is by now, or when it cannot be stored.
    pub fn revise(&self, row: &Row, change: impl FnOnce(&mut ObjectManifest)) -> Result<Row, ObjectError> {
        let mut record = self.whole(row)?;
        change(&mut record);
        self.revised(row, record)
    }

    /// Gives a version other attributes, by which its chunks are kept with another redundancy: they have that first.
    ///
    /// # Errors
    /// As [`Objects::revise`], and when chunks cannot be had or stored.
    pub fn relocate(&self, row: &Row, attributes: BTreeMap<String, String>) -> Result<Row, ObjectError> {
        let begun = self.host.elapsed();
        let mut record = ObjectManifest { attributes, ..self.whole(row)? };
        self.renew(&mut record)?;
        self.in_time(begun)?;
        self.revised(row, record)
    }

    fn revised(&self, row: &Row, mut record: ObjectManifest) -> Result<Row, ObjectError> {
        let flight = self.runs.begin(&*self.catalog, record.revision)?;
        record.revision = flight.begun.micros();
        record.attributes.insert(BEGUN.to_owned(), flight.begun.to_string());
        let revised = self.store(record)?;
        self.make(Change::Revise(revised.clone(), row.manifest), flight)?;
        Ok(revised)
    }

    /// Removes a version for good; whether it was there, as `row` has it, until now. What the manifests then say is true in
    /// either case: a removal counts for the revision that it saw, and those before it.
    ///
    /// # Errors
    /// When that cannot be stored.
    pub fn erase(&self, row: &Row) -> Result<bool, ObjectError> {
        let old = &row.record;
        let mut record = ObjectManifest::new(Kind::Removal, &old.bucket, &old.key, old.version.next());
        record.removes = old.version;
        record.revision = old.revision;
        record.null = old.null;
        record.set_redundancy(self.of_removal(old.redundancy()));
        let flight = self.runs.begin(&*self.catalog, 0)?;
        record.attributes.insert(BEGUN.to_owned(), flight.begun.to_string());
        if self.bug != Some(Bug::ForgetRemoval) {
            self.store(record)?;
        }
        let (bucket, key, run) = (old.bucket.clone(), old.key.clone(), flight.begun.run());
        match self.make(Change::Erase { bucket, key, version: old.version, manifest: row.manifest, run }, flight) {
            Ok(()) => Ok(true),
            Err(CatalogError::Refused(Refused::NoVersion | Refused::NoBucket | Refused::Changed)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a change whose manifest is stored. What is not made stays in doubt: its manifest says that it was. Only what a
    /// removal says is true, too, when somebody else's came before it.
    fn make(&self, change: Change, flight: Flight<'_>) -> Result<(), CatalogError> {
        let removal = matches!(change, Change::Erase { .. });
        let outcome = self.catalog.change(change);
        match &outcome {
            Ok(()) => flight.settle(),
            Err(CatalogError::Refused(Refused::Ended)) => self.runs.ended(flight.begun.run()),
            Err(CatalogError::Refused(_)) if removal => flight.settle(),
            Err(_) => {}
        }
        outcome
    }

    /// Says in the manifests that this version never came to be, so that its put is settled. When that fails, only a
    /// catalog that is made again from the manifests would show it.
    fn withdraw(&self, refused: &ObjectManifest, flight: Flight<'_>) {
        let mut record = ObjectManifest::new(Kind::Removal, &refused.bucket, &refused.key, VersionId::default());
        record.removes = refused.version;
        record.set_redundancy(self.of_removal(refused.redundancy()));
        // Failing is harmless to whoever reads: no row names the version.
        let Ok(withdrawal) = self.begin(&mut record, refused.version.micros()) else { return };
        if self.bug == Some(Bug::ForgetWithdrawal) {
            withdrawal.settle();
            return flight.settle();
        }
        if self.store(record).is_ok() {
            withdrawal.settle();
            flight.settle();
        }
    }

    /// The record with its body, which a row may lack.
    ///
    /// # Errors
    /// When the manifest cannot be had or read.
    pub fn whole(&self, row: &Row) -> Result<ObjectManifest, ObjectError> {
        if row.record.body != Body::InManifest {
            return Ok(row.record.clone());
        }
        let id = row.manifest;
        let bytes = self.fetch(id)?;
        let record = ObjectManifest::decode(&bytes).map_err(|why| ObjectError::Manifest { id, why })?;
        if record.clone().row() != row.record {
            return Err(ObjectError::Manifest { id, why: Malformed::Version });
        }
        Ok(record)
    }

    fn fetch(&self, id: ChunkId) -> Result<Bytes, ObjectError> {
        let fetched = self.service.get(id).wait().map_err(failed(id))?;
        Ok(match <[Bytes; 1]>::try_from(fetched.pieces) {
            Ok([piece]) => piece,
            Err(pieces) => Bytes::from(pieces.concat()),
        })
    }

    /// Starts to store a record's manifest: as often as the map says, so that lost disks hide no name, and as often as what it
    /// names, or carries.
    fn put_manifest(
        &self,
        record: &ObjectManifest,
        id: ChunkId,
        bytes: Bytes,
    ) -> Pending<Result<Stored, ServiceError>> {
        let own = record.redundancy().map(Redundancy::in_copies);
        let redundancy = own.filter(|own| *own > self.service.map().redundancy());
        self.service.put(ChunkPut { redundancy, removal: record.is_removal(), ..ChunkPut::new(id, bytes) })
    }

    /// With which redundancy the manifest is stored that says that something is gone which had `own`: with the larger of
    /// that and the map's. Otherwise fewer lost disks than it takes to lose the object would bring it back in a catalog that
    /// is made again. What the map cannot keep any more does not stand in the way of a removal.
    fn of_removal(&self, own: Option<Redundancy>) -> Option<Redundancy> {
        let map = self.service.map();
        own.map(Redundancy::in_copies).filter(|own| *own > map.redundancy() && map.can_keep(*own).is_ok())
    }

    /// Gives a delete marker the redundancy of the newest version, which it hides, and of the null version if it takes its
    /// place.
    fn outlast_hidden(&self, marker: &mut ObjectManifest, newest: Option<&Row>) -> Result<(), CatalogError> {
        let null = if marker.null { self.catalog.version(&marker.bucket, &marker.key, None)? } else { None };
        let hidden =
            newest.into_iter().chain(&null).filter_map(|row| row.record.redundancy()).map(Redundancy::in_copies).max();
        marker.set_redundancy(self.of_removal(hidden));
        Ok(())
    }

    /// Stores a manifest.
    fn store(&self, record: ObjectManifest) -> Result<Row, ObjectError> {
        let (manifest, bytes) = record.chunk();
        let stored = self.put_manifest(&record, manifest, bytes).wait();
        stored.map_err(failed(manifest))?;
        Ok(Row { record: record.row(), manifest })
    }

    /// Begins the change that makes this record true, which becomes a version later than that.
    fn begin(&self, record: &mut ObjectManifest, later_than: u64) -> Result<Flight<'_>, CatalogError> {
        let flight = self.runs.begin(&*self.catalog, later_than)?;
        record.version = flight.begun;
        record.revision = record.version.micros();
        Ok(flight)
    }
}
