//! Child processes: started with a log file, watched, and stopped in order.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal};

/// How long a process may take to stop before it is killed.
const GRACE: Duration = Duration::from_secs(10);

/// How long to wait before a process that ended is started again; each further time twice as long, up to [`MAX_BACKOFF`].
const BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// A process that ran as long as this is well: what happens to it then is counted from the beginning.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// One role of the cluster as a child process.
pub(crate) struct Role {
    what: String,
    args: Vec<String>,
    /// Environment variables that it has and this process may not have.
    env: Vec<(&'static str, String)>,
    log: PathBuf,
    child: Child,
    /// Bytes of the log before it was started last.
    before: u64,
    started: Instant,
    /// How often it was started again, by [`supervise`](Self::supervise), since it was well last.
    restarts: u32,
    next: Restart,
    /// The last end, as far as it says why.
    last: Option<String>,
    /// Whether all of it was reported, so that nothing is until that changes.
    reported: bool,
}

/// How a process ended.
struct Exit {
    /// In words.
    text: String,
    /// As much of it as is the same when it ends in the same way again.
    why: String,
}

/// When a process that ended is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restart {
    /// It has not ended, as far as is known.
    NotEnded,
    /// It is started again then.
    At(Instant),
    /// It stays down.
    Never,
}

impl Role {
    /// Starts this program with `args`; what it says goes to `log`.
    pub(crate) fn start(what: &str, args: Vec<String>, log: PathBuf) -> anyhow::Result<Self> {
        Self::start_with(what, args, vec![], log)
    }

    /// The same with environment variables, where a secret belongs that others must not see among the arguments.
    pub(crate) fn start_with(
        what: &str,
        args: Vec<String>,
        env: Vec<(&'static str, String)>,
        log: PathBuf,
    ) -> anyhow::Result<Self> {
        // What it logged when the cluster ran before is of no use now. `spawn` reports when it cannot write there.
        let _ = std::fs::remove_file(&log);
        let (child, before) = spawn(what, &args, &env, &log)?;
        let started = Instant::now();
        let (what, next, last) = (what.to_owned(), Restart::NotEnded, None);
        Ok(Self { what, args, env, log, child, before, started, restarts: 0, next, last, reported: false })
    }

    /// Starts it again after it ended.
    pub(crate) fn restart(&mut self) -> anyhow::Result<()> {
        (self.child, self.before) = spawn(&self.what, &self.args, &self.env, &self.log)?;
        (self.started, self.next) = (Instant::now(), Restart::NotEnded);
        Ok(())
    }

    /// Checks whether it has ended, and starts it `again` then, after a rest. Returns what there is to report.
    pub(crate) fn supervise(&mut self, now: Instant, again: bool) -> Option<String> {
        match self.next {
            Restart::Never => return None,
            Restart::At(at) if now < at => return None,
            Restart::At(_) => {
                let outcome = self.restart();
                // Also of one that cannot be started: it is not one that ran for long.
                self.started = now;
                return match outcome {
                    Ok(()) => (!self.reported).then(|| format!("{} is started again", self.what)),
                    Err(error) => {
                        let text = format!("{error:#}");
                        self.ended(now, Exit { why: text.clone(), text })
                    }
                };
            }
            Restart::NotEnded => {}
        }
        match self.end() {
            Ok(None) if now.duration_since(self.started) < STABLE_AFTER => None,
            Ok(None) => {
                self.restarts = 0;
                std::mem::take(&mut self.reported).then(|| format!("{} runs well again", self.what))
            }
            Ok(Some(end)) if again => self.ended(now, end),
            Ok(Some(Exit { text, .. })) => {
                self.next = Restart::Never;
                Some(format!("{text}; it stays down, the others go on"))
            }
            Err(error) => {
                self.next = Restart::Never;
                Some(format!("{error:#}; it is left alone, the others go on"))
            }
        }
    }

    /// Lets it rest. Returns what there is to report: a reason once, however often it is the same.
    fn ended(&mut self, now: Instant, end: Exit) -> Option<String> {
        if now.duration_since(self.started) >= STABLE_AFTER {
            (self.restarts, self.last) = (0, None);
        }
        let backoff = BACKOFF.saturating_mul(2_u32.saturating_pow(self.restarts)).min(MAX_BACKOFF);
        self.restarts = self.restarts.saturating_add(1);
        self.next = Restart::At(now + backoff);
        let is_same = self.last.as_ref() == Some(&end.why);
        if is_same && self.reported {
            return None;
        }
        self.last = Some(end.why);
        self.reported = backoff == MAX_BACKOFF;
        let text = if is_same { format!("{} ended again in the same way", self.what) } else { end.text };
        let (restarts, backoff) = (self.restarts, backoff.as_secs());
        let from_now_on =
            if self.reported { ", and once a minute from now on, without a word until that changes" } else { "" };
        Some(format!("{text}; it is started again in {backoff} s (try {restarts}){from_now_on}"))
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU seconds that it has used.
    fn cpu_seconds(&self) -> f64 {
        cpu_seconds(&format!("/proc/{}/stat", self.pid()))
    }

    /// An error when it has ended, with the last line of its log.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.end()? {
            None => Ok(()),
            Some(Exit { text, .. }) => bail!("{text}"),
        }
    }

