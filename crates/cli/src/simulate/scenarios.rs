//! `reservoir sim run` and `compare`: scenarios from files.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use serde::Serialize;
use serde_json::{Map, Value};
use sim::perf::{Change, Estimate, Load, Metric, Outcome, Scenario, Setup, cores, run_all, summary};

use super::progress::Progress;
use crate::args::{CompareArgs, ReportArgs, RunArgs};
use crate::output::{json, line, table};
use crate::plot::{Axis, Drawn, Series, Words, grouped, lines, nines};
use crate::report::{Report, make_directory};

/// Quantiles of a latency plot, in percent.
const QUANTILES: [f64; 18] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 97.0, 98.0, 99.0, 99.5, 99.7, 99.9];

/// Most runs of a scenario, in a file and on the command line.
const MOST_SEEDS: u64 = 10_000;

/// Runs of each of two scenarios to compare.
const COMPARED: u64 = 10;

/// A scenario that was run.
pub(super) struct Done {
    pub(super) scenario: Scenario,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) metrics: Vec<Metric>,
}

#[derive(Serialize)]
struct Figure {
    mean: f64,
    /// Half of the 95 % confidence interval; null for one run.
    confidence: Option<f64>,
    values: Vec<f64>,
}

/// Changes of a scenario, each as the user gave it to `flag`.
pub(super) fn changes_by<'a>(flag: &'static str, changes: impl IntoIterator<Item = &'a String>) -> Vec<Change> {
    changes.into_iter().map(|text| Change { flag, text: text.clone() }).collect()
}

pub(super) fn read(path: &Path, set: &[Change], seeds: Option<u64>) -> anyhow::Result<Scenario> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("the scenario {} could not be read", path.display()))?;
    seeded(Scenario::parse(&path.display().to_string(), &text, set)?, seeds)
}

/// As many seeds as the file may ask for: the outcome of each is kept.
pub(super) fn seeds_within(seeds: u64) -> anyhow::Result<u64> {
    ensure!(seeds > 0, "--seeds 0 runs nothing: ask for at least 1");
    ensure!(seeds <= MOST_SEEDS, "--seeds {seeds}: 1 to {MOST_SEEDS} are possible");
    Ok(seeds)
}

/// The scenario with another number of runs, if one is asked for.
pub(super) fn seeded(mut scenario: Scenario, seeds: Option<u64>) -> anyhow::Result<Scenario> {
    if let Some(seeds) = seeds {
        scenario.seeds = seeds_within(seeds)?;
    }
    Ok(scenario)
}

/// Runs scenarios with all their seeds on all cores. Where the report will be written is made before: it would be a pity
/// to find at the end that it cannot.
pub(super) fn perform(scenarios: Vec<Scenario>, report: &ReportArgs) -> anyhow::Result<Vec<Done>> {
    make_directory(report)?;
    let with_seed = |s: &Scenario, n| Setup { seed: s.setup.seed + n, ..s.setup.clone() };
    let setups: Vec<Setup> = scenarios.iter().flat_map(|s| (0..s.seeds).map(move |n| with_seed(s, n))).collect();
    if let Some(chosen) = scenarios.iter().find_map(|scenario| scenario.chosen) {
        print_note(chosen, report)?;
    }
    let progress = Progress::default();
    let outcomes =
        run_all(&setups, cores(), &|done| progress.hear(done, setups.len())).map_err(|(_, why)| anyhow!(why))?;
    progress.end();
    let mut outcomes = outcomes.into_iter();
    let done = scenarios.into_iter().map(|scenario| {
        let outcomes: Vec<Outcome> = outcomes.by_ref().take(scenario.seeds as usize).collect();
        let metrics = summary(&scenario.setup, &outcomes);
        Done { scenario, outcomes, metrics }
    });
    Ok(done.collect())
}

/// Prints a note beside the results: with JSON, standard output is for these alone.
fn print_note(text: &str, report: &ReportArgs) -> anyhow::Result<()> {
    if report.json {
        crate::output::say!("reservoir: {text}");
        return Ok(());
    }
    line(text)
}

pub(super) fn written(value: f64) -> String {
    if value.abs() >= 1_000.0 { grouped(value) } else { format!("{value:.3}") }
}

