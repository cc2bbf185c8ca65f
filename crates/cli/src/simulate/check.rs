//! Many seeds of the safety runs: what was run, what excused something missing, what failed.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{bail, ensure};
use serde::Serialize;
use sim::{PlantedBug, Report};

use crate::output::{json, line, program, step_bar, table};

/// How often progress is printed where there is no terminal, in parts of the whole.
const PARTS: u64 = 10;

/// Most failed seeds that are shown.
const SHOWN: usize = 20;

#[derive(Serialize)]
struct ReportJson<'a> {
    start: u64,
    seeds: u64,
    puts: u64,
    gets: u64,
    events: u64,
    seconds: f64,
    excuses: Vec<ExcuseJson>,
    failures: Vec<FailureJson<'a>>,
}

#[derive(Serialize)]
struct ExcuseJson {
    excuse: &'static str,
    /// In how many seeds it was used.
    seeds: u64,
    /// How often over all.
    times: u64,
}

#[derive(Serialize)]
struct FailureJson<'a> {
    seed: u64,
    why: &'a str,
}

/// Runs `reservoir sim check`.
pub(super) fn run(start: u64, seeds: u64, plant: Option<PlantedBug>, as_json: bool) -> anyhow::Result<()> {
    ensure!(seeds > 0, "--seeds 0 checks nothing: ask for at least 1");
    let begin = Instant::now();
    let bar = step_bar("seeds", seeds);
    let (watched, printed) = (std::io::stderr().is_terminal(), AtomicU64::new(0));
    let progress = |done: u64| {
        bar.set_position(done);
        let part = done.saturating_mul(PARTS) / seeds;
        if !watched && part > printed.fetch_max(part, Ordering::Relaxed) {
            crate::output::say!("{done} of {seeds} seeds, {:.1} s", begin.elapsed().as_secs_f64());
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let report = sim::check_seeds(start, seeds, plant, threads, &progress);
    bar.finish_and_clear();
    let flag = plant.map_or(String::new(), |plant| format!(" --plant {}", plant.name()));
    let seconds = begin.elapsed().as_secs_f64();
    if as_json {
        json(&object(&report, start, seconds))?
    } else {
        show(&report, start, seconds, &flag)?
    }
    match report.failures.first() {
        None => Ok(()),
        Some((seed, _)) => bail!("seed {seed} failed: repeat it with `{} sim replay {seed}{flag}`", program()),
    }
}

fn object(report: &Report, start: u64, seconds: f64) -> ReportJson<'_> {
    let excuses = report.excuses.iter();
    let failures = report.failures.iter();
    ReportJson {
        start,
        seeds: report.seeds,
        puts: report.puts,
        gets: report.gets,
        events: report.events,
        seconds,
        excuses: excuses
            .map(|(e, (seeds, times))| ExcuseJson { excuse: e.name(), seeds: *seeds, times: *times })
            .collect(),
        failures: failures.map(|(seed, why)| FailureJson { seed: *seed, why }).collect(),
    }
}

fn show(report: &Report, start: u64, seconds: f64, flag: &str) -> anyhow::Result<()> {
    line(&format!(
        "{} seeds from {start}: {} puts, {} gets, {} events in {seconds:.1} s, {} failed",
        report.seeds,
        report.puts,
        report.gets,
        report.events,
        report.failures.len()
    ))?;
    if !report.excuses.is_empty() {
        let row = |(excuse, (seeds, times)): (&sim::Excuse, &(u64, u64))| {
            vec![excuse.name().to_owned(), seeds.to_string(), times.to_string()]
        };
        table(&["what excused something missing", "seeds", "times"], report.excuses.iter().map(row).collect())?;
    }
    let program = program();
    for (seed, why) in report.failures.iter().take(SHOWN) {
        line(&format!("seed {seed}: {why}\n  again, step by step: {program} sim replay {seed}{flag}"))?;
    }
    if let Some(more) = report.failures.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        line(&format!("and {more} more, not shown"))?;
    }
    Ok(())
}
