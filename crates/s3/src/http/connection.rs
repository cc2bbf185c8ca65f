//! The connections of a port: how they are accepted, when they are idle for too long, and when strangers are evicted.

use std::error::Error;
use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::idle_timeout::CountedStream;
use crate::state::activity::{Activity, Working};
use crate::state::admission::{Admission, AdmissionControl, Allowed, Client, Cost, FIRST_REQUEST_TIMEOUT, HARD_LIMIT};
use crate::state::refusals::Reason;

/// How long to wait for a client when nothing else is configured.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Authenticated connections at once; further ones wait to be accepted. Strangers have places of their own.
const CONNECTIONS: usize = 1_024;
/// Bytes of a head, and of what is read ahead of a body.
const HEAD: usize = 128 << 10;
/// How often within the timeout a connection is checked for traffic.
const CHECKS: u32 = 4;
/// How long to wait when no connection can be accepted.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// The least time between two lines in the log that say so.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A listening port. Its connections are strangers' at first.
pub(crate) struct Listener {
    socket: TcpListener,
    control: Arc<AdmissionControl>,
    slots: Arc<Semaphore>,
    builder: Builder<TokioExecutor>,
    graceful: GracefulShutdown,
    timeout: Duration,
    /// When it was last logged that no connection can be accepted, and how often that happened since.
    logged: Mutex<(Option<Instant>, u64)>,
}

/// An accepted connection, but for its stream.
pub(crate) struct Accepted {
    pub(crate) client: Arc<Client>,
    pub(crate) address: IpAddr,
    /// How long it waits before it is served.
    wait: Duration,
    builder: Builder<TokioExecutor>,
    watcher: Watcher,
    timeout: Duration,
    _slot: OwnedSemaphorePermit,
}

impl Listener {
    pub(crate) fn new(listener: TcpListener, control: Arc<AdmissionControl>, timeout: Duration) -> Self {
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(timeout).max_buf_size(HEAD);
        builder.http2().timer(TokioTimer::new()).max_concurrent_streams(64);
        let slots = Arc::new(Semaphore::new(CONNECTIONS + HARD_LIMIT));
        let (graceful, logged) = (GracefulShutdown::new(), Mutex::default());
        Self { socket: listener, control, slots, builder, graceful, timeout, logged }
    }

    /// The next connection that is admitted; `None` when the port is closed.
    pub(crate) async fn next(&self, cost: Cost) -> Option<(TcpStream, Accepted)> {
        loop {
            let slot = Arc::clone(&self.slots).acquire_owned().await.ok()?;
            let (stream, from) = match self.socket.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.log_failure(&error);
                    tokio::time::sleep(RETRY_DELAY).await;
                    continue;
                }
            };
            // Small answers must not wait for more.
            let _ = stream.set_nodelay(true);
            let address = from.ip().to_canonical();
            let Some((client, wait)) = Client::enter(&self.control, address, cost) else { continue };
            let (builder, watcher, timeout) = (self.builder.clone(), self.graceful.watcher(), self.timeout);
            return Some((stream, Accepted { client, address, wait, builder, watcher, timeout, _slot: slot }));
        }
    }

    /// Logs seldom: a client that holds all descriptors must not fill the log as well.
    fn log_failure(&self, error: &std::io::Error) {
        let (last, times) = &mut *self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        *times += 1;
        if last.is_none_or(|last| last.elapsed() >= LOG_INTERVAL) {
            tracing::warn!("connections cannot be taken ({times} times since this was logged last): {error}");
            (*last, *times) = (Some(Instant::now()), 0);
        }
    }

    /// Accepts no more, and waits for requests in work.
    pub(crate) async fn close(self) {
        drop(self.socket);
        self.graceful.shutdown().await;
    }
}

impl Accepted {
    /// Serves it until its end, or until it is evicted.
    pub(crate) async fn run<F: Future<Output = ()>>(self, work: impl FnOnce(Self) -> F) {
        let (client, wait) = (Arc::clone(&self.client), self.wait);
        let run = async {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            work(self).await;
        };
        tokio::select! {
            () = run => {}
            () = client.evicted() => tracing::debug!("a connection without a good request gave way"),
        }
    }

    /// Answers the requests of a connection.
    pub(crate) async fn serve_requests<S, A, F, B, E>(self, stream: S, answer: A)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        A: Fn(Request<Incoming>, Admission) -> F,
        F: Future<Output = Result<Response<B>, E>> + Send + 'static,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let (client, activity, timeout) = (self.client, Activity::new(Instant::now()), self.timeout);
        let stream = CountedStream { stream, activity: Arc::clone(&activity) };
        let (requests, asks) = (Arc::clone(&activity), Arc::clone(&client));
        let service = service_fn(move |request| {
            let (work, answer) = (requests.work(), answer(request, Admission::new(&asks, &requests)));
            async move {
                let _work = work;
                answer.await
            }
        });
        let connection = self.builder.serve_connection(TokioIo::new(stream), service).into_owned();
        let mut connection = pin!(self.watcher.watch(connection));
        let mut check = tokio::time::interval(timeout.min(FIRST_REQUEST_TIMEOUT) / CHECKS);
        loop {
            tokio::select! {
                ended = &mut connection => {
                    return ended.unwrap_or_else(|error| tracing::debug!("a connection broke off: {error}"));
                }
                now = check.tick() => {
                    let timeout = if client.is_authenticated() { timeout } else { timeout.min(FIRST_REQUEST_TIMEOUT) };
                    if activity.is_idle(now.into_std(), timeout) {
                        client.count(Reason::StoodStill);
                        return tracing::debug!("a connection stood still and was ended");
                    }
                }
            }
        }
    }
}

/// The body of an answer. Its request is in work while the next part is being made, and not while the client takes nothing.
struct Produced<B> {
    body: B,
    admission: Admission,
    working: Option<(Arc<Allowed>, Working)>,
}

impl<B: Body + Unpin> Body for Produced<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let next = Pin::new(&mut self.body).poll_frame(cx);
        if next.is_ready() {
            self.working = None;
        } else if self.working.is_none() {
            self.working = Some((self.admission.allow(), self.admission.activity.work()));
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves pages that `service` makes, until `stop`. Nothing is signed here: a connection is a stranger's while no request
/// on it is in work.
pub async fn serve_pages<S, B>(listener: TcpListener, service: S, stop: impl Future<Output = ()>)
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let listener = Listener::new(listener, Arc::default(), DEFAULT_TIMEOUT);
    let mut stop = pin!(stop);
    loop {
        let (stream, accepted) = tokio::select! {
            Some(next) = listener.next(Cost::Plain) => next,
            () = &mut stop => break,
            else => break,
        };
        let service = service.clone();
        let answer = move |request, admission: Admission| {
            let (allowed, answer) = (admission.allow(), service.call(request));
            async move {
                let _allowed = allowed;
                Ok::<_, S::Error>(answer.await?.map(|body| Produced { body, admission, working: None }))
            }
        };
        tokio::spawn(accepted.run(|accepted| accepted.serve_requests(stream, answer)));
    }
    listener.close().await;
}
