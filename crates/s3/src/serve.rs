//! The port of S3.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode, Version, header};
use hyper::body::Incoming;
use object::objects::Objects;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError, HttpResponse};
use tokio::net::{TcpListener, TcpStream};

use crate::access::{Access, parameters};
use crate::chunks::{self, Chunked};
use crate::connection::{PATIENCE, Port, Seat};
use crate::cors::Page;
use crate::face::Face;
use crate::form::{self, Forms, Sender};
use crate::host::{Domain, bucket_of};
use crate::lobby::{Caller, Cost, Lobby};
use crate::refusals::Why;
use crate::region;
use crate::senseless::Senseless;
use crate::signature;
use crate::tls::{Certificate, Tls};
use crate::unread::{self, Watched};
use crate::users::Users;
use crate::version2;
use crate::who::Peer;

/// How often it is looked for what has expired.
const SWEEP: Duration = Duration::from_secs(3_600);
/// How long after looks that failed it is looked again. All together this is less than [`SWEEP`].
const AGAIN: [Duration; 4] =
    [Duration::from_secs(5), Duration::from_secs(10), Duration::from_secs(60), Duration::from_secs(600)];
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
        let port = Port::new(listener, Arc::clone(&self.lobby), self.patience);
        let cost = if self.tls.is_some() { Cost::Encrypted } else { Cost::Plain };
        let mut stop = pin!(stop);
        let mut sweep = tokio::time::interval(SWEEP);
        loop {
            let (stream, seat) = tokio::select! {
                Some(next) = port.next(cost) => next,
                _ = sweep.tick() => {
                    self.sweep();
                    continue;
                }
                () = &mut stop => break,
            };
            let server = self.clone();
            tokio::spawn(seat.stay(|seat| server.welcome(stream, seat)));
        }
        port.close().await;
    }

    /// Encrypts a connection, if that is configured, and answers its requests.
    async fn welcome(self, stream: TcpStream, seat: Seat) {
        let peer = Peer { address: seat.address, secure: self.tls.is_some() };
        let acceptor = self.tls.as_ref().map(|tls| tls.acceptor());
        let answer = move |request, caller| self.clone().serve_one(request, peer, caller);
        let Some(acceptor) = acceptor else { return seat.converse(stream, answer).await };
        match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => return seat.converse(stream, answer).await,
            Ok(Err(error)) => tracing::debug!("a connection is not encrypted as it should be: {error}"),
            Err(_) => tracing::debug!("a connection was not encrypted in time"),
        }
        seat.guest.count(Why::Handshake);
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
        if !caller.guest.is_known() && !self.is_claimed(&request) {
            caller.queue().await;
        }
        let mut answer = self.answer(request, peer, &caller).await?;
        caller.leave_queue();
        if answer.status() == StatusCode::FORBIDDEN && !caller.is_signed() {
            caller.guest.count(Why::Unauthorized);
        }
        let refused = answer.status().is_client_error() && !caller.is_allowed();
        if refused && !caller.guest.refused().await {
            if version > Version::HTTP_11 {
                caller.guest.end();
            } else {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
        }
        if let Some(watch) = watch {
            watch(answer.status());
        }
        unread.finish(&mut answer, &caller).await;
        Ok(answer)
    }

    /// Whether it is said to be signed by somebody whom there is.
    fn is_claimed(&self, request: &http::Request<Watched>) -> bool {
        let signature = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let header = signature.and_then(|text| text.split_once("Credential=")).map(|(_, rest)| rest);
        let mut query = parameters(request.uri().query().unwrap_or_default());
        let query = query.find(|(name, _)| *name == "X-Amz-Credential").map(|(_, value)| value);
        let key = header.or(query).and_then(|text| text.split(['/', '%']).next());
        key.is_some_and(|key| self.face.users.find(key).is_some())
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
                let page = page.clone();
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
        if let Some(answer) = region::wrong(request.headers()).or_else(|| signature::refusal(&request)) {
            return Ok(answer);
        }
        let form = form::is_form(&request);
        let (request, _turn) = if form {
            let bucket = bucket_of(&request, self.domain.as_ref());
            caller.leave_queue();
            match self.forms.take(request, Sender { face: &self.face, caller, peer, bucket }).await {
                Ok((request, turn)) => (request, Some(turn)),
                Err(refusal) => return Ok(refusal),
            }
        } else if chunks::are_in(request.headers()) {
            (request.map(|body| Body::http_body_unsync(Chunked::new(body))), None)
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
