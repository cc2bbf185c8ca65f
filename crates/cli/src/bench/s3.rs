//! Objects through the S3 endpoint of a gateway, beside the same bytes as chunks without it.
//!
//! Clients are threads of this process, each with a connection of its own and one request at a time. Addresses are
//! signed, bodies are not (as with TLS): the gateway computes entity tags and checksums as always.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use protocol::transport::Transport;
use rusty_s3::Method;
use serde::Serialize;
use ureq::{Agent, Body, SendBody};

use super::{Bench, Load, get_for, put_for};
use crate::args::BenchArgs;
use crate::client::S3;
use crate::node_cluster::NodeCluster;
use crate::output::{self, json, line, step_bar};
use crate::process::most_resident;
use crate::{gateway_file, local_cluster, running, units};

/// Sizes of objects, unless others are asked for.
const SIZES: [u64; 3] = [4 << 10, 128 << 10, 1 << 20];
/// Requests at once, unless others are asked for.
const DEPTHS: [usize; 2] = [8, 32];
const BUCKET: &str = "bench";
/// How long the gateway may take to begin.
const START: Duration = Duration::from_secs(30);
/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How much of an object differs from all others, and how often.
const BLOCK: usize = 1 << 20;

#[derive(Debug, Serialize)]
struct Report {
    copies: u8,
    targets: usize,
    seconds_each: u64,
    results: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    transport: String,
    size: u64,
    /// Requests at once.
    depth: usize,
    direction: &'static str,
    per_s: f64,
    mb_per_s: f64,
    /// The same sizes as chunks, without S3; none for what is larger than a chunk.
    chunks_mb_per_s: Option<f64>,
    /// With S3 over without.
    share: Option<f64>,
    p50_ms: f64,
    p99_ms: f64,
    /// To the head of the answer.
    first_byte_p50_ms: f64,
    first_byte_p99_ms: f64,
    /// Of targets, gateway and this process.
    cpu_s_per_gib: f64,
    /// The most memory that the gateway has had resident, bytes.
    gateway_resident: u64,
}

