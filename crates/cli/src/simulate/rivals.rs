//! `reservoir sim rivals`: every way of choosing targets beside the others, with equal disks and with slow ones.

use serde::Serialize;
use sim::perf::Scenario;

use super::scenarios::{Done, changes_by, perform, seeded, written};
use crate::args::{ProfileArg, RivalsArgs};
use crate::plot::{Bar, Group, Words, decades};
use crate::report::Measured;

/// The scenario of those that send by unicast without windows.
const UNICAST: &str = include_str!("../../../../scenarios/rivals.toml");
/// The scenario of those that negotiate.
const NEGOTIATED: &str = include_str!("../../../../scenarios/slow-disks-improved.toml");

/// The scenario of the paper's rules.
const PAPER: &str = include_str!("../../../../scenarios/slow-disks.toml");
/// The scenario of all where everything costs.
const COSTLY: &str = include_str!("../../../../scenarios/rivals-realistic.toml");

/// The protocols that are compared.
struct Contender {
    name: &'static str,
    scenario: &'static str,
    set: &'static [&'static str],
}

const fn contender(name: &'static str, scenario: &'static str, set: &'static [&'static str]) -> Contender {
    Contender { name, scenario, set }
}

/// On the papers' network, worst informed first. The last two are ours: the ports of -H's initiators are busier, so that
/// it takes wider windows to find a part that fits.
const IDEAL: [Contender; 8] = [
    contender("paper's -m", PAPER, &["protocol=replicast-m", "warm_up=1200ms"]),
    contender("uch-ccp", UNICAST, &["protocol=uch-ccp"]),
    contender("least-of-two", UNICAST, &["protocol=least-of-two"]),
    contender("c3-like", UNICAST, &["protocol=c3-like"]),
    contender("prequal-like", UNICAST, &["protocol=prequal-like"]),
    contender("prequal-sync", UNICAST, &["protocol=prequal-sync"]),
    contender("replicast-h", NEGOTIATED, &["protocol=replicast-h", "stretch_percent=800"]),
    contender("replicast-m", NEGOTIATED, &["protocol=replicast-m"]),
];

