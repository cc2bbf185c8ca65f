//! The port of S3.

use std::future::Future;
use std::num::NonZero;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, StatusCode, Version, header};
use hyper::body::Incoming;
use object::objects::Objects;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError, HttpResponse};
use tokio::net::{TcpListener, TcpStream};

use super::access::Access;
use super::address::Address;
use super::chunks::{self, Chunked};
use super::connection::{Accepted, Listener};
use super::drain_body::{self, WatchedBody};
use super::form::{self, Forms, Sender};
use super::host::Domain;
use super::invalid_range::WithoutRange;
use super::request_ids::RequestIds;
use super::tls::{Certificate, Tls};
use super::{cors, metadata, region, signature, sigv2};
use crate::ops::attributes::BareTag;
use crate::ops::{Operations, lifecycle, multipart};
use crate::rules::caller::Peer;
use crate::rules::cors::BrowserRequest;
use crate::rules::error;
use crate::rules::form::FormFields;
use crate::rules::lifecycle::Day;
use crate::rules::query::parameters;
use crate::rules::storage_class::StorageClasses;
use crate::state::State;
use crate::state::admission::{Admission, AdmissionControl, Cost};
use crate::state::keys::KeyService;
use crate::state::refusals::Reason;
use crate::state::users::Users;

/// How often expired objects and uploads are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3_600);
/// When to try again after failures. Together these are less than [`SWEEP_INTERVAL`].
const RETRY_DELAYS: [Duration; 4] =
    [Duration::from_secs(5), Duration::from_secs(10), Duration::from_secs(60), Duration::from_secs(600)];
/// Bytes of a request in XML: a thousand keys to delete have less.
const XML_BYTES: usize = 4 << 20;
/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the gateway does and refuses, for metrics.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Requests and connections that were refused or ended since the start, by reason.
    pub refused: Vec<(&'static str, u64)>,
    /// Requests that work on the bytes of objects now.
    pub working: usize,
    /// Connections now without a request that was signed by a user, or is in work and allowed.
    pub strangers: usize,
}

/// Called with the status of each answer.
pub type Watch = Arc<dyn Fn(StatusCode) + Send + Sync>;

/// What can be configured.
#[derive(Clone)]
pub struct Settings {
    /// Has the keys that those of objects are encrypted with.
    pub keys: Arc<dyn KeyService>,
    /// The domain below which buckets are hosts (`BUCKET.DOMAIN`), beside the path style.
    pub domain: Option<String>,
    /// What connections are encrypted with; without it they are not.
    pub certificate: Option<Certificate>,
    /// How long a client may take for the head of a request, for each 64 KiB of a body or of an answer, and until it asks
    /// again.
    pub patience: Duration,
    /// How long a day of lifecycle rules is, where it is shorter than a day: to try rules out.
    pub day: Option<NonZero<u64>>,
    /// How objects may be kept other than as the cluster map says.
    pub classes: StorageClasses,
    /// Counts the answers.
    pub watch: Option<Watch>,
}

/// The S3 gateway, ready to be served.
#[derive(Clone)]
pub struct Server {
    service: S3Service,
    state: State,
    domain: Option<Arc<Domain>>,
    tls: Option<Arc<Tls>>,
    forms: Forms,
    control: Arc<AdmissionControl>,
    ids: Arc<RequestIds>,
    patience: Duration,
    /// From one removal of what has expired to the next.
    sweeps: Duration,
    watch: Option<Watch>,
}

impl Server {
    /// A gateway to these objects for these users.
    ///
    /// # Errors
    /// When the domain is none, the certificate is no good, or the system has no randomness.
    pub fn new(objects: Arc<Objects>, users: Users, settings: &Settings) -> Result<Self, String> {
        let mut config = S3Config::default();
        config.xml_max_body_size = XML_BYTES;
        config.post_object_max_file_size = form::FILE_BYTES;
        let day = settings.day.map(Day::of_seconds).unwrap_or_default();
        let state = State::new(objects, users.clone(), settings.classes.clone(), Arc::clone(&settings.keys), day);
        let config = Arc::new(StaticConfigProvider::new(Arc::new(config)));
        let domain = settings.domain.as_deref().map(Domain::new).transpose()?;
        let service = |route: Option<WithoutRange>| {
            let mut builder = S3ServiceBuilder::new(Operations(state.clone()));
            builder.set_config(config.clone());
            builder.set_auth(users.clone());
            builder.set_access(Access { state: state.clone() });
            if let Some(domain) = &domain {
                builder.set_host(domain.clone());
            }
            if let Some(route) = route {
                builder.set_route(route);
            }
            builder.build()
        };
        let service = service(Some(WithoutRange { service: service(None) }));
        let tls = settings.certificate.as_ref().map(Tls::open).transpose()?.map(Arc::new);
        let (forms, control) = (Forms::new(), Arc::default());
        Ok(Self {
            service,
            state,
            domain: domain.map(Arc::new),
            tls,
            forms,
            control,
            ids: Arc::new(RequestIds::new()?),
            patience: settings.patience,
            sweeps: settings.day.map_or(SWEEP_INTERVAL, |day| SWEEP_INTERVAL.min(Duration::from_secs(day.get()))),
            watch: settings.watch.clone(),
        })
    }

