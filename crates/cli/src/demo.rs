//! The demonstration: a file is put, read back, and read again after a target was killed.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Serialize;

use crate::api::PutReport;
use crate::client::Gateway;
use crate::output::{self, byte_bar, json, line};
use crate::up::Running;
use crate::{numbers, process};

/// Bytes of the file.
const SIZE: u64 = 64 << 20;
/// Its name.
const NAME: &str = "demo";
/// How long the restarted target may take to answer.
const RESTART: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize)]
struct Report {
    put: PutReport,
    get_seconds: f64,
    get_mb_per_s: f64,
    stopped_target: u32,
    get_after_loss_seconds: f64,
    get_after_loss_mb_per_s: f64,
    every_comparison_held: bool,
}

/// Runs it. An error when a step failed or a comparison did not hold.
pub(crate) fn run(running: &mut Running, as_json: bool) -> anyhow::Result<()> {
    // With JSON, standard output is for the report alone.
    let say = |text: &str| {
        if !as_json {
            return line(text);
        }
        crate::output::say!("{text}");
        Ok(())
    };
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    say(&format!("\nDemonstration: a file of {} named {NAME:?}.", numbers::size(SIZE)))?;
    let bar = byte_bar("put", Some(SIZE));
    let mut source = bar.wrap_read(Content::new(seed).take(SIZE));
    let put = running.gateway.put(NAME, &mut source, Some(SIZE)).context("the demonstration's put failed")?;
    bar.finish_and_clear();
    say("  put: durable on every copy")?;
    let get_seconds = compare(&running.gateway, seed).context("the demonstration's first read failed")?;
    say("  read back: equal")?;
    let victim = *put
        .copies_by_target
        .iter()
        .max_by_key(|(_, copies)| **copies)
        .context("no target holds a copy, though the put succeeded")?
        .0;
    let at = running.cluster.targets.iter().position(|id| *id == victim);
    let at = at.with_context(|| format!("target {victim} holds copies but is not of this cluster"))?;
    running.family.0[at].kill()?;
    say(&format!("  target {victim}, which holds most copies, killed"))?;
    let after = compare(&running.gateway, seed).context("the demonstration's read after the loss failed");
    let restarted = running.family.0[at].restart().and_then(|()| wait_for(running, victim));
    let get_after_loss_seconds = after?;
    say("  read again without it: equal")?;
    restarted?;
    say(&format!("  target {victim} started again\n"))?;
    let report = Report {
        get_seconds,
        get_mb_per_s: numbers::mb_per_s(SIZE, get_seconds),
        stopped_target: victim,
        get_after_loss_seconds,
        get_after_loss_mb_per_s: numbers::mb_per_s(SIZE, get_after_loss_seconds),
        every_comparison_held: true,
        put,
    };
    if as_json { json(&report) } else { print(&report, running) }
}

fn print(report: &Report, running: &Running) -> anyhow::Result<()> {
    let copies: u64 = report.put.copies_by_target.values().sum();
    let chunks = report.put.file.chunks + 1;
    let rows = [
        ("size", numbers::size(report.put.file.size)),
        ("chunks (with the manifest)", chunks.to_string()),
        ("copies of each", format!("{:.1}", copies as f64 / chunks as f64)),
        ("put", format!("{:.1} MB/s", report.put.mb_per_s)),
        ("chunk put p50", format!("{:.2} ms", report.put.chunk_p50_ms)),
        ("chunk put p99", format!("{:.2} ms", report.put.chunk_p99_ms)),
        ("get", format!("{:.1} MB/s", report.get_mb_per_s)),
        ("get, one target lost", format!("{:.1} MB/s", report.get_after_loss_mb_per_s)),
        ("CPU of all processes", format!("{:.2} s", running.family.cpu_seconds() + own_cpu())),
    ];
    output::pairs(rows)?;
    let held = |id: &u32| report.put.copies_by_target.get(id).copied().unwrap_or(0);
    let rows: BTreeMap<u32, u64> = running.cluster.targets.iter().map(|id| (*id, held(id))).collect();
    output::table(
        &["target", "copies of this file"],
        rows.into_iter().map(|(id, copies)| vec![id.to_string(), copies.to_string()]).collect(),
    )
}

fn own_cpu() -> f64 {
    process::cpu_seconds("/proc/self/stat")
}

/// Reads the file and compares it as it comes; how long it took.
fn compare(gateway: &Gateway, seed: u64) -> anyhow::Result<f64> {
    let bar = byte_bar("get", Some(SIZE));
    let mut sink = Compare { expected: Content::new(seed), scratch: vec![], length: 0 };
    let report = gateway.get(NAME, &mut sink, &bar)?;
    bar.finish_and_clear();
    ensure!(sink.length == SIZE, "{} of {SIZE} bytes came back", sink.length);
    Ok(report.seconds)
}

fn wait_for(running: &mut Running, target: u32) -> anyhow::Result<()> {
    let deadline = Instant::now() + RESTART;
    loop {
        running.family.check()?;
        let status = running.gateway.status()?;
        if status.targets.iter().any(|t| t.id == target && t.alive) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!("target {target} did not answer within {} s after its restart: see its log", RESTART.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Bytes without end that depend on a seed: the output of BLAKE3 in extended mode.
pub(crate) struct Content(blake3::OutputReader);

impl Content {
    /// The bytes of this seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof())
    }
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.fill(buffer);
        Ok(buffer.len())
    }
}

/// Takes bytes and fails at the first that is not as expected.
struct Compare {
    expected: Content,
    scratch: Vec<u8>,
    length: u64,
}

impl Write for Compare {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.scratch.resize(buffer.len(), 0);
        self.expected.read_exact(&mut self.scratch)?;
        if self.scratch != buffer {
            return Err(io::Error::other(format!("the bytes from {} on are not those that were put", self.length)));
        }
        self.length += buffer.len() as u64;
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
