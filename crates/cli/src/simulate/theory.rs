//! `reservoir sim theory`: what is measured in the simulator beside what queueing theory says.

use anyhow::anyhow;
use serde::Serialize;
use sim::perf::{cores, run_all};
use sim::theory::{Case, LATENCY, Line, cases, poisson_at_least};

use super::progress::Progress;
use super::scenarios::written;
use crate::args::ReportArgs;
use crate::plot::{Bar, Group, Words, bars};
use crate::report::{Measured, make_directory};

/// Most transfers in an interval, and copies at a disk, that are drawn.
const DRAWN: u32 = 5;

#[derive(Serialize)]
struct RowJson<'a> {
    case: &'a str,
    what: &'a str,
    measured: f64,
    predicted: f64,
    /// Whether the assumptions of the prediction hold.
    applies: bool,
}

/// Runs `reservoir sim theory`.
pub(super) fn run(args: &ReportArgs) -> anyhow::Result<()> {
    make_directory(args)?;
    let cases = cases()?;
    let setups: Vec<_> = cases.iter().map(|case| case.setup.clone()).collect();
    let progress = Progress::default();
    let outcomes =
        run_all(&setups, cores(), &|done| progress.hear(done, setups.len())).map_err(|(_, why)| anyhow!(why))?;
    progress.end();
    let compared: Vec<(&Case, Line)> = cases
        .iter()
        .zip(&outcomes)
        .flat_map(|(case, outcome)| case.compare(outcome).into_iter().map(move |line| (case, line)))
        .collect();
    let objects: Vec<RowJson<'_>> = compared.iter().map(|(case, line)| object(case, line)).collect();
    let header = ["case", "what", "measured", "theory", "ratio", "must agree"];
    let rows: Vec<Vec<String>> = compared.iter().map(|(case, line)| cells(case, line)).collect();
    let measured = Measured { objects: &objects, header: &header, rows: &rows };
    measured.conclude(args, "Theory and simulation", |report| {
        report.text("Each figure is measured in one run; where the assumptions of the theory hold, both must agree.");
        let intervals: Vec<_> =
            cases.iter().zip(&outcomes).filter_map(|(case, outcome)| Some((case, case.intervals(outcome)?))).collect();
        report.plot("conflicts", conflicts(&intervals)?);
        report.plot("queues", queues(&compared)?);
        report.plot("latencies", latencies(&compared)?);
        Ok(())
    })
}

fn object<'a>(case: &'a Case, line: &'a Line) -> RowJson<'a> {
    RowJson {
        case: &case.name,
        what: &line.what,
        measured: line.measured,
        predicted: line.predicted,
        applies: line.applies,
    }
}

fn cells(case: &Case, line: &Line) -> Vec<String> {
    let ratio = if line.predicted < 1e-6 { "-".to_owned() } else { format!("{:.3}", line.ratio()) };
    let applies = if line.applies { "yes" } else { "no" };
    let texts = [&case.name, &line.what].map(Clone::clone);
    [&texts[..], &[written(line.measured), written(line.predicted), ratio, applies.to_owned()]].concat()
}

/// In how many intervals so many transfers began at a target.
fn conflicts(all: &[(&Case, Vec<f64>)]) -> anyhow::Result<String> {
    let series: Vec<String> = all.iter().map(|(case, _)| case.name.replace(", three copies", "")).collect();
    let groups = (0..=DRAWN).map(|k| {
        let law = poisson_at_least(k, 1.0) - poisson_at_least(k + 1, 1.0);
        let bar = |shares: &Vec<f64>| Bar {
            value: Some(100.0 * shares.get(k as usize).copied().unwrap_or(0.0)),
            compared: Some(100.0 * law),
        };
        Group { name: k.to_string(), bars: all.iter().map(|(_, shares)| bar(shares)).collect() }
    });
    let words = Words {
        title: "Transfers that begin at a target within the mean time from one to the next",
        x: "transfers in an interval",
        y: "intervals with so many, %",
    };
    drawn(&words, &series, "Poisson's law", &groups.collect::<Vec<_>>())
}

/// What puts find at their disks, where each is a queue of its own.
fn queues(compared: &[(&Case, Line)]) -> anyhow::Result<String> {
    let found = |line: &Line| line.what.ends_with("at the disk, %");
    let mut series: Vec<String> = Vec::new();
    let mut groups: Vec<Group> = (0..=DRAWN).map(|k| Group { name: k.to_string(), bars: Vec::new() }).collect();
    for case in names(compared.iter().filter(|(_, line)| found(line))) {
        series.push(case.to_owned());
        let lines = compared.iter().filter(|(of, line)| of.name == case && found(line));
        groups.iter_mut().zip(lines).for_each(|(group, (_, line))| group.bars.push(bar(line, 1.0)));
    }
    let words = Words { title: "Queues at disks", x: "copies at the disk before", y: "puts that find so many, %" };
    drawn(&words, &series, "M/D/1", &groups)
}

/// The mean latencies where only disks take time, in what one copy takes a disk.
fn latencies(compared: &[(&Case, Line)]) -> anyhow::Result<String> {
    let mut groups: Vec<Group> = Vec::new();
    let mut series: Vec<String> = Vec::new();
    for (case, line) in compared.iter().filter(|(_, line)| line.what == LATENCY) {
        let name = case.name.split(',').next().unwrap_or_default().to_owned();
        if !series.contains(&name) {
            series.push(name);
        }
        let (load, bar) = (format!("load {}", case.load), bar(line, case.service()));
        match groups.iter_mut().find(|group| group.name == load) {
            Some(group) => group.bars.push(bar),
            None => groups.push(Group { name: load, bars: vec![bar] }),
        }
    }
    let words = Words {
        title: "One copy, only disks take time: how long a put takes in the mean",
        x: "",
        y: "put latency, times of service",
    };
    drawn(&words, &series, "theory", &groups)
}

fn drawn(words: &Words<'_>, series: &[String], theory: &str, groups: &[Group]) -> anyhow::Result<String> {
    bars(words, &series.iter().map(String::as_str).collect::<Vec<_>>(), theory, groups)
}

fn bar(line: &Line, unit: f64) -> Bar {
    Bar { value: Some(line.measured / unit), compared: Some(line.predicted / unit) }
}

/// The names of cases, each once.
fn names<'a>(compared: impl Iterator<Item = &'a (&'a Case, Line)>) -> Vec<&'a str> {
    let mut names: Vec<&str> = compared.map(|(case, _)| case.name.as_str()).collect();
    names.dedup();
    names
}
