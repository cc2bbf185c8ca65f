//! What strangers cost those who have a key: the latency of signed puts and gets with a crowd of connections that never
//! sign, beside that without, in turns, so that whatever else the machine does meets both alike.
//!
//! The clients leave the machine idle most of the time: what is measured is how long a request waits, not what is left of
//! the processors. Half of them keep their connections, and half come anew for each pair of requests.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use protocol::transport::Transport;
use rustix::net::{AddressFamily, SocketType};
use rusty_s3::Method;
use serde::Serialize;

use super::Bench;
use super::s3::{Client, Done, base, start_gateway};
use crate::args::BenchArgs;
use crate::output::{self, json, line, step_bar};
use crate::process::{cpu_seconds, open_many_files, stolen_seconds};
use crate::units;

/// How often each crowd is measured.
const ROUNDS: usize = 5;
/// Clients, unless another number is asked for.
const CLIENTS: usize = 8;
/// How often a client puts and gets.
const PACE: Duration = Duration::from_millis(50);
/// Bytes of an object.
const SIZE: u64 = 100_000;
/// Addresses from which strangers come when they have their own.
const ADDRESSES: usize = 20;
/// How often a stranger checks whether it was sent away, and comes again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long they rest at most before they check whether it is over.
const LOOK: Duration = Duration::from_millis(10);

/// The connections beside the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crowd {
    None,
    /// From addresses of their own.
    Elsewhere,
    /// From the clients' address, as behind a proxy.
    Here,
    /// From addresses of their own, and all at the same moments.
    ElsewhereAtOnce,
}

impl Crowd {
    const ALL: [Self; 4] = [Self::None, Self::Elsewhere, Self::Here, Self::ElsewhereAtOnce];

    const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Elsewhere => "elsewhere",
            Self::Here => "at the clients' address",
            Self::ElsewhereAtOnce => "elsewhere, all at once",
        }
    }

    /// The address from which the `n`th comes.
    fn address(self, n: usize) -> Ipv4Addr {
        match self {
            Self::Elsewhere | Self::ElsewhereAtOnce => Ipv4Addr::new(127, 0, 0, 2 + (n % ADDRESSES) as u8),
            Self::None | Self::Here => Ipv4Addr::LOCALHOST,
        }
    }

    /// When the `n`th of `count` checks for the `round`th time whether it was sent away.
    fn next_check(self, n: usize, count: usize, round: u32) -> Duration {
        AGAIN * round
            + if self == Self::ElsewhereAtOnce { Duration::ZERO } else { AGAIN * n as u32 / count.max(1) as u32 }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    strangers: usize,
    clients: usize,
    rounds: usize,
    seconds_each: u64,
    results: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    strangers: &'static str,
    /// Whether the clients keep their connections.
    kept: bool,
    requests: usize,
    p50_ms: f64,
    p99_ms: f64,
    longest_ms: f64,
    /// p99 by that without strangers: the median of the rounds.
    ratio: f64,
    /// In each round.
    ratios: Vec<f64>,
    /// Connections of strangers, each second.
    came_per_s: f64,
    /// Of one core, what the strangers themselves take, 0 to 1.
    strangers_cpu: f64,
    /// Of one core, what the gateway takes.
    gateway_cpu: f64,
    /// Of all cores, what the host of a virtual machine took for others, 0 to 1.
    host_took: f64,
}

/// What one crowd did in one round.
#[derive(Default)]
struct Measured {
    /// Milliseconds of each request, sorted: on connections that are kept, and on new ones.
    ms: [Vec<f64>; 2],
    came: usize,
    strangers_cpu: f64,
    gateway_cpu: f64,
    /// In processor seconds.
    host_took: f64,
}

