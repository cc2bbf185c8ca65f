//! Connections of one port: how they are taken, how long they may stand still, and when strangers' give way.

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

use crate::lobby::{Allowed, Caller, Cost, GREETING, Guest, Lobby, MOST};
use crate::pulse::{Counted, Pulse, Working};
use crate::refusals::Why;

/// What is waited for a client when nothing else is said.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Connections at once of those who are no strangers; further ones wait to be taken. Strangers have their own places.
const CONNECTIONS: usize = 1_024;
/// Bytes of a head, and of what is read ahead of a body.
const HEAD: usize = 128 << 10;
/// How often within its patience it is looked whether a connection stands still.
const LOOKS: u32 = 4;
/// How long to wait when no connection can be taken.
const BREATH: Duration = Duration::from_millis(50);
/// How often it is said that none can.
const SAID: Duration = Duration::from_secs(60);

/// A port whose connections are strangers' at first.
pub(crate) struct Port {
    listener: TcpListener,
    lobby: Arc<Lobby>,
    places: Arc<Semaphore>,
    builder: Builder<TokioExecutor>,
    graceful: GracefulShutdown,
    patience: Duration,
    /// When it was said last that no connection can be taken, and how often none could since.
    said: Mutex<(Option<Instant>, u64)>,
}

/// One connection's place.
pub(crate) struct Seat {
    pub(crate) guest: Arc<Guest>,
    pub(crate) address: IpAddr,
    /// How long it waits before anything of it is looked at.
    wait: Duration,
    builder: Builder<TokioExecutor>,
    watcher: Watcher,
    patience: Duration,
    _place: OwnedSemaphorePermit,
}

impl Port {
    pub(crate) fn new(listener: TcpListener, lobby: Arc<Lobby>, patience: Duration) -> Self {
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(patience).max_buf_size(HEAD);
        builder.http2().timer(TokioTimer::new()).max_concurrent_streams(64);
        let places = Arc::new(Semaphore::new(CONNECTIONS + MOST));
        let (graceful, said) = (GracefulShutdown::new(), Mutex::default());
        Self { listener, lobby, places, builder, graceful, patience, said }
    }

    /// The next that comes and may come in; `None` when the port is closed.
    pub(crate) async fn next(&self, cost: Cost) -> Option<(TcpStream, Seat)> {
        loop {
            let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
            let (stream, from) = match self.listener.accept().await {
                Ok(taken) => taken,
                Err(error) => {
                    self.complain(&error);
                    tokio::time::sleep(BREATH).await;
                    continue;
                }
            };
            // Small answers must not wait for more.
            let _ = stream.set_nodelay(true);
            let address = from.ip().to_canonical();
            let Some((guest, wait)) = Guest::enter(&self.lobby, address, cost) else { continue };
            let (builder, watcher, patience) = (self.builder.clone(), self.graceful.watcher(), self.patience);
            return Some((stream, Seat { guest, address, wait, builder, watcher, patience, _place: place }));
        }
    }

    /// Whoever holds all descriptors must not fill the log as well.
    fn complain(&self, error: &std::io::Error) {
        let (last, times) = &mut *self.said.lock().unwrap_or_else(PoisonError::into_inner);
        *times += 1;
        if last.is_none_or(|last| last.elapsed() >= SAID) {
            tracing::warn!("connections cannot be taken ({times} times since this was said last): {error}");
            (*last, *times) = (Some(Instant::now()), 0);
        }
    }

    /// Takes no more, and waits for those that are in work.
    pub(crate) async fn close(self) {
        drop(self.listener);
        self.graceful.shutdown().await;
    }
}

impl Seat {
    /// Works until its end, or until it has to give way.
    pub(crate) async fn stay<F: Future<Output = ()>>(self, work: impl FnOnce(Self) -> F) {
        let (guest, wait) = (Arc::clone(&self.guest), self.wait);
        let stay = async {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            work(self).await;
        };
        tokio::select! {
            () = stay => {}
            () = guest.has_to_leave() => tracing::debug!("a connection without a good request gave way"),
        }
    }

    /// Answers the requests of a connection.
    pub(crate) async fn converse<S, A, F, B, E>(self, stream: S, answer: A)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        A: Fn(Request<Incoming>, Caller) -> F,
        F: Future<Output = Result<Response<B>, E>> + Send + 'static,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let (guest, pulse, patience) = (self.guest, Pulse::new(Instant::now()), self.patience);
        let stream = Counted { stream, pulse: Arc::clone(&pulse) };
        let (beats, asks) = (Arc::clone(&pulse), Arc::clone(&guest));
        let service = service_fn(move |request| {
            let (work, answer) = (beats.work(), answer(request, Caller::new(&asks, &beats)));
            async move {
                let _work = work;
                answer.await
            }
        });
        let connection = self.builder.serve_connection(TokioIo::new(stream), service).into_owned();
        let mut connection = pin!(self.watcher.watch(connection));
        let mut look = tokio::time::interval(patience.min(GREETING) / LOOKS);
        loop {
            tokio::select! {
                ended = &mut connection => {
                    return ended.unwrap_or_else(|error| tracing::debug!("a connection broke off: {error}"));
                }
                now = look.tick() => {
                    let patience = if guest.is_known() { patience } else { patience.min(GREETING) };
                    if pulse.has_stopped(now.into_std(), patience) {
                        guest.count(Why::StoodStill);
                        return tracing::debug!("a connection stood still and was ended");
                    }
                }
            }
        }
    }
}

/// The body of an answer. It is in work while its next part is waited for, and not while the client takes nothing.
struct Produced<B> {
    body: B,
    caller: Caller,
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
            self.working = Some((self.caller.allow(), self.caller.pulse.work()));
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

/// Serves pages for whom `service` answers, until `stop`. Nobody signs here: a connection is a stranger's while nothing on it
/// is in work.
pub async fn serve_pages<S, B>(listener: TcpListener, service: S, stop: impl Future<Output = ()>)
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let port = Port::new(listener, Arc::default(), PATIENCE);
    let mut stop = pin!(stop);
    loop {
        let (stream, seat) = tokio::select! {
            Some(next) = port.next(Cost::Plain) => next,
            () = &mut stop => break,
            else => break,
        };
        let service = service.clone();
        let answer = move |request, caller: Caller| {
            let (allowed, answer) = (caller.allow(), service.call(request));
            async move {
                let _allowed = allowed;
                Ok::<_, S::Error>(answer.await?.map(|body| Produced { body, caller, working: None }))
            }
        };
        tokio::spawn(seat.stay(|seat| seat.converse(stream, answer)));
    }
    port.close().await;
}
