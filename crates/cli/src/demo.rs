//! The demonstration: an object is put, read back, and read again after a target was killed; then one is lost for good.

mod loss;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Serialize;

use crate::client::S3;
use crate::location::Location;
use crate::objects::PutReport;
use crate::output::{self, byte_bar, json, line};
use crate::running::Running;
use crate::{process, units};

/// Bytes of the object.
const SIZE: u64 = 64 << 20;
/// Its key.
const KEY: &str = "demo";
/// How long the restarted target may take to answer.
const RESTART: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize)]
struct Report {
    put: PutReport,
    /// Copies of chunks that each target took meanwhile.
    copies_by_target: BTreeMap<u32, u64>,
    get_seconds: f64,
    get_mb_per_s: f64,
    stopped_target: u32,
    get_after_loss_seconds: f64,
    get_after_loss_mb_per_s: f64,
    every_comparison_held: bool,
    /// A target that was lost for good; none where the cluster was not to lose one.
    loss: Option<loss::Loss>,
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
    let at: Location = KEY.parse().map_err(anyhow::Error::msg)?;
    say(&format!("\nDemonstration: an object of {}, {at}.", units::size(SIZE)))?;
    let (s3, before) = (running.s3()?, chunks(running)?);
    let bar = byte_bar("put", Some(SIZE));
    let mut source = bar.wrap_read(Content::new(seed).take(SIZE));
    let put = PutReport::of(&s3, &at, &mut source, Some(SIZE), None).context("the demonstration's put failed")?;
    bar.finish_and_clear();
    say("  put: durable on every copy")?;
    let get_seconds = compare(&s3, &at, seed).context("the demonstration's first read failed")?;
    say("  read back: equal")?;
    let had = |id: &u32| before.get(id).copied().unwrap_or(0);
    let took = chunks(running)?.into_iter().map(|(id, chunks)| (id, chunks.saturating_sub(had(&id))));
    let copies_by_target: BTreeMap<u32, u64> = took.collect();
    let victim = *copies_by_target
        .iter()
        .max_by_key(|(_, copies)| **copies)
        .context("no target holds a copy, though the put succeeded")?
        .0;
    let nth = running.cluster.targets.iter().position(|id| *id == victim);
    let nth = nth.with_context(|| format!("target {victim} holds copies but is not of this cluster"))?;
    running.children.0[nth].kill()?;
    say(&format!("  target {victim}, which holds most copies, killed"))?;
    let after = compare(&s3, &at, seed).context("the demonstration's read after the loss failed");
    let restarted = running.children.0[nth].restart().and_then(|()| wait_for(running, victim));
    let get_after_loss_seconds = after?;
    say("  read again without it: equal")?;
    restarted?;
    say(&format!("  target {victim} started again\n"))?;
    let mut report = Report {
        get_seconds,
        get_mb_per_s: units::mb_per_s(SIZE, get_seconds),
        stopped_target: victim,
        get_after_loss_seconds,
        get_after_loss_mb_per_s: units::mb_per_s(SIZE, get_after_loss_seconds),
        every_comparison_held: true,
        loss: None,
        put,
        copies_by_target,
    };
    if !as_json {
        print(&report, running)?;
    }
    match loss::obstacle(running)? {
        Some(why) => say(&format!("No target is lost for good: {why}."))?,
        None => report.loss = Some(loss::show(running, (victim, nth), &say, &|| compare(&s3, &at, seed))?),
    }
    if as_json { json(&report) } else { Ok(()) }
}

fn print(report: &Report, running: &Running) -> anyhow::Result<()> {
    let rows = [
        ("size", units::size(report.put.size)),
        ("copies of chunks", report.copies_by_target.values().sum::<u64>().to_string()),
        ("put", format!("{:.1} MB/s", report.put.mb_per_s)),
        ("get", format!("{:.1} MB/s", report.get_mb_per_s)),
        ("get, one target lost", format!("{:.1} MB/s", report.get_after_loss_mb_per_s)),
        ("CPU of all processes", format!("{:.2} s", running.children.cpu_seconds() + own_cpu())),
    ];
    output::pairs(rows)?;
    let rows = report.copies_by_target.iter().map(|(id, copies)| vec![id.to_string(), copies.to_string()]);
    output::table(&["target", "copies of chunks"], rows.collect())
}

fn own_cpu() -> f64 {
    process::cpu_seconds("/proc/self/stat")
}

/// The chunks that each target holds.
fn chunks(running: &Running) -> anyhow::Result<BTreeMap<u32, u64>> {
    let targets = running.gateway.status()?.targets.into_iter();
    Ok(targets.map(|target| (target.id, target.chunks.unwrap_or(0))).collect())
}

/// Reads the object and compares it as it comes; how long it took.
fn compare(s3: &S3, at: &Location, seed: u64) -> anyhow::Result<f64> {
    let bar = byte_bar("get", Some(0));
    let mut sink = Compare { expected: Content::new(seed), scratch: vec![], length: 0 };
    let begin = Instant::now();
    s3.get(at, &mut sink, &bar)?;
    let seconds = begin.elapsed().as_secs_f64();
    bar.finish_and_clear();
    ensure!(sink.length == SIZE, "{} of {SIZE} bytes came back", sink.length);
    Ok(seconds)
}

fn wait_for(running: &mut Running, target: u32) -> anyhow::Result<()> {
    let deadline = Instant::now() + RESTART;
    loop {
        running.children.check()?;
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
