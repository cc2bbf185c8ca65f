//! `reservoir sim paper`: the paper's tables and figures beside ours.

use std::time::Instant;

use anyhow::anyhow;
use serde::Serialize;
use sim::perf::paper::{Exhibit, Measured, Protocol, reproduce};
use sim::perf::{LATE_FRAMES, Quirks, STAGGERED_START, cores};

use super::cells::{find, with_interval};
use super::choosy;
use super::messenger;
use super::parity;
use super::progress::Progress;
use super::scenarios::seeds_within;
use crate::args::{ExhibitArg, PaperArgs, QuirkArg};
use crate::output::{json, line, table};
use crate::plot::{Axis, Bar, Drawn, Group, Series, Words, bars, grouped, lines};
use crate::report::{Report, make_directory};

/// Points that a plot of single chunks has for each protocol at most.
const POINTS: usize = 1_200;

/// A row as JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum RowJson {
    Cell(Box<CellJson>),
    Messenger(Box<messenger::Row>),
    Parity(Box<parity::Row>),
}

/// One cell as JSON.
#[derive(Serialize)]
struct CellJson {
    table: &'static str,
    chunk: &'static str,
    chunk_bytes: u32,
    /// MB/s of 2^20 bytes.
    disk: u64,
    protocol: &'static str,
    /// What is added to its rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    extra: Option<&'static str>,
    initiators: u32,
    seeds: u64,
    chunks_per_second: f64,
    /// Half of the 95 % confidence interval; null for one run.
    confidence: Option<f64>,
    paper: Option<f64>,
    ratio: Option<f64>,
    disk_utilisation: f64,
    paper_disk_utilisation: Option<f64>,
    latency_us: f64,
    paper_latency_us: Option<f64>,
    remark: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    choosy: Option<ChoosyJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tentative: Option<TentativeJson>,
}

/// A cell's part in the figures on choosy initiators.
#[derive(Serialize)]
struct ChoosyJson {
    /// Percent, against the same cell without extras; none for that one.
    latency_lower_percent: Option<f64>,
    chunks_per_second_more_percent: Option<f64>,
    latency_most_us: f64,
    /// Percent of the puts.
    given_back: f64,
    lost_to_another: f64,
}

/// Table 5's part of a cell: percent, and microseconds.
#[derive(Serialize)]
struct TentativeJson {
    paper: f64,
    formula: f64,
    formula_interarrival_us: f64,
    measured: f64,
    measured_interarrival_us: f64,
}

/// Runs `reservoir sim paper`.
pub(super) fn run(args: &PaperArgs) -> anyhow::Result<()> {
    seeds_within(args.seeds)?;
    let exhibits: Vec<Exhibit> = if args.only.is_empty() {
        Exhibit::ALL.to_vec()
    } else {
        Exhibit::ALL.into_iter().filter(|e| args.only.iter().any(|only| exhibit(*only) == Some(*e))).collect()
    };
    make_directory(&args.report)?;
    let begin = Instant::now();
    let progress = Progress::default();
    let hear = |done, all| progress.hear(done, all);
    let measured =
        reproduce(&exhibits, args.seeds, quirks(&args.quirks), cores(), &hear).map_err(|why| anyhow!(why))?;
    progress.end();
    let took = begin.elapsed().as_secs_f64();
    let figures = messenger::rows(&args.only, args.seeds);
    let of_parity = parity::rows(&args.only)?;
    let cells = exhibits.iter().flat_map(|e| {
        e.cells().into_iter().filter_map(|cell| Some(as_json(*e, find(&measured, cell)?, &measured, args.seeds)))
    });
    let cells: Vec<RowJson> = cells.map(|cell| RowJson::Cell(Box::new(cell))).collect();
    if !args.report.json {
        show(&exhibits, &measured, args.seeds, took)?;
        messenger::show(&figures)?;
        parity::show(&of_parity)?;
    }
    let page = args.report.out.as_ref().map(|directory| {
        let mut report = Report::new("The paper's tables and figures, simulated again");
        if !exhibits.is_empty() {
            fill(&mut report, &exhibits, &measured, args)?;
        }
        messenger::fill(&mut report, &figures);
        parity::fill(&mut report, &of_parity);
        anyhow::Ok((directory, report))
    });
    let page = page.transpose()?;
    let figures = figures.into_iter().flat_map(|(_, rows)| rows).map(|row| RowJson::Messenger(Box::new(row)));
    let of_parity = of_parity.into_iter().map(|row| RowJson::Parity(Box::new(row)));
    let cells: Vec<RowJson> = cells.into_iter().chain(figures).chain(of_parity).collect();
    if args.report.json {
        json(&cells)?;
    }
    if let Some((directory, mut report)) = page {
        report.file("cells.json", serde_json::to_string_pretty(&cells)?);
        let page = report.write(directory)?;
        crate::output::say!("written: {}", page.display());
    }
    Ok(())
}

