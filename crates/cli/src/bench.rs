//! Benchmarks: the machine's ceilings, and what the cluster reaches of them.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use node::config::{Balance, Network};
use node::{Client, ClusterConfig, Ticket};
use protocol::id::{ChunkId, NodeId, coded};
use protocol::initiator::{ChunkPut, Fetched, Stored};
use protocol::redundancy::Redundancy;
use protocol::transport::Transport;
use protocol::wire::DATA_HEADER;
use serde::Serialize;
use tempfile::TempDir;

use crate::args::BenchArgs;
use crate::local_cluster::{self, Cluster, Shape};
use crate::node_cluster::NodeCluster;
use crate::output::{self, json, step_bar};
use crate::process::{Children, cpu_seconds};
use crate::{running, units, up};
use room::Put;

mod catalog;
mod ceiling;
mod conflicts;
mod messenger;
mod report;
mod room;
mod s3;
mod slow;
mod strangers;

/// Targets of a cluster made for a benchmark.
const TARGETS: u32 = 9;
/// What is measured unless something else is asked for: sizes, transports, requests in flight.
const SIZES: [u64; 3] = [16 << 10, 128 << 10, 1 << 20];
const AT_ONCE: usize = 16;
/// Most requests in flight.
const DEPTH: usize = 1_024;
/// Most chunks that one measurement puts: they are remembered, to be got and dropped.
const REMEMBERED: usize = 1 << 20;
/// Samples kept for the quantiles.
const SAMPLES: usize = 1 << 20;

#[derive(Debug, Serialize)]
struct Report {
    ceilings: Ceilings,
    /// By the cluster map.
    copies: u8,
    targets: usize,
    depth: usize,
    seconds_each: u64,
    results: Vec<Row>,
    /// Largest resident memory of a target after the load, bytes.
    largest_target_resident: Option<u64>,
}

#[derive(Debug, Default, Serialize)]
struct Ceilings {
    /// What the raw socket carries, bytes (10^6) per second.
    socket_mb_per_s: f64,
    /// What the raw disk takes by append and `fdatasync`, bytes (10^6) per second.
    disk_mb_per_s: f64,
    /// What the raw disk gives of what no cache holds, bytes (10^6) per second.
    disk_read_mb_per_s: f64,
    /// The most that a put can reach here: the socket, or the disk shared by all copies, as many as the cluster map says.
    put_mb_per_s: f64,
    /// The most that a get can reach here: the socket, or the disk.
    get_mb_per_s: f64,
}

impl Ceilings {
    /// The most that a put can reach of what is kept so.
    fn put(&self, redundancy: Redundancy) -> f64 {
        if self.disk_mb_per_s > 0.0 {
            self.socket_mb_per_s.min(self.disk_mb_per_s / room::stored_per_byte(redundancy))
        } else {
            self.put_mb_per_s
        }
    }

    fn max(&self, other: &Self) -> Self {
        Self {
            socket_mb_per_s: self.socket_mb_per_s.max(other.socket_mb_per_s),
            disk_mb_per_s: self.disk_mb_per_s.max(other.disk_mb_per_s),
            disk_read_mb_per_s: self.disk_read_mb_per_s.max(other.disk_read_mb_per_s),
            put_mb_per_s: self.put_mb_per_s.max(other.put_mb_per_s),
            get_mb_per_s: self.get_mb_per_s.max(other.get_mb_per_s),
        }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    transport: String,
    /// How chunks are kept: a number of copies, or a code.
    #[serde(serialize_with = "in_words")]
    redundancy: Redundancy,
    multicast: bool,
    size: u64,
    direction: &'static str,
    /// Payload bytes moved.
    bytes: u64,
    mb_per_s: f64,
    /// 0 to 1 of the lower ceiling; more when the ceiling was measured too low.
    share: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Mean number of negotiations of a put, or of targets tried by a get.
    rounds: f64,
    /// Of the whole cluster's processes and this one; of this one alone on a cluster that runs elsewhere.
    cpu_s_per_gib: f64,
    /// The same, by who needed it.
    cpu_s_per_gib_by_role: Cpu,
}

fn in_words<S: serde::Serializer>(redundancy: &Redundancy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(redundancy)
}

/// CPU seconds, by who needed them.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Cpu {
    /// This process, which does what a gateway does below S3, and gateways.
    initiator: f64,
    /// Of a cluster that was made for the benchmark.
    targets: f64,
    /// See `targets`.
    switches: f64,
}

