//! Connections.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use object::objects::Objects;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError, HttpResponse};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::access::Access;
use crate::cors::Page;
use crate::face::Face;
use crate::form::{self, Forms, Sender};
use crate::host::{Domain, bucket_of};
use crate::lobby::{Caller, Cost, GREETING, Guest, Lobby, MOST, Why};
use crate::pulse::{Counted, Pulse};
use crate::region;
use crate::senseless::Senseless;
use crate::tls::{Certificate, Tls};
use crate::unread::{self, Watched};
use crate::users::Users;
use crate::version2;
use crate::who::Peer;

/// Connections at once of those who are no strangers; further ones wait to be taken. Strangers have their own places.
const CONNECTIONS: usize = 1_024;
/// Bytes of a head, and of what is read ahead of a body.
const HEAD: usize = 128 << 10;
/// What is waited for a client when nothing else is said.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often within its patience it is looked whether a connection stands still.
const LOOKS: u32 = 4;
/// How often it is looked for what has expired.
const SWEEP: Duration = Duration::from_secs(3_600);
/// How long after looks that failed it is looked again. All together this is less than [`SWEEP`].
const AGAIN: [Duration; 4] =
    [Duration::from_secs(5), Duration::from_secs(10), Duration::from_secs(60), Duration::from_secs(600)];
/// How long to wait when no connection can be taken.
const BREATH: Duration = Duration::from_millis(50);
/// Bytes of a request in XML: a thousand keys to delete have less.
const XML_BYTES: usize = 4 << 20;
/// How long an encrypted connection may take to begin.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// What the face does and refuses, for metrics.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Requests and connections that were refused or ended since the start, by reason.
    pub refused: Vec<(&'static str, u64)>,
    /// Requests that work on the bytes of objects now.
    pub working: usize,
    /// Connections now on which nobody has shown yet that they may ask for anything.
    pub strangers: usize,
}

/// Is told the status of each answer.
pub type Watch = Arc<dyn Fn(StatusCode) + Send + Sync>;

/// What can be configured.
#[derive(Clone)]
pub struct Settings {
    /// The domain below which buckets are hosts (`BUCKET.DOMAIN`), beside the path style.
    pub domain: Option<String>,
    /// What connections are encrypted with; without it they are not.
    pub certificate: Option<Certificate>,
    /// How long a client may take for the head of a request, for each 64 KiB of a body or of an answer, and until it asks
    /// again.
    pub patience: Duration,
    /// Who counts the answers.
    pub watch: Option<Watch>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { domain: None, certificate: None, patience: PATIENCE, watch: None }
    }
}

/// The S3 face, ready to be served.
#[derive(Clone)]
pub struct Server {
    service: S3Service,
    face: Face,
    domain: Option<Domain>,
    tls: Option<Arc<Tls>>,
    forms: Forms,
    lobby: Arc<Lobby>,
    patience: Duration,
    watch: Option<Watch>,
}

impl Server {
    /// The face of these objects for these users.
    ///
    /// # Errors
    /// When the domain is none, or the certificate is no good.
    pub fn new(objects: Arc<Objects>, users: Users, settings: &Settings) -> Result<Self, String> {
        let mut config = S3Config::default();
        config.xml_max_body_size = XML_BYTES;
        config.post_object_max_file_size = form::FILE_BYTES;
        let face = Face::new(objects, users.clone());
        let config = Arc::new(StaticConfigProvider::new(Arc::new(config)));
        let domain = settings.domain.as_deref().map(Domain::new).transpose()?;
        let service = |route: Option<Senseless>| {
            let mut builder = S3ServiceBuilder::new(face.clone());
            builder.set_config(config.clone());
            builder.set_auth(users.clone());
            builder.set_access(Access { face: face.clone() });
            if let Some(domain) = &domain {
                builder.set_host(domain.clone());
            }
            if let Some(route) = route {
                builder.set_route(route);
            }
            builder.build()
        };
        let service = service(Some(Senseless { service: service(None) }));
        let tls = settings.certificate.as_ref().map(Tls::open).transpose()?.map(Arc::new);
        let (forms, lobby) = (Forms::new(), Arc::default());
        Ok(Self {
            service,
            face,
            domain,
            tls,
            forms,
            lobby,
            patience: settings.patience,
            watch: settings.watch.clone(),
        })
    }

