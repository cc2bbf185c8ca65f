//! The messenger alone: how many messages a second its workers verify and answer, by policy, size and skew.

mod clients;
mod report;
mod server;
mod skew;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::ensure;
use protocol::messenger::Policy;
use serde::Serialize;

use super::go_on;
use crate::args::{BenchArgs, Skew, Switches};
use crate::output::step_bar;
use crate::units;

use clients::Clients;
use server::{Dispatching, Server};

const SIZES: [u64; 4] = [4 << 10, 8 << 10, 64 << 10, 1 << 20];
/// Messages are no longer: a chunk is not.
const LONGEST: u64 = 4 << 20;
/// Before anything is counted. The balancer that looks every 5 s has looked once by then, where it can help.
const WARM_UP: (Duration, Duration) = (Duration::from_millis(700), Duration::from_millis(5_700));
/// How often it is looked at what each worker does.
const SAMPLE: Duration = Duration::from_millis(100);

/// Which way payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Direction {
    Write,
    Read,
}

/// What is measured of each policy.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Case {
    size: u64,
    direction: Direction,
    skew: Skew,
}

/// How it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Variant {
    #[serde(serialize_with = "in_words")]
    policy: Policy,
    /// Whether each worker has a companion.
    dual: bool,
    /// Connections of each client.
    lanes: usize,
    /// Whether what comes over them is handed on in the order of sending.
    ordered: bool,
}

impl Variant {
    /// What ratios are to.
    const ORIGINAL: Self = Self { policy: Policy::RoundRobin, dual: false, lanes: 1, ordered: false };

    fn of(policy: Policy, switches: Switches, lanes: usize) -> Self {
        let lanes = if switches.has_lanes() { lanes } else { 1 };
        Self { policy, dual: switches.has_dual(), lanes, ordered: switches == Switches::Ordered }
    }

    /// In a table.
    fn name(self) -> String {
        let lanes = if self.lanes > 1 { format!(", {} lanes", self.lanes) } else { String::new() };
        let (dual, order) = (if self.dual { ", dual" } else { "" }, if self.ordered { ", in order" } else { "" });
        format!("{}{dual}{lanes}{order}", self.policy)
    }
}

/// What is measured in all cases.
#[derive(Clone, Copy, Debug)]
struct Shape {
    workers: usize,
    /// Clients, each of which has one connection, or several lanes.
    connections: usize,
    dispatch: Dispatching,
}

/// One measurement.
#[derive(Clone, Debug)]
struct Measured {
    per_second: f64,
    /// Of the messages of all connections.
    p50_ms: f64,
    p99_ms: f64,
    /// The same of those that are not heavy; none where all are.
    light_p99_ms: Option<f64>,
    /// CPU time for a message: of the workers, and of the clients.
    server_us: f64,
    client_us: f64,
    moves: u64,
    /// Bytes that each worker has read or sent in each [`SAMPLE`].
    bytes: Vec<Vec<u64>>,
}

/// A row of the result: a case by a variant.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    variant: Variant,
    size: u64,
    direction: Direction,
    skew: Skew,
    workers: usize,
    connections: usize,
    /// How long a worker is busy with a message after it was verified.
    dispatch_us: u32,
    messages_per_s: f64,
    mb_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// The same of those that are not heavy; none where all are.
    light_p99_ms: Option<f64>,
    /// To plain round-robin in the same round: the geometric mean of all rounds, the least, and the most.
    ratio: Option<f64>,
    ratio_least: Option<f64>,
    ratio_most: Option<f64>,
    /// What `ratio` can be at most on these cores, by the CPU time that a message needs here and with plain round-robin: when
    /// the heavy connections have a worker each, as far as there are so many, instead of those that round-robin gave them.
    bound: f64,
    cpu_us_of_server: f64,
    cpu_us_of_clients: f64,
    /// Connections that moved in a second.
    moves_per_s: f64,
}

