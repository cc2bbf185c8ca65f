//! `reservoir sim reads`: ways for a get to choose among the holders of its chunk, beside each other.

use serde::Serialize;
use sim::perf::Scenario;

use super::scenarios::{Done, changes_by, perform, seeded, written};
use crate::args::ReadsArgs;
use crate::plot::{Bar, Group, Words, decades};
use crate::report::Measured;

const SCENARIO: &str = include_str!("../../../../scenarios/reads.toml");

/// A way to choose, and the keys that make it. Puts are placed by the same protocol.
struct Way {
    name: &'static str,
    set: &'static [&'static str],
}

/// Without reservation first. Those of the plots, which distinguish five, and two more.
const WAYS: [Way; 7] = [
    Way { name: "random copy", set: &["protocol=hash"] },
    Way { name: "least loaded copy", set: &["protocol=hash", "get_choice=best"] },
    Way { name: "first good bid", set: &["protocol=replicast-m"] },
    Way { name: "best bid", set: &["protocol=replicast-m", "get_choice=best"] },
    Way { name: "leader", set: &["protocol=leader", "overlap=false", "lead_gets=true"] },
    Way { name: "random copy, hedged", set: &["protocol=hash", "hedge_percent=5"] },
    Way { name: "first good bid, hedged", set: &["protocol=replicast-m", "hedge_percent=5"] },
];
const DRAWN: usize = 5;

/// A configuration that completes less than this share of what is asked for falls behind.
const KEEPS_UP: f64 = 0.97;

/// One run, averaged over its seeds, as JSON.
#[derive(Serialize)]
struct RowJson {
    way: &'static str,
    load: f64,
    /// How many times slower one disk in nine is; 1 where all are equal.
    slow_times: u32,
    reads_percent: u32,
    completed: f64,
    get_p50_us: f64,
    get_p99_us: f64,
    get_p999_us: f64,
    put_p50_us: f64,
    put_p99_us: f64,
    put_p999_us: f64,
    control_messages: f64,
}

impl RowJson {
    fn of(way: &'static str, (load, slow_times, reads_percent): (f64, u32, u32), done: &Done) -> Self {
        let mean = |key| done.mean(key);
        Self {
            way,
            load,
            slow_times,
            reads_percent,
            completed: done.completed(),
            get_p50_us: mean("get_latency_p50_us"),
            get_p99_us: mean("get_latency_p99_us"),
            get_p999_us: mean("get_latency_p999_us"),
            put_p50_us: mean("latency_p50_us"),
            put_p99_us: mean("latency_p99_us"),
            put_p999_us: mean("latency_p999_us"),
            control_messages: mean("control_messages"),
        }
    }

    fn cells(&self) -> Vec<String> {
        let behind = self.completed < KEEPS_UP;
        let time = |value: f64| if behind || value <= 0.0 { "-".to_owned() } else { written(value) };
        vec![
            self.load.to_string(),
            if self.slow_times == 1 { "none".to_owned() } else { format!("{} times", self.slow_times) },
            self.reads_percent.to_string(),
            self.way.to_owned(),
            format!("{:.1}{}", 100.0 * self.completed, if behind { " (falls behind)" } else { "" }),
            time(self.get_p50_us),
            time(self.get_p99_us),
            time(self.get_p999_us),
            time(self.put_p50_us),
            time(self.put_p99_us),
            time(self.put_p999_us),
            format!("{:.1}", self.control_messages),
        ]
    }
}

/// Runs `reservoir sim reads`.
pub(super) fn run(args: &ReadsArgs) -> anyhow::Result<()> {
    let (mut which, mut scenarios) = (Vec::new(), Vec::new());
    for load in &args.load {
        for times in &args.slow {
            for reads in &args.reads {
                for Way { name, set } in &WAYS {
                    let own: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
                    let changes = [
                        changes_by(name, &own),
                        changes_by("--load", &[format!("load={load}")]),
                        changes_by("--slow", &[format!("slow_times={times}")]),
                        changes_by("--reads", &[format!("reads_percent={reads}")]),
                        changes_by("--set", &args.how.set),
                    ];
                    scenarios.push(seeded(Scenario::parse(name, SCENARIO, &changes.concat())?, args.how.seeds)?);
                    which.push((*name, (*load, *times, *reads)));
                }
            }
        }
    }
    let done = perform(scenarios, &args.how.report)?;
    let rows: Vec<RowJson> =
        which.iter().zip(&done).map(|((name, keys), done)| RowJson::of(name, *keys, done)).collect();
    let header = [
        "load",
        "slow disks",
        "gets, %",
        "holder",
        "completed, %",
        "get p50, us",
        "p99",
        "p99.9",
        "put p50, us",
        "p99",
        "p99.9",
        "messages",
    ];
    let cells: Vec<Vec<String>> = rows.iter().map(RowJson::cells).collect();
    let measured = Measured { objects: &rows, header: &header, rows: &cells };
    measured.conclude(&args.how.report, "How a get chooses among the holders of its chunk", |report| {
        report.text("Gets and puts arrive at random. Without reservation puts go where the hash says.");
        for load in &args.load {
            for times in &args.slow {
                report.plot(&format!("reads-{load}-slow-{times}"), plot(*load, *times, &args.reads, &rows)?);
            }
        }
        Ok(())
    })
}

/// p99.9 of the gets: a group of bars for each share of gets.
fn plot(load: f64, times: u32, reads: &[u32], rows: &[RowJson]) -> anyhow::Result<String> {
    let disks =
        if times == 1 { "all disks equal".to_owned() } else { format!("one disk in nine {times} times slower") };
    let words = Words {
        title: &format!("Tail of the get latency at load {load}, {disks}"),
        x: "gets among the requests",
        y: "get latency, p99.9, ms",
    };
    let names: Vec<&str> = WAYS[..DRAWN].iter().map(|way| way.name).collect();
    let bar = |way: &str, percent: u32| {
        let is = |row: &&RowJson| row.load == load && row.slow_times == times && row.reads_percent == percent;
        let row = rows.iter().filter(is).find(|row| row.way == way);
        let value = row.filter(|row| row.completed >= KEEPS_UP).map(|row| row.get_p999_us / 1e3);
        Bar { value, compared: None }
    };
    let group = |percent: &u32| Group {
        name: format!("{percent} %"),
        bars: names.iter().map(|way| bar(way, *percent)).collect(),
    };
    let groups: Vec<Group> = reads.iter().filter(|percent| **percent > 0).map(group).collect();
    decades(&words, &names, &groups, "falls behind")
}
