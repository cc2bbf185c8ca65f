//! A target is lost for good.

use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;

use super::watch::{Look, Phase, Watch};
use super::{MaintainArgs, ReadBack, WARM_UP, times};
use crate::clients::Kind;

/// Who is lost: of all targets the one that holds the median of what they hold.
fn victim(look: &Look) -> anyhow::Result<usize> {
    let mut held: Vec<(u64, u64)> = look.live.iter().map(|(id, bytes)| (*bytes, *id)).collect();
    held.sort_unstable();
    let (_, id) = held.get(held.len() / 2).context("a cluster has targets")?;
    Ok(*id as usize)
}

/// What clients wait for a target that does not answer is no matter of repair.
const PAUSE: Duration = Duration::from_secs(3);
/// How long healing may take.
const LIMIT: Duration = Duration::from_secs(900);
/// The part of what was made again in which the rate is measured: its beginning and its end are other things.
const STEADY: (f64, f64) = (0.1, 0.9);

/// What came of it.
#[derive(Debug, Serialize)]
pub(super) struct Healed {
    pub(super) phases: Vec<Phase>,
    /// From the kill until the cluster map was without it, and until all was whole.
    out_seconds: f64,
    whole_seconds: f64,
    /// Bytes that were put again, and how many in a second: from when it was out until all was whole, and in the steady part.
    restored_bytes: u64,
    restored_per_second: f64,
    steady_per_second: f64,
    /// What clients leave of the cables of those that are left, bytes a second: outward and inward.
    left_sent: f64,
    left_received: f64,
    /// Of the smaller.
    share: f64,
    steady_share: f64,
    /// p99 while copies are made, over that of the same loss without, and over the usual one.
    put_times_loss: f64,
    get_times_loss: f64,
    put_times_usual: f64,
    get_times_usual: f64,
    pub(super) read_back: ReadBack,
}

/// Runs it.
pub(super) fn run(args: &MaintainArgs) -> anyhow::Result<Healed> {
    let (mut cluster, mut clients) = args.filled(0)?;
    let watch = Watch::new();
    let all: Vec<usize> = (1..=args.rack.targets.into()).collect();
    let victim = victim(&watch.look(&cluster)?)?;
    let left: Vec<usize> = all.iter().copied().filter(|id| *id != victim).collect();
    clients.start(&args.work())?;
    std::thread::sleep(WARM_UP);
    let begun = watch.begin(&cluster, "usual", &all)?;
    std::thread::sleep(Duration::from_secs(args.seconds));
    let usual = watch.end(&cluster, begun)?;

    let killed = Instant::now();
    let begun = watch.begin(&cluster, "lost", &left)?;
    cluster.kill_target(victim)?;
    cluster.lose_data(victim)?;
    std::thread::sleep(PAUSE);
    let at_once = watch.end(&cluster, begun)?;
    let begun = watch.begin(&cluster, "down", &left)?;
    let is_out = |look: &Look| !look.live.contains_key(&(victim as u64));
    watch.wait(&cluster, LIMIT, is_out)?;
    let down = watch.end(&cluster, begun)?;
    let out = Instant::now();
    let begun = watch.begin(&cluster, "repair", &left)?;
    let looks = watch.wait(&cluster, LIMIT, |look| look.whole)?;
    let repair = watch.end(&cluster, begun)?;
    let whole = Instant::now();
    let begun = watch.begin(&cluster, "after", &left)?;
    std::thread::sleep(Duration::from_secs(args.seconds));
    let after = watch.end(&cluster, begun)?;
    let ops = clients.stop();
    let mut phases = vec![usual, at_once, down, repair, after];
    watch.judge(&mut phases, &ops);
    let read_back = args.read_back(&cluster, &clients)?;

    let (usual, down, repair) = (&phases[0], &phases[2], &phases[3]);
    let most = args.link() * left.len() as f64;
    let (left_sent, left_received) = (most - down.sent / down.seconds, most - down.received / down.seconds);
    let bound = left_sent.min(left_received);
    let restored_bytes = looks.last().map_or(0, |look| look.restored);
    let restored_per_second = restored_bytes as f64 / (whole - out).as_secs_f64();
    let steady_per_second = steady(&looks).context("nothing was made again")?;
    Ok(Healed {
        out_seconds: (out - killed).as_secs_f64(),
        whole_seconds: (whole - killed).as_secs_f64(),
        restored_bytes,
        restored_per_second,
        steady_per_second,
        left_sent,
        left_received,
        share: restored_per_second / bound,
        steady_share: steady_per_second / bound,
        put_times_loss: times(down, repair, Kind::Put),
        get_times_loss: times(down, repair, Kind::Get),
        put_times_usual: times(usual, repair, Kind::Put),
        get_times_usual: times(usual, repair, Kind::Get),
        phases,
        read_back,
    })
}

/// Bytes made again in a second, without the beginning and the end.
fn steady(looks: &[Look]) -> Option<f64> {
    let (first, last) = (looks.first()?.restored, looks.last()?.restored);
    let part = |look: &&Look| (look.restored - first) as f64 / (last - first).max(1) as f64;
    let from = looks.iter().find(|look| part(look) >= STEADY.0)?;
    let to = looks.iter().find(|look| part(look) >= STEADY.1)?;
    let seconds = (to.at - from.at).as_secs_f64();
    (seconds > 0.0).then(|| (to.restored - from.restored) as f64 / seconds)
}

impl Healed {
    pub(super) fn print(&self) {
        println!(
            "out of the map {:.1} s after the loss, whole {:.1} s later; {:.1} MB made again, {:.1} MB/s ({:.1} in the steady part)",
            self.out_seconds,
            self.whole_seconds - self.out_seconds,
            self.restored_bytes as f64 / 1e6,
            self.restored_per_second / 1e6,
            self.steady_per_second / 1e6
        );
        println!(
            "clients leave {:.1} MB/s of what those that are left can send and {:.1} MB/s of what they can receive: {:.0} % of the \
             smaller is used ({:.0} % in the steady part)",
            self.left_sent / 1e6,
            self.left_received / 1e6,
            self.share * 100.0,
            self.steady_share * 100.0
        );
        println!(
            "p99 in repair over that of the loss without: puts {:.2}, gets {:.2}; over the usual one: puts {:.2}, gets {:.2}",
            self.put_times_loss, self.get_times_loss, self.put_times_usual, self.get_times_usual
        );
        println!("{} of {} objects are as they must be", self.read_back.as_they_were, self.read_back.known);
    }
}