fn in_words<S: serde::Serializer>(policy: &Policy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(policy)
}

/// What has been measured of a case by a variant: in each round once.
#[derive(Debug)]
struct Cell {
    case: Case,
    variant: Variant,
    rounds: Vec<Measured>,
}

impl Cell {
    /// Of all rounds.
    fn mean(&self, of: &dyn Fn(&Measured) -> f64) -> f64 {
        self.rounds.iter().map(of).sum::<f64>() / self.rounds.len() as f64
    }
}

/// Runs `reservoir bench --messenger`.
pub(super) fn run(args: &BenchArgs, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    let own = &args.messenger;
    let sizes = args.sizes.clone().unwrap_or(SIZES.to_vec());
    for size in &sizes {
        ensure!((1..=LONGEST).contains(size), "--sizes {}: choose up to {}", units::size(*size), units::size(LONGEST));
    }
    let workers = if args.workers == 0 { sim::perf::cores().clamp(2, 16) } else { args.workers.into() };
    ensure!(own.rounds > 0, "--rounds 0 measures nothing: give at least 1");
    let least = skew::HEAVY * workers;
    let connections = usize::from(own.connections);
    ensure!(
        connections >= least,
        "--connections {connections}: with {workers} workers choose at least {least}, so that each can have the heavy ones"
    );
    let directory = report::directory(own)?;
    let lanes = args.lanes.map_or(2, usize::from);
    let with = |switches: Switches| own.policies.iter().map(move |policy| Variant::of(*policy, switches, lanes));
    let variants: Vec<Variant> = own.with.iter().flat_map(|switches| with(*switches)).collect();
    let mut cells = Vec::new();
    for size in sizes {
        for direction in [Direction::Write, Direction::Read] {
            for skew in &own.skews {
                let case = Case { size, direction, skew: *skew };
                cells.extend(variants.iter().map(|variant| Cell { case, variant: *variant, rounds: Vec::new() }));
            }
        }
    }
    let shape = Shape { workers, connections, dispatch: Dispatching::of(own.dispatch_us) };
    measure(args, (own.rounds, variants.len()), &shape, &mut cells, stop)?;
    let rows: Vec<Row> = cells.iter().map(|cell| row(cell, &cells, &shape)).collect();
    report::conclude(&rows, &cells, args.json, directory)
}

