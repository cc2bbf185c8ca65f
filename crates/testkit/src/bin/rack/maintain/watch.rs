//! Looking at a cluster while something happens to it: what its status says, what its cables carry, how late timers are.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::Value;
use testkit::Cluster;

use crate::clients::{Kind, Op, Problem};

/// From one look at the status to the next.
const EACH: Duration = Duration::from_millis(500);
/// From one line about how far something is to the next.
const SAID: Duration = Duration::from_secs(10);
/// See [`Watch::settle`].
const QUIET: f64 = 0.01;
/// What a timer is set to, to see how late it is.
const TIMER: Duration = Duration::from_micros(500);
/// Problems of clients that are printed.
const SHOWN: usize = 10;

/// What a status says.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) epoch: u64,
    pub(super) whole: bool,
    pub(super) at_risk: u64,
    /// Chunks of which copies are where the layout before had them.
    pub(super) strayed: u64,
    /// Chunks that are put again, or elsewhere, at the moment.
    pub(super) under_way: u64,
    pub(super) restored: u64,
    pub(super) moved: u64,
    /// Bytes that each target holds.
    pub(super) live: BTreeMap<u64, u64>,
}

impl Look {
    fn at(cluster: &Cluster) -> anyhow::Result<Self> {
        let status = cluster.ask(&["status", "--json"])?;
        let number = |name: &str| status[name].as_u64().with_context(|| format!("a status has {name}"));
        let targets = status["targets"].as_array().context("a status names targets")?;
        let live = |target: &Value| Some((target["id"].as_u64()?, target["live"].as_u64().unwrap_or(0)));
        Ok(Self {
            at: Instant::now(),
            epoch: number("epoch")?,
            whole: status["whole"] == true,
            at_risk: number("at_risk")?,
            strayed: number("strayed")?,
            under_way: number("restoring")? + number("moving")?,
            restored: number("restored_bytes")?,
            moved: number("moved_bytes")?,
            live: targets.iter().filter_map(live).collect(),
        })
    }

    /// Bytes of these targets.
    pub(super) fn held(&self, ids: impl Iterator<Item = usize>) -> u64 {
        ids.filter_map(|id| self.live.get(&(id as u64))).sum()
    }
}

/// Bytes that were put again or elsewhere in some looks. A target that is gone does not say any more what it did.
pub(super) fn moved(looks: &[Look]) -> u64 {
    let sum = |look: &Look| look.restored + look.moved;
    looks.windows(2).map(|two| sum(&two[1]).saturating_sub(sum(&two[0]))).sum()
}

/// What the targets' cables and the processors have done until now.
#[derive(Clone, Copy, Debug)]
struct Meters {
    at: Instant,
    sent: u64,
    received: u64,
    /// Ticks of all processors, and those without work.
    ticks: (u64, u64),
}

impl Meters {
    fn of(cluster: &Cluster, ids: &[usize]) -> anyhow::Result<Self> {
        let (mut sent, mut received) = (0, 0);
        let at = Instant::now();
        for id in ids {
            let (out, into) = cluster.rack().traffic(cluster.host_of(*id))?;
            (sent, received) = (sent + out, received + into);
        }
        Ok(Self { at, sent, received, ticks: ticks() })
    }
}

/// Of all processors: ticks, and those without work.
fn ticks() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let numbers = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    // Guests count as users already.
    let numbers: Vec<u64> = numbers.take(8).filter_map(|number| number.parse().ok()).collect();
    (numbers.iter().sum(), numbers.iter().skip(3).take(2).sum())
}

/// How one kind of operation fared in a phase.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Course {
    pub(crate) done: usize,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) longest_ms: f64,
    pub(crate) failed: usize,
    pub(crate) wrong: usize,
}

impl Course {
    fn of<'a>(ops: impl Iterator<Item = &'a Op>) -> Self {
        let (mut times, mut failed, mut wrong) = (Vec::new(), 0, 0);
        for op in ops {
            match &op.problem {
                None => times.push(op.took().as_secs_f64() * 1e3),
                Some(Problem::Failed(_)) => failed += 1,
                Some(Problem::Wrong(_)) => wrong += 1,
            }
        }
        times.sort_by(f64::total_cmp);
        let (p50_ms, p99_ms, longest_ms) = (quantile(&times, 0.5), quantile(&times, 0.99), quantile(&times, 1.0));
        Self { done: times.len(), p50_ms, p99_ms, longest_ms, failed, wrong }
    }
}

/// Of sorted values.
fn quantile(sorted: &[f64], quantile: f64) -> f64 {
    let at = (sorted.len() as f64 * quantile).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// A time in which one thing happened.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) seconds: f64,
    pub(crate) courses: BTreeMap<Kind, Course>,
    /// Bytes on the targets' cables.
    pub(crate) sent: f64,
    pub(crate) received: f64,
    /// The share of the processors' time with work.
    pub(crate) busy: f64,
    /// By how much a timer of half a millisecond was late, with one of a hundred later.
    pub(crate) late_p99_ms: f64,
    #[serde(skip)]
    span: (Instant, Instant),
}

impl Phase {
    pub(crate) fn course(&self, kind: Kind) -> Course {
        self.courses.get(&kind).cloned().unwrap_or_default()
    }
}

/// A phase that has begun.
#[derive(Debug)]
pub(super) struct Begun {
    name: &'static str,
    ids: Vec<usize>,
    meters: Meters,
}

/// A thread that sets timers, and notes how late they were.
#[derive(Debug)]
struct Timers {
    late: Arc<Mutex<Vec<(Instant, Duration)>>>,
    stop: Arc<AtomicBool>,
}

