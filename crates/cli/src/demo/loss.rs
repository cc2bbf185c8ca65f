//! The demonstration's last part: a target is lost for good, and the cluster makes again what it had.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Serialize;

use super::SIZE;
use crate::api::Status;
use crate::running::Running;
use crate::{local_cluster, units};

/// How often the cluster is asked how far it is.
const PAUSE: Duration = Duration::from_millis(250);
/// How often that is said while only numbers change, and how often while copies are made.
const SAID: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(1)];
/// How long all may take, beyond the time for which a target is down before it is taken out.
const PATIENCE: Duration = Duration::from_secs(300);

/// What was measured.
#[derive(Debug, Serialize)]
pub(super) struct Loss {
    target: u32,
    /// A read without it, before anything was made again.
    get_seconds: f64,
    get_mb_per_s: f64,
    /// From the loss until it was out of the cluster map.
    out_seconds: f64,
    /// From the loss until every chunk had all its copies again.
    whole_seconds: f64,
    restored_chunks: u64,
    restored_bytes: u64,
}

/// Why no target of this cluster is to be lost.
pub(super) fn obstacle(running: &Running) -> anyhow::Result<Option<&'static str>> {
    let config = local_cluster::load(&running.cluster.config_path)?;
    let domains = config.targets.iter().filter(|target| !target.drain).map(|target| &target.domain);
    Ok(if !running.cluster.created {
        // Each start would leave it with a target less, and what is in it is not the demonstration's.
        Some("this cluster was there before")
    } else if config.out_after().is_zero() {
        Some("none is taken out of the cluster map, as `out_after_seconds` is 0")
    } else if domains.collect::<BTreeSet<_>>().len() <= usize::from(config.copies) {
        Some("the others would be too few for all copies")
    } else {
        None
    })
}

/// Loses the target of that place among the processes, and waits until all is whole again. `compare` reads the object and says how
/// long that took.
pub(super) fn show(
    running: &mut Running,
    (target, nth): (u32, usize),
    say: &dyn Fn(&str) -> anyhow::Result<()>,
    compare: &dyn Fn() -> anyhow::Result<f64>,
) -> anyhow::Result<Loss> {
    let page = running.gateway.base();
    say(&format!(
        "\nTarget {target} is lost for good: killed, and not started again. {page}/ shows what follows, too."
    ))?;
    let out_after = local_cluster::load(&running.cluster.config_path)?.out_after();
    running.children.0.remove(nth).kill()?;
    let begin = Instant::now();
    let get_seconds = compare().context("the demonstration's read after the loss for good failed")?;
    say("  read without it: equal")?;
    let Healed { out, whole, chunks, bytes } = wait(running, target, begin, out_after + PATIENCE, say)?;
    let made = format!("{chunks} chunks with {} made again on other targets", units::size(bytes));
    say(&format!("{} whole again: {made}", at(whole)))?;
    compare().context("the demonstration's read after the healing failed")?;
    say("  read once more: equal")?;
    Ok(Loss {
        target,
        get_seconds,
        get_mb_per_s: units::mb_per_s(SIZE, get_seconds),
        out_seconds: out.as_secs_f64(),
        whole_seconds: whole.as_secs_f64(),
        restored_chunks: chunks,
        restored_bytes: bytes,
    })
}

/// How long it took since the loss, and what was made again.
struct Healed {
    out: Duration,
    whole: Duration,
    chunks: u64,
    bytes: u64,
}

/// Waits until every chunk has all its copies without the target, and says how far that is.
fn wait(
    running: &mut Running,
    target: u32,
    begin: Instant,
    patience: Duration,
    say: &dyn Fn(&str) -> anyhow::Result<()>,
) -> anyhow::Result<Healed> {
    let (mut before, mut out, mut last) = (None, None, None);
    loop {
        running.children.check()?;
        ensure!(!running.stop.load(Ordering::SeqCst), "stopped before all was whole again");
        let (status, now) = (running.gateway.status()?, begin.elapsed());
        let made = (status.health.restored_chunks, status.health.restored_bytes);
        // What the lost target itself had made is among the others' until its last report is forgotten.
        let least = before.map_or(made, |(chunks, bytes): (u64, u64)| (chunks.min(made.0), bytes.min(made.1)));
        before = Some(least);
        let stage = Stage::of(&status, target);
        let is_out = matches!(stage, Stage::Out | Stage::Making | Stage::Whole);
        if is_out && out.is_none() {
            out = Some(now);
            say(&format!("{} target {target} is out of the cluster map", at(now)))?;
        }
        if let (Stage::Whole, Some(out)) = (stage, out) {
            let (chunks, bytes) = (made.0 - least.0, made.1 - least.1);
            return Ok(Healed { out, whole: now, chunks, bytes });
        }
        let pause = SAID[usize::from(stage == Stage::Making)];
        if last.is_none_or(|(said, at)| said != stage || now.saturating_sub(at) >= pause) {
            say(&format!("{} {}", at(now), stage.text(&status, target)))?;
            last = Some((stage, now));
        }
        if now >= patience {
            let text = stage.text(&status, target);
            bail!("not every chunk has all its copies {} s after the loss: {text}", now.as_secs());
        }
        std::thread::sleep(PAUSE);
    }
}

/// The beginning of a line that says what was so long after the loss.
fn at(since: Duration) -> String {
    format!("  {:>4.1} s:", since.as_secs_f64())
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Silent,
    Down,
    /// It is not known yet what the others lack.
    Out,
    Making,
    Whole,
}

impl Stage {
    fn of(status: &Status, target: u32) -> Self {
        let health = &status.health;
        match status.targets.iter().any(|listed| listed.id == target) {
            true if status.down.targets.contains_key(&target.to_string()) => Self::Down,
            true => Self::Silent,
            false if health.whole => Self::Whole,
            false if health.at_risk > 0 || health.strayed > 0 => Self::Making,
            false => Self::Out,
        }
    }

    fn text(self, status: &Status, target: u32) -> String {
        let health = &status.health;
        let at_risk = if health.at_risk > 0 { format!("; {}", health.at_risk_text()) } else { String::new() };
        match self {
            Self::Silent => format!("target {target} is silent{at_risk}"),
            Self::Down => {
                let texts: Vec<String> = status.down.texts().chain(status.down.held.clone()).collect();
                texts.join("; ") + &at_risk
            }
            Self::Out => "the others look what they lack".to_owned(),
            Self::Making => health.healing_text(),
            Self::Whole => "every chunk has all its copies".to_owned(),
        }
    }
}