    /// What it does and refuses, whenever it is asked.
    pub fn counts(&self) -> impl Fn() -> Counts + Send + Sync + 'static {
        let (face, lobby) = (self.face.clone(), Arc::clone(&self.lobby));
        move || Counts { refused: lobby.refusals.counts().collect(), working: face.working(), strangers: lobby.len() }
    }

    /// Serves connections until `stop`, then waits for those that are in work.
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()>) {
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(self.patience).max_buf_size(HEAD);
        builder.http2().timer(TokioTimer::new()).max_concurrent_streams(64);
        let places = Arc::new(Semaphore::new(CONNECTIONS + MOST));
        let graceful = GracefulShutdown::new();
        let mut stop = pin!(stop);
        let mut sweep = tokio::time::interval(SWEEP);
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
            let taken = tokio::select! {
                taken = listener.accept() => taken,
                _ = sweep.tick() => {
                    self.sweep();
                    continue;
                }
                () = &mut stop => break,
            };
            let (stream, from) = match taken {
                Ok(taken) => taken,
                Err(error) => {
                    tracing::warn!("a connection cannot be taken: {error}");
                    tokio::time::sleep(BREATH).await;
                    continue;
                }
            };
            // Small answers must not wait for more.
            let _ = stream.set_nodelay(true);
            let (server, builder, watcher) = (self.clone(), builder.clone(), graceful.watcher());
            let peer = Peer { address: from.ip().to_canonical(), secure: self.tls.is_some() };
            let acceptor = self.tls.as_ref().map(|tls| tls.acceptor());
            let cost = if peer.secure { Cost::Encrypted } else { Cost::Plain };
            let Some((guest, wait)) = Guest::enter(&self.lobby, peer.address, cost) else { continue };
            tokio::spawn(async move {
                let _place = place;
                let stay = async {
                    if !wait.is_zero() {
                        tokio::time::sleep(wait).await;
                    }
                    let Some(acceptor) = acceptor else {
                        return server.converse(&builder, stream, (peer, &guest), watcher).await;
                    };
                    match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => return server.converse(&builder, stream, (peer, &guest), watcher).await,
                        Ok(Err(error)) => tracing::debug!("a connection is not encrypted as it should be: {error}"),
                        Err(_) => tracing::debug!("a connection was not encrypted in time"),
                    }
                    guest.count(Why::Handshake);
                };
                tokio::select! {
                    () = stay => {}
                    () = guest.has_to_leave() => tracing::debug!("a connection without a good request gave way"),
                }
            });
        }
        drop(listener);
        graceful.shutdown().await;
    }

    /// Answers the requests of a connection.
    async fn converse<S>(
        self,
        builder: &Builder<TokioExecutor>,
        stream: S,
        (peer, guest): (Peer, &Arc<Guest>),
        watcher: Watcher,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (pulse, patience) = (Pulse::new(Instant::now()), self.patience);
        let stream = Counted { stream, pulse: Arc::clone(&pulse) };
        let (beats, asks) = (Arc::clone(&pulse), Arc::clone(guest));
        let service = service_fn(move |request| {
            let (server, work, caller) = (self.clone(), beats.work(), Caller::new(&asks, &beats));
            async move {
                let _work = work;
                server.serve_one(request, peer, caller).await
            }
        });
        let mut connection = pin!(watcher.watch(builder.serve_connection(TokioIo::new(stream), service).into_owned()));
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

    /// Answers a request, says how, and reads what nobody wanted of it.
    async fn serve_one(
        self,
        mut request: http::Request<Incoming>,
        peer: Peer,
        caller: Caller,
    ) -> Result<HttpResponse, HttpError> {
        let watch = self.watch.clone();
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(caller.clone());
        let version = request.version();
        let (request, unread) = unread::watch(request, self.patience);
        let mut answer = self.answer(request, peer, &caller).await?;
        let refused = answer.status() == StatusCode::FORBIDDEN && !caller.is_signed();
        if refused && !caller.guest.refused().await {
            if version > Version::HTTP_11 {
                caller.guest.end();
            }
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(watch) = watch {
            watch(answer.status());
        }
        unread.finish(&mut answer, &caller).await;
        Ok(answer)
    }

    /// Answers a request; a page of another origin is told what it may do with the answer.
    async fn answer(
        self,
        request: http::Request<Watched>,
        peer: Peer,
        caller: &Caller,
    ) -> Result<HttpResponse, HttpError> {
        let page = Page::of(request.method(), request.headers());
        let rule = match (&page, bucket_of(&request, self.domain.as_ref())) {
            (Some(page), Some(bucket)) => {
                let (page, _looks) = (page.clone(), caller.guest.looks().await);
                self.face.blocking(move |face| face.cors_rule(&bucket, &page)).await.unwrap_or_default()
            }
            _ => None,
        };
        if let Some(page) = page.as_ref().filter(|page| page.preflight) {
            return Ok(page.preflight(rule.as_ref()));
        }
        if version2::is_signed(request.headers(), request.uri()) {
            return Ok(version2::refusal());
        }
        if let Some(answer) = region::wrong(request.headers()) {
            return Ok(answer);
        }
        let form = form::is_form(&request);
        let (request, _turn) = if form {
            let bucket = bucket_of(&request, self.domain.as_ref());
            match self.forms.take(request, Sender { face: &self.face, caller, peer, bucket }).await {
                Ok((request, turn)) => (request, Some(turn)),
                Err(refusal) => return Ok(refusal),
            }
        } else {
            (request.map(Body::http_body_unsync), None)
        };
        let mut answer = self.service.call(request).await?;
        if form {
            answer = form::broken_policy(answer);
        }
        if let Some(page) = page {
            page.tell(rule.as_ref(), answer.headers_mut());
        }
        Ok(answer)
    }

    /// Removes what has expired; what stays because something failed is tried again soon.
    fn sweep(&self) {
        let face = self.face.clone();
        tokio::spawn(async move {
            for pause in AGAIN {
                let face = face.clone();
                let look = move || face.expire_uploads().and_then(|()| face.expire_objects());
                let Ok(Err(failure)) = tokio::task::spawn_blocking(look).await else { return };
                tracing::warn!("some of what has expired stays for {} s: {failure}", pause.as_secs());
                tokio::time::sleep(pause).await;
            }
        });
    }
}
