//! How often transfers meet at a target when puts come at random times: the daemons' own counts beside Poisson's law.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use node::Client;
use protocol::id::ChunkId;
use protocol::rng::Rng;
use protocol::transport::Transport;
use serde::Serialize;
use sim::theory::poisson_at_least;

use super::{Bench, DEPTH, go_on};
use crate::args::BenchArgs;
use crate::node_cluster::NodeCluster;
use crate::output::{self, json, step_bar};
use crate::units;

/// What is compared, and the bytes of a put, unless something else is asked for.
const TRANSPORTS: [Transport; 2] = [Transport::HASH, Transport::REPLICAST_M];
const SIZE: u64 = 1 << 10;
/// Of the times at which puts come, and of their contents.
const SEED: u64 = 1;
/// Longest sleep, so that Ctrl-C is soon noticed.
const NAP: Duration = Duration::from_millis(100);

#[derive(Debug, Serialize)]
struct Row {
    transport: String,
    size: u64,
    /// Puts that were asked for in a second.
    puts_per_s: f64,
    /// Intervals counted at all targets, each as long as the mean time between two transfers at its target.
    intervals: u64,
    /// Percent of them in which nothing, two or more, four or more began.
    none: f64,
    two_or_more: f64,
    four_or_more: f64,
    /// Percent of the transfers that begin before an earlier one at the same target has had its time.
    met: f64,
    /// Copies of the most loaded target over the mean.
    most_over_mean: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// Runs `reservoir bench --conflicts RATE`.
pub(super) fn run(args: &BenchArgs, rate: f64, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    ensure!(rate.is_finite() && rate > 0.0, "--conflicts {rate}: give the puts a second that are asked for");
    let transports = args.transports.clone().unwrap_or(TRANSPORTS.to_vec());
    let sizes = args.sizes.clone().unwrap_or(vec![SIZE]);
    let bar = step_bar("bench", (transports.len() * sizes.len()) as u64);
    let mut rows = Vec::new();
    for transport in &transports {
        for size in &sizes {
            // Each on targets of its own, which have counted nothing yet.
            let bench = Bench::temporary(args, None, stop)?;
            let cluster = NodeCluster::start(&bench.config, Some(*transport), false, Some(DEPTH))?;
            let load = Load { rate, size: *size as usize, limit: Duration::from_secs(args.seconds) };
            let (asked, samples) = load.run(cluster.client(), stop)?;
            let pages = bench.config.targets.iter().filter_map(|target| target.metrics).map(page);
            let counted = Counted::of(&pages.collect::<anyhow::Result<Vec<_>>>()?, *transport);
            rows.push(counted.row(transport.to_string(), *size, asked, &samples));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if args.json { json(&rows) } else { print(&rows) }
}

/// Puts at random times, whatever becomes of those before.
struct Load {
    /// In a second.
    rate: f64,
    size: usize,
    limit: Duration,
}

impl Load {
    /// How many a second there were, and the milliseconds of each, sorted.
    fn run(&self, client: &Client, stop: &AtomicBool) -> anyhow::Result<(f64, Vec<f64>)> {
        let (sender, tickets) = channel();
        let waiter = std::thread::spawn(move || -> anyhow::Result<Vec<f64>> {
            let mut samples = Vec::new();
            for ticket in tickets {
                let ticket: node::Ticket<Result<protocol::initiator::Stored, protocol::initiator::PutError>> = ticket;
                let stored = ticket.wait()?.context("a put of the benchmark failed")?;
                samples.push(stored.took.as_nanos() as f64 / 1e6);
            }
            samples.sort_by(f64::total_cmp);
            Ok(samples)
        });
        let mut rng = Rng::new(SEED);
        let mut payload = vec![0; self.size];
        payload.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
        let (begin, mut due, mut asked) = (Instant::now(), Duration::ZERO, 0_u64);
        loop {
            // From one to the next an exponential time.
            let uniform = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            due += Duration::from_secs_f64(-(1.0 - uniform).ln() / self.rate);
            if due > self.limit {
                break;
            }
            while let Some(rest) = due.checked_sub(begin.elapsed()).filter(|rest| !rest.is_zero()) {
                go_on(stop)?;
                std::thread::sleep(rest.min(NAP));
            }
            asked += 1;
            payload[..8].copy_from_slice(&asked.to_le_bytes());
            let ticket = client.put(ChunkId::of_payload(&payload), Bytes::copy_from_slice(&payload));
            if sender.send(ticket).is_err() {
                break;
            }
        }
        drop(sender);
        let seconds = begin.elapsed().as_secs_f64();
        let samples = waiter.join().map_err(|_| anyhow::anyhow!("the thread that waits for puts has panicked"))??;
        Ok((asked as f64 / seconds, samples))
    }
}

fn page(address: std::net::SocketAddr) -> anyhow::Result<String> {
    let get = || ureq::get(format!("http://{address}/metrics")).call()?.body_mut().read_to_string();
    get().with_context(|| format!("a target does not answer on {address}"))
}

/// What all targets counted.
#[derive(Debug, Default)]
struct Counted {
    /// Intervals in which 0, 1, 2, 3, and 4 or more transfers began.
    intervals: [u64; 5],
    met: u64,
    /// Copies stored by each.
    copies: Vec<u64>,
}

impl Counted {
    /// Without negotiation what is offered is what is sent; otherwise what is accepted.
    fn of(pages: &[String], transport: Transport) -> Self {
        let of = if !transport.reserved { "offered" } else { "accepted" };
        let of = format!("of=\"{of}\"");
        let mut counted = Self::default();
        let lines = pages.iter().flat_map(|page| page.lines());
        for (name, value) in lines.filter_map(|line| line.rsplit_once(' ')) {
            let value: u64 = value.parse().unwrap_or(0);
            if name.starts_with("reservoir_target_copies_stored_total{") {
                counted.copies.push(value);
            } else if name.starts_with("reservoir_target_met{") && name.contains(&of) {
                counted.met += value;
            } else if name.starts_with("reservoir_target_intervals{") && name.contains(&of) {
                let came = |n: &usize| name.contains(&format!("came=\"{n}"));
                if let Some(n) = (0..counted.intervals.len()).find(came) {
                    counted.intervals[n] += value;
                }
            }
        }
        counted
    }

    fn row(&self, transport: String, size: u64, puts_per_s: f64, samples: &[f64]) -> Row {
        let all = self.intervals.iter().sum::<u64>();
        let (most, copies) = (self.copies.iter().max().copied().unwrap_or(0), self.copies.iter().sum::<u64>());
        // As many transfers as intervals.
        let percent = |count: u64| 100.0 * count as f64 / all.max(1) as f64;
        Row {
            transport,
            size,
            puts_per_s,
            intervals: all,
            none: percent(self.intervals[0]),
            two_or_more: percent(self.intervals[2..].iter().sum()),
            four_or_more: percent(self.intervals[4]),
            met: percent(self.met),
            most_over_mean: (most * self.copies.len() as u64) as f64 / copies.max(1) as f64,
            p50_ms: units::quantile(samples, 50.0),
            p99_ms: units::quantile(samples, 99.0),
        }
    }
}

fn print(rows: &[Row]) -> anyhow::Result<()> {
    output::line(
        "puts at random times to nine targets, three copies; an interval is as long as the mean time between two \
         transfers at a target, and the targets count",
    )?;
    let law = |least| format!("{:.2}", 100.0 * poisson_at_least(least, 1.0));
    let none = format!("{:.2}", 100.0 * (1.0 - poisson_at_least(1, 1.0)));
    let mut cells = vec![vec!["Poisson's law".to_owned()]];
    cells[0].extend(["", "", "", none.as_str(), law(2).as_str(), law(4).as_str(), "", "", "", ""].map(str::to_owned));
    cells.extend(rows.iter().map(|row| {
        let mut cells = vec![row.transport.clone(), units::size(row.size), format!("{:.0}", row.puts_per_s)];
        cells.push(row.intervals.to_string());
        let figures =
            [row.none, row.two_or_more, row.four_or_more, row.met, row.most_over_mean, row.p50_ms, row.p99_ms];
        cells.extend(figures.map(|figure| format!("{figure:.2}")));
        cells
    }));
    let header = [
        "transport",
        "put",
        "puts/s",
        "intervals",
        "none, %",
        "two or more, %",
        "four or more, %",
        "met, %",
        "most over mean",
        "p50 ms",
        "p99 ms",
    ];
    output::table(&header, cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_all_targets_are_added() {
        let page = |id: u32, none: u32| {
            format!(
                "# HELP x\nreservoir_target_intervals{{target=\"{id}\",of=\"offered\",came=\"0\"}} {none}\n\
                 reservoir_target_intervals{{target=\"{id}\",of=\"offered\",came=\"4+\"}} 2\n\
                 reservoir_target_intervals{{target=\"{id}\",of=\"accepted\",came=\"1\"}} 9\n\
                 reservoir_target_copies_stored_total{{target=\"{id}\"}} {none}\n\
                 reservoir_target_met{{target=\"{id}\",of=\"offered\"}} 3\n# EOF\n"
            )
        };
        let pages = [page(1, 10), page(2, 30)];
        let offered = Counted::of(&pages, Transport::HASH);
        assert_eq!((offered.intervals, offered.met), ([40, 0, 0, 0, 4], 6));
        assert!((offered.row("hash".to_owned(), 1, 1.0, &[]).most_over_mean - 1.5).abs() < 1e-9);
        assert_eq!(Counted::of(&pages, Transport::LEADER).intervals, [0, 18, 0, 0, 0]);
    }
}
