//! `reservoir sim rivals`: every way of choosing targets beside the others, with equal disks and with slow ones.

use serde::Serialize;
use sim::perf::{Load, Scenario};

use super::plot::{Group, Words, decades};
use super::report::Report;
use super::scenarios::{Done, given, perform, seeded, written};
use crate::args::RivalsArgs;
use crate::output::{json, table};

/// The scenario of those that send by unicast without windows.
const UNICAST: &str = include_str!("../../../../scenarios/rivals.toml");
/// The scenario of those that negotiate.
const NEGOTIATED: &str = include_str!("../../../../scenarios/slow-disks-improved.toml");

/// Who is compared, worst informed first, and a setting of its own. The last two are ours: the ports of -H's initiators
/// are busier, so that it takes wider windows to find a part that fits.
const CONTENDERS: [(&str, &str, Option<&str>); 7] = [
    ("uch-ccp", UNICAST, None),
    ("least-of-two", UNICAST, None),
    ("c3-like", UNICAST, None),
    ("prequal-like", UNICAST, None),
    ("prequal-sync", UNICAST, None),
    ("replicast-h", NEGOTIATED, Some("stretch_percent=800")),
    ("replicast-m", NEGOTIATED, None),
];

/// A store that completes less than this share of what is asked of it does not keep up: its latency grows with the time
/// that is measured.
const KEEPS_UP: f64 = 0.985;

/// One run, averaged over its seeds, as JSON.
#[derive(Serialize)]
struct RowJson {
    protocol: &'static str,
    load: f64,
    /// How many times slower one disk in nine is; 1 where all are equal.
    slow_times: u32,
    /// Share of the offered puts that were completed in the measured time.
    completed: f64,
    latency_p50_us: f64,
    latency_p99_us: f64,
    latency_p999_us: f64,
    /// Half of the 95 % confidence interval; null for one seed.
    confidence: Option<f64>,
    control_messages: f64,
}

impl RowJson {
    fn of(protocol: &'static str, load: f64, slow_times: u32, done: &Done) -> Self {
        let mean = |key| done.metric(key).map_or(0.0, |m| m.estimate().mean);
        let offered = match done.scenario.setup.load {
            Load::Open { chunks_per_second } => chunks_per_second,
            Load::Closed { .. } => f64::INFINITY,
        };
        Self {
            protocol,
            load,
            slow_times,
            completed: mean("chunks_per_second") / offered,
            latency_p50_us: mean("latency_p50_us"),
            latency_p99_us: mean("latency_p99_us"),
            latency_p999_us: mean("latency_p999_us"),
            confidence: done.metric("latency_p999_us").and_then(|m| m.estimate().confidence()),
            control_messages: mean("control_messages"),
        }
    }

    const fn keeps_up(&self) -> bool {
        self.completed >= KEEPS_UP
    }

    fn cells(&self, all: &[Self]) -> Vec<String> {
        let same = |row: &&Self| row.load == self.load && row.slow_times == self.slow_times;
        let ours = all.iter().filter(same).find(|row| row.protocol == "replicast-m");
        let over = ours.map_or(f64::NAN, |ours| self.latency_p999_us / ours.latency_p999_us);
        vec![
            self.load.to_string(),
            if self.slow_times == 1 { "none".to_owned() } else { format!("{} times", self.slow_times) },
            self.protocol.to_owned(),
            format!("{:.1}{}", 100.0 * self.completed, if self.keeps_up() { "" } else { " (falls behind)" }),
            written(self.latency_p50_us),
            written(self.latency_p99_us),
            format!("{} ± {}", written(self.latency_p999_us), self.confidence.map_or("-".to_owned(), written)),
            format!("{over:.2}"),
            format!("{:.1}", self.control_messages),
        ]
    }
}

/// Runs `reservoir sim rivals`.
pub(super) fn run(args: &RivalsArgs) -> anyhow::Result<()> {
    let slow: Vec<u32> = [&[1], args.slow.as_slice()].concat();
    let mut which = Vec::new();
    let mut scenarios = Vec::new();
    for load in &args.load {
        for times in &slow {
            for (protocol, text, more) in CONTENDERS {
                let own =
                    [format!("protocol={protocol}")].into_iter().chain(more.map(str::to_owned)).collect::<Vec<_>>();
                let changes = [
                    given(protocol, &own),
                    given("--load", &[format!("load={load}")]),
                    given("--slow", &[format!("slow_times={times}")]),
                    given("--set", &args.how.set),
                ];
                scenarios.push(seeded(Scenario::parse(protocol, text, &changes.concat())?, args.how.seeds)?);
                which.push((protocol, *load, *times));
            }
        }
    }
    let done = perform(scenarios, &args.how.report)?;
    let rows: Vec<RowJson> = which
        .iter()
        .zip(&done)
        .map(|((protocol, load, times), done)| RowJson::of(protocol, *load, *times, done))
        .collect();
    let header = [
        "load",
        "slow disks",
        "protocol",
        "completed, %",
        "p50, us",
        "p99, us",
        "p99.9, us",
        "over -M",
        "messages a put",
    ];
    let cells: Vec<Vec<String>> = rows.iter().map(|row| row.cells(&rows)).collect();
    if args.how.report.json {
        json(&rows)?;
    } else {
        table(&header, cells.clone())?;
    }
    if let Some(directory) = &args.how.report.out {
        let mut report = Report::new("Choosing targets: negotiated windows and their rivals");
        report.text(&format!(
            "One disk in nine is slow, or none. Puts arrive at random; a load of 1 is what the disks could write if all \
             were equal. {} seeds. Who falls behind has a latency that grows with the time that is measured.",
            done[0].seeds()
        ));
        for load in &args.load {
            report.plot(&format!("rivals-{load}"), plot(*load, &slow, &rows)?);
        }
        report.table(&header, &cells);
        report.file("result.json", serde_json::to_string_pretty(&rows)?);
        crate::output::say!("written: {}", report.write(directory)?.display());
    }
    Ok(())
}

/// Bars of p99.9, a group for each protocol.
fn plot(load: f64, slow: &[u32], rows: &[RowJson]) -> anyhow::Result<String> {
    let names: Vec<String> = slow
        .iter()
        .map(|times| match times {
            1 => "all disks equal".to_owned(),
            times => format!("one disk in nine {times} times slower"),
        })
        .collect();
    let groups = CONTENDERS.map(|(protocol, ..)| {
        let here = rows.iter().filter(|row| row.protocol == protocol && row.load == load);
        Group { name: protocol.to_owned(), bars: here.map(|row| (row.latency_p999_us / 1e3, None)).collect() }
    });
    let words = Words {
        title: &format!("Tail of the put latency at {load} of what equal disks could write"),
        x: "",
        y: "put latency, p99.9, ms",
    };
    decades(&words, &names.iter().map(String::as_str).collect::<Vec<_>>(), &groups)
}
