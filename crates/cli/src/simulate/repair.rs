//! `reservoir sim repair`: how fast what a lost target or server had is made again, and what that costs clients.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;
use sim::perf::{Mended, Outcome, Scenario, bound};

use super::scenarios::{Done, changes_by, perform, seeded};
use crate::args::{LostArg, RepairArgs};
use crate::plot::{Axis, Drawn, Series, Words, grouped, lines};
use crate::report::Measured;

const SCENARIO: &str = include_str!("../../../../scenarios/repair.toml");

/// Keys of the three runs of a row: nothing is lost, nothing is made again, and both.
const RUNS: [&[&str]; 3] = [&["census_interval=0ns"], &["census_interval=0ns"], &[]];

/// Bytes on a target of which the time is told, and in the cluster: so many on each of ninety.
const ON_TARGET: f64 = 1e12;
const IN_CLUSTER: f64 = 90e12;

/// Latencies of puts, in microseconds.
#[derive(Clone, Copy, Serialize)]
struct Latencies {
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
}

impl Latencies {
    fn of(done: &Done) -> Self {
        let of = |key| done.mean(key);
        Self { p50_us: of("latency_p50_us"), p99_us: of("latency_p99_us"), p999_us: of("latency_p999_us") }
    }

    fn cell(self) -> String {
        format!("{:.1} {:.1} {:.1}", self.p50_us / 1e3, self.p99_us / 1e3, self.p999_us / 1e3)
    }
}

/// One loss, averaged over its seeds, as JSON.
#[derive(Serialize)]
struct RowJson {
    targets: u32,
    lost: &'static str,
    lost_targets: u32,
    /// Targets that can read what is left of the chunks, or take a copy.
    involved: usize,
    restored_bytes_per_second: f64,
    /// What the disks of those that are involved have left when nothing is made again: as bound, and if each could do all of it.
    bound_bytes_per_second: f64,
    involved_bytes_per_second: f64,
    /// The same of all targets.
    cluster_bytes_per_second: f64,
    share_of_bound: f64,
    /// Seconds for a terabyte on each lost target, and for 90 TB divided among all targets.
    seconds_of_a_terabyte: f64,
    seconds_of_ninety_in_all: f64,
    without_loss: Latencies,
    not_restored: Latencies,
    restored: Latencies,
    p99_times: f64,
    p999_times: f64,
    restoring: f64,
    restore_mean_us: f64,
    /// From the loss to the last copy of those that the run began with; null when some lacked at the end.
    whole_ms: Option<f64>,
    /// Whether there was something to make until measuring ended.
    lasted: bool,
}

/// Bytes a second that can be made again: by the bound, by all that are involved, by all targets; and how many are involved.
fn left(done: &Done) -> [f64; 4] {
    let setup = &done.scenario.setup;
    let (size, disk) = (setup.mean_size(), setup.machines.disk() as f64);
    let times = setup.product().map(|profile| profile.costs.disk);
    let seconds = |of: fn(sim::perf::DiskTimes) -> protocol::time::Span| {
        times.map_or(0.0, |times| of(times).as_nanos() as f64 / 1e9)
    };
    let read = size / disk + seconds(|times| times.operation);
    let write = read + seconds(|times| times.sync);
    let of = |mended: &Mended| {
        let left: Vec<(u32, f64)> =
            mended.disks.iter().map(|(target, busy)| (*target, (1.0 - busy).max(0.0))).collect();
        let involved: BTreeSet<u32> =
            mended.needs.iter().flat_map(|need| need.readers.iter().chain(&need.writers)).copied().collect();
        let sum = |of: &dyn Fn(u32) -> bool| left.iter().filter(|(target, _)| of(*target)).map(|(_, left)| left).sum();
        let [some, all]: [f64; 2] = [sum(&|target| involved.contains(&target)), sum(&|_| true)];
        let both = size / (read + write);
        [size * bound(&mended.needs, &left, read, write), some * both, all * both, involved.len() as f64]
    };
    let runs: Vec<[f64; 4]> = done.outcomes.iter().filter_map(mended).map(of).collect();
    core::array::from_fn(|n| runs.iter().map(|run| run[n]).sum::<f64>() / runs.len().max(1) as f64)
}

