//! `reservoir sim sweep`: one key or two over their values.

use anyhow::{Context, ensure};
use protocol::size;
use serde_json::{Map, Value};
use sim::perf::{Estimate, TIME_UNITS};

use super::scenarios::{changes_by, interval, perform, read, written};
use crate::args::SweepArgs;
use crate::output::{json, line, table};
use crate::plot::{Axis, Drawn, Series, Words, lines};
use crate::report::Report;

/// Units of what a scenario's keys hold, kind by kind, each with its worth in the first.
const UNITS: [&[(&str, u64)]; 3] = [&TIME_UNITS, &size::UNITS, &[("", 1)]];

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

    /// The values as numbers in the least of their units, and that; `None` where one is a word.
    fn numbers(&self) -> Option<(Vec<f64>, &'static str)> {
        let parse = |value: &String| -> Option<(usize, f64, u64, &'static str)> {
            let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let number: f64 = digits.parse().ok()?;
            let mut kinds = UNITS.iter().enumerate();
            kinds.find_map(|(kind, units)| {
                let (unit, worth) = units.iter().find(|(unit, _)| *unit == &value[digits.len()..])?;
                Some((kind, number * *worth as f64, *worth, *unit))
            })
        };
        let all: Vec<_> = self.values.iter().map(parse).collect::<Option<_>>()?;
        let (kind, _, worth, unit) = *all.iter().min_by_key(|value| value.2)?;
        let is_one_kind = all.iter().all(|value| value.0 == kind);
        is_one_kind.then(|| (all.iter().map(|value| value.1 / worth as f64).collect(), unit))
    }

    /// Where the values lie, what the axis is called, and the axis.
    fn axis(&self) -> (Vec<f64>, String, Axis) {
        let Some((numbers, unit)) = self.numbers().filter(|(numbers, _)| numbers.len() > 1) else {
            let places = (1..=self.values.len()).map(|n| n as f64).collect();
            return (places, self.key.clone(), Axis::words(&self.values));
        };
        let (least, most) = numbers.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), n| (a.min(*n), b.max(*n)));
        // From zero where that takes little room.
        let from = if least > 0.0 && least <= 0.25 * most { 0.0 } else { least };
        let name = if unit.is_empty() { self.key.clone() } else { format!("{}, {unit}", self.key) };
        (numbers, name, Axis::even(from, most))
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
}

/// Runs `reservoir sim sweep`.
pub(super) fn run(args: &SweepArgs) -> anyhow::Result<()> {
    ensure!(args.vary.len() <= 2, "--vary is given {} times: a sweep is over one key or two", args.vary.len());
    let ranges = args.vary.iter().map(|vary| Range::parse(vary)).collect::<anyhow::Result<Vec<_>>>()?;
    if let [first, second] = ranges.as_slice() {
        ensure!(first.key != second.key, "--vary {} is given twice: vary two different keys", first.key);
    }
    if let Some(percent) = args.keep {
        ensure!((0.0..=100.0).contains(&percent), "--keep {percent}: 0 to 100 are possible");
    }
    let first = |set: &[(String, String)]| {
        ranges[0].values.iter().map(|v| [&[(ranges[0].key.clone(), v.clone())], set].concat()).collect::<Vec<_>>()
    };
    let settings: Vec<Vec<(String, String)>> = match ranges.get(1) {
        None => first(&[]),
        Some(second) => second.values.iter().flat_map(|v| first(&[(second.key.clone(), v.clone())])).collect(),
    };
    let scenarios = settings.iter().map(|set| {
        let changes: Vec<String> = set.iter().map(|(key, value)| format!("{key}={value}")).collect();
        read(&args.file, &[changes_by("--set", &args.how.set), changes_by("--vary", &changes)].concat(), args.how.seeds)
    });
    let all = perform(scenarios.collect::<anyhow::Result<Vec<_>>>()?, &args.how.report)?;
    let metrics = &all[0].metrics;
    let at = metrics.iter().position(|m| m.key == args.metric).with_context(|| {
        let known: Vec<&str> = metrics.iter().map(|m| m.key).collect();
        format!("--metric {}: one of {} is possible", args.metric, known.join(", "))
    })?;
    // What is in brackets are figures of one setup.
    let label = match metrics[at].label.split_once(" (") {
        Some((what, rest)) => format!("{what}{}", rest.rsplit_once(')').map_or("", |(_, unit)| unit)),
        None => metrics[at].label.clone(),
    };
    let estimates = all.iter().map(|done| done.metrics[at].estimate());
    let points: Vec<Point> = settings.into_iter().zip(estimates).map(|(set, e)| Point { set, estimate: e }).collect();
    show(args, &ranges, &label, &points)
}

