//! Connections.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use object::objects::Objects;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError, HttpResponse};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::access::Access;
use crate::cors::Page;
use crate::face::Face;
use crate::host::{Domain, bucket_of};
use crate::region;
use crate::unread::{self, Watched};
use crate::users::Users;
use crate::who::Peer;

/// Connections at once; further ones wait to be taken.
const CONNECTIONS: usize = 1_024;
/// How long a client may take for the head of a request, and how long a connection may be idle.
const HEAD: Duration = Duration::from_secs(60);
/// How often it is looked for what has expired.
const SWEEP: Duration = Duration::from_secs(3_600);
/// How long to wait when no connection can be taken.
const BREATH: Duration = Duration::from_millis(50);
/// Bytes of a request in XML: a thousand keys to delete have less.
const XML_BYTES: usize = 4 << 20;
/// Bytes of a file in a form: `s3s` holds them in memory before the form is refused.
const FORM_BYTES: u64 = 1 << 20;

/// Is told the status of each answer.
pub type Watch = Arc<dyn Fn(http::StatusCode) + Send + Sync>;

/// What can be configured.
#[derive(Clone, Default)]
pub struct Settings {
    /// The domain below which buckets are hosts (`BUCKET.DOMAIN`), beside the path style.
    pub domain: Option<String>,
    /// Who counts the answers.
    pub watch: Option<Watch>,
}

/// The S3 face, ready to be served.
#[derive(Clone)]
pub struct Server {
    service: S3Service,
    face: Face,
    domain: Option<Domain>,
    watch: Option<Watch>,
}

impl Server {
    /// The face of these objects for these users.
    ///
    /// # Errors
    /// When the domain is none.
    pub fn new(objects: Arc<Objects>, users: Users, settings: &Settings) -> Result<Self, String> {
        let mut config = S3Config::default();
        config.xml_max_body_size = XML_BYTES;
        config.post_object_max_file_size = FORM_BYTES;
        let face = Face::new(objects, users.clone());
        let mut builder = S3ServiceBuilder::new(face.clone());
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
        builder.set_auth(users.clone());
        builder.set_access(Access { users });
        let domain = settings.domain.as_deref().map(Domain::new).transpose()?;
        if let Some(domain) = &domain {
            builder.set_host(domain.clone());
        }
        Ok(Self { service: builder.build(), face, domain, watch: settings.watch.clone() })
    }

    /// Serves connections until `stop`, then waits for those that are in work.
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()>) {
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD);
        builder.http2().timer(TokioTimer::new()).max_concurrent_streams(64);
        let places = Arc::new(Semaphore::new(CONNECTIONS));
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
            let server = self.clone();
            let peer = Peer { address: from.ip().to_canonical(), secure: false };
            let service = service_fn(move |request| server.clone().serve_one(request, peer));
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            let connection = graceful.watch(connection.into_owned());
            tokio::spawn(async move {
                let _place = place;
                if let Err(error) = connection.await {
                    tracing::debug!("a connection broke off: {error}");
                }
            });
        }
        drop(listener);
        graceful.shutdown().await;
    }

    /// Answers a request, says how, and reads what nobody wanted of it.
    async fn serve_one(self, mut request: http::Request<Incoming>, peer: Peer) -> Result<HttpResponse, HttpError> {
        let watch = self.watch.clone();
        request.extensions_mut().insert(peer);
        let (request, unread) = unread::watch(request);
        let mut answer = self.answer(request).await?;
        if let Some(watch) = watch {
            watch(answer.status());
        }
        unread.finish(&mut answer).await;
        Ok(answer)
    }

    /// Answers a request; a page of another origin is told what it may do with the answer.
    async fn answer(self, request: http::Request<Watched>) -> Result<HttpResponse, HttpError> {
        let page = Page::of(request.method(), request.headers());
        let rule = match (&page, bucket_of(&request, self.domain.as_ref())) {
            (Some(page), Some(bucket)) => {
                let page = page.clone();
                self.face.blocking(move |face| face.cors_rule(&bucket, &page)).await.unwrap_or_default()
            }
            _ => None,
        };
        if let Some(page) = page.as_ref().filter(|page| page.preflight) {
            return Ok(page.preflight(rule.as_ref()));
        }
        if let Some(answer) = region::wrong(request.headers()) {
            return Ok(answer);
        }
        let mut answer = self.service.call(request.map(Body::http_body_unsync)).await?;
        if let Some(page) = page {
            page.tell(rule.as_ref(), answer.headers_mut());
        }
        Ok(answer)
    }

    /// Removes what has expired.
    fn sweep(&self) {
        let face = self.face.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(failure) = face.expire_uploads().and_then(|()| face.expire_objects()) {
                tracing::warn!("what has expired stays: {failure}");
            }
        });
    }
}