/// Runs `reservoir bench --s3`.
pub(super) fn run(args: &BenchArgs, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    let sizes = args.sizes.clone().unwrap_or(SIZES.to_vec());
    let depths = args.depth.map_or(DEPTHS.to_vec(), |depth| vec![depth]);
    let transports = args.transports.clone().unwrap_or(vec![Transport::REPLICAST_M]);
    let bar = step_bar("bench", (transports.len() * sizes.len() * depths.len()) as u64);
    let mut results = Vec::new();
    let (mut copies, mut targets) = (0, 0);
    for transport in transports {
        let mut bench = Bench::temporary(args, None, stop)?;
        (copies, targets) = (bench.config.copies, bench.config.targets.len());
        let (client, pid) = start_gateway(&mut bench, args, transport)?;
        let chunks =
            NodeCluster::start(&bench.config, Some(transport), false, Some(*depths.iter().max().unwrap_or(&1)))?;
        let mut left = 2 * sizes.len() * depths.len();
        for size in &sizes {
            for depth in &depths {
                let (limit, most) =
                    (Duration::from_secs(args.seconds), bench.room(&chunks, left, *size as usize, bench.copies())?);
                let load = Load { size: *size as usize, redundancy: None, depth: *depth, limit, most };
                let mut rows = client.measure(&mut bench, transport, &load)?;
                left -= 2;
                if *size <= u64::from(protocol::limits::CHUNK_BYTES) {
                    let (put, stored) = put_for(chunks.client(), &load, stop)?;
                    bench.forget_cache()?;
                    let get = get_for(chunks.client(), &stored, &load, stop)?;
                    for (row, run) in rows.iter_mut().zip([put, get]) {
                        row.chunks_mb_per_s = Some(run.mb_per_s());
                        row.share = Some(row.mb_per_s / run.mb_per_s().max(f64::MIN_POSITIVE));
                    }
                }
                rows.iter_mut().for_each(|row| row.gateway_resident = most_resident(pid));
                results.extend(rows);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    let report = Report { copies, targets, seconds_each: args.seconds, results };
    if args.json { json(&report) } else { print(&report) }
}

/// Starts a gateway with an S3 endpoint on a cluster made for the benchmark; its first user, and its process.
pub(super) fn start_gateway(
    bench: &mut Bench,
    args: &BenchArgs,
    transport: Transport,
) -> anyhow::Result<(Client, u32)> {
    let place = bench.directory.as_ref().context("the cluster has no directory")?.path().to_owned();
    local_cluster::complete(&place, None, None)?;
    args.inline.map_or(Ok(()), |bytes| gateway_file::set_inline(&place, bytes))?;
    // Its targets run: only what they do not use is looked at.
    let client = Client::of(&place)?;
    let settings = bench.config.path.with_file_name("gateway.toml");
    let gateway = running::start_gateway(&bench.config.path, &settings, Some(transport), false, None)?;
    let pid = gateway.pid();
    bench.children.get_or_insert_default().0.push(gateway);
    client.wait(bench)?;
    Ok((client, pid))
}

/// The client, with the keys of the cluster's first user.
pub(super) struct Client(S3);

/// What one thread did.
#[derive(Default)]
pub(super) struct Done {
    bytes: u64,
    pub(super) whole_ms: Vec<f64>,
    first_ms: Vec<f64>,
    keys: Vec<String>,
}

impl Client {
    fn of(place: &Path) -> anyhow::Result<Self> {
        S3::of(&place.join("cluster.toml"), None, PATIENCE, "see its log".to_owned()).map(Self)
    }

    pub(super) fn agent() -> Agent {
        Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE)).build().new_agent()
    }

    /// Where S3 is served.
    pub(super) fn server(&self) -> anyhow::Result<SocketAddr> {
        self.0.endpoint().trim_start_matches("http://").parse().context("the S3 address is none")
    }

    /// A signed address, good for an hour.
    pub(super) fn address(&self, method: Method, key: &str) -> anyhow::Result<String> {
        self.0.address(method, (BUCKET, key), &[], &[])
    }

    /// Waits until the gateway answers, and makes the bucket.
    fn wait(&self, bench: &mut Bench) -> anyhow::Result<()> {
        let deadline = Instant::now() + START;
        loop {
            let made = Self::agent().put(self.address(Method::Put, "")?).send_empty();
            if made.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            bench.children.get_or_insert_default().check()?;
            super::go_on(&bench.stop)?;
            ensure!(Instant::now() < deadline, "the gateway does not answer after {} s", START.as_secs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Puts for a while, then gets what was put, each object once.
    fn measure(&self, bench: &mut Bench, transport: Transport, load: &Load) -> anyhow::Result<[Row; 2]> {
        let base = base()?;
        let Load { depth, limit, most, .. } = *load;
        let size = load.size as u64;
        // Objects that may still be put.
        let left = AtomicU64::new(most / size);
        let stop = Arc::clone(&bench.stop);
        let before = bench.cpu();
        let begin = Instant::now();
        let puts = together(depth, |thread, failed| {
            let (agent, mut done) = (Self::agent(), Done::default());
            while begin.elapsed() < limit && !failed.load(Ordering::Relaxed) {
                super::go_on(&stop)?;
                if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err() {
                    break;
                }
                let key = format!("{size}-{depth}-{thread}-{}", done.keys.len());
                self.put(&agent, &key, &base, size, &mut done)?;
                done.keys.push(key);
            }
            Ok(done)
        })?;
        let put_seconds = begin.elapsed().as_secs_f64();
        bench.forget_cache()?;
        let between = bench.cpu();
        let begin = Instant::now();
        let gets = together(depth, |thread, failed| {
            let (agent, mut done) = (Self::agent(), Done::default());
            for key in &puts[thread].keys {
                if begin.elapsed() >= limit || failed.load(Ordering::Relaxed) {
                    break;
                }
                super::go_on(&stop)?;
                self.get(&agent, key, size, &mut done)?;
            }
            Ok(done)
        })?;
        let get_seconds = begin.elapsed().as_secs_f64();
        let after = bench.cpu();
        bench.children.get_or_insert_default().check()?;
        let row = |direction, done: Vec<Done>, took: f64, cpu: f64| {
            let bytes: u64 = done.iter().map(|done| done.bytes).sum();
            let sorted = |pick: fn(&Done) -> &Vec<f64>| {
                let mut all: Vec<f64> = done.iter().flat_map(|done| pick(done).iter().copied()).collect();
                all.sort_by(f64::total_cmp);
                all
            };
            let (whole, first) = (sorted(|done| &done.whole_ms), sorted(|done| &done.first_ms));
            Row {
                transport: transport.to_string(),
                size,
                depth,
                direction,
                per_s: whole.len() as f64 / took,
                mb_per_s: units::mb_per_s(bytes, took),
                chunks_mb_per_s: None,
                share: None,
                p50_ms: units::quantile(&whole, 50.0),
                p99_ms: units::quantile(&whole, 99.0),
                first_byte_p50_ms: units::quantile(&first, 50.0),
                first_byte_p99_ms: units::quantile(&first, 99.0),
                cpu_s_per_gib: cpu / (bytes as f64 / f64::from(1 << 30)).max(f64::MIN_POSITIVE),
                gateway_resident: 0,
            }
        };
        Ok([
            row("put", puts, put_seconds, between.total() - before.total()),
            row("get", gets, get_seconds, after.total() - between.total()),
        ])
    }

    pub(super) fn put(&self, agent: &Agent, key: &str, base: &[u8], size: u64, done: &mut Done) -> anyhow::Result<()> {
        let begin = Instant::now();
        let mut content = Content { base, salt: blake3::hash(key.as_bytes()), at: 0, end: size };
        let address = self.address(Method::Put, key)?;
        let request = agent.put(address).header("content-length", size.to_string());
        let answer = request.send(SendBody::from_reader(&mut content)).context("a put of the benchmark failed")?;
        done.took(begin, begin.elapsed(), good(answer, key)?)?;
        done.bytes += size;
        Ok(())
    }

    pub(super) fn get(&self, agent: &Agent, key: &str, size: u64, done: &mut Done) -> anyhow::Result<()> {
        let begin = Instant::now();
        let answer = agent.get(self.address(Method::Get, key)?).call();
        let answer = good(answer.context("a get of the benchmark failed")?, key)?;
        let bytes = done.took(begin, begin.elapsed(), answer)?;
        ensure!(bytes == size, "{key} came back with {bytes} bytes and should have {size}");
        done.bytes += bytes;
        Ok(())
    }
}

impl Done {
    /// The answer's head came after `first`; reads the rest.
    fn took(&mut self, begin: Instant, first: Duration, answer: Body) -> anyhow::Result<u64> {
        let bytes =
            io::copy(&mut answer.into_reader(), &mut io::sink()).context("an answer of the benchmark broke off")?;
        self.first_ms.push(first.as_secs_f64() * 1e3);
        self.whole_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        Ok(bytes)
    }
}

fn good(answer: ureq::http::Response<Body>, key: &str) -> anyhow::Result<Body> {
    let status = answer.status();
    let mut body = answer.into_body();
    if !status.is_success() {
        anyhow::bail!("{key}: the gateway answered {status}: {}", body.read_to_string().unwrap_or_default());
    }
    Ok(body)
}

/// Runs so many threads, and ends all when one fails.
fn together(
    count: usize,
    work: impl Fn(usize, &AtomicBool) -> anyhow::Result<Done> + Sync,
) -> anyhow::Result<Vec<Done>> {
    let failed = AtomicBool::new(false);
    let one = |thread| work(thread, &failed).inspect_err(|_| failed.store(true, Ordering::Relaxed));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|thread| scope.spawn(move || one(thread))).collect();
        let ended =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ended.collect()
    })
}

/// Bytes that look random.
pub(super) fn base() -> anyhow::Result<Vec<u8>> {
    let mut base = vec![0; BLOCK];
    crate::demo::Content::new(1).read_exact(&mut base).context("no content could be made")?;
    Ok(base)
}

/// The bytes of an object: each block begins with some that no other has, so that nothing is there already.
struct Content<'a> {
    base: &'a [u8],
    salt: blake3::Hash,
    at: u64,
    end: u64,
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (block, at) = (self.at / BLOCK as u64, (self.at % BLOCK as u64) as usize);
        let mut stamp = *self.salt.as_bytes();
        stamp.iter_mut().zip(block.to_le_bytes()).for_each(|(byte, number)| *byte ^= number);
        let from = if at < stamp.len() { &stamp[at..] } else { &self.base[at..] };
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let count = from.len().min(buffer.len()).min(left);
        buffer[..count].copy_from_slice(&from[..count]);
        self.at += count as u64;
        Ok(count)
    }
}

