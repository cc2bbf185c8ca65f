//! Figures out of what the targets count, and how they are printed.

use std::collections::BTreeMap;

use anyhow::Context;

use comfy_table::{CellAlignment, Table, presets};
use testkit::Cluster;

/// The sum of all targets' counters and histogram buckets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters(BTreeMap<String, f64>);

impl Counters {
    /// Of the targets `ids`, now.
    pub(crate) fn of(cluster: &Cluster, ids: impl Iterator<Item = usize>) -> anyhow::Result<Self> {
        let mut sum: BTreeMap<String, f64> = BTreeMap::new();
        for id in ids {
            for line in cluster.metrics(id)?.lines().filter(|line| !line.starts_with('#')) {
                let (series, value) = line.rsplit_once(' ').context("a metric has a value")?;
                let series = series.replace(&format!("target=\"{id}\""), "");
                *sum.entry(series).or_default() += value.parse::<f64>().context("a metric is a number")?;
            }
        }
        Ok(Self(sum))
    }

    /// How far each has grown since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let grown = |(name, value): (&String, &f64)| (name.clone(), value - before.0.get(name).unwrap_or(&0.0));
        Self(self.0.iter().map(grown).collect())
    }

    /// Adds another's.
    pub(crate) fn add(&mut self, other: &Self) {
        for (name, value) in &other.0 {
            *self.0.entry(name.clone()).or_default() += value;
        }
    }

    /// The sum of the counters whose series have `name` and `label` in them.
    pub(crate) fn count(&self, name: &str, label: &str) -> f64 {
        let these = self.0.iter().filter(|(series, _)| series.contains(name) && series.contains(label));
        these.map(|(_, value)| value).sum()
    }

    /// An upper bound of a quantile (0 to 1) of a histogram of seconds, in milliseconds: the end of its bucket. `None`
    /// when there is nothing in it.
    pub(crate) fn quantile_ms(&self, name: &str, quantile: f64) -> Option<f64> {
        let bucket = format!("{name}_bucket");
        let mut buckets: Vec<(f64, f64)> = self
            .0
            .iter()
            .filter(|(series, _)| series.contains(&bucket))
            .filter_map(|(series, count)| {
                let end = series.split("le=\"").nth(1)?.split('"').next()?;
                Some((if end == "+Inf" { f64::INFINITY } else { end.parse().ok()? }, *count))
            })
            .collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let all = buckets.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
        buckets.into_iter().find(|(_, count)| *count >= all * quantile).map(|(end, _)| end * 1e3)
    }
}

/// The median; of an even number the upper one.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints a table; numbers to the right.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header(header.iter().copied()).add_rows(rows);
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    println!("{table}");
}

/// How busy the machine was in the last minute: runnable threads.
pub(crate) fn machine_load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}
