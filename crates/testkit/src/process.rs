//! A process on a host of the rack.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use rustix::process::{Pid, Signal};

/// A process that ends, by a kill, when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    pub(crate) fn start(mut command: Command, log: &Path) -> anyhow::Result<Self> {
        let output = File::create(log).with_context(|| format!("the log {} cannot be made", log.display()))?;
        let errors = output.try_clone().context("a log cannot be shared")?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("{command:?} cannot be started"))?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// What it printed so far.
    #[must_use]
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops it where it is, with all that it has under way, until [`Process::thaw`].
    ///
    /// # Errors
    /// It is gone.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// It is gone.
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).context("a process cannot be signalled")
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until it ended; whether it ended well.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn wait(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.wait().context("a process cannot be waited for")?.success())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
