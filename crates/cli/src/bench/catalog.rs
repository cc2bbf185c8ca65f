//! The catalog alone, with many objects: pages of lists, look-ups, and durable commits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use catalog::object_manifest::{Body, Kind, ObjectManifest, VersionId};
use catalog::{Catalog, CatalogError, Change, Condition, Row, Sqlite, Start};
use object::manifest::Entry;
use protocol::id::ChunkId;
use protocol::rng::mix;
use serde::Serialize;

use super::go_on;
use crate::args::BenchArgs;
use crate::output::{self, json, line, step_bar};
use crate::process::most_resident;
use crate::units;

const BUCKET: &str = "bench";
/// Objects in a page of a list, as many as S3 gives at most.
const PAGE: usize = 1_000;
/// Objects in each directory of keys.
const DIRECTORY: u64 = 1_000;
/// Callers at once, where many share a commit.
const MANY: usize = 32;
/// Times that the bar moves while the catalog is filled.
const STEPS: u64 = 100;

#[derive(Debug, Serialize)]
struct Report {
    objects: u64,
    file_bytes: u64,
    fill_seconds: f64,
    /// The most memory that this process had resident, bytes.
    resident: u64,
    results: Vec<Measured>,
}

#[derive(Debug, Serialize)]
struct Measured {
    what: String,
    at_once: usize,
    per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// Runs `reservoir bench --catalog N`.
pub(super) fn run(args: &BenchArgs, objects: u64, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    ensure!(objects > 0, "--catalog 0 measures nothing: give at least 1");
    let place = &args.data;
    ensure!(place.is_dir(), "there is no directory {}: make it, or choose another with --data", place.display());
    let directory = tempfile::Builder::new().prefix("reservoir-bench-").tempdir_in(place);
    let directory = directory
        .with_context(|| format!("no directory can be made in {}: choose another with --data", place.display()))?;
    let path = directory.path().join("catalog.sqlite");
    let catalog = Sqlite::open(&path).context("the catalog cannot be made")?;
    catalog.change(Change::CreateBucket(row(Kind::Bucket, "", 1))).context("the catalog cannot be filled")?;
    let begin = Instant::now();
    let bar = step_bar("filling", STEPS);
    let each = objects.div_ceil(STEPS);
    let fill = (0..objects).take_while(|_| !stop.load(Ordering::SeqCst)).map(|n| {
        if n.is_multiple_of(each) {
            bar.inc(1);
        }
        Change::Put(row(Kind::Object, &key(n), n + 2), Condition::Always)
    });
    catalog.change_all(fill).context("the catalog cannot be filled")?;
    bar.finish_and_clear();
    go_on(stop)?;
    let fill_seconds = begin.elapsed().as_secs_f64();
    let bench = Bench { limit: Duration::from_secs(args.seconds), stop };
    let mut results = Vec::new();
    for at_once in [1, MANY] {
        results.push(bench.measure(&format!("list a page of {PAGE}"), at_once, |n| {
            let from = Start::Key(key(mix(n) % objects).into_bytes());
            catalog.objects(BUCKET, &from, PAGE).map(drop)
        })?);
        results.push(bench.measure("look one up", at_once, |n| {
            let found = catalog.newest(BUCKET, &key(mix(n) % objects))?;
            found.map(drop).ok_or_else(|| CatalogError::Engine("an object is missing".to_owned()))
        })?);
        results.push(bench.measure("put, durably", at_once, |n| {
            let new = row(Kind::Object, &key(mix(n) % objects), objects + n + 2);
            catalog.change(Change::Put(new, Condition::Always))
        })?);
    }
    // As a bucket that keeps versions is after all of it was deleted.
    let last = objects + (1 << 40);
    let delete = (0..objects).take_while(|_| !stop.load(Ordering::SeqCst)).map(|n| {
        let mut marker = row(Kind::Marker, &key(n), last + n);
        marker.record.null = false;
        Change::Put(marker, Condition::Always)
    });
    catalog.change_all(delete).context("the objects cannot be deleted")?;
    go_on(stop)?;
    results.push(bench.measure(&format!("list, after {objects} were deleted"), 1, |_| {
        match catalog.objects(BUCKET, &Start::Key(vec![]), PAGE)?.len() {
            0 => Ok(()),
            _ => Err(CatalogError::Engine("what was deleted is listed".to_owned())),
        }
    })?);
    let file_bytes = std::fs::metadata(&path).context("the catalog cannot be examined")?.len();
    let report = Report { objects, file_bytes, fill_seconds, resident: most_resident(std::process::id()), results };
    if args.json { json(&report) } else { print(&report) }
}

/// The key of object `n`.
fn key(n: u64) -> String {
    format!("directory-{:06}/object-{:04}", n / DIRECTORY, n % DIRECTORY)
}

/// A row as an object of a megabyte has.
fn row(kind: Kind, key: &str, micros: u64) -> Row {
    let mut record = ObjectManifest::new(kind, BUCKET, key, VersionId::new(micros, micros));
    record.null = true;
    if kind == Kind::Object {
        record.size = 1 << 20;
        let id = ChunkId::of_payload(key.as_bytes());
        record.body = Body::Chunks(vec![Entry::new(id, 1 << 20)]);
    }
    record.etag = format!("{micros:032x}");
    record.attributes.insert("content-type".to_owned(), "application/octet-stream".to_owned());
    record.attributes.insert("x-amz-checksum-crc64nvme".to_owned(), "AAAAAAAAAAA=".to_owned());
    let manifest = record.chunk().0;
    Row { record, manifest }
}

struct Bench<'a> {
    limit: Duration,
    stop: &'a AtomicBool,
}

