//! `rack bench`: what the transports reach of the cables.

use std::collections::BTreeMap;

use anyhow::ensure;
use clap::Args;
use protocol::redundancy::Redundancy;
use protocol::transport::Transport;
use serde::Serialize;
use testkit::{Carrier, Cluster, Plan, SWITCH_CABLES};

use crate::RackArgs;
use crate::figures::{Counters, machine_load, median, table};
use crate::load::{self, Load, Outcome};

/// What a slow server has of the rate of the others.
const SLOW: u32 = 10;
/// Datagrams of a thousand that a lossy cable loses.
const LOSS_PERMILLE: u32 = 1;

/// Settings of `bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    rack: RackArgs,
    /// Transports to compare.
    #[arg(long, value_name = "TRANSPORT,TRANSPORT", value_delimiter = ',', default_values_t = Transport::NAMED.map(|named| named.transport))]
    transports: Vec<Transport>,
    /// How chunks are kept: numbers of copies, or codes of data and parity as 4+2. Each code is measured where the gateway sends all
    /// pieces, and where a switch computes the parity.
    #[arg(long, value_name = "N|K+M,N|K+M", value_delimiter = ',', default_values_t = [Redundancy::Copies(3)])]
    redundancy: Vec<Redundancy>,
    /// Numbers of gateways to load it from.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 3], value_parser = clap::value_parser!(u8).range(1..=9))]
    gateways: Vec<u8>,
    /// Conditions: even (all servers alike), slow (the last target's server has a tenth of its rate), loss (it loses 0.1 %
    /// of what reaches it), silent (it is frozen when all is put, before the gets).
    #[arg(long, value_enum, value_name = "CONDITION,CONDITION", value_delimiter = ',', default_values = ["even", "slow", "loss"])]
    conditions: Vec<Condition>,
    /// Seconds of each run and direction.
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Runs of each; medians are printed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    repeat: u8,
    /// Puts or gets in flight of each gateway.
    #[arg(long, value_name = "N", default_value_t = 4)]
    depth: usize,
    /// Bytes of a chunk.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    chunk: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Condition {
    Even,
    Slow,
    Loss,
    Silent,
}

