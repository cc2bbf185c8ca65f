//! Connections that stand still, and bodies that do not come: each is given up after a time, so that whoever holds
//! many of them keeps nobody else from being served.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Bytes that a client must send of a body, or take of an answer, while it has one patience.
pub(crate) const LEAST: u64 = 64 << 10;

/// Bytes that a client may send while no request is in work: the longest head fits, and what HTTP/2 needs beside requests. Who
/// sends more asks for nothing, such as with frames that must only be answered.
const IDLE_BYTES: u64 = 512 << 10;

/// What happens on one connection.
#[derive(Debug)]
pub(crate) struct Pulse(Mutex<Beats>);

#[derive(Debug)]
struct Beats {
    /// Requests that are not answered yet.
    working: usize,
    /// Since when `taken` is counted.
    since: Instant,
    /// Bytes that the client took.
    taken: u64,
    /// Bytes that it took since it came.
    all: u64,
    /// Bytes that it sent since a request was in work.
    idle: u64,
}

/// A request that is not answered yet.
pub(crate) struct Working(Arc<Pulse>);

impl Pulse {
    pub(crate) fn new(now: Instant) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Beats { working: 0, since: now, taken: 0, all: 0, idle: 0 })))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Beats) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A request has come.
    pub(crate) fn work(self: &Arc<Self>) -> Working {
        self.with(|beats| {
            beats.working += 1;
            beats.idle = 0;
        });
        Working(Arc::clone(self))
    }

    /// The client sent so many bytes; whether it may go on.
    fn came(&self, bytes: u64) -> bool {
        self.with(|beats| {
            beats.idle = if beats.working > 0 { 0 } else { beats.idle + bytes };
            beats.idle <= IDLE_BYTES
        })
    }

    /// Bytes that the client took since it came.
    pub(crate) fn taken(&self) -> u64 {
        self.with(|beats| beats.all)
    }

    /// Whether the client has done nothing for as long as `patience`: it neither asked, while nothing else is in work,
    /// nor took enough of its answers. What requests bring is looked at by [`Wait`].
    pub(crate) fn has_stopped(&self, now: Instant, patience: Duration) -> bool {
        self.with(|beats| {
            if beats.working == 0 && now.saturating_duration_since(beats.since) < patience {
                return false;
            }
            let stopped = beats.working == 0 && beats.taken < LEAST;
            (beats.since, beats.taken) = (now, 0);
            stopped
        })
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.with(|beats| {
            beats.working -= 1;
            (beats.since, beats.taken) = (Instant::now(), 0);
        });
    }
}

/// A connection whose bytes are counted.
pub(crate) struct Counted<S> {
    pub(crate) stream: S,
    pub(crate) pulse: Arc<Pulse>,
}

impl<S> Counted<S> {
    fn count(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.pulse.with(|beats| {
                beats.taken += *bytes as u64;
                beats.all += *bytes as u64;
            });
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        if !self.pulse.came((buffer.filled().len() - before) as u64) {
            return Poll::Ready(Err(io::Error::other("too much was sent without a request")));
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
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

/// Says that a body did not come.
#[derive(Debug)]
pub(crate) struct Late(Duration);

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the body came too slowly: less than {LEAST} bytes in {} s", self.0.as_secs())
    }
}

impl std::error::Error for Late {}

/// The time that a request's body is waited for. Only waiting counts, not what is done with it meanwhile.
pub(crate) struct Wait {
    patience: Duration,
    left: Duration,
    /// Bytes until the patience is renewed.
    due: u64,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Set when the body was given up.
    late: Arc<AtomicBool>,
}

impl Wait {
    pub(crate) fn new(patience: Duration, late: Arc<AtomicBool>) -> Self {
        Self { patience, left: patience, due: LEAST, waiting: None, late }
    }

    /// So many bytes came.
    pub(crate) fn came(&mut self, bytes: u64) {
        if let Some((since, _)) = self.waiting.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
        self.due = self.due.saturating_sub(bytes);
        if self.due == 0 {
            (self.left, self.due) = (self.patience, LEAST);
        }
    }

    /// Nothing came; whether it is given up now.
    pub(crate) fn waits(&mut self, cx: &mut Context<'_>) -> Poll<Late> {
        let left = self.left;
        let (_, sleep) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(left))));
        sleep.as_mut().poll(cx).map(|()| {
            self.late.store(true, Ordering::SeqCst);
            Late(self.patience)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn who_sends_much_and_asks_nothing_is_ended() {
        let pulse = Pulse::new(Instant::now());
        assert!(pulse.came(IDLE_BYTES));
        let work = pulse.work();
        assert!(pulse.came(100 * IDLE_BYTES), "a body");
        drop(work);
        assert!(pulse.came(IDLE_BYTES) && !pulse.came(1));
    }

    #[test]
    fn who_neither_asks_nor_takes_has_stopped() {
        let begin = Instant::now();
        let pulse = Pulse::new(begin);
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert!(!pulse.has_stopped(at(59), PATIENCE));
        let work = pulse.work();
        assert!(!pulse.has_stopped(at(1_000), PATIENCE), "a request is in work");
        drop(work);
        let answered = Instant::now();
        let at = |seconds| answered + Duration::from_secs(seconds);
        pulse.with(|beats| beats.taken += LEAST);
        assert!(!pulse.has_stopped(at(61), PATIENCE), "the client takes its answer");
        pulse.with(|beats| beats.taken += LEAST - 1);
        assert!(!pulse.has_stopped(at(120), PATIENCE));
        assert!(pulse.has_stopped(at(121), PATIENCE), "and now too little of it");
    }
}