impl Cpu {
    fn total(self) -> f64 {
        self.initiator + self.targets + self.switches
    }

    /// What came since, for each GiB of so many bytes.
    fn since(self, before: Self, bytes: u64) -> Self {
        let gib = (bytes as f64 / f64::from(1 << 30)).max(f64::MIN_POSITIVE);
        let of = |now: f64, before: f64| (now - before) / gib;
        Self {
            initiator: of(self.initiator, before.initiator),
            targets: of(self.targets, before.targets),
            switches: of(self.switches, before.switches),
        }
    }
}

/// What is measured with each size.
#[derive(Clone, Copy, Debug)]
struct Case {
    transport: Transport,
    redundancy: Redundancy,
}

/// Runs `reservoir bench`.
pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    ensure!(args.seconds > 0, "--seconds 0 measures nothing: give at least 1");
    let depth = args.depth.unwrap_or(AT_ONCE);
    ensure!((1..=DEPTH).contains(&depth), "--depth {depth}: choose 1 to {DEPTH}");
    // An object is cut into chunks.
    let largest = if args.s3 { 1 << 30 } else { u64::from(protocol::limits::CHUNK_BYTES) };
    let sizes = args.sizes.clone().unwrap_or(SIZES.to_vec());
    if let Some(size) = sizes.iter().find(|size| !(16..=largest).contains(*size)) {
        bail!("--sizes {}: choose 16 bytes to {}", units::size(*size), units::size(largest));
    }
    let stop = up::watch_signals()?;
    if args.s3 {
        return s3::run(args, &stop);
    }
    if args.messenger.messenger {
        return messenger::run(args, &stop);
    }
    if let Some(count) = args.strangers {
        return strangers::run(args, usize::from(count), &stop);
    }
    if let Some(objects) = args.catalog {
        return catalog::run(args, objects, &stop);
    }
    if let Some(rate) = args.conflicts {
        return conflicts::run(args, rate, &stop);
    }
    let transports = args.transports.clone().unwrap_or(Transport::NAMED.map(|named| named.transport).to_vec());
    if args.slow_target {
        return slow::run(args, &transports, depth, &stop);
    }
    if let Some(ceiling) = args.ceiling {
        ensure!(ceiling.is_finite() && ceiling > 0.0, "--ceiling {ceiling}: give the MB/s that can be reached");
    }
    let bench = match &args.config {
        Some(path) => Bench::running(path, &stop)?,
        None => Bench::temporary(args, None, &stop)?,
    };
    let redundancies = args.redundancy.clone().unwrap_or(vec![bench.copies()]);
    let of_transport =
        |transport| redundancies.iter().map(move |redundancy| Case { transport, redundancy: *redundancy });
    let cases: Vec<Case> = transports.into_iter().flat_map(of_transport).collect();
    // Of a cluster that goes on, all measurements share the room; where it is too little, nothing is begun.
    let sharing = if args.config.is_none() { 1 } else { cases.len() };
    let largest = sizes.iter().copied().max().unwrap_or(0) as usize;
    let cluster = NodeCluster::start(&bench.config, None, true, None)?;
    for redundancy in &redundancies {
        bench.room(&cluster, sharing * sizes.len(), largest, *redundancy)?;
    }
    drop(cluster);
    // Before and after, because machines are never quite quiet: the better of two is nearer to what they can do.
    let mut ceilings = bench.ceilings(args)?;
    let (bench, measured, largest_target_resident) = measure(bench, args, &cases, &sizes, depth)?;
    ceilings = ceilings.max(&bench.ceilings(args)?);
    let results: Vec<Row> = measured.into_iter().map(|row| row.of(&ceilings)).collect();
    let report = Report {
        ceilings,
        copies: bench.config.copies,
        targets: bench.config.targets.len(),
        depth,
        seconds_each: args.seconds,
        results,
        largest_target_resident,
    };
    if report.results.iter().any(|row| row.share > 1.0) {
        crate::output::say!(
            "reservoir: a share is above 100 %: the machine was busy while its ceilings were measured; run again"
        );
    }
    if args.json { json(&report) } else { report::print(&report) }
}