impl Timers {
    fn start() -> Self {
        let (late, stop): (Arc<Mutex<Vec<_>>>, _) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (notes, stopped) = (Arc::clone(&late), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(TIMER);
                let note = (begun, begun.elapsed().saturating_sub(TIMER));
                notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
            }
        });
        Self { late, stop }
    }

    fn late_p99_ms(&self, (from, to): (Instant, Instant)) -> f64 {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let these = late.iter().filter(|(at, _)| (from..to).contains(at));
        let mut these: Vec<f64> = these.map(|(_, late)| late.as_secs_f64() * 1e3).collect();
        these.sort_by(f64::total_cmp);
        quantile(&these, 0.99)
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Watch {
    timers: Timers,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { timers: Timers::start() }
    }

    pub(super) fn look(&self, cluster: &Cluster) -> anyhow::Result<Look> {
        Look::at(cluster)
    }

    /// Begins a phase, in which the cables of these targets count.
    pub(super) fn begin(&self, cluster: &Cluster, name: &'static str, ids: &[usize]) -> anyhow::Result<Begun> {
        eprintln!("{name}");
        Ok(Begun { name, meters: Meters::of(cluster, ids)?, ids: ids.to_vec() })
    }

    /// Ends it; what clients did in it is filled in by [`Watch::judge`].
    pub(super) fn end(&self, cluster: &Cluster, begun: Begun) -> anyhow::Result<Phase> {
        let (from, to) = (begun.meters, Meters::of(cluster, &begun.ids)?);
        let ticks = |of: fn((u64, u64)) -> u64| of(to.ticks).saturating_sub(of(from.ticks)) as f64;
        let span = (from.at, to.at);
        Ok(Phase {
            name: begun.name,
            seconds: (to.at - from.at).as_secs_f64(),
            courses: BTreeMap::new(),
            sent: to.sent.saturating_sub(from.sent) as f64,
            received: to.received.saturating_sub(from.received) as f64,
            busy: 1.0 - ticks(|ticks| ticks.1) / ticks(|ticks| ticks.0).max(1.0),
            late_p99_ms: self.timers.late_p99_ms(span),
            span,
        })
    }

    /// Looks at the status until it is so; all looks.
    pub(super) fn wait(
        &self,
        cluster: &Cluster,
        limit: Duration,
        mut is_so: impl FnMut(&Look) -> bool,
    ) -> anyhow::Result<Vec<Look>> {
        let (begun, mut said, mut looks) = (Instant::now(), Instant::now(), Vec::new());
        loop {
            let look = Look::at(cluster)?;
            let done = is_so(&look);
            if said.elapsed() > SAID && !done {
                said = Instant::now();
                eprintln!(
                    "  {:.0} s: {} chunks lack copies, {} strayed, {} on their way, {} MB made again, {} MB moved",
                    begun.elapsed().as_secs_f64(),
                    look.at_risk,
                    look.strayed,
                    look.under_way,
                    look.restored / 1_000_000,
                    look.moved / 1_000_000
                );
            }
            looks.push(look);
            if done {
                return Ok(looks);
            }
            if begun.elapsed() > limit {
                bail!("waited in vain for {} s: {:?}", limit.as_secs(), looks.last());
            }
            std::thread::sleep(EACH);
        }
    }

    /// Looks at the status until all was whole, and next to nothing moved, for so long; the looks until then. Next to nothing is
    /// [`QUIET`] of what all hold: what clients put meanwhile may have to be levelled as well.
    /// When the limit is over before that, it is said, and they are all looks.
    pub(super) fn settle(&self, cluster: &Cluster, quiet: Duration, limit: Duration) -> anyhow::Result<Vec<Look>> {
        let mut looks: Vec<Look> = Vec::new();
        let is_over = |looks: &[Look]| {
            let last = looks.last()?;
            let recent = looks.iter().rev().take_while(|look| last.at - look.at < quiet).count();
            let since = looks.len().checked_sub(recent + 1)?;
            let held: u64 = last.live.values().sum();
            (last.whole && moved(&looks[since..]) as f64 <= QUIET * held as f64).then_some(since)
        };
        let begun = Instant::now();
        self.wait(cluster, limit + quiet, |look| {
            looks.push(look.clone());
            is_over(&looks).is_some() || begun.elapsed() > limit
        })?;
        match is_over(&looks) {
            Some(since) => looks.truncate(since + 1),
            None => eprintln!("rack: it has not settled in {} s: {:?}", limit.as_secs(), looks.last()),
        }
        Ok(looks)
    }

    /// Fills in what clients did, and prints the slowest operations and the first problems.
    pub(super) fn judge(&self, phases: &mut [Phase], ops: &[Op]) {
        for phase in phases.iter_mut() {
            let ours: Vec<&Op> = ops.iter().filter(|op| (phase.span.0..phase.span.1).contains(&op.begun)).collect();
            for kind in [Kind::Put, Kind::Get, Kind::List, Kind::Remove, Kind::Absence] {
                phase.courses.insert(kind, Course::of(ours.iter().copied().filter(|op| op.kind == kind)));
            }
            let mut slowest = ours;
            slowest.sort_by_key(|op| Reverse(op.took()));
            let when = |op: &&Op| {
                let (at, took) = ((op.begun - phase.span.0).as_secs_f64(), op.took().as_millis());
                format!("{:?} {took} ms at {at:.1} s", op.kind)
            };
            let slowest: Vec<String> = slowest.iter().take(SHOWN).map(when).collect();
            eprintln!("{}, slowest: {}", phase.name, slowest.join(", "));
        }
        let problems = ops.iter().filter_map(|op| Some((op.kind, op.problem.as_ref()?)));
        problems.take(SHOWN).for_each(|(kind, problem)| eprintln!("rack: {kind:?}: {problem}"));
    }
}
