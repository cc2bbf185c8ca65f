//! What `reservoir sim paper` shows of parity in the network.

use anyhow::anyhow;
use protocol::time::Span;
use serde::Serialize;
use sim::parity::{BOUND, By, Costs, STRIPES, gain, model, ours, published};

use super::progress::Progress;
use crate::args::ExhibitArg;
use crate::output::{line, table};
use crate::report::Report;

const NAME: &str = "parity-fig9";
const TITLE: &str = "Parity in the network, Figure 9: one writer, 2+1 over links of 56 Gb/s, no disks";
/// What a message may cost a processor of our nodes: nothing, as in the card of the paper's, and as of a kernel that is passed by.
const MESSAGES: [Span; 2] = [Span::ZERO, Span::from_nanos(200)];

/// One row as JSON.
#[derive(Serialize)]
pub(super) struct Row {
    table: &'static str,
    /// `paper`, or `reservoir`.
    system: &'static str,
    redundancy: &'static str,
    stripe: String,
    stripe_bytes: u64,
    /// What a message costs a processor; null where the model says what things cost.
    message_ns: Option<u64>,
    /// Bytes of data, in 10^6 per second, when the writer sends the parity, and when the switch does.
    writer_mb_per_s: f64,
    switch_mb_per_s: f64,
    /// Percent that the switch is above the writer, and what can be.
    gain_percent: f64,
    bound_percent: f64,
    paper_gain_percent: Option<f64>,
    /// Ours over the paper's: of how often the writer's rate the switch's is.
    ratio: Option<f64>,
}

/// Its rows, if it is among `only`.
pub(super) fn rows(only: &[ExhibitArg]) -> anyhow::Result<Vec<Row>> {
    if !only.contains(&ExhibitArg::ParityFig9) {
        return Ok(Vec::new());
    }
    let progress = Progress::default();
    let all = STRIPES.len() * (1 + MESSAGES.len());
    let mut rows = Vec::new();
    for message in [None].into_iter().chain(MESSAGES.map(Some)) {
        for kb in STRIPES {
            rows.push(row(message, kb << 10)?);
            progress.hear(rows.len() as f64, all);
        }
    }
    progress.end();
    Ok(rows)
}

fn row(message: Option<Span>, stripe: u64) -> anyhow::Result<Row> {
    let of = |by| match message {
        None => Ok(model(by, stripe, &Costs::PAPER)),
        Some(message) => ours(by, stripe, message, 1).map_err(|why| anyhow!(why)),
    };
    let (writer, switch) = (of(By::Writer)?, of(By::Switch)?);
    let paper = published(stripe).filter(|_| message.is_none());
    Ok(Row {
        table: NAME,
        system: if message.is_none() { "paper" } else { "reservoir" },
        redundancy: "2+1",
        stripe: format!("{} KB", stripe >> 10),
        stripe_bytes: stripe,
        message_ns: message.map(Span::as_nanos),
        writer_mb_per_s: writer / 1e6,
        switch_mb_per_s: switch / 1e6,
        gain_percent: gain(writer, switch),
        bound_percent: BOUND,
        paper_gain_percent: paper,
        ratio: paper.map(|paper| switch / writer / (1.0 + paper / 100.0)),
    })
}

fn cells(rows: &[Row]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let header = vec!["system", "a message costs", "stripe", "writer MB/s", "switch MB/s", "gain", "paper", "ratio"];
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let row = |row: &Row| {
        vec![
            row.system.to_owned(),
            or_none(row.message_ns.map(|nanos| format!("{nanos} ns"))),
            row.stripe.clone(),
            format!("{:.0}", row.writer_mb_per_s),
            format!("{:.0}", row.switch_mb_per_s),
            format!("{:.1} %", row.gain_percent),
            or_none(row.paper_gain_percent.map(|gain| format!("{gain:.0} %"))),
            or_none(row.ratio.map(|ratio| format!("{ratio:.3}"))),
        ]
    };
    (header, rows.iter().map(row).collect())
}

/// What the model takes things to cost, in words.
fn costs() -> String {
    let Costs { link, message, stripe, parity } = Costs::PAPER;
    format!(
        "paper: {:.2} GB/s on a link, {} ns for a message, {} ns for a stripe at the switch and {:.2} GB/s through its exclusive or, found \
         from the three figures of the text; reservoir: its own machines, {BOUND:.0} % can be gained",
        link as f64 / 1e9,
        message.as_nanos(),
        stripe.as_nanos(),
        parity as f64 / 1e9
    )
}

/// Prints them as a table.
pub(super) fn show(rows: &[Row]) -> anyhow::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    line(&format!("\n{TITLE}"))?;
    let (header, cells) = cells(rows);
    table(&header, cells)?;
    line(&costs())
}

/// Adds them to a report.
pub(super) fn fill(report: &mut Report, rows: &[Row]) {
    if !rows.is_empty() {
        report.heading(TITLE);
        let (header, cells) = cells(rows);
        report.table(&header, &cells);
    }
}
