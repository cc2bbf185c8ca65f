//! Threads that work beside a gateway for as long as it runs.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::Context;

/// A thread that is told to end when this is dropped.
pub(crate) struct Background(#[expect(dead_code, reason = "its end is the signal")] Sender<()>);

/// How such a thread rests.
pub(crate) struct Pauses(Receiver<()>);

impl Pauses {
    /// Rests for so long. Whether the thread is to go on: not when it was told to end.
    pub(crate) fn rest(&self, span: Duration) -> bool {
        self.0.recv_timeout(span) == Err(RecvTimeoutError::Timeout)
    }
}

/// Starts one.
pub(crate) fn start(name: &str, work: impl FnOnce(&Pauses) + Send + 'static) -> anyhow::Result<Background> {
    let (running, stop) = channel();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || work(&Pauses(stop)))
        .with_context(|| format!("the {name} cannot be started"))?;
    Ok(Background(running))
}
