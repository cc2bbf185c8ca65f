//! `reservoir sim ablate`: what each of several changes is worth, alone, left out, and together.

use anyhow::ensure;
use serde::Serialize;

use super::scenarios::{Done, changes_by, interval, perform, read, written};
use crate::args::AblateArgs;
use crate::plot::{Words, ranks};
use crate::report::Measured;

/// One row as JSON.
#[derive(Serialize)]
struct RowJson {
    switches: String,
    chunks_per_second: f64,
    /// Half of the 95 % confidence interval; null for one run.
    confidence: Option<f64>,
    share_of_bound: f64,
    latency_mean_us: f64,
    latency_p99_us: f64,
}

impl RowJson {
    fn of(switches: &str, done: &Done) -> Self {
        let mean = |key| done.mean(key);
        Self {
            switches: switches.to_owned(),
            chunks_per_second: mean("chunks_per_second"),
            confidence: done.metric("chunks_per_second").and_then(|m| m.estimate().confidence()),
            share_of_bound: mean("share_of_bound"),
            latency_mean_us: mean("latency_mean_us"),
            latency_p99_us: mean("latency_p99_us"),
        }
    }
}

/// Runs `reservoir sim ablate`.
pub(super) fn run(args: &AblateArgs) -> anyhow::Result<()> {
    ensure!(args.switch.len() >= 2, "--switch is given {} times: with one, use compare", args.switch.len());
    let settings = |switches: &[&String]| -> Vec<String> {
        switches.iter().flat_map(|s| s.split(',').map(|set| set.trim().to_owned())).collect()
    };
    let all: Vec<&String> = args.switch.iter().collect();
    let mut variants = vec![("none".to_owned(), Vec::new())];
    variants.extend(all.iter().map(|one| (format!("only {one}"), vec![*one])));
    for one in &all {
        variants.push((format!("all but {one}"), all.iter().copied().filter(|other| other != one).collect()));
    }
    variants.push(("all".to_owned(), all.clone()));
    let scenarios = variants.iter().map(|(_, switches)| {
        let set = [changes_by("--set", &args.how.set), changes_by("--switch", &settings(switches))].concat();
        read(&args.file, &set, args.how.seeds)
    });
    let done = perform(scenarios.collect::<anyhow::Result<Vec<_>>>()?, &args.how.report)?;
    let rows: Vec<RowJson> = variants.iter().zip(&done).map(|((name, _), done)| RowJson::of(name, done)).collect();
    let header = ["switches", "chunks/s", "95 %", "of the bound, %", "mean, us", "p99, us", "p99 / mean"];
    let cells: Vec<Vec<String>> = rows
        .iter()
        .zip(&done)
        .map(|(row, done)| {
            vec![
                row.switches.clone(),
                written(row.chunks_per_second),
                done.metric("chunks_per_second").map_or_else(String::new, |m| interval(m.estimate())),
                format!("{:.1}", row.share_of_bound),
                written(row.latency_mean_us),
                written(row.latency_p99_us),
                format!("{:.2}", row.latency_p99_us / row.latency_mean_us.max(1e-9)),
            ]
        })
        .collect();
    let measured = Measured { objects: &rows, header: &header, rows: &cells };
    measured.conclude(&args.how.report, "What each change is worth", |report| {
        report.text(&format!("{}, with {} runs of each.", args.file.display(), done[0].seeds()));
        let bars: Vec<(String, f64)> = rows.iter().map(|row| (row.switches.clone(), row.share_of_bound)).collect();
        let words = Words { title: "What each change is worth", x: "throughput, % of the bound", y: "" };
        report.plot("ablate", ranks(&words, &bars)?);
        Ok(())
    })
}