/// Runs `reservoir bench --strangers`.
pub(super) fn run(args: &BenchArgs, strangers: usize, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    open_many_files();
    let clients = args.depth.unwrap_or(CLIENTS);
    let transport = args.transports.as_ref().and_then(|list| list.first()).copied().unwrap_or(Transport::REPLICAST_M);
    let mut bench = Bench::temporary(args, None, stop)?;
    let (client, pid) = start_gateway(&mut bench, args, transport)?;
    let mut load = Load { bench, client, pid, base: base()?, clients, limit: Duration::from_secs(args.seconds) };
    load.measure(Crowd::None, 0)?;
    let bar = step_bar("bench", (ROUNDS * Crowd::ALL.len()) as u64);
    let mut rounds: [Vec<Measured>; Crowd::ALL.len()] = Default::default();
    for _ in 0..ROUNDS {
        for (crowd, measured) in Crowd::ALL.into_iter().zip(&mut rounds) {
            measured.push(load.measure(crowd, strangers)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let results = Crowd::ALL.into_iter().zip(&rounds);
    let results =
        results.flat_map(|(crowd, measured)| [0, 1].map(|kind| row(crowd, kind, measured, &rounds[0], args.seconds)));
    let results = results.collect();
    let report = Report { strangers, clients, rounds: ROUNDS, seconds_each: args.seconds, results };
    if args.json { json(&report) } else { print(&report) }
}

fn row(crowd: Crowd, kind: usize, measured: &[Measured], without: &[Measured], seconds: u64) -> Row {
    let sorted = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all
    };
    let all = sorted(measured.iter().flat_map(|round| round.ms[kind].iter().copied()).collect());
    let p99 = |round: &Measured| units::quantile(&round.ms[kind], 99.0);
    let ratios: Vec<f64> =
        measured.iter().zip(without).map(|(with, without)| p99(with) / p99(without).max(f64::MIN_POSITIVE)).collect();
    let each_second = |what: fn(&Measured) -> f64| {
        measured.iter().map(what).sum::<f64>() / (seconds.max(1) as f64 * measured.len().max(1) as f64)
    };
    Row {
        strangers: crowd.name(),
        kept: kind == 0,
        requests: all.len(),
        p50_ms: units::quantile(&all, 50.0),
        p99_ms: units::quantile(&all, 99.0),
        longest_ms: units::quantile(&all, 100.0),
        ratio: units::quantile(&sorted(ratios.clone()), 50.0),
        ratios,
        came_per_s: each_second(|round| round.came as f64),
        strangers_cpu: each_second(|round| round.strangers_cpu),
        gateway_cpu: each_second(|round| round.gateway_cpu),
        host_took: each_second(|round| round.host_took)
            / std::thread::available_parallelism().map_or(1, usize::from) as f64,
    }
}

/// A cluster with clients.
struct Load {
    bench: Bench,
    client: Client,
    /// The gateway's process.
    pid: u32,
    base: Vec<u8>,
    clients: usize,
    limit: Duration,
}

impl Load {
    fn measure(&mut self, crowd: Crowd, strangers: usize) -> anyhow::Result<Measured> {
        let (over, stat) = (AtomicBool::new(false), format!("/proc/{}/stat", self.pid));
        let strangers = if crowd == Crowd::None { 0 } else { strangers };
        let this = &*self;
        let (here, all_here) = mpsc::channel();
        let (clients, came, gateway_cpu, host_took) = std::thread::scope(|scope| {
            let over = &over;
            let come = scope.spawn(move || this.strangers(crowd, strangers, here, over));
            // When they cannot come, they say so at the end.
            let _ = all_here.recv();
            let (cpu, stolen) = (cpu_seconds(&stat), stolen_seconds());
            let threads: Vec<_> = (0..this.clients).map(|n| scope.spawn(move || this.ask(n))).collect();
            let clients: Vec<anyhow::Result<Done>> = threads.into_iter().map(joined).collect();
            over.store(true, Ordering::SeqCst);
            (clients, joined(come), cpu_seconds(&stat) - cpu, stolen_seconds() - stolen)
        });
        let (came, strangers_cpu) = came?;
        let mut measured = Measured { ms: Default::default(), came, strangers_cpu, gateway_cpu, host_took };
        for (n, done) in clients.into_iter().enumerate() {
            measured.ms[n % 2].extend(done?.whole_ms);
        }
        measured.ms.iter_mut().for_each(|ms| ms.sort_by(f64::total_cmp));
        self.bench.children.get_or_insert_default().check()?;
        Ok(measured)
    }

    /// Puts and gets for a while.
    fn ask(&self, n: usize) -> anyhow::Result<Done> {
        let (begin, mut done, mut agent) = (Instant::now(), Done::default(), Client::agent());
        let mut next = begin + PACE * n as u32 / self.clients as u32;
        for round in 0_u32.. {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            if begin.elapsed() >= self.limit {
                break;
            }
            super::go_on(&self.bench.stop)?;
            if n % 2 == 1 {
                agent = Client::agent();
            }
            let key = format!("{n}-{}", round % 8);
            self.client.put(&agent, &key, &self.base, SIZE, &mut done)?;
            self.client.get(&agent, &key, SIZE, &mut done)?;
            next = (next + PACE).max(Instant::now());
        }
        Ok(done)
    }

    /// Strangers who come again when they were sent away, until it is `over`. When all are `here`, it is counted how often any
    /// comes again, and the seconds of a processor that they take.
    fn strangers(
        &self,
        crowd: Crowd,
        count: usize,
        here: mpsc::Sender<()>,
        over: &AtomicBool,
    ) -> anyhow::Result<(usize, f64)> {
        let come = |n: usize| -> anyhow::Result<TcpStream> {
            let mut stream = connect(self.client.server()?, crowd.address(n)).context("a stranger cannot connect")?;
            stream.set_nonblocking(true).context("a stranger's socket cannot be prepared")?;
            // It may have been sent away already.
            let _ = stream.write(&self.undone(n)?);
            Ok(stream)
        };
        let cpu = || cpu_seconds("/proc/thread-self/stat");
        let (begin, mut held, mut buffer) = (Instant::now(), Vec::with_capacity(count), [0; 4_096]);
        for n in 0..count {
            rest(begin + crowd.next_check(n, count, 0), over);
            held.push(come(n)?);
        }
        // Whoever waits for it may have failed.
        let _ = here.send(());
        let (mut came, before) = (0, cpu());
        for round in 1_u32.. {
            for (n, stream) in held.iter_mut().enumerate() {
                rest(begin + crowd.next_check(n, count, round), over);
                if over.load(Ordering::SeqCst) {
                    break;
                }
                let gone = match stream.read(&mut buffer) {
                    Ok(bytes) => bytes == 0,
                    Err(error) => error.kind() != ErrorKind::WouldBlock,
                };
                if gone {
                    *stream = come(n)?;
                    came += 1;
                }
            }
            if held.is_empty() || over.load(Ordering::SeqCst) {
                break;
            }
        }
        Ok((came, cpu() - before))
    }

    /// What a stranger sends: a kind for each number.
    fn undone(&self, n: usize) -> anyhow::Result<Vec<u8>> {
        let head = |line: &str, headers: &str| -> anyhow::Result<Vec<u8>> {
            Ok(format!("{line} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", self.client.server()?).into_bytes())
        };
        let wrong = |method: Method| -> anyhow::Result<String> {
            let signed = self.client.address(method, "never")?;
            let path = signed.splitn(4, '/').nth(3).context("the S3 address has no path")?;
            Ok(format!("/{path}").replace("X-Amz-Signature=", "X-Amz-Signature=0"))
        };
        let long = "Content-Length: 1000000\r\n";
        Ok(match n % 6 {
            0 => vec![],
            1 => b"GET / HTTP/1.1\r\nHo".to_vec(),
            2 => [head("PUT /bench/never", long)?, b"abc".to_vec()].concat(),
            3 => [head(&format!("PUT {}", wrong(Method::Put)?), long)?, b"abc".to_vec()].concat(),
            4 => head("GET /bench/never", "")?.repeat(20),
            _ => head(&format!("GET {}", wrong(Method::Get)?), "")?,
        })
    }
}

/// Rests until then, or until it is `over`.
fn rest(until: Instant, over: &AtomicBool) {
    while !over.load(Ordering::SeqCst) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(LOOK));
    }
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A connection that comes from an address of this machine.
fn connect(server: SocketAddr, from: Ipv4Addr) -> std::io::Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(from, 0))?;
    rustix::net::connect(&socket, &server)?;
    Ok(socket.into())
}

