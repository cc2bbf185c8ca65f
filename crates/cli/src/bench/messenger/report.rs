//! What was measured, as a table and as plots.

use std::path::PathBuf;

use anyhow::Context;

use super::{Cell, Direction, Row, SAMPLE};
use crate::args::{MessengerArgs, Skew};
use crate::output::{json, line, say, table};
use crate::plot::{Axis, Bar, Drawn, Group, Series, Words, bars, lines};
use crate::report::Report;
use crate::units;

/// The directory of the report, if one is asked for; it is made, and can be written into.
pub(super) fn directory(args: &MessengerArgs) -> anyhow::Result<Option<PathBuf>> {
    let Some(directory) = args.out.clone() else { return Ok(None) };
    let made = std::fs::create_dir_all(&directory).and_then(|()| tempfile::tempfile_in(&directory).map(drop));
    made.with_context(|| format!("nothing can be written into {}: choose another --out", directory.display()))?;
    Ok(Some(directory))
}

pub(super) fn conclude(rows: &[Row], cells: &[Cell], as_json: bool, directory: Option<PathBuf>) -> anyhow::Result<()> {
    let header = [
        "size",
        "",
        "skew",
        "policy, switches",
        "messages/s",
        "MB/s",
        "p50 ms",
        "p99 ms",
        "light p99",
        "ratio",
        "least",
        "most",
        "bound",
        "us of workers",
        "of clients",
        "moves/s",
    ];
    let cells_of_table: Vec<Vec<String>> = rows.iter().map(of_row).collect();
    if as_json {
        json(&rows)?;
    } else {
        let first = rows.first().map_or((0, 0, 0), |row| (row.workers, row.connections, row.dispatch_us));
        line(&format!(
            "{} workers, {} connections, {} cores, {} us for a message that was verified; ratio: to round-robin in the same round, and the least and the most of \
             all rounds; bound: what it can be at most with these cores",
            first.0,
            first.1,
            sim::perf::cores(),
            first.2
        ))?;
        table(&header, cells_of_table.clone())?;
    }
    let Some(directory) = directory else { return Ok(()) };
    let mut report = Report::new("The messenger alone, by policy and switches");
    report.table(&header, &cells_of_table);
    for direction in [Direction::Write, Direction::Read] {
        for (name, what, of) in PLOTS {
            let words = Words { title: &format!("{what}, {}", said(direction)), x: "", y: what };
            report.plot(&format!("messenger-{}-{name}", said(direction)), by_variant(&words, rows, direction, of)?);
        }
    }
    for cell in cells.iter().filter(|cell| cell.case.skew != Skew::Even) {
        let size = units::size(cell.case.size);
        let case = format!("{size} {} {} {}", said(cell.case.direction), cell.case.skew.name(), cell.variant.name());
        let title = format!("Bytes of each worker over time: {case}");
        report.plot(&format!("messenger-{}", case.replace([' ', ','], "-")), over_time(&title, cell)?);
    }
    report.file("result.json", serde_json::to_string_pretty(&rows)?);
    say!("written: {}", report.write(&directory)?.display());
    Ok(())
}

/// A figure of a row, by its name in files and in words.
type Plot = (&'static str, &'static str, fn(&Row) -> Option<f64>);
const PLOTS: [Plot; 2] = [
    ("ratio", "messages a second, of round-robin's in the same round", |row| row.ratio),
    ("p99", "99th percentile of the time until the answer, ms", |row| Some(row.p99_ms)),
];

const fn said(direction: Direction) -> &'static str {
    match direction {
        Direction::Write => "write",
        Direction::Read => "read",
    }
}

fn of_row(row: &Row) -> Vec<String> {
    let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    vec![
        units::size(row.size),
        said(row.direction).to_owned(),
        row.skew.name().to_owned(),
        row.variant.name(),
        format!("{:.0}", row.messages_per_s),
        format!("{:.0}", row.mb_per_s),
        format!("{:.2}", row.p50_ms),
        format!("{:.2}", row.p99_ms),
        ratio(row.light_p99_ms),
        ratio(row.ratio),
        ratio(row.ratio_least),
        ratio(row.ratio_most),
        format!("{:.2}", row.bound),
        format!("{:.1}", row.cpu_us_of_server),
        format!("{:.1}", row.cpu_us_of_clients),
        format!("{:.1}", row.moves_per_s),
    ]
}

fn by_variant(
    words: &Words<'_>,
    rows: &[Row],
    direction: Direction,
    of: fn(&Row) -> Option<f64>,
) -> anyhow::Result<String> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.direction == direction).collect();
    let mut names: Vec<String> = Vec::new();
    let mut groups: Vec<Group> = Vec::new();
    for row in rows {
        let (variant, name) = (row.variant.name(), format!("{} {}", units::size(row.size), row.skew.name()));
        if !names.contains(&variant) {
            names.push(variant);
        }
        let bar = Bar { value: of(row), compared: None };
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.bars.push(bar),
            None => groups.push(Group { name, bars: vec![bar] }),
        }
    }
    bars(words, &names.iter().map(String::as_str).collect::<Vec<_>>(), "", &groups)
}

/// Of the last round.
fn over_time(title: &str, cell: &Cell) -> anyhow::Result<String> {
    let samples = cell.rounds.last().map_or(&[][..], |measured| measured.bytes.as_slice());
    let workers = samples.first().map_or(0, Vec::len);
    let step = SAMPLE.as_secs_f64();
    let of = |worker: usize| {
        let point = |(nth, bytes): (usize, &Vec<u64>)| ((nth + 1) as f64 * step, bytes[worker] as f64 / step / 1e6);
        Series { name: format!("worker {worker}"), points: samples.iter().enumerate().map(point).collect() }
    };
    let series: Vec<Series> = (0..workers).map(of).collect();
    let words = Words { title, x: "seconds", y: "MB/s read and sent" };
    lines(&words, &Axis::even(0.0, samples.len() as f64 * step), &series, Drawn::Line, None)
}