fn show(args: &SweepArgs, ranges: &[Range], label: &str, points: &[Point]) -> anyhow::Result<()> {
    let objects: Vec<Value> = points.iter().map(|point| point.json(&args.metric)).collect();
    let mut header: Vec<&str> = ranges.iter().map(|range| range.key.as_str()).collect();
    header.extend([label, "95 %"]);
    let rows: Vec<Vec<String>> = points.iter().map(Point::row).collect();
    let level = args.keep.map(|percent| {
        (
            points.iter().map(|p| p.estimate.mean).fold(0.0, f64::max) * percent / 100.0,
            format!("{percent} % of the best"),
        )
    });
    let notes: Vec<String> = level.iter().flat_map(|(level, name)| kept(&ranges[0], points, *level, name)).collect();
    if args.how.report.json {
        json(&objects)?;
    } else {
        table(&header, rows.clone())?;
        notes.iter().try_for_each(|text| line(text))?;
    }
    let Some(directory) = &args.how.report.out else { return Ok(()) };
    let (places, name, axis) = ranges[0].axis();
    let series: Vec<Series> = points
        .chunks(places.len())
        .map(|line| Series {
            name: second_of(line).unwrap_or_else(|| label.to_owned()),
            points: places.iter().copied().zip(line.iter().map(|point| point.estimate.mean)).collect(),
        })
        .collect();
    let keys: Vec<&str> = ranges.iter().map(|range| range.key.as_str()).collect();
    let title = format!("{label}, by {}", keys.join(" and "));
    let level = level.as_ref().map(|(level, name)| (*level, name.as_str()));
    let mut report = Report::new(&title);
    report.text(&format!("{}, with --vary {}.", args.file.display(), args.vary.join(" --vary ")));
    report.plot("sweep", lines(&Words { title: &title, x: &name, y: label }, &axis, &series, Drawn::Line, level)?);
    notes.iter().for_each(|text| report.text(text));
    report.table(&header, &rows);
    report.file("result.json", serde_json::to_string_pretty(&objects)?);
    crate::output::say!("written: {}", report.write(directory)?.display());
    Ok(())
}

/// The second key and its value in a line of points.
fn second_of(line: &[Point]) -> Option<String> {
    line.first()?.set.get(1).map(|(key, value)| format!("{key} = {value}"))
}

/// Up to which value of the first key each line of points is at least at a level.
fn kept(first: &Range, points: &[Point], level: f64, name: &str) -> Vec<String> {
    let lines = points.chunks(first.values.len());
    lines
        .map(|line| {
            let whose = second_of(line).map_or(String::new(), |second| format!("{second}: "));
            match line.iter().take_while(|point| point.estimate.mean >= level).count() {
                0 => format!("{whose}below {name} from the first value on."),
                all if all == line.len() => format!("{whose}at least {name} everywhere."),
                some => format!("{whose}at least {name} up to {} = {}.", first.key, first.values[some - 1]),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_where_their_units_say() {
        let numbers = |vary: &str| Range::parse(vary).unwrap().numbers();
        assert_eq!(numbers("t=0us,500us,2ms"), Some((vec![0.0, 500.0, 2_000.0], "us")));
        assert_eq!(numbers("chunk=16KiB,1MiB"), Some((vec![16.0, 1_024.0], "KiB")));
        assert_eq!(numbers("load=0.5,1"), Some((vec![0.5, 1.0], "")));
        assert_eq!(numbers("x=1,2us"), None, "of different kinds");
        assert_eq!(numbers("choice=any,soonest"), None);
    }
}
