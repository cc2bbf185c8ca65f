//! Files over HTTP. Bodies stream in both directions; each file in work holds a bounded number of chunks in memory.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::{Stream, StreamExt, stream};
use object::{ChunkService, Error, PutOptions, ServiceError, Version};
use protocol::initiator::{GetError, Stored};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::api::{FileInfo, FileList, HASH_HEADER, INFO_HEADER, PutReport, Refusal, Status, hex};
use crate::{log, numbers};

mod door;
mod live;
mod metrics;
pub(crate) use door::Door;
use live::History;
pub(crate) use live::Live;
pub(crate) use metrics::{Metrics, S3Counts};

/// Files that are put or read at once; further requests are answered with 503.
const FILES: usize = 32;
/// Bytes of a refused body that are read to nowhere before the connection is broken off.
const UNREAD: usize = 1 << 30;
/// How long a client may neither send of the file that it puts nor take of the file that it gets.
const IDLE: Duration = Duration::from_secs(60);
/// Looks at the cluster's state at once; further ones are answered with 503. They have permits of their own, so that a
/// gateway with all its files in work can still be looked at.
const LOOKS: usize = 8;
/// Chunks of one file that are on their way at once.
const PIPELINE: usize = 8;
/// Latencies kept for the quantiles of one put; later ones replace earlier ones.
const LATENCIES: usize = 1 << 16;

/// What the gateway needs of the cluster.
pub(crate) trait Cluster: ChunkService + Send + Sync + 'static {
    /// Asks every target for its state. Blocks.
    fn status(&self) -> anyhow::Result<Status>;
    /// Metrics of the protocol's driver, in Prometheus' text format.
    fn metrics(&self) -> String;
    /// How long a put of a file may take.
    fn limit(&self) -> Duration;
    /// What it does, second by second.
    fn live(&self) -> Arc<Live>;
}

struct Gateway {
    cluster: Arc<dyn Cluster>,
    permits: Arc<Semaphore>,
    looks: Arc<Semaphore>,
    metrics: Metrics,
}

/// The gateway's pages, for those whom `door` lets ask. `s3` says what the S3 face does, if there is one.
pub(crate) fn router(cluster: Arc<dyn Cluster>, door: Door, s3: Option<S3Counts>) -> Router {
    let (permits, looks) = (Arc::new(Semaphore::new(FILES)), Arc::new(Semaphore::new(LOOKS)));
    let gateway = Gateway { cluster, permits, looks, metrics: Metrics::new(s3) };
    let router = Router::new()
        .route("/v1/files", get(list))
        .route("/v1/files/{name}", get(read).put(write))
        .route("/v1/status", get(status))
        .route("/v1/live", get(live_page))
        .route("/", get(page))
        .route("/metrics", get(metrics_page))
        .fallback(|| async {
            Failure(
                StatusCode::NOT_FOUND,
                "there is nothing here: files are below /v1/files/, the status page is /".to_owned(),
            )
        })
        .method_not_allowed_fallback(|method: Method| async move {
            Failure(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not possible here"))
        })
        .with_state(Arc::new(gateway));
    guarded(router, door)
}

/// Pages, for those whom `door` lets ask.
pub(crate) fn guarded(router: Router, door: Door) -> Router {
    router.layer(axum::middleware::from_fn_with_state(Arc::new(door), door::guard))
}

/// An answer that says what went wrong.
struct Failure(StatusCode, String);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, axum::Json(Refusal { error: self.1 })).into_response()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::NotFound(_) => StatusCode::NOT_FOUND,
            Error::Read { cause, .. } if cause.kind() == io::ErrorKind::TimedOut => StatusCode::REQUEST_TIMEOUT,
            Error::TooSlow(..) => StatusCode::REQUEST_TIMEOUT,
            Error::Name(_) | Error::ChunkSize(_) | Error::Read { .. } | Error::TooLarge(_) => StatusCode::BAD_REQUEST,
            Error::Manifest { .. } | Error::Mismatch { .. } | Error::Clock(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Error::Put { cause, .. } | Error::Get { cause, .. } | Error::List { cause, .. } => match &**cause {
                ServiceError::Get(GetError::NotFound) => StatusCode::INTERNAL_SERVER_ERROR,
                // Every copy is damaged.
                ServiceError::Get(GetError::Unavailable { silent, corrupt })
                    if silent.is_empty() && !corrupt.is_empty() =>
                {
                    StatusCode::INTERNAL_SERVER_ERROR
                }
                _ => StatusCode::SERVICE_UNAVAILABLE,
            },
            Error::Silent { .. } | Error::Write { .. } => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self(status, error.to_string())
    }
}