/// Puts and gets in each case with each size; the cluster of the last one, and the largest memory of a target.
fn measure(
    mut bench: Bench,
    args: &BenchArgs,
    cases: &[Case],
    sizes: &[u64],
    depth: usize,
) -> anyhow::Result<(Bench, Vec<Row>, Option<u64>)> {
    let is_temporary = args.config.is_none();
    let bar = step_bar("bench", (cases.len() * sizes.len()) as u64);
    let (mut measured, mut resident) = (Vec::new(), None);
    for (n, case) in cases.iter().enumerate() {
        if n > 0 && is_temporary {
            // Each begins with empty disks; what was there is gone before the room for the next is looked at.
            let stop = Arc::clone(&bench.stop);
            drop(bench);
            bench = Bench::temporary(args, None, &stop)?;
        }
        let cluster = NodeCluster::start(&bench.config, Some(case.transport), false, Some(depth))?;
        for (at, size) in sizes.iter().enumerate() {
            let of_others = if is_temporary { 0 } else { (cases.len() - n - 1) * sizes.len() };
            let most = bench.room(&cluster, of_others + sizes.len() - at, *size as usize, case.redundancy)?;
            let limit = Duration::from_secs(args.seconds);
            let redundancy = args.redundancy.as_ref().map(|_| case.redundancy);
            let load = Load { size: *size as usize, redundancy, depth, limit, most };
            measured.extend(bench.one(&cluster, *case, &load, args.before_gets.as_deref())?);
            bar.inc(1);
        }
        resident = resident.max(bench.children.as_ref().map(Children::largest_resident));
    }
    bar.finish_and_clear();
    Ok((bench, measured, resident))
}

impl Row {
    /// With its share of the ceiling of its direction.
    fn of(mut self, ceilings: &Ceilings) -> Self {
        let ceiling = if self.direction == "put" { ceilings.put(self.redundancy) } else { ceilings.get_mb_per_s };
        self.share = if ceiling > 0.0 { self.mb_per_s / ceiling } else { 0.0 };
        self
    }
}

/// A cluster to measure.
struct Bench {
    config: ClusterConfig,
    /// The targets, when they were started here.
    children: Option<Children>,
    /// Removed at the end, after the children: fields are dropped in order.
    directory: Option<TempDir>,
    /// Set by Ctrl-C: then what was begun is broken off, and what was made removed.
    stop: Arc<AtomicBool>,
}

fn go_on(stop: &AtomicBool) -> anyhow::Result<()> {
    ensure!(!stop.load(Ordering::SeqCst), "the benchmark was stopped before its end");
    Ok(())
}

impl Bench {
    fn running(config: &Path, stop: &Arc<AtomicBool>) -> anyhow::Result<Self> {
        let config = local_cluster::read(config)?;
        let bench = Self { config, children: None, directory: None, stop: Arc::clone(stop) };
        let status = crate::gateway::Cluster::status(&NodeCluster::start(&bench.config, None, true, None)?)?;
        ensure!(
            status.targets.iter().any(|t| t.alive),
            "no target answers: start the cluster with `{} up`",
            output::program()
        );
        Ok(bench)
    }

    /// Makes a cluster in a directory of its own, and starts its targets.
    fn temporary(args: &BenchArgs, slow: Option<(u32, u64)>, stop: &Arc<AtomicBool>) -> anyhow::Result<Self> {
        let place = &args.data;
        ensure!(place.is_dir(), "there is no directory {}: make it, or choose another with --data", place.display());
        let directory = tempfile::Builder::new().prefix("reservoir-bench-").tempdir_in(place).with_context(|| {
            format!("no directory can be made in {}: choose another place with --data", place.display())
        })?;
        local_cluster::create(
            directory.path(),
            &Shape {
                targets: TARGETS,
                switches: args.switches.into(),
                redundancy: None,
                interface: local_cluster::LOOPBACK,
                transport: None,
                slow,
                out_after: None,
                network: Network {
                    carrier: args.carrier,
                    lanes: args.lanes.unwrap_or(1),
                    workers: args.workers,
                    gateway_workers: args.gateway_workers,
                    encrypt: args.encrypt,
                    balance: Balance(args.balance),
                    ..Network::default()
                },
            },
        )?;
        let cluster = Cluster::open(directory.path())?;
        let children = running::start_targets(&cluster, stop)?;
        let config = local_cluster::read(&cluster.config_path)?;
        Ok(Self { config, children: Some(children), directory: Some(directory), stop: Arc::clone(stop) })
    }

