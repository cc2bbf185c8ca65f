//! When nothing happens any more: all is there, nothing else, and nothing takes more room than it should.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::Cluster;
use crate::faults::{Faults, WHOLE, targets};
use crate::load::Client;
use crate::model::Object;
use crate::story::Story;

/// Copies of a chunk.
const COPIES: usize = 3;
/// Up to this size the bytes of an object ride in its manifest.
const INLINE: usize = 64 << 10;
/// What a manifest takes with its record at most: that of an object, or one that says that there is none.
const MANIFEST: usize = 4 << 10;
/// Cleanings until nothing is left that may go: what says that an object was removed goes after the object.
const CLEANINGS: usize = 8;
/// What is stored beside that, such as manifests that no cleaner could take yet: of changes that a killed gateway began.
const BESIDE: usize = 4 << 20;
/// Copies too many go a little later than any get may take.
const SURPLUS: Duration = Duration::from_secs(120);

/// See the [module](self).
pub(crate) fn check(faults: &mut Faults<'_>, clients: &mut [Client<'_>], story: &Story) {
    wait_until_whole(faults, story);
    clients.iter_mut().for_each(Client::check);
    story.say("all was read");
    clients.iter_mut().for_each(Client::abort_uploads);
    clean(faults.processes.cluster(), story);
    check_catalog(faults.processes.cluster(), story);
    check_room(faults.processes.cluster(), clients, story);
    check_processes(faults, story);
    clients.iter_mut().for_each(Client::check);
    story.say("all was read again after cleaning");
    let (done, failed) = story.requests();
    if (done as f64) < story.seconds() {
        story.fail(&format!("next to nothing was done: {done} requests, and {failed} failed"));
    }
}

fn wait_until_whole(faults: &mut Faults<'_>, story: &Story) {
    let began = Instant::now();
    // What the status said last is of a moment before the clients stopped.
    while began.elapsed() < Duration::from_secs(3) || !faults.is_whole() {
        faults.tick();
        if began.elapsed() > WHOLE {
            return story.fail(&format!("not whole in {WHOLE:?}: {}", faults.processes.cluster().status()));
        }
    }
    story.say(&format!("whole {:.0} s after the last request", began.elapsed().as_secs_f64()));
}

/// Cleans until nothing goes any more.
fn clean(cluster: &Cluster, story: &Story) {
    for _ in 0..CLEANINGS {
        // Nothing is being put.
        let output = cluster.try_run(&["clean", "--grace", "1", "--json"], b"");
        let Ok(done) = serde_json::from_slice::<Value>(&output.stdout) else {
            return story.fail(&format!("cleaning fails: {}", String::from_utf8_lossy(&output.stderr)));
        };
        story.say(&format!("cleaned: {}", done.to_string().trim()));
        if done["unreferenced"] == 0 && done["copies"] == 0 {
            return;
        }
    }
    story.fail(&format!("after {CLEANINGS} cleanings there is still something to drop"));
}

/// The catalog has what the manifests say. What a gateway began when it was killed is no difference.
fn check_catalog(cluster: &Cluster, story: &Story) {
    let output = cluster.try_run(&["catalog", "check", "--json"], b"");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let is_clean = |what: &str| found[what].as_array().is_some_and(Vec::is_empty);
    if !output.status.success() || !is_clean("differences") || !is_clean("remarks") {
        let why = String::from_utf8_lossy(&output.stderr);
        story.fail(&format!("`catalog check` is not clean: {found} {why}"));
    }
    let harmless = found["harmless"].as_array().map_or(0, Vec::len);
    story.say(&format!("`catalog check` is clean; harmless leftovers: {harmless}"));
}

/// Nobody panicked, and no disk returned anything but what was written.
fn check_processes(faults: &Faults<'_>, story: &Story) {
    for (log, text) in faults.processes.logs() {
        if let Some(line) = text.lines().find(|line| line.contains("panicked")) {
            story.fail(&format!("{}: {line}", log.display()));
        }
    }
    let damaged = faults.processes.cluster().status()["damaged"].clone();
    if damaged["copies"] != 0 {
        story.fail(&format!("copies were damaged: {damaged}"));
    }
}

/// What targets hold are the copies of what there is, and little more.
fn check_room(cluster: &Cluster, clients: &[Client<'_>], story: &Story) {
    let (mut all, mut keys) = (vec![], 0);
    for client in clients {
        let (objects, count) = client.objects();
        all.extend(objects);
        keys += count;
    }
    // Those that are alike share their bytes, unless these ride in their manifests.
    let (small, large): (Vec<Object>, Vec<Object>) = all.iter().partition(|object| object.length <= INLINE);
    let large: BTreeSet<Object> = large.into_iter().collect();
    let least = COPIES * small.iter().chain(&large).map(|object| object.length).sum::<usize>();
    let most = least + COPIES * keys * MANIFEST + BESIDE;
    let deadline = Instant::now() + SURPLUS;
    loop {
        let status = cluster.status();
        let live: Option<u64> = targets(&status).iter().map(|target| target["live"].as_u64()).sum();
        let text = format!("{} objects: {least} to {most} bytes, and targets hold {live:?}", all.len());
        if live.is_some_and(|live| (least..=most).contains(&(live as usize))) {
            return story.say(&text);
        }
        if Instant::now() > deadline {
            return story.fail(&format!("{text}: {status}"));
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}
