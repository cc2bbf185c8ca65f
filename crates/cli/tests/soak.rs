//! A cluster of real processes under mixed load, to which everything happens that may: kills, losses for good, joins, drains, full disks
//! and cleaning, in a random order. Every object that was acknowledged stays exact, and every one that was removed stays gone.
//! `make soak` takes half an hour for it, and looks at memory as well.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should stop")]

#[path = "common/client.rs"]
mod client;
mod common;
#[path = "soak/faults.rs"]
mod faults;
#[path = "soak/finish.rs"]
mod finish;
#[path = "soak/load.rs"]
mod load;
#[path = "soak/memory.rs"]
mod memory;
#[path = "soak/model.rs"]
mod model;
#[path = "soak/processes.rs"]
mod processes;
#[path = "soak/story.rs"]
mod story;

use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use client::S3;
use faults::Faults;
use load::{BUCKET, Client};
use processes::Processes;
use story::{Ending, Story};

/// Seconds of faults, unless `RESERVOIR_SOAK_SECONDS` says more; and of a run that is long enough for memory to be flat.
const SECONDS: u64 = 60;
const LONG: u64 = 600;
const CLIENTS: u64 = 6;
/// Seconds of grace of the cleaners. A put may take half of it.
const GRACE: u32 = 20;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_removed_comes_back() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = number("RESERVOIR_SOAK_SEED").unwrap_or(now);
    let seconds = number("RESERVOIR_SOAK_SECONDS").unwrap_or(SECONDS);
    println!("seed {seed}: {seconds} s (RESERVOIR_SOAK_SEED={seed} draws the same)");
    let place = tempfile::tempdir().unwrap();
    let processes = Processes::start(place.path(), GRACE);
    let s3 = S3::of(processes.cluster());
    s3.put(BUCKET, "", b"").is(200);
    let (story, filling) = (Story::new(seed), AtomicBool::new(false));
    let mut clients: Vec<Client> = (0..CLIENTS).map(|number| Client::new(number, seed, &s3, &story)).collect();
    let mut filler = Client::new(CLIENTS, seed, &s3, &story);
    // A gateway that was just started has less in memory for some minutes: in the two thirds that are compared it is left alone.
    let spare_from = if seconds >= LONG { seconds as f64 * 0.3 } else { seconds as f64 };
    let mut faults = Faults::new(processes, (&story, &filling), seed, (seconds, spare_from));
    std::thread::scope(|scope| {
        for client in &mut clients {
            let story = &story;
            scope.spawn(move || {
                let _ending = Ending(story);
                client.work();
            });
        }
        let (story, filler, filling) = (&story, &mut filler, &filling);
        scope.spawn(move || {
            let _ending = Ending(story);
            filler.fill_when_asked(filling);
        });
        let _ending = Ending(story);
        faults.run();
    });
    clients.push(filler);
    if story.failure().is_none() {
        finish::check(&mut faults, &mut clients, &story);
    }
    faults.memory.print_table();
    story.print_table();
    let grown = faults.memory.grown();
    if seconds >= LONG && !grown.is_empty() {
        story.fail(&format!("memory grows: {grown:?}"));
    }
    if let Some(failure) = story.failure() {
        faults.processes.print_logs();
        if seconds >= LONG {
            println!("all of it stays in {}", place.keep().display());
        }
        panic!("{failure}");
    }
}