impl Gateway {
    fn permit(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let busy = || format!("the gateway works on {FILES} files already: try again later");
        Arc::clone(&self.permits).try_acquire_owned().map_err(|_| Failure(StatusCode::SERVICE_UNAVAILABLE, busy()))
    }

    fn look(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let busy = || format!("the gateway is asked for its state {LOOKS} times already: try again later");
        Arc::clone(&self.looks).try_acquire_owned().map_err(|_| Failure(StatusCode::SERVICE_UNAVAILABLE, busy()))
    }
}

/// Runs blocking work off the async threads. It goes on when the client leaves, so permits belong into the work.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Failure(StatusCode::INTERNAL_SERVER_ERROR, format!("the request's work ended early: {e}")))
}

async fn write(
    State(gateway): State<Arc<Gateway>>,
    Name(name): Name,
    body: Body,
) -> Result<axum::Json<PutReport>, Failure> {
    let permit = gateway.permit()?;
    let length = body.size_hint().exact();
    let (sender, receiver) = mpsc::channel(4);
    let put = blocking(move || {
        let _permit = permit;
        put(&gateway, &name, Incoming { receiver, part: Bytes::new(), length, taken: 0, ended: false })
    });
    let (outcome, ()) = tokio::join!(put, pump(body.into_data_stream(), sender));
    Ok(axum::Json(outcome??))
}

/// The name in a request's path.
struct Name(String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(error) => {
                Err(Failure(StatusCode::BAD_REQUEST, format!("the name cannot be used: {}", error.body_text())))
            }
        }
    }
}

/// What a request's body brings to the blocking side.
enum Part {
    Bytes(Bytes),
    /// The body is whole. Said outright, because the channel closes as well when the client goes away and this server
    /// gives up the request.
    End,
}

/// Hands a body to the blocking side. Reads on when that side has taken what was read. When it is gone, the rest is read
/// to nowhere, because who still sends does not hear why it was refused.
async fn pump<E>(mut body: impl Stream<Item = Result<Bytes, E>> + Unpin, sender: mpsc::Sender<io::Result<Part>>)
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut unread = UNREAD;
    loop {
        let part = match tokio::time::timeout(IDLE, body.next()).await {
            Ok(Some(part)) => part.map_err(io::Error::other),
            Ok(None) => break,
            Err(_) => {
                let text = format!("nothing of it came for {} s: put it again", IDLE.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, text))
            }
        };
        let (len, broken) = (part.as_ref().map_or(0, Bytes::len), part.is_err());
        if sender.send(part.map(Part::Bytes)).await.is_err() {
            unread = unread.saturating_sub(len);
        }
        if broken || unread == 0 {
            return;
        }
    }
    // Who has refused the file does not care for its end.
    let _ = sender.send(Ok(Part::End)).await;
}

/// Puts a file and measures it.
fn put(gateway: &Gateway, name: &str, mut source: Incoming) -> Result<PutReport, Error> {
    let begin = Instant::now();
    let mut latencies = Vec::new();
    let mut count = 0;
    let mut chunks_there = 0;
    let mut copies_by_target = BTreeMap::new();
    let options = PutOptions { pipeline: PIPELINE, limit: gateway.cluster.limit(), ..PutOptions::default() };
    let outcome = object::put_file(&*gateway.cluster, name, &mut source, &options, &mut |stored: &Stored| {
        let ms = stored.took.as_nanos() as f64 / 1e6;
        gateway.metrics.chunk_put(ms / 1e3);
        if latencies.len() < LATENCIES {
            latencies.push(ms);
        } else {
            latencies[count % LATENCIES] = ms;
        }
        count += 1;
        chunks_there += u64::from(stored.rounds == 0);
        for holder in &stored.holders {
            *copies_by_target.entry(holder.0).or_insert(0) += 1;
        }
    });
    gateway.metrics.put(outcome.as_ref().ok().map(|v| v.manifest.size));
    let version = outcome?;
    let seconds = begin.elapsed().as_secs_f64();
    latencies.sort_by(f64::total_cmp);
    Ok(PutReport {
        file: FileInfo::from(&version),
        seconds,
        mb_per_s: numbers::mb_per_s(version.manifest.size, seconds),
        chunk_p50_ms: numbers::quantile(&latencies, 50.0),
        chunk_p99_ms: numbers::quantile(&latencies, 99.0),
        chunks_there,
        copies_by_target,
    })
}

