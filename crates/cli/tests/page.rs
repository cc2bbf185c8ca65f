//! The status page in a real browser.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "common/client.rs"]
mod client;
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use client::S3;
use common::{Cluster, content, happened, signal};
use serde_json::{Value, json};

/// Debian's browser, or why there is none.
fn browser() -> Result<PathBuf, String> {
    testkit::find_or_install("chromium", || ["chromium", "chromium-browser"].into_iter().find_map(testkit::in_path))
}

/// The page after its scripts have run for some seconds, as text of its elements, and what the browser complained of.
fn open_page(browser: &Path, address: &str, profile: &Path) -> (String, String) {
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(["--enable-logging=stderr", "--virtual-time-budget=9000", "--dump-dom", address])
        .output()
        .unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    let complaints = complaints.lines().filter(|line| line.contains("CONSOLE")).collect::<Vec<_>>().join("\n");
    (String::from_utf8_lossy(&output.stdout).into_owned(), complaints)
}

/// The part of the page from one mark to another.
fn part<'a>(page: &'a str, from: &str, to: &str) -> &'a str {
    let rest = &page[page.find(from).unwrap_or_else(|| panic!("no {from} in {page}"))..];
    &rest[..rest.find(to).unwrap_or_else(|| panic!("no {to} behind {from}"))]
}

#[test]
fn the_page_shows_targets_rates_and_what_is_wrong() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    // Long enough to see who is down.
    let cluster = Cluster::start(&data, &["--no-restart", "--out-after", "300"]);
    let s3 = S3::of(&cluster);
    s3.ask("PUT", ("page", ""), &[], &[], b"").is(200);
    for n in 0..20 {
        s3.put("page", &format!("k{n}"), &content(200_000, n)).is(200);
        s3.get("page", &format!("k{n}")).is(200);
    }
    s3.get("page", "none").is(404);
    let printed = cluster.output();
    let address = printed.lines().find_map(|line| Some(line.split_once("status page: ")?.1.to_owned())).unwrap();
    // Until some quiet seconds are over: then lines have a height and a bottom.
    let quiet = |second: &serde_json::Value| second["put"]["chunks"] == 0 && second["get"]["chunks"] == 0;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let mut answer = ureq::get(format!("{address}v1/live")).call().unwrap();
        let history: serde_json::Value = answer.body_mut().read_json().unwrap();
        let seconds = history["seconds"].as_array().unwrap();
        if seconds.len() > 3 && seconds[seconds.len() - 2..].iter().all(quiet) {
            break;
        }
        assert!(Instant::now() < deadline, "{history}");
        std::thread::sleep(Duration::from_millis(100));
    }

    let (page, complaints) = open_page(&browser, &address, &place.path().join("profile"));
    assert_eq!(complaints, "");
    let state = part(&page, "id=\"state\"", "</p>");
    // It is counted meanwhile, or was.
    let counted = state.contains("All 9 targets are up, and every chunk has all its copies.");
    assert!(counted || state.contains("All 9 targets are up."), "{page}");
    for target in 1..=9 {
        let row = part(&page, &format!("data-target=\"{target}\""), "</tr>");
        assert!(row.contains(">up<") && row.contains("iB<") && row.contains(" %<"), "{row}");
    }
    let loads = page.split("data-load=\"").skip(1).map(|cell| part(cell, ">", "<")[1..].parse::<f64>().unwrap());
    assert!(loads.sum::<f64>() > 0.0, "no target has taken a copy");
    // Whatever was put and got is in the plots: their lines leave the bottom.
    let heights = |plot: &str, series: &str| -> Vec<f64> {
        let lines = part(&page, &format!("id=\"{plot}\""), "</svg>");
        let line = lines.split("<path").find(|path| path.contains(&format!("data-series=\"{series}\""))).unwrap();
        let points = part(line, " d=\"", "\" ").trim_start_matches(" d=\"").split(['M', 'L']).skip(1);
        points.map(|point| point.split([' ', 'h']).nth(1).unwrap().parse().unwrap()).collect()
    };
    for (plot, series) in [("flow", "put"), ("flow", "get"), ("answers", "done"), ("answers", "refused")] {
        let heights = heights(plot, series);
        let (least, most) =
            (heights.iter().copied().fold(f64::MAX, f64::min), heights.iter().copied().fold(0.0, f64::max));
        assert!(least < most, "{plot} {series} is flat: {heights:?}");
    }
    assert!(!heights("puts", "p99").is_empty() && !heights("gets", "p50").is_empty());

    let third = cluster.children("target")[2];
    signal(third, "-STOP");
    let (page, _) = open_page(&browser, &address, &place.path().join("profile"));
    signal(third, "-CONT");
    let state = part(&page, "id=\"state\"", "</p>");
    assert!(state.contains(" is silent.") || state.contains(" is silent; "), "{state}");
    assert!(part(&page, "data-group=\"0\"", "</span></span>").contains("1 silent"), "{page}");
    a_loss_is_seen(&cluster, &|| open_page(&browser, &address, &place.path().join("profile")));
}