pub(super) fn interval(estimate: Estimate) -> String {
    estimate.confidence().map_or("-".to_owned(), |half| format!("± {}", written(half)))
}

fn figure(metric: &Metric) -> Value {
    let estimate = metric.estimate();
    let figure = Figure { mean: estimate.mean, confidence: estimate.confidence(), values: metric.values.clone() };
    serde_json::to_value(figure).unwrap_or(Value::Null)
}

impl Done {
    pub(super) fn metric(&self, key: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.key == key)
    }

    /// The mean of a metric over the seeds; 0 when this run has none of that name.
    pub(super) fn mean(&self, key: &str) -> f64 {
        self.metric(key).map_or(0.0, |metric| metric.estimate().mean)
    }

    /// Which part of what was offered was done; 0 in a closed loop, which offers as much as is done.
    pub(super) fn completed(&self) -> f64 {
        let offered = match self.scenario.setup.load {
            Load::Open { chunks_per_second } => chunks_per_second,
            Load::Closed { .. } => f64::INFINITY,
        };
        self.mean("chunks_per_second") / offered
    }

    pub(super) const fn seeds(&self) -> u64 {
        self.scenario.seeds
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |m: &Metric| vec![m.label.clone(), written(m.estimate().mean), interval(m.estimate())];
        self.metrics.iter().map(row).collect()
    }

    fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("title".to_owned(), self.scenario.title.clone().into());
        object.insert("protocol".to_owned(), self.scenario.setup.name().into());
        object.insert("seeds".to_owned(), self.scenario.seeds.into());
        object.insert("overlap".to_owned(), self.scenario.setup.shares_targets().into());
        let (bound, which) = self.scenario.setup.bounds().lowest();
        object.insert("bound".to_owned(), which.into());
        object.insert("bound_chunks_per_second".to_owned(), bound.into());
        for metric in &self.metrics {
            object.insert(metric.key.to_owned(), figure(metric));
        }
        let digests = self.outcomes.iter().map(|o| Value::from(format!("{:016x}", o.digest)));
        object.insert("digests".to_owned(), digests.collect());
        Value::Object(object)
    }

    fn csv(&self) -> String {
        let mut csv = "metric,mean,confidence_95".to_owned();
        for n in 1..=self.outcomes.len() {
            let _ = write!(csv, ",run_{n}");
        }
        csv.push('\n');
        for metric in &self.metrics {
            let estimate = metric.estimate();
            let confidence = estimate.confidence().map_or(String::new(), |half| half.to_string());
            let _ = write!(csv, "{},{},{confidence}", metric.key, estimate.mean);
            for value in &metric.values {
                let _ = write!(csv, ",{value}");
            }
            csv.push('\n');
        }
        csv
    }

    /// Latency at each quantile, over all seeds.
    fn latency(&self, name: &str) -> Series {
        let mut all = self.outcomes[0].latency.clone();
        for outcome in &self.outcomes[1..] {
            // The bounds are the same, so nothing can be out of range.
            let _ = all.add(&outcome.latency);
        }
        let points = QUANTILES.iter().map(|q| (nines(*q), all.value_at_quantile(q / 100.0) as f64 / 1e3)).collect();
        Series { name: name.to_owned(), points }
    }

    fn load(&self) -> Series {
        let points = self.outcomes.iter().enumerate();
        let spread = |o: &Outcome| o.load.most as f64 / o.load.mean.max(1.0);
        Series {
            name: "most loaded over mean".to_owned(),
            points: points.map(|(n, o)| (n as f64 + 1.0, spread(o))).collect(),
        }
    }
}

/// Latencies by quantile.
fn latency(series: &[Series]) -> anyhow::Result<String> {
    let words = Words { title: "Put latency", x: "quantile, %", y: "put latency, us" };
    lines(&words, &Axis::quantiles(), series, Drawn::Line, None)
}

