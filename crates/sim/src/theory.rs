//! What queueing theory says of a cluster under a steady load, to check the simulator against and to be checked by it.
//!
//! Each [`Case`] is a cluster for which a prediction is known, on a network that takes no time; `docs/theory.md` says which
//! assumptions each needs and where they end.

use crate::perf::{Load, Outcome, Scenario, ScenarioError, Setup};

/// The probability of `k` or more events where `mean` are expected, by Poisson's law.
#[must_use]
pub fn poisson_at_least(k: u32, mean: f64) -> f64 {
    let mut term = (-mean).exp();
    let mut below = 0.0;
    for n in 0..k {
        below += term;
        term *= mean / f64::from(n + 1);
    }
    1.0 - below
}

/// The queue M/D/1: the probabilities of 0, 1, ... in the system, by the recursion over the departures, at a load below 1.
#[must_use]
pub fn constant_service(load: f64, states: usize) -> Vec<f64> {
    // a(k): k arrivals while one is served.
    let mut arrivals = vec![(-load).exp()];
    for k in 1..=states {
        arrivals.push(arrivals[k - 1] * load / k as f64);
    }
    let mut p = vec![1.0 - load];
    for n in 0..states {
        // p(n) = p(0) a(n) + sum of p(j) a(n + 1 - j) over j from 1 to n + 1, solved for p(n + 1).
        let from: f64 = (1..=n).map(|j| p[j] * arrivals[n + 1 - j]).sum();
        p.push((p[n] - p[0] * arrivals[n] - from) / arrivals[0]);
    }
    p
}

/// The mean wait in that queue, in service times.
#[must_use]
pub fn constant_service_wait(load: f64) -> f64 {
    load / (2.0 * (1.0 - load))
}

/// The share of queues with at least `k` in a large system where each arrival takes the shortest of `choices` queues chosen
/// at random, with exponential service: the fixed point of the supermarket model.
#[must_use]
pub fn shortest_of(choices: u32, load: f64, k: u32) -> f64 {
    let power: f64 = (0..k).map(|n| f64::from(choices).powi(n as i32)).sum();
    load.powf(power)
}

/// The mean time in that system, in service times.
#[must_use]
pub fn shortest_of_time(choices: u32, load: f64) -> f64 {
    let tails = (1..).map(|k| shortest_of(choices, load, k)).take_while(|tail| *tail > 1e-15);
    tails.sum::<f64>() / load
}

/// Steps in a service time of [`least_loaded_wait`].
const STEPS: usize = 4_000;

/// The mean wait in service times in a large system where each arrival takes the queue with the least work of `choices`
/// queues chosen at random, with constant service.
///
/// The share F(w) of queues with more than w of work ahead falls by what crosses w from below: F'(w) = -load (F(w - 1)^d -
/// F(w)^d), where F is 1 below 0 and the load at 0.
#[must_use]
pub fn least_loaded_wait(choices: u32, load: f64) -> f64 {
    let (step, d) = (1.0 / STEPS as f64, choices as i32);
    let (mut tail, mut wait) = (vec![load], 0.0);
    // Where F jumps, the limit from the left counts at the end of a step and that from the right at its beginning.
    while tail[tail.len() - 1].powi(d) > 1e-12 {
        let at = tail.len() - 1;
        let now = tail[at];
        let before = |at: usize, is_end: bool| {
            at.checked_sub(STEPS + usize::from(is_end && at == STEPS)).map_or(1.0, |at: usize| tail[at].powi(d))
        };
        let slope = load * (before(at, false) - now.powi(d));
        let guess = (now - step * slope).max(0.0);
        let next_slope = load * (before(at + 1, true) - guess.powi(d));
        let next = (now - step * f64::midpoint(slope, next_slope)).max(0.0);
        wait += step * f64::midpoint(now.powi(d), next.powi(d));
        tail.push(next);
    }
    wait
}

/// A figure that is measured, and what theory says it is.
#[derive(Clone, Debug)]
pub struct Line {
    /// What, with its unit.
    pub what: String,
    /// In the simulator.
    pub measured: f64,
    /// By theory.
    pub predicted: f64,
    /// Whether the assumptions hold, so that both must agree within 3 %. Otherwise the ratio says what they are worth.
    pub applies: bool,
}

impl Line {
    fn new(what: impl Into<String>, measured: f64, predicted: f64, applies: bool) -> Self {
        Self { what: what.into(), measured, predicted, applies }
    }

    /// The measured over the predicted.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.measured / self.predicted
    }
}

/// What is compared of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// How many puts meet at a target.
    Conflicts,
    /// Each disk is a queue of its own with constant service.
    Alone,
    /// The shorter of two queues, exponential service.
    Shorter,
    /// The best of nine bids.
    Bids,
}

/// A cluster of which theory says something.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it is.
    pub name: String,
    /// How it is simulated.
    pub setup: Setup,
    kind: Kind,
    /// What is asked for, as a share of what the disks can do.
    pub load: f64,
}

