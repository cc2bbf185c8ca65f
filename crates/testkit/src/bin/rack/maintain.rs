//! `rack maintain`: a cluster that heals, grows and shrinks under load. What that takes of what clients leave, and what they notice.

mod heal;
mod resize;
mod watch;

use std::time::Duration;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use protocol::transport::Transport;
use serde::Serialize;
use testkit::{Cluster, Plan};

use crate::RackArgs;
use crate::clients::{Clients, Kind, Work};
use crate::figures::{machine_load, table};
use watch::{Course, Phase, Watch};

/// Copies of everything.
const COPIES: f64 = 3.0;
/// Rate of the cables while the cluster is filled and read back, megabits per second.
const FAST: u32 = 2_000;
/// Clients of each kind that put, or get, at once at most, on each gateway's host.
const CLIENTS: usize = 16;
/// Clients that fill the cluster, on each gateway's host.
const FILLERS: usize = 8;
/// Lists, gets of what was removed, and removals that begin in a second on each gateway's host.
const OTHERS: f64 = 1.0;
/// How long clients work before anything is measured.
const WARM_UP: Duration = Duration::from_secs(5);

/// Settings of `maintain`.
#[derive(Debug, Args)]
pub(crate) struct MaintainArgs {
    #[command(flatten)]
    rack: RackArgs,
    /// What happens: each in a cluster of its own.
    #[arg(long, value_enum, value_name = "WHAT,WHAT", value_delimiter = ',', default_values = ["heal", "resize"])]
    what: Vec<What>,
    /// The gateways' transport.
    #[arg(long, default_value_t = Transport::REPLICAST_M)]
    transport: Transport,
    /// Gateways, each on a host of its own, with clients of its own.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=8))]
    gateways: u8,
    /// Puts take so much of each gateway's outward cable, and gets as much of its inward one.
    #[arg(long, value_name = "SHARE", default_value_t = 0.4)]
    load: f64,
    /// Bytes of an object.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(8..=64 << 20))]
    object: u64,
    /// What is stored on each target before, in 10^6 bytes.
    #[arg(long, value_name = "MB", default_value_t = 800, value_parser = clap::value_parser!(u64).range(10..=100_000))]
    fill: u64,
    /// Targets that join, and are taken out again.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=8))]
    add: u8,
    /// For how long a target is down before it is taken out, seconds: clients' times are compared with those of this time.
    #[arg(long, value_name = "S", default_value_t = 25, value_parser = clap::value_parser!(u32).range(10..=600))]
    out_after: u32,
    /// Seconds before anything happens, and after all is over.
    #[arg(long, value_name = "S", default_value_t = 25, value_parser = clap::value_parser!(u64).range(5..=600))]
    seconds: u64,
    /// For how long it is waited at most until all has settled after targets joined, were drained, or were removed, seconds.
    #[arg(long, value_name = "S", default_value_t = 900, value_parser = clap::value_parser!(u64).range(60..=7_200))]
    limit: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum What {
    /// A target is killed and its data are removed.
    Heal,
    /// Targets join, get their share, and are drained and removed.
    Resize,
}

impl MaintainArgs {
    /// What a cable carries in a second, bytes.
    fn link(&self) -> f64 {
        f64::from(self.rack.rate) * 125_000.0
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(self.limit)
    }

    /// What clients do on each gateway's host.
    fn work(&self) -> [Work; 5] {
        let often = self.load * self.link() / self.object as f64;
        let work = |kind, clients, per_second| Work { kind, clients, per_second: Some(per_second) };
        [
            work(Kind::Put, CLIENTS, often),
            work(Kind::Get, CLIENTS, often),
            work(Kind::List, 2, OTHERS),
            work(Kind::Remove, 2, OTHERS),
            work(Kind::Absence, 2, OTHERS),
        ]
    }

    /// A cluster that has been filled, is whole, and has the cables that were asked for.
    fn filled(&self, spares: u8) -> anyhow::Result<(Cluster, Clients)> {
        let gateways = usize::from(self.gateways);
        let mut cluster = self.rack.start_as(Plan {
            spares: spares.into(),
            // Eight times what is stored: clients put as much again and more meanwhile, and what moves is there twice for a while.
            capacity: format!("{}MiB", (8 * self.fill).max(512)),
            out_after_seconds: self.out_after,
            ..self.rack.plan(gateways)?
        })?;
        cluster.share_catalog()?;
        self.set_rate(&cluster, FAST)?;
        self.serve(&mut cluster)?;
        let mut clients = Clients::new(&cluster, gateways, self.object as usize)?;
        self.fill(&mut clients)?;
        let watch = Watch::new();
        watch.wait(&cluster, Duration::from_secs(120), |look| look.whole)?;
        self.set_rate(&cluster, self.rack.rate)?;
        cluster.restart()?;
        self.serve(&mut cluster)?;
        watch.wait(&cluster, Duration::from_secs(120), |look| look.whole)?;
        Ok((cluster, clients))
    }

    fn serve(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        let transport = self.transport.to_string();
        (0..self.gateways.into()).try_for_each(|gateway| cluster.serve(gateway, &transport))
    }

    fn set_rate(&self, cluster: &Cluster, rate: u32) -> anyhow::Result<()> {
        (0..cluster.rack().hosts()).try_for_each(|host| cluster.rack().set_rate(host, rate))
    }

