//! What was measured, as tables.

use std::collections::BTreeMap;

use super::{Report, Row};
use crate::output::{self, line};
use crate::units;

pub(super) fn print(report: &Report) -> anyhow::Result<()> {
    let ceilings = &report.ceilings;
    let sockets = format!(
        "raw socket {:.0} MB/s, raw disk {:.0} MB/s (append and fdatasync) and {:.0} MB/s (read, not cached); with {} \
         copies on this machine a put can reach {:.0} MB/s, a get {:.0} MB/s; {} requests in flight",
        ceilings.socket_mb_per_s,
        ceilings.disk_mb_per_s,
        ceilings.disk_read_mb_per_s,
        report.copies,
        ceilings.put_mb_per_s,
        ceilings.get_mb_per_s,
        report.depth
    );
    let configured = format!("of {} MB/s; {} requests in flight", ceilings.put_mb_per_s, report.depth);
    line(if ceilings.socket_mb_per_s > 0.0 { &sockets } else { &configured })?;
    let row = |row: &Row| {
        vec![
            row.transport.clone(),
            row.redundancy.to_string(),
            units::size(row.size),
            row.direction.to_owned(),
            format!("{:.1}", row.mb_per_s),
            format!("{:.0} %", row.share * 100.0),
            format!("{:.2}", row.p50_ms),
            format!("{:.2}", row.p99_ms),
            format!("{:.2}", row.rounds),
            format!("{:.2}", row.cpu_s_per_gib),
            format!("{:.2}", row.cpu_s_per_gib_by_role.initiator),
            format!("{:.2}", row.cpu_s_per_gib_by_role.targets),
            format!("{:.2}", row.cpu_s_per_gib_by_role.switches),
        ]
    };
    let header = [
        "transport",
        "kept as",
        "chunk",
        "",
        "MB/s",
        "share",
        "p50 ms",
        "p99 ms",
        "rounds",
        "CPU s/GiB",
        "initiator",
        "targets",
        "switches",
    ];
    output::table(&header, report.results.iter().map(row).collect())?;
    if let Some(bytes) = report.largest_target_resident {
        line(&format!("largest target process after the load: {} resident", units::size(bytes)))?;
    }
    side_by_side(report)
}

/// The transports, and ways to keep chunks, beside each other.
fn side_by_side(report: &Report) -> anyhow::Result<()> {
    let name = |row: &Row| format!("{}, {}", row.transport, row.redundancy);
    let mut cases: Vec<String> = report.results.iter().map(name).collect();
    cases.dedup();
    if cases.len() < 2 {
        return Ok(());
    }
    let mut rows: BTreeMap<(u64, &str), Vec<String>> = BTreeMap::new();
    for result in &report.results {
        let cell = format!("{:.1} ({:.1})", result.mb_per_s, result.p99_ms);
        rows.entry((result.size, result.direction)).or_default().push(cell);
    }
    let header: Vec<String> = ["chunk", ""]
        .map(str::to_owned)
        .into_iter()
        .chain(cases.iter().map(|case| format!("{case}: MB/s (p99 ms)")))
        .collect();
    let rows = rows.into_iter().map(|((size, direction), cells)| {
        let mut row = vec![units::size(size), direction.to_owned()];
        row.extend(cells);
        row
    });
    output::table(&header.iter().map(String::as_str).collect::<Vec<_>>(), rows.collect())
}