fn mended(outcome: &Outcome) -> Option<&Mended> {
    outcome.product.as_ref()?.mended.as_deref()
}

impl RowJson {
    fn of((targets, lost): (u32, LostArg), [without, not, with]: [&Done; 3]) -> Self {
        let size = with.scenario.setup.mean_size();
        let servers = with.scenario.setup.product().map_or(0, |profile| profile.servers);
        let lost_targets = lost_targets(lost, targets, servers);
        let restored = with.mean("restored_per_second") * size;
        let [bound, involved_bytes, cluster, involved] = left(not);
        let (before, during) = (Latencies::of(not), Latencies::of(with));
        let whole = with.mean("whole_ms");
        let seconds = |bytes: f64| bytes * f64::from(lost_targets) / restored.max(1.0);
        Self {
            targets,
            lost: lost.name(),
            lost_targets,
            involved: involved as usize,
            restored_bytes_per_second: restored,
            bound_bytes_per_second: bound,
            involved_bytes_per_second: involved_bytes,
            cluster_bytes_per_second: cluster,
            share_of_bound: restored / bound.max(1.0),
            seconds_of_a_terabyte: seconds(ON_TARGET),
            seconds_of_ninety_in_all: seconds(IN_CLUSTER / f64::from(targets)),
            without_loss: Latencies::of(without),
            not_restored: before,
            restored: during,
            p99_times: during.p99_us / before.p99_us.max(1e-9),
            p999_times: during.p999_us / before.p999_us.max(1e-9),
            restoring: with.mean("restoring"),
            restore_mean_us: with.mean("restore_mean_us"),
            whole_ms: whole.is_finite().then_some(whole),
            lasted: with.outcomes.iter().filter_map(mended).all(|mended| mended.left > 0),
        }
    }

    fn cells(&self) -> Vec<String> {
        let mega = |bytes: f64| grouped(bytes / 1e6);
        vec![
            self.targets.to_string(),
            self.lost.to_owned(),
            format!("{}{}", mega(self.restored_bytes_per_second), if self.lasted { "" } else { " (too little lost)" }),
            mega(self.bound_bytes_per_second),
            format!("{:.0}", 100.0 * self.share_of_bound),
            mega(self.cluster_bytes_per_second),
            grouped(self.seconds_of_a_terabyte),
            grouped(self.seconds_of_ninety_in_all),
            self.without_loss.cell(),
            self.not_restored.cell(),
            self.restored.cell(),
            format!("{:.2} {:.2}", self.p99_times, self.p999_times),
        ]
    }
}

fn lost_targets(lost: LostArg, targets: u32, servers: u32) -> u32 {
    match lost {
        LostArg::Target => 1,
        LostArg::Server => targets.checked_div(servers).unwrap_or(1).max(1),
    }
}

/// Chunks for each lost target that last for so many seconds when all that clients leave is used.
fn lost_chunks(scenario: &Scenario, lost: LostArg, load: f64, seconds: f64) -> u64 {
    let setup = &scenario.setup;
    let servers = setup.product().map_or(0, |profile| profile.servers);
    let (gone, copies) = (lost_targets(lost, setup.targets, servers), u32::from(setup.machines.copies()));
    // A target's groups have all cells that are less than a group away.
    let near = 2 * setup.group - copies;
    let others = setup.targets - gone;
    let involved = f64::from(if lost == LostArg::Target { others.min(near - 1) } else { others });
    let each = involved * (1.0 - load).max(0.1) * setup.machines.disk() as f64 / setup.mean_size() / 2.0;
    (seconds * each / f64::from(gone)).ceil() as u64
}

