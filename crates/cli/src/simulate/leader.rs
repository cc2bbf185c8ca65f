//! `reservoir sim leader`: direct negotiation beside the leader of a group, as the Better Protocol's Figures 4 and 5.

use serde::Serialize;
use sim::perf::Scenario;

use super::scenarios::{Done, changes_by, interval, perform, seeded, written};
use crate::args::ScenarioArgs;
use crate::plot::{Axis, Bar, Drawn, Group, Series, Words, bars, lines};
use crate::report::Measured;

const SCENARIO: &str = include_str!("../../../../scenarios/leader.toml");

/// A name, and the keys that make it.
type Variant = (&'static str, &'static [&'static str]);

/// What nodes and the network cost.
const COSTS: [Variant; 2] = [
    ("realistic", &[]),
    (
        "ideal",
        &[
            "depth=1",
            "link_mbit_per_s=9900",
            "trip=1us",
            "loss_ppm=0",
            "disk_sync=0ns",
            "cpu_message=0ns",
            "cpu_kib=0ns",
            "hash_mb_per_s=0",
            "drift_ppm=0",
            "wake_jitter=0ns",
        ],
    ),
];
const SIZES: [Variant; 2] = [("128K", &[]), ("1M", &["chunk=1MiB", "length=400ms"])];
/// Which node grants windows, and whether neighbouring groups share targets.
const WAYS: [Variant; 4] = [
    ("direct", &["protocol=replicast-m", "overlap=true"]),
    ("direct, disjoint groups", &["protocol=replicast-m"]),
    ("leader", &["protocol=leader"]),
    ("leader, gets led, too", &["protocol=leader", "lead_gets=true"]),
];
/// Points of a line over time.
const POINTS: usize = 50;

/// One cluster, averaged over its seeds, as JSON.
#[derive(Serialize)]
struct RowJson {
    costs: &'static str,
    chunk: &'static str,
    way: &'static str,
    chunks_per_second: f64,
    /// Half of the 95 % confidence interval; null for one run.
    confidence: Option<f64>,
    /// In the second half of the measured time.
    later_chunks_per_second: f64,
    put_p99_us: f64,
    get_p99_us: f64,
    control_messages: f64,
    /// Seconds, and chunks a second around then.
    over_time: Vec<(f64, f64)>,
}

impl RowJson {
    fn of([costs, chunk, way]: [&'static str; 3], done: &Done) -> Self {
        let over_time = over_time(done);
        let later = &over_time[over_time.len() / 2..];
        Self {
            costs,
            chunk,
            way,
            chunks_per_second: done.mean("chunks_per_second"),
            confidence: done.metric("chunks_per_second").and_then(|metric| metric.estimate().confidence()),
            later_chunks_per_second: later.iter().map(|point| point.1).sum::<f64>() / later.len().max(1) as f64,
            put_p99_us: done.mean("latency_p99_us"),
            get_p99_us: done.mean("get_latency_p99_us"),
            control_messages: done.mean("control_messages"),
            over_time,
        }
    }

    fn cells(&self, done: &Done) -> Vec<String> {
        let confidence = done.metric("chunks_per_second").map_or(String::new(), |metric| interval(metric.estimate()));
        vec![
            self.costs.to_owned(),
            self.chunk.to_owned(),
            self.way.to_owned(),
            written(self.chunks_per_second),
            confidence,
            written(self.later_chunks_per_second),
            written(self.put_p99_us),
            written(self.get_p99_us),
            format!("{:.1}", self.control_messages),
        ]
    }
}

/// Chunks a second over the measured time, mean of the seeds.
fn over_time(done: &Done) -> Vec<(f64, f64)> {
    let parts: Vec<&[u64]> = done.outcomes.iter().filter_map(|o| Some(&o.product.as_ref()?.ended_in[..])).collect();
    let seconds = done.scenario.setup.length.as_nanos() as f64 / 1e9 / POINTS as f64;
    let point = |n: usize| {
        let ended = parts.iter().flat_map(|of| &of[n * of.len() / POINTS..(n + 1) * of.len() / POINTS]).sum::<u64>();
        ((n as f64 + 0.5) * seconds, ended as f64 / seconds / parts.len().max(1) as f64)
    };
    (0..POINTS).map(point).collect()
}

/// Runs `reservoir sim leader`.
pub(super) fn run(args: &ScenarioArgs) -> anyhow::Result<()> {
    let (mut which, mut scenarios) = (Vec::new(), Vec::new());
    for (costs, of_costs) in &COSTS {
        for (size, of_size) in &SIZES {
            for (way, of_way) in &WAYS {
                let own: Vec<String> =
                    [*of_costs, *of_size, *of_way].concat().iter().map(|set| (*set).into()).collect();
                let changes = [changes_by(way, &own), changes_by("--set", &args.set)].concat();
                scenarios.push(seeded(Scenario::parse(way, SCENARIO, &changes)?, args.seeds)?);
                which.push([*costs, *size, *way]);
            }
        }
    }
    let done = perform(scenarios, &args.report)?;
    let rows: Vec<RowJson> = which.iter().zip(&done).map(|(names, done)| RowJson::of(*names, done)).collect();
    let header =
        ["costs", "chunk", "", "chunks/s", "95 %", "in the second half", "put p99, us", "get p99, us", "messages"];
    let cells: Vec<Vec<String>> = rows.iter().zip(&done).map(|(row, done)| row.cells(done)).collect();
    let measured = Measured { objects: &rows, header: &header, rows: &cells };
    measured.conclude(&args.report, "Direct negotiation and leaders: half gets, half puts", |report| {
        report.text(
            "Chunks a second in 90 initiators and 90 targets, from an empty cluster on. Realistic: the product's costs, four \
             requests on their way from each initiator. Ideal: only links and disks take time, one request from each.",
        );
        report.plot("leader-throughput", throughput(&rows)?);
        for (costs, _) in &COSTS {
            for (size, _) in &SIZES {
                let of: Vec<&RowJson> = rows.iter().filter(|row| (row.costs, row.chunk) == (*costs, *size)).collect();
                report.plot(&format!("leader-time-{size}-{costs}"), time(costs, size, &of)?);
            }
        }
        Ok(())
    })
}

/// Figure 4: the throughput of each, in bytes, so that both sizes fit beside each other.
fn throughput(rows: &[RowJson]) -> anyhow::Result<String> {
    let mut groups: Vec<Group> = Vec::new();
    for row in rows {
        let bytes = if row.chunk == "1M" { f64::from(1 << 20) } else { f64::from(128 << 10) };
        let (name, bar) = (
            format!("{}, {}", row.chunk, row.costs),
            Bar { value: Some(row.chunks_per_second * bytes / 1e9), compared: None },
        );
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.bars.push(bar),
            None => groups.push(Group { name, bars: vec![bar] }),
        }
    }
    let words = Words { title: "Figure 4: average throughput, 50 % gets", x: "", y: "GB/s put and got" };
    bars(&words, &WAYS.map(|way| way.0), "", &groups)
}

/// Figure 5: the throughput over time.
fn time(costs: &str, size: &str, rows: &[&RowJson]) -> anyhow::Result<String> {
    let series: Vec<Series> = rows
        .iter()
        .map(|row| Series {
            name: row.way.to_owned(),
            points: row.over_time.iter().map(|(at, rate)| (at * 1e3, *rate)).collect(),
        })
        .collect();
    let end = series.iter().flat_map(|one| &one.points).map(|point| point.0).fold(0.0, f64::max);
    let words = Words {
        title: &format!("Figure 5: throughput over time, {size} chunks, 50 % gets, {costs}"),
        x: "ms from the beginning",
        y: "chunks a second",
    };
    lines(&words, &Axis::even(0.0, end), &series, Drawn::Line, None)
}