/// A request's body, read on a blocking thread. It ends only where the client said that it ends.
struct Incoming {
    receiver: mpsc::Receiver<io::Result<Part>>,
    part: Bytes,
    /// Its `Content-Length`, when there was one.
    length: Option<u64>,
    /// Bytes that came.
    taken: u64,
    ended: bool,
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() && !self.ended {
            match self.receiver.blocking_recv().transpose()? {
                Some(Part::Bytes(part)) => {
                    self.taken += part.len() as u64;
                    self.part = part;
                }
                Some(Part::End) if self.length.is_none_or(|length| length == self.taken) => self.ended = true,
                Some(Part::End) | None => {
                    let text = format!("it broke off after {} bytes: put it again", self.taken);
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
                }
            }
        }
        let part = self.part.split_to(self.part.len().min(buffer.len()));
        buffer[..part.len()].copy_from_slice(&part);
        Ok(part.len())
    }
}

/// GET and HEAD.
async fn read(State(gateway): State<Arc<Gateway>>, method: Method, Name(name): Name) -> Result<Response, Failure> {
    let permit = gateway.permit()?;
    let cluster = Arc::clone(&gateway.cluster);
    let (version, permit) = blocking(move || (object::newest(&*cluster, &name), permit)).await?;
    let version = version?;
    let length = version.manifest.size;
    let mut response = if method == Method::HEAD {
        Response::new(Body::empty())
    } else {
        Response::new(outgoing(gateway, version.clone(), permit).await?)
    };
    let info = serde_json::to_string(&FileInfo::from(&version)).unwrap_or_default();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    for (name, text) in [(HASH_HEADER, hex(&version.manifest.hash)), (INFO_HEADER, info)] {
        if let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) {
            headers.insert(name, value);
        }
    }
    Ok(response)
}

/// The bytes of a version as a body, once there are some: what fails before that is an answer of its own. The body ends
/// short, with an error, when the rest cannot be had and verified.
async fn outgoing(gateway: Arc<Gateway>, version: Version, permit: OwnedSemaphorePermit) -> Result<Body, Failure> {
    let (sender, mut receiver) = mpsc::channel(4);
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let mut sink = Outgoing { sender: sender.clone(), held: None, runtime };
        let outcome = object::file::read_version(&*gateway.cluster, &version, &mut sink, PIPELINE);
        gateway.metrics.get(outcome.as_ref().ok().map(|()| version.manifest.size));
        if let Err(error) = outcome {
            tracing::warn!(name = version.manifest.name, %error, "a file could not be read");
            // Whoever reads has gone, or takes nothing, when this fails: the body then ends short of its length.
            let _ = sender.try_send(Err(Failure::from(error)));
        }
    });
    let first = receiver.recv().await.transpose()?;
    let rest = stream::unfold(receiver, async |mut receiver| {
        let part: Result<Bytes, Failure> = receiver.recv().await?;
        Some((part.map_err(|Failure(_, why)| io::Error::other(why)), receiver))
    });
    Ok(Body::from_stream(stream::iter(first.map(Ok)).chain(rest)))
}

/// Hands parts to the response, the last only when the whole was verified: then `flush` is called.
struct Outgoing {
    sender: mpsc::Sender<Result<Bytes, Failure>>,
    held: Option<Bytes>,
    runtime: Handle,
}

impl Outgoing {
    fn send(&mut self) -> io::Result<()> {
        let Some(part) = self.held.take() else { return Ok(()) };
        let sent = self.runtime.block_on(async { tokio::time::timeout(IDLE, self.sender.send(Ok(part))).await });
        match sent {
            Ok(sent) => sent.map_err(|_| io::ErrorKind::BrokenPipe.into()),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Write for Outgoing {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.send()?;
        self.held = Some(Bytes::copy_from_slice(buffer));
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

async fn list(State(gateway): State<Arc<Gateway>>) -> Result<axum::Json<FileList>, Failure> {
    let permit = gateway.permit()?;
    let cluster = Arc::clone(&gateway.cluster);
    let listing = blocking(move || {
        let _permit = permit;
        object::list(&*cluster, PIPELINE)
    })
    .await??;
    Ok(axum::Json(FileList {
        files: listing.files.values().map(FileInfo::from).collect(),
        unreadable: listing.unreadable.into_iter().map(|(id, why)| (id.to_string(), why)).collect(),
        silent: listing.silent.iter().map(|n| n.0).collect(),
        incomplete: listing.incomplete,
    }))
}

async fn status(State(gateway): State<Arc<Gateway>>) -> Result<axum::Json<Status>, Failure> {
    let look = gateway.look()?;
    let status = blocking(move || {
        let _look = look;
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

#[cfg(test)]
mod tests;
