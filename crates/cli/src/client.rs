//! The commands that speak to a gateway.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;
use serde::de::DeserializeOwned;
use ureq::http::Response;
use ureq::http::header::AUTHORIZATION;
use ureq::{Agent, Body, SendBody, Timeout};

use crate::api::{FileInfo, FileList, HASH_HEADER, INFO_HEADER, PutReport, Refusal, Status, hex, path_segment};
use crate::output::program;
use crate::token;

/// How long a gateway may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// A gateway's address and how to speak with it.
pub(crate) struct Gateway {
    agent: Agent,
    base: String,
    /// The cluster's configuration: the token of its files is beside it.
    config: PathBuf,
    /// What to do when it does not answer.
    advice: String,
    /// How long it may keep silent.
    patience: Duration,
}

/// What a read of a file brought.
#[derive(Debug, serde::Serialize)]
pub(crate) struct GetReport {
    /// The file.
    pub(crate) file: FileInfo,
    /// From the request to the last verified byte.
    pub(crate) seconds: f64,
    /// Bytes (10^6) per second.
    pub(crate) mb_per_s: f64,
}

impl Gateway {
    /// The gateway at `address` (host and port), which may neither take nor send anything for as long as `patience`
    /// lasts. A transfer that goes on may take as long as it needs.
    pub(crate) fn at(address: &str, config: &Path, patience: Duration, advice: String) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_connect(Some(CONNECT.min(patience)))
            .timeout_per_read(Some(patience))
            .timeout_per_write(Some(patience))
            .build();
        let (agent, config) = (Agent::new_with_config(agent), config.to_owned());
        Self { agent, base: format!("http://{address}"), config, advice, patience }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// The address without the path, for people.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    fn good(&self, answer: Result<Response<Body>, ureq::Error>) -> anyhow::Result<Response<Body>> {
        let mut answer = answer.map_err(|error| {
            use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
            if matches!(&error, ureq::Error::Io(io) if [BrokenPipe, ConnectionReset].contains(&io.kind())) {
                return anyhow::anyhow!(
                    "the gateway at {} broke off: see its log, and `{} status`, then try again",
                    self.base,
                    program()
                );
            }
            if matches!(error, ureq::Error::Timeout(Timeout::PerRead | Timeout::PerWrite)) {
                return self.stalled();
            }
            anyhow::anyhow!("the gateway at {} does not answer ({error}): {}", self.base, self.advice)
        })?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        match answer.body_mut().read_json::<Refusal>() {
            Ok(refusal) if status == 404 => bail!("{}: `{} ls` shows the names", refusal.error, program()),
            Ok(refusal) => bail!("{}", refusal.error),
            Err(_) if status == 404 => bail!("the gateway has no such file: `{} ls` shows the names", program()),
            Err(_) => bail!("the gateway at {} answered {status}: see its log", self.base),
        }
    }

    fn stalled(&self) -> anyhow::Error {
        anyhow::anyhow!(
            "the gateway at {} kept silent for {} s: see its log; if it is only slow, wait longer with --timeout",
            self.base,
            self.patience.as_secs()
        )
    }

    /// What shows that one may have files.
    fn leave(&self) -> anyhow::Result<String> {
        Ok(format!("Bearer {}", token::read(&self.config)?))
    }

    fn json<T: DeserializeOwned>(&self, answer: Result<Response<Body>, ureq::Error>) -> anyhow::Result<T> {
        let mut answer = self.good(answer)?;
        let body = answer.body_mut().with_config().limit(1 << 30);
        body.read_json().map_err(|error| match error {
            ureq::Error::Timeout(_) => self.stalled(),
            error => anyhow::anyhow!("the gateway at {} answered something unreadable: {error}", self.base),
        })
    }

    /// The cluster at a glance.
    pub(crate) fn status(&self) -> anyhow::Result<Status> {
        self.json(self.agent.get(self.url("/v1/status")).call())
    }

    /// Every file.
    pub(crate) fn list(&self) -> anyhow::Result<FileList> {
        self.json(self.agent.get(self.url("/v1/files")).header(AUTHORIZATION, self.leave()?).call())
    }

    fn file_path(name: &str) -> String {
        format!("/v1/files/{}", path_segment(name))
    }

    /// What is stored under `name`.
    pub(crate) fn stat(&self, name: &str) -> anyhow::Result<FileInfo> {
        let (url, leave) = (self.url(&Self::file_path(name)), self.leave()?);
        let answer = self.agent.head(&url).header(AUTHORIZATION, &leave).call();
        if let Ok(answer) = &answer
            && !answer.status().is_success()
        {
            // A HEAD has no body to say why.
            let why = self.agent.get(&url).header(AUTHORIZATION, &leave).call();
            self.good(why)?;
        }
        file_info(&self.good(answer)?)
    }

    /// Stores what `source` yields, `size` bytes when that is known.
    pub(crate) fn put(&self, name: &str, source: &mut dyn Read, size: Option<u64>) -> anyhow::Result<PutReport> {
        ensure!(object::manifest::valid_name(name), object::Error::Name(name.to_owned()).to_string());
        let mut request = self.agent.put(self.url(&Self::file_path(name))).header(AUTHORIZATION, self.leave()?);
        if let Some(size) = size {
            request = request.header("content-length", size.to_string());
        }
        let mut source = source;
        let mut answer = self.good(request.send(SendBody::from_reader(&mut source)))?;
        let answer = answer.body_mut().read_json();
        answer.with_context(|| format!("the gateway's answer to the put is unreadable: see `{} stat`", program()))
    }

    /// Writes the file `name` to `sink` and checks its length and hash.
    pub(crate) fn get(&self, name: &str, sink: &mut dyn Write, bar: &ProgressBar) -> anyhow::Result<GetReport> {
        let begin = Instant::now();
        let request = self.agent.get(self.url(&Self::file_path(name))).header(AUTHORIZATION, self.leave()?);
        let mut answer = self.good(request.call())?;
        let file = file_info(&answer)?;
        let hash = answer.headers().get(HASH_HEADER).and_then(|h| h.to_str().ok()).unwrap_or_default().to_owned();
        bar.set_length(file.size);
        let mut body = answer.body_mut().as_reader();
        let (mut hasher, mut length) = (blake3::Hasher::new(), 0);
        let mut buffer = vec![0; 256 << 10];
        loop {
            let count = body.read(&mut buffer).with_context(|| self.broke_off(name, length, file.size))?;
            if count == 0 {
                break;
            }
            hasher.update(&buffer[..count]);
            length += count as u64;
            sink.write_all(&buffer[..count]).with_context(|| format!("{name:?} could not be written"))?;
            bar.set_position(length);
        }
        ensure!(length == file.size, self.broke_off(name, length, file.size));
        ensure!(hex(hasher.finalize().as_bytes()) == hash, "{name:?} arrived damaged: get it again");
        let seconds = begin.elapsed().as_secs_f64();
        let mb_per_s = crate::numbers::mb_per_s(length, seconds);
        Ok(GetReport { file, seconds, mb_per_s })
    }

    /// Of a file that ended early. Why is known only where it is read.
    fn broke_off(&self, name: &str, length: u64, size: u64) -> String {
        let base = &self.base;
        format!(
            "{name:?} broke off after {length} of {size} bytes: the log of the gateway at {base} says why; then get it again"
        )
    }

    /// Writes the file `name` to the file `path`, which appears only when every byte was verified.
    pub(crate) fn get_to(&self, name: &str, path: &Path, bar: &ProgressBar) -> anyhow::Result<GetReport> {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        ensure!(!path.is_dir(), "{} is a directory: name a file with -o", path.display());
        // As any program that writes a file: the umask decides who may read it.
        let mut partial = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .tempfile_in(&directory)
            .with_context(|| format!("no file can be made in {}: choose another place with -o", directory.display()))?;
        let report = self.get(name, partial.as_file_mut(), bar)?;
        partial.as_file().sync_all().with_context(|| format!("{} could not be made durable", path.display()))?;
        partial.persist(path).with_context(|| format!("{} could not be replaced", path.display()))?;
        Ok(report)
    }
}

fn file_info(answer: &Response<Body>) -> anyhow::Result<FileInfo> {
    let header =
        answer.headers().get(INFO_HEADER).context("the gateway did not describe the file: is it a reservoir?")?;
    serde_json::from_slice(header.as_bytes()).context("the gateway described the file unreadably: use the same version")
}

/// A file to put: its source, length if known, and the name it gets by default.
pub(crate) fn open_source(path: &Path) -> anyhow::Result<(Box<dyn Read>, Option<u64>)> {
    if path.as_os_str() == "-" {
        return Ok((Box::new(io::stdin()), None));
    }
    let file = File::open(path).with_context(|| format!("{} cannot be opened", path.display()))?;
    let meta = file.metadata().with_context(|| format!("{} cannot be examined", path.display()))?;
    ensure!(!meta.is_dir(), "{} is a directory: name a file", path.display());
    let size = meta.is_file().then_some(meta.len());
    Ok((Box::new(file), size))
}
