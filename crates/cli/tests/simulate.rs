//! The simulator's commands, through the binary.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use std::fs;
use std::path::Path;

use common::{error_of, reservoir};
use serde_json::Value;

fn scenarios() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

fn output_of(args: &[&str]) -> String {
    let output = reservoir(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_paper_comes_out_as_json_and_as_a_report() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("paper");
    let args = ["sim", "paper", "--only", "table3,table5,fig8,choosy-spikes", "--seeds", "2", "--json", "--out"];
    let text = output_of(&[&args[..], &[out.to_str().unwrap()]].concat());
    let cells: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(cells.len(), 12 + 3 + 2 + 2);
    for cell in &cells {
        let ours = cell["chunks_per_second"].as_f64().unwrap();
        if let Some(paper) = cell["paper"].as_f64() {
            let ratio = cell["ratio"].as_f64().unwrap();
            assert!((ours / paper - ratio).abs() < 1e-9 && (0.9..1.1).contains(&ratio), "{cell}");
        } else {
            assert!(cell["protocol"] == "uch-aimd" || cell["table"] == "fig8" || cell["extra"] == "choosy", "{cell}");
        }
    }
    assert!(cells.iter().any(|c| c["chunk"] == "128K" && c["disk"] == 1000 && c["protocol"] == "replicast-m"));
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    let choosy = cells.iter().find(|c| c["extra"] == "choosy").unwrap();
    assert!(choosy["choosy"]["latency_lower_percent"].as_f64().unwrap() > 0.0, "{choosy}");
    assert!(page.matches("<svg").count() == 4 && page.contains("Table 5") && page.ends_with("</html>\n"));
    for outside in ["src=", "href=", "url(", "@import"] {
        assert!(!page.contains(outside), "the report needs something else: {outside}");
    }
    for plot in ["fig8.svg", "choosy-spikes-without.svg", "choosy-spikes-with.svg"] {
        assert!(fs::read_to_string(out.join(plot)).unwrap().starts_with("<svg"), "{plot}");
    }
}

#[test]
fn the_messenger_levels_its_workers_beside_the_papers() {
    let text = output_of(&["sim", "paper", "--only", "messenger-fig11", "--seeds", "1", "--json"]);
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(rows.len(), 4);
    let deviation = |name: &str| {
        let row = rows.iter().find(|row| row["protocol"] == name).unwrap();
        assert!(row["table"] == "messenger-fig11" && row["size"] == "4K" && row["seeds"] == 1, "{row}");
        row["deviation_kb"].as_f64().unwrap()
    };
    let original = rows.iter().find(|row| row["protocol"] == "async-orig").unwrap();
    assert!((0.85..1.15).contains(&original["ratio"].as_f64().unwrap()), "{original}");
    assert!(deviation("async-ld") < deviation("async-orig") && deviation("work") < deviation("async-orig"));
}

#[test]
fn every_scenario_that_ships_runs() {
    let mut ran = 0;
    for entry in fs::read_dir(scenarios()).unwrap() {
        let path = entry.unwrap().path();
        let small = ["--set", "length=200us", "--set", "warm_up=0ns", "--seeds", "2", "--json"];
        let text = output_of(&[&["sim", "run", path.to_str().unwrap()][..], &small].concat());
        let result: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(result["seeds"], 2, "{}", path.display());
        assert_eq!(result["latency_p99_us"]["values"].as_array().unwrap().len(), 2);
        ran += 1;
    }
    assert!(ran >= 8, "{ran}");
}

#[test]
fn a_scenario_is_run_compared_swept_and_ablated_with_reports() {
    let place = tempfile::tempdir().unwrap();
    let [m, hashed] = ["paper-128k-m.toml", "paper-128k-hashed.toml"].map(|name| scenarios().join(name));
    let (m, hashed) = (m.to_str().unwrap(), hashed.to_str().unwrap());
    let out = |name: &str| place.path().join(name).to_str().unwrap().to_owned();

    let again =
        |seed: &str| output_of(&["sim", "run", m, "--seeds", "2", "--json", "--set", seed, "--out", &out("run")]);
    assert_eq!(again("seed=7"), again("seed=7"), "a run does not repeat");
    assert_ne!(again("seed=7"), again("seed=70"));
    let csv = fs::read_to_string(Path::new(&out("run")).join("result.csv")).unwrap();
    assert!(csv.starts_with("metric,mean,confidence_95,run_1,run_2\nchunks_per_second,"), "{csv}");

    let text = output_of(&["sim", "compare", hashed, m, "--seeds", "4", "--json", "--out", &out("compare")]);
    let compared: Value = serde_json::from_str(&text).unwrap();
    let faster = &compared["chunks_per_second"];
    assert!(faster["difference"].as_f64().unwrap() > faster["confidence"].as_f64().unwrap(), "{faster}");

    let vary = ["--vary", "chunk=16KiB,128KiB", "--vary", "disk_mb_per_s=400,1000"];
    let place_of_sweep = out("sweep");
    let args = [&["sim", "sweep", m][..], &vary, &["--seeds", "2", "--json", "--out", &place_of_sweep]].concat();
    let points: Vec<Value> = serde_json::from_str(&output_of(&args)).unwrap();
    assert_eq!(points.len(), 4);
    assert_eq!((&points[1]["chunk"], &points[1]["disk_mb_per_s"]), (&"128KiB".into(), &"400".into()));

    let keep = ["--vary", "disk_mb_per_s=400,200,1", "--keep", "40"];
    let text = output_of(&[&["sim", "sweep", m][..], &keep].concat());
    assert!(text.ends_with("at least 40 % of the best up to disk_mb_per_s = 200.\n"), "{text}");

    let switches = ["--switch", "guard=1us,data_percent=96", "--switch", "control_bytes=100"];
    let place_of_ablate = out("ablate");
    let args = [&["sim", "ablate", m][..], &switches, &["--seeds", "2", "--json", "--out", &place_of_ablate]].concat();
    let rows: Vec<Value> = serde_json::from_str(&output_of(&args)).unwrap();
    assert_eq!(rows.len(), 6);
    let speed = |row: &Value| row["chunks_per_second"].as_f64().unwrap();
    assert!(speed(&rows[5]) > speed(&rows[0]), "{rows:?}");
    for report in ["run", "compare", "sweep", "ablate"] {
        assert!(Path::new(&out(report)).join("report.html").exists(), "{report}");
    }
}

/// Two leaders that share members refuse each other's windows: groups are laid out for the protocol unless it is stated how.
#[test]
fn groups_are_laid_out_for_the_protocol() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("x.toml");
    let file = path.to_str().unwrap();
    let text = "profile = \"product\"\ninitiators = 18\ntargets = 18\nlength = \"5ms\"\n";
    fs::write(&path, text).unwrap();
    let rate = |set: &[&str]| {
        let set = set.iter().flat_map(|set| ["--set", *set]);
        let args: Vec<&str> = ["sim", "run", file, "--json"].into_iter().chain(set).collect();
        let result: Value = serde_json::from_str(&output_of(&args)).unwrap();
        (result["overlap"].as_bool().unwrap(), result["chunks_per_second"]["mean"].as_f64().unwrap())
    };
    let led = rate(&["protocol=leader"]);
    assert_eq!(led, rate(&["protocol=leader", "overlap=false"]));
    let shared = rate(&["protocol=leader", "overlap=true"]);
    assert!(!led.0 && shared.0 && led.1 != shared.1, "{led:?} {shared:?}");
    assert!(rate(&[]).0 && !rate(&["overlap=false"]).0);
    // Printed where it was chosen, and only there; with JSON on standard error.
    let note = "share no targets, because protocol = \"leader\"";
    let counts = |args: &[&str]| {
        let output = reservoir(&[&["sim"], args].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        (out.matches(note).count(), err.matches(note).count())
    };
    let led = ["--set", "protocol=leader"];
    assert_eq!(counts(&[&["run", file][..], &led].concat()), (1, 0));
    assert_eq!(counts(&[&["run", file, "--json"][..], &led].concat()), (0, 1));
    assert_eq!(counts(&[&["run", file, "--set", "overlap=true"][..], &led].concat()), (0, 0));
    assert_eq!(counts(&["run", file]), (0, 0));
    assert_eq!(counts(&["sweep", file, "--vary", "protocol=replicast-m,leader"]), (1, 0));
    assert_eq!(counts(&["ablate", file, "--switch", "protocol=leader", "--switch", "depth=2"]), (1, 0));
    let second = place.path().join("y.toml");
    fs::write(&second, format!("{text}protocol = \"leader\"\n")).unwrap();
    assert_eq!(counts(&["compare", file, second.to_str().unwrap(), "--seeds", "2"]), (1, 0));
    fs::write(&second, format!("{text}protocol = \"leader\"\noverlap = false\n")).unwrap();
    assert_eq!(counts(&["compare", file, second.to_str().unwrap(), "--seeds", "2"]), (0, 0));
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_anything_runs() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    let m = scenarios().join("paper-128k-m.toml");
    let (m, file) = (m.to_str().unwrap(), file.to_str().unwrap());
    // So many runs that one of these would not end in time.
    for args in [
        &["run", m, "--seeds", "10000"][..],
        &["compare", m, m, "--seeds", "10000"],
        &["paper", "--seeds", "10000"],
        &["rivals"],
    ] {
        let error = error_of(&[&["sim"], args, &["--out", file]].concat());
        assert!(error.contains(file) && error.contains("--out"), "{error}");
    }
}

#[test]
fn a_replay_is_a_line_for_each_thing_that_happens() {
    let text = output_of(&["sim", "replay", "3"]);
    let (head, steps) = text.split_once("seconds       node          what\n").unwrap();
    assert!(head.starts_with("seed 3: ") && head.lines().count() < 20, "{head}");
    let steps: Vec<&str> = steps.lines().collect();
    assert!(steps.len() > 1_000 && steps.last().unwrap().starts_with("seed 3: "));
    for step in &steps[..steps.len() - 1] {
        let mut words = step.split_whitespace();
        let (time, node) = (words.next().unwrap(), words.next().unwrap());
        let is_node = node.starts_with("target-") || node.starts_with("initiator-");
        assert!(time.parse::<f64>().is_ok() && is_node && words.next().is_some(), "{step}");
        assert!(!step.contains(['{', '}']), "a dump of data and no sentence: {step}");
    }
    for what in ["put request", "bid for", "accept of", "payload of", "durable on"] {
        assert!(steps.iter().any(|step| step.contains(what)), "{what}");
    }
}

#[test]
fn failures_that_are_not_shown_are_counted() {
    let output = reservoir(&["sim", "check", "--seeds", "60", "--plant", "ack-before-durable"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let failed: usize =
        text.lines().next().unwrap().rsplit(", ").next().unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(failed > 20, "{text}");
    assert_eq!(text.matches("again, step by step").count(), 20, "{text}");
    assert!(text.ends_with(&format!("and {} more, not shown\n", failed - 20)), "{text}");
}

#[test]
fn rivals_are_compared_with_a_plot() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("rivals");
    let short = ["--set", "length=3ms", "--set", "warm_up=5ms", "--seeds", "2", "--load", "0.5", "--slow", "10"];
    let args = [&["sim", "rivals", "--json", "--out", out.to_str().unwrap()][..], &short].concat();
    let rows: Vec<Value> = serde_json::from_str(&output_of(&args)).unwrap();
    assert_eq!(rows.len(), 2 * 8);
    let tail = |protocol: &str, slow: u64| {
        let row = rows.iter().find(|row| row["protocol"] == protocol && row["slow_times"] == slow).unwrap();
        row["latency_p999_us"].as_f64().unwrap()
    };
    assert!(
        tail("replicast-m", 10) < tail("prequal-sync", 10) && tail("replicast-m", 1) < tail("uch-ccp", 1),
        "{rows:?}"
    );
    let plot = fs::read_to_string(out.join("rivals-0.5.svg")).unwrap();
    for words in ["one disk in nine 10 times slower", "put latency, p99.9, ms", "prequal-like", "replicast-h"] {
        assert!(plot.contains(words), "{words}");
    }
    // The first plot is what slow disks do.
    let growth = fs::read_to_string(out.join("growth-0.5.svg")).unwrap();
    assert!(growth.contains("What slow disks do") && growth.contains("prequal-sync"), "{growth}");
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.find("What slow disks do") < page.find("Tail of the put latency"), "{page}");
    assert!(error_of(&["sim", "rivals", "--set", "protocol=tcp"]).contains("uch-ccp"));
    // One run says nothing of the spread.
    let one = ["--set", "length=40ms", "--set", "warm_up=10ms", "--seeds", "1", "--load", "0.5", "--slow", "10"];
    let rows: Vec<Value> =
        serde_json::from_str(&output_of(&[&["sim", "rivals", "--json"][..], &one].concat())).unwrap();
    assert!(rows.iter().all(|row| row["confidence"].is_null()), "{rows:?}");
    assert!(output_of(&[&["sim", "rivals"][..], &one].concat()).contains(" ± -"));
    let scenario = scenarios().join("one-rack.toml");
    let run = ["sim", "run", scenario.to_str().unwrap(), "--json", "--set", "length=200us", "--set", "warm_up=0ns"];
    let run: Value = serde_json::from_str(&output_of(&[&run[..], &["--seeds", "1"]].concat())).unwrap();
    assert!(run["chunks_per_second"]["confidence"].is_null(), "{run}");
}

#[test]
fn what_is_wrong_with_a_scenario_is_said_with_its_line() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("x.toml");
    let path = path.to_str().unwrap();
    let error = |text: &str, more: &[&str]| {
        fs::write(path, text).unwrap();
        error_of(&[&["sim", "run", path], more].concat())
    };
    let unknown = error("title = \"x\"\nspeed = 3\n", &[]);
    assert!(unknown.contains("x.toml:2:") && unknown.contains("initiators"), "{unknown}");
    let group = error("targets = 6\n\ngroup = 12\n", &[]);
    assert!(group.contains("x.toml:3:") && group.contains("3 to 6"), "{group}");
    let set = error("", &["--set", "chunk=12"]);
    assert!(set.contains("--set chunk") && set.contains("KiB"), "{set}");
    assert!(error_of(&["sim", "run", "/nowhere/x.toml"]).contains("/nowhere/x.toml"));
    fs::write(path, "length = \"1ms\"\n").unwrap();
    let metric = error_of(&["sim", "sweep", path, "--vary", "depth=1,2", "--metric", "speed"]);
    assert!(metric.contains("chunks_per_second"), "{metric}");
    assert!(error_of(&["sim", "sweep", path, "--vary", "depth"]).contains("key=value"));
    assert!(error_of(&["sim", "sweep", path, "--vary", "depth=1", "--vary", "depth=2"]).contains("two different"));
    assert!(error_of(&["sim", "sweep", path, "--vary", "depth=1", "--keep", "200"]).contains("0 to 100"));
    assert!(error_of(&["sim", "run", path, "--seeds", "99999999"]).contains("1 to 10000"));
    assert!(error_of(&["sim", "paper", "--seeds", "99999999"]).contains("1 to 10000"));
    for long in ["length=999999999s", "warm_up=18000000000s", "trip=18000000000s", "guard=2s"] {
        assert!(error_of(&["sim", "run", path, "--set", long]).contains("s are possible"), "{long}");
    }
    for (flag, args) in
        [("--vary", &["--vary", "chunk=12,16KiB"][..]), ("--set", &["--vary", "depth=1,2", "--set", "chunk=12"])]
    {
        let wrong = error_of(&[&["sim", "sweep", path], args].concat());
        assert!(wrong.contains(&format!("{flag} chunk=12")), "{wrong}");
    }
    let switch = error_of(&["sim", "ablate", path, "--switch", "chunk=12", "--switch", "depth=2"]);
    assert!(switch.contains("--switch chunk=12"), "{switch}");
    assert!(error_of(&["sim", "paper", "--seeds", "0"]).contains("--seeds"));
    assert!(error_of(&["sim", "ablate", path, "--switch", "depth=2"]).contains("compare"));
}