/// Prints the tables.
fn show(exhibits: &[Exhibit], measured: &[Measured], seeds: u64, took: f64) -> anyhow::Result<()> {
    if exhibits.is_empty() {
        return Ok(());
    }
    for exhibit in exhibits {
        line(&format!("\n{}", exhibit.title()))?;
        let (header, rows) = rows(*exhibit, measured);
        table(&header, rows)?;
    }
    line("")?;
    for remark in remarks(exhibits, measured) {
        line(&remark)?;
    }
    let events: u64 = measured.iter().map(|m| m.events).sum();
    line(&format!("{} runs, {events} events, {took:.1} s", measured.len() as u64 * seeds))
}

const fn exhibit(arg: ExhibitArg) -> Option<Exhibit> {
    Some(match arg {
        ExhibitArg::Table2 => Exhibit::Table2,
        ExhibitArg::Table3 => Exhibit::Table3,
        ExhibitArg::Table5 => Exhibit::Table5,
        ExhibitArg::Fig8 => Exhibit::Fig8,
        ExhibitArg::Fig9 => Exhibit::Fig9,
        ExhibitArg::Fig10 => Exhibit::Fig10,
        ExhibitArg::Fig11 => Exhibit::Fig11,
        ExhibitArg::Fig12 => Exhibit::Fig12,
        ExhibitArg::Fig13 => Exhibit::Fig13,
        ExhibitArg::Choosy => Exhibit::Choosy,
        ExhibitArg::ChoosyM => Exhibit::ChoosyM,
        ExhibitArg::ChoosySpikes => Exhibit::ChoosySpikes,
        ExhibitArg::MessengerFig10
        | ExhibitArg::MessengerFig11
        | ExhibitArg::MessengerFig12
        | ExhibitArg::MessengerFig13
        | ExhibitArg::ParityFig9 => return None,
    })
}

fn quirks(args: &[QuirkArg]) -> Quirks {
    let mut quirks = Quirks::default();
    for arg in args {
        match arg {
            QuirkArg::LastHundredth => quirks.last_hundredth = true,
            QuirkArg::ScheduledWork => quirks.scheduled_work = true,
            QuirkArg::LateFrames => quirks.late_frames = LATE_FRAMES,
            QuirkArg::StaggeredStart => quirks.staggered_start = STAGGERED_START,
        }
    }
    quirks
}

fn as_json(exhibit: Exhibit, m: &Measured, measured: &[Measured], seeds: u64) -> CellJson {
    let paper = m.cell.published();
    let gains = choosy::gains(m, measured);
    CellJson {
        table: exhibit.name(),
        chunk: m.cell.chunk_name(),
        chunk_bytes: m.cell.chunk,
        disk: m.cell.disk,
        protocol: m.cell.protocol.name(),
        extra: m.cell.extra.name(),
        initiators: m.cell.initiators,
        seeds,
        chunks_per_second: m.chunks_per_second.mean,
        confidence: m.chunks_per_second.confidence(),
        paper: paper.map(|p| p.chunks_per_second),
        ratio: m.ratio(),
        disk_utilisation: m.utilisation.mean,
        paper_disk_utilisation: paper.map(|p| p.utilisation),
        latency_us: m.latency.mean,
        paper_latency_us: paper.map(|p| p.latency),
        remark: m.remark(),
        choosy: exhibit.is_choosy().then(|| ChoosyJson {
            latency_lower_percent: gains.map(|g| g.0),
            chunks_per_second_more_percent: gains.map(|g| g.1),
            latency_most_us: m.most,
            given_back: m.given_back.0,
            lost_to_another: m.given_back.1,
        }),
        tentative: (exhibit == Exhibit::Table5).then(|| tentative(m)).flatten(),
    }
}