/// Each round measures every variant of a case one after the other, in turns of who is first.
fn measure(
    args: &BenchArgs,
    (rounds, variants): (u32, usize),
    shape: &Shape,
    cells: &mut [Cell],
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let bar = step_bar("messenger", (rounds as usize * cells.len()) as u64);
    let seconds = Duration::from_secs(args.seconds);
    for round in 0..rounds {
        for cells in cells.chunks_mut(variants) {
            let first = round as usize % cells.len();
            for nth in 0..cells.len() {
                go_on(stop)?;
                let cell = &mut cells[(first + nth) % variants];
                cell.rounds.push(one(cell.case, cell.variant, shape, (round, seconds))?);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn one(case: Case, variant: Variant, shape: &Shape, (round, seconds): (u32, Duration)) -> anyhow::Result<Measured> {
    let (server, sockets) = Server::start(shape, variant)?;
    let Shape { workers, connections, .. } = *shape;
    let plan = skew::Plan { skew: case.skew, workers, connections, seed: round.into() };
    let clients = Clients::start(case, plan, variant.lanes, sockets)?;
    let may_help = variant.policy == Policy::Bytes && case.skew != Skew::Even;
    std::thread::sleep(if may_help { WARM_UP.1 } else { WARM_UP.0 });
    let moves = server.moves();
    clients.count();
    let (began, cpu) = (Instant::now(), process_cpu());
    let mut bytes = Vec::new();
    let mut before = server.bytes();
    while began.elapsed() < seconds {
        std::thread::sleep(SAMPLE.min(seconds.saturating_sub(began.elapsed())));
        let now = server.bytes();
        bytes.push(now.iter().zip(&before).map(|(now, before)| now - before).collect());
        before = now;
    }
    let (elapsed, cpu) = (began.elapsed().as_secs_f64(), process_cpu() - cpu);
    let ended = clients.end()?;
    let moves = server.moves() - moves;
    server.end()?;
    let answered = ended.answered.max(1) as f64;
    let of = |quantile| ended.latency.value_at_quantile(quantile) as f64 / 1e6;
    Ok(Measured {
        per_second: ended.answered as f64 / elapsed,
        p50_ms: of(0.5),
        p99_ms: of(0.99),
        light_p99_ms: (!ended.light.is_empty()).then(|| ended.light.value_at_quantile(0.99) as f64 / 1e6),
        server_us: (cpu - ended.cpu).max(0.0) * 1e6 / answered,
        client_us: ended.cpu * 1e6 / answered,
        moves,
        bytes,
    })
}

fn process_cpu() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

fn row(cell: &Cell, cells: &[Cell], shape: &Shape) -> Row {
    let Shape { workers, connections, dispatch } = *shape;
    let mean = |of: &dyn Fn(&Measured) -> f64| cell.mean(of);
    let original = cells.iter().find(|other| other.case == cell.case && other.variant == Variant::ORIGINAL);
    let ratios: Option<Vec<f64>> = original.map(|original| {
        cell.rounds.iter().zip(&original.rounds).map(|(ours, theirs)| ours.per_second / theirs.per_second).collect()
    });
    let geometric =
        |ratios: &Vec<f64>| (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let (server, client) = (mean(&|m| m.server_us), mean(&|m| m.client_us));
    let plain = original.unwrap_or(cell);
    let before = (plain.mean(&|m| m.server_us), plain.mean(&|m| m.client_us));
    let Variant { dual, lanes, .. } = cell.variant;
    let threads = if dual { 2 } else { 1 };
    // By the threads that are at it, the cores, and the one thread of the clients.
    let most = |busy: usize, (server, client): (f64, f64)| {
        (busy as f64 / server).min(sim::perf::cores() as f64 / (server + client)).min(1.0 / client)
    };
    let bounds = (0..cell.rounds.len() as u64).map(|seed| {
        let plan = skew::Plan { skew: cell.case.skew, workers, connections, seed };
        let heavy = plan.heavy(Duration::ZERO);
        let given: BTreeSet<usize> = heavy.iter().map(|connection| connection % workers).collect();
        most(workers.min(heavy.len() * lanes) * threads, (server, client)) / most(given.len(), before)
    });
    let bound = bounds.sum::<f64>() / cell.rounds.len() as f64;
    Row {
        variant: cell.variant,
        size: cell.case.size,
        direction: cell.case.direction,
        skew: cell.case.skew,
        workers,
        connections,
        dispatch_us: dispatch.micros,
        messages_per_s: mean(&|m| m.per_second),
        mb_per_s: mean(&|m| m.per_second) * cell.case.size as f64 / 1e6,
        p50_ms: mean(&|m| m.p50_ms),
        p99_ms: mean(&|m| m.p99_ms),
        light_p99_ms: cell.rounds[0].light_p99_ms.map(|_| mean(&|m| m.light_p99_ms.unwrap_or(0.0))),
        ratio: ratios.as_ref().map(geometric),
        ratio_least: ratios.as_ref().map(|ratios| ratios.iter().copied().fold(f64::MAX, f64::min)),
        ratio_most: ratios.as_ref().map(|ratios| ratios.iter().copied().fold(0.0, f64::max)),
        bound,
        cpu_us_of_server: server,
        cpu_us_of_clients: client,
        moves_per_s: mean(&|m| m.moves as f64 / (m.bytes.len() as f64 * SAMPLE.as_secs_f64())),
    }
}