    fn fill(&self, clients: &mut Clients) -> anyhow::Result<()> {
        let bytes = self.fill as f64 * 1e6 * f64::from(self.rack.targets) / COPIES;
        let objects = (bytes / self.object as f64) as usize;
        eprintln!("filling: {objects} objects");
        clients.start(&[Work::without_pause(Kind::Put, FILLERS)])?;
        let mut said = 0;
        while clients.present() < objects {
            std::thread::sleep(Duration::from_millis(100));
            let present = clients.present();
            if present * 10 / objects > said {
                said = present * 10 / objects;
                eprintln!("  {present} objects");
            }
        }
        let failed = clients.stop().iter().filter(|op| !op.is_good()).count();
        ensure!(failed == 0, "{failed} puts failed while the cluster was filled");
        Ok(())
    }

    /// Reads everything back over fast cables, and adds what is not as it must be.
    fn read_back(&self, cluster: &Cluster, clients: &Clients) -> anyhow::Result<ReadBack> {
        eprintln!("reading everything back");
        self.set_rate(cluster, FAST)?;
        let (known, as_they_were) = clients.read_back()?;
        Ok(ReadBack { known, as_they_were })
    }
}

#[derive(Debug, Serialize)]
struct Report {
    transport: String,
    targets: u8,
    gateways: u8,
    rate_mbit: u32,
    object: u64,
    load: f64,
    machine_load: f64,
    heal: Option<heal::Healed>,
    resize: Option<resize::Resized>,
}

/// Every object of which it is known whether it is there.
#[derive(Debug, Serialize)]
struct ReadBack {
    known: usize,
    as_they_were: usize,
}

/// Runs `rack maintain`.
pub(crate) fn run(args: &MaintainArgs) -> anyhow::Result<()> {
    ensure!((0.01..=0.9).contains(&args.load), "--load {}: write a share from 0.01 to 0.9", args.load);
    let (mut heal, mut resize) = (None, None);
    for what in &args.what {
        match what {
            What::Heal => heal = Some(heal::run(args)?),
            What::Resize => resize = Some(resize::run(args)?),
        }
    }
    let report = Report {
        transport: args.transport.to_string(),
        targets: args.rack.targets,
        gateways: args.gateways,
        rate_mbit: args.rack.rate,
        object: args.object,
        load: args.load,
        machine_load: machine_load(),
        heal,
        resize,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    let phases = report.heal.iter().flat_map(|heal| &heal.phases);
    let phases: Vec<&Phase> = phases.chain(report.resize.iter().flat_map(|resize| &resize.phases)).collect();
    let read = report.heal.iter().map(|heal| &heal.read_back).chain(report.resize.iter().map(|r| &r.read_back));
    let lost: usize = read.map(|read| read.known - read.as_they_were).sum();
    let count =
        |of: fn(&Course) -> usize| phases.iter().flat_map(|phase| phase.courses.values()).map(of).sum::<usize>();
    let (failed, wrong) = (count(|course| course.failed), count(|course| course.wrong));
    ensure!(
        failed + wrong + lost == 0,
        "{failed} operations failed, {wrong} had a wrong answer, {lost} objects are not as they must be at the end"
    );
    Ok(())
}

fn print(report: &Report) {
    println!(
        "{}, {} targets, {} gateways, cables of {} Mb/s; objects of {} bytes; puts and gets take {} of each gateway's cable; \
         {:.1} runnable threads on the machine; times in ms",
        report.transport,
        report.targets,
        report.gateways,
        report.rate_mbit,
        report.object,
        report.load,
        report.machine_load
    );
    if let Some(heal) = &report.heal {
        print_phases(&heal.phases);
        heal.print();
    }
    if let Some(resize) = &report.resize {
        print_phases(&resize.phases);
        resize.print();
    }
}

fn print_phases(phases: &[Phase]) {
    let header = [
        "",
        "s",
        "puts",
        "p50",
        "p99",
        "gets",
        "p50",
        "p99",
        "lists",
        "removals",
        "absences",
        "failed",
        "wrong",
        "targets in MB/s",
        "out MB/s",
        "processors",
        "timers late",
    ];
    let cells = |phase: &Phase| {
        let mut cells = vec![phase.name.to_owned(), format!("{:.1}", phase.seconds)];
        for kind in [Kind::Put, Kind::Get] {
            let course = phase.course(kind);
            cells.push(course.done.to_string());
            cells.extend([course.p50_ms, course.p99_ms].map(|ms| format!("{ms:.0}")));
        }
        cells.extend([Kind::List, Kind::Remove, Kind::Absence].map(|kind| phase.course(kind).done.to_string()));
        let sum = |of: fn(&Course) -> usize| phase.courses.values().map(of).sum::<usize>().to_string();
        cells.extend([sum(|course| course.failed), sum(|course| course.wrong)]);
        cells.extend([phase.received, phase.sent].map(|bytes| format!("{:.1}", bytes / phase.seconds / 1e6)));
        cells.push(format!("{:.0} %", phase.busy * 100.0));
        cells.push(format!("{:.2}", phase.late_p99_ms));
        cells
    };
    table(&header, phases.iter().map(cells).collect());
}

/// `after` over `before`, as a factor.
fn times(before: &Phase, after: &Phase, kind: Kind) -> f64 {
    after.course(kind).p99_ms / before.course(kind).p99_ms
}