impl Condition {
    const fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::Slow => "one at a tenth",
            Self::Loss => "one loses 0.1 %",
            Self::Silent => "one silent to gets",
        }
    }

    fn begin(self, cluster: &Cluster, host: usize, rate: u32) -> anyhow::Result<()> {
        match self {
            Self::Even | Self::Silent => Ok(()),
            Self::Slow => cluster.rack().set_rate(host, (rate / SLOW).max(1)),
            Self::Loss => cluster.rack().lose(host, LOSS_PERMILLE),
        }
    }

    fn end(self, cluster: &Cluster, host: usize, rate: u32) -> anyhow::Result<()> {
        match self {
            Self::Even | Self::Silent => Ok(()),
            Self::Slow => cluster.rack().set_rate(host, rate),
            Self::Loss => cluster.rack().keep(host),
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    carrier: Carrier,
    encrypt: bool,
    targets: u8,
    rate_mbit: u32,
    queue_ms: u32,
    mtu: u32,
    chunk: u64,
    depth: usize,
    seconds: u64,
    repeat: u8,
    data: String,
    /// Runnable threads of the machine before and after.
    machine_load: [f64; 2],
    rows: Vec<Row>,
}

/// Medians of the runs of one case.
#[derive(Debug, Serialize)]
struct Row {
    gateways: u8,
    condition: Condition,
    transport: String,
    redundancy: String,
    /// Whether a switch computed the parity.
    aggregator: bool,
    put_mb_per_s: f64,
    /// Of the bound that the cables set, 0 to 1.
    put_of_bound: f64,
    put_of_links: f64,
    put_p50_ms: f64,
    put_p99_ms: f64,
    /// Put throughput as a multiple of that of the same transport under even conditions, in the same run.
    put_of_even: Option<f64>,
    /// Bytes on the gateways' cables for each byte that was put.
    sent_per_byte: f64,
    get_mb_per_s: f64,
    get_of_bound: f64,
    get_p99_ms: f64,
    get_of_even: Option<f64>,
    /// Transfers that ended behind their windows, of those that were accepted, and by how much, milliseconds.
    overruns_of_windows: Option<f64>,
    overrun_p50_ms: Option<f64>,
    overrun_p99_ms: Option<f64>,
    /// How late transfers began, milliseconds.
    late_p50_ms: Option<f64>,
    late_p99_ms: Option<f64>,
    repairs_asked: f64,
    put_runs: Vec<f64>,
    get_runs: Vec<f64>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    gateways: u8,
    condition: Condition,
    transport: usize,
    redundancy: usize,
    aggregator: bool,
}

impl Case {
    fn transport(&self, args: &BenchArgs) -> Transport {
        args.transports[self.transport]
    }

    fn redundancy(&self, args: &BenchArgs) -> Redundancy {
        args.redundancy[self.redundancy]
    }
}

/// What the cables can carry, payload in MB/s (10^6 bytes): every byte that is put leaves a gateway once (by multicast, or of a code
/// where a switch computes the parity), or once for each copy, or with the parity; and reaches targets as often as it is kept; every byte
/// that is got leaves one target and reaches one gateway. Where one server is slow, it takes part as far as it can. Headers are not taken off.
fn bounds(args: &RackArgs, case: Case, transport: Transport, redundancy: Redundancy) -> (f64, f64) {
    let Case { gateways, condition, aggregator, .. } = case;
    let link = f64::from(args.rate) / 8.0;
    let lost = if condition == Condition::Slow { 1.0 - 1.0 / f64::from(SLOW) } else { 0.0 };
    let (initiators, targets) = (f64::from(gateways) * link, (f64::from(args.targets) - lost) * link);
    let (kept, is_once) = match redundancy {
        Redundancy::Copies(copies) => (f64::from(copies), transport.is_common()),
        Redundancy::Code(code) => (code.stored_per_byte(), aggregator),
    };
    let sent = if is_once { 1.0 } else { kept };
    let switch = if aggregator { link * f64::from(SWITCH_CABLES) / kept } else { f64::INFINITY };
    ((initiators / sent).min(targets / kept).min(switch), f64::min(initiators, targets))
}

/// Runs `rack bench`.
pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let most = args.gateways.iter().copied().max().unwrap_or(1);
    ensure!((1..=1_024).contains(&args.depth), "--depth {}: choose 1 to 1024", args.depth);
    let before = machine_load();
    let is_coded = |redundancy: &Redundancy| matches!(redundancy, Redundancy::Code(_));
    let switches = usize::from(args.redundancy.iter().any(is_coded));
    // Each piece wants a failure domain of its own.
    let pieces = args.redundancy.iter().map(|redundancy| redundancy.pieces()).max().unwrap_or(0);
    let plan = args.rack.plan(most.into())?;
    let group_cells = plan.group_cells.max(pieces.div_ceil(3));
    let mut cluster = args.rack.start_as(Plan { switches, group_cells, ..plan })?;
    let mut runs: BTreeMap<Case, Vec<Outcome>> = BTreeMap::new();
    for round in 1..=args.repeat {
        for gateways in &args.gateways {
            for (transport, redundancy, aggregator) in ways(args) {
                cluster.start_anew_with(aggregator)?;
                for condition in args.conditions.iter().copied() {
                    let case = Case { gateways: *gateways, condition, transport, redundancy, aggregator };
                    let (transport, kept) = (case.transport(args), kept(case.redundancy(args), aggregator));
                    eprintln!("round {round}: {gateways} gateways, {}, {transport}, {kept}", condition.name());
                    runs.entry(case).or_default().push(one(&mut cluster, args, case)?);
                }
            }
        }
    }
    let rows = runs
        .iter()
        .map(|(case, outcomes)| row(args, *case, outcomes, runs.get(&Case { condition: Condition::Even, ..*case })));
    let report = Report {
        carrier: args.rack.carrier,
        encrypt: args.rack.encrypt,
        targets: args.rack.targets,
        rate_mbit: args.rack.rate,
        queue_ms: args.rack.queue,
        mtu: args.rack.mtu,
        chunk: args.chunk,
        depth: args.depth,
        seconds: args.seconds,
        repeat: args.repeat,
        data: args.rack.data.display().to_string(),
        machine_load: [before, machine_load()],
        rows: rows.collect(),
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

/// Transports, what is kept how, and whether there is a switch: codes also with one.
fn ways(args: &BenchArgs) -> impl Iterator<Item = (usize, usize, bool)> {
    let all =
        (0..args.transports.len()).flat_map(|transport| (0..args.redundancy.len()).map(move |kept| (transport, kept)));
    all.flat_map(|(transport, kept)| {
        let with = matches!(args.redundancy[kept], Redundancy::Code(_)).then_some((transport, kept, true));
        [(transport, kept, false)].into_iter().chain(with)
    })
}

/// In a table.
fn kept(redundancy: impl std::fmt::Display, aggregator: bool) -> String {
    format!("{redundancy}{}", if aggregator { ", switch" } else { "" })
}

fn one(cluster: &mut Cluster, args: &BenchArgs, case: Case) -> anyhow::Result<Outcome> {
    let Case { gateways, condition, .. } = case;
    let (transport, redundancy) = (case.transport(args), case.redundancy(args));
    let targets = usize::from(args.rack.targets);
    let host = cluster.host_of(targets);
    condition.begin(cluster, host, args.rack.rate)?;
    let BenchArgs { seconds, depth, chunk, .. } = *args;
    let silent = (condition == Condition::Silent).then_some(targets);
    let load = Load { transport, redundancy, gateways: gateways.into(), seconds, depth, chunk, silent };
    let outcome = load::run(cluster, targets, load);
    condition.end(cluster, host, args.rack.rate)?;
    outcome
}

fn row(args: &BenchArgs, case: Case, runs: &[Outcome], even: Option<&Vec<Outcome>>) -> Row {
    let Case { gateways, condition, aggregator, .. } = case;
    let (transport, redundancy) = (case.transport(args), case.redundancy(args));
    let (put_bound, get_bound) = bounds(&args.rack, case, transport, redundancy);
    let of = |figure: fn(&Outcome) -> f64| median(runs.iter().map(figure));
    // Round by round, so that what the machine did meanwhile counts for both.
    let of_even = |figure: fn(&Outcome) -> f64| {
        even.filter(|_| condition != Condition::Even)
            .map(|even| median(runs.iter().zip(even).map(|(run, even)| figure(run) / figure(even))))
    };
    let mut counters = Counters::default();
    runs.iter().for_each(|run| counters.add(&run.counters));
    let (put, get) = (of(|run| run.put.mb_per_s), of(|run| run.get.mb_per_s));
    let accepted = counters.count("windows_total", "fate=\"accepted\"");
    let windows = Some(accepted).filter(|accepted| *accepted > 0.0);
    Row {
        gateways,
        condition,
        transport: transport.to_string(),
        redundancy: redundancy.to_string(),
        aggregator,
        put_mb_per_s: put,
        put_of_bound: put / put_bound,
        put_of_links: put / (f64::from(gateways) * f64::from(args.rack.rate) / 8.0),
        put_p50_ms: of(|run| run.put.p50_ms),
        put_p99_ms: of(|run| run.put.p99_ms),
        put_of_even: of_even(|run| run.put.mb_per_s),
        sent_per_byte: of(|run| run.sent_per_byte),
        get_mb_per_s: get,
        get_of_bound: get / get_bound,
        get_p99_ms: of(|run| run.get.p99_ms),
        get_of_even: of_even(|run| run.get.mb_per_s),
        overruns_of_windows: windows.map(|windows| counters.count("overrun_seconds_count", "") / windows),
        overrun_p50_ms: counters.quantile_ms("overrun_seconds", 0.5),
        overrun_p99_ms: counters.quantile_ms("overrun_seconds", 0.99),
        late_p50_ms: counters.quantile_ms("start_late_seconds", 0.5),
        late_p99_ms: counters.quantile_ms("start_late_seconds", 0.99),
        repairs_asked: counters.count("repairs_asked_total", ""),
        put_runs: runs.iter().map(|run| run.put.mb_per_s).collect(),
        get_runs: runs.iter().map(|run| run.get.mb_per_s).collect(),
    }
}

fn print(report: &Report) {
    println!(
        "{}, {} targets, cables of {} Mb/s, MTU {}, chunks of {} bytes, {} in flight of each gateway, data in {}; medians of {} \
         runs of {} s; {:.1} runnable threads on the machine before, {:.1} after",
        report.carrier.words(report.encrypt),
        report.targets,
        report.rate_mbit,
        report.mtu,
        report.chunk,
        report.depth,
        report.data,
        report.repeat,
        report.seconds,
        report.machine_load[0],
        report.machine_load[1]
    );
    let of_even = |share: Option<f64>| share.map_or(String::new(), |share| format!("{share:.2}"));
    let cells = |row: &Row| {
        vec![
            format!("{} from {}", row.condition.name(), row.gateways),
            row.transport.clone(),
            kept(&row.redundancy, row.aggregator),
            format!("{:.1}", row.put_mb_per_s),
            format!("{:.2}", row.put_of_links),
            format!("{:.2}", row.put_of_bound),
            of_even(row.put_of_even),
            format!("{:.1}", row.put_p50_ms),
            format!("{:.1}", row.put_p99_ms),
            format!("{:.2}", row.sent_per_byte),
            format!("{:.1}", row.get_mb_per_s),
            format!("{:.2}", row.get_of_bound),
            of_even(row.get_of_even),
            format!("{:.1}", row.get_p99_ms),
            format!("{}", row.repairs_asked),
        ]
    };
    table(
        &[
            "servers, gateways",
            "transport",
            "kept as",
            "put MB/s",
            "of links",
            "of bound",
            "of even",
            "p50 ms",
            "p99 ms",
            "sent",
            "get MB/s",
            "of bound",
            "of even",
            "p99 ms",
            "repairs",
        ],
        report.rows.iter().map(cells).collect(),
    );
    print_windows(&report.rows);
}

/// How far transfers kept to what was promised.
fn print_windows(rows: &[Row]) {
    let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    let cells = |row: &Row| {
        let percent = row.overruns_of_windows.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0));
        vec![
            format!("{} from {}", row.condition.name(), row.gateways),
            row.transport.clone(),
            kept(&row.redundancy, row.aggregator),
            percent,
            ms(row.overrun_p50_ms),
            ms(row.overrun_p99_ms),
            ms(row.late_p50_ms),
            ms(row.late_p99_ms),
        ]
    };
    println!("How windows were kept (ends of buckets, ms):");
    table(
        &["servers, gateways", "transport", "kept as", "overrun", "by, p50", "by, p99", "began late by, p50", "p99"],
        rows.iter().map(cells).collect(),
    );
}
