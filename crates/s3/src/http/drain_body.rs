//! Draining the body of a request that was answered before its body was read.
//!
//! Without this, an early refusal would close the connection, and the client would find out with its next request. How much
//! is drained depends on the client: little for a stranger, and not much for all strangers of an address together.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Version, header};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use s3s::{HttpResponse, StdError as BoxError};
use tokio::sync::oneshot;

use super::idle_timeout::BodyTimeout;
use crate::rules::error;
use crate::state::admission::Admission;
use crate::state::refusals::Reason;

/// Bytes of a stranger's body that are drained. With more, the answer says that the connection is closed.
const STRANGER_BYTES: u64 = 1 << 20;
/// How long that may take.
const STRANGER_TIME: Duration = Duration::from_secs(5);
/// Bytes of the body of a signed request that are drained.
const SIGNED_BYTES: u64 = 64 << 20;

/// A request's body. What was not read of it is sent back when it is dropped.
pub(crate) struct WatchedBody {
    body: Option<Incoming>,
    timeout: BodyTimeout,
    /// Whether a part of it was asked for.
    started: bool,
    back: Option<oneshot::Sender<Rest>>,
}

/// The part of a body that was not read.
struct Rest {
    body: Incoming,
    started: bool,
}

/// Receives the part of a body that was not read.
pub(crate) struct UnreadBody {
    rest: oneshot::Receiver<Rest>,
    version: Version,
    timeout: Duration,
    /// Whether the body did not come in time.
    late: Arc<AtomicBool>,
    /// The client waits for "100 Continue".
    expects: bool,
    /// The request has no body.
    empty: bool,
}

/// The request with a body that is watched, and what receives the rest of it.
pub(crate) fn watch(request: Request<Incoming>, timeout: Duration) -> (Request<WatchedBody>, UnreadBody) {
    let (back, rest) = oneshot::channel();
    let late = Arc::new(AtomicBool::new(false));
    let watched = BodyTimeout::new(timeout, Arc::clone(&late));
    let (expects, empty) = (request.headers().contains_key(header::EXPECT), request.body().is_end_stream());
    let unread = UnreadBody { rest, version: request.version(), timeout, late, expects, empty };
    (request.map(|body| WatchedBody { body: Some(body), timeout: watched, started: false, back: Some(back) }), unread)
}

impl UnreadBody {
    /// Drains the rest of the body. When it is too much, or the client would be misled, the answer says that the
    /// connection is closed.
    pub(crate) async fn finish(mut self, answer: &mut HttpResponse, admission: &Admission) {
        let late = self.late.load(Ordering::SeqCst);
        if late {
            // The operation may have taken it for another failure.
            let why = "the body came too slowly, or not at all";
            *answer = error::plain(StatusCode::BAD_REQUEST, "RequestTimeout", why);
            admission.client.count(Reason::SlowBody);
        }
        let whole = match self.rest.try_recv() {
            // To read it would send "100 Continue".
            Ok(rest) if self.expects && !rest.started => false,
            Ok(rest) => {
                let whole = self.drain(rest.body, admission).await;
                if !whole {
                    admission.client.count(Reason::Unread);
                }
                whole
            }
            // No "100 Continue" is sent then, and botocore takes the answer for that of its next request here as well.
            Err(_) => !(late || self.expects && self.empty),
        };
        if !whole && self.version <= Version::HTTP_11 {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// Whether the body ended within the limits.
    async fn drain(&self, body: Incoming, admission: &Admission) -> bool {
        let timeout = BodyTimeout::new(self.timeout, Arc::default());
        let rest = WatchedBody { body: Some(body), timeout, started: true, back: None };
        if admission.is_signed() {
            return drain(rest, SIGNED_BYTES, |_| true).await;
        }
        let read = drain(rest, STRANGER_BYTES, |bytes| admission.client.may_drain(bytes));
        tokio::time::timeout(STRANGER_TIME, read).await.unwrap_or(false)
    }
}

/// Whether the body ended within `most` bytes, while `may` allowed each part.
async fn drain(mut body: WatchedBody, most: u64, mut may: impl FnMut(u64) -> bool) -> bool {
    let mut left = most;
    while !body.is_end_stream() {
        if !may(0) {
            return false;
        }
        let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await else { break };
        let Ok(frame) = frame else { return false };
        let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
        may(bytes);
        if bytes > left {
            return false;
        }
        left -= bytes;
    }
    true
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        this.started = true;
        let Poll::Ready(frame) = Pin::new(body).poll_frame(context) else {
            return this.timeout.poll_expired(context).map(|late| {
                this.body = None;
                Some(Err(late.into()))
            });
        };
        match &frame {
            Some(Ok(frame)) => this.timeout.progress(frame.data_ref().map_or(0, Bytes::len) as u64),
            None | Some(Err(_)) => this.body = None,
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        if let (Some(body), Some(back)) = (self.body.take().filter(|body| !body.is_end_stream()), self.back.take()) {
            // There is no receiver when the answer was given up.
            let _ = back.send(Rest { body, started: self.started });
        }
    }
}
