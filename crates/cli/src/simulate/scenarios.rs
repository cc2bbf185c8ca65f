//! `reservoir sim run`, `compare` and `sweep`: scenarios from files.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use serde::Serialize;
use serde_json::{Map, Value};
use sim::perf::{Change, Estimate, Metric, Outcome, Scenario, Setup, cores, run_all, summary};

use super::plot::{Series, Words, grouped, lines};
use super::report::{Report, make_place};
use crate::args::{CompareArgs, ReportArgs, RunArgs, SweepArgs};
use crate::output::{json, line, step_bar, table};

/// Quantiles of a latency plot, in percent.
const QUANTILES: [f64; 16] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9];

/// How often a log is told how many runs are done.
const TOLD: Duration = Duration::from_secs(10);

/// Runs of each of two scenarios to compare.
const COMPARED: u64 = 10;

/// A scenario that was run.
pub(super) struct Done {
    pub(super) scenario: Scenario,
    outcomes: Vec<Outcome>,
    metrics: Vec<Metric>,
}

#[derive(Serialize)]
struct Figure {
    mean: f64,
    /// Half of the 95 % confidence interval; null for one run.
    confidence: Option<f64>,
    values: Vec<f64>,
}

/// Changes of a scenario, each as the user gave it to `flag`.
pub(super) fn given<'a>(flag: &'static str, changes: impl IntoIterator<Item = &'a String>) -> Vec<Change> {
    changes.into_iter().map(|text| Change { flag, text: text.clone() }).collect()
}

pub(super) fn read(path: &Path, set: &[Change], seeds: Option<u64>) -> anyhow::Result<Scenario> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("the scenario {} could not be read", path.display()))?;
    seeded(Scenario::parse(&path.display().to_string(), &text, set)?, seeds)
}

/// The scenario with another number of runs, if one is asked for.
pub(super) fn seeded(mut scenario: Scenario, seeds: Option<u64>) -> anyhow::Result<Scenario> {
    if let Some(seeds) = seeds {
        ensure!(seeds > 0, "--seeds 0 runs nothing: ask for at least 1");
        scenario.seeds = seeds;
    }
    Ok(scenario)
}

/// Runs scenarios with all their seeds on all cores. Where the report will be written is made before: it would be a pity
/// to find at the end that it cannot.
pub(super) fn perform(scenarios: Vec<Scenario>, report: &ReportArgs) -> anyhow::Result<Vec<Done>> {
    make_place(report)?;
    let with_seed = |s: &Scenario, n| Setup { seed: s.setup.seed + n, ..s.setup.clone() };
    let setups: Vec<Setup> = scenarios.iter().flat_map(|s| (0..s.seeds).map(move |n| with_seed(s, n))).collect();
    let bar = step_bar("runs", setups.len() as u64);
    let told = Mutex::new(Instant::now());
    let progress = |done: usize| {
        bar.set_position(done as u64);
        // In a log, where a bar is not shown, a line now and then.
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if bar.is_hidden() && told.elapsed() >= TOLD && done < setups.len() {
            *told = Instant::now();
            crate::output::say!("{done} of {} runs are done", setups.len());
        }
    };
    let outcomes = run_all(&setups, cores(), &progress).map_err(|(_, why)| anyhow!(why))?;
    bar.finish_and_clear();
    let mut outcomes = outcomes.into_iter();
    let done = scenarios.into_iter().map(|scenario| {
        let outcomes: Vec<Outcome> = outcomes.by_ref().take(scenario.seeds as usize).collect();
        let metrics = summary(&scenario.setup, &outcomes);
        Done { scenario, outcomes, metrics }
    });
    Ok(done.collect())
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
        let points = QUANTILES.iter().map(|q| (*q, all.value_at_quantile(q / 100.0) as f64 / 1e3)).collect();
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

/// Runs `reservoir sim run`.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let how = &args.how;
    let scenario = read(&args.file, &given("--set", &how.set), how.seeds)?;
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
        report.table(&["", "mean", "95 %"], &done.rows());
        let words = Words { title: "Put latency", x: "quantile, %", y: "put latency, us" };
        report.plot("latency", lines(&words, &[done.latency(done.scenario.setup.name())], true)?);
        if done.outcomes.len() > 1 {
            let words = Words { title: "Spread of load", x: "run", y: "bytes, most loaded target over the mean" };
            report.plot("load", lines(&words, &[done.load()], true)?);
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
    let (seeds, set) = (Some(how.seeds.unwrap_or(COMPARED)), given("--set", &how.set));
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
        let words = Words { title: "Put latency", x: "quantile, %", y: "put latency, us" };
        report.plot("latency", lines(&words, &[a.latency("A"), b.latency("B")], true)?);
        report.file("result.json", serde_json::to_string_pretty(&objects)?);
        crate::output::say!("written: {}", report.write(directory)?.display());
    }
    Ok(())
}