    /// A function that says what it does and refuses at the time of the call.
    pub fn counts(&self) -> impl Fn() -> Counts + Send + Sync + 'static {
        let (state, control) = (self.state.clone(), Arc::clone(&self.control));
        move || Counts {
            refused: control.refusals.counts().collect(),
            working: state.transferring(),
            strangers: control.len(),
        }
    }

    /// Serves connections until `stop`, then waits for those that are in work.
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()>) {
        let listener = Listener::new(listener, Arc::clone(&self.control), self.patience);
        let cost = if self.tls.is_some() { Cost::Encrypted } else { Cost::Plain };
        let mut stop = pin!(stop);
        let mut sweep = tokio::time::interval(self.sweeps);
        loop {
            let (stream, accepted) = tokio::select! {
                Some(next) = listener.next(cost) => next,
                _ = sweep.tick() => {
                    self.sweep();
                    continue;
                }
                () = &mut stop => break,
            };
            let server = self.clone();
            tokio::spawn(accepted.run(|accepted| server.handshake(stream, accepted)));
        }
        listener.close().await;
    }

    /// Does the TLS handshake, if a certificate is configured, and serves the connection.
    async fn handshake(self, stream: TcpStream, accepted: Accepted) {
        let peer = Peer { address: accepted.address, secure: self.tls.is_some() };
        let acceptor = self.tls.as_ref().map(|tls| tls.acceptor());
        let answer = move |request, admission| self.clone().serve_one(request, peer, admission);
        let Some(acceptor) = acceptor else { return accepted.serve_requests(stream, answer).await };
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => return accepted.serve_requests(stream, answer).await,
            Ok(Err(error)) => tracing::debug!("a connection is not encrypted as it should be: {error}"),
            Err(_) => tracing::debug!("a connection was not encrypted in time"),
        }
        accepted.client.count(Reason::Handshake);
    }

    /// Answers a request, and gives the answer what every answer has.
    async fn serve_one(
        self,
        request: http::Request<Incoming>,
        peer: Peer,
        admission: Admission,
    ) -> Result<HttpResponse, HttpError> {
        let (ids, domain, address) = (Arc::clone(&self.ids), self.domain.clone(), Address::of(&request));
        let id = ids.next();
        let mut answer = self.answer_and_drain(request, &address, peer, admission).await?;
        ids.set(&id, answer.headers_mut());
        if !answer.status().is_success() {
            let about = address.about(domain.as_deref());
            tracing::debug!(request = id, status = answer.status().as_u16(), resource = about.resource, "refused");
            error::complete(&mut answer, &about, &id, ids.gateway());
        }
        Ok(answer)
    }

    /// Answers a request, counts the answer, and drains the rest of the body.
    async fn answer_and_drain(
        self,
        mut request: http::Request<Incoming>,
        address: &Address,
        peer: Peer,
        admission: Admission,
    ) -> Result<HttpResponse, HttpError> {
        let watch = self.watch.clone();
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(admission.clone());
        metadata::as_utf8(request.headers_mut());
        let version = request.version();
        let (request, unread) = drain_body::watch(request, self.patience);
        if !admission.client.is_authenticated() && !self.is_claimed(&request) {
            admission.begin_check().await;
        }
        let mut answer = self.answer(request, address, peer, &admission).await?;
        admission.end_check();
        if answer.status() == StatusCode::FORBIDDEN && !admission.is_signed() {
            admission.client.count(Reason::Unauthorized);
        }
        let refused = answer.status().is_client_error() && !admission.is_allowed();
        if refused && !admission.client.refused().await {
            if version > Version::HTTP_11 {
                admission.client.end();
            } else {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
        }
        if let Some(watch) = watch {
            watch(answer.status());
        }
        unread.finish(&mut answer, &admission).await;
        Ok(answer)
    }

    /// Whether it claims to be signed by a user that exists.
    fn is_claimed(&self, request: &http::Request<WatchedBody>) -> bool {
        let signature = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let header = signature.and_then(|text| text.split_once("Credential=")).map(|(_, rest)| rest);
        let mut query = parameters(request.uri().query().unwrap_or_default());
        let query = query.find(|(name, _)| *name == "X-Amz-Credential").map(|(_, value)| value);
        let key = header.or(query).and_then(|text| text.split(['/', '%']).next());
        key.is_some_and(|key| self.state.users.find(key).is_some())
    }

    /// Answers a request, with CORS headers for pages of other origins.
    async fn answer(
        self,
        request: http::Request<WatchedBody>,
        address: &Address,
        peer: Peer,
        admission: &Admission,
    ) -> Result<HttpResponse, HttpError> {
        let domain = self.domain.as_deref();
        if request.method() == Method::OPTIONS {
            return Ok(cors::preflight(&self.state, address, domain, request.headers()).await);
        }
        let page = BrowserRequest::of(request.method(), request.headers());
        let rule = match &page {
            Some(page) => cors::rule_for(&self.state, address.bucket(domain), page).await,
            None => None,
        };
        let mut answer = self.answer_operation(request, address, peer, admission).await?;
        if let (Some(page), Some(rule)) = (page, rule) {
            page.add_headers(&rule, answer.headers_mut());
        }
        Ok(answer)
    }

    /// Answers a request for an operation, or refuses it from its head.
    async fn answer_operation(
        &self,
        request: http::Request<WatchedBody>,
        address: &Address,
        peer: Peer,
        admission: &Admission,
    ) -> Result<HttpResponse, HttpError> {
        if sigv2::is_signed(request.headers(), request.uri()) {
            return Ok(sigv2::refusal());
        }
        if let Some(answer) = region::wrong(request.headers()).or_else(|| signature::refusal(&request)) {
            return Ok(answer);
        }
        if let Some(answer) = method_refusal(request.method(), address.kind(self.domain.as_deref())) {
            return Ok(answer);
        }
        let form = form::is_form(&request);
        let (request, _permit) = if form {
            let bucket = address.bucket(self.domain.as_deref());
            admission.end_check();
            match self.forms.take(request, Sender { state: &self.state, admission, peer, bucket }).await {
                Ok((request, permit)) => (request, Some(permit)),
                Err(refusal) => return Ok(refusal),
            }
        } else if chunks::are_in(request.headers()) {
            (request.map(|body| Body::http_body_unsync(Chunked::new(body))), None)
        } else {
            (request.map(Body::http_body_unsync), None)
        };
        let fields = request.extensions().get::<FormFields>().cloned();
        let mut answer = self.service.call(request).await?;
        // `s3s` knows of parts in answers to GET alone.
        if answer.status() == StatusCode::OK && answer.headers().contains_key(header::CONTENT_RANGE) {
            *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        if answer.extensions().get::<BareTag>().is_some() {
            bare_tag(&mut answer);
        }
        Ok(match fields {
            Some(fields) => form::answered(answer, &fields),
            None => answer,
        })
    }

    /// Removes what has expired, and soon tries again what failed.
    fn sweep(&self) {
        let state = self.state.clone();
        tokio::spawn(async move {
            for pause in RETRY_DELAYS {
                let state = state.clone();
                let expire = move || multipart::expire_uploads(&state).and_then(|()| lifecycle::expire_objects(&state));
                let Ok(Err(failure)) = tokio::task::spawn_blocking(expire).await else { return };
                tracing::warn!("some of what has expired stays for {} s: {failure}", pause.as_secs());
                tokio::time::sleep(pause).await;
            }
        });
    }
}

/// The answer to a method that S3 does not have for such a resource.
fn method_refusal(method: &Method, kind: &str) -> Option<HttpResponse> {
    let allowed: &[Method] = match kind {
        "SERVICE" => &[Method::GET],
        _ => &[Method::GET, Method::HEAD, Method::PUT, Method::POST, Method::DELETE],
    };
    if allowed.contains(method) {
        return None;
    }
    let element = format!("<Method>{}</Method><ResourceType>{kind}</ResourceType>", error::escaped(method.as_str()));
    let why = "The specified method is not allowed against this resource.";
    let mut answer = error::with_element(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", why, &element);
    let names = allowed.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
    answer.headers_mut().extend(HeaderValue::from_str(&names).ok().map(|names| (header::ALLOW, names)));
    Some(answer)
}

/// Takes the quotes of the entity tag away.
fn bare_tag(answer: &mut HttpResponse) {
    let text = answer.body().bytes().unwrap_or_default();
    let text = String::from_utf8_lossy(&text).replace("&quot;", "\"");
    *answer.body_mut() = Body::from(text.replace("<ETag>\"", "<ETag>").replace("\"</ETag>", "</ETag>"));
}
