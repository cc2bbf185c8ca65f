//! The real binary in real directories.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should stop")]
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Whether a status says that something happened.
pub(crate) fn happened(status: &serde_json::Value, what: &str) -> bool {
    status["history"].as_array().unwrap().iter().any(|event| event["what"].as_str().unwrap().contains(what))
}

/// Waits until something is so.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not in {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

/// Runs `reservoir` with `args` and waits, but not for ever.
pub(crate) fn reservoir(args: &[&str]) -> Output {
    let child = command(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    finish(child.expect("the binary starts"), args)
}

/// Runs `reservoir` with `args` and `input` on standard input.
pub(crate) fn reservoir_with(args: &[&str], input: &[u8]) -> Output {
    let child = command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the binary starts");
    // A refused command reads nothing.
    let _ = child.stdin.take().unwrap().write_all(input);
    finish(child, args)
}

/// The binary that is tested.
pub(crate) const RESERVOIR: &str = env!("CARGO_BIN_EXE_reservoir");

fn command(args: &[&str]) -> Command {
    command_of(RESERVOIR, args)
}

fn command_of(binary: &str, args: &[&str]) -> Command {
    let mut command = Command::new(binary);
    command.args(args).env_remove("RUST_LOG");
    command
}

fn finish(mut child: Child, args: &[&str]) -> Output {
    let pid = child.id();
    let (sender, over) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if over.recv_timeout(LIMIT).is_err() {
            signal(pid, "-KILL");
        }
    });
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    let _ = sender.send(());
    watch.join().unwrap();
    assert!(output.status.code().is_some(), "reservoir {args:?} was killed after {LIMIT:?}");
    output
}

/// Sends a signal to one process that a test started.
pub(crate) fn signal(pid: u32, signal: &str) {
    let _ = Command::new("kill").args([signal, &pid.to_string()]).status();
}

/// The error line of a command that must fail; panics unless it is one line.
pub(crate) fn error_of(args: &[&str]) -> String {
    let output = reservoir(args);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "reservoir {args:?} succeeded: {text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("reservoir: ")).collect();
    assert_eq!(lines.len(), 1, "not one line: {text}");
    lines[0].to_owned()
}

/// A cluster started by `reservoir up`; stopped when dropped.
pub(crate) struct Cluster {
    child: Child,
    pub(crate) directory: PathBuf,
}

impl Cluster {
    /// Starts one and waits until it answers.
    pub(crate) fn start(directory: &Path, more: &[&str]) -> Self {
        Self::start_with(RESERVOIR, directory, more)
    }

    /// The same with another binary.
    pub(crate) fn start_with(binary: &str, directory: &Path, more: &[&str]) -> Self {
        let data = directory.to_str().unwrap();
        let log = fs::File::create(directory.with_extension("log")).unwrap();
        let mut args = vec!["up", "--data", data];
        args.extend(more);
        let mut command = command_of(binary, &args);
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let mut cluster = Self { child, directory: directory.to_owned() };
        let deadline = Instant::now() + LIMIT;
        while !cluster.output().contains("Ctrl-C") {
            assert!(cluster.child.try_wait().unwrap().is_none(), "up ended: {}", cluster.output());
            assert!(Instant::now() < deadline, "up is not ready: {}", cluster.output());
            std::thread::sleep(Duration::from_millis(20));
        }
        cluster
    }

