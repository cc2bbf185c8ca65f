//! `rack compare`: the rack beside its simulation.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};
use clap::Args;
use protocol::redundancy::Redundancy;
use protocol::transport::Transport;
use serde::Serialize;
use serde_json::Value;

use crate::RackArgs;
use crate::figures::{machine_load, median, table};
use crate::load::{self, Load};

/// Settings of `compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    rack: RackArgs,
    /// What is simulated: the transports, the number of targets and the cables' rate are set to those of the rack.
    #[arg(long, value_name = "FILE", default_value = "scenarios/rack.toml")]
    scenario: PathBuf,
    /// Transports to compare.
    #[arg(long, value_name = "TRANSPORT,TRANSPORT", value_delimiter = ',', default_values_t = Transport::NAMED.map(|named| named.transport))]
    transports: Vec<Transport>,
    /// Seconds of each run on the rack.
    #[arg(long, value_name = "S", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Runs of each on the rack; medians are printed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    repeat: u8,
    /// Puts in flight, in both worlds.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    depth: u16,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A figure of both worlds.
#[derive(Debug, Serialize)]
struct Pair {
    rack: f64,
    simulated: f64,
}

impl Pair {
    /// By how much the rack differs from what was simulated, percent.
    fn percent(&self) -> f64 {
        (self.rack / self.simulated - 1.0) * 100.0
    }
}

#[derive(Debug, Serialize)]
struct Row {
    transport: String,
    put_mb_per_s: Pair,
    p50_ms: Pair,
    p99_ms: Pair,
}

/// Bytes of a chunk in both worlds.
const CHUNK: u64 = 1 << 20;

/// Runs `rack compare`.
pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let mut cluster = args.rack.start(1)?;
    let mut rows = Vec::new();
    for transport in args.transports.iter().copied() {
        eprintln!("{transport}");
        let (chunks_per_s, p50_ms, p99_ms) = simulated(args, transport)?;
        let mut runs = Vec::new();
        for _ in 0..args.repeat {
            cluster.start_anew()?;
            let depth = usize::from(args.depth);
            let load = Load {
                transport,
                redundancy: Redundancy::Copies(3),
                gateways: 1,
                seconds: args.seconds,
                depth,
                chunk: CHUNK,
                silent: None,
            };
            runs.push(load::run(&mut cluster, args.rack.targets.into(), load)?.put);
        }
        rows.push(Row {
            transport: transport.to_string(),
            put_mb_per_s: Pair {
                rack: median(runs.iter().map(|put| put.mb_per_s)),
                simulated: chunks_per_s * CHUNK as f64 / 1e6,
            },
            p50_ms: Pair { rack: median(runs.iter().map(|put| put.p50_ms)), simulated: p50_ms },
            p99_ms: Pair { rack: median(runs.iter().map(|put| put.p99_ms)), simulated: p99_ms },
        });
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!(
        "{} targets, cables of {} Mb/s, {} puts of 1 MiB in flight; medians of {} runs of {} s; {:.1} runnable threads on the \
         machine",
        args.rack.targets,
        args.rack.rate,
        args.depth,
        args.repeat,
        args.seconds,
        machine_load()
    );
    let cells = |row: &Row| {
        let mut cells = vec![row.transport.clone()];
        for pair in [&row.put_mb_per_s, &row.p50_ms, &row.p99_ms] {
            cells.extend([
                format!("{:.1}", pair.simulated),
                format!("{:.1}", pair.rack),
                format!("{:+.1} %", pair.percent()),
            ]);
        }
        cells
    };
    let header =
        ["transport", "MB/s simulated", "rack", "", "p50 ms simulated", "rack", "", "p99 ms simulated", "rack", ""];
    table(&header, rows.iter().map(cells).collect());
    Ok(())
}

/// Chunks a second, median and p99 in milliseconds.
fn simulated(args: &CompareArgs, transport: Transport) -> anyhow::Result<(f64, f64, f64)> {
    let mut command = Command::new(args.rack.program()?);
    command.args(["sim", "run", "--json"]).arg(&args.scenario);
    let sets = [
        format!("protocol={transport}"),
        format!("targets={}", args.rack.targets),
        format!("link_mbit_per_s={}", args.rack.rate),
        format!("depth={}", args.depth),
    ];
    for set in &sets {
        command.args(["--set", set]);
    }
    let output = command.output().context("the simulator cannot be started")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let report: Value = serde_json::from_slice(&output.stdout).context("the simulator prints JSON")?;
    let mean = |figure: &str| report[figure]["mean"].as_f64().with_context(|| format!("no {figure} was simulated"));
    Ok((mean("chunks_per_second")?, mean("latency_p50_us")? / 1e3, mean("latency_p99_us")? / 1e3))
}