/// A key and its values in a sweep.
struct Range {
    key: String,
    values: Vec<String>,
}

impl Range {
    fn parse(vary: &str) -> anyhow::Result<Self> {
        let (key, values) = vary.split_once('=').with_context(|| format!("--vary {vary}: write key=value,value"))?;
        Ok(Self { key: key.trim().to_owned(), values: values.split(',').map(|v| v.trim().to_owned()).collect() })
    }
}

/// One point of a sweep: what was set, and what came of it.
struct Point {
    set: Vec<(String, String)>,
    estimate: Estimate,
}

impl Point {
    fn json(&self, metric: &str) -> Value {
        let mut object: Map<String, Value> =
            self.set.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
        object.insert(metric.to_owned(), self.estimate.mean.into());
        object.insert("confidence".to_owned(), self.estimate.confidence().into());
        Value::Object(object)
    }

    fn row(&self) -> Vec<String> {
        let mut row: Vec<String> = self.set.iter().map(|(_, value)| value.clone()).collect();
        row.extend([written(self.estimate.mean), interval(self.estimate)]);
        row
    }

    /// Where it lies on the axis: its number, without the unit; or its place where it is a word.
    fn at(&self, place: usize) -> f64 {
        let value = self.set[0].1.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        value.parse().unwrap_or(place as f64 + 1.0)
    }
}

/// Runs `reservoir sim sweep`: one key or two over their values.
pub(super) fn sweep(args: &SweepArgs) -> anyhow::Result<()> {
    ensure!(args.vary.len() <= 2, "--vary is given {} times: a sweep is over one key or two", args.vary.len());
    let ranges = args.vary.iter().map(|vary| Range::parse(vary)).collect::<anyhow::Result<Vec<_>>>()?;
    let first = |set: &[(String, String)]| {
        ranges[0].values.iter().map(|v| [&[(ranges[0].key.clone(), v.clone())], set].concat()).collect::<Vec<_>>()
    };
    let settings: Vec<Vec<(String, String)>> = match ranges.get(1) {
        None => first(&[]),
        Some(second) => second.values.iter().flat_map(|v| first(&[(second.key.clone(), v.clone())])).collect(),
    };
    let scenarios = settings.iter().map(|set| {
        let changes: Vec<String> = set.iter().map(|(key, value)| format!("{key}={value}")).collect();
        read(&args.file, &[given("--set", &args.how.set), given("--vary", &changes)].concat(), args.how.seeds)
    });
    let all = perform(scenarios.collect::<anyhow::Result<Vec<_>>>()?, &args.how.report)?;
    let metrics = &all[0].metrics;
    let at = metrics.iter().position(|m| m.key == args.metric).with_context(|| {
        let known: Vec<&str> = metrics.iter().map(|m| m.key).collect();
        format!("--metric {}: one of {} is possible", args.metric, known.join(", "))
    })?;
    let label = metrics[at].label.split(" (").next().unwrap_or_default().to_owned();
    let estimates = all.iter().map(|done| done.metrics[at].estimate());
    let points: Vec<Point> = settings.into_iter().zip(estimates).map(|(set, e)| Point { set, estimate: e }).collect();
    show_sweep(args, &ranges, &label, &points)
}

fn show_sweep(args: &SweepArgs, ranges: &[Range], label: &str, points: &[Point]) -> anyhow::Result<()> {
    let objects: Vec<Value> = points.iter().map(|point| point.json(&args.metric)).collect();
    let mut header: Vec<&str> = ranges.iter().map(|range| range.key.as_str()).collect();
    header.extend([label, "95 %"]);
    let rows: Vec<Vec<String>> = points.iter().map(Point::row).collect();
    if args.how.report.json {
        json(&objects)?;
    } else {
        table(&header, rows.clone())?;
    }
    let Some(directory) = &args.how.report.out else { return Ok(()) };
    let mut report = Report::new(&format!("{label}, by {}", args.vary.join(" and ")));
    let named = |line: &[Point]| line[0].set.get(1).map_or_else(|| label.to_owned(), |(k, v)| format!("{k} = {v}"));
    let series: Vec<Series> = points
        .chunks(ranges[0].values.len())
        .map(|line| Series {
            name: named(line),
            points: line.iter().enumerate().map(|(n, point)| (point.at(n), point.estimate.mean)).collect(),
        })
        .collect();
    report.plot("sweep", lines(&Words { title: label, x: &ranges[0].key, y: label }, &series, true)?);
    report.table(&header, &rows);
    report.file("result.json", serde_json::to_string_pretty(&objects)?);
    crate::output::say!("written: {}", report.write(directory)?.display());
    Ok(())
}
