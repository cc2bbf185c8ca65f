//! Targets join, get their share, and are taken out again.

use std::ops::Range;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use testkit::Cluster;

use super::watch::{Look, Phase, Watch, moved};
use super::{MaintainArgs, ReadBack, WARM_UP, times};
use crate::clients::Kind;

/// How long it may take until a map is in use.
const LIMIT: Duration = Duration::from_secs(60);
/// For so long nothing moves when it is over: three sweeps of a steward.
const QUIET: Duration = Duration::from_secs(30);

/// What came of it.
#[derive(Debug, Serialize)]
pub(super) struct Resized {
    pub(super) phases: Vec<Phase>,
    grown: Change,
    shrunk: Change,
    pub(super) read_back: ReadBack,
}

/// What a change of the map moved.
#[derive(Debug, Serialize)]
struct Change {
    targets: (usize, usize),
    seconds: f64,
    /// What all held when it began, and what of that has to move at the least.
    stored_bytes: u64,
    least_bytes: f64,
    moved_bytes: u64,
    /// `moved_bytes` over the least.
    times_least: f64,
    /// Whether all was whole at the end.
    whole: bool,
    /// What those that came have at the end, over their share of what all have.
    of_share: f64,
    put_times_usual: f64,
    get_times_usual: f64,
}

/// Runs it.
pub(super) fn run(args: &MaintainArgs) -> anyhow::Result<Resized> {
    let (mut cluster, mut clients) = args.filled(args.add)?;
    let (watch, few) = (Watch::new(), usize::from(args.rack.targets));
    let many = few + usize::from(args.add);
    let come = few + 1..many + 1;
    let (at_first, all): (Vec<usize>, Vec<usize>) = ((1..=few).collect(), (1..=many).collect());
    clients.start(&args.work())?;
    std::thread::sleep(WARM_UP);
    let begun = watch.begin(&cluster, "usual", &at_first)?;
    std::thread::sleep(Duration::from_secs(args.seconds));
    let usual = watch.end(&cluster, begun)?;

    let before = vec![watch.look(&cluster)?];
    let begun = watch.begin(&cluster, "growing", &all)?;
    come.clone().try_for_each(|id| cluster.join(id))?;
    let looks = watch.settle(&cluster, QUIET, args.limit())?;
    let growing = watch.end(&cluster, begun)?;
    let grown = [before, looks].concat();

    let begun = watch.begin(&cluster, "grown", &all)?;
    std::thread::sleep(Duration::from_secs(args.seconds));
    let after = watch.end(&cluster, begun)?;
    let begun = watch.begin(&cluster, "shrinking", &all)?;
    let looks = shrink(&watch, &mut cluster, come.clone(), args.limit())?;
    let shrinking = watch.end(&cluster, begun)?;
    let ops = clients.stop();
    let mut phases = vec![usual, growing, after, shrinking];
    watch.judge(&mut phases, &ops);
    let read_back = args.read_back(&cluster, &clients)?;
    let usual = &phases[0];
    let share = args.add as f64 / many as f64;
    let grown = Change::of((few, many), &grown, usual, &phases[1], |look| share * look.held(1..many + 1) as f64)?;
    let shrunk = Change::of((many, few), &looks, usual, &phases[3], |look| look.held(come.clone()) as f64)?;
    let grown = Change { of_share: grown.of_share / share, ..grown };
    Ok(Resized { phases, grown, shrunk, read_back })
}

/// Takes those out again.
fn shrink(watch: &Watch, cluster: &mut Cluster, ids: Range<usize>, limit: Duration) -> anyhow::Result<Vec<Look>> {
    let words: Vec<String> = ids.clone().map(|id| id.to_string()).collect();
    let all =
        |command| -> Vec<&str> { ["cluster", command].into_iter().chain(words.iter().map(String::as_str)).collect() };
    let mut looks = vec![watch.look(cluster)?];
    let epoch = looks.last().map_or(0, |look| look.epoch);
    cluster.run(&all("drain"))?;
    watch.wait(cluster, LIMIT, |look| look.epoch > epoch)?;
    looks.extend(watch.settle(cluster, QUIET, limit)?);
    let Some(last) = looks.last().filter(|look| look.whole) else { return Ok(looks) };
    let epoch = last.epoch;
    cluster.run(&all("remove"))?;
    looks.extend(watch.wait(cluster, LIMIT, |look| look.epoch > epoch)?);
    ids.into_iter().try_for_each(|id| cluster.kill_target(id))?;
    looks.extend(watch.settle(cluster, QUIET, limit)?);
    Ok(looks)
}

impl Change {
    fn of(
        targets: (usize, usize),
        looks: &[Look],
        usual: &Phase,
        phase: &Phase,
        least: impl Fn(&Look) -> f64,
    ) -> anyhow::Result<Self> {
        let (first, last) = looks.first().zip(looks.last()).context("nobody looked")?;
        let sum = |look: &Look| look.live.values().sum::<u64>();
        let (least_bytes, moved_bytes) = (least(first), moved(looks));
        let came = targets.0 + 1..targets.1 + 1;
        Ok(Self {
            targets,
            seconds: (last.at - first.at).as_secs_f64(),
            stored_bytes: sum(first),
            least_bytes,
            moved_bytes,
            times_least: moved_bytes as f64 / least_bytes,
            whole: last.whole,
            of_share: last.held(came) as f64 / sum(last) as f64,
            put_times_usual: times(usual, phase, Kind::Put),
            get_times_usual: times(usual, phase, Kind::Get),
        })
    }

    fn print(&self) {
        println!(
            "{} to {} targets: {:.1} s, {:.1} MB stored, {:.1} MB moved, {:.2} times the least ({:.1} MB){}; p99 over the usual one: \
             puts {:.2}, gets {:.2}",
            self.targets.0,
            self.targets.1,
            self.seconds,
            self.stored_bytes as f64 / 1e6,
            self.moved_bytes as f64 / 1e6,
            self.times_least,
            self.least_bytes / 1e6,
            if self.whole { "" } else { ", and not whole in the end" },
            self.put_times_usual,
            self.get_times_usual
        );
    }
}

impl Resized {
    pub(super) fn print(&self) {
        self.grown.print();
        println!("those that came have {:.2} of their share", self.grown.of_share);
        self.shrunk.print();
        println!("{} of {} objects are as they must be", self.read_back.as_they_were, self.read_back.known);
    }
}
