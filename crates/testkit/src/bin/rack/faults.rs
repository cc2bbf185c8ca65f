//! `rack faults`: what breaks while clients put and get, and how long it takes to be as before.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use protocol::transport::Transport;
use serde::Serialize;
use testkit::{Carrier, Cluster};

use crate::RackArgs;
use crate::clients::{Clients, Kind, Op, Work};
use crate::figures::{machine_load, median, table};

/// The target that things happen to; the leader of a group is the lowest target in it.
const VICTIM: usize = 5;
const LEADER: usize = 1;
/// Datagrams of a thousand that the victim loses.
const LOSS_PERMILLE: u32 = 10;
/// Bytes of an object.
const SIZE: usize = 1 << 20;
/// What clients do.
const WORK: [Work; 2] = [Work::without_pause(Kind::Put, 1), Work::without_pause(Kind::Get, 1)];
/// So many operations in a row that take no more than twice as long as usual are a sign that all is as before.
const USUAL: usize = 5;

/// Settings of `faults`.
#[derive(Debug, Args)]
pub(crate) struct FaultArgs {
    #[command(flatten)]
    rack: RackArgs,
    /// The gateway's transport.
    #[arg(long, default_value_t = Transport::REPLICAST_M)]
    transport: Transport,
    /// What breaks.
    #[arg(long, value_enum, value_name = "FAULT,FAULT", value_delimiter = ',', default_values = ["cut", "freeze", "kill-leader", "no-multicast", "loss"])]
    faults: Vec<Fault>,
    /// Seconds before it breaks, while it is broken, and after it was mended.
    #[arg(long, value_name = "S", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Fault {
    /// The cable of a target is cut, and healed.
    Cut,
    /// A target's process is frozen (SIGSTOP), and thawed.
    Freeze,
    /// The lowest target, which leads the group where the transport has leaders, is killed (SIGKILL), and started again.
    KillLeader,
    /// The switch carries no multicast any more, and does again.
    NoMulticast,
    /// A target loses 1 % of what reaches it, and does not any more.
    Loss,
}