    /// How it ended, if it has.
    fn end(&mut self) -> anyhow::Result<Option<Exit>> {
        let status = self.child.try_wait().with_context(|| format!("{} cannot be watched", self.what))?;
        Ok(status.map(|status| self.describe_exit(status)))
    }

    fn describe_exit(&self, status: ExitStatus) -> Exit {
        if status.success() {
            let text = format!("{} ended in order, as when it is asked to by SIGTERM", self.what);
            return Exit { why: text.clone(), text };
        }
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(log.get(self.before as usize..).unwrap_or_default());
        if let Some(why) = log.lines().rev().find_map(|line| line.strip_prefix("reservoir: ")) {
            // Most begin with the same name.
            let why = why.strip_prefix(self.what.as_str()).and_then(|why| why.strip_prefix(": ")).unwrap_or(why);
            let text = format!("{} ended with {status}: {why}", self.what);
            return Exit { why: text.clone(), text };
        }
        // The lines of a log begin with the time.
        let why = format!("{} ended with {status}", self.what);
        let text = match log.lines().rev().find(|line| !line.trim().is_empty() && !line.starts_with("note: ")) {
            Some(last) => format!("{why}; the last line of {}: {}", self.log.display(), last.trim()),
            None => format!("{why} and logged nothing"),
        };
        Exit { text, why }
    }

    /// Kills it at once, as a crash would.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().with_context(|| format!("{} cannot be killed", self.what))?;
        self.child.wait().with_context(|| format!("{} cannot be waited for", self.what))?;
        Ok(())
    }

    /// Asks it to stop.
    fn ask_to_stop(&mut self) {
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), Pid::from_raw(self.child.id() as i32)) {
            // It may have ended in between.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }

    /// Waits until it ended; kills it at the deadline.
    fn wait_until(&mut self, deadline: Instant) {
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                tracing::warn!(role = self.what, "did not stop in time and is killed");
                let _ = self.kill();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Processes that are stopped when this is dropped: all asked at once, then waited for.
#[derive(Default)]
pub(crate) struct Children(pub(crate) Vec<Role>);

impl Children {
    /// An error when one has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        self.0.iter_mut().try_for_each(Role::check)
    }

    /// Stops all of them.
    pub(crate) fn stop(&mut self) {
        let deadline = Instant::now() + GRACE;
        self.0.iter_mut().for_each(Role::ask_to_stop);
        self.0.iter_mut().for_each(|role| role.wait_until(deadline));
        self.0.clear();
    }

    /// CPU seconds that the living ones have used.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.0.iter().map(Role::cpu_seconds).sum()
    }

    /// The same, of those whose command this is.
    pub(crate) fn cpu_seconds_of(&self, command: &str) -> f64 {
        let these = self.0.iter().filter(|role| role.args.first().is_some_and(|first| first == command));
        these.map(Role::cpu_seconds).sum()
    }

    /// Largest resident memory of the living ones, in bytes, now.
    pub(crate) fn largest_resident(&self) -> u64 {
        self.0.iter().map(|role| resident(role.pid())).max().unwrap_or(0)
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starts a process, and returns how long its log was before.
fn spawn(what: &str, args: &[String], env: &[(&str, String)], log: &Path) -> anyhow::Result<(Child, u64)> {
    use std::os::unix::process::CommandExt;
    let program = std::env::current_exe().context("this program's own file cannot be found: start it by its path")?;
    let output: File = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("the log {} cannot be written", log.display()))?;
    let errors = output.try_clone().with_context(|| format!("the log {} cannot be shared", log.display()))?;
    let before = output.metadata().with_context(|| format!("the log {} cannot be examined", log.display()))?.len();
    let child = Command::new(program)
        .args(args)
        .arg("--with-parent")
        // A cluster without that setting must not find the catalog of another.
        .env_remove("RESERVOIR_CATALOG")
        .envs(env.iter().map(|(name, value)| (*name, value)))
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        // Ctrl-C reaches this process only, which stops the others in order.
        .process_group(0)
        .spawn()
        .with_context(|| format!("{what} cannot be started"))?;
    Ok((child, before))
}

/// The name of this machine.
pub(crate) fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// User and system time of a process from its `stat` file; 0 when it is gone.
pub(crate) fn cpu_seconds(stat: &str) -> f64 {
    let text = std::fs::read_to_string(stat).unwrap_or_default();
    // The name in parentheses may hold spaces; utime and stime are the 12th and 13th field behind it.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    (ticks(11) + ticks(12)) as f64 / per_second as f64
}

/// Processor seconds that the host of this virtual machine has taken for others since it began, from all processors; 0 where
/// that is not reported.
pub(crate) fn stolen_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = text.lines().next().and_then(|all| all.split_whitespace().nth(8)?.parse::<u64>().ok()).unwrap_or(0);
    ticks as f64 / rustix::param::clock_ticks_per_second().max(1) as f64
}

fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages = text.split_whitespace().nth(1).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// The most memory that a process has had resident, in bytes; 0 when it is gone.
pub(crate) fn most_resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Ends this process in order when its parent is gone, by asking itself as an operator would.
pub(crate) fn stop_with_parent() -> anyhow::Result<()> {
    let parent = rustix::process::getppid();
    let watch = move || {
        while rustix::process::getppid() == parent {
            std::thread::sleep(Duration::from_millis(250));
        }
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TERM);
    };
    std::thread::Builder::new()
        .name("parent-watch".to_owned())
        .spawn(watch)
        .context("the thread that watches the parent process cannot be started")?;
    Ok(())
}

/// Lets this process have as many files and connections open as the system lets it: the usual 1,024 are fewer than the
/// clients that are served.
pub(crate) fn open_many_files() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let more = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = rustix::process::setrlimit(rustix::process::Resource::Nofile, more) {
        tracing::warn!("few files can be open at once: {error}");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn what_ends_is_started_again_ever_more_slowly_and_told_of_once() {
        let place = tempfile::tempdir().unwrap();
        let logs = place.path().join("logs");
        std::fs::create_dir(&logs).unwrap();
        // It does not know the flag for the parent, and ends.
        let mut role = Role::start("it", vec!["--list".to_owned()], logs.join("log")).unwrap();
        role.child.wait().unwrap();
        let begin = Instant::now();
        let (mut now, mut restarts, mut news) = (begin, vec![], vec![]);
        while now < begin + Duration::from_secs(7_200) {
            let was = role.restarts;
            news.extend(role.supervise(now, true));
            role.child.wait().unwrap();
            if role.restarts > was {
                restarts.push(now);
            }
            now += Duration::from_millis(500);
        }
        let gaps: Vec<f64> = restarts.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        assert!(gaps.is_sorted() && gaps[0] < 3.0, "{gaps:?}");
        assert!((60.0..62.0).contains(gaps.last().unwrap()) && restarts.len() > 100, "{gaps:?}");
        assert!(news.len() < 20 && news.last().unwrap().contains("once a minute"), "{news:#?}");
        assert_eq!(news.iter().filter(|line| line.contains("exit status")).count(), 1, "{news:#?}");
        // It cannot even be started: another reason, which is reported once.
        std::fs::remove_dir_all(&logs).unwrap();
        let mut reports = vec![];
        for _ in 0..100 {
            now += MAX_BACKOFF;
            reports.extend(role.supervise(now, true));
        }
        assert!(reports.len() == 1 && reports[0].contains("cannot be written"), "{reports:#?}");
    }

    #[test]
    fn what_ran_well_for_a_while_is_forgiven() {
        let place = tempfile::tempdir().unwrap();
        let mut role = Role::start("it", vec!["--list".to_owned()], place.path().join("log")).unwrap();
        role.child.wait().unwrap();
        let mut now = Instant::now();
        while !role.reported {
            role.supervise(now, true);
            role.child.wait().unwrap();
            now += MAX_BACKOFF / 60;
        }
        role.child = Command::new("sleep").arg("600").spawn().unwrap();
        (role.next, role.started) = (Restart::NotEnded, now);
        assert_eq!(role.supervise(now + STABLE_AFTER / 2, true), None);
        let report = role.supervise(now + STABLE_AFTER, true);
        assert!(report.as_ref().is_some_and(|report| report.contains("runs well again")), "{report:?}");
        assert_eq!(role.supervise(now + 2 * STABLE_AFTER, true), None);
        role.kill().unwrap();
        let report = role.supervise(now + 2 * STABLE_AFTER, true).unwrap();
        assert!(report.contains("signal: 9") && report.contains("in 1 s (try 1)"), "{report}");
    }
}