fn print(report: &Report) -> anyhow::Result<()> {
    line(&format!(
        "{} clients put and get 100 kB objects, {} times a second each; beside them {} connections of strangers, who come \
         again within a second when they are sent away; {} rounds of {} s each, in turns; clients, strangers, gateway and \
         targets share this machine",
        report.clients,
        1_000 / PACE.as_millis(),
        report.strangers,
        report.rounds,
        report.seconds_each
    ))?;
    let row = |row: &Row| {
        let ratios: Vec<String> = row.ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        vec![
            row.strangers.to_owned(),
            if row.kept { "kept" } else { "new" }.to_owned(),
            row.requests.to_string(),
            format!("{:.2}", row.p50_ms),
            format!("{:.2}", row.p99_ms),
            format!("{:.1}", row.longest_ms),
            format!("{:.2}", row.ratio),
            ratios.join(" "),
            format!("{:.0}", row.came_per_s),
            format!("{:.0} %", row.strangers_cpu * 100.0),
            format!("{:.0} %", row.gateway_cpu * 100.0),
            format!("{:.0} %", row.host_took * 100.0),
        ]
    };
    let header = [
        "strangers",
        "connections",
        "requests",
        "p50 ms",
        "p99 ms",
        "longest",
        "p99 ratio",
        "of each round",
        "came per s",
        "their CPU",
        "gateway CPU",
        "host took",
    ];
    output::table(&header, report.results.iter().map(row).collect())?;
    ensure!(report.results.iter().all(|row| row.requests > 0), "nothing was measured: give more --seconds");
    Ok(())
}