impl Fault {
    const fn name(self) -> &'static str {
        match self {
            Self::Cut => "cable cut",
            Self::Freeze => "server frozen",
            Self::KillLeader => "leader killed",
            Self::NoMulticast => "no multicast",
            Self::Loss => "one loses 1 %",
        }
    }

    fn begin(self, cluster: &mut Cluster) -> anyhow::Result<()> {
        let host = cluster.host_of(VICTIM);
        match self {
            Self::Cut => cluster.rack().cut(host),
            Self::Freeze => cluster.target(VICTIM)?.freeze(),
            Self::KillLeader => cluster.kill_target(LEADER),
            Self::NoMulticast => cluster.rack().set_multicast(false),
            Self::Loss => cluster.rack().lose(host, LOSS_PERMILLE),
        }
    }

    fn end(self, cluster: &mut Cluster) -> anyhow::Result<()> {
        let host = cluster.host_of(VICTIM);
        match self {
            Self::Cut => cluster.rack().heal(host),
            Self::Freeze => cluster.target(VICTIM)?.thaw(),
            Self::KillLeader => cluster.start_targets(),
            Self::NoMulticast => cluster.rack().set_multicast(true),
            Self::Loss => cluster.rack().keep(host),
        }
    }

    /// The target that is away meanwhile.
    const fn away(self) -> Option<u32> {
        match self {
            Self::Cut | Self::Freeze => Some(VICTIM as u32),
            Self::KillLeader => Some(LEADER as u32),
            Self::NoMulticast | Self::Loss => None,
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    transport: String,
    carrier: Carrier,
    encrypt: bool,
    targets: u8,
    rate_mbit: u32,
    seconds: u64,
    machine_load: f64,
    rows: Vec<Row>,
    /// What the status says of multicast when a gateway is started on a switch without it.
    multicast_without_it: Option<bool>,
    /// Objects that were acknowledged in all, and read back at the end.
    acknowledged: usize,
    read_back: usize,
}

#[derive(Debug, Serialize)]
struct Row {
    fault: Fault,
    put: Course,
    get: Course,
    /// From mending until the target that was away took a copy again, milliseconds.
    used_again_ms: Option<f64>,
}

/// How one kind of operation fared.
#[derive(Debug, Serialize)]
struct Course {
    /// Median before, milliseconds.
    usual_ms: f64,
    /// Longest time without any that ended well, while it was broken.
    gap_ms: f64,
    /// From the fault until they took as long as usual again; `None`: not while it lasted.
    recovered_ms: Option<f64>,
    done: usize,
    failed: usize,
}

impl Course {
    /// Of the operations of one kind, in the order in which they ended, from `fault` to `mended`.
    fn of(ops: &[Op], kind: Kind, fault: Instant, mended: Instant) -> Self {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let ours: Vec<&Op> = ops.iter().filter(|op| op.kind == kind).collect();
        let usual_ms = median(ours.iter().filter(|op| op.ended < fault && op.is_good()).map(|op| ms(op.took())));
        let during: Vec<&Op> = ours.iter().copied().filter(|op| op.ended >= fault && op.begun < mended).collect();
        let mut last = fault;
        let mut gap = Duration::ZERO;
        for op in during.iter().filter(|op| op.is_good()) {
            gap = gap.max(op.ended - last);
            last = op.ended;
        }
        gap = gap.max(mended.saturating_duration_since(last));
        let usual = |op: &&Op| op.is_good() && ms(op.took()) <= 2.0 * usual_ms;
        let recovered = during.windows(USUAL).find(|row| row.iter().all(usual)).map(|row| row[0]);
        Self {
            usual_ms,
            gap_ms: ms(gap),
            recovered_ms: recovered.map(|op| ms(op.begun.saturating_duration_since(fault))),
            done: during.iter().filter(|op| op.is_good()).count(),
            failed: ours.iter().filter(|op| !op.is_good()).count(),
        }
    }
}

/// Runs `rack faults`.
pub(crate) fn run(args: &FaultArgs) -> anyhow::Result<()> {
    ensure!(usize::from(args.rack.targets) >= VICTIM, "--targets {}: faults need {VICTIM} or more", args.rack.targets);
    // Over connections there is no multicast that the switch could drop.
    let is_there = |fault: &Fault| args.rack.carrier == Carrier::Udp || *fault != Fault::NoMulticast;
    let faults: Vec<Fault> = args.faults.iter().copied().filter(is_there).collect();
    let mut cluster = args.rack.start(1)?;
    cluster.serve(0, &args.transport.to_string())?;
    let mut clients = Clients::new(&cluster, 1, SIZE)?;
    let mut rows = Vec::new();
    for fault in faults.iter().copied() {
        eprintln!("{}", fault.name());
        rows.push(one(&mut cluster, &mut clients, fault, Duration::from_secs(args.seconds))?);
        let all = usize::from(args.rack.targets);
        testkit::wait_until("every target answers again", || Ok(cluster.alive()? == all))?;
    }
    let multicast_without_it = if faults.contains(&Fault::NoMulticast) {
        Some(without_multicast(&mut cluster, &mut clients, args.transport)?)
    } else {
        None
    };
    eprintln!("reading everything back");
    let (acknowledged, read_back) = clients.read_back()?;
    let report = Report {
        transport: args.transport.to_string(),
        carrier: args.rack.carrier,
        encrypt: args.rack.encrypt,
        targets: args.rack.targets,
        rate_mbit: args.rack.rate,
        seconds: args.seconds,
        machine_load: machine_load(),
        rows,
        multicast_without_it,
        acknowledged,
        read_back,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    ensure!(acknowledged == read_back, "{} of {acknowledged} acknowledged objects are lost", acknowledged - read_back);
    Ok(())
}

fn one(cluster: &mut Cluster, clients: &mut Clients, fault: Fault, time: Duration) -> anyhow::Result<Row> {
    clients.start(&WORK)?;
    std::thread::sleep(time);
    let begun = Instant::now();
    fault.begin(cluster)?;
    std::thread::sleep(time);
    let mended = Instant::now();
    fault.end(cluster)?;
    let used_again = fault.away().map(|id| used_again(cluster, id, mended, time)).transpose()?.flatten();
    std::thread::sleep(time.saturating_sub(mended.elapsed()));
    let ops = clients.stop();
    let course = |kind| Course::of(&ops, kind, begun, mended);
    Ok(Row { fault, put: course(Kind::Put), get: course(Kind::Get), used_again_ms: used_again })
}

/// How long it took from mending, within so much time, until a target had one more chunk than it reported first: milliseconds.
fn used_again(cluster: &Cluster, id: u32, mended: Instant, time: Duration) -> anyhow::Result<Option<f64>> {
    let mut first = None;
    while mended.elapsed() < time {
        let chunks = cluster.chunks()?.get(&u64::from(id)).copied();
        match (first, chunks) {
            (Some(first), Some(chunks)) if chunks > first => return Ok(Some(mended.elapsed().as_secs_f64() * 1e3)),
            (None, chunks) => first = chunks,
            _ => {}
        }
    }
    Ok(None)
}

/// A gateway that is started where there is no multicast: what its status says. It must put and get.
fn without_multicast(cluster: &mut Cluster, clients: &mut Clients, transport: Transport) -> anyhow::Result<bool> {
    cluster.rack().set_multicast(false)?;
    cluster.serve(0, &transport.to_string())?;
    clients.start(&WORK)?;
    std::thread::sleep(Duration::from_secs(1));
    let ops = clients.stop();
    let done = |kind| ops.iter().any(|op| op.kind == kind && op.is_good());
    ensure!(done(Kind::Put) && done(Kind::Get), "nothing is put and got where there is no multicast");
    let status = cluster.ask(&["status", "--json"])?;
    cluster.rack().set_multicast(true)?;
    status["multicast"].as_bool().context("a status says whether there is multicast")
}

fn print(report: &Report) {
    println!(
        "{} over {}, {} targets, cables of {} Mb/s; one client puts objects of 1 MiB, one gets them; {} s each before, broken, and \
         mended; {:.1} runnable threads on the machine; times in ms",
        report.transport,
        report.carrier.words(report.encrypt),
        report.targets,
        report.rate_mbit,
        report.seconds,
        report.machine_load
    );
    let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
    let cells = |row: &Row| {
        let mut cells = vec![row.fault.name().to_owned()];
        for course in [&row.put, &row.get] {
            cells.extend([
                format!("{:.0}", course.usual_ms),
                format!("{:.0}", course.gap_ms),
                ms(course.recovered_ms),
                format!("{} / {}", course.done, course.failed),
            ]);
        }
        cells.push(ms(row.used_again_ms));
        cells
    };
    let header = [
        "",
        "put, usual",
        "longest gap",
        "as usual after",
        "done / failed",
        "get, usual",
        "longest gap",
        "as usual after",
        "done / failed",
        "used again after",
    ];
    table(&header, report.rows.iter().map(cells).collect());
    if let Some(multicast) = report.multicast_without_it {
        println!(
            "started on a switch without multicast, a gateway puts and gets, and its status says multicast: {multicast}"
        );
    }
    println!("{} of {} acknowledged objects read back whole", report.read_back, report.acknowledged);
}