/// Nothing but disks takes time: each of these lines can be said again by a case.
const IDEAL: &str = "profile = \"product\"\ncopies = 1\ninitiators = 300\ntargets = 90\nchunk = \"128KiB\"\n\
    link_mbit_per_s = 10000000\ntrip = \"0ns\"\ndisk_mb_per_s = 400\nwarm_up = \"300ms\"\n";
/// What only the daemons' machines have.
const MACHINES: &str = "depth = 32\nreceive_buffer = \"1024MiB\"\nswitch_queue = \"1024MiB\"\n";
/// The papers' text: three copies in groups of nine over links of 10 Gbit/s.
const TEXT: &str = "profile = \"product\"\ninitiators = 90\ntargets = 90\nchunk = \"128KiB\"\nlink_mbit_per_s = 10000\n\
    trip = \"3us\"\ndisk_mb_per_s = 1000\nwarm_up = \"50ms\"\n";

/// What a line says that compares the mean latency.
pub const LATENCY: &str = "put latency, mean, us";
/// Mean size of chunks that are served in exponential times.
const MEAN: f64 = 262_144.0;

/// Sizes that are distributed like an exponential law: the middles of equally likely parts, in the mean [`MEAN`].
fn exponential_sizes() -> Vec<(u32, u32)> {
    const PARTS: u32 = 2_000;
    let middle = |n: u32| {
        // The mean of the law between two of its quantiles.
        let edge = |n: u32| -(1.0 - f64::from(n) / f64::from(PARTS)).ln();
        let (a, b) = (edge(n), edge(n + 1));
        let antiderivative = |x: f64| if x.is_finite() { (x + 1.0) * (-x).exp() } else { 0.0 };
        (antiderivative(a) - antiderivative(b)) * f64::from(PARTS)
    };
    (0..PARTS).map(|n| ((middle(n) * MEAN) as u32, 1)).collect()
}

/// All of them.
///
/// # Errors
/// When a case is no scenario, which its text decides.
pub fn cases() -> Result<Vec<Case>, ScenarioError> {
    let mut all = Vec::new();
    let mut add = |name: &str, kind, load: f64, text: String| {
        let text = format!("{text}load = {load}\n");
        all.push(Case {
            name: format!("{name}, load {load}"),
            setup: Scenario::parse(name, &text, &[])?.setup,
            kind,
            load,
        });
        Ok::<(), ScenarioError>(())
    };
    for load in [0.5, 0.8] {
        add("hash, three copies", Kind::Conflicts, load, format!("{TEXT}length = \"2s\"\nprotocol = \"hash\"\n"))?;
        add(
            "replicast-m, three copies",
            Kind::Conflicts,
            load,
            format!("{TEXT}length = \"300ms\"\nprotocol = \"replicast-m\"\n"),
        )?;
    }
    for load in [0.5, 0.8, 0.9] {
        let text = format!("{IDEAL}{MACHINES}protocol = \"hash\"\ngroup = 1\nlength = \"4s\"\n");
        add("hash, one copy", Kind::Alone, load, text)?;
    }
    for load in [0.5, 0.8, 0.9] {
        let text = format!("{IDEAL}protocol = \"least-of-two\"\ngroup = 30\nlength = \"2s\"\n");
        add("least-of-two, one copy", Kind::Shorter, load, text)?;
    }
    for load in [0.5, 0.8, 0.9] {
        let text = format!("{IDEAL}{MACHINES}protocol = \"replicast-h\"\ngroup = 9\nlength = \"500ms\"\n");
        add("replicast-h, one copy", Kind::Bids, load, text)?;
    }
    for case in all.iter_mut().filter(|case| case.kind == Kind::Shorter) {
        let mean = MEAN / f64::from(case.setup.targets) / case.setup.machines.disk() as f64;
        case.setup.sizes = exponential_sizes();
        case.setup.load = Load::Open { chunks_per_second: case.load / mean };
    }
    Ok(all)
}

/// The share of `counts`, each so many times its place, from `least` on.
fn share(counts: &[u64], least: usize) -> f64 {
    counts.iter().skip(least).sum::<u64>() as f64 / counts.iter().sum::<u64>().max(1) as f64
}

/// Variance over mean of what is counted: 1 by Poisson's law.
fn dispersion(counts: &[u64]) -> f64 {
    let all = counts.iter().sum::<u64>().max(1) as f64;
    let moment =
        |power: i32| counts.iter().zip(0..).map(|(c, n)| *c as f64 * f64::from(n).powi(power)).sum::<f64>() / all;
    (moment(2) - moment(1).powi(2)) / moment(1)
}

impl Case {
    /// What a run of it measured beside what theory says.
    #[must_use]
    pub fn compare(&self, outcome: &Outcome) -> Vec<Line> {
        match self.kind {
            Kind::Conflicts => self.conflicts(outcome),
            Kind::Alone => self.alone(outcome),
            Kind::Shorter => {
                let service = MEAN * 1e6 / self.setup.machines.disk() as f64;
                let time = shortest_of_time(2, self.load) * service;
                vec![Line::new(LATENCY, outcome.latency.mean() / 1e3, time, true)]
            }
            Kind::Bids => self.bids(outcome),
        }
    }

