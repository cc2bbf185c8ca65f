//! The figures that a scenario's runs come to, each a mean over seeds with its confidence interval.

use super::setup::Setup;
use super::setup::profile::Measured;
use super::setup::repair::Mended;
use super::stats::{Estimate, Outcome};

/// One figure.
#[derive(Clone, Debug)]
pub struct Metric {
    /// What, as a key: `chunks_per_second`.
    pub key: &'static str,
    /// What, in words, with its unit.
    pub label: String,
    /// Its value in each run, in the order of the seeds.
    pub values: Vec<f64>,
}

impl Metric {
    /// The mean and its interval.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        Estimate::of(&self.values)
    }
}

/// All figures of these runs of one setup.
#[must_use]
pub fn summary(setup: &Setup, outcomes: &[Outcome]) -> Vec<Metric> {
    let (bound, which) = setup.bounds().lowest();
    let mut metrics = Vec::new();
    let mut add = |key, label: &str, of: &dyn Fn(&Outcome) -> f64| {
        let values = outcomes.iter().map(of).collect();
        metrics.push(Metric { key, label: label.to_owned(), values });
    };
    let puts = |o: &Outcome| o.chunks.max(1) as f64;
    add("chunks_per_second", "throughput, chunks/s", &|o| o.chunks_per_second);
    add("share_of_bound", &format!("share of the bound ({which}, {bound:.0} chunks/s), %"), &|o| {
        100.0 * o.chunks_per_second / bound
    });
    if let Some(profile) = setup.product() {
        let most = profile.disks_at_best(setup);
        let label = format!("share of what disks can do with their syncs and the like ({most:.0} chunks/s), %");
        add("share_of_disks", &label, &|o| 100.0 * o.chunks_per_second / most);
    }
    add("disk_utilisation", "disks at work, %", &|o| 100.0 * o.disk_utilisation);
    add("link_utilisation", "payload on the targets' links, %", &|o| 100.0 * o.link_utilisation);
    add("latency_mean_us", "put latency, mean, us", &|o| o.latency.mean() / 1e3);
    for (key, label, quantile) in [
        ("latency_p50_us", "put latency, p50, us", 0.5),
        ("latency_p90_us", "put latency, p90, us", 0.9),
        ("latency_p99_us", "put latency, p99, us", 0.99),
        ("latency_p999_us", "put latency, p99.9, us", 0.999),
        ("latency_max_us", "put latency, most, us", 1.0),
    ] {
        add(key, label, &|o| o.latency.value_at_quantile(quantile) as f64 / 1e3);
    }
    add("load_spread", "most loaded target over the mean", &|o| o.load.most as f64 / o.load.mean.max(1.0));
    add("load_deviation", "deviation of the targets' load, % of the mean", &|o| {
        100.0 * o.load.deviation / o.load.mean.max(1.0)
    });
    add("control_per_payload", "control bytes per payload byte", &|o| {
        o.control_bytes as f64 / o.payload_bytes.max(1) as f64
    });
    let Some(paper) = setup.papers() else { return [metrics, of_product(outcomes), of_loss(outcomes)].concat() };
    let config = &paper.config;
    let weight = f64::from(config.control);
    add("control_messages", "control messages for a put", &|o| o.control_bytes as f64 / weight / puts(o));
    add("aborted", "attempts aborted, % of the puts", &|o| 100.0 * o.aborted as f64 / puts(o));
    add("more_rounds", "further rounds of bids, % of the puts", &|o| 100.0 * o.more_rounds as f64 / puts(o));
    if config.choosy {
        add("cancelled", "windows given back as too late, % of the puts", &|o| 100.0 * o.cancelled as f64 / puts(o));
    }
    if config.double_booking {
        add("rejected", "windows offered twice and lost, % of the puts", &|o| 100.0 * o.rejected as f64 / puts(o));
    }
    metrics
}