fn tentative(m: &Measured) -> Option<TentativeJson> {
    let (apart, formula, paper) = m.cell.tentative()?;
    let (measured_apart, measured) = m.requests?;
    Some(TentativeJson {
        paper,
        formula,
        formula_interarrival_us: apart,
        measured,
        measured_interarrival_us: measured_apart,
    })
}

/// The rows of an exhibit: ours beside the paper's.
fn rows(exhibit: Exhibit, measured: &[Measured]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    if exhibit.is_choosy() {
        return choosy::rows(exhibit, measured);
    }
    let cells = exhibit.cells().into_iter().filter_map(|cell| find(measured, cell));
    if exhibit == Exhibit::Table5 {
        let header = vec!["chunk", "paper", "1-e^(-λt)", "for a request each", "measured", "with a request each"];
        let rows = cells.filter_map(|m| {
            let t = tentative(m)?;
            Some(vec![
                m.cell.chunk_name().to_owned(),
                format!("{} %", t.paper),
                format!("{:.2} %", t.formula),
                format!("{:.0} us", t.formula_interarrival_us),
                format!("{:.2} %", t.measured),
                format!("{:.1} us", t.measured_interarrival_us),
            ])
        });
        return (header, rows.collect());
    }
    let header = vec![
        "chunk",
        "disk MB/s",
        "protocol",
        "chunks/s",
        "paper",
        "ratio",
        "disk %",
        "paper",
        "latency us",
        "paper",
        "ratio",
    ];
    let rows = cells.map(|m| {
        let paper = m.cell.published();
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        vec![
            m.cell.chunk_name().to_owned(),
            m.cell.disk.to_string(),
            m.cell.protocol.name().to_owned(),
            with_interval(m.chunks_per_second, 0),
            or_none(paper.map(|p| grouped(p.chunks_per_second))),
            or_none(m.ratio().map(|r| format!("{r:.3}"))),
            format!("{:.1}", m.utilisation.mean),
            or_none(paper.map(|p| format!("{:.1}", p.utilisation))),
            format!("{:.1}", m.latency.mean),
            or_none(paper.map(|p| format!("{:.1}", p.latency))),
            or_none(paper.map(|p| format!("{:.3}", m.latency.mean / p.latency))),
        ]
    });
    (header, rows.collect())
}

/// Notes on cells that are off, and of all.
fn remarks(exhibits: &[Exhibit], measured: &[Measured]) -> Vec<String> {
    let mut notes = choosy::remarks(exhibits, measured);
    let compared = measured.iter().filter(|m| m.ratio().is_some()).count();
    let mut off = 0;
    for m in measured {
        if let (Some(ratio), Some(remark)) = (m.ratio(), m.remark()) {
            off += 1;
            let (chunk, disk, name) = (m.cell.chunk_name(), m.cell.disk, m.cell.protocol.name());
            notes.push(format!("{chunk} at {disk} MB/s, {name}: {ratio:.2} of the paper's, because {remark}."));
        }
    }
    if off == 0 && compared > 0 {
        notes.push(format!("None of the {compared} cells that the paper has is more than 10 % off."));
    }
    if measured.iter().any(|m| m.cell.disk == 1_000 && m.cell.chunk == 1 << 20 && m.ratio().is_some()) {
        notes.push(
            "The cells of 1M at 1000 MB/s are all some 4 % low. A run of 40 ms holds about eight chunks for each initiator, \
             so single runs differ by 1 to 5 % from seed to seed, and the paper has one run of each; and much depends on \
             the first wave, in which all initiators meet on tentative bids because they begin at the same instant. When \
             they begin within 20 us instead (--quirks staggered-start), -M gains some 5 % there and -H 10 %. The \
             paper's simulator starts its nodes one after another while its clock runs, how far apart is not known."
                .to_owned(),
        );
    }
    if exhibits.contains(&Exhibit::Table5)
        && measured.iter().any(|m| tentative(m).is_some_and(|t| t.measured > 1.3 * t.formula))
    {
        notes.push(
            "Table 5's formula supposes requests at random. With one chunk at a time for each initiator and all of them \
             beginning at once, requests come in bursts, most of all for large chunks: more of them meet a tentative \
             bid than the formula says. (Where arrivals are Poisson, the simulator gives what the formula gives; a test \
             holds it to that.) The paper prints the formula as 1 - λe^(-λt), but its figures are of 1 - e^(-λt)."
                .to_owned(),
        );
    }
    notes
}