/// Where everything costs. Those without windows keep an ideal network, but for `hash`, which is the daemons' own.
const REALISTIC: [Contender; 8] = [
    contender("hash", COSTLY, &["protocol=hash"]),
    contender("uch-ccp", COSTLY, &["protocol=uch-ccp"]),
    contender("least-of-two", COSTLY, &["protocol=least-of-two"]),
    contender("c3-like", COSTLY, &["protocol=c3-like"]),
    contender("prequal-like", COSTLY, &["protocol=prequal-like"]),
    contender("prequal-sync", COSTLY, &["protocol=prequal-sync"]),
    contender("replicast-h", COSTLY, &["protocol=replicast-h"]),
    contender("replicast-m", COSTLY, &["protocol=replicast-m"]),
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
        let mean = |key| done.mean(key);
        Self {
            protocol,
            load,
            slow_times,
            completed: done.completed(),
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

    /// The tail of a store that keeps up, in microseconds.
    fn tail(&self) -> Option<f64> {
        self.keeps_up().then_some(self.latency_p999_us)
    }

    /// How many times longer the tail is than with equal disks.
    fn growth(&self, all: &[Self]) -> Option<f64> {
        let equal =
            all.iter().find(|row| row.protocol == self.protocol && row.load == self.load && row.slow_times == 1);
        Some(self.tail()? / equal?.tail()?)
    }

    fn cells(&self, all: &[Self]) -> Vec<String> {
        let same = |row: &&Self| row.load == self.load && row.slow_times == self.slow_times;
        let ours = all.iter().filter(same).find(|row| row.protocol == "replicast-m").and_then(Self::tail);
        let times = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        let micros = |value: f64| if self.keeps_up() { written(value) } else { "-".to_owned() };
        vec![
            self.load.to_string(),
            if self.slow_times == 1 { "none".to_owned() } else { format!("{} times", self.slow_times) },
            self.protocol.to_owned(),
            format!("{:.1}{}", 100.0 * self.completed, if self.keeps_up() { "" } else { " (falls behind)" }),
            micros(self.latency_p50_us),
            micros(self.latency_p99_us),
            match self.tail() {
                Some(tail) => format!("{} ± {}", written(tail), self.confidence.map_or("-".to_owned(), written)),
                None => "-".to_owned(),
            },
            times(self.growth(all)),
            times(self.tail().zip(ours).map(|(tail, ours)| tail / ours)),
            format!("{:.1}", self.control_messages),
        ]
    }
}

/// Runs `reservoir sim rivals`.
pub(super) fn run(args: &RivalsArgs) -> anyhow::Result<()> {
    let slow: Vec<u32> = [&[1], args.slow.as_slice()].concat();
    let contenders = match args.profile {
        ProfileArg::Paper => &IDEAL,
        ProfileArg::Product => &REALISTIC,
    };
    let mut which = Vec::new();
    let mut scenarios = Vec::new();
    for load in &args.load {
        for times in &slow {
            for Contender { name, scenario, set } in contenders {
                let own: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
                let changes = [
                    changes_by(name, &own),
                    changes_by("--load", &[format!("load={load}")]),
                    changes_by("--slow", &[format!("slow_times={times}")]),
                    changes_by("--set", &args.how.set),
                ];
                scenarios.push(seeded(Scenario::parse(name, scenario, &changes.concat())?, args.how.seeds)?);
                which.push((*name, *load, *times));
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
        "over equal disks",
        "over -M",
        "messages a put",
    ];
    let cells: Vec<Vec<String>> = rows.iter().map(|row| row.cells(&rows)).collect();
    let measured = Measured { objects: &rows, header: &header, rows: &cells };
    measured.conclude(&args.how.report, "Slow disks: negotiated windows and their rivals", |report| {
        report.text(&format!(
            "One disk in nine is slow, or none. Puts arrive at random; a load of 1 is what the disks could write if all \
             were equal and did nothing else. {} seeds. A protocol that falls behind completes \
             less than is asked for: its latency grows with the time that is measured. {}",
            done[0].seeds(),
            match args.profile {
                ProfileArg::Paper => "The papers' network: nothing but links and disks takes time.",
                ProfileArg::Product =>
                    "The daemons' machines and costs; the network of the rivals (not of hash) is ideal.",
            }
        ));
        for load in &args.load {
            report.plot(&format!("growth-{load}"), growth_plot(*load, contenders, &args.slow, &rows)?);
        }
        for load in &args.load {
            report.plot(&format!("rivals-{load}"), tail_plot(*load, contenders, &slow, &rows)?);
        }
        Ok(())
    })
}

fn name_of(times: u32) -> String {
    match times {
        1 => "all disks equal".to_owned(),
        times => format!("one disk in nine {times} times slower"),
    }
}

/// Bars for each contender, one for each of the `slow` disks.
fn plot(
    words: &Words<'_>,
    contenders: &[Contender],
    slow: &[u32],
    value: impl Fn(&'static str, u32) -> Option<f64>,
) -> anyhow::Result<String> {
    let groups: Vec<Group> = contenders
        .iter()
        .map(|Contender { name, .. }| {
            let bar = |times: &u32| Bar { value: value(name, *times), compared: None };
            Group { name: (*name).to_owned(), bars: slow.iter().map(bar).collect() }
        })
        .collect();
    let names: Vec<String> = slow.iter().map(|times| name_of(*times)).collect();
    decades(words, &names.iter().map(String::as_str).collect::<Vec<_>>(), &groups, "falls behind")
}

fn row_of<'a>(rows: &'a [RowJson], protocol: &str, load: f64, times: u32) -> Option<&'a RowJson> {
    rows.iter().find(|row| row.protocol == protocol && row.load == load && row.slow_times == times)
}

/// By how much slow disks make the tail longer: what choosing by load is for.
fn growth_plot(load: f64, contenders: &[Contender], slow: &[u32], rows: &[RowJson]) -> anyhow::Result<String> {
    let words = Words {
        title: &format!("What slow disks do to the tail, at {load} of what equal disks could write"),
        x: "",
        y: "p99.9 of the put latency, over that with equal disks",
    };
    plot(&words, contenders, slow, |protocol, times| row_of(rows, protocol, load, times)?.growth(rows))
}

/// p99.9 itself.
fn tail_plot(load: f64, contenders: &[Contender], slow: &[u32], rows: &[RowJson]) -> anyhow::Result<String> {
    let words = Words {
        title: &format!("Tail of the put latency at {load} of what equal disks could write"),
        x: "",
        y: "put latency, p99.9, ms",
    };
    plot(&words, contenders, slow, |protocol, times| Some(row_of(rows, protocol, load, times)?.tail()? / 1e3))
}
