//! What the object layer needs of the world: chunks, a catalog, clocks and chance. Everything that takes time is asked of
//! the world, so that other tasks and gateways come between.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use catalog::object_manifest::VersionId;
use catalog::{Catalog, CatalogError, Change, Part, Row, Run, Start, Transient, Upload};
use object::{ChunkService, Host, Pending, ServiceError};
use protocol::id::{ChunkId, NodeId};
use protocol::initiator::{ChunkPut, Discard, Discarded, Fetched, Found, Marked, Query, QueryAnswer, Stored};
use protocol::map::ClusterMap;
use protocol::redundancy::{Pieces, Redundancy};
use protocol::time::Span;

use super::coroutines::{Answer, TaskHandle, TaskRequest, lock};
use crate::planted::PlantedBug;

/// How long a task that finds a lock taken lets others run.
const GIVE_WAY: Span = Span::from_micros(50);

/// The surroundings of one gateway, from its start to its end.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(crate) handle: TaskHandle,
    pub(crate) maps: Arc<Vec<ClusterMap>>,
    pub(crate) catalog: Arc<Transient>,
    pub(crate) planted: Option<PlantedBug>,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gateway {}", self.handle.node)
    }
}

impl Host for Gateway {
    fn elapsed(&self) -> Duration {
        self.handle.local().elapsed
    }

    fn wall(&self) -> Duration {
        self.handle.local().wall
    }

    fn random(&self) -> u64 {
        lock(&self.handle.queues).rng.next_u64()
    }

    fn before_lock(&self, is_free: &dyn Fn() -> bool) {
        while !is_free() {
            self.handle.sleep(GIVE_WAY);
        }
    }
}

fn astray<T>() -> Result<T, ServiceError> {
    Err(ServiceError::Stopped("an answer to another question".to_owned()))
}

impl Gateway {
    /// The cluster map that it uses now.
    fn current_map(&self) -> &ClusterMap {
        &self.maps[self.handle.local().map]
    }

    fn start_put(&self, request: TaskRequest) -> Pending<Result<Stored, ServiceError>> {
        self.pending(request, |answer| match answer {
            Answer::Put(result) => Ok(result?),
            _ => astray(),
        })
    }

    fn pending<T: 'static>(
        &self,
        request: TaskRequest,
        take: impl FnOnce(Answer) -> Result<T, ServiceError> + Send + 'static,
    ) -> Pending<Result<T, ServiceError>> {
        let (handle, ticket) = (self.handle.clone(), self.handle.submit(request));
        Pending::new(move || take(handle.wait(ticket)))
    }
}

impl ChunkService for Gateway {
    fn put(&self, put: ChunkPut) -> Pending<Result<Stored, ServiceError>> {
        self.start_put(TaskRequest::Put(put))
    }

    fn get_fragments(
        &self,
        id: ChunkId,
        holders: Vec<NodeId>,
        fragments: Option<Pieces>,
    ) -> Pending<Result<Fetched, ServiceError>> {
        self.pending(TaskRequest::Get(id, holders, fragments), |answer| match answer {
            Answer::Get(result) => Ok(result?),
            _ => astray(),
        })
    }

    fn list(&self, prefix: Vec<u8>) -> Pending<Result<Found, ServiceError>> {
        self.pending(TaskRequest::Query(Query::List { prefix }), |answer| match answer {
            Answer::Query(QueryAnswer::List(result)) => Ok(result?),
            _ => astray(),
        })
    }

    fn renew(&self, id: ChunkId, redundancy: Option<Redundancy>) -> Pending<Result<bool, ServiceError>> {
        self.pending(TaskRequest::Query(Query::Renew { id, redundancy }), |answer| match answer {
            Answer::Query(QueryAnswer::Renew(result)) => Ok(result?),
            _ => astray(),
        })
    }

    fn mark(&self) -> Pending<Result<Marked, ServiceError>> {
        self.pending(TaskRequest::Query(Query::Mark), |answer| match answer {
            Answer::Query(QueryAnswer::Mark(result)) => Ok(result?),
            _ => astray(),
        })
    }

    fn discard(&self, discard: Discard) -> Pending<Result<Discarded, ServiceError>> {
        self.pending(TaskRequest::Query(Query::Discard(discard)), |answer| match answer {
            Answer::Query(QueryAnswer::Discard(result)) => Ok(result?),
            _ => astray(),
        })
    }

    fn map(&self) -> ClusterMap {
        self.current_map().clone()
    }
}

impl Gateway {
    /// Asks the catalog, once the question has reached it.
    fn question<T>(&self, query: impl FnOnce(&Transient) -> Result<T, CatalogError>) -> Result<T, CatalogError> {
        let ticket = self.handle.submit(TaskRequest::Question);
        match self.handle.wait(ticket) {
            Answer::Catalog(result) => result.and_then(|()| query(&self.catalog)),
            _ => Err(CatalogError::Engine("an answer to another question".to_owned())),
        }
    }
}

impl Catalog for Gateway {
    fn change(&self, change: Change) -> Result<(), CatalogError> {
        let ticket = self.handle.submit(TaskRequest::Change(Box::new(change)));
        match self.handle.wait(ticket) {
            Answer::Catalog(result) => result,
            _ => Err(CatalogError::Engine("an answer to another question".to_owned())),
        }
    }

    fn bucket(&self, name: &str) -> Result<Option<Row>, CatalogError> {
        self.question(|catalog| catalog.bucket(name))
    }

    fn buckets(&self, after: &str, limit: usize) -> Result<Vec<Row>, CatalogError> {
        self.question(|catalog| catalog.buckets(after, limit))
    }

    fn newest(&self, bucket: &str, key: &str) -> Result<Option<Row>, CatalogError> {
        self.question(|catalog| catalog.newest(bucket, key))
    }

    fn version(&self, bucket: &str, key: &str, version: Option<VersionId>) -> Result<Option<Row>, CatalogError> {
        self.question(|catalog| catalog.version(bucket, key, version))
    }

    fn objects(&self, bucket: &str, from: &Start, limit: usize) -> Result<Vec<Row>, CatalogError> {
        self.question(|catalog| catalog.objects(bucket, from, limit))
    }

    fn versions(&self, bucket: &str, from: &Start, limit: usize) -> Result<Vec<(Row, bool)>, CatalogError> {
        self.question(|catalog| catalog.versions(bucket, from, limit))
    }

    fn upload(&self, id: VersionId) -> Result<Option<Upload>, CatalogError> {
        self.question(|catalog| catalog.upload(id))
    }

    fn uploads(&self, bucket: &str, from: &Start, limit: usize) -> Result<Vec<Upload>, CatalogError> {
        self.question(|catalog| catalog.uploads(bucket, from, limit))
    }

    fn parts(&self, upload: VersionId, after: u32, limit: usize) -> Result<Vec<Part>, CatalogError> {
        self.question(|catalog| catalog.parts(upload, after, limit))
    }

    fn part(&self, upload: VersionId, number: u32) -> Result<Option<Part>, CatalogError> {
        self.question(|catalog| catalog.part(upload, number))
    }

    fn runs(&self) -> Result<Vec<Run>, CatalogError> {
        self.question(Catalog::runs)
    }
}
