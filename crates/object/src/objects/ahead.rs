//! Memory for chunks that are on their way while their put, or the get before them, goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that all puts, or all gets, may have in chunks ahead of the one that each works on. That one needs no share, so
/// that everybody goes on, chunk by chunk, when there is none left, and nobody ever waits for a share.
#[derive(Clone, Debug)]
pub(super) struct Ahead(Arc<AtomicUsize>);

/// So many bytes of it, until this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    left: Arc<AtomicUsize>,
    bytes: usize,
}

impl Ahead {
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// Room for `bytes`, if there is.
    pub(super) fn share(&self, bytes: usize) -> Option<Share> {
        let reserved = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        reserved.ok().map(|_| Share { left: Arc::clone(&self.0), bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_there_again() {
        let ahead = Ahead::new(10);
        let (six, four) = (ahead.share(6), ahead.share(4));
        assert!(six.is_some() && four.is_some());
        assert!(ahead.share(1).is_none());
        drop(six);
        assert!(ahead.share(7).is_none(), "six are left");
        assert!(ahead.share(6).is_some());
    }
}
