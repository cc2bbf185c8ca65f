//! Puts that were acknowledged with fewer copies than wanted: counted, so that status says so.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::api::FewerInfo;

/// How many, and when the last was.
#[derive(Debug, Default)]
pub(crate) struct Fewer(Mutex<(u64, Option<Instant>)>);

impl Fewer {
    /// One more.
    pub(crate) fn count(&self, now: Instant) {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counted = (counted.0 + 1, Some(now));
    }

    /// What status says.
    pub(crate) fn info(&self, now: Instant) -> FewerInfo {
        let (puts, last) = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        FewerInfo { puts, seconds_ago: last.map(|last| now.saturating_duration_since(last).as_secs()) }
    }
}
