//! What `reservoir sim paper` shows of the messenger.

use serde::Serialize;
use sim::messenger::Direction;
use sim::messenger::figures::{Figure, Measured, Variant, reproduce};
use sim::perf::cores;

use super::progress::Progress;
use crate::args::ExhibitArg;
use crate::output::{line, table};
use crate::report::Report;

/// Seeds of a cell at most: each run is up to half a minute of the testbed.
const SEEDS: u64 = 4;

/// One row as JSON.
#[derive(Serialize)]
pub(super) struct Row {
    table: &'static str,
    /// The paper's name, or ours.
    protocol: &'static str,
    policy: String,
    /// `read` or `write`; of Figure 13's last rows the best of all sizes.
    direction: &'static str,
    size: String,
    size_bytes: Option<u64>,
    /// `messenger` alone, or the whole `system`.
    test: &'static str,
    /// `steady`, or `moving` every second.
    skew: &'static str,
    seeds: u64,
    requests_per_second: Option<f64>,
    /// What no policy is above.
    bound: Option<f64>,
    /// Percent above the original.
    gain_percent: f64,
    /// Half of the 95 % confidence interval; null for one run.
    confidence: Option<f64>,
    paper_gain_percent: Option<f64>,
    /// KB in 5 s.
    deviation_kb: Option<f64>,
    paper_deviation_kb: Option<f64>,
    /// Ours over the paper's: of how often the original it is, or of the deviation.
    ratio: Option<f64>,
    dropped_per_second: Option<f64>,
    moves_per_second: Option<f64>,
}

/// The figure that is meant, when it is one of the messenger.
pub(super) const fn figure(arg: ExhibitArg) -> Option<Figure> {
    match arg {
        ExhibitArg::MessengerFig10 => Some(Figure::Fig10),
        ExhibitArg::MessengerFig11 => Some(Figure::Fig11),
        ExhibitArg::MessengerFig12 => Some(Figure::Fig12),
        ExhibitArg::MessengerFig13 => Some(Figure::Fig13),
        _ => None,
    }
}

/// Runs the figures among `only`, in the order of the paper.
pub(super) fn rows(only: &[ExhibitArg], seeds: u64) -> Vec<(Figure, Vec<Row>)> {
    let wanted = |f: &Figure| only.iter().any(|arg| figure(*arg) == Some(*f));
    let figures: Vec<Figure> = Figure::ALL.into_iter().filter(wanted).collect();
    let seeds = seeds.min(SEEDS);
    let progress = Progress::default();
    let measured = reproduce(&figures, seeds, cores(), &|done, all| progress.hear(done, all));
    progress.end();
    let of = |figure: Figure| {
        let cells = figure.cells();
        let measured: Vec<&Measured> =
            cells.iter().filter_map(|cell| measured.iter().find(|m| m.cell == *cell)).collect();
        let mut rows: Vec<Row> = measured.iter().map(|m| row(figure, m, seeds)).collect();
        rows.extend((figure == Figure::Fig13).then(|| most(&measured, seeds)).flatten());
        rows
    };
    figures.iter().map(|figure| (*figure, of(*figure))).collect()
}

fn row(figure: Figure, m: &Measured, seeds: u64) -> Row {
    let is_deviation = figure == Figure::Fig11;
    let deviation = m.cell.deviation_published().filter(|_| is_deviation);
    // Figure 13 is of bandwidth, of which the text has only the most.
    let gain = m.cell.gain_published().filter(|_| matches!(figure, Figure::Fig10 | Figure::Fig12));
    Row {
        table: figure.name(),
        protocol: m.cell.variant.name(),
        policy: m.cell.variant.messenger().policy.to_string(),
        direction: direction(m.cell.direction),
        size: m.cell.size_name(),
        size_bytes: Some(m.cell.size),
        test: if m.cell.full { "system" } else { "messenger" },
        skew: if m.cell.moving { "moving" } else { "steady" },
        seeds,
        requests_per_second: Some(m.per_second.mean),
        bound: Some(m.bound),
        gain_percent: m.gain.mean,
        confidence: m.gain.confidence(),
        paper_gain_percent: gain,
        deviation_kb: is_deviation.then_some(m.deviation.mean),
        paper_deviation_kb: deviation,
        ratio: deviation.map_or_else(|| gain.and_then(|_| m.ratio()), |paper| Some(m.deviation.mean / paper)),
        dropped_per_second: Some(m.dropped),
        moves_per_second: Some(m.moved),
    }
}

const fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => "read",
        Direction::Write => "write",
    }
}

/// The most that several connections gain: "up to 17 %".
fn most(measured: &[&Measured], seeds: u64) -> Option<Row> {
    const PAPER: f64 = 17.0;
    let ours = measured.iter().filter(|m| matches!(m.cell.variant, Variant::Connections | Variant::AllThree));
    let best = ours.max_by(|a, b| a.gain.mean.total_cmp(&b.gain.mean))?;
    Some(Row {
        size: "most".to_owned(),
        size_bytes: None,
        requests_per_second: None,
        bound: None,
        paper_gain_percent: Some(PAPER),
        ratio: Some((100.0 + best.gain.mean) / (100.0 + PAPER)),
        dropped_per_second: None,
        moves_per_second: None,
        ..row(Figure::Fig13, best, seeds)
    })
}

fn cells(figure: Figure, rows: &[Row]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let header = vec![
        "what",
        "size",
        "skew",
        "messenger",
        "requests/s",
        "of the bound",
        "gain",
        "paper",
        "KB in 5 s",
        "paper",
        "ratio",
        "drops/s",
        "moves/s",
    ];
    let number = |value: Option<f64>, places: usize| value.map_or("-".to_owned(), |value| format!("{value:.places$}"));
    let percent = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1} %"));
    let row = |row: &Row| {
        let share = row.requests_per_second.zip(row.bound).map(|(is, bound)| 100.0 * is / bound);
        vec![
            row.direction.to_owned(),
            row.size.clone(),
            row.skew.to_owned(),
            row.protocol.to_owned(),
            number(row.requests_per_second, 0),
            percent(share),
            with_interval_of(row),
            percent(row.paper_gain_percent.filter(|_| figure != Figure::Fig11)),
            number(row.deviation_kb, 0),
            number(row.paper_deviation_kb, 0),
            number(row.ratio, 3),
            number(row.dropped_per_second, 0),
            number(row.moves_per_second, 1),
        ]
    };
    (header, rows.iter().map(row).collect())
}

fn with_interval_of(row: &Row) -> String {
    let half = row.confidence.filter(|half| *half > 0.0).map_or(String::new(), |half| format!(" ±{half:.1}"));
    format!("{:.1} %{half}", row.gain_percent)
}

/// Prints them as tables.
pub(super) fn show(figures: &[(Figure, Vec<Row>)]) -> anyhow::Result<()> {
    for (figure, rows) in figures {
        line(&format!("\n{}", figure.title()))?;
        let (header, rows) = cells(*figure, rows);
        table(&header, rows)?;
    }
    Ok(())
}

/// Adds them to a report.
pub(super) fn fill(report: &mut Report, figures: &[(Figure, Vec<Row>)]) {
    for (figure, rows) in figures {
        report.heading(figure.title());
        let (header, rows) = cells(*figure, rows);
        report.table(&header, &rows);
    }
}
