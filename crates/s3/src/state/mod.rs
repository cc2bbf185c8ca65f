//! What the operations share: the objects, the users, and how many requests of each kind are in work at once.

pub(crate) mod activity;
pub(crate) mod admission;
mod encryption;
pub(crate) mod fair_queue;
pub(crate) mod keys;
mod lookup;
pub(crate) mod refusals;
mod secret_file;
pub(crate) mod users;

use std::sync::Arc;

use catalog::Row;
use http::Extensions;
use object::objects::Objects;
use s3s::{S3Result, s3_error};

use self::admission::{Admission, Allowed};
use self::fair_queue::{FairQueue, Permit};
use self::keys::KeyService;
use self::refusals::Reason;
use self::users::Users;
use crate::rules::caller::Caller;
use crate::rules::lifecycle::{self, Day, Rule};
use crate::rules::storage_class::StorageClasses;

/// Requests in work at once that carry bytes of objects. Each has a chunk in memory, and what it has ahead.
const TRANSFERS: usize = 128;
/// Requests in work at once whose body is a document. It is held in memory, with what was read from it.
const DOCUMENTS: usize = 32;
/// Of these, those of more than [`LARGE`]: to read one keeps a thread busy for a tenth of a second.
const LARGE_DOCUMENTS: usize = 4;
/// Bytes of a large document.
const LARGE: u64 = 256 << 10;
/// Lists that are made at once.
const LISTS: usize = 8;
/// Other requests in work at once that ask the catalog or change it, also before bytes are transferred. They have few of
/// the threads, so that nobody waits behind many requests of another user.
const QUERIES: usize = 64;
/// Requests of a kind that wait for a permit. Further ones are answered with `SlowDown`.
const WAITING: usize = 512;

/// What the operations of a gateway share.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) objects: Arc<Objects>,
    pub(crate) users: Users,
    pub(crate) classes: Arc<StorageClasses>,
    pub(crate) keys: Arc<dyn KeyService>,
    /// How long a day of lifecycle rules is.
    day: Day,
    transfers: FairQueue,
    documents: FairQueue,
    large_documents: FairQueue,
    lists: FairQueue,
    queries: FairQueue,
}

impl State {
    pub(crate) fn new(
        objects: Arc<Objects>,
        users: Users,
        classes: StorageClasses,
        keys: Arc<dyn KeyService>,
        day: Day,
    ) -> Self {
        let queue = |most| FairQueue::new(most, WAITING);
        Self {
            objects,
            users,
            classes: Arc::new(classes),
            keys,
            day,
            transfers: queue(TRANSFERS),
            documents: queue(DOCUMENTS),
            large_documents: queue(LARGE_DOCUMENTS),
            lists: queue(LISTS),
            queries: queue(QUERIES),
        }
    }

    /// The lifecycle rules of a bucket.
    pub(crate) fn rules(&self, bucket: &Row) -> S3Result<Vec<Rule>> {
        lifecycle::rules(bucket, self.day)
    }

    /// The permit to transfer bytes of an object, for a request that is allowed.
    pub(crate) async fn transfer_permit(&self, extensions: &Extensions) -> S3Result<Permit> {
        take(&self.transfers, &Caller::of(extensions)?, extensions).await
    }

    /// The permit to make a list, for a request that is allowed.
    pub(crate) async fn list_permit(&self, extensions: &Extensions) -> S3Result<Permit> {
        take(&self.lists, &Caller::of(extensions)?, extensions).await
    }

    /// The permit to read a document of so many bytes, if that is known, for a request that is allowed.
    pub(crate) async fn document_permit(
        &self,
        caller: &Caller,
        length: Option<u64>,
        extensions: &Extensions,
    ) -> S3Result<Permit> {
        let is_small = length.is_some_and(|length| length <= LARGE);
        take(if is_small { &self.documents } else { &self.large_documents }, caller, extensions).await
    }

    /// Asks the catalog or changes it, when the request has its permit.
    pub(crate) async fn query<T: Send + 'static>(
        &self,
        extensions: &Extensions,
        work: impl FnOnce(&Self) -> S3Result<T> + Send + 'static,
    ) -> S3Result<T> {
        let permit = take(&self.queries, &Caller::of(extensions)?, extensions).await?;
        self.blocking(move |state| {
            let _permit = permit;
            work(state)
        })
        .await
    }

    /// Asks the catalog, as [`query`](Self::query) does, and transfers bytes of what was found, when the request has the permit for that as well. Most
    /// need not wait for it, and go on in the same thread, which costs less than to find another.
    pub(crate) async fn transfer<Q: Send + 'static, T: Send + 'static>(
        &self,
        extensions: &Extensions,
        query: impl FnOnce(&Self) -> S3Result<Q> + Send + 'static,
        transfer: impl FnOnce(&Self, Q, Permit) -> S3Result<T> + Send + 'static,
    ) -> S3Result<T> {
        let caller = Caller::of(extensions)?;
        let allowed = extensions.get::<Arc<Allowed>>().cloned();
        let permit = take(&self.queries, &caller, extensions).await?;
        let begin = move |state: &Self| {
            let found = query(state)?;
            drop(permit);
            match state.transfers.take_now(caller.user.as_deref(), allowed) {
                Some(permit) => transfer(state, found, permit).map(Ok),
                None => Ok(Err((found, transfer))),
            }
        };
        match self.blocking(begin).await? {
            Ok(done) => Ok(done),
            Err((found, transfer)) => {
                let permit = self.transfer_permit(extensions).await?;
                self.blocking(move |state| transfer(state, found, permit)).await
            }
        }
    }

    /// Requests that transfer bytes of objects now.
    pub(crate) fn transferring(&self) -> usize {
        self.transfers.in_use()
    }

    /// Does blocking work off the async threads. It goes on when the client leaves, so permits belong into the work.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> S3Result<T> + Send + 'static,
    ) -> S3Result<T> {
        let state = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&state)).await;
        done.unwrap_or_else(|panic| Err(s3_error!(InternalError, "the request's work ended early: {panic}")))
    }
}

/// A permit of one kind for a request.
async fn take(queue: &FairQueue, caller: &Caller, extensions: &Extensions) -> S3Result<Permit> {
    let permit = queue.take(caller.user.as_deref(), extensions.get::<Arc<Allowed>>().cloned()).await;
    permit.ok_or_else(|| {
        if let Some(admission) = extensions.get::<Admission>() {
            admission.client.count(Reason::Busy);
        }
        s3_error!(SlowDown, "the gateway works on too many such requests already: ask again later, and fewer at once")
    })
}
