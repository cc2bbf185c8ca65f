//! One slow target among nine: how much it costs with negotiation, and without.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use protocol::transport::Transport;
use serde::Serialize;

use super::{Bench, Duration, Load, Run, put_for};
use crate::args::BenchArgs;
use crate::node_cluster::NodeCluster;
use crate::output::{self, json, step_bar};
use crate::units;

/// The slow target and the milliseconds that each of its writes takes longer.
const SLOW: (u32, u64) = (5, 20);
/// Bytes of each chunk.
const SIZE: usize = 128 << 10;

#[derive(Debug, Serialize)]
struct Row {
    transport: String,
    p50_ms: f64,
    p99_ms: f64,
    slow_p50_ms: f64,
    slow_p99_ms: f64,
    /// p99 with the slow target over p99 without.
    p99_ratio: f64,
}

/// Runs `reservoir bench --slow-target`.
pub(super) fn run(
    args: &BenchArgs,
    transports: &[Transport],
    depth: usize,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let bar = step_bar("bench", 2 * transports.len() as u64);
    let measure = |slow| -> anyhow::Result<Vec<(f64, f64)>> {
        let one = |transport: &Transport| {
            // Each begins with empty disks.
            let bench = Bench::temporary(args, slow, stop)?;
            let cluster = NodeCluster::start(&bench.config, Some(*transport), false, Some(depth))?;
            let put = |seconds, measurements| -> anyhow::Result<Run> {
                let (limit, most) =
                    (Duration::from_secs(seconds), bench.room(&cluster, measurements, SIZE, bench.copies())?);
                Ok(put_for(cluster.client(), &Load { size: SIZE, redundancy: None, depth, limit, most }, stop)?.0)
            };
            // A first, short run teaches the rates, which are measured and not configured.
            put(1, 2)?;
            let run = put(args.seconds, 1)?;
            bar.inc(1);
            Ok((units::quantile(&run.samples, 50.0), units::quantile(&run.samples, 99.0)))
        };
        transports.iter().map(one).collect()
    };
    let (even, slow) = (measure(None)?, measure(Some(SLOW))?);
    bar.finish_and_clear();
    let rows: Vec<Row> = transports
        .iter()
        .zip(even.into_iter().zip(slow))
        .map(|(transport, ((p50_ms, p99_ms), (slow_p50_ms, slow_p99_ms)))| Row {
            transport: transport.to_string(),
            p50_ms,
            p99_ms,
            slow_p50_ms,
            slow_p99_ms,
            p99_ratio: if p99_ms > 0.0 { slow_p99_ms / p99_ms } else { 0.0 },
        })
        .collect();
    if args.json {
        return json(&rows);
    }
    output::line(&format!(
        "puts of {} with {} in flight, nine even targets beside one of them {} ms slower a write (times in ms)",
        units::size(SIZE as u64),
        depth,
        SLOW.1
    ))?;
    let cells = |row: &Row| {
        let mut cells = vec![row.transport.clone()];
        cells.extend([row.p50_ms, row.p99_ms, row.slow_p50_ms, row.slow_p99_ms].map(|ms| format!("{ms:.2}")));
        cells.push(format!("{:.2}", row.p99_ratio));
        cells
    };
    let header = ["transport", "p50", "p99", "p50 with slow", "p99 with slow", "p99 ratio"];
    output::table(&header, rows.iter().map(cells).collect())
}
