//! Metrics of real processes, over HTTP.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::common::{Cluster, content};

/// The series of a page, by name and labels.
fn scrape(address: &str) -> BTreeMap<String, f64> {
    let mut answer = ureq::get(format!("http://{address}/metrics")).call().unwrap();
    assert!(answer.headers()["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    let text = answer.body_mut().read_to_string().unwrap();
    assert!(text.ends_with("# EOF\n"), "{text}");
    let series = text.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').unwrap());
    series.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

/// Those of the gateway of the cluster in a directory.
pub(crate) fn scrape_gateway(data: &Path) -> BTreeMap<String, f64> {
    let settings = fs::read_to_string(data.join("gateway.toml")).unwrap();
    scrape(settings.split('"').nth(1).unwrap())
}

/// The sum of a series over all targets; `labels` follow the target's.
fn sum(pages: &[BTreeMap<String, f64>], name: &str, labels: &str) -> f64 {
    let more = if labels.is_empty() { String::new() } else { format!(",{labels}") };
    let of = |(n, page): (usize, &BTreeMap<String, f64>)| {
        let key = format!("reservoir_target_{name}{{target=\"{}\"{more}}}", n + 1);
        *page.get(&key).unwrap_or_else(|| panic!("{key} is not among {:?}", page.keys()))
    };
    pages.iter().enumerate().map(of).sum()
}

#[test]
fn counters_of_targets_and_gateway_move_with_puts_and_gets() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = Cluster::start(&data, &[]);
    let map = fs::read_to_string(data.join("cluster.toml")).unwrap();
    let pages: Vec<&str> =
        map.lines().filter_map(|line| Some(line.strip_prefix("metrics = ")?.trim_matches('"'))).collect();
    assert_eq!(pages.len(), 9);
    let all = || -> Vec<_> { pages.iter().map(|address| scrape(address)).collect() };
    for pid in cluster.children("target") {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(kib < 64 << 10, "an idle target takes {kib} KiB");
    }
    let before = all();
    let put = cluster.try_run(&["put", "-", "f"], &content(5 << 20, 1));
    assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    cluster.run(&["get", "f", "-o", "-"]);
    let after = all();
    let moved = |name: &str, labels: &str| sum(&after, name, labels) - sum(&before, name, labels);
    // Five chunks and the manifests of object and bucket, three copies each; a put that is repeated for one copy may make another.
    assert!(moved("copies_stored_total", "") >= 21.0);
    assert_eq!(moved("chunks", ""), moved("copies_stored_total", ""));
    assert!(moved("copy_bytes_stored_total", "") >= f64::from(15 << 20));
    assert!(moved("bids_total", "answer=\"window\"") >= 21.0);
    assert!(moved("windows_total", "fate=\"accepted\"") >= 21.0);
    assert!(moved("write_seconds_count", "") >= 21.0 && moved("write_seconds_sum", "") > 0.0);
    assert!(moved("fsync_seconds_count", "") >= 1.0);
    assert!(moved("start_late_seconds_count", "") + moved("start_early_seconds_count", "") >= 21.0);
    assert!(moved("bytes_received_total", "kind=\"data\"") >= f64::from(15 << 20));
    assert!(moved("bytes_sent_total", "kind=\"data\"") >= f64::from(5 << 20));
    assert!(moved("datagrams_received_total", "kind=\"control\"") > 21.0);
    assert!(moved("free_bytes", "") < 0.0);
    assert_eq!(sum(&after, "corrupt_copies_total", ""), 0.0);
    assert_eq!(sum(&after, "dropped_total", "reason=\"forged\""), 0.0);
    assert_eq!(sum(&after, "map_epoch", ""), 9.0);
    let gateway = scrape_gateway(&data);
    let of = |name: &str| gateway[&format!("reservoir_{name}")];
    assert!(of("gateway_s3_working") == 0.0);
    assert!(of("initiator_puts_total{outcome=\"done\"}") == 7.0 && of("initiator_put_rounds_total") >= 7.0);
    assert!(of("initiator_gets_total{outcome=\"done\"}") >= 5.0 && of("initiator_get_seconds_count") >= 5.0);
    assert!(of("initiator_bids_total{answer=\"window\"}") >= 21.0);
    assert!(of("initiator_bytes_sent_total{kind=\"data\"}") >= f64::from(5 << 20));
    assert!(cluster.stop());
}

#[test]
fn the_benchmark_of_conflicts_reads_what_targets_count() {
    let place = tempfile::tempdir().unwrap();
    let mut bench = std::process::Command::new(env!("CARGO_BIN_EXE_reservoir"));
    bench.args([
        "bench",
        "--conflicts",
        "100",
        "--seconds",
        "3",
        "--transports",
        "hash,replicast-m",
        "--json",
        "--data",
    ]);
    let output = bench.arg(place.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let figure = |row: &serde_json::Value, key: &str| row[key].as_f64().unwrap();
    // Three copies of some 300 puts, at nine targets: each counts intervals from its first transfer on.
    assert!(figure(&rows[0], "intervals") >= 600.0, "{rows:?}");
    assert!(figure(&rows[1], "intervals") >= 300.0, "{rows:?}");
    assert!((15.0..40.0).contains(&figure(&rows[0], "two_or_more")), "{rows:?}");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "the cluster is removed");
}