    /// The share of intervals in which 0, 1, ... transfers began at a target, where that is what is compared.
    #[must_use]
    pub fn intervals(&self, outcome: &Outcome) -> Option<Vec<f64>> {
        let counts = &outcome.product.as_ref().filter(|_| self.kind == Kind::Conflicts)?.begun;
        let all = counts.iter().sum::<u64>().max(1) as f64;
        Some(counts.iter().map(|count| *count as f64 / all).collect())
    }

    fn conflicts(&self, outcome: &Outcome) -> Vec<Line> {
        let Some(more) = &outcome.product else { return Vec::new() };
        let mut lines = Vec::new();
        for (what, counts, applies) in [("requests", &more.asked, true), ("transfers", &more.begun, false)] {
            // Only what is not negotiated is asked of targets without a choice.
            if counts.iter().skip(1).sum::<u64>() > 0 {
                let line = |least| {
                    let percent = 100.0 * share(counts, least);
                    let law = 100.0 * poisson_at_least(least as u32, 1.0);
                    Line::new(format!("intervals with {least} {what} or more, %"), percent, law, applies)
                };
                lines.extend([line(2), line(4)]);
                lines.push(Line::new(format!("variance of {what} over their mean"), dispersion(counts), 1.0, applies));
            }
        }
        lines
    }

    /// What one chunk takes a disk in the mean, in microseconds.
    #[must_use]
    pub fn service(&self) -> f64 {
        self.setup.mean_size() * 1e6 / self.setup.machines.disk() as f64
    }

    fn alone(&self, outcome: &Outcome) -> Vec<Line> {
        let Some(more) = &outcome.product else { return Vec::new() };
        let time = self.service() * (1.0 + constant_service_wait(self.load));
        let mut lines = vec![Line::new(LATENCY, outcome.latency.mean() / 1e3, time, true)];
        let states = constant_service(self.load, 6);
        lines.extend(states.iter().enumerate().map(|(n, law)| {
            let is = more.found.get(n).map_or(0.0, |found| *found as f64 / more.found.iter().sum::<u64>() as f64);
            // What is rare is not known to 3 % from a run.
            Line::new(format!("puts that find {n} at the disk, %"), 100.0 * is, 100.0 * law, *law > 0.02)
        }));
        lines
    }

    fn bids(&self, outcome: &Outcome) -> Vec<Line> {
        let Some(more) = &outcome.product else { return Vec::new() };
        let group = self.setup.group;
        let time = self.service() * (1.0 + least_loaded_wait(group, self.load));
        vec![
            Line::new(LATENCY, outcome.latency.mean() / 1e3, time, false),
            Line::new(
                "puts that find a busy disk, %",
                100.0 * share(&more.found, 1),
                100.0 * self.load.powi(group as i32),
                false,
            ),
            Line::new(
                "puts that find two or more, %",
                100.0 * share(&more.found, 2),
                100.0 * shortest_of(group, self.load, 2).powi(group as i32),
                false,
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_26_and_2_percent() {
        assert!((poisson_at_least(2, 1.0) - 0.264).abs() < 1e-3);
        assert!((poisson_at_least(4, 1.0) - 0.019).abs() < 1e-3);
    }

    #[test]
    fn the_recursion_has_the_mean_of_pollaczek_and_khinchine() {
        for load in [0.3, 0.8] {
            let states = constant_service(load, 60);
            let mean: f64 = states.iter().zip(0..).map(|(p, n)| p * f64::from(n)).sum();
            assert!((mean - load * (1.0 + constant_service_wait(load))).abs() < 1e-3, "{mean}");
            assert!((states.iter().sum::<f64>() - 1.0).abs() < 1e-3);
        }
    }

    #[test]
    fn one_choice_is_none() {
        for load in [0.5, 0.9] {
            assert!((shortest_of_time(1, load) - 1.0 / (1.0 - load)).abs() < 1e-9);
            let (wait, law) = (least_loaded_wait(1, load), constant_service_wait(load));
            assert!((wait / law - 1.0).abs() < 1e-3, "{wait} {law}");
        }
        assert!((shortest_of(2, 0.9, 3) - 0.9_f64.powi(7)).abs() < 1e-12);
    }

    #[test]
    fn the_sizes_have_the_moments_of_an_exponential_law() {
        let sizes = exponential_sizes();
        let moment = |power: i32| {
            sizes.iter().map(|(size, _)| (f64::from(*size) / MEAN).powi(power)).sum::<f64>() / sizes.len() as f64
        };
        assert!((moment(1) - 1.0).abs() < 1e-3 && (moment(2) - 2.0).abs() < 0.01, "{} {}", moment(1), moment(2));
    }
}
