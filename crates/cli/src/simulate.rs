//! The simulator's commands.

mod ablate;
mod choosy;
mod leader;
mod paper;
mod plot;
mod progress;
mod reads;
mod report;
mod rivals;
mod scenarios;
mod sweep;
mod theory;

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{bail, ensure};
use sim::Planted;

use crate::args::SimCommand;
use crate::output::{line, program, step_bar};

/// Runs `reservoir sim`.
pub(crate) fn run(command: &SimCommand) -> anyhow::Result<()> {
    match command {
        SimCommand::Run(args) => scenarios::run(args),
        SimCommand::Paper(args) => paper::run(args),
        SimCommand::Compare(args) => scenarios::compare(args),
        SimCommand::Sweep(args) => sweep::run(args),
        SimCommand::Ablate(args) => ablate::run(args),
        SimCommand::Rivals(args) => rivals::run(args),
        SimCommand::Reads(args) => reads::run(args),
        SimCommand::Leader(args) => leader::run(args),
        SimCommand::Theory(args) => theory::run(args),
        SimCommand::Check { seeds, start, plant } => check(*start, *seeds, *plant),
        SimCommand::Replay { seed, plant } => replay(*seed, *plant),
    }
}

/// How often one who does not watch a terminal hears of the progress, in parts of the whole.
const PARTS: u64 = 10;

/// Most failed seeds that are shown.
const SHOWN: usize = 20;

fn check(start: u64, seeds: u64, plant: Option<Planted>) -> anyhow::Result<()> {
    ensure!(seeds > 0, "--seeds 0 checks nothing: ask for at least 1");
    let begin = Instant::now();
    let bar = step_bar("seeds", seeds);
    let (watched, told) = (std::io::stderr().is_terminal(), AtomicU64::new(0));
    let progress = |done: u64| {
        bar.set_position(done);
        let part = done.saturating_mul(PARTS) / seeds;
        if !watched && part > told.fetch_max(part, Ordering::Relaxed) {
            crate::output::say!("{done} of {seeds} seeds, {:.1} s", begin.elapsed().as_secs_f64());
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let report = sim::check_seeds(start, seeds, plant, threads, &progress);
    bar.finish_and_clear();
    line(&format!(
        "{} seeds from {start}: {} puts, {} gets, {} events in {:.1} s, {} failed",
        report.seeds,
        report.puts,
        report.gets,
        report.events,
        begin.elapsed().as_secs_f64(),
        report.failures.len()
    ))?;
    let flag = plant.map_or(String::new(), |plant| format!(" --plant {}", plant.name()));
    let program = program();
    for (seed, why) in report.failures.iter().take(SHOWN) {
        line(&format!("seed {seed}: {why}\n  again, step by step: {program} sim replay {seed}{flag}"))?;
    }
    if let Some(more) = report.failures.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        line(&format!("and {more} more, not shown"))?;
    }
    match report.failures.first() {
        None => Ok(()),
        Some((seed, _)) => bail!("seed {seed} failed: repeat it with `{program} sim replay {seed}{flag}`"),
    }
}

/// The defect of this name.
pub(crate) fn planted(name: &str) -> Result<Planted, String> {
    let names = || Planted::ALL.map(Planted::name).join(", ");
    Planted::ALL.into_iter().find(|planted| planted.name() == name).ok_or_else(|| format!("choose one of {}", names()))
}

fn replay(seed: u64, plant: Option<Planted>) -> anyhow::Result<()> {
    let mut broken = None;
    let outcome = sim::replay(seed, plant, &mut |step| {
        if broken.is_none() {
            broken = line(step).err();
        }
    });
    if let Some(error) = broken {
        return Err(error);
    }
    line(&format!(
        "seed {seed}: {} puts, {} gets, {} events, digest {:016x}",
        outcome.puts, outcome.gets, outcome.events, outcome.digest
    ))?;
    match outcome.failure {
        None => Ok(()),
        Some(why) => bail!("seed {seed} failed: {why}"),
    }
}
