//! What a client still sends when its request is answered already.
//!
//! Without this, a refusal that came before the body was read would end the connection, and the client would find out
//! with its next request. How much of it is read depends on who sends it: for a stranger little, and for all strangers of
//! an address together not much.

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

use crate::error;
use crate::lobby::Caller;
use crate::pulse::Wait;
use crate::refusals::Why;

/// Bytes of a stranger's body that are read to nowhere before an answer. Who sends more is told that the connection ends.
const MOST: u64 = 1 << 20;
/// How long they may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the body of somebody who signed.
const MOST_SIGNED: u64 = 64 << 20;

/// A request's body, which comes back when nobody reads it to its end.
pub(crate) struct Watched {
    body: Option<Incoming>,
    wait: Wait,
    /// Whether some of it was asked for.
    begun: bool,
    back: Option<oneshot::Sender<Rest>>,
}

/// What nobody read.
struct Rest {
    body: Incoming,
    begun: bool,
}

/// Where it comes back to.
pub(crate) struct Unread {
    rest: oneshot::Receiver<Rest>,
    version: Version,
    patience: Duration,
    /// Whether the body was given up, as it did not come.
    late: Arc<AtomicBool>,
    /// It asked to be told to go on.
    expects: bool,
    /// It has no body.
    empty: bool,
}

/// Watches what becomes of a request's body.
pub(crate) fn watch(request: Request<Incoming>, patience: Duration) -> (Request<Watched>, Unread) {
    let (back, rest) = oneshot::channel();
    let late = Arc::new(AtomicBool::new(false));
    let wait = Wait::new(patience, Arc::clone(&late));
    let (expects, empty) = (request.headers().contains_key(header::EXPECT), request.body().is_end_stream());
    let unread = Unread { rest, version: request.version(), patience, late, expects, empty };
    (request.map(|body| Watched { body: Some(body), wait, begun: false, back: Some(back) }), unread)
}

impl Unread {
    /// Reads what is left of the body; when it is too much, or the client would be misled, the answer says that the
    /// connection ends.
    pub(crate) async fn finish(mut self, answer: &mut HttpResponse, caller: &Caller) {
        let late = self.late.load(Ordering::SeqCst);
        if late {
            // Whoever read it may have taken it for something else.
            let why = "the body came too slowly, or not at all";
            *answer = error::plain(StatusCode::BAD_REQUEST, "RequestTimeout", why);
            caller.guest.count(Why::SlowBody);
        }
        let whole = match self.rest.try_recv() {
            // To read it would tell the client to send it.
            Ok(rest) if self.expects && !rest.begun => false,
            Ok(rest) => {
                let whole = self.drain(rest.body, caller).await;
                if !whole {
                    caller.guest.count(Why::Unread);
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

    /// Whether the body ended soon enough.
    async fn drain(&self, body: Incoming, caller: &Caller) -> bool {
        let wait = Wait::new(self.patience, Arc::default());
        let rest = Watched { body: Some(body), wait, begun: true, back: None };
        if caller.is_signed() {
            return drain(rest, MOST_SIGNED, |_| true).await;
        }
        let read = drain(rest, MOST, |bytes| caller.guest.reads(bytes));
        tokio::time::timeout(PATIENCE, read).await.unwrap_or(false)
    }
}

/// Whether the body ended with at most so many bytes, each part of which may be read.
async fn drain(mut body: Watched, most: u64, mut may: impl FnMut(u64) -> bool) -> bool {
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

impl Body for Watched {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        this.begun = true;
        let Poll::Ready(frame) = Pin::new(body).poll_frame(context) else {
            return this.wait.waits(context).map(|late| {
                this.body = None;
                Some(Err(late.into()))
            });
        };
        match &frame {
            Some(Ok(frame)) => this.wait.came(frame.data_ref().map_or(0, Bytes::len) as u64),
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

impl Drop for Watched {
    fn drop(&mut self) {
        if let (Some(body), Some(back)) = (self.body.take().filter(|body| !body.is_end_stream()), self.back.take()) {
            // Nobody waits for it when the answer was given up.
            let _ = back.send(Rest { body, begun: self.begun });
        }
    }
}