    /// How chunks are kept by the cluster map.
    fn copies(&self) -> Redundancy {
        Redundancy::Copies(self.config.copies)
    }

    fn ceilings(&self, args: &BenchArgs) -> anyhow::Result<Ceilings> {
        go_on(&self.stop)?;
        if let Some(ceiling) = args.ceiling {
            return Ok(Ceilings { put_mb_per_s: ceiling, get_mb_per_s: ceiling, ..Ceilings::default() });
        }
        let place = &args.data;
        let interface = node::udp::initiator_interface(&self.config)?;
        let socket = ceiling::socket(DATA_HEADER + self.config.protocol(interface).per_datagram)?;
        let disk = ceiling::disk(place, self.config.targets.len())?;
        Ok(Ceilings {
            socket_mb_per_s: socket,
            disk_mb_per_s: disk.write,
            disk_read_mb_per_s: disk.read,
            put_mb_per_s: socket.min(disk.write / room::stored_per_byte(self.copies())),
            // A file system without reads past the page cache has no disk to wait for.
            get_mb_per_s: if disk.read > 0.0 { socket.min(disk.read) } else { socket },
        })
    }

    /// Lets the page cache forget the targets' files, so that gets read the disk.
    fn forget_cache(&self) -> anyhow::Result<()> {
        let Some(directory) = &self.directory else { return Ok(()) };
        for entry in walk(directory.path()).context("the directory of the benchmark cannot be read")? {
            let file = std::fs::File::open(&entry).with_context(|| format!("{} cannot be read", entry.display()))?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).context("the cache cannot be emptied")?;
        }
        Ok(())
    }

    fn cpu(&self) -> Cpu {
        let of = |role| self.children.as_ref().map_or(0.0, |children| children.cpu_seconds_of(role));
        let initiator = cpu_seconds("/proc/self/stat") + of("gateway");
        Cpu { initiator, targets: of("target"), switches: of("switch") }
    }

    /// Puts for a while, runs a command, then gets what was put.
    fn one(
        &mut self,
        cluster: &NodeCluster,
        case: Case,
        load: &Load,
        before_gets: Option<&str>,
    ) -> anyhow::Result<[Row; 2]> {
        let row = |direction, run: &Run, cpu: Cpu| Row {
            transport: case.transport.to_string(),
            redundancy: case.redundancy,
            multicast: cluster.client().multicast(),
            size: load.size as u64,
            direction,
            bytes: run.bytes,
            mb_per_s: run.mb_per_s(),
            share: 0.0,
            p50_ms: units::quantile(&run.samples, 50.0),
            p99_ms: units::quantile(&run.samples, 99.0),
            rounds: run.rounds as f64 / run.count.max(1) as f64,
            cpu_s_per_gib: cpu.total(),
            cpu_s_per_gib_by_role: cpu,
        };
        let before = self.cpu();
        let (put, stored) = put_for(cluster.client(), load, &self.stop)?;
        self.forget_cache()?;
        before_gets.map_or(Ok(()), shell)?;
        let between = self.cpu();
        let get = get_for(cluster.client(), &stored, load, &self.stop)?;
        let after = self.cpu();
        self.forget(cluster, &stored);
        if let Some(children) = &mut self.children {
            children.check()?;
        }
        Ok([row("put", &put, between.since(before, put.bytes)), row("get", &get, after.since(between, get.bytes))])
    }
}

fn shell(command: &str) -> anyhow::Result<()> {
    let status = std::process::Command::new("sh").args(["-c", command]).status().context("sh cannot be started")?;
    ensure!(status.success(), "--before-gets: {command}: {status}");
    Ok(())
}

