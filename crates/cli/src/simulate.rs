//! The simulator's commands.

mod ablate;
mod cells;
mod check;
mod choosy;
mod leader;
mod messenger;
mod paper;
mod parity;
mod progress;
mod reads;
mod repair;
mod rivals;
mod scenarios;
mod sweep;
mod theory;

use anyhow::bail;
use sim::PlantedBug;

use crate::args::SimCommand;
use crate::output::line;

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
        SimCommand::Repair(args) => repair::run(args),
        SimCommand::Leader(args) => leader::run(args),
        SimCommand::Theory(args) => theory::run(args),
        SimCommand::Check { seeds, start, plant, json } => check::run(*start, *seeds, *plant, *json),
        SimCommand::Replay { seed, plant } => replay(*seed, *plant),
    }
}

fn replay(seed: u64, plant: Option<PlantedBug>) -> anyhow::Result<()> {
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
