//! What gateways do, in words.

use catalog::{CatalogError, Change, Row};
use object::clean::Report;
use protocol::initiator::{Busy, Discarded, Fetched, GetError, Marked};

use super::nodes;
use crate::object::Objects;

/// The gateways of a scenario.
pub(crate) fn gateways(objects: &Objects) -> String {
    let o = objects;
    let cleans = if o.cleans { "clean, " } else { "" };
    let flaps = if o.flaps { ", targets that come and go" } else { "" };
    format!(
        "gateways: {} with {} clients of {} operations each; they {cleans}send heartbeats every {} and wait {} for an answer; grace {}; \
         objects of up to {} bytes ride in manifests, chunks have {} bytes\n\
         before {}: {} crashes and {} stalls of gateways, {} outages{flaps}, {} steps of wall clocks; clocks up to {} apart; \
         {} of 1,000 changes in trouble",
        o.gateways,
        o.clients,
        o.operations,
        o.heartbeat,
        o.patience,
        o.grace,
        o.inline,
        o.chunk,
        o.storm,
        o.crashes,
        o.stalls,
        o.outages,
        o.steps,
        o.off,
        o.trouble
    )
}

/// How a change of the catalog ended.
pub(crate) fn change(change: &Change, outcome: &Result<(), CatalogError>) -> String {
    let what = match change {
        Change::CreateBucket(row) => format!("the bucket {}", row.record.bucket),
        Change::SetBucket(row, _) => format!("settings of the bucket {}", row.record.bucket),
        Change::DeleteBucket(name, _) => format!("the end of the bucket {name}"),
        Change::Put(row, _) => version(row),
        Change::Revise(row, _) => format!("other attributes of {}", version(row)),
        Change::Erase { bucket, key, version, .. } => format!("the removal of {bucket}/{key} {version}"),
        Change::Removed { bucket, key, version } => format!("removals of {bucket}/{key} up to {version}"),
        Change::StartUpload(upload) => format!("an upload of {}/{}", upload.record.bucket, upload.record.key),
        Change::PutPart(upload, part) => format!("part {} of the upload {upload}", part.number),
        Change::EndUpload(upload) => format!("the end of the upload {upload}"),
        Change::Complete(row, _, upload) => format!("{} of the upload {upload}", version(row)),
        Change::Heartbeat { run, .. } => format!("a heartbeat of run {run:016x}"),
        Change::EndRun { run, .. } => format!("the end of run {run:016x}"),
    };
    match outcome {
        Ok(()) => format!("the catalog has {what}"),
        Err(error) => format!("the catalog does not take {what}: {error}"),
    }
}

fn version(row: &Row) -> String {
    format!("{}/{} {}", row.record.bucket, row.record.key, row.record.version)
}

/// How a get of a gateway ended.
pub(crate) fn got(result: &Result<Fetched, GetError>) -> String {
    result.as_ref().map_or_else(|error| format!("get failed: {error}"), |fetched| format!("get: from {}", fetched.from))
}

/// How a renewal ended.
pub(crate) fn renewed(result: &Result<bool, Busy>) -> String {
    match result {
        Ok(true) => "renewal: enough copies are promised".to_owned(),
        Ok(false) => "renewal: too few copies".to_owned(),
        Err(error) => format!("renewal failed: {error}"),
    }
}

/// How a mark was set.
pub(crate) fn marked(result: &Result<Marked, Busy>) -> String {
    let text = |marked: &Marked| format!("mark: silent: {}", nodes(&marked.silent));
    result.as_ref().map_or_else(|error| format!("mark failed: {error}"), text)
}

/// What a discard dropped.
pub(crate) fn discarded(result: &Result<Discarded, Busy>) -> String {
    let text = |done: &Discarded| format!("discard: {} copies dropped; silent: {}", done.copies, nodes(&done.silent));
    result.as_ref().map_or_else(|error| format!("discard failed: {error}"), text)
}

/// What a cleaner found in a pass.
pub(crate) fn pass_over(report: &Report) -> String {
    let (pass, problem) = (&report.pass, report.problem.as_deref());
    let end = problem.map_or_else(String::new, |why| format!("; not finished: {why}"));
    format!("finished a pass: {} chunks without a reference, {} copies dropped{end}", pass.unreferenced, pass.copies)
}
