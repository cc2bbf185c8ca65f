//! The gateway's pages over HTTP: its status for people and programs, and its metrics.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::{Refusal, Status};
use crate::log;
use crate::watch::Watch;

mod host_check;
mod join;
mod live;
mod metrics;
pub(crate) use host_check::HostCheck;
pub(crate) use join::JoinDesk;
use live::History;
pub(crate) use live::Live;
pub(crate) use metrics::{Metrics, S3Counts};

/// Queries of the cluster's state at once; further ones are answered with 503.
const QUERIES: usize = 8;

/// What the gateway needs of the cluster.
pub(crate) trait Cluster: Send + Sync + 'static {
    /// Asks every target for its state. Blocks.
    fn status(&self) -> anyhow::Result<Status>;
    /// Metrics of the protocol's driver, in Prometheus' text format.
    fn metrics(&self) -> String;
    /// What was seen of how it is.
    fn watch(&self) -> Watch;
    /// What it does, second by second.
    fn live(&self) -> Arc<Live>;
}

struct Gateway {
    cluster: Arc<dyn Cluster>,
    queries: Arc<Semaphore>,
    metrics: Metrics,
}

/// The gateway's pages, for those whom `check` lets ask, and the desk where targets join. `s3` says what the S3 API does, if there is
/// one.
pub(crate) fn router(cluster: Arc<dyn Cluster>, check: HostCheck, s3: Option<S3Counts>, desk: JoinDesk) -> Router {
    let metrics = Metrics::new(cluster.watch(), s3);
    let gateway = Gateway { cluster, queries: Arc::new(Semaphore::new(QUERIES)), metrics };
    let router = Router::new()
        .route("/v1/status", get(status))
        .route("/v1/live", get(live_page))
        .route("/", get(page))
        .route("/metrics", get(metrics_page))
        .fallback(|| async {
            let why = "there is nothing here: the status page is /, objects are at the S3 address".to_owned();
            Failure(StatusCode::NOT_FOUND, why)
        })
        .method_not_allowed_fallback(|method: Method| async move {
            Failure(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not possible here"))
        })
        .with_state(Arc::new(gateway))
        .merge(desk.router());
    guarded(router, check)
}

/// Pages, for those whom `check` lets ask.
pub(crate) fn guarded(router: Router, check: HostCheck) -> Router {
    router.layer(axum::middleware::from_fn_with_state(Arc::new(check), host_check::guard))
}

/// An answer that says what went wrong.
struct Failure(StatusCode, String);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, axum::Json(Refusal { error: self.1 })).into_response()
    }
}

impl Gateway {
    fn admit_query(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let busy = || format!("the gateway is asked for its state {QUERIES} times already: try again later");
        Arc::clone(&self.queries).try_acquire_owned().map_err(|_| Failure(StatusCode::SERVICE_UNAVAILABLE, busy()))
    }
}

/// Runs blocking work off the async threads. It goes on when the client leaves, so permits belong into the work.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Failure(StatusCode::INTERNAL_SERVER_ERROR, format!("the request's work ended early: {e}")))
}

async fn status(State(gateway): State<Arc<Gateway>>) -> Result<axum::Json<Status>, Failure> {
    let permit = gateway.admit_query()?;
    let status = blocking(move || {
        let _permit = permit;
        gateway.cluster.status()
    })
    .await?;
    status.map(axum::Json).map_err(|error| Failure(StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}")))
}

/// What happened in the last minutes.
async fn live_page(State(gateway): State<Arc<Gateway>>) -> axum::Json<History> {
    let seconds = gateway.cluster.live().seconds(Instant::now());
    axum::Json(History { seconds, warnings: log::last() })
}

/// The status page, for people.
async fn page() -> impl IntoResponse {
    // It has everything in itself, and asks nobody but this gateway.
    let policy = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                  img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, include_str!("gateway/page.html"))
}

async fn metrics_page(State(gateway): State<Arc<Gateway>>) -> impl IntoResponse {
    let mut text = gateway.metrics.text();
    let driver = gateway.cluster.metrics();
    if !driver.is_empty() {
        // One exposition has one end mark.
        text = text.trim_end_matches("# EOF\n").to_owned() + &driver;
    }
    ([(header::CONTENT_TYPE, node::metrics::CONTENT_TYPE)], text)
}
