//! What a gateway has of the machine that it runs on.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Clocks and chance.
pub trait Host: fmt::Debug + Send + Sync {
    /// The time since some moment, which never goes back.
    fn elapsed(&self) -> Duration;
    /// The time since 1970 by a clock that may be wrong, and may step.
    fn wall(&self) -> Duration;
    /// Bits that nobody else has.
    fn random(&self) -> u64;
    /// Called before a lock is waited for that is held while the catalog is asked. A host that runs one thread at a time lets
    /// others run until it is free.
    fn before_lock(&self, _is_free: &dyn Fn() -> bool) {}
}

/// The machine of this process.
#[derive(Debug)]
pub struct System {
    began: Instant,
}

impl Default for System {
    fn default() -> Self {
        Self { began: Instant::now() }
    }
}

impl Host for System {
    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn wall(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn random(&self) -> u64 {
        // Before a machine has gathered any, which is before it runs gateways, the kernel may refuse; a hasher has its keys from
        // there, too, and waits.
        getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(self.elapsed()))
    }
}