fn print(report: &Report) -> anyhow::Result<()> {
    line(&format!(
        "objects through a gateway's S3 endpoint, {} copies on {} targets, each acknowledged when it is on disk; beside chunks \
         of the same sizes without S3; client, gateway and targets share this machine",
        report.copies, report.targets
    ))?;
    let row = |row: &Row| {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        vec![
            row.transport.clone(),
            units::size(row.size),
            row.depth.to_string(),
            row.direction.to_owned(),
            format!("{:.0}", row.per_s),
            format!("{:.1}", row.mb_per_s),
            or_none(row.chunks_mb_per_s.map(|rate| format!("{rate:.1}"))),
            or_none(row.share.map(|share| format!("{:.0} %", share * 100.0))),
            format!("{:.2}", row.p50_ms),
            format!("{:.2}", row.p99_ms),
            format!("{:.2}", row.first_byte_p50_ms),
            format!("{:.2}", row.first_byte_p99_ms),
            format!("{:.2}", row.cpu_s_per_gib),
            units::size(row.gateway_resident),
        ]
    };
    let header = [
        "transport",
        "object",
        "at once",
        "",
        "per s",
        "MB/s",
        "without S3",
        "share",
        "p50 ms",
        "p99 ms",
        "first byte p50",
        "p99",
        "CPU s/GiB",
        "gateway memory",
    ];
    output::table(&header, report.results.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn objects_differ_in_every_block() {
        let base = base().unwrap();
        let read = |key: &str| {
            let mut bytes = vec![];
            let mut content =
                Content { base: &base, salt: blake3::hash(key.as_bytes()), at: 0, end: 2 * BLOCK as u64 + 5 };
            content.read_to_end(&mut bytes).unwrap();
            bytes
        };
        let (a, b) = (read("a"), read("b"));
        assert_eq!(a.len(), 2 * BLOCK + 5);
        assert_eq!(a, read("a"));
        let blocks: Vec<&[u8]> = a.chunks(BLOCK).chain(b.chunks(BLOCK)).collect();
        for (n, block) in blocks.iter().enumerate() {
            assert!(!blocks[..n].contains(block), "block {n} is twice there");
        }
    }
}
