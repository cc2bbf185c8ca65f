//! Idle connections, and bodies that do not come. Both are given up after a time, so that a client that holds many of them
//! keeps nobody else from being served.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::state::activity::{Activity, MIN_PROGRESS};

/// The stream of a connection, whose bytes are counted.
pub(crate) struct CountedStream<S> {
    pub(crate) stream: S,
    pub(crate) activity: Arc<Activity>,
}

impl<S> CountedStream<S> {
    fn count(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.activity.count_taken(*bytes as u64);
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        if !self.activity.count_sent((buffer.filled().len() - before) as u64) {
            return Poll::Ready(Err(io::Error::other("too much was sent without a request")));
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.count(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The error of a body that did not come in time.
#[derive(Debug)]
pub(crate) struct Late(Duration);

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the body came too slowly: less than {MIN_PROGRESS} bytes in {} s", self.0.as_secs())
    }
}

impl std::error::Error for Late {}

/// The timeout of a request's body. Only time spent waiting for the client counts.
pub(crate) struct BodyTimeout {
    timeout: Duration,
    left: Duration,
    /// Bytes until the time starts anew.
    due: u64,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Set when the body was given up.
    late: Arc<AtomicBool>,
}

impl BodyTimeout {
    pub(crate) fn new(timeout: Duration, late: Arc<AtomicBool>) -> Self {
        Self { timeout, left: timeout, due: MIN_PROGRESS, waiting: None, late }
    }

    /// Counts bytes that came.
    pub(crate) fn progress(&mut self, bytes: u64) {
        if let Some((since, _)) = self.waiting.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
        self.due = self.due.saturating_sub(bytes);
        if self.due == 0 {
            (self.left, self.due) = (self.timeout, MIN_PROGRESS);
        }
    }

    /// Ready when the time is over. Called when nothing came.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<Late> {
        let left = self.left;
        let (_, sleep) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(left))));
        sleep.as_mut().poll(cx).map(|()| {
            self.late.store(true, Ordering::SeqCst);
            Late(self.timeout)
        })
    }
}