/// Runs `reservoir sim repair`.
pub(super) fn run(args: &RepairArgs) -> anyhow::Result<()> {
    let (mut which, mut scenarios) = (Vec::new(), Vec::new());
    for lost in &args.lost {
        for targets in &args.targets {
            let cluster = [
                format!("targets={targets}"),
                format!("initiators={targets}"),
                format!("load={}", args.load),
                format!("lose={}", lost.name()),
            ];
            let common = [changes_by("--targets", &cluster), changes_by("--set", &args.how.set)].concat();
            let plain = Scenario::parse("repair", SCENARIO, &common)?;
            let chunks = [format!("lost_chunks={}", lost_chunks(&plain, *lost, args.load, args.seconds))];
            for (nth, own) in RUNS.iter().enumerate() {
                let own: Vec<String> = own.iter().map(|set| (*set).to_owned()).collect();
                let changes = [common.clone(), changes_by("--seconds", &chunks), changes_by("repair", &own)];
                let mut scenario = Scenario::parse("repair", SCENARIO, &changes.concat())?;
                if nth == 0 {
                    scenario.lose_nothing();
                }
                scenarios.push(seeded(scenario, args.how.seeds)?);
            }
            which.push((*targets, *lost));
        }
    }
    let done = perform(scenarios, &args.how.report)?;
    let rows: Vec<RowJson> = which
        .iter()
        .zip(done.as_chunks().0)
        .map(|(which, [without, not, with])| RowJson::of(*which, [without, not, with]))
        .collect();
    let header = [
        "targets",
        "lost",
        "restored, MB/s",
        "bound, MB/s",
        "share, %",
        "all disks, MB/s",
        "1 TB each, s",
        "90 TB in all, s",
        "put p50 p99 p99.9, ms: no loss",
        "lost",
        "restored",
        "times p99 p99.9",
    ];
    let cells: Vec<Vec<String>> = rows.iter().map(RowJson::cells).collect();
    let measured = Measured { objects: &rows, header: &header, rows: &cells };
    measured.conclude(&args.how.report, "Copies made again while clients put", |report| {
        report.text(
            "A target, or a server of nine, is lost while clients put. The bound is what the disks that can read or take the lost \
             copies have left when nothing is made again. Latencies are those of the same seeds without a loss, with it, and \
             while its copies are made again; the last column is the last over that before it.",
        );
        report.file("result.csv", csv(&rows));
        for lost in &args.lost {
            report.plot(&format!("time-{}", lost.name()), plot(lost.name(), &rows)?);
        }
        Ok(())
    })
}

/// Bytes a second, seconds and microseconds.
fn csv(rows: &[RowJson]) -> String {
    let mut csv =
        "targets,lost,involved,restored,bound,cluster,seconds_of_a_terabyte,seconds_of_ninety_in_all".to_owned();
    for run in ["without_loss", "not_restored", "restored"] {
        let _ = write!(csv, ",{run}_p50,{run}_p99,{run}_p999");
    }
    csv.push('\n');
    for row in rows {
        let _ = write!(csv, "{},{},{}", row.targets, row.lost, row.involved);
        let rates = [row.restored_bytes_per_second, row.bound_bytes_per_second, row.cluster_bytes_per_second];
        let latencies = [row.without_loss, row.not_restored, row.restored].map(|of| [of.p50_us, of.p99_us, of.p999_us]);
        let times = [row.seconds_of_a_terabyte, row.seconds_of_ninety_in_all];
        for value in rates.iter().chain(&times).chain(latencies.as_flattened()) {
            let _ = write!(csv, ",{value}");
        }
        csv.push('\n');
    }
    csv
}

/// The time to restore, over the size of the cluster.
fn plot(lost: &str, rows: &[RowJson]) -> anyhow::Result<String> {
    let of = |name: &str, seconds: fn(&RowJson) -> f64| Series {
        name: name.to_owned(),
        points: rows.iter().filter(|row| row.lost == lost).map(|row| (f64::from(row.targets), seconds(row))).collect(),
    };
    let series = [
        of("1 TB on each target", |row| row.seconds_of_a_terabyte),
        of("90 TB in all", |row| row.seconds_of_ninety_in_all),
    ];
    let most = rows.iter().map(|row| f64::from(row.targets)).fold(0.0, f64::max);
    let words = Words { title: &format!("Until a lost {lost} is made whole"), x: "targets", y: "seconds" };
    lines(&words, &Axis::even(0.0, most), &series, Drawn::Line, None)
}