/// Everybody pays for messages, payload and syncs: ours and those that reserve nothing.
#[test]
fn rivals_are_compared_at_the_same_costs() {
    let rows_at = |cpu: &str| -> Vec<Value> {
        let short = ["--set", "length=20ms", "--set", "warm_up=20ms", "--seeds", "1", "--load", "0.5", "--slow", "10"];
        let args = [&["sim", "rivals", "--profile", "product", "--json", "--set", cpu][..], &short].concat();
        serde_json::from_str(&output_of(&args)).unwrap()
    };
    let (cheap, dear) = (rows_at("cpu_message=0us"), rows_at("cpu_message=8us"));
    assert_eq!(cheap.len(), 2 * 8);
    for (cheap, dear) in cheap.iter().zip(&dear).take(8) {
        let median = |row: &Value| row["latency_p50_us"].as_f64().unwrap();
        assert!(cheap["slow_times"] == 1 && median(dear) > median(cheap) + 16.0, "{cheap} {dear}");
    }
}

#[test]
fn leaders_are_compared_by_their_throughput_over_time() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("leader");
    let small = ["initiators=9", "targets=18", "length=5ms", "objects=500"];
    let set = small.iter().flat_map(|set| ["--set", *set]);
    let args: Vec<&str> = ["sim", "leader", "--seeds", "2", "--json"].into_iter().chain(set).collect();
    let text = output_of(&[&args[..], &["--out", out.to_str().unwrap()]].concat());
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(rows.len(), 16);
    for row in &rows {
        let rate = row["chunks_per_second"].as_f64().unwrap();
        let points: Vec<f64> = row["over_time"].as_array().unwrap().iter().map(|p| p[1].as_f64().unwrap()).collect();
        let mean = points.iter().sum::<f64>() / points.len() as f64;
        assert!(rate > 0.0 && (mean / rate - 1.0).abs() < 1e-6, "{mean}: {row}");
    }
    for plot in ["leader-throughput.svg", "leader-time-128K-ideal.svg", "leader-time-1M-realistic.svg"] {
        assert!(fs::read_to_string(out.join(plot)).unwrap().starts_with("<svg"), "{plot}");
    }
}
