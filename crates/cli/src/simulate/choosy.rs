//! What `reservoir sim paper` shows of choosy initiators.

use protocol::rng::Rng;
use sim::perf::Estimate;
use sim::perf::paper::{Cell, Exhibit, Extra, Measured};

use super::cells::{find, with_interval};
use crate::plot::{Axis, Bar, Drawn, Group, Series, Words, bars, lines};

/// Puts of the text's plots, and over how many its trend goes.
const SAMPLE: usize = 200;
const TREND: usize = 10;
/// The height of the text's spikes, in microseconds.
const SPIKE: f64 = 7_000.0;

/// By how many percent a cell is better than the same one without extras: latency, throughput.
pub(super) fn gains(m: &Measured, measured: &[Measured]) -> Option<(f64, f64)> {
    let plain = find(measured, Cell { extra: Extra::None, ..m.cell })?;
    let ratio = |of: &dyn Fn(&Measured) -> Estimate| of(m).mean / of(plain).mean;
    let gains = (100.0 * (1.0 - ratio(&|m| m.latency)), 100.0 * (ratio(&|m| m.chunks_per_second) - 1.0));
    (m.cell.extra != Extra::None).then_some(gains)
}

/// The rows of an exhibit.
pub(super) fn rows(exhibit: Exhibit, measured: &[Measured]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let header = vec![
        "chunk",
        "disk MB/s",
        "protocol",
        "with",
        "latency us",
        "paper",
        "ratio",
        "lower by",
        "text",
        "chunks/s more",
        "most us",
        "given back",
        "lost to another",
    ];
    let row = |m: &Measured| {
        let gains = gains(m, measured);
        let percent = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1} %"));
        let paper = m.cell.published().map(|p| p.latency);
        vec![
            m.cell.chunk_name().to_owned(),
            m.cell.disk.to_string(),
            m.cell.protocol.name().to_owned(),
            m.cell.extra.name().unwrap_or("-").to_owned(),
            with_interval(m.latency, 1),
            paper.map_or("-".to_owned(), |paper| format!("{paper:.1}")),
            paper.map_or("-".to_owned(), |paper| format!("{:.3}", m.latency.mean / paper)),
            percent(gains.map(|g| g.0)),
            m.cell.improvement_published().map_or("-".to_owned(), |(least, most)| format!("{least} to {most} %")),
            percent(gains.map(|g| g.1)),
            format!("{:.0}", m.most),
            format!("{:.0} %", m.given_back.0),
            format!("{:.0} %", m.given_back.1),
        ]
    };
    (header, exhibit.cells().into_iter().filter_map(|cell| find(measured, cell)).map(row).collect())
}

/// The share of puts that take as long as the text's spikes, in percent.
fn spikes(m: &Measured) -> f64 {
    let over = m.series.iter().filter(|us| **us >= SPIKE).count();
    100.0 * over as f64 / m.series.len().max(1) as f64
}

/// Notes on the exhibits.
pub(super) fn remarks(exhibits: &[Exhibit], measured: &[Measured]) -> Vec<String> {
    let mut notes = Vec::new();
    if exhibits.iter().any(|e| e.is_choosy()) {
        notes.push(
            "Choosy initiators: the text says that the average improvement is 8 to 20 %, and prints neither what its \
             columns are nor their values, nor how long its runs are. Ours are as long as those of the tables and begin \
             with an empty cluster. Its maximum bid wait only grows: each put begins with the mean of what the one before it \
             began and ended with. Windows are given back at most eight times a put."
                .to_owned(),
        );
    }
    for exhibit in exhibits.iter().filter(|e| **e == Exhibit::ChoosySpikes) {
        let shares = exhibit.cells().into_iter().filter_map(|cell| find(measured, cell)).map(|m| {
            let with = m.cell.extra.name().map_or("without", |_| "with");
            format!(
                "{with} giving back {:.1} % of the puts take 7 ms or more, the longest {:.1} ms",
                spikes(m),
                m.most / 1e3
            )
        });
        notes.push(format!("Spikes of 1M at 1000 MB/s: {}.", shares.collect::<Vec<_>>().join("; ")));
    }
    notes
}

/// The plots of an exhibit, each with its name.
pub(super) fn plots(exhibit: Exhibit, measured: &[Measured]) -> anyhow::Result<Vec<(String, String)>> {
    if exhibit == Exhibit::ChoosySpikes {
        let cells = exhibit.cells().into_iter().filter_map(|cell| find(measured, cell));
        let name =
            |m: &Measured| m.cell.extra.name().map_or("choosy-spikes-without", |_| "choosy-spikes-with").to_owned();
        return cells.map(|m| Ok((name(m), spike_plot(m)?))).collect();
    }
    let mut groups: Vec<Group> = Vec::new();
    let mut series: Vec<&str> = Vec::new();
    for m in exhibit.cells().into_iter().filter_map(|cell| find(measured, cell)) {
        let name = format!("{}, {} MB/s", m.cell.chunk_name(), m.cell.disk);
        let with = m.cell.extra.name().unwrap_or("bids at face value");
        if !series.contains(&with) {
            series.push(with);
        }
        let plain = find(measured, Cell { extra: Extra::None, ..m.cell }).map_or(m.latency.mean, |p| p.latency.mean);
        let bar = Bar { value: Some(100.0 * m.latency.mean / plain), compared: None };
        match groups.last_mut().filter(|group| group.name == name) {
            Some(group) => group.bars.push(bar),
            None => groups.push(Group { name, bars: vec![bar] }),
        }
    }
    let words = Words { title: exhibit.title(), x: "", y: "mean put latency, % of that at face value" };
    Ok(vec![(exhibit.name().to_owned(), bars(&words, &series, "paper", &groups)?)])
}

/// Some puts of a run, drawn at random and in order, and their trend.
fn spike_plot(m: &Measured) -> anyhow::Result<String> {
    let mut rng = Rng::new(1);
    let mut left = SAMPLE.min(m.series.len()) as u64;
    let mut sample = Vec::new();
    for (at, us) in m.series.iter().enumerate() {
        if rng.below((m.series.len() - at) as u64) < left {
            left -= 1;
            sample.push(*us);
        }
    }
    let points: Vec<(f64, f64)> = sample.iter().enumerate().map(|(at, us)| (at as f64 + 1.0, *us)).collect();
    let mean = |run: &[(f64, f64)]| run.iter().map(|p| p.1).sum::<f64>() / run.len() as f64;
    let trend = points.windows(TREND).map(|run| (run[TREND - 1].0, mean(run))).collect();
    let title = match m.cell.extra {
        Extra::None => "Figure 3: 1M, 1000 MB/s, bids at face value",
        _ => "Figure 4: 1M, 1000 MB/s, choosy",
    };
    let most = points.last().map_or(1.0, |last| last.0);
    let series =
        [Series { name: "a put".to_owned(), points }, Series { name: format!("mean of {TREND}"), points: trend }];
    let words = Words { title, x: "put, in order of completion", y: "put latency, us" };
    lines(&words, &Axis::even(0.0, most), &series, Drawn::Trend, Some((SPIKE, "the text's spikes")))
}