/// Every file below a directory.
fn walk(directory: &Path) -> std::io::Result<Vec<std::path::PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            files.extend(walk(&entry.path())?);
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(files)
}

/// What was measured.
struct Run {
    bytes: u64,
    count: u64,
    rounds: u64,
    seconds: f64,
    /// Milliseconds of each request, sorted.
    samples: Vec<f64>,
}

impl Run {
    fn mb_per_s(&self) -> f64 {
        units::mb_per_s(self.bytes, self.seconds)
    }
}

/// What a measurement asks for.
struct Load {
    /// Bytes of each chunk.
    size: usize,
    /// How it is kept; `None` is as the map says.
    redundancy: Option<Redundancy>,
    /// Requests in flight.
    depth: usize,
    /// It ends then.
    limit: Duration,
    /// Or when so many bytes were put, so that targets do not become full.
    most: u64,
}

/// Keeps `depth` requests in flight until the time is over or `start` has no more, and waits for all.
fn pump<K, T, E: std::error::Error + Send + Sync + 'static>(
    load: &Load,
    stop: &AtomicBool,
    what: &str,
    mut start: impl FnMut() -> Option<(K, Ticket<Result<T, E>>)>,
    mut done: impl FnMut(K, T) -> (u64, f64, u32),
) -> anyhow::Result<Run> {
    let begin = Instant::now();
    let mut run = Run { bytes: 0, count: 0, rounds: 0, seconds: 0.0, samples: Vec::new() };
    let mut flight = VecDeque::new();
    loop {
        while flight.len() < load.depth && begin.elapsed() < load.limit {
            let Some(ticket) = start() else { break };
            flight.push_back(ticket);
        }
        let Some((key, ticket)) = flight.pop_front() else { break };
        go_on(stop)?;
        let outcome = ticket.wait()?.with_context(|| format!("a {what} of the benchmark failed"))?;
        let (bytes, ms, rounds) = done(key, outcome);
        run.bytes += bytes;
        run.count += 1;
        run.rounds += u64::from(rounds);
        if run.samples.len() < SAMPLES {
            run.samples.push(ms);
        }
    }
    run.seconds = begin.elapsed().as_secs_f64();
    run.samples.sort_by(f64::total_cmp);
    Ok(run)
}

fn put_for(client: &Client, load: &Load, stop: &AtomicBool) -> anyhow::Result<(Run, Put)> {
    let mut base = vec![0; load.size];
    // Different in each run, so that nothing is there already.
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    std::io::Read::read_exact(&mut crate::demo::Content::new(seed), &mut base).context("no content could be made")?;
    let most = (load.most / load.size as u64).min(REMEMBERED as u64);
    let mut stored = Put::new();
    let mut count = 0_u64;
    let start = || {
        if count == most {
            return None;
        }
        count += 1;
        base[..8].copy_from_slice(&count.to_le_bytes());
        let payload = Bytes::copy_from_slice(&base);
        let put = match load.redundancy {
            // No chunk is too large for that.
            Some(Redundancy::Code(code)) => ChunkPut::coded(coded::cut(code, &payload)?),
            redundancy => ChunkPut { redundancy, ..ChunkPut::new(ChunkId::of_payload(&payload), payload) },
        };
        Some((put.id, client.put_chunk(put)))
    };
    let done = |id: ChunkId, chunk: Stored| {
        stored.push((id, chunk.holders));
        (load.size as u64, chunk.took.as_nanos() as f64 / 1e6, chunk.rounds)
    };
    let run = pump(load, stop, "put", start, done)?;
    Ok((run, stored))
}

fn get_for(client: &Client, stored: &[(ChunkId, Vec<NodeId>)], load: &Load, stop: &AtomicBool) -> anyhow::Result<Run> {
    ensure!(!stored.is_empty(), "the benchmark stored nothing to read: raise --seconds");
    // Each once: a second time it would come out of a cache.
    let mut chunks = stored.iter();
    let start = || chunks.next().map(|(id, _)| ((), client.get(*id)));
    pump(load, stop, "get", start, |(), fetched: Fetched| {
        let bytes: usize = fetched.pieces.iter().map(Bytes::len).sum();
        (bytes as u64, fetched.took.as_nanos() as f64 / 1e6, fetched.rounds)
    })
}