impl Bench<'_> {
    /// Calls `one` with ever new numbers until the time is up.
    fn measure(
        &self,
        what: &str,
        at_once: usize,
        one: impl Fn(u64) -> Result<(), CatalogError> + Sync,
    ) -> anyhow::Result<Measured> {
        // The newest version of a key must be later than those before: numbers go on from one measurement to the next.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let samples = Mutex::new(Vec::new());
        let begin = Instant::now();
        let work = || -> anyhow::Result<()> {
            let mut own = Vec::new();
            while begin.elapsed() < self.limit && !self.stop.load(Ordering::SeqCst) {
                let start = Instant::now();
                match one(NEXT.fetch_add(1, Ordering::Relaxed)) {
                    // Two callers chose one key, and the later one was first.
                    Ok(()) | Err(CatalogError::Refused(_)) => own.push(start.elapsed().as_secs_f64() * 1e3),
                    Err(error) => return Err(error).with_context(|| format!("{what} failed")),
                }
            }
            samples.lock().unwrap_or_else(PoisonError::into_inner).extend(own);
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().try_for_each(join)
        })?;
        go_on(self.stop)?;
        let mut samples = samples.into_inner().unwrap_or_else(PoisonError::into_inner);
        samples.sort_by(f64::total_cmp);
        Ok(Measured {
            what: what.to_owned(),
            at_once,
            per_s: samples.len() as f64 / begin.elapsed().as_secs_f64(),
            p50_ms: units::quantile(&samples, 50.0),
            p99_ms: units::quantile(&samples, 99.0),
        })
    }
}

fn print(report: &Report) -> anyhow::Result<()> {
    line(&format!(
        "a catalog of {} objects: {} on disk, filled in {:.0} s; at most {} resident",
        report.objects,
        units::size(report.file_bytes),
        report.fill_seconds,
        units::size(report.resident)
    ))?;
    let cells = |row: &Measured| {
        let ms = |ms: f64| format!("{ms:.2}");
        vec![row.what.clone(), row.at_once.to_string(), format!("{:.0}", row.per_s), ms(row.p50_ms), ms(row.p99_ms)]
    };
    output::table(&["", "at once", "per s", "p50 ms", "p99 ms"], report.results.iter().map(cells).collect())
}