/// Runs `reservoir sim run`.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let how = &args.how;
    let scenario = read(&args.file, &changes_by("--set", &how.set), how.seeds)?;
    let begun = std::time::Instant::now();
    let all = perform(vec![scenario], &how.report)?;
    let done = &all[0];
    let (events, seconds) = (done.outcomes.iter().map(|o| o.events).sum::<u64>() as f64, begun.elapsed().as_secs_f64());
    crate::output::say!("{} events in {seconds:.1} s, {} a second", grouped(events), grouped(events / seconds));
    if how.report.json {
        json(&done.json())?;
    } else {
        line(&format!("{}: {} seeds", done.scenario.title, done.scenario.seeds))?;
        table(&["", "mean", "95 %"], done.rows())?;
    }
    if let Some(directory) = &how.report.out {
        let mut report = Report::new(&done.scenario.title);
        report.text(&format!("{}, with {} seeds.", args.file.display(), done.scenario.seeds));
        done.scenario.chosen.into_iter().for_each(|chosen| report.text(chosen));
        report.table(&["", "mean", "95 %"], &done.rows());
        report.plot("latency", latency(&[done.latency(&done.scenario.setup.name())])?);
        if done.outcomes.len() > 1 {
            let words = Words { title: "Spread of load", x: "run", y: "bytes, most loaded target over the mean" };
            let runs: Vec<String> = (1..=done.outcomes.len()).map(|n| n.to_string()).collect();
            let axis = if runs.len() > 20 { Axis::even(0.0, runs.len() as f64) } else { Axis::words(&runs) };
            report.plot("load", lines(&words, &axis, &[done.load()], Drawn::Points, None)?);
        }
        report.file("result.json", serde_json::to_string_pretty(&done.json())?);
        report.file("result.csv", done.csv());
        crate::output::say!("written: {}", report.write(directory)?.display());
    }
    Ok(())
}

/// Runs `reservoir sim compare`: the same seeds for both, so that differences are paired.
pub(super) fn compare(args: &CompareArgs) -> anyhow::Result<()> {
    let how = &args.how;
    let (seeds, set) = (Some(how.seeds.unwrap_or(COMPARED)), changes_by("--set", &how.set));
    let all = perform(vec![read(&args.a, &set, seeds)?, read(&args.b, &set, seeds)?], &how.report)?;
    let (a, b) = (&all[0], &all[1]);
    let difference =
        |a: &Metric, b: &Metric| Estimate::of(&a.values.iter().zip(&b.values).map(|(a, b)| b - a).collect::<Vec<_>>());
    let pairs = || a.metrics.iter().zip(&b.metrics).map(|(a, b)| (a, b, difference(a, b)));
    let objects: Map<String, Value> = pairs()
        .map(|(a, b, d)| {
            let object =
                serde_json::json!({ "a": figure(a), "b": figure(b), "difference": d.mean, "confidence": d.confidence() });
            (a.key.to_owned(), object)
        })
        .collect();
    let rows: Vec<Vec<String>> = pairs()
        .map(|(a, b, d)| {
            let sure = if d.runs < 2 || d.mean.abs() <= d.half { "" } else { "yes" };
            let (x, y) = (a.estimate().mean, b.estimate().mean);
            let label = a.label.split(" (").next().unwrap_or_default().to_owned();
            vec![label, written(x), written(y), written(d.mean), interval(d), sure.to_owned()]
        })
        .collect();
    let header = ["", "A", "B", "B - A", "95 %", "differs"];
    if how.report.json {
        json(&objects)?;
    } else {
        line(&format!("A: {}\nB: {}\n{} seeds each, the same", a.scenario.title, b.scenario.title, a.seeds()))?;
        table(&header, rows.clone())?;
    }
    if let Some(directory) = &how.report.out {
        let mut report = Report::new("Two scenarios side by side");
        report.text(&format!("A is {}: {}.", args.a.display(), a.scenario.title));
        report.text(&format!(
            "B is {}: {}. {} seeds each, the same for both.",
            args.b.display(),
            b.scenario.title,
            a.seeds()
        ));
        report.table(&header, &rows);
        report.plot("latency", latency(&[a.latency("A"), b.latency("B")])?);
        report.file("result.json", serde_json::to_string_pretty(&objects)?);
        crate::output::say!("written: {}", report.write(directory)?.display());
    }
    Ok(())
}