    /// What it printed.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(self.directory.with_extension("log")).unwrap_or_default()
    }

    /// The path of its configuration.
    pub(crate) fn config(&self) -> String {
        self.directory.join("cluster.toml").to_str().unwrap().to_owned()
    }

    /// Where its gateway listens.
    pub(crate) fn gateway(&self) -> String {
        let text = fs::read_to_string(self.directory.join("gateway.toml")).unwrap();
        text.split('"').nth(1).unwrap().to_owned()
    }

    /// The keys of objects that `ls` shows.
    pub(crate) fn keys(&self, what: &str) -> Vec<String> {
        let list: serde_json::Value = serde_json::from_slice(&self.run(&["ls", what, "--json"])).unwrap();
        list.as_array().unwrap().iter().map(|object| object["key"].as_str().unwrap().to_owned()).collect()
    }

    /// Starts a command against it, with its standard input open.
    pub(crate) fn spawn(&self, args: &[&str]) -> Child {
        let mut command = command(&[args, &["--config", &self.config()]].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts")
    }

    /// Runs a command against it, which must succeed; its standard output.
    pub(crate) fn run(&self, args: &[&str]) -> Vec<u8> {
        let output = self.try_run(args, b"");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// How it is.
    pub(crate) fn status(&self) -> serde_json::Value {
        serde_json::from_slice(&self.run(&["status", "--json"])).unwrap()
    }

    /// Waits until its status is so.
    pub(crate) fn wait_for(&self, what: &str, is_so: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let deadline = Instant::now() + LIMIT;
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "not {what}: {status}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Replaces its map as an operator should: whole, by a rename.
    pub(crate) fn change_map(&self, change: impl Fn(&str) -> String) {
        let config = PathBuf::from(self.config());
        let new = config.with_extension("new");
        fs::write(&new, change(&fs::read_to_string(&config).unwrap())).unwrap();
        fs::rename(new, config).unwrap();
    }

    /// Runs a command against it.
    pub(crate) fn try_run(&self, args: &[&str], input: &[u8]) -> Output {
        let config = self.config();
        reservoir_with(&[args, &["--config", &config]].concat(), input)
    }

    /// The process ids of its children with this word in their arguments, by the arguments' order.
    pub(crate) fn children(&self, role: &str) -> Vec<u32> {
        let mut found = vec![];
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let parent = stat.rsplit(')').next().unwrap_or_default().split_whitespace().nth(1).map(str::to_owned);
            let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            if parent == Some(self.child.id().to_string()) && line.split('\0').nth(1) == Some(role) {
                found.push(pid);
            }
        }
        found.sort_unstable();
        found
    }

    /// Kills the process of a target.
    pub(crate) fn kill_target(&self, id: u32) {
        let is_it = |pid: &u32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains(&format!("--id\0{id}\0"))
        };
        signal(self.children("target").into_iter().find(is_it).unwrap(), "-KILL");
    }

    /// Flips a byte of what these targets have of each sample. All targets stand still meanwhile: whoever notices the
    /// first rot at once cannot have the chunk made good by one that rots a moment later.
    pub(crate) fn rot<'s>(&self, ids: &[u32], samples: impl IntoIterator<Item = &'s [u8]> + Clone) {
        let targets = self.children("target");
        targets.iter().for_each(|pid| signal(*pid, "-STOP"));
        for id in ids {
            rot(&self.directory.join(format!("targets/{id}/segment-00000001")), samples.clone());
        }
        targets.iter().for_each(|pid| signal(*pid, "-CONT"));
    }

    /// Starts one of its targets, which `up` does not run any more.
    pub(crate) fn start_target(&self, id: u32) -> Role {
        Role::start(&["target", "--id", &id.to_string(), "--config", &self.config()])
    }

    /// Asks it to stop, waits, and whether it ended well.
    pub(crate) fn stop(mut self) -> bool {
        signal(self.child.id(), "-TERM");
        self.child.wait().unwrap().success()
    }

    /// Kills `reservoir up` itself, as a crash would.
    pub(crate) fn crash(mut self) -> PathBuf {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.directory.clone()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            signal(self.child.id(), "-TERM");
            let _ = self.child.wait();
        }
    }
}

/// Flips a byte of a segment where each of these is in it.
pub(crate) fn rot<'s>(segment: &Path, samples: impl IntoIterator<Item = &'s [u8]>) {
    let stored = fs::read(segment).unwrap();
    let file = fs::OpenOptions::new().write(true).open(segment).unwrap();
    for sample in samples {
        let at = stored.windows(sample.len()).position(|window| window == sample).unwrap();
        file.write_all_at(&[stored[at] ^ 1], at as u64).unwrap();
    }
}

/// The storage classes of a gateway that does not run.
pub(crate) struct Classes {
    directory: PathBuf,
    /// Its file without them.
    pub(crate) plain: String,
}

impl Classes {
    pub(crate) fn of(directory: &Path) -> Self {
        let plain = fs::read_to_string(directory.join("gateway.toml")).unwrap();
        Self { directory: directory.to_owned(), plain }
    }

    pub(crate) fn write(&self, classes: &str) {
        let text = format!("{}\n[s3.storage_class]\n{classes}\n", self.plain);
        fs::write(self.directory.join("gateway.toml"), text).unwrap();
    }

    /// The gateway does not start with them, and says why.
    pub(crate) fn refused(&self, why: &str) {
        let config = self.directory.join("cluster.toml");
        let printed = error_of(&["gateway", "--config", config.to_str().unwrap()]);
        assert!(printed.contains(why), "{printed}");
    }
}

/// Makes an empty store for a target, as for a new disk.
pub(crate) fn make_store(config: &str, id: usize) {
    let made = reservoir(&["target", "--config", config, "--id", &id.to_string(), "--new"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// One role, started by a test itself; stopped when dropped.
pub(crate) struct Role(Child);

impl Role {
    /// Starts `reservoir` with `args`. What it says goes nowhere.
    pub(crate) fn start(args: &[&str]) -> Self {
        let child = command(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self(child.expect("the binary starts"))
    }

    /// The same, with what it says in a file.
    pub(crate) fn start_with_log(args: &[&str], log: &Path) -> Self {
        let log = fs::File::create(log).unwrap();
        let child = command(args).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn();
        Self(child.expect("the binary starts"))
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has not ended.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Asks it to stop, waits, and whether it ended well.
    pub(crate) fn stop(mut self) -> bool {
        signal(self.0.id(), "-TERM");
        self.0.wait().unwrap().success()
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Bytes that look random and differ by seed.
pub(crate) fn content(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}
