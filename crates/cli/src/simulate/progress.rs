//! How far runs are.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use crate::output::share_bar;

/// How often progress is logged where no bar is shown.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Parts of a run that the bar distinguishes.
const PARTS: f64 = 1_000.0;

/// Shows it: on a terminal by a bar, in a log by a line now and then.
pub(super) struct Progress {
    bar: ProgressBar,
    logged: Mutex<Instant>,
}

impl Default for Progress {
    fn default() -> Self {
        Self { bar: share_bar(0), logged: Mutex::new(Instant::now()) }
    }
}

impl Progress {
    /// So many of all runs are done, those under way by their share.
    pub(super) fn hear(&self, done: f64, all: usize) {
        let whole = (done + 1e-6) as usize;
        self.bar.set_length((all as f64 * PARTS) as u64);
        self.bar.set_position((done * PARTS) as u64);
        self.bar.set_message(format!("{whole} of {all} runs"));
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if self.bar.is_hidden() && logged.elapsed() >= LOG_INTERVAL && whole < all {
            *logged = Instant::now();
            let percent = 100.0 * done / all.max(1) as f64;
            crate::output::say!("{whole} of {all} runs are done, {percent:.0} % of everything");
        }
    }

    /// They are over.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
