//! Load from the gateways' hosts: the real initiator, driven by `reservoir bench`.

use std::process::Stdio;

use anyhow::{Context, ensure};
use protocol::redundancy::Redundancy;
use protocol::transport::Transport;
use serde::Deserialize;
use testkit::{Carrier, Cluster};

use crate::figures::Counters;

/// What to put and get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) transport: Transport,
    /// How chunks are kept.
    pub(crate) redundancy: Redundancy,
    /// Hosts that put and get at the same time.
    pub(crate) gateways: usize,
    pub(crate) seconds: u64,
    /// Requests in flight of each.
    pub(crate) depth: usize,
    /// Bytes of a chunk.
    pub(crate) chunk: u64,
    /// A target that is frozen while it is got.
    pub(crate) silent: Option<usize>,
}

/// What one direction reached, all gateways together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reached {
    /// Payload bytes (10^6) per second.
    pub(crate) mb_per_s: f64,
    pub(crate) bytes: f64,
    pub(crate) p50_ms: f64,
    /// Of the gateway with the longest.
    pub(crate) p99_ms: f64,
}

/// What a run reached.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) put: Reached,
    pub(crate) get: Reached,
    /// Bytes that the gateways' interfaces sent, for each byte that was put.
    pub(crate) sent_per_byte: f64,
    /// What the targets counted meanwhile.
    pub(crate) counters: Counters,
}

#[derive(Debug, Deserialize)]
struct BenchReport {
    results: Vec<BenchRow>,
}

#[derive(Debug, Deserialize)]
struct BenchRow {
    direction: String,
    multicast: bool,
    bytes: u64,
    mb_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// Puts for a while from some gateways at once, then gets.
pub(crate) fn run(cluster: &mut Cluster, targets: usize, load: Load) -> anyhow::Result<Outcome> {
    let sent = |cluster: &Cluster| -> anyhow::Result<u64> {
        (0..load.gateways).map(|host| cluster.rack().traffic(host).map(|(sent, _)| sent)).sum()
    };
    let freeze = match load.silent {
        Some(target) => Some(format!("kill -STOP {}", cluster.target(target)?.id())),
        None => None,
    };
    let before = (sent(cluster)?, Counters::of(cluster, 1..=targets)?);
    let numbers = [load.seconds.to_string(), load.depth.to_string(), load.chunk.to_string()];
    let [seconds, depth, chunk] = numbers.each_ref().map(String::as_str);
    let (transport, redundancy) = (&*load.transport.to_string(), &*load.redundancy.to_string());
    let mut words = vec![
        "bench",
        "--json",
        "--ceiling",
        "1",
        "--transports",
        transport,
        "--redundancy",
        redundancy,
        "--sizes",
        chunk,
        "--seconds",
        seconds,
        "--depth",
        depth,
    ];
    words.extend(freeze.iter().flat_map(|command| ["--before-gets", command]));
    let begin =
        |host| cluster.command(host, &words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let begun: Vec<_> = (0..load.gateways).map(begin).collect::<Result<_, _>>().context("a load cannot be started")?;
    let (mut put, mut get) = (Reached::default(), Reached::default());
    for load_of_one in begun {
        let output = load_of_one.wait_with_output().context("a load cannot be waited for")?;
        ensure!(output.status.success(), "{transport}: {}", String::from_utf8_lossy(&output.stderr).trim());
        let report: BenchReport = serde_json::from_slice(&output.stdout).context("a bench prints JSON")?;
        for row in report.results {
            let is_expected = cluster.carrier() == Carrier::Udp;
            ensure!(!is_expected || row.multicast, "multicast was not found on the rack: see the switch's groups");
            ensure!(is_expected || !row.multicast, "there is multicast over TCP: this is a defect");
            let reached = if row.direction == "put" { &mut put } else { &mut get };
            reached.mb_per_s += row.mb_per_s;
            reached.bytes += row.bytes as f64;
            reached.p50_ms = reached.p50_ms.max(row.p50_ms);
            reached.p99_ms = reached.p99_ms.max(row.p99_ms);
        }
    }
    load.silent.map_or(Ok(()), |target| cluster.target(target)?.thaw())?;
    let sent_per_byte = (sent(cluster)? - before.0) as f64 / put.bytes.max(1.0);
    let counters = Counters::of(cluster, 1..=targets)?.since(&before.1);
    Ok(Outcome { put, get, sent_per_byte, counters })
}