/// The figures that only runs of the product's machines have.
fn of_product(outcomes: &[Outcome]) -> Vec<Metric> {
    let mut metrics = Vec::new();
    let mut add = |key, label: &str, of: &dyn Fn(&Outcome, &Measured) -> f64| {
        let values = outcomes.iter().filter_map(|o| o.product.as_ref().map(|more| of(o, more))).collect();
        metrics.push(Metric { key, label: label.to_owned(), values });
    };
    let share = |part: u64, o: &Outcome| 100.0 * part as f64 / o.chunks.max(1) as f64;
    if outcomes.iter().any(|o| o.product.as_ref().is_some_and(|more| more.gets > 0)) {
        add("get_latency_mean_us", "get latency, mean, us", &|_, more| more.get_latency.mean() / 1e3);
        for (key, label, quantile) in [
            ("get_latency_p50_us", "get latency, p50, us", 0.5),
            ("get_latency_p90_us", "get latency, p90, us", 0.9),
            ("get_latency_p99_us", "get latency, p99, us", 0.99),
            ("get_latency_p999_us", "get latency, p99.9, us", 0.999),
            ("get_latency_max_us", "get latency, most, us", 1.0),
        ] {
            add(key, label, &|_, more| more.get_latency.value_at_quantile(quantile) as f64 / 1e3);
        }
    }
    add("control_messages", "control messages for a request", &|o, more| {
        more.control_messages as f64 / o.chunks.max(1) as f64
    });
    add("aborted", "accepted windows given up, % of the requests", &|o, more| share(more.released, o));
    add("expired", "bids that nobody accepted in time, % of the requests", &|o, more| share(more.expired, o));
    add("more_rounds", "further rounds of bids, % of the requests", &|o, _| share(o.more_rounds, o));
    add("collisions", "transfers that met another at a port, % of the requests", &|o, _| share(o.collisions, o));
    add("repairs", "repairs asked for, % of the requests", &|o, more| share(more.repairs, o));
    add("hedged", "gets that another holder was asked for, too, % of the requests", &|o, more| share(more.hedged, o));
    add("dropped", "datagrams lost on the way, by each receiver", &|_, more| more.dropped as f64);
    add("failed", "requests that failed", &|_, more| more.failed as f64);
    add("unfinished", "requests that were not over after the drain", &|_, more| more.unfinished as f64);
    add("undurable", "puts acknowledged with too few copies on disk", &|_, more| more.undurable as f64);
    add("crashes", "crashes of targets", &|_, more| f64::from(more.crashes));
    add("cpu_initiator", "an initiator's processor, %", &|_, more| 100.0 * more.cpu_initiator);
    add("cpu_target", "a target's processor, %", &|_, more| 100.0 * more.cpu_target);
    metrics
}

/// The figures that only runs have in which targets are lost for good.
fn of_loss(outcomes: &[Outcome]) -> Vec<Metric> {
    let of_run = |o: &'_ Outcome| o.product.as_ref().and_then(|more| more.mended.clone());
    let all: Vec<(f64, Mended)> =
        outcomes.iter().filter_map(|o| Some((o.measured.max(1) as f64 / 1e9, *of_run(o)?))).collect();
    let mut metrics = Vec::new();
    if all.is_empty() {
        return metrics;
    }
    let mut add = |key, label: &str, of: &dyn Fn(f64, &Mended) -> f64| {
        let values = all.iter().map(|(seconds, mended)| of(*seconds, mended)).collect();
        metrics.push(Metric { key, label: label.to_owned(), values });
    };
    let millis = |nanos: Option<u64>| nanos.map_or(f64::NAN, |nanos| nanos as f64 / 1e6);
    add("restored_per_second", "copies made again, of the measured time, a second", &|s, m| m.in_time as f64 / s);
    add("lost_copies", "copies that were lost", &|_, m| m.lost as f64);
    add("restored_copies", "copies made again in all", &|_, m| m.made as f64);
    add("left_copies", "copies to be made at the end of the measured time", &|_, m| m.left as f64);
    add("surplus_copies", "copies made beside enough others", &|_, m| m.surplus as f64);
    add("first_restored_ms", "from the loss to the first copy, ms", &|_, m| millis(m.first));
    add("whole_ms", "from the loss to the last copy, ms", &|_, m| millis(m.whole));
    add("restore_p50_us", "a chunk's restoring from its read on, p50, us", &|_, m| {
        m.took.value_at_quantile(0.5) as f64 / 1e3
    });
    add("restore_mean_us", "the same, mean, us", &|_, m| m.took.mean() / 1e3);
    add("restoring", "chunks that are being restored at once, mean", &|s, m| {
        m.took.mean() / 1e9 * m.took.len() as f64 / s
    });
    add("censuses", "questions of stewards", &|_, m| m.censuses as f64);
    metrics
}
