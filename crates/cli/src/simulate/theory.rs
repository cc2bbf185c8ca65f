//! `reservoir sim theory`: what is measured in the simulator beside what queueing theory says.

use anyhow::anyhow;
use serde::Serialize;
use sim::perf::{cores, run_all};
use sim::theory::{Case, Line, cases, poisson_at_least};

use super::plot::{Axis, Drawn, Series, Words, lines};
use super::progress::Progress;
use super::report::{Report, make_place};
use super::scenarios::written;
use crate::args::ReportArgs;
use crate::output::{json, table};

/// Most events in an interval that are drawn.
const DRAWN: u32 = 6;

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
    make_place(args)?;
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
    if args.json {
        json(&objects)?;
    } else {
        table(&header, rows.clone())?;
    }
    let Some(directory) = &args.out else { return Ok(()) };
    let mut report = Report::new("Theory and simulation");
    report.text("Each figure is measured in one run; where the assumptions of the theory hold, both must agree.");
    let intervals = cases.iter().zip(&outcomes).filter_map(|(case, outcome)| Some((case, case.intervals(outcome)?)));
    report.plot("conflicts", intervals_plot(&intervals.collect::<Vec<_>>())?);
    let queues = cases.iter().filter_map(|case| Some((case, queue(case, &compared)?)));
    for (n, (case, both)) in queues.enumerate() {
        let name = &case.name;
        let words = Words {
            title: &format!("Queues at disks: {name}"),
            x: "copies at the disk",
            y: "puts that find so many, %",
        };
        report.plot(&format!("queues-{}", n + 1), lines(&words, &Axis::even(0.0, 6.0), &both, Drawn::Line, None)?);
    }
    report.table(&header, &rows);
    report.file("result.json", serde_json::to_string_pretty(&objects)?);
    crate::output::say!("written: {}", report.write(directory)?.display());
    Ok(())
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

/// The shares of intervals in which so much came to a target.
fn intervals_plot(all: &[(&Case, Vec<f64>)]) -> anyhow::Result<String> {
    let points = |share: &dyn Fn(u32) -> f64| (0..=DRAWN).map(|k| (f64::from(k), 100.0 * share(k))).collect();
    let law = Series {
        name: "Poisson's law".to_owned(),
        points: points(&|k| poisson_at_least(k, 1.0) - poisson_at_least(k + 1, 1.0)),
    };
    let measured = all.iter().map(|(case, shares)| Series {
        name: case.name.clone(),
        points: points(&|k| shares.get(k as usize).copied().unwrap_or(0.0)),
    });
    let words = Words {
        title: "Transfers that begin at a target in a mean time between two",
        x: "transfers",
        y: "intervals with so many, %",
    };
    let series: Vec<Series> = [law].into_iter().chain(measured).collect();
    lines(&words, &Axis::even(0.0, f64::from(DRAWN)), &series, Drawn::Line, None)
}

/// What a case's puts find at their disks, measured and by theory.
fn queue(case: &Case, compared: &[(&Case, Line)]) -> Option<Vec<Series>> {
    let found: Vec<&Line> = compared
        .iter()
        .filter(|(of, line)| of.name == case.name && line.what.ends_with("at the disk, %"))
        .map(|(_, line)| line)
        .collect();
    let series = |name: &str, value: fn(&Line) -> f64| Series {
        name: name.to_owned(),
        points: found.iter().zip(0..).map(|(line, n)| (f64::from(n), value(line))).collect(),
    };
    (!found.is_empty()).then(|| vec![series("measured", |line| line.measured), series("M/D/1", |line| line.predicted)])
}