fn fill(report: &mut Report, exhibits: &[Exhibit], measured: &[Measured], args: &PaperArgs) -> anyhow::Result<()> {
    report.text(&format!(
        "Mean of {} seeds, with 95 % confidence intervals where there are several. Run lengths, rules and constants are \
         the paper's: one chunk at a time for each initiator, from an empty cluster, nothing cut off. Utilisation is of \
         work that is done. UCH-AIMD is not in the paper's tables; it stands beside them.",
        args.seeds
    ));
    if !args.quirks.is_empty() {
        report.text("Some peculiarities of the paper's simulator are switched on.");
    }
    for remark in remarks(exhibits, measured) {
        report.text(&remark);
    }
    for exhibit in exhibits {
        report.heading(exhibit.title());
        if exhibit.is_choosy() {
            for (name, svg) in choosy::plots(*exhibit, measured)? {
                report.plot(&name, svg);
            }
            let (header, rows) = rows(*exhibit, measured);
            report.table(&header, &rows);
            continue;
        }
        let svg = if exhibit.plots_chunks() { chunk_plot(*exhibit, measured) } else { bar_plot(*exhibit, measured) };
        if let Some(svg) = svg.transpose()? {
            report.plot(exhibit.name(), svg);
        }
        let (header, rows) = rows(*exhibit, measured);
        report.table(&header, &rows);
    }
    Ok(())
}

/// Bars of throughput, one group for each disk, or for each chunk size relative to the paper's.
fn bar_plot(exhibit: Exhibit, measured: &[Measured]) -> Option<anyhow::Result<String>> {
    if exhibit == Exhibit::Table5 {
        return None;
    }
    let is_table = matches!(exhibit, Exhibit::Table2 | Exhibit::Table3);
    let cells = exhibit.cells();
    let mut groups: Vec<Group> = Vec::new();
    for cell in &cells {
        let m = find(measured, *cell)?;
        let bound = cell.setup(1, Quirks::default()).bounds().disk / 100.0;
        let scale = if is_table { bound } else { 1.0 };
        let name = if is_table { cell.chunk_name().to_owned() } else { format!("{} MB/s disks", cell.disk) };
        let compared = cell.published().map(|p| p.chunks_per_second / scale);
        let bar = Bar { value: Some(m.chunks_per_second.mean / scale), compared };
        match groups.last_mut().filter(|group| group.name == name) {
            Some(group) => group.bars.push(bar),
            None => groups.push(Group { name, bars: vec![bar] }),
        }
    }
    let series: Vec<&str> = Protocol::ALL.iter().map(|p| p.name()).collect();
    let (x, y) =
        if is_table { ("chunk size", "throughput, % of what the disks can write") } else { ("", "chunks per second") };
    Some(bars(&Words { title: exhibit.title(), x, y }, &series, "paper", &groups))
}

/// Latencies of single chunks, in order of completion or sorted.
fn chunk_plot(exhibit: Exhibit, measured: &[Measured]) -> Option<anyhow::Result<String>> {
    let sorted = exhibit == Exhibit::Fig11;
    let mut series = Vec::new();
    for cell in exhibit.cells() {
        let mut latencies = find(measured, cell)?.series.clone();
        if sorted {
            latencies.sort_by(f64::total_cmp);
        }
        let step = latencies.len().div_ceil(POINTS).max(1);
        let points = latencies.iter().enumerate().step_by(step).map(|(at, us)| (at as f64 + 1.0, *us)).collect();
        series.push(Series { name: cell.protocol.name().to_owned(), points });
    }
    let x = if sorted { "chunk, sorted by latency" } else { "chunk, in order of completion" };
    let most = series.iter().flat_map(|s| &s.points).map(|point| point.0).fold(1.0, f64::max);
    let what = if sorted { Drawn::Line } else { Drawn::Points };
    let words = Words { title: exhibit.title(), x, y: "put latency, us" };
    Some(lines(&words, &Axis::even(0.0, most), &series, what, None))
}
