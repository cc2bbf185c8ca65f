//! The log of this process: lines on standard error, and the last warnings for whoever asks later.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt as lines};

/// What anybody who connects could cause as often as he likes is not logged.
const QUIET: &str = "h2=error";
/// Warnings and errors that are kept.
const KEPT: usize = 50;
/// Most bytes of one that are kept.
const BYTES: usize = 500;

/// A warning or an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// When, milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// Whether it is an error.
    pub(crate) error: bool,
    /// The message.
    pub(crate) text: String,
}

/// The last ones, oldest first. One for the process, as the log is.
static LAST: Mutex<VecDeque<Line>> = Mutex::new(VecDeque::new());

/// Logs go to standard error; `RUST_LOG` says what.
pub(crate) fn start(default: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(format!("{default},{QUIET}")));
    let lines = lines::layer().with_writer(std::io::stderr).with_ansi(false).log_internal_errors(false);
    tracing_subscriber::registry().with(filter).with(lines).with(Keep).init();
}

/// The last warnings and errors, newest first.
pub(crate) fn last() -> Vec<Line> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
}

/// Keeps warnings and errors.
struct Keep;

impl<S: Subscriber> Layer<S> for Keep {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() > Level::WARN {
            return;
        }
        let mut words = Words::default();
        event.record(&mut words);
        let mut text = words.message;
        text.truncate(text.floor_char_boundary(BYTES));
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() == KEPT {
            last.pop_front();
        }
        last.push_back(Line { at_ms, error: *event.metadata().level() == Level::ERROR, text });
    }
}

/// The message of an event. Its fields may name what clients stored, and whoever asks for the last warnings shows nothing: they are
/// in the log alone.
#[derive(Default)]
struct Words {
    message: String,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_kept_and_the_oldest_forgotten() {
        tracing::subscriber::with_default(tracing_subscriber::registry().with(Keep), || {
            tracing::info!("not this");
            for n in 0..KEPT + 1 {
                tracing::warn!(name = "secret.txt", "target {} is silent, {n}", 3);
            }
            tracing::error!("{}", "é".repeat(BYTES));
        });
        let last = last();
        assert_eq!(last.len(), KEPT);
        assert!(last[0].error && last[0].text.len() <= BYTES && last[0].text.starts_with('é'));
        assert_eq!((last[1].error, &*last[1].text), (false, &*format!("target 3 is silent, {KEPT}")));
        assert_eq!(last[KEPT - 1].text, "target 3 is silent, 2");
    }
}