/// A target is lost for good: the page says what follows from it, what is done, and what was done.
fn a_loss_is_seen(cluster: &Cluster, open: &dyn Fn() -> (String, String)) {
    let before = cluster.wait_for("whole", |status| status["whole"] == true && status["down"]["targets"] == json!({}));
    let most = before["targets"].as_array().unwrap().iter().max_by_key(|target| target["chunks"].as_u64()).unwrap();
    let lost = most["id"].as_u64().unwrap();
    cluster.kill_target(lost as u32);
    let seen = cluster.wait_for("down", |status| {
        status["down"]["targets"][lost.to_string()].is_u64() && status["at_risk"].as_u64() > Some(0)
    });
    let (page, complaints) = open();
    assert_eq!(complaints, "");
    let tile = |page: &str, name: &str| part(page, &format!("data-tile=\"{name}\""), "</div>").to_owned();
    let at_risk = seen["at_risk"].as_u64().unwrap();
    let state = tile(&page, "state");
    assert!(state.contains(&format!("<b>{at_risk}</b>chunks have too few copies")), "{state} {seen}");
    assert_eq!(seen["at_risk_by_copies"], json!({"2": at_risk}));
    let left = tile(&page, "left-2");
    assert!(left.contains(&format!("<b>{at_risk}</b>of them with 2 copies left")), "{left}");
    assert!(tile(&page, "made").contains("made again: 0 chunks on their way"), "{page}");
    assert!(tile(&page, "moving").contains("chunks on their way to emptier targets"), "{page}");
    assert!(part(&page, &format!("data-target=\"{lost}\""), "</tr>").contains(">down<"), "{page}");
    let down = part(&page, &format!("data-down=\"{lost}\""), "</li>");
    assert!(down.contains(&format!("Target {lost} is down</span> since ")), "{down}");
    assert!(down.contains(" s: it is taken out of the cluster map in "), "{down}");
    assert_eq!(page.matches("data-down=").count(), 1, "{page}");

    // It was down for longer than that.
    cluster.change_map(|map| map.replace("epoch = 1", "epoch = 2").replace("_seconds = 300", "_seconds = 5"));
    let gone = |status: &Value| status["targets"].as_array().unwrap().iter().all(|target| target["id"] != lost);
    // The history has it at the gateway's next look.
    let is_whole = |status: &Value| gone(status) && status["whole"] == true && happened(status, "whole again");
    let after = cluster.wait_for("whole again", is_whole);
    let (page, complaints) = open();
    assert_eq!(complaints, "");
    assert!(tile(&page, "state").contains("<b>whole</b>every chunk has all its copies"), "{page}");
    let made = after["restored_chunks"].as_u64().unwrap();
    assert!(made >= at_risk && tile(&page, "made").contains(&format!("<b>{made}</b>chunks with ")), "{after} {page}");
    assert!(!page.contains("data-down=") && !page.contains("data-tile=\"left-"), "{page}");
    assert!(!page.contains(&format!("data-target=\"{lost}\"")), "{page}");
    let history = part(&page, "id=\"history\"", "</ol>");
    for what in ["is silent", "is down, as others say, too", "is out of the cluster map"] {
        assert!(history.contains(&format!("target {lost} {what}")), "{what}: {history}");
    }
    assert!(history.contains("whole again: every chunk has all its copies"), "{history}");

    // Two that are lost together may have one cause: the page says why they stay.
    let left: Vec<u64> =
        after["targets"].as_array().unwrap().iter().map(|target| target["id"].as_u64().unwrap()).collect();
    left[..2].iter().for_each(|target| cluster.kill_target(*target as u32));
    cluster.wait_for("held", |status| status["down"]["held"].is_string());
    let (page, _) = open();
    for (from, to) in [("data-held", "</li>"), ("id=\"state\"", "</p>")] {
        let said = part(&page, from, to);
        assert!(said.contains("targets of 2 failure domains fell silent together"), "{said}");
    }
    let down = part(&page, &format!("data-down=\"{}\"", left[0]), "</li>");
    assert!(down.contains(": it stays in the cluster map while others are down as well"), "{down}");
}
